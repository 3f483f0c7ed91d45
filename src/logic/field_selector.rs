//! Field selectors as `kubectl --field-selector` takes them: `status.phase!=Running,spec.nodeName=node01`.
//!
//! Source: k8s.io/apimachinery/pkg/fields/selector.go, without escapes.

use alloc::{boxed::Box, format, string::String, vec::Vec};

use serde_json::Value;

/// A text that is no selector, or names a field that the objects have not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FieldSelectorError(Box<str>);

impl From<String> for FieldSelectorError {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// Fields with the values that they must have, or with `true` must not have.
#[derive(Debug, Default)]
pub struct FieldSelector(Vec<(String, bool, String)>);

impl FieldSelector {
    /// Parses a selector of these fields, beside name and namespace. Errors: one line about the requirement.
    pub fn parse(text: &str, fields: &[&str]) -> Result<Self, FieldSelectorError> {
        let mut all = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (left, value) = part.split_once('=').ok_or_else(|| {
                format!("invalid selector {part:?}: expected FIELD=VALUE or FIELD!=VALUE")
            })?;
            let field = left.strip_suffix('!');
            let is_negated = field.is_some();
            let (field, value) = match field {
                Some(field) => (field, value),
                None => (left, value.strip_prefix('=').unwrap_or(value)),
            };
            if !["metadata.name", "metadata.namespace"].contains(&field) && !fields.contains(&field)
            {
                return Err(format!(
                    "field label not supported: {field}; supported are metadata.name, metadata.namespace{}{}",
                    if fields.is_empty() { "" } else { ", " },
                    fields.join(", ")
                ).into());
            }
            all.push((
                format!("/{}", field.replace('.', "/")),
                is_negated,
                value.into(),
            ));
        }
        Ok(Self(all))
    }

    /// Returns true if an object has fitting fields. An absent field is an empty text, or `false`. `object`: as JSON.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, is_negated, wanted)| {
            let fits = match object.pointer(path) {
                None | Some(Value::Null) => ["", "false"].contains(&wanted.as_str()),
                Some(Value::String(text)) => text == wanted,
                Some(Value::Bool(is_set)) => *wanted == format!("{is_set}"),
                Some(Value::Number(_) | Value::Array(_) | Value::Object(_)) => false,
            };
            fits != *is_negated
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_are_chosen() {
        // GET-02
        let fields = ["status.phase", "spec.hostNetwork", "status.podIP"];
        let pod = json!({
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"hostNetwork": true},
            "status": {"phase": "Running"},
        });
        for (text, expected) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name==a,metadata.namespace=n", true),
            ("metadata.name=a,metadata.namespace=m", false),
            ("status.phase!=Running", false),
            ("status.phase!=Failed,", true),
            ("status.podIP=", true),
            ("status.podIP!=", false),
            ("status.podIP=1.1.1.1", false),
            ("spec.hostNetwork=true", true),
            ("spec.hostNetwork=false", false),
        ] {
            let selector = FieldSelector::parse(text, &fields).expect(text);
            assert_eq!(selector.matches(&pod), expected, "{text}");
        }
        let absent = FieldSelector::parse("spec.hostNetwork=false", &fields);
        assert!(absent.is_ok_and(|selector| selector.matches(&json!({}))));
        for (bad, says) in [
            ("status.phase", "invalid selector"),
            (
                "spec.image=x",
                "field label not supported: spec.image; supported are metadata.name, metadata.namespace, status.phase",
            ),
            ("a>=1", "field label not supported: a>"),
        ] {
            let error = FieldSelector::parse(bad, &fields).expect_err(bad);
            assert!(error.0.starts_with(says), "{error}");
        }
    }
}
