//! In-place resize of pods (RSZ): the resources that a pod was allocated, those that its containers have, and the
//! decision about what an edit asks for. Names and texts follow kubelet `allocation/allocation_manager.go`.
//!
//! | file | what it is |
//! |---|---|
//! | `plan` | what is written where, in which order, so that what runs has what was allocated |
//! | `show` | what the status says of resources |
//!
//! Only pods whose resources were edited have a [`PodResize`]. Of all others, what the spec says was allocated, and is
//! in force.

mod plan;
mod show;

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{cmp::Reverse, time::Duration};

use serde::{Deserialize, Serialize};

use crate::api::{
    Container, MonoTime, Pod, WallTime,
    pod::Resources,
    pod_status::{PodCondition, QosClass},
};

pub use plan::{LoweredLimit, ResizePlan, ResizeStep, containers_to_restart, plan_resize};
pub use show::set_resources_status;

use super::{
    cgroup::{self, CgroupSettings},
    conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
    preemption::PodRank,
    qos::{self, CPU, MEMORY, ResourceAmounts, pod_request_amounts},
};

/// Time after which a step is tried again that failed twice with the same text (RSZ-32).
pub const FAILURE_PAUSE: Duration = Duration::from_secs(180);
/// Reason of the condition while a resize waits for room.
pub const DEFERRED: &str = "Deferred";
/// Reason of the condition of a resize that this node can never carry out.
pub const INFEASIBLE: &str = "Infeasible";
/// Reason of the condition of a resize whose last step failed.
pub const ERROR: &str = "Error";
const SWAP: &str = "In-place resize of containers with swap is not supported.";

/// Resources of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerResources {
    /// Container name.
    pub name: String,
    /// Requests and limits.
    pub resources: Resources,
}

/// Resources of a pod that an edit may change: its own, and those of sidecars and regular containers, in the order of
/// the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResources {
    /// `spec.resources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<ContainerResources>,
    /// Regular containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerResources>,
}

impl PodResources {
    /// Takes the resources of a pod.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> Self {
        let named = |container: &Container| ContainerResources {
            name: container.name.clone(),
            resources: container.resources.clone(),
        };
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        Self {
            resources: pod.spec.resources.clone(),
            init_containers: sidecars.map(named).collect(),
            containers: pod.spec.containers.iter().map(named).collect(),
        }
    }

    /// Puts these resources into a pod. A container that is not named here keeps what it has.
    pub fn apply_to(&self, pod: &mut Pod) {
        pod.spec.resources.clone_from(&self.resources);
        let init = pod.spec.init_containers.iter_mut();
        for container in init.chain(&mut pod.spec.containers) {
            if let Some(own) = self.of_container(&container.name) {
                container.resources.clone_from(own);
            }
        }
    }

    /// Resources of a container.
    #[must_use]
    pub fn of_container(&self, name: &str) -> Option<&Resources> {
        let mut all = self.init_containers.iter().chain(&self.containers);
        all.find(|c| c.name == name).map(|c| &c.resources)
    }

    /// Resources of a container, to be changed.
    pub fn of_container_mut(&mut self, name: &str) -> Option<&mut Resources> {
        let mut all = self.init_containers.iter_mut().chain(&mut self.containers);
        all.find(|c| c.name == name).map(|c| &mut c.resources)
    }
}

/// What a pod was given. Kept on disk beside the pod's record while it differs from the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodAllocation {
    /// Admitted last: all configuration is made of these.
    pub allocated: PodResources,
    /// In force: what the containers were started with, or were given after that.
    pub actuated: PodResources,
}

impl PodAllocation {
    /// Makes the allocation of a pod that has what its spec says.
    #[must_use]
    pub fn settled(resources: PodResources) -> Self {
        Self {
            allocated: resources.clone(),
            actuated: resources,
        }
    }

    /// Returns true if what was allocated is in force.
    #[must_use]
    pub fn is_actuated(&self) -> bool {
        self.allocated == self.actuated
    }

