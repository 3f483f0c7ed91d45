//! Entry points of the fuzz targets into the protocols of streams. See [`crate::fuzz`].
//!
//! Each machine gets the input whole and in pieces, and must say the same both times: payload and all else in the same
//! order. [`drive`](super::testing::drive) checks what is said of the bytes, and that no more waits to be sent than promised.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt::Debug;

use super::port_forward::{self, SpdyPortForward, WebSocketPortEvent, WebSocketPortForward};
use super::remote_command::{
    self, CommandOutcome, OutputStream, RemoteCommandSession, RemoteCommandVersion,
    RequestedStreams,
};
use super::spdy::{self, SpdySession};
use super::testing::{drive, piece};
use super::websocket::{self, ChannelEvent, ChannelProtocol, Channels, MessageKind, WebSocket};
use super::{MachineStep, PAYLOAD_BYTES, Span};
use crate::api::MonoTime;

/// Record of a run: payload with its target, and all other events, in order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said(Vec<(String, Vec<u8>)>);

impl Said {
    fn payload(&mut self, of: String, span: Span, taken: &[u8]) {
        let mut bytes = piece(span, taken);
        match self.0.last_mut() {
            Some((last, held)) if *last == of => held.append(&mut bytes),
            _ => self.0.push((of, bytes)),
        }
    }

    fn event(&mut self, event: &dyn Debug) {
        // A space tells it from payload.
        self.0.push((format!(" {event:?}"), Vec::new()));
    }

    /// Summary of a run: the kinds of events, and the end.
    fn outcome(&self, error: Option<String>) -> String {
        let mut kinds: Vec<_> = self.0.iter().map(|(kind, _)| kind.as_str()).collect();
        kinds.truncate(4);
        format!("{} {}", kinds.concat(), error.unwrap_or_default())
    }
}

/// Runs a machine on `data` whole and in pieces, which must agree, and returns the summary.
fn twice(data: &[u8], run: impl Fn(&[u8], usize) -> (Said, Option<String>)) -> String {
    let whole = run(data, usize::MAX);
    let size = 1 + data.len() % 7;
    let pieces = run(data, size);
    assert_eq!(whole, pieces, "in pieces of {size}");
    whole.0.outcome(whole.1)
}

/// Drives one machine. `see` acts on its events, and writes them down.
fn run<M, E: Copy + Debug, F: Debug + ToString>(
    machine: M,
    bytes: &[u8],
    size: usize,
    receive: impl Fn(&mut M, &mut [u8], &mut Vec<u8>) -> Result<MachineStep<E>, F>,
    see: impl Fn(&mut M, &mut Said, E, &[u8], &mut Vec<u8>),
) -> (M, Said, Option<F>) {
    let machine = RefCell::new(machine);
    let mut said = Said::default();
    let (_, error) = drive(
        bytes,
        size,
        |input, out| receive(&mut machine.borrow_mut(), input, out),
        |event, taken, out| see(&mut machine.borrow_mut(), &mut said, event, taken, out),
    );
    (machine.into_inner(), said, error)
}

/// The first bytes, at most `most`.
fn first(bytes: &[u8], most: usize) -> &[u8] {
    &bytes[..bytes.len().min(most)]
}

/// Runs SPDY, and the protocols above it.
pub(crate) fn spdy(data: &[u8]) -> String {
    let Some((choice, data)) = data.split_first() else {
        return "empty".into();
    };
    match choice % 4 {
        0 => twice(data, session),
        1 => twice(data, |data, size| {
            let wanted = RequestedStreams {
                stdin: true,
                stdout: true,
                stderr: choice & 0x10 != 0,
                tty: choice & 0x20 != 0,
            };
            let version = if choice & 0x40 == 0 {
                RemoteCommandVersion::V4
            } else {
                RemoteCommandVersion::V2
            };
            remote(RemoteCommandSession::over_spdy(version, wanted), data, size)
        }),
        2 => twice(data, |data, size| {
            streams(SpdyPortForward::new(), data, size)
        }),
        _ => twice(data, |data, size| {
            streams(SpdyPortForward::over_web_socket(), data, size)
        }),
    }
}

/// Runs WebSocket, and the protocols above it.
pub(crate) fn websocket(data: &[u8]) -> String {
    let Some((choice, data)) = data.split_first() else {
        return "empty".into();
    };
    let protocol = match choice >> 4 & 3 {
        0 => ChannelProtocol::Channel,
        1 => ChannelProtocol::V4Base64,
        2 => ChannelProtocol::V4,
        _ => ChannelProtocol::V5,
    };
    match choice % 4 {
        0 => twice(data, socket),
        1 => twice(data, |data, size| channels(protocol, data, size)),
        2 => twice(data, |data, size| {
            let wanted = RequestedStreams {
                stdin: true,
                stdout: choice & 0x40 != 0,
                stderr: true,
                tty: false,
            };
            let remote_command =
                RemoteCommandSession::over_web_socket(protocol, wanted, &mut Vec::new());
            remote(remote_command, data, size)
        }),
        _ => twice(data, |data, size| ports(protocol, data, size)),
    }
}

