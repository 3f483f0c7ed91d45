//! Parts of the agent's answers that are shown. No value of an environment, no annotation, no command line: a browser
//! keeps what it gets, so fields are named one by one.

use serde_json::{Map, Value};

use crate::{
    api::{Pod, cri::StoredImage, strict},
    cli::{get, table},
    logic::pod_kind,
};

/// Names in the view, and the path of each value.
type ViewFields = &'static [(&'static str, &'static str)];

const NODE: ViewFields = &[
    ("name", "/metadata/name"),
    ("version", "/status/nodeInfo/kubeletVersion"),
    ("os", "/status/nodeInfo/osImage"),
    ("kernel", "/status/nodeInfo/kernelVersion"),
    ("architecture", "/status/nodeInfo/architecture"),
    ("cpu", "/status/capacity/cpu"),
    ("memory", "/status/capacity/memory"),
];
/// Fields of a condition, without its heartbeat, which changes though nothing happens.
const CONDITION: ViewFields = &[
    ("type", "/type"),
    ("status", "/status"),
    ("message", "/message"),
    ("since", "/lastTransitionTime"),
];
const POD: ViewFields = &[
    ("uid", "/metadata/uid"),
    ("namespace", "/metadata/namespace"),
    ("name", "/metadata/name"),
    ("created", "/metadata/creationTimestamp"),
    ("ip", "/status/podIP"),
    ("message", "/status/message"),
];
const CONTAINER: ViewFields = &[("name", "/name"), ("image", "/image")];
const STATUS: ViewFields = &[
    ("state", "/state"),
    ("last", "/lastState/terminated"),
    ("ready", "/ready"),
    ("started", "/started"),
    ("restarts", "/restartCount"),
];
const EVENT: ViewFields = &[
    ("at", "/lastTimestamp"),
    ("type", "/type"),
    ("reason", "/reason"),
    ("namespace", "/involvedObject/namespace"),
    ("name", "/involvedObject/name"),
    ("message", "/message"),
    ("count", "/count"),
];
/// Lists of a pod's containers and of their statuses.
const LISTS: [(&str, &str); 3] = [
    ("/spec/initContainers", "/status/initContainerStatuses"),
    ("/spec/containers", "/status/containerStatuses"),
    (
        "/spec/ephemeralContainers",
        "/status/ephemeralContainerStatuses",
    ),
];
const PROBES: [&str; 3] = ["startupProbe", "readinessProbe", "livenessProbe"];

/// Copies into `shown` the fields of an object that are there.
fn copy_fields(shown: &mut Map<String, Value>, object: &Value, fields: ViewFields) {
    for (name, path) in fields {
        if let Some(value) = object.pointer(path) {
            shown.insert((*name).to_owned(), value.clone());
        }
    }
}

fn pick_fields(object: &Value, fields: ViewFields) -> Value {
    let mut shown = Map::new();
    copy_fields(&mut shown, object, fields);
    shown.into()
}

fn list_at_path<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    let found = object.pointer(path).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// Makes an object of these fields.
pub(super) fn json_object(fields: &mut [(&str, Value)]) -> Value {
    let mut all = Map::new();
    for (name, value) in fields {
        all.insert((*name).to_owned(), value.take());
    }
    all.into()
}

/// Shows the node: its facts, and its conditions with the time of their last change.
pub(super) fn node_view(node: &Value) -> Value {
    let mut shown = pick_fields(node, NODE);
    let conditions = list_at_path(node, "/status/conditions").iter();
    shown["conditions"] = conditions.map(|c| pick_fields(c, CONDITION)).collect();
    shown
}

/// Shows the pods in the agent's order.
pub(super) fn pods_view(all: &Value) -> Value {
    list_at_path(all, "/items")
        .iter()
        .filter_map(pod_view)
        .collect()
}

fn pod_view(raw: &Value) -> Option<Value> {
    let pod: Pod = strict::typed_from_value(raw).ok()?;
    let summary = table::summarise_pod(&pod);
    let mut containers = Vec::new();
    for (specs, statuses) in LISTS {
        for spec in list_at_path(raw, specs) {
            let mut shown = Map::new();
            copy_fields(&mut shown, spec, CONTAINER);
            let probes = PROBES.iter().filter(|probe| spec[**probe].is_object());
            let probes = probes.map(|probe| Value::from(*probe)).collect();
            shown.insert("probes".into(), probes);
            let mut statuses = list_at_path(raw, statuses).iter();
            if let Some(status) = statuses.find(|s| s["name"] == spec["name"]) {
                copy_fields(&mut shown, status, STATUS);
            }
            containers.push(shown.into());
        }
    }
    let mut shown = pick_fields(raw, POD);
    shown["status"] = summary.reason.into();
    shown["ready"] = format!("{}/{}", summary.ready, summary.total).into();
    shown["restarts"] = summary.restarts.into();
    shown["restarted"] = summary.last_restart.map(|at| at.to_string()).into();
    shown["static"] = pod_kind::is_static(&pod).into();
    shown["containers"] = Value::Array(containers);
    Some(shown)
}

