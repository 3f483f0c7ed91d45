//! What objects and tokens need beside the pods that use them: to be on disk for good, to be replaced in time, to go.

use alloc::collections::BTreeSet;
use core::time::Duration;

use smol::future::FutureExt as _;

use super::objects::ObjectsOfPods;
use crate::{
    agent::ctx::{Ctx, Shared},
    api::PodUid,
};

/// Time for writes to gather before they are brought to disk for good: a rollout is one such group.
const GROUP: Duration = Duration::from_secs(5);
/// How often pods are looked for whose tokens are to be replaced. Syncs replace them too, as long as they are more frequent.
const TOKEN_INTERVAL: Duration = Duration::from_secs(60);
/// How often files are looked for that nobody needs: what a crash has left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs for the agent's life on a node of a cluster.
pub(in crate::agent) async fn run(ctx: Shared) {
    let Some(cluster) = &ctx.cluster else {
        return;
    };
    let mine = &cluster.objects;
    let mut sweep = ctx.clock.now() + TOKEN_INTERVAL;
    loop {
        let round = ctx.clock.now() + TOKEN_INTERVAL;
        let written = async {
            let is_unsynced = || mine.is_unsynced().then_some(());
            mine.written.until(is_unsynced).await;
            true
        };
        let over = async {
            ctx.clock.until(round).await;
            false
        };
        if written.or(over).await {
            ctx.clock.until(ctx.clock.now() + GROUP).await;
            mine.commit(&ctx).await;
        }
        let now = ctx.clock.now();
        for uid in mine.tokens.due(now) {
            ctx.pods.resync(&uid, now);
        }
        if now >= sweep {
            sweep = now + tidy(&ctx, mine).await;
        }
    }
}

/// Forgets pods that are nobody's and removes files that are; returns in how long to look again.
async fn tidy(ctx: &Ctx, mine: &ObjectsOfPods) -> Duration {
    let known: Vec<PodUid> = mine.table.borrow().pods().cloned().collect();
    for uid in known {
        if ctx.is_nobodys(&uid) {
            super::objects::forget(ctx, &uid).await;
        }
    }
    // A pod that has not come to say what it needs may need any of them.
    let complete = ctx.sources_ready() && {
        let table = mine.table.borrow();
        let all_came = ctx.pods.with_configs(|pods| {
            let mut of_api = pods.filter(|(_, pod)| !pod.is_static);
            of_api.all(|(uid, pod)| pod.api_phase_terminal || table.knows(uid))
        });
        all_came && !ctx.pods.some_arrive()
    };
    if !complete {
        return TOKEN_INTERVAL;
    }
    let (keys, pods): (BTreeSet<_>, BTreeSet<_>) = {
        let table = mine.table.borrow();
        (
            table.keys().cloned().collect(),
            table.pods().cloned().collect(),
        )
    };
    let files = mine.files.clone();
    ctx.disk.run(move || files.sweep(&keys, &pods)).await;
    SWEEP_INTERVAL
}
