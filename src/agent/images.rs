//! Getting the images of a container, its own and those of its volumes: pull policies, back-off, events. Rows IMG-01 to
//! IMG-10, IMG-20 and IMG-21.

use super::{
    ctx::Ctx,
    image_access,
    image_pulls::{self, Credentials},
    recorder::Severity,
    start::{Pass, StartError},
};
use alloc::collections::BTreeMap;
use core::time::Duration;

use smol::future::FutureExt as _;

use crate::{
    api::{
        Container, Pod,
        cri::{Image, ImageSpec},
    },
    image::Reference,
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

/// An image that is wanted, and by whom.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    /// As the pod has it.
    image: &'a str,
    policy: &'a str,
    /// The container made of it; `None` for a volume, of which events of the pod tell.
    container: Option<&'a str>,
}

impl Wanted<'_> {
    fn event(&self, ctx: &Ctx, pod: &Pod, severity: Severity, reason: &str, message: &str) {
        match self.container {
            Some(name) => ctx.container_event(pod, name, severity, reason, message),
            None => ctx.pod_event(pod, severity, reason, message),
        }
    }
}

/// Makes sure that the container's image is there, as its pull policy says, and returns it; `None` if the pod's call was
/// cancelled meanwhile.
pub(super) async fn ensure(
    pass: &Pass<'_>,
    container: &Container,
) -> Result<Option<Image>, StartError> {
    let wanted = Wanted {
        image: &container.image,
        policy: &container.image_pull_policy,
        container: Some(&container.name),
    };
    ensure_wanted(pass, &wanted).await
}

/// The images of the volumes that `container` mounts, by the volume's name, each looked for once in a pass, whoever else
/// mounts it; `None` if the pod's call was cancelled meanwhile.
///
/// - Errors: the last one that is not there. All were tried, and each that failed is told.
/// - Source: kubelet `kuberuntime_manager.go`, `getImageVolumes`, `toKubeContainerImageVolumes`. A kubelet also gets images
///   that no container mounts, and all of them at every sync.
pub(super) async fn ensure_volumes(
    pass: &Pass<'_>,
    container: &Container,
) -> Result<Option<BTreeMap<String, ImageSpec>>, StartError> {
    let mut specs = BTreeMap::new();
    let mut failed = None;
    for volume in &pass.pod.spec.volumes {
        let Some(source) = &volume.image else {
            continue;
        };
        if !container.mounts(&volume.name) {
            continue;
        }
        let known = pass.volume_images.borrow().get(&volume.name).cloned();
        let ensured = match known {
            Some(ensured) => ensured,
            None => {
                let wanted = Wanted {
                    image: &source.reference,
                    policy: &source.pull_policy,
                    container: None,
                };
                let ensured = match ensure_wanted(pass, &wanted).await {
                    Ok(Some(image)) => Ok(image.id),
                    Ok(None) => return Ok(None),
                    Err(e) => Err(e),
                };
                let mut known = pass.volume_images.borrow_mut();
                known.insert(volume.name.clone(), ensured.clone());
                ensured
            }
        };
        match ensured {
            Ok(image) => {
                let user_image = source.reference.clone();
                specs.insert(volume.name.clone(), ImageSpec { image, user_image });
            }
            Err(e) => {
                pass.ctx.container_event(
                    pass.pod,
                    &container.name,
                    Severity::Warning,
                    "Failed",
                    &format!("Error: {}", e.reason),
                );
                failed = Some(e);
            }
        }
    }
    failed.map_or(Ok(Some(specs)), Err)
}

