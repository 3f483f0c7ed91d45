//! The control socket of a shim: a packet socket (`SOCK_SEQPACKET`), so that neither side needs framing buffers.
//!
//! Every packet is a kind byte and data. Client to shim:
//!
//! | kind | data | answer |
//! |---|---|---|
//! | `R` reopen the log | none | `k`, or `!` and text |
//! | `W` resize the terminal | width, height: two u16, little endian | `k`, or `!` and text |
//! | `C` close standard input | none | `k` |
//! | `A` attach | one byte of [`AttachStreams`] bits | `k`, then `o`/`e` packets until `x` or the end of the connection; `!` and text if there are [`MAX_CLIENTS`] |
//! | `I` input | 1 to [`MAX_DATA_BYTES`] bytes; only after `A` with standard input | none; the shim reads on when the container has read |
//!
//! A client that does not keep up is disconnected: the log never waits for it.

use core::task::{Context, Poll};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use async_io::{Async, Timer};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, recvmsg, send, sendmsg,
    socket,
};
use smol::future;

use super::file;
use crate::sys::turn;

/// Largest data of a packet in bytes.
pub const MAX_DATA_BYTES: usize = 4096;
/// Clients that can be attached to a shim at a time; a further one is refused.
pub const MAX_CLIENTS: usize = 4;
/// Connections that a shim holds at a time. Commands always find a place: a client that is not attached must go.
pub(crate) const MAX_CONNECTIONS: usize = MAX_CLIENTS + 2;
/// Time limit for a command; a shim answers at once unless its disk hangs.
const COMMAND_TIMEOUT: core::time::Duration = core::time::Duration::from_secs(10);

/// Kinds of packets.
pub mod kind {
    /// Reopen the log.
    pub const REOPEN: u8 = b'R';
    /// Resize the terminal.
    pub const RESIZE: u8 = b'W';
    /// Close standard input.
    pub const CLOSE_STDIN: u8 = b'C';
    /// Attach.
    pub const ATTACH: u8 = b'A';
    /// Input.
    pub const INPUT: u8 = b'I';
    /// Done.
    pub const OK: u8 = b'k';
    /// Failed, with text.
    pub const FAILED: u8 = b'!';
    /// Standard output.
    pub const STDOUT: u8 = b'o';
    /// Standard error.
    pub const STDERR: u8 = b'e';
    /// The container has ended and all its output was sent.
    pub const END: u8 = b'x';
}

/// Streams that an attached client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachStreams {
    /// Send input.
    pub stdin: bool,
    /// Receive standard output (with a terminal: everything).
    pub stdout: bool,
    /// Receive standard error.
    pub stderr: bool,
}

impl AttachStreams {
    /// The byte of an attach packet.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        (self.stdin as u8) | ((self.stdout as u8) << 1) | ((self.stderr as u8) << 2)
    }

    /// Reads the byte of an attach packet; unknown bits are ignored.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self {
            stdin: bits & 1 != 0,
            stdout: bits & 2 != 0,
            stderr: bits & 4 != 0,
        }
    }
}

/// Lets the shim of `dir` open its log file anew, after a rotation renamed it. On an error it writes on to the old
/// file.
pub async fn reopen_log(dir: &Path) -> io::Result<()> {
    send_command(dir, &[kind::REOPEN]).await
}

/// Sets the size of the container's terminal in characters.
pub async fn resize_terminal(dir: &Path, width: u16, height: u16) -> io::Result<()> {
    let ([a, b], [c, d]) = (width.to_le_bytes(), height.to_le_bytes());
    send_command(dir, &[kind::RESIZE, a, b, c, d]).await
}

/// Ends the container's standard input. Does nothing for one with a terminal or without input.
pub async fn close_stdin(dir: &Path) -> io::Result<()> {
    send_command(dir, &[kind::CLOSE_STDIN]).await
}

/// Connects to the container's streams. Output from before this call is in the log only.
pub async fn attach_streams(dir: &Path, streams: AttachStreams) -> io::Result<ShimConnection> {
    let attached = ShimConnection {
        socket: connect_control_socket(dir)?,
    };
    attached
        .send_packet(&[kind::ATTACH, streams.to_bits()])
        .await?;
    attached.expect_ok().await?;
    Ok(attached)
}

/// Event that an attached client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachEvent {
    /// Standard output, 1 to [`MAX_DATA_BYTES`] bytes.
    Stdout(Vec<u8>),
    /// Standard error, 1 to [`MAX_DATA_BYTES`] bytes.
    Stderr(Vec<u8>),
    /// The container has ended; nothing follows.
    End,
}

/// A connection to a container's streams. Closing it, by dropping, ends standard input if that was asked for once.
#[derive(Debug)]
pub struct ShimConnection {
    socket: Async<OwnedFd>,
}

