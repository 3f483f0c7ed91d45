//! Merges the snapshots of all sources into operations on pods. Names follow kubelet `config/config.go`.
//!
//! Every source sends full snapshots only. The mux compares each with that source's previous one by uid and says what
//! changed. Of a pod it keeps four digests and the time it was first seen, never the pod.

use alloc::collections::BTreeMap;

use serde_json::Value;

use super::digest;
use crate::api::order::Gather;
use crate::api::pod::{CONFIG_SEEN, CONFIG_SOURCE};
use crate::api::received::{Delivered, ReceivedPod};
use crate::api::{PodUid, Wall};

/// Where pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The manifest directory or file.
    File,
    /// A manifest URL.
    Http,
    /// The apiserver.
    Api,
}

impl Source {
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

/// One operation: pods of one source, never empty except for the `Add` that only says the source is there (SRC-06).
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
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

/// What one snapshot led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Operations in the order in which they must be handled.
    pub ops: Vec<Op>,
    /// Pods left out because another pod of the same snapshot has their full name or their uid: to be reported as
    /// `Warning/FailedValidation`. They count as absent.
    pub dropped: Vec<Box<ReceivedPod>>,
    /// Uids delivered as [`Delivered::Known`] that this mux does not hold, or whose full name a pod before them in the
    /// snapshot has taken: the source must be read anew as a whole.
    pub unknown: Vec<PodUid>,
}

/// What is kept of one pod of one source.
#[derive(Clone, Copy, Debug)]
struct Held {
    full_name: u64,
    semantic: u64,
    status: u64,
    seen: Wall,
}

#[derive(Debug, Default)]
struct Feed {
    /// Set by the first merge.
    merged: bool,
    /// Set when the sync loop has handled a message.
    handled: bool,
    pods: BTreeMap<PodUid, Held>,
}

/// The previous snapshot of every configured source, as digests.
#[derive(Debug)]
pub struct Mux {
    feeds: BTreeMap<Source, Feed>,
}

impl Mux {
    /// A mux that waits for `sources`; a message of any other source is ignored.
    #[must_use]
    pub fn new(sources: &[Source]) -> Self {
        Self {
            feeds: sources.iter().map(|s| (*s, Feed::default())).gather(),
        }
    }

    /// Takes a full snapshot of `source` and returns what changed since its previous one (SRC-02, SRC-03, SRC-05).
    ///
    /// `now` stamps pods seen for the first time. Annotations `config.source` and `config.seen` are set in both forms
    /// of each emitted pod.
    pub fn merge(&mut self, source: Source, snapshot: Vec<Delivered>, now: Wall) -> Merged {
        let Some(feed) = self.feeds.get_mut(&source) else {
            return Merged::default();
        };
        let mut merged = Merged::default();
        let mut previous = core::mem::take(&mut feed.pods);
        let mut present: BTreeMap<PodUid, Held> = BTreeMap::new();
        let mut names = alloc::collections::BTreeSet::new();
        let (mut adds, mut updates, mut deletes, mut reconciles) = (vec![], vec![], vec![], vec![]);
        for delivered in snapshot {
            let mut received = match delivered {
                Delivered::Known(uid) => {
                    let held = previous.get(&uid).copied();
                    if let Some(held) = held.filter(|held| names.insert(held.full_name)) {
                        previous.remove(&uid);
                        present.insert(uid, held);
                    } else if !present.contains_key(&uid) {
                        // Not held, or its name is another pod's by now: read anew, it is reported like any other.
                        merged.unknown.push(uid);
                    }
                    continue;
                }
                Delivered::Read(received) => received,
            };
            let metadata = &received.pod.metadata;
            let uid = metadata.uid.clone();
            let full_name = digest::full_name(&metadata.namespace, &metadata.name);
            if present.contains_key(&uid) || !names.insert(full_name) {
                merged.dropped.push(received);
                continue;
            }
            let old = previous.remove(&uid);
            let held = Held {
                full_name,
                semantic: digest::semantic(&received.raw),
                status: digest::status(&received.raw),
                seen: old.map_or(now, |old| old.seen),
            };
            present.insert(uid, held);
            let into = match old {
                None => &mut adds,
                Some(old) if old.semantic != held.semantic => {
                    if received.pod.metadata.deletion_timestamp.is_some() {
                        &mut deletes
                    } else {
                        &mut updates
                    }
                }
                Some(old) if old.status != held.status => &mut reconciles,
                Some(_) => continue,
            };
            annotate(&mut received, CONFIG_SOURCE, source.as_str());
            annotate(&mut received, CONFIG_SEEN, &held.seen.rfc3339_nanos());
            into.push(received);
        }
        feed.pods = present;

        let first = !core::mem::replace(&mut feed.merged, true);
        let usable = !adds.is_empty() || !updates.is_empty() || !deletes.is_empty();
        let removed: Vec<PodUid> = previous.into_keys().collect();
        let ops = [
            (!removed.is_empty()).then_some(Op::Remove(removed)),
            (!adds.is_empty()).then_some(Op::Add(adds)),
            (!updates.is_empty()).then_some(Op::Update(updates)),
            (!deletes.is_empty()).then_some(Op::Delete(deletes)),
            (first && !usable).then_some(Op::Add(vec![])),
            (!reconciles.is_empty()).then_some(Op::Reconcile(reconciles)),
        ];
        merged.ops = ops.into_iter().flatten().collect();
        merged
    }

