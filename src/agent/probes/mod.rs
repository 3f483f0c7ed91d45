//! Probes: one task drives all probes of the node by their timetable, and each probe that is due is a task of its own
//! for as long as it takes. Rows PROBE-01 to PROBE-24, EVT-17, EVT-18.
//!
//! | module | content |
//! |---|---|
//! | [`action`] | actions of probes, made from a spec |
//! | [`driver`] | the task that drives all of them, and what it needs |
//! | [`ask`] | a probe at work, its repeats and its events |
//! | [`limits`] | time limits of probes that are under way |
//! | [`passed`] | started and ready containers, for the next agent |
//!
//! [`crate::logic::probe`] decides when a probe is due and what its outcome means. Workers are made by a pod's sync and
//! go with its end. No probe has a thread, and none holds up another: only commands in containers take turns, for each
//! costs a run of the OCI runtime. A pod has only some of these turns, so that its slow commands are in its own way
//! first. A probe that has to wait puts its own next one off, so that a machine that is behind gets no further behind;
//! [`NodeProbes::node_figures`] says how many did.

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

/// Commands in containers that run at a time. Each start takes a core for about 14 ms; more only wait for one another, fewer
/// would let slow commands keep quick ones waiting.
const MAX_COMMANDS: usize = 8;
/// Commands of one pod that run at a time.
const MAX_COMMANDS_OF_POD: usize = 2;
/// Connections of probes that are open at a time. Far more than are ever late; the rest wait.
const MAX_CONNECTIONS: usize = 256;
/// Connections of one pod's probes that are open at a time.
const MAX_CONNECTIONS_OF_POD: usize = 32;
/// An answer on its way.
pub(super) type ProbeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The seam to the network: the simulator has one of its own.
pub(super) trait ProbeNetwork {
    /// [`Prober::send_probe`].
    fn send_probe<'a>(
        &'a self,
        action: &'a crate::probe::ProbeAction,
        ip: Option<IpAddr>,
        limit: Duration,
        late: TimerFuture,
    ) -> ProbeFuture<'a, ProbeAnswer>;
    /// [`crate::probe::http::run_http_hook`].
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
        late: TimerFuture,
    ) -> ProbeFuture<'a, ProbeAnswer> {
        Box::pin(Self::run_probe(self, action, ip, limit, late))
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
    /// Instance, as the API names it.
    pub(super) container_id: Box<str>,
    /// Kind of the probe.
    pub(super) kind: ProbeKind,
    /// Result.
    pub(super) result: ProbeResult,
}

/// Action of a probe, and the bounds for it.
struct ProbeJob {
    action: PodProbeAction,
    /// Places of the pod.
    turns: ProbeSlots,
    /// Set if the pod is in the host's network.
    in_host: bool,
}

/// Places for probes that are under way.
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

/// The probes of this node: their workers, and the places that bound how many are under way. At most three workers a container
/// of each pod. A pod's sync makes them, its end takes them away; [`ProbeDriver`] drives them.
pub(super) struct NodeProbes {
    workers: RefCell<ProbeWorkers<Rc<ProbeJob>>>,
    limits: Rc<ProbeDeadlines>,
    turns: ProbeSlots,
    late: Cell<u64>,
    seed: Cell<u64>,
}

impl NodeProbes {
    /// Makes the probes of a node, none yet.
    pub(super) fn new(now: MonoTime, wall: WallTime) -> Self {
        Self {
            workers: RefCell::new(ProbeWorkers::new(now)),
            limits: Rc::default(),
            turns: ProbeSlots::new(MAX_COMMANDS, MAX_CONNECTIONS),
            late: Cell::new(0),
            // Spreads load; no secret.
            seed: Cell::new(now.0 ^ wall.0.unsigned_abs()),
        }
    }

    /// Makes the workers that a pod does not have yet (SYNC-12). Returns whether some were made.
    pub(super) fn add_workers(&self, pod: &Pod, now: MonoTime) -> bool {
        let turns = OnceCell::new();
        let turns =
            || turns.get_or_init(|| ProbeSlots::new(MAX_COMMANDS_OF_POD, MAX_CONNECTIONS_OF_POD));
        let job = |container: &crate::api::Container, kind| {
            Rc::new(ProbeJob {
                action: action::for_container(container, kind),
                turns: turns().clone(),
                in_host: pod.spec.host_network,
            })
        };
        let below = |n: u64| self.next_random() % n.max(1);
        let is_new = self
            .workers
            .borrow_mut()
            .add_pod_workers(pod, now, job, below);
        self.wake_driver();
        is_new
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

    /// Calls `read` with the probes' results of a pod.
    pub(super) fn with_pod_results<T>(
        &self,
        uid: &PodUid,
        read: impl FnOnce(&dyn crate::logic::probe::ProbeResults) -> T,
    ) -> T {
        read(&self.workers.borrow().pod_results(uid))
    }

    /// Takes note of a generated status: containers that are started and not known to be ready are probed at once
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

    /// Counts of all probes (MET-09). `name_of` says namespace and name of a pod; pods that it does not know are left
    /// out.
    ///
    /// - Shape: at most three a container of each pod.
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

    /// Has the driver look again if something is due sooner than it waits for.
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
    //! Looks for tests.
    impl super::NodeProbes {
        /// Workers there are.
        pub(in crate::agent) fn worker_count(&self) -> usize {
            self.workers.borrow().iter().count()
        }
    }
}
