//! What the apiserver's side is shown of the rest of the agent, and what it hands over: narrow views, so that neither side
//! knows the other. Who implements them is decided at assembly.

use core::pin::Pin;

use serde_json::Value;

use crate::{
    api::{
        Mono, Node, Pod, PodStatus, PodUid,
        received::{Delivered, ReceivedPod},
    },
    logic::{
        mirror::{FullName, Mirrors},
        mux::{Merged, Op},
        node::{Applied, NodeEvent},
        status_writer::Truths,
    },
};

/// What comes later.
pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What is known of a configured pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Configured {
    /// From a source other than the apiserver.
    pub(super) is_static: bool,
    /// Its object shows that it has ended.
    pub(super) has_ended: bool,
}

/// A static pod, as far as its mirror goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaticPod<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) name: &'a FullName,
    /// Its hash; empty if it has none.
    pub(super) hash: &'a str,
    /// Its end was asked for.
    pub(super) ends: bool,
}

/// The agent's pods.
pub(super) trait PodsView {
    /// What is known of a pod; `None`: it is not configured.
    fn configured(&self, uid: &PodUid) -> Option<Configured>;

    /// Whether nothing of the pod runs, as far as the runtime has said.
    fn is_idle(&self, uid: &PodUid) -> bool;

    /// Whether nobody wants the pod any more: not configured, without a worker, not on its way in.
    fn is_unwanted(&self, uid: &PodUid) -> bool;

    /// Whether all pods of the API that have not ended are `known`, and none is on its way in.
    fn every_api_pod(&self, known: &dyn Fn(&PodUid) -> bool) -> bool;

    /// Shows the agent's own statuses by the uids of the API, given the mirrors there.
    fn with_truths(&self, mirrors: &Mirrors, look: &mut dyn FnMut(&dyn Truths));

    /// Shows all static pods, in the order of their uids.
    fn each_static(&self, look: &mut dyn FnMut(StaticPod<'_>));

    /// Whether a static pod of that name is on its way out.
    fn is_static_ending(&self, name: &FullName) -> bool;

    /// Has the pod synced now.
    fn resync(&self, uid: &PodUid, now: Mono);
}

/// The loop is over, and with it the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopEnded;

/// Where pods of the API go: compared with what is known of all sources, recorded on disk, told to the loop.
pub(super) trait Intake {
    /// A pod was read.
    fn read(&self, pod: Box<ReceivedPod>) -> Merged;

    /// A pod is gone.
    fn gone(&self, uid: PodUid) -> Merged;

    /// These are all there are.
    fn complete(&self, all: Vec<Delivered>) -> Merged;

    /// Records what changed and tells the loop. Returns the pods that could not be recorded.
    fn take_in(&self, ops: Vec<Op>) -> Later<'_, Result<Vec<PodUid>, LoopEnded>>;

    /// A pod that is on disk, with the status it came to its end with. `None`: another has its name still.
    fn restore(&self, received: Box<ReceivedPod>, outcome: Option<PodStatus>) -> Option<Pod>;

    /// Tells the loop of pods that were restored.
    fn tell_restored(&self, pods: Vec<Pod>) -> Later<'_, Result<(), LoopEnded>>;

    /// Keeps what the API shows of a pod in its record, for the next agent.
    fn keep_shown(&self, uid: PodUid, shown: Value) -> Later<'_, ()>;

    /// Whether records wait for the disk, and nobody who reads manifests sees to them.
    fn has_waiting_records(&self) -> bool;

    /// Moves records that wait to the disk, as far as it can be written.
    fn settle_records(&self) -> Later<'_, ()>;

    /// Whether every configured source has reported and was handled.
    fn sources_ready(&self) -> bool;

    /// Ends the agent.
    fn end_agent(&self) -> Later<'_, ()>;
}

/// What the machine says of itself now.
pub(super) trait Gathered {
    /// The Node to create, and what there is to tell of its first conditions.
    fn initial(&self) -> (Node, Vec<NodeEvent>);

    /// Puts it into a Node as last seen in the API.
    fn bring_up_to_date(&self, node: &mut Node) -> Applied;
}

/// The node, as the agent knows it.
pub(super) trait NodeView {
    /// Reads what a Node says: a few small files, and the list of images.
    fn gather(&self) -> Later<'_, Box<dyn Gathered>>;

    /// Whether the node is ready. Cheap.
    fn is_ready(&self) -> bool;

    /// The Node without its images, as the apiserver last had it; `None` until it was read.
    fn known(&self) -> Option<Node>;

    /// The apiserver has it so.
    fn learn(&self, node: Node);

    /// The machine's own word on its addresses, also while nobody hears it.
    fn set_host_ips(&self, ips: Vec<core::net::IpAddr>);
}
