//! Bytes of a day: what may still go over the link, and what waits for the next day (METER-02, METER-04).
//!
//! | of the day's bytes | images and releases | what comes through the tunnel | polls |
//! |---|---|---|---|
//! | below 80 % | go on, as far as they fit below 80 % | goes on | as a rule |
//! | 80 % and more | wait, but for those of critical pods | goes on | as a rule |
//! | all | wait | is refused | are slowest |
//!
//! Nothing else waits, however much it is: leases, statuses and deletions are small, and without them the node would be
//! lost. A day is one of UTC. Until the clock was right once in this boot it is 24 hours of uptime (TIME-06).

use alloc::{format, string::String};
use core::{fmt, time::Duration};

use crate::api::{MonoTime, WallTime, link::PullUrgency, quantity::human_bytes};

/// Used part of the day's bytes from which on images wait, percent.
const SAVING_PERCENT: u64 = 80;
const DAY: Duration = Duration::from_secs(24 * 3600);
const DAY_S: i64 = 24 * 3600;
const MINUTE_S: i64 = 60;

/// Settings of the budget, from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBudgetSettings {
    /// Bytes of a day, received and sent together; more than 0.
    pub daily_bytes: u64,
    /// Part of the day in which images never wait, even if the bytes of the day are used.
    pub pull_window: Option<DailyWindow>,
}

/// A part of each day, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DailyWindow {
    /// Minutes of the day. They differ; the end may be on the next day.
    from: i64,
    to: i64,
}

impl DailyWindow {
    /// Reads `HH:MM-HH:MM`; `None`: it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (from, to) = text.split_once('-')?;
        let (from, to) = (parse_minutes(from)?, parse_minutes(to)?);
        (from != to).then_some(Self { from, to })
    }

    fn contains(self, now: WallTime) -> bool {
        let minute = now.unix_seconds().rem_euclid(DAY_S) / MINUTE_S;
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }

    /// Returns the next start of the window.
    fn next_start(self, now: WallTime) -> WallTime {
        let begin = |day: i64| WallTime::from_unix_seconds(day * DAY_S + self.from * MINUTE_S);
        let today = now.unix_seconds().div_euclid(DAY_S);
        if begin(today) > now {
            begin(today)
        } else {
            begin(today + 1)
        }
    }
}

fn parse_minutes(text: &str) -> Option<i64> {
    let number = |text: &str, most: i64| -> Option<i64> {
        let is_number = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number)?;
        (number <= most).then_some(number)
    };
    let (hours, minutes) = text.split_once(':')?;
    Some(number(hours, 23)? * 60 + number(minutes, 59)?)
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetMoment {
    /// Wall clock; `None`: it is not known to be right, see [`is_wall_clock_usable`].
    pub wall: Option<WallTime>,
    /// Time since boot, for measuring.
    pub up: MonoTime,
    /// Bytes counted so far, in all.
    pub counted: u64,
}

/// Returns true if days and windows go by the wall clock (TIME-06).
///
/// - `certain`: the clock was right once in this boot. A clock that is not kept right any more stays near the truth.
/// - `synchronized`: the kernel's present word on the clock. Without one, the clock is taken to be kept right.
#[must_use]
pub const fn is_wall_clock_usable(certain: bool, synchronized: Option<bool>) -> bool {
    certain || !matches!(synchronized, Some(false))
}

/// End of a wait: the start of the next day, or of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferralEnd {
    /// Wall-clock time.
    At(WallTime),
    /// Time since boot.
    Up(MonoTime),
}

/// Refusal of a download for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadDeferral {
    /// Bytes that are missing; `None`: nobody asked yet.
    pub needs: Option<u64>,
    /// Bytes that may still be fetched today.
    pub left: u64,
    /// End of the wait.
    pub until: DeferralEnd,
    /// Length of the wait.
    pub after: Duration,
    /// Bytes of a whole day for downloads of this urgency.
    of: u64,
    /// No day has enough, nor is there a window.
    is_too_large: bool,
}

