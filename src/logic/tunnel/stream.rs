//! One stream to a server, and the connections that it carries (TUN-03, TUN-05, TUN-12, TUN-13).
//!
//! Packets and the time go in, what is to be done comes out; bytes stay with the caller. A dial is answered at once: what it
//! leads to is in this process.

use alloc::vec::Vec;
use core::time::Duration;

use crate::api::Mono;

/// Connections of one stream.
pub const MAX_CONNECTIONS: usize = 32;
/// Bytes from the server that wait in one connection.
pub const MAX_INWARD_BYTES: usize = 64 * 1024;
/// How long they may fill it. While one connection is full nothing is read from the server: it holds up all others.
pub const MAX_FULL: Duration = Duration::from_secs(10);

/// Number of a connection; unique in the life of a process, whatever stream it is of (TUN-04).
pub type Id = i64;

/// Numbers of connections, of all streams.
#[derive(Debug)]
pub struct Ids(Id);

impl Ids {
    /// Begins anywhere: an earlier process of the same boot is likely to have begun elsewhere.
    #[must_use]
    pub const fn new(random: u64) -> Self {
        // A quarter of all numbers is left for those to come.
        Self((random >> 2).cast_signed() + 1)
    }

    fn take(&mut self) -> Id {
        let id = self.0;
        // It does not come to that.
        self.0 = self.0.checked_add(1).unwrap_or(1);
        id
    }
}

/// What the server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It wants a connection. `is_own`: to what may be dialled here.
    Dial {
        /// What the answer is told apart by.
        random: i64,
        /// It is meant for this node's server.
        is_own: bool,
        /// The bytes of the day are used up.
        is_spent: bool,
    },
    /// It does not want that any more.
    CancelDial {
        /// That of the dial.
        random: i64,
    },
    /// Bytes for a connection.
    Data {
        /// Which.
        id: Id,
    },
    /// A connection is over.
    Close {
        /// Which.
        id: Id,
    },
}

/// What is to be done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// A connection to this node's server begins, and the server is told.
    Open {
        /// Its number.
        id: Id,
        /// For the answer.
        random: i64,
    },
    /// A dial is refused.
    Refuse {
        /// For the answer.
        random: i64,
        /// In the answer.
        why: Refusal,
    },
    /// The bytes are for this one.
    Deliver,
    /// The connection is over. What it has not said yet is dropped, and the server is told.
    Drop {
        /// Which.
        id: Id,
    },
    /// The server is told that there is no such connection.
    Unknown {
        /// As it called it.
        id: Id,
    },
}

/// Why a dial is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are [`MAX_CONNECTIONS`].
    TooMany,
    /// It is for somebody else (TUN-06).
    Misrouted,
    /// This agent ends, or leaves this server.
    Leaving,
    /// The bytes of the day are used up (METER-02).
    Spent,
}

