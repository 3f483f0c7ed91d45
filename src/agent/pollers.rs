//! The pollers: every outside world is read as a complete snapshot at a bounded rate; a doorbell only makes the next
//! read come sooner.

use core::time::Duration;

use smol::{channel::Receiver, channel::Sender, future::FutureExt as _};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
};
use crate::api::{Mono, cri::RuntimeStatus};

/// Time between the end of a relist and the next one (PLEG-01).
pub(super) const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// At the sound of doorbells relists follow each other no faster than this.
pub(super) const RELIST_MIN_GAP: Duration = Duration::from_millis(3);
/// Time between reads of the runtime's conditions (LOOP-03).
pub(super) const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Time between passes of housekeeping (LOOP-01).
pub(super) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
/// Time between passes of container garbage collection (GC-01).
pub(super) const CONTAINER_GC_INTERVAL: Duration = Duration::from_secs(60);

/// The whole second nearest to `due`: what happens at intervals happens together, so that an agent at rest wakes up once a
/// second and not once for each.
pub(super) fn in_step(due: Mono) -> Mono {
    const STEP_MS: u64 = 1000;
    Mono(due.0.saturating_add(STEP_MS / 2) / STEP_MS * STEP_MS)
}

/// Reads the runtime's conditions, and tells the log when they change.
pub(super) async fn runtime_status(ctx: Shared, events: Sender<Event>) {
    loop {
        match ctx.runtime.status().await {
            Ok(status) => {
                tell_change(&ctx, &status);
                ctx.gate
                    .borrow_mut()
                    .on_status(status.clone(), ctx.clock.now());
                *ctx.conditions.borrow_mut() = Some(status);
            }
            Err(e) => ctx.complain(&format!("cannot read the runtime's status: {e}")),
        }
        if events.send(Event::RuntimeStatus).await.is_err() {
            return;
        }
        ctx.clock
            .until(in_step(ctx.clock.now() + STATUS_INTERVAL))
            .await;
    }
}

fn tell_change(ctx: &Ctx, status: &RuntimeStatus) {
    let before = ctx.conditions.borrow();
    let differs = |f: fn(&RuntimeStatus) -> &crate::api::cri::Condition| {
        before
            .as_ref()
            .is_none_or(|b| f(b).ok != f(status).ok || f(b).message != f(status).message)
    };
    for (name, changed, now) in [
        (
            "runtime",
            differs(|s| &s.runtime_ready),
            &status.runtime_ready,
        ),
        (
            "network",
            differs(|s| &s.network_ready),
            &status.network_ready,
        ),
    ] {
        match (changed, now.ok) {
            (true, true) => log::info!("{name} is ready"),
            (true, false) => log::warn!("{name} is not ready: {}: {}", now.reason, now.message),
            (false, _) => {}
        }
    }
}

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

/// Relists the runtime, as fast as its doorbell rings and at least every second (PLEG-01). Reads each pod that changed,
/// so that an event finds a status at least as new in the cache (PLEG-07).
pub(super) async fn runtime(ctx: Shared, asked: Receiver<()>, events: Sender<Event>) {
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

async fn relist(ctx: &Ctx, events: &Sender<Event>) {
    // Taken before the listing: who asks during it is served by the next one.
    let waiting = ctx.waiting_for_status.take();
    if let Some(asked) = waiting {
        // A listing of the same millisecond would not count as newer.
        ctx.clock.until(asked + Duration::from_millis(1)).await;
    }
    let begun = ctx.clock.now();
    let before = ctx.pleg.borrow().last_relist();
    let stamp = ctx.pleg.borrow().stamp(begun);
    let listed = match ctx.runtime.list_pods().await {
        Ok(listed) => listed,
        Err(e) => {
            // No listing is no news: whoever waits goes on waiting.
            ctx.complain(&format!("relist: {e}"));
            ctx.waiting_for_status
                .set(ctx.waiting_for_status.get().max(waiting));
            return;
        }
    };
    ctx.running.borrow_mut().set(&listed, stamp);
    let changed = ctx
        .pleg
        .borrow_mut()
        .listed(&listed, &mut ctx.cache.borrow_mut(), stamp);
    drop(listed);
    for uid in changed {
        let status = ctx
            .runtime
            .pod_status(&uid)
            .await
            .map_err(|e| e.to_string());
        ctx.pleg
            .borrow_mut()
            .inspected(&uid, status, &mut ctx.cache.borrow_mut(), stamp);
    }
    let happened = {
        let mut pleg = ctx.pleg.borrow_mut();
        pleg.relisted(&mut ctx.cache.borrow_mut(), stamp, ctx.clock.now());
        core::iter::from_fn(|| pleg.poll_event()).collect::<Vec<_>>()
    };
    ctx.counters.borrow_mut().relisted(
        ctx.clock.now() - begun,
        before.map(|before| begun - before),
        ctx.clock.wall(),
    );
    // Sent even when nothing happened: calls may wait for a status newer than their last end.
    if !happened.is_empty() || waiting.is_some() {
        let _ = events.send(Event::Relisted(happened)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_fall_together() {
        for (due, want) in [(0, 0), (1499, 1000), (1500, 2000), (61_001, 61_000)] {
            assert_eq!(in_step(Mono(due)), Mono(want), "{due}");
        }
    }
}
