//! Usage of pods and containers: read from control groups, as for any other backend. Only the size of a writable layer
//! is the runtime's word (CRI-85, CRI-86).

use alloc::collections::BTreeSet;

use super::{CriClient, EndpointRuntime as _, wire};
use crate::{
    api::{
        cri::{ContainerState, SandboxState},
        order::OrderExt as _,
        stats::{ContainerUsage, DiskUsage, PodUsage, StatsDetail},
    },
    cgroup::Cgroups,
    net::traffic,
    runtime::RuntimeError,
    sys::lane::run_on_fresh_thread,
};

impl CriClient {
    /// Pods with a usable sandbox and their running containers, sorted by UID.
    pub(super) async fn read_pod_usage(
        &self,
        detail: StatsDetail,
    ) -> Result<Vec<PodUsage>, RuntimeError> {
        let (mut pods, mut unread) = (Vec::new(), BTreeSet::new());
        for pod in self.list_all_pods().await? {
            let mut newest: Vec<_> = pod.sandboxes.iter().collect();
            newest.stable_sort_by(|a, b| b.attempt.cmp(&a.attempt));
            let Some(sandbox) = newest.first().filter(|s| s.state == SandboxState::Ready) else {
                continue;
            };
            let mut containers = Vec::new();
            for container in &pod.containers {
                if container.state != ContainerState::Running {
                    continue;
                }
                let status = match self.ask_container_status(&container.id).await {
                    Err(RuntimeError::NotFound(_)) => continue,
                    // Its usage is in its control group, and the others' figures do not depend on it.
                    Err(RuntimeError::Failed(e)) => {
                        let (id, name) = (&container.id, &container.name);
                        if !self.unread.borrow().contains(id) {
                            log::warn!(
                                "container {name} ({id}) of pod {}/{}: its image and its log are not known: {e}",
                                pod.namespace,
                                pod.name
                            );
                        }
                        unread.insert(id.clone());
                        wire::ContainerStatusMessage {
                            started_at: container.created_at.0,
                            ..wire::ContainerStatusMessage::default()
                        }
                    }
                    status => status?,
                };
                containers.push(ContainerUsage {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    image: status.image.unwrap_or_default().image,
                    started_at: crate::api::WallTime(status.started_at),
                    log_path: status.log_path,
                    ..ContainerUsage::default()
                });
            }
            containers.stable_sort_by(|a, b| a.name.cmp(&b.name));
            pods.push((
                sandbox.id.clone(),
                PodUsage {
                    uid: pod.uid,
                    name: pod.name,
                    namespace: pod.namespace,
                    started_at: sandbox.created_at,
                    containers,
                    ..PodUsage::default()
                },
            ));
        }
        self.unread.replace(unread);
        let (cgroups, driver) = (self.cgroups.clone(), self.cgroup_driver());
        let (root, groups) = (self.settings.cgroup_root.clone(), self.settings.pod_groups);
        run_on_fresh_thread("stats", move || {
            let read = |(sandbox, pod)| {
                let sandbox: crate::api::SandboxId = sandbox;
                let pod: PodUsage = pod;
                let groups = groups.map(|of| of(driver, &root, &pod.uid));
                fill_in_pod_usage(&cgroups, groups, &sandbox, pod, detail)
            };
            pods.into_iter().map(read).collect()
        })
        .await
        .map_err(|e| RuntimeError::Failed(format!("read statistics: {e}")))
    }

    /// Asks for the disk use of a container's writable layer, as the runtime counts it.
    pub(super) async fn ask_layer_usage(
        &self,
        id: &str,
    ) -> Result<Option<DiskUsage>, RuntimeError> {
        let mut request = wire::TextMessage { word: id.into() };
        let mut answer = wire::ContainerStatsResponse::default();
        self.ask_runtime("ContainerStats", &mut request, &mut answer)
            .await?;
        let layer = answer.stats.and_then(|stats| stats.writable_layer);
        Ok(layer.and_then(|layer| {
            Some(DiskUsage {
                used_bytes: layer.used_bytes?.value,
                inodes_used: layer.inodes_used.map_or(0, |inodes| inodes.value),
            })
        }))
    }
}

/// Fills in the figures of one pod. A pod that has ended meanwhile has none, and ended containers are left out.
fn fill_in_pod_usage(
    cgroups: &Cgroups,
    groups: Option<[String; 3]>,
    sandbox: &str,
    mut pod: PodUsage,
    detail: StatsDetail,
) -> PodUsage {
    let Some(group) = groups
        .into_iter()
        .flatten()
        .find(|path| cgroups.has_group(path))
    else {
        pod.containers.clear();
        return pod;
    };
    pod.usage = cgroups.read_usage(&group, detail).unwrap_or_default();
    pod.cgroup.clone_from(&group);
    // containerd's name, and CRI-O's; where systemd makes groups, theirs of a scope.
    let below = |id: &str| {
        let names = ["", "crio-"].map(|runtime| format!("{group}/{runtime}{id}"));
        let scopes = ["cri-containerd-", "crio-"];
        let scopes = scopes.map(|runtime| format!("{group}/{runtime}{id}.scope"));
        names
            .into_iter()
            .chain(scopes)
            .find(|path| cgroups.has_group(path))
    };
    pod.containers.retain_mut(|container| {
        let Some(path) = below(&container.id) else {
            return false;
        };
        container.usage = cgroups.read_usage(&path, detail).unwrap_or_default();
        container.cgroup = path;
        container.usage.cpu.is_some() || container.usage.memory.is_some()
    });
    if detail == StatsDetail::Full {
        // Every process in the sandbox's own group has the pod's network.
        let inside = below(sandbox).map(|path| cgroups.list_pids(&path));
        let first = inside.and_then(|pids| pids.first().copied());
        pod.network = first.and_then(|pid| traffic::read_process_interfaces(pid).ok());
    }
    pod
}
