//! API create-validation of a pod, as far as the agent models its fields. Wording and paths follow upstream, so that
//! an error reads as in an apiserver's answer.
//!
//! The apiserver has validated the pods it sends; manifests are validated here. All fields are checked before a
//! container runs, and a pod with one wrong field does not run at all.
//!
//! Source: `pkg/apis/core/validation/validation.go`.

use alloc::{collections::BTreeSet, string::String, vec::Vec};
use core::net::IpAddr;

use serde_json::Value;

use crate::api::pod::{PodDnsConfig, PodSpec, Toleration};
use crate::api::{ObjectMeta, Pod, strict::WrongValue};
use crate::object_fields;

mod container;
mod field;
mod objects;
mod resources;
mod security;
mod selector;
mod volume;

pub use field::MAX_ERRORS;
use field::{FieldErrors, dns_label, dns_subdomain, label_value, qualified_name};
pub use objects::{validate_config_map, validate_secret};

/// Bytes of all annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
/// Name servers, as many as a resolver reads.
const MAX_NAMESERVERS: usize = 3;
/// Bytes of a host name, as the kernel takes it.
const MAX_HOSTNAME_BYTES: usize = 64;
/// Search domains of a pod.
const MAX_SEARCHES: usize = 32;
/// Characters of all search domains together.
const MAX_SEARCH_CHARS: usize = 2048;
/// Sources a volume may have in this version.
pub(crate) const VOLUME_SOURCES: [&str; 9] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "image",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
/// Sources a projected volume may have in this version.
pub(crate) const PROJECTED_SOURCES: [&str; 6] = [
    "clusterTrustBundle",
    "configMap",
    "downwardAPI",
    "podCertificate",
    "secret",
    "serviceAccountToken",
];

/// Checks a defaulted pod. Returns all errors, at most [`MAX_ERRORS`]; empty if the pod may run.
#[must_use]
pub fn validate_pod(pod: &Pod) -> Vec<WrongValue> {
    let mut errors = FieldErrors::default();
    validate_object_meta(&pod.metadata, &mut errors);
    security::validate_app_armor_annotations(pod, &mut errors);
    validate_spec(&pod.spec, &mut errors);
    errors.0
}

/// Finds fields of the raw object that this version does not model: volume sources, and fields without which the pod would
/// run otherwise. Any other unknown field is ignored, as upstream ignores it.
#[must_use]
pub fn find_unmodelled_fields(raw: &Value) -> Vec<WrongValue> {
    let mut errors = FieldErrors::default();
    for path in object_fields::unsupported_fields(raw) {
        errors.forbidden(&path, "this field is not supported by this node");
    }
    validate_unmodelled_values(&raw["spec"], &mut errors);
    for (n, volume) in list_items(&raw["spec"]["volumes"]).enumerate() {
        let path = format!("spec.volumes[{n}]");
        reject_unsupported(volume, &path, &VOLUME_SOURCES, &mut errors);
        for (n, source) in list_items(&volume["projected"]["sources"]).enumerate() {
            let path = format!("{path}.projected.sources[{n}]");
            reject_unsupported(source, &path, &PROJECTED_SOURCES, &mut errors);
        }
    }
    errors.0
}

/// Checks fields that only the API, the scheduler or a volume of another node reads.
fn validate_unmodelled_values(spec: &Value, errors: &mut FieldErrors) {
    for (path, known) in [
        ("preemptionPolicy", &["Never", "PreemptLowerPriority"]),
        (
            "securityContext.seLinuxChangePolicy",
            &["MountOption", "Recursive"],
        ),
    ] {
        let value = path.split('.').fold(spec, |at, name| &at[name]);
        if !value.is_null() {
            let shown = value
                .as_str()
                .map_or_else(|| format!("{value}"), String::from);
            errors.require_one_of(&format!("spec.{path}"), &shown, known);
        }
    }
    if list_items(&spec["schedulingGates"]).next().is_some() {
        errors.forbidden(
            "spec.schedulingGates",
            "a static pod has a node, and cannot wait for a scheduler",
        );
    }
    // The older name of serviceAccountName.
    if spec["serviceAccount"]
        .as_str()
        .is_some_and(|name| !name.is_empty())
    {
        errors.forbidden(
            "spec.serviceAccount",
            "static pods may not reference serviceaccounts",
        );
    }
}

