//! Frames and messages.
//!
//! ```text
//! fin:1 rsv:3 opcode:4 | mask:1 length:7 | length:16 or 64, if 126 or 127 | key:32 | payload, masked
//! ```
//!
//! The frames of a client are masked, those of a server are not: they have no key.

use alloc::vec::Vec;

use crate::stream::{MachineStep, OUT_BYTES, Span};

/// Longest frame: the limit of upstream's server. A frame is never held, so this only tells sense from nonsense.
const MAX_FRAME_BYTES: u64 = 32 << 20;
/// Longest payload of ping, pong and close.
const MAX_CONTROL_BYTES: usize = 125;
/// Longest head of a frame.
const MAX_HEAD_BYTES: usize = 14;

/// Bytes of a masking key.
const KEY_BYTES: usize = 4;
/// Bit of a head that says that a key follows.
const MASKED: u8 = 0x80;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Declared kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Text.
    Text,
    /// Binary.
    Binary,
}

/// An event from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketEvent {
    /// A piece of a message; perhaps empty.
    Data {
        /// Kind of the whole message.
        kind: MessageKind,
        /// Set for the first piece of a message.
        first: bool,
        /// Set if the frame ends with this piece.
        frame_ends: bool,
        /// Set if the message ends with this piece.
        last: bool,
        /// Place of the piece, unmasked.
        span: Span,
    },
    /// The peer says goodbye; it was answered. Nothing more comes.
    Close {
        /// Status code of the peer, if it gave one.
        code: Option<u16>,
    },
}

