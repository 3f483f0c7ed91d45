//! A connection: frames in, streams and their state, frames out.

use alloc::vec::Vec;

use super::header_block::{HeaderCompressor, SpdyHeaders, encode_headers};
use super::inflate::HeaderDecompressor;
use super::wire::{
    ControlFrame, FLAG_FIN, FLAG_UNIDIRECTIONAL, GoAwayReason, HEAD_BYTES, MASK_31,
    MAX_FRAME_BYTES, ResetReason, SpdyError, SpdyFrameHead, SpdyStreamId, control_head, data_head,
};
use crate::stream::{MachineStep, OUT_BYTES, Span};

/// Streams open at once; a further one is refused. Fifty forwarded connections need a hundred.
pub const MAX_STREAMS: usize = 256;
/// Window of a stream and of the connection until a side sets another.
const FIRST_WINDOW_BYTES: u32 = 64 * 1024;
/// Payload passed on before a window is opened again.
const CREDIT_BYTES: u32 = FIRST_WINDOW_BYTES / 2;
/// The setting that is not skipped.
const SETTINGS_INITIAL_WINDOW: u32 = 7;
/// A setting: flags, id, value.
const SETTING_BYTES: u32 = 8;
/// Stands for the connection in WINDOW_UPDATE.
const CONNECTION: SpdyStreamId = 0;
/// Longest part that is collected before it is looked at: of SYN_STREAM.
const FIXED_BYTES: usize = 10;

/// An event from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpdyEvent {
    /// A stream; [`SpdySession::headers`] tells what for. To be answered with `reply` or `reset`.
    Open {
        /// Id of the stream.
        id: SpdyStreamId,
        /// The peer will send nothing on it.
        fin: bool,
    },
    /// Payload, at least a byte; to be reported with [`SpdySession::record_passed_on`].
    Data {
        /// Stream of the payload.
        id: SpdyStreamId,
        /// Place of the payload.
        span: Span,
    },
    /// The peer sends no more on this stream.
    End {
        /// Id of the stream.
        id: SpdyStreamId,
    },
    /// The peer wants no more of this stream; it is gone.
    Reset {
        /// Id of the stream.
        id: SpdyStreamId,
    },
    /// The peer opens no more streams.
    GoAway,
    /// The peer accepts a stream that this side opened.
    Reply {
        /// Id of the stream.
        id: SpdyStreamId,
    },
}

/// The stream is not open, or not for sending: the peer reset it, or it was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream is closed")]
pub struct StreamClosedError;

#[derive(Debug)]
pub(super) struct SpdyStream {
    id: SpdyStreamId,
    replied: bool,
    /// The peer has sent its FIN.
    ended: bool,
    /// Set when this side has sent its FIN.
    finished: bool,
    /// Bytes passed on since the window was last opened.
    credit: u32,
    /// Bytes that the peer's window still takes, if it has one.
    window: i64,
}
const _: () = assert!(size_of::<SpdyStream>() <= 24, "one per open stream");

/// Part of a frame that comes next.
#[derive(Clone, Copy, Debug)]
enum SpdyReadState {
    Head,
    /// The fixed part of a control frame.
    Fixed {
        control: ControlFrame,
        flags: u8,
        length: u32,
    },
    /// The rest of a frame with headers.
    Block {
        ends: HeaderBlockOwner,
        left: u32,
    },
    Setting {
        left: u32,
    },
    Data {
        id: SpdyStreamId,
        fin: bool,
        left: u32,
    },
    Skip {
        left: u32,
    },
    /// The connection is broken: no further byte is understood.
    Broken,
}

/// Frame that a header block belongs to.
#[derive(Clone, Copy, Debug)]
enum HeaderBlockOwner {
    Open { id: SpdyStreamId, flags: u8 },
    Reply { id: SpdyStreamId, fin: bool },
    More { id: SpdyStreamId, fin: bool },
}

/// Side that opens the streams, with odd ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamOpener {
    Peer,
    Us,
}

