//! What others ask of the agent to read it, through an [`Asker`](super::asker::Asker). Answers are values.

use alloc::rc::Rc;

use serde_json::Value;

use super::{core::Agent, metrics::Counts, node::Standing, probes::ShownContainer};
use crate::{
    api::{ContainerId, Mono, PodStatus, PodUid, cri::PodRuntimeStatus, order::Order as _},
    logic::probe::NodeFigures,
    server::backend::{Health, ProbesHealth},
};

/// Pods, for local commands and the node's server.
impl Agent {
    /// UIDs of the pods to show: configured ones and those that still end, sorted.
    pub(super) fn shown_pods(&self) -> Vec<PodUid> {
        let mut uids = self.pods().configured();
        self.pods().workers(|table| {
            for handle in table.handles() {
                if let Some(identity) = table.identity(handle)
                    && !table.stage(handle).is_some_and(|s| s.is_finished())
                {
                    uids.push(identity.uid.clone());
                }
            }
        });
        uids.order();
        uids.dedup();
        uids
    }

    /// Whether the pod has that namespace and name; `None`: only its record says so.
    pub(super) fn is_named(&self, uid: &PodUid, namespace: &str, name: &str) -> Option<bool> {
        self.pods().workers(|table| {
            let identity = table.identity(table.handle(uid)?)?;
            Some(identity.namespace == namespace && identity.name == name)
        })
    }

    /// Namespace and name of a pod with a worker.
    pub(super) fn name_of(&self, uid: &PodUid) -> Option<(Box<str>, Box<str>)> {
        self.pods().workers(|table| {
            let pod = table.identity(table.handle(uid)?)?;
            Some((pod.namespace.into(), pod.name.into()))
        })
    }

    /// The pod's local status, and whether a source wants it.
    pub(super) fn shown_status(&self, uid: &PodUid) -> (Option<PodStatus>, bool) {
        (self.pods().status(uid), self.pods().is_configured(uid))
    }

    /// What the runtime last said of a pod; an empty status if it said nothing or could not answer.
    pub(super) fn runtime_status(&self, uid: &PodUid) -> PodRuntimeStatus {
        PodRuntimeStatus::clone(&self.view().status(uid))
    }

    /// What it last said of each pod, sorted by UID.
    pub(super) fn runtime_statuses(&self) -> Vec<Rc<PodRuntimeStatus>> {
        self.view().statuses()
    }

    /// Whether a container runs.
    pub(super) fn is_running(&self, id: &ContainerId) -> bool {
        self.view().is_running(id)
    }

    /// See [`Backend::config_maps`](crate::server::backend::Backend::config_maps).
    pub(super) fn config_maps(&self, namespace: Option<&str>) -> Vec<Value> {
        self.ctx.objects.borrow().config_maps_shown(namespace)
    }

    /// See [`Backend::secrets`](crate::server::backend::Backend::secrets).
    pub(super) fn secrets(&self, namespace: Option<&str>) -> Vec<Value> {
        self.ctx.objects.borrow().secrets_shown(namespace)
    }

    /// See [`Backend::dump`](crate::server::backend::Backend::dump).
    pub(super) fn dump(&self) -> String {
        let ctx = &self.ctx;
        ctx.ring.borrow().dump(ctx.clock.now(), ctx.clock.wall())
    }

    /// See [`Backend::health`](crate::server::backend::Backend::health).
    pub(super) fn health(&self) -> Health {
        let ctx = &self.ctx;
        let now = ctx.clock.now();
        let age_ms = |at: Option<Mono>| at.map(|at| now.since_ms(at));
        let down = self.view().down(now);
        let probes = self.probes();
        let interval = ctx.cfg.times.file_check.as_millis();
        Health {
            version: crate::VERSION.into(),
            pid: std::process::id(),
            relist_age_ms: age_ms(self.view().last_relist()),
            manifests_age_ms: age_ms(self.sources.manifests_read()),
            manifests_interval_ms: u64::try_from(interval).unwrap_or(u64::MAX),
            down: down.map(|e| e.to_string()),
            network_down: self.view().network_problem(),
            pods: self.pods().configured().len(),
            probes: ProbesHealth {
                count: probes.probes.len(),
                ended: probes.ended(),
                late: probes.late,
                commands: probes.commands,
                connections: probes.connections,
            },
            apiserver: ctx.cluster.as_ref().map(|cluster| cluster.health(now)),
        }
    }
}

/// Figures, the Node object, probes.
impl Agent {
    /// What is counted now.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            gauges: self.pods().gauges(),
            totals: self.pods().totals(),
            running: self.view().counts(),
            slots_taken: self.pods().workers(|table| table.handles().count()),
            answered: self.ctx.cluster.as_ref().and_then(|c| c.answered()),
        }
    }

    /// What is counted of probes.
    pub(super) fn probes(&self) -> NodeFigures {
        self.ctx.probes.figures(|uid| self.name_of(uid))
    }

    /// UIDs of pods with a worker.
    pub(super) fn pods_with_workers(&self) -> Vec<PodUid> {
        self.pods().workers(|table| {
            let pods = table.handles().filter_map(|handle| table.identity(handle));
            pods.map(|pod| pod.uid.clone()).collect()
        })
    }

    /// What the Node object says that others know.
    pub(super) fn standing(&self) -> Standing {
        let ctx = &self.ctx;
        let cluster = ctx.cluster.as_ref();
        Standing {
            not_ready: self.view().ready_errors(ctx.clock.now()),
            records_wait: self.pods().records_wait(),
            is_member: cluster.is_some(),
            apiserver: cluster.map(|cluster| cluster.condition(ctx.clock.wall())),
        }
    }

    /// What the stored status says of a container that is probed.
    pub(super) fn shown_container(&self, uid: &PodUid, name: &str) -> ShownContainer {
        let look = |status: &PodStatus| ShownContainer::of(status, name);
        self.pods().with_status(uid, look).unwrap_or_default()
    }
}
