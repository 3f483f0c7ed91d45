//! Setting up the volumes of a pod: idempotent, repeated at each sync.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    EmptyDirMedium, PodVolume, PodVolumes, ProjectedFiles, VolumeError, VolumeErrorCause,
    VolumeSource, Volumes, atomic,
    empty_dir::{self, EmptyDirBacking},
    fs_group, host_path, is_component,
    tear_down::plugin,
};
use crate::sys::crash;

/// A volume that containers may mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Path to bind-mount into containers.
    pub host_path: PathBuf,
    /// The volume is read-only whatever a mount says.
    pub read_only: bool,
    /// Bytes this volume may hold before eviction acts; only emptyDir on disk has one here.
    pub size_limit: Option<u64>,
}

/// Result of [`Volumes::set_up_volumes`].
#[derive(Debug, Default)]
#[must_use]
pub struct VolumeSetUp {
    /// Volumes that can be mounted now, by name.
    pub mounted: BTreeMap<String, MountedVolume>,
    /// Errors, one for each volume that failed; each is worth a `FailedMount` event. A volume that is also in `mounted`
    /// could not be refreshed and holds its earlier data.
    pub failed: Vec<VolumeError>,
    /// Further Warning events to tell.
    pub warnings: Vec<VolumeWarning>,
}

