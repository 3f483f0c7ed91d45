//! Responses of HTTP/1.1 taken apart without I/O: the head, where the body ends, the bytes of chunks (RFC 9112).
//!
//! Limits, and the judgement of a wrong response, belong to the reader. Trailers are left unread.

use httparse::{Header, Response, Status};

/// A whole head.
pub(crate) struct ResponseHead<'h, 'b> {
    pub(crate) status: u16,
    /// Bytes of it; the body follows.
    pub(crate) length: usize,
    pub(crate) headers: &'h [Header<'b>],
}

/// A `Content-Length` that is no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad Content-Length {0:?}")]
pub(crate) struct LengthError(pub(crate) String);

/// Bytes that are no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkError {
    #[error("invalid byte in chunk length")]
    Size,
    #[error("malformed chunked encoding")]
    End,
}

impl<'h, 'b> ResponseHead<'h, 'b> {
    /// Reads a head; `None` while it is not whole.
    pub(crate) fn parse(
        bytes: &'b [u8],
        headers: &'h mut [Header<'b>],
    ) -> Result<Option<Self>, httparse::Error> {
        let mut response = Response::new(headers);
        Ok(match response.parse(bytes)? {
            Status::Partial => None,
            Status::Complete(length) => Some(Self {
                status: response.code.unwrap_or_default(),
                length,
                headers: response.headers,
            }),
        })
    }

    /// The first header of that name.
    pub(crate) fn header_value(&self, name: &str) -> Option<String> {
        let mut all = self.headers.iter();
        let found = all.find(|h| h.name.eq_ignore_ascii_case(name));
        found.map(|h| String::from_utf8_lossy(h.value).trim().to_owned())
    }

    /// The end of its body.
    pub(crate) fn body_framing(&self) -> Result<BodyFraming, LengthError> {
        let coding = self.header_value("transfer-encoding");
        let is_chunked = coding.is_some_and(|v| v.eq_ignore_ascii_case("chunked"));
        Ok(match (self.status, self.header_value("content-length")) {
            (100..200 | 204 | 304, _) => BodyFraming::Length(0),
            _ if is_chunked => BodyFraming::CHUNKED,
            (_, Some(text)) => BodyFraming::Length(text.parse().map_err(|_| LengthError(text))?),
            (_, None) => BodyFraming::ToEnd,
        })
    }
}

/// The framing of a body that comes in any pieces: where it ends, and how far it is. It keeps no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// Number of bytes that are left.
    Length(u64),
    ToEnd,
    /// In the size of a chunk: the size so far, and its digits.
    Size(u64, u8),
    /// After a size, before the end of its line.
    Extension(u64),
    Chunk(u64),
    /// The line's end after a chunk.
    ChunkEnd,
}

impl BodyFraming {
    pub(crate) const CHUNKED: Self = Self::Size(0, 0);

