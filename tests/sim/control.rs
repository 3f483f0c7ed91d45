//! The control plane of a machine that is a node of a cluster: its apiserver, the way there, the doorbell, and what users
//! and controllers do to pods.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};
use core::{cell::RefCell, sync::atomic::Ordering, time::Duration};
use std::io;

use serde_json::{Value, json};

use super::{
    super::{
        clock::Clock as _,
        cluster::Cluster,
        core::Agent,
        tests::{
            api::{Claim, FakeApi, Link},
            world::{Hands, IMAGE, NODE, TestClock},
        },
    },
    input::{Apiserver, Deed, Random},
    pods::Manifest,
};
use crate::{
    api::{MonoTime, Pod, PodUid, WallTime, pod::CONFIG_MIRROR, pod_status::PodPhase},
    kube::{
        ApiError, DoorbellNews, KubeApi, KubeError, KubeLanes, KubeTransport, TravelDelay,
        WatchEnd, WatchEvent, WatchEventKind, WatchThread, lanes::RING_QUEUE,
    },
    logic::{
        api_pod, api_poll,
        testing::server::{Key, Server, uid_of},
    },
    runtime::fake::Fake,
    sys::lane::Lane,
};

/// Grace of pods that are deleted at the end, seconds.
pub(super) const LAST_GRACE_S: i64 = 5;

/// Image that pods of the API are given by an edit.
pub(super) const NEW_IMAGE: &str = "new:1";
/// A watch that tells nothing is given up so long after it should have ended.
const STALL: Duration = Duration::from_secs(30);

/// How long requests and answers take.
struct Wire {
    random: Random,
    max_ms: u64,
}

/// The way to the apiserver: there is no thread beside the simulation's.
struct Staged {
    wire: Rc<RefCell<Wire>>,
    clock: TestClock,
    /// The other end of the newest doorbell.
    rope: RefCell<Option<WatchThread>>,
}

impl KubeTransport for Staged {
    fn travel(&self) -> TravelDelay {
        let mut wire = self.wire.borrow_mut();
        let wait_ms = match wire.max_ms {
            0 => 0,
            max_ms => wire.random.below(max_ms),
        };
        let there = self.clock.now() + Duration::from_millis(wait_ms);
        self.clock.sleep_until(there)
    }

    fn start_watch_thread(&self, _: &Arc<dyn KubeApi>, rope: WatchThread) -> io::Result<()> {
        self.rope.replace(Some(rope));
        Ok(())
    }
}

/// An open watch.
struct Watch {
    /// Where in the server's log it is.
    place: usize,
    ends: MonoTime,
    /// Nothing of it arrives.
    mute: bool,
}

/// How the doorbell is disturbed.
struct Bell {
    late_ms: u64,
    doubled: u64,
    unknown: u64,
    random: Random,
}

/// See the module's words.
pub(super) struct Control {
    pub(super) api: Arc<FakeApi>,
    hands: Rc<Hands>,
    staged: Rc<Staged>,
    wire: Rc<RefCell<Wire>>,
    pub(super) doorbell: bool,
    /// Pods that were made, by uid.
    pub(super) made: BTreeMap<PodUid, Manifest>,
    /// Pods that somebody wanted to end, or that have ended.
    excused: BTreeSet<PodUid>,
    out_until: Option<MonoTime>,
    /// Since the store was restored a list was answered; what was asked before has arrived by then.
    settled_at: Option<MonoTime>,
    rope: Option<WatchThread>,
    watch: Option<Watch>,
    bell: Bell,
    ringing: BTreeMap<(MonoTime, u64), DoorbellNews>,
    sequence: u64,
    pub(super) tally: BTreeMap<&'static str, u64>,
}

fn key(name: u8) -> Key {
    ("ns".into(), format!("p{name}"))
}

