//! Pods: what they refer to, and whether their metadata and spec are valid.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::meta;
use crate::config::Config;
use crate::error::Fields;
use crate::json::{array_mut, at, has, list, map, object, text};
use crate::schema::{billionths, canonical};

pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Names of the lists of containers in a spec.
pub(crate) fn container_lists() -> [&'static str; 3] {
    ["initContainers", "containers", "ephemeralContainers"]
}

/// Every container of a pod.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    container_lists()
        .into_iter()
        .flat_map(move |key| list(pod, &format!("/spec/{key}")))
}

/// Whether a pod has the annotation of a mirror.
pub(crate) fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR).is_some()
}

/// Names of the Secrets that a pod refers to.
///
/// Source: `pkg/api/pod/util.go` `VisitPodSecretNames`.
pub(crate) fn secrets(pod: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut add = |name: &str| {
        if !name.is_empty() {
            names.insert(name.to_owned());
        }
    };
    for secret in list(pod, "/spec/imagePullSecrets") {
        add(text(secret, "/name"));
    }
    for container in containers(pod) {
        for from in list(container, "/envFrom") {
            add(text(from, "/secretRef/name"));
        }
        for env in list(container, "/env") {
            add(text(env, "/valueFrom/secretKeyRef/name"));
        }
    }
    for volume in list(pod, "/spec/volumes") {
        add(text(volume, "/secret/secretName"));
        add(text(volume, "/csi/nodePublishSecretRef/name"));
        add(text(volume, "/iscsi/secretRef/name"));
        add(text(volume, "/rbd/secretRef/name"));
        add(text(volume, "/cephfs/secretRef/name"));
        add(text(volume, "/azureFile/secretName"));
        add(text(volume, "/flexVolume/secretRef/name"));
        for source in list(volume, "/projected/sources") {
            add(text(source, "/secret/name"));
        }
    }
    names
}

/// Names of the ConfigMaps that a pod refers to.
pub(crate) fn config_maps(pod: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut add = |name: &str| {
        if !name.is_empty() {
            names.insert(name.to_owned());
        }
    };
    for container in containers(pod) {
        for from in list(container, "/envFrom") {
            add(text(from, "/configMapRef/name"));
        }
        for env in list(container, "/env") {
            add(text(env, "/valueFrom/configMapKeyRef/name"));
        }
    }
    for volume in list(pod, "/spec/volumes") {
        add(text(volume, "/configMap/name"));
        for source in list(volume, "/projected/sources") {
            add(text(source, "/configMap/name"));
        }
    }
    names
}

/// What of the API a pod refers to, in the words of the refusal of a mirror; none when nothing.
pub(crate) fn api_references(pod: &Value) -> Option<&'static str> {
    if !text(pod, "/spec/serviceAccountName").is_empty() {
        return Some("serviceaccounts");
    }
    if !secrets(pod).is_empty() {
        return Some("secrets");
    }
    if !config_maps(pod).is_empty() {
        return Some("configmaps");
    }
    if !list(pod, "/spec/resourceClaims").is_empty() {
        return Some("resourceclaims");
    }
    for volume in list(pod, "/spec/volumes") {
        for (key, what) in [
            ("configMap", "configmaps (via configmap volumes)"),
            ("secret", "secrets (via secret volumes)"),
            ("csi", "csidrivers (via CSI volumes)"),
            ("persistentVolumeClaim", "persistentvolumeclaims"),
            (
                "ephemeral",
                "persistentvolumeclaims (via ephemeral volumes)",
            ),
        ] {
            if has(volume, &format!("/{key}")) {
                return Some(what);
            }
        }
        for source in list(volume, "/projected/sources") {
            for (key, what) in [
                ("configMap", "configmaps (via projected volumes)"),
                ("secret", "secrets (via projected volumes)"),
                (
                    "serviceAccountToken",
                    "serviceaccounts (via projected volumes)",
                ),
                ("clusterTrustBundle", "clustertrustbundles"),
                ("podCertificate", "podcertificates"),
            ] {
                if has(source, &format!("/{key}")) {
                    return Some(what);
                }
            }
        }
    }
    None
}

pub(super) fn prepare_create(config: &Config, new: &mut Value) {
    if config.pod_generation() {
        new["metadata"]["generation"] = json!(1);
    } else {
        object(&mut new["metadata"]).remove("generation");
    }
    new["status"] = json!({"phase": "Pending", "qosClass": qos(new)});
}

