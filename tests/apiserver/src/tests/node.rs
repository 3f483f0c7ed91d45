//! What a node may do: the Node authorizer and NodeRestriction.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::reads::pod;
use crate::TestServer;
use crate::clock::instant;

fn node_object(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}})
}

fn start() -> (TestServer, Client) {
    let server = TestServer::builder().start().expect("server");
    let client = Client::node(&server, "n1");
    (server, client)
}

#[test]
fn the_authorizer_learns_late_of_a_pod() {
    let uri = "/api/v1/namespaces/default/configmaps/m";
    let setting = |lag| {
        let server = TestServer::builder()
            .graph_lag(lag)
            .start()
            .expect("server");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        server.create(&map).expect("map");
        let mut pod = pod("p", "n1");
        pod["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "m"}}]);
        server.create(&pod).expect("pod");
        let node = Client::node(&server, "n1");
        (server, node)
    };
    let (_server, mut node) = setting(Duration::from_secs(3600));
    let why = node.get(uri).refusal(403);
    assert!(why.contains("no relationship found"), "{why}");
    let (_server, mut node) = setting(Duration::from_millis(100));
    let end = instant() + Duration::from_secs(60);
    while node.get(uri).code != 200 {
        assert!(instant() < end, "never");
        thread::park_timeout(Duration::from_millis(20));
    }
}

// AUTHZ-02 AUTHZ-09 AUTHZ-10
#[test]
fn its_own_node() {
    let (server, mut node) = start();
    let made = node
        .send("POST", "/api/v1/nodes", &node_object("n1"))
        .expect(201);
    assert_eq!(
        made["spec"]["taints"][0]["key"], "node.kubernetes.io/not-ready",
        "nobody has looked at it yet"
    );
    let message = node
        .send("POST", "/api/v1/nodes", &node_object("n2"))
        .refusal(403);
    assert!(
        message.contains("node \"n1\" is not allowed to modify node \"n2\""),
        "{message}"
    );
    node.get("/api/v1/nodes/n1").expect(200);
    node.get("/api/v1/nodes?fieldSelector=metadata.name%3Dn1")
        .expect(200);
    assert!(
        node.get("/api/v1/nodes")
            .refusal(403)
            .ends_with("node 'n1' cannot read all nodes, only its own Node object")
    );
    node.get("/api/v1/nodes/n2").refusal(403);
    node.send("DELETE", "/api/v1/nodes/n1", &Value::Null)
        .refusal(403);
    let uri = "/api/v1/nodes/n1";
    for (patch, want) in [
        (
            json!({"spec": {"taints": null}}),
            "is not allowed to modify taints",
        ),
        (
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x"}]}}),
            "is not allowed to modify ownerReferences",
        ),
        (
            json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}),
            "is not allowed to modify labels: node-restriction.kubernetes.io/a",
        ),
        (
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}),
            "is not allowed to modify labels: node-role.kubernetes.io/worker",
        ),
        (
            json!({"metadata": {"labels": {"foo.k8s.io/x": ""}}}),
            "is not allowed to modify labels: foo.k8s.io/x",
        ),
    ] {
        let message = node.send("PATCH", uri, &patch).refusal(403);
        assert!(message.contains(want), "{message}");
    }
    let free = json!({"metadata": {"labels": {
        "example.com/x": "y", "kubelet.kubernetes.io/x": "y", "topology.kubernetes.io/zone": "z"}}});
    node.send("PATCH", uri, &free).expect(200);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"cpu": "4"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
    let written = node
        .send("PATCH", "/api/v1/nodes/n1/status", &status)
        .expect(200);
    assert_eq!(written["status"]["capacity"]["cpu"], "4");
    assert!(written["status"].get("allocatable").is_some(), "defaulted");
    // AUTHZ-09: a status that is put without the taints takes them away.
    let bare = json!({"metadata": {"name": "n1"}, "status": {}});
    let message = node
        .send("PUT", "/api/v1/nodes/n1/status", &bare)
        .refusal(403);
    assert!(message.contains("is not allowed to modify taints"));
    let unsorted = json!({"status": {"declaredFeatures": ["B", "A"]}});
    let message = node
        .send("PATCH", "/api/v1/nodes/n1/status", &unsorted)
        .refusal(422);
    assert!(message.contains("list must be sorted alphabetically"));
    // A replace directive takes the list as it is: one type twice is two, one address twice is a mistake.
    let list = |second: &str| {
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": second}, {"$patch": "replace"}]}})
    };
    let message = node
        .send("PATCH", "/api/v1/nodes/n1/status", &list("10.0.0.1"))
        .refusal(422);
    assert!(message.contains("status.addresses[1]: Duplicate value"));
    let written = node
        .send("PATCH", "/api/v1/nodes/n1/status", &list("fd00::1"))
        .expect(200);
    assert_eq!(written["status"]["addresses"][1]["address"], "fd00::1");
    let bad = json!({"metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/control-plane": ""}}});
    server.delete("nodes", "", "n1", None).expect("deleted");
    let message = node.send("POST", "/api/v1/nodes", &bad).refusal(403);
    assert!(message.contains(
        "is not allowed to set the following labels: node-role.kubernetes.io/control-plane"
    ));
}

