//! Pods that are admitted or refused by the Node's labels and taints: the Node as it was last read, as it is, and as an
//! agent before this one has known it.

use alloc::sync::Arc;
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{FakeApi, Link},
    world::{World, manifest},
};
use crate::{api::PodUid, api::pod_status::PodPhase};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Longest time between two reports of the node. Each reads the Node as it is.
const REPORT: Duration = s(600);

fn world(flags: &'static [&'static str]) -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(flags, &api);
    world.apply(&[]);
    world.advance(s(30));
    (world, api)
}

fn on_ssd() -> Value {
    json!({"nodeSelector": {"disk": "ssd"}})
}

/// Sets a label as `kubectl label node` does; `None` takes the label away.
fn label(api: &FakeApi, value: Option<&str>) {
    api.edit_node(|node| match value {
        Some(value) => node["metadata"]["labels"]["disk"] = value.into(),
        None => {
            _ = node["metadata"]["labels"]
                .as_object_mut()
                .map(|all| all.remove("disk"))
        }
    });
}

fn runs(world: &World, api: &FakeApi, name: &str) {
    world.until("runs", |_| api.phase(name) == "Running");
}

fn container(world: &World, uid: &str) -> Option<String> {
    let found = world.fake.container(&PodUid::from(uid), "c");
    found.map(|c| c.id.to_string())
}

fn reason(api: &FakeApi, name: &str) -> String {
    let pod = api.get("ns", name).expect("there");
    pod["status"]["reason"].as_str().unwrap_or("").into()
}

/// Number of reads of the Node since this was last called.
fn reads(api: &FakeApi) -> usize {
    api.take_node_reads()
}

#[test]
fn a_label_of_others_is_known_to_the_next_agent() {
    // ADM-04 NODE-06 OFF-07 SEED-01
    let (world, api) = world(&[]);
    label(&api, Some("ssd"));
    world.advance(REPORT);
    let uid = api.create("a", on_ssd());
    runs(&world, &api, "a");
    let before = container(&world, &uid);
    // The pod is taken up from disk before the Node was read, also with an apiserver in reach.
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(60));
    assert_eq!(container(&world, &uid), before);
    api.set_link(Link::Down);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(300));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    assert_eq!(container(&world, &uid), before, "it goes on");
    let world = world.reboot();
    world.apply(&[]);
    world.until("runs again", |w| w.fake.runs(&PodUid::from(&*uid)));
    world.advance(s(300));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    api.set_link(Link::Up);
    runs(&world, &api, "a");
    assert_eq!(reason(&api, "a"), "");
    // The API's word is kept: the label is gone for good.
    label(&api, None);
    world.advance(REPORT);
    assert_eq!(api.phase("a"), "Running", "ADM-01");
    let world = world.restart_agent();
    world.apply(&[]);
    world.until("is refused", |_| api.phase("a") == "Failed");
    assert_eq!(reason(&api, "a"), "NodeAffinity");
}

#[test]
fn a_node_that_is_deleted_takes_no_pod_with_it() {
    // NODE-06
    let (world, api) = world(&[]);
    label(&api, Some("ssd"));
    world.advance(REPORT);
    let uid = api.create("a", on_ssd());
    runs(&world, &api, "a");
    let before = container(&world, &uid);
    api.edit_node(|node| *node = Value::Null);
    world.advance(REPORT + REPORT);
    api.edit_node(|node| assert!(node.is_null(), "it is not created again"));
    assert_eq!(container(&world, &uid), before, "it goes on");
    // What was read last counts, also for pods that come now.
    api.create("b", on_ssd());
    runs(&world, &api, "b");
    let pod = api.get("ns", "b").expect("there");
    assert_eq!(pod["status"]["hostIP"], "192.0.2.1");
}

