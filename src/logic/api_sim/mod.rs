//! Poller, mux, status writer and status cache against an apiserver that fails in every way, under a seeded schedule.
//!
//! Each schedule is a sequence of random moves: users create, edit and delete, the control plane writes into statuses, pods
//! go their ways, requests are processed, answered, lost before or after they were processed, lists are cut or stale, the
//! doorbell loses, breaks, lies; the agent restarts with or without its disk; the store goes back to an older state. After
//! every move the rules hold that never may be broken (in [`crate::testing::server`] and here). Then faults end, and all must converge.

use alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use serde_json::{Value, json};

use crate::api::received::{ReceivedPod, SnapshotEntry};
use crate::api::{MonoTime, PodUid, WallTime};
use crate::api_poll::{
    self, ApiPoll, DoorbellEnd, GetTicket, PodListKind, PodObjectSummary, PollIntervals,
    PollRequest,
};
use crate::mux::{MergeResult, PodSource, SourceMux, SourceOperation};
use crate::pod_kind::is_mirror;
use crate::status_cache::StatusCache;
use crate::status_patch::ApiStatusDigest;
use crate::status_writer::{self, ApiPodCopy, StatusWrite, StatusWriter};
use crate::testing::Random;
use crate::{api_pod, status_writer::LocalPodStates as _};

mod network;
mod node;

use crate::testing::server::{Key, Server, item_of, uid_of};
use node::{Node, Stage};

/// Number of moves with faults in one schedule.
const MOVES: usize = 250;
/// Most moves without faults until all must have converged.
const SETTLING: usize = 2_000;
/// Names of pods: few, so that names are used again.
const NAMES: u64 = 6;

/// A request under way.
enum Request {
    List(PodListKind),
    Get(GetTicket, Key),
    Patch(PodUid, Key, Value),
    Delete(PodUid, Key),
}

/// Answer of the server that is on its way to the agent.
enum Answer {
    List {
        objects: Vec<Value>,
        version: String,
        cut: bool,
    },
    Object(Value),
    Gone,
    Refused,
    Forbidden,
}

struct Flight {
    request: Request,
    answer: Option<Answer>,
}

struct World {
    random: Random,
    faults: bool,
    now: MonoTime,
    server: Server,
    node: Node,
    /// Pods of the mux, as the sync loop knows them.
    config: BTreeSet<PodUid>,
    /// Records on disk.
    records: BTreeMap<PodUid, Value>,
    mux: SourceMux,
    poll: ApiPoll,
    writer: StatusWriter,
    flights: Vec<Flight>,
    /// Place of an open watch in the server's log.
    watch: Option<usize>,
}

