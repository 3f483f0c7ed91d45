//! A pull for a pod: back-off, rate, credentials, events while it takes long.

use core::time::Duration;

use smol::future::FutureExt as _;

use super::{
    credentials::{NodeKeyring, PullCredentials, find_pod_credentials},
    for_pod::{ImageWaitReason, StartingPod},
    owner::{AgentImages, PulledImage},
};
use crate::{
    agent::{
        link_policy::{DeferredPull, UrgentPull},
        recorder::EventSeverity,
    },
    api::{PodUid, cri::StoredImage, link::PullUrgency},
    image::ImageReference,
    logic::pod_kind::is_critical,
    runtime::RuntimeError,
};

/// Errors of the runtime that are waiting reasons themselves (IMG-08).
const RUNTIME_REASONS: [(&str, &str); 2] = [
    ("RegistryUnavailable", "the registry is unavailable"),
    (
        "SignatureValidationFailed",
        "the signature validation failed",
    ),
];

/// Reason of a container that waits because its image waits for the link.
pub(super) const DEFERRED: &str = "PullDeferred";
/// Time between two events that tell how far a pull is. Most pulls are over before the first.
const PROGRESS_EVENTS: Duration = Duration::from_secs(120);

/// An image that is wanted, and by whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedImage<'a> {
    /// Reference as the pod has it.
    pub(super) image: &'a str,
    pub(super) policy: &'a str,
    /// The container made of it; `None` for a volume, of which events of the pod tell.
    pub(super) container: Option<&'a str>,
}

impl AgentImages {
    /// Pulls `reference` now, unless a pull failed lately. Returns the image; `None` if the pod is to end.
    ///
    /// - Errors: the reason why the container waits; an event has told the failure.
    pub(super) async fn pull_image(
        &self,
        pod: &dyn StartingPod,
        wanted: &WantedImage<'_>,
        reference: &str,
    ) -> Result<Option<StoredImage>, ImageWaitReason> {
        let event = |severity, reason, message: &str| {
            pod.record_event(wanted.container, severity, reason, message);
        };
        // A volume's failure is told by each container that waits for it.
        let told = |reason: &str| {
            if wanted.container.is_some() {
                event(
                    EventSeverity::Warning,
                    "Failed",
                    &format!("Error: {reason}"),
                );
            }
        };
        let uid = &pod.pod().metadata.uid;
        let urgency = match is_critical(pod.pod()) {
            true => PullUrgency::Critical,
            false => PullUrgency::Normal,
        };
        if let Err(deferred) = self.may_begin_by_link(uid, reference, urgency).await {
            let waiting = link_wait_reason(reference, deferred, &event);
            return self.use_older_image(pod, wanted, reference, waiting).await;
        }
        if let Some(message) = self.pull_delay_reason(pod, reference) {
            let told_of = format!("Back-off pulling image \"{reference}\"");
            event(EventSeverity::Normal, "BackOff", &told_of);
            told("ImagePullBackOff");
            return Err(ImageWaitReason::new("ImagePullBackOff", message));
        }
        let pulling = format!("Pulling image \"{reference}\"");
        event(EventSeverity::Normal, "Pulling", &pulling);
        let started = self.clock.now();
        let budget = self.budget.as_deref();
        let budget = budget.filter(|_| urgency > PullUrgency::Normal);
        let urgent = budget.map(|budget| UrgentPull::begin(budget, reference, urgency));
        let pulled = self.pull_with_notes(pod, wanted, reference).await;
        drop(urgent);
        match pulled {
            None => Ok(None),
            Some(Err(RuntimeError::Deferred(says))) => {
                let may = self.may_begin_by_link(uid, reference, urgency);
                // Meanwhile there are bytes again: it is tried again soon.
                let deferred = may.await.err().unwrap_or(DeferredPull {
                    says,
                    is_news: false,
                    after: Duration::ZERO,
                });
                let waiting = link_wait_reason(reference, deferred, &event);
                self.use_older_image(pod, wanted, reference, waiting).await
            }
            Some(Ok((image, took))) => {
                let all = format_go_duration(self.clock.now() - started);
                let took = format_go_duration(took);
                let message = format!(
                    "Successfully pulled image \"{reference}\" in {took} ({all} including waiting). Image size: {} bytes.",
                    image.size_bytes
                );
                event(EventSeverity::Normal, "Pulled", &message);
                Ok(Some(image))
            }
            Some(Err(e)) => {
                let text = e.to_string();
                let message = format!("Failed to pull image \"{reference}\": {text}");
                event(EventSeverity::Warning, "Failed", &message);
                let (reason, message) = pull_failure_reason(reference, text);
                self.note_pull_failure(pod, reference, &format!("{reason}: {message}"));
                told(reason);
                Err(ImageWaitReason::new(reason, message))
            }
        }
    }

