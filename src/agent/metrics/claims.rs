//! Disk figures of volumes that claims are bound to: directories of the node's own disk, as their file systems say, at
//! most once in `volumeStatsAggPeriod`. Paths of the host have no figures, as with a kubelet. A share of the network
//! has none either: it may not answer.

use alloc::rc::Rc;

use super::{Metrics, MetricsTools};
use crate::{
    agent::core::Agent,
    api::{PodUid, order::OrderExt as _, stats::ClaimUsage},
    logic::{pod_kind, static_pod},
};

/// Most volumes of claims with figures, of all pods together: about 200 bytes each. A pod has a few of them.
const MAX_CLAIMS: usize = 1024;

/// Returns the figures of each pod that uses a claim, at most one period old.
pub(super) async fn claim_usage(metrics: &Metrics) -> Rc<[ClaimUsage]> {
    let now = metrics.tools.clock.now();
    if let Some((at, claims)) = &*metrics.claims.borrow()
        && now - *at < metrics.tools.settings.volume_stats
    {
        return Rc::clone(claims);
    }
    let claims: Rc<[ClaimUsage]> = read_claim_usage(&metrics.tools).await.into();
    *metrics.claims.borrow_mut() = Some((now, Rc::clone(&claims)));
    claims
}

async fn read_claim_usage(tools: &MetricsTools) -> Vec<ClaimUsage> {
    let mut all = Vec::new();
    let Some(objects) = &tools.objects else {
        return all;
    };
    let uids = tools.agent.ask_agent(Agent::pods_with_workers).await;
    if uids.is_empty() {
        return all;
    }
    let (volumes, store) = (tools.volumes.clone(), tools.files.store.clone());
    let shown = tools.disk.run_job(move || {
        let of_pod = |uid: PodUid| {
            let locals = volumes.local_volumes(&uid);
            if locals.is_empty() {
                return None;
            }
            let (_, raw) = store.read_record(&uid).ok()?;
            Some((static_pod::decode_recorded_pod(&raw).ok()?, locals))
        };
        uids.into_iter().filter_map(of_pod).collect::<Vec<_>>()
    });
    for (pod, locals) in shown.await {
        let meta = &pod.metadata;
        // Claims are objects of the API: those of static pods are not looked up.
        if pod_kind::is_static(&pod) {
            continue;
        }
        for known in objects.known_volumes(&pod).await {
            let fs = locals.iter().find(|(name, _)| *name == known.bound_to);
            all.extend(fs.map(|(_, fs)| ClaimUsage {
                uid: meta.uid.clone(),
                volume: known.name,
                namespace: meta.namespace.clone(),
                claim: known.claim,
                fs: *fs,
            }));
        }
    }
    if all.len() > MAX_CLAIMS {
        all.truncate(MAX_CLAIMS);
        let text = format!("only {MAX_CLAIMS} volumes of claims have figures");
        tools.complaints.complain(&text);
    }
    all.stable_sort_by(|a, b| (&a.namespace, &a.claim).cmp(&(&b.namespace, &b.claim)));
    all
}
