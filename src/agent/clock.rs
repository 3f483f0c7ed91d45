//! The seam for time: the simulator drives it, the agent reads the machine's clocks through it.

use core::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use std::{io, rc::Rc};

use crate::{
    api::{MonoTime, WallTime},
    grpc::{ConnectionClock, SleepFuture},
    sys::{self, timer::KernelTimer},
};

/// A future that resolves at some time.
pub(crate) type TimerFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Source of the agent's time.
pub(crate) trait Clock {
    /// For deadlines.
    fn now(&self) -> MonoTime;
    /// For API timestamps.
    fn wall_time(&self) -> WallTime;
    /// Returns true if `wall_time()` is kept right, by NTP for example.
    fn is_synchronized(&self) -> bool;
    /// Resolves once `now()` is at least `deadline`; may be late.
    fn sleep_until(&self, deadline: MonoTime) -> TimerFuture;
}

/// The agent's clock in the form that gRPC asks for.
pub(crate) struct GrpcClock(pub(crate) Rc<dyn Clock>);

impl ConnectionClock for GrpcClock {
    fn now(&self) -> Duration {
        self.0.now() - MonoTime(0)
    }

    fn sleep(&self, time: Duration) -> SleepFuture {
        self.0.sleep_until(self.0.now() + time)
    }
}

/// The machine's clocks. All waits of an agent share one timer of the kernel: those for the same time end by one wake-up, and
/// the reactor's thread, which a timer of its own for each would wake whenever one is set, sleeps on.
#[derive(Clone, Debug)]
pub(crate) struct SystemClock(Rc<TimerWaits>);

impl SystemClock {
    /// Whoever makes one runs [`drive`](Self::drive), too.
    ///
    /// # Errors
    /// The kernel has no timer for it.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Rc::new(TimerWaits {
            timer: KernelTimer::new()?,
            set_to: Cell::new(NEVER),
            open: RefCell::default(),
        })))
    }

    /// Ends the waits whose time has come, until it is dropped.
    pub(crate) async fn drive(self) {
        let waits = self.0;
        loop {
            if let Err(e) = waits.timer.wait_until_expired().await {
                // Descriptors of this kind do not fail.
                log::error!("the agent's timer fails: {e}");
            }
            waits.set_to.set(MonoTime(0));
            waits.end_due_waits(sys::clock::mono_now());
            // Who was woken waits for something else now, as a rule: the timer is set once for all of them.
            smol::future::yield_now().await;
            waits.set_to.set(waits.earliest_deadline());
            waits.set_timer();
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> MonoTime {
        sys::clock::mono_now()
    }

    fn wall_time(&self) -> WallTime {
        sys::clock::wall_now()
    }

    fn is_synchronized(&self) -> bool {
        sys::clock::is_synchronized() == Some(true)
    }

    fn sleep_until(&self, deadline: MonoTime) -> TimerFuture {
        Box::pin(TimerWait {
            deadline,
            place: None,
            waits: Rc::clone(&self.0),
        })
    }
}

/// A time that does not come.
const NEVER: MonoTime = MonoTime(u64::MAX);

/// The waits that are not over.
#[derive(Debug)]
struct TimerWaits {
    timer: KernelTimer,
    /// Not later than the first of them; zero while they are gone through.
    set_to: Cell<MonoTime>,
    /// Few: an agent waits for some twenty things at once, and one more for each operation that has a limit.
    open: RefCell<Vec<Option<(MonoTime, Waker)>>>,
}

impl TimerWaits {
    fn set_timer(&self) {
        let deadline = self.set_to.get();
        let deadline = (deadline < NEVER).then_some(deadline);
        if let Err(e) = self.timer.set_deadline(deadline) {
            log::error!("the agent's timer fails: {e}");
        }
    }

    /// Has the timer expire at `deadline`, if it would not before.
    fn expire_by(&self, deadline: MonoTime) {
        if deadline < self.set_to.get() {
            self.set_to.set(deadline);
            self.set_timer();
        }
    }

    fn earliest_deadline(&self) -> MonoTime {
        let open = self.open.borrow();
        let deadlines = open.iter().flatten().map(|(deadline, _)| *deadline);
        deadlines.min().unwrap_or(NEVER)
    }

    fn end_due_waits(&self, now: MonoTime) {
        for (deadline, waker) in self.open.borrow_mut().iter_mut().flatten() {
            if *deadline <= now {
                // It is told once, whenever its task may look.
                *deadline = NEVER;
                waker.wake_by_ref();
            }
        }
    }
}

/// A task that waits for an instant.
#[derive(Debug)]
struct TimerWait {
    deadline: MonoTime,
    /// Place in the list of waits.
    place: Option<usize>,
    waits: Rc<TimerWaits>,
}

impl Future for TimerWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if sys::clock::mono_now() >= self.deadline {
            return Poll::Ready(());
        }
        let place = {
            let mut open = self.waits.open.borrow_mut();
            let place = self.place.unwrap_or_else(|| {
                open.iter().position(Option::is_none).unwrap_or_else(|| {
                    open.push(None);
                    open.len() - 1
                })
            });
            match &mut open[place] {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                free => *free = Some((self.deadline, cx.waker().clone())),
            }
            place
        };
        if self.place.replace(place).is_none() {
            self.waits.expire_by(self.deadline);
        }
        Poll::Pending
    }
}

