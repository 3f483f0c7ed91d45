//! Pod directories that are nowhere: what the simulation of many agents needs of a disk.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use std::sync::{Mutex, MutexGuard};

use crate::api::PodUid;

type Files = BTreeMap<&'static str, Vec<u8>>;

/// Pods with their records. Clones are the same disk; it outlives agents as a disk does.
#[derive(Clone, Debug, Default)]
pub(crate) struct InMemory(Arc<Mutex<BTreeMap<PodUid, Files>>>);

impl InMemory {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<PodUid, Files>> {
        self.0.lock().expect("one thread")
    }

    /// Makes the directory of a pod.
    pub(crate) fn make(&self, uid: &PodUid) {
        self.pods().entry(uid.clone()).or_default();
    }

    /// Writes a record.
    pub(crate) fn write(&self, uid: &PodUid, name: &'static str, text: Vec<u8>) {
        self.pods()
            .entry(uid.clone())
            .or_default()
            .insert(name, text);
    }

    /// Reads a record.
    pub(crate) fn read(&self, uid: &PodUid, name: &str) -> Option<Vec<u8>> {
        self.pods().get(uid)?.get(name).cloned()
    }

    /// Takes a record away.
    pub(crate) fn take(&self, uid: &PodUid, name: &str) -> Option<Vec<u8>> {
        self.pods().get_mut(uid)?.remove(name)
    }

    /// Removes the directory of a pod.
    pub(crate) fn remove(&self, uid: &PodUid) {
        self.pods().remove(uid);
    }

    /// Pods with a directory, sorted.
    pub(crate) fn list(&self) -> BTreeSet<PodUid> {
        self.pods().keys().cloned().collect()
    }
}
