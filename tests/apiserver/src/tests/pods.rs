//! Pods: defaults, graceful deletion, status, binding.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::reads::pod;
use crate::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn start() -> (TestServer, Client) {
    let server = TestServer::builder().start().expect("server");
    let client = Client::admin(&server);
    (server, client)
}

#[test]
fn a_deletion_past_its_time_keeps_a_second() {
    let (server, mut client) = start();
    client.send("POST", PODS, &pod("a", "n1")).expect(201);
    server.delete("pods", "default", "a", None).expect("going");
    server.advance(Duration::from_secs(100));
    let going = server
        .delete("pods", "default", "a", Some(10))
        .expect("going");
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 1);
}

#[test]
fn who_goes_at_once() {
    let (server, mut client) = start();
    client.send("POST", PODS, &pod("unbound", "")).expect(201);
    client
        .send("DELETE", &format!("{PODS}/unbound"), &Value::Null)
        .expect(200);
    assert!(server.get("pods", "default", "unbound").is_none());
    client.send("POST", PODS, &pod("done", "n1")).expect(201);
    let status = json!({"status": {"phase": "Succeeded"}});
    client
        .send("PATCH", &format!("{PODS}/done/status"), &status)
        .expect(200);
    client
        .send("DELETE", &format!("{PODS}/done"), &Value::Null)
        .expect(200);
    assert!(server.get("pods", "default", "done").is_none());
    let mut held = pod("held", "n1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.send("POST", PODS, &held).expect(201);
    server
        .delete("pods", "default", "held", Some(0))
        .expect("held");
    assert!(server.get("pods", "default", "held").is_some());
    server
        .patch(
            "pods",
            "default",
            "held",
            "",
            &json!({"metadata": {"finalizers": null}}),
        )
        .expect("released");
    assert!(server.get("pods", "default", "held").is_none());
}

#[test]
fn status_and_spec_are_apart() {
    let (_server, mut client) = start();
    client.send("POST", PODS, &pod("a", "n1")).expect(201);
    let uri = format!("{PODS}/a");
    let both = json!({"spec": {"nodeName": "n2"}, "status": {"phase": "Running", "podIPs": [{"ip": "10.1.1.1"}]}});
    let written = client
        .send("PATCH", &format!("{uri}/status"), &both)
        .expect(200);
    assert_eq!(written["spec"]["nodeName"], "n1");
    assert_eq!(written["status"]["phase"], "Running");
    assert_eq!(written["status"]["podIP"], "10.1.1.1", "one is the other");
    assert_eq!(
        written["metadata"]["generation"], 1,
        "a status is no generation"
    );
    let main = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}});
    let written = client.send("PATCH", &uri, &main).expect(200);
    assert_eq!(written["status"]["phase"], "Running");
    let message = client
        .send("PATCH", &uri, &json!({"spec": {"nodeName": "n2"}}))
        .refusal(422);
    assert!(message.contains("pod updates may not change fields other than"));
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let written = client.send("PATCH", &uri, &image).expect(200);
    assert_eq!(written["metadata"]["generation"], 2);
}

#[test]
fn statuses_that_are_refused() {
    let (_server, mut client) = start();
    let mut never = pod("a", "n1");
    never["spec"]["restartPolicy"] = json!("Never");
    client.send("POST", PODS, &never).expect(201);
    let uri = format!("{PODS}/a/status");
    let ended = json!({"status": {"hostIP": "10.0.0.1", "containerStatuses": [
        {"name": "c", "state": {"terminated": {"exitCode": 1}}}]}});
    client.send("PATCH", &uri, &ended).expect(200);
    for (patch, want) in [
        (
            json!({"status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}}),
            "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
        ),
        (
            json!({"status": {"podIPs": [{"ip": "10.1.1.1"}, {"ip": "10.1.1.2"}]}}),
            "may specify no more than one IP for each IP family",
        ),
        (
            json!({"status": {"podIPs": [{"ip": "x"}]}}),
            "must be a valid IP address",
        ),
        (
            json!({"status": {"hostIPs": [{"ip": "10.0.0.2"}]}}),
            "status.hostIPs[0].ip: Invalid value: \"10.0.0.2\": must be equal to `hostIP`",
        ),
        (
            json!({"status": {"observedGeneration": -1}}),
            "status.observedGeneration: Invalid value: -1: must be a non-negative integer",
        ),
        (
            json!({"status": {"conditions": [{"type": "My Thing", "status": "True"}]}}),
            "status.conditions[0].Type",
        ),
        (
            json!({"status": {"qosClass": "Guaranteed"}}),
            "field is immutable",
        ),
    ] {
        let message = client.send("PATCH", &uri, &patch).refusal(422);
        assert!(message.contains(want), "{message}");
    }
    let nameless = json!({"status": {"conditions": [{"status": "True"}]}});
    client.send("PATCH", &uri, &nameless).refusal(500);
}

#[test]
fn a_container_may_start_again_where_its_policy_says_so() {
    let (_server, mut client) = start();
    for (name, policy, exit, allowed) in [
        ("always", "Always", 0, true),
        ("on-failure", "OnFailure", 1, true),
        ("on-success", "OnFailure", 0, false),
        ("never", "Never", 1, false),
    ] {
        let mut new = pod(name, "n1");
        new["spec"]["restartPolicy"] = json!(policy);
        client.send("POST", PODS, &new).expect(201);
        let uri = format!("{PODS}/{name}/status");
        let ended = json!({"status": {"containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": exit}}}]}});
        client.send("PATCH", &uri, &ended).expect(200);
        let runs =
            json!({"status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}});
        let got = client.send("PATCH", &uri, &runs);
        assert_eq!(got.code == 200, allowed, "{name}");
    }
}

#[test]
fn observed_generations_stay() {
    let (_server, mut client) = start();
    client.send("POST", PODS, &pod("a", "n1")).expect(201);
    let uri = format!("{PODS}/a/status");
    let seen = json!({"status": {"observedGeneration": 1, "conditions": [
        {"type": "Ready", "status": "True", "observedGeneration": 1}]}});
    client.send("PATCH", &uri, &seen).expect(200);
    let older = json!({"status": {"observedGeneration": null, "conditions": [
        {"type": "Ready", "status": "False", "observedGeneration": null}]}});
    let written = client.send("PATCH", &uri, &older).expect(200);
    assert_eq!(written["status"]["observedGeneration"], 1);
    assert_eq!(written["status"]["conditions"][0]["observedGeneration"], 1);
}

#[test]
fn older_servers_know_no_generation() {
    let server = TestServer::builder().version(32).start().expect("server");
    let mut client = Client::admin(&server);
    let made = client.send("POST", PODS, &pod("a", "n1")).expect(201);
    assert!(made["metadata"].get("generation").is_none());
    let going = client
        .send("DELETE", &format!("{PODS}/a"), &Value::Null)
        .expect(200);
    assert!(going["metadata"].get("generation").is_none());
}
