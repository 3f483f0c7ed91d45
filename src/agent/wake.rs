//! Wakes one task. Rung while nobody waits, it is heard by the next wait.

use core::cell::Cell;

use super::bell::Bell;

/// See the module's words.
#[derive(Debug, Default)]
pub(super) struct Wake {
    rung: Cell<bool>,
    bell: Bell,
}

impl Wake {
    /// There is something to look at.
    pub(super) fn ring(&self) {
        self.rung.set(true);
        self.bell.ring();
    }

    /// Waits for a ring. Dropping the future loses none.
    pub(super) async fn heard(&self) {
        self.bell.until(|| self.rung.take().then_some(())).await;
    }
}
