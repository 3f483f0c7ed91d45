//! The order in which new resources reach the kernel (RSZ-22).
//!
//! Memory goes first, then the processor. Within each, the pod's limit and request grow first, then the containers
//! change, those that shrink first, and last the pod's request and limit shrink: so a container never has more than
//! its pod, and the pod never less than its containers.
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
        /// Amount in force once this is done.
        amount: StepAmount,
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

/// Makes the plan. `old`: the pod with the resources in force; `new`: with those allocated. `running`: names of the
/// containers that run and go on.
#[must_use]
pub fn plan_resize(
    old: &Pod,
    new: &Pod,
    running: &[String],
    settings: &CgroupSettings,
) -> ResizePlan {
    let middle = with_memory_of(old, new);
    let mut plan = ResizePlan::default();
    note_lowered(old, new, running, settings, &mut plan.lowered);
    add_pass(
        Pass::Memory,
        old,
        &middle,
        running,
        settings,
        &mut plan.steps,
    );
    add_pass(Pass::Cpu, &middle, new, running, settings, &mut plan.steps);
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
    let of_pod = |pod: &Pod| pod_cgroup(pod, qos, settings).values.memory_limit_bytes;
    if let Some(bytes) = falls(of_pod(old), of_pod(new)) {
        lowered.push(LoweredLimit {
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
            lowered.push(LoweredLimit {
                container: Some(wants.name.clone()),
                bytes,
            });
        }
    }
}

fn add_pass(
    pass: Pass,
    old: &Pod,
    new: &Pod,
    running: &[String],
    settings: &CgroupSettings,
    steps: &mut Vec<ResizeStep>,
) {
    let qos = qos_class(new);
    let (had, wants) = (
        pod_cgroup(old, qos, settings).values,
        pod_cgroup(new, qos, settings).values,
    );
    let mut containers: Vec<(bool, &Container, LinuxResources)> = Vec::new();
    for (before, after) in resizable(old).zip(resizable(new)) {
        let had = container_resources(old, before, qos, settings);
        let wants = container_resources(new, after, qos, settings);
        let is_same = LinuxResources {
            oom_score_adj: had.oom_score_adj,
            ..wants.clone()
        } == had;
        if is_same || !running.contains(&after.name) {
            continue;
        }
        let grows = match pass {
            Pass::Memory => limit_grows(had.memory_limit_bytes, wants.memory_limit_bytes),
            Pass::Cpu => {
                limit_grows(had.cpu_quota_us, wants.cpu_quota_us)
                    || (had.cpu_quota_us == wants.cpu_quota_us && had.cpu_shares < wants.cpu_shares)
            }
        };
        containers.push((grows, after, with_explicit_ends(&had, wants, settings)));
    }
    containers.stable_sort_by(|a, b| a.0.cmp(&b.0));
    let [limit, request] = match pass {
        Pass::Memory => pod_memory_steps(&had, &wants),
        Pass::Cpu => pod_cpu_steps(&had, &wants, settings),
    };
    let name = match pass {
        Pass::Memory => MEMORY,
        Pass::Cpu => CPU,
    };
    let add_pod_step = |steps: &mut Vec<ResizeStep>, kind, step: Option<&PodStep>, grows| {
        steps.extend(
            step.filter(|step| step.grows == grows)
                .map(|step| ResizeStep::PodCgroup {
                    values: step.values.clone(),
                    amount: StepAmount::OfPod(kind, name),
                }),
        );
    };
    add_pod_step(steps, AmountKind::Limits, limit.as_ref(), true);
    add_pod_step(steps, AmountKind::Requests, request.as_ref(), true);
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
    add_pod_step(steps, AmountKind::Requests, request.as_ref(), false);
    add_pod_step(steps, AmountKind::Limits, limit.as_ref(), false);
}

/// A write to the pod's cgroup.
struct PodStep {
    grows: bool,
    values: LinuxResources,
}

/// Returns true if a limit rises, or goes away.
fn limit_grows(had: Option<i64>, wants: Option<i64>) -> bool {
    let amount = |limit: Option<i64>| limit.filter(|&limit| limit > 0).unwrap_or(i64::MAX);
    amount(wants) > amount(had)
}

fn pod_memory_steps(had: &LinuxResources, wants: &LinuxResources) -> [Option<PodStep>; 2] {
    let limit = (had.memory_limit_bytes != wants.memory_limit_bytes).then(|| PodStep {
        grows: limit_grows(had.memory_limit_bytes, wants.memory_limit_bytes),
        values: LinuxResources {
            memory_limit_bytes: Some(wants.memory_limit_bytes.unwrap_or(-1)),
            ..LinuxResources::default()
        },
    });
    let protected = |values: &LinuxResources| {
        let mut all = values.unified.values();
        all.find_map(|text| text.parse::<i64>().ok()).unwrap_or(0)
    };
    let request = (had.unified != wants.unified).then(|| PodStep {
        grows: protected(wants) > protected(had),
        values: LinuxResources {
            unified: wants.unified.clone(),
            ..LinuxResources::default()
        },
    });
    [limit, request]
}

fn pod_cpu_steps(
    had: &LinuxResources,
    wants: &LinuxResources,
    settings: &CgroupSettings,
) -> [Option<PodStep>; 2] {
    let limit = (had.cpu_quota_us != wants.cpu_quota_us).then(|| PodStep {
        grows: limit_grows(had.cpu_quota_us, wants.cpu_quota_us),
        values: LinuxResources {
            cpu_quota_us: Some(wants.cpu_quota_us.unwrap_or(-1)),
            cpu_period_us: Some(settings.cfs_period_us),
            ..LinuxResources::default()
        },
    });
    let request = (had.cpu_shares != wants.cpu_shares).then(|| PodStep {
        grows: wants.cpu_shares > had.cpu_shares,
        values: LinuxResources {
            cpu_shares: wants.cpu_shares,
            ..LinuxResources::default()
        },
    });
    [limit, request]
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
