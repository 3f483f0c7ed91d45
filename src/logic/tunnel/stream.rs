//! A stream to a server, and the connections that it carries (TUN-03, TUN-05, TUN-11 to TUN-13).
//!
//! Packets and the time go in, orders come out; bytes stay with the caller. A dial is answered at once: its target
//! is in this process.

use core::time::Duration;

use super::carried::{CarriedConnection, CarriedConnections, ConnectionId, DialRefusal};
use crate::api::MonoTime;

/// Bytes from the server that may wait in one connection.
pub const MAX_INWARD_BYTES: usize = 64 * 1024;
/// Time for which a replaced stream goes on after the server has dialled on it all the same.
pub const MAX_REPLACED: Duration = Duration::from_secs(60 * 60);

/// Source of numbers for the connections of all streams.
#[derive(Debug)]
pub struct ConnectionIds(ConnectionId);

impl ConnectionIds {
    /// Starts at a random number: an earlier process of the same boot has probably started at another.
    #[must_use]
    pub const fn new(random: u64) -> Self {
        // The upper half of the positive numbers is left to count up.
        Self((random >> 2).cast_signed() + 1)
    }

    fn next_id(&mut self) -> ConnectionId {
        let id = self.0;
        // In practice there is no overflow.
        self.0 = self.0.checked_add(1).unwrap_or(1);
        id
    }
}

/// Packet from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelPacket {
    /// The server wants a connection.
    Dial {
        /// Number that identifies the dial in its answer.
        random: i64,
        /// Set if the target is this node's server, which may be dialled.
        is_own: bool,
        /// Set if the target was this node's server when the stream began.
        was_own: bool,
        /// Set if the bytes of the day are used up.
        is_spent: bool,
    },
    /// The server does not want the connection any more.
    CancelDial {
        /// Number of the dial.
        random: i64,
    },
    /// Bytes for a connection.
    Data {
        /// Number of the connection.
        id: ConnectionId,
    },
    /// A connection has ended.
    Close {
        /// Number of the connection.
        id: ConnectionId,
    },
}

/// Order of a stream to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Do nothing.
    Nothing,
    /// Open a connection to this node's server, and tell the server of the tunnel.
    Open {
        /// Number of the connection.
        id: ConnectionId,
        /// Number of the dial, for the answer.
        random: i64,
    },
    /// Refuse a dial.
    Refuse {
        /// Number of the dial, for the answer.
        random: i64,
        /// Reason, for the answer.
        why: DialRefusal,
    },
    /// Deliver the bytes to their connection.
    Deliver,
    /// Drop the connection, with all bytes that it has not sent, and tell the server.
    Drop {
        /// Number of the connection.
        id: ConnectionId,
    },
    /// Tell the server that there is no such connection.
    Unknown {
        /// Number that the server used.
        id: ConnectionId,
    },
}

/// Connections of one stream. See the docs of the module.
#[derive(Debug, Default)]
pub struct TunnelStream {
    /// Connections of the stream.
    pub connections: CarriedConnections,
    is_replaced: bool,
    /// Time at which a dial was first taken after the replacement.
    dialled: Option<MonoTime>,
}

impl TunnelStream {
    /// Takes in a packet.
    pub fn take_packet(
        &mut self,
        heard: TunnelPacket,
        ids: &mut ConnectionIds,
        now: MonoTime,
    ) -> StreamAction {
        match heard {
            TunnelPacket::Dial {
                random,
                is_own,
                was_own,
                is_spent,
            } => match self.dial_refusal(is_own, was_own, is_spent) {
                Some(why) => StreamAction::Refuse { random, why },
                None => self.open_connection(random, ids.next_id(), now),
            },
            TunnelPacket::CancelDial { random } => {
                // The cancellation crossed the answer: the server does not know the number, and never will.
                let idle = |c: &&mut CarriedConnection| c.random == random && !c.is_used;
                let idle = self.connections.iter_mut().find(idle).map(|c| c.id);
                match idle {
                    Some(id) => self.close_connection(id),
                    None => StreamAction::Nothing,
                }
            }
            TunnelPacket::Data { id } => match self.connections.find(id) {
                Some(carried) => {
                    carried.is_used = true;
                    StreamAction::Deliver
                }
                None => StreamAction::Unknown { id },
            },
            TunnelPacket::Close { id } => match self.connections.find(id) {
                Some(_) => self.close_connection(id),
                None => StreamAction::Unknown { id },
            },
        }
    }

