//! Getting the image of a container: pull policies, back-off, events. Rows IMG-01 to IMG-10.

use super::{ctx::Ctx, recorder::Severity, start::StartError};
use crate::{
    api::{Container, Pod, cri::Image},
    image::Reference,
    runtime::RuntimeError,
};

/// Errors of the runtime that are waiting reasons themselves (IMG-08).
const RUNTIME_REASONS: [&str; 2] = ["RegistryUnavailable", "SignatureValidationFailed"];

/// Makes sure that the container's image is there, as its pull policy says, and returns it.
pub(super) async fn ensure(
    ctx: &Ctx,
    pod: &Pod,
    container: &Container,
) -> Result<Image, StartError> {
    let event = |severity, reason, message: &str| {
        ctx.container_event(pod, &container.name, severity, reason, message)
    };
    if let Err(why) = Reference::parse(&container.image) {
        let message = format!(
            "Failed to apply default image tag \"{}\": {why}",
            container.image
        );
        event(Severity::Warning, "InspectFailed", &message);
        return Err(StartError::new("InvalidImageName", message));
    }
    let reference = with_default_tag(&container.image);
    let always = container.image_pull_policy == "Always";
    if !always {
        match ctx.runtime.image_status(&reference).await {
            Ok(Some(image)) => {
                event(
                    Severity::Normal,
                    "Pulled",
                    &format!("Container image \"{reference}\" already present on machine"),
                );
                return Ok(image);
            }
            Ok(None) => {}
            Err(e) => {
                let message = format!("Failed to inspect image \"{reference}\": {e}");
                event(Severity::Warning, "InspectFailed", &message);
                return Err(StartError::new("ImageInspectError", message));
            }
        }
    }
    if container.image_pull_policy == "Never" {
        let message =
            format!("Container image \"{reference}\" is not present with pull policy of Never");
        event(Severity::Warning, "ErrImageNeverPull", &message);
        return Err(StartError::new("ErrImageNeverPull", message));
    }
    pull(ctx, pod, container, &reference).await
}

async fn pull(
    ctx: &Ctx,
    pod: &Pod,
    container: &Container,
    reference: &str,
) -> Result<Image, StartError> {
    let event = |severity, reason, message: &str| {
        ctx.container_event(pod, &container.name, severity, reason, message)
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
        event(Severity::Warning, "Failed", "Error: ImagePullBackOff");
        return Err(StartError::new("ImagePullBackOff", message));
    }
    event(
        Severity::Normal,
        "Pulling",
        &format!("Pulling image \"{reference}\""),
    );
    let started = ctx.clock.now();
    let pulled = match ctx.runtime.pull_image(reference).await {
        Ok(id) => ctx
            .runtime
            .image_status(&id)
            .await
            .and_then(|found| found.ok_or(RuntimeError::NotFound(id))),
        Err(e) => Err(e),
    };
    match pulled {
        Ok(image) => {
            let took = ctx.clock.now() - started;
            event(
                Severity::Normal,
                "Pulled",
                &format!(
                    "Successfully pulled image \"{reference}\" in {took:?} ({took:?} including waiting). Image size: {} bytes.",
                    image.size_bytes
                ),
            );
            Ok(image)
        }
        Err(e) => {
            let text = e.to_string();
            ctx.image_backoff
                .borrow_mut()
                .failed(uid, reference, &text, ctx.clock.now());
            event(
                Severity::Warning,
                "Failed",
                &format!("Failed to pull image \"{reference}\": {text}"),
            );
            let reason = RUNTIME_REASONS
                .into_iter()
                .find(|r| text.starts_with(r))
                .unwrap_or("ErrImagePull");
            event(Severity::Warning, "Failed", &format!("Error: {reason}"));
            Err(StartError::new(reason, text))
        }
    }
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
