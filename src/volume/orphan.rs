//! Directories of pods that are not known any more. Nothing here deletes a volume's data: that is the tear-down's work.

use std::{fs, io, path::Path};

use super::{
    SUBPATHS, StepContext, VOLUMES, VolumeError, VolumeErrorCause, Volumes, beneath, is_component,
    tear_down::{SUBPATH_DEPTH, all_names, open_entry_dir, remove_leaf, remove_leaves},
};
use crate::api::PodUid;
use crate::api::order::OrderExt;
use crate::sys::remove;

impl Volumes {
    /// Every pod directory on disk, sorted.
    pub fn list_pod_dirs(&self) -> io::Result<Vec<PodUid>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.pods)? {
            let entry = entry?;
            if entry.file_type()?.is_dir()
                && let Some(name) = entry.file_name().to_str()
                && is_component(name)
            {
                found.push(PodUid::new(name));
            }
        }
        found.stable_sort();
        Ok(found)
    }

    /// Removes the directory of a pod whose volumes are torn down. Missing is success.
    ///
    /// - Errors: [`VolumeError::Mounted`] if something is mounted below it or the mount table cannot be read: nothing was touched;
    ///   [`VolumeError::Orphan`] if a volume still holds data or a file could not be removed. The caller tries again later.
    /// - Source: kubelet `pkg/kubelet/kubelet_volumes.go`.
    pub fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let Some(pod) = self.open_pod_dir(uid)? else {
            return Ok(());
        };
        let mounted = |cause| VolumeError::Mounted {
            uid: uid.clone(),
            cause,
        };
        let points = (self.mounts_below)(&self.pod_dir(uid))
            .at_step("failed to read the mount table")
            .map_err(mounted)?;
        if let Some(point) = points.first() {
            return Err(mounted(VolumeErrorCause::Refused(
                point.display().to_string(),
            )));
        }
        self.remove_unmounted(uid, &pod)
            .map_err(|cause| VolumeError::Orphan {
                uid: uid.clone(),
                cause,
            })
    }

    fn remove_unmounted(
        &self,
        uid: &PodUid,
        pod: &std::os::fd::OwnedFd,
    ) -> Result<(), VolumeErrorCause> {
        // volumes/<plugin>/<name>: two levels, each only if empty.
        remove_leaves(pod, Path::new(VOLUMES), 1).at_step("failed to rmdir a volume")?;
        remove_leaves(pod, Path::new(SUBPATHS), SUBPATH_DEPTH)
            .at_step("failed to remove the subPath directories")?;
        for name in all_names(pod).at_step("failed to read the pod's directory")? {
            remove::remove_entry(pod, &name).at_step("failed to remove the pod's files")?;
        }
        let pods = beneath::open_dir(&self.pods).at_step("failed to open the pods' directory")?;
        remove_leaf(&pods, uid.as_ref()).at_step("failed to rmdir the pod's directory")?;
        debug_assert!(open_entry_dir(&pods, uid.as_str()).is_ok());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{
        super::{
            mounts,
            testing::{Scratch, can_mount, uid},
        },
        *,
    };

    #[test]
    fn directories_on_disk_are_the_list() {
        // CLEAN-05
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        for name in ["b", "a"] {
            fs::create_dir(volumes.pod_dir(&name.into())).unwrap();
        }
        fs::write(volumes.pods.join("file"), "").unwrap();
        assert_eq!(volumes.list_pod_dirs().unwrap(), ["a".into(), "b".into()]);
    }

    #[test]
    fn users_of_the_machine_do_not_enter() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new();
        let pods = scratch.volumes().pods;
        let mode = || fs::metadata(&pods).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o750);
        fs::set_permissions(&pods, fs::Permissions::from_mode(0o755)).unwrap();
        scratch.volumes();
        assert_eq!(mode(), 0o750, "somebody else had made it");
    }

    #[test]
    fn a_mounted_orphan_is_skipped() {
        // CLEAN-06 DIR-04
        if !can_mount("a_mounted_orphan_is_skipped") {
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let dir = volumes.pod_dir(&uid());
        let point = dir.join("volumes/kubernetes.io~secret/s");
        fs::create_dir_all(&point).unwrap();
        fs::write(dir.join("pod.json"), "{}").unwrap();
        mounts::mount_tmpfs(&point, Some(4096)).unwrap();
        let error = volumes.remove_pod_dir(&uid()).unwrap_err();
        assert!(matches!(error, VolumeError::Mounted { .. }), "{error}");
        assert!(dir.join("pod.json").exists());
    }

    #[test]
    fn an_orphan_whose_mounts_are_not_known_is_skipped() {
        // CLEAN-06 DIR-04
        let scratch = Scratch::new();
        let mut volumes = scratch.volumes();
        let dir = volumes.pod_dir(&uid());
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("pod.json"), "{}").unwrap();
        let known = volumes.mounts_below;
        volumes.mounts_below = |_| Err(io::ErrorKind::PermissionDenied.into());
        let error = volumes.remove_pod_dir(&uid()).unwrap_err();
        assert!(matches!(error, VolumeError::Mounted { .. }), "{error}");
        assert!(dir.join("pod.json").exists());
        volumes.mounts_below = known;
        volumes.remove_pod_dir(&uid()).expect("the next pass");
        assert!(!dir.exists());
    }

    #[test]
    fn nothing_is_removed_of_another_file_system() {
        // DIR-05 CLEAN-08
        if !can_mount("nothing_is_removed_of_another_file_system") {
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let dir = volumes.pod_dir(&uid());
        for inside in ["containers/main", "volume-subpaths/data/main/0"] {
            let point = dir.join(inside);
            fs::create_dir_all(&point).unwrap();
            mounts::mount_tmpfs(&point, Some(4096)).unwrap();
            fs::write(point.join("kept"), "x").unwrap();
            // As if the mount had come after the mount table was read.
            let pod = volumes.open_pod_dir(&uid()).unwrap().expect("there");
            let error = volumes.remove_unmounted(&uid(), &pod).unwrap_err();
            assert!(
                matches!(error, VolumeErrorCause::Io(..)),
                "{inside}: {error}"
            );
            assert!(point.join("kept").exists(), "{inside}");
            let error = volumes.remove_pod_dir(&uid()).unwrap_err();
            assert!(matches!(error, VolumeError::Mounted { .. }), "{error}");
            assert!(point.join("kept").exists(), "{inside}");
            mounts::unmount_point(&point).unwrap();
        }
        volumes.remove_pod_dir(&uid()).expect("the next round");
        assert!(!dir.exists());
    }

    #[test]
    fn an_orphan_goes_but_no_data() {
        // CLEAN-07 CLEAN-08 DIR-05
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        let dir = volumes.pod_dir(&uid());
        let data = dir.join("volumes/kubernetes.io~empty-dir/data");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir_all(dir.join("volume-subpaths/data/main/0")).unwrap();
        fs::write(dir.join("volume-subpaths/data/main/1"), "").unwrap();
        fs::create_dir_all(dir.join("plugins/kubernetes.io~empty-dir/data")).unwrap();
        fs::write(dir.join("plugins/kubernetes.io~empty-dir/data/ready"), "").unwrap();
        fs::create_dir_all(dir.join("containers/main")).unwrap();
        symlink(&outside, dir.join("containers/main/link")).unwrap();
        fs::write(data.join("precious"), "x").unwrap();

        let error = volumes.remove_pod_dir(&uid()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("found, but failed to rmdir a volume"),
            "{error}"
        );
        assert!(data.join("precious").exists());
        assert!(dir.join("containers/main").exists());

        fs::remove_file(data.join("precious")).unwrap();
        volumes.remove_pod_dir(&uid()).unwrap();
        assert!(!dir.exists());
        assert!(outside.join("kept").exists());
        volumes.remove_pod_dir(&uid()).expect("again is success");
    }
}
