//! An apiserver in memory: objects, versions, one log of events, and every fault that a request can meet.

use alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};

use serde_json::{Value, json};

use super::smp;
use crate::api::{PodUid, WallTime};
use crate::api_poll::{PodListItem, PodListKind, PodWatchEvent, PodWatchEventKind};

/// Namespace and name.
pub type Key = (String, String);

/// The store and the log of events of selected pods.
#[derive(Default)]
pub struct Server {
    /// Stored objects, by name.
    pub objects: BTreeMap<Key, Value>,
    version: u64,
    /// Events with the version they led to.
    pub log: Vec<(u64, PodWatchEvent)>,
    /// An older state, for stale lists and for restores.
    before: (u64, BTreeMap<Key, Value>),
    /// UIDs of all objects that were removed from the store.
    pub removed: BTreeSet<String>,
    serial: u64,
    /// Set if the store went back to an older state once.
    pub restored: bool,
    /// Set after a restore until the next write: nodes list first. A node that listed only after the store has grown
    /// past the versions that were given out before could take equal versions for equal objects.
    pub is_fresh: bool,
    /// Pods that may have lost their memory with a machine: the states of their containers may go back.
    pub forgetful: BTreeSet<String>,
    /// Pods whose end another client has reported: a write that began before may come after it.
    pub usurped: BTreeSet<String>,
}

/// Reason why a write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such object.
    NotFound,
    /// The object has another UID or version.
    Conflict,
}

fn is_terminal(object: &Value) -> bool {
    matches!(
        object["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// An object's UID.
pub fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().expect("a uid")
}

/// Item of an object in a list of metadata.
pub fn item_of(object: &Value) -> PodListItem {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or("");
    PodListItem {
        namespace: text("namespace").into(),
        name: text("name").into(),
        uid: text("uid").into(),
        version: text("resourceVersion").into(),
        deleting: !object["metadata"]["deletionTimestamp"].is_null(),
        mirror: false,
    }
}

/// Name of the first container that had ended for good and has not ended any more. An apiserver refuses such a patch.
fn revived<'a>(old: &'a Value, new: &Value) -> Option<&'a str> {
    let policy = old["spec"]["restartPolicy"].as_str();
    let list = |object: &'a Value| object["status"]["containerStatuses"].as_array();
    let before = list(old)?;
    let after = new["status"]["containerStatuses"].as_array()?;
    let stays = |status: &Value| {
        let code = status["state"]["terminated"]["exitCode"].as_i64();
        match policy {
            Some("Never") => code.is_some(),
            Some("OnFailure") => code == Some(0),
            _ => false,
        }
    };
    let ended = |status: &Value| !status["state"]["terminated"].is_null();
    let back = |was: &&Value| {
        let mut same = after.iter().filter(|now| now["name"] == was["name"]);
        stays(was) && same.any(|now| !ended(now))
    };
    before.iter().find(back)?["name"].as_str()
}

impl Server {
    /// The object of a UID.
    pub fn find(&self, uid: &str) -> Option<&Value> {
        self.objects.values().find(|object| uid_of(object) == uid)
    }

    /// The version of a list.
    pub fn version(&self, stale: bool) -> String {
        let version = if stale { self.before.0 } else { self.version };
        version.to_string()
    }

    /// Creates a pod of this name, unless there is one.
    pub fn create(&mut self, name: &str, never: bool) {
        let key = ("ns".to_owned(), name.to_owned());
        if self.objects.contains_key(&key) {
            return;
        }
        let policy = if never { "Never" } else { "Always" };
        let object = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"nodeName": "n", "restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        });
        self.put_new(key, object);
    }

    /// Stores a new object under a UID of its own, which it returns.
    pub fn put_new(&mut self, key: Key, mut object: Value) -> String {
        self.serial += 1;
        let uid = format!("u{}", self.serial);
        object["metadata"]["namespace"] = key.0.clone().into();
        object["metadata"]["uid"] = uid.clone().into();
        self.put(key, object);
        uid
    }

