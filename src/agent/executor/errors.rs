//! Why a call did not do all of its work, and when it is tried again.

use crate::{agent::images::Waiting, api::Mono, logic::work_queue::Retry};

/// Why a sync failed: when to try again, and what to tell.
#[derive(Debug)]
pub(in crate::agent) struct SyncError {
    pub(in crate::agent) retry: Retry,
    pub(in crate::agent) message: String,
}

impl SyncError {
    pub(in crate::agent) fn new(message: impl Into<String>) -> Self {
        Self {
            retry: Retry::Error,
            message: message.into(),
        }
    }
}

/// Why a container did not start: the waiting reason, its message, and when a back-off ends.
#[derive(Clone, Debug)]
pub(in crate::agent) struct StartError {
    pub(in crate::agent) reason: &'static str,
    pub(in crate::agent) message: String,
    pub(in crate::agent) until: Option<Mono>,
}

impl StartError {
    pub(in crate::agent) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            until: None,
        }
    }
}

impl From<Waiting> for StartError {
    fn from(waiting: Waiting) -> Self {
        Self::new(waiting.reason, waiting.message)
    }
}
