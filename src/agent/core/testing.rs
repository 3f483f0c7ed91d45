//! Questions of tests to the agent between two turns of its loop. Only built for tests.

use super::Agent;
use crate::{agent::pods::PodRegistry, api::PodUid, logic::pleg::RunningCounts};

impl Agent {
    /// All pods, for a test that changes them behind the loop's back.
    pub(in crate::agent) const fn pods_mut(&mut self) -> &mut PodRegistry {
        &mut self.pods
    }

    /// Counts of the last relist.
    pub(in crate::agent) fn running_counts(&self) -> RunningCounts {
        self.view.running_counts()
    }

    /// UIDs of all pods that the runtime knows, sorted.
    pub(in crate::agent) fn uids_at_runtime(&self) -> Vec<PodUid> {
        self.view.pod_uids()
    }
}
