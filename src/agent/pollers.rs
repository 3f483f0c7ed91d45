//! The pollers: every outside world is read as a complete snapshot at a bounded rate; a doorbell only makes the next
//! read come sooner.

use core::time::Duration;

use smol::channel::Sender;

use super::{clock::in_step, core::Event, ctx::Shared};

/// Time between passes of housekeeping (LOOP-01).
pub(super) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
/// Time between passes of container garbage collection (GC-01).
pub(super) const CONTAINER_GC_INTERVAL: Duration = Duration::from_secs(60);

/// Sends `event` at an interval, for work that happens on the loop.
pub(super) async fn housekeeping(ctx: Shared, events: Sender<Event>) {
    loop {
        ctx.clock
            .until(in_step(ctx.clock.now() + HOUSEKEEPING_INTERVAL))
            .await;
        if events.send(Event::Housekeeping).await.is_err() {
            return;
        }
    }
}

/// Collects garbage of containers, sandboxes and logs.
pub(super) async fn container_gc(ctx: Shared) {
    loop {
        ctx.clock
            .until(in_step(ctx.clock.now() + CONTAINER_GC_INTERVAL))
            .await;
        super::gc::pass(&ctx).await;
    }
}

/// Rotates logs.
pub(super) async fn log_rotation(ctx: Shared) {
    loop {
        ctx.clock
            .until(in_step(ctx.clock.now() + ctx.cfg.logs.monitor_interval))
            .await;
        super::log_rotation::pass(&ctx).await;
    }
}
