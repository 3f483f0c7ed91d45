//! A small client of D-Bus that blocks, for the few calls that a kubelet makes of systemd (`crate::cgroup`) and logind.
//!
//! | file | content |
//! |---|---|
//! | `wire` | messages: a body that is put together, a reader that trusts nothing |
//! | `logind` | the signal that the machine goes down, and the lock that delays it |
//!
//! Only the connection that waits for logind's signal is kept open: systemd sends its clients a message for every unit,
//! and cuts off those that do not read. Calls block, so they are made on threads that may wait. Each call has a
//! deadline.
//!
//! Reason for our own client: `rustbus`, the smallest crate that is maintained, is 102 kB of program and brings second
//! versions of three crates.

pub mod logind;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod wire;

use alloc::collections::VecDeque;
use core::time::Duration;
use std::{
    io::{self, Write as _},
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
};

use nix::sys::socket::{self as nix_socket, AddressFamily, SockFlag, SockType, UnixAddr};

use self::wire::{BusMessage, CallArguments, MethodAddress};
use crate::{
    api::MonoTime,
    sys::{clock, socket},
};

/// Most wanted signals that are kept while an answer is waited for; the oldest are dropped first.
const MAX_KEPT: usize = 256;
/// Longest body of a signal that is kept, bytes. Wanted signals have some hundred; anybody may send us others.
const MAX_SIGNAL: usize = 4096;
/// Longest line of the greeting, bytes.
const MAX_LINE: usize = 512;
/// Bytes of input read at a time.
const PIECE: usize = 4096;
/// Longest text of an error that is passed on, bytes.
const MAX_TEXT: usize = 1024;

/// Reason why a call has failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// No bus listens, or the connection broke.
    #[error("{}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The bus does not let this program in.
    #[error("the bus refuses this program: {0}")]
    Refused(String),
    /// No answer came in time.
    #[error("no answer to {what} within {} s", after.as_secs())]
    Late {
        /// The method, or the event that was waited for after it.
        what: &'static str,
        /// Time that was waited.
        after: Duration,
    },
    /// The answer is an error.
    #[error("{what}: {text}")]
    Said {
        /// The method.
        what: &'static str,
        /// Name of the error (`org.freedesktop.systemd1.NoSuchUnit`).
        name: String,
        /// Text of the error.
        text: String,
    },
    /// A job of systemd did not end well.
    #[error("systemd reports {result:?} for {unit}")]
    Job {
        /// The unit.
        unit: String,
        /// `failed`, `timeout`, `canceled`, …
        result: String,
    },
    /// The bytes are no message, or not the one that was expected.
    #[error("the bus sent {0}")]
    Nonsense(&'static str),
}

impl BusError {
    /// Returns true if the answer is the error of this name.
    #[must_use]
    pub fn is_error_named(&self, wanted: &str) -> bool {
        matches!(self, Self::Said { name, .. } if name == wanted)
    }
}

/// A connection. See the module.
#[derive(Debug)]
pub struct BusConnection {
    stream: UnixStream,
    path: PathBuf,
    serial: u32,
    /// Bytes that have come and are not taken yet.
    input: Vec<u8>,
    /// Descriptor that came last.
    fd: Option<OwnedFd>,
    /// Signals of this name are kept.
    wanted: &'static str,
    signals: VecDeque<BusMessage>,
    /// Time at which waiting ends, and the limit that was set; `None`: never.
    until: Option<(MonoTime, Duration)>,
}

impl BusConnection {
    /// Connects to the socket at `path` and greets the bus. What follows has to end within `patience`. Signals named
    /// `wanted` are kept until they are asked for.
    ///
    /// Source: D-Bus specification, "Authentication Protocol".
    pub fn open(path: &Path, wanted: &'static str, patience: Duration) -> Result<Self, BusError> {
        let stream =
            connect_with_timeout(path, patience).map_err(|source| match source.kind() {
                io::ErrorKind::WouldBlock => BusError::Late {
                    what: "the connection",
                    after: patience,
                },
                _ => BusError::Io {
                    path: path.into(),
                    source,
                },
            })?;
        let mut bus = Self {
            stream,
            path: path.into(),
            serial: 0,
            input: Vec::new(),
            fd: None,
            wanted,
            signals: VecDeque::new(),
            until: None,
        };
        bus.set_time_limit(Some(patience));
        let uid = nix::unistd::geteuid().to_string();
        let digits: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        bus.send_bytes(
            format!("\0AUTH EXTERNAL {digits}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n").as_bytes(),
        )?;
        let line = bus.read_greeting_line()?;
        if !line.starts_with("OK ") {
            return Err(BusError::Refused(line));
        }
        // If the bus does not pass descriptors on, a caller that needs one notices its absence.
        bus.read_greeting_line()?;
        Ok(bus)
    }

