//! Connections as pairs of SPDY streams.
//!
//! ```text
//! client                                       here
//! SYN_STREAM error, port, requestID  ───────▶
//! SYN_STREAM data,  port, requestID  ───────▶  Connect
//! DATA, FIN on data                  ───────▶  Data, End
//!                                    ◀───────  DATA on data (send), FIN on both (finish)
//!                                    ◀───────  text on error, both reset (fail)
//! ```

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{CREATION_TIMEOUT, port};
use crate::api::Mono;
use crate::stream::spdy::{self, GoAway, Gone, Reset, Session, StreamId};
use crate::stream::websocket::{self, Tunnel};
use crate::stream::{OUT_BYTES, Span, Step};

/// Connections at once, whole or not.
pub const MAX_PAIRS: usize = spdy::MAX_STREAMS / 2;
/// Longest name of a pair; kubectl counts them.
const MAX_REQUEST_BYTES: usize = 64;

/// Names a connection; its data stream's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairId(StreamId);

/// An event from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection to this port.
    Connect {
        /// Id of the new connection.
        pair: PairId,
        /// 1 to 65535.
        port: u16,
    },
    /// Data; to be reported with [`Streams::passed_on`]. Never before [`Event::Connect`].
    Data {
        /// Connection of the data.
        pair: PairId,
        /// Place of the data.
        span: Span,
    },
    /// The client sends no more on this connection.
    End {
        /// Connection that ends.
        pair: PairId,
    },
    /// The client gave up this connection; it is forgotten.
    Reset {
        /// Connection that was given up.
        pair: PairId,
    },
    /// The client is gone. So it is when its connection ends.
    Left,
}

/// Breach of the protocol by a client; no connection can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Breach of SPDY.
    #[error(transparent)]
    Spdy(#[from] spdy::Error),
    /// Breach of WebSocket, in the tunnel.
    #[error(transparent)]
    WebSocket(#[from] websocket::Error),
}

#[derive(Debug)]
pub(super) enum Pair {
    /// A pair of which only the first stream has come.
    Half {
        request: Box<str>,
        port: u16,
        kind: Kind,
        id: StreamId,
        /// The client has sent its FIN on it.
        ended: bool,
        until: Mono,
    },
    Whole {
        data: StreamId,
        error: StreamId,
    },
}

const _: () = assert!(size_of::<Pair>() <= 48, "one per connection");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Error,
}

impl Pair {
    const fn has(&self, stream: StreamId) -> bool {
        match self {
            Self::Half { id, .. } => *id == stream,
            Self::Whole { data, error } => *data == stream || *error == stream,
        }
    }
}

/// The connections of one client.
#[derive(Debug)]
pub struct Streams {
    session: Box<Session>,
    tunnel: Option<Box<Tunnel>>,
    pub(super) pairs: Vec<Pair>,
    /// The pair that became whole last had been ended before.
    end: Option<PairId>,
}

impl Streams {
    /// Makes a session over SPDY.
    #[must_use]
    pub fn new() -> Self {
        Self {
            session: Box::default(),
            tunnel: None,
            pairs: Vec::new(),
            end: None,
        }
    }

    /// Makes a session over SPDY in WebSocket.
    #[must_use]
    pub fn tunnelled() -> Self {
        Self {
            tunnel: Some(Box::default()),
            ..Self::new()
        }
    }

    /// Takes bytes of `input`, up to the first event.
    ///
    /// - Errors: [`Streams::abort`], then close.
    pub fn receive(
        &mut self,
        input: &mut [u8],
        now: Mono,
        out: &mut Vec<u8>,
    ) -> Result<Step<Event>, Error> {
        let mut at = 0;
        loop {
            if let Some(pair) = self.end.take() {
                return Ok(Step::new(at, Event::End { pair }));
            }
            let rest = input.get(at..).unwrap_or_default();
            let readable = self.tunnel.as_ref().map_or(rest.len(), |t| t.ready());
            let bytes = rest.get(..readable).unwrap_or_default();
            let step = self.with(out, |session, out| session.receive(bytes, out))?;
            let base = at;
            at += step.taken;
            if let Some(event) = step.event {
                self.tunnel_took(step.taken);
                if let Some(event) = self.on(event, base, now, out) {
                    return Ok(Step::new(at, event));
                }
                continue;
            }
            self.tunnel_took(step.taken);
            let Some(tunnel) = &mut self.tunnel else {
                return Ok(Step::took(at));
            };
            // SPDY has all there is. If it has not, `out` is full, and the tunnel takes nothing either.
            let step = tunnel.receive(input.get_mut(at..).unwrap_or_default(), out)?;
            at += step.taken;
            if step.event.is_some() {
                return Ok(Step::new(at, Event::Left));
            }
            if (tunnel.ready() == 0 && step.taken == 0) || out.len() >= OUT_BYTES {
                return Ok(Step::took(at));
            }
        }
    }

