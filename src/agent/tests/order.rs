//! What comes before what: in a sync, and at an end. Each test holds one step up, or breaks it, and looks at the next ones.

use alloc::sync::Arc;
use core::time::Duration;
use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    life::dump,
    probes::{exec, s, tcp},
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    agent::ring::Heard,
    api::{
        PodUid,
        cri::{ContainerState, SandboxState},
        pod_status::Phase,
    },
    runtime::fake::{OnStop, Op, Trouble},
};

/// Files that a kernel makes in a new cgroup.
const GROUP_FILES: [&str; 6] = [
    "cgroup.controllers",
    "cgroup.subtree_control",
    "cpu.max",
    "cpu.weight",
    "memory.max",
    "pids.max",
];
/// Cgroup of a pod without requests.
const GROUP_OF_A: &str = "kubepods/besteffort/poda";

/// A directory that is a cgroup from now on.
fn group(world: &World, path: &str) -> PathBuf {
    let dir = world.dir().join("cgroup").join(path);
    fs::create_dir_all(&dir).expect("directory");
    for file in GROUP_FILES {
        fs::write(dir.join(file), "").expect("file");
    }
    dir
}

/// Groups that a pod's group lies in.
fn groups_above(world: &World) {
    for path in ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"] {
        group(world, path);
    }
}

/// Messages of the events of that reason.
fn told(world: &World, reason: &str) -> Vec<String> {
    let recorder = &world.parts.tools.recorder;
    let of = recorder.events().filter(|e| *e.reason == *reason);
    of.map(|e| e.message).collect()
}

/// Steps that calls of the pod came to.
fn steps(world: &World, uid: &str) -> Vec<String> {
    let lines = dump(world).into_iter();
    lines
        .filter_map(|line| match line.heard {
            Some(Heard::Step(step)) if step.pod == uid => Some(step.step),
            _ => None,
        })
        .collect()
}

fn runs(world: &World, uid: &str) {
    world.until("runs", |w| w.phase(uid) == Some(Phase::Running));
}

fn state(world: &World, uid: &str, container: &str) -> Option<ContainerState> {
    let found = world.fake.container(&PodUid::from(uid), container);
    found.map(|c| c.state)
}

fn pod_dir(world: &World, uid: &str) -> PathBuf {
    world.parts.machine.store.dir(&PodUid::from(uid))
}

/// What was called that changes pods, and of whom.
fn operations(world: &World) -> Vec<(Op, String)> {
    let mut calls = world.fake.take_calls();
    calls.retain(|(op, _)| {
        matches!(
            op,
            Op::RunPodSandbox
                | Op::StopPodSandbox
                | Op::CreateContainer
                | Op::StartContainer
                | Op::StopContainer
                | Op::RemoveContainer
        )
    });
    calls
}

fn named(calls: &[(Op, &str)]) -> Vec<(Op, String)> {
    let own = |(op, target): &(Op, &str)| (*op, (*target).to_owned());
    calls.iter().map(own).collect()
}

