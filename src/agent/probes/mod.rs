//! Probes. One task drives all probes of the node by their timetable. Each probe that is due runs in a task of its own.
//! Rows PROBE-01 to PROBE-24, EVT-17, EVT-18.
//!
//! | module | content |
//! |---|---|
//! | [`action`] | actions of probes, made from a spec |
//! | [`driver`] | the task that drives all probes, and what it needs |
//! | [`ask`] | one run of a probe: its attempts, its result and its event |
//! | [`limits`] | time limits of running probes |
//! | [`passed`] | started and ready containers, for the next agent |
//!
//! [`crate::logic::probe`] decides when a probe is due and what its outcome means. A pod's sync makes its workers, and
//! the end of the pod removes them. No probe has a thread. Probes do not delay one another, except for commands in
//! containers. These share a small number of slots, because each command costs a run of the OCI runtime. A pod can take
//! only some of these slots, so its slow commands delay its own probes first. If a probe has to wait for a slot, its
//! next run is postponed as well, so that a slow machine does not fall further behind. [`NodeProbes::node_figures`]
//! counts the probes that began late.

mod action;
mod ask;
mod driver;
mod limits;
mod passed;

use alloc::rc::Rc;
use core::{
    cell::{Cell, OnceCell, RefCell},
    future::Future,
    net::IpAddr,
    pin::Pin,
    time::Duration,
};

use smol::lock::Semaphore;

pub(super) use action::{PodProbeAction, parse_http_get};
pub(super) use driver::{ProbeDriver, ProbedContainerStatus};

use limits::ProbeDeadlines;

use super::clock::TimerFuture;
use crate::{
    api::{MonoTime, Pod, PodStatus, PodUid, WallTime},
    logic::probe::{
        NodeProbeFigures, ProbeFigures, ProbeKind, ProbeResult, ProbeWorkerEntry, ProbeWorkers,
        WorkersToKeep,
    },
    probe::{HttpGet, ProbeAnswer, Prober, UnansweredRequest, http::HookOutcome},
};

/// Commands in containers that run at a time. Each start takes a core for about 14 ms. With a higher limit the commands
/// would only wait for one another. With a lower one slow commands would delay quick ones.
const MAX_COMMANDS: usize = 8;
/// Commands of one pod that run at a time.
const MAX_COMMANDS_OF_POD: usize = 2;
/// Connections of probes that are open at a time. The limit is far above the number that is ever slow at once. Further
/// probes wait.
const MAX_CONNECTIONS: usize = 256;
/// Connections of one pod's probes that are open at a time.
const MAX_CONNECTIONS_OF_POD: usize = 32;
/// Future of an answer.
pub(super) type ProbeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Network over which probes and hooks ask. The simulator has its own implementation.
pub(super) trait ProbeNetwork {
    /// See [`Prober::run_probe`].
    fn send_probe<'a>(
        &'a self,
        action: &'a crate::probe::ProbeAction,
        ip: Option<IpAddr>,
        limit: Duration,
        deadline: TimerFuture,
    ) -> ProbeFuture<'a, ProbeAnswer>;
    /// See [`crate::probe::http::run_http_hook`].
    fn call_hook<'a>(
        &'a self,
        get: &'a HttpGet,
        ip: Option<IpAddr>,
    ) -> ProbeFuture<'a, Result<HookOutcome, UnansweredRequest>>;
}

impl ProbeNetwork for Prober {
    fn send_probe<'a>(
        &'a self,
        action: &'a crate::probe::ProbeAction,
        ip: Option<IpAddr>,
        limit: Duration,
        deadline: TimerFuture,
    ) -> ProbeFuture<'a, ProbeAnswer> {
        Box::pin(Self::run_probe(self, action, ip, limit, deadline))
    }

    fn call_hook<'a>(
        &'a self,
        get: &'a HttpGet,
        ip: Option<IpAddr>,
    ) -> ProbeFuture<'a, Result<HookOutcome, UnansweredRequest>> {
        Box::pin(crate::probe::http::run_http_hook(self, get, ip))
    }
}

/// A decisive result that the status does not show yet.
#[derive(Clone, Debug)]
pub(super) struct UnshownProbeResult {
    /// Pod.
    pub(super) uid: PodUid,
    /// Id of the instance, as the API writes it.
    pub(super) container_id: Box<str>,
    /// Kind of the probe.
    pub(super) kind: ProbeKind,
    /// Result.
    pub(super) result: ProbeResult,
}

/// Action of a probe, and the slots that it may use.
struct ProbeJob {
    action: PodProbeAction,
    /// Slots of the pod.
    turns: ProbeSlots,
    /// Set if the pod is in the host's network.
    in_host: bool,
}

/// Slots for running probes: each holds one while it runs.
#[derive(Clone)]
struct ProbeSlots {
    commands: Rc<Semaphore>,
    connections: Rc<Semaphore>,
}

impl ProbeSlots {
    fn new(commands: usize, connections: usize) -> Self {
        Self {
            commands: Rc::new(Semaphore::new(commands)),
            connections: Rc::new(Semaphore::new(connections)),
        }
    }
}

