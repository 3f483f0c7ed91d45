//! What the agent knows of the runtime: its conditions, the pods it last listed, and whether either is fresh enough to act on.
//!
//! Owns the relist's records and the cache of statuses (`logic::pleg`, `logic::runtime_cache`), the list of running pods and
//! the gate. The pollers below fill it; everybody else asks. Bounded by what the runtime lists.

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{clock::in_step, core::Event, ctx::Shared};
use crate::{
    api::{
        ContainerId, Mono, PodUid,
        cri::{Condition, ContainerState, ContainerStatus, PodRuntimeStatus, RuntimeStatus},
    },
    logic::{
        loop_health::{RuntimeDown, RuntimeGate},
        pleg::{self, Pleg, RunningCounts},
        runtime_cache::{RunningPod, RunningPods, RuntimeCache, Seen, Status},
    },
};

/// Time between the end of a relist and the next one (PLEG-01).
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// At the sound of doorbells relists follow each other no faster than this.
const RELIST_MIN_GAP: Duration = Duration::from_millis(3);
/// Time between reads of the runtime's conditions (LOOP-03).
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// See the module's words.
#[derive(Debug)]
pub(super) struct RuntimeView {
    pleg: RefCell<Pleg>,
    cache: RefCell<RuntimeCache>,
    running: RefCell<RunningPods>,
    gate: RefCell<RuntimeGate>,
    /// Asks the poller for a relist now; a full channel means one is asked for already.
    relist: Sender<()>,
    /// A worker waits for a status newer than this.
    waiting: Cell<Option<Mono>>,
}

impl RuntimeView {
    /// A runtime that was not asked yet. `relist` reaches [`relist`], the poller.
    pub(super) fn new(relist: Sender<()>) -> Self {
        Self {
            pleg: RefCell::default(),
            cache: RefCell::default(),
            running: RefCell::default(),
            gate: RefCell::default(),
            relist,
            waiting: Cell::new(None),
        }
    }

    /// What the runtime last said of a pod; an empty status if it said nothing or could not answer.
    pub(super) fn status(&self, uid: &PodUid) -> Rc<PodRuntimeStatus> {
        let known = self.cache.borrow().get(uid);
        known.unwrap_or_else(|_| {
            Rc::new(PodRuntimeStatus {
                uid: uid.clone(),
                ..PodRuntimeStatus::default()
            })
        })
    }

    /// Why the status of a pod could not be read, if so.
    pub(super) fn status_error(&self, uid: &PodUid) -> Option<Rc<str>> {
        self.cache.borrow().get(uid).err()
    }

    /// What was last said of each pod, sorted by UID; pods whose status could not be read are left out.
    pub(super) fn statuses(&self) -> Vec<Rc<PodRuntimeStatus>> {
        let cache = self.cache.borrow();
        let read = |(_, status): (_, &Status)| status.as_ref().ok().cloned();
        cache.iter().filter_map(read).collect()
    }

    /// When the newest ended instance of a container ended, for its back-off; `None` if none has.
    pub(super) fn last_end(&self, status: &PodRuntimeStatus, container: &str) -> Option<Mono> {
        self.cache.borrow().last_end(status, container)
    }

