//! Frames: heads, kinds, codes.
//!
//! ```text
//! control  1 version:15 | kind:16 | flags:8 length:24 | …        data  0 stream:31 | flags:8 length:24 | …
//! ```

/// Names a stream; the client's are odd.
pub type SpdyStreamId = u32;

/// Bytes of a frame's head.
pub(super) const HEAD_BYTES: usize = 8;
/// The version in control frames; 3.1 says 3.
const VERSION: u16 = 3;
/// A control frame whose payload must be understood; those spdystream sends are below 200.
const MAX_CONTROL_BYTES: u32 = 8 * 1024;
/// Bits of an id, a window, a delta.
pub(super) const MASK_31: u32 = 0x7fff_ffff;
/// Longest frame that its head can say.
pub(super) const MAX_FRAME_BYTES: u32 = 0x00ff_ffff;

pub(super) const FLAG_FIN: u8 = 1;
pub(super) const FLAG_UNIDIRECTIONAL: u8 = 2;

/// Control frames that mean something to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    SynStream,
    SynReply,
    Reset,
    Settings,
    Ping,
    GoAway,
    Headers,
    WindowUpdate,
}

impl ControlFrame {
    const fn from_kind(kind: u16) -> Option<Self> {
        Some(match kind {
            1 => Self::SynStream,
            2 => Self::SynReply,
            3 => Self::Reset,
            4 => Self::Settings,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::Headers,
            9 => Self::WindowUpdate,
            // Credentials, and what was never defined: to be skipped.
            _ => return None,
        })
    }

    const fn kind_code(self) -> u16 {
        match self {
            Self::SynStream => 1,
            Self::SynReply => 2,
            Self::Reset => 3,
            Self::Settings => 4,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::Headers => 8,
            Self::WindowUpdate => 9,
        }
    }

    /// Bytes before the part whose length differs, and whether there is one.
    pub(super) const fn fixed_part(self) -> (u32, bool) {
        match self {
            Self::SynStream => (10, true),
            Self::SynReply | Self::Headers | Self::Settings => (4, true),
            Self::Reset | Self::GoAway | Self::WindowUpdate => (8, false),
            Self::Ping => (4, false),
        }
    }
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpdyFrameHead {
    Control {
        control: ControlFrame,
        flags: u8,
        length: u32,
    },
    /// A control frame to be skipped.
    Unknown { length: u32 },
    Data {
        id: SpdyStreamId,
        fin: bool,
        length: u32,
    },
}

impl SpdyFrameHead {
    pub(super) fn parse_head(bytes: [u8; HEAD_BYTES]) -> Result<Self, SpdyError> {
        let [a, b, c, d, flags, x, y, z] = bytes;
        let length = u32::from_be_bytes([0, x, y, z]);
        let first = u32::from_be_bytes([a, b, c, d]);
        if a & 0x80 == 0 {
            let (id, fin) = (first, flags & FLAG_FIN != 0);
            return if id == 0 {
                Err(SpdyError::Stream(id))
            } else {
                Ok(Self::Data { id, fin, length })
            };
        }
        let version = u16::from_be_bytes([a & 0x7f, b]);
        if version != VERSION {
            return Err(SpdyError::Version(version));
        }
        let kind = u16::from_be_bytes([c, d]);
        let Some(control) = ControlFrame::from_kind(kind) else {
            return Ok(Self::Unknown { length });
        };
        let (fixed, more) = control.fixed_part();
        if length < fixed || length > MAX_CONTROL_BYTES || (length > fixed && !more) {
            return Err(SpdyError::Length { kind, length });
        }
        Ok(Self::Control {
            control,
            flags,
            length,
        })
    }
}

/// Head of a data frame. `length` is at most 24 bits.
pub(crate) const fn data_head(id: SpdyStreamId, fin: bool, length: u32) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = (id & MASK_31).to_be_bytes();
    let [_, x, y, z] = length.to_be_bytes();
    [a, b, c, d, if fin { FLAG_FIN } else { 0 }, x, y, z]
}

/// Head of a control frame.
pub(super) const fn control_head(control: ControlFrame, length: u32) -> [u8; HEAD_BYTES] {
    let [a, b] = (0x8000 | VERSION).to_be_bytes();
    let [c, d] = control.kind_code().to_be_bytes();
    let [_, x, y, z] = length.to_be_bytes();
    [a, b, c, d, 0, x, y, z]
}

/// Reason why a stream is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ResetReason {
    /// The peer broke the protocol.
    ProtocolError = 1,
    /// The stream was not started; may be tried again.
    RefusedStream = 3,
    /// The stream is no longer wanted.
    Cancel = 5,
}

impl ResetReason {
    pub(super) const fn code(self) -> u32 {
        self as u32
    }
}

/// Reason why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GoAwayReason {
    /// The work is done.
    Ok = 0,
    /// The peer broke the protocol.
    ProtocolError = 1,
}

impl GoAwayReason {
    pub(super) const fn code(self) -> u32 {
        self as u32
    }
}

/// Breach of the protocol by a peer; the connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// The peer speaks another version of SPDY.
    #[error("SPDY version {0} is not served")]
    Version(u16),
    /// A control frame of a length that its kind cannot have.
    #[error("SPDY control frame {kind} has {length} bytes")]
    Length {
        /// Kind, as on the wire.
        kind: u16,
        /// Bytes of its payload.
        length: u32,
    },
    /// An id that cannot be opened or does not exist.
    #[error("SPDY stream {0} cannot be")]
    Stream(SpdyStreamId),
    /// A header block.
    #[error("SPDY headers are {0}")]
    Headers(&'static str),
    /// A setting or a window outside its range.
    #[error("SPDY window is out of range")]
    Window,
}
