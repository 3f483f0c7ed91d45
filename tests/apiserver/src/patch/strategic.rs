//! Strategic merge: lists whose elements have a key are merged by it, all others are replaced.
//!
//! Source: apimachinery `pkg/util/strategicpatch`; the keys from the patch tags of `k8s.io/api`. Taints, tolerations,
//! images and container statuses have none: they are replaced whole.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::json::object;
use crate::kinds::Kind;

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Merge {
    /// Elements are objects told apart by this field.
    By(&'static str),
    /// Elements are strings; the patch adds to them.
    Set,
    Replace,
}

fn rule(kind: &Kind, path: &str) -> Merge {
    use Merge::{By, Replace, Set};
    match path {
        "metadata.ownerReferences" => return By("uid"),
        "metadata.finalizers" => return Set,
        _ => {}
    }
    let container = |field: &str| match field {
        "env" => By("name"),
        "volumeMounts" => By("mountPath"),
        "volumeDevices" => By("devicePath"),
        "ports" => By("containerPort"),
        _ => Replace,
    };
    match (kind.plural, path) {
        ("pods", "spec.containers" | "spec.initContainers" | "spec.ephemeralContainers")
        | (
            "pods",
            "spec.volumes"
            | "spec.imagePullSecrets"
            | "spec.schedulingGates"
            | "spec.resourceClaims",
        )
        | ("pods", "status.resourceClaimStatuses")
        | ("serviceaccounts", "secrets") => By("name"),
        ("pods", "spec.hostAliases" | "status.podIPs" | "status.hostIPs") => By("ip"),
        ("pods", "spec.topologySpreadConstraints") => By("topologyKey"),
        ("nodes", "spec.podCIDRs") => Set,
        ("nodes", "status.addresses") => By("type"),
        (
            "pods" | "nodes" | "persistentvolumeclaims" | "namespaces" | "services",
            "status.conditions",
        ) => By("type"),
        ("services", "spec.ports") => By("port"),
        ("pods", path) => [
            "spec.containers.",
            "spec.initContainers.",
            "spec.ephemeralContainers.",
        ]
        .iter()
        .find_map(|head| path.strip_prefix(head))
        .map_or(Replace, container),
        _ => Replace,
    }
}

/// Applies a strategic merge patch.
///
/// - Errors: 500 for a directive that is not one and for an element without its key, as upstream.
pub(super) fn merge(kind: &Kind, target: &mut Value, patch: &Value) -> Result<(), ApiError> {
    merge_object(kind, "", object(target), patch)
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(message)
}

/// What upstream answers with a plain 500.
fn failed(message: impl Into<String>) -> ApiError {
    ApiError::new(500, "", message)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn merge_object(
    kind: &Kind,
    path: &str,
    target: &mut Map<String, Value>,
    patch: &Value,
) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        return Err(bad(format!("{path}: expected an object in the patch")));
    };
    match patch.get("$patch").map(Value::as_str) {
        None => {}
        Some(Some("replace")) => {
            *target = patch.clone();
            target.retain(|key, value| !key.starts_with('$') && !value.is_null());
            return Ok(());
        }
        Some(Some("delete")) => {
            target.clear();
            return Ok(());
        }
        Some(Some("merge")) => {}
        Some(other) => {
            return Err(failed(format!(
                "unknown patch type: {} in map: {}",
                other.unwrap_or(""),
                Value::Object(patch.clone())
            )));
        }
    }
    let original = target.clone();
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        if value.is_null() {
            target.remove(key);
            continue;
        }
        let below = join(path, key);
        match value {
            Value::Object(_) => {
                let slot = target.entry(key).or_insert(Value::Null);
                merge_object(kind, &below, object(slot), value)?;
            }
            Value::Array(items) => {
                let slot = target
                    .entry(key)
                    .or_insert_with(|| Value::Array(Vec::new()));
                if !slot.is_array() {
                    *slot = Value::Array(Vec::new());
                }
                if let Value::Array(list) = slot {
                    merge_list(kind, &below, list, items)?;
                }
            }
            other => {
                target.insert(key.clone(), other.clone());
            }
        }
    }
    for (directive, value) in patch.iter().filter(|(key, _)| key.starts_with('$')) {
        if let Some(key) = directive.strip_prefix("$setElementOrder/") {
            let Value::Array(order) = value else {
                return Err(bad(format!("{directive}: expected a list")));
            };
            if let Some(Value::Array(list)) = target.get_mut(key) {
                let before = original.get(key).and_then(Value::as_array);
                let before = before.map_or(&[][..], Vec::as_slice);
                arrange(rule(kind, &join(path, key)), list, order, before);
            }
        } else if directive != "$patch" {
            return Err(bad(format!("unknown directive {directive:?}")));
        }
    }
    Ok(())
}

