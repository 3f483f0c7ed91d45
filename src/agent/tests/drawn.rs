//! Ready tasks in random order: a task that is to go on may be put behind all others that are ready.

use core::{
    cell::Cell,
    pin::Pin,
    task::{Context, Poll},
};

/// Bits of a draw that decide if a task waits.
const ODDS: u64 = 63;

thread_local! {
    /// Odds out of 64 that a task waits, and the state of the random numbers.
    static DRAW: Cell<(u64, u64)> = const { Cell::new((0, 1)) };
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// Sets the odds out of 64 that a task of this thread waits from now on; 0 ends it.
pub(in crate::agent) fn set(often: u64, seed: u64) {
    DRAW.set((often.min(ODDS), seed | 1));
}

/// Number of times that a task has waited since this was last asked.
pub(in crate::agent) fn take_waited() -> u64 {
    WAITED.take()
}

/// Wraps a task that is started.
///
/// Only tasks that run as long as the agent are wrapped: calls of workers come before or after all of them.
pub(in crate::agent) fn started<F: Future<Output = ()>>(task: F) -> Drawn<F> {
    Drawn(Box::pin(task))
}

/// A task that waits at random times.
pub(in crate::agent) struct Drawn<F>(Pin<Box<F>>);

impl<F: Future> Future for Drawn<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let (often, mut random) = DRAW.get();
        if often > 0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            DRAW.set((often, random));
            if (random >> 20) & ODDS < often {
                WAITED.set(WAITED.get() + 1);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        self.0.as_mut().poll(cx)
    }
}

#[test]
fn another_goes_first() {
    use alloc::rc::Rc;
    use core::cell::RefCell;

    let order = |seed: u64| {
        let (executor, said) = (
            smol::LocalExecutor::new(),
            Rc::new(RefCell::new(Vec::new())),
        );
        set(u64::from(seed > 0) * 32, seed);
        for task in 0..3 {
            let said = Rc::clone(&said);
            let task = async move { said.borrow_mut().push(task) };
            executor.spawn(started(task)).detach();
        }
        while executor.try_tick() {}
        set(0, 1);
        said.take()
    };
    assert_eq!(order(0), [0, 1, 2]);
    let other = (1..100).find(|seed| order(*seed * 0x9e37_79b9) == [2, 0, 1]);
    assert!(other.is_some() && take_waited() > 0);
    assert_eq!(order(other.unwrap_or(1)), order(other.unwrap_or(1)));
}
