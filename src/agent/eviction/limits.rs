//! Pods that have more on the node's disk than they may (EVICT-11). A walk costs what its files cost: a round of walks that
//! took some time is not made again for a hundred times that.

use core::{cell::RefCell, time::Duration};

use super::Evictor;
use crate::{
    api::{Mono, PodUid, stats::Detail},
    error::chain,
    logic::eviction::{MAX_WALKS, Violation, Walked, violation},
};

/// Walks take at most one part in so many of the time.
const REST: u32 = 100;

/// When the next round of walks is due, and with whom it begins. One number and one name, however many pods there are.
#[derive(Default)]
pub(in crate::agent) struct Limits(RefCell<Due>);

#[derive(Default)]
struct Due {
    at: Mono,
    /// The last pod that was counted, if the time was over then.
    after: Option<PodUid>,
}

impl Evictor {
    /// Which of these pods have more than they may; none if it is too early to look. `uids` are sorted.
    pub(super) async fn check_limits(
        &self,
        mut uids: Vec<PodUid>,
        has_image_disk: bool,
    ) -> Vec<Violation> {
        let begun = self.clock.now();
        {
            let due = self.limits.0.borrow();
            if begun < due.at {
                return Vec::new();
            }
            // Where the time was over last time it goes on.
            let done = |uid: &PodUid| due.after.as_ref().is_some_and(|after| uid <= after);
            let split = uids.iter().filter(|uid| done(uid)).count();
            uids.rotate_left(split);
        }
        let usages = match self.runtime.list_pod_usage(Detail::Basic).await {
            Ok(usages) => usages,
            Err(e) => {
                let text = format!("cannot look at the disk use of pods: {}", chain(&e));
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
            let pod = self.store.load(&self.files.disk, &uid).await;
            if let (Some(usage), Ok(pod)) = (usage, pod)
                // One that cannot be counted in time is left alone: nobody knows that it has too much.
                && let Walked::Counted(figures) = self.with_files(usage, until).await
            {
                found.extend(violation(&pod, &figures, has_image_disk));
            }
            after = Some(uid);
        }
        let now = self.clock.now();
        let took: Duration = now - begun;
        *self.limits.0.borrow_mut() = Due {
            at: now + took.saturating_mul(REST),
            after: after.filter(|_| now >= until),
        };
        found
    }
}
