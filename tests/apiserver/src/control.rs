//! What a program that runs the server as a process asks it: `GET /_test/audit`. Only for `system:masters`.

use serde_json::Value;

use crate::audit::Entry;
use crate::core::Core;
use crate::error::ApiError;

/// All requests so far.
pub(crate) fn answer(core: &Core, method: &str, path: &str) -> Result<Value, ApiError> {
    match (method, path) {
        ("GET", "/_test/audit") => Ok(core.audit.entries().iter().map(Entry::json).collect()),
        _ => Err(ApiError::no_route()),
    }
}
