//! Sockets of a runtime that serves CRI.

use std::path::PathBuf;

use super::{
    checks::{Invalid, invalid},
    file::Fields,
    values::Endpoints,
};

/// The kernel's limit for addresses of sockets, its last byte left out. Source: unix(7).
const MAX_PATH_BYTES: usize = 107;

/// The runtime's sockets. What only the agent's own backend can keep is refused beside them: it would be kept by nobody.
pub(super) fn resolve(fields: &Fields) -> Result<Option<Endpoints>, Invalid> {
    let field = "containerRuntimeEndpoint";
    let runtime = endpoint(field, fields.container_runtime_endpoint.as_deref())?;
    let images = endpoint(
        "imageServiceEndpoint",
        fields.image_service_endpoint.as_deref(),
    )?;
    let Some(runtime) = runtime else {
        return match images {
            None => Ok(None),
            Some(_) => invalid(
                "imageServiceEndpoint",
                format!("must not be set without {field}"),
            ),
        };
    };
    let own = &fields.picolet;
    let rate = own.image_pull_bandwidth.as_ref();
    for (name, is_set) in [
        (
            "imagePolicy.allowedRegistries",
            !own.image_policy.allowed_registries.is_empty(),
        ),
        (
            "imagePolicy.requireDigest",
            own.image_policy.require_digest == Some(true),
        ),
        (
            "imagePullBandwidth",
            rate.is_some_and(|rate| rate.value() > 0),
        ),
    ] {
        if is_set {
            return invalid(
                &format!("picolet.{name}"),
                format!(
                    "cannot be kept with {field}: the runtime pulls images; set it there, and remove it here"
                ),
            );
        }
    }
    if !own.handlers.is_empty() {
        return invalid(
            "picolet.handlers",
            format!(
                "cannot be kept with {field}: the runtime has handlers of its own; set them there"
            ),
        );
    }
    Ok(Some(Endpoints {
        images: images.unwrap_or_else(|| runtime.clone()),
        runtime,
    }))
}

/// `unix:///path` or `/path` (CRI-01).
fn endpoint(field: &str, text: Option<&str>) -> Result<Option<PathBuf>, Invalid> {
    let text = text.unwrap_or_default();
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if text.is_empty() {
        return Ok(None);
    }
    if !path.starts_with('/') || path.len() > MAX_PATH_BYTES {
        return invalid(
            field,
            format!(
                "is {text:?}, must be the socket of a runtime: unix:///path, up to {MAX_PATH_BYTES} bytes"
            ),
        );
    }
    Ok(Some(path.into()))
}
