//! What a container needs on disk before the OCI runtime is called: its root file system and `config.json`.
//!
//! ```text
//! <run>/containers/<id>/    record.json  config.json  rootfs/ (overlay)  volumes/<n>/ (overlay)  and the shim's files
//! <root>/containers/<id>/   upper/  work/  empty/
//! ```
//!
//! `volumes/<n>` is the n-th image that the container mounts as a volume: its layers and nothing above them, read-only. What
//! of it a mount shows, a `subPath`, is found once, below that mount; images do not change.
//!
//! Every container has a writable upper directory, also one with a read-only root: mount points that the image lacks are
//! made in it. Blocking: all of this runs on the disk lane.

use std::{
    fs,
    io::{self, Read},
    os::{fd::AsFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

use super::sources::Source;
use crate::api::strict::from_json;
use crate::{
    api::{
        cri::{Mount, Propagation},
        oci::Seccomp,
    },
    sys::{crash, mount, open},
};

/// Longest passwd or group file that is read, bytes; the rest of a longer one is not searched.
const PASSWD_LIMIT: u64 = 4 * 1024 * 1024;
/// Longest seccomp profile that is read, bytes.
const PROFILE_LIMIT: u64 = 4 * 1024 * 1024;

/// Where the parts of one container lie.
#[derive(Clone, Debug)]
pub(super) struct Dirs {
    /// `<run>/containers/<id>`: the bundle.
    pub(super) run: PathBuf,
    /// `<root>/containers/<id>`.
    pub(super) root: PathBuf,
}

impl Dirs {
    pub(super) fn rootfs(&self) -> PathBuf {
        self.run.join("rootfs")
    }

    fn volumes(&self) -> PathBuf {
        self.run.join("volumes")
    }
}

/// What was found out while the root file system was mounted.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) image_volumes: Vec<Mount>,
    pub(super) seccomp: Option<Seccomp>,
    /// The container's mounts with links resolved on the host, images among them by where they are mounted.
    pub(super) mounts: Vec<Mount>,
    /// What of the host these lead to.
    pub(super) sources: Vec<Source>,
}

/// An image to be mounted as a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeImage {
    /// As mounts name it.
    pub(super) image: String,
    /// Top first, at least one.
    pub(super) layers: Vec<PathBuf>,
}

/// What to prepare.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) dirs: Dirs,
    pub(super) layers: Vec<PathBuf>,
    pub(super) mounts: Vec<Mount>,
    /// Each image of `mounts` once.
    pub(super) volume_images: Vec<VolumeImage>,
    /// Paths of the image that stay writable although the root is read-only.
    pub(super) writable: Vec<String>,
    pub(super) seccomp_file: Option<String>,
    /// The agent's directories, without links.
    pub(super) own: Vec<PathBuf>,
}

/// Mounts the root file system and reads what the specification needs.
///
/// - Errors: one text that names the path. What was made is left for [`unmake`].
pub(super) fn prepare(wanted: &Wanted) -> Result<Prepared, String> {
    let Wanted { dirs, layers, .. } = wanted;
    let rootfs = dirs.rootfs();
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |e: io::Error| format!("{path}: {e}")
    };
    let (upper, work) = (dirs.root.join("upper"), dirs.root.join("work"));
    super::files::make_private(&dirs.root).map_err(at(&dirs.root))?;
    super::files::make_root(&upper).map_err(at(&upper))?;
    for dir in [&work, &rootfs] {
        fs::create_dir_all(dir).map_err(at(dir))?;
    }
    crash::point("container.layer-made");
    mount_rootfs(layers, &upper, &work, &rootfs)
        .map_err(|e| format!("mount the root file system at {}: {e}", rootfs.display()))?;
    let root = open::dir(&rootfs).map_err(at(&rootfs))?;
    let mut prepared = Prepared {
        passwd: read_in_root(&root, "etc/passwd")
            .map_err(|e| format!("/etc/passwd of the image: {e}"))?,
        group: read_in_root(&root, "etc/group")
            .map_err(|e| format!("/etc/group of the image: {e}"))?,
        ..Prepared::default()
    };
    for path in &wanted.writable {
        prepared.image_volumes.push(Mount {
            host_path: directory_in_root(&rootfs, &root, path)
                .map_err(|e| format!("volume {path:?} of the image: {e}"))?,
            container_path: path.clone(),
            propagation: Propagation::Private,
            ..Mount::default()
        });
    }
    let volumes = mount_volumes(wanted)?;
    for mount in &wanted.mounts {
        if let Some(spec) = &mount.image {
            prepared.mounts.push(Mount {
                host_path: in_volume(&volumes, &spec.image, &mount.image_sub_path).map_err(
                    |why| image_mount_failed(&spec.user_image, &mount.container_path, &why),
                )?,
                ..mount.clone()
            });
            continue;
        }
        // A missing source is an error, a link is resolved on the host (RTM-12).
        let (host, at) = (&mount.host_path, &mount.container_path);
        let source = Source::resolve(host, at, &wanted.own)
            .map_err(|e| format!("source {host:?} of mount {at:?}: {e}"))?;
        prepared.mounts.push(Mount {
            host_path: source.path.display().to_string(),
            ..mount.clone()
        });
        prepared.sources.push(source);
    }
    if let Some(path) = &wanted.seccomp_file {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|f| f.take(PROFILE_LIMIT).read_to_end(&mut bytes))
            .map_err(at(Path::new(path)))?;
        let profile = from_json(&bytes).map_err(|e| format!("seccomp profile {path:?}: {e}"))?;
        prepared.seccomp = Some(profile);
    }
    Ok(prepared)
}

