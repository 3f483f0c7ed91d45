//! A stream, and the connections that it carries: bytes between the server of a tunnel and the server of this node.
//!
//! The stream is not read while the last bytes have no room, or while answers wait: the window holds the server back
//! then. The node's own bytes wait where they are made, but for 16 KiB of each connection.

use alloc::{collections::VecDeque, rc::Rc};
use core::{
    future::poll_fn,
    task::{Context, Poll},
};

use smol::future::FutureExt as _;

use super::{
    TunnelShared,
    base::{CarriedEnds, TURNS},
    connect::{OpenedStream, StreamFailure},
    packet::{self, ServerMessage},
};
use crate::{
    agent::wake::WakeFlag,
    api::MonoTime,
    grpc::client::{ClientCall, GrpcClient},
    logic::tunnel::{
        OwnServer,
        carried::{ConnectionId, DialRefusal},
        line::{SILENCE, SilenceDecision, StreamLossReason, TunnelLine},
        stream::{MAX_INWARD_BYTES, StreamAction, TunnelPacket, TunnelStream},
    },
};

/// Answers that wait to be sent, above which nothing is read: each packet has one at most.
const MAX_ANSWERS: usize = 64;

/// See the module.
pub(super) struct StreamCarrier {
    shared: Rc<TunnelShared>,
    client: GrpcClient,
    call: ClientCall,
    _driver: smol::Task<crate::grpc::status::GrpcStatus>,
    /// Identifiers by which the server knows this node.
    own: OwnServer,
    identifiers: String,
    stream: TunnelStream,
    ends: CarriedEnds,
    answers: VecDeque<Vec<u8>>,
    /// Bytes that have no room yet: the connection, the bytes, and how many of them have been delivered.
    held: Option<(ConnectionId, Vec<u8>, usize)>,
    /// Time of the last question whether the server is there.
    asked: Option<MonoTime>,
    /// Time of the last look at the addresses of the node.
    looked: MonoTime,
    /// Set once another stream is to take its place, or none is.
    is_left: bool,
    /// Set once the server was told to dial elsewhere.
    is_leaving: bool,
}

/// Turn in the life of a stream.
pub(super) enum StreamTurn {
    /// The stream is over.
    Ended(StreamFailure),
    /// The stream is left for another one; the connections that it carries go on.
    Leaves(&'static str),
}

impl StreamCarrier {
    pub(super) fn new(
        shared: &Rc<TunnelShared>,
        opened: OpenedStream,
        own: OwnServer,
        identifiers: String,
    ) -> Self {
        Self {
            shared: Rc::clone(shared),
            client: opened.client,
            call: opened.call,
            _driver: opened.driver,
            own,
            identifiers,
            stream: TunnelStream::default(),
            ends: CarriedEnds::new(&shared.base),
            answers: VecDeque::new(),
            held: None,
            asked: None,
            looked: shared.base.clock.now(),
            is_left: false,
            is_leaving: false,
        }
    }

    /// Carries until the stream ends, or another is to take its place. Once the agent ends, until no connection is
    /// left.
    ///
    /// - `replaced`: this stream is left. Once another has taken its place (then this wakes), or none is to, it carries
    ///   until no connection is left.
    pub(super) async fn carry_until_turn(
        &mut self,
        line: &mut TunnelLine,
        replaced: Option<&WakeFlag>,
    ) -> StreamTurn {
        let shared = Rc::clone(&self.shared);
        if let Some(replaced) = replaced {
            self.is_left = true;
            let until = replaced
                .wait_for_wake()
                .or(shared.base.wait_until_stopping());
            if let Some(turned) = self.carry_until(line, until).await {
                return turned;
            }
            self.announce_drain();
            self.stream.mark_replaced();
        }
        if let Some(turned) = self
            .carry_until(line, shared.base.wait_until_stopping())
            .await
        {
            return turned;
        }
        self.announce_drain();
        self.stream.connections.refuse_dials();
        poll_fn(|cx| self.poll(line, cx)).await
    }

