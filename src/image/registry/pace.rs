//! Pace of pulls: delays, the cap on bytes per second, the lowest rate.

use core::ops::ControlFlow;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use crate::api::{MonoTime, WallTime};
use crate::net::pace::StopFlag;
use crate::sys::clock;

/// First delay before a request is repeated; doubles up to [`MAX_RETRY`].
pub const RETRY: Duration = Duration::from_millis(500);
/// Longest delay before a request is repeated.
pub const MAX_RETRY: Duration = Duration::from_secs(15);
/// Longest `Retry-After` that is waited out; with a longer one the pull fails, and its back-off takes over.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Bytes per second below which a layer does not count as arriving: a tenth of the thinnest link that is in use (GPRS),
/// shared by four.
pub const MIN_RATE: u64 = 128;
/// Burst after a pause, as milliseconds at the cap: a cap is held over every second.
const BURST_MS: u64 = 1000;
const NS_PER_MS: u64 = 1_000_000;

/// Reads a `Retry-After`; `None` if it is neither seconds nor a date. A date is taken against the answer's own `Date`,
/// for boards boot with clocks that are years off; `now` counts where there is none. Source: RFC 9110 section 10.2.3.
pub(super) fn parse_retry_after(text: &str, date: Option<&str>, now: WallTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let parsed = |text: &str| OffsetDateTime::parse(text.trim(), &Rfc2822).ok();
    let then = parsed(text)?.unix_timestamp();
    let now = date
        .and_then(parsed)
        .map_or_else(|| now.unix_seconds(), OffsetDateTime::unix_timestamp);
    let seconds = then.saturating_sub(now).max(0);
    Some(Duration::from_secs(seconds.unsigned_abs()))
}

/// A cap on bytes per second, shared by all pulls.
#[derive(Debug)]
pub struct Throttle {
    /// Bytes per second; `None`: no cap.
    rate: Option<u64>,
    /// Time, in nanoseconds since boot, at which all taken bytes are paid for. In milliseconds each read would cost up
    /// to one too much.
    paid_ns: Mutex<u64>,
}

impl Throttle {
    /// `rate`: bytes per second; `None` or 0: no cap.
    #[must_use]
    pub fn new(rate: Option<u64>) -> Self {
        Self {
            rate: rate.filter(|r| *r > 0),
            paid_ns: Mutex::new(0),
        }
    }

    /// Returns how many bytes may be read at once: few when the cap is low, so that it is held smoothly.
    #[must_use]
    pub fn piece_bytes(&self, most: usize) -> usize {
        let rate = self.rate.unwrap_or(u64::MAX);
        usize::try_from((rate / 8).max(1024)).map_or(most, |n| n.min(most))
    }

    /// Notes that `bytes` were read, and waits as long as the cap asks.
    pub fn wait_for_bytes(&self, bytes: usize, stop: &StopFlag) -> ControlFlow<()> {
        let Some(rate) = self.rate else {
            return ControlFlow::Continue(());
        };
        let wait = self.pay_for_bytes(bytes, rate, clock::mono_now());
        if wait < Duration::from_millis(1) {
            return ControlFlow::Continue(());
        }
        stop.wait_unless_stopped(wait)
    }

    /// Takes `bytes` into account and returns the time to wait for them.
    fn pay_for_bytes(&self, bytes: usize, rate: u64, now: MonoTime) -> Duration {
        let now_ns = now.0.saturating_mul(NS_PER_MS);
        let mut paid = self.paid_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*paid).max(now_ns.saturating_sub(BURST_MS * NS_PER_MS));
        *paid = start.saturating_add(cost_ns(bytes, rate));
        Duration::from_nanos(paid.saturating_sub(now_ns))
    }
}

/// Cost of `bytes` in nanoseconds. Rounded down, which is less than a byte's worth in a million reads.
fn cost_ns(bytes: usize, rate: u64) -> u64 {
    let ns = u128::from(bytes as u64) * 1_000_000_000 / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_to_come_again() {
        let now = WallTime::from_unix_seconds(784_111_777);
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (text, date, want) in [
            ("120", None, Some(120)),
            (" 0 ", None, Some(0)),
            ("-1", None, None),
            ("soon", None, None),
            ("", None, None),
            ("18446744073709551615", None, Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", None, Some(120)),
            ("Sun, 06 Nov 1994 08:39:37 GMT", None, Some(0)),
            ("Sun, 06 Nov 1994 08:49:57 GMT", Some(date), Some(20)),
            ("Sun, 06 Nov 1994 08:49:57 GMT", Some("x"), Some(20)),
            (
                "Mon, 06 Nov 1995 08:49:37 GMT",
                Some(date),
                Some(31_536_000),
            ),
            ("Sun, 06 Nov 1994 25:49:37 GMT", None, None),
        ] {
            let want = want.map(Duration::from_secs);
            assert_eq!(parse_retry_after(text, date, now), want, "{text}");
        }
        // The board believes it is 1970, the registry does not.
        let found = parse_retry_after("Sun, 06 Nov 1994 08:49:57 GMT", Some(date), WallTime(0));
        assert_eq!(found, Some(Duration::from_secs(20)));
    }

    #[test]
    fn a_cap_is_held() {
        let stop = StopFlag::default();
        let throttle = Throttle::new(Some(1_000_000));
        // The burst of a second is free, the rest is not.
        let start = clock::mono_now().0;
        for _ in 0..12 {
            assert!(throttle.wait_for_bytes(100_000, &stop).is_continue());
        }
        assert!(clock::mono_now().0 - start >= 190);
        // Over many reads of any size no more and no less than the cap, a read's worth aside.
        for (rate, piece) in [
            (1_000_000, 1460),
            (30_000_000, 1460),
            (10_000_000, 65_536),
            (3000, 1),
        ] {
            let throttle = Throttle::new(Some(rate));
            let start = MonoTime(10_000);
            let mut now = start;
            let mut taken = 0;
            while now - start < Duration::from_secs(10) {
                taken += piece as u64;
                let wait = throttle.pay_for_bytes(piece, rate, now);
                now = now + wait;
            }
            // And the burst.
            let most = rate * 11 + piece as u64 + rate / 500;
            assert!(taken <= most, "{rate}: {taken} of {most}");
            assert!(taken >= rate * 11 * 98 / 100, "{rate}: {taken} of {most}");
        }
        assert_eq!(throttle.piece_bytes(65_536), 65_536);
        assert_eq!(Throttle::new(Some(1000)).piece_bytes(65_536), 1024);
        assert!(
            Throttle::new(None)
                .wait_for_bytes(usize::MAX, &stop)
                .is_continue()
        );
        // Waiting threads are let go.
        stop.stop();
        assert!(throttle.wait_for_bytes(usize::MAX, &stop).is_break());
        assert!(stop.is_stopped());
    }
}