    /// Names of the containers.
    #[must_use]
    pub fn container_names(&self) -> Vec<String> {
        let allocated = &self.allocated;
        let all = allocated
            .init_containers
            .iter()
            .chain(&allocated.containers);
        all.map(|c| c.name.clone()).collect()
    }

    /// Notes that a container starts with what it was allocated. Returns true if that is news.
    pub fn note_start(&mut self, container: &str) -> bool {
        let (Some(own), Some(had)) = (
            self.allocated.of_container(container),
            self.actuated.of_container_mut(container),
        ) else {
            return false;
        };
        let is_news = had != own;
        had.clone_from(own);
        is_news
    }

    /// Returns true if `desired` was allocated, and is in force.
    #[must_use]
    pub fn is_settled_at(&self, desired: &PodResources) -> bool {
        self.is_actuated() && self.allocated == *desired
    }
}

/// A resize that was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingResize {
    /// [`DEFERRED`] or [`INFEASIBLE`].
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// Generation of the pod that asked for it.
    pub generation: i64,
}

/// Failure of a step of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// Text for people.
    pub message: String,
    /// Text without figures that are others with each try.
    pub cause: String,
}

/// The failure of the last step of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResizeFailure {
    last: StepFailure,
    /// Time before which no step is tried; `None`: the next sync tries.
    retry_at: Option<MonoTime>,
}

/// A pod whose resources were edited.
#[derive(Clone, Debug)]
pub struct PodResize {
    /// Resources that the newest spec asks for.
    pub desired: PodResources,
    /// Resources that the pod was given.
    pub allocation: PodAllocation,
    /// Requests of the newest spec, summed up.
    requests: ResourceAmounts,
    /// Reason why this node never accepts it, other pods or not.
    refusal: Option<&'static str>,
    /// Generation of the newest spec.
    pub generation: i64,
    /// Generation of the spec that was accepted last; `None`: by an agent before this one.
    started: Option<i64>,
    pending: Option<PendingResize>,
    /// Set once the newest spec was judged.
    judged: bool,
    failure: Option<ResizeFailure>,
    /// Since when it is deferred.
    pub waits_since: Option<WallTime>,
}

/// Answer to a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeVerdict {
    /// There is room for all of it.
    Accept,
    /// There may be room later.
    Defer(String),
    /// This node never has room for it.
    Refuse(String),
}

impl PodResize {
    /// A pod with this allocation that asks for other resources, or will.
    #[must_use]
    pub fn new(allocation: PodAllocation) -> Self {
        Self {
            desired: allocation.allocated.clone(),
            allocation,
            requests: ResourceAmounts::new(),
            refusal: None,
            generation: 0,
            started: None,
            pending: None,
            judged: true,
            failure: None,
            waits_since: None,
        }
    }

    /// Takes the newest spec in. Edits that come before the decision merge into it (RSZ-20).
    pub fn take_spec(&mut self, pod: &Pod, settings: &CgroupSettings) {
        let desired = PodResources::of_pod(pod);
        let is_new = self.desired != desired || self.requests.is_empty();
        self.generation = pod.metadata.generation;
        self.desired = desired;
        if !is_new {
            return;
        }
        self.requests = pod_request_amounts(pod);
        let mut allocated = pod.clone();
        self.allocation.allocated.apply_to(&mut allocated);
        self.refusal = refuse_swap(&allocated, pod, settings).then_some(SWAP);
        self.judged = false;
        if self.desired == self.allocation.allocated {
            // Taken back before it was accepted.
            self.pending = None;
        }
    }