impl Refusal {
    /// As the server is told.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::TooMany => "too many connections",
            Self::Misrouted => {
                "this agent serves its own node only: start proxy-server with --proxy-strategies=destHost,defaultRoute"
            }
            Self::Leaving => "the agent is leaving",
            Self::Spent => "the node has used the bytes of this day (picolet.link.dailyBytes)",
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Carried {
    id: Id,
    random: i64,
    /// The server has used it.
    is_used: bool,
    /// Since when it has no room for what comes.
    full: Option<Mono>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Stream {
    carried: Vec<Carried>,
    /// The one that sent last.
    turn: Id,
    is_leaving: bool,
}

impl Stream {
    /// Takes in a packet.
    pub fn hear(&mut self, heard: Heard, ids: &mut Ids) -> Act {
        match heard {
            Heard::Dial {
                random,
                is_own,
                is_spent,
            } => self.dial(random, is_own, is_spent, ids),
            Heard::CancelDial { random } => {
                // It crossed the answer: the server does not know the number then, and never will.
                let idle = |c: &&Carried| c.random == random && !c.is_used;
                match self.carried.iter().find(idle).map(|c| c.id) {
                    Some(id) => self.close(id),
                    None => Act::Nothing,
                }
            }
            Heard::Data { id } => match self.find(id) {
                Some(carried) => {
                    carried.is_used = true;
                    Act::Deliver
                }
                None => Act::Unknown { id },
            },
            Heard::Close { id } => match self.find(id) {
                Some(_) => self.close(id),
                None => Act::Unknown { id },
            },
        }
    }

    fn dial(&mut self, random: i64, is_own: bool, is_spent: bool, ids: &mut Ids) -> Act {
        let why = if !is_own {
            Refusal::Misrouted
        } else if self.is_leaving {
            Refusal::Leaving
        } else if self.carried.len() >= MAX_CONNECTIONS {
            Refusal::TooMany
        } else if is_spent {
            Refusal::Spent
        } else {
            let id = ids.take();
            self.carried.push(Carried {
                id,
                random,
                is_used: false,
                full: None,
            });
            return Act::Open { id, random };
        };
        Act::Refuse { random, why }
    }

    fn find(&mut self, id: Id) -> Option<&mut Carried> {
        self.carried.iter_mut().find(|c| c.id == id)
    }

    fn close(&mut self, id: Id) -> Act {
        self.forget(id);
        Act::Drop { id }
    }

    /// A connection has ended here, and the server was told after its last bytes.
    pub fn forget(&mut self, id: Id) {
        self.carried.retain(|c| c.id != id);
        if self.carried.is_empty() {
            self.carried = Vec::new();
        }
    }

    /// Whether bytes that came have room in this connection. If not, nothing more is read until they have, or
    /// [`Self::overdue`] names it.
    pub fn holds_up(&mut self, id: Id, has_room: bool, now: Mono) {
        if let Some(carried) = self.find(id) {
            carried.full = match has_room {
                true => None,
                false => Some(carried.full.unwrap_or(now)),
            };
        }
    }

    /// A connection that has held up the others for too long: it is over, and the server is told.
    pub fn overdue(&mut self, now: Mono) -> Option<Id> {
        let late = |c: &&Carried| c.full.is_some_and(|since| now - since >= MAX_FULL);
        let id = self.carried.iter().find(late)?.id;
        self.forget(id);
        Some(id)
    }

    /// When [`Self::overdue`] has something to say, if nothing changes.
    #[must_use]
    pub fn due(&self) -> Option<Mono> {
        let full = self.carried.iter().filter_map(|c| c.full);
        full.min().map(|since| since + MAX_FULL)
    }

    /// The next connection that has something to say: each has its turn.
    pub fn next_to_send(&mut self, has_something: impl Fn(Id) -> bool) -> Option<Id> {
        // Numbers only grow, so the list is sorted by them.
        let turn = self.turn;
        let (before, after) = {
            let at = self.carried.partition_point(|c| c.id <= turn);
            self.carried.split_at(at)
        };
        let mut in_turn = after.iter().chain(before).map(|c| c.id);
        self.turn = in_turn.find(|id| has_something(*id))?;
        Some(self.turn)
    }

    /// Takes no dials from now on. What there is goes on.
    pub const fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// How many there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.carried.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(random: i64) -> Heard {
        Heard::Dial {
            random,
            is_own: true,
            is_spent: false,
        }
    }

    fn open(stream: &mut Stream, ids: &mut Ids, random: i64) -> Id {
        match stream.hear(dial(random), ids) {
            Act::Open { id, random: said } => {
                assert_eq!(said, random);
                id
            }
            other @ (Act::Nothing
            | Act::Refuse { .. }
            | Act::Deliver
            | Act::Drop { .. }
            | Act::Unknown { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_are_never_used_twice() {
        // TUN-03 TUN-04
        let mut ids = Ids::new(u64::MAX);
        let (mut first, mut second) = (Stream::default(), Stream::default());
        let a = open(&mut first, &mut ids, 1);
        let b = open(&mut second, &mut ids, 1);
        first.forget(a);
        let c = open(&mut first, &mut ids, 1);
        assert!(a > 0 && b > a && c > b, "{a} {b} {c}");
        assert!(Ids::new(0).take() > 0, "0 is no number");
        assert_ne!(Ids::new(7 << 20).take(), Ids::new(9 << 20).take());
    }

    #[test]
    fn what_each_packet_does() {
        // TUN-03 TUN-05 TUN-06 TUN-13
        let (mut stream, mut ids) = (Stream::default(), Ids::new(0));
        let foreign = Heard::Dial {
            random: 5,
            is_own: false,
            is_spent: false,
        };
        let refused = |random, why| Act::Refuse { random, why };
        // METER-02
        let spent = Heard::Dial {
            random: 6,
            is_own: true,
            is_spent: true,
        };
        assert_eq!(stream.hear(spent, &mut ids), refused(6, Refusal::Spent));
        let misrouted = refused(5, Refusal::Misrouted);
        assert_eq!(stream.hear(foreign, &mut ids), misrouted);
        let all: Vec<Id> = (0..32)
            .map(|random| open(&mut stream, &mut ids, random))
            .collect();
        let full = refused(40, Refusal::TooMany);
        assert_eq!(stream.hear(dial(40), &mut ids), full);
        assert_eq!(
            stream.hear(Heard::Data { id: all[3] }, &mut ids),
            Act::Deliver
        );
        let close = Heard::Close { id: all[3] };
        assert_eq!(stream.hear(close, &mut ids), Act::Drop { id: all[3] });
        let unknown = Act::Unknown { id: all[3] };
        assert_eq!(stream.hear(close, &mut ids), unknown);
        assert_eq!(stream.hear(Heard::Data { id: all[3] }, &mut ids), unknown);
        assert_eq!(stream.connections(), 31);
        // There is room again.
        open(&mut stream, &mut ids, 41);
        stream.leave();
        stream.forget(all[0]);
        let leaving = refused(42, Refusal::Leaving);
        assert_eq!(stream.hear(dial(42), &mut ids), leaving);
        for id in all {
            stream.forget(id);
        }
        assert_eq!(stream.connections(), 1);
    }

    #[test]
    fn a_dial_is_given_up() {
        // TUN-03
        let (mut stream, mut ids) = (Stream::default(), Ids::new(0));
        let (unused, used) = (
            open(&mut stream, &mut ids, 1),
            open(&mut stream, &mut ids, 2),
        );
        stream.hear(Heard::Data { id: used }, &mut ids);
        let cancel = |stream: &mut Stream, random| {
            stream.hear(Heard::CancelDial { random }, &mut Ids::new(0))
        };
        assert_eq!(cancel(&mut stream, 2), Act::Nothing);
        assert_eq!(cancel(&mut stream, 1), Act::Drop { id: unused });
        assert_eq!(cancel(&mut stream, 1), Act::Nothing);
        assert_eq!(stream.connections(), 1);
    }

    #[test]
    fn who_does_not_read_holds_up_the_others_for_so_long() {
        // TUN-12
        let (mut stream, mut ids) = (Stream::default(), Ids::new(0));
        let (a, b) = (
            open(&mut stream, &mut ids, 1),
            open(&mut stream, &mut ids, 2),
        );
        let at = |s: u64| Mono(s * 1000);
        assert_eq!((stream.due(), stream.overdue(at(100))), (None, None));
        stream.holds_up(a, false, at(1));
        stream.holds_up(a, false, at(5));
        assert_eq!(stream.due(), Some(at(11)));
        assert_eq!(stream.overdue(at(10)), None);
        // It has read: the time begins anew.
        stream.holds_up(a, true, at(10));
        stream.holds_up(a, false, at(10));
        stream.holds_up(b, false, at(12));
        assert_eq!(stream.overdue(at(19)), None);
        assert_eq!(stream.overdue(at(20)), Some(a));
        assert_eq!(stream.overdue(at(20)), None);
        assert_eq!((stream.due(), stream.connections()), (Some(at(22)), 1));
    }

    #[test]
    fn all_have_their_turn() {
        // TUN-12
        let (mut stream, mut ids) = (Stream::default(), Ids::new(0));
        let all: Vec<Id> = (0..3).map(|n| open(&mut stream, &mut ids, n)).collect();
        let mut turns: Vec<Id> = (0..4)
            .filter_map(|_| stream.next_to_send(|_| true))
            .collect();
        assert_eq!(turns, [all[0], all[1], all[2], all[0]]);
        turns = (0..2)
            .filter_map(|_| stream.next_to_send(|id| id != all[1]))
            .collect();
        assert_eq!(turns, [all[2], all[0]]);
        assert_eq!(stream.next_to_send(|_| false), None);
        stream.forget(all[2]);
        assert_eq!(stream.next_to_send(|id| id == all[0]), Some(all[0]));
    }
}
