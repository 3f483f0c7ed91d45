//! The cluster and its one node, as the steps look at them.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::plane::Plane;
use crate::{
    Failure,
    process::with_word,
    stage::{NODE, Stage},
    wait::until,
};

/// A pod that is not there by then does not come.
pub(super) const START: Duration = Duration::from_secs(60);
/// Grace, teardown, and whatever controllers wait for.
pub(super) const GONE: Duration = Duration::from_secs(60);
/// A shell that is just forking has its word twice.
const FORK: Duration = Duration::from_secs(5);

pub(super) struct World<'a> {
    pub(super) plane: Plane,
    pub(super) stage: &'a mut Stage,
}

/// What tells one run of a pod's container from the next: its ID and how often it was restarted.
pub(super) type Runs = BTreeMap<String, (String, u64)>;

impl World<'_> {
    /// Pods with the label `app`; all of the namespace if it is empty.
    pub(super) fn pods(&self, app: &str) -> Result<Vec<Value>, Failure> {
        let selector = if app.is_empty() {
            String::new()
        } else {
            format!("?labelSelector=app%3D{app}")
        };
        let list = self.plane.client.get(&format!("{PODS}{selector}"))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    pub(super) fn pod(&self, name: &str) -> Result<Value, Failure> {
        self.plane.client.get(&pod_path(name))
    }

    /// Waits until exactly so many pods of `app` are ready, all on the node, and there are no others of it.
    pub(super) fn ready(&self, app: &str, count: usize) -> Result<Vec<Value>, Failure> {
        until(START, || {
            let pods = self.pods(app)?;
            if pods.len() != count {
                return Err(format!("there are {} pods, not {count}", pods.len()).into());
            }
            for pod in &pods {
                is_ready(pod)?;
                if pod["spec"]["nodeName"] != NODE {
                    return Err(format!("{} is on no node", name(pod)).into());
                }
            }
            Ok(pods)
        })
    }

    /// Waits until the API has no pod of `app` and the node no process of it.
    pub(super) fn gone(&self, app: &str) -> Result<(), Failure> {
        until(GONE, || {
            let pods = self.pods(app)?;
            if let Some(pod) = pods.first() {
                return Err(format!("{} is still there", name(pod)).into());
            }
            self.no_process(app)
        })
    }

    pub(super) fn no_process(&self, app: &str) -> Result<(), Failure> {
        match with_word(&self.word(app))[..] {
            [] => Ok(()),
            ref left => Err(format!("{app} still has the processes {left:?}").into()),
        }
    }

    /// The word that the processes of `app` have.
    fn word(&self, app: &str) -> String {
        format!("{}-{app}", self.stage.mark)
    }

    /// The processes of `app`.
    pub(super) fn processes(&self, app: &str, count: usize) -> Result<Vec<u32>, Failure> {
        until(FORK, || match with_word(&self.word(app)) {
            found if found.len() == count => Ok(found),
            found => Err(format!("{app} has the processes {found:?}, not {count}").into()),
        })
    }

    /// Runs `command` in a pod of the node, by the node's own command.
    pub(super) fn exec(&self, pod: &str, command: &[&str]) -> Result<String, Failure> {
        let mut words = vec!["exec", pod, "--"];
        words.extend_from_slice(command);
        self.stage.client(&words)
    }

    pub(super) fn node(&self) -> Result<Value, Failure> {
        self.plane.client.get(&format!("/api/v1/nodes/{NODE}"))
    }

    pub(super) fn delete_pod(&self, name: &str, grace_s: Option<u32>) -> Result<Value, Failure> {
        self.plane.client.delete(&pod_path(name), grace_s)
    }

    /// When the node last gave a sign of life.
    pub(super) fn heartbeat(&self) -> Result<String, Failure> {
        let path = format!("{LEASES}/{NODE}");
        Ok(text(&self.plane.client.get(&path)?["spec"]["renewTime"]))
    }
}

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

pub(super) fn pod_path(name: &str) -> String {
    format!("{PODS}/{name}")
}

/// Condition `kind` of a Node, Pod, Deployment or Job.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|c| c["type"] == kind)
}

pub(super) fn is_true(object: &Value, kind: &str) -> Result<(), Failure> {
    match condition(object, kind) {
        Some(c) if c["status"] == "True" => Ok(()),
        Some(c) => Err(format!("{}: {kind} is {c}", name(object)).into()),
        None => Err(format!("{}: there is no condition {kind}", name(object)).into()),
    }
}

pub(super) fn is_ready(pod: &Value) -> Result<(), Failure> {
    expect(&pod["status"]["phase"], "Running")
        .and_then(|()| is_true(pod, "Ready"))
        .map_err(|e| format!("{}: {e}; {}", name(pod), pod["status"]["containerStatuses"]).into())
}

/// The runs of pods' first containers, by pod.
pub(super) fn runs(pods: &[Value]) -> Runs {
    pods.iter()
        .map(|pod| {
            let status = &pod["status"]["containerStatuses"][0];
            let restarts = status["restartCount"].as_u64().unwrap_or_default();
            (name(pod), (text(&status["containerID"]), restarts))
        })
        .collect()
}

pub(super) fn expect(found: &Value, wanted: impl Into<Value>) -> Result<(), Failure> {
    let wanted = wanted.into();
    if *found == wanted {
        Ok(())
    } else {
        Err(format!("expected {wanted}, found {found}").into())
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(super) fn name(object: &Value) -> String {
    text(&object["metadata"]["name"])
}

pub(super) fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}
