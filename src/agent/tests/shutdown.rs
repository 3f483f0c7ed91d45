//! Shutdown of the machine.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    world::{NODE, World, manifest},
};
use crate::{
    api::{PodUid, pod_status::PodPhase},
    runtime::fake::OnStop,
};

const CRITICAL: i32 = 2_000_000_000;
const TEXT: &str = "Pod was terminated in response to imminent node shutdown.";

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Flags that name a configuration with these fields. Its eviction threshold keeps almost no memory free.
fn configured(fields: &str) -> &'static [&'static str] {
    let path = crate::testing::unused_path("shutdown");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let text = format!("{head}evictionHard: {{memory.available: 1Mi}}\n{fields}\n");
    fs::write(&path, text).expect("written");
    let flag = format!("--config={}", path.display());
    Vec::leak(vec![&*String::leak(flag)])
}

fn world(fields: &str) -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(configured(fields), &api);
    world.left.set_memory(1 << 30);
    world.apply(&[]);
    (world, api)
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let all = object["status"]["conditions"]
        .as_array()
        .expect("conditions");
    all.iter()
        .find(|c| c["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn runs(world: &World, uid: &str) -> bool {
    world.fake.runs(&PodUid::from(uid))
}

#[test]
fn pods_end_in_the_order_of_their_priorities() {
    // SHUT-01 SHUT-03 SHUT-04 SHUT-05 NODE-20 ADM-02
    let (world, api) = world("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s");
    let low = api.create("low", json!({"terminationGracePeriodSeconds": 600}));
    let high = api.create(
        "high",
        json!({"priority": CRITICAL, "terminationGracePeriodSeconds": 600}),
    );
    let done = api.create("done", json!({"restartPolicy": "Never"}));
    world.until("all run", |w| {
        [&low, &high, &done].iter().all(|uid| runs(w, uid))
    });
    let container = world
        .fake
        .container(&PodUid::from(&*done), "c")
        .expect("runs");
    world.fake.exit(&container.id, 0);
    world.until("one has succeeded", |_| api.phase("done") == "Succeeded");
    // Containers ignore the signal: each pod has its seconds.
    world.fake.on_stop("c", OnStop::Ignores);
    let begun = world.now();
    let answer = world.shut_down();
    world.until("the API knows that the node is not ready", |_| {
        let mut node = Value::Null;
        api.edit_node(|object| node = object.clone());
        let ready = condition(&node, "Ready");
        ready["status"] == "False" && ready["message"] == "node is shutting down"
    });
    assert!(world.now() - begun <= s(2), "it is told at once");
    assert_eq!(world.events_of("Shutdown"), 1);
    api.create("late", json!({}));
    world.until("one that comes now is refused", |_| {
        api.phase("late") == "Failed"
    });
    let late = api.get("ns", "late").expect("there");
    assert_eq!(late["status"]["reason"], "NodeShutdown");
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(late["status"]["message"], message);
    world.until("the first group has ended", |w| {
        assert!(runs(w, &high), "it is not its turn");
        !runs(w, &low)
    });
    let first = world.now() - begun;
    assert!(first >= s(18) && first <= s(22), "{first:?}");
    world.until("the second group has ended", |w| !runs(w, &high));
    let second = world.now() - begun - first;
    assert!(second >= s(8) && second <= s(12), "{second:?}");
    world.until("the machine may go down", |_| answer.is_closed());
    assert!(!world.has_ended(), "the apiserver hears of it");
    for name in ["low", "high"] {
        let pod = api.get("ns", name).expect("there");
        let status = &pod["status"];
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Failed"), &json!("Terminated")),
            "{name}"
        );
        assert_eq!(status["message"], TEXT);
        let disruption = condition(&pod, "DisruptionTarget");
        assert_eq!(
            (&disruption["status"], &disruption["reason"]),
            (&json!("True"), &json!("TerminationByKubelet"))
        );
        assert_eq!(disruption["message"], TEXT);
    }
    assert_eq!(api.phase("done"), "Succeeded");
    assert_eq!(
        api.get("ns", "done").expect("there")["status"]["reason"],
        Value::Null
    );
    // A second request is answered at once.
    let again = world.shut_down();
    world.settle();
    assert!(again.is_closed());
}

#[test]
fn what_ends_in_time_makes_nobody_wait_and_static_pods_come_back() {
    // SHUT-04 SHUT-05
    let fields = "shutdownGracePeriodByPodPriority:\n- {priority: 1000, shutdownGracePeriodSeconds: 60}\n\
                  - {priority: 0, shutdownGracePeriodSeconds: 60}";
    let world = World::with(configured(fields), None);
    world.left.set_memory(1 << 30);
    world.apply(&[
        manifest("a", json!({})),
        manifest("b", json!({"priority": 1000})),
    ]);
    let begun = |uid: &str, w: &World| w.phase(uid) == Some(PodPhase::Running);
    world.until("both run", |w| begun("a", w) && begun("b", w));
    let before = world.now();
    let answer = world.shut_down();
    world.until("the machine may go down", |_| answer.is_closed());
    assert!(world.now() - before < s(10), "they end at once");
    for uid in ["a", "b"] {
        let status = world.status(uid).expect("a status");
        assert_eq!(
            (status.phase, &*status.reason),
            (PodPhase::Failed, "Terminated"),
            "{uid}"
        );
    }
    world.advance(s(120));
    assert!(!runs(&world, "a") && !runs(&world, "b"), "they stay ended");
    let node = world.node_object();
    assert_eq!(condition(&node, "Ready")["status"], "False");
    assert_eq!(node["metadata"]["name"], NODE);
    let world = world.reboot();
    world.left.set_memory(1 << 30);
    world.apply(&[
        manifest("a", json!({})),
        manifest("b", json!({"priority": 1000})),
    ]);
    world.until("both run again", |w| begun("a", w) && begun("b", w));
}

#[test]
fn without_periods_all_end_at_once_and_nothing_is_told() {
    // SHUT-01
    let (world, api) = world("shutdownGracePeriod: 0s");
    let pod = api.create("a", json!({}));
    world.until("it runs", |w| runs(w, &pod) && api.phase("a") == "Running");
    let answer = world.shut_down();
    world.until("it ends, with the agent", |w| w.has_ended());
    assert!(answer.is_closed() && !runs(&world, &pod));
    assert_eq!(
        api.phase("a"),
        "Running",
        "it starts again with the machine"
    );
    assert_eq!(world.events_of("Shutdown"), 0);
}

#[test]
fn a_shutdown_that_is_called_off() {
    // SHUT-06
    let (world, api) = world("shutdownGracePeriod: 30s");
    let first = api.create("first", json!({"terminationGracePeriodSeconds": 600}));
    world.until("it runs", |w| runs(w, &first));
    let ready = |wanted: &str| {
        let mut node = Value::Null;
        api.edit_node(|object| node = object.clone());
        condition(&node, "Ready")["status"] == wanted
    };
    // The machine does not go down, so there is nothing to call off.
    world.call_off();
    let answer = world.shut_down();
    world.until("the node is not ready", |_| ready("False"));
    world.call_off();
    world.until("the node is ready again", |_| ready("True"));
    assert!(answer.is_closed());
    assert_eq!(world.events_of("Shutdown"), 2);
    // Pods that were told to end do so; new pods are taken.
    world.until("it has ended", |_| api.phase("first") == "Failed");
    let second = api.create("second", json!({}));
    world.until("another runs", |w| runs(w, &second));
    // The next shutdown works again.
    let answer = world.shut_down();
    world.until("the machine may go down", |_| answer.is_closed());
    assert!(!runs(&world, &second));
}
