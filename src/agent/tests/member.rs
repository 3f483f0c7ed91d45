//! The agent as a node of a cluster: the Node object and the lease, as a strict apiserver sees them.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;

use picolet_test_apiserver::{Entry, Fault, Rule, TestServer};
use serde_json::{Value, json};

use super::super::{cluster, link_policy::LinkPolicy as _};
use super::world::{NODE, World};
use crate::{
    api::WallTime,
    kube::{ClientTimeouts, HttpApi, KubeApi, Kubeconfig, RequestRates, SharedApiserver},
    net::ProxyVariables,
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) fn api(server: &TestServer) -> Arc<dyn KubeApi> {
    let text = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    let config = Kubeconfig::parse("/k".as_ref(), text.as_bytes(), &[]).expect("kubeconfig");
    let cluster = Arc::new(SharedApiserver::new(
        config,
        ProxyVariables::default(),
        None,
    ));
    let (timeouts, rates) = (ClientTimeouts::default(), RequestRates::default());
    Arc::new(HttpApi::new(&cluster, timeouts, rates, None))
}

fn cluster(flags: &'static [&'static str]) -> (TestServer, World) {
    let server = TestServer::builder().start().expect("server");
    let world = World::with(flags, Some(api(&server)));
    (server, world)
}

fn node(server: &TestServer) -> Value {
    server.get("nodes", "", NODE).expect("a node")
}

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let all = node["status"]["conditions"].as_array().expect("conditions");
    all.iter()
        .find(|c| c["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn is_ready(server: &TestServer) -> bool {
    let node = server.get("nodes", "", NODE);
    node.is_some_and(|node| condition(&node, "Ready")["status"] == "True")
}

/// Number of requests of a kind since the log was last cleared.
fn asked(server: &TestServer, method: &str, part: &str) -> usize {
    let is = |e: &&Entry| e.method == method && e.uri.contains(part);
    server.audit().iter().filter(is).count()
}

fn refused(server: &TestServer) -> Vec<String> {
    let wrong = server.wrong();
    let text = |e: &Entry| format!("{} {} {} {}", e.method, e.uri, e.code, e.message);
    wrong.iter().map(text).collect()
}

#[test]
fn it_registers_and_keeps_its_lease() {
    // NODE-01 NODE-05 NODE-24 LEASE-01 LEASE-02 LEASE-03 LEASE-04 OFF-07 OFF-10 AUTHZ-02 AUTHZ-10
    let (server, world) = cluster(&[]);
    assert!(world.parts.owners.node.node_object().is_none());
    world.advance(s(1));
    let found = node(&server);
    assert_eq!(condition(&found, "Ready")["status"], "True", "{found}");
    assert_eq!(found["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    let own = world.parts.owners.node.node_object().expect("an answer");
    assert_eq!(own.metadata.uid.as_str(), found["metadata"]["uid"]);
    assert!(own.status.images.is_empty(), "kept apart");
    assert!(
        !found["status"]["images"]
            .as_array()
            .expect("images")
            .is_empty()
    );
    assert_eq!(
        world.parts.owners.node.host_ips(),
        crate::logic::node::node_host_ips(&own)
    );
    let lease = || {
        server
            .get("leases", "kube-node-lease", NODE)
            .expect("a lease")
    };
    let first = lease();
    assert_eq!(
        first["metadata"]["ownerReferences"][0]["uid"],
        found["metadata"]["uid"]
    );
    assert_eq!(first["spec"]["leaseDurationSeconds"], 40);
    server.clear_audit();
    world.advance(s(100));
    assert_ne!(lease()["spec"]["renewTime"], first["spec"]["renewTime"]);
    let renewals = asked(&server, "PATCH", "/leases/");
    assert!((9..=10).contains(&renewals), "{renewals}");
    assert_eq!(asked(&server, "PUT", "") + asked(&server, "POST", ""), 0);
    assert_eq!(refused(&server), [""; 0]);
    for reason in [
        "Starting",
        "NodeHasSufficientMemory",
        "NodeHasSufficientPID",
    ] {
        assert_eq!(world.events_of(reason), 1, "{reason}");
    }
}

#[test]
fn a_status_is_sent_when_it_changed_or_is_old() {
    // NODE-22 NODE-23
    let (server, world) = cluster(&[]);
    world.advance(s(90));
    server.clear_audit();
    world.advance(s(40));
    assert_eq!(asked(&server, "", "/nodes/"), 0, "nothing has changed");
    world
        .fake
        .set_conditions(None, Some(("NoCni", "no network")));
    world.advance(s(16));
    assert!(!is_ready(&server));
    assert_eq!(asked(&server, "PATCH", "/status"), 1);
    world.fake.set_conditions(None, None);
    world.advance(s(16));
    assert!(is_ready(&server));
    server.clear_audit();
    world.advance(s(900));
    let reports = asked(&server, "PATCH", "/nodes/");
    assert!((2..=4).contains(&reports), "{reports} in 15 minutes");
    assert_eq!(asked(&server, "GET", "/nodes/"), 0);
    assert_eq!(refused(&server), [""; 0]);
    assert_eq!(world.events_of("Starting"), 1);
    assert_eq!(
        (
            world.events_of("NodeNotReady"),
            world.events_of("NodeReady")
        ),
        (1, 1)
    );
}

#[test]
fn what_others_wrote_during_an_outage_is_repaired() {
    // NODE-22 NODE-23 LEASE-05 CONF-21
    let (server, world) = cluster(&[]);
    world.advance(s(90));
    assert!(is_ready(&server));
    server.set_down(true);
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}});
    server
        .patch("nodes", "", NODE, "status", &unknown)
        .expect("patch");
    world.advance(s(120));
    assert!(!is_ready(&server));
    server.set_down(false);
    world.advance(s(15));
    assert!(is_ready(&server));
    let kinds = node(&server)["status"]["conditions"]
        .as_array()
        .map(Vec::len);
    assert_eq!(kinds, Some(4));
    // The node controller comes back later than the apiserver, and acts on old knowledge.
    world.advance(s(40));
    server
        .patch("nodes", "", NODE, "status", &unknown)
        .expect("patch");
    world.advance(s(15));
    assert!(is_ready(&server));
    // After that the Node is not read again.
    world.advance(s(120));
    server.clear_audit();
    world.advance(s(60));
    assert_eq!(asked(&server, "GET", "/nodes/"), 0);
    assert_eq!(refused(&server), [""; 0]);
}