#[test]
fn where_nothing_is_known_of_the_node_pods_from_disk_go_on() {
    // ADM-04 NODE-06 OFF-07
    let (world, api) = world(&[]);
    label(&api, Some("ssd"));
    world.advance(REPORT);
    let uid = api.create("a", on_ssd());
    runs(&world, &api, "a");
    let before = container(&world, &uid);
    api.set_link(Link::Down);
    // The file is missing, as after an agent that did not keep it; later it has a content that no agent has written.
    let path = world.dir().join("root/node-labels.json");
    std::fs::remove_file(&path).expect("kept");
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(300));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    std::fs::write(&path, "{").expect("torn");
    let world = world.restart_agent();
    world.apply(&[manifest("static", on_ssd())]);
    world.advance(s(300));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    assert_eq!(container(&world, &uid), before);
    // A static pod is judged by the Node that would be registered, once the apiserver has not answered for a while.
    assert_eq!(world.phase("static"), Some(PodPhase::Failed));
}

#[test]
fn a_taint_that_was_taken_away_stays_away() {
    // ADM-04 ADM-10 NODE-06
    let (world, api) = world(&["--register-with-taints=dedicated=x:NoExecute"]);
    api.edit_node(|node| {
        assert_eq!(node["spec"]["taints"][0]["key"], "dedicated");
        node["spec"]["taints"] = json!([]);
    });
    world.advance(REPORT);
    let uid = api.create("a", json!({}));
    runs(&world, &api, "a");
    let before = container(&world, &uid);
    api.set_link(Link::Down);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(300));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    assert_eq!(container(&world, &uid), before);
}

#[test]
fn the_node_is_read_once_more_before_a_pod_is_refused() {
    // ADM-08 ADM-10
    let (world, api) = world(&["--register-with-taints=dedicated=x:NoExecute"]);
    world.advance(s(120));
    reads(&api);
    // Labels are set, a taint is removed, and pods come before the next report.
    label(&api, Some("ssd"));
    api.edit_node(|node| node["spec"]["taints"] = json!([]));
    let since = world.now();
    for name in ["a", "b", "c"] {
        api.create(name, on_ssd());
    }
    for name in ["a", "b", "c"] {
        runs(&world, &api, name);
    }
    assert!(
        world.now() - since < s(60),
        "they do not wait for the report"
    );
    assert!((1..=2).contains(&reads(&api)), "they share a read");
    // If the label is not there, the read does not help, and is not made again.
    let uid = api.create("d", json!({"nodeSelector": {"disk": "tape"}}));
    world.until("is refused", |_| api.phase("d") == "Failed");
    assert_eq!(reason(&api, "d"), "NodeAffinity");
    world.advance(s(60));
    assert_eq!(reads(&api), 1);
    assert_eq!(container(&world, &uid), None);
    // Many more such pods come: the rate of reads is limited.
    for at in 0..20 {
        api.create(&format!("e{at}"), json!({"nodeSelector": {"disk": "tape"}}));
    }
    world.until("all are refused", |_| {
        (0..20).all(|at| api.phase(&format!("e{at}")) == "Failed")
    });
    assert!(reads(&api) <= 5);
}

#[test]
fn a_pod_waits_for_the_node_for_a_while() {
    // ADM-08
    let (world, api) = world(&[]);
    world.advance(s(120));
    label(&api, Some("ssd"));
    api.refuse_nodes(true);
    let uid = api.create("a", on_ssd());
    world.advance(s(60));
    assert_eq!(api.phase("a"), "Pending", "it is not refused");
    // An edit does not start the pod.
    api.edit("a", |pod| pod["metadata"]["labels"] = json!({"x": "y"}));
    world.advance(s(20));
    assert_eq!(container(&world, &uid), None);
    api.refuse_nodes(false);
    runs(&world, &api, "a");
    // A pod that is deleted meanwhile goes.
    api.refuse_nodes(true);
    let tape = || json!({"nodeSelector": {"disk": "tape"}});
    let gone = api.create("gone", tape());
    world.advance(s(30));
    api.delete("gone");
    world.until("is gone", |w| {
        api.get("ns", "gone").is_none() && w.is_gone(&gone)
    });
    // If the Node is not answered at all, the pod is refused in the end.
    api.create("late", tape());
    let since = world.now();
    world.until("is refused", |_| api.phase("late") == "Failed");
    let waited = world.now() - since;
    assert!(waited >= s(110) && waited < s(180), "{waited:?}");
    assert_eq!(reason(&api, "late"), "NodeAffinity");
}
