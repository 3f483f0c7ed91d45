//! The pod that wants an image, as far as getting one knows it.

use core::pin::Pin;

use super::credentials::PodPullSecrets;
use crate::{
    agent::recorder::EventSeverity,
    api::{Pod, PodError, cri::SandboxConfig},
    image::pull::{PluginAccount, TokenAttributes},
};

/// Future of an answer that takes its time.
pub(in crate::agent) type ImageFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A pod that is being started, as its starter presents it.
pub(in crate::agent) trait StartingPod {
    /// The pod.
    fn pod(&self) -> &Pod;
    /// Records an event of its container of this name, or of the pod.
    fn record_event(
        &self,
        container: Option<&str>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    );
    /// Configuration of the pod's sandbox; `None` if it cannot be told.
    fn sandbox_config(&self) -> Option<SandboxConfig>;
    /// Present content of the pod's pull secrets.
    fn pull_secrets(&self) -> ImageFuture<'_, PodPullSecrets>;
    /// Returns true if the pod has a service account that plugins can be asked with. A static pod has none.
    fn has_account(&self) -> bool {
        false
    }
    /// The pod's service account as a plugin is told of it. `None`: the pod has none, or it lacks an annotation that the
    /// plugin requires.
    fn plugin_account<'a>(
        &'a self,
        _wanted: &'a TokenAttributes,
    ) -> ImageFuture<'a, Result<Option<PluginAccount>, PodError>> {
        Box::pin(core::future::ready(Ok(None)))
    }
    /// A new token of the pod's service account, bound to the pod.
    fn account_token<'a>(
        &'a self,
        _audience: &'a str,
    ) -> ImageFuture<'a, Result<String, PodError>> {
        let why = PodError::Object("the pod has no service account".into());
        Box::pin(core::future::ready(Err(why)))
    }
    /// Resolves when the pod is to end, and waits for nothing any more (PW-14).
    fn wait_cancelled(&self) -> ImageFuture<'_, ()>;
}

/// Reason why a container waits for an image, for its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct ImageWaitReason {
    /// Reason in the kubelet's words.
    pub(in crate::agent) reason: &'static str,
    /// Message for people.
    pub(in crate::agent) message: String,
}

impl ImageWaitReason {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
