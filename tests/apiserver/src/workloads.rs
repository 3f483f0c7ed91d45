//! Stands in for the controllers of Deployments, ReplicaSets, DaemonSets and Jobs, and for the garbage collector of what
//! they own: as much of each as makes the pods that the real one would make.
//!
//! Each round looks at everything and says what is to be done ([`plan`]); it is done after that, one act at a time
//! ([`carry_out`]), and what fails is planned again. Nothing is remembered from one round to the next.
//!
//! Source: `pkg/controller/{deployment,replicaset,daemon,job,garbagecollector}`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::{commit, create, delete, set_condition, update};
use crate::auth::User;
use crate::clock;
use crate::core::Core;
use crate::json::{at, has, list, map, text};
use crate::kinds::{self, Kind};
use crate::store::Store;

/// Keeps a pod until its end is counted.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Whose objects are collected when it is gone: kind and resource.
const OWNERS: [(&str, &str); 4] = [
    ("Deployment", "deployments"),
    ("ReplicaSet", "replicasets"),
    ("DaemonSet", "daemonsets"),
    ("Job", "jobs"),
];

/// Something to do.
pub(crate) enum Act {
    Create(&'static str, String, Value),
    Delete(&'static str, String, String),
    Scale(String, String, i64),
    Status(&'static str, String, String, Value),
    /// A pod of a job has ended, or its job is gone: the pod need not stay. Job and field of its status to count it in.
    Release(String, String, Option<(String, &'static str)>),
}

/// What is to be done now.
pub(crate) fn plan(core: &Core, store: &Store) -> Vec<Act> {
    let mut acts = Vec::new();
    let live = |o: &&Arc<Value>| !has(o, "/metadata/deletionTimestamp");
    let all = |plural: &'static str| store.iter(plural, "").map(|(_, o)| o).filter(live);
    for object in all("deployments") {
        deployment(store, object, &mut acts);
    }
    for object in all("replicasets") {
        replica_set(store, object, &mut acts);
    }
    for object in all("daemonsets") {
        daemon_set(store, object, &mut acts);
    }
    for object in all("jobs") {
        job(core, store, object, &mut acts);
    }
    collect(store, &mut acts);
    acts
}

/// Does what was planned, as administrator.
pub(crate) fn carry_out(core: &Core, acts: Vec<Act>) {
    let admin = User::admin();
    for act in acts {
        // What cannot be done is planned again.
        match act {
            Act::Create(plural, ns, object) => {
                if let Some(kind) = kinds::plural(plural) {
                    let _ = create(core, &admin, kind, &ns, object, false, &mut Vec::new());
                }
            }
            Act::Delete(plural, ns, name) => {
                if let Some(kind) = kinds::plural(plural) {
                    let _ = delete(core, &admin, kind, &ns, &name, &json!({}));
                }
            }
            Act::Scale(ns, name, replicas) => {
                write(core, "replicasets", ns, name, |set| {
                    set["spec"]["replicas"] = json!(replicas);
                });
            }
            Act::Status(plural, ns, name, status) => {
                write(core, plural, ns, name, |object| object["status"] = status);
            }
            Act::Release(ns, name, counted) => {
                let Some(kind) = kinds::plural("pods") else {
                    continue;
                };
                let released = release(core, &admin, kind, &ns, &name);
                if let Some((job, field)) = counted.filter(|_| released) {
                    write(core, "jobs", ns, job, |job| {
                        let before = at(job, &format!("/status/{field}")).as_i64();
                        job["status"][field] = json!(before.unwrap_or(0) + 1);
                    });
                }
            }
        }
    }
}

fn write(
    core: &Core,
    plural: &'static str,
    ns: String,
    name: String,
    change: impl FnOnce(&mut Value),
) {
    let mut guard = core.store();
    let store = &mut *guard;
    let Some(old) = store.find(plural, &ns, &name).cloned() else {
        return;
    };
    let mut new = Value::clone(&old);
    change(&mut new);
    if new != *old {
        commit(core, store, (plural, ns, name), new);
    }
}

fn release(core: &Core, admin: &User, kind: &Kind, ns: &str, name: &str) -> bool {
    update(core, admin, kind, ns, name, "", false, |old| {
        let mut new = old.clone();
        if let Some(all) = new["metadata"]["finalizers"].as_array_mut() {
            all.retain(|f| f != TRACKING);
        }
        Ok(new)
    })
    .is_ok()
}

fn ns(object: &Value) -> String {
    text(object, "/metadata/namespace").to_owned()
}

fn name(object: &Value) -> String {
    text(object, "/metadata/name").to_owned()
}

fn number(object: &Value, pointer: &str, default: i64) -> i64 {
    at(object, pointer).as_i64().unwrap_or(default)
}

/// The reference of the controller that owns it.
fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences")
        .iter()
        .find(|r| at(r, "/controller").as_bool() == Some(true))
}

/// Objects of a resource that `owner` controls, oldest first.
fn owned<'a>(store: &'a Store, plural: &'static str, owner: &'a Value) -> Vec<&'a Value> {
    let uid = text(owner, "/metadata/uid");
    let mut all: Vec<&Value> = store
        .iter(plural, text(owner, "/metadata/namespace"))
        .map(|(_, object)| &**object)
        .filter(|object| controller(object).is_some_and(|r| text(r, "/uid") == uid))
        .collect();
    all.sort_by_key(|object| text(object, "/metadata/creationTimestamp"));
    all
}

fn is_finished(pod: &Value) -> bool {
    ["Failed", "Succeeded"].contains(&text(pod, "/status/phase"))
}

fn is_active(pod: &Value) -> bool {
    !is_finished(pod) && !has(pod, "/metadata/deletionTimestamp")
}

fn is_ready(pod: &Value) -> bool {
    let ready = |c: &Value| text(c, "/type") == "Ready" && text(c, "/status") == "True";
    is_active(pod) && list(pod, "/status/conditions").iter().any(ready)
}

/// Tells templates apart; in upstream's letters.
fn hash(template: &Value) -> String {
    let text = template.to_string();
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    clock::letters(&sum.to_be_bytes())
}

/// The template's labels with another one, and who owns what is made of it.
fn metadata(owner: &Value, version: &str, kind: &str, label: (&str, &str)) -> Value {
    let mut labels: serde_json::Map<String, Value> = map(owner, "/spec/template/metadata/labels")
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    if !label.0.is_empty() {
        labels.insert(label.0.to_owned(), json!(label.1));
    }
    json!({
        "generateName": format!("{}-", name(owner)), "namespace": ns(owner), "labels": labels,
        "annotations": at(owner, "/spec/template/metadata/annotations"),
        "ownerReferences": [{
            "apiVersion": version, "kind": kind, "name": name(owner), "uid": text(owner, "/metadata/uid"),
            "controller": true, "blockOwnerDeletion": true,
        }],
    })
}

fn pod(owner: &Value, version: &str, kind: &str, label: (&str, &str)) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata(owner, version, kind, label),
        "spec": at(owner, "/spec/template/spec"),
    })
}

