//! Taking a pod's volumes down, from what is on disk and in the mount table alone.
//!
//! Order: subPath mounts, volume mounts, and only then data; a marker goes before its volume, so that an interrupted tear-down
//! reads as half made. Every step may be repeated.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    PLUGINS, SUBPATHS, StepContext, VOLUMES, VolumeError, VolumeErrorCause, Volumes, beneath,
    is_component, mounts,
};
use crate::api::PodUid;
use crate::api::order::OrderExt;
use crate::sys::{crash, lane::Lane, remove};

/// Plugin directories. Names are a kubelet's.
pub(crate) mod plugin {
    pub(crate) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
    pub(crate) const CONFIG_MAP: &str = "kubernetes.io~configmap";
    pub(crate) const SECRET: &str = "kubernetes.io~secret";
    pub(crate) const DOWNWARD_API: &str = "kubernetes.io~downward-api";
    pub(crate) const PROJECTED: &str = "kubernetes.io~projected";
    pub(crate) const LOCAL: &str = "kubernetes.io~local-volume";
    pub(crate) const NFS: &str = "kubernetes.io~nfs";

    /// Returns true if data below this directory was made for the pod and goes with it.
    pub(crate) fn owns_data(plugin: &std::ffi::OsStr) -> bool {
        [EMPTY_DIR, CONFIG_MAP, SECRET, DOWNWARD_API, PROJECTED]
            .iter()
            .any(|p| plugin == *p)
    }
}

impl Volumes {
    /// Takes down all volumes of the pod and deletes their data. Call it once all its containers have stopped.
    ///
    /// - Shape: a pod that has none, or is not known, is success; calling again after a failure goes on.
    /// - Errors: the first of those met; every volume was tried. The pod's directory must stay until this succeeds.
    pub fn tear_down_pod(&self, uid: &PodUid) -> Result<(), VolumeError> {
        while !self.tear_down_slice(uid)? {}
        Ok(())
    }

    /// Does the work of [`Volumes::tear_down_pod`] on `lane`, where others have their turn while much is deleted. Dropping
    /// the future ends it with the slice that runs.
    ///
    /// # Errors
    /// As of [`Volumes::tear_down_pod`].
    pub async fn tear_down_on_lane(&self, lane: &Lane, uid: &PodUid) -> Result<(), VolumeError> {
        // Bounded: by what there is, each step of which waits for the lane.
        loop {
            let (volumes, gone) = (self.clone(), uid.clone());
            if lane.run_job(move || volumes.tear_down_slice(&gone)).await? {
                return Ok(());
            }
        }
    }

    /// Takes a slice of the pod's volumes down; returns true if all is gone.
    fn tear_down_slice(&self, uid: &PodUid) -> Result<bool, VolumeError> {
        let Some(pod) = self.open_pod_dir(uid)? else {
            return Ok(true);
        };
        let (mut first_error, mut is_whole) = (None, true);
        let mut keep = |volume: &OsStr, result: Result<(), VolumeErrorCause>| {
            if let Err(cause) = result {
                first_error.get_or_insert_with(|| VolumeError::TearDown {
                    volume: volume.to_string_lossy().into_owned(),
                    cause,
                });
            }
        };
        keep(OsStr::new(SUBPATHS), self.unmount_below(uid, SUBPATHS));
        keep(
            OsStr::new(SUBPATHS),
            remove_leaves(&pod, Path::new(SUBPATHS), SUBPATH_DEPTH)
                .at_step("failed to remove the subPath directories"),
        );
        keep(OsStr::new(VOLUMES), self.unmount_below(uid, VOLUMES));
        let volumes = open_entry_dir(&pod, VOLUMES).at_step("failed to open the pod's volumes");
        match volumes {
            Ok(None) => {}
            Err(cause) => keep(OsStr::new(VOLUMES), Err(cause)),
            Ok(Some(volumes)) => match all_names(&volumes)
                .at_step("failed to read the pod's volumes")
            {
                Err(cause) => keep(OsStr::new(VOLUMES), Err(cause)),
                Ok(plugins) => {
                    for plugin in plugins {
                        match open_entry_dir(&volumes, &plugin)
                            .and_then(|dir| dir.map_or(Ok(Vec::new()), |d| all_names(&d)))
                        {
                            Err(e) => {
                                keep(&plugin, Err(e).at_step("failed to read the pod's volumes"))
                            }
                            Ok(names) => {
                                for name in names {
                                    let done = self.tear_down_volume(uid, &plugin, &name);
                                    let done = done.map(|gone| is_whole &= gone);
                                    keep(&name, done);
                                }
                            }
                        }
                        // Still there only if one of its volumes is.
                        let _ = unlinkat(&volumes, plugin.as_os_str(), UnlinkatFlags::RemoveDir);
                    }
                }
            },
        }
        first_error.map_or(Ok(is_whole), Err)
    }

