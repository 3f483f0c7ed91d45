//! `grpc.health.v1.Health/Check`, one call on a connection of its own. Row PROBE-23.
//!
//! HTTP/2 in plain text with prior knowledge: preface, settings and the whole request go out at once; of what comes back
//! only the first stream counts. Sources: RFC 9113, the gRPC protocol over HTTP/2, `grpc/health/v1/health.proto`.

use core::{cell::Cell, net::IpAddr, time::Duration};
use std::io;

use smol::future;

use super::{Answer, Late, Prober, VERSION, dial, go_duration, plain::Plain};
use crate::grpc::hpack::Decoder;

/// Bytes of frames that one answer may have.
const MAX_BYTES: usize = 64 * 1024;
/// Pieces in which it may come.
const MAX_PIECES: usize = 512;
/// Longest frame: what every peer keeps to unless told otherwise.
const MAX_FRAME_BYTES: usize = 16 * 1024;
const HEAD_BYTES: usize = 9;
/// Longest block of headers.
const MAX_BLOCK_BYTES: usize = 16 * 1024;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &str = "/grpc.health.v1.Health/Check";
/// The one stream.
const STREAM: u32 = 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

const UNIMPLEMENTED: u32 = 12;
const DEADLINE_EXCEEDED: u32 = 4;
/// Names of gRPC's status codes.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Probes once. Never [`Answer::Error`].
pub(super) async fn probe(
    prober: &Prober,
    ip: Option<IpAddr>,
    port: u16,
    service: &str,
    limit: Duration,
    late: Late,
) -> Answer {
    let address = dial::shown("", ip, port);
    let limit = go_duration(limit);
    let connected = Cell::new(false);
    let ask = async {
        let socket = match dial::connect(prober, "", ip, port).await {
            Ok(socket) => socket,
            Err(text) => {
                let text = format!("error: failed to connect service at {address:?}: {text}");
                return Answer::Failure(text);
            }
        };
        connected.set(true);
        let timed_out = || format!("timeout: health rpc did not complete within {limit}");
        let text = match call(socket, &address, service).await {
            Ok(Health::Serving) => return Answer::Success,
            Ok(Health::Other(name)) => format!("service unhealthy (responded with {name:?})"),
            Err(Refusal {
                code: UNIMPLEMENTED,
                message,
            }) => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ),
            Err(Refusal {
                code: DEADLINE_EXCEEDED,
                ..
            }) => timed_out(),
            Err(Refusal { code, message }) => {
                let name = usize::try_from(code).ok().and_then(|code| CODES.get(code));
                let name = name.map_or_else(|| format!("Code({code})"), |name| (*name).into());
                format!("error: health rpc probe failed: rpc error: code = {name} desc = {message}")
            }
        };
        Answer::Failure(text)
    };
    let late = async {
        late.await;
        Answer::Failure(if connected.get() {
            format!("timeout: health rpc did not complete within {limit}")
        } else {
            format!(
                "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
            )
        })
    };
    future::or(ask, late).await
}

/// What the service says of itself.
#[derive(Debug, PartialEq, Eq)]
enum Health {
    Serving,
    Other(String),
}

/// An end without an answer, as a gRPC status.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    code: u32,
    message: String,
}

fn unavailable(message: impl Into<String>) -> Refusal {
    Refusal {
        code: 14,
        message: message.into(),
    }
}

fn internal(message: impl Into<String>) -> Refusal {
    Refusal {
        code: 13,
        message: message.into(),
    }
}