/// Lists the progress of the pulls that pods wait for, a line each.
pub(super) fn pull_lines(pods: &Value) -> Value {
    list_at_path(pods, "/items")
        .iter()
        .flat_map(get::pull_progress_lines)
        .collect()
}

/// Shows the events, the newest first.
pub(super) fn events_view(all: &Value) -> Value {
    let events = list_at_path(all, "/items").iter().rev();
    events.map(|e| pick_fields(e, EVENT)).collect()
}

/// Makes a row for each name of each image.
pub(super) fn image_rows(all: &[StoredImage]) -> Value {
    let mut shown = Vec::new();
    for image in all {
        for row in table::image_rows(image, false) {
            let mut row = row.into_iter().map(Value::from);
            let mut next = || row.next().unwrap_or_default();
            shown.push(json_object(&mut [
                ("name", next()),
                ("tag", next()),
                ("id", next()),
                ("size", image.size_bytes.into()),
            ]));
        }
    }
    Value::Array(shown)
}

/// Shows thousandths of processors and bytes that each pod uses, by `namespace/name`.
pub(super) fn pod_usage_view(stats: &Value) -> Value {
    let mut all = Map::new();
    for pod in list_at_path(stats, "/pods") {
        let of = &pod["podRef"];
        let text = |key: &str| of[key].as_str().unwrap_or_default();
        let name = format!("{}/{}", text("namespace"), text("name"));
        let milli = pod["cpu"]["usageNanoCores"].as_u64();
        let milli = milli.map(|nano| nano.div_ceil(1_000_000));
        let both = vec![milli.into(), pod["memory"]["workingSetBytes"].clone()];
        all.insert(name, Value::Array(both));
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_crash_loops() {
        let raw = json!({"items": [{
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"kubernetes.io/config.source": "file"}},
            "spec": {"containers": [{
                "name": "c", "image": "i:1", "env": [{"name": "KEY", "value": "s3cret"}], "command": ["--password=s3cret"],
                "readinessProbe": {"exec": {"command": ["s3cret"]}}, "livenessProbe": {"tcpSocket": {"port": 1}},
            }, {"name": "d"}]},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "c", "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 7, "reason": "Error", "finishedAt": "2024-01-01T00:00:00Z"}},
            }]},
        }]});
        let shown = pods_view(&raw);
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        let pod = &shown[0];
        assert_eq!(pod["status"], "CrashLoopBackOff");
        assert_eq!(pod["static"], true);
        assert_eq!(pod["restarted"], "2024-01-01T00:00:00Z");
        assert_eq!(
            (&pod["restarts"], &pod["ready"]),
            (&json!(3), &json!("0/2"))
        );
        let c = &pod["containers"][0];
        assert_eq!(c["last"]["exitCode"], 7);
        assert_eq!(c["state"]["waiting"]["message"], "back-off 40s");
        assert_eq!(c["probes"], json!(["readinessProbe", "livenessProbe"]));
        assert_eq!(pod["containers"][1], json!({"name": "d", "probes": []}));
    }

    #[test]
    fn a_node_without_its_heartbeat() {
        let raw = json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "x", "lastTransitionTime": "y"}]}});
        let shown = node_view(&raw);
        assert_eq!(shown["name"], "n");
        let ready = json!({"type": "Ready", "status": "True", "since": "y"});
        assert_eq!(shown["conditions"], json!([ready]));
    }

    #[test]
    fn lists() {
        let all = json!({"items": [{"reason": "Old"}, {"reason": "New", "involvedObject": {"name": "p"}}]});
        let shown = events_view(&all);
        assert_eq!(shown[0], json!({"reason": "New", "name": "p"}));
        let image = StoredImage {
            id: "sha256:0123456789abcdef".into(),
            repo_tags: vec!["a:1".into(), "b:2".into()],
            size_bytes: 5,
            ..StoredImage::default()
        };
        let shown = image_rows(&[image]);
        assert_eq!(
            shown[1],
            json!({"name": "b", "tag": "2", "id": "0123456789abc", "size": 5})
        );
    }

    #[test]
    fn figures_by_pod() {
        let stats = json!({"pods": [
            {"podRef": {"namespace": "n", "name": "p"}, "cpu": {"usageNanoCores": 1_000_001}, "memory": {"workingSetBytes": 5}},
            {"podRef": {"namespace": "n", "name": "new"}},
        ]});
        assert_eq!(
            pod_usage_view(&stats),
            json!({"n/p": [2, 5], "n/new": [null, null]})
        );
        assert_eq!(pod_usage_view(&Value::Null), json!({}));
    }
}
