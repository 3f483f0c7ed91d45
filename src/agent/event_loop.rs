//! The only loop that waits, and the executor of its effects.

use alloc::rc::Rc;
use std::path::PathBuf;

use smol::{
    LocalExecutor,
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{
    asker::Asker,
    claims::Claims,
    clock::Clock,
    core::{Agent, Effect, Event, Purpose},
    driver::{PodDriver, Stop},
    eviction::Evictor,
    executor::{Cancel, Tell},
    gc::Garbage,
    housekeeping::Housekeeper,
    outcome,
    pod_store::PodStore,
    records::RecordKeeper,
    vitals::{LoopWatch, WorkCounters},
};
use crate::{
    api::{Mono, PodUid},
    logic::{
        metrics::own::Work,
        pod_table::Start,
        pod_worker::{Call, Outcome},
        work_queue::Retry,
    },
    sys::lane::Lane,
};

/// Events that may wait for the loop; a sender that finds it full waits. Every running call ends with one, so this is
/// at least the pods of a small board; beyond that senders take turns.
pub(super) const EVENT_QUEUE: usize = 256;

/// Holder of the agent between turns of the loop.
pub(super) trait Seat {
    /// A turn with it.
    fn with<T>(&mut self, turn: impl FnOnce(&mut Agent) -> T) -> T;
}

impl Seat for Agent {
    fn with<T>(&mut self, turn: impl FnOnce(&mut Self) -> T) -> T {
        turn(self)
    }
}

/// Runs until the agent is to end. Calls that run then are left to the executor.
pub(super) async fn run(
    mut agent: impl Seat,
    hands: Hands,
    loop_watch: LoopWatch,
    events: Receiver<Event>,
) {
    let clock = Rc::clone(&hands.clock);
    while !agent.with(|agent| agent.is_finished()) {
        let due = agent.with(|agent| agent.next_timeout());
        let next = async { events.recv().await.ok() };
        let late = async {
            clock.until(due.unwrap_or(Mono(u64::MAX))).await;
            None
        };
        let event = next.or(late).await;
        let now = clock.now();
        loop_watch.moved(now);
        if event.is_none() && events.is_closed() {
            return;
        }
        agent.with(|agent| {
            if let Some(event) = event {
                agent.handle(event, now);
                // Events of one burst are handled before effects are started: calls then see the newest state.
                while let Ok(event) = events.try_recv() {
                    agent.handle(event, now);
                }
            }
            agent.handle_timeout(now);
            while let Some(effect) = agent.poll_effect(now) {
                hands.carry_out(effect);
            }
            agent.show_calls();
        });
        loop_watch.moved(clock.now());
    }
}

/// Runner of effects.
pub(super) struct Hands {
    pub(super) executor: Rc<LocalExecutor<'static>>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    /// Run directory, for facts that the next agent of this boot needs.
    pub(super) run_dir: PathBuf,
    pub(super) caller: Rc<Caller>,
    pub(super) records: Rc<RecordKeeper>,
    pub(super) garbage: Rc<Garbage>,
    pub(super) housekeeper: Rc<Housekeeper>,
    pub(super) evictor: Rc<Evictor>,
    /// To the relister.
    pub(super) relist: Sender<Mono>,
    /// To the loop. It is gone only when the agent ends.
    pub(super) events: Sender<Event>,
}

impl Hands {
    fn carry_out(&self, effect: Effect) {
        let events = self.events.clone();
        match effect {
            Effect::Relist => {
                // A worker waits for a listing that begins after this.
                let _ = self.relist.force_send(self.clock.now());
            }
            Effect::Inspect(pods, relister) => {
                // It takes one answer a listing.
                let _ = relister.try_send(pods);
            }
            Effect::Load(uid, purpose) => {
                let (store, disk) = (self.store.clone(), self.disk.clone());
                self.spawn(async move {
                    let pod = match purpose {
                        Purpose::Create => store.load_next(&disk, &uid).await,
                        Purpose::Show(..) | Purpose::Image | Purpose::Evict => {
                            store.load(&disk, &uid).await
                        }
                    };
                    let _ = events.send(Event::Loaded(uid, purpose, pod)).await;
                });
            }
            Effect::Search => {
                let housekeeper = Rc::clone(&self.housekeeper);
                self.spawn(async move {
                    let found = housekeeper.search().await;
                    let _ = events.send(Event::Searched(found)).await;
                });
            }
            Effect::Record(recording) => {
                let records = Rc::clone(&self.records);
                self.spawn(async move {
                    let recorded = records.record(*recording).await;
                    let _ = events.send(Event::Recorded(Box::new(recorded))).await;
                });
            }
            Effect::SettleRecords => {
                let records = Rc::clone(&self.records);
                self.spawn(async move {
                    let waiting = records.settle().await;
                    let _ = events.send(Event::Settled(waiting)).await;
                });
            }
            Effect::KeepShown(uid, shown) => {
                let records = Rc::clone(&self.records);
                self.spawn(async move { records.keep_shown(&uid, shown).await });
            }
            Effect::KeepTimes(stored) => {
                let (disk, run) = (self.disk.clone(), self.run_dir.clone());
                self.spawn(async move { disk.run(move || stored.save(&run)).await });
            }
            Effect::ForgetOutcomes(uids) => {
                let (disk, store) = (self.disk.clone(), self.store.clone());
                let forget = move || uids.iter().for_each(|uid| outcome::forget(&store, uid));
                self.spawn(async move { disk.run(forget).await });
            }
            Effect::TidyDead(uid, id) => {
                let garbage = Rc::clone(&self.garbage);
                self.spawn(async move { garbage.after_death(&uid, &id).await });
            }
            Effect::Housekeeping(chores) => {
                let housekeeper = Rc::clone(&self.housekeeper);
                self.spawn(async move {
                    housekeeper.carry_out(*chores).await;
                    let _ = events.send(Event::Cleaned).await;
                });
            }
            Effect::Eviction(work) => {
                let evictor = Rc::clone(&self.evictor);
                self.spawn(async move {
                    let input = evictor.carry_out(work).await;
                    let _ = events.send(Event::Eviction(Box::new(input))).await;
                });
            }
            Effect::AskResources(question) => self.spawn(async move {
                if let Some(news) = question.await {
                    let _ = events.send(Event::Resources(news)).await;
                }
            }),
            Effect::Start(start, uid, cancel) => {
                let caller = Rc::clone(&self.caller);
                self.spawn(async move {
                    let outcome = caller.call(start, uid, cancel).await;
                    let _ = events.send(Event::Done(start.handle, outcome)).await;
                });
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn(task).detach();
    }
}

/// Runs the calls of workers.
pub(super) struct Caller {
    pub(super) driver: Rc<dyn PodDriver>,
    pub(super) claims: Rc<Claims>,
    pub(super) asker: Asker,
    /// The way of steps to the loop.
    pub(super) tell: Tell,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) counters: WorkCounters,
}

impl Caller {
    /// Runs one call to its end.
    async fn call(&self, start: Start, uid: PodUid, cancel: Rc<Cancel>) -> Outcome {
        // Garbage collection may be removing an instance of this pod.
        let turn = self.claims.operate(&uid).await;
        let begun = self.clock.now();
        let (of, tell) = (uid.clone(), Rc::clone(&self.tell));
        let plan = self
            .asker
            .ask(move |agent| agent.plan(start.handle, of, cancel, tell));
        let Some(plan) = plan.await else {
            return Outcome::Failed(Retry::Error);
        };
        let driver = &self.driver;
        let (done, work) = match start.call {
            Call::Sync => (driver.sync(&plan), Work::Sync),
            Call::Terminating { grace_s } => {
                let stop = Stop::AsSpecified(grace_s);
                (driver.terminate(&plan, stop), Work::Kill)
            }
            Call::TerminatingRuntime => (driver.terminate(&plan, Stop::Unknown), Work::Kill),
            Call::Terminated => (driver.clean_up(&plan), Work::Kill),
        };
        let outcome = done.await;
        drop(turn);
        let took = self.clock.now() - begun;
        self.counters.count(|c| c.worked(work, took));
        log::debug!("uid={uid} {:?} ended: {outcome:?}", start.call);
        outcome
    }
}
