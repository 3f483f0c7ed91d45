//! Port forwarding: connections of one client to ports of one pod. One task, fixed buffers, however many connections
//! there are. A port that takes nothing holds its client back, with all its connections: the protocols have no other
//! back-pressure.

use core::task::{Context, Poll, ready};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;

use async_io::Async;

use super::carrier::{SessionCarrier, TURNS, WaitEndReason};
use crate::api::MonoTime;
use crate::runtime::{RuntimeCall, RuntimeError};
use crate::stream::port_forward::{
    self, PairId, SpdyPortEvent, SpdyPortForward, WebSocketPortEvent, WebSocketPortForward,
};
use crate::stream::{MachineStep, OUT_BYTES, PAYLOAD_BYTES, Span, websocket};
use crate::sys::clock;

/// Protocol of the client.
pub(super) enum PortForwardWire {
    /// Pairs of streams, made as they are needed.
    Streams(SpdyPortForward),
    /// A fixed list of ports, all at once.
    Ports(WebSocketPortForward),
}

/// A connection, as the client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortConnectionName {
    Pair(PairId),
    Index(usize),
}

/// An event from the client.
enum PortClientEvent {
    Connect {
        name: PortConnectionName,
        port: u16,
    },
    Data {
        name: PortConnectionName,
        span: Span,
    },
    End {
        name: PortConnectionName,
    },
    Reset {
        name: PortConnectionName,
    },
    Left,
}

enum PortProtocolError {
    Streams(port_forward::PortForwardError),
    Ports(websocket::WebSocketError),
}

impl PortForwardWire {
    fn receive_event(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<PortClientEvent>, PortProtocolError> {
        match self {
            Self::Streams(streams) => {
                let step = streams.receive_input(input, clock::mono_now(), out);
                let step = step.map_err(PortProtocolError::Streams)?;
                let asked = |event| match event {
                    SpdyPortEvent::Connect { pair, port } => PortClientEvent::Connect {
                        name: PortConnectionName::Pair(pair),
                        port,
                    },
                    SpdyPortEvent::Data { pair, span } => PortClientEvent::Data {
                        name: PortConnectionName::Pair(pair),
                        span,
                    },
                    SpdyPortEvent::End { pair } => PortClientEvent::End {
                        name: PortConnectionName::Pair(pair),
                    },
                    SpdyPortEvent::Reset { pair } => PortClientEvent::Reset {
                        name: PortConnectionName::Pair(pair),
                    },
                    SpdyPortEvent::Left => PortClientEvent::Left,
                };
                Ok(MachineStep {
                    taken: step.taken,
                    event: step.event.map(asked),
                })
            }
            Self::Ports(ports) => {
                let step = ports
                    .receive_input(input, out)
                    .map_err(PortProtocolError::Ports)?;
                let asked = |event| match event {
                    WebSocketPortEvent::Data { index, span } => PortClientEvent::Data {
                        name: PortConnectionName::Index(index),
                        span,
                    },
                    WebSocketPortEvent::Left => PortClientEvent::Left,
                };
                Ok(MachineStep {
                    taken: step.taken,
                    event: step.event.map(asked),
                })
            }
        }
    }

    fn record_passed_on(&mut self, name: PortConnectionName, bytes: usize, out: &mut Vec<u8>) {
        if let (Self::Streams(streams), PortConnectionName::Pair(pair)) = (self, name) {
            streams.record_passed_on(pair, bytes, out);
        }
    }

    fn sendable_bytes(&self, name: PortConnectionName) -> usize {
        match (self, name) {
            (Self::Streams(streams), PortConnectionName::Pair(pair)) => {
                streams.sendable_bytes(pair)
            }
            _ => usize::MAX,
        }
    }

    /// Sends bytes of a port to the client; returns false if the client no longer wants them.
    fn send_data(&mut self, name: PortConnectionName, payload: &[u8], out: &mut Vec<u8>) -> bool {
        match (self, name) {
            (Self::Streams(streams), PortConnectionName::Pair(pair)) => {
                streams.send_data(pair, payload, out).is_ok()
            }
            (Self::Ports(ports), PortConnectionName::Index(index)) => {
                ports.send_data(index, payload, out);
                true
            }
            _ => false,
        }
    }

    /// The port sends no more. Whether that is the end of the connection, for it has no other.
    fn finish_sending(&mut self, name: PortConnectionName, out: &mut Vec<u8>) -> bool {
        match (self, name) {
            (Self::Streams(streams), PortConnectionName::Pair(pair)) => {
                streams.finish_sending(pair, out);
                false
            }
            _ => true,
        }
    }

    /// Closes a connection whose two sides have ended.
    fn close_connection(&mut self, name: PortConnectionName, out: &mut Vec<u8>) {
        if let (Self::Streams(streams), PortConnectionName::Pair(pair)) = (self, name) {
            streams.close_pair(pair, out);
        }
    }

    fn fail_connection(&mut self, name: PortConnectionName, why: &str, out: &mut Vec<u8>) {
        match (self, name) {
            (Self::Streams(streams), PortConnectionName::Pair(pair)) => {
                streams.fail_pair(pair, why, out)
            }
            (Self::Ports(ports), PortConnectionName::Index(index)) => {
                ports.fail_port(index, why, out)
            }
            _ => {}
        }
    }

    fn abort(&mut self, why: &PortProtocolError, out: &mut Vec<u8>) {
        match (self, why) {
            (Self::Streams(streams), PortProtocolError::Streams(e)) => {
                streams.abort_session(*e, out)
            }
            (Self::Ports(ports), PortProtocolError::Ports(e)) => {
                ports.send_close(e.close_code(), out)
            }
            _ => {}
        }
    }

    fn go_away(&mut self, out: &mut Vec<u8>) {
        match self {
            Self::Streams(streams) => streams.send_go_away(out),
            Self::Ports(ports) => ports.send_close(websocket::NORMAL, out),
        }
    }

    fn next_timeout(&self) -> Option<MonoTime> {
        match self {
            Self::Streams(streams) => streams.next_timeout(),
            Self::Ports(_) => None,
        }
    }

    fn handle_timeout(&mut self, out: &mut Vec<u8>) {
        if let Self::Streams(streams) = self {
            streams.handle_timeout(clock::mono_now(), out);
        }
    }

    /// Returns true if all ports of a fixed list have ended: no more can come.
    fn has_all_ended(&self, connections: usize) -> bool {
        matches!(self, Self::Ports(_)) && connections == 0
    }
}

enum PortState<'a> {
    Connecting(RuntimeCall<'a, OwnedFd>),
    Open {
        stream: Async<TcpStream>,
        /// Set if the port had nothing to read: the reactor is asked before the kernel then.
        waiting: bool,
    },
}

struct PortConnection<'a> {
    name: PortConnectionName,
    number: u16,
    port: PortState<'a>,
    /// The client sends no more.
    client_ended: bool,
    /// The port sends no more.
    port_ended: bool,
}

