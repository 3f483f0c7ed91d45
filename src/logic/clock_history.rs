//! History of the wall clock in this boot, for the correction of wrong times (TIME-04, TIME-05).
//!
//! A board without a battery boots in 1970, or in the hour of its last power cut, and is set right later. Times that
//! containers and the agent wrote meanwhile are wrong. So the difference between the wall clock and the time since boot
//! is remembered, stretch by stretch: a stretch lasts from one jump of the wall clock to the next.
//!
//! ```text
//!   time since boot  0 ─────────── 5 min ─────────────── 1 h ──▶
//!   wall clock       1970-01-01    │ jump                │ somebody keeps it right
//!                    └ stretch 1 ──┴ stretch 2 ──────────┴ certain: times of stretch 1 move by the difference of the two
//! ```
//!
//! - Once, in the first moment at which somebody keeps the clock right, all earlier times of the boot move together.
//!   Later jumps move no time: a person who then sets the clock by hand knows what he does.
//! - The age of an event is computed by the time since boot, whatever the clock says. For times before this boot the
//!   difference of two wall clocks is the best that is known.

use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{MonoTime, WallTime};

/// Stretches that are remembered. When there are more, the shortest is forgotten: it has the fewest times.
const MAX_STRETCHES: usize = 16;
/// Difference above which a clock counts as set, milliseconds. A daemon that keeps it right without setting it changes
/// it by half a millisecond a second at most.
const JUMP_MS: u64 = 1000;
/// Most that a time loses when it is cut to whole seconds, milliseconds.
const CUT_MS: i64 = 1000;
const NS_PER_MS: i64 = 1_000_000;

/// Time from one jump of the wall clock to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClockStretch {
    /// Wall clock less time since boot at the begin (`first_ms`) and at the last look (`last_ms`), milliseconds.
    first_ms: i64,
    last_ms: i64,
    from: MonoTime,
    to: MonoTime,
}

impl ClockStretch {
    /// Returns true if a clock of this stretch may have shown `at`.
    fn may_have_shown(&self, at: WallTime) -> bool {
        let at = at.0.div_euclid(NS_PER_MS);
        let begin = wall_ms(self.first_ms.min(self.last_ms), self.from);
        let end = wall_ms(self.first_ms.max(self.last_ms), self.to);
        at >= begin.saturating_sub(CUT_MS) && at <= end
    }

    fn length_ms(&self) -> u64 {
        self.to.since_ms(self.from)
    }
}

/// First moment at which somebody kept the clock right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CertainMoment {
    /// The wall clock less the time since boot, milliseconds.
    offset_ms: i64,
    at: MonoTime,
}

/// Result of a look at the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ClockObservation {
    /// The wall clock goes on as it did.
    Same,
    /// The wall clock was set.
    Set,
    /// The wall clock is right for the first time in this boot. Earlier times of this boot are to move: see
    /// [`ClockHistory::correct_time`].
    Right,
}

/// Stretches of the wall clock in this boot, as the module describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockHistory {
    /// In their order; neighbours overlap by the time between two looks.
    stretches: Vec<ClockStretch>,
    certain: Option<CertainMoment>,
}