/// A side of a connection. [`crate::stream`] tells how to drive it.
#[derive(Debug)]
pub struct SpdySession {
    opener: StreamOpener,
    reading: SpdyReadState,
    small: [u8; FIXED_BYTES],
    small_len: usize,
    inflate: HeaderDecompressor,
    compress: HeaderCompressor,
    /// The newest header block.
    block: Vec<u8>,
    /// Open streams, in order of their ids.
    pub(super) streams: Vec<SpdyStream>,
    /// Newest stream.
    last: SpdyStreamId,
    going: bool,
    /// Bytes passed on since the connection's window was last opened.
    credit: u32,
    /// The peer has windows for its streams; for the connection.
    keeps_windows: (bool, bool),
    first_window: i64,
    window: i64,
}

impl Default for SpdySession {
    fn default() -> Self {
        Self::new()
    }
}

impl SpdySession {
    /// The server's side of a connection on which nothing has been said yet.
    #[must_use]
    pub fn new() -> Self {
        Self::side(StreamOpener::Peer)
    }

    /// The client's side.
    #[must_use]
    pub fn new_client() -> Self {
        Self::side(StreamOpener::Us)
    }

    fn side(opener: StreamOpener) -> Self {
        Self {
            opener,
            reading: SpdyReadState::Head,
            small: [0; FIXED_BYTES],
            small_len: 0,
            inflate: HeaderDecompressor::new(),
            compress: HeaderCompressor::default(),
            block: Vec::new(),
            streams: Vec::new(),
            last: 0,
            going: false,
            credit: 0,
            keeps_windows: (false, false),
            first_window: i64::from(FIRST_WINDOW_BYTES),
            window: i64::from(FIRST_WINDOW_BYTES),
        }
    }

    /// Takes bytes of `input`, up to the first event. Pings, refusals and the like go to `out`.
    ///
    /// - Errors: the peer broke the protocol; [`SpdySession::send_go_away`], then close. Nothing further is understood.
    pub fn receive_input(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<SpdyEvent>, SpdyError> {
        let mut at = 0;
        while out.len() < OUT_BYTES {
            let before = (at, self.is_between_frames());
            match self.read_frame_part(input, &mut at, out) {
                Ok(Some(event)) => return Ok(MachineStep::new(at, event)),
                Ok(None) if at == before.0 && self.is_between_frames() == before.1 => break,
                Ok(None) => {}
                Err(e) => {
                    self.reading = SpdyReadState::Broken;
                    return Err(e);
                }
            }
        }
        Ok(MachineStep::without_event(at))
    }

    /// Headers that [`SpdyEvent::Open`] came with, until `receive_input` is called again.
    #[must_use]
    pub fn headers(&self) -> SpdyHeaders<'_> {
        SpdyHeaders::new(&self.block)
    }

    /// Returns true if either side may still send on `id`.
    #[must_use]
    pub fn has_stream(&self, id: SpdyStreamId) -> bool {
        self.stream(id).is_some()
    }

    /// Returns true if payload can be sent on `id`.
    #[must_use]
    pub fn is_stream_open(&self, id: SpdyStreamId) -> bool {
        self.stream(id).is_some_and(|s| !s.finished)
    }

    /// Number of bytes that the peer takes on `id` now; `usize::MAX` from a peer without windows.
    #[must_use]
    pub fn sendable_bytes(&self, id: SpdyStreamId) -> usize {
        let Some(stream) = self.stream(id).filter(|s| !s.finished) else {
            return 0;
        };
        let bytes = |kept: bool, window: i64| {
            if kept {
                usize::try_from(window).unwrap_or(0)
            } else {
                usize::MAX
            }
        };
        let (streams, connection) = self.keeps_windows;
        bytes(streams, stream.window).min(bytes(connection, self.window))
    }

