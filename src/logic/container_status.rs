//! The API's container statuses, from instances, the report before and the last start failure (STAT-20..STAT-28,
//! WAIT). Names follow kubelet `kubelet_pods.go` (`convertToAPIContainerStatuses`).

use alloc::{boxed::Box, string::String, vec::Vec};

use crate::api::order::OrderExt;
use crate::api::{
    Container,
    cri::{self, ContainerState as State, OOM_KILLED},
    pod_status::{
        ContainerState, ContainerStatus, ContainerUser, ImageVolumeStatus, LinuxContainerUser,
        Running, Terminated, VolumeMountStatus, VolumeStatus, Waiting,
    },
};

use super::{
    actions::any_regular_created,
    conditions::{self, ALL_RESTARTING, READY},
    generate::container_path,
    probe::ProbeResult,
    resize::set_resources_status,
    restart::{failed_init_restarts, init_lacked_memory, restart_all_pending, should_restart},
    status::{StatusInput, regular_in_ready_sandbox},
};

/// Longest reference of an image volume that the API takes, bytes.
const MAX_IMAGE_REF_BYTES: usize = 256;
/// Reason of an instance that was lost.
pub const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Exit code of a lost instance: that of SIGKILL.
pub const LOST_EXIT_CODE: i32 = 137;
/// Message of a container that ran and that the runtime no longer knows.
const VANISHED_MESSAGE: &str = "The container could not be located when the pod was deleted.  The container used to be Running";
/// Waiting reason without init containers.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
/// Waiting reason with init containers.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// Waiting reason, and terminated reason, while all containers start over.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";
/// Message of both.
const RESTARTING_ALL_MESSAGE: &str =
    "The container is removed because RestartAllContainers in place";

/// List of the spec that a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerListKind {
    /// `spec.initContainers`; stays in spec order.
    Init,
    /// `spec.containers`; sorted by name.
    Regular,
    /// `spec.ephemeralContainers`; sorted by name.
    Ephemeral,
}

/// Generates the statuses of all containers of that kind.
#[must_use]
pub fn container_statuses(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
) -> Vec<ContainerStatus> {
    let spec = &input.pod.spec;
    let previous = input.previous_status();
    let (containers, old) = match kind {
        ContainerListKind::Init => (&spec.init_containers, &previous.init_container_statuses),
        ContainerListKind::Regular => (&spec.containers, &previous.container_statuses),
        ContainerListKind::Ephemeral => (
            &spec.ephemeral_containers,
            &previous.ephemeral_container_statuses,
        ),
    };
    let mut statuses: Vec<ContainerStatus> = containers
        .iter()
        .map(|container| {
            let old = old.iter().find(|s| s.name == container.name);
            container_status(input, kind, container, old)
        })
        .collect();
    if kind != ContainerListKind::Init {
        statuses.stable_sort_by(|a, b| a.name.cmp(&b.name));
    }
    statuses
}

fn container_status(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut instances = input.runtime.container_instances(&container.name);
    let newest = instances
        .next()
        .filter(|instance| !is_passed_over(input, kind, container, instance));
    let mut status = match newest {
        Some(instance) => status_from_instance(input, instance, instances.next(), old),
        None => status_without_instance(input, kind, container, old),
    };
    show_start_failure(input, kind, container, newest, &mut status);
    status.name.clone_from(&container.name);
    set_readiness(input, kind, container, newest, old, &mut status);
    describe_container(input, container, newest, &mut status);
    status
}

/// Returns true if this instance of an init container will never be started: it was created in a sandbox that was lost,
/// and the pod began without it, because its manifest had no such container then.
fn is_passed_over(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
    container: &Container,
    instance: &cri::ContainerStatus,
) -> bool {
    kind == ContainerListKind::Init
        && !container.is_sidecar()
        && instance.state == State::Created
        && regular_in_ready_sandbox(input.pod, input.runtime)
        && !is_restarting_all(input)
}

