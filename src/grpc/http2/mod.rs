//! A connection of HTTP/2 and its streams, for both roles. Source: RFC 9113.
//!
//! No I/O and no clock: [`Http2Connection::receive_frame`] takes the bytes that came and the time,
//! [`Http2Connection::next_output`] has the bytes to send. Received payload is told at once and not kept: the window
//! of the connection is granted again as it is used, that of a stream by [`Http2Connection::release_payload`]. So a
//! stream whose reader is slow holds up no other. Not supported: pushed streams (the peer is told so), priorities
//! (ignored), upgrades from HTTP/1.
//!
//! Peers may be hostile. An error of the protocol ends the stream or the connection, as the standard has it; limits that it
//! leaves open are the constants below.

mod frame;
mod receive;
mod send;
mod stream;
#[cfg(test)]
mod tests;

use core::time::Duration;

use thiserror::Error;

use self::{
    frame::{kind, setting},
    stream::{Http2Stream, PartialHeaderBlock, RateCounter, ReceiveWindow},
};
use crate::{
    hpack::{HeaderField, HpackDecoder, HpackEncoder},
    table::StreamTable,
};

/// First bytes that a client sends.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest payload of a frame, in both directions: what every peer keeps to unless told otherwise.
const MAX_FRAME_BYTES: usize = 16 * 1024;
/// Longest block of headers as it is sent.
const MAX_BLOCK_BYTES: usize = 16 * 1024;
/// Frames in which it may come.
const MAX_BLOCK_FRAMES: u32 = 32;
/// Largest sum of the fields of a block, each with 32 bytes beside its text. The peer is told.
const MAX_LIST_BYTES: usize = 16 * 1024;
/// Streams that a client may have open at a time. The peer is told; above that they are refused.
pub const MAX_STREAMS: usize = 100;
/// Streams that this side opens at a time, whatever the peer allows.
const MAX_OWN_STREAMS: usize = 1000;
/// Bytes that a peer may send of a stream before they are read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes that a peer may send of all streams together before they are read.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// A window's size until one is told, and its largest.
const FIRST_WINDOW_BYTES: i64 = 65_535;
const MAX_WINDOW_BYTES: i64 = (1 << 31) - 1;
/// Frames a second that carry no payload of a stream: PING, SETTINGS, empty DATA and the like. Each DATA frame that goes out
/// allows [`ANSWERS`] more: peers measure by PING, and widen windows.
const MAX_CONTROL_FRAMES_PER_S: u32 = 1000;
const ANSWERS: u32 = 4;
/// Most streams a second that end by a reset of either side.
const MAX_RESETS_PER_S: u32 = 200;
/// Bytes of frames that are made in advance of their being sent.
const OUTPUT_BYTES: usize = 32 * 1024;
/// Bytes that may wait to be sent though the peer does not read: answers to its questions, and headers.
const MAX_OUTPUT_BYTES: usize = 256 * 1024;
/// Capacity that an empty buffer may keep, in bytes.
const KEPT_BYTES: usize = 4 * 1024;
/// Time for which a stream may have something to send of which no byte goes out.
const MAX_STALL: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// Number of a stream.
pub type Http2StreamId = u32;

/// Role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRole {
    /// Side that opens streams.
    Client,
    /// Side that answers streams.
    Server,
}

/// Error code: the reason why a stream or a connection ended, as it is sent. Section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2ErrorCode(pub u32);

impl Http2ErrorCode {
    /// No error: a graceful end.
    pub const NO_ERROR: Self = Self(0);
    /// The peer does not keep to the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// The peer sent more than the window allows.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame on a stream that was ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame of a wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not looked at.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not wanted any more.
    pub const CANCEL: Self = Self(8);
    /// Tables of headers differ by now.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer asks too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// The end of a connection. The peer has been told by the time that [`Http2Connection::next_output`] is sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct ConnectionFault {
    /// Error code, as it is sent.
    pub reason: Http2ErrorCode,
    /// Description of the fault.
    pub text: &'static str,
}

const fn connection_fault(reason: Http2ErrorCode, text: &'static str) -> ConnectionFault {
    ConnectionFault { reason, text }
}

/// Error of a stream that cannot be opened now: there are as many as the peer allows, or the connection comes to its
/// end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("no stream can be opened")]
pub struct OpenStreamError;

