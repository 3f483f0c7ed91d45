//! Merges the snapshots of all sources into operations on pods. Names follow kubelet `config/config.go`.
//!
//! A source sends full snapshots ([`SourceMux::merge_snapshot`]). The mux compares each with that source's previous
//! one by uid and says what changed. Of a pod it keeps four digests and the time it was first seen, never the pod.
//!
//! The apiserver's poller knows single pods sooner than the whole: [`SourceMux::merge_partial`] takes what is certain
//! of some pods without calling it a snapshot. It removes nothing that is not named, and it never makes the source
//! ready: before the first complete list nobody may conclude that a pod is not there (SRC-13, SRC-30). What an agent
//! finds on its own disk at a start comes in the same way ([`SourceMux::restore_recorded`]), so that pods start with
//! no apiserver in reach.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

use serde_json::Value;

use super::digest;
use crate::api::order::GatherExt;
use crate::api::pod::{CONFIG_SEEN, CONFIG_SOURCE};
use crate::api::received::{ReceivedPod, SnapshotEntry};
use crate::api::{PodUid, WallTime};

/// Origin of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    /// The manifest directory or file.
    File,
    /// Manifests at a URL.
    Http,
    /// The apiserver.
    Api,
}

impl PodSource {
    /// The value of the annotation `kubernetes.io/config.source`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

/// Operation on pods of one source. Never empty, except for the `Add` that only says the source is there (SRC-06).
#[derive(Clone, Debug, PartialEq)]
pub enum SourceOperation {
    /// Pods that are no longer in the snapshot.
    Remove(Vec<PodUid>),
    /// Pods not seen before.
    Add(Vec<Box<ReceivedPod>>),
    /// Pods with a semantic change (SRC-04).
    Update(Vec<Box<ReceivedPod>>),
    /// Pods with a semantic change and a `deletionTimestamp`.
    Delete(Vec<Box<ReceivedPod>>),
    /// Pods whose `status` alone differs.
    Reconcile(Vec<Box<ReceivedPod>>),
}

/// Result of a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeResult {
    /// Operations in the order in which they must be handled.
    pub ops: Vec<SourceOperation>,
    /// Pods left out because another pod of the same snapshot has their full name or their uid: to be reported as
    /// `Warning/FailedValidation`. They count as absent.
    pub dropped: Vec<Box<ReceivedPod>>,
    /// Uids delivered as [`SnapshotEntry::Known`] that this mux does not hold, or whose full name a pod before them in the
    /// snapshot has taken: the source must be read anew as a whole.
    pub unknown: Vec<PodUid>,
}

/// Digests and time of one pod of one source.
#[derive(Clone, Copy, Debug)]
struct PodDigests {
    full_name: u64,
    semantic: u64,
    status: u64,
    seen: WallTime,
}

#[derive(Debug, Default)]
struct SourceFeed {
    /// Set by the first merge of a full snapshot.
    merged: bool,
    /// Set when the sync loop has handled a message after that.
    handled: bool,
    pods: BTreeMap<PodUid, PodDigests>,
}

/// The previous snapshot of every configured source, as digests.
#[derive(Debug)]
pub struct SourceMux {
    feeds: BTreeMap<PodSource, SourceFeed>,
}

impl SourceMux {
    /// A mux that waits for `sources`; a message of any other source is ignored.
    #[must_use]
    pub fn new(sources: &[PodSource]) -> Self {
        Self {
            feeds: sources
                .iter()
                .map(|s| (*s, SourceFeed::default()))
                .gather_items(),
        }
    }

