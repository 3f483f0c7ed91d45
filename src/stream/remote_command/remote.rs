//! A session of exec or attach, over SPDY or WebSocket.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::size::Sizes;
use super::{Outcome, Size, Version, Wanted};
use crate::stream::spdy::{self, GoAway, Gone, Reset, Session, StreamId};
use crate::stream::websocket::{self, ChannelEvent, Channels, Protocol};
use crate::stream::{Span, Step};

/// The session's streams; the numbers are WebSocket's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Role {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    Error = 3,
    Resize = 4,
}

impl Role {
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

    fn of(stream_type: &str) -> Option<Self> {
        let names = ["stdin", "stdout", "stderr", "error", "resize"];
        let at = names.iter().position(|name| *name == stream_type)?;
        Self::ALL.get(at).copied()
    }

    const fn is_wanted(self, wanted: Wanted, sizes: bool) -> bool {
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
pub enum Output {
    /// Standard output, or the output of the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Output {
    const fn role(self) -> Role {
        match self {
            Self::Stdout => Role::Stdout,
            Self::Stderr => Role::Stderr,
        }
    }
}

/// An event from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client has made all streams: start. Comes once, before all others but [`Event::Left`] (and input of a client
    /// that did not wait).
    Ready,
    /// Input; to be reported with [`Remote::passed_on`].
    Stdin(Span),
    /// The input has ended.
    StdinEnd,
    /// The terminal has this size now.
    Resize(Size),
    /// The client is gone. So it is when its connection ends.
    Left,
}

/// Breach of the protocol by a client; the session cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Breach of SPDY.
    #[error(transparent)]
    Spdy(#[from] spdy::Error),
    /// Breach of WebSocket.
    #[error(transparent)]
    WebSocket(#[from] websocket::Error),
}

#[derive(Debug)]
enum Wire {
    Spdy {
        session: Box<Session>,
        version: Version,
        streams: [Option<StreamId>; Role::ALL.len()],
    },
    WebSocket(Box<Channels>),
}

/// A session of exec or attach. See [`super`] for how it is driven.
#[derive(Debug)]
pub struct Remote {
    wire: Wire,
    wanted: Wanted,
    sizes: Sizes,
    /// Events that came about together with the last one, and are still to be told.
    ready: bool,
    stdin_end: bool,
    stdin_ended: bool,
}

impl Remote {
    /// Makes a session over SPDY.
    #[must_use]
    pub fn spdy(version: Version, wanted: Wanted) -> Self {
        let wire = Wire::Spdy {
            session: Box::default(),
            version,
            streams: [None; Role::ALL.len()],
        };
        Self::new(wire, wanted)
    }

    /// Makes a session over WebSocket. A first, empty message tells the client that the connection stands.
    #[must_use]
    pub fn web_socket(protocol: Protocol, wanted: Wanted, out: &mut Vec<u8>) -> Self {
        let mut channels = Box::new(Channels::new(protocol));
        let lowest = if wanted.stdout {
            Role::Stdout
        } else if wanted.stderr {
            Role::Stderr
        } else {
            Role::Error
        };
        channels.send(lowest.channel(), &[], out);
        let mut remote = Self::new(Wire::WebSocket(channels), wanted);
        remote.ready = true;
        remote
    }

    const fn new(wire: Wire, wanted: Wanted) -> Self {
        Self {
            wire,
            wanted,
            sizes: Sizes::new(),
            ready: false,
            stdin_end: false,
            stdin_ended: false,
        }
    }

    /// Takes bytes of `input`, up to the first event.
    ///
    /// - Errors: [`Remote::abort`], then close.
    pub fn receive(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Result<Step<Event>, Error> {
        let mut at = 0;
        loop {
            if core::mem::take(&mut self.ready) {
                return Ok(Step::new(at, Event::Ready));
            }
            if core::mem::take(&mut self.stdin_end)
                && !core::mem::replace(&mut self.stdin_ended, true)
            {
                return Ok(Step::new(at, Event::StdinEnd));
            }
            let rest = input.get_mut(at..).unwrap_or_default();
            let step = match &mut self.wire {
                Wire::Spdy { session, .. } => {
                    let step = session.receive(rest, out)?;
                    Step {
                        taken: step.taken,
                        event: step.event.map(Happened::Spdy),
                    }
                }
                Wire::WebSocket(channels) => {
                    let step = channels.receive(rest, out)?;
                    Step {
                        taken: step.taken,
                        event: step.event.map(Happened::WebSocket),
                    }
                }
            };
            let base = at;
            at += step.taken;
            let event = match step.event {
                None => return Ok(Step::took(at)),
                Some(Happened::Spdy(event)) => self.on_spdy(event, base, input, out),
                Some(Happened::WebSocket(event)) => self.on_channel(event, base, input),
            };
            if let Some(event) = event {
                return Ok(Step::new(at, event));
            }
        }
    }

    /// `bytes` of input have left the caller's hands.
    pub fn passed_on(&mut self, bytes: usize, out: &mut Vec<u8>) {
        if let Wire::Spdy {
            session, streams, ..
        } = &mut self.wire
        {
            session.passed_on(streams[Role::Stdin.index()].unwrap_or(0), bytes, out);
        }
    }

    /// Number of bytes of an output that the client takes now. An output that it does not want has no limit: its bytes
    /// are dropped.
    #[must_use]
    pub fn sendable(&self, output: Output) -> usize {
        match &self.wire {
            Wire::Spdy {
                session, streams, ..
            } => {
                let id = streams[output.role().index()].filter(|id| session.is_open(*id));
                id.map_or(usize::MAX, |id| session.sendable(id))
            }
            Wire::WebSocket(_) => usize::MAX,
        }
    }

    /// Sends output, at most [`Remote::sendable`] and [`crate::stream::PAYLOAD_BYTES`]. An output that was not asked
    /// for is dropped.
    ///
    /// - Errors: the client wants no more of it.
    pub fn send(&mut self, output: Output, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Gone> {
        let role = output.role();
        if payload.is_empty() || !role.is_wanted(self.wanted, true) {
            return Ok(());
        }
        match &mut self.wire {
            Wire::Spdy {
                session, streams, ..
            } => {
                let id = streams[role.index()].ok_or(Gone)?;
                session.send(id, payload, out)
            }
            Wire::WebSocket(channels) => {
                channels.send(role.channel(), payload, out);
                Ok(())
            }
        }
    }

    /// Tells how the command ended, and says goodbye. Comes behind all output.
    pub fn end(&mut self, outcome: &Outcome, out: &mut Vec<u8>) {
        let text = self.last_words(outcome);
        match &mut self.wire {
            Wire::Spdy {
                session, streams, ..
            } => {
                let error = streams[Role::Error.index()];
                if let Some(id) = error.filter(|_| !text.is_empty()) {
                    // If it was reset, nobody wants to know.
                    let _ = session.send(id, text.as_bytes(), out);
                }
                for id in streams.iter().flatten() {
                    session.finish(*id, out);
                }
                session.go_away(GoAway::Ok, out);
            }
            Wire::WebSocket(channels) => {
                if !text.is_empty() {
                    channels.send(Role::Error.channel(), text.as_bytes(), out);
                }
                channels.close(websocket::NORMAL, out);
            }
        }
    }

    /// Says that the client broke the protocol.
    pub fn abort(&mut self, why: Error, out: &mut Vec<u8>) {
        match (&mut self.wire, why) {
            (Wire::Spdy { session, .. }, _) => session.go_away(GoAway::ProtocolError, out),
            (Wire::WebSocket(channels), Error::WebSocket(e)) => channels.close(e.code(), out),
            (Wire::WebSocket(channels), Error::Spdy(_)) => channels.close(websocket::NORMAL, out),
        }
    }

    fn last_words(&self, outcome: &Outcome) -> String {
        let status = match &self.wire {
            Wire::Spdy { version, .. } => *version == Version::V4,
            Wire::WebSocket(channels) => matches!(
                channels.protocol(),
                Protocol::V4 | Protocol::V4Base64 | Protocol::V5
            ),
        };
        if status {
            outcome.status()
        } else {
            outcome.message()
        }
    }

    fn on_spdy(
        &mut self,
        event: spdy::Event,
        base: usize,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let Wire::Spdy {
            session,
            version,
            streams,
        } = &mut self.wire
        else {
            return None;
        };
        let role = |id| {
            let at = streams.iter().position(|s| *s == Some(id))?;
            Role::ALL.get(at).copied()
        };
        match event {
            spdy::Event::Open { id, fin } => {
                let sizes = *version >= Version::V3;
                let role = session.headers().get("streamtype").and_then(Role::of);
                let role = role.filter(|r| r.is_wanted(self.wanted, sizes));
                let Some(role) = role.filter(|r| streams[r.index()].is_none()) else {
                    session.reset(id, Reset::ProtocolError, out);
                    return None;
                };
                streams[role.index()] = Some(id);
                session.reply(id, out);
                self.stdin_end |= fin && role == Role::Stdin;
                self.ready = Role::ALL
                    .iter()
                    .all(|r| streams[r.index()].is_some() || !r.is_wanted(self.wanted, sizes));
                None
            }
            spdy::Event::Data { id, span } => {
                let span = span.after(base);
                match role(id) {
                    Some(Role::Stdin) => return Some(Event::Stdin(span)),
                    Some(Role::Resize) => {
                        session.passed_on(id, span.len, out);
                        return self.sizes.feed(span.of(input)).map(Event::Resize);
                    }
                    Some(Role::Stdout | Role::Stderr | Role::Error) | None => {}
                }
                session.passed_on(id, span.len, out);
                None
            }
            spdy::Event::End { id } | spdy::Event::Reset { id } => {
                self.stdin_end |= role(id) == Some(Role::Stdin);
                None
            }
            spdy::Event::GoAway => Some(Event::Left),
            // Only a client gets them.
            spdy::Event::Reply { .. } => None,
        }
    }

    fn on_channel(&mut self, event: ChannelEvent, base: usize, input: &[u8]) -> Option<Event> {
        const STDIN: u8 = Role::Stdin.channel();
        const RESIZE: u8 = Role::Resize.channel();
        match event {
            ChannelEvent::Data { channel, span } => {
                let span = span.after(base);
                match channel {
                    STDIN if self.wanted.stdin && !self.stdin_ended => Some(Event::Stdin(span)),
                    RESIZE => self.sizes.feed(span.of(input)).map(Event::Resize),
                    _ => None,
                }
            }
            ChannelEvent::End { channel } => {
                self.stdin_end |= channel == STDIN && self.wanted.stdin;
                None
            }
            ChannelEvent::Left => Some(Event::Left),
        }
    }
}

const _: () = assert!(size_of::<Remote>() <= 256, "one per session");

enum Happened {
    Spdy(spdy::Event),
    WebSocket(ChannelEvent),
}
