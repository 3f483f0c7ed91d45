//! The bundle of a container: its root file system and `config.json`, made before the OCI runtime is called.
//!
//! ```text
//! <run>/containers/<id>/    record.json  config.json  rootfs/ (overlay)  volumes/<n>/ (overlay)  and the shim's files
//!                           lower/ (the layers with mapped owners, only while overlays of a user namespace are mounted)
//! <root>/containers/<id>/   upper/  work/  empty/
//! ```
//!
//! `volumes/<n>` is the n-th image that the container mounts as a volume: its layers and nothing above them, read-only.
//! The `subPath` of a mount is found once, below that mount; images do not change.
//!
//! Every container has a writable upper directory, also one with a read-only root: mount points that the image lacks are
//! made in it. Blocking: all of this runs on the disk lane, but for [`resolve_mounts`].

use std::{
    fs,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt as _, chown},
    },
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, sys::stat::Mode};

use super::{host, sources::MountSource};
use crate::api::strict::{JsonTextError, from_json};
use crate::{
    api::{
        cri::{self, ContainerMount, MountPropagation},
        oci::{self, SeccompFilter},
    },
    sys::{crash, file, lane::Lane, mount, open, remove, user_namespace},
};

/// Longest passwd or group file that is read, bytes; the rest of a longer one is not searched.
const PASSWD_LIMIT: u64 = 4 * 1024 * 1024;
/// Longest seccomp profile that is read, bytes.
const PROFILE_LIMIT: u64 = 4 * 1024 * 1024;

/// Directories of a container.
#[derive(Clone, Debug)]
pub(super) struct ContainerDirs {
    /// `<run>/containers/<id>`: the bundle.
    pub(super) run: PathBuf,
    /// `<root>/containers/<id>`.
    pub(super) root: PathBuf,
}

impl ContainerDirs {
    pub(super) fn rootfs_dir(&self) -> PathBuf {
        self.run.join("rootfs")
    }

    fn volumes_dir(&self) -> PathBuf {
        self.run.join("volumes")
    }

    fn lower_dir(&self) -> PathBuf {
        self.run.join("lower")
    }
}

/// Facts found while the root file system was mounted.
#[derive(Debug, Default)]
pub(super) struct PreparedBundle {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) image_volumes: Vec<ContainerMount>,
    pub(super) seccomp: Option<SeccompFilter>,
    /// Device nodes of the container, in their order.
    pub(super) devices: Vec<oci::OciDevice>,
    /// All nodes of the machine, if they were wanted.
    pub(super) host_devices: Vec<oci::OciDevice>,
    /// The container's mounts with links resolved on the host; an image has the path at which it is mounted.
    pub(super) mounts: Vec<ContainerMount>,
}

/// Mounts of a container, resolved on the host.
#[derive(Debug)]
pub(super) struct ResolvedMounts {
    /// Mounts with links resolved on the host; images unchanged.
    pub(super) mounts: Vec<ContainerMount>,
    /// Paths of the host to which these lead.
    pub(super) sources: Vec<MountSource>,
}

/// An image to be mounted as a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeImage {
    /// Name of the image in the mounts.
    pub(super) image: String,
    /// Top first, at least one.
    pub(super) layers: Vec<PathBuf>,
}

/// Parts of a bundle that are to be prepared.
#[derive(Clone, Debug)]
pub(super) struct BundleRequest {
    pub(super) dirs: ContainerDirs,
    /// User namespace of the pod, if it has its own: its pin, and the id of the host that is root in it.
    pub(super) users: Option<(PathBuf, u32)>,
    pub(super) layers: Vec<PathBuf>,
    /// Mounts as [`resolve_mounts`] returned them.
    pub(super) mounts: Vec<ContainerMount>,
    /// Images of `mounts`, each once.
    pub(super) volume_images: Vec<VolumeImage>,
    /// Paths of the image that stay writable although the root is read-only.
    pub(super) writable: Vec<String>,
    pub(super) seccomp_file: Option<String>,
    pub(super) devices: Vec<cri::ContainerDeviceNode>,
    /// Set if the container gets all nodes of the machine.
    pub(super) all_devices: bool,
}

