//! The steps of a sync in their order, as far as they can be seen from outside.

use core::time::Duration;

use std::fs;

use serde_json::{Value, json};

use super::world::{IMAGE, World, fails, fault, manifest};
use crate::{
    agent::event_loop::STARTS_AT_ONCE,
    api::{
        PodUid,
        cri::ContainerState,
        pod_status::{ContainerStatus, PodPhase},
    },
    runtime::fake::{Fake, Fault, Op, Trouble},
};

#[test]
fn the_status_stands_before_anything_is_done() {
    // SYNC-03
    let world = World::new();
    world
        .fake
        .add_fault(fault(Op::RunPodSandbox, 1, Trouble::Hangs));
    world.apply(&[manifest("a", json!({}))]);
    world.until("hangs", |w| w.fake.hanging(Op::RunPodSandbox) == 1);
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    assert_eq!(world.waiting("a").as_deref(), Some("ContainerCreating"));
    world.fake.release(Op::RunPodSandbox);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
}

#[test]
fn the_pods_of_a_crowd_begin_in_turns() {
    // PW-40
    let world = World::new();
    let count = STARTS_AT_ONCE + 3;
    let times = u32::try_from(count).expect("a few");
    let hangs = fault(Op::RunPodSandbox, times, Trouble::Hangs);
    world.fake.add_fault(hangs);
    let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
    let pods: Vec<_> = names.iter().map(|n| manifest(n, json!({}))).collect();
    world.apply(&pods);
    world.until("the first begin", |w| {
        w.fake.hanging(Op::RunPodSandbox) == STARTS_AT_ONCE
    });
    world.settle();
    assert_eq!(world.fake.hanging(Op::RunPodSandbox), STARTS_AT_ONCE);
    // What waits for long leaves its place.
    world.until("all begin", |w| w.fake.hanging(Op::RunPodSandbox) == count);
    world.fake.release(Op::RunPodSandbox);
    world.until("all run", |w| {
        names.iter().all(|n| w.phase(n) == Some(PodPhase::Running))
    });
}

#[test]
fn without_a_network_only_pods_of_the_host_start() {
    // SYNC-04
    let world = World::new();
    world
        .fake
        .set_conditions(None, Some(("NoPlugin", "no plugin")));
    world.advance(Duration::from_secs(60));
    world.apply(&[
        manifest("a", json!({})),
        manifest("b", json!({"hostNetwork": true})),
    ]);
    world.until("b runs", |w| w.phase("b") == Some(PodPhase::Running));
    world.until("a says why not", |w| w.events_of("NetworkNotReady") > 0);
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    assert!(!world.fake.has_live_sandbox(&PodUid::from("a")));
    world.fake.set_conditions(None, None);
    world.until("a runs", |w| w.phase("a") == Some(PodPhase::Running));
}

#[test]
fn an_end_that_fails_is_told_once_it_is_the_kill_that_failed() {
    // SYNC-21 CRI-45
    for (op, told) in [
        (Op::StopContainer, true),
        (Op::StopPodSandbox, true),
        (Op::PodStatus, false),
    ] {
        let world = World::new();
        world.apply(&[manifest("a", json!({}))]);
        world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
        world.advance(Duration::from_secs(5));
        world.fake.take_calls();
        world.fake.add_fault(fails(op, 1));
        world.apply(&[]);
        world.until("is gone", |w| w.is_gone("a"));
        assert_eq!(world.events_of("FailedKillPod") > 0, told, "{op:?}");
        let calls = world.fake.take_calls();
        let tries = calls.iter().filter(|(o, _)| *o == Op::StopPodSandbox);
        let least = if op == Op::StopContainer { 1 } else { 2 };
        assert!(tries.count() >= least, "{op:?}");
    }
}

#[test]
fn what_has_ended_keeps_its_address_its_containers_and_its_last_status() {
    let world = World::new();
    let job = json!({"restartPolicy": "Never",
        "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 3"]}]});
    world.apply(&[manifest("a", job)]);
    world.until("has failed", |w| w.phase("a") == Some(PodPhase::Failed));
    let uid = PodUid::from("a");
    world.until("its sandbox has ended", |w| !w.fake.has_live_sandbox(&uid));
    world.advance(Duration::from_secs(5));
    let status = world.status("a").expect("status");
    assert!(!status.pod_ip.is_empty(), "the address it had");
    let end = status.container_statuses[0].state.terminated.as_ref();
    assert_eq!(end.map(|t| t.exit_code), Some(3));
    let left = world.fake.container(&uid, "c");
    assert_eq!(left.map(|c| c.state), Some(ContainerState::Exited));
}

