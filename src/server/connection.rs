//! A connection over any carrier: the local socket, or TLS.
//!
//! The connection holds bytes that were read before they were wanted: those behind the head of a request, and those
//! that came while only the client's end was watched for. A handler that reads and writes at once takes it apart with
//! [`smol::io::split`]. There is no second buffer: written bytes go to the carrier, and a client that does not read
//! holds its own handler back, for as long as the connection's patience lasts.

use alloc::rc::Rc;
use core::cell::Cell;
use core::net::IpAddr;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;
use std::os::fd::RawFd;

use async_io::Timer;
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, shutdown};
use smol::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::pipe::PipeHandle;
use crate::api::link::LinkClass;
use crate::sys::{socket, start, turn};

/// Bytes read ahead while a client is only watched. A client that sends more is not seen to leave before its answer ends.
const MAX_WATCHED_BYTES: usize = 16 * 1024;
/// Bytes taken at a time meanwhile.
const WATCH_STEP_BYTES: usize = 1024;
/// Bytes that are taken first on a connection at rest.
const FIRST_BYTES: usize = 64;

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// See the module.
pub struct StreamConnection {
    stream: Box<dyn Duplex>,
    below: StreamTransport,
    ahead: Vec<u8>,
    patience: Option<Duration>,
    stalled: Option<Timer>,
    /// Bytes that were read and written.
    carried: u64,
    pub(super) answer: AnswerForm,
}

/// Carrier of a stream, open for as long as the stream.
pub(super) enum StreamTransport {
    /// An unknown carrier: it cannot be asked if the client has left.
    Unknown,
    Socket(RawFd),
    /// A socket whose bytes are counted.
    Counted {
        socket: RawFd,
        /// Class that the bytes are counted as.
        class: Rc<Cell<LinkClass>>,
        /// Set if the other side is on another machine.
        leaves: bool,
    },
    Pipe(PipeHandle),
}

/// Form of the answer to the request under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerForm {
    /// Set if another request may follow on this connection.
    pub(super) keep: bool,
    /// The client knows chunks: an answer of unknown length need not end with the connection.
    pub(super) chunked: bool,
    /// Set if only the head is wanted.
    pub(super) head_only: bool,
}

impl StreamConnection {
    /// Makes a connection over `stream`. A client that does not read is waited for without end.
    pub fn new(stream: impl Duplex + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            below: StreamTransport::Unknown,
            ahead: Vec::new(),
            patience: None,
            stalled: None,
            carried: 0,
            answer: AnswerForm::default(),
        }
    }

    /// Names the socket that all goes over, which closes when this is dropped.
    #[must_use]
    pub fn with_socket(mut self, socket: RawFd) -> Self {
        self.below = StreamTransport::Socket(socket);
        self
    }

    /// Names the carrier of the stream.
    #[must_use]
    pub(super) fn with_transport(mut self, below: StreamTransport) -> Self {
        self.below = below;
        self
    }

    /// Returns true if the client has closed its side, even if some of its bytes were not read yet. False if that is
    /// unknown.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        let fd = match &self.below {
            StreamTransport::Unknown => return false,
            StreamTransport::Socket(socket) | StreamTransport::Counted { socket, .. } => *socket,
            StreamTransport::Pipe(pipe) => return pipe.has_hung_up(),
        };
        let mut fds = [libc::pollfd {
            fd,
            events: libc::POLLRDHUP,
            revents: 0,
        }];
        start::poll_fds(&mut fds, 0).is_ok_and(|ready| ready > 0)
    }

    /// Makes a later drop of the connection reach the other side at once: bytes on their way to it are discarded. A
    /// peer that does not read would otherwise not get to the end.
    pub(super) fn abort_on_drop(&self) {
        match &self.below {
            StreamTransport::Unknown => {}
            StreamTransport::Pipe(pipe) => pipe.drop_pending_bytes(),
            StreamTransport::Socket(fd) | StreamTransport::Counted { socket: fd, .. } => {
                if let Err(e) = socket::drop_unsent_on_close(*fd) {
                    log::debug!("a connection cannot be cut: {e}");
                }
            }
        }
    }

    /// Address of the other side, if it has one.
    pub(super) fn peer_address(&self) -> Option<IpAddr> {
        let (StreamTransport::Socket(socket) | StreamTransport::Counted { socket, .. }) =
            &self.below
        else {
            return None;
        };
        let name: SockaddrStorage = getpeername(*socket).ok()?;
        let v4 = name.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || name.as_sockaddr_in6().map(|v6| v6.ip().to_canonical());
        v4.or_else(v6)
    }

    /// Counts all bytes from now on as `class`, if they are counted.
    pub(super) fn set_link_class(&self, class: LinkClass) {
        if let StreamTransport::Counted { class: of, .. } = &self.below {
            of.set(class);
        }
    }

    /// Bytes that were read and written so far, without TLS and the layers below.
    pub(super) const fn carried_bytes(&self) -> u64 {
        self.carried
    }

    /// Returns true if the bytes go over the link.
    pub(super) const fn leaves_machine(&self) -> bool {
        match self.below {
            StreamTransport::Counted { leaves, .. } => leaves,
            StreamTransport::Pipe(_) => true,
            StreamTransport::Unknown | StreamTransport::Socket(_) => false,
        }
    }

    fn count_carried(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.carried = self.carried.saturating_add(bytes);
    }

    /// Sets the time for which a client may take none of the written bytes, before the write fails with
    /// [`io::ErrorKind::TimedOut`].
    pub fn set_write_timeout(&mut self, patience: Option<Duration>) {
        self.patience = patience;
        self.stalled = None;
    }

    /// Puts `bytes` before the bytes that are read next.
    pub(super) fn push_back_bytes(&mut self, bytes: &[u8]) {
        self.ahead.splice(0..0, bytes.iter().copied());
    }

    /// Waits until the client closes, or breaks, its side. Bytes that come instead are kept. Dropping the future loses
    /// nothing.
    pub async fn wait_for_close(&mut self) {
        let mut step = [0; WATCH_STEP_BYTES];
        while self.ahead.len() < MAX_WATCHED_BYTES {
            match self.stream.read(&mut step).await {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    self.count_carried(n);
                    self.ahead.extend_from_slice(&step[..n]);
                }
            }
            // A client may send a byte at a time, and always have one ready.
            turn::yield_to_others().await;
        }
        core::future::pending().await
    }

    /// Waits until there is something to read; false: the client has closed its side. Dropping the future loses nothing.
    pub(super) async fn wait_for_input(&mut self) -> io::Result<bool> {
        if self.ahead.is_empty() {
            let mut step = [0; FIRST_BYTES];
            let n = self.stream.read(&mut step).await?;
            self.count_carried(n);
            self.ahead.extend_from_slice(&step[..n]);
        }
        Ok(!self.ahead.is_empty())
    }

    /// Fails an operation that has been waiting for the client for too long.
    fn fail_if_stalled<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let (Poll::Pending, Some(patience)) = (&poll, self.patience) else {
            self.stalled = None;
            return poll;
        };
        let timer = self.stalled.get_or_insert_with(|| Timer::after(patience));
        ready!(Future::poll(Pin::new(timer), cx));
        self.stalled = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for StreamConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.ahead.is_empty() {
            let read = Pin::new(&mut this.stream).poll_read(cx, buf);
            if let Poll::Ready(Ok(n)) = read {
                this.count_carried(n);
            }
            return read;
        }
        let n = this.ahead.len().min(buf.len());
        buf[..n].copy_from_slice(&this.ahead[..n]);
        this.ahead.drain(..n);
        if this.ahead.is_empty() {
            this.ahead = Vec::new();
        }
        Poll::Ready(Ok(n))
    }
}

