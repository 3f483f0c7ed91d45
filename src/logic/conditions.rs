//! Pod conditions that the agent owns (STAT-40..STAT-47). Names follow kubelet `status/generate.go`.

use alloc::{string::String, vec::Vec};

use crate::api::{
    Container, Pod, WallTime,
    cri::PodRuntimeStatus,
    pod::PodSpec,
    pod_status::{ContainerStatus, PodCondition, PodPhase, PodStatus},
};

use super::{
    actions::sandbox_changed,
    restart::{has_restart_all_rule, restart_all_pending, restart_all_sources},
};

/// Condition type: always true on a node.
pub const POD_SCHEDULED: &str = "PodScheduled";
/// Condition type: sandbox and network are up.
pub const READY_TO_START: &str = "PodReadyToStartContainers";
/// Condition type: init containers are done.
pub const INITIALIZED: &str = "Initialized";
/// Condition type: every container is ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// Condition type: containers and readiness gates are ready.
pub const READY: &str = "Ready";
/// Condition type: a resize waits.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// Condition type: a resize is under way.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// Condition type: all containers start over.
pub const ALL_RESTARTING: &str = "AllContainersRestarting";
/// Condition type shared with the control plane: the pod is about to be disrupted.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Types of conditions that the agent alone writes (STAT-40).
pub const OWNED: [&str; 8] = [
    POD_SCHEDULED,
    READY_TO_START,
    INITIALIZED,
    CONTAINERS_READY,
    READY,
    RESIZE_PENDING,
    RESIZE_IN_PROGRESS,
    ALL_RESTARTING,
];

/// Returns true if the agent alone writes conditions of this type (STAT-40).
#[must_use]
pub fn is_owned_by_agent(kind: &str) -> bool {
    OWNED.contains(&kind)
}

/// The condition of that type.
#[must_use]
pub fn find_condition<'a>(conditions: &'a [PodCondition], kind: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|c| c.kind == kind)
}

/// Returns true if the condition of that type is there and `True`.
#[must_use]
pub fn is_condition_true(conditions: &[PodCondition], kind: &str) -> bool {
    find_condition(conditions, kind).is_some_and(|c| c.status == "True")
}

fn make_condition(kind: &str, status: bool, reason: &str, message: String) -> PodCondition {
    PodCondition {
        kind: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: reason.into(),
        message,
        ..PodCondition::default()
    }
}

/// `DisruptionTarget`: the node itself ends the pod (EVICT-13, ADM-15).
#[must_use]
pub fn disruption_condition(message: &str) -> PodCondition {
    let reason = super::eviction::TERMINATION_BY_KUBELET;
    make_condition(DISRUPTION_TARGET, true, reason, message.into())
}

/// `PodReadyToStartContainers`: no new sandbox is needed (STAT-42).
#[must_use]
pub fn compute_ready_to_start(pod: &Pod, status: &PodRuntimeStatus) -> PodCondition {
    let (changed, _, _) = sandbox_changed(pod, status);
    make_condition(READY_TO_START, !changed, "", String::new())
}

/// The one condition that may be published before the next sync (ACT-24, SYNC-16).
#[must_use]
pub fn sandbox_up_condition() -> PodCondition {
    make_condition(READY_TO_START, true, "", String::new())
}

/// `Initialized` (STAT-43). `old` is the condition reported before.
#[must_use]
pub fn compute_initialized(
    spec: &PodSpec,
    status: &PodStatus,
    old: Option<&PodCondition>,
) -> PodCondition {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in &spec.init_containers {
        match find_by_name(&status.init_container_statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if container.is_sidecar() && s.started == Some(true) => {}
            Some(s) if !container.is_sidecar() && s.ready => {}
            Some(_) => incomplete.push(container.name.as_str()),
        }
    }
    if status.phase == PodPhase::Succeeded && unknown.is_empty() {
        return make_condition(INITIALIZED, true, "PodCompleted", String::new());
    }
    let started = status
        .container_statuses
        .iter()
        .any(|s| s.state.running.is_some() || s.state.terminated.is_some());
    if started || old.is_some_and(|c| c.status == "True") {
        return make_condition(INITIALIZED, true, "", String::new());
    }
    match join_name_lists(("unknown", &unknown), ("incomplete", &incomplete)) {
        Some(message) => make_condition(INITIALIZED, false, "ContainersNotInitialized", message),
        None => make_condition(INITIALIZED, true, "", String::new()),
    }
}

