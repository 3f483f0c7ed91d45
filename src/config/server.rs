//! Settings of the node's server (CONF-18, SRV-01 to SRV-10, BOOT-10 to BOOT-13).

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::checks::{InvalidField, invalid_field, nonzero_duration_or_default, read_absolute_path};
use super::file::KubeletConfiguration;
use super::values::{ServerConfig, ServingCertificateSource};
use crate::net::serving::is_cipher_suite;

/// Port of `/healthz`.
const HEALTHZ_PORT: u16 = 10248;

/// Resolves the fields of [`ServerConfig`]. `member`: there is an apiserver to ask.
pub(super) fn resolve_server(
    fields: &KubeletConfiguration,
    member: bool,
    port: u16,
) -> Result<ServerConfig, InvalidField> {
    let client_ca = fields.authentication.x509.client_ca_file.as_deref();
    let client_ca = client_ca
        .filter(|path| !path.is_empty())
        .map(|path| read_absolute_path("authentication.x509.clientCAFile", Some(path), ""))
        .transpose()?;
    let anonymous = fields.authentication.anonymous.enabled.unwrap_or(false);
    let webhook = &fields.authentication.webhook;
    let tokens = webhook.enabled.unwrap_or(member);
    let asks = match fields.authorization.mode.as_deref() {
        None | Some("" | "Webhook") => true,
        Some("AlwaysAllow") => false,
        Some(other) => {
            return invalid_field(
                "authorization.mode",
                format!("is {other:?}, must be AlwaysAllow or Webhook"),
            );
        }
    };
    // A node that stands alone has no clients, unless some are configured who need no permission of an apiserver.
    let serves = member || !asks && (client_ca.is_some() || anonymous);
    let enabled = fields.enable_server.unwrap_or(serves);
    let certificate = resolve_serving_certificate(fields, member, enabled)?;
    if enabled {
        if tokens && !member {
            return invalid_field(
                "authentication.webhook.enabled",
                "needs an apiserver to check tokens, and none is configured: set it to false, or set picolet.kubeconfig",
            );
        }
        if !tokens && client_ca.is_none() && !anonymous {
            return invalid_field(
                "authentication",
                "leaves no way to know a client: set x509.clientCAFile, or webhook.enabled with an apiserver, or \
                 enableServer: false",
            );
        }
        if asks && !member {
            return invalid_field(
                "authorization.mode",
                "is Webhook, which needs an apiserver, and none is configured: set AlwaysAllow, or enableServer: false",
            );
        }
    }
    if fields.read_only_port.unwrap_or(0) != 0 {
        return invalid_field(
            "readOnlyPort",
            "this version serves nothing without authentication: remove the field, or set 0",
        );
    }
    let authorization = &fields.authorization.webhook;
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let address = read_bind_address("address", fields.address.as_deref(), Ipv4Addr::UNSPECIFIED)?;
    let healthz = resolve_healthz_address(fields)?;
    check_cipher_suites(&fields.tls_cipher_suites)?;
    Ok(ServerConfig {
        listen: enabled.then(|| SocketAddr::new(address, port)),
        healthz,
        certificate,
        client_ca,
        anonymous,
        tokens: tokens.then(|| nonzero_duration_or_default(webhook.cache_ttl, minutes(2))),
        authorization: asks.then(|| {
            (
                nonzero_duration_or_default(authorization.cache_authorized_ttl, minutes(5)),
                nonzero_duration_or_default(
                    authorization.cache_unauthorized_ttl,
                    Duration::from_secs(30),
                ),
            )
        }),
        cipher_suites: fields.tls_cipher_suites.clone(),
        curves: fields.tls_curve_preferences.clone(),
        only_1_3: is_tls_1_3_only(fields.tls_min_version.as_deref())?,
        debugging: fields.enable_debugging_handlers.unwrap_or(true),
        node_logs: resolve_node_logs(fields)?,
    })
}

/// Returns true if logs of the machine can be queried (NLQ-01).
fn resolve_node_logs(fields: &KubeletConfiguration) -> Result<bool, InvalidField> {
    let wanted = fields.enable_system_log_query.unwrap_or(false);
    if wanted && fields.enable_system_log_handler == Some(false) {
        let why = "is true, which needs enableSystemLogHandler: true";
        return invalid_field("enableSystemLogQuery", why);
    }
    Ok(wanted)
}

fn resolve_serving_certificate(
    fields: &KubeletConfiguration,
    member: bool,
    enabled: bool,
) -> Result<ServingCertificateSource, InvalidField> {
    let file = |field: &str, path: &Option<String>| {
        let path = path.as_deref().filter(|path| !path.is_empty());
        path.map(|path| read_absolute_path(field, Some(path), ""))
            .transpose()
    };
    let certificate = file("tlsCertFile", &fields.tls_cert_file)?;
    let key = file("tlsPrivateKeyFile", &fields.tls_private_key_file)?;
    let bootstrap = fields.server_tls_bootstrap.unwrap_or(false);
    match (certificate, key) {
        _ if bootstrap && member => Ok(ServingCertificateSource::Requested),
        _ if bootstrap && enabled => invalid_field(
            "serverTLSBootstrap",
            "needs an apiserver to sign the certificate, and none is configured: set it to false, or set picolet.kubeconfig",
        ),
        (Some(certificate), Some(key)) => Ok(ServingCertificateSource::Files(certificate, key)),
        (None, None) => Ok(ServingCertificateSource::SelfSigned),
        (Some(_), None) => invalid_field("tlsPrivateKeyFile", "is missing: tlsCertFile needs it"),
        (None, Some(_)) => invalid_field("tlsCertFile", "is missing: tlsPrivateKeyFile needs it"),
    }
}

fn read_bind_address(
    field: &str,
    text: Option<&str>,
    default: Ipv4Addr,
) -> Result<IpAddr, InvalidField> {
    match text.filter(|text| !text.is_empty()) {
        None => Ok(default.into()),
        Some(text) => match text.parse() {
            Ok(ip) => Ok(ip),
            Err(_) => invalid_field(field, format!("is {text:?}, must be an IP address")),
        },
    }
}

fn resolve_healthz_address(
    fields: &KubeletConfiguration,
) -> Result<Option<SocketAddr>, InvalidField> {
    let bind = fields.healthz_bind_address.as_deref();
    let address = read_bind_address("healthzBindAddress", bind, Ipv4Addr::LOCALHOST)?;
    let port = fields.healthz_port.map(u16::try_from);
    // Its range is checked.
    let port = port.map_or(HEALTHZ_PORT, |port| port.unwrap_or(0));
    Ok((port != 0).then(|| SocketAddr::new(address, port)))
}

fn check_cipher_suites(names: &[String]) -> Result<(), InvalidField> {
    for (n, name) in names.iter().enumerate() {
        if !is_cipher_suite(name) {
            return invalid_field(
                &format!("tlsCipherSuites[{n}]"),
                format!("is {name:?}, which is not a cipher suite"),
            );
        }
    }
    Ok(())
}

/// Returns true if only TLS 1.3 is allowed. Versions before 1.2 are not spoken: a setting that allows them means 1.2
/// and 1.3.
fn is_tls_1_3_only(name: Option<&str>) -> Result<bool, InvalidField> {
    match name {
        None | Some("" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12") => Ok(false),
        Some("VersionTLS13") => Ok(true),
        Some(other) => invalid_field(
            "tlsMinVersion",
            format!(
                "is {other:?}, must be VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13"
            ),
        ),
    }
}
