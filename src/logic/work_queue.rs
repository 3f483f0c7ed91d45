//! Times of a pod worker's next look at its pod: the small timers of a slot, and the delays after a call.
//!
//! There is no queue: each slot carries its own due times, so the queue can neither grow nor lose a pod. Names and
//! figures follow kubelet `util/queue/work_queue.go` and `completeWork` of `pod_workers.go`.

use core::time::Duration;

use crate::api::MonoTime;

/// Time between two syncs of a pod that is well, unless configured otherwise (`syncFrequency`).
pub const SYNC_FREQUENCY: Duration = Duration::from_secs(60);
/// Base delay after an ordinary error, and of a static pod that waits for its full name.
pub const RETRY: Duration = Duration::from_secs(10);
/// Base delay after an error that says the network is not ready.
pub const RETRY_NETWORK: Duration = Duration::from_secs(1);

/// Spreads delays so that pods which failed together do not retry together. Seeded, so a run can be replayed.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// A sequence decided by `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `base` lengthened by 0–50 % (the upper bound excluded); exact to the millisecond.
    pub fn stretch_delay(&mut self, base: Duration) -> Duration {
        let half_ms = u64::try_from(base.as_millis() / 2).unwrap_or(u64::MAX);
        let extra_ms = (u128::from(self.next_random()) * u128::from(half_ms)) >> 64;
        base + Duration::from_millis(u64::try_from(extra_ms).unwrap_or(half_ms))
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): one addition and a mix, good enough to spread timers.
    fn next_random(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Cause of a failed call, as far as the time of the next attempt depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCause {
    /// The network is not ready; wins over every other cause.
    NetworkNotReady,
    /// A crash-loop back-off runs until this time.
    BackOff(MonoTime),
    /// Anything else.
    Error,
}

impl RetryCause {
    /// The cause that decides when a call failed for two.
    #[must_use]
    pub fn merge_with(self, other: Self) -> Self {
        match (self, other) {
            (Self::NetworkNotReady, _) | (_, Self::NetworkNotReady) => Self::NetworkNotReady,
            (Self::BackOff(a), Self::BackOff(b)) => Self::BackOff(a.min(b)),
            (until @ Self::BackOff(_), Self::Error) | (Self::Error, until @ Self::BackOff(_)) => {
                until
            }
            (Self::Error, Self::Error) => Self::Error,
        }
    }
}

/// End of a worker's call, as far as the time of the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// The pod moved to its next stage.
    Transition,
    /// The call succeeded and the pod stays in its stage.
    Well,
    /// The call failed.
    Failed(RetryCause),
}

/// Delay before the next call when no update arrives earlier.
///
/// Source: kubelet `pod_workers.go`, `completeWork`.
pub fn requeue_delay(
    ended: CallEnd,
    now: MonoTime,
    sync_frequency: Duration,
    jitter: &mut Jitter,
) -> Duration {
    let base = match ended {
        CallEnd::Transition => return Duration::ZERO,
        CallEnd::Well => sync_frequency,
        CallEnd::Failed(RetryCause::NetworkNotReady) => RETRY_NETWORK,
        CallEnd::Failed(RetryCause::BackOff(until)) => (until - now).min(sync_frequency),
        CallEnd::Failed(RetryCause::Error) => RETRY,
    };
    jitter.stretch_delay(base)
}

/// Purpose of a slot's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotTimer {
    /// The pod is due for a sync, or a static pod tries again to get its full name.
    Requeue,
    /// `activeDeadlineSeconds` runs out.
    ActiveDeadline,
}

impl SlotTimer {
    /// Every timer, in index order.
    pub const ALL: [Self; 2] = [Self::Requeue, Self::ActiveDeadline];
}

/// The timers of one slot: one due time each, set again at will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTimers([MonoTime; SlotTimer::ALL.len()]);

/// Due time of a timer that is not set.
const NEVER: MonoTime = MonoTime(u64::MAX);

impl SlotTimers {
    /// Timers of which none is set.
    pub const UNSET: Self = Self([NEVER; SlotTimer::ALL.len()]);

