//! Lifecycle of one pod on this node: sync, terminating, terminated, finished.
//!
//! ```text
//!            update                 termination requested         first terminating call
//! (unknown) ────────▶ Sync ────────────────────────────▶ Requested ─────────▶ Terminating
//!                                                            │                     │ containers gone
//!            terminal at first sight, nothing runs           │ static, not started ▼
//! (unknown) ───────────────────────────────────────────────────────────────▶ Terminated
//!                                                            ▼                     │ cleaned up
//!                                                      FinishedUnstarted       Finished
//! ```
//!
//! Stages only move to the right. This file has the state of one pod between events and the rules of each
//! transition; [`super::pod_table`] has all pods and the rules between them. The work of a call on containers is not
//! decided here. The pod's spec is not kept: an update brings [`PodFacts`], the call reads the rest from disk. The
//! mirror pod likewise stays with the pod manager.
//!
//! Names and rules follow kubelet `pod_workers.go`.

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::api::{MonoTime, Pod, PodUid};

use super::pod_kind::is_static;
use super::work_queue::{RetryCause, SlotTimers};

/// Grace of a pod that is known only from the runtime, seconds.
pub const RUNTIME_ONLY_GRACE_S: i64 = 1;

/// Kind of an update for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UpdateKind {
    /// The pod appeared in a source.
    Create,
    /// The pod's object changed (this includes graceful deletion).
    Update,
    /// The pod changed at the runtime, or its time has come.
    Sync,
    /// The pod must end.
    Kill,
}

/// Facts that the worker needs from a pod object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodFacts<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Comes from a source other than the apiserver.
    pub is_static: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deletion_requested: bool,
    /// `metadata.deletionGracePeriodSeconds`.
    pub deletion_grace_s: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub spec_grace_s: Option<i64>,
    /// The delivered object's phase is `Failed` or `Succeeded` (not that of the local status cache).
    pub phase_terminal: bool,
}

impl<'a> PodFacts<'a> {
    /// The facts of `pod`.
    #[must_use]
    pub fn from_pod(pod: &'a Pod) -> Self {
        let meta = &pod.metadata;
        Self {
            uid: &meta.uid,
            name: &meta.name,
            namespace: &meta.namespace,
            is_static: is_static(pod),
            deletion_requested: meta.deletion_timestamp.is_some(),
            deletion_grace_s: meta.deletion_grace_period_seconds,
            spec_grace_s: pod.spec.termination_grace_period_seconds,
            phase_terminal: pod.status.phase.is_terminal(),
        }
    }
}

/// Pod that an update is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodUpdateSubject<'a> {
    /// A pod of which the object is known.
    Pod(PodFacts<'a>),
    /// A pod that only the runtime knows.
    Runtime {
        uid: &'a PodUid,
        name: &'a str,
        namespace: &'a str,
    },
}

impl<'a> PodUpdateSubject<'a> {
    /// UID, name and namespace.
    pub(super) const fn identity(&self) -> (&'a PodUid, &'a str, &'a str) {
        match *self {
            Self::Pod(facts) => (facts.uid, facts.name, facts.namespace),
            Self::Runtime {
                uid,
                name,
                namespace,
            } => (uid, name, namespace),
        }
    }
}

/// Status that a kill puts over the pod's own while the pod terminates (eviction, preemption, node shutdown).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopStatus {
    /// `status.reason`; the phase becomes `Failed`.
    pub reason: Box<str>,
    /// `status.message`.
    pub message: Box<str>,
    /// Message of a condition `DisruptionTarget=True`, if one is to be set: the node itself disrupts the pod.
    pub disruption: Option<Box<str>>,
}

/// Options of an update that ends a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillOptions {
    /// Grace that the killer asks for, seconds.
    pub grace_s: Option<i64>,
    /// Set for an eviction.
    pub evict: bool,
    /// Set if the killer waits for the pod to have stopped.
    pub signal: bool,
    /// Status to show while the pod ends; only the latest one given is applied.
    pub status: Option<Box<StopStatus>>,
}