impl ShimConnection {
    /// The next event. `UnexpectedEof`: the shim died, or this client did not keep up and was disconnected.
    pub async fn next_event(&self) -> io::Result<AttachEvent> {
        loop {
            turn::yield_to_others().await;
            let (kind, data) = self.receive_packet().await?;
            match kind {
                kind::STDOUT => return Ok(AttachEvent::Stdout(data)),
                kind::STDERR => return Ok(AttachEvent::Stderr(data)),
                kind::END => return Ok(AttachEvent::End),
                // A later shim's news.
                _ => {}
            }
        }
    }

    /// Sends input; waits while the container does not read.
    pub async fn send_input(&self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(MAX_DATA_BYTES) {
            let mut packet = Vec::with_capacity(part.len() + 1);
            packet.push(kind::INPUT);
            packet.extend_from_slice(part);
            self.send_packet(&packet).await?;
        }
        Ok(())
    }

    /// Takes one packet: its kind, and how much data lies in `buffer`, which holds [`MAX_DATA_BYTES`]. The error
    /// `UnexpectedEof` is as with [`ShimConnection::next_event`].
    pub fn poll_packet(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(u8, usize)>> {
        let mut kind = [0];
        // Bounded: only an interrupted call is repeated, and one that was promised a packet.
        loop {
            let mut parts = [IoSliceMut::new(&mut kind), IoSliceMut::new(buffer)];
            let fd = self.socket.as_raw_fd();
            let received = recvmsg::<()>(fd, &mut parts, None, MsgFlags::empty());
            match received.map(|message| message.bytes) {
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => core::task::ready!(self.socket.poll_readable(cx))?,
                Err(e) => return Poll::Ready(Err(e.into())),
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => return Poll::Ready(Ok((kind[0], n - 1))),
            }
        }
    }

    /// Sends one packet with the start of `data`, as much as fits; says how much. Pending while the shim takes none.
    pub fn poll_send(
        &self,
        cx: &mut Context<'_>,
        kind: u8,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let data = &data[..data.len().min(MAX_DATA_BYTES)];
        let kind = [kind];
        // Bounded: only an interrupted call is repeated, and one that was promised room.
        loop {
            let parts = [IoSlice::new(&kind), IoSlice::new(data)];
            let fd = self.socket.as_raw_fd();
            match sendmsg::<()>(fd, &parts, &[], MsgFlags::MSG_NOSIGNAL, None) {
                Err(nix::Error::EINTR) => {}
                Err(nix::Error::EAGAIN) => core::task::ready!(self.socket.poll_writable(cx))?,
                Err(e) => return Poll::Ready(Err(e.into())),
                Ok(_) => return Poll::Ready(Ok(data.len())),
            }
        }
    }

    async fn send_packet(&self, packet: &[u8]) -> io::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL;
        self.socket
            .write_with(|s| send(s.as_raw_fd(), packet, flags).map_err(io::Error::from))
            .await
            .map(drop)
    }

    async fn receive_packet(&self) -> io::Result<(u8, Vec<u8>)> {
        let mut packet = vec![0; MAX_DATA_BYTES + 1];
        let len = self
            .socket
            .read_with(|s| {
                recv(s.as_raw_fd(), &mut packet, MsgFlags::empty()).map_err(io::Error::from)
            })
            .await?;
        packet.truncate(len);
        let kind = *packet.first().ok_or(io::ErrorKind::UnexpectedEof)?;
        packet.remove(0);
        Ok((kind, packet))
    }

    async fn expect_ok(&self) -> io::Result<()> {
        match self.receive_packet().await? {
            (kind::OK, _) => Ok(()),
            (_, text) => Err(io::Error::other(
                String::from_utf8_lossy(&text).into_owned(),
            )),
        }
    }
}

async fn send_command(dir: &Path, packet: &[u8]) -> io::Result<()> {
    let connection = ShimConnection {
        socket: connect_control_socket(dir)?,
    };
    let done = async {
        connection.send_packet(packet).await?;
        connection.expect_ok().await
    };
    let late = async {
        Timer::after(COMMAND_TIMEOUT).await;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the shim does not answer",
        ))
    };
    future::or(done, late).await
}

/// Connects by way of the opened directory: a socket's path may have 107 bytes only.
fn connect_control_socket(dir: &Path) -> io::Result<Async<OwnedFd>> {
    let dir = std::fs::File::open(dir)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    let path = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), file::CTL);
    // Never waits: a full queue is EAGAIN.
    connect(fd.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
    Async::new(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_bits() {
        for bits in 0..8 {
            assert_eq!(AttachStreams::from_bits(bits).to_bits(), bits);
        }
        assert_eq!(AttachStreams::from_bits(0xf8), AttachStreams::default());
    }
}
