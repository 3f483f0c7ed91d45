//! Certificates of pods of an apiserver: those that they trust, and their own.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, CertificateSigningRequestParams, Issuer, KeyPair};
use serde_json::{Value, json};

use super::{
    api::{FakeApi, Link, NODE_UID},
    api_objects::Trouble,
    world::{IMAGE, NODE, World},
};
use crate::{
    api::{PodUid, WallTime, pod_status::PodPhase},
    kube::csr::{CertificateSubject, make_self_signed},
    logic::pod_certificate::CertificatePair,
    net::serving::ServingCertificateSlot,
    server::backend::MetricsEndpoint,
};

/// Seconds in which each running pod is synced at least once.
const SYNC: Duration = Duration::from_secs(100);

fn cluster() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    api.put_object(
        "services/default/kubernetes",
        json!({"spec": {"clusterIP": "10.0.0.1"}}),
    );
    let world = World::with_api(&api);
    world.apply(&[]);
    (world, api)
}

/// Says which resources the apiserver has in a version of the API of certificates.
fn offer(api: &FakeApi, version: &str, resource: &str) {
    let list = json!({"resources": [{"name": resource}]});
    api.put_object(&format!("apis/certificates.k8s.io/{version}"), list);
}

/// A certificate, PEM.
fn authority(name: &str) -> String {
    let subject = CertificateSubject {
        common_name: name.into(),
        ..CertificateSubject::default()
    };
    make_self_signed(&subject).expect("certificate").0
}

fn bundle(text: &str) -> Value {
    json!({"metadata": {"labels": {"live": "yes"}}, "spec": {"signerName": "e.com/s", "trustBundle": text}})
}

/// Pod spec with one container that mounts a projected volume of one source.
fn projecting(source: Value) -> Value {
    json!({
        "volumes": [{"name": "v", "projected": {"defaultMode": 420, "sources": [source]}}],
        "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
    })
}

fn file(world: &World, uid: &str, name: &str) -> Option<String> {
    let base = world.parts.machine.volumes.pod_dir(&PodUid::from(uid));
    let path = base.join("volumes/kubernetes.io~projected/v").join(name);
    fs::read_to_string(path).ok()
}

fn run(world: &World, api: &FakeApi, name: &str, spec: Value) -> String {
    let uid = api.create(name, spec);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    uid
}

fn messages(world: &World, reason: &str) -> Vec<String> {
    let all = world.parts.tools.recorder.newest_events(None, usize::MAX);
    let of = all.iter().filter(|e| e.reason == reason);
    of.map(|e| e.message.clone()).collect()
}

#[test]
fn a_trust_bundle_is_followed_and_written_only_if_it_changes() {
    // CTB-01 CTB-02
    let (world, api) = cluster();
    offer(&api, "v1", "clustertrustbundles");
    let (a, b) = (authority("a"), authority("b"));
    api.put_object("bundles/v1/one", bundle(&format!("text\n{a}{b}")));
    let selected = json!({"signerName": "e.com/s", "labelSelector": {"matchLabels": {"live": "yes"}}, "path": "ca"});
    let uid = run(
        &world,
        &api,
        "a",
        projecting(json!({"clusterTrustBundle": selected})),
    );
    let text = file(&world, &uid, "ca").expect("bundle");
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2);
    assert!(text.contains(&a) && text.contains(&b) && !text.contains("text"));
    let target = |w: &World| {
        let base = w.parts.machine.volumes.pod_dir(&PodUid::from(&*uid));
        fs::read_link(base.join("volumes/kubernetes.io~projected/v/..data")).expect("link")
    };
    // The same certificates in another order, and some twice.
    let written = target(&world);
    api.put_object("bundles/v1/one", bundle(&format!("{b}{a}")));
    api.put_object("bundles/v1/two", bundle(&a));
    world.advance(SYNC);
    assert_eq!(
        (target(&world), file(&world, &uid, "ca")),
        (written, Some(text))
    );
    let c = authority("c");
    api.put_object("bundles/v1/two", bundle(&c));
    world.until("follows", |w| {
        file(w, &uid, "ca").is_some_and(|text| text.contains(&c))
    });
    // One that is not chosen.
    let mut other = bundle(&authority("d"));
    other["spec"]["signerName"] = "e.com/other".into();
    api.put_object("bundles/v1/other", other);
    world.advance(SYNC);
    let text = file(&world, &uid, "ca").expect("bundle");
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 3);
    // None is left: the files of a required source stay.
    for name in ["one", "two"] {
        api.remove_object(&format!("bundles/v1/{name}"));
    }
    world.until("is told", |w| {
        let told = messages(w, "FailedMount");
        told.iter()
            .any(|t| t.ends_with("matched zero ClusterTrustBundles"))
    });
    assert_eq!(file(&world, &uid, "ca"), Some(text));
}

