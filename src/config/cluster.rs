//! Settings of the connection to the apiserver (CONF-07, CONF-14, CONF-21).

use std::path::{Path, PathBuf};

use super::checks::{InvalidField, count_or_default, invalid_field, read_absolute_path};
use super::file::KubeletConfiguration;
use super::values::{ClusterConfig, OfflineSecrets};
use crate::net::Url;

/// Most further URLs of the apiserver.
const MAX_SERVERS: usize = 16;

/// File in which an agent of k3s keeps the password of its node.
pub const K3S_PASSWORD_FILE: &str = "/etc/rancher/node/password";

/// Resolves the fields of [`ClusterConfig`].
pub(super) fn resolve_cluster(
    fields: &KubeletConfiguration,
    root: &Path,
) -> Result<ClusterConfig, InvalidField> {
    let own = &fields.picolet;
    let file = |field: &str, path: Option<&str>| -> Result<Option<PathBuf>, InvalidField> {
        path.filter(|path| !path.is_empty())
            .map(|path| read_absolute_path(field, Some(path), ""))
            .transpose()
    };
    let kubeconfig = file("picolet.kubeconfig", own.kubeconfig.as_deref())?;
    let bootstrap_kubeconfig = file(
        "picolet.bootstrapKubeconfig",
        own.bootstrap_kubeconfig.as_deref(),
    )?;
    if bootstrap_kubeconfig.is_some() && kubeconfig.is_none() {
        return invalid_field(
            "picolet.bootstrapKubeconfig",
            "needs picolet.kubeconfig, the path where the agent writes its kubeconfig",
        );
    }
    let network_kubeconfig = file(
        "picolet.networkKubeconfig",
        own.network_kubeconfig.as_deref(),
    )?;
    if network_kubeconfig.is_some() && kubeconfig.is_none() {
        return invalid_field("picolet.networkKubeconfig", "needs picolet.kubeconfig");
    }
    let k3s = match own.k3s_server.as_deref() {
        None | Some("") => None,
        Some(text) => {
            let field = "picolet.k3sServer";
            let Some(url) = Url::parse(text).ok().filter(|url| url.https) else {
                return invalid_field(field, format!("is {text:?}, must be an https URL"));
            };
            if kubeconfig.is_none() {
                return invalid_field(field, "needs picolet.kubeconfig");
            }
            let file = own.k3s_password_file.as_deref();
            let file = read_absolute_path("picolet.k3sPasswordFile", file, K3S_PASSWORD_FILE)?;
            Some((url, file))
        }
    };
    if own.api_servers.len() > MAX_SERVERS {
        return invalid_field(
            "picolet.apiServers",
            format!("has more than {MAX_SERVERS} items"),
        );
    }
    Ok(ClusterConfig {
        rotate_certificates: fields
            .rotate_certificates
            .unwrap_or_else(|| bootstrap_kubeconfig.is_some()),
        kubeconfig,
        bootstrap_kubeconfig,
        cert_dir: read_absolute_path(
            "picolet.certDir",
            own.cert_dir.as_deref(),
            &root.join("pki").to_string_lossy(),
        )?,
        servers: own.api_servers.clone(),
        k3s,
        network_kubeconfig,
        qps: (
            count_or_default(fields.kube_api_qps, 50),
            count_or_default(fields.kube_api_burst, 100),
        ),
        event_qps: (
            count_or_default(fields.event_record_qps, 50),
            count_or_default(fields.event_burst, 100),
        ),
        offline_secrets: match own.offline_secrets.as_deref() {
            None | Some("disk") => OfflineSecrets::Disk,
            Some("memory") => OfflineSecrets::Memory,
            Some(other) => {
                return invalid_field(
                    "picolet.offlineSecrets",
                    format!("is {other:?}, must be disk or memory"),
                );
            }
        },
    })
}
