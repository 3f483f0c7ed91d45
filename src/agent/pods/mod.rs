//! Everything that is known of pods between events: one [`PodEntry`] each, and their workers.
//!
//! | file | what it is |
//! |---|---|
//! | `config` | what is remembered of a configured pod |
//! | `entry` | one pod's entry |
//! | `turn` | exclusion: one runtime operation per pod at a time, one writer of its record |
//! | `bell` | wakes who waits for something that changed |
//!
//! An entry begins with whatever is first known of a pod (its record is being written, a source has it, it has a status, the
//! runtime has something of it) and ends in one place, when nothing is known any more. At most as many as configured pods,
//! pods on their way in and out, and pods that the runtime knows: the pod table and the sources bound all three.
//! Specs are not here: they are read from their records.

mod bell;
mod config;
mod entry;
#[cfg(test)]
mod testing;
mod turn;

use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};

pub(super) use bell::Bell;
pub(super) use config::ConfigPod;
use entry::PodEntry;

use crate::{
    api::{Container, Mono, Pod, PodStatus, PodUid, Wall, pod_status::QosClass},
    config::Config,
    logic::{
        admission::ActivePod,
        backoff::{self, Backoff, CrashLoop, Record},
        housekeeping::{self, Gauges, Totals},
        pod_table::{Capacity, Effect, Handle, PodTable, StatusAge, TableFull},
        pod_worker::{Outcome, Update as WorkerUpdate},
        qos::CPU,
        reason_cache::ReasonCache,
        status_cache::StatusCache,
        status_update::Update,
        status_writer::Truth,
    },
};

/// Slots kept for static pods and for pods that only the runtime knows.
const RESERVED_SLOTS: u16 = 10;
/// Slots for pods on their way out while their successors start.
const MARGIN_SLOTS: u16 = 20;
/// Containers whose restarts can be delayed: eight a pod of the largest table; see [`Backoff`] for when it is full.
pub(super) const BACKOFF_ENTRIES_PER_POD: usize = 8;

/// Places of the pod table.
pub(super) fn slots(cfg: &Config) -> Capacity {
    Capacity {
        max_pods: u16::try_from(cfg.max_pods).unwrap_or(u16::MAX / 2),
        reserved: RESERVED_SLOTS,
        margin: MARGIN_SLOTS,
    }
}

/// See the module's words.
pub(super) struct Pods {
    entries: RefCell<BTreeMap<PodUid, PodEntry>>,
    table: RefCell<PodTable>,
    /// Why containers did not start.
    reasons: RefCell<ReasonCache>,
    /// Crash-loop delays.
    crash_loop: RefCell<Backoff>,
    totals: RefCell<Totals>,
    /// As of the last pass of housekeeping.
    gauges: Cell<Gauges>,
    /// Records wait for a disk that cannot be written.
    records_wait: Cell<bool>,
    /// A turn has ended.
    turn_ended: Bell,
}

impl Pods {
    /// No pod is known yet. `seed` spreads delays.
    pub(super) fn new(cfg: &Config, seed: u64) -> Self {
        let slots = slots(cfg);
        let delays = slots.slots() * BACKOFF_ENTRIES_PER_POD;
        Self {
            entries: RefCell::default(),
            table: RefCell::new(PodTable::new(slots, seed).with_sync_frequency(cfg.times.sync)),
            reasons: RefCell::default(),
            crash_loop: RefCell::new(Backoff::new(cfg.times.max_restart_backoff, delays)),
            totals: RefCell::default(),
            gauges: Cell::default(),
            records_wait: Cell::new(false),
            turn_ended: Bell::default(),
        }
    }

    /// Changes an entry, which is made if there is none and dropped if nothing is left in it: the one place for both.
    fn change<T>(&self, uid: &PodUid, change: impl FnOnce(&mut PodEntry) -> T) -> T {
        let mut entries = self.entries.borrow_mut();
        let entry = match entries.get_mut(uid) {
            Some(entry) => entry,
            None => entries.entry(uid.clone()).or_default(),
        };
        let changed = change(entry);
        if entry.is_empty() {
            entries.remove(uid);
        }
        changed
    }

    fn look<T>(&self, uid: &PodUid, look: impl FnOnce(&PodEntry) -> T) -> Option<T> {
        self.entries.borrow().get(uid).map(look)
    }

    // What sources say.

    /// A source has the pod, or has it differently.
    pub(super) fn configure(&self, uid: &PodUid, pod: ConfigPod) {
        self.change(uid, |entry| entry.config = Some(pod));
    }

    /// No source has the pod any more. Returns what one had.
    pub(super) fn unconfigure(&self, uid: &PodUid) -> Option<ConfigPod> {
        self.change(uid, |entry| entry.config.take())
    }

