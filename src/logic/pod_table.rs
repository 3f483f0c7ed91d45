//! All pods of the node: one boxed array of slots, and the rules between pods.
//!
//! Updates go in ([`PodTable::update_pod`]), effects come out ([`PodTable::poll_effect`]), ends of calls come back
//! ([`PodTable::on_call_done`]). The table never grows: when no slot is free the caller is told. A [`PodHandle`] names a slot
//! and the pod that lived in it, so a late answer for a pod that is gone finds nobody.
//!
//! Invariants, held by the exploration test below: one call per pod at a time; no [`WorkerCall::Sync`] once termination is
//! requested; grace only shrinks; stages only advance; one started static pod per full name.
//!
//! Names and rules follow kubelet `pod_workers.go`.

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

use crate::api::order::OrderExt;
use crate::api::{MonoTime, PodUid};

use super::fnv::fnv1a;
use super::pod_worker::{
    CallOutcome, PodFacts, PodUpdate, PodUpdateResult, PodUpdateSubject, PodWork, PodWorker,
    StopStatus, UpdateKind, WorkerCall, WorkerStage,
};
use super::work_queue::{
    CallEnd, Jitter, RETRY, RetryCause, SYNC_FREQUENCY, SlotTimer, requeue_delay,
};

/// Names one pod in the table for as long as its slot is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodHandle {
    index: u32,
    generation: u32,
}

/// Number of slots, by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodTableCapacity {
    /// Pods that may be admitted (`maxPods`).
    pub max_pods: u16,
    /// Slots kept for static pods and for pods that only the runtime knows.
    pub reserved: u16,
    /// Slots for pods on their way out while their successors start.
    pub margin: u16,
}

impl PodTableCapacity {
    /// All slots.
    #[must_use]
    pub fn slots(self) -> usize {
        usize::from(self.max_pods) + usize::from(self.reserved) + usize::from(self.margin)
    }
}

/// No slot is free for this pod. Try again after a pod has gone; the next relist or poll brings it anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod table is full ({slots} slots)")]
pub struct PodTableFull {
    /// All slots of the table.
    pub slots: usize,
}

/// Answer to an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodUpdateAnswer {
    /// The pod's slot.
    pub handle: PodHandle,
    /// Result of the update.
    pub taken: PodUpdateResult,
    /// The killer that asked for a signal need not wait: nothing runs, or nothing was killed. Otherwise
    /// [`PodTableEffect::Stopped`] tells it.
    pub signal_now: bool,
}

/// Work for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodTableEffect {
    /// Run this call and report its end with [`PodTable::on_call_done`]. Its future is never dropped.
    Start(CallStart),
    /// Set the cancellation flag of the pod's running call. It ends soon; the next call of a pod that terminates brings
    /// the shorter grace ([`WorkerCall::Terminating`]).
    Cancel(PodHandle),
    /// A call waits for a status of this pod that is newer than the end of its last one: a relist of it would help.
    /// Said once; the call starts as soon as the cache has it.
    NeedStatus {
        /// Pod.
        handle: PodHandle,
        /// Time that the status must be newer than.
        after: MonoTime,
    },
    /// The pod's status could not be read (`Warning/FailedSync "error determining status: …"`); the call was put off.
    StatusFailed(PodHandle),
    /// No container of the pod runs, now or later: tell the killers that wait for that.
    Stopped(PodHandle),
    /// The slot is free again. The pod's record and everything else kept for this incarnation may go.
    Gone {
        /// The handle, dead by now.
        handle: PodHandle,
        /// UID.
        uid: PodUid,
        /// A pod of the same UID shall be created again.
        restart: bool,
    },
}

/// A call to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStart {
    /// Pod.
    pub handle: PodHandle,
    /// Operation.
    pub call: WorkerCall,
    /// Kind of the update that led to it.
    pub kind: UpdateKind,
    /// Arrival of the oldest update that the call serves.
    pub since: MonoTime,
    /// Set for the pod's first call.
    pub first: bool,
}

/// Answer of the runtime cache to a call that needs a new status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusFreshness {
    /// The cached status is not newer yet.
    Stale,
    /// The cached status is newer.
    Fresh,
    /// The newest answer is an error.
    Failed,
}

