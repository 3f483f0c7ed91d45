//! A session, and the connections that it carries: bytes between a k3s server and the server of this node, in this
//! process.
//!
//! A message is passed on piece by piece, and never held whole. The node's own bytes wait where they are made, but for
//! 16 KiB of each connection.

use alloc::{boxed::Box, rc::Rc, string::String, vec::Vec};
use core::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use smol::{
    future::FutureExt as _,
    io::{AsyncRead as _, AsyncWrite as _},
};

use super::{
    DialerShared,
    connect::{OpenedSession, SessionStream, to_failure},
    pods::connect_pod,
};
use crate::{
    api::MonoTime,
    logic::tunnel::{
        carried::DialRefusal,
        line::{SilenceDecision, StreamLossReason},
        remotedialer::{
            message::{
                DialId, MAX_TARGET_BYTES, MessageHead, MessageReader, MessageType, SentMessage,
                encode_head,
            },
            session::{
                DialerSession, MAX_WAITING_BYTES, RESUME_BYTES, SessionPings, is_own_target,
                parse_pod_target,
            },
        },
    },
    parts::tunnel::{
        base::{CarriedEnds, TURNS, fill_random},
        connect::StreamFailure,
    },
    stream::{
        OUT_BYTES,
        websocket::{MessageKind, WebSocket, WebSocketEvent},
    },
};

/// Bytes that are read at once.
const INPUT_BYTES: usize = 8 * 1024;
/// Close code of an agent that ends.
const GOING_AWAY: u16 = 1001;
/// Close code for a message of a kind that is not spoken here.
const WRONG_KIND: u16 = 1003;
/// Reason of the end of a connection that ended as it should.
const END: &str = "EOF";

/// Piece of a message in the input that is not taken yet.
#[derive(Clone, Copy)]
struct MessagePiece {
    start: usize,
    end: usize,
    /// Set if the message ends with it.
    is_last: bool,
}

/// Use of the payload of the message that is being read.
enum MessagePayload {
    /// The head is not whole yet.
    Unknown,
    /// The payload is not needed.
    Skipped,
    /// The payload is the target of a dial of that number.
    Target(DialId, Vec<u8>),
    /// The payload is bytes of that connection.
    Bytes(DialId),
}

/// See the module.
pub(super) struct SessionCarrier {
    shared: Rc<DialerShared>,
    stream: Box<dyn SessionStream>,
    socket: WebSocket,
    input: Vec<u8>,
    /// The part of `input` that is not parsed yet.
    start: usize,
    filled: usize,
    piece: Option<MessagePiece>,
    reader: MessageReader,
    payload: MessagePayload,
    /// Bytes that wait to be sent.
    out: Vec<u8>,
    is_flushed: bool,
    session: DialerSession,
    ends: CarriedEnds,
    pings: SessionPings,
    /// Time of the last bytes from the server.
    heard: MonoTime,
    /// Set once the agent ends.
    is_leaving: bool,
}

impl SessionCarrier {
    pub(super) fn new(shared: &Rc<DialerShared>, opened: OpenedSession) -> Self {
        let now = shared.base.clock.now();
        let (mut input, filled) = (opened.rest, 0);
        let filled = filled + input.len();
        input.resize(INPUT_BYTES.max(filled), 0);
        Self {
            shared: Rc::clone(shared),
            stream: opened.stream,
            socket: WebSocket::new_client(random_key),
            input,
            start: 0,
            filled,
            piece: None,
            reader: MessageReader::default(),
            payload: MessagePayload::Unknown,
            out: Vec::new(),
            is_flushed: true,
            session: DialerSession::default(),
            ends: CarriedEnds::new(&shared.base),
            pings: SessionPings::new(now),
            heard: now,
            is_leaving: false,
        }
    }

