//! Errors of calls that did not do all of their work, and the time of the next try.

use crate::{
    agent::images::ImageWaitReason,
    api::{MonoTime, SandboxId},
    error::error_chain,
    logic::work_queue::RetryCause,
    runtime::RuntimeError,
};

/// Failure of a sync: when to try again, and what to tell.
#[derive(Debug)]
pub(crate) struct SyncError {
    pub(crate) retry: RetryCause,
    pub(crate) message: String,
}

impl SyncError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            retry: RetryCause::Error,
            message: message.into(),
        }
    }
}

/// Reason why a container did not start: the waiting reason, its message, and the end of a back-off.
#[derive(Clone, Debug)]
pub(crate) struct ContainerStartError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) until: Option<MonoTime>,
}

impl ContainerStartError {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            until: None,
        }
    }
}

impl From<ImageWaitReason> for ContainerStartError {
    fn from(waiting: ImageWaitReason) -> Self {
        Self::new(waiting.reason, waiting.message)
    }
}

/// Containers or sandbox of a pod that the runtime could not stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KillError {
    #[error("container {0}")]
    Container(String, #[source] RuntimeError),
    #[error("sandbox {0}")]
    Sandbox(SandboxId, #[source] RuntimeError),
    /// At least one of them.
    #[error("{}", join_messages(.0))]
    Some(Vec<Self>),
}

impl From<KillError> for SyncError {
    fn from(error: KillError) -> Self {
        Self::new(error_chain(&error))
    }
}

fn join_messages(errors: &[KillError]) -> String {
    let all: Vec<String> = errors.iter().map(|e| error_chain(e)).collect();
    all.join("; ")
}
