//! Sending: frames to the peer.

use core::time::Duration;

use super::{
    ANSWERS, ConnectionRole, ConnectionStage, Http2Connection, Http2ErrorCode, Http2StreamId,
    KEPT_BYTES, MAX_FRAME_BYTES, MAX_OWN_STREAMS, MAX_STALL, OUTPUT_BYTES, OpenStreamError,
    frame::{self, flag, kind},
    length_u32,
    stream::{Http2Stream, SendState},
};
use crate::hpack::HeaderField;

impl Http2Connection {
    /// Opens a stream with these headers; payload may follow until [`Self::end_stream`].
    pub fn open_stream<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Http2StreamId, OpenStreamError> {
        if !self.has_stream_room() {
            return Err(OpenStreamError);
        }
        let id = self.next;
        self.next += 2;
        let stream = Http2Stream::new(self.peer.window_bytes);
        self.streams.insert(id, stream);
        self.put_headers(id, fields, false);
        Ok(id)
    }

    /// Returns true if [`Self::open_stream`] would open a stream.
    #[must_use]
    pub fn has_stream_room(&self) -> bool {
        let max = self.peer.max_streams.min(MAX_OWN_STREAMS);
        self.streams.len() < max && !self.is_leaving()
    }

    /// Returns true if the connection is over, or is known to come to its end: no stream can be opened any more.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.is_leaving
            || matches!(self.stage, ConnectionStage::Over(_))
            || self.next > frame::ID_MASK
    }

    /// Sends headers of an answer, before its payload. Nothing if the stream is over.
    pub fn send_headers<'a>(
        &mut self,
        id: Http2StreamId,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        if self.streams.contains(id) {
            self.put_headers(id, fields, false);
        }
    }

    /// Sends payload as the windows allow it. Nothing if the stream is over, or its end was said.
    pub fn send_payload(&mut self, id: Http2StreamId, bytes: Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(id)
            && stream.end == SendState::Open
            && !bytes.is_empty()
        {
            stream.waiting.push_back(bytes);
        }
    }

    /// Ends this side of the stream: only these trailers are still sent, if any.
    pub fn end_stream(&mut self, id: Http2StreamId, trailers: Vec<HeaderField>) {
        if let Some(stream) = self.streams.get_mut(id)
            && stream.end == SendState::Open
        {
            stream.end = if trailers.is_empty() {
                SendState::Payload
            } else {
                SendState::Trailers(trailers)
            };
        }
    }

    /// Bytes of payload that wait to be sent. 0 if the stream is over.
    #[must_use]
    pub fn waiting_bytes(&self, id: Http2StreamId) -> usize {
        let stream = self.streams.get(id);
        stream.map_or(0, |stream| {
            stream.waiting.iter().map(Vec::len).sum::<usize>() - stream.at
        })
    }

    /// Gives a stream up. Nothing if it is over.
    pub fn reset_stream(&mut self, id: Http2StreamId, reason: Http2ErrorCode) {
        if self.streams.remove(id) {
            self.put_frame(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        }
    }

    /// Notes that so many bytes of the stream's payload have been read: as many more may come.
    pub fn release_payload(&mut self, id: Http2StreamId, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(id)
            && !stream.is_read
            && let Some(more) = stream.receive_window.release_bytes(length_u32(bytes))
        {
            self.put_frame(kind::WINDOW_UPDATE, 0, id, &more.to_be_bytes());
        }
    }

    /// Asks whether the peer is still there.
    pub fn send_ping(&mut self) {
        self.pings += 1;
        self.put_frame(kind::PING, 0, 0, &[0; 8]);
    }

    /// Returns true while a ping waits for its answer.
    #[must_use]
    pub const fn awaits_pong(&self) -> bool {
        self.pings > 0
    }

    pub(super) fn release_connection(&mut self, bytes: u32) {
        if let Some(more) = self.receive_window.release_bytes(bytes) {
            self.put_frame(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        }
    }

    /// Returns the bytes to send next; empty if there are none for now.
    pub fn next_output(&mut self, now: Duration) -> &[u8] {
        self.fill_output(now);
        &self.output[self.written..]
    }

    /// Returns true if there are frames that have not been sent.
    #[must_use]
    pub const fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Notes that so many bytes of the output have been sent.
    pub fn record_written(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.output.len() {
            self.output.clear();
            self.written = 0;
            self.output.shrink_to(KEPT_BYTES);
        }
    }

    /// Makes frames of what waits, a frame of each stream in turn.
    fn fill_output(&mut self, now: Duration) {
        if self
            .streams
            .iter()
            .all(|(_, stream)| !stream.wants_to_send())
        {
            return;
        }
        // A round without a frame ends the loop: then nothing may be sent, or nothing waits.
        let mut idle = 0;
        while self.output.len() - self.written < OUTPUT_BYTES && idle <= self.streams.len() {
            let Some(id) = self.streams.next_id_after(self.turn) else {
                break;
            };
            self.turn = id;
            idle = if self.put_next_frame(id) { 0 } else { idle + 1 };
        }
        for (_, stream) in self.streams.iter_mut() {
            if stream.wants_to_send() {
                stream.stalled.get_or_insert(now);
            }
        }
    }

    /// The next frame of a stream. Returns whether there was one.
    fn put_next_frame(&mut self, id: Http2StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(id) else {
            return false;
        };
        let Some(first) = stream.waiting.front() else {
            let end = core::mem::replace(&mut stream.end, SendState::Sent);
            match end {
                SendState::Payload => {
                    frame::put_frame(&mut self.output, kind::DATA, flag::END_STREAM, id, &[])
                }
                SendState::Trailers(fields) => {
                    let fields = fields.iter().map(|(n, v)| (n.as_slice(), v.as_slice()));
                    self.put_headers(id, fields, true);
                }
                SendState::Open | SendState::Sent => {
                    stream.end = end;
                    return false;
                }
            }
            self.close_if_done(id);
            return true;
        };
        let window = stream.send_window.min(self.send_window);
        let Some(window) = usize::try_from(window).ok().filter(|bytes| *bytes > 0) else {
            return false;
        };
        let rest = &first[stream.at..];
        let piece = &rest[..rest.len().min(window).min(MAX_FRAME_BYTES)];
        let bytes = i64::from(length_u32(piece.len()));
        let is_all = piece.len() == rest.len();
        let is_last = is_all && stream.waiting.len() == 1 && stream.end == SendState::Payload;
        let flags = if is_last { flag::END_STREAM } else { 0 };
        frame::put_frame(&mut self.output, kind::DATA, flags, id, piece);
        stream.at += piece.len();
        if is_all {
            stream.waiting.pop_front();
            stream.at = 0;
        }
        if is_last {
            stream.end = SendState::Sent;
        }
        stream.stalled = None;
        stream.send_window -= bytes;
        self.send_window -= bytes;
        self.control.count = self.control.count.saturating_sub(ANSWERS);
        self.close_if_done(id);
        true
    }

    /// Time at which to call [`Self::reset_stalled_stream`], unless something happens before.
    #[must_use]
    pub fn next_stall_check(&self) -> Option<Duration> {
        let since = self.streams.iter().filter_map(|(_, stream)| stream.stalled);
        since.min().map(|since| since + MAX_STALL)
    }

    /// Gives up a stream of which the peer has let nothing go out for too long, if there is one.
    pub fn reset_stalled_stream(&mut self, now: Duration) -> Option<Http2StreamId> {
        let is_late = |stream: &Http2Stream| {
            let since = stream.stalled;
            since.is_some_and(|since| now.saturating_sub(since) >= MAX_STALL)
        };
        let (id, _) = self.streams.iter().find(|(_, stream)| is_late(stream))?;
        self.reset_stream(id, Http2ErrorCode::ENHANCE_YOUR_CALM);
        Some(id)
    }

    pub(super) fn close_if_done(&mut self, id: Http2StreamId) {
        let Some(stream) = self.streams.get(id).filter(|s| s.end == SendState::Sent) else {
            return;
        };
        if stream.is_read {
            self.streams.remove(id);
        } else if self.role == ConnectionRole::Server {
            // The answer is whole: the rest of the question is of no interest. Section 8.1.
            self.reset_stream(id, Http2ErrorCode::NO_ERROR);
        }
    }

    fn put_headers<'a>(
        &mut self,
        id: Http2StreamId,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        is_end: bool,
    ) {
        let mut block = Vec::new();
        self.encoder.encode(fields, &mut block);
        let mut kind = kind::HEADERS;
        let mut flags = if is_end { flag::END_STREAM } else { 0 };
        let mut rest = &block[..];
        // Bounded: by the block, which is this side's own.
        loop {
            let (piece, after) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
            if after.is_empty() {
                return self.put_frame(kind, flags | flag::END_HEADERS, id, piece);
            }
            self.put_frame(kind, flags, id, piece);
            (kind, flags, rest) = (kind::CONTINUATION, 0, after);
        }
    }
}