    /// Unmounts one volume and deletes a slice of its data if the data is the pod's own. Returns whether all is gone.
    pub(super) fn tear_down_volume(
        &self,
        uid: &str,
        plugin: impl AsRef<OsStr>,
        volume: &OsStr,
    ) -> Result<bool, VolumeErrorCause> {
        let plugin = plugin.as_ref();
        let pod = self.pods.join(uid);
        let volumes = pod.join(VOLUMES).join(plugin);
        let dir = volumes.join(volume);
        mounts::unmount_all(&dir).at_step("failed to unmount")?;
        crash::point("volume.unmounted");
        let marker = pod.join(PLUGINS).join(plugin).join(volume).join("ready");
        match std::fs::remove_file(marker) {
            Err(e)
                if !matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(e).at_step("failed to remove the ready marker");
            }
            _ => {}
        }
        let parent = match beneath::open_dir(&volumes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            parent => parent.at_step("failed to open the volume's directory")?,
        };
        // Opened without crossing mounts: should something be mounted here after all, this fails instead of deleting.
        if plugin::owns_data(plugin) {
            remove::remove_slice_of(&parent, volume).at_step("failed to delete the volume's data")
        } else {
            remove_leaf(&parent, volume).at_step("failed to remove the volume's directory")?;
            Ok(true)
        }
    }

    fn unmount_below(&self, uid: &PodUid, sub: &str) -> Result<(), VolumeErrorCause> {
        let dir = self.pod_dir(uid).join(sub);
        let points = (self.mounts_below)(&dir).at_step("failed to read the mount table")?;
        let mut result = Ok(());
        // Later mounts lie in or over earlier ones.
        for point in points.iter().rev() {
            let done = mounts::unmount_point(point).at_step("failed to unmount");
            result = result.and(done);
        }
        result
    }

    /// The pod's directory, itself no symbolic link; `None` if it does not exist.
    pub(super) fn open_pod_dir(&self, uid: &PodUid) -> Result<Option<OwnedFd>, VolumeError> {
        let failed = |cause| VolumeError::TearDown {
            volume: VOLUMES.into(),
            cause,
        };
        if !is_component(uid) {
            return Err(failed(VolumeErrorCause::Refused(format!(
                "{uid:?} is not a pod's uid"
            ))));
        }
        beneath::open_dir(&self.pods)
            .and_then(|pods| open_entry_dir(&pods, uid.as_str()))
            .at_step("failed to open the pod's directory")
            .map_err(failed)
    }
}

/// `volume-subpaths/<volume>/<container>/<index>`: directory levels below the first.
pub(super) const SUBPATH_DEPTH: u32 = 2;

