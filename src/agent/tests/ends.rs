//! Order of the steps at a pod's end. Each test delays or breaks one step, and looks at the next ones.

use alloc::sync::Arc;
use std::fs;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    order::{GROUP_FILES, group, groups_above, named, operations, pod_dir, runs, state, steps},
    probes::{s, tcp},
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    api::{PodUid, cri::ContainerState, pod_status::PodPhase},
    runtime::fake::{OnStop, Op, Trouble},
};

#[test]
fn an_end_takes_its_steps_in_order() {
    // KILL-14 VOL-30 SYNC-30 SYNC-31 SYNC-32 SYNC-33
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(&["--cgroups-per-qos=true"], &api);
    world.apply(&[]);
    world.advance(s(30));
    api.put_object("configmaps/ns/cm", json!({"data": {"key": "text"}}));
    groups_above(&world);
    let container = |mounts: Value| {
        json!({"name": "c", "image": IMAGE, "command": ["sleep"],
            "ports": [{"containerPort": 80, "hostPort": 28080}],
            "livenessProbe": tcp(81), "readinessProbe": tcp(82), "volumeMounts": mounts})
    };
    let mounts = json!([{"name": "v", "mountPath": "/v"}, {"name": "d", "mountPath": "/d"}]);
    let spec = json!({
        "enableServiceLinks": false,
        "volumes": [{"name": "v", "configMap": {"name": "cm", "defaultMode": 420}}, {"name": "d", "emptyDir": {}}],
        "containers": [container(mounts)],
    });
    let uid = api.create("a", spec);
    let group_of = |uid: &str| group(&world, &format!("kubepods/besteffort/pod{uid}"));
    let its_group = group_of(&uid);
    runs(&world, &uid);
    let dir = pod_dir(&world, &uid);
    let volumes = dir.join("volumes");
    let its_data = volumes.join("kubernetes.io~empty-dir/d");
    assert!(its_data.exists());
    // A volume of another program, which the agent does not take down.
    let foreign = volumes.join("example.com~thing");
    fs::create_dir_all(foreign.join("claim")).expect("directory");
    fs::write(foreign.join("claim/kept"), "x").expect("file");
    let ip = world.status(&uid).expect("status").pod_ip;
    let copies = || {
        let dir = world.parts.cfg.dirs.root.join("objects");
        let all = fs::read_dir(dir).into_iter().flatten().flatten();
        all.filter(|f| f.file_name().to_string_lossy().starts_with("configmap-"))
            .count()
    };
    let made = copies();
    assert!(made > 0);

    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    api.delete("a");
    world.until("is asked to stop", |w| {
        w.fake.hanging(Op::StopContainer) == 1
    });
    for port in [81, 82] {
        world.wire.take_asked(port);
    }
    world.advance(s(5));
    let asked = [81, 82].map(|port| world.wire.take_asked(port) > 0);
    assert_eq!(asked, [false, true], "it is only asked whether it is ready");
    assert_eq!(api.phase("a"), "Running");
    assert!(its_data.exists());
    api.create("early", json!({"containers": [container(json!([]))]}));
    world.until("its port is not free", |_| api.phase("early") == "Failed");

    world.fake.release(Op::StopContainer);
    world.until("its end is told", |_| api.phase("a") == "Failed");
    let end = api.get("ns", "a").expect("there")["status"].clone();
    assert_eq!(end["podIP"], ip.as_str(), "the address it had");
    let code = &end["containerStatuses"][0]["state"]["terminated"]["exitCode"];
    assert_eq!(*code, 143);
    world.until("its volumes go", |_| !its_data.exists());
    for port in [81, 82] {
        world.wire.take_asked(port);
    }
    world.advance(s(60));
    let asked = [81, 82].map(|port| world.wire.take_asked(port));
    assert_eq!(asked, [0, 0]);
    let kept = fs::read_to_string(foreign.join("claim/kept"));
    assert_eq!(kept.expect("data"), "x");
    assert_eq!(copies(), made, "before its volumes are gone");
    assert!(its_group.exists() && api.get("ns", "a").is_some());
    assert!(!steps(&world, &uid).contains(&"cleanedUp".into()));
    // The pod's resources are free, for its containers have stopped.
    let late = api.create("late", json!({"containers": [container(json!([]))]}));
    group_of(&late);
    runs(&world, &late);

    fs::remove_dir_all(&foreign).expect("removed");
    // A real kernel removes these files together with their group.
    for file in GROUP_FILES {
        fs::remove_file(its_group.join(file)).expect("removed");
    }
    world.until("is gone", |w| {
        w.is_gone(&uid) && api.get("ns", "a").is_none()
    });
    assert!(!its_group.exists());
    assert_eq!(copies(), 0);
    let steps = steps(&world, &uid);
    let last: Vec<&str> = steps.iter().rev().map(String::as_str).take(2).collect();
    assert_eq!(last, ["cleanedUp", "stopped"], "the last one first");
}

