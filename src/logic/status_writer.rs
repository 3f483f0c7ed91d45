//! Choice of the next write to the API: the status of a pod, or the delete of one. Names follow kubelet
//! `status/status_manager.go`.
//!
//! There is no queue. Each pod of the API has one entry: a digest of the API's copy ([`ApiPodCopy`]), and the version of
//! the stored status that the copy was brought in line with. A caller with time for a request asks
//! [`StatusWriter::poll_write`], which compares the newest stored status ([`LocalPodState`]) with the API's copy. So the newest
//! status wins, and a status equal to the copy costs nothing. A change by another party is repaired like a change of
//! our own. Memory does not grow while the apiserver is out of reach.
//!
//! ```text
//!            on_api_copy (read, or answer of a write)
//!                 │
//!   stored ──▶ settled? ──no──▶ Delete, if it is to be deleted, has ended in the API, and is finished here
//!   status        │             Patch,  if parts differ (status_patch)
//!                 └───────────▶ nothing
//! ```
//!
//! - Entries come and go with the API's objects alone ([`StatusWriter::on_api_copy`], [`StatusWriter::on_pod_gone`]): as
//!   many as the poller holds. A status whose pod the API does not have is not sent (DEL-06).
//! - Further changes of a pending pod wait up to [`START_HOLD`] for the news that the pod runs.
//! - One write per pod at a time, [`MAX_WRITES`] in all; pods take turns, so none starves another.
//! - A terminal phase is in the API before the pod is deleted there, because only the API's phase allows the delete
//!   (DEL-04).
//! - Every write names the uid. A conflict or a 404 changes nothing here: the poller is told to look
//!   ([`WriteFollowUp::Reread`]), and its word, a new copy or none, decides.
//! - A write that the server refused as such is put off long, but only in that form: a later change is sent soon.
//! - A write that got no answer may have been done: the pod stays unsettled, and the repeated write leads to the same
//!   result.

mod forbidden;

use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;

pub use forbidden::{ForbiddenWrites, WriteRightChange};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    status_patch::{self, ApiStatusDigest, PatchDigest, ServerStatusQuirk},
    work_queue::Jitter,
};
use crate::api::{
    MonoTime, PodUid, WallTime,
    pod_status::{PodPhase, PodStatus},
};

/// Writes at a time: as many as there are threads for the network.
pub const MAX_WRITES: usize = 2;
/// Time between two looks at all pods (DEL-01, SM-04).
pub const FULL_PASS: Duration = Duration::from_secs(10);
/// Shortest time between two repairs of one pod: a party that writes into our fields again and again is answered at
/// this pace.
pub const REPAIR_GAP: Duration = Duration::from_secs(10);
/// First delay after a failed write; doubles up to [`MAX_BACK_OFF`], and each is lengthened by up to half.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// Time that a change of a pending pod (its sandbox stands, its address) waits for the news that the pod runs. Most
/// pods run by then, and one request does for both.
pub const START_HOLD: Duration = Duration::from_secs(1);
/// Longest delay after failures of one pod's writes.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// Longest delay after a write that the server refused as such: it will hardly be taken the next time. A different
/// write waits at most [`MAX_BACK_OFF`].
pub const MAX_REFUSED_BACK_OFF: Duration = Duration::from_secs(300);
/// Longest time that a server's `Retry-After` is obeyed.
pub const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Copy of one pod in the API, as far as writing needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiPodCopy {
    /// Status.
    pub status: ApiStatusDigest,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// Set if the pod mirrors a static pod: then it is not deleted here, whatever its status (MIR-03, SM-14).
    pub mirror: bool,
}

/// State of a pod on this node. For a mirror, that of its static pod.
#[derive(Clone, Copy, Debug)]
pub struct LocalPodState<'a> {
    /// The stored status.
    pub status: &'a PodStatus,
    /// Version of the stored status.
    pub version: u64,
    /// Termination is finished: containers gone, volumes unmounted, cgroup removed.
    pub finished: bool,
    /// Containers may still be running (`CouldHaveRunningContainers`).
    pub could_run: bool,
}

/// Source of the [`LocalPodState`] of pods.
pub trait LocalPodStates {
    /// Truth of the pod with this uid in the API; `None` while no status is stored.
    fn local_state(&self, uid: &PodUid) -> Option<LocalPodState<'_>>;
}

/// A request to make.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusWrite {
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

/// Failure of a request that was not done, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// 404, or 409: the uid is another's, or the object moved too fast. 403 as well: a Node authorizer answers so for a
    /// pod that is gone.
    Unsure,
    /// 400, 413, 422: the request is wrong.
    Refused,
    /// 429 or 503 with a time.
    Busy {
        /// Pause that the server asked for.
        retry_after: Option<Duration>,
    },
    /// Anything else, a lost answer above all: the request may have been done.
    Failed,
}

