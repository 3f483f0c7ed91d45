//! Exclusion, as a state of the pod's entry: at most one runtime operation and one writer of the record at a time.

use super::Pods;
use crate::api::PodUid;

/// What only one at a time may do with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Act on it at the runtime.
    Operation,
    /// Write its record, or remove its directory.
    Record,
}

/// A turn at work on one pod; over when dropped.
#[must_use]
pub(in crate::agent) struct Turn<'a> {
    pods: &'a Pods,
    uid: PodUid,
    work: Work,
}

impl Pods {
    /// A turn at the runtime with this pod, if nobody has it.
    pub(in crate::agent) fn try_operate(&self, uid: &PodUid) -> Option<Turn<'_>> {
        self.try_turn(uid, Work::Operation)
    }

    /// A turn at the runtime with this pod, as soon as nobody else has it.
    pub(in crate::agent) async fn operate(&self, uid: &PodUid) -> Turn<'_> {
        self.turn(uid, Work::Operation).await
    }

    /// A turn at this pod's record, if nobody has it.
    pub(in crate::agent) fn try_record(&self, uid: &PodUid) -> Option<Turn<'_>> {
        self.try_turn(uid, Work::Record)
    }

    /// A turn at this pod's record, as soon as nobody else has it.
    pub(in crate::agent) async fn record(&self, uid: &PodUid) -> Turn<'_> {
        self.turn(uid, Work::Record).await
    }

    fn try_turn(&self, uid: &PodUid, work: Work) -> Option<Turn<'_>> {
        let is_free = self.change(uid, |entry| !core::mem::replace(entry.work(work), true));
        is_free.then(|| Turn {
            pods: self,
            uid: uid.clone(),
            work,
        })
    }

    async fn turn(&self, uid: &PodUid, work: Work) -> Turn<'_> {
        let free = || self.try_turn(uid, work);
        self.turn_ended.until(free).await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pods
            .change(&self.uid, |entry| *entry.work(self.work) = false);
        self.pods.turn_ended.ring();
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;

    use smol::future::{block_on, poll_once};

    use super::super::testing::pods;
    use super::*;

    #[test]
    fn one_turn_a_pod() {
        let pods = pods();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let first = pods.try_operate(&a).expect("free");
        assert!(pods.try_operate(&a).is_none());
        assert!(pods.try_operate(&b).is_some(), "pods are independent");
        assert!(pods.try_record(&a).is_some(), "so are kinds of work");
        let mut second = pin!(pods.operate(&a));
        let mut third = pin!(pods.operate(&a));
        assert!(block_on(poll_once(&mut second)).is_none());
        assert!(block_on(poll_once(&mut third)).is_none());
        drop(first);
        let held = block_on(poll_once(&mut second)).expect("released");
        assert!(block_on(poll_once(&mut third)).is_none(), "one at a time");
        drop(held);
        assert!(block_on(poll_once(&mut third)).is_some());
        assert!(pods.is_forgotten(&a), "nothing is left of it");
    }
}