    /// Reason to refuse a dial, if there is one.
    fn dial_refusal(&self, is_own: bool, was_own: bool, is_spent: bool) -> Option<DialRefusal> {
        match (is_own, was_own) {
            (false, false) => Some(DialRefusal::Misrouted),
            (false, true) => Some(DialRefusal::Moved),
            (true, _) => self.connections.refusal(is_spent),
        }
    }

    fn open_connection(&mut self, random: i64, id: ConnectionId, now: MonoTime) -> StreamAction {
        if self.is_replaced {
            self.dialled.get_or_insert(now);
        }
        self.connections.add(CarriedConnection {
            id,
            random,
            ..CarriedConnection::default()
        });
        StreamAction::Open { id, random }
    }

    fn close_connection(&mut self, id: ConnectionId) -> StreamAction {
        self.connections.forget(id);
        StreamAction::Drop { id }
    }

    /// Takes in that a connection took `given` bytes. `is_full`: it had no room for further ones. Then the stream is
    /// not read until it has, or until [`CarriedConnections::take_overdue`] returns the connection.
    pub fn record_given_bytes(
        &mut self,
        id: ConnectionId,
        given: usize,
        is_full: bool,
        now: MonoTime,
    ) {
        if let Some(carried) = self.connections.find(id) {
            carried.debt.record_given_bytes(given, is_full, now);
        }
    }

