//! The apiserver's clock, as its answers tell it (TIME-03, TIME-04).
//!
//! Certificates and tokens are issued and end by that clock. Between two answers it is reckoned by the time since boot,
//! which goes on while the machine sleeps. So a wall clock that is set meanwhile changes nothing.

use crate::api::{MonoTime, WallTime};

/// A clock that is off by so much is wrong, seconds. Less may be an error of measuring.
const MAX_SKEW_S: u64 = 60;
const NS_PER_MS: i64 = 1_000_000;
const MS_PER_S: i64 = 1000;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// Time of the server's clock minus the time since boot, milliseconds.
    pub offset_ms: i64,
}

impl ServerClock {
    /// Reads the clock from an answer. `theirs`: its date. `now`: time of its arrival.
    #[must_use]
    pub fn from_answer(theirs: WallTime, now: MonoTime) -> Self {
        let theirs_ms = theirs.0.div_euclid(NS_PER_MS);
        Self {
            offset_ms: theirs_ms.saturating_sub_unsigned(now.0),
        }
    }

    /// Present time of the server's clock.
    #[must_use]
    pub const fn server_time(self, now: MonoTime) -> WallTime {
        let ms = self.offset_ms.saturating_add_unsigned(now.0);
        WallTime(ms.saturating_mul(NS_PER_MS))
    }

    /// Seconds by which the wall clock `ours` is ahead of the server's.
    #[must_use]
    pub const fn ahead_s(self, now: MonoTime, ours: WallTime) -> i64 {
        let ahead = ours.0.saturating_sub(self.server_time(now).0);
        ahead / (NS_PER_MS * MS_PER_S)
    }
}

/// Returns true if a clock that is ahead by so many seconds is wrong.
#[must_use]
pub const fn is_clock_wrong(ahead_s: i64) -> bool {
    ahead_s.unsigned_abs() >= MAX_SKEW_S
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_790_000_000;

    #[test]
    fn a_clock_that_is_set_changes_nothing() {
        // TIME-03 TIME-04
        let known = ServerClock::from_answer(WallTime::from_unix_seconds(NOW_S), MonoTime(7_000));
        // A day later; the machine slept for a part of it. Its clock said 1970 at boot, and was set since.
        let now = MonoTime(7_000 + 86_400_000);
        let theirs = WallTime::from_unix_seconds(NOW_S + 86_400);
        assert_eq!(known.server_time(now), theirs);
        for (ours, ahead_s) in [
            (WallTime::from_unix_seconds(86_407), 86_407 - NOW_S - 86_400),
            (theirs, 0),
            (WallTime(theirs.0 + 999_999_999), 0),
            (WallTime(theirs.0 - 59_999_999_999), -59),
            (
                WallTime::from_unix_seconds(theirs.unix_seconds() + 630_000_000),
                630_000_000,
            ),
        ] {
            assert_eq!(known.ahead_s(now, ours), ahead_s, "{ours}");
        }
    }

    #[test]
    fn what_no_clock_says() {
        for theirs in [WallTime(i64::MIN), WallTime(i64::MAX)] {
            for now in [MonoTime(0), MonoTime(u64::MAX)] {
                let known = ServerClock::from_answer(theirs, now);
                let _ = known.server_time(MonoTime(u64::MAX));
                let _ = known.ahead_s(MonoTime(0), WallTime(i64::MIN));
            }
        }
    }

    #[test]
    fn wrong_clocks() {
        for (ahead_s, wrong) in [
            (0, false),
            (59, false),
            (-59, false),
            (60, true),
            (-60, true),
            (i64::MIN, true),
        ] {
            assert_eq!(is_clock_wrong(ahead_s), wrong, "{ahead_s}");
        }
    }
}
