//! Request of the agent to this module: a pod's volumes, reduced to the facts that their set-up needs.

use std::{collections::BTreeMap, path::Path};

use super::{FsGroupChangePolicy, HostPathType, is_component};
use crate::api::order::OrderExt;
use crate::api::{Pod, PodError, PodUid, ProjectedFile, pod::Volume};

/// The volumes of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodVolumes {
    /// The pod.
    pub uid: PodUid,
    /// Group that may use the volumes.
    pub fs_group: Option<u32>,
    /// Policy for later changes of ownership.
    pub change_policy: FsGroupChangePolicy,
    /// Most bytes of a tmpfs: the smaller of node allocatable memory and the pod's memory limit.
    pub tmpfs_limit: Option<u64>,
    /// Volumes in the pod's order.
    pub volumes: Vec<PodVolume>,
}

/// A volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVolume {
    /// Name of the volume in the pod.
    pub name: String,
    /// Source of the volume's data.
    pub source: VolumeSource,
    /// Mount points of other volumes inside this one, relative to its root: made as directories in a read-only volume,
    /// where the runtime could not.
    pub nested: Vec<String>,
}

/// Source of a volume's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// An empty directory that lives as long as the pod.
    EmptyDir {
        /// Storage of the data.
        medium: EmptyDirMedium,
        /// Most bytes of data; held by the kernel for [`EmptyDirMedium::Memory`], by eviction otherwise.
        size_limit: Option<u64>,
    },
    /// A path of the host.
    HostPath {
        /// Absolute, as the pod names it.
        path: String,
        /// Required kind of the path.
        kind: HostPathType,
        /// Set if the volume is read-only, whatever a mount says.
        read_only: bool,
    },
    /// A directory of the node's own disk, given to a claim.
    Local {
        /// Name of its directory: the PersistentVolume's.
        name: String,
        /// Absolute.
        path: String,
        /// Set if the volume is read-only, whatever a mount says.
        read_only: bool,
    },
    /// A share of the network, at [`super::Volumes::nfs_dir`].
    Nfs {
        /// Name of its directory: the PersistentVolume's, or the volume's in the pod.
        name: String,
        /// Result of mounting the share.
        mounted: Result<(), PodError>,
        /// Set if the volume is read-only, whatever a mount says.
        read_only: bool,
    },
    /// A source that is not known now, and why.
    Unknown(String),
    /// A ConfigMap's keys, on disk.
    ConfigMap(ProjectedFiles),
    /// A Secret's keys, in memory.
    Secret(ProjectedFiles),
    /// The pod's own fields, in memory.
    DownwardApi(ProjectedFiles),
    /// Several sources in one directory, in memory.
    Projected(ProjectedFiles),
    /// A source this agent cannot mount; the text names its type.
    Unsupported(String),
}

/// Files of a projected volume, or the reason why they are not known now. A volume that is mounted already keeps its
/// files.
pub type ProjectedFiles = Result<Vec<ProjectedFile>, PodError>;

/// Medium of an emptyDir.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EmptyDirMedium {
    /// The disk of the root directory.
    #[default]
    Default,
    /// tmpfs.
    Memory,
    /// hugetlbfs with pages of so many bytes.
    HugePages(u64),
    /// A medium that cannot be had, and why.
    Refused(String),
}

/// The pod's volumes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRequestError {
    /// A volume's name would not be one path component.
    #[error("volume name {0:?} is not a plain file name")]
    Name(String),
    /// Numbers of the security context are out of range.
    #[error("securityContext.fsGroup: {0} is not a group id")]
    FsGroup(i64),
}

impl PodVolumes {
    /// Takes out the paths of the host that are to be looked at: they may lie on a share whose server is gone, and then they
    /// never answer. The others touch only this node's own disks; a local volume is taken for one.
    #[must_use]
    pub fn split_off_checks(&mut self) -> Self {
        let is_checked = |volume: &mut PodVolume| match &volume.source {
            VolumeSource::HostPath { kind, .. } => *kind != HostPathType::Unset,
            _ => false,
        };
        Self {
            uid: self.uid.clone(),
            volumes: self.volumes.extract_if(.., is_checked).collect(),
            ..*self
        }
    }

