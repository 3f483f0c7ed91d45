//! Object metadata.

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{PodUid, WallTime};

/// `metadata` of an object, limited to what the agent reads or writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of meta/v1 ObjectMeta"
)]
pub struct ObjectMeta {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "is_empty_uid")]
    pub uid: PodUid,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<WallTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<WallTime>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Owner of an object, which goes when its owners are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of meta/v1 OwnerReference"
)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference {
    /// To a Node, which alone node identities may name (AUTHZ-11).
    #[must_use]
    pub fn to_node(name: &str, uid: &str) -> Self {
        Self {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.into(),
            uid: uid.into(),
            controller: None,
            block_owner_deletion: None,
        }
    }
}

fn is_empty_uid(uid: &PodUid) -> bool {
    uid.is_empty()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &i64) -> bool {
    *n == 0
}
