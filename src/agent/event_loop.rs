//! The only loop that waits, and the executor of its effects.

use alloc::rc::Rc;

use smol::{LocalExecutor, channel::Receiver, future::FutureExt as _};

use super::{
    cluster::News,
    core::{Core, Effect, Event},
    ctx::Shared,
    gc, housekeeping, sync, terminate,
};
use crate::{
    api::{Mono, PodUid},
    logic::{metrics::own::Work, pod_table::Start, pod_worker::Call},
};

/// Events that may wait for the loop; a sender that finds it full waits. Every running call ends with one, so this is
/// at least the pods of a small board; beyond that senders take turns.
pub(super) const EVENT_QUEUE: usize = 256;

/// Runs until the agent is to end. Calls that run then are left to the executor.
pub(super) async fn run(
    ctx: Shared,
    executor: Rc<LocalExecutor<'static>>,
    events: Receiver<Event>,
    sender: smol::channel::Sender<Event>,
) {
    let mut core = Core::new(Rc::clone(&ctx));
    while !core.finished {
        let due = core.next_timeout().unwrap_or(Mono(u64::MAX));
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
                core.handle(event, now);
                // Events of one burst are handled before effects are started: calls then see the newest state.
                while let Ok(event) = events.try_recv() {
                    core.handle(event, now);
                }
            }
            None if events.is_closed() => return,
            None => {}
        }
        if core.ends_with_pods() {
            ctx.tell_api(News::EndOfAll);
        }
        core.handle_timeout(now);
        while let Some(effect) = core.poll_effect(now) {
            start(&ctx, &executor, &sender, effect);
        }
        ctx.loop_watch.moved(ctx.clock.now());
    }
}

fn start(
    ctx: &Shared,
    executor: &Rc<LocalExecutor<'static>>,
    sender: &smol::channel::Sender<Event>,
    effect: Effect,
) {
    match effect {
        Effect::Relist => {
            ctx.view.request_status(ctx.clock.now());
        }
        Effect::TidyDead(uid, id) => {
            let ctx = Rc::clone(ctx);
            executor
                .spawn(async move { gc::after_death(&ctx, &uid, &id).await })
                .detach();
        }
        Effect::Housekeeping(chores) => {
            let ctx = Rc::clone(ctx);
            let sender = sender.clone();
            let task = async move {
                housekeeping::carry_out(&ctx, *chores).await;
                let _ = sender.send(Event::Cleaned).await;
            };
            executor.spawn(task).detach();
        }
        Effect::Start(start, uid) => {
            let ctx = Rc::clone(ctx);
            let sender = sender.clone();
            executor
                .spawn(async move { call(&ctx, &sender, start, uid).await })
                .detach();
        }
    }
}

/// One call of a worker, to its end. Never dropped while the pod exists.
async fn call(ctx: &Shared, sender: &smol::channel::Sender<Event>, start: Start, uid: PodUid) {
    let handle = start.handle;
    // Garbage collection may be removing an instance of this pod.
    let turn = ctx.pods.operate(&uid).await;
    let begun = ctx.clock.now();
    let outcome = match start.call {
        Call::Sync => Box::pin(sync::run(ctx, handle, &uid)).await,
        Call::Terminating { grace_s } => {
            Box::pin(terminate::terminating(ctx, handle, &uid, grace_s)).await
        }
        Call::TerminatingRuntime => Box::pin(terminate::terminating_runtime(ctx, &uid)).await,
        Call::Terminated => Box::pin(terminate::terminated(ctx, handle, &uid)).await,
    };
    drop(turn);
    let work = match start.call {
        Call::Sync => Work::Sync,
        Call::Terminating { .. } | Call::TerminatingRuntime | Call::Terminated => Work::Kill,
    };
    let took = ctx.clock.now() - begun;
    ctx.counters.count(|c| c.worked(work, took));
    log::debug!("uid={uid} {:?} ended: {outcome:?}", start.call);
    // The loop is gone only when the agent ends.
    let _ = sender.send(Event::Done(handle, outcome)).await;
}