fn session(data: &[u8], size: usize) -> (Said, Option<String>) {
    let (mut session, said, error) = run(
        SpdySession::new(),
        data,
        size,
        |session, input, out| session.receive_input(input, out),
        |session, said, event, taken, out| {
            match event {
                spdy::SpdyEvent::Data { id, span } => {
                    session.record_passed_on(id, span.len, out);
                    let sendable = session.sendable_bytes(id).min(PAYLOAD_BYTES);
                    let answer = first(span.slice_of(taken), sendable);
                    assert!(session.has_stream(id), "payload of a stream that is none");
                    let sent = session.send_data(id, answer, out);
                    assert!(sent.is_ok() || !session.is_stream_open(id));
                    said.payload(format!("data {id}"), span, taken);
                    return;
                }
                spdy::SpdyEvent::Open { id, .. } => {
                    assert!(id % 2 == 1 && session.has_stream(id));
                    if session.headers().get("port").is_some() {
                        session.reset_stream(id, spdy::ResetReason::RefusedStream, out);
                        assert!(!session.has_stream(id));
                    } else {
                        session.accept_stream(id, out);
                    }
                }
                spdy::SpdyEvent::End { id } => session.finish_stream(id, out),
                spdy::SpdyEvent::Reset { id } => assert!(!session.has_stream(id)),
                spdy::SpdyEvent::GoAway => {}
                spdy::SpdyEvent::Reply { id } => panic!("{id} is not ours"),
            }
            said.event(&event);
        },
    );
    let mut out = Vec::new();
    session.send_go_away(spdy::GoAwayReason::Ok, &mut out);
    assert_eq!(out.len(), 16);
    (said, error.map(|e| e.to_string()))
}

fn socket(data: &[u8], size: usize) -> (Said, Option<String>) {
    let (_, said, error) = run(
        WebSocket::new(),
        data,
        size,
        |socket, input, out| socket.receive_input(input, out),
        |_, said, event, taken, _| match event {
            websocket::WebSocketEvent::Data {
                kind,
                first,
                frame_ends,
                last,
                span,
            } => {
                assert!(frame_ends || !last);
                if first {
                    said.event(&kind);
                }
                let text = if kind == MessageKind::Text {
                    "text"
                } else {
                    "binary"
                };
                said.payload(text.into(), span, taken);
                if last {
                    said.event(&"end");
                }
            }
            websocket::WebSocketEvent::Close { .. } => said.event(&event),
        },
    );
    (said, error.map(|e| e.to_string()))
}

fn channels(protocol: ChannelProtocol, data: &[u8], size: usize) -> (Said, Option<String>) {
    let (_, said, error) = run(
        Channels::new(protocol),
        data,
        size,
        |channels, input, out| channels.receive_input(input, out),
        |_, said, event, taken, _| match event {
            ChannelEvent::Data { channel, span } => {
                assert!(span.len > 0);
                said.payload(format!("channel {channel}"), span, taken);
            }
            ChannelEvent::End { .. } | ChannelEvent::Left => said.event(&event),
        },
    );
    (said, error.map(|e| e.to_string()))
}

fn remote(remote: RemoteCommandSession, data: &[u8], size: usize) -> (Said, Option<String>) {
    use remote_command::RemoteCommandEvent;
    let (mut remote, said, error) = run(
        remote,
        data,
        size,
        |remote, input, out| remote.receive_input(input, out),
        |remote, said, event, taken, out| match event {
            RemoteCommandEvent::Stdin(span) => {
                remote.record_passed_on(span.len, out);
                let sendable = remote
                    .sendable_bytes(OutputStream::Stdout)
                    .min(PAYLOAD_BYTES);
                let echo = first(span.slice_of(taken), sendable);
                // Gone, if the client wants none.
                let _ = remote.send_output(OutputStream::Stdout, echo, out);
                said.payload("stdin".into(), span, taken);
            }
            // Only the newest of several sizes that come together is told.
            RemoteCommandEvent::Resize(size) => assert!(size.width > 0 && size.height > 0),
            RemoteCommandEvent::Ready | RemoteCommandEvent::StdinEnd | RemoteCommandEvent::Left => {
                said.event(&event)
            }
        },
    );
    for once in [RemoteCommandEvent::Ready, RemoteCommandEvent::StdinEnd] {
        let text = format!(" {once:?}");
        assert!(said.0.iter().filter(|(event, _)| *event == text).count() <= 1);
    }
    let mut out = Vec::new();
    match error {
        Some(e) => remote.abort_session(e, &mut out),
        None => remote.send_outcome(&CommandOutcome::Exited(1), &mut out),
    }
    assert!(out.len() < 1024);
    (said, error.map(|e| e.to_string()))
}

