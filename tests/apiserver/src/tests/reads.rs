//! Reads: lists and their pages, forms, watches.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use crate::TestServer;

fn server() -> TestServer {
    TestServer::builder().start().expect("server")
}

pub(super) fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|i| i["metadata"]["name"].as_str().expect("name"))
        .collect()
}

#[test]
fn pages_are_of_one_version() {
    let server = server();
    let mut client = Client::admin(&server);
    for n in 0..5 {
        server.create(&pod(&format!("p{n}"), "")).expect("created");
    }
    let first = client.get("/api/v1/pods?limit=2").expect(200);
    assert_eq!(names(&first), ["p0", "p1"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    assert!(
        first["items"][0].get("kind").is_none(),
        "elements do not say what they are"
    );
    server
        .delete("pods", "default", "p3", Some(0))
        .expect("deleted");
    let token = first["metadata"]["continue"].as_str().expect("more");
    let second = client
        .get(&format!("/api/v1/pods?limit=2&continue={token}"))
        .expect(200);
    assert_eq!(names(&second), ["p2", "p3"], "as it was");
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let zero = client
        .get("/api/v1/pods?limit=2&resourceVersion=0")
        .expect(200);
    assert_eq!(names(&zero).len(), 4, "0 has no pages");
    let old = format!("/api/v1/pods?limit=2&continue={token}");
    server.compact();
    let error = client.get(&old).expect(410);
    assert_eq!(error["reason"], "Expired");
    let both = client.get(&format!("{old}&resourceVersion=5")).refusal(400);
    assert_eq!(
        both,
        "specifying resource version is not allowed when using continue"
    );
}

#[test]
fn continue_tokens_expire() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    server.create(&pod("b", "")).expect("created");
    let list = client.get("/api/v1/pods?limit=1").expect(200);
    let uri = format!(
        "/api/v1/pods?limit=1&continue={}",
        list["metadata"]["continue"].as_str().expect("more")
    );
    client.get(&uri).expect(200);
    server.advance(Duration::from_secs(301));
    client.get(&uri).expect(410);
}

#[test]
fn versions_of_lists() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    let rv = server.resource_version();
    server.create(&pod("b", "")).expect("created");
    let not_older = format!("/api/v1/pods?resourceVersion={rv}");
    assert_eq!(names(&client.get(&not_older).expect(200)), ["a", "b"]);
    let future = client
        .get("/api/v1/pods?resourceVersion=999999")
        .expect(504);
    assert_eq!(future["reason"], "Timeout");
    assert_eq!(
        future["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    client.get("/api/v1/pods?resourceVersion=x").refusal(400);
    client
        .get("/api/v1/pods?resourceVersionMatch=Exact")
        .refusal(422);
}

#[test]
fn forms() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    client.accept =
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
            .to_owned();
    let list = client.get("/api/v1/pods").expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0].get("spec").is_none());
    client.accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1".to_owned();
    let one = client.get("/api/v1/namespaces/default/pods/a").expect(200);
    assert_eq!(one["kind"], "PartialObjectMetadata");
    client.accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json".to_owned();
    let table = client.get("/api/v1/pods").expect(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][1], "0/1");
    client.accept = "application/vnd.kubernetes.protobuf".to_owned();
    client.get("/api/v1/pods").refusal(406);
    client.accept = "application/vnd.kubernetes.protobuf,application/json".to_owned();
    assert_eq!(client.get("/api/v1/pods").expect(200)["kind"], "PodList");
}

#[test]
fn compression_begins_at_a_size() {
    let server = server();
    let mut client = Client::admin(&server);
    client.gzip = true;
    let small = client.get("/api/v1/namespaces/default");
    assert_eq!(small.header("content-encoding"), "");
    assert_ne!(
        small.header("content-length"),
        "",
        "short answers have a length"
    );
    let text = "x".repeat(200_000);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"a": text}});
    server.create(&map).expect("created");
    let big = client.get("/api/v1/namespaces/default/configmaps/big");
    assert_eq!(big.header("content-encoding"), "gzip");
    assert_eq!(big.header("transfer-encoding"), "chunked");
    assert_eq!(big.expect(200)["data"]["a"], text);
    client.gzip = false;
    let plain = client.get("/api/v1/namespaces/default/configmaps/big");
    assert_eq!(plain.header("content-encoding"), "");
    assert_eq!(plain.expect(200)["data"]["a"], text);
}