    /// Carries until the session ends, or the server is not to have one any more. Once the agent ends, until no
    /// connection is left.
    pub(super) async fn carry(&mut self, is_wanted: impl Fn() -> bool) -> StreamFailure {
        let shared = Rc::clone(&self.shared);
        let carried = poll_fn(|cx| self.poll(cx).map(Some));
        let turned = shared.base.changed.wait_until(|| {
            let is_over = shared.base.is_stopping.get() || !is_wanted();
            is_over.then_some(None)
        });
        if let Some(failed) = carried.or(turned).await {
            return failed;
        }
        if !shared.base.is_stopping.get() {
            return StreamFailure::broken("the server is none of the cluster any more");
        }
        self.session.connections.refuse_dials();
        self.is_leaving = true;
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<StreamFailure> {
        for _ in 0..TURNS {
            match self.step(cx) {
                Err(failed) => {
                    // The server is told why, if there is room.
                    let _ = self.write_out(cx);
                    return Poll::Ready(failed);
                }
                Ok(true) => {}
                Ok(false) => return self.check_timers(cx),
            }
        }
        cx.waker().wake_by_ref();
        // Who always has bytes ready must not keep the pings from their time.
        self.check_timers(cx)
    }

    /// Looks at the time: when nothing moves, and whenever others have their turn.
    fn check_timers(&mut self, cx: &mut Context<'_>) -> Poll<StreamFailure> {
        if self.is_leaving && self.ends.is_empty() && self.out.is_empty() {
            if self.socket.is_closed() {
                return Poll::Ready(StreamFailure::broken("it was left"));
            }
            self.socket.send_close(GOING_AWAY, &mut self.out);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Bounded: goes on only when an alarm has rung, and the next is later.
        loop {
            let now = self.shared.base.clock.now();
            if let Some(id) = self.session.connections.take_overdue(now) {
                self.ends.remove(id);
                self.send_message(id, SentMessage::Error, b"the node reads too slowly");
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let is_metered = self.shared.base.link_policy.is_metered();
            let due = match self.pings.judge_silence(self.heard, is_metered, now) {
                SilenceDecision::Until(due) => due,
                SilenceDecision::Ask => {
                    self.socket.send_ping(&mut self.out);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                SilenceDecision::Dead => {
                    let ending = StreamLossReason::Silent;
                    let why = "the server is silent".into();
                    return Poll::Ready(StreamFailure { ending, why });
                }
            };
            let due = self
                .session
                .connections
                .next_timeout()
                .map_or(due, |full| full.min(due));
            if self.ends.poll_alarm(due, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Takes one step each way. Returns true if anything moved.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamFailure> {
        let written = self.write_out(cx)?;
        let inward = self.step_inward(cx)?;
        let resumed = self.resume_server(cx);
        Ok(self.step_outward(cx) || written || inward || resumed)
    }

    fn write_out(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamFailure> {
        let mut moved = false;
        if !self.out.is_empty()
            && let Poll::Ready(wrote) = Pin::new(&mut self.stream).poll_write(cx, &self.out)
        {
            match wrote.map_err(|e| to_failure(&e))? {
                0 => return Err(StreamFailure::broken("the connection takes no more bytes")),
                wrote if wrote == self.out.len() => self.out = Vec::new(),
                wrote => drop(self.out.drain(..wrote)),
            }
            (moved, self.is_flushed) = (true, false);
        }
        if !self.is_flushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(cx)
        {
            flushed.map_err(|e| to_failure(&e))?;
            self.is_flushed = true;
        }
        Ok(moved)
    }

    fn step_inward(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamFailure> {
        if let Some(piece) = self.piece.take() {
            // Put back at once: the piece lies in it.
            let input = core::mem::take(&mut self.input);
            let taken = self.take_piece(piece, &input, cx);
            self.input = input;
            return taken;
        }
        if self.start < self.filled {
            let input = &mut self.input[self.start..self.filled];
            let step = match self.socket.receive_input(input, &mut self.out) {
                Ok(step) => step,
                Err(e) => {
                    self.socket.send_close(e.close_code(), &mut self.out);
                    return Err(StreamFailure::broken(e.to_string()));
                }
            };
            let start = self.start;
            self.start += step.taken;
            if self.socket.take_pong() {
                self.pings.take_pong();
            }
            match step.event {
                Some(WebSocketEvent::Data {
                    kind: MessageKind::Binary,
                    last,
                    span,
                    ..
                }) => {
                    self.piece = Some(MessagePiece {
                        start: start + span.at,
                        end: start + span.at + span.len,
                        is_last: last,
                    });
                }
                Some(WebSocketEvent::Data { .. }) => {
                    self.socket.send_close(WRONG_KIND, &mut self.out);
                    return Err(StreamFailure::broken("it sends text"));
                }
                Some(WebSocketEvent::Close { code }) => {
                    let code = code.map_or_else(String::new, |code| format!(" ({code})"));
                    let why = format!("the server closes the session{code}");
                    return Err(StreamFailure::broken(why));
                }
                // All is taken, unless the answers have no room.
                None if step.taken == 0 => return Ok(false),
                None => {}
            }
            return Ok(true);
        }
        (self.start, self.filled) = (0, 0);
        match Pin::new(&mut self.stream).poll_read(cx, &mut self.input) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(StreamFailure::broken("the server has ended the session")),
            Poll::Ready(Ok(count)) => {
                self.filled = count;
                self.heard = self.shared.base.clock.now();
                Ok(true)
            }
            Poll::Ready(Err(e)) => Err(to_failure(&e)),
        }
    }

    /// Takes as much of a piece as there is room for. Returns true if anything moved.
    fn take_piece(
        &mut self,
        piece: MessagePiece,
        input: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<bool, StreamFailure> {
        let mut bytes = &input[piece.start..piece.end];
        let head = self.reader.take_head(&mut bytes);
        let head = head.map_err(|e| StreamFailure::broken(format!("it sends no messages: {e}")))?;
        if let (Some(head), MessagePayload::Unknown) = (head, &self.payload) {
            self.payload = self.begin_message(head);
        }
        match &mut self.payload {
            MessagePayload::Unknown => {}
            MessagePayload::Skipped => bytes = &[],
            MessagePayload::Target(_, target) => {
                // One byte more shows that it is too long.
                let room = (MAX_TARGET_BYTES + 1).saturating_sub(target.len());
                target.extend_from_slice(&bytes[..bytes.len().min(room)]);
                bytes = &[];
            }
            MessagePayload::Bytes(id) => {
                let id = *id;
                let given = self.deliver(id, bytes, cx);
                bytes = &bytes[given..];
            }
        }
        if !bytes.is_empty() {
            let start = piece.end - bytes.len();
            self.piece = Some(MessagePiece { start, ..piece });
            return Ok(start > piece.start);
        }
        if piece.is_last {
            self.end_message()?;
        }
        Ok(true)
    }

    /// Acts on the head of a message. Returns the use of its payload.
    fn begin_message(&mut self, head: MessageHead) -> MessagePayload {
        let MessageHead { kind, id } = head;
        match kind {
            MessageType::Connect => return MessagePayload::Target(id, Vec::new()),
            MessageType::Data if self.session.has_connection(id) => {
                return MessagePayload::Bytes(id);
            }
            MessageType::Data => {
                self.send_message(id, SentMessage::Error, b"there is no such connection");
            }
            MessageType::Error => {
                self.session.connections.forget(id);
                self.ends.remove(id);
            }
            MessageType::Pause => self.session.set_paused(id, true),
            MessageType::Resume => self.session.set_paused(id, false),
            MessageType::Other => {}
        }
        MessagePayload::Skipped
    }

    fn end_message(&mut self) -> Result<(), StreamFailure> {
        let payload = core::mem::replace(&mut self.payload, MessagePayload::Unknown);
        if !self.reader.end_message() {
            return Err(StreamFailure::broken("it sends a message without a head"));
        }
        if let MessagePayload::Target(id, target) = payload {
            self.dial(id, &String::from_utf8_lossy(&target));
        }
        Ok(())
    }

    fn dial(&mut self, id: DialId, target: &str) {
        let shared = Rc::clone(&self.shared);
        let is_own = is_own_target(target, shared.base.port);
        let pod = parse_pod_target(target).filter(|_| shared.serves_pods());
        let is_spent = shared.base.link_policy.is_spent();
        let taken = self
            .session
            .take_dial(id, is_own || pod.is_some(), is_spent);
        let Err(why) = taken else {
            match pod {
                Some(to) => connect_pod(&shared, to, self.ends.add_pipe(id, MAX_WAITING_BYTES)),
                None => self.ends.open(id, MAX_WAITING_BYTES),
            }
            return;
        };
        match why {
            DialRefusal::Foreign => shared.report_foreign(target),
            _ => shared
                .base
                .board
                .change_figures(|figures| figures.refused += 1),
        }
        if why == DialRefusal::InUse {
            self.ends.remove(id);
        }
        self.send_message(id, SentMessage::Error, why.answer_text().as_bytes());
    }

    /// Gives a connection the bytes that have room there. Returns their number.
    fn deliver(&mut self, id: DialId, bytes: &[u8], cx: &Context<'_>) -> usize {
        let Some(end) = self.ends.find(id) else {
            return bytes.len();
        };
        let all = self.ends.waiting_bytes(cx);
        let room = DialerSession::room(end.waiting_bytes(usize::MAX, cx), all);
        let given = self
            .ends
            .give_bytes(id, &bytes[..bytes.len().min(room)], cx);
        let given = given.unwrap_or(0);
        let is_full = given < bytes.len();
        // If it is full, this wakes once some are taken.
        let waits = end.waiting_bytes(if is_full { 0 } else { RESUME_BYTES }, cx);
        let now = self.shared.base.clock.now();
        if self
            .session
            .record_given_bytes(id, given, waits, is_full, now)
        {
            self.send_message(id, SentMessage::Pause, &[]);
        }
        given
    }

    /// Has the server go on with a connection that has room again. Returns true if there was one.
    fn resume_server(&mut self, cx: &Context<'_>) -> bool {
        if self.out.len() >= OUT_BYTES {
            return false;
        }
        let ends = &self.ends;
        let resumed = self.session.take_resumed(|id| {
            ends.find(id)
                .map_or(0, |end| end.waiting_bytes(RESUME_BYTES, cx))
        });
        resumed
            .map(|id| self.send_message(id, SentMessage::Resume, &[]))
            .is_some()
    }

    fn send_message(&mut self, id: DialId, kind: SentMessage, payload: &[u8]) {
        let head = encode_head(self.shared.next_message_number(), id, kind);
        let parts = [&*head, payload];
        self.socket
            .send_message(MessageKind::Binary, &parts, &mut self.out);
    }

    /// Sends bytes of the next connection. Returns true if there was anything to send.
    fn step_outward(&mut self, cx: &mut Context<'_>) -> bool {
        if self.out.len() >= OUT_BYTES {
            return false;
        }
        let has_something = |id| self.ends.has_pending_bytes(id, cx);
        let Some(id) = self.session.connections.next_to_send(has_something) else {
            return false;
        };
        match self.ends.take_bytes(id, cx) {
            Some(bytes) => self.send_message(id, SentMessage::Data, &bytes),
            None => {
                self.session.connections.forget(id);
                self.send_message(id, SentMessage::Error, END.as_bytes());
            }
        }
        true
    }
}

/// Masking key of a frame.
fn random_key() -> [u8; 4] {
    let mut key = [0; 4];
    fill_random(&mut key);
    key
}
