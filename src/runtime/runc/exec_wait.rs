//! The process beside a command in a container: lets the OCI runtime start it detached, becomes its parent, and ends
//! with its exit code. It is a child of the agent, and ends with the command.
//!
//! Without it the runtime itself would stay resident (12 MiB) and copy every byte; in that mode runc 1.1 can lose a
//! terminal's last words. Arguments: the pid file, then the runtime's command line with `exec --detach`.
//!
//! SIGTERM ends the command, also while the runtime still starts it: only this process is sure to learn its pid then.
//! The command's files are removed in that case: the agent does not wait for them.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::Path,
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

use crate::sys::on_term;

/// First argument that makes the program such a process.
pub const COMMAND: &str = "exec-wait";
/// Exit code when the command could not be started or watched; the runtime's log says why.
const FAILED: u8 = 255;
/// Extensions of the files that may lie beside the pid file, itself included.
const FILES: [&str; 3] = ["pid", "log", "sock"];
/// Number that is added to a signal's for the exit code, as shells do.
const SIGNALLED: i32 = 128;
/// Time after SIGTERM in which the runtime may go on starting the command, seconds; then it is killed.
const START_PATIENCE_S: i32 = 10;

/// Runs to the end of the command.
#[must_use]
pub fn run_exec_wait(words: &[OsString]) -> ExitCode {
    ExitCode::from(run_and_clean_up(words).unwrap_or(FAILED))
}

fn run_and_clean_up(words: &[OsString]) -> Option<u8> {
    let [pid_file, program, args @ ..] = words else {
        return None;
    };
    let code = run_until_exit(Path::new(pid_file), program, args);
    if on_term::was_term_received() {
        for extension in FILES {
            let _ = fs::remove_file(Path::new(pid_file).with_extension(extension));
        }
    }
    code
}

fn run_until_exit(pid_file: &Path, program: &OsStr, args: &[OsString]) -> Option<u8> {
    // Set before the command exists: its parent is the runtime, which ends first.
    set_child_subreaper(true).ok()?;
    on_term::install_handler(START_PATIENCE_S).ok()?;
    let runtime = Command::new(program).args(args).spawn().ok()?;
    let code = wait_for_exit_code(Pid::from_raw(i32::try_from(runtime.id()).ok()?))?;
    if code != 0 {
        return u8::try_from(code).ok();
    }
    let pid = Pid::from_raw(fs::read_to_string(pid_file).ok()?.trim().parse().ok()?);
    on_term::set_target(pid);
    u8::try_from(wait_for_exit_code(pid)?).ok()
}

/// The exit code of a child.
fn wait_for_exit_code(pid: Pid) -> Option<i32> {
    loop {
        match waitpid(pid, None) {
            Ok(WaitStatus::Exited(_, code)) => return Some(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Some(SIGNALLED + signal as i32),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}
