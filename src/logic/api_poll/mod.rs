//! Poller for the pods of this node at the apiserver: times of lists, pods to read again, pods that are certainly gone.
//!
//! The poll is the truth, the doorbell (one watch) only makes the next poll come sooner; with it cut off the node is slower,
//! never wrong. [`ApiPoll`] decides and remembers; the caller of [`ApiPoll::poll`] makes the requests and reports their
//! results.
//!
//! ```text
//!            list (metadata)                     GET                          mux
//!  due ──▶ items: uid, version ──differs──▶ object, version ──Deliver──▶ amend (one pod)
//!              │                              │ 404, other uid ─Ask::Gone▶ amend (gone)
//!              └─end─▶ absent? ───────────────┘
//!                        all settled ────────────────────Ask::Complete──▶ merge (Known …): the source is ready
//! ```
//!
//! - **Versions are compared for equality only**, as digests: after an etcd restore they go back, and a node that refuses
//!   older ones is blind for ever. Worse, they are given out again, so that equal ones may mean different objects: a list
//!   whose own version is below one that was seen before it began has every pod read anew (only then does order count,
//!   and only to read more), and so has an item that is to be deleted, or lives, against what is known of that version.
//! - **Records are read once** after the first list, whatever their versions: the store may have gone back while no agent
//!   looked ([`ApiPoll::restore`]).
//! - **No pod is removed because a list lacks it.** A complete list only raises the question; a `GET` answers it. A
//!   list that failed half-way still counts for the pods that it showed: their versions lead to `GET`s like rings of
//!   the doorbell (SRC-30).
//! - **Our own writes cost no read**: the answer to a write is the object, so it counts as a read. If another client
//!   wrote in between, the answer differs from the delivered object, and is delivered ([`DeliveryVerdict::Deliver`]). While a
//!   write is under way its pod is not read, for the echo on the doorbell often comes before the answer.
//! - **An answer may be older than what is known meanwhile**: a `GET` that a write of our own overtook is thrown away.
//! - **Terminal pods** are not in the list (its selector leaves them out: finished Jobs must not fill the table). Those
//!   held stay held until the API no longer has them. The doorbell tells their end: it selects all phases. A list of
//!   all phases finds what the doorbell missed. It is made at the start and every [`SCAN_INTERVAL`]. After a break,
//!   after a list between two watches, and without a doorbell, it is made every [`PollIntervals::full`], or every
//!   [`SCAN_LISTS`] lists while pods are held that have ended. It also finds pods that ended and wait for their
//!   deletion (SM-13): an earlier agent, an outage or a store that went back in time may leave them. It finds mirrors
//!   that show an end, too: they have to go with their static pods.
//! - **403 to a `GET`** is the Node authorizer's answer for a pod that is gone: the next list of all phases settles it.
//!
//! Bounds, and what happens beyond them:
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | pods held | capacity given at the start, [`MAX_FINISHED`] more | [`PollRequest::Refuse`]: the pod is told `OutOfpods` |
//! | refusals that wait | [`MAX_REFUSALS`] | the next list brings the others again |
//! | finished pods held | [`MAX_FINISHED`] | the one that ended first goes: its logs and directory are removed |
//! | `GET`s at a time | [`MAX_GETS`] | they wait their turn |
//! | pods to read one by one | [`MAX_SINGLE_READS`] | one list of whole objects instead |
//! | tries that hold up the first snapshot | [`TRIES`] | it comes without the pod, which is no orphan
//! ([`ApiPoll::unread_pods`]) |

use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::time::Duration;

use serde_json::Value;

use super::{digest, fnv::fnv1a, work_queue::Jitter};
use crate::api::{MonoTime, PodUid, pod::CONFIG_MIRROR};

mod answers;
mod bell;
mod slot;

use bell::DoorbellState;
pub use bell::{DoorbellEnd, PodWatchEvent, PodWatchEventKind};
use slot::PodPollSlot;

