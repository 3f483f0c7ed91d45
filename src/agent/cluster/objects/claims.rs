//! Volumes that claims are bound to (VOL-16). Claim and volume are read once a pod, when it first needs them, and for real:
//! a copy serves only the same pod, while nobody answers (OFF-02).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    content::{ObjectContent, ObjectRequest},
    store::{ObjectStore, RequestingPod},
};
use crate::{
    agent::executor::CallCancel,
    api::{Pod, PodError, pod::Volume},
    logic::{
        bound_volume::{self, BoundVolume},
        pod_refs::{self, PodObjectKey, PodObjectKind},
    },
};

/// A volume of a pod, the claim it was given to, and what that is bound to.
pub(in crate::agent) struct KnownVolume {
    /// Name of the volume in the pod.
    pub(in crate::agent) name: String,
    /// Name of the claim.
    pub(in crate::agent) claim: String,
    /// Name of the PersistentVolume.
    pub(in crate::agent) bound_to: String,
}

impl ObjectStore {
    /// Volumes that the pod's claims are bound to, by the name of the pod's volume. Errors: try again.
    pub(in crate::agent) async fn read_bound_volumes(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> BTreeMap<String, Result<BoundVolume, PodError>> {
        let mut bound = BTreeMap::new();
        for volume in pod_refs::used_volumes(pod) {
            if let Some(claim) = bound_volume::claim_name_of_volume(pod, volume) {
                let found = self.read_bound_volume(pod, cancel, volume, &claim).await;
                bound.insert(volume.name.clone(), found);
            }
        }
        bound
    }

    /// Volumes that the pod's claims were bound to when they were mounted, as far as this node has kept that. Sends no
    /// request.
    pub(in crate::agent) async fn known_volumes(&self, pod: &Pod) -> Vec<KnownVolume> {
        let mut known = Vec::new();
        for volume in pod_refs::used_volumes(pod) {
            if let Some(claim) = bound_volume::claim_name_of_volume(pod, volume)
                && let Some(ObjectContent::Claim(bound)) =
                    self.known_content(&claim_key(pod, volume, &claim)).await
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
    pub(in crate::agent) async fn volume_groups(&self, pod: &Pod, cancel: &CallCancel) -> Vec<i64> {
        let bound = self.read_bound_volumes(pod, cancel).await.into_values();
        bound.filter_map(|bound| bound.ok()?.group).collect()
    }

    async fn read_bound_volume(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        volume: &Volume,
        claim: &str,
    ) -> Result<BoundVolume, PodError> {
        let uid = &pod.metadata.uid;
        let key = claim_key(pod, volume, claim);
        self.register_references(pod, BTreeSet::from([key.clone()]))?;
        let ask = self.claim_request(pod, volume, claim);
        match self
            .obtain_object(RequestingPod { uid, cancel }, &key, ask)
            .await?
        {
            Some(ObjectContent::Claim(bound)) => Ok(*bound),
            _ => Err(PodError::Object(format!("PVC {claim} is not known"))),
        }
    }

    fn claim_request(&self, pod: &Pod, volume: &Volume, claim: &str) -> ObjectRequest {
        let (pod, volume, claim) = (pod.clone(), volume.clone(), claim.to_owned());
        let (node, labels) = (self.node.clone(), Arc::clone(&self.labels.borrow()));
        Arc::new(move |api| {
            let object = api.read_persistent_volume_claim(&pod.metadata.namespace, &claim)?;
            let claim = bound_volume::parse_claim(&object)?;
            let name = bound_volume::bound_volume_name(&pod, &volume, &claim)?;
            let object = api.read_persistent_volume(&name)?;
            let bound = bound_volume::parse_volume(&object)?;
            let bound =
                bound_volume::resolve_bound_volume(&volume, &claim, &bound, &node, &labels)?;
            Ok(ObjectContent::Claim(Box::new(bound)))
        })
    }
}

/// Volumes of one claim may be used in different ways.
fn claim_key(pod: &Pod, volume: &Volume, claim: &str) -> PodObjectKey {
    let claim = pod_refs::claim_name(&pod.metadata.uid, claim);
    let name = format!("{claim}/{}", volume.name);
    PodObjectKey::new(PodObjectKind::Claim, &pod.metadata.namespace, &name)
}