    /// Carries until the stream turns, or `until` is ready.
    async fn carry_until(
        &mut self,
        line: &mut TunnelLine,
        until: impl Future<Output = ()>,
    ) -> Option<StreamTurn> {
        let turned = poll_fn(|cx| self.poll(line, cx).map(Some));
        let last = async {
            until.await;
            None
        };
        turned.or(last).await
    }

    /// Tells the server to dial elsewhere, once.
    fn announce_drain(&mut self) {
        self.is_left = true;
        if !self.is_leaving {
            self.is_leaving = true;
            self.answers.push_back(packet::encode_drain());
        }
    }

    fn poll(&mut self, line: &mut TunnelLine, cx: &mut Context<'_>) -> Poll<StreamTurn> {
        for _ in 0..TURNS {
            match self.step(cx) {
                Err(failed) => return Poll::Ready(StreamTurn::Ended(failed)),
                Ok(true) => {}
                Ok(false) => return self.check_timers(line, cx),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Looks at the time, when nothing moves.
    fn check_timers(&mut self, line: &mut TunnelLine, cx: &mut Context<'_>) -> Poll<StreamTurn> {
        let is_empty = self.stream.connections.count() == 0 && self.answers.is_empty();
        let is_done = self.is_leaving && is_empty;
        if is_done && self.call.poll_sent(cx).is_ready() {
            let all_said = StreamFailure::broken("it was left");
            return Poll::Ready(StreamTurn::Ended(all_said));
        }
        if !self.is_left && self.client.is_leaving() {
            return Poll::Ready(StreamTurn::Leaves("the server goes away"));
        }
        // Bounded: goes on only when an alarm has rung, and the next is later.
        loop {
            let now = self.shared.base.clock.now();
            if self.has_identity_changed(now) {
                let why = "the addresses of the node have changed";
                return Poll::Ready(StreamTurn::Leaves(why));
            }
            if self.stream.is_outlived(now) {
                let failed = StreamFailure::broken("the server dials where it was told not to");
                return Poll::Ready(StreamTurn::Ended(failed));
            }
            let heard = MonoTime(0) + self.client.last_heard();
            // On a slow link the answer may stand behind other data that is sent: that counts, too.
            let has_come = |asked| heard > asked || !self.client.awaits_pong();
            if self.asked.is_some_and(has_come) {
                self.asked = None;
            }
            line.set_metered(self.shared.base.link_policy.is_metered());
            let silent = match line.judge_silence(heard, self.asked, now) {
                SilenceDecision::Until(due) => due,
                SilenceDecision::Ask => {
                    self.client.send_ping();
                    self.asked = Some(now);
                    continue;
                }
                SilenceDecision::Dead => {
                    let ending = StreamLossReason::Silent;
                    let why = "the server is silent".into();
                    return Poll::Ready(StreamTurn::Ended(StreamFailure { ending, why }));
                }
            };
            let due = self
                .stream
                .next_timeout()
                .map_or(silent, |due| due.min(silent));
            if self.ends.poll_alarm(due, cx).is_pending() {
                return Poll::Pending;
            }
            if self.end_overdue() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Returns true if servers are to know this node by other addresses. Looks now and then.
    fn has_identity_changed(&mut self, now: MonoTime) -> bool {
        if self.is_left || now < self.looked + SILENCE {
            return false;
        }
        self.looked = now;
        let who = self.shared.node_identifiers();
        who.is_some_and(|(id, _)| id != self.identifiers)
    }

    /// Ends connections that hold up the others. Returns true if there were any.
    fn end_overdue(&mut self) -> bool {
        let now = self.shared.base.clock.now();
        let mut any = false;
        while let Some(id) = self.stream.connections.take_overdue(now) {
            any = true;
            self.ends.remove(id);
            self.answers.push_back(packet::encode_close_response(
                id,
                "the node reads too slowly",
            ));
        }
        any
    }

    /// Takes one step each way. Returns true if anything moved.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamFailure> {
        let inward = self.step_inward(cx)?;
        Ok(self.step_outward(cx) || inward)
    }

    fn step_inward(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamFailure> {
        if self.held.is_some() {
            return Ok(self.deliver(cx));
        }
        if self.answers.len() >= MAX_ANSWERS {
            return Ok(false);
        }
        match self.call.poll_next_message(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(Some(message))) => {
                let said = packet::read_packet(&message);
                let said =
                    said.map_err(|e| StreamFailure::broken(format!("it sends no packets: {e}")))?;
                self.take_server_message(said);
                Ok(true)
            }
            Poll::Ready(Ok(None)) => Err(StreamFailure::broken("the server has ended the stream")),
            Poll::Ready(Err(status)) => Err(StreamFailure::from_status(&status)),
        }
    }

    /// Gives a connection the bytes that have room there. Returns true if anything moved.
    fn deliver(&mut self, cx: &Context<'_>) -> bool {
        let Some((id, bytes, at)) = &mut self.held else {
            return false;
        };
        let Some(given) = self.ends.give_bytes(*id, &bytes[*at..], cx) else {
            self.held = None;
            return true;
        };
        *at += given;
        let is_all = *at == bytes.len();
        let id = *id;
        if is_all {
            self.held = None;
        }
        let now = self.shared.base.clock.now();
        self.stream.record_given_bytes(id, given, !is_all, now);
        is_all || given > 0
    }

    fn take_server_message(&mut self, said: ServerMessage) {
        let mut bytes = Vec::new();
        let mut target = String::new();
        let heard = match said {
            ServerMessage::Dial {
                protocol,
                address,
                random,
            } => {
                let was_own = self.own.is_dial_target(&protocol, &address);
                let own = self.shared.node_identifiers().map(|(_, own)| own);
                let is_own = own.map_or(was_own, |own| own.is_dial_target(&protocol, &address));
                target = address;
                TunnelPacket::Dial {
                    random,
                    is_own,
                    was_own,
                    is_spent: self.shared.base.link_policy.is_spent(),
                }
            }
            ServerMessage::CancelDial { random } => TunnelPacket::CancelDial { random },
            ServerMessage::Data { id, bytes: came } => {
                bytes = came;
                TunnelPacket::Data { id }
            }
            ServerMessage::Close { id } => TunnelPacket::Close { id },
            ServerMessage::Else => return,
        };
        let now = self.shared.base.clock.now();
        let act = self
            .stream
            .take_packet(heard, &mut self.shared.ids.borrow_mut(), now);
        match (act, heard) {
            (StreamAction::Nothing, _) => {}
            (StreamAction::Open { id, random }, _) => {
                self.ends.open(id, MAX_INWARD_BYTES);
                self.answers
                    .push_back(packet::encode_dial_response(random, Ok(id)));
            }
            (StreamAction::Refuse { random, why }, _) => {
                if why == DialRefusal::Misrouted {
                    self.shared.report_misrouted(&target);
                } else {
                    self.shared
                        .base
                        .board
                        .change_figures(|figures| figures.refused += 1);
                }
                let answer = packet::encode_dial_response(random, Err(why.answer_text()));
                self.answers.push_back(answer);
            }
            (StreamAction::Deliver, TunnelPacket::Data { id }) => self.held = Some((id, bytes, 0)),
            (StreamAction::Deliver, _) => {}
            (StreamAction::Drop { id }, _) => {
                self.ends.remove(id);
                self.answers
                    .push_back(packet::encode_close_response(id, ""));
            }
            (StreamAction::Unknown { id }, _) => {
                self.answers.push_back(packet::encode_close_response(
                    id,
                    "there is no such connection",
                ));
            }
        }
    }

    /// Sends an answer, or bytes of the next connection. Returns true if there was anything to send.
    fn step_outward(&mut self, cx: &mut Context<'_>) -> bool {
        if self.call.poll_send_room(cx).is_pending() {
            return false;
        }
        if let Some(answer) = self.answers.pop_front() {
            self.call.push_message(&answer);
            if self.answers.is_empty() {
                self.answers = VecDeque::new();
            }
            return true;
        }
        let has_something = |id| self.ends.has_pending_bytes(id, cx);
        let Some(id) = self.stream.connections.next_to_send(has_something) else {
            return false;
        };
        let message = match self.ends.take_bytes(id, cx) {
            Some(bytes) => packet::encode_data(id, bytes),
            None => {
                self.stream.connections.forget(id);
                packet::encode_close_response(id, "")
            }
        };
        self.call.push_message(&message);
        true
    }
}
