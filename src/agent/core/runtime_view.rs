//! The agent's view of the runtime: its conditions, the pods of the last listing, and the age of both.
//!
//! Owns the relist's records and the cache of statuses (`logic::pleg`, `logic::runtime_cache`), the list of running pods and
//! the gate. The loop hands it what `relister` has read; everybody else asks. Bounded by what the runtime lists.

use alloc::rc::Rc;

use smol::channel::Sender;

use crate::{
    api::{
        ContainerId, MonoTime, ObjectMeta, PodUid, WallTime,
        cri::{
            ContainerState, ContainerStatus, PodItem, PodRuntimeStatus, RuntimeCondition,
            RuntimeStatus,
        },
    },
    logic::{
        clock_history::ClockHistory,
        loop_health::{RuntimeDown, RuntimeGate},
        pleg::{self, Pleg, RunningCounts},
        runtime_cache::{
            PodStatusResult, RunningPod, RunningPods, RuntimeCache, RuntimeReadTime,
            RuntimeStatusError,
        },
    },
};

/// See the module's words.
#[derive(Debug)]
pub(super) struct RuntimeView {
    pleg: Pleg,
    cache: RuntimeCache,
    running: RunningPods,
    gate: RuntimeGate,
    /// Asks for a relist that begins later than this; a full channel means one is asked for already.
    relist: Sender<MonoTime>,
}

/// All pods of the runtime.
pub(in crate::agent) struct RuntimeListing {
    /// Start of the listing: its content is at least that new.
    pub(in crate::agent) begun: MonoTime,
    /// Pods, in any order. `None`: they are as in the listing before, of which nothing had to be inspected.
    pub(in crate::agent) pods: Option<Vec<PodItem>>,
    /// Channel by which the loop names the pods to inspect, once. None: it took the listing as it is. Dropped: it took none.
    pub(in crate::agent) inspect: Sender<Vec<PodUid>>,
}

/// The pods that differed in a listing.
pub(in crate::agent) struct RuntimeInspection {
    /// Start of that listing.
    pub(in crate::agent) begun: MonoTime,
    /// Start of that listing by the wall clock.
    pub(in crate::agent) wall: WallTime,
    /// Status of each inspected pod, or the reason why it could not be read.
    pub(in crate::agent) statuses: Vec<(PodUid, Result<PodRuntimeStatus, RuntimeStatusError>)>,
}

/// Result of a listing.
#[derive(Debug)]
pub(super) enum ListingResult {
    /// These pods differ and are to be read, sorted by UID; never none.
    Differs(Vec<PodUid>),
    /// No pod has to be inspected; these events follow from the list alone.
    Complete(Vec<pleg::PlegEvent>),
}

impl RuntimeView {
    /// A runtime that was not asked yet. `relist` reaches the [`Relister`](crate::agent::relister::Relister).
    pub(super) fn new(relist: Sender<MonoTime>) -> Self {
        Self {
            pleg: Pleg::default(),
            cache: RuntimeCache::default(),
            running: RunningPods::default(),
            gate: RuntimeGate::default(),
            relist,
        }
    }

    /// Last status of a pod; empty if the runtime does not know it.
    pub(super) fn pod_status(&self, uid: &PodUid) -> PodStatusResult {
        self.cache.pod_status(uid)
    }

    /// Reason why the status of a pod could not be read, if it could not.
    pub(super) fn status_error(&self, uid: &PodUid) -> Option<Rc<str>> {
        self.cache.pod_status(uid).err().map(|why| why.0)
    }

    /// Last statuses, sorted by UID; pods whose status could not be read are left out.
    pub(super) fn pod_statuses(&self) -> Vec<Rc<PodRuntimeStatus>> {
        let read = |(_, status): (_, &PodStatusResult)| status.as_ref().ok().cloned();
        self.cache.iter().filter_map(read).collect()
    }

    /// End of a container's newest ended instance, for its back-off; `None` if none has ended.
    pub(super) fn last_container_end(
        &self,
        status: &PodRuntimeStatus,
        container: &str,
    ) -> Option<MonoTime> {
        self.cache.last_container_end(status, container)
    }

    /// UIDs of all pods that the runtime knows, sorted.
    pub(super) fn pod_uids(&self) -> Vec<PodUid> {
        self.cache.iter().map(|(uid, _)| uid.clone()).collect()
    }

    /// Other pods of this name that ran at the last relist, whenever that was.
    pub(super) fn namesakes<'a>(&'a self, pod: &'a ObjectMeta) -> impl Iterator<Item = &'a PodUid> {
        let all = self.running.last_listing().iter();
        let others = all.filter(|other| other.uid != pod.uid);
        others
            .filter(|other| *other.name == *pod.name && *other.namespace == *pod.namespace)
            .map(|other| &other.uid)
    }

    /// Returns true if a container runs, or may run: it could belong to a pod whose status cannot be read.
    pub(super) fn may_container_run(&self, id: &ContainerId) -> bool {
        let is = |c: &ContainerStatus| c.id == *id && c.state == ContainerState::Running;
        self.cache.iter().any(|(_, status)| match status {
            Ok(pod) => pod.containers.iter().any(is),
            Err(_) => true,
        })
    }

    /// Returns true after the first relist.
    pub(super) fn was_listed(&self) -> bool {
        self.cache.was_listed()
    }

    /// Returns true if a relist was taken in and no container of the pod runs. A pod with an error is not idle.
    pub(super) fn is_pod_idle(&self, uid: &PodUid) -> bool {
        self.cache.is_idle(uid)
    }

    /// The ages of statuses.
    pub(super) const fn status_ages(&self) -> &RuntimeCache {
        &self.cache
    }

