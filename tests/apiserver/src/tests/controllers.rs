//! The stand-ins for scheduler and node controllers.

use std::time::Duration;

use serde_json::{Value, json};

use super::reads::pod;
use crate::TestServer;
use crate::json::{list, text};

const LIMIT: Duration = Duration::from_secs(20);

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
    server.advance(Duration::from_secs(51));
    server.wait_for("lost again", LIMIT, |view| {
        (!taints(view.get("nodes", "", "n1")?).is_empty()).then_some(())
    });
    server.advance(Duration::from_secs(301));
    server.wait_for("deleted", LIMIT, |view| {
        let pod = view.get("pods", "default", "a")?;
        (!text(pod, "/metadata/deletionTimestamp").is_empty()).then_some(())
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

fn ready_pod(server: &TestServer, name: &str) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    server
        .patch("pods", "default", name, "status", &status)
        .expect("status");
}

fn active(view: &crate::View<'_>) -> Vec<Value> {
    let pods = view.list("pods", "default").into_iter();
    pods.filter(|p| text(p, "/metadata/deletionTimestamp").is_empty())
        .cloned()
        .collect()
}

fn workload(version: &str, kind: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": "w"},
        "spec": {"selector": {"matchLabels": {"app": "w"}}, "template": {
            "metadata": {"labels": {"app": "w"}},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]},
        }},
    });
    for (key, value) in more.as_object().expect("an object") {
        object["spec"][key] = value.clone();
    }
    object
}

/// Does for pods what a node would, until `done`.
fn run_until(server: &TestServer, done: impl Fn(&[Value]) -> bool) {
    loop {
        let pods = server.wait_for("a change", LIMIT, |view| {
            let pods = active(view);
            let new = |p: &Value| text(p, "/status/phase") == "Pending";
            (done(&pods) || pods.iter().any(new)).then_some(pods)
        });
        if done(&pods) {
            return;
        }
        for pod in pods {
            if text(&pod, "/status/phase") == "Pending" {
                ready_pod(server, text(&pod, "/metadata/name"));
            }
        }
    }
}

fn images(pods: &[Value]) -> Vec<&str> {
    let of = |p| text(p, "/spec/containers/0/image");
    pods.iter().map(of).collect()
}

#[test]
fn a_deployment_rolls_and_goes() {
    let server = start();
    ready(&server, "n1");
    let wanted = workload("apps/v1", "Deployment", &json!({"replicas": 3}));
    server.create(&wanted).expect("created");
    run_until(&server, |pods| {
        let ready = pods.iter().filter(|p| p["status"]["phase"] == "Running");
        ready.count() == 3
    });
    let roll =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}}});
    server
        .patch("deployments", "default", "w", "", &roll)
        .expect("patched");
    run_until(&server, |pods| {
        let ready = pods.iter().filter(|p| p["status"]["phase"] == "Running");
        let ready: Vec<Value> = ready.cloned().collect();
        assert!(ready.len() >= 3, "always as many as wanted");
        pods.len() == 3 && images(&ready) == ["i:2"; 3]
    });
    let one = json!({"spec": {"replicas": 1}});
    server
        .patch("deployments", "default", "w", "", &one)
        .expect("patched");
    run_until(&server, |pods| pods.len() == 1);
    server
        .delete("deployments", "default", "w", None)
        .expect("deleted");
    run_until(&server, <[Value]>::is_empty);
    server.wait_for("no set", LIMIT, |view| {
        view.list("replicasets", "default").is_empty().then_some(())
    });
}

#[test]
fn a_daemon_set_has_a_pod_on_each_node() {
    let server = start();
    ready(&server, "n1");
    ready(&server, "n2");
    let wanted = workload("apps/v1", "DaemonSet", &json!({}));
    server.create(&wanted).expect("created");
    let nodes = server.wait_for("both", LIMIT, |view| {
        let pods = active(view);
        let mut nodes: Vec<String> = pods
            .iter()
            .map(|p| text(p, "/spec/nodeName").to_owned())
            .collect();
        nodes.sort();
        (nodes.len() == 2 && !nodes[0].is_empty()).then_some(nodes)
    });
    assert_eq!(nodes, ["n1", "n2"]);
}

#[test]
fn a_job_counts_its_pods() {
    let server = start();
    ready(&server, "n1");
    let spec = json!({"completions": 2, "backoffLimit": 1});
    let mut wanted = workload("batch/v1", "Job", &spec);
    wanted["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    server.create(&wanted).expect("created");
    for phase in ["Succeeded", "Failed", "Succeeded"] {
        let name = server.wait_for("a pod", LIMIT, |view| {
            let pods = active(view);
            let new = pods.iter().find(|p| text(p, "/status/phase") == "Pending");
            new.map(|p| text(p, "/metadata/name").to_owned())
        });
        server
            .patch(
                "pods",
                "default",
                &name,
                "status",
                &json!({"status": {"phase": phase}}),
            )
            .expect("status");
    }
    let job = server.wait_for("complete", LIMIT, |view| {
        let job = view.get("jobs", "default", "w")?;
        let all = list(job, "/status/conditions");
        all.iter()
            .any(|c| c["type"] == "Complete")
            .then(|| job.clone())
    });
    assert_eq!(job["status"]["succeeded"], 2);
    assert_eq!(job["status"]["failed"], 1);
    server
        .delete("jobs", "default", "w", None)
        .expect("deleted");
    server.wait_for("gone", LIMIT, |view| {
        view.list("pods", "default").is_empty().then_some(())
    });
}