    /// Latest time at which to call [`Streams::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Mono> {
        let until = |pair: &Pair| match pair {
            Pair::Half { until, .. } => Some(*until),
            Pair::Whole { .. } => None,
        };
        self.pairs.iter().filter_map(until).min()
    }

    /// Drops streams whose mate has not come in time.
    pub fn handle_timeout(&mut self, now: Mono, out: &mut Vec<u8>) {
        let late = |pair: &Pair| matches!(pair, Pair::Half { until, .. } if *until <= now);
        while let Some(at) = self.pairs.iter().position(late) {
            if let Pair::Half { kind, id, .. } = self.pairs.swap_remove(at) {
                self.with(out, |session, out| {
                    if kind == Kind::Error {
                        let _ = session.send(id, b"timed out waiting for streams", out);
                    }
                    session.reset(id, Reset::Cancel, out);
                });
            }
        }
    }

    /// `bytes` of data have left the caller's hands.
    pub fn passed_on(&mut self, pair: PairId, bytes: usize, out: &mut Vec<u8>) {
        self.with(out, |session, out| session.passed_on(pair.0, bytes, out));
    }

    /// Number of bytes that the client takes now.
    #[must_use]
    pub fn sendable(&self, pair: PairId) -> usize {
        self.session.sendable(pair.0)
    }

    /// Sends bytes of the port, at most [`Streams::sendable`] and [`crate::stream::PAYLOAD_BYTES`].
    ///
    /// - Errors: the client gave the connection up.
    pub fn send(&mut self, pair: PairId, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Gone> {
        self.with(out, |session, out| session.send(pair.0, payload, out))
    }

    /// The port sends no more. The client may still send.
    pub fn finish(&mut self, pair: PairId, out: &mut Vec<u8>) {
        let Some(error) = self.error_stream(pair) else {
            return;
        };
        self.with(out, |session, out| {
            session.finish(pair.0, out);
            session.finish(error, out);
        });
        self.forget_if_over(pair.0);
    }

    /// Closes a connection both of whose directions have ended: resets the streams that are left of the pair.
    pub fn close(&mut self, pair: PairId, out: &mut Vec<u8>) {
        self.finish(pair, out);
        if let Some(error) = self.error_stream(pair) {
            self.with(out, |session, out| {
                session.reset(pair.0, Reset::Cancel, out);
                session.reset(error, Reset::Cancel, out);
            });
            self.forget(pair.0);
        }
    }

    /// The port cannot be connected to, or broke off. Other connections go on.
    pub fn fail(&mut self, pair: PairId, why: &str, out: &mut Vec<u8>) {
        if let Some(error) = self.error_stream(pair) {
            self.with(out, |session, out| {
                let _ = session.send(error, why.as_bytes(), out);
                session.finish(error, out);
                session.reset(pair.0, Reset::Cancel, out);
                session.reset(error, Reset::Cancel, out);
            });
            self.forget(pair.0);
        }
    }

    /// Says goodbye. Comes behind all data.
    pub fn go_away(&mut self, out: &mut Vec<u8>) {
        self.with(out, |session, out| session.go_away(GoAway::Ok, out));
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.close(websocket::NORMAL, out);
        }
    }

    /// Says that the client broke the protocol.
    pub fn abort(&mut self, why: Error, out: &mut Vec<u8>) {
        self.with(out, |session, out| {
            session.go_away(GoAway::ProtocolError, out)
        });
        if let Some(tunnel) = &mut self.tunnel {
            let code = match why {
                Error::WebSocket(e) => e.code(),
                Error::Spdy(_) => websocket::NORMAL,
            };
            tunnel.close(code, out);
        }
    }

    fn tunnel_took(&mut self, bytes: usize) {
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.took(bytes);
        }
    }

    /// Calls `act`; its frames go through the tunnel, if there is one.
    fn with<R>(
        &mut self,
        out: &mut Vec<u8>,
        act: impl FnOnce(&mut Session, &mut Vec<u8>) -> R,
    ) -> R {
        let session = &mut self.session;
        match &mut self.tunnel {
            Some(tunnel) => tunnel.wrap(out, |out| act(session, out)),
            None => act(session, out),
        }
    }

    fn on(
        &mut self,
        event: spdy::Event,
        base: usize,
        now: Mono,
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        match event {
            spdy::Event::Open { id, fin } => self.opened(id, fin, now, out),
            spdy::Event::Data { id, span } => {
                let pair = PairId(id);
                if self.error_stream(pair).is_some() {
                    let span = span.after(base);
                    return Some(Event::Data { pair, span });
                }
                // Data before its connection has no place to go; bytes on an error stream are of no use.
                let early = |p: &Pair| {
                    matches!(
                        p,
                        Pair::Half {
                            kind: Kind::Data,
                            ..
                        }
                    ) && p.has(id)
                };
                if let Some(at) = self.pairs.iter().position(early) {
                    self.refuse(at, out);
                }
                self.with(out, |session, out| session.passed_on(id, span.len, out));
                None
            }
            spdy::Event::End { id } => {
                for pair in &mut self.pairs {
                    if let Pair::Half {
                        id: half, ended, ..
                    } = pair
                        && *half == id
                    {
                        *ended = true;
                    }
                }
                let pair = PairId(id);
                let known = self.error_stream(pair).is_some();
                self.forget_if_over(id);
                known.then_some(Event::End { pair })
            }
            spdy::Event::Reset { id } => {
                let at = self.pairs.iter().position(|p| p.has(id))?;
                // Without its error stream a connection goes on.
                if let Some(Pair::Whole { data, error }) = self.pairs.get(at)
                    && *data != id
                {
                    let (data, error) = (*data, *error);
                    debug_assert_eq!(error, id);
                    self.forget_if_over(data);
                    return None;
                }
                match self.pairs.swap_remove(at) {
                    Pair::Half { .. } => None,
                    Pair::Whole { data, error } => {
                        self.with(out, |session, out| session.reset(error, Reset::Cancel, out));
                        Some(Event::Reset { pair: PairId(data) })
                    }
                }
            }
            spdy::Event::GoAway => Some(Event::Left),
            // Only a client gets them.
            spdy::Event::Reply { .. } => None,
        }
    }

    fn opened(&mut self, id: StreamId, fin: bool, now: Mono, out: &mut Vec<u8>) -> Option<Event> {
        let headers = self.session.headers();
        let kind = match headers.get("streamtype") {
            Some("data") => Some(Kind::Data),
            Some("error") => Some(Kind::Error),
            Some(_) | None => None,
        };
        let port = headers.get("port").and_then(port);
        let request: Option<Box<str>> = match (headers.get("requestid").unwrap_or(""), kind) {
            // An old client: the error stream comes first, the data stream right behind it.
            ("", Some(Kind::Data)) => Some(number(id.saturating_sub(2))),
            ("", _) => Some(number(id)),
            (name, _) if name.len() <= MAX_REQUEST_BYTES => Some(name.into()),
            _ => None,
        };
        // No byte could be sent back on such a stream, not even that the port has ended.
        let is_deaf = kind == Some(Kind::Data) && !self.session.is_open(id);
        let (Some(kind), Some(port), Some(request), false) = (kind, port, request, is_deaf) else {
            self.with(out, |s, out| s.reset(id, Reset::ProtocolError, out));
            return None;
        };
        let of_request = |p: &Pair| matches!(p, Pair::Half { request: r, .. } if *r == request);
        if let Some(at) = self.pairs.iter().position(of_request) {
            return self.mate(at, kind, id, fin, out);
        }
        if self.pairs.len() >= MAX_PAIRS {
            self.with(out, |s, out| s.reset(id, Reset::RefusedStream, out));
            return None;
        }
        self.with(out, |session, out| session.reply(id, out));
        debug_assert!(self.pairs.len() < MAX_PAIRS);
        self.pairs.push(Pair::Half {
            request,
            port,
            kind,
            id,
            ended: fin,
            until: now + CREATION_TIMEOUT,
        });
        None
    }

    /// A stream of the same request as the half pair `at`.
    fn mate(
        &mut self,
        at: usize,
        kind: Kind,
        id: StreamId,
        fin: bool,
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let Some(Pair::Half {
            kind: first_kind,
            id: first,
            port,
            ended,
            ..
        }) = self.pairs.get(at)
        else {
            return None;
        };
        let (first_kind, first, port, ended) = (*first_kind, *first, *port, *ended);
        if first_kind == kind {
            self.with(out, |s, out| s.reset(id, Reset::ProtocolError, out));
            self.refuse(at, out);
            return None;
        }
        self.with(out, |session, out| session.reply(id, out));
        let (data, error, ended) = match kind {
            Kind::Data => (id, first, fin),
            Kind::Error => (first, id, ended),
        };
        self.pairs[at] = Pair::Whole { data, error };
        let pair = PairId(data);
        self.end = ended.then_some(pair);
        Some(Event::Connect { pair, port })
    }

    /// Drops the half pair `at`, saying why if its error stream is there.
    fn refuse(&mut self, at: usize, out: &mut Vec<u8>) {
        if let Pair::Half { kind, id, .. } = self.pairs.swap_remove(at) {
            self.with(out, |session, out| {
                if kind == Kind::Error {
                    let _ = session.send(id, b"error processing stream", out);
                }
                session.reset(id, Reset::ProtocolError, out);
            });
        }
    }

    /// The error stream of a whole pair.
    fn error_stream(&self, pair: PairId) -> Option<StreamId> {
        self.pairs.iter().find_map(|p| match p {
            Pair::Whole { data, error } if *data == pair.0 => Some(*error),
            Pair::Whole { .. } | Pair::Half { .. } => None,
        })
    }

    fn forget(&mut self, stream: StreamId) {
        self.pairs.retain(|p| !p.has(stream));
    }

    /// Forgets a pair of whose data stream nothing is left.
    fn forget_if_over(&mut self, data: StreamId) {
        if !self.session.has(data) {
            self.pairs
                .retain(|p| !matches!(p, Pair::Whole { data: d, .. } if *d == data));
        }
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self::new()
    }
}

/// The name of a pair that has none.
fn number(id: StreamId) -> Box<str> {
    alloc::format!("#{id}").into_boxed_str()
}
