//! The two kinds of patches that agents and tests send. JSON patches and server-side apply are not among them.

mod strategic;

use serde_json::Value;

use crate::error::ApiError;
use crate::json::object;
use crate::kinds::Kind;

/// Media types of patches, as a refusal lists them.
pub(crate) const MEDIA_TYPES: &[&str] = &[
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Applies a patch of the given media type.
///
/// - Errors: 415 for other media types, 400 for what is no patch.
/// - Source: apiserver `pkg/endpoints/handlers/patch.go`.
pub(crate) fn apply(
    media: &str,
    kind: &Kind,
    current: &Value,
    body: &[u8],
) -> Result<Value, ApiError> {
    if !MEDIA_TYPES.contains(&media) {
        return Err(ApiError::media_type(MEDIA_TYPES));
    }
    let patch: Value = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
    if !patch.is_object() {
        return Err(ApiError::bad_request("error decoding patch: not an object"));
    }
    let mut next = current.clone();
    if media == "application/merge-patch+json" {
        merge(&mut next, &patch);
    } else {
        strategic::merge(kind, &mut next, &patch)?;
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
