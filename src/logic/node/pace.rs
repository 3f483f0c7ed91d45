//! Times at which the status is computed, and at which it is sent (NODE-22, NODE-24).

use core::time::Duration;

use crate::api::MonoTime;

/// Number of tries to send one status: the first against the Node last seen, later ones against one read anew
/// (NODE-23).
pub const MAX_TRIES: u32 = 5;
/// Pause between two rounds until the node is ready for the first time.
pub const FAST_INTERVAL: Duration = Duration::from_millis(100);
/// Time after the start for which there are such frequent rounds.
pub const FAST_LIMIT: Duration = Duration::from_secs(120);
/// Largest delay of a round, in thousandths of the pause between two.
const JITTER_PERMILLE: u64 = 40;

/// The rhythm of status rounds.
#[derive(Clone, Copy, Debug)]
pub struct StatusPace {
    update: Duration,
    report: Duration,
    last_sent: Option<MonoTime>,
    /// Time from the last status to the next report: `report`, or a random one after a change.
    shifted: Duration,
}

impl StatusPace {
    /// `update`: `nodeStatusUpdateFrequency`; `report`: `nodeStatusReportFrequency`.
    #[must_use]
    pub const fn new(update: Duration, report: Duration) -> Self {
        Self {
            update,
            report,
            last_sent: None,
            shifted: report,
        }
    }

    /// Time of the next round. `random`: any number.
    #[must_use]
    pub fn next_round(&self, now: MonoTime, random: u64) -> MonoTime {
        now + self.update + random_part(self.update, JITTER_PERMILLE, random)
    }

    /// Returns true if a status must be sent: it has changed, or the last one was sent too long ago.
    #[must_use]
    pub fn must_send_status(&self, is_change: bool, now: MonoTime) -> bool {
        // Before the first status there is none to repeat; a new one is a change.
        is_change
            || self
                .last_sent
                .is_some_and(|last| now - last >= self.shifted)
    }

    /// Takes in that a status was accepted. After a change the next report comes up to half its time sooner or later,
    /// so that a fleet that changed together does not report together.
    pub fn record_sent_status(&mut self, is_change: bool, now: MonoTime, random: u64) {
        self.last_sent = Some(now);
        self.shifted = if is_change {
            self.report / 2 + random_part(self.report, 1000, random)
        } else {
            self.report
        };
    }
}

/// Random part of `time`, at most `permille` thousandths of it.
fn random_part(time: Duration, permille: u64, random: u64) -> Duration {
    let most = u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .saturating_mul(permille)
        / 1000;
    Duration::from_millis(random.checked_rem(most.saturating_add(1)).unwrap_or(0))
}

/// Decision of one of the frequent rounds after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupRound {
    /// Try again after [`FAST_INTERVAL`], or when the node is known to have changed.
    Again,
    /// Send the status now; no more frequent rounds.
    Send,
    /// No more frequent rounds.
    Over,
}

/// Decides if the first `Ready` is sent now (NODE-24).
///
/// - `seen`: readiness in the Node last seen; `None` without a Node or a `Ready` condition.
/// - `is_ready`: readiness in the status just computed.
#[must_use]
pub fn decide_startup_round(
    since_start: Duration,
    seen: Option<bool>,
    is_ready: bool,
) -> StartupRound {
    if since_start >= FAST_LIMIT || seen == Some(true) {
        StartupRound::Over
    } else if seen == Some(false) && is_ready {
        StartupRound::Send
    } else {
        StartupRound::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn rounds() {
        // NODE-22
        let pace = StatusPace::new(s(10), s(300));
        for random in [0, 7, 400, 401, u64::MAX] {
            let next = pace.next_round(MonoTime(1000), random).0;
            assert!((11_000..=11_400).contains(&next), "{next}");
        }
        assert_eq!(pace.next_round(MonoTime(0), 400), MonoTime(10_400));
        let zero = StatusPace::new(Duration::ZERO, s(1));
        assert_eq!(zero.next_round(MonoTime(5), 9), MonoTime(5));
    }

    #[test]
    fn sending() {
        // NODE-22
        let mut pace = StatusPace::new(s(10), s(300));
        let at = |s: u64| MonoTime(s * 1000);
        assert!(!pace.must_send_status(false, at(0)), "nothing to repeat");
        assert!(pace.must_send_status(true, at(0)));
        for (name, change, random, due) in [
            ("no change", false, 0, 300),
            ("as early as it gets", true, 0, 150),
            ("as late as it gets", true, 300_000, 450),
            ("no change again", false, 9, 300),
        ] {
            pace.record_sent_status(change, at(1000), random);
            assert!(!pace.must_send_status(false, at(999 + due)), "{name}");
            assert!(pace.must_send_status(false, at(1000 + due)), "{name}");
            assert!(pace.must_send_status(true, at(1001)), "{name}");
        }
    }

    #[test]
    fn the_first_ready() {
        // NODE-24
        for (name, s_after, seen, ready, want) in [
            ("no node yet", 1, None, true, StartupRound::Again),
            ("not ready yet", 1, Some(false), false, StartupRound::Again),
            (
                "just became ready",
                1,
                Some(false),
                true,
                StartupRound::Send,
            ),
            ("was ready", 1, Some(true), true, StartupRound::Over),
            ("too late", 120, Some(false), true, StartupRound::Over),
        ] {
            assert_eq!(
                decide_startup_round(s(s_after), seen, ready),
                want,
                "{name}"
            );
        }
    }
}