async fn ensure_wanted(pass: &Pass<'_>, wanted: &Wanted<'_>) -> Result<Option<Image>, StartError> {
    let Pass { ctx, pod, .. } = *pass;
    let event = |severity, reason, message: &str| wanted.event(ctx, pod, severity, reason, message);
    if let Err(why) = Reference::parse(wanted.image) {
        let message = format!(
            "Failed to apply default image tag \"{}\": {why}",
            wanted.image
        );
        event(Severity::Warning, "InspectFailed", &message);
        return Err(StartError::new("InvalidImageName", message));
    }
    let reference = with_default_tag(wanted.image);
    let always = wanted.policy == "Always";
    // It is there, and not for this pod unless the registry says so (IMG-20).
    let mut is_others = false;
    if !always {
        match ctx.runtime.image_status(&reference).await {
            Ok(Some(image)) if image_access::may_use(ctx, pod, &reference, &image.id).await => {
                let message = format!(
                    "Container image \"{reference}\" already present on machine and can be accessed by the pod"
                );
                event(Severity::Normal, "Pulled", &message);
                return Ok(Some(image));
            }
            Ok(Some(_)) => is_others = true,
            Ok(None) => {}
            Err(e) => {
                let message = format!("Failed to inspect image \"{reference}\": {e}");
                event(Severity::Warning, "InspectFailed", &message);
                return Err(StartError::new("ImageInspectError", message));
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
        event(Severity::Warning, "ErrImageNeverPull", &message);
        return Err(StartError::new("ErrImageNeverPull", message));
    }
    pull(pass, wanted, &reference).await
}

async fn pull(
    pass: &Pass<'_>,
    wanted: &Wanted<'_>,
    reference: &str,
) -> Result<Option<Image>, StartError> {
    let Pass { ctx, pod, .. } = *pass;
    let event = |severity, reason, message: &str| wanted.event(ctx, pod, severity, reason, message);
    // A volume's failure is told by each container that waits for it.
    let told = |reason: &str| {
        if wanted.container.is_some() {
            event(Severity::Warning, "Failed", &format!("Error: {reason}"));
        }
    };
    let uid = &pod.metadata.uid;
    let waiting = ctx
        .image_backoff
        .borrow()
        .waiting(uid, reference, ctx.clock.now());
    if let Some(message) = waiting {
        event(
            Severity::Normal,
            "BackOff",
            &format!("Back-off pulling image \"{reference}\""),
        );
        told("ImagePullBackOff");
        return Err(StartError::new("ImagePullBackOff", message));
    }
    event(
        Severity::Normal,
        "Pulling",
        &format!("Pulling image \"{reference}\""),
    );
    let started = ctx.clock.now();
    let repository = Reference::parse(reference)
        .map(|parsed| parsed.repository().to_owned())
        .unwrap_or_default();
    let credentials = image_pulls::credentials(ctx, pod, &repository).await;
    let begun = image_access::begin(ctx, reference, &credentials).await;
    let allowed = ctx.pull_rate.borrow_mut().allows(started);
    let pulled = if let Err(e) = &begun {
        let message = format!("that it is pulled cannot be noted: {e}");
        Some(Err(RuntimeError::Failed(message)))
    } else if allowed {
        // A pull may take hours, and a pod that is to end waits for nothing of that (PW-14).
        let cancelled = async {
            ctx.pods.cancelled(pass.handle).await;
            None
        };
        let pulled = async { Some(pull_now(ctx, pod, wanted, reference, &credentials).await) };
        pulled.or(cancelled).await
    } else {
        Some(Err(RuntimeError::Failed("pull QPS exceeded".into())))
    };
    image_access::end(ctx, begun.unwrap_or_default()).await;
    let Some(pulled) = pulled else {
        return Ok(None);
    };
    match pulled {
        Ok((image, took)) => {
            let all = go_text(ctx.clock.now() - started);
            let took = go_text(took);
            event(
                Severity::Normal,
                "Pulled",
                &format!(
                    "Successfully pulled image \"{reference}\" in {took} ({all} including waiting). Image size: {} bytes.",
                    image.size_bytes
                ),
            );
            Ok(Some(image))
        }
        Err(e) => {
            let text = e.to_string();
            event(
                Severity::Warning,
                "Failed",
                &format!("Failed to pull image \"{reference}\": {text}"),
            );
            let (reason, message) = reason_of(reference, text);
            ctx.image_backoff.borrow_mut().failed(
                uid,
                reference,
                &format!("{reason}: {message}"),
                ctx.clock.now(),
            );
            told(reason);
            Err(StartError::new(reason, message))
        }
    }
}

/// Time between two events that tell how far a pull is. Most pulls are over before the first.
const PROGRESS_EVENTS: Duration = Duration::from_secs(120);

/// The pull itself, with events while it takes long. Returns the image and the time without waiting for other pulls.
async fn pull_now(
    ctx: &Ctx,
    pod: &Pod,
    wanted: &Wanted<'_>,
    reference: &str,
    credentials: &Credentials,
) -> Result<(Image, Duration), RuntimeError> {
    let keyring = credentials.ring.clone();
    let told = async {
        loop {
            ctx.clock.until(ctx.clock.now() + PROGRESS_EVENTS).await;
            if let Some(progress) = ctx.runtime.pull_progress(reference) {
                let message = format!("Pulling image \"{reference}\": {progress}");
                wanted.event(ctx, pod, Severity::Normal, "Pulling", &message);
            }
        }
    };
    let pulled = ctx.runtime.pull_image(reference, keyring).or(told).await;
    // Unpacking used it.
    ctx.heap_used.set(true);
    let pulled = pulled?;
    let with = pulled.with.as_deref();
    image_access::pulled(ctx, reference, &pulled.id, credentials, with).await;
    let found = ctx.runtime.image_status(&pulled.id).await?;
    let image = found.ok_or(RuntimeError::NotFound(pulled.id))?;
    Ok((image, pulled.took))
}

/// Waiting reason and message of a failed pull. Source: kubelet `images/image_manager.go`, `evalCRIPullErr`.
fn reason_of(reference: &str, text: String) -> (&'static str, String) {
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
fn go_text(time: Duration) -> String {
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
            assert_eq!(go_text(Duration::from_millis(ms)), text);
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
            assert_eq!(reason_of("a:1", text.into()), (reason, message.into()));
        }
    }

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