impl fmt::Display for DownloadDeferral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, of) = (human_bytes(self.left), human_bytes(self.of));
        match self.needs {
            Some(needs) => write!(f, "needs {}, ", human_bytes(needs))?,
            None => f.write_str("its size is not known yet, ")?,
        }
        write!(f, "{left} of {of} are left for it today")?;
        if self.is_too_large {
            return f.write_str(
                "; it is larger than the budget of a day: use picolet image pull --now",
            );
        }
        match self.until {
            DeferralEnd::At(at) => write!(f, "; goes on at {at}"),
            DeferralEnd::Up(_) => {
                let minutes = self.after.as_secs().div_ceil(60);
                write!(f, "; goes on in {} h {} min", minutes / 60, minutes % 60)
            }
        }
    }
}

/// State of a [`DownloadBudget`] that is kept over a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBudget {
    /// The day, counted from 1970; `None`: the clock was not right.
    pub day: Option<i64>,
    /// Bytes used on it.
    pub used: u64,
    /// Time that agents were up on this day.
    pub elapsed: Duration,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct DownloadBudget {
    settings: LinkBudgetSettings,
    day: Option<i64>,
    /// Start of this day for this agent, and the time that earlier agents were up on the day.
    began: MonoTime,
    elapsed: Duration,
    /// Counter at `began`, and bytes that earlier agents used on the day.
    base: u64,
    before: u64,
    /// Bytes that may come for admitted downloads, and the part of them that has come.
    granted: u64,
    come: u64,
    /// Counter at the last call of [`DownloadBudget::used_bytes`].
    seen: u64,
}

impl DownloadBudget {
    /// Makes the budget of an agent that starts.
    #[must_use]
    pub const fn new(settings: LinkBudgetSettings, kept: KeptBudget, now: BudgetMoment) -> Self {
        Self {
            settings,
            day: kept.day,
            began: now.up,
            elapsed: kept.elapsed,
            base: now.counted,
            before: kept.used,
            granted: 0,
            come: 0,
            seen: now.counted,
        }
    }

    /// Begins a day if there is a new one.
    fn begin_day_if_new(&mut self, now: BudgetMoment) {
        let today = now.wall.map(|wall| wall.unix_seconds().div_euclid(DAY_S));
        let is_new = match (today, self.day) {
            (Some(today), Some(day)) => today != day,
            // The clock has become right: the bytes so far count as used today.
            (Some(_), None) => {
                self.day = today;
                false
            }
            (None, _) => self.elapsed_today(now) >= DAY,
        };
        if is_new {
            self.day = today;
            self.began = now.up;
            self.elapsed = Duration::ZERO;
            self.base = now.counted;
            self.before = 0;
        }
    }

    fn elapsed_today(&self, now: BudgetMoment) -> Duration {
        self.elapsed.saturating_add(now.up - self.began)
    }

    /// Bytes used today.
    pub fn used_bytes(&mut self, now: BudgetMoment) -> u64 {
        self.begin_day_if_new(now);
        // All counted bytes are taken for the download's; if others came too, a little more is admitted.
        let come = self.come + now.counted.saturating_sub(self.seen);
        self.come = come.min(self.granted);
        self.seen = now.counted;
        self.before + now.counted.saturating_sub(self.base)
    }

    /// State to keep for the next agent.
    pub fn state_to_keep(&mut self, now: BudgetMoment) -> KeptBudget {
        let used = self.used_bytes(now);
        KeptBudget {
            day: self.day,
            used,
            elapsed: self.elapsed_today(now),
        }
    }

    /// All bytes of the day are used: nothing new comes through the tunnel, and polls are slowest.
    pub fn is_spent(&mut self, now: BudgetMoment) -> bool {
        self.used_bytes(now) >= self.settings.daily_bytes
    }

