//! Pod lifecycle event generator: what changed at the runtime between two relists.
//!
//! A relist is four steps of the caller, which alone talks to the runtime: take the time, list all pods,
//! hand the list to [`Pleg::record_listing`], read each pod that it names and hand that to
//! [`Pleg::record_inspection`], then close with [`RuntimeCache::set_relist_time`]. Relists never overlap. A listing
//! that fails is simply not handed over. Afterwards [`Pleg::poll_event`] yields what happened; the cache is by then
//! at least as new as the event.
//!
//! A container that is created and removed between two relists is invisible: exited containers must be kept for a
//! while. Names and rules follow kubelet `pleg/generic.go`.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::{cmp::Ordering, time::Duration};

use crate::api::order::OrderExt;
use crate::api::{
    MonoTime, PodUid,
    cri::{ContainerState, PodItem, PodRuntimeStatus, SandboxState},
};

use super::runtime_cache::{RuntimeCache, RuntimeReadTime, RuntimeStatusError};

/// A relist that began longer ago than this makes the PLEG unhealthy.
pub const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// Events that may wait. More are dropped and counted; their pods are synced at their next resync.
pub const MAX_EVENTS: usize = 1000;
/// Capacity of the event list that is kept for the next burst.
const KEPT_EVENTS: usize = 64;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlegEventKind {
    /// A container or sandbox runs.
    ContainerStarted,
    /// A container or sandbox ended.
    ContainerDied,
    /// The runtime has forgotten a container or sandbox.
    ContainerRemoved,
    /// The state of a container is not known. Never delivered, but the pod is read because of it.
    ContainerChanged,
    /// The pod was read again after a failure.
    PodSync,
}

/// Event of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlegEvent {
    /// Pod.
    pub uid: PodUid,
    /// Kind.
    pub kind: PlegEventKind,
    /// Container or sandbox; empty for [`PlegEventKind::PodSync`].
    pub id: Box<str>,
}

/// State of a container or sandbox as far as events depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PlegState {
    Running,
    Exited,
    Unknown,
    NonExistent,
}

/// Container or sandbox of a listing. Sorted by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlegItem {
    id: Box<str>,
    is_sandbox: bool,
    state: PlegState,
}

#[derive(Clone, Debug, Default)]
struct PlegRecord {
    /// As of the last successful inspection.
    old: Vec<PlegItem>,
    /// As of the last listing, where that differs from `old`.
    current: Option<Vec<PlegItem>>,
    reinspect: bool,
}

/// Reason why the PLEG is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlegUnhealthy {
    /// No relist has succeeded.
    #[error("pleg has yet to be successful")]
    Never,
    /// The last successful relist began that long ago.
    #[error("pleg was last seen active {} s ago, threshold is {} s", .0.as_secs(), RELIST_THRESHOLD.as_secs())]
    Late(Duration),
}

/// Sandboxes and containers that run or ran, for the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningCounts {
    /// Pods with at least one running sandbox.
    pub pods: usize,
    /// Containers that run.
    pub running: usize,
    /// Containers that ended.
    pub exited: usize,
    /// Containers created but not started, or lost track of.
    pub unknown: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Pleg {
    records: BTreeMap<PodUid, PlegRecord>,
    events: VecDeque<PlegEvent>,
    discarded: u64,
    /// Start of the last successful listing.
    relist_began: Option<MonoTime>,
}