/// The apiserver's word on a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteAnswer {
    /// Success.
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
    /// No answer, or an unknown one: the write may have been done.
    Failed,
}

/// Next step of the caller after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteFollowUp {
    /// No further step.
    Nothing,
    /// Let the poller read the pod.
    Reread,
}

/// Version and state of a [`LocalPodState`] that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StateVersion {
    version: u64,
    finished: bool,
    could_run: bool,
}

impl StateVersion {
    fn of_state(truth: &LocalPodState<'_>) -> Self {
        Self {
            version: truth.version,
            finished: truth.finished,
            could_run: truth.could_run,
        }
    }
}

/// A write that the server refused as such.
#[derive(Clone, Copy, Debug)]
struct RefusedWrite {
    looked: StateVersion,
    /// The API had the pod as one to be deleted.
    deleting: bool,
    /// Earliest time of a different write.
    other_at: MonoTime,
}

#[derive(Clone, Debug)]
struct StatusWriterEntry {
    uid: PodUid,
    api: ApiPodCopy,
    /// Rare, and then equal for all pods of a server.
    quirk: Option<Box<ServerStatusQuirk>>,
    /// The truth that was told last.
    told: Option<StateVersion>,
    /// Set if the API shows the truth that was told.
    settled: bool,
    /// A write is under way.
    busy: bool,
    /// Set if the times of the conditions are to be sent again.
    redated: bool,
    failures: u8,
    /// Answer to the last write that was answered.
    word: WriteAnswer,
    /// Earliest time of the next look.
    not_before: MonoTime,
    /// Refused write that put the next look off; rare.
    refused: Option<Box<RefusedWrite>>,
    /// Earliest time of the next repair of a difference that another party made.
    repair_at: MonoTime,
    /// Truth that is held back for further news, and the end of its wait; 0: none is held back.
    held: Option<StateVersion>,
    held_until: MonoTime,
}

const _: () = assert!(
    size_of::<StatusWriterEntry>() <= 144,
    "one per pod of the API"
);

impl StatusWriterEntry {
    /// Decides the next write for the pod: `None` none, `Some(None)` delete it, else patch it.
    fn next_write(
        &mut self,
        truth: &LocalPodState<'_>,
        now: MonoTime,
        wall: WallTime,
    ) -> Option<Option<status_patch::StatusPatch>> {
        let looked = StateVersion::of_state(truth);
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
            api = api.with_unmatched_conditions();
        }
        let patch = status_patch::compute_status_patch(
            &self.uid,
            &api,
            quirk,
            stored,
            truth.could_run,
            wall,
        );
        if patch.is_none() {
            self.settled = true;
            self.told = Some(looked);
            self.clear_busy();
            return None;
        }
        if self.told.is_some() && !self.api.deleting && is_pending_everywhere(&api, stored) {
            if self.held_until == MonoTime(0) {
                self.held_until = now + START_HOLD;
            }
            if now < self.held_until {
                self.held = Some(looked);
                return None;
            }
        }
        self.clear_busy();
        if self.told == Some(looked) {
            // This truth was sent, so another party has changed the status.
            if now < self.repair_at {
                self.not_before = self.repair_at;
                return None;
            }
            self.repair_at = now + REPAIR_GAP;
        }
        patch.map(Some)
    }
}

/// Returns true if the API and the stored status both say that the pod does not run yet.
fn is_pending_everywhere(api: &ApiStatusDigest, stored: &PodStatus) -> bool {
    api.phase == PodPhase::Pending && stored.phase == PodPhase::Pending
}

#[derive(Debug)]
struct WriteInFlight {
    uid: PodUid,
    looked: StateVersion,
    /// The API had the pod as one to be deleted.
    deleting: bool,
    /// Digest of the patch; `None` for a delete.
    told: Option<PatchDigest>,
    /// Set if the patch sends the corrected times of conditions.
    redated: bool,
}