    /// Pods that ran at the last relist; `None` if that is too long ago.
    pub(super) fn running_pods(&self, now: MonoTime) -> Option<Rc<[RunningPod]>> {
        self.running.fresh_listing(now)
    }

    /// Returns true if the last relist is young and showed no running container.
    pub(super) fn nothing_runs(&self, now: MonoTime) -> bool {
        self.running
            .fresh_listing(now)
            .is_some_and(|all| all.is_empty())
    }

    /// Counts of the last relist.
    pub(super) fn running_counts(&self) -> RunningCounts {
        self.pleg.running_counts()
    }

    /// Events that found no room, in all.
    pub(super) fn discarded_event_count(&self) -> u64 {
        self.pleg.discarded_events()
    }

    /// Start of the last successful relist.
    pub(super) fn last_relist(&self) -> Option<MonoTime> {
        self.pleg.last_relist_start()
    }

    /// Returns true if pods may be worked on: the runtime answers and relists succeed (LOOP-02, LOOP-03). A runtime
    /// that is
    /// not ready but can still stop its containers only prevents starts: [`RuntimeView::start_problem`].
    pub(super) fn may_run_pods(&self, now: MonoTime) -> bool {
        let pleg = self.pleg.check_health(now);
        self.gate.check_loop_may_run(pleg, now).is_ok()
    }

    /// Reason why no pod is worked on, if there is one.
    pub(super) fn down_reason(&self, now: MonoTime) -> Option<RuntimeDown> {
        let pleg = self.pleg.check_health(now);
        self.gate.check_runtime_ready(pleg, now).err()
    }

    /// Problems of the runtime that make the node not ready; empty if there are none.
    pub(super) fn ready_errors(&self, now: MonoTime) -> Vec<String> {
        let pleg = self.pleg.check_health(now);
        self.gate.ready_errors(pleg, now)
    }

    /// Reason why no container may start, if there is one.
    pub(super) fn start_problem(&self) -> Option<String> {
        self.gate.start_error().map(str::to_owned)
    }

    /// Reason why no pod gets a network, if there is one.
    pub(super) fn network_problem(&self) -> Option<String> {
        self.gate.network_error().map(str::to_owned)
    }

    /// Last readiness of the runtime and of its network; `None` if it is too old.
    pub(super) fn ready_conditions(&self, now: MonoTime) -> Option<(bool, bool)> {
        let status = self.gate.fresh_status(now)?;
        Some((status.runtime_ready.ok, status.network_ready.ok))
    }

    /// Returns true if the last successful relist is too long ago.
    pub(super) fn relists_fail(&self, now: MonoTime) -> bool {
        self.pleg.check_health(now).is_err()
    }

    /// Asks for a relist soon: something was changed at the runtime.
    pub(super) fn request_relist(&self) {
        // Full: one is on its way already.
        let _ = self.relist.try_send(MonoTime(0));
    }

    /// The runtime was listed.
    pub(super) fn take_listing(&mut self, listing: &RuntimeListing) -> ListingResult {
        let (pleg, cache) = (&mut self.pleg, &mut self.cache);
        let Some(pods) = &listing.pods else {
            self.running.confirm_listing(listing.begun);
            pleg.confirm_listing(listing.begun);
            cache.set_relist_time(listing.begun);
            return ListingResult::Complete(Vec::new());
        };
        self.running.set_listing(pods, listing.begun);
        let differs = pleg.record_listing(pods, cache, listing.begun);
        if !differs.is_empty() {
            return ListingResult::Differs(differs);
        }
        cache.set_relist_time(listing.begun);
        ListingResult::Complete(core::iter::from_fn(|| pleg.poll_event()).collect())
    }

    /// The pods that differed were read. Returns what happened, in order. What belongs to a listing before the last one is no
    /// news: those pods were named again.
    pub(super) fn take_inspection(
        &mut self,
        inspection: RuntimeInspection,
        clock: &ClockHistory,
        now: MonoTime,
    ) -> Vec<pleg::PlegEvent> {
        let (pleg, cache) = (&mut self.pleg, &mut self.cache);
        let RuntimeInspection {
            begun,
            wall,
            statuses,
        } = inspection;
        if pleg.last_relist_start() != Some(begun) {
            return Vec::new();
        }
        for (uid, status) in statuses {
            let seen = RuntimeReadTime {
                at: begun,
                wall,
                until: now,
                clock,
            };
            pleg.record_inspection(&uid, status, cache, seen);
        }
        cache.set_relist_time(begun);
        core::iter::from_fn(|| pleg.poll_event()).collect()
    }

    /// The clock is right for the first time: what was dated before it was moves.
    pub(super) fn correct_dates(&mut self, clock: &ClockHistory) {
        self.cache.correct_times(clock);
    }

    /// The runtime's conditions were read.
    pub(super) fn take_runtime_status(&mut self, status: RuntimeStatus, now: MonoTime) {
        log_condition_changes(self.gate.last_status(), &status);
        self.gate.on_status(status, now);
    }
}

/// Selects one of the runtime's conditions.
type ConditionSelector = fn(&RuntimeStatus) -> &RuntimeCondition;

/// Tells the log which conditions differ from those before.
fn log_condition_changes(before: Option<&RuntimeStatus>, status: &RuntimeStatus) {
    let pick: [(&str, ConditionSelector); 2] = [
        ("runtime", |s| &s.runtime_ready),
        ("network", |s| &s.network_ready),
    ];
    for (name, of) in pick {
        let now = of(status);
        let same = before.is_some_and(|b| of(b).ok == now.ok && of(b).message == now.message);
        match (same, now.ok) {
            (true, _) => {}
            (false, true) => log::info!("{name} is ready"),
            (false, false) => log::warn!("{name} is not ready: {}: {}", now.reason, now.message),
        }
    }
}
