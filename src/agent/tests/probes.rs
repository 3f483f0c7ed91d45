//! Probes and hooks, from an answer on the network to the status, and to the calls of the runtime.

use alloc::{rc::Rc, sync::Arc};
use core::{net::IpAddr, pin::pin, time::Duration};

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    wire::Port,
    world::{IMAGE, World, fault, manifest},
};
use crate::{
    agent::node::follow::{LOOK, follow_addresses},
    api::{
        PodStatus, PodUid,
        cri::ContainerState,
        pod_status::{ContainerStatus, PodPhase},
    },
    probe::{ProbeAnswer, ProbeRequestError, UnansweredRequest, http::HookOutcome},
    runtime::{
        RuntimeError,
        fake::{Fault, Op, Trouble},
    },
    sys::clock::mono_now,
};

pub(crate) const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Makes a world whose agent was started long ago: first probes are not spread any more.
pub(super) fn settled() -> World {
    let world = World::new();
    world.advance(s(30));
    world
}

/// Probes a TCP port once a second.
pub(super) fn tcp(port: u16) -> Value {
    json!({"tcpSocket": {"port": port}, "periodSeconds": 1})
}

pub(super) fn exec(words: &[&str]) -> Value {
    json!({"exec": {"command": words}, "periodSeconds": 1})
}

/// Manifest of a pod whose container `c` has these fields, too.
pub(super) fn probed(uid: &str, more: Value) -> Value {
    let mut container = json!({"name": "c", "image": IMAGE, "command": ["sleep"]});
    for (key, value) in more.as_object().expect("fields") {
        container[key] = value.clone();
    }
    manifest(uid, json!({"containers": [container]}))
}

fn container(world: &World, uid: &str) -> ContainerStatus {
    let status = world.status(uid).unwrap_or_default();
    status
        .container_statuses
        .first()
        .cloned()
        .unwrap_or_default()
}

fn condition(status: &PodStatus, kind: &str) -> String {
    let found = status.conditions.iter().find(|c| c.kind == kind);
    found.map(|c| c.status.clone()).unwrap_or_default()
}

pub(super) fn is_ready(world: &World, uid: &str) -> bool {
    let status = world.status(uid).unwrap_or_default();
    let ready = container(world, uid).ready;
    assert_eq!(condition(&status, "Ready") == "True", ready);
    assert_eq!(condition(&status, "ContainersReady") == "True", ready);
    ready
}

fn restarts(world: &World, uid: &str) -> u32 {
    container(world, uid).restart_count
}

/// Messages of the events with this reason, as they were first told.
pub(super) fn told(world: &World, reason: &str) -> Vec<String> {
    let recorder = &world.parts.tools.recorder;
    let named = recorder
        .newest_events(None, usize::MAX)
        .into_iter()
        .filter(|e| *e.reason == *reason);
    named.map(|e| e.message.to_string()).collect()
}