#[test]
fn how_a_pod_ended_is_read_from_the_runtime_itself() {
    // SYNC-23 SYNC-24 SYNC-27
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let container = |name: &str| json!({"name": name, "image": IMAGE, "command": ["sleep"]});
    let uid = api.create("a", json!({"containers": [container("c"), container("d")]}));
    world.fake.on_stop("c", OnStop::Exits(0));
    world.fake.on_stop("d", OnStop::Exits(7));
    runs(&world, &uid);
    let ip = world.status(&uid).expect("status").pod_ip;
    world
        .fake
        .add_fault(fault(Op::StopContainer, 2, Trouble::Hangs));
    api.delete("a");
    world.until("are asked to stop", |w| {
        w.fake.hanging(Op::StopContainer) == 2
    });
    world.fake.add_fault(fault(Op::ListPods, 1, Trouble::Hangs));
    world.until("no relist ends", |w| w.fake.hanging(Op::ListPods) == 1);
    world.fake.release(Op::StopContainer);
    world.until("its end is told", |_| api.phase("a") == "Failed");
    assert_eq!(world.fake.hanging(Op::ListPods), 1, "no relist showed it");
    let end = api.get("ns", "a").expect("there")["status"].clone();
    let codes = ["0", "1"].map(|at| {
        let status = &end["containerStatuses"][at.parse::<usize>().expect("number")];
        status["state"]["terminated"]["exitCode"].clone()
    });
    assert_eq!(codes, [json!(0), json!(7)]);
    assert_eq!(end["podIP"], ip.as_str());
    world.fake.release(Op::ListPods);
    world.until("is gone", |w| w.is_gone(&uid));

    // A pod whose containers all end without a failure, and whose sandbox is removed meanwhile.
    world.fake.on_stop("d", OnStop::Exits(0));
    let uid = api.create("b", json!({"containers": [container("c"), container("d")]}));
    runs(&world, &uid);
    api.edit("b", |pod| pod["metadata"]["finalizers"] = json!(["a/b"]));
    api.delete("b");
    world.until("its end is told", |_| api.phase("b") == "Succeeded");
}

