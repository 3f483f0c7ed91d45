//! Questions of tests about pods. Only built for tests.

use alloc::collections::BTreeMap;

use super::PodRegistry;
use crate::api::{PodStatus, PodUid};

impl PodRegistry {
    /// All stored statuses, by UID.
    pub(in crate::agent) fn statuses(&self) -> BTreeMap<&PodUid, &PodStatus> {
        let stored = self.entries.iter();
        let stored = stored.map(|(uid, e)| Some((uid, e.status.stored_status()?)));
        stored.flatten().collect()
    }

    /// Returns true if anything is known of the pod.
    pub(in crate::agent) fn holds(&self, uid: &PodUid) -> bool {
        self.entries.contains_key(uid)
    }

    /// Returns true if some pod has not run yet.
    pub(in crate::agent) fn some_start(&self) -> bool {
        self.entries.values().any(|e| e.starting.is_some())
    }
}