    /// Forgets a pod that was emitted and could not be taken in: the next snapshot that has it emits it again. One that
    /// only names it as [`Delivered::Known`] leads to [`Merged::unknown`].
    pub fn forget(&mut self, source: Source, uid: &PodUid) {
        if let Some(feed) = self.feeds.get_mut(&source) {
            feed.pods.remove(uid);
        }
    }

    /// The sync loop has finished handling a message of `source`.
    pub fn mark_handled(&mut self, source: Source) {
        if let Some(feed) = self.feeds.get_mut(&source) {
            feed.handled = true;
        }
    }

    /// Whether `source` has delivered a snapshot and the sync loop has handled a message of it.
    #[must_use]
    pub fn source_ready(&self, source: Source) -> bool {
        self.feeds
            .get(&source)
            .is_some_and(|f| f.merged && f.handled)
    }

    /// Whether every configured source is ready; never reverts. True when there is none (SRC-13).
    #[must_use]
    pub fn all_sources_ready(&self) -> bool {
        self.feeds.values().all(|f| f.merged && f.handled)
    }

    /// Uids of the last snapshot of `source`, sorted.
    pub fn uids(&self, source: Source) -> impl Iterator<Item = &PodUid> {
        self.feeds
            .get(&source)
            .into_iter()
            .flat_map(|f| f.pods.keys())
    }
}

