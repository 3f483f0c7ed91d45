//! API create-validation of ConfigMaps and Secrets.

use alloc::string::String;

use serde_json::Value;

use super::{
    field::{FieldErrors, config_key},
    validate_object_meta,
};
use crate::api::{ConfigMap, ObjectMeta, Secret, received::InvalidObject, strict};

/// Bytes of all values of a ConfigMap or Secret together.
const MAX_DATA_BYTES: usize = 1 << 20;
/// Annotation that names the service account of a token.
const SERVICE_ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// Checks a ConfigMap; names every wrong field.
pub fn validate_config_map(object: &ConfigMap) -> Result<(), InvalidObject> {
    let text = object.data.iter().map(|(key, value)| (key, value.len()));
    let binary = object
        .binary_data
        .iter()
        .map(|(key, value)| (key, value.0.len()));
    let mut errors = FieldErrors::default();
    for key in object
        .data
        .keys()
        .filter(|key| object.binary_data.contains_key(*key))
    {
        errors.invalid("data", key, "duplicate of key present in binaryData");
    }
    validate_object_data("ConfigMap", &object.metadata, text.chain(binary), errors)
}

/// Checks a Secret; names every wrong field, never a value.
pub fn validate_secret(object: &Secret) -> Result<(), InvalidObject> {
    let entries = object.data.iter().map(|(key, value)| (key, value.0.len()));
    let mut errors = FieldErrors::default();
    validate_secret_type(object, &mut errors);
    validate_object_data("Secret", &object.metadata, entries, errors)
}

/// Checks that a Secret of a type which the API knows has the required keys. Other types may hold any data.
fn validate_secret_type(object: &Secret, errors: &mut FieldErrors) {
    let has = |key: &str| object.data.contains_key(key);
    let mut need = |keys: &[&str]| {
        for key in keys.iter().filter(|key| !has(key)) {
            errors.required(&format!("data[{key}]"), "");
        }
    };
    match object.kind.as_str() {
        "kubernetes.io/tls" => need(&["tls.crt", "tls.key"]),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            need(&["username", "password"]);
        }
        "kubernetes.io/ssh-auth" => {
            let key = object.data.get("ssh-privatekey");
            if key.is_none_or(|key| key.0.is_empty()) {
                errors.required("data[ssh-privatekey]", "");
            }
        }
        "kubernetes.io/dockercfg" => validate_registry_credentials(object, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => {
            validate_registry_credentials(object, ".dockerconfigjson", errors)
        }
        "kubernetes.io/service-account-token" => {
            let name = object.metadata.annotations.get(SERVICE_ACCOUNT_NAME);
            if name.is_none_or(String::is_empty) {
                errors.required(&format!("metadata.annotations[{SERVICE_ACCOUNT_NAME}]"), "");
            }
        }
        _ => {}
    }
}

/// Checks that credentials of registries are a JSON object.
fn validate_registry_credentials(object: &Secret, key: &str, errors: &mut FieldErrors) {
    let path = format!("data[{key}]");
    match object.data.get(key) {
        None => errors.required(&path, ""),
        Some(text) => {
            let parsed = strict::from_json::<serde_json::Map<String, Value>>(&text.0);
            if parsed.is_err() {
                // The parser's error would show a part of the secret.
                errors.invalid(&path, "<secret contents redacted>", "not a JSON object");
            }
        }
    }
}

