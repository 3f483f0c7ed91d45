//! The smallest strategic merge patch of a Node's status (NODE-23).

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};

use serde_json::{Map, Value, json};

use crate::api::Node;

/// Name of the only field that may differ without counting as a change.
const HEARTBEAT: &str = "lastHeartbeatTime";

/// A patch for `nodes/<name>/status`.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatusPatch {
    /// `application/strategic-merge-patch+json`.
    pub body: Value,
    /// Set if more has changed than heartbeats.
    pub is_change: bool,
}

/// Computes the patch from `seen` to `wanted`: labels, annotations and status; never the spec. `None` if they are
/// equal.
///
/// - Conditions are merged by type, those of others are left out; addresses are replaced as a list, for two of one type
///   cannot be merged; other lists are replaced.
/// - Source: `pkg/util/node`, `preparePatchBytesforNodeStatus`; strategy markers of core/v1 NodeStatus.
#[must_use]
pub fn compute_status_patch(seen: &Node, wanted: &Node) -> Option<NodeStatusPatch> {
    let value = |node: &Node| serde_json::to_value(node).unwrap_or(Value::Null);
    let (old, new) = (value(seen), value(wanted));
    let mut body = Map::new();
    let mut is_change = false;
    let mut metadata = Map::new();
    for part in ["labels", "annotations"] {
        add_difference(
            part,
            &old["metadata"][part],
            &new["metadata"][part],
            &mut metadata,
            &mut is_change,
        );
    }
    if !metadata.is_empty() {
        body.insert("metadata".into(), metadata.into());
    }
    add_difference(
        "status",
        &old["status"],
        &new["status"],
        &mut body,
        &mut is_change,
    );
    (!body.is_empty()).then(|| NodeStatusPatch {
        body: body.into(),
        is_change,
    })
}

/// Adds the difference from `old` to `new` to `patch` at `name`, if there is one.
fn add_difference(
    name: &str,
    old: &Value,
    new: &Value,
    patch: &mut Map<String, Value>,
    is_change: &mut bool,
) {
    if old == new {
        return;
    }
    let part = match (name, old, new) {
        ("conditions", _, Value::Array(new)) => {
            let mut changed: Vec<Value> = new
                .iter()
                .filter_map(|condition| condition_difference(old, condition, is_change))
                .collect();
            // Conditions of others are in both.
            for gone in old.as_array().into_iter().flatten() {
                let kind = &gone["type"];
                if !new.iter().any(|condition| condition["type"] == *kind) {
                    changed.push(json!({"$patch": "delete", "type": kind}));
                    *is_change = true;
                }
            }
            if changed.is_empty() {
                return;
            }
            changed.into()
        }
        ("addresses", _, Value::Array(new)) => {
            *is_change = true;
            let replace = json!({"$patch": "replace"});
            new.iter().cloned().chain([replace]).collect()
        }
        // An object that appears or disappears is still patched field by field, for others may have fields in it.
        (_, Value::Object(_) | Value::Null, Value::Object(_) | Value::Null)
            if !(old.is_null() && new.is_null()) =>
        {
            let none = Map::new();
            let (old, new) = (
                old.as_object().unwrap_or(&none),
                new.as_object().unwrap_or(&none),
            );
            let mut part = Map::new();
            for (name, new) in new {
                let old = old.get(name).unwrap_or(&Value::Null);
                add_difference(name, old, new, &mut part, is_change);
            }
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                part.insert(name.clone(), Value::Null);
                *is_change = true;
            }
            if part.is_empty() {
                return;
            }
            part.into()
        }
        _ => {
            *is_change |= name != HEARTBEAT;
            new.clone()
        }
    };
    patch.insert(name.to_owned(), part);
}

