//! Streams of processes in containers, and of ports in pods, for exec, attach and port forwarding by a backend.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use async_io::Async;

use super::{RuntimeCall, RuntimeError};
use crate::sys::tty;

/// A command to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Program and arguments, at least one.
    pub command: Vec<String>,
    /// The command reads standard input.
    pub stdin: bool,
    /// Set if the client reads standard output; with a terminal everything.
    pub stdout: bool,
    /// Set if the client reads standard error.
    pub stderr: bool,
    /// Set if the command gets a terminal.
    pub tty: bool,
}

/// Streams of a container to attach to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Write to standard input.
    pub stdin: bool,
    /// Read standard output; with a terminal everything.
    pub stdout: bool,
    /// Read standard error.
    pub stderr: bool,
    /// The container has a terminal.
    pub tty: bool,
    /// Set if the container's standard input is closed when the client's input ends: its `stdinOnce`.
    pub stdin_once: bool,
}

/// A command that runs, or a connection to a container.
pub struct StreamSession {
    /// Streams of the command or container.
    pub streams: Box<dyn ProcessStreams>,
    /// End of the session; wait for it once the streams' output is over. For a command its exit code, 128 + signal if
    /// it was killed; 0 for a connection. An error is the runtime's reason why a command could not be run. If the
    /// session is dropped before its end, the process runs on without a client, be it a command or an attached
    /// container.
    pub end: ExitFuture,
}

/// See [`StreamSession::end`].
pub type ExitFuture = Pin<Box<dyn Future<Output = Result<i32, RuntimeError>>>>;

/// Way to reach a stream.
pub enum StreamRoute<T> {
    /// In this process: the caller speaks the client's protocol.
    Local(T),
    /// At a server of the runtime: the client's request goes to this URL, once and at once. The server serves only the
    /// streams of the call.
    Url(String),
}

/// A session that begins when it is awaited.
pub type SessionStart<'a> = RuntimeCall<'a, StreamSession>;

/// Connects to a TCP port of a pod from inside, each time it is called: a stream socket, not blocking.
pub type PortConnector<'a> = Box<dyn Fn(u16) -> RuntimeCall<'a, OwnedFd> + 'a>;

/// Room for output of each stream, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRoom {
    /// Room for standard output.
    pub stdout: usize,
    /// Room for standard error.
    pub stderr: usize,
}

/// Result of a read, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRead {
    /// Bytes from standard output.
    Stdout(usize),
    /// Bytes from standard error.
    Stderr(usize),
    /// Both streams have ended.
    End,
}

/// Streams of a process, from outside. The polls of one task only wake it.
pub trait ProcessStreams {
    /// Reads one of the streams into `buffer`, at most as much as it has room for. Pending also if there is output but
    /// no room for it: call again when there is.
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        room: OutputRoom,
        buffer: &mut [u8],
    ) -> Poll<io::Result<OutputRead>>;
    /// Writes some of `bytes` (not empty) to standard input. An error: the process does not read any more, or never
    /// did.
    fn poll_input(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
    /// Ends standard input after the bytes that were written.
    fn end_input(&mut self);
    /// Sets the terminal's size. Does nothing without a terminal.
    fn resize_terminal(&mut self, columns: u16, rows: u16);
}

/// Streams that are descriptors of ours.
#[derive(Debug, Default)]
pub struct PipeStreams {
    stdin: Option<Async<File>>,
    stdout: Option<Async<File>>,
    stderr: Option<Async<File>>,
    terminal: Option<OwnedFd>,
    /// Set if standard error is read first.
    stderr_next: bool,
}

impl PipeStreams {
    /// Streams of a process that runs without a terminal: our ends of its pipes.
    pub fn new(
        stdin: Option<OwnedFd>,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let open = |fd: Option<OwnedFd>| fd.map(|fd| Async::new(File::from(fd))).transpose();
        Ok(Self {
            stdin: open(stdin)?,
            stdout: open(stdout)?,
            stderr: open(stderr)?,
            terminal: None,
            stderr_next: false,
        })
    }

    /// Streams of a process whose terminal's master is `master`.
    pub fn from_terminal(master: OwnedFd, stdin: bool) -> io::Result<Self> {
        let stdin = stdin.then(|| master.try_clone()).transpose()?;
        let stdout = master.try_clone()?;
        Ok(Self {
            terminal: Some(master),
            ..Self::new(stdin, Some(stdout), None)?
        })
    }
}

/// The number of bytes read into `buffer`, 0 at the end.
fn poll_read(
    file: &Async<File>,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    // Bounded: only an interrupted call is repeated, and one that was promised bytes.
    loop {
        match file.get_ref().read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                core::task::ready!(file.poll_readable(cx))?;
            }
            // The master of a terminal whose other side is closed.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(0)),
            read => return Poll::Ready(read),
        }
    }
}

impl ProcessStreams for PipeStreams {
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        room: OutputRoom,
        buffer: &mut [u8],
    ) -> Poll<io::Result<OutputRead>> {
        // The streams take turns: neither keeps the other waiting.
        let first = self.stderr_next;
        for is_stderr in [first, !first] {
            let (stream, room) = if is_stderr {
                (&mut self.stderr, room.stderr)
            } else {
                (&mut self.stdout, room.stdout)
            };
            let Some(file) = stream else { continue };
            let len = room.min(buffer.len());
            if len == 0 {
                continue;
            }
            match poll_read(file, cx, &mut buffer[..len]) {
                Poll::Pending => {}
                Poll::Ready(Ok(0)) => *stream = None,
                Poll::Ready(Ok(n)) => {
                    self.stderr_next = !is_stderr;
                    let output = if is_stderr {
                        OutputRead::Stderr(n)
                    } else {
                        OutputRead::Stdout(n)
                    };
                    return Poll::Ready(Ok(output));
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
            }
        }
        if self.stdout.is_none() && self.stderr.is_none() {
            Poll::Ready(Ok(OutputRead::End))
        } else {
            Poll::Pending
        }
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(file) = &self.stdin else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        // Bounded: only an interrupted call is repeated, and one that was promised room.
        let written = loop {
            match file.get_ref().write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(e) = core::task::ready!(file.poll_writable(cx)) {
                        break Err(e);
                    }
                }
                written => break written,
            }
        };
        if written.is_err() {
            self.stdin = None;
        }
        Poll::Ready(written)
    }

    fn end_input(&mut self) {
        self.stdin = None;
    }

    fn resize_terminal(&mut self, columns: u16, rows: u16) {
        if let Some(terminal) = &self.terminal
            && let Err(e) = tty::set_window_size(terminal.as_fd(), columns, rows)
        {
            log::debug!("resize: {e}");
        }
    }
}
