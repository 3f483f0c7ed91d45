//! HTTP/1.1 as far as it is needed here: bounded heads, answers whole or streamed.

use alloc::collections::BTreeMap;
use std::io;

use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub use super::connection::StreamConnection;
use crate::sys::turn;

/// Bytes of a request head (request line and header lines). The words of a command stand in its first line.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Header lines of a request. An apiserver passes on what its own client sent, and adds to it.
pub const MAX_HEADERS: usize = 64;
/// Header line for a client that asks too much: a minute later there may be room.
const RETRY_LATER: &str = "Retry-After: 60\r\n";
/// Query parameters of a request (each word of an exec command is one).
pub const MAX_QUERY: usize = 256;

/// The head of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// Method, upper case as sent.
    pub method: String,
    /// Path segments, percent-decoded; no empty ones.
    pub path: Vec<String>,
    /// The path is written as it is understood: no empty segment but one at its end, no `.` or `..`, and nothing in a
    /// segment that another reader could take for a separator.
    pub is_plain: bool,
    /// Query parameters in order, decoded.
    pub query: Vec<(String, String)>,
    /// Header lines in order, at most [`MAX_HEADERS`]; see [`HttpRequest::header_value`].
    pub headers: Vec<(String, String)>,
    /// Value of `Content-Length`; 0 if absent.
    pub content_length: u64,
    /// The body comes in chunks, and its length is not known.
    pub is_chunked: bool,
    /// The client speaks HTTP/1.1, not 1.0.
    pub is_1_1: bool,
    /// Sender of the request.
    pub origin: RequestOrigin,
}

/// Origin of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestOrigin {
    /// The local socket: root of this machine, who may do everything.
    #[default]
    Local,
    /// The network: a user who was authenticated, and may do what the request asks for.
    Network(UserIdentity),
}

/// A user, as the apiserver knows users.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserIdentity {
    /// User name.
    pub name: String,
    /// UID of the user, may be empty.
    pub uid: String,
    /// Groups in the order that the credential names them.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Reason why a request cannot be served: the status to answer and a text for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// HTTP status code.
    pub status: u16,
    /// Text for the client.
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
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// 404 with `message`.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, message)
    }
}

impl HttpRequest {
    /// Value of the first header line of this name, of whatever case.
    #[must_use]
    pub fn header_value(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter();
        lines.find_map(|(k, v)| k.eq_ignore_ascii_case(name).then_some(v.as_str()))
    }

    /// Values of all header lines of this name, in order.
    pub fn headers_named<'a, 'n: 'a>(
        &'a self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let lines = self.headers.iter();
        lines.filter_map(move |(k, v)| k.eq_ignore_ascii_case(name).then_some(v.as_str()))
    }

    /// Returns true if the client does not ask to close this connection: it may send another request.
    pub(super) fn keeps_connection(&self) -> bool {
        let closes = self
            .headers_named("connection")
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("close"));
        self.is_1_1 && !closes
    }

    /// First value of query parameter `name`.
    #[must_use]
    pub fn query_param(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// Returns true if parameter `name` is `true` or `1`.
    #[must_use]
    pub fn query_flag(&self, name: &str) -> bool {
        matches!(self.query_param(name), Some("true" | "1"))
    }

    /// Parameter `name` as a number; 400 if it is there and none.
    pub fn query_number<T: core::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        match self.query_param(name) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Refusal::bad_request(format!("{name}: {text:?} is not a valid number"))
            }),
        }
    }
}

/// Reads the head of one request, and parses it once its end is there. `None` if the client left before sending any.
/// Bytes behind the head stay in the connection. Dropping the future before it ends loses the bytes that were read.
/// Everybody else has a turn after each read, however much there is to read.
pub async fn read_request(
    connection: &mut StreamConnection,
) -> io::Result<Result<Option<HttpRequest>, Refusal>> {
    // Grown when it is full: what a client sends byte by byte is not moved each time.
    let mut head = Vec::new();
    let mut at = 0;
    let mut end = HeadEnd::default();
    loop {
        if at >= MAX_HEAD_BYTES {
            return Ok(Err(Refusal::new(
                431,
                format!("request head is over {MAX_HEAD_BYTES} bytes"),
            )));
        }
        if at == head.len() {
            head.resize((at + at.max(1024)).min(MAX_HEAD_BYTES), 0);
        }
        let n = connection.read(&mut head[at..]).await?;
        if n == 0 {
            return Ok(match at {
                0 => Ok(None),
                _ => Err(Refusal::bad_request("request head is cut short")),
            });
        }
        let new = at..at + n;
        at = new.end;
        if let Some(length) = end.find_end(&head[new.clone()]) {
            let stop = new.start + length;
            connection.push_back_bytes(&head[stop..at]);
            return Ok(match parse_request_head(&head[..stop]) {
                Ok(Some((request, _))) => Ok(Some(request)),
                Ok(None) => Err(Refusal::bad_request(
                    "malformed request: a line is cut short",
                )),
                Err(refusal) => Err(refusal),
            });
        }
        turn::yield_to_others().await;
    }
}

