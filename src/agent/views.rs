//! What the apiserver's side is told of the agent's pods, and what it hands to the loop.

use core::pin::Pin;

use serde::{Deserialize, Serialize};

use super::outcome::Recalled;
use crate::{
    api::{
        PodUid,
        received::{Delivered, ReceivedPod},
    },
    logic::{mirror::FullName, status_writer::Word},
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

/// What the apiserver answers, as a dump of the loop's past has it. Only changes are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ApiAnswer {
    /// It answers, or does not any more.
    Answers(bool),
    /// It lists the pods of this node, or does not any more.
    Lists(bool),
    /// The word on a write of a pod, its uid there, is another than on the one before; on the first one that is not done.
    Write {
        pod: PodUid,
        what: PodWrite,
        word: Word,
    },
}

/// What is written of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum PodWrite {
    Status,
    Deletion,
}