    /// Stores an object under a new version and sends it to the watch, which selects pods in any phase.
    pub fn put(&mut self, key: Key, mut object: Value) {
        let was = self.objects.get(&key);
        if was.is_some_and(|was| {
            let mut was = was.clone();
            was["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
            was == object
        }) {
            return;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.tell(PodWatchEventKind::Changed, &object);
        self.objects.insert(key, object);
    }

    /// Removes an object.
    pub fn remove(&mut self, key: &Key) {
        let Some(mut object) = self.objects.remove(key) else {
            return;
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.removed.insert(uid_of(&object).to_owned());
        self.tell(PodWatchEventKind::Deleted, &object);
    }

    fn tell(&mut self, kind: PodWatchEventKind, object: &Value) {
        let item = item_of(object);
        self.log.push((self.version, PodWatchEvent { kind, item }));
    }

    /// Deletes with grace, as a user does: an ended pod goes at once, another is marked. Once marked, grace only
    /// shrinks.
    pub fn delete_gracefully(&mut self, key: &Key, now: WallTime, grace_s: i64) {
        let Some(mut object) = self.objects.get(key).cloned() else {
            return;
        };
        if is_terminal(&object) {
            self.remove(key);
            return;
        }
        let metadata = &mut object["metadata"];
        let before = metadata["deletionGracePeriodSeconds"].as_i64();
        if before.is_none_or(|before| grace_s < before) {
            metadata["deletionTimestamp"] = now.to_string().into();
            metadata["deletionGracePeriodSeconds"] = grace_s.into();
            self.put(key.clone(), object);
        }
    }

    /// Lists objects.
    pub fn list(&self, list: PodListKind, stale: bool) -> Vec<Value> {
        let objects = if stale { &self.before.1 } else { &self.objects };
        let wanted = |object: &&Value| list == PodListKind::All || !is_terminal(object);
        objects.values().filter(wanted).cloned().collect()
    }

    /// Applies a status patch as an apiserver does, with the changes that it forbids.
    pub fn patch(&mut self, key: &Key, body: &Value) -> Result<Value, Refusal> {
        let Some(old) = self.objects.get(key) else {
            return Err(Refusal::NotFound);
        };
        if body["metadata"]["uid"] != old["metadata"]["uid"] {
            return Err(Refusal::Conflict);
        }
        let mut new = old.clone();
        smp::apply(&mut new, body);
        assert_eq!(new["spec"], old["spec"]);
        if is_terminal(old) && !self.usurped.contains(uid_of(old)) {
            let phase = |object: &Value| object["status"]["phase"].clone();
            assert_eq!(phase(old), phase(&new), "what ended stays as it ended");
        }
        let foreign = |object: &Value| {
            let all = object["status"]["conditions"].as_array().cloned();
            let mut all = all.unwrap_or_default();
            all.retain(|c| c["type"] == "gate");
            all
        };
        assert_eq!(foreign(old), foreign(&new));
        if !self.forgetful.contains(uid_of(old))
            && let Some(name) = revived(old, &new)
        {
            panic!("illegal transition of container {name}: {body}");
        }
        self.put(key.clone(), new);
        Ok(self.objects[key].clone())
    }

    /// Deletes with grace 0 and a UID.
    pub fn delete(&mut self, key: &Key, uid: &PodUid) -> Result<(), Refusal> {
        let Some(old) = self.objects.get(key) else {
            return Err(Refusal::NotFound);
        };
        if uid_of(old) != uid.as_str() {
            return Err(Refusal::Conflict);
        }
        // After a restore the agent may still act on the state before it.
        let ended = is_terminal(old) && !old["metadata"]["deletionTimestamp"].is_null();
        assert!(ended || self.restored, "{uid} has not ended");
        self.remove(key);
        Ok(())
    }

    /// Keeps the present state, to which stale lists and restores go back.
    pub fn keep_state(&mut self) {
        self.before = (self.version, self.objects.clone());
    }

    /// Restores the store from a backup: objects and versions go back, and every watch is cut.
    pub fn restore(&mut self) {
        let (version, objects) = self.before.clone();
        let after: Vec<String> = objects.values().map(|o| uid_of(o).to_owned()).collect();
        for object in self.objects.values() {
            if !after.iter().any(|uid| uid == uid_of(object)) {
                self.removed.insert(uid_of(object).to_owned());
            }
        }
        self.version = version;
        self.objects = objects;
        self.log.clear();
        self.restored = true;
        self.is_fresh = true;
    }
}