/// An update for a worker. A pod that only the runtime knows can be killed and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUpdate<'a> {
    pub(super) kind: UpdateKind,
    pub(super) subject: PodUpdateSubject<'a>,
    pub(super) kill: Option<KillOptions>,
    pub(super) runtime_idle: Option<bool>,
}

impl<'a> PodUpdate<'a> {
    /// An update of `kind` with the object's facts and no kill options.
    #[must_use]
    pub const fn new(kind: UpdateKind, facts: PodFacts<'a>) -> Self {
        Self {
            kind,
            subject: PodUpdateSubject::Pod(facts),
            kill: None,
            runtime_idle: None,
        }
    }

    /// The kill of a pod whose object is known.
    #[must_use]
    pub fn new_kill(facts: PodFacts<'a>, options: KillOptions) -> Self {
        Self {
            kill: Some(options),
            ..Self::new(UpdateKind::Kill, facts)
        }
    }

    /// The kill of a pod that only the runtime knows, with its fixed grace.
    #[must_use]
    pub const fn runtime_only(uid: &'a PodUid, name: &'a str, namespace: &'a str) -> Self {
        Self {
            kind: UpdateKind::Kill,
            subject: PodUpdateSubject::Runtime {
                uid,
                name,
                namespace,
            },
            kill: Some(KillOptions {
                grace_s: Some(RUNTIME_ONLY_GRACE_S),
                evict: false,
                signal: false,
                status: None,
            }),
            runtime_idle: None,
        }
    }

    /// Says if a complete relist shows neither a running container nor a READY sandbox of the pod. Matters only when
    /// the UID is seen for the first time: containers that an earlier agent started must be stopped even if the pod
    /// ends before it was ever synced.
    #[must_use]
    pub fn with_runtime_idle(mut self, idle: bool) -> Self {
        self.runtime_idle = Some(idle);
        self
    }
}

/// Stage of a pod's life. A pod only moves downwards in this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerStage {
    /// Containers are started and restarted as the spec asks (or wait for their turn).
    Sync,
    /// Termination is requested, no terminating call was made yet.
    Requested,
    /// Containers are being stopped.
    Terminating,
    /// No container runs; volumes and cgroup may go.
    Terminated,
    /// All is cleaned up; only the history is kept.
    Finished,
    /// A static pod that was told to end before it could start. As finished as `Finished`.
    FinishedUnstarted,
}

impl WorkerStage {
    /// Returns true if termination was requested or is past.
    #[must_use]
    pub const fn is_termination_requested(self) -> bool {
        !matches!(self, Self::Sync)
    }

    /// Returns true if no container can run any more.
    #[must_use]
    pub const fn is_terminated(self) -> bool {
        matches!(
            self,
            Self::Terminated | Self::Finished | Self::FinishedUnstarted
        )
    }

    /// Returns true if nothing is left to do.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Finished | Self::FinishedUnstarted)
    }

    /// Returns true if a terminating call was made.
    #[must_use]
    pub const fn termination_started(self) -> bool {
        matches!(self, Self::Terminating | Self::Terminated | Self::Finished)
    }
}

/// Operation of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerCall {
    /// SyncPod.
    Sync,
    /// SyncTerminatingPod. Without a grace the runtime layer derives it from the pod.
    Terminating {
        /// Seconds, at least 1.
        grace_s: Option<u32>,
    },
    /// SyncTerminatingRuntimePod: only the runtime knows the pod.
    TerminatingRuntime,
    /// SyncTerminatedPod.
    Terminated,
}

/// End of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Without error.
    Done,
    /// SyncPod without error, and the pod's phase is terminal. The same as `Done` for other calls.
    Terminal,
    /// The call saw the cancellation flag and returned early. Nothing may be concluded from it.
    Canceled,
    /// With an error.
    Failed(RetryCause),
}

/// Facts that an update leaves behind for a call, a replay or a later kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodWork {
    pub(super) kind: UpdateKind,
    /// An object of the pod is known; otherwise this is a runtime-only kill.
    pub(super) has_spec: bool,
    pub(super) deletion_grace_s: Option<i32>,
    pub(super) spec_grace_s: Option<i32>,
    /// Grace that the runtime layer is told, seconds; unset in updates that do not end the pod.
    pub(super) kill_grace_s: Option<i32>,
    /// Arrival of the oldest unread update.
    pub(super) since: MonoTime,
}