// AUTHZ-03 AUTHZ-12
#[test]
fn its_own_pods() {
    let (server, mut node) = start();
    server.create(&pod("mine", "n1")).expect("created");
    server.create(&pod("other", "n2")).expect("created");
    let base = "/api/v1/namespaces/default/pods";
    node.get(&format!("{base}/mine")).expect(200);
    assert!(
        node.get(&format!("{base}/other"))
            .refusal(403)
            .ends_with("no relationship found between node 'n1' and this object")
    );
    node.get("/api/v1/pods").refusal(403);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2")
        .refusal(403);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%21%3Dn2")
        .refusal(403);
    let list = node
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1,status.phase%21%3DFailed")
        .expect(200);
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    let status = json!({"status": {"phase": "Running"}});
    node.send("PATCH", &format!("{base}/mine/status"), &status)
        .expect(200);
    let message = node
        .send("PATCH", &format!("{base}/other/status"), &status)
        .refusal(403);
    assert!(
        message.contains("can only update pod status for pods with spec.nodeName set to itself")
    );
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let message = node
        .send("PATCH", &format!("{base}/mine/status"), &labels)
        .refusal(403);
    assert!(message.contains("cannot update labels through pod status"));
    node.send("PATCH", &format!("{base}/mine"), &labels)
        .refusal(403);
    let message = node
        .send("DELETE", &format!("{base}/other"), &Value::Null)
        .refusal(403);
    assert!(message.contains("can only delete pods with spec.nodeName set to itself"));
    let now = json!({"gracePeriodSeconds": 0});
    node.send("DELETE", &format!("{base}/mine"), &now)
        .expect(200);
    // Lost to the deletion, and no mistake: the only refusal that does not count.
    server.clear_audit();
    node.get(&format!("{base}/mine")).refusal(403);
    assert!(server.wrong().is_empty());
}

#[test]
fn before_1_32_reads_were_wide() {
    let server = TestServer::builder().version(31).start().expect("server");
    let mut node = Client::node(&server, "n1");
    server.create(&pod("other", "n2")).expect("created");
    node.get("/api/v1/pods").expect(200);
    node.get("/api/v1/nodes").expect(200);
    node.get("/api/v1/namespaces/default/pods/other")
        .expect(200);
}

// AUTHZ-04 AUTHZ-05 AUTHZ-06
#[test]
fn what_its_pods_refer_to() {
    let (server, mut node) = start();
    let with = |kind: &str, name: &str| {
        server
            .create(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}))
            .expect("created");
    };
    for name in ["env", "volume", "pull", "free"] {
        with("Secret", name);
    }
    with("ConfigMap", "map");
    with("PersistentVolumeClaim", "claim");
    with("PersistentVolumeClaim", "a-scratch");
    server
        .create(
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {"claimRef": {"namespace": "default", "name": "claim"}, "csi": {"driver": "d",
                "nodePublishSecretRef": {"name": "free", "namespace": "kube-system"}}}}),
        )
        .expect("created");
    let mut new = pod("a", "n1");
    new["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    new["spec"]["containers"][0]["env"] =
        json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}}]);
    new["spec"]["volumes"] = json!([
        {"name": "s", "secret": {"secretName": "volume"}},
        {"name": "m", "projected": {"sources": [{"configMap": {"name": "map"}}]}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]);
    let base = "/api/v1/namespaces/default";
    node.get(&format!("{base}/secrets/env")).refusal(403);
    server.create(&new).expect("created");
    for uri in [
        "secrets/env",
        "secrets/volume",
        "secrets/pull",
        "secrets?fieldSelector=metadata.name%3Denv",
        "configmaps/map",
        "configmaps/kube-root-ca.crt",
        "persistentvolumeclaims/claim",
        "persistentvolumeclaims/a-scratch",
        "serviceaccounts/default",
    ] {
        node.get(&format!("{base}/{uri}")).expect(200);
    }
    node.get("/api/v1/persistentvolumes/pv").expect(200);
    assert_eq!(
        node.get("/api/v1/namespaces/kube-system/secrets/free").code,
        404,
        "through the volume"
    );
    for uri in [
        "secrets/free",
        "secrets",
        "secrets/none",
        "configmaps",
        "configmaps/none",
    ] {
        node.get(&format!("{base}/{uri}")).refusal(403);
    }
    let body = json!({"metadata": {"name": "x"}});
    node.send("POST", &format!("{base}/secrets"), &body)
        .refusal(403);
    server
        .delete("pods", "default", "a", Some(0))
        .expect("deleted");
    // A race against the deletion is no mistake.
    let before = server.wrong().len();
    node.get(&format!("{base}/secrets/env")).refusal(403);
    assert_eq!(server.wrong().len(), before);
    node.get(&format!("{base}/secrets/none")).refusal(403);
    assert_eq!(server.wrong().len(), before + 1);
}