#[test]
fn what_only_the_runtime_knows_ends_without_its_hook() {
    // SYNC-28
    let hook = json!({"preStop": {"exec": {"command": ["true"]}}});
    let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "lifecycle": hook});
    let world = World::new();
    world.apply(&[manifest("a", json!({"containers": [container]}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(Duration::from_secs(5));
    let world = world.restart_agent();
    world.fake.take_calls();
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    let calls = world.fake.take_calls();
    let count = |op| calls.iter().filter(|(o, _)| *o == op).count();
    assert_eq!((count(Op::Exec), count(Op::StopContainer)), (0, 1));
}

#[test]
fn a_pod_whose_container_wants_it_starts_over_at_once() {
    // SYNC-17 ACT-72 RAC-05
    let world = World::new();
    let init = json!({"name": "i", "image": IMAGE, "command": ["sh", "-c", "exit 0"]});
    let rule =
        json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "restartPolicy": "Never",
        "restartPolicyRules": [rule]});
    world.apply(&[manifest(
        "a",
        json!({"initContainers": [init], "containers": [container]}),
    )]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let uid = PodUid::from("a");
    let first = world.fake.container(&uid, "c").expect("it runs").id;
    world.advance(Duration::from_secs(10));
    let before = world.now();
    world.fake.take_calls();
    world.fake.exit(&first, 42);
    let since = world
        .fake
        .container(&uid, "c")
        .expect("it has ended")
        .started_at;
    world.until("runs again", |w| {
        let newest = w.fake.container(&uid, "c");
        newest.is_some_and(|c| c.started_at > since && c.state == ContainerState::Running)
    });
    assert!(
        world.now() - before < Duration::from_secs(20),
        "no resync is waited for"
    );
    let made = world.fake.take_calls().into_iter();
    let made: Vec<_> = made.filter(|(op, _)| *op == Op::CreateContainer).collect();
    assert_eq!(made.len(), 2, "the init container first: {made:?}");
}

#[test]
fn a_pod_that_starts_over_again_and_again_waits_longer_each_time() {
    // ACT-72 BACK-02 BACK-06 RAC-04
    for (policy, kind) in [
        ("Never", "containers"),
        ("Always", "initContainers"),
        ("Never", "initContainers"),
    ] {
        starts_over_with_back_off(policy, kind);
    }
}

/// A container of this kind, with this policy of its own, ends again and again so that its pod starts over.
fn starts_over_with_back_off(policy: &str, kind: &str) {
    let world = World::new();
    let rule =
        json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}});
    let source = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "restartPolicy": policy,
        "restartPolicyRules": [rule]});
    let other =
        json!({"name": "other", "image": IMAGE, "command": ["sleep"], "restartPolicy": "Always"});
    let main = json!({"name": "main", "image": IMAGE, "command": ["sleep"]});
    let mut spec = json!({"initContainers": [other], "containers": [main]});
    let list = spec[kind].as_array_mut().expect("a list");
    list.push(source);
    let pods = [manifest("a", spec)];
    world.apply(&pods);
    let uid = PodUid::from("a");
    let instance = |w: &World, name: &str| w.fake.container(&uid, name);
    let mut world = world;
    for wait in [0, 10, 20, 40] {
        world.until("all run", |w| {
            let runs = |name| instance(w, name).is_some_and(|c| c.state == ContainerState::Running);
            runs("c") && runs("other")
        });
        let (first, kept) = (instance(&world, "c"), instance(&world, "other"));
        let (first, kept) = (first.expect("it runs"), kept.expect("it runs"));
        world.advance(Duration::from_secs(1));
        world.fake.exit(&first.id, 88);
        let before = world.now();
        if wait > 0 {
            world.until("waits", |w| {
                let status = w.status("a").unwrap_or_default();
                let all = status.init_container_statuses.iter();
                let all = all.chain(&status.container_statuses);
                let mut waiting = all.filter_map(|c| c.state.waiting.as_ref());
                waiting.any(|state| state.reason == "CrashLoopBackOff")
            });
            let other = instance(&world, "other").map(|c| (c.state, c.started_at));
            assert_eq!(
                other,
                Some((ContainerState::Running, kept.started_at)),
                "{policy} {kind}: runs on"
            );
            // Another agent goes on with the wait.
            world = world.restart_agent();
            world.apply(&pods);
        }
        world.until("starts over", |w| {
            instance(w, "c").is_some_and(|c| {
                c.started_at > first.started_at && c.state == ContainerState::Running
            })
        });
        // The spread of the requeue adds up to a half.
        let waited = (world.now() - before).as_secs();
        let most = wait + wait / 2 + 5;
        assert!(
            (wait..=most).contains(&waited),
            "{policy} {kind}: {waited} s for {wait} s"
        );
    }
}

/// A pod of eleven containers, of which `source` asks for the restart of all.
fn pod_of_eleven() -> Value {
    let rule =
        json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let container = |name: &str| json!({"name": name, "image": IMAGE, "command": ["sleep"]});
    let init = json!({"name": "init", "image": IMAGE, "command": ["sh", "-c", "exit 0"]});
    let mut sidecar = container("sidecar");
    sidecar["restartPolicy"] = "Always".into();
    let mut source = container("source");
    source["restartPolicy"] = "Never".into();
    source["restartPolicyRules"] = json!([rule]);
    let mut regular = vec![source];
    regular.extend(["a", "b", "c", "d", "e", "f", "g", "h"].map(container));
    manifest(
        "p",
        json!({"restartPolicy": "Never", "initContainers": [init, sidecar], "containers": regular}),
    )
}