/// Says how it stands, if that is news.
fn tell(plural: &'static str, object: &Value, status: Value, acts: &mut Vec<Act>) {
    if at(object, "/status") != &status {
        acts.push(Act::Status(plural, ns(object), name(object), status));
    }
}

/// Always as many ready as wanted while a new version comes, with one more at a time: upstream's quarter of few pods.
fn deployment(store: &Store, object: &Value, acts: &mut Vec<Act>) {
    let wanted = number(object, "/spec/replicas", 1);
    let template = at(object, "/spec/template");
    let hash = hash(template);
    let current = format!("{}-{hash}", name(object));
    let sets = owned(store, "replicasets", object);
    let has_of = |set: &Value, pointer: &str| number(set, pointer, 0);
    let sum = |pointer: &str| sets.iter().map(|set| has_of(set, pointer)).sum::<i64>();
    // From the pods themselves: a set's status is a round late, and counts those that are about to go.
    let ready_of = |set: &Value| {
        let pods = owned(store, "pods", set);
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        i64::try_from(ready)
            .unwrap_or(i64::MAX)
            .min(number(set, "/spec/replicas", 0))
    };
    let ready = sets.iter().map(|set| ready_of(set)).sum::<i64>();
    let surge = (wanted + 3) / 4;
    let room = (wanted + surge - sum("/spec/replicas")).max(0);
    match sets.iter().find(|set| name(set) == current) {
        None => {
            let first = if sets.is_empty() { wanted } else { room };
            let label = ("pod-template-hash", hash.as_str());
            let mut set = json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": metadata(object, "apps/v1", "Deployment", label),
                "spec": {"replicas": first.min(wanted), "selector": at(object, "/spec/selector"), "template": template},
            });
            set["metadata"]["name"] = json!(current);
            set["spec"]["template"]["metadata"]["labels"] = set["metadata"]["labels"].clone();
            set["spec"]["selector"]["matchLabels"]["pod-template-hash"] = json!(hash);
            acts.push(Act::Create("replicasets", ns(object), set));
        }
        Some(set) => {
            let has = has_of(set, "/spec/replicas");
            let next = if sets.len() == 1 || has >= wanted {
                wanted
            } else {
                wanted.min(has + room)
            };
            if next != has {
                acts.push(Act::Scale(ns(set), name(set), next));
            }
        }
    }
    let mut spare = (ready - wanted).max(0);
    for set in sets.iter().filter(|set| name(set) != current) {
        let has = has_of(set, "/spec/replicas");
        let unready = (has - ready_of(set)).max(0);
        let fewer = has.min(unready + spare);
        spare -= (fewer - unready).max(0);
        if fewer > 0 {
            acts.push(Act::Scale(ns(set), name(set), has - fewer));
        }
    }
    let updated = sets.iter().find(|set| name(set) == current);
    let updated = updated.map_or(0, |set| has_of(set, "/status/replicas"));
    let status = json!({
        "replicas": sum("/status/replicas"), "updatedReplicas": updated, "readyReplicas": ready,
        "availableReplicas": ready, "unavailableReplicas": (wanted - ready).max(0),
    });
    tell("deployments", object, status, acts);
}

