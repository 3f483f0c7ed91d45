//! The three kinds of patches. Server-side apply is not one of them.

mod json;
mod strategic;

use serde_json::Value;

use crate::error::ApiError;
use crate::json::object;
use crate::kinds::Kind;

/// Media types of patches, as a refusal lists them.
pub(crate) const MEDIA_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Operations that one JSON patch may hold.
const MAX_OPERATIONS: usize = 10_000;

/// Applies a patch of the given media type.
///
/// - Errors: 415 for other media types, 400 for what is no patch, 422 for one that does not fit the object.
/// - Source: apiserver `pkg/endpoints/handlers/patch.go`.
pub(crate) fn apply(
    media: &str,
    kind: &Kind,
    current: &Value,
    body: &[u8],
) -> Result<Value, ApiError> {
    let patch: Value = match media {
        "application/json-patch+json"
        | "application/merge-patch+json"
        | "application/strategic-merge-patch+json" => serde_json::from_slice(body)
            .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?,
        _ => return Err(ApiError::media_type(MEDIA_TYPES)),
    };
    let mut next = current.clone();
    match media {
        "application/json-patch+json" => {
            let operations = patch.as_array().ok_or_else(|| {
                ApiError::bad_request("error decoding patch: not a list of operations")
            })?;
            if operations.len() > MAX_OPERATIONS {
                return Err(ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        operations.len()
                    ),
                ));
            }
            // Upstream does not say why.
            json::apply(&mut next, operations).map_err(|_| {
                ApiError::new(
                    422,
                    "Invalid",
                    "the server rejected our request due to an error in our request",
                )
            })?;
        }
        "application/merge-patch+json" => merge(&mut next, &patch),
        _ => {
            if !patch.is_object() {
                return Err(ApiError::bad_request("error decoding patch: not an object"));
            }
            strategic::merge(kind, &mut next, &patch)?;
        }
    }
    if !next.is_object() {
        return Err(ApiError::bad_request("the patched object is not an object"));
    }
    Ok(next)
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = object(target);
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds;

    #[test]
    fn media_types() {
        let kind = kinds::plural("pods").expect("pods");
        let object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        let run = |media: &str, patch: Value| {
            apply(
                &format!("application/{media}"),
                kind,
                &object,
                patch.to_string().as_bytes(),
            )
        };
        assert_eq!(
            run("merge-patch+json", json!({"a": {"b": null}, "l": [3]})).expect("applies"),
            json!({"a": {"c": 2}, "l": [3]})
        );
        assert_eq!(
            run(
                "json-patch+json",
                json!([
                    {"op": "test", "path": "/a/b", "value": 1},
                    {"op": "add", "path": "/l/-", "value": 3},
                    {"op": "remove", "path": "/l/0"},
                    {"op": "move", "from": "/a/c", "path": "/d"},
                    {"op": "replace", "path": "/a/b", "value": 5},
                ])
            )
            .expect("applies"),
            json!({"a": {"b": 5}, "d": 2, "l": [2, 3]})
        );
        let test = run(
            "json-patch+json",
            json!([{"op": "test", "path": "/a/b", "value": 2}]),
        );
        assert_eq!(test.expect_err("fails").code, 422);
        assert_eq!(run("json", json!({})).expect_err("refused").code, 415);
        assert_eq!(
            run("apply-patch+yaml", json!({}))
                .expect_err("refused")
                .code,
            415
        );
        assert_eq!(
            run("merge-patch+json", json!([]))
                .expect_err("refused")
                .code,
            400
        );
    }
}