    /// A client opens a stream; nothing can be sent on it before [`SpdyEvent::Reply`].
    ///
    /// - Errors: this is a server's side, there are too many streams, or the peer wants no more of them.
    pub fn open_stream(
        &mut self,
        headers: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<SpdyStreamId, StreamClosedError> {
        let id = if self.last == 0 { 1 } else { self.last + 2 };
        if self.opener != StreamOpener::Us || self.going || self.streams.len() >= MAX_STREAMS {
            return Err(StreamClosedError);
        }
        self.last = id;
        self.add_stream(id, false, false);
        let block = self.compress.compress_block(&encode_headers(headers));
        let length = u32::try_from(FIXED_BYTES + block.len()).unwrap_or(MAX_FRAME_BYTES);
        out.extend_from_slice(&control_head(ControlFrame::SynStream, length));
        out.extend_from_slice(&id.to_be_bytes());
        // The stream is associated with no other, and has no priority.
        out.extend_from_slice(&[0; FIXED_BYTES - size_of::<SpdyStreamId>()]);
        out.extend_from_slice(&block);
        Ok(id)
    }

    /// Accepts a stream. Nothing can be sent on it before: spdystream drops earlier data.
    pub fn accept_stream(&mut self, id: SpdyStreamId, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.iter_mut().find(|s| s.id == id) else {
            return;
        };
        if !core::mem::replace(&mut stream.replied, true) {
            let block = self.compress.compress_block(&[0; 4]);
            let length = u32::try_from(4 + block.len()).unwrap_or(MAX_FRAME_BYTES);
            out.extend_from_slice(&control_head(ControlFrame::SynReply, length));
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&block);
        }
    }

