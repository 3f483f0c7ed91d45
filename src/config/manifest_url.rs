//! Manifests of static pods at a URL (SRC-22).

use core::time::Duration;

use super::checks::{InvalidField, invalid_field, nonzero_duration_or_default, read_absolute_path};
use super::file::KubeletConfiguration;
use super::values::ManifestUrlConfig;
use crate::net::Url;

/// Time between two looks.
const CHECK: Duration = Duration::from_secs(20);
/// Time between two looks where bytes cost money.
const METERED_CHECK: Duration = Duration::from_secs(300);
/// Most headers, and most bytes of a name and a value.
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 8 * 1024;

/// Resolves the fields of [`ManifestUrlConfig`], if there is a URL.
pub(super) fn resolve_manifest_url(
    fields: &KubeletConfiguration,
) -> Result<Option<ManifestUrlConfig>, InvalidField> {
    let Some(text) = fields.static_pod_url.as_deref().filter(|u| !u.is_empty()) else {
        return Ok(None);
    };
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(why) => return invalid_field("staticPodURL", format!("is not a usable URL: {why}")),
    };
    let mut headers = Vec::new();
    for (name, values) in &fields.static_pod_url_header {
        for value in values {
            if !is_header_name(name)
                || !is_header_value(value)
                || name.len() + value.len() > MAX_HEADER_BYTES
            {
                // The value may be a secret key.
                return invalid_field(
                    &format!("staticPodURLHeader[{name:?}]"),
                    "is not an HTTP header",
                );
            }
            headers.push((name.clone(), value.clone()));
        }
    }
    if headers.len() > MAX_HEADERS {
        return invalid_field(
            "staticPodURLHeader",
            format!("has more than {MAX_HEADERS} headers"),
        );
    }
    let field = "picolet.manifestURLCA";
    let ca = fields.picolet.manifest_url_ca.as_deref();
    let ca = ca
        .filter(|path| !path.is_empty())
        .map(|path| read_absolute_path(field, Some(path), ""))
        .transpose()?;
    if ca.is_some() && !url.https {
        return invalid_field(field, "needs a staticPodURL with https");
    }
    Ok(Some(ManifestUrlConfig {
        url,
        headers,
        ca,
        checks: [CHECK, METERED_CHECK]
            .map(|usual| nonzero_duration_or_default(fields.http_check_frequency, usual)),
    }))
}

/// Returns true for a valid name of a header. Source: RFC 9110 section 5.6.2.
fn is_header_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !name.is_empty() && name.bytes().all(plain)
}

/// Returns true for a valid value of a header. Source: RFC 9110 section 5.5, ASCII alone.
fn is_header_value(value: &str) -> bool {
    let plain = |b: u8| b == b'\t' || (b' '..=b'~').contains(&b);
    value.bytes().all(plain) && value.trim() == value
}