/// Data on its way to a port.
struct PendingPortData {
    name: PortConnectionName,
    span: Span,
    /// Bytes of it that were passed on.
    done: usize,
    /// Bytes of the client's to remove then.
    taken: usize,
}

/// End of the client's session.
enum PortSessionEnd {
    Done,
    Broken(PortProtocolError),
    Left,
}

struct PortForwardDriver<'a, C> {
    carrier: SessionCarrier<'a>,
    wire: PortForwardWire,
    connect: C,
    connections: Vec<PortConnection<'a>>,
    pending: Option<PendingPortData>,
    /// Connection that has the first turn.
    first: usize,
}

/// Carries one client's connections until it leaves. `connect` connects to a port.
///
/// - Errors: the client's connection broke.
pub(super) async fn drive_port_forward<'a, C: Fn(u16) -> RuntimeCall<'a, OwnedFd>>(
    carrier: SessionCarrier<'a>,
    wire: PortForwardWire,
    connect: C,
) -> io::Result<()> {
    let mut drive = PortForwardDriver {
        carrier,
        wire,
        connect,
        connections: Vec::new(),
        pending: None,
        first: 0,
    };
    if let PortForwardWire::Ports(ports) = &drive.wire {
        for (index, port) in ports.ports().to_vec().into_iter().enumerate() {
            drive.connect_port(PortConnectionName::Index(index), port);
        }
    }
    let over = core::future::poll_fn(|cx| drive.poll(cx)).await?;
    let PortForwardDriver {
        mut carrier,
        mut wire,
        connections,
        ..
    } = drive;
    drop(connections);
    match over {
        PortSessionEnd::Done => wire.go_away(&mut carrier.out),
        PortSessionEnd::Broken(why) => wire.abort(&why, &mut carrier.out),
        PortSessionEnd::Left => return Ok(()),
    }
    carrier.close_gracefully().await;
    Ok(())
}

