//! The pod status the agent reports: phase, container statuses, addresses, conditions. Names follow kubelet
//! `kubelet_pods.go` (`generateAPIPodStatus`, `getPhase`).
//!
//! [`super::status_update`] decides about a generated status: if it is a change, and if it may be published.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::{net::IpAddr, time::Duration};

use crate::api::{
    MonoTime, Pod, WallTime,
    cri::{PodRuntimeStatus, SandboxState, SandboxStatus},
    pod_status::{ContainerState, ContainerStatus, IpEntry, PodPhase, PodStatus},
};

use super::{
    actions::latest_sandbox,
    conditions,
    container_status::{ContainerListKind, RESTARTING_ALL, container_statuses},
    pod_kind::is_static,
    probe::ProbeResults,
    qos::qos_class,
    reason_cache::ReasonCache,
    resize::{PodResize, set_pod_resources_status},
    restart::{failed_init_restarts, init_lacked_memory, restarts_after_exit},
    status_update::normalise_status,
};

/// Reason of a pod that outlived its `activeDeadlineSeconds`.
pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// Reason of a pod that waits for a device before anything of it starts (DEV-13, DEV-38).
pub const DEVICE_NOT_READY: &str = "DeviceNotReady";

/// Inputs of a pod's status.
#[derive(Clone, Copy)]
pub struct StatusInput<'a> {
    /// The pod; its `status` is what the API shows (the manifest's, for a static pod).
    pub pod: &'a Pod,
    /// Status of the pod at the runtime.
    pub runtime: &'a PodRuntimeStatus,
    /// The status stored locally before; `None` takes the API's (SYNC-01).
    pub cached: Option<&'a PodStatus>,
    /// Set if containers are being, or have been, stopped for good (SYNC-27): whatever the restart policy, none
    /// restarts.
    pub finished: bool,
    /// Failure of the pod by the agent itself: eviction, deadline, preemption.
    pub failure: Option<&'a PodFailure>,
    /// Last start failures.
    pub reasons: &'a ReasonCache,
    /// Probe results.
    pub probes: &'a dyn ProbeResults,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [IpAddr],
    /// Prefix of container ids (`picolet`).
    pub runtime_name: &'a str,
    /// Set if the runtime can mount read-only recursively.
    pub recursive_read_only: bool,
    /// Set if the pod can be resized: only then its status tells of resources.
    pub resizable: bool,
    /// Resize of the pod, if its resources were edited.
    pub resize: Option<&'a PodResize>,
    /// Wall-clock time.
    pub now: WallTime,
    /// Converts a wall-clock time into the time since boot.
    pub moment: &'a dyn Fn(WallTime) -> MonoTime,
}

impl<'a> StatusInput<'a> {
    /// The status that the new one builds on.
    #[must_use]
    pub fn previous_status(&self) -> &'a PodStatus {
        self.cached.unwrap_or(&self.pod.status)
    }
}

/// Failure of a pod that the agent itself declares; reason and message go into the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFailure {
    /// `Evicted`, `DeadlineExceeded`, `Preempting`, …
    pub reason: String,
    /// Text for people.
    pub message: String,
    /// Message of the condition `DisruptionTarget`, if one is to be set.
    pub disruption: Option<String>,
}

/// The status to report.
///
/// - Shape: normalised (see [`normalise_status`]): seconds, cut messages, sorted lists; `startTime` set.
/// - A terminal phase recorded before, here or in the API, is never left (STAT-12, SYNC-34).
/// - Source: runtime.md section 14.
#[must_use]
pub fn generate_pod_status(input: &StatusInput<'_>) -> PodStatus {
    let pod = input.pod;
    let previous = input.previous_status();
    let mut status = PodStatus {
        init_container_statuses: container_statuses(input, ContainerListKind::Init),
        container_statuses: container_statuses(input, ContainerListKind::Regular),
        ephemeral_container_statuses: container_statuses(input, ContainerListKind::Ephemeral),
        qos_class: Some(qos_class(pod)),
        start_time: previous.start_time,
        ..PodStatus::default()
    };
    status.phase = compute_phase(input, &status);
    decide_phase(input, &mut status);
    set_ips(input, &mut status);
    if input.resizable {
        let allocation = input.resize.map(|resize| &resize.allocation);
        set_pod_resources_status(pod, allocation, &mut status);
    }
    set_conditions(input, &mut status);
    normalise_status(pod, &mut status, previous, input.now);
    status
}

