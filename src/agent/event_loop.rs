//! The only loop that waits, and the executor of its effects.

use alloc::rc::Rc;
use core::{future::pending, time::Duration};
use std::path::PathBuf;

use smol::{
    LocalExecutor,
    channel::{Receiver, Sender},
    future::FutureExt as _,
    lock::{Semaphore, SemaphoreGuard},
};

use super::{
    asker::AgentHandle,
    claims::PodWorkClaims,
    clock::Clock,
    core::{Agent, AgentEffect, AgentEvent, LoadPurpose},
    driver::{PodDriver, PodStopMode},
    eviction::Evictor,
    executor::{CallCancel, StepSender},
    gc::GarbageCollector,
    housekeeping::Housekeeper,
    outcome,
    pod_store::PodStore,
    records::PodRecordWriter,
    vitals::{LoopWatch, WorkCounters},
};
use crate::{
    api::{MonoTime, PodUid},
    logic::{
        metrics::own::WorkerCallKind,
        pod_table::CallStart,
        pod_worker::{CallOutcome, WorkerCall},
        work_queue::RetryCause,
    },
    sys::lane::Lane,
};

/// Events that may wait for the loop; a sender that finds it full waits. Every running call ends with one, so this is
/// at least the pods of a small board; beyond that senders take turns.
pub(super) const EVENT_QUEUE: usize = 256;

/// Pods that begin at a time. Each takes 25 KiB while it does, between pieces that stay: of a crowd that begins at once more pages
/// are kept than it needs. And only as many get on as the machine has processors for.
pub(super) const STARTS_AT_ONCE: usize = 8;
/// Longest time that a pod which begins keeps others waiting: one that waits for a volume, an image or the end of what was
/// there before does not keep them longer.
const START_TURN: Duration = Duration::from_millis(500);

/// Holder of the agent between turns of the loop.
pub(super) trait AgentCell {
    /// A turn with it.
    fn with_agent<T>(&mut self, turn: impl FnOnce(&mut Agent) -> T) -> T;
}

impl AgentCell for Agent {
    fn with_agent<T>(&mut self, turn: impl FnOnce(&mut Self) -> T) -> T {
        turn(self)
    }
}

/// Runs until the agent is to end. Calls that run then are left to the executor.
pub(super) async fn run_event_loop(
    mut agent: impl AgentCell,
    hands: EffectRunner,
    loop_watch: LoopWatch,
    events: Receiver<AgentEvent>,
) {
    let clock = Rc::clone(&hands.clock);
    while !agent.with_agent(|agent| agent.is_finished()) {
        let due = agent.with_agent(|agent| agent.next_timeout());
        let next = async { events.recv().await.ok() };
        let late = async {
            clock.sleep_until(due.unwrap_or(MonoTime(u64::MAX))).await;
            None
        };
        let event = next.or(late).await;
        let now = clock.now();
        loop_watch.note_loop_turn(now);
        if event.is_none() && events.is_closed() {
            return;
        }
        agent.with_agent(|agent| {
            if let Some(event) = event {
                agent.handle_event(event, now);
                // Events of one burst are handled before effects are started: calls then see the newest state.
                while let Ok(event) = events.try_recv() {
                    agent.handle_event(event, now);
                }
            }
            agent.handle_timeout(now);
            while let Some(effect) = agent.poll_effect(now) {
                hands.carry_out_effect(effect);
            }
            agent.refresh_calls();
        });
        loop_watch.note_loop_turn(clock.now());
    }
}

/// Runner of effects.
pub(super) struct EffectRunner {
    pub(super) executor: Rc<LocalExecutor<'static>>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    /// Run directory, for facts that the next agent of this boot needs.
    pub(super) run_dir: PathBuf,
    pub(super) caller: Rc<WorkerCallRunner>,
    pub(super) records: Rc<PodRecordWriter>,
    pub(super) garbage: Rc<GarbageCollector>,
    pub(super) housekeeper: Rc<Housekeeper>,
    pub(super) evictor: Rc<Evictor>,
    /// To the relister.
    pub(super) relist: Sender<MonoTime>,
    /// To the loop. It is gone only when the agent ends.
    pub(super) events: Sender<AgentEvent>,
}