/// Newest instance → state and count, second newest → last state (STAT-20, STAT-22).
fn status_from_instance(
    input: &StatusInput<'_>,
    instance: &cri::ContainerStatus,
    second: Option<&cri::ContainerStatus>,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let container_id = container_id(input, instance);
    let same = old.filter(|o| o.container_id == container_id);
    let mut state = state_of_instance(input, instance);
    let mut restart_count = instance
        .restart_count
        .max(old.map_or(0, |o| o.restart_count));
    match (instance.state, old) {
        (State::Unknown, Some(o)) if o.state.running.is_some() => {
            state = lost_state(instance.message.clone(), instance, container_id.clone());
            restart_count = restart_count.max(o.restart_count.saturating_add(1));
        }
        // Reported as lost before: it stays so until it is replaced.
        (State::Unknown, Some(_)) => {
            if let Some(o) = same.filter(|o| o.state.terminated.is_some()) {
                state = o.state.clone();
            }
        }
        (State::Running, Some(o))
            if o.state.terminated.is_some() && instance.restart_count <= o.restart_count =>
        {
            restart_count = o.restart_count.saturating_add(1);
        }
        (State::Created | State::Running | State::Exited | State::Unknown, _) => {}
    }
    let last_state = match (second, old) {
        (Some(second), _) => state_of_instance(input, second),
        (None, Some(o)) if same.is_none() && o.state.terminated.is_some() => o.state.clone(),
        (None, Some(o)) => o.last_state.clone(),
        (None, None) => ContainerState::default(),
    };
    ContainerStatus {
        state,
        last_state,
        restart_count,
        image: instance.image.clone(),
        image_id: instance.image_id.clone(),
        container_id,
        ..ContainerStatus::default()
    }
}

