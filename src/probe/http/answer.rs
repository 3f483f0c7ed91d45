//! An answer as it comes in: its head, and its body as far as it matters.

use std::io;

use crate::{
    net::{
        Url,
        http_response::{BodyFraming, ResponseHead},
    },
    probe::{
        MAX_TEXT_BYTES, ProbeRequestError, Prober, dial, plain::PlainConnection, tls::TlsConnection,
    },
};

/// Bytes of a body that are read; more bytes are no error.
pub const MAX_BODY_BYTES: usize = 10 * 1024;
/// Longest head of an answer, bytes.
pub const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Headers of one answer.
const MAX_HEADERS: usize = 100;
/// Most pieces in which an answer may come: a peer that drips more is not listened to.
pub const MAX_PIECES: usize = 512;
/// Bytes read at a time.
const PIECE_BYTES: usize = 2048;

/// The connection below.
pub(super) enum ProbeConnection {
    Plain(PlainConnection),
    Tls(Box<TlsConnection>),
}

impl ProbeConnection {
    pub(super) async fn open(
        prober: &Prober,
        url: &Url,
        socket: PlainConnection,
    ) -> Result<Self, ProbeRequestError> {
        if !url.https {
            return Ok(Self::Plain(socket));
        }
        let wrong =
            |e: io::Error| ProbeRequestError::Peer(format!("tls: {}", dial::go_error_text(&e)));
        let mut tls = TlsConnection::new(prober, url.host(), socket).map_err(wrong)?;
        match tls.handshake().await {
            Ok(()) => Ok(Self::Tls(Box::new(tls))),
            Err(_) if tls.is_plain => Err(ProbeRequestError::PlainHttp),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ProbeRequestError::Peer("EOF".into()))
            }
            Err(e) => Err(wrong(e)),
        }
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes).await,
            Self::Tls(tls) => tls.write_all(bytes).await,
        }
    }

    async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into).await,
            Self::Tls(tls) => tls.read(into).await,
        }
    }
}

/// An answer as it comes in.
pub(super) struct IncomingAnswer {
    stream: ProbeConnection,
    /// Bytes that were read and not looked at yet.
    bytes: Vec<u8>,
    pieces: usize,
}

/// Status, redirect and framing of an answer, read from its head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProbeAnswerHead {
    pub(super) code: u16,
    pub(super) location: Option<String>,
    body: BodyFraming,
}

impl IncomingAnswer {
    pub(super) const fn new(stream: ProbeConnection) -> Self {
        Self {
            stream,
            bytes: Vec::new(),
            pieces: 0,
        }
    }

    /// Reads some more. None at the end, or when it has come in too many pieces.
    async fn read_more(&mut self) -> io::Result<usize> {
        self.pieces += 1;
        if self.pieces > MAX_PIECES {
            return Ok(0);
        }
        let known = self.bytes.len();
        self.bytes.resize(known + PIECE_BYTES, 0);
        let read = self.stream.read(&mut self.bytes[known..]).await;
        let len = read.as_ref().map_or(0, |len| *len);
        self.bytes.truncate(known + len);
        read
    }

    /// Reads the head of the final answer.
    pub(super) async fn read_head(&mut self) -> Result<ProbeAnswerHead, ProbeRequestError> {
        let mut looked_at = 0;
        // Bounded: each round takes a head from what was read, or reads one of MAX_PIECES in a turn of its own.
        loop {
            if has_head_end(&self.bytes, looked_at)
                && let Some((head, len)) = parse_head(&self.bytes)?
            {
                self.bytes.drain(..len);
                if (100..200).contains(&head.code) && head.code != 101 {
                    looked_at = 0;
                    continue;
                }
                return Ok(head);
            }
            looked_at = self.bytes.len();
            if looked_at > MAX_HEAD_BYTES {
                let text = format!("the head of the answer is longer than {MAX_HEAD_BYTES} bytes");
                return Err(ProbeRequestError::Peer(text));
            }
            let len = self.read_more().await.map_err(|e| read_error(&e))?;
            if len == 0 {
                let text = if self.pieces > MAX_PIECES {
                    "the answer comes in too many pieces"
                } else if self.bytes.is_empty() {
                    "EOF"
                } else {
                    "unexpected EOF"
                };
                return Err(ProbeRequestError::Peer(text.into()));
            }
        }
    }

    /// Reads the body as far as it is read at all. Errors: it ends before its end, or is not one.
    pub(super) async fn read_body(
        &mut self,
        head: &ProbeAnswerHead,
    ) -> Result<Vec<u8>, ProbeRequestError> {
        let mut body = ProbeAnswerBody::new(head.body);
        // Bounded: each round reads one of MAX_PIECES in a turn of its own.
        loop {
            let done = body.take_bytes(&self.bytes)?;
            self.bytes.clear();
            if done {
                return Ok(body.text);
            }
            match self.read_more().await {
                Ok(0) if self.pieces > MAX_PIECES || head.body == BodyFraming::ToEnd => {
                    return Ok(body.text);
                }
                Ok(0) => return Err(ProbeRequestError::Peer("unexpected EOF".into())),
                Ok(_) => {}
                Err(e) => return Err(read_error(&e)),
            }
        }
    }
}

