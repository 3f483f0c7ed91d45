//! Pauses before something is tried again: each is longer than the one before.

use core::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingPause {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl GrowingPause {
    /// Begins with `first`; each pause is twice as long as the one before, up to `last`.
    #[must_use]
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self {
            first,
            last,
            next: first,
        }
    }

    /// Takes the next pause.
    pub fn take(&mut self) -> Duration {
        let now = self.next;
        self.next = now.saturating_mul(2).min(self.last);
        now
    }

    /// Begins anew.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }

    /// Takes the pause before a new watch: none, if the last one `lasted` as long as the longest pause.
    pub fn take_after_watch(&mut self, lasted: Duration) -> Duration {
        if lasted < self.last {
            return self.take();
        }
        self.reset();
        Duration::ZERO
    }
}
