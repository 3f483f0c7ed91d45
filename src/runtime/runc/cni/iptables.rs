//! Calls of iptables and programs of its family.

use core::time::Duration;
use std::{
    io,
    path::{Path, PathBuf},
};

use super::PATH;
use crate::{
    runtime::runc::gate::{ChildLimiter, ChildPriority},
    sys::child::{self, ChildInput, Command},
};

/// A call that takes longer is killed; another program may hold the lock.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that iptables itself waits for that lock, seconds.
const LOCK_WAIT_S: &str = "20";
/// Longest answer that is kept, bytes: all rules of a large nat table.
const ANSWER_LIMIT: usize = 4 << 20;

/// Error of a call of iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program is not installed on this machine.
    #[error("{0}: is not installed: install the iptables package")]
    Missing(&'static str),
    /// The program could not be run, or did not end.
    #[error("{0}")]
    Run(&'static str, #[source] io::Error),
    /// The program refused.
    #[error("{program}: {words}")]
    Refused {
        /// Name of the program.
        program: &'static str,
        /// Error text of the program.
        words: String,
    },
    /// Rules that are not ours lead into a chain of ours.
    #[error("chain {0} is still in use")]
    InUse(String),
}

pub(crate) fn find_iptables_program(program: &str) -> Option<PathBuf> {
    PATH.split(':')
        .map(|dir| Path::new(dir).join(program))
        .find(|path| path.is_file())
}

/// Runs a program of the family; `gate` is for one that others may have to wait for. Returns its answer.
///
/// # Errors
/// See [`IptablesError`].
pub(crate) async fn run_iptables(
    program: &'static str,
    args: &[&str],
    input: Option<String>,
    gate: Option<&ChildLimiter>,
) -> Result<String, IptablesError> {
    let path = find_iptables_program(program).ok_or(IptablesError::Missing(program))?;
    let mut command = Command::new(path)
        .args(["-w", LOCK_WAIT_S])
        .args(args)
        .env("PATH", PATH)
        .capture_output(ANSWER_LIMIT);
    if let Some(input) = input {
        command = command.stdin(ChildInput::Bytes(input.into()));
    }
    let ran = match gate {
        Some(gate) => {
            let _pass = gate.acquire_permit(ChildPriority::Connect).await;
            child::run_command(gate.attach_lock(command), Some(CALL_TIMEOUT)).await
        }
        None => child::run_command(command, Some(CALL_TIMEOUT)).await,
    };
    let output = ran.map_err(|e| IptablesError::Run(program, e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(IptablesError::Refused { program, words })
}

/// Runs a program of the family without a gate. A refusal is an answer too: `None`.
///
/// # Errors
/// See [`IptablesError`].
pub(crate) async fn ask_iptables(
    program: &'static str,
    args: &[&str],
) -> Result<Option<String>, IptablesError> {
    match run_iptables(program, args, None, None).await {
        Err(IptablesError::Refused { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Runs a program whose refusal is an answer too: `None`.
pub(super) async fn query_iptables(
    program: &'static str,
    args: &[&str],
    gate: &ChildLimiter,
) -> Result<Option<String>, IptablesError> {
    match run_iptables(program, args, None, Some(gate)).await {
        Err(IptablesError::Refused { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}
