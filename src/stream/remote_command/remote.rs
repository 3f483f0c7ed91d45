//! A session of exec or attach, over SPDY or WebSocket.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::size::TerminalSizeReader;
use super::{CommandOutcome, RemoteCommandVersion, RequestedStreams, TerminalSize};
use crate::stream::spdy::{
    self, GoAwayReason, ResetReason, SpdySession, SpdyStreamId, StreamClosedError,
};
use crate::stream::websocket::{self, ChannelEvent, ChannelProtocol, Channels};
use crate::stream::{MachineStep, Span};

/// The session's streams; the numbers are WebSocket's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum StreamRole {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    Error = 3,
    Resize = 4,
}

impl StreamRole {
    const ALL: [Self; 5] = [
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Error,
        Self::Resize,
    ];

    const fn index(self) -> usize {
        self as usize
    }

    const fn channel(self) -> u8 {
        self as u8
    }

    fn from_stream_type(stream_type: &str) -> Option<Self> {
        let names = ["stdin", "stdout", "stderr", "error", "resize"];
        let at = names.iter().position(|name| *name == stream_type)?;
        Self::ALL.get(at).copied()
    }

    const fn is_wanted(self, wanted: RequestedStreams, sizes: bool) -> bool {
        match self {
            Self::Stdin => wanted.stdin,
            Self::Stdout => wanted.stdout,
            Self::Stderr => wanted.stderr,
            Self::Error => true,
            Self::Resize => wanted.tty && sizes,
        }
    }
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output, or the output of the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    const fn stream_role(self) -> StreamRole {
        match self {
            Self::Stdout => StreamRole::Stdout,
            Self::Stderr => StreamRole::Stderr,
        }
    }
}

/// An event from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteCommandEvent {
    /// The client has made all streams: start. Comes once, before all others but [`RemoteCommandEvent::Left`] (and
    /// input of a client that did not wait).
    Ready,
    /// Input; to be reported with [`RemoteCommandSession::record_passed_on`].
    Stdin(Span),
    /// The input has ended.
    StdinEnd,
    /// The terminal has this size now.
    Resize(TerminalSize),
    /// The client is gone. So it is when its connection ends.
    Left,
}

