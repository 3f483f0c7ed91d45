//! Views of the agent's pods for the apiserver's side, and the changes that it hands to the loop.

use core::pin::Pin;

use serde::{Deserialize, Serialize};

use super::outcome::EarlierOutcome;
use crate::{
    api::{
        PodUid,
        received::{ReceivedPod, SnapshotEntry},
    },
    logic::{mirror::PodFullName, resize::PodAllocation, status_writer::WriteAnswer},
};

/// A boxed future of the loop's thread.
pub(super) type LoopFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Facts of a configured pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfiguredPod {
    /// Set if the pod is from a source other than the apiserver.
    pub(super) is_static: bool,
    /// Set if the pod's object shows a terminal phase.
    pub(super) has_ended: bool,
}

/// A static pod, as far as its mirror goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct StaticPod<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) name: &'a PodFullName,
    /// Hash of the pod; empty if it has none.
    pub(super) hash: &'a str,
    /// Set if the pod's end was asked for.
    pub(super) ends: bool,
}

/// The loop is over, and with it the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopEnded;

/// Pods that were handed to the agent and not taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryResult {
    /// Pods that the source named as unchanged and that are not known: they are to be read anew.
    pub(super) unknown: Vec<PodUid>,
    /// Pods that were left out because they could not be recorded.
    pub(super) unrecorded: Vec<PodUid>,
}

/// News of the API's pods. They are compared with the known pods of all sources, recorded on disk, and acted upon.
pub(super) enum ApiPodChange {
    /// A pod was read.
    Read(Box<ReceivedPod>),
    /// A pod is gone.
    Gone(PodUid),
    /// All pods that there are.
    All(Vec<SnapshotEntry>),
    /// A pod is on disk, with its outcome of a boot ago. If another pod still has its name, it is left out and counts
    /// as unrecorded.
    OnDisk(
        Box<ReceivedPod>,
        Option<Box<EarlierOutcome>>,
        Option<Box<PodAllocation>>,
    ),
    /// All pods on disk were told.
    AllOnDisk,
}

/// A changed answer of the apiserver, as a dump of the loop's past has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ApiAnswer {
    /// The apiserver answers (true), or does not any more.
    Answers(bool),
    /// The apiserver lists the pods of this node (true), or does not any more.
    Lists(bool),
    /// The word on a write of a pod has changed since the write before, or the first word is not done. `pod` is the uid
    /// at the apiserver.
    Write {
        pod: PodUid,
        what: PodWriteKind,
        word: WriteAnswer,
    },
}

/// Kind of a write of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum PodWriteKind {
    Status,
    Deletion,
}
