//! `metadata` of any object.
//!
//! Source: apimachinery `pkg/api/validation/objectmeta.go`.

use serde_json::Value;

use crate::error::Fields;
use crate::json::{at, list, map, text};
use crate::kinds::Kind;

/// Bytes of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 * 1024;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
    and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

pub(super) const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
    and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
    with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// RFC 1123 label: at most 63 letters, digits and dashes.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|b| inner(*b))
        && bytes.last().is_some_and(|b| inner(*b))
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

/// RFC 1123 subdomain: at most 253 bytes. Parts may be longer than a label, as upstream has it.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|b| inner(*b))
                && bytes.last().is_some_and(|b| inner(*b))
                && bytes.iter().all(|b| inner(*b) || *b == b'-')
        })
}

fn is_name_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// `[prefix/]name`, as keys of labels have it.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

pub(super) fn qualified_name(field: &str, value: &str, errors: &mut Fields) {
    if value.is_empty() {
        errors.invalid(field, &Value::from(value), "name part must be non-empty");
    } else if !is_qualified_name(value) {
        errors.invalid(field, &Value::from(value), QUALIFIED);
    }
}

/// Validates what every object has.
pub(super) fn validate(kind: &Kind, object: &Value, errors: &mut Fields) {
    let name = text(object, "/metadata/name");
    if name.is_empty() {
        errors.required("metadata.name", "name or generateName is required");
    } else {
        let value = Value::from(name);
        match kind.plural {
            "namespaces" | "services" if !is_label(name) => {
                errors.invalid("metadata.name", &value, LABEL)
            }
            "namespaces" | "services" => {}
            // What it is called is nobody's business, but it has to fit into a path.
            "certificatesigningrequests" | "clustertrustbundles"
                if name.contains(['/', '%']) || name == "." || name == ".." =>
            {
                errors.invalid("metadata.name", &value, "may not contain '/' or '%'");
            }
            "certificatesigningrequests" | "clustertrustbundles" => {}
            _ if !is_subdomain(name) => errors.invalid("metadata.name", &value, SUBDOMAIN),
            _ => {}
        }
    }
    for (key, value) in map(object, "/metadata/labels") {
        qualified_name("metadata.labels", key, errors);
        let text = value.as_str().unwrap_or("");
        if !text.is_empty() && !is_name_part(text) {
            errors.invalid(
                "metadata.labels",
                value,
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                 regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            );
        }
    }
    let mut total = 0;
    for (key, value) in map(object, "/metadata/annotations") {
        // Upstream compares lower-cased keys only here.
        qualified_name("metadata.annotations", &key.to_lowercase(), errors);
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > MAX_ANNOTATIONS {
        errors.invalid(
            "metadata.annotations",
            &Value::from(""),
            "Too long: may not be more than 262144 bytes",
        );
    }
    let mut controllers = 0;
    for (n, owner) in list(object, "/metadata/ownerReferences").iter().enumerate() {
        let path = format!("metadata.ownerReferences[{n}]");
        for (key, name) in [
            ("apiVersion", "version"),
            ("kind", "kind"),
            ("name", "name"),
            ("uid", "uid"),
        ] {
            if text(owner, &format!("/{key}")).is_empty() {
                errors.invalid(
                    &format!("{path}.{key}"),
                    &Value::from(""),
                    &format!("{name} must not be empty"),
                );
            }
        }
        if at(owner, "/controller").as_bool() == Some(true) {
            controllers += 1;
            if controllers > 1 {
                errors.invalid(
                    "metadata.ownerReferences",
                    owner,
                    "Only one reference can have Controller set to true",
                );
            }
        }
    }
    for (n, finalizer) in list(object, "/metadata/finalizers").iter().enumerate() {
        let field = format!("metadata.finalizers[{n}]");
        qualified_name(&field, finalizer.as_str().unwrap_or(""), errors);
    }
}

/// Validates what an update may not change.
pub(super) fn validate_update(new: &Value, old: &Value, errors: &mut Fields) {
    if !text(old, "/metadata/deletionTimestamp").is_empty() {
        let had = list(old, "/metadata/finalizers");
        let added: Vec<_> = list(new, "/metadata/finalizers")
            .iter()
            .filter(|f| !had.contains(f))
            .map(|f| f.as_str().unwrap_or(""))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added
                    .iter()
                    .map(|f| format!("{f:?}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
            errors.forbidden("metadata.finalizers", &detail);
        }
    }
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let pointer = format!("/metadata/{key}");
        if at(new, &pointer) != at(old, &pointer) {
            errors.invalid(
                &format!("metadata.{key}"),
                at(new, &pointer),
                "field is immutable",
            );
        }
    }
}