    /// Time at which [`CarriedConnections::take_overdue`] or [`Self::is_outlived`] must be called, if there is no change.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let full = self.connections.next_timeout().into_iter();
        full.chain(self.outlived_at()).min()
    }

    /// Marks the stream as replaced: another stream has its place, or none shall have it. Its connections go on, and
    /// dials are taken: servers before 0.35 dial on the oldest stream that they have of a node, whatever they were
    /// told.
    pub const fn mark_replaced(&mut self) {
        self.is_replaced = true;
    }

    fn outlived_at(&self) -> Option<MonoTime> {
        self.dialled.map(|dialled| dialled + MAX_REPLACED)
    }

    /// Returns true if the stream must end even with connections: it is replaced, and it is too long since the server
    /// dialled on it all the same.
    #[must_use]
    pub fn is_outlived(&self, now: MonoTime) -> bool {
        self.outlived_at().is_some_and(|due| due <= now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const NOW: MonoTime = MonoTime(1000);

    const fn at(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    fn dial(random: i64) -> TunnelPacket {
        TunnelPacket::Dial {
            random,
            is_own: true,
            was_own: true,
            is_spent: false,
        }
    }

    fn open(stream: &mut TunnelStream, ids: &mut ConnectionIds, random: i64) -> ConnectionId {
        match stream.take_packet(dial(random), ids, NOW) {
            StreamAction::Open { id, random: said } => {
                assert_eq!(said, random);
                id
            }
            other @ (StreamAction::Nothing
            | StreamAction::Refuse { .. }
            | StreamAction::Deliver
            | StreamAction::Drop { .. }
            | StreamAction::Unknown { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_are_never_used_twice() {
        // TUN-03 TUN-04
        let mut ids = ConnectionIds::new(u64::MAX);
        let (mut first, mut second) = (TunnelStream::default(), TunnelStream::default());
        let a = open(&mut first, &mut ids, 1);
        let b = open(&mut second, &mut ids, 1);
        first.connections.forget(a);
        let c = open(&mut first, &mut ids, 1);
        assert!(a > 0 && b > a && c > b, "{a} {b} {c}");
        assert!(ConnectionIds::new(0).next_id() > 0, "0 is no number");
        assert_ne!(
            ConnectionIds::new(7 << 20).next_id(),
            ConnectionIds::new(9 << 20).next_id()
        );
    }

    #[test]
    fn what_each_packet_does() {
        // TUN-03 TUN-05 TUN-06 TUN-13
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let foreign = TunnelPacket::Dial {
            random: 5,
            is_own: false,
            was_own: false,
            is_spent: false,
        };
        let refused = |random, why| StreamAction::Refuse { random, why };
        // METER-02
        let spent = TunnelPacket::Dial {
            random: 6,
            is_own: true,
            was_own: true,
            is_spent: true,
        };
        assert_eq!(
            stream.take_packet(spent, &mut ids, NOW),
            refused(6, DialRefusal::Spent)
        );
        let misrouted = refused(5, DialRefusal::Misrouted);
        assert_eq!(stream.take_packet(foreign, &mut ids, NOW), misrouted);
        // Another node may have that address now.
        let moved = TunnelPacket::Dial {
            random: 7,
            is_own: false,
            was_own: true,
            is_spent: false,
        };
        assert_eq!(
            stream.take_packet(moved, &mut ids, NOW),
            refused(7, DialRefusal::Moved)
        );
        let all: Vec<ConnectionId> = (0..32)
            .map(|random| open(&mut stream, &mut ids, random))
            .collect();
        let full = refused(40, DialRefusal::TooMany);
        assert_eq!(stream.take_packet(dial(40), &mut ids, NOW), full);
        assert_eq!(
            stream.take_packet(TunnelPacket::Data { id: all[3] }, &mut ids, NOW),
            StreamAction::Deliver
        );
        let close = TunnelPacket::Close { id: all[3] };
        assert_eq!(
            stream.take_packet(close, &mut ids, NOW),
            StreamAction::Drop { id: all[3] }
        );
        let unknown = StreamAction::Unknown { id: all[3] };
        assert_eq!(stream.take_packet(close, &mut ids, NOW), unknown);
        assert_eq!(
            stream.take_packet(TunnelPacket::Data { id: all[3] }, &mut ids, NOW),
            unknown
        );
        assert_eq!(stream.connections.count(), 31);
        // There is room for a connection again.
        open(&mut stream, &mut ids, 41);
        stream.connections.refuse_dials();
        stream.connections.forget(all[0]);
        let leaving = refused(42, DialRefusal::Leaving);
        assert_eq!(stream.take_packet(dial(42), &mut ids, NOW), leaving);
        for id in all {
            stream.connections.forget(id);
        }
        assert_eq!(stream.connections.count(), 1);
    }

    #[test]
    fn a_dial_is_given_up() {
        // TUN-03
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let (unused, used) = (
            open(&mut stream, &mut ids, 1),
            open(&mut stream, &mut ids, 2),
        );
        stream.take_packet(TunnelPacket::Data { id: used }, &mut ids, NOW);
        let cancel = |stream: &mut TunnelStream, random| {
            stream.take_packet(
                TunnelPacket::CancelDial { random },
                &mut ConnectionIds::new(0),
                NOW,
            )
        };
        assert_eq!(cancel(&mut stream, 2), StreamAction::Nothing);
        assert_eq!(cancel(&mut stream, 1), StreamAction::Drop { id: unused });
        assert_eq!(cancel(&mut stream, 1), StreamAction::Nothing);
        assert_eq!(stream.connections.count(), 1);
    }

    #[test]
    fn who_does_not_read_holds_up_the_others_for_so_long() {
        // TUN-12
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let (a, b) = (
            open(&mut stream, &mut ids, 1),
            open(&mut stream, &mut ids, 2),
        );
        assert_eq!(
            (
                stream.next_timeout(),
                stream.connections.take_overdue(at(100))
            ),
            (None, None)
        );
        stream.record_given_bytes(a, 1000, true, at(1));
        stream.record_given_bytes(a, 0, true, at(5));
        assert_eq!(stream.next_timeout(), Some(at(11)));
        assert_eq!(stream.connections.take_overdue(at(10)), None);
        // The connection has taken as many bytes as pay off the time that the others have waited.
        stream.record_given_bytes(a, 9 * 32 * 1024, false, at(10));
        stream.record_given_bytes(a, 0, true, at(10));
        stream.record_given_bytes(b, 0, true, at(12));
        assert_eq!(stream.connections.take_overdue(at(19)), None);
        assert_eq!(stream.connections.take_overdue(at(20)), Some(a));
        assert_eq!(stream.connections.take_overdue(at(20)), None);
        assert_eq!(
            (stream.next_timeout(), stream.connections.count()),
            (Some(at(22)), 1)
        );
    }

    /// Second at which a connection is closed that takes `bytes` bytes every `period_s` seconds, and always has more to
    /// take.
    fn closed_after(bytes: usize, period_s: u64) -> Option<u64> {
        let mut stream = TunnelStream::default();
        let id = open(&mut stream, &mut ConnectionIds::new(0), 1);
        stream.record_given_bytes(id, MAX_INWARD_BYTES, true, at(0));
        (1..3600).find(|now| {
            if now % period_s == 0 {
                stream.record_given_bytes(id, bytes, true, at(*now));
            }
            stream.connections.take_overdue(at(*now)).is_some()
        })
    }

    #[test]
    fn who_reads_a_little_now_and_then_is_no_better() {
        // TUN-12
        const KIB: usize = 1024;
        assert_eq!(closed_after(0, 1), Some(10));
        assert_eq!(closed_after(KIB, 1), Some(11));
        assert_eq!(closed_after(64 * KIB, 9), Some(12));
        // A serial line of 115200 baud.
        assert_eq!(closed_after(11 * KIB, 1), Some(16));
        // The connection takes its share.
        assert_eq!(closed_after(32 * KIB, 1), None);
        assert_eq!(closed_after(9 * 32 * KIB, 9), None);
    }

    #[test]
    fn what_was_waited_for_is_forgotten_in_time() {
        // TUN-12
        let mut stream = TunnelStream::default();
        let id = open(&mut stream, &mut ConnectionIds::new(0), 1);
        for begun in [0, 30, 60] {
            stream.record_given_bytes(id, 0, true, at(begun));
            assert_eq!(stream.next_timeout(), Some(at(begun + 10)));
            stream.record_given_bytes(id, 1, false, at(begun + 9));
            assert_eq!(
                (
                    stream.next_timeout(),
                    stream.connections.take_overdue(at(begun + 20))
                ),
                (None, None)
            );
        }
        // Four of nine seconds are paid off.
        stream.record_given_bytes(id, 0, true, at(73));
        assert_eq!(stream.next_timeout(), Some(MonoTime(78_000)));
    }

    #[test]
    fn a_stream_that_is_replaced_takes_dials() {
        // TUN-11
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let hour = MAX_REPLACED.as_secs();
        open(&mut stream, &mut ids, 1);
        stream.mark_replaced();
        // Earlier connections go on without a limit.
        assert_eq!(stream.next_timeout(), None);
        assert!(!stream.is_outlived(at(1_000_000)));
        // A server that dials on it all the same is served, and moves to the other in the end.
        for (random, now) in [(2, 5), (3, 1000)] {
            let act = stream.take_packet(dial(random), &mut ids, at(now));
            assert!(matches!(act, StreamAction::Open { .. }), "{act:?}");
        }
        assert_eq!(stream.next_timeout(), Some(at(5 + hour)));
        assert!(!stream.is_outlived(at(4 + hour)));
        assert!(stream.is_outlived(at(5 + hour)));
        assert_eq!(stream.connections.count(), 3);
        stream.connections.refuse_dials();
        let leaving = StreamAction::Refuse {
            random: 4,
            why: DialRefusal::Leaving,
        };
        assert_eq!(stream.take_packet(dial(4), &mut ids, at(1001)), leaving);
    }

    #[test]
    fn all_have_their_turn() {
        // TUN-12
        let (mut stream, mut ids) = (TunnelStream::default(), ConnectionIds::new(0));
        let all: Vec<ConnectionId> = (0..3).map(|n| open(&mut stream, &mut ids, n)).collect();
        let mut turns: Vec<ConnectionId> = (0..4)
            .filter_map(|_| stream.connections.next_to_send(|_| true))
            .collect();
        assert_eq!(turns, [all[0], all[1], all[2], all[0]]);
        turns = (0..2)
            .filter_map(|_| stream.connections.next_to_send(|id| id != all[1]))
            .collect();
        assert_eq!(turns, [all[2], all[0]]);
        assert_eq!(stream.connections.next_to_send(|_| true), Some(all[1]));
        stream.connections.forget(all[1]);
        let behind = stream.connections.next_to_send(|_| true);
        assert_eq!(
            behind,
            Some(all[2]),
            "the turn goes on behind one that ends"
        );
        assert_eq!(stream.connections.next_to_send(|_| false), None);
        stream.connections.forget(all[2]);
        assert_eq!(
            stream.connections.next_to_send(|id| id == all[0]),
            Some(all[0])
        );
    }
}
