//! Volumes that lie outside the pod's directory: a directory of the node's own disk (`local`), a share of the network.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use super::{
    MountedVolume, SUBPATHS, StepContext, VOLUMES, VolumeErrorCause, Volumes, fs_group, mkdir_all,
    plugin, set_up::VolumeWarning,
};
use crate::api::{PodError, PodUid};
use crate::sys::mount::{self, MountEntry};

/// Mode of a mount point.
const MODE: u32 = 0o750;
/// File systems that wait for a server.
const SHARES: [&str; 2] = ["nfs", "nfs4"];

impl Volumes {
    /// Shows the directory `path` of this node in the pod's directory.
    ///
    /// - Source: kubelet `pkg/volume/local/local.go`.
    pub(super) fn set_up_local(
        &self,
        uid: &PodUid,
        name: &str,
        path: &str,
        read_only: bool,
        fs_group: Option<(u32, fs_group::FsGroupChangePolicy)>,
        warnings: &mut Vec<VolumeWarning>,
    ) -> Result<MountedVolume, VolumeErrorCause> {
        let source = Path::new(path);
        if !source.is_absolute() || source.components().any(|c| c == Component::ParentDir) {
            return Err(VolumeErrorCause::Refused(format!(
                "invalid path: {path} {uid}"
            )));
        }
        let dir = self.volume_dir(uid, plugin::LOCAL, name);
        if !mount::is_mount_point(&dir).at_step("failed to read the mount table")? {
            let found = fs::metadata(source).at_step("failed to find the local volume")?;
            if !found.is_dir() {
                return Err(VolumeErrorCause::Refused(format!(
                    "local volume {path} is not a directory"
                )));
            }
            mkdir_all(&dir, MODE).at_step("failed to make the mount point")?;
            if let Some((group, policy)) = fs_group {
                if self
                    .is_shown_by_another(uid, source)
                    .at_step("failed to read the mount table")?
                {
                    // The other pod works with the files as they are.
                    warnings.extend(group_conflict_warning(name, group, found.gid()));
                } else if !read_only {
                    // Owners are changed at the directory itself: the mount may be for reading only.
                    fs_group::apply_fs_group(source, group, policy, false)?;
                }
            }
            mount::bind_mount(source, &dir, false).at_step("failed to mount the local volume")?;
            if read_only && let Err(e) = mount::remount_read_only(&dir) {
                let _ = mount::unmount(&dir);
                return Err(e).at_step("failed to make the local volume read-only");
            }
        }
        Ok(MountedVolume {
            host_path: dir,
            read_only,
            size_limit: None,
        })
    }

    /// Returns true if another pod shows the directory `source`.
    fn is_shown_by_another(&self, uid: &PodUid, source: &Path) -> io::Result<bool> {
        let source = fs::canonicalize(source)?;
        let Some(on) = mount::mount_holding(&source)? else {
            return Ok(false);
        };
        let root = source
            .strip_prefix(&on.target)
            .map_or_else(|_| on.root.clone(), |below| on.root.join(below));
        let of = |m: &MountEntry| -> Option<PodUid> {
            let (pod, plugin) = parse_plugin_path(m.target.strip_prefix(&self.pods).ok()?)?;
            (plugin == plugin::LOCAL).then(|| pod.into())
        };
        let mut found = false;
        mount::each_mount(|m| {
            let is_same = m.device == on.device && m.root == root;
            found |= is_same && of(&m).is_some_and(|pod| pod != *uid);
        })?;
        Ok(found)
    }

    /// A share that has been mounted at [`Volumes::nfs_dir`]. Nothing of it is touched: its server may be gone.
    pub(super) fn set_up_nfs(
        &self,
        uid: &PodUid,
        name: &str,
        mounted: &Result<(), PodError>,
        read_only: bool,
    ) -> Result<MountedVolume, VolumeErrorCause> {
        if let Err(why) = mounted {
            return Err(VolumeErrorCause::Refused(why.to_string()));
        }
        Ok(MountedVolume {
            host_path: self.nfs_dir(uid, name),
            read_only,
            size_limit: None,
        })
    }

    /// Mount point of a pod's share.
    #[must_use]
    pub fn nfs_dir(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.volume_dir(uid, plugin::NFS, name)
    }

    /// Makes the mount point of a share.
    pub fn make_nfs_dir(&self, uid: &PodUid, name: &str) -> io::Result<()> {
        if !super::is_component(name) || !super::is_component(uid) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        mkdir_all(&self.nfs_dir(uid, name), MODE)
    }

