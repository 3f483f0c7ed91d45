//! Everything that is known of pods between events: one [`PodEntry`] each, and their workers.
//!
//! | file | what it is |
//! |---|---|
//! | `config` | facts remembered of a configured pod |
//! | `entry` | one pod's entry |
//!
//! An entry begins with the first fact that is known of a pod (its record is being written, a source has it, it has a
//! status, the runtime has something of it) and ends in one place, when nothing is known any more. There are at most as
//! many as configured pods, pods on their way in and out, and pods that the runtime knows: the pod table and the
//! sources bound all three. Specs are not here: they are read from their records.

mod config;
mod entry;
#[cfg(test)]
mod testing;

use alloc::collections::BTreeMap;

pub(super) use config::PodConfigFacts;
use entry::PodEntry;

use crate::{
    api::{
        Container, MonoTime, Pod, PodStatus, PodUid, WallTime, cri::ContainerStatus,
        order::OrderExt as _, pod_status::QosClass,
    },
    config::AgentConfig,
    logic::{
        admission::ActivePod,
        backoff::{self, Backoff, BackoffRecord, CrashLoopWait},
        cgroup::PodRequestTotals,
        clock_history::ClockHistory,
        housekeeping::{self, PodGauges, PodTotals},
        pod_table::{
            PodHandle, PodTable, PodTableCapacity, PodTableEffect, PodTableFull, StatusAge,
        },
        pod_worker::{CallOutcome, PodUpdate as WorkerUpdate},
        qos::{CPU, MEMORY, ResourceAmounts},
        reason_cache::ReasonCache,
        resize::{DEFERRED, PodResize},
        status_cache::StatusCache,
        status_update::StatusVerdict,
        status_writer::LocalPodState,
    },
};

/// Slots kept for static pods and for pods that only the runtime knows.
const RESERVED_SLOTS: u16 = 10;
/// Slots for pods on their way out while their successors start.
const MARGIN_SLOTS: u16 = 20;
/// Containers whose restarts can be delayed: eight a pod of the largest table; see [`Backoff`] for when it is full.
pub(super) const BACKOFF_ENTRIES_PER_POD: usize = 8;

/// Capacity of the pod table.
pub(super) fn table_capacity(cfg: &AgentConfig) -> PodTableCapacity {
    PodTableCapacity {
        max_pods: u16::try_from(cfg.max_pods).unwrap_or(u16::MAX / 2),
        reserved: RESERVED_SLOTS,
        margin: MARGIN_SLOTS,
    }
}

/// Owner of all that is known of pods; see the module.
pub(super) struct PodRegistry {
    entries: BTreeMap<PodUid, PodEntry>,
    table: PodTable,
    /// Reasons why containers did not start.
    reasons: ReasonCache,
    /// Crash-loop delays.
    crash_loop: Backoff,
    totals: PodTotals,
    /// Counts as of the last pass of housekeeping.
    gauges: PodGauges,
    /// Set while records wait for a disk that cannot be written.
    records_wait: bool,
}

impl PodRegistry {
    /// Makes the owner; no pod is known yet. `seed` spreads delays.
    pub(super) fn new(cfg: &AgentConfig, seed: u64) -> Self {
        let slots = table_capacity(cfg);
        let delays = slots.slots() * BACKOFF_ENTRIES_PER_POD;
        Self {
            entries: BTreeMap::new(),
            table: PodTable::new(slots, seed).with_sync_frequency(cfg.times.sync),
            reasons: ReasonCache::default(),
            crash_loop: Backoff::new(cfg.times.max_restart_backoff, delays),
            totals: PodTotals::default(),
            gauges: PodGauges::default(),
            records_wait: false,
        }
    }

    /// Changes an entry, which is made if there is none and dropped if nothing is left in it: the one place for both.
    fn change_entry<T>(&mut self, uid: &PodUid, change: impl FnOnce(&mut PodEntry) -> T) -> T {
        let entry = match self.entries.get_mut(uid) {
            Some(entry) => entry,
            None => self.entries.entry(uid.clone()).or_default(),
        };
        let changed = change(entry);
        if entry.is_empty() {
            self.entries.remove(uid);
        }
        changed
    }