    /// Returns true if nothing is left to be done.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.allocation.is_settled_at(&self.desired)
    }

    /// Returns true if the decision is open: not made yet for this spec, or there may be room by now. What is
    /// infeasible stays so until the spec changes.
    #[must_use]
    pub fn awaits_verdict(&self) -> bool {
        let is_deferred = self.pending.as_ref().is_some_and(|p| p.reason == DEFERRED);
        self.desired != self.allocation.allocated && (!self.judged || is_deferred)
    }

    /// Decides (RSZ-20, RSZ-25). `had`: requests of the pod as it was allocated; `used`: how much of a resource other
    /// active pods were allocated. A request that does not grow is not judged: it needs no room.
    ///
    /// - Source: kubelet `lifecycle/predicate.go`, `allocation/allocation_manager.go`.
    #[must_use]
    pub fn judge(
        &self,
        had: &ResourceAmounts,
        allocatable: &ResourceAmounts,
        used: &dyn Fn(&str) -> i64,
    ) -> ResizeVerdict {
        if let Some(refusal) = self.refusal {
            return ResizeVerdict::Refuse(refusal.into());
        }
        let amount = |list: &ResourceAmounts, name: &str| list.get(name).copied().unwrap_or(0);
        let grows = |name: &&str| amount(&self.requests, name) > amount(had, name);
        for name in [MEMORY, CPU].into_iter().filter(grows) {
            let (requested, capacity) = (amount(&self.requests, name), amount(allocatable, name));
            if requested > capacity {
                return ResizeVerdict::Refuse(format!(
                    "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
                ));
            }
        }
        for name in [CPU, MEMORY].into_iter().filter(grows) {
            let (requested, capacity) = (amount(&self.requests, name), amount(allocatable, name));
            let used = used(name);
            if requested > capacity.saturating_sub(used) {
                return ResizeVerdict::Defer(format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ));
            }
        }
        ResizeVerdict::Accept
    }

    /// Takes the decision in. Returns the event to record: its severity is a warning unless the resize was accepted.
    pub fn apply_verdict(&mut self, verdict: ResizeVerdict, now: WallTime) -> Option<ResizeEvent> {
        self.judged = true;
        let (reason, message) = match verdict {
            ResizeVerdict::Accept => {
                self.allocation.allocated.clone_from(&self.desired);
                self.started = Some(self.generation);
                self.pending = None;
                self.failure = None;
                self.waits_since = None;
                return Some(self.event("ResizeStarted", "started", ""));
            }
            ResizeVerdict::Defer(message) => (DEFERRED, message),
            ResizeVerdict::Refuse(message) => (INFEASIBLE, message),
        };
        let pending = PendingResize {
            reason,
            message,
            generation: self.generation,
        };
        self.waits_since.get_or_insert(now);
        if self.pending.as_ref() == Some(&pending) {
            return None;
        }
        let event = match reason {
            DEFERRED => "ResizeDeferred",
            _ => "ResizeInfeasible",
        };
        let event = self.event(event, reason, &pending.message);
        self.pending = Some(pending);
        Some(event)
    }

    /// Requests that the pod has once the newest spec is accepted.
    #[must_use]
    pub const fn requests(&self) -> &ResourceAmounts {
        &self.requests
    }

    /// Key of the order in which open decisions are made: what asks for nothing more, then by priority, by QoS class,
    /// and by the time of waiting (RSZ-20).
    #[must_use]
    pub fn order_key(
        &self,
        had: &ResourceAmounts,
        rank: &PodRank,
    ) -> (bool, Reverse<i32>, bool, Option<WallTime>) {
        let amount = |list: &ResourceAmounts, name: &str| list.get(name).copied().unwrap_or(0);
        let grows = [CPU, MEMORY]
            .iter()
            .any(|name| amount(&self.requests, name) > amount(had, name));
        let since = self.waits_since.unwrap_or(WallTime(i64::MAX));
        (
            grows,
            Reverse(rank.priority.unwrap_or(0)),
            rank.class != QosClass::Guaranteed,
            Some(since),
        )
    }

    /// Returns true if a step may be tried now.
    #[must_use]
    pub fn may_step(&self, now: MonoTime) -> bool {
        let retry = self.failure.as_ref().and_then(|failure| failure.retry_at);
        !self.allocation.is_actuated() && retry.is_none_or(|at| at <= now)
    }

    /// Returns true if the last step failed.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Takes in what a sync has brought about. Returns the event to record: of failures one for each cause (RSZ-28).
    pub fn note_actuated(
        &mut self,
        actuated: PodResources,
        failure: Option<StepFailure>,
        now: MonoTime,
    ) -> Option<ResizeEvent> {
        let was_open = !self.allocation.is_actuated();
        self.allocation.actuated = actuated;
        if let Some(failed) = failure {
            let last = self.failure.as_ref().map(|f| &f.last);
            let is_same = last.is_some_and(|last| last.message == failed.message);
            let is_told = last.is_some_and(|last| last.cause == failed.cause);
            let event = (!is_told).then(|| self.event("ResizeError", "error", &failed.message));
            self.failure = Some(ResizeFailure {
                last: failed,
                retry_at: is_same.then(|| now + FAILURE_PAUSE),
            });
            return event;
        }
        if !self.allocation.is_actuated() {
            return None;
        }
        self.failure = None;
        was_open.then(|| self.event("ResizeCompleted", "completed", ""))
    }

    /// Conditions that hold now (RSZ-02, RSZ-28).
    #[must_use]
    pub fn conditions(&self) -> Vec<PodCondition> {
        let condition = |kind: &str, reason: &str, message: &str, generation| PodCondition {
            kind: kind.into(),
            status: "True".into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: generation,
            ..PodCondition::default()
        };
        let mut all = Vec::new();
        if let Some(pending) = &self.pending {
            let PendingResize {
                reason,
                message,
                generation,
            } = pending;
            let generation = Some(*generation).filter(|&n| n > 0);
            all.push(condition(RESIZE_PENDING, reason, message, generation));
        }
        if !self.allocation.is_actuated() {
            let (reason, message) = match &self.failure {
                Some(failure) => (ERROR, failure.last.message.as_str()),
                None => ("", ""),
            };
            let generation = self.started.filter(|&n| n > 0);
            all.push(condition(RESIZE_IN_PROGRESS, reason, message, generation));
        }
        all
    }

    /// An event with a summary of what is desired, or of what was allocated.
    fn event(&self, reason: &'static str, word: &str, error: &str) -> ResizeEvent {
        let of = match reason {
            "ResizeDeferred" | "ResizeInfeasible" => &self.desired,
            _ => &self.allocation.allocated,
        };
        let summary = ResizeSummary {
            init_containers: &of.init_containers,
            containers: &of.containers,
            generation: match reason {
                "ResizeCompleted" | "ResizeError" => self.started.unwrap_or(self.generation),
                _ => self.generation,
            },
            error,
        };
        let summary = serde_json::to_string(&summary).unwrap_or_default();
        ResizeEvent {
            reason,
            message: format!("Pod resize {word}: {summary}"),
        }
    }
}