    /// Sends payload. The caller minds [`SpdySession::sendable_bytes`].
    ///
    /// - Errors: the stream is gone; its reader may be gone, too.
    pub fn send_data(
        &mut self,
        id: SpdyStreamId,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClosedError> {
        let longest = usize::try_from(MAX_FRAME_BYTES).unwrap_or(usize::MAX);
        for piece in payload.chunks(longest) {
            let length = u32::try_from(piece.len()).unwrap_or(MAX_FRAME_BYTES);
            let stream = self.stream_mut(id).filter(|s| s.replied && !s.finished);
            let stream = stream.ok_or(StreamClosedError)?;
            stream.window -= i64::from(length);
            self.window -= i64::from(length);
            out.extend_from_slice(&data_head(id, false, length));
            out.extend_from_slice(piece);
        }
        Ok(())
    }

    /// Says that nothing more will be sent on `id`.
    pub fn finish_stream(&mut self, id: SpdyStreamId, out: &mut Vec<u8>) {
        if let Some(stream) = self.stream_mut(id).filter(|s| !s.finished) {
            stream.finished = true;
            out.extend_from_slice(&data_head(id, true, 0));
            self.forget_if_over(id);
        }
    }

    /// Ends a stream in both directions.
    pub fn reset_stream(&mut self, id: SpdyStreamId, why: ResetReason, out: &mut Vec<u8>) {
        if self.stream(id).is_some() {
            self.streams.retain(|s| s.id != id);
            send_control(ControlFrame::Reset, [id, why.code()], out);
        }
    }

    /// Payload of an [`SpdyEvent::Data`] has left the caller's hands: opens windows.
    pub fn record_passed_on(&mut self, id: SpdyStreamId, bytes: usize, out: &mut Vec<u8>) {
        // A server closes as soon as it has sent all. Bytes that reach it later destroy the data on the way from it.
        if self.opener == StreamOpener::Us {
            return;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        open_window(CONNECTION, &mut self.credit, bytes, out);
        if let Some(stream) = self.stream_mut(id).filter(|s| !s.ended) {
            open_window(id, &mut stream.credit, bytes, out);
        }
    }

    /// Says goodbye. spdystream reads nothing behind this frame: it comes last.
    pub fn send_go_away(&mut self, why: GoAwayReason, out: &mut Vec<u8>) {
        if !core::mem::replace(&mut self.going, true) {
            send_control(ControlFrame::GoAway, [self.last, why.code()], out);
        }
    }

    /// Reads a part of a frame, if `input` has it from `at`. No progress means that it has not.
    fn read_frame_part(
        &mut self,
        input: &[u8],
        at: &mut usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<SpdyEvent>, SpdyError> {
        match self.reading {
            SpdyReadState::Head => {
                if let Some(bytes) = self.collect_bytes::<HEAD_BYTES>(input, at) {
                    self.reading = match SpdyFrameHead::parse_head(bytes)? {
                        SpdyFrameHead::Unknown { length } => SpdyReadState::Skip { left: length },
                        SpdyFrameHead::Data { id, .. } if id > self.last => {
                            return Err(SpdyError::Stream(id));
                        }
                        SpdyFrameHead::Data { id, fin, length } => SpdyReadState::Data {
                            id,
                            fin,
                            left: length,
                        },
                        SpdyFrameHead::Control {
                            control,
                            flags,
                            length,
                        } => SpdyReadState::Fixed {
                            control,
                            flags,
                            length,
                        },
                    };
                }
            }
            SpdyReadState::Fixed {
                control,
                flags,
                length,
            } => return self.handle_control_frame(control, flags, length, input, at, out),
            SpdyReadState::Block { ends, left } => {
                let now = take_bytes(input, at, left);
                self.inflate.decompress_into(now, &mut self.block)?;
                let left = left - byte_count(now);
                self.reading = SpdyReadState::Block { ends, left };
                if left == 0 {
                    self.reading = SpdyReadState::Head;
                    return self.handle_block_end(ends, out);
                }
            }
            SpdyReadState::Setting { left: 0 } | SpdyReadState::Skip { left: 0 } => {
                self.reading = SpdyReadState::Head;
            }
            SpdyReadState::Setting { left } => {
                if let Some([_, a, b, c, value @ ..]) = self.collect_bytes::<8>(input, at) {
                    self.reading = SpdyReadState::Setting {
                        left: left - SETTING_BYTES,
                    };
                    self.apply_setting(
                        u32::from_be_bytes([0, a, b, c]),
                        u32::from_be_bytes(value),
                    )?;
                }
            }
            SpdyReadState::Data { id, fin, left: 0 } => {
                self.reading = SpdyReadState::Head;
                return Ok(if fin { self.handle_peer_fin(id) } else { None });
            }
            SpdyReadState::Data { id, fin, left } => {
                let start = *at;
                let len = take_bytes(input, at, left).len();
                let left = left - u32::try_from(len).unwrap_or(left);
                self.reading = SpdyReadState::Data { id, fin, left };
                if len > 0 {
                    return Ok(self.data_event(id, Span { at: start, len }, out));
                }
            }
            SpdyReadState::Skip { left } => {
                let left = left - byte_count(take_bytes(input, at, left));
                self.reading = SpdyReadState::Skip { left };
            }
            SpdyReadState::Broken => *at = input.len(),
        }
        Ok(None)
    }

    /// Returns true if a frame's head comes next: steps that take no byte change this.
    const fn is_between_frames(&self) -> bool {
        matches!(self.reading, SpdyReadState::Head)
    }

    /// Collects `N` bytes, over several calls if need be.
    fn collect_bytes<const N: usize>(&mut self, input: &[u8], at: &mut usize) -> Option<[u8; N]> {
        let missing = u32::try_from(N - self.small_len).unwrap_or_default();
        let now = take_bytes(input, at, missing);
        self.small[self.small_len..self.small_len + now.len()].copy_from_slice(now);
        self.small_len += now.len();
        let whole = self.small.first_chunk::<N>().copied();
        if self.small_len == N {
            self.small_len = 0;
            whole
        } else {
            None
        }
    }

    fn handle_control_frame(
        &mut self,
        control: ControlFrame,
        flags: u8,
        length: u32,
        input: &[u8],
        at: &mut usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<SpdyEvent>, SpdyError> {
        let (fixed, _) = control.fixed_part();
        let number = |a, b, c, d| u32::from_be_bytes([a, b, c, d]);
        let parts = match fixed {
            10 => self
                .collect_bytes::<10>(input, at)
                .map(|[a, b, c, d, ..]| (number(a, b, c, d), 0)),
            8 => self
                .collect_bytes::<8>(input, at)
                .map(|[a, b, c, d, e, f, g, h]| (number(a, b, c, d), number(e, f, g, h))),
            _ => self
                .collect_bytes::<4>(input, at)
                .map(|[a, b, c, d]| (number(a, b, c, d), 0)),
        };
        let Some((first, second)) = parts else {
            return Ok(None);
        };
        let (id, left) = (first & MASK_31, length - fixed);
        self.reading = SpdyReadState::Head;
        match control {
            ControlFrame::SynStream => {
                self.block.clear();
                let ends = HeaderBlockOwner::Open { id, flags };
                self.reading = SpdyReadState::Block { ends, left };
            }
            ControlFrame::SynReply | ControlFrame::Headers => {
                self.block.clear();
                let fin = flags & FLAG_FIN != 0;
                let ends = match (control, self.opener) {
                    (ControlFrame::SynReply, StreamOpener::Us) => {
                        HeaderBlockOwner::Reply { id, fin }
                    }
                    _ => HeaderBlockOwner::More { id, fin },
                };
                self.reading = SpdyReadState::Block { ends, left };
            }
            ControlFrame::Settings => {
                if first.checked_mul(SETTING_BYTES) != Some(left) {
                    return Err(SpdyError::Length { kind: 4, length });
                }
                self.reading = SpdyReadState::Setting { left };
            }
            ControlFrame::Reset => {
                let open = self.stream(id).is_some();
                self.streams.retain(|s| s.id != id);
                return Ok(open.then_some(SpdyEvent::Reset { id }));
            }
            // The others would answer pings of ours; there are none.
            ControlFrame::Ping if (first % 2 == 1) == (self.opener == StreamOpener::Peer) => {
                out.extend_from_slice(&control_head(ControlFrame::Ping, 4));
                out.extend_from_slice(&first.to_be_bytes());
            }
            ControlFrame::Ping => {}
            ControlFrame::GoAway => {
                self.going |= self.opener == StreamOpener::Us;
                return Ok(Some(SpdyEvent::GoAway));
            }
            ControlFrame::WindowUpdate => self.widen_window(id, second & MASK_31),
        }
        Ok(None)
    }

    fn handle_block_end(
        &mut self,
        ends: HeaderBlockOwner,
        out: &mut Vec<u8>,
    ) -> Result<Option<SpdyEvent>, SpdyError> {
        self.headers().check_form()?;
        let (id, flags) = match ends {
            HeaderBlockOwner::Open { id, flags } => (id, flags),
            HeaderBlockOwner::Reply { id, fin } => return Ok(self.handle_reply(id, fin)),
            HeaderBlockOwner::More { id, fin } => {
                return Ok(if fin { self.handle_peer_fin(id) } else { None });
            }
        };
        if self.opener == StreamOpener::Us || id.is_multiple_of(2) || id <= self.last {
            return Err(SpdyError::Stream(id));
        }
        self.last = id;
        if self.going || self.streams.len() >= MAX_STREAMS {
            send_control(
                ControlFrame::Reset,
                [id, ResetReason::RefusedStream.code()],
                out,
            );
            return Ok(None);
        }
        let fin = flags & FLAG_FIN != 0;
        self.add_stream(id, fin, flags & FLAG_UNIDIRECTIONAL != 0);
        Ok(Some(SpdyEvent::Open { id, fin }))
    }

    fn add_stream(&mut self, id: SpdyStreamId, ended: bool, finished: bool) {
        debug_assert!(self.streams.len() < MAX_STREAMS);
        self.streams.push(SpdyStream {
            id,
            replied: false,
            ended,
            finished,
            credit: 0,
            window: self.first_window,
        });
    }

    /// The peer accepts a stream of ours. One that it ends with that has nothing for us, and is of no use.
    fn handle_reply(&mut self, id: SpdyStreamId, fin: bool) -> Option<SpdyEvent> {
        if fin {
            return self.handle_peer_fin(id);
        }
        let stream = self.stream_mut(id).filter(|s| !s.replied)?;
        stream.replied = true;
        Some(SpdyEvent::Reply { id })
    }

    /// Returns the event of payload; `None` if it is not wanted any more.
    fn data_event(&mut self, id: SpdyStreamId, span: Span, out: &mut Vec<u8>) -> Option<SpdyEvent> {
        if self.stream(id).is_some_and(|s| !s.ended) {
            return Some(SpdyEvent::Data { id, span });
        }
        self.record_passed_on(id, span.len, out);
        None
    }

    /// The peer's FIN.
    fn handle_peer_fin(&mut self, id: SpdyStreamId) -> Option<SpdyEvent> {
        let stream = self.stream_mut(id).filter(|s| !s.ended)?;
        stream.ended = true;
        self.forget_if_over(id);
        Some(SpdyEvent::End { id })
    }

    fn apply_setting(&mut self, id: u32, value: u32) -> Result<(), SpdyError> {
        if id == SETTINGS_INITIAL_WINDOW {
            let value = i64::from(value);
            if value > i64::from(MASK_31) {
                return Err(SpdyError::Window);
            }
            self.keeps_windows.0 = true;
            for stream in &mut self.streams {
                stream.window += value - self.first_window;
            }
            self.first_window = value;
        }
        Ok(())
    }

    /// The peer's WINDOW_UPDATE.
    fn widen_window(&mut self, id: SpdyStreamId, by: u32) {
        let most = i64::from(MASK_31);
        if id == CONNECTION {
            self.keeps_windows.1 = true;
            self.window = (self.window + i64::from(by)).min(most);
        } else {
            self.keeps_windows.0 = true;
            if let Some(stream) = self.stream_mut(id) {
                stream.window = (stream.window + i64::from(by)).min(most);
            }
        }
    }

    fn stream(&self, id: SpdyStreamId) -> Option<&SpdyStream> {
        let at = self.streams.binary_search_by_key(&id, |s| s.id).ok()?;
        self.streams.get(at)
    }

    fn stream_mut(&mut self, id: SpdyStreamId) -> Option<&mut SpdyStream> {
        let at = self.streams.binary_search_by_key(&id, |s| s.id).ok()?;
        self.streams.get_mut(at)
    }

    fn forget_if_over(&mut self, id: SpdyStreamId) {
        self.streams
            .retain(|s| s.id != id || !(s.ended && s.finished));
    }
}

/// The next bytes of `input`, at most `most`.
fn take_bytes<'a>(input: &'a [u8], at: &mut usize, most: u32) -> &'a [u8] {
    let rest = input.get(*at..).unwrap_or_default();
    let n = rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    *at += n;
    rest.get(..n).unwrap_or_default()
}

fn byte_count(taken: &[u8]) -> u32 {
    u32::try_from(taken.len()).unwrap_or_default()
}

/// A control frame of two numbers.
fn send_control(control: ControlFrame, [a, b]: [u32; 2], out: &mut Vec<u8>) {
    out.extend_from_slice(&control_head(control, 8));
    out.extend_from_slice(&a.to_be_bytes());
    out.extend_from_slice(&b.to_be_bytes());
}

/// Adds to the bytes that were passed on, and tells the peer when they are worth a frame.
fn open_window(id: SpdyStreamId, credit: &mut u32, bytes: u32, out: &mut Vec<u8>) {
    *credit = credit.saturating_add(bytes);
    if *credit >= CREDIT_BYTES {
        let opened = core::mem::take(credit).min(MASK_31);
        send_control(ControlFrame::WindowUpdate, [id, opened], out);
    }
}