/// Finds references that a static pod must not have (SRC-21). ConfigMaps and Secrets are allowed: manifests beside the
/// pod's serve them, and a missing one holds up the pod as it would hold up a pod of an apiserver.
#[must_use]
pub fn find_static_references(pod: &Pod) -> Vec<WrongValue> {
    let mut errors = FieldErrors::default();
    if !pod.spec.service_account_name.is_empty() {
        errors.forbidden(
            "spec.serviceAccountName",
            "static pods may not reference serviceaccounts",
        );
    }
    if !pod.spec.resource_claims.is_empty() {
        errors.forbidden(
            "spec.resourceClaims",
            "static pods may not reference resourceclaims",
        );
    }
    for (n, volume) in pod.spec.volumes.iter().enumerate() {
        if volume.persistent_volume_claim.is_some() {
            errors.forbidden(
                &format!("spec.volumes[{n}].persistentVolumeClaim"),
                "static pods may not reference persistentvolumeclaims",
            );
        }
        for (m, source) in volume.projected.iter().flat_map(|p| &p.sources).enumerate() {
            for (name, is_set, kind) in [
                (
                    "serviceAccountToken",
                    source.service_account_token.is_some(),
                    "serviceaccounts",
                ),
                (
                    "clusterTrustBundle",
                    source.cluster_trust_bundle.is_some(),
                    "clustertrustbundles",
                ),
                (
                    "podCertificate",
                    source.pod_certificate.is_some(),
                    "podcertificates",
                ),
            ] {
                if is_set {
                    errors.forbidden(
                        &format!("spec.volumes[{n}].projected.sources[{m}].{name}"),
                        &format!("static pods may not reference {kind}"),
                    );
                }
            }
        }
    }
    errors.0
}

fn list_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn reject_unsupported(object: &Value, path: &str, known: &[&str], errors: &mut FieldErrors) {
    let fields = object.as_object().into_iter().flat_map(|o| o.keys());
    for name in fields.filter(|name| *name != "name" && !known.contains(&name.as_str())) {
        errors.forbidden(
            &format!("{path}.{name}"),
            &format!(
                "unknown or unsupported volume source; supported: {}",
                known.join(", ")
            ),
        );
    }
}

fn validate_object_meta(metadata: &ObjectMeta, errors: &mut FieldErrors) {
    errors.check_name("metadata.name", &metadata.name, dns_subdomain);
    errors.check_name("metadata.namespace", &metadata.namespace, dns_label);
    for (name, value) in &metadata.labels {
        if let Some(detail) = qualified_name(name) {
            errors.invalid("metadata.labels", name, detail);
        }
        if let Some(detail) = label_value(value) {
            errors.invalid(&format!("metadata.labels[{name}]"), value, detail);
        }
    }
    let mut bytes = 0;
    for (name, value) in &metadata.annotations {
        if let Some(detail) = qualified_name(&name.to_ascii_lowercase()) {
            errors.invalid("metadata.annotations", name, detail);
        }
        bytes += name.len() + value.len();
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.forbidden(
            "metadata.annotations",
            &format!("may not be more than {MAX_ANNOTATION_BYTES} bytes"),
        );
    }
}

fn validate_spec(spec: &PodSpec, errors: &mut FieldErrors) {
    let volumes = volume::validate_volumes(spec, errors);
    container::validate_containers(spec, &volumes, errors);
    security::validate_pod_security(spec, errors);
    validate_dns(spec, errors);
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        errors.invalid(
            "spec.activeDeadlineSeconds",
            seconds,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for (name, value, rule) in [
        ("hostname", &spec.hostname, dns_label as fn(&str) -> _),
        ("subdomain", &spec.subdomain, dns_label),
        (
            "serviceAccountName",
            &spec.service_account_name,
            dns_subdomain,
        ),
        ("nodeName", &spec.node_name, dns_subdomain),
        (
            "runtimeClassName",
            spec.runtime_class_name.as_ref().unwrap_or(&String::new()),
            dns_subdomain,
        ),
        (
            "priorityClassName",
            &spec.priority_class_name,
            dns_subdomain,
        ),
    ] {
        if !value.is_empty() {
            errors.check_name(&format!("spec.{name}"), value, rule);
        }
    }
    validate_hostname_override(spec, errors);
    if let Some(selector) = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        })
    {
        selector::validate_node_selector(selector, errors);
    }
    for (name, value) in &spec.node_selector {
        if let Some(detail) = qualified_name(name).or_else(|| label_value(value)) {
            errors.invalid("spec.nodeSelector", format_args!("{name}={value}"), detail);
        }
    }
    for (n, toleration) in spec.tolerations.iter().enumerate() {
        validate_toleration(toleration, &format!("spec.tolerations[{n}]"), errors);
    }
    for (n, gate) in spec.readiness_gates.iter().enumerate() {
        errors.check_name(
            &format!("spec.readinessGates[{n}].conditionType"),
            &gate.condition_type,
            qualified_name,
        );
    }
    if let Some(os) = &spec.os {
        errors.require_one_of("spec.os.name", &os.name, &["linux", "windows"]);
    }
    resources::validate_quantities(&spec.overhead, "spec.overhead", errors);
    if let Some(own) = &spec.resources {
        resources::validate_pod_resources(own, errors);
        resources::validate_resource_sums(own, spec, errors);
    }
}

/// Checks the host name that stands for all others: the kernel takes no longer one.
fn validate_hostname_override(spec: &PodSpec, errors: &mut FieldErrors) {
    let path = "spec.hostnameOverride";
    let Some(name) = &spec.hostname_override else {
        return;
    };
    errors.check_name(path, name, dns_subdomain);
    if name.len() > MAX_HOSTNAME_BYTES {
        let detail = format!("may not be more than {MAX_HOSTNAME_BYTES} bytes");
        errors.invalid(path, name, &detail);
    }
    if spec.host_network {
        errors.forbidden(path, "may not be set when `hostNetwork` is true");
    }
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(path, "may not be set when `setHostnameAsFQDN` is true");
    }
}