    /// Whether a source has the pod.
    pub(super) fn is_configured(&self, uid: &PodUid) -> bool {
        self.with_config(uid, |_| ()).is_some()
    }

    /// A look at what a source said of the pod; `None` if none has it.
    pub(super) fn with_config<T>(
        &self,
        uid: &PodUid,
        look: impl FnOnce(&ConfigPod) -> T,
    ) -> Option<T> {
        self.look(uid, |entry| entry.config.as_ref().map(look))?
    }

    /// A look at all configured pods, sorted by UID.
    pub(super) fn with_configs<T>(
        &self,
        look: impl FnOnce(&mut dyn Iterator<Item = (&PodUid, &ConfigPod)>) -> T,
    ) -> T {
        let entries = self.entries.borrow();
        let mut all = entries
            .iter()
            .filter_map(|(uid, entry)| Some((uid, entry.config.as_ref()?)));
        look(&mut all)
    }

    /// UIDs of configured pods, sorted.
    pub(super) fn configured(&self) -> Vec<PodUid> {
        self.configured_that(|_| true)
    }

    /// UIDs of configured pods of a kind, sorted.
    pub(super) fn configured_that(&self, is: impl Fn(&ConfigPod) -> bool) -> Vec<PodUid> {
        self.with_configs(|all| {
            let wanted = all.filter(|(_, pod)| is(pod));
            wanted.map(|(uid, _)| uid.clone()).collect()
        })
    }

    /// A pod's record is about to be written. [`Pods::arrived`] follows for each.
    pub(super) fn arrives(&self, uid: &PodUid) {
        self.change(uid, |entry| entry.arriving += 1);
    }

    /// The loop knows the pod now, or its record could not be written.
    pub(super) fn arrived(&self, uid: &PodUid) {
        self.change(uid, |entry| {
            entry.arriving = entry.arriving.saturating_sub(1);
        });
    }

    /// Whether a record of the pod is being written, or was and the loop has not heard of it.
    pub(super) fn is_arriving(&self, uid: &PodUid) -> bool {
        self.look(uid, |entry| entry.arriving > 0).unwrap_or(false)
    }

    /// Whether any pod is.
    pub(super) fn some_arrive(&self) -> bool {
        self.entries.borrow().values().any(|e| e.arriving > 0)
    }

    /// Whether nobody here wants the pod any more: not configured, without a worker, not on its way in.
    pub(super) fn is_unclaimed(&self, uid: &PodUid) -> bool {
        !self.is_configured(uid) && !self.is_arriving(uid) && !self.has_worker(uid)
    }

    // Workers.

    /// A look at the workers.
    pub(super) fn workers<T>(&self, look: impl FnOnce(&PodTable) -> T) -> T {
        look(&self.table.borrow())
    }

    /// Whether the pod has a worker.
    pub(super) fn has_worker(&self, uid: &PodUid) -> bool {
        self.workers(|table| table.handle(uid).is_some())
    }

    /// UID of the pod in a slot; `None` if the slot is another's by now.
    pub(super) fn uid(&self, handle: Handle) -> Option<PodUid> {
        self.workers(|table| table.identity(handle).map(|i| i.uid.clone()))
    }

    /// Whether the pod is to end, or has ended.
    pub(super) fn is_to_end(&self, uid: &PodUid) -> bool {
        self.workers(|table| table.is_pod_termination_requested(uid))
    }

    /// A look at the pods that count for admission and shares (LOOP-11), sorted by UID.
    pub(super) fn with_active<T>(
        &self,
        look: impl FnOnce(&mut dyn Iterator<Item = (&PodUid, &ConfigPod)>) -> T,
    ) -> T {
        let (entries, table) = (self.entries.borrow(), self.table.borrow());
        let mut active = entries.iter().filter_map(|(uid, entry)| {
            let config = entry.config.as_ref()?;
            entry.is_active(uid, &table).then_some((uid, config))
        });
        look(&mut active)
    }

    /// What active pods other than `uid` take of the node.
    pub(super) fn active_but(&self, uid: &PodUid) -> Vec<ActivePod> {
        self.with_active(|active| {
            let others = active.filter(|(other, _)| *other != uid);
            others.map(|(_, pod)| pod.takes.clone()).collect()
        })
    }

    /// Processor time that the active pods of the Burstable tier ask for together, thousandths.
    pub(super) fn burstable_milli(&self) -> i64 {
        self.with_active(|active| {
            active
                .filter(|(_, pod)| pod.qos == QosClass::Burstable)
                .filter_map(|(_, pod)| pod.takes.requests.get(CPU))
                .fold(0_i64, |sum, milli| sum.saturating_add(*milli))
        })
    }

