//! Complaints that come again and again: each text is told once a minute, and how often it came meanwhile. What is tried
//! every second for as long as something is broken would otherwise fill the log's disk.

use alloc::rc::Rc;
use core::{cell::RefCell, time::Duration};

use super::clock::Clock;
use crate::{api::MonoTime, logic::digest::FnvHasher};

/// Texts that are remembered; the one that came longest ago makes room.
const REMEMBERED: usize = 64;
/// A text is told again after this time.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct RecentComplaint {
    text: u128,
    told: MonoTime,
    /// Came so often since it was told.
    held: u32,
}

/// Warns of what is tried again and may fail each time. Everybody who complains has a handle of the same one.
pub(crate) struct Complaints {
    clock: Rc<dyn Clock>,
    lately: RefCell<RecentComplaints>,
}

impl Complaints {
    /// Begins without a complaint.
    pub(crate) fn new(clock: Rc<dyn Clock>) -> Self {
        Self {
            clock,
            lately: RefCell::default(),
        }
    }

    /// Warns, with the same text at most once a minute.
    pub(crate) fn complain(&self, text: &str) {
        self.complain_of(text, text);
    }

    /// Warns of the same `what` at most once a minute, whatever the text is: a stranger has written of it.
    pub(crate) fn complain_of(&self, what: &str, text: &str) {
        let told = self
            .lately
            .borrow_mut()
            .take_held_count(what, self.clock.now());
        match told {
            Some(0) => log::warn!("{text}"),
            Some(more) => log::warn!("{text} ({more} more times since the last report)"),
            None => log::debug!("{text}"),
        }
    }
}

/// Recent complaints.
#[derive(Debug, Default)]
struct RecentComplaints(Vec<RecentComplaint>);

impl RecentComplaints {
    /// Returns how often `text` was held back, if it is to be logged now.
    fn take_held_count(&mut self, text: &str, now: MonoTime) -> Option<u32> {
        let mut fnv = FnvHasher::default();
        fnv.write_text(text);
        let digest = fnv.finish();
        if let Some(known) = self.0.iter_mut().find(|c| c.text == digest) {
            if now < known.told + PAUSE {
                known.held = known.held.saturating_add(1);
                return None;
            }
            known.told = now;
            return Some(core::mem::take(&mut known.held));
        }
        if self.0.len() == REMEMBERED {
            let oldest = (0..self.0.len()).min_by_key(|&at| self.0[at].told);
            oldest.map(|at| self.0.swap_remove(at));
        }
        self.0.push(RecentComplaint {
            text: digest,
            told: now,
            held: 0,
        });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_held_back_and_counted() {
        let mut complaints = RecentComplaints::default();
        let at = |s: u64| MonoTime(s * 1000);
        assert_eq!(complaints.take_held_count("a", at(0)), Some(0));
        assert_eq!(complaints.take_held_count("b", at(1)), Some(0));
        for s in 1..60 {
            assert_eq!(complaints.take_held_count("a", at(s)), None);
        }
        assert_eq!(complaints.take_held_count("a", at(60)), Some(59));
        assert_eq!(complaints.take_held_count("a", at(61)), None);
        for n in 0..1000 {
            assert_eq!(complaints.take_held_count(&n.to_string(), at(62)), Some(0));
        }
        assert_eq!(complaints.0.len(), REMEMBERED);
    }
}
