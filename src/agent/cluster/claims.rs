//! Volumes that claims are bound to (VOL-16). Claim and volume are read once a pod, when it first needs them, and for real:
//! a copy serves only the same pod, while nobody answers (OFF-02).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::objects::{Ask, Content, ObjectsOfPods, Refusal, of_pod};
use crate::{
    agent::ctx::Ctx,
    api::{Pod, pod::Volume},
    logic::{
        bound_volume::{self, BoundVolume},
        pod_refs::{self, Key, Kind},
    },
};

/// What the pod's claims are bound to, by the name of the volume; errors are to be tried again.
pub(in crate::agent) async fn bound_volumes(
    ctx: &Ctx,
    pod: &Pod,
) -> BTreeMap<String, Result<BoundVolume, String>> {
    let mut bound = BTreeMap::new();
    let Some(mine) = of_pod(ctx, pod) else {
        return bound;
    };
    for volume in pod_refs::used_volumes(pod) {
        if let Some(claim) = bound_volume::claim_of(pod, volume) {
            let found = bound_to(ctx, mine, pod, volume, &claim).await;
            bound.insert(volume.name.clone(), found);
        }
    }
    bound
}

/// A volume of a pod, the claim it was given to, and what that is bound to.
pub(in crate::agent) struct KnownVolume {
    /// Its name in the pod.
    pub(in crate::agent) name: String,
    /// Name of the claim.
    pub(in crate::agent) claim: String,
    /// Name of the PersistentVolume.
    pub(in crate::agent) bound_to: String,
}

/// What the pod's claims were bound to when they were mounted, as far as this node has kept it; nobody is asked.
pub(in crate::agent) async fn known_volumes(ctx: &Ctx, pod: &Pod) -> Vec<KnownVolume> {
    let mut known = Vec::new();
    let Some(mine) = of_pod(ctx, pod) else {
        return known;
    };
    for volume in pod_refs::used_volumes(pod) {
        if let Some(claim) = bound_volume::claim_of(pod, volume)
            && let Some(Content::Claim(bound)) = mine.known(ctx, &key(pod, volume, &claim)).await
        {
            known.push(KnownVolume {
                name: volume.name.clone(),
                claim,
                bound_to: bound.name,
            });
        }
    }
    known
}

/// Groups whose members may use the volumes of the pod's claims, as far as these are known.
pub(in crate::agent) async fn volume_groups(ctx: &Ctx, pod: &Pod) -> Vec<i64> {
    let bound = bound_volumes(ctx, pod).await.into_values();
    bound.filter_map(|bound| bound.ok()?.group).collect()
}

async fn bound_to(
    ctx: &Ctx,
    mine: &ObjectsOfPods,
    pod: &Pod,
    volume: &Volume,
    claim: &str,
) -> Result<BoundVolume, String> {
    let uid = &pod.metadata.uid;
    let key = key(pod, volume, claim);
    mine.register(ctx, pod, BTreeSet::from([key.clone()]))?;
    match mine
        .obtain(ctx, uid, &key, ask(ctx, pod, volume, claim))
        .await?
    {
        Some(Content::Claim(bound)) => Ok(*bound),
        _ => Err(format!("PVC {claim} is not known")),
    }
}

/// Volumes of one claim may be used in different ways.
fn key(pod: &Pod, volume: &Volume, claim: &str) -> Key {
    let claim = pod_refs::claim_name(&pod.metadata.uid, claim);
    let name = format!("{claim}/{}", volume.name);
    Key::new(Kind::Claim, &pod.metadata.namespace, &name)
}

fn ask(ctx: &Ctx, pod: &Pod, volume: &Volume, claim: &str) -> Ask {
    let (pod, volume, claim) = (pod.clone(), volume.clone(), claim.to_owned());
    let node = ctx.node.name.clone();
    let labels = ctx.node.with_admission(|node| node.labels.clone());
    Arc::new(move |api| {
        let object = api.persistent_volume_claim(&pod.metadata.namespace, &claim)?;
        let claim = bound_volume::claim(&object).map_err(Refusal::Other)?;
        let name = bound_volume::bound_to(&pod, &volume, &claim).map_err(Refusal::Other)?;
        let object = api.persistent_volume(&name)?;
        let bound = bound_volume::volume(&object).map_err(Refusal::Other)?;
        let bound = bound_volume::resolve(&volume, &claim, &bound, &node, &labels);
        Ok(Content::Claim(Box::new(bound.map_err(Refusal::Other)?)))
    })
}
