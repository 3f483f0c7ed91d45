//! Questions by which others read the agent, through an [`AgentHandle`](crate::agent::asker::AgentHandle). Answers are values.

use alloc::rc::Rc;
use core::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::Agent;
use crate::{
    agent::{metrics::PodCounts, node::NodeConditionInputs, probes::ProbedContainerStatus},
    api::{
        ContainerId, MonoTime, PodStatus, PodUid,
        cri::PodRuntimeStatus,
        health::{AgentHealth, LinkHealth, ProbesHealth},
        order::OrderExt as _,
    },
    logic::{
        admission::is_pod_address,
        metrics::containers::{self, ContainerStatusFigures},
        probe::NodeProbeFigures,
        runtime_cache::PodStatusResult,
        shutdown,
    },
};

/// Pods, for local commands and the node's server.
impl Agent {
    /// UIDs of the pods to show: configured ones and those that still end, sorted.
    pub(in crate::agent) fn shown_pods(&self) -> Vec<PodUid> {
        let mut uids = self.pods.configured_uids();
        let table = self.pods.worker_table();
        for handle in table.handles() {
            if let Some(identity) = table.pod_identity(handle)
                && !table.pod_stage(handle).is_some_and(|s| s.is_finished())
            {
                uids.push(identity.uid.clone());
            }
        }
        uids.stable_sort();
        uids.dedup();
        uids
    }

    /// Returns true if the pod has that namespace and name; `None` if only its record can tell.
    pub(in crate::agent) fn is_pod_named(
        &self,
        uid: &PodUid,
        namespace: &str,
        name: &str,
    ) -> Option<bool> {
        let table = self.pods.worker_table();
        let identity = table.pod_identity(table.find_handle(uid)?)?;
        Some(identity.namespace == namespace && identity.name == name)
    }

    /// Returns true if a pod answers at that address: see [`is_pod_address`]. `host_ips`: addresses of the node.
    pub(in crate::agent) fn has_pod_at(&self, to: SocketAddr, host_ips: &[IpAddr]) -> bool {
        self.pods.configs().any(|(uid, pod)| {
            let status = self.view.pod_status(uid);
            let sandboxes = status.iter().flat_map(|status| &status.sandboxes);
            { sandboxes }.any(|one| is_pod_address(to, one, &pod.takes.host_ports, host_ips))
        })
    }

    /// Namespace and name of a pod with a worker.
    pub(in crate::agent) fn pod_name(&self, uid: &PodUid) -> Option<(Box<str>, Box<str>)> {
        let table = self.pods.worker_table();
        let pod = table.pod_identity(table.find_handle(uid)?)?;
        Some((pod.namespace.into(), pod.name.into()))
    }

    /// The pod's local status, and whether a source wants it.
    pub(in crate::agent) fn shown_status(&self, uid: &PodUid) -> (Option<PodStatus>, bool) {
        (
            self.pods.stored_status(uid).cloned(),
            self.pods.is_configured(uid),
        )
    }

    /// Last runtime status of a pod; empty if the runtime does not know it.
    pub(in crate::agent) fn pod_runtime_status(&self, uid: &PodUid) -> PodStatusResult {
        self.view.pod_status(uid)
    }

    /// Last runtime statuses of all pods, sorted by UID.
    pub(in crate::agent) fn runtime_statuses(&self) -> Vec<Rc<PodRuntimeStatus>> {
        self.view.pod_statuses()
    }

    /// Returns true if a container runs, or may run because its status cannot be read.
    pub(in crate::agent) fn may_container_run(&self, id: &ContainerId) -> bool {
        self.view.may_container_run(id)
    }

    /// See [`ServerBackend::config_maps`](crate::server::backend::ServerBackend::config_maps).
    pub(in crate::agent) fn config_maps(&self, namespace: Option<&str>) -> Vec<Value> {
        self.objects.config_maps_shown(namespace)
    }

    /// See [`ServerBackend::secrets`](crate::server::backend::ServerBackend::secrets).
    pub(in crate::agent) fn secrets(&self, namespace: Option<&str>) -> Vec<Value> {
        self.objects.secrets_shown(namespace)
    }

    /// See [`ServerBackend::dump_recorded_events`](crate::server::backend::ServerBackend::dump_recorded_events).
    pub(in crate::agent) fn dump_history(&self) -> String {
        let clock = &self.tools.clock;
        self.ring.write_dump(clock.now(), clock.wall_time())
    }

