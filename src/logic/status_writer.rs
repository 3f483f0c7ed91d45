//! Which pod's status is written to the API next, and which pod is deleted there. Names follow kubelet
//! `status/status_manager.go`.
//!
//! Nothing is queued: for each pod of the API there is one entry that knows what the API shows ([`ApiCopy`]) and which
//! version of the stored status that was brought in line with. Whoever has time for a request asks
//! [`StatusWriter::poll`], which compares the newest stored status ([`Truth`]) with what the API shows. So the newest
//! status wins, one that says what the API shows costs nothing, a change by somebody else is repaired like a change of our
//! own, and memory does not grow with what happens while the apiserver is out of reach.
//!
//! ```text
//!            on_api_copy (read, or answer of a write)
//!                 │
//!   stored ──▶ settled? ──no──▶ Delete, if it is to be deleted, has ended in the API, and is finished here
//!   status        │             Patch,  if parts differ (status_patch)
//!                 └───────────▶ nothing
//! ```
//!
//! - Entries come and go with the API's objects alone ([`StatusWriter::on_api_copy`], [`StatusWriter::on_gone`]): as many as
//!   the poller holds. A status whose pod the API does not have is not sent (DEL-06).
//! - What a pod that is on its way has more to say than that waits up to [`START_HOLD`] for the news that it runs.
//! - One write per pod at a time, [`MAX_WRITES`] in all; pods take turns, so none starves another.
//! - A terminal phase is in the API before the pod is deleted there, because only the API's phase allows the delete (DEL-04).
//! - Every write names the uid. A conflict or a 404 changes nothing here: the poller is told to look ([`Next::Reread`]),
//!   and its word, a new copy or none, decides.
//! - A write that the server refused as such is put off long, but only as it was: what has changed since is sent soon.
//! - A write that got no answer may have been done: the pod stays unsettled, and what it sends again leads to the same.

mod forbidden;

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

pub use forbidden::{Forbidden, Turn};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    status_patch::{self, ApiStatus, Quirk, Told},
    work_queue::Jitter,
};
use crate::api::{
    Mono, PodUid, Wall,
    pod_status::{Phase, PodStatus},
};

/// Writes at a time: as many as there are threads for the network.
pub const MAX_WRITES: usize = 2;
/// Time between two looks at all pods (DEL-01, SM-04).
pub const FULL_PASS: Duration = Duration::from_secs(10);
/// Shortest time between two repairs of one pod: somebody who writes into our fields again and again is answered at
/// this pace.
pub const REPAIR_GAP: Duration = Duration::from_secs(10);
/// First delay after a failed write; doubles up to [`MAX_BACK_OFF`], and each is lengthened by up to half.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// How long what else is to be told of a pod that is told to be on its way (its sandbox stands, its address) waits for the
/// news that it runs. Most pods run by then, and one request does for both.
pub const START_HOLD: Duration = Duration::from_secs(1);
/// Longest delay after failures of one pod's writes.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// Longest delay after a write that the server refused as such: it will hardly be taken the next time. What differs from it
/// waits [`MAX_BACK_OFF`] at most.
pub const MAX_REFUSED_BACK_OFF: Duration = Duration::from_secs(300);
/// Longest time that a server's `Retry-After` is obeyed.
pub const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What the API shows of one pod, as far as writing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCopy {
    /// Its status.
    pub status: ApiStatus,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// It mirrors a static pod: it is not deleted here, whatever it says (MIR-03, SM-14).
    pub mirror: bool,
}

/// How a pod stands in truth. For a mirror that of its static pod.
#[derive(Clone, Copy, Debug)]
pub struct Truth<'a> {
    /// The stored status.
    pub status: &'a PodStatus,
    /// Its version.
    pub version: u64,
    /// Termination is finished: containers gone, volumes unmounted, cgroup removed.
    pub finished: bool,
    /// Containers may still be running (`CouldHaveRunningContainers`).
    pub could_run: bool,
}

/// Where the truth is asked for.
pub trait Truths {
    /// Of the pod with this uid in the API; `None` while nothing is stored (yet, or any more).
    fn truth(&self, uid: &PodUid) -> Option<Truth<'_>>;
}

/// A request to make.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Patch the `status` subresource; ends with [`StatusWriter::on_patched`].
    Patch {
        /// UID in the API.
        uid: PodUid,
        /// Strategic merge patch.
        body: Value,
    },
    /// Delete with grace 0 and this uid as precondition; ends with [`StatusWriter::on_deleted`].
    Delete {
        /// UID in the API.
        uid: PodUid,
    },
}

