//! Objects, the one version counter, and what changed lately.
//!
//! Every write is one entry of the history, so that any state since the last compaction can be read again: pages of
//! a list, reads at an exact version, stale reads and a restore from a backup all come from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::clock;
use crate::json::{object, text};

/// Changes that are kept when nothing else is configured; older ones are compacted away.
pub(crate) const HISTORY: usize = 20_000;

/// Storage name, namespace, name.
pub(crate) type Key = (&'static str, String, String);

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) rv: u64,
    pub(crate) key: Key,
    /// As it was before; none for a creation.
    pub(crate) old: Option<Arc<Value>>,
    /// As it is now; for a deletion the last state, stamped with the version of the deletion.
    pub(crate) new: Arc<Value>,
    pub(crate) deleted: bool,
}

/// The whole state of the cluster.
#[derive(Debug)]
pub(crate) struct Store {
    objects: BTreeMap<Key, Arc<Value>>,
    rv: u64,
    history: VecDeque<Change>,
    /// Versions below this one cannot be read.
    compacted: u64,
    keep: usize,
    /// Grows with each restore: watches of an earlier one end.
    pub(crate) restores: u64,
    /// So long after its binding the Node authorizer learns of a pod.
    pub(crate) graph_lag: Duration,
    /// When pods were bound, by their uid.
    bound: BTreeMap<String, Instant>,
}

impl Store {
    pub(crate) fn new(keep: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            rv: 1,
            history: VecDeque::new(),
            compacted: 0,
            keep,
            restores: 0,
            graph_lag: Duration::ZERO,
            bound: BTreeMap::new(),
        }
    }

    /// The version of the latest write.
    pub(crate) fn rv(&self) -> u64 {
        self.rv
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// An object by the names of its resource's storage.
    pub(crate) fn find(&self, storage: &'static str, ns: &str, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&(storage, ns.to_owned(), name.to_owned()))
    }

    /// Objects of a storage, sorted by namespace and name; of one namespace unless `ns` is empty.
    pub(crate) fn iter<'a>(
        &'a self,
        storage: &'static str,
        ns: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        self.objects
            .range((storage, ns.to_owned(), String::new())..)
            .take_while(move |(key, _)| key.0 == storage && (ns.is_empty() || key.1 == ns))
    }

    /// Writes an object and returns it with its version. What is equal to the stored object is not written.
    pub(crate) fn put(&mut self, key: Key, mut value: Value) -> Arc<Value> {
        let old = self.objects.get(&key).cloned();
        if let Some(old) = &old {
            let rv = text(old, "/metadata/resourceVersion").to_owned();
            stamp(&mut value, &rv);
            if **old == value {
                return Arc::clone(old);
            }
        }
        self.rv += 1;
        stamp(&mut value, &self.rv.to_string());
        let new = Arc::new(value);
        let node = |pod: &Value| text(pod, "/spec/nodeName").to_owned();
        let was = old.as_deref().map(node).unwrap_or_default();
        if key.0 == "pods" && !self.graph_lag.is_zero() && was != node(&new) {
            let uid = text(&new, "/metadata/uid").to_owned();
            self.bound.insert(uid, clock::instant());
        }
        self.objects.insert(key.clone(), Arc::clone(&new));
        self.record(key, old, Arc::clone(&new), false);
        new
    }

    /// Whether the Node authorizer knows of this pod by now.
    pub(crate) fn in_graph(&self, pod: &Value) -> bool {
        let bound = self.bound.get(text(pod, "/metadata/uid"));
        bound.is_none_or(|at| at.elapsed() >= self.graph_lag)
    }

    /// Removes an object and returns its last state.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let old = self.objects.remove(key)?;
        self.bound.remove(text(&old, "/metadata/uid"));
        self.rv += 1;
        let mut last = Value::clone(&old);
        stamp(&mut last, &self.rv.to_string());
        let last = Arc::new(last);
        self.record(key.clone(), Some(old), Arc::clone(&last), true);
        Some(last)
    }

    fn record(&mut self, key: Key, old: Option<Arc<Value>>, new: Arc<Value>, deleted: bool) {
        self.history.push_back(Change {
            rv: self.rv,
            key,
            old,
            new,
            deleted,
        });
        while self.history.len() > self.keep {
            if let Some(gone) = self.history.pop_front() {
                self.compacted = gone.rv;
            }
        }
    }

    /// Forgets the history: reads and watches from before now are answered 410.
    pub(crate) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.rv;
    }

    /// Objects of a storage as they were at `rv`; none when that is compacted or not yet reached.
    pub(crate) fn at(&self, rv: u64, storage: &str) -> Option<BTreeMap<Key, Arc<Value>>> {
        if rv < self.compacted || rv > self.rv {
            return None;
        }
        let mut objects: BTreeMap<_, _> = self
            .objects
            .iter()
            .filter(|(key, _)| storage.is_empty() || key.0 == storage)
            .map(|(key, value)| (key.clone(), Arc::clone(value)))
            .collect();
        for change in self.history.iter().rev().take_while(|c| c.rv > rv) {
            if storage.is_empty() || change.key.0 == storage {
                match &change.old {
                    Some(old) => objects.insert(change.key.clone(), Arc::clone(old)),
                    None => objects.remove(&change.key),
                };
            }
        }
        Some(objects)
    }

    /// Takes the whole state and the counter back to `rv`, as a restore of etcd from a backup does: later writes are
    /// gone, and their versions will be given again. False when that version cannot be read any more.
    pub(crate) fn restore(&mut self, rv: u64) -> bool {
        let Some(objects) = self.at(rv, "") else {
            return false;
        };
        self.objects = objects;
        self.rv = rv;
        self.history.retain(|change| change.rv <= rv);
        self.restores += 1;
        true
    }

    /// Changes after `rv`, oldest first.
    pub(crate) fn since(&self, rv: u64) -> impl Iterator<Item = &Change> {
        let from = self.history.partition_point(|change| change.rv <= rv);
        self.history.range(from..)
    }
}

