//! node.k8s.io/v1 RuntimeClass, limited to what running a pod needs: the rest is merged into pods by API admission.
#![expect(
    missing_docs,
    reason = "field names and meanings are those of node.k8s.io/v1"
)]

use alloc::string::String;

use serde::{Deserialize, Serialize};

use super::pod::{is_default, object};

object!(
    /// Names the handler of pods that name it.
    RuntimeClass { handler: String }
);
