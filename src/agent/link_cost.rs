//! Cost of the link: one value of the agent, asked by all who do less while bytes cost money. [`LinkMetering`]
//! decides. Where the cost does not depend on the interface (`picolet.link.meteredInterfaces`), the kernel is not
//! asked for one.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use super::{clock::Clock, link_policy::ApiRouteLookup};
use crate::{
    api::{WallTime, node::NodeCondition},
    logic::link_cost::{LinkMetering, LinkSettings},
};

/// Name of the condition of `get node`.
const CONDITION: &str = "LinkMetered";

/// See the module.
pub(super) struct LinkCost {
    cost: RefCell<LinkMetering>,
    way: ApiRouteLookup,
    clock: Rc<dyn Clock>,
    /// Time at which the interface was found to be another one.
    since: Cell<Option<WallTime>>,
}

impl LinkCost {
    pub(super) fn new(settings: LinkSettings, way: ApiRouteLookup, clock: Rc<dyn Clock>) -> Self {
        Self {
            cost: RefCell::new(LinkMetering::new(settings)),
            way,
            clock,
            since: Cell::new(None),
        }
    }

    /// Time that the cost goes by.
    pub(super) fn cost_clock(&self) -> Rc<dyn Clock> {
        Rc::clone(&self.clock)
    }

    /// Looks for the way, if it is time.
    fn check_api_route(&self) {
        let now = self.clock.now();
        if !self.cost.borrow().is_lookup_due(now) {
            return;
        }
        let found = (self.way)();
        if let Err(e) = &found {
            log::debug!("no route to the apiserver: {e}");
        }
        if self.cost.borrow_mut().record_interface(found.ok(), now) {
            self.since.set(Some(self.clock.wall_time()));
            log::info!("{}", self.describe_interface());
        }
    }

    fn describe_interface(&self) -> String {
        let cost = self.cost.borrow();
        let word = if cost.is_metered() { "" } else { "not " };
        match cost.interface() {
            Some(name) => {
                format!("the link is {word}metered: the route to the apiserver uses {name}")
            }
            None => format!("the link is {word}metered"),
        }
    }

    /// Returns true if bytes cost money now.
    pub(super) fn is_metered(&self) -> bool {
        self.check_api_route();
        self.cost.borrow().is_metered()
    }

    /// After how many bytes a session of somebody who is not on this machine ends now.
    pub(super) fn session_limit_bytes(&self) -> Option<u64> {
        self.check_api_route();
        self.cost.borrow().stream_limit_bytes()
    }

    /// State of the cost, for people; `None` if bytes cost nothing on any interface.
    pub(super) fn describe_cost(&self) -> Option<String> {
        let is_metered = self.is_metered();
        let is_told = is_metered || self.cost.borrow().depends_on_interface();
        is_told.then(|| self.describe_interface())
    }

    /// Condition of `get node` for the cost, where it depends on the interface.
    pub(super) fn cost_condition(&self, now: WallTime) -> Option<NodeCondition> {
        let is_metered = self.is_metered();
        let cost = self.cost.borrow();
        let (status, reason) = match (is_metered, cost.interface()) {
            (true, _) => ("True", "MeteredInterface"),
            (false, Some(_)) => ("False", "OtherInterface"),
            (false, None) => ("Unknown", "NoWay"),
        };
        cost.depends_on_interface().then(|| NodeCondition {
            kind: CONDITION.into(),
            status: status.into(),
            last_heartbeat_time: Some(now.truncated_to_second()),
            last_transition_time: self.since.get().map(WallTime::truncated_to_second),
            reason: reason.into(),
            message: self.describe_interface(),
        })
    }
}
