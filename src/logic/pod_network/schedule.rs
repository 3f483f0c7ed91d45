//! Times at which the nodes are listed: at a ring of the doorbell, and every half an hour without one.
//!
//! A node that comes or goes rings, and one whose annotations change. A ring that brought nothing new makes the next one wait
//! longer: other annotations of many nodes cost one list in a while.

use core::time::Duration;

use crate::api::MonoTime;

/// Longest time between two lists. On a link that costs money there is no doorbell: it is all that is asked.
pub const POLL: Duration = Duration::from_secs(30 * 60);
/// Longest pause after a list that brought nothing new, or failed.
const LAST_GAP: Duration = Duration::from_secs(5 * 60);
/// Pause after a list before a ring has another one made; it doubles with each list that brought nothing new.
const FIRST_GAP: Duration = Duration::from_secs(2);
/// Pause after a list that failed, or left a question open; it doubles as well.
const FIRST_RETRY: Duration = Duration::from_secs(5);

/// Schedule of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSchedule {
    due: MonoTime,
    last: MonoTime,
    gap: Duration,
    retry: Duration,
}

/// Result of a list, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// It failed.
    Failed,
    /// It is of no use: meanwhile the cluster has another backend, of which no list came yet.
    Outdated,
    /// It came whole.
    Whole {
        /// Set if it brought news.
        is_changed: bool,
        /// Set if a node is to be asked about again.
        has_questions: bool,
    },
}

impl ListSchedule {
    /// Begins with a list that is due at once.
    #[must_use]
    pub const fn new(now: MonoTime) -> Self {
        Self {
            due: now,
            last: now,
            gap: FIRST_GAP,
            retry: FIRST_RETRY,
        }
    }

    /// Time of the next list.
    #[must_use]
    pub const fn due(&self) -> MonoTime {
        self.due
    }

    /// Takes a ring. `is_arrival`: a node came or went, or that is not known.
    pub fn take_ring(&mut self, is_arrival: bool) {
        if is_arrival {
            self.gap = FIRST_GAP;
        }
        self.due = self.due.min(self.last + self.gap);
    }

    /// Takes the end of a list.
    pub fn take_list_end(&mut self, end: ListEnd, now: MonoTime) {
        self.last = now;
        let double = |pause: Duration| (pause * 2).min(LAST_GAP);
        match end {
            ListEnd::Outdated => *self = Self::new(now),
            ListEnd::Failed => {
                self.due = now + self.retry;
                self.retry = double(self.retry);
            }
            ListEnd::Whole {
                is_changed,
                has_questions,
            } => {
                self.gap = match is_changed {
                    true => FIRST_GAP,
                    false => double(self.gap),
                };
                if !has_questions || is_changed {
                    self.retry = FIRST_RETRY;
                }
                self.due = now + if has_questions { self.retry } else { POLL };
                if has_questions {
                    self.retry = double(self.retry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn rings_at_rest_become_rare() {
        // FLAN-02
        let mut now = MonoTime(0);
        let mut schedule = ListSchedule::new(now);
        let quiet = ListEnd::Whole {
            is_changed: false,
            has_questions: false,
        };
        let mut lists = 0;
        // A day in which some node reports every second.
        while now - MonoTime(0) < Duration::from_secs(24 * 3600) {
            if now >= schedule.due() {
                schedule.take_list_end(quiet, now);
                lists += 1;
            }
            schedule.take_ring(false);
            now = now + Duration::from_secs(1);
        }
        assert!((280..300).contains(&lists), "{lists}");
        // A node that comes is seen at once.
        schedule.take_list_end(quiet, now);
        schedule.take_ring(false);
        assert_eq!(schedule.due(), now + LAST_GAP);
        schedule.take_ring(true);
        assert_eq!(schedule.due(), now + FIRST_GAP);
        let news = ListEnd::Whole {
            is_changed: true,
            has_questions: false,
        };
        schedule.take_list_end(news, now);
        assert_eq!(schedule.due(), now + POLL);
        schedule.take_ring(false);
        assert_eq!(schedule.due(), now + FIRST_GAP);
    }

    #[test]
    fn failures_and_questions_come_again() {
        // FLAN-02
        let now = MonoTime(0);
        let mut schedule = ListSchedule::new(now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            schedule.take_list_end(ListEnd::Failed, now);
            pauses.push((schedule.due() - now).as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        let open = |is_changed| ListEnd::Whole {
            is_changed,
            has_questions: true,
        };
        schedule.take_list_end(open(true), now);
        assert_eq!(schedule.due(), now + FIRST_RETRY);
        schedule.take_list_end(open(false), now);
        assert_eq!(schedule.due(), now + FIRST_RETRY * 2);
    }

    #[test]
    fn another_backend_needs_a_list_at_once() {
        // FLAN-04
        let now = MonoTime(7);
        let whole = ListEnd::Whole {
            is_changed: false,
            has_questions: false,
        };
        for before in [whole, ListEnd::Failed] {
            let mut schedule = ListSchedule::new(now);
            schedule.take_list_end(before, now);
            assert!(schedule.due() > now);
            schedule.take_list_end(ListEnd::Outdated, now);
            assert_eq!(schedule, ListSchedule::new(now));
            assert_eq!(schedule.due(), now);
        }
    }
}
