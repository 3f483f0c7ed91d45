//! State of a stream, and its counts.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Http2StreamId, SECOND, STREAM_WINDOW_BYTES};
use crate::hpack::HeaderField;

#[derive(Debug)]
pub(super) struct PartialHeaderBlock {
    pub(super) id: Http2StreamId,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
    pub(super) is_end: bool,
}

#[derive(Debug)]
pub(super) struct Http2Stream {
    pub(super) send_window: i64,
    pub(super) receive_window: ReceiveWindow,
    /// Payload that waits for the windows, the next first, and how much of that has gone out.
    pub(super) waiting: VecDeque<Vec<u8>>,
    pub(super) at: usize,
    /// End of this side's payload.
    pub(super) end: SendState,
    /// Set when the peer has sent headers, and when it has sent its end.
    pub(super) has_headers: bool,
    pub(super) is_read: bool,
    /// Start of the time in which no waiting byte has gone out.
    pub(super) stalled: Option<Duration>,
}

/// The end of what this side sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// More payload may come.
    Open,
    /// The stream ends with its last payload.
    Payload,
    Trailers(Vec<HeaderField>),
    Sent,
}

impl Http2Stream {
    pub(super) fn new(send_window: i64) -> Self {
        Self {
            send_window,
            receive_window: ReceiveWindow::new(STREAM_WINDOW_BYTES),
            waiting: VecDeque::new(),
            at: 0,
            end: SendState::Open,
            has_headers: false,
            is_read: false,
            stalled: None,
        }
    }

    pub(super) fn wants_to_send(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.end, SendState::Payload | SendState::Trailers(_))
    }
}

/// Receive window, in bytes: the part that a peer may still fill, and the part that was used and can be granted again.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    pub(super) size: u32,
    pub(super) open: u32,
    pub(super) used: u32,
}

impl ReceiveWindow {
    pub(super) const fn new(size: u32) -> Self {
        Self {
            size,
            open: size,
            used: 0,
        }
    }

    /// Takes so many bytes from the window; returns false if the peer has sent more than it may.
    pub(super) const fn take_bytes(&mut self, bytes: u32) -> bool {
        match self.open.checked_sub(bytes) {
            Some(rest) => {
                self.open = rest;
                true
            }
            None => false,
        }
    }

    /// Notes that so many bytes have been read; returns the bytes to grant, once they are worth a frame.
    pub(super) fn release_bytes(&mut self, bytes: u32) -> Option<u32> {
        // No more than was taken.
        self.used = self.used.saturating_add(bytes).min(self.size - self.open);
        (self.used >= self.size / 2).then(|| {
            self.open += self.used;
            core::mem::take(&mut self.used)
        })
    }
}

/// Counts within a second.
#[derive(Debug, Default)]
pub(super) struct RateCounter {
    pub(super) since: Duration,
    pub(super) count: u32,
}

impl RateCounter {
    pub(super) fn count_within(&mut self, max: u32, now: Duration) -> bool {
        if now.saturating_sub(self.since) >= SECOND {
            *self = Self {
                since: now,
                count: 0,
            };
        }
        self.count += 1;
        self.count <= max
    }
}
