//! The Node of this machine in the API, for parts that write to it, by the node's own identity.

use alloc::rc::Rc;

use serde_json::Value;

use super::membership::Membership;
use crate::kube::{KubeLanes, PatchFormat, api::ApiResult};

/// Patches the own Node.
pub(crate) struct OwnNodeObject {
    pub(super) name: String,
    pub(super) lanes: KubeLanes,
    pub(super) member: Rc<Membership>,
}

impl OwnNodeObject {
    /// Patches status and metadata of the Node by a strategic merge patch of `nodes/status`. Returns the Node.
    pub(crate) async fn patch_status(&self, patch: &Value) -> ApiResult<Value> {
        let (name, body) = (self.name.clone(), patch.to_string());
        let patched = self.lanes.run_heartbeat(move |api| {
            api.patch_node_status(&name, PatchFormat::Strategic, body.as_bytes())
        });
        let answer = patched.await?;
        // The task that keeps the Node is to know of it.
        self.member.request_reread();
        Ok(answer)
    }
}