/// Breach of the protocol by a peer; the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebSocketError {
    /// Breach of RFC 6455.
    #[error("WebSocket: {0}")]
    Protocol(&'static str),
    /// Breach of the rules that the Kubernetes protocol has for messages.
    #[error("WebSocket message: {0}")]
    Message(&'static str),
    /// The frame is longer than is read.
    #[error("WebSocket frame of {0} bytes")]
    TooLong(u64),
}

impl WebSocketError {
    /// The code to close with.
    #[must_use]
    pub const fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => 1002,
            Self::Message(_) => 1003,
            Self::TooLong(_) => 1009,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct MaskingKey([u8; 4]);

impl MaskingKey {
    /// Masks or unmasks `bytes`, and is turned to go on behind them.
    fn mask_bytes(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        let [a, b, c, d] = self.0;
        let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        for word in &mut words {
            if let Ok(eight) = <&mut [u8; 8]>::try_from(word) {
                *eight = (u64::from_ne_bytes(*eight) ^ wide).to_ne_bytes();
            }
        }
        let rest = words.into_remainder();
        for (byte, key) in rest.iter_mut().zip(self.0.iter().cycle()) {
            *byte ^= key;
        }
        self.0.rotate_left(rest.len() % 4);
    }
}

#[derive(Clone, Copy, Debug)]
enum WebSocketReadState {
    Head,
    Data {
        fin: bool,
        left: u64,
        key: MaskingKey,
    },
    /// Collected whole: it must be answered.
    Control {
        opcode: u8,
        length: usize,
        key: MaskingKey,
    },
    /// The peer closed or broke off.
    Over,
}

/// A connection. [`crate::stream`] tells how to drive it.
#[derive(Debug)]
pub struct WebSocket {
    reading: WebSocketReadState,
    small: [u8; MAX_CONTROL_BYTES],
    small_len: usize,
    /// The message that frames continue, and whether nothing of it was handed out.
    message: Option<(MessageKind, bool)>,
    closed: bool,
    /// Source of masking keys of a client; `None`: this is the server's side.
    keys: Option<fn() -> [u8; 4]>,
    /// Set once a pong has come.
    has_pong: bool,
}

impl Default for WebSocket {
    fn default() -> Self {
        Self::new()
    }
}

impl WebSocket {
    /// The client's side of a connection behind its handshake. `keys`: a source of random masking keys, one for each
    /// frame.
    #[must_use]
    pub const fn new_client(keys: fn() -> [u8; 4]) -> Self {
        Self {
            keys: Some(keys),
            ..Self::new()
        }
    }

    /// The server's side of a connection behind its handshake.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            reading: WebSocketReadState::Head,
            small: [0; MAX_CONTROL_BYTES],
            small_len: 0,
            message: None,
            closed: false,
            keys: None,
            has_pong: false,
        }
    }

    /// Takes bytes of `input`, up to the first event, and unmasks them. Pings are answered.
    ///
    /// - Errors: [`WebSocket::send_close`] with the error's code. Nothing further is understood.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<WebSocketEvent>, WebSocketError> {
        let mut at = 0;
        while out.len() < OUT_BYTES {
            match self.reading {
                WebSocketReadState::Head => {
                    if !self
                        .read_frame_head(input, &mut at)
                        .inspect_err(|_| self.stop_reading())?
                    {
                        break;
                    }
                }
                WebSocketReadState::Data { fin, left, mut key } => {
                    let Some((kind, first)) = self.message else {
                        return Ok(MachineStep::without_event(at));
                    };
                    let rest = input.get_mut(at..).unwrap_or_default();
                    let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left - u64::try_from(len).unwrap_or(left);
                    if len == 0 && left > 0 {
                        break;
                    }
                    key.mask_bytes(rest.get_mut(..len).unwrap_or_default());
                    let (frame_ends, last) = (left == 0, left == 0 && fin);
                    self.message = (!last).then_some((kind, false));
                    self.reading = if frame_ends {
                        WebSocketReadState::Head
                    } else {
                        WebSocketReadState::Data { fin, left, key }
                    };
                    let event = WebSocketEvent::Data {
                        kind,
                        first,
                        frame_ends,
                        last,
                        span: Span { at, len },
                    };
                    return Ok(MachineStep::new(at + len, event));
                }
                WebSocketReadState::Control {
                    opcode,
                    length,
                    mut key,
                } => {
                    if !self.collect_bytes(length, input, &mut at) {
                        break;
                    }
                    let mut payload = self.small;
                    let payload = payload.get_mut(..length).unwrap_or_default();
                    key.mask_bytes(payload);
                    self.small_len = 0;
                    self.reading = WebSocketReadState::Head;
                    if let Some(event) = self.handle_control_frame(opcode, payload, out)? {
                        return Ok(MachineStep::new(at, event));
                    }
                }
                WebSocketReadState::Over => return Ok(MachineStep::without_event(input.len())),
            }
        }
        Ok(MachineStep::without_event(at))
    }

    /// Sends a message whose payload is `parts` in a row. Dropped if the connection is closed.
    pub fn send_message(&mut self, kind: MessageKind, parts: &[&[u8]], out: &mut Vec<u8>) {
        if !self.closed {
            let length = parts.iter().map(|p| p.len()).sum();
            let start = out.len();
            write_message_head(kind, length, out);
            let key = self.write_key(start, out);
            let payload = out.len();
            for part in parts {
                out.extend_from_slice(part);
            }
            if let Some(mut key) = key {
                key.mask_bytes(out.get_mut(payload..).unwrap_or_default());
            }
        }
    }

    /// Pings the peer. Dropped if the connection is closed.
    pub fn send_ping(&mut self, out: &mut Vec<u8>) {
        if !self.closed {
            self.send_control(PING, &[], out);
        }
    }

    /// Returns true if a pong has come since the last call.
    pub const fn take_pong(&mut self) -> bool {
        core::mem::replace(&mut self.has_pong, false)
    }

    /// Writes the key behind the frame's head at `start`, if this is a client.
    fn write_key(&self, start: usize, out: &mut Vec<u8>) -> Option<MaskingKey> {
        let key = self.keys?();
        if let Some(length) = out.get_mut(start + 1) {
            *length |= MASKED;
        }
        out.extend_from_slice(&key);
        Some(MaskingKey(key))
    }

    fn send_control(&self, opcode: u8, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let length = u8::try_from(payload.len()).unwrap_or_default();
        out.extend_from_slice(&[0x80 | opcode, length]);
        let key = self.write_key(start, out);
        let behind = out.len();
        out.extend_from_slice(payload);
        if let Some(mut key) = key {
            key.mask_bytes(out.get_mut(behind..).unwrap_or_default());
        }
    }

    /// Says goodbye, once.
    pub fn send_close(&mut self, code: u16, out: &mut Vec<u8>) {
        if !core::mem::replace(&mut self.closed, true) {
            self.send_control(CLOSE, &code.to_be_bytes(), out);
        }
    }

    /// Returns true if a Close frame was sent.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    const fn stop_reading(&mut self) {
        self.reading = WebSocketReadState::Over;
    }

    /// Collects bytes until there are `most`.
    fn collect_bytes(&mut self, most: usize, input: &[u8], at: &mut usize) -> bool {
        let rest = input.get(*at..).unwrap_or_default();
        let n = rest.len().min(most.saturating_sub(self.small_len));
        let end = self.small_len + n;
        if let (Some(to), Some(from)) = (self.small.get_mut(self.small_len..end), rest.get(..n)) {
            to.copy_from_slice(from);
            self.small_len = end;
            *at += n;
        }
        self.small_len >= most
    }

    /// Reads a frame's head; `false` if it has not all come.
    fn read_frame_head(&mut self, input: &[u8], at: &mut usize) -> Result<bool, WebSocketError> {
        if !self.collect_bytes(2, input, at) {
            return Ok(false);
        }
        let [first, second, ..] = self.small;
        if first & 0x70 != 0 {
            return Err(WebSocketError::Protocol(
                "an extension that was not agreed on",
            ));
        }
        let key_bytes = match (second & MASKED, self.keys) {
            (0, None) => {
                return Err(WebSocketError::Protocol("a client's frame without mask"));
            }
            (0, Some(_)) => 0,
            (_, None) => KEY_BYTES,
            (_, Some(_)) => {
                return Err(WebSocketError::Protocol("a server's frame with a mask"));
            }
        };
        let longer = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let bytes = 2 + longer + key_bytes;
        debug_assert!(bytes <= MAX_HEAD_BYTES);
        if !self.collect_bytes(bytes, input, at) {
            return Ok(false);
        }
        self.small_len = 0;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b));
        let field = self.small.get(2..2 + longer).unwrap_or_default();
        let length = if longer == 0 {
            u64::from(second & 0x7f)
        } else {
            number(field)
        };
        if (longer == 2 && length < 126) || (longer == 8 && length <= 0xffff) {
            return Err(WebSocketError::Protocol(
                "a length not in its shortest form",
            ));
        }
        let key = self.small.get(2 + longer..bytes).unwrap_or_default();
        let key = MaskingKey(key.try_into().unwrap_or_default());
        self.reading = self.begin_frame(first & 0x0f, first & 0x80 != 0, length, key)?;
        Ok(true)
    }

    fn begin_frame(
        &mut self,
        opcode: u8,
        fin: bool,
        length: u64,
        key: MaskingKey,
    ) -> Result<WebSocketReadState, WebSocketError> {
        if length > MAX_FRAME_BYTES {
            return Err(WebSocketError::TooLong(length));
        }
        match (opcode, self.message) {
            (CONTINUATION, Some(_)) => {}
            (TEXT, None) => self.message = Some((MessageKind::Text, true)),
            (BINARY, None) => self.message = Some((MessageKind::Binary, true)),
            (CONTINUATION, None) => {
                return Err(WebSocketError::Protocol("a continuation of nothing"));
            }
            (TEXT | BINARY, Some(_)) => {
                return Err(WebSocketError::Protocol("a message within a message"));
            }
            (CLOSE | PING | PONG, _) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if !fin || length > MAX_CONTROL_BYTES {
                    return Err(WebSocketError::Protocol(
                        "a control frame that is long or in pieces",
                    ));
                }
                return Ok(WebSocketReadState::Control {
                    opcode,
                    length,
                    key,
                });
            }
            _ => return Err(WebSocketError::Protocol("an unknown kind of frame")),
        }
        Ok(WebSocketReadState::Data {
            fin,
            left: length,
            key,
        })
    }

    fn handle_control_frame(
        &mut self,
        opcode: u8,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<WebSocketEvent>, WebSocketError> {
        match opcode {
            PING if !self.closed => {
                self.send_control(PONG, payload, out);
                Ok(None)
            }
            PONG => {
                self.has_pong = true;
                Ok(None)
            }
            CLOSE => {
                self.stop_reading();
                let code = match *payload {
                    [] => None,
                    [a, b, ..] => Some(u16::from_be_bytes([a, b])),
                    [_] => return Err(WebSocketError::Protocol("half a close code")),
                };
                if code.is_some_and(|c| !matches!(c, 1000..=1003 | 1007..=1014 | 3000..=4999)) {
                    return Err(WebSocketError::Protocol(
                        "a close code that must not be sent",
                    ));
                }
                self.send_close(code.unwrap_or(super::NORMAL), out);
                Ok(Some(WebSocketEvent::Close { code }))
            }
            _ => Ok(None),
        }
    }
}

/// Head of a message in one frame, as a server sends it.
pub(super) fn write_message_head(kind: MessageKind, length: usize, out: &mut Vec<u8>) {
    out.push(match kind {
        MessageKind::Text => 0x80 | TEXT,
        MessageKind::Binary => 0x80 | BINARY,
    });
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => out.push(short),
        (_, Ok(long)) => {
            out.push(126);
            out.extend_from_slice(&long.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(127);
            let longest = u64::try_from(length).unwrap_or(u64::MAX);
            out.extend_from_slice(&longest.to_be_bytes());
        }
    }
}
