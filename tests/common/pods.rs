//! Pods, and what becomes of them on every backend. One list: it is run on the direct backend and on containerd
//! (`tests/host/suite.rs`), and over the fake runtime (`src/agent/tests/suite.rs`), whose word so counts for the others.

use serde_json::{Map, Value, json};

/// A pod of the list.
pub(crate) struct Case {
    /// Its name and that of its manifest.
    pub(crate) name: String,
    pub(crate) spec: Value,
    /// What its object has in the end, by JSON pointer; `null`: nothing there.
    becomes: Map<String, Value>,
}

impl Case {
    /// What is not yet as it is to be.
    pub(crate) fn missing(&self, pod: &Value) -> Vec<String> {
        let differs = |(at, wanted): (&String, &Value)| {
            let found = pod.pointer(at).unwrap_or(&Value::Null);
            (found != wanted).then(|| format!("{at} is {found}, not {wanted}"))
        };
        self.becomes.iter().filter_map(differs).collect()
    }
}

/// A container that runs until it is told to end.
fn idle(name: &str) -> Value {
    let script = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
    json!({"name": name, "command": ["sh", "-c", script]})
}

/// A container that ends at once.
fn ends(name: &str, code: u8) -> Value {
    json!({"name": name, "command": ["sh", "-c", format!("exit {code}")]})
}

fn with(mut container: Value, field: &str, value: Value) -> Value {
    container[field] = value;
    container
}

/// The list, of containers of `image`.
pub(crate) fn cases(image: &str) -> Vec<Case> {
    let says = json!({"exec": {"command": ["echo", "heard"]}, "periodSeconds": 1});
    let list = json!([
        ["runs", {"containers": [idle("main")]}, {
            "/status/phase": "Running", "/status/containerStatuses/0/ready": true,
            "/status/containerStatuses/0/restartCount": 0, "/status/containerStatuses/0/started": true,
        }],
        ["succeeds", {"restartPolicy": "Never", "containers": [ends("main", 0)]}, {
            "/status/phase": "Succeeded", "/status/containerStatuses/0/state/terminated/exitCode": 0,
            "/status/containerStatuses/0/state/terminated/reason": "Completed",
        }],
        ["fails", {"restartPolicy": "Never", "containers": [ends("main", 3)]}, {
            "/status/phase": "Failed", "/status/containerStatuses/0/state/terminated/exitCode": 3,
            "/status/containerStatuses/0/state/terminated/reason": "Error",
        }],
        ["restarts", {"restartPolicy": "OnFailure", "containers": [ends("main", 3)]}, {
            "/status/phase": "Running", "/status/containerStatuses/0/restartCount": 1,
            "/status/containerStatuses/0/lastState/terminated/exitCode": 3,
            "/status/containerStatuses/0/state/waiting/reason": "CrashLoopBackOff",
        }],
        ["on-failure", {"restartPolicy": "OnFailure", "containers": [ends("main", 0)]}, {
            "/status/phase": "Succeeded", "/status/containerStatuses/0/restartCount": 0,
        }],
        ["one-of-two", {"restartPolicy": "Never", "containers": [ends("a", 0), ends("b", 5)]}, {
            "/status/phase": "Failed", "/status/containerStatuses/0/state/terminated/exitCode": 0,
            "/status/containerStatuses/1/state/terminated/exitCode": 5,
        }],
        ["still-runs", {"restartPolicy": "Never", "containers": [idle("a"), ends("b", 5)]}, {
            "/status/phase": "Running", "/status/containerStatuses/0/ready": true,
            "/status/containerStatuses/1/state/terminated/exitCode": 5,
        }],
        ["begins", {"initContainers": [ends("first", 0), ends("second", 0)], "containers": [idle("main")]}, {
            "/status/phase": "Running", "/status/initContainerStatuses/0/state/terminated/reason": "Completed",
            "/status/initContainerStatuses/1/ready": true, "/status/containerStatuses/0/ready": true,
        }],
        ["never-begins", {"restartPolicy": "Never", "initContainers": [ends("first", 4)], "containers": [idle("main")]}, {
            "/status/phase": "Failed", "/status/initContainerStatuses/0/state/terminated/exitCode": 4,
            "/status/containerStatuses/0/state/waiting/reason": "PodInitializing",
            "/status/containerStatuses/0/containerID": null,
        }],
        ["sidecar", {
            "initContainers": [with(idle("beside"), "restartPolicy", json!("Always"))], "containers": [idle("main")],
        }, {
            "/status/phase": "Running", "/status/initContainerStatuses/0/started": true,
            "/status/initContainerStatuses/0/ready": true, "/status/containerStatuses/0/ready": true,
        }],
        ["sidecar-ends", {
            "restartPolicy": "Never",
            "initContainers": [with(idle("beside"), "restartPolicy", json!("Always"))], "containers": [ends("main", 0)],
        }, {
            "/status/phase": "Succeeded", "/status/containerStatuses/0/state/terminated/reason": "Completed",
            "/status/initContainerStatuses/0/state/running": null,
        }],
        ["without-image", {"containers": [with(idle("main"), "image", json!("localhost/nobody:1"))]}, {
            "/status/phase": "Pending", "/status/containerStatuses/0/state/waiting/reason": "ErrImageNeverPull",
        }],
        ["cannot-start", {
            "restartPolicy": "Never", "containers": [with(ends("main", 0), "command", json!(["/nonexistent/program"]))],
        }, {
            "/status/phase": "Failed", "/status/containerStatuses/0/state/terminated/exitCode": 128,
            "/status/containerStatuses/0/state/terminated/reason": "StartError",
        }],
        ["probed", {
            "containers": [with(with(idle("main"), "startupProbe", says.clone()), "readinessProbe", says.clone())],
        }, {"/status/phase": "Running", "/status/containerStatuses/0/ready": true}],
    ]);
    let rows = list.as_array().expect("rows").iter();
    rows.map(|row| case(row, image)).collect()
}