fn replica_set(store: &Store, object: &Value, acts: &mut Vec<Act>) {
    let mut pods = owned(store, "pods", object);
    pods.retain(|pod| is_active(pod));
    let wanted = usize::try_from(number(object, "/spec/replicas", 1)).unwrap_or(0);
    for _ in pods.len()..wanted {
        acts.push(Act::Create(
            "pods",
            ns(object),
            pod(object, "apps/v1", "ReplicaSet", ("", "")),
        ));
    }
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let status =
        json!({"replicas": pods.len(), "readyReplicas": ready, "availableReplicas": ready});
    // Those that are not ready go first, of the others the youngest.
    pods.sort_by_key(|pod| is_ready(pod));
    let unready = pods.len() - ready;
    pods[unready..].reverse();
    let surplus = pods.len().saturating_sub(wanted);
    for pod in pods.iter().take(surplus) {
        acts.push(Act::Delete("pods", ns(pod), name(pod)));
    }
    tell("replicasets", object, status, acts);
}

/// The node that a pod of a DaemonSet is for; empty for other pods.
pub(crate) fn aimed_at(pod: &Value) -> &str {
    const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    text(pod, &format!("{TERMS}/0/matchFields/0/values/0"))
}

fn daemon_set(store: &Store, object: &Value, acts: &mut Vec<Act>) {
    let revision = hash(at(object, "/spec/template"));
    let label = ("controller-revision-hash", revision.as_str());
    let pods = owned(store, "pods", object);
    let (mut wanted, mut ready) = (0, 0);
    for (key, _) in store.iter("nodes", "") {
        wanted += 1;
        let mut here = pods.iter().filter(|pod| aimed_at(pod) == key.2);
        match here.next() {
            None => {
                let mut pod = pod(object, "apps/v1", "DaemonSet", label);
                let field = json!({"key": "metadata.name", "operator": "In", "values": [key.2]});
                pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": [{"matchFields": [field]}]}}});
                pod["spec"]["tolerations"] = tolerations();
                acts.push(Act::Create("pods", ns(object), pod));
            }
            Some(pod) => {
                ready += usize::from(is_ready(pod));
                let labels = &pod["metadata"]["labels"];
                if labels["controller-revision-hash"] != revision || is_finished(pod) {
                    acts.push(Act::Delete("pods", ns(pod), name(pod)));
                }
            }
        }
    }
    let status = json!({
        "desiredNumberScheduled": wanted, "currentNumberScheduled": wanted, "numberMisscheduled": 0,
        "numberReady": ready, "numberAvailable": ready,
    });
    tell("daemonsets", object, status, acts);
}