async fn call(mut socket: Plain, authority: &str, service: &str) -> Result<Health, Refusal> {
    let broken = |e: io::Error| unavailable(format!("connection error: {}", dial::text(&e)));
    socket
        .write_all(&request(authority, service))
        .await
        .map_err(broken)?;
    let mut reply = Reply::default();
    let mut bytes = Vec::new();
    let mut total = 0;
    for _ in 0..MAX_PIECES {
        let mut piece = [0; 1024];
        let len = socket.read(&mut piece).await.map_err(broken)?;
        if len == 0 {
            return Err(unavailable("connection closed before the answer"));
        }
        bytes.extend_from_slice(&piece[..len]);
        total += len;
        // Bounded: a piece has so many frames, and each piece is read in a turn of its own.
        while let Some((frame, rest)) = split(&bytes)? {
            let answer = reply.take(&frame)?;
            let rest = rest.to_vec();
            bytes = rest;
            if !answer.is_empty() {
                socket.write_all(&answer).await.map_err(broken)?;
            }
            if reply.ended {
                return reply.health();
            }
        }
        if total > MAX_BYTES {
            break;
        }
    }
    Err(internal("the answer is too long"))
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

/// The first frame, once it is whole, and what follows it.
fn split(bytes: &[u8]) -> Result<Option<(Frame<'_>, &[u8])>, Refusal> {
    let Some((&[a, b, c, kind, flags, s0, s1, s2, s3], rest)) =
        bytes.split_first_chunk::<HEAD_BYTES>()
    else {
        return Ok(None);
    };
    if bytes.starts_with(b"HTTP/") {
        return Err(unavailable("the server does not speak HTTP/2"));
    }
    let len = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
    if len > MAX_FRAME_BYTES {
        return Err(unavailable("a frame that is too long"));
    }
    let Some((payload, rest)) = rest.split_at_checked(len) else {
        return Ok(None);
    };
    let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
    let frame = Frame {
        kind,
        flags,
        stream,
        payload,
    };
    Ok(Some((frame, rest)))
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut out = len[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Everything that is sent.
fn request(authority: &str, service: &str) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    // No table of headers, no pushed streams.
    let settings = [0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    out.extend(frame(SETTINGS, 0, 0, &settings));
    let agent = format!("kube-probe/{VERSION}");
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", &agent),
        ("te", "trailers"),
    ] {
        // A literal that nobody need remember, name and all.
        block.push(0);
        put_text(&mut block, name);
        put_text(&mut block, value);
    }
    out.extend(frame(HEADERS, END_HEADERS, STREAM, &block));
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        put_varint(&mut message, service.len());
        message.extend_from_slice(service.as_bytes());
    }
    let len = u32::try_from(message.len()).unwrap_or(0);
    let mut data = vec![0];
    data.extend(len.to_be_bytes());
    data.extend(message);
    // Names of services are short; one that is not is sent in the frames that it needs.
    let mut parts = data.chunks(MAX_FRAME_BYTES).peekable();
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() {
            END_STREAM
        } else {
            0
        };
        out.extend(frame(DATA, flags, STREAM, part));
    }
    out
}

fn put_text(block: &mut Vec<u8>, text: &str) {
    let len = text.len();
    if len < 0x7f {
        block.extend(u8::try_from(len));
    } else {
        block.push(0x7f);
        put_varint(block, len - 0x7f);
    }
    block.extend_from_slice(text.as_bytes());
}

/// Both HPACK and protobuf write the rest of a number so.
fn put_varint(out: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// What came of the one stream.
#[derive(Debug, Default)]
struct Reply {
    block: Vec<u8>,
    /// The block under way ends the stream.
    block_ends: bool,
    data: Vec<u8>,
    http: Option<u32>,
    grpc: Option<u32>,
    message: String,
    ended: bool,
}

impl Reply {
    /// Takes a frame; returns what is to be sent for it.
    fn take(&mut self, frame: &Frame<'_>) -> Result<Vec<u8>, Refusal> {
        let ours = frame.stream == STREAM;
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => {
                return Ok(self::frame(SETTINGS, ACK, 0, &[]));
            }
            PING if frame.flags & ACK == 0 => {
                return Ok(self::frame(PING, ACK, 0, frame.payload));
            }
            GOAWAY => return Err(unavailable("the server went away")),
            RST_STREAM if ours => {
                let code = frame.payload.first_chunk().copied().map(u32::from_be_bytes);
                let code = code.unwrap_or_default();
                return Err(internal(format!(
                    "stream terminated by RST_STREAM with error code: {code}"
                )));
            }
            HEADERS if ours => {
                let mut payload = unpadded(frame)?;
                if frame.flags & PRIORITY != 0 {
                    payload = payload
                        .get(5..)
                        .ok_or_else(|| internal("a frame that is cut"))?;
                }
                self.block = payload.to_vec();
                self.block_ends = frame.flags & END_STREAM != 0;
                self.end_of_block(frame.flags)?;
            }
            CONTINUATION if ours => {
                self.block.extend_from_slice(frame.payload);
                self.end_of_block(frame.flags)?;
            }
            DATA if ours => {
                self.data.extend_from_slice(unpadded(frame)?);
                self.ended |= frame.flags & END_STREAM != 0;
            }
            _ => {}
        }
        Ok(Vec::new())
    }

    fn end_of_block(&mut self, flags: u8) -> Result<(), Refusal> {
        if self.block.len() > MAX_BLOCK_BYTES {
            return Err(internal("headers that are too long"));
        }
        if flags & END_HEADERS == 0 {
            return Ok(());
        }
        let fields = Decoder::default().decode(&self.block, MAX_BLOCK_BYTES);
        let fields = fields.map_err(|e| internal(e.to_string()))?;
        for (name, value) in fields.ok_or_else(|| internal("headers that are too long"))? {
            let text = String::from_utf8_lossy(&value);
            match &*name {
                b":status" => self.http = text.parse().ok(),
                b"grpc-status" => self.grpc = text.parse().ok(),
                b"grpc-message" => self.message = unescaped(&value),
                _ => {}
            }
        }
        self.block.clear();
        self.ended |= self.block_ends;
        Ok(())
    }

    fn health(self) -> Result<Health, Refusal> {
        match (self.http, self.grpc) {
            (_, Some(0)) => {}
            (_, Some(code)) => {
                return Err(Refusal {
                    code,
                    message: self.message,
                });
            }
            (Some(404), None) => {
                return Err(Refusal {
                    code: UNIMPLEMENTED,
                    message: "unexpected HTTP status code received from server: 404 (Not Found)"
                        .into(),
                });
            }
            (http, None) => {
                let code = http.unwrap_or_default();
                return Err(internal(format!(
                    "server closed the stream without sending trailers (HTTP status {code})"
                )));
            }
        }
        let name = match status(&self.data).ok_or_else(|| internal("the answer is no message"))? {
            1 => return Ok(Health::Serving),
            0 => "UNKNOWN".into(),
            2 => "NOT_SERVING".into(),
            3 => "SERVICE_UNKNOWN".into(),
            other => other.to_string(),
        };
        Ok(Health::Other(name))
    }
}