#[test]
fn a_long_sleep_of_the_machine_is_no_secret_to_others() {
    // LEASE-05
    let (server, world) = cluster(&[]);
    world.advance(s(90));
    server.clear_audit();
    // No request fails here; only the clock shows the sleep.
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    server
        .patch("nodes", "", NODE, "status", &unknown)
        .expect("patch");
    world.sleep(s(100));
    world.advance(s(15));
    assert!(is_ready(&server));
}

#[test]
fn a_clock_that_is_set_back_does_not_cost_the_node_its_ready() {
    // TIME-01 LEASE-05 SVC-15
    let server = TestServer::builder().controllers(true).start();
    let server = server.expect("server");
    let world = World::with(&[], Some(api(&server)));
    world.advance(s(30));
    // Another node of the same age, which never reports again: the controller looks at both in one round.
    let silent = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "silent"}});
    server.create(&silent).expect("created");
    // Its silence counts from when the controller has seen that it is ready.
    for (status, is_tainted) in [("False", true), ("True", false)] {
        let ready =
            json!({"type": "Ready", "status": status, "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
        let change = json!({"status": {"conditions": [ready]}});
        let patched = server.patch("nodes", "", "silent", "status", &change);
        patched.expect("status");
        server.wait_for("the silent one is known", s(120), |view| {
            let taints = &view.get("nodes", "", "silent")?["spec"]["taints"];
            let has_some = taints.as_array().is_some_and(|all| !all.is_empty());
            (has_some == is_tainted).then_some(())
        });
    }
    world.jump(-50 * 365 * 86_400);
    for _ in 0..6 {
        server.advance(s(10));
        world.advance(s(10));
    }
    server.wait_for("the silent one is lost", s(120), |view| {
        let node = view.get("nodes", "", "silent")?;
        (condition(node, "Ready")["status"] == "Unknown").then_some(())
    });
    assert!(is_ready(&server), "{}", node(&server));
    assert_eq!(refused(&server), [""; 0]);
}

#[test]
fn a_node_that_is_there_is_taken_over() {
    // NODE-02 NODE-03 NODE-04 AUTHZ-09
    let server = TestServer::builder().start().expect("server");
    let taint = json!({"key": "a", "value": "b", "effect": "NoSchedule"});
    let old = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"team": "x", "kubernetes.io/hostname": "other"}},
        "spec": {"taints": [taint], "unschedulable": true}});
    server.create(&old).expect("node");
    let uid = node(&server)["metadata"]["uid"].clone();
    let flags = &[
        "--register-with-taints=mine=1:NoExecute",
        "--node-labels=zone=z",
    ];
    let world = World::with(flags, Some(api(&server)));
    world.advance(s(20));
    let found = node(&server);
    assert_eq!(found["metadata"]["uid"], uid);
    let labels = &found["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["kubernetes.io/hostname"]),
        (&json!("x"), &json!(NODE))
    );
    assert_eq!(labels["zone"], Value::Null, "only a new node gets it");
    let taints = found["spec"]["taints"].to_string();
    assert!(
        taints.contains("\"a\"") && !taints.contains("mine"),
        "{taints}"
    );
    assert!(is_ready(&server));
    // NODE-06 NODE-21
    let facts = world.parts.owners.node.with_admission(Clone::clone);
    assert_eq!(facts.labels.get("team").map(String::as_str), Some("x"));
    assert!(facts.taints.iter().any(|t| t.key == "a"));
    assert_eq!(world.events_of("NodeNotSchedulable"), 1);
    let open = json!({"spec": {"unschedulable": null}});
    server.patch("nodes", "", NODE, "", &open).expect("patch");
    world.advance(s(600));
    assert_eq!(world.events_of("NodeSchedulable"), 1);
    assert_eq!(refused(&server), [""; 0]);
}

