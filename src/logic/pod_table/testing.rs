//! Methods that only tests call.

use super::PodTable;

impl PodTable {
    /// Slots in use, pods not fetched as [`Effect::Gone`] yet included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.used
    }

    /// Returns true if no slot is in use.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.used == 0
    }
}