fn unpadded<'a>(frame: &Frame<'a>) -> Result<&'a [u8], Refusal> {
    if frame.flags & PADDED == 0 {
        return Ok(frame.payload);
    }
    let inner = frame.payload.split_first().and_then(|(padding, rest)| {
        let len = rest.len().checked_sub(usize::from(*padding))?;
        rest.get(..len)
    });
    inner.ok_or_else(|| internal("a frame with wrong padding"))
}

/// Field `status` of a `HealthCheckResponse` in its gRPC envelope: the last one counts, 0 if there is none.
fn status(data: &[u8]) -> Option<u64> {
    let (envelope, rest) = data.split_first_chunk::<5>()?;
    let [compressed, len @ ..] = *envelope;
    let len = usize::try_from(u32::from_be_bytes(len)).ok()?;
    if compressed != 0 {
        return None;
    }
    let mut message = rest.get(..len)?;
    let mut status = 0;
    while !message.is_empty() {
        let (tag, rest) = varint(message)?;
        message = rest;
        match tag & 7 {
            0 => {
                let (value, rest) = varint(message)?;
                message = rest;
                if tag >> 3 == 1 {
                    status = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let (len, rest) = varint(message)?;
                message = rest.get(usize::try_from(len).ok()?..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (n, byte) in (0_u32..10).zip(bytes) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * n)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(usize::try_from(n).ok()? + 1..)?));
        }
    }
    None
}

