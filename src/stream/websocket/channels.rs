//! The `channel.k8s.io` protocols: streams as numbered channels, the number in front of each message.
//!
//! Source: k8s.io/streaming `pkg/httpstream/wsstream/conn.go`.

use alloc::vec::Vec;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::frame::{self, MessageKind, WebSocket, WebSocketError};
use crate::stream::{MachineStep, Span};

/// Channel for closing in `v5.channel.k8s.io`: the byte behind it names the channel that its sender has closed.
const CLOSE_SIGNAL: u8 = 255;
/// Characters and bytes of a group in base64.
const GROUP: (usize, usize) = (4, 3);

/// A protocol, as negotiated by `Sec-WebSocket-Protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelProtocol {
    /// The client named none: as [`ChannelProtocol::Channel`].
    Unnamed,
    /// Binary messages; an error is plain text.
    Channel,
    /// Text messages in base64; an error is plain text.
    Base64,
    /// Binary messages; the end is told as a Status.
    V4,
    /// Text messages in base64; the end is told as a Status.
    V4Base64,
    /// As [`ChannelProtocol::V4`], and a channel can be closed.
    V5,
}

impl ChannelProtocol {
    /// Name of the protocol on the wire.
    #[must_use]
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::Unnamed => "",
            Self::Channel => "channel.k8s.io",
            Self::Base64 => "base64.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
            Self::V4Base64 => "v4.base64.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }

    const fn is_base64(self) -> bool {
        matches!(self, Self::Base64 | Self::V4Base64)
    }
}

/// An event from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Payload, at least a byte, for a channel that may or may not exist.
    Data {
        /// Number of the channel.
        channel: u8,
        /// Place of the payload, decoded.
        span: Span,
    },
    /// The peer sends no more on this channel.
    End {
        /// Number of the channel.
        channel: u8,
    },
    /// The peer said goodbye.
    Left,
}

/// Place of the next byte in a message.
#[derive(Clone, Copy, Debug)]
enum ChannelReadState {
    /// The number of the channel comes next.
    Start,
    Body(u8),
    /// The number of the closed channel comes next, behind [`CLOSE_SIGNAL`].
    Signal,
    /// The end of the message comes next, behind the number of the closed channel.
    Signalled(u8),
}

/// A connection with channels. [`crate::stream`] tells how to drive it.
#[derive(Debug)]
pub struct Channels {
    socket: WebSocket,
    protocol: ChannelProtocol,
    place: ChannelReadState,
    /// Bytes at the front of the input that are unmasked already: less than a group of base64.
    ready: usize,
    /// Error behind the payload that was handed out last.
    wrong: Option<WebSocketError>,
}

impl Channels {
    /// A connection behind its handshake.
    #[must_use]
    pub const fn new(protocol: ChannelProtocol) -> Self {
        Self {
            socket: WebSocket::new(),
            protocol,
            place: ChannelReadState::Start,
            ready: 0,
            wrong: None,
        }
    }

    /// Protocol of the connection.
    #[must_use]
    pub const fn protocol(&self) -> ChannelProtocol {
        self.protocol
    }

