//! `grpc.health.v1.Health/Check`, one call on a connection of its own. Row PROBE-23.
//!
//! The whole request goes out at once; of the answer only its one stream counts. Source: `grpc/health/v1/health.proto`.

use core::{cell::Cell, net::IpAddr, time::Duration};
use std::io;

use smol::future;

use super::{
    MAX_TEXT_BYTES, ProbeAnswer, Prober, TimeLimit, VERSION, dial, go_duration,
    plain::PlainConnection,
};
use crate::grpc::{
    envelope::{EnvelopeReader, wrap_message},
    hpack::HeaderField,
    http2::{ConnectionRole, Http2Connection, Http2Event, Http2StreamId, OpenStreamError},
    proto::{Limits, decode, encode, message},
    status::{GrpcCode, GrpcStatus},
};

/// Bytes of frames that one answer may have.
const MAX_BYTES: usize = 64 * 1024;
/// Pieces in which it may come.
const MAX_PIECES: usize = 512;
const PATH: &str = "/grpc.health.v1.Health/Check";
/// Constant time: no probe lasts long enough for limits that count by the second.
const NOW: Duration = Duration::ZERO;

message! {
    struct HealthCheckRequest {
        1 service: String,
    }
    struct HealthCheckResponse {
        1 status: i32,
    }
}

/// Probes once. Never [`ProbeAnswer::Error`].
pub(super) async fn probe_grpc(
    prober: &Prober,
    ip: Option<IpAddr>,
    port: u16,
    service: &str,
    limit: Duration,
    late: TimeLimit,
) -> ProbeAnswer {
    let address = dial::host_and_port("", ip, port);
    let limit = go_duration(limit);
    let connected = Cell::new(false);
    let ask = async {
        let socket = match dial::connect_to_host(prober, "", ip, port).await {
            Ok(socket) => socket,
            Err(e) => {
                let text = format!("error: failed to connect service at {address:?}: {e}");
                return ProbeAnswer::Failure(text);
            }
        };
        connected.set(true);
        let timed_out = || format!("timeout: health rpc did not complete within {limit}");
        let text = match call_health_check(socket, &address, service).await {
            Ok(ServiceHealth::Serving) => return ProbeAnswer::Success,
            Ok(ServiceHealth::Other(name)) => {
                format!("service unhealthy (responded with {name:?})")
            }
            Err(GrpcStatus {
                code: GrpcCode::UNIMPLEMENTED,
                message,
            }) => format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ),
            Err(GrpcStatus {
                code: GrpcCode::DEADLINE_EXCEEDED,
                ..
            }) => timed_out(),
            Err(status) => format!("error: health rpc probe failed: {status}"),
        };
        ProbeAnswer::Failure(text)
    };
    let late = async {
        late.await;
        ProbeAnswer::Failure(if connected.get() {
            format!("timeout: health rpc did not complete within {limit}")
        } else {
            format!(
                "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
            )
        })
    };
    future::or(ask, late).await
}

/// Health that the service reports.
#[derive(Debug, PartialEq, Eq)]
enum ServiceHealth {
    Serving,
    Other(String),
}

fn unavailable_status(message: impl Into<String>) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::UNAVAILABLE, message)
}

fn internal_status(message: impl Into<String>) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::INTERNAL, message)
}

async fn call_health_check(
    mut socket: PlainConnection,
    authority: &str,
    service: &str,
) -> Result<ServiceHealth, GrpcStatus> {
    let broken =
        |e: io::Error| unavailable_status(format!("connection error: {}", dial::go_error_text(&e)));
    let mut call = HealthCheckCall::new(authority, service)?;
    let (mut held, mut total) = (Vec::new(), 0);
    for _ in 0..MAX_PIECES {
        // Bounded: by the windows.
        loop {
            let out = call.connection.next_output(NOW);
            let len = out.len();
            if len == 0 {
                break;
            }
            socket.write_all(out).await.map_err(broken)?;
            call.connection.record_written(len);
        }
        let mut piece = [0; 1024];
        let len = socket.read(&mut piece).await.map_err(broken)?;
        if len == 0 {
            return Err(unavailable_status("connection closed before the answer"));
        }
        held.extend_from_slice(&piece[..len]);
        total += len;
        let taken = call.take_bytes(&held)?;
        held.drain(..taken);
        if let Some(trailers) = &call.trailers {
            return call.parse_health(trailers);
        }
        if total > MAX_BYTES {
            break;
        }
    }
    Err(internal_status("the answer is too long"))
}

