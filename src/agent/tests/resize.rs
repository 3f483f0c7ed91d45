//! In-place resize: an edit of a pod's resources in the API, from the decision to what the runtime has.

use alloc::sync::Arc;
use core::cell::Cell;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    order::{group, groups_above, told},
    probes::s,
    world::{IMAGE, World, fails},
};
use crate::{
    api::cri::ContainerState,
    runtime::fake::{Fault, Op},
};

const MIB: i64 = 1 << 20;

fn container(resources: &Value) -> Value {
    json!({"name": "c", "image": IMAGE, "command": ["sleep"], "resources": resources})
}

fn memory(mib: i64) -> Value {
    let amount = format!("{mib}Mi");
    json!({"requests": {"cpu": "100m", "memory": amount}, "limits": {"memory": amount}})
}

/// Changes the container's resources in the API.
fn resize(api: &FakeApi, name: &str, resources: &Value) {
    api.edit(name, |pod| {
        pod["spec"]["containers"][0]["resources"] = resources.clone();
        let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
        pod["metadata"]["generation"] = (generation + 1).into();
    });
}

fn start(api: &Arc<FakeApi>, world: &World, name: &str, container: Value) -> String {
    let spec = json!({"enableServiceLinks": false, "containers": [container]});
    let uid = api.create(name, spec);
    world.until("runs in the API", |_| api.phase(name) == "Running");
    uid
}

/// Memory limit that the runtime has for the container, MiB.
fn limit(world: &World, uid: &str) -> Option<i64> {
    limit_of(world, uid, "c")
}

fn limit_of(world: &World, uid: &str, container: &str) -> Option<i64> {
    let config = world
        .fake
        .config(&uid.into(), container)
        .expect("a container");
    config.resources.memory_limit_bytes.map(|bytes| bytes / MIB)
}

fn shown(api: &FakeApi, name: &str) -> Value {
    let pod = api.get("ns", name).expect("there");
    pod["status"]["containerStatuses"][0].clone()
}

