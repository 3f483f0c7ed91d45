//! A session with a server of k3s, and the connections that it carries (K3ST-03 to K3ST-06, K3ST-08, K3ST-13, K3ST-14).
//!
//! Messages and the time go in, decisions come out; bytes stay with the caller. A dial leads into this process, so its
//! connection is there at once.

use core::{net::SocketAddr, time::Duration};

use super::message::DialId;
use crate::{
    api::MonoTime,
    tunnel::{
        carried::{CarriedConnection, CarriedConnections, DialRefusal},
        line::{ANSWER, SilenceDecision},
    },
};

/// Bytes from the server that wait in a connection, above which the server is told to pause.
pub const PAUSE_BYTES: usize = 64 * 1024;
/// Bytes that wait, at which a paused server is told to go on.
pub const RESUME_BYTES: usize = 16 * 1024;
/// Most bytes that wait in a connection: what a server has sent before it heard of the pause. While a connection has
/// them, the session is not read.
pub const MAX_WAITING_BYTES: usize = 256 * 1024;
/// Bytes that wait in all connections of a session, from which on each may have only [`PAUSE_BYTES`].
pub const MAX_SESSION_BYTES: usize = 2 * 1024 * 1024;
/// Time between two pings: a server drops a session 60 s after the last one. Data does not count for it.
pub const PING: Duration = Duration::from_secs(25);
/// Time between two pings while bytes cost money.
pub const PING_METERED: Duration = Duration::from_secs(45);
/// Longest time for the answer to a ping while other bytes come: the answer may stand behind them.
const LATE_ANSWER: Duration = Duration::from_secs(60);

/// Returns true for the only target that may be dialled: `tcp/` and an address of loopback with the port of this node's
/// server (K3ST-06).
#[must_use]
pub fn is_own_target(target: &str, port: u16) -> bool {
    let address = target.strip_prefix("tcp/");
    let address = address.and_then(|address| address.parse::<SocketAddr>().ok());
    address.is_some_and(|to| to.ip().is_loopback() && to.port() == port && port != 0)
}

/// Reads the target of a dial that may be for a pod of this node: `tcp/`, an address that is not loopback, a port
/// (K3ST-16).
#[must_use]
pub fn parse_pod_target(target: &str) -> Option<SocketAddr> {
    let to: SocketAddr = target.strip_prefix("tcp/")?.parse().ok()?;
    let ip = to.ip().to_canonical();
    let is_other = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    (!is_other && to.port() != 0).then(|| SocketAddr::new(ip, to.port()))
}

/// Connections of one session. See the docs of the module.
#[derive(Debug, Default)]
pub struct DialerSession {
    /// Connections of the session.
    pub connections: CarriedConnections,
}

impl DialerSession {
    /// Takes in a dial: the caller opens the connection, or refuses it with an error. A connection of the same number
    /// ends in either case.
    pub fn take_dial(
        &mut self,
        id: DialId,
        is_own: bool,
        is_spent: bool,
    ) -> Result<(), DialRefusal> {
        if self.has_connection(id) {
            self.connections.forget(id);
            return Err(DialRefusal::InUse);
        }
        let refusal = match is_own {
            true => self.connections.refusal(is_spent),
            false => Some(DialRefusal::Foreign),
        };
        refusal.map_or(Ok(()), Err)?;
        self.connections.add(CarriedConnection {
            id,
            ..CarriedConnection::default()
        });
        Ok(())
    }

    /// Returns true if there is such a connection.
    pub fn has_connection(&mut self, id: DialId) -> bool {
        self.connections.find(id).is_some()
    }

    /// Takes in that the server wants no bytes of a connection, or wants them again.
    pub fn set_paused(&mut self, id: DialId, is_paused: bool) {
        if let Some(carried) = self.connections.find(id) {
            carried.is_paused = is_paused;
        }
    }

    /// Number of bytes that a connection may take now. `waiting`: those that wait in it; `all`: in all connections.
    #[must_use]
    pub const fn room(waiting: usize, all: usize) -> usize {
        let most = if all >= MAX_SESSION_BYTES {
            PAUSE_BYTES
        } else {
            MAX_WAITING_BYTES
        };
        most.saturating_sub(waiting)
    }

    /// Takes in that a connection took `given` bytes, so that `waiting` wait in it. `is_full`: it had no room for further
    /// ones. Then the session is not read until it has, or until [`CarriedConnections::take_overdue`] returns the connection.
    ///
    /// Returns true if the server is to pause.
    pub fn record_given_bytes(
        &mut self,
        id: DialId,
        given: usize,
        waiting: usize,
        is_full: bool,
        now: MonoTime,
    ) -> bool {
        let Some(carried) = self.connections.find(id) else {
            return false;
        };
        carried.debt.record_given_bytes(given, is_full, now);
        let is_new = waiting > PAUSE_BYTES && !carried.has_paused;
        carried.has_paused |= is_new;
        is_new
    }