#[test]
fn a_trust_bundle_outlives_the_apiserver() {
    // CTB-03
    let (world, api) = cluster();
    offer(&api, "v1beta1", "clustertrustbundles");
    let a = authority("a");
    api.put_object("bundles/v1beta1/one", bundle(&a));
    let named = || projecting(json!({"clusterTrustBundle": {"name": "one", "path": "ca"}}));
    let uid = run(&world, &api, "a", named());
    assert_eq!(file(&world, &uid, "ca").as_ref(), Some(&a));
    api.set_link(Link::Down);
    let world = world.reboot();
    world.apply(&[]);
    world.until("runs again", |w| w.fake.runs(&PodUid::from(&*uid)));
    assert_eq!(file(&world, &uid, "ca"), Some(a));
    // The apiserver has another version when it is back.
    api.remove_object("apis/certificates.k8s.io/v1beta1");
    offer(&api, "v1", "clustertrustbundles");
    let b = authority("b");
    api.put_object("bundles/v1/one", bundle(&b));
    api.set_link(Link::Up);
    world.until("follows", |w| file(w, &uid, "ca").as_ref() == Some(&b));
}

#[test]
fn an_apiserver_without_trust_bundles_is_asked_again() {
    // CTB-03
    let (world, api) = cluster();
    let named = json!({"clusterTrustBundle": {"name": "one", "path": "ca", "optional": true}});
    let uid = api.create("a", projecting(named));
    world.until("is told", |w| {
        let told = messages(w, "FailedMount");
        told.iter()
            .any(|t| t.contains("feature gate ClusterTrustBundle"))
    });
    api.take_asked();
    world.advance(Duration::from_secs(500));
    let asked = api.take_asked();
    assert!(
        asked.iter().all(|path| !path.starts_with("apis/")),
        "{asked:?}"
    );
    assert_eq!(world.phase(&uid), Some(PodPhase::Pending));
    offer(&api, "v1alpha1", "clustertrustbundles");
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    assert_eq!(file(&world, &uid, "ca").as_deref(), Some(""));
}

#[test]
fn a_wrong_trust_bundle_fails_its_volume_alone() {
    // CTB-01
    let (world, api) = cluster();
    offer(&api, "v1", "clustertrustbundles");
    let a = authority("a");
    let named = |n: u32| {
        api.put_object(&format!("bundles/v1/b{n}"), bundle(&a));
        json!({"clusterTrustBundle": {"name": format!("b{n}"), "path": format!("{n}")}})
    };
    let mut spec = projecting(named(0));
    let long = json!({"clusterTrustBundle": {"name": "x".repeat(5000), "path": "long"}});
    let many: Vec<Value> = (1..17).map(named).collect();
    for (name, sources) in [("long", json!([long])), ("many", json!(many))] {
        let volumes = spec["volumes"].as_array_mut().expect("volumes");
        volumes.push(json!({"name": name, "projected": {"defaultMode": 420, "sources": sources}}));
        let mounts = spec["containers"][0]["volumeMounts"].as_array_mut();
        let mount = json!({"name": name, "mountPath": format!("/{name}")});
        mounts.expect("mounts").push(mount);
    }
    let uid = api.create("a", spec);
    for text in [
        "more than 4096 bytes",
        "more than 16 ClusterTrustBundles or selections",
    ] {
        world.until("is told", |w| {
            messages(w, "FailedMount").iter().any(|t| t.contains(text))
        });
    }
    assert_eq!(file(&world, &uid, "0"), Some(a));
    let asked = api.take_asked();
    assert!(
        asked.iter().all(|path| !path.ends_with("/b16")),
        "{asked:?}"
    );
}

/// Number of certificates in a state, as metrics tell it.
fn state_is(world: &World, state: &str, count: u32) {
    let page = world.wait(world.metrics.metrics_page(MetricsEndpoint::Own));
    let page: String = page.expect("served").collect();
    let line = format!(
        "kubelet_podcertificate_states{{signer_name=\"e.com/s\",state=\"{state}\"}} {count}\n"
    );
    assert!(page.contains(&line), "{line}");
}

