use alloc::{borrow::ToOwned, boxed::Box, string::String, vec::Vec};

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

fn pod(uid: &str, name: &str, spec: u32) -> SnapshotEntry {
    SnapshotEntry::Read(received(uid, name, spec))
}

fn with(uid: &str, spec: u32, pointer: &str, value: Value) -> SnapshotEntry {
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
    SnapshotEntry::Read(received)
}

/// `add a b` and the like, one line per operation.
fn say(merged: &MergeResult) -> Vec<String> {
    let names = |pods: &[Box<ReceivedPod>]| {
        pods.iter()
            .map(|p| format!(" {}", &*p.pod.metadata.uid))
            .collect::<String>()
    };
    merged
        .ops
        .iter()
        .map(|op| match op {
            SourceOperation::Remove(uids) => format!(
                "remove{}",
                uids.iter().map(|u| format!(" {u}")).collect::<String>()
            ),
            SourceOperation::Add(pods) => format!("add{}", names(pods)),
            SourceOperation::Update(pods) => format!("update{}", names(pods)),
            SourceOperation::Delete(pods) => format!("delete{}", names(pods)),
            SourceOperation::Reconcile(pods) => format!("reconcile{}", names(pods)),
        })
        .collect()
}

const NOW: WallTime = WallTime(1_700_000_000_123_456_789);

