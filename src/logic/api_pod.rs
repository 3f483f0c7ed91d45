//! Turns an object of the apiserver into a pod of this node.

use alloc::boxed::Box;

use serde_json::Value;

use super::static_pod::{decode_recorded_pod, is_plain_uid};
use crate::api::received::ReceivedPod;
use crate::api::strict::WrongValue;

/// Decodes a pod that the apiserver has validated. Checks that it is a pod of this node, and that its names may become
/// parts of paths.
///
/// - `raw`: the whole object. `metadata.managedFields` is dropped: it is large, and is not read here.
/// - Errors: the fault of the object, which must not be used then.
pub fn decode_api_pod(mut raw: Value, node: &str) -> Result<Box<ReceivedPod>, WrongValue> {
    if let Some(metadata) = raw["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    let pod = decode_recorded_pod(&raw)?;
    let metadata = &pod.metadata;
    if !is_plain_uid(&metadata.uid) {
        return invalid_field("metadata.uid", &metadata.uid);
    }
    for (field, name) in [("name", &metadata.name), ("namespace", &metadata.namespace)] {
        if !is_plain_name(name) {
            return invalid_field(&format!("metadata.{field}"), name);
        }
    }
    if metadata.resource_version.is_empty() {
        let field = "metadata.resourceVersion";
        return Err(WrongValue::new(field, "Required value"));
    }
    if pod.spec.node_name != node {
        let other = &pod.spec.node_name;
        let why = format!("{other:?} is not this node");
        return Err(WrongValue::new("spec.nodeName", why));
    }
    Ok(Box::new(ReceivedPod {
        pod,
        raw,
        origin: "".into(),
    }))
}

fn invalid_field<T>(field: &str, value: &str) -> Result<T, WrongValue> {
    Err(WrongValue::new(field, format!("Invalid value: {value:?}")))
}

/// Returns true if the name has only the characters of a DNS subdomain, and is safe as a part of a path.
pub(super) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (1..=253).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw() -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "resourceVersion": "7",
                "managedFields": [{"manager": "kubectl"}], "labels": {"a": "b"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "someday": 1},
        })
    }

    #[test]
    fn what_is_kept() {
        let received = decode_api_pod(raw(), "n").expect("a pod");
        assert_eq!(received.raw["metadata"]["managedFields"], Value::Null);
        assert_eq!(
            received.raw["spec"]["someday"], 1,
            "fields that are not modelled"
        );
        assert_eq!(received.pod.spec.termination_grace_period_seconds, Some(30));
    }

    #[test]
    fn what_is_refused() {
        for (pointer, value, says) in [
            ("/metadata/uid", json!("../x"), "metadata.uid"),
            ("/metadata/uid", json!(""), "metadata.uid"),
            ("/metadata/name", json!("a/b"), "metadata.name"),
            ("/metadata/namespace", json!(".."), "metadata.namespace"),
            ("/metadata/namespace", json!(""), "metadata.namespace"),
            (
                "/metadata/resourceVersion",
                json!(""),
                "metadata.resourceVersion",
            ),
            ("/spec/nodeName", json!("m"), "not this node"),
            ("/spec/containers", json!(3), "containers"),
        ] {
            let mut raw = raw();
            *raw.pointer_mut(pointer).expect("there") = value;
            let error = decode_api_pod(raw, "n").expect_err(pointer);
            assert!(format!("{error}").contains(says), "{error}");
        }
    }
}
