//! Who wrote which field: `metadata.managedFields`, if the server is to keep it.
//!
//! An entry is a user's, not a program's, and a list is one field: a node agent reads none of it, and has to bear it.
//! Source: apiserver `pkg/endpoints/handlers/fieldmanager`, structured-merge-diff `fieldpath`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::json::{at, child, list, text};

/// Fields that are nobody's.
const UNMANAGED: [&str; 9] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
];

/// Notes what changes from `old`, which is nothing if the object is new. An update that changes nothing leaves no trace.
pub(crate) fn note(user: &str, sub: &str, version: &str, time: &str, new: &mut Value, old: &Value) {
    let (before, after) = (fields(old), fields(new));
    let changed: BTreeSet<_> = after.difference(&before).map(|f| f.0.clone()).collect();
    let gone: BTreeSet<_> = before.difference(&after).map(|f| f.0.clone()).collect();
    let is_own =
        |entry: &Value| text(entry, "/manager") == user && text(entry, "/subresource") == sub;
    let mut entries = Vec::new();
    let mut own = changed.clone();
    for entry in list(old, "/metadata/managedFields") {
        let mut paths = BTreeSet::new();
        collect(at(entry, "/fieldsV1"), "", &mut paths);
        if is_own(entry) && !changed.is_empty() {
            own.extend(paths.difference(&gone).cloned());
            continue;
        }
        paths.retain(|path| !changed.contains(path) && !gone.contains(path));
        if !paths.is_empty() {
            let mut entry = entry.clone();
            entry["fieldsV1"] = tree(&paths);
            entries.push(entry);
        }
    }
    if !own.is_empty() {
        let mut entry = json!({
            "manager": user, "operation": "Update", "apiVersion": version, "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": tree(&own),
        });
        if !sub.is_empty() {
            entry["subresource"] = sub.into();
        }
        entries.push(entry);
    }
    let metadata = child(new, &["metadata"]);
    match entries.is_empty() {
        true => metadata.remove("managedFields"),
        false => metadata.insert("managedFields".to_owned(), entries.into()),
    };
}

/// Every field, by its path, with its value.
fn fields(object: &Value) -> BTreeSet<(String, String)> {
    fn walk(value: &Value, path: &str, found: &mut BTreeSet<(String, String)>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    let system = path == "/f:metadata" && UNMANAGED.contains(&key.as_str());
                    if !system {
                        walk(
                            value,
                            &format!("{path}/f:{}", key.replace('/', "~1")),
                            found,
                        );
                    }
                }
            }
            other => _ = found.insert((path.to_owned(), other.to_string())),
        }
    }
    let mut found = BTreeSet::new();
    if object.is_object() {
        walk(object, "", &mut found);
    }
    found.retain(|(path, _)| {
        !["", "/f:apiVersion", "/f:kind", "/f:metadata"].contains(&path.as_str())
    });
    found
}

/// Paths of a `fieldsV1`.
fn collect(fields: &Value, path: &str, found: &mut BTreeSet<String>) {
    match fields.as_object() {
        Some(map) if !map.is_empty() => {
            for (key, value) in map {
                collect(value, &format!("{path}/{}", key.replace('/', "~1")), found);
            }
        }
        _ if path.is_empty() => {}
        _ => _ = found.insert(path.to_owned()),
    }
}

/// The `fieldsV1` of paths.
fn tree(paths: &BTreeSet<String>) -> Value {
    let mut tree = Value::Object(Map::new());
    for path in paths {
        let keys = path.split('/').skip(1).map(|key| key.replace("~1", "/"));
        let leaf = keys.fold(&mut tree, |at, key| {
            let map = at.as_object_mut().expect("only maps are put in");
            map.entry(key).or_insert_with(|| json!({}))
        });
        debug_assert!(leaf.is_object());
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wrote_what() {
        let mut made =
            json!({"metadata": {"name": "p", "labels": {"a/b": "1"}}, "spec": {"x": 1, "y": [1]}});
        note("admin", "", "v1", "t0", &mut made, &Value::Null);
        let entries = &made["metadata"]["managedFields"];
        assert_eq!(
            entries[0]["fieldsV1"],
            json!({"f:metadata": {"f:labels": {"f:a/b": {}}}, "f:spec": {"f:x": {}, "f:y": {}}})
        );
        // A node tells a status and takes a field over; one goes.
        let mut told = made.clone();
        told["spec"] = json!({"x": 2});
        told["status"] = json!({"phase": "Running"});
        note("node", "status", "v1", "t1", &mut told, &made);
        let entries = &told["metadata"]["managedFields"];
        assert_eq!(
            entries[0]["fieldsV1"],
            json!({"f:metadata": {"f:labels": {"f:a/b": {}}}})
        );
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:spec": {"f:x": {}}, "f:status": {"f:phase": {}}})
        );
        assert_eq!(entries[1]["subresource"], "status");
        // The same again is no write.
        let mut same = told.clone();
        note("other", "", "v1", "t2", &mut same, &told);
        assert_eq!(same, told);
    }
}
