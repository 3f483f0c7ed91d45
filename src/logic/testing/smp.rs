//! Strategic merge patches of a pod's status, as an apiserver applies them. Written from the description of the form, and
//! strict: what an apiserver would refuse panics.

use alloc::string::String;

use serde_json::{Map, Value};

/// Applies `patch` to `object`.
pub fn apply(object: &mut Value, patch: &Value) {
    let (Some(object), Some(patch)) = (object.as_object_mut(), patch.as_object()) else {
        panic!("not objects");
    };
    merge(object, patch);
}

fn merge(object: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, new) in patch {
        if let Some(list) = name.strip_prefix("$setElementOrder/") {
            check_order(new, &patch[list]);
            continue;
        }
        assert!(!name.starts_with('$'), "{name} is not known here");
        let old = object.entry(name.clone()).or_insert(Value::Null);
        let key = match name.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (new, key) {
            (Value::Null, _) => *old = Value::Null,
            (Value::Array(entries), Some(key)) => merge_list(old, entries, key),
            (Value::Object(fields), _) => {
                if !old.is_object() {
                    *old = Value::Object(Map::new());
                }
                merge(old.as_object_mut().expect("made one"), fields);
            }
            (other, _) => *old = other.clone(),
        }
        if old.is_null() {
            object.remove(name);
        }
    }
}

fn merge_list(old: &mut Value, entries: &[Value], key: &str) {
    let mut list = old.as_array().cloned().unwrap_or_default();
    if entries.iter().any(|e| e["$patch"] == "replace") {
        list.clear();
    }
    for entry in entries {
        let same = |other: &Value| other[key] == entry[key];
        match entry["$patch"].as_str() {
            Some("replace") => {}
            Some("delete") => list.retain(|other| !same(other)),
            Some(other) => panic!("$patch: {other}"),
            None => {
                assert!(entry[key].is_string(), "an entry without its key: {entry}");
                let fields = entry.as_object().expect("an entry");
                match list.iter_mut().find(|other| same(other)) {
                    Some(known) => merge(known.as_object_mut().expect("an entry"), fields),
                    None => {
                        let mut new = Map::new();
                        merge(&mut new, fields);
                        list.push(Value::Object(new));
                    }
                }
            }
        }
    }
    *old = if list.is_empty() {
        Value::Null
    } else {
        Value::Array(list)
    };
}

/// The entries of the patch that are not deleted come in the order that is set.
fn check_order(order: &Value, entries: &Value) {
    let mut order = order.as_array().expect("a list").iter();
    for entry in entries.as_array().expect("a list") {
        if entry["$patch"] != "delete" {
            let found = order.any(|o| o["type"] == entry["type"]);
            assert!(found, "not in the order that is set: {entry}");
        }
    }
}
