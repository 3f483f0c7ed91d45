//! What the agent shows the apiserver's side of itself ([`views`](super::views)), as long as one context holds it all.

use alloc::rc::Rc;

use serde_json::Value;
use smol::{LocalExecutor, channel::Sender};

use super::{
    cluster::{News, Surroundings, Tools},
    core::{ConfigOp, Event},
    ctx::{Ctx, Shared},
    node::{self, Standing as _},
    outcome, pods, records,
    tasks::{Spawner, Task},
    views::{Configured, Gathered, Intake, Later, LoopEnded, NodeView, PodsView, StaticPod},
};
use crate::{
    api::{
        Mono, Node, Pod, PodStatus, PodUid,
        received::{Delivered, ReceivedPod},
    },
    logic::{
        mirror::{FullName, Mirrors},
        mux::{Merged, Op, Source},
        node::{Applied, NodeEvent},
        status_writer::{Truth, Truths},
    },
};

/// Makes everything that speaks with the apiserver, if there is one.
pub(super) fn tasks(
    ctx: &Shared,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<Event>,
) -> Vec<Task> {
    let Some(cluster) = &ctx.cluster else {
        return Vec::new();
    };
    let intake = ApiIntake {
        ctx: Rc::clone(ctx),
        events: events.clone(),
    };
    let around = Surroundings {
        spawner: Spawner::new(executor),
        tools: ctx.cluster_tools(),
        recorder: Rc::clone(&ctx.recorder),
        runtime: Rc::clone(&ctx.runtime),
        store: ctx.store.clone(),
        outcome: outcome::recall,
        boot_id: ctx.node.identity.boot_id.clone(),
        pods: Rc::clone(ctx) as Rc<dyn PodsView>,
        node: Rc::new(OwnNode(Rc::clone(ctx))),
        intake: Rc::new(intake),
    };
    cluster.tasks(&ctx.cfg, around)
}

impl Ctx {
    /// Tools of those who speak with the apiserver.
    pub(super) fn cluster_tools(&self) -> Tools {
        Tools {
            clock: Rc::clone(&self.clock),
            complaints: Rc::clone(&self.complaints),
            disk: self.disk.clone(),
            volumes: self.volumes.clone(),
        }
    }

    /// Tells the apiserver's side of pods, if there is one.
    pub(super) fn tell_api(&self, news: News) {
        if let Some(cluster) = &self.cluster {
            cluster.writer.on(news);
        }
    }
}

/// How the agent's own state answers for the pods of the API.
struct Known<'a> {
    pods: &'a pods::Known<'a>,
    mirrors: &'a Mirrors,
}

impl Known<'_> {
    /// The uid under which the agent knows a pod of the API: that of the static pod, for a mirror (MIR-01). One that mirrors
    /// what the manifest said before stands for none: it is about to be replaced, and what another pod does may be against
    /// its own spec.
    fn own_uid<'b>(&'b self, uid: &'b PodUid) -> Option<&'b PodUid> {
        let Some(name) = self.mirrors.name_of(uid) else {
            return Some(uid);
        };
        let hash = &self.mirrors.get(name)?.hash;
        self.pods.find(|pod| {
            let id = pod.static_id.as_deref();
            id.is_some_and(|id| id.name == *name && id.hash == *hash)
        })
    }
}

impl Truths for Known<'_> {
    fn truth(&self, uid: &PodUid) -> Option<Truth<'_>> {
        self.pods.truth(self.own_uid(uid)?)
    }
}

impl PodsView for Ctx {
    fn configured(&self, uid: &PodUid) -> Option<Configured> {
        self.pods.with_config(uid, |pod| Configured {
            is_static: pod.is_static,
            has_ended: pod.api_phase_terminal,
        })
    }

    fn is_idle(&self, uid: &PodUid) -> bool {
        self.view.is_idle(uid)
    }

    fn is_unwanted(&self, uid: &PodUid) -> bool {
        self.is_nobodys(uid)
    }

    fn every_api_pod(&self, known: &dyn Fn(&PodUid) -> bool) -> bool {
        let all = self.pods.with_configs(|pods| {
            let mut of_api = pods.filter(|(_, pod)| !pod.is_static);
            of_api.all(|(uid, pod)| pod.api_phase_terminal || known(uid))
        });
        all && !self.pods.some_arrive()
    }

    fn with_truths(&self, mirrors: &Mirrors, look: &mut dyn FnMut(&dyn Truths)) {
        self.pods.with_known(|pods| look(&Known { pods, mirrors }));
    }