/// Phase by the container statuses alone (STAT-01..STAT-10).
fn compute_phase(input: &StatusInput<'_>, status: &PodStatus) -> PodPhase {
    let spec = &input.pod.spec;
    let find =
        |statuses: &'_ [ContainerStatus], name: &str| statuses.iter().position(|s| s.name == name);
    let (mut pending_init, mut pending_sidecar) = (false, false);
    let mut count = ContainerCounts::default();
    for container in &spec.init_containers {
        let found = find(&status.init_container_statuses, &container.name)
            .map(|at| &status.init_container_statuses[at]);
        let view = found.map_or(PhaseView::None, |s| {
            container_phase_view(&s.state, &s.last_state)
        });
        if container.is_sidecar() {
            match view {
                PhaseView::Running => {
                    count.running += 1;
                    pending_sidecar |= found.is_none_or(|s| s.started != Some(true));
                }
                PhaseView::Waiting => {
                    count.waiting += 1;
                    pending_sidecar = true;
                }
                PhaseView::None => count.unknown += 1,
                PhaseView::Succeeded | PhaseView::Stopped(_) => {}
            }
        } else {
            match view {
                PhaseView::Stopped(code)
                    if code != 0 && !restarts_after_exit(input.pod, container, code) =>
                {
                    return PodPhase::Failed;
                }
                PhaseView::Running | PhaseView::Waiting | PhaseView::None => pending_init = true,
                // A kubelet kills the pod as well, but shows it as Pending for ever.
                PhaseView::Succeeded
                    if input
                        .runtime
                        .newest_instance(&container.name)
                        .is_some_and(|instance| {
                            init_lacked_memory(input.pod, input.runtime, instance)
                        })
                        && !failed_init_restarts(input.pod, container, 0) =>
                {
                    return PodPhase::Failed;
                }
                PhaseView::Succeeded | PhaseView::Stopped(_) => {}
            }
        }
    }
    let mut may_restart = false;
    for container in &spec.containers {
        let found = find(&status.container_statuses, &container.name)
            .map(|at| &status.container_statuses[at]);
        match found.map_or(PhaseView::None, |s| {
            container_phase_view(&s.state, &s.last_state)
        }) {
            PhaseView::Running => count.running += 1,
            PhaseView::Waiting => count.waiting += 1,
            PhaseView::None => count.unknown += 1,
            PhaseView::Succeeded => {
                count.stopped += 1;
                count.succeeded += 1;
                may_restart |= restarts_after_exit(input.pod, container, 0);
            }
            PhaseView::Stopped(code) => {
                count.stopped += 1;
                may_restart |= restarts_after_exit(input.pod, container, code);
            }
        }
    }
    let begun = || regular_in_ready_sandbox(input.pod, input.runtime);
    if pending_init || (pending_sidecar && !begun()) || count.waiting > 0 {
        return PodPhase::Pending;
    }
    if count.unknown > 0 {
        return PodPhase::Pending;
    }
    if count.running > 0 {
        return PodPhase::Running;
    }
    if count.stopped == 0 {
        return PodPhase::Pending;
    }
    if may_restart && (!input.finished || is_static(input.pod)) {
        return PodPhase::Running;
    }
    if count.stopped == count.succeeded {
        PodPhase::Succeeded
    } else {
        PodPhase::Failed
    }
}

#[derive(Default)]
struct ContainerCounts {
    unknown: u32,
    running: u32,
    waiting: u32,
    stopped: u32,
    succeeded: u32,
}

/// A status as the phase sees it.
enum PhaseView {
    /// No status, or one without any state.
    None,
    Running,
    /// Waiting, never ran.
    Waiting,
    /// Terminated with 0.
    Succeeded,
    /// Terminated otherwise, or waiting after an end, with that exit code.
    Stopped(i32),
}