    /// The image that is here under that name, if the pod may use it: a container is not kept from starting because a newer
    /// one waits for the link.
    async fn use_older_image(
        &self,
        pod: &dyn StartingPod,
        wanted: &WantedImage<'_>,
        reference: &str,
        waiting: ImageWaitReason,
    ) -> Result<Option<StoredImage>, ImageWaitReason> {
        match self.service.image_status(reference).await {
            Ok(Some(image)) if self.may_use(pod, reference, &image.id).await => {
                let message = format!(
                    "Container image \"{reference}\" already present on machine; a newer one waits for the link"
                );
                pod.record_event(wanted.container, EventSeverity::Normal, "Pulled", &message);
                Ok(Some(image))
            }
            _ => Err(waiting),
        }
    }

    /// Checks that a registry may be asked for this pod, by the budget of the link.
    pub(super) async fn may_begin_by_link(
        &self,
        uid: &PodUid,
        reference: &str,
        urgency: PullUrgency,
    ) -> Result<(), DeferredPull> {
        let Some(budget) = &self.budget else {
            return Ok(());
        };
        let found = self.service.image_status(reference).await;
        let is_here = matches!(found, Ok(Some(_)));
        budget.may_begin_pull(uid, reference, is_here, urgency)
    }

    /// Runs the pull, and writes the notes before and after it; `None` if the pod is to end. Returns the image and the
    /// time without the wait for other pulls.
    async fn pull_with_notes(
        &self,
        pod: &dyn StartingPod,
        wanted: &WantedImage<'_>,
        reference: &str,
    ) -> Option<Result<(StoredImage, Duration), RuntimeError>> {
        let started = self.clock.now();
        // A plugin may take a minute, and a pod that is to end waits for nothing of that (PW-14).
        let cancelled = async {
            pod.wait_cancelled().await;
            None
        };
        let credentials = pod_credentials(&*self.keyring, pod, reference);
        let credentials = async { Some(credentials.await) }.or(cancelled).await?;
        let begun = self
            .access
            .begin_pull(&*self.service, reference, &credentials)
            .await;
        let allowed = self.may_begin_pull(started);
        let pulled = if let Err(e) = &begun {
            let message = format!("cannot record the start of the pull: {e}");
            Some(Err(RuntimeError::Failed(message)))
        } else if allowed {
            // A pull may take hours, and a pod that is to end waits for nothing of that (PW-14).
            let cancelled = async {
                pod.wait_cancelled().await;
                None
            };
            let pulled = async {
                Some(
                    self.pull_with_events(pod, wanted, reference, &credentials)
                        .await,
                )
            };
            pulled.or(cancelled).await
        } else {
            Some(Err(RuntimeError::Failed("pull QPS exceeded".into())))
        };
        // A pulled image is noted to the end, also for a pod that is to end.
        let noted = match pulled {
            Some(Ok(pulled)) => Some(self.note_pull_result(reference, pulled, &credentials).await),
            Some(Err(e)) => Some(Err(e)),
            None => {
                // Past its last look at whether it is wanted, it brings the image all the same.
                let begun = begun.unwrap_or_default();
                self.access.note_abandoned_pull(&*self.service, begun).await;
                return None;
            }
        };
        self.access.end_pull(begun.unwrap_or_default()).await;
        noted
    }

