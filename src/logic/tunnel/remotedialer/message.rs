//! Messages of remotedialer (K3ST-02). Each is one binary message of a WebSocket, and comes in any pieces.
//!
//! ```text
//! id, connection, type: signed varints | for data and connect one more, without meaning | payload
//! ```
//!
//! Source: remotedialer `message.go`, Go `encoding/binary` `ReadVarint`.

use alloc::vec::Vec;

/// Number of a connection: the server chooses it, from 2 up, anew in each session.
pub type DialId = i64;

/// Longest payload of a connect that is read, bytes.
pub const MAX_TARGET_BYTES: usize = 266;
/// Longest head, bytes: four numbers.
pub const MAX_HEAD_BYTES: usize = 4 * MAX_VARINT_BYTES;
/// Longest number, bytes.
const MAX_VARINT_BYTES: usize = 10;
/// Value of the fourth number, as upstream writes it: once a time limit in milliseconds.
const LEGACY_DEADLINE: i64 = 15_000;

const DATA: i64 = 1;
const CONNECT: i64 = 2;
const ERROR: i64 = 3;
const PAUSE: i64 = 6;
const RESUME: i64 = 7;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// Bytes of a connection.
    Data,
    /// The server wants a connection; the payload is its target. There is no answer to it.
    Connect,
    /// A connection has ended; the payload is the reason.
    Error,
    /// No more bytes of a connection are to be sent.
    Pause,
    /// Bytes of a connection may be sent again.
    Resume,
    /// A message that is none of a node's: other sessions of a server, or a type of a later version.
    Other,
}

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    /// Type of the message.
    pub kind: MessageType,
    /// Connection that it is about.
    pub id: DialId,
}

/// A number that is longer than 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a number of more than 64 bits in the head of a message")]
pub struct MessageError;

/// Reader of the heads of messages: takes them in any pieces, and holds no payload.
#[derive(Debug, Default)]
pub struct MessageReader {
    /// Bits of the number that is being read, and how many there are.
    number: u64,
    bits: u32,
    /// Numbers that were read before: how many, and those with a meaning.
    count: usize,
    id: DialId,
    kind: i64,
    /// Head of the message, once it is whole.
    head: Option<MessageHead>,
}

impl MessageReader {
    /// Takes bytes of a message's head off `bytes`. Returns the head once it is whole; the payload follows.
    pub fn take_head(&mut self, bytes: &mut &[u8]) -> Result<Option<MessageHead>, MessageError> {
        while self.head.is_none() {
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(None);
            };
            *bytes = rest;
            let low = u64::from(byte & 0x7f);
            // The tenth byte has the last bit.
            if self.bits >= 64 || (self.bits == 63 && byte > 1) {
                return Err(MessageError);
            }
            self.number |= low << self.bits;
            self.bits += 7;
            if byte & 0x80 == 0 {
                self.end_number();
            }
        }
        Ok(self.head)
    }

    fn end_number(&mut self) {
        let value = (self.number >> 1).cast_signed() ^ -(self.number & 1).cast_signed();
        (self.number, self.bits) = (0, 0);
        match self.count {
            1 => self.id = value,
            2 => self.kind = value,
            _ => {}
        }
        self.count += 1;
        let kind = match self.kind {
            DATA => MessageType::Data,
            CONNECT => MessageType::Connect,
            ERROR => MessageType::Error,
            PAUSE => MessageType::Pause,
            RESUME => MessageType::Resume,
            _ => MessageType::Other,
        };
        let numbers = match kind {
            MessageType::Data | MessageType::Connect => 4,
            MessageType::Error | MessageType::Pause | MessageType::Resume | MessageType::Other => 3,
        };
        if self.count == numbers && self.count >= 3 {
            self.head = Some(MessageHead { kind, id: self.id });
        }
    }

    /// Takes in that the message has ended. Returns false if its head was not whole.
    pub fn end_message(&mut self) -> bool {
        core::mem::take(self).head.is_some()
    }
}

/// Message of a node, but for its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentMessage {
    /// Bytes of a connection follow.
    Data,
    /// The connection has ended; the reason follows.
    Error,
    /// No more bytes are to be sent.
    Pause,
    /// Bytes may be sent again.
    Resume,
}

