//! One timer of the kernel that goes by the clock of deadlines. Man page: timerfd_create(2).

use core::time::Duration;
use std::io;

use async_io::Async;
use nix::{
    errno::Errno,
    sys::{
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
};

use crate::api::Mono;

/// Expires at a time of [`mono`](super::clock::mono). If the machine is suspended beyond that time, it expires as the machine
/// goes on.
#[derive(Debug)]
pub struct Timer(Async<TimerFd>);

impl Timer {
    /// One that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Async::new_nonblocking(timer).map(Self)
    }

    /// Sets it to `deadline`. What it was set to before does not count any more.
    pub fn set(&self, deadline: Mono) -> io::Result<()> {
        // A time of zero would unset it.
        let at = TimeSpec::from_duration(Duration::from_millis(deadline.0.max(1)));
        let timer = self.0.get_ref();
        timer.set(
            Expiration::OneShot(at),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )?;
        Ok(())
    }

    /// Waits until it has expired.
    pub async fn expired(&self) -> io::Result<()> {
        // Bounded: goes round only if the timer was set anew between its end and the look at it.
        loop {
            self.0.readable().await?;
            match self.0.get_ref().wait() {
                // It was set anew in between.
                Err(Errno::EAGAIN) => {}
                waited => return Ok(waited?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::{super::clock, *};

    #[test]
    fn expires_at_a_time_of_the_clock_of_deadlines() {
        block_on(async {
            let timer = Timer::new().expect("timer");
            timer.set(Mono(u64::MAX / 2)).expect("set");
            assert!(poll_once(timer.expired()).await.is_none());

            let deadline = clock::mono() + Duration::from_millis(20);
            timer.set(deadline).expect("set");
            timer.expired().await.expect("expired");
            assert!(clock::mono() >= deadline);
            // It does so once; and at once for a time that has passed.
            assert!(poll_once(timer.expired()).await.is_none());
            timer.set(Mono(0)).expect("set");
            timer.expired().await.expect("expired");
        });
    }
}
