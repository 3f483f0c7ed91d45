//! What the agent shows the apiserver's side of itself ([`views`](super::views)), as long as one context holds it all.

use alloc::rc::Rc;

use serde_json::Value;
use smol::{LocalExecutor, channel::Sender};

use super::{
    asker::{Asker, Question},
    cluster::{News, Surroundings, Tools},
    complaints::Complaints,
    core::{Agent, Event},
    ctx::{Ctx, Shared},
    node, outcome,
    pod_store::PodStore,
    pods, sources,
    tasks::{Spawner, Task},
    views::{
        AskPods, Change, Configured, Gathered, Intake, Later, Look, LoopEnded, NodeView, PodsView,
        StaticPod, Taken,
    },
};
use crate::{
    api::{Node, PodUid},
    logic::{
        mirror::{FullName, Mirrors},
        node::{Applied, NodeEvent},
        status_writer::{Truth, Truths},
    },
    sys::lane::Lane,
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
    let api = Rc::new(ApiEvents {
        events: events.clone(),
        asker: Asker::new(events.clone()),
        store: ctx.store.clone(),
        disk: ctx.disk.clone(),
        complaints: Rc::clone(&ctx.complaints),
    });
    let around = Surroundings {
        spawner: Spawner::new(executor),
        tools: ctx.cluster_tools(),
        recorder: Rc::clone(&ctx.recorder),
        runtime: Rc::clone(&ctx.runtime),
        store: ctx.store.clone(),
        outcome: outcome::recall,
        boot_id: ctx.node.identity.boot_id.clone(),
        pods: Rc::clone(&api) as _,
        node: Rc::new(OwnNode {
            ctx: Rc::clone(ctx),
            asker: Asker::new(events.clone()),
        }),
        intake: api,
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
        self.pods
            .find(|pod| pod.is_static && pod.id.name == *name && pod.id.hash == *hash)
    }
}

impl Truths for Known<'_> {
    fn truth(&self, uid: &PodUid) -> Option<Truth<'_>> {
        self.pods.truth(self.own_uid(uid)?)
    }
}

impl PodsView for Agent {
    fn configured(&self, uid: &PodUid) -> Option<Configured> {
        self.pods().with_config(uid, |pod| Configured {
            is_static: pod.is_static,
            has_ended: pod.api_phase_terminal,
        })
    }

    fn is_idle(&self, uid: &PodUid) -> bool {
        self.view().is_idle(uid)
    }

    fn is_unwanted(&self, uid: &PodUid) -> bool {
        self.ctx.is_nobodys(uid)
    }

    fn every_api_pod(&self, known: &dyn Fn(&PodUid) -> bool) -> bool {
        let all = self.pods().with_configs(|pods| {
            let mut of_api = pods.filter(|(_, pod)| !pod.is_static);
            of_api.all(|(uid, pod)| pod.api_phase_terminal || known(uid))
        });
        all && !self.pods().some_arrive()
    }

    fn with_truths(&self, mirrors: &Mirrors, look: &mut dyn FnMut(&dyn Truths)) {
        self.pods()
            .with_known(|pods| look(&Known { pods, mirrors }));
    }

    fn each_static(&self, look: &mut dyn FnMut(StaticPod<'_>)) {
        self.pods().with_configs(|pods| {
            for (uid, pod) in pods.filter(|(_, pod)| pod.is_static) {
                look(StaticPod {
                    uid,
                    name: &pod.id.name,
                    hash: &pod.id.hash,
                    ends: self.pods().is_to_end(uid),
                });
            }
        });
    }

    fn is_static_ending(&self, name: &FullName) -> bool {
        let FullName { name, namespace } = name;
        self.pods()
            .workers(|table| table.is_pod_for_mirror_pod_terminating(name, namespace))
    }

    fn sources_ready(&self) -> bool {
        self.sources.are_ready()
    }
}

/// The way of the apiserver's side to the loop, and to what the next agent must know.
struct ApiEvents {
    events: Sender<Event>,
    asker: Asker,
    store: PodStore,
    disk: Lane,
    complaints: Rc<Complaints>,
}

impl AskPods for ApiEvents {
    fn show(&self, look: Look) -> Later<'_, ()> {
        let question: Question = Box::new(move |agent| look(agent));
        // It is gone only when the agent ends.
        Box::pin(async { _ = self.events.send(Event::Ask(question)).await })
    }

    fn resync(&self, uids: Vec<PodUid>) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Resync(uids)).await })
    }
}

impl Intake for ApiEvents {
    fn deliver(&self, change: Change) -> Later<'_, Result<Taken, LoopEnded>> {
        Box::pin(sources::hand_over(
            sources::SourceNews::Api(change),
            &self.events,
        ))
    }

    fn keep_end(&self, uid: PodUid) -> Later<'_, ()> {
        Box::pin(async move {
            let of = uid.clone();
            let ended = self.asker.ask(move |agent| agent.pods().status(&of));
            let Some(status) = ended.await.filter(|status| status.phase.is_terminal()) else {
                return;
            };
            let (store, of) = (self.store.clone(), uid.clone());
            let kept = self.disk.run(move || outcome::keep(&store, &of, status));
            if let Err(e) = kept.await {
                let complaint = format!("uid={uid} cannot keep the outcome: {e}");
                self.complaints.complain(&complaint);
            }
        })
    }

    fn keep_shown(&self, uid: PodUid, shown: Value) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Shown(uid, shown)).await })
    }

    fn end_agent(&self) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Terminate).await })
    }
}

/// The node, as the context knows it.
pub(super) struct OwnNode {
    pub(super) ctx: Shared,
    pub(super) asker: Asker,
}

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
            let ctx = &self.ctx;
            let standing = self.asker.ask(Agent::standing).await;
            let gathered = ctx.node.gather(&*ctx.runtime, &standing).await;
            let here: Box<dyn Gathered> = Box::new(GatheredHere {
                ctx: Rc::clone(ctx),
                gathered,
            });
            here
        })
    }

    fn is_ready(&self) -> Later<'_, bool> {
        let is_ready = |agent: &Agent| agent.standing().not_ready.is_empty();
        Box::pin(self.asker.ask(is_ready))
    }

    fn known(&self) -> Option<Node> {
        self.ctx.node.object()
    }

    fn learn(&self, node: Node) {
        self.ctx.node.learn(node);
    }

    fn set_host_ips(&self, ips: Vec<core::net::IpAddr>) {
        self.ctx.node.set_host_ips(ips);
    }
}