/// Finished pods that are held so that their logs last until the API forgets them.
pub const MAX_FINISHED: usize = 64;
/// Refusals that wait to be fetched.
pub const MAX_REFUSALS: usize = 8;
/// `GET`s at a time: as many as there are threads for the network.
pub const MAX_GETS: usize = 2;
/// Pods to read above which one list of whole objects is cheaper.
pub const MAX_SINGLE_READS: usize = 20;
/// Tries to read a pod after which the first snapshot no longer waits for it.
pub const TRIES: u8 = 3;
/// Shortest time between the starts of two lists.
pub const MIN_LIST_GAP: Duration = Duration::from_secs(1);
/// Time between two lists of whole objects: a pod that cannot be read must not have all others read too often.
pub const OBJECTS_GAP: Duration = Duration::from_secs(10);
/// Time between two lists of all phases.
pub const SCAN_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// Number of lists between two lists of all phases, without a reliable doorbell, while pods are held that have ended.
pub const SCAN_LISTS: u32 = 6;
/// First delay after a failure; doubles up to [`MAX_BACK_OFF`], and each is lengthened by up to half.
pub const BACK_OFF: Duration = Duration::from_secs(1);
/// Longest delay after failures, and the longest that a server's `Retry-After` is obeyed.
pub const MAX_BACK_OFF: Duration = Duration::from_secs(60);

/// Time between requests to the apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollIntervals {
    /// Between two lists while no doorbell is open.
    pub list: Duration,
    /// Between two lists while a doorbell is open.
    pub full: Duration,
    /// Set if a doorbell may be opened.
    pub doorbell: bool,
}

impl PollIntervals {
    /// Paces for ordinary links.
    pub const NORMAL: Self = Self {
        list: Duration::from_secs(10),
        full: Duration::from_secs(5 * 60),
        doorbell: true,
    };
    /// Paces for links whose bytes cost money.
    pub const METERED: Self = Self {
        list: Duration::from_secs(60),
        ..Self::NORMAL
    };
}

/// Kind of a list: the pods that it selects, and metadata or whole objects. All are quorum reads, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodListKind {
    /// Metadata of those that are not in a terminal phase.
    Live,
    /// Whole objects of pods that are not in a terminal phase.
    Objects,
    /// Metadata of pods in any phase.
    All,
}

/// Names one `GET`; its answer comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetTicket {
    index: usize,
    generation: u32,
}

/// Request of the poller to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollRequest {
    /// List; each item comes back ([`ApiPoll::on_list_item`], [`ApiPoll::on_list_object`]), and the end.
    List(PodListKind),
    /// Read one pod, a quorum read; ends with [`ApiPoll::on_read`] or [`ApiPoll::on_read_failed`], each time.
    Get {
        /// To be given back.
        ticket: GetTicket,
        /// Namespace.
        namespace: Box<str>,
        /// Name.
        name: Box<str>,
    },
    /// Open the doorbell from this version.
    Watch {
        /// `resourceVersion`.
        from: Box<str>,
    },
    /// The API has this pod no more: amend the mux, drop its status.
    Gone(PodUid),
    /// There is no room for this pod: it is to end as `Failed`, `OutOfpods`.
    Refuse(PodListItem),
    /// All that the last list says is settled: merge [`ApiPoll::delivered_pods`] as a full snapshot.
    Complete,
}

/// Pod as a list of metadata shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodListItem {
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// UID.
    pub uid: PodUid,
    /// `resourceVersion`.
    pub version: Box<str>,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// Set if the pod mirrors a static pod. Of use in lists alone.
    pub mirror: bool,
}

/// Part that is kept of an object that was read, or that answered a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodObjectSummary {
    version: u64,
    /// The version as a number; 0 if it is none.
    number: u64,
    semantic: u64,
    foreign: u64,
    /// Set if the pod's phase is terminal.
    pub terminal: bool,
    /// `deletionTimestamp` is set.
    pub deleting: bool,
    /// Set if the pod mirrors a static pod.
    pub mirror: bool,
}

impl PodObjectSummary {
    /// Takes from a pod's raw object the part to keep.
    #[must_use]
    pub fn from_raw_object(raw: &Value) -> Self {
        let metadata = &raw["metadata"];
        let text = metadata["resourceVersion"].as_str().unwrap_or("");
        Self {
            version: version_digest(text),
            number: version_number(text),
            semantic: digest::semantic_digest(raw),
            foreign: digest::foreign_status_digest(raw),
            terminal: matches!(
                raw["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            ),
            deleting: !metadata["deletionTimestamp"].is_null(),
            mirror: !metadata["annotations"][CONFIG_MIRROR].is_null(),
        }
    }
}

/// Decision about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum DeliveryVerdict {
    /// Amend the mux with it, after what is gone ([`ApiPoll::next_gone_pod`]).
    Deliver,
    /// No change since the last delivery.
    Same,
    /// The object is overtaken, or of a pod that is not handled here; it must not be used.
    Ignore,
}

/// Reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiRequestFailure {
    /// No answer, 5xx, 429, a cut or unreadable body of a list: the next try may go well.
    Server {
        /// Delay that the server asked for.
        retry_after: Option<Duration>,
    },
    /// 403, of a `GET`.
    Forbidden,
    /// 404 with a `Status` of reason `NotFound`, of a `GET`.
    NotFound,
    /// The object is over-long or no pod.
    Unusable,
}

