//! What is kept of one pod of the API: who it is, what of it was read last, and what is in question. Never the pod.

use alloc::boxed::Box;
use core::time::Duration;

use super::{BACK_OFF, Item, MAX_BACK_OFF, Sight, TRIES, version};
use crate::api::Mono;

/// Delivered to the mux, and not gone since.
const HELD: u16 = 1;
/// Its phase is terminal.
const TERMINAL: u16 = 1 << 1;
/// `deletionTimestamp` is set.
const DELETING: u16 = 1 << 2;
/// The last complete list did not have it.
const ABSENT: u16 = 1 << 3;
/// It may not be read: gone, unless a list of all phases shows it.
const FORBIDDEN: u16 = 1 << 4;
/// The list under way has shown it, or it was seen otherwise since that began.
const MARKED: u16 = 1 << 5;
/// To be read whatever its version.
const REREAD: u16 = 1 << 6;
/// A `GET` is under way.
const READING: u16 = 1 << 7;
/// Another version was told while the `GET` was under way.
const RUNG: u16 = 1 << 8;
/// A write of ours began since the `GET` did.
const WROTE_SINCE_GET: u16 = 1 << 9;
/// A write of ours began since the list did.
const WROTE_SINCE_LIST: u16 = 1 << 10;
/// It was shown to be there, in another version, since the last request about it began.
const SHOWN: u16 = 1 << 11;

/// One pod. A free one has no identity.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// `namespace/name/uid`; none of the three has a slash.
    id: Box<str>,
    /// Version that was last read, or that a write of ours led to; 0: none.
    read: u64,
    /// Version that a list or the doorbell last told.
    told: u64,
    semantic: u64,
    foreign: u64,
    /// A read is not tried before.
    pub(super) retry_at: Mono,
    /// Since when it is as it is: of use for finished ones.
    pub(super) since: Mono,
    /// Grows with each pod that lives here.
    pub(super) generation: u32,
    flags: u16,
    /// Failed tries to read it in a row.
    failures: u8,
    /// Writes of ours under way.
    writing: u8,
}

const _: () = assert!(size_of::<Slot>() <= 72, "one per pod");

impl Slot {
    pub(super) fn is_used(&self) -> bool {
        !self.id.is_empty()
    }

    pub(super) fn uid(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or("")
    }

