//! A connection of HTTP/2 and its streams, for both roles. Source: RFC 9113.
//!
//! No I/O and no clock: [`Connection::receive`] takes what came and the time, [`Connection::output`] has what is to be sent.
//! What is received is said at once and kept nowhere: the window of the connection is granted again as it is used, that of a
//! stream by [`Connection::release`]. So a stream whose reader is slow holds up no other. Not supported: pushed streams (they
//! are told away), priorities (ignored), upgrades from HTTP/1.
//!
//! Peers may be hostile. An error of the protocol ends the stream or the connection, as the standard has it; limits that it
//! leaves open are the constants below.

mod frame;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;

use self::frame::{Frame, Head, flag, kind, setting};
use crate::hpack::{self, Decoder, Encoder, Field};

/// What a client begins with.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest payload of a frame, in both directions: what every peer keeps to unless told otherwise.
const MAX_FRAME_BYTES: usize = 16 * 1024;
/// Longest block of headers as it is sent.
const MAX_BLOCK_BYTES: usize = 16 * 1024;
/// Frames in which it may come.
const MAX_BLOCK_FRAMES: u32 = 32;
/// What the fields of a block may come to, each with 32 bytes beside its text. The peer is told.
const MAX_LIST_BYTES: usize = 16 * 1024;
/// Streams that a client may have open at a time. The peer is told; above that they are refused.
pub const MAX_STREAMS: usize = 100;
/// Streams that this side opens at a time, whatever the peer allows.
const MAX_OWN_STREAMS: usize = 1000;
/// What a peer may send of one stream before it is read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same of all streams together.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// A window's size until one is told, and its largest.
const FIRST_WINDOW_BYTES: i64 = 65_535;
const MAX_WINDOW_BYTES: i64 = (1 << 31) - 1;
/// Frames a second that carry no payload of a stream: PING, SETTINGS, empty DATA and the like. Each DATA frame that goes out
/// allows [`ANSWERS`] more: peers measure by PING, and widen windows.
const MAX_CONTROL_FRAMES_PER_S: u32 = 1000;
const ANSWERS: u32 = 4;
/// Streams a second that end by a reset, whoever sends it.
const MAX_RESETS_PER_S: u32 = 200;
/// Bytes of frames that are made in advance of their being sent.
const OUTPUT_BYTES: usize = 32 * 1024;
/// Bytes that may wait to be sent though the peer does not read: answers to what it asks, and headers.
const MAX_OUTPUT_BYTES: usize = 256 * 1024;
/// What an empty buffer may keep.
const KEPT_BYTES: usize = 4 * 1024;
/// How long a stream may have something to send of which nothing goes out.
const MAX_STALL: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Number of a stream.
pub type StreamId = u32;

/// Who this side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It opens streams.
    Client,
    /// It answers them.
    Server,
}

/// Why a stream or a connection ended, as it is sent. Section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u32);

impl Reason {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0);
    /// The peer does not keep to the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// More was sent than the window allows.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame on a stream that was ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame of a wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not looked at.
    pub const REFUSED_STREAM: Self = Self(7);
    /// Nobody wants it any more.
    pub const CANCEL: Self = Self(8);
    /// Tables of headers differ by now.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer asks too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// The end of a connection. The peer has been told by the time that [`Connection::output`] is sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct Fault {
    /// As it is sent.
    pub reason: Reason,
    /// What was wrong.
    pub text: &'static str,
}

const fn fault(reason: Reason, text: &'static str) -> Fault {
    Fault { reason, text }
}

/// No stream can be opened now: there are as many as the peer allows, or the connection comes to its end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no stream can be opened")]
pub struct NoRoom;

