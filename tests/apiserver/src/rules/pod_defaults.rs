//! What the server writes into a new pod: defaults of the version, then what admission adds.
//!
//! Source: `pkg/apis/core/v1/defaults.go`; plugins ServiceAccount, Priority, DefaultTolerationSeconds.

use serde_json::{Value, json};

use super::pod::is_mirror;
use crate::clock;
use crate::error::ApiError;
use crate::json::{array_mut, at, default as fill, has, list, map, text};
use crate::kinds::Kind;
use crate::store::Store;

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Seconds of the token that is mounted by default: an hour and a mark by which it is recognised.
const TOKEN_SECONDS: u32 = 3607;

/// Defaults of `v1.Pod`.
pub(super) fn default(pod: &mut Value) {
    let host_network = at(pod, "/spec/hostNetwork").as_bool() == Some(true);
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
    ] {
        fill(pod, &["spec"], key, value);
    }
    // The old name of a field is kept beside the new one.
    let account = text(pod, "/spec/serviceAccountName").to_owned();
    let old_name = text(pod, "/spec/serviceAccount").to_owned();
    if account.is_empty() && !old_name.is_empty() {
        pod["spec"]["serviceAccountName"] = json!(old_name);
    } else if !account.is_empty() {
        pod["spec"]["serviceAccount"] = json!(account);
    }
    for key in super::container_lists() {
        for container in array_mut(pod, &format!("/spec/{key}")) {
            default_container(container, host_network);
        }
    }
    for volume in array_mut(pod, "/spec/volumes") {
        default_volume(volume);
    }
}