/// The statuses on their way to the API. See the module.
#[derive(Debug)]
pub struct StatusWriter {
    /// Unsorted.
    entries: Vec<StatusWriterEntry>,
    flights: Vec<WriteInFlight>,
    /// Index at which the next search begins: behind the pod that was served last.
    cursor: usize,
    /// Set if a write may be necessary.
    look: bool,
    pass_at: MonoTime,
    /// End of the pause that the server wants.
    paused_until: MonoTime,
    jitter: Jitter,
    /// Set if a status was found that another party has changed.
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
            pass_at: MonoTime(0),
            paused_until: MonoTime(0),
            jitter: Jitter::new(seed),
            meddled: false,
        }
    }

    /// Takes in the copy of a pod that was read from the API, or found unchanged.
    pub fn on_api_copy(&mut self, uid: &PodUid, api: ApiPodCopy) {
        self.look = true;
        let Some(entry) = self.find_entry(uid) else {
            let busy = self.flights.iter().any(|flight| flight.uid == *uid);
            self.entries.push(StatusWriterEntry {
                uid: uid.clone(),
                api,
                quirk: None,
                told: None,
                settled: false,
                busy,
                redated: false,
                failures: 0,
                word: WriteAnswer::Done,
                not_before: MonoTime(0),
                refused: None,
                repair_at: MonoTime(0),
                held: None,
                held_until: MonoTime(0),
            });
            return;
        };
        entry.settled &= entry.api == api;
        entry.api = api;
    }

    /// Notes that stored statuses have corrected times: the times in the API are wrong.
    pub fn on_times_corrected(&mut self) {
        self.look = true;
        for entry in &mut self.entries {
            (entry.redated, entry.settled) = (true, false);
        }
    }

    /// Forgets a pod that the API does not have any more.
    pub fn on_pod_gone(&mut self, uid: &PodUid) {
        self.entries.retain(|entry| entry.uid != *uid);
    }

    /// Notes that a stored status changed, or the set of containers that may run, or the progress of a pod's end.
    pub const fn on_status_change(&mut self) {
        self.look = true;
    }

    /// The next request, `None` until the next input or [`StatusWriter::next_timeout`]. Drain it after every input.
    pub fn poll_write(
        &mut self,
        truths: &dyn LocalPodStates,
        now: MonoTime,
        wall: WallTime,
    ) -> Option<StatusWrite> {
        if now >= self.pass_at {
            self.pass_at = now + FULL_PASS;
            self.look = true;
        }
        // An entry that was put off is looked at when its time has come.
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
                && let Some(truth) = truths.local_state(&entry.uid)
            {
                entry.hasten_changed_write(StateVersion::of_state(&truth));
            }
            if now < entry.not_before {
                continue;
            }
            entry.not_before = MonoTime(0);
            entry.refused = None;
            let Some(truth) = truths.local_state(&entry.uid) else {
                entry.clear_busy();
                continue;
            };
            let looked = StateVersion::of_state(&truth);
            let is_repair = entry.told == Some(looked);
            let Some(patch) = entry.next_write(&truth, now, wall) else {
                continue;
            };
            self.meddled |= is_repair && patch.is_some();
            self.cursor = index + 1;
            entry.busy = true;
            let (redated, deleting) = (entry.redated, entry.api.deleting);
            let uid = entry.uid.clone();
            let (told, body) = patch.map(|patch| (patch.told, patch.body)).unzip();
            self.flights.push(WriteInFlight {
                uid: uid.clone(),
                looked,
                deleting,
                told,
                redated,
            });
            return Some(match body {
                Some(body) => StatusWrite::Patch { uid, body },
                None => StatusWrite::Delete { uid },
            });
        }
        self.look = false;
        None
    }

    /// Returns true once after another party has changed a status. The node controller does so when it takes the node
    /// for gone.
    pub const fn take_external_change(&mut self) -> bool {
        core::mem::replace(&mut self.meddled, false)
    }

    /// Returns true if a write is under way, or may be necessary at once.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.look || !self.flights.is_empty()
    }

    /// Next time at which [`StatusWriter::poll_write`] may return a write without any input.
    #[must_use]
    pub fn next_timeout(&self, now: MonoTime) -> MonoTime {
        if self.flights.len() >= MAX_WRITES {
            return MonoTime(u64::MAX);
        }
        let next = self
            .entries
            .iter()
            .filter_map(StatusWriterEntry::next_look_at)
            .min();
        let next = next.unwrap_or(self.pass_at).min(self.pass_at);
        let next = if self.look { now } else { next };
        next.max(self.paused_until).max(now)
    }

    /// Takes in the answer to a write of the pod. Returns true if it differs from the answer before.
    pub fn on_write_answer(&mut self, uid: &PodUid, word: WriteAnswer) -> bool {
        let entry = self.find_entry(uid);
        entry.is_some_and(|entry| core::mem::replace(&mut entry.word, word) != word)
    }

    /// Takes in the end of a patch; `Ok`: the object it led to.
    pub fn on_patched(
        &mut self,
        uid: &PodUid,
        answer: Result<ApiPodCopy, WriteFailure>,
        now: MonoTime,
    ) -> WriteFollowUp {
        let Some(flight) = self.take_flight(uid) else {
            return WriteFollowUp::Nothing;
        };
        let Some(entry) = self.find_entry(uid) else {
            return WriteFollowUp::Nothing;
        };
        match answer {
            Ok(api) => {
                // A patch sent before the correction carried the old times.
                entry.redated &= !flight.redated;
                if let Some(told) = flight.told {
                    let quirk = told.quirk_of_answer(entry.quirk.as_deref(), &api.status);
                    entry.quirk = quirk.map(Box::new);
                }
                entry.record_write_success(api, flight.looked);
                WriteFollowUp::Nothing
            }
            Err(failure) => self.handle_write_failure(&flight, failure, now),
        }
    }

    /// Takes in the end of a delete; `Ok`: the object if it is still there, kept by finalizers.
    pub fn on_deleted(
        &mut self,
        uid: &PodUid,
        answer: Result<Option<ApiPodCopy>, WriteFailure>,
        now: MonoTime,
    ) -> WriteFollowUp {
        let Some(flight) = self.take_flight(uid) else {
            return WriteFollowUp::Nothing;
        };
        match answer {
            Ok(None) => {
                self.on_pod_gone(uid);
                WriteFollowUp::Nothing
            }
            Ok(Some(api)) => {
                if let Some(entry) = self.find_entry(uid) {
                    entry.record_write_success(api, flight.looked);
                    // Nothing more can be done now; the delete is tried again when the object changes.
                    entry.settled = true;
                }
                WriteFollowUp::Nothing
            }
            Err(failure) => self.handle_write_failure(&flight, failure, now),
        }
    }

    fn find_entry(&mut self, uid: &PodUid) -> Option<&mut StatusWriterEntry> {
        self.entries.iter_mut().find(|entry| entry.uid == *uid)
    }

    /// Takes the pod's request off the list.
    fn take_flight(&mut self, uid: &PodUid) -> Option<WriteInFlight> {
        self.look = true;
        let at = self.flights.iter().position(|flight| flight.uid == *uid)?;
        let flight = self.flights.swap_remove(at);
        if let Some(entry) = self.find_entry(uid) {
            entry.busy = false;
        }
        Some(flight)
    }

    fn handle_write_failure(
        &mut self,
        flight: &WriteInFlight,
        failure: WriteFailure,
        now: MonoTime,
    ) -> WriteFollowUp {
        let uid = &flight.uid;
        let failures = self.find_entry(uid).map_or(0, |entry| entry.failures);
        let limit = match failure {
            WriteFailure::Refused => MAX_REFUSED_BACK_OFF,
            WriteFailure::Unsure | WriteFailure::Busy { .. } | WriteFailure::Failed => MAX_BACK_OFF,
        };
        let base = BACK_OFF.saturating_mul(1 << failures.min(9)).min(limit);
        let wait = self.jitter.stretch_delay(base);
        if let WriteFailure::Busy { retry_after } = failure {
            let pause = retry_after.unwrap_or(wait).clamp(BACK_OFF, MAX_PAUSE);
            self.paused_until = now + pause;
            return WriteFollowUp::Nothing;
        }
        if let Some(entry) = self.find_entry(uid) {
            entry.failures = entry.failures.saturating_add(1);
            entry.not_before = now + wait;
            entry.settled = false;
            entry.refused = (failure == WriteFailure::Refused).then(|| {
                Box::new(RefusedWrite {
                    looked: flight.looked,
                    deleting: flight.deleting,
                    other_at: now + wait.min(MAX_BACK_OFF),
                })
            });
        }
        match failure {
            WriteFailure::Unsure => WriteFollowUp::Reread,
            WriteFailure::Refused | WriteFailure::Busy { .. } | WriteFailure::Failed => {
                WriteFollowUp::Nothing
            }
        }
    }
}

impl StatusWriterEntry {
    fn clear_busy(&mut self) {
        self.held = None;
        self.held_until = MonoTime(0);
    }

    /// Moves the next look forward if the write would differ from the refused one.
    fn hasten_changed_write(&mut self, looked: StateVersion) {
        let deleting = self.api.deleting;
        let other = |r: &RefusedWrite| r.looked != looked || r.deleting != deleting;
        if let Some(refused) = self.refused.take_if(|refused| other(refused)) {
            self.not_before = self.not_before.min(refused.other_at);
        }
    }

    /// Time of the next look without any input.
    fn next_look_at(&self) -> Option<MonoTime> {
        let times = [self.not_before, self.held_until];
        let put_off = times.into_iter().filter(|time| time.0 > 0).min();
        put_off.filter(|_| !self.busy)
    }

    fn is_due(&self, now: MonoTime) -> bool {
        self.next_look_at().is_some_and(|next| next <= now)
    }

    fn record_write_success(&mut self, api: ApiPodCopy, looked: StateVersion) {
        self.api = api;
        self.told = Some(looked);
        self.settled = false;
        self.failures = 0;
        self.not_before = MonoTime(0);
        self.refused = None;
    }
}

#[cfg(test)]
mod tests;