fn copy_of(received: &ReceivedPod) -> ApiPodCopy {
    ApiPodCopy {
        status: ApiStatusDigest::from_status(&received.pod.status),
        deleting: received.pod.metadata.deletion_timestamp.is_some(),
        mirror: is_mirror(&received.pod),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let doorbell = !random.one_in(4);
        let paces = PollIntervals {
            doorbell,
            ..PollIntervals::NORMAL
        };
        Self {
            faults: true,
            now: MonoTime(0),
            server: Server::default(),
            node: Node::default(),
            config: BTreeSet::new(),
            records: BTreeMap::new(),
            mux: SourceMux::new(&[PodSource::Api]),
            poll: ApiPoll::new(paces, 20, seed),
            writer: StatusWriter::new(seed),
            flights: Vec::new(),
            watch: None,
            random,
        }
    }

    fn wall(&self) -> WallTime {
        WallTime(i64::try_from(self.now.0).expect("small") * 1_000_000)
    }

    fn any_key(&mut self) -> Key {
        ("ns".into(), format!("p{}", self.random.below(NAMES)))
    }

    /// Makes a random move.
    fn step(&mut self) {
        match self.random.below(if self.faults { 30 } else { 20 }) {
            0..=9 => self.network(),
            10..=12 => self.pod(),
            13..=14 => self.ring(),
            15..=16 => self.housekeeping(),
            17..=19 => self.pass_time(),
            20..=23 => self.user(),
            24 => self.server.keep_state(),
            25 => self.break_bell(),
            26 => self.network(),
            27 if self.random.one_in(10) => self.restart_agent(),
            28 if self.random.one_in(20) => {
                self.restore_store();
            }
            _ => self.pod(),
        }
        self.drain();
    }

    /// Sends all requests that the agent has now.
    fn drain(&mut self) {
        while let Some(ask) = self.poll.poll(self.now) {
            match ask {
                PollRequest::List(list) => self.send(Request::List(list)),
                PollRequest::Get {
                    ticket,
                    namespace,
                    name,
                } => {
                    self.send(Request::Get(ticket, (namespace.into(), name.into())));
                }
                PollRequest::Watch { from } => {
                    let from: u64 = from.parse().expect("a version");
                    let place = self.server.log.iter().position(|(v, _)| *v > from);
                    self.watch = Some(place.unwrap_or(self.server.log.len()));
                }
                PollRequest::Gone(uid) => {
                    self.writer.on_pod_gone(&uid);
                    let merged =
                        self.mux
                            .merge_partial(PodSource::Api, vec![], &[uid], self.wall());
                    self.take(merged);
                }
                PollRequest::Refuse(item) => panic!("{item:?}"),
                PollRequest::Complete => {
                    let known = self
                        .poll
                        .delivered_pods()
                        .map(SnapshotEntry::Known)
                        .collect();
                    let merged = self.mux.merge_snapshot(PodSource::Api, known, self.wall());
                    assert!(merged.unknown.is_empty(), "{merged:?}");
                    self.take(merged);
                }
            }
        }
        while let Some(write) = self.writer.poll_write(&self.node, self.now, self.wall()) {
            let (StatusWrite::Patch { uid, .. } | StatusWrite::Delete { uid }) = &write;
            let (namespace, name) = self
                .poll
                .namespace_and_name(uid)
                .expect("the poller knows it");
            let key = (namespace.to_owned(), name.to_owned());
            self.poll.on_write_started(uid);
            let truth = self.node.local_state(uid).expect("something to tell");
            match write {
                StatusWrite::Patch { uid, body } => {
                    let ends = matches!(
                        body["status"]["phase"].as_str(),
                        Some("Failed" | "Succeeded")
                    );
                    let told = self
                        .server
                        .find(&uid)
                        .is_some_and(|o| o["status"]["phase"] == body["status"]["phase"]);
                    assert!(!ends || !truth.could_run || told, "told too soon: {body}");
                    self.send(Request::Patch(uid, key, body));
                }
                StatusWrite::Delete { uid } => {
                    assert!(
                        truth.finished && !truth.could_run,
                        "deleted too soon: {uid}"
                    );
                    self.send(Request::Delete(uid, key));
                }
            }
        }
        assert!(self.flights.len() <= 1 + api_poll::MAX_GETS + status_writer::MAX_WRITES);
    }

    /// Carries out operations of the mux, as the sync loop does.
    fn take(&mut self, merged: MergeResult) {
        for op in merged.ops {
            match op {
                SourceOperation::Remove(uids) => {
                    for uid in uids {
                        let gone = self.server.find(&uid).is_none()
                            || self.server.removed.contains(uid.as_str());
                        assert!(gone, "{uid} was removed and is there");
                        self.config.remove(&uid);
                        self.records.remove(&uid);
                        self.node.pods.remove(&uid);
                        self.node.statuses.remove(&uid);
                    }
                }
                SourceOperation::Add(pods)
                | SourceOperation::Update(pods)
                | SourceOperation::Delete(pods)
                | SourceOperation::Reconcile(pods) => {
                    for received in pods {
                        let uid = received.pod.metadata.uid.clone();
                        self.records.insert(uid.clone(), received.raw);
                        self.node.configure(received.pod, self.wall());
                        self.config.insert(uid);
                    }
                }
            }
        }
        self.mux.mark_handled(PodSource::Api);
        self.writer.on_status_change();
    }

    fn pod(&mut self) {
        let count = u64::try_from(self.node.pods.len()).expect("few");
        if count == 0 {
            return;
        }
        let index = usize::try_from(self.random.below(count)).expect("few");
        let uid = self.node.pods.keys().nth(index).expect("there").clone();
        if self.config.contains(&uid) {
            let now = self.wall();
            self.node.step(&uid, self.faults, &mut self.random, now);
            self.writer.on_status_change();
        }
    }

    /// Ends pods that are not configured, once that is certain.
    fn housekeeping(&mut self) {
        if !self.mux.all_sources_ready() {
            return;
        }
        let unread: Vec<PodUid> = self.poll.unread_pods().map(PodUid::new).collect();
        let orphans: Vec<PodUid> = self
            .node
            .pods
            .keys()
            .filter(|uid| !self.config.contains(*uid) && !unread.contains(uid))
            .cloned()
            .collect();
        for uid in orphans {
            let local = &self.node.pods[&uid];
            let there = self
                .server
                .find(&uid)
                .filter(|_| !self.server.removed.contains(uid.as_str()));
            let ended = there.is_some_and(|o| {
                matches!(o["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
            });
            // A pod that had ended may be back in a restored store, a moment before the agent hears of it.
            let over = ended || local.stage == Stage::Finished || self.server.restored;
            assert!(there.is_none() || over, "{uid} is no orphan");
            self.node.pods.remove(&uid);
        }
        let config = &self.config;
        self.node.statuses.retain(|uid, _| config.contains(uid));
    }

    fn ring(&mut self) {
        let Some(place) = self.watch else {
            return;
        };
        let Some((_, ring)) = self.server.log.get(place) else {
            if self.random.one_in(4) {
                self.watch = None;
                self.poll.on_watch_end(DoorbellEnd::Clean, self.now);
            }
            return;
        };
        self.watch = Some(place + 1);
        if self.faults && self.random.one_in(10) {
            self.poll.on_unknown_watch_event();
        } else {
            self.poll.on_watch_event(ring, self.now);
        }
    }

    fn break_bell(&mut self) {
        if self.watch.take().is_some() {
            self.poll.on_watch_end(DoorbellEnd::Broken, self.now);
        }
    }

    fn pass_time(&mut self) {
        let next = self.poll.next_timeout(self.now);
        let next = next.min(self.writer.next_timeout(self.now));
        // Some things are found only by the list of all phases, every half hour.
        let at_most = if self.faults { 2_000 } else { 90_000 };
        self.now = if self.random.one_in(2) {
            MonoTime(self.now.0 + self.random.below(at_most))
        } else {
            next.min(MonoTime(self.now.0 + 30_000))
        };
    }

    /// Makes a random change as users and the control plane do.
    fn user(&mut self) {
        if self.server.is_fresh {
            return;
        }
        let key = self.any_key();
        let (now, kind) = (self.wall(), self.random.below(10));
        let object = self.server.objects.get(&key).cloned();
        match (kind, object) {
            (0..=3, _) => {
                let never = self.random.one_in(2);
                self.server.create(&key.1, never);
            }
            (4..=5, _) => self.server.delete_gracefully(&key, now, 30),
            (6, _) => self.server.remove(&key),
            (7, Some(mut object)) => {
                object["metadata"]["labels"] = json!({"n": self.now.0.to_string()});
                self.server.put(key, object);
            }
            (8, Some(mut object)) if object["status"]["conditions"].is_array() => {
                // The node controller after a link outage.
                let all = object["status"]["conditions"]
                    .as_array_mut()
                    .expect("a list");
                all.retain(|c| c["type"] != "Ready");
                all.push(json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"}));
                self.server.put(key, object);
            }
            (9, Some(mut object)) if object["status"]["conditions"].is_array() => {
                let all = object["status"]["conditions"]
                    .as_array_mut()
                    .expect("a list");
                all.retain(|c| c["type"] != "gate");
                all.push(
                    json!({"type": "gate", "status": "True", "message": self.now.0.to_string()}),
                );
                self.server.put(key, object);
            }
            _ => {}
        }
    }

    /// Sets the store back to an older state; every connection is cut meanwhile.
    fn restore_store(&mut self) {
        self.server.restore();
        for flight in core::mem::take(&mut self.flights) {
            self.fail(flight.request);
        }
        self.break_bell();
    }

    /// Ends the agent and starts a new one, with its disk or, at times, without.
    fn restart_agent(&mut self) {
        if self.random.one_in(3) {
            self.records.clear();
        }
        self.flights.clear();
        self.watch = None;
        self.config.clear();
        self.node.restart();
        let seed = self.random.below(1000);
        self.mux = SourceMux::new(&[PodSource::Api]);
        self.poll = ApiPoll::new(PollIntervals::NORMAL, 20, seed);
        self.writer = StatusWriter::new(seed);
        let mut pods = Vec::new();
        for raw in self.records.values() {
            let received = api_pod::decode_api_pod(raw.clone(), "n").expect("a pod");
            self.poll.restore(
                &item_of(raw),
                PodObjectSummary::from_raw_object(raw),
                self.now,
            );
            self.writer
                .on_api_copy(&received.pod.metadata.uid, copy_of(&received));
            pods.push(received);
        }
        let merged = self.mux.restore_recorded(PodSource::Api, pods, self.wall());
        self.take(merged);
        assert!(!self.mux.all_sources_ready());
    }

    fn restless(&self) -> Option<String> {
        for object in self.server.objects.values() {
            let uid = PodUid::new(uid_of(object));
            let ended = matches!(
                object["status"]["phase"].as_str(),
                Some("Failed" | "Succeeded")
            );
            let deleting = !object["metadata"]["deletionTimestamp"].is_null();
            if deleting {
                return Some(format!("{uid} is to be deleted"));
            }
            let Some(status) = self
                .node
                .statuses
                .get(&uid)
                .and_then(StatusCache::stored_status)
                .filter(|_| self.config.contains(&uid))
            else {
                if ended {
                    continue;
                }
                return Some(format!("{uid} is not configured"));
            };
            if !node::shows(object, status) || self.node.is_restless(&uid) {
                return Some(format!(
                    "{uid} shows {} and is {status:?}",
                    object["status"]
                ));
            }
        }
        let there = |uid: &&PodUid| self.server.find(uid).is_none();
        let over = self.config.iter().find(there);
        over.map(|uid| format!("{uid} is gone and configured"))
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..MOVES {
        world.step();
    }
    world.faults = false;
    let mut moves = 0;
    while let Some(why) = world.restless() {
        moves += 1;
        assert!(
            moves < SETTLING,
            "no end in sight at {:?}: {why}\n{:?}",
            world.now,
            world.poll
        );
        world.step();
    }
}

fn campaign(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        // The output is shown if a schedule fails; the last number is its seed.
        std::print!("{seed} ");
        run(seed);
    }
}

#[test]
fn converges_and_never_errs() {
    // SRC-30 SRC-31 SM-04 SM-05 SM-11 SM-13 DEL-02 DEL-04 DEL-05 DEL-06
    campaign(0..300);
}

#[test]
#[ignore = "minutes; for the nightly run"]
fn converges_and_never_errs_in_many_schedules() {
    campaign(300..10_300);
}
