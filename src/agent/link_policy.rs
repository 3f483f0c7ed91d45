//! Policy of the link: the seam between those who send much and whoever knows the cost of bytes. The core's own policy is
//! [`FreeLink`].

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{io, path::PathBuf};

use super::{clock::Clock, times::ClockCertainty};
use crate::{
    api::{PodUid, link::PullUrgency},
    image::pull::FetchGate,
};

/// Policy for the bytes of the link. The default of each method is that of a link which costs nothing and has no limit.
pub(crate) trait LinkPolicy {
    /// Returns true if bytes cost money now: whoever can does with fewer.
    fn is_metered(&self) -> bool {
        false
    }

    /// Returns true if the bytes of the day are used up: polls are slowest, and no new session is carried.
    fn is_spent(&self) -> bool {
        false
    }

    /// Bytes after which a session of somebody who is not on this machine ends now; `None`: there is no such limit.
    fn session_limit_bytes(&self) -> Option<u64> {
        None
    }

    /// Budget for images, if there is one.
    fn pull_budget(&self) -> Option<Arc<dyn PullBudget>> {
        None
    }

    /// State of the link, for people.
    fn link_state(&self) -> LinkState {
        LinkState::default()
    }

    /// Flag that the agent sets once the wall clock was right in this boot.
    fn clock_certainty(&self) -> ClockCertainty {
        ClockCertainty::default()
    }
}

/// Policy of a link that costs nothing and has no limit.
pub(crate) struct FreeLink;

impl LinkPolicy for FreeLink {}

/// Tools that a policy is made with.
pub(crate) struct LinkTools {
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) way: ApiRouteLookup,
    /// Root directory, for what is to survive a restart.
    pub(crate) root: PathBuf,
}

/// Finds the interface by which the way to the apiserver leaves. Answers at once.
pub(crate) type ApiRouteLookup = Box<dyn Fn() -> io::Result<String>>;

/// State of the link, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkState {
    /// State of the day's budget; `None`: there is no budget.
    pub(crate) budget: Option<String>,
    /// Set while images wait for the budget.
    pub(crate) images_wait: bool,
    /// Cost of the bytes now; `None`: bytes cost nothing on any interface.
    pub(crate) cost: Option<String>,
}

/// Budget that pulls of images keep to. Threads of pulls ask it as a [`FetchGate`].
pub(crate) trait PullBudget: FetchGate {
    /// Decides if the registry may be asked. For an image that is here this costs only the question, unless the last
    /// answer was that more bytes are missing than the day has.
    fn may_begin_pull(
        &self,
        uid: &PodUid,
        reference: &str,
        is_here: bool,
        urgency: PullUrgency,
    ) -> Result<(), DeferredPull>;

    /// Notes a demand for an image with more than normal urgency.
    fn begin_urgent(&self, reference: &str, urgency: PullUrgency);

    /// Notes the end of such a demand.
    fn end_urgent(&self, reference: &str);
}

/// A pull that may not begin yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeferredPull {
    /// Reason, for people.
    pub(crate) says: String,
    /// People have not been told of it.
    pub(crate) is_news: bool,
    /// Time after which it may go on.
    pub(crate) after: Duration,
}

/// A demand for an image with more than normal urgency, as long as this value lives.
pub(crate) struct UrgentPull<'a> {
    budget: &'a dyn PullBudget,
    reference: &'a str,
}

impl<'a> UrgentPull<'a> {
    /// Notes the demand.
    pub(crate) fn begin(
        budget: &'a dyn PullBudget,
        reference: &'a str,
        urgency: PullUrgency,
    ) -> Self {
        budget.begin_urgent(reference, urgency);
        Self { budget, reference }
    }
}

impl Drop for UrgentPull<'_> {
    fn drop(&mut self) {
        self.budget.end_urgent(self.reference);
    }
}