/// Digest of a `resourceVersion`; never 0, which stands for none.
fn version_digest(text: &str) -> u64 {
    fnv1a(text.bytes()).max(1)
}

/// A `resourceVersion` as a number, 0 if it is none: a lower bound for versions that are given out later.
fn version_number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// State of the poller. The module's docs give its rules.
#[derive(Debug)]
pub struct ApiPoll {
    paces: PollIntervals,
    slots: Vec<PodPollSlot>,
    /// Most pods in `slots`, finished ones not counted.
    capacity: usize,
    gone: VecDeque<PodUid>,
    refused: VecDeque<PodListItem>,
    /// The list under way.
    listing: Option<PodListKind>,
    list_started: Option<MonoTime>,
    /// Greatest version seen as a number, now and when the list under way began.
    highest: u64,
    list_floor: u64,
    /// The version of the last list was below `list_floor`.
    went_back: bool,
    /// Time when the known pods were last proved right: by a list, or by a doorbell that closed without news.
    proved: Option<MonoTime>,
    /// A list is wanted whatever the pace.
    wanted: bool,
    /// There are pods from records, and no list has ended since.
    recorded: bool,
    /// A list has ended whose questions are not settled.
    complete_due: bool,
    /// [`PollRequest::Complete`] was returned at least once.
    completed: bool,
    /// End of the last list of all phases.
    scanned: Option<MonoTime>,
    scan_wanted: bool,
    /// Since the last list of all phases, a ring of the doorbell for a pod in a terminal phase may have been missed.
    unheard: bool,
    objects_after: MonoTime,
    gets: usize,
    /// Slot where the next search for a pod to read begins.
    cursor: usize,
    failures: u32,
    retry_at: MonoTime,
    bell: DoorbellState,
    jitter: Jitter,
}

impl ApiPoll {
    /// A poller for at most `capacity` pods that are not finished; `seed` decides the spread of delays.
    #[must_use]
    pub fn new(paces: PollIntervals, capacity: usize, seed: u64) -> Self {
        Self {
            paces,
            slots: Vec::new(),
            capacity,
            gone: VecDeque::new(),
            refused: VecDeque::new(),
            listing: None,
            list_started: None,
            highest: 0,
            list_floor: 0,
            went_back: false,
            proved: None,
            wanted: false,
            recorded: false,
            complete_due: false,
            completed: false,
            scanned: None,
            scan_wanted: false,
            unheard: false,
            objects_after: MonoTime(0),
            gets: 0,
            cursor: 0,
            failures: 0,
            retry_at: MonoTime(0),
            bell: DoorbellState::default(),
            jitter: Jitter::new(seed),
        }
    }

    /// Takes in a pod that an earlier agent has recorded. It counts as delivered, and is read once after the first
    /// list.
    pub fn restore(&mut self, item: &PodListItem, sight: PodObjectSummary, now: MonoTime) {
        self.on_pod_made(item, sight, now);
        self.recorded = true;
    }

    /// Takes in a pod that was made here, or that was in the way of one: it counts as read and delivered. If it is
    /// removed before any list has shown it, the next list tells.
    pub fn on_pod_made(&mut self, item: &PodListItem, sight: PodObjectSummary, now: MonoTime) {
        if let Some(index) = self.find_or_add_slot(item, now) {
            self.slots[index].take_read_object(sight, now);
        }
    }

    /// The next thing to do, `None` until the next input or [`ApiPoll::next_timeout`]. Drain it after every input.
    pub fn poll(&mut self, now: MonoTime) -> Option<PollRequest> {
        if let Some(uid) = self.next_gone_pod() {
            return Some(PollRequest::Gone(uid));
        }
        if let Some(item) = self.refused.pop_front() {
            return Some(PollRequest::Refuse(item));
        }
        if self.complete_due && !self.slots.iter().any(PodPollSlot::is_open_question) {
            self.complete_due = false;
            self.completed = true;
            return Some(PollRequest::Complete);
        }
        if now < self.retry_at {
            return None;
        }
        if let Some(list) = self.due_list(now) {
            self.begin_list(list, now);
            return Some(PollRequest::List(list));
        }
        if let Some(ask) = self.next_get(now) {
            return Some(ask);
        }
        if self.paces.doorbell && self.is_settled() && self.bell.may_open_watch(now) {
            return self
                .bell
                .begin_watch(now)
                .map(|from| PollRequest::Watch { from });
        }
        None
    }