    /// UIDs of all pods that the runtime knows, sorted.
    pub(super) fn uids(&self) -> Vec<PodUid> {
        self.cache
            .borrow()
            .iter()
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Whether a container runs.
    pub(super) fn is_running(&self, id: &ContainerId) -> bool {
        let is = |c: &ContainerStatus| c.id == *id && c.state == ContainerState::Running;
        let statuses = self.statuses();
        statuses.iter().any(|pod| pod.containers.iter().any(is))
    }

    /// Whether a relist was taken in and nothing of the pod runs. An error is not idle.
    pub(super) fn is_idle(&self, uid: &PodUid) -> bool {
        self.cache.borrow().is_idle(uid)
    }

    /// Hands the ages of statuses to `look`, which must not ask this owner for anything.
    pub(super) fn with_ages<T>(&self, look: impl FnOnce(&RuntimeCache) -> T) -> T {
        look(&self.cache.borrow())
    }

    /// Pods that ran at the last relist; `None` if that is too long ago.
    pub(super) fn running(&self, now: Mono) -> Option<Vec<RunningPod>> {
        self.running.borrow().fresh(now).map(<[_]>::to_vec)
    }

    /// Whether the last relist is young, and nothing ran.
    pub(super) fn nothing_runs(&self, now: Mono) -> bool {
        self.running
            .borrow()
            .fresh(now)
            .is_some_and(<[_]>::is_empty)
    }

    /// What the last relist counted.
    pub(super) fn counts(&self) -> RunningCounts {
        self.pleg.borrow().counts()
    }

    /// When the last successful relist began.
    pub(super) fn last_relist(&self) -> Option<Mono> {
        self.pleg.borrow().last_relist()
    }

    /// Whether anything may be done to pods: the runtime answers and relists succeed (LOOP-02, LOOP-03). One that is not
    /// ready but keeps hold of its pods holds up only what would start: [`RuntimeView::start_problem`].
    pub(super) fn may_run_pods(&self, now: Mono) -> bool {
        let pleg = self.pleg.borrow().healthy(now);
        self.gate.borrow().check_hold(pleg, now).is_ok()
    }

    /// Why pods are not handled, if so.
    pub(super) fn down(&self, now: Mono) -> Option<RuntimeDown> {
        let pleg = self.pleg.borrow().healthy(now);
        self.gate.borrow().check(pleg, now).err()
    }

    /// Why the node is not ready as far as the runtime goes; empty if it is.
    pub(super) fn ready_errors(&self, now: Mono) -> Vec<String> {
        let pleg = self.pleg.borrow().healthy(now);
        self.gate.borrow().ready_errors(pleg, now)
    }

    /// Why no container may start, if so.
    pub(super) fn start_problem(&self) -> Option<String> {
        self.gate.borrow().start_error().map(str::to_owned)
    }

    /// Whether pods may be given a network, and why not.
    pub(super) fn network_problem(&self) -> Option<String> {
        self.gate.borrow().network_error().map(str::to_owned)
    }

    /// Asks for a relist soon: something was changed at the runtime.
    pub(super) fn request_relist(&self) {
        // Full: one is on its way already.
        let _ = self.relist.try_send(());
    }

    /// Asks for a relist that begins after `now`: a worker waits for its outcome.
    pub(super) fn request_status(&self, now: Mono) {
        self.waiting.set(Some(now));
        self.request_relist();
    }

    fn take_status(&self, status: RuntimeStatus, now: Mono) {
        let mut gate = self.gate.borrow_mut();
        tell_change(gate.status(), &status);
        gate.on_status(status, now);
    }
}

/// One of the runtime's conditions.
type Pick = fn(&RuntimeStatus) -> &Condition;

/// Tells the log which conditions differ from those before.
fn tell_change(before: Option<&RuntimeStatus>, status: &RuntimeStatus) {
    let pick: [(&str, Pick); 2] = [
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

/// Reads the runtime's conditions, and tells the log when they change.
pub(super) async fn poll_conditions(ctx: Shared, events: Sender<Event>) {
    loop {
        match ctx.runtime.status().await {
            Ok(status) => ctx.view.take_status(status, ctx.clock.now()),
            Err(e) => ctx.complain(&format!("cannot read the runtime's status: {e}")),
        }
        if events.send(Event::RuntimeStatus).await.is_err() {
            return;
        }
        let next = in_step(ctx.clock.now() + STATUS_INTERVAL);
        ctx.clock.until(next).await;
    }
}

/// Relists the runtime, as fast as its doorbell rings and at least every second (PLEG-01). Reads each pod that changed,
/// so that an event finds a status at least as new in the cache (PLEG-07).
pub(super) async fn poll_pods(ctx: Shared, asked: Receiver<()>, events: Sender<Event>) {
    loop {
        relist(&ctx, &events).await;
        let ended = ctx.clock.now();
        let tick = ctx.clock.until(in_step(ended + RELIST_INTERVAL));
        let ring = async {
            if ctx.cfg.doorbells {
                ctx.runtime.doorbell().await;
            } else {
                core::future::pending().await
            }
        };
        let ask = async { _ = asked.recv().await };
        tick.or(ring).or(ask).await;
        // A doorbell goes on ringing and a question stays in its channel: neither is lost by waiting here.
        let gap = ended + RELIST_MIN_GAP;
        if ctx.clock.now() < gap {
            ctx.clock.until(gap).await;
        }
        // Whoever asked meanwhile is served by the relist that begins now.
        while asked.try_recv().is_ok() {}
    }
}

async fn relist(ctx: &Shared, events: &Sender<Event>) {
    let view = &ctx.view;
    // Taken before the listing: who asks during it is served by the next one.
    let waiting = view.waiting.take();
    if let Some(asked) = waiting {
        // A listing of the same millisecond would not count as newer.
        ctx.clock.until(asked + Duration::from_millis(1)).await;
    }
    let begun = ctx.clock.now();
    let before = view.last_relist();
    // 0 is the time of what was never listed.
    let (stamp, wall) = (begun.max(Mono(1)), ctx.clock.wall());
    let listed = match ctx.runtime.list_pods().await {
        Ok(listed) => listed,
        Err(e) => {
            // No listing is no news: whoever waits goes on waiting.
            ctx.complain(&format!("relist: {e}"));
            view.waiting.set(view.waiting.get().max(waiting));
            return;
        }
    };
    view.running.borrow_mut().set(&listed, stamp);
    let changed = {
        let (mut pleg, mut cache) = (view.pleg.borrow_mut(), view.cache.borrow_mut());
        pleg.listed(&listed, &mut cache, stamp)
    };
    drop(listed);
    for uid in changed {
        let status = ctx.runtime.pod_status(&uid).await;
        let status = status.map_err(|e| e.to_string());
        let seen = Seen { at: stamp, wall };
        let (mut pleg, mut cache) = (view.pleg.borrow_mut(), view.cache.borrow_mut());
        pleg.inspected(&uid, status, &mut cache, seen);
    }
    view.cache.borrow_mut().set_time(stamp);
    let (happened, discarded) = {
        let mut pleg = view.pleg.borrow_mut();
        let happened: Vec<pleg::Event> = core::iter::from_fn(|| pleg.poll_event()).collect();
        (happened, pleg.discarded())
    };
    let (took, gap) = (ctx.clock.now() - begun, before.map(|before| begun - before));
    ctx.counters
        .count(|c| c.relisted(took, gap, wall, discarded));
    // Sent even when nothing happened: calls may wait for a status newer than their last end.
    if !happened.is_empty() || waiting.is_some() {
        let _ = events.send(Event::Relisted(happened)).await;
    }
}
