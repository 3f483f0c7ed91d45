//! The seam: requests of this node to an apiserver. The real client and the simulation's stand behind it.
//!
//! Calls block and are made on lanes (see [`super::lanes`]). Their results have been received whole; the bodies that
//! they send are JSON that the caller has made. Objects come without `null` fields and without
//! `metadata.managedFields`.

use alloc::sync::Arc;

use serde_json::Value;

use super::cancel::WatchCancel;
use super::error::KubeError;
use super::watch::{WatchEnd, WatchEvent, WatchOptions};
use crate::api::{ObjectMeta, PodUid};

/// Most pods of one node in one list. A node has a few hundred; those that have run to their end are not among them.
pub const MAX_NODE_PODS: usize = 5000;
/// Most Services in one list.
pub const MAX_SERVICES: usize = 20_000;
/// Most ClusterTrustBundles in one list.
pub const MAX_BUNDLES: usize = 500;
/// Items asked for in one page.
pub const PAGE_ITEMS: usize = 500;

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchFormat {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own: lists are merged by their keys.
    Strategic,
}

impl PatchFormat {
    /// `content-type`
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// A list that has come whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteList {
    /// Version at which all items were true; a watch begins there.
    pub resource_version: String,
    /// Number of items handed out.
    pub items: usize,
}

/// Result of a call.
pub type ApiResult<T> = Result<T, KubeError>;

/// An apiserver, as far as a node may use it (AUTHZ).
///
/// Lists hand out items before it is known whether the rest will come: **what a failed list has handed out is worth
/// nothing** (SRC-30, OFF-03).
pub trait KubeApi: Send + Sync {
    /// Lists the metadata of the pods of `node` that have not run to their end, as of now (a quorum read).
    fn list_pods(&self, node: &str, each: &mut dyn FnMut(ObjectMeta)) -> ApiResult<CompleteList>;
    /// Lists the metadata of all pods of `node`, those included that have run to their end.
    fn list_all_pods(
        &self,
        node: &str,
        each: &mut dyn FnMut(ObjectMeta),
    ) -> ApiResult<CompleteList>;
    /// Lists the pods of [`KubeApi::list_pods`] as whole objects, one at a time in memory.
    fn list_whole_pods(&self, node: &str, each: &mut dyn FnMut(Value)) -> ApiResult<CompleteList>;
    /// Watches the pods of [`KubeApi::list_all_pods`] from a version on, and rings with every change. Blocks until the
    /// watch ends or `cancel` ends it ([`KubeError::Cancelled`]). Any other error is a break: a list is due.
    fn watch_pods(
        &self,
        options: &WatchOptions,
        cancel: &Arc<WatchCancel>,
        each: &mut dyn FnMut(WatchEvent),
    ) -> ApiResult<WatchEnd>;
    /// Reads a pod of `node`. Status 404: there is no such pod. Status 403: this node has no such pod.
    fn read_pod(&self, node: &str, namespace: &str, name: &str) -> ApiResult<Value>;
    /// Patches a pod's status; a UID precondition is `metadata.uid` in `body`. Returns the pod as it is now.
    fn patch_pod_status(
        &self,
        namespace: &str,
        name: &str,
        kind: PatchFormat,
        body: &[u8],
    ) -> ApiResult<Value>;
    /// Creates a mirror pod. Returns it.
    fn create_pod(&self, namespace: &str, body: &[u8]) -> ApiResult<Value>;
    /// Deletes a pod at once, if it is still this one. Returns it if its finalizers keep it.
    fn delete_pod(&self, namespace: &str, name: &str, uid: &PodUid) -> ApiResult<Option<Value>>;

    /// Reads a node.
    fn read_node(&self, name: &str) -> ApiResult<Value>;
    /// Creates this node's object. Returns it.
    fn create_node(&self, body: &[u8]) -> ApiResult<Value>;
    /// Patches this node's status. Returns the node.
    fn patch_node_status(&self, name: &str, kind: PatchFormat, body: &[u8]) -> ApiResult<Value>;

