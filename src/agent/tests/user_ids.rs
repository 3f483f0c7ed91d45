//! Pods with user namespaces: the ids that they get, and the files that keep them.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::world::{World, manifest};
use crate::{
    api::{cri::IdMap, pod_status::PodPhase},
    logic::user_namespaces::read_map_file,
    runtime::fake::HANDLER,
};

fn with_users(uid: &str) -> Value {
    manifest(
        uid,
        json!({"hostUsers": false, "runtimeClassName": HANDLER}),
    )
}

fn file(world: &World, uid: &str) -> PathBuf {
    world
        .parts
        .machine
        .store
        .pod_dir(&uid.into())
        .join("userns")
}

fn runs(world: &World, uid: &str) {
    world.until("it runs", |w| w.phase(uid) == Some(PodPhase::Running));
}

/// The ids of a pod: those of its file, its sandbox and its container.
fn ids(world: &World, uid: &str) -> IdMap {
    let kept = fs::read(file(world, uid)).expect("file");
    let kept = read_map_file(&kept).expect("ids");
    let config = world.fake.config(&uid.into(), "c").expect("container");
    assert_eq!(config.security.namespaces.users, Some(kept), "{uid}");
    let pods = world.fake.pods();
    let pod = pods.iter().find(|pod| *pod.uid == *uid).expect("pod");
    let sandboxes = pod.sandboxes.iter().map(|s| s.namespaces.users);
    assert_eq!(sandboxes.last(), Some(Some(kept)), "{uid}");
    kept
}

#[test]
fn each_pod_has_ids_of_its_own() {
    // UNS-21 UNS-31 CFG-14
    let world = World::new();
    // As a pod leaves it whose disk was damaged; its ids are legible.
    let bad = file(&world, "bad");
    fs::create_dir_all(bad.parent().expect("directory")).expect("directory");
    let legible = r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#;
    fs::write(&bad, legible).expect("file");
    world.apply(&[
        with_users("bad"),
        with_users("a"),
        with_users("b"),
        manifest("plain", json!({})),
    ]);
    for uid in ["a", "b", "plain"] {
        runs(&world, uid);
    }
    let plain = world.fake.config(&"plain".into(), "c").expect("container");
    assert_eq!(plain.security.namespaces.users, None);
    assert!(!file(&world, "plain").exists());
    let (a, b) = (ids(&world, "a"), ids(&world, "b"));
    assert!(a != b && a.host_id > 0 && a.length == 65_536, "{a:?} {b:?}");
    assert!(
        [a, b].iter().all(|map| map.host_id != 131_072),
        "those are taken"
    );
    assert_eq!(world.phase("bad"), Some(PodPhase::Pending));
    assert!(world.events_of("FailedCreatePodSandBox") > 0);

    // Another agent, another sandbox, another boot: the ids stay.
    let world = world.restart_agent();
    world.apply(&[with_users("a"), with_users("b")]);
    let sandbox = world.fake.pods().into_iter().find(|pod| &*pod.uid == "a");
    let sandbox = sandbox
        .expect("pod")
        .sandboxes
        .last()
        .expect("sandbox")
        .id
        .clone();
    world.fake.lose_sandbox(&sandbox);
    world.until("a runs again", |w| {
        let pods = w.fake.pods();
        let pod = pods.iter().find(|pod| &*pod.uid == "a");
        pod.is_some_and(|pod| pod.sandboxes.iter().any(|s| s.id != sandbox))
            && w.fake.runs(&"a".into())
    });
    assert_eq!((ids(&world, "a"), ids(&world, "b")), (a, b));
    let world = world.reboot();
    world.apply(&[with_users("a"), with_users("b")]);
    world.until("both run", |w| {
        w.fake.runs(&"a".into()) && w.fake.runs(&"b".into())
    });
    assert_eq!((ids(&world, "a"), ids(&world, "b")), (a, b));

    // What nobody has any more is given again.
    world.apply(&[with_users("b")]);
    world.until("a is gone", |w| !file(w, "a").exists());
    world.apply(&[with_users("b"), with_users("c")]);
    runs(&world, "c");
    assert_eq!(ids(&world, "c"), a);
}

#[test]
fn without_a_runtime_that_can_nothing_is_taken() {
    // UNS-20 CFG-14
    let world = World::new();
    world.apply(&[
        manifest("a", json!({"hostUsers": false})),
        manifest("b", json!({"hostUsers": true})),
    ]);
    runs(&world, "b");
    world.until("it is refused", |w| {
        w.events_of("FailedCreatePodSandBox") > 1
    });
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    assert!(!file(&world, "a").exists());
    assert!(world.fake.config(&"a".into(), "c").is_none());
}