fn pull_policy(image: &str) -> &'static str {
    let tail = image.rsplit_once('/').map_or(image, |(_, tail)| tail);
    let tag = tail.split_once(':').map(|(_, tag)| tag);
    match tag {
        _ if image.contains('@') => "IfNotPresent",
        None | Some("latest") => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn default_container(container: &mut Value, host_network: bool) {
    let policy = pull_policy(text(container, "/image"));
    for (key, value) in [
        ("imagePullPolicy", json!(policy)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        fill(container, &[], key, value);
    }
    for port in array_mut(container, "/ports") {
        fill(port, &[], "protocol", json!("TCP"));
        let number = port["containerPort"].clone();
        if host_network {
            fill(port, &[], "hostPort", number);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if !container[probe].is_object() {
            continue;
        }
        for (key, value) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            fill(&mut container[probe], &[], key, json!(value));
        }
        if container[probe]["httpGet"].is_object() {
            fill(&mut container[probe]["httpGet"], &[], "path", json!("/"));
            fill(
                &mut container[probe]["httpGet"],
                &[],
                "scheme",
                json!("HTTP"),
            );
        }
        if container[probe]["grpc"].is_object() {
            fill(&mut container[probe]["grpc"], &[], "service", json!(""));
        }
    }
    for env in array_mut(container, "/env") {
        if has(env, "/valueFrom/fieldRef") {
            fill(env, &["valueFrom", "fieldRef"], "apiVersion", json!("v1"));
        }
    }
    let limits: Vec<(String, Value)> = map(container, "/resources/limits")
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    for (name, value) in limits {
        fill(container, &["resources", "requests"], &name, value);
    }
}

fn default_volume(volume: &mut Value) {
    for key in ["configMap", "secret", "downwardAPI", "projected"] {
        if volume[key].is_object() {
            fill(&mut volume[key], &[], "defaultMode", json!(0o644));
        }
    }
    if volume["hostPath"].is_object() {
        fill(&mut volume["hostPath"], &[], "type", json!(""));
    }
    for source in array_mut(volume, "/projected/sources") {
        if source["serviceAccountToken"].is_object() {
            fill(
                &mut source["serviceAccountToken"],
                &[],
                "expirationSeconds",
                json!(3600),
            );
        }
        for item in array_mut(source, "/downwardAPI/items") {
            default_item(item);
        }
    }
    for item in array_mut(volume, "/downwardAPI/items") {
        default_item(item);
    }
    if volume.as_object().is_some_and(|v| v.len() == 1) && has(volume, "/name") {
        volume["emptyDir"] = json!({});
    }
}

fn default_item(item: &mut Value) {
    if has(item, "/fieldRef") {
        fill(item, &["fieldRef"], "apiVersion", json!("v1"));
    }
}

/// What admission does to a new pod, in upstream's order.
pub(crate) fn admit(kind: &Kind, store: &Store, ns: &str, pod: &mut Value) -> Result<(), ApiError> {
    let name = text(pod, "/metadata/name").to_owned();
    service_account(kind, store, ns, &name, pod)?;
    tolerations(pod);
    priority(kind, store, &name, pod)
}

fn service_account(
    kind: &Kind,
    store: &Store,
    ns: &str,
    name: &str,
    pod: &mut Value,
) -> Result<(), ApiError> {
    if is_mirror(pod) {
        let refuse = |why: &str| Err(ApiError::forbidden(kind, name, why));
        if has(pod, "/spec/serviceAccountName") {
            return refuse("a mirror pod may not reference service accounts");
        }
        if !super::secrets(pod).is_empty() {
            return refuse("a mirror pod may not reference secrets");
        }
        let tokens = list(pod, "/spec/volumes")
            .iter()
            .flat_map(|v| list(v, "/projected/sources"))
            .any(|s| has(s, "/serviceAccountToken"));
        if tokens {
            return refuse("a mirror pod may not use ServiceAccountToken volume projections");
        }
        return Ok(());
    }
    if text(pod, "/spec/serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    let account_name = text(pod, "/spec/serviceAccountName").to_owned();
    let Some(account) = store.find("serviceaccounts", ns, &account_name) else {
        return Err(ApiError::forbidden(
            kind,
            name,
            format!(
                "error looking up service account {ns}/{account_name}: serviceaccount {account_name:?} not found"
            ),
        ));
    };
    pod["spec"]["serviceAccount"] = json!(account_name);
    let automount = at(pod, "/spec/automountServiceAccountToken")
        .as_bool()
        .or_else(|| at(account, "/automountServiceAccountToken").as_bool())
        .unwrap_or(true);
    if automount {
        mount_token(pod);
    }
    let pull = at(account, "/imagePullSecrets").clone();
    if list(pod, "/spec/imagePullSecrets").is_empty() && pull.is_array() {
        pod["spec"]["imagePullSecrets"] = pull;
    }
    Ok(())
}

fn mount_token(pod: &mut Value) {
    let existing = list(pod, "/spec/volumes")
        .iter()
        .map(|v| text(v, "/name"))
        .find(|name| name.starts_with("kube-api-access-"))
        .map(str::to_owned);
    let volume = existing
        .clone()
        .unwrap_or_else(|| format!("kube-api-access-{}", clock::suffix()));
    let mut needed = false;
    for key in ["initContainers", "containers"] {
        for container in array_mut(pod, &format!("/spec/{key}")) {
            let has_one = list(container, "/volumeMounts")
                .iter()
                .any(|m| text(m, "/mountPath") == TOKEN_PATH);
            if !has_one {
                fill(container, &[], "volumeMounts", json!([]));
                if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                    mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
                }
                needed = true;
            }
        }
    }
    if needed && existing.is_none() {
        fill(pod, &["spec"], "volumes", json!([]));
        if let Some(volumes) = pod["spec"]["volumes"].as_array_mut() {
            volumes.push(json!({
                "name": volume,
                "projected": {"defaultMode": 0o644, "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
                    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
                ]},
            }));
        }
    }
}

/// Five minutes at a node that is away, unless the pod says otherwise.
fn tolerations(pod: &mut Value) {
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerated = list(pod, "/spec/tolerations").iter().any(|t| {
            let own = text(t, "/key");
            let effect = text(t, "/effect");
            (own == key || own.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            fill(pod, &["spec"], "tolerations", json!([]));
            if let Some(all) = pod["spec"]["tolerations"].as_array_mut() {
                all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
            }
        }
    }
}

fn priority(kind: &Kind, store: &Store, name: &str, pod: &mut Value) -> Result<(), ApiError> {
    let class = text(pod, "/spec/priorityClassName").to_owned();
    let mut value = json!(0);
    let mut policy = json!("PreemptLowerPriority");
    if !class.is_empty() {
        let Some(found) = store.find("priorityclasses", "", &class) else {
            return Err(ApiError::forbidden(
                kind,
                name,
                format!("no PriorityClass with name {class} was found"),
            ));
        };
        value = at(found, "/value").clone();
        if has(found, "/preemptionPolicy") {
            policy = at(found, "/preemptionPolicy").clone();
        }
    }
    let given = at(pod, "/spec/priority");
    if !given.is_null() && *given != value {
        return Err(ApiError::forbidden(
            kind,
            name,
            format!(
                "the integer value of priority ({given}) must not be provided in pod spec; \
                 priority admission controller computed {value} from the given PriorityClass name"
            ),
        ));
    }
    pod["spec"]["priority"] = value;
    fill(pod, &["spec"], "preemptionPolicy", policy);
    Ok(())
}
