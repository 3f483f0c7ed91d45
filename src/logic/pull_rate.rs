//! Rate limit of image pulls (IMG-16). A pull above the rate fails at once, it does not wait.

use crate::api::MonoTime;

/// A pull in thousandths, so that rates below one a second need no fractions.
const WHOLE: u64 = 1000;

/// Tokens that come at a rate and are kept up to a number.
///
/// Source: client-go `util/flowcontrol`, `NewTokenBucketRateLimiter`; kubelet `images/helpers.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullRate {
    per_second: u32,
    burst: u32,
    tokens: u64,
    last: MonoTime,
}

impl PullRate {
    /// Makes a full bucket. `per_second` 0: no limit.
    #[must_use]
    pub fn new(per_second: u32, burst: u32, now: MonoTime) -> Self {
        Self {
            per_second,
            burst,
            tokens: u64::from(burst) * WHOLE,
            last: now,
        }
    }

    /// Returns true if a pull may begin now, and counts it then.
    pub fn try_take_pull(&mut self, now: MonoTime) -> bool {
        if self.per_second == 0 {
            return true;
        }
        // One pull a second is a thousandth of a pull a millisecond.
        let grown = now
            .since_ms(self.last)
            .saturating_mul(self.per_second.into());
        self.tokens = self
            .tokens
            .saturating_add(grown)
            .min(u64::from(self.burst) * WHOLE);
        self.last = now;
        let allowed = self.tokens >= WHOLE;
        if allowed {
            self.tokens -= WHOLE;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_burst() {
        // IMG-16
        let allowed = |rate: &mut PullRate, at_ms, tries: usize| {
            (0..tries)
                .filter(|_| rate.try_take_pull(MonoTime(at_ms)))
                .count()
        };
        let mut rate = PullRate::new(5, 10, MonoTime(0));
        assert_eq!(allowed(&mut rate, 0, 20), 10, "the burst");
        assert_eq!(allowed(&mut rate, 199, 1), 0);
        assert_eq!(allowed(&mut rate, 200, 2), 1, "one each 200 ms");
        assert_eq!(allowed(&mut rate, 1200, 9), 5);
        assert_eq!(allowed(&mut rate, 3_600_000, 20), 10, "no more are kept");
        let mut off = PullRate::new(0, 0, MonoTime(0));
        assert_eq!(allowed(&mut off, 0, 1000), 1000);
        let mut closed = PullRate::new(1, 0, MonoTime(0));
        assert_eq!(allowed(&mut closed, 1_000_000, 5), 0);
    }
}