impl Pleg {
    /// Takes a complete list of all pods, and names those that must be read.
    ///
    /// - Shape: `pods` in any order; the answer is sorted by UID.
    /// - Source: kubelet `pleg/generic.go`, `Relist`.
    pub fn record_listing(
        &mut self,
        pods: &[PodItem],
        cache: &mut RuntimeCache,
        stamp: MonoTime,
    ) -> Vec<PodUid> {
        self.relist_began = Some(stamp);
        let mut listed: Vec<&PodItem> = pods.iter().collect();
        listed.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
        let is_listed = |uid: &PodUid| listed.binary_search_by(|pod| pod.uid.cmp(uid)).is_ok();
        let known = self.records.keys();
        let gone: Vec<PodUid> = known.filter(|uid| !is_listed(uid)).cloned().collect();
        for uid in gone {
            let record = self.records.remove(&uid).unwrap_or_default();
            cache.forget_pod(&uid);
            self.push_changes(&uid, &record.old, &[]);
        }
        let mut inspect = Vec::new();
        for pod in listed {
            if self.note_listed_state(pod) {
                inspect.push(pod.uid.clone());
            }
        }
        inspect.dedup();
        inspect
    }

    /// Notes that a list that began at `stamp` would be the last one, of which nothing had to be read.
    pub const fn confirm_listing(&mut self, stamp: MonoTime) {
        self.relist_began = Some(stamp);
    }

