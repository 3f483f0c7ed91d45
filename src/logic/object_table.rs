//! Table of the ConfigMaps, Secrets and other objects that pods refer to: the time of the last read, its result, and
//! the pods that need the object. Not the contents: they lie on disk.
//!
//! A driver asks [`ObjectTable::next_step`] before it uses an object, reads it from the apiserver if told so, and reports
//! the result. Objects are read by name, since a node may list none (AUTHZ-08). Every read costs a request, so that
//!
//! - an object is read at most once per time to live, by the caller that needs it first (OBJ-03);
//! - a pod that is new here only gets an object that was read after the pod was registered (OBJ-03);
//! - an object that cannot change is read once (OBJ-05);
//! - while the apiserver is away, one question in [`PROBE_INTERVAL`] is asked, whoever asks ([`ApiserverReach`]).
//!
//! Versions play no part: reads are quorum reads, and after a restore of etcd the older version is the true one.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::time::Duration;

use super::pod_refs::{PodObjectKey, PodObjectKind};
use crate::api::{MonoTime, PodUid};

/// Time for which a read object counts as known, unless the cluster asks for another.
pub const TTL: Duration = Duration::from_secs(60);
/// Least time to live of an object where bytes cost money.
pub const METERED_TTL: Duration = Duration::from_secs(600);
/// Longest time to live that a cluster may ask for.
const MAX_TTL: Duration = Duration::from_secs(3600);
/// Objects in the table. A node of a few hundred pods has a few hundred.
pub const MAX_OBJECTS: usize = 8192;
/// Time between two questions while the apiserver does not answer.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Annotation of the Node: seconds that objects may be kept, set by the control plane with the size of the cluster.
pub const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The table has no room for the objects of another pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pods of this node refer to more than {MAX_OBJECTS} objects")]
pub struct ObjectTableFull;

/// Next step of a caller that needs an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStep {
    /// Use the copy on disk.
    UseHeld,
    /// The object does not exist.
    Missing,
    /// Wait: another caller reads it now.
    Wait,
    /// Read it, then tell [`ObjectTable::record_read`] or [`ObjectTable::record_read_failure`]. Until then others wait.
    Read,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectReadResult {
    /// The object, which is on disk now.
    Held {
        /// Set if the object is marked immutable.
        immutable: bool,
    },
    /// The object, which could not be written to disk: the next caller that needs it reads it again.
    Unkept,
    /// No such object.
    Missing,
}