/// How a request ended that was not done, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// 404, or 409: the uid is another's, or the object moved too fast. 403 as well: it is what a Node authorizer says
    /// of a pod that is gone.
    Unsure,
    /// 400, 413, 422: it is wrong.
    Refused,
    /// 429 or 503 with a time.
    Busy {
        /// What the server asked for.
        retry_after: Option<Duration>,
    },
    /// Anything else, a lost answer above all: it may have been done.
    Failed,
}

/// The apiserver's word on a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// It is done.
    #[default]
    Done,
    /// 404: there is no such pod.
    Gone,
    /// 403.
    Forbidden,
    /// 409: the uid is another's, or the object moved too fast.
    Conflict,
    /// 400, 413, 422.
    Refused,
    /// 429 or 503 with a time.
    Busy,
    /// None, or one that says nothing: it may have been done.
    Failed,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// Nothing.
    Nothing,
    /// The poller is to read the pod.
    Reread,
}

/// What the last look at a pod was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Looked {
    version: u64,
    finished: bool,
    could_run: bool,
}

impl Looked {
    fn at(truth: &Truth<'_>) -> Self {
        Self {
            version: truth.version,
            finished: truth.finished,
            could_run: truth.could_run,
        }
    }
}

/// A write that the server refused as such.
#[derive(Clone, Copy, Debug)]
struct Refused {
    looked: Looked,
    /// The API had the pod as one to be deleted.
    deleting: bool,
    /// When another one may be sent.
    other_at: Mono,
}

#[derive(Clone, Debug)]
struct Entry {
    uid: PodUid,
    api: ApiCopy,
    /// Rare, and then the same for all pods of a server.
    quirk: Option<Box<Quirk>>,
    /// The truth that was told last.
    told: Option<Looked>,
    /// The API shows what was told.
    settled: bool,
    /// A write is under way.
    busy: bool,
    /// The times of its conditions are to be told anew.
    redated: bool,
    failures: u8,
    /// On the last write that was answered.
    word: Word,
    /// Not looked at before.
    not_before: Mono,
    /// Rare: why it is not.
    refused: Option<Box<Refused>>,
    /// When a difference that was not of our making may be repaired again.
    repair_at: Mono,
    /// The truth that waits for more, and until when; 0: none does.
    held: Option<Looked>,
    held_until: Mono,
}

const _: () = assert!(size_of::<Entry>() <= 144, "one per pod of the API");

impl Entry {
    /// What is to be done for the pod: `None` nothing, `Some(None)` delete it, else patch it.
    fn look(
        &mut self,
        truth: &Truth<'_>,
        now: Mono,
        wall: Wall,
    ) -> Option<Option<status_patch::Patch>> {
        let looked = Looked::at(truth);
        if self.settled && self.told == Some(looked) {
            return None;
        }
        let ended = self.api.deleting && self.api.status.phase.is_terminal();
        if ended && !self.api.mirror && truth.finished {
            return Some(None);
        }
        if self.held == Some(looked) && now < self.held_until && !self.api.deleting {
            return None;
        }
        let quirk = self.quirk.as_deref();
        let (mut api, stored) = (self.api.status, truth.status);
        if self.redated {
            api = api.with_other_conditions();
        }
        let patch = status_patch::patch(&self.uid, &api, quirk, stored, truth.could_run, wall);
        if patch.is_none() {
            self.settled = true;
            self.told = Some(looked);
            self.let_go();
            return None;
        }
        if self.told.is_some() && !self.api.deleting && is_on_its_way(&api, stored) {
            if self.held_until == Mono(0) {
                self.held_until = now + START_HOLD;
            }
            if now < self.held_until {
                self.held = Some(looked);
                return None;
            }
        }
        self.let_go();
        if self.told == Some(looked) {
            // It was told, so somebody else has changed it.
            if now < self.repair_at {
                self.not_before = self.repair_at;
                return None;
            }
            self.repair_at = now + REPAIR_GAP;
        }
        patch.map(Some)
    }
}

/// Whether both, what the API shows and what is stored, say that the pod does not run yet.
fn is_on_its_way(api: &ApiStatus, stored: &PodStatus) -> bool {
    api.phase == Phase::Pending && stored.phase == Phase::Pending
}

#[derive(Debug)]
struct Flight {
    uid: PodUid,
    looked: Looked,
    /// The API had the pod as one to be deleted.
    deleting: bool,
    /// Of a patch.
    told: Option<Told>,
    /// It tells the times of conditions anew.
    redated: bool,
}

/// The statuses on their way to the API. See the module's words.
#[derive(Debug)]
pub struct StatusWriter {
    /// In no order.
    entries: Vec<Entry>,
    flights: Vec<Flight>,
    /// Where the next search begins: behind the pod that was served last.
    cursor: usize,
    /// Something may have to be written.
    look: bool,
    pass_at: Mono,
    /// The server wants no writes before.
    paused_until: Mono,
    jitter: Jitter,
    /// Somebody else's change to a status was found.
    meddled: bool,
}

