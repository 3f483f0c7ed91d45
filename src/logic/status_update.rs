//! Steps from a generated status to a stored and published one: normal form, equality, legal transitions, the end of a
//! pod. Names follow kubelet `status/status_manager.go`.

use alloc::{string::String, vec::Vec};

use crate::api::order::OrderExt;
use crate::api::{
    Pod, WallTime,
    cri::OOM_KILLED,
    pod::RestartPolicy,
    pod_status::{ContainerState, ContainerStatus, PodCondition, PodPhase, PodStatus},
};

use super::{
    conditions::{self, DISRUPTION_TARGET},
    container_status::{LOST_EXIT_CODE, LOST_MESSAGE, STATUS_UNKNOWN, unobserved_terminated_state},
    pod_kind::is_static,
    restart::{failed_init_restarts, has_restart_all_rule, restarts_after_exit},
    text::truncate_text,
};

/// Termination messages of one pod together, bytes (TMSG-04).
pub const MAX_MESSAGES_BYTES: usize = 12 * 1024;

/// Brings a status into the form in which it is stored and compared (SM-01), and carries over from `previous` what does
/// not change by itself: `startTime`, transition times, generations (STAT-33, STAT-47).
///
/// - Times have whole seconds; termination messages are cut to their share of 12 KiB (TMSG-04).
/// - Regular and ephemeral statuses are sorted by name, init ones stay in spec order.
pub fn normalise_status(pod: &Pod, status: &mut PodStatus, previous: &PodStatus, now: WallTime) {
    let started = previous.start_time.or(status.start_time).unwrap_or(now);
    status.start_time = Some(started.truncated_to_second());
    let generation = pod.metadata.generation;
    status.observed_generation = conditions::newest_generation(
        previous.observed_generation.max(status.observed_generation),
        generation,
    );
    conditions::stamp_conditions(
        &mut status.conditions,
        &previous.conditions,
        generation,
        now,
    );
    let count = pod.spec.all_containers().count().max(1);
    let limit = MAX_MESSAGES_BYTES / count;
    for list in lists_mut(status) {
        for container in list.iter_mut() {
            normalise_state(&mut container.state, limit);
            normalise_state(&mut container.last_state, limit);
        }
    }
    status
        .container_statuses
        .stable_sort_by(|a, b| a.name.cmp(&b.name));
    status
        .ephemeral_container_statuses
        .stable_sort_by(|a, b| a.name.cmp(&b.name));
    let place = |name: &str| {
        pod.spec
            .init_containers
            .iter()
            .position(|c| c.name == name)
            .unwrap_or(usize::MAX)
    };
    status
        .init_container_statuses
        .stable_sort_by_key(|s| place(&s.name));
}

fn lists_mut(status: &mut PodStatus) -> [&mut Vec<ContainerStatus>; 3] {
    [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ]
}

/// Passes all times of a status through `date`.
pub fn map_status_times(status: &mut PodStatus, date: impl Fn(WallTime) -> WallTime) {
    let right = |at: &mut Option<WallTime>| *at = at.map(&date);
    right(&mut status.start_time);
    for condition in &mut status.conditions {
        right(&mut condition.last_transition_time);
    }
    let containers = lists_mut(status).into_iter().flatten();
    for state in containers.flat_map(|c| [&mut c.state, &mut c.last_state]) {
        if let Some(running) = &mut state.running {
            right(&mut running.started_at);
        }
        if let Some(ended) = &mut state.terminated {
            right(&mut ended.started_at);
            right(&mut ended.finished_at);
        }
    }
}

fn normalise_state(state: &mut ContainerState, limit: usize) {
    if let Some(running) = &mut state.running {
        running.started_at = running.started_at.map(WallTime::truncated_to_second);
    }
    if let Some(t) = &mut state.terminated {
        t.started_at = t.started_at.map(WallTime::truncated_to_second);
        t.finished_at = t.finished_at.map(WallTime::truncated_to_second);
        if t.message.len() > limit {
            t.message = truncate_text(&t.message, limit).into();
        }
    }
}

