//! Usage of pods and containers. Read when asked, on a thread of its own that walks through the pods' network
//! namespaces and ends.

use std::path::{Path, PathBuf};

use super::{Runc, error_chain, failed_at_step, not_found, sandbox};
use crate::{
    api::{
        ContainerId,
        cri::{ContainerState, NamespaceMode, SandboxState},
        order::OrderExt as _,
        stats::{ContainerUsage, DiskUsage, PodUsage, StatsDetail},
    },
    cgroup::Cgroups,
    net::traffic,
    runtime::RuntimeError,
    sys::{disk_usage, lane::run_on_fresh_thread, namespaces},
};

/// A pod to read, and the pin of its network namespace if it has one of its own.
struct UsageTarget {
    pod: PodUsage,
    network: Option<PathBuf>,
}

impl Runc {
    /// Pods with a usable sandbox and their running containers, sorted by UID.
    pub(super) async fn read_pods_usage(
        &self,
        detail: StatsDetail,
    ) -> Result<Vec<PodUsage>, RuntimeError> {
        let targets = self.usage_targets();
        let cgroups = self.cgroups.clone();
        run_on_fresh_thread("stats", move || {
            let read = |target| fill_pod_usage(&cgroups, target, detail);
            targets.into_iter().map(read).collect()
        })
        .await
        .map_err(failed_at_step("read statistics"))
    }

    /// Counts the disk use of a container's writable layer, which lies above the image.
    pub(super) async fn layer_usage(
        &self,
        id: &ContainerId,
    ) -> Result<Option<DiskUsage>, RuntimeError> {
        if !self.table.borrow().containers.contains_key(id) {
            return Err(not_found("container", id));
        }
        let upper = self.container_dirs(id).root.join("upper");
        match disk_usage::measure_disk_usage(&self.disk, upper).await {
            Ok(used) => Ok(Some(used)),
            Err(e) if disk_usage::is_too_large(&e) => Err(RuntimeError::Exhausted(e.to_string())),
            // The layer went meanwhile, or cannot be read.
            Err(e) => {
                log::debug!("disk usage: {e}");
                Ok(None)
            }
        }
    }

    fn usage_targets(&self) -> Vec<UsageTarget> {
        let table = self.table.borrow();
        let targets = table.pod_uids().into_iter().filter_map(|uid| {
            let status = table.pod_status(&uid);
            let newest = status.sandboxes.first()?;
            if newest.state != SandboxState::Ready {
                return None;
            }
            // Containers' groups are right below the pod's, also those of ended containers.
            let of_pod = |id: &ContainerId| {
                let (pod, _) = table.containers.get(id)?.cgroup.rsplit_once('/')?;
                Some(pod.to_owned())
            };
            let cgroup = status.containers.iter().find_map(|c| of_pod(&c.id));
            let own = newest.namespaces.network == NamespaceMode::Pod;
            let network =
                own.then(|| sandbox::namespace_pin_path(&self.sandbox_dir(&newest.id), "net"));
            let started_at = newest.created_at;
            let running = status.containers.into_iter();
            let mut containers: Vec<ContainerUsage> = running
                .filter(|c| c.state == ContainerState::Running)
                .map(|c| ContainerUsage {
                    cgroup: table
                        .containers
                        .get(&c.id)
                        .map(|entry| entry.cgroup.clone())
                        .unwrap_or_default(),
                    id: c.id,
                    name: c.name,
                    image: c.image,
                    started_at: c.started_at.unwrap_or(c.created_at),
                    log_path: c.log_path,
                    ..ContainerUsage::default()
                })
                .collect();
            containers.stable_sort_by(|a, b| a.name.cmp(&b.name));
            Some(UsageTarget {
                pod: PodUsage {
                    uid: status.uid,
                    name: status.name,
                    namespace: status.namespace,
                    started_at,
                    cgroup: cgroup.unwrap_or_default(),
                    containers,
                    ..PodUsage::default()
                },
                network,
            })
        });
        targets.collect()
    }
}

/// Fills in the figures of one pod. A pod that has ended meanwhile has none, and its containers are left out.
fn fill_pod_usage(cgroups: &Cgroups, target: UsageTarget, detail: StatsDetail) -> PodUsage {
    let UsageTarget { mut pod, network } = target;
    pod.usage = cgroups.read_usage(&pod.cgroup, detail).unwrap_or_default();
    pod.containers.retain_mut(|container| {
        let usage = cgroups.read_usage(&container.cgroup, detail);
        container.usage = usage.unwrap_or_default();
        container.usage.cpu.is_some() || container.usage.memory.is_some()
    });
    if detail == StatsDetail::Full {
        pod.network = network.and_then(|pin| read_interfaces(&pin));
    }
    pod
}

/// Moves this thread into the namespace. It stays there until it moves on, or ends.
fn read_interfaces(pin: &Path) -> Option<Vec<crate::api::stats::InterfaceCounts>> {
    let counts = namespaces::join_namespace(pin).and_then(|()| traffic::read_thread_interfaces());
    counts
        .inspect_err(|e| log::debug!("{}: {}", pin.display(), error_chain(e)))
        .ok()
}
