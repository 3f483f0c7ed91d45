//! Event.

use serde::{Deserialize, Serialize};

use super::{ObjectMeta, PodUid, WallTime};

/// core/v1 Event, as this agent's local commands show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of core/v1 Event"
)]
pub struct Event {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    pub involved_object: ObjectReference,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub severity: String,
    pub reason: String,
    pub message: String,
    pub count: u32,
    pub first_timestamp: Option<WallTime>,
    pub last_timestamp: Option<WallTime>,
    pub source: EventSource,
}

/// core/v1 ObjectReference: what an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of core/v1 ObjectReference"
)]
pub struct ObjectReference {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    pub field_path: String,
}

/// core/v1 EventSource: who tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of core/v1 EventSource"
)]
pub struct EventSource {
    pub component: String,
    pub host: String,
}