/// Reason why a bundle cannot be prepared; the variant tells who can mend it.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    /// Fault of this machine: its disk or its mounts.
    #[error("{0}")]
    Machine(String, #[source] io::Error),
    /// Fault of the image: its builder has to mend it.
    #[error("{0} of the image")]
    Image(String, #[source] io::Error),
    /// Fault of the pod, or of the maker of the path that it mounts.
    #[error("source {host:?} of mount {at:?}")]
    Source {
        host: String,
        at: String,
        source: io::Error,
    },
    /// Fault of a pod that mounts an image as a volume. CRI's word for it stands first: clients look for it in the
    /// message.
    #[error("ImageVolumeMountFailed: image {image:?} at {at:?}")]
    Volume {
        image: String,
        at: String,
        source: ImageVolumeError,
    },
    /// Fault of a device: it may be unplugged, or another one.
    #[error("device {0:?}")]
    Device(String, #[source] io::Error),
    /// Fault of the seccomp profile: its author has to mend it.
    #[error("seccomp profile {0:?}")]
    Profile(String, #[source] JsonTextError),
}

/// Reason why an image shows nothing where it is mounted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageVolumeError {
    #[error("it is not mounted")]
    NotMounted,
    #[error("subPath {0:?} {1}")]
    SubPath(String, &'static str),
    #[error("subPath {0:?}")]
    Io(String, #[source] io::Error),
}

/// Makes the error of this machine at `path`.
fn machine_error_at(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    let path = path.display().to_string();
    move |e| BundleError::Machine(path, e)
}

/// Resolves the container's mounts of host paths. `own`: the agent's directories, without links. A missing source is an
/// error, a link is resolved on the host (RTM-12).
///
/// Blocking, perhaps for ever: the server of a path may be gone. Nothing is changed meanwhile.
pub(super) fn resolve_mounts(
    mut mounts: Vec<ContainerMount>,
    own: &[PathBuf],
) -> Result<ResolvedMounts, BundleError> {
    let mut sources = Vec::new();
    for mount in mounts.iter_mut().filter(|mount| mount.image.is_none()) {
        let (host, at) = (&mount.host_path, &mount.container_path);
        let source = MountSource::resolve(host, at, own).and_then(|source| {
            let path = &source.path;
            super::mounts::check_propagation(path, mount.propagation).map(|()| source)
        });
        let source = source.map_err(|source| {
            let (host, at) = (host.clone(), at.clone());
            BundleError::Source { host, at, source }
        })?;
        mount.host_path = source.path.display().to_string();
        sources.push(source);
    }
    Ok(ResolvedMounts { mounts, sources })
}

/// Mounts the root file system and reads what the specification needs.
///
/// - Errors: what was made is left for [`remove_bundle`].
pub(super) fn prepare_bundle(wanted: &BundleRequest) -> Result<PreparedBundle, BundleError> {
    let BundleRequest { dirs, layers, .. } = wanted;
    let root_owner = wanted.users.as_ref().map(|(_, root)| *root);
    let rootfs = dirs.rootfs_dir();
    let (upper, work) = (dirs.root.join("upper"), dirs.root.join("work"));
    super::files::make_private_dir(&dirs.root).map_err(machine_error_at(&dirs.root))?;
    super::files::make_root_dir(&upper).map_err(machine_error_at(&upper))?;
    for dir in [&work, &rootfs] {
        fs::create_dir_all(dir).map_err(machine_error_at(dir))?;
    }
    crash::point("container.layer-made");
    let mapped = match &wanted.users {
        Some((namespace, root)) => {
            open_to_users(dirs, &upper, *root)?;
            Some(MappedLayers::attach(wanted, namespace)?)
        }
        None => None,
    };
    let mapped = mapped.as_ref();
    mount_rootfs(&show_layers(mapped, layers), &upper, &work, &rootfs).map_err(|e| {
        let step = format!("mount the root file system at {}", rootfs.display());
        BundleError::Machine(step, e)
    })?;
    let root = open::open_dir(&rootfs).map_err(machine_error_at(&rootfs))?;
    let read = |path: &str| {
        read_in_root(&root, path).map_err(|e| BundleError::Image(format!("/{path}"), e))
    };
    let mut prepared = PreparedBundle {
        passwd: read("etc/passwd")?,
        group: read("etc/group")?,
        ..PreparedBundle::default()
    };
    for path in &wanted.writable {
        prepared.image_volumes.push(ContainerMount {
            host_path: make_dir_in_root(&rootfs, &root, path, root_owner)
                .map_err(|e| BundleError::Image(format!("volume {path:?}"), e))?,
            container_path: path.clone(),
            propagation: MountPropagation::Private,
            ..ContainerMount::default()
        });
    }
    let volumes = mount_volumes(wanted, mapped)?;
    if mapped.is_some() {
        // The overlays have their own copies of it.
        let lower = dirs.lower_dir();
        mount::unmount(&lower).map_err(machine_error_at(&lower))?;
    }
    for mount in &wanted.mounts {
        if let Some(spec) = &mount.image {
            prepared.mounts.push(ContainerMount {
                host_path: image_volume_path(&volumes, &spec.image, &mount.image_sub_path)
                    .map_err(|source| BundleError::Volume {
                        image: spec.user_image.clone(),
                        at: mount.container_path.clone(),
                        source,
                    })?,
                ..mount.clone()
            });
            continue;
        }
        prepared.mounts.push(mount.clone());
    }
    for device in &wanted.devices {
        let node = device_node(device);
        let node = node.map_err(|e| BundleError::Device(device.host_path.clone(), e))?;
        prepared.devices.push(node);
    }
    if wanted.all_devices {
        prepared.host_devices = host::list_devices();
    }
    if let Some(path) = &wanted.seccomp_file {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|f| f.take(PROFILE_LIMIT).read_to_end(&mut bytes))
            .map_err(machine_error_at(Path::new(path)))?;
        let profile = from_json(&bytes).map_err(|e| BundleError::Profile(path.clone(), e))?;
        prepared.seccomp = Some(profile);
    }
    Ok(prepared)
}

fn device_node(device: &cri::ContainerDeviceNode) -> io::Result<oci::OciDevice> {
    let metadata = open::read_device_metadata(device)?;
    Ok(oci::OciDevice {
        kind: if device.block { "b" } else { "c" }.to_owned(),
        path: device.container_path.clone(),
        major: device.major.into(),
        minor: device.minor.into(),
        file_mode: Some(metadata.mode() & 0o777),
        uid: Some(metadata.uid()),
        gid: Some(metadata.gid()),
    })
}

/// Mounts the root file system. `volatile` spares the disk every sync of the writable layer: the layer is never mounted
/// again, so a power cut does no harm. Kernels before 5.10 do not know it.
fn mount_rootfs(layers: &[PathBuf], upper: &Path, work: &Path, rootfs: &Path) -> io::Result<()> {
    mount::unmount(rootfs)?;
    let upper_work = Some((upper, work));
    match mount::mount_overlay(layers, upper_work, rootfs, &["volatile"]) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            mount::mount_overlay(layers, upper_work, rootfs, &[])
        }
        other => other,
    }
}

/// Lets the OCI runtime go to the root file system as root of the pod's user namespace, who is nobody to the host: only
/// that group may pass through the container's directory. The container's `/` belongs to it.
fn open_to_users(dirs: &ContainerDirs, upper: &Path, root: u32) -> Result<(), BundleError> {
    let all = dirs.run.parent().unwrap_or(&dirs.run);
    super::files::open_dir_to(all, None)
        .and_then(|()| super::files::open_dir_to(&dirs.run, Some(root)))
        .map_err(machine_error_at(&dirs.run))?;
    chown(upper, Some(root), Some(root)).map_err(machine_error_at(upper))
}

/// Layers of images as the pod's user namespace is to see them (UNS-24): the directory that all of them share is shown
/// once more, with mapped owners.
struct MappedLayers {
    /// Directory that all layers share.
    top: PathBuf,
    /// Place at which it is shown.
    at: PathBuf,
}

impl MappedLayers {
    fn attach(wanted: &BundleRequest, namespace: &Path) -> Result<Self, BundleError> {
        let of_volumes = wanted.volume_images.iter().flat_map(|v| &v.layers);
        let mut top: Option<&Path> = None;
        // A layer is a directory in the shared one.
        let parents = wanted.layers.iter().chain(of_volumes);
        for parent in parents.filter_map(|layer| layer.parent()) {
            top = match top {
                Some(top) => top.ancestors().find(|dir| parent.starts_with(dir)),
                None => Some(parent),
            };
        }
        let top = top.filter(|top| top.parent().is_some());
        let top = top.map(Path::to_owned).ok_or_else(|| {
            let step = "map the owners of the image's layers".to_owned();
            BundleError::Machine(step, io::Error::other("they share no directory but /"))
        })?;
        let at = wanted.dirs.lower_dir();
        let attach = || {
            fs::create_dir_all(&at)?;
            mount::unmount(&at)?;
            let namespace = fs::File::open(namespace)?;
            let tree = user_namespace::clone_with_owners(&top, namespace.as_fd())?;
            user_namespace::attach_mount(tree.as_fd(), &at)
        };
        attach().map_err(|e| {
            let on = mount::mount_holding(&top).ok().flatten();
            let kind = on.map(|on| on.kind).unwrap_or_default();
            let step = format!("map the owners of {} (file system {kind:?})", top.display());
            BundleError::Machine(step, e)
        })?;
        Ok(Self { top, at })
    }
}

/// Returns the paths at which the layers are shown with the right owners.
fn show_layers(mapped: Option<&MappedLayers>, layers: &[PathBuf]) -> Vec<PathBuf> {
    let Some(MappedLayers { top, at }) = mapped else {
        return layers.to_vec();
    };
    let shown = |layer: &PathBuf| match layer.strip_prefix(top) {
        Ok(rest) => at.join(rest),
        Err(_) => layer.clone(),
    };
    layers.iter().map(shown).collect()
}

/// Mounts the images of volumes. Returns each image with its mount point.
fn mount_volumes<'a>(
    wanted: &'a BundleRequest,
    mapped: Option<&MappedLayers>,
) -> Result<Vec<(&'a str, PathBuf)>, BundleError> {
    let BundleRequest { dirs, .. } = wanted;
    let mut mounted = Vec::new();
    if wanted.volume_images.is_empty() {
        return Ok(mounted);
    }
    // An overlay without a writable layer needs two others.
    let empty = dirs.root.join("empty");
    fs::create_dir_all(&empty).map_err(machine_error_at(&empty))?;
    for (n, volume) in wanted.volume_images.iter().enumerate() {
        let target = dirs.volumes_dir().join(n.to_string());
        // Only root can reach the image's programs here.
        file::make_dirs(&target, 0o700).map_err(machine_error_at(&target))?;
        let mut layers = show_layers(mapped, &volume.layers);
        if layers.len() == 1 {
            layers.push(empty.clone());
        }
        mount::unmount(&target)
            .and_then(|()| mount::mount_overlay(&layers, None, &target, &[]))
            .map_err(|e| {
                let (image, target) = (&volume.image, target.display());
                let step = format!("ImageVolumeMountFailed: mount image {image} at {target}");
                BundleError::Machine(step, e)
            })?;
        crash::point("container.volume-mounted");
        mounted.push((volume.image.as_str(), target));
    }
    Ok(mounted)
}

