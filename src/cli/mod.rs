//! What was typed, and the local commands. Habits of kubectl carry over: names, columns, flags, exit codes.
//!
//! Two steps: words become one of the command structures (typed text first), then the command is carried out.

mod args;
mod client;
mod exec;
mod get;
mod image;
mod logs;
mod table;

use std::{ffi::OsString, io::Write as _, path::PathBuf, process::ExitCode};

use args::{Word, Words};
use client::Client;

use crate::runtime::runc::{exec_wait, pod_init};

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/picolet/picolet.sock";
/// Environment variable that names the agent's socket.
pub const SOCKET_VARIABLE: &str = "PICOLET_SOCKET";

const HELP: &str = "\
picolet: a kubelet for very small machines

Usage: picolet COMMAND [FLAGS]

Agent:
  run                      Run the node agent (picolet run --help lists its flags)
  stop [--all]             Stop the agent; with --all end its pods first

Pods:
  get pods|images|node     Show what runs here
      [NAME...] [-n NAMESPACE|-A] [-o wide|json|yaml|name] [--no-headers]
  logs POD                 Print a container's log
      [-c NAME] [-f] [-p] [--tail N] [--since 5m] [--since-time T] [--timestamps] [--limit-bytes N]
  exec POD -- COMMAND      Run a command in a container
      [-c NAME] [-i] [-t]

Images:
  image import FILE...     Import docker and OCI archives   [--name REFERENCE]
  image ls                 List images
  image rm IMAGE...        Remove images
  image prune              Remove images that no container uses

Other:
  version                  Print the version
  help                     Print this help

Flags of all client commands:
  --socket PATH            Where the agent listens (PICOLET_SOCKET, default /run/picolet/picolet.sock)
";

/// What a command could not do, and the exit code that says so.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    message: String,
    code: u8,
}

impl CliError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: format!("error: {}", message.into()),
            code: 1,
        }
    }

    /// An answer of the agent, worded as kubectl words one of the apiserver.
    fn from_server(status: u16, text: &str) -> Self {
        let reason = match status {
            400 => "BadRequest",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            _ => "InternalError",
        };
        Self {
            message: format!("Error from server ({reason}): {text}"),
            code: 1,
        }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(e: lexopt::Error) -> Self {
        Self::new(e.to_string())
    }
}

/// Entry point of the program, but for `picolet shim`.
#[must_use]
pub fn main() -> ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Flags of all commands may stand before the command, as kubectl takes them.
    let at = match words.first().and_then(|w| w.to_str()) {
        Some("--socket") => 2,
        Some(word) if word.starts_with("--socket=") => 1,
        _ => 0,
    };
    let command = if at < words.len() {
        words.remove(at)
    } else {
        "help".into()
    };
    match run(&command.to_string_lossy(), words) {
        Ok(code) => code,
        Err(e) => {
            if e.code == 0 {
                let _ = print(&format!("{e}\n"));
            } else if !e.message.is_empty() {
                // A closed standard error leaves nobody to tell.
                let _ = writeln!(std::io::stderr(), "{e}");
            }
            ExitCode::from(e.code)
        }
    }
}

fn run(command: &str, words: Vec<OsString>) -> Result<ExitCode, CliError> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        "run" => {
            let manager = crate::agent::Manager {
                socket: std::env::var_os("NOTIFY_SOCKET"),
                watchdog_usec: std::env::var_os("WATCHDOG_USEC"),
                watchdog_pid: std::env::var_os("WATCHDOG_PID"),
            };
            Ok(crate::agent::main(words, manager))
        }
        pod_init::COMMAND => Ok(pod_init::main()),
        exec_wait::COMMAND => Ok(exec_wait::main(&words)),
        "get" => get::run(Words::new(words)).map(done),
        "logs" => logs::run(Words::new(words)).map(done),
        "exec" => exec::run(Words::new(words)),
        "image" => image::run(Words::new(words)).map(done),
        "stop" => stop(Words::new(words)).map(done),
        "version" | "--version" | "-V" => print(&format!("picolet {}\n", crate::VERSION)).map(done),
        "help" | "--help" | "-h" => print(HELP).map(done),
        other => Err(CliError::new(format!(
            "unknown command {other:?}\nRun 'picolet help' for usage."
        ))),
    }
}

fn stop(mut words: Words) -> Result<(), CliError> {
    let mut all = false;
    while let Some(word) = words.next()? {
        match word {
            Word::Long(name) if name == "all" => all = words.switch()?,
            other => return Err(args::unexpected(other)),
        }
    }
    let mut answer =
        words
            .client()
            .send("POST", if all { "/stop?all=true" } else { "/stop" }, "")?;
    answer.copy_to(&mut std::io::stdout())
}

/// Writes to standard output; a reader that left is no error.
fn print(text: &str) -> Result<(), CliError> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot write: {e}")))
        }
        _ => Ok(()),
    }
}

/// The socket's path: flag, else environment, else the default.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the environment is read"
)]
fn default_socket() -> PathBuf {
    std::env::var(SOCKET_VARIABLE).map_or_else(|_| DEFAULT_SOCKET.into(), PathBuf::from)
}
