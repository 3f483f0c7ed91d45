//! What there is in volumes that claims are bound to: directories of the node's own disk, as their file systems say, at most
//! once in `volumeStatsAggPeriod`. Paths of the host have no figures (nor have they of a kubelet), and a share of the network
//! may not answer.

use alloc::rc::Rc;

use super::super::{cluster, ctx::Ctx};
use crate::api::{PodUid, stats::ClaimUsage};

/// Volumes of claims that are told of, of all pods: about 200 bytes each. Pods have a few of them.
const MAX_CLAIMS: usize = 1024;

/// Figures at most one period old, of each pod that uses a claim.
pub(super) async fn usage(ctx: &Ctx) -> Rc<[ClaimUsage]> {
    let now = ctx.clock.now();
    if let Some((at, claims)) = &*ctx.metrics.claims.borrow()
        && now - *at < ctx.cfg.times.volume_stats
    {
        return Rc::clone(claims);
    }
    let claims: Rc<[ClaimUsage]> = read(ctx).await.into();
    *ctx.metrics.claims.borrow_mut() = Some((now, Rc::clone(&claims)));
    claims
}

async fn read(ctx: &Ctx) -> Vec<ClaimUsage> {
    let mut all = Vec::new();
    if ctx.cluster.is_none() {
        return all;
    }
    let uids: Vec<PodUid> = ctx.pods.workers(|table| {
        let pods = table.handles().filter_map(|handle| table.identity(handle));
        pods.map(|pod| pod.uid.clone()).collect()
    });
    let volumes = ctx.volumes.clone();
    let shown = ctx.disk.run(move || {
        let of_pod = |uid: PodUid| {
            let locals = volumes.locals(&uid);
            (!locals.is_empty()).then_some((uid, locals))
        };
        uids.into_iter().filter_map(of_pod).collect::<Vec<_>>()
    });
    for (uid, locals) in shown.await {
        let Ok(pod) = ctx.pod(&uid) else {
            continue;
        };
        for known in cluster::known_volumes(ctx, &pod).await {
            let fs = locals.iter().find(|(name, _)| *name == known.bound_to);
            all.extend(fs.map(|(_, fs)| ClaimUsage {
                uid: uid.clone(),
                volume: known.name,
                namespace: pod.metadata.namespace.clone(),
                claim: known.claim,
                fs: *fs,
            }));
        }
    }
    if all.len() > MAX_CLAIMS {
        all.truncate(MAX_CLAIMS);
        ctx.complain(&format!("only {MAX_CLAIMS} volumes of claims have figures"));
    }
    all.sort_by(|a, b| (&a.namespace, &a.claim).cmp(&(&b.namespace, &b.claim)));
    all
}
