//! The owner of the agent's images.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::path::Path;

use smol::lock::Semaphore;

use super::{
    access::ImageAccess,
    credentials::{NodeKeyring, PullAttempt, PullCredentials, pull_attempts},
    for_pod::StartingPod,
    garbage::{UnusedImageRequests, remove_unused_images},
};
use crate::{
    agent::{
        clock::Clock,
        complaints::Complaints,
        link_policy::{PullBudget, UrgentPull},
    },
    api::{Container, MonoTime, Pod, cri::SandboxConfig, link::PullUrgency},
    config::ImageConfig,
    image::{ImageProgress, pull::MAX_PARALLEL},
    logic::{backoff::ImageBackoff, pull_rate::PullRate},
    runtime::{ImageService, RuntimeError},
    sys::lane::Lane,
};

/// Helpers of [`AgentImages`] that depend on the node's configuration.
pub(in crate::agent) struct NodeImageHelpers {
    /// Keyring of the node itself.
    pub(in crate::agent) keyring: Rc<dyn NodeKeyring>,
    /// Remover of unused images, if there is one.
    pub(in crate::agent) unused: Option<UnusedImageRequests>,
}

/// Helpers that [`AgentImages`] works with.
pub(in crate::agent) struct ImageTools {
    pub(in crate::agent) service: Rc<dyn ImageService>,
    /// Keyring of the node itself.
    pub(in crate::agent) keyring: Rc<dyn NodeKeyring>,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    /// Lane on which records are read and written.
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) complaints: Rc<Complaints>,
    /// Remover of unused images, if there is one.
    pub(in crate::agent) unused_images: Option<UnusedImageRequests>,
    /// Budget of the link, if it is limited.
    pub(in crate::agent) budget: Option<Arc<dyn PullBudget>>,
}

/// An image that was pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PulledImage {
    /// Id of the image.
    pub(super) id: String,
    /// Time of the pull, without the wait for a turn.
    pub(super) took: Duration,
    /// Digest of the credential of the pull, if the pod brought it.
    pub(super) with: Option<String>,
}

/// Owner of the agent's images: delays of pulls, the number that may begin, and the access of pods to images.
///
/// - Bounds: as many delays as it is told at start, the one that ends first makes room; one entry for each pull under way
///   that a pod brought credentials for; records on disk, one an image, which end with it.
/// - Called by: starts of containers ([`AgentImages::ensure_image`], [`AgentImages::ensure_volume_images`]), the loop
///   when images arrived ([`AgentImages::forget_pull_delays`]) and when memory is given back
///   ([`AgentImages::take_heap_used`]), the garbage collection ([`AgentImages::sweep_pull_delays`]), and the local commands.
pub(in crate::agent) struct AgentImages {
    pub(super) service: Rc<dyn ImageService>,
    pub(super) keyring: Rc<dyn NodeKeyring>,
    /// Turns of pulls: as many as may run at once.
    turns: Semaphore,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) access: ImageAccess,
    backoff: RefCell<ImageBackoff>,
    rate: RefCell<PullRate>,
    heap_used: Cell<bool>,
    unused_images: Option<UnusedImageRequests>,
    pub(super) budget: Option<Arc<dyn PullBudget>>,
}

impl AgentImages {
    /// Makes the owner for a node that pulls as `cfg` says, with at most `delays` pulls delayed at a time. Records are
    /// below `root`.
    pub(in crate::agent) fn new(
        cfg: &ImageConfig,
        delays: usize,
        root: &Path,
        tools: ImageTools,
    ) -> Self {
        let rate = PullRate::new(cfg.pull_qps, cfg.pull_burst, tools.clock.now());
        Self {
            service: tools.service,
            keyring: tools.keyring,
            turns: Semaphore::new(parallel_pull_limit(cfg)),
            clock: tools.clock,
            access: ImageAccess::new(root, cfg.verification.clone(), tools.disk, tools.complaints),
            backoff: RefCell::new(ImageBackoff::new(delays)),
            rate: RefCell::new(rate),
            heap_used: Cell::new(false),
            unused_images: tools.unused_images,
            budget: tools.budget,
        }
    }

    /// Forgets the delays for images of `pod`: they may be there now, and such an image needs no wait.
    pub(in crate::agent) fn forget_pull_delays(&self, pod: &Pod) {
        let mut delays = self.backoff.borrow_mut();
        let own = pod.spec.all_containers().map(|c| &c.image);
        let volumes = pod.spec.volumes.iter().filter_map(|v| v.image.as_ref());
        own.chain(volumes.map(|source| &source.reference))
            .for_each(|image| delays.forget_image(&pod.metadata.uid, &with_default_tag(image)));
    }

    /// Forgets delays that are long over.
    pub(in crate::agent) fn sweep_pull_delays(&self) {
        self.backoff.borrow_mut().forget_expired(self.clock.now());
    }

    /// Returns true if images were unpacked since the last call, which leaves free pages all over the heap.
    pub(in crate::agent) fn take_heap_used(&self) -> bool {
        self.heap_used.take()
    }

    /// Progress of the pull that `container` waits for, if one is under way: of its own image or of a volume's, with
    /// the image as the pod has it.
    pub(in crate::agent) fn pull_progress<'a>(
        &self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> Option<(&'a str, ImageProgress)> {
        let volumes = pod.spec.volumes.iter().filter_map(|volume| {
            let source = volume.image.as_ref()?;
            container
                .mounts_volume(&volume.name)
                .then_some(&*source.reference)
        });
        volumes.chain([&*container.image]).find_map(|image| {
            let progress = self.service.pull_progress(&with_default_tag(image))?;
            Some((image, progress))
        })
    }

