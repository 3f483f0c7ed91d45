//! State of the network as people are told it: a condition of `get node`, the answer for `check`, figures (FLAN-19).

use core::cell::{Cell, RefCell};

use crate::{
    api::{WallTime, node::NodeCondition},
    logic::pod_network::health::{PodNetworkFigures, PodNetworkHealth, peers_text},
};

/// Name of the condition.
const CONDITION: &str = "PodNetworkReady";

/// State of the network: written by those who make it, read by all who show it.
#[derive(Default)]
pub(super) struct PodNetworkStatus {
    health: RefCell<PodNetworkHealth>,
    figures: Cell<PodNetworkFigures>,
    /// Time of the last change between ready and not ready.
    since: Cell<Option<WallTime>>,
}

impl PodNetworkStatus {
    /// Changes the state.
    pub(super) fn change_health(&self, now: WallTime, change: impl FnOnce(&mut PodNetworkHealth)) {
        let mut health = self.health.borrow_mut();
        let was_ready = health.is_ready;
        change(&mut health);
        if was_ready != health.is_ready || self.since.get().is_none() {
            self.since.set(Some(now));
        }
    }

    /// Changes the figures.
    pub(super) fn change_figures(&self, change: impl FnOnce(&mut PodNetworkFigures)) {
        let mut figures = self.figures.get();
        change(&mut figures);
        self.figures.set(figures);
    }

    /// State now.
    pub(super) fn health(&self) -> PodNetworkHealth {
        self.health.borrow().clone()
    }

    /// Figures now.
    pub(super) fn figures(&self) -> PodNetworkFigures {
        self.figures.get()
    }

    /// Condition for `get node`; `None`: there is to be no network.
    pub(super) fn node_condition(&self, now: WallTime) -> Option<NodeCondition> {
        let health = self.health.borrow();
        if health.is_off {
            return None;
        }
        let (status, reason, message) = match (health.is_ready, &health.trouble) {
            (true, trouble) => {
                let peers = peers_text(health.peers);
                let refused = match health.faults.len() {
                    0 => String::new(),
                    faults => format!(", {faults} more cannot be reached"),
                };
                let trouble = trouble.as_ref().map(|why| format!("; {why}"));
                let trouble = trouble.unwrap_or_default();
                let message = format!("{}, {peers}{refused}{trouble}", health.backend);
                ("True", "RoutesMade", message)
            }
            (false, Some(why)) => ("False", "NotReady", why.clone()),
            (false, None) => ("Unknown", "Starting", String::new()),
        };
        Some(NodeCondition {
            kind: CONDITION.into(),
            status: status.into(),
            last_heartbeat_time: Some(now.truncated_to_second()),
            last_transition_time: self.since.get().map(WallTime::truncated_to_second),
            reason: reason.into(),
            message,
        })
    }
}