    /// What housekeeping must know of a configured pod.
    pub(super) fn for_housekeeping<'a>(
        &self,
        uid: &'a PodUid,
    ) -> Option<housekeeping::ConfigPod<'a>> {
        let (entries, table) = (self.entries.borrow(), self.table.borrow());
        let entry = entries.get(uid)?;
        let config = entry.config.as_ref()?;
        Some(housekeeping::ConfigPod {
            uid,
            is_static: config.is_static,
            active: entry.is_active(uid, &table),
            restart_requested: table.is_restart_requested(uid),
            deletion_requested: config.deletion_requested,
            api_phase_terminal: config.api_phase_terminal,
        })
    }

    /// Hands an update to the pod's worker, which is made if there is none.
    ///
    /// - Errors: no slot is free.
    pub(super) fn update(&self, update: WorkerUpdate<'_>, now: Mono) -> Result<(), TableFull> {
        self.table.borrow_mut().update(update, now).map(drop)
    }

    /// Has the pod synced, if it has a worker.
    pub(super) fn resync(&self, uid: &PodUid, now: Mono) {
        self.table.borrow_mut().resync(uid, now);
    }

    /// A call of a worker has ended.
    pub(super) fn on_done(&self, handle: Handle, outcome: Outcome, now: Mono) {
        self.table.borrow_mut().on_done(handle, outcome, now);
    }

    /// Wakes the pods that are due.
    pub(super) fn on_timeout(&self, now: Mono) {
        let is_configured = |uid: &PodUid| self.is_configured(uid);
        self.table.borrow_mut().on_timeout(&is_configured, now);
    }

    /// The next thing that a worker wants done.
    pub(super) fn poll_effect(&self, ages: &dyn StatusAge, now: Mono) -> Option<Effect> {
        self.table.borrow_mut().poll_effect(ages, now)
    }

    /// Forgets workers that have ended and are no longer configured. Returns what is known of each that is left.
    pub(super) fn sync_known(&self) -> Vec<crate::logic::pod_table::Known> {
        let is_configured = |uid: &PodUid| self.is_configured(uid);
        self.table.borrow_mut().sync_known_pods(&is_configured)
    }

    /// Has the pod woken at `at`, when its active deadline passes.
    pub(super) fn set_active_deadline(&self, handle: Handle, at: Mono) {
        self.table
            .borrow_mut()
            .set_active_deadline(handle, Some(at));
    }

    // Statuses.

    /// The stored status.
    pub(super) fn status(&self, uid: &PodUid) -> Option<PodStatus> {
        self.with_status(uid, PodStatus::clone)
    }

    /// A look at the stored status.
    pub(super) fn with_status<T>(
        &self,
        uid: &PodUid,
        look: impl FnOnce(&PodStatus) -> T,
    ) -> Option<T> {
        self.look(uid, |entry| entry.status.get().map(look))?
    }

    /// UIDs of pods whose stored status is of a kind, sorted.
    pub(super) fn with_status_that(&self, is: impl Fn(&PodStatus) -> bool) -> Vec<PodUid> {
        let entries = self.entries.borrow();
        let wanted = entries
            .iter()
            .filter(|(_, entry)| entry.status.get().is_some_and(&is));
        wanted.map(|(uid, _)| uid.clone()).collect()
    }

    /// Stores a status, unless it says nothing new or is illegal.
    pub(super) fn set_status(&self, pod: &Pod, status: PodStatus, now: Wall) -> Update {
        self.change(&pod.metadata.uid, |entry| {
            entry.status.set(pod, status, now)
        })
    }

    /// Everything of the pod is cleaned up: stores its last status (SM-10, DEL-03).
    pub(super) fn finish_status(&self, pod: &Pod, now: Wall) -> Update {
        self.change(&pod.metadata.uid, |entry| entry.status.finish(pod, now))
    }

    /// Drops the status: a finished static pod is started again under its UID (CLEAN-09).
    pub(super) fn forget_status(&self, uid: &PodUid) {
        self.change(uid, |entry| entry.status = StatusCache::default());
    }

    /// Drops what is known of pods without a worker: since when they are starting, and the statuses that are not to be kept
    /// (CLEAN-04).
    pub(super) fn retain(
        &self,
        keeps_status: impl Fn(&PodUid) -> bool,
        has_worker: impl Fn(&PodUid) -> bool,
    ) {
        self.entries.borrow_mut().retain(|uid, entry| {
            let works = has_worker(uid);
            if !works {
                entry.starting = None;
            }
            if !works && !keeps_status(uid) {
                entry.status = StatusCache::default();
            }
            !entry.is_empty()
        });
    }

    /// A look at all of it: for the writer of statuses.
    pub(super) fn with_known<T>(&self, look: impl FnOnce(&Known<'_>) -> T) -> T {
        look(&Known {
            entries: &self.entries.borrow(),
            table: &self.table.borrow(),
        })
    }

    // Starts.

    /// The pod is new, and nothing of it runs: it is starting since `now`, if not since before.
    pub(super) fn note_created(&self, uid: &PodUid, now: Mono) {
        self.change(uid, |entry| _ = entry.starting.get_or_insert(now));
    }

    /// The pod runs for the first time, or never will. Returns since when it is known; `None` if it ran before.
    pub(super) fn take_start(&self, uid: &PodUid) -> Option<Mono> {
        self.change(uid, |entry| entry.starting.take())
    }

    /// Whether this agent has given the pod's cgroup its limits.
    pub(super) fn is_limited(&self, uid: &PodUid) -> bool {
        self.look(uid, |entry| entry.limited).unwrap_or(false)
    }

    /// The pod's cgroup has its limits, or has gone.
    pub(super) fn set_limited(&self, uid: &PodUid, limited: bool) {
        self.change(uid, |entry| entry.limited = limited);
    }

    /// A look at why containers did not start.
    pub(super) fn with_reasons<T>(&self, look: impl FnOnce(&ReasonCache) -> T) -> T {
        look(&self.reasons.borrow())
    }

    /// A container did not start.
    pub(super) fn start_failed(&self, uid: &PodUid, container: &str, reason: &str, message: &str) {
        let mut reasons = self.reasons.borrow_mut();
        reasons.failed(uid, container, reason, message);
    }

    /// A container started.
    pub(super) fn started(&self, uid: &PodUid, container: &str) {
        self.reasons.borrow_mut().started(uid, container);
    }

    /// Forgets why containers of the pod did not start.
    pub(super) fn forget_reasons(&self, uid: &PodUid) {
        self.reasons.borrow_mut().forget_pod(uid);
    }

    /// Grants a start, and has the next one wait longer, or says how long this one has to wait. `ended`: when the instance
    /// before it did.
    pub(super) fn grant_start(
        &self,
        pod: &Pod,
        container: &Container,
        ended: Option<Mono>,
        now: Mono,
    ) -> Result<(), CrashLoop> {
        let mut crash_loop = self.crash_loop.borrow_mut();
        backoff::grant_start(&mut crash_loop, pod, container, ended, now)
    }

    /// The crash-loop delays, to be kept for the next agent.
    pub(super) fn delays(&self) -> Vec<Record> {
        self.crash_loop.borrow().records().to_vec()
    }

    /// Takes over delays of an agent before this one.
    pub(super) fn restore_delays(&self, records: impl IntoIterator<Item = Record>, now: Mono) {
        self.crash_loop.borrow_mut().restore(records, now);
    }

    /// Drops delays that have run out.
    pub(super) fn sweep_delays(&self, now: Mono) {
        self.crash_loop.borrow_mut().sweep(now);
    }

    // Counts.

    /// Pod counters.
    pub(super) fn totals(&self) -> Totals {
        *self.totals.borrow()
    }

    /// Counts something.
    pub(super) fn count(&self, count: impl FnOnce(&mut Totals)) {
        count(&mut self.totals.borrow_mut());
    }

    /// Counts of pods, as of the last pass of housekeeping.
    pub(super) fn gauges(&self) -> Gauges {
        self.gauges.get()
    }

    /// Housekeeping has counted.
    pub(super) fn set_gauges(&self, gauges: Gauges) {
        self.gauges.set(gauges);
    }

    /// Whether records wait for a disk that cannot be written.
    pub(super) fn records_wait(&self) -> bool {
        self.records_wait.get()
    }

    /// Records wait for the disk, or no longer do.
    pub(super) fn set_records_wait(&self, wait: bool) {
        self.records_wait.set(wait);
    }
}

/// A look at what is known of pods.
pub(super) struct Known<'a> {
    entries: &'a BTreeMap<PodUid, PodEntry>,
    table: &'a PodTable,
}

impl<'a> Known<'a> {
    /// What the writer of statuses must know of a pod, by the agent's own UID.
    pub(super) fn truth(&self, uid: &PodUid) -> Option<Truth<'a>> {
        let status = &self.entries.get(uid)?.status;
        Some(Truth {
            status: status.get()?,
            version: status.version()?,
            finished: status.is_finished(),
            could_run: self.table.could_have_running_containers(uid),
        })
    }

    /// The first configured pod of a kind.
    pub(super) fn find(&self, is: impl Fn(&ConfigPod) -> bool) -> Option<&'a PodUid> {
        let mut all = self.entries.iter();
        all.find_map(|(uid, entry)| entry.config.as_ref().is_some_and(&is).then_some(uid))
    }
}
