//! API defaulting of a pod, as the apiserver would do it before the agent sees the pod. Applying it twice changes nothing.
//!
//! Source: `pkg/apis/core/v1/defaults.go`.

use alloc::string::{String, ToString};

use serde_json::Value;

use crate::api::order::GatherExt;
use crate::api::pod::{
    Container, EmptyDirVolume, FieldRef, HttpGetAction, LifecycleHandler, Pod, PodSecurityContext,
    PodSpec, Probe, Resources, Volume,
};
use crate::api::{Quantity, pod::DownwardApiVolume};
use crate::validation::{PROJECTED_SOURCES, VOLUME_SOURCES};

/// `defaultMode` of projected files.
pub const FILE_MODE: i32 = 0o644;
/// `terminationGracePeriodSeconds` of a pod, in seconds.
pub const GRACE_S: i64 = 30;

/// Fills in the fields that the object leaves open.
pub fn set_pod_defaults(pod: &mut Pod) {
    let spec = &mut pod.spec;
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    spec.enable_service_links.get_or_insert(true);
    spec.termination_grace_period_seconds.get_or_insert(GRACE_S);
    spec.security_context
        .get_or_insert_with(PodSecurityContext::default);
    for volume in &mut spec.volumes {
        set_volume_defaults(volume);
    }
    let host_network = spec.host_network;
    for container in spec
        .init_containers
        .iter_mut()
        .chain(&mut spec.containers)
        .chain(&mut spec.ephemeral_containers)
    {
        set_container_defaults(container, host_network);
    }
    set_pod_request_defaults(spec);
}

/// Gives every volume that names no source at all an emptyDir. Reads the raw object: a source that is not modelled must not
/// turn into one, and is known by its name.
pub fn default_volume_sources(pod: &mut Pod, raw: &Value) {
    let unmodelled = |object: &Value, known: &[&str]| {
        let mut names = object
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        let name = names.find(|name| *name != "name" && !known.contains(&name.as_str()));
        name.cloned().unwrap_or_default()
    };
    for (n, volume) in pod.spec.volumes.iter_mut().enumerate() {
        let raw = &raw["spec"]["volumes"][n];
        let bare = raw
            .as_object()
            .is_some_and(|fields| fields.keys().all(|name| name == "name"));
        if bare {
            volume.empty_dir = Some(EmptyDirVolume::default());
        }
        volume.unmodelled = unmodelled(raw, &VOLUME_SOURCES);
        let sources = volume.projected.iter_mut().flat_map(|p| &mut p.sources);
        for (m, source) in sources.enumerate() {
            source.unmodelled = unmodelled(&raw["projected"]["sources"][m], &PROJECTED_SOURCES);
        }
    }
}

