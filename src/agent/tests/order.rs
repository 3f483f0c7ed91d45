//! Order of the steps of a sync. Each test delays or breaks one step, and looks at the next ones.

use alloc::{rc::Rc, sync::Arc};
use std::{fs, path::PathBuf};

use serde_json::json;

use super::{
    api::FakeApi,
    life::dump,
    probes::{s, tcp},
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    agent::{recorder::EventSeverity, ring::RecordedEvent},
    api::{PodUid, cri::ContainerState, pod_status::PodPhase},
    probe::{ProbeRequestError, UnansweredRequest},
    runtime::fake::{Op, Trouble},
};

/// Files that the kernel makes in a new cgroup.
pub(super) const GROUP_FILES: [&str; 6] = [
    "cgroup.controllers",
    "cgroup.subtree_control",
    "cpu.max",
    "cpu.weight",
    "memory.max",
    "pids.max",
];
/// Cgroup of a pod without requests.
const GROUP_OF_A: &str = "kubepods/besteffort/poda";

/// Makes a directory that looks like a cgroup.
pub(super) fn group(world: &World, path: &str) -> PathBuf {
    let dir = world.dir().join("cgroup").join(path);
    fs::create_dir_all(&dir).expect("directory");
    for file in GROUP_FILES {
        fs::write(dir.join(file), "").expect("file");
    }
    dir
}

/// Makes the groups above the groups of pods.
pub(super) fn groups_above(world: &World) {
    for path in ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"] {
        group(world, path);
    }
}

/// Messages of the events with this reason.
pub(super) fn told(world: &World, reason: &str) -> Vec<String> {
    let recorder = &world.parts.tools.recorder;
    let of = recorder
        .newest_events(None, usize::MAX)
        .into_iter()
        .filter(|e| *e.reason == *reason);
    of.map(|e| e.message).collect()
}

/// Steps that calls of the pod reported.
pub(super) fn steps(world: &World, uid: &str) -> Vec<String> {
    let lines = dump(world).into_iter();
    lines
        .filter_map(|line| match line.heard {
            Some(RecordedEvent::Step(step)) if step.pod == uid => Some(step.step),
            _ => None,
        })
        .collect()
}

pub(super) fn runs(world: &World, uid: &str) {
    world.until("runs", |w| w.phase(uid) == Some(PodPhase::Running));
}

pub(super) fn state(world: &World, uid: &str, container: &str) -> Option<ContainerState> {
    let found = world.fake.container(&PodUid::from(uid), container);
    found.map(|c| c.state)
}

pub(super) fn pod_dir(world: &World, uid: &str) -> PathBuf {
    world.parts.machine.store.pod_dir(&PodUid::from(uid))
}

