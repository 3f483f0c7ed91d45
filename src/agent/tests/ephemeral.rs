//! Additions of an operator to a running pod: ephemeral containers, and conditions of readiness gates.

use alloc::sync::Arc;
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{FakeApi, Link},
    world::{IMAGE, World, fault},
};
use crate::{
    api::{PodUid, cri::NamespaceMode, pod_status::PodPhase},
    runtime::{
        RuntimeError,
        fake::{Op, Trouble},
    },
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Makes a node on which the pod `a` runs, with one container `c`.
fn running(more: Value) -> (World, Arc<FakeApi>, PodUid) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let uid = api.create("a", more);
    world.until("runs", |_| api.phase("a") == "Running");
    (world, api, PodUid::from(&*uid))
}

/// Adds an ephemeral container as the subresource `ephemeralcontainers` does.
fn debug(api: &FakeApi, name: &str, more: &Value) {
    let mut container = json!({"name": name, "image": IMAGE, "command": ["sh"]});
    for (key, value) in more.as_object().expect("fields") {
        container[key] = value.clone();
    }
    api.edit("a", |pod| {
        let mut all = pod["spec"]["ephemeralContainers"].take();
        match &mut all {
            Value::Array(all) => all.push(container),
            other => *other = json!([container]),
        }
        pod["spec"]["ephemeralContainers"] = all;
    });
}

/// Status of an ephemeral container in the API.
fn shown(api: &FakeApi, name: &str) -> Value {
    let pod = api.get("ns", "a").expect("there");
    let all = pod["status"]["ephemeralContainerStatuses"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|c| c["name"] == name).cloned().unwrap_or_default()
}

fn starts(world: &World) -> usize {
    let calls = world.fake.take_calls().into_iter();
    calls.filter(|(op, _)| *op == Op::StartContainer).count()
}

#[test]
fn one_is_started_once() {
    // ACT-70 ACT-71 STAT-20 EVT-01 PROBE-02
    let (world, api, uid) = running(json!({}));
    starts(&world);
    debug(
        &api,
        "d",
        &json!({"targetContainerName": "c", "stdin": true, "tty": true}),
    );
    world.until("it runs", |_| {
        shown(&api, "d")["state"]["running"].is_object()
    });
    assert_eq!(starts(&world), 1, "and nothing else");
    let target = world.fake.container(&uid, "c").expect("runs").id;
    let config = world.fake.config(&uid, "d").expect("made");
    assert_eq!(config.security.namespaces.pid, NamespaceMode::Target);
    assert_eq!(config.security.target.as_ref(), Some(&target));
    let status = shown(&api, "d");
    assert_eq!(status["ready"], false);
    assert_eq!(status["started"], Value::Null);
    assert_eq!(status["restartCount"], 0);
    // Another ephemeral container beside it, without a target.
    debug(&api, "e", &json!({}));
    world.until("the other runs", |_| {
        shown(&api, "e")["state"]["running"].is_object()
    });
    let config = world.fake.config(&uid, "e").expect("made");
    assert_eq!(config.security.namespaces.pid, NamespaceMode::Container);
    // Its end does not matter to the pod, whatever the restart policy is.
    let id = world.fake.container(&uid, "d").expect("runs").id;
    starts(&world);
    world.fake.exit(&id, 3);
    world.until("its end is shown", |_| {
        shown(&api, "d")["state"]["terminated"]["exitCode"] == 3
    });
    world.advance(s(600));
    assert_eq!(starts(&world), 0, "it is not started again");
    assert_eq!(shown(&api, "d")["restartCount"], 0);
    assert_eq!(api.phase("a"), "Running");
    let pod = api.get("ns", "a").expect("there");
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions.iter().find(|c| c["type"] == "Ready");
    assert_eq!(ready.expect("ready")["status"], "True");
    // The container is not started again under another agent either.
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(60));
    assert_eq!(starts(&world), 0);
    assert_eq!(shown(&api, "d")["state"]["terminated"]["exitCode"], 3);
    assert!(shown(&api, "e")["state"]["running"].is_object());
    // An ephemeral container does not keep its pod from ending.
    api.delete("a");
    world.until("is gone", |w| {
        api.get("ns", "a").is_none() && w.is_gone(uid.as_str())
    });
}

