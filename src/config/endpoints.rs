//! Sockets of a runtime that serves CRI.

use std::path::PathBuf;

use super::{
    checks::{InvalidField, invalid_field},
    file::KubeletConfiguration,
    values::RuntimeEndpoints,
};
use crate::runtime::runc::process::{HANDLER, ProcessPermissions};

/// Longest path of a socket: the kernel's limit without its last byte. Source: unix(7).
const MAX_PATH_BYTES: usize = 107;

/// Most directories whose programs run as pods.
const MAX_PROCESS_DIRECTORIES: usize = 16;

/// Variables that such programs may get.
const MAX_PROCESS_VARIABLES: usize = 64;

/// Reads which directories hold programs that run as plain processes; `None`: no program does.
pub(super) fn read_process_directories(
    fields: &KubeletConfiguration,
) -> Result<Option<ProcessPermissions>, InvalidField> {
    let own = &fields.picolet;
    let field = "picolet.process.directories";
    let directories = &own.process.directories;
    if directories.is_empty() {
        return match (own.process.allow_root, own.process.variables.as_slice()) {
            (None, []) => Ok(None),
            _ => invalid_field(field, "must be set for picolet.process"),
        };
    }
    if directories.len() > MAX_PROCESS_DIRECTORIES {
        return invalid_field(
            field,
            format!("must have at most {MAX_PROCESS_DIRECTORIES} entries"),
        );
    }
    let plain = |text: &&String| !text.starts_with('/') || text.trim_end_matches('/').is_empty();
    if let Some(wrong) = directories.iter().find(plain) {
        return invalid_field(
            field,
            format!("has {wrong:?}, must have absolute paths below the root directory"),
        );
    }
    if fields
        .container_runtime_endpoint
        .as_deref()
        .is_some_and(|e| !e.is_empty())
    {
        return invalid_field(
            field,
            "cannot be used with containerRuntimeEndpoint: only the agent's own runtime runs processes",
        );
    }
    let variables = &own.process.variables;
    if variables.len() > MAX_PROCESS_VARIABLES {
        return invalid_field(
            "picolet.process.variables",
            format!("must have at most {MAX_PROCESS_VARIABLES} entries"),
        );
    }
    let odd = |text: &&String| text.is_empty() || text.contains(['=', '\0']);
    if let Some(wrong) = variables.iter().find(odd) {
        return invalid_field(
            "picolet.process.variables",
            format!("has {wrong:?}, must have names, or prefixes of names that end in *"),
        );
    }
    if own.handlers.contains_key(HANDLER) {
        return invalid_field(
            "picolet.process",
            format!("the handler {HANDLER:?} is in picolet.handlers too: remove one of them"),
        );
    }
    Ok(Some(ProcessPermissions {
        directories: directories.iter().map(PathBuf::from).collect(),
        root: own.process.allow_root.unwrap_or(false),
        variables: variables.clone(),
    }))
}

/// Reads the runtime's sockets. Settings that only the agent's own backend fulfils are refused beside them: no program
/// would fulfil them.
pub(super) fn resolve_endpoints(
    fields: &KubeletConfiguration,
) -> Result<Option<RuntimeEndpoints>, InvalidField> {
    let field = "containerRuntimeEndpoint";
    let runtime = read_endpoint(
        field,
        "runtime",
        fields.container_runtime_endpoint.as_deref(),
    )?;
    let images = read_endpoint(
        "imageServiceEndpoint",
        "runtime",
        fields.image_service_endpoint.as_deref(),
    )?;
    let Some(runtime) = runtime else {
        return match images {
            None => Ok(None),
            Some(_) => invalid_field(
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
            return invalid_field(
                &format!("picolet.{name}"),
                format!(
                    "cannot be used with {field}: the runtime pulls images; set it there, and remove it here"
                ),
            );
        }
    }
    if own.log_memory.is_some() {
        return invalid_field(
            "picolet.logMemory",
            format!("cannot be used with {field}: the runtime writes the logs itself"),
        );
    }
    if !own.handlers.is_empty() {
        return invalid_field(
            "picolet.handlers",
            format!(
                "cannot be used with {field}: the runtime has handlers of its own; set them there"
            ),
        );
    }
    Ok(Some(RuntimeEndpoints {
        images: images.unwrap_or_else(|| runtime.clone()),
        runtime,
    }))
}

/// Reads `unix:///path` or `/path` (CRI-01).
pub(crate) fn read_endpoint(
    field: &str,
    server: &str,
    text: Option<&str>,
) -> Result<Option<PathBuf>, InvalidField> {
    let text = text.unwrap_or_default();
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if text.is_empty() {
        return Ok(None);
    }
    if !path.starts_with('/') || path.len() > MAX_PATH_BYTES {
        return invalid_field(
            field,
            format!(
                "is {text:?}, must be the socket of a {server}: unix:///path, up to {MAX_PATH_BYTES} bytes"
            ),
        );
    }
    Ok(Some(path.into()))
}