    /// The last list is as good as any that could be made now.
    fn is_settled(&self) -> bool {
        let listing = !matches!(self.listing, None | Some(PodListKind::All));
        self.proved.is_some() && !self.wanted && !listing
    }

    /// Takes out the pod of the next [`PollRequest::Gone`]. To be drained before an object is delivered: if one pod has taken
    /// the name of another, it comes after the other's end (SRC-07).
    pub fn next_gone_pod(&mut self) -> Option<PodUid> {
        self.gone.pop_front()
    }

    /// Earliest time at which [`ApiPoll::poll`] has a request without new input.
    #[must_use]
    pub fn next_timeout(&self, now: MonoTime) -> MonoTime {
        let never = MonoTime(u64::MAX);
        if !self.gone.is_empty() || !self.refused.is_empty() {
            return now;
        }
        let list = match self.listing {
            Some(_) => never,
            None => self
                .list_due_at(PodListKind::Live)
                .min(self.list_due_at(PodListKind::All))
                .max(self.list_gap_ends()),
        };
        let objects = self.list_due_at(PodListKind::Objects);
        let read = if self.listing == Some(PodListKind::Objects) {
            never
        } else if objects <= now {
            // Pods are no longer read one by one, and the list waits for the last of these `GET`s.
            if self.listing.is_none() && self.gets == 0 {
                self.list_gap_ends()
            } else {
                never
            }
        } else if self.gets < MAX_GETS {
            let reads = self.slots.iter().filter(|slot| slot.wants_read());
            reads.map(|slot| slot.retry_at).min().unwrap_or(never)
        } else {
            never
        };
        let bell = if self.paces.doorbell && self.is_settled() {
            self.bell.next_open_time()
        } else {
            never
        };
        list.min(read).min(bell).max(self.retry_at).max(now)
    }

    /// Time between two lists while no doorbell is open, from now on.
    pub const fn set_list_interval(&mut self, time: Duration) {
        self.paces.list = time;
    }

    /// Pods that were delivered and are not gone: a full snapshot names them.
    pub fn delivered_pods(&self) -> impl Iterator<Item = PodUid> {
        self.slots
            .iter()
            .filter(|slot| slot.is_held())
            .map(|slot| slot.uid().into())
    }

    /// Pods that the API has and that could not be read yet: their running containers are no orphans.
    pub fn unread_pods(&self) -> impl Iterator<Item = &str> {
        let live = |slot: &&PodPollSlot| slot.is_used() && !slot.is_held();
        self.slots.iter().filter(live).map(PodPollSlot::uid)
    }

    /// Returns true if the pod was delivered, and is not gone.
    #[must_use]
    pub fn is_delivered(&self, uid: &PodUid) -> bool {
        self.find_slot(uid)
            .is_some_and(|index| self.slots[index].is_held())
    }

    /// Returns true if since the start a complete list was settled, and [`PollRequest::Complete`] was returned.
    #[must_use]
    pub const fn has_completed(&self) -> bool {
        self.completed
    }

    /// Namespace and name of a pod, for writing its status.
    #[must_use]
    pub fn namespace_and_name(&self, uid: &PodUid) -> Option<(&str, &str)> {
        self.find_slot(uid)
            .map(|index| self.slots[index].namespace_and_name())
    }

    /// Time from which on a list of this kind is due.
    fn list_due_at(&self, list: PodListKind) -> MonoTime {
        let never = MonoTime(u64::MAX);
        match list {
            PodListKind::Live if self.wanted => MonoTime(0),
            PodListKind::Live => self.proved.map_or(MonoTime(0), |proved| {
                proved
                    + if self.bell.is_open() {
                        self.paces.full
                    } else {
                        self.paces.list
                    }
            }),
            PodListKind::Objects => {
                let many = self.slots.iter().filter(|s| s.wants_read()).count() > MAX_SINGLE_READS;
                if many { self.objects_after } else { never }
            }
            PodListKind::All if self.scan_wanted => MonoTime(0),
            PodListKind::All => match (self.proved, self.scanned) {
                (None, _) => never,
                (Some(_), None) => MonoTime(0),
                (Some(_), Some(at)) if self.unheard || !self.paces.doorbell => {
                    let ended = self.slots.iter().any(PodPollSlot::has_ended);
                    let soon = self.paces.list * SCAN_LISTS;
                    at + if ended { soon } else { self.paces.full }
                }
                (Some(_), Some(at)) => at + SCAN_INTERVAL,
            },
        }
    }