#[test]
fn one_does_not_begin_again_with_the_next_boot() {
    // ACT-70
    let (world, api, uid) = running(json!({}));
    for name in ["d", "e"] {
        debug(&api, name, &json!({}));
        world.until("it runs", |_| {
            shown(&api, name)["state"]["running"].is_object()
        });
    }
    let id = world.fake.container(&uid, "d").expect("runs").id;
    world.fake.exit(&id, 3);
    world.until("its end is shown", |_| {
        shown(&api, "d")["state"]["terminated"]["exitCode"] == 3
    });
    // The record has both, so they are known without an answer of the apiserver.
    let mut world = world;
    for link in [Link::Down, Link::Up] {
        starts(&world);
        api.set_link(link);
        world = world.reboot();
        world.apply(&[]);
        let runs = |w: &World| w.fake.container(&uid, "c").is_some();
        world.until("the pod runs again", runs);
        world.advance(s(60));
        assert_eq!(starts(&world), 1, "its own container alone");
        api.set_link(Link::Up);
        world.until("it is shown", |_| {
            shown(&api, "e")["state"]["terminated"]["exitCode"] == 137
        });
        let ended = shown(&api, "e");
        let reason = &ended["state"]["terminated"]["reason"];
        assert_eq!(*reason, "ContainerStatusUnknown");
        assert_eq!(ended["restartCount"], 0);
        assert_eq!(shown(&api, "d")["state"]["terminated"]["exitCode"], 3);
        assert_eq!(api.phase("a"), "Running");
    }
}

#[test]
fn one_does_not_keep_a_pod_alive() {
    // ACT-39
    let (world, api, uid) = running(json!({"restartPolicy": "Never"}));
    debug(&api, "d", &json!({}));
    world.until("it runs", |_| {
        shown(&api, "d")["state"]["running"].is_object()
    });
    let id = world.fake.container(&uid, "c").expect("runs").id;
    world.fake.exit(&id, 0);
    world.until("has ended", |_| api.phase("a") == "Succeeded");
    assert!(!world.fake.runs(&uid));
    assert!(shown(&api, "d")["state"]["terminated"].is_object());
}

#[test]
fn one_beside_init_containers() {
    // ACT-70
    let init = json!({"name": "i", "image": IMAGE, "command": ["sh"]});
    let (world, api) = {
        let api = Arc::new(FakeApi::default());
        let world = World::with_api(&api);
        world.apply(&[]);
        (world, api)
    };
    let uid = PodUid::from(&*api.create("a", json!({"initContainers": [init]})));
    world.until("init runs", |w| w.fake.container(&uid, "i").is_some());
    debug(&api, "d", &json!({}));
    world.until("it runs", |_| {
        shown(&api, "d")["state"]["running"].is_object()
    });
    assert_eq!(world.phase(uid.as_str()), Some(PodPhase::Pending));
    assert!(world.fake.container(&uid, "c").is_none());
}

#[test]
fn one_that_cannot_start() {
    // ACT-04 ACT-71 WAIT-01
    let (world, api, _) = running(json!({}));
    let e = RuntimeError::Failed("no such program".into());
    world
        .fake
        .add_fault(fault(Op::CreateContainer, 1, Trouble::Fails(e)));
    debug(&api, "d", &json!({}));
    world.until("it is told", |_| {
        shown(&api, "d")["state"]["waiting"]["reason"] == "CreateContainerError"
    });
    world.until("is tried again", |_| {
        shown(&api, "d")["state"]["running"].is_object()
    });
    debug(
        &api,
        "e",
        &json!({"image": "none:1", "imagePullPolicy": "Never"}),
    );
    world.until("it is told", |_| {
        shown(&api, "e")["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert_eq!(api.phase("a"), "Running");
}

#[test]
fn a_gate_is_opened_and_closed_by_others() {
    // STAT-45 SM-05 LOOP-13
    let gate = "example.com/in-the-balancer";
    let (world, api, _) = running(json!({"readinessGates": [{"conditionType": gate}]}));
    let condition = |kind: &str| {
        let pod = api.get("ns", "a").expect("there");
        let all = pod["status"]["conditions"].as_array().cloned();
        let found = all
            .unwrap_or_default()
            .into_iter()
            .find(|c| c["type"] == kind);
        found.unwrap_or_default()
    };
    world.advance(s(20));
    assert_eq!(condition("ContainersReady")["status"], "True");
    assert_eq!(condition("Ready")["status"], "False");
    assert_eq!(condition("Ready")["reason"], "ReadinessGatesNotReady");
    for (status, count) in [("True", 1), ("False", 1), ("True", 1)] {
        api.edit("a", |pod| {
            let all = pod["status"]["conditions"].as_array_mut().expect("list");
            all.retain(|c| c["type"] != gate);
            all.push(json!({"type": gate, "status": status}));
        });
        world.advance(s(12));
        assert_eq!(condition("Ready")["status"], status, "one poll later");
        let pod = api.get("ns", "a").expect("there");
        let all = pod["status"]["conditions"].as_array().expect("list");
        let kept = all
            .iter()
            .filter(|c| c["type"] == gate && c["status"] == status);
        assert_eq!(kept.count(), count, "it is not the agent's");
    }
}
