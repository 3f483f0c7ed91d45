//! Getting the images of a container, its own and those of its volumes, as their pull policies say. Rows IMG-01 to IMG-10,
//! IMG-20 and IMG-21.

use alloc::collections::BTreeMap;
use core::cell::RefCell;

use super::{
    for_pod::{ImageWaitReason, StartingPod},
    owner::{AgentImages, with_default_tag},
    pull::{DEFERRED, WantedImage},
};
use crate::{
    agent::recorder::EventSeverity,
    api::{
        Container,
        cri::{MountedImage, StoredImage},
    },
    image::ImageReference,
};

/// Ids of the images of a pod's volumes, by the volume's name, or the reason why one is not there. Found in one pass
/// over the pod; at most one for each volume.
#[derive(Default)]
pub(in crate::agent) struct PodVolumeImages(
    RefCell<BTreeMap<String, Result<String, ImageWaitReason>>>,
);

impl AgentImages {
    /// Makes sure that the container's image is there, as its pull policy says, and returns it; `None` if the pod is to end.
    ///
    /// - Errors: the reason why the container waits.
    pub(in crate::agent) async fn ensure_image(
        &self,
        pod: &dyn StartingPod,
        container: &Container,
    ) -> Result<Option<StoredImage>, ImageWaitReason> {
        let wanted = WantedImage {
            image: &container.image,
            policy: &container.image_pull_policy,
            container: Some(&container.name),
        };
        self.ensure_wanted(pod, &wanted).await
    }

    /// The images of the volumes that `container` mounts, by the volume's name; `None` if the pod is to end. Each is
    /// looked for once in a pass, even if other containers mount it too.
    ///
    /// - Errors: the last image that is not there. All were tried. Each failure was told; a wait for the link, once.
    /// - Source: kubelet `kuberuntime_manager.go`, `getImageVolumes`, `toKubeContainerImageVolumes`. A kubelet also gets images
    ///   that no container mounts, and all of them at every sync.
    pub(in crate::agent) async fn ensure_volume_images(
        &self,
        pod: &dyn StartingPod,
        known: &PodVolumeImages,
        container: &Container,
    ) -> Result<Option<BTreeMap<String, MountedImage>>, ImageWaitReason> {
        let mut specs = BTreeMap::new();
        let mut failed = None;
        for volume in &pod.pod().spec.volumes {
            let Some(source) = &volume.image else {
                continue;
            };
            if !container.mounts_volume(&volume.name) {
                continue;
            }
            let ensured = known.0.borrow().get(&volume.name).cloned();
            let ensured = match ensured {
                Some(ensured) => ensured,
                None => {
                    let wanted = WantedImage {
                        image: &source.reference,
                        policy: &source.pull_policy,
                        container: None,
                    };
                    let ensured = match self.ensure_wanted(pod, &wanted).await {
                        Ok(Some(image)) => Ok(image.id),
                        Ok(None) => return Ok(None),
                        Err(e) => Err(e),
                    };
                    let mut known = known.0.borrow_mut();
                    known.insert(volume.name.clone(), ensured.clone());
                    ensured
                }
            };
            match ensured {
                Ok(image) => {
                    let user_image = source.reference.clone();
                    specs.insert(volume.name.clone(), MountedImage { image, user_image });
                }
                Err(e) => {
                    if e.reason != DEFERRED {
                        let message = format!("Error: {}", e.reason);
                        let name = Some(&*container.name);
                        pod.record_event(name, EventSeverity::Warning, "Failed", &message);
                    }
                    failed = Some(e);
                }
            }
        }
        failed.map_or(Ok(Some(specs)), Err)
    }

    async fn ensure_wanted(
        &self,
        pod: &dyn StartingPod,
        wanted: &WantedImage<'_>,
    ) -> Result<Option<StoredImage>, ImageWaitReason> {
        let event = |severity, reason, message: &str| {
            pod.record_event(wanted.container, severity, reason, message);
        };
        if let Err(why) = ImageReference::parse(wanted.image) {
            let message = format!(
                "Failed to apply default image tag \"{}\": {why}",
                wanted.image
            );
            event(EventSeverity::Warning, "InspectFailed", &message);
            return Err(ImageWaitReason::new("InvalidImageName", message));
        }
        let reference = with_default_tag(wanted.image);
        // It is there, and not for this pod unless the registry says so (IMG-20).
        let mut is_others = false;
        if wanted.policy != "Always" {
            match self.service.image_status(&reference).await {
                Ok(Some(image)) if self.may_use(pod, &reference, &image.id).await => {
                    let message = format!(
                        "Container image \"{reference}\" already present on machine and can be accessed by the pod"
                    );
                    event(EventSeverity::Normal, "Pulled", &message);
                    return Ok(Some(image));
                }
                Ok(Some(_)) => is_others = true,
                Ok(None) => {}
                Err(e) => {
                    let message = format!("Failed to inspect image \"{reference}\": {e}");
                    event(EventSeverity::Warning, "InspectFailed", &message);
                    return Err(ImageWaitReason::new("ImageInspectError", message));
                }
            }
        }
        if wanted.policy == "Never" {
            let message = if is_others {
                format!(
                    "Container image \"{reference}\" is present with pull policy of Never but does not have the proper \
                     credentials"
                )
            } else {
                format!("Container image \"{reference}\" is not present with pull policy of Never")
            };
            event(EventSeverity::Warning, "ErrImageNeverPull", &message);
            return Err(ImageWaitReason::new("ErrImageNeverPull", message));
        }
        self.pull_image(pod, wanted, &reference).await
    }
}
