//! Processors of single containers, on a machine of four, of which the first one is reserved.

use std::fs;

use serde_json::{Value, json};

use super::world::{IMAGE, World, manifest};
use crate::{
    api::{PodUid, pod_status::PodPhase},
    server::backend::MetricsEndpoint,
};

const STATIC: &[&str] = &["--cpu-manager-policy=static", "--reserved-cpus=0"];

/// A Guaranteed pod of one container that asks for so much of the processors.
fn pod(uid: &str, cpu: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": "16Mi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let container =
        json!({"name": "c", "image": IMAGE, "command": ["sleep"], "resources": resources});
    manifest(uid, json!({"containers": [container]}))
}

fn until_all_have(world: &World, wanted: &[(&str, &str)]) {
    let has = |uid: &str| {
        let config = world.fake.config(&PodUid::from(uid), "c");
        config.and_then(|config| config.resources.cpuset_cpus)
    };
    let what = format!("they have {wanted:?}");
    world.until(&what, |_| {
        let mut all = wanted.iter();
        all.all(|(uid, cpus)| has(uid).as_deref() == Some(*cpus))
    });
}

fn record(world: &World) -> Value {
    let text = fs::read(world.dir().join("root/cpu_manager_state")).expect("record");
    serde_json::from_slice(&text).expect("JSON")
}

fn instance(world: &World, uid: &str) -> String {
    let found = world.fake.container(&PodUid::from(uid), "c");
    found.expect("there").id.to_string()
}

fn is_refused(world: &World, uid: &str) {
    world.until("is refused", |w| w.phase(uid) == Some(PodPhase::Failed));
    let status = world.status(uid).expect("told");
    assert_eq!(status.reason, "UnexpectedAdmissionError");
    let why = "Allocate failed due to not enough cpus available to satisfy request";
    assert!(status.message.contains(why), "{}", status.message);
}

#[test]
fn a_pod_has_processors_of_its_own_until_it_is_gone() {
    // CPUM-20 CPUM-21 CPUM-22 CPUM-23
    let world = World::with(STATIC, None);
    let (shares, first, owns) = (
        manifest("shares", json!({})),
        pod("first", "1"),
        pod("owns", "2"),
    );
    world.apply(std::slice::from_ref(&shares));
    until_all_have(&world, &[("shares", "0-3")]);
    world.apply(&[shares.clone(), first.clone()]);
    until_all_have(&world, &[("shares", "0,2-3"), ("first", "1")]);
    world.apply(&[shares.clone(), first, owns.clone()]);
    until_all_have(&world, &[("shares", "0"), ("owns", "2-3")]);
    // Who comes now would get others.
    world.apply(&[shares.clone(), owns.clone()]);
    let all = [("shares", "0-1"), ("owns", "2-3")];
    until_all_have(&world, &all);
    let recorded =
        json!({"policyName": "static", "defaultCpuSet": "0-1", "entries": {"owns": {"c": "2-3"}}});
    assert_eq!(record(&world), recorded);
    let before = instance(&world, "owns");

    // The next agent takes the record over, and frees nothing before it has seen the pods.
    let world = world.restart_agent();
    world.advance(core::time::Duration::from_secs(300));
    assert_eq!(record(&world), recorded);
    world.apply(&[shares.clone(), owns, pod("late", "2")]);
    until_all_have(&world, &all);
    is_refused(&world, "late");
    assert_eq!(instance(&world, "owns"), before);
    assert_eq!(record(&world), recorded);
    let page = world.wait(world.metrics.metrics_page(MetricsEndpoint::Own));
    let page: String = page.expect("served").collect();
    for wanted in [
        "kubelet_cpu_manager_pinning_requests_total 2",
        "kubelet_cpu_manager_pinning_errors_total 1",
    ] {
        assert!(
            page.lines().any(|line| line == wanted),
            "{wanted} in {page}"
        );
    }

    // What it had is shared again, and given again.
    world.apply(std::slice::from_ref(&shares));
    world.until("is gone", |w| w.is_gone("owns"));
    until_all_have(&world, &[("shares", "0-3")]);
    world.apply(&[shares, pod("next", "3")]);
    until_all_have(&world, &[("shares", "0"), ("next", "1-3")]);
}

#[test]
fn an_edited_pod_keeps_what_it_was_given_first() {
    // CPUM-22
    let world = World::with(STATIC, None);
    let with = |cpu: &str| [manifest("shares", json!({})), pod("edited", cpu)];
    world.apply(&with("1"));
    let all = [("edited", "1"), ("shares", "0,2-3")];
    until_all_have(&world, &all);
    let (before, recorded) = (instance(&world, "edited"), record(&world));
    let mut world = world;
    for cpu in ["3", "500m"] {
        world.apply(&with(cpu));
        world.advance(core::time::Duration::from_secs(120));
        until_all_have(&world, &all);
        world = world.restart_agent();
        world.apply(&with(cpu));
        world.advance(core::time::Duration::from_secs(120));
        until_all_have(&world, &all);
        assert_eq!(instance(&world, "edited"), before, "it goes on");
        assert_eq!(record(&world), recorded);
    }
}
