//! Stands in for the scheduler and the node controllers, where a test wants them.
//!
//! Source: `pkg/controller/nodelifecycle`, `pkg/controller/nodeipam`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{commit, set_condition};
use crate::clock;
use crate::core::Core;
use crate::json::{array_mut, at, child, has, list, map, text};
use crate::store::Store;

/// How long a round waits for a change: leases grow old without one.
const ROUND: Duration = Duration::from_secs(1);

/// Conditions that a silent node no longer vouches for.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What is remembered of a node's signs of life.
struct Sign {
    /// Largest `renewTime` that its lease had; the text has one width, so it is in the order of time.
    lease: String,
    /// Last heartbeat of its Ready condition.
    beat: String,
    /// When one of the two came.
    at_ms: i64,
}

/// By node.
type Signs = BTreeMap<String, Sign>;

/// Runs until the server stops.
pub(crate) fn run(core: &Core) {
    let mut signs = Signs::new();
    let mut seen = 0;
    while !core.stopped() {
        let mut store = core.store();
        if store.rv() == seen {
            store = core.wait(store, ROUND);
        }
        let before = store.rv();
        nodes(core, &mut store, &mut signs);
        schedule(core, &mut store);
        seen = store.rv();
        if seen != before {
            core.notify();
        }
    }
}

fn all(store: &Store, storage: &'static str) -> Vec<Arc<Value>> {
    store
        .iter(storage, "")
        .map(|(_, o)| Arc::clone(o))
        .collect()
}

fn condition<'a>(object: &'a Value, ty: &str) -> Option<&'a Value> {
    list(object, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == ty)
}

fn nodes(core: &Core, store: &mut Store, signs: &mut Signs) {
    let now_ms = core.clock.now_ms();
    let now = now_ms / 1000;
    let grace = i64::try_from(core.config.node_grace().as_millis()).unwrap_or(i64::MAX);
    for old in all(store, "nodes") {
        let name = text(&old, "/metadata/name").to_owned();
        let lease = store
            .find("leases", "kube-node-lease", &name)
            .map_or("", |l| text(l, "/spec/renewTime"));
        let ready = condition(&old, "Ready");
        let beat = ready.map_or("", |c| text(c, "/lastHeartbeatTime"));
        let known = signs.entry(name.clone()).or_insert_with(|| Sign {
            lease: lease.to_owned(),
            beat: beat.to_owned(),
            at_ms: now_ms,
        });
        // A heartbeat counts if it is another one, a lease only if it grew.
        if known.beat != beat || known.lease.as_str() < lease {
            known.beat = beat.to_owned();
            known.lease = lease.max(&known.lease).to_owned();
            known.at_ms = now_ms;
        }
        let silent = now_ms - known.at_ms > grace;
        let mut node = Value::clone(&old);
        if silent {
            for ty in CONDITIONS {
                let (reason, message) = match condition(&node, ty) {
                    Some(c) if text(c, "/status") == "Unknown" => continue,
                    Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                    None => (
                        "NodeStatusNeverUpdated",
                        "Kubelet never posted node status.",
                    ),
                };
                let heartbeat =
                    condition(&node, ty).map_or(Value::Null, |c| c["lastHeartbeatTime"].clone());
                set_condition(
                    &mut node,
                    &json!({"type": ty, "status": "Unknown", "reason": reason, "message": message,
                        "lastHeartbeatTime": heartbeat}),
                    now,
                );
            }
        }
        taint(&mut node, now);
        let supervisor = core.supervisor.as_ref();
        if supervisor.is_some_and(|it| it.has_cloud_controller(core)) {
            complete_by_cloud_controller(&mut node);
        }
        if list(&node, "/spec/podCIDRs").is_empty() {
            let cidr = free_cidr(
                store,
                if supervisor.is_some() {
                    "10.42"
                } else {
                    "10.85"
                },
            );
            node["spec"]["podCIDR"] = json!(cidr);
            node["spec"]["podCIDRs"] = json!([cidr]);
        }
        let is_ready =
            condition(&node, "Ready").map_or("Unknown", |c| text(c, "/status")) == "True";
        let was_ready = ready.is_some_and(|c| text(c, "/status") == "True");
        if node != *old {
            commit(core, store, ("nodes", String::new(), name.clone()), node);
        }
        if !is_ready && (silent || was_ready) {
            unready_pods(core, store, &name, now);
        }
    }
}

