//! Schedules of resizes: pods that live long, get other resources again and again while agents are killed, power is cut and
//! updates fail, and have to have in the end what they were asked to have, everywhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    super::pod_store::PodStore,
    input::{Deed, Input, Random, Timed},
    pods::{Kind, Manifest, TOO_LITTLE_MIB},
};
use crate::{
    api::{PodUid, Quantity},
    logic::cgroup::{MIN_SHARES, cpu_shares},
    runtime::fake::Fake,
};

/// Pods of a schedule.
const PODS: u8 = 20;
/// Resizes of a schedule.
const RESIZES: u32 = 200;
/// Of so many updates at the runtime one fails.
const FAILS_EVERY: u32 = 10;
/// Time between two things that happen, at most.
const MAX_PAUSE_MS: u64 = 4000;
/// Time within which an agent has seen all pods, without a doorbell too.
const ARRIVAL_MS: u64 = 15_000;
/// Kinds of the pods: their resources may change.
const KINDS: [Kind; 5] = [
    Kind::Sleeps,
    Kind::Pair,
    Kind::Sidecar,
    Kind::Restarted,
    Kind::Level,
];
/// Memory of a resize, MiB: also less than is in use, and more than the node has. All others fit, in all pods.
const MEMORY_MIB: [u16; 7] = [TOO_LITTLE_MIB, 8, 8, 16, 24, 32, 2000];
/// Processor of a resize, thousandths.
const CPU_MILLI: [u16; 5] = [50, 100, 100, 150, 5000];
/// Files of a cgroup.
const GROUP_FILES: [&str; 6] = [
    "cgroup.controllers",
    "cgroup.subtree_control",
    "cpu.max",
    "cpu.weight",
    "memory.max",
    "pids.max",
];

/// Draws a schedule.
pub(super) fn draw(seed: u64) -> Vec<Timed> {
    // Other seeds than those of other kinds.
    let random = &mut Random::new(seed ^ 0x5e51_u64.rotate_left(40));
    let mut schedule = Vec::new();
    let mut add = |at_ms: u64, input: Input| schedule.push(Timed { at_ms, input });
    let doorbell = random.percent(75);
    let seed = random.next();
    add(0, Input::Join { doorbell, seed });
    add(0, Input::UpdatesFail { every: FAILS_EVERY });
    if random.percent(60) {
        let max_ms = random.pick(&[1, 50, 400]);
        let seed = random.next();
        add(0, Input::Latency { max_ms, seed });
    }
    if random.percent(50) {
        add(0, super::input::order(random));
    }
    let mut at_ms = 0;
    for name in 0..PODS {
        let pod = Manifest {
            name,
            own_uid: false,
            kind: random.pick(&KINDS),
            version: 1,
            grace_s: 1,
            deleted_s: None,
        };
        let deed = Deed::Create { pod };
        add(at_ms, Input::Api { name, deed });
        at_ms += random.below(200);
    }
    // An agent that sees a pod for the first time refuses one that asks for more than the node has.
    at_ms += ARRIVAL_MS;
    for _ in 0..RESIZES {
        at_ms += random.below(MAX_PAUSE_MS);
        let name = random.small(PODS);
        let deed = Deed::Resize {
            mib: random.pick(&MEMORY_MIB),
            milli: random.pick(&CPU_MILLI),
        };
        // Now and then it is taken back, or changed again, before anybody has looked.
        let edits = if random.percent(15) { 2 } else { 1 };
        for _ in 0..edits {
            let deed = deed.clone();
            add(at_ms, Input::Api { name, deed });
        }
        if random.percent(12) {
            add(at_ms, super::input::crash(random, 120, &[0, 0, 300, 4000]));
            if random.percent(50) {
                // While nobody looks, or at the very moment.
                let deed = Deed::Resize {
                    mib: random.pick(&MEMORY_MIB),
                    milli: random.pick(&CPU_MILLI),
                };
                add(at_ms + random.below(300), Input::Api { name, deed });
            }
        }
    }
    schedule.sort_by_key(|timed| timed.at_ms);
    schedule
}