/// The host's path of a directory of an image. Links are followed as long as they stay in the image, as containerd has it.
fn image_volume_path(
    volumes: &[(&str, PathBuf)],
    image: &str,
    sub_path: &str,
) -> Result<String, ImageVolumeError> {
    let mut volumes = volumes.iter();
    let (_, root) = volumes
        .find(|(name, _)| *name == image)
        .ok_or(ImageVolumeError::NotMounted)?;
    if sub_path.is_empty() {
        return Ok(root.display().to_string());
    }
    let wrong = |why| ImageVolumeError::SubPath(sub_path.to_owned(), why);
    let within = |e: io::Error| match e.raw_os_error() {
        Some(libc::EXDEV | libc::ELOOP) => wrong("leads out of the image"),
        Some(libc::ENOENT) => wrong("is not in the image"),
        Some(libc::ENOTDIR) => wrong("is not a directory"),
        _ => ImageVolumeError::Io(sub_path.to_owned(), e),
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let found = open::open_dir(root)
        .and_then(|root| open::open_beneath(root, Path::new(sub_path), flags, 0))
        .and_then(|dir| fs::read_link(super::fd_path(&dir)))
        .map_err(within)?;
    if !found.starts_with(root) {
        return Err(wrong("leads out of the image"));
    }
    Ok(found.display().to_string())
}

/// Unmounts the root file system and the images of volumes. Their contents stay. Idempotent.
pub(super) fn unmount_bundle(dirs: &ContainerDirs) -> io::Result<()> {
    mount::unmount(&dirs.rootfs_dir())?;
    mount::unmount(&dirs.lower_dir())?;
    let volumes = dirs.volumes_dir();
    for name in super::files::sorted_names(&volumes)? {
        mount::unmount(&volumes.join(name))?;
    }
    Ok(())
}

/// Removes every trace on disk, the run directory last: it is found again after a crash. Idempotent. A container may
/// have written much: others have their turn on the lane meanwhile.
pub(super) async fn remove_bundle(disk: &Lane, dirs: &ContainerDirs) -> io::Result<()> {
    let mounted = dirs.clone();
    disk.run_job(move || unmount_bundle(&mounted)).await?;
    crash::point("container.unmounted");
    remove::remove_on_lane(disk, &dirs.root).await?;
    crash::point("container.layer-removed");
    remove::remove_on_lane(disk, &dirs.run).await
}

/// Reads a file as the container would find it. Absent or not a plain file counts as empty.
fn read_in_root(root: impl AsFd, path: &str) -> io::Result<String> {
    // A FIFO must not stop the lane.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match open::open_in_root(root, Path::new(path), flags, 0) {
        Ok(file) => file,
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENXIO)
            ) =>
        {
            return Ok(String::new());
        }
        Err(e) => return Err(e),
    };
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    file.take(PASSWD_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The host's path of a directory of the container, made if absent. Links of the image are followed inside of it only.
/// `owner`: user and group of a new one, instead of the host's root.
fn make_dir_in_root(
    rootfs: &Path,
    root: impl AsFd,
    path: &str,
    owner: Option<u32>,
) -> io::Result<String> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let mut walked = PathBuf::new();
    let mut dir = open::open_in_root(&root, Path::new("."), flags, 0)?;
    for part in Path::new(path).components() {
        let std::path::Component::Normal(name) = part else {
            continue;
        };
        walked.push(name);
        dir = match open::open_in_root(&root, &walked, flags, 0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Below the directory just opened: nothing is looked up anew.
                let mode = Mode::from_bits_truncate(0o755);
                nix::sys::stat::mkdirat(&dir, name, mode)?;
                let made = open::open_in_root(&root, &walked, flags, 0)?;
                if owner.is_some() {
                    chown(super::fd_path(&made), owner, owner)?;
                }
                made
            }
            other => other?,
        };
    }
    let real = fs::read_link(super::fd_path(&dir))?;
    if !real.starts_with(rootfs) {
        return Err(io::Error::other(format!(
            "lies outside, at {}",
            real.display()
        )));
    }
    Ok(real.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_of_the_host() {
        // RTM-12
        let top = crate::testing::unused_path("resolve");
        fs::create_dir_all(top.join("own/dir")).expect("directory");
        fs::create_dir_all(top.join("outside")).expect("directory");
        std::os::unix::fs::symlink("outside", top.join("link")).expect("link");
        let top = fs::canonicalize(top).expect("directory");
        let mount = |name: &str| ContainerMount {
            host_path: top.join(name).display().to_string(),
            container_path: format!("/{name}"),
            ..ContainerMount::default()
        };
        let image = ContainerMount {
            image: Some(cri::MountedImage::default()),
            ..ContainerMount::default()
        };
        let all = vec![mount("link"), image.clone(), mount("own/dir")];
        let own = [top.join("own")];
        let resolved = resolve_mounts(all, &own).expect("they are there");
        let paths = resolved
            .mounts
            .iter()
            .map(|m| (&*m.container_path, &*m.host_path));
        let (outside, inside) = (mount("outside").host_path, mount("own/dir").host_path);
        assert_eq!(
            paths.collect::<Vec<_>>(),
            [("/link", &*outside), ("", ""), ("/own/dir", &*inside)]
        );
        let held = resolved
            .sources
            .iter()
            .map(|s| (&*s.container_path, s.is_held()));
        assert_eq!(
            held.collect::<Vec<_>>(),
            [("/link", true), ("/own/dir", false)]
        );
        let missing = resolve_mounts(vec![image, mount("none")], &own).expect_err("missing");
        assert!(
            matches!(&missing, BundleError::Source { at, .. } if at == "/none"),
            "{missing}"
        );
        fs::remove_dir_all(top).expect("clean");
    }

    #[test]
    fn what_shall_propagate_lies_on_a_mount_that_does() {
        // VOL-23
        if !nix::unistd::geteuid().is_root() {
            skipped!("mounts: it needs root");
            return;
        }
        // On a thread with a mount namespace of its own.
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("namespace");
            let private = nix::mount::MsFlags::MS_PRIVATE | nix::mount::MsFlags::MS_REC;
            let none = None::<&str>;
            nix::mount::mount(none, "/", none, private, none).expect("private");
            let top = crate::testing::unused_path("shared");
            fs::create_dir_all(&top).expect("directory");
            mount::bind_mount(&top, &top, false).expect("bind");
            let answer = |propagation| {
                let mount = ContainerMount {
                    host_path: top.display().to_string(),
                    propagation,
                    ..ContainerMount::default()
                };
                let resolved = resolve_mounts(vec![mount], &[]);
                resolved
                    .map(drop)
                    .map_err(|e| super::super::error_chain(&e))
            };
            let refused = |what: &str| {
                let why =
                    format!("path {top:?} is mounted on {top:?} but it is not a {what} mount");
                Err(format!(
                    "source {:?} of mount \"\": {why}",
                    top.display().to_string()
                ))
            };
            assert_eq!(answer(MountPropagation::Private), Ok(()));
            assert_eq!(answer(MountPropagation::Bidirectional), refused("shared"));
            assert_eq!(
                answer(MountPropagation::HostToContainer),
                refused("shared or slave")
            );
            mount::make_shared(&top).expect("shared");
            assert_eq!(answer(MountPropagation::Bidirectional), Ok(()));
            assert_eq!(answer(MountPropagation::HostToContainer), Ok(()));
            mount::unmount(&top).expect("unmount");
            fs::remove_dir(&top).expect("remove");
        };
        std::thread::spawn(test).join().expect("test thread");
    }
}
