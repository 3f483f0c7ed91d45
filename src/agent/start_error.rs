//! Exit codes of the agent, and errors that keep it from starting.

use std::process::ExitCode;

use crate::sys::lane::Lane;

/// Exit code of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Asked to.
    Done = 0,
    /// The agent could not go on.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Reason why the agent cannot start: one line for the operator, with the fix where there is one.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct StartError {
    pub(super) message: String,
    pub(super) exit: Exit,
}

/// Makes the error of an agent that cannot go on.
pub(super) fn fatal(message: impl Into<String>) -> StartError {
    StartError {
        message: message.into(),
        exit: Exit::Failed,
    }
}

/// The command line or the configuration is wrong.
pub(super) fn usage(message: impl Into<String>) -> StartError {
    StartError {
        message: message.into(),
        exit: Exit::Usage,
    }
}

/// A thread for what blocks.
pub(super) fn lane(name: &str) -> Result<Lane, StartError> {
    Lane::start(name).map_err(|e| fatal(format!("cannot start a thread: {e}")))
}