    // Sources.

    /// Takes the facts of a pod that is new or changed in its source.
    pub(super) fn set_config(&mut self, uid: &PodUid, pod: PodConfigFacts) {
        self.change_entry(uid, |entry| entry.config = Some(pod));
    }

    /// Drops the facts of a pod that no source has any more, and returns them.
    pub(super) fn remove_config(&mut self, uid: &PodUid) -> Option<PodConfigFacts> {
        self.change_entry(uid, |entry| {
            entry.resize = None;
            entry.config.take()
        })
    }

    /// Returns true if a source has the pod.
    pub(super) fn is_configured(&self, uid: &PodUid) -> bool {
        self.config(uid).is_some()
    }

    /// Facts of the pod from its source; `None` if no source has it.
    pub(super) fn config(&self, uid: &PodUid) -> Option<&PodConfigFacts> {
        self.entries.get(uid)?.config.as_ref()
    }

    /// All configured pods, sorted by UID.
    pub(super) fn configs(&self) -> impl Iterator<Item = (&PodUid, &PodConfigFacts)> {
        let all = self.entries.iter();
        all.filter_map(|(uid, entry)| Some((uid, entry.config.as_ref()?)))
    }

    /// UIDs of configured pods, sorted.
    pub(super) fn configured_uids(&self) -> Vec<PodUid> {
        self.configured_uids_where(|_| true)
    }

    /// UIDs of configured pods of a kind, sorted.
    pub(super) fn configured_uids_where(
        &self,
        is: impl Fn(&PodConfigFacts) -> bool,
    ) -> Vec<PodUid> {
        let wanted = self.configs().filter(|(_, pod)| is(pod));
        wanted.map(|(uid, _)| uid.clone()).collect()
    }

    /// Notes that a pod's record is about to be written. [`PodRegistry::note_arrival_end`] follows for each.
    pub(super) fn note_arrival_start(&mut self, uid: &PodUid) {
        self.change_entry(uid, |entry| entry.arriving += 1);
    }

    /// Notes that the loop knows the pod now, or that its record could not be written.
    pub(super) fn note_arrival_end(&mut self, uid: &PodUid) {
        self.change_entry(uid, |entry| {
            entry.arriving = entry.arriving.saturating_sub(1);
        });
    }

