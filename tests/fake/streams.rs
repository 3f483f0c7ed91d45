//! Streams without processes. A command `cat` is a pipe that is read at its other end; what others print is in their pipe
//! before anybody reads. What was attached to stays open until its container ends; who forwards a port is connected to the
//! test ([`Fake::take_forwarded`]).

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::{Fake, State, exit_of, not_found};
use crate::api::cri::{ContainerState, SandboxState};
use crate::api::{ContainerId, SandboxId};
use crate::runtime::{AttachOptions, ExecOptions, PipeStreams, RuntimeError, StreamSession};

/// Ports up to here have nobody who listens.
const CLOSED_PORTS: u16 = 1023;

/// A connection to a port.
#[derive(Debug)]
pub struct Forwarded {
    /// Into which pod.
    pub sandbox: SandboxId,
    /// Which port.
    pub port: u16,
    /// The end of who listens there; blocking.
    pub stream: UnixStream,
}

fn failed(e: io::Error) -> RuntimeError {
    RuntimeError::Failed(e.to_string())
}

fn running(state: &State, id: &ContainerId) -> Result<(), RuntimeError> {
    let instance = state.containers.get(id);
    let runs = instance.is_some_and(|i| i.status.state == ContainerState::Running);
    runs.then_some(()).ok_or_else(|| not_found("container", id))
}

fn session(
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    code: i32,
) -> io::Result<StreamSession> {
    Ok(StreamSession {
        streams: Box::new(PipeStreams::new(stdin, Some(stdout), Some(stderr))?),
        end: Box::pin(async move { Ok(code) }),
    })
}

pub(super) fn exec(
    state: &State,
    id: &ContainerId,
    options: &ExecOptions,
) -> Result<StreamSession, RuntimeError> {
    running(state, id)?;
    let command = &options.command;
    let (program, words) = command.split_first().map_or(("", &[][..]), |(p, w)| (p, w));
    if program.starts_with("/nonexistent") {
        let text = format!("exec {program}: no such file or directory");
        return Err(RuntimeError::Failed(text));
    }
    let start = || {
        let (stdout, mut to_stdout) = io::pipe()?;
        let (stderr, mut to_stderr) = io::pipe()?;
        let mut stdin = None;
        match program {
            "cat" if options.stdin => stdin = Some(to_stdout.into()),
            "echo" => to_stdout.write_all(words.join(" ").as_bytes())?,
            "complain" => to_stderr.write_all(words.join(" ").as_bytes())?,
            _ => {}
        }
        session(
            stdin,
            stdout.into(),
            stderr.into(),
            exit_of(command).unwrap_or(0),
        )
    };
    start().map_err(failed)
}

pub(super) fn attach(
    state: &mut State,
    id: &ContainerId,
    options: AttachOptions,
) -> Result<StreamSession, RuntimeError> {
    running(state, id)?;
    let start = || {
        let (stdout, to_stdout) = io::pipe()?;
        let (stderr, to_stderr) = io::pipe()?;
        let stdin = options.stdin.then(|| to_stdout.try_clone()).transpose()?;
        let held = [OwnedFd::from(to_stdout), to_stderr.into()];
        Ok((
            session(stdin.map(OwnedFd::from), stdout.into(), stderr.into(), 0)?,
            held,
        ))
    };
    let (session, held) = start().map_err(failed)?;
    if let Some(instance) = state.containers.get_mut(id) {
        // With `stdinOnce` it ends with its input.
        if !options.stdin_once {
            instance.attached.extend(held);
        }
    }
    Ok(session)
}

pub(super) fn forward(
    state: &mut State,
    id: &SandboxId,
    port: u16,
) -> Result<OwnedFd, RuntimeError> {
    let sandbox = state.sandboxes.get(id);
    if sandbox.is_none_or(|sandbox| sandbox.status.state != SandboxState::Ready) {
        return Err(not_found("ready sandbox", id));
    }
    if port <= CLOSED_PORTS {
        let text = format!("127.0.0.1:{port}: Connection refused (os error 111)");
        return Err(RuntimeError::Failed(text));
    }
    let (ours, stream) = UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    state.forwarded.push(Forwarded {
        sandbox: id.clone(),
        port,
        stream,
    });
    Ok(ours.into())
}

impl Fake {
    /// Connections to ports since the last call, oldest first.
    pub fn take_forwarded(&self) -> Vec<Forwarded> {
        core::mem::take(&mut self.state.borrow_mut().forwarded)
    }
}