impl Drop for TimerWait {
    fn drop(&mut self) {
        // The timer stays as it is: it expires once for nothing, which is rarer and cheaper than setting it each time.
        if let Some(place) = self.place {
            self.waits.open.borrow_mut()[place] = None;
        }
    }
}

/// The whole second nearest to `due`: what happens at intervals happens together, so that an agent at rest wakes up once a
/// second and not once for each. What is due within less than a second stays: rounded, it could be due at once, again and again.
pub(crate) fn align_to_second(due: MonoTime, now: MonoTime) -> MonoTime {
    const STEP_MS: u64 = 1000;
    if due - now < Duration::from_millis(STEP_MS) {
        return due;
    }
    MonoTime(due.0.saturating_add(STEP_MS / 2) / STEP_MS * STEP_MS)
}

#[cfg(test)]
mod tests {
    use smol::{
        LocalExecutor,
        future::{FutureExt as _, block_on, poll_once},
    };

    use super::*;

    #[test]
    fn waits_end_at_their_time_and_leave_nothing() {
        let clock = SystemClock::new().expect("timer");
        let executor = LocalExecutor::new();
        executor.spawn(clock.clone().drive()).detach();
        block_on(executor.run(async {
            // Those that are not to end meanwhile end later than the slowest machine takes.
            const LATER_MS: u64 = 3_600_000;
            let open = || clock.0.open.borrow().iter().flatten().count();
            let start = clock.now();
            let after = |ms| clock.sleep_until(start + Duration::from_millis(ms));
            let (mut never, mut late) = (clock.sleep_until(NEVER), after(LATER_MS));
            assert!(poll_once(&mut never).await.is_none());
            assert!(poll_once(&mut late).await.is_none());
            // One that is given up, and two for the same time, which is before what the timer is set to.
            assert!(poll_once(after(LATER_MS / 2)).await.is_none());
            assert_eq!(open(), 2);
            smol::future::zip(after(20), after(20)).await;
            assert!(clock.now() >= start + Duration::from_millis(20));
            assert_eq!(open(), 2);
            // The timer is set again once it has expired.
            let soon = clock.now() + Duration::from_millis(20);
            clock.sleep_until(soon).or(never).await;
            assert!(clock.now() >= soon);
            drop(late);
            assert_eq!(open(), 0);
            // What is over needs no timer.
            after(0).await;
            assert!(clock.0.open.borrow().len() <= 4, "places are used again");
        }));
    }

    #[test]
    fn ticks_fall_together() {
        for (now, due, want) in [
            (0, 0, 0),
            (0, 1499, 1000),
            (0, 1500, 2000),
            (0, 61_001, 61_000),
            (1499, 2499, 2000),
            // What is shorter than a step is not rounded to what is over.
            (1001, 1401, 1401),
            (1001, 2000, 2000),
            (2000, 1400, 1400),
        ] {
            assert_eq!(
                align_to_second(MonoTime(due), MonoTime(now)),
                MonoTime(want),
                "{due} at {now}"
            );
        }
    }
}
