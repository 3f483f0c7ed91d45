//! Creations, updates, patches: versions, preconditions, types.

use serde_json::{Value, json};

use super::client::Client;
use crate::TestServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

fn start() -> (TestServer, Client) {
    let server = TestServer::builder().start().expect("server");
    let client = Client::admin(&server);
    (server, client)
}

#[test]
fn updates_and_conflicts() {
    let (server, mut client) = start();
    let made = client.send("POST", MAPS, &map("a", "1")).expect(201);
    let uri = format!("{MAPS}/a");
    let mut next = made.clone();
    next["data"]["a"] = json!("2");
    let written = client.send("PUT", &uri, &next).expect(200);
    let conflict = client.send("PUT", &uri, &next).expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert!(
        conflict["message"]
            .as_str()
            .is_some_and(|m| m.contains("the object has been modified"))
    );
    // Nothing changed: no version, no event.
    let same = client.send("PUT", &uri, &written).expect(200);
    assert_eq!(
        same["metadata"]["resourceVersion"],
        written["metadata"]["resourceVersion"]
    );
    // Without a version it is taken as it is.
    client.send("PUT", &uri, &map("a", "3")).expect(200);
    let mut stranger = map("a", "4");
    stranger["metadata"]["uid"] = json!("someone-else");
    let message = client.send("PUT", &uri, &stranger).refusal(409);
    assert!(
        message.contains(
            "Precondition failed: UID in precondition: someone-else, UID in object meta: "
        )
    );
    client.send("PUT", &uri, &map("b", "1")).refusal(400);
    client
        .send("PUT", &format!("{MAPS}/none"), &map("none", "1"))
        .refusal(404);
    assert_eq!(
        server.get("configmaps", "default", "a").expect("there")["data"]["a"],
        "3"
    );
}

#[test]
fn leases_are_made_by_put_and_want_a_version() {
    let (_server, mut client) = start();
    let uri = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n1", "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": "2026-01-02T03:04:05.000006Z"}});
    let mut made = client.send("PUT", uri, &lease).expect(201);
    let message = client.send("PUT", uri, &lease).refusal(422);
    assert!(
        message.contains(
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        )
    );
    made["spec"]["renewTime"] = json!("2026-01-02T03:04:15.000006Z");
    client.send("PUT", uri, &made).expect(200);
    let bad = json!({"spec": {"renewTime": "2026-01-02T03:04:25Z"}});
    client.send("PATCH", uri, &bad).refusal(422);
    let bad = json!({"spec": {"leaseDurationSeconds": 0}});
    let message = client.send("PATCH", uri, &bad).refusal(422);
    assert!(
        message.contains("spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0")
    );
    let smallest = json!({"spec": {"renewTime": "2026-01-02T03:04:25.000000Z"}});
    client.send("PATCH", uri, &smallest).expect(200);
}

#[test]
fn unknown_fields_are_dropped_and_told() {
    let (server, mut client) = start();
    let mut bad = map("a", "1");
    bad["dada"] = json!({"x": 1});
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let message = client.send("POST", &strict, &bad).refusal(400);
    assert_eq!(
        message,
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dada\""
    );
    let got = client.send("POST", MAPS, &bad);
    assert_eq!(
        got.header("warning"),
        "299 - \"unknown field \\\"dada\\\"\""
    );
    assert!(got.expect(201).get("dada").is_none());
    let wrong = server.wrong();
    assert_eq!(wrong.len(), 2);
    assert_eq!(wrong[1].unknown_fields, ["dada"]);
}

#[test]
fn secrets_take_texts_and_immutable_ones_nothing() {
    let (_server, mut client) = start();
    let uri = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "text"}, "immutable": true});
    let made = client.send("POST", uri, &secret).expect(201);
    assert_eq!(made["data"]["a"], "dGV4dA==");
    assert_eq!(made["type"], "Opaque");
    assert!(made.get("stringData").is_none());
    let message = client
        .send(
            "PATCH",
            &format!("{uri}/s"),
            &json!({"data": {"a": "eA=="}}),
        )
        .refusal(422);
    assert!(message.contains("field is immutable when `immutable` is set"));
}

#[test]
fn finalizers_hold() {
    let (server, mut client) = start();
    let mut held = map("a", "1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    client.send("POST", MAPS, &held).expect(201);
    let uri = format!("{MAPS}/a");
    let going = client.send("DELETE", &uri, &Value::Null).expect(200);
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["example.com/more"]}});
    client.send("PATCH", &uri, &more).refusal(422);
    let none = json!({"metadata": {"finalizers": null}});
    client.send("PATCH", &uri, &none).expect(200);
    assert!(server.get("configmaps", "default", "a").is_none());
    client.send("POST", MAPS, &map("b", "1")).expect(201);
    let status = client
        .send("DELETE", &format!("{MAPS}/b"), &Value::Null)
        .expect(200);
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Success"))
    );
}
