//! Dates of a machine that boots in 1970 and is set right later.

use alloc::sync::Arc;
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    world::{World, manifest},
};
use crate::{
    api::{WallTime, pod_status::PodPhase},
    runtime::fake::Op,
};

/// Seconds by which a clock is behind that was never set.
const YEARS_53_S: i64 = 53 * 31_557_600;

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Makes a node of a cluster that boots in 1970.
fn world() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_wrong_clock(-YEARS_53_S, &api);
    (world, api)
}

/// Sets the clock; some seconds later it counts as right.
fn set_right(world: &World) {
    world.jump(YEARS_53_S);
    world.advance(s(3));
    world.set_wrong(false);
}

/// Collects all dates of a value.
fn dates(value: &Value, found: &mut Vec<WallTime>) {
    match value {
        Value::String(text) => found.extend(WallTime::parse(text)),
        Value::Array(all) => all.iter().for_each(|one| dates(one, found)),
        Value::Object(all) => all.values().for_each(|one| dates(one, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn dates_of(api: &FakeApi, namespace: &str, name: &str) -> Vec<WallTime> {
    let mut found = Vec::new();
    let pod = api.get(namespace, name).unwrap_or_default();
    dates(&pod["status"], &mut found);
    found
}

fn is_ready(api: &FakeApi, namespace: &str, name: &str) -> bool {
    let pod = api.get(namespace, name).unwrap_or_default();
    pod["status"]["containerStatuses"][0]["ready"] == true
}

/// Makes a pod of each source, and waits until both are ready.
fn two_pods(world: &World, api: &FakeApi) -> [(&'static str, &'static str); 2] {
    world.apply(&[manifest("own", json!({}))]);
    api.create("a", json!({}));
    let pods = [("ns", "a"), ("default", "own-node")];
    let all_ready = || pods.iter().all(|(ns, name)| is_ready(api, ns, name));
    world.until("both are ready", |_| all_ready());
    pods
}

fn since_1971(at: &WallTime) -> bool {
    at.unix_seconds() > 2 * 31_557_600
}

#[test]
fn what_began_in_1970_is_dated_right_once_the_clock_is() {
    // TIME-05
    let (world, api) = world();
    world.advance(s(20));
    let begun = world.true_wall();
    let pods = two_pods(&world, &api);
    let ready = world.true_wall();
    world.advance(s(100));
    for (namespace, name) in pods {
        let found = dates_of(&api, namespace, name);
        assert!(found.len() >= 7, "{found:?}");
        assert!(
            !found.iter().any(since_1971),
            "nobody knows better: {found:?}"
        );
    }
    set_right(&world);
    world.advance(s(15));
    for (namespace, name) in pods {
        let found = dates_of(&api, namespace, name);
        assert!(found.len() >= 7, "{found:?}");
        let is_true = |at: &WallTime| *at >= begun && *at <= ready;
        assert!(
            found.iter().all(is_true),
            "{name}: {found:?}, {begun}..{ready}"
        );
        let status = &api.get(namespace, name).expect("there")["status"];
        let main = &status["containerStatuses"][0];
        assert_eq!(main["restartCount"], 0);
        let at = |value: &Value| WallTime::parse(value.as_str().unwrap_or_default());
        let start = at(&status["startTime"]);
        assert!(start.is_some() && start <= at(&main["state"]["running"]["startedAt"]));
    }
    let mut of_node = Vec::new();
    dates(&world.node_object()["status"]["conditions"], &mut of_node);
    assert!(
        of_node.len() >= 8 && of_node.iter().all(since_1971),
        "{of_node:?}"
    );
    // The new dates are told once.
    api.take_seen();
    world.advance(s(60));
    let seen = api.take_seen();
    assert!(
        !seen.iter().any(|what| what.starts_with("PATCH")),
        "{seen:?}"
    );
    // A clock that is set later changes no dates.
    let before = pods.map(|(namespace, name)| dates_of(&api, namespace, name));
    world.set_wrong(true);
    world.jump(-YEARS_53_S);
    world.advance(s(15));
    world.jump(YEARS_53_S);
    world.set_wrong(false);
    world.advance(s(15));
    let after = pods.map(|(namespace, name)| dates_of(&api, namespace, name));
    assert_eq!(before, after);
}

#[test]
fn another_agent_corrects_what_one_before_it_has_dated() {
    // TIME-05
    let (world, api) = world();
    let begun = world.true_wall();
    let pods = two_pods(&world, &api);
    world.advance(s(30));
    let before = world.true_wall();
    // The clock is set while no agent runs.
    world.jump_clock(YEARS_53_S);
    world.set_wrong(false);
    let world = world.restart_agent();
    world.apply(&[manifest("own", json!({}))]);
    world.advance(s(30));
    for (namespace, name) in pods {
        let status = api.get(namespace, name).expect("there")["status"].take();
        for value in [
            &status["startTime"],
            &status["containerStatuses"][0]["state"]["running"]["startedAt"],
        ] {
            let at = WallTime::parse(value.as_str().unwrap_or_default()).expect("a date");
            assert!(
                at >= begun && at <= before,
                "{name}: {at}, {begun}..{before}"
            );
        }
        assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    }
}

#[test]
fn a_deadline_is_kept_by_the_time_since_boot() {
    // TIME-04
    for later_s in [YEARS_53_S, -100_000] {
        let (world, api) = world();
        world.apply(&[]);
        api.create("a", json!({"activeDeadlineSeconds": 100}));
        world.until("runs", |_| is_ready(&api, "ns", "a"));
        let began = world.now();
        world.advance(s(20));
        world.jump(later_s);
        world.advance(s(20));
        world.set_wrong(later_s < 0);
        world.advance(s(50));
        assert_eq!(api.phase("a"), "Running", "{later_s}");
        world.until("it has ended", |_| api.phase("a") == "Failed");
        let lived = world.now() - began;
        assert!(lived >= s(97) && lived <= s(112), "{later_s}: {lived:?}");
    }
}

#[test]
fn a_pod_that_wants_a_right_clock_waits_for_it() {
    // TIME-06
    let (world, _api) = world();
    let mut waiting = manifest("w", json!({}));
    waiting["metadata"]["annotations"] = json!({"picolet/wait-for-clock": "true"});
    let both = [waiting, manifest("b", json!({}))];
    world.apply(&both);
    world.until("the other one runs", |w| {
        w.phase("b") == Some(PodPhase::Running)
    });
    world.advance(s(60));
    assert_eq!(world.phase("w"), Some(PodPhase::Pending));
    assert!(world.events_of("ClockUntrusted") > 0);
    world.fake.take_calls();
    set_right(&world);
    world.until("it runs", |w| w.phase("w") == Some(PodPhase::Running));
    let began = world.fake.take_calls().into_iter();
    let began = began.filter(|(op, _)| *op == Op::StartContainer);
    assert_eq!(began.count(), 1, "the other one goes on");
    // Once the clock was right it may be wrong again, also for another agent: the pod does not begin anew.
    world.set_wrong(true);
    let world = world.restart_agent();
    world.apply(&both);
    let uid = crate::api::PodUid::from("w");
    let id = world.fake.container(&uid, "c").expect("runs").id;
    world.fake.exit(&id, 1);
    world.until("it runs again", |w| {
        w.fake
            .container(&uid, "c")
            .is_some_and(|c| c.restart_count == 1)
    });
}
