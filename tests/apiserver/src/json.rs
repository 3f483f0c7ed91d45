//! Short ways through `serde_json` values.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a JSON pointer; null when there is none.
pub(crate) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&NULL)
}

/// The string at a JSON pointer, or the empty string.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    at(value, pointer).as_str().unwrap_or("")
}

/// The array at a JSON pointer, or an empty one.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    at(value, pointer).as_array().map_or(&[], Vec::as_slice)
}

/// The object at a JSON pointer.
pub(crate) fn map<'a>(
    value: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    at(value, pointer)
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
}

/// Whether something other than null is there.
pub(crate) fn has(value: &Value, pointer: &str) -> bool {
    !at(value, pointer).is_null()
}

/// The object under `keys`, made where it is missing.
pub(crate) fn child<'a>(value: &'a mut Value, keys: &[&str]) -> &'a mut Map<String, Value> {
    let mut here = value;
    for key in keys {
        here = object(here)
            .entry(*key)
            .or_insert_with(|| Value::Object(Map::new()));
    }
    object(here)
}

/// The value as an object; what is not one is replaced.
pub(crate) fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object above")
}

/// Sets `key` below `keys`, unless something other than null is there.
pub(crate) fn default(value: &mut Value, keys: &[&str], key: &str, to: Value) {
    let slot = child(value, keys).entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = to;
    }
}

/// Copies `key` from one object to another, or removes it there.
pub(crate) fn carry(from: &Value, to: &mut Value, key: &str) {
    match from.get(key) {
        Some(value) => {
            object(to).insert(key.to_owned(), value.clone());
        }
        None => {
            object(to).remove(key);
        }
    }
}

/// The array under `keys`, when there is one.
pub(crate) fn array_mut<'a>(value: &'a mut Value, pointer: &str) -> &'a mut [Value] {
    value
        .pointer_mut(pointer)
        .and_then(Value::as_array_mut)
        .map_or(&mut [], Vec::as_mut_slice)
}

/// Drops nulls in objects at every depth, as a typed server does when it reads them.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