fn validate_toleration(toleration: &Toleration, path: &str, errors: &mut FieldErrors) {
    if !toleration.key.is_empty() {
        errors.check_name(&format!("{path}.key"), &toleration.key, qualified_name);
    } else if toleration.operator != "Exists" {
        errors.invalid(
            &format!("{path}.operator"),
            &toleration.operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        );
    }
    match toleration.operator.as_str() {
        "" | "Equal" => {
            if let Some(detail) = label_value(&toleration.value) {
                errors.invalid(&format!("{path}.value"), &toleration.value, detail);
            }
        }
        "Exists" if toleration.value.is_empty() => {}
        "Exists" => errors.invalid(
            &format!("{path}.operator"),
            &toleration.value,
            "value must be empty when `operator` is 'Exists'",
        ),
        other => errors.require_one_of(&format!("{path}.operator"), other, &["Equal", "Exists"]),
    }
    errors.require_one_of(
        &format!("{path}.effect"),
        &toleration.effect,
        &["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
    );
    if toleration.toleration_seconds.is_some() && toleration.effect != "NoExecute" {
        errors.invalid(
            &format!("{path}.effect"),
            &toleration.effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
}

fn validate_dns(spec: &PodSpec, errors: &mut FieldErrors) {
    errors.require_one_of(
        "spec.dnsPolicy",
        &spec.dns_policy,
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    );
    let empty = PodDnsConfig::default();
    let config = spec.dns_config.as_ref().unwrap_or(&empty);
    let path = "spec.dnsConfig";
    if spec.dns_policy == "None" && config.nameservers.is_empty() {
        errors.required(
            &format!("{path}.nameservers"),
            "must provide at least one DNS nameserver when `dnsPolicy` is None",
        );
    }
    if config.nameservers.len() > MAX_NAMESERVERS {
        errors.invalid(
            &format!("{path}.nameservers"),
            &config.nameservers,
            "must not have more than 3 nameservers",
        );
    }
    for (n, server) in config.nameservers.iter().enumerate() {
        validate_ip(&format!("{path}.nameservers[{n}]"), server, errors);
    }
    let chars = config.searches.iter().map(|s| s.len() + 1).sum::<usize>();
    if config.searches.len() > MAX_SEARCHES || chars > MAX_SEARCH_CHARS + 1 {
        errors.invalid(
            &format!("{path}.searches"),
            config.searches.len(),
            "must not have more than 32 search paths, nor more than 2048 characters (including spaces) in the search list",
        );
    }
    for (n, search) in config.searches.iter().enumerate() {
        let bare = search.strip_suffix('.').unwrap_or(search);
        // Search paths may have underscores (SRV names); the root alone is a search path too.
        if search != "."
            && let Some(detail) = dns_subdomain(&bare.replace('_', "a"))
        {
            errors.invalid(&format!("{path}.searches[{n}]"), search, detail);
        }
    }
    for (n, option) in config.options.iter().enumerate() {
        if option.name.is_empty() {
            errors.required(&format!("{path}.options[{n}]"), "must not be empty");
        }
    }
    for (n, alias) in spec.host_aliases.iter().enumerate() {
        validate_ip(&format!("spec.hostAliases[{n}].ip"), &alias.ip, errors);
        for (m, name) in alias.hostnames.iter().enumerate() {
            errors.check_name(
                &format!("spec.hostAliases[{n}].hostnames[{m}]"),
                name,
                dns_subdomain,
            );
        }
    }
}

fn validate_ip(path: &str, text: &str, errors: &mut FieldErrors) {
    if text.parse::<IpAddr>().is_err() {
        errors.invalid(
            path,
            text,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        );
    }
}

/// Returns the error of a path that could leave the directory it is joined to.
fn local_path_error(text: &str) -> Option<&'static str> {
    if text.starts_with('/') {
        return Some("must be a relative path");
    }
    text.split('/')
        .any(|part| part == "..")
        .then_some("must not contain '..'")
}

/// Checks a payload path of a projected volume: local, and not one of the names that the volume itself uses.
fn validate_payload_path(path: &str, text: &str, errors: &mut FieldErrors) {
    if text.is_empty() {
        errors.required(path, "");
    } else if let Some(detail) = local_path_error(text) {
        errors.invalid(path, text, detail);
    } else if text.starts_with("..") {
        errors.invalid(path, text, "must not start with '..'");
    }
}

/// Names seen so far of one kind.
#[derive(Default)]
struct UniqueNames<'a>(BTreeSet<&'a str>);

impl<'a> UniqueNames<'a> {
    fn check_unique(&mut self, path: &str, name: &'a str, errors: &mut FieldErrors) {
        if !name.is_empty() && !self.0.insert(name) {
            errors.duplicate(path, name);
        }
    }
}

#[cfg(test)]
mod tests;