/// The runtime cache, as far as the table needs it.
pub trait StatusAge {
    /// Compares the cached status of `uid` with `after`; `Mono(0)` asks for any status at all.
    fn compare_status_age(&self, uid: &PodUid, after: MonoTime) -> StatusFreshness;
}

/// State of a worker as housekeeping sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkState {
    /// Syncing or waiting to start.
    Sync,
    /// Termination requested or under way.
    Terminating,
    /// No container runs any more.
    Terminated,
}

/// Row of [`PodTable::sync_known_pods`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// UID.
    pub uid: PodUid,
    /// State.
    pub state: WorkState,
    /// Not desired by any source.
    pub orphan: bool,
    /// Set if the pod's object is known; otherwise only the runtime knows the pod.
    pub has_config: bool,
    /// Static.
    pub is_static: bool,
}

/// Steps towards its end that a pod has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodEnding {
    /// See [`PodTable::is_pod_termination_requested`].
    pub requested: bool,
    /// See [`PodTable::is_pod_known_terminated`].
    pub terminated: bool,
    /// See [`PodTable::should_pod_be_finished`].
    pub finished: bool,
    /// See [`PodTable::is_restart_requested`].
    pub restart_requested: bool,
}

/// UID and full name of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodIdentity<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
}

#[derive(Clone, Debug)]
enum Occupancy {
    Free,
    Used,
    /// [`PodTableEffect::Gone`] was not fetched yet.
    Leaving {
        restart: bool,
    },
}

#[derive(Clone, Debug)]
struct PodSlot {
    uid: PodUid,
    name: Box<str>,
    namespace: Box<str>,
    /// Hash of the UID, by which a slot is found.
    hash: u64,
    generation: u32,
    occupancy: Occupancy,
    /// Place in the line for its full name; 0 for pods that need not queue.
    turn: u32,
    worker: PodWorker,
}

const _: () = assert!(
    size_of::<PodSlot>() <= 240,
    "one per pod, and as many as the node may ever hold"
);

impl PodSlot {
    fn is_used(&self) -> bool {
        matches!(self.occupancy, Occupancy::Used)
    }

    fn has_name(&self, name: &str, namespace: &str) -> bool {
        *self.name == *name && *self.namespace == *namespace
    }

    /// Stands in the line for its full name, and those behind it must wait.
    fn blocks_line(&self) -> bool {
        self.is_used()
            && self.turn != 0
            && !self.worker.started
            && !self.worker.stage.is_termination_requested()
    }

    /// Owns its full name.
    fn holds_name(&self) -> bool {
        self.is_used() && self.turn != 0 && self.worker.started && !self.worker.stage.is_finished()
    }
}

/// The pods of the node. See the module.
#[derive(Clone, Debug)]
pub struct PodTable {
    slots: Box<[PodSlot]>,
    /// Slots in use, sorted by the hashes of their UIDs: one is found without a look at all.
    by_hash: Vec<usize>,
    capacity: PodTableCapacity,
    used: usize,
    /// Slot at which the next search for a call begins, so that no pod starves another.
    cursor: usize,
    next_turn: u32,
    /// Set once `sync_known_pods` has run: from then on a UID that is not in the table is unknown for certain.
    synced: bool,
    sync_frequency: Duration,
    jitter: Jitter,
}

impl PodTable {
    /// An empty table. `seed` decides the spread of delays; all slots are allocated at once.
    #[must_use]
    pub fn new(capacity: PodTableCapacity, seed: u64) -> Self {
        let free = PodSlot {
            uid: PodUid::default(),
            name: Box::default(),
            namespace: Box::default(),
            hash: 0,
            generation: 0,
            occupancy: Occupancy::Free,
            turn: 0,
            worker: PodWorker::new(&PodUpdate::runtime_only(&PodUid::default(), "", "")),
        };
        Self {
            slots: vec![free; capacity.slots()].into_boxed_slice(),
            by_hash: Vec::with_capacity(capacity.slots()),
            capacity,
            used: 0,
            cursor: 0,
            next_turn: 1,
            synced: false,
            sync_frequency: SYNC_FREQUENCY,
            jitter: Jitter::new(seed),
        }
    }

    /// Sets the time between syncs of a pod that is well (`syncFrequency`).
    #[must_use]
    pub fn with_sync_frequency(mut self, sync_frequency: Duration) -> Self {
        self.sync_frequency = sync_frequency;
        self
    }