    fn each_static(&self, look: &mut dyn FnMut(StaticPod<'_>)) {
        self.pods.with_configs(|pods| {
            for (uid, pod) in pods {
                if let Some(id) = pod.static_id.as_deref() {
                    look(StaticPod {
                        uid,
                        name: &id.name,
                        hash: &id.hash,
                        ends: self.pods.is_to_end(uid),
                    });
                }
            }
        });
    }

    fn is_static_ending(&self, name: &FullName) -> bool {
        let FullName { name, namespace } = name;
        self.pods
            .workers(|table| table.is_pod_for_mirror_pod_terminating(name, namespace))
    }

    fn resync(&self, uid: &PodUid, now: Mono) {
        self.pods.resync(uid, now);
    }
}

/// The way of the API's pods to the loop.
struct ApiIntake {
    ctx: Shared,
    events: Sender<Event>,
}

impl ApiIntake {
    async fn tell(&self, event: Event) -> Result<(), LoopEnded> {
        self.events.send(event).await.map_err(|_| LoopEnded)
    }
}

impl Intake for ApiIntake {
    fn read(&self, pod: Box<ReceivedPod>) -> Merged {
        let now = self.ctx.clock.wall();
        let mut mux = self.ctx.mux.borrow_mut();
        mux.amend(Source::Api, vec![pod], &[], now)
    }

    fn gone(&self, uid: PodUid) -> Merged {
        let now = self.ctx.clock.wall();
        let mut mux = self.ctx.mux.borrow_mut();
        mux.amend(Source::Api, vec![], &[uid], now)
    }

    fn complete(&self, all: Vec<Delivered>) -> Merged {
        let now = self.ctx.clock.wall();
        self.ctx.mux.borrow_mut().merge(Source::Api, all, now)
    }

    fn take_in(&self, ops: Vec<Op>) -> Later<'_, Result<Vec<PodUid>, LoopEnded>> {
        Box::pin(async move {
            let taken = records::take_in(&self.ctx, Source::Api, ops, &self.events).await;
            taken.map_err(|_| LoopEnded)
        })
    }

    fn restore(&self, received: Box<ReceivedPod>, outcome: Option<PodStatus>) -> Option<Pod> {
        let ctx = &*self.ctx;
        let now = ctx.clock.wall();
        let merged = ctx
            .mux
            .borrow_mut()
            .restore(Source::Api, vec![received], now);
        let mut added = merged.ops.into_iter().filter_map(|op| match op {
            Op::Add(mut pods) => pods.pop(),
            Op::Remove(_) | Op::Update(_) | Op::Delete(_) | Op::Reconcile(_) => None,
        });
        let mut pod = added.next()?.pod;
        if let Some(outcome) = outcome {
            records::recall(ctx, Source::Api, &mut pod, outcome);
        }
        ctx.pods.arrives(&pod.metadata.uid);
        Some(pod)
    }

    fn tell_restored(&self, pods: Vec<Pod>) -> Later<'_, Result<(), LoopEnded>> {
        let told = vec![ConfigOp::Add(pods)];
        Box::pin(self.tell(Event::Config(Source::Api, told)))
    }

    fn keep_shown(&self, uid: PodUid, shown: Value) -> Later<'_, ()> {
        Box::pin(async move { records::keep_shown(&self.ctx, &uid, shown).await })
    }

    fn has_waiting_records(&self) -> bool {
        self.ctx.pods.records_wait() && self.ctx.cfg.dirs.manifests.is_none()
    }

    fn settle_records(&self) -> Later<'_, ()> {
        Box::pin(records::settle(&self.ctx))
    }

    fn sources_ready(&self) -> bool {
        self.ctx.sources_ready()
    }

    fn end_agent(&self) -> Later<'_, ()> {
        Box::pin(async {
            // It is gone only when the agent ends.
            let _ = self.tell(Event::Terminate).await;
        })
    }
}

/// The node, as the context knows it.
pub(super) struct OwnNode(pub(super) Shared);

struct GatheredHere {
    ctx: Shared,
    gathered: node::Gathered,
}

impl Gathered for GatheredHere {
    fn initial(&self) -> (Node, Vec<NodeEvent>) {
        let ctx = &self.ctx;
        ctx.node.initial(&self.gathered, ctx.clock.wall())
    }

    fn bring_up_to_date(&self, node: &mut Node) -> Applied {
        let (ctx, now) = (&self.ctx, self.ctx.clock.wall());
        ctx.node.bring_up_to_date(node, &self.gathered, now)
    }
}

impl NodeView for OwnNode {
    fn gather(&self) -> Later<'_, Box<dyn Gathered>> {
        Box::pin(async {
            let ctx = &self.0;
            let gathered = ctx.node.gather(&*ctx.runtime, &**ctx).await;
            let here: Box<dyn Gathered> = Box::new(GatheredHere {
                ctx: Rc::clone(ctx),
                gathered,
            });
            here
        })
    }

    fn is_ready(&self) -> bool {
        self.0.not_ready().is_empty()
    }

    fn known(&self) -> Option<Node> {
        self.0.node.object()
    }

    fn learn(&self, node: Node) {
        self.0.node.learn(node);
    }

    fn set_host_ips(&self, ips: Vec<core::net::IpAddr>) {
        self.0.node.set_host_ips(ips);
    }
}
