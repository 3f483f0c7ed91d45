//! What others ask of the agent to read it: a trait stands beside each asker, and here is where all are answered.

use alloc::rc::Rc;

use serde_json::Value;

use super::{
    backend::Questions,
    cluster::{self, KnownVolume},
    ctx::Ctx,
    metrics::{Counted, Counts, Found},
    node::Standing,
    probes::ProbedPods,
    recorder::{About, Severity},
};
use crate::{
    api::{
        ContainerId, Mono, Pod, PodStatus, PodUid, cri::PodRuntimeStatus, node::NodeCondition,
        order::Order as _,
    },
    logic::probe::NodeFigures,
    server::backend::{Health, ProbesHealth},
};

impl Standing for Ctx {
    fn not_ready(&self) -> Vec<String> {
        self.view.ready_errors(self.clock.now())
    }

    fn records_wait(&self) -> bool {
        self.pods.records_wait()
    }

    fn is_member(&self) -> bool {
        self.cluster.is_some()
    }

    fn apiserver(&self) -> Option<NodeCondition> {
        let cluster = self.cluster.as_ref()?;
        Some(cluster.condition(self.clock.wall()))
    }
}

impl ProbedPods for Ctx {
    fn with_status(&self, uid: &PodUid, look: &mut dyn FnMut(Option<&PodStatus>)) {
        if self
            .pods
            .with_status(uid, |status| look(Some(status)))
            .is_none()
        {
            look(None);
        }
    }

    fn spec(&self, uid: &PodUid) -> Option<Pod> {
        self.pod(uid).ok()
    }

    fn warn(&self, uid: &PodUid, field: &str, reason: &str, message: &str) {
        let Some((namespace, name)) = name_of(self, uid) else {
            return;
        };
        let about = About {
            uid,
            namespace: &namespace,
            name: &name,
            field_path: field,
        };
        self.event_about(about, Severity::Warning, reason, message);
    }
}

/// Namespace and name of a pod with a worker.
fn name_of(ctx: &Ctx, uid: &PodUid) -> Option<(Box<str>, Box<str>)> {
    ctx.pods.workers(|table| {
        let pod = table.identity(table.handle(uid)?)?;
        Some((pod.namespace.into(), pod.name.into()))
    })
}

impl Counted for Ctx {
    fn counts(&self) -> Counts {
        Counts {
            gauges: self.pods.gauges(),
            totals: self.pods.totals(),
            running: self.view.counts(),
            slots_taken: self.pods.workers(|table| table.handles().count()),
            answered: self.cluster.as_ref().and_then(|c| c.answered()),
        }
    }

    fn probes(&self) -> NodeFigures {
        self.probes.figures(|uid| name_of(self, uid))
    }

    fn pods_with_claims(&self) -> Vec<PodUid> {
        if self.cluster.is_none() {
            return Vec::new();
        }
        self.pods.workers(|table| {
            let pods = table.handles().filter_map(|handle| table.identity(handle));
            pods.map(|pod| pod.uid.clone()).collect()
        })
    }

    fn claims_of<'a>(&'a self, pod: &'a Pod) -> Found<'a, Vec<KnownVolume>> {
        Box::pin(async move {
            let objects = self.cluster.as_ref().map(|c| &c.objects);
            match cluster::objects_of(objects, pod) {
                Some(objects) => objects.known_volumes(pod).await,
                None => Vec::new(),
            }
        })
    }
}

impl Questions for Ctx {
    fn shown_pods(&self) -> Vec<PodUid> {
        let mut uids = self.pods.configured();
        self.pods.workers(|table| {
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

    fn is_configured(&self, uid: &PodUid) -> bool {
        self.pods.is_configured(uid)
    }

    fn is_named(&self, uid: &PodUid, namespace: &str, name: &str) -> Option<bool> {
        self.pods.workers(|table| {
            let identity = table.identity(table.handle(uid)?)?;
            Some(identity.namespace == namespace && identity.name == name)
        })
    }

    fn status(&self, uid: &PodUid) -> Option<PodStatus> {
        self.pods.status(uid)
    }

    fn runtime_status(&self, uid: &PodUid) -> PodRuntimeStatus {
        PodRuntimeStatus::clone(&self.view.status(uid))
    }

    fn runtime_statuses(&self) -> Vec<Rc<PodRuntimeStatus>> {
        self.view.statuses()
    }

    fn is_running(&self, id: &ContainerId) -> bool {
        self.view.is_running(id)
    }

    fn events(&self) -> Vec<Value> {
        let events = self.recorder.events();
        events.map(|event| event.object(&self.node.name)).collect()
    }

    fn config_maps(&self, namespace: Option<&str>) -> Vec<Value> {
        self.objects.borrow().config_maps_shown(namespace)
    }

    fn secrets(&self, namespace: Option<&str>) -> Vec<Value> {
        self.objects.borrow().secrets_shown(namespace)
    }

    fn dump(&self) -> String {
        self.ring.borrow().dump(self.clock.now(), self.clock.wall())
    }

    fn health(&self) -> Health {
        let now = self.clock.now();
        let age_ms = |at: Option<Mono>| at.map(|at| now.since_ms(at));
        let down = self.view.down(now);
        let probes = self.probes();
        let interval = self.cfg.times.file_check.as_millis();
        Health {
            version: crate::VERSION.into(),
            pid: std::process::id(),
            relist_age_ms: age_ms(self.view.last_relist()),
            manifests_age_ms: age_ms(self.manifests_read.get()),
            manifests_interval_ms: u64::try_from(interval).unwrap_or(u64::MAX),
            down: down.map(|e| e.to_string()),
            network_down: self.view.network_problem(),
            pods: self.pods.configured().len(),
            probes: ProbesHealth {
                count: probes.probes.len(),
                ended: probes.ended(),
                late: probes.late,
                commands: probes.commands,
                connections: probes.connections,
            },
            apiserver: self.cluster.as_ref().map(|cluster| cluster.health(now)),
        }
    }
}
