//! Certificates of pods, seen from inside a container: those that they trust, and their own.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::sys::signal::Signal;
use picolet_test_apiserver::TestServer;
use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    host::{Host, IDLE, PATIENCE, able, sh, with},
    pods::{cluster, finish, pod, wait_gone, wait_ready},
};

fn says(host: &Host, script: &str) -> String {
    let words = ["exec", "web", "-c", "c", "--", "sh", "-c", script];
    host.ok(&words).trim_end().to_owned()
}

/// A certificate that signs itself, PEM.
fn authority() -> String {
    let key = KeyPair::generate().expect("key");
    let params = CertificateParams::new(Vec::new()).expect("parameters");
    params.self_signed(&key).expect("certificate").pem()
}

fn create_bundle(server: &TestServer, name: &str, signer: &str, text: &str) {
    let metadata = json!({"name": name, "labels": {"live": "yes"}});
    let spec = json!({"signerName": signer, "trustBundle": text});
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": metadata, "spec": spec});
    server.create(&object).expect("created");
}

/// The pod `web`, which mounts a projected volume of these sources at `/v`.
fn web(sources: Value) -> Value {
    let volume = json!({"name": "v", "projected": {"sources": sources}});
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let spec = json!({"containers": [with(sh("c", IDLE), mount)], "volumes": [volume]});
    pod("web", spec)
}

#[test]
fn a_pod_trusts_what_its_bundles_have() {
    // CTB-01 CTB-02 VOL-10
    if !able() {
        return;
    }
    let (host, server) = cluster(&["--sync-frequency=2s"]);
    let [one, two, other] = [authority(), authority(), authority()];
    create_bundle(&server, "e.com:s:one", "e.com/s", &one);
    create_bundle(&server, "e.com:other:x", "e.com/other", &other);
    create_bundle(&server, "named", "", &one);
    let selected = json!({"signerName": "e.com/s", "labelSelector": {"matchExpressions": [{"key": "live", "operator": "Exists"}]}, "path": "signer.crt"});
    let named = json!({"name": "named", "path": "named.crt"});
    let none = json!({"name": "none", "optional": true, "path": "none.crt"});
    let sources = [selected, named, none].map(|source| json!({"clusterTrustBundle": source}));
    server.create(&web(json!(sources))).expect("created");
    wait_ready(&server, "web");
    assert_eq!(says(&host, "cat /v/signer.crt"), one.trim_end());
    assert_eq!(says(&host, "cat /v/named.crt"), one.trim_end());
    assert_eq!(says(&host, "cat /v/none.crt"), "");
    assert_eq!(says(&host, "grep -c ' /v tmpfs ro' /proc/mounts"), "1");
    let before = says(&host, "readlink /v/..data");
    create_bundle(&server, "e.com:s:two", "e.com/s", &two);
    host.until("the second is there", |host| {
        let text = says(host, "cat /v/signer.crt");
        (text.matches("BEGIN").count() == 2, text)
    });
    let after = says(&host, "readlink /v/..data");
    assert_ne!(before, after);
    // The same set again, from a third bundle.
    create_bundle(&server, "e.com:s:again", "e.com/s", &format!("{two}{one}"));
    let reads = || {
        let asked = server.audit();
        let lists = asked
            .iter()
            .filter(|e| e.uri.contains("clustertrustbundles?"));
        lists.count()
    };
    let was = reads();
    host.until("it is read twice more", |_| {
        (reads() > was + 1, format!("{}", reads()))
    });
    assert_eq!(says(&host, "readlink /v/..data"), after);
    finish(host, &server);
}