/// Rewrites octal texts in file modes of volumes to numbers: `defaultMode: 0644` is a number in YAML 1.1, which
/// manifests are written in, and a text in YAML 1.2, which the reader knows.
pub fn convert_octal_modes(raw: &mut Value) {
    fn convert_octal_fields(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(convert_octal_fields),
            Value::Object(fields) => {
                for (name, field) in fields {
                    let octal = (name == "mode" || name == "defaultMode")
                        .then(|| field.as_str().and_then(parse_octal))
                        .flatten();
                    match octal {
                        Some(mode) => *field = mode.into(),
                        None => convert_octal_fields(field),
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    fn parse_octal(text: &str) -> Option<i32> {
        let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix('0'))?;
        i32::from_str_radix(digits, 8).ok()
    }
    if let Some(volumes) = raw.pointer_mut("/spec/volumes") {
        convert_octal_fields(volumes);
    }
}

/// The default `imagePullPolicy` of an image reference (IMG-03).
#[must_use]
pub fn default_pull_policy(image: &str) -> &'static str {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.split_once(':'), digest) {
        (Some((_, "latest")), _) | (None, None) => "Always",
        (Some(_), _) | (None, Some(_)) => "IfNotPresent",
    }
}

fn default_text(field: &mut String, default: &str) {
    if field.is_empty() {
        field.push_str(default);
    }
}

fn default_number(field: &mut i32, default: i32) {
    if *field == 0 {
        *field = default;
    }
}

fn set_volume_defaults(volume: &mut Volume) {
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        set_field_refs_defaults(source);
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(FILE_MODE);
        for source in &mut source.sources {
            if let Some(downward) = &mut source.downward_api {
                set_field_refs_defaults(downward);
            }
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
    if let Some(source) = &mut volume.host_path {
        source.kind.get_or_insert_with(String::new);
    }
    if let Some(source) = &mut volume.image {
        default_text(
            &mut source.pull_policy,
            default_pull_policy(&source.reference),
        );
    }
}

fn set_field_refs_defaults(source: &mut DownwardApiVolume) {
    for item in &mut source.items {
        set_field_ref_defaults(item.field_ref.as_mut());
    }
}

fn set_field_ref_defaults(field: Option<&mut FieldRef>) {
    if let Some(field) = field {
        default_text(&mut field.api_version, "v1");
    }
}

fn set_container_defaults(container: &mut Container, host_network: bool) {
    default_text(
        &mut container.image_pull_policy,
        default_pull_policy(&container.image),
    );
    default_text(&mut container.termination_message_policy, "File");
    let path = &mut container.termination_message_path;
    if path.as_ref().is_none_or(String::is_empty) {
        *path = Some("/dev/termination-log".into());
    }
    for port in &mut container.ports {
        default_text(&mut port.protocol, "TCP");
        if host_network && port.host_port == 0 {
            port.host_port = port.container_port;
        }
    }
    for env in &mut container.env {
        if let Some(source) = &mut env.value_from {
            set_field_ref_defaults(source.field_ref.as_mut());
        }
    }
    default_requests_to_limits(&mut container.resources);
    for probe in [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ]
    .into_iter()
    .flatten()
    {
        set_probe_defaults(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for LifecycleHandler { http_get, .. } in
            [&mut lifecycle.post_start, &mut lifecycle.pre_stop]
                .into_iter()
                .flatten()
        {
            set_http_get_defaults(http_get.as_mut());
        }
    }
}

fn set_probe_defaults(probe: &mut Probe) {
    default_number(&mut probe.timeout_seconds, 1);
    default_number(&mut probe.period_seconds, 10);
    default_number(&mut probe.success_threshold, 1);
    default_number(&mut probe.failure_threshold, 3);
    set_http_get_defaults(probe.http_get.as_mut());
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_with(String::new);
    }
}

fn set_http_get_defaults(action: Option<&mut HttpGetAction>) {
    if let Some(action) = action {
        default_text(&mut action.path, "/");
        default_text(&mut action.scheme, "HTTP");
    }
}

/// A request that is not set equals the limit.
fn default_requests_to_limits(resources: &mut Resources) {
    for (name, limit) in &resources.limits {
        if !resources.requests.contains_key(name) {
            resources.requests.insert(name.clone(), limit.clone());
        }
    }
}

/// Sets requests of the pod as a whole, where the pod sets limits or requests itself: for each resource the containers'
/// requests, else the pod's limit.
fn set_pod_request_defaults(spec: &mut PodSpec) {
    let Some(mut own) = spec.resources.take() else {
        return;
    };
    let whole = |name: &str| name == "cpu" || name == "memory" || name.starts_with("hugepages-");
    let names: alloc::collections::BTreeSet<String> = spec
        .containers
        .iter()
        .chain(&spec.init_containers)
        .flat_map(|c| c.resources.requests.keys())
        .chain(own.limits.keys())
        .filter(|name| whole(name) && !own.requests.contains_key(*name))
        .cloned()
        .gather_items();
    for name in names {
        let sum = containers_request(spec, &name).or_else(|| own.limits.get(&name).cloned());
        if let Some(sum) = sum {
            // Of huge pages a pod gets no more than it asks for.
            if name.starts_with("hugepages-") && !own.limits.contains_key(&name) {
                own.limits.insert(name.clone(), sum.clone());
            }
            own.requests.insert(name, sum);
        }
    }
    spec.resources = Some(own);
}

/// Request of all containers together for `name` (ADM-07): the most that run at the same time. `None` if no container
/// asks for it.
pub(crate) fn containers_request(spec: &PodSpec, name: &str) -> Option<Quantity> {
    let milli = |c: &Container| c.resources.requests.get(name).map(Quantity::milli_value);
    let asked = spec
        .containers
        .iter()
        .chain(&spec.init_containers)
        .any(|c| milli(c).is_some());
    if !asked {
        return None;
    }
    let mut sidecars = 0i64;
    let mut peak = 0i64;
    for init in &spec.init_containers {
        let own = milli(init).unwrap_or(0);
        peak = peak.max(sidecars.saturating_add(own));
        if init.is_sidecar() {
            sidecars = sidecars.saturating_add(own);
        }
    }
    let regular = spec
        .containers
        .iter()
        .filter_map(milli)
        .fold(sidecars, i64::saturating_add);
    let sum = peak.max(regular);
    let text = if sum % 1000 == 0 {
        (sum / 1000).to_string()
    } else {
        format!("{sum}m")
    };
    Quantity::parse(&text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut raw = json!({"metadata": {"name": "a"}, "spec": spec});
        convert_octal_modes(&mut raw);
        let decoded = super::super::static_pod::decode_recorded_pod(&raw).expect("pod");
        let mut twice = decoded.clone();
        set_pod_defaults(&mut twice);
        assert_eq!(decoded, twice, "defaulting is idempotent");
        serde_json::to_value(decoded).expect("json")["spec"].clone()
    }

    #[test]
    fn image_pull_policy() {
        // IMG-03
        for (image, policy) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("reg:5000/busybox", "Always"),
            ("reg:5000/busybox:1", "IfNotPresent"),
            ("busybox@sha256:0123", "IfNotPresent"),
            ("busybox:latest@sha256:0123", "Always"),
        ] {
            assert_eq!(default_pull_policy(image), policy, "{image}");
            // IMG-21: of a volume as of a container.
            let spec = defaulted(json!({"volumes": [
                {"name": "v", "image": {"reference": image}},
                {"name": "w", "image": {"reference": image, "pullPolicy": "Never"}},
            ]}));
            assert_eq!(spec["volumes"][0]["image"]["pullPolicy"], policy, "{image}");
            assert_eq!(spec["volumes"][1]["image"]["pullPolicy"], "Never");
        }
    }

    #[test]
    fn fields() {
        // SRC-20 PROBE-01
        let spec = defaulted(json!({
            "hostNetwork": true,
            "containers": [{
                "name": "c", "image": "i:1",
                "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82, "protocol": "UDP"}],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Mi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 5},
                "startupProbe": {"grpc": {"port": 80}},
                "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            }],
            "volumes": [
                {"name": "bare"}, {"name": "odd", "iscsi": {}},
                {"name": "cm", "configMap": {"name": "x", "items": [{"key": "k", "path": "p", "mode": "0600"}]}},
                {"name": "s", "secret": {"secretName": "x", "defaultMode": "0400"}},
            ],
        }));
        let container = &spec["containers"][0];
        for (pointer, value) in [
            ("/dnsPolicy", json!("ClusterFirst")),
            ("/schedulerName", json!("default-scheduler")),
            ("/terminationGracePeriodSeconds", json!(30)),
            ("/enableServiceLinks", json!(true)),
            ("/securityContext", json!({})),
            ("/volumes/0/emptyDir", json!({})),
            ("/volumes/2/configMap/defaultMode", json!(0o644)),
            ("/volumes/2/configMap/items/0/mode", json!(0o600)),
            ("/volumes/3/secret/defaultMode", json!(0o400)),
        ] {
            assert_eq!(spec.pointer(pointer), Some(&value), "{pointer}");
        }
        assert_eq!(spec.pointer("/volumes/1/emptyDir"), None);
        for (pointer, value) in [
            ("/imagePullPolicy", json!("IfNotPresent")),
            ("/terminationMessagePath", json!("/dev/termination-log")),
            ("/terminationMessagePolicy", json!("File")),
            (
                "/ports/0",
                json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}),
            ),
            ("/ports/1/hostPort", json!(82)),
            ("/ports/1/protocol", json!("UDP")),
            ("/env/0/valueFrom/fieldRef/apiVersion", json!("v1")),
            (
                "/resources/requests",
                json!({"cpu": "500m", "memory": "1Mi"}),
            ),
            ("/livenessProbe/httpGet/path", json!("/")),
            ("/livenessProbe/httpGet/scheme", json!("HTTP")),
            ("/livenessProbe/timeoutSeconds", json!(1)),
            ("/livenessProbe/periodSeconds", json!(10)),
            ("/livenessProbe/successThreshold", json!(1)),
            ("/livenessProbe/failureThreshold", json!(3)),
            ("/readinessProbe/periodSeconds", json!(5)),
            ("/readinessProbe/timeoutSeconds", json!(1)),
            ("/startupProbe/grpc/service", json!("")),
            ("/startupProbe/failureThreshold", json!(3)),
            ("/lifecycle/preStop/httpGet/path", json!("/")),
        ] {
            assert_eq!(container.pointer(pointer), Some(&value), "{pointer}");
        }
        for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
            let delay = &container[probe]["initialDelaySeconds"];
            assert!(delay.is_null() || *delay == 0, "{probe}: {delay}");
        }
    }

    #[test]
    fn whole_pod_requests() {
        let ask = |cpu: &str| json!({"requests": {"cpu": cpu}});
        for (name, spec, requests) in [
            (
                "containers ask",
                json!({"resources": {"limits": {"cpu": "4", "memory": "1Gi"}}, "containers": [
                    {"name": "a", "resources": ask("1")}, {"name": "b", "resources": ask("250m")}]}),
                json!({"cpu": "1250m", "memory": "1Gi"}),
            ),
            (
                "the largest init container beside the sidecars before it",
                json!({"resources": {"limits": {"cpu": "4"}}, "containers": [{"name": "a", "resources": ask("1")}],
                    "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": ask("1")},
                        {"name": "i", "resources": ask("3")}]}),
                json!({"cpu": "4"}),
            ),
            (
                "set by hand",
                json!({"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "a", "resources": ask("1")}]}),
                json!({"cpu": "2"}),
            ),
        ] {
            assert_eq!(defaulted(spec)["resources"]["requests"], requests, "{name}");
        }
    }
}