fn tolerations() -> Value {
    let of = |key: &str, effect: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect});
    json!([
        of("not-ready", "NoExecute"),
        of("unreachable", "NoExecute"),
        of("disk-pressure", "NoSchedule"),
        of("memory-pressure", "NoSchedule"),
        of("pid-pressure", "NoSchedule"),
        of("unschedulable", "NoSchedule"),
    ])
}

fn is_tracked(pod: &Value) -> bool {
    let finalizers = list(pod, "/metadata/finalizers");
    finalizers.iter().any(|f| f == TRACKING)
}

fn job(core: &Core, store: &Store, object: &Value, acts: &mut Vec<Act>) {
    let done = |ty: &str| {
        let conditions = list(object, "/status/conditions");
        conditions.iter().any(|c| text(c, "/type") == ty)
    };
    let pods = owned(store, "pods", object);
    let ended: Vec<_> = pods
        .iter()
        .filter(|p| is_tracked(p) && is_finished(p))
        .collect();
    for pod in &ended {
        let field = match text(pod, "/status/phase") {
            "Succeeded" => "succeeded",
            _ => "failed",
        };
        acts.push(Act::Release(
            ns(pod),
            name(pod),
            Some((name(object), field)),
        ));
    }
    // Until they are counted nothing else is certain.
    if !ended.is_empty() || done("Complete") || done("Failed") {
        return;
    }
    let completions = number(object, "/spec/completions", 1);
    let succeeded = number(object, "/status/succeeded", 0);
    let failed = number(object, "/status/failed", 0);
    let active = i64::try_from(pods.iter().filter(|p| is_active(p)).count()).unwrap_or(i64::MAX);
    let mut status = at(object, "/status").clone();
    if !status.is_object() {
        status = json!({"startTime": clock::rfc3339(core.clock.now_s())});
    }
    status["active"] = json!(active);
    let mut new = json!({"status": status});
    let now = core.clock.now_s();
    let end = if succeeded >= completions {
        Some(["SuccessCriteriaMet", "Complete"])
    } else if failed > number(object, "/spec/backoffLimit", 6) {
        Some(["FailureTarget", "Failed"])
    } else {
        None
    };
    if let Some(types) = end {
        for ty in types {
            set_condition(&mut new, &json!({"type": ty, "status": "True"}), now);
        }
        if types[1] == "Complete" {
            new["status"]["completionTime"] = json!(clock::rfc3339(now));
        }
    } else {
        let at_a_time = number(object, "/spec/parallelism", 1);
        for _ in active..at_a_time.min(completions - succeeded) {
            let mut pod = pod(
                object,
                "batch/v1",
                "Job",
                ("batch.kubernetes.io/job-name", &name(object)),
            );
            pod["metadata"]["finalizers"] = json!([TRACKING]);
            acts.push(Act::Create("pods", ns(object), pod));
        }
    }
    tell("jobs", object, new["status"].take(), acts);
}

/// Deletes what belongs to a workload that is gone.
fn collect(store: &Store, acts: &mut Vec<Act>) {
    for plural in ["replicasets", "pods"] {
        for (_, object) in store.iter(plural, "") {
            let Some(owner) = controller(object) else {
                continue;
            };
            let kind = OWNERS
                .iter()
                .find(|(kind, _)| *kind == text(owner, "/kind"));
            let Some((_, of)) = kind else { continue };
            let found = store.find(of, &ns(object), text(owner, "/name"));
            let is_there = |o: &Arc<Value>| text(o, "/metadata/uid") == text(owner, "/uid");
            if found.is_some_and(is_there) {
                continue;
            }
            if is_tracked(object) {
                acts.push(Act::Release(ns(object), name(object), None));
            }
            if !has(object, "/metadata/deletionTimestamp") {
                acts.push(Act::Delete(plural, ns(object), name(object)));
            }
        }
    }
}
