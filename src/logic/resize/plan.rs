//! The order in which new resources reach the kernel (RSZ-22).
//!
//! Memory goes first, then the processor. Within each, the pod's limit and request grow first, then the containers
//! change, those that shrink first, and last the pod's request and limit shrink: so a container never has more than
//! its pod, and the pod never less than its containers.
//!
//! If it is not known which of some states is in force, the kernel has to take each write in all of them: version 1 refuses
//! a quota above that of the group above, and one below that of a group below. So the pod first gets the most of all
//! states, then each container all that it was allocated, and last the pod what it was allocated.
//!
//! Source: kubelet `kuberuntime/kuberuntime_manager.go`, `doPodResizeAction`.

use alloc::{string::String, vec::Vec};

use crate::api::{Container, Pod, cri::LinuxResources, order::OrderExt, pod::Resources};

use super::{PodAllocation, PodResources, StepAmount};
use crate::{
    cgroup::{CgroupSettings, container_resources, pod_cgroup},
    pod_resources::{AmountKind, container_amount, pod_level_amount},
    qos::{CPU, MEMORY, qos_class},
};

/// Policy that restarts a container when a resource of it changes.
const RESTART_CONTAINER: &str = "RestartContainer";

/// A memory limit that falls: the use has to be below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoweredLimit {
    /// Container name; `None`: the pod as a whole.
    pub container: Option<String>,
    /// The new limit.
    pub bytes: i64,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// Changes of the pod's cgroup.
    PodCgroup {
        /// New values; what is `None` stays.
        values: LinuxResources,
        /// Amount in force once this is done. `None`: that of a state which may be in force already.
        amount: Option<StepAmount>,
    },
    /// All resources of a container that runs.
    Container {
        /// Container name.
        name: String,
        /// Its resources; a limit that it no longer has is -1.
        resources: LinuxResources,
        /// Amounts in force once this is done.
        amount: StepAmount,
    },
}

/// What brings a pod from the resources in force to those that it was allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizePlan {
    /// Checked before the first step.
    pub lowered: Vec<LoweredLimit>,
    /// In this order; an error ends all.
    pub steps: Vec<ResizeStep>,
}

/// Sidecars and regular containers.
fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
    sidecars.chain(&pod.spec.containers)
}

/// Makes the plan. `in_force`: the pod with the resources of each state that may be in force; `new`: with those allocated.
/// `running`: names of the containers that run and go on.
#[must_use]
pub fn plan_resize(
    in_force: &[Pod],
    new: &Pod,
    running: &[String],
    settings: &CgroupSettings,
) -> ResizePlan {
    let mut plan = ResizePlan::default();
    for old in in_force {
        note_lowered(old, new, running, settings, &mut plan.lowered);
    }
    let both = [Pass::Memory, Pass::Cpu];
    let mut add = |passes: &[Pass], in_force: &[Pod], new: &Pod| {
        add_passes(passes, in_force, new, running, settings, &mut plan.steps);
    };
    if let [old] = in_force {
        let middle = [with_memory_of(old, new)];
        add(&both[..1], in_force, &middle[0]);
        add(&both[1..], &middle, new);
    } else {
        // What a container has of the processor is not known, so its memory cannot be written without that.
        add(&both, in_force, new);
    }
    plan
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Memory,
    Cpu,
}

/// `old` with the memory of `new`.
fn with_memory_of(old: &Pod, new: &Pod) -> Pod {
    let mut middle = old.clone();
    let take = |into: &mut Resources, from: &Resources| {
        for (into, from) in [
            (&mut into.requests, &from.requests),
            (&mut into.limits, &from.limits),
        ] {
            match from.get(MEMORY) {
                Some(amount) => drop(into.insert(MEMORY.into(), amount.clone())),
                None => drop(into.remove(MEMORY)),
            }
        }
    };
    if let Some(from) = &new.spec.resources {
        take(middle.spec.resources.get_or_insert_default(), from);
    }
    for (into, from) in [
        (&mut middle.spec.init_containers, &new.spec.init_containers),
        (&mut middle.spec.containers, &new.spec.containers),
    ] {
        for (into, from) in into.iter_mut().zip(from) {
            take(&mut into.resources, &from.resources);
        }
    }
    middle
}

fn note_lowered(
    old: &Pod,
    new: &Pod,
    running: &[String],
    settings: &CgroupSettings,
    lowered: &mut Vec<LoweredLimit>,
) {
    let falls = |had: Option<i64>, wants: Option<i64>| {
        wants.filter(|&wants| wants > 0 && had.is_none_or(|had| had > wants))
    };
    let qos = qos_class(new);
    let mut note = |limit: LoweredLimit| {
        if !lowered.contains(&limit) {
            lowered.push(limit);
        }
    };
    let of_pod = |pod: &Pod| pod_cgroup(pod, qos, settings).values.memory_limit_bytes;
    if let Some(bytes) = falls(of_pod(old), of_pod(new)) {
        note(LoweredLimit {
            container: None,
            bytes,
        });
    }
    for (had, wants) in resizable(old).zip(resizable(new)) {
        let limit =
            |pod, container| container_resources(pod, container, qos, settings).memory_limit_bytes;
        if let Some(bytes) = falls(limit(old, had), limit(new, wants))
            && running.contains(&wants.name)
        {
            note(LoweredLimit {
                container: Some(wants.name.clone()),
                bytes,
            });
        }
    }
}

