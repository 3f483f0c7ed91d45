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

pub use plan::{
    LoweredLimit, ResizePlan, ResizeStep, containers_to_restart, plan_resize, raise_pod_values,
};
pub use show::{set_pod_resources_status, set_resources_status};

use super::{
    admission::{ActivePod, used_amount},
    cgroup::{self, CgroupSettings},
    conditions::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
    fnv::fnv1a_32,
    pod_resources::AmountKind,
    preemption::PodRank,
    qos::{self, CPU, MEMORY, ResourceAmounts, pod_request_amounts},
};

/// Time after which a step is tried again that failed twice with the same text (RSZ-32).
pub const FAILURE_PAUSE: Duration = Duration::from_secs(180);
/// Time after which an event is told once more if its cause lasts: the apiserver keeps an event for so long.
const TOLD_AGAIN: Duration = Duration::from_secs(3600);
/// Causes of one resize whose last event is remembered. A cause beyond them is told in the condition alone.
const MAX_TOLD: usize = 8;
/// States that killed agents may have left in force; more kills in the midst of a resize, each of another one, forget the
/// oldest.
const MAX_IN_DOUBT: usize = 4;
/// Reason of the condition while a resize waits for room.
pub const DEFERRED: &str = "Deferred";
/// Reason of the condition of a resize that this node can never carry out.
pub const INFEASIBLE: &str = "Infeasible";
/// Reason of the condition of a resize whose last step failed.
pub const ERROR: &str = "Error";
/// Reason why this node never carries out a resize: its message, and its name in metrics.
type Infeasibility = (&'static str, &'static str);
const SWAP: Infeasibility = (
    "In-place resize of containers with swap is not supported.",
    "swap_limitation",
);
const STATIC_CPUS: Infeasibility = (
    "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"",
    "guaranteed_pod_cpu_manager_static_policy",
);

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

    /// Takes one amount of the pod level from `other`.
    pub fn take_pod_amount(&mut self, other: &Self, kind: AmountKind, name: &str) {
        let wanted = other.resources.as_ref();
        match wanted.and_then(|from| kind.quantities_of(from).get(name)) {
            Some(amount) => {
                let own = self.resources.get_or_insert_default();
                kind.quantities_of_mut(own)
                    .insert(name.into(), amount.clone());
            }
            None => {
                if let Some(own) = &mut self.resources {
                    kind.quantities_of_mut(own).remove(name);
                }
            }
        }
    }

    /// Resources of a container with the pod's limits where it has none: those that its cgroup has.
    fn with_pod_limits(&self, own: &Resources) -> Resources {
        let mut own = own.clone();
        let of_pod = self.resources.as_ref().map(|pod| &pod.limits);
        for (name, limit) in of_pod.into_iter().flatten() {
            if [CPU, MEMORY].contains(&name.as_str()) && !own.limits.contains_key(name) {
                own.limits.insert(name.clone(), limit.clone());
            }
        }
        own
    }

    fn pin_pod_limits(&mut self) {
        let pinned = self.clone();
        let all = self.init_containers.iter_mut().chain(&mut self.containers);
        for container in all {
            container.resources = pinned.with_pod_limits(&container.resources);
        }
    }
}

/// Amount that a step brings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAmount {
    /// An amount of the pod level, as it was allocated.
    OfPod(AmountKind, &'static str),
    /// All resources of the container with this name, with the pod's limits where it has none of its own.
    OfContainer(String, Resources),
}

/// What a pod was given. Kept on disk beside the pod's record while it differs from the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodAllocation {
    /// Admitted last: all configuration is made of these.
    pub allocated: PodResources,
    /// In force: what the containers were started with, or were given after that.
    pub actuated: PodResources,
    /// States that may be in force instead, in part or as a whole: an agent was killed in the midst of a resize, or a step
    /// failed, which may have done its work. Oldest first, at most [`MAX_IN_DOUBT`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_doubt: Vec<PodResources>,
}

impl PodAllocation {
    /// Makes the allocation of a pod that has what its spec says.
    #[must_use]
    pub fn settled(resources: PodResources) -> Self {
        Self {
            allocated: resources.clone(),
            actuated: resources,
            in_doubt: Vec::new(),
        }
    }

    /// Notes a state that may be in force as well.
    fn add_doubt(&mut self, state: PodResources) {
        if state == self.actuated || self.in_doubt.contains(&state) {
            return;
        }
        if self.in_doubt.len() >= MAX_IN_DOUBT {
            self.in_doubt.remove(0);
        }
        self.in_doubt.push(state);
    }

    /// Notes states that may be in force as well, the newest last.
    pub fn add_doubts(&mut self, states: Vec<PodResources>) {
        states.into_iter().for_each(|state| self.add_doubt(state));
    }

    fn change_states(&mut self, change: &dyn Fn(&mut PodResources)) {
        let all = self.in_doubt.iter_mut().chain([&mut self.actuated]);
        all.for_each(change);
        let actuated = &self.actuated;
        self.in_doubt.retain(|state| state != actuated);
    }