/// Looks for the empty line that ends a head, at each byte once. Empty lines before the first one that is not are none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadEnd {
    /// A line was there.
    begun: bool,
    line: HeadLineState,
}

/// State of the line that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeadLineState {
    #[default]
    Empty,
    /// Only a carriage return so far.
    Return,
    Text,
}

impl HeadEnd {
    /// Takes the next bytes. `Some`: the head ends behind so many of them.
    pub(super) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            self.line = match (byte, self.line) {
                (b'\n', HeadLineState::Text) => {
                    self.begun = true;
                    HeadLineState::Empty
                }
                (b'\n', _) if self.begun => return Some(at + 1),
                (b'\n', _) => HeadLineState::Empty,
                (b'\r', HeadLineState::Empty) => HeadLineState::Return,
                _ => HeadLineState::Text,
            };
        }
        None
    }
}

/// Parses `head` and says where it ends; `None` while it is incomplete.
fn parse_request_head(head: &[u8]) -> Result<Option<(HttpRequest, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut raw = httparse::Request::new(&mut headers);
    let body_at = match raw.parse(head) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(Refusal::bad_request(format!("malformed request: {e}"))),
    };
    let target = raw.path.unwrap_or("");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = HttpRequest {
        method: raw.method.unwrap_or("").to_owned(),
        is_plain: is_plain_path(path),
        is_1_1: raw.version == Some(1),
        ..HttpRequest::default()
    };
    for segment in path.split('/').filter(|s| !s.is_empty()) {
        let segment =
            percent_decode(segment, false).ok_or_else(|| Refusal::bad_request("malformed path"))?;
        request.is_plain &= !segment.contains(['/', '\\', ';']) && !matches!(&*segment, "." | "..");
        request.is_plain &= !segment.contains(|c: char| c.is_control());
        request.path.push(segment);
    }
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        if request.query.len() >= MAX_QUERY {
            return Err(Refusal::bad_request(format!(
                "more than {MAX_QUERY} query parameters"
            )));
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let both = percent_decode(name, true).zip(percent_decode(value, true));
        request
            .query
            .push(both.ok_or_else(|| Refusal::bad_request("malformed query"))?);
    }
    for header in raw.headers.iter() {
        let value = String::from_utf8_lossy(header.value).into_owned();
        if header.name.eq_ignore_ascii_case("content-length") {
            // A number has digits and nothing else (RFC 9110, section 8.6): others read a sign differently.
            let length = match value.bytes().all(|b| b.is_ascii_digit()) {
                true => value.parse().ok(),
                false => None,
            };
            let length = length.ok_or_else(|| Refusal::bad_request("malformed Content-Length"))?;
            // Two that differ are how a request is smuggled behind another.
            if request.header_value("content-length").is_some() && request.content_length != length
            {
                return Err(Refusal::bad_request("two different Content-Lengths"));
            }
            request.content_length = length;
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !request.is_1_1 || !value.trim().eq_ignore_ascii_case("chunked") {
                let text = format!("Transfer-Encoding {value:?} is not understood");
                return Err(Refusal::new(501, text));
            }
            request.is_chunked = true;
        }
        request.headers.push((header.name.to_owned(), value));
    }
    // Two readers of one length each do not see the same end.
    if request.is_chunked
        && (request.header_value("content-length").is_some()
            || request.headers_named("transfer-encoding").count() > 1)
    {
        return Err(Refusal::bad_request("a body of two lengths"));
    }
    Ok(Some((request, body_at)))
}