/// Reason and message of a Warning event.
pub type VolumeWarning = (&'static str, String);

impl VolumeSetUp {
    /// Makes the result of volumes none of which could be set up, for the same reason.
    pub fn all_refused(volumes: &[String], why: &str) -> Self {
        let failed = volumes.iter().map(|volume| VolumeError::SetUp {
            volume: volume.clone(),
            cause: VolumeErrorCause::Refused(why.into()),
        });
        Self {
            failed: failed.collect(),
            ..Self::default()
        }
    }

    /// Adds what other volumes of the pod came to.
    pub fn merge_others(&mut self, others: Self) {
        self.mounted.extend(others.mounted);
        self.failed.extend(others.failed);
        self.warnings.extend(others.warnings);
    }

    /// The mounted volumes, or the first failure that keeps the pod's containers from starting.
    pub fn into_result(self) -> Result<BTreeMap<String, MountedVolume>, VolumeError> {
        let Self {
            mounted, failed, ..
        } = self;
        let fatal = failed.into_iter().find(
            |e| !matches!(e, VolumeError::SetUp { volume, .. } if mounted.contains_key(volume)),
        );
        fatal.map_or(Ok(mounted), Err)
    }
}

impl Volumes {
    /// Sets up every volume of `pod` and refreshes the projected ones. Volumes that are set up already are left alone.
    ///
    /// - Errors: none; a failed volume is listed and its half-made remains are taken down.
    pub fn set_up_volumes(&self, pod: &PodVolumes) -> VolumeSetUp {
        let mut result = VolumeSetUp::default();
        for volume in &pod.volumes {
            let (mounted, failure) = match self.set_up_one(pod, volume, &mut result.warnings) {
                Ok((mounted, None)) => (Some(mounted), None),
                Ok((mounted, failure)) => (Some(mounted), failure),
                Err(cause) => (None, Some(cause)),
            };
            if let Some(mounted) = mounted {
                result.mounted.insert(volume.name.clone(), mounted);
            }
            if let Some(cause) = failure {
                result.failed.push(VolumeError::SetUp {
                    volume: volume.name.clone(),
                    cause,
                });
            }
        }
        result
    }

    fn set_up_one(
        &self,
        pod: &PodVolumes,
        volume: &PodVolume,
        warnings: &mut Vec<VolumeWarning>,
    ) -> Result<(MountedVolume, Option<VolumeErrorCause>), VolumeErrorCause> {
        if !is_component(&volume.name) || !is_component(&pod.uid) {
            return Err(VolumeErrorCause::Refused(
                "its name is not a plain file name".into(),
            ));
        }
        match &volume.source {
            VolumeSource::EmptyDir { medium, size_limit } => {
                let mounted = self.set_up_empty_dir(pod, volume, medium, *size_limit)?;
                Ok((mounted, None))
            }
            VolumeSource::Local {
                name,
                path,
                read_only,
            } => {
                let group = pod.fs_group.map(|group| (group, pod.change_policy));
                let mounted =
                    self.set_up_local(&pod.uid, name, path, *read_only, group, warnings)?;
                Ok((mounted, None))
            }
            VolumeSource::Nfs {
                name,
                mounted,
                read_only,
            } => {
                let mounted = self.set_up_nfs(&pod.uid, name, mounted, *read_only)?;
                Ok((mounted, None))
            }
            VolumeSource::Unknown(why) => Err(VolumeErrorCause::Refused(why.clone())),
            VolumeSource::HostPath {
                path,
                kind,
                read_only,
            } => {
                let mounted = MountedVolume {
                    host_path: host_path::set_up_host_path(path, kind)?,
                    read_only: *read_only,
                    size_limit: None,
                };
                Ok((mounted, None))
            }
            VolumeSource::ConfigMap(files) => self.set_up_files(
                pod,
                volume,
                plugin::CONFIG_MAP,
                files,
                EmptyDirBacking::Disk,
            ),
            VolumeSource::Secret(files) => {
                self.set_up_in_memory(pod, volume, plugin::SECRET, files)
            }
            VolumeSource::DownwardApi(files) => {
                self.set_up_in_memory(pod, volume, plugin::DOWNWARD_API, files)
            }
            VolumeSource::Projected(files) => {
                self.set_up_in_memory(pod, volume, plugin::PROJECTED, files)
            }
            VolumeSource::Unsupported(kind) => Err(VolumeErrorCause::Refused(format!(
                "volumes of type {kind:?} are not supported by this agent"
            ))),
        }
    }

    fn set_up_empty_dir(
        &self,
        pod: &PodVolumes,
        volume: &PodVolume,
        medium: &EmptyDirMedium,
        size_limit: Option<u64>,
    ) -> Result<MountedVolume, VolumeErrorCause> {
        let backing = match medium {
            EmptyDirMedium::Default => EmptyDirBacking::Disk,
            EmptyDirMedium::Memory => {
                (self.in_memory)(size_limit.into_iter().chain(pod.tmpfs_limit).min())
            }
            EmptyDirMedium::HugePages(bytes) => EmptyDirBacking::HugePages(*bytes),
            EmptyDirMedium::Refused(why) => return Err(VolumeErrorCause::Refused(why.clone())),
        };
        let dir = self.volume_dir(&pod.uid, plugin::EMPTY_DIR, &volume.name);
        let marker = self.ready_marker(&pod.uid, plugin::EMPTY_DIR, &volume.name);
        if !empty_dir::is_volume_ready(&dir, &marker, backing)? {
            // A failure leaves what is there: a lost marker must not cost a pod its data.
            empty_dir::make_backed_dir(&dir, backing)?;
            if let Some(group) = pod.fs_group {
                fs_group::apply_fs_group(&dir, group, pod.change_policy, false)?;
            }
            crash::point("volume.made");
            empty_dir::mark_ready(&marker, &self.boot)?;
        }
        Ok(MountedVolume {
            host_path: dir,
            read_only: false,
            size_limit: size_limit.filter(|_| backing == EmptyDirBacking::Disk),
        })
    }

    fn set_up_in_memory(
        &self,
        pod: &PodVolumes,
        volume: &PodVolume,
        plugin: &str,
        files: &ProjectedFiles,
    ) -> Result<(MountedVolume, Option<VolumeErrorCause>), VolumeErrorCause> {
        let backing = (self.in_memory)(pod.tmpfs_limit);
        self.set_up_files(pod, volume, plugin, files, backing)
    }

    fn set_up_files(
        &self,
        pod: &PodVolumes,
        volume: &PodVolume,
        plugin: &str,
        files: &ProjectedFiles,
        backing: EmptyDirBacking,
    ) -> Result<(MountedVolume, Option<VolumeErrorCause>), VolumeErrorCause> {
        let dir = self.volume_dir(&pod.uid, plugin, &volume.name);
        let marker = self.ready_marker(&pod.uid, plugin, &volume.name);
        let ready = empty_dir::is_volume_ready(&dir, &marker, backing)?;
        let of_boot = ready && empty_dir::is_marked_in_boot(&marker, &self.boot);
        let done = match files {
            Err(why) => Err(VolumeErrorCause::Refused(why.to_string())),
            Ok(files) => (if ready {
                Ok(())
            } else {
                empty_dir::make_backed_dir(&dir, backing)
            })
            .and_then(|()| atomic::make_nested(&dir, &volume.nested))
            .and_then(|()| {
                atomic::publish_files(&dir, files, || match pod.fs_group {
                    Some(group) => fs_group::apply_fs_group(
                        &dir,
                        group,
                        super::FsGroupChangePolicy::Always,
                        true,
                    ),
                    None => Ok(()),
                })
            })
            .and_then(|_| {
                crash::point("volume.published");
                if of_boot {
                    Ok(())
                } else {
                    empty_dir::mark_ready(&marker, &self.boot)
                }
            }),
        };
        let mounted = MountedVolume {
            host_path: dir,
            read_only: true,
            size_limit: None,
        };
        match done {
            Ok(()) => Ok((mounted, None)),
            // The pod's containers may be running: the data that they read stay.
            Err(cause) if of_boot => Ok((mounted, Some(cause))),
            // The volume is of an earlier boot, and perhaps torn by a power cut: it must be made again before a start.
            Err(cause) if ready => Err(cause),
            Err(cause) => {
                self.drop_half_made(pod, volume, plugin);
                Err(cause)
            }
        }
    }

    /// Takes down the remains of a failed first set-up. A failure is no news: the next set-up or the tear-down meets it
    /// again.
    fn drop_half_made(&self, pod: &PodVolumes, volume: &PodVolume, plugin: &str) {
        let dropped = loop {
            match self.tear_down_volume(&pod.uid, plugin, volume.name.as_ref()) {
                Ok(false) => {}
                done => break done,
            }
        };
        if let Err(e) = dropped {
            log::debug!(
                "half-made volume {:?} stays: {e} uid={}",
                volume.name,
                pod.uid
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    use super::{
        super::testing::{Scratch, can_mount, pod, uid, volumes_on_disk},
        *,
    };
    use crate::{
        api::{PodError, ProjectedFile},
        volume::beneath,
    };

    fn volume(name: &str, source: VolumeSource) -> PodVolume {
        PodVolume {
            name: name.into(),
            source,
            nested: Vec::new(),
        }
    }

    fn empty(name: &str, medium: EmptyDirMedium, size_limit: Option<u64>) -> PodVolume {
        volume(name, VolumeSource::EmptyDir { medium, size_limit })
    }

    fn files(data: &str) -> ProjectedFiles {
        Ok(vec![ProjectedFile {
            path: "key".into(),
            data: data.into(),
            mode: 0o400,
            owner: None,
        }])
    }

    #[test]
    fn empty_dir_on_disk() {
        // VOL-13
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let pod = pod(vec![empty("data", EmptyDirMedium::Default, Some(10))]);
        let mounted = volumes.set_up_volumes(&pod).into_result().unwrap();
        let dir = &mounted["data"].host_path;
        assert_eq!(
            *dir,
            scratch
                .path()
                .join("root/pods")
                .join(uid().as_str())
                .join("volumes/kubernetes.io~empty-dir/data")
        );
        assert_eq!(
            (mounted["data"].read_only, mounted["data"].size_limit),
            (false, Some(10))
        );
        assert_eq!(
            fs::metadata(dir).unwrap().permissions().mode() & 0o7777,
            0o777
        );
        fs::write(dir.join("kept"), "x").unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
        // Another agent on the same directory: the marker says ready, so nothing is touched.
        let again = scratch
            .volumes()
            .set_up_volumes(&pod)
            .into_result()
            .unwrap();
        assert_eq!(again, mounted);
        assert_eq!(
            fs::metadata(dir).unwrap().permissions().mode() & 0o7777,
            0o700
        );
        assert!(dir.join("kept").exists());
        // Without the marker it counts as half made and is brought in order, its data kept.
        fs::remove_file(volumes.ready_marker(&uid(), plugin::EMPTY_DIR, "data")).unwrap();
        volumes.set_up_volumes(&pod).into_result().unwrap();
        assert_eq!(
            fs::metadata(dir).unwrap().permissions().mode() & 0o7777,
            0o777
        );
        assert!(dir.join("kept").exists());
        assert_eq!(
            volumes_on_disk(&volumes),
            [("kubernetes.io~empty-dir".into(), "data".into())]
        );
    }

    #[test]
    fn empty_dir_in_memory() {
        // VOL-10
        if !can_mount("empty_dir_in_memory") {
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        for (name, size_limit, tmpfs_limit, expected) in [
            ("own", Some(65536), Some(1 << 20), 65536),
            ("node", Some(1 << 20), Some(131_072), 131_072),
            ("none", None, Some(262_144), 262_144),
        ] {
            let mut pod = pod(vec![empty(name, EmptyDirMedium::Memory, size_limit)]);
            pod.tmpfs_limit = tmpfs_limit;
            let mounted = volumes.set_up_volumes(&pod).into_result().unwrap();
            let dir = &mounted[name].host_path;
            let status = nix::sys::statvfs::statvfs(dir).unwrap();
            assert_eq!(
                u64::from(status.blocks()) * u64::from(status.fragment_size()),
                expected,
                "{name}"
            );
            fs::write(dir.join("kept"), "x").unwrap();
            let device = fs::metadata(dir).unwrap().dev();
            // A restarted agent finds the mount and does not mount again.
            let _ = scratch
                .volumes()
                .set_up_volumes(&pod)
                .into_result()
                .unwrap();
            assert_eq!(fs::metadata(dir).unwrap().dev(), device, "{name}");
            assert!(dir.join("kept").exists(), "{name}");
            assert_eq!(
                crate::volume::mounts::mounts_below(dir).unwrap().len(),
                1,
                "{name}"
            );
            // A reboot takes the mount and leaves the marker.
            crate::volume::mounts::unmount_point(dir).unwrap();
            volumes.set_up_volumes(&pod).into_result().unwrap();
            assert!(beneath::is_mount_point(dir).unwrap(), "{name}");
        }
    }

    #[test]
    fn empty_dir_of_huge_pages() {
        // VOL-14
        if !can_mount("empty_dir_of_huge_pages") {
            return;
        }
        let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter();
        let sizes = sizes.flatten().flatten().filter_map(|size| {
            let name = size.file_name().into_string().ok()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            Some(kib * 1024)
        });
        let sizes: Vec<u64> = sizes.collect();
        if sizes.is_empty() {
            skipped!("empty_dir_of_huge_pages: the kernel has no huge pages");
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        for bytes in sizes {
            let mut pod = pod(vec![empty(
                &bytes.to_string(),
                EmptyDirMedium::HugePages(bytes),
                None,
            )]);
            pod.fs_group = Some(4321);
            for _ in 0..2 {
                let mounted = volumes.set_up_volumes(&pod).into_result().unwrap();
                let dir = &mounted[&bytes.to_string()].host_path;
                let fs = nix::sys::statfs::statfs(dir).unwrap();
                assert_eq!(fs.filesystem_type(), nix::sys::statfs::HUGETLBFS_MAGIC);
                assert_eq!(u64::try_from(fs.block_size()), Ok(bytes));
                let status = fs::metadata(dir).unwrap();
                assert_eq!(
                    (status.gid(), status.permissions().mode() & 0o7777),
                    (4321, 0o3777)
                );
                assert_eq!(
                    crate::volume::mounts::mounts_below(dir).unwrap().len(),
                    1,
                    "mounted once"
                );
            }
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        // VOL-27
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let set_up = volumes.set_up_volumes(&pod(vec![
            volume("share", VolumeSource::Unsupported("nfs".into())),
            empty(
                "pages",
                EmptyDirMedium::Refused("no container requests huge pages".into()),
                None,
            ),
            empty("fine", EmptyDirMedium::Default, None),
        ]));
        assert_eq!(set_up.mounted.keys().collect::<Vec<_>>(), ["fine"]);
        assert_eq!(
            set_up
                .failed
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            [
                "MountVolume.SetUp failed for volume \"share\" : volumes of type \"nfs\" are not supported by this agent",
                "MountVolume.SetUp failed for volume \"pages\" : no container requests huge pages",
            ]
        );
        assert!(set_up.into_result().is_err());
    }

    #[test]
    fn secrets_never_touch_the_disk() {
        // VOL-10
        if !can_mount("secrets_never_touch_the_disk") {
            return;
        }
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let mut request = pod(vec![
            volume("config", VolumeSource::ConfigMap(files("c"))),
            volume("secret", VolumeSource::Secret(files("s"))),
            volume("down", VolumeSource::DownwardApi(files("d"))),
            volume("all", VolumeSource::Projected(files("p"))),
        ]);
        request.volumes[1].nested = vec!["inner/mount".into()];
        request.tmpfs_limit = Some(65536);
        let mounted = volumes.set_up_volumes(&request).into_result().unwrap();
        for (name, in_memory, data) in [
            ("config", false, "c"),
            ("secret", true, "s"),
            ("down", true, "d"),
            ("all", true, "p"),
        ] {
            let volume = &mounted[name];
            assert!(volume.read_only, "{name}");
            assert_eq!(
                beneath::is_mount_point(&volume.host_path).unwrap(),
                in_memory,
                "{name}"
            );
            assert_eq!(
                fs::read_to_string(volume.host_path.join("key")).unwrap(),
                data,
                "{name}"
            );
        }
        assert!(mounted["secret"].host_path.join("inner/mount").is_dir());
    }

    #[test]
    fn a_volume_that_is_mounted_keeps_its_files() {
        // VOL-07 VOL-08
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let missing: ProjectedFiles = Err(PodError::Object("configmap \"c\" not found".into()));
        let first = volumes.set_up_volumes(&pod(vec![volume(
            "config",
            VolumeSource::ConfigMap(missing.clone()),
        )]));
        assert!(first.mounted.is_empty());
        assert_eq!(
            first.into_result().unwrap_err().to_string(),
            "MountVolume.SetUp failed for volume \"config\" : configmap \"c\" not found"
        );
        assert_eq!(volumes_on_disk(&volumes), [], "nothing half made stays");

        volumes
            .set_up_volumes(&pod(vec![volume(
                "config",
                VolumeSource::ConfigMap(files("1")),
            )]))
            .into_result()
            .unwrap();
        let later = volumes.set_up_volumes(&pod(vec![volume(
            "config",
            VolumeSource::ConfigMap(missing),
        )]));
        assert_eq!(later.failed.len(), 1);
        let mounted = later.into_result().unwrap();
        assert_eq!(
            fs::read_to_string(mounted["config"].host_path.join("key")).unwrap(),
            "1"
        );

        // After a boot it may be torn: nothing starts on it, and nothing of it goes, for it may have been an older agent's.
        let missing: ProjectedFiles = Err(PodError::Object("configmap \"c\" not found".into()));
        let booted = scratch.volumes().with_boot_id("2");
        let torn = booted.set_up_volumes(&pod(vec![volume(
            "config",
            VolumeSource::ConfigMap(missing.clone()),
        )]));
        torn.into_result().unwrap_err();
        assert_eq!(volumes_on_disk(&booted).len(), 1);
        let whole = pod(vec![volume("config", VolumeSource::ConfigMap(files("2")))]);
        booted.set_up_volumes(&whole).into_result().unwrap();
        let later = booted.set_up_volumes(&pod(vec![volume(
            "config",
            VolumeSource::ConfigMap(missing),
        )]));
        later.into_result().unwrap();

        // Optional and gone: the source contributes nothing, the files go.
        let mounted = volumes
            .set_up_volumes(&pod(vec![volume(
                "config",
                VolumeSource::ConfigMap(Ok(Vec::new())),
            )]))
            .into_result()
            .unwrap();
        assert!(!mounted["config"].host_path.join("key").exists());
    }

    #[test]
    fn fs_group_reaches_each_kind() {
        // VOL-21
        if !can_mount("fs_group_reaches_each_kind") {
            return;
        }
        let scratch = Scratch::new();
        let host = scratch.path().join("host");
        fs::create_dir(&host).unwrap();
        let mut request = pod(vec![
            empty("data", EmptyDirMedium::Default, None),
            empty("fast", EmptyDirMedium::Memory, None),
            volume("secret", VolumeSource::Secret(files("s"))),
            volume("config", VolumeSource::ConfigMap(files("c"))),
            volume(
                "host",
                VolumeSource::HostPath {
                    path: host.display().to_string(),
                    kind: super::super::HostPathType::Directory,
                    read_only: false,
                },
            ),
        ]);
        request.fs_group = Some(4321);
        let mounted = scratch
            .volumes()
            .set_up_volumes(&request)
            .into_result()
            .unwrap();
        for (path, gid, mode) in [
            (mounted["data"].host_path.clone(), 4321, 0o2777),
            (mounted["fast"].host_path.clone(), 4321, 0o3777),
            (mounted["secret"].host_path.join("key"), 4321, 0o440),
            (mounted["config"].host_path.join("key"), 4321, 0o440),
            (host, 0, 0o755),
        ] {
            let status = fs::metadata(&path).unwrap();
            assert_eq!(
                (status.gid(), status.mode() & 0o7777),
                (gid, mode),
                "{}",
                path.display()
            );
        }
    }
}