    /// Namespace and name.
    pub(super) fn path(&self) -> (&str, &str) {
        let mut parts = self.id.split('/');
        (parts.next().unwrap_or(""), parts.next().unwrap_or(""))
    }

    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.is(HELD)
    }

    /// Held, and in a terminal phase.
    pub(super) fn has_ended(&self) -> bool {
        self.is(HELD) && self.is(TERMINAL)
    }

    /// Ended, and nothing more is to come of it but that the API forgets it.
    pub(super) fn is_finished(&self) -> bool {
        self.is(HELD) && self.is(TERMINAL) && !self.is(DELETING)
    }

    /// Something must be read before it is certain how the pod stands, as far as there is hope.
    pub(super) fn is_open_question(&self) -> bool {
        let open = !self.is(HELD) || self.is(ABSENT);
        self.is_used() && open && self.failures < TRIES
    }

    /// Whether a `GET` of it is wanted, sooner or later.
    pub(super) fn wants_read(&self) -> bool {
        let differs = self.told != self.read || self.read == 0;
        let asked = differs || self.is(ABSENT) || self.is(REREAD);
        self.is_used() && asked && !self.is(READING) && !self.is(FORBIDDEN) && self.writing == 0
    }

    pub(super) fn take(&mut self, item: &Item, now: Mono) {
        *self = Self {
            id: format!("{}/{}/{}", item.namespace, item.name, &*item.uid).into(),
            since: now,
            generation: self.generation.wrapping_add(1),
            // It is there now, whatever a list says that began before.
            flags: MARKED,
            ..Self::default()
        };
    }

    /// Frees it. The answer to a `GET` that is under way finds nobody.
    pub(super) fn release(&mut self) {
        *self = Self {
            generation: self.generation,
            ..Self::default()
        };
    }

    pub(super) fn begin_list(&mut self) {
        self.set(MARKED, false);
        self.set(WROTE_SINCE_LIST, self.writing > 0);
    }

    pub(super) fn begin_get(&mut self) {
        self.set(READING, true);
        self.set(RUNG | SHOWN | WROTE_SINCE_GET, false);
    }

    pub(super) fn begin_write(&mut self) {
        self.writing = self.writing.saturating_add(1);
        self.set(SHOWN, false);
        self.set(WROTE_SINCE_GET | WROTE_SINCE_LIST, true);
    }

    pub(super) fn end_write(&mut self) {
        self.writing = self.writing.saturating_sub(1);
    }

    /// A list or the doorbell shows something that a pod in the version that is known cannot be: equal versions are not
    /// always equal objects. One that is told while a write of ours may have changed it is no such thing.
    pub(super) fn doubt(&mut self, deleting: bool, live: bool) {
        let settled = self.is(HELD) && self.read == self.told && !self.is(WROTE_SINCE_LIST);
        if settled && (deleting != self.is(DELETING) || (live && self.is(TERMINAL))) {
            self.set(REREAD, true);
        }
    }

    /// A list or the doorbell shows the pod in this version. Returns whether that is news.
    pub(super) fn show(&mut self, text: &str) -> bool {
        let news = self.tell(text);
        if news {
            self.set(SHOWN, true);
        }
        news
    }

    /// Whether it was shown while the answer to the last request was on its way: an answer that it is gone may be the older word.
    pub(super) fn was_shown(&self) -> bool {
        self.is(SHOWN)
    }

    /// Somebody says that the pod was last in this version. Returns whether that is news.
    pub(super) fn tell(&mut self, text: &str) -> bool {
        let version = version(text);
        self.set(MARKED, true);
        self.set(ABSENT | FORBIDDEN, false);
        let news = version != self.told && version != self.read;
        // A list that is older than what was told before: that is no less true.
        if version == self.read && self.told != self.read {
            self.set(REREAD, true);
        }
        if version != self.told && self.is(READING) {
            // Which of two versions is the later one nobody knows, and the answer may be older than both.
            let again = self.is(RUNG);
            self.set(RUNG, true);
            if again {
                self.set(REREAD, true);
            }
        }
        self.told = version;
        news
    }

    /// A complete list has ended. `any_phase`: it was one that selects pods in any phase.
    ///
    /// Returns whether the pod is certainly gone.
    pub(super) fn end_list(&mut self, any_phase: bool) -> bool {
        if !self.is_used() || self.is(MARKED) {
            return false;
        }
        if any_phase && self.is(FORBIDDEN) {
            return true;
        }
        if any_phase || !self.is(TERMINAL) {
            self.set(ABSENT, true);
        }
        false
    }

    /// An object was read, and nothing overtook it.
    pub(super) fn saw(&mut self, sight: Sight, now: Mono) {
        if !self.is(RUNG) {
            self.told = sight.version;
            self.set(REREAD, false);
        }
        self.note(sight, now);
        self.set(ABSENT | FORBIDDEN | RUNG, false);
        self.set(MARKED, true);
    }

    /// The object answered a write of ours. Returns whether it says more than what was delivered.
    pub(super) fn answered(&mut self, sight: Sight, now: Mono) -> bool {
        let more = self.semantic != sight.semantic || self.foreign != sight.foreign;
        if self.told == self.read {
            self.told = sight.version;
        }
        self.note(sight, now);
        self.set(ABSENT | FORBIDDEN, false);
        self.set(MARKED, true);
        more
    }

    fn note(&mut self, sight: Sight, now: Mono) {
        if sight.terminal != self.is(TERMINAL) {
            self.since = now;
        }
        self.read = sight.version;
        self.semantic = sight.semantic;
        self.foreign = sight.foreign;
        self.failures = 0;
        self.retry_at = Mono(0);
        self.set(HELD, true);
        self.set(TERMINAL, sight.terminal);
        self.set(DELETING, sight.deleting);
    }

    /// Ends a `GET`. Returns whether a write of ours overtook it.
    pub(super) fn end_get(&mut self) -> bool {
        self.set(READING, false);
        self.is(WROTE_SINCE_GET)
    }

    pub(super) fn is_overtaken_in_list(&self) -> bool {
        self.is(WROTE_SINCE_LIST | READING)
    }

    pub(super) fn reread(&mut self) {
        self.set(REREAD, true);
    }

    /// Nobody was told of it after all.
    pub(super) fn undeliver(&mut self) {
        self.set(HELD, false);
        self.set(REREAD, true);
    }

    /// The pod may not be read. A list under way began before that was known, so it does not count.
    pub(super) fn forbid(&mut self) {
        self.set(FORBIDDEN | MARKED, true);
        self.set(REREAD, false);
    }

    /// Only a list of pods in any phase has shown it: that others lack it says nothing.
    pub(super) fn presume_terminal(&mut self) {
        self.set(TERMINAL, true);
    }

    /// The pod's own object was of no use: it is tried again, ever later.
    pub(super) fn put_off(&mut self, now: Mono, stretch: impl FnOnce(Duration) -> Duration) {
        let base = BACK_OFF.saturating_mul(1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + stretch(base.min(MAX_BACK_OFF));
    }
}
