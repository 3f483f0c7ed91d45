//! The pod that wants an image, as far as getting one knows it.

use core::pin::Pin;

use super::credentials::PodSecrets;
use crate::{
    agent::recorder::Severity,
    api::{Pod, cri::SandboxConfig},
};

/// What takes its time.
pub(in crate::agent) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A pod that is being started: whoever starts it answers for it.
pub(in crate::agent) trait ForPod {
    /// The pod.
    fn pod(&self) -> &Pod;
    /// Records an event of its container of this name, or of the pod.
    fn event(&self, container: Option<&str>, severity: Severity, reason: &str, message: &str);
    /// How its sandbox was asked for; `None` if that cannot be told.
    fn sandbox(&self) -> Option<SandboxConfig>;
    /// What its pull secrets hold now.
    fn pull_secrets(&self) -> Pending<'_, PodSecrets>;
    /// Resolves when it is to end, and waits for nothing any more (PW-14).
    fn cancelled(&self) -> Pending<'_, ()>;
}

/// Why a container waits for an image, as its status says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Waiting {
    /// As the kubelet words it.
    pub(in crate::agent) reason: &'static str,
    /// For people.
    pub(in crate::agent) message: String,
}

impl Waiting {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
