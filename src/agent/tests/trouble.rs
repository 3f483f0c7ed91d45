//! Failures of the runtime, the disk and the clock, and their consequences.

use alloc::{rc::Rc, sync::Arc};
use core::{cell::RefCell, time::Duration};
use std::fs;

use serde_json::json;

use super::super::{
    core::{AgentEffect, AgentEvent, PodRemains},
    ring::RecordedEvent,
    views::DeliveryResult,
};
use super::{
    api::FakeApi,
    life::dump,
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    api::{PodUid, cri::ContainerState, pod_status::PodPhase, received::SnapshotEntry},
    runtime::fake::{Fake, Fault, OnStop, Op, Trouble},
    server::backend::MetricsEndpoint,
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn an_end_that_fails_is_tried_until_it_succeeds() {
    // PW-33
    for op in [Op::StopContainer, Op::StopPodSandbox, Op::PodStatus] {
        let world = World::new();
        world.apply(&[manifest("a", json!({}))]);
        world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
        world.fake.add_fault(fails(op, 5));
        world.apply(&[]);
        world.until("is gone", |w| w.is_gone("a"));
    }
}

#[test]
fn a_program_built_for_smaller_pages_is_named() {
    // SVC-17
    let world = World::new();
    let told = |world: &World| {
        let events = world
            .parts
            .tools
            .recorder
            .newest_events(None, usize::MAX)
            .into_iter();
        let of_pages = events.filter(|e| e.message.contains("pages of 16 KiB"));
        of_pages.map(|e| e.count).sum::<u32>()
    };
    for (name, policy) in [("a", "Always"), ("n", "Never")] {
        let spec = json!({"restartPolicy": policy});
        world.apply(&[manifest(name, spec)]);
        world.until("runs", |w| w.phase(name) == Some(PodPhase::Running));
        let id = world.fake.container(&PodUid::from(name), "c");
        // The program ends by its own fault.
        world.fake.exit(&id.expect("runs").id, 1);
        world.advance(s(5));
        assert_eq!(told(&world), 0, "{policy}");
        world.apply(&[]);
        world.until("is gone", |w| w.is_gone(name));
    }
    let mut before = 0;
    for (name, policy) in [("dies-a", "Always"), ("dies-n", "Never")] {
        world.apply(&[manifest(name, json!({"restartPolicy": policy}))]);
        let uid = PodUid::from(name);
        world.until("it was started", |w| {
            let container = w.fake.container(&uid, "c");
            container.is_some_and(|c| c.state == ContainerState::Running)
        });
        let id = world.fake.container(&uid, "c").expect("there").id;
        world.fake.exit(&id, 139);
        world.until("it is named", |w| told(w) > before);
        before = told(&world);
        world.apply(&[]);
        world.until("is gone", |w| w.is_gone(name));
    }
}

#[test]
fn a_clock_that_is_set_changes_no_back_off() {
    // SVC-15
    for by_s in [50 * 365 * 86_400, -50 * 365 * 86_400] {
        let world = World::new();
        world.apply(&[manifest("a", json!({}))]);
        let uid = PodUid::from("a");
        let runs = |w: &World, n: u32| {
            let now = w.fake.container(&uid, "c");
            now.is_some_and(|c| c.restart_count == n && c.state == ContainerState::Running)
        };
        for n in 0..2 {
            world.until("runs", |w| runs(w, n));
            let id = world.fake.container(&uid, "c").expect("runs").id;
            world.fake.exit(&id, 1);
        }
        world.until("waits", |w| {
            w.waiting("a").as_deref() == Some("CrashLoopBackOff")
        });
        let began = world.now();
        world.jump(by_s);
        world.until("runs again", |w| runs(w, 2));
        let waited = world.now() - began;
        assert!(waited >= s(5) && waited <= s(30), "{by_s}: {waited:?}");
    }
}

#[test]
fn a_relist_that_fails_is_no_news() {
    // PLEG-02
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(5));
    let uid = PodUid::from("a");
    world.fake.add_fault(fails(Op::ListPods, 1000));
    world.advance(s(2));
    let standing = || {
        let page = world
            .wait(world.metrics.metrics_page(MetricsEndpoint::Own))
            .ok();
        let page: String = page.expect("served").collect();
        let seen = page
            .lines()
            .find_map(|l| l.strip_prefix("kubelet_pleg_last_seen_seconds "));
        let told = dump(&world).into_iter();
        let told = told.filter(|l| matches!(l.heard, Some(RecordedEvent::Pleg { .. })));
        (
            seen.expect("a time").to_owned(),
            told.count(),
            world.agent.borrow().running_counts(),
        )
    };
    let before = standing();
    let id = world.fake.container(&uid, "c").expect("runs").id;
    world.fake.take_calls();
    world.fake.exit(&id, 1);
    world.advance(s(100));
    assert_eq!(standing(), before);
    let calls = world.fake.take_calls();
    assert!(calls.iter().any(|(op, _)| *op == Op::ListPods));
    // The pod's log does not exist: the rotation of logs calls the runtime again and again.
    let known = [Op::ListPods, Op::Status, Op::ReopenLog];
    let others = |(op, _): &&(Op, String)| !known.contains(op);
    let others: Vec<_> = calls.iter().filter(others).collect();
    assert!(others.is_empty(), "a worker waits for a status: {others:?}");
    assert_eq!(world.phase("a"), Some(PodPhase::Running));
    world.fake.heal();
    world.until("runs again", |w| {
        let now = w.fake.container(&uid, "c");
        now.is_some_and(|c| c.restart_count == 1 && c.state == ContainerState::Running)
    });
    assert_ne!(standing(), before);
}