    /// Shares that are mounted for a pod, and what shows a part of one, as a `subPath` does: the last mounted first.
    #[must_use]
    pub fn nfs_dirs(&self, uid: &PodUid) -> Vec<PathBuf> {
        let pod = self.pod_dir(uid);
        let shares = self.volume_dir(uid, plugin::NFS, "");
        let mut found = Vec::new();
        if shares.exists() || pod.join(SUBPATHS).exists() {
            let read = mount::each_mount(|m| {
                if is_of_share(&m, &pod) {
                    found.push(m.target);
                }
            });
            if let Err(e) = read {
                log::debug!("uid={uid} mount table: {e}");
            }
        }
        found.reverse();
        found
    }
}

/// The pod and the plugin of a volume, of its path below the directory of all pods.
fn parse_plugin_path(below: &Path) -> Option<(&str, &str)> {
    let mut parts = below.iter().map(|part| part.to_str());
    let (pod, volumes, plugin) = (parts.next()??, parts.next()??, parts.next()??);
    (volumes == VOLUMES).then_some((pod, plugin))
}

/// Warns of a directory that another pod uses, if that one has it for another group.
///
/// Source: kubelet `pkg/volume/local/local.go`.
fn group_conflict_warning(name: &str, wanted: u32, group: u32) -> Option<VolumeWarning> {
    (wanted != group).then(|| {
        let message = format!(
            "The requested fsGroup is {wanted}, but the volume {name} has GID {group}. \
             The volume may not be shareable."
        );
        ("AlreadyMountedVolume", message)
    })
}

/// Returns true if `mount` is a share of the pod in directory `pod`, or shows a part of one.
fn is_of_share(mount: &MountEntry, pod: &Path) -> bool {
    let Ok(below) = mount.target.strip_prefix(pod) else {
        return false;
    };
    below.starts_with(Path::new(VOLUMES).join(plugin::NFS)) || SHARES.contains(&&*mount.kind)
}

#[cfg(test)]
mod tests {
    use super::super::{
        PodVolume, VolumeSource,
        testing::{Scratch, can_mount, pod, uid},
    };
    use super::*;

    fn local(path: &Path, read_only: bool) -> PodVolume {
        PodVolume {
            name: "v".into(),
            source: VolumeSource::Local {
                name: "pv-1".into(),
                path: path.display().to_string(),
                read_only,
            },
            nested: Vec::new(),
        }
    }

