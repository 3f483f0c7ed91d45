//! coordination.k8s.io/v1 Lease: the sign of life of a node.
#![expect(
    missing_docs,
    reason = "field names and meanings are those of coordination.k8s.io/v1"
)]

use serde::{Deserialize, Serialize};

use super::{
    MicroTime,
    meta::OwnerReference,
    pod::{is_default, object},
};

object!(
    /// A lease, limited to what the agent reads or writes.
    Lease { metadata: LeaseMeta, spec: LeaseSpec }
);
object!(LeaseMeta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    owner_references: Vec<OwnerReference>,
});
object!(LeaseSpec {
    holder_identity: String,
    /// Seconds.
    lease_duration_seconds: i64,
    renew_time: Option<MicroTime>,
});
