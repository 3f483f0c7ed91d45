//! The init of a shared PID namespace: reaps what the containers leave, and keeps the namespace while none of them runs.
//!
//! The only process a sandbox ever has, and only with `shareProcessNamespace`. It outlives the agent; stopping the sandbox
//! kills it, and with it everything in the namespace. Its argument is the sandbox's directory, for whoever lists processes.
//!
//! It begins by waiting for [`RECORDED`] on its standard input. An agent that dies, or fails, between the start of it and the
//! record of it closes that pipe unwritten, and it ends: otherwise nobody would know of it any more.

use std::{io, process::ExitCode};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::read,
};

/// First argument that makes the program one.
pub const COMMAND: &str = "pod-init";

/// What the agent writes once it will find this process again.
pub const RECORDED: u8 = b'.';

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
    let mut word = [0];
    // Not through the buffer of standard input: it would stay for this process's life.
    if !matches!(read(io::stdin(), &mut word), Ok(1)) || word != [RECORDED] {
        return ExitCode::SUCCESS;
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
