//! State that is kept of one pod of the API: its identity, digests of its last read, open questions. Never the pod.

use alloc::boxed::Box;
use core::time::Duration;

use super::{BACK_OFF, MAX_BACK_OFF, PodListItem, PodObjectSummary, TRIES, version_digest};
use crate::api::MonoTime;

/// Delivered to the mux, and not gone since.
const HELD: u16 = 1;
/// The pod's phase is terminal.
const TERMINAL: u16 = 1 << 1;
/// `deletionTimestamp` is set.
const DELETING: u16 = 1 << 2;
/// The last complete list did not have it.
const ABSENT: u16 = 1 << 3;
/// The pod may not be read: it is gone, unless a list of all phases shows it.
const FORBIDDEN: u16 = 1 << 4;
/// The list under way has shown the pod, or it was seen otherwise since the list began.
const MARKED: u16 = 1 << 5;
/// To be read whatever its version.
const REREAD: u16 = 1 << 6;
/// A `GET` is under way.
const READING: u16 = 1 << 7;
/// A list or the doorbell told another version while the `GET` was under way.
const RUNG: u16 = 1 << 8;
/// A write of ours began since the `GET` did.
const WROTE_SINCE_GET: u16 = 1 << 9;
/// A write of ours began since the list did.
const WROTE_SINCE_LIST: u16 = 1 << 10;
/// A list or the doorbell has shown the pod in another version since the last request about it began.
const SHOWN: u16 = 1 << 11;

/// State of a pod. A free slot has no identity.
#[derive(Clone, Debug, Default)]
pub(super) struct PodPollSlot {
    /// `namespace/name/uid`; none of the three has a slash.
    id: Box<str>,
    /// Version that was last read, or that a write of ours led to; 0: none.
    read: u64,
    /// Version that a list or the doorbell last told.
    told: u64,
    semantic: u64,
    foreign: u64,
    /// Earliest time of the next read.
    pub(super) retry_at: MonoTime,
    /// Time when the pod came here, or last became terminal or ceased to be: of use for finished ones.
    pub(super) since: MonoTime,
    /// Grows with each pod that lives here.
    pub(super) generation: u32,
    flags: u16,
    /// Failed tries to read it in a row.
    failures: u8,
    /// Writes of ours under way.
    writing: u8,
}

const _: () = assert!(size_of::<PodPollSlot>() <= 72, "one per pod");

impl PodPollSlot {
    pub(super) fn is_used(&self) -> bool {
        !self.id.is_empty()
    }

    pub(super) fn uid(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or("")
    }

    /// Namespace and name.
    pub(super) fn namespace_and_name(&self) -> (&str, &str) {
        let mut parts = self.id.split('/');
        (parts.next().unwrap_or(""), parts.next().unwrap_or(""))
    }