/// What was received.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Headers: of a new stream if this is a server, else of an answer; or trailers, which come with `is_end`.
    Headers {
        /// Whose.
        id: StreamId,
        /// In their order, those of the protocol (`:path`) first. `None`: they are too long.
        fields: Option<Vec<Field>>,
        /// Nothing more comes.
        is_end: bool,
    },
    /// Payload. It is to be [released](Connection::release).
    Data {
        /// Whose.
        id: StreamId,
        /// The next of it.
        bytes: &'a [u8],
        /// Nothing more comes.
        is_end: bool,
    },
    /// The stream is over, in both directions.
    Reset {
        /// Which.
        id: StreamId,
        /// Why.
        reason: Reason,
    },
    /// No streams are taken any more; of those that there are, those above `last` were not looked at.
    GoAway {
        /// The last that counts.
        last: StreamId,
        /// Why.
        reason: Reason,
    },
}

/// What one call of [`Connection::receive`] did.
#[derive(Debug)]
pub struct Step<'a> {
    /// Bytes that are done with; 0: more are needed.
    pub taken: usize,
    /// What they said.
    pub event: Option<Event<'a>>,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    stage: Stage,
    decoder: Decoder,
    encoder: Encoder,
    streams: BTreeMap<StreamId, Stream>,
    /// The next of this side's, and the last of the peer's.
    next: StreamId,
    last: StreamId,
    /// A block that is not whole yet.
    block: Option<Block>,
    /// The peer takes or opens no streams any more.
    is_leaving: bool,
    peer: Peer,
    /// What may be sent, and what may be received, over all streams.
    send_window: i64,
    receive_window: Window,
    control: Rate,
    resets: Rate,
    output: Vec<u8>,
    written: usize,
    /// The stream whose turn it was last.
    turn: StreamId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The preface is awaited.
    Preface,
    /// The first frame, which is SETTINGS.
    Settings,
    Open,
    /// A fault was found.
    Over(Fault),
}

/// What the peer has told of itself.
#[derive(Debug)]
struct Peer {
    window_bytes: i64,
    max_streams: usize,
}

#[derive(Debug)]
struct Block {
    id: StreamId,
    bytes: Vec<u8>,
    frames: u32,
    is_end: bool,
}

#[derive(Debug)]
struct Stream {
    send_window: i64,
    receive_window: Window,
    /// Payload that waits for the windows, the next first, and how much of that has gone out.
    waiting: VecDeque<Vec<u8>>,
    at: usize,
    /// What follows it.
    end: End,
    /// Whether the peer has sent headers, and its end.
    has_headers: bool,
    is_read: bool,
    /// Since when nothing of what waits has gone out.
    stalled: Option<Duration>,
}

/// The end of what this side sends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// More may come.
    Open,
    /// With the last payload.
    Payload,
    Trailers(Vec<Field>),
    Sent,
}

impl Stream {
    fn new(send_window: i64) -> Self {
        Self {
            send_window,
            receive_window: Window::new(STREAM_WINDOW_BYTES),
            waiting: VecDeque::new(),
            at: 0,
            end: End::Open,
            has_headers: false,
            is_read: false,
            stalled: None,
        }
    }

    fn wants_to_send(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.end, End::Payload | End::Trailers(_))
    }
}

/// What a peer may still send, and what of that was used and can be granted again, in bytes.
#[derive(Debug)]
struct Window {
    size: u32,
    open: u32,
    used: u32,
}

impl Window {
    const fn new(size: u32) -> Self {
        Self {
            size,
            open: size,
            used: 0,
        }
    }

    /// Whether it may send so much.
    const fn take(&mut self, bytes: u32) -> bool {
        match self.open.checked_sub(bytes) {
            Some(rest) => {
                self.open = rest;
                true
            }
            None => false,
        }
    }

