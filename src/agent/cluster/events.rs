//! Kubernetes events on their way: from the recorder's ring to the apiserver, one at a time, as `logic::events` says.

use core::time::Duration;

use smol::future::FutureExt as _;

use super::{of, until};
use crate::{
    agent::ctx::{Ctx, Shared},
    api::Mono,
    kube::{Api, KubeError},
    logic::events::{Correlator, Failure, Post, Sender},
};

/// Statuses go first: events wait while any is on its way, but in one crowd no longer than this.
const MAX_YIELD: Duration = Duration::from_secs(5);
/// Between two looks whether they are done.
const YIELD_STEP: Duration = Duration::from_millis(200);

/// Waits for the statuses that are being written; `since`: when that began.
async fn let_statuses_pass(ctx: &Ctx, since: &mut Option<Mono>) {
    loop {
        if !of(ctx).pods.writer.borrow().is_busy() {
            *since = None;
            return;
        }
        let now = ctx.clock.now();
        if now - *since.get_or_insert(now) >= MAX_YIELD {
            return;
        }
        until(ctx, now + YIELD_STEP).await;
    }
}

/// Sends until the executor is gone.
pub(super) async fn run(ctx: Shared) {
    let cluster = &ctx.cfg.cluster;
    let (per_second, burst) = cluster.event_qps;
    let now = ctx.clock.now();
    let correlator = Correlator::new(&ctx.node.name, cluster.metered);
    let mut sender = Sender::new(correlator, per_second, burst, now, now.0);
    let mut complained = 0;
    let mut busy_since = None;
    loop {
        let_statuses_pass(&ctx, &mut busy_since).await;
        let now = ctx.clock.now();
        let next = || ctx.recorder.borrow_mut().next_untold();
        if let Some(post) = sender.poll(next, now) {
            let told = of(&ctx).lanes.work(move |api| tell(api, &post)).await;
            sender.on_sent(told, ctx.clock.now());
            ctx.recorder.borrow_mut().note_lost(sender.lost());
            let lost = ctx.recorder.borrow().lost();
            if lost > complained {
                ctx.complain(&format!("apiserver: {lost} events are lost"));
                complained = lost;
            }
            continue;
        }
        busy_since = None;
        // Due in the past: there is nothing that waits.
        let due = sender.next_timeout();
        let rung = of(&ctx).outbox.heard();
        if due > now {
            rung.or(until(&ctx, due)).await;
        } else {
            rung.await;
        }
    }
}

fn tell(api: &dyn Api, post: &Post) -> Result<(), Failure> {
    let create = || {
        let body = post.object.to_string();
        api.create_event(&post.namespace, body.as_bytes())
    };
    let done = match &post.patch {
        None => create(),
        Some(patch) => {
            let body = patch.to_string();
            match api.patch_event(&post.namespace, &post.name, body.as_bytes()) {
                // It lives for an hour only.
                Err(e) if e.is_not_found() => create(),
                done => done,
            }
        }
    };
    done.map(|_| ()).map_err(|e| {
        log::debug!("event {}/{}: {e}", post.namespace, post.name);
        failure(&e)
    })
}

fn failure(e: &KubeError) -> Failure {
    match e.status() {
        Some(status) if status != 429 && status < 500 => Failure::Rejected,
        _ => Failure::Failed,
    }
}