/// The probes of this node: their workers, and the slots that limit how many run at a time. At most three workers for
/// each container of a pod. A pod's sync makes the workers, and its end removes them. [`ProbeDriver`] drives them.
pub(super) struct NodeProbes {
    workers: RefCell<ProbeWorkers<Rc<ProbeJob>>>,
    limits: Rc<ProbeDeadlines>,
    turns: ProbeSlots,
    /// Number of probes that began more than a period late.
    late: Cell<u64>,
    seed: Cell<u64>,
}

impl NodeProbes {
    /// Starts without probes.
    pub(super) fn new(now: MonoTime, wall: WallTime) -> Self {
        Self {
            workers: RefCell::new(ProbeWorkers::new(now)),
            limits: Rc::default(),
            turns: ProbeSlots::new(MAX_COMMANDS, MAX_CONNECTIONS),
            late: Cell::new(0),
            // The numbers only spread load, so the seed need not be secret.
            seed: Cell::new(now.0 ^ wall.0.unsigned_abs()),
        }
    }

    /// Makes the workers that a pod does not have yet (SYNC-12). Returns whether some were made.
    pub(super) fn add_workers(&self, pod: &Pod, now: MonoTime) -> bool {
        let cell = OnceCell::new();
        let pod_slots =
            || cell.get_or_init(|| ProbeSlots::new(MAX_COMMANDS_OF_POD, MAX_CONNECTIONS_OF_POD));
        let job = |container: &crate::api::Container, kind| {
            Rc::new(ProbeJob {
                action: action::for_container(container, kind),
                turns: pod_slots().clone(),
                in_host: pod.spec.host_network,
            })
        };
        let random_below = |n: u64| self.next_random() % n.max(1);
        let has_new = self
            .workers
            .borrow_mut()
            .add_pod_workers(pod, now, job, random_below);
        self.wake_driver();
        has_new
    }

    /// Notes that the containers of a pod are being stopped: only its readiness goes on, and the probes of sidecars
    /// (SYNC-20).
    pub(super) fn note_pod_stopping(&self, uid: &PodUid) {
        self.workers
            .borrow_mut()
            .stop_pod_workers(uid, WorkersToKeep::WhileStopping);
    }

    /// Removes the workers of a pod without running containers (SYNC-22).
    pub(super) fn remove_workers(&self, uid: &PodUid) {
        self.workers
            .borrow_mut()
            .stop_pod_workers(uid, WorkersToKeep::None);
    }

    /// Drops the workers of pods that have no containers (CLEAN-03).
    pub(super) fn retain_workers(&self, is_kept: impl Fn(&PodUid) -> bool, now: MonoTime) {
        self.workers.borrow_mut().retain(is_kept, now);
    }

    /// Calls `read` with the results of a pod's probes.
    pub(super) fn with_pod_results<T>(
        &self,
        uid: &PodUid,
        read: impl FnOnce(&dyn crate::logic::probe::ProbeResults) -> T,
    ) -> T {
        read(&self.workers.borrow().pod_results(uid))
    }

    /// Takes note of a generated status. Its containers that are started and not known to be ready are probed at once
    /// (PROBE-13).
    pub(super) fn note_status_generated(&self, uid: &PodUid, status: &PodStatus, now: MonoTime) {
        if self
            .workers
            .borrow_mut()
            .trigger_readiness(uid, status, now)
        {
            self.wake_driver();
        }
    }

    /// Counts of all probes (MET-09). `name_of` returns the namespace and name of a pod. Pods that it does not know are
    /// left out.
    ///
    /// - Shape: at most three for each container of a pod.
    pub(super) fn node_figures(
        &self,
        name_of: impl Fn(&PodUid) -> Option<(Box<str>, Box<str>)>,
    ) -> NodeProbeFigures {
        let workers = self.workers.borrow();
        let figures = |(uid, entry): (&PodUid, &ProbeWorkerEntry<Rc<ProbeJob>>)| {
            let (namespace, pod) = name_of(uid)?;
            Some(ProbeFigures {
                namespace,
                pod,
                uid: uid.clone(),
                container: entry.container.clone(),
                kind: entry.worker.settings().kind,
                counts: entry.worker.counts(),
                took: entry.took.clone(),
            })
        };
        NodeProbeFigures {
            probes: workers.iter().filter_map(figures).collect(),
            late: self.late.get(),
            commands: MAX_COMMANDS.saturating_sub(self.turns.commands.available_permits()),
            connections: MAX_CONNECTIONS.saturating_sub(self.turns.connections.available_permits()),
        }
    }

    /// Wakes the driver if a probe is due before the end of the driver's pause.
    fn wake_driver(&self) {
        if let Some(due) = self.workers.borrow().next_due() {
            self.limits.rest.end_if_before(due);
        }
    }

    /// SplitMix64.
    fn next_random(&self) -> u64 {
        let seed = self.seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed.set(seed);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod testing {
    //! Access for tests.
    impl super::NodeProbes {
        /// Number of workers.
        pub(in crate::agent) fn worker_count(&self) -> usize {
            self.workers.borrow().iter().count()
        }
    }
}
