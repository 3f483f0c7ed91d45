//! RFC 6902.

use serde_json::Value;

use crate::json::text;

/// Applies the operations in order. The error says which one did not fit.
pub(super) fn apply(target: &mut Value, operations: &[Value]) -> Result<(), String> {
    for operation in operations {
        let path = text(operation, "/path");
        let value = || {
            operation
                .get("value")
                .cloned()
                .ok_or_else(|| format!("{path}: no value"))
        };
        match text(operation, "/op") {
            "add" => add(target, path, value()?)?,
            "remove" => {
                remove(target, path)?;
            }
            "replace" => {
                let value = value()?;
                *target.pointer_mut(path).ok_or_else(|| {
                    format!("replace operation does not apply: doc is missing key: {path}")
                })? = value;
            }
            "move" => {
                let value = remove(target, text(operation, "/from"))?;
                add(target, path, value)?;
            }
            "copy" => {
                let from = text(operation, "/from");
                let value = target.pointer(from).cloned().ok_or_else(|| {
                    format!("copy operation does not apply: doc is missing key: {from}")
                })?;
                add(target, path, value)?;
            }
            "test" => {
                let wanted = operation.get("value").unwrap_or(&Value::Null);
                if target.pointer(path).unwrap_or(&Value::Null) != wanted {
                    return Err(format!("testing value {path} failed: test failed"));
                }
            }
            other => return Err(format!("unexpected kind: {other:?}")),
        }
    }
    Ok(())
}

fn split(path: &str) -> Result<(&str, String), String> {
    let (parent, last) = path
        .rsplit_once('/')
        .ok_or_else(|| format!("not a pointer: {path:?}"))?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn missing(path: &str) -> String {
    format!("operation does not apply: doc is missing path: {path}")
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let (parent, last) = split(path)?;
    match target.pointer_mut(parent).ok_or_else(|| missing(path))? {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            let at: usize = last.parse().map_err(|_| missing(path))?;
            if at > items.len() {
                return Err(missing(path));
            }
            items.insert(at, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, last) = split(path)?;
    match target.pointer_mut(parent).ok_or_else(|| missing(path))? {
        Value::Object(map) => map.remove(&last).ok_or_else(|| missing(path)),
        Value::Array(items) => {
            let at: usize = last.parse().map_err(|_| missing(path))?;
            if at >= items.len() {
                return Err(missing(path));
            }
            Ok(items.remove(at))
        }
        _ => Err(missing(path)),
    }
}