    /// Takes in that a step is done, or failed: then it may have done its work.
    pub fn note_step(&mut self, amount: &StepAmount, succeeded: bool) {
        let allocated = self.allocated.clone();
        let change = |state: &mut PodResources| match amount {
            StepAmount::OfPod(kind, name) => state.take_pod_amount(&allocated, *kind, name),
            StepAmount::OfContainer(name, own) => {
                if let Some(had) = state.of_container_mut(name) {
                    had.clone_from(own);
                }
            }
        };
        if succeeded {
            self.change_states(&change);
            return;
        }
        let mut doubt = self.actuated.clone();
        change(&mut doubt);
        self.add_doubt(doubt);
    }

    /// Gives each container the pod's limits where it has none of its own, in all states in force: it keeps them although
    /// the pod's change, until it is written itself.
    pub fn pin_pod_limits(&mut self) {
        self.change_states(&PodResources::pin_pod_limits);
    }

    /// Returns true if what was allocated is in force.
    #[must_use]
    pub fn is_actuated(&self) -> bool {
        self.allocated == self.actuated && self.in_doubt.is_empty()
    }

    /// All states that may be in force: the doubtful ones first.
    pub fn states_in_force(&self) -> impl Iterator<Item = &PodResources> {
        self.in_doubt.iter().chain([&self.actuated])
    }

    /// Notes that what was allocated is in force, without a doubt.
    pub fn note_all_done(&mut self) {
        self.actuated.clone_from(&self.allocated);
        self.in_doubt.clear();
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

    /// Notes that containers start with what they were allocated. The pod's cgroup may still have the sum of before, which is in
    /// no amount of its own.
    pub fn note_starts(&mut self, containers: &[String]) {
        let before: Vec<_> = self.states_in_force().cloned().collect();
        for container in containers {
            let Some(own) = self.allocated.of_container(container) else {
                continue;
            };
            let own = match self.allocated.resources == self.actuated.resources {
                true => own.clone(),
                false => self.allocated.with_pod_limits(own),
            };
            self.note_step(&StepAmount::OfContainer(container.clone(), own), true);
        }
        self.add_doubts(before);
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

/// Reason why a sync did not carry a resize out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// Text for people.
    pub message: String,
    /// The runtime was asked and refused. Otherwise it was not even asked, or the pod's own cgroup could not be written.
    pub is_refusal: bool,
}

/// The failure of the last step of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResizeFailure {
    /// Text for people.
    message: String,
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
    refusal: Option<Infeasibility>,
    /// Generation of the newest spec.
    pub generation: i64,
    /// Generation of the spec that was accepted last; `None`: by an agent before this one.
    started: Option<i64>,
    pending: Option<PendingResize>,
    /// Set once the newest spec was judged.
    judged: bool,
    failure: Option<ResizeFailure>,
    /// Causes that events told of, each by its digest and the time of the last event; at most [`MAX_TOLD`].
    told: Vec<(u32, MonoTime)>,
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
    /// A pod with this allocation, as it was kept, that asks for other resources, or will.
    #[must_use]
    pub fn new(mut allocation: PodAllocation) -> Self {
        // The agent that kept this was killed: it may have carried out a part of what it had not done yet.
        allocation.add_doubt(allocation.allocated.clone());
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
            told: Vec::new(),
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
        self.refusal = match refuse_static_cpus(&allocated, pod, settings) {
            true => Some(STATIC_CPUS),
            false => refuse_swap(&allocated, pod, settings).then_some(SWAP),
        };
        self.judged = false;
        self.told.clear();
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
        let is_deferred = self.pending_reason() == Some(DEFERRED);
        self.desired != self.allocation.allocated && (!self.judged || is_deferred)
    }

    /// Reason why the newest spec was not accepted: [`DEFERRED`] or [`INFEASIBLE`].
    #[must_use]
    pub fn pending_reason(&self) -> Option<&'static str> {
        self.pending.as_ref().map(|pending| pending.reason)
    }

