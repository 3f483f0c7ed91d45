//! Flag that ends a running call of a pod's worker early.

use core::cell::Cell;

use crate::agent::waker_set::WakerSet;

/// Set by the loop, looked at by the call between its steps. It never goes back: each call has its own.
#[derive(Debug, Default)]
pub(crate) struct CallCancel {
    ends: Cell<bool>,
    cancelled: Cell<bool>,
    waiters: WakerSet,
}

impl CallCancel {
    /// The pod stands so now.
    pub(crate) fn set_flags(&self, ends: bool, cancelled: bool) {
        self.ends.set(ends);
        if cancelled && !self.cancelled.replace(true) {
            self.waiters.wake_all();
        }
    }

    /// Returns true if the pod is to end: none of its containers starts then.
    pub(crate) fn is_to_end(&self) -> bool {
        self.ends.get() || self.cancelled.get()
    }

    /// Returns true if the call is to return early.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Waits until the call is to return early.
    pub(crate) async fn wait_for_cancel(&self) {
        self.waiters
            .wait_until(|| self.is_cancelled().then_some(()))
            .await;
    }
}
