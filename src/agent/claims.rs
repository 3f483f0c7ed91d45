//! Turns of pods: who may act on a pod now. One runtime operation per pod at a time, whoever wants it: the calls of its
//! worker, garbage collection, the removal of what it left.
//!
//! One thread, so this is a set and a list of wakers. A claim ends when its guard is dropped.

use alloc::collections::BTreeSet;
use core::{
    cell::RefCell,
    future::{Future, poll_fn},
    task::{Poll, Waker},
};

use crate::api::PodUid;

/// Wakes whoever waits for something that changed. Waiters look again for themselves.
#[derive(Debug, Default)]
pub(super) struct Bell {
    wakers: RefCell<Vec<Waker>>,
}

impl Bell {
    /// Something changed.
    pub(super) fn ring(&self) {
        let wakers = self.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` has an answer; asked at once, and again after every [`Bell::ring`].
    pub(super) fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
        poll_fn(move |cx| {
            if let Some(answer) = ready() {
                return Poll::Ready(answer);
            }
            let mut wakers = self.wakers.borrow_mut();
            if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}

/// Pods that are claimed. At most one claim a pod.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: RefCell<BTreeSet<PodUid>>,
    released: Bell,
}

/// A claim on one pod; released when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    uid: PodUid,
}

impl Claims {
    /// Claims `uid` if nobody has it.
    pub(super) fn try_claim(&self, uid: &PodUid) -> Option<Claim<'_>> {
        self.held.borrow_mut().insert(uid.clone()).then(|| Claim {
            claims: self,
            uid: uid.clone(),
        })
    }

    /// Whether nobody claims anything.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.held.borrow().is_empty()
    }

    /// Claims `uid` as soon as nobody else has it.
    pub(super) async fn claim(&self, uid: &PodUid) -> Claim<'_> {
        self.released.until(|| self.try_claim(uid)).await
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.held.borrow_mut().remove(&self.uid);
        self.claims.released.ring();
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;

    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn one_claim_a_pod() {
        let claims = Claims::default();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let first = claims.try_claim(&a).expect("free");
        assert!(claims.try_claim(&a).is_none());
        assert!(claims.try_claim(&b).is_some(), "pods are independent");
        let mut second = pin!(claims.claim(&a));
        let mut third = pin!(claims.claim(&a));
        assert!(block_on(poll_once(&mut second)).is_none());
        assert!(block_on(poll_once(&mut third)).is_none());
        drop(first);
        let held = block_on(poll_once(&mut second)).expect("released");
        assert!(block_on(poll_once(&mut third)).is_none(), "one at a time");
        drop(held);
        assert!(block_on(poll_once(&mut third)).is_some());
    }
}