impl AsyncWrite for StreamConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = poll {
            this.count_carried(n);
        }
        this.fail_if_stalled(cx, poll)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_flush(cx);
        this.fail_if_stalled(cx, poll)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_close(cx);
        let closed = ready!(this.fail_if_stalled(cx, poll));
        // The stream's own close only flushes. A socket that is not connected any more needs no end.
        match &this.below {
            StreamTransport::Unknown => {}
            StreamTransport::Socket(socket) | StreamTransport::Counted { socket, .. } => {
                _ = shutdown(*socket, Shutdown::Write);
            }
            StreamTransport::Pipe(pipe) => pipe.end_writing(),
        }
        Poll::Ready(closed)
    }
}

impl core::fmt::Debug for StreamConnection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut shown = f.debug_struct("Connection");
        shown.field("ahead", &self.ahead.len());
        shown.field("answer", &self.answer).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod testing {
    use alloc::rc::Rc;
    use core::{
        cell::RefCell,
        pin::Pin,
        task::{Context, Poll},
    };
    use std::{io, os::unix::net::UnixStream};

    use async_io::Async;
    use smol::io::{AsyncRead, AsyncWrite};

    use super::StreamConnection;

    /// A client that has sent everything already and takes every answer: nothing ever waits for it.
    pub(in crate::server) struct Eager {
        sent: Vec<u8>,
        at: usize,
        step: usize,
        got: Rc<RefCell<Vec<u8>>>,
    }

    impl Eager {
        /// Makes a client that sent these bytes, of which `step` come at a time; also returns the bytes that it got.
        pub(in crate::server) fn new(
            sent: impl Into<Vec<u8>>,
            step: usize,
        ) -> (Self, Rc<RefCell<Vec<u8>>>) {
            let got = Rc::default();
            let this = Self {
                sent: sent.into(),
                at: 0,
                step,
                got: Rc::clone(&got),
            };
            (this, got)
        }
    }

    impl AsyncRead for Eager {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let n = self.step.min(self.sent.len() - self.at).min(buf.len());
            buf[..n].copy_from_slice(&self.sent[self.at..][..n]);
            self.at += n;
            Poll::Ready(Ok(n))
        }
    }

    impl AsyncWrite for Eager {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.got.borrow_mut().extend_from_slice(buf);
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A connection and its other end.
    pub(in crate::server) fn pair() -> (StreamConnection, Async<UnixStream>) {
        let (ours, theirs) = Async::<UnixStream>::pair().expect("socket pair");
        (StreamConnection::new(ours), theirs)
    }
}

#[cfg(test)]
mod tests {
    use smol::{future::yield_now, io::AsyncWriteExt as _};

    use super::*;

    #[test]
    fn what_comes_while_watched_is_read_later() {
        smol::block_on(async {
            let (mut connection, mut client) = testing::pair();
            connection.push_back_bytes(b"a");
            client.write_all(b"bc").await.expect("write");
            let watched = async {
                connection.wait_for_close().await;
                true
            };
            let moved_on = async {
                yield_now().await;
                yield_now().await;
                false
            };
            assert!(!smol::future::or(watched, moved_on).await, "nobody left");
            let mut got = [0; 3];
            connection.read_exact(&mut got).await.expect("read");
            assert_eq!(&got, b"abc");
            drop(client);
            connection.wait_for_close().await;
        });
    }

    #[test]
    fn a_client_that_never_reads_is_given_up() {
        smol::block_on(async {
            let (mut connection, client) = testing::pair();
            connection.set_write_timeout(Some(Duration::from_millis(10)));
            let all = vec![0; 4 << 20];
            let failed = connection.write_all(&all).await.expect_err("never read");
            assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
            drop(client);
        });
    }
}