    fn has_flag(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn set_flag(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.has_flag(HELD)
    }

    /// Held, and in a terminal phase.
    pub(super) fn has_ended(&self) -> bool {
        self.has_flag(HELD) && self.has_flag(TERMINAL)
    }

    /// Ended, and kept only until the API forgets it.
    pub(super) fn is_finished(&self) -> bool {
        self.has_flag(HELD) && self.has_flag(TERMINAL) && !self.has_flag(DELETING)
    }

    /// Returns true if the pod must be read before its state is certain, and its tries are not used up.
    pub(super) fn is_open_question(&self) -> bool {
        let open = !self.has_flag(HELD) || self.has_flag(ABSENT);
        self.is_used() && open && self.failures < TRIES
    }

    /// Returns true if a `GET` of the pod is wanted, sooner or later.
    pub(super) fn wants_read(&self) -> bool {
        let differs = self.told != self.read || self.read == 0;
        let asked = differs || self.has_flag(ABSENT) || self.has_flag(REREAD);
        self.is_used()
            && asked
            && !self.has_flag(READING)
            && !self.has_flag(FORBIDDEN)
            && self.writing == 0
    }

    pub(super) fn occupy_with(&mut self, item: &PodListItem, now: MonoTime) {
        *self = Self {
            id: format!("{}/{}/{}", item.namespace, item.name, &*item.uid).into(),
            since: now,
            generation: self.generation.wrapping_add(1),
            // The pod exists now, even if a list that began before lacks it.
            flags: MARKED,
            ..Self::default()
        };
    }

    /// Frees the slot. The answer to a `GET` that is under way finds no pod.
    pub(super) fn release(&mut self) {
        *self = Self {
            generation: self.generation,
            ..Self::default()
        };
    }

    pub(super) fn begin_list(&mut self) {
        self.set_flag(MARKED, false);
        self.set_flag(WROTE_SINCE_LIST, self.writing > 0);
    }

    pub(super) fn begin_get(&mut self) {
        self.set_flag(READING, true);
        self.set_flag(RUNG | SHOWN | WROTE_SINCE_GET, false);
    }

    pub(super) fn begin_write(&mut self) {
        self.writing = self.writing.saturating_add(1);
        self.set_flag(SHOWN, false);
        self.set_flag(WROTE_SINCE_GET | WROTE_SINCE_LIST, true);
    }

    pub(super) fn end_write(&mut self) {
        self.writing = self.writing.saturating_sub(1);
    }

    /// Has the pod read again if a list or the doorbell shows a state that it cannot have in the known version: equal
    /// versions are not always equal objects. A state that a write of ours may have changed raises no doubt.
    pub(super) fn request_read_if_doubtful(&mut self, deleting: bool, live: bool) {
        let settled =
            self.has_flag(HELD) && self.read == self.told && !self.has_flag(WROTE_SINCE_LIST);
        if settled && (deleting != self.has_flag(DELETING) || (live && self.has_flag(TERMINAL))) {
            self.set_flag(REREAD, true);
        }
    }

    /// Takes in the version in which a list or the doorbell shows the pod. Returns true if that is news.
    pub(super) fn take_shown_version(&mut self, text: &str) -> bool {
        let news = self.take_version(text);
        if news {
            self.set_flag(SHOWN, true);
        }
        news
    }

    /// Returns true if the pod was shown while the answer to the last request was on its way: an answer that it is gone
    /// may be older than that.
    pub(super) fn was_shown_meanwhile(&self) -> bool {
        self.has_flag(SHOWN)
    }

    /// Takes in the version in which the pod was last seen. Returns true if that is news.
    pub(super) fn take_version(&mut self, text: &str) -> bool {
        let version = version_digest(text);
        self.set_flag(MARKED, true);
        self.set_flag(ABSENT | FORBIDDEN, false);
        let news = version != self.told && version != self.read;
        // A list that is older than the last told version: that version is still to be read.
        if version == self.read && self.told != self.read {
            self.set_flag(REREAD, true);
        }
        if version != self.told && self.has_flag(READING) {
            // It cannot be known which of two versions is the later one, and the answer may be older than both.
            let again = self.has_flag(RUNG);
            self.set_flag(RUNG, true);
            if again {
                self.set_flag(REREAD, true);
            }
        }
        self.told = version;
        news
    }

    /// Takes in the end of a complete list. `any_phase`: the list selects pods in any phase.
    ///
    /// Returns true if the pod is certainly gone.
    pub(super) fn end_list(&mut self, any_phase: bool) -> bool {
        if !self.is_used() || self.has_flag(MARKED) {
            return false;
        }
        if any_phase && self.has_flag(FORBIDDEN) {
            return true;
        }
        if any_phase || !self.has_flag(TERMINAL) {
            self.set_flag(ABSENT, true);
        }
        false
    }

    /// Takes in an object that was read and that no write of ours overtook.
    pub(super) fn take_read_object(&mut self, sight: PodObjectSummary, now: MonoTime) {
        if !self.has_flag(RUNG) {
            self.told = sight.version;
            self.set_flag(REREAD, false);
        }
        self.record_object(sight, now);
        self.set_flag(ABSENT | FORBIDDEN | RUNG, false);
        self.set_flag(MARKED, true);
    }

    /// Takes in an object that answered a write of ours. Returns true if it differs from the delivered one.
    pub(super) fn take_write_answer(&mut self, sight: PodObjectSummary, now: MonoTime) -> bool {
        let more = self.semantic != sight.semantic || self.foreign != sight.foreign;
        if self.told == self.read {
            self.told = sight.version;
        }
        self.record_object(sight, now);
        self.set_flag(ABSENT | FORBIDDEN, false);
        self.set_flag(MARKED, true);
        more
    }

    fn record_object(&mut self, sight: PodObjectSummary, now: MonoTime) {
        if sight.terminal != self.has_flag(TERMINAL) {
            self.since = now;
        }
        self.read = sight.version;
        self.semantic = sight.semantic;
        self.foreign = sight.foreign;
        self.failures = 0;
        self.retry_at = MonoTime(0);
        self.set_flag(HELD, true);
        self.set_flag(TERMINAL, sight.terminal);
        self.set_flag(DELETING, sight.deleting);
    }

    /// Returns true if another version than that of `sight` was read, or written, last.
    pub(super) const fn was_read_after(&self, sight: PodObjectSummary) -> bool {
        self.read != sight.version
    }

    /// Ends a `GET`. Returns true if a write of ours overtook it.
    pub(super) fn end_get(&mut self) -> bool {
        self.set_flag(READING, false);
        self.has_flag(WROTE_SINCE_GET)
    }

    pub(super) fn is_overtaken_in_list(&self) -> bool {
        self.has_flag(WROTE_SINCE_LIST | READING)
    }

    pub(super) fn request_read(&mut self) {
        self.set_flag(REREAD, true);
    }

    /// Takes back the delivery of the pod.
    pub(super) fn undeliver(&mut self) {
        self.set_flag(HELD, false);
        self.set_flag(REREAD, true);
    }

    /// Notes that the pod may not be read. A list under way began before that was known, so it does not count.
    pub(super) fn forbid(&mut self) {
        self.set_flag(FORBIDDEN | MARKED, true);
        self.set_flag(REREAD, false);
    }

    /// Notes that only a list of all phases has shown the pod: that other lists lack it does not mean that it is gone.
    pub(super) fn presume_terminal(&mut self) {
        self.set_flag(TERMINAL, true);
    }

    /// Puts off the next read, longer after each failure: the pod's object was of no use.
    pub(super) fn put_off_read(
        &mut self,
        now: MonoTime,
        stretch: impl FnOnce(Duration) -> Duration,
    ) {
        let base = BACK_OFF.saturating_mul(1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + stretch(base.min(MAX_BACK_OFF));
    }
}