/// `ContainersReady` (STAT-44).
#[must_use]
pub fn compute_containers_ready(spec: &PodSpec, status: &PodStatus) -> PodCondition {
    let no = |reason, message| make_condition(CONTAINERS_READY, false, reason, message);
    if status.container_statuses.is_empty()
        && status.init_container_statuses.is_empty()
        && !spec.containers.is_empty()
    {
        return match status.phase {
            PodPhase::Failed => no("PodFailed", String::new()),
            PodPhase::Pending | PodPhase::Running | PodPhase::Succeeded | PodPhase::Unknown => {
                no("UnknownContainerStatuses", String::new())
            }
        };
    }
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = spec.init_containers.iter().filter(|c| c.is_sidecar());
    let all = sidecars
        .map(|c| (c, &status.init_container_statuses))
        .chain(
            spec.containers
                .iter()
                .map(|c| (c, &status.container_statuses)),
        );
    for (container, statuses) in all {
        match find_by_name(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match status.phase {
        PodPhase::Succeeded if unknown.is_empty() => return no("PodCompleted", String::new()),
        PodPhase::Failed => return no("PodFailed", String::new()),
        PodPhase::Succeeded | PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {}
    }
    match join_name_lists(("unknown", &unknown), ("unready", &unready)) {
        Some(message) => no("ContainersNotReady", message),
        None => make_condition(CONTAINERS_READY, true, "", String::new()),
    }
}

/// `Ready` (STAT-45): `ContainersReady`, then every readiness gate among `api`, the conditions in the API.
#[must_use]
pub fn compute_ready(
    spec: &PodSpec,
    containers_ready: &PodCondition,
    api: &[PodCondition],
) -> PodCondition {
    if containers_ready.status != "True" {
        return PodCondition {
            kind: READY.into(),
            ..containers_ready.clone()
        };
    }
    let missing: Vec<String> = spec
        .readiness_gates
        .iter()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match find_condition(api, kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{kind}\" does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if missing.is_empty() {
        make_condition(READY, true, "", String::new())
    } else {
        make_condition(READY, false, "ReadinessGatesNotReady", missing.join(", "))
    }
}

/// Returns true if the `Ready` condition in the API differs from the state of the pod's readiness gates now (LOOP-15):
/// then the pod is synced. Only for pods with gates, and only once the API shows the condition.
#[must_use]
pub fn gates_changed(pod: &Pod, cached: &PodStatus) -> bool {
    let api = &pod.status.conditions;
    let Some(shown) = find_condition(api, READY).filter(|_| !pod.spec.readiness_gates.is_empty())
    else {
        return false;
    };
    let now = compute_ready(&pod.spec, &compute_containers_ready(&pod.spec, cached), api);
    shown.status != now.status || shown.message != now.message
}

/// `AllContainersRestarting`, only for pods that have such a rule (ACT-72). Its message names the containers that ended
/// so, and their exit codes (RAC-01).
#[must_use]
pub fn compute_all_restarting(
    pod: &Pod,
    status: &PodRuntimeStatus,
    phase: PodPhase,
) -> Option<PodCondition> {
    if !has_restart_all_rule(pod) {
        return None;
    }
    let no = |reason| make_condition(ALL_RESTARTING, false, reason, String::new());
    Some(match phase {
        PodPhase::Succeeded => no("PodCompleted"),
        PodPhase::Failed => no("PodFailed"),
        _ if !restart_all_pending(pod, status) => no(""),
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {
            let ended = |source: &Container| {
                let newest = status.newest_instance(&source.name);
                let code = newest.map_or(0, |c| c.exit_code);
                format!("container {} exited with {code}", source.name)
            };
            let ended: Vec<String> = restart_all_sources(pod, status).map(ended).collect();
            let message = ended.join("; ");
            make_condition(ALL_RESTARTING, true, "RestartAllContainersStarted", message)
        }
    })
}

/// `PodScheduled`.
#[must_use]
pub fn scheduled_condition() -> PodCondition {
    make_condition(POD_SCHEDULED, true, "", String::new())
}

/// `Ready` and `ContainersReady` of a pod in a terminal phase, forced (SM-08). `None` if the phase is not terminal.
#[must_use]
pub fn compute_terminal_readiness(phase: PodPhase) -> Option<[PodCondition; 2]> {
    let reason = match phase {
        PodPhase::Succeeded => "PodCompleted",
        PodPhase::Failed => "PodFailed",
        PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => return None,
    };
    Some([READY, CONTAINERS_READY].map(|kind| make_condition(kind, false, reason, String::new())))
}

/// Puts `new` in the place of the condition of its type, or at the end.
pub fn put_condition(conditions: &mut Vec<PodCondition>, new: PodCondition) {
    match conditions.iter_mut().find(|c| c.kind == new.kind) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Transition times and generations: a time moves only with the status value, a generation never goes back
/// (STAT-33, STAT-47). Only the agent's own conditions are touched.
pub fn stamp_conditions(
    conditions: &mut [PodCondition],
    old: &[PodCondition],
    generation: i64,
    now: WallTime,
) {
    for new in conditions
        .iter_mut()
        .filter(|c| is_owned_by_agent(&c.kind) || c.kind == DISRUPTION_TARGET)
    {
        let before = find_condition(old, &new.kind);
        let kept = before
            .filter(|o| o.status == new.status)
            .and_then(|o| o.last_transition_time);
        new.last_transition_time = Some(kept.unwrap_or(now).truncated_to_second());
        if is_owned_by_agent(&new.kind) {
            let seen = before.and_then(|o| o.observed_generation);
            new.observed_generation = match new.kind.as_str() {
                // That of the spec that asked for it, also under the next agent.
                RESIZE_PENDING | RESIZE_IN_PROGRESS => new
                    .observed_generation
                    .or(seen)
                    .or_else(|| newest_generation(None, generation)),
                _ => newest_generation(seen, generation),
            };
        }
    }
}

/// The larger of the generation reported before and the pod's; `None` if the pod has none (static pods).
pub(super) fn newest_generation(seen: Option<i64>, generation: i64) -> Option<i64> {
    seen.max((generation > 0).then_some(generation))
}

fn find_by_name<'a>(statuses: &'a [ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|s| s.name == name)
}

/// `containers with unknown status: [a b], containers with unready status: [c]`, or `None` if both are empty.
fn join_name_lists(first: (&str, &[&str]), second: (&str, &[&str])) -> Option<String> {
    let parts: Vec<String> = [first, second]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests;