/// Makes the head of a message. `number`: the number of the message, which nobody compares.
#[must_use]
pub fn encode_head(number: i64, id: DialId, kind: SentMessage) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_HEAD_BYTES);
    let (kind, further) = match kind {
        SentMessage::Data => (DATA, Some(LEGACY_DEADLINE)),
        SentMessage::Error => (ERROR, None),
        SentMessage::Pause => (PAUSE, None),
        SentMessage::Resume => (RESUME, None),
    };
    for value in [number, id, kind].into_iter().chain(further) {
        let mut left = (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned();
        while left > 0x7f {
            out.push(u8::try_from(left & 0x7f).unwrap_or_default() | 0x80);
            left >>= 7;
        }
        out.push(u8::try_from(left).unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a message in pieces of `size`.
    fn read(bytes: &[u8], size: usize) -> Result<Option<(MessageHead, Vec<u8>)>, MessageError> {
        let mut reader = MessageReader::default();
        let (mut head, mut payload) = (None, Vec::new());
        for piece in bytes.chunks(size) {
            let mut piece = piece;
            head = reader.take_head(&mut piece)?;
            payload.extend_from_slice(piece);
        }
        assert_eq!(reader.end_message(), head.is_some());
        assert_eq!(reader.count, 0, "the next begins anew");
        Ok(head.map(|head| (head, payload)))
    }

    #[test]
    fn messages_as_upstream_writes_them() {
        // K3ST-02: goldens made with remotedialer's own encoder, f631a87.
        let head = |kind, id| MessageHead { kind, id };
        let wide = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for (bytes, want, payload) in [
            (
                &b"\x02\x04\x02\xb0\xea\x01hello"[..],
                head(MessageType::Data, 2),
                &b"hello"[..],
            ),
            (
                b"\x02\x06\x04\xb0\xea\x01tcp/127.0.0.1:10250",
                head(MessageType::Connect, 3),
                b"tcp/127.0.0.1:10250",
            ),
            (b"\x80\x01\x08\x06EOF", head(MessageType::Error, 4), b"EOF"),
            (b"\x02\x00\x08a/1", head(MessageType::Other, 0), b"a/1"),
            (b"\x02\x00\x0aa/1", head(MessageType::Other, 0), b"a/1"),
            (b"\x02\xac\x02\x0c", head(MessageType::Pause, 150), b""),
            (b"\x02\x0a\x0e", head(MessageType::Resume, 5), b""),
            (
                b"\x02\x00\x10\x01\0\0\0\0\0\0\0",
                head(MessageType::Other, 0),
                b"\x01\0\0\0\0\0\0\0",
            ),
            // Types that do not exist, of both signs.
            (b"\x02\x02\x7f", head(MessageType::Other, 1), b""),
            (b"\x02\x02\x00", head(MessageType::Other, 1), b""),
            // The longest numbers: the least and the greatest.
            (
                &[&wide[..], &wide, b"\x0c"].concat(),
                head(MessageType::Pause, i64::MIN),
                b"",
            ),
            (
                &[&wide[..], b"\xfe", &wide[1..], b"\x0c"].concat(),
                head(MessageType::Pause, i64::MAX),
                b"",
            ),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(
                    read(bytes, size),
                    Ok(Some((want, payload.to_vec()))),
                    "{bytes:x?}"
                );
            }
            // Cut at each byte: whole heads only.
            let length = bytes.len() - payload.len();
            for cut in 0..bytes.len() {
                let got = read(&bytes[..cut], 1000).expect("no error");
                assert_eq!(got.is_some(), cut >= length, "{bytes:x?} cut at {cut}");
            }
        }
    }

    #[test]
    fn numbers_that_are_too_long() {
        // K3ST-02
        for bytes in [
            &[0xff; 11][..],
            &[0x80; 11],
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        ] {
            for place in 0..3 {
                let bytes = [&b"\x02\x02"[..place.min(2)], bytes].concat();
                assert_eq!(read(&bytes, 3), Err(MessageError), "{bytes:x?}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        // K3ST-02
        assert_eq!(
            encode_head(1, 2, SentMessage::Data),
            b"\x02\x04\x02\xb0\xea\x01"
        );
        assert_eq!(encode_head(64, 4, SentMessage::Error), b"\x80\x01\x08\x06");
        assert_eq!(encode_head(1, 150, SentMessage::Pause), b"\x02\xac\x02\x0c");
        for number in [0, -1, 1, 63, 64, -64, -65, i64::MIN, i64::MAX] {
            let written = encode_head(number, number, SentMessage::Resume);
            assert!(written.len() <= MAX_HEAD_BYTES);
            let head = MessageHead {
                kind: MessageType::Resume,
                id: number,
            };
            assert_eq!(read(&written, 1), Ok(Some((head, Vec::new()))));
        }
    }
}