fn container_phase_view(state: &ContainerState, last: &ContainerState) -> PhaseView {
    if state.running.is_some() {
        PhaseView::Running
    } else if let Some(t) = &state.terminated {
        if t.exit_code == 0 {
            PhaseView::Succeeded
        } else {
            PhaseView::Stopped(t.exit_code)
        }
    } else if state.waiting.is_some() {
        // A container that was removed so that its pod starts over counts as never run, whatever its policy (ACT-72).
        let ended = last.terminated.as_ref();
        let ended = ended.filter(|t| t.reason != RESTARTING_ALL);
        ended.map_or(PhaseView::Waiting, |t| PhaseView::Stopped(t.exit_code))
    } else {
        PhaseView::None
    }
}

/// Returns true if a regular container has an instance in the sandbox in use (STAT-03).
pub(super) fn regular_in_ready_sandbox(pod: &Pod, runtime: &PodRuntimeStatus) -> bool {
    ready_sandbox(runtime).is_some_and(|sandbox| {
        runtime.containers.iter().any(|c| {
            c.sandbox == sandbox.id && pod.spec.containers.iter().any(|r| r.name == c.name)
        })
    })
}

/// The sandbox in use.
fn ready_sandbox(runtime: &PodRuntimeStatus) -> Option<&SandboxStatus> {
    latest_sandbox(runtime).filter(|s| s.state == SandboxState::Ready)
}

/// Decides between the computed phase and the one recorded before: a recorded end wins (STAT-12, SYNC-34).
fn decide_phase(input: &StatusInput<'_>, status: &mut PodStatus) {
    let (previous, api) = (input.previous_status(), &input.pod.status);
    // A recorded end stays: an older instance, left when the newest was removed, may show another state.
    if let Some(recorded) = [previous.phase, api.phase]
        .into_iter()
        .find(|phase| phase.is_terminal())
    {
        status.phase = recorded;
    }
    let kept = if status.phase == previous.phase {
        Some((previous, api))
    } else if status.phase.is_terminal() && status.phase == api.phase {
        // Another party ended the pod and gave the reason.
        Some((api, api))
    } else {
        None
    };
    if let Some((first, second)) = kept {
        let text = |of: fn(&PodStatus) -> &String| {
            // The agent's own wait for a device is written anew for as long as it lasts.
            let said = [first, second].into_iter();
            let mut said = said.filter(|s| s.reason != DEVICE_NOT_READY).map(of);
            said.find(|text| !text.is_empty()).cloned()
        };
        status.reason = text(|s| &s.reason).unwrap_or_default();
        status.message = text(|s| &s.message).unwrap_or_default();
    }
    // A pod that has ended by itself before does not fail (STAT-12).
    if let Some(failure) = input.failure
        && !previous.phase.is_terminal()
    {
        status.phase = PodPhase::Failed;
        status.reason.clone_from(&failure.reason);
        status.message.clone_from(&failure.message);
    }
    if api.phase.is_terminal() && status.phase != api.phase {
        status.phase = api.phase;
        status.reason.clone_from(&api.reason);
        status.message.clone_from(&api.message);
    }
}

/// Addresses of pod and host (STAT-30, STAT-32).
fn set_ips(input: &StatusInput<'_>, status: &mut PodStatus) {
    let previous = input.previous_status();
    let latest_ready = ready_sandbox(input.runtime);
    let known = match latest_ready {
        Some(sandbox) if !sandbox.ips.is_empty() => &sandbox.ips,
        Some(_) | None => &input.runtime.ips,
    };
    status.pod_ips = pick_ips(known, input.host_ips)
        .into_iter()
        .map(|ip| IpEntry { ip: ip.to_string() })
        .collect();
    if status.pod_ips.is_empty() && (latest_ready.is_none() || input.pod.spec.host_network) {
        status.pod_ips.clone_from(&previous.pod_ips);
    }
    status.host_ips = input
        .host_ips
        .iter()
        .map(|ip| IpEntry { ip: ip.to_string() })
        .collect();
    if input.pod.spec.host_network {
        if status.pod_ips.is_empty() {
            status.pod_ips.extend(status.host_ips.first().cloned());
        }
        // When a node becomes dual-stack, these pods get the second family. No other change is made.
        if let ([only], [_, second]) = (status.pod_ips.as_slice(), input.host_ips)
            && only
                .ip
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_ipv6() != second.is_ipv6())
        {
            status.pod_ips.push(IpEntry {
                ip: second.to_string(),
            });
        }
    }
    let first = |ips: &[IpEntry]| ips.first().map(|e| e.ip.clone()).unwrap_or_default();
    status.pod_ip = first(&status.pod_ips);
    status.host_ip = first(&status.host_ips);
}