/// Returns true if no segment is empty but one at the end; see [`HttpRequest::is_plain`].
fn is_plain_path(path: &str) -> bool {
    let below = path.strip_prefix('/');
    below.is_some_and(|p| p.is_empty() || !p.starts_with('/') && !p.contains("//"))
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// Runs the parser for [`crate::fuzz`].
    pub(crate) fn run(data: &[u8]) -> String {
        match parse_request_head(&data[..data.len().min(MAX_HEAD_BYTES)]) {
            Ok(Some((request, end))) => {
                assert!(end <= data.len() && request.headers.len() <= MAX_HEADERS);
                assert_eq!(HeadEnd::default().find_end(data), Some(end));
                assert!(request.query.len() <= MAX_QUERY);
                assert!(request.path.iter().all(|segment| !segment.is_empty()));
                for (_, value) in &request.query {
                    assert_eq!(
                        percent_decode(&percent_encode(value), true).as_ref(),
                        Some(value)
                    );
                }
                let body = if request.is_chunked {
                    super::super::chunked::fuzz::run(&data[end..])
                } else {
                    String::new()
                };
                format!(
                    "ok {} {} {} {body}",
                    request.path.len().min(3),
                    request.is_plain,
                    request.header_value("upgrade").is_some()
                )
            }
            Ok(None) => "incomplete".into(),
            Err(refusal) => refusal.message,
        }
    }
}

/// Percent-decodes `text`. `None` if it is malformed or not UTF-8.
fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            _ => b,
        });
    }
    String::from_utf8(out).ok()
}

/// Percent-encodes everything but unreserved characters.
#[must_use]
pub fn percent_encode(text: &str) -> String {
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

const fn reason_phrase(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        409 => "Conflict",
        413 => "Content Too Large",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    }
}

/// Answers with a whole body.
pub async fn send_response(
    connection: &mut StreamConnection,
    status: u16,
    kind: &str,
    body: &[u8],
) -> io::Result<()> {
    send_response_with_headers(connection, status, kind, "", body).await
}

/// Answers with a whole body and further header lines, each with its end.
pub async fn send_response_with_headers(
    connection: &mut StreamConnection,
    status: u16,
    kind: &str,
    lines: &str,
    body: &[u8],
) -> io::Result<()> {
    let answer = connection.answer;
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\n{lines}Content-Length: {}\r\n{}\r\n",
        reason_phrase(status),
        body.len(),
        close_header(answer.keep),
    );
    connection.write_all(head.as_bytes()).await?;
    if !answer.head_only {
        connection.write_all(body).await?;
    }
    connection.flush().await
}

const fn close_header(keep: bool) -> &'static str {
    if keep { "" } else { "Connection: close\r\n" }
}

/// Answers a refusal as plain text.
pub async fn send_refusal(connection: &mut StreamConnection, refusal: &Refusal) -> io::Result<()> {
    let lines = match refusal.status {
        429 => RETRY_LATER,
        _ => "",
    };
    send_refusal_with_headers(connection, refusal, lines).await
}

/// Answers a refusal as plain text, with further header lines, each with its end.
pub async fn send_refusal_with_headers(
    connection: &mut StreamConnection,
    refusal: &Refusal,
    lines: &str,
) -> io::Result<()> {
    let body = refusal.message.as_bytes();
    let kind = "text/plain";
    send_response_with_headers(connection, refusal.status, kind, lines, body).await
}

/// An answer that grows. One that is dropped before [`AnswerStream::finish_answer`] is cut short, and its connection with it.
#[derive(Debug)]
pub struct AnswerStream<'a> {
    connection: &'a mut StreamConnection,
    /// Set if another request may follow on this connection.
    keep: bool,
}

/// Starts an answer of unknown length; its head is sent at once.
pub async fn start_answer_stream<'a>(
    connection: &'a mut StreamConnection,
    kind: &str,
) -> io::Result<AnswerStream<'a>> {
    start_stream_with_headers(connection, kind, "").await
}

/// Starts an answer of unknown length with further header lines, each with its end.
pub async fn start_stream_with_headers<'a>(
    connection: &'a mut StreamConnection,
    kind: &str,
    lines: &str,
) -> io::Result<AnswerStream<'a>> {
    let answer = connection.answer;
    let (keep, coding) = match answer.chunked {
        true => (answer.keep, "Transfer-Encoding: chunked\r\n"),
        // The answer ends with the connection.
        false => (false, ""),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{lines}{coding}{}\r\n",
        close_header(keep)
    );
    connection.answer.keep = false;
    connection.write_all(head.as_bytes()).await?;
    connection.flush().await?;
    Ok(AnswerStream { connection, keep })
}