fn read_error(error: &io::Error) -> ProbeRequestError {
    ProbeRequestError::Peer(format!("read tcp: read: {}", dial::go_error_text(error)))
}

/// Returns true if an empty line ends in the bytes after `from`.
fn has_head_end(bytes: &[u8], from: usize) -> bool {
    let tail = &bytes[from.saturating_sub(3).min(bytes.len())..];
    tail.windows(2).any(|w| w == b"\n\n") || tail.windows(3).any(|w| w == b"\n\r\n")
}

/// Reads a head and its length. Errors: it is none.
fn parse_head(bytes: &[u8]) -> Result<Option<(ProbeAnswerHead, usize)>, ProbeRequestError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let response = match ResponseHead::parse(bytes, &mut headers) {
        Ok(Some(response)) => response,
        Ok(None) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            let text = format!("the answer has more than {MAX_HEADERS} headers");
            return Err(ProbeRequestError::Peer(text));
        }
        Err(_) => {
            let line = bytes.split(|b| *b == b'\n').next().unwrap_or(&[]);
            let line = String::from_utf8_lossy(&line[..line.len().min(64)]);
            let text = format!("malformed HTTP response {:?}", line.trim());
            return Err(ProbeRequestError::Peer(text));
        }
    };
    let body = response.body_framing();
    let head = ProbeAnswerHead {
        code: response.status,
        location: response.header_value("location").filter(|l| !l.is_empty()),
        body: body.map_err(|e| ProbeRequestError::Peer(e.to_string()))?,
    };
    Ok(Some((head, response.length)))
}

/// A body; only its beginning is kept.
struct ProbeAnswerBody {
    framing: BodyFraming,
    /// Bytes of the body so far.
    seen: usize,
    text: Vec<u8>,
}

impl ProbeAnswerBody {
    const fn new(framing: BodyFraming) -> Self {
        Self {
            framing,
            seen: 0,
            text: Vec::new(),
        }
    }

    /// Takes what came in. Returns whether that is all.
    fn take_bytes(&mut self, mut bytes: &[u8]) -> Result<bool, ProbeRequestError> {
        // Bounded: each round takes some of `bytes`.
        loop {
            let piece = self.framing.next_piece(&mut bytes);
            let piece = piece.map_err(|e| ProbeRequestError::Peer(e.to_string()))?;
            if piece.is_empty() {
                return Ok(self.framing.is_over() || self.seen >= MAX_BODY_BYTES);
            }
            self.seen += piece.len();
            let room = MAX_TEXT_BYTES.saturating_sub(self.text.len());
            self.text.extend_from_slice(&piece[..piece.len().min(room)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let parsed = |text: &str| parse_head(text.as_bytes()).map(|h| h.map(|(head, _)| head));
        let head = |code, body| {
            Ok(Some(ProbeAnswerHead {
                code,
                location: None,
                body,
            }))
        };
        for (text, want) in [
            ("HTTP/1.1 200 OK\r\n\r\n", head(200, BodyFraming::ToEnd)),
            ("HTTP/1.0 503 \n\n", head(503, BodyFraming::ToEnd)),
            (
                "HTTP/1.1 204 x\r\nContent-Length: 7\r\n\r\n",
                head(204, BodyFraming::Length(0)),
            ),
            (
                "HTTP/1.1 200 x\r\nContent-Length: 7\r\n\r\n",
                head(200, BodyFraming::Length(7)),
            ),
            (
                "HTTP/1.1 200 x\r\nTransfer-Encoding: Chunked\r\nContent-Length: 7\r\n\r\n",
                head(200, BodyFraming::CHUNKED),
            ),
            ("HTTP/1.1 20", Ok(None)),
            (
                "HTTP/1.1 200 x\r\nContent-Length: x\r\n\r\n",
                Err(ProbeRequestError::Peer("bad Content-Length \"x\"".into())),
            ),
            (
                "SSH-2.0-x\r\n\r\n",
                Err(ProbeRequestError::Peer(
                    "malformed HTTP response \"SSH-2.0-x\"".into(),
                )),
            ),
        ] {
            assert_eq!(parsed(text), want, "{text:?}");
        }
        let many = format!(
            "HTTP/1.1 200 x\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert!(parsed(&many).is_err());
        let ends = |text: &str, from| has_head_end(text.as_bytes(), from);
        assert!(ends("a\r\n\r\n", 0) && ends("a\r\n\r\n", 4) && ends("a\n\n", 2));
        assert!(!ends("a\r\n\r", 0) && !ends("a\nb\n", 3) && !ends("", 0));
    }

    #[test]
    fn the_rest_of_a_long_body_is_not_read() {
        // PROBE-30
        for framing in [BodyFraming::ToEnd, BodyFraming::Length(1 << 40)] {
            let mut body = ProbeAnswerBody::new(framing);
            assert_eq!(body.take_bytes(&[b'x'; MAX_BODY_BYTES - 1]), Ok(false));
            assert_eq!(body.take_bytes(b"x"), Ok(true), "more is not read");
            assert_eq!(body.text.len(), MAX_TEXT_BYTES);
        }
        let body = ProbeAnswerBody::new(BodyFraming::CHUNKED).take_bytes(b"x\r\n");
        let wrong = ProbeRequestError::Peer("invalid byte in chunk length".into());
        assert_eq!(body, Err(wrong));
    }
}