    /// See [`ServerBackend::agent_health`](crate::server::backend::ServerBackend::agent_health).
    pub(in crate::agent) fn compute_health(&self) -> AgentHealth {
        let now = self.tools.clock.now();
        let age_ms = |at: Option<MonoTime>| at.map(|at| now.since_ms(at));
        let down = self.view.down_reason(now);
        let probes = self.probe_figures();
        let interval = self.settings.file_check.as_millis();
        AgentHealth {
            version: crate::VERSION.into(),
            pid: std::process::id(),
            relist_age_ms: age_ms(self.view.last_relist()),
            manifests_age_ms: age_ms(self.sources.last_manifest_read()),
            manifests_interval_ms: u64::try_from(interval).unwrap_or(u64::MAX),
            down: down.map(|e| e.to_string()),
            network_down: self.view.network_problem(),
            pods: self.pods.configured_uids().len(),
            probes: ProbesHealth {
                count: probes.probes.len(),
                ended: probes.result_count(),
                late: probes.late,
                commands: probes.commands,
                connections: probes.connections,
            },
            apiserver: self
                .owners
                .cluster
                .as_ref()
                .map(|cluster| cluster.apiserver_health(&*self.tools.clock)),
            parts: self
                .owners
                .parts
                .iter()
                .filter_map(|part| part.state())
                .collect(),
            link: {
                let link = self.owners.link_policy.link_state();
                link.budget.map(|says| LinkHealth {
                    says,
                    waits: link.images_wait,
                })
            },
        }
    }
}

/// Figures, the Node object, probes.
impl Agent {
    /// Counts pods and containers.
    pub(in crate::agent) fn count_pods(&self) -> PodCounts {
        PodCounts {
            gauges: self.pods.gauges(),
            totals: self.pods.totals(),
            running: self.view.running_counts(),
            slots_taken: self.pods.worker_table().handles().count(),
            answered: self.owners.cluster.as_ref().and_then(|c| c.last_answer()),
            certificate: self
                .owners
                .cluster
                .as_ref()
                .and_then(|c| c.certificate_end()),
        }
    }

    /// Figures of the containers in all statuses, in the order of their pods.
    pub(in crate::agent) fn container_figures(&self) -> Vec<ContainerStatusFigures> {
        let mut all = Vec::new();
        for uid in self.shown_pods() {
            if let (Some((namespace, pod)), Some(status)) =
                (self.pod_name(&uid), self.pods.stored_status(&uid))
            {
                all.extend(containers::pod_container_figures(
                    (&namespace, &pod),
                    status,
                ));
            }
        }
        all
    }

    /// Figures of all probes.
    pub(in crate::agent) fn probe_figures(&self) -> NodeProbeFigures {
        self.owners.probes.node_figures(|uid| self.pod_name(uid))
    }

    /// UIDs of pods with a worker.
    pub(in crate::agent) fn pods_with_workers(&self) -> Vec<PodUid> {
        let table = self.pods.worker_table();
        let pods = table
            .handles()
            .filter_map(|handle| table.pod_identity(handle));
        pods.map(|pod| pod.uid.clone()).collect()
    }

    /// Facts of the node that the Node object needs from others.
    pub(in crate::agent) fn node_standing(&self) -> NodeConditionInputs {
        let clock = &self.tools.clock;
        let cluster = self.owners.cluster.as_ref();
        let mut not_ready = self.view.ready_errors(clock.now());
        if self.stop.shutdown.is_under_way() {
            not_ready.push(shutdown::NOT_READY.into());
        }
        NodeConditionInputs {
            not_ready,
            records_wait: self.pods.has_waiting_records(),
            pressure: self.eviction.pressure_conditions(),
            transition: self.eviction.transition(),
            is_member: cluster.is_some(),
            apiserver: cluster.map(|cluster| cluster.link_condition(&**clock)),
        }
    }

    /// Stored status of a container that is probed.
    pub(in crate::agent) fn shown_container(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> ProbedContainerStatus {
        let host = self.owners.node.host_ip();
        let look = |status: &PodStatus| ProbedContainerStatus::from_status(status, name, host);
        self.pods.stored_status(uid).map(look).unwrap_or_default()
    }
}

/// Questions of those who remove remains of pods.
impl Agent {
    /// Returns true if every source has reported.
    pub(in crate::agent) fn sources_ready(&self) -> bool {
        self.sources.are_ready()
    }

    /// Returns true if the remains of a pod may be removed: its worker is done and nobody could still want it.
    pub(in crate::agent) fn may_remove_content(&self, uid: &PodUid) -> bool {
        self.pods.worker_table().is_garbage(uid) && !self.is_unread(uid)
    }

    /// Returns true if the dead containers of a pod may be removed while the pod stays: none of them will run again.
    pub(in crate::agent) fn may_remove_containers(&self, uid: &PodUid) -> bool {
        self.may_remove_content(uid) || self.pods.worker_table().is_pod_known_terminated(uid)
    }

    /// Asks for a relist after a change at the runtime.
    pub(in crate::agent) fn request_relist(&self) {
        self.view.request_relist();
    }

    /// Returns true if no container of the pod is known to run.
    pub(in crate::agent) fn runs_nothing_of(&self, uid: &PodUid) -> bool {
        self.view.is_pod_idle(uid)
    }
}