    /// Reads the volumes that some container of `pod` mounts; the others are left out, and so are images, which the runtime
    /// mounts into each container.
    ///
    /// `files` holds, by volume name, what each configMap, secret, downwardAPI and projected volume contains; one that is
    /// missing there counts as not known. `outside` holds what claims, shares and volumes of huge pages are.
    pub fn from_pod(
        pod: &Pod,
        tmpfs_limit: Option<u64>,
        mut files: BTreeMap<String, ProjectedFiles>,
        mut outside: BTreeMap<String, VolumeSource>,
    ) -> Result<Self, VolumeRequestError> {
        let security = pod.spec.security_context.as_ref();
        let fs_group = match security.and_then(|s| s.fs_group) {
            None => None,
            Some(id) => Some(u32::try_from(id).map_err(|_| VolumeRequestError::FsGroup(id))?),
        };
        let change_policy = match security.and_then(|s| s.fs_group_change_policy.as_deref()) {
            Some("OnRootMismatch") => FsGroupChangePolicy::OnRootMismatch,
            _ => FsGroupChangePolicy::Always,
        };
        let mut volumes = Vec::new();
        for volume in &pod.spec.volumes {
            if !is_component(&volume.name) {
                return Err(VolumeRequestError::Name(volume.name.clone()));
            }
            let used = pod.spec.all_containers().any(|c| {
                c.mounts_volume(&volume.name)
                    || c.volume_devices.iter().any(|d| d.name == volume.name)
            });
            if !used || volume.image.is_some() {
                continue;
            }
            volumes.push(PodVolume {
                name: volume.name.clone(),
                source: match outside.remove(&volume.name) {
                    Some(source) => source,
                    None => volume_source(volume, files.remove(&volume.name)),
                },
                nested: nested_mount_points(pod, &volume.name),
            });
        }
        Ok(Self {
            uid: pod.metadata.uid.as_str().into(),
            fs_group,
            change_policy,
            tmpfs_limit,
            volumes,
        })
    }
}

fn volume_source(volume: &Volume, files: Option<ProjectedFiles>) -> VolumeSource {
    let files = || files.unwrap_or_else(|| Err(PodError::Node("its content is not known".into())));
    if let Some(empty) = &volume.empty_dir {
        VolumeSource::EmptyDir {
            medium: parse_medium(&empty.medium),
            // Zero means no limit, as upstream reads it.
            size_limit: empty
                .size_limit
                .as_ref()
                .and_then(|q| u64::try_from(q.value()).ok())
                .filter(|bytes| *bytes > 0),
        }
    } else if let Some(host) = &volume.host_path {
        VolumeSource::HostPath {
            path: host.path.clone(),
            kind: host.kind.as_deref().unwrap_or_default().into(),
            read_only: false,
        }
    } else if volume.config_map.is_some() {
        VolumeSource::ConfigMap(files())
    } else if volume.secret.is_some() {
        VolumeSource::Secret(files())
    } else if volume.downward_api.is_some() {
        VolumeSource::DownwardApi(files())
    } else if volume.projected.is_some() {
        VolumeSource::Projected(files())
    } else {
        let kind = if volume.nfs.is_some() {
            "nfs"
        } else if volume.ephemeral.is_some() {
            "ephemeral"
        } else if volume.persistent_volume_claim.is_some() {
            "persistentVolumeClaim"
        } else if volume.unmodelled.is_empty() {
            "unknown"
        } else {
            &volume.unmodelled
        };
        VolumeSource::Unsupported(kind.into())
    }
}

fn parse_medium(medium: &str) -> EmptyDirMedium {
    match medium {
        "" => EmptyDirMedium::Default,
        "Memory" => EmptyDirMedium::Memory,
        other => EmptyDirMedium::Refused(format!(
            "emptyDir medium {other:?} is not supported by this agent"
        )),
    }
}

