//! Whether the API shows of each pod what is true of it.

use alloc::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    super::core::Agent,
    control::{Control, is_deleting, is_mirror},
    pods::{Manifest, TOO_LITTLE_MIB},
};
use crate::{
    api::{
        Pod, PodUid, Quantity,
        cri::{ContainerState, PodRuntimeStatus, SandboxState},
        pod::{CONFIG_HASH, CONFIG_MIRROR},
        pod_status::PodStatus,
        strict,
    },
    logic::{api_pod, cgroup::cpu_shares, conditions, testing::server::uid_of},
    runtime::fake::Fake,
};

/// Fields of a status that are the agent's alone, but for conditions.
const FIELDS: [&str; 13] = [
    "phase",
    "reason",
    "message",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "qosClass",
    "observedGeneration",
];

/// The pods of the API as they are to be.
#[derive(Default)]
pub(super) struct Wanted {
    /// Those that are to run.
    pub(super) alive: Vec<(PodUid, Manifest, Pod, bool)>,
    /// Those that have ended, and may be remembered.
    pub(super) ended: BTreeSet<PodUid>,
}

impl Control {
    /// What the API wants; an error while somebody has to do something about it.
    pub(super) fn wanted(&self, node: &str) -> Result<Wanted, String> {
        let objects: Vec<Value> = self
            .api
            .with(|server| server.objects.values().cloned().collect());
        let mut wanted = Wanted::default();
        for object in objects.into_iter().filter(|o| !is_mirror(o)) {
            let uid = PodUid::new(uid_of(&object));
            if is_deleting(&object) {
                return Err(format!("pod {uid} is to be deleted, and is there"));
            }
            let manifest = self.made.get(&uid).ok_or("a pod that nobody made")?;
            let received = api_pod::decode_api_pod(object, node).map_err(|e| e.to_string())?;
            if received.pod.status.phase.is_terminal() {
                wanted.ended.insert(uid);
                continue;
            }
            // In a store that went back a pod may be alive whose end was told.
            let may_end = manifest.kind.may_end() || self.api.with(|s| s.restored);
            wanted
                .alive
                .push((uid, manifest.clone(), received.pod, may_end));
        }
        Ok(wanted)
    }