    /// Returns true if the body is read to its end.
    pub(crate) const fn is_over(self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Takes the next piece of the body off `bytes`, with its framing. Empty: the body is over, or more bytes are
    /// needed.
    pub(crate) fn next_piece<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<&'b [u8], ChunkError> {
        while let Some((first, rest)) = bytes.split_first() {
            *self = match (*self, *first) {
                (Self::Length(0), _) => break,
                (Self::Length(left) | Self::Chunk(left), _) => {
                    let n = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let (piece, rest) = bytes.split_at(n);
                    *bytes = rest;
                    let left = left.saturating_sub(u64::try_from(n).unwrap_or(left));
                    *self = match (*self, left) {
                        (Self::Length(_), left) => Self::Length(left),
                        (_, 0) => Self::ChunkEnd,
                        (_, left) => Self::Chunk(left),
                    };
                    return Ok(piece);
                }
                (Self::ToEnd, _) => return Ok(core::mem::take(bytes)),
                (Self::Size(0, 1..) | Self::Extension(0), b'\n') => Self::Length(0),
                (Self::Size(size, 1..) | Self::Extension(size), b'\n') => Self::Chunk(size),
                (Self::Size(size, digits @ ..16), byte) if byte.is_ascii_hexdigit() => {
                    let digit = char::from(byte).to_digit(16).unwrap_or(0);
                    Self::Size((size << 4) | u64::from(digit), digits + 1)
                }
                (Self::Size(size, 1..), b'\r' | b' ' | b'\t' | b';')
                | (Self::Extension(size), _) => Self::Extension(size),
                (Self::Size(..), _) => return Err(ChunkError::Size),
                (Self::ChunkEnd, b'\r') => Self::ChunkEnd,
                (Self::ChunkEnd, b'\n') => Self::Size(0, 0),
                (Self::ChunkEnd, _) => return Err(ChunkError::End),
            };
            *bytes = rest;
        }
        Ok(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framings() {
        let of = |text: &str| {
            let mut headers = [httparse::EMPTY_HEADER; 4];
            let head = ResponseHead::parse(text.as_bytes(), &mut headers).expect("a head");
            head.map(|head| (head.status, head.length, head.body_framing()))
        };
        for (text, status, framing) in [
            ("HTTP/1.1 200 OK\r\n\r\n", 200, Ok(BodyFraming::ToEnd)),
            ("HTTP/1.0 503 \n\n", 503, Ok(BodyFraming::ToEnd)),
            (
                "HTTP/1.1 204 x\r\nContent-Length: 7\r\n\r\n",
                204,
                Ok(BodyFraming::Length(0)),
            ),
            (
                "HTTP/1.1 200 x\r\ncontent-length: 7\r\n\r\n",
                200,
                Ok(BodyFraming::Length(7)),
            ),
            (
                "HTTP/1.1 200 x\r\nTransfer-Encoding: Chunked\r\nContent-Length: 7\r\n\r\n",
                200,
                Ok(BodyFraming::CHUNKED),
            ),
            (
                "HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\n",
                200,
                Err(LengthError("-1".to_owned())),
            ),
        ] {
            assert_eq!(of(text), Some((status, text.len(), framing)), "{text:?}");
        }
        assert!(of("HTTP/1.1 20").is_none());
    }

    /// The body, and whether it is over, by `size` bytes.
    fn decoded(
        mut framing: BodyFraming,
        text: &str,
        size: usize,
    ) -> Result<(String, bool), ChunkError> {
        let mut body = Vec::new();
        for mut bytes in text.as_bytes().chunks(size) {
            loop {
                let piece = framing.next_piece(&mut bytes)?;
                if piece.is_empty() {
                    break;
                }
                body.extend_from_slice(piece);
            }
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok((body, framing.is_over()))
    }

    #[test]
    fn bodies_in_any_pieces() {
        // PROBE-30
        let chunked = "5;x=1\r\nhello\r\n6 \r\n world\r\n0\r\n\r\n";
        for (framing, text, want) in [
            (
                BodyFraming::Length(5),
                "hello and more",
                Ok(("hello", true)),
            ),
            (BodyFraming::Length(9), "hello", Ok(("hello", false))),
            (BodyFraming::Length(0), "", Ok(("", true))),
            (BodyFraming::ToEnd, "hello", Ok(("hello", false))),
            (BodyFraming::CHUNKED, chunked, Ok(("hello world", true))),
            (BodyFraming::CHUNKED, "5\r\nhe", Ok(("he", false))),
            (BodyFraming::CHUNKED, "0\n", Ok(("", true))),
            (BodyFraming::CHUNKED, "x\r\n", Err(ChunkError::Size)),
            (BodyFraming::CHUNKED, "\r\n", Err(ChunkError::Size)),
            (
                BodyFraming::CHUNKED,
                "11111111111111111\r\n",
                Err(ChunkError::Size),
            ),
            (BodyFraming::CHUNKED, "1\r\nhello", Err(ChunkError::End)),
        ] {
            for size in 1..=text.len().max(1) {
                let want = want.map(|(body, is_over)| (body.to_owned(), is_over));
                assert_eq!(decoded(framing, text, size), want, "{text:?} by {size}");
            }
        }
    }
}
