//! Settings of this machine as a node: name, addresses, labels, taints, intervals (CONF-14 to CONF-17).

use core::time::Duration;
use std::net::IpAddr;

use super::HostIdentity;
use super::checks::{InvalidField, count_or_default, invalid_field, nonzero_duration_or_default};
use super::file::KubeletConfiguration;
use super::values::NodeConfig;
use crate::api::{names, node::Taint};

/// Port of a kubelet's HTTPS server.
const DEFAULT_PORT: u16 = 10250;
/// Most images that a status names.
const DEFAULT_IMAGES: i64 = 50;
/// Seconds for which a sign of life counts.
const DEFAULT_LEASE_S: u32 = 40;

/// Labels in the domains of Kubernetes that a node may give itself (AUTHZ-10).
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
/// Domains of labels that a node may give itself, with all below them.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Resolves the fields of [`NodeConfig`].
pub(super) fn resolve_node(fields: &KubeletConfiguration) -> Result<NodeConfig, InvalidField> {
    let own = &fields.picolet;
    for (key, value) in &own.node_labels {
        let field = format!("picolet.nodeLabels[{key}]");
        if !names::is_qualified_name(key) {
            return invalid_field(&field, "the key is not valid for a label");
        }
        if !names::is_label_value(value) {
            return invalid_field(
                &field,
                format!("{value:?} is not valid as the value of a label"),
            );
        }
        if !may_label(key) {
            return invalid_field(
                &field,
                format!(
                    "a node may not give itself this label: use another domain, or one of {}",
                    OWN_LABELS.join(", ")
                ),
            );
        }
    }
    check_taints(&fields.register_with_taints)?;
    let external_cloud = match own.cloud_provider.as_deref() {
        None | Some("") => false,
        Some("external") => true,
        Some(other) => {
            return invalid_field(
                "picolet.cloudProvider",
                format!("is {other:?}, must be empty or \"external\""),
            );
        }
    };
    let ten_seconds = Duration::from_secs(10);
    let five_minutes = Duration::from_secs(300);
    let status_update =
        nonzero_duration_or_default(fields.node_status_update_frequency, ten_seconds);
    let updates_are_set = fields
        .node_status_update_frequency
        .is_some_and(|t| !t.0.is_zero());
    let reports = if updates_are_set {
        status_update
    } else {
        five_minutes
    };
    let images = fields.node_status_max_images.unwrap_or(DEFAULT_IMAGES);
    let port = fields.port.and_then(|port| u16::try_from(port).ok());
    Ok(NodeConfig {
        register: fields.register_node.unwrap_or(true),
        labels: own.node_labels.clone(),
        taints: fields.register_with_taints.clone(),
        provider_id: fields.provider_id.clone().unwrap_or_default(),
        external_cloud,
        controller_attach_detach: fields.enable_controller_attach_detach.unwrap_or(true),
        port: port.unwrap_or(DEFAULT_PORT),
        status_update,
        status_report: nonzero_duration_or_default(fields.node_status_report_frequency, reports),
        // -1 stands for all.
        max_images: u32::try_from(images).ok(),
        lease_duration_s: count_or_default(fields.node_lease_duration_seconds, DEFAULT_LEASE_S),
        kubelet_version: read_kubelet_version(own.kubelet_version.as_deref())?,
    })
}

/// Most bytes of a version: those of a label's value, for tools put it into a label.
const MAX_VERSION_BYTES: usize = 63;

/// Reads the version told to the cluster, which Kubernetes has to be able to parse (KADM-01, KADM-13).
fn read_kubelet_version(text: Option<&str>) -> Result<String, InvalidField> {
    let text = match text {
        None | Some("") => return Ok(super::KUBELET_VERSION.into()),
        Some(text) => text,
    };
    let is_rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    let numbers = text.strip_prefix('v').unwrap_or_default();
    let end = numbers.find(['-', '+']).unwrap_or(numbers.len());
    let (numbers, rest) = numbers.split_at(end);
    let is_number = |part: &str| part.parse::<u16>().is_ok_and(|n| n.to_string() == part);
    let is_version = numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && rest.chars().all(is_rest)
        && text.len() <= MAX_VERSION_BYTES;
    if is_version {
        return Ok(text.into());
    }
    invalid_field(
        "picolet.kubeletVersion",
        format!(
            "is {text:?}, must be a version such as {}",
            super::KUBELET_VERSION
        ),
    )
}

/// Returns true if NodeRestriction lets a node set the label.
fn may_label(key: &str) -> bool {
    let within = |domain: &str, parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let (domain, _) = key.split_once('/').unwrap_or(("", key));
    let reserved = ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|d| within(domain, d));
    !reserved || OWN_LABELS.contains(&key) || OWN_DOMAINS.iter().any(|d| within(domain, d))
}

/// Checks the taints (CONF-11).
fn check_taints(taints: &[Taint]) -> Result<(), InvalidField> {
    for (n, taint) in taints.iter().enumerate() {
        let field = |name: &str| format!("registerWithTaints[{n}]{name}");
        let Taint {
            key, value, effect, ..
        } = taint;
        if !names::is_qualified_name(key) {
            return invalid_field(
                &field(".key"),
                format!("is {key:?}, must be valid as the key of a label"),
            );
        }
        if !names::is_label_value(value) {
            return invalid_field(
                &field(".value"),
                format!("is {value:?}, must be valid as the value of a label"),
            );
        }
        if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str()) {
            return invalid_field(
                &field(".effect"),
                format!("is {effect:?}, must be NoSchedule, PreferNoSchedule or NoExecute"),
            );
        }
        if taint.time_added.is_some() {
            return invalid_field(&field(".timeAdded"), "must not be set");
        }
        let same = |other: &Taint| other.key == *key && other.effect == *effect;
        if taints[..n].iter().any(same) {
            return invalid_field(&field(""), "has the same key and effect as another taint");
        }
    }
    Ok(())
}

/// Finds the node's name: the override or the host's name, trimmed and lower case (CONF-16).
pub(super) fn resolve_node_name(
    over: Option<&str>,
    host: &HostIdentity,
) -> Result<String, InvalidField> {
    let name = over.filter(|n| !n.is_empty()).unwrap_or(&host.hostname);
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        return invalid_field(
            "picolet.hostnameOverride",
            "the host has no name: set one, or use --hostname-override",
        );
    }
    // Names of static pods end in the node's name.
    if !names::is_dns_subdomain(&name) {
        return invalid_field(
            "picolet.hostnameOverride",
            format!(
                "node name is {name:?}, must be a DNS name in lower case letters, digits, '-' and '.'"
            ),
        );
    }
    Ok(name)
}

/// Reads one address, or one of each family (CONF-17). Entries that do not parse are ignored, as a kubelet does.
pub(super) fn read_node_ips(field: &str, text: Option<&str>) -> Result<Vec<IpAddr>, InvalidField> {
    let text = text.unwrap_or("");
    let ips: Vec<IpAddr> = text
        .split(',')
        .filter_map(|part| part.trim().parse().ok())
        .collect();
    let ok = match &*ips {
        [] | [_] => true,
        [a, b] => a.is_ipv4() != b.is_ipv4() && !a.is_unspecified() && !b.is_unspecified(),
        _ => false,
    };
    if ok {
        return Ok(ips);
    }
    invalid_field(
        field,
        format!("is {text:?}, must be one address, or one of each family that are not all zeros"),
    )
}