/// The condition of this type: its reason and message.
fn condition(api: &FakeApi, name: &str, kind: &str) -> Option<(String, String)> {
    let pod = api.get("ns", name).expect("there");
    let conditions = pod["status"]["conditions"].as_array().cloned();
    let found = conditions?.into_iter().find(|c| c["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

fn pending(api: &FakeApi, name: &str) -> Option<(String, String)> {
    condition(api, name, "PodResizePending")
}

fn in_progress(api: &FakeApi, name: &str) -> Option<(String, String)> {
    condition(api, name, "PodResizeInProgress")
}

fn resources_file(world: &World, uid: &str) -> bool {
    let store = &world.parts.machine.store;
    store.pod_dir(&uid.into()).join("resources.json").exists()
}

#[test]
fn a_running_container_gets_more_and_less_without_a_restart() {
    // RSZ-01 RSZ-02 RSZ-03 RSZ-23 EVT-33
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(&["--cgroups-per-qos=true"], &api);
    groups_above(&world);
    world.apply(&[]);
    let spec = json!({"enableServiceLinks": false, "containers": [container(&memory(16))]});
    let uid = api.create("a", spec);
    let dir = group(&world, &format!("kubepods/burstable/pod{uid}"));
    let of_pod = || std::fs::read_to_string(dir.join("memory.max")).unwrap_or_default();
    world.until("runs in the API", |_| api.phase("a") == "Running");
    let first = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs");
    assert_eq!(shown(&api, "a")["resources"], memory(16));
    assert_eq!(
        shown(&api, "a")["allocatedResources"],
        memory(16)["requests"]
    );
    assert!(
        !resources_file(&world, &uid),
        "nothing is kept of a pod that was never resized"
    );

    for mib in [32, 8] {
        resize(&api, "a", &memory(mib));
        world.until("has it", |w| limit(w, &uid) == Some(mib));
        world.until("shows it", |_| shown(&api, "a")["resources"] == memory(mib));
        // In this plain file a write goes over the last from the beginning.
        assert!(of_pod().starts_with(&(mib * MIB).to_string()));
        world.until("is over", |_| in_progress(&api, "a").is_none());
        assert_eq!(
            shown(&api, "a")["allocatedResources"],
            memory(mib)["requests"]
        );
        assert!(!resources_file(&world, &uid), "the record says the same");
    }
    assert_eq!(world.events_of("ResizeStarted"), 2);
    assert_eq!(world.events_of("ResizeCompleted"), 2);

    // What is in use is not taken away.
    resize(&api, "a", &memory(2));
    world.until("is refused", |_| {
        in_progress(&api, "a").is_some_and(|(reason, _)| reason == "Error")
    });
    let (_, message) = in_progress(&api, "a").expect("shown");
    assert_eq!(
        message,
        "cannot decrease memory limits: [attempting to set pod memory limit (2097152) below current usage (3145728), \
         attempting to set container \"c\" memory limit (2097152) below current usage (3145728)]"
    );
    assert_eq!(limit(&world, &uid), Some(8));
    let now = shown(&api, "a");
    assert_eq!(now["resources"]["limits"]["memory"], "8Mi", "what it has");
    assert_eq!(now["allocatedResources"]["memory"], "2Mi");
    assert!(resources_file(&world, &uid));
    // Other figures of what is in use are shown, and are no other cause.
    world.fake.set_more_in_use(4096);
    world.until("shows the other figures", |_| {
        in_progress(&api, "a").is_some_and(|(_, message)| message.contains("usage (3149824)"))
    });
    world.advance(s(300));
    assert_eq!(world.events_of("ResizeError"), 1, "one cause");
    resize(&api, "a", &memory(16));
    world.until("gets what fits", |w| {
        limit(w, &uid) == Some(16) && in_progress(&api, "a").is_none()
    });
    let last = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs");
    assert_eq!((last.id, last.restart_count), (first.id, 0));
}

#[test]
fn a_resize_without_room_waits_and_holds_nobody_back() {
    // RSZ-02 RSZ-20 RSZ-25
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let cpu = |milli: i64| json!({"requests": {"cpu": format!("{milli}m")}});
    let large = start(&api, &world, "large", container(&cpu(2500)));
    start(&api, &world, "first", container(&cpu(500)));
    let second = start(&api, &world, "second", container(&cpu(500)));
    resize(&api, "first", &cpu(2000));
    world.until("waits", |_| pending(&api, "first").is_some());
    let (reason, message) = pending(&api, "first").expect("shown");
    assert_eq!(reason, "Deferred");
    assert_eq!(
        message,
        "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"
    );
    assert_eq!(shown(&api, "first")["resources"], cpu(500));
    assert_eq!(told(&world, "ResizeDeferred").len(), 1);
    // One that can be served is.
    resize(&api, "second", &cpu(600));
    world.until("is served", |_| {
        shown(&api, "second")["resources"] == cpu(600)
    });
    let shares = world
        .fake
        .config(&second.as_str().into(), "c")
        .expect("runs")
        .resources
        .cpu_shares;
    assert_eq!(shares, Some(614));
    assert_eq!(pending(&api, "second"), None);
    // What the node never has is told so.
    resize(&api, "second", &cpu(4001));
    world.until("is refused", |_| pending(&api, "second").is_some());
    let (reason, message) = pending(&api, "second").expect("shown");
    assert_eq!(
        (reason.as_str(), message.as_str()),
        (
            "Infeasible",
            "Node didn't have enough capacity: cpu, requested: 4001, capacity: 4000"
        )
    );
    // Room comes.
    api.remove("ns", "large");
    world.until("is gone", |w| w.is_gone(&large));
    world.until("is served", |_| {
        shown(&api, "first")["resources"] == cpu(2000)
    });
    assert_eq!(pending(&api, "first"), None);
    assert_eq!(shown(&api, "second")["resources"], cpu(600));
}

#[test]
fn a_policy_restarts_the_container() {
    // ACT-37 RSZ-03 RSZ-29
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let mut own = container(&memory(16));
    own["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    let uid = start(&api, &world, "a", own);
    let instance = || {
        world
            .fake
            .container(&uid.as_str().into(), "c")
            .expect("there")
    };
    let first = instance();
    let mut wants = memory(16);
    wants["requests"]["cpu"] = "200m".into();
    resize(&api, "a", &wants);
    world.until("has it", |_| shown(&api, "a")["resources"] == wants);
    assert_eq!(instance().id, first.id, "live");
    wants["limits"]["memory"] = "1Mi".into();
    wants["requests"]["memory"] = "1Mi".into();
    // Below what is in use: of no matter to a container that starts anew.
    resize(&api, "a", &wants);
    world.until("runs again", |_| {
        instance().id != first.id && instance().state == ContainerState::Running
    });
    world.until("shows it", |_| shown(&api, "a")["resources"] == wants);
    assert_eq!(limit(&world, &uid), Some(1));
    world.advance(s(200));
    assert_eq!(instance().restart_count, 1, "once");
    assert_eq!(in_progress(&api, "a"), None);
    assert!(
        told(&world, "Killing")
            .iter()
            .any(|m| m == "Container c resize requires restart")
    );
}

#[test]
fn a_resize_survives_the_agent_and_the_machine() {
    // RSZ-01 RSZ-27 RSZ-28 RSZ-32
    let api = Arc::new(FakeApi::default());
    let mut world = World::with_api(&api);
    world.apply(&[]);
    let uid = start(&api, &world, "a", container(&memory(16)));
    let first = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs")
        .id;
    // The runtime cannot do it for now.
    world.fake.add_fault(fails(Op::UpdateContainer, 3));
    resize(&api, "a", &memory(32));
    world.until("fails", |_| {
        in_progress(&api, "a").is_some_and(|(reason, _)| reason == "Error")
    });
    assert_eq!(
        in_progress(&api, "a").expect("shown").1,
        "container \"c\": no"
    );
    assert_eq!(limit(&world, &uid), Some(16));
    assert!(resources_file(&world, &uid));
    // Twice the same: the next try comes minutes later, not with each sync.
    let tries = Cell::new(0);
    let count_tries = |world: &World| {
        let calls = world.fake.take_calls().into_iter();
        let new = calls.filter(|(op, _)| *op == Op::UpdateContainer).count();
        tries.set(tries.get() + new);
        tries.get()
    };
    world.until("fails again", |w| count_tries(w) == 2);
    world.advance(s(150));
    assert_eq!(count_tries(&world), 2);
    assert_eq!(world.events_of("ResizeError"), 1, "one cause");
    world = world.restart_agent();
    world.apply(&[]);
    world.until("fails once more", |w| w.events_of("ResizeError") == 1);
    world.until("has it", |w| limit(w, &uid) == Some(32));
    world.until("shows it", |_| {
        shown(&api, "a")["resources"] == memory(32) && in_progress(&api, "a").is_none()
    });
    let now = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs");
    assert_eq!((now.id, now.restart_count), (first, 0));

    // An agent that starts admits what was allocated, not what was asked for.
    let cpu = |milli: i64| json!({"requests": {"cpu": format!("{milli}m")}});
    resize(&api, "a", &cpu(5000));
    world.until("is refused", |_| pending(&api, "a").is_some());
    for boots in [false, true] {
        world = match boots {
            true => world.reboot(),
            false => world.restart_agent(),
        };
        world.apply(&[]);
        world.until("runs", |w| {
            let c = w.fake.container(&uid.as_str().into(), "c");
            c.is_some_and(|c| c.state == ContainerState::Running)
        });
        world.advance(s(10));
        assert_eq!(api.phase("a"), "Running");
        assert_eq!(limit(&world, &uid), Some(32));
        assert_eq!(pending(&api, "a").expect("shown").0, "Infeasible");
    }
    // Taken back.
    resize(&api, "a", &memory(32));
    world.until("nothing is open", |w| {
        pending(&api, "a").is_none() && !resources_file(w, &uid)
    });
}

#[test]
fn steps_before_one_that_failed_are_taken_back() {
    // RSZ-27 RSZ-28
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let containers = |mib: i64| {
        let mut other = container(&memory(mib));
        other["name"] = "d".into();
        json!([container(&memory(mib)), other])
    };
    let spec = json!({"enableServiceLinks": false, "containers": containers(16)});
    let uid = api.create("a", spec);
    world.until("runs in the API", |_| api.phase("a") == "Running");
    let limits = |w: &World| {
        ["c", "d"].map(|name| {
            let config = w.fake.config(&uid.as_str().into(), name).expect(name);
            config.resources.memory_limit_bytes.map(|bytes| bytes / MIB)
        })
    };
    let ask = |mib: i64| {
        api.edit("a", |pod| {
            pod["spec"]["containers"] = containers(mib);
            let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
            pod["metadata"]["generation"] = (generation + 1).into();
        });
    };
    world.fake.add_fault(Fault {
        target: Some("d".into()),
        ..fails(Op::UpdateContainer, 9)
    });
    ask(32);
    world.until("fails", |_| {
        in_progress(&api, "a").is_some_and(|(reason, _)| reason == "Error")
    });
    assert_eq!(limits(&world), [Some(32), Some(16)]);
    ask(16);
    world.until("has what it had", |w| limits(w) == [Some(16), Some(16)]);
    world.until("nothing is open", |w| {
        in_progress(&api, "a").is_none() && !resources_file(w, &uid)
    });
    assert_eq!(shown(&api, "a")["resources"], memory(16));
}

#[test]
fn pods_of_manifests_are_not_resized() {
    // RSZ-04
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    let of = |mib| super::world::manifest("s", json!({"containers": [container(&memory(mib))]}));
    world.apply(&[of(16)]);
    world.until("runs", |w| {
        w.phase("s") == Some(crate::api::pod_status::PodPhase::Running)
    });
    world.apply(&[of(32)]);
    world.advance(s(100));
    assert_eq!(limit(&world, "s"), Some(16));
    let status = world.status("s").expect("known");
    assert_eq!(
        status.container_statuses[0].resources, None,
        "the apiserver refuses a resize"
    );
    let first = world.fake.container(&"s".into(), "c").expect("there");
    world.fake.exit(&first.id, 1);
    world.until("starts with it", |w| limit(w, "s") == Some(32));
}

#[test]
fn a_pod_whose_record_is_lost_has_what_its_status_shows() {
    // RSZ-26 RSZ-27
    has_what_its_status_shows(|dir| std::fs::write(dir.join("pod.json"), "").expect("torn"));
    has_what_its_status_shows(|dir| std::fs::remove_dir_all(dir).expect("lost"));
}

/// `lose` takes the record, given the directory of the pod.
fn has_what_its_status_shows(lose: fn(&Path)) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let uid = start(&api, &world, "a", container(&memory(16)));
    world.until("shows it", |_| shown(&api, "a")["resources"] == memory(16));
    lose(&world.parts.machine.store.pod_dir(&uid.as_str().into()));
    // More than the node has: a new pod with this would be refused.
    resize(&api, "a", &memory(1 << 20));
    let world = world.reboot();
    world.apply(&[]);
    world.until("is judged", |w| {
        w.fake.container(&uid.as_str().into(), "c").is_some()
            && pending(&api, "a").is_some_and(|(reason, _)| reason == "Infeasible")
    });
    assert_eq!(limit(&world, &uid), Some(16));
    world.until("shows what it has", |_| {
        shown(&api, "a")["resources"] == memory(16)
    });
    assert_eq!(api.phase("a"), "Running");
    assert!(resources_file(&world, &uid));
}

#[test]
fn a_pod_with_resources_of_its_own_is_resized() {
    // RSZ-03 RSZ-22 RSZ-23 RSZ-26 RSZ-27 RSZ-28 RSZ-30
    let api = Arc::new(FakeApi::default());
    let mut world = World::with_flags_and_api(&["--cgroups-per-qos=true"], &api);
    groups_above(&world);
    world.apply(&[]);
    let mut other = container(&memory(4));
    other["name"] = "d".into();
    let spec = json!({
        "enableServiceLinks": false, "resources": memory(16),
        "containers": [container(&json!({})), other],
    });
    let uid = api.create("a", spec);
    let dir = group(&world, &format!("kubepods/burstable/pod{uid}"));
    let of_pod = || std::fs::read_to_string(dir.join("memory.max")).unwrap_or_default();
    world.until("runs in the API", |_| api.phase("a") == "Running");
    let first = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs");
    let level = |mib: i64| {
        api.edit("a", |pod| {
            pod["spec"]["resources"] = memory(mib);
            let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
            pod["metadata"]["generation"] = (generation + 1).into();
        });
    };
    let status = || api.get("ns", "a").expect("there")["status"].clone();
    let has = |world: &World, mib: i64| {
        let status = status();
        status["resources"] == memory(mib)
            && limit(world, &uid) == Some(mib)
            && of_pod().starts_with(&(mib * MIB).to_string())
    };
    assert!(has(&world, 16), "{}", status());
    assert_eq!(status()["allocatedResources"], memory(16)["requests"]);
    for mib in [32, 24] {
        level(mib);
        world.until("has it", |w| has(w, mib));
        world.until("is over", |w| {
            in_progress(&api, "a").is_none() && !resources_file(w, &uid)
        });
        assert_eq!(status()["allocatedResources"], memory(mib)["requests"]);
    }
    let text = told(&world, "ResizeStarted").remove(0);
    assert!(text.contains(r#"{"resources":{"#), "{text}");
    // The pod has more before its container, and both are taken back.
    world.fake.add_fault(Fault {
        target: Some("c".into()),
        ..fails(Op::UpdateContainer, 1)
    });
    level(64);
    world.until("fails", |_| {
        in_progress(&api, "a").is_some_and(|(reason, _)| reason == "Error")
    });
    assert!(of_pod().starts_with(&(64 * MIB).to_string()));
    world = world.restart_agent();
    level(24);
    world.apply(&[]);
    world.until("has what it had", |w| has(w, 24));
    world.until("nothing is open", |w| {
        in_progress(&api, "a").is_none() && !resources_file(w, &uid)
    });
    // What is in use is not taken away, neither of the pod nor of the container that follows it.
    level(2);
    world.until("is refused", |_| {
        in_progress(&api, "a").is_some_and(|(reason, _)| reason == "Error")
    });
    let (_, message) = in_progress(&api, "a").expect("shown");
    assert!(
        message.contains("set pod memory limit (2097152)")
            && message.contains("container \"c\" memory limit (2097152)"),
        "{message}"
    );
    world.advance(s(10));
    assert!(has(&world, 24), "{}", status());
    assert_eq!(status()["allocatedResources"], memory(2)["requests"]);
    level(16);
    world.until("gets what fits", |w| has(w, 16));
    let last = world
        .fake
        .container(&uid.as_str().into(), "c")
        .expect("runs");
    assert_eq!((last.id, last.restart_count), (first.id, 0));
    assert_eq!(limit_of(&world, &uid, "d"), Some(4));
}