/// A signer of the cluster.
struct Signer(Issuer<'static, KeyPair>);

impl Signer {
    fn new() -> Self {
        let params = CertificateParams::new(Vec::new()).expect("parameters");
        Self(Issuer::new(params, KeyPair::generate().expect("key")))
    }

    /// Answers the request of that number: seconds from now to the refresh and to the end.
    fn issue(&self, world: &World, api: &FakeApi, n: u32, refresh_s: i64, end_s: i64) {
        let path = format!("requests/ns/req-{n}");
        let mut request = api.object(&path).expect("request");
        let stub = request["spec"]["stubPKCS10Request"]
            .as_str()
            .expect("PKCS#10");
        let der = STANDARD.decode(stub).expect("base64");
        let mut csr = CertificateSigningRequestParams::from_der(&der.into()).expect("CSR");
        let now_s = world.true_wall().unix_seconds();
        let at = |s: i64| time::OffsetDateTime::from_unix_timestamp(now_s + s).expect("time");
        (csr.params.not_before, csr.params.not_after) = (at(0), at(end_s));
        let chain = csr.signed_by(&self.0).expect("signed").pem();
        let text = |s: i64| WallTime::from_unix_seconds(now_s + s).to_string();
        request["status"] = json!({
            "conditions": [{"type": "Issued", "status": "True"}],
            "certificateChain": format!("of nobody\n{chain}"),
            "beginRefreshAt": text(refresh_s), "notBefore": text(0), "notAfter": text(end_s),
        });
        api.put_object(&path, request);
    }
}

fn refuse(api: &FakeApi, n: u32, kind: &str) {
    let path = format!("requests/ns/req-{n}");
    let mut request = api.object(&path).expect("request");
    request["status"] =
        json!({"conditions": [{"type": kind, "reason": "Policy", "message": "no"}]});
    api.put_object(&path, request);
}

/// A cluster with the API of certificates of pods.
fn cluster_with_requests(version: &str) -> (World, Arc<FakeApi>) {
    let (world, api) = cluster();
    offer(&api, version, "podcertificaterequests");
    api.put_object(
        "accounts/ns/default",
        json!({"metadata": {"uid": "account-uid"}}),
    );
    (world, api)
}

fn certificate_source(key_type: &str) -> Value {
    json!({"podCertificate": {"signerName": "e.com/s", "keyType": key_type, "credentialBundlePath": "bundle",
        "keyPath": "key", "certificateChainPath": "deep/chain", "maxExpirationSeconds": 3600,
        "userAnnotations": {"e.com/a": "b"}}})
}

fn requested(api: &FakeApi, n: u32) -> bool {
    api.object(&format!("requests/ns/req-{n}")).is_some()
}

/// Creates a pod whose first certificate is issued: seconds to its refresh and to its end.
fn run_with_certificate(
    world: &World,
    api: &FakeApi,
    signer: &Signer,
    times: (i64, i64),
) -> String {
    let uid = api.create("a", projecting(certificate_source("ECDSAP256")));
    world.until("asks", |_| requested(api, 1));
    signer.issue(world, api, 1, times.0, times.1);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    uid
}

#[test]
fn a_pod_waits_for_its_certificate() {
    // PCT-01 PCT-02 PCT-03 PCT-06
    let (world, api) = cluster_with_requests("v1");
    let uid = api.create("a", projecting(certificate_source("ED25519")));
    world.until("asks", |_| requested(&api, 1));
    world.until("is told", |w| {
        let told = messages(w, "FailedMount");
        told.iter()
            .any(|t| t.ends_with("signer \"e.com/s\" has not issued the certificate yet"))
    });
    assert_eq!(world.waiting(&uid).as_deref(), Some("ContainerCreating"));
    assert!(!requested(&api, 2), "one request");
    let request = api.object("requests/ns/req-1").expect("request");
    let spec = &request["spec"];
    for (field, want) in [
        ("signerName", json!("e.com/s")),
        ("podName", json!("a")),
        ("podUID", json!(uid)),
        ("serviceAccountName", json!("default")),
        ("serviceAccountUID", json!("account-uid")),
        ("nodeName", json!(NODE)),
        ("nodeUID", json!(NODE_UID)),
        ("maxExpirationSeconds", json!(3600)),
        ("unverifiedUserAnnotations", json!({"e.com/a": "b"})),
        ("pkixPublicKey", Value::Null),
    ] {
        assert_eq!(spec[field], want, "{field}");
    }
    assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], json!(uid));
    state_is(&world, "not_yet_issued", 1);
    Signer::new().issue(&world, &api, 1, 1800, 3600);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    state_is(&world, "fresh", 1);
    let [key, chain] = ["key", "deep/chain"].map(|name| file(&world, &uid, name).expect("file"));
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
    assert!(
        chain.starts_with("-----BEGIN CERTIFICATE-----"),
        "no text beside the blocks"
    );
    assert_eq!(file(&world, &uid, "bundle"), Some(format!("{key}{chain}")));
    let slot = ServingCertificateSlot::default();
    slot.set_certificate(chain.as_bytes(), key.as_bytes())
        .expect("a pair");
}