#[test]
fn a_status_that_cannot_be_read_any_more_when_a_sync_has_its_turn() {
    // PW-24
    let world = World::new();
    let container = |name: &str| json!({"name": name, "image": IMAGE});
    let spec = json!({"containers": [container("c"), container("d")]});
    world.apply(&[manifest("a", spec)]);
    let uid = PodUid::from("a");
    let newest = |world: &World, name: &str| world.fake.container(&uid, name).expect("there");
    let runs = |world: &World, name: &str, n: u32| {
        let now = world.fake.container(&uid, name);
        now.is_some_and(|c| c.restart_count == n && c.state == ContainerState::Running)
    };
    world.until("runs", |w| runs(w, "c", 0) && runs(w, "d", 0));
    world.fake.exit(&newest(&world, "c").id, 1);
    world.until("runs again", |w| runs(w, "c", 1));
    // The removal of the first instance holds the pod's claim for as long as it takes.
    let hangs = Fault {
        op: Op::RemoveContainer,
        target: None,
        times: 1,
        trouble: Trouble::Hangs,
    };
    world.fake.add_fault(hangs);
    world.fake.exit(&newest(&world, "c").id, 1);
    world.until("removes", |w| w.fake.hanging(Op::RemoveContainer) == 1);
    world.advance(s(60));
    assert!(
        runs(&world, "d", 0) && !runs(&world, "c", 2),
        "a sync waits"
    );
    world.fake.add_fault(fails(Op::PodStatus, 1000));
    world.fake.exit(&newest(&world, "d").id, 1);
    world.advance(s(5));
    world.fake.take_calls();
    world.fake.release(Op::RemoveContainer);
    world.advance(s(60));
    let acts = [Op::RunPodSandbox, Op::CreateContainer, Op::StartContainer];
    let calls = world.fake.take_calls();
    let acted: Vec<_> = calls.iter().filter(|(op, _)| acts.contains(op)).collect();
    assert!(acted.is_empty(), "by a status that is not known: {acted:?}");
    world.fake.heal();
    world.until("runs on", |w| runs(w, "c", 2) && runs(w, "d", 1));
    assert_eq!(world.fake.violations(), Vec::<String>::new());
}

#[test]
fn without_a_fresh_list_housekeeping_removes_and_creates_nothing() {
    // CLEAN-02 DIR-04
    let world = World::new();
    let dir = world.parts.machine.store.pod_dir(&"nobody".into());
    fs::create_dir_all(dir.join("containers/c")).expect("directory");
    // Before the manifests are read, the owner of the directory is not known.
    world.advance(s(130));
    assert!(dir.exists());
    world.fake.add_fault(fails(Op::ListPods, 1000));
    world.advance(s(5));
    let is_synced = |w: &World| w.agent.borrow().pods().worker_table().is_synced();
    assert!(!is_synced(&world));
    world.apply(&[]);
    world.advance(s(130));
    assert!(
        is_synced(&world),
        "pods are compared with what is configured"
    );
    assert!(dir.exists(), "and no more is done");
    world.fake.heal();
    world.until("it is removed", |_| !dir.exists());
}

#[test]
fn inputs_are_handled_in_their_order_and_a_closed_queue_ends_the_loop() {
    // LOOP-01
    let world = World::new();
    world.advance(s(5));
    let order: Rc<RefCell<Vec<u32>>> = Rc::default();
    for n in 0..200 {
        let order = Rc::clone(&order);
        let event = match n % 10 {
            // Events of other sources have their place in the queue, too.
            3 => AgentEvent::Housekeeping,
            _ => AgentEvent::Ask(Box::new(move |_| order.borrow_mut().push(n))),
        };
        world.events.try_send(event).expect("room");
    }
    world.settle();
    let expected: Vec<u32> = (0..200).filter(|n| n % 10 != 3).collect();
    assert_eq!(*order.borrow(), expected);
    assert!(!world.has_ended());
    world.events.close();
    world.settle();
    assert!(world.has_ended());
}