// AUTHZ-11
#[test]
fn mirrors_only() {
    let (server, mut node) = start();
    let made = server.create(&node_object("n1")).expect("created");
    let uri = "/api/v1/namespaces/kube-system/pods";
    let mirror = |change: &dyn Fn(&mut Value)| {
        let mut new = pod("m-n1", "n1");
        new["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
        new["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1",
            "uid": made["metadata"]["uid"], "controller": true}]);
        change(&mut new);
        new
    };
    for (new, want) in [
        (
            mirror(&|p| p["metadata"]["annotations"] = json!({})),
            "pod does not have \"kubernetes.io/config.mirror\" annotation",
        ),
        (
            mirror(&|p| p["spec"]["nodeName"] = json!("n2")),
            "can only create pods with spec.nodeName set to itself",
        ),
        (
            mirror(&|p| p["metadata"]["ownerReferences"] = json!([])),
            "can only create pods with an owner reference set to itself",
        ),
        (
            mirror(&|p| p["metadata"]["ownerReferences"][0]["uid"] = json!("x")),
            "UID mismatch: expected x got",
        ),
        (
            mirror(&|p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false)),
            "with a controller owner reference set to itself",
        ),
        (
            mirror(&|p| p["spec"]["serviceAccountName"] = json!("default")),
            "can not create pods that reference serviceaccounts",
        ),
        (
            mirror(&|p| p["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "c"}}])),
            "can not create pods that reference configmaps",
        ),
    ] {
        let message = node.send("POST", uri, &new).refusal(403);
        assert!(message.contains(want), "{message}");
    }
    let mirrored = node.send("POST", uri, &mirror(&|_| ())).expect(201);
    assert!(mirrored["spec"].get("serviceAccountName").is_none());
    assert!(
        mirrored["spec"].get("volumes").is_none(),
        "no token is mounted"
    );
    // A mirror grants nothing.
    let roots = "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt";
    node.get(roots).refusal(403);
    let taken = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "other"}}});
    let message = Client::admin(&server)
        .send("PATCH", &format!("{uri}/m-n1"), &taken)
        .refusal(422);
    assert!(message.contains("may not remove or update mirror pod annotation"));
}

// AUTHZ-02 AUTHZ-07
#[test]
fn leases_and_the_rest() {
    let (server, mut node) = start();
    let base = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    node.send("POST", base, &lease("n1")).expect(201);
    node.get(&format!("{base}/n1")).expect(200);
    let message = node.send("POST", base, &lease("n2")).refusal(403);
    assert!(
        message.contains("can only access node lease with the same name as the requesting node")
    );
    node.get(&format!("{base}/n2")).refusal(403);
    node.get(base).refusal(403);
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    node.send("POST", elsewhere, &lease("n1")).refusal(403);
    for uri in [
        "/api/v1/services",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        "/version",
        "/api/v1",
    ] {
        node.get(uri).expect(200);
    }
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n1"}, "reason": "x"});
    node.send("POST", "/api/v1/namespaces/default/events", &event)
        .expect(201);
    for uri in ["/api/v1/namespaces", "/api/v1/serviceaccounts", "/metrics"] {
        node.get(uri).refusal(403);
    }
    let counted = server.wrong();
    assert_eq!(counted.len(), 7, "each refusal is noted: {counted:?}");
}

// AUTHZ-13
#[test]
fn tokens_of_its_pods() {
    let (server, mut node) = start();
    let mut new = pod("a", "n1");
    new["spec"]["volumes"] = json!([{"name": "t", "projected": {"sources": [
        {"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]);
    let made = server.create(&new).expect("created");
    let other = server.create(&pod("b", "n2")).expect("created");
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let ask = |node: &mut Client, audiences: Value, name: &str, uid: &Value| {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        node.send(
            "POST",
            uri,
            &json!({"spec": {"audiences": audiences, "boundObjectRef": bound}}),
        )
    };
    let uid = &made["metadata"]["uid"];
    ask(&mut node, json!([]), "a", uid).expect(201);
    ask(&mut node, json!(["vault"]), "a", uid).expect(201);
    for (audiences, name, uid, want) in [
        (
            json!(["elsewhere"]),
            "a",
            uid,
            "audience \"elsewhere\" not found in pod spec volume",
        ),
        (
            json!(["a", "b"]),
            "a",
            uid,
            "node may only request 0 or 1 audiences",
        ),
        (
            json!([]),
            "a",
            &json!(""),
            "with a pod binding without a uid",
        ),
        (
            json!([]),
            "a",
            &json!("x"),
            "does not match the UID in record",
        ),
        (
            json!([]),
            "b",
            &other["metadata"]["uid"],
            "token bound to a pod scheduled on a different node",
        ),
    ] {
        let message = ask(&mut node, audiences, name, uid).refusal(403);
        assert!(message.contains(want), "{message}");
    }
    let message = node.send("POST", uri, &json!({"spec": {}})).refusal(403);
    assert!(message.contains("node requested token not bound to a pod"));
    let unrelated = "/api/v1/namespaces/kube-system/serviceaccounts/default/token";
    node.send("POST", unrelated, &json!({"spec": {}}))
        .refusal(403);
}
