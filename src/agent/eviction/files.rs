//! Disk use of a pod's files: walked through in slices on the disk lane, so that pods go on in between.

use alloc::rc::Rc;
use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

use crate::{
    agent::pod_store::PodStore,
    api::stats::{ContainerDiskUsage, DiskUsage, PodUsage, VolumeUsage},
    runtime::{RuntimeError, RuntimeService},
    sys::{disk_usage, lane::Lane},
    volume::Volumes,
};

/// Counts the files of pods.
#[derive(Clone)]
pub(in crate::agent) struct PodFileCounter {
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) volumes: Volumes,
    pub(in crate::agent) store: PodStore,
}

/// Disk use of a pod's files.
pub(in crate::agent) struct PodFileUsage {
    /// Disk use of the running containers, in the pod's order.
    pub(in crate::agent) containers: Vec<ContainerDiskUsage>,
    /// Volumes with data of their own.
    pub(in crate::agent) volumes: Vec<VolumeUsage>,
    /// The file that is the `/etc/hosts` of the containers.
    pub(in crate::agent) hosts: Option<DiskUsage>,
    /// Set if files that end with the pod are too many to be counted. Any other missing figure means: the files are
    /// gone, or nothing is known of them.
    pub(in crate::agent) too_large: bool,
}

impl PodFileCounter {
    /// Counts all files of a running pod.
    pub(in crate::agent) async fn count_pod_files(&self, pod: &PodUsage) -> PodFileUsage {
        let (mut containers, mut too_large) = (Vec::new(), false);
        for container in &pod.containers {
            let layer = self.runtime.writable_layer_usage(&container.id).await;
            too_large |= matches!(layer, Err(RuntimeError::Exhausted(_)));
            let logs = match Path::new(&container.log_path).parent() {
                Some(dir) if dir.is_absolute() => {
                    let walked = disk_usage::measure_disk_usage(&self.disk, dir.into()).await;
                    too_large |= is_too_large(&walked);
                    walked.ok()
                }
                _ => None,
            };
            containers.push(ContainerDiskUsage {
                layer: layer.ok().flatten(),
                logs,
            });
        }
        let (volumes, uid) = (self.volumes.clone(), pod.uid.clone());
        let hosts = self.store.pod_dir(&pod.uid).join("etc-hosts");
        let held = self.disk.run_job(move || {
            let hosts = fs::symlink_metadata(hosts).ok().map(|meta| DiskUsage {
                used_bytes: meta.blocks().saturating_mul(512),
                inodes_used: 1,
            });
            (volumes.held_volumes(&uid), hosts)
        });
        let (held, hosts) = held.await;
        let mut all = Vec::new();
        for volume in held {
            let walked = disk_usage::measure_disk_usage(&self.disk, volume.path.clone()).await;
            too_large |= volume.ephemeral && is_too_large(&walked);
            let path = volume.path;
            let fs = self
                .disk
                .run_job(move || disk_usage::read_file_system(&path).ok());
            all.push(VolumeUsage {
                name: volume.name,
                claim: None,
                ephemeral: volume.ephemeral,
                used: walked.ok(),
                fs: fs.await,
            });
        }
        PodFileUsage {
            containers,
            volumes: all,
            hosts,
            too_large,
        }
    }
}

fn is_too_large(walked: &io::Result<DiskUsage>) -> bool {
    walked.as_ref().is_err_and(disk_usage::is_too_large)
}
