//! Wakes one task. If nobody waits, the next wait ends at once.

use core::cell::Cell;

use super::waker_set::WakerSet;

/// See the module's words.
#[derive(Debug, Default)]
pub(crate) struct WakeFlag {
    is_set: Cell<bool>,
    waiters: WakerSet,
}

impl WakeFlag {
    /// There is something to look at.
    pub(crate) fn wake_waiters(&self) {
        self.is_set.set(true);
        self.waiters.wake_all();
    }

    /// Waits for that. Dropping the future loses nothing.
    pub(crate) async fn wait_for_wake(&self) {
        self.waiters
            .wait_until(|| self.is_set.take().then_some(()))
            .await;
    }
}
