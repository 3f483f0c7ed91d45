//! What each resource does with an object on its way in: defaults, fields that a caller may not set, validation.
//!
//! Source: `pkg/registry/*/*/strategy.go` and `pkg/apis/*/validation`, 1.36. What is validated is what a node agent
//! or its tests can get wrong; it is not everything.

pub(crate) mod meta;
mod other;
mod pod;
mod pod_defaults;
mod pod_status;

pub(crate) use pod::{api_references, config_maps, container_lists, is_mirror, secrets};
pub(crate) use pod_defaults::admit as admit_pod;

use serde_json::{Value, json};

use crate::auth::User;
use crate::config::Config;
use crate::error::{ApiError, Fields};
use crate::json::{at, carry, child, text};
use crate::kinds::Kind;

/// What a rule may look at beside the objects.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) user: &'a User,
}

/// Fills in what a decoder fills in: defaults of the version.
pub(crate) fn default(kind: &Kind, object: &mut Value) {
    match kind.plural {
        "pods" => pod_defaults::default(object),
        _ => other::default(kind, object),
    }
}

/// Makes a new object ready: what only the server sets is set or cleared.
pub(crate) fn prepare_create(kind: &Kind, context: &Context<'_>, new: &mut Value) {
    match kind.plural {
        "pods" => pod::prepare_create(context.config, new),
        "certificatesigningrequests" => other::prepare_csr(context.user, new),
        "podcertificaterequests" => new["status"] = json!({}),
        "persistentvolumes" | "persistentvolumeclaims" => {
            new["status"] = json!({"phase": "Pending"});
            other::protect(kind, new);
        }
        "namespaces" => {
            new["status"] = json!({"phase": "Active"});
            new["spec"] = json!({"finalizers": ["kubernetes"]});
        }
        "services" => other::prepare_service(new),
        "priorityclasses" => new["metadata"]["generation"] = json!(1),
        "secrets" => other::string_data(new),
        _ => {}
    }
}

/// Says what is wrong with a new object.
pub(crate) fn validate_create(kind: &Kind, new: &Value) -> Result<(), ApiError> {
    let mut errors = Fields::default();
    meta::validate(kind, new, &mut errors);
    match kind.plural {
        "pods" => pod::validate(new, &mut errors),
        _ => other::validate(kind, new, &mut errors),
    }
    errors.finish(kind, text(new, "/metadata/name"))
}

/// Makes an update ready: `sub` says through which subresource it came, and so what it may change.
pub(crate) fn prepare_update(
    kind: &Kind,
    context: &Context<'_>,
    sub: &str,
    new: &mut Value,
    old: &Value,
) {
    match sub {
        "status" => {
            // Metadata is left to most status updates as well: upstream resets it for few resources only.
            carry(old, new, "spec");
            if kind.plural == "pods" {
                pod_status::prepare(new, old);
            }
            if matches!(kind.plural, "certificatesigningrequests") {
                other::keep_approvals(new, old);
            }
        }
        "approval" => {
            carry(old, new, "spec");
            let certificate = at(old, "/status/certificate").clone();
            let status = child(new, &["status"]);
            if certificate.is_null() {
                status.remove("certificate");
            } else {
                status.insert("certificate".to_owned(), certificate);
            }
        }
        "ephemeralcontainers" => {
            let containers = at(new, "/spec/ephemeralContainers").clone();
            carry(old, new, "spec");
            carry(old, new, "status");
            new["spec"]["ephemeralContainers"] = containers;
            pod::follow_generation(context.config, new, old);
        }
        "resize" => {
            let wanted = new["spec"].take();
            carry(old, new, "spec");
            carry(old, new, "status");
            pod::take_resources(new, &wanted);
            pod::follow_generation(context.config, new, old);
        }
        "finalize" => {
            carry(old, new, "status");
        }
        _ => {
            if kind.has_sub("status") {
                carry(old, new, "status");
            }
            match kind.plural {
                "certificatesigningrequests" => carry(old, new, "spec"),
                "namespaces" => carry(old, new, "spec"),
                "secrets" => other::string_data(new),
                "pods" => pod::follow_generation(context.config, new, old),
                _ => {}
            }
        }
    }
}

/// Says what is wrong with an update.
pub(crate) fn validate_update(
    kind: &Kind,
    sub: &str,
    new: &Value,
    old: &Value,
) -> Result<(), ApiError> {
    let mut errors = Fields::default();
    meta::validate(kind, new, &mut errors);
    meta::validate_update(new, old, &mut errors);
    match (kind.plural, sub) {
        ("pods", "status") => pod_status::validate(new, old, &mut errors),
        ("pods", _) => pod::validate_update(sub, new, old, &mut errors),
        _ => other::validate_update(kind, sub, new, old, &mut errors),
    }
    errors.finish(kind, text(old, "/metadata/name"))
}
