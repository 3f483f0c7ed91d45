//! The client's side of a stream: a connection, its fixed buffers, and its time limits.
//!
//! Everything here is polled by the one task that drives the stream. A task that always finds something to do would
//! keep the loop from all other work: after [`TURNS`] it pauses until the reactor, and so every other task, has had its
//! turn.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use async_io::Timer;
use smol::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _};

use crate::api::MonoTime;
use crate::server::allowance::Allowance;
use crate::server::backend::StreamingBackend;
use crate::server::connection::StreamConnection;
use crate::stream::MAX_OUT_BYTES;
use crate::sys::clock;

/// Bytes that were read and not yet understood, or not yet passed on.
const INPUT_BYTES: usize = 8 * 1024;
/// Rounds between two pauses; each moves at most a buffer each way.
pub(super) const TURNS: usize = 16;
/// Long enough that it never has passed when it is looked at first.
pub(super) const PAUSE: Duration = Duration::from_micros(50);
/// Time in which a client has to take the last bytes, and then to leave.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks for a client that cannot be read from and may have left.
pub(super) const HANG_UP_CHECK: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct SessionCarrier<'a> {
    stream: &'a mut StreamConnection,
    input: Box<[u8]>,
    have: usize,
    /// Bytes to be sent.
    pub(super) out: Vec<u8>,
    unflushed: bool,
    idle: Duration,
    /// Limit of the bytes of the session, if there is one.
    allowance: Option<Allowance<'a>>,
    /// Time at which a byte last came or went.
    last: MonoTime,
    alarm: Option<(MonoTime, Timer)>,
    pause: Option<Timer>,
}

/// Reason to wait no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEndReason {
    /// The client is gone.
    Gone,
    /// No byte came or went for too long.
    Idle,
    /// The given time has come.
    Due,
}

impl<'a> SessionCarrier<'a> {
    /// Makes the carrier of a session that begins now on `stream`.
    pub(super) fn new(
        stream: &'a mut StreamConnection,
        streaming: &'a dyn StreamingBackend,
    ) -> Self {
        Self {
            allowance: Allowance::new(streaming, stream),
            stream,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            have: 0,
            out: Vec::with_capacity(MAX_OUT_BYTES),
            unflushed: false,
            idle: streaming.idle_timeout(),
            last: clock::mono_now(),
            alarm: None,
            pause: None,
        }
    }

    /// Returns the reason for the end of the session, if it has used up its bytes.
    pub(super) fn spent_reason(&self) -> Option<String> {
        self.allowance?.spent_reason(self.stream.carried_bytes())
    }

    /// Bytes that were read and not taken, and the buffer of those to send.
    pub(super) fn io_buffers(&mut self) -> (&mut [u8], &mut Vec<u8>) {
        (&mut self.input[..self.have], &mut self.out)
    }

    /// Removes the first bytes of the input.
    pub(super) fn consume_input(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.have, 0);
        self.have -= bytes;
    }

    /// Writes as much as the client takes; returns true if anything moved.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        // Bounded: by what is buffered.
        while !self.out.is_empty() {
            match Pin::new(&mut *self.stream).poll_write(cx, &self.out) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.out.drain(..n);
                    self.last = clock::mono_now();
                    self.unflushed = true;
                    moved = true;
                }
                Poll::Ready(Err(e)) => return Err(e),
            }
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut *self.stream).poll_flush(cx)
        {
            flushed?;
            self.unflushed = false;
        }
        Ok(moved)
    }

    /// Reads as much as there is room for; returns true if anything moved. An error also at the client's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let room = &mut self.input[self.have..];
        if room.is_empty() {
            return Ok(false);
        }
        match Pin::new(&mut *self.stream).poll_read(cx, room) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(Ok(n)) => {
                self.have += n;
                self.last = clock::mono_now();
                Ok(true)
            }
            Poll::Ready(Err(e)) => Err(e),
        }
    }

    /// Waits for the next time limit: `due`, if that is given, or one of the carrier's own.
    pub(super) fn poll_wait_end(
        &mut self,
        cx: &mut Context<'_>,
        due: Option<MonoTime>,
    ) -> Poll<WaitEndReason> {
        // Bounded: goes on only when a timer has rung, and the next is later.
        loop {
            let now = clock::mono_now();
            let idle = self.last + self.idle;
            // While its buffer is full nothing is read, and so not the end either.
            let deaf = self.have == self.input.len();
            if deaf && self.alarm.is_none() && self.stream.has_hung_up() {
                return Poll::Ready(WaitEndReason::Gone);
            }
            if due.is_some_and(|due| due <= now) {
                return Poll::Ready(WaitEndReason::Due);
            }
            if idle <= now {
                return Poll::Ready(WaitEndReason::Idle);
            }
            let check = deaf.then(|| now + HANG_UP_CHECK);
            let next = [Some(idle), due, check].into_iter().flatten().min();
            let next = next.unwrap_or(idle);
            // An alarm that rings too early is looked at again; so activity need not move it.
            if self.alarm.as_ref().is_none_or(|(at, _)| *at > next) {
                self.alarm = Some((next, Timer::after(next - now)));
            }
            if let Some((_, timer)) = &mut self.alarm {
                ready!(Future::poll(Pin::new(timer), cx));
                self.alarm = None;
            }
        }
    }

    /// Begins a pause.
    pub(super) fn begin_pause(&mut self) {
        self.pause = Some(Timer::after(PAUSE));
    }

    /// Waits for the end of a pause.
    pub(super) fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.pause {
            ready!(Future::poll(Pin::new(timer), cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Sends the last bytes, closes our direction, and reads until the client closes its own: a connection that is
    /// closed while the client still sends would lose the last bytes.
    pub(super) async fn close_gracefully(mut self) {
        let late = async {
            Timer::after(LEAVE_TIMEOUT).await;
        };
        let leave = async {
            if self.stream.write_all(&self.out).await.is_err() || self.stream.close().await.is_err()
            {
                return;
            }
            self.out.clear();
            core::future::poll_fn(|cx| {
                ready!(self.poll_pause(cx));
                for _ in 0..TURNS {
                    self.have = 0;
                    match self.poll_read(cx) {
                        Ok(true) => {}
                        Ok(false) => return Poll::Pending,
                        Err(_) => return Poll::Ready(()),
                    }
                }
                self.begin_pause();
                self.poll_pause(cx)
            })
            .await;
        };
        smol::future::or(leave, late).await;
    }
}
