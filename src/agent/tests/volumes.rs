//! Files of a pod on the disk: their places, their lifetime, and their state under the next agent.

use alloc::sync::Arc;
use std::fs;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    order::{pod_dir, runs, state, told},
    probes::s,
    world::{IMAGE, World, manifest},
};
use crate::api::{PodUid, cri::ContainerState, pod_status::PodPhase};

/// Manifest of a pod with a volume on the disk and one in memory.
fn with_volumes(uid: &str, more: Value) -> Value {
    let mounts = json!([{"name": "d", "mountPath": "/d"}, {"name": "m", "mountPath": "/m"}]);
    let mut pod = manifest(
        uid,
        json!({
            "volumes": [{"name": "d", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}}],
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts}],
        }),
    );
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        pod["spec"][key] = value;
    }
    pod
}

#[test]
fn volumes_that_this_node_does_not_have_are_named() {
    // SRC-33
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let projected = |source: Value| json!({"projected": {"sources": [source]}});
    let rows = [
        ("csi", json!({"csi": {"driver": "d"}})),
        ("iscsi", json!({"iscsi": {}})),
        ("someday", projected(json!({"someday": {"keyType": "k"}}))),
    ];
    for (kind, mut volume) in rows {
        volume["name"] = "v".into();
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        let container =
            json!({"name": "c", "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts});
        let name = kind.to_lowercase();
        api.create(
            &name,
            json!({"volumes": [volume], "containers": [container]}),
        );
        let text = format!(" of type {kind:?} ");
        world.until(kind, |w| {
            told(w, "FailedMount").iter().any(|t| t.contains(&text))
        });
        assert_eq!(api.phase(&name), "Pending");
    }
}

#[test]
fn volumes_wait_for_the_sources_of_the_next_agent() {
    // VOL-31 DIR-04
    let world = World::new();
    let pods = ["kept", "ended", "removed"].map(|uid| {
        let policy = if uid == "ended" { "Never" } else { "Always" };
        with_volumes(uid, json!({"restartPolicy": policy}))
    });
    world.apply(&pods);
    for uid in ["kept", "ended", "removed"] {
        runs(&world, uid);
    }
    let base = world.parts.cfg.dirs.root.join("pods");
    let file = |uid: &str, volume: &str| {
        let of = format!("{uid}/volumes/kubernetes.io~empty-dir/{volume}/file");
        base.join(of)
    };
    for uid in ["kept", "removed"] {
        for volume in ["d", "m"] {
            fs::write(file(uid, volume), uid).expect("file");
        }
    }
    let mounts = |uid: &str| {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let point = file(uid, "m")
            .parent()
            .expect("directory")
            .display()
            .to_string();
        table.lines().filter(|line| line.contains(&point)).count()
    };
    assert_eq!([mounts("kept"), mounts("removed")], [1, 1]);
    let ended = world.fake.container(&"ended".into(), "c").expect("runs").id;
    world.fake.exit(&ended, 0);
    world.until("its volumes go", |_| {
        !file("ended", "d").parent().expect("directory").exists()
    });
    assert!(base.join("ended").exists(), "it is configured");

    // No container of one pod runs when the next agent starts, and the agent has no manifest of it.
    let world = world.restart_agent_with(|fake| {
        let one = fake.container(&"removed".into(), "c").expect("runs");
        fake.exit(&one.id, 1);
        fake.lose_sandbox(&one.sandbox);
    });
    world.advance(s(200));
    let read = |uid: &str, volume: &str| fs::read_to_string(file(uid, volume)).unwrap_or_default();
    for uid in ["kept", "removed"] {
        assert_eq!([read(uid, "d"), read(uid, "m")], [uid, uid], "{uid}");
        assert_eq!(mounts(uid), 1, "{uid}");
    }
    assert!(base.join("ended").exists());

    world.apply(&pods[..2]);
    world.until("what nobody wants goes", |w| w.is_gone("removed"));
    runs(&world, "kept");
    world.advance(s(200));
    assert_eq!(
        [read("kept", "d"), read("kept", "m")],
        ["kept", "kept"],
        "adopted as it was"
    );
    assert_eq!([mounts("kept"), mounts("removed")], [1, 0]);
    assert_eq!(state(&world, "kept", "c"), Some(ContainerState::Running));
    assert!(
        base.join("ended").exists(),
        "of a pod that has ended, and is configured"
    );
    assert_eq!(world.phase("ended"), Some(PodPhase::Succeeded));
}

#[test]
fn where_things_of_a_pod_lie() {
    // DIR-02 SYNC-08
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    api.put_object("configmaps/ns/cm", json!({"data": {"key": "text"}}));
    api.put_object(
        "secrets/ns/s",
        json!({"data": {"key": "aGk="}, "type": "Opaque"}),
    );
    let field =
        json!([{"path": "name", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]);
    let sources = json!([{"configMap": {"name": "cm"}}]);
    let volumes = json!([
        {"name": "e", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "cm", "defaultMode": 420}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
        {"name": "d", "downwardAPI": {"defaultMode": 420, "items": field}},
        {"name": "p", "projected": {"defaultMode": 420, "sources": sources}},
    ]);
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let mut mounts: Vec<Value> = ["e", "c", "s", "d", "p"].map(mount).into();
    mounts.push(json!({"name": "e", "mountPath": "/part", "subPath": "a/b"}));
    let container = json!({"name": "main", "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log"});
    let spec = json!({"enableServiceLinks": false, "volumes": volumes, "containers": [container]});
    let uid = api.create("a", spec);
    runs(&world, &uid);
    let dir = pod_dir(&world, &uid);
    assert_eq!(dir, world.parts.cfg.dirs.root.join("pods").join(&uid));
    for inside in [
        "volumes/kubernetes.io~empty-dir/e",
        "volumes/kubernetes.io~configmap/c/key",
        "volumes/kubernetes.io~secret/s/key",
        "volumes/kubernetes.io~downward-api/d/name",
        "volumes/kubernetes.io~projected/p/key",
        "plugins/kubernetes.io~empty-dir/e/ready",
        "volume-subpaths/e/main/5",
        "etc-hosts",
    ] {
        assert!(dir.join(inside).exists(), "{inside}");
    }
    let logs = fs::read_dir(dir.join("containers/main")).expect("directory");
    let logs: Vec<String> = logs
        .flatten()
        .map(|f| f.file_name().to_string_lossy().into_owned())
        .collect();
    let is_one = |name: &String| name.len() == 8 && name.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(logs.len() == 1 && is_one(&logs[0]), "{logs:?}");
    let config = world
        .fake
        .config(&PodUid::from(&*uid), "main")
        .expect("made");
    let part = config.mounts.iter().find(|m| m.container_path == "/part");
    assert_eq!(
        part.expect("mounted").host_path,
        dir.join("volume-subpaths/e/main/5").display().to_string()
    );
}

#[test]
fn files_that_a_container_wrote_are_variables_of_the_next() {
    // ENVF-02
    let world = World::new();
    let from = |key: &str| json!({"name": key, "valueFrom": {"fileKeyRef": {"volumeName": "e", "path": "env", "key": key}}});
    let container = |name: &str, env: Value| json!({"name": name, "image": IMAGE, "command": ["sleep"], "env": env});
    let mut writes = container("writes", json!([]));
    writes["volumeMounts"] = json!([{"name": "e", "mountPath": "/e"}]);
    let mut side = container("side", json!([from("A")]));
    side["restartPolicy"] = "Always".into();
    let spec = json!({
        "volumes": [{"name": "e", "emptyDir": {}}],
        "initContainers": [writes, container("init", json!([from("A")])), side],
        "containers": [container("main", json!([from("A"), {"name": "B", "value": "<$(A)>"}]))],
    });
    world.apply(&[manifest("a", spec)]);
    let uid = PodUid::from("a");
    let runs_in = |name: &str| {
        world.until(name, |w| {
            let found = w.fake.container(&uid, name);
            found.is_some_and(|c| c.state == ContainerState::Running)
        });
        world.fake.container(&uid, name).expect("it runs").id
    };
    let env = |name: &str| world.fake.config(&uid, name).expect("created").env;
    let given = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let file = pod_dir(&world, "a").join("volumes/kubernetes.io~empty-dir/e/env");
    let id = runs_in("writes");
    fs::write(&file, "A='$(HOME)'\n").expect("file");
    world.fake.exit(&id, 0);
    let id = runs_in("init");
    world.fake.exit(&id, 0);
    runs_in("side");
    let id = runs_in("main");
    for name in ["init", "side", "main"] {
        assert!(env(name).contains(&given("A", "$(HOME)")), "{name}");
    }
    assert!(env("main").contains(&given("B", "<$(HOME)>")));
    // A later change of the file restarts nothing; the next instance sees it.
    fs::write(&file, "A='new'\n").expect("file");
    world.advance(s(120));
    let newest = world.fake.container(&uid, "main").expect("it runs");
    assert_eq!(
        (newest.id == id, newest.state),
        (true, ContainerState::Running)
    );
    world.fake.exit(&id, 1);
    world.until("main runs again", |w| {
        let newest = w.fake.container(&uid, "main");
        newest.is_some_and(|c| c.id != id && c.state == ContainerState::Running)
    });
    assert!(env("main").contains(&given("A", "new")));
    assert!(env("side").contains(&given("A", "$(HOME)")));
    // An error names the file, and nothing of what is in it.
    fs::write(&file, "a secret line\n").expect("file");
    let id = world.fake.container(&uid, "main").expect("it runs").id;
    world.fake.exit(&id, 1);
    let waits = |w: &World| {
        let status = w.status("a").unwrap_or_default();
        let main = status.container_statuses.into_iter().next()?;
        main.state
            .waiting
            .filter(|w| w.reason == "CreateContainerConfigError")
    };
    world.until("main waits", |w| waits(w).is_some());
    let message = waits(&world).map(|w| w.message).unwrap_or_default();
    assert!(
        message.contains("\"env\"") && message.contains("line 1"),
        "{message}"
    );
    assert!(!message.contains("secret"), "{message}");
}
