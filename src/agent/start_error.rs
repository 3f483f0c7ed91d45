//! Exit codes of the agent, and errors that keep it from starting.

use std::process::ExitCode;

use crate::sys::lane::Lane;

/// Exit code of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentExitCode {
    /// Asked to.
    Done = 0,
    /// The agent could not go on.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
}

impl From<AgentExitCode> for ExitCode {
    fn from(exit: AgentExitCode) -> Self {
        Self::from(exit as u8)
    }
}

/// Reason why the agent cannot start: one line for the operator, with the fix where there is one.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct AgentStartError {
    pub(super) message: String,
    pub(super) exit: AgentExitCode,
}

/// Makes the error of an agent that cannot go on.
pub(super) fn fatal_error(message: impl Into<String>) -> AgentStartError {
    AgentStartError {
        message: message.into(),
        exit: AgentExitCode::Failed,
    }
}

/// The command line or the configuration is wrong.
pub(super) fn usage_error(message: impl Into<String>) -> AgentStartError {
    AgentStartError {
        message: message.into(),
        exit: AgentExitCode::Usage,
    }
}

/// A thread for what blocks.
pub(super) fn start_lane(name: &str) -> Result<Lane, AgentStartError> {
    Lane::start(name).map_err(|e| fatal_error(format!("cannot start a thread: {e}")))
}