fn streams(streams: SpdyPortForward, data: &[u8], size: usize) -> (Said, Option<String>) {
    use port_forward::SpdyPortEvent;
    let (mut streams, said, error) = run(
        streams,
        data,
        size,
        |streams, input, out| streams.receive_input(input, MonoTime(0), out),
        |streams, said, event, taken, out| {
            match event {
                SpdyPortEvent::Connect { pair, port } if port < 10 => {
                    streams.fail_pair(pair, "refused", out)
                }
                SpdyPortEvent::Connect { port, .. } => assert!(port > 0),
                SpdyPortEvent::Data { pair, span } => {
                    streams.record_passed_on(pair, span.len, out);
                    let sendable = streams.sendable_bytes(pair).min(PAYLOAD_BYTES);
                    let echo = first(span.slice_of(taken), sendable);
                    // Gone, if the client wants none.
                    let _ = streams.send_data(pair, echo, out);
                    said.payload(format!("{pair:?}"), span, taken);
                    return;
                }
                SpdyPortEvent::End { pair } => streams.close_pair(pair, out),
                SpdyPortEvent::Reset { .. } | SpdyPortEvent::Left => {}
            }
            said.event(&event);
        },
    );
    let mut out = Vec::new();
    streams.handle_timeout(MonoTime(u64::MAX), &mut out);
    assert_eq!(streams.next_timeout(), None);
    if let Some(e) = error {
        streams.abort_session(e, &mut out);
    }
    (said, error.map(|e| e.to_string()))
}

fn ports(protocol: ChannelProtocol, data: &[u8], size: usize) -> (Said, Option<String>) {
    let (_, said, error) = run(
        WebSocketPortForward::new(protocol, [80, 443].into(), &mut Vec::new()),
        data,
        size,
        |ports, input, out| ports.receive_input(input, out),
        |_, said, event, taken, _| match event {
            WebSocketPortEvent::Data { index, span } => {
                assert!(index < 2);
                said.payload(format!("port {index}"), span, taken);
            }
            WebSocketPortEvent::Left => said.event(&event),
        },
    );
    (said, error.map(|e| e.to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    /// Inputs to start from: what real clients sent, for each choice.
    pub(crate) fn seeds(target: &str) -> Vec<Vec<u8>> {
        use super::super::recorded::{
            EXEC_SPDY, EXEC_WEBSOCKET, FORWARD_SPDY, FORWARD_TUNNEL, TERMINAL_SPDY, decode_recorded,
        };
        use super::super::testing::{SpdyClient, masked};

        let with = |choice: u8, data: &[u8]| [&[choice], data].concat();
        if target == "spdy" {
            let mut client = SpdyClient::default();
            client.stream(1, "error").numbers(4, &[1, 7, 100]);
            client.numbers(9, &[0, 10]).numbers(6, &[1]);
            client.control(10, 0, b"x").headers(1, true, &[]).reset(1);
            client.forward(3, "data", "80", "").numbers(7, &[0, 0]);
            let tunnelled: Vec<u8> = client
                .bytes
                .chunks(30)
                .flat_map(|part| masked(0x82, part))
                .collect();
            return [
                with(0, &decode_recorded(EXEC_SPDY)),
                with(0, &client.bytes),
                with(1 | 0x10, &decode_recorded(EXEC_SPDY)),
                with(1 | 0x20, &decode_recorded(TERMINAL_SPDY)),
                with(1 | 0x60, &client.bytes),
                with(2, &decode_recorded(FORWARD_SPDY)),
                with(2, &client.bytes),
                with(3, &decode_recorded(FORWARD_TUNNEL)),
                with(3, &tunnelled),
            ]
            .into();
        }
        let plain = [
            masked(0x02, b"\x04{\"Width\":8"),
            masked(0x89, b"ping"),
            masked(0x80, b"0,\"Height\":24}"),
            masked(0x82, b"\x00in"),
            masked(0x82, b"\xff\x00"),
            masked(0x88, &[3, 0xe8]),
        ]
        .concat();
        let base64 = [masked(0x81, b"0aW4="), masked(0x81, b"4e30=")].concat();
        let mut seeds = Vec::new();
        for choice in [0, 1, 2, 3, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x72] {
            seeds.push(with(choice, &plain));
            seeds.push(with(choice, &decode_recorded(EXEC_WEBSOCKET)));
            seeds.push(with(choice, &base64));
        }
        seeds
    }
}