/// Compares two statuses. Of the conditions only the agent's own and `DisruptionTarget` count, and their times do not
/// (SM-01).
#[must_use]
pub fn same_status(a: &PodStatus, b: &PodStatus) -> bool {
    if a == b {
        // So it is with each sync at rest: nothing is copied for it.
        return true;
    }
    let ours = |status: &PodStatus| {
        let mut list: Vec<_> = status
            .conditions
            .iter()
            .filter(|c| conditions::is_owned_by_agent(&c.kind) || c.kind == DISRUPTION_TARGET)
            .cloned()
            .map(|mut c| {
                c.last_transition_time = None;
                c
            })
            .collect();
        list.stable_sort_by(|a, b| a.kind.cmp(&b.kind));
        list
    };
    let rest = |status: &PodStatus| PodStatus {
        conditions: Vec::new(),
        ..status.clone()
    };
    ours(a) == ours(b) && rest(a) == rest(b)
}

/// Verdict on a generated status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusVerdict {
    /// Store the status, grow the version, send it.
    Changed,
    /// The status is stored already; nothing to send.
    Same,
    /// The status would bring a container back that must not run again (SM-03): drop it.
    Illegal {
        /// Name of that container.
        container: String,
    },
}

/// Judges `new` against `cached`, the status stored before (SM-01, SM-03).
///
/// `force` makes an equal status count as changed: termination finished. A pod with a deletionTimestamp always does,
/// so that its write is never lost (DEL-01).
#[must_use]
pub fn judge_status(
    pod: &Pod,
    cached: Option<&PodStatus>,
    new: &PodStatus,
    force: bool,
) -> StatusVerdict {
    let old = cached.unwrap_or(&pod.status);
    if let Some(container) = illegal_transition(pod, old, new) {
        return StatusVerdict::Illegal {
            container: container.into(),
        };
    }
    let force = force || pod.metadata.deletion_timestamp.is_some();
    match cached {
        Some(cached) if !force && same_status(cached, new) => StatusVerdict::Same,
        Some(_) | None => StatusVerdict::Changed,
    }
}

/// The first container that was terminated, no longer is, and may not restart.
fn illegal_transition<'a>(pod: &Pod, old: &'a PodStatus, new: &PodStatus) -> Option<&'a str> {
    let lists = [
        (&old.container_statuses, &new.container_statuses, false),
        (
            &old.init_container_statuses,
            &new.init_container_statuses,
            true,
        ),
    ];
    let mut pairs = lists.into_iter().flat_map(|(before, after, init)| {
        let same = |b: &ContainerStatus| after.iter().find(|a| a.name == b.name);
        before.iter().filter_map(move |b| Some((b, same(b)?, init)))
    });
    let revived = pairs.find(|(before, after, init)| is_revived(pod, before, after, *init));
    revived.map(|(before, ..)| before.name.as_str())
}

/// Returns true if a container was terminated, no longer is, and may not restart.
fn is_revived(pod: &Pod, before: &ContainerStatus, after: &ContainerStatus, init: bool) -> bool {
    let Some(ended) = before.state.terminated.as_ref() else {
        return false;
    };
    if pod.spec.restart_policy == RestartPolicy::Always || has_restart_all_rule(pod) {
        return false;
    }
    let mut specs = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let Some(spec) = specs.find(|c| c.name == before.name) else {
        return false;
    };
    let restarts = match init && ended.reason == OOM_KILLED {
        true => failed_init_restarts,
        false => restarts_after_exit,
    };
    let legal = (init && spec.is_sidecar()) || restarts(pod, spec, ended.exit_code);
    // A running instance that is another one is a fact, no error of the agent: the policy was edited, or the sandbox
    // was lost. Its id may be equal if all earlier instances were removed: the id follows from the pod, the name and
    // their number.
    let another = after.state.running.as_ref().is_some_and(|running| {
        let start_and_end = running.started_at.zip(ended.finished_at);
        start_and_end.is_some_and(|(s, e)| s >= e) || after.container_id != before.container_id
    });
    !legal && after.state.terminated.is_none() && !another
}

/// Keeps the ends of containers that `new` would bring back. For a status that says that the pod has ended: if it were
/// refused as a whole, an eviction would stay untold (SM-03).
pub fn keep_container_ends(pod: &Pod, old: &PodStatus, new: &mut PodStatus) {
    for (before, after, init) in [
        (&old.container_statuses, &mut new.container_statuses, false),
        (
            &old.init_container_statuses,
            &mut new.init_container_statuses,
            true,
        ),
    ] {
        for after in after {
            let same = before.iter().find(|b| b.name == after.name);
            if let Some(before) = same.filter(|b| is_revived(pod, b, after, init)) {
                after.clone_from(before);
            }
        }
    }
}