/// The grace in force after an update, from the stored one (0 = unset). Seconds, at least 1.
fn effective_grace_s(
    stored_s: u32,
    deletion_s: Option<i32>,
    wanted_s: Option<i32>,
    spec_s: Option<i32>,
) -> u32 {
    let mut grace = i32::try_from(stored_s).unwrap_or(i32::MAX);
    let mut taken = false;
    for other in [deletion_s, wanted_s].into_iter().flatten() {
        if grace == 0 || other < grace {
            grace = other;
            taken = true;
        }
    }
    if let (false, 0, Some(spec)) = (taken, grace, spec_s) {
        grace = spec;
    }
    u32::try_from(grace).unwrap_or(0).max(1)
}

fn clamp_to_i32(seconds: Option<i64>) -> Option<i32> {
    seconds.map(|s| i32::try_from(s).unwrap_or(if s < 0 { i32::MIN } else { i32::MAX }))
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodUpdateResult {
    /// The update waits in the pending slot, or runs at once.
    Queued,
    /// The UID is on its way out and shall come back: [`super::pod_table::PodTableEffect::Gone`] will say so. The new object
    /// must be kept aside until then, for the stop still needs the old one.
    RestartNoted,
    /// The pod needs no update any more.
    Dropped,
}

/// State of one pod between events.
#[derive(Clone, Debug)]
pub(super) struct PodWorker {
    pub(super) stage: WorkerStage,
    pub(super) is_static: bool,
    /// A call was made, or could have been.
    pub(super) started: bool,
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    pub(super) restart_requested: bool,
    /// Set if the runtime has, or may have, containers or sandboxes of the pod.
    pub(super) observed_runtime: bool,
    /// `pending` is to be looked at; off while a static pod waits for its turn.
    pub(super) woken: bool,
    /// The wait for a newer runtime status was announced.
    pub(super) status_asked: bool,
    /// The running call was told to end early.
    pub(super) cancelled: bool,
    /// Set while the caller is still to be told of `cancelled`.
    pub(super) cancel_due: bool,
    /// A killer waits for the stop.
    pub(super) wants_signal: bool,
    /// The killer is still to be told.
    pub(super) signal_due: bool,
    /// The call that runs now. At most one: this is what keeps calls of a pod apart.
    pub(super) call: Option<WorkerCall>,
    /// Grace in force, seconds; 0 = not set yet. Never grows once set.
    pub(super) grace_s: u32,
    pub(super) pending: Option<PodWork>,
    pub(super) active: Option<PodWork>,
    /// End of the last call; the next one needs a runtime status newer than that.
    pub(super) last_end: MonoTime,
    pub(super) stop_status: Option<Box<StopStatus>>,
    pub(super) timers: SlotTimers,
}

impl PodWorker {
    pub(super) fn new(update: &PodUpdate<'_>) -> Self {
        let (is_static, ended) = match &update.subject {
            PodUpdateSubject::Pod(facts) => (
                facts.is_static,
                facts.phase_terminal && update.runtime_idle == Some(true),
            ),
            PodUpdateSubject::Runtime { .. } => (false, false),
        };
        Self {
            stage: if ended {
                WorkerStage::Terminated
            } else {
                WorkerStage::Sync
            },
            is_static,
            started: false,
            deleted: false,
            evicted: false,
            restart_requested: false,
            observed_runtime: update.runtime_idle == Some(false),
            woken: false,
            status_asked: false,
            cancelled: false,
            cancel_due: false,
            wants_signal: false,
            signal_due: false,
            call: None,
            grace_s: 0,
            pending: None,
            active: None,
            last_end: MonoTime(0),
            stop_status: None,
            timers: SlotTimers::UNSET,
        }
    }

    /// Takes an update in. Returns the result, and true if its killer need not wait.
    pub(super) fn take_update(
        &mut self,
        first_time: bool,
        update: PodUpdate<'_>,
        now: MonoTime,
    ) -> (PodUpdateResult, bool) {
        let wants_signal = update.kill.as_ref().is_some_and(|kill| kill.signal);
        let mut work = PodWork {
            kind: update.kind,
            has_spec: false,
            deletion_grace_s: None,
            spec_grace_s: None,
            kill_grace_s: None,
            since: now,
        };
        let mut deletion_requested = false;
        let mut phase_terminal = false;
        let runtime_only = match update.subject {
            PodUpdateSubject::Pod(facts) => {
                work.has_spec = true;
                work.deletion_grace_s = clamp_to_i32(facts.deletion_grace_s);
                work.spec_grace_s = clamp_to_i32(facts.spec_grace_s);
                deletion_requested = facts.deletion_requested;
                phase_terminal = facts.phase_terminal;
                self.is_static = facts.is_static;
                false
            }
            PodUpdateSubject::Runtime { .. } => {
                self.observed_runtime = true;
                // Known facts of the pod are better than the runtime's list of containers.
                let known = [self.pending, self.active].into_iter().flatten();
                if let Some(known) = known.into_iter().find(|work| work.has_spec) {
                    work.has_spec = true;
                    work.deletion_grace_s = known.deletion_grace_s;
                    work.spec_grace_s = known.spec_grace_s;
                }
                true
            }
        };

        if !first_time && self.stage.is_termination_requested() && update.kind == UpdateKind::Create
        {
            self.restart_requested = true;
            return (PodUpdateResult::RestartNoted, false);
        }
        if self.stage.is_finished() {
            return (PodUpdateResult::Dropped, wants_signal);
        }

        let kill = update.kill;
        let mut hasten = false;
        if !self.stage.is_termination_requested() {
            let why = if runtime_only || deletion_requested {
                self.deleted = true;
                true
            } else if phase_terminal {
                true
            } else {
                let kill_kind = update.kind == UpdateKind::Kill;
                self.evicted = kill_kind && kill.as_ref().is_some_and(|kill| kill.evict);
                kill_kind
            };
            if why {
                self.stage = WorkerStage::Requested;
                hasten = true;
            }
        }

        let signal_now = match self.stage {
            WorkerStage::Terminated => {
                if runtime_only {
                    return (PodUpdateResult::Dropped, wants_signal);
                }
                wants_signal
            }
            WorkerStage::Requested | WorkerStage::Terminating => {
                let kill = kill.unwrap_or_default();
                self.wants_signal |= kill.signal;
                if kill.status.is_some() {
                    self.stop_status = kill.status;
                }
                let before = self.grace_s;
                self.grace_s = effective_grace_s(
                    before,
                    work.deletion_grace_s,
                    clamp_to_i32(kill.grace_s),
                    work.spec_grace_s,
                );
                hasten |= before != 0 && self.grace_s < before;
                work.kill_grace_s = Some(i32::try_from(self.grace_s).unwrap_or(i32::MAX));
                false
            }
            WorkerStage::Sync => wants_signal,
            WorkerStage::Finished | WorkerStage::FinishedUnstarted => {
                unreachable!("answered above")
            }
        };

        if let Some(unread) = self.pending {
            work.since = unread.since;
        }
        self.pending = Some(work);
        self.woken = true;
        if hasten && self.call.is_some() {
            self.cancelled = true;
            self.cancel_due = true;
        }
        (PodUpdateResult::Queued, signal_now)
    }

    /// Lets the last active update run again, unless a newer one waits.
    pub(super) fn replay_last_update(&mut self) {
        if self.pending.is_none() {
            self.pending = self.active;
        }
        self.woken = self.pending.is_some();
    }

    /// The pending facts, or else the active ones.
    pub(super) fn newest_work(&self) -> Option<PodWork> {
        self.pending.or(self.active)
    }

    /// Makes the pending update the active one and returns the call to make with it.
    pub(super) fn start_pending_work(&mut self) -> Option<(WorkerCall, PodWork)> {
        let work = self.pending.take()?;
        self.started = true;
        self.status_asked = false;
        self.cancelled = false;
        self.cancel_due = false;
        let active = self.active.get_or_insert(work);
        let kill_grace_s = work.kill_grace_s.or(active.kill_grace_s);
        if work.has_spec || !active.has_spec {
            *active = work;
        }
        active.kill_grace_s = kill_grace_s;
        let call = match self.stage {
            WorkerStage::Sync => WorkerCall::Sync,
            WorkerStage::Requested | WorkerStage::Terminating => {
                self.stage = WorkerStage::Terminating;
                if work.has_spec {
                    WorkerCall::Terminating {
                        grace_s: work.kill_grace_s.and_then(|s| u32::try_from(s).ok()),
                    }
                } else {
                    WorkerCall::TerminatingRuntime
                }
            }
            WorkerStage::Terminated => WorkerCall::Terminated,
            WorkerStage::Finished | WorkerStage::FinishedUnstarted => return None,
        };
        self.call = Some(call);
        Some((call, work))
    }

    /// Begins the end of a pod that vanished from its source without a deletion. Cancels nothing.
    pub(super) fn begin_orphan_end(&mut self) {
        self.deleted = true;
        if self.stage == WorkerStage::Sync {
            self.stage = WorkerStage::Requested;
            self.grace_s = match self.active {
                Some(active) if active.has_spec => effective_grace_s(
                    self.grace_s,
                    active.deletion_grace_s,
                    active.kill_grace_s,
                    active.spec_grace_s,
                ),
                Some(_) | None => 1,
            };
        }
        self.replay_last_update();
    }

    /// Notes that the pod has stopped: a killer that waits is told.
    pub(super) fn announce_stop(&mut self) {
        self.signal_due |= self.wants_signal;
        self.wants_signal = false;
        self.stop_status = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::CONFIG_SOURCE;

    #[test]
    fn grace() {
        const BIG: i32 = i32::MAX;
        // PW-10
        for (name, stored, deletion, wanted, spec, grace) in [
            ("nothing given: the spec's", 0, None, None, Some(30), 30),
            ("deletion grace", 0, Some(5), None, Some(30), 5),
            (
                "deletion grace and a shorter wish",
                0,
                Some(5),
                Some(2),
                Some(30),
                2,
            ),
            ("deletion at once still is 1", 0, Some(0), None, Some(30), 1),
            ("a wish for none still is 1", 0, None, Some(0), Some(30), 1),
            (
                "longer than the spec is honoured",
                0,
                Some(60),
                None,
                Some(30),
                60,
            ),
            (
                "0 counts as unset within one evaluation",
                0,
                Some(0),
                Some(20),
                Some(30),
                20,
            ),
            (
                "a longer wish than deletion",
                0,
                Some(5),
                Some(9),
                Some(30),
                5,
            ),
            ("nothing at all", 0, None, None, None, 1),
            ("negative", 0, Some(-7), None, Some(30), 1),
            ("negative beats a wish", 0, Some(-7), Some(20), Some(30), 1),
            ("once set it stays", 5, None, None, Some(30), 5),
            (
                "once set it does not grow",
                5,
                Some(60),
                Some(60),
                Some(30),
                5,
            ),
            ("once set it may shrink", 30, Some(10), Some(4), Some(30), 4),
            ("never below 1", 1, Some(0), Some(0), Some(0), 1),
            ("huge", 0, Some(BIG), None, Some(30), BIG.unsigned_abs()),
        ] {
            assert_eq!(
                effective_grace_s(stored, deletion, wanted, spec),
                grace,
                "{name}"
            );
        }
        assert_eq!(
            clamp_to_i32(Some(i64::MAX)).zip(clamp_to_i32(Some(i64::MIN))),
            Some((i32::MAX, i32::MIN))
        );
    }

    #[test]
    fn facts_of_a_pod() {
        let mut pod = Pod::default();
        pod.metadata.uid = "u".into();
        pod.spec.termination_grace_period_seconds = Some(7);
        assert!(!PodFacts::from_pod(&pod).is_static, "no source annotation");
        // SRC-12
        for (source, is_static) in [("api", false), ("file", true), ("http", true)] {
            pod.metadata
                .annotations
                .insert(CONFIG_SOURCE.into(), source.into());
            assert_eq!(PodFacts::from_pod(&pod).is_static, is_static, "{source}");
        }
        assert_eq!(PodFacts::from_pod(&pod).spec_grace_s, Some(7));
    }
}
