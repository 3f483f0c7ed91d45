//! Questions that only tests ask.

use super::PodTable;

impl PodTable {
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