/// An event that was received.
#[derive(Debug, PartialEq, Eq)]
pub enum Http2Event<'a> {
    /// Headers: of a new stream if this is a server, else of an answer; or trailers, which come with `is_end`.
    Headers {
        /// Stream of the headers.
        id: Http2StreamId,
        /// Fields in their order, those of the protocol (`:path`) first. `None`: they are too long.
        fields: Option<Vec<HeaderField>>,
        /// Set if the peer sends no more on the stream.
        is_end: bool,
    },
    /// Payload. It is to be [released](Http2Connection::release_payload).
    Data {
        /// Stream of the payload.
        id: Http2StreamId,
        /// Next piece of the payload.
        bytes: &'a [u8],
        /// Set if the peer sends no more on the stream.
        is_end: bool,
    },
    /// The stream is over, in both directions.
    Reset {
        /// Stream that is over.
        id: Http2StreamId,
        /// Reason that the peer gave, or that this side found.
        reason: Http2ErrorCode,
    },
    /// The peer takes no more streams; of those that there are, those above `last` were not looked at.
    GoAway {
        /// Last stream that counts.
        last: Http2StreamId,
        /// Reason that the peer gave.
        reason: Http2ErrorCode,
    },
}

/// Result of a call of [`Http2Connection::receive_frame`].
#[derive(Debug)]
pub struct ReceiveStep<'a> {
    /// Bytes that are done with; 0: more are needed.
    pub taken: usize,
    /// Event that the bytes brought.
    pub event: Option<Http2Event<'a>>,
}

/// See the module.
#[derive(Debug)]
pub struct Http2Connection {
    role: ConnectionRole,
    stage: ConnectionStage,
    decoder: HpackDecoder,
    encoder: HpackEncoder,
    streams: StreamTable<Http2Stream>,
    /// The next of this side's, and the last of the peer's.
    next: Http2StreamId,
    last: Http2StreamId,
    /// A block that is not whole yet.
    block: Option<PartialHeaderBlock>,
    /// The peer takes or opens no streams any more.
    is_leaving: bool,
    peer: PeerSettings,
    /// Windows of the connection, over all streams: for sending, and for receiving.
    send_window: i64,
    receive_window: ReceiveWindow,
    control: RateCounter,
    resets: RateCounter,
    /// Answers to this side's own pings that are awaited.
    pings: u32,
    output: Vec<u8>,
    written: usize,
    /// The stream whose turn it was last.
    turn: Http2StreamId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The preface is awaited.
    Preface,
    /// The first frame, which is SETTINGS.
    Settings,
    Open,
    /// A fault was found.
    Over(ConnectionFault),
}

/// Settings of the peer.
#[derive(Debug)]
struct PeerSettings {
    window_bytes: i64,
    max_streams: usize,
}

impl Http2Connection {
    /// Makes a connection at its beginning, with the bytes to send first.
    #[must_use]
    pub fn new(role: ConnectionRole) -> Self {
        let mut output = Vec::new();
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
            (setting::MAX_HEADER_LIST_SIZE, length_u32(MAX_LIST_BYTES)),
        ];
        if role == ConnectionRole::Client {
            output.extend_from_slice(PREFACE);
            settings.push((setting::ENABLE_PUSH, 0));
        } else {
            settings.push((setting::MAX_CONCURRENT_STREAMS, length_u32(MAX_STREAMS)));
        }
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(u16::to_be_bytes(name));
            payload.extend(u32::to_be_bytes(value));
        }
        frame::put_frame(&mut output, kind::SETTINGS, 0, 0, &payload);
        let more = CONNECTION_WINDOW_BYTES - 65_535;
        frame::put_frame(&mut output, kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        Self {
            role,
            stage: match role {
                ConnectionRole::Client => ConnectionStage::Settings,
                ConnectionRole::Server => ConnectionStage::Preface,
            },
            decoder: HpackDecoder::default(),
            encoder: HpackEncoder::default(),
            streams: StreamTable::new(),
            next: 1,
            last: 0,
            block: None,
            is_leaving: false,
            peer: PeerSettings {
                window_bytes: FIRST_WINDOW_BYTES,
                max_streams: MAX_STREAMS,
            },
            send_window: FIRST_WINDOW_BYTES,
            receive_window: ReceiveWindow::new(CONNECTION_WINDOW_BYTES),
            control: RateCounter::default(),
            resets: RateCounter::default(),
            pings: 0,
            output,
            written: 0,
            turn: 0,
        }
    }

    fn put_frame(&mut self, kind: u8, flags: u8, id: Http2StreamId, payload: &[u8]) {
        frame::put_frame(&mut self.output, kind, flags, id, payload);
    }
}

/// Lengths here are bounded by frames and constants.
fn length_u32(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