    /// Pulls for the operator, with the node's own credentials; `now`: whatever the link has left. Returns the image's
    /// id.
    ///
    /// # Errors
    /// The runtime's error.
    pub(super) async fn pull_for_node(
        &self,
        reference: &str,
        now: bool,
    ) -> Result<String, RuntimeError> {
        let budget = self.budget.as_deref().filter(|_| now);
        let _urgent = budget.map(|it| UrgentPull::begin(it, reference, PullUrgency::Now));
        let pulled = self
            .pull_with_credentials(reference, &[], None, false)
            .await?;
        // The node's own credentials are good for every pod.
        let of_node = PullCredentials {
            own: Vec::new(),
            brought: Vec::new(),
        };
        self.access
            .note_pulled_image(reference, &pulled.id, &of_node, None)
            .await;
        Ok(pulled.id)
    }

    /// Has unused images removed. Returns false if there is no remover.
    async fn remove_unused_images(&self, reference: &str) -> bool {
        let Some(ask) = &self.unused_images else {
            return false;
        };
        log::info!("the disk has no room for image {reference}: removing unused images");
        remove_unused_images(ask).await
    }

    /// Pulls with the credentials of a pod before those of the node, one after the other, when its turn has come (IMG-13,
    /// IMG-16). `has_account`: the pod has a service account, with which plugins were asked for its own credentials.
    ///
    /// # Errors
    /// The runtime's errors for the credentials, each text once.
    pub(super) async fn pull_with_credentials(
        &self,
        reference: &str,
        own: &[PullAttempt],
        sandbox: Option<&SandboxConfig>,
        has_account: bool,
    ) -> Result<PulledImage, RuntimeError> {
        let _turn = self.turns.acquire().await;
        let begun = self.clock.now();
        let mut denied: Vec<String> = Vec::new();
        let mut room_made = false;
        let of_node = self.keyring.lookup_credentials(reference, has_account);
        let of_node = of_node.await;
        for PullAttempt { auth, digest } in pull_attempts(own, of_node) {
            let pulled = self.service.pull_image(reference, auth.as_ref(), sandbox);
            let pulled = match pulled.await {
                // Unused images make room, once.
                Err(RuntimeError::Full(_))
                    if !room_made && self.remove_unused_images(reference).await =>
                {
                    room_made = true;
                    let again = self.service.pull_image(reference, auth.as_ref(), sandbox);
                    again.await
                }
                pulled => pulled,
            };
            // Unpacking used it.
            self.heap_used.set(true);
            match pulled {
                Ok(id) => {
                    return Ok(PulledImage {
                        id,
                        took: self.clock.now() - begun,
                        with: digest,
                    });
                }
                Err(RuntimeError::Denied(why)) if denied.contains(&why) => {}
                Err(RuntimeError::Denied(why)) => denied.push(why),
                Err(other) if denied.is_empty() => return Err(other),
                Err(other) => {
                    denied.push(other.to_string());
                    break;
                }
            }
        }
        Err(RuntimeError::Denied(denied.join("; ")))
    }

    /// Returns true if a pull may begin at `now`; then it is counted (IMG-16).
    pub(super) fn may_begin_pull(&self, now: MonoTime) -> bool {
        self.rate.borrow_mut().try_take_pull(now)
    }

    /// Reason why `reference` is not pulled again yet for this pod, if it is not.
    pub(super) fn pull_delay_reason(
        &self,
        pod: &dyn StartingPod,
        reference: &str,
    ) -> Option<String> {
        let uid = &pod.pod().metadata.uid;
        let now = self.clock.now();
        self.backoff.borrow().waiting_message(uid, reference, now)
    }

    /// Notes that a pull failed: the next one waits longer.
    pub(super) fn note_pull_failure(&self, pod: &dyn StartingPod, reference: &str, error: &str) {
        let uid = &pod.pod().metadata.uid;
        let now = self.clock.now();
        let mut delays = self.backoff.borrow_mut();
        delays.record_pull_failure(uid, reference, error, now);
    }

    /// Returns true if the pod may use the image that `reference` names without asking the registry (IMG-20).
    pub(super) async fn may_use(&self, pod: &dyn StartingPod, reference: &str, id: &str) -> bool {
        self.access.settle_abandoned_pulls(&*self.service).await;
        let keyring = &*self.keyring;
        self.access.may_use(keyring, pod, reference, id).await
    }

    /// Notes that the operator brought these images: every pod may use them.
    pub(super) async fn note_imported_images(&self, ids: &[&str]) {
        self.access.note_imported_images(ids).await;
    }

    /// Brings the notes on images in order, after images were removed or a crash ended pulls.
    pub(in crate::agent) async fn tidy_access_records(&self) {
        self.access.tidy_records(&*self.service).await;
    }
}

fn parallel_pull_limit(cfg: &ImageConfig) -> usize {
    let asked = cfg.parallel_pulls.and_then(|n| usize::try_from(n).ok());
    asked.map_or(MAX_PARALLEL, |n| n.clamp(1, MAX_PARALLEL))
}

/// Appends `:latest` to a reference that has neither tag nor digest; short names are not expanded (IMG-01).
pub(super) fn with_default_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if image.contains('@') || last.contains(':') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_tags() {
        // IMG-01
        for (image, expected) in [
            ("busybox", "busybox:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("localhost:5000/a:1", "localhost:5000/a:1"),
            (
                "a@sha256:0123456789012345678901234567890123456789012345678901234567890123",
                "a@sha256:0123456789012345678901234567890123456789012345678901234567890123",
            ),
        ] {
            assert_eq!(with_default_tag(image), expected);
        }
    }
}
