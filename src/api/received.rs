//! A pod on its way from a source to the pod table.

use serde_json::Value;

use super::strict::WrongValue;
use super::{Pod, PodUid};

/// A pod that a source has read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedPod {
    /// Decoded and defaulted, with its final identity (uid, name, namespace, node).
    pub pod: Pod,
    /// The whole object with the same identity but without defaults: what the pod record keeps and digests are made of.
    pub raw: Value,
    /// Path of the manifest; empty for the apiserver.
    pub origin: Box<str>,
}

/// Reason why an object is refused; its author can mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidObject {
    /// A value that cannot be read, or that identifies no object of this node.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// Values that the API would refuse: the object's kind and name, and every wrong value.
    #[error("{0} {1:?} is invalid: {list}", list = joined(.2))]
    Values(&'static str, String, Vec<WrongValue>),
}

fn joined(values: &[WrongValue]) -> String {
    let shown: Vec<String> = values.iter().map(WrongValue::to_string).collect();
    shown.join("; ")
}

/// An entry of a source's snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotEntry {
    /// The pod with this uid is present and unchanged since the source last delivered it.
    Known(PodUid),
    /// The pod as it is now.
    Read(Box<ReceivedPod>),
}

impl SnapshotEntry {}