    /// Sets `timer`; an earlier setting is forgotten, be it earlier or later.
    pub const fn set_timer(&mut self, timer: SlotTimer, due: MonoTime) {
        self.0[timer as usize] = due;
    }

    /// Clears `timer`.
    pub const fn clear_timer(&mut self, timer: SlotTimer) {
        self.0[timer as usize] = NEVER;
    }

    /// Returns true if `timer` was due before `now`; then clears it.
    pub fn take_due(&mut self, timer: SlotTimer, now: MonoTime) -> bool {
        let due = self.0[timer as usize] < now;
        if due {
            self.clear_timer(timer);
        }
        due
    }

    /// First instant at which [`SlotTimers::take_due`] returns true for a timer.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let first = self.0.into_iter().min().filter(|due| *due != NEVER)?;
        Some(first + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn delays() {
        let at = |seconds: u64| MonoTime(seconds * 1000);
        // PW-27 PW-28
        for (name, ended, base) in [
            ("state change", CallEnd::Transition, s(0)),
            ("success", CallEnd::Well, s(60)),
            (
                "network",
                CallEnd::Failed(RetryCause::NetworkNotReady),
                s(1),
            ),
            ("error", CallEnd::Failed(RetryCause::Error), s(10)),
            (
                "back-off",
                CallEnd::Failed(RetryCause::BackOff(at(120))),
                s(20),
            ),
            (
                "back-off that ran out",
                CallEnd::Failed(RetryCause::BackOff(at(50))),
                s(0),
            ),
            (
                "back-off longer than a sync period",
                CallEnd::Failed(RetryCause::BackOff(at(500))),
                s(60),
            ),
        ] {
            let mut jitter = Jitter::new(7);
            let mut longest = Duration::ZERO;
            for _ in 0..500 {
                let delay = requeue_delay(ended, at(100), SYNC_FREQUENCY, &mut jitter);
                assert!(
                    delay == base || (delay > base && delay < base + base / 2),
                    "{name}: {delay:?}"
                );
                longest = longest.max(delay);
            }
            assert!(longest >= base + base * 2 / 5, "{name}: not spread");
        }
    }

    #[test]
    fn the_deciding_cause() {
        let until = |ms| RetryCause::BackOff(MonoTime(ms));
        // PW-28
        for (name, a, b, both) in [
            ("earliest back-off", until(5), until(3), until(3)),
            (
                "back-off beats error",
                RetryCause::Error,
                until(3),
                until(3),
            ),
            (
                "network beats back-off",
                until(1),
                RetryCause::NetworkNotReady,
                RetryCause::NetworkNotReady,
            ),
            (
                "network beats error",
                RetryCause::NetworkNotReady,
                RetryCause::Error,
                RetryCause::NetworkNotReady,
            ),
            (
                "errors",
                RetryCause::Error,
                RetryCause::Error,
                RetryCause::Error,
            ),
        ] {
            assert_eq!(a.merge_with(b), both, "{name}");
            assert_eq!(b.merge_with(a), both, "{name}, swapped");
        }
    }

    #[test]
    fn one_due_time_each() {
        // CLEAN-16
        let mut timers = SlotTimers::UNSET;
        assert_eq!(timers.next_timeout(), None);
        timers.set_timer(SlotTimer::Requeue, MonoTime(10));
        timers.set_timer(SlotTimer::Requeue, MonoTime(30));
        assert!(
            !timers.take_due(SlotTimer::Requeue, MonoTime(20)),
            "the later setting holds"
        );
        timers.set_timer(SlotTimer::Requeue, MonoTime(20));
        assert!(
            !timers.take_due(SlotTimer::Requeue, MonoTime(20)),
            "strictly after its time"
        );
        assert_eq!(timers.next_timeout(), Some(MonoTime(21)));
        assert!(timers.take_due(SlotTimer::Requeue, MonoTime(21)));
        assert!(
            !timers.take_due(SlotTimer::Requeue, MonoTime(22)),
            "taken, therefore gone"
        );
        timers.set_timer(SlotTimer::ActiveDeadline, MonoTime(5));
        timers.set_timer(SlotTimer::Requeue, MonoTime(9));
        assert_eq!(timers.next_timeout(), Some(MonoTime(6)));
    }
}