fn stamp(value: &mut Value, rv: &str) {
    let metadata = object(value).entry("metadata").or_insert_with(|| json!({}));
    object(metadata).insert("resourceVersion".to_owned(), json!(rv));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("pods", "d".to_owned(), name.to_owned())
    }

    #[test]
    fn versions_and_snapshots() {
        let mut store = Store::new(10);
        let a = store.put(key("a"), json!({"v": 1}));
        assert_eq!(text(&a, "/metadata/resourceVersion"), "2");
        store.put(key("a"), json!({"v": 2}));
        store.put(key("b"), json!({"v": 1}));
        let same = store.put(key("b"), json!({"v": 1}));
        assert_eq!(store.rv(), 4, "an equal write is none");
        assert_eq!(text(&same, "/metadata/resourceVersion"), "4");
        let gone = store.remove(&key("a")).expect("was there");
        assert_eq!(text(&gone, "/metadata/resourceVersion"), "5");
        let old = store.at(3, "pods").expect("kept");
        assert_eq!(old[&key("a")]["v"], 2);
        assert!(!old.contains_key(&key("b")));
        assert_eq!(store.since(3).count(), 2);
        assert!(store.at(6, "pods").is_none());
        store.compact();
        assert!(store.at(4, "pods").is_none());
        assert!(store.at(5, "pods").is_some());
    }

    #[test]
    fn a_restore_gives_versions_again() {
        let mut store = Store::new(10);
        store.put(key("a"), json!({"v": 1}));
        store.put(key("a"), json!({"v": 2}));
        assert!(store.restore(2));
        assert_eq!(store.find("pods", "d", "a").expect("kept")["v"], 1);
        let other = store.put(key("a"), json!({"v": 3}));
        assert_eq!(text(&other, "/metadata/resourceVersion"), "3");
        assert!(!store.restore(9));
    }

    #[test]
    fn the_history_is_bounded() {
        let mut store = Store::new(3);
        for n in 0..9 {
            store.put(key("a"), json!({"v": n}));
        }
        assert_eq!(store.since(0).count(), 3);
        assert_eq!(store.compacted(), 7);
    }
}