#[test]
fn a_certificate_outlives_the_agent() {
    // PCT-05
    let (world, api) = cluster_with_requests("v1");
    let uid = run_with_certificate(&world, &api, &Signer::new(), (1800, 3600));
    let bundle = file(&world, &uid, "bundle").expect("bundle");
    api.set_link(Link::Down);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(SYNC + SYNC);
    assert_eq!(file(&world, &uid, "bundle").as_ref(), Some(&bundle));
    assert_eq!(messages(&world, "FailedMount"), Vec::<String>::new());
    api.set_link(Link::Up);
    world.advance(SYNC + SYNC);
    assert!(!requested(&api, 2), "it is valid");
    // Two thirds of its life are over.
    world.advance(Duration::from_secs(2400));
    assert!(requested(&api, 2));
    // A reboot takes the key.
    let world = world.reboot();
    world.apply(&[]);
    world.until("asks", |_| requested(&api, 3));
    assert_eq!(file(&world, &uid, "bundle"), None);
}

#[test]
fn a_pair_in_two_files_outlives_the_agent_if_it_fits() {
    // PCT-05
    let (world, api) = cluster_with_requests("v1");
    let source = json!({"podCertificate": {"signerName": "e.com/s", "keyType": "ECDSAP256", "keyPath": "key",
        "certificateChainPath": "deep/chain"}});
    let uid = api.create("a", projecting(source));
    let signer = Signer::new();
    world.until("asks", |_| requested(&api, 1));
    signer.issue(&world, &api, 1, 1800, 3600);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    let pair_of = |w: &World| ["key", "deep/chain"].map(|name| file(w, &uid, name).expect("file"));
    let pair = pair_of(&world);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(SYNC + SYNC);
    assert!(!requested(&api, 2), "it is valid");
    assert_eq!(pair_of(&world), pair);
    assert_eq!(messages(&world, "FailedMount"), Vec::<String>::new());
    // The key of another pair.
    let base = world.parts.machine.volumes.pod_dir(&PodUid::from(&*uid));
    let path = base.join("volumes/kubernetes.io~projected/v/key");
    let other = KeyPair::generate().expect("key").serialize_pem();
    fs::write(path, &other).expect("written");
    let world = world.restart_agent();
    world.apply(&[]);
    world.until("asks", |_| requested(&api, 2));
    signer.issue(&world, &api, 2, 1800, 3600);
    world.until("has a pair that fits", |w| {
        let [key, chain] = pair_of(w);
        let slot = ServingCertificateSlot::default();
        slot.set_certificate(chain.as_bytes(), key.as_bytes())
            .is_ok()
    });
    assert_ne!(pair_of(&world)[0], other);
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
}

#[test]
fn a_certificate_for_another_key_is_not_used() {
    // PCT-05
    let (world, api) = cluster_with_requests("v1");
    let uid = api.create("a", projecting(certificate_source("ECDSAP256")));
    world.until("asks", |_| requested(&api, 1));
    let signer = Signer::new();
    signer.issue(&world, &api, 1, 1800, 3600);
    let path = "requests/ns/req-1";
    let mut request = api.object(path).expect("request");
    let good = request.clone();
    request["status"]["certificateChain"] = authority("other").into();
    api.put_object(path, request);
    world.until("is told", |w| {
        let told = messages(w, "FailedMount");
        told.iter().any(|t| t.ends_with("it is for another key"))
    });
    assert_eq!(file(&world, &uid, "bundle"), None);
    api.put_object(path, good);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
}