    /// So much has been read: returns what is to be granted, once it is worth a frame.
    fn release(&mut self, bytes: u32) -> Option<u32> {
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
struct Rate {
    since: Duration,
    count: u32,
}

impl Rate {
    fn is_within(&mut self, max: u32, now: Duration) -> bool {
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

impl Connection {
    /// At its beginning, with what is to be sent first.
    #[must_use]
    pub fn new(role: Role) -> Self {
        let mut output = Vec::new();
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
            (setting::MAX_HEADER_LIST_SIZE, length(MAX_LIST_BYTES)),
        ];
        if role == Role::Client {
            output.extend_from_slice(PREFACE);
            settings.push((setting::ENABLE_PUSH, 0));
        } else {
            settings.push((setting::MAX_CONCURRENT_STREAMS, length(MAX_STREAMS)));
        }
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(u16::to_be_bytes(name));
            payload.extend(u32::to_be_bytes(value));
        }
        frame::put(&mut output, kind::SETTINGS, 0, 0, &payload);
        let more = CONNECTION_WINDOW_BYTES - 65_535;
        frame::put(&mut output, kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        Self {
            role,
            stage: match role {
                Role::Client => Stage::Settings,
                Role::Server => Stage::Preface,
            },
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            streams: BTreeMap::new(),
            next: 1,
            last: 0,
            block: None,
            is_leaving: false,
            peer: Peer {
                window_bytes: FIRST_WINDOW_BYTES,
                max_streams: MAX_STREAMS,
            },
            send_window: FIRST_WINDOW_BYTES,
            receive_window: Window::new(CONNECTION_WINDOW_BYTES),
            control: Rate::default(),
            resets: Rate::default(),
            output,
            written: 0,
            turn: 0,
        }
    }

    /// Takes the first frame of what came. `now` is since any fixed moment.
    ///
    /// Errors: the connection is over, every stream with it, and each further call says the same. What is to be sent says
    /// why.
    pub fn receive<'a>(&mut self, bytes: &'a [u8], now: Duration) -> Result<Step<'a>, Fault> {
        if let Stage::Over(fault) = self.stage {
            return Err(fault);
        }
        self.take(bytes, now).inspect_err(|fault| {
            self.stage = Stage::Over(*fault);
            self.streams.clear();
            let mut payload = self.last.to_be_bytes().to_vec();
            payload.extend(fault.reason.0.to_be_bytes());
            payload.extend(fault.text.as_bytes());
            self.put(kind::GOAWAY, 0, 0, &payload);
        })
    }

    fn take<'a>(&mut self, bytes: &'a [u8], now: Duration) -> Result<Step<'a>, Fault> {
        let more = Step {
            taken: 0,
            event: None,
        };
        if self.stage == Stage::Preface {
            let len = bytes.len().min(PREFACE.len());
            if bytes[..len] != PREFACE[..len] {
                return Err(fault(Reason::PROTOCOL_ERROR, "no preface of HTTP/2"));
            }
            if len < PREFACE.len() {
                return Ok(more);
            }
            self.stage = Stage::Settings;
            return Ok(Step { taken: len, ..more });
        }
        let Some(head) = Head::read(bytes) else {
            return Ok(more);
        };
        if self.stage == Stage::Settings && bytes.starts_with(b"HTTP/") {
            let text = "the server does not speak HTTP/2";
            return Err(fault(Reason::PROTOCOL_ERROR, text));
        }
        if self.stage == Stage::Settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(fault(
                Reason::PROTOCOL_ERROR,
                "the first frame is not SETTINGS",
            ));
        }
        if head.len > MAX_FRAME_BYTES {
            return Err(fault(Reason::FRAME_SIZE_ERROR, "a frame that is too long"));
        }
        let Some(payload) = bytes[frame::HEAD_BYTES..].get(..head.len) else {
            return Ok(more);
        };
        let taken = frame::HEAD_BYTES + head.len;
        let event = self.frame(&Frame { head, payload }, now)?;
        if self.output.len() - self.written > MAX_OUTPUT_BYTES {
            return Err(fault(
                Reason::ENHANCE_YOUR_CALM,
                "the peer asks and does not read",
            ));
        }
        Ok(Step { taken, event })
    }

    fn frame<'a>(&mut self, frame: &Frame<'a>, now: Duration) -> Result<Option<Event<'a>>, Fault> {
        let id = frame.head.id;
        if self.block.is_some() && frame.head.kind != kind::CONTINUATION {
            return Err(fault(
                Reason::PROTOCOL_ERROR,
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
            return Err(fault(
                Reason::PROTOCOL_ERROR,
                "a frame on a stream of the wrong kind",
            ));
        }
        let has_payload = matches!(frame.head.kind, kind::DATA | kind::HEADERS)
            && (!frame.payload.is_empty() || frame.head.has(flag::END_STREAM));
        if !has_payload {
            self.count_control(now)?;
        }
        match frame.head.kind {
            kind::DATA => self.data(frame, now),
            kind::HEADERS => self.headers(frame, now),
            kind::CONTINUATION => self.continuation(frame, now),
            kind::RST_STREAM => self.reset_by_peer(frame, now),
            kind::SETTINGS => self.settings(frame).map(|()| None),
            kind::PING => self.ping(frame).map(|()| None),
            kind::GOAWAY => self.go_away_by_peer(frame),
            kind::WINDOW_UPDATE => self.window_update(frame, now),
            kind::PUSH_PROMISE => Err(fault(
                Reason::PROTOCOL_ERROR,
                "a pushed stream that was told away",
            )),
            // Priorities, and what is not known.
            _ => Ok(None),
        }
    }

    fn count_control(&mut self, now: Duration) -> Result<(), Fault> {
        if self.control.is_within(MAX_CONTROL_FRAMES_PER_S, now) {
            return Ok(());
        }
        let text = "too many frames without payload";
        Err(fault(Reason::ENHANCE_YOUR_CALM, text))
    }

    fn count_reset(&mut self, now: Duration) -> Result<(), Fault> {
        if self.resets.is_within(MAX_RESETS_PER_S, now) {
            return Ok(());
        }
        Err(fault(Reason::ENHANCE_YOUR_CALM, "too many resets"))
    }

    /// Whether there has been such a stream: one that is not known any more then is closed.
    const fn was_opened(&self, id: StreamId) -> bool {
        match self.role {
            Role::Client => id % 2 == 1 && id < self.next,
            Role::Server => id % 2 == 1 && id <= self.last,
        }
    }

    const fn require_opened(&self, id: StreamId) -> Result<(), Fault> {
        if self.was_opened(id) {
            return Ok(());
        }
        let text = "a frame on a stream that was not opened";
        Err(fault(Reason::PROTOCOL_ERROR, text))
    }

    /// The peer did wrong on one stream: that one ends.
    fn refuse<'a>(
        &mut self,
        id: StreamId,
        reason: Reason,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        self.count_reset(now)?;
        let was_there = self.streams.contains_key(&id);
        self.streams.remove(&id);
        self.put(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        Ok(was_there.then_some(Event::Reset { id, reason }))
    }

    fn data<'a>(&mut self, frame: &Frame<'a>, now: Duration) -> Result<Option<Event<'a>>, Fault> {
        let id = frame.head.id;
        self.require_opened(id)?;
        let whole = length(frame.payload.len());
        // Padding counts.
        if !self.receive_window.take(whole) {
            return Err(fault(
                Reason::FLOW_CONTROL_ERROR,
                "more than the connection's window",
            ));
        }
        self.release_connection(whole);
        let bytes = frame.unpadded()?;
        let is_end = frame.head.has(flag::END_STREAM);
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(None);
        };
        if stream.is_read {
            return self.refuse(id, Reason::STREAM_CLOSED, now);
        }
        if !stream.has_headers {
            return self.refuse(id, Reason::PROTOCOL_ERROR, now);
        }
        if !stream.receive_window.take(whole) {
            return self.refuse(id, Reason::FLOW_CONTROL_ERROR, now);
        }
        stream.is_read = is_end;
        let padding = frame.payload.len() - bytes.len();
        self.release(id, padding);
        self.close_if_done(id);
        Ok(Some(Event::Data { id, bytes, is_end }))
    }

    fn headers<'a>(
        &mut self,
        frame: &Frame<'a>,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        let id = frame.head.id;
        if self.role == Role::Client || id.is_multiple_of(2) {
            self.require_opened(id)?;
        }
        let mut bytes = frame.unpadded()?;
        if frame.head.has(flag::PRIORITY) {
            let cut = fault(Reason::FRAME_SIZE_ERROR, "a frame that is cut");
            bytes = bytes.get(5..).ok_or(cut)?;
        }
        let is_end = frame.head.has(flag::END_STREAM);
        if frame.head.has(flag::END_HEADERS) {
            return self.end_of_block(id, bytes, is_end, now);
        }
        self.block = Some(Block {
            id,
            bytes: bytes.to_vec(),
            frames: 1,
            is_end,
        });
        Ok(None)
    }

    fn continuation<'a>(
        &mut self,
        frame: &Frame<'a>,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        let Some(mut block) = self.block.take_if(|block| block.id == frame.head.id) else {
            return Err(fault(
                Reason::PROTOCOL_ERROR,
                "CONTINUATION of no header block",
            ));
        };
        block.frames += 1;
        if block.frames > MAX_BLOCK_FRAMES
            || block.bytes.len() + frame.payload.len() > MAX_BLOCK_BYTES
        {
            return Err(fault(
                Reason::ENHANCE_YOUR_CALM,
                "a header block that is too long",
            ));
        }
        block.bytes.extend_from_slice(frame.payload);
        if frame.head.has(flag::END_HEADERS) {
            return self.end_of_block(block.id, &block.bytes, block.is_end, now);
        }
        self.block = Some(block);
        Ok(None)
    }

    fn end_of_block<'a>(
        &mut self,
        id: StreamId,
        block: &[u8],
        is_end: bool,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        // Also that of a stream which nobody wants any more: it changes the table.
        let fields = self.decoder.decode(block, MAX_LIST_BYTES);
        let fields = fields.map_err(|e| {
            let text = match e {
                hpack::Error::Cut => "a header that is cut",
                hpack::Error::Number => "a number in a header that is too large",
                hpack::Error::Reference => "a reference to a header that was not sent",
                hpack::Error::Resize => "a table of headers larger than was offered",
                hpack::Error::Code => "a header in no code",
            };
            fault(Reason::COMPRESSION_ERROR, text)
        })?;
        let is_new = self.role == Role::Server && id > self.last;
        if is_new {
            self.last = id;
            if self.streams.len() >= MAX_STREAMS {
                return self.refuse(id, Reason::REFUSED_STREAM, now);
            }
            let stream = Stream::new(self.peer.window_bytes);
            self.streams.insert(id, stream);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(None);
        };
        if stream.is_read {
            return self.refuse(id, Reason::STREAM_CLOSED, now);
        }
        let is_trailer = stream.has_headers;
        if let Some(fields) = &fields {
            let Some(status) = form(fields, self.role, is_trailer) else {
                return self.refuse(id, Reason::PROTOCOL_ERROR, now);
            };
            if status == Form::Informational && !is_end {
                return Ok(None);
            }
        }
        if is_trailer && !is_end {
            return self.refuse(id, Reason::PROTOCOL_ERROR, now);
        }
        stream.has_headers = true;
        stream.is_read = is_end;
        self.close_if_done(id);
        Ok(Some(Event::Headers { id, fields, is_end }))
    }

    fn reset_by_peer<'a>(
        &mut self,
        frame: &Frame<'a>,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        let id = frame.head.id;
        let reason = Reason(u32::from_be_bytes(frame.exact()?));
        self.require_opened(id)?;
        self.count_reset(now)?;
        let was_there = self.streams.remove(&id).is_some();
        Ok(was_there.then_some(Event::Reset { id, reason }))
    }

    fn settings(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let (entries, rest) = frame.payload.as_chunks::<6>();
        let is_ack = frame.head.has(flag::ACK);
        if !rest.is_empty() || is_ack && !entries.is_empty() {
            let text = "SETTINGS of a wrong length";
            return Err(fault(Reason::FRAME_SIZE_ERROR, text));
        }
        if is_ack {
            return Ok(());
        }
        self.stage = Stage::Open;
        for [n0, n1, value @ ..] in entries {
            self.set(u16::from_be_bytes([*n0, *n1]), u32::from_be_bytes(*value))?;
        }
        self.put(kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    fn set(&mut self, name: u16, value: u32) -> Result<(), Fault> {
        let large = usize::try_from(value).unwrap_or(usize::MAX);
        match name {
            setting::HEADER_TABLE_SIZE => self.encoder.resize(large),
            setting::MAX_CONCURRENT_STREAMS => self.peer.max_streams = large,
            setting::INITIAL_WINDOW_SIZE => {
                let window = i64::from(value);
                let change = window - self.peer.window_bytes;
                self.peer.window_bytes = window;
                let streams = &mut self.streams;
                let mut windows = streams.values_mut().map(|stream| {
                    stream.send_window += change;
                    stream.send_window
                });
                if window > MAX_WINDOW_BYTES || windows.any(|window| window > MAX_WINDOW_BYTES) {
                    let text = "a window that is too large";
                    return Err(fault(Reason::FLOW_CONTROL_ERROR, text));
                }
            }
            setting::ENABLE_PUSH if value > 1 => {
                return Err(fault(Reason::PROTOCOL_ERROR, "ENABLE_PUSH is no boolean"));
            }
            setting::MAX_FRAME_SIZE if !(16_384..1 << 24).contains(&value) => {
                let text = "MAX_FRAME_SIZE is out of range";
                return Err(fault(Reason::PROTOCOL_ERROR, text));
            }
            _ => {}
        }
        Ok(())
    }

    fn ping(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        let payload: [u8; 8] = frame.exact()?;
        if !frame.head.has(flag::ACK) {
            self.put(kind::PING, flag::ACK, 0, &payload);
        }
        Ok(())
    }

    fn go_away_by_peer<'a>(&mut self, frame: &Frame<'a>) -> Result<Option<Event<'a>>, Fault> {
        let Some((&[last @ .., r0, r1, r2, r3], _)) = frame.payload.split_first_chunk::<8>() else {
            return Err(fault(Reason::FRAME_SIZE_ERROR, "a frame that is cut"));
        };
        self.is_leaving = true;
        let last = u32::from_be_bytes(last) & frame::ID_MASK;
        if self.role == Role::Client {
            self.streams.retain(|id, _| *id <= last);
        }
        Ok(Some(Event::GoAway {
            last,
            reason: Reason(u32::from_be_bytes([r0, r1, r2, r3])),
        }))
    }

    fn window_update<'a>(
        &mut self,
        frame: &Frame<'a>,
        now: Duration,
    ) -> Result<Option<Event<'a>>, Fault> {
        let id = frame.head.id;
        let more = i64::from(u32::from_be_bytes(frame.exact()?) & frame::ID_MASK);
        if id == 0 {
            self.send_window += more;
            if more == 0 {
                return Err(fault(Reason::PROTOCOL_ERROR, "a window by nothing larger"));
            }
            if self.send_window > MAX_WINDOW_BYTES {
                let text = "a window that is too large";
                return Err(fault(Reason::FLOW_CONTROL_ERROR, text));
            }
            return Ok(None);
        }
        self.require_opened(id)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(None);
        };
        stream.send_window += more;
        if more == 0 {
            return self.refuse(id, Reason::PROTOCOL_ERROR, now);
        }
        if stream.send_window > MAX_WINDOW_BYTES {
            return self.refuse(id, Reason::FLOW_CONTROL_ERROR, now);
        }
        Ok(None)
    }

    /// Opens a stream with these headers; payload may follow until [`Self::end`].
    pub fn open<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<StreamId, NoRoom> {
        if !self.has_room() {
            return Err(NoRoom);
        }
        let id = self.next;
        self.next += 2;
        let stream = Stream::new(self.peer.window_bytes);
        self.streams.insert(id, stream);
        self.put_headers(id, fields, false);
        Ok(id)
    }

    /// Whether [`Self::open`] would open one.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let max = self.peer.max_streams.min(MAX_OWN_STREAMS);
        self.streams.len() < max && !self.is_leaving()
    }

    /// Whether it is known to be over or to come to its end, so that no stream can be opened any more.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.is_leaving || matches!(self.stage, Stage::Over(_)) || self.next > frame::ID_MASK
    }

    /// Sends headers of an answer, before its payload. Nothing if the stream is over.
    pub fn send_headers<'a>(
        &mut self,
        id: StreamId,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        if self.streams.contains_key(&id) {
            self.put_headers(id, fields, false);
        }
    }

    /// Sends payload as the windows allow it. Nothing if the stream is over, or its end was said.
    pub fn send(&mut self, id: StreamId, bytes: Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.end == End::Open
            && !bytes.is_empty()
        {
            stream.waiting.push_back(bytes);
        }
    }

    /// Nothing more is sent, but these trailers, if any.
    pub fn end(&mut self, id: StreamId, trailers: Vec<Field>) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.end == End::Open
        {
            stream.end = if trailers.is_empty() {
                End::Payload
            } else {
                End::Trailers(trailers)
            };
        }
    }

    /// Bytes of payload that wait to be sent. 0 if the stream is over.
    #[must_use]
    pub fn waiting_bytes(&self, id: StreamId) -> usize {
        let stream = self.streams.get(&id);
        stream.map_or(0, |stream| {
            stream.waiting.iter().map(Vec::len).sum::<usize>() - stream.at
        })
    }

    /// Gives a stream up. Nothing if it is over.
    pub fn reset(&mut self, id: StreamId, reason: Reason) {
        if self.streams.remove(&id).is_some() {
            self.put(kind::RST_STREAM, 0, id, &reason.0.to_be_bytes());
        }
    }

    /// So many bytes of the stream's payload have been read: as many more may come.
    pub fn release(&mut self, id: StreamId, bytes: usize) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.is_read
            && let Some(more) = stream.receive_window.release(length(bytes))
        {
            self.put(kind::WINDOW_UPDATE, 0, id, &more.to_be_bytes());
        }
    }

    fn release_connection(&mut self, bytes: u32) {
        if let Some(more) = self.receive_window.release(bytes) {
            self.put(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        }
    }

    /// What is to be sent next; none: nothing is, for now.
    pub fn output(&mut self, now: Duration) -> &[u8] {
        self.fill(now);
        &self.output[self.written..]
    }

    /// So much of it has been sent.
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.output.len() {
            self.output.clear();
            self.written = 0;
            self.output.shrink_to(KEPT_BYTES);
        }
    }

    /// Makes frames of what waits, a frame of each stream in turn.
    fn fill(&mut self, now: Duration) {
        if self.streams.values().all(|stream| !stream.wants_to_send()) {
            return;
        }
        // One round without a frame ends it: then nothing may be sent, or nothing waits.
        let mut idle = 0;
        while self.output.len() - self.written < OUTPUT_BYTES && idle <= self.streams.len() {
            let after = self.streams.range(self.turn + 1..).next();
            let Some((id, _)) = after.or_else(|| self.streams.iter().next()) else {
                break;
            };
            let id = *id;
            self.turn = id;
            idle = if self.put_next(id) { 0 } else { idle + 1 };
        }
        for stream in self.streams.values_mut() {
            if stream.wants_to_send() {
                stream.stalled.get_or_insert(now);
            }
        }
    }

    /// The next frame of a stream. Returns whether there was one.
    fn put_next(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        let Some(first) = stream.waiting.front() else {
            let end = core::mem::replace(&mut stream.end, End::Sent);
            match end {
                End::Payload => frame::put(&mut self.output, kind::DATA, flag::END_STREAM, id, &[]),
                End::Trailers(fields) => {
                    let fields = fields.iter().map(|(n, v)| (n.as_slice(), v.as_slice()));
                    self.put_headers(id, fields, true);
                }
                End::Open | End::Sent => {
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
        let bytes = i64::from(length(piece.len()));
        let is_all = piece.len() == rest.len();
        let is_last = is_all && stream.waiting.len() == 1 && stream.end == End::Payload;
        let flags = if is_last { flag::END_STREAM } else { 0 };
        frame::put(&mut self.output, kind::DATA, flags, id, piece);
        stream.at += piece.len();
        if is_all {
            stream.waiting.pop_front();
            stream.at = 0;
        }
        if is_last {
            stream.end = End::Sent;
        }
        stream.stalled = None;
        stream.send_window -= bytes;
        self.send_window -= bytes;
        self.control.count = self.control.count.saturating_sub(ANSWERS);
        self.close_if_done(id);
        true
    }

    /// When [`Self::stalled`] has something to say, if nothing happens before.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        let since = self.streams.values().filter_map(|stream| stream.stalled);
        since.min().map(|since| since + MAX_STALL)
    }

    /// Gives up a stream of which the peer has let nothing go out for too long, if there is one.
    pub fn stalled(&mut self, now: Duration) -> Option<StreamId> {
        let is_late = |stream: &Stream| {
            let since = stream.stalled;
            since.is_some_and(|since| now.saturating_sub(since) >= MAX_STALL)
        };
        let (id, _) = self.streams.iter().find(|(_, stream)| is_late(stream))?;
        let id = *id;
        self.reset(id, Reason::ENHANCE_YOUR_CALM);
        Some(id)
    }

    fn close_if_done(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id).filter(|s| s.end == End::Sent) else {
            return;
        };
        if stream.is_read {
            self.streams.remove(&id);
        } else if self.role == Role::Server {
            // The answer is whole: the rest of the question is of no interest. Section 8.1.
            self.reset(id, Reason::NO_ERROR);
        }
    }

    fn put(&mut self, kind: u8, flags: u8, id: StreamId, payload: &[u8]) {
        frame::put(&mut self.output, kind, flags, id, payload);
    }

    fn put_headers<'a>(
        &mut self,
        id: StreamId,
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
                return self.put(kind, flags | flag::END_HEADERS, id, piece);
            }
            self.put(kind, flags, id, piece);
            (kind, flags, rest) = (kind::CONTINUATION, 0, after);
        }
    }
}

/// Lengths here are bounded by frames and constants.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What a block of headers is.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// `:status` 1xx: others follow.
    Informational,
    Final,
}

/// Checks the form of a block as far as messages are told apart by it. Section 8.3. `None`: it has none.
///
/// Of `:authority` nothing is asked: grpc-C writes the escaped path of a unix socket there.
fn form(fields: &[Field], role: Role, is_trailer: bool) -> Option<Form> {
    let pseudo = fields.iter().take_while(|(name, _)| name.starts_with(b":"));
    let pseudo = pseudo.count();
    let is_well = |(name, _): &Field| {
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
        return (pseudo == 0).then_some(Form::Final);
    }
    match role {
        Role::Server => {
            let path = single(b":path").filter(|path| !path.is_empty());
            (path.is_some() && single(b":method").is_some()).then_some(Form::Final)
        }
        Role::Client => single(b":status").map(|status| match status {
            [b'1', _, _] => Form::Informational,
            _ => Form::Final,
        }),
    }
}
