//! Answers of the agent to the apiserver's side ([`views`](super::views)), about its pods and about the node.

use alloc::{collections::BTreeSet, rc::Rc};

use smol::{LocalExecutor, channel::Sender};

use super::{
    asker::AgentHandle,
    clock::Clock,
    cluster::ClusterDeps,
    core::{Agent, AgentEvent},
    node::{self, CurrentNodeFacts},
    outcome,
    parts::AgentParts,
    pods,
    tasks::{AgentTask, TaskSpawner},
    times::DateCorrector,
    views::{ConfiguredPod, StaticPod},
};
use crate::{
    api::{Node, PodUid},
    logic::{
        mirror::{MirrorPods, PodFullName},
        node::{AppliedStatus, NodeEvent},
        status_writer::{LocalPodState, LocalPodStates},
    },
    runtime::RuntimeService,
};

/// Makes everything that speaks with the apiserver, if there is one.
pub(super) fn cluster_tasks(
    parts: &AgentParts,
    executor: &Rc<LocalExecutor<'static>>,
    events: &Sender<AgentEvent>,
) -> Vec<AgentTask> {
    let AgentParts {
        tools,
        machine,
        owners,
        ..
    } = parts;
    let Some(cluster) = &owners.cluster else {
        return Vec::new();
    };
    let asker = AgentHandle::new(events.clone());
    let around = ClusterDeps {
        spawner: TaskSpawner::new(executor),
        tools: parts.cluster_tools(),
        recorder: Rc::clone(&tools.recorder),
        runtime: Rc::clone(&machine.runtime),
        store: machine.store.clone(),
        outcome: outcome::recall_outcome,
        boot_id: owners.node.identity.boot_id.clone(),
        node: OwnNode::new(parts, asker.clone()),
        asker,
    };
    cluster.cluster_tasks(&parts.cfg, around)
}

/// The agent's own state, as the truth for statuses of the pods of the API.
struct KnownPodStatuses<'a> {
    pods: &'a pods::PodRegistryView<'a>,
    mirrors: &'a MirrorPods,
}

impl KnownPodStatuses<'_> {
    /// The uid under which the agent knows a pod of the API: that of the static pod, for a mirror (MIR-01). One that mirrors
    /// what the manifest said before stands for none: it is about to be replaced, and what another pod does may be against
    /// its own spec.
    fn own_uid<'b>(&'b self, uid: &'b PodUid) -> Option<&'b PodUid> {
        let Some(name) = self.mirrors.static_pod_name(uid) else {
            return Some(uid);
        };
        let hash = &self.mirrors.find_mirror(name)?.hash;
        self.pods
            .find_configured(|pod| pod.is_static && pod.id.name == *name && pod.id.hash == *hash)
    }
}

impl LocalPodStates for KnownPodStatuses<'_> {
    fn local_state(&self, uid: &PodUid) -> Option<LocalPodState<'_>> {
        self.pods.pod_truth(self.own_uid(uid)?)
    }
}

/// Questions of the apiserver's side about pods.
impl Agent {
    /// Configuration of a pod; `None` if it is not configured.
    pub(super) fn configured_pod(&self, uid: &PodUid) -> Option<ConfiguredPod> {
        self.pods().config(uid).map(|pod| ConfiguredPod {
            is_static: pod.is_static,
            has_ended: pod.api_phase_terminal,
        })
    }

    /// Returns true if all pods of the API that have not ended are `known`, and none is on its way in.
    pub(super) fn knows_all_api_pods(&self, known: &BTreeSet<PodUid>) -> bool {
        let mut of_api = self.pods().configs().filter(|(_, pod)| !pod.is_static);
        // What this agent has seen end is not configured anew for it.
        let status = |uid| self.pods().stored_status(uid);
        let has_ended = |uid| status(uid).is_some_and(|s| s.phase.is_terminal());
        let is_known = |uid| known.contains(uid) || has_ended(uid);
        let all = of_api.all(|(uid, pod)| pod.api_phase_terminal || is_known(uid));
        all && !self.pods().has_arriving_pods()
    }

    /// Shows the agent's own statuses by the uids of the API, given the mirrors there.
    pub(super) fn with_local_statuses<T>(
        &self,
        mirrors: &MirrorPods,
        look: impl FnOnce(&dyn LocalPodStates) -> T,
    ) -> T {
        let pods = &self.pods().writer_view();
        look(&KnownPodStatuses { pods, mirrors })
    }

    /// All static pods, in the order of their uids.
    pub(super) fn static_pods(&self) -> impl Iterator<Item = StaticPod<'_>> {
        let all = self.pods().configs().filter(|(_, pod)| pod.is_static);
        all.map(|(uid, pod)| StaticPod {
            uid,
            name: &pod.id.name,
            hash: &pod.id.hash,
            ends: self.pods().is_termination_requested(uid),
        })
    }

    /// Returns true if a static pod of that name is on its way out.
    pub(super) fn is_static_ending(&self, name: &PodFullName) -> bool {
        let PodFullName { name, namespace } = name;
        let table = self.pods().worker_table();
        table.is_pod_for_mirror_pod_terminating(name, namespace)
    }
}

/// The node, with what its Node object is made of.
pub(super) struct OwnNode {
    /// The node.
    pub(super) node: Rc<node::LocalNode>,
    clock: Rc<dyn Clock>,
    times: Rc<DateCorrector>,
    runtime: Rc<dyn RuntimeService>,
    asker: AgentHandle,
}

impl OwnNode {
    fn new(parts: &AgentParts, asker: AgentHandle) -> Self {
        Self {
            node: Rc::clone(&parts.owners.node),
            clock: Rc::clone(&parts.tools.clock),
            times: Rc::clone(&parts.tools.times),
            runtime: Rc::clone(&parts.machine.runtime),
            asker,
        }
    }

    /// Reads what a Node says: a few small files, and the list of images.
    pub(super) async fn gather_node_facts(&self) -> CurrentNodeFacts {
        let standing = self.asker.ask_agent(Agent::node_standing).await;
        let now = self.clock.now();
        self.node.gather_facts(&*self.runtime, &standing, now).await
    }

    /// Returns true if the node is ready. Cheap.
    pub(super) async fn is_ready(&self) -> bool {
        let is_ready = |agent: &Agent| agent.node_standing().not_ready.is_empty();
        self.asker.ask_agent(is_ready).await
    }

    /// The Node to create, and what there is to tell of its first conditions.
    pub(super) fn make_initial_node(&self, gathered: &CurrentNodeFacts) -> (Node, Vec<NodeEvent>) {
        self.node.initial_node(gathered, self.clock.wall_time())
    }

    /// Puts what was gathered into a Node as last seen in the API.
    pub(super) fn update_node(
        &self,
        node: &mut Node,
        gathered: &CurrentNodeFacts,
    ) -> AppliedStatus {
        let now = self.clock.wall_time();
        self.node
            .apply_current_facts(node, gathered, &self.times, now)
    }
}
