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
        /// Its exit code, if no signal ended it.
        code: Option<i32>,
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
    let code = output.status.code();
    Err(IptablesError::Refused {
        program,
        code,
        words,
    })
}

/// Takes the refusal of a rule or chain that is absent as an answer: `None`. Others (2: wrong words, also a jump to a
/// chain that is absent; 3: no such table; 4: the kernel or the lock) say nothing of it.
///
/// Source: iptables(8), "DIAGNOSTICS"; `include/xtables.h`.
fn accept_absence(answer: Result<String, IptablesError>) -> Result<Option<String>, IptablesError> {
    const ABSENT: i32 = 1;
    match answer {
        Err(IptablesError::Refused { code, .. }) if code == Some(ABSENT) => Ok(None),
        answer => answer.map(Some),
    }
}

impl IptablesError {
    /// Returns true if the kernel has no such table: then no rule of it is left. The program ends so for other causes, too.
    pub(crate) fn is_of_no_table(&self) -> bool {
        const NO_TABLE: i32 = 3;
        let Self::Refused {
            code: Some(NO_TABLE),
            words,
            ..
        } = self
        else {
            return false;
        };
        // The table, the family of addresses, or the module is not there.
        let absent = [
            "does not exist",
            "not supported by protocol",
            "do you need to insmod?",
        ];
        absent.iter().any(|text| words.contains(text))
    }
}

/// Runs a program of the family without a gate. That something is absent is an answer too: `None`.
///
/// # Errors
/// See [`IptablesError`].
pub(crate) async fn ask_iptables(
    program: &'static str,
    args: &[&str],
) -> Result<Option<String>, IptablesError> {
    accept_absence(run_iptables(program, args, None, None).await)
}

/// Runs a program of the family. That something is absent is an answer too: `None`.
pub(super) async fn query_iptables(
    program: &'static str,
    args: &[&str],
    gate: &ChildLimiter,
) -> Result<Option<String>, IptablesError> {
    accept_absence(run_iptables(program, args, None, Some(gate)).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_refusal_says_that_a_rule_is_absent() {
        let refused = |code| IptablesError::Refused {
            program: "iptables",
            code,
            words: String::new(),
        };
        assert!(matches!(accept_absence(Err(refused(Some(1)))), Ok(None)));
        for code in [Some(2), Some(3), Some(4), None] {
            let answer = accept_absence(Err(refused(code)));
            assert!(answer.is_err(), "{code:?}");
            assert!(!refused(code).is_of_no_table(), "{code:?}");
            let mut answer = refused(code);
            if let IptablesError::Refused { words, .. } = &mut answer {
                *words = "can't initialize iptables table `nat': Table does not exist".into();
            }
            assert_eq!(answer.is_of_no_table(), code == Some(3));
        }
        let listed = accept_absence(Ok("-N C".into())).expect("an answer");
        assert_eq!(listed.as_deref(), Some("-N C"));
    }
}