impl ClockHistory {
    /// Makes the history of a clock that has not been looked at yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stretches: Vec::new(),
            certain: None,
        }
    }

    /// Looks at both clocks. `is_right` tells whether somebody keeps the wall clock right; it is not called after it
    /// was true.
    pub fn observe_clocks(
        &mut self,
        now: MonoTime,
        wall: WallTime,
        is_right: impl FnOnce() -> bool,
    ) -> ClockObservation {
        let offset_ms = wall
            .0
            .div_euclid(NS_PER_MS)
            .saturating_sub(i64::try_from(now.0).unwrap_or(i64::MAX));
        let was_set = match self.stretches.last_mut() {
            Some(last) if last.last_ms.abs_diff(offset_ms) <= JUMP_MS => {
                (last.last_ms, last.to) = (offset_ms, last.to.max(now));
                false
            }
            // The time of the jump is not known: some time since the last look.
            Some(last) => {
                let from = last.to;
                last.to = last.to.max(now);
                self.begin_stretch(offset_ms, from, now);
                true
            }
            // This is the first look, so the clock may have been like this since the boot.
            None => {
                self.begin_stretch(offset_ms, MonoTime(0), now);
                true
            }
        };
        if self.certain.is_none() && is_right() {
            self.certain = Some(CertainMoment { offset_ms, at: now });
            return ClockObservation::Right;
        }
        if was_set {
            ClockObservation::Set
        } else {
            ClockObservation::Same
        }
    }

    fn begin_stretch(&mut self, offset_ms: i64, from: MonoTime, to: MonoTime) {
        if self.stretches.len() >= MAX_STRETCHES {
            let lengths = self
                .stretches
                .iter()
                .map(ClockStretch::length_ms)
                .enumerate();
            if let Some((shortest, _)) = lengths.min_by_key(|(_, length)| *length) {
                self.stretches.remove(shortest);
            }
        }
        self.stretches.push(ClockStretch {
            first_ms: offset_ms,
            last_ms: offset_ms,
            from,
            to,
        });
    }

    /// Returns true if the wall clock was known to be right at some time of this boot.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.certain.is_some()
    }

    /// Returns the time that `at`, dated by this machine, should have been. Until the clock was right once, `at` is
    /// returned as it is; from then on, a time dated earlier in this boot is moved.
    ///
    /// To be asked once for each time: the result may look like a time of another stretch.
    #[must_use]
    pub fn correct_time(&self, at: WallTime) -> WallTime {
        let Some(certain) = &self.certain else {
            return at;
        };
        // Stretches that began later had a clock that was right.
        let before = self.stretches.iter().rev().filter(|s| s.from < certain.at);
        let mut before = before.filter(|s| s.last_ms.abs_diff(certain.offset_ms) > JUMP_MS);
        match before.find(|s| s.may_have_shown(at)) {
            Some(stretch) => shift_time(at, certain.offset_ms.saturating_sub(stretch.last_ms)),
            None => at,
        }
    }

    /// Corrects `at`, which may have been corrected already: only an impossible time is moved. Such a time lies before
    /// this boot or in the future, and the clock of this boot has shown it.
    #[must_use]
    pub fn correct_impossible_time(&self, at: WallTime, now: MonoTime) -> WallTime {
        let is_possible = self.certain.is_none_or(|certain| {
            let ms = at.0.div_euclid(NS_PER_MS);
            let end = wall_ms(certain.offset_ms, now);
            ms >= certain.offset_ms.saturating_sub(CUT_MS) && ms <= end
        });
        if is_possible {
            at
        } else {
            self.correct_time(at)
        }
    }

    /// Converts `at` to the time since boot; `at` is corrected as far as it can be. `now`, `wall`: both clocks at
    /// present. A time before this boot becomes its begin; a time that is still to come by the wall clock may be later
    /// than `now`.
    #[must_use]
    pub fn time_since_boot(&self, at: WallTime, now: MonoTime, wall: WallTime) -> MonoTime {
        let ms = at.0.div_euclid(NS_PER_MS);
        let of = |offset_ms: i64| MonoTime(ms.saturating_sub(offset_ms).max(0).unsigned_abs());
        let certain = self.certain.map(|certain| certain.offset_ms);
        let is_possible =
            |offset: &i64| ms >= offset.saturating_sub(CUT_MS) && ms <= wall_ms(*offset, now);
        if let Some(offset) = certain.filter(is_possible) {
            return of(offset);
        }
        match self.stretches.iter().rev().find(|s| s.may_have_shown(at)) {
            Some(stretch) => of(stretch.last_ms),
            None => {
                let later_ms = at.0.saturating_sub(wall.0) / NS_PER_MS;
                MonoTime(now.0.saturating_add_signed(later_ms))
            }
        }
    }

    /// Returns the time that has passed since `at`. For a time before this boot the difference of two wall clocks is
    /// the best that is known.
    #[must_use]
    pub fn elapsed_since(&self, at: WallTime, now: MonoTime, wall: WallTime) -> Duration {
        let then = self.time_since_boot(at, now, wall);
        if then > MonoTime(0) {
            return now - then;
        }
        let age = wall.0.saturating_sub(at.0);
        (now - then).max(Duration::from_nanos(u64::try_from(age).unwrap_or(0)))
    }
}

