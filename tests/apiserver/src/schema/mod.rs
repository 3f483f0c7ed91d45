//! Types of the objects that a node writes, so that they are read as a typed server reads them: unknown fields are
//! dropped and named, wrong types refused, empty optional fields and sub-second times gone.
//!
//! Source: the struct tags in `k8s.io/api` and `k8s.io/apimachinery`, 1.36.

mod quantity;
mod types;

pub(crate) use quantity::{billionths, canonical};

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use self::types::{META, NAMES, SCHEMAS, SINCE};
use crate::clock;
use crate::kinds::Kind;

/// Takes out what a server of that minor version does not know. Silently: an agent may be newer than its cluster.
pub(crate) fn drop_newer(minor: u32, plural: &str, object: &mut Value) {
    for (_, path, _) in SINCE
        .iter()
        .filter(|(kind, _, since)| *kind == plural && *since > minor)
    {
        for list in [
            "containerStatuses",
            "initContainerStatuses",
            "ephemeralContainerStatuses",
        ] {
            remove(object, &path.replace("STATUSES", list));
        }
    }
}

fn remove(value: &mut Value, path: &str) {
    let (key, rest) = path.split_once('/').unwrap_or((path, ""));
    match value {
        Value::Array(items) if key == "*" => items.iter_mut().for_each(|item| remove(item, rest)),
        Value::Object(map) if rest.is_empty() => {
            map.remove(key);
        }
        Value::Object(map) => {
            if let Some(below) = map.get_mut(key) {
                remove(below, rest);
            }
        }
        _ => {}
    }
}

#[derive(Debug)]
enum Type {
    Text,
    Int,
    Bool,
    Time,
    Micro,
    Strings,
    Quantities,
    /// Base64 by key.
    ByteStrings,
    Bytes,
    Any,
    TextList,
    List(Vec<Field>),
    Object(Vec<Field>),
}

#[derive(Debug)]
struct Field {
    name: String,
    ty: Type,
    /// Written when empty.
    always: bool,
    /// A zero differs from nothing.
    pointer: bool,
}

fn parse(text: &mut &str) -> Vec<Field> {
    let mut fields = Vec::new();
    loop {
        *text = text.trim_start();
        if let Some(rest) = text.strip_prefix([']', '}']) {
            *text = rest;
            return fields;
        }
        let end = text
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(text.len());
        if end == 0 {
            return fields;
        }
        let name = text[..end].to_owned();
        *text = &text[end..];
        let mut pointer = false;
        let ty = if let Some(rest) = text.strip_prefix(':') {
            let code = rest.chars().next().unwrap_or('*');
            *text = &rest[code.len_utf8()..];
            pointer = code.is_ascii_uppercase();
            match code.to_ascii_lowercase() {
                's' => Type::Text,
                'i' => Type::Int,
                'b' => Type::Bool,
                't' => Type::Time,
                'u' => Type::Micro,
                'm' => Type::Strings,
                'q' => Type::Quantities,
                'z' => Type::ByteStrings,
                'y' => Type::Bytes,
                _ => Type::Any,
            }
        } else if let Some(rest) = text.strip_prefix("[]") {
            *text = rest;
            Type::TextList
        } else if let Some(rest) = text.strip_prefix('[') {
            *text = rest;
            Type::List(parse(text))
        } else if let Some(rest) = text.strip_prefix('{') {
            *text = rest;
            pointer = true;
            Type::Object(parse(text))
        } else {
            Type::Text
        };
        let always = text.starts_with('!');
        if always {
            *text = &text[1..];
        }
        fields.push(Field {
            name,
            ty,
            always,
            pointer,
        });
    }
}

fn schema(group: &str, plural: &str) -> Option<&'static [Field]> {
    static ALL: OnceLock<BTreeMap<(&'static str, &'static str), Vec<Field>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = BTreeMap::new();
        for (group, plural, text) in SCHEMAS {
            let mut text = (*text).to_owned();
            for (name, meaning) in NAMES {
                text = text.replace(name, meaning);
            }
            all.insert((*group, *plural), parse(&mut text.as_str()));
        }
        all.insert(("", "meta"), parse(&mut { META }));
        all
    })
    .iter()
    .find(|(key, _)| **key == (group, plural))
    .map(|(_, fields)| fields.as_slice())
}

/// Reads an object as its type: what it returns are the fields that do not exist.
///
/// - Errors: the text of a decoding error, for a 400.
pub(crate) fn normalise(kind: &Kind, object: &mut Value) -> Result<Vec<String>, String> {
    normalise_as(kind.group, kind.plural, object)
}