impl StatusWriter {
    /// A writer that knows no pod; `seed` decides the spread of delays.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            entries: Vec::new(),
            flights: Vec::with_capacity(MAX_WRITES),
            cursor: 0,
            look: false,
            pass_at: Mono(0),
            paused_until: Mono(0),
            jitter: Jitter::new(seed),
            meddled: false,
        }
    }

    /// A pod was read from the API, or found as it was last read.
    pub fn on_api_copy(&mut self, uid: &PodUid, api: ApiCopy) {
        self.look = true;
        let Some(entry) = self.entry(uid) else {
            let busy = self.flights.iter().any(|flight| flight.uid == *uid);
            self.entries.push(Entry {
                uid: uid.clone(),
                api,
                quirk: None,
                told: None,
                settled: false,
                busy,
                redated: false,
                failures: 0,
                word: Word::Done,
                not_before: Mono(0),
                refused: None,
                repair_at: Mono(0),
                held: None,
                held_until: Mono(0),
            });
            return;
        };
        entry.settled &= entry.api == api;
        entry.api = api;
    }

    /// Stored statuses are dated anew: what the API shows of their times is wrong.
    pub fn on_redated(&mut self) {
        self.look = true;
        for entry in &mut self.entries {
            (entry.redated, entry.settled) = (true, false);
        }
    }

    /// The API has the pod no more.
    pub fn on_gone(&mut self, uid: &PodUid) {
        self.entries.retain(|entry| entry.uid != *uid);
    }

    /// A stored status changed, or what may run of a pod, or how far its end is.
    pub const fn on_change(&mut self) {
        self.look = true;
    }

    /// The next request, `None` until the next input or [`StatusWriter::next_timeout`]. Drain it after every input.
    pub fn poll(&mut self, truths: &dyn Truths, now: Mono, wall: Wall) -> Option<Write> {
        if now >= self.pass_at {
            self.pass_at = now + FULL_PASS;
            self.look = true;
        }
        // One that was put off is looked at when its time has come.
        let due = self.look || self.entries.iter().any(|e| e.is_due(now));
        if !due || self.flights.len() >= MAX_WRITES || now < self.paused_until {
            return None;
        }
        let count = self.entries.len();
        for step in 0..count {
            let index = (self.cursor + step) % count;
            let entry = &mut self.entries[index];
            if entry.busy {
                continue;
            }
            if entry.refused.is_some()
                && let Some(truth) = truths.truth(&entry.uid)
            {
                entry.hasten_other(Looked::at(&truth));
            }
            if now < entry.not_before {
                continue;
            }
            entry.not_before = Mono(0);
            entry.refused = None;
            let Some(truth) = truths.truth(&entry.uid) else {
                entry.let_go();
                continue;
            };
            let looked = Looked::at(&truth);
            let is_repair = entry.told == Some(looked);
            let Some(patch) = entry.look(&truth, now, wall) else {
                continue;
            };
            self.meddled |= is_repair && patch.is_some();
            self.cursor = index + 1;
            entry.busy = true;
            let (redated, deleting) = (entry.redated, entry.api.deleting);
            let uid = entry.uid.clone();
            let (told, body) = patch.map(|patch| (patch.told, patch.body)).unzip();
            self.flights.push(Flight {
                uid: uid.clone(),
                looked,
                deleting,
                told,
                redated,
            });
            return Some(match body {
                Some(body) => Write::Patch { uid, body },
                None => Write::Delete { uid },
            });
        }
        self.look = false;
        None
    }

    /// Whether somebody else's change to a status was found since the last time that this was asked. The node controller
    /// makes such changes when it takes the node for gone.
    pub const fn take_meddled(&mut self) -> bool {
        core::mem::replace(&mut self.meddled, false)
    }

    /// Whether something is being written, or may have to be at once.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.look || !self.flights.is_empty()
    }

    /// When [`StatusWriter::poll`] may have something without any input.
    #[must_use]
    pub fn next_timeout(&self, now: Mono) -> Mono {
        if self.flights.len() >= MAX_WRITES {
            return Mono(u64::MAX);
        }
        let next = self.entries.iter().filter_map(Entry::next).min();
        let next = next.unwrap_or(self.pass_at).min(self.pass_at);
        let next = if self.look { now } else { next };
        next.max(self.paused_until).max(now)
    }

    /// A write of the pod was answered. Returns whether the word is another than on the write before.
    pub fn on_word(&mut self, uid: &PodUid, word: Word) -> bool {
        let entry = self.entry(uid);
        entry.is_some_and(|entry| core::mem::replace(&mut entry.word, word) != word)
    }

    /// A patch ended; `Ok`: the object it led to.
    pub fn on_patched(
        &mut self,
        uid: &PodUid,
        answer: Result<ApiCopy, Failure>,
        now: Mono,
    ) -> Next {
        let Some(flight) = self.land(uid) else {
            return Next::Nothing;
        };
        let Some(entry) = self.entry(uid) else {
            return Next::Nothing;
        };
        match answer {
            Ok(api) => {
                // What was on its way when they were dated anew told the old times.
                entry.redated &= !flight.redated;
                if let Some(told) = flight.told {
                    let quirk = told.quirk(entry.quirk.as_deref(), &api.status);
                    entry.quirk = quirk.map(Box::new);
                }
                entry.went_well(api, flight.looked);
                Next::Nothing
            }
            Err(failure) => self.went_wrong(&flight, failure, now),
        }
    }

    /// A delete ended; `Ok`: the object if it is still there, kept by finalizers.
    pub fn on_deleted(
        &mut self,
        uid: &PodUid,
        answer: Result<Option<ApiCopy>, Failure>,
        now: Mono,
    ) -> Next {
        let Some(flight) = self.land(uid) else {
            return Next::Nothing;
        };
        match answer {
            Ok(None) => {
                self.on_gone(uid);
                Next::Nothing
            }
            Ok(Some(api)) => {
                if let Some(entry) = self.entry(uid) {
                    entry.went_well(api, flight.looked);
                    // No more can be done; when its object changes the delete is tried again.
                    entry.settled = true;
                }
                Next::Nothing
            }
            Err(failure) => self.went_wrong(&flight, failure, now),
        }
    }

    fn entry(&mut self, uid: &PodUid) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.uid == *uid)
    }

    /// Takes the pod's request off the list.
    fn land(&mut self, uid: &PodUid) -> Option<Flight> {
        self.look = true;
        let at = self.flights.iter().position(|flight| flight.uid == *uid)?;
        let flight = self.flights.swap_remove(at);
        if let Some(entry) = self.entry(uid) {
            entry.busy = false;
        }
        Some(flight)
    }

    fn went_wrong(&mut self, flight: &Flight, failure: Failure, now: Mono) -> Next {
        let uid = &flight.uid;
        let failures = self.entry(uid).map_or(0, |entry| entry.failures);
        let limit = match failure {
            Failure::Refused => MAX_REFUSED_BACK_OFF,
            Failure::Unsure | Failure::Busy { .. } | Failure::Failed => MAX_BACK_OFF,
        };
        let base = BACK_OFF.saturating_mul(1 << failures.min(9)).min(limit);
        let wait = self.jitter.stretch(base);
        if let Failure::Busy { retry_after } = failure {
            let pause = retry_after.unwrap_or(wait).clamp(BACK_OFF, MAX_PAUSE);
            self.paused_until = now + pause;
            return Next::Nothing;
        }
        if let Some(entry) = self.entry(uid) {
            entry.failures = entry.failures.saturating_add(1);
            entry.not_before = now + wait;
            entry.settled = false;
            entry.refused = (failure == Failure::Refused).then(|| {
                Box::new(Refused {
                    looked: flight.looked,
                    deleting: flight.deleting,
                    other_at: now + wait.min(MAX_BACK_OFF),
                })
            });
        }
        match failure {
            Failure::Unsure => Next::Reread,
            Failure::Refused | Failure::Busy { .. } | Failure::Failed => Next::Nothing,
        }
    }
}

impl Entry {
    fn let_go(&mut self) {
        self.held = None;
        self.held_until = Mono(0);
    }

    /// What is to be written now is looked at soon if it is another write than the one that was refused.
    fn hasten_other(&mut self, looked: Looked) {
        let deleting = self.api.deleting;
        let other = |r: &Refused| r.looked != looked || r.deleting != deleting;
        if let Some(refused) = self.refused.take_if(|refused| other(refused)) {
            self.not_before = self.not_before.min(refused.other_at);
        }
    }

    /// When it is to be looked at again by itself.
    fn next(&self) -> Option<Mono> {
        let times = [self.not_before, self.held_until];
        let put_off = times.into_iter().filter(|time| time.0 > 0).min();
        put_off.filter(|_| !self.busy)
    }

    fn is_due(&self, now: Mono) -> bool {
        self.next().is_some_and(|next| next <= now)
    }

    fn went_well(&mut self, api: ApiCopy, looked: Looked) {
        self.api = api;
        self.told = Some(looked);
        self.settled = false;
        self.failures = 0;
        self.not_before = Mono(0);
        self.refused = None;
    }
}

#[cfg(test)]
mod tests;
