//! Questions that only tests ask.

use super::{Handle, PodTable};

impl PodTable {
    /// Grace in force in seconds, once the pod terminates.
    #[must_use]
    pub fn grace_s(&self, handle: Handle) -> Option<u32> {
        let grace_s = self.slots[self.index_of(handle)?].worker.grace_s;
        (grace_s != 0).then_some(grace_s)
    }

    /// Slots in use, pods not fetched as [`Effect::Gone`] yet included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Whether no slot is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }
}
