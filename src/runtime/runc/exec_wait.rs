//! The process beside a command in a container: has the OCI runtime start it detached, becomes its parent, and ends with its
//! exit code. It is a child of the agent, and ends with the command.
//!
//! Without it the runtime itself would stay resident (12 MiB) and copy every byte; in that mode runc 1.1 can lose a
//! terminal's last words. Arguments: the pid file, then the runtime's command line with `exec --detach`.

use std::{
    ffi::OsString,
    fs,
    process::{Command, ExitCode},
};

use nix::{
    errno::Errno,
    sys::{
        prctl::set_child_subreaper,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// First argument that makes the program one.
pub const COMMAND: &str = "exec-wait";
/// Exit code when the command could not be started or watched; the runtime's log says why.
const FAILED: u8 = 255;
/// Added to a signal's number, as shells do.
const SIGNALLED: i32 = 128;

/// Runs to the end of the command.
#[must_use]
pub fn main(words: &[OsString]) -> ExitCode {
    ExitCode::from(run(words).unwrap_or(FAILED))
}

fn run(words: &[OsString]) -> Option<u8> {
    let [pid_file, program, args @ ..] = words else {
        return None;
    };
    // Before the command exists: its parent is the runtime, which ends first.
    set_child_subreaper(true).ok()?;
    let status = Command::new(program).args(args).status().ok()?;
    if !status.success() {
        return u8::try_from(status.code()?).ok();
    }
    let pid = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
    let code = loop {
        match waitpid(Pid::from_raw(pid), None) {
            Ok(WaitStatus::Exited(_, code)) => break code,
            Ok(WaitStatus::Signaled(_, signal, _)) => break SIGNALLED + signal as i32,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    };
    u8::try_from(code).ok()
}
