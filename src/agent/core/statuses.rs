//! Generating, judging and storing pod statuses; the decisions are `logic::status` and `logic::status_cache`.

use alloc::borrow::Cow;
use core::time::Duration;

use super::Agent;
use crate::{
    agent::{
        clock::Clock,
        cluster::{ApiWriter, PodNews},
        node::LocalNode,
        node_resources::NodeResources,
        pods::PodRegistry,
        probes::NodeProbes,
        recorder::{EventRecorder, EventSeverity},
        times::DateCorrector,
        vitals::WorkCounters,
    },
    api::{
        Pod, PodStatus, PodUid,
        cri::{DEFAULT_HANDLER, PodRuntimeStatus},
        pod_status::PodPhase,
    },
    logic::{
        conditions,
        pod_table::PodHandle,
        status::{
            DEADLINE_EXCEEDED, PodFailure, StatusInput, generate_pod_status, past_active_deadline,
            rejected_status,
        },
        status_update::{
            ProbeChange, StatusVerdict, map_status_times, with_condition, with_probe_result,
        },
    },
    runtime::RuntimeService,
};

/// Parts of the agent that a status is made of, and the receivers of statuses.
pub(super) struct StatusGenerator<'a> {
    pods: &'a mut PodRegistry,
    probes: &'a NodeProbes,
    resources: &'a dyn NodeResources,
    node: &'a LocalNode,
    clock: &'a dyn Clock,
    times: &'a DateCorrector,
    recorder: &'a EventRecorder,
    counters: &'a WorkCounters,
    runtime: &'a dyn RuntimeService,
    /// Writer to the apiserver, if there is one.
    api: Option<&'a ApiWriter>,
}

impl Agent {
    /// Borrows the parts that make and send statuses.
    pub(super) fn status_generator(&mut self) -> StatusGenerator<'_> {
        StatusGenerator {
            pods: &mut self.pods,
            probes: &self.owners.probes,
            resources: &*self.resources,
            node: &self.owners.node,
            clock: &*self.tools.clock,
            times: &self.tools.times,
            recorder: &self.tools.recorder,
            counters: &self.tools.counters,
            runtime: &*self.asked.runtime,
            api: self.owners.cluster.as_ref().map(|cluster| &*cluster.writer),
        }
    }
}

