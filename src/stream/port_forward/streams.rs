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

use super::{CREATION_TIMEOUT, parse_port};
use crate::api::MonoTime;
use crate::stream::spdy::{
    self, GoAwayReason, ResetReason, SpdySession, SpdyStreamId, StreamClosedError,
};
use crate::stream::websocket::{self, SpdyTunnel};
use crate::stream::{MachineStep, OUT_BYTES, Span};

/// Connections at once, whole or not.
pub const MAX_PAIRS: usize = spdy::MAX_STREAMS / 2;
/// Longest name of a pair; kubectl counts them.
const MAX_REQUEST_BYTES: usize = 64;

/// Names a connection; its data stream's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairId(SpdyStreamId);

/// An event from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpdyPortEvent {
    /// A connection to this port.
    Connect {
        /// Id of the new connection.
        pair: PairId,
        /// 1 to 65535.
        port: u16,
    },
    /// Data; to be reported with [`SpdyPortForward::record_passed_on`]. Never before [`SpdyPortEvent::Connect`].
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
pub enum PortForwardError {
    /// Breach of SPDY.
    #[error(transparent)]
    Spdy(#[from] spdy::SpdyError),
    /// Breach of WebSocket, in the tunnel.
    #[error(transparent)]
    WebSocket(#[from] websocket::WebSocketError),
}

#[derive(Debug)]
pub(super) enum StreamPair {
    /// A pair of which only the first stream has come.
    Half {
        request: Box<str>,
        port: u16,
        kind: PairStreamKind,
        id: SpdyStreamId,
        /// The client has sent its FIN on it.
        ended: bool,
        until: MonoTime,
    },
    Whole {
        data: SpdyStreamId,
        error: SpdyStreamId,
    },
}

const _: () = assert!(size_of::<StreamPair>() <= 48, "one per connection");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairStreamKind {
    Data,
    Error,
}

impl StreamPair {
    const fn has_stream(&self, stream: SpdyStreamId) -> bool {
        match self {
            Self::Half { id, .. } => *id == stream,
            Self::Whole { data, error } => *data == stream || *error == stream,
        }
    }
}

/// The connections of one client.
#[derive(Debug)]
pub struct SpdyPortForward {
    session: Box<SpdySession>,
    tunnel: Option<Box<SpdyTunnel>>,
    pub(super) pairs: Vec<StreamPair>,
    /// The pair that became whole last had been ended before.
    end: Option<PairId>,
}

impl SpdyPortForward {
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
    pub fn over_web_socket() -> Self {
        Self {
            tunnel: Some(Box::default()),
            ..Self::new()
        }
    }

    /// Takes bytes of `input`, up to the first event.
    ///
    /// - Errors: [`SpdyPortForward::abort_session`], then close.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        now: MonoTime,
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<SpdyPortEvent>, PortForwardError> {
        let mut at = 0;
        loop {
            if let Some(pair) = self.end.take() {
                return Ok(MachineStep::new(at, SpdyPortEvent::End { pair }));
            }
            let rest = input.get(at..).unwrap_or_default();
            let readable = self.tunnel.as_ref().map_or(rest.len(), |t| t.ready_bytes());
            let bytes = rest.get(..readable).unwrap_or_default();
            let step = self.with_session(out, |session, out| session.receive_input(bytes, out))?;
            let base = at;
            at += step.taken;
            if let Some(event) = step.event {
                self.record_tunnel_taken(step.taken);
                if let Some(event) = self.handle_spdy_event(event, base, now, out) {
                    return Ok(MachineStep::new(at, event));
                }
                continue;
            }
            self.record_tunnel_taken(step.taken);
            let Some(tunnel) = &mut self.tunnel else {
                return Ok(MachineStep::without_event(at));
            };
            // SPDY has all there is. If it has not, `out` is full, and the tunnel takes nothing either.
            let step = tunnel.receive_input(input.get_mut(at..).unwrap_or_default(), out)?;
            at += step.taken;
            if step.event.is_some() {
                return Ok(MachineStep::new(at, SpdyPortEvent::Left));
            }
            if (tunnel.ready_bytes() == 0 && step.taken == 0) || out.len() >= OUT_BYTES {
                return Ok(MachineStep::without_event(at));
            }
        }
    }

    /// Latest time at which to call [`SpdyPortForward::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let until = |pair: &StreamPair| match pair {
            StreamPair::Half { until, .. } => Some(*until),
            StreamPair::Whole { .. } => None,
        };
        self.pairs.iter().filter_map(until).min()
    }

