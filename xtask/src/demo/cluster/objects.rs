//! What the demo gives to the cluster. `mark` stands in the words of processes, by which they are found.

use serde_json::{Value, json};

use crate::stage::IMAGE;

/// Ends at once when it is asked to.
const LOOP: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";
/// Does not end when it is asked to.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 1; done";
/// What the image has another name as; see [`super::steps`].
pub(super) const OTHER_IMAGE: &str = "localhost/picolet/dropped:demo";
/// Whether pods have the token of their service account: with the objects of the API.
const TOKENS: bool = true;

/// A container whose process has the word `<mark>-<name>`.
fn container(mark: &str, name: &str, script: &str) -> Value {
    json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", script, format!("{mark}-{name}")],
        "env": [
            {"name": "VERSION", "value": "one"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    })
}

fn spec(container: &Value) -> Value {
    json!({
        "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": TOKENS, "containers": [container],
    })
}

fn template(mark: &str, name: &str, script: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": spec(&container(mark, name, script))})
}

pub(super) fn deployment(mark: &str, name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": template(mark, name, LOOP),
        },
    })
}

/// Another image and another variable for a deployment.
pub(super) fn second_version(mark: &str, name: &str) -> Value {
    let mut main = container(mark, name, LOOP);
    main["image"] = OTHER_IMAGE.into();
    main["env"][0]["value"] = "two".into();
    json!({"spec": {"template": {"spec": {"containers": [main]}}}})
}

pub(super) fn daemon_set(mark: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(mark, name, LOOP)},
    })
}

/// Two pods, one after the other.
pub(super) fn job(mark: &str, name: &str) -> Value {
    let mut template = template(mark, name, "echo done");
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"completions": 2, "parallelism": 1, "backoffLimit": 2, "template": template},
    })
}

/// A pod without an owner.
pub(super) fn pod(mark: &str, name: &str) -> Value {
    let metadata = json!({"name": name, "labels": {"app": name}});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(&container(mark, name, LOOP)),
    })
}

/// Seconds that such a pod has until it is killed, by force or not: nobody tells the node how it was deleted.
const STUBBORN_GRACE_S: u32 = 5;

/// One that has to be killed.
pub(super) fn stubborn(mark: &str, name: &str) -> Value {
    let mut pod = pod(mark, name);
    pod["spec"] = spec(&container(mark, name, STUBBORN));
    pod["spec"]["terminationGracePeriodSeconds"] = json!(STUBBORN_GRACE_S);
    pod
}

/// The manifest of a static pod.
pub(super) fn static_pod(mark: &str, name: &str, version: &str) -> String {
    let mut pod = pod(mark, name);
    pod["spec"]["containers"][0]["env"][0]["value"] = version.into();
    pod.to_string()
}

pub(super) fn config_map(motd: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
        "data": {"greeting": "hello", "motd": motd},
    })
}

pub(super) fn secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {"name": "password"},
        "stringData": {"password": "not told"},
    })
}

/// A pod with variables and files of a ConfigMap and a Secret, and a token.
pub(super) fn with_objects(mark: &str, name: &str) -> Value {
    let mut pod = pod(mark, name);
    let main = &mut pod["spec"]["containers"][0];
    main["env"] = json!([
        {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "greeting"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "password", "key": "password"}}},
    ]);
    main["volumeMounts"] = json!([
        {"name": "settings", "mountPath": "/settings"},
        {"name": "password", "mountPath": "/password"},
        {"name": "token", "mountPath": "/token"},
    ]);
    pod["spec"]["volumes"] = json!([
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
        {"name": "token", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]}},
    ]);
    pod
}

pub(super) fn eviction(name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"},
    })
}

#[cfg(test)]
mod tests {
    use picolet::{config::decode, logic::static_pod};

    #[test]
    fn the_agent_takes_the_static_one() {
        let text = super::static_pod("m1", "fixed", "one");
        let document = decode::parse_document(text.as_bytes()).expect("a document");
        static_pod::prepare_static_pod(document.value, "node", "/manifests/x.yaml").expect("a pod");
    }
}