/// Wall clock at the time since boot `at`, when it is `offset_ms` ahead of it, milliseconds.
fn wall_ms(offset_ms: i64, at: MonoTime) -> i64 {
    offset_ms.saturating_add_unsigned(at.0)
}

fn shift_time(at: WallTime, by_ms: i64) -> WallTime {
    WallTime(at.0.saturating_add(by_ms.saturating_mul(NS_PER_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: i64 = 1_790_000_000;
    const HOUR_S: u64 = 3600;

    /// A boot: what the wall clock says follows from a difference that tests set.
    #[derive(Default)]
    struct Boot {
        history: ClockHistory,
        now: MonoTime,
        offset_s: i64,
        is_right: bool,
    }

    impl Boot {
        fn wall(&self) -> WallTime {
            WallTime::from_unix_seconds(
                self.offset_s + i64::try_from(self.now.0 / 1000).expect("small"),
            )
        }

        fn look(&mut self) -> ClockObservation {
            let (wall, is_right) = (self.wall(), self.is_right);
            self.history.observe_clocks(self.now, wall, || is_right)
        }

        fn pass(&mut self, seconds: u64) -> ClockObservation {
            self.now = self.now + Duration::from_secs(seconds);
            self.look()
        }

        fn age(&self, at: WallTime) -> u64 {
            self.history
                .elapsed_since(at, self.now, self.wall())
                .as_secs()
        }

        fn at(&self, second: i64) -> WallTime {
            WallTime::from_unix_seconds(NOW_S + second)
        }
    }

    #[test]
    fn what_was_dated_in_1970_moves_once_the_clock_is_right() {
        // TIME-05
        let mut boot = Boot::default();
        assert_eq!(boot.pass(20), ClockObservation::Set, "the first look");
        assert_eq!(boot.pass(0), ClockObservation::Same);
        let first = boot.wall();
        assert_eq!(boot.pass(40), ClockObservation::Same);
        let second = boot.wall();
        assert_eq!(
            boot.history.correct_time(first),
            first,
            "nothing better is known"
        );
        // The network comes: first the clock is set, then it counts as right.
        boot.offset_s = NOW_S;
        assert_eq!(boot.pass(2), ClockObservation::Set);
        let third = boot.wall();
        assert_eq!(boot.history.correct_time(first), first);
        boot.is_right = true;
        assert_eq!(boot.pass(2), ClockObservation::Right);
        assert_eq!(boot.history.correct_time(first), boot.at(20));
        assert_eq!(boot.history.correct_time(second), boot.at(60));
        assert_eq!(boot.history.correct_time(third), third);
        assert_eq!(boot.history.correct_time(boot.wall()), boot.wall());
        // A boot before this one knew better.
        let before = WallTime::from_unix_seconds(NOW_S - 86_400);
        assert_eq!(boot.history.correct_time(before), before);
        // It is told once.
        assert_eq!(boot.pass(2), ClockObservation::Same);
        boot.is_right = false;
        boot.offset_s = 5;
        assert_eq!(boot.pass(2), ClockObservation::Set);
        boot.is_right = true;
        assert_eq!(boot.pass(2), ClockObservation::Same);
        assert_eq!(boot.history.correct_time(first), boot.at(20));
        let text = serde_json::to_string(&boot.history).expect("text");
        let back: ClockHistory = serde_json::from_str(&text).expect("history");
        assert_eq!(back, boot.history);
    }

    #[test]
    fn the_order_of_what_happened_stays_however_little_the_clock_was_behind() {
        // TIME-05: the last hour of a clock that was a day behind is no hour of before the boot.
        let mut boot = Boot {
            offset_s: NOW_S - 86_400,
            ..Boot::default()
        };
        let mut dated = Vec::new();
        for _ in 0..100 {
            let _ = boot.pass(HOUR_S);
            dated.push(boot.wall());
        }
        (boot.offset_s, boot.is_right) = (NOW_S, true);
        assert_eq!(boot.pass(2), ClockObservation::Right);
        dated.push(boot.wall());
        let right: Vec<WallTime> = dated
            .iter()
            .map(|at| boot.history.correct_time(*at))
            .collect();
        assert!(right.is_sorted(), "{right:?}");
        assert_eq!(right[0], boot.at(3600));
        assert_eq!(right[99], boot.at(360_000));
        // A clock that was ahead.
        let mut boot = Boot {
            offset_s: NOW_S + 7200,
            ..Boot::default()
        };
        let _ = boot.pass(30);
        let early = boot.wall();
        (boot.offset_s, boot.is_right) = (NOW_S, true);
        assert_eq!(boot.pass(2), ClockObservation::Right);
        assert_eq!(boot.history.correct_time(early), boot.at(30));
    }

    #[test]
    fn what_was_corrected_before_is_not_moved_again() {
        // TIME-05
        let mut boot = Boot::default();
        let _ = boot.pass(20);
        let dated = boot.wall();
        (boot.offset_s, boot.is_right) = (NOW_S, true);
        let _ = boot.pass(2);
        let once = boot.history.correct_impossible_time(dated, boot.now);
        assert_eq!(once, boot.at(20));
        assert_eq!(boot.history.correct_impossible_time(once, boot.now), once);
        // A time before this boot, and one of a day when the clock was far ahead: no clock of this boot has shown them.
        for other in [
            WallTime::from_unix_seconds(NOW_S - 5000),
            WallTime::from_unix_seconds(NOW_S + 5000),
        ] {
            assert_eq!(boot.history.correct_impossible_time(other, boot.now), other);
        }
    }

    #[test]
    fn how_long_ago_it_was_does_not_depend_on_the_wall_clock() {
        // TIME-04
        const YEARS_20_S: i64 = 20 * 31_557_600;
        let mut boot = Boot {
            offset_s: NOW_S,
            ..Boot::default()
        };
        let _ = boot.pass(10);
        let mut dated = Vec::new();
        for jump_s in [0, YEARS_20_S, -YEARS_20_S, -YEARS_20_S, 3600, 0] {
            boot.offset_s += jump_s;
            let _ = boot.pass(0);
            dated.push((boot.wall(), boot.now));
            let _ = boot.pass(100);
            for (at, then) in &dated {
                let wanted = (boot.now - *then).as_secs();
                assert_eq!(boot.age(*at), wanted, "{at} at {}", boot.wall());
            }
        }
        // Nor when the clock is right, which moves what was dated.
        (boot.offset_s, boot.is_right) = (NOW_S + 50_000, true);
        assert_eq!(boot.pass(1), ClockObservation::Right);
        let mut own_ages = Vec::new();
        for (at, then) in &dated {
            let at = boot.history.correct_time(*at);
            assert_eq!(boot.age(at), (boot.now - *then).as_secs(), "{at}");
            own_ages.push((at, boot.age(at)));
        }
        boot.offset_s += YEARS_20_S;
        let _ = boot.pass(7);
        for (at, age) in own_ages {
            assert_eq!(boot.age(at), age + 7);
        }
        // Before the boot there are wall clocks only.
        boot.offset_s = NOW_S + 50_000;
        let _ = boot.pass(1);
        assert_eq!(
            boot.age(WallTime(boot.wall().0 - 90_000_000_000_000)),
            90_000
        );
        assert_eq!(boot.age(WallTime(boot.wall().0 + 90_000_000_000_000)), 0);
    }

    #[test]
    fn a_clock_that_is_slowed_down_was_not_set_and_stretches_are_few() {
        let mut boot = Boot {
            offset_s: NOW_S,
            ..Boot::default()
        };
        let _ = boot.pass(1);
        // Half a second an hour for a week: as fast as it goes without a jump.
        for hour in 1..168 {
            boot.now = boot.now + Duration::from_secs(HOUR_S);
            let wall = WallTime(boot.wall().0 + hour * 500 * NS_PER_MS);
            assert_eq!(
                boot.history.observe_clocks(boot.now, wall, || false),
                ClockObservation::Same
            );
        }
        assert_eq!(boot.history.stretches.len(), 1);
        for jump in 0..100_u32 {
            boot.offset_s += 3600;
            let _ = boot.pass(if jump == 50 { 1000 } else { 1 });
        }
        assert_eq!(boot.history.stretches.len(), MAX_STRETCHES);
        let longest = boot
            .history
            .stretches
            .iter()
            .map(ClockStretch::length_ms)
            .max();
        assert!(longest >= Some(168 * 3_600_000 / 2), "the long ones stay");
    }
}
