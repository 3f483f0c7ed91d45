//! Time limits of probes that are under way, kept by the driver of all probes. A timer of the reactor for each would
//! be dear: setting one wakes the reactor's thread, for six calls to the kernel.

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
    number: Cell<u64>,
    pub(super) rest: ProbeDriverRest,
}

/// The driver's rest.
#[derive(Debug, Default)]
pub(super) struct ProbeDriverRest {
    /// End of the rest; [`MonoTime`]'s least while the driver does not rest.
    until: Cell<MonoTime>,
    moved: Cell<bool>,
    waiters: WakerSet,
}

impl ProbeDriverRest {
    /// Ends the rest: the driver looks at everything before it rests again.
    pub(super) fn mark_ended(&self) {
        self.until.set(MonoTime(0));
    }

    /// Rests until `due`. Resolves when the driver is wanted sooner.
    pub(super) async fn wait_until(&self, due: MonoTime) {
        self.until.set(due);
        self.waiters
            .wait_until(|| self.moved.take().then_some(()))
            .await;
    }

    /// Ends the rest if `due` comes before its end.
    pub(super) fn end_if_before(&self, due: MonoTime) {
        if due < self.until.get() {
            self.moved.set(true);
            self.waiters.wake_all();
        }
    }
}

impl ProbeDeadlines {
    /// Resolves once the driver has found that `deadline` is over.
    pub(super) fn alarm_at(self: &Rc<Self>, deadline: MonoTime) -> TimerFuture {
        let number = self.number.get();
        self.number.set(number.wrapping_add(1));
        Box::pin(ProbeDeadline {
            all: Rc::clone(self),
            key: (deadline, number),
            waits: false,
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
    all: Rc<ProbeDeadlines>,
    key: (MonoTime, u64),
    waits: bool,
}

impl Future for ProbeDeadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.all.waiting.borrow_mut();
        match waiting.get_mut(&self.key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None if self.waits => return Poll::Ready(()),
            None => {
                waiting.insert(self.key, cx.waker().clone());
                drop(waiting);
                self.all.rest.end_if_before(self.key.0);
                self.waits = true;
            }
        }
        Poll::Pending
    }
}

impl Drop for ProbeDeadline {
    fn drop(&mut self) {
        self.all.waiting.borrow_mut().remove(&self.key);
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
            // At work: it looks at all limits before it rests.
            assert_eq!(poll_once(&mut all.alarm_at(MonoTime(1))).await, None);
            assert_eq!(
                poll_once(Box::pin(all.rest.wait_until(MonoTime(10)))).await,
                None
            );
        });
    }
}