    /// Sets the limit of waiting from now on; `None`: no limit.
    pub fn set_time_limit(&mut self, patience: Option<Duration>) {
        self.until = patience.map(|patience| (clock::mono_now() + patience, patience));
    }

    /// Calls a method and waits for its answer.
    pub fn call_method(
        &mut self,
        to: MethodAddress,
        member: &'static str,
        body: CallArguments,
    ) -> Result<BusMessage, BusError> {
        self.serial += 1;
        self.send_bytes(&body.into_call(self.serial, to, member))?;
        loop {
            let message = self.read_message(member)?;
            if message.kind == wire::SIGNAL {
                self.queue_signal(message);
            } else if message.answers != self.serial {
            } else if message.kind == wire::RETURN {
                return Ok(message);
            } else if message.kind == wire::ERROR {
                let text = message.arguments("s").and_then(|mut body| body.read_text());
                let text = text.unwrap_or_default();
                return Err(BusError::Said {
                    what: member,
                    text: text[..text.floor_char_boundary(MAX_TEXT)].into(),
                    name: message.error,
                });
            }
        }
    }

    /// Waits for the next wanted signal; signals that came meanwhile are returned first. `what`: name of the wait, for
    /// errors.
    pub fn next_signal(&mut self, what: &'static str) -> Result<BusMessage, BusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let message = self.read_message(what)?;
            self.queue_signal(message);
        }
    }

    /// Waits until time is up, and keeps the messages that come meanwhile.
    pub fn wait_until_limit(&mut self, what: &'static str) {
        while let Ok(message) = self.read_message(what) {
            self.queue_signal(message);
        }
    }

    /// Takes the descriptor that came last.
    pub const fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    fn queue_signal(&mut self, message: BusMessage) {
        if message.kind == wire::SIGNAL
            && message.member == self.wanted
            && message.body.len() <= MAX_SIGNAL
        {
            if self.signals.len() == MAX_KEPT {
                self.signals.pop_front();
            }
            self.signals.push_back(message);
        }
    }

    fn read_message(&mut self, what: &'static str) -> Result<BusMessage, BusError> {
        self.fill_input(wire::FIXED, what)?;
        let fixed = core::array::from_fn(|n| self.input[n]);
        let (header, whole) = wire::read_message_lengths(&fixed)?;
        self.fill_input(whole, what)?;
        let message = BusMessage::parse_message(&self.input[..whole], header);
        self.input.drain(..whole);
        self.input.shrink_to(PIECE);
        message
    }

    /// Reads a line of the greeting, without its end.
    fn read_greeting_line(&mut self) -> Result<String, BusError> {
        loop {
            if let Some(at) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.input.drain(..at + 2).take(at).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            if self.input.len() > MAX_LINE {
                return Err(BusError::Nonsense("a greeting that does not end"));
            }
            self.fill_input(self.input.len() + 1, "the greeting")?;
        }
    }

    /// Waits until `count` bytes of input are there.
    fn fill_input(&mut self, count: usize, what: &'static str) -> Result<(), BusError> {
        let mut piece = [0; PIECE];
        while self.input.len() < count {
            let left = match self.until {
                None => None,
                Some((until, after)) => match until - clock::mono_now() {
                    Duration::ZERO => return Err(BusError::Late { what, after }),
                    left => Some(left),
                },
            };
            let came = self
                .stream
                .set_read_timeout(left)
                .and_then(|()| socket::receive_with_fd(&self.stream, &mut piece));
            match came {
                Ok((0, _)) => return Err(self.io_error(io::ErrorKind::UnexpectedEof.into())),
                Ok((count, fd)) => {
                    self.input.extend(&piece[..count]);
                    if fd.is_some() {
                        self.fd = fd;
                    }
                }
                // The time is looked at above.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io_error(e)),
            }
        }
        Ok(())
    }

    /// Sends bytes. They are few, so this waits only for a peer that has stopped reading.
    fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), BusError> {
        let patience = self.until.map(|(_, after)| after);
        self.stream
            .set_write_timeout(patience)
            .and_then(|()| self.stream.write_all(bytes))
            .map_err(|e| self.io_error(e))
    }

    fn io_error(&self, source: io::Error) -> BusError {
        BusError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// Connects to a peer, which has this time to make room for one more connection. `WouldBlock`: it has made none.
/// Source: socket(7), `SO_SNDTIMEO`.
fn connect_with_timeout(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = nix_socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let stream = UnixStream::from(socket);
    stream.set_write_timeout(Some(patience))?;
    nix_socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream)
}

impl AsFd for BusConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
