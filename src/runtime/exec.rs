//! Commands with streams in running containers: what `exec -it` needs of a backend.

use core::{future::Future, pin::Pin};
use std::os::fd::OwnedFd;

use super::RuntimeError;

/// A command to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Program and arguments, at least one.
    pub command: Vec<String>,
    /// The command reads standard input.
    pub stdin: bool,
    /// It gets a terminal.
    pub tty: bool,
}

/// The agent's ends of a command's streams, not blocking. What was not asked for is absent.
#[derive(Debug, Default)]
pub struct ExecStreams {
    /// Write end of standard input; with a terminal its master.
    pub stdin: Option<OwnedFd>,
    /// Read end of standard output; with a terminal its master, where the end of the output reads as `EIO`.
    pub stdout: Option<OwnedFd>,
    /// Read end of standard error; absent with a terminal.
    pub stderr: Option<OwnedFd>,
}

/// A command that runs. Dropping it ends the process in the container.
pub trait ExecSession {
    /// Takes the streams; empty the second time.
    fn take_streams(&mut self) -> ExecStreams;
    /// Sets the terminal's size; nothing without a terminal.
    fn resize(&self, columns: u16, rows: u16);
    /// Waits for the end: the exit code, 128 + signal if it was killed. The error is the runtime's word why it could not
    /// be run.
    fn wait(&mut self) -> Pin<Box<dyn Future<Output = Result<i32, RuntimeError>> + '_>>;
}