#[test]
fn snapshots() {
    // SRC-02 SRC-03 SRC-05 SRC-06 SRC-07
    let deleted = || json!("2026-01-01T00:00:00Z");
    type Rows = Vec<(&'static str, Vec<SnapshotEntry>, Vec<&'static str>)>;
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
                SnapshotEntry::Known("b".into()),
                with("c", 1, "/metadata/deletionTimestamp", deleted()),
                SnapshotEntry::Known("d".into()),
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
    let mut mux = SourceMux::new(&[PodSource::File]);
    for (name, snapshot, ops) in rows {
        let merged = mux.merge_snapshot(PodSource::File, snapshot, NOW);
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
    let mut mux = SourceMux::new(&[PodSource::File, PodSource::Api]);
    assert_eq!(
        say(&mux.merge_snapshot(PodSource::File, vec![pod("a", "a", 1)], NOW)),
        ["add a"]
    );
    assert_eq!(
        say(&mux.merge_snapshot(PodSource::Api, vec![pod("b", "a", 1)], NOW)),
        ["add b"]
    );
    assert_eq!(
        say(&mux.merge_snapshot(PodSource::Api, vec![], NOW)),
        ["remove b"]
    );
    let mut mux = SourceMux::new(&[PodSource::File]);
    assert_eq!(
        say(&mux.merge_snapshot(PodSource::Api, vec![pod("c", "c", 1)], NOW)),
        Vec::<String>::new(),
        "not configured"
    );
}

#[test]
fn stamps() {
    // SRC-08 SRC-09 SRC-10
    let mut mux = SourceMux::new(&[PodSource::Api]);
    let stamps = |merged: &MergeResult| {
        let (SourceOperation::Add(pods) | SourceOperation::Update(pods)) = &merged.ops[0] else {
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
    assert_eq!(
        stamps(&mux.merge_snapshot(PodSource::Api, vec![mirror(1)], NOW)),
        first
    );
    let later = WallTime::from_unix_seconds(1_800_000_000);
    assert_eq!(
        stamps(&mux.merge_snapshot(PodSource::Api, vec![mirror(2)], later)),
        first
    );
}

#[test]
fn duplicates() {
    // SRC-11
    let mut mux = SourceMux::new(&[PodSource::Api]);
    let merged = mux.merge_snapshot(
        PodSource::Api,
        vec![pod("a", "x", 1), pod("b", "x", 1), pod("a", "y", 1)],
        NOW,
    );
    assert_eq!(say(&merged), ["add a"]);
    assert_eq!(
        merged.dropped,
        [received("b", "x", 1), received("a", "y", 1)]
    );
    let merged = mux.merge_snapshot(
        PodSource::Api,
        vec![pod("b", "x", 1), pod("a", "x", 1)],
        NOW,
    );
    assert_eq!(say(&merged), ["remove a", "add b"]);
    // A pod that is delivered by UID alone is no exception.
    let known = || SnapshotEntry::Known("b".into());
    let merged = mux.merge_snapshot(PodSource::Api, vec![pod("c", "x", 1), known()], NOW);
    assert_eq!(say(&merged), ["remove b", "add c"]);
    assert_eq!(merged.unknown, ["b".into()]);
}

#[test]
fn unknown_is_asked_for() {
    let mut mux = SourceMux::new(&[PodSource::File]);
    let merged = mux.merge_snapshot(PodSource::File, vec![SnapshotEntry::Known("a".into())], NOW);
    assert_eq!(merged.unknown, ["a".into()]);
}

#[test]
fn single_pods_before_and_between_snapshots() {
    // SRC-03 SRC-05 SRC-07 SRC-13 SRC-30 SEED-01
    let deleted = with(
        "b",
        1,
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    let read = |delivered| match delivered {
        SnapshotEntry::Read(received) => received,
        SnapshotEntry::Known(uid) => panic!("{uid}"),
    };
    let mut mux = SourceMux::new(&[PodSource::Api]);
    let add = mux.merge_partial(
        PodSource::Api,
        vec![received("a", "a", 1), received("b", "b", 1)],
        &[],
        NOW,
    );
    assert_eq!(say(&add), ["add a b"]);
    mux.mark_handled(PodSource::Api);
    assert!(!mux.source_ready(PodSource::Api), "that was no snapshot");
    let none = mux.merge_partial(PodSource::Api, vec![], &["x".into()], NOW);
    assert_eq!(
        say(&none),
        Vec::<String>::new(),
        "neither readiness nor the unknown"
    );
    let same = mux.merge_partial(PodSource::Api, vec![received("a", "a", 1)], &[], NOW);
    assert_eq!(say(&same), Vec::<String>::new());
    let delete = mux.merge_partial(PodSource::Api, vec![read(deleted)], &[], NOW);
    assert_eq!(say(&delete), ["delete b"]);
    let taken = mux.merge_partial(PodSource::Api, vec![received("c", "b", 1)], &[], NOW);
    assert_eq!((say(&taken), taken.dropped.len()), (vec![], 1));
    let anew = mux.merge_partial(
        PodSource::Api,
        vec![received("c", "b", 1)],
        &["b".into()],
        NOW,
    );
    assert_eq!(say(&anew), ["remove b", "add c"]);
    let known = ["a", "c"]
        .map(|uid| SnapshotEntry::Known(uid.into()))
        .into();
    assert_eq!(
        say(&mux.merge_snapshot(PodSource::Api, known, NOW)),
        ["add"],
        "readiness"
    );
    mux.mark_handled(PodSource::Api);
    assert!(mux.source_ready(PodSource::Api));
}

#[test]
fn records_of_an_agent_before() {
    // SRC-10 SRC-13 SEED-01
    let seen = "2023-11-14T22:13:20.123456789Z";
    let recorded = |uid: &str| {
        let key = "/metadata/annotations/kubernetes.io~1config.seen";
        match with(uid, 1, key, json!(seen)) {
            SnapshotEntry::Read(received) => received,
            SnapshotEntry::Known(uid) => panic!("{uid}"),
        }
    };
    let later = WallTime::from_unix_seconds(1_800_000_000);
    let mut mux = SourceMux::new(&[PodSource::Api]);
    let start = mux.restore_recorded(
        PodSource::Api,
        vec![recorded("a"), recorded("b"), received("c", "c", 1)],
        later,
    );
    let [SourceOperation::Add(pods)] = start.ops.as_slice() else {
        panic!("{start:?}")
    };
    let stamps: Vec<&str> = pods
        .iter()
        .map(|p| p.pod.metadata.annotations[CONFIG_SEEN].as_str())
        .collect();
    assert_eq!(stamps, [seen, seen, later.rfc3339_nanos().as_str()]);
    mux.mark_handled(PodSource::Api);
    assert!(
        !mux.all_sources_ready(),
        "the disk does not speak for the apiserver"
    );
    // The apiserver is back: unchanged pods go on undisturbed, pods that it no longer has are removed.
    let back = mux.merge_snapshot(
        PodSource::Api,
        vec![pod("a", "a", 1), SnapshotEntry::Known("c".into())],
        later,
    );
    assert_eq!(say(&back), ["remove b", "add"]);
    mux.mark_handled(PodSource::Api);
    assert!(mux.all_sources_ready());
}

#[test]
fn readiness() {
    // SRC-13
    assert!(SourceMux::new(&[]).all_sources_ready());
    let mut mux = SourceMux::new(&[PodSource::File, PodSource::Api]);
    mux.mark_handled(PodSource::Api);
    assert!(
        !mux.source_ready(PodSource::Api),
        "handled before any snapshot"
    );
    mux.merge_snapshot(PodSource::Api, vec![], NOW);
    assert!(!mux.source_ready(PodSource::Api), "not handled since");
    mux.mark_handled(PodSource::Api);
    assert!(mux.source_ready(PodSource::Api) && !mux.all_sources_ready());
    mux.merge_snapshot(PodSource::File, vec![], NOW);
    assert!(!mux.all_sources_ready(), "not yet handled");
    mux.mark_handled(PodSource::File);
    assert!(mux.all_sources_ready());
    mux.merge_snapshot(PodSource::File, vec![], NOW);
    assert!(mux.all_sources_ready());
}