    /// Takes the runtime's status of a pod that [`Pleg::record_listing`] named.
    pub fn record_inspection(
        &mut self,
        uid: &PodUid,
        status: Result<PodRuntimeStatus, RuntimeStatusError>,
        cache: &mut RuntimeCache,
        seen: RuntimeReadTime<'_>,
    ) {
        let Some(record) = self.records.get_mut(uid) else {
            return;
        };
        if status.is_err() {
            // The same differences come up again in the next relist.
            record.reinspect = true;
            cache.set_pod_status(uid, status, seen);
            return;
        }
        cache.set_pod_status(uid, status, seen);
        let reinspected = core::mem::take(&mut record.reinspect);
        let Some(current) = record.current.take() else {
            if reinspected {
                self.push_event(uid, PlegEventKind::PodSync, "");
            }
            return;
        };
        let old = core::mem::replace(&mut record.old, current.clone());
        self.push_changes(uid, &old, &current);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<PlegEvent> {
        let event = self.events.pop_front();
        if self.events.is_empty() && self.events.capacity() > KEPT_EVENTS {
            self.events.shrink_to(KEPT_EVENTS);
        }
        event
    }

    /// Events dropped because the list was full.
    #[must_use]
    pub const fn discarded_events(&self) -> u64 {
        self.discarded
    }

    /// Checks that relists succeed.
    ///
    /// - Errors: [`PlegUnhealthy`]; no pod is handled meanwhile.
    pub fn check_health(&self, now: MonoTime) -> Result<(), PlegUnhealthy> {
        let began = self.relist_began.ok_or(PlegUnhealthy::Never)?;
        let age = now - began;
        if age > RELIST_THRESHOLD {
            return Err(PlegUnhealthy::Late(age));
        }
        Ok(())
    }

    /// Start of the last successful listing.
    #[must_use]
    pub const fn last_relist_start(&self) -> Option<MonoTime> {
        self.relist_began
    }

    /// Counts of the last relist.
    #[must_use]
    pub fn running_counts(&self) -> RunningCounts {
        let mut counts = RunningCounts::default();
        for record in self.records.values() {
            let items = record.current.as_ref().unwrap_or(&record.old);
            let runs = |item: &PlegItem| item.is_sandbox && item.state == PlegState::Running;
            counts.pods += usize::from(items.iter().any(runs));
            for item in items.iter().filter(|item| !item.is_sandbox) {
                match item.state {
                    PlegState::Running => counts.running += 1,
                    PlegState::Exited => counts.exited += 1,
                    PlegState::Unknown | PlegState::NonExistent => counts.unknown += 1,
                }
            }
        }
        counts
    }

    /// Notes the listed state of a pod. Returns whether the pod must be read.
    fn note_listed_state(&mut self, pod: &PodItem) -> bool {
        let record = match self.records.get_mut(&pod.uid) {
            Some(record) => record,
            None => self.records.entry(pod.uid.clone()).or_default(),
        };
        // At rest all pods are as they were, at each look: nothing is built for them.
        record.current = (!is_as_before(&record.old, pod)).then(|| pleg_items(pod));
        record.reinspect || record.current.is_some()
    }

    fn push_changes(&mut self, uid: &PodUid, old: &[PlegItem], new: &[PlegItem]) {
        let mut happened = Vec::new();
        diff_items(old, new, |id, kind| {
            happened.push((Box::<str>::from(id), kind))
        });
        for (id, kind) in happened {
            self.push_event(uid, kind, &id);
        }
    }

    fn push_event(&mut self, uid: &PodUid, kind: PlegEventKind, id: &str) {
        if kind == PlegEventKind::ContainerChanged {
            return;
        }
        if self.events.len() >= MAX_EVENTS {
            self.discarded += 1;
            return;
        }
        self.events.push_back(PlegEvent {
            uid: uid.clone(),
            kind,
            id: id.into(),
        });
    }
}

/// Containers and sandboxes of a listed pod: id, whether it is a sandbox, state.
fn listed_items(pod: &PodItem) -> impl Iterator<Item = (&str, bool, PlegState)> {
    let containers = pod.containers.iter().map(|container| {
        let state = match container.state {
            ContainerState::Running => PlegState::Running,
            ContainerState::Exited => PlegState::Exited,
            ContainerState::Created | ContainerState::Unknown => PlegState::Unknown,
        };
        (container.id.as_str(), false, state)
    });
    let sandboxes = pod.sandboxes.iter().map(|sandbox| {
        let state = match sandbox.state {
            SandboxState::Ready => PlegState::Running,
            SandboxState::NotReady => PlegState::Exited,
        };
        (sandbox.id.as_str(), true, state)
    });
    containers.chain(sandboxes)
}

fn pleg_items(pod: &PodItem) -> Vec<PlegItem> {
    let items = listed_items(pod).map(|(id, is_sandbox, state)| PlegItem {
        id: id.into(),
        is_sandbox,
        state,
    });
    let mut items: Vec<PlegItem> = items.collect();
    items.stable_sort();
    items
}

/// Returns true if [`pleg_items`] would be `old`: no id is listed twice.
fn is_as_before(old: &[PlegItem], pod: &PodItem) -> bool {
    let is_old = |(id, is_sandbox, state): (&str, bool, PlegState)| {
        let found = old.binary_search_by(|item| item.id.as_ref().cmp(id));
        found.is_ok_and(|at| old[at].is_sandbox == is_sandbox && old[at].state == state)
    };
    old.len() == pod.containers.len() + pod.sandboxes.len() && listed_items(pod).all(is_old)
}

/// Walks two sorted lists of items and says what happened to each.
fn diff_items(old: &[PlegItem], new: &[PlegItem], mut tell: impl FnMut(&str, PlegEventKind)) {
    let (mut left, mut right) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => a.id.cmp(&b.id),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let before = if order.is_le() { left.next() } else { None };
        let after = if order.is_ge() { right.next() } else { None };
        let state =
            |item: Option<&PlegItem>| item.map_or(PlegState::NonExistent, |item| item.state);
        if let Some(item) = before.or(after) {
            for kind in events_of_change(state(before), state(after)) {
                tell(&item.id, *kind);
            }
        }
    }
}