    /// Takes an update in.
    ///
    /// - Errors: [`PodTableFull`] for a UID that is not in the table; nothing has changed then.
    /// - Source: kubelet `pod_workers.go`, `UpdatePod`.
    pub fn update_pod(
        &mut self,
        update: PodUpdate<'_>,
        now: MonoTime,
    ) -> Result<PodUpdateAnswer, PodTableFull> {
        let (uid, name, namespace) = update.subject.identity();
        let runtime_only = matches!(update.subject, PodUpdateSubject::Runtime { .. });
        let (index, first_time) = match self.find_slot(uid) {
            Some(index) => (index, false),
            None => {
                let is_static =
                    matches!(update.subject, PodUpdateSubject::Pod(facts) if facts.is_static);
                let index = self.free_slot(is_static || runtime_only)?;
                let turn = if is_static { self.next_turn } else { 0 };
                self.next_turn += u32::from(is_static);
                let slot = &mut self.slots[index];
                slot.uid = uid.clone();
                slot.name = name.into();
                slot.namespace = namespace.into();
                slot.hash = fnv1a(uid.bytes());
                slot.occupancy = Occupancy::Used;
                slot.turn = turn;
                slot.worker = PodWorker::new(&update);
                let place = self.place_of_hash(self.slots[index].hash);
                self.by_hash.insert(place, index);
                self.used += 1;
                (index, true)
            }
        };
        let (taken, signal_now) = self.slots[index]
            .worker
            .take_update(first_time, update, now);
        Ok(PodUpdateAnswer {
            handle: self.handle_at(index),
            taken,
            signal_now,
        })
    }

    /// Takes in a `sync` update with the facts delivered last. `None` if the UID is unknown or only the runtime knows
    /// the pod.
    pub fn resync_pod(&mut self, uid: &PodUid, now: MonoTime) -> Option<PodUpdateAnswer> {
        let index = self.find_slot(uid)?;
        self.resync_slot(index, now)
    }

    /// The next thing to do, `None` when there is nothing (until the next input). Drain it after every input.
    ///
    /// Cancellations, stops and departures come before starts. Starts take turns among pods.
    pub fn poll_effect(&mut self, status: &dyn StatusAge, now: MonoTime) -> Option<PodTableEffect> {
        for index in 0..self.slots.len() {
            let handle = self.handle_at(index);
            let slot = &mut self.slots[index];
            if core::mem::take(&mut slot.worker.cancel_due) {
                return Some(PodTableEffect::Cancel(handle));
            }
            if core::mem::take(&mut slot.worker.signal_due) {
                return Some(PodTableEffect::Stopped(handle));
            }
            if let Occupancy::Leaving { restart } = slot.occupancy {
                let uid = core::mem::take(&mut slot.uid);
                slot.name = Box::default();
                slot.namespace = Box::default();
                slot.occupancy = Occupancy::Free;
                slot.generation = slot.generation.wrapping_add(1);
                self.used -= 1;
                return Some(PodTableEffect::Gone {
                    handle,
                    uid,
                    restart,
                });
            }
        }
        for _ in 0..self.slots.len() {
            let index = self.cursor;
            self.cursor = (self.cursor + 1) % self.slots.len();
            if let Some(effect) = self.poll_slot(index, status, now) {
                return Some(effect);
            }
        }
        None
    }