/// The one call of a connection, and its answer so far.
struct HealthCheckCall {
    connection: Http2Connection,
    id: Http2StreamId,
    head: Vec<HeaderField>,
    envelopes: EnvelopeReader,
    message: Option<Vec<u8>>,
    /// Trailers of the answer, there at the end.
    trailers: Option<Vec<HeaderField>>,
}

impl HealthCheckCall {
    fn new(authority: &str, service: &str) -> Result<Self, GrpcStatus> {
        let agent = format!("kube-probe/{VERSION}");
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("user-agent", &agent),
            ("te", "trailers"),
        ];
        let mut connection = Http2Connection::new(ConnectionRole::Client);
        let fields = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let id = connection
            .open_stream(fields)
            .map_err(|e: OpenStreamError| unavailable_status(e.to_string()))?;
        let mut request = HealthCheckRequest {
            service: service.into(),
        };
        connection.send_payload(id, wrap_message(&encode(&mut request)));
        connection.end_stream(id, Vec::new());
        Ok(Self {
            connection,
            id,
            head: Vec::new(),
            envelopes: EnvelopeReader::default(),
            message: None,
            trailers: None,
        })
    }

    /// Takes the bytes that came, up to the end of the call. Returns their number.
    fn take_bytes(&mut self, bytes: &[u8]) -> Result<usize, GrpcStatus> {
        let mut taken = 0;
        while self.trailers.is_none() {
            let step = self.connection.receive_frame(&bytes[taken..], NOW);
            let step = step.map_err(|fault| unavailable_status(fault.text))?;
            if step.taken == 0 {
                break;
            }
            taken += step.taken;
            match step.event {
                Some(Http2Event::Headers { fields, is_end, .. }) => {
                    let fields =
                        fields.ok_or_else(|| internal_status("headers that are too long"))?;
                    if self.head.is_empty() {
                        self.head = fields;
                        self.trailers = is_end.then(Vec::new);
                    } else {
                        self.trailers = Some(fields);
                    }
                }
                Some(Http2Event::Data {
                    id,
                    mut bytes,
                    is_end,
                }) => {
                    self.connection.release_payload(id, bytes.len());
                    while !bytes.is_empty() {
                        let message = self.envelopes.take_message(&mut bytes)?;
                        self.message = self.message.take().or(message);
                    }
                    self.trailers = is_end.then(Vec::new);
                }
                Some(Http2Event::Reset { reason, .. }) => return Err(GrpcStatus::of_reset(reason)),
                Some(Http2Event::GoAway { last, .. }) if last < self.id => {
                    return Err(unavailable_status("the server went away"));
                }
                Some(Http2Event::GoAway { .. }) | None => {}
            }
        }
        Ok(taken)
    }

    fn parse_health(&self, trailers: &[HeaderField]) -> Result<ServiceHealth, GrpcStatus> {
        GrpcStatus::check_answer(&self.head, trailers).map_err(|mut status| {
            let len = status.message.floor_char_boundary(MAX_TEXT_BYTES);
            status.message.truncate(len);
            status
        })?;
        let no_message = || internal_status("the answer is no message");
        let message = self.message.as_deref().ok_or_else(no_message)?;
        let mut response = HealthCheckResponse::default();
        let read = decode(&mut response, message, Limits::default());
        read.map_err(|_| no_message())?;
        let name = match response.status {
            1 => return Ok(ServiceHealth::Serving),
            0 => "UNKNOWN".into(),
            2 => "NOT_SERVING".into(),
            3 => "SERVICE_UNKNOWN".into(),
            other => other.to_string(),
        };
        Ok(ServiceHealth::Other(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::{hpack::HpackEncoder, http2::PREFACE};

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const CONTINUATION: u8 = 9;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const PADDED: u8 = 8;
    const PRIORITY: u8 = 0x20;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut out = len[1..].to_vec();
        out.extend([kind, flags]);
        out.extend(stream.to_be_bytes());
        out.extend_from_slice(payload);
        out
    }

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut encoder = HpackEncoder::default();
        // So that each block stands for itself.
        encoder.resize(0);
        let mut block = Vec::new();
        let fields = fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        encoder.encode(fields, &mut block);
        block
    }

    /// Returns the result of a call that gets these frames, after those that every answer begins with.
    fn reply(frames: &[Vec<u8>]) -> Result<ServiceHealth, GrpcStatus> {
        let mut call = HealthCheckCall::new("10.0.0.1:80", "a")?;
        let mut bytes = frames.concat();
        if !bytes.starts_with(b"HTTP/") {
            bytes.splice(0..0, frame(SETTINGS, 0, 0, &[]));
        }
        assert_eq!(call.take_bytes(&bytes)?, bytes.len());
        call.parse_health(call.trailers.as_deref().expect("an end"))
    }

    #[test]
    fn what_a_service_says_of_itself() {
        let head = || frame(HEADERS, END_HEADERS, 1, &block(&[(":status", "200")]));
        let trailer = || {
            let block = block(&[("grpc-status", "0")]);
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)
        };
        let other = |name: &str| Some(ServiceHealth::Other(name.into()));
        for (name, data, want) in [
            (
                "serving",
                wrap_message(&[8, 1]),
                Some(ServiceHealth::Serving),
            ),
            ("not serving", wrap_message(&[8, 2]), other("NOT_SERVING")),
            (
                "unknown is 0 and not written",
                wrap_message(&[]),
                other("UNKNOWN"),
            ),
            (
                "other fields",
                wrap_message(&[0x12, 2, 9, 9, 0x1d, 1, 2, 3, 4, 8, 1]),
                Some(ServiceHealth::Serving),
            ),
            (
                "the last one",
                wrap_message(&[8, 1, 8, 3]),
                other("SERVICE_UNKNOWN"),
            ),
            ("one that is not known", wrap_message(&[8, 9]), other("9")),
            ("cut", wrap_message(&[8]), None),
            ("a group", wrap_message(&[0x0b]), None),
            ("compressed", vec![1, 0, 0, 0, 0], None),
            ("nothing", vec![], None),
            ("shorter than it says", vec![0, 0, 0, 0, 2, 8], None),
        ] {
            let got = reply(&[head(), frame(DATA, 0, 1, &data), trailer()]);
            assert_eq!(
                got.map_err(|e| e.code),
                want.ok_or(GrpcCode::INTERNAL),
                "{name}"
            );
        }
    }

    #[test]
    fn replies() {
        // PROBE-23
        let ok = (":status", "200");
        let headers = |flags, fields: &[(&str, &str)]| frame(HEADERS, flags, 1, &block(fields));
        let whole = END_HEADERS | END_STREAM;
        let head = || headers(END_HEADERS, &[ok]);
        let trailer = || headers(whole, &[("grpc-status", "0")]);
        let data = || frame(DATA, 0, 1, &wrap_message(&[8, 1]));
        let split_block = block(&[("grpc-status", "0")]);
        for (name, frames, want) in [
            (
                "well",
                vec![frame(SETTINGS, 0, 0, &[]), head(), data(), trailer()],
                Ok(ServiceHealth::Serving),
            ),
            (
                "padded, with a priority, in pieces, among other things",
                vec![
                    frame(
                        HEADERS,
                        END_HEADERS | PRIORITY,
                        1,
                        &[&[0; 5][..], &block(&[ok])].concat(),
                    ),
                    frame(
                        DATA,
                        PADDED,
                        1,
                        &[&[2][..], &wrap_message(&[8, 1]), &[0; 2]].concat(),
                    ),
                    frame(0x42, 0xff, 1, b"unknown"),
                    frame(HEADERS, END_STREAM, 1, &split_block[..4]),
                    frame(CONTINUATION, END_HEADERS, 1, &split_block[4..]),
                ],
                Ok(ServiceHealth::Serving),
            ),
            (
                "not well",
                vec![head(), frame(DATA, 0, 1, &wrap_message(&[8, 2])), trailer()],
                Ok(ServiceHealth::Other("NOT_SERVING".into())),
            ),
            (
                "unimplemented",
                vec![headers(
                    whole,
                    &[ok, ("grpc-status", "12"), ("grpc-message", "no%20such%")],
                )],
                Err(GrpcStatus::new(GrpcCode::UNIMPLEMENTED, "no such%")),
            ),
            (
                "no trailers",
                vec![head(), frame(DATA, END_STREAM, 1, &wrap_message(&[8, 1]))],
                Err(internal_status(
                    "server closed the stream without sending trailers (HTTP status 200)",
                )),
            ),
            (
                "not gRPC",
                vec![headers(whole, &[(":status", "404")])],
                Err(GrpcStatus::new(
                    GrpcCode::UNIMPLEMENTED,
                    "unexpected HTTP status code received from server: 404 (Not Found)",
                )),
            ),
            (
                "reset",
                vec![frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])],
                Err(GrpcStatus::new(
                    GrpcCode::CANCELED,
                    "stream terminated by RST_STREAM with error code: 8",
                )),
            ),
            (
                "gone",
                vec![frame(GOAWAY, 0, 0, &[0; 8])],
                Err(unavailable_status("the server went away")),
            ),
            (
                "gone, but it answers",
                vec![
                    frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
                    head(),
                    data(),
                    trailer(),
                ],
                Ok(ServiceHealth::Serving),
            ),
            (
                "HTTP/1",
                vec![b"HTTP/1.1 400 Bad Request".to_vec()],
                Err(unavailable_status("the server does not speak HTTP/2")),
            ),
            (
                "wrong padding",
                vec![head(), frame(DATA, PADDED, 1, &[9])],
                Err(unavailable_status("a frame with wrong padding")),
            ),
            (
                "long text",
                vec![headers(
                    whole,
                    &[
                        ok,
                        ("grpc-status", "2"),
                        ("grpc-message", &"%C3%A9".repeat(1000)),
                    ],
                )],
                Err(GrpcStatus::new(GrpcCode::UNKNOWN, "é".repeat(512))),
            ),
        ] {
            assert_eq!(reply(&frames), want, "{name}");
        }
    }

    #[test]
    fn a_request() {
        let sent = |mut call: HealthCheckCall| {
            let mut all = Vec::new();
            loop {
                let out = call.connection.next_output(NOW).to_vec();
                if out.is_empty() {
                    return all;
                }
                call.connection.record_written(out.len());
                all.extend(out);
            }
        };
        let out = sent(HealthCheckCall::new("10.0.0.1:80", &"s".repeat(40_000)).expect("room"));
        assert!(out.starts_with(PREFACE));
        let mut server = Http2Connection::new(ConnectionRole::Server);
        let mut rest = &out[..];
        let (mut head, mut data, mut ended) = (Vec::new(), Vec::new(), false);
        while !rest.is_empty() {
            let step = server.receive_frame(rest, NOW).expect("frames");
            assert!(step.taken > 0, "whole frames");
            rest = &rest[step.taken..];
            match step.event {
                Some(Http2Event::Headers { fields, .. }) => head = fields.expect("short"),
                Some(Http2Event::Data { bytes, is_end, .. }) => {
                    data.extend_from_slice(bytes);
                    ended = is_end;
                }
                _ => {}
            }
        }
        assert!(ended);
        let agent = head.iter().find(|(name, _)| name == b"user-agent");
        assert_eq!(agent.expect("agent").1, b"kube-probe/1.36");
        let mut request = HealthCheckRequest::default();
        let message = EnvelopeReader::default()
            .take_message(&mut &data[..])
            .expect("well");
        decode(&mut request, &message.expect("whole"), Limits::default()).expect("a message");
        assert_eq!(request.service.len(), 40_000);
        let short = sent(HealthCheckCall::new("a", "a").expect("room"));
        assert!(short.ends_with(&[0, 0, 0, 0, 3, 0x0a, 1, b'a']));
        assert_eq!(go_duration(Duration::from_secs(3661)), "1h1m1s");
        assert_eq!(go_duration(Duration::from_secs(90)), "1m30s");
        assert_eq!(go_duration(Duration::from_secs(5)), "5s");
    }
}
