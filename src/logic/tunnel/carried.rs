//! Connections that a stream carries, of either protocol: whose turn is it, which one holds up the others, and how many
//! there may be (TUN-05, TUN-13, K3ST-05, K3ST-14).

use alloc::vec::Vec;
use core::time::Duration;

use crate::api::MonoTime;

/// Number of connections of one stream.
pub const MAX_CONNECTIONS: usize = 32;
/// Longest time that others may wait for a full connection, less the time that it has paid off. While a connection is
/// full, the stream is not read: all other connections wait, and so do new dials.
pub const MAX_FULL: Duration = Duration::from_secs(10);
/// Number of taken bytes that pay off one second. Bytes that a server has sent before it learns of a full connection,
/// 384 KiB in windows and queues, then stand before the bytes of others for 12 s.
const FAIR_BYTES_S: u64 = 32 * 1024;

/// Number of a connection: unique in the life of this process, over all streams, if this node gives it (TUN-04).
pub type ConnectionId = i64;

/// Reason why a dial is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialRefusal {
    /// The stream has [`MAX_CONNECTIONS`] already.
    TooMany,
    /// The dial is for another node (TUN-06).
    Misrouted,
    /// The dial is for an address that this node does not have any more: another node may have it (TUN-06).
    Moved,
    /// The dial of a server of k3s is for something else than this node's server (K3ST-06).
    Foreign,
    /// A server of k3s gave a number that has a connection already.
    InUse,
    /// The agent is ending.
    Leaving,
    /// The bytes of the day are used up (METER-02).
    Spent,
}

impl DialRefusal {
    /// Text of the answer to the server.
    #[must_use]
    pub const fn answer_text(self) -> &'static str {
        match self {
            Self::TooMany => "too many connections",
            Self::Misrouted => {
                "this agent serves its own node only: start proxy-server with --proxy-strategies=destHost,defaultRoute"
            }
            Self::Moved => "the node does not have that address any more",
            Self::Foreign => {
                "connect not allowed: this tunnel leads to the kubelet of its node only"
            }
            Self::InUse => "the connection exists already",
            Self::Leaving => "the agent is leaving",
            Self::Spent => "the node has used the bytes of this day (picolet.link.dailyBytes)",
        }
    }
}

/// Debt of a connection to the others: the time for which they waited because it was full. Time in which it is not
/// full, and bytes that it takes, pay the debt off. So a connection that takes a few bytes now and then cannot hold up
/// the others without end.
#[derive(Debug, Default)]
pub(super) struct WaitDebt {
    /// Debt at the time `noted`.
    owed: Duration,
    noted: MonoTime,
    /// Set while the connection is full: the debt grows. Otherwise it shrinks.
    is_full: bool,
}

impl WaitDebt {
    fn debt_at(&self, now: MonoTime) -> Duration {
        let passed = now - self.noted;
        match self.is_full {
            true => self.owed + passed,
            false => self.owed.saturating_sub(passed),
        }
    }

    pub(super) fn record_given_bytes(&mut self, given: usize, is_full: bool, now: MonoTime) {
        let given = u64::try_from(given).unwrap_or(u64::MAX);
        let good = Duration::from_micros(given.saturating_mul(1_000_000) / FAIR_BYTES_S);
        *self = Self {
            owed: self.debt_at(now).saturating_sub(good),
            noted: now,
            is_full,
        };
    }

    /// Time at which the debt is too large, if no byte is taken until then.
    fn overdue_at(&self) -> Option<MonoTime> {
        let left = MAX_FULL.saturating_sub(self.owed);
        self.is_full.then(|| self.noted + left)
    }
}

/// Connection that a stream carries.
#[derive(Debug, Default)]
pub(super) struct CarriedConnection {
    pub(super) id: ConnectionId,
    /// Number of its dial, if dials have numbers of their own.
    pub(super) random: i64,
    /// Set once the server has used the connection.
    pub(super) is_used: bool,
    /// Set while the server wants no bytes.
    pub(super) is_paused: bool,
    /// Set while the server is to send none.
    #[cfg(feature = "k3s")]
    pub(super) has_paused: bool,
    pub(super) debt: WaitDebt,
}

/// Connections of one stream, in the order of their beginning.
#[derive(Debug, Default)]
pub struct CarriedConnections {
    all: Vec<CarriedConnection>,
    /// Connection that sent last, or the one before it if that one has ended.
    turn: ConnectionId,
    is_leaving: bool,
}

impl CarriedConnections {
    /// Reason to refuse a further connection to this node's server, if there is one.
    pub(super) const fn refusal(&self, is_spent: bool) -> Option<DialRefusal> {
        if self.is_leaving {
            Some(DialRefusal::Leaving)
        } else if self.all.len() >= MAX_CONNECTIONS {
            Some(DialRefusal::TooMany)
        } else if is_spent {
            Some(DialRefusal::Spent)
        } else {
            None
        }
    }

    pub(super) fn add(&mut self, connection: CarriedConnection) {
        self.all.push(connection);
    }

    pub(super) fn find(&mut self, id: ConnectionId) -> Option<&mut CarriedConnection> {
        self.all.iter_mut().find(|c| c.id == id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CarriedConnection> {
        self.all.iter_mut()
    }

    /// Number of connections.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.all.len()
    }

    /// Removes a connection that has ended.
    pub fn forget(&mut self, id: ConnectionId) {
        let Some(at) = self.all.iter().position(|c| c.id == id) else {
            return;
        };
        if self.turn == id {
            // Those behind it have their turn next.
            self.turn = at.checked_sub(1).map_or(0, |before| self.all[before].id);
        }
        self.all.remove(at);
        if self.all.is_empty() {
            self.all = Vec::new();
        }
    }

    /// Takes out a connection that has held up the others for too long: the caller drops it and tells the server.
    pub fn take_overdue(&mut self, now: MonoTime) -> Option<ConnectionId> {
        let late = |c: &&CarriedConnection| c.debt.overdue_at().is_some_and(|due| due <= now);
        let id = self.all.iter().find(late)?.id;
        self.forget(id);
        Some(id)
    }

    /// Time at which [`Self::take_overdue`] must be called, if there is no change.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        self.all.iter().filter_map(|c| c.debt.overdue_at()).min()
    }

    /// The next connection that has bytes to send: each has its turn, unless the server has paused it.
    pub fn next_to_send(
        &mut self,
        has_something: impl Fn(ConnectionId) -> bool,
    ) -> Option<ConnectionId> {
        let last = self.all.iter().position(|c| c.id == self.turn);
        let (before, after) = self.all.split_at(last.map_or(0, |at| at + 1));
        let mut in_turn = after.iter().chain(before).filter(|c| !c.is_paused);
        self.turn = in_turn.find(|c| has_something(c.id))?.id;
        Some(self.turn)
    }

    /// Refuses dials from now on. Connections go on.
    pub const fn refuse_dials(&mut self) {
        self.is_leaving = true;
    }
}
