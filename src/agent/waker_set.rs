//! Waking whoever waits for something that changed. One thread, so this is a list of wakers.

use core::{
    cell::RefCell,
    future::{Future, poll_fn},
    task::{Poll, Waker},
};

/// Wakes whoever waits for something that changed. Waiters look again for themselves.
#[derive(Debug, Default)]
pub(crate) struct WakerSet {
    wakers: RefCell<Vec<Waker>>,
}

impl WakerSet {
    /// Wakes all waiting tasks after a change.
    pub(crate) fn wake_all(&self) {
        let wakers = self.wakers.take();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` has an answer; asked at once, and again after every [`WakerSet::wake_all`].
    pub(crate) fn wait_until<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
    ) -> impl Future<Output = T> {
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
