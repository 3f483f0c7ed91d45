//! HTTP/1.1 with a provider over its unix socket: one request a connection.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::UnixStream,
    },
    path::PathBuf,
};

use async_io::{Async, Timer};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::wire::{ProviderCall, ProviderError, ProviderRequest, ProviderResponse, ProviderWire};
use crate::{
    net::http_response::{BodyFraming, ResponseHead},
    sys::turn,
};

/// Header with the version of the protocol, which both sides send in each head.
const VERSION_HEADER: &str = "picolet-provider";
const VERSION: &str = "1";
/// Method of requests for a connection.
const UPGRADING: &str = "POST";
/// Opening status of a call that opens no stream: no answer has it, so every answer is read whole.
const NOTHING: u16 = 0;
/// Protocol of streams in `UpgradeRequest`.
const PROTOCOL: &str = "picolet-stream";
/// Most bytes of the head of an answer.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most header lines of an answer.
const MAX_HEADERS: usize = 32;
/// Most bytes of a refusal that are passed on.
const MAX_REFUSAL_BYTES: usize = 512;
/// Bytes read at a time.
const STEP_BYTES: usize = 4096;
/// Permissions that the socket must not have: those of group and others.
const OTHERS: u32 = 0o077;

/// The socket of a provider.
#[derive(Clone, Debug)]
pub(crate) struct ProviderSocket(PathBuf);

/// A body as it comes.
pub(crate) struct StreamedBody {
    socket: Async<UnixStream>,
    /// Bytes that were read, but not passed on.
    ahead: Vec<u8>,
    framing: BodyFraming,
    /// Bytes of framing since the last piece of the body.
    framed: usize,
}

impl ProviderSocket {
    /// Names the socket at that path; nobody need listen yet.
    #[must_use]
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Connects to the socket if it is root's, and root listens: the listener is told secrets (PRVD-02).
    async fn connect(&self) -> Result<Async<UnixStream>, ProviderError> {
        let path = &self.0;
        let meta = fs::symlink_metadata(path).map_err(ProviderError::Unreachable)?;
        let untrusted = |why: &str| ProviderError::Untrusted(format!("{} {why}", path.display()));
        if !meta.file_type().is_socket() {
            return Err(untrusted("is no socket"));
        }
        if meta.uid() != 0 || meta.mode() & OTHERS != 0 {
            return Err(untrusted("must be root's, with mode 0600"));
        }
        let socket = Async::<UnixStream>::connect(path);
        let socket = socket.await.map_err(ProviderError::Unreachable)?;
        let peer = getsockopt(&socket, PeerCredentials)
            .map_err(|e| ProviderError::Unreachable(e.into()))?;
        if peer.uid() != 0 {
            return Err(untrusted("is served by a process that is not root's"));
        }
        Ok(socket)
    }

    /// Asks, within the time of the request. With status `opens` the body is left to the caller, else it is read.
    fn exchange_in_time(
        &self,
        request: ProviderRequest,
        opens: u16,
    ) -> ProviderCall<'_, (ProviderResponse, StreamedBody)> {
        let time = request.time;
        let late = async move {
            Timer::after(time).await;
            Err(ProviderError::Slow(time))
        };
        Box::pin(smol::future::or(
            self.exchange_request(request, opens),
            late,
        ))
    }

    async fn exchange_request(
        &self,
        request: ProviderRequest,
        opens: u16,
    ) -> Result<(ProviderResponse, StreamedBody), ProviderError> {
        let mut socket = self.connect().await?;
        let ProviderRequest {
            method,
            target,
            body,
            limit,
            ..
        } = request;
        let (connection, header, kind) = if method == UPGRADING {
            ("Upgrade", "Upgrade", PROTOCOL)
        } else {
            ("close", "Content-Type", "application/json")
        };
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: provider\r\n{VERSION_HEADER}: {VERSION}\r\nConnection: {connection}\r\n\
             {header}: {kind}\r\nContent-Length: {length}\r\n\r\n"
        );
        for part in [head.as_bytes(), &body] {
            let sent = socket.write_all(part).await;
            sent.map_err(ProviderError::Unreachable)?;
        }
        let mut body = StreamedBody::from_connection(socket);
        let status = body.read_head().await?;
        let mut all = Vec::new();
        if status == opens {
            return Ok((ProviderResponse { status, body: all }, body));
        }
        let is_answer = opens == NOTHING && (status < 300 || status == 404);
        let limit = if is_answer { limit } else { MAX_REFUSAL_BYTES };
        while let Some(piece) = body.next_piece().await? {
            let room = limit - all.len();
            if piece.len() > room && is_answer {
                return Err(ProviderError::TooLarge(limit));
            }
            all.extend_from_slice(&piece[..piece.len().min(room)]);
            if all.len() == limit && !is_answer {
                break;
            }
            turn::yield_to_others().await;
        }
        if is_answer {
            return Ok((ProviderResponse { status, body: all }, body));
        }
        let text = String::from_utf8_lossy(&all);
        let text = text.trim().replace(|c: char| c.is_control(), " ");
        Err(ProviderError::Refused { status, text })
    }
}