    fn list_gap_ends(&self) -> MonoTime {
        self.list_started
            .map_or(MonoTime(0), |at| at + MIN_LIST_GAP)
    }

    fn due_list(&self, now: MonoTime) -> Option<PodListKind> {
        if self.listing.is_some() || now < self.list_gap_ends() {
            return None;
        }
        // Whole objects also say which pods there are; a pod is not read twice at a time.
        [PodListKind::Objects, PodListKind::Live, PodListKind::All]
            .into_iter()
            .find(|list| {
                self.list_due_at(*list) <= now && (*list != PodListKind::Objects || self.gets == 0)
            })
    }

    fn begin_list(&mut self, list: PodListKind, now: MonoTime) {
        self.listing = Some(list);
        self.list_started = Some(now);
        self.list_floor = self.highest;
        match list {
            PodListKind::Live | PodListKind::Objects => self.wanted = false,
            PodListKind::All => {
                self.scan_wanted = false;
                self.unheard = false;
            }
        }
        self.slots.iter_mut().for_each(PodPollSlot::begin_list);
    }

    fn next_get(&mut self, now: MonoTime) -> Option<PollRequest> {
        if self.gets >= MAX_GETS || self.listing == Some(PodListKind::Objects) {
            return None;
        }
        let many = self.list_due_at(PodListKind::Objects) <= now;
        if many {
            return None;
        }
        let count = self.slots.len();
        let index = (0..count)
            .map(|step| (self.cursor + step) % count)
            .find(|&index| {
                let slot = &self.slots[index];
                slot.wants_read() && slot.retry_at <= now
            })?;
        self.cursor = index + 1;
        self.gets += 1;
        let slot = &mut self.slots[index];
        slot.begin_get();
        let (namespace, name) = slot.namespace_and_name();
        Some(PollRequest::Get {
            ticket: GetTicket {
                index,
                generation: slot.generation,
            },
            namespace: namespace.into(),
            name: name.into(),
        })
    }

    fn find_slot(&self, uid: &str) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.is_used() && slot.uid() == uid)
    }

    fn finished_count(&self) -> usize {
        self.slots.iter().filter(|s| s.is_finished()).count()
    }

    fn find_or_add_slot(&mut self, item: &PodListItem, now: MonoTime) -> Option<usize> {
        if let Some(index) = self.find_slot(&item.uid) {
            return Some(index);
        }
        let used = self.slots.iter().filter(|slot| slot.is_used()).count();
        if used.saturating_sub(self.finished_count()) >= self.capacity {
            return None;
        }
        let index = match self.slots.iter().position(|slot| !slot.is_used()) {
            Some(free) => free,
            None => {
                self.slots.push(PodPollSlot::default());
                self.slots.len() - 1
            }
        };
        self.slots[index].occupy_with(item, now);
        Some(index)
    }

    fn free_slot(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot.is_held() {
            self.gone.push_back(slot.uid().into());
        }
        slot.release();
    }

    fn record_refused_pod(&mut self, item: &PodListItem) {
        if self.refused.len() < MAX_REFUSALS && !self.refused.iter().any(|r| r.uid == item.uid) {
            self.refused.push_back(item.clone());
        }
    }

    /// Frees finished pods beyond [`MAX_FINISHED`], the one that ended first before the others.
    fn limit_finished(&mut self) {
        while self.finished_count() > MAX_FINISHED {
            let all = self.slots.iter().enumerate();
            let oldest = all
                .filter(|(_, slot)| slot.is_finished())
                .min_by_key(|(_, slot)| slot.since);
            match oldest.map(|(index, _)| index) {
                Some(index) => self.free_slot(index),
                None => return,
            }
        }
    }

    fn record_success(&mut self) {
        self.failures = 0;
        self.retry_at = MonoTime(0);
    }

    fn record_failure(&mut self, retry_after: Option<Duration>, now: MonoTime) {
        let base = BACK_OFF
            .saturating_mul(1 << self.failures.min(6))
            .min(MAX_BACK_OFF);
        self.failures = self.failures.saturating_add(1);
        let asked = retry_after.unwrap_or_default().min(MAX_BACK_OFF);
        self.retry_at = now + self.jitter.stretch_delay(base).max(asked);
    }
}

#[cfg(test)]
mod tests;
