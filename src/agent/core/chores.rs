//! What housekeeping finds, and what it has done.

use core::time::Duration;

use crate::{
    api::PodUid,
    logic::{cgroup::Asked, housekeeping::CgroupAction},
};

/// What housekeeping found to be done by others.
#[derive(Debug, Default)]
pub(in crate::agent) struct Chores {
    /// Pods that are nobody's any more: directory, volumes, containers and logs may go.
    pub(in crate::agent) forgotten: Vec<PodUid>,
    /// Cgroups of such pods: whose, path, and whether it may go or only loses its CPU.
    pub(in crate::agent) cgroups: Vec<(PodUid, String, CgroupAction)>,
    /// What the active pods ask for together, if the tiers were given something else.
    pub(in crate::agent) tiers: Option<Asked>,
}

impl Chores {
    /// Whether there is nothing to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.forgotten.is_empty() && self.cgroups.is_empty() && self.tiers.is_none()
    }
}

/// Time after which directories and cgroups are looked through although nothing happened: orphans come from pods that ended
/// or from an earlier agent; only a foreign hand makes others.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// What lies around: pods that have a directory or a waiting record, sorted, and cgroups of pods with their paths.
#[derive(Debug, Default)]
pub(in crate::agent) struct Found {
    pub(in crate::agent) dirs: Vec<PodUid>,
    pub(in crate::agent) groups: Vec<(PodUid, String)>,
}