#[derive(Clone, Debug, Default)]
struct ObjectEntry {
    /// Start of the last successful read.
    read: Option<MonoTime>,
    held: bool,
    immutable: bool,
    busy: bool,
    /// Numbers of the pods that refer to the object.
    users: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct PodInterest {
    number: u32,
    since: MonoTime,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ObjectTable {
    entries: BTreeMap<PodObjectKey, ObjectEntry>,
    pods: BTreeMap<PodUid, PodInterest>,
    next: u32,
    /// Time to live that the control plane asks for.
    asked_ttl: Duration,
    /// Lower limit of the time to live.
    least_ttl: Duration,
    /// Set if bytes cost money.
    is_metered: bool,
}

impl ObjectTable {
    /// An empty table. `sync`: time between two syncs of a pod. It is also the least time to live of an object, up to
    /// [`TTL`], whatever the control plane asks for. (In small clusters it asks for 0, which suits only kubelets that
    /// watch.) So an object that many pods refer to is not read more often than one of them is synced.
    #[must_use]
    pub fn new(sync: Duration) -> Self {
        Self {
            entries: BTreeMap::new(),
            pods: BTreeMap::new(),
            next: 0,
            asked_ttl: TTL,
            least_ttl: sync.min(TTL),
            is_metered: false,
        }
    }

    /// Takes the time to live that the control plane asks for, from the value of [`TTL_ANNOTATION`] on the Node.
    pub fn set_ttl(&mut self, annotation: Option<&str>) {
        let asked = annotation.and_then(|text| text.parse().ok());
        self.asked_ttl = asked.map_or(TTL, Duration::from_secs);
    }

    /// Sets if bytes cost money; counts from the next [`ObjectTable::next_step`] on.
    pub const fn set_metered(&mut self, is_metered: bool) {
        self.is_metered = is_metered;
    }

    fn ttl(&self) -> Duration {
        let least = match self.is_metered {
            true => METERED_TTL,
            false => self.least_ttl,
        };
        self.asked_ttl.clamp(least, MAX_TTL)
    }

    /// Notes the objects that a pod refers to (OBJ-02). May be called again.
    ///
    /// Errors: no room; nothing was noted then.
    pub fn register_pod(
        &mut self,
        uid: &PodUid,
        keys: &BTreeSet<PodObjectKey>,
        now: MonoTime,
    ) -> Result<(), ObjectTableFull> {
        let new = keys.iter().filter(|key| !self.entries.contains_key(key));
        if self.entries.len() + new.count() > MAX_OBJECTS {
            return Err(ObjectTableFull);
        }
        let number = match self.pods.get(uid) {
            Some(interest) => interest.number,
            None => {
                let number = self.next;
                // After 2^32 pods the table knows none of the first ones any more.
                self.next = self.next.wrapping_add(1);
                let interest = PodInterest { number, since: now };
                self.pods.insert(uid.clone(), interest);
                number
            }
        };
        for key in keys {
            let entry = match self.entries.get_mut(key) {
                Some(entry) => entry,
                None => self.entries.entry(key.clone()).or_default(),
            };
            if !entry.users.contains(&number) {
                entry.users.push(number);
            }
        }
        Ok(())
    }

    /// Pods that were registered.
    pub fn registered_pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }

    /// Forgets a pod; returns the objects that no other pod refers to, forgotten too (OBJ-02).
    pub fn forget_pod(&mut self, uid: &PodUid) -> Vec<PodObjectKey> {
        let Some(interest) = self.pods.remove(uid) else {
            return Vec::new();
        };
        let mut gone = Vec::new();
        self.entries.retain(|key, entry| {
            entry.users.retain(|number| *number != interest.number);
            let keep = !entry.users.is_empty();
            if !keep {
                gone.push(key.clone());
            }
            keep
        });
        gone
    }

    /// Objects that a pod refers to.
    pub fn referenced_keys(&self) -> impl Iterator<Item = &PodObjectKey> {
        self.entries.keys()
    }

    /// Decides the next step for an object that a registered pod needs now.
    pub fn next_step(&mut self, uid: &PodUid, key: &PodObjectKey, now: MonoTime) -> ObjectStep {
        let ttl = self.ttl();
        let since = self.pods.get(uid).map_or(now, |interest| interest.since);
        let Some(entry) = self.entries.get_mut(key) else {
            return ObjectStep::Missing;
        };
        if entry.busy {
            return ObjectStep::Wait;
        }
        let known = entry.read.is_some_and(|read| {
            let settled = entry.held && entry.immutable;
            settled
                || match key.kind {
                    // A claim stays bound to its volume for as long as the pod that uses it.
                    PodObjectKind::Claim => entry.held,
                    // A missing one is read again at each try: its pod waits for it.
                    PodObjectKind::RuntimeClass => entry.held && now - read < ttl,
                    // It may have been made anew under its name, with other rights.
                    PodObjectKind::ServiceAccount => {
                        entry.held && read >= since && now - read < ttl
                    }
                    // The apiserver's own address, which all pods are told of.
                    PodObjectKind::Services if !key.name.is_empty() => now - read < ttl,
                    PodObjectKind::ConfigMap
                    | PodObjectKind::Secret
                    | PodObjectKind::Services
                    | PodObjectKind::TrustBundle => read >= since && now - read < ttl,
                }
        });
        if known {
            return if entry.held {
                ObjectStep::UseHeld
            } else {
                ObjectStep::Missing
            };
        }
        entry.busy = true;
        ObjectStep::Read
    }

    /// Returns true if a caller reads the object now.
    #[must_use]
    pub fn is_being_read(&self, key: &PodObjectKey) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.busy)
    }

    /// Takes in the result of a read that began at `begun`.
    pub fn record_read(&mut self, key: &PodObjectKey, found: ObjectReadResult, begun: MonoTime) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.busy = false;
        entry.held = matches!(found, ObjectReadResult::Held { .. });
        entry.immutable = matches!(found, ObjectReadResult::Held { immutable: true });
        entry.read = (found != ObjectReadResult::Unkept).then_some(begun);
    }

    /// Takes in that a read failed or was given up: what is known of the object stays, and the next caller reads it
    /// again (OBJ-04).
    pub fn record_read_failure(&mut self, key: &PodObjectKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.busy = false;
        }
    }

    /// Notes that the copy on disk cannot be used: the next caller reads the object again.
    pub fn mark_copy_damaged(&mut self, key: &PodObjectKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.read = None;
        }
    }

    /// Returns true if the pod was registered less than `span` ago: the authorizer may not know of it yet (AUTHZ-08).
    #[must_use]
    pub fn is_recently_registered(&self, uid: &PodUid, span: Duration, now: MonoTime) -> bool {
        let interest = self.pods.get(uid);
        interest.is_some_and(|interest| now - interest.since < span)
    }
}

