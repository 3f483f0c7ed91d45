//! Time limits of running probes, kept by the driver of all probes. A timer of the reactor for each probe would cost
//! much: setting one wakes the reactor's thread, which takes six calls to the kernel.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::{
    agent::{clock::TimerFuture, waker_set::WakerSet},
    api::MonoTime,
};

/// Deadlines that the driver keeps.
///
/// - Shape: one for each connection that is open.
#[derive(Debug, Default)]
pub(super) struct ProbeDeadlines {
    waiting: RefCell<BTreeMap<(MonoTime, u64), Waker>>,
    next_number: Cell<u64>,
    pub(super) rest: ProbeDriverRest,
}

/// Pause of the driver between two passes.
#[derive(Debug, Default)]
pub(super) struct ProbeDriverRest {
    /// End of the pause; the least [`MonoTime`] while the driver works.
    until: Cell<MonoTime>,
    is_cut_short: Cell<bool>,
    waiters: WakerSet,
}

impl ProbeDriverRest {
    /// Notes that the driver works. It checks all probes and deadlines before its next pause, so nobody has to wake it.
    pub(super) fn mark_ended(&self) {
        self.until.set(MonoTime(0));
    }

    /// Waits for an earlier end of the pause, which else lasts until `due`. The caller's own timer ends the pause at
    /// `due`.
    pub(super) async fn wait_until(&self, due: MonoTime) {
        self.until.set(due);
        self.waiters
            .wait_until(|| self.is_cut_short.take().then_some(()))
            .await;
    }

    /// Ends the pause if `due` comes before its end.
    pub(super) fn end_if_before(&self, due: MonoTime) {
        if due < self.until.get() {
            self.is_cut_short.set(true);
            self.waiters.wake_all();
        }
    }
}

impl ProbeDeadlines {
    /// Returns a future that resolves once the driver has found that `deadline` is over.
    pub(super) fn alarm_at(self: &Rc<Self>, deadline: MonoTime) -> TimerFuture {
        let number = self.next_number.get();
        self.next_number.set(number.wrapping_add(1));
        Box::pin(ProbeDeadline {
            deadlines: Rc::clone(self),
            key: (deadline, number),
            is_registered: false,
        })
    }

    /// The first deadline.
    pub(super) fn next_deadline(&self) -> Option<MonoTime> {
        let waiting = self.waiting.borrow();
        waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Ends the deadlines that are over.
    pub(super) fn end_passed_deadlines(&self, now: MonoTime) {
        loop {
            let mut waiting = self.waiting.borrow_mut();
            let first = waiting.first_entry().filter(|e| e.key().0 <= now);
            let Some(waker) = first.map(|e| e.remove()) else {
                return;
            };
            drop(waiting);
            waker.wake();
        }
    }
}

struct ProbeDeadline {
    deadlines: Rc<ProbeDeadlines>,
    key: (MonoTime, u64),
    is_registered: bool,
}

impl Future for ProbeDeadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.deadlines.waiting.borrow_mut();
        match waiting.get_mut(&self.key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None if self.is_registered => return Poll::Ready(()),
            None => {
                waiting.insert(self.key, cx.waker().clone());
                drop(waiting);
                self.deadlines.rest.end_if_before(self.key.0);
                self.is_registered = true;
            }
        }
        Poll::Pending
    }
}

impl Drop for ProbeDeadline {
    fn drop(&mut self) {
        self.deadlines.waiting.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn limits() {
        let all = Rc::new(ProbeDeadlines::default());
        block_on(async {
            let (mut first, mut second) = (all.alarm_at(MonoTime(5)), all.alarm_at(MonoTime(5)));
            let mut third = all.alarm_at(MonoTime(9));
            assert_eq!(all.next_deadline(), None, "nobody waits yet");
            for limit in [&mut third, &mut first, &mut second] {
                assert_eq!(poll_once(limit).await, None);
            }
            assert_eq!(all.next_deadline(), Some(MonoTime(5)));
            all.end_passed_deadlines(MonoTime(4));
            assert_eq!(poll_once(&mut first).await, None);
            drop(second);
            all.end_passed_deadlines(MonoTime(5));
            assert_eq!(poll_once(&mut first).await, Some(()));
            assert_eq!(poll_once(&mut third).await, None);
            assert_eq!(all.next_deadline(), Some(MonoTime(9)));
            drop(third);
            assert_eq!(all.next_deadline(), None);
        });
    }

    #[test]
    fn what_comes_sooner_ends_the_rest() {
        let all = Rc::new(ProbeDeadlines::default());
        block_on(async {
            let mut rest = Box::pin(all.rest.wait_until(MonoTime(10)));
            assert_eq!(poll_once(&mut rest).await, None);
            let mut later = all.alarm_at(MonoTime(10));
            assert_eq!(poll_once(&mut later).await, None);
            assert_eq!(poll_once(&mut rest).await, None);
            let mut sooner = all.alarm_at(MonoTime(9));
            assert_eq!(poll_once(&mut sooner).await, None);
            assert_eq!(poll_once(&mut rest).await, Some(()));
        });
        all.rest.mark_ended();
        block_on(async {
            // While the driver works, nothing has to end its pause.
            assert_eq!(poll_once(&mut all.alarm_at(MonoTime(1))).await, None);
            assert_eq!(
                poll_once(Box::pin(all.rest.wait_until(MonoTime(10)))).await,
                None
            );
        });
    }
}