#[test]
fn a_deleted_node_comes_back_with_the_next_agent() {
    // NODE-06
    let (server, world) = cluster(&[]);
    world.advance(s(90));
    server.delete("nodes", "", NODE, None).expect("deleted");
    world.advance(s(900));
    assert!(server.get("nodes", "", NODE).is_none());
    let world = world.restart_agent();
    world.advance(s(5));
    assert!(is_ready(&server));
    let uid = node(&server)["metadata"]["uid"].clone();
    let own = world.parts.owners.node.node_object().expect("an answer");
    assert_eq!(own.metadata.uid.as_str(), uid);
}

#[test]
fn others_may_have_to_make_the_node() {
    // NODE-01
    let (server, world) = cluster(&["--register-node=false"]);
    world.advance(s(60));
    assert!(server.get("nodes", "", NODE).is_none());
    let made = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    server.create(&made).expect("node");
    world.advance(s(15));
    assert!(is_ready(&server));
    assert!(server.get("leases", "kube-node-lease", NODE).is_some());
}

#[test]
fn trouble_at_the_start_holds_up_only_itself() {
    // NODE-01 OFF-07
    let server = TestServer::builder().start().expect("server");
    let busy = Fault::Status {
        code: 503,
        retry_after_s: None,
    };
    server
        .faults()
        .add(Rule::new(busy).on("POST", "/nodes").times(3));
    let cut = Rule::new(Fault::ResetAfter).on("POST", "/nodes").skip(3);
    server.faults().add(cut.times(1));
    let world = World::with(&[], Some(api(&server)));
    let waits = || {
        let cluster = world.parts.owners.cluster.as_ref().expect("a cluster");
        smol::future::block_on(smol::future::poll_once(cluster.member.wait_for_node_read()))
            .is_none()
    };
    assert!(waits());
    world.advance(s(10));
    assert!(!waits());
    assert!(is_ready(&server));
    // One request has created the Node although its answer did not arrive.
    assert_eq!(asked(&server, "POST", "/nodes"), 5);
    assert_eq!(server.list("nodes", "").len(), 1);
}