impl ProviderWire for ProviderSocket {
    fn send_request(&self, request: ProviderRequest) -> ProviderCall<'_, ProviderResponse> {
        let asked = self.exchange_in_time(request, NOTHING);
        Box::pin(async { Ok(asked.await?.0) })
    }

    fn open_stream(&self, method: &'static str, target: String) -> ProviderCall<'_, StreamedBody> {
        let opens = if method == UPGRADING { 101 } else { 200 };
        let opened = self.exchange_in_time(ProviderRequest::new(method, target), opens);
        Box::pin(async { Ok(opened.await?.1) })
    }
}

impl StreamedBody {
    /// Makes the body of a new connection, which begins with a head.
    pub(super) const fn from_connection(socket: Async<UnixStream>) -> Self {
        Self {
            socket,
            ahead: Vec::new(),
            framing: BodyFraming::ToEnd,
            framed: 0,
        }
    }

    /// Returns the connection itself, at the end of the answer's head that opened it.
    #[must_use]
    pub(crate) fn into_socket(self) -> Async<UnixStream> {
        self.socket
    }

    /// Reads the head, byte by byte, for the bytes behind it may be read by another. Heads of a socket on this machine
    /// are short.
    pub(super) async fn read_head(&mut self) -> Result<u16, ProviderError> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_HEAD_BYTES {
                return Err(ProviderError::TooLarge(MAX_HEAD_BYTES));
            }
            let n = self.socket.read(&mut byte).await;
            if n.map_err(ProviderError::Unreachable)? == 0 {
                let cut = io::ErrorKind::UnexpectedEof;
                return Err(ProviderError::Unreachable(cut.into()));
            }
            head.push(byte[0]);
            if head.len() % STEP_BYTES == 0 {
                turn::yield_to_others().await;
            }
        }
        let (status, framing) = parse_answer_head(&head)?;
        self.framing = framing;
        Ok(status)
    }

    /// Reads the next piece of the body; `None` at its end.
    ///
    /// - Errors: the body breaks off, or is malformed.
    pub(crate) async fn next_piece(&mut self) -> Result<Option<Vec<u8>>, ProviderError> {
        // Bounded: each round consumes bytes, or reads and lets others have their turn.
        loop {
            let mut rest = &*self.ahead;
            let piece = self.framing.next_piece(&mut rest);
            let piece = piece.map_err(|e| ProviderError::Nonsense(e.to_string()))?;
            let (piece, taken) = (piece.to_vec(), self.ahead.len() - rest.len());
            self.ahead.drain(..taken);
            if !piece.is_empty() {
                self.framed = 0;
                return Ok(Some(piece));
            }
            self.framed += taken;
            if self.framed > MAX_HEAD_BYTES {
                return Err(ProviderError::Nonsense("a chunk without a size".into()));
            }
            if self.framing.is_over() {
                return Ok(None);
            }
            let known = self.ahead.len();
            self.ahead.resize(known + STEP_BYTES, 0);
            let read = self.socket.read(&mut self.ahead[known..]).await;
            let n = read.as_ref().map_or(0, |n| *n);
            self.ahead.truncate(known + n);
            if read.map_err(ProviderError::Unreachable)? == 0 {
                if self.framing == BodyFraming::ToEnd {
                    return Ok(None);
                }
                let cut = io::ErrorKind::UnexpectedEof;
                return Err(ProviderError::Unreachable(cut.into()));
            }
            turn::yield_to_others().await;
        }
    }
}

