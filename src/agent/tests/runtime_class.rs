//! RuntimeClasses of pods: the handler that makes the sandbox, and the status of a pod while its class is missing.

use alloc::sync::Arc;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    api_objects::Trouble,
    probes::s,
    world::{IMAGE, World, manifest},
};
use crate::{api::pod_status::PodPhase, runtime::fake::HANDLER};

/// Path of the class of the runtime's only handler.
const CLASS: &str = "runtimeclasses//slow";

fn spec(class: &str) -> Value {
    json!({
        "runtimeClassName": class,
        "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"]}],
    })
}

fn cluster() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    api.put_object(
        "services/default/kubernetes",
        json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}}),
    );
    let world = World::with_api(&api);
    world.apply(&[]);
    (world, api)
}

/// Handlers of the pod's sandboxes.
fn handlers(world: &World, uid: &str) -> Vec<String> {
    let pods = world.fake.pods();
    let pod = pods.into_iter().find(|pod| *pod.uid == *uid);
    let sandboxes = pod.map(|pod| pod.sandboxes).unwrap_or_default();
    sandboxes.into_iter().map(|s| s.runtime_handler).collect()
}

fn runs_by(world: &World, uid: &str, handler: &str) {
    world.until("it runs", |w| w.phase(uid) == Some(PodPhase::Running));
    assert_eq!(handlers(world, uid), [handler], "{uid}");
}

/// Checks that the pod waits, and that an event tells it.
fn is_refused(world: &World, uid: &str) {
    let before = world.events_of("FailedCreatePodSandBox");
    world.until("it is refused", |w| {
        w.events_of("FailedCreatePodSandBox") > before + 1
    });
    assert_eq!(world.phase(uid), Some(PodPhase::Pending), "{uid}");
    assert_eq!(handlers(world, uid), [""; 0], "{uid}");
}

#[test]
fn a_class_names_the_handler() {
    // CFG-16 CRI-24 RC-01
    let (world, api) = cluster();
    api.put_object(CLASS, json!({"handler": HANDLER}));
    let classed = api.create("a", spec("slow"));
    let plain = api.create("b", json!({"containers": spec("")["containers"]}));
    runs_by(&world, &classed, HANDLER);
    runs_by(&world, &plain, "");
    // Static pods ask for a class as any other pod.
    world.apply(&[manifest("static", spec("slow"))]);
    runs_by(&world, "static", HANDLER);

    // Known classes do not need the apiserver, also after a reboot.
    world.advance(s(3600));
    let world = world.reboot();
    api.trouble("runtimeclasses/", 1000, Trouble::Silent);
    world.apply(&[manifest("static", spec("slow"))]);
    world.until("both run", |w| {
        [&*classed, "static"]
            .iter()
            .all(|uid| w.fake.runs(&(**uid).into()))
    });
    assert!(handlers(&world, &classed).iter().all(|h| h == HANDLER));
}

#[test]
fn a_pod_waits_for_its_class() {
    // CFG-16 RC-01
    let (world, api) = cluster();
    let uid = api.create("a", spec("slow"));
    is_refused(&world, &uid);
    // The class has a handler that the runtime does not have.
    api.put_object(CLASS, json!({"handler": "nobody"}));
    is_refused(&world, &uid);
    // The handler of a class does not change: the class is made anew.
    api.put_object(CLASS, json!({"handler": HANDLER}));
    world.advance(s(600));
    runs_by(&world, &uid, HANDLER);
}

#[test]
fn without_an_apiserver_the_class_is_the_handler() {
    // RC-03
    let world = World::new();
    world.apply(&[
        manifest("known", spec(HANDLER)),
        manifest("unknown", spec("other")),
    ]);
    runs_by(&world, "known", HANDLER);
    is_refused(&world, "unknown");
}
