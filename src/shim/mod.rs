//! The process beside each container: parent of its init, owner of its output, keeper of its exit code.
//!
//! A shim lives as long as its container and needs no agent: the agent may be killed, replaced or absent. All they share
//! is the container's run directory, which is also the bundle (`config.json` is there before [`launch_shim()`] is called):
//!
//! | file | made by | what |
//! |---|---|---|
//! | `shim.lock` | agent | locked while the launch or the shim lives |
//! | `stdin`, `stdout`, `stderr` | agent | FIFOs; the container holds its outputs open for reading too, so that a dead shim neither kills it nor loses a byte |
//! | `init.pid`, `runtime.log` | runtime | its pid file and its JSON log |
//! | `state` | shim | [`ContainerStateRecord`]: written when the container is created |
//! | `exit` | shim | [`ContainerExitRecord`]: the last thing a shim writes; its end is the doorbell |
//! | `ctl` | shim | control socket: attach, resize, close stdin, reopen the log ([`control`]) |
//!
//! The log's end may be held in memory, in [`held_log_path`], which the shim makes and removes.
//!
//! A free lock without `exit` means that the shim died. The agent then starts a log-only shim ([`launch_log_only`]), which
//! takes the FIFOs over, and kills the container.
//!
//! The shim itself ([`process`]) is started before the Rust runtime, keeps its buffers in pages that it gives
//! back when idle, and touches neither executor nor JSON parser: see `SPECIFICATION.md` for its memory.

mod clients;
pub mod control;
mod create;
mod launch;
mod line;
mod log;
mod log_memory;
pub mod process;
pub mod record;
mod rotation;
mod serve;

use std::path::{Path, PathBuf};

pub use control::{attach_streams, close_stdin, reopen_log, resize_terminal};
pub use launch::{
    CREATE_TIMEOUT, LiveShim, LogShimLaunch, ShimLaunch, ShimLaunchError, end_launch,
    find_live_shim, is_shim_alive, launch_log_only, launch_shim, runtime_message,
};
#[cfg(any(test, fuzzing))]
pub(crate) use line::fuzz;
pub use record::{
    ContainerExitRecord, ContainerStateRecord, ShimRecordError, read_exit, read_state,
};
pub use rotation::LogLimit;

/// Names of the files in the container's run directory.
pub mod file {
    /// The lock.
    pub const LOCK: &str = "shim.lock";
    /// Standard input of a container that has one.
    pub const STDIN: &str = "stdin";
    /// Standard output.
    pub const STDOUT: &str = "stdout";
    /// Standard error.
    pub const STDERR: &str = "stderr";
    /// Pid of the container's init in the host's numbering, written by the runtime.
    pub const PID: &str = "init.pid";
    /// The runtime's JSON log.
    pub const RUNTIME_LOG: &str = "runtime.log";
    /// State record.
    pub const STATE: &str = "state";
    /// Exit record.
    pub const EXIT: &str = "exit";
    /// Control socket.
    pub const CTL: &str = "ctl";
    /// Socket at which the runtime hands over the terminal; exists only while a container with a terminal is created.
    pub const CONSOLE: &str = "console";
}

/// Directory in the run directory that holds the ends of logs: a tmpfs.
const HELD_LOGS: &str = "logs";

/// Directory in which all shims hold the ends of logs in memory: its size limits them all together.
#[must_use]
pub fn held_logs_dir(run_dir: &Path) -> PathBuf {
    run_dir.join(HELD_LOGS)
}

/// File in which the shim of a container holds the end of its log, if it does ([`crate::api::log_memory`]).
#[must_use]
pub fn held_log_path(run_dir: &Path, id: &str) -> PathBuf {
    held_logs_dir(run_dir).join(id)
}

/// The build that wrote a record.
pub const BUILD: &str = env!("CARGO_PKG_VERSION");
