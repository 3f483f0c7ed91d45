//! The doorbell: one watch of metadata, kept open. It says that a pod is worth reading, never what it is.

use alloc::boxed::Box;
use core::time::Duration;

use super::{ApiPoll, BACK_OFF, MAX_BACK_OFF, PodListItem, version_number};
use crate::api::MonoTime;

/// Type of an event on the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodWatchEventKind {
    /// `ADDED` or `MODIFIED`.
    Changed,
    /// `DELETED`: gone.
    Deleted,
    /// `BOOKMARK`: only a version.
    Bookmark,
}

/// Event of the watch. An over-long event, or one that does not tell its pod, leads to [`ApiPoll::on_unknown_watch_event`]
/// instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodWatchEvent {
    /// Type.
    pub kind: PodWatchEventKind,
    /// Pod and version; a bookmark has only a version.
    pub item: PodListItem,
}

/// End of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellEnd {
    /// The server closed it after the time that was asked for.
    Clean,
    /// Anything else: an `ERROR` line, a break, an over-run, an answer other than 200.
    Broken,
}

/// State of the doorbell.
#[derive(Debug, Default)]
pub(super) struct DoorbellState {
    /// Time when the watch was opened; `None` while it is closed.
    open: Option<MonoTime>,
    /// Set if the watch has told of a change that was not our own doing.
    foreign: bool,
    /// Version of the last list, or of the last event after it; empty before the first list.
    version: Box<str>,
    retry_at: MonoTime,
    /// Breaks without a clean end or a long life between them.
    breaks: u32,
}

impl DoorbellState {
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn may_open_watch(&self, now: MonoTime) -> bool {
        self.next_open_time() <= now
    }

    pub(super) fn next_open_time(&self) -> MonoTime {
        if self.open.is_some() || self.version.is_empty() {
            MonoTime(u64::MAX)
        } else {
            self.retry_at
        }
    }

    pub(super) fn begin_watch(&mut self, now: MonoTime) -> Option<Box<str>> {
        if self.version.is_empty() {
            return None;
        }
        self.open = Some(now);
        self.foreign = false;
        Some(self.version.clone())
    }

    /// Takes the version of a list that ended, unless a watch is open, which is further already. Returns true if the
    /// next watch misses what happened in between: the list does not show the end of pods that it does not select.
    pub(super) fn take_list_version(&mut self, version: &str) -> bool {
        if self.open.is_some() || *self.version == *version {
            return false;
        }
        let was = core::mem::replace(&mut self.version, version.into());
        !was.is_empty()
    }
}

impl ApiPoll {
    /// Takes in an event of the doorbell.
    pub fn on_watch_event(&mut self, ring: &PodWatchEvent, now: MonoTime) {
        if !ring.item.version.is_empty() {
            self.bell.version = ring.item.version.clone();
            self.raise_highest_version(version_number(&ring.item.version));
        }
        if ring.kind == PodWatchEventKind::Bookmark {
            return;
        }
        if ring.item.uid.is_empty() || ring.item.name.is_empty() {
            self.on_unknown_watch_event();
            return;
        }
        let news = match (self.find_slot(&ring.item.uid), ring.kind) {
            (Some(index), PodWatchEventKind::Deleted) => {
                self.slots[index].take_version(&ring.item.version)
            }
            (Some(index), _) => self.slots[index].take_shown_version(&ring.item.version),
            // A pod that was never known here, and is gone.
            (None, PodWatchEventKind::Deleted) => false,
            (None, PodWatchEventKind::Changed | PodWatchEventKind::Bookmark) => {
                match self.find_or_add_slot(&ring.item, now) {
                    Some(index) => self.slots[index].take_shown_version(&ring.item.version),
                    // It may have ended long ago. The list of live pods tells whether it has to be refused.
                    None => {
                        self.wanted = true;
                        true
                    }
                }
            }
        };
        self.bell.foreign |= news;
    }

    /// Takes in an event of a pod that is not known: the next list tells which.
    pub fn on_unknown_watch_event(&mut self) {
        self.bell.foreign = true;
        self.wanted = true;
        self.unheard = true;
    }

    /// Takes in the end of the watch. A clean end without foreign events proves as much as a list.
    pub fn on_watch_end(&mut self, end: DoorbellEnd, now: MonoTime) {
        let Some(since) = self.bell.open.take() else {
            return;
        };
        match end {
            DoorbellEnd::Clean => {
                self.bell.breaks = 0;
                if !self.bell.foreign && !self.wanted {
                    self.proved = Some(now);
                }
                // A server that closes at once is not asked again without a pause.
                self.bell.retry_at = since + BACK_OFF;
            }
            DoorbellEnd::Broken => {
                if now - since > MAX_BACK_OFF {
                    self.bell.breaks = 0;
                }
                let base: Duration = BACK_OFF.saturating_mul(1 << self.bell.breaks.min(6));
                self.bell.breaks = self.bell.breaks.saturating_add(1);
                self.bell.retry_at = now + self.jitter.stretch_delay(base.min(MAX_BACK_OFF));
                self.wanted = true;
                self.unheard = true;
            }
        }
    }
}
