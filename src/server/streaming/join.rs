//! Joins two connections byte for byte: a client's, and the one that it asked for. `picolet port-forward` asks for one
//! for each of its own connections; so does a client of a runtime whose streams are elsewhere. Fixed buffers; a side
//! that does not read holds the other back.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use async_io::Timer;
use smol::io::{AsyncRead, AsyncWrite};

use super::carrier::{HANG_UP_CHECK, LEAVE_TIMEOUT, PAUSE, TURNS};
use crate::api::MonoTime;
use crate::server::allowance::Allowance;
use crate::server::backend::StreamingBackend;
use crate::server::connection::StreamConnection;
use crate::sys::clock;

/// Protocol name in `UpgradeRequest`.
pub(crate) const PROTOCOL: &str = "picolet-port";
/// Bytes on their way in one direction.
const BUFFER_BYTES: usize = 8 * 1024;

/// Effect of the end of one direction on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfClose {
    /// No effect: each direction ends for itself.
    Stays,
    /// The protocol within has ends of its own: the other follows soon.
    Ends,
}

/// A direction of the join.
struct JoinDirection {
    buffer: Box<[u8]>,
    /// Bytes on their way: from `start` up to `end` in the buffer.
    start: usize,
    end: usize,
    /// The source has ended; the target was told.
    ended: bool,
    closed: bool,
    /// The target takes nothing any more.
    is_sink: bool,
}

impl JoinDirection {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ended: false,
            closed: false,
            is_sink: false,
        }
    }

    /// Goes one step on; whether anything moved.
    fn poll_transfer(
        &mut self,
        cx: &mut Context<'_>,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<bool> {
        if self.is_sink {
            self.start = self.end;
        }
        if self.start == self.end && !self.ended {
            return match Pin::new(&mut from).poll_read(cx, &mut self.buffer) {
                Poll::Pending => Ok(false),
                Poll::Ready(read) => {
                    (self.start, self.end) = (0, read?);
                    self.ended = self.end == 0;
                    Ok(true)
                }
            };
        }
        if self.start < self.end {
            let rest = &self.buffer[self.start..self.end];
            return match Pin::new(&mut to).poll_write(cx, rest) {
                Poll::Pending => Ok(false),
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.start += n;
                    Ok(true)
                }
                // Reading from it tells why, and what it had said before.
                Poll::Ready(_) => {
                    self.is_sink = true;
                    Ok(true)
                }
            };
        }
        Ok(false)
    }

    /// The source has ended, and all of it has arrived.
    const fn is_over(&self) -> bool {
        self.ended && self.start == self.end
    }

    /// Tells the target, once; whether that moved anything.
    fn close_target(&mut self, cx: &mut Context<'_>, to: &mut StreamConnection) -> bool {
        if !self.is_over() || self.closed {
            return false;
        }
        // A target that has ended by itself is noticed when it is read.
        self.closed = self.is_sink || Pin::new(to).poll_close(cx).is_ready();
        self.closed
    }
}

/// State of a join: both directions, and the time.
struct ConnectionJoin<'a> {
    client: &'a mut StreamConnection,
    other: &'a mut StreamConnection,
    there: JoinDirection,
    back: JoinDirection,
    idle: Duration,
    /// Limit of the bytes of the client, if there is one.
    allowance: Option<Allowance<'a>>,
    half_close: HalfClose,
    /// Time at which a byte last came or went.
    last: MonoTime,
    /// The client has until then to leave.
    leave_by: Option<MonoTime>,
    alarm: Option<(MonoTime, Timer)>,
    pause: Option<Timer>,
}

/// Carries bytes until both sides have ended.
///
/// - Errors: a side broke, no byte came for the time that it may be idle, or the client has used up its bytes: a line
///   that tells it has no place among the bytes of others. Not all bytes may have arrived.
pub(super) async fn join_connections(
    client: &mut StreamConnection,
    other: &mut StreamConnection,
    streaming: &dyn StreamingBackend,
    half_close: HalfClose,
) -> io::Result<()> {
    let mut join = ConnectionJoin {
        allowance: Allowance::new(streaming, client),
        client,
        other,
        there: JoinDirection::new(),
        back: JoinDirection::new(),
        idle: streaming.idle_timeout(),
        half_close,
        last: clock::mono_now(),
        leave_by: None,
        alarm: None,
        pause: None,
    };
    core::future::poll_fn(|cx| join.poll(cx)).await
}

impl ConnectionJoin<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bounded: a pause after every `TURNS` moves.
        loop {
            if let Some(timer) = &mut self.pause {
                ready!(Future::poll(Pin::new(timer), cx));
                self.pause = None;
            }
            for _ in 0..TURNS {
                let moved = self.move_both_directions(cx)?;
                if self.there.closed && self.back.closed {
                    return Poll::Ready(Ok(()));
                }
                if moved {
                    self.last = clock::mono_now();
                    continue;
                }
                ready!(self.poll_timeout(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.pause = Some(Timer::after(PAUSE));
        }
    }

    /// Moves each direction one step on; returns true if anything moved.
    fn move_both_directions(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = self
            .there
            .poll_transfer(cx, &mut *self.client, &mut *self.other)?;
        moved |= self
            .back
            .poll_transfer(cx, &mut *self.other, &mut *self.client)?;
        let spent = |it: Allowance<'_>| it.spent_reason(self.client.carried_bytes());
        if moved && self.allowance.and_then(spent).is_some() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        if self.back.is_sink {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        moved |= self.there.close_target(cx, self.other);
        moved |= self.back.close_target(cx, self.client);
        if self.back.closed && self.half_close == HalfClose::Ends {
            self.there.is_sink = true;
        }
        // Bytes that the client still sends are read and dropped: if the connection were closed before, the last bytes
        // to the client would be lost.
        if self.back.closed && self.there.is_sink && self.leave_by.is_none() {
            self.leave_by = Some(clock::mono_now() + LEAVE_TIMEOUT);
            moved = true;
        }
        Ok(moved)
    }

    /// Waits until it has been silent for too long, or the client is gone.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Bounded: goes on only when a timer has rung, and the next is later.
        loop {
            let now = clock::mono_now();
            // While its last bytes are not taken nothing is read, and so not the end either.
            let deaf = self.there.start < self.there.end;
            let ends = self.half_close == HalfClose::Ends;
            if ends && deaf && self.alarm.is_none() && self.client.has_hung_up() {
                return Poll::Ready(());
            }
            let is_ending = self.there.ended || self.back.ended;
            let idle = match ends && is_ending {
                true => self.idle.min(LEAVE_TIMEOUT),
                false => self.idle,
            };
            let end = self.last + idle;
            let end = self.leave_by.map_or(end, |by| by.min(end));
            if end <= now {
                return Poll::Ready(());
            }
            let check = (ends && deaf).then(|| now + HANG_UP_CHECK);
            let next = check.map_or(end, |check| check.min(end));
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
}
