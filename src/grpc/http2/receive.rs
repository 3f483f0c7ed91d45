//! Receiving: frames from the peer.

use core::time::Duration;

use super::{
    ConnectionFault, ConnectionRole, ConnectionStage, Http2Connection, Http2ErrorCode, Http2Event,
    Http2StreamId, MAX_BLOCK_BYTES, MAX_BLOCK_FRAMES, MAX_CONTROL_FRAMES_PER_S, MAX_FRAME_BYTES,
    MAX_LIST_BYTES, MAX_OUTPUT_BYTES, MAX_RESETS_PER_S, MAX_STREAMS, MAX_WINDOW_BYTES, PREFACE,
    ReceiveStep, connection_fault,
    frame::{self, FrameHead, Http2Frame, flag, kind, setting},
    length_u32,
    stream::{Http2Stream, PartialHeaderBlock},
};
use crate::{
    hpack::{self, HeaderField},
    table::StreamTable,
};

impl Http2Connection {
    /// Takes the first frame of the bytes. `now` is since any fixed moment.
    ///
    /// Errors: the connection is over, every stream with it, and each further call says the same. The output tells the
    /// peer the reason.
    pub fn receive_frame<'a>(
        &mut self,
        bytes: &'a [u8],
        now: Duration,
    ) -> Result<ReceiveStep<'a>, ConnectionFault> {
        if let ConnectionStage::Over(fault) = self.stage {
            return Err(fault);
        }
        self.take_frame(bytes, now).inspect_err(|fault| {
            self.stage = ConnectionStage::Over(*fault);
            self.streams = StreamTable::new();
            let mut payload = self.last.to_be_bytes().to_vec();
            payload.extend(fault.reason.0.to_be_bytes());
            payload.extend(fault.text.as_bytes());
            self.put_frame(kind::GOAWAY, 0, 0, &payload);
        })
    }

    fn take_frame<'a>(
        &mut self,
        bytes: &'a [u8],
        now: Duration,
    ) -> Result<ReceiveStep<'a>, ConnectionFault> {
        let more = ReceiveStep {
            taken: 0,
            event: None,
        };
        if self.stage == ConnectionStage::Preface {
            let len = bytes.len().min(PREFACE.len());
            if bytes[..len] != PREFACE[..len] {
                return Err(connection_fault(
                    Http2ErrorCode::PROTOCOL_ERROR,
                    "no preface of HTTP/2",
                ));
            }
            if len < PREFACE.len() {
                return Ok(more);
            }
            self.stage = ConnectionStage::Settings;
            return Ok(ReceiveStep { taken: len, ..more });
        }
        let Some(head) = FrameHead::parse_head(bytes) else {
            return Ok(more);
        };
        if self.stage == ConnectionStage::Settings && bytes.starts_with(b"HTTP/") {
            let text = "the server does not speak HTTP/2";
            return Err(connection_fault(Http2ErrorCode::PROTOCOL_ERROR, text));
        }
        if self.stage == ConnectionStage::Settings
            && (head.kind != kind::SETTINGS || head.has_flag(flag::ACK))
        {
            return Err(connection_fault(
                Http2ErrorCode::PROTOCOL_ERROR,
                "the first frame is not SETTINGS",
            ));
        }
        if head.len > MAX_FRAME_BYTES {
            return Err(connection_fault(
                Http2ErrorCode::FRAME_SIZE_ERROR,
                "a frame that is too long",
            ));
        }
        let Some(payload) = bytes[frame::HEAD_BYTES..].get(..head.len) else {
            return Ok(more);
        };
        let taken = frame::HEAD_BYTES + head.len;
        let event = self.handle_frame(&Http2Frame { head, payload }, now)?;
        if self.output.len() - self.written > MAX_OUTPUT_BYTES {
            return Err(connection_fault(
                Http2ErrorCode::ENHANCE_YOUR_CALM,
                "the peer asks and does not read",
            ));
        }
        Ok(ReceiveStep { taken, event })
    }

    fn handle_frame<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let id = frame.head.id;
        if self.block.is_some() && frame.head.kind != kind::CONTINUATION {
            return Err(connection_fault(
                Http2ErrorCode::PROTOCOL_ERROR,
                "a frame between those of a header block",
            ));
        }
        let is_of_stream = match frame.head.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => {
                Some(true)
            }
            kind::SETTINGS | kind::PING | kind::GOAWAY => Some(false),
            _ => None,
        };
        if is_of_stream.is_some_and(|of_stream| of_stream != (id != 0)) {
            return Err(connection_fault(
                Http2ErrorCode::PROTOCOL_ERROR,
                "a frame on a stream of the wrong kind",
            ));
        }
        let has_payload = matches!(frame.head.kind, kind::DATA | kind::HEADERS)
            && (!frame.payload.is_empty() || frame.head.has_flag(flag::END_STREAM));
        if !has_payload {
            self.count_control(now)?;
        }
        match frame.head.kind {
            kind::DATA => self.handle_data(frame, now),
            kind::HEADERS => self.handle_headers(frame, now),
            kind::CONTINUATION => self.handle_continuation(frame, now),
            kind::RST_STREAM => self.handle_reset(frame, now),
            kind::SETTINGS => self.handle_settings(frame).map(|()| None),
            kind::PING => self.handle_ping(frame).map(|()| None),
            kind::GOAWAY => self.handle_go_away(frame),
            kind::WINDOW_UPDATE => self.handle_window_update(frame, now),
            kind::PUSH_PROMISE => Err(connection_fault(
                Http2ErrorCode::PROTOCOL_ERROR,
                "a pushed stream, although push is off",
            )),
            // Priorities, and unknown frames.
            _ => Ok(None),
        }
    }

    fn count_control(&mut self, now: Duration) -> Result<(), ConnectionFault> {
        if self.control.count_within(MAX_CONTROL_FRAMES_PER_S, now) {
            return Ok(());
        }
        let text = "too many frames without payload";
        Err(connection_fault(Http2ErrorCode::ENHANCE_YOUR_CALM, text))
    }

    fn count_reset(&mut self, now: Duration) -> Result<(), ConnectionFault> {
        if self.resets.count_within(MAX_RESETS_PER_S, now) {
            return Ok(());
        }
        Err(connection_fault(
            Http2ErrorCode::ENHANCE_YOUR_CALM,
            "too many resets",
        ))
    }

    /// Returns true if the stream was ever opened. If it is unknown now, it is closed.
    const fn was_opened(&self, id: Http2StreamId) -> bool {
        match self.role {
            ConnectionRole::Client => id % 2 == 1 && id < self.next,
            ConnectionRole::Server => id % 2 == 1 && id <= self.last,
        }
    }

    const fn require_opened(&self, id: Http2StreamId) -> Result<(), ConnectionFault> {
        if self.was_opened(id) {
            return Ok(());
        }
        let text = "a frame on a stream that was not opened";
        Err(connection_fault(Http2ErrorCode::PROTOCOL_ERROR, text))
    }

    /// The peer did wrong on one stream: that one ends.
    fn refuse_stream<'a>(
        &mut self,
        id: Http2StreamId,
        reason: Http2ErrorCode,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        self.count_reset(now)?;
        let was_there = self.streams.contains(id);
        self.streams.remove(id);
        self.put_frame(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        Ok(was_there.then_some(Http2Event::Reset { id, reason }))
    }

    fn handle_data<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let id = frame.head.id;
        self.require_opened(id)?;
        let whole = length_u32(frame.payload.len());
        // Padding counts.
        if !self.receive_window.take_bytes(whole) {
            return Err(connection_fault(
                Http2ErrorCode::FLOW_CONTROL_ERROR,
                "more than the connection's window",
            ));
        }
        self.release_connection(whole);
        let bytes = frame.unpadded_payload()?;
        let is_end = frame.head.has_flag(flag::END_STREAM);
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        if stream.is_read {
            return self.refuse_stream(id, Http2ErrorCode::STREAM_CLOSED, now);
        }
        if !stream.has_headers {
            return self.refuse_stream(id, Http2ErrorCode::PROTOCOL_ERROR, now);
        }
        if !stream.receive_window.take_bytes(whole) {
            return self.refuse_stream(id, Http2ErrorCode::FLOW_CONTROL_ERROR, now);
        }
        stream.is_read = is_end;
        let padding = frame.payload.len() - bytes.len();
        self.release_payload(id, padding);
        self.close_if_done(id);
        Ok(Some(Http2Event::Data { id, bytes, is_end }))
    }

    fn handle_headers<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let id = frame.head.id;
        if self.role == ConnectionRole::Client || id.is_multiple_of(2) {
            self.require_opened(id)?;
        }
        let mut bytes = frame.unpadded_payload()?;
        if frame.head.has_flag(flag::PRIORITY) {
            let cut = connection_fault(Http2ErrorCode::FRAME_SIZE_ERROR, "a frame that is cut");
            bytes = bytes.get(5..).ok_or(cut)?;
        }
        let is_end = frame.head.has_flag(flag::END_STREAM);
        if frame.head.has_flag(flag::END_HEADERS) {
            return self.end_header_block(id, bytes, is_end, now);
        }
        self.block = Some(PartialHeaderBlock {
            id,
            bytes: bytes.to_vec(),
            frames: 1,
            is_end,
        });
        Ok(None)
    }

    fn handle_continuation<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let Some(mut block) = self.block.take_if(|block| block.id == frame.head.id) else {
            return Err(connection_fault(
                Http2ErrorCode::PROTOCOL_ERROR,
                "CONTINUATION without a header block",
            ));
        };
        block.frames += 1;
        if block.frames > MAX_BLOCK_FRAMES
            || block.bytes.len() + frame.payload.len() > MAX_BLOCK_BYTES
        {
            return Err(connection_fault(
                Http2ErrorCode::ENHANCE_YOUR_CALM,
                "a header block that is too long",
            ));
        }
        block.bytes.extend_from_slice(frame.payload);
        if frame.head.has_flag(flag::END_HEADERS) {
            return self.end_header_block(block.id, &block.bytes, block.is_end, now);
        }
        self.block = Some(block);
        Ok(None)
    }

    fn end_header_block<'a>(
        &mut self,
        id: Http2StreamId,
        block: &[u8],
        is_end: bool,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        // Also that of a stream which nobody wants any more: it changes the table.
        let fields = self.decoder.decode(block, MAX_LIST_BYTES);
        let fields = fields.map_err(|e| {
            let text = match e {
                hpack::HpackError::Cut => "a header that is cut",
                hpack::HpackError::Number => "a number in a header that is too large",
                hpack::HpackError::Reference => "a reference to a header that was not sent",
                hpack::HpackError::Resize => "a table of headers larger than was offered",
                hpack::HpackError::Code => "a header in no code",
            };
            connection_fault(Http2ErrorCode::COMPRESSION_ERROR, text)
        })?;
        let is_new = self.role == ConnectionRole::Server && id > self.last;
        if is_new {
            self.last = id;
            if self.streams.len() >= MAX_STREAMS {
                return self.refuse_stream(id, Http2ErrorCode::REFUSED_STREAM, now);
            }
            let stream = Http2Stream::new(self.peer.window_bytes);
            self.streams.insert(id, stream);
        }
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        if stream.is_read {
            return self.refuse_stream(id, Http2ErrorCode::STREAM_CLOSED, now);
        }
        let is_trailer = stream.has_headers;
        if let Some(fields) = &fields {
            let Some(status) = header_block_kind(fields, self.role, is_trailer) else {
                return self.refuse_stream(id, Http2ErrorCode::PROTOCOL_ERROR, now);
            };
            if status == HeaderBlockKind::Informational && !is_end {
                return Ok(None);
            }
        }
        if is_trailer && !is_end {
            return self.refuse_stream(id, Http2ErrorCode::PROTOCOL_ERROR, now);
        }
        stream.has_headers = true;
        stream.is_read = is_end;
        self.close_if_done(id);
        Ok(Some(Http2Event::Headers { id, fields, is_end }))
    }

    fn handle_reset<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let id = frame.head.id;
        let reason = Http2ErrorCode(u32::from_be_bytes(frame.exact_payload()?));
        self.require_opened(id)?;
        self.count_reset(now)?;
        let was_there = self.streams.remove(id);
        Ok(was_there.then_some(Http2Event::Reset { id, reason }))
    }

    fn handle_settings(&mut self, frame: &Http2Frame<'_>) -> Result<(), ConnectionFault> {
        let (entries, rest) = frame.payload.as_chunks::<6>();
        let is_ack = frame.head.has_flag(flag::ACK);
        if !rest.is_empty() || is_ack && !entries.is_empty() {
            let text = "SETTINGS of a wrong length";
            return Err(connection_fault(Http2ErrorCode::FRAME_SIZE_ERROR, text));
        }
        if is_ack {
            return Ok(());
        }
        self.stage = ConnectionStage::Open;
        for [n0, n1, value @ ..] in entries {
            self.apply_setting(u16::from_be_bytes([*n0, *n1]), u32::from_be_bytes(*value))?;
        }
        self.put_frame(kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    fn apply_setting(&mut self, name: u16, value: u32) -> Result<(), ConnectionFault> {
        let large = usize::try_from(value).unwrap_or(usize::MAX);
        match name {
            setting::HEADER_TABLE_SIZE => self.encoder.resize(large),
            setting::MAX_CONCURRENT_STREAMS => self.peer.max_streams = large,
            setting::INITIAL_WINDOW_SIZE => {
                let window = i64::from(value);
                let change = window - self.peer.window_bytes;
                self.peer.window_bytes = window;
                let streams = &mut self.streams;
                let mut windows = streams.iter_mut().map(|(_, stream)| {
                    stream.send_window += change;
                    stream.send_window
                });
                if window > MAX_WINDOW_BYTES || windows.any(|window| window > MAX_WINDOW_BYTES) {
                    let text = "a window that is too large";
                    return Err(connection_fault(Http2ErrorCode::FLOW_CONTROL_ERROR, text));
                }
            }
            setting::ENABLE_PUSH if value > 1 => {
                return Err(connection_fault(
                    Http2ErrorCode::PROTOCOL_ERROR,
                    "ENABLE_PUSH is no boolean",
                ));
            }
            setting::MAX_FRAME_SIZE if !(16_384..1 << 24).contains(&value) => {
                let text = "MAX_FRAME_SIZE is out of range";
                return Err(connection_fault(Http2ErrorCode::PROTOCOL_ERROR, text));
            }
            _ => {}
        }
        Ok(())
    }

    fn handle_ping(&mut self, frame: &Http2Frame<'_>) -> Result<(), ConnectionFault> {
        let payload: [u8; 8] = frame.exact_payload()?;
        if frame.head.has_flag(flag::ACK) {
            self.pings = self.pings.saturating_sub(1);
        } else {
            self.put_frame(kind::PING, flag::ACK, 0, &payload);
        }
        Ok(())
    }

    fn handle_go_away<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let Some((&[last @ .., r0, r1, r2, r3], _)) = frame.payload.split_first_chunk::<8>() else {
            return Err(connection_fault(
                Http2ErrorCode::FRAME_SIZE_ERROR,
                "a frame that is cut",
            ));
        };
        self.is_leaving = true;
        let last = u32::from_be_bytes(last) & frame::ID_MASK;
        if self.role == ConnectionRole::Client {
            self.streams.retain(|id, _| id <= last);
        }
        Ok(Some(Http2Event::GoAway {
            last,
            reason: Http2ErrorCode(u32::from_be_bytes([r0, r1, r2, r3])),
        }))
    }

    fn handle_window_update<'a>(
        &mut self,
        frame: &Http2Frame<'a>,
        now: Duration,
    ) -> Result<Option<Http2Event<'a>>, ConnectionFault> {
        let id = frame.head.id;
        let more = i64::from(u32::from_be_bytes(frame.exact_payload()?) & frame::ID_MASK);
        if id == 0 {
            self.send_window += more;
            if more == 0 {
                return Err(connection_fault(
                    Http2ErrorCode::PROTOCOL_ERROR,
                    "WINDOW_UPDATE by 0",
                ));
            }
            if self.send_window > MAX_WINDOW_BYTES {
                let text = "a window that is too large";
                return Err(connection_fault(Http2ErrorCode::FLOW_CONTROL_ERROR, text));
            }
            return Ok(None);
        }
        self.require_opened(id)?;
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        stream.send_window += more;
        if more == 0 {
            return self.refuse_stream(id, Http2ErrorCode::PROTOCOL_ERROR, now);
        }
        if stream.send_window > MAX_WINDOW_BYTES {
            return self.refuse_stream(id, Http2ErrorCode::FLOW_CONTROL_ERROR, now);
        }
        Ok(None)
    }
}