/// `volatile` spares the disk every sync of the writable layer: it is never mounted again, so what a power cut loses is
/// nobody's. Kernels before 5.10 do not know it.
fn mount_rootfs(layers: &[PathBuf], upper: &Path, work: &Path, rootfs: &Path) -> io::Result<()> {
    mount::unmount(rootfs)?;
    let upper_work = Some((upper, work));
    match mount::overlay(layers, upper_work, rootfs, &["volatile"]) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            mount::overlay(layers, upper_work, rootfs, &[])
        }
        other => other,
    }
}

/// CRI's word for it stands first: clients look for it in the message.
pub(super) fn image_mount_failed(image: &str, container_path: &str, why: &str) -> String {
    format!("ImageVolumeMountFailed: image {image:?} at {container_path:?}: {why}")
}

/// Mounts the images of volumes. Returns each image with where it is.
fn mount_volumes(wanted: &Wanted) -> Result<Vec<(&str, PathBuf)>, String> {
    let Wanted { dirs, .. } = wanted;
    let mut mounted = Vec::new();
    if wanted.volume_images.is_empty() {
        return Ok(mounted);
    }
    // An overlay without a writable layer needs two others.
    let empty = dirs.root.join("empty");
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |e: io::Error| format!("{path}: {e}")
    };
    fs::create_dir_all(&empty).map_err(at(&empty))?;
    for (n, volume) in wanted.volume_images.iter().enumerate() {
        let target = dirs.volumes().join(n.to_string());
        // Nobody but root has a way to the image's programs here.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&target)
            .map_err(at(&target))?;
        let mut layers = volume.layers.clone();
        if layers.len() == 1 {
            layers.push(empty.clone());
        }
        mount::unmount(&target)
            .and_then(|()| mount::overlay(&layers, None, &target, &[]))
            .map_err(|e| {
                format!(
                    "ImageVolumeMountFailed: mount image {} at {}: {e}",
                    volume.image,
                    target.display()
                )
            })?;
        crash::point("container.volume-mounted");
        mounted.push((volume.image.as_str(), target));
    }
    Ok(mounted)
}

/// The host's path of a directory of an image. Links are followed as long as they stay in the image, as containerd has it.
fn in_volume(volumes: &[(&str, PathBuf)], image: &str, sub_path: &str) -> Result<String, String> {
    let (_, root) = volumes
        .iter()
        .find(|(name, _)| *name == image)
        .ok_or("it is not mounted")?;
    if sub_path.is_empty() {
        return Ok(root.display().to_string());
    }
    let within = |e: io::Error| match e.raw_os_error() {
        Some(libc::EXDEV | libc::ELOOP) => format!("subPath {sub_path:?} leads out of the image"),
        Some(libc::ENOENT) => format!("subPath {sub_path:?} is not in the image"),
        Some(libc::ENOTDIR) => format!("subPath {sub_path:?} is not a directory"),
        _ => format!("subPath {sub_path:?}: {e}"),
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let found = open::dir(root)
        .and_then(|root| open::beneath(root, Path::new(sub_path), flags, 0))
        .and_then(|dir| fs::read_link(super::fd_path(&dir)))
        .map_err(within)?;
    if !found.starts_with(root) {
        return Err(format!("subPath {sub_path:?} leads out of the image"));
    }
    Ok(found.display().to_string())
}

/// Unmounts the root file system and the images of volumes. Their contents stay. Idempotent.
pub(super) fn unmount(dirs: &Dirs) -> io::Result<()> {
    mount::unmount(&dirs.rootfs())?;
    let volumes = dirs.volumes();
    for name in super::files::names(&volumes)? {
        mount::unmount(&volumes.join(name))?;
    }
    Ok(())
}

/// Removes every trace on disk, the run directory last: it is what is found after a crash. Idempotent.
pub(super) fn unmake(dirs: &Dirs) -> io::Result<()> {
    unmount(dirs)?;
    crash::point("container.unmounted");
    super::files::remove_tree(&dirs.root)?;
    crash::point("container.layer-removed");
    super::files::remove_tree(&dirs.run)
}

/// Reads a file as the container would find it. Absent or not a plain file counts as empty.
fn read_in_root(root: impl AsFd, path: &str) -> io::Result<String> {
    // A FIFO must not stop the lane.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match open::in_root(root, Path::new(path), flags, 0) {
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
fn directory_in_root(rootfs: &Path, root: impl AsFd, path: &str) -> io::Result<String> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let mut walked = PathBuf::new();
    let mut dir = open::in_root(&root, Path::new("."), flags, 0)?;
    for part in Path::new(path).components() {
        let std::path::Component::Normal(name) = part else {
            continue;
        };
        walked.push(name);
        dir = match open::in_root(&root, &walked, flags, 0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Below the directory just opened: nothing is looked up anew.
                let mode = nix::sys::stat::Mode::from_bits_truncate(0o755);
                nix::sys::stat::mkdirat(&dir, name, mode)?;
                open::in_root(&root, &walked, flags, 0)?
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
