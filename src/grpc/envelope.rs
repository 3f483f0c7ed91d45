//! Messages in the payload of a stream: each has a flag, for compression, and its length before it.

use crate::status::{GrpcCode, GrpcStatus};

/// Longest message that is taken: what kubelets and runtimes allow each other.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
const HEAD_BYTES: usize = 5;
/// Room for a message that is not there yet, whatever length it is said to have.
const FIRST_BYTES: usize = 64 * 1024;

/// Puts a message into its envelope.
#[must_use]
pub fn wrap_message(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + message.len());
    out.push(0);
    out.extend(
        u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    out.extend_from_slice(message);
    out
}

/// Takes messages out, as they come.
#[derive(Debug)]
pub struct EnvelopeReader {
    /// The beginning of an envelope, or a message and its length.
    head: Vec<u8>,
    message: Option<(Vec<u8>, usize)>,
    /// Longest message that is taken.
    max: usize,
}

impl Default for EnvelopeReader {
    fn default() -> Self {
        Self::with_max_bytes(MAX_MESSAGE_BYTES)
    }
}

impl EnvelopeReader {
    /// Makes a reader of messages of so many bytes at most.
    #[must_use]
    pub const fn with_max_bytes(max: usize) -> Self {
        Self {
            head: Vec::new(),
            message: None,
            max,
        }
    }

    /// Takes the bytes of the next message off `bytes`. Errors: there is no message, and nothing after it counts.
    pub fn take_message(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, GrpcStatus> {
        if self.message.is_none() {
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
            self.head.extend_from_slice(head);
            *bytes = rest;
            let &[flag, ref len @ ..] = self.head.as_slice() else {
                return Ok(None);
            };
            let Ok(len) = <[u8; 4]>::try_from(len) else {
                return Ok(None);
            };
            if flag != 0 {
                let text = "a compressed message, which was not asked for";
                return Err(GrpcStatus::new(GrpcCode::INTERNAL, text));
            }
            let len = usize::try_from(u32::from_be_bytes(len)).unwrap_or(usize::MAX);
            if len > self.max {
                let max = self.max;
                let text = format!("grpc: received message larger than max ({len} vs. {max})");
                return Err(GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, text));
            }
            self.head.clear();
            self.message = Some((Vec::with_capacity(len.min(FIRST_BYTES)), len));
        }
        let Some((message, len)) = &mut self.message else {
            return Ok(None);
        };
        let (piece, rest) = bytes.split_at(bytes.len().min(*len - message.len()));
        message.extend_from_slice(piece);
        *bytes = rest;
        let done = self.message.take_if(|(message, len)| message.len() == *len);
        Ok(done.map(|(message, _)| message))
    }

    /// Bytes of a message that is not whole yet.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let message = self.message.as_ref();
        self.head.len() + message.map_or(0, |(message, _)| message.capacity())
    }

    /// Returns true if the last message was whole.
    #[must_use]
    pub const fn is_between_messages(&self) -> bool {
        self.head.is_empty() && self.message.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_any_pieces() {
        let messages = [&b"one"[..], b"", &[7; 100_000], b"x"];
        let bytes = messages.map(wrap_message).concat();
        for size in [1, 4, 5, 6, 1000, bytes.len()] {
            let (mut envelopes, mut all) = (EnvelopeReader::default(), Vec::new());
            for mut piece in bytes.chunks(size) {
                while !piece.is_empty() {
                    all.extend(envelopes.take_message(&mut piece).expect("messages"));
                }
            }
            assert!(envelopes.is_between_messages() && envelopes.held_bytes() == 0);
            assert_eq!(all, messages, "{size}");
        }
    }

    #[test]
    fn refused() {
        // CRI-98
        let code = |mut bytes: &[u8]| {
            EnvelopeReader::default()
                .take_message(&mut bytes)
                .map_err(|e| e.code)
        };
        assert_eq!(code(&[1, 0, 0, 0, 0]), Err(GrpcCode::INTERNAL));
        assert_eq!(code(&[0, 1, 0, 0, 1]), Err(GrpcCode::RESOURCE_EXHAUSTED));
        assert_eq!(code(&[0, 1, 0, 0, 0]), Ok(None));
        let mut small = EnvelopeReader::with_max_bytes(3);
        assert_eq!(small.take_message(&mut &[0, 0, 0, 0, 3][..]), Ok(None));
        let mut small = EnvelopeReader::with_max_bytes(3);
        let refused = small.take_message(&mut &[0, 0, 0, 0, 4][..]);
        assert_eq!(
            refused.map_err(|e| e.code),
            Err(GrpcCode::RESOURCE_EXHAUSTED)
        );
        // A length alone takes no such room.
        let mut envelopes = EnvelopeReader::default();
        assert_eq!(
            envelopes.take_message(&mut &[0, 1, 0, 0, 0, 9][..]),
            Ok(None)
        );
        assert!(envelopes.held_bytes() <= FIRST_BYTES && !envelopes.is_between_messages());
    }
}
