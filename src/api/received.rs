//! A pod on its way from a source to the pod table.

use serde_json::Value;

use super::{Pod, PodUid};

/// A pod that a source has read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedPod {
    /// Decoded and defaulted, with its final identity (uid, name, namespace, node).
    pub pod: Pod,
    /// The whole object with the same identity but without defaults: what the pod record keeps and digests are made of.
    pub raw: Value,
    /// Where it was read: the manifest's path, or empty for the apiserver.
    pub origin: Box<str>,
}

/// One entry of a source's snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivered {
    /// The pod with this uid is present and unchanged since the source last delivered it.
    Known(PodUid),
    /// The pod as it is now.
    Read(Box<ReceivedPod>),
}

impl Delivered {}