#[test]
fn a_watch_follows_its_selector() {
    let server = server();
    let mut client = Client::admin(&server);
    let rv = server.resource_version();
    client.watch(&format!(
        "/api/v1/pods?watch=1&resourceVersion={rv}&fieldSelector=spec.nodeName%3Dn1,status.phase%21%3DFailed"
    ));
    server.create(&pod("other", "n2")).expect("created");
    let made = server.create(&pod("a", "n1")).expect("created");
    let next = |client: &mut Client| client.event().expect("line").expect("event");
    let (ty, object) = next(&mut client);
    assert_eq!((ty.as_str(), &object), ("ADDED", &made));
    server
        .patch(
            "pods",
            "default",
            "a",
            "status",
            &json!({"status": {"phase": "Running"}}),
        )
        .expect("patched");
    let (ty, object) = next(&mut client);
    assert_eq!(
        (ty.as_str(), &object["status"]["phase"]),
        ("MODIFIED", &json!("Running"))
    );
    let failed = server
        .patch(
            "pods",
            "default",
            "a",
            "status",
            &json!({"status": {"phase": "Failed"}}),
        )
        .expect("patched");
    let (ty, object) = next(&mut client);
    assert_eq!(ty, "DELETED", "left the selection");
    assert_eq!(
        object["status"]["phase"], "Running",
        "as it last was within"
    );
    assert_eq!(
        object["metadata"]["resourceVersion"],
        failed["metadata"]["resourceVersion"]
    );
}

#[test]
fn a_deletion_is_seen_to_begin_and_to_end() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    let rv = server.resource_version();
    client.accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1".to_owned();
    client.watch(&format!(
        "/api/v1/namespaces/default/pods?watch=true&resourceVersion={rv}"
    ));
    server
        .delete("pods", "default", "a", Some(0))
        .expect("deleted");
    let (ty, object) = client.event().expect("line").expect("event");
    assert_eq!(ty, "MODIFIED");
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["metadata"]["deletionGracePeriodSeconds"], 0);
    let (ty, object) = client.event().expect("line").expect("event");
    assert_eq!(ty, "DELETED");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        server.resource_version().to_string()
    );
}

#[test]
fn watches_begin_with_what_is_there() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    client.watch("/api/v1/pods?watch=1&timeoutSeconds=1");
    assert_eq!(client.event().expect("line").expect("event").0, "ADDED");
    assert_eq!(client.event().expect("end"), None, "the time is over");
    assert_eq!(
        client.get("/api/v1/pods").code,
        200,
        "the connection lives on"
    );
}

#[test]
fn a_watch_ends_with_a_bookmark() {
    let server = server();
    let mut client = Client::admin(&server);
    let rv = server.resource_version();
    client.watch(&format!(
        "/api/v1/pods?watch=1&resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=3"
    ));
    let (ty, object) = client.event().expect("line").expect("event");
    assert_eq!(ty, "BOOKMARK");
    assert_eq!(object["spec"], json!({"containers": null}));
    assert_eq!(client.event().expect("end"), None);
}

#[test]
fn a_watch_from_too_long_ago_is_an_error_with_status_200() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    server.compact();
    let head = client.watch("/api/v1/pods?watch=1&resourceVersion=1");
    assert_eq!(head.code, 200);
    let (ty, object) = client.event().expect("line").expect("event");
    assert_eq!(ty, "ERROR");
    assert_eq!(
        (&object["code"], &object["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert_eq!(client.event().expect("end"), None);
}

#[test]
fn after_a_restore_old_versions_are_the_future() {
    let server = server();
    let mut client = Client::admin(&server);
    server.create(&pod("a", "")).expect("created");
    let backup = server.resource_version();
    server.create(&pod("b", "")).expect("created");
    server.create(&pod("c", "")).expect("created");
    let seen = server.resource_version();
    assert!(server.restore(backup));
    assert_eq!(server.resource_version(), backup);
    // A watch from before the restore hears nothing of what happens below its version.
    client.watch(&format!(
        "/api/v1/pods?watch=1&resourceVersion={seen}&timeoutSeconds=1"
    ));
    server.create(&pod("d", "")).expect("created");
    assert_eq!(client.event().expect("end"), None);
    assert_eq!(names(&client.get("/api/v1/pods").expect(200)), ["a", "d"]);
}

#[test]
fn what_is_no_path() {
    let server = server();
    let mut client = Client::admin(&server);
    for uri in [
        "/api/v1/podz",
        "/api/v2/pods",
        "/apis/apps/v1/statefulsets",
        "/api/v1/namespaces/default/pods/a/nothing",
        "/openapi/v3",
        "/nothing",
    ] {
        let message = client.get(uri).refusal(404);
        assert_eq!(
            message, "the server could not find the requested resource",
            "{uri}"
        );
    }
    client.send("PUT", "/api/v1/pods", &json!({})).refusal(405);
    client
        .send("POST", "/api/v1/pods", &pod("a", ""))
        .refusal(405);
    client
        .get("/api/v1/namespaces/default/pods/none")
        .refusal(404);
    assert_eq!(client.get("/version").expect(200)["gitVersion"], "v1.36.0");
    assert_eq!(client.get("/readyz").body, b"ok");
}
