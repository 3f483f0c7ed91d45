//! Usage of pods and containers. Read when asked, on a thread of its own that walks through the pods' network
//! namespaces and ends.

use std::path::{Path, PathBuf};

use super::{Runc, chain, failed, not_found, sandbox};
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
    sys::{disk_usage, lane::on_fresh_thread, namespaces},
};

/// A pod to read, and the pin of its network namespace if it has one of its own.
struct UsageTarget {
    pod: PodUsage,
    network: Option<PathBuf>,
}

impl Runc {
    /// Pods with a usable sandbox and their running containers, sorted by UID.
    pub(super) async fn usage(&self, detail: StatsDetail) -> Result<Vec<PodUsage>, RuntimeError> {
        let targets = self.targets();
        let cgroups = self.cgroups.clone();
        on_fresh_thread("stats", move || {
            let read = |target| read(&cgroups, target, detail);
            targets.into_iter().map(read).collect()
        })
        .await
        .map_err(failed("read statistics"))
    }

    /// Counts the disk use of a container's writable layer, which lies above the image.
    pub(super) async fn layer_usage(
        &self,
        id: &ContainerId,
    ) -> Result<Option<DiskUsage>, RuntimeError> {
        if !self.table.borrow().containers.contains_key(id) {
            return Err(not_found("container", id));
        }
        let upper = self.dirs(id).root.join("upper");
        match disk_usage::of(&self.disk, upper).await {
            Ok(used) => Ok(Some(used)),
            Err(e) if disk_usage::is_too_large(&e) => Err(RuntimeError::Exhausted(e.to_string())),
            // The layer went meanwhile, or cannot be read.
            Err(e) => {
                log::debug!("disk usage: {e}");
                Ok(None)
            }
        }
    }

    fn targets(&self) -> Vec<UsageTarget> {
        let table = self.table.borrow();
        let targets = table.uids().into_iter().filter_map(|uid| {
            let status = table.pod(&uid);
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
            let network = own.then(|| sandbox::pin(&self.sandbox_dir(&newest.id), "net"));
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
            containers.order_by(|a, b| a.name.cmp(&b.name));
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
fn read(cgroups: &Cgroups, target: UsageTarget, detail: StatsDetail) -> PodUsage {
    let UsageTarget { mut pod, network } = target;
    pod.usage = cgroups.usage(&pod.cgroup, detail).unwrap_or_default();
    pod.containers.retain_mut(|container| {
        let usage = cgroups.usage(&container.cgroup, detail);
        container.usage = usage.unwrap_or_default();
        container.usage.cpu.is_some() || container.usage.memory.is_some()
    });
    if detail == StatsDetail::Full {
        pod.network = network.and_then(|pin| interfaces(&pin));
    }
    pod
}

/// Moves this thread into the namespace. It stays there until it moves on, or ends.
fn interfaces(pin: &Path) -> Option<Vec<crate::api::stats::InterfaceCounts>> {
    let counts = namespaces::join(pin).and_then(|()| traffic::of_this_thread());
    counts
        .inspect_err(|e| log::debug!("{}: {}", pin.display(), chain(e)))
        .ok()
}