fn merge_list(
    kind: &Kind,
    path: &str,
    target: &mut Vec<Value>,
    patch: &[Value],
) -> Result<(), ApiError> {
    let rule = rule(kind, path);
    let original = target.clone();
    let directive = |item: &Value| {
        item.get("$patch")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let plain: Vec<Value> = patch
        .iter()
        .filter(|item| directive(item).is_none())
        .cloned()
        .collect();
    match rule {
        Merge::Replace => {
            *target = patch.to_vec();
            return Ok(());
        }
        Merge::Set => {
            for item in patch {
                if !target.contains(item) {
                    target.push(item.clone());
                }
            }
        }
        Merge::By(by) => {
            let replaced = patch
                .iter()
                .any(|item| directive(item).as_deref() == Some("replace"));
            if replaced {
                // As they come: what has one key twice stays twice.
                *target = plain;
                return Ok(());
            }
            for item in patch {
                let Some(key) = item.get(by).filter(|key| !key.is_null()) else {
                    return Err(failed(format!(
                        "map: {item} does not contain declared merge key: {by}"
                    )));
                };
                match directive(item).as_deref() {
                    Some("delete") => target.retain(|t| t.get(by) != Some(key)),
                    Some("merge") | None => {
                        let at = match target.iter().position(|t| t.get(by) == Some(key)) {
                            Some(at) => at,
                            None => {
                                target.push(Value::Null);
                                target.len() - 1
                            }
                        };
                        merge_object(kind, path, object(&mut target[at]), item)?;
                    }
                    Some(other) => {
                        return Err(failed(format!(
                            "unknown patch type: {other} in map: {item}"
                        )));
                    }
                }
            }
        }
    }
    arrange(rule, target, &plain, &original);
    Ok(())
}

/// Orders a merged list: what `named` has comes in its order; others keep their place before what followed them in
/// `original`. So a new element without an order comes first.
///
/// Source: `normalizeElementOrder`.
fn arrange(rule: Merge, list: &mut Vec<Value>, named: &[Value], original: &[Value]) {
    let place = |among: &[Value], item: &Value| {
        among.iter().position(|other| match rule {
            Merge::By(by) => other.get(by) == item.get(by),
            Merge::Set | Merge::Replace => other == item,
        })
    };
    let (mut right, mut left): (Vec<Value>, Vec<Value>) = std::mem::take(list)
        .into_iter()
        .partition(|item| place(named, item).is_some());
    right.sort_by_key(|item| place(named, item));
    left.sort_by_key(|item| place(original, item));
    let mut left = left.into_iter().peekable();
    for item in right {
        let here = place(original, &item);
        while let Some(other) = left.peek() {
            let before = place(original, other)
                .zip(here)
                .is_some_and(|(other, here)| other < here);
            if !before {
                break;
            }
            list.extend(left.next());
        }
        list.push(item);
    }
    list.extend(left);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds;

    fn patched(plural: &str, mut object: Value, patch: Value) -> Result<Value, ApiError> {
        merge(kinds::plural(plural).expect("kind"), &mut object, &patch)?;
        Ok(object)
    }

    #[test]
    fn lists_by_their_keys() {
        for (name, plural, object, patch, want) in [
            (
                "conditions by type",
                "pods",
                json!({"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "C"}]}}),
                json!({"status": {"conditions": [
                    {"type": "A", "status": "True"}, {"type": "B", "status": "False"}, {"type": "C"}]}}),
            ),
            (
                "a new one comes first",
                "pods",
                json!({"status": {"conditions": [{"type": "A"}, {"type": "B"}]}}),
                json!({"status": {"conditions": [{"type": "C"}]}}),
                json!({"status": {"conditions": [{"type": "C"}, {"type": "A"}, {"type": "B"}]}}),
            ),
            (
                "what one order does not name keeps its place",
                "pods",
                json!({"status": {"conditions": [{"type": "A"}, {"type": "B"}, {"type": "C"}]}}),
                json!({"status": {"$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}]}}),
                json!({"status": {"conditions": [{"type": "B"}, {"type": "C"}, {"type": "A"}]}}),
            ),
            (
                "container statuses whole",
                "pods",
                json!({"status": {"containerStatuses": [{"name": "a"}, {"name": "b"}]}}),
                json!({"status": {"containerStatuses": [{"name": "b", "ready": true}]}}),
                json!({"status": {"containerStatuses": [{"name": "b", "ready": true}]}}),
            ),
            (
                "taints whole",
                "nodes",
                json!({"spec": {"taints": [{"key": "a"}]}}),
                json!({"spec": {"taints": [{"key": "b"}]}}),
                json!({"spec": {"taints": [{"key": "b"}]}}),
            ),
            (
                "addresses merge by type",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "Hostname", "address": "n"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "2"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "2"}, {"type": "Hostname", "address": "n"}]}}),
            ),
            (
                "addresses replaced",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "1"}]}}),
                json!({"status": {"addresses": [
                    {"type": "InternalIP", "address": "2"}, {"type": "InternalIP", "address": "::2"},
                    {"$patch": "replace"}]}}),
                json!({"status": {"addresses": [
                    {"type": "InternalIP", "address": "2"}, {"type": "InternalIP", "address": "::2"}]}}),
            ),
            (
                "an element deleted",
                "pods",
                json!({"status": {"podIPs": [{"ip": "1"}, {"ip": "2"}]}}),
                json!({"status": {"podIPs": [{"ip": "1", "$patch": "delete"}, {"ip": "3"}]}}),
                json!({"status": {"podIPs": [{"ip": "3"}, {"ip": "2"}]}}),
            ),
            (
                "order set",
                "pods",
                json!({"status": {"conditions": [{"type": "A"}, {"type": "B"}]}}),
                json!({"status": {"conditions": [{"type": "C"}],
                    "$setElementOrder/conditions": [{"type": "C"}, {"type": "B"}, {"type": "A"}]}}),
                json!({"status": {"conditions": [{"type": "C"}, {"type": "B"}, {"type": "A"}]}}),
            ),
            (
                "null deletes",
                "pods",
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "x": 1}}),
                json!({"spec": {"volumes": [{"name": "w"}], "x": null}}),
                json!({"spec": {"volumes": [{"name": "w"}, {"name": "v", "emptyDir": {}}]}}),
            ),
            (
                "an object replaced",
                "pods",
                json!({"status": {"phase": "Running", "message": "m"}}),
                json!({"status": {"phase": "Failed", "$patch": "replace"}}),
                json!({"status": {"phase": "Failed"}}),
            ),
        ] {
            assert_eq!(patched(plural, object, patch).expect(name), want, "{name}");
        }
    }

    #[test]
    fn what_is_no_patch() {
        let no_key = patched(
            "pods",
            json!({}),
            json!({"status": {"conditions": [{"status": "True"}]}}),
        );
        assert_eq!(no_key.expect_err("refused").code, 500);
        let directive = patched("pods", json!({}), json!({"status": {"$patch": "explode"}}));
        assert_eq!(directive.expect_err("refused").code, 500);
    }
}