/// Calls at the runtime that change pods, with their targets.
pub(super) fn operations(world: &World) -> Vec<(Op, String)> {
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

pub(super) fn named(calls: &[(Op, &str)]) -> Vec<(Op, String)> {
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
        // The failing step is tried again, and no later one is reached.
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
    // The status was told before the step.
    assert_eq!(world.phase(&uid), Some(PodPhase::Pending));
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
            world.until("has failed", |w| w.phase("a") == Some(PodPhase::Failed));
            world.advance(s(100));
            assert!(!dir.exists(), "nothing of it runs again");
            assert_eq!(world.events_of("FailedCreatePodContainer"), 0);
            continue;
        }
        // No kernel makes the files here, so the new group is incomplete.
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
fn edited_limits_reach_the_cgroup_before_the_next_container_starts() {
    // RSZ-04 CG-10
    let world = World::with(&["--cgroups-per-qos=true"], None);
    groups_above(&world);
    let file = group(&world, "kubepods/burstable/poda").join("memory.max");
    let limit = || fs::read_to_string(&file).unwrap_or_default();
    let edit = |limit: &str| {
        let resources = json!({"limits": {"memory": limit}});
        let container =
            json!({"name": "c", "image": IMAGE, "command": ["sleep"], "resources": resources});
        world.apply(&[manifest("a", json!({"containers": [container]}))]);
    };
    edit("64Mi");
    runs(&world, "a");
    assert_eq!(limit(), "67108864");
    // A lower limit could kill what runs.
    edit("32Mi");
    world.advance(s(100));
    assert_eq!(limit(), "67108864");
    let first = world.fake.container(&"a".into(), "c").expect("there");
    assert_eq!(first.state, ContainerState::Running);
    // The next container starts within the new limit.
    world.fake.exit(&first.id, 1);
    world.until("runs again", |w| {
        let now = w.fake.container(&"a".into(), "c").expect("there");
        now.id != first.id && now.state == ContainerState::Running
    });
    assert_eq!(limit(), "33554432");
}

#[test]
fn a_stop_signal_that_does_not_exist_is_told() {
    // KILL-11
    let world = World::new();
    let pod = |uid: &str, signal: &str, more: serde_json::Value| {
        let image = format!("signal-{uid}:1");
        world.fake.add_image(&image);
        world.fake.set_stop_signal(&image, signal);
        let mut container = json!({"name": uid, "image": image, "command": ["sleep"]});
        container["lifecycle"] = more;
        manifest(
            uid,
            json!({"os": {"name": "linux"}, "containers": [container]}),
        )
    };
    let pods = [
        pod("bad", "SIGFOO", json!({})),
        pod("name", "quit", json!({})),
        pod("number", "15", json!({})),
        pod("none", "", json!({})),
        pod("own", "SIGFOO", json!({"stopSignal": "SIGINT"})),
    ];
    world.apply(&pods);
    for uid in ["bad", "name", "number", "none", "own"] {
        runs(&world, uid);
    }
    assert_eq!(
        told(&world, "UnknownStopSignal"),
        [r#"stop signal "SIGFOO" of the image is unknown: SIGTERM is sent"#]
    );
}

#[test]
fn actions_at_the_runtime_have_an_order() {
    // ACT-03 ACT-16
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    world.fake.add_image("busybox:2");
    let container = |name: &str| json!({"name": name, "image": IMAGE, "command": ["sleep"]});
    let mut side = container("side");
    side["restartPolicy"] = "Always".into();
    let mut init = container("init");
    init["command"] = json!(["sh", "-c", "exit 0"]);
    let uid = api.create(
        "a",
        json!({"enableServiceLinks": false, "initContainers": [init, side], "containers": [container("c")]}),
    );
    runs(&world, &uid);
    world.advance(s(5));
    // One pass has all of it: new images of two containers, and one more container to look into the pod.
    world.fake.take_calls();
    api.edit("a", |pod| {
        pod["spec"]["initContainers"][1]["image"] = "busybox:2".into();
        pod["spec"]["containers"][0]["image"] = "busybox:2".into();
        pod["spec"]["ephemeralContainers"] = json!([container("look")]);
    });
    world.until("all are started", |w| {
        ["look", "side", "c"].iter().all(|name| {
            let found = w.fake.container(&PodUid::from(&*uid), name);
            found.is_some_and(|c| c.state == ContainerState::Running)
                && (*name == "look"
                    || w.fake
                        .config(&PodUid::from(&*uid), name)
                        .is_some_and(|c| c.attempt == 1))
        })
    });
    let calls = operations(&world);
    let (kills, starts) = calls.split_at(2);
    let mut kills: Vec<_> = kills.to_vec();
    kills.sort();
    assert_eq!(
        kills,
        named(&[(Op::StopContainer, "c"), (Op::StopContainer, "side")])
    );
    let mut started: Vec<&str> = Vec::new();
    for (op, name) in starts {
        if *op == Op::StartContainer {
            started.push(name);
        }
    }
    assert_eq!(started, ["look", "side", "c"], "{calls:?}");

    // The sandbox is lost: all containers are killed, instances of init containers removed, and the pod begins again.
    world.advance(s(20));
    world.fake.take_calls();
    let lost = world
        .fake
        .container(&PodUid::from(&*uid), "c")
        .expect("runs");
    world.fake.lose_sandbox(&lost.sandbox);
    world.until("runs in another one", |w| {
        let now = w.fake.container(&PodUid::from(&*uid), "c");
        now.is_some_and(|c| c.sandbox != lost.sandbox && c.state == ContainerState::Running)
    });
    let calls = operations(&world);
    let at = |op: Op, name: &str| {
        let mut found = calls.iter().position(|(o, n)| *o == op && n == name);
        found
            .take()
            .unwrap_or_else(|| panic!("{op:?} {name} in {calls:?}"))
    };
    let last_kill = calls.iter().rposition(|(op, _)| *op == Op::StopPodSandbox);
    let last_kill = last_kill.expect("stopped");
    let new = at(Op::RunPodSandbox, &uid);
    let before = &calls[..new];
    for name in ["c", "side", "look"] {
        assert!(at(Op::StopContainer, name) < last_kill, "{calls:?}");
    }
    for name in ["init", "side"] {
        let removed = before
            .iter()
            .rposition(|(op, n)| *op == Op::RemoveContainer && n == name);
        assert!(
            removed.is_some_and(|r| r > last_kill),
            "{name} in {calls:?}"
        );
    }
    let order = [
        at(Op::StartContainer, "init"),
        at(Op::StartContainer, "side"),
        at(Op::StartContainer, "c"),
    ];
    assert!(
        new < order[0] && order[0] < order[1] && order[1] < order[2],
        "{calls:?}"
    );
}

#[test]
fn addresses_are_those_of_the_new_sandbox() {
    // ACT-22
    let world = World::new();
    let field = json!({"fieldRef": {"fieldPath": "status.podIP"}});
    let container = json!([{"name": "c", "image": IMAGE, "command": ["sleep"],
        "env": [{"name": "IP", "valueFrom": field}]}]);
    world.apply(&[
        manifest("a", json!({"containers": container})),
        manifest(
            "host",
            json!({"containers": container, "hostNetwork": true}),
        ),
    ]);
    runs(&world, "a");
    runs(&world, "host");
    let ip = |uid: &str| {
        let config = world.fake.config(&uid.into(), "c").expect("created");
        let found = config.env.into_iter().find(|(name, _)| name == "IP");
        found.expect("set").1
    };
    let hosts = || fs::read_to_string(pod_dir(&world, "a").join("etc-hosts")).expect("hosts");
    let shown = |uid: &str| world.status(uid).expect("status").pod_ip;
    let first = ip("a");
    assert!(first.starts_with("10.88.") && first == shown("a"));
    assert!(hosts().contains(&format!("{first}\t")), "{}", hosts());
    assert_eq!(ip("host"), "192.0.2.1", "the node's, which its status had");
    assert_eq!(shown("host"), "192.0.2.1");
    let one = world.fake.container(&"a".into(), "c").expect("runs");
    world.fake.lose_sandbox(&one.sandbox);
    world.until("runs in another one", |w| {
        let now = w.fake.container(&"a".into(), "c");
        now.is_some_and(|c| c.sandbox != one.sandbox && c.state == ContainerState::Running)
    });
    let second = ip("a");
    assert!(second.starts_with("10.88.") && second != first);
    assert!(hosts().contains(&format!("{second}\t")) && !hosts().contains(&format!("{first}\t")));
}

#[test]
fn a_start_under_way_is_not_left_when_its_pod_is_to_end() {
    // SYNC-13
    let world = World::new();
    world
        .fake
        .add_fault(fault(Op::CreateContainer, 1, Trouble::Hangs));
    world.apply(&[manifest("a", json!({}))]);
    world.until("is created", |w| w.fake.hanging(Op::CreateContainer) == 1);
    world.fake.take_calls();
    world.apply(&[]);
    world.advance(s(20));
    assert_eq!(world.fake.hanging(Op::CreateContainer), 1);
    assert_eq!(operations(&world), [], "one call of a pod at a time");
    // Dropping a call before its end is a violation.
    world.fake.release(Op::CreateContainer);
    world.until("is gone", |w| w.is_gone("a"));
    assert!(
        !operations(&world)
            .iter()
            .any(|(op, _)| *op == Op::StartContainer)
    );

    // The result of a pass is remembered, and shown until there is another one.
    world.fake.add_fault(fails(Op::CreateContainer, 2));
    world.apply(&[manifest("b", json!({}))]);
    world.until("says why not", |w| {
        w.waiting("b").as_deref() == Some("CreateContainerError")
    });
    runs(&world, "b");
    assert_eq!(world.waiting("b"), None);
}

#[test]
fn errors_of_the_runtime_are_told_once_and_say_when_to_try_again() {
    // SYNC-15
    let world = World::new();
    // If a sandbox fails while its pod is to end, that is no failure.
    let slow = Trouble::TimesOut(s(20));
    world.fake.add_fault(fault(Op::RunPodSandbox, 2, slow));
    world.apply(&[manifest("a", json!({}))]);
    world.until("is made", |w| {
        w.fake.under_way().contains(&Op::RunPodSandbox)
    });
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert_eq!(world.events_of("FailedCreatePodSandBox"), 0);
    // Otherwise it is a failure, told by the step that made the sandbox.
    world.apply(&[manifest("b", json!({}))]);
    runs(&world, "b");
    assert_eq!(world.events_of("FailedCreatePodSandBox"), 1);
    assert_eq!(world.events_of("FailedSync"), 0);

    // A container in a crash loop is tried again at the end of its back-off.
    let crashes = json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 1"]}]);
    world.apply(&[manifest("c", json!({"containers": crashes}))]);
    world.until("waits", |w| {
        w.waiting("c").as_deref() == Some("CrashLoopBackOff")
    });
    let until = dump(&world)
        .into_iter()
        .rev()
        .find_map(|line| match line.heard {
            Some(RecordedEvent::Done {
                pod,
                outcome,
                until_ms,
            }) if pod == "c" && outcome == "backOff" => until_ms,
            _ => None,
        });
    let until = until.expect("a time");
    let count = |w: &World| w.fake.container(&"c".into(), "c").map(|c| c.restart_count);
    let before = count(&world);
    assert!(until > world.now().0 && until <= world.now().0 + 10_000);
    world.until("is tried again", |w| count(w) != before);
    let late = world.now().0 - until;
    // The wait is stretched by at most a half.
    assert!(world.now().0 >= until && late <= 5_200, "{late} ms after");
}

#[test]
fn what_is_told_of_pods_and_containers() {
    // EVT-15 EVT-21 EVT-23
    let world = World::new();
    world
        .fake
        .set_conditions(None, Some(("NoPlugin", "no plugin")));
    world.advance(s(10));
    let kind = json!({"path": "/nonexistent", "type": "Directory"});
    let mounts = json!([{"name": "c", "image": IMAGE, "command": ["sleep"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let volume = json!({"volumes": [{"name": "v", "hostPath": kind}], "containers": mounts});
    let both = [manifest("a", json!({})), manifest("volume", volume)];
    world.apply(&both);
    world.until("no network", |w| w.events_of("NetworkNotReady") > 0);
    world.fake.add_fault(fails(Op::RunPodSandbox, 1));
    world.fake.set_conditions(None, None);
    runs(&world, "a");
    world.until("no volume", |w| w.events_of("FailedMount") > 0);
    let one = world.fake.container(&"a".into(), "c").expect("runs");
    world.fake.lose_sandbox(&one.sandbox);
    world.until("runs again", |w| {
        let now = w.fake.container(&"a".into(), "c");
        now.is_some_and(|c| c.sandbox != one.sandbox && c.state == ContainerState::Running)
    });
    world.advance(s(5));
    world.fake.add_fault(fails(Op::StopPodSandbox, 1));
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    let all: Vec<_> = world.parts.tools.recorder.newest_events(None, usize::MAX);
    for (reason, severity, of, begins) in [
        (
            "NetworkNotReady",
            EventSeverity::Warning,
            "",
            "network is not ready: ",
        ),
        (
            "FailedCreatePodSandBox",
            EventSeverity::Warning,
            "",
            "Failed to create pod sandbox: ",
        ),
        (
            "SandboxChanged",
            EventSeverity::Normal,
            "",
            "Pod sandbox changed, it will be killed and re-created.",
        ),
        (
            "FailedMount",
            EventSeverity::Warning,
            "",
            "MountVolume.SetUp failed for volume \"v\" : ",
        ),
        (
            "FailedKillPod",
            EventSeverity::Warning,
            "",
            "error killing pod: ",
        ),
        (
            "Created",
            EventSeverity::Normal,
            "spec.containers{c}",
            "Container created",
        ),
        (
            "Started",
            EventSeverity::Normal,
            "spec.containers{c}",
            "Container started",
        ),
    ] {
        let found: Vec<_> = all.iter().filter(|e| *e.reason == *reason).collect();
        assert!(!found.is_empty(), "{reason}");
        for event in found {
            assert_eq!(event.severity, severity, "{reason}");
            assert_eq!(event.field_path, of, "{reason}");
            assert!(
                event.message.starts_with(begins),
                "{reason}: {}",
                event.message
            );
        }
    }
}

/// Calls that bring a container up, with their targets.
fn starts(world: &World) -> Vec<(Op, String)> {
    let mut calls = world.fake.take_calls();
    calls.retain(|(op, _)| matches!(op, Op::PullImage | Op::CreateContainer | Op::StartContainer));
    calls
}

/// Logs that the links of containers lead to.
fn linked_logs(world: &World) -> Vec<PathBuf> {
    let links = fs::read_dir(world.dir().join("links")).expect("directory");
    let logs = links.map(|link| fs::read_link(link.expect("entry").path()).expect("a link"));
    logs.collect()
}

#[test]
fn a_container_starts_step_by_step_and_the_next_one_after_it() {
    // ACT-07
    let world = World::new();
    for image in ["model:1", "a:1", "b:1"] {
        world.fake.offer_image(image);
    }
    // A runtime makes the log.
    world.fake.set_watch(Some(Rc::new(|operation| {
        if operation.op == Op::StartContainer
            && let Some(container) = operation.container
        {
            fs::write(&container.log_path, "").expect("a log");
        }
        None
    })));
    for op in [Op::CreateContainer, Op::StartContainer] {
        world.fake.add_fault(fault(op, 1, Trouble::Hangs));
    }
    let hook = json!({"postStart": {"sleep": {"seconds": 30}}});
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let spec = json!({
        "terminationGracePeriodSeconds": 60,
        "volumes": [{"name": "v", "image": {"reference": "model:1"}}],
        "containers": [
            {"name": "c", "image": "a:1", "command": ["sleep"], "volumeMounts": mounts, "lifecycle": hook},
            {"name": "d", "image": "b:1", "command": ["sleep"]},
        ],
    });
    world.apply(&[manifest("a", spec)]);
    for (op, created) in [(Op::CreateContainer, 0), (Op::StartContainer, 1)] {
        world.until("the call is made", |w| w.fake.hanging(op) == 1);
        let told = ["Created", "Started"].map(|reason| world.events_of(reason));
        assert_eq!(told, [created, 0], "{op:?}");
        assert_eq!(linked_logs(&world), Vec::<PathBuf>::new(), "{op:?}");
        world.fake.release(op);
    }
    world.until("its log is linked", |w| !linked_logs(w).is_empty());
    let first = world.fake.container(&"a".into(), "c").expect("runs");
    assert_eq!(linked_logs(&world), [PathBuf::from(&first.log_path)]);
    // The next container waits for the hook of this one.
    world.advance(s(25));
    assert_eq!(world.events_of("Started"), 1);
    assert_eq!(
        starts(&world),
        named(&[
            (Op::PullImage, "model:1"),
            (Op::PullImage, "a:1"),
            (Op::CreateContainer, "c"),
            (Op::StartContainer, "c"),
        ])
    );
    world.until("the next one runs", |w| {
        state(w, "a", "d") == Some(ContainerState::Running)
    });
    assert_eq!(
        starts(&world),
        named(&[
            (Op::PullImage, "b:1"),
            (Op::CreateContainer, "d"),
            (Op::StartContainer, "d"),
        ])
    );
    // While a crash loop is slowed down, not even the images are looked for.
    let second = world.fake.container(&"a".into(), "d").expect("runs");
    world.fake.exit(&second.id, 1);
    world.until("runs again", |w| {
        let now = w.fake.container(&"a".into(), "d");
        now.is_some_and(|d| d.restart_count == 1 && d.state == ContainerState::Running)
    });
    let again = world.fake.container(&"a".into(), "d").expect("runs");
    world.fake.take_calls();
    world.fake.exit(&again.id, 1);
    world.until("it is told", |w| w.events_of("BackOff") > 0);
    let calls = world.fake.take_calls();
    assert!(calls.iter().all(|(op, _)| *op != Op::ImageStatus));
    assert_eq!(world.events_of("Failed"), 0);
}

#[test]
fn a_container_whose_hook_fails_waits_for_that_reason() {
    // WAIT-15 HOOK-01
    let world = World::new();
    let hook = json!({"postStart": {"httpGet": {"port": 80}}});
    let containers =
        json!([{"name": "c", "image": IMAGE, "command": ["sleep"], "lifecycle": hook}]);
    world.wire.hook_ends(Err(UnansweredRequest {
        url: "secret".into(),
        source: ProbeRequestError::Peer("EOF".into()),
    }));
    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    world.apply(&[manifest("a", json!({"containers": containers}))]);
    world.until("is killed", |w| w.fake.hanging(Op::StopContainer) == 1);
    // No newer relist comes between the kill and the check of the status.
    world.fake.add_fault(fault(Op::ListPods, 1, Trouble::Hangs));
    world.until("no relist ends", |w| w.fake.hanging(Op::ListPods) == 1);
    world.fake.release(Op::StopContainer);
    world.until("waits", |w| {
        w.waiting("a").as_deref() == Some("PostStartHookError")
    });
    let status = world.status("a").expect("status");
    let waiting = status.container_statuses[0].state.waiting.clone();
    assert_eq!(waiting.expect("waits").message, "PostStartHook failed");
    assert!(!status.container_statuses[0].ready);
    world.fake.release(Op::ListPods);
    world.until("runs", |w| {
        let now = w.fake.container(&"a".into(), "c");
        now.is_some_and(|c| c.restart_count == 1 && c.state == ContainerState::Running)
    });
    world.until("and shows it", |w| w.waiting("a").is_none());
}