impl StatusGenerator<'_> {
    /// The status to report now, from what the runtime says.
    pub(super) fn generate_status(&self, pod: &Pod, runtime: &PodRuntimeStatus) -> PodStatus {
        let failure = past_active_deadline(pod, self.active_duration(pod));
        if let Some(failure) = &failure {
            let told = self.pods.stored_status(&pod.metadata.uid);
            if told.is_none_or(|s| s.reason != DEADLINE_EXCEEDED) {
                self.recorder.record_pod_event(
                    pod,
                    EventSeverity::Normal,
                    DEADLINE_EXCEEDED,
                    &failure.message,
                );
            }
        }
        self.compute_status(pod, runtime, false, failure.as_ref())
    }

    /// The status of a pod that has failed, as what runs it says.
    pub(super) fn generate_failed_status(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        failure: &PodFailure,
    ) -> PodStatus {
        self.compute_status(pod, runtime, false, Some(failure))
    }

    /// The status once everything of the pod was stopped for good (SYNC-27).
    pub(super) fn generate_final_status(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        handle: PodHandle,
    ) -> PodStatus {
        self.compute_status(pod, runtime, true, self.stop_failure(handle).as_ref())
    }

    /// The status while the pod is being stopped (SYNC-19).
    pub(super) fn generate_stopping_status(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        handle: PodHandle,
    ) -> PodStatus {
        self.compute_status(pod, runtime, false, self.stop_failure(handle).as_ref())
    }

    /// The pod, its dates put right if they are what its status builds on: an agent before this one, or another program, may
    /// have dated them while the clock was wrong.
    fn with_corrected_dates<'p>(&self, pod: &'p Pod) -> Cow<'p, Pod> {
        if self.pods.stored_status(&pod.metadata.uid).is_some() {
            return Cow::Borrowed(pod);
        }
        let mut status = pod.status.clone();
        map_status_times(&mut status, |at| self.times.correct_date(at));
        if status == pod.status {
            return Cow::Borrowed(pod);
        }
        Cow::Owned(Pod {
            status,
            ..pod.clone()
        })
    }

    fn compute_status(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        finished: bool,
        failure: Option<&PodFailure>,
    ) -> PodStatus {
        let pod = &*self.with_corrected_dates(pod);
        let uid = &pod.metadata.uid;
        let resize = self.pods.resize(uid);
        let allocated = resize.map(|resize| {
            let mut pod = pod.clone();
            resize.allocation.allocated.apply_to(&mut pod);
            pod
        });
        let pod = allocated.as_ref().unwrap_or(pod);
        let is_of_api = self
            .pods
            .config(uid)
            .is_some_and(|config| !config.is_static);
        let newest = runtime.sandboxes.first();
        let handler = newest.map_or(DEFAULT_HANDLER, |sandbox| &sandbox.runtime_handler);
        let mut status = self.probes.with_pod_results(uid, |probes| {
            generate_pod_status(&StatusInput {
                pod,
                runtime,
                cached: self.pods.stored_status(uid),
                finished,
                failure,
                reasons: self.pods.start_failure_reasons(),
                probes,
                host_ips: &self.node.host_ips(),
                runtime_name: &self.runtime.version().name,
                recursive_read_only: self
                    .runtime
                    .capabilities()
                    .supports_recursive_read_only(handler),
                resizable: is_of_api && self.runtime.can_resize(uid),
                resize,
                now: self.clock.wall_time(),
                moment: &|at| self.times.time_since_boot(at),
            })
        });
        let previous = self.pods.stored_status(uid).unwrap_or(&pod.status);
        let now = self.clock.now();
        self.resources.show_health(uid, &mut status, previous, now);
        // A step may have read the runtime before the clock was right.
        map_status_times(&mut status, |at| self.times.correct_date(at));
        self.probes.note_status_generated(uid, &status, now);
        status
    }

    /// Failure that the termination of the pod wants in its status.
    fn stop_failure(&self, handle: PodHandle) -> Option<PodFailure> {
        let stop = self.pods.worker_table().stop_status(handle)?;
        Some(PodFailure {
            reason: stop.reason.to_string(),
            message: stop.message.to_string(),
            disruption: stop.disruption.as_deref().map(str::to_owned),
        })
    }

    /// Time since the pod's start time, which is the API's.
    fn active_duration(&self, pod: &Pod) -> Option<Duration> {
        let told = self.pods.stored_status(&pod.metadata.uid);
        let start = told.and_then(|s| s.start_time).or(pod.status.start_time)?;
        Some(self.times.time_elapsed_since(start))
    }

    /// Has the pod woken when its active deadline passes.
    pub(super) fn watch_deadline(&mut self, handle: PodHandle, pod: &Pod) {
        let limit = pod
            .spec
            .active_deadline_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map(Duration::from_secs);
        if let (Some(limit), Some(age)) = (limit, self.active_duration(pod)) {
            let due = self.clock.now() + limit.saturating_sub(age);
            self.pods.set_active_deadline(handle, due);
        }
    }

    /// Stores a generated status, unless it says nothing new or is illegal.
    pub(super) fn store_status(&mut self, pod: &Pod, status: PodStatus) {
        let (now, pod) = (self.clock.wall_time(), &*self.with_corrected_dates(pod));
        self.apply_status_update(pod, |pods| pods.set_status(pod, status, now));
    }

    fn apply_status_update(
        &mut self,
        pod: &Pod,
        store: impl FnOnce(&mut PodRegistry) -> StatusVerdict,
    ) {
        let meta = &pod.metadata;
        let before = self.pods.stored_status(&meta.uid).map(|s| s.phase);
        match store(self.pods) {
            StatusVerdict::Changed => {
                if let Some(api) = self.api {
                    api.take_pod_news(PodNews::Status);
                }
            }
            StatusVerdict::Illegal { container } => log::error!(
                "pod={}/{} container={container} status dropped: it would bring a terminated container back",
                meta.namespace,
                meta.name
            ),
            StatusVerdict::Same => {}
        }
        let status = self.pods.stored_status(&meta.uid);
        if let Some(status) = status.filter(|status| before != Some(status.phase)) {
            let phase = status.phase;
            let why = match status.reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            log::info!(
                "pod={}/{} uid={} phase {}{why}",
                meta.namespace,
                meta.name,
                meta.uid,
                phase.as_str()
            );
            self.note_first_run(&meta.uid, phase);
        }
    }

    /// A pod that came while we watched runs for the first time, or never will.
    fn note_first_run(&mut self, uid: &PodUid, phase: PodPhase) {
        if phase == PodPhase::Pending {
            return;
        }
        let since = self.pods.take_first_start(uid);
        if let Some(since) = since.filter(|_| phase == PodPhase::Running) {
            let took = self.clock.now() - since;
            self.counters.count_work(|c| c.count_pod_start(took));
        }
    }

    /// A pod that was refused at admission (LOOP-10, STAT-14).
    pub(super) fn reject_pod(&mut self, pod: &Pod, reason: &str, message: &str) {
        let pod = &*self.with_corrected_dates(pod);
        let status = rejected_status(pod, reason, message, self.clock.wall_time());
        self.store_status(pod, status);
    }

    /// A pod of which nothing runs has to wait before anything of it starts. What is known of it stays: the containers of
    /// before a boot are told as lost, and not ready. Returns whether it waits: one that has ended does not.
    pub(super) fn set_pod_waiting(
        &mut self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        reason: &str,
        message: &str,
    ) -> bool {
        let mut status = self.generate_status(pod, runtime);
        let waits = !status.phase.is_terminal();
        if waits {
            status.phase = PodPhase::Pending;
            status.reason = reason.into();
            status.message = message.into();
        }
        self.store_status(pod, status);
        waits
    }

    /// Everything of the pod is cleaned up: the last status (DEL-03).
    pub(super) fn finish_pod_status(&mut self, pod: &Pod) {
        let (now, pod) = (self.clock.wall_time(), &*self.with_corrected_dates(pod));
        self.apply_status_update(pod, |pods| pods.finish_status(pod, now));
    }

    /// Shows a probe's change of a container at once (SM-15).
    pub(super) fn show_probe_change(&mut self, pod: &Pod, container_id: &str, change: ProbeChange) {
        let known = self.pods.stored_status(&pod.metadata.uid);
        let now = self.clock.wall_time();
        let new = known.and_then(|s| with_probe_result(pod, s, container_id, change, now));
        if let Some(status) = new {
            self.store_status(pod, status);
        }
    }

    /// A new sandbox with its network is up: say so before images are pulled (SYNC-16, ACT-24).
    pub(super) fn show_sandbox_ready(&mut self, pod: &Pod) {
        let now = self.clock.wall_time();
        let known = self.pods.stored_status(&pod.metadata.uid);
        let is_up = |s| with_condition(pod, s, conditions::sandbox_up_condition(), now);
        if let Some(status) = known.map(is_up) {
            self.store_status(pod, status);
        }
    }
}