    fn poll_slot(
        &mut self,
        index: usize,
        status: &dyn StatusAge,
        now: MonoTime,
    ) -> Option<PodTableEffect> {
        let slot = &self.slots[index];
        let worker = &slot.worker;
        if !slot.is_used() || !worker.woken || worker.call.is_some() {
            return None;
        }
        let pending = worker.pending?;
        let handle = self.handle_at(index);

        // A pod that was terminal at first sight (PW-06) does not queue for its name.
        if !worker.started && slot.turn != 0 && worker.stage != WorkerStage::Terminated {
            if worker.stage.is_termination_requested() && worker.observed_runtime {
                // An earlier agent started the pod: it is stopped like any other, whichever pod has its name now.
            } else if worker.stage.is_termination_requested() {
                self.finish_pod(index);
                let told = core::mem::take(&mut self.slots[index].worker.signal_due);
                return told.then_some(PodTableEffect::Stopped(handle));
            } else if !self.may_start(index) {
                let delay = self.jitter.stretch_delay(RETRY);
                let worker = &mut self.slots[index].worker;
                worker.woken = false;
                worker.timers.set_timer(SlotTimer::Requeue, now + delay);
                return None;
            }
        }

        if pending.has_spec {
            match status.compare_status_age(&slot.uid, worker.last_end) {
                StatusFreshness::Fresh => {}
                StatusFreshness::Stale => {
                    let worker = &mut self.slots[index].worker;
                    let asked = core::mem::replace(&mut worker.status_asked, true);
                    let after = worker.last_end;
                    return (!asked).then_some(PodTableEffect::NeedStatus { handle, after });
                }
                StatusFreshness::Failed => {
                    let delay = self.next_call_delay(CallEnd::Failed(RetryCause::Error), now);
                    let worker = &mut self.slots[index].worker;
                    worker.woken = false;
                    worker.status_asked = false;
                    worker.timers.set_timer(SlotTimer::Requeue, now + delay);
                    return Some(PodTableEffect::StatusFailed(handle));
                }
            }
        }

        let worker = &mut self.slots[index].worker;
        let first = !worker.started;
        let (call, PodWork { kind, since, .. }) = worker.start_pending_work()?;
        Some(PodTableEffect::Start(CallStart {
            handle,
            call,
            kind,
            since,
            first,
        }))
    }

    /// Takes in that a call has ended. Returns false, and does nothing, if the pod is gone or ran no call.
    ///
    /// Source: kubelet `pod_workers.go`, `podWorkerLoop`, `completeWork`.
    pub fn on_call_done(&mut self, handle: PodHandle, outcome: CallOutcome, now: MonoTime) -> bool {
        let Some(index) = self.index_of(handle) else {
            return false;
        };
        let worker = &mut self.slots[index].worker;
        let Some(call) = worker.call.take() else {
            return false;
        };
        worker.cancelled = false;
        worker.cancel_due = false;
        worker.last_end = now;
        let ended = match (outcome, call) {
            (CallOutcome::Canceled, _) => CallEnd::Failed(RetryCause::Error),
            (CallOutcome::Failed(retry), _) => CallEnd::Failed(retry),
            (CallOutcome::Done | CallOutcome::Terminal, WorkerCall::Terminated) => {
                self.finish_pod(index);
                return true;
            }
            (CallOutcome::Done | CallOutcome::Terminal, WorkerCall::TerminatingRuntime) => {
                worker.announce_stop();
                self.purge(index);
                return true;
            }
            (CallOutcome::Done | CallOutcome::Terminal, WorkerCall::Terminating { .. }) => {
                worker.stage = WorkerStage::Terminated;
                worker.announce_stop();
                worker.replay_last_update();
                CallEnd::Transition
            }
            (CallOutcome::Terminal, WorkerCall::Sync) => {
                worker.stage = WorkerStage::Terminating;
                worker.replay_last_update();
                CallEnd::Transition
            }
            (CallOutcome::Done, WorkerCall::Sync) => CallEnd::Well,
        };
        let delay = self.next_call_delay(ended, now);
        let worker = &mut self.slots[index].worker;
        worker.woken = worker.pending.is_some();
        if worker.woken {
            // The next call follows at once, which is what a delay of zero means as well.
            worker.timers.clear_timer(SlotTimer::Requeue);
        } else {
            worker.timers.set_timer(SlotTimer::Requeue, now + delay);
        }
        true
    }

