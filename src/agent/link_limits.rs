//! Limits and cost of the link as they are configured: one [`LinkPolicy`] of a budget and a cost.

use alloc::{rc::Rc, sync::Arc};
use std::{io, path::PathBuf};

use super::{
    complaints::Complaints,
    link_budget::LinkBudget,
    link_cost::LinkCost,
    link_policy::{LinkPolicy, LinkState, LinkTools, PullBudget},
    tasks::{AgentTask, box_task},
    times::ClockCertainty,
};
use crate::{
    api::{WallTime, node::NodeCondition},
    config::LinkConfig,
    sys::lane::Lane,
};

/// Limits of the link. See the module.
pub(super) struct LinkLimits {
    /// Budget of the day; `None`: there is none.
    budget: Option<Arc<LinkBudget>>,
    cost: LinkCost,
    root: PathBuf,
}

impl LinkLimits {
    /// Makes the limits that are configured; `None`: there are none. Blocking, and brief.
    pub(super) fn open(cfg: &LinkConfig, tools: LinkTools) -> Option<Rc<Self>> {
        if *cfg == LinkConfig::default() {
            return None;
        }
        let open = |settings| Arc::new(LinkBudget::open(settings, &tools.root));
        Some(Rc::new(Self {
            budget: cfg.budget.map(open),
            cost: LinkCost::new(cfg.cost.clone(), tools.way, Rc::clone(&tools.clock)),
            root: tools.root,
        }))
    }

    /// Conditions of `get node` for the limits.
    pub(super) fn link_conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        let budget = self
            .budget
            .iter()
            .map(|budget| budget.budget_condition(now));
        budget.chain(self.cost.cost_condition(now)).collect()
    }

    /// Makes the task that keeps the budget, if there is one.
    pub(super) fn budget_task(&self, disk: Lane, complaints: Rc<Complaints>) -> Option<AgentTask> {
        let budget = Arc::clone(self.budget.as_ref()?);
        let (root, clock) = (self.root.clone(), self.cost.cost_clock());
        Some(box_task(
            budget.save_periodically(root, clock, disk, complaints),
        ))
    }

    /// Writes what was used of the budget. Blocking.
    pub(super) fn save_budget(&self) -> io::Result<()> {
        let budget = self.budget.as_ref();
        budget.map_or(Ok(()), |budget| budget.save_budget(&self.root))
    }
}

impl LinkPolicy for LinkLimits {
    fn is_metered(&self) -> bool {
        self.cost.is_metered()
    }

    fn is_spent(&self) -> bool {
        let budget = self.budget.as_ref();
        budget.is_some_and(|budget| budget.is_spent())
    }

    fn session_limit_bytes(&self) -> Option<u64> {
        self.cost.session_limit_bytes()
    }

    fn pull_budget(&self) -> Option<Arc<dyn PullBudget>> {
        let budget = self.budget.clone()?;
        Some(budget)
    }

    fn link_state(&self) -> LinkState {
        let budget = self.budget.as_ref().map(|budget| budget.describe_budget());
        let images_wait = budget.as_ref().is_some_and(|(_, waits)| *waits);
        LinkState {
            budget: budget.map(|(says, _)| says),
            images_wait,
            cost: self.cost.describe_cost(),
        }
    }

    fn clock_certainty(&self) -> ClockCertainty {
        let budget = self.budget.as_ref();
        budget.map_or_else(ClockCertainty::default, |budget| budget.certainty.clone())
    }
}
