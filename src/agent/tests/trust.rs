//! Certificates of pods of an apiserver: those that they trust.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;

use serde_json::{Value, json};

use super::{
    api::{FakeApi, Link},
    world::{IMAGE, World},
};
use crate::{
    api::{PodUid, pod_status::PodPhase},
    kube::csr::{CertificateSubject, make_self_signed},
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