fn case(row: &Value, image: &str) -> Case {
    let name = row[0].as_str().expect("a name");
    let mut spec = row[1].clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            container["imagePullPolicy"] = "Never".into();
            if container["image"].is_null() {
                container["image"] = image.into();
            }
        }
    }
    Case {
        name: name.to_owned(),
        spec,
        becomes: row[2].as_object().expect("pointers").clone(),
    }
}

/// Makes a container: one that runs until it is told to end, or one that ends with a code.
pub(crate) type Make = fn(&str, Option<u8>) -> Value;

/// Containers of images.
pub(crate) fn of_images(name: &str, code: Option<u8>) -> Value {
    code.map_or_else(|| idle(name), |code| ends(name, code))
}

/// The pods that every driver runs alike, be they containers, processes or a provider's. `laid` is laid over their specs.
pub(crate) fn of_every_driver(image: &str, make: Make, laid: &Value) -> Vec<Case> {
    let list = json!([
        ["runs", {"containers": [make("a", None), make("b", None)]}, {
            "/status/phase": "Running", "/status/containerStatuses/0/ready": true,
            "/status/containerStatuses/1/restartCount": 0, "/status/containerStatuses/1/started": true,
        }],
        ["succeeds", {"restartPolicy": "Never", "containers": [make("a", Some(0))]}, {
            "/status/phase": "Succeeded", "/status/containerStatuses/0/state/terminated/exitCode": 0,
            "/status/containerStatuses/0/state/terminated/reason": "Completed",
        }],
        ["fails", {"restartPolicy": "Never", "containers": [make("a", Some(3))]}, {
            "/status/phase": "Failed", "/status/containerStatuses/0/state/terminated/exitCode": 3,
            "/status/containerStatuses/0/state/terminated/reason": "Error",
        }],
        ["on-failure", {"restartPolicy": "OnFailure", "containers": [make("a", Some(0))]}, {
            "/status/phase": "Succeeded", "/status/containerStatuses/0/restartCount": 0,
        }],
        ["one-of-two", {"restartPolicy": "Never", "containers": [make("a", Some(0)), make("b", Some(5))]}, {
            "/status/phase": "Failed", "/status/containerStatuses/0/state/terminated/exitCode": 0,
            "/status/containerStatuses/1/state/terminated/exitCode": 5,
        }],
        ["still-runs", {"restartPolicy": "Never", "containers": [make("a", None), make("b", Some(5))]}, {
            "/status/phase": "Running", "/status/containerStatuses/0/ready": true,
            "/status/containerStatuses/1/state/terminated/exitCode": 5,
        }],
    ]);
    let rows = list.as_array().expect("rows").iter();
    let mut cases: Vec<Case> = rows.map(|row| case(row, image)).collect();
    for case in &mut cases {
        for (field, value) in laid.as_object().expect("an object") {
            case.spec[field] = value.clone();
        }
    }
    cases
}
