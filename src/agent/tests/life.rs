//! Ordinary lives.

use core::{cell::Cell, time::Duration};

use serde_json::{Value, json};

use super::super::{
    core::AgentEvent,
    ring::{self, RecordedEffect, RecordedEvent, RecordedLine},
};
use super::world::{IMAGE, World, fails, manifest};
use crate::{
    api::{MonoTime, PodUid, cri::ContainerState, pod::CONFIG_SOURCE, pod_status::PodPhase},
    runtime::fake::{Fault, OnStop, Op, Trouble},
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_manifest_comes_and_goes() {
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert!(world.now().0 < 2000, "at {:?}", world.now());
    world.advance(s(180));
    let starts = world.fake.take_calls().into_iter();
    assert_eq!(
        starts.filter(|(op, _)| *op == Op::StartContainer).count(),
        1,
        "nothing happens while nothing changes"
    );
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert_eq!(world.events_of("Killing"), 1);
}

#[test]
fn the_loop_itself_says_that_it_moves() {
    // SVC-05 LOOP-05
    let world = World::new();
    world.advance(s(3600));
    let watch = &world.parts.tools.loop_watch;
    assert!(watch.is_healthy(world.now()));
    assert!(!watch.is_healthy(world.now() + s(301)));
}

#[test]
fn a_missing_image_arrives() {
    let world = World::new();
    let containers = json!([{"name": "c", "image": "later:1"}]);
    world.apply(&[manifest("a", json!({"containers": containers}))]);
    world.until("is told", |w| {
        w.waiting("a").as_deref() == Some("ErrImagePull")
    });
    world.until("backs off", |w| {
        w.waiting("a").as_deref() == Some("ImagePullBackOff")
    });
    world.advance(s(100));
    assert_eq!(world.waiting("a").as_deref(), Some("ImagePullBackOff"));
    world.fake.offer_image("later:1");
    let before = world.now();
    world
        .events
        .try_send(AgentEvent::ImagesArrived)
        .expect("room");
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert!(world.now() - before < s(2), "nobody waits out a back-off");
}

#[test]
fn when_a_registry_is_asked() {
    // IMG-03 IMG-04 IMG-08 EVT-10
    // Image, present or not, policy as written, pulls, waiting reason or none if it runs, events.
    for (image, there, policy, pulls, reason, events) in [
        ("a:1", true, "", 0, None, &["Pulled"][..]),
        ("a:1", true, "IfNotPresent", 0, None, &["Pulled"]),
        ("a:1", true, "Never", 0, None, &["Pulled"]),
        // Present or not: the registry decides.
        (
            "a:1",
            true,
            "Always",
            1,
            Some("ErrImagePull"),
            &["Pulling", "Failed"],
        ),
        (
            "a:latest",
            true,
            "",
            1,
            Some("ErrImagePull"),
            &["Pulling", "Failed"],
        ),
        (
            "a",
            true,
            "",
            1,
            Some("ErrImagePull"),
            &["Pulling", "Failed"],
        ),
        (
            "a:1",
            false,
            "",
            1,
            Some("ErrImagePull"),
            &["Pulling", "Failed"],
        ),
        (
            "a:1",
            false,
            "Never",
            0,
            Some("ErrImageNeverPull"),
            &["ErrImageNeverPull"],
        ),
    ] {
        let world = World::new();
        if there {
            world
                .fake
                .add_image(if image == "a" { "a:latest" } else { image });
        }
        let mut container = json!({"name": "c", "image": image});
        if !policy.is_empty() {
            container["imagePullPolicy"] = policy.into();
        }
        world.apply(&[manifest("a", json!({"containers": [container]}))]);
        let what = format!("{image} {there} {policy:?}");
        world.until(&what, |w| match reason {
            None => w.phase("a") == Some(PodPhase::Running),
            Some(reason) => w.waiting("a").as_deref() == Some(reason),
        });
        let calls = world.fake.take_calls().into_iter();
        let asked = calls.filter(|(op, _)| *op == Op::PullImage).count();
        assert_eq!(asked, pulls, "{what}");
        for event in ["Pulling", "Pulled", "ErrImageNeverPull", "Failed"] {
            let told = world.events_of(event) > 0;
            let expected = events.contains(&event);
            assert_eq!(told, expected, "{what}: {event}");
        }
        let recorder = &world.parts.tools.recorder;
        let pulled = recorder
            .newest_events(None, usize::MAX)
            .into_iter()
            .find(|e| *e.reason == *"Pulled");
        assert!(
            pulled.is_none_or(|e| e
                .message
                .ends_with("already present on machine and can be accessed by the pod")),
            "{what}"
        );
    }
    // An image that the registry has is pulled with `Always`, again for each start.
    let world = World::new();
    world.fake.offer_image("a:1");
    let container = json!({"name": "c", "image": "a:1", "imagePullPolicy": "Always"});
    world.apply(&[manifest("a", json!({"containers": [container]}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert_eq!(
        (world.events_of("Pulling"), world.events_of("Pulled")),
        (1, 1)
    );
}

#[test]
fn a_pod_that_is_to_end_waits_for_no_pull() {
    // PW-14
    let world = World::new();
    world.fake.add_fault(Fault {
        op: Op::PullImage,
        target: None,
        times: 1,
        trouble: Trouble::Hangs,
    });
    let container = json!({"name": "c", "image": "slow:1"});
    world.apply(&[manifest("a", json!({"containers": [container]}))]);
    world.until("pulls", |w| w.fake.hanging(Op::PullImage) == 1);
    world.advance(s(3600));
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    world.apply(&[]);
    let before = world.now();
    world.until("is gone", |w| w.is_gone("a"));
    assert!(world.now() - before < s(10), "{:?}", world.now() - before);
    assert_eq!(world.events_of("Failed"), 0);
}

#[test]
fn a_crash_loop_is_slowed_down() {
    let world = World::new();
    let containers = json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 1"]}]);
    world.apply(&[manifest("a", json!({"containers": containers}))]);
    let uid = PodUid::from("a");
    let mut starts = Vec::new();
    for restarts in 0..7 {
        world.until("starts again", |w| {
            w.fake
                .container(&uid, "c")
                .is_some_and(|c| c.restart_count >= restarts)
        });
        starts.push(world.now());
    }
    let gaps: Vec<u64> = starts.windows(2).map(|w| (w[1] - w[0]).as_secs()).collect();
    // The first restart is granted at once; then 10, 20, 40, … seconds, each late by at most half of it.
    for (gap, least) in gaps.iter().zip([0, 10, 20, 40, 80, 160]) {
        assert!((least..=least + least / 2 + 2).contains(gap), "{gaps:?}");
    }
    assert_eq!(world.waiting("a").as_deref(), Some("CrashLoopBackOff"));
    assert!(world.events_of("BackOff") > 0);
}

#[test]
fn a_crash_loop_stays_slow_under_another_agent() {
    let world = World::new();
    let containers = json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 1"]}]);
    let pods = [manifest("a", json!({"containers": containers}))];
    let uid = PodUid::from("a");
    let count = |w: &World| w.fake.container(&uid, "c").map_or(0, |c| c.restart_count);
    world.apply(&pods);
    world.until("is slow", |w| count(w) == 4);
    let began = world.now();
    let world = world.restart_agent();
    world.apply(&pods);
    world.until("starts again", |w| count(w) == 5);
    assert!(world.now() - began >= s(80), "{:?}", world.now() - began);
}

#[test]
fn a_lost_sandbox_is_replaced() {
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let uid = PodUid::from("a");
    let before = world.fake.container(&uid, "c").expect("runs");
    world.fake.lose_sandbox(&before.sandbox);
    world.until("runs in another sandbox", |w| {
        w.fake
            .container(&uid, "c")
            .is_some_and(|c| c.sandbox != before.sandbox && c.state == ContainerState::Running)
    });
    assert_eq!(world.events_of("SandboxChanged"), 1);
}

#[test]
fn sidecars_end_one_after_the_other_without_waiting_for_their_grace() {
    // KILL-08
    let world = World::new();
    let sidecar = |name: &str| json!({"name": name, "image": IMAGE, "restartPolicy": "Always", "command": ["sleep"]});
    world.apply(&[manifest(
        "a",
        json!({"initContainers": [sidecar("one"), sidecar("two"), sidecar("three")],
            "terminationGracePeriodSeconds": 30}),
    )]);
    let uid = PodUid::from("a");
    world.until("runs", |w| {
        w.fake
            .container(&uid, "c")
            .is_some_and(|c| c.state == ContainerState::Running)
    });
    world.advance(s(5));
    world.fake.take_calls();
    let before = world.now();
    world.apply(&[]);
    let mut stops = Vec::new();
    world.until("ends", |w| {
        w.fake
            .container(&uid, "one")
            .is_none_or(|c| c.state == ContainerState::Exited)
    });
    for (op, target) in world.fake.take_calls() {
        if op == Op::StopContainer {
            stops.push(target);
        }
    }
    assert_eq!(stops, ["c", "three", "two", "one"]);
    assert!(
        world.now() - before < s(2),
        "took {:?}",
        world.now() - before
    );
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn a_pod_comes_back_under_its_uid_while_it_ends() {
    // PW-07 PW-34
    let world = World::new();
    world.fake.add_image("other:1");
    world.fake.on_stop("c", OnStop::Ignores);
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.apply(&[]);
    world.advance(s(1));
    let containers = json!([{"name": "d", "image": "other:1", "command": ["sleep"]}]);
    world.apply(&[manifest("a", json!({"containers": containers}))]);
    let uid = PodUid::from("a");
    let first = world.fake.container(&uid, "c").expect("still ends");
    assert_eq!(first.state, ContainerState::Running);
    let recorded = world
        .parts
        .machine
        .store
        .read_pod(&uid)
        .expect("its record");
    let names: Vec<&str> = recorded.spec.containers.iter().map(|c| &*c.name).collect();
    assert_eq!(names, ["c"], "its stop still needs the old object");
    world.until("the new one runs", |w| {
        w.fake
            .container(&uid, "d")
            .is_some_and(|c| c.state == ContainerState::Running)
    });
    world.until("is told", |w| w.phase("a") == Some(PodPhase::Running));
    assert!(
        !world
            .parts
            .machine
            .store
            .pod_dir(&uid)
            .join("next.json")
            .exists()
    );
}

#[test]
fn a_pod_that_returns_right_after_its_end_runs_as_it_is_now() {
    let world = World::new();
    world.fake.add_image("other:1");
    for round in 0..30 {
        let image = if round % 2 == 0 { IMAGE } else { "other:1" };
        let name = format!("c{round}");
        let containers = json!([{"name": name, "image": image, "command": ["sleep"]}]);
        world.apply(&[manifest("a", json!({"containers": containers}))]);
        let uid = PodUid::from("a");
        world.until("runs", |w| {
            w.fake
                .container(&uid, &name)
                .is_some_and(|c| c.state == ContainerState::Running)
        });
        world.apply(&[]);
        // The pod comes back at a different time of its end each round.
        world.advance(Duration::from_millis(150 * round));
    }
}

#[test]
fn the_agent_restarts_and_pods_do_not_notice() {
    let world = World::new();
    let pods = [manifest("a", json!({})), manifest("b", json!({}))];
    world.apply(&pods);
    world.until("run", |w| {
        [w.phase("a"), w.phase("b")] == [Some(PodPhase::Running); 2]
    });
    let ids = |w: &World| ["a", "b"].map(|u| w.fake.container(&PodUid::from(u), "c").map(|c| c.id));
    let before = ids(&world);
    let world = world.restart_agent();
    world.advance(s(10));
    world.apply(&pods[..1]);
    world.until("is known again", |w| {
        w.phase("a") == Some(PodPhase::Running)
    });
    world.until("what is no longer configured is ended", |w| w.is_gone("b"));
    assert_eq!(ids(&world)[0], before[0]);
}

#[test]
fn what_runs_is_admitted_again_under_another_agent() {
    // ADM-04 LOOP-12
    let world = World::new();
    let hook = json!({"preStop": {"exec": {"command": ["true"]}}});
    let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "lifecycle": hook});
    let slow = json!({"containers": [container], "terminationGracePeriodSeconds": 300});
    let pods = [
        manifest("a", json!({})),
        manifest("b", slow),
        manifest("new", json!({})),
    ];
    world.apply(&pods[..2]);
    world.until("run", |w| {
        [w.phase("a"), w.phase("b")] == [Some(PodPhase::Running); 2]
    });
    world.advance(s(5));
    let id = |w: &World, uid: &str| w.fake.container(&PodUid::from(uid), "c").map(|c| c.id);
    let before = id(&world, "a");
    world.fake.on_stop("c", OnStop::Ignores);
    // The next agent has room for one pod.
    let world = world.restart_agent_by(&["--max-pods=1"]);
    world.advance(s(1));
    world.fake.take_calls();
    world.apply(&pods);
    for uid in ["b", "new"] {
        world.until("is refused", |w| w.phase(uid) == Some(PodPhase::Failed));
        let status = world.status(uid).expect("status");
        // Static pods are critical (ADM-14): the message tells that no pod can be evicted for them.
        assert_eq!(status.reason, "UnexpectedAdmissionError", "{uid}");
        assert!(
            status.message.starts_with("Pod was rejected: "),
            "{}",
            status.message
        );
    }
    let refused = world.now();
    world.until("it is killed", |w| !w.fake.runs(&PodUid::from("b")));
    assert!(world.now() - refused < s(10), "with little grace");
    let calls = world.fake.take_calls();
    assert!(!calls.iter().any(|(op, _)| *op == Op::Exec), "no hook");
    world.advance(s(100));
    assert_eq!(id(&world, "a"), before);
    assert_eq!(id(&world, "new"), None);
    let phases = ["a", "b", "new"].map(|uid| world.phase(uid));
    let expected = [PodPhase::Running, PodPhase::Failed, PodPhase::Failed];
    assert_eq!(phases, expected.map(Some), "none is asked again");
}

#[test]
fn what_has_ended_for_good_stays_so_after_a_reboot() {
    // SYNC-35 ACT-17 PW-06
    let exits = |code: &str| json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", format!("exit {code}")]}]);
    let world = World::new();
    let pods = [
        manifest(
            "done",
            json!({"restartPolicy": "Never", "containers": exits("0")}),
        ),
        manifest(
            "failed",
            json!({"restartPolicy": "Never", "containers": exits("3")}),
        ),
        manifest(
            "succeeded",
            json!({"restartPolicy": "OnFailure", "containers": exits("0")}),
        ),
        manifest("ran", json!({"restartPolicy": "Never"})),
        manifest("retried", json!({"restartPolicy": "OnFailure"})),
        manifest("always", json!({})),
    ];
    let starts = |w: &World| {
        let calls = w.fake.take_calls().into_iter();
        let mut ids: Vec<String> = calls
            .filter(|(op, _)| *op == Op::StartContainer)
            .map(|(_, id)| id)
            .collect();
        ids.sort();
        ids.len()
    };
    let ended = |w: &World| {
        let phase = |uid: &str| w.phase(uid);
        let terminal = |uid: &str| phase(uid).is_some_and(PodPhase::is_terminal);
        ["done", "failed", "succeeded"].into_iter().all(terminal)
            && ["ran", "retried", "always"]
                .into_iter()
                .all(|uid| phase(uid) == Some(PodPhase::Running))
    };
    world.apply(&pods);
    world.until("all have come so far", ended);
    world.advance(s(10));
    assert_eq!(starts(&world), 6);
    // Another agent in the same boot finds the containers themselves.
    let world = world.restart_agent();
    world.apply(&pods);
    world.until("all are known again", ended);
    world.advance(s(60));
    assert_eq!(starts(&world), 0);

    let world = world.reboot();
    world.apply(&pods);
    world.until("two run", |w| {
        let runs = |uid: &str| w.phase(uid) == Some(PodPhase::Running);
        runs("retried") && runs("always") && w.phase("ran").is_some()
    });
    world.advance(s(120));
    assert_eq!(
        starts(&world),
        2,
        "those that have not ended and may begin again"
    );
    for (uid, phase, code) in [
        ("done", PodPhase::Succeeded, 0),
        ("failed", PodPhase::Failed, 3),
        ("succeeded", PodPhase::Succeeded, 0),
        ("ran", PodPhase::Failed, 137),
    ] {
        let status = world.status(uid).expect("status");
        assert_eq!(status.phase, phase, "{uid}");
        let c = &status.container_statuses[0];
        let end = c.state.terminated.as_ref().expect("ended");
        assert_eq!(end.exit_code, code, "{uid}");
    }
    // A manifest that goes and comes back is a new pod.
    world.apply(&pods[3..]);
    world.until("the ended ones are gone", |w| {
        ["done", "failed", "succeeded"]
            .into_iter()
            .all(|uid| w.is_gone(uid))
    });
    assert_eq!(starts(&world), 0);
    world.apply(&pods);
    world.until("they ran", |w| w.phase("failed") == Some(PodPhase::Failed));
    world.until("they ran", |w| w.phase("done") == Some(PodPhase::Succeeded));
    assert_eq!(starts(&world), 3);
    // A changed manifest is another pod, too, even with the same uid.
    let world = world.reboot();
    world.apply(&[manifest("done", json!({"restartPolicy": "Never"}))]);
    world.until("it runs", |w| w.phase("done") == Some(PodPhase::Running));
}

#[test]
fn a_pod_edited_while_no_agent_ran_waits_for_the_one_that_had_its_name() {
    // PW-20
    let pod = |uid: &str| {
        let mut pod = manifest(uid, json!({}));
        pod["metadata"]["name"] = json!("web");
        pod
    };
    let [old, new] = ["old", "new"].map(PodUid::from);
    let world = World::new();
    world.apply(&[pod("old")]);
    world.until("runs", |w| w.phase("old") == Some(PodPhase::Running));
    // The old pod ends slowly.
    world.fake.on_stop("c", OnStop::Ignores);
    let world = world.restart_agent();
    world.apply(&[pod("new")]);
    let waited = Cell::new(false);
    world.until("the new one runs", |w| {
        let (before, after) = (w.fake.runs(&old), w.fake.runs(&new));
        assert!(!(before && after), "both run");
        waited.set(waited.get() || before && w.status("new").is_some());
        after
    });
    assert!(waited.get(), "it came while the old one ran");
    world.until("nothing of the old one is left", |w| w.is_gone("old"));
}

#[test]
fn pods_at_a_url() {
    // SRC-01 SRC-09 SRC-13 SRC-14
    let world = World::with(&["--manifest-url=http://h/m"], None);
    world.apply(&[manifest("file", json!({}))]);
    world.apply_from_url(&[manifest("url", json!({}))]);
    for uid in ["file", "url"] {
        world.until("runs", |w| w.phase(uid) == Some(PodPhase::Running));
    }
    let source = |w: &World, uid: &str| {
        let record = w
            .parts
            .machine
            .store
            .read_record::<Value>(&PodUid::from(uid));
        let (header, raw) = record.expect("recorded");
        assert_eq!(
            raw["metadata"]["annotations"][CONFIG_SOURCE],
            *header.source
        );
        header.source
    };
    assert_eq!(
        [source(&world, "file"), source(&world, "url")],
        ["file", "http"]
    );
    // The directory does not change pods of the URL, and the URL does not change those of the directory.
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("file"));
    world.apply(&[manifest("file", json!({}))]);
    world.until("runs", |w| w.phase("file") == Some(PodPhase::Running));
    // Until the URL was read, its pods cannot be known as removed.
    let url = PodUid::from("url");
    let world = world.restart_agent();
    world.apply(&[manifest("file", json!({}))]);
    world.advance(s(300));
    assert!(world.fake.runs(&url));
    world.fake.take_calls();
    world.apply_from_url(&[manifest("url", json!({}))]);
    world.until("is known", |w| w.phase("url") == Some(PodPhase::Running));
    let calls = world.fake.take_calls();
    assert!(
        !calls
            .iter()
            .any(|(op, _)| matches!(op, Op::StartContainer | Op::StopContainer))
    );
    world.apply_from_url(&[]);
    world.until("is gone", |w| w.is_gone("url"));
    assert_eq!(world.phase("file"), Some(PodPhase::Running));
}

#[test]
fn a_container_that_has_succeeded_stays_so_after_a_reboot_while_its_pod_goes_on() {
    // SYNC-35 ACT-16
    let container =
        |name: &str, words: &[&str]| json!({"name": name, "image": IMAGE, "command": words});
    let pod = [manifest(
        "half",
        json!({"restartPolicy": "OnFailure", "containers": [
            container("c", &["sh", "-c", "exit 0"]), container("d", &["sleep"]), container("e", &["sleep"]),
        ]}),
    )];
    let uid = PodUid::from("half");
    let instance = |w: &World, name: &str| w.fake.container(&uid, name);
    let ended = |w: &World, name: &str| {
        let status = w.status("half")?;
        let container = status.container_statuses.iter().find(|c| c.name == name)?;
        let end = container.state.terminated.as_ref()?;
        Some((end.exit_code, container.container_id.clone()))
    };
    let runs = |w: &World, name: &str| {
        instance(w, name).is_some_and(|c| c.state == ContainerState::Running)
    };
    let mut world = World::new();
    world.apply(&pod);
    world.until("it has come so far", |w| {
        ended(w, "c").is_some() && runs(w, "d") && runs(w, "e")
    });
    world.advance(s(5));
    let first = ended(&world, "c");
    assert_eq!(first.as_ref().map(|(code, _)| *code), Some(0));

    // The container does not run again in a later boot, nor under another agent of the same boot.
    for restart in [World::reboot, World::restart_agent, World::reboot] {
        world = restart(world);
        world.apply(&pod);
        world.until("the others run", |w| runs(w, "d") && runs(w, "e"));
        world.advance(s(120));
        assert!(instance(&world, "c").is_none(), "it runs again");
        assert_eq!(ended(&world, "c"), first, "and is shown as it ended");
        assert_eq!(world.phase("half"), Some(PodPhase::Running));
    }
    // The other two succeed, one after the other: that is the end of the pod.
    for name in ["d", "e"] {
        let id = instance(&world, name).expect("runs").id;
        assert!(world.fake.exit(&id, 0));
        world.advance(s(10));
        world = world.reboot();
        world.apply(&pod);
        world.advance(s(120));
    }
    assert_eq!(world.phase("half"), Some(PodPhase::Succeeded));
    assert!(instance(&world, "e").is_none(), "it has ended");
    // A manifest that goes and comes back is a new pod.
    world.apply(&[]);
    world.until("it is gone", |w| w.is_gone("half"));
    world.apply(&pod);
    world.until("all of it runs", |w| {
        instance(w, "c").is_some() && runs(w, "d") && runs(w, "e")
    });
}

#[test]
fn stop_ends_the_agent_and_stop_all_its_pods_first() {
    let world = World::new();
    let crash = json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 1"]}]);
    let pending = json!([{"name": "c", "image": "never:1"}]);
    world.apply(&[
        manifest("a", json!({})),
        manifest("b", json!({"containers": crash})),
        manifest("d", json!({"containers": pending})),
    ]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(30));
    let answer = world.stop(true);
    world.settle();
    // A pod that comes meanwhile does not start, and does not delay the end.
    world.apply(&[
        manifest("a", json!({})),
        manifest("b", json!({})),
        manifest("d", json!({})),
        manifest("e", json!({})),
    ]);
    world.until("ends", World::has_ended);
    assert!(answer.is_closed());
    let running = |u: &str| world.fake.container(&PodUid::from(u), "c");
    for uid in ["a", "b", "d", "e"] {
        let state = running(uid).map(|c| c.state);
        assert_ne!(state, Some(ContainerState::Running), "{uid}");
    }
    assert!(running("e").is_none());

    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let _answer = world.stop(false);
    world.until("ends", World::has_ended);
    assert_eq!(
        world
            .fake
            .container(&PodUid::from("a"), "c")
            .map(|c| c.state),
        Some(ContainerState::Running)
    );
}

pub(super) fn dump(world: &World) -> Vec<RecordedLine> {
    let text = world.agent.borrow().dump_history();
    let (header, lines) = ring::tests::parse_dump(&text).expect("a dump");
    assert_eq!(header.lost, 0);
    lines
}

#[test]
fn a_dump_tells_all_and_replays() {
    let sleeper = |name: &str| manifest(name, json!({}));
    let world = World::new();
    world.apply(&[sleeper("a"), sleeper("b")]);
    world.until("run", |w| {
        ["a", "b"]
            .iter()
            .all(|p| w.phase(p) == Some(PodPhase::Running))
    });
    world.advance(s(70));
    world.apply(&[sleeper("b")]);
    world.until("is gone", |w| w.is_gone("a"));
    world.advance(s(3));
    let told = dump(&world);

    // The dump shows the life of a pod.
    let of_a: Vec<&str> = told
        .iter()
        .filter_map(|line| match (&line.heard, &line.done) {
            (Some(RecordedEvent::Add(seen)), _) if seen.pod == "a" => Some("add"),
            (Some(RecordedEvent::Remove { pod }), _) if pod == "a" => Some("remove"),
            (_, Some(RecordedEffect::Gone { pod, .. })) if pod == "a" => Some("gone"),
            (_, Some(RecordedEffect::Start { pod, call, .. })) if pod == "a" && call != "sync" => {
                Some(if call == "terminating" {
                    "ends"
                } else {
                    "ended"
                })
            }
            _ => None,
        })
        .collect();
    assert_eq!(of_a, ["add", "remove", "ends", "ended", "gone"]);
    let count = |f: fn(&RecordedLine) -> bool| told.iter().filter(|l| f(l)).count();
    assert_eq!(
        count(|l| matches!(l.done, Some(RecordedEffect::Start { .. }))),
        count(|l| matches!(l.heard, Some(RecordedEvent::Done { .. }))),
        "every call that began has ended"
    );

    // A second agent with the same inputs at the same times has the same outputs.
    let again = World::new();
    let mut configured: Vec<String> = Vec::new();
    let mut at = 0;
    while at < told.len() {
        let t = told[at].t;
        let mut changed = false;
        while at < told.len() && told[at].t == t {
            match &told[at].heard {
                Some(RecordedEvent::Add(seen)) => {
                    configured.push(seen.pod.clone());
                    changed = true;
                }
                Some(RecordedEvent::Remove { pod }) => {
                    configured.retain(|p| p != pod);
                    changed = true;
                }
                _ => {}
            }
            at += 1;
        }
        if changed {
            again.advance(MonoTime(t) - again.now());
            let manifests: Vec<_> = configured.iter().map(|p| sleeper(p)).collect();
            again.apply(&manifests);
        }
    }
    again.advance(world.now() - again.now());
    assert_eq!(dump(&again), told);
}

#[test]
fn pods_that_come_before_the_runtime_was_listed() {
    // LOOP-02 LOOP-12
    let with_port = |uid: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 28080}]);
        let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "ports": ports});
        manifest(uid, json!({"containers": [container]}))
    };
    let world = World::new();
    world.fake.offer_image("other:1");
    world.apply(&[with_port("z")]);
    world.until("runs", |w| w.phase("z") == Some(PodPhase::Running));
    world.apply(&[with_port("a"), with_port("z")]);
    world.until("is refused", |w| w.phase("a") == Some(PodPhase::Failed));
    let ran = world.fake.container(&PodUid::from("z"), "c").expect("runs");

    let world = world.restart_agent_with(|fake| {
        fake.take_calls();
        fake.add_fault(fails(Op::ListPods, 20));
    });
    let plain = |uid: &str| manifest(uid, json!({}));
    world.apply(&[
        with_port("a"),
        with_port("z"),
        plain("edited"),
        plain("gone"),
    ]);
    world.advance(s(3));
    let other = json!([{"name": "c", "image": "other:1", "command": ["sleep"]}]);
    let edited = manifest("edited", json!({"containers": other}));
    world.apply(&[with_port("a"), with_port("z"), edited]);
    world.advance(s(3));
    let sandboxes = |world: &World| {
        let calls = world.fake.take_calls().into_iter();
        let made = calls.filter(|(op, _)| *op == Op::RunPodSandbox);
        made.map(|(_, of)| of).collect::<Vec<_>>()
    };
    assert!(sandboxes(&world).is_empty(), "nobody knows who runs");
    world.until("runs", |w| w.phase("edited") == Some(PodPhase::Running));
    world.advance(s(60));
    let made = sandboxes(&world);
    assert!(made.len() == 1 && made[0].contains("edited"), "{made:?}");
    let image = world.status("edited").expect("status").container_statuses[0]
        .image
        .clone();
    assert_eq!(image, "other:1", "the newest word counts");
    assert_eq!(world.phase("a"), Some(PodPhase::Failed), "it has no place");
    let runs = world.fake.container(&PodUid::from("z"), "c").expect("runs");
    assert_eq!((runs.id, runs.state), (ran.id, ContainerState::Running));
}
