//! One event at a time on its way, at a rate, with so many tries.

use core::time::Duration;

use super::{Correlator, Occurrence, Post};
use crate::api::Mono;
use crate::{pull_rate::PullRate, work_queue::Jitter};

/// Tries to tell one event; then it is given up.
pub const MAX_TRIES: u32 = 12;
/// Time between two tries; the first is spread.
pub const RETRY: Duration = Duration::from_secs(10);
/// Occurrences looked at in one call that lead to nothing: the others wait for the next call.
const MAX_SKIPPED: usize = 32;
/// Time after which a rate that was used up is asked again.
const RATE_WAIT: Duration = Duration::from_millis(20);

/// How a request ended that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server does not take it, or has it already.
    Rejected,
    /// No answer, 429 or 5xx: it may be tried again.
    Failed,
}

/// Sends what the recorder keeps. See the module's words.
#[derive(Clone, Debug)]
pub struct Sender {
    correlator: Correlator,
    rate: PullRate,
    /// What is on its way, or waits for its next try.
    current: Option<Post>,
    busy: bool,
    tries: u32,
    not_before: Mono,
    jitter: Jitter,
    /// Events that were given up.
    lost: u64,
}

impl Sender {
    /// `per_second` and `burst`: `eventRecordQPS` (0: no limit) and `eventBurst`.
    #[must_use]
    pub fn new(correlator: Correlator, per_second: u32, burst: u32, now: Mono, seed: u64) -> Self {
        Self {
            correlator,
            rate: PullRate::new(per_second, burst, now),
            current: None,
            busy: false,
            tries: 0,
            not_before: Mono(0),
            jitter: Jitter::new(seed),
            lost: 0,
        }
    }

    /// See [`Correlator::set_thin`].
    pub const fn set_thin(&mut self, thin: bool) {
        self.correlator.set_thin(thin);
    }

    /// The next request, made of what `next` has; ends with [`Sender::on_sent`]. `None`: nothing to send yet, or not
    /// before [`Sender::next_timeout`].
    pub fn poll(
        &mut self,
        mut next: impl FnMut() -> Option<Occurrence>,
        now: Mono,
    ) -> Option<Post> {
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
        if !self.rate.allows(now) {
            self.not_before = now + RATE_WAIT;
            return None;
        }
        self.busy = true;
        self.current.clone()
    }

    /// When [`Sender::poll`] is worth while, if something waits.
    #[must_use]
    pub const fn next_timeout(&self) -> Mono {
        if self.busy {
            Mono(u64::MAX)
        } else {
            self.not_before
        }
    }

    /// The request ended.
    pub fn on_sent(&mut self, answer: Result<(), Failure>, now: Mono) {
        self.busy = false;
        match answer {
            Ok(()) => self.current = None,
            Err(Failure::Rejected) => self.give_up(),
            Err(Failure::Failed) => {
                self.tries += 1;
                if self.tries >= MAX_TRIES {
                    self.give_up();
                }
                // Nodes whose apiserver comes back shall not all come at once.
                let first = self.tries == 1;
                self.not_before = now
                    + if first {
                        self.jitter.stretch(RETRY / 2)
                    } else {
                        RETRY
                    };
            }
        }
    }

    /// Events that were given up.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    fn give_up(&mut self) {
        self.current = None;
        self.lost += 1;
    }
}
