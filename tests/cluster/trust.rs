//! Certificates of pods, seen from inside a container: those that they trust.

use picolet_test_apiserver::TestServer;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::{
    host::{Host, IDLE, able, sh, with},
    pods::{cluster, finish, pod, wait_ready},
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