    /// Admits a download of `needs` bytes now; `None`: its size is not known. Admitted bytes count as used until
    /// [`DownloadBudget::finish_download`].
    ///
    /// # Errors
    /// The download has to wait.
    pub fn admit_download(
        &mut self,
        needs: Option<u64>,
        urgency: PullUrgency,
        now: BudgetMoment,
    ) -> Result<(), DownloadDeferral> {
        self.check_download(needs, urgency, now)?;
        self.granted += needs.unwrap_or(0);
        Ok(())
    }

    /// Takes in the end of an admitted download: its bytes have come, or will not.
    pub fn finish_download(&mut self, needs: u64, now: BudgetMoment) {
        self.used_bytes(now);
        self.granted = self.granted.saturating_sub(needs);
        self.come = self.come.saturating_sub(needs);
    }

    /// Checks that an admitted download may go on.
    ///
    /// # Errors
    /// The download has to wait.
    pub fn check_continue(
        &mut self,
        urgency: PullUrgency,
        now: BudgetMoment,
    ) -> Result<(), DownloadDeferral> {
        let is_over = self.is_spent(now) && urgency < PullUrgency::Now && !self.is_in_window(now);
        match is_over {
            true => Err(self.make_deferral(None, 0, self.settings.daily_bytes, now)),
            false => Ok(()),
        }
    }

    /// Checks if [`DownloadBudget::admit_download`] would admit the download; admits nothing.
    ///
    /// # Errors
    /// The download would have to wait.
    pub fn check_download(
        &mut self,
        needs: Option<u64>,
        urgency: PullUrgency,
        now: BudgetMoment,
    ) -> Result<(), DownloadDeferral> {
        let used = self.used_bytes(now);
        let daily = self.settings.daily_bytes;
        let of = match urgency {
            PullUrgency::Now => return Ok(()),
            PullUrgency::Critical => daily,
            PullUrgency::Normal => percent_of(daily, SAVING_PERCENT),
        };
        let under_way = self.granted - self.come;
        let left = of.saturating_sub(used).saturating_sub(under_way);
        let fits = match needs {
            Some(needs) => needs <= left,
            None => left > 0,
        };
        match fits || self.is_in_window(now) {
            true => Ok(()),
            false => Err(self.make_deferral(needs, left, of, now)),
        }
    }

    fn is_in_window(&self, now: BudgetMoment) -> bool {
        let window = self.settings.pull_window.zip(now.wall);
        window.is_some_and(|(window, wall)| window.contains(wall))
    }

    fn make_deferral(
        &self,
        needs: Option<u64>,
        left: u64,
        of: u64,
        now: BudgetMoment,
    ) -> DownloadDeferral {
        let window = self.settings.pull_window.zip(now.wall);
        let window = window.map(|(window, wall)| window.next_start(wall));
        let is_larger = needs.is_some_and(|needs| needs > of);
        let until = match now.wall {
            Some(wall) => {
                let today = wall.unix_seconds().div_euclid(DAY_S);
                let midnight = WallTime::from_unix_seconds((today + 1) * DAY_S);
                DeferralEnd::At(match window {
                    // The next day's bytes are not enough either.
                    Some(begin) if is_larger => begin,
                    Some(begin) => begin.min(midnight),
                    None => midnight,
                })
            }
            None => DeferralEnd::Up(self.began + DAY.saturating_sub(self.elapsed)),
        };
        DownloadDeferral {
            needs,
            left,
            until,
            after: match until {
                DeferralEnd::At(at) => {
                    let wait = now
                        .wall
                        .map_or(0, |wall| at.unix_seconds() - wall.unix_seconds());
                    Duration::from_secs(wait.unsigned_abs())
                }
                DeferralEnd::Up(at) => at - now.up,
            },
            of,
            is_too_large: is_larger && window.is_none(),
        }
    }

