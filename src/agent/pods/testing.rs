//! What tests ask of pods. Only built for tests.

use alloc::collections::BTreeMap;

use super::Pods;
use crate::api::{PodStatus, PodUid};

impl Pods {
    /// All stored statuses.
    pub(in crate::agent) fn statuses(&self) -> BTreeMap<&PodUid, &PodStatus> {
        let stored = self.entries.iter();
        let stored = stored.map(|(uid, e)| Some((uid, e.status.get()?)));
        stored.flatten().collect()
    }

    /// Whether anything is known of the pod.
    pub(in crate::agent) fn holds(&self, uid: &PodUid) -> bool {
        self.entries.contains_key(uid)
    }

    /// Whether some pod has not run yet.
    pub(in crate::agent) fn some_start(&self) -> bool {
        self.entries.values().any(|e| e.starting.is_some())
    }
}
