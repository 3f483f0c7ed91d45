//! Pods with user namespaces: the ids that they get, and the files that keep them.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::world::{World, manifest};
use crate::{
    api::{
        cri::{ContainerState, ContainerStatus, IdMap},
        pod_status::PodPhase,
    },
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
    let sandbox = pod.sandboxes.last().expect("sandbox");
    assert_eq!(sandbox.namespaces.users, Some(kept), "{uid}");
    kept
}

#[test]
fn each_pod_has_ids_of_its_own() {
    // UNS-21 UNS-31 CFG-14
    let world = World::new();
    world.apply(&[
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
fn a_bad_file_harms_only_its_own_pod() {
    // UNS-21
    let world = World::new();
    // As a pod leaves it whose disk was damaged.
    let bad = file(&world, "bad");
    fs::create_dir_all(bad.parent().expect("directory")).expect("directory");
    fs::write(&bad, "{").expect("file");
    world.apply(&[with_users("bad"), with_users("a")]);
    runs(&world, "a");
    world.until("it is refused", |w| {
        w.events_of("FailedCreatePodSandBox") > 0
    });
    assert_eq!(world.phase("bad"), Some(PodPhase::Pending));
    assert_eq!(fs::read(&bad).expect("file"), b"{");
    // The ids of a sandbox are taken, though no file has them.
    let a = ids(&world, "a");
    fs::remove_file(file(&world, "a")).expect("file");
    world.apply(&[with_users("a"), with_users("b")]);
    runs(&world, "b");
    assert_ne!(ids(&world, "b"), a);
}

#[test]
fn a_lost_file_comes_back() {
    // UNS-21 UNS-31
    let world = World::new();
    world.apply(&[with_users("a")]);
    runs(&world, "a");
    let a = ids(&world, "a");
    for text in [None, Some("{")] {
        match text {
            None => fs::remove_file(file(&world, "a")).expect("file"),
            Some(text) => fs::write(file(&world, "a"), text).expect("file"),
        }
        let pods = world.fake.pods();
        let pod = pods.iter().find(|pod| &*pod.uid == "a").expect("pod");
        let running = |c: &&ContainerStatus| c.state == ContainerState::Running;
        let container = pod.containers.iter().find(running).expect("container");
        assert!(world.fake.exit(&container.id, 1));
        world.until("its file is written again", |w| {
            let text = fs::read(file(w, "a")).unwrap_or_default();
            read_map_file(&text).is_ok_and(|ids| ids == a)
        });
        world.until("it runs again", |w| w.fake.runs(&"a".into()));
        assert_eq!(ids(&world, "a"), a);
    }
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
