//! The stand-ins for scheduler and node controllers.

use std::time::Duration;

use serde_json::{Value, json};

use super::reads::pod;
use crate::TestServer;
use crate::json::{list, text};

const LIMIT: Duration = Duration::from_mins(2);

fn start() -> TestServer {
    TestServer::builder()
        .controllers(true)
        .start()
        .expect("server")
}

fn ready(server: &TestServer, name: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"disk": name}}});
    server.create(&node).expect("created");
    beat(server, name, "2026-01-01T00:00:00Z");
}

fn beat(server: &TestServer, name: &str, time: &str) {
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]}});
    server
        .patch("nodes", "", name, "status", &status)
        .expect("status");
}

fn taints(node: &Value) -> Vec<String> {
    list(node, "/spec/taints")
        .iter()
        .map(|t| format!("{}:{}", text(t, "/key"), text(t, "/effect")))
        .collect()
}

#[test]
fn pods_find_nodes() {
    let server = start();
    server.create(&pod("a", "")).expect("created");
    server.wait_for("unschedulable", LIMIT, |view| {
        let pod = view.get("pods", "default", "a")?;
        (text(pod, "/status/conditions/0/reason") == "Unschedulable").then_some(())
    });
    ready(&server, "n1");
    ready(&server, "n2");
    let bound = |name: &str| {
        server.wait_for("bound", LIMIT, |view| {
            let pod = view.get("pods", "default", name)?;
            let node = text(pod, "/spec/nodeName");
            (!node.is_empty()).then(|| node.to_owned())
        })
    };
    assert_eq!(bound("a"), "n1");
    let mut picky = pod("b", "");
    picky["spec"]["nodeSelector"] = json!({"disk": "n2"});
    server.create(&picky).expect("created");
    assert_eq!(bound("b"), "n2");
    let node = server.wait_for("cidr", LIMIT, |view| {
        view.get("nodes", "", "n2")
            .filter(|n| !text(n, "/spec/podCIDR").is_empty())
            .cloned()
    });
    assert!(text(&node, "/spec/podCIDR").starts_with("10.85."));
    assert!(taints(&node).is_empty(), "{node}");
}

// LEASE-05
#[test]
fn a_silent_node_is_lost_and_comes_back() {
    let server = start();
    ready(&server, "n1");
    server.create(&pod("a", "n1")).expect("created");
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    server
        .patch("pods", "default", "a", "status", &status)
        .expect("status");
    server.wait_for("no taint", LIMIT, |view| {
        taints(view.get("nodes", "", "n1")?)
            .is_empty()
            .then_some(())
    });
    server.advance(Duration::from_secs(51));
    server.wait_for("lost", LIMIT, |view| {
        let found = taints(view.get("nodes", "", "n1")?);
        (found.len() == 2).then_some(())
    });
    let node = server.get("nodes", "", "n1").expect("there");
    assert_eq!(
        taints(&node),
        [
            "node.kubernetes.io/unreachable:NoSchedule",
            "node.kubernetes.io/unreachable:NoExecute"
        ]
    );
    let ready = &node["status"]["conditions"][0];
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("Unknown"), &json!("NodeStatusUnknown"))
    );
    let lost = server.wait_for("pod not ready", LIMIT, |view| {
        view.get("pods", "default", "a")
            .filter(|p| p["status"]["conditions"][0]["status"] == "False")
            .cloned()
    });
    assert_eq!(
        lost["metadata"]["generation"], 1,
        "no generation tells of it"
    );
    beat(&server, "n1", "2026-01-01T00:01:00Z");
    server.wait_for("back", LIMIT, |view| {
        taints(view.get("nodes", "", "n1")?)
            .is_empty()
            .then_some(())
    });
}

// TIME-01
#[test]
fn a_lease_counts_only_if_it_grew() {
    let server = start();
    ready(&server, "n1");
    let lost = || {
        server.wait_for("lost", LIMIT, |view| {
            (taints(view.get("nodes", "", "n1")?).len() == 2).then_some(())
        });
    };
    // The condition says True again with the heartbeat that it had: only the lease can count.
    let back = || {
        beat(&server, "n1", "2026-01-01T00:00:00Z");
        server.wait_for("back", LIMIT, |view| {
            taints(view.get("nodes", "", "n1")?)
                .is_empty()
                .then_some(())
        });
    };
    server.wait_for("seen", LIMIT, |view| {
        taints(view.get("nodes", "", "n1")?)
            .is_empty()
            .then_some(())
    });
    server.advance(Duration::from_secs(51));
    lost();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n1", "namespace": "kube-node-lease"},
        "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    server.create(&lease).expect("created");
    back();
    let renew = |time: &str| {
        let spec = json!({"spec": {"renewTime": time}});
        server
            .patch("leases", "kube-node-lease", "n1", "", &spec)
            .expect("renewed");
    };
    for older in ["1976-01-01T00:00:00.000000Z", "1976-01-01T00:00:10.000000Z"] {
        server.advance(Duration::from_secs(30));
        renew(older);
    }
    lost();
    // The smallest step is enough.
    renew("2026-01-01T00:00:00.000001Z");
    back();
}
