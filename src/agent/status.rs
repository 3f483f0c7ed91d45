//! Generating, judging and storing pod statuses; the decisions are `logic::status` and `logic::status_cache`.

use core::time::Duration;

use super::{cluster::News, ctx::Ctx, recorder::Severity};
use crate::{
    api::{
        Pod, PodStatus, PodUid,
        cri::{DEFAULT_HANDLER, PodRuntimeStatus},
        pod_status::Phase,
    },
    logic::{
        conditions,
        pod_table::Handle,
        status::{
            DEADLINE_EXCEEDED, PodFailure, StatusInput, generate_pod_status, past_active_deadline,
            rejected_status,
        },
        status_update::{ProbeChange, Update, with_condition, with_probe_result},
    },
};

/// The status to report now, from what the runtime says.
pub(super) fn generate(ctx: &Ctx, pod: &Pod, runtime: &PodRuntimeStatus) -> PodStatus {
    let failure = past_active_deadline(pod, active_for(ctx, pod));
    if let Some(failure) = &failure {
        let told = ctx
            .pods
            .with_status(&pod.metadata.uid, |s| s.reason == DEADLINE_EXCEEDED);
        if told != Some(true) {
            ctx.pod_event(pod, Severity::Normal, DEADLINE_EXCEEDED, &failure.message);
        }
    }
    make(ctx, pod, runtime, false, failure.as_ref())
}

/// The status once everything of the pod was stopped for good (SYNC-27).
pub(super) fn generate_final(
    ctx: &Ctx,
    pod: &Pod,
    runtime: &PodRuntimeStatus,
    handle: Handle,
) -> PodStatus {
    make(ctx, pod, runtime, true, stop_failure(ctx, handle).as_ref())
}

/// The status while the pod is being stopped (SYNC-19).
pub(super) fn generate_stopping(
    ctx: &Ctx,
    pod: &Pod,
    runtime: &PodRuntimeStatus,
    handle: Handle,
) -> PodStatus {
    make(ctx, pod, runtime, false, stop_failure(ctx, handle).as_ref())
}

fn make(
    ctx: &Ctx,
    pod: &Pod,
    runtime: &PodRuntimeStatus,
    finished: bool,
    failure: Option<&PodFailure>,
) -> PodStatus {
    let uid = &pod.metadata.uid;
    let cached = ctx.pods.status(uid);
    let status = ctx.probes.with(uid, |probes| {
        ctx.pods.with_reasons(|reasons| {
            generate_pod_status(&StatusInput {
                pod,
                runtime,
                cached: cached.as_ref(),
                finished,
                failure,
                reasons,
                probes,
                host_ips: &ctx.node.host_ips(),
                runtime_name: &ctx.runtime.version().name,
                recursive_read_only: ctx
                    .runtime
                    .capabilities()
                    .recursive_read_only_mounts(DEFAULT_HANDLER),
                now: ctx.clock.wall(),
            })
        })
    });
    ctx.probes.generated(uid, &status, ctx.clock.now());
    status
}

/// What the killer wants the status to say.
fn stop_failure(ctx: &Ctx, handle: Handle) -> Option<PodFailure> {
    ctx.pods.workers(|table| {
        let stop = table.stop_status(handle)?;
        Some(PodFailure {
            reason: stop.reason.to_string(),
            message: stop.message.to_string(),
        })
    })
}

/// Time since the pod's start time. Both are the API's: whole seconds of the wall clock, as upstream compares them.
fn active_for(ctx: &Ctx, pod: &Pod) -> Option<Duration> {
    let told = ctx.pods.with_status(&pod.metadata.uid, |s| s.start_time);
    let start = told.flatten().or(pod.status.start_time)?;
    let age = ctx.clock.wall().secs().saturating_sub(start.secs());
    Some(Duration::from_secs(u64::try_from(age).unwrap_or(0)))
}

/// Has the pod woken when its active deadline passes.
pub(super) fn watch_deadline(ctx: &Ctx, handle: Handle, pod: &Pod) {
    let limit = pod
        .spec
        .active_deadline_seconds
        .and_then(|s| u64::try_from(s).ok())
        .map(Duration::from_secs);
    if let (Some(limit), Some(age)) = (limit, active_for(ctx, pod)) {
        let due = ctx.clock.now() + limit.saturating_sub(age);
        ctx.pods.set_active_deadline(handle, due);
    }
}

/// Stores a generated status, unless it says nothing new or is illegal.
pub(super) fn store(ctx: &Ctx, pod: &Pod, status: PodStatus) {
    keep(ctx, pod, |ctx| {
        ctx.pods.set_status(pod, status, ctx.clock.wall())
    });
}

fn keep(ctx: &Ctx, pod: &Pod, store: impl FnOnce(&Ctx) -> Update) {
    let meta = &pod.metadata;
    let phase = |ctx: &Ctx| {
        ctx.pods
            .with_status(&meta.uid, |s| (s.phase, s.reason.clone()))
    };
    let before = phase(ctx);
    match store(ctx) {
        Update::Changed => ctx.tell_api(News::Status),
        Update::Illegal { container } => log::error!(
            "pod={}/{} container={container} status dropped: it would bring a terminated container back",
            meta.namespace,
            meta.name
        ),
        Update::Same => {}
    }
    if let Some((phase, reason)) =
        phase(ctx).filter(|now| before.as_ref().is_none_or(|b| b.0 != now.0))
    {
        let why = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        log::info!(
            "pod={}/{} uid={} phase {}{why}",
            meta.namespace,
            meta.name,
            meta.uid,
            phase.as_str()
        );
        note_start(ctx, &meta.uid, phase);
    }
}

/// A pod that came while we watched runs for the first time, or never will.
fn note_start(ctx: &Ctx, uid: &PodUid, phase: Phase) {
    if phase == Phase::Pending {
        return;
    }
    let since = ctx.pods.take_start(uid);
    if let Some(since) = since.filter(|_| phase == Phase::Running) {
        let took = ctx.clock.now() - since;
        ctx.counters.count(|c| c.pod_started(took));
    }
}

/// A pod that was refused at admission (LOOP-10, STAT-14).
pub(super) fn reject(ctx: &Ctx, pod: &Pod, reason: &str, message: &str) {
    store(
        ctx,
        pod,
        rejected_status(pod, reason, message, ctx.clock.wall()),
    );
}

/// Everything of the pod is cleaned up: the last status (DEL-03).
pub(super) fn finish(ctx: &Ctx, pod: &Pod) {
    keep(ctx, pod, |ctx| {
        ctx.pods.finish_status(pod, ctx.clock.wall())
    });
}

/// What a probe says of a container is shown at once (SM-15).
pub(super) fn probed(ctx: &Ctx, pod: &Pod, container_id: &str, change: ProbeChange) {
    let known = ctx.pods.status(&pod.metadata.uid);
    let now = ctx.clock.wall();
    let new = known.and_then(|s| with_probe_result(pod, &s, container_id, change, now));
    if let Some(status) = new {
        store(ctx, pod, status);
    }
}

/// A new sandbox with its network is up: say so before images are pulled (SYNC-16, ACT-24).
pub(super) fn sandbox_is_ready(ctx: &Ctx, pod: &Pod) {
    let now = ctx.clock.wall();
    let known = ctx.pods.status(&pod.metadata.uid);
    if let Some(status) = known {
        store(
            ctx,
            pod,
            with_condition(pod, &status, conditions::sandbox_is_up(), now),
        );
    }
}