/// What the cloud controller of k3s does to a node: addresses from its annotations, the provider ID, the instance type;
/// the taint of new nodes goes.
///
/// Source: k3s `pkg/cloudprovider/instances.go`; k8s `cloud-provider/controllers/node`.
fn complete_by_cloud_controller(node: &mut Value) {
    let note = |name: &str| {
        let notes = at(node, "/metadata/annotations");
        notes[format!("k3s.io/{name}")]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    let (internal, hostname) = (note("internal-ip"), note("hostname"));
    // Without them it only logs.
    if internal.is_empty() || hostname.is_empty() {
        return;
    }
    let mut addresses = Vec::new();
    for (kind, words) in [
        ("InternalIP", internal),
        ("ExternalIP", note("external-ip")),
        ("Hostname", hostname),
        ("InternalDNS", note("internal-dns")),
        ("ExternalDNS", note("external-dns")),
    ] {
        for address in words.split(',').filter(|word| !word.is_empty()) {
            addresses.push(json!({"type": kind, "address": address}));
        }
    }
    let name = text(node, "/metadata/name").to_owned();
    if list(node, "/status/addresses") != addresses {
        node["status"]["addresses"] = json!(addresses);
    }
    if text(node, "/spec/providerID").is_empty() {
        node["spec"]["providerID"] = json!(format!("k3s://{name}"));
    }
    for label in [
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
    ] {
        if at(node, "/metadata/labels").get(label).is_none() {
            node["metadata"]["labels"][label] = json!("k3s");
        }
    }
    let left: Vec<Value> = list(node, "/spec/taints")
        .iter()
        .filter(|taint| text(taint, "/key") != "node.cloudprovider.kubernetes.io/uninitialized")
        .cloned()
        .collect();
    if left.len() < list(node, "/spec/taints").len() {
        node["spec"]["taints"] = json!(left);
    }
}

/// The first subnet of a range, given by its first two bytes, that no node has.
fn free_cidr(store: &Store, range: &str) -> String {
    (0..256)
        .map(|n| format!("{range}.{n}.0/24"))
        .find(|cidr| {
            store
                .iter("nodes", "")
                .all(|(_, node)| text(node, "/spec/podCIDR") != cidr)
        })
        .unwrap_or_default()
}

/// Taints that follow from conditions; others are left alone, times of those that stay are kept.
fn taint(node: &mut Value, now: i64) {
    let is =
        |ty: &str, status: &str| condition(node, ty).is_some_and(|c| text(c, "/status") == status);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (ty, status, key) in [
        ("Ready", "False", NOT_READY),
        ("Ready", "Unknown", UNREACHABLE),
        (
            "MemoryPressure",
            "True",
            "node.kubernetes.io/memory-pressure",
        ),
        ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
        (
            "NetworkUnavailable",
            "True",
            "node.kubernetes.io/network-unavailable",
        ),
    ] {
        if is(ty, status) {
            wanted.push((key, "NoSchedule"));
            if ty == "Ready" {
                wanted.push((key, "NoExecute"));
            }
        }
    }
    if condition(node, "Ready").is_none() {
        wanted.push((NOT_READY, "NoSchedule"));
    }
    if at(node, "/spec/unschedulable").as_bool() == Some(true) {
        wanted.push(("node.kubernetes.io/unschedulable", "NoSchedule"));
    }
    let managed = [
        NOT_READY,
        UNREACHABLE,
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.kubernetes.io/unschedulable",
    ];
    let same = |taint: &Value, (key, effect): &(&str, &str)| {
        text(taint, "/key") == *key && text(taint, "/effect") == *effect
    };
    let before = list(node, "/spec/taints").to_vec();
    let mut after: Vec<Value> = before
        .iter()
        .filter(|t| !managed.contains(&text(t, "/key")) || wanted.iter().any(|w| same(t, w)))
        .cloned()
        .collect();
    for want in &wanted {
        if !after.iter().any(|t| same(t, want)) {
            after.push(json!({"key": want.0, "effect": want.1, "timeAdded": clock::rfc3339(now)}));
        }
    }
    if after != before {
        let spec = child(node, &["spec"]);
        if after.is_empty() {
            spec.remove("taints");
        } else {
            spec.insert("taints".to_owned(), Value::Array(after));
        }
    }
}

/// Pods of a node that is away serve nobody: only the condition changes, no generation.
fn unready_pods(core: &Core, store: &mut Store, node: &str, now: i64) {
    for old in all(store, "pods") {
        if text(&old, "/spec/nodeName") != node {
            continue;
        }
        let mut pod = Value::clone(&old);
        for c in array_mut(&mut pod, "/status/conditions") {
            if c["type"] == "Ready" && c["status"] == "True" {
                c["status"] = json!("False");
                c["lastTransitionTime"] = json!(clock::rfc3339(now));
            }
        }
        if pod != *old {
            let key = (
                "pods",
                text(&pod, "/metadata/namespace").to_owned(),
                text(&pod, "/metadata/name").to_owned(),
            );
            commit(core, store, key, pod);
        }
    }
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let key = text(toleration, "/key");
    let effect = text(toleration, "/effect");
    let exists = text(toleration, "/operator") == "Exists";
    (effect.is_empty() || effect == text(taint, "/effect"))
        && (key.is_empty() && exists || key == text(taint, "/key"))
        && (exists || text(toleration, "/value") == text(taint, "/value"))
}

fn schedule(core: &Core, store: &mut Store) {
    let now = core.clock.now_s();
    let waiting: Vec<Arc<Value>> = all(store, "pods")
        .into_iter()
        .filter(|pod| {
            text(pod, "/spec/nodeName").is_empty()
                && !has(pod, "/metadata/deletionTimestamp")
                && list(pod, "/spec/schedulingGates").is_empty()
                && text(pod, "/spec/schedulerName") == "default-scheduler"
        })
        .collect();
    for old in waiting {
        let target = store
            .iter("nodes", "")
            .find(|(_, node)| fits(store, node, &old))
            .map(|(key, _)| key.2.clone());
        let mut pod = Value::clone(&old);
        let scheduled = match target {
            Some(node) => {
                pod["spec"]["nodeName"] = json!(node);
                json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null})
            }
            None if condition(&pod, "PodScheduled").is_some() => continue,
            None => json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "no nodes available to schedule pods", "lastProbeTime": null}),
        };
        set_condition(&mut pod, &scheduled, now);
        let key = (
            "pods",
            text(&pod, "/metadata/namespace").to_owned(),
            text(&pod, "/metadata/name").to_owned(),
        );
        commit(core, store, key, pod);
    }
}

fn fits(store: &Store, node: &Value, pod: &Value) -> bool {
    let name = text(node, "/metadata/name");
    let ready = condition(node, "Ready").is_some_and(|c| text(c, "/status") == "True");
    let selected = map(pod, "/spec/nodeSelector")
        .all(|(key, value)| node["metadata"]["labels"].get(key) == Some(value));
    let tolerated = list(node, "/spec/taints")
        .iter()
        .filter(|t| text(t, "/effect") != "PreferNoSchedule")
        .all(|taint| {
            list(pod, "/spec/tolerations")
                .iter()
                .any(|t| tolerates(t, taint))
        });
    let room: usize = text(node, "/status/allocatable/pods")
        .parse()
        .unwrap_or(110);
    let used = store
        .iter("pods", "")
        .filter(|(_, p)| {
            text(p, "/spec/nodeName") == name
                && !["Failed", "Succeeded"].contains(&text(p, "/status/phase"))
        })
        .count();
    ready
        && at(node, "/spec/unschedulable").as_bool() != Some(true)
        && selected
        && tolerated
        && used < room
}