impl<'a, C: Fn(u16) -> RuntimeCall<'a, OwnedFd>> PortForwardDriver<'a, C> {
    fn connect_port(&mut self, name: PortConnectionName, port: u16) {
        self.connections.push(PortConnection {
            name,
            number: port,
            port: PortState::Connecting((self.connect)(port)),
            client_ended: false,
            port_ended: false,
        });
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<PortSessionEnd>> {
        loop {
            ready!(self.carrier.poll_pause(cx));
            for _ in 0..TURNS {
                let mut moved = self.carrier.poll_write(cx)?;
                if let Some(why) = self.carrier.spent_reason() {
                    for at in (0..self.connections.len()).rev() {
                        self.fail_connection(at, &why);
                    }
                    return Poll::Ready(Ok(PortSessionEnd::Done));
                }
                if let Some(over) = self.poll_client(cx, &mut moved) {
                    return Poll::Ready(Ok(over));
                }
                self.poll_ports(cx, &mut moved);
                if self.wire.has_all_ended(self.connections.len()) {
                    return Poll::Ready(Ok(PortSessionEnd::Done));
                }
                if moved {
                    continue;
                }
                match ready!(self.carrier.poll_wait_end(cx, self.wire.next_timeout())) {
                    WaitEndReason::Due => self.wire.handle_timeout(&mut self.carrier.out),
                    WaitEndReason::Idle => return Poll::Ready(Ok(PortSessionEnd::Done)),
                    WaitEndReason::Gone => return Poll::Ready(Ok(PortSessionEnd::Left)),
                }
            }
            self.carrier.begin_pause();
        }
    }

    /// Passes data on, and reads the client's bytes.
    fn poll_client(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<PortSessionEnd> {
        match self.carrier.poll_read(cx) {
            Ok(read) => *moved |= read,
            Err(_) => return Some(PortSessionEnd::Left),
        }
        if self.pending.is_some() && !self.poll_pending_data(cx, moved) {
            return None;
        }
        let (input, out) = self.carrier.io_buffers();
        let step = match self.wire.receive_event(input, out) {
            Ok(step) => step,
            Err(why) => return Some(PortSessionEnd::Broken(why)),
        };
        *moved |= !step.is_idle();
        match step.event {
            Some(PortClientEvent::Connect { name, port }) => self.connect_port(name, port),
            Some(PortClientEvent::Data { name, span }) => {
                self.pending = Some(PendingPortData {
                    name,
                    span,
                    done: 0,
                    taken: step.taken,
                });
                return None;
            }
            Some(PortClientEvent::End { name }) => {
                if let Some(at) = self.connection_index(name) {
                    self.connections[at].client_ended = true;
                    self.end_writing(at);
                }
            }
            Some(PortClientEvent::Reset { name }) => self.connections.retain(|c| c.name != name),
            Some(PortClientEvent::Left) => return Some(PortSessionEnd::Left),
            None => {}
        }
        self.carrier.consume_input(step.taken);
        None
    }

    fn connection_index(&self, name: PortConnectionName) -> Option<usize> {
        self.connections.iter().position(|c| c.name == name)
    }

    /// Tells the port that nothing follows, as soon as it is there.
    fn end_writing(&mut self, at: usize) {
        let connection = &self.connections[at];
        if let (true, PortState::Open { stream, .. }) = (connection.client_ended, &connection.port)
        {
            // A port that has ended by itself is noticed when it is read.
            let _ = stream.get_ref().shutdown(Shutdown::Write);
            self.end_if_over(at);
        }
    }

    fn end_if_over(&mut self, at: usize) {
        let connection = &self.connections[at];
        if connection.client_ended && connection.port_ended {
            let name = connection.name;
            self.connections.swap_remove(at);
            self.wire.close_connection(name, &mut self.carrier.out);
        }
    }

    fn fail_connection(&mut self, at: usize, why: &str) {
        let connection = self.connections.swap_remove(at);
        let text = format!("error forwarding port {}: {why}", connection.number);
        self.wire
            .fail_connection(connection.name, &text, &mut self.carrier.out);
    }

    /// Passes pending data on; whether all of it was.
    fn poll_pending_data(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> bool {
        let Some(pending) = &self.pending else {
            return true;
        };
        let (name, span, done) = (pending.name, pending.span, pending.done);
        let place = self.connection_index(name);
        let (input, out) = self.carrier.io_buffers();
        let rest = &span.slice_of(input)[done..];
        let passed = match place.map(|at| &self.connections[at].port) {
            Some(PortState::Connecting(_)) => return false,
            Some(PortState::Open { stream, .. }) => match poll_socket_write(stream, cx, rest) {
                Poll::Pending => return false,
                Poll::Ready(Ok(n)) => n,
                // Reading tells why.
                Poll::Ready(Err(_)) => rest.len(),
            },
            // The connection has ended: its data are dropped.
            None => rest.len(),
        };
        *moved = true;
        self.wire.record_passed_on(name, passed, out);
        let Some(pending) = &mut self.pending else {
            return true;
        };
        pending.done += passed;
        if pending.done < span.len {
            return false;
        }
        let taken = pending.taken;
        self.pending = None;
        self.carrier.consume_input(taken);
        true
    }

    /// Waits for ports to be connected, and passes on their bytes. In turns: none keeps the others waiting.
    fn poll_ports(&mut self, cx: &mut Context<'_>, moved: &mut bool) {
        let mut buffer = [0; PAYLOAD_BYTES];
        let mut left = self.connections.len();
        self.first = self.first.wrapping_add(1);
        let mut at = self.first.checked_rem(left).unwrap_or(0);
        // Bounded: by the connections there are.
        while left > 0 && self.carrier.out.len() < OUT_BYTES {
            left -= 1;
            if at >= self.connections.len() {
                at = 0;
            }
            // A connection that ends leaves its place to another, which is then asked in the next round.
            self.poll_port(cx, at, &mut buffer, moved);
            at += 1;
        }
    }

    fn poll_port(&mut self, cx: &mut Context<'_>, at: usize, buffer: &mut [u8], moved: &mut bool) {
        let Some(connection) = self.connections.get_mut(at) else {
            return;
        };
        let name = connection.name;
        match &mut connection.port {
            PortState::Connecting(call) => {
                let Poll::Ready(connected) = call.as_mut().poll(cx) else {
                    return;
                };
                *moved = true;
                match connected.map(|fd| Async::new(TcpStream::from(fd))) {
                    Ok(Ok(stream)) => {
                        connection.port = PortState::Open {
                            stream,
                            waiting: false,
                        };
                        self.end_writing(at);
                    }
                    Ok(Err(e)) => self.fail_connection(at, &e.to_string()),
                    Err(RuntimeError::Failed(why)) => self.fail_connection(at, &why),
                    Err(e) => self.fail_connection(at, &e.to_string()),
                }
            }
            PortState::Open { stream, waiting } => {
                let room = self.wire.sendable_bytes(name).min(buffer.len());
                if connection.port_ended || room == 0 {
                    return;
                }
                let Poll::Ready(read) = poll_socket_read(stream, waiting, cx, &mut buffer[..room])
                else {
                    return;
                };
                *moved = true;
                let out = &mut self.carrier.out;
                match read {
                    Ok(0) => {
                        connection.port_ended = true;
                        connection.client_ended |= self.wire.finish_sending(name, out);
                        self.end_if_over(at);
                    }
                    Ok(n) => {
                        if !self.wire.send_data(name, &buffer[..n], out) {
                            self.connections.swap_remove(at);
                        }
                    }
                    Err(e) => self.fail_connection(at, &e.to_string()),
                }
            }
        }
    }
}

fn poll_socket_read(
    stream: &Async<TcpStream>,
    waiting: &mut bool,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    // Bounded: one read that succeeds, or the socket's word that it has nothing.
    loop {
        if *waiting {
            ready!(stream.poll_readable(cx))?;
            *waiting = false;
        }
        match stream.get_ref().read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => *waiting = true,
            read => return Poll::Ready(read),
        }
    }
}

fn poll_socket_write(
    stream: &Async<TcpStream>,
    cx: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    // Bounded: one write that succeeds, or the socket's word that it is full.
    loop {
        match stream.get_ref().write(bytes) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                ready!(stream.poll_writable(cx))?;
            }
            written => return Poll::Ready(written),
        }
    }
}
