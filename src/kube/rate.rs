//! Rate limit of requests (CONF-07, CONF-21).
//!
//! Source: client-go `util/flowcontrol`, `NewTokenBucketRateLimiter`.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use crate::api::MonoTime;
use crate::net::pace::StopFlag;
use crate::sys::clock;

/// Longest wait of a request for its turn. A longer queue means that a caller sends without end: this is reported.
pub const MAX_TURN_TIME: Duration = Duration::from_secs(60);

/// Token bucket: tokens come at a rate and are kept up to a number. A request that finds none waits; turns are given in
/// order.
#[derive(Debug)]
pub struct RequestRate {
    /// Milliseconds times [`SCALE`] that one request costs; 0: no limit.
    cost: u64,
    burst: u64,
    /// Time, in milliseconds times [`SCALE`], at which all requests so far have been paid for.
    paid: Mutex<u64>,
}

/// Factor of costs, so that a request still costs more than zero at rates above 1000 a second.
const SCALE: u64 = 1000;

impl RequestRate {
    /// Makes a limit with a full burst. `per_second` 0: no limit.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self {
            cost: 1000 * SCALE / u64::from(per_second.max(1)) * u64::from(per_second > 0),
            burst: u64::from(burst.max(1)),
            paid: Mutex::new(0),
        }
    }

    /// Takes a turn and returns the time until then. `None`: it is longer than [`MAX_TURN_TIME`], and no turn was
    /// taken.
    fn take_turn(&self, now: MonoTime) -> Option<Duration> {
        let now = now.0.saturating_mul(SCALE);
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let free = now.saturating_sub((self.burst - 1) * self.cost);
        let begins = (*paid).max(free);
        let wait = Duration::from_millis(begins.saturating_sub(now).div_ceil(SCALE));
        if wait > MAX_TURN_TIME {
            return None;
        }
        *paid = begins + self.cost;
        Some(wait)
    }

    /// Waits for a turn; false if there will be none soon.
    pub(super) fn wait_for_turn(&self) -> bool {
        match self.take_turn(clock::mono_now()) {
            None => false,
            Some(time) => {
                if !time.is_zero() {
                    let _ = StopFlag::default().wait_unless_stopped(time);
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        // CONF-07
        let rate = RequestRate::new(50, 100);
        let at = |ms: u64| {
            rate.take_turn(MonoTime(1_000_000 + ms))
                .map(|d| d.as_millis())
        };
        for _ in 0..100 {
            assert_eq!(at(0), Some(0));
        }
        assert_eq!((at(0), at(0), at(0)), (Some(20), Some(40), Some(60)));
        assert_eq!(at(1000), Some(0), "they come back");
        let off = RequestRate::new(0, 0);
        for _ in 0..10_000 {
            assert_eq!(off.take_turn(MonoTime(5)), Some(Duration::ZERO));
        }
        let slow = RequestRate::new(1, 1);
        let turns = (0..1000).filter(|_| slow.take_turn(MonoTime(9_000_000)).is_some());
        assert_eq!(turns.count(), 61, "nobody waits for ever");
    }
}