    /// Takes bytes of `input`, up to the first event, and decodes them.
    ///
    /// - Errors: [`Channels::send_close`] with the error's code.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<ChannelEvent>, WebSocketError> {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let mut at = 0;
        loop {
            let rest = input.get_mut(at..).unwrap_or_default();
            let behind = rest.get_mut(self.ready..).unwrap_or_default();
            let step = self.socket.receive_input(behind, out)?;
            match step.event {
                // Only payload follows a group that was cut, so no head is in between.
                None => return Ok(MachineStep::without_event(at + step.taken)),
                Some(frame::WebSocketEvent::Close { .. }) => {
                    return Ok(MachineStep::new(at + step.taken, ChannelEvent::Left));
                }
                Some(frame::WebSocketEvent::Data {
                    frame_ends,
                    last,
                    span,
                    ..
                }) => {
                    let end = at + self.ready + step.taken;
                    let start = at + span.at;
                    let (taken, event) =
                        self.read_message_piece(input, start..end, frame_ends, last)?;
                    at = taken;
                    self.ready = end - taken;
                    if let Some(event) = event {
                        return Ok(MachineStep::new(at, event));
                    }
                    if self.ready > 0 {
                        return Ok(MachineStep::without_event(at));
                    }
                }
            }
        }
    }

    /// Sends `payload` on `channel`, in one message.
    pub fn send_message(&mut self, channel: u8, payload: &[u8], out: &mut Vec<u8>) {
        if !self.protocol.is_base64() {
            self.socket
                .send_message(MessageKind::Binary, &[&[channel], payload], out);
        } else if !self.socket.is_closed() {
            let encoded = payload.len().div_ceil(GROUP.1) * GROUP.0;
            frame::write_message_head(MessageKind::Text, 1 + encoded, out);
            out.push(b'0'.wrapping_add(channel));
            let at = out.len();
            out.resize(at + encoded, 0);
            let written = STANDARD.encode_slice(payload, out.get_mut(at..).unwrap_or_default());
            debug_assert_eq!(written, Ok(encoded));
        }
    }

    /// Says goodbye, once.
    pub fn send_close(&mut self, code: u16, out: &mut Vec<u8>) {
        self.socket.send_close(code, out);
    }

    /// Reads a piece of a message, unmasked, at `piece` of `input`. Returns the index behind the taken bytes, and their
    /// event.
    fn read_message_piece(
        &mut self,
        input: &mut [u8],
        piece: core::ops::Range<usize>,
        frame_ends: bool,
        last: bool,
    ) -> Result<(usize, Option<ChannelEvent>), WebSocketError> {
        let (mut at, end) = (piece.start, piece.end);
        let mut event = None;
        while at < end && event.is_none() {
            let byte = input.get(at).copied().unwrap_or_default();
            match self.place {
                ChannelReadState::Start => {
                    at += 1;
                    self.place = if self.protocol.is_base64() {
                        ChannelReadState::Body(byte.wrapping_sub(b'0'))
                    } else if self.protocol == ChannelProtocol::V5 && byte == CLOSE_SIGNAL {
                        ChannelReadState::Signal
                    } else {
                        ChannelReadState::Body(byte)
                    };
                }
                ChannelReadState::Signal => {
                    at += 1;
                    self.place = ChannelReadState::Signalled(byte);
                }
                ChannelReadState::Signalled(_) => {
                    return Err(WebSocketError::Message("a long close signal"));
                }
                ChannelReadState::Body(channel) => {
                    let bytes = input.get_mut(at..end).unwrap_or_default();
                    let (mut taken, mut len) = (bytes.len(), bytes.len());
                    if self.protocol.is_base64() {
                        (taken, len) = decode_base64(bytes);
                        let rest = bytes.len() - taken;
                        if rest >= GROUP.0 || (rest > 0 && frame_ends) {
                            let error = WebSocketError::Message("not base64");
                            if len == 0 {
                                return Err(error);
                            }
                            self.wrong = Some(error);
                        }
                    }
                    let span = Span { at, len };
                    event = (len > 0).then_some(ChannelEvent::Data { channel, span });
                    if taken == 0 {
                        break;
                    }
                    at += taken;
                }
            }
        }
        if last {
            match core::mem::replace(&mut self.place, ChannelReadState::Start) {
                ChannelReadState::Signal => {
                    return Err(WebSocketError::Message("a short close signal"));
                }
                ChannelReadState::Signalled(channel) => event = Some(ChannelEvent::End { channel }),
                ChannelReadState::Start | ChannelReadState::Body(_) => {}
            }
        }
        Ok((at, event))
    }
}

/// Decodes in place. Returns characters taken and bytes made; at least a group is left if it is none.
fn decode_base64(bytes: &mut [u8]) -> (usize, usize) {
    let (mut read, mut made) = (0, 0);
    while let Some(group) = bytes
        .get(read..)
        .and_then(|b| b.first_chunk::<4>())
        .copied()
    {
        let mut plain = [0; GROUP.1];
        let Ok(n) = STANDARD.decode_slice(group, &mut plain) else {
            break;
        };
        if let (Some(to), Some(from)) = (bytes.get_mut(made..made + n), plain.get(..n)) {
            to.copy_from_slice(from);
        }
        (read, made) = (read + GROUP.0, made + n);
    }
    (read, made)
}