    /// Pulls, with events while it takes long.
    async fn pull_with_events(
        &self,
        pod: &dyn StartingPod,
        wanted: &WantedImage<'_>,
        reference: &str,
        credentials: &PullCredentials,
    ) -> Result<PulledImage, RuntimeError> {
        let told = async {
            loop {
                self.clock
                    .sleep_until(self.clock.now() + PROGRESS_EVENTS)
                    .await;
                if let Some(progress) = self.service.pull_progress(reference) {
                    let message = format!("Pulling image \"{reference}\": {progress}");
                    pod.record_event(wanted.container, EventSeverity::Normal, "Pulling", &message);
                }
            }
        };
        let sandbox = pod.sandbox_config();
        let pulled = self.pull_with_credentials(
            reference,
            &credentials.own,
            sandbox.as_ref(),
            pod.has_account(),
        );
        pulled.or(told).await
    }

    /// Notes the Secrets whose credentials brought an image.
    async fn note_pull_result(
        &self,
        reference: &str,
        pulled: PulledImage,
        credentials: &PullCredentials,
    ) -> Result<(StoredImage, Duration), RuntimeError> {
        let with = pulled.with.as_deref();
        self.access
            .note_pulled_image(reference, &pulled.id, credentials, with)
            .await;
        let found = self.service.image_status(&pulled.id).await?;
        let image = found.ok_or(RuntimeError::NotFound(pulled.id))?;
        Ok((image, pulled.took))
    }
}

/// Reason for a container whose image waits for the link. An event tells it once.
fn link_wait_reason(
    reference: &str,
    deferred: DeferredPull,
    event: &impl Fn(EventSeverity, &'static str, &str),
) -> ImageWaitReason {
    let message = format!(
        "image \"{reference}\" waits for the link: {}",
        deferred.says
    );
    if deferred.is_news {
        event(EventSeverity::Normal, DEFERRED, &message);
    }
    ImageWaitReason::new(DEFERRED, message)
}

/// The credentials that a pod brings for `reference`. A Secret that is missing or has no credential is told and left
/// out (IMG-13).
async fn pod_credentials(
    keyring: &dyn NodeKeyring,
    pod: &dyn StartingPod,
    reference: &str,
) -> PullCredentials {
    let repository = ImageReference::parse(reference)
        .map(|parsed| parsed.repository().to_owned())
        .unwrap_or_default();
    let secrets = find_pod_credentials(keyring, pod, &repository).await;
    if !secrets.missing_secrets().is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            secrets.missing_secrets().join(", ")
        );
        let reason = "FailedToRetrieveImagePullSecret";
        pod.record_event(None, EventSeverity::Warning, reason, &message);
    }
    secrets.into_credentials(&repository)
}

/// Waiting reason and message of a failed pull. Source: kubelet `images/image_manager.go`, `evalCRIPullErr`.
fn pull_failure_reason(reference: &str, text: String) -> (&'static str, String) {
    for (reason, why) in RUNTIME_REASONS {
        if let Some(rest) = text.strip_prefix(reason) {
            return (
                reason,
                format!("image pull failed for {reference} because {why}{rest}"),
            );
        }
    }
    ("ErrImagePull", text)
}

/// A time as Go prints it, in whole milliseconds: `0s`, `850ms`, `1.2s`, `2m3.5s`, `1h0m2s`.
fn format_go_duration(time: Duration) -> String {
    let ms = time.as_millis();
    if ms == 0 {
        return "0s".into();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes, rest) = (ms / 3_600_000, ms / 60_000 % 60, ms % 60_000);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if ms >= 60_000 {
        text.push_str(&format!("{minutes}m"));
    }
    let fraction = format!("{:03}", rest % 1000);
    text.push_str(&(rest / 1000).to_string());
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text.push('s');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_reasons() {
        // IMG-04 IMG-08
        for (ms, text) in [
            (0, "0s"),
            (7, "7ms"),
            (1000, "1s"),
            (1230, "1.23s"),
            (60_000, "1m0s"),
            (123_456, "2m3.456s"),
            (3_602_000, "1h0m2s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_millis(ms)), text);
        }
        for (text, reason, message) in [
            ("no such image", "ErrImagePull", "no such image"),
            (
                "RegistryUnavailable: no route",
                "RegistryUnavailable",
                "image pull failed for a:1 because the registry is unavailable: no route",
            ),
            (
                "SignatureValidationFailed: unsigned",
                "SignatureValidationFailed",
                "image pull failed for a:1 because the signature validation failed: unsigned",
            ),
        ] {
            assert_eq!(
                pull_failure_reason("a:1", text.into()),
                (reason, message.into())
            );
        }
    }
}