    /// Drops streams whose mate has not come in time.
    pub fn handle_timeout(&mut self, now: MonoTime, out: &mut Vec<u8>) {
        let late =
            |pair: &StreamPair| matches!(pair, StreamPair::Half { until, .. } if *until <= now);
        while let Some(at) = self.pairs.iter().position(late) {
            if let StreamPair::Half { kind, id, .. } = self.pairs.swap_remove(at) {
                self.with_session(out, |session, out| {
                    if kind == PairStreamKind::Error {
                        let _ = session.send_data(id, b"timed out waiting for streams", out);
                    }
                    session.reset_stream(id, ResetReason::Cancel, out);
                });
            }
        }
    }

    /// `bytes` of data have left the caller's hands.
    pub fn record_passed_on(&mut self, pair: PairId, bytes: usize, out: &mut Vec<u8>) {
        self.with_session(out, |session, out| {
            session.record_passed_on(pair.0, bytes, out)
        });
    }

    /// Number of bytes that the client takes now.
    #[must_use]
    pub fn sendable_bytes(&self, pair: PairId) -> usize {
        self.session.sendable_bytes(pair.0)
    }

    /// Sends bytes of the port, at most [`SpdyPortForward::sendable_bytes`] and [`crate::stream::PAYLOAD_BYTES`].
    ///
    /// - Errors: the client gave the connection up.
    pub fn send_data(
        &mut self,
        pair: PairId,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), StreamClosedError> {
        self.with_session(out, |session, out| session.send_data(pair.0, payload, out))
    }

    /// The port sends no more. The client may still send.
    pub fn finish_sending(&mut self, pair: PairId, out: &mut Vec<u8>) {
        let Some(error) = self.error_stream(pair) else {
            return;
        };
        self.with_session(out, |session, out| {
            session.finish_stream(pair.0, out);
            session.finish_stream(error, out);
        });
        self.forget_if_over(pair.0);
    }

    /// Closes a connection both of whose directions have ended: resets the streams that are left of the pair.
    pub fn close_pair(&mut self, pair: PairId, out: &mut Vec<u8>) {
        self.finish_sending(pair, out);
        if let Some(error) = self.error_stream(pair) {
            self.with_session(out, |session, out| {
                session.reset_stream(pair.0, ResetReason::Cancel, out);
                session.reset_stream(error, ResetReason::Cancel, out);
            });
            self.forget_pair_of(pair.0);
        }
    }

    /// The port cannot be connected to, or broke off. Other connections go on.
    pub fn fail_pair(&mut self, pair: PairId, why: &str, out: &mut Vec<u8>) {
        if let Some(error) = self.error_stream(pair) {
            self.with_session(out, |session, out| {
                let _ = session.send_data(error, why.as_bytes(), out);
                session.finish_stream(error, out);
                session.reset_stream(pair.0, ResetReason::Cancel, out);
                session.reset_stream(error, ResetReason::Cancel, out);
            });
            self.forget_pair_of(pair.0);
        }
    }

