//! State of the tunnel as people are told it: a condition of `get node`, the answer for `check`, figures (TUN-14).

use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use crate::{
    api::{MonoTime, WallTime, node::NodeCondition},
    logic::tunnel::health::{TunnelFigures, TunnelHealth},
};

/// Time between two warnings of dials that were meant for others.
const TOLD: Duration = Duration::from_secs(60);
/// Name of the condition.
const CONDITION: &str = "TunnelReady";

/// State of the tunnel: written by the tunnel, read by all who show it.
#[derive(Default)]
pub(super) struct TunnelStatus {
    /// Open streams, those that are being left included.
    pub(super) streams: Cell<usize>,
    figures: Cell<TunnelFigures>,
    standing: RefCell<TunnelConnectivity>,
    /// Last event about a dial that was meant for others.
    told: Cell<Option<MonoTime>>,
}

#[derive(Default)]
struct TunnelConnectivity {
    /// Number of servers with a stream, and of all servers.
    servers: (usize, usize),
    /// Reason why there is no stream, or why the last one ended.
    trouble: Option<String>,
    /// Time of the last change between streams and none.
    since: Option<WallTime>,
}

impl TunnelStatus {
    /// Changes the figures.
    pub(super) fn change_figures(&self, change: impl FnOnce(&mut TunnelFigures)) {
        let mut figures = self.figures.get();
        change(&mut figures);
        self.figures.set(figures);
    }

    /// Counts a dial that was meant for another node. Returns true if people are to be told.
    pub(super) fn count_misrouted(&self, now: MonoTime) -> bool {
        self.change_figures(|figures| figures.misrouted += 1);
        let is_due = self.told.get().is_none_or(|told| now - told >= TOLD);
        if is_due {
            self.told.set(Some(now));
        }
        is_due
    }

    pub(super) fn set_connectivity(
        &self,
        servers: (usize, usize),
        trouble: Option<String>,
        now: WallTime,
    ) {
        let mut standing = self.standing.borrow_mut();
        let was_up = standing.servers.0 > 0;
        if standing.since.is_none() || was_up != (servers.0 > 0) {
            standing.since = Some(now);
        }
        standing.servers = servers;
        let before = standing.trouble.take().filter(|_| servers.0 == 0);
        standing.trouble = trouble.or(before);
    }

    /// The condition for `get node`.
    pub(super) fn node_condition(&self, now: WallTime) -> NodeCondition {
        let standing = self.standing.borrow();
        let (up, all) = standing.servers;
        let (status, reason, message) = match (up, &standing.trouble) {
            (0, Some(why)) => ("False", "Down", why.clone()),
            (0, None) => ("Unknown", "NotDialled", String::new()),
            _ => ("True", "Up", format!("streams to {up} of {all} servers")),
        };
        NodeCondition {
            kind: CONDITION.into(),
            status: status.into(),
            last_heartbeat_time: Some(now.truncated_to_second()),
            last_transition_time: standing.since.map(WallTime::truncated_to_second),
            reason: reason.into(),
            message,
        }
    }

    /// The answer for `check`.
    pub(super) fn tunnel_health(&self) -> TunnelHealth {
        let standing = self.standing.borrow();
        TunnelHealth {
            streams: standing.servers.0,
            servers: standing.servers.1,
            misrouted: self.figures.get().misrouted,
            trouble: standing.trouble.clone(),
        }
    }

    /// The figures for `/metrics`.
    pub(super) fn tunnel_figures(&self) -> TunnelFigures {
        let streams = u64::try_from(self.streams.get()).unwrap_or(u64::MAX);
        TunnelFigures {
            streams,
            ..self.figures.get()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_are_told() {
        // TUN-14
        let board = TunnelStatus::default();
        let shown = |now| {
            let condition = board.node_condition(WallTime::from_unix_seconds(now));
            let since = condition.last_transition_time.map(WallTime::unix_seconds);
            (condition.status.to_string(), condition.message, since)
        };
        assert_eq!(shown(1), ("Unknown".into(), String::new(), None));
        board.set_connectivity(
            (0, 0),
            Some("refused".into()),
            WallTime::from_unix_seconds(2),
        );
        assert_eq!(shown(3), ("False".into(), "refused".into(), Some(2)));
        board.set_connectivity((1, 2), None, WallTime::from_unix_seconds(4));
        let up = "streams to 1 of 2 servers".to_owned();
        assert_eq!(shown(5), ("True".into(), up.clone(), Some(4)));
        // The other line has trouble: the node can be reached all the same.
        board.set_connectivity(
            (1, 2),
            Some("silent".into()),
            WallTime::from_unix_seconds(6),
        );
        assert_eq!(shown(7), ("True".into(), up, Some(4)));
        assert_eq!(board.tunnel_health().trouble.as_deref(), Some("silent"));
        board.set_connectivity((0, 2), Some("cut".into()), WallTime::from_unix_seconds(8));
        assert_eq!(shown(9), ("False".into(), "cut".into(), Some(8)));
    }

    #[test]
    fn people_are_told_once_a_minute_of_what_was_meant_for_others() {
        // TUN-06 TUN-07
        let board = TunnelStatus::default();
        let told = [0, 1, 59, 60, 61, 120].map(|s| board.count_misrouted(MonoTime(s * 1000)));
        assert_eq!(told, [true, false, false, true, false, true]);
        assert_eq!(board.tunnel_health().misrouted, 6);
    }
}