/// Directories that look like the cgroups of pods. The kernel makes the files of a group with it: here each group is made once
/// the agent knows its pod, just before the agent would, for a group of no pod would be removed.
pub(super) struct Groups {
    root: PathBuf,
    /// Pods whose group is to be made.
    due: Vec<PodUid>,
}

impl Groups {
    /// Those below `root`, the root of all cgroups, where there is nothing yet.
    pub(super) fn new(root: PathBuf) -> Self {
        let due = Vec::new();
        let groups = Self { root, due };
        groups.make_tiers();
        groups
    }

    fn make_tiers(&self) {
        for path in ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            make_group(&self.root.join(path));
        }
    }

    fn of_pod(&self, uid: &PodUid) -> PathBuf {
        self.root.join(format!("kubepods/burstable/pod{uid}"))
    }

    /// A pod is there.
    pub(super) fn add(&mut self, uid: PodUid) {
        self.due.push(uid);
    }

    /// Makes the groups of pods that the agent knows by now.
    pub(super) fn make_due(&mut self, knows: impl Fn(&PodUid) -> bool) {
        let due = core::mem::take(&mut self.due);
        let (known, due): (Vec<_>, Vec<_>) = due.into_iter().partition(knows);
        self.due = due;
        known.iter().for_each(|uid| make_group(&self.of_pod(uid)));
    }

    /// Has none be there: the machine has booted.
    pub(super) fn boot<'a>(&mut self, pods: impl Iterator<Item = &'a PodUid>) {
        let _ = fs::remove_dir_all(self.root.join("kubepods"));
        self.make_tiers();
        self.due = pods.cloned().collect();
    }
}

fn make_group(dir: &Path) {
    fs::create_dir_all(dir).expect("directory");
    for file in GROUP_FILES {
        fs::write(dir.join(file), "").expect("file");
    }
}

/// Changes the resources in a pod as users do.
pub(super) fn resize(object: &mut Value, mib: u16, milli: u16) -> bool {
    let amounts = |mib: u16| json!({"cpu": format!("{milli}m"), "memory": format!("{mib}Mi")});
    let of = |mib: u16| {
        let amounts = amounts(mib);
        json!({"limits": {"memory": amounts["memory"]}, "requests": amounts})
    };
    let spec = &mut object["spec"];
    if !spec["resources"].is_null() {
        spec["resources"] = of(mib);
        // Its second container has a half of its own; the first follows the pod.
        let half = json!({"memory": format!("{}Mi", mib / 2)});
        spec["containers"][1]["resources"] = json!({"limits": half, "requests": half});
        return true;
    }
    let container = &mut spec["containers"][0];
    // A class of service never changes: the pod has requests from its first day, or never.
    if container["resources"].is_null() {
        return false;
    }
    container["resources"] = of(mib);
    true
}