/// Reads status and end of the body from a head. The provider has to speak the protocol's version.
fn parse_answer_head(head: &[u8]) -> Result<(u16, BodyFraming), ProviderError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let nonsense = |why: String| ProviderError::Nonsense(why);
    let parsed = ResponseHead::parse(head, &mut headers).map_err(|e| nonsense(e.to_string()))?;
    let head = parsed.ok_or_else(|| nonsense("its head is cut short".into()))?;
    if head.header_value(VERSION_HEADER).as_deref() != Some(VERSION) {
        return Err(nonsense(format!(
            "it does not say {VERSION_HEADER}: {VERSION}"
        )));
    }
    let framing = head.body_framing();
    let framing = framing.map_err(|e| nonsense(e.to_string()))?;
    Ok((head.status, framing))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn heads() {
        // PRVD-02
        let of = |text: &str| parse_answer_head(text.as_bytes()).map_err(|e| e.to_string());
        let own = "picolet-provider: 1\r\n";
        for (text, want) in [
            (
                format!("HTTP/1.1 200 OK\r\n{own}\r\n"),
                (200, BodyFraming::ToEnd),
            ),
            (
                format!("HTTP/1.1 404 x\r\n{own}Content-Length: 3\r\n\r\n"),
                (404, BodyFraming::Length(3)),
            ),
            (
                format!("HTTP/1.1 200 x\r\n{own}Transfer-Encoding: chunked\r\n\r\n"),
                (200, BodyFraming::CHUNKED),
            ),
            (
                format!("HTTP/1.1 204 x\r\n{own}\r\n"),
                (204, BodyFraming::Length(0)),
            ),
        ] {
            assert_eq!(of(&text), Ok(want), "{text}");
        }
        for (text, why) in [
            (
                "HTTP/1.1 200 OK\r\n\r\n",
                "does not say picolet-provider: 1",
            ),
            (
                "HTTP/1.1 200 OK\r\npicolet-provider: 2\r\n\r\n",
                "does not say picolet-provider: 1",
            ),
            ("SSH-2.0-x\r\n\r\n", "not understood"),
        ] {
            assert!(of(text).is_err_and(|e| e.contains(why)), "{text}");
        }
        let bad = format!("HTTP/1.1 200 x\r\n{own}Content-Length: -1\r\n\r\n");
        assert!(of(&bad).is_err_and(|e| e.contains("Content-Length")));
    }

    /// Reads a body that comes in pieces of `size` bytes.
    fn read(text: &str, framing: BodyFraming, size: usize) -> Result<String, String> {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let text = text.as_bytes().to_vec();
        let writer = std::thread::spawn(move || {
            for piece in text.chunks(size) {
                let _ = io::Write::write_all(&mut &theirs, piece);
            }
        });
        let mut body = StreamedBody {
            socket: Async::new(ours).expect("socket"),
            ahead: Vec::new(),
            framing,
            framed: 0,
        };
        let all = smol::block_on(async {
            let mut all = Vec::new();
            while let Some(piece) = body.next_piece().await? {
                all.extend_from_slice(&piece);
            }
            Ok::<_, ProviderError>(all)
        });
        writer.join().expect("writer");
        all.map(|all| String::from_utf8_lossy(&all).into_owned())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn bodies_in_any_pieces() {
        let chunked = "5;x=1\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
        for size in 1..chunked.len() {
            let whole = read(chunked, BodyFraming::CHUNKED, size);
            assert_eq!(whole.as_deref(), Ok("hello world"), "by {size}");
        }
        let endless = format!("1;{}", "x".repeat(2 * MAX_HEAD_BYTES));
        let refused =
            read(&endless, BodyFraming::CHUNKED, 1000).expect_err("a line without an end");
        assert!(refused.contains("a chunk without a size"), "{refused}");
        assert_eq!(read("abc", BodyFraming::Length(2), 1).as_deref(), Ok("ab"));
        assert_eq!(read("abc", BodyFraming::ToEnd, 2).as_deref(), Ok("abc"));
        for (text, framing) in [
            ("ab", BodyFraming::Length(3)),
            ("5\r\nhel", BodyFraming::CHUNKED),
            ("x\r\n", BodyFraming::CHUNKED),
        ] {
            assert!(read(text, framing, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn too_slow_and_too_much() {
        // PRVD-02
        if !nix::unistd::geteuid().is_root() {
            skipped!("too_slow_and_too_much needs root: a provider's socket is root's");
            return;
        }
        let path = crate::testing::unused_path("provider");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("socket");
        let allow = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&path, mode).expect("mode");
        };
        let socket = ProviderSocket::new(path.clone());
        let ask = |limit| {
            let time = Duration::from_millis(200);
            let request = ProviderRequest {
                limit,
                time,
                ..ProviderRequest::new("GET", "/pods")
            };
            smol::block_on(socket.send_request(request))
        };
        allow(0o660);
        assert!(matches!(ask(9), Err(ProviderError::Untrusted(_))));
        allow(0o600);
        // Nobody answers.
        assert!(matches!(ask(9), Err(ProviderError::Slow(_))));
        let _ = listener.accept().expect("the one before");
        let server = std::thread::spawn(move || {
            let head = "HTTP/1.1 200 OK\r\npicolet-provider: 1\r\n\r\n";
            for body in ["123456789", "1234567890"] {
                let (mut peer, _) = listener.accept().expect("a client");
                let _ = io::Write::write_all(&mut peer, format!("{head}{body}").as_bytes());
                // Closed before it has read everything, the client would hear of nothing else.
                let _ = io::Read::read(&mut peer, &mut [0; 4096]);
            }
        });
        assert_eq!(ask(9).expect("fits").body, b"123456789");
        assert!(matches!(ask(9), Err(ProviderError::TooLarge(9))));
        server.join().expect("server");
        fs::remove_file(path).expect("clean");
    }
}