impl AnswerStream<'_> {
    /// Sends more of it, now.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() || self.connection.answer.head_only {
            return Ok(());
        }
        if self.connection.answer.chunked {
            let head = format!("{:x}\r\n", bytes.len());
            self.connection.write_all(head.as_bytes()).await?;
            self.connection.write_all(bytes).await?;
            self.connection.write_all(b"\r\n").await?;
        } else {
            self.connection.write_all(bytes).await?;
        }
        self.connection.flush().await
    }

    /// See [`StreamConnection::carried_bytes`].
    pub(super) const fn carried_bytes(&self) -> u64 {
        self.connection.carried_bytes()
    }

    /// See [`StreamConnection::has_hung_up`].
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.connection.has_hung_up()
    }

    /// Waits until the client leaves; see [`StreamConnection::wait_for_close`].
    pub async fn wait_for_close(&mut self) {
        self.connection.wait_for_close().await;
    }

    /// Ends it: this was all.
    pub async fn finish_answer(self) -> io::Result<()> {
        let answer = self.connection.answer;
        if answer.chunked && !answer.head_only {
            self.connection.write_all(b"0\r\n\r\n").await?;
        }
        self.connection.answer.keep = self.keep;
        self.connection.flush().await
    }
}

/// Answers 101: all further bytes are of `protocol`, until the connection ends. `more` is further header lines, each
/// with its end.
pub async fn switch_protocols(
    connection: &mut StreamConnection,
    protocol: &str,
    more: &str,
) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n{more}\r\n"
    );
    connection.answer.keep = false;
    connection.write_all(head.as_bytes()).await?;
    connection.flush().await
}

#[cfg(test)]
mod tests {
    use super::{
        super::{connection::testing::Eager, testing::cpu_time},
        *,
    };