    /// Name in metrics of the reason why this node never accepts the resize; one that is too large has no other reason.
    #[must_use]
    pub const fn infeasible_detail(&self) -> &'static str {
        match self.refusal {
            Some((_, detail)) => detail,
            None => "insufficient_node_allocatable",
        }
    }

    /// Decides (RSZ-20, RSZ-25). `had`: requests of the pod as it was allocated; `active`: the other active pods. A request
    /// that does not grow is not judged: it needs no room.
    ///
    /// - Source: kubelet `lifecycle/predicate.go`, `allocation/allocation_manager.go`.
    #[must_use]
    pub fn judge(
        &self,
        had: &ResourceAmounts,
        allocatable: &ResourceAmounts,
        active: &[&ActivePod],
    ) -> ResizeVerdict {
        if let Some((message, _)) = self.refusal {
            return ResizeVerdict::Refuse(message.into());
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
            let used = used_amount(active, name);
            if requested > capacity.saturating_sub(used) {
                return ResizeVerdict::Defer(format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ));
            }
        }
        ResizeVerdict::Accept
    }

    /// Takes the decision in. Returns true if the conditions changed, and the event to record: its severity is a warning
    /// unless the resize was accepted. Other figures of what is in use are no other cause (RSZ-25).
    pub fn apply_verdict(
        &mut self,
        verdict: ResizeVerdict,
        wall: WallTime,
        now: MonoTime,
    ) -> (bool, Option<ResizeEvent>) {
        self.judged = true;
        let (reason, message) = match verdict {
            ResizeVerdict::Accept => {
                self.allocation.allocated.clone_from(&self.desired);
                self.started = Some(self.generation);
                self.pending = None;
                self.failure = None;
                self.told.clear();
                self.waits_since = None;
                return (true, Some(self.event("ResizeStarted", "started", "")));
            }
            ResizeVerdict::Defer(message) => (DEFERRED, message),
            ResizeVerdict::Refuse(message) => (INFEASIBLE, message),
        };
        self.waits_since.get_or_insert(wall);
        let name = match reason {
            DEFERRED => "ResizeDeferred",
            _ => "ResizeInfeasible",
        };
        let event = self.is_news(name, &message, now);
        let event = event.then(|| self.event(name, reason, &message));
        let pending = Some(PendingResize {
            reason,
            message,
            generation: self.generation,
        });
        let is_change = self.pending != pending;
        self.pending = pending;
        (is_change, event)
    }

    /// Returns true if an event is to tell of this cause: none has, or not for a long time.
    fn is_news(&mut self, event: &str, message: &str, now: MonoTime) -> bool {
        let cause = fnv1a_32(event.bytes().chain(words_without_figures(message)));
        let at = match self.told.iter().position(|(told, _)| *told == cause) {
            None if self.told.len() < MAX_TOLD => {
                self.told.push((cause, now));
                return true;
            }
            None => 0,
            Some(at) => at,
        };
        if now < self.told[at].1 + TOLD_AGAIN {
            return false;
        }
        // The oldest stands first.
        self.told.remove(at);
        self.told.push((cause, now));
        true
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

    /// Takes in what a sync has brought about; `failure`: the step that failed. Returns the event to record: of failures one
    /// for each cause (RSZ-28). A doubt ends if the runtime refuses twice, with the same words, what was in force before.
    pub fn note_actuated(
        &mut self,
        allocation: PodAllocation,
        failure: Option<StepFailure>,
        now: MonoTime,
    ) -> Option<ResizeEvent> {
        let was_open = !self.allocation.is_actuated();
        self.allocation.actuated = allocation.actuated;
        self.allocation.in_doubt = allocation.in_doubt;
        if let Some(failure) = failure {
            let StepFailure {
                message,
                is_refusal,
            } = failure;
            let event = self.is_news("ResizeError", &message, now);
            let event = event.then(|| self.event("ResizeError", "error", &message));
            let last = self.failure.as_ref();
            let is_same = last.is_some_and(|last| last.message == message);
            // A check that fails says nothing of what an agent that was killed has done.
            let ends_doubt = is_same && is_refusal;
            if ends_doubt && self.allocation.allocated == self.allocation.actuated {
                // Nothing was ever done: the runtime cannot even do what would settle the doubt.
                self.allocation.in_doubt.clear();
                self.failure = None;
                return event;
            }
            self.failure = Some(ResizeFailure {
                message,
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
                Some(failure) => (ERROR, failure.message.as_str()),
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
            resources: of.resources.as_ref(),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<&'a Resources>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    init_containers: &'a [ContainerResources],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    containers: &'a [ContainerResources],
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

/// Bytes of the words of a text that do not begin with a digit: figures may be others with each try.
fn words_without_figures(text: &str) -> impl Iterator<Item = u8> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.starts_with(|c: char| c.is_ascii_digit()));
    words.flat_map(str::bytes)
}

/// Pairs the containers of a pod before an edit of its resources with those after it.
fn paired_containers<'a>(
    old: &'a Pod,
    new: &'a Pod,
) -> impl Iterator<Item = (&'a Container, &'a Container)> {
    let [before, after] =
        [old, new].map(|pod| pod.spec.init_containers.iter().chain(&pod.spec.containers));
    before.zip(after)
}

fn request_changes(name: &str, had: &Container, wants: &Container) -> bool {
    let request = |c: &Container| c.resources.requests.get(name).map(ToString::to_string);
    request(had) != request(wants)
}

/// Returns true if a CPU request changes of a Guaranteed pod, whose containers may have processors of their own (RSZ-25).
fn refuse_static_cpus(old: &Pod, new: &Pod, settings: &CgroupSettings) -> bool {
    settings.static_cpus
        && qos::qos_class(new) == QosClass::Guaranteed
        && paired_containers(old, new).any(|(had, wants)| request_changes(CPU, had, wants))
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
    settings.swap_controller
        && paired_containers(old, new).any(|(had, wants)| {
            request_changes(MEMORY, had, wants)
                && !restarts(wants)
                && (swap(old, had) || swap(new, wants))
        })
}

#[cfg(test)]
mod tests;