/// Status of a container of which the runtime knows no instance: the last report, and what can be inferred (STAT-24,
/// STAT-25, WAIT-25).
fn status_without_instance(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let restarting = is_restarting_all(input);
    let old_state = old.map(|o| &o.state);
    if let (Some(o), false) = (old, restarting)
        && o.state.terminated.is_some()
    {
        return o.clone();
    }
    if let (Some(o), ContainerListKind::Ephemeral) = (old, kind)
        && let Some(state) = end_of_ephemeral(o)
    {
        return ContainerStatus {
            state,
            last_state: ContainerState::default(),
            ..o.clone()
        };
    }
    let mut status = ContainerStatus {
        state: waiting_state(default_reason(input), String::new()),
        image: container.image.clone(),
        restart_count: old.map_or(0, |o| o.restart_count),
        last_state: old.map(|o| o.last_state.clone()).unwrap_or_default(),
        ..ContainerStatus::default()
    };
    if restarting && kind != ContainerListKind::Ephemeral && old.is_some() {
        let ran = old_state.is_some_and(|s| s.running.is_some() || s.terminated.is_some());
        let removed = old_state
            .and_then(|s| s.waiting.as_ref())
            .is_some_and(|w| w.reason == RESTARTING_ALL);
        if ran || removed {
            status.state = waiting_state(RESTARTING_ALL, RESTARTING_ALL_MESSAGE.into());
        }
        if ran {
            status.last_state =
                unobserved_terminated_state(LOST_EXIT_CODE, RESTARTING_ALL, RESTARTING_ALL_MESSAGE);
            status.restart_count = status.restart_count.saturating_add(1);
        }
        return status;
    }
    let recorded = status.last_state.terminated.is_some();
    if kind == ContainerListKind::Init
        && !container.is_sidecar()
        && !recorded
        && any_regular_created(input.pod, input.runtime)
    {
        status.state = unobserved_terminated_state(
            0,
            "Completed",
            "The runtime knows no run of the init container; the pod had been initialized, so it has succeeded",
        );
        return status;
    }
    if old_state.is_some_and(|s| s.running.is_some()) && !recorded {
        status.last_state =
            unobserved_terminated_state(LOST_EXIT_CODE, STATUS_UNKNOWN, VANISHED_MESSAGE);
        if input.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

/// Returns the last state of an ephemeral container that the runtime no longer knows; `None`: it has not begun yet. An
/// ephemeral container runs once (ACT-70), so a state that others show as their last one is its own.
fn end_of_ephemeral(old: &ContainerStatus) -> Option<ContainerState> {
    if old.state.running.is_some() {
        return Some(unobserved_terminated_state(
            LOST_EXIT_CODE,
            STATUS_UNKNOWN,
            VANISHED_MESSAGE,
        ));
    }
    let mut states = [&old.state, &old.last_state].into_iter();
    states.find(|state| state.terminated.is_some()).cloned()
}

/// Returns true if the restart of all containers is under way: decided now, or reported and not yet over.
fn is_restarting_all(input: &StatusInput<'_>) -> bool {
    conditions::is_condition_true(&input.previous_status().conditions, ALL_RESTARTING)
        || input
            .previous_status()
            .container_statuses
            .iter()
            .chain(&input.previous_status().init_container_statuses)
            .any(|s| {
                s.state
                    .waiting
                    .as_ref()
                    .is_some_and(|w| w.reason == RESTARTING_ALL)
            })
        || restart_all_pending(input.pod, input.runtime)
}

/// Shows why a container that is due to start has not started (WAIT-01).
fn show_start_failure(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
    container: &Container,
    newest: Option<&cri::ContainerStatus>,
    status: &mut ContainerStatus,
) {
    let due = match kind {
        ContainerListKind::Init => {
            match newest.filter(|n| n.state == State::Exited && n.exit_code == 0) {
                None => should_restart(input.pod, container, newest),
                Some(ended) => {
                    !container.is_sidecar()
                        && init_lacked_memory(input.pod, input.runtime, ended)
                        && input.pod.metadata.deletion_timestamp.is_none()
                        && failed_init_restarts(input.pod, container, 0)
                }
            }
        }
        ContainerListKind::Regular => should_restart(input.pod, container, newest),
        ContainerListKind::Ephemeral => {
            let has_begun = newest.is_some() || status.state.terminated.is_some();
            !has_begun && should_restart(input.pod, container, None)
        }
    };
    if !due {
        return;
    }
    let Some(failure) = input
        .reasons
        .start_failure(&input.pod.metadata.uid, &container.name)
    else {
        return;
    };
    if status.state.terminated.is_some() {
        status.last_state = core::mem::take(&mut status.state);
    }
    status.state = waiting_state(&failure.reason, failure.message.clone().into_string());
}

/// `started` and `ready` (PROBE-15, PROBE-40, PROBE-41).
fn set_readiness(
    input: &StatusInput<'_>,
    kind: ContainerListKind,
    container: &Container,
    newest: Option<&cri::ContainerStatus>,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    status.ready = false;
    status.started = None;
    if kind == ContainerListKind::Ephemeral {
        return;
    }
    let running = newest.filter(|_| status.state.running.is_some());
    let adopted = old.is_some_and(|o| o.container_id == status.container_id);
    let started = running.is_some_and(|instance| {
        container.startup_probe.is_none()
            || match input.probes.startup(&instance.id) {
                Some(result) => result == ProbeResult::Success,
                // Reported as started before an agent restart: kept until the probe says otherwise.
                None => adopted && old.is_some_and(|o| o.started == Some(true)),
            }
    });
    status.started = Some(started);
    status.ready = if kind == ContainerListKind::Init && !container.is_sidecar() {
        let passed = |instance| !init_lacked_memory(input.pod, input.runtime, instance);
        let end = status.state.terminated.as_ref();
        end.is_some_and(|t| {
            t.exit_code == 0 && (t.reason != OOM_KILLED || newest.is_some_and(passed))
        })
    } else {
        started
            && running.is_some_and(|instance| {
                container.readiness_probe.is_none()
                    || match input.probes.readiness(&instance.id) {
                        Some(result) => result == ProbeResult::Success,
                        None => {
                            adopted
                                && input
                                    .probes
                                    .is_adopted(instance.started_at.map(input.moment))
                                && conditions::is_condition_true(
                                    &input.pod.status.conditions,
                                    READY,
                                )
                        }
                    }
            })
    };
}

/// Fills in what the spec and the runtime tell besides the state: volume mounts, stop signal, user (STAT-28).
fn describe_container(
    input: &StatusInput<'_>,
    container: &Container,
    newest: Option<&cri::ContainerStatus>,
    status: &mut ContainerStatus,
) {
    // What another agent showed of resources is not taken over (RSZ-04).
    status.allocated_resources.clear();
    status.resources = None;
    if input.resizable {
        let allocation = input.resize.map(|resize| &resize.allocation);
        set_resources_status(container, allocation, status);
    }
    // The runtime has forgotten the instance: what was told of its mounts and its signal stays.
    if newest.is_none() && !status.container_id.is_empty() {
        status.user = None;
        return;
    }
    status.volume_mounts = container
        .volume_mounts
        .iter()
        .map(|mount| {
            let path = container_path(mount);
            let made = newest.and_then(|i| i.mounts.iter().find(|m| m.container_path == path));
            let image = made
                .map(|made| &made.image)
                .filter(|image| (1..=MAX_IMAGE_REF_BYTES).contains(&image.len()));
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: mount.read_only,
                recursive_read_only: mount.read_only.then(|| {
                    let on = match (mount.recursive_read_only.as_deref(), newest) {
                        (Some("Enabled"), _) => true,
                        (Some("IfPossible"), None) => input.recursive_read_only,
                        (Some("IfPossible"), Some(_)) => {
                            made.is_some_and(|m| m.recursive_read_only)
                        }
                        (Some(_) | None, _) => false,
                    };
                    if on { "Enabled" } else { "Disabled" }.into()
                }),
                volume_status: image.map(|image| VolumeStatus {
                    image: Some(ImageVolumeStatus {
                        image_ref: image.clone(),
                    }),
                }),
            }
        })
        .collect();
    status.stop_signal = newest.map(|i| i.stop_signal.clone()).unwrap_or_default();
    status.user = newest
        .filter(|_| status.state.running.is_some())
        .and_then(|instance| instance.user.as_ref())
        .map(|(uid, gid, groups)| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: *uid,
                gid: *gid,
                supplemental_groups: groups.clone(),
            }),
        });
}