    /// Describes the budget for people; true if images wait.
    pub fn describe_budget(&mut self, now: BudgetMoment) -> (String, bool) {
        let used = self.used_bytes(now);
        let daily = self.settings.daily_bytes;
        let text = format!("{} of {} used today", human_bytes(used), human_bytes(daily));
        match self.check_download(None, PullUrgency::Normal, now) {
            Ok(()) => (text, false),
            Err(deferral) => {
                let what = match used >= daily {
                    true => "images and the tunnel wait",
                    false => "images wait",
                };
                let until = match deferral.until {
                    DeferralEnd::At(at) => format!("until {at}"),
                    DeferralEnd::Up(_) => "for the next day".into(),
                };
                (format!("{text}; {what} {until}"), true)
            }
        }
    }
}

/// Part of a whole; exact also for small ones.
fn percent_of(whole: u64, percent: u64) -> u64 {
    let part = u128::from(whole) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned as _, string::ToString as _};

    use super::*;

    const SETTINGS: LinkBudgetSettings = LinkBudgetSettings {
        daily_bytes: 1000,
        pull_window: None,
    };
    /// 2026-11-26T00:00:00Z.
    const MIDNIGHT: i64 = 1_795_651_200;

    fn at(second: i64, counted: u64) -> BudgetMoment {
        let up = Duration::from_secs(u64::try_from(second).expect("later"));
        BudgetMoment {
            wall: Some(WallTime::from_unix_seconds(MIDNIGHT + second)),
            up: MonoTime(0) + up,
            counted,
        }
    }

    fn unset(second: i64, counted: u64) -> BudgetMoment {
        BudgetMoment {
            wall: None,
            ..at(second, counted)
        }
    }

    fn budget() -> DownloadBudget {
        DownloadBudget::new(SETTINGS, KeptBudget::default(), at(0, 0))
    }

    #[test]
    fn who_waits() {
        // METER-02 METER-04
        use PullUrgency::{Critical, Normal, Now};
        for (used, needs, urgency, may) in [
            (0, Some(800), Normal, true),
            (0, Some(801), Normal, false),
            (799, Some(1), Normal, true),
            (799, None, Normal, true),
            (800, None, Normal, false),
            (800, Some(0), Normal, true),
            (800, Some(200), Critical, true),
            (800, Some(201), Critical, false),
            (999, None, Critical, true),
            (1000, None, Critical, false),
            (1000, Some(9999), Now, true),
            (9999, Some(0), Normal, true),
            (9999, Some(0), Critical, true),
        ] {
            let admitted = budget().admit_download(needs, urgency, at(60, used));
            assert_eq!(admitted.is_ok(), may, "{used} {needs:?} {urgency:?}");
        }
        for (used, urgency, goes_on, is_spent) in [
            (999, Normal, true, false),
            (1000, Normal, false, true),
            (1000, Critical, false, true),
            (1000, Now, true, true),
        ] {
            let mut budget = budget();
            assert_eq!(
                budget.check_continue(urgency, at(60, used)).is_ok(),
                goes_on,
                "{used}"
            );
            assert_eq!(budget.is_spent(at(60, used)), is_spent, "{used}");
        }
    }

    #[test]
    fn what_is_on_its_way_counts() {
        let mut budget = budget();
        budget
            .admit_download(Some(500), PullUrgency::Normal, at(0, 0))
            .expect("room");
        let other = budget.admit_download(Some(301), PullUrgency::Normal, at(0, 0));
        assert_eq!(other.expect_err("none").left, 300);
        // Bytes that have come count as used, and not a second time as admitted.
        for counted in [100, 400, 500] {
            let other = budget.admit_download(Some(301), PullUrgency::Normal, at(1, counted));
            assert_eq!(other.expect_err("none").left, 300, "{counted}");
        }
        budget.finish_download(500, at(1, 500));
        let other = budget.admit_download(Some(301), PullUrgency::Normal, at(1, 500));
        assert_eq!(other.expect_err("none").left, 300);
        assert!(
            budget
                .admit_download(Some(300), PullUrgency::Normal, at(1, 500))
                .is_ok()
        );
        // The download fails halfway: the rest is free.
        budget.finish_download(300, at(2, 600));
        let other = budget.admit_download(Some(201), PullUrgency::Normal, at(2, 600));
        assert_eq!(other.expect_err("none").left, 200);
        // One of two downloads ends.
        assert!(
            budget
                .admit_download(Some(50), PullUrgency::Normal, at(2, 600))
                .is_ok()
        );
        assert!(
            budget
                .admit_download(Some(100), PullUrgency::Normal, at(2, 600))
                .is_ok()
        );
        budget.finish_download(100, at(3, 700));
        let other = budget.admit_download(Some(51), PullUrgency::Normal, at(3, 700));
        assert_eq!(other.expect_err("none").left, 50);
    }

    #[test]
    fn days() {
        // METER-02
        let mut budget = budget();
        assert_eq!(budget.used_bytes(at(DAY_S - 1, 900)), 900);
        let kept = budget.state_to_keep(at(DAY_S - 1, 900));
        assert_eq!(budget.used_bytes(at(DAY_S, 950)), 0);
        assert_eq!(budget.used_bytes(at(DAY_S + 1, 960)), 10);
        // The counter of a new agent begins at 0.
        let mut next = DownloadBudget::new(SETTINGS, kept, at(DAY_S - 1, 0));
        assert_eq!(next.used_bytes(at(DAY_S - 1, 5)), 905);
        assert_eq!(next.used_bytes(at(DAY_S, 6)), 0);
        // A clock that is set back shows another day, too.
        assert_eq!(next.used_bytes(at(DAY_S - 5, 7)), 0);
        // After a boot the clock is not right for a while: no day has ended because of that.
        let kept = KeptBudget {
            elapsed: Duration::ZERO,
            ..kept
        };
        let mut booted = DownloadBudget::new(SETTINGS, kept, unset(0, 0));
        assert_eq!(booted.used_bytes(unset(60, 5)), 905);
        assert_eq!(booted.used_bytes(at(DAY_S - 2, 6)), 906);
        // The clock never becomes right: a day is 24 hours of uptime.
        let mut never = DownloadBudget::new(SETTINGS, kept, unset(10, 0));
        assert_eq!(never.used_bytes(unset(DAY_S + 9, 5)), 905);
        assert_eq!(never.used_bytes(unset(DAY_S + 10, 6)), 0);
        assert_eq!(
            never.state_to_keep(unset(DAY_S + 20, 8)),
            KeptBudget {
                day: None,
                used: 2,
                elapsed: Duration::from_secs(10),
            }
        );
        // A restart begins no new day: the day ends when agents were up for 24 hours.
        let hour = 3600;
        let mut before = DownloadBudget::new(SETTINGS, KeptBudget::default(), unset(10, 0));
        let kept = before.state_to_keep(unset(23 * hour + 10, 900));
        let mut after = DownloadBudget::new(SETTINGS, kept, unset(20, 0));
        assert_eq!(after.used_bytes(unset(hour + 19, 5)), 905);
        let refused = after.admit_download(None, PullUrgency::Normal, unset(30, 5));
        let until = refused.expect_err("used").until;
        assert_eq!(until, DeferralEnd::Up(unset(hour + 20, 0).up));
        assert_eq!(after.used_bytes(unset(hour + 20, 6)), 0);
        // The clock becomes right: the bytes count as used today.
        assert_eq!(never.used_bytes(at(DAY_S + 30, 9)), 3);
    }

    #[test]
    fn windows() {
        // METER-04
        for (text, is_one) in [
            ("01:00-05:00", true),
            ("23:30-00:30", true),
            ("1:00-05:00", false),
            ("01:00-24:00", false),
            ("01:60-05:00", false),
            ("01:00-01:00", false),
            ("01:00", false),
            ("+1:00-05:00", false),
            ("", false),
        ] {
            assert_eq!(DailyWindow::parse(text).is_some(), is_one, "{text}");
        }
        let of = |text: &str| {
            let settings = LinkBudgetSettings {
                pull_window: DailyWindow::parse(text),
                ..SETTINGS
            };
            DownloadBudget::new(settings, KeptBudget::default(), at(0, 0))
        };
        let hour = 3600;
        for (text, second, opens) in [
            ("01:00-05:00", hour - 1, None),
            ("01:00-05:00", hour, Some(())),
            ("01:00-05:00", 5 * hour - 1, Some(())),
            ("01:00-05:00", 5 * hour, None),
            ("23:00-01:00", 0, Some(())),
            ("23:00-01:00", hour, None),
            ("23:00-01:00", 23 * hour, Some(())),
        ] {
            let admitted =
                of(text).admit_download(Some(5000), PullUrgency::Normal, at(second, 1200));
            assert_eq!(admitted.ok(), opens, "{text} {second}");
            assert_eq!(
                of(text)
                    .check_continue(PullUrgency::Normal, at(second, 1200))
                    .ok(),
                opens
            );
        }
        // Until the window or the next day, whichever begins first; for more than a day has, until the window.
        for (needs, second, goes_on) in [
            (700, hour, 6 * hour),
            (700, 8 * hour, 24 * hour),
            (900, hour, 6 * hour),
            (900, 8 * hour, 30 * hour),
        ] {
            let refused =
                of("06:00-07:00").admit_download(Some(needs), PullUrgency::Normal, at(second, 200));
            let refused = refused.expect_err("too much");
            let goes_on = WallTime::from_unix_seconds(MIDNIGHT + goes_on);
            assert_eq!(refused.until, DeferralEnd::At(goes_on), "{needs} {second}");
            let says =
                format!("needs {needs}B, 600B of 800B are left for it today; goes on at {goes_on}");
            assert_eq!(refused.to_string(), says);
        }
        // Without a right clock there is no window.
        let refused =
            of("06:00-07:00").admit_download(Some(900), PullUrgency::Normal, unset(hour, 0));
        let says = refused.expect_err("too much").to_string();
        assert!(says.ends_with("--now"), "{says}");
    }

    #[test]
    fn what_people_read() {
        // METER-04
        let big = LinkBudgetSettings {
            daily_bytes: 50_000_000,
            pull_window: None,
        };
        let why = |needs: Option<u64>, now: BudgetMoment| {
            let mut budget = DownloadBudget::new(big, KeptBudget::default(), at(0, 0));
            let refused = budget.admit_download(needs, PullUrgency::Normal, now);
            refused.expect_err("too much").to_string()
        };
        assert_eq!(
            why(Some(12_000_000), at(60, 30_000_000)),
            "needs 12.0MB, 10.0MB of 40.0MB are left for it today; goes on at 2026-11-27T00:00:00Z"
        );
        assert_eq!(
            why(None, unset(3600, 45_000_000)),
            "its size is not known yet, 0B of 40.0MB are left for it today; goes on in 23 h 0 min"
        );
        assert_eq!(
            why(Some(90_000_000), at(60, 0)),
            "needs 90.0MB, 40.0MB of 40.0MB are left for it today; it is larger than the budget of a day: use picolet image pull --now"
        );
        let mut budget = DownloadBudget::new(big, KeptBudget::default(), at(0, 0));
        for (used, says, waits) in [
            (1_000_000, "1.0MB of 50.0MB used today", false),
            (
                41_000_000,
                "41.0MB of 50.0MB used today; images wait until 2026-11-27T00:00:00Z",
                true,
            ),
            (
                50_000_000,
                "50.0MB of 50.0MB used today; images and the tunnel wait until 2026-11-27T00:00:00Z",
                true,
            ),
        ] {
            assert_eq!(
                budget.describe_budget(at(60, used)),
                (says.to_owned(), waits)
            );
        }
    }
}
