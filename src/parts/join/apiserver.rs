//! Questions to the apiserver of a cluster that this machine is to join.

use serde_json::Value;

use crate::{
    kube::{
        Kubeconfig,
        join::{JoinError, JoinServer},
        path,
    },
    net::ProxyVariables,
};

/// Reads the apiserver's version without its suffix, such as `v1.33.2`.
///
/// - Errors: no answer, or not a version.
pub(super) fn read_apiserver_version(
    config: Kubeconfig,
    proxies: &ProxyVariables,
) -> Result<String, JoinError> {
    let asked = JoinServer::new(config, proxies);
    let document = asked
        .read_document("/version")
        .map_err(|error| match error.http_status() {
            Some(401) => JoinError::Refused {
                url: asked.url.without_query(),
                error,
            },
            _ => error.into(),
        })?;
    let text = document["gitVersion"].as_str().unwrap_or_default();
    let end = text.find(['-', '+']).unwrap_or(text.len());
    Ok(text[..end].to_owned())
}

/// Returns true if a `Node` of that name is in the cluster and well: another machine has the name then. A `Node` that
/// may not be read counts as absent.
pub(super) fn is_node_name_taken(
    config: Kubeconfig,
    node: &str,
    proxies: &ProxyVariables,
) -> Result<bool, JoinError> {
    let asked = JoinServer::new(config, proxies);
    let path = format!("/api/v1/nodes/{}", path::encode_segment(node)?);
    let document = match asked.read_document(&path) {
        Err(e) if matches!(e.http_status(), Some(401 | 403 | 404)) => return Ok(false),
        other => other?,
    };
    let conditions = document["status"]["conditions"].as_array();
    let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    Ok(conditions.is_some_and(|all| all.iter().any(ready)))
}