/// Opens directory `name` of `dir` for reading; `None` if it does not exist.
pub(super) fn open_entry_dir(
    dir: &OwnedFd,
    name: impl AsRef<OsStr>,
) -> io::Result<Option<OwnedFd>> {
    match beneath::open_child(
        dir,
        Path::new(name.as_ref()),
        OFlag::O_RDONLY | OFlag::O_DIRECTORY,
    ) {
        Ok(fd) => Ok(Some(fd)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads all names in `dir`: few, for the directory is ours.
pub(super) fn all_names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let opened = beneath::open_child(dir, Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    let mut names = remove::read_names(opened, usize::MAX)?;
    names.stable_sort();
    Ok(names)
}

/// Removes one entry if it is a file or an empty directory, nothing else. Missing is success.
pub(super) fn remove_leaf(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(Errno::ENOTDIR) => match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(e.into()),
        },
        Err(e) => Err(e.into()),
    }
}

/// Removes `name` with the empty directories in it, `depth` levels down; below that only files and empty directories.
pub(super) fn remove_leaves(dir: &OwnedFd, name: &Path, depth: u32) -> io::Result<()> {
    if let Some(inner) = open_entry_dir(dir, name)? {
        for leaf in all_names(&inner)? {
            if depth == 0 {
                remove_leaf(&inner, &leaf)?;
            } else {
                remove_leaves(&inner, Path::new(&leaf), depth - 1)?;
            }
        }
    }
    remove_leaf(dir, name.as_os_str())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::{
        super::{
            EmptyDirMedium, HostPathType, PodVolume, SubPath, VolumeSource,
            testing::{Scratch, can_mount, pod, uid, volumes_on_disk},
        },
        *,
    };

    fn volume(name: &str, source: VolumeSource) -> PodVolume {
        PodVolume {
            name: name.into(),
            source,
            nested: Vec::new(),
        }
    }

    fn empty(name: &str, medium: EmptyDirMedium) -> PodVolume {
        volume(
            name,
            VolumeSource::EmptyDir {
                medium,
                size_limit: None,
            },
        )
    }

    #[test]
    fn everything_goes_after_an_agent_restart() {
        // VOL-25 CFG-38
        if !can_mount("everything_goes_after_an_agent_restart") {
            return;
        }
        let scratch = Scratch::new();
        let host = scratch.path().join("host");
        fs::create_dir_all(host.join("sub")).unwrap();
        fs::write(host.join("sub/kept"), "x").unwrap();
        let volumes = scratch.volumes();
        let request = pod(vec![
            empty("disk", EmptyDirMedium::Default),
            empty("memory", EmptyDirMedium::Memory),
            volume("secret", VolumeSource::Secret(Ok(Vec::new()))),
            volume("config", VolumeSource::ConfigMap(Ok(Vec::new()))),
            volume(
                "host",
                VolumeSource::HostPath {
                    path: host.display().to_string(),
                    kind: HostPathType::Directory,
                    read_only: false,
                },
            ),
        ]);
        let mounted = volumes.set_up_volumes(&request).into_result().unwrap();
        symlink(&host, mounted["disk"].host_path.join("link")).unwrap();
        for (index, name) in ["disk", "memory", "host"].into_iter().enumerate() {
            volumes
                .pin_sub_path(
                    &uid(),
                    &mounted[name],
                    &SubPath {
                        volume: name,
                        container: "main",
                        mount_index: index,
                        path: "sub",
                    },
                )
                .unwrap();
        }
        let pod_dir = volumes.pod_dir(&uid());
        let mounts = || mounts::mounts_below(&pod_dir).unwrap();
        assert!(!mounts().is_empty());

        let restarted = scratch.volumes();
        restarted.tear_down_pod(&uid()).unwrap();
        assert!(mounts().is_empty());
        assert_eq!(volumes_on_disk(&restarted), []);
        assert!(!pod_dir.join(SUBPATHS).exists());
        assert_eq!(
            fs::read_to_string(host.join("sub/kept")).unwrap(),
            "x",
            "a host path's data stays"
        );
        restarted.tear_down_pod(&uid()).expect("again is success");
        restarted
            .tear_down_pod(&"unknown".into())
            .expect("unknown is success");
        restarted.remove_pod_dir(&uid()).unwrap();
        assert!(!pod_dir.exists());
    }

    #[test]
    fn a_mount_in_the_way_saves_its_data() {
        // VOL-30
        if !can_mount("a_mount_in_the_way_saves_its_data") {
            return;
        }
        let scratch = Scratch::new();
        let precious = scratch.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("kept"), "x").unwrap();
        let volumes = scratch.volumes();
        let mounted = volumes
            .set_up_volumes(&pod(vec![empty("disk", EmptyDirMedium::Default)]))
            .into_result()
            .unwrap();
        let dir = &mounted["disk"].host_path;
        fs::create_dir(dir.join("inner")).unwrap();
        fs::write(dir.join("own"), "x").unwrap();
        crate::sys::mount::bind_mount(&precious, &dir.join("inner"), false).unwrap();
        // As if the mount had come after the mount table was read.
        let error = volumes
            .tear_down_volume(&uid(), plugin::EMPTY_DIR, OsStr::new("disk"))
            .unwrap_err();
        assert!(
            matches!(&error, VolumeErrorCause::Io(_, e) if e.raw_os_error() == Some(Errno::EXDEV as i32)),
            "{error}"
        );
        assert!(precious.join("kept").exists());
        // The whole tear-down sees it in the table, unmounts it first and is done.
        volumes.tear_down_pod(&uid()).unwrap();
        assert!(precious.join("kept").exists());
        assert!(!dir.exists());
    }

    #[test]
    fn foreign_plugins_lose_no_data() {
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let foreign = volumes.volume_dir(&uid(), "example.com~thing", "claim");
        fs::create_dir_all(&foreign).unwrap();
        fs::write(foreign.join("kept"), "x").unwrap();
        volumes
            .set_up_volumes(&pod(vec![empty("disk", EmptyDirMedium::Default)]))
            .into_result()
            .unwrap();
        let error = volumes.tear_down_pod(&uid()).unwrap_err();
        assert!(
            matches!(&error, VolumeError::TearDown { volume, .. } if volume == "claim"),
            "{error}"
        );
        assert!(foreign.join("kept").exists());
        assert_eq!(
            volumes_on_disk(&volumes),
            [("example.com~thing".into(), "claim".into())],
            "the other volume went all the same"
        );
    }
}