#[test]
fn a_certificate_is_refreshed_in_time() {
    // PCT-04
    let (world, api) = cluster_with_requests("v1");
    let signer = Signer::new();
    let uid = run_with_certificate(&world, &api, &signer, (1200, 3600));
    let first = file(&world, &uid, "bundle").expect("bundle");
    world.advance(Duration::from_secs(1100));
    assert!(!requested(&api, 2));
    // Beside the time of the refresh, up to five minutes of spread.
    world.advance(Duration::from_secs(500));
    assert!(requested(&api, 2));
    world.advance(Duration::from_secs(120));
    assert_eq!(file(&world, &uid, "bundle").as_ref(), Some(&first));
    signer.issue(&world, &api, 2, 1200, 3600);
    world.until("is refreshed", |w| {
        file(w, &uid, "bundle").as_ref() != Some(&first)
    });
    let second = file(&world, &uid, "bundle").expect("bundle");
    let pair = CertificatePair::from_bundle(&second).expect("a pair");
    let slot = ServingCertificateSlot::default();
    slot.set_certificate(pair.chain.as_bytes(), pair.key.as_bytes())
        .expect("a pair");
    // Nobody answers from now on. Only a request that is gone is made anew.
    world.advance(Duration::from_secs(1700));
    assert!(requested(&api, 3));
    world.advance(Duration::from_secs(1000));
    assert!(!requested(&api, 4));
    api.remove_object("requests/ns/req-3");
    world.until("asks again", |_| requested(&api, 4));
    assert_eq!(messages(&world, "CertificateOverdueForRefresh").len(), 1);
    assert_eq!(messages(&world, "CertificateExpired").len(), 0);
    world.advance(Duration::from_secs(1200));
    assert_eq!(messages(&world, "CertificateExpired").len(), 1);
    assert_eq!(file(&world, &uid, "bundle"), Some(second));
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
}

#[test]
fn a_slow_signer_is_waited_for() {
    // PCT-04
    let (world, api) = cluster_with_requests("v1");
    let uid = api.create("a", projecting(certificate_source("ECDSAP256")));
    world.until("asks", |_| requested(&api, 1));
    world.advance(Duration::from_secs(1500));
    api.take_asked();
    world.advance(Duration::from_secs(1200));
    let asked = api.take_asked();
    let looks = asked.iter().filter(|path| path.starts_with("requests/"));
    let looks = looks.count();
    assert!((8..=21).contains(&looks), "{looks} looks in 20 minutes");
    assert!(!requested(&api, 2), "the first may still be answered");
    Signer::new().issue(&world, &api, 1, 1800, 3600);
    world.until("runs", |w| w.phase(&uid) == Some(PodPhase::Running));
    assert!(!requested(&api, 2));
}

#[test]
fn a_request_that_fails_is_tried_again_slowly() {
    // PCT-04
    let (world, api) = cluster_with_requests("v1");
    api.trouble("create/v1/", 1000, Trouble::Refuses(500));
    api.create("a", projecting(certificate_source("ECDSAP256")));
    let told = |w: &World| {
        let told = messages(w, "FailedMount");
        told.iter()
            .any(|t| t.contains("failed to get a certificate of signer \"e.com/s\""))
    };
    world.until("is told", told);
    api.take_asked();
    world.advance(Duration::from_secs(3600));
    let asked = api.take_asked();
    for prefix in ["create/", "accounts/"] {
        let count = asked.iter().filter(|path| path.starts_with(prefix)).count();
        assert!((5..=12).contains(&count), "{prefix}: {count} in an hour");
    }
    api.heal();
    world.until("asks", |_| requested(&api, 1));
}

#[test]
fn a_pod_that_runs_is_not_held_up() {
    // PCT-03
    let (world, api) = cluster_with_requests("v1");
    let uid = run_with_certificate(&world, &api, &Signer::new(), (1800, 3600));
    api.set_link(Link::Down);
    world.advance(Duration::from_secs(3700));
    let world = world.restart_agent();
    world.apply(&[]);
    api.set_link(Link::Up);
    world.until("asks", |_| requested(&api, 2));
    world.advance(Duration::from_secs(2));
    let told = messages(&world, "FailedMount");
    assert!(
        told.iter().any(|t| t.contains("has not issued")),
        "the sync is over: {told:?}"
    );
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
}