/// The first address of the node's primary family, then the first of the other one.
#[must_use]
pub fn pick_ips(ips: &[IpAddr], host_ips: &[IpAddr]) -> Vec<IpAddr> {
    let six_first = host_ips
        .first()
        .or_else(|| ips.first())
        .is_some_and(IpAddr::is_ipv6);
    [six_first, !six_first]
        .into_iter()
        .filter_map(|six| ips.iter().copied().find(|ip| ip.is_ipv6() == six))
        .collect()
}

/// The agent's own conditions; foreign ones are passed through as the API has them (STAT-40).
fn set_conditions(input: &StatusInput<'_>, status: &mut PodStatus) {
    let (pod, previous) = (input.pod, input.previous_status());
    let api = &pod.status.conditions;
    let mut list: Vec<_> = api
        .iter()
        .filter(|c| !conditions::is_owned_by_agent(&c.kind))
        .cloned()
        .collect();
    let failure = input.failure.filter(|_| !previous.phase.is_terminal());
    let disruption = failure.and_then(|failure| failure.disruption.as_ref());
    let known = conditions::find_condition(&previous.conditions, conditions::DISRUPTION_TARGET);
    let disruption = disruption.map(|message| conditions::disruption_condition(message));
    if let Some(disruption) = disruption.or_else(|| known.cloned()) {
        conditions::put_condition(&mut list, disruption);
    }
    list.push(conditions::compute_ready_to_start(pod, input.runtime));
    let old = conditions::find_condition(&previous.conditions, conditions::INITIALIZED);
    list.push(conditions::compute_initialized(&pod.spec, status, old));
    let containers_ready = conditions::compute_containers_ready(&pod.spec, status);
    list.push(conditions::compute_ready(&pod.spec, &containers_ready, api));
    list.push(containers_ready);
    list.push(conditions::scheduled_condition());
    list.extend(conditions::compute_all_restarting(
        pod,
        input.runtime,
        status.phase,
    ));
    let resize = input.resize.filter(|_| !status.phase.is_terminal());
    list.extend(resize.into_iter().flat_map(PodResize::conditions));
    status.conditions = list;
}

/// The status of a pod refused at admission: nothing of it will ever start (LOOP-10, STAT-14, ADM-03).
#[must_use]
pub fn rejected_status(pod: &Pod, reason: &str, message: &str, now: WallTime) -> PodStatus {
    let mut status = PodStatus {
        phase: PodPhase::Failed,
        reason: reason.into(),
        message: format!("Pod was rejected: {message}"),
        qos_class: Some(qos_class(pod)),
        start_time: pod.status.start_time,
        ..PodStatus::default()
    };
    normalise_status(pod, &mut status, &pod.status, now);
    status
}

/// Returns a failure for [`StatusInput`] if the pod has been active longer than it may (LOOP-19, KILL-21).
///
/// `active_for` is the time since `status.startTime`, measured on the monotonic clock as far as the agent can; `None`
/// without a start time.
#[must_use]
pub fn past_active_deadline(pod: &Pod, active_for: Option<Duration>) -> Option<PodFailure> {
    let limit = u64::try_from(pod.spec.active_deadline_seconds?).unwrap_or(0);
    (active_for? >= Duration::from_secs(limit)).then(|| PodFailure {
        reason: DEADLINE_EXCEEDED.into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: None,
    })
}

#[cfg(test)]
mod tests;
