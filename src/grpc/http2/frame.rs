//! Frames, as they are sent. Source: RFC 9113, sections 4.1 and 6.

use super::{ConnectionFault, Http2ErrorCode, Http2StreamId, connection_fault, length_u32};

pub(super) const HEAD_BYTES: usize = 9;
/// The first bit of a stream's number is reserved, as that of a window is.
pub(super) const ID_MASK: u32 = (1 << 31) - 1;

/// Kinds of frames.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
    pub(crate) const PADDED: u8 = 8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Names of settings.
pub(super) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Head of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameHead {
    pub(super) len: usize,
    pub(super) kind: u8,
    flags: u8,
    pub(super) id: Http2StreamId,
}

impl FrameHead {
    /// Reads a head; `None` if it is not whole.
    pub(super) fn parse_head(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, ref id @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            len: usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX),
            kind,
            flags,
            id: u32::from_be_bytes(*id) & ID_MASK,
        })
    }

    pub(super) const fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(super) struct Http2Frame<'a> {
    pub(super) head: FrameHead,
    pub(super) payload: &'a [u8],
}

impl<'a> Http2Frame<'a> {
    /// Payload of DATA or HEADERS without what fills it up.
    pub(super) fn unpadded_payload(&self) -> Result<&'a [u8], ConnectionFault> {
        if !self.head.has_flag(flag::PADDED) {
            return Ok(self.payload);
        }
        let inner = self.payload.split_first().and_then(|(padding, rest)| {
            let len = rest.len().checked_sub(usize::from(*padding))?;
            rest.get(..len)
        });
        inner.ok_or_else(|| {
            connection_fault(Http2ErrorCode::PROTOCOL_ERROR, "a frame with wrong padding")
        })
    }

    /// Payload that has one length.
    pub(super) fn exact_payload<const N: usize>(&self) -> Result<[u8; N], ConnectionFault> {
        let exact = self.payload.try_into();
        exact.map_err(|_| {
            connection_fault(
                Http2ErrorCode::FRAME_SIZE_ERROR,
                "a frame of a wrong length",
            )
        })
    }
}

/// Appends a frame; its payload fits one.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, id: Http2StreamId, payload: &[u8]) {
    out.extend_from_slice(&length_u32(payload.len()).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(id.to_be_bytes());
    out.extend_from_slice(payload);
}
