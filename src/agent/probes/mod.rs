//! Probes: one task drives all of the node by their timetable, and each that is due is a task of its own for as long as it
//! takes. Rows PROBE-01 to PROBE-24, EVT-17, EVT-18.
//!
//! | module | what it is |
//! |---|---|
//! | [`action`] | from a spec to what is done |
//! | [`ask`] | one probe, its repeats and its events |
//! | [`limits`] | how long those that are under way may take |
//! | [`passed`] | what is ready, for the agent after this one |
//!
//! When one is due and what its outcome means is decided by [`crate::logic::probe`]. Workers are made by a pod's sync and go
//! with its end. No probe has a thread, and none holds up another: only commands in containers take turns, for each costs a
//! run of the OCI runtime, and a pod has no more of these turns than some, so that slow ones are in the way of their own pod
//! first. One that has to wait puts its own next off, so that a machine that is behind gets no further behind;
//! [`NodeProbes::figures`] says how many did.

mod action;
mod ask;
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

use smol::{LocalExecutor, channel::Sender, future::FutureExt as _, lock::Semaphore};

pub(super) use action::{Action, http_get};
pub(super) use passed::recall;

use limits::Limits;

use super::{
    clock::Alarm,
    core::Event,
    ctx::{Ctx, Shared},
};
use crate::{
    api::{ContainerId, Mono, Pod, PodStatus, PodUid, Wall},
    logic::{
        pod_table::PodTable,
        probe::{
            Entry, Kept, Key, NodeFigures, ProbeFigures, ProbeKind, ProbeResult, Seen,
            SeenContainer, SeenState, Step, Workers, workers::bare,
        },
        restart,
    },
    probe::{Answer, HttpGet, Prober, http::Hooked},
};

/// Commands in containers that run at a time. Each start takes a core for about 14 ms; more only wait for one another, fewer
/// would let slow commands keep quick ones waiting.
const MAX_COMMANDS: usize = 8;
/// The same of one pod.
const MAX_COMMANDS_OF_POD: usize = 2;
/// Connections of probes that are open at a time. Far more than are ever late; the rest wait.
const MAX_CONNECTIONS: usize = 256;
/// The same of one pod.
const MAX_CONNECTIONS_OF_POD: usize = 32;
/// Probes may come so much early: those that are due at nearly the same time share a wake-up, and find the code they run in
/// the processor's caches. A tenth of the shortest period.
const SLACK: Duration = Duration::from_millis(100);

/// An answer on its way.
pub(super) type Asked<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The seam to the network: the simulator has one of its own.
pub(super) trait Wire {
    /// [`Prober::ask`].
    fn ask<'a>(
        &'a self,
        action: &'a crate::probe::Action,
        ip: Option<IpAddr>,
        limit: Duration,
        late: Alarm,
    ) -> Asked<'a, Answer>;
    /// [`crate::probe::http::hook`].
    fn hook<'a>(
        &'a self,
        get: &'a HttpGet,
        ip: Option<IpAddr>,
    ) -> Asked<'a, Result<Hooked, String>>;
}

impl Wire for Prober {
    fn ask<'a>(
        &'a self,
        action: &'a crate::probe::Action,
        ip: Option<IpAddr>,
        limit: Duration,
        late: Alarm,
    ) -> Asked<'a, Answer> {
        Box::pin(Self::ask(self, action, ip, limit, late))
    }

    fn hook<'a>(
        &'a self,
        get: &'a HttpGet,
        ip: Option<IpAddr>,
    ) -> Asked<'a, Result<Hooked, String>> {
        Box::pin(crate::probe::http::hook(self, get, ip))
    }
}

/// A decisive result that the status does not show yet.
#[derive(Clone, Debug)]
pub(super) struct Probed {
    /// Pod.
    pub(super) uid: PodUid,
    /// Instance, as the API names it.
    pub(super) container_id: Box<str>,
    /// Which probe.
    pub(super) kind: ProbeKind,
    /// Result.
    pub(super) result: ProbeResult,
}

/// What a probe does, and within which bounds.
struct Deed {
    action: Action,
    /// Those of the pod.
    turns: Turns,
}

/// Places for probes that are under way.
#[derive(Clone)]
struct Turns {
    commands: Rc<Semaphore>,
    connections: Rc<Semaphore>,
}

