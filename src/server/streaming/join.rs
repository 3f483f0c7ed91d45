//! One connection of the local socket and one port, joined byte for byte: what `picolet port-forward` makes for each of its
//! own connections. Half-closes pass in both directions.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::net::{Shutdown, TcpStream};

use async_io::Async;
use smol::io::{AsyncRead, AsyncWrite};

use super::carrier::{PAUSE, TURNS};
use crate::server::connection::Connection;

/// Protocol name in `Upgrade`.
pub(crate) const PROTOCOL: &str = "picolet-port";
/// On its way in one direction.
const BUFFER_BYTES: usize = 8 * 1024;

/// One direction.
struct Way {
    buffer: Box<[u8]>,
    /// What is on its way: from here, to there.
    start: usize,
    end: usize,
    /// The source has ended; the target was told.
    ended: bool,
    closed: bool,
}

impl Way {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ended: false,
            closed: false,
        }
    }

    /// Goes one step on; whether anything moved.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<bool> {
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
                Poll::Ready(written) => {
                    self.start += written?;
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
}

/// Carries bytes until both sides have ended, or one of them breaks.
pub(super) async fn join(connection: &mut Connection, port: &Async<TcpStream>) -> io::Result<()> {
    let (mut there, mut back) = (Way::new(), Way::new());
    let mut pause: Option<async_io::Timer> = None;
    core::future::poll_fn(|cx| {
        // Bounded: a pause after every `TURNS` moves.
        loop {
            if let Some(timer) = &mut pause {
                ready!(Future::poll(Pin::new(timer), cx));
                pause = None;
            }
            for _ in 0..TURNS {
                let mut moved = there.poll(cx, &mut *connection, port)?;
                moved |= back.poll(cx, port, &mut *connection)?;
                if there.is_over() && !there.closed {
                    // One that has ended of itself says so when it is read.
                    let _ = port.get_ref().shutdown(Shutdown::Write);
                    there.closed = true;
                    moved = true;
                }
                if back.is_over()
                    && !back.closed
                    && let Poll::Ready(closed) = Pin::new(&mut *connection).poll_close(cx)
                {
                    closed?;
                    back.closed = true;
                    moved = true;
                }
                if there.closed && back.closed {
                    return Poll::Ready(Ok(()));
                }
                if !moved {
                    return Poll::Pending;
                }
            }
            pause = Some(async_io::Timer::after(PAUSE));
        }
    })
    .await
}