    /// Returns true if a record of the pod is being written, or is written and the loop has not been told yet.
    pub(super) fn is_arriving(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|e| e.arriving > 0)
    }

    /// Returns true if a record of any pod is being written, or is written and the loop has not been told yet.
    pub(super) fn has_arriving_pods(&self) -> bool {
        self.entries.values().any(|e| e.arriving > 0)
    }

    /// Returns true if the pod has no owner here any more: not configured, without a worker, not on its way in.
    pub(super) fn is_unclaimed(&self, uid: &PodUid) -> bool {
        !self.is_configured(uid) && !self.is_arriving(uid) && !self.has_worker(uid)
    }

    // Workers.

    /// The workers.
    pub(super) const fn worker_table(&self) -> &PodTable {
        &self.table
    }

    /// Returns true if the pod has a worker.
    pub(super) fn has_worker(&self, uid: &PodUid) -> bool {
        self.table.find_handle(uid).is_some()
    }

    /// UID of the pod in a slot; `None` if the slot is another pod's by now.
    pub(super) fn uid_of_handle(&self, handle: PodHandle) -> Option<PodUid> {
        self.table.pod_identity(handle).map(|i| i.uid.clone())
    }

    /// Returns true if the pod is to end, or has ended.
    pub(super) fn is_termination_requested(&self, uid: &PodUid) -> bool {
        self.table.is_pod_termination_requested(uid)
    }

    /// Returns true if the pod begins once more under its UID as soon as it has ended.
    pub(super) fn is_restart_requested(&self, uid: &PodUid) -> bool {
        self.table.is_restart_requested(uid)
    }

    /// The pods that count for admission and shares (LOOP-11), sorted by UID.
    pub(super) fn active_pods(&self) -> impl Iterator<Item = (&PodUid, &PodConfigFacts)> {
        self.entries.iter().filter_map(|(uid, entry)| {
            let config = entry.config.as_ref()?;
            entry.is_active(uid, &self.table).then_some((uid, config))
        })
    }

    /// The pod as a source has it, if it is active.
    pub(super) fn active_config(&self, uid: &PodUid) -> Option<&PodConfigFacts> {
        let entry = self.entries.get(uid)?;
        let config = entry.config.as_ref()?;
        entry.is_active(uid, &self.table).then_some(config)
    }

    /// Notes that the pod waits no longer to be taken in: from now on it takes its share of the node.
    pub(super) fn end_wait_in_line(&mut self, uid: &PodUid) {
        let config = self.entries.get_mut(uid).and_then(|e| e.config.as_mut());
        if let Some(config) = config {
            config.waits_in_line = false;
        }
    }

    /// Active pods other than `uid`, `gone` and those in line, and the resources that they take of the node.
    pub(super) fn active_pods_except(
        &self,
        uid: &PodUid,
        gone: &[PodUid],
    ) -> (Vec<&PodUid>, Vec<&ActivePod>) {
        let others = self.active_pods().filter(|(other, _)| *other != uid);
        let others = others.filter(|(other, pod)| !pod.waits_in_line && !gone.contains(other));
        others.map(|(uid, pod)| (uid, &pod.takes)).unzip()
    }

    /// Requests of all active pods together.
    pub(super) fn active_requests(&self) -> PodRequestTotals {
        let mut totals = PodRequestTotals::default();
        for (_, pod) in self.active_pods() {
            let add = |total: &mut i64, name: &str| {
                let asked = pod.takes.requests.get(name).copied();
                *total = total.saturating_add(asked.unwrap_or(0));
            };
            match pod.qos {
                QosClass::Burstable => {
                    add(&mut totals.burstable_milli, CPU);
                    add(&mut totals.burstable_bytes, MEMORY);
                }
                QosClass::Guaranteed => add(&mut totals.guaranteed_bytes, MEMORY),
                QosClass::BestEffort => {}
            }
        }
        totals
    }

    /// Facts of a configured pod for housekeeping.
    pub(super) fn housekeeping_facts<'a>(
        &self,
        uid: &'a PodUid,
    ) -> Option<housekeeping::HousekeepingPod<'a>> {
        let entry = self.entries.get(uid)?;
        let config = entry.config.as_ref()?;
        Some(housekeeping::HousekeepingPod {
            uid,
            is_static: config.is_static,
            active: entry.is_active(uid, &self.table),
            restart_requested: self.is_restart_requested(uid),
            deletion_requested: config.deletion_requested,
            api_phase_terminal: config.api_phase_terminal,
        })
    }

    /// Hands an update to the pod's worker, which is made if there is none.
    ///
    /// - Errors: no slot is free.
    pub(super) fn update_worker(
        &mut self,
        update: WorkerUpdate<'_>,
        now: MonoTime,
    ) -> Result<(), PodTableFull> {
        self.table.update_pod(update, now).map(drop)
    }

    /// Has the pod synced, if it has a worker.
    pub(super) fn resync_worker(&mut self, uid: &PodUid, now: MonoTime) {
        self.table.resync_pod(uid, now);
    }

    /// Takes the end of a worker's call.
    pub(super) fn on_done(&mut self, handle: PodHandle, outcome: CallOutcome, now: MonoTime) {
        self.table.on_call_done(handle, outcome, now);
    }

    /// Wakes the pods that are due.
    pub(super) fn on_timeout(&mut self, now: MonoTime) {
        let entries = &self.entries;
        let is_configured = |uid: &PodUid| entries.get(uid).is_some_and(|e| e.config.is_some());
        self.table.on_timeout(&is_configured, now);
    }

    /// Returns the next effect that a worker wants.
    pub(super) fn poll_effect(
        &mut self,
        ages: &dyn StatusAge,
        now: MonoTime,
    ) -> Option<PodTableEffect> {
        self.table.poll_effect(ages, now)
    }

    /// Forgets workers that have ended and are no longer configured. Returns the state of each worker that is left.
    pub(super) fn sync_known_workers(&mut self) -> Vec<crate::logic::pod_table::KnownPod> {
        let entries = &self.entries;
        let is_configured = |uid: &PodUid| entries.get(uid).is_some_and(|e| e.config.is_some());
        self.table.sync_known_pods(&is_configured)
    }

    /// Has the pod woken at `at`, when its active deadline passes.
    pub(super) fn set_active_deadline(&mut self, handle: PodHandle, at: MonoTime) {
        self.table.set_active_deadline(handle, Some(at));
    }

    // Resizes.

    /// Resize of the pod; `None`: it has what its spec says.
    pub(super) fn resize(&self, uid: &PodUid) -> Option<&PodResize> {
        self.entries.get(uid)?.resize.as_deref()
    }

    /// Takes a resize in, or drops it once nothing is left to be done. The pod must have an entry by then.
    pub(super) fn set_resize(&mut self, uid: &PodUid, resize: Option<PodResize>) {
        self.change_entry(uid, |entry| entry.resize = resize.map(Box::new));
    }

    /// Changes the resize of the pod, if it has one.
    pub(super) fn change_resize<T>(
        &mut self,
        uid: &PodUid,
        change: impl FnOnce(&mut PodResize) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_mut(uid)?;
        entry.resize.as_deref_mut().map(change)
    }

    /// Active pods whose resize is not decided, in the order in which that is to be done.
    pub(super) fn open_resizes(&self) -> Vec<PodUid> {
        let mut open: Vec<_> = Vec::new();
        for (uid, pod) in self.active_pods() {
            if let Some(resize) = self.resize(uid).filter(|resize| resize.awaits_verdict()) {
                let key = resize.order_key(&pod.takes.requests, &pod.takes.rank);
                open.push((key, uid.clone()));
            }
        }
        open.stable_sort_by(|a, b| a.0.cmp(&b.0));
        open.into_iter().map(|(_, uid)| uid).collect()
    }

    /// Sets the requests that the pod takes of the node: those of an accepted resize.
    pub(super) fn set_requests(&mut self, uid: &PodUid, requests: ResourceAmounts) {
        let config = self.entries.get_mut(uid).and_then(|e| e.config.as_mut());
        if let Some(config) = config {
            config.takes.requests = requests;
        }
    }

    // Statuses.

    /// The stored status.
    pub(super) fn stored_status(&self, uid: &PodUid) -> Option<&PodStatus> {
        self.entries.get(uid)?.status.stored_status()
    }

    /// UIDs of pods whose stored status is of a kind, sorted.
    pub(super) fn uids_with_status(&self, is: impl Fn(&PodStatus) -> bool) -> Vec<PodUid> {
        let all = self.entries.iter();
        let wanted = all.filter(|(_, entry)| entry.status.stored_status().is_some_and(&is));
        wanted.map(|(uid, _)| uid.clone()).collect()
    }

    /// Stores a status, unless it says nothing new or is illegal.
    pub(super) fn set_status(
        &mut self,
        pod: &Pod,
        status: PodStatus,
        now: WallTime,
    ) -> StatusVerdict {
        self.change_entry(&pod.metadata.uid, |entry| {
            entry.status.store_status(pod, status, now)
        })
    }

    /// Stores the last status of a pod that is cleaned up (SM-10, DEL-03).
    pub(super) fn finish_status(&mut self, pod: &Pod, now: WallTime) -> StatusVerdict {
        self.change_entry(&pod.metadata.uid, |entry| {
            entry.status.store_finished_status(pod, now)
        })
    }

    /// Corrects times that were noted before the clock was right.
    pub(super) fn correct_status_times(&mut self, clock: &ClockHistory) {
        for entry in self.entries.values_mut() {
            entry.status.correct_times(clock);
        }
    }

    /// Drops the status of a finished static pod that is started again under its UID (CLEAN-09).
    pub(super) fn forget_status(&mut self, uid: &PodUid) {
        self.change_entry(uid, |entry| {
            entry.status = StatusCache::default();
            entry.succeeded = None;
        });
    }

    /// Containers of the pod that had succeeded a boot ago and that the runtime has forgotten.
    pub(super) fn succeeded_containers(&self, uid: &PodUid) -> &[ContainerStatus] {
        let entry = self.entries.get(uid);
        let kept = entry.and_then(|entry| entry.succeeded.as_deref());
        kept.map_or(&[], Vec::as_slice)
    }

    /// Sets the containers of the pod that had succeeded a boot ago; none if the pod starts over.
    pub(super) fn set_succeeded_containers(
        &mut self,
        uid: &PodUid,
        containers: Vec<ContainerStatus>,
    ) {
        let kept = (!containers.is_empty()).then(|| Box::new(containers));
        self.change_entry(uid, |entry| entry.succeeded = kept);
    }

    /// Drops facts of pods without a worker: the time since which they start, and the statuses that are not to be kept
    /// (CLEAN-04).
    pub(super) fn drop_stale_facts(
        &mut self,
        keeps_status: impl Fn(&PodUid) -> bool,
        has_worker: impl Fn(&PodUid) -> bool,
    ) {
        self.entries.retain(|uid, entry| {
            let works = has_worker(uid);
            if !works {
                entry.starting = None;
                entry.unsynced = None;
            }
            if !works && !keeps_status(uid) {
                entry.status = StatusCache::default();
                entry.succeeded = None;
            }
            !entry.is_empty()
        });
    }

    /// Returns a view of all that is known of pods, for the writer of statuses.
    pub(super) const fn writer_view(&self) -> PodRegistryView<'_> {
        PodRegistryView {
            entries: &self.entries,
            table: &self.table,
        }
    }

    // Starts.

    /// Notes that the pod is new and nothing of it runs: it is starting since `now`, if not since an earlier time.
    pub(super) fn note_pod_created(&mut self, uid: &PodUid, now: MonoTime) {
        self.change_entry(uid, |entry| {
            if entry.starting.is_none() {
                entry.starting = Some(now);
                entry.unsynced = Some(now);
            }
        });
    }

    /// Notes that the pod is synced. Returns the time at which it became known if it is new and this is its first sync.
    pub(super) fn take_first_sync(&mut self, uid: &PodUid) -> Option<MonoTime> {
        self.change_entry(uid, |entry| entry.unsynced.take())
    }

    /// Notes that the pod runs for the first time, or never will. Returns the time at which it became known; `None` if
    /// it ran before.
    pub(super) fn take_first_start(&mut self, uid: &PodUid) -> Option<MonoTime> {
        self.change_entry(uid, |entry| entry.starting.take())
    }

    /// Digest of the limits that this agent has given the pod's cgroup.
    pub(super) fn cgroup_limits(&self, uid: &PodUid) -> Option<u32> {
        self.entries.get(uid)?.limits
    }

    /// Notes the limits that the pod's cgroup has; `None`: it is gone.
    pub(super) fn set_cgroup_limits(&mut self, uid: &PodUid, limits: Option<u32>) {
        self.change_entry(uid, |entry| entry.limits = limits);
    }

    /// Reasons why containers did not start.
    pub(super) const fn start_failure_reasons(&self) -> &ReasonCache {
        &self.reasons
    }

    /// Keeps the reason why a container did not start.
    pub(super) fn record_start_failure(
        &mut self,
        uid: &PodUid,
        container: &str,
        reason: &str,
        message: &str,
    ) {
        self.reasons
            .record_start_failure(uid, container, reason, message);
    }

    /// Forgets the reason, as the container started.
    pub(super) fn clear_start_failure(&mut self, uid: &PodUid, container: &str) {
        self.reasons.clear_start_failure(uid, container);
    }

    /// Forgets why containers of the pod did not start.
    pub(super) fn forget_start_failures(&mut self, uid: &PodUid) {
        self.reasons.forget_pod(uid);
    }

    /// Grants a start and makes the next one wait longer, or says how long this one has to wait. `ended`: the end of
    /// the instance before. `all`: its end restarts the whole pod.
    pub(super) fn grant_start(
        &mut self,
        pod: &Pod,
        container: &Container,
        all: bool,
        ended: Option<MonoTime>,
        now: MonoTime,
    ) -> Result<(), CrashLoopWait> {
        let grant = match all {
            true => backoff::grant_restart_all,
            false => backoff::grant_start,
        };
        grant(&mut self.crash_loop, pod, container, ended, now)
    }

    /// The crash-loop delays, to be kept for the next agent.
    pub(super) fn crash_loop_delays(&self) -> Vec<BackoffRecord> {
        self.crash_loop.records().to_vec()
    }

    /// Takes over delays of an agent before this one.
    pub(super) fn restore_crash_loop_delays(
        &mut self,
        records: impl IntoIterator<Item = BackoffRecord>,
        now: MonoTime,
    ) {
        self.crash_loop.restore_records(records, now);
    }

    /// Drops delays that have run out.
    pub(super) fn sweep_crash_loop_delays(&mut self, now: MonoTime) {
        self.crash_loop.forget_expired(now);
    }

    // Counts.

    /// Pod counters.
    pub(super) const fn totals(&self) -> PodTotals {
        self.totals
    }

    /// Changes the counters.
    pub(super) fn change_totals(&mut self, count: impl FnOnce(&mut PodTotals)) {
        count(&mut self.totals);
    }

    /// Counts of pods, as of the last pass of housekeeping, and of resizes, as they are.
    pub(super) fn gauges(&self) -> PodGauges {
        let mut gauges = self.gauges;
        for resize in self.entries.values().filter_map(|e| e.resize.as_deref()) {
            match resize.pending_reason() {
                None => {}
                Some(DEFERRED) => gauges.pending_resizes[0] += 1,
                Some(_) => gauges.pending_resizes[1] += 1,
            }
            gauges.resizes_in_progress += usize::from(!resize.allocation.is_actuated());
        }
        gauges
    }

    /// Takes the counts of housekeeping.
    pub(super) const fn set_gauges(&mut self, gauges: PodGauges) {
        self.gauges = gauges;
    }

    /// Returns true if records wait for a disk that cannot be written.
    pub(super) const fn has_waiting_records(&self) -> bool {
        self.records_wait
    }

    /// Notes that records wait for the disk, or no longer do.
    pub(super) const fn set_waiting_records(&mut self, wait: bool) {
        self.records_wait = wait;
    }
}

/// A view of all that is known of pods.
pub(super) struct PodRegistryView<'a> {
    entries: &'a BTreeMap<PodUid, PodEntry>,
    table: &'a PodTable,
}

impl<'a> PodRegistryView<'a> {
    /// Facts of a pod for the writer of statuses, by the agent's own UID.
    pub(super) fn pod_truth(&self, uid: &PodUid) -> Option<LocalPodState<'a>> {
        let status = &self.entries.get(uid)?.status;
        Some(LocalPodState {
            status: status.stored_status()?,
            version: status.version()?,
            finished: status.is_finished(),
            could_run: self.table.could_have_running_containers(uid),
        })
    }

    /// The first configured pod of a kind.
    pub(super) fn find_configured(
        &self,
        is: impl Fn(&PodConfigFacts) -> bool,
    ) -> Option<&'a PodUid> {
        let mut all = self.entries.iter();
        all.find_map(|(uid, entry)| entry.config.as_ref().is_some_and(&is).then_some(uid))
    }
}