    /// Takes a full snapshot of `source` and returns what changed since its previous one (SRC-02, SRC-03, SRC-05).
    ///
    /// `now` stamps pods seen for the first time. Annotations `config.source` and `config.seen` are set in both forms
    /// of each emitted pod.
    pub fn merge_snapshot(
        &mut self,
        source: PodSource,
        snapshot: Vec<SnapshotEntry>,
        now: WallTime,
    ) -> MergeResult {
        let Some(feed) = self.feeds.get_mut(&source) else {
            return MergeResult::default();
        };
        let mut merged = MergeResult::default();
        let mut previous = core::mem::take(&mut feed.pods);
        let mut present: BTreeMap<PodUid, PodDigests> = BTreeMap::new();
        let mut names = alloc::collections::BTreeSet::new();
        let mut classes = ChangeClasses::default();
        for delivered in snapshot {
            let received = match delivered {
                SnapshotEntry::Known(uid) => {
                    let held = previous.get(&uid).copied();
                    if let Some(held) = held.filter(|held| names.insert(held.full_name)) {
                        previous.remove(&uid);
                        present.insert(uid, held);
                    } else if !present.contains_key(&uid) {
                        // Not held, or another pod has its name by now. After a new read it is reported like any other.
                        merged.unknown.push(uid);
                    }
                    continue;
                }
                SnapshotEntry::Read(received) => received,
            };
            let uid = received.pod.metadata.uid.clone();
            let full_name = digest_full_name(&received);
            if present.contains_key(&uid) || !names.insert(full_name) {
                merged.dropped.push(received);
                continue;
            }
            let old = previous.remove(&uid);
            present.insert(
                uid,
                classes.classify_pod(received, old, full_name, source, now),
            );
        }
        feed.pods = present;

        let first = !core::mem::replace(&mut feed.merged, true);
        let removed: Vec<PodUid> = previous.into_keys().collect();
        merged.ops = classes.into_operations(removed, first);
        merged
    }

    /// Takes certain knowledge of some pods of `source`: the present state of `pods`, and the end of `gone`. Nothing
    /// follows for any other pod, and the source is no readier than before.
    ///
    /// A pod is left out as [`MergeResult::dropped`], like in a snapshot, if another held pod has its full name and is not
    /// in `gone`.
    pub fn merge_partial(
        &mut self,
        source: PodSource,
        pods: Vec<Box<ReceivedPod>>,
        gone: &[PodUid],
        now: WallTime,
    ) -> MergeResult {
        let Some(feed) = self.feeds.get_mut(&source) else {
            return MergeResult::default();
        };
        let mut merged = MergeResult::default();
        let mut classes = ChangeClasses::default();
        let removed: Vec<PodUid> = gone
            .iter()
            .filter(|uid| feed.pods.remove(*uid).is_some())
            .cloned()
            .collect();
        for received in pods {
            let uid = received.pod.metadata.uid.clone();
            let full_name = digest_full_name(&received);
            let taken = |(other, held): (&PodUid, &PodDigests)| {
                held.full_name == full_name && *other != uid
            };
            if feed.pods.iter().any(taken) {
                merged.dropped.push(received);
                continue;
            }
            let old = feed.pods.remove(&uid);
            let held = classes.classify_pod(received, old, full_name, source, now);
            feed.pods.insert(uid, held);
        }
        merged.ops = classes.into_operations(removed, false);
        merged
    }

    /// Takes the pods that an earlier agent has recorded: the last known state of `source`, until its first report.
    /// Pods that the source does not confirm go with its first full snapshot. `now` stamps records that do not
    /// say when their pod was first seen.
    pub fn restore_recorded(
        &mut self,
        source: PodSource,
        pods: Vec<Box<ReceivedPod>>,
        now: WallTime,
    ) -> MergeResult {
        let seen: Vec<(PodUid, WallTime)> = pods
            .iter()
            .filter_map(|received| {
                let metadata = &received.pod.metadata;
                let seen = WallTime::parse(metadata.annotations.get(CONFIG_SEEN)?)?;
                Some((metadata.uid.clone(), seen))
            })
            .collect();
        let mut merged = self.merge_partial(source, pods, &[], now);
        let held = self.feeds.get_mut(&source).map(|feed| &mut feed.pods);
        let Some(held) = held else { return merged };
        for (uid, seen) in seen {
            if let Some(held) = held.get_mut(&uid) {
                held.seen = seen;
            }
        }
        for op in &mut merged.ops {
            if let SourceOperation::Add(pods) = op {
                for received in pods {
                    if let Some(held) = held.get(&received.pod.metadata.uid) {
                        set_annotation(received, CONFIG_SEEN, &held.seen.rfc3339_nanos());
                    }
                }
            }
        }
        merged
    }

