//! The Node object that `get node` shows.

use core::time::Duration;

use serde_json::{Value, json};

use super::world::{IMAGE, NODE, World, manifest};
use crate::{api::pod_status::PodPhase, config::KUBELET_VERSION};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn shown(world: &World) -> Value {
    world.node_object()
}

fn condition(node: &Value, kind: &str) -> (String, String, String, String) {
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    let found = conditions.iter().find(|c| c["type"] == kind).expect(kind);
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (
        text("status"),
        text("message"),
        text("lastHeartbeatTime"),
        text("lastTransitionTime"),
    )
}

#[test]
fn it_is_the_one_that_would_be_registered() {
    // NODE-05 NODE-06 NODE-09 NODE-14 NODE-17 NODE-20
    let flags = &[
        "--node-labels=disk=ssd",
        "--register-with-taints=dedicated=x:NoExecute",
    ];
    let world = World::with(flags, None);
    world.advance(s(2));
    let node = shown(&world);
    assert_eq!(
        (&node["apiVersion"], &node["kind"]),
        (&"v1".into(), &"Node".into())
    );
    assert_eq!(node["metadata"]["name"], NODE);
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    assert_eq!(
        node["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"],
        "true"
    );
    let status = &node["status"];
    assert_eq!(status["capacity"]["memory"], "1Gi");
    assert_eq!(status["capacity"]["cpu"], "4");
    assert_eq!(status["capacity"]["pods"], "110");
    assert_eq!(status["nodeInfo"]["kubeletVersion"], KUBELET_VERSION);
    let image = status["images"][0]["names"].to_string();
    assert!(image.contains(IMAGE), "{image}");
    let kinds: Vec<&str> = status["conditions"]
        .as_array()
        .expect("conditions")
        .iter()
        .filter_map(|c| c["type"].as_str())
        .collect();
    assert_eq!(
        kinds,
        ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
    );
    assert_eq!(condition(&node, "Ready").0, "True");
    let addresses = status["addresses"].to_string();
    assert!(addresses.contains("192.0.2.1"), "{addresses}");
    assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
    assert_eq!(node["spec"]["taints"][0]["key"], "dedicated");
    // Pods are admitted by this Node, and shown with its address.
    let facts = world.parts.owners.node.with_admission(Clone::clone);
    assert_eq!(facts.labels["disk"], "ssd");
    assert_eq!(facts.labels["kubernetes.io/hostname"], NODE);
    assert_eq!(facts.taints.len(), 1);
    assert_eq!((facts.allocatable["pods"], facts.unread), (110, false));
    world.apply(&[manifest("a", json!({"nodeSelector": {"disk": "ssd"}}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert_eq!(world.status("a").expect("told").host_ip, "192.0.2.1");
}

#[test]
fn conditions_say_since_when_they_hold() {
    // NODE-17 NODE-19 NODE-20
    let world = World::new();
    world.advance(s(2));
    let (_, _, first_beat, since) = condition(&shown(&world), "Ready");
    world.advance(s(60));
    let (status, _, beat, still) = condition(&shown(&world), "Ready");
    assert_eq!(status, "True");
    assert_eq!(still, since);
    assert_ne!(beat, first_beat);
    world
        .fake
        .set_conditions(None, Some(("NoCni", "no network")));
    world.advance(s(10));
    let (status, message, _, turned) = condition(&shown(&world), "Ready");
    assert_eq!(status, "False");
    assert_eq!(
        message,
        "container runtime network not ready: NetworkReady=false reason:NoCni message:no network"
    );
    assert_ne!(turned, since);
    // NODE-18
    world
        .agent
        .borrow_mut()
        .pods_mut()
        .set_waiting_records(true);
    let (status, message, ..) = condition(&shown(&world), "DiskPressure");
    assert_eq!(status, "True");
    assert!(
        message.starts_with("kubelet has disk pressure: the root directory cannot be written"),
        "{message}"
    );
    // EVICT-05
    world
        .agent
        .borrow_mut()
        .pods_mut()
        .set_waiting_records(false);
    world.advance(s(299));
    let disk = || condition(&shown(&world), "DiskPressure").0;
    assert_eq!(disk(), "True", "it may come again");
    world.advance(s(1));
    assert_eq!(disk(), "False");
}