    /// The next connection whose server is to go on, now that few bytes wait in it. `waiting`: bytes that wait in a
    /// connection.
    pub fn take_resumed(&mut self, waiting: impl Fn(DialId) -> usize) -> Option<DialId> {
        let calm = |c: &&mut CarriedConnection| c.has_paused && waiting(c.id) <= RESUME_BYTES;
        let resumed = self.connections.iter_mut().find(calm)?;
        resumed.has_paused = false;
        Some(resumed.id)
    }
}

/// Pings of a session: the node pings, whatever else is sent (K3ST-08).
#[derive(Clone, Copy, Debug)]
pub struct SessionPings {
    /// Time of the last ping, or of the beginning.
    pinged: MonoTime,
    /// Set while its answer has not come.
    is_asked: bool,
}

impl SessionPings {
    /// Begins with a new session.
    #[must_use]
    pub const fn new(now: MonoTime) -> Self {
        Self {
            pinged: now,
            is_asked: false,
        }
    }

    /// Takes in that the server has answered.
    pub const fn take_pong(&mut self) {
        self.is_asked = false;
    }

    /// Decides what to do now. `heard`: time of the last bytes. [`SilenceDecision::Ask`] counts as done.
    pub fn judge_silence(
        &mut self,
        heard: MonoTime,
        is_metered: bool,
        now: MonoTime,
    ) -> SilenceDecision {
        if self.is_asked {
            let due = (heard.max(self.pinged) + ANSWER).min(self.pinged + LATE_ANSWER);
            return if now >= due {
                SilenceDecision::Dead
            } else {
                // The server hears a ping in time, also if it answers late.
                SilenceDecision::Until(due)
            };
        }
        let due = self.pinged + if is_metered { PING_METERED } else { PING };
        if now < due {
            return SilenceDecision::Until(due);
        }
        *self = Self {
            pinged: now,
            is_asked: true,
        };
        SilenceDecision::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::carried::MAX_CONNECTIONS;

    const NOW: MonoTime = MonoTime(1000);

    const fn at(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    #[test]
    fn only_the_own_server_may_be_dialled() {
        // K3ST-06
        for (target, want) in [
            ("tcp/127.0.0.1:10250", true),
            ("tcp/[::1]:10250", true),
            ("tcp/127.0.0.1:10010", false),
            ("tcp/127.0.0.1:10251", false),
            ("tcp/192.168.1.2:10250", false),
            ("tcp/[::ffff:10.0.0.1]:10250", false),
            ("tcp/localhost:10250", false),
            ("tcp/::1:10250", false),
            ("udp/127.0.0.1:10250", false),
            ("unix//run/picolet/picolet.sock", false),
            ("tcp//127.0.0.1:10250", false),
            ("127.0.0.1:10250", false),
            ("tcp/127.0.0.1", false),
            ("tcp/", false),
            ("", false),
        ] {
            assert_eq!(is_own_target(target, 10250), want, "{target}");
        }
        assert!(!is_own_target("tcp/127.0.0.1:0", 0));
    }

    #[test]
    fn targets_that_may_be_pods() {
        // K3ST-16
        for (target, want) in [
            ("tcp/10.42.1.5:8080", Some("10.42.1.5:8080")),
            ("tcp/[fd42::5]:80", Some("[fd42::5]:80")),
            ("tcp/[::ffff:10.42.1.5]:80", Some("10.42.1.5:80")),
            ("tcp/127.0.0.1:8080", None),
            ("tcp/[::ffff:127.0.0.1]:8080", None),
            ("tcp/0.0.0.0:80", None),
            ("tcp/224.0.0.1:80", None),
            ("tcp/10.42.1.5:0", None),
            ("tcp/web.shop:80", None),
            ("udp/10.42.1.5:53", None),
            ("unix//run/picolet/picolet.sock", None),
        ] {
            let to = parse_pod_target(target).map(|to| format!("{to}"));
            assert_eq!(to.as_deref(), want, "{target}");
        }
    }

    #[test]
    fn dials_that_are_refused_end_nothing_else() {
        // K3ST-05 K3ST-14
        let mut session = DialerSession::default();
        for id in 2..34 {
            assert_eq!(session.take_dial(id, true, false), Ok(()));
        }
        assert_eq!(
            session.take_dial(34, true, false),
            Err(DialRefusal::TooMany)
        );
        assert_eq!(
            session.take_dial(35, false, false),
            Err(DialRefusal::Foreign)
        );
        assert_eq!(session.connections.count(), MAX_CONNECTIONS);
        session.connections.forget(5);
        assert_eq!(session.take_dial(35, true, true), Err(DialRefusal::Spent));
        // Numbers that are in use, and those below others.
        assert_eq!(session.take_dial(6, true, false), Err(DialRefusal::InUse));
        assert!(!session.has_connection(6) && session.has_connection(7));
        assert_eq!(session.take_dial(-1, true, false), Ok(()));
        session.connections.refuse_dials();
        assert_eq!(
            session.take_dial(36, true, false),
            Err(DialRefusal::Leaving)
        );
        assert!(session.has_connection(-1));
    }

    #[test]
    fn each_has_its_turn_unless_it_is_paused() {
        // K3ST-13 K3ST-14
        let mut session = DialerSession::default();
        for id in [7, 3, 5] {
            session.take_dial(id, true, false).expect("taken");
        }
        let turns = |session: &mut DialerSession, ready: &[DialId]| {
            let turn = |_| {
                session
                    .connections
                    .next_to_send(|id| ready.contains(&id))
                    .unwrap_or(0)
            };
            [(); 4].map(turn)
        };
        assert_eq!(turns(&mut session, &[3, 5, 7]), [7, 3, 5, 7]);
        session.set_paused(3, true);
        session.set_paused(99, true);
        assert_eq!(turns(&mut session, &[3, 5, 7]), [5, 7, 5, 7]);
        session.connections.forget(7);
        assert_eq!(turns(&mut session, &[3]), [0; 4], "paused for ever");
        session.set_paused(3, false);
        assert_eq!(turns(&mut session, &[3]), [3; 4]);
    }

    #[test]
    fn a_server_is_paused_and_goes_on() {
        // K3ST-13
        let mut session = DialerSession::default();
        session.take_dial(2, true, false).expect("taken");
        session.take_dial(3, true, false).expect("taken");
        let mut given = |waiting| session.record_given_bytes(2, 10, waiting, false, NOW);
        assert!(!given(PAUSE_BYTES));
        assert!(given(PAUSE_BYTES + 1));
        assert!(!given(MAX_WAITING_BYTES), "it was told");
        assert_eq!(session.take_resumed(|_| RESUME_BYTES + 1), None);
        assert_eq!(session.take_resumed(|_| RESUME_BYTES), Some(2));
        assert_eq!(session.take_resumed(|_| 0), None, "it was told");
        assert!(session.record_given_bytes(2, 10, PAUSE_BYTES + 1, false, NOW));
        assert!(!session.record_given_bytes(9, 10, PAUSE_BYTES + 1, false, NOW));
        // While others hold much, each may have less.
        assert_eq!(DialerSession::room(0, 0), MAX_WAITING_BYTES);
        assert_eq!(
            DialerSession::room(PAUSE_BYTES, MAX_SESSION_BYTES - 1),
            MAX_WAITING_BYTES - PAUSE_BYTES
        );
        assert_eq!(DialerSession::room(PAUSE_BYTES, MAX_SESSION_BYTES), 0);
        assert_eq!(DialerSession::room(MAX_WAITING_BYTES, MAX_SESSION_BYTES), 0);
    }

    #[test]
    fn who_ignores_the_pause_loses_the_connection() {
        // K3ST-13
        let mut session = DialerSession::default();
        session.take_dial(2, true, false).expect("taken");
        session.take_dial(3, true, false).expect("taken");
        session.record_given_bytes(2, 0, MAX_WAITING_BYTES, true, at(1));
        assert_eq!(session.connections.next_timeout(), Some(at(11)));
        assert_eq!(session.connections.take_overdue(at(10)), None);
        // What it takes meanwhile counts for it: 32 KiB a second.
        session.record_given_bytes(2, 64 * 1024, MAX_WAITING_BYTES, true, at(10));
        assert_eq!(session.connections.next_timeout(), Some(at(13)));
        assert_eq!(session.connections.take_overdue(at(13)), Some(2));
        assert_eq!(session.connections.take_overdue(at(99)), None);
        assert!(session.has_connection(3));
        assert_eq!(session.connections.next_timeout(), None);
    }

    #[test]
    fn pings_come_whatever_else_is_sent() {
        // K3ST-08
        let until = |s| SilenceDecision::Until(at(s));
        let mut pings = SessionPings::new(at(0));
        assert_eq!(pings.judge_silence(at(24), false, at(24)), until(25));
        assert_eq!(pings.judge_silence(at(24), true, at(25)), until(45));
        assert_eq!(
            pings.judge_silence(at(25), false, at(25)),
            SilenceDecision::Ask
        );
        assert_eq!(pings.judge_silence(at(25), false, at(26)), until(45));
        pings.take_pong();
        assert_eq!(pings.judge_silence(at(26), false, at(26)), until(50));
        assert_eq!(
            pings.judge_silence(at(49), false, at(50)),
            SilenceDecision::Ask
        );
        // The answer may stand behind other bytes, but not for ever.
        assert_eq!(pings.judge_silence(at(60), false, at(70)), until(80));
        assert_eq!(
            pings.judge_silence(at(60), false, at(80)),
            SilenceDecision::Dead
        );
        assert_eq!(pings.judge_silence(at(109), false, at(109)), until(110));
        assert_eq!(
            pings.judge_silence(at(110), false, at(110)),
            SilenceDecision::Dead
        );
        // Silence is an end after 20 s.
        let mut pings = SessionPings::new(at(0));
        assert_eq!(
            pings.judge_silence(at(0), true, at(45)),
            SilenceDecision::Ask
        );
        assert_eq!(pings.judge_silence(at(0), true, at(64)), until(65));
        assert_eq!(
            pings.judge_silence(at(0), true, at(65)),
            SilenceDecision::Dead
        );
    }
}
