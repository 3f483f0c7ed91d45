//! Generating, judging and storing pod statuses; the decisions are `logic::status` and `logic::status_cache`.

use core::time::Duration;

use super::{
    clock::Clock,
    cluster::{ApiWriter, News},
    node::Node,
    pods::Pods,
    probes::Probes,
    recorder::{Recorder, Severity},
    vitals::WorkCounters,
};
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
    runtime::RuntimeService,
};

/// What statuses are made of and where they go.
pub(super) struct Statuses<'a> {
    pub(super) pods: &'a Pods,
    pub(super) probes: &'a Probes,
    pub(super) node: &'a Node,
    pub(super) clock: &'a dyn Clock,
    pub(super) recorder: &'a Recorder,
    pub(super) counters: &'a WorkCounters,
    pub(super) runtime: &'a dyn RuntimeService,
    /// Who tells the apiserver, if there is one.
    pub(super) api: Option<&'a ApiWriter>,
}

impl Statuses<'_> {
    /// The status to report now, from what the runtime says.
    pub(super) fn generate(&self, pod: &Pod, runtime: &PodRuntimeStatus) -> PodStatus {
        let failure = past_active_deadline(pod, self.active_for(pod));
        if let Some(failure) = &failure {
            let told = self
                .pods
                .with_status(&pod.metadata.uid, |s| s.reason == DEADLINE_EXCEEDED);
            if told != Some(true) {
                self.recorder
                    .pod(pod, Severity::Normal, DEADLINE_EXCEEDED, &failure.message);
            }
        }
        self.make(pod, runtime, false, failure.as_ref())
    }

    /// The status once everything of the pod was stopped for good (SYNC-27).
    pub(super) fn generate_final(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        handle: Handle,
    ) -> PodStatus {
        self.make(pod, runtime, true, self.stop_failure(handle).as_ref())
    }

    /// The status while the pod is being stopped (SYNC-19).
    pub(super) fn generate_stopping(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        handle: Handle,
    ) -> PodStatus {
        self.make(pod, runtime, false, self.stop_failure(handle).as_ref())
    }

    fn make(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        finished: bool,
        failure: Option<&PodFailure>,
    ) -> PodStatus {
        let uid = &pod.metadata.uid;
        let cached = self.pods.status(uid);
        let status = self.probes.with(uid, |probes| {
            self.pods.with_reasons(|reasons| {
                generate_pod_status(&StatusInput {
                    pod,
                    runtime,
                    cached: cached.as_ref(),
                    finished,
                    failure,
                    reasons,
                    probes,
                    host_ips: &self.node.host_ips(),
                    runtime_name: &self.runtime.version().name,
                    recursive_read_only: self
                        .runtime
                        .capabilities()
                        .recursive_read_only_mounts(DEFAULT_HANDLER),
                    now: self.clock.wall(),
                })
            })
        });
        self.probes.generated(uid, &status, self.clock.now());
        status
    }

    /// What the killer wants the status to say.
    fn stop_failure(&self, handle: Handle) -> Option<PodFailure> {
        self.pods.workers(|table| {
            let stop = table.stop_status(handle)?;
            Some(PodFailure {
                reason: stop.reason.to_string(),
                message: stop.message.to_string(),
            })
        })
    }

    /// Time since the pod's start time. Both are the API's: whole seconds of the wall clock, as upstream compares them.
    fn active_for(&self, pod: &Pod) -> Option<Duration> {
        let told = self.pods.with_status(&pod.metadata.uid, |s| s.start_time);
        let start = told.flatten().or(pod.status.start_time)?;
        let age = self.clock.wall().secs().saturating_sub(start.secs());
        Some(Duration::from_secs(u64::try_from(age).unwrap_or(0)))
    }

    /// Has the pod woken when its active deadline passes.
    pub(super) fn watch_deadline(&self, handle: Handle, pod: &Pod) {
        let limit = pod
            .spec
            .active_deadline_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map(Duration::from_secs);
        if let (Some(limit), Some(age)) = (limit, self.active_for(pod)) {
            let due = self.clock.now() + limit.saturating_sub(age);
            self.pods.set_active_deadline(handle, due);
        }
    }

    /// Stores a generated status, unless it says nothing new or is illegal.
    pub(super) fn store(&self, pod: &Pod, status: PodStatus) {
        self.keep(pod, || self.pods.set_status(pod, status, self.clock.wall()));
    }

    fn keep(&self, pod: &Pod, store: impl FnOnce() -> Update) {
        let meta = &pod.metadata;
        let phase = || {
            self.pods
                .with_status(&meta.uid, |s| (s.phase, s.reason.clone()))
        };
        let before = phase();
        match store() {
            Update::Changed => {
                if let Some(api) = self.api {
                    api.on(News::Status);
                }
            }
            Update::Illegal { container } => log::error!(
                "pod={}/{} container={container} status dropped: it would bring a terminated container back",
                meta.namespace,
                meta.name
            ),
            Update::Same => {}
        }
        if let Some((phase, reason)) =
            phase().filter(|now| before.as_ref().is_none_or(|b| b.0 != now.0))
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
            self.note_start(&meta.uid, phase);
        }
    }

    /// A pod that came while we watched runs for the first time, or never will.
    fn note_start(&self, uid: &PodUid, phase: Phase) {
        if phase == Phase::Pending {
            return;
        }
        let since = self.pods.take_start(uid);
        if let Some(since) = since.filter(|_| phase == Phase::Running) {
            let took = self.clock.now() - since;
            self.counters.count(|c| c.pod_started(took));
        }
    }

    /// A pod that was refused at admission (LOOP-10, STAT-14).
    pub(super) fn reject(&self, pod: &Pod, reason: &str, message: &str) {
        self.store(
            pod,
            rejected_status(pod, reason, message, self.clock.wall()),
        );
    }

    /// Everything of the pod is cleaned up: the last status (DEL-03).
    pub(super) fn finish(&self, pod: &Pod) {
        self.keep(pod, || self.pods.finish_status(pod, self.clock.wall()));
    }

    /// What a probe says of a container is shown at once (SM-15).
    pub(super) fn probed(&self, pod: &Pod, container_id: &str, change: ProbeChange) {
        let known = self.pods.status(&pod.metadata.uid);
        let now = self.clock.wall();
        let new = known.and_then(|s| with_probe_result(pod, &s, container_id, change, now));
        if let Some(status) = new {
            self.store(pod, status);
        }
    }

    /// A new sandbox with its network is up: say so before images are pulled (SYNC-16, ACT-24).
    pub(super) fn sandbox_is_ready(&self, pod: &Pod) {
        let now = self.clock.wall();
        let known = self.pods.status(&pod.metadata.uid);
        if let Some(status) = known {
            self.store(
                pod,
                with_condition(pod, &status, conditions::sandbox_is_up(), now),
            );
        }
    }
}