#[test]
fn a_pod_is_ready_when_its_probe_says_so() {
    // PROBE-12 PROBE-13 PROBE-41 STAT-44 LOOP-18 EVT-17
    let world = settled();
    world.wire.is_well(80, false);
    let mut pod = probed("a", json!({"readinessProbe": tcp(80)}));
    pod["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = json!(10);
    world.apply(&[pod]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(60));
    assert_eq!(container(&world, "a").started, Some(true));
    assert!(!is_ready(&world, "a"));
    assert_eq!(told(&world, "Unhealthy"), ["Readiness probe failed: no"]);
    world.wire.is_well(80, true);
    world.until("is ready", |w| is_ready(w, "a"));
    world.wire.is_well(80, false);
    world.advance(s(21));
    assert!(is_ready(&world, "a"), "two failures are not three");
    world.advance(s(10));
    assert!(!is_ready(&world, "a"));
    assert_eq!(restarts(&world, "a"), 0, "and nothing is killed");
    assert_eq!(
        world.wire.last_asked().map(|ip| ip.to_string()),
        Some(world.status("a").expect("status").pod_ip)
    );
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert_eq!(world.parts.owners.probes.worker_count(), 0);
}

#[test]
fn readiness_does_not_wait_for_a_period() {
    // PROBE-03 PROBE-13
    let world = settled();
    let mut pod = probed("a", json!({"readinessProbe": tcp(80)}));
    pod["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = json!(20);
    let before = world.now();
    world.apply(&[pod]);
    world.until("is ready", |w| is_ready(w, "a"));
    assert!(world.now() - before < s(2));
}

#[test]
fn what_is_not_alive_is_killed_and_started_again() {
    // PROBE-11 KILL-01 ACT-35 EVT-16 EVT-17
    let world = settled();
    let mut probe = tcp(80);
    probe["terminationGracePeriodSeconds"] = json!(1);
    world.apply(&[probed("a", json!({"livenessProbe": probe}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(30));
    assert_eq!(restarts(&world, "a"), 0);
    world.wire.is_well(80, false);
    let before = world.now();
    world.until("runs again", |w| restarts(w, "a") == 1);
    assert!(world.now() - before < s(6), "three failures a second apart");
    assert_eq!(told(&world, "Unhealthy"), ["Liveness probe failed: no"]);
    assert_eq!(
        told(&world, "Killing"),
        ["Container c failed liveness probe, will be restarted"]
    );
    world.wire.is_well(80, true);
    world.advance(s(60));
    assert_eq!(restarts(&world, "a"), 1, "the next is given a chance");
    assert_eq!(world.phase("a"), Some(PodPhase::Running));
}

#[test]
fn a_startup_probe_holds_the_others_back() {
    // PROBE-08 PROBE-11 PROBE-40 EVT-17
    let world = settled();
    for port in [81, 82, 83] {
        world.wire.is_well(port, false);
    }
    let mut startup = tcp(81);
    startup["failureThreshold"] = json!(30);
    let all = json!({"startupProbe": startup, "readinessProbe": tcp(82), "livenessProbe": tcp(83)});
    world.apply(&[probed("a", all)]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(10));
    assert_eq!(container(&world, "a").started, Some(false));
    assert_eq!(
        (world.wire.take_asked(82), world.wire.take_asked(83)),
        (0, 0)
    );
    assert!(world.wire.take_asked(81) >= 9);
    for port in [81, 82, 83] {
        world.wire.is_well(port, true);
    }
    world.until("has started", |w| container(w, "a").started == Some(true));
    world.until("is ready", |w| is_ready(w, "a"));
    world.advance(s(2));
    world.wire.take_asked(81);
    world.advance(s(10));
    assert_eq!(world.wire.take_asked(81), 0, "it has had its say");
    assert!(world.wire.take_asked(83) >= 9);
    // The next instance starts over.
    let id = world
        .fake
        .container(&PodUid::from("a"), "c")
        .expect("runs")
        .id;
    world.wire.is_well(81, false);
    world.fake.exit(&id, 1);
    world.until("runs again", |w| {
        let again = container(w, "a");
        again.restart_count == 1 && again.state.running.is_some()
    });
    assert_eq!(container(&world, "a").started, Some(false));
    assert!(!is_ready(&world, "a"));
    world.advance(s(40));
    world.until("is killed for it", |w| restarts(w, "a") >= 2);
    assert_eq!(
        told(&world, "Killing")[0],
        "Container c failed startup probe, will be restarted"
    );
}

#[test]
fn commands() {
    // PROBE-20 EVT-01
    let world = settled();
    world.apply(&[probed(
        "a",
        json!({"livenessProbe": exec(&["sh"]), "readinessProbe": exec(&["echo", "hello"])}),
    )]);
    world.until("is ready", |w| is_ready(w, "a"));
    world.apply(&[
        probed(
            "a",
            json!({"livenessProbe": exec(&["sh"]), "readinessProbe": exec(&["echo", "hello"])}),
        ),
        probed("b", json!({"livenessProbe": exec(&["sh", "-c", "exit 1"])})),
    ]);
    world.until("b is killed", |w| restarts(w, "b") >= 1);
    assert_eq!(restarts(&world, "a"), 0);
    // A probe that ends with an error does not count, and is tried three times.
    let id = world
        .fake
        .container(&PodUid::from("a"), "c")
        .expect("runs")
        .id;
    let e = RuntimeError::Failed(format!("container {id} is busy"));
    world.fake.add_fault(Fault {
        op: Op::Exec,
        target: Some("a".into()),
        times: 3000,
        trouble: Trouble::Fails(e),
    });
    world.advance(s(30));
    assert!(is_ready(&world, "a") && restarts(&world, "a") == 0);
    let text = "Readiness probe errored and resulted in unknown state: container c is busy";
    assert!(
        told(&world, "Unhealthy").iter().any(|t| t == text),
        "{:?}",
        told(&world, "Unhealthy")
    );
}

#[test]
fn a_command_that_takes_too_long() {
    // PROBE-20
    let world = settled();
    world.apply(&[probed("a", json!({"readinessProbe": exec(&["true"])}))]);
    world.until("is ready", |w| is_ready(w, "a"));
    world
        .fake
        .add_fault(fault(Op::Exec, 10, Trouble::TimesOut(s(1))));
    world.until("is not ready", |w| !is_ready(w, "a"));
    let text = "Readiness probe failed: command timed out: \"true\" timed out after 1s";
    assert_eq!(told(&world, "Unhealthy"), [text]);
    world.until("is ready again", |w| is_ready(w, "a"));
}

#[test]
fn what_an_instance_said_is_not_said_of_the_next() {
    // PROBE-06 SM-15
    let world = settled();
    world.wire.set(80, Port::Waits(ProbeAnswer::Success));
    world.apply(&[probed("a", json!({"readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 1, "timeoutSeconds": 600}}))]);
    world.until("is asked", |w| w.wire.take_asked(80) == 1);
    let id = world
        .fake
        .container(&PodUid::from("a"), "c")
        .expect("runs")
        .id;
    world.fake.exit(&id, 1);
    world.until("runs again", |w| {
        let again = container(w, "a");
        again.restart_count == 1 && again.state.running.is_some()
    });
    world.wire.is_well(80, false);
    world.wire.release();
    world.settle();
    assert!(!is_ready(&world, "a"), "it was the other that was well");
    world.advance(s(10));
    assert!(!is_ready(&world, "a"));
    world.wire.is_well(80, true);
    world.until("is ready", |w| is_ready(w, "a"));
}

#[test]
fn a_pod_that_goes_during_a_probe() {
    // SYNC-20 SYNC-22
    let world = settled();
    let slow =
        |port| json!({"tcpSocket": {"port": port}, "periodSeconds": 1, "timeoutSeconds": 600});
    for port in [80, 81] {
        let answer = ProbeAnswer::Failure("late".into());
        world.wire.set(port, Port::Waits(answer));
    }
    world.apply(&[probed(
        "a",
        json!({"readinessProbe": slow(80), "livenessProbe": slow(81)}),
    )]);
    for port in [80, 81] {
        world.until("is asked", |w| w.wire.take_asked(port) == 1);
    }
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    world.wire.release();
    world.advance(s(10));
    assert_eq!(world.wire.take_asked(80), 0);
    assert_eq!(told(&world, "Unhealthy"), [""; 0]);
    // The pod comes again under its UID.
    world.wire.is_well(80, true);
    world.apply(&[probed("a", json!({"readinessProbe": slow(80)}))]);
    world.until("is ready", |w| is_ready(w, "a"));
}

#[test]
fn a_pod_turns_unready_while_it_drains() {
    // PROBE-14 SYNC-20
    let world = settled();
    world
        .fake
        .on_stop("c", crate::runtime::fake::OnStop::Ignores);
    let mut pod = probed(
        "a",
        json!({"readinessProbe": tcp(80), "livenessProbe": tcp(81)}),
    );
    pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
    world.apply(&[pod]);
    world.until("is ready", |w| is_ready(w, "a"));
    world.apply(&[]);
    world.advance(s(2));
    world.wire.take_asked(80);
    world.wire.take_asked(81);
    world.wire.is_well(80, false);
    world.wire.is_well(81, false);
    world.advance(s(10));
    assert!(world.wire.take_asked(80) >= 9);
    assert_eq!(
        world.wire.take_asked(81),
        0,
        "nothing kills what ends anyway"
    );
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn a_sidecar_with_a_startup_probe() {
    // ACT-55 ACT-57 PROBE-02
    let world = settled();
    world.wire.is_well(81, false);
    let sidecar = json!({"name": "s", "image": IMAGE, "command": ["sleep"], "restartPolicy": "Always",
        "startupProbe": {"tcpSocket": {"port": 81}, "periodSeconds": 1, "failureThreshold": 1000},
        "livenessProbe": tcp(82)});
    world.apply(&[manifest("a", json!({"initContainers": [sidecar]}))]);
    world.advance(s(20));
    let uid = PodUid::from("a");
    assert!(world.fake.container(&uid, "c").is_none(), "it waits");
    world.wire.is_well(81, true);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.wire.is_well(82, false);
    world.until("the sidecar is started again", |w| {
        w.fake
            .container(&uid, "s")
            .is_some_and(|c| c.restart_count == 1)
    });
    assert_eq!(restarts(&world, "a"), 0);
    assert_eq!(
        told(&world, "Killing"),
        ["Init container s failed liveness probe, will be restarted"]
    );
    let recorder = &world.parts.tools.recorder;
    let unhealthy = recorder
        .newest_events(None, usize::MAX)
        .into_iter()
        .find(|e| *e.reason == *"Unhealthy");
    assert_eq!(
        unhealthy.map(|e| e.field_path.to_string()).as_deref(),
        Some("spec.initContainers{s}")
    );
}

#[test]
fn a_warning_is_a_success() {
    // PROBE-33 EVT-18
    let world = settled();
    let text = "Probe terminated redirects, Response body: x";
    world.wire.answers(80, ProbeAnswer::Warning(text.into()));
    let probe = json!({"httpGet": {"port": 80}, "periodSeconds": 1});
    world.apply(&[probed("a", json!({"readinessProbe": probe}))]);
    world.until("is ready", |w| is_ready(w, "a"));
    assert_eq!(
        told(&world, "ProbeWarning"),
        [format!("Readiness probe warning: {text}")]
    );
}

#[test]
fn another_agent_flips_nothing() {
    // PROBE-03 PROBE-15
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    let ready = |api: &FakeApi| {
        let pod = api.get("ns", "a").expect("there");
        let all = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "startupProbe": tcp(81),
        "readinessProbe": {"tcpSocket": {"port": 80}, "periodSeconds": 60}, "livenessProbe": tcp(82)});
    let uid = api.create("a", json!({"containers": [container]}));
    world.until("is ready", |_| ready(&api));
    world.advance(s(60));
    let world = world.restart_agent();
    world.apply(&[]);
    world.until("is known", |w| w.phase(&uid).is_some());
    let asked = world.wire.take_asked(80);
    for _ in 0..50 {
        world.advance(Duration::from_millis(100));
        let status = &world.status(&uid).expect("status").container_statuses[0];
        assert!(status.ready && status.started == Some(true) && ready(&api));
    }
    world.wire.is_well(80, false);
    world.advance(s(60));
    assert!(world.wire.take_asked(80) >= 1, "{asked}");
    world.until("has its say", |_| !ready(&api));
    assert_eq!(
        world
            .fake
            .container(&PodUid::from(&*uid), "c")
            .expect("runs")
            .restart_count,
        0
    );
    // A container with a new instance is not ready just because the last instance was.
    world.wire.is_well(80, true);
    world.until("is ready again", |_| ready(&api));
    world.wire.set(80, Port::Hangs);
    let id = world
        .fake
        .container(&PodUid::from(&*uid), "c")
        .expect("runs")
        .id;
    let world = world.restart_agent_with(|fake| assert!(fake.exit(&id, 1)));
    world.apply(&[]);
    world.until("runs again", |w| {
        w.fake
            .container(&PodUid::from(&*uid), "c")
            .is_some_and(|c| c.restart_count == 1 && c.state == ContainerState::Running)
    });
    world.advance(s(30));
    assert!(!ready(&api));
}

/// Seconds after which a change by an answer is in the API.
const SHOWN_S: u64 = 1;

#[test]
fn results_are_in_the_api_within_a_second() {
    // PROBE-12 SM-04
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    world.advance(s(30));
    world.wire.is_well(80, false);
    let container =
        json!({"name": "c", "image": IMAGE, "command": ["sleep"], "readinessProbe": tcp(80)});
    api.create("a", json!({"containers": [container]}));
    let shown = |api: &FakeApi| {
        let pod = api.get("ns", "a").expect("there");
        pod["status"]["containerStatuses"][0]["ready"].as_bool()
    };
    world.until("runs", |_| api.phase("a") == "Running");
    world.advance(s(10));
    assert_eq!(shown(&api), Some(false));
    world.wire.is_well(80, true);
    world.advance(s(1 + SHOWN_S));
    assert_eq!(shown(&api), Some(true), "a period and a second");
}

#[test]
fn the_clock_jumps() {
    // PROBE-03 SVC-15
    let world = settled();
    world.wire.is_well(81, false);
    let probe = json!({"tcpSocket": {"port": 81}, "periodSeconds": 1, "initialDelaySeconds": 60});
    world.apply(&[probed("a", json!({"livenessProbe": probe}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.advance(s(5));
    world.jump(50 * 365 * 86_400);
    world.advance(s(50));
    assert_eq!(
        (world.wire.take_asked(81), restarts(&world, "a")),
        (0, 0),
        "the delay goes on"
    );
    world.until("is probed", |w| w.wire.take_asked(81) > 0);
    world.jump(-60 * 365 * 86_400);
    world.wire.take_asked(81);
    world.wire.is_well(81, true);
    world.advance(s(10));
    assert!((9..=11).contains(&world.wire.take_asked(81)));
}

#[test]
fn a_pod_in_the_hosts_network_is_asked_where_the_node_is() {
    // PROBE-24 STAT-32
    let world = settled();
    let node = &world.parts.owners.node;
    let known = node.host_ips();
    let mut pod = probed("a", json!({"readinessProbe": tcp(80)}));
    pod["spec"]["hostNetwork"] = json!(true);
    world.apply(&[pod]);
    world.until("is ready", |w| is_ready(w, "a"));
    assert_eq!(world.wire.last_asked(), known.first().copied());
    let moved = IpAddr::from([192, 0, 2, 77]);
    node.set_host_ips(vec![moved]);
    world.advance(s(5));
    assert_eq!(world.wire.last_asked(), Some(moved));
    let shown = world.status("a").expect("status").pod_ip;
    assert_eq!(shown.parse().ok(), known.first().copied());
    // Without a cluster the node looks at its own addresses.
    let (disk, clock) = (world.parts.machine.disk.clone(), &world.parts.tools.clock);
    let followed = follow_addresses(Rc::clone(node), Vec::new(), disk, Rc::clone(clock));
    let mut followed = pin!(followed);
    let mut go_on = || smol::future::block_on(smol::future::poll_once(&mut followed));
    assert!(go_on().is_none());
    assert_eq!(node.host_ips(), [moved]);
    world.advance(LOOK);
    let patience = mono_now() + s(60);
    while node.host_ips() != known {
        assert!(go_on().is_none() && mono_now() < patience);
        std::thread::yield_now();
    }
}

#[test]
fn hook_of_a_stalled_server() {
    // KILL-05 HOOK-05
    let world = settled();
    let mut probe = tcp(81);
    probe["terminationGracePeriodSeconds"] = json!(20);
    let stop = json!({"preStop": {"httpGet": {"port": 80}}});
    world.apply(&[probed(
        "a",
        json!({"livenessProbe": probe, "lifecycle": stop}),
    )]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    world.wire.hook_hangs();
    world.wire.is_well(81, false);
    world.until("is asked to stop", |w| w.wire.hanging_hooks() == 1);
    let asked = world.now();
    world.wire.is_well(81, true);
    world.until("runs again", |w| {
        restarts(w, "a") == 1 && container(w, "a").state.running.is_some()
    });
    assert!(world.now() - asked >= s(20), "it has its whole grace");
    // The request ends before the next instance, which has the same address, could take it.
    assert_eq!(world.wire.hanging_hooks(), 0);
    assert_eq!(world.wire.take_asked(80), 1);
    assert_eq!(told(&world, "FailedPreStopHook"), [""; 0]);
    world.advance(s(60));
    assert_eq!((restarts(&world, "a"), world.wire.take_asked(80)), (1, 0));
}

#[test]
fn hooks() {
    // HOOK-01 HOOK-03 HOOK-05 EVT-19
    let world = settled();
    let get = json!({"httpGet": {"port": 80, "scheme": "HTTPS"}});
    let pod = |uid: &str| {
        probed(
            uid,
            json!({"lifecycle": {"postStart": get, "preStop": get}}),
        )
    };
    world
        .wire
        .hook_ends(Ok(HookOutcome::InPlainText("10.0.0.1:80".into())));
    world.apply(&[pod("a")]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert_eq!(
        told(&world, "LifecycleHTTPFallback"),
        [
            "request to HTTPS lifecycle hook 10.0.0.1:80 got HTTP response, retry with HTTP succeeded"
        ]
    );
    let unanswered = UnansweredRequest {
        url: "secret".into(),
        source: ProbeRequestError::Peer("EOF".into()),
    };
    world.wire.hook_ends(Err(unanswered.clone()));
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert_eq!(told(&world, "FailedPreStopHook"), ["PreStopHook failed"]);
    world.wire.hook_ends(Err(unanswered));
    world.apply(&[pod("b")]);
    world.until("fails", |w| w.events_of("FailedPostStartHook") == 1);
    world.until("runs all the same", |w| {
        restarts(w, "b") == 1 && container(w, "b").state.running.is_some()
    });
    assert_eq!(
        told(&world, "FailedPostStartHook"),
        ["PostStartHook failed"]
    );
    // A hook without an address, without a port, or without a handler.
    let containers = json!([{"name": "c", "image": IMAGE, "command": ["sleep"],
        "lifecycle": {"preStop": {"sleep": {"seconds": 3}}}}]);
    world.apply(&[manifest("d", json!({"containers": containers}))]);
    world.until("runs", |w| w.phase("d") == Some(PodPhase::Running));
    let before = world.now();
    world.apply(&[]);
    // HOOK-04
    world.until("is stopped", |w| !w.fake.runs(&PodUid::from("d")));
    assert!(world.now() - before >= s(3));
    assert_eq!(world.events_of("FailedPreStopHook"), 1);
}
