//! Waiting between attempts, and being told to stop.

use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::sys::clock;

/// Tells waiting threads to end.
#[derive(Debug, Default)]
pub struct StopFlag {
    stopped: Mutex<bool>,
    bell: Condvar,
}

impl StopFlag {
    /// Ends all waiting, now and later.
    pub fn stop(&self) {
        *self.lock() = true;
        self.bell.notify_all();
    }

    /// Returns true if [`StopFlag::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.lock()
    }

    /// Waits, unless and until it is stopped.
    pub fn wait_unless_stopped(&self, time: Duration) -> ControlFlow<()> {
        let guard = self.lock();
        let (stopped, _) = self
            .bell
            .wait_timeout_while(guard, time, |stopped| !*stopped)
            .unwrap_or_else(PoisonError::into_inner);
        if *stopped {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delays between attempts: doubling, with jitter, starting over when there is progress.
#[derive(Debug)]
pub(crate) struct RetryDelays {
    base: Duration,
    longest: Duration,
    next: Duration,
    random: u64,
}

impl RetryDelays {
    /// Starts with `base`, ends with `longest`.
    pub(crate) fn new(base: Duration, longest: Duration) -> Self {
        // Boards that lost the same link must not come back in step: the address of a local differs between
        // processes, the clock between moments.
        let here = 0_u8;
        let random = clock::mono_now().0 ^ (core::ptr::from_ref(&here).addr() as u64) << 20;
        Self {
            base,
            longest,
            next: base,
            random: random | 1,
        }
    }

    /// The next delay: between half and the whole of the step.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let step = self.next.min(self.longest);
        self.next = step * 2;
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = step / 2;
        let per_mille = u32::try_from(self.random % 1000).unwrap_or(0);
        half + half * per_mille / 1000
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Duration = Duration::from_millis(500);
    const MAX_RETRY: Duration = Duration::from_secs(15);

    #[test]
    fn delays_double_within_their_bounds() {
        let mut delays = RetryDelays::new(RETRY, MAX_RETRY);
        for step_ms in [500, 1000, 2000, 4000, 8000, 15_000, 15_000] {
            let step = Duration::from_millis(step_ms);
            let delay = delays.next_delay();
            assert!(delay >= step / 2 && delay <= step, "{delay:?} of {step:?}");
        }
        delays.reset();
        assert!(delays.next_delay() <= RETRY);
        assert_ne!(RetryDelays::new(MAX_RETRY, MAX_RETRY).random, 0);
    }
}