impl Turns {
    fn new(commands: usize, connections: usize) -> Self {
        Self {
            commands: Rc::new(Semaphore::new(commands)),
            connections: Rc::new(Semaphore::new(connections)),
        }
    }
}

/// The probes of this node.
pub(super) struct NodeProbes {
    workers: RefCell<Workers<Rc<Deed>>>,
    limits: Rc<Limits>,
    pub(super) wire: Box<dyn Wire>,
    turns: Turns,
    late: Cell<u64>,
    seed: Cell<u64>,
}

impl NodeProbes {
    /// None yet.
    pub(super) fn new(wire: Box<dyn Wire>, now: Mono, wall: Wall) -> Self {
        Self {
            workers: RefCell::new(Workers::new(now, wall)),
            limits: Rc::default(),
            wire,
            turns: Turns::new(MAX_COMMANDS, MAX_CONNECTIONS),
            late: Cell::new(0),
            // Spreads load; no secret.
            seed: Cell::new(now.0 ^ wall.0.unsigned_abs()),
        }
    }

    /// Makes the workers of a pod, unless it has some (SYNC-12).
    pub(super) fn add(&self, pod: &Pod, now: Mono) {
        let turns = OnceCell::new();
        let turns =
            || turns.get_or_init(|| Turns::new(MAX_COMMANDS_OF_POD, MAX_CONNECTIONS_OF_POD));
        let deed = |container: &crate::api::Container, kind| {
            Rc::new(Deed {
                action: action::of(container, kind),
                turns: turns().clone(),
            })
        };
        let below = |n: u64| self.random() % n.max(1);
        self.workers.borrow_mut().add(pod, now, deed, below);
        self.wake();
    }

    /// The containers of a pod are being stopped: only its readiness goes on, and what sidecars have (SYNC-20).
    pub(super) fn stopping(&self, uid: &PodUid) {
        self.workers.borrow_mut().stop(uid, Kept::WhileStopping);
    }

    /// Nothing of the pod runs any more (SYNC-22).
    pub(super) fn remove(&self, uid: &PodUid) {
        self.workers.borrow_mut().stop(uid, Kept::None);
    }

    /// Drops those of pods that have no containers (CLEAN-03).
    pub(super) fn retain(&self, is_kept: impl Fn(&PodUid) -> bool, now: Mono) {
        self.workers.borrow_mut().retain(is_kept, now);
    }

    /// Calls `read` with what is known of a pod.
    pub(super) fn with<T>(
        &self,
        uid: &PodUid,
        read: impl FnOnce(&dyn crate::logic::probe::Probes) -> T,
    ) -> T {
        read(&self.workers.borrow().of(uid))
    }

    /// A status was generated: what is started and not known to be ready is probed at once (PROBE-13).
    pub(super) fn generated(&self, uid: &PodUid, status: &PodStatus, now: Mono) {
        if self.workers.borrow_mut().trigger(uid, status, now) {
            self.wake();
        }
    }

    /// What is counted of all probes (MET-09). Pods that `identity` does not know are left out.
    ///
    /// - Shape: at most three a container of each pod.
    pub(super) fn figures(&self, table: &PodTable) -> NodeFigures {
        let workers = self.workers.borrow();
        let figures = |(uid, entry): (&PodUid, &Entry<Rc<Deed>>)| {
            let pod = table.identity(table.handle(uid)?)?;
            Some(ProbeFigures {
                namespace: pod.namespace.into(),
                pod: pod.name.into(),
                uid: uid.clone(),
                container: entry.container.clone(),
                kind: entry.worker.settings().kind,
                counts: entry.worker.counts(),
                took: entry.took.clone(),
            })
        };
        NodeFigures {
            probes: workers.iter().filter_map(figures).collect(),
            late: self.late.get(),
            commands: MAX_COMMANDS.saturating_sub(self.turns.commands.available_permits()),
            connections: MAX_CONNECTIONS.saturating_sub(self.turns.connections.available_permits()),
        }
    }