/// A changed spec is a new generation.
pub(super) fn follow_generation(config: &Config, new: &mut Value, old: &Value) {
    if config.pod_generation() && new["spec"] != old["spec"] {
        let was = at(old, "/metadata/generation").as_i64().unwrap_or(0);
        new["metadata"]["generation"] = json!(was + 1);
    }
}

/// Quality of service, for the status of a new pod.
///
/// Source: `pkg/apis/core/v1/helper/qos`.
fn qos(pod: &Value) -> &'static str {
    let positive = |quantity: &Value| {
        let text = quantity
            .as_str()
            .map_or_else(|| quantity.to_string(), str::to_owned);
        text.bytes().any(|b| (b'1'..=b'9').contains(&b))
    };
    let counted = |resources: &Value, key: &str| -> Vec<(String, Value)> {
        map(resources, &format!("/{key}"))
            .filter(|(name, quantity)| (*name == "cpu" || *name == "memory") && positive(quantity))
            .map(|(name, quantity)| (name.to_owned(), quantity.clone()))
            .collect()
    };
    let all: Vec<&Value> = if has(pod, "/spec/resources") {
        vec![at(pod, "/spec/resources")]
    } else {
        ["containers", "initContainers"]
            .into_iter()
            .flat_map(|key| list(pod, &format!("/spec/{key}")))
            .map(|c| at(c, "/resources"))
            .collect()
    };
    let mut any = false;
    let mut guaranteed = true;
    for resources in all {
        let requests = counted(resources, "requests");
        let limits = counted(resources, "limits");
        any |= !requests.is_empty() || !limits.is_empty();
        guaranteed &= limits.len() == 2 && requests.iter().all(|r| limits.contains(r));
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Says what is wrong with metadata and spec.
pub(super) fn validate(pod: &Value, errors: &mut Fields) {
    let node = text(pod, "/spec/nodeName");
    if is_mirror(pod) && node.is_empty() {
        errors.invalid(
            &format!("metadata.annotations[{MIRROR}]"),
            &pod["metadata"]["annotations"][MIRROR],
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
    let volumes = volumes(pod, errors);
    let mut names = BTreeSet::new();
    if list(pod, "/spec/containers").is_empty() {
        errors.required("spec.containers", "");
    }
    for key in container_lists() {
        for (n, container) in list(pod, &format!("/spec/{key}")).iter().enumerate() {
            let path = format!("spec.{key}[{n}]");
            if !names.insert(text(container, "/name")) {
                errors.duplicate(&format!("{path}.name"), &container["name"]);
            }
            self::container(pod, container, &path, &volumes, errors);
        }
    }
    one_of(
        pod,
        "spec.restartPolicy",
        &["Always", "OnFailure", "Never"],
        errors,
    );
    one_of(
        pod,
        "spec.dnsPolicy",
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
        errors,
    );
    let grace = at(pod, "/spec/terminationGracePeriodSeconds");
    if grace.as_i64().is_some_and(|s| s < 0) {
        errors.invalid(
            "spec.terminationGracePeriodSeconds",
            grace,
            "must be greater than or equal to 0",
        );
    }
    let deadline = at(pod, "/spec/activeDeadlineSeconds");
    if !deadline.is_null()
        && !deadline
            .as_i64()
            .is_some_and(|s| (1..=i64::from(i32::MAX)).contains(&s))
    {
        errors.invalid(
            "spec.activeDeadlineSeconds",
            deadline,
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for key in ["nodeName", "serviceAccountName"] {
        let value = text(pod, &format!("/spec/{key}"));
        if !value.is_empty() && !meta::is_subdomain(value) {
            errors.invalid(
                &format!("spec.{key}"),
                &json!(value),
                "not an RFC 1123 subdomain",
            );
        }
    }
}

fn one_of(pod: &Value, field: &str, supported: &[&str], errors: &mut Fields) {
    let value = at(pod, &format!("/{}", field.replace('.', "/")));
    match value.as_str() {
        None | Some("") => errors.required(field, ""),
        Some(text) if supported.contains(&text) => {}
        Some(_) => errors.unsupported(field, value, supported),
    }
}

/// Validates the volumes and returns their names.
fn volumes(pod: &Value, errors: &mut Fields) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (n, volume) in list(pod, "/spec/volumes").iter().enumerate() {
        let path = format!("spec.volumes[{n}]");
        let name = text(volume, "/name");
        if name.is_empty() {
            errors.required(&format!("{path}.name"), "");
        } else if !meta::is_label(name) {
            errors.invalid(&format!("{path}.name"), &volume["name"], meta::LABEL);
        } else if !names.insert(name.to_owned()) {
            errors.duplicate(&format!("{path}.name"), &volume["name"]);
        }
        let sources: Vec<&str> = volume
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .filter(|key| *key != "name")
            .collect();
        match sources.as_slice() {
            [] => errors.required(&path, "must specify a volume type"),
            [_] => {}
            [_, second, ..] => {
                errors.forbidden(
                    &format!("{path}.{second}"),
                    "may not specify more than 1 volume type",
                );
            }
        }
        for (pointer, field) in [
            ("/configMap", "name"),
            ("/secret", "secretName"),
            ("/hostPath", "path"),
            ("/persistentVolumeClaim", "claimName"),
            ("/nfs", "path"),
            ("/nfs", "server"),
        ] {
            if has(volume, pointer) && text(volume, &format!("{pointer}/{field}")).is_empty() {
                errors.required(&format!("{path}{}.{field}", pointer.replace('/', ".")), "");
            }
        }
        for (m, source) in list(volume, "/projected/sources").iter().enumerate() {
            let token = at(source, "/serviceAccountToken");
            if token.is_null() {
                continue;
            }
            let path = format!("{path}.projected.sources[{m}].serviceAccountToken");
            if text(token, "/path").is_empty() {
                errors.required(&format!("{path}.path"), "");
            }
            let seconds = at(token, "/expirationSeconds");
            if seconds.as_i64().is_some_and(|s| s < 600) {
                errors.invalid(
                    &format!("{path}.expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
        }
    }
    names
}

fn container(
    pod: &Value,
    container: &Value,
    path: &str,
    volumes: &BTreeSet<String>,
    errors: &mut Fields,
) {
    let name = text(container, "/name");
    if name.is_empty() {
        errors.required(&format!("{path}.name"), "");
    } else if !meta::is_label(name) {
        errors.invalid(&format!("{path}.name"), &container["name"], meta::LABEL);
    }
    let image = text(container, "/image");
    if image.is_empty() {
        errors.required(&format!("{path}.image"), "");
    } else if image.trim() != image {
        errors.invalid(
            &format!("{path}.image"),
            &container["image"],
            "must not have leading or trailing whitespace",
        );
    }
    for (field, supported) in [
        (
            "imagePullPolicy",
            ["Always", "IfNotPresent", "Never"].as_slice(),
        ),
        (
            "terminationMessagePolicy",
            &["FallbackToLogsOnError", "File"],
        ),
    ] {
        let value = at(container, &format!("/{field}"));
        match value.as_str() {
            None | Some("") => errors.required(&format!("{path}.{field}"), ""),
            Some(text) if supported.contains(&text) => {}
            Some(_) => errors.unsupported(&format!("{path}.{field}"), value, supported),
        }
    }
    let mut paths = BTreeSet::new();
    for (n, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let path = format!("{path}.volumeMounts[{n}]");
        let name = text(mount, "/name");
        if name.is_empty() {
            errors.required(&format!("{path}.name"), "");
        } else if !volumes.contains(name) {
            errors.not_found(&format!("{path}.name"), &mount["name"]);
        }
        let target = text(mount, "/mountPath");
        if target.is_empty() {
            errors.required(&format!("{path}.mountPath"), "");
        } else if !paths.insert(target) {
            errors.invalid(
                &format!("{path}.mountPath"),
                &mount["mountPath"],
                "must be unique",
            );
        }
    }
    for (n, env) in list(container, "/env").iter().enumerate() {
        let path = format!("{path}.env[{n}]");
        if text(env, "/name").is_empty() {
            errors.required(&format!("{path}.name"), "");
        }
        if has(env, "/valueFrom") && !text(env, "/value").is_empty() {
            errors.invalid(
                &format!("{path}.valueFrom"),
                &json!(""),
                "may not be specified when `value` is not empty",
            );
        }
    }
    for (n, port) in list(container, "/ports").iter().enumerate() {
        let path = format!("{path}.ports[{n}]");
        let number = at(port, "/containerPort");
        match number.as_i64() {
            None | Some(0) => errors.required(&format!("{path}.containerPort"), ""),
            Some(1..=65535) => {}
            Some(_) => errors.invalid(
                &format!("{path}.containerPort"),
                number,
                "must be between 1 and 65535, inclusive",
            ),
        }
        let host = at(port, "/hostPort");
        if at(pod, "/spec/hostNetwork").as_bool() == Some(true) && host != number {
            errors.invalid(
                &format!("{path}.hostPort"),
                host,
                "must match `containerPort` when `hostNetwork` is true",
            );
        }
    }
    for key in ["requests", "limits"] {
        for (name, quantity) in map(container, &format!("/resources/{key}")) {
            let text = quantity
                .as_str()
                .map_or_else(|| quantity.to_string(), str::to_owned);
            if canonical(&text).is_none() || text.starts_with('-') {
                errors.invalid(
                    &format!("{path}.resources.{key}[{name}]"),
                    quantity,
                    "must be greater than or equal to 0",
                );
            }
        }
    }
    for (name, asked) in map(container, "/resources/requests") {
        let value = |quantity: &Value| billionths(quantity.as_str()?);
        let limit = &container["resources"]["limits"][name];
        if let (Some(asked_value), Some(allowed)) = (value(asked), value(limit))
            && asked_value > allowed
        {
            let limit = limit.as_str().unwrap_or_default();
            errors.invalid(
                &format!("{path}.resources.requests"),
                asked,
                &format!("must be less than or equal to {name} limit of {limit}"),
            );
        }
    }
}

/// Gives a pod the resources of its own that `spec` has, and its containers those of the same names.
pub(super) fn take_resources(pod: &mut Value, spec: &Value) {
    super::carry(spec, &mut pod["spec"], "resources");
    for key in ["containers", "initContainers"] {
        let wanted = list(spec, &format!("/{key}"));
        for container in array_mut(pod, &format!("/spec/{key}")) {
            if let Some(like) = wanted.iter().find(|c| c["name"] == container["name"]) {
                container["resources"] = like["resources"].clone();
            }
        }
    }
}

/// Says what an update of a pod may not change.
pub(super) fn validate_update(sub: &str, new: &Value, old: &Value, errors: &mut Fields) {
    if new["metadata"]["annotations"].get(MIRROR) != old["metadata"]["annotations"].get(MIRROR) {
        errors.forbidden(
            &format!("metadata.annotations[{MIRROR}]"),
            "may not remove or update mirror pod annotation",
        );
    }
    if sub == "ephemeralcontainers" {
        let now = list(new, "/spec/ephemeralContainers");
        for (n, was) in list(old, "/spec/ephemeralContainers").iter().enumerate() {
            if now.iter().all(|c| c != was) {
                errors.forbidden(
                    "spec.ephemeralContainers",
                    &format!(
                        "existing ephemeral containers {:?} may not be removed or changed",
                        old["spec"]["ephemeralContainers"][n]["name"]
                    ),
                );
            }
        }
        return;
    }
    if sub == "resize" {
        // An agent that shows no resources does not resize (kubernetes 1.33, `validatePodResize`).
        let statuses = list(old, "/status/containerStatuses");
        if statuses
            .iter()
            .any(|c| !c["state"]["running"].is_null() && c["resources"].is_null())
        {
            let why = "Pod running on node without support for resize";
            errors.forbidden("spec", why);
        }
        return;
    }
    let mut munged = new.clone();
    for key in ["containers", "initContainers"] {
        let pointer = format!("/spec/{key}");
        let before = list(old, &pointer).to_vec();
        for (container, was) in array_mut(&mut munged, &pointer).iter_mut().zip(&before) {
            if let Some(image) = was.get("image") {
                container["image"] = image.clone();
            }
        }
    }
    for key in ["activeDeadlineSeconds", "tolerations"] {
        super::carry(&old["spec"], &mut munged["spec"], key);
    }
    let had = list(old, "/spec/tolerations");
    let now = list(new, "/spec/tolerations");
    if had.iter().any(|t| !now.contains(t)) {
        errors.forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    if munged["spec"] != old["spec"] {
        errors.forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
             existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously \
             negative)",
        );
    }
}