/// State of the apiserver, as reads of objects have found it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApiserverReach {
    /// Time of the next question, if the apiserver did not answer.
    again: Option<MonoTime>,
}

impl ApiserverReach {
    /// Returns true if a question may be asked now. While the apiserver is away, one question in [`PROBE_INTERVAL`] is
    /// let through for all callers.
    pub fn may_ask_now(&mut self, now: MonoTime) -> bool {
        match self.again {
            None => true,
            Some(again) if now >= again => {
                self.again = Some(now + PROBE_INTERVAL);
                true
            }
            Some(_) => false,
        }
    }

    /// Notes that the apiserver answered, even if with an error.
    pub fn record_answer(&mut self) {
        self.again = None;
    }

    /// Notes that the apiserver did not answer.
    pub fn record_silence(&mut self, now: MonoTime) {
        self.again = Some(now + PROBE_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;

    fn key(name: &str) -> PodObjectKey {
        PodObjectKey::new(PodObjectKind::ConfigMap, "ns", name)
    }

    fn keys(names: &[&str]) -> BTreeSet<PodObjectKey> {
        names.iter().map(|name| key(name)).collect()
    }

    const fn at(s: u64) -> MonoTime {
        MonoTime(s * 1000)
    }

    const HELD: ObjectReadResult = ObjectReadResult::Held { immutable: false };

    #[test]
    fn when_an_object_is_read() {
        // OBJ-03 OBJ-04 OBJ-05; each row: what the first read at 1 s gave, who asks when, what to do
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let fixed = ObjectReadResult::Held { immutable: true };
        for (name, found, who, now, step) in [
            ("within its time", HELD, &a, 60, ObjectStep::UseHeld),
            ("its time is over", HELD, &a, 61, ObjectStep::Read),
            (
                "it was read before the pod was seen",
                HELD,
                &b,
                20,
                ObjectStep::Read,
            ),
            ("it cannot change", fixed, &a, 9999, ObjectStep::UseHeld),
            (
                "it cannot change for anybody",
                fixed,
                &b,
                9999,
                ObjectStep::UseHeld,
            ),
            (
                "not there, for a while",
                ObjectReadResult::Missing,
                &a,
                60,
                ObjectStep::Missing,
            ),
            (
                "not there, looked for again",
                ObjectReadResult::Missing,
                &a,
                61,
                ObjectStep::Read,
            ),
            (
                "not on disk",
                ObjectReadResult::Unkept,
                &a,
                2,
                ObjectStep::Read,
            ),
        ] {
            let mut table = ObjectTable::new(TTL);
            table.register_pod(&a, &keys(&["x"]), at(1)).expect("room");
            assert_eq!(
                table.next_step(&a, &key("x"), at(1)),
                ObjectStep::Read,
                "{name}"
            );
            assert_eq!(
                table.next_step(&a, &key("x"), at(1)),
                ObjectStep::Wait,
                "{name}"
            );
            table.record_read(&key("x"), found, at(1));
            table.register_pod(&b, &keys(&["x"]), at(10)).expect("room");
            assert_eq!(table.next_step(who, &key("x"), at(now)), step, "{name}");
        }
    }

    #[test]
    fn one_read_serves_all_pods_of_a_burst() {
        let mut table = ObjectTable::new(TTL);
        let pods: Vec<PodUid> = (0..100).map(|n| PodUid::new(n.to_string())).collect();
        for uid in &pods {
            table.register_pod(uid, &keys(&["x"]), at(5)).expect("room");
        }
        assert_eq!(
            table.next_step(&pods[0], &key("x"), at(5)),
            ObjectStep::Read
        );
        assert!(
            pods.iter()
                .all(|uid| table.next_step(uid, &key("x"), at(5)) == ObjectStep::Wait)
        );
        table.record_read(&key("x"), HELD, at(5));
        assert!(
            pods.iter()
                .all(|uid| table.next_step(uid, &key("x"), at(6)) == ObjectStep::UseHeld)
        );
    }

    #[test]
    fn a_failure_keeps_what_was_known() {
        // OBJ-04
        let mut table = ObjectTable::new(TTL);
        let a = PodUid::from("a");
        table.register_pod(&a, &keys(&["x"]), at(0)).expect("room");
        table.next_step(&a, &key("x"), at(0));
        table.record_read(&key("x"), HELD, at(0));
        assert_eq!(table.next_step(&a, &key("x"), at(100)), ObjectStep::Read);
        table.record_read_failure(&key("x"));
        assert_eq!(
            table.next_step(&a, &key("x"), at(100)),
            ObjectStep::Read,
            "due still"
        );
        table.record_read(&key("x"), HELD, at(100));
        table.mark_copy_damaged(&key("x"));
        assert_eq!(table.next_step(&a, &key("x"), at(101)), ObjectStep::Read);
    }

    #[test]
    fn interest() {
        // OBJ-02
        let mut table = ObjectTable::new(TTL);
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        table
            .register_pod(&a, &keys(&["x", "y"]), at(0))
            .expect("room");
        table
            .register_pod(&a, &keys(&["x", "z"]), at(1))
            .expect("room");
        table.register_pod(&b, &keys(&["y"]), at(1)).expect("room");
        assert_eq!(table.forget_pod(&a), [key("x"), key("z")]);
        assert!(table.registered_pods().eq([&b]));
        assert_eq!(table.forget_pod(&a), []);
        assert_eq!(table.forget_pod(&b), [key("y")]);
        assert_eq!(table.referenced_keys().count(), 0);
        let many: Vec<String> = (0..MAX_OBJECTS).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        table.register_pod(&a, &keys(&many), at(0)).expect("room");
        assert_eq!(
            table.register_pod(&b, &keys(&["x"]), at(0)),
            Err(ObjectTableFull)
        );
        assert_eq!(table.register_pod(&b, &keys(&["7"]), at(0)), Ok(()));
    }

    #[test]
    fn a_claim_is_read_once_a_pod() {
        // OFF-02 VOL-16
        let mut table = ObjectTable::new(TTL);
        let a = PodUid::from("a");
        let claim = PodObjectKey::new(PodObjectKind::Claim, "ns", "a/c");
        let all: BTreeSet<PodObjectKey> = [claim.clone()].into_iter().collect();
        table.register_pod(&a, &all, at(0)).expect("room");
        assert_eq!(table.next_step(&a, &claim, at(0)), ObjectStep::Read);
        table.record_read_failure(&claim);
        assert_eq!(table.next_step(&a, &claim, at(9)), ObjectStep::Read);
        table.record_read(&claim, HELD, at(9));
        assert_eq!(table.next_step(&a, &claim, at(9999)), ObjectStep::UseHeld);
    }

    #[test]
    fn times_to_live() {
        // OBJ-03
        for (metered, sync_s, annotation, seconds) in [
            (false, 60, None, 60),
            (false, 60, Some("0"), 60),
            (false, 5, Some("0"), 5),
            (false, 5, None, 60),
            (false, 600, Some("0"), 60),
            (false, 60, Some("300"), 300),
            (false, 60, Some("x"), 60),
            (false, 60, Some("99999999"), 3600),
            (true, 60, None, 600),
            (true, 60, Some("0"), 600),
            (true, 60, Some("900"), 900),
        ] {
            let mut table = ObjectTable::new(Duration::from_secs(sync_s));
            table.set_metered(metered);
            table.set_ttl(annotation);
            assert_eq!(
                table.ttl().as_secs(),
                seconds,
                "{metered} {sync_s} {annotation:?}"
            );
        }
    }

    #[test]
    fn one_asks_for_all_while_the_apiserver_is_away() {
        let mut reach = ApiserverReach::default();
        assert!(reach.may_ask_now(at(0)) && reach.may_ask_now(at(0)));
        reach.record_silence(at(0));
        assert!(!reach.may_ask_now(at(9)));
        assert!(reach.may_ask_now(at(10)), "the probe");
        assert!(!reach.may_ask_now(at(10)), "and nobody beside it");
        reach.record_answer();
        assert!(reach.may_ask_now(at(10)));
    }
}
