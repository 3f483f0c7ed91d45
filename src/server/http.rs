//! HTTP/1.1 as far as the local socket needs it: one request a connection, bounded head, streamed answers.

use std::{io, os::unix::net::UnixStream};

use async_io::Async;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes of a request head (request line and header lines).
pub const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Header lines of a request.
pub const MAX_HEADERS: usize = 32;
/// Query parameters of a request (each word of an exec command is one).
pub const MAX_QUERY: usize = 256;

/// A connection of the local socket.
pub type Connection = Async<UnixStream>;

/// The head of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Method, upper case as sent.
    pub method: String,
    /// Path segments, percent-decoded; no empty ones.
    pub path: Vec<String>,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    /// Value of `Upgrade`, if any.
    pub upgrade: Option<String>,
    /// Value of `Content-Length`; 0 if absent.
    pub content_length: u64,
    /// Bytes of the body that came along with the head.
    pub early_body: Vec<u8>,
}

/// Why a request cannot be served: the status to answer and a text for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status code.
    pub status: u16,
    /// What is wrong.
    pub message: String,
}

impl Refusal {
    /// A refusal with `status` and `message`.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// 400 with `message`.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// 404 with `message`.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, message)
    }
}

impl Request {
    /// First value of query parameter `name`.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// Whether parameter `name` is `true` or `1`.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), Some("true" | "1"))
    }

    /// Parameter `name` as a number; 400 if it is there and none.
    pub fn number<T: core::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        match self.param(name) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| Refusal::bad(format!("{name}: {text:?} is not a valid number"))),
        }
    }
}

/// Reads and parses the head of one request. `None` if the client left before sending any.
pub async fn read_request(connection: &Connection) -> io::Result<Result<Option<Request>, Refusal>> {
    let mut head = Vec::new();
    let mut stream = connection;
    loop {
        let at = head.len();
        if at >= MAX_HEAD_BYTES {
            return Ok(Err(Refusal::new(
                431,
                format!("request head is over {MAX_HEAD_BYTES} bytes"),
            )));
        }
        head.resize((at + 1024).min(MAX_HEAD_BYTES), 0);
        let n = stream.read(&mut head[at..]).await?;
        head.truncate(at + n);
        if n == 0 {
            return Ok(if head.is_empty() {
                Ok(None)
            } else {
                Err(Refusal::bad("request head is cut short"))
            });
        }
        match parse(&head) {
            Ok(Some(request)) => return Ok(Ok(Some(request))),
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Parses `head`; `None` while it is incomplete.
fn parse(head: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut raw = httparse::Request::new(&mut headers);
    let body_at = match raw.parse(head) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(Refusal::bad(format!("malformed request: {e}"))),
    };
    let target = raw.path.unwrap_or("");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: raw.method.unwrap_or("").to_owned(),
        early_body: head[body_at..].to_vec(),
        ..Request::default()
    };
    for segment in path.split('/').filter(|s| !s.is_empty()) {
        request
            .path
            .push(decode(segment, false).ok_or_else(|| Refusal::bad("malformed path"))?);
    }
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        if request.query.len() >= MAX_QUERY {
            return Err(Refusal::bad(format!(
                "more than {MAX_QUERY} query parameters"
            )));
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let both = decode(name, true).zip(decode(value, true));
        request
            .query
            .push(both.ok_or_else(|| Refusal::bad("malformed query"))?);
    }
    for header in raw.headers.iter() {
        let value = core::str::from_utf8(header.value).unwrap_or("");
        if header.name.eq_ignore_ascii_case("upgrade") {
            request.upgrade = Some(value.to_owned());
        } else if header.name.eq_ignore_ascii_case("content-length") {
            request.content_length = value
                .parse()
                .map_err(|_| Refusal::bad("malformed Content-Length"))?;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Refusal::new(
                501,
                "chunked request bodies are not supported",
            ));
        }
    }
    Ok(Some(request))
}

/// For [`crate::fuzz`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) -> String {
    match parse(&data[..data.len().min(MAX_HEAD_BYTES)]) {
        Ok(Some(request)) => {
            assert!(request.query.len() <= MAX_QUERY);
            assert!(request.path.iter().all(|segment| !segment.is_empty()));
            for (_, value) in &request.query {
                assert_eq!(decode(&encode(value), true).as_ref(), Some(value));
            }
            format!(
                "ok {} {}",
                request.path.len().min(3),
                request.upgrade.is_some()
            )
        }
        Ok(None) => "incomplete".into(),
        Err(refusal) => refusal.message,
    }
}

/// Percent-decodes `text`. `None` if it is malformed or not UTF-8.
fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => {
                let hex = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(core::str::from_utf8(&hex).ok()?, 16).ok()?
            }
            b'+' if plus_is_space => b' ',
            _ => b,
        });
    }
    String::from_utf8(out).ok()
}

/// Percent-encodes everything but unreserved characters.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

const fn reason(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// Answers with a whole body.
pub async fn respond(
    connection: &Connection,
    status: u16,
    kind: &str,
    body: &[u8],
) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        reason(status),
        body.len()
    );
    let mut stream = connection;
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await
}

/// Answers a refusal as plain text.
pub async fn refuse(connection: &Connection, refusal: &Refusal) -> io::Result<()> {
    respond(
        connection,
        refusal.status,
        "text/plain",
        refusal.message.as_bytes(),
    )
    .await
}

/// Starts an answer whose body ends with the connection.
pub async fn start_stream(connection: &Connection, kind: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n");
    let mut stream = connection;
    stream.write_all(head.as_bytes()).await
}

/// Answers 101: what follows is `protocol`.
pub async fn switch_protocols(connection: &Connection, protocol: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    );
    let mut stream = connection;
    stream.write_all(head.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let text = b"POST /exec/ns/a%20b/c?command=sh&command=-c&command=a%26b+c&tty=true HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nabc";
        let request = parse(text).expect("valid").expect("complete");
        assert_eq!(request.path, ["exec", "ns", "a b", "c"]);
        let words: Vec<_> = request
            .query
            .iter()
            .filter(|(k, _)| k == "command")
            .map(|(_, v)| v.as_str())
            .collect();
        assert_eq!(words, ["sh", "-c", "a&b c"]);
        assert!(request.flag("tty"));
        assert_eq!(
            (request.content_length, request.early_body.as_slice()),
            (3, b"abc".as_slice())
        );
        for cut in 1..text.len() - 3 {
            assert_eq!(parse(&text[..cut]), Ok(None), "cut at {cut}");
        }
        for bad in [
            "GET /%zz HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "GET / HTTP/9\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let many = format!("GET /?{} HTTP/1.1\r\n\r\n", "a=b&".repeat(MAX_QUERY + 1));
        assert!(parse(many.as_bytes()).is_err());
    }

    #[test]
    fn encoding_round_trips() {
        for text in ["", "a b", "äß%&=+/?", "plain-._~"] {
            assert_eq!(decode(&encode(text), true).as_deref(), Some(text));
        }
    }
}