fn is_terminal(object: &Value) -> bool {
    matches!(
        object["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(super) fn is_mirror(object: &Value) -> bool {
    !object["metadata"]["annotations"][CONFIG_MIRROR].is_null()
}

/// Puts a condition in place of the one of its type, as others than the agent do.
fn set_condition(object: &mut Value, condition: Value) -> bool {
    let Some(all) = object["status"]["conditions"].as_array_mut() else {
        return false;
    };
    all.retain(|c| c["type"] != condition["type"]);
    all.push(condition);
    true
}

impl Control {
    pub(super) fn new(hands: &Rc<Hands>, doorbell: bool, seed: u64) -> Self {
        let wire = Rc::new(RefCell::new(Wire {
            random: Random::new(seed),
            max_ms: 0,
        }));
        Self {
            api: Arc::default(),
            hands: Rc::clone(hands),
            staged: Rc::new(Staged {
                wire: Rc::clone(&wire),
                clock: TestClock(Rc::clone(hands)),
                rope: RefCell::default(),
            }),
            wire,
            doorbell,
            made: BTreeMap::new(),
            excused: BTreeSet::new(),
            out_until: None,
            settled_at: None,
            rope: None,
            watch: None,
            bell: Bell {
                late_ms: 1,
                doubled: 0,
                unknown: 0,
                random: Random::new(seed),
            },
            ringing: BTreeMap::new(),
            sequence: 0,
            tally: BTreeMap::new(),
        }
    }

    pub(super) fn lanes(&self) -> KubeLanes {
        let way = Rc::clone(&self.staged);
        KubeLanes::from_lanes(
            Arc::clone(&self.api) as _,
            [Lane::without_thread(), Lane::without_thread()],
            way,
        )
    }

    fn saw(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// The agent is gone, and with it all that was on its way to or from it.
    pub(super) fn on_agent_gone(&mut self) {
        self.staged.rope.take();
        self.rope = None;
        self.watch = None;
        self.ringing.clear();
        self.settled_at = None;
    }

    /// When something happens by itself next.
    pub(super) fn next_instant(&self) -> Option<MonoTime> {
        let ring = self.ringing.keys().next().map(|(at, _)| *at);
        let watch = self.watch.as_ref().map(Watch::over);
        [ring, watch, self.out_until, self.settled_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the agent gives up a watch that tells nothing.
    pub(super) fn mute_until(&self) -> Option<MonoTime> {
        let watch = self.watch.as_ref().filter(|watch| watch.mute);
        watch.map(Watch::over)
    }

    /// Moves along what is due. False if there was nothing.
    pub(super) fn pump(&mut self, cluster: Option<&Cluster>) -> bool {
        let now = self.hands.now();
        if self.out_until.is_some_and(|at| at <= now) {
            self.out_until = None;
            self.api.set_link(Link::Up);
        }
        self.api
            .set_may_be_stale(cluster.is_some_and(|c| c.has_complete_list()));
        if self.api.take_listed() && self.api.with(|s| s.is_fresh) {
            let travel = Duration::from_millis(self.wire.borrow().max_ms);
            self.settled_at = Some(now + travel + Duration::from_millis(1));
        }
        if self.settled_at.is_some_and(|at| at <= now) {
            self.settled_at = None;
            self.api.with(|s| s.is_fresh = false);
        }
        if let Some(rope) = self.staged.rope.take() {
            self.rope = Some(rope);
            self.watch = None;
            self.ringing.clear();
        }
        let asked = self.rope.as_ref().and_then(|r| r.watches.try_recv().ok());
        let mut moved = asked.is_some();
        if let Some(options) = asked {
            self.begin_watch(&options.resource_version, options.timeout);
        }
        self.listen();
        while let Some(first) = self.ringing.first_entry() {
            let Some(rope) = self.rope.as_ref().filter(|_| first.key().0 <= now) else {
                break;
            };
            moved = true;
            let rung = first.remove();
            let is_end = matches!(rung, DoorbellNews::Ended(_));
            if !is_end && rope.rungs.len() >= RING_QUEUE {
                rope.overrun.store(true, Ordering::SeqCst);
            } else {
                let _ = rope.rungs.try_send(rung);
            }
        }
        moved
    }

    fn begin_watch(&mut self, from: &str, timeout: Duration) {
        let now = self.hands.now();
        let from: u64 = from.parse().unwrap_or(0);
        if self.out_until.is_some() {
            self.end_watch(Err(broken()), 5000);
            return;
        }
        let (version, place, fresh) = self.api.with(|server| {
            let place = server.log.iter().position(|(v, _)| *v > from);
            let version: u64 = server.version(false).parse().unwrap_or(0);
            (version, place.unwrap_or(server.log.len()), server.is_fresh)
        });
        // A server that has just been started knows nothing of what came before.
        if from > version || fresh {
            self.saw("watch of the future");
            self.end_watch(Ok(WatchEnd::Error(ApiError::default())), 100);
            return;
        }
        self.watch = Some(Watch {
            place,
            ends: now + timeout,
            mute: false,
        });
    }

    /// The watch is over, and the agent will hear of it.
    fn end_watch(&mut self, end: Result<WatchEnd, KubeError>, within_ms: u64) {
        self.watch = None;
        let wait = Duration::from_millis(self.bell.random.below(within_ms.max(1)));
        let last = self.ringing.keys().next_back().map(|(at, _)| *at);
        let now = self.hands.now();
        let at = last.map_or(now, |last| last.max(now)) + wait;
        self.ring(at, DoorbellNews::Ended(end));
    }

    fn ring(&mut self, at: MonoTime, rung: DoorbellNews) {
        self.sequence += 1;
        self.ringing.insert((at, self.sequence), rung);
    }

    /// Takes what is new in the server's log.
    fn listen(&mut self) {
        let now = self.hands.now();
        let Some(watch) = &mut self.watch else {
            return;
        };
        if now >= watch.over() {
            let end = match watch.mute {
                true => Err(broken()),
                false => Ok(WatchEnd::Clean),
            };
            self.end_watch(end, 1);
            return;
        }
        let news: Vec<api_poll::PodWatchEvent> = self.api.with(|server| {
            let news = server.log.get(watch.place..).unwrap_or_default();
            watch.place += news.len();
            news.iter().map(|(_, ring)| ring.clone()).collect()
        });
        if watch.mute {
            return;
        }
        for ring in news {
            let times = match self.bell.random.percent(self.bell.doubled) {
                true => 2,
                false => 1,
            };
            let wait = Duration::from_millis(self.bell.random.below(self.bell.late_ms));
            let last = self.ringing.keys().next_back().map(|(at, _)| *at);
            let at = last.map_or(now, |last| last.max(now)) + wait;
            for _ in 0..times {
                let mut told = told(&ring);
                if self.bell.random.percent(self.bell.unknown) {
                    told = WatchEvent::default();
                    self.saw("ring for nobody");
                }
                self.ring(at, DoorbellNews::Ring(told));
            }
            if times > 1 {
                self.saw("ring doubled");
            }
            if wait > Duration::from_secs(1) {
                self.saw("ring late");
            }
        }
    }

    /// Something happens at the server, or on the way to it.
    pub(super) fn apply(&mut self, what: &Apiserver) {
        match what {
            Apiserver::Odds { odds, seed } => self.api.set_odds((*odds).into(), *seed),
            Apiserver::Latency { max_ms } => self.wire.borrow_mut().max_ms = *max_ms,
            Apiserver::Outage { ms, mute } => {
                self.saw("outage");
                self.api
                    .set_link(if *mute { Link::Mute } else { Link::Down });
                self.out_until = Some(self.hands.now() + Duration::from_millis(*ms));
                if let Some(watch) = &mut self.watch {
                    watch.mute = true;
                }
            }
            Apiserver::Bell {
                late_ms,
                doubled,
                unknown,
                seed,
            } => {
                self.bell = Bell {
                    late_ms: (*late_ms).max(1),
                    doubled: *doubled,
                    unknown: *unknown,
                    random: Random::new(*seed),
                };
            }
            Apiserver::Mute => {
                if let Some(watch) = &mut self.watch {
                    watch.mute = true;
                    self.saw("bell muted");
                }
            }
            Apiserver::Break => {
                if self.watch.is_some() {
                    self.saw("bell broken");
                    self.ringing.clear();
                    self.end_watch(Err(broken()), 100);
                }
            }
            Apiserver::Keep => self.api.with(Server::keep_state),
            Apiserver::Restore => {
                if self.api.with(|s| s.version(true) == "0") {
                    return;
                }
                self.saw("restore");
                self.api.with(Server::restore);
                self.settled_at = None;
                let _ = self.api.take_listed();
                if self.watch.is_some() {
                    self.ringing.clear();
                    self.end_watch(Err(broken()), 100);
                }
            }
            Apiserver::RemoveMirror { nth } => {
                let removed = self.api.with(|server| {
                    let mut mirrors = server.objects.iter().filter(|(_, o)| is_mirror(o));
                    let key = mirrors.nth(usize::from(*nth)).map(|(key, _)| key.clone());
                    key.filter(|_| !server.is_fresh)
                        .map(|key| server.remove(&key))
                });
                if removed.is_some() {
                    self.saw("mirror removed");
                }
            }
        }
        self.note_excuses();
    }

    /// Somebody does something to a pod. Returns the uid of a new one.
    pub(super) fn act(&mut self, name: u8, deed: &Deed, now: WallTime) -> Option<PodUid> {
        let key = key(name);
        // A store that was just restored is left alone until nodes have looked at it (see `Server::is_fresh`).
        let (fresh, found) = self
            .api
            .with(|s| (s.is_fresh, s.objects.get(&key).cloned()));
        if fresh {
            return None;
        }
        let mut made = None;
        let put = |object: Value| self.api.with(|s| s.put(key.clone(), object));
        let grace_s = deed.grace_s().unwrap_or(0);
        let end = || self.api.with(|s| s.delete_gracefully(&key, now, grace_s));
        let mut what = None;
        match (deed, found) {
            (Deed::Create { pod }, None) => {
                let uid = PodUid::new(self.api.with(|s| s.put_new(key.clone(), pod.object(NODE))));
                let of_name = |m: &&Manifest| m.name == name;
                if self.made.values().any(|m| of_name(&m)) {
                    what = Some("name used again");
                }
                self.made.insert(uid.clone(), pod.clone());
                made = Some(uid);
            }
            (Deed::Label { version }, Some(mut object)) => {
                object["metadata"]["labels"] = json!({"version": version.to_string()});
                put(object);
                what = Some("labels");
            }
            (Deed::Image, Some(mut object)) if !is_terminal(&object) && !is_mirror(&object) => {
                let image = &mut object["spec"]["containers"][0]["image"];
                *image = match *image == NEW_IMAGE {
                    true => IMAGE.into(),
                    false => NEW_IMAGE.into(),
                };
                let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
                object["metadata"]["generation"] = (generation + 1).into();
                put(object);
                what = Some("image");
            }
            (Deed::Resize { mib, milli }, Some(mut object))
                if !is_terminal(&object) && !is_mirror(&object) =>
            {
                if super::resizes::resize(&mut object, *mib, *milli) {
                    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
                    object["metadata"]["generation"] = (generation + 1).into();
                    put(object);
                    what = Some("resized");
                }
            }
            (Deed::Delete { .. }, Some(object)) => {
                what = Some(match (is_terminal(&object), is_deleting(&object)) {
                    (true, _) => "ended pod deleted",
                    (false, true) => "grace shortened",
                    (false, false) => "deleted",
                });
                end();
            }
            (Deed::Evict, Some(mut object)) if !is_terminal(&object) => {
                let why = json!({"type": "DisruptionTarget", "status": "True",
                    "reason": "EvictionByEvictionAPI", "lastTransitionTime": now});
                if set_condition(&mut object, why) {
                    put(object);
                }
                end();
                what = Some("evicted");
            }
            (Deed::Force, Some(object)) => {
                self.api.with(|s| s.remove(&key));
                what = Some(match is_terminal(&object) {
                    true => "ended pod removed",
                    false => "removed by force",
                });
            }
            // The node controller turns a condition that is True, keeps its other words, and leaves one that is False alone.
            (Deed::NotReady, Some(mut object)) => {
                let conditions = object["status"]["conditions"].as_array();
                let ready = conditions
                    .into_iter()
                    .flatten()
                    .find(|c| c["type"] == "Ready" && c["status"] == "True");
                let turned = ready.cloned().map(|mut ready| {
                    ready["status"] = "False".into();
                    ready["lastTransitionTime"] = json!(now);
                    ready
                });
                if turned.is_some_and(|ready| set_condition(&mut object, ready)) {
                    put(object);
                    what = Some("not ready by others");
                }
            }
            (Deed::Gate { version }, Some(mut object)) => {
                let gate =
                    json!({"type": "gate", "status": "True", "message": version.to_string()});
                if set_condition(&mut object, gate) {
                    put(object);
                    what = Some("gate");
                }
            }
            (Deed::Fail, Some(mut object)) if !is_terminal(&object) => {
                object["status"]["phase"] = "Failed".into();
                object["status"]["reason"] = "NodeLost".into();
                let uid = uid_of(&object).to_owned();
                put(object);
                let _ = self.api.with(|s| s.usurped.insert(uid));
                what = Some("failed by others");
            }
            (
                Deed::Create { .. } | Deed::Image | Deed::Resize { .. } | Deed::Evict | Deed::Fail,
                Some(_),
            )
            | (_, None) => {}
        }
        if let Some(what) = what {
            self.saw(what);
        }
        self.note_excuses();
        made
    }

    /// The pod as the API has it.
    pub(super) fn object(&self, uid: &PodUid) -> Option<Value> {
        let found = |server: &mut Server| {
            let mut all = server.objects.values();
            all.find(|object| uid_of(object) == &**uid).cloned()
        };
        self.api.with(found)
    }

    /// The pod that has the name now, and its containers.
    pub(super) fn containers(&self, name: u8) -> Option<(PodUid, Vec<String>)> {
        let object = self.api.with(|s| s.objects.get(&key(name)).cloned())?;
        let all = object["spec"]["containers"].as_array()?;
        let names = all.iter().filter_map(|c| c["name"].as_str());
        let names = names.map(str::to_owned).collect();
        Some((PodUid::new(uid_of(&object)), names))
    }

    /// Pods that the API wants to run.
    pub(super) fn alive(&self, node: &str) -> Vec<(PodUid, Manifest, Pod)> {
        let objects: Vec<Value> = self
            .api
            .with(|server| server.objects.values().cloned().collect());
        let alive = |o: &Value| !is_mirror(o) && !is_deleting(o) && !is_terminal(o);
        let pods = objects.into_iter().filter(alive).filter_map(|object| {
            let uid = PodUid::new(uid_of(&object));
            let manifest = self.made.get(&uid)?.clone();
            let received = api_pod::decode_api_pod(object, node).ok()?;
            Some((uid, manifest, received.pod))
        });
        pods.collect()
    }

    /// Pods whose end somebody else has told.
    pub(super) fn usurped(&self) -> BTreeSet<PodUid> {
        self.api
            .with(|s| s.usurped.iter().map(|uid| PodUid::new(&**uid)).collect())
    }

    /// Ends that the API has.
    pub(super) fn ends(&self) -> BTreeMap<PodUid, PodPhase> {
        let end = |object: &Value| {
            let phase = match object["status"]["phase"].as_str()? {
                "Succeeded" => PodPhase::Succeeded,
                "Failed" => PodPhase::Failed,
                _ => return None,
            };
            Some((PodUid::new(uid_of(object)), phase))
        };
        self.api
            .with(|s| s.objects.values().filter_map(end).collect())
    }

    /// The machine went down: what was not told of pods that are not to run again is forgotten.
    pub(super) fn on_reboot(&self) {
        self.api.with(|server| {
            let all: Vec<String> = server
                .objects
                .values()
                .map(|o| uid_of(o).to_owned())
                .collect();
            server.forgetful.extend(all);
        });
    }

    /// Ends all trouble.
    pub(super) fn heal(&mut self) {
        self.api.set_link(Link::Up);
        self.api.set_odds(Default::default(), 0);
        self.out_until = None;
        let mut wire = self.wire.borrow_mut();
        wire.max_ms = wire.max_ms.min(50);
        drop(wire);
        self.bell.late_ms = 1;
        self.bell.doubled = 0;
        self.bell.unknown = 0;
        // What rings late rings now.
        let now = self.hands.now();
        let late = core::mem::take(&mut self.ringing);
        let due = late.into_iter().map(|((_, n), rung)| ((now, n), rung));
        self.ringing.extend(due);
    }

    /// Deletes all pods that are no mirrors, one of three by force.
    pub(super) fn delete_all(&mut self, now: WallTime) {
        for name in 0..=u8::MAX {
            if self.api.with(|s| s.objects.contains_key(&key(name))) {
                let deed = match name % 3 {
                    0 => Deed::Force,
                    _ => Deed::Delete {
                        grace_s: LAST_GRACE_S,
                    },
                };
                let _ = self.act(name, &deed, now);
            }
        }
    }

    fn note_excuses(&mut self) {
        let excused = self.api.with(|server| {
            let over = |o: &&Value| is_deleting(o) || is_terminal(o);
            let over = server.objects.values().filter(over).map(uid_of);
            let all = over.chain(server.removed.iter().map(String::as_str));
            all.map(PodUid::new).collect::<Vec<_>>()
        });
        self.excused.extend(excused);
    }

    /// What must hold after each step.
    pub(super) fn check_claims(
        &mut self,
        fake: &Fake,
        is_refused: impl Fn(&PodUid) -> bool,
    ) -> Result<(), String> {
        if let Some(what) = self.api.violation() {
            return Err(what);
        }
        for claim in self.api.take_claims() {
            match claim {
                Claim::End { uid } if fake.runs(&PodUid::new(&*uid)) => {
                    // One that ran is admitted again by an agent that starts; refused, it ends only then (LOOP-12).
                    if !is_refused(&PodUid::new(&*uid)) {
                        return Err(format!("pod {uid} is told to have ended, and runs"));
                    }
                    self.saw("refused while it runs");
                }
                Claim::End { .. } => self.saw("terminal phase told"),
                Claim::Delete {
                    uid,
                    found,
                    removed,
                } => {
                    if fake.runs(&PodUid::new(&*uid)) {
                        return Err(format!("pod {uid} is deleted, and runs"));
                    }
                    if removed && uid_of(&found) != uid {
                        return Err(format!("{found} is deleted in place of {uid}"));
                    }
                    let restored = self.api.with(|s| s.restored);
                    let over = is_mirror(&found) || (is_deleting(&found) && is_terminal(&found));
                    if removed && !over && !restored {
                        return Err(format!("{found} is deleted before its end was told"));
                    }
                    if !removed {
                        self.saw("delete refused");
                    }
                }
            }
        }
        Ok(())
    }

    /// What must hold at every instant: nobody ends a pod that the API has and wants, whatever was heard or not heard.
    pub(super) fn check(&mut self, agent: &Agent) -> Result<(), String> {
        self.note_excuses();
        let table = agent.pods().worker_table();
        let statuses = agent.pods().statuses();
        for handle in table.handles() {
            let Some(uid) = table.pod_identity(handle).map(|i| i.uid) else {
                continue;
            };
            let wanted = self.made.contains_key(uid) && !self.excused.contains(uid);
            if !wanted || !table.is_pod_termination_requested(uid) {
                continue;
            }
            let own_end = statuses.get(uid).is_some_and(|s| s.phase.is_terminal());
            // The node itself ends it: what its status will say is known.
            let own_end = own_end || table.stop_status(handle).is_some();
            if !own_end {
                return Err(format!("pod {uid} is to end, and nobody has said so"));
            }
        }
        Ok(())
    }
}

impl Watch {
    fn over(&self) -> MonoTime {
        match self.mute {
            true => self.ends + STALL,
            false => self.ends,
        }
    }
}

fn broken() -> KubeError {
    KubeError::Unreachable {
        url: "https://api".into(),
        why: "no answer".into(),
        sent: true,
    }
}

fn told(ring: &api_poll::PodWatchEvent) -> WatchEvent {
    WatchEvent {
        kind: match ring.kind {
            api_poll::PodWatchEventKind::Changed => WatchEventKind::Modified,
            api_poll::PodWatchEventKind::Deleted => WatchEventKind::Deleted,
            api_poll::PodWatchEventKind::Bookmark => WatchEventKind::Bookmark,
        },
        uid: ring.item.uid.to_string(),
        resource_version: ring.item.version.to_string(),
        namespace: ring.item.namespace.to_string(),
        name: ring.item.name.to_string(),
        ..WatchEvent::default()
    }
}
