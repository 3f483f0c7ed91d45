//! A timer of the kernel that goes by the clock of deadlines. Man page: timerfd_create(2).

use core::time::Duration;
use std::io;

use async_io::Async;
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use super::readiness;
use crate::api::MonoTime;

/// Expires at a time of [`mono_now`](super::clock::mono_now). If the machine is suspended beyond that time, it
/// expires as the machine goes on.
#[derive(Debug)]
pub struct KernelTimer(Async<TimerFd>);

impl KernelTimer {
    /// Makes a timer that is not set.
    pub fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
        Async::new_nonblocking(timer).map(Self)
    }

    /// Sets it to `deadline`, if there is one. An earlier deadline does not count any more.
    pub fn set_deadline(&self, deadline: Option<MonoTime>) -> io::Result<()> {
        let timer = self.0.get_ref();
        let Some(deadline) = deadline else {
            return Ok(timer.unset()?);
        };
        // A time of zero would unset it.
        let at = TimeSpec::from_duration(Duration::from_millis(deadline.0.max(1)));
        timer.set(
            Expiration::OneShot(at),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )?;
        Ok(())
    }

    /// Waits until it has expired, or a little less: the caller looks at the clock. It stays expired until it is set anew.
    pub async fn wait_until_expired(&self) -> io::Result<()> {
        readiness::wait_first_readable(&self.0).await
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::{super::clock, *};

    #[test]
    fn expires_at_a_time_of_the_clock_of_deadlines() {
        block_on(async {
            let timer = KernelTimer::new().expect("timer");
            timer
                .set_deadline(Some(MonoTime(u64::MAX / 2)))
                .expect("set");
            assert!(poll_once(timer.wait_until_expired()).await.is_none());

            let deadline = clock::mono_now() + Duration::from_millis(20);
            timer.set_deadline(Some(deadline)).expect("set");
            while clock::mono_now() < deadline {
                timer.wait_until_expired().await.expect("expired");
            }
            // And at once for a time that has passed; but not after it is unset.
            timer.set_deadline(Some(MonoTime(0))).expect("set");
            timer.wait_until_expired().await.expect("expired");
            timer.set_deadline(None).expect("unset");
            assert!(poll_once(timer.wait_until_expired()).await.is_none());
        });
    }
}