    /// The first instant at which [`PodTable::on_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        self.used_slots()
            .filter_map(|slot| slot.worker.timers.next_timeout())
            .min()
    }

    /// Wakes the pods that are due.
    ///
    /// A pod that ends is driven on by its own timer, whether or not a source still has it: were that left to
    /// others, a stop that failed after a forced deletion would never be tried again. A syncing pod that no source
    /// has is left alone; it is an orphan for [`PodTable::sync_known_pods`].
    pub fn on_timeout(&mut self, is_config: &dyn Fn(&PodUid) -> bool, now: MonoTime) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !slot.is_used() {
                continue;
            }
            let mut due = false;
            for timer in SlotTimer::ALL {
                due |= slot.worker.timers.take_due(timer, now);
            }
            if !due || slot.worker.stage.is_finished() {
                continue;
            }
            if is_config(&slot.uid) && self.resync_slot(index, now).is_some() {
                continue;
            }
            let worker = &mut self.slots[index].worker;
            if worker.stage.is_termination_requested() {
                worker.replay_last_update();
            } else if worker.pending.is_some() {
                worker.woken = true;
            }
        }
    }

    /// Compares the table with the pods that the sources want, drives orphans on, and forgets finished ones.
    ///
    /// - Shape: sorted by UID, at most one row a slot. Rows that were forgotten are missing: an active pod that is
    ///   wanted and missing is to be created.
    /// - Source: kubelet `pod_workers.go`, `SyncKnownPods`, `removeTerminatedWorker`.
    pub fn sync_known_pods(&mut self, desired: &dyn Fn(&PodUid) -> bool) -> Vec<KnownPod> {
        self.synced = true;
        let mut known = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !slot.is_used() {
                continue;
            }
            let worker = &mut slot.worker;
            let orphan = !desired(&slot.uid);
            if worker.stage.is_finished() {
                if orphan || worker.restart_requested {
                    self.purge(index);
                    continue;
                }
            } else if orphan {
                if !worker.started && !worker.observed_runtime {
                    worker.announce_stop();
                    self.purge(index);
                    continue;
                }
                worker.begin_orphan_end();
            }
            let slot = &self.slots[index];
            let worker = &slot.worker;
            let source = worker.active.or(worker.pending);
            let has_config = source.is_some_and(|work| work.has_spec);
            known.push(KnownPod {
                uid: slot.uid.clone(),
                state: match worker.stage {
                    WorkerStage::Sync => WorkState::Sync,
                    WorkerStage::Requested | WorkerStage::Terminating => WorkState::Terminating,
                    WorkerStage::Terminated
                    | WorkerStage::Finished
                    | WorkerStage::FinishedUnstarted => WorkState::Terminated,
                },
                orphan,
                has_config,
                is_static: has_config && worker.is_static,
            });
        }
        known.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
        known
    }

    /// Returns true if the UID was created again while it was on its way out. Ask before [`PodTable::sync_known_pods`],
    /// which forgets such a pod once it is finished.
    #[must_use]
    pub fn is_restart_requested(&self, uid: &PodUid) -> bool {
        self.pod_ending(uid).restart_requested
    }

    /// Sets or clears the instant at which the pod's active deadline passes.
    pub fn set_active_deadline(&mut self, handle: PodHandle, at: Option<MonoTime>) {
        if let Some(index) = self.index_of(handle) {
            let timers = &mut self.slots[index].worker.timers;
            match at {
                Some(at) => timers.set_timer(SlotTimer::ActiveDeadline, at),
                None => timers.clear_timer(SlotTimer::ActiveDeadline),
            }
        }
    }

    /// The slot of `uid`.
    #[must_use]
    pub fn find_handle(&self, uid: &PodUid) -> Option<PodHandle> {
        self.find_slot(uid).map(|index| self.handle_at(index))
    }

    /// Identity of the pod in the slot, until [`PodTableEffect::Gone`] was fetched.
    #[must_use]
    pub fn pod_identity(&self, handle: PodHandle) -> Option<PodIdentity<'_>> {
        let slot = self.slots.get(usize::try_from(handle.index).ok()?)?;
        let there = slot.generation == handle.generation;
        (there && !matches!(slot.occupancy, Occupancy::Free)).then_some(PodIdentity {
            uid: &slot.uid,
            name: &slot.name,
            namespace: &slot.namespace,
        })
    }

    /// Stage of the pod.
    #[must_use]
    pub fn pod_stage(&self, handle: PodHandle) -> Option<WorkerStage> {
        Some(self.slots[self.index_of(handle)?].worker.stage)
    }

    /// Returns true if the pod's running call was told to end early.
    #[must_use]
    pub fn is_cancelled(&self, handle: PodHandle) -> bool {
        self.index_of(handle)
            .is_some_and(|index| self.slots[index].worker.cancelled)
    }

    /// Status to put over the computed one in a terminating call.
    #[must_use]
    pub fn stop_status(&self, handle: PodHandle) -> Option<&StopStatus> {
        self.slots[self.index_of(handle)?]
            .worker
            .stop_status
            .as_deref()
    }

    /// Grace in force, in seconds and at least 1, once the pod is to end (PW-10).
    #[must_use]
    pub fn grace_s(&self, handle: PodHandle) -> Option<u32> {
        let grace_s = self.slots[self.index_of(handle)?].worker.grace_s;
        (grace_s != 0).then_some(grace_s)
    }

    /// Handles of all pods, in slot order.
    pub fn handles(&self) -> impl Iterator<Item = PodHandle> + '_ {
        (0..self.slots.len())
            .filter(|index| self.slots[*index].is_used())
            .map(|index| self.handle_at(index))
    }

    // Other parts must ask these questions here, not the configuration (PW-36).

    /// Returns true if the configuration was compared with the workers since the start. From then on a pod without a
    /// worker runs nothing.
    #[must_use]
    pub const fn is_synced(&self) -> bool {
        self.synced
    }

    /// Returns true if the pod is known and none of its containers runs any more.
    #[must_use]
    pub fn is_pod_known_terminated(&self, uid: &PodUid) -> bool {
        self.pod_ending(uid).terminated
    }

    /// Returns true if a container of the pod may run.
    #[must_use]
    pub fn could_have_running_containers(&self, uid: &PodUid) -> bool {
        self.ask_worker(uid, !self.synced, |worker| !worker.stage.is_terminated())
    }

    /// Returns true if all of the pod is cleaned up.
    #[must_use]
    pub fn should_pod_be_finished(&self, uid: &PodUid) -> bool {
        self.pod_ending(uid).finished
    }

    /// Returns true if the pod was told to end.
    #[must_use]
    pub fn is_pod_termination_requested(&self, uid: &PodUid) -> bool {
        self.pod_ending(uid).requested
    }

    /// Returns all steps towards its end that the pod has taken, by one search.
    #[must_use]
    pub fn pod_ending(&self, uid: &PodUid) -> PodEnding {
        let Some(index) = self.find_slot(uid) else {
            return PodEnding {
                requested: false,
                terminated: false,
                finished: self.synced,
                restart_requested: false,
            };
        };
        let worker = &self.slots[index].worker;
        PodEnding {
            requested: worker.stage.is_termination_requested(),
            terminated: worker.stage.is_terminated(),
            finished: worker.stage.is_finished(),
            restart_requested: worker.restart_requested,
        }
    }

    /// Returns true if containers, sandboxes and logs of the pod may be removed.
    #[must_use]
    pub fn should_pod_content_be_removed(&self, uid: &PodUid) -> bool {
        self.ask_worker(uid, self.synced, |worker| {
            worker.evicted || (worker.deleted && worker.stage.is_terminated())
        })
    }

    /// Returns true if the rest of the pod is garbage: its content may be removed, and nothing more of it needs to be
    /// told. Stricter than [`PodTable::should_pod_content_be_removed`]: if an ended container of an evicted pod is
    /// removed before the pod has stopped, the next agent would start the container again.
    #[must_use]
    pub fn is_garbage(&self, uid: &PodUid) -> bool {
        self.should_pod_content_be_removed(uid) && !self.could_have_running_containers(uid)
    }

    /// Returns true if the static pod that holds this full name ends but has not stopped: its mirror must stay.
    #[must_use]
    pub fn is_pod_for_mirror_pod_terminating(&self, name: &str, namespace: &str) -> bool {
        self.slots
            .iter()
            .filter(|slot| slot.holds_name() && slot.has_name(name, namespace))
            .any(|slot| {
                slot.worker.stage.is_termination_requested() && !slot.worker.stage.is_terminated()
            })
    }

    fn ask_worker(&self, uid: &PodUid, unknown: bool, known: impl Fn(&PodWorker) -> bool) -> bool {
        self.find_slot(uid)
            .map_or(unknown, |index| known(&self.slots[index].worker))
    }

    fn used_slots(&self) -> impl Iterator<Item = &PodSlot> {
        self.slots.iter().filter(|slot| slot.is_used())
    }

    fn find_slot(&self, uid: &PodUid) -> Option<usize> {
        let hash = fnv1a(uid.bytes());
        let places = self.by_hash[self.place_of_hash(hash)..].iter().copied();
        places
            .take_while(|index| self.slots[*index].hash == hash)
            .find(|index| self.slots[*index].uid == *uid)
    }

    /// Place in `by_hash` where slots of this hash begin.
    fn place_of_hash(&self, hash: u64) -> usize {
        let before = |index: &usize| self.slots[*index].hash < hash;
        self.by_hash.partition_point(before)
    }

    fn index_of(&self, handle: PodHandle) -> Option<usize> {
        let index = usize::try_from(handle.index).ok()?;
        let slot = self.slots.get(index)?;
        (slot.is_used() && slot.generation == handle.generation).then_some(index)
    }

    fn handle_at(&self, index: usize) -> PodHandle {
        PodHandle {
            index: u32::try_from(index).expect("three 16-bit counts make fewer slots than that"),
            generation: self.slots[index].generation,
        }
    }

    /// A free slot. Pods of the apiserver leave those reserved for others alone.
    fn free_slot(&self, privileged: bool) -> Result<usize, PodTableFull> {
        let full = PodTableFull {
            slots: self.slots.len(),
        };
        let served = |slot: &&PodSlot| {
            let runtime_only = slot.worker.newest_work().is_some_and(|work| !work.has_spec);
            slot.worker.is_static || runtime_only
        };
        let taken = self.used_slots().filter(served).count();
        let kept = usize::from(self.capacity.reserved).saturating_sub(taken);
        if !privileged && self.slots.len() - self.used <= kept {
            return Err(full);
        }
        let free = |slot: &PodSlot| matches!(slot.occupancy, Occupancy::Free);
        self.slots.iter().position(free).ok_or(full)
    }

    /// Returns true if a static pod that has not started is next in line for its full name.
    fn may_start(&self, index: usize) -> bool {
        let own = &self.slots[index];
        !self.slots.iter().any(|other| {
            (other.holds_name() || (other.blocks_line() && other.turn < own.turn))
                && other.has_name(&own.name, &own.namespace)
        })
    }

    fn resync_slot(&mut self, index: usize, now: MonoTime) -> Option<PodUpdateAnswer> {
        let slot = &mut self.slots[index];
        let work = slot.worker.newest_work().filter(|work| work.has_spec)?;
        let facts = PodFacts {
            uid: &slot.uid,
            name: &slot.name,
            namespace: &slot.namespace,
            is_static: slot.worker.is_static,
            // The worker acted on both when they were delivered.
            deletion_requested: false,
            phase_terminal: false,
            deletion_grace_s: work.deletion_grace_s.map(i64::from),
            spec_grace_s: work.spec_grace_s.map(i64::from),
        };
        let update = PodUpdate::new(UpdateKind::Sync, facts);
        let (taken, signal_now) = slot.worker.take_update(false, update, now);
        Some(PodUpdateAnswer {
            handle: self.handle_at(index),
            taken,
            signal_now,
        })
    }

    fn next_call_delay(&mut self, ended: CallEnd, now: MonoTime) -> Duration {
        requeue_delay(ended, now, self.sync_frequency, &mut self.jitter)
    }

    fn finish_pod(&mut self, index: usize) {
        let worker = &mut self.slots[index].worker;
        worker.stage = if worker.stage.termination_started() {
            WorkerStage::Finished
        } else {
            WorkerStage::FinishedUnstarted
        };
        worker.pending = None;
        worker.woken = false;
        worker.timers = super::work_queue::SlotTimers::UNSET;
        worker.announce_stop();
        self.wake_line(index);
    }

    /// Forgets the pod. Its slot is free once [`PodTableEffect::Gone`] was fetched.
    fn purge(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.occupancy = Occupancy::Leaving {
            restart: slot.worker.restart_requested,
        };
        slot.worker.cancel_due = false;
        self.by_hash.retain(|other| *other != index);
        self.wake_line(index);
    }

    /// Lets the static pods that wait for the name of `index` try again now; their timers would do it later.
    fn wake_line(&mut self, index: usize) {
        if self.slots[index].turn == 0 {
            return;
        }
        let (name, namespace) = (
            self.slots[index].name.clone(),
            self.slots[index].namespace.clone(),
        );
        for slot in &mut self.slots {
            if slot.blocks_line() && slot.has_name(&name, &namespace) {
                slot.worker.woken = slot.worker.pending.is_some();
            }
        }
    }
}

#[cfg(test)]
mod explore;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;
