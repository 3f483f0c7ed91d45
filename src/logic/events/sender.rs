//! Sending of events: one at a time, at a limited rate, with a limited number of tries.

use core::time::Duration;

use super::{EventCorrelator, EventOccurrence, EventPost};
use crate::api::MonoTime;
use crate::{pull_rate::PullRate, work_queue::Jitter};

/// Number of tries to send one event; then it is given up.
pub const MAX_TRIES: u32 = 12;
/// Time between two tries; the pause before the first retry is random.
pub const RETRY: Duration = Duration::from_secs(10);
/// Number of occurrences without a request that one call skips at most: the others wait for the next call.
const MAX_SKIPPED: usize = 32;
/// Pause after the rate was used up.
const RATE_WAIT: Duration = Duration::from_millis(20);

/// Kind of failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPostFailure {
    /// The server refuses the event, or has it already.
    Rejected,
    /// No answer, 429 or 5xx: the request may be tried again.
    Failed,
}

/// Sender of the recorder's events. See the docs of the module.
#[derive(Clone, Debug)]
pub struct EventPoster {
    correlator: EventCorrelator,
    rate: PullRate,
    /// Request that is under way or waits for its next try.
    current: Option<EventPost>,
    busy: bool,
    tries: u32,
    not_before: MonoTime,
    jitter: Jitter,
    /// Number of events that were given up.
    lost: u64,
}

impl EventPoster {
    /// Creates a sender. `per_second` and `burst`: `eventRecordQPS` (0: no limit) and `eventBurst`.
    #[must_use]
    pub fn new(
        correlator: EventCorrelator,
        per_second: u32,
        burst: u32,
        now: MonoTime,
        seed: u64,
    ) -> Self {
        Self {
            correlator,
            rate: PullRate::new(per_second, burst, now),
            current: None,
            busy: false,
            tries: 0,
            not_before: MonoTime(0),
            jitter: Jitter::new(seed),
            lost: 0,
        }
    }

    /// See [`EventCorrelator::set_warnings_only`].
    pub const fn set_warnings_only(&mut self, thin: bool) {
        self.correlator.set_warnings_only(thin);
    }

    /// Makes the next request from the occurrences of `next`; the request ends with [`EventPoster::on_sent`]. `None`:
    /// nothing to send yet, or not before [`EventPoster::next_timeout`].
    pub fn poll(
        &mut self,
        mut next: impl FnMut() -> Option<EventOccurrence>,
        now: MonoTime,
    ) -> Option<EventPost> {
        if self.busy || now < self.not_before {
            return None;
        }
        let mut skipped = 0;
        while self.current.is_none() {
            if skipped == MAX_SKIPPED {
                self.not_before = now + RATE_WAIT;
                return None;
            }
            self.current = self.correlator.correlate(&next()?, now);
            self.tries = 0;
            skipped += 1;
        }
        if !self.rate.try_take_pull(now) {
            self.not_before = now + RATE_WAIT;
            return None;
        }
        self.busy = true;
        self.current.clone()
    }

    /// Time at which [`EventPoster::poll`] should be called if an event waits.
    #[must_use]
    pub const fn next_timeout(&self) -> MonoTime {
        if self.busy {
            MonoTime(u64::MAX)
        } else {
            self.not_before
        }
    }

    /// Takes in the result of the request.
    pub fn on_sent(&mut self, answer: Result<(), EventPostFailure>, now: MonoTime) {
        self.busy = false;
        match answer {
            Ok(()) => self.current = None,
            Err(EventPostFailure::Rejected) => self.give_up(),
            Err(EventPostFailure::Failed) => {
                self.tries += 1;
                if self.tries >= MAX_TRIES {
                    self.give_up();
                }
                // When an apiserver comes back, its nodes must not all send at once.
                let first = self.tries == 1;
                self.not_before = now
                    + if first {
                        self.jitter.stretch_delay(RETRY / 2)
                    } else {
                        RETRY
                    };
            }
        }
    }

    /// Number of events that were given up.
    #[must_use]
    pub const fn lost_count(&self) -> u64 {
        self.lost
    }

    fn give_up(&mut self) {
        self.current = None;
        self.lost += 1;
    }
}