    /// Workers there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.workers.borrow().len()
    }

    /// Has the driver look again if something is due sooner than it waits for.
    fn wake(&self) {
        if let Some(due) = self.workers.borrow().next_due() {
            self.limits.rest.sooner(due);
        }
    }

    /// SplitMix64.
    fn random(&self) -> u64 {
        let seed = self.seed.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed.set(seed);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Drives the probes of this node for the life of the agent.
pub(super) async fn run(ctx: Shared, executor: Rc<LocalExecutor<'static>>, events: Sender<Event>) {
    let probes = &ctx.probes;
    loop {
        probes.limits.rest.end();
        let now = ctx.clock.now();
        probes.limits.pass(now);
        // Not borrowed while a probe is made.
        let next = || probes.workers.borrow_mut().poll_due(now + SLACK);
        while let Some(key) = next() {
            let (step, probed) = pass(&ctx, key, now);
            if step == Step::Ask {
                match ask::Target::of(&ctx, key) {
                    Some(target) => {
                        let (ctx, events) = (Rc::clone(&ctx), events.clone());
                        let task = async move { ask::run(&ctx, key, target, &events).await };
                        executor.spawn(task).detach();
                    }
                    None => _ = probes.workers.borrow_mut().outcome(key, "", None, now),
                }
            }
            if let Some(probed) = probed
                && events.send(Event::Probed(probed)).await.is_err()
            {
                return;
            }
        }
        let due = probes.workers.borrow().next_due();
        let due = due.into_iter().chain(probes.limits.next()).min();
        let due = due.unwrap_or(Mono(u64::MAX));
        probes.limits.rest.until(due).or(ctx.clock.until(due)).await;
    }
}

/// One pass of a worker, by the status that is stored.
fn pass(ctx: &Ctx, key: Key, now: Mono) -> (Step, Option<Probed>) {
    let mut workers = ctx.probes.workers.borrow_mut();
    let Some((uid, entry)) = workers.entry(key) else {
        return (Step::End, None);
    };
    let (uid, kind) = (uid.clone(), entry.worker.settings().kind);
    let name = entry.container.clone();
    let status = ctx.pods.status(&uid);
    let status = status.as_ref();
    let container = status.and_then(|s| container_status(s, &name));
    let wall = ctx.clock.wall();
    let seen = Seen {
        ended: status.is_some_and(|s| s.phase.is_terminal()),
        container: container.map(|c| SeenContainer {
            id: bare(&c.container_id),
            state: match (&c.state.running, &c.state.terminated) {
                (Some(running), _) => {
                    let started_at = running.started_at.unwrap_or(wall);
                    let age_s = wall.secs().saturating_sub(started_at.secs()).max(0);
                    SeenState::Running {
                        age_s: u32::try_from(age_s).unwrap_or(u32::MAX),
                        adopted: workers.is_adopted(started_at),
                    }
                }
                (None, Some(ended)) => SeenState::Ended(ended.exit_code),
                (None, None) => SeenState::Waiting,
            },
            started: c.started == Some(true),
            ready: c.ready,
        }),
    };
    let restarts = |code| restarts(ctx, &uid, &name, code);
    let (step, news) = workers.pass(key, &seen, restarts, now);
    let probed = news.zip(container).map(|(result, c)| Probed {
        uid: uid.clone(),
        container_id: c.container_id.as_str().into(),
        kind,
        result,
    });
    (step, probed)
}

/// The status of a container of which an instance was created.
fn container_status<'a>(
    status: &'a PodStatus,
    name: &str,
) -> Option<&'a crate::api::pod_status::ContainerStatus> {
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.filter(|c| !c.container_id.is_empty())
        .find(|c| c.name == name)
}

/// Whether the pod's record says that another instance follows. One that cannot be read ends nothing.
fn restarts(ctx: &Ctx, uid: &PodUid, name: &str, exit_code: i32) -> bool {
    let Ok(pod) = ctx.pod(uid) else {
        return true;
    };
    let container = pod.spec.all_containers().find(|c| c.name == name);
    restart::has_restart_all_rule(&pod)
        || container.is_none_or(|c| {
            c.is_sidecar() && pod.spec.init_containers.iter().any(|i| i.name == name)
                || restart::restarts_after_exit(&pod, c, exit_code)
        })
}

/// The instance that a status names.
fn instance(status: &crate::api::pod_status::ContainerStatus) -> ContainerId {
    bare(&status.container_id).into()
}