fn condition_difference(old: &Value, new: &Value, is_change: &mut bool) -> Option<Value> {
    let same_kind = |c: &&Value| c["type"] == new["type"];
    let before = old.as_array().and_then(|list| list.iter().find(same_kind));
    let mut part = Map::new();
    add_difference(
        "condition",
        before.unwrap_or(&Value::Null),
        new,
        &mut part,
        is_change,
    );
    let mut part = part.remove("condition")?;
    part["type"] = new["type"].clone();
    Some(part)
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;
    use crate::{
        api::{
            Quantity, WallTime,
            node::{NodeAddress, NodeCondition},
        },
        node::{apply_node_status, initial_node, testing::Parts},
    };

    fn at(s: i64) -> WallTime {
        WallTime::from_unix_seconds(s)
    }

    /// The patch for what `edit` did to the board.
    fn after(edit: impl FnOnce(&mut Node)) -> Option<NodeStatusPatch> {
        let (seen, _) = initial_node(&Parts::board().view(), at(100));
        let mut wanted = seen.clone();
        edit(&mut wanted);
        compute_status_patch(&seen, &wanted)
    }

    #[test]
    fn only_what_changed() {
        // NODE-22 NODE-23
        type Edit = fn(&mut Node);
        let cases: Vec<(&str, Edit, Value)> = vec![
            (
                "a label",
                |n| {
                    n.metadata.labels.insert("a".into(), "b".into());
                },
                json!({"metadata": {"labels": {"a": "b"}}}),
            ),
            (
                "a label gone",
                |n| {
                    n.metadata.labels.remove("kubernetes.io/os");
                },
                json!({"metadata": {"labels": {"kubernetes.io/os": null}}}),
            ),
            (
                "the first annotation gone",
                |n| n.metadata.annotations.clear(),
                json!({"metadata": {"annotations": {
                    "volumes.kubernetes.io/controller-managed-attach-detach": null}}}),
            ),
            (
                "an amount",
                |n| {
                    n.status
                        .capacity
                        .insert("cpu".into(), Quantity::from_decimal_units(2));
                    n.status.capacity.remove("hugepages-2Mi");
                },
                json!({"status": {"capacity": {"cpu": "2", "hugepages-2Mi": null}}}),
            ),
            (
                "addresses",
                |n| {
                    n.status.addresses = vec![
                        NodeAddress {
                            kind: "InternalIP".into(),
                            address: "192.0.2.1".into(),
                        },
                        NodeAddress {
                            kind: "InternalIP".into(),
                            address: "2001:db8::1".into(),
                        },
                    ];
                },
                json!({"status": {"addresses": [
                    {"type": "InternalIP", "address": "192.0.2.1"},
                    {"type": "InternalIP", "address": "2001:db8::1"},
                    {"$patch": "replace"},
                ]}}),
            ),
            (
                "a condition",
                |n| n.status.conditions[3].message = "x".into(),
                json!({"status": {"conditions": [{"type": "Ready", "message": "x"}]}}),
            ),
            (
                "a condition that was not there",
                |n| {
                    n.status.conditions.push(NodeCondition {
                        kind: "New".into(),
                        status: "True".into(),
                        ..NodeCondition::default()
                    });
                },
                json!({"status": {"conditions": [{"type": "New", "status": "True"}]}}),
            ),
            (
                "swap off",
                |n| n.status.node_info.swap = None,
                json!({"status": {"nodeInfo": {"swap": null}}}),
            ),
            (
                "volumes",
                |n| n.status.volumes_in_use = vec!["v".into()],
                json!({"status": {"volumesInUse": ["v"]}}),
            ),
        ];
        for (name, edit, want) in cases {
            let patch = after(edit).expect(name);
            assert_eq!((patch.body, patch.is_change), (want, true), "{name}");
        }
    }

    #[test]
    fn nothing_and_nearly_nothing() {
        // NODE-22 NODE-23
        assert_eq!(after(|_| ()), None);
        // The spec is never sent.
        assert_eq!(
            after(|n| {
                n.spec.unschedulable = true;
                n.spec.taints.clear();
                n.metadata.uid = "u".into();
                n.metadata.resource_version = "7".into();
            }),
            None
        );
        let parts = Parts::board();
        let patch = after(|n| {
            apply_node_status(n, &parts.view(), at(200));
        })
        .expect("heartbeats");
        let beat = |kind: &str| json!({"type": kind, HEARTBEAT: "1970-01-01T00:03:20Z"});
        assert_eq!(
            patch.body,
            json!({"status": {"conditions": [
                beat("MemoryPressure"), beat("DiskPressure"), beat("PIDPressure"), beat("Ready")]}})
        );
        assert!(!patch.is_change);
        assert!(patch.body.to_string().len() < 400, "small");
    }

    #[test]
    fn conditions_of_others_are_left_out() {
        // NODE-23
        let mut parts = Parts::board();
        let (mut seen, _) = initial_node(&parts.view(), at(100));
        seen.status.conditions.insert(
            0,
            NodeCondition {
                kind: "NetworkUnavailable".into(),
                status: "False".into(),
                reason: "RouteCreated".into(),
                ..NodeCondition::default()
            },
        );
        let mut wanted = seen.clone();
        parts.not_ready = vec!["no".into()];
        apply_node_status(&mut wanted, &parts.view(), at(100));
        let patch = compute_status_patch(&seen, &wanted).expect("not ready");
        assert_eq!(
            patch.body,
            json!({"status": {"conditions": [
                {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no"}]}})
        );
        assert_eq!(wanted.status.conditions[0].reason, "RouteCreated");
    }
}
