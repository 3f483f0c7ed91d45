//! The Node and its lease; the apiserver away and back; its clock.

use core::time::Duration;
use std::fs;

use nix::sys::signal::Signal;
use picolet_test_apiserver::{Fault, Rule, TestServer};
use serde_json::json;

use crate::host::{self, IDLE, NODE, sh};
use crate::member::{able, condition, ends, member, shown, wait_ready, with_kubeconfig, wrong};

const SOON: Duration = Duration::from_secs(180);
const PATIENCE: Duration = host::PATIENCE;

#[test]
fn it_registers_and_stays() {
    // NODE-01 NODE-15 NODE-24 LEASE-01 LEASE-02 OFF-10 AUTHZ-02 AUTHZ-09 AUTHZ-10
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let mut host = member(&server, &["--node-status-update-frequency=1s", "--v=4"]);
    host.start_agent();
    let node = wait_ready(&server, SOON);
    assert_eq!(
        node["status"]["declaredFeatures"],
        serde_json::json!([
            "ExtendWebSocketsToKubelet",
            "InPlacePodLevelResourcesVerticalScaling",
            "RestartAllContainersOnContainerExits"
        ])
    );
    let lease = |view: &picolet_test_apiserver::View<'_>| {
        let lease = view.get("leases", "kube-node-lease", NODE)?;
        Some(lease["spec"]["renewTime"].to_string())
    };
    let first = server.wait_for("a lease", SOON, lease);
    server.wait_for("a renewal", PATIENCE, |view| {
        (lease(view)? != first).then_some(())
    });
    // The apiserver sees nothing but leases while nothing changes, and a restart changes nothing.
    host.end_agent(Signal::SIGTERM);
    server.clear_audit();
    host.start_agent();
    server.wait_for("a renewal by the next agent", PATIENCE, |view| {
        let lease = view.get("leases", "kube-node-lease", NODE)?;
        let renewed = lease["spec"]["renewTime"].to_string();
        (renewed > first).then_some(())
    });
    let after = server.get("nodes", "", NODE).expect("node");
    assert_eq!(after["metadata"]["uid"], node["metadata"]["uid"]);
    assert_eq!(
        condition(&after, "Ready")["lastTransitionTime"],
        condition(&node, "Ready")["lastTransitionTime"]
    );
    host.until("the next agent reads the node", |host| {
        let uid = shown(host)["metadata"]["uid"].clone();
        (uid == node["metadata"]["uid"], uid.to_string())
    });
    host.end_agent(Signal::SIGTERM);
    assert!(server.get("leases", "kube-node-lease", NODE).is_some());
    assert_eq!(wrong(&server), [""; 0]);
    host.clear();
}

#[test]
fn an_older_apiserver_is_not_told_again_and_again() {
    // NODE-15 NODE-22
    if !able() {
        return;
    }
    let server = TestServer::builder().version(30).start().expect("server");
    let mut host = member(&server, &["--v=4"]);
    let config = host.path("config.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 5m\n";
    fs::write(&config, text).expect("write");
    host.flags
        .extend(["--config".into(), config.display().to_string()]);
    host.start_agent();
    let node = wait_ready(&server, SOON);
    for newer in ["declaredFeatures", "features", "runtimeHandlers"] {
        assert!(node["status"][newer].is_null(), "{newer}");
    }
    // Renewals are ten rounds apart.
    let renewed = |since: String| {
        server.wait_for("a renewal", PATIENCE, |view| {
            let lease = view.get("leases", "kube-node-lease", NODE)?;
            let at = lease["spec"]["renewTime"].to_string();
            (at != since).then_some(at)
        })
    };
    let first = renewed(String::new());
    let second = renewed(first);
    server.clear_audit();
    renewed(second);
    let asked = server.audit();
    let told: Vec<_> = asked.iter().filter(|e| e.uri.contains("/status")).collect();
    assert!(told.is_empty(), "{told:#?}");
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn an_apiserver_that_goes_and_comes() {
    // OFF-01 NODE-22 LEASE-04 CONF-21
    if !able() || !host::able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    server.set_down(true);
    let mut host = member(&server, &["--node-status-update-frequency=1s"]);
    // Nobody answers, and pods start all the same.
    host.start_agent();
    host.import();
    host.pod("web", json!({"containers": [sh("c", IDLE)]}));
    host.wait_ready("web");
    assert_eq!(
        condition(&shown(&host), "ApiserverReachable")["status"],
        "False"
    );
    server.set_down(false);
    wait_ready(&server, PATIENCE);
    server.set_down(true);
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    server
        .patch("nodes", "", NODE, "status", &unknown)
        .expect("patch");
    host.until("the agent notices", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        (said["reason"] == "Unreachable", said.to_string())
    });
    server.set_down(false);
    wait_ready(&server, PATIENCE);
    host.wait_ready("web");
    assert_eq!(wrong(&server), [""; 0]);
    host.finish();
}

#[test]
fn a_clock_that_disagrees_is_told_once() {
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let skew = server
        .faults()
        .add(Rule::new(Fault::DateSkew(-3600)).on("", ""));
    let mut host = member(&server, &["--node-status-update-frequency=1s"]);
    host.start_agent();
    wait_ready(&server, SOON);
    host.until("the clock is wrong", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        (said["reason"] == "ClockWrong", said.to_string())
    });
    let check = host.command_with_flags("check", &[]);
    let said = host::text(&check.stdout);
    assert!(said.contains("ahead of the apiserver's"), "{said}");
    server.faults().remove(skew);
    host.until("the clock is right", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        (said["reason"] == "Answers", said.to_string())
    });
    let told = host.agent_log().matches("ahead of the apiserver's").count();
    assert_eq!(told, 1);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn what_the_operator_got_wrong_ends_the_start() {
    // BOOT-01 OFF-10 CONF-20
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let good = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    for (name, text, says) in [
        ("no text at all", "", "is empty"),
        ("no context", "{}", "current-context: is required"),
        ("no kubeconfig", "kind: Pod", "must be \"Config\""),
        (
            "no key",
            &good.replace("client-key-data", "unknown-data"),
            "client-key",
        ),
    ] {
        let host = with_kubeconfig(text, &[]);
        let (code, said) = ends(&host);
        assert_eq!(code, Some(2), "{name}: {said}");
        let line = said.lines().last().unwrap_or_default();
        assert!(
            line.starts_with("picolet: kubeconfig ") && line.contains(says),
            "{name}: {said}"
        );
        host.clear();
    }
    let mut host = host::Host::new(&[]);
    let path = host.path("nothing").display().to_string();
    host.add_flags(&["--kubeconfig", &path]);
    let (code, said) = ends(&host);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot read"), "{said}");
    host.clear();
}