    #[test]
    fn local_directories() {
        // VOL-17 VOL-21
        if !can_mount("local_directories") {
            return;
        }
        let scratch = Scratch::new();
        let disk = scratch.path().join("disk");
        fs::create_dir(&disk).expect("directory");
        fs::write(disk.join("kept"), "x").expect("file");
        let volumes = scratch.volumes();
        let mut request = pod(vec![local(&disk, false)]);
        request.fs_group = Some(4321);
        for _ in 0..2 {
            let mounted = volumes
                .set_up_volumes(&request)
                .into_result()
                .expect("mounted");
            let dir = &mounted["v"].host_path;
            assert!(
                dir.ends_with("volumes/kubernetes.io~local-volume/pv-1"),
                "{dir:?}"
            );
            assert!(dir.join("kept").exists());
            assert_eq!(mount::mounts_below(dir).expect("mounts").len(), 1, "once");
        }
        // MET-12
        let locals = volumes.local_volumes(&uid());
        let [(name, figures)] = &locals[..] else {
            panic!("one: {locals:?}");
        };
        assert_eq!(name, "pv-1");
        assert!(figures.capacity_bytes > 0 && figures.capacity_bytes >= figures.free_bytes);
        assert_eq!(fs::metadata(disk.join("kept")).expect("stat").gid(), 4321);
        volumes.tear_down_pod(&uid()).expect("torn down");
        assert_eq!(volumes.local_volumes(&uid()), []);
        assert!(disk.join("kept").exists(), "its data is not the pod's");
        let mounted = volumes
            .set_up_volumes(&pod(vec![local(&disk, true)]))
            .into_result()
            .expect("mounted");
        let written = fs::write(mounted["v"].host_path.join("new"), "x");
        assert_eq!(
            written.map_err(|e| e.kind()),
            Err(io::ErrorKind::ReadOnlyFilesystem)
        );
        volumes.tear_down_pod(&uid()).expect("torn down");
        for (path, want) in [
            (disk.join("none"), "failed to find the local volume"),
            (disk.join("kept"), "is not a directory"),
            (disk.join("../disk"), "invalid path"),
        ] {
            let error = volumes
                .set_up_volumes(&pod(vec![local(&path, false)]))
                .into_result();
            let error = error.expect_err("refused").to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_directory_of_another_pod_keeps_its_group() {
        // VOL-17
        if !can_mount("a_directory_of_another_pod_keeps_its_group") {
            return;
        }
        let scratch = Scratch::new();
        let disk = scratch.path().join("disk");
        fs::create_dir_all(disk.join("deep")).expect("directory");
        let volumes = scratch.volumes();
        let of = |uid: &str, group: u32, path: &Path| {
            let mut request = pod(vec![local(path, false)]);
            request.uid = uid.into();
            request.fs_group = Some(group);
            let set_up = volumes.set_up_volumes(&request);
            let warnings = set_up.warnings.clone();
            set_up.into_result().expect("mounted");
            warnings
        };
        let gid = |path: &Path| fs::metadata(path).expect("stat").gid();
        assert_eq!(of("a", 1000, &disk), []);
        let told = (
            "AlreadyMountedVolume",
            "The requested fsGroup is 2000, but the volume pv-1 has GID 1000. The volume may not be shareable.".to_owned(),
        );
        assert_eq!(of("b", 2000, &disk), [told]);
        assert_eq!(of("b", 2000, &disk), [], "it is mounted");
        assert_eq!(of("c", 1000, &disk), []);
        assert_eq!([gid(&disk), gid(&disk.join("deep"))], [1000; 2]);
        // Another directory of the same disk is shown by no pod.
        assert_eq!(of("d", 3000, &disk.join("deep")), []);
        assert_eq!([gid(&disk), gid(&disk.join("deep"))], [1000, 3000]);
        for uid in ["a", "b", "c", "d"] {
            volumes.tear_down_pod(&uid.into()).expect("torn down");
        }
        assert_eq!(of("b", 2000, &disk), [], "the others are gone");
        assert_eq!(gid(&disk), 2000);
        volumes.tear_down_pod(&"b".into()).expect("torn down");
    }

    #[test]
    fn mounts_of_shares() {
        // VOL-17
        let of = |target: &str, kind: &str| {
            let mount = MountEntry {
                device: "0:50".into(),
                root: "/".into(),
                target: target.into(),
                read_only: false,
                shared: true,
                slave: false,
                kind: kind.into(),
                source: "nas:/x".into(),
                options: String::new(),
            };
            is_of_share(&mount, Path::new("/pods/u"))
        };
        for (target, kind, want) in [
            ("/pods/u/volumes/kubernetes.io~nfs/pv-1", "nfs4", true),
            ("/pods/u/volumes/kubernetes.io~nfs/pv-1", "fuse", true),
            ("/pods/u/volume-subpaths/v/main/0", "nfs4", true),
            ("/pods/u/volume-subpaths/v/main/0", "nfs", true),
            ("/pods/u/volume-subpaths/v/main/0", "ext4", false),
            ("/pods/u/volumes/kubernetes.io~secret/s", "tmpfs", false),
            ("/pods/u2/volumes/kubernetes.io~nfs/pv-1", "nfs4", false),
            ("/mnt", "nfs4", false),
        ] {
            assert_eq!(of(target, kind), want, "{target} {kind}");
        }
    }

    #[test]
    fn what_shows_a_share_goes_first() {
        // VOL-17
        if !can_mount("what_shows_a_share_goes_first") {
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let shares = ["pv-1", "pv-2"].map(|name| {
            volumes.make_nfs_dir(&uid(), name).expect("made");
            let share = volumes.nfs_dir(&uid(), name);
            super::super::mounts::mount_tmpfs(&share, Some(4096)).expect("mounted");
            share
        });
        let [first, second] = shares;
        assert_eq!(volumes.nfs_dirs(&uid()), [second, first]);
        assert_eq!(volumes.nfs_dirs(&"another".into()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_share_that_is_not_mounted_is_told() {
        let scratch = Scratch::new();
        let share = |mounted: Result<(), PodError>| PodVolume {
            name: "v".into(),
            source: VolumeSource::Nfs {
                name: "pv-1".into(),
                mounted,
                read_only: true,
            },
            nested: Vec::new(),
        };
        let volumes = scratch.volumes();
        let mounted = volumes
            .set_up_volumes(&pod(vec![share(Ok(()))]))
            .into_result()
            .expect("mounted");
        assert!(mounted["v"].read_only);
        let error = volumes
            .set_up_volumes(&pod(vec![share(Err(PodError::Node("no server".into())))]))
            .into_result();
        assert_eq!(
            error.expect_err("refused").to_string(),
            "MountVolume.SetUp failed for volume \"v\" : no server"
        );
        volumes.make_nfs_dir(&uid(), "pv-1").expect("made");
        assert!(volumes.make_nfs_dir(&uid(), "../x").is_err());
        assert_eq!(
            volumes.nfs_dirs(&uid()),
            Vec::<PathBuf>::new(),
            "nothing is mounted"
        );
        volumes.tear_down_pod(&uid()).expect("torn down");
        assert!(!volumes.nfs_dir(&uid(), "pv-1").exists());
    }
}