    /// Forgets a pod that was emitted and could not be taken in: the next snapshot that has it emits it again. One that
    /// only names it as [`SnapshotEntry::Known`] leads to [`MergeResult::unknown`].
    pub fn forget_pod(&mut self, source: PodSource, uid: &PodUid) {
        if let Some(feed) = self.feeds.get_mut(&source) {
            feed.pods.remove(uid);
        }
    }

    /// The sync loop has finished handling a message of `source`. What came before the first full snapshot does not
    /// count.
    pub fn mark_handled(&mut self, source: PodSource) {
        if let Some(feed) = self.feeds.get_mut(&source) {
            feed.handled |= feed.merged;
        }
    }

    /// Returns true if `source` has delivered a snapshot and the sync loop has handled a message of it.
    #[must_use]
    pub fn source_ready(&self, source: PodSource) -> bool {
        self.feeds
            .get(&source)
            .is_some_and(|f| f.merged && f.handled)
    }

    /// Returns true if every configured source is ready; never reverts. True when there is none (SRC-13).
    #[must_use]
    pub fn all_sources_ready(&self) -> bool {
        self.feeds.values().all(|f| f.merged && f.handled)
    }
}

fn digest_full_name(received: &ReceivedPod) -> u64 {
    let metadata = &received.pod.metadata;
    digest::full_name_digest(&metadata.namespace, &metadata.name)
}

/// Changed pods, sorted into the classes of SRC-03.
#[derive(Default)]
#[expect(
    clippy::vec_box,
    reason = "a received pod is large, and goes on in its box"
)]
struct ChangeClasses {
    adds: Vec<Box<ReceivedPod>>,
    updates: Vec<Box<ReceivedPod>>,
    deletes: Vec<Box<ReceivedPod>>,
    reconciles: Vec<Box<ReceivedPod>>,
}

impl ChangeClasses {
    /// Puts a pod into its class and returns its new digests.
    fn classify_pod(
        &mut self,
        mut received: Box<ReceivedPod>,
        old: Option<PodDigests>,
        full_name: u64,
        source: PodSource,
        now: WallTime,
    ) -> PodDigests {
        let held = PodDigests {
            full_name,
            semantic: digest::semantic_digest(&received.raw),
            status: digest::status_digest(&received.raw),
            seen: old.map_or(now, |old| old.seen),
        };
        let into = match old {
            None => &mut self.adds,
            Some(old) if old.semantic != held.semantic => {
                if received.pod.metadata.deletion_timestamp.is_some() {
                    &mut self.deletes
                } else {
                    &mut self.updates
                }
            }
            Some(old) if old.status != held.status => &mut self.reconciles,
            Some(_) => return held,
        };
        set_annotation(&mut received, CONFIG_SOURCE, source.as_str());
        set_annotation(&mut received, CONFIG_SEEN, &held.seen.rfc3339_nanos());
        into.push(received);
        held
    }

    /// The operations in their order (SRC-05). `first`: without usable pods there is an empty `Add` (SRC-06).
    fn into_operations(self, removed: Vec<PodUid>, first: bool) -> Vec<SourceOperation> {
        let usable = !self.adds.is_empty() || !self.updates.is_empty() || !self.deletes.is_empty();
        let ops = [
            (!removed.is_empty()).then_some(SourceOperation::Remove(removed)),
            (!self.adds.is_empty()).then_some(SourceOperation::Add(self.adds)),
            (!self.updates.is_empty()).then_some(SourceOperation::Update(self.updates)),
            (!self.deletes.is_empty()).then_some(SourceOperation::Delete(self.deletes)),
            (first && !usable).then_some(SourceOperation::Add(vec![])),
            (!self.reconciles.is_empty()).then_some(SourceOperation::Reconcile(self.reconciles)),
        ];
        ops.into_iter().flatten().collect()
    }
}

/// Sets an annotation in both forms of a pod.
pub(super) fn set_annotation(received: &mut ReceivedPod, name: &str, value: &str) {
    received
        .pod
        .metadata
        .annotations
        .insert(name.into(), value.into());
    let annotations = &mut received.raw["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = Value::Object(serde_json::Map::new());
    }
    annotations[name] = value.into();
}

#[cfg(test)]
mod tests;