fn container_id(input: &StatusInput<'_>, instance: &cri::ContainerStatus) -> String {
    format!("{}://{}", input.runtime_name, instance.id)
}

/// The instance's own state (WAIT-02, WAIT-20).
fn state_of_instance(input: &StatusInput<'_>, instance: &cri::ContainerStatus) -> ContainerState {
    match instance.state {
        State::Running => ContainerState {
            running: Some(Running {
                started_at: instance.started_at,
            }),
            ..ContainerState::default()
        },
        State::Exited => ContainerState {
            terminated: Some(Box::new(Terminated {
                exit_code: instance.exit_code,
                signal: 0,
                reason: instance.reason.clone(),
                message: instance.message.clone(),
                started_at: instance.started_at,
                finished_at: instance.finished_at,
                container_id: container_id(input, instance),
            })),
            ..ContainerState::default()
        },
        State::Created | State::Unknown => waiting_state("", String::new()),
    }
}

fn lost_state(
    message: String,
    instance: &cri::ContainerStatus,
    container_id: String,
) -> ContainerState {
    let message = if message.is_empty() {
        LOST_MESSAGE.into()
    } else {
        message
    };
    ContainerState {
        terminated: Some(Box::new(Terminated {
            exit_code: LOST_EXIT_CODE,
            signal: 0,
            reason: STATUS_UNKNOWN.into(),
            message,
            started_at: instance.started_at,
            finished_at: instance.finished_at,
            container_id,
        })),
        ..ContainerState::default()
    }
}

/// Message of a container whose end was not observed.
pub(super) const LOST_MESSAGE: &str =
    "The container could not be located when the pod was terminated";

/// Terminated state that was not observed: no times, no id.
pub(super) fn unobserved_terminated_state(
    exit_code: i32,
    reason: &str,
    message: &str,
) -> ContainerState {
    ContainerState {
        terminated: Some(Box::new(Terminated {
            exit_code,
            reason: reason.into(),
            message: message.into(),
            ..Terminated::default()
        })),
        ..ContainerState::default()
    }
}

fn waiting_state(reason: &str, message: String) -> ContainerState {
    ContainerState {
        waiting: Some(Waiting {
            reason: reason.into(),
            message,
        }),
        ..ContainerState::default()
    }
}

fn default_reason(input: &StatusInput<'_>) -> &'static str {
    if input.pod.spec.init_containers.is_empty() {
        CONTAINER_CREATING
    } else {
        POD_INITIALIZING
    }
}

#[cfg(test)]
mod tests;