    /// Reads this node's lease.
    fn read_lease(&self, name: &str) -> ApiResult<Value>;
    /// Creates this node's lease.
    fn create_lease(&self, body: &[u8]) -> ApiResult<Value>;
    /// Patches this node's lease (RFC 7386): the smallest renewal. Returns its metadata only.
    fn patch_lease(&self, name: &str, body: &[u8]) -> ApiResult<Value>;

    /// Records an event. Returns its name and version.
    fn create_event(&self, namespace: &str, body: &[u8]) -> ApiResult<Value>;
    /// Counts up an event that is there (strategic patch).
    fn patch_event(&self, namespace: &str, name: &str, body: &[u8]) -> ApiResult<Value>;

    /// Asks for a token of a service account (`TokenRequest`).
    fn create_token(&self, namespace: &str, account: &str, body: &[u8]) -> ApiResult<Value>;
    /// Reads a ConfigMap. A 403 may only mean that the apiserver does not know yet that a pod here needs it (AUTHZ-08).
    fn read_config_map(&self, namespace: &str, name: &str) -> ApiResult<Value>;
    /// Reads a Secret. A 403 may pass, as with [`KubeApi::read_config_map`].
    fn read_secret(&self, namespace: &str, name: &str) -> ApiResult<Value>;
    /// Reads a claim. A 403 may pass, as with [`KubeApi::read_config_map`].
    fn read_persistent_volume_claim(&self, namespace: &str, name: &str) -> ApiResult<Value>;
    /// Reads a volume. A 403 may pass, as with [`KubeApi::read_config_map`].
    fn read_persistent_volume(&self, name: &str) -> ApiResult<Value>;
    /// Reads a service account. A 403 may pass, as with [`KubeApi::read_config_map`].
    fn read_service_account(&self, namespace: &str, name: &str) -> ApiResult<Value>;
    /// Reads a RuntimeClass.
    fn read_runtime_class(&self, name: &str) -> ApiResult<Value>;
    /// Lists the resources of a version of an API group (`APIResourceList`). Status 404: there is no such version.
    fn list_api_resources(&self, group: &str, version: &str) -> ApiResult<Value>;
    /// Reads a ClusterTrustBundle of a version of its API.
    fn read_trust_bundle(&self, version: &str, name: &str) -> ApiResult<Value>;
    /// Lists the ClusterTrustBundles of a signer that labels choose.
    fn list_trust_bundles(
        &self,
        version: &str,
        signer: &str,
        labels: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList>;
    /// Lists all Services of a namespace, for environment variables.
    fn list_services(
        &self,
        namespace: &str,
        each: &mut dyn FnMut(Value),
    ) -> ApiResult<CompleteList>;
    /// Reads a Service.
    fn read_service(&self, namespace: &str, name: &str) -> ApiResult<Value>;

    /// Creates a request for a certificate. Returns it.
    fn create_csr(&self, body: &[u8]) -> ApiResult<Value>;
    /// Reads a request for a certificate.
    fn read_csr(&self, name: &str) -> ApiResult<Value>;

    /// Creates a request for a certificate of a pod, in a version of its API. Returns it.
    fn create_pod_certificate_request(
        &self,
        version: &str,
        namespace: &str,
        body: &[u8],
    ) -> ApiResult<Value>;
    /// Reads a request for a certificate of a pod. A 403 may pass, as with [`KubeApi::read_config_map`].
    fn read_pod_certificate_request(
        &self,
        version: &str,
        namespace: &str,
        name: &str,
    ) -> ApiResult<Value>;

    /// Asks whose a token is (`TokenReview`). Returns the review.
    fn review_token(&self, body: &[u8]) -> ApiResult<Value>;
    /// Asks whether somebody may do something (`SubjectAccessReview`). Returns the review.
    fn review_access(&self, body: &[u8]) -> ApiResult<Value>;

    /// Closes connections of the heartbeat that are not in use: the path may be dead without telling (CONF-21).
    fn close_heartbeat_connections(&self);
}