/// The last status of a pod whose termination is finished (SM-10, DEL-03).
///
/// If the pod had initialised, every regular container without an end gets one: 137 `ContainerStatusUnknown`; so do the
/// init containers up to the last that shows evidence of a start, at least the first. A pod of the API that is not
/// terminal becomes `Failed`.
#[must_use]
pub fn finished_status(pod: &Pod, stored: &PodStatus, now: WallTime) -> PodStatus {
    let mut status = stored.clone();
    if had_initialized(pod, &status) {
        status
            .container_statuses
            .iter_mut()
            .for_each(end_as_unknown);
    }
    let evidence = |s: &ContainerStatus| {
        s.last_state.terminated.is_some()
            || s.state.running.is_some()
            || s.state.terminated.is_some()
    };
    let reached = status
        .init_container_statuses
        .iter()
        .rposition(evidence)
        .unwrap_or(0);
    status
        .init_container_statuses
        .iter_mut()
        .take(reached + 1)
        .for_each(end_as_unknown);
    if !is_static(pod) && !status.phase.is_terminal() {
        status.phase = PodPhase::Failed;
    }
    for condition in conditions::compute_terminal_readiness(status.phase)
        .into_iter()
        .flatten()
    {
        conditions::put_condition(&mut status.conditions, condition);
    }
    normalise_status(pod, &mut status, stored, now);
    status
}

fn end_as_unknown(status: &mut ContainerStatus) {
    if status.state.terminated.is_none() {
        status.state = unobserved_terminated_state(LOST_EXIT_CODE, STATUS_UNKNOWN, LOST_MESSAGE);
        status.ready = false;
        status.started = status.started.map(|_| false);
    }
}

fn had_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some(last) = pod.spec.init_containers.last() else {
        return true;
    };
    if status
        .container_statuses
        .iter()
        .any(|s| s.last_state.terminated.is_some() || s.state.waiting.is_none())
    {
        return true;
    }
    status
        .init_container_statuses
        .iter()
        .find(|s| s.name == last.name)
        .is_some_and(|s| {
            if last.is_sidecar() {
                s.started == Some(true)
            } else {
                let ends = [&s.state, &s.last_state].map(|state| state.terminated.as_ref());
                let mut ends = ends.into_iter().flatten();
                ends.any(|t| t.exit_code == 0 && t.reason != OOM_KILLED)
            }
        })
}

/// `status` with one condition put in, as it may be published before the next sync (ACT-24, SYNC-16).
#[must_use]
pub fn with_condition(
    pod: &Pod,
    status: &PodStatus,
    condition: PodCondition,
    now: WallTime,
) -> PodStatus {
    let mut new = status.clone();
    conditions::put_condition(&mut new.conditions, condition);
    normalise_status(pod, &mut new, status, now);
    new
}

/// Result of a probe of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeChange {
    /// `ready` of the container.
    Ready(bool),
    /// `started` of the container.
    Started(bool),
}

/// Returns `status` after a probe result, with `ContainersReady` and `Ready` recomputed at once (LOOP-18, SM-15).
///
/// `container_id` is the full one (`picolet://…`). `None` if nothing changes: the status does not know the container,
/// or has this result already. Or the result comes late: the container does not run any more, or is ready although it
/// has not started.
#[must_use]
pub fn with_probe_result(
    pod: &Pod,
    status: &PodStatus,
    container_id: &str,
    change: ProbeChange,
    now: WallTime,
) -> Option<PodStatus> {
    let mut new = status.clone();
    let container = new
        .init_container_statuses
        .iter_mut()
        .chain(&mut new.container_statuses)
        .find(|c| !container_id.is_empty() && c.container_id == container_id)?;
    container.state.running.as_ref()?;
    match change {
        ProbeChange::Ready(true) if container.started != Some(true) => return None,
        ProbeChange::Ready(ready) if container.ready != ready => container.ready = ready,
        ProbeChange::Started(started) if container.started != Some(started) => {
            container.started = Some(started);
        }
        ProbeChange::Ready(_) | ProbeChange::Started(_) => return None,
    }
    let containers_ready = conditions::compute_containers_ready(&pod.spec, &new);
    let ready = conditions::compute_ready(&pod.spec, &containers_ready, &pod.status.conditions);
    conditions::put_condition(&mut new.conditions, ready);
    conditions::put_condition(&mut new.conditions, containers_ready);
    normalise_status(pod, &mut new, status, now);
    Some(new)
}

#[cfg(test)]
mod tests;
