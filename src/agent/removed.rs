//! Since when pods are shown whose manifests are gone. Who waits for one to end, as an update does, must see that it takes long.

use alloc::collections::BTreeMap;
use core::cell::RefCell;

use crate::api::{MonoTime, PodUid};

/// Instants at which removed pods were first shown so. At most as many as the last list of pods had, and those that
/// were asked for since.
#[derive(Debug, Default)]
pub(super) struct RemovedPods(RefCell<BTreeMap<PodUid, MonoTime>>);

impl RemovedPods {
    /// Instant at which the pod was first shown without a manifest; now, if it never was.
    pub(super) fn shown_since(&self, uid: &PodUid, now: MonoTime) -> MonoTime {
        *self.0.borrow_mut().entry(uid.clone()).or_insert(now)
    }

    /// Notes that the pod has a manifest again.
    pub(super) fn note_returned(&self, uid: &PodUid) {
        self.0.borrow_mut().remove(uid);
    }

    /// Forgets all pods that are not shown.
    pub(super) fn retain_shown(&self, is_shown: impl Fn(&PodUid) -> bool) {
        self.0.borrow_mut().retain(|uid, _| is_shown(uid));
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn the_first_time_counts() {
        // UPD-07
        let at = |s: u64| MonoTime::default() + Duration::from_secs(s);
        let removed = RemovedPods::default();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        assert_eq!(removed.shown_since(&a, at(5)), at(5));
        assert_eq!(removed.shown_since(&b, at(6)), at(6));
        assert_eq!(removed.shown_since(&a, at(700)), at(5));
        removed.note_returned(&a);
        assert_eq!(removed.shown_since(&a, at(800)), at(800));
        removed.retain_shown(|uid| *uid == b);
        assert_eq!(
            removed.0.borrow().len(),
            1,
            "of those that are gone nothing stays"
        );
        assert_eq!(removed.shown_since(&b, at(900)), at(6));
    }
}
