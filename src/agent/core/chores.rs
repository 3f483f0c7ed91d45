//! Findings of housekeeping, and the work that follows from them.

use core::time::Duration;

use crate::{
    api::PodUid,
    logic::{cgroup::PodRequestTotals, housekeeping::CgroupAction},
};

/// Work that housekeeping found, for others to do.
#[derive(Debug, Default)]
pub(in crate::agent) struct HousekeepingChores {
    /// Pods that are nobody's any more: directory, volumes, containers and logs may go.
    pub(in crate::agent) forgotten: Vec<PodUid>,
    /// Cgroups of such pods: whose, path, and whether it may go or only loses its CPU.
    pub(in crate::agent) cgroups: Vec<(PodUid, String, CgroupAction)>,
    /// Requests of all active pods together, if they differ from what the QoS cgroups were given.
    pub(in crate::agent) tiers: Option<PodRequestTotals>,
}

impl HousekeepingChores {
    /// Returns true if there is no work.
    pub(super) fn is_empty(&self) -> bool {
        self.forgotten.is_empty() && self.cgroups.is_empty() && self.tiers.is_none()
    }
}

/// Time after which directories and cgroups are looked through although nothing happened: orphans come from pods that ended
/// or from an earlier agent; only a foreign hand makes others.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// Remains of pods on this machine: directories and waiting records, sorted; cgroups with their paths.
#[derive(Debug, Default)]
pub(in crate::agent) struct PodRemains {
    pub(in crate::agent) dirs: Vec<PodUid>,
    pub(in crate::agent) groups: Vec<(PodUid, String)>,
}