impl EffectRunner {
    fn carry_out_effect(&self, effect: AgentEffect) {
        let events = self.events.clone();
        match effect {
            AgentEffect::Relist => {
                // A worker waits for a listing that begins after this.
                let _ = self.relist.force_send(self.clock.now());
            }
            AgentEffect::Inspect(pods, relister) => {
                // It takes one answer a listing.
                let _ = relister.try_send(pods);
            }
            AgentEffect::Load(uid, purpose) => {
                let (store, disk) = (self.store.clone(), self.disk.clone());
                self.spawn(async move {
                    let pod = match purpose {
                        LoadPurpose::Create => store.load_next(&disk, &uid).await,
                        LoadPurpose::Show(..) | LoadPurpose::Image | LoadPurpose::Evict => {
                            store.load_pod(&disk, &uid).await
                        }
                    };
                    let _ = events.send(AgentEvent::Loaded(uid, purpose, pod)).await;
                });
            }
            AgentEffect::Search => {
                let housekeeper = Rc::clone(&self.housekeeper);
                self.spawn(async move {
                    let found = housekeeper.search_remains().await;
                    let _ = events.send(AgentEvent::Searched(found)).await;
                });
            }
            AgentEffect::Record(recording) => {
                let records = Rc::clone(&self.records);
                self.spawn(async move {
                    let recorded = records.record_pods(*recording).await;
                    let _ = events.send(AgentEvent::Recorded(Box::new(recorded))).await;
                });
            }
            AgentEffect::SettleRecords => {
                let records = Rc::clone(&self.records);
                self.spawn(async move {
                    let waiting = records.settle_waiting_records().await;
                    let _ = events.send(AgentEvent::Settled(waiting)).await;
                });
            }
            AgentEffect::KeepShown(uid, shown) => {
                let records = Rc::clone(&self.records);
                self.spawn(async move { records.keep_shown(&uid, shown).await });
            }
            AgentEffect::KeepTimes(stored) => {
                let (disk, run) = (self.disk.clone(), self.run_dir.clone());
                self.spawn(async move { disk.run_job(move || stored.save_history(&run)).await });
            }
            AgentEffect::ForgetOutcomes(uids) => {
                let (disk, store) = (self.disk.clone(), self.store.clone());
                let forget = move || {
                    uids.iter()
                        .for_each(|uid| outcome::forget_outcome(&store, uid))
                };
                self.spawn(async move { disk.run_job(forget).await });
            }
            AgentEffect::TidyDead(uid, id) => {
                let garbage = Rc::clone(&self.garbage);
                self.spawn(async move { garbage.collect_after_death(&uid, &id).await });
            }
            AgentEffect::Housekeeping(chores) => {
                let housekeeper = Rc::clone(&self.housekeeper);
                self.spawn(async move {
                    housekeeper.carry_out_chores(*chores).await;
                    let _ = events.send(AgentEvent::Cleaned).await;
                });
            }
            AgentEffect::Eviction(work) => {
                let evictor = Rc::clone(&self.evictor);
                self.spawn(async move {
                    let input = evictor.carry_out(work).await;
                    let _ = events.send(AgentEvent::Eviction(Box::new(input))).await;
                });
            }
            AgentEffect::AskResources(question) => self.spawn(async move {
                if let Some(news) = question.await {
                    let _ = events.send(AgentEvent::Resources(news)).await;
                }
            }),
            AgentEffect::Start(start, uid, cancel) => {
                let caller = Rc::clone(&self.caller);
                self.spawn(async move {
                    let outcome = caller.run_worker_call(start, uid, cancel).await;
                    let _ = events.send(AgentEvent::Done(start.handle, outcome)).await;
                });
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn(task).detach();
    }
}

/// Runs the calls of workers.
pub(super) struct WorkerCallRunner {
    pub(super) driver: Rc<dyn PodDriver>,
    pub(super) claims: Rc<PodWorkClaims>,
    pub(super) asker: AgentHandle,
    /// The way of steps to the loop.
    pub(super) tell: StepSender,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) counters: WorkCounters,
    /// Turns of pods that begin.
    pub(super) starts: Semaphore,
}

impl WorkerCallRunner {
    /// Waits until a pod may begin. `None`: it begins at once, or is to end.
    async fn wait_for_start(
        &self,
        start: CallStart,
        cancel: &CallCancel,
    ) -> Option<SemaphoreGuard<'_>> {
        if !start.first || start.call != WorkerCall::Sync {
            return None;
        }
        let turn = async { Some(self.starts.acquire().await) };
        let cancelled = async {
            cancel.wait_for_cancel().await;
            None
        };
        turn.or(cancelled).await
    }

    /// Runs one call to its end.
    async fn run_worker_call(
        &self,
        start: CallStart,
        uid: PodUid,
        cancel: Rc<CallCancel>,
    ) -> CallOutcome {
        let place = self.wait_for_start(start, &cancel).await;
        let placed = self.clock.now();
        let late = async {
            let Some(place) = place else {
                return pending().await;
            };
            self.clock.sleep_until(placed + START_TURN).await;
            drop(place);
            pending().await
        };
        let done = self.plan_and_run_call(start, uid.clone(), cancel);
        let outcome = done.or(late).await;
        log::debug!("uid={uid} {:?} ended: {outcome:?}", start.call);
        outcome
    }

    /// Runs one call as soon as nobody else works on the pod.
    async fn plan_and_run_call(
        &self,
        start: CallStart,
        uid: PodUid,
        cancel: Rc<CallCancel>,
    ) -> CallOutcome {
        // Garbage collection may be removing an instance of this pod.
        let turn = self.claims.claim_operation(&uid).await;
        let begun = self.clock.now();
        let tell = Rc::clone(&self.tell);
        let plan = self
            .asker
            .ask_agent(move |agent| agent.make_call_plan(start.handle, uid, cancel, tell));
        let Some(plan) = plan.await else {
            return CallOutcome::Failed(RetryCause::Error);
        };
        let driver = &self.driver;
        let (done, work) = match start.call {
            WorkerCall::Sync => (driver.sync_pod(&plan), WorkerCallKind::Sync),
            WorkerCall::Terminating { grace_s } => {
                let stop = PodStopMode::AsSpecified(grace_s);
                (driver.terminate_pod(&plan, stop), WorkerCallKind::Kill)
            }
            WorkerCall::TerminatingRuntime => (
                driver.terminate_pod(&plan, PodStopMode::Unknown),
                WorkerCallKind::Kill,
            ),
            WorkerCall::Terminated => (driver.clean_up_pod(&plan), WorkerCallKind::Kill),
        };
        let outcome = done.await;
        drop(turn);
        let took = self.clock.now() - begun;
        self.counters
            .count_work(|c| c.count_worker_call(work, took));
        outcome
    }
}
