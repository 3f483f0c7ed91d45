//! Who is who, certificates on request, tokens.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::client::Client;
use super::reads::pod;
use crate::TestServer;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

#[test]
fn who_may_ask_what() {
    let server = TestServer::builder().start().expect("server");
    let uri = "/api/v1/pods";
    let strange = Client::anonymous(&server).get(uri).refusal(403);
    assert!(strange.contains("User \"system:anonymous\" cannot list resource \"pods\""));
    // BOOT-01: what a bootstrap token is.
    let mut joining = Client::token(&server, crate::BOOTSTRAP_TOKEN);
    let refused = joining.get(uri).refusal(403);
    assert!(refused.contains("User \"system:bootstrap:abcdef\""));
    let wrong = Client::token(&server, "wrong").get(uri).refusal(401);
    assert_eq!(wrong, "Unauthorized");
    assert_eq!(Client::anonymous(&server).get("/readyz").code, 200);
    Client::anonymous(&server).get("/api").refusal(403);
}

#[test]
fn a_proxy_lists_and_gets_nothing() {
    // PROX-02: all that it may have are lists and watches.
    let server = TestServer::builder().start().expect("server");
    let proxy = server.credentials("system:kube-proxy", &[], Duration::from_secs(60));
    let mut proxy = Client::certificate(&server, &proxy.expect("credentials"));
    for (name, own) in [("web-1", "web"), ("other-1", "other")] {
        let labels = json!({"kubernetes.io/service-name": own});
        server
            .create(&json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "labels": labels}, "endpoints": [], "ports": []}))
            .expect("created");
    }
    let path = "/apis/discovery.k8s.io/v1/endpointslices";
    let of_one = "?labelSelector=kubernetes.io%2Fservice-name%20in%20(web)";
    let found = proxy.get(&format!("{path}{of_one}")).expect(200);
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["items"][0]["metadata"]["name"], "web-1");
    proxy.get("/api/v1/services").expect(200);
    for refused in [
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1",
        "/api/v1/namespaces/default/services/kubernetes",
    ] {
        proxy.get(refused).refusal(403);
    }
}

#[test]
fn certificates_that_do_not_count() {
    let server = TestServer::builder().start().expect("server");
    let other = TestServer::builder().start().expect("server");
    let expired = server
        .credentials("system:node:n1", &["system:nodes"], Duration::ZERO)
        .expect("credentials");
    Client::certificate(&server, &expired)
        .get("/api")
        .refusal(401);
    let foreign = other
        .credentials("admin", &["system:masters"], Duration::from_secs(60))
        .expect("credentials");
    Client::certificate(&server, &foreign)
        .get("/api")
        .refusal(401);
    let short = server
        .credentials("admin", &["system:masters"], Duration::from_secs(60))
        .expect("credentials");
    let mut client = Client::certificate(&server, &short);
    client.get("/api").expect(200);
    server.advance(Duration::from_secs(61));
    client.get("/api").refusal(401);
}

fn request(
    name: &str,
    organisation: &str,
    sans: &[&str],
    usages: &[&str],
    signer: &str,
) -> (Value, KeyPair) {
    let key = KeyPair::generate().expect("key");
    let sans: Vec<String> = sans.iter().map(|s| (*s).to_owned()).collect();
    let mut params = CertificateParams::new(sans).expect("params");
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organisation);
    params.distinguished_name.push(DnType::CommonName, name);
    let pem = params
        .serialize_request(&key)
        .expect("request")
        .pem()
        .expect("pem");
    let csr = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {"request": STANDARD.encode(pem), "signerName": signer, "usages": usages}});
    (csr, key)
}

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";

fn client_request(node: &str) -> (Value, KeyPair) {
    request(
        &format!("system:node:{node}"),
        "system:nodes",
        &[],
        &["digital signature", "client auth"],
        CLIENT,
    )
}