#[test]
fn pod_cidrs_are_kept_for_the_next_start() {
    // NODE-16
    let server = TestServer::builder().start().expect("server");
    let flags = &["--kubeconfig=/nonexistent"];
    let world = World::with(flags, Some(api(&server)));
    let kept = world.dir().join("root/pod-cidrs");
    let subnets = || cluster::pod_cidr::network_subnets(&world.parts.cfg).join(" ");
    world.advance(s(1));
    assert_eq!(subnets(), "10.85.0.0/16");
    let given =
        json!({"spec": {"podCIDR": "10.9.1.0/24", "podCIDRs": ["10.9.1.0/24", "fd00:9::/64"]}});
    server.patch("nodes", "", NODE, "", &given).expect("patch");
    world.advance(s(10));
    let text = fs::read_to_string(&kept).expect("kept");
    assert_eq!(text, "10.9.1.0/24,fd00:9::/64\n");
    assert_eq!(subnets(), "10.9.1.0/24 fd00:9::/64");
    for (name, text) in [("cut", "10.9.1"), ("nothing", ""), ("half", "10.9.1.0/24,")] {
        fs::write(&kept, text).expect("write");
        assert_eq!(subnets(), "10.85.0.0/16", "{name}");
    }
    // The agent does not ask any more once the range is known, and asks for no longer than a minute if none is
    // assigned.
    let reads = asked(&server, "GET", "/nodes/");
    world.advance(s(100));
    assert_eq!(asked(&server, "GET", "/nodes/"), reads);
    let alone = World::with(&["--pod-cidr=10.7.0.0/24"], None);
    fs::write(alone.dir().join("root/pod-cidrs"), "10.9.1.0/24").expect("write");
    let subnets = cluster::pod_cidr::network_subnets(&alone.parts.cfg);
    assert_eq!(
        subnets,
        ["10.7.0.0/24"],
        "the operator's word, and no cluster"
    );
}

#[test]
fn local_commands_see_whether_the_apiserver_answers() {
    let (server, world) = cluster(&[]);
    world.advance(s(5));
    let shown = || world.node_object();
    let reachable = || condition(&shown(), "ApiserverReachable").clone();
    assert_eq!(reachable()["status"], "True");
    assert_eq!(shown()["metadata"]["uid"], node(&server)["metadata"]["uid"]);
    server.set_down(true);
    world.advance(s(30));
    let away = reachable();
    assert_eq!(
        (&away["status"], &away["reason"]),
        (&json!("False"), &json!("Unreachable"))
    );
    server.set_down(false);
    world.advance(s(30));
    assert_eq!(reachable()["status"], "True");
    let there = node(&server);
    assert_eq!(
        condition(&there, "ApiserverReachable"),
        &Value::Null,
        "ours alone"
    );
    let told = world
        .parts
        .owners
        .cluster
        .as_ref()
        .and_then(|c| c.agent_end_reason());
    assert_eq!(told, None);
}

#[test]
fn what_the_link_costs_changes_with_the_way() {
    // METER-06
    let server = TestServer::builder().start().expect("server");
    let line = "link: {meteredInterfaces: [\"wwan*\"]}";
    // Without a watch a list is made only when it is due.
    let world = World::with_line(&["--doorbells=false"], line, api(&server), "eth0");
    let in_100_s = || {
        // Requests whose times were set before are let pass.
        world.advance(s(61));
        server.clear_audit();
        world.advance(s(100));
        let lists = asked(&server, "GET", "/pods?");
        (asked(&server, "PATCH", "/leases/"), lists)
    };
    let shown = || {
        let limits = world.parts.owners.link_limits.as_ref();
        let limits = limits.expect("it is configured");
        let mut conditions = limits.link_conditions(WallTime::from_unix_seconds(0));
        let condition = conditions.pop().expect("it depends on the way");
        (
            condition.status,
            limits.link_state().cost.expect("the same"),
        )
    };
    let (renewals, usual) = in_100_s();
    assert!((9..=10).contains(&renewals), "{renewals}");
    assert!((10..=14).contains(&usual), "{usual}");
    assert_eq!(shown().0, "False");
    world.leave_by(Some("wwan0"));
    let (renewals, lists) = in_100_s();
    assert!((4..=5).contains(&renewals), "{renewals}");
    assert!(lists <= 3, "{lists}");
    let (status, says) = shown();
    assert_eq!(
        (&*status, &*says),
        (
            "True",
            "the link is metered: the route to the apiserver uses wwan0"
        )
    );
    // A missing way does not count as a change of the way.
    world.leave_by(None);
    let (renewals, _) = in_100_s();
    assert!((4..=5).contains(&renewals), "{renewals}");
    world.leave_by(Some("eth0"));
    let (renewals, lists) = in_100_s();
    assert!((9..=10).contains(&renewals), "{renewals}");
    assert!((10..=14).contains(&lists), "{lists}");
    assert_eq!(refused(&server), [""; 0]);
}