#[test]
fn a_sync_takes_its_steps_in_order_and_ends_where_one_fails() {
    // ACT-01 ACT-02 SYNC-08 SYNC-11 EVT-23
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(&["--cgroups-per-qos=true"], &api);
    world.apply(&[]);
    world.fake.offer_image("registry.test/app:1");
    world
        .fake
        .set_conditions(None, Some(("NoPlugin", "no plugin")));
    world.advance(s(10));
    let mut container = json!({"name": "c", "image": "registry.test/app:1", "command": ["sleep"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}], "livenessProbe": tcp(80)});
    container["imagePullPolicy"] = "IfNotPresent".into();
    let uid = api.create(
        "a",
        json!({
            "enableServiceLinks": false,
            "imagePullSecrets": [{"name": "absent"}],
            "volumes": [{"name": "v", "configMap": {"name": "cm", "defaultMode": 420}}],
            "containers": [container],
        }),
    );
    let dir = pod_dir(&world, &uid);
    let counts = |w: &World| {
        [
            "NetworkNotReady",
            "FailedCreatePodContainer",
            "Failed",
            "FailedMount",
            "FailedToRetrieveImagePullSecret",
        ]
        .map(|reason| w.events_of(reason) > 0)
    };
    let reaches = |what: &str, expected: [bool; 5]| {
        world.until(what, |w| counts(w) == expected);
        // What fails is tried again, and goes no further.
        world.advance(s(40));
        assert_eq!(counts(&world), expected, "{what}");
        assert!(!steps(&world, &uid).contains(&"probed".into()), "{what}");
        assert_eq!(operations(&world), [], "{what}");
    };

    let before = world.now();
    reaches("no network", [true, false, false, false, false]);
    let told_of_network = told(&world, "NetworkNotReady");
    assert!(
        told_of_network[0].starts_with("network is not ready: "),
        "{told_of_network:?}"
    );
    // The status was there before.
    assert_eq!(world.phase(&uid), Some(Phase::Pending));
    assert_eq!(world.waiting(&uid).as_deref(), Some("ContainerCreating"));
    let tries = u64::from(world.events_of("NetworkNotReady"));
    let took = (world.now() - before).as_secs();
    assert!(tries > took / 3, "about one a second: {tries} in {took} s");

    world.fake.set_conditions(None, None);
    reaches("no cgroup", [true, true, false, false, false]);
    assert!(!dir.join("containers").exists());

    fs::write(dir.join("volumes"), "in the way").expect("file");
    groups_above(&world);
    group(&world, &format!("kubepods/besteffort/pod{uid}"));
    reaches("no directories", [true, true, true, false, false]);
    let failed = told(&world, "Failed");
    assert!(
        failed[0].starts_with("error making pod data directories: "),
        "{failed:?}"
    );
    let asked = api.take_asked();
    assert!(asked.is_empty(), "{asked:?}");

    fs::remove_file(dir.join("volumes")).expect("removed");
    reaches("no volume", [true, true, true, true, false]);
    use std::os::unix::fs::PermissionsExt as _;
    for name in ["", "volumes", "plugins", "containers"] {
        let found = fs::metadata(dir.join(name)).expect("directory");
        assert_eq!(found.permissions().mode() & 0o777, 0o750, "{name}");
    }
    let asked = api.take_asked();
    assert!(asked.iter().any(|a| a == "configmaps/ns/cm"), "{asked:?}");
    assert!(!asked.iter().any(|a| a.starts_with("secrets")), "{asked:?}");

    world.fake.add_fault(fails(Op::CreateContainer, 3));
    api.put_object("configmaps/ns/cm", json!({"data": {"key": "text"}}));
    world.until("the start is refused", |w| {
        w.waiting(&uid).as_deref() == Some("CreateContainerError")
    });
    assert_eq!(
        counts(&world),
        [true; 5],
        "a secret that is missing is told"
    );
    let passed = |w: &World| {
        let mut passed = steps(w, &uid);
        passed.retain(|step| ["probed", "sandboxUp", "started"].contains(&step.as_str()));
        passed
    };
    assert_eq!(passed(&world)[..3], ["probed", "sandboxUp", "started"]);
    runs(&world, &uid);
    // SYNC-12: workers of probes are there already.
    world.advance(s(200));
    let probed = passed(&world).into_iter().filter(|step| step == "probed");
    assert_eq!(probed.count(), 1);
}

#[test]
fn a_pod_whose_cgroup_has_gone_starts_anew_with_its_limits() {
    // CG-05 SYNC-06 ACT-06
    for policy in ["Always", "Never"] {
        let world = World::with(&["--cgroups-per-qos=true"], None);
        groups_above(&world);
        let dir = group(&world, GROUP_OF_A);
        let weight = || fs::read_to_string(dir.join("cpu.weight")).unwrap_or_default();
        world.apply(&[manifest("a", json!({"restartPolicy": policy}))]);
        runs(&world, "a");
        assert_eq!(weight(), "1", "the least");
        world.advance(s(5));
        fs::remove_dir_all(&dir).expect("removed");
        world.fake.take_calls();
        world.until("it is killed", |w| {
            state(w, "a", "c") == Some(ContainerState::Exited)
        });
        world.until("and its sandbox stopped", |w| {
            !w.fake.has_live_sandbox(&"a".into())
        });
        let kill = named(&[(Op::StopContainer, "c"), (Op::StopPodSandbox, "a")]);
        assert_eq!(operations(&world)[..2], kill, "{policy}");
        if policy == "Never" {
            world.until("has failed", |w| w.phase("a") == Some(Phase::Failed));
            world.advance(s(100));
            assert!(!dir.exists(), "nothing of it runs again");
            assert_eq!(world.events_of("FailedCreatePodContainer"), 0);
            continue;
        }
        // This kernel makes no files by itself: what is made is half a group.
        world.advance(s(60));
        assert!(dir.exists() && weight().is_empty());
        assert_eq!(
            operations(&world),
            [],
            "nothing starts outside of its group"
        );
        let why = told(&world, "FailedCreatePodContainer");
        assert!(
            why[0].starts_with("unable to ensure pod container exists: "),
            "{why:?}"
        );
        group(&world, GROUP_OF_A);
        world.until("runs again", |w| {
            state(w, "a", "c") == Some(ContainerState::Running)
        });
        assert_eq!(weight(), "1", "limits are written again");
        let now = world.fake.container(&"a".into(), "c").expect("runs");
        assert_eq!(now.restart_count, 1);
    }
}

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
    // A volume that nobody here takes down.
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
    let early = api.create("early", json!({"containers": [container(json!([]))]}));
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
    // What it had is free, for its containers have stopped.
    let late = api.create("late", json!({"containers": [container(json!([]))]}));
    group_of(&late);
    runs(&world, &late);

    fs::remove_dir_all(&foreign).expect("removed");
    // A kernel's files go with their group.
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
    let _ = early;
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

    // All of them without a failure; and one whose sandbox was removed meanwhile.
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
    // Hangs in the kernel.
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