    #[test]
    fn heads() {
        let text = b"POST /exec/ns/a%20b/c?command=sh&command=-c&command=a%26b+c&tty=true HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nabc";
        let (request, end) = parse_request_head(text).expect("valid").expect("complete");
        assert_eq!(request.path, ["exec", "ns", "a b", "c"]);
        let words: Vec<_> = request
            .query
            .iter()
            .filter(|(k, _)| k == "command")
            .map(|(_, v)| v.as_str())
            .collect();
        assert_eq!(words, ["sh", "-c", "a&b c"]);
        assert!(request.query_flag("tty"));
        assert_eq!(
            (request.content_length, &text[end..]),
            (3, b"abc".as_slice())
        );
        assert_eq!(request.header_value("uPGRADE"), Some("x"));
        assert!(request.is_1_1 && request.origin == RequestOrigin::Local);
        for cut in 1..text.len() - 3 {
            assert_eq!(parse_request_head(&text[..cut]), Ok(None), "cut at {cut}");
        }
        for bad in [
            "GET /%zz HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: \r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "GET / HTTP/9\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-length: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse_request_head(bad.as_bytes()).is_err(), "{bad}");
        }
        let many = format!("GET /?{} HTTP/1.1\r\n\r\n", "a=b&".repeat(MAX_QUERY + 1));
        assert!(parse_request_head(many.as_bytes()).is_err());
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert!(parse_request_head(many.as_bytes()).is_err());
    }

    #[test]
    fn a_head_is_looked_at_once() {
        // Byte by byte. Sixteen times as long takes sixteen times as long, not 256 times; a busy machine adds to either.
        let time = |bytes: usize| {
            let fill = bytes - "GET / HTTP/1.1\r\nA: \r\n\r\n".len();
            let text = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(fill));
            let one = || {
                let mut connection = StreamConnection::new(Eager::new(text.clone(), 1).0);
                let begin = cpu_time();
                let request = smol::block_on(read_request(&mut connection));
                let request = request.expect("read").expect("valid").expect("a request");
                assert_eq!(request.header_value("a").map(str::len), Some(fill));
                cpu_time() - begin
            };
            (0..5).map(|_| one()).min().expect("some")
        };
        let (short, long) = (time(MAX_HEAD_BYTES / 16), time(MAX_HEAD_BYTES));
        assert!(long < short * 64, "{short:?}, then {long:?}");
    }

    #[test]
    fn where_heads_end() {
        // Cut anywhere, the same is read, and what is behind it stays.
        for (text, behind) in [
            ("GET / HTTP/1.1\r\nA: b\r\n\r\n", "rest"),
            ("\r\n\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n", "\r\n"),
            ("GET / HTTP/1.1\nA: b\n\n", "\n"),
            ("GET / HTTP/1.1\r\nA: b\n\r\n", "GET / HTTP/1.1\r\n\r\n"),
        ] {
            let all = format!("{text}{behind}");
            for step in 1..=all.len() {
                let mut connection = StreamConnection::new(Eager::new(all.clone(), step).0);
                let request = smol::block_on(read_request(&mut connection));
                let request = request.expect("read").expect(text).expect("a request");
                assert_eq!(request.header_value("a"), Some("b"), "{text:?}");
                let mut rest = String::new();
                smol::block_on(connection.read_to_string(&mut rest)).expect("rest");
                assert_eq!(rest, behind, "{text:?} in steps of {step}");
            }
        }
        for (text, status) in [
            ("nonsense\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nA\r\n\r\n".into(), 400),
            ("GET / HTTP/1.1\r\nA: b\r\n".into(), 400),
            ("GET / HTTP/1.1\r\n\r\r\n".into(), 400),
            ("a".repeat(MAX_HEAD_BYTES + 1), 431),
            ("\r\n".repeat(MAX_HEAD_BYTES), 431),
        ] {
            let mut connection = StreamConnection::new(Eager::new(text.clone(), text.len()).0);
            let refusal = smol::block_on(read_request(&mut connection)).expect("read");
            let status_of = refusal.map_err(|refusal| refusal.status);
            assert_eq!(status_of, Err(status), "{:?}", text.get(..40));
        }
    }

    #[test]
    fn repeated_headers_are_kept() {
        let text = b"GET / HTTP/1.0\r\nX-Stream: v4\r\nx-stream: v3\r\n\r\n";
        let (request, _) = parse_request_head(text).expect("valid").expect("complete");
        let all: Vec<_> = request.headers_named("X-STREAM").collect();
        assert_eq!(all, ["v4", "v3"]);
        assert!(!request.is_1_1);
    }

    #[test]
    fn paths_with_tricks() {
        for (path, plain) in [
            ("/", true),
            ("/pods", true),
            ("/pods/", true),
            ("/exec/ns/a%20b/c", true),
            ("/metrics/resource?x=//;", true),
            ("//", false),
            ("//pods", false),
            ("/pods//", false),
            ("/metrics/../pods", false),
            ("/metrics/%2e%2e/pods", false),
            ("/metrics/./pods", false),
            ("/metrics%2fpods", false),
            ("/metrics%5cpods", false),
            ("/metrics;/pods", false),
            ("/metrics%3b/pods", false),
            ("/pods%00", false),
            ("*", false),
            ("http://node/pods", false),
        ] {
            let text = format!("GET {path} HTTP/1.1\r\n\r\n");
            let (request, _) = parse_request_head(text.as_bytes())
                .expect(path)
                .expect("complete");
            assert_eq!(request.is_plain, plain, "{path}");
        }
    }

    #[test]
    fn answers_are_chunked_where_the_client_knows_chunks() {
        use super::super::connection::{AnswerForm, testing::pair};
        let kept = AnswerForm {
            keep: true,
            chunked: true,
            head_only: false,
        };
        let whole = "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n";
        for (answer, wanted, keeps) in [
            (
                kept,
                "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                true,
            ),
            (AnswerForm::default(), "Connection: close\r\n\r\nabc", false),
            (
                AnswerForm {
                    head_only: true,
                    ..kept
                },
                "Transfer-Encoding: chunked\r\n\r\n",
                true,
            ),
        ] {
            let got = smol::block_on(async {
                let (mut connection, mut client) = pair();
                connection.answer = answer;
                let mut stream = start_answer_stream(&mut connection, "a/b")
                    .await
                    .expect("head");
                stream.send_bytes(b"").await.expect("nothing");
                stream.send_bytes(b"abc").await.expect("some");
                stream.finish_answer().await.expect("end");
                assert_eq!(connection.answer.keep, keeps);
                drop(connection);
                let mut got = String::new();
                client.read_to_string(&mut got).await.expect("read");
                got
            });
            assert_eq!(got, format!("{whole}{wanted}"));
        }
    }

    #[test]
    fn encoding_round_trips() {
        for text in ["", "a b", "äß%&=+/?", "plain-._~"] {
            assert_eq!(
                percent_decode(&percent_encode(text), true).as_deref(),
                Some(text)
            );
        }
    }
}
