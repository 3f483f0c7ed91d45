//! Exclusion: at most one runtime operation per pod at a time, and one writer of its record.
//!
//! What carries out effects claims a pod before it acts on it, and lets go when it is done, however it ends. The loop knows
//! nothing of it and waits for nobody. At most two claims for each effect that runs.

use alloc::collections::BTreeSet;
use core::cell::RefCell;

use super::waker_set::WakerSet;
use crate::api::PodUid;

/// Work on a pod that only one may do at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PodWorkKind {
    /// Act on it at the runtime: a call of its worker, garbage collection, removal.
    Operation,
    /// Write its record, or remove its directory.
    Record,
}

/// Pods that are worked on, and by which work. One thread, so it is a set.
#[derive(Debug, Default)]
pub(super) struct PodWorkClaims {
    taken: RefCell<BTreeSet<(PodUid, PodWorkKind)>>,
    /// A claim has ended.
    ended: WakerSet,
}

/// A turn at work on one pod; over when dropped.
#[must_use]
pub(super) struct PodWorkClaim<'a> {
    claims: &'a PodWorkClaims,
    claim: (PodUid, PodWorkKind),
}

impl PodWorkClaims {
    /// A turn at the runtime with this pod, if nobody has it.
    pub(super) fn try_claim_operation(&self, uid: &PodUid) -> Option<PodWorkClaim<'_>> {
        self.try_claim(uid, PodWorkKind::Operation)
    }

    /// A turn at the runtime with this pod, as soon as nobody else has it.
    pub(super) async fn claim_operation(&self, uid: &PodUid) -> PodWorkClaim<'_> {
        self.wait_for_claim(uid, PodWorkKind::Operation).await
    }

    /// A turn at this pod's record, if nobody has it.
    pub(super) fn try_claim_record(&self, uid: &PodUid) -> Option<PodWorkClaim<'_>> {
        self.try_claim(uid, PodWorkKind::Record)
    }

    /// A turn at this pod's record, as soon as nobody else has it.
    pub(super) async fn claim_record(&self, uid: &PodUid) -> PodWorkClaim<'_> {
        self.wait_for_claim(uid, PodWorkKind::Record).await
    }

    fn try_claim(&self, uid: &PodUid, work: PodWorkKind) -> Option<PodWorkClaim<'_>> {
        let claim = (uid.clone(), work);
        let is_free = self.taken.borrow_mut().insert(claim.clone());
        is_free.then(|| PodWorkClaim {
            claims: self,
            claim,
        })
    }

    async fn wait_for_claim(&self, uid: &PodUid, work: PodWorkKind) -> PodWorkClaim<'_> {
        self.ended.wait_until(|| self.try_claim(uid, work)).await
    }
}

impl Drop for PodWorkClaim<'_> {
    fn drop(&mut self) {
        self.claims.taken.borrow_mut().remove(&self.claim);
        self.claims.ended.wake_all();
    }
}

#[cfg(test)]
mod testing {
    //! What tests ask.
    impl super::PodWorkClaims {
        /// Returns true if no pod is worked on.
        pub(in crate::agent) fn is_idle(&self) -> bool {
            self.taken.borrow().is_empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;

    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn one_turn_a_pod() {
        let claims = PodWorkClaims::default();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let first = claims.try_claim_operation(&a).expect("free");
        assert!(claims.try_claim_operation(&a).is_none());
        assert!(
            claims.try_claim_operation(&b).is_some(),
            "pods are independent"
        );
        assert!(
            claims.try_claim_record(&a).is_some(),
            "so are kinds of work"
        );
        let mut second = pin!(claims.claim_operation(&a));
        let mut third = pin!(claims.claim_operation(&a));
        assert!(block_on(poll_once(&mut second)).is_none());
        assert!(block_on(poll_once(&mut third)).is_none());
        drop(first);
        let held = block_on(poll_once(&mut second)).expect("released");
        assert!(block_on(poll_once(&mut third)).is_none(), "one at a time");
        drop(held);
        let last = block_on(poll_once(&mut third)).expect("released");
        drop(last);
        assert!(claims.is_idle(), "nothing is left of it");
    }
}