    /// Whether the API shows the truth of each pod. `statics`: pods of manifests, by full name.
    pub(super) fn shows_the_truth(
        &self,
        agent: &Agent,
        fake: &Fake,
        statics: &[&Pod],
    ) -> Result<(), String> {
        let objects: Vec<Value> = self
            .api
            .with(|server| server.objects.values().cloned().collect());
        let statuses = agent.pods().statuses();
        let runtime = fake.pods();
        for object in objects.iter().filter(|o| !is_mirror(o)) {
            let uid = PodUid::new(uid_of(object));
            let ended = matches!(
                object["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            );
            // Also one whose end others have told, which the agent may hear of in the answer to a write of its own.
            if ended && fake.runs(&uid) {
                return Err(format!("pod {uid} has ended, and runs"));
            }
            let Some(own) = statuses.get(&uid) else {
                // One that had ended before this agent began is nobody's any more.
                if !ended {
                    return Err(format!("pod {uid} has no status: {object}"));
                }
                continue;
            };
            same(&object["status"], own).map_err(|e| format!("pod {uid}: {e}"))?;
            let listed = runtime.iter().find(|p| p.uid == uid);
            as_at_the_runtime(&object["status"], listed)
                .map_err(|e| format!("pod {uid}: {e}: {}", object["status"]))?;
            // Those of a pod as a whole are judged elsewhere.
            let is_level = !object["spec"]["resources"].is_null();
            if !ended && !is_deleting(object) && !is_level {
                has_its_resources(object, &uid, fake)
                    .map_err(|e| format!("pod {uid}: {e}: {object}"))?;
            }
        }
        let table = agent.pods().worker_table();
        for pod in statics {
            let metadata = &pod.metadata;
            let named = |o: &&Value| {
                o["metadata"]["name"] == *metadata.name
                    && o["metadata"]["namespace"] == *metadata.namespace
            };
            let Some(mirror) = objects.iter().find(named) else {
                if table.is_pod_termination_requested(&metadata.uid) {
                    continue;
                }
                return Err(format!("static pod {} has no mirror", metadata.uid));
            };
            if is_deleting(mirror) {
                return Err(format!("the mirror of {} goes", metadata.uid));
            }
            let hash = metadata.annotations.get(CONFIG_HASH);
            let ends = table.is_pod_termination_requested(&metadata.uid);
            if mirror["metadata"]["annotations"][CONFIG_MIRROR] != *hash.map_or("", |h| h) && !ends
            {
                return Err(format!("the mirror of {} is another's", metadata.uid));
            }
            if let Some(own) = statuses.get(&metadata.uid) {
                same(&mirror["status"], own)
                    .map_err(|e| format!("mirror of {}: {e}", metadata.uid))?;
            }
        }
        let of_none = |o: &&Value| {
            is_mirror(o)
                && !statics.iter().any(|pod| {
                    o["metadata"]["name"] == *pod.metadata.name
                        && o["metadata"]["namespace"] == *pod.metadata.namespace
                })
        };
        match objects.iter().find(of_none) {
            Some(mirror) => Err(format!("a mirror of no pod: {mirror}")),
            None => Ok(()),
        }
    }
}

/// Whether a status in the API says what the agent has stored.
fn same(shown: &Value, own: &PodStatus) -> Result<(), String> {
    let own = strict::to_value(own).map_err(|e| e.to_string())?;
    let terminal = matches!(shown["phase"].as_str(), Some("Succeeded" | "Failed"));
    // How it ended is told once, by whoever came first.
    let told = terminal && shown["phase"] != own["phase"];
    for field in FIELDS {
        let lead = matches!(field, "phase" | "reason" | "message");
        if shown[field] != own[field] && !(told && lead) {
            return Err(format!(
                "{field} is {} and shows {}",
                own[field], shown[field]
            ));
        }
    }
    let list = |status: &Value| status["conditions"].as_array().cloned().unwrap_or_default();
    let (shown, own) = (list(shown), list(&own));
    let ours = |c: &&Value| {
        c["type"]
            .as_str()
            .is_some_and(conditions::is_owned_by_agent)
    };
    for condition in own.iter().filter(ours) {
        let found = shown.iter().find(|c| c["type"] == condition["type"]);
        let found = found.ok_or_else(|| format!("condition {condition} is not shown"))?;
        let readiness = matches!(
            condition["type"].as_str(),
            Some("Ready" | "ContainersReady")
        );
        for field in ["status", "reason", "message"] {
            let of_end = matches!(found["reason"].as_str(), Some("PodCompleted" | "PodFailed"));
            let forced = terminal && readiness && found["status"] == "False" && of_end;
            if condition[field] != found[field] && !forced {
                return Err(format!("condition {condition} shows as {found}"));
            }
        }
    }
    let of_own = |c: &Value| own.iter().any(|o| o["type"] == c["type"]);
    match shown.iter().filter(ours).find(|c| !of_own(c)) {
        Some(stray) if !terminal => Err(format!("condition {stray} does not hold")),
        _ => Ok(()),
    }
}

/// Whether a container that runs has the resources that the status shows, and those that it was asked to have, unless the
/// status says why not.
fn has_its_resources(object: &Value, uid: &PodUid, fake: &Fake) -> Result<(), String> {
    let condition = |kind: &str| {
        let all = object["status"]["conditions"].as_array();
        let found = all.into_iter().flatten().find(|c| c["type"] == kind);
        found.map(|c| c["reason"].as_str().unwrap_or_default().to_owned())
    };
    let (pending, in_progress) = (
        condition("PodResizePending"),
        condition("PodResizeInProgress"),
    );
    if !matches!(pending.as_deref(), None | Some("Infeasible")) {
        return Err(format!("its resize is {pending:?}"));
    }
    if !matches!(in_progress.as_deref(), None | Some("Error")) {
        return Err("its resize does not end".into());
    }
    let spec = &object["spec"]["containers"][0];
    let name = spec["name"].as_str().unwrap_or_default();
    let statuses = object["status"]["containerStatuses"].as_array();
    let mut statuses = statuses.into_iter().flatten();
    let told = statuses.find(|c| c["name"] == name && !c["state"]["running"].is_null());
    let (Some(told), Some(config)) = (told, fake.config(uid, name)) else {
        return Ok(());
    };
    let wants = &spec["resources"];
    if wants.is_null() {
        return Ok(());
    }
    let shown = &told["resources"];
    let amount = |value: &Value| Quantity::parse(value.as_str().unwrap_or("0")).ok();
    let memory = amount(&shown["limits"]["memory"]).map(|q| q.value());
    let cpu = amount(&shown["requests"]["cpu"]).map(|q| cpu_shares(q.milli_value()));
    let has = &config.resources;
    // What a step that failed has done is in doubt.
    let is_same = memory == has.memory_limit_bytes && cpu == has.cpu_shares;
    if in_progress.is_none() && !is_same {
        return Err(format!("it has {has:?}"));
    }
    let too_little = json!(format!("{TOO_LITTLE_MIB}Mi"));
    let refused = told["allocatedResources"]["memory"] == too_little;
    match (pending, in_progress) {
        (None, None) if shown != wants => Err("its resize was forgotten".into()),
        (_, Some(_)) if !refused => Err("its resize failed for no reason".into()),
        _ => Ok(()),
    }
}

/// Whether a status says what the runtime has.
fn as_at_the_runtime(shown: &Value, listed: Option<&PodRuntimeStatus>) -> Result<(), String> {
    let none = Vec::new();
    let running = listed.map_or(&none, |p| &p.containers);
    let running: Vec<_> = running
        .iter()
        .filter(|c| c.state == ContainerState::Running)
        .collect();
    let lists = ["initContainerStatuses", "containerStatuses"].map(|name| shown[name].as_array());
    let all: Vec<&Value> = lists.into_iter().flatten().flatten().collect();
    for container in &running {
        let told = all.iter().find(|s| s["name"] == *container.name);
        let told = told.ok_or_else(|| format!("container {} is not shown", container.name))?;
        let id = told["containerID"].as_str().unwrap_or("");
        if told["state"]["running"].is_null() || !id.ends_with(&*container.id) {
            return Err(format!("container {} runs", container.id));
        }
    }
    for told in all.iter().filter(|s| !s["state"]["running"].is_null()) {
        if !running.iter().any(|c| told["name"] == *c.name) {
            return Err(format!("{} does not run", told["name"]));
        }
    }
    let sandboxes = listed.map_or(&[][..], |p| &p.sandboxes);
    let ready = sandboxes.iter().find(|s| s.state == SandboxState::Ready);
    if let Some(ip) = ready.and_then(|s| s.ips.first())
        && !running.is_empty()
        && shown["podIP"] != ip.to_string()
    {
        return Err(format!("its address is {ip}"));
    }
    Ok(())
}