/// Undoes the percent-encoding of `grpc-message`.
fn unescaped(value: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = value;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| first == b'%');
        let code = code.and_then(|d| u8::from_str_radix(core::str::from_utf8(d).ok()?, 16).ok());
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    out.truncate(super::MAX_TEXT_BYTES);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &[u8]) -> Vec<u8> {
        let mut data = vec![0, 0, 0, 0, u8::try_from(payload.len()).expect("short")];
        data.extend_from_slice(payload);
        data
    }

    #[test]
    fn what_a_service_says_of_itself() {
        for (name, data, want) in [
            ("serving", message(&[8, 1]), Some(1)),
            ("not serving", message(&[8, 2]), Some(2)),
            ("unknown is 0 and not written", message(&[]), Some(0)),
            (
                "other fields",
                message(&[0x12, 2, 9, 9, 0x1d, 1, 2, 3, 4, 8, 1]),
                Some(1),
            ),
            ("the last one", message(&[8, 1, 8, 3]), Some(3)),
            ("cut", message(&[8]), None),
            ("a group", message(&[0x0b]), None),
            ("compressed", vec![1, 0, 0, 0, 0], None),
            ("nothing", vec![], None),
            ("shorter than it says", vec![0, 0, 0, 0, 2, 8], None),
        ] {
            assert_eq!(status(&data), want, "{name}");
        }
    }

    fn reply(frames: &[Vec<u8>]) -> Result<Health, Refusal> {
        let mut reply = Reply::default();
        let bytes = frames.concat();
        let mut rest = &bytes[..];
        while let Some((frame, after)) = split(rest)? {
            reply.take(&frame)?;
            rest = after;
        }
        assert!(reply.ended);
        reply.health()
    }

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = vec![0x88];
        for (name, value) in fields {
            block.push(0);
            put_text(&mut block, name);
            put_text(&mut block, value);
        }
        block
    }

    #[test]
    fn replies() {
        // PROBE-23
        let headers = |flags, fields: &[(&str, &str)]| frame(HEADERS, flags, 1, &block(fields));
        let whole = END_HEADERS | END_STREAM;
        let trailer = || headers(whole, &[("grpc-status", "0")]);
        let data = || frame(DATA, 0, 1, &message(&[8, 1]));
        let split_block = block(&[("grpc-status", "0")]);
        for (name, frames, want) in [
            (
                "well",
                vec![
                    frame(SETTINGS, 0, 0, &[]),
                    headers(END_HEADERS, &[]),
                    data(),
                    trailer(),
                ],
                Ok(Health::Serving),
            ),
            (
                "padded, with a priority, in pieces, among other things",
                vec![
                    frame(
                        HEADERS,
                        END_HEADERS | PRIORITY,
                        1,
                        &[&[0; 5][..], &block(&[])].concat(),
                    ),
                    frame(DATA, 0, 3, b"of another stream"),
                    frame(
                        DATA,
                        PADDED,
                        1,
                        &[&[2][..], &message(&[8, 1]), &[0; 2]].concat(),
                    ),
                    frame(0x42, 0xff, 1, b"unknown"),
                    frame(HEADERS, END_STREAM, 1, &split_block[..4]),
                    frame(CONTINUATION, END_HEADERS, 1, &split_block[4..]),
                ],
                Ok(Health::Serving),
            ),
            (
                "not well",
                vec![frame(DATA, 0, 1, &message(&[8, 2])), trailer()],
                Ok(Health::Other("NOT_SERVING".into())),
            ),
            (
                "unimplemented",
                vec![headers(
                    whole,
                    &[("grpc-status", "12"), ("grpc-message", "no%20such%")],
                )],
                Err(Refusal {
                    code: UNIMPLEMENTED,
                    message: "no such%".into(),
                }),
            ),
            (
                "no trailers",
                vec![frame(DATA, END_STREAM, 1, &message(&[8, 1]))],
                Err(internal(
                    "server closed the stream without sending trailers (HTTP status 0)",
                )),
            ),
            (
                "reset",
                vec![frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])],
                Err(internal(
                    "stream terminated by RST_STREAM with error code: 8",
                )),
            ),
            (
                "gone",
                vec![frame(GOAWAY, 0, 0, &[0; 8])],
                Err(unavailable("the server went away")),
            ),
            (
                "HTTP/1",
                vec![b"HTTP/1.1 400 Bad Request".to_vec()],
                Err(unavailable("the server does not speak HTTP/2")),
            ),
            (
                "wrong padding",
                vec![frame(DATA, PADDED, 1, &[9])],
                Err(internal("a frame with wrong padding")),
            ),
        ] {
            assert_eq!(reply(&frames), want, "{name}");
        }
    }

    #[test]
    fn a_request() {
        let out = request("10.0.0.1:80", "a");
        let rest = out.strip_prefix(PREFACE).expect("preface");
        let (settings, rest) = split(rest).expect("frame").expect("whole");
        assert_eq!((settings.kind, settings.stream), (SETTINGS, 0));
        let (head, rest) = split(rest).expect("frame").expect("whole");
        assert_eq!((head.kind, head.flags), (HEADERS, END_HEADERS));
        let fields = Decoder::default().decode(head.payload, MAX_BLOCK_BYTES);
        let fields = fields.expect("block").expect("short");
        let agent = fields.iter().find(|(name, _)| name == b"user-agent");
        assert_eq!(agent.expect("agent").1, b"kube-probe/1.36");
        let (data, rest) = split(rest).expect("frame").expect("whole");
        assert_eq!(data.flags, END_STREAM);
        assert_eq!(data.payload, [0, 0, 0, 0, 3, 0x0a, 1, b'a']);
        assert!(rest.is_empty());
        let long = request("a", &"s".repeat(40_000));
        assert!(long.len() > 40_000);
        assert_eq!(go_duration(Duration::from_secs(3661)), "1h1m1s");
        assert_eq!(go_duration(Duration::from_secs(90)), "1m30s");
        assert_eq!(go_duration(Duration::from_secs(5)), "5s");
    }
}
