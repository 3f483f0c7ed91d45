//! The only loop that waits, and the executor of its effects.

use alloc::rc::Rc;

use smol::{
    LocalExecutor,
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{
    assembly, calls,
    cluster::News,
    core::{Agent, Effect, Event, Purpose},
    ctx::{Ctx, Shared},
    executor::{Cancel, Executors, Tell},
    gc, housekeeping, outcome, records,
};
use crate::{
    api::{Mono, PodUid},
    logic::{
        metrics::own::Work,
        pod_table::Start,
        pod_worker::{Call, Outcome},
    },
};

/// Events that may wait for the loop; a sender that finds it full waits. Every running call ends with one, so this is
/// at least the pods of a small board; beyond that senders take turns.
pub(super) const EVENT_QUEUE: usize = 256;

/// Runs until the agent is to end. Calls that run then are left to the executor.
pub(super) async fn run(
    ctx: Shared,
    executor: Rc<LocalExecutor<'static>>,
    events: Receiver<Event>,
    sender: Sender<Event>,
) {
    let mut agent = Agent::new(Rc::clone(&ctx));
    let steps = sender.clone();
    let hands = Hands {
        executors: Rc::new(assembly::executors(&ctx)),
        tell: Rc::new(move |call, step| {
            let steps = steps.clone();
            // It is gone only when the agent ends.
            Box::pin(async move { _ = steps.send(Event::Step(call, step)).await })
        }),
        ctx: Rc::clone(&ctx),
        executor,
        sender,
    };
    while !agent.finished {
        let due = agent.next_timeout().unwrap_or(Mono(u64::MAX));
        let next = async { events.recv().await.ok() };
        let late = async {
            ctx.clock.until(due).await;
            None
        };
        let event = next.or(late).await;
        let now = ctx.clock.now();
        ctx.loop_watch.moved(now);
        match event {
            Some(event) => {
                agent.handle(event, now);
                // Events of one burst are handled before effects are started: calls then see the newest state.
                while let Ok(event) = events.try_recv() {
                    agent.handle(event, now);
                }
            }
            None if events.is_closed() => return,
            None => {}
        }
        if agent.ends_with_pods() {
            ctx.tell_api(News::EndOfAll);
        }
        agent.handle_timeout(now);
        while let Some(effect) = agent.poll_effect(now) {
            hands.carry_out(effect);
        }
        agent.show_calls();
        ctx.loop_watch.moved(ctx.clock.now());
    }
}

/// What carries out effects.
struct Hands {
    ctx: Shared,
    executor: Rc<LocalExecutor<'static>>,
    executors: Rc<Executors>,
    /// The way of calls to the loop, and that of everybody else. It is gone only when the agent ends.
    tell: Tell,
    sender: Sender<Event>,
}

impl Hands {
    fn carry_out(&self, effect: Effect) {
        let (ctx, sender) = (Rc::clone(&self.ctx), self.sender.clone());
        match effect {
            Effect::Relist => ctx.view.request_status(ctx.clock.now()),
            Effect::Inspect(pods, relister) => {
                // It takes one answer a listing.
                let _ = relister.try_send(pods);
            }
            Effect::Load(uid, purpose) => self.spawn(async move {
                let pod = match purpose {
                    Purpose::Create => ctx.store.load_next(&ctx.disk, &uid).await,
                    Purpose::Show(..) | Purpose::Image => ctx.store.load(&ctx.disk, &uid).await,
                };
                let _ = sender.send(Event::Loaded(uid, purpose, pod)).await;
            }),
            Effect::Search => self.spawn(async move {
                let found = housekeeping::search(&ctx).await;
                let _ = sender.send(Event::Searched(found)).await;
            }),
            Effect::Record(recording) => self.spawn(async move {
                let recorded = records::record(&ctx, *recording).await;
                let _ = sender.send(Event::Recorded(Box::new(recorded))).await;
            }),
            Effect::SettleRecords => self.spawn(async move {
                let waiting = records::settle(&ctx).await;
                let _ = sender.send(Event::Settled(waiting)).await;
            }),
            Effect::KeepShown(uid, shown) => {
                self.spawn(async move { records::keep_shown(&ctx, &uid, shown).await });
            }
            Effect::ForgetOutcomes(uids) => {
                let (disk, store) = (ctx.disk.clone(), ctx.store.clone());
                let forget = move || uids.iter().for_each(|uid| outcome::forget(&store, uid));
                self.spawn(async move { disk.run(forget).await });
            }
            Effect::TidyDead(uid, id) => {
                self.spawn(async move { gc::after_death(&ctx, &uid, &id).await });
            }
            Effect::Housekeeping(chores) => self.spawn(async move {
                housekeeping::carry_out(&ctx, *chores).await;
                let _ = sender.send(Event::Cleaned).await;
            }),
            Effect::Start(start, uid, cancel) => {
                let (executors, tell) = (Rc::clone(&self.executors), Rc::clone(&self.tell));
                self.spawn(async move {
                    let outcome = call(&ctx, &executors, start, uid, cancel, tell).await;
                    let _ = sender.send(Event::Done(start.handle, outcome)).await;
                });
            }
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor.spawn(task).detach();
    }
}

/// One call of a worker, to its end.
async fn call(
    ctx: &Ctx,
    executors: &Executors,
    start: Start,
    uid: PodUid,
    cancel: Rc<Cancel>,
    tell: Tell,
) -> Outcome {
    // Garbage collection may be removing an instance of this pod.
    let turn = ctx.pods.operate(&uid).await;
    let begun = ctx.clock.now();
    let plan = calls::plan(ctx, start.handle, uid, cancel, tell);
    let outcome = executors.run(start.call, &plan).await;
    drop(turn);
    let work = match start.call {
        Call::Sync => Work::Sync,
        Call::Terminating { .. } | Call::TerminatingRuntime | Call::Terminated => Work::Kill,
    };
    let took = ctx.clock.now() - begun;
    ctx.counters.count(|c| c.worked(work, took));
    log::debug!("uid={} {:?} ended: {outcome:?}", plan.uid, start.call);
    outcome
}