/// Finds the mount points of other volumes below volume `name`, relative to its root, sorted, only the outermost.
fn nested_mount_points(pod: &Pod, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for container in pod.spec.all_containers() {
        for outer in container.volume_mounts.iter().filter(|m| m.name == name) {
            // With a subPath the other mount does not lie in the volume's root.
            if !outer.sub_path.is_empty() || !outer.sub_path_expr.is_empty() {
                continue;
            }
            let base = Path::new(&outer.mount_path);
            for inner in container.volume_mounts.iter().filter(|m| m.name != name) {
                if let Ok(rest) = Path::new(&inner.mount_path).strip_prefix(base)
                    && let Some(rest) = rest.to_str()
                    && !rest.is_empty()
                {
                    found.push(rest.trim_end_matches('/').to_owned());
                }
            }
        }
    }
    found.stable_sort();
    found.dedup();
    let mut outermost: Vec<String> = Vec::new();
    for path in found {
        if !outermost
            .last()
            .is_some_and(|o| Path::new(&path).starts_with(o))
        {
            outermost.push(path);
        }
    }
    outermost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(r#"{{"metadata":{{"uid":"u"}},"spec":{spec}}}"#))
            .expect("pod")
    }

    #[test]
    fn only_used_volumes() {
        // VOL-18 VOL-27
        let pod = pod(
            r#"{"volumes":[{"name":"a","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}},{"name":"unused","nfs":{}},
            {"name":"b","nfs":{}},{"name":"c","hostPath":{"path":"/x"}},{"name":"i","image":{"reference":"i:1"}}],
            "containers":[{"volumeMounts":[{"name":"a","mountPath":"/a"},{"name":"b","mountPath":"/b"},{"name":"i","mountPath":"/i"}]}],
            "initContainers":[{"volumeMounts":[{"name":"c","mountPath":"/c"}]}]}"#,
        );
        let read = PodVolumes::from_pod(&pod, None, BTreeMap::new(), BTreeMap::new()).unwrap();
        let sources: Vec<_> = read
            .volumes
            .iter()
            .map(|v| (v.name.as_str(), &v.source))
            .collect();
        assert_eq!(
            sources,
            [
                (
                    "a",
                    &VolumeSource::EmptyDir {
                        medium: EmptyDirMedium::Memory,
                        size_limit: Some(1 << 20)
                    }
                ),
                ("b", &VolumeSource::Unsupported("nfs".into())),
                (
                    "c",
                    &VolumeSource::HostPath {
                        path: "/x".into(),
                        kind: HostPathType::Unset,
                        read_only: false,
                    }
                ),
            ]
        );
    }

    #[test]
    fn paths_that_are_checked_stand_apart() {
        // VOL-15
        let pod = pod(
            r#"{"volumes":[{"name":"a","hostPath":{"path":"/x"}},{"name":"b","hostPath":{"path":"/x","type":"Directory"}},
            {"name":"c","emptyDir":{}},{"name":"d","hostPath":{"path":"/y","type":"FileOrCreate"}}],
            "containers":[{"volumeMounts":[{"name":"a","mountPath":"/a"},{"name":"b","mountPath":"/b"},
            {"name":"c","mountPath":"/c"},{"name":"d","mountPath":"/d"}]}]}"#,
        );
        let mut rest = PodVolumes::from_pod(&pod, None, BTreeMap::new(), BTreeMap::new()).unwrap();
        let checks = rest.split_off_checks();
        let names = |of: &PodVolumes| -> Vec<String> {
            of.volumes.iter().map(|v| v.name.clone()).collect()
        };
        assert_eq!(
            (names(&rest), names(&checks)),
            (vec!["a".into(), "c".into()], vec!["b".into(), "d".into()])
        );
        assert_eq!(checks.uid, rest.uid);
    }

    #[test]
    fn names_stay_components() {
        for name in ["..", "a/b", ""] {
            let pod = pod(&format!(
                r#"{{"volumes":[{{"name":"{name}","emptyDir":{{}}}}]}}"#
            ));
            assert_eq!(
                PodVolumes::from_pod(&pod, None, BTreeMap::new(), BTreeMap::new()),
                Err(VolumeRequestError::Name(name.into())),
                "{name}"
            );
        }
    }

    #[test]
    fn mount_points_in_a_volume() {
        // VOL-10
        let pod = pod(
            r#"{"containers":[{"volumeMounts":[{"name":"s","mountPath":"/etc/s"},{"name":"t","mountPath":"/etc/s/deep/t"},
            {"name":"u","mountPath":"/etc/s/deep/t/u/"},{"name":"v","mountPath":"/etc/sibling"},{"name":"w","mountPath":"/etc/s/w/"}]}]}"#,
        );
        assert_eq!(nested_mount_points(&pod, "s"), ["deep/t", "w"]);
        assert_eq!(nested_mount_points(&pod, "w"), Vec::<String>::new());
    }
}