fn add_passes(
    passes: &[Pass],
    in_force: &[Pod],
    new: &Pod,
    running: &[String],
    settings: &CgroupSettings,
    steps: &mut Vec<ResizeStep>,
) {
    let qos = qos_class(new);
    let mut containers: Vec<(bool, &Container, LinuxResources)> = Vec::new();
    for (place, after) in resizable(new).enumerate() {
        let wants = container_resources(new, after, qos, settings);
        let before = in_force
            .iter()
            .filter_map(|old| Some((old, resizable(old).nth(place)?)));
        let had: Vec<_> = before
            .map(|(old, before)| container_resources(old, before, qos, settings))
            .collect();
        let is_same = |had: &&LinuxResources| {
            let wants = LinuxResources {
                oom_score_adj: had.oom_score_adj,
                ..wants.clone()
            };
            wants == **had
        };
        if had.iter().all(|had| is_same(&had)) || !running.contains(&after.name) {
            continue;
        }
        let grows = |had: &LinuxResources| {
            passes.iter().any(|pass| match pass {
                Pass::Memory => limit_grows(had.memory_limit_bytes, wants.memory_limit_bytes),
                Pass::Cpu => {
                    limit_grows(had.cpu_quota_us, wants.cpu_quota_us)
                        || (had.cpu_quota_us == wants.cpu_quota_us
                            && had.cpu_shares < wants.cpu_shares)
                }
            })
        };
        let grows = had.iter().filter(|had| !is_same(had)).all(grows);
        let mut values = wants.clone();
        for had in &had {
            values = with_explicit_ends(had, values, settings);
        }
        containers.push((grows, after, values));
    }
    containers.stable_sort_by(|a, b| a.0.cmp(&b.0));
    let had: Vec<_> = in_force
        .iter()
        .map(|old| pod_cgroup(old, qos, settings).values)
        .collect();
    let wants = pod_cgroup(new, qos, settings).values;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for pass in passes {
        let (name, writes) = match pass {
            Pass::Memory => (MEMORY, pod_memory_writes(&had, &wants)),
            Pass::Cpu => (CPU, pod_cpu_writes(&had, &wants, settings)),
        };
        let step = |kind, write: PodWrite| ResizeStep::PodCgroup {
            values: write.values,
            amount: write.is_wanted.then_some(StepAmount::OfPod(kind, name)),
        };
        let PodWrites { limit, request } = writes;
        let limits = |write| step(AmountKind::Limits, write);
        let requests = |write| step(AmountKind::Requests, write);
        first.extend(limit.first.map(limits));
        first.extend(request.first.map(requests));
        last.extend(request.last.map(requests));
        last.extend(limit.last.map(limits));
    }
    steps.append(&mut first);
    let pod_level = PodResources {
        resources: new.spec.resources.clone(),
        ..PodResources::default()
    };
    steps.extend(
        containers
            .into_iter()
            .map(|(_, after, resources)| ResizeStep::Container {
                name: after.name.clone(),
                resources,
                amount: StepAmount::OfContainer(
                    after.name.clone(),
                    pod_level.with_pod_limits(&after.resources),
                ),
            }),
    );
    steps.append(&mut last);
}

/// A write to the pod's cgroup.
struct PodWrite {
    /// What was allocated is written, not the most of the states that may be in force.
    is_wanted: bool,
    values: LinuxResources,
}

/// Writes of one amount, before and after those of the containers.
#[derive(Default)]
struct AroundContainers {
    first: Option<PodWrite>,
    last: Option<PodWrite>,
}

/// Writes of one resource.
struct PodWrites {
    limit: AroundContainers,
    request: AroundContainers,
}

/// Amount of a limit, to be compared.
fn limit_amount(limit: Option<i64>) -> i64 {
    limit.filter(|&limit| limit > 0).unwrap_or(i64::MAX)
}

/// Returns true if a limit rises, or goes away.
fn limit_grows(had: Option<i64>, wants: Option<i64>) -> bool {
    limit_amount(wants) > limit_amount(had)
}

/// Raises each amount of a pod's cgroup to that of another state which may be in force: a container may have it.
pub fn raise_pod_values(values: &mut LinuxResources, other: &LinuxResources) {
    if limit_grows(values.memory_limit_bytes, other.memory_limit_bytes) {
        values.memory_limit_bytes = other.memory_limit_bytes;
    }
    if limit_grows(values.cpu_quota_us, other.cpu_quota_us) {
        values.cpu_quota_us = other.cpu_quota_us;
        values.cpu_period_us = other.cpu_period_us;
    }
    values.cpu_shares = values.cpu_shares.max(other.cpu_shares);
}

