//! What the agent reads and does at intervals by itself: every outside world is read as a complete snapshot at a bounded rate;
//! a doorbell only makes the next read come sooner.

use alloc::rc::Rc;
use core::time::Duration;

use smol::channel::{Receiver, Sender};

use super::{
    asker::Asker,
    clock::{Clock, in_step},
    core::Event,
    ctx::Shared,
    relister::{Conditions, Relister},
    tasks::{Task, boxed},
};
use crate::api::Mono;

/// Time between passes of housekeeping (LOOP-01).
pub(super) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
/// Time between passes of container garbage collection (GC-01).
pub(super) const CONTAINER_GC_INTERVAL: Duration = Duration::from_secs(60);

/// What looks at the runtime for the loop. `asked`: where the loop asks for relists.
pub(super) fn tasks(ctx: &Shared, asked: Receiver<Mono>, events: &Sender<Event>) -> Vec<Task> {
    let conditions = Conditions {
        runtime: Rc::clone(&ctx.runtime),
        clock: Rc::clone(&ctx.clock),
        complaints: Rc::clone(&ctx.complaints),
        events: events.clone(),
    };
    let relister = Relister {
        runtime: Rc::clone(&ctx.runtime),
        clock: Rc::clone(&ctx.clock),
        complaints: Rc::clone(&ctx.complaints),
        counters: ctx.counters.clone(),
        doorbells: ctx.cfg.doorbells,
        asked,
        events: events.clone(),
    };
    vec![
        boxed(conditions.run()),
        boxed(relister.run()),
        boxed(housekeeping(Rc::clone(&ctx.clock), events.clone())),
        boxed(container_gc(Rc::clone(ctx), Asker::new(events.clone()))),
    ]
}

/// Tells the loop at an interval that housekeeping is due.
async fn housekeeping(clock: Rc<dyn Clock>, events: Sender<Event>) {
    loop {
        let next = in_step(clock.now() + HOUSEKEEPING_INTERVAL);
        clock.until(next).await;
        if events.send(Event::Housekeeping).await.is_err() {
            return;
        }
    }
}

/// Collects garbage of containers, sandboxes and logs.
async fn container_gc(ctx: Shared, asker: Asker) {
    loop {
        let next = in_step(ctx.clock.now() + CONTAINER_GC_INTERVAL);
        ctx.clock.until(next).await;
        super::gc::pass(&ctx, &asker).await;
    }
}