fn validate_object_data<'a>(
    kind: &'static str,
    metadata: &ObjectMeta,
    entries: impl Iterator<Item = (&'a String, usize)>,
    mut errors: FieldErrors,
) -> Result<(), InvalidObject> {
    validate_object_meta(metadata, &mut errors);
    let mut bytes = 0usize;
    for (key, size) in entries {
        if let Some(detail) = config_key(key) {
            errors.invalid(&format!("data[{key}]"), key, detail);
        }
        bytes = bytes.saturating_add(size);
    }
    if bytes > MAX_DATA_BYTES {
        errors.forbidden(
            "data",
            &format!("may not be more than {MAX_DATA_BYTES} bytes"),
        );
    }
    if errors.0.is_empty() {
        return Ok(());
    }
    Err(InvalidObject::Values(kind, metadata.name.clone(), errors.0))
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;
    use serde_json::json;

    fn said<T: serde::de::DeserializeOwned>(
        rule: fn(&T) -> Result<(), InvalidObject>,
        mut object: Value,
    ) -> String {
        if object["metadata"].is_null() {
            object["metadata"] = json!({"name": "a", "namespace": "default"});
        }
        let object: T = serde_json::from_value(object).expect("object");
        let wrong = rule(&object).err();
        wrong.map(|e| format!("{e}")).unwrap_or_default()
    }

    #[test]
    fn config_maps() {
        let large = "x".repeat(MAX_DATA_BYTES);
        let named = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
        for (object, says) in [
            (
                json!({"data": {"a.b-c_D": ""}, "binaryData": {"b": "AAE="}}),
                "",
            ),
            (json!({"data": {"a": large}}), ""),
            (
                json!({"data": {"a": large, "b": "x"}}),
                "ConfigMap \"a\" is invalid: data: Forbidden: may not be more than 1048576 bytes",
            ),
            (json!({"data": {"a b": ""}}), "data[a b]: Invalid value"),
            (json!({"data": {"..": ""}}), "data[..]: Invalid value"),
            (
                json!({"data": {"a": ""}, "binaryData": {"a": ""}}),
                "data: Invalid value: \"a\": duplicate of key present in binaryData",
            ),
            (named(""), "metadata.name: Required value"),
            (named("A"), "metadata.name: Invalid value: \"A\""),
        ] {
            let shown: String = format!("{object}").chars().take(80).collect();
            let text = said(validate_config_map, object);
            assert!(
                text.contains(says) && text.is_empty() == says.is_empty(),
                "{shown}: {text:.200}"
            );
        }
    }

    #[test]
    fn secrets_hold_what_their_type_asks_for() {
        let of = |kind: &str, keys: &[(&str, &str)]| {
            use base64::Engine as _;
            let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
            let data: serde_json::Map<String, Value> = keys
                .iter()
                .map(|(key, text)| ((*key).to_owned(), encode(text).into()))
                .collect();
            json!({"type": kind, "data": data})
        };
        for (object, says) in [
            (of("", &[("any", "x")]), ""),
            (of("Opaque", &[]), ""),
            (of("example.org/mine", &[]), ""),
            (
                of("kubernetes.io/tls", &[("tls.crt", "x"), ("tls.key", "")]),
                "",
            ),
            (
                of("kubernetes.io/tls", &[("tls.crt", "x")]),
                "Secret \"a\" is invalid: data[tls.key]: Required value",
            ),
            (of("kubernetes.io/basic-auth", &[("password", "")]), ""),
            (
                of("kubernetes.io/basic-auth", &[("user", "x")]),
                "data[username]: Required value; data[password]: Required value",
            ),
            (of("kubernetes.io/ssh-auth", &[("ssh-privatekey", "x")]), ""),
            (
                of("kubernetes.io/ssh-auth", &[("ssh-privatekey", "")]),
                "data[ssh-privatekey]: Required value",
            ),
            (
                of(
                    "kubernetes.io/dockerconfigjson",
                    &[(".dockerconfigjson", r#"{"auths":{}}"#)],
                ),
                "",
            ),
            (
                of("kubernetes.io/dockerconfigjson", &[]),
                "data[.dockerconfigjson]: Required value",
            ),
            (
                of("kubernetes.io/dockercfg", &[(".dockercfg", "hidden")]),
                "data[.dockercfg]: Invalid value: \"<secret contents redacted>\": not a JSON object",
            ),
            (
                of("kubernetes.io/service-account-token", &[]),
                "metadata.annotations[kubernetes.io/service-account.name]: Required value",
            ),
        ] {
            let shown = format!("{object}");
            let text = said(validate_secret, object);
            assert!(
                text.contains(says) && text.is_empty() == says.is_empty(),
                "{shown}: {text}"
            );
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
