//! Refusals, as `metav1.Status`, and field errors in upstream's words.

use std::fmt;

use serde_json::{Value, json};

use crate::kinds::Kind;

/// An answer that is not a success.
///
/// Source: apimachinery `pkg/api/errors`.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub code: u16,
    /// `status.reason`; may be empty.
    pub reason: &'static str,
    /// For people, and for clients that match on it.
    pub message: String,
    /// `status.details`, or null.
    pub details: Value,
    /// Also sent as `Retry-After`.
    pub retry_after_s: Option<u32>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for ApiError {}

/// `details` that name an object; upstream puts the plural under `kind`.
fn about(group: &str, kind: &str, name: &str) -> Value {
    let mut details = json!({});
    if !kind.is_empty() {
        details["kind"] = json!(kind);
    }
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details
}

impl ApiError {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Value::Null,
            retry_after_s: None,
        }
    }

    /// With `details` that say nothing, as upstream sends for what it refuses before it knows the resource.
    fn bare(mut self) -> Self {
        self.details = json!({});
        self
    }

    fn of(mut self, kind: &Kind, name: &str) -> Self {
        self.details = about(kind.group, kind.plural, name);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} {name:?} not found", kind.qualified()),
        )
        .of(kind, name)
    }

    /// No such path at all.
    pub(crate) fn no_route() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
        .bare()
    }

    pub(crate) fn exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).of(kind, name)
    }

    /// A conflict of a precondition, which upstream words with the kind instead of the resource.
    pub(crate) fn precondition(kind: &Kind, name: &str, why: &str) -> Self {
        let mut error = Self::new(
            409,
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {} {name:?}: {why}",
                kind.kind
            ),
        );
        error.details = about(kind.group, kind.kind, name);
        error
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            kind.qualified()
        );
        Self::new(409, "Conflict", message).of(kind, name)
    }

    /// What an update with an old resourceVersion gets.
    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// What a write gets whose body carries another uid than the stored object.
    pub(crate) fn uid_precondition(
        kind: &Kind,
        ns: &str,
        name: &str,
        wanted: &str,
        has: &str,
    ) -> Self {
        let path = if ns.is_empty() {
            format!("{}/{name}", kind.registry())
        } else {
            format!("{}/{ns}/{name}", kind.registry())
        };
        Self::conflict(
            kind,
            name,
            &format!(
                "StorageError: invalid object, Code: 4, Key: /registry/{path}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}"
            ),
        )
    }

    /// What admission refuses.
    pub(crate) fn forbidden(kind: &Kind, name: &str, why: impl fmt::Display) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", kind.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", kind.qualified())
        };
        Self::new(403, "Forbidden", message).of(kind, name)
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn method() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .bare()
    }

    pub(crate) fn media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json";
        Self::new(406, "NotAcceptable", message)
    }

    /// A read at a version that this server has not reached.
    pub(crate) fn too_large_version(wanted: u64, current: u64) -> Self {
        let mut error = Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {wanted}, current: {current}"),
        );
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error.retry_after_s = Some(1);
        error
    }

    /// The `Status` object of the answer.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(seconds) = self.retry_after_s {
            status["details"]["retryAfterSeconds"] = json!(seconds);
        }
        status
    }
}

/// Collects what is wrong with an object, field by field.
///
/// Source: apimachinery `pkg/util/validation/field`.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    causes: Vec<Value>,
}

impl Fields {
    fn push(&mut self, field: &str, reason: &str, message: String) {
        self.causes
            .push(json!({"field": field, "reason": reason, "message": message}));
    }

    pub(crate) fn required(&mut self, field: &str, detail: &str) {
        let colon = if detail.is_empty() { "" } else { ": " };
        self.push(
            field,
            "FieldValueRequired",
            format!("Required value{colon}{detail}"),
        );
    }

    pub(crate) fn invalid(&mut self, field: &str, value: &Value, detail: &str) {
        let value = if value.is_null() {
            "null".to_owned()
        } else {
            value.to_string()
        };
        self.push(
            field,
            "FieldValueInvalid",
            format!("Invalid value: {value}: {detail}"),
        );
    }

    pub(crate) fn duplicate(&mut self, field: &str, value: &Value) {
        self.push(
            field,
            "FieldValueDuplicate",
            format!("Duplicate value: {value}"),
        );
    }

    pub(crate) fn unsupported(&mut self, field: &str, value: &Value, supported: &[&str]) {
        let all: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let message = format!(
            "Unsupported value: {value}: supported values: {}",
            all.join(", ")
        );
        self.push(field, "FieldValueNotSupported", message);
    }

    pub(crate) fn forbidden(&mut self, field: &str, detail: &str) {
        self.push(field, "FieldValueForbidden", format!("Forbidden: {detail}"));
    }

    pub(crate) fn not_found(&mut self, field: &str, value: &Value) {
        self.push(field, "FieldValueNotFound", format!("Not found: {value}"));
    }

    /// An error when anything was collected.
    pub(crate) fn finish(self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        self.finish_as(kind.group, kind.kind, name)
    }

    pub(crate) fn finish_as(self, group: &str, kind: &str, name: &str) -> Result<(), ApiError> {
        if self.causes.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = self
            .causes
            .iter()
            .map(|cause| {
                let part = |key: &str| cause[key].as_str().unwrap_or("").to_owned();
                format!("{}: {}", part("field"), part("message"))
            })
            .collect();
        let all = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let dot = if group.is_empty() { "" } else { "." };
        let mut error = ApiError::new(
            422,
            "Invalid",
            format!("{kind}{dot}{group} {name:?} is invalid: {all}"),
        );
        error.details = about(group, kind, name);
        error.details["causes"] = Value::Array(self.causes);
        Err(error)
    }
}