/// Orders the writes of a limit. `had`: those that may be in force; `write`: makes the values of a write.
fn around_for_limit(
    had: impl Iterator<Item = Option<i64>> + Clone,
    wants: Option<i64>,
    write: impl Fn(i64) -> LinuxResources,
) -> AroundContainers {
    let mut most = wants;
    for had in had.clone() {
        if limit_grows(most, had) {
            most = had;
        }
    }
    let step = |limit: Option<i64>, is_wanted| PodWrite {
        is_wanted,
        values: write(limit.unwrap_or(-1)),
    };
    let is_most = !limit_grows(wants, most);
    let is_same = had.clone().all(|had| had == wants);
    let raises = had.clone().any(|had| limit_grows(had, most));
    AroundContainers {
        first: raises.then(|| step(most, is_most)),
        last: (!(is_same || raises && is_most)).then(|| step(wants, true)),
    }
}

/// Orders the write of a request: one is enough, for the kernel takes it in any state.
fn around_for_request(is_same: bool, grows: bool, values: LinuxResources) -> AroundContainers {
    let write = (!is_same).then_some(PodWrite {
        is_wanted: true,
        values,
    });
    let (first, last) = match grows {
        true => (write, None),
        false => (None, write),
    };
    AroundContainers { first, last }
}

fn pod_memory_writes(had: &[LinuxResources], wants: &LinuxResources) -> PodWrites {
    let limits = had.iter().map(|had| had.memory_limit_bytes);
    let limit = around_for_limit(limits, wants.memory_limit_bytes, |limit| LinuxResources {
        memory_limit_bytes: Some(limit),
        ..LinuxResources::default()
    });
    let protected = |values: &LinuxResources| {
        let mut all = values.unified.values();
        all.find_map(|text| text.parse::<i64>().ok()).unwrap_or(0)
    };
    let request = around_for_request(
        had.iter().all(|had| had.unified == wants.unified),
        had.iter().any(|had| protected(wants) > protected(had)),
        LinuxResources {
            unified: wants.unified.clone(),
            ..LinuxResources::default()
        },
    );
    PodWrites { limit, request }
}

fn pod_cpu_writes(
    had: &[LinuxResources],
    wants: &LinuxResources,
    settings: &CgroupSettings,
) -> PodWrites {
    let limits = had.iter().map(|had| had.cpu_quota_us);
    let limit = around_for_limit(limits, wants.cpu_quota_us, |limit| LinuxResources {
        cpu_quota_us: Some(limit),
        cpu_period_us: Some(settings.cfs_period_us),
        ..LinuxResources::default()
    });
    let request = around_for_request(
        had.iter().all(|had| had.cpu_shares == wants.cpu_shares),
        had.iter().any(|had| wants.cpu_shares > had.cpu_shares),
        LinuxResources {
            cpu_shares: wants.cpu_shares,
            ..LinuxResources::default()
        },
    );
    PodWrites { limit, request }
}

/// Says of each limit that a container no longer has that it is gone: runtimes forget what is not named, and the kernel
/// keeps it (RSZ-21). Huge pages are left out: no resize changes them.
fn with_explicit_ends(
    had: &LinuxResources,
    wants: LinuxResources,
    settings: &CgroupSettings,
) -> LinuxResources {
    let mut values = wants;
    values.hugepage_limits.clear();
    // A kernel without quotas has no file for one that never was.
    if values.cpu_quota_us.is_none() && had.cpu_quota_us.is_some() {
        values.cpu_quota_us = Some(-1);
        values.cpu_period_us = Some(settings.cfs_period_us);
    }
    if values.memory_limit_bytes.is_none() && had.memory_limit_bytes.is_some() {
        values.memory_limit_bytes = Some(-1);
        values.memory_swap_bytes = had.memory_swap_bytes.map(|_| -1);
    }
    for file in had.unified.keys() {
        if !values.unified.contains_key(file) {
            let none = match file.as_str() {
                "memory.high" => "max",
                _ => "0",
            };
            values.unified.insert(file.clone(), none.into());
        }
    }
    values
}

/// Names of the containers that a change restarts (RSZ-29): one whose request or limit of a resource changes that its
/// policy restarts it for. A container without a limit of its own follows the pod's.
#[must_use]
pub fn containers_to_restart(pod: &Pod, allocation: &PodAllocation) -> Vec<String> {
    let [mut old, mut new] = [pod.clone(), pod.clone()];
    allocation.actuated.apply_to(&mut old);
    allocation.allocated.apply_to(&mut new);
    let amounts = |pod: &Pod, container: &Container, name: &str| {
        let limit = container_amount(container, AmountKind::Limits, name)
            .or_else(|| pod_level_amount(pod, AmountKind::Limits, name));
        (
            container_amount(container, AmountKind::Requests, name),
            limit,
        )
    };
    let restarts = |(had, wants): &(&Container, &Container)| {
        let mut policies = wants.resize_policy.iter();
        policies.any(|policy| {
            let name = policy.resource_name.as_str();
            policy.restart_policy == RESTART_CONTAINER
                && [CPU, MEMORY].contains(&name)
                && amounts(&old, had, name) != amounts(&new, wants, name)
        })
    };
    let pairs = resizable(&old).zip(resizable(&new));
    let due = pairs.filter(restarts);
    due.map(|(_, container)| container.name.clone()).collect()
}
