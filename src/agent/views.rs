//! What the apiserver's side is shown of the rest of the agent, and what it hands over: narrow views, so that neither side
//! knows the other. Who implements them is decided at assembly.

use core::pin::Pin;

use serde_json::Value;

use super::outcome::Recalled;
use crate::{
    api::{
        Node, PodUid,
        received::{Delivered, ReceivedPod},
    },
    logic::{
        mirror::{FullName, Mirrors},
        node::{Applied, NodeEvent},
        status_writer::{Truths, Word},
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

/// The agent's pods, in one turn of its loop.
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

    /// Whether every configured source has reported and was handled.
    fn sources_ready(&self) -> bool;
}

/// A look at the agent's pods.
pub(super) type Look = Box<dyn FnOnce(&dyn PodsView)>;

/// Asks the loop for looks at pods. Nothing comes any more once that has ended.
pub(super) trait AskPods {
    /// Has the loop call `look`.
    fn show(&self, look: Look) -> Later<'_, ()>;

    /// Has the loop sync pods now.
    fn resync(&self, uids: Vec<PodUid>) -> Later<'_, ()>;
}

impl dyn AskPods {
    /// What `look` finds.
    pub(super) async fn look<T: 'static>(
        &self,
        look: impl FnOnce(&dyn PodsView) -> T + 'static,
    ) -> T {
        let (found, answer) = smol::channel::bounded(1);
        let look = move |pods: &dyn PodsView| _ = found.try_send(look(pods));
        self.show(Box::new(look)).await;
        match answer.recv().await {
            Ok(found) => found,
            Err(_) => core::future::pending().await,
        }
    }
}

/// The loop is over, and with it the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopEnded;

/// What became of pods that were handed to the agent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Named as unchanged, and nobody knows them: they are to be read anew.
    pub(super) unknown: Vec<PodUid>,
    /// Left out, for they could not be recorded.
    pub(super) unrecorded: Vec<PodUid>,
}

/// News of the API's pods. They are compared with what is known of all sources, recorded on disk, and acted upon.
pub(super) enum Change {
    /// A pod was read.
    Read(Box<ReceivedPod>),
    /// A pod is gone.
    Gone(PodUid),
    /// These are all there are.
    All(Vec<Delivered>),
    /// A pod is on disk, with what came of it a boot ago. Another may have its name still: then it is left out,
    /// which counts as unrecorded.
    OnDisk(Box<ReceivedPod>, Option<Box<Recalled>>),
    /// All that are on disk were told.
    AllOnDisk,
}

/// What the apiserver answers, as far as the loop keeps it in its past. Only changes are told.
pub(super) enum ApiAnswer {
    /// It answers, or does not any more.
    Answers(bool),
    /// It lists the pods of this node, or does not any more.
    Lists(bool),
    /// The word on a write of that pod (its uid there) is another.
    Write(PodUid, PodWrite, Word),
}

/// What is written of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum PodWrite {
    Status,
    Deletion,
}

/// Where news of the API's pods goes.
pub(super) trait Intake {
    /// Hands it to the loop; comes back when it is recorded, and acted upon.
    fn deliver(&self, change: Change) -> Later<'_, Result<Taken, LoopEnded>>;

    /// Keeps how a pod of the API ended, for the next agent; comes back when it lies on disk. It is told only then: a list
    /// that is older than the telling, or no list at all, would have the pod run again.
    fn keep_end(&self, uid: PodUid) -> Later<'_, ()>;

    /// Keeps what the API shows of a pod in its record, for the next agent.
    fn keep_shown(&self, uid: PodUid, shown: Value) -> Later<'_, ()>;

    /// Has the loop take down what the apiserver answers.
    fn heard(&self, answer: ApiAnswer) -> Later<'_, ()>;

    /// The Node was read, as the loop has wanted, or no answer came.
    fn node_read(&self, came: bool) -> Later<'_, ()>;

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
    fn is_ready(&self) -> Later<'_, bool>;

    /// The Node without its images, as the apiserver last had it; `None` until it was read.
    fn known(&self) -> Option<Node>;

    /// The apiserver has it so.
    fn learn(&self, node: Node);

    /// The machine's own word on its addresses, also while nobody hears it.
    fn set_host_ips(&self, ips: Vec<core::net::IpAddr>);
}