/// The signer of a cluster.
struct Signer(Issuer<'static, KeyPair>);

impl Signer {
    fn new() -> Self {
        let params = CertificateParams::new(Vec::new()).expect("parameters");
        Self(Issuer::new(params, KeyPair::generate().expect("key")))
    }

    /// Answers a request: seconds from now to the refresh.
    fn issue(&self, server: &TestServer, request: &Value, refresh_s: i64) {
        let stub = request["spec"]["stubPKCS10Request"]
            .as_str()
            .expect("PKCS#10");
        let der = STANDARD.decode(stub).expect("base64");
        let mut csr = CertificateSigningRequestParams::from_der(&der.into()).expect("CSR");
        let now = OffsetDateTime::now_utc();
        let at = |s: i64| now + time::Duration::seconds(s);
        (csr.params.not_before, csr.params.not_after) = (at(-60), at(3600));
        let text = |s: i64| {
            at(s)
                .replace_nanosecond(0)
                .expect("time")
                .format(&Rfc3339)
                .expect("text")
        };
        let status = json!({"status": {
            "conditions": [{"type": "Issued", "status": "True", "reason": "Test", "message": ""}],
            "certificateChain": csr.signed_by(&self.0).expect("signed").pem(),
            "notBefore": text(-60), "beginRefreshAt": text(refresh_s), "notAfter": text(3600),
        }});
        patch_status(server, request, &status);
    }
}

fn patch_status(server: &TestServer, request: &Value, status: &Value) {
    let name = request["metadata"]["name"].as_str().expect("name");
    let kind = "podcertificaterequests";
    server
        .patch(kind, "default", name, "status", status)
        .expect("answered");
}

/// Waits for a request that nobody has answered.
fn open_request(server: &TestServer) -> Value {
    server.wait_for("a request", PATIENCE, |view| {
        let all = view.list("podcertificaterequests", "default");
        let mut open = all
            .into_iter()
            .filter(|r| r["status"]["conditions"].is_null());
        open.next().cloned()
    })
}

fn requests(server: &TestServer) -> usize {
    let asked = server.audit();
    let posts = asked
        .iter()
        .filter(|e| e.method == "POST" && e.uri.contains("podcertificaterequests"));
    posts.count()
}

#[test]
fn a_pod_has_a_certificate_of_its_own() {
    // PCT-01 PCT-02 PCT-03 PCT-04 PCT-05 VOL-10
    if !able() {
        return;
    }
    let (mut host, server) = cluster(&["--sync-frequency=2s"]);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "default"}});
    server.create(&account).expect("created");
    let source = json!({"podCertificate": {"signerName": "e.com/s", "keyType": "ECDSAP256", "credentialBundlePath": "bundle",
        "keyPath": "key", "certificateChainPath": "chain"}});
    let mut pod = web(json!([source]));
    pod["spec"]["serviceAccountName"] = "robot".into();
    server.create(&pod).expect("created");
    let signer = Signer::new();
    signer.issue(&server, &open_request(&server), 3000);
    wait_ready(&server, "web");
    assert_eq!(
        says(
            &host,
            "cat /v/key /v/chain | cmp - /v/bundle && grep -c BEGIN /v/bundle"
        ),
        "2"
    );
    assert_eq!(says(&host, "grep -c ' /v tmpfs ro' /proc/mounts"), "1");
    let first = says(&host, "cat /v/bundle");
    // Another agent, without the apiserver, asks for none: the pod has its pair.
    server.set_down(true);
    host.end_agent(Signal::SIGTERM);
    host.start_agent();
    host.until("the agent answers", |host| {
        let output = host.cli(&["exec", "web", "-c", "c", "--", "true"]);
        (output.status.success(), crate::host::text(&output.stderr))
    });
    assert_eq!(says(&host, "cat /v/bundle"), first);
    server.set_down(false);
    let was = server.audit().len();
    host.until("it has asked for other things", |_| {
        let asked = server.audit();
        let pods = asked[was..]
            .iter()
            .filter(|e| e.uri.contains("/pods"))
            .count();
        (pods > 2, format!("{pods}"))
    });
    assert_eq!(requests(&server), 1);
    server
        .delete("pods", "default", "web", None)
        .expect("deleted");
    wait_gone(&server, "web");
    // A pair whose refresh is due at once is replaced, and both files change together.
    server.create(&pod).expect("created");
    signer.issue(&server, &open_request(&server), -400);
    wait_ready(&server, "web");
    let first = says(&host, "cat /v/bundle");
    let second = open_request(&server);
    assert_eq!(
        says(&host, "cat /v/bundle"),
        first,
        "it stays until the next one is there"
    );
    signer.issue(&server, &second, 3000);
    host.until("it is replaced", |host| {
        let now = says(
            host,
            "cat /v/key /v/chain | cmp - /v/bundle && cat /v/bundle",
        );
        (now != first, now)
    });
    server
        .delete("pods", "default", "web", None)
        .expect("deleted");
    wait_gone(&server, "web");
    // A signer that denies.
    server.create(&pod).expect("created");
    let denied = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "Policy", "message": "no"}]}});
    patch_status(&server, &open_request(&server), &denied);
    let told = server.wait_for("the event", PATIENCE, |view| {
        let all = view.list("events", "default");
        all.into_iter().find(|e| e["reason"] == "Denied").cloned()
    });
    let message = told["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("reason=\"Policy\" message=\"no\""),
        "{message}"
    );
    assert_eq!(requests(&server), 4);
    finish(host, &server);
}