#[test]
fn a_relist_that_fails_holds_up_and_loses_nothing() {
    let world = World::new();
    world.fake.add_fault(fails(Op::ListPods, 30));
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.fake.set_deaf(true);
    world.fake.add_fault(fails(Op::ListPods, 3));
    let uid = PodUid::from("a");
    let id = world.fake.container(&uid, "c").expect("runs").id;
    world.fake.exit(&id, 1);
    world.until("runs again", |w| {
        w.fake
            .container(&uid, "c")
            .is_some_and(|c| c.restart_count == 1 && c.state == ContainerState::Running)
    });
}

#[test]
fn a_hook_that_never_ends_does_not_keep_its_pod() {
    let mut world = World::new();
    // The runtime kills a command whose call is dropped.
    world.forgiven = Some("Exec was dropped");
    let hook = json!({"postStart": {"exec": {"command": ["sleep", "infinity"]}}});
    let containers =
        json!([{"name": "c", "image": IMAGE, "command": ["sleep"], "lifecycle": hook}]);
    world.fake.add_fault(Fault {
        op: Op::Exec,
        target: None,
        times: 1,
        trouble: Trouble::Hangs,
    });
    world.apply(&[manifest("a", json!({"containers": containers}))]);
    world.until("hangs", |w| w.fake.hanging(Op::Exec) == 1);
    world.advance(s(300));
    let before = world.now();
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert!(world.now() - before < s(30));
}

#[test]
fn a_record_that_cannot_be_written_harms_its_pod_alone_and_is_tried_again() {
    let world = World::new();
    let uid = PodUid::from("a");
    let record = world.parts.machine.store.pod_dir(&uid).join("pod.json");
    fs::create_dir_all(record.join("in the way")).expect("directory");
    let delivery = world.apply(&[manifest("a", json!({})), manifest("b", json!({}))]);
    assert_eq!(delivery.unrecorded, core::slice::from_ref(&uid));
    assert_eq!(world.events_of("FailedCreatePodRecord"), 1);
    world.until("the other runs", |w| {
        w.phase("b") == Some(PodPhase::Running)
    });
    assert!(world.fake.container(&uid, "c").is_none());
    // The source says that nothing has changed; it is then asked for the whole pod.
    let known = ["a", "b"].map(|u| SnapshotEntry::Known(u.into())).to_vec();
    let expected = DeliveryResult {
        unknown: vec![uid.clone()],
        unrecorded: Vec::new(),
    };
    assert_eq!(world.deliver(known), expected);
    let _ = fs::remove_dir_all(&record);
    world.apply(&[manifest("a", json!({})), manifest("b", json!({}))]);
    world.until("it runs too", |w| w.phase("a") == Some(PodPhase::Running));
}

#[test]
fn a_record_that_is_lost_is_no_end_and_no_obstacle_to_one() {
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let uid = PodUid::from("a");
    fs::write(
        world.parts.machine.store.pod_dir(&uid).join("pod.json"),
        "{",
    )
    .expect("write");
    world.advance(s(200));
    let state = |w: &World| w.fake.container(&uid, "c").map(|c| c.state);
    assert_eq!(state(&world), Some(ContainerState::Running));
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
}

/// Makes the pod's record unreadable. The returned function ends that.
fn hide_record(world: &World, uid: &PodUid) -> impl FnOnce() + use<> {
    let record = world.parts.machine.store.pod_dir(uid).join("pod.json");
    let kept = record.with_file_name("kept");
    fs::rename(&record, &kept).expect("moved");
    fs::create_dir(&record).expect("in its place");
    move || {
        fs::remove_dir(&record).expect("removed");
        fs::rename(&kept, &record).expect("moved back");
    }
}

/// Manifest of a static pod `a` with 40 s of grace and a hook.
fn slow() -> serde_json::Value {
    let hook = json!({"preStop": {"exec": {"command": ["sleep", "1"]}}});
    let containers =
        json!([{"name": "c", "image": IMAGE, "command": ["sleep"], "lifecycle": hook}]);
    manifest(
        "a",
        json!({"terminationGracePeriodSeconds": 40, "containers": containers}),
    )
}