/// Breach of the protocol by a client; the session cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteCommandError {
    /// Breach of SPDY.
    #[error(transparent)]
    Spdy(#[from] spdy::SpdyError),
    /// Breach of WebSocket.
    #[error(transparent)]
    WebSocket(#[from] websocket::WebSocketError),
}

#[derive(Debug)]
enum RemoteCommandTransport {
    Spdy {
        session: Box<SpdySession>,
        version: RemoteCommandVersion,
        streams: [Option<SpdyStreamId>; StreamRole::ALL.len()],
    },
    WebSocket(Box<Channels>),
}

/// A session of exec or attach. See [`super`] for how it is driven.
#[derive(Debug)]
pub struct RemoteCommandSession {
    wire: RemoteCommandTransport,
    wanted: RequestedStreams,
    sizes: TerminalSizeReader,
    /// Events that came about together with the last one, and are still to be told.
    ready: bool,
    stdin_end: bool,
    stdin_ended: bool,
}

impl RemoteCommandSession {
    /// Makes a session over SPDY.
    #[must_use]
    pub fn over_spdy(version: RemoteCommandVersion, wanted: RequestedStreams) -> Self {
        let wire = RemoteCommandTransport::Spdy {
            session: Box::default(),
            version,
            streams: [None; StreamRole::ALL.len()],
        };
        Self::new(wire, wanted)
    }

    /// Makes a session over WebSocket. A first, empty message tells the client that the connection stands.
    #[must_use]
    pub fn over_web_socket(
        protocol: ChannelProtocol,
        wanted: RequestedStreams,
        out: &mut Vec<u8>,
    ) -> Self {
        let mut channels = Box::new(Channels::new(protocol));
        let lowest = if wanted.stdout {
            StreamRole::Stdout
        } else if wanted.stderr {
            StreamRole::Stderr
        } else {
            StreamRole::Error
        };
        channels.send_message(lowest.channel(), &[], out);
        let mut remote = Self::new(RemoteCommandTransport::WebSocket(channels), wanted);
        remote.ready = true;
        remote
    }

    const fn new(wire: RemoteCommandTransport, wanted: RequestedStreams) -> Self {
        Self {
            wire,
            wanted,
            sizes: TerminalSizeReader::new(),
            ready: false,
            stdin_end: false,
            stdin_ended: false,
        }
    }

    /// Takes bytes of `input`, up to the first event.
    ///
    /// - Errors: [`RemoteCommandSession::abort_session`], then close.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<RemoteCommandEvent>, RemoteCommandError> {
        let mut at = 0;
        loop {
            if core::mem::take(&mut self.ready) {
                return Ok(MachineStep::new(at, RemoteCommandEvent::Ready));
            }
            if core::mem::take(&mut self.stdin_end)
                && !core::mem::replace(&mut self.stdin_ended, true)
            {
                return Ok(MachineStep::new(at, RemoteCommandEvent::StdinEnd));
            }
            let rest = input.get_mut(at..).unwrap_or_default();
            let step = match &mut self.wire {
                RemoteCommandTransport::Spdy { session, .. } => {
                    let step = session.receive_input(rest, out)?;
                    MachineStep {
                        taken: step.taken,
                        event: step.event.map(TransportEvent::Spdy),
                    }
                }
                RemoteCommandTransport::WebSocket(channels) => {
                    let step = channels.receive_input(rest, out)?;
                    MachineStep {
                        taken: step.taken,
                        event: step.event.map(TransportEvent::WebSocket),
                    }
                }
            };
            let base = at;
            at += step.taken;
            let event = match step.event {
                None => return Ok(MachineStep::without_event(at)),
                Some(TransportEvent::Spdy(event)) => {
                    self.handle_spdy_event(event, base, input, out)
                }
                Some(TransportEvent::WebSocket(event)) => {
                    self.handle_channel_event(event, base, input)
                }
            };
            if let Some(event) = event {
                return Ok(MachineStep::new(at, event));
            }
        }
    }

    /// `bytes` of input have left the caller's hands.
    pub fn record_passed_on(&mut self, bytes: usize, out: &mut Vec<u8>) {
        if let RemoteCommandTransport::Spdy {
            session, streams, ..
        } = &mut self.wire
        {
            session.record_passed_on(streams[StreamRole::Stdin.index()].unwrap_or(0), bytes, out);
        }
    }

    /// Number of bytes of an output that the client takes now. An output that it does not want has no limit: its bytes
    /// are dropped.
    #[must_use]
    pub fn sendable_bytes(&self, output: OutputStream) -> usize {
        match &self.wire {
            RemoteCommandTransport::Spdy {
                session, streams, ..
            } => {
                let id =
                    streams[output.stream_role().index()].filter(|id| session.is_stream_open(*id));
                id.map_or(usize::MAX, |id| session.sendable_bytes(id))
            }
            RemoteCommandTransport::WebSocket(_) => usize::MAX,
        }
    }

    /// Sends output, at most [`RemoteCommandSession::sendable_bytes`] and [`crate::stream::PAYLOAD_BYTES`]. An output
    /// that was not asked for is dropped.
    ///
    /// - Errors: the client wants no more of it.
    pub fn send_output(
        &mut self,
        output: OutputStream,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClosedError> {
        let role = output.stream_role();
        if payload.is_empty() || !role.is_wanted(self.wanted, true) {
            return Ok(());
        }
        match &mut self.wire {
            RemoteCommandTransport::Spdy {
                session, streams, ..
            } => {
                let id = streams[role.index()].ok_or(StreamClosedError)?;
                session.send_data(id, payload, out)
            }
            RemoteCommandTransport::WebSocket(channels) => {
                channels.send_message(role.channel(), payload, out);
                Ok(())
            }
        }
    }

    /// Tells how the command ended, and says goodbye. Comes behind all output.
    pub fn send_outcome(&mut self, outcome: &CommandOutcome, out: &mut Vec<u8>) {
        let text = self.format_outcome(outcome);
        match &mut self.wire {
            RemoteCommandTransport::Spdy {
                session, streams, ..
            } => {
                let error = streams[StreamRole::Error.index()];
                if let Some(id) = error.filter(|_| !text.is_empty()) {
                    // If it was reset, nobody wants to know.
                    let _ = session.send_data(id, text.as_bytes(), out);
                }
                for id in streams.iter().flatten() {
                    session.finish_stream(*id, out);
                }
                session.send_go_away(GoAwayReason::Ok, out);
            }
            RemoteCommandTransport::WebSocket(channels) => {
                if !text.is_empty() {
                    channels.send_message(StreamRole::Error.channel(), text.as_bytes(), out);
                }
                channels.send_close(websocket::NORMAL, out);
            }
        }
    }

    /// Says that the client broke the protocol.
    pub fn abort_session(&mut self, why: RemoteCommandError, out: &mut Vec<u8>) {
        match (&mut self.wire, why) {
            (RemoteCommandTransport::Spdy { session, .. }, _) => {
                session.send_go_away(GoAwayReason::ProtocolError, out)
            }
            (RemoteCommandTransport::WebSocket(channels), RemoteCommandError::WebSocket(e)) => {
                channels.send_close(e.close_code(), out)
            }
            (RemoteCommandTransport::WebSocket(channels), RemoteCommandError::Spdy(_)) => {
                channels.send_close(websocket::NORMAL, out)
            }
        }
    }

    fn format_outcome(&self, outcome: &CommandOutcome) -> String {
        let status = match &self.wire {
            RemoteCommandTransport::Spdy { version, .. } => *version == RemoteCommandVersion::V4,
            RemoteCommandTransport::WebSocket(channels) => matches!(
                channels.protocol(),
                ChannelProtocol::V4 | ChannelProtocol::V4Base64 | ChannelProtocol::V5
            ),
        };
        if status {
            outcome.status_json()
        } else {
            outcome.message_text()
        }
    }

    fn handle_spdy_event(
        &mut self,
        event: spdy::SpdyEvent,
        base: usize,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<RemoteCommandEvent> {
        let RemoteCommandTransport::Spdy {
            session,
            version,
            streams,
        } = &mut self.wire
        else {
            return None;
        };
        let role = |id| {
            let at = streams.iter().position(|s| *s == Some(id))?;
            StreamRole::ALL.get(at).copied()
        };
        match event {
            spdy::SpdyEvent::Open { id, fin } => {
                let sizes = *version >= RemoteCommandVersion::V3;
                let role = session
                    .headers()
                    .get("streamtype")
                    .and_then(StreamRole::from_stream_type);
                let role = role.filter(|r| r.is_wanted(self.wanted, sizes));
                let Some(role) = role.filter(|r| streams[r.index()].is_none()) else {
                    session.reset_stream(id, ResetReason::ProtocolError, out);
                    return None;
                };
                streams[role.index()] = Some(id);
                session.accept_stream(id, out);
                self.stdin_end |= fin && role == StreamRole::Stdin;
                self.ready = StreamRole::ALL
                    .iter()
                    .all(|r| streams[r.index()].is_some() || !r.is_wanted(self.wanted, sizes));
                None
            }
            spdy::SpdyEvent::Data { id, span } => {
                let span = span.shifted_by(base);
                match role(id) {
                    Some(StreamRole::Stdin) => return Some(RemoteCommandEvent::Stdin(span)),
                    Some(StreamRole::Resize) => {
                        session.record_passed_on(id, span.len, out);
                        return self
                            .sizes
                            .read_piece(span.slice_of(input))
                            .map(RemoteCommandEvent::Resize);
                    }
                    Some(StreamRole::Stdout | StreamRole::Stderr | StreamRole::Error) | None => {}
                }
                session.record_passed_on(id, span.len, out);
                None
            }
            spdy::SpdyEvent::End { id } | spdy::SpdyEvent::Reset { id } => {
                self.stdin_end |= role(id) == Some(StreamRole::Stdin);
                None
            }
            spdy::SpdyEvent::GoAway => Some(RemoteCommandEvent::Left),
            // Only a client gets them.
            spdy::SpdyEvent::Reply { .. } => None,
        }
    }

    fn handle_channel_event(
        &mut self,
        event: ChannelEvent,
        base: usize,
        input: &[u8],
    ) -> Option<RemoteCommandEvent> {
        const STDIN: u8 = StreamRole::Stdin.channel();
        const RESIZE: u8 = StreamRole::Resize.channel();
        match event {
            ChannelEvent::Data { channel, span } => {
                let span = span.shifted_by(base);
                match channel {
                    STDIN if self.wanted.stdin && !self.stdin_ended => {
                        Some(RemoteCommandEvent::Stdin(span))
                    }
                    RESIZE => self
                        .sizes
                        .read_piece(span.slice_of(input))
                        .map(RemoteCommandEvent::Resize),
                    _ => None,
                }
            }
            ChannelEvent::End { channel } => {
                self.stdin_end |= channel == STDIN && self.wanted.stdin;
                None
            }
            ChannelEvent::Left => Some(RemoteCommandEvent::Left),
        }
    }
}

const _: () = assert!(size_of::<RemoteCommandSession>() <= 256, "one per session");

enum TransportEvent {
    Spdy(spdy::SpdyEvent),
    WebSocket(ChannelEvent),
}
