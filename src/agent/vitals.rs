//! What the agent notes of itself: what it counts of its work, whether its loop moves, whether it used the heap. Handles of
//! one thread: clones share what they hold, and nothing of it grows.

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use crate::{
    api::Mono,
    logic::{loop_health::LoopHealth, metrics::own::Counters},
};

/// What the agent counts of its own work, for its figures.
#[derive(Clone, Default)]
pub(super) struct WorkCounters(Rc<RefCell<Counters>>);

impl WorkCounters {
    /// Counts something.
    pub(super) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.0.borrow_mut());
    }

    /// Hands the counts to `look`, which must count nothing.
    pub(super) fn with<T>(&self, look: impl FnOnce(&Counters) -> T) -> T {
        look(&self.0.borrow())
    }
}

/// When the loop last moved, for the watchdog and `/healthz`.
#[derive(Clone)]
pub(super) struct LoopWatch {
    health: Rc<Cell<LoopHealth>>,
    /// Time between two syncs of a pod.
    sync: Duration,
}

impl LoopWatch {
    /// Of a loop that has not moved yet.
    pub(super) fn new(sync: Duration) -> Self {
        Self {
            health: Rc::default(),
            sync,
        }
    }

    /// The loop moves.
    pub(super) fn moved(&self, now: Mono) {
        let mut health = self.health.get();
        health.beat(now);
        self.health.set(health);
    }

    /// Whether it moved lately.
    pub(super) fn is_healthy(&self, now: Mono) -> bool {
        self.health.get().is_healthy(self.sync, now)
    }
}

/// Whether something used much of the heap, and code, since they were last given back.
#[derive(Clone)]
pub(super) struct HeapUse(Rc<Cell<bool>>);

impl HeapUse {
    /// The start used it.
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(true)))
    }

    /// Something used it.
    pub(super) fn note(&self) {
        self.0.set(true);
    }

    /// Whether something did; from here on it counts anew.
    pub(super) fn take(&self) -> bool {
        self.0.take()
    }
}
