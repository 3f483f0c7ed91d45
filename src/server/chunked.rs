//! Finds the end of a request's body that comes in chunks (RFC 9112, section 7.1). The data are dropped: no page
//! takes a body.

use super::http::Refusal;

/// Longest line between chunks: a size with its extensions, a trailer. Bytes.
const MAX_LINE_BYTES: usize = 256;
/// Lines behind the last chunk.
const MAX_TRAILERS: u32 = 16;
/// Digits of a size.
const MAX_DIGITS: usize = 8;

/// Part of the body that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedPosition {
    /// The line with the size of a chunk.
    Size,
    /// Data of a chunk: bytes that are still to come.
    Data(u64),
    /// The end of its last line.
    DataEnd,
    /// Trailers, and the empty line that ends it all.
    Trailers,
}

/// Follows a body to its end. Its memory is one short line.
#[derive(Debug)]
pub(super) struct Chunked {
    at: ChunkedPosition,
    line: Vec<u8>,
    /// Bytes of chunks that may still come.
    room: u64,
    trailers: u32,
}

impl Chunked {
    /// A body of at most `limit` bytes.
    pub(super) const fn new(limit: u64) -> Self {
        Self {
            at: ChunkedPosition::Size,
            line: Vec::new(),
            room: limit,
            trailers: 0,
        }
    }

    /// Takes the next bytes. `Some`: the body ended behind so many of them.
    ///
    /// - Errors: 413 for one that is too long, 400 for one that is malformed. Nothing behind it can be understood then.
    pub(super) fn feed_bytes(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        let mut done = 0;
        while let Some(byte) = bytes.get(done) {
            if let ChunkedPosition::Data(left) = self.at {
                let here = u64::try_from(bytes.len() - done).unwrap_or(u64::MAX);
                let taken = left.min(here);
                done += usize::try_from(taken).unwrap_or(usize::MAX);
                self.at = match left - taken {
                    0 => ChunkedPosition::DataEnd,
                    left => ChunkedPosition::Data(left),
                };
                continue;
            }
            done += 1;
            if *byte != b'\n' {
                if self.line.len() >= MAX_LINE_BYTES {
                    return Err(malformed_chunks("a line is too long"));
                }
                self.line.push(*byte);
                continue;
            }
            let Some(b'\r') = self.line.pop() else {
                return Err(malformed_chunks("a line ends without a carriage return"));
            };
            if self.line.contains(&b'\r') {
                return Err(malformed_chunks("a carriage return inside a line"));
            }
            let is_over = self.parse_ended_line()?;
            self.line.clear();
            if is_over {
                return Ok(Some(done));
            }
        }
        Ok(None)
    }

    /// Understands a line. Whether it was the last.
    fn parse_ended_line(&mut self) -> Result<bool, Refusal> {
        self.at = match self.at {
            ChunkedPosition::Size => {
                match parse_chunk_size(&self.line).ok_or_else(|| malformed_chunks("no size"))? {
                    0 => ChunkedPosition::Trailers,
                    size if size > self.room => return Err(Refusal::new(413, "body is too long")),
                    size => {
                        self.room -= size;
                        ChunkedPosition::Data(size)
                    }
                }
            }
            ChunkedPosition::DataEnd if self.line.is_empty() => ChunkedPosition::Size,
            ChunkedPosition::DataEnd | ChunkedPosition::Data(_) => {
                return Err(malformed_chunks("a chunk is longer than it said"));
            }
            ChunkedPosition::Trailers if self.line.is_empty() => return Ok(true),
            ChunkedPosition::Trailers => {
                self.trailers += 1;
                if self.trailers > MAX_TRAILERS {
                    return Err(malformed_chunks("too many trailers"));
                }
                ChunkedPosition::Trailers
            }
        };
        Ok(false)
    }
}

fn malformed_chunks(why: &str) -> Refusal {
    Refusal::bad_request(format!("malformed chunks: {why}"))
}

/// Reads the size at the start of a chunk's line. Extensions are ignored.
fn parse_chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    let digits = digits.trim_ascii_end();
    let is_number = (1..=MAX_DIGITS).contains(&digits.len());
    if !is_number || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    use super::*;

    /// Runs the reader for [`crate::fuzz`]: cut anywhere, the body ends at the same byte or with the same error.
    pub(crate) fn run(data: &[u8]) -> String {
        let whole = Chunked::new(4096).feed_bytes(data);
        let mut pieces = Chunked::new(4096);
        let mut at = 0;
        let mut end = Ok(None);
        for piece in data.chunks(3) {
            end = pieces.feed_bytes(piece).map(|n| n.map(|n| at + n));
            if end != Ok(None) {
                break;
            }
            at += piece.len();
        }
        assert_eq!(end, whole);
        match whole {
            Ok(end) => format!("chunks {}", end.is_some()),
            Err(refusal) => refusal.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies() {
        for (body, expected) in [
            ("0\r\n\r\n", Ok(5)),
            ("3\r\nabc\r\n0\r\n\r\n", Ok(13)),
            (
                "a\r\n0123456789\r\n1;x=\"y\"\r\n\n\r\n0\r\n\r\nGET /",
                Ok(32),
            ),
            ("0\r\nA: b\r\nC: d\r\n\r\n", Ok(17)),
            ("00000000 \r\n\r\n", Ok(13)),
            ("10\r\n0123456789abcdef\r\n0\r\n\r\n", Ok(27)),
            // Together they are over the limit.
            ("10\r\n0123456789abcdef\r\n1\r\nx\r\n0\r\n\r\n", Err(413)),
            ("11\r\n", Err(413)),
            ("ffffffff\r\n", Err(413)),
            ("fffffffff\r\n", Err(400)),
            ("\r\n", Err(400)),
            (" 1\r\na\r\n", Err(400)),
            ("+1\r\na\r\n", Err(400)),
            ("0x1\r\na\r\n", Err(400)),
            ("1\na\n0\n\n", Err(400)),
            ("1\r\nab\r\n", Err(400)),
            ("0\r\nA\rB: c\r\n\r\n", Err(400)),
        ] {
            let mut chunks = Chunked::new(16);
            let got = chunks.feed_bytes(body.as_bytes());
            let got = got.map_err(|e| e.status).map(Option::unwrap_or_default);
            assert_eq!(got, expected, "{body:?}");
            fuzz::run(body.as_bytes());
        }
        let long = format!("1;{}\r\n", "x".repeat(MAX_LINE_BYTES));
        assert!(Chunked::new(16).feed_bytes(long.as_bytes()).is_err());
        let trailers = "A: b\r\n".repeat(17);
        let many = format!("0\r\n{trailers}\r\n");
        assert!(Chunked::new(16).feed_bytes(many.as_bytes()).is_err());
    }

    #[test]
    fn a_body_that_goes_on() {
        for body in [
            "",
            "1",
            "1\r\n",
            "1\r\na",
            "1\r\na\r\n0\r\n",
            "0\r\nA: b\r\n",
        ] {
            assert_eq!(
                Chunked::new(16).feed_bytes(body.as_bytes()),
                Ok(None),
                "{body:?}"
            );
        }
    }
}
