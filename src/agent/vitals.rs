//! Facts of the agent about itself: counters of its work, turns of its loop, use of the heap. Handles of
//! one thread: clones share what they hold, and nothing of it grows.

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use crate::{
    api::MonoTime,
    logic::{loop_health::LoopHealth, metrics::own::AgentCounters},
};

/// Counters of the agent's own work, for its figures.
#[derive(Clone, Default)]
pub(crate) struct WorkCounters(Rc<RefCell<AgentCounters>>);

impl WorkCounters {
    /// Counts something.
    pub(crate) fn count_work(&self, count: impl FnOnce(&mut AgentCounters)) {
        count(&mut self.0.borrow_mut());
    }

    /// Hands the counts to `look`, which must count nothing.
    pub(super) fn with_counters<T>(&self, look: impl FnOnce(&AgentCounters) -> T) -> T {
        look(&self.0.borrow())
    }
}

/// Instant of the loop's last turn, for the watchdog and `/healthz`.
#[derive(Clone)]
pub(super) struct LoopWatch {
    health: Rc<Cell<LoopHealth>>,
    /// Time between two syncs of a pod.
    sync: Duration,
}

impl LoopWatch {
    /// Begins with a loop that has not turned yet.
    pub(super) fn new(sync: Duration) -> Self {
        Self {
            health: Rc::default(),
            sync,
        }
    }

    /// The loop moves.
    pub(super) fn note_loop_turn(&self, now: MonoTime) {
        let mut health = self.health.get();
        health.record_beat(now);
        self.health.set(health);
    }

    /// Returns true if the loop turned lately.
    pub(super) fn is_healthy(&self, now: MonoTime) -> bool {
        self.health.get().is_healthy(self.sync, now)
    }
}

/// Flag: much of the heap and of the code was used since both were last given back.
#[derive(Clone)]
pub(super) struct HeapUse(Rc<Cell<bool>>);

impl HeapUse {
    /// The start used it.
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(true)))
    }

    /// Notes such use.
    pub(super) fn note_heap_use(&self) {
        self.0.set(true);
    }

    /// Returns true if there was such use, and begins anew.
    pub(super) fn take_heap_use(&self) -> bool {
        self.0.take()
    }
}