pub(crate) fn normalise_as(
    group: &str,
    plural: &str,
    object: &mut Value,
) -> Result<Vec<String>, String> {
    crate::json::drop_nulls(object);
    let mut unknown = Vec::new();
    let Value::Object(map) = object else {
        return Err("not an object".to_owned());
    };
    let meta = schema("", "meta").unwrap_or(&[]);
    if let Some(metadata) = map.get_mut("metadata") {
        let Value::Object(metadata) = metadata else {
            return Err("metadata: not an object".to_owned());
        };
        // Gone or not kept, and no mistake of the client.
        metadata.remove("managedFields");
        metadata.remove("selfLink");
        fields(meta, metadata, "metadata", &mut unknown)?;
    }
    if let Some(schema) = schema(group, plural) {
        let mut rest = Map::new();
        for key in ["apiVersion", "kind", "metadata"] {
            if let Some((key, value)) = map.remove_entry(key) {
                rest.insert(key, value);
            }
        }
        fields(schema, map, "", &mut unknown)?;
        map.append(&mut rest);
    }
    Ok(unknown)
}

fn fields(
    schema: &[Field],
    map: &mut Map<String, Value>,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    map.retain(|key, _| {
        let known = schema.iter().any(|field| field.name == *key);
        if !known {
            unknown.push(below(path, key));
        }
        known
    });
    for field in schema {
        let path = below(path, &field.name);
        if let Some(value) = map.get_mut(&field.name) {
            read(&field.ty, value, &path, unknown)?;
            let list = matches!(field.ty, Type::List(_) | Type::TextList);
            if !field.always && !field.pointer && empty(value) {
                map.remove(&field.name);
            } else if list && empty(value) {
                // Storage does not tell an empty list from none.
                *value = Value::Null;
            }
        }
        if !map.contains_key(&field.name)
            && let Some(zero) = zero(field)
        {
            map.insert(field.name.clone(), zero);
        }
    }
    Ok(())
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// What is written for a field that is not there.
fn zero(field: &Field) -> Option<Value> {
    match &field.ty {
        Type::Time | Type::Micro if !field.pointer => Some(Value::Null),
        _ if !field.always => None,
        Type::Text | Type::Bytes => Some(json!("")),
        Type::Int => Some(json!(0)),
        Type::Bool => Some(json!(false)),
        Type::Object(inner) => {
            let mut map = Map::new();
            let mut nothing = Vec::new();
            fields(inner, &mut map, "", &mut nothing).ok()?;
            Some(Value::Object(map))
        }
        Type::TextList | Type::List(_) => Some(Value::Null),
        _ => None,
    }
}

fn read(ty: &Type, value: &mut Value, path: &str, unknown: &mut Vec<String>) -> Result<(), String> {
    let wrong = |value: &Value, want: &str| {
        let got = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Err(format!(
            "json: cannot unmarshal {got} into Go struct field {path} of type {want}"
        ))
    };
    if value.is_null() {
        return Ok(());
    }
    match (ty, &mut *value) {
        (Type::Any, _) | (Type::Text, Value::String(_)) | (Type::Bool, Value::Bool(_)) => {}
        (Type::Int, Value::Number(n)) if n.is_i64() || n.is_u64() => {}
        (Type::Time, Value::String(text)) => {
            let Some(seconds) = clock::parse_rfc3339(text) else {
                return Err(format!("{path}: parsing time {text:?}: not RFC 3339"));
            };
            *text = clock::rfc3339(seconds);
        }
        (Type::Micro, Value::String(text)) => {
            // The layout of Go demands exactly six digits.
            let digits = text.split_once('.').map_or(0, |(_, tail)| {
                tail.bytes().take_while(u8::is_ascii_digit).count()
            });
            if digits != 6 || clock::parse_rfc3339(text).is_none() {
                return Err(format!(
                    "{path}: parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse"
                ));
            }
        }
        (Type::Strings, Value::Object(map)) => {
            if let Some((key, _)) = map.iter().find(|(_, v)| !v.is_string()) {
                return Err(format!(
                    "json: cannot unmarshal {path}.{key} into Go value of type string"
                ));
            }
        }
        (Type::Quantities, Value::Object(map)) => {
            for (key, quantity) in map.iter_mut() {
                if let Value::Number(n) = quantity {
                    *quantity = json!(n.to_string());
                }
                let Some(form) = quantity.as_str().and_then(canonical) else {
                    return Err(format!(
                        "{path}.{key}: quantities must match the regular expression \
                         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                    ));
                };
                *quantity = json!(form);
            }
        }
        (Type::ByteStrings, Value::Object(map)) => {
            for (key, value) in map.iter_mut() {
                read(&Type::Bytes, value, &format!("{path}.{key}"), unknown)?;
            }
        }
        (Type::Bytes, Value::String(text)) => {
            use base64::Engine as _;
            if base64::engine::general_purpose::STANDARD
                .decode(&*text)
                .is_err()
            {
                return Err(format!("{path}: illegal base64 data"));
            }
        }
        (Type::TextList, Value::Array(items)) => {
            if items.iter().any(|item| !item.is_string()) {
                return Err(format!(
                    "json: cannot unmarshal an element of {path} into Go value of type string"
                ));
            }
        }
        (Type::List(inner), Value::Array(items)) => {
            for (n, item) in items.iter_mut().enumerate() {
                let path = format!("{path}[{n}]");
                match item {
                    Value::Object(map) => fields(inner, map, &path, unknown)?,
                    other => return wrong(other, "object"),
                }
            }
        }
        (Type::Object(inner), Value::Object(map)) => fields(inner, map, path, unknown)?,
        (Type::Text, other) => return wrong(other, "string"),
        (Type::Int, other) => return wrong(other, "int64"),
        (Type::Bool, other) => return wrong(other, "bool"),
        (Type::Time | Type::Micro, other) => return wrong(other, "time"),
        (Type::Strings | Type::Quantities | Type::ByteStrings, other) => {
            return wrong(other, "map");
        }
        (Type::Bytes, other) => return wrong(other, "[]uint8"),
        (Type::TextList | Type::List(_), other) => return wrong(other, "list"),
        (Type::Object(_), other) => return wrong(other, "object"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn read_as(plural: &str, mut object: Value) -> Result<(Value, Vec<String>), String> {
        let unknown = normalise(kinds::plural(plural).expect("kind"), &mut object)?;
        Ok((object, unknown))
    }

    #[test]
    fn as_a_typed_server_reads() {
        let (pod, unknown) = read_as(
            "pods",
            json!({"metadata": {"name": "a", "labels": {}, "wrong": 1}, "status": {
                "phase": "Running", "message": "", "fase": "x",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05.678Z"}],
                "containerStatuses": [{"name": "c", "started": false, "state": {"running": {}}}],
            }}),
        )
        .expect("reads");
        assert_eq!(unknown, ["metadata.wrong", "status.fase"]);
        assert_eq!(
            pod["status"],
            json!({
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null,
                    "lastTransitionTime": "2026-01-02T03:04:05Z"}],
                "containerStatuses": [{"name": "c", "started": false, "state": {"running": {"startedAt": null}},
                    "lastState": {}, "ready": false, "restartCount": 0, "image": "", "imageID": ""}],
            })
        );
        assert_eq!(pod["metadata"], json!({"name": "a"}));
    }

    #[test]
    fn specs_are_typed_too() {
        let (pod, unknown) = read_as(
            "pods",
            json!({"spec": {"hostNetwork": false, "containers": [{"name": "c", "image": "i", "comand": ["x"],
                "livenessProbe": {"httpGet": {"port": "http", "pfad": "/"}}, "env": [{"name": "A", "value": ""}]}],
                "volumes": [{"name": "v", "emptyDir": {}}]}}),
        )
        .expect("reads");
        assert_eq!(
            unknown,
            [
                "spec.containers[0].comand",
                "spec.containers[0].livenessProbe.httpGet.pfad"
            ]
        );
        assert_eq!(
            pod["spec"],
            json!({
                "containers": [{"name": "c", "image": "i", "livenessProbe": {"httpGet": {"port": "http"}},
                    "env": [{"name": "A"}], "resources": {}}],
                "volumes": [{"name": "v", "emptyDir": {}}],
            })
        );
        assert!(read_as("pods", json!({"spec": {"containers": [{"name": 1}]}})).is_err());
    }

    #[test]
    fn older_servers_know_less() {
        let pod = json!({"status": {"phase": "Running", "observedGeneration": 1,
            "conditions": [{"type": "Ready", "observedGeneration": 1}]}});
        let mut old = pod.clone();
        drop_newer(33, "pods", &mut old);
        assert_eq!(
            old,
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready"}]}})
        );
        let mut new = pod.clone();
        drop_newer(34, "pods", &mut new);
        assert_eq!(new, pod);
    }

    #[test]
    fn wrong_types_are_refused() {
        for (plural, object) in [
            ("pods", json!({"status": {"phase": 1}})),
            ("pods", json!({"status": {"conditions": {}}})),
            ("pods", json!({"status": {"startTime": "yesterday"}})),
            (
                "leases",
                json!({"spec": {"renewTime": "2026-01-02T03:04:05Z"}}),
            ),
            ("leases", json!({"spec": {"leaseDurationSeconds": "40"}})),
            ("nodes", json!({"status": {"capacity": {"cpu": "four"}}})),
            ("configmaps", json!({"data": {"a": 1}})),
        ] {
            assert!(read_as(plural, object.clone()).is_err(), "{object}");
        }
        let micro = json!({"spec": {"renewTime": "2026-01-02T03:04:05.000001Z"}});
        assert!(read_as("leases", micro).is_ok());
    }
}
