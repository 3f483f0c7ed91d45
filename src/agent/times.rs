//! History of the wall clock in this boot, for whoever dates something or reckons with dates: see [`ClockHistory`]. It is kept
//! in the run dir, `clock.json`, for later agents of this boot: a date of 1970 is put right by the agent that runs when the
//! clock is right.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{clock::Clock, record::BootRecord};
use crate::{
    api::{MonoTime, WallTime},
    logic::clock_history::{ClockHistory, ClockObservation},
};

/// The history: far less than so many bytes.
const RECORD: BootRecord = BootRecord {
    name: "clock.json",
    version: 1,
    max_bytes: 64 << 10,
    lost: "the clock readings of this boot are lost",
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClockHistoryFile {
    #[serde(skip)]
    boot_id: String,
    history: ClockHistory,
}

impl ClockHistoryFile {
    /// Writes it down. Failing costs dates that stay wrong if the agent ends before the clock is right, so it is only told.
    /// Blocking.
    pub(crate) fn save_history(&self, run: &Path) {
        if let Err(e) = RECORD.write_boot_record(run, &self.boot_id, self) {
            log::warn!("cannot store the clock readings: {e}");
        }
    }
}

/// Shared flag: the wall clock was right once in this boot. [`DateCorrector`] sets it; threads may read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockCertainty(Arc<AtomicBool>);

impl ClockCertainty {
    /// Returns true if it was.
    pub(crate) fn is_certain(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the module. The loop looks at the clocks; everybody asks.
pub(crate) struct DateCorrector {
    clock: Rc<dyn Clock>,
    boot_id: String,
    history: RefCell<ClockHistory>,
    certainty: ClockCertainty,
}

impl DateCorrector {
    /// With what earlier agents of this boot stored in the run dir. What cannot be read is told and forgotten. Blocking.
    ///
    /// - `certainty`: is told when the clock is right for the first time.
    pub(crate) fn restore(
        clock: Rc<dyn Clock>,
        run: &Path,
        boot_id: &str,
        certainty: ClockCertainty,
    ) -> Self {
        let stored: Option<ClockHistoryFile> = RECORD.recall_boot_record(run, boot_id);
        let times = Self {
            clock,
            boot_id: boot_id.to_owned(),
            history: RefCell::new(stored.map_or_else(ClockHistory::new, |stored| stored.history)),
            certainty,
        };
        times.tell_certainty();
        times
    }

    /// Looks at both clocks.
    pub(crate) fn observe_clocks(&self, now: MonoTime) -> ClockObservation {
        let clock = &*self.clock;
        let mut history = self.history.borrow_mut();
        let seen = history.observe_clocks(now, clock.wall_time(), || clock.is_synchronized());
        drop(history);
        self.tell_certainty();
        seen
    }

    fn tell_certainty(&self) {
        let is_certain = self.is_certain();
        self.certainty.0.store(is_certain, Ordering::Relaxed);
    }

    /// Record for the agents after this one.
    pub(crate) fn make_history_file(&self) -> ClockHistoryFile {
        ClockHistoryFile {
            boot_id: self.boot_id.clone(),
            history: self.history.borrow().clone(),
        }
    }

    /// Hands the history to `read`, which must not ask this owner for anything.
    pub(crate) fn with_history<T>(&self, read: impl FnOnce(&ClockHistory) -> T) -> T {
        read(&self.history.borrow())
    }

    /// Returns true if the wall clock was right once in this boot.
    pub(crate) fn is_certain(&self) -> bool {
        self.with_history(ClockHistory::is_certain)
    }

    /// Corrects a date of a clock that was wrong.
    pub(crate) fn correct_date(&self, at: WallTime) -> WallTime {
        self.with_history(|history| history.correct_impossible_time(at, self.clock.now()))
    }

    /// Converts `at` to the time since boot.
    pub(crate) fn time_since_boot(&self, at: WallTime) -> MonoTime {
        self.with_history(|history| {
            history.time_since_boot(at, self.clock.now(), self.clock.wall_time())
        })
    }

    /// Time since `at`.
    pub(crate) fn time_elapsed_since(&self, at: WallTime) -> Duration {
        self.with_history(|history| {
            history.elapsed_since(at, self.clock.now(), self.clock.wall_time())
        })
    }
}
