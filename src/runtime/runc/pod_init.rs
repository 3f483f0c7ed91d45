//! The init of a shared PID namespace: reaps what the containers leave, and keeps the namespace while none of them runs.
//!
//! The only process a sandbox ever has, and only with `shareProcessNamespace`. It outlives the agent; stopping the sandbox
//! kills it, and with it everything in the namespace.

use std::process::ExitCode;

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};

/// First argument that makes the program one.
pub const COMMAND: &str = "pod-init";

/// Runs until SIGTERM or SIGINT.
#[must_use]
pub fn main() -> ExitCode {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => reap(),
            Ok(_) => return ExitCode::SUCCESS,
            Err(Errno::EINTR) => {}
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// One SIGCHLD stands for any number of children.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}