// BOOT-11 BOOT-12
#[test]
fn what_signers_demand() {
    let server = TestServer::builder().start().expect("server");
    let mut node = Client::node(&server, "n1");
    let serving = "kubernetes.io/kubelet-serving";
    let usages = ["digital signature", "server auth"];
    let (csr, _) = request(
        "system:node:n1",
        "system:nodes",
        &["n1", "10.0.0.1"],
        &usages,
        serving,
    );
    let made = node.send("POST", REQUESTS, &csr).expect(201);
    let name = made["metadata"]["name"].as_str().expect("name").to_owned();
    let read = |name: &str| {
        server
            .get("certificatesigningrequests", "", name)
            .expect("there")
    };
    assert!(
        read(&name)["status"].get("conditions").is_none(),
        "serving waits"
    );
    server.decide_request(&name, true).expect("approved");
    assert!(read(&name)["status"]["certificate"].is_string());
    // Not its own name: NodeRestriction.
    let (csr, _) = client_request("n2");
    let message = node.send("POST", REQUESTS, &csr).refusal(403);
    assert!(
        message.contains("can only create a node CSR with CN=system:node:n1"),
        "{message}"
    );
    let mut bootstrap = Client::token(&server, crate::BOOTSTRAP_TOKEN);
    for (what, csr) in [
        (
            "a name beside",
            request(
                "system:node:n1",
                "system:nodes",
                &["n1"],
                &["digital signature", "client auth"],
                CLIENT,
            ),
        ),
        (
            "another organisation",
            request(
                "system:node:n1",
                "system:masters",
                &[],
                &["digital signature", "client auth"],
                CLIENT,
            ),
        ),
        (
            "more usages",
            request(
                "system:node:n1",
                "system:nodes",
                &[],
                &["digital signature", "client auth", "server auth"],
                CLIENT,
            ),
        ),
    ] {
        let made = bootstrap.send("POST", REQUESTS, &csr.0).expect(201);
        let name = made["metadata"]["name"].as_str().expect("name");
        assert!(read(name)["status"].get("conditions").is_none(), "{what}");
        server.decide_request(name, true).expect("approved");
        assert_eq!(
            read(name)["status"]["conditions"][1]["type"],
            "Failed",
            "{what}"
        );
    }
    let (mut csr, _) = client_request("n1");
    csr["spec"]["usages"] = json!(["digital signature", "magic"]);
    csr["spec"]["expirationSeconds"] = json!(60);
    let message = bootstrap.send("POST", REQUESTS, &csr).refusal(422);
    assert!(message.contains("spec.usages[1]: Unsupported value: \"magic\""));
    assert!(message.contains("may not specify a duration less than 600 seconds"));
    csr["spec"]["request"] = json!(STANDARD.encode("nonsense"));
    let message = bootstrap.send("POST", REQUESTS, &csr).refusal(422);
    assert!(message.contains("PEM block type must be CERTIFICATE REQUEST"));
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    bootstrap
        .send("PATCH", &format!("{REQUESTS}/{name}/approval"), &approve)
        .refusal(403);
}

// TOK-01
#[test]
fn tokens_of_service_accounts() {
    let server = TestServer::builder().start().expect("server");
    let mut admin = Client::admin(&server);
    let made = server.create(&pod("a", "n1")).expect("created");
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let uid = made["metadata"]["uid"].clone();
    let body = |seconds: i64, uid: &Value| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [],
            "expirationSeconds": seconds, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid}}})
    };
    let got = admin.send("POST", uri, &body(600, &uid)).expect(201);
    let token = got["status"]["token"].as_str().expect("token").to_owned();
    assert!(got["status"]["expirationTimestamp"].is_string());
    let claims: Value = {
        use base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let part = token.split('.').nth(1).expect("claims");
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("base64")).expect("json")
    };
    assert_eq!(claims["sub"], "system:serviceaccount:default:default");
    assert_eq!(claims["kubernetes.io"]["pod"]["uid"], uid);
    assert_eq!(claims["kubernetes.io"]["node"]["name"], "n1");
    let message = admin.send("POST", uri, &body(599, &uid)).refusal(422);
    assert!(message.contains("may not specify a duration less than 10 minutes"));
    let message = admin
        .send("POST", uri, &body(600, &json!("other")))
        .refusal(409);
    assert!(message.contains("does not match the UID in record"));

    let review = "/apis/authentication.k8s.io/v1/tokenreviews";
    let ask = |admin: &mut Client, audiences: Value| {
        admin
            .send(
                "POST",
                review,
                &json!({"spec": {"token": token, "audiences": audiences}}),
            )
            .expect(201)["status"]
            .clone()
    };
    let status = ask(&mut admin, json!([]));
    assert_eq!(status["authenticated"], true);
    assert_eq!(
        status["user"]["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["a"])
    );
    assert!(
        ask(&mut admin, json!(["elsewhere"]))
            .get("authenticated")
            .is_none()
    );
    let mut account = Client::token(&server, &token);
    let message = account.get("/api/v1/namespaces/default/pods").refusal(403);
    assert!(
        message.contains(
            "User \"system:serviceaccount:default:default\" cannot list resource \"pods\""
        )
    );
    server.grant("system:serviceaccounts:default", "list", "pods");
    account.get("/api/v1/namespaces/default/pods").expect(200);
    server
        .delete("pods", "default", "a", Some(0))
        .expect("deleted");
    assert!(
        ask(&mut admin, json!([])).get("authenticated").is_none(),
        "gone with its pod"
    );
}