#[test]
fn an_agent_that_is_killed_while_all_containers_start_over_goes_on() {
    // RAC-02 RAC-03
    let uid = PodUid::from("p");
    let all_run = |w: &World| {
        let names = ["sidecar", "source", "a", "b", "c", "d", "e", "f", "g", "h"];
        let runs = |name| {
            w.fake
                .container(&uid, name)
                .is_some_and(|c| c.state == ContainerState::Running)
        };
        names.into_iter().all(runs)
    };
    for (op, container) in [
        (Op::StopContainer, "e"),
        (Op::RemoveContainer, "a"),
        (Op::RemoveContainer, "init"),
        (Op::RemoveContainer, "source"),
        (Op::CreateContainer, "init"),
        (Op::CreateContainer, "sidecar"),
        (Op::StartContainer, "d"),
    ] {
        let world = World::new();
        let pods = [pod_of_eleven()];
        world.apply(&pods);
        world.until("all run", all_run);
        // The logs that the containers of a real runtime write.
        let logs = &world.parts.cfg.dirs.pod_logs;
        for pod in fs::read_dir(logs).expect("logs").flatten() {
            for container in fs::read_dir(pod.path()).expect("logs").flatten() {
                fs::write(container.path().join("0.log"), "").expect("log");
            }
        }
        let sandbox = world
            .fake
            .container(&uid, "source")
            .expect("it runs")
            .sandbox;
        world.advance(Duration::from_secs(1));
        let target = Some(container.to_owned());
        world.fake.add_fault(Fault {
            target,
            ..fails(op, u32::MAX)
        });
        let source = world.fake.container(&uid, "source").expect("it runs").id;
        world.fake.exit(&source, 42);
        world.until("it goes no further", |w| {
            w.fake.hits().contains_key(&(op, "fails"))
        });
        let world = world.restart_agent_with(Fake::heal);
        world.apply(&pods);
        world.until("all run again", |w| {
            let began_again = |c: &ContainerStatus| c.restart_count > 0;
            let status = w.status("p").unwrap_or_default();
            let inits = status.init_container_statuses.iter();
            let all: Vec<_> = inits.chain(&status.container_statuses).collect();
            all_run(w) && all.len() == 11 && all.into_iter().all(began_again)
        });
        let now = world.fake.container(&uid, "source").expect("it runs");
        assert_eq!(now.sandbox, sandbox, "{op:?} {container}: the same sandbox");
    }
}

#[test]
fn an_init_container_that_its_rule_brings_back_is_tried_until_it_succeeds() {
    // CRR-02
    let rule = json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}});
    let init = json!({"name": "i", "image": IMAGE, "command": ["sleep"], "restartPolicy": "Never",
        "restartPolicyRules": [rule]});
    let world = World::new();
    world.apply(&[manifest(
        "a",
        json!({"restartPolicy": "Never", "initContainers": [init]}),
    )]);
    let uid = PodUid::from("a");
    for wait in [0, 10, 20] {
        world.until("it runs", |w| {
            let init = w.fake.container(&uid, "i");
            init.is_some_and(|c| c.state == ContainerState::Running)
        });
        let id = world.fake.container(&uid, "i").expect("it runs").id;
        world.advance(Duration::from_secs(1));
        let before = world.now();
        world.fake.exit(&id, 42);
        world.until("it runs again", |w| {
            assert_eq!(w.phase("a"), Some(PodPhase::Pending));
            let init = w.fake.container(&uid, "i");
            init.is_some_and(|c| c.id != id && c.state == ContainerState::Running)
        });
        assert!((world.now() - before).as_secs() >= wait, "{wait} s");
    }
    let id = world.fake.container(&uid, "i").expect("it runs").id;
    world.fake.exit(&id, 0);
    world.until("the pod runs", |w| w.phase("a") == Some(PodPhase::Running));
}

#[test]
fn a_runtime_that_counts_its_changes_is_listed_after_one() {
    // PLEG-01
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(Duration::from_secs(10));
    let lists = |world: &World| {
        let calls = world.fake.take_calls().into_iter();
        calls.filter(|(op, _)| *op == Op::ListPods).count()
    };
    lists(&world);
    world.advance(Duration::from_secs(20));
    assert_eq!(lists(&world), 0, "nothing has changed");
    let first = world.fake.container(&"a".into(), "c").expect("runs").id;
    assert!(world.fake.exit(&first, 1));
    world.until("runs again", |w| {
        let now = w.fake.container(&"a".into(), "c");
        now.is_some_and(|now| now.id != first)
    });
    assert!(lists(&world) > 0, "it has ended, and another one runs");
}