/// Events of one container or sandbox whose state went from `old` to `new`.
const fn events_of_change(old: PlegState, new: PlegState) -> &'static [PlegEventKind] {
    use PlegEventKind::{
        ContainerChanged as Changed, ContainerDied as Died, ContainerRemoved as Removed,
        ContainerStarted as Started,
    };
    match (old, new) {
        (PlegState::Running, PlegState::Running)
        | (PlegState::Exited, PlegState::Exited)
        | (PlegState::Unknown, PlegState::Unknown)
        | (PlegState::NonExistent, PlegState::NonExistent) => &[],
        (_, PlegState::Running) => &[Started],
        (_, PlegState::Exited) => &[Died],
        (_, PlegState::Unknown) => &[Changed],
        (PlegState::Exited, PlegState::NonExistent) => &[Removed],
        (PlegState::Running | PlegState::Unknown, PlegState::NonExistent) => &[Died, Removed],
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};
    use core::slice;

    use super::*;
    use crate::api::{
        ContainerId, SandboxId, WallTime,
        cri::{ContainerStatus, NamespaceOptions, SandboxStatus},
    };
    use crate::clock_history::ClockHistory;
    use crate::pod_table::{StatusAge, StatusFreshness};

    use ContainerState::{Created, Exited, Running, Unknown};
    use PlegEventKind::{ContainerDied, ContainerRemoved, ContainerStarted, PodSync};

    fn container(id: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: ContainerId::new(id),
            sandbox: SandboxId::new("s"),
            name: "c".into(),
            restart_count: 0,
            state,
            created_at: WallTime(0),
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            volume_images: Vec::new(),
            mounts: Vec::new(),
            stop_signal: String::new(),
            hash: 0,
            user: None,
            pid: 0,
            log_path: String::new(),
        }
    }

    fn sandbox(id: &str, state: SandboxState) -> SandboxStatus {
        SandboxStatus {
            id: SandboxId::new(id),
            uid: "a".into(),
            name: String::new(),
            namespace: String::new(),
            attempt: 0,
            state,
            created_at: WallTime(0),
            ips: Vec::new(),
            namespaces: NamespaceOptions::default(),
            runtime_handler: String::new(),
        }
    }

    fn pod(containers: &[(&str, ContainerState)]) -> PodRuntimeStatus {
        PodRuntimeStatus {
            uid: "a".into(),
            containers: containers.iter().map(|(id, s)| container(id, *s)).collect(),
            ..PodRuntimeStatus::default()
        }
    }

    fn items_of(pods: &[PodRuntimeStatus]) -> Vec<PodItem> {
        pods.iter().map(PodItem::from).collect()
    }

    /// Clock history without any observation.
    const CLOCK: &ClockHistory = &ClockHistory::new();

    fn seen(at: MonoTime) -> RuntimeReadTime<'static> {
        RuntimeReadTime {
            at,
            wall: WallTime(0),
            until: at,
            clock: CLOCK,
        }
    }

    #[derive(Default)]
    struct Bench {
        pleg: Pleg,
        cache: RuntimeCache,
        now: u64,
    }

    impl Bench {
        /// Runs a whole relist. Each inspection returns the listed state, or fails.
        fn relist(&mut self, pods: &[PodRuntimeStatus], fail: bool) -> usize {
            self.now += 1000;
            let stamp = MonoTime(self.now);
            let inspect = self
                .pleg
                .record_listing(&items_of(pods), &mut self.cache, stamp);
            for uid in &inspect {
                let listed = pods.iter().find(|pod| pod.uid == *uid).cloned();
                let status = match fail {
                    true => Err(RuntimeStatusError("no answer".into())),
                    false => Ok(listed.expect("only listed pods are read")),
                };
                self.pleg
                    .record_inspection(uid, status, &mut self.cache, seen(stamp));
            }
            self.cache.set_relist_time(stamp);
            inspect.len()
        }

        fn events(&mut self) -> Vec<(PlegEventKind, Box<str>)> {
            let mut all = Vec::new();
            while let Some(event) = self.pleg.poll_event() {
                all.push((event.kind, event.id));
            }
            all
        }
    }

    #[test]
    fn event_table() {
        // PLEG-04 PLEG-05 PLEG-06
        let states = [Some(Running), Some(Exited), Some(Created), None];
        let expected: [[&[PlegEventKind]; 4]; 4] = [
            [
                &[],
                &[ContainerDied],
                &[],
                &[ContainerDied, ContainerRemoved],
            ],
            [&[ContainerStarted], &[], &[], &[ContainerRemoved]],
            [
                &[ContainerStarted],
                &[ContainerDied],
                &[],
                &[ContainerDied, ContainerRemoved],
            ],
            [&[ContainerStarted], &[ContainerDied], &[], &[]],
        ];
        // The second container keeps the pod listed.
        let with = |state: Option<ContainerState>| {
            let mut all = vec![("other", Exited)];
            all.extend(state.map(|state| ("x", state)));
            pod(&all)
        };
        for (old, row) in states.into_iter().zip(expected) {
            for (new, kinds) in states.into_iter().zip(row) {
                let mut bench = Bench::default();
                bench.relist(&[with(old)], false);
                bench.events();
                let inspected = bench.relist(&[with(new)], false);
                let events = bench.events();
                let seen: Vec<_> = events.iter().map(|(kind, _)| *kind).collect();
                assert_eq!(seen, kinds, "{old:?} to {new:?}");
                assert!(events.iter().all(|(_, id)| &**id == "x"));
                assert_eq!(
                    inspected,
                    usize::from(old != new),
                    "a change is read even if it is not delivered: {old:?} to {new:?}"
                );
            }
        }
        // Created and unknown are one state.
        let mut bench = Bench::default();
        bench.relist(&[pod(&[("x", Created)])], false);
        assert_eq!(bench.relist(&[pod(&[("x", Unknown)])], false), 0);
    }

    #[test]
    fn sandboxes_have_events_too() {
        // PLEG-04
        let mut bench = Bench::default();
        let mut one = pod(&[]);
        one.sandboxes = vec![sandbox("s", SandboxState::Ready)];
        bench.relist(&[one.clone()], false);
        assert_eq!(bench.events(), [(ContainerStarted, "s".into())]);
        one.sandboxes = vec![sandbox("s", SandboxState::NotReady)];
        bench.relist(&[one], false);
        assert_eq!(bench.events(), [(ContainerDied, "s".into())]);
    }

    #[test]
    fn the_time_is_that_before_listing() {
        // PLEG-03
        let mut bench = Bench::default();
        let pods = [pod(&[("x", Running)])];
        let stamp = MonoTime(100);
        let inspect = bench
            .pleg
            .record_listing(&items_of(&pods), &mut bench.cache, stamp);
        assert_eq!(bench.pleg.relist_began, Some(MonoTime(100)));
        let unknown: PodUid = "b".into();
        assert_eq!(
            bench.cache.compare_status_age(&unknown, MonoTime(0)),
            StatusFreshness::Stale,
            "not before all pods are done"
        );
        for uid in inspect {
            let failed = Err(RuntimeStatusError("no answer".into()));
            bench
                .pleg
                .record_inspection(&uid, failed, &mut bench.cache, seen(stamp));
        }
        bench.cache.set_relist_time(stamp);
        assert_eq!(
            bench.cache.compare_status_age(&unknown, MonoTime(99)),
            StatusFreshness::Fresh
        );
        assert_eq!(
            bench.cache.compare_status_age(&unknown, MonoTime(100)),
            StatusFreshness::Stale
        );
    }

    #[test]
    fn only_changed_pods_are_read_and_the_cache_comes_first() {
        // PLEG-07
        let mut bench = Bench::default();
        let mut other = pod(&[("y", Running)]);
        other.uid = "b".into();
        assert_eq!(
            bench.relist(&[pod(&[("x", Running)]), other.clone()], false),
            2
        );
        assert_eq!(
            bench.relist(&[pod(&[("x", Running)]), other.clone()], false),
            0
        );
        bench.events();
        let pods = [pod(&[("x", Exited)]), other];
        let stamp = MonoTime(9000);
        assert_eq!(
            bench
                .pleg
                .record_listing(&items_of(&pods), &mut bench.cache, stamp),
            ["a".into()]
        );
        assert_eq!(bench.events(), [], "not before the pod was read");
        let read = Ok(pods[0].clone());
        bench
            .pleg
            .record_inspection(&"a".into(), read, &mut bench.cache, seen(stamp));
        let cached = bench.cache.pod_status(&"a".into()).expect("status");
        assert_eq!(cached.containers[0].state, Exited);
        assert_eq!(bench.events(), [(ContainerDied, "x".into())]);
    }

    #[test]
    fn a_failed_inspection_is_repeated() {
        // PLEG-08 PLEG-09
        let mut bench = Bench::default();
        let (up, down) = (pod(&[("x", Running)]), pod(&[("x", Exited)]));
        bench.relist(slice::from_ref(&up), false);
        bench.events();
        assert_eq!(bench.relist(slice::from_ref(&down), true), 1);
        assert_eq!(bench.events(), [], "withheld");
        assert!(
            bench.cache.pod_status(&"a".into()).is_err(),
            "waiters get the error"
        );
        assert_eq!(bench.relist(&[down], false), 1);
        assert_eq!(bench.events(), [(ContainerDied, "x".into())]);

        // The container is back in its old state: no event of it, but the pod was flagged.
        let mut bench = Bench::default();
        bench.relist(slice::from_ref(&up), false);
        bench.events();
        bench.relist(&[pod(&[("x", Exited)])], true);
        assert_eq!(bench.relist(slice::from_ref(&up), false), 1);
        assert_eq!(bench.events(), [(PodSync, "".into())]);
        assert_eq!(bench.relist(&[up], false), 0, "once");
    }

    #[test]
    fn a_pod_that_is_gone() {
        // PLEG-10
        let mut bench = Bench::default();
        bench.relist(&[pod(&[("x", Running)])], false);
        bench.events();
        assert_eq!(bench.relist(&[], false), 0, "there is nothing to read");
        assert_eq!(
            bench.events(),
            [(ContainerDied, "x".into()), (ContainerRemoved, "x".into())]
        );
        assert_eq!(bench.cache.iter().count(), 0);
        assert!(bench.pleg.records.is_empty());
    }

    #[test]
    fn events_are_bounded() {
        // PLEG-12
        let mut bench = Bench::default();
        let ids: Vec<String> = (0..MAX_EVENTS + 5).map(|n| format!("c{n:05}")).collect();
        let all: Vec<_> = ids.iter().map(|id| (id.as_str(), Running)).collect();
        bench.relist(&[pod(&all)], false);
        assert_eq!(bench.pleg.discarded_events(), 5);
        assert_eq!(bench.events().len(), MAX_EVENTS);
        assert_eq!(bench.relist(&[pod(&all)], false), 0, "relists go on");
        assert!(bench.pleg.events.capacity() <= KEPT_EVENTS * 2);
    }

    #[test]
    fn tombstones_make_short_lives_visible() {
        // PLEG-13
        let mut bench = Bench::default();
        bench.relist(&[], false);
        bench.relist(&[pod(&[("x", Exited)])], false);
        assert_eq!(bench.events(), [(ContainerDied, "x".into())]);
    }

    #[test]
    fn health() {
        // PLEG-14
        let mut bench = Bench::default();
        assert_eq!(
            bench.pleg.check_health(MonoTime(1)),
            Err(PlegUnhealthy::Never)
        );
        bench.relist(&[], false);
        assert_eq!(bench.pleg.check_health(MonoTime(181_000)), Ok(()));
        let late = PlegUnhealthy::Late(Duration::from_millis(180_001));
        assert_eq!(bench.pleg.check_health(MonoTime(181_001)), Err(late));
        assert_eq!(
            late.to_string(),
            "pleg was last seen active 180 s ago, threshold is 180 s"
        );
    }

    #[test]
    fn gauges() {
        // PLEG-17
        let mut bench = Bench::default();
        let mut one = pod(&[("x", Running), ("y", Exited), ("z", Created)]);
        one.sandboxes = vec![sandbox("s", SandboxState::Ready)];
        bench.relist(&[one], false);
        assert_eq!(
            bench.pleg.running_counts(),
            RunningCounts {
                pods: 1,
                running: 1,
                exited: 1,
                unknown: 1
            }
        );
    }
}
