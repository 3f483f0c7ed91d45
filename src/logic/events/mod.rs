//! Kubernetes events on their way to the API: some become objects, some only a count, some are dropped. Rows EVT-01,
//! EVT-03.
//!
//! ```text
//! ring of the recorder ──Occurrence──▶ Correlator ──Post──▶ Sender ──▶ POST or PATCH
//!  (the only queue)                      │ similar ones    one at a time, at a rate, so many tries
//!                                        │ counted ones
//!                                        └ too many of one object: nothing
//! ```
//!
//! This module has no queue: events wait in the recorder's ring, which local commands show. Each entry there knows how
//! many of its repeats were handed over. [`EventPoster::poll`] takes the next entry with new repeats, all of them at once:
//! what piles up while the apiserver is out of reach becomes one request. Events that the ring drops meanwhile are
//! lost, the oldest first.
//!
//! Names and figures follow client-go `tools/record` (`events_cache.go`, `event.go`), with smaller caches: a node's own.

use alloc::{boxed::Box, string::ToString};

use serde_json::{Value, json};

use crate::api::{PodUid, WallTime};

mod correlator;
mod lru;
mod sender;

pub use correlator::{EventCorrelator, MAX_BUCKETS, MAX_SEEN, MAX_SIMILAR, SPAM_BURST};
pub use sender::{EventPostFailure, EventPoster, MAX_TRIES, RETRY};

/// Bytes of an object's name in the API.
const MAX_NAME_BYTES: usize = 253;
/// Bytes of the time in an event's name, with the dot.
const SUFFIX_BYTES: usize = 17;

/// Object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvolvedObject {
    /// `Pod` or `Node`.
    pub kind: &'static str,
    /// Namespace; empty for a node.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// UID; of a node its name.
    pub uid: PodUid,
    /// `spec.containers{name}`, or empty.
    pub field_path: Box<str>,
}

impl InvolvedObject {
    /// Namespace of its events: `default` for a node.
    #[must_use]
    pub fn event_namespace(&self) -> &str {
        match &*self.namespace {
            "" => "default",
            namespace => namespace,
        }
    }
}

/// Event that happened once or several times since its last [`EventPost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOccurrence {
    /// Object that the event is about.
    pub subject: InvolvedObject,
    /// Set for type `Warning`; else `Normal`.
    pub warning: bool,
    /// Reason.
    pub reason: Box<str>,
    /// Message, at most 1024 bytes.
    pub message: Box<str>,
    /// Annotations of the object, a JSON object; empty for none.
    pub annotations: Box<str>,
    /// Number of times, at least 1.
    pub times: u32,
    /// Time of the first, with nanoseconds: part of the object's name.
    pub first: WallTime,
    /// Time of the last.
    pub last: WallTime,
}

/// Request to the API that creates or changes an event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventPost {
    /// Namespace of the event.
    pub namespace: Box<str>,
    /// Name of the event.
    pub name: Box<str>,
    /// Complete object, for creation.
    pub object: Value,
    /// Merge patch for an object that should exist already. If it does not exist, `object` is created.
    pub patch: Option<Value>,
}

/// Name of an event: `<name>.<time in hexadecimal>`; a long name is cut.
fn event_name(subject: &str, first: WallTime) -> Box<str> {
    let head = &subject[..subject.floor_char_boundary(MAX_NAME_BYTES - SUFFIX_BYTES)];
    let head = head.trim_end_matches(['.', '-']);
    format!("{head}.{:x}", first.0).into()
}

/// The object of an event.
fn event_object(
    occurrence: &EventOccurrence,
    name: &str,
    message: &str,
    count: u32,
    first: WallTime,
    node: &str,
) -> Value {
    let subject = &occurrence.subject;
    let mut involved = json!({
        "apiVersion": "v1",
        "kind": subject.kind,
        "name": subject.name,
        "uid": subject.uid,
    });
    for (field, value) in [
        ("namespace", &subject.namespace),
        ("fieldPath", &subject.field_path),
    ] {
        if !value.is_empty() {
            involved[field] = json!(value);
        }
    }
    let mut metadata = json!({"name": name, "namespace": subject.event_namespace()});
    if let Ok(annotations) = serde_json::from_str::<Value>(&occurrence.annotations) {
        metadata["annotations"] = annotations;
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "involvedObject": involved,
        "type": if occurrence.warning { "Warning" } else { "Normal" },
        "reason": occurrence.reason,
        "message": message,
        "count": count,
        "firstTimestamp": first.to_string(),
        "lastTimestamp": occurrence.last.to_string(),
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

#[cfg(test)]
mod tests;
