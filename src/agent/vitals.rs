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

/// Use of the heap and of the code since both were last given back. What is given back has to be fetched again: with hundreds of
/// pods one of them is synced all the time.
#[derive(Clone)]
pub(super) struct HeapUse(Rc<Cell<HeapUseAmount>>);

#[derive(Clone, Copy, Default)]
enum HeapUseAmount {
    #[default]
    None,
    /// As one pod needs that is synced and left as it is. Rounds in which that stays.
    Small(u8),
    Much,
}

/// Rounds of housekeeping, of two seconds each, after which a small use is given back too.
const SMALL_USE_ROUNDS: u8 = 15;

impl HeapUse {
    /// The start used it.
    pub(super) fn new() -> Self {
        Self(Rc::new(Cell::new(HeapUseAmount::Much)))
    }

    /// Notes that much was used.
    pub(super) fn note_heap_use(&self) {
        self.0.set(HeapUseAmount::Much);
    }

    /// Notes that a little was used, which is used again soon.
    pub(super) fn note_small_use(&self) {
        if matches!(self.0.get(), HeapUseAmount::None) {
            self.0.set(HeapUseAmount::Small(SMALL_USE_ROUNDS));
        }
    }

    /// Returns true if what was used is to be given back in this round, and begins anew.
    pub(super) fn take_heap_use(&self) -> bool {
        let (left, is_due) = match self.0.get() {
            HeapUseAmount::None => (HeapUseAmount::None, false),
            HeapUseAmount::Small(rounds @ 1..) => (HeapUseAmount::Small(rounds - 1), false),
            HeapUseAmount::Small(0) | HeapUseAmount::Much => (HeapUseAmount::None, true),
        };
        self.0.set(left);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_given_back_later() {
        let heap = HeapUse::new();
        assert!(heap.take_heap_use() && !heap.take_heap_use());
        heap.note_small_use();
        for _ in 0..SMALL_USE_ROUNDS {
            assert!(!heap.take_heap_use());
            heap.note_small_use();
        }
        assert!(heap.take_heap_use() && !heap.take_heap_use());
        heap.note_small_use();
        heap.note_heap_use();
        heap.note_small_use();
        assert!(heap.take_heap_use() && !heap.take_heap_use());
    }
}