/// Sets an annotation in both forms of a pod.
pub(super) fn annotate(received: &mut ReceivedPod, name: &str, value: &str) {
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
mod tests {
    use serde_json::json;

    use super::*;

    fn received(uid: &str, name: &str, spec: u32) -> Box<ReceivedPod> {
        let raw = json!({
            "metadata": {"uid": uid, "name": name, "namespace": "default"},
            "spec": {"activeDeadlineSeconds": spec},
        });
        Box::new(ReceivedPod {
            pod: serde_json::from_value(raw.clone()).expect("pod"),
            raw,
            origin: "".into(),
        })
    }

    fn pod(uid: &str, name: &str, spec: u32) -> Delivered {
        Delivered::Read(received(uid, name, spec))
    }

    fn with(uid: &str, spec: u32, pointer: &str, value: Value) -> Delivered {
        let mut received = received(uid, uid, spec);
        let (parent, field) = pointer.rsplit_once('/').expect("pointer");
        if parent == "/metadata/annotations" {
            received.raw["metadata"]["annotations"] = json!({});
        }
        if parent == "/status" {
            received.raw["status"] = json!({});
        }
        received.raw.pointer_mut(parent).expect("parent")[field.replace("~1", "/")] = value;
        received.pod = serde_json::from_value(received.raw.clone()).expect("pod");
        Delivered::Read(received)
    }

    /// `add a b` and the like, one line per operation.
    fn say(merged: &Merged) -> Vec<String> {
        let names = |pods: &[Box<ReceivedPod>]| {
            pods.iter()
                .map(|p| format!(" {}", &*p.pod.metadata.uid))
                .collect::<String>()
        };
        merged
            .ops
            .iter()
            .map(|op| match op {
                Op::Remove(uids) => format!(
                    "remove{}",
                    uids.iter().map(|u| format!(" {u}")).collect::<String>()
                ),
                Op::Add(pods) => format!("add{}", names(pods)),
                Op::Update(pods) => format!("update{}", names(pods)),
                Op::Delete(pods) => format!("delete{}", names(pods)),
                Op::Reconcile(pods) => format!("reconcile{}", names(pods)),
            })
            .collect()
    }

    const NOW: Wall = Wall(1_700_000_000_123_456_789);

    #[test]
    fn snapshots() {
        // SRC-02 SRC-03 SRC-05 SRC-06 SRC-07
        let deleted = || json!("2026-01-01T00:00:00Z");
        type Rows = Vec<(&'static str, Vec<Delivered>, Vec<&'static str>)>;
        let rows: Rows = vec![
            ("nothing at first: readiness only", vec![], vec!["add"]),
            ("nothing again", vec![], vec![]),
            (
                "new pods",
                vec![
                    pod("a", "a", 1),
                    pod("b", "b", 1),
                    pod("c", "c", 1),
                    pod("d", "d", 1),
                ],
                vec!["add a b c d"],
            ),
            (
                "all at once, in order",
                vec![
                    with("b", 1, "/status/phase", json!("Running")),
                    with("c", 1, "/metadata/deletionTimestamp", deleted()),
                    pod("d", "d", 2),
                    pod("e", "e", 1),
                ],
                vec!["remove a", "add e", "update d", "delete c", "reconcile b"],
            ),
            (
                "identical; known without reading",
                vec![
                    Delivered::Known("b".into()),
                    with("c", 1, "/metadata/deletionTimestamp", deleted()),
                    Delivered::Known("d".into()),
                    pod("e", "e", 1),
                ],
                vec![],
            ),
            (
                "semantic change of a pod being deleted is a delete",
                vec![
                    with("c", 2, "/metadata/deletionTimestamp", deleted()),
                    pod("e", "e", 1),
                ],
                vec!["remove b d", "delete c"],
            ),
            (
                "first seen with a deletion time is an add",
                vec![with("f", 1, "/metadata/deletionTimestamp", deleted())],
                vec!["remove c e", "add f"],
            ),
            (
                "recreated under its name",
                vec![pod("g", "f", 1)],
                vec!["remove f", "add g"],
            ),
            ("gone", vec![], vec!["remove g"]),
        ];
        let mut mux = Mux::new(&[Source::File]);
        for (name, snapshot, ops) in rows {
            let merged = mux.merge(Source::File, snapshot, NOW);
            assert_eq!(say(&merged), ops, "{name}");
            assert!(
                merged.unknown.is_empty() && merged.dropped.is_empty(),
                "{name}"
            );
        }
    }

    #[test]
    fn sources_are_apart() {
        // SRC-01
        let mut mux = Mux::new(&[Source::File, Source::Api]);
        assert_eq!(
            say(&mux.merge(Source::File, vec![pod("a", "a", 1)], NOW)),
            ["add a"]
        );
        assert_eq!(
            say(&mux.merge(Source::Api, vec![pod("b", "a", 1)], NOW)),
            ["add b"]
        );
        assert_eq!(say(&mux.merge(Source::Api, vec![], NOW)), ["remove b"]);
        assert_eq!(
            mux.uids(Source::File).map(|u| &**u).collect::<Vec<_>>(),
            ["a"]
        );
        assert_eq!(
            say(&mux.merge(Source::Http, vec![pod("c", "c", 1)], NOW)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn stamps() {
        // SRC-08 SRC-09 SRC-10
        let mut mux = Mux::new(&[Source::Api]);
        let stamps = |merged: &Merged| {
            let (Op::Add(pods) | Op::Update(pods)) = &merged.ops[0] else {
                panic!("{merged:?}")
            };
            let raw = &pods[0].raw["metadata"]["annotations"];
            let typed = &pods[0].pod.metadata.annotations;
            assert_eq!(raw, &json!(typed));
            (typed[CONFIG_SOURCE].clone(), typed[CONFIG_SEEN].clone())
        };
        let mirror = |spec| {
            with(
                "a",
                spec,
                "/metadata/annotations/kubernetes.io~1config.source",
                json!("file"),
            )
        };
        let first = (
            "api".to_owned(),
            "2023-11-14T22:13:20.123456789Z".to_owned(),
        );
        assert_eq!(stamps(&mux.merge(Source::Api, vec![mirror(1)], NOW)), first);
        let later = Wall::from_secs(1_800_000_000);
        assert_eq!(
            stamps(&mux.merge(Source::Api, vec![mirror(2)], later)),
            first
        );
    }

    #[test]
    fn duplicates() {
        // SRC-11
        let mut mux = Mux::new(&[Source::Api]);
        let merged = mux.merge(
            Source::Api,
            vec![pod("a", "x", 1), pod("b", "x", 1), pod("a", "y", 1)],
            NOW,
        );
        assert_eq!(say(&merged), ["add a"]);
        assert_eq!(
            merged.dropped,
            [received("b", "x", 1), received("a", "y", 1)]
        );
        let merged = mux.merge(Source::Api, vec![pod("b", "x", 1), pod("a", "x", 1)], NOW);
        assert_eq!(say(&merged), ["remove a", "add b"]);
        // One that is only said to be there is no exception.
        let known = || Delivered::Known("b".into());
        let merged = mux.merge(Source::Api, vec![pod("c", "x", 1), known()], NOW);
        assert_eq!(say(&merged), ["remove b", "add c"]);
        assert_eq!(merged.unknown, ["b".into()]);
    }

    #[test]
    fn unknown_is_asked_for() {
        let mut mux = Mux::new(&[Source::File]);
        let merged = mux.merge(Source::File, vec![Delivered::Known("a".into())], NOW);
        assert_eq!(merged.unknown, ["a".into()]);
    }

    #[test]
    fn readiness() {
        // SRC-13
        assert!(Mux::new(&[]).all_sources_ready());
        let mut mux = Mux::new(&[Source::File, Source::Api]);
        mux.mark_handled(Source::Api);
        assert!(
            !mux.source_ready(Source::Api),
            "handled before any snapshot"
        );
        mux.merge(Source::Api, vec![], NOW);
        assert!(mux.source_ready(Source::Api) && !mux.all_sources_ready());
        mux.merge(Source::File, vec![], NOW);
        assert!(!mux.all_sources_ready(), "not yet handled");
        mux.mark_handled(Source::File);
        assert!(mux.all_sources_ready());
        mux.merge(Source::File, vec![], NOW);
        assert!(mux.all_sources_ready());
    }
}