/// Whether a pod, its cgroup, its containers, its status and what the agent keeps agree; an error says what does not.
/// `object`: as the API has it.
pub(super) fn agree(
    object: &Value,
    uid: &PodUid,
    fake: &Fake,
    groups: &Groups,
    store: &PodStore,
) -> Result<(), String> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let conditions = status["conditions"].as_array();
    let reason = |kind: &str| {
        let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
        found.map(|c| c["reason"].as_str().unwrap_or_default())
    };
    let (pending, in_progress) = (reason("PodResizePending"), reason("PodResizeInProgress"));
    let amount = |value: &Value| Quantity::parse(value.as_str().unwrap_or("0")).expect("quantity");
    let bytes = |value: &Value| Some(amount(value).value()).filter(|&bytes| bytes > 0);
    let shares = |cpu: &Value| cpu_shares(amount(cpu).milli_value()).max(MIN_SHARES);
    let told = |name: &Value| {
        let all = status["containerStatuses"].as_array();
        all.into_iter().flatten().find(|c| c["name"] == *name)
    };
    let level = &status["resources"];
    let is_level = !spec["resources"].is_null();
    if is_level == level.is_null() {
        return Err("the pod's own resources are not shown".into());
    }
    // After a failure a container may have what is in doubt, and one that follows the pod may have started with the new limit
    // before the pod's group had it: the status has no place for either.
    let file = store.pod_dir(uid).join("resources.json");
    let text = fs::read(&file).unwrap_or_default();
    let kept_states: Value = serde_json::from_slice(&text).unwrap_or_default();
    let doubtful = kept_states["inDoubt"].as_array().into_iter().flatten();
    let states: Vec<&Value> = doubtful.chain([&kept_states["actuated"]]).collect();
    let had = |name: &str| {
        let of = |state: &&Value| {
            let own = &state["containers"]
                .as_array()?
                .iter()
                .find(|c| c["name"] == name)?["resources"];
            let limit = bytes(&own["limits"]["memory"]);
            let limit = limit.or_else(|| bytes(&state["resources"]["limits"]["memory"]));
            Some((limit, Some(shares(&own["requests"]["cpu"]))))
        };
        let failed = in_progress == Some("Error");
        let states = states.iter().filter(move |_| failed);
        states.filter_map(of).collect::<Vec<_>>()
    };
    let mut shown_all = true;
    let mut limits = Some(0);
    for container in spec["containers"].as_array().into_iter().flatten() {
        let name = container["name"].as_str().unwrap_or_default();
        let told = told(&container["name"]).filter(|told| !told["state"]["running"].is_null());
        let (Some(told), Some(config)) = (told, fake.config(uid, name)) else {
            return Err(format!("{name} does not run"));
        };
        let shown = &told["resources"];
        let own = bytes(&shown["limits"]["memory"]);
        limits = limits.zip(own).map(|(sum, own)| sum + own);
        let limit = own.or_else(|| bytes(&level["limits"]["memory"]));
        let has = &config.resources;
        let pair = (
            has.memory_limit_bytes.filter(|&bytes| bytes > 0),
            has.cpu_shares,
        );
        if pair != (limit, Some(shares(&shown["requests"]["cpu"]))) && !had(name).contains(&pair) {
            return Err(format!("{name} has {has:?}, {kept_states} is kept"));
        }
        shown_all &= *shown == container["resources"] || container["resources"].is_null();
    }
    shown_all &= !is_level || *level == spec["resources"];
    let is_sidecar_limited = spec["initContainers"].as_array().is_none_or(Vec::is_empty);
    let limits = match is_level {
        true => bytes(&level["limits"]["memory"]),
        false => limits.filter(|_| is_sidecar_limited),
    };
    let group = fs::read_to_string(groups.of_pod(uid).join("memory.max")).unwrap_or_default();
    // After a failure its cgroup may have what is in doubt.
    let doubtful = states.iter().filter(|_| in_progress == Some("Error"));
    let doubtful = doubtful.filter_map(|state| match is_level {
        true => bytes(&state["resources"]["limits"]["memory"]),
        false => {
            let all = state["containers"].as_array()?.iter();
            all.map(|c| bytes(&c["resources"]["limits"]["memory"]))
                .sum()
        }
    });
    // In these plain files a write goes over the last one from the beginning.
    let has_group = |bytes: i64| group.starts_with(&bytes.to_string());
    if limits.is_some_and(|limits| !doubtful.chain([limits]).any(has_group)) {
        return Err(format!(
            "its cgroup has {group:?}, not {limits:?}, {kept_states} is kept"
        ));
    }
    let kept = file.exists();
    match (pending, in_progress) {
        (None, None) if !shown_all => Err("its resize was forgotten".into()),
        (None, None) if kept => Err("the agent keeps resources that are in force".into()),
        (None, None) => Ok(()),
        (Some("Infeasible"), None)
        | (None, Some("Error"))
        | (Some("Infeasible"), Some("Error")) => {
            let of = match is_level {
                true => &status["allocatedResources"],
                false => {
                    &told(&spec["containers"][0]["name"]).ok_or("no status")?["allocatedResources"]
                }
            };
            let too_little = bytes(&of["memory"]) == Some(i64::from(TOO_LITTLE_MIB) << 20);
            match in_progress {
                Some(_) if !too_little => Err("its resize failed for no reason".into()),
                _ if !kept => Err("what it was allocated is not on disk".into()),
                _ => Ok(()),
            }
        }
        other => Err(format!("its resize is {other:?}")),
    }
}
