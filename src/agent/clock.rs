//! The seam for time: the simulator drives it, the agent reads the machine's clocks through it.

use core::{future::Future, pin::Pin, time::Duration};

use crate::{
    api::{Mono, Wall},
    sys,
};

/// A future that resolves at some time.
pub(super) type Alarm = Pin<Box<dyn Future<Output = ()>>>;

/// Where the agent's time comes from.
pub(super) trait Clock {
    /// For deadlines.
    fn now(&self) -> Mono;
    /// For API timestamps.
    fn wall(&self) -> Wall;
    /// Resolves once `now()` is at least `deadline`; may be late.
    fn until(&self, deadline: Mono) -> Alarm;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SystemClock;

/// A wait is cut into pieces of this length: timers stand still while the machine is suspended, deadlines do not.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Clock for SystemClock {
    fn now(&self) -> Mono {
        sys::clock::mono()
    }

    fn wall(&self) -> Wall {
        sys::clock::wall()
    }

    fn until(&self, deadline: Mono) -> Alarm {
        Box::pin(async move {
            loop {
                let now = sys::clock::mono();
                if now >= deadline {
                    return;
                }
                async_io::Timer::after((deadline - now).min(LONGEST_WAIT)).await;
            }
        })
    }
}

/// The whole second nearest to `due`: what happens at intervals happens together, so that an agent at rest wakes up once a
/// second and not once for each.
pub(super) fn in_step(due: Mono) -> Mono {
    const STEP_MS: u64 = 1000;
    Mono(due.0.saturating_add(STEP_MS / 2) / STEP_MS * STEP_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_fall_together() {
        for (due, want) in [(0, 0), (1499, 1000), (1500, 2000), (61_001, 61_000)] {
            assert_eq!(in_step(Mono(due)), Mono(want), "{due}");
        }
    }
}
