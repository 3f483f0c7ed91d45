//! Volumes that lie outside the pod's directory: a directory of the node's own disk (`local`), a share of the network.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use super::{Cause, MountedVolume, Step, Volumes, fs_group, mkdir_all, plugin};
use crate::api::{PodError, PodUid};
use crate::sys::mount;

/// Mode of a mount point.
const MODE: u32 = 0o750;

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
        fs_group: Option<(u32, fs_group::ChangePolicy)>,
    ) -> Result<MountedVolume, Cause> {
        let source = Path::new(path);
        if !source.is_absolute() || source.components().any(|c| c == Component::ParentDir) {
            return Err(Cause::Refused(format!("invalid path: {path} {uid}")));
        }
        let dir = self.volume_dir(uid, plugin::LOCAL, name);
        if !mount::is_mount_point(&dir).step("failed to read the mount table")? {
            let found = fs::metadata(source).step("failed to find the local volume")?;
            if !found.is_dir() {
                return Err(Cause::Refused(format!(
                    "local volume {path} is not a directory"
                )));
            }
            mkdir_all(&dir, MODE).step("failed to make the mount point")?;
            // Owners are changed at the directory itself: the mount may be for reading only.
            if let Some((group, policy)) = fs_group.filter(|_| !read_only) {
                fs_group::apply(source, group, policy, false)?;
            }
            mount::bind(source, &dir, false).step("failed to mount the local volume")?;
            if read_only && let Err(e) = mount::remount_read_only(&dir) {
                let _ = mount::unmount(&dir);
                return Err(e).step("failed to make the local volume read-only");
            }
        }
        Ok(MountedVolume {
            host_path: dir,
            read_only,
            size_limit: None,
        })
    }

    /// A share that has been mounted at [`Volumes::nfs_dir`]. Nothing of it is touched: its server may be gone.
    pub(super) fn set_up_nfs(
        &self,
        uid: &PodUid,
        name: &str,
        mounted: &Result<(), PodError>,
        read_only: bool,
    ) -> Result<MountedVolume, Cause> {
        if let Err(why) = mounted {
            return Err(Cause::Refused(why.to_string()));
        }
        Ok(MountedVolume {
            host_path: self.nfs_dir(uid, name),
            read_only,
            size_limit: None,
        })
    }

    /// Where a share is mounted for a pod.
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

    /// Shares that are mounted for a pod.
    #[must_use]
    pub fn nfs_dirs(&self, uid: &PodUid) -> Vec<PathBuf> {
        let base = self.volume_dir(uid, plugin::NFS, "");
        if !base.exists() {
            return Vec::new();
        }
        mount::mounts_below(&base).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::super::{
        PodVolume, Source,
        testing::{Scratch, can_mount, pod, uid},
    };
    use super::*;

    fn local(path: &Path, read_only: bool) -> PodVolume {
        PodVolume {
            name: "v".into(),
            source: Source::Local {
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
            let mounted = volumes.set_up(&request).into_result().expect("mounted");
            let dir = &mounted["v"].host_path;
            assert!(
                dir.ends_with("volumes/kubernetes.io~local-volume/pv-1"),
                "{dir:?}"
            );
            assert!(dir.join("kept").exists());
            assert_eq!(mount::mounts_below(dir).expect("mounts").len(), 1, "once");
        }
        // MET-12
        let locals = volumes.locals(&uid());
        let [(name, figures)] = &locals[..] else {
            panic!("one: {locals:?}");
        };
        assert_eq!(name, "pv-1");
        assert!(figures.capacity_bytes > 0 && figures.capacity_bytes >= figures.free_bytes);
        assert_eq!(fs::metadata(disk.join("kept")).expect("stat").gid(), 4321);
        volumes.tear_down(&uid()).expect("torn down");
        assert_eq!(volumes.locals(&uid()), []);
        assert!(disk.join("kept").exists(), "its data is not the pod's");
        let mounted = volumes
            .set_up(&pod(vec![local(&disk, true)]))
            .into_result()
            .expect("mounted");
        let written = fs::write(mounted["v"].host_path.join("new"), "x");
        assert_eq!(
            written.map_err(|e| e.kind()),
            Err(io::ErrorKind::ReadOnlyFilesystem)
        );
        volumes.tear_down(&uid()).expect("torn down");
        for (path, want) in [
            (disk.join("none"), "failed to find the local volume"),
            (disk.join("kept"), "is not a directory"),
            (disk.join("../disk"), "invalid path"),
        ] {
            let error = volumes
                .set_up(&pod(vec![local(&path, false)]))
                .into_result();
            let error = error.expect_err("refused").to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn a_share_that_is_not_mounted_is_told() {
        let scratch = Scratch::new();
        let share = |mounted: Result<(), PodError>| PodVolume {
            name: "v".into(),
            source: Source::Nfs {
                name: "pv-1".into(),
                mounted,
                read_only: true,
            },
            nested: Vec::new(),
        };
        let volumes = scratch.volumes();
        let mounted = volumes
            .set_up(&pod(vec![share(Ok(()))]))
            .into_result()
            .expect("mounted");
        assert!(mounted["v"].read_only);
        let error = volumes
            .set_up(&pod(vec![share(Err(PodError::Node("no server".into())))]))
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
        volumes.tear_down(&uid()).expect("torn down");
        assert!(!volumes.nfs_dir(&uid(), "pv-1").exists());
    }
}