#[test]
fn a_pod_that_ends_asks_for_nothing_more() {
    // PCT-03
    let (world, api) = cluster_with_requests("v1");
    let source = |path: &str| json!({"podCertificate": {"signerName": "e.com/s", "keyType": "ED25519", "credentialBundlePath": path}});
    let mut spec = projecting(source("one"));
    spec["volumes"][0]["projected"]["sources"] = json!([source("one"), source("two")]);
    api.create("a", spec);
    world.until("asks", |_| requested(&api, 1));
    api.delete("a");
    world.advance(SYNC);
    assert!(!requested(&api, 2));
}

#[test]
fn a_refusal_is_for_good() {
    // PCT-03 PCT-04
    for kind in ["Denied", "Failed"] {
        let (world, api) = cluster_with_requests("v1");
        let uid = api.create("a", projecting(certificate_source("ECDSAP384")));
        world.until("asks", |_| requested(&api, 1));
        refuse(&api, 1, kind);
        world.until("is told", |w| !messages(w, kind).is_empty());
        let told = messages(&world, kind);
        assert!(
            told[0].contains("reason=\"Policy\" message=\"no\""),
            "{told:?}"
        );
        world.advance(Duration::from_secs(3600));
        assert_eq!(messages(&world, kind).len(), 1);
        assert!(!requested(&api, 2));
        assert_eq!(world.phase(&uid), Some(PodPhase::Pending));
    }
    // A refusal of a refresh does not take the valid pair.
    let (world, api) = cluster_with_requests("v1");
    let uid = run_with_certificate(&world, &api, &Signer::new(), (1200, 3600));
    let bundle = file(&world, &uid, "bundle").expect("bundle");
    world.until("asks again", |_| requested(&api, 2));
    refuse(&api, 2, "Denied");
    world.until("is told", |w| !messages(w, "Denied").is_empty());
    world.advance(Duration::from_secs(300));
    assert_eq!(messages(&world, "FailedMount"), Vec::<String>::new());
    world.advance(Duration::from_secs(2400));
    assert!(
        !messages(&world, "FailedMount").is_empty(),
        "its end is here"
    );
    assert_eq!(file(&world, &uid, "bundle"), Some(bundle));
    assert!(!requested(&api, 3));
}

#[test]
fn requests_for_older_apiservers() {
    // PCT-02
    let (world, api) = cluster_with_requests("v1beta1");
    api.trouble("create/v1beta1/", 1, Trouble::Refuses(422));
    api.create("a", projecting(certificate_source("ECDSAP256")));
    world.until("asks", |_| requested(&api, 1));
    let request = api.object("requests/ns/req-1").expect("request");
    let spec = &request["spec"];
    assert!(spec["stubPKCS10Request"].is_null());
    assert!(spec["pkixPublicKey"].is_string() && spec["proofOfPossession"].is_string());
    // There is no such API.
    let (world, api) = cluster();
    api.put_object("accounts/ns/default", json!({"metadata": {"uid": "u"}}));
    let uid = api.create("a", projecting(certificate_source("ECDSAP256")));
    api.take_asked();
    let says = |w: &World, text: &str| {
        let told = messages(w, "FailedMount");
        told.iter().any(|t| t.contains(text))
    };
    world.until("is told", |w| says(w, "feature gate PodCertificateRequest"));
    let asked = api.take_asked();
    assert!(
        asked.iter().all(|path| !path.starts_with("accounts/")),
        "{asked:?}"
    );
    offer(&api, "v1beta1", "podcertificaterequests");
    world.until("asks", |_| requested(&api, 1));
    assert_eq!(world.phase(&uid), Some(PodPhase::Pending));
    // A type of key that this node cannot make.
    api.create("b", projecting(certificate_source("RSA3072")));
    world.until("is told", |w| {
        says(w, "cannot make keys of type \"RSA3072\", only ECDSAP256")
    });
}

#[test]
fn certificates_of_one_pod_are_bounded() {
    // PCT-01
    let (world, api) = cluster_with_requests("v1");
    let source = |n: u32| {
        let path = format!("bundle-{n}");
        json!({"podCertificate": {"signerName": "e.com/s", "keyType": "ED25519", "credentialBundlePath": path}})
    };
    let mut spec = projecting(source(0));
    spec["volumes"][0]["projected"]["sources"] = (0..17).map(source).collect();
    api.create("a", spec);
    world.until("is told", |w| {
        let told = messages(w, "FailedMount");
        told.iter().any(|t| t.contains("more than 16 certificates"))
    });
    assert!(requested(&api, 16) && !requested(&api, 17));
}