/// An event about a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeEvent {
    /// Reason of the event.
    pub reason: &'static str,
    /// Text of the event.
    pub message: String,
}

impl ResizeEvent {
    /// Returns true if the event is a warning.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        !matches!(self.reason, "ResizeStarted" | "ResizeCompleted")
    }
}

/// Resources in the text of an event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResizeSummary<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    init_containers: &'a [ContainerResources],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    containers: &'a [ContainerResources],
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

/// Returns true if a memory request changes of a container that may swap, before or after, and does not restart for it
/// (RSZ-25).
fn refuse_swap(old: &Pod, new: &Pod, settings: &CgroupSettings) -> bool {
    let swap = |pod: &Pod, container: &Container| {
        cgroup::swap_bytes(pod, container, qos::qos_class(pod), settings) > 0
    };
    let restarts = |container: &Container| {
        let mut policies = container.resize_policy.iter();
        policies.any(|p| p.resource_name == MEMORY && p.restart_policy == "RestartContainer")
    };
    let [before, after] =
        [old, new].map(|pod| pod.spec.init_containers.iter().chain(&pod.spec.containers));
    settings.swap_controller
        && before.zip(after).any(|(had, wants)| {
            let request = |c: &Container| c.resources.requests.get(MEMORY).map(ToString::to_string);
            request(had) != request(wants)
                && !restarts(wants)
                && (swap(old, had) || swap(new, wants))
        })
}

#[cfg(test)]
mod tests;
