//! Time of the tasks: waiting for a condition, and measuring. The only clock they read.

#![expect(
    clippy::disallowed_methods,
    reason = "a task watches another program from outside: it has no event loop, so it polls and sleeps here"
)]

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::Failure;

/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(20);

/// A stopwatch.
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Looks until `look` answers, at most for `limit`. The error is the last reason why it did not.
pub(crate) fn until<T>(
    limit: Duration,
    look: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    until_each(POLL, limit, look)
}

/// [`until`] with another time between two looks.
pub(crate) fn until_each<T>(
    poll: Duration,
    limit: Duration,
    mut look: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let watch = Watch::start();
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(why) if watch.elapsed() >= limit => {
                return Err(format!("{why} (after {} s)", limit.as_secs()).into());
            }
            Err(_) => thread::sleep(poll),
        }
    }
}

/// Lets time pass, for measurements over an interval.
pub(crate) fn pass(time: Duration) {
    thread::sleep(time);
}