#[test]
fn a_record_that_cannot_be_read_for_a_moment_costs_no_hook() {
    // PW-26
    let (world, uid) = (World::new(), PodUid::from("a"));
    world.apply(&[slow()]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let show = hide_record(&world, &uid);
    world.fake.take_calls();
    world.apply(&[]);
    world.advance(s(5));
    assert!(world.fake.runs(&uid), "it is not killed without its spec");
    show();
    world.until("is gone", |w| w.is_gone("a"));
    let calls = world.fake.take_calls();
    assert!(calls.iter().any(|(op, _)| *op == Op::Exec), "no hook ran");
}

#[test]
fn a_record_that_cannot_be_read_costs_no_grace() {
    // KILL-02 PW-10
    let (world, uid) = (World::new(), PodUid::from("a"));
    world.apply(&[slow()]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.fake.on_stop("c", OnStop::Ignores);
    let show = hide_record(&world, &uid);
    let began = world.now();
    world.apply(&[]);
    world.until("is killed", |w| !w.fake.runs(&uid));
    let took = world.now() - began;
    assert!(took >= s(40) && took <= s(55), "{took:?}");
    show();
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn a_pod_of_the_api_goes_although_its_record_could_not_be_read_at_its_end() {
    // DEL-03 PW-26
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let name = api.create("a", json!({}));
    let uid = PodUid::from(&*name);
    world.until("runs", |_| api.phase("a") == "Running");
    let hangs = fault(Op::StopContainer, 1, Trouble::Hangs);
    world.fake.add_fault(hangs);
    api.delete("a");
    world.until("is being stopped", |w| {
        w.fake.hanging(Op::StopContainer) == 1
    });
    let show = hide_record(&world, &uid);
    let id = world.fake.container(&uid, "c").expect("runs").id;
    world.fake.exit(&id, 0);
    world.fake.release(Op::StopContainer);
    world.advance(s(60));
    assert!(!world.fake.runs(&uid));
    assert!(api.get("ns", "a").is_some(), "its last status is not known");
    show();
    world.until("is gone", |w| {
        api.get("ns", "a").is_none() && w.is_gone(uid.as_str())
    });
}

#[test]
fn nothing_is_removed_of_a_pod_that_is_on_its_way_in() {
    let world = World::new();
    world.apply(&[]);
    world.advance(s(5));
    let uid = PodUid::from("a");
    // The state is that between the writing of a record and its event in the loop.
    world.agent.borrow_mut().pods_mut().note_arrival_start(&uid);
    fs::create_dir_all(world.parts.machine.store.pod_dir(&uid)).expect("directory");
    world.advance(s(130));
    assert!(world.parts.machine.store.pod_dir(&uid).exists());
    world.agent.borrow_mut().pods_mut().note_arrival_end(&uid);
    world.until("an orphan is removed", |w| {
        !w.parts.machine.store.pod_dir(&uid).exists()
    });
}

#[test]
fn what_was_found_is_older_than_what_is_configured() {
    // CLEAN-01
    let world = World::new();
    let both = ["new", "old"].map(PodUid::from);
    let group = |uid: &PodUid| (uid.clone(), format!("/kubepods/pod{uid}"));
    // Disk and cgroups are searched, and after that a pod comes that was found there.
    let found = PodRemains {
        dirs: both.to_vec(),
        groups: both.iter().map(group).collect(),
    };
    world.apply(&[manifest("new", json!({}))]);
    world.until("runs", |w| w.phase("new") == Some(PodPhase::Running));
    let mut agent = world.agent.borrow_mut();
    let now = world.now();
    agent.handle_event(AgentEvent::Searched(found), now);
    let chores = core::iter::from_fn(|| agent.poll_effect(now)).find_map(|effect| match effect {
        AgentEffect::Housekeeping(chores) => Some(chores),
        _ => None,
    });
    let chores = chores.expect("something to do");
    assert_eq!(chores.forgotten, [PodUid::from("old")]);
    let whose: Vec<&PodUid> = chores.cgroups.iter().map(|(uid, ..)| uid).collect();
    assert_eq!(whose, [&both[1]]);
}

#[test]
fn a_removal_under_way_holds_up_its_pod_alone() {
    let world = World::new();
    world.apply(&[manifest("a", json!({})), manifest("b", json!({}))]);
    world.until("run", |w| w.phase("b") == Some(PodPhase::Running));
    world.fake.add_fault(Fault {
        op: Op::RemovePodSandbox,
        target: Some("a".into()),
        times: 1,
        trouble: Trouble::Hangs,
    });
    world.apply(&[]);
    world.until("hangs", |w| w.fake.hanging(Op::RemovePodSandbox) == 1);
    world.advance(s(100));
    // Housekeeping goes on without the chores that hang.
    let running = |w: &World, u: &str| {
        w.fake
            .container(&PodUid::from(u), "c")
            .is_some_and(|c| c.state == ContainerState::Running)
    };
    assert!(!running(&world, "b"));
    world.fake.release(Op::RemovePodSandbox);
    world.until("are gone", |w| w.is_gone("a") && w.is_gone("b"));
}

#[test]
fn a_runtime_that_is_down_stops_nothing() {
    // LOOP-02
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.fake.set_conditions(Some(("Broken", "it is")), None);
    world.advance(s(60));
    world.fake.take_calls();
    world.apply(&[manifest("a", json!({})), manifest("b", json!({}))]);
    let id = world.fake.container(&"a".into(), "c").expect("runs").id;
    world.fake.exit(&id, 1);
    world.advance(s(60));
    let mut calls = world.fake.take_calls();
    calls.retain(|(op, _)| !matches!(op, Op::Status | Op::ListPods | Op::PodStatus));
    assert_eq!(calls, [], "nothing is done to any pod");
    let steps = dump(&world)
        .into_iter()
        .filter(|line| matches!(&line.heard, Some(RecordedEvent::Step(step)) if step.pod == "b"));
    assert_eq!(steps.count(), 0);
    world.fake.set_conditions(None, None);
    world.until("both run", |w| {
        [w.phase("a"), w.phase("b")] == [Some(PodPhase::Running); 2]
    });
}

#[test]
fn a_signal_ends_the_agent_at_any_time() {
    // SHUT-07
    let world = World::new();
    world.events.try_send(AgentEvent::Terminate).expect("room");
    world.until("ends", World::has_ended);
    assert!(world.now().0 < 2000);
    assert!(world.dir().exists());
}

#[test]
fn all_pods_end_although_the_runtime_was_down_when_that_was_asked() {
    let world = World::new();
    let pods = ["a", "b"].map(|uid| manifest(uid, json!({})));
    world.apply(&pods);
    world.until("run", |w| {
        [w.phase("a"), w.phase("b")] == [Some(PodPhase::Running); 2]
    });
    let world = world.restart_agent_with(|fake| fake.set_conditions(Some(("Gone", "it is")), None));
    world.apply(&pods);
    world.advance(s(60));
    let answer = world.stop(true);
    world.advance(s(25));
    assert!(answer.is_empty(), "it may come back");
    world.advance(s(35));
    let told = answer.try_recv().expect("an answer");
    assert!(
        told.contains("Gone") && told.contains("stopped when"),
        "{told}"
    );
    assert!(!world.has_ended());
    world.fake.set_conditions(None, None);
    world.until("ends", World::has_ended);
    assert!(answer.is_closed());
    for uid in ["a", "b"] {
        let left = world.fake.container(&PodUid::from(uid), "c");
        assert_ne!(
            left.map(|c| c.state),
            Some(ContainerState::Running),
            "{uid}"
        );
    }
}

#[test]
fn a_runtime_that_can_stop_containers_shows_and_ends_what_runs_and_starts_nothing() {
    let broken = |fake: &Fake| {
        fake.set_can_stop_containers(true);
        fake.set_conditions(Some(("Gone", "it is")), None);
    };
    let running = |w: &World, uid: &str| {
        let container = w.fake.container(&PodUid::from(uid), "c");
        container.is_some_and(|c| c.state == ContainerState::Running)
    };
    let world = World::new();
    let pods = ["a", "b", "new"].map(|uid| manifest(uid, json!({})));
    world.apply(&pods[..2]);
    world.until("run", |w| {
        [w.phase("a"), w.phase("b")] == [Some(PodPhase::Running); 2]
    });
    let world = world.restart_agent_with(broken);
    world.apply(&pods);
    world.until("are shown as they are", |w| {
        [w.phase("a"), w.phase("b"), w.phase("new")]
            == [
                Some(PodPhase::Running),
                Some(PodPhase::Running),
                Some(PodPhase::Pending),
            ]
    });
    world.apply(&pods[1..]);
    world.until("one ends", |w| !running(w, "a"));
    world.advance(s(60));
    assert!(running(&world, "b") && !running(&world, "new"));
    world.fake.set_conditions(None, None);
    world.until("what waited runs", |w| running(w, "new"));

    // All pods end, too, if none of them was synced yet.
    let world = world.restart_agent_with(broken);
    world.apply(&pods[1..]);
    let answer = world.stop(true);
    world.until("ends", World::has_ended);
    assert!(answer.is_closed());
    assert!(!running(&world, "b") && !running(&world, "new"));
}