#[test]
fn containers_are_killed_together_and_what_survives_is_killed_again() {
    // KILL-07 SYNC-25
    let world = World::new();
    let container = |name: &str| json!({"name": name, "image": IMAGE, "command": ["sleep"]});
    let all = json!({"containers": [container("c"), container("d"), container("e")]});
    world.apply(&[manifest("a", all)]);
    runs(&world, "a");
    world.advance(s(5));
    // The container hangs in the kernel.
    world.fake.on_stop("d", OnStop::Survives);
    world
        .fake
        .add_fault(fault(Op::StopContainer, 3, Trouble::Hangs));
    world.fake.take_calls();
    world.apply(&[]);
    world.until("none waits for another", |w| {
        w.fake.hanging(Op::StopContainer) == 3
    });
    assert!(
        operations(&world)
            .iter()
            .all(|(op, _)| *op == Op::StopContainer)
    );
    world.fake.release(Op::StopContainer);
    world.until("the sandbox is stopped", |w| {
        !w.fake.has_live_sandbox(&"a".into())
    });
    world.advance(s(1));
    let stopped = named(&[(Op::StopPodSandbox, "a")]);
    assert_eq!(operations(&world)[..1], stopped);
    assert_eq!(state(&world, "a", "d"), Some(ContainerState::Running));
    let done = |w: &World| steps(w, "a").contains(&"stopped".into());
    assert!(!done(&world), "this is no end");
    world.until("it is killed again", |w| {
        let again = operations(w);
        again
            .iter()
            .any(|(op, name)| *op == Op::StopContainer && name == "d")
    });
    let calls = operations(&world);
    let of_others = |(op, name): &(Op, String)| *op == Op::StopContainer && name != "d";
    assert!(!calls.iter().any(of_others), "those have ended: {calls:?}");
    assert!(!done(&world));
    assert_eq!(
        world.events_of("FailedKillPod"),
        0,
        "a fault of the runtime"
    );
    world.fake.on_stop("d", OnStop::Exits(0));
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn a_deadline_is_told_when_nothing_runs_any_more() {
    // LOOP-19 KILL-21 SYNC-19
    let text = "Pod was active on the node longer than the specified deadline";
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let uid = api.create("a", json!({"activeDeadlineSeconds": 30}));
    let free = api.create("free", json!({}));
    runs(&world, &uid);
    runs(&world, &free);
    let start = world
        .status(&uid)
        .and_then(|st| st.start_time)
        .expect("began");
    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    world.until("is asked to stop", |w| {
        w.fake.hanging(Op::StopContainer) == 1
    });
    let now_s = 1_700_000_000 + i64::try_from(world.now().0 / 1000).expect("small");
    let age = now_s - start.unix_seconds();
    assert!((30..=32).contains(&age), "{age} s");
    let local = world.status(&uid).expect("status");
    assert_eq!(
        (local.phase, &*local.reason, &*local.message),
        (PodPhase::Failed, "DeadlineExceeded", text)
    );
    world.advance(s(5));
    let told_status = |name: &str| api.get("ns", name).expect("there")["status"].clone();
    let early = told_status("a");
    assert_eq!(early["phase"], "Running", "something of it runs");
    assert_eq!(early.get("reason"), None, "{early}");
    world.fake.release(Op::StopContainer);
    world.until("its end is told", |_| api.phase("a") == "Failed");
    let end = told_status("a");
    assert_eq!(
        (&end["reason"], &end["message"]),
        (&json!("DeadlineExceeded"), &json!(text))
    );
    assert_eq!(world.events_of("DeadlineExceeded"), 1);
    // A deadline that is set later counts from the same start.
    api.edit("free", |pod| {
        pod["spec"]["activeDeadlineSeconds"] = 600.into()
    });
    world.advance(s(200));
    assert_eq!(api.phase("free"), "Running");
    api.edit("free", |pod| {
        pod["spec"]["activeDeadlineSeconds"] = 20.into()
    });
    world.until("has failed", |_| api.phase("free") == "Failed");
    assert_eq!(told_status("free")["reason"], "DeadlineExceeded");
}

#[test]
fn another_agent_tells_the_end_of_what_had_ended() {
    // SYNC-29
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let uid = api.create("a", json!({"restartPolicy": "Never"}));
    runs(&world, &uid);
    let id = world
        .fake
        .container(&PodUid::from(&*uid), "c")
        .expect("runs")
        .id;
    world.fake.exit(&id, 3);
    world.until("its end is told", |_| api.phase("a") == "Failed");
    world.advance(s(10));
    // Another client has removed part of the status while no agent ran.
    api.edit("a", |pod| {
        pod["status"]["containerStatuses"] = json!([]);
    });
    let world = world.restart_agent();
    world.apply(&[]);
    world.until("all of it is told again", |_| {
        let pod = api.get("ns", "a").expect("there");
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    });
    let is_over = |w: &World| {
        steps(w, &uid)
            .last()
            .is_some_and(|last| last == "cleanedUp")
    };
    world.until("is over", is_over);
    // The runtime says that no container of the pod runs.
    assert_eq!(steps(&world, &uid), ["stopped", "cleanedUp"]);
    world.advance(s(60));
    let status = world.status(&uid).expect("status");
    assert_eq!(status.phase, PodPhase::Failed);
    let end = status.container_statuses[0].state.terminated.as_ref();
    assert_eq!(end.map(|t| t.exit_code), Some(3));
}

#[test]
fn objects_are_followed_from_the_first_sync_to_the_last_unmount() {
    // SYNC-05 SYNC-31
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let spec = || {
        json!({
            "enableServiceLinks": false, "restartPolicy": "Never",
            "volumes": [{"name": "v", "configMap": {"name": "cm", "defaultMode": 420}}],
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        })
    };
    let asked = || {
        let mut asked = api.take_asked();
        asked.retain(|what| what == "configmaps/ns/cm");
        asked.len()
    };
    api.put_object("configmaps/ns/cm", json!({"data": {"key": "text"}}));
    // A pod that is already deleted when it comes is never synced.
    let ended = api.create("ended", spec());
    api.delete("ended");
    world.until("is gone", |w| {
        api.get("ns", "ended").is_none() && w.is_gone(&ended)
    });
    assert_eq!(asked(), 0);

    let uid = api.create("a", spec());
    runs(&world, &uid);
    assert!(asked() > 0);
    let file = pod_dir(&world, &uid).join("volumes/kubernetes.io~configmap/v/key");
    let text = || fs::read_to_string(&file).unwrap_or_default();
    api.put_object("configmaps/ns/cm", json!({"data": {"key": "other"}}));
    world.until("it is read again", |_| text() == "other");
    let log = world.dir().join(format!("logs/ns_a_{uid}/c/0.log"));
    fs::create_dir_all(log.parent().expect("directory")).expect("directory");
    fs::write(&log, "said").expect("file");
    let id = world
        .fake
        .container(&PodUid::from(&*uid), "c")
        .expect("runs")
        .id;
    world.fake.exit(&id, 0);
    world.until("its volumes go", |_| !file.exists());
    assert_eq!(api.phase("a"), "Succeeded");
    world.advance(s(10));
    asked();
    world.advance(s(300));
    assert_eq!(asked(), 0, "nobody follows it any more");
    // Its log and its end can be read as long as the object is there.
    assert_eq!(state(&world, &uid, "c"), Some(ContainerState::Exited));
    assert!(log.exists());
    api.remove("ns", "a");
    world.until("is gone", |w| w.is_gone(&uid));
    world.until("its log too", |_| !log.exists());
}

#[test]
fn a_grace_only_shrinks() {
    // KILL-02
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    world.fake.on_stop("c", OnStop::Ignores);
    let grace = |name: &str, grace_s: i64| {
        api.edit(name, |pod| {
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_s.into()
        });
    };
    // The grace of the deletion, which is 30 s, counts, not that of the spec; a longer one comes too late.
    let uid = api.create("a", json!({"terminationGracePeriodSeconds": 300}));
    runs(&world, &uid);
    api.delete("a");
    world.until("is asked to stop", |w| {
        w.fake.under_way().contains(&Op::StopContainer)
    });
    let before = world.now();
    grace("a", 100);
    world.until("is killed", |w| {
        state(w, &uid, "c") != Some(ContainerState::Running)
    });
    assert_eq!((world.now() - before).as_secs(), 30);

    // A shorter grace is for the next attempt: the first one fails, at the sandbox too.
    world.fake.add_fault(fails(Op::StopPodSandbox, 1));
    let uid = api.create("b", json!({"terminationGracePeriodSeconds": 300}));
    runs(&world, &uid);
    let slow = Trouble::TimesOut(s(29));
    world.fake.add_fault(fault(Op::StopContainer, 1, slow));
    api.delete("b");
    world.until("is asked to stop", |w| {
        w.fake.under_way().contains(&Op::StopContainer)
    });
    let before = world.now();
    grace("b", 3);
    world.advance(s(15));
    grace("b", 100);
    world.until("is killed", |w| {
        state(w, &uid, "c") != Some(ContainerState::Running)
    });
    let took = (world.now() - before).as_secs();
    assert!((32..=36).contains(&took), "{took} s");

    // A grace of 0 counts as one second, and the runtime is given two.
    let uid = api.create("d", json!({"terminationGracePeriodSeconds": 300}));
    runs(&world, &uid);
    world.advance(s(5));
    api.edit("d", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:31Z".into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    });
    world.until("is asked to stop", |w| {
        w.fake.under_way().contains(&Op::StopContainer)
    });
    let before = world.now();
    world.until("is killed", |w| {
        state(w, &uid, "c") != Some(ContainerState::Running)
    });
    assert_eq!((world.now() - before).as_secs(), 2);
}