    /// Says goodbye. Comes behind all data.
    pub fn send_go_away(&mut self, out: &mut Vec<u8>) {
        self.with_session(out, |session, out| {
            session.send_go_away(GoAwayReason::Ok, out)
        });
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.send_close(websocket::NORMAL, out);
        }
    }

    /// Says that the client broke the protocol.
    pub fn abort_session(&mut self, why: PortForwardError, out: &mut Vec<u8>) {
        self.with_session(out, |session, out| {
            session.send_go_away(GoAwayReason::ProtocolError, out)
        });
        if let Some(tunnel) = &mut self.tunnel {
            let code = match why {
                PortForwardError::WebSocket(e) => e.close_code(),
                PortForwardError::Spdy(_) => websocket::NORMAL,
            };
            tunnel.send_close(code, out);
        }
    }

    fn record_tunnel_taken(&mut self, bytes: usize) {
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.record_taken(bytes);
        }
    }

    /// Calls `act`; its frames go through the tunnel, if there is one.
    fn with_session<R>(
        &mut self,
        out: &mut Vec<u8>,
        act: impl FnOnce(&mut SpdySession, &mut Vec<u8>) -> R,
    ) -> R {
        let session = &mut self.session;
        match &mut self.tunnel {
            Some(tunnel) => tunnel.wrap_message(out, |out| act(session, out)),
            None => act(session, out),
        }
    }

    fn handle_spdy_event(
        &mut self,
        event: spdy::SpdyEvent,
        base: usize,
        now: MonoTime,
        out: &mut Vec<u8>,
    ) -> Option<SpdyPortEvent> {
        match event {
            spdy::SpdyEvent::Open { id, fin } => self.handle_open(id, fin, now, out),
            spdy::SpdyEvent::Data { id, span } => {
                let pair = PairId(id);
                if self.error_stream(pair).is_some() {
                    let span = span.shifted_by(base);
                    return Some(SpdyPortEvent::Data { pair, span });
                }
                // Data before its connection has no place to go; bytes on an error stream are of no use.
                let early = |p: &StreamPair| {
                    matches!(
                        p,
                        StreamPair::Half {
                            kind: PairStreamKind::Data,
                            ..
                        }
                    ) && p.has_stream(id)
                };
                if let Some(at) = self.pairs.iter().position(early) {
                    self.refuse_half_pair(at, out);
                }
                self.with_session(out, |session, out| {
                    session.record_passed_on(id, span.len, out)
                });
                None
            }
            spdy::SpdyEvent::End { id } => {
                for pair in &mut self.pairs {
                    if let StreamPair::Half {
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
                known.then_some(SpdyPortEvent::End { pair })
            }
            spdy::SpdyEvent::Reset { id } => {
                let at = self.pairs.iter().position(|p| p.has_stream(id))?;
                // Without its error stream a connection goes on.
                if let Some(StreamPair::Whole { data, error }) = self.pairs.get(at)
                    && *data != id
                {
                    let (data, error) = (*data, *error);
                    debug_assert_eq!(error, id);
                    self.forget_if_over(data);
                    return None;
                }
                match self.pairs.swap_remove(at) {
                    StreamPair::Half { .. } => None,
                    StreamPair::Whole { data, error } => {
                        self.with_session(out, |session, out| {
                            session.reset_stream(error, ResetReason::Cancel, out)
                        });
                        Some(SpdyPortEvent::Reset { pair: PairId(data) })
                    }
                }
            }
            spdy::SpdyEvent::GoAway => Some(SpdyPortEvent::Left),
            // Only a client gets them.
            spdy::SpdyEvent::Reply { .. } => None,
        }
    }

    fn handle_open(
        &mut self,
        id: SpdyStreamId,
        fin: bool,
        now: MonoTime,
        out: &mut Vec<u8>,
    ) -> Option<SpdyPortEvent> {
        let headers = self.session.headers();
        let kind = match headers.get("streamtype") {
            Some("data") => Some(PairStreamKind::Data),
            Some("error") => Some(PairStreamKind::Error),
            Some(_) | None => None,
        };
        let port = headers.get("port").and_then(parse_port);
        let request: Option<Box<str>> = match (headers.get("requestid").unwrap_or(""), kind) {
            // An old client: the error stream comes first, the data stream right behind it.
            ("", Some(PairStreamKind::Data)) => Some(unnamed_pair_name(id.saturating_sub(2))),
            ("", _) => Some(unnamed_pair_name(id)),
            (name, _) if name.len() <= MAX_REQUEST_BYTES => Some(name.into()),
            _ => None,
        };
        // No byte could be sent back on such a stream, not even that the port has ended.
        let is_deaf = kind == Some(PairStreamKind::Data) && !self.session.is_stream_open(id);
        let (Some(kind), Some(port), Some(request), false) = (kind, port, request, is_deaf) else {
            self.with_session(out, |s, out| {
                s.reset_stream(id, ResetReason::ProtocolError, out)
            });
            return None;
        };
        let of_request =
            |p: &StreamPair| matches!(p, StreamPair::Half { request: r, .. } if *r == request);
        if let Some(at) = self.pairs.iter().position(of_request) {
            return self.join_half_pair(at, kind, id, fin, out);
        }
        if self.pairs.len() >= MAX_PAIRS {
            self.with_session(out, |s, out| {
                s.reset_stream(id, ResetReason::RefusedStream, out)
            });
            return None;
        }
        self.with_session(out, |session, out| session.accept_stream(id, out));
        debug_assert!(self.pairs.len() < MAX_PAIRS);
        self.pairs.push(StreamPair::Half {
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
    fn join_half_pair(
        &mut self,
        at: usize,
        kind: PairStreamKind,
        id: SpdyStreamId,
        fin: bool,
        out: &mut Vec<u8>,
    ) -> Option<SpdyPortEvent> {
        let Some(StreamPair::Half {
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
            self.with_session(out, |s, out| {
                s.reset_stream(id, ResetReason::ProtocolError, out)
            });
            self.refuse_half_pair(at, out);
            return None;
        }
        self.with_session(out, |session, out| session.accept_stream(id, out));
        let (data, error, ended) = match kind {
            PairStreamKind::Data => (id, first, fin),
            PairStreamKind::Error => (first, id, ended),
        };
        self.pairs[at] = StreamPair::Whole { data, error };
        let pair = PairId(data);
        self.end = ended.then_some(pair);
        Some(SpdyPortEvent::Connect { pair, port })
    }

    /// Drops the half pair `at`, saying why if its error stream is there.
    fn refuse_half_pair(&mut self, at: usize, out: &mut Vec<u8>) {
        if let StreamPair::Half { kind, id, .. } = self.pairs.swap_remove(at) {
            self.with_session(out, |session, out| {
                if kind == PairStreamKind::Error {
                    let _ = session.send_data(id, b"error processing stream", out);
                }
                session.reset_stream(id, ResetReason::ProtocolError, out);
            });
        }
    }

    /// The error stream of a whole pair.
    fn error_stream(&self, pair: PairId) -> Option<SpdyStreamId> {
        self.pairs.iter().find_map(|p| match p {
            StreamPair::Whole { data, error } if *data == pair.0 => Some(*error),
            StreamPair::Whole { .. } | StreamPair::Half { .. } => None,
        })
    }

    fn forget_pair_of(&mut self, stream: SpdyStreamId) {
        self.pairs.retain(|p| !p.has_stream(stream));
    }

    /// Forgets a pair of whose data stream nothing is left.
    fn forget_if_over(&mut self, data: SpdyStreamId) {
        if !self.session.has_stream(data) {
            self.pairs
                .retain(|p| !matches!(p, StreamPair::Whole { data: d, .. } if *d == data));
        }
    }
}

impl Default for SpdyPortForward {
    fn default() -> Self {
        Self::new()
    }
}

/// The name of a pair that has none.
fn unnamed_pair_name(id: SpdyStreamId) -> Box<str> {
    alloc::format!("#{id}").into_boxed_str()
}
