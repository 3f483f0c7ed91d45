//! Pods that use more of the node's disk than they may (EVICT-11). The cost of a walk grows with the number of files:
//! after a round of walks there is none for a hundred times as long as it took.

use core::{cell::RefCell, time::Duration};

use super::Evictor;
use crate::{
    api::{MonoTime, PodUid, stats::StatsDetail},
    error::error_chain,
    logic::eviction::{MAX_WALKS, StorageViolation, WalkResult, find_violation},
};

/// Walks take at most one part in so many of the time.
const REST: u32 = 100;

/// Time at which the next round of walks is due, and the pod after which it goes on. One number and one name, however
/// many pods there are.
#[derive(Default)]
pub(in crate::agent) struct LimitCheckSchedule(RefCell<LimitCheckDue>);

#[derive(Default)]
struct LimitCheckDue {
    at: MonoTime,
    /// The last pod that was counted, if the time was over after it.
    after: Option<PodUid>,
}

impl Evictor {
    /// Returns the pods that use more of the disk than they may; none if it is too early to look. `uids` are sorted.
    pub(super) async fn check_storage_limits(
        &self,
        mut uids: Vec<PodUid>,
        has_image_disk: bool,
    ) -> Vec<StorageViolation> {
        let begun = self.clock.now();
        {
            let due = self.limits.0.borrow();
            if begun < due.at {
                return Vec::new();
            }
            // The round goes on behind the pod at which the last one ran out of time.
            let done = |uid: &PodUid| due.after.as_ref().is_some_and(|after| uid <= after);
            let split = uids.iter().filter(|uid| done(uid)).count();
            uids.rotate_left(split);
        }
        let usages = match self.runtime.list_pod_usage(StatsDetail::Basic).await {
            Ok(usages) => usages,
            Err(e) => {
                let text = format!("cannot measure the disk use of pods: {}", error_chain(&e));
                self.complaints.complain(&text);
                return Vec::new();
            }
        };
        let until = begun + MAX_WALKS;
        let (mut found, mut after) = (Vec::new(), None);
        for uid in uids {
            if self.clock.now() >= until {
                break;
            }
            let usage = usages.iter().find(|usage| usage.uid == uid);
            let pod = self.store.load_pod(&self.files.disk, &uid).await;
            if let (Some(usage), Ok(pod)) = (usage, pod)
                // A pod that cannot be counted in time is left alone: it is not known to use too much.
                && let WalkResult::Counted(figures) = self.measure_with_files(usage, until).await
            {
                found.extend(find_violation(&pod, &figures, has_image_disk));
            }
            after = Some(uid);
        }
        let now = self.clock.now();
        let took: Duration = now - begun;
        *self.limits.0.borrow_mut() = LimitCheckDue {
            at: now + took.saturating_mul(REST),
            after: after.filter(|_| now >= until),
        };
        found
    }
}
