//! HTTP/1.1, as much as a server of JSON needs.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes of a request's head, and its headers.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 64;

/// Bytes of a request's body, as upstream has it.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// Bodies up to this size are sent with their length, longer ones in chunks, as Go's server does.
const MAX_PLAIN: usize = 2048;

/// Bytes of a chunk.
const CHUNK: usize = 16 * 1024;

/// A request line and its headers.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) uri: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A header by its lower-case name, or the empty string.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, v)| v.as_str())
    }

    /// The lines with which a client asks for another protocol.
    pub(crate) fn upgrade_lines(&self) -> String {
        let says = |name: &str| {
            matches!(name, "connection" | "upgrade" | "x-stream-protocol-version")
                || name.starts_with("sec-websocket-")
        };
        let lines = self.headers.iter().filter(|(name, _)| says(name));
        lines
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect()
    }

    pub(crate) fn wants_close(&self) -> bool {
        self.header("connection").eq_ignore_ascii_case("close")
    }

    fn accepts_gzip(&self) -> bool {
        self.header("accept-encoding")
            .split(',')
            .map(|e| e.split(';').next().unwrap_or("").trim())
            .any(|e| e == "gzip" || e == "*")
    }
}

/// What came of waiting for a request.
pub(crate) enum Incoming {
    Request(Head, Vec<u8>),
    /// The client closed between two requests.
    Closed,
    /// The head is unreadable, or the body too large: the status to answer, then close.
    Bad(u16),
}

/// A connection's reader, with what came beyond the request read last.
pub(crate) struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { buffer: Vec::new() }
    }

    fn fill(&mut self, from: &mut impl Read) -> io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let n = from.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n)
    }

    /// Reads one request. `expect` is called when the client waits for permission to send its body.
    pub(crate) fn next<S: Read + Write>(&mut self, stream: &mut S) -> io::Result<Incoming> {
        let (head, length) = loop {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&self.buffer) {
                Ok(httparse::Status::Complete(length)) => {
                    let head = Head {
                        method: request.method.unwrap_or("").to_owned(),
                        uri: request.path.unwrap_or("").to_owned(),
                        headers: request
                            .headers
                            .iter()
                            .map(|h| {
                                (
                                    h.name.to_ascii_lowercase(),
                                    String::from_utf8_lossy(h.value).into_owned(),
                                )
                            })
                            .collect(),
                    };
                    break (head, length);
                }
                Ok(httparse::Status::Partial) if self.buffer.len() < MAX_HEAD => {}
                _ => return Ok(Incoming::Bad(400)),
            }
            if self.fill(stream)? == 0 {
                return if self.buffer.is_empty() {
                    Ok(Incoming::Closed)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        };
        self.buffer.drain(..length);
        if head.header("expect").eq_ignore_ascii_case("100-continue") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let chunked = head
            .header("transfer-encoding")
            .eq_ignore_ascii_case("chunked");
        let body = if chunked {
            self.chunks(stream)?
        } else {
            let length: usize = match head.header("content-length") {
                "" => 0,
                text => match text.parse() {
                    Ok(length) => length,
                    Err(_) => return Ok(Incoming::Bad(400)),
                },
            };
            if length > MAX_BODY {
                return Ok(Incoming::Bad(413));
            }
            Some(self.take(stream, length)?)
        };
        let Some(body) = body else {
            return Ok(Incoming::Bad(413));
        };
        Ok(Incoming::Request(head, body))
    }

    fn take(&mut self, stream: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill(stream)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    fn line(&mut self, stream: &mut impl Read) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.buffer.len() > MAX_HEAD || self.fill(stream)? == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// A chunked body; none when it is too large.
    fn chunks(&mut self, stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
        let mut body = Vec::new();
        loop {
            let line = self.line(stream)?;
            let size = line.split(';').next().unwrap_or("").trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
            if size == 0 {
                while !self.line(stream)?.is_empty() {}
                return Ok(Some(body));
            }
            if size > MAX_BODY || body.len() + size > MAX_BODY {
                return Ok(None);
            }
            body.extend(self.take(stream, size)?);
            self.line(stream)?;
        }
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        409 => "Conflict",
        410 => "Gone",
        413 => "Request Entity Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}

/// How much of an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    Whole,
    /// The head and half of the body.
    Half,
}

/// An answer with a body that is known.
pub(crate) struct Answer<'a> {
    pub(crate) code: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
    /// Compress from this size on, when the client can read it.
    pub(crate) gzip_from: usize,
    pub(crate) portion: Portion,
}

fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

impl Answer<'_> {
    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.code, reason(self.code));
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.content_type.is_empty() {
            head.push_str(&format!("Content-Type: {}\r\n", self.content_type));
        }
        head
    }

    /// The bytes of the answer.
    pub(crate) fn encode(&self, request: &Head) -> Vec<u8> {
        let compressed;
        let mut head = self.head();
        let mut body = self.body;
        if body.len() >= self.gzip_from && !body.is_empty() && request.accepts_gzip() {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(1));
            compressed = encoder
                .write_all(body)
                .and_then(|()| encoder.finish())
                .unwrap_or_default();
            body = &compressed;
            head.push_str("Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n");
        }
        let sent = match self.portion {
            Portion::Whole => body,
            Portion::Half => &body[..body.len() / 2],
        };
        let mut out;
        let plain = body.len() <= MAX_PLAIN && body.as_ptr() == self.body.as_ptr();
        if request.method == "HEAD" {
            head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
            return head.into_bytes();
        }
        if plain {
            head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
            out = head.into_bytes();
            out.extend_from_slice(sent);
        } else {
            head.push_str("Transfer-Encoding: chunked\r\n\r\n");
            out = head.into_bytes();
            for part in sent.chunks(CHUNK) {
                chunk(&mut out, part);
            }
            if self.portion == Portion::Whole {
                out.extend_from_slice(b"0\r\n\r\n");
            }
        }
        out
    }

    /// The head of an answer whose body is a stream of chunks.
    pub(crate) fn encode_stream_head(&self) -> Vec<u8> {
        let mut head = self.head();
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        head.into_bytes()
    }
}

/// One chunk of a stream.
pub(crate) fn stream_chunk(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 16);
    chunk(&mut out, data);
    out
}

/// The end of a stream.
pub(crate) const STREAM_END: &[u8] = b"0\r\n\r\n";
