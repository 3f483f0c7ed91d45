//! What the agent shows the apiserver's side of itself ([`views`](super::views)), of the loop and of the node.

use alloc::rc::Rc;

use serde_json::Value;
use smol::{LocalExecutor, channel::Sender};

use super::{
    asker::Asker,
    clock::Clock,
    cluster::Surroundings,
    complaints::Complaints,
    core::{Agent, Event, Question, SourceNews},
    node,
    outcome::{self, Outcome},
    parts::Parts,
    pod_store::PodStore,
    pods,
    tasks::{Spawner, Task},
    times::Times,
    views::{
        ApiAnswer, AskPods, Change, Configured, Gathered, Intake, Later, Look, LoopEnded, NodeView,
        PodsView, StaticPod, Taken,
    },
};
use crate::{
    api::{Node, PodUid},
    logic::{
        mirror::{FullName, Mirrors},
        node::{Applied, NodeEvent},
        status_writer::{Truth, Truths},
    },
    runtime::RuntimeService,
    sys::lane::Lane,
};

/// Makes everything that speaks with the apiserver, if there is one.
pub(super) fn tasks(
    parts: &Parts,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<Event>,
) -> Vec<Task> {
    let Parts {
        tools,
        machine,
        owners,
        ..
    } = parts;
    let Some(cluster) = &owners.cluster else {
        return Vec::new();
    };
    let api = Rc::new(ApiEvents {
        events: events.clone(),
        asker: Asker::new(events.clone()),
        store: machine.store.clone(),
        disk: machine.disk.clone(),
        complaints: Rc::clone(&tools.complaints),
    });
    let around = Surroundings {
        spawner: Spawner::new(executor),
        tools: parts.cluster_tools(),
        recorder: Rc::clone(&tools.recorder),
        runtime: Rc::clone(&machine.runtime),
        store: machine.store.clone(),
        outcome: outcome::recall,
        boot_id: owners.node.identity.boot_id.clone(),
        pods: Rc::clone(&api) as _,
        node: Rc::new(OwnNode::new(parts, Asker::new(events.clone()))),
        intake: api,
    };
    cluster.tasks(&parts.cfg, around)
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
        self.pods().config(uid).map(|pod| Configured {
            is_static: pod.is_static,
            has_ended: pod.api_phase_terminal,
        })
    }

    fn is_idle(&self, uid: &PodUid) -> bool {
        self.runs_nothing_of(uid)
    }

    fn is_unwanted(&self, uid: &PodUid) -> bool {
        self.is_orphaned(uid)
    }

    fn every_api_pod(&self, known: &dyn Fn(&PodUid) -> bool) -> bool {
        let mut of_api = self.pods().configs().filter(|(_, pod)| !pod.is_static);
        // What this agent has seen end is not configured anew for it.
        let status = |uid| self.pods().status(uid);
        let has_ended = |uid| status(uid).is_some_and(|s| s.phase.is_terminal());
        let all = of_api.all(|(uid, pod)| pod.api_phase_terminal || has_ended(uid) || known(uid));
        all && !self.pods().some_arrive()
    }

    fn with_truths(&self, mirrors: &Mirrors, look: &mut dyn FnMut(&dyn Truths)) {
        let pods = &self.pods().known();
        look(&Known { pods, mirrors });
    }

    fn each_static(&self, look: &mut dyn FnMut(StaticPod<'_>)) {
        for (uid, pod) in self.pods().configs().filter(|(_, pod)| pod.is_static) {
            look(StaticPod {
                uid,
                name: &pod.id.name,
                hash: &pod.id.hash,
                ends: self.pods().is_to_end(uid),
            });
        }
    }

    fn is_static_ending(&self, name: &FullName) -> bool {
        let FullName { name, namespace } = name;
        let table = self.pods().table();
        table.is_pod_for_mirror_pod_terminating(name, namespace)
    }

    fn sources_ready(&self) -> bool {
        Self::sources_ready(self)
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
        Box::pin(self.asker.deliver(SourceNews::Api(change)))
    }

    fn keep_end(&self, uid: PodUid) -> Later<'_, ()> {
        Box::pin(async move {
            let of = uid.clone();
            let ended = self.asker.ask(move |agent| {
                // One that comes back, from a backup of the API, has not ended for good.
                let pods = agent.pods();
                let stays = pods.is_configured(&of) && !pods.comes_back(&of);
                let status = pods.status(&of).filter(|_| stays);
                status.filter(|status| status.phase.is_terminal()).cloned()
            });
            let Some(status) = ended.await else {
                return;
            };
            let (store, of) = (self.store.clone(), uid.clone());
            let kept = self
                .disk
                .run(move || outcome::keep(&store, &of, Outcome::ended(status)));
            match kept.await {
                Ok(false) => {}
                Ok(true) => _ = self.events.send(Event::Settled(true)).await,
                Err(e) => {
                    let complaint = format!("uid={uid} cannot keep the outcome: {e}");
                    self.complaints.complain(&complaint);
                }
            }
        })
    }

    fn keep_shown(&self, uid: PodUid, shown: Value) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Shown(uid, shown)).await })
    }

    fn heard(&self, answer: ApiAnswer) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Api(answer)).await })
    }

    fn node_read(&self, came: bool) -> Later<'_, ()> {
        Box::pin(async move { _ = self.events.send(Event::NodeRead(came)).await })
    }

    fn end_agent(&self) -> Later<'_, ()> {
        Box::pin(async { _ = self.events.send(Event::Terminate).await })
    }
}

/// The node.
pub(super) struct OwnNode {
    node: Rc<node::Node>,
    clock: Rc<dyn Clock>,
    times: Rc<Times>,
    runtime: Rc<dyn RuntimeService>,
    asker: Asker,
}

impl OwnNode {
    /// What there is of it.
    pub(super) fn new(parts: &Parts, asker: Asker) -> Self {
        Self {
            node: Rc::clone(&parts.owners.node),
            clock: Rc::clone(&parts.tools.clock),
            times: Rc::clone(&parts.tools.times),
            runtime: Rc::clone(&parts.machine.runtime),
            asker,
        }
    }
}

struct GatheredHere {
    node: Rc<node::Node>,
    clock: Rc<dyn Clock>,
    times: Rc<Times>,
    gathered: node::Gathered,
}

impl Gathered for GatheredHere {
    fn initial(&self) -> (Node, Vec<NodeEvent>) {
        self.node.initial(&self.gathered, self.clock.wall())
    }

    fn bring_up_to_date(&self, node: &mut Node) -> Applied {
        let now = self.clock.wall();
        let (node_here, gathered) = (&self.node, &self.gathered);
        node_here.bring_up_to_date(node, gathered, &self.times, now)
    }
}

impl NodeView for OwnNode {
    fn gather(&self) -> Later<'_, Box<dyn Gathered>> {
        Box::pin(async {
            let standing = self.asker.ask(Agent::standing).await;
            let now = self.clock.now();
            let gathered = self.node.gather(&*self.runtime, &standing, now).await;
            let here: Box<dyn Gathered> = Box::new(GatheredHere {
                node: Rc::clone(&self.node),
                clock: Rc::clone(&self.clock),
                times: Rc::clone(&self.times),
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
        self.node.object()
    }

    fn learn(&self, node: Node) {
        self.node.learn(node);
    }

    fn set_host_ips(&self, ips: Vec<core::net::IpAddr>) {
        self.node.set_host_ips(ips);
    }
}