/// Kind of a block of headers.
#[derive(Debug, PartialEq, Eq)]
enum HeaderBlockKind {
    /// `:status` 1xx: others follow.
    Informational,
    Final,
}

/// Checks the form of a block as far as messages are told apart by it. Section 8.3. `None`: it has none.
///
/// Of `:authority` nothing is asked: grpc-C writes the escaped path of a unix socket there.
fn header_block_kind(
    fields: &[HeaderField],
    role: ConnectionRole,
    is_trailer: bool,
) -> Option<HeaderBlockKind> {
    let pseudo = fields.iter().take_while(|(name, _)| name.starts_with(b":"));
    let pseudo = pseudo.count();
    let is_well = |(name, _): &HeaderField| {
        !name.is_empty() && !name.iter().any(|b| b.is_ascii_uppercase() || *b == b':')
    };
    if !fields[pseudo..].iter().all(is_well) {
        return None;
    }
    let single = |wanted: &[u8]| {
        let mut found = fields[..pseudo].iter().filter(|(name, _)| name == wanted);
        let value = found.next().map(|(_, value)| value.as_slice());
        value.filter(|_| found.next().is_none())
    };
    if is_trailer {
        return (pseudo == 0).then_some(HeaderBlockKind::Final);
    }
    match role {
        ConnectionRole::Server => {
            let path = single(b":path").filter(|path| !path.is_empty());
            (path.is_some() && single(b":method").is_some()).then_some(HeaderBlockKind::Final)
        }
        ConnectionRole::Client => single(b":status").map(|status| match status {
            [b'1', _, _] => HeaderBlockKind::Informational,
            _ => HeaderBlockKind::Final,
        }),
    }
}
