use alloc::vec::Vec;

use serde_json::json;

use super::*;
use crate::api::Container;
use crate::api::cri::{ContainerState as State, ContainerStatus as Instance, NamespaceMode};
use crate::api::pod::{CONFIG_SOURCE, Probe, RestartPolicy};
use crate::api::pod_status::{PodCondition, QosClass};
use crate::testing::NoProbes;
use crate::testing::{
    Random, container, exited, instance, nth, pod_with, running_pod, sandbox, sidecar,
};
use RestartPolicy::{Always, Never, OnFailure};
use State::{Running, Unknown};

struct World {
    pod: Pod,
    runtime: PodRuntimeStatus,
    cached: Option<PodStatus>,
    finished: bool,
    failure: Option<PodFailure>,
    reasons: ReasonCache,
    host_ips: Vec<IpAddr>,
}

impl World {
    fn new(policy: RestartPolicy, regular: &[&str], containers: Vec<Instance>) -> Self {
        let mut pod = pod_with(regular);
        pod.spec.restart_policy = policy;
        Self {
            pod,
            runtime: running_pod(containers),
            cached: None,
            finished: false,
            failure: None,
            reasons: ReasonCache::default(),
            host_ips: vec!["192.168.0.9".parse().expect("address")],
        }
    }
    fn inits(mut self, inits: Vec<Container>) -> Self {
        self.pod.spec.init_containers = inits;
        self
    }
    fn finished(mut self) -> Self {
        self.finished = true;
        self
    }
    fn crashing(mut self, name: &str) -> Self {
        self.reasons
            .record_start_failure(&self.pod.metadata.uid, name, "CrashLoopBackOff", "");
        self
    }
    fn with(mut self, edit: impl FnOnce(&mut Self)) -> Self {
        edit(&mut self);
        self
    }
    fn status(&self) -> PodStatus {
        generate_pod_status(&StatusInput {
            pod: &self.pod,
            runtime: &self.runtime,
            cached: self.cached.as_ref(),
            finished: self.finished,
            failure: self.failure.as_ref(),
            reasons: &self.reasons,
            probes: &NoProbes,
            host_ips: &self.host_ips,
            runtime_name: "picolet",
            recursive_read_only: false,
            resizable: false,
            resize: None,
            now: WallTime(1_000_900_000_000),
            moment: &|_| MonoTime(0),
        })
    }
}

/// A container that never restarts, unless it ends with 42.
fn with_restart_rule(name: &str) -> Container {
    let spec = json!({"name": name, "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]});
    serde_json::from_value(spec).expect("container")
}

fn run(name: &str) -> Instance {
    instance(name, Running)
}

#[test]
fn phases_of_regular_containers() {
    let is_static = |w: &mut World| {
        let note = (CONFIG_SOURCE.into(), "file".into());
        w.pod.metadata.annotations.extend([note]);
    };
    let ab = |policy, containers| World::new(policy, &["a", "b"], containers);
    use PodPhase::{Failed, Pending, Running, Succeeded};
    // STAT-04 STAT-05 STAT-06 STAT-08 STAT-09 STAT-10 SYNC-27 CRR-02 RAC-02
    for (name, world, expected) in [
        ("nothing yet", ab(Always, vec![]), Pending),
        (
            "one waits, though one runs",
            ab(Always, vec![run("a")]),
            Pending,
        ),
        ("all run", ab(Always, vec![run("a"), run("b")]), Running),
        (
            "one ended",
            ab(Never, vec![run("a"), exited("b", 1)]),
            Running,
        ),
        (
            "a lost one waits",
            ab(Always, vec![run("a"), instance("b", Unknown)]),
            Pending,
        ),
        (
            "always: between restarts",
            ab(Always, vec![exited("a", 0), exited("b", 0)]),
            Running,
        ),
        (
            "crash loop",
            World::new(Always, &["a"], vec![exited("a", 1)]).crashing("a"),
            Running,
        ),
        (
            "on failure: one failed",
            ab(OnFailure, vec![exited("a", 0), exited("b", 1)]),
            Running,
        ),
        (
            "on failure: all succeeded",
            ab(OnFailure, vec![exited("a", 0), exited("b", 0)]),
            Succeeded,
        ),
        (
            "never: all succeeded",
            ab(Never, vec![exited("a", 0), exited("b", 0)]),
            Succeeded,
        ),
        (
            "never: one failed",
            ab(Never, vec![exited("a", 0), exited("b", 1)]),
            Failed,
        ),
        (
            "own policy restarts one",
            ab(Never, vec![exited("a", 0), exited("b", 1)])
                .with(|w| w.pod.spec.containers[1].restart_policy = Some(Always)),
            Running,
        ),
        (
            "own rule restarts one",
            ab(Never, vec![exited("a", 0), exited("b", 42)])
                .with(|w| w.pod.spec.containers[1] = with_restart_rule("b")),
            Running,
        ),
        (
            "own rule restarts one of a static pod",
            ab(Never, vec![exited("a", 0), exited("b", 42)])
                .with(|w| w.pod.spec.containers[1] = with_restart_rule("b"))
                .with(is_static),
            Running,
        ),
        (
            "own rule does not match: none restarts",
            ab(Always, vec![exited("a", 0), exited("b", 41)])
                .with(|w| w.pod.spec.containers[0].restart_policy = Some(Never))
                .with(|w| w.pod.spec.containers[1] = with_restart_rule("b")),
            Failed,
        ),
        (
            "own policies: none restarts, all succeeded",
            ab(Always, vec![exited("a", 0), exited("b", 0)])
                .with(|w| w.pod.spec.containers[0].restart_policy = Some(Never))
                .with(|w| w.pod.spec.containers[1].restart_policy = Some(OnFailure)),
            Succeeded,
        ),
        (
            "for good: all succeeded, whatever the policy",
            ab(Always, vec![exited("a", 0), exited("b", 0)]).finished(),
            Succeeded,
        ),
        (
            "for good: one failed",
            ab(Always, vec![exited("a", 0), exited("b", 137)]).finished(),
            Failed,
        ),
        (
            "for good, but one never started",
            ab(Always, vec![exited("a", 0)]).finished(),
            Pending,
        ),
        (
            "for good, static: by policy",
            ab(Always, vec![exited("a", 0), exited("b", 0)])
                .finished()
                .with(is_static),
            Running,
        ),
        (
            "for good, static, never",
            ab(Never, vec![exited("a", 0), exited("b", 0)])
                .finished()
                .with(is_static),
            Succeeded,
        ),
        (
            "removed for its pod to start over, whatever its own policy",
            World::new(Always, &["a"], vec![]).with(|w| {
                w.pod.spec.containers[0].restart_policy = Some(Never);
                let waiting = json!({"waiting": {"reason": "RestartingAllContainers"}});
                let ended =
                    json!({"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}});
                let shown = json!({"phase": "Running", "containerStatuses": [
                    {"name": "a", "state": waiting, "lastState": ended}]});
                w.cached = serde_json::from_value(shown).ok();
            }),
            Pending,
        ),
        (
            "a crash loop shown as waiting did not succeed",
            World::new(Always, &["a"], vec![exited("a", 0)])
                .crashing("a")
                .finished(),
            // The exit code of the last state is 0, yet only a terminated state succeeds.
            Failed,
        ),
    ] {
        assert_eq!(world.status().phase, expected, "{name}");
    }
}

#[test]
fn phases_with_init_containers() {
    let with = |policy, init, containers| World::new(policy, &["a"], containers).inits(vec![init]);
    let slow = || {
        let mut sidecar = sidecar("s");
        sidecar.startup_probe = Some(Probe::default());
        sidecar
    };
    let i = || container("i");
    let s = || sidecar("s");
    let out_of_memory = |name: &str, code| {
        let mut oom = exited(name, code);
        oom.reason = "OOMKilled".into();
        oom
    };
    use PodPhase::{Failed, Pending, Running, Succeeded};
    // STAT-01 STAT-02 STAT-03 STAT-04 CRR-02
    for (name, world, expected) in [
        ("init waits", with(Never, i(), vec![]), Pending),
        ("init runs", with(Never, i(), vec![run("i")]), Pending),
        (
            "init failed for good",
            with(Never, i(), vec![exited("i", 1)]),
            Failed,
        ),
        (
            "init failed, may restart",
            with(OnFailure, i(), vec![exited("i", 1)]),
            Pending,
        ),
        (
            "init failed, own policy brings it back",
            with(Never, i(), vec![exited("i", 1)])
                .with(|w| w.pod.spec.init_containers[0].restart_policy = Some(OnFailure)),
            Pending,
        ),
        (
            "init failed, own rule brings it back",
            with(Never, with_restart_rule("i"), vec![exited("i", 42)]),
            Pending,
        ),
        (
            "init failed, own rule does not match",
            with(Always, with_restart_rule("i"), vec![exited("i", 41)]),
            Failed,
        ),
        (
            "init in a crash loop",
            with(Always, i(), vec![exited("i", 1)]).crashing("i"),
            Pending,
        ),
        (
            "init done, regular not yet",
            with(Always, i(), vec![exited("i", 0)]),
            Pending,
        ),
        (
            "out of memory with exit 0, for good",
            with(Never, i(), vec![out_of_memory("i", 0)]),
            Failed,
        ),
        (
            "out of memory with exit 0, may restart",
            with(OnFailure, i(), vec![out_of_memory("i", 0)]),
            Pending,
        ),
        (
            "out of memory with exit 0, and the pod went on",
            with(Never, i(), vec![run("a"), out_of_memory("i", 0)]),
            Running,
        ),
        (
            "a regular container out of memory with exit 0",
            with(Never, i(), vec![exited("i", 0), out_of_memory("a", 0)]),
            Succeeded,
        ),
        (
            "a regular container out of memory with exit 1",
            with(Never, i(), vec![exited("i", 0), out_of_memory("a", 1)]),
            Failed,
        ),
        (
            "sidecar runs, not started",
            with(Always, slow(), vec![run("s")]),
            Pending,
        ),
        (
            "sidecar restarts beside a running container",
            with(Always, slow(), vec![run("s"), run("a")]),
            Running,
        ),
        (
            "sidecar missing beside a running container",
            with(Always, s(), vec![run("a")]),
            Pending,
        ),
        (
            "sidecar crashed beside a running container",
            with(Always, s(), vec![run("a"), exited("s", 1)]).crashing("s"),
            Running,
        ),
        (
            "sidecar still runs after the end",
            with(Never, s(), vec![run("s"), exited("a", 0)]),
            Running,
        ),
        (
            "sidecar exit codes never count",
            with(Never, s(), vec![exited("s", 137), exited("a", 0)]),
            Succeeded,
        ),
    ] {
        assert_eq!(world.status().phase, expected, "{name}");
    }
    // The init container was created in a lost sandbox, and the pod began without it: the pod does not wait for it.
    let mut passed_over = instance("i", State::Created);
    let world = with(Always, i(), vec![passed_over.clone(), run("a")]);
    assert_eq!(world.status().phase, Running, "an init passed over");
    passed_over.sandbox = "sb-old".into();
    let world = with(Always, i(), vec![passed_over.clone(), run("a")]);
    assert_eq!(world.status().phase, Running, "of an old sandbox");
    let mut old = exited("a", 137);
    old.sandbox = "sb-old".into();
    passed_over.sandbox = run("a").sandbox;
    let world = with(Always, i(), vec![passed_over, old]);
    assert_eq!(world.status().phase, Pending, "an init about to start");
    // The regular container belongs to the sandbox before the reboot: the sidecar holds the pod pending.
    let mut old = exited("a", 137);
    old.sandbox = "sb-old".into();
    let world = with(Always, slow(), vec![run("s"), old]);
    assert_eq!(world.status().phase, Pending, "instance of an old sandbox");
}

#[test]
fn terminal_phases_stick() {
    let failed = |reason: &str| PodStatus {
        phase: PodPhase::Failed,
        reason: reason.into(),
        message: "m".into(),
        ..PodStatus::default()
    };
    let succeeded = || PodStatus {
        phase: PodPhase::Succeeded,
        ..PodStatus::default()
    };
    let running = |reason: &str| PodStatus {
        phase: PodPhase::Running,
        reason: reason.into(),
        ..PodStatus::default()
    };
    let evicted = PodFailure {
        reason: "Evicted".into(),
        disruption: None,
        message: "disk".into(),
    };
    let older = World::new(Never, &["a"], vec![exited("a", 0)]).with(|w| {
        w.cached = Some(failed(""));
    });
    assert_eq!(
        older.status().phase,
        PodPhase::Failed,
        "not swapped here either"
    );
    // STAT-12 SYNC-34 SYNC-01
    for (name, api, cached, failure, phase, reason) in [
        (
            "local terminal phase",
            running(""),
            Some(failed("R")),
            None,
            PodPhase::Failed,
            "R",
        ),
        (
            "terminal in the API",
            failed("Lost"),
            None,
            None,
            PodPhase::Failed,
            "Lost",
        ),
        (
            "terminal in the API, running here",
            failed("Lost"),
            Some(running("")),
            None,
            PodPhase::Failed,
            "Lost",
        ),
        (
            "not swapped once in the API",
            succeeded(),
            Some(failed("R")),
            None,
            PodPhase::Succeeded,
            "",
        ),
        (
            "an eviction does not swap it either",
            succeeded(),
            None,
            Some(&evicted),
            PodPhase::Succeeded,
            "",
        ),
        (
            "reason kept with the phase",
            running(""),
            Some(running("R")),
            None,
            PodPhase::Running,
            "R",
        ),
        (
            "a wait that is over is told no more",
            running(DEVICE_NOT_READY),
            Some(running(DEVICE_NOT_READY)),
            None,
            PodPhase::Running,
            "",
        ),
        (
            "reason dropped with the phase",
            PodStatus::default(),
            Some(PodStatus {
                reason: "R".into(),
                ..PodStatus::default()
            }),
            None,
            PodPhase::Running,
            "",
        ),
        (
            "eviction",
            running(""),
            None,
            Some(&evicted),
            PodPhase::Failed,
            "Evicted",
        ),
        (
            "the API's status is the base without a local one",
            running("R"),
            None,
            None,
            PodPhase::Running,
            "R",
        ),
    ] {
        let world = World::new(Always, &["a"], vec![run("a")]).with(|w| {
            w.pod.status = api;
            w.cached = cached;
            w.failure = failure.cloned();
        });
        let status = world.status();
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (phase, reason),
            "{name}"
        );
    }
}

#[test]
fn addresses() {
    let ips = |list: &[&str]| -> Vec<IpAddr> {
        list.iter().map(|t| t.parse().expect("address")).collect()
    };
    let text = |s: &PodStatus| {
        s.pod_ips
            .iter()
            .map(|e| e.ip.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let before = |list: &[&str]| {
        Some(PodStatus {
            pod_ips: list.iter().map(|ip| IpEntry { ip: (*ip).into() }).collect(),
            ..PodStatus::default()
        })
    };
    // STAT-30 STAT-32
    for (name, host, ready, known, cached, host_network, expected) in [
        (
            "v4 node",
            &["1.1.1.1"][..],
            true,
            &["fd00::2", "10.0.0.2", "10.0.0.3"][..],
            None,
            false,
            "10.0.0.2 fd00::2",
        ),
        (
            "v6 node",
            &["fd00::1"],
            true,
            &["10.0.0.2", "fd00:0:0::2"],
            None,
            false,
            "fd00::2 10.0.0.2",
        ),
        (
            "unknown node: the runtime's order",
            &[],
            true,
            &["fd00::2", "10.0.0.2"],
            None,
            false,
            "fd00::2 10.0.0.2",
        ),
        (
            "exited pod keeps its address",
            &["1.1.1.1"],
            false,
            &[],
            before(&["10.0.0.2"]),
            false,
            "10.0.0.2",
        ),
        (
            "a new sandbox without one does not",
            &["1.1.1.1"],
            true,
            &[],
            before(&["10.0.0.2"]),
            false,
            "",
        ),
        (
            "host network",
            &["1.1.1.1"],
            true,
            &[],
            None,
            true,
            "1.1.1.1",
        ),
        (
            "host network is set once",
            &["1.1.1.9"],
            true,
            &[],
            before(&["1.1.1.1"]),
            true,
            "1.1.1.1",
        ),
        (
            "second family is appended",
            &["1.1.1.1", "fd00::1"],
            true,
            &[],
            before(&["1.1.1.1"]),
            true,
            "1.1.1.1 fd00::1",
        ),
        (
            "same family is not",
            &["1.1.1.1", "1.1.1.2"],
            true,
            &[],
            before(&["1.1.1.1"]),
            true,
            "1.1.1.1",
        ),
    ] {
        let world = World::new(Always, &["a"], vec![run("a")]).with(|w| {
            w.host_ips = ips(host);
            w.cached = cached;
            w.pod.spec.host_network = host_network;
            let state = if ready {
                SandboxState::Ready
            } else {
                SandboxState::NotReady
            };
            let mut sandbox = sandbox(0, state);
            sandbox.ips = ips(known);
            if host_network {
                sandbox.namespaces.network = NamespaceMode::Node;
            }
            w.runtime.ips = if ready { ips(known) } else { vec![] };
            w.runtime.sandboxes = vec![sandbox];
        });
        let status = world.status();
        assert_eq!(text(&status), expected, "{name}");
        assert_eq!(
            status.pod_ip,
            expected.split(' ').next().unwrap_or(""),
            "{name}"
        );
        assert_eq!(
            status.host_ip,
            host.first().copied().unwrap_or(""),
            "{name}"
        );
        assert_eq!(status.host_ips.len(), host.len(), "{name}");
    }
}

#[test]
fn times_classes_generations() {
    // STAT-33 STAT-28
    let mut world = World::new(Always, &["a"], vec![run("a")]);
    world.pod.metadata.generation = 4;
    let first = world.status();
    assert_eq!(
        first.start_time,
        Some(WallTime::from_unix_seconds(1000)),
        "whole seconds"
    );
    assert_eq!(first.qos_class, Some(QosClass::BestEffort));
    assert_eq!(first.observed_generation, Some(4));
    assert!(
        first
            .conditions
            .iter()
            .all(|c| c.observed_generation == Some(4) && c.last_transition_time.is_some())
    );
    world.cached = Some(PodStatus {
        start_time: Some(WallTime::from_unix_seconds(7)),
        observed_generation: Some(9),
        ..PodStatus::default()
    });
    let second = world.status();
    assert_eq!(
        second.start_time,
        Some(WallTime::from_unix_seconds(7)),
        "never changes"
    );
    assert_eq!(second.observed_generation, Some(9), "never decreases");
}

#[test]
fn conditions_of_a_pod() {
    // STAT-40 STAT-42
    let foreign = |kind: &str| PodCondition {
        kind: kind.into(),
        status: "False".into(),
        reason: "theirs".into(),
        ..PodCondition::default()
    };
    let world = World::new(Always, &["a"], vec![run("a")]).with(|w| {
        w.pod.status.conditions = vec![
            foreign("x/gate"),
            foreign("Ready"),
            foreign("PodResizePending"),
        ];
    });
    let status = world.status();
    let line: Vec<_> = status
        .conditions
        .iter()
        .map(|c| format!("{}={}", c.kind, c.status))
        .collect();
    assert_eq!(
        line,
        [
            "x/gate=False",
            "PodReadyToStartContainers=True",
            "Initialized=True",
            "Ready=True",
            "ContainersReady=True",
            "PodScheduled=True",
        ]
    );
    assert_eq!(
        status.conditions[0],
        foreign("x/gate"),
        "passed through untouched"
    );
}

#[test]
fn condition_of_a_restart_of_all_containers() {
    // RAC-01
    let rules = |w: &mut World| {
        let own = json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "RestartAllContainers",
            "exitCodes": {"operator": "In", "values": [42]}}]});
        for container in &mut w.pod.spec.containers {
            let mut spec = own.clone();
            spec["name"] = container.name.clone().into();
            *container = serde_json::from_value(spec).expect("container");
        }
    };
    let shown = |policy, containers| {
        let world = World::new(policy, &["a", "b"], containers).with(rules);
        let status = world.status();
        let found = conditions::find_condition(&status.conditions, conditions::ALL_RESTARTING);
        let found = found.expect("the pod has such a rule");
        format!("{} {} {}", found.status, found.reason, found.message)
    };
    assert_eq!(shown(Always, vec![run("a"), run("b")]), "False  ");
    assert_eq!(
        shown(Always, vec![exited("a", 42), run("b")]),
        "True RestartAllContainersStarted container a exited with 42"
    );
    assert_eq!(
        shown(Always, vec![exited("a", 42), exited("b", 42)]),
        "True RestartAllContainersStarted container a exited with 42; container b exited with 42"
    );
    assert_eq!(shown(Always, vec![]), "False  ", "removed");
    let ended = |code| vec![exited("a", 0), exited("b", code)];
    assert_eq!(shown(Never, ended(0)), "False PodCompleted ");
    assert_eq!(shown(Never, ended(1)), "False PodFailed ");
    let without = World::new(Always, &["a"], vec![run("a")]).status();
    assert!(conditions::find_condition(&without.conditions, conditions::ALL_RESTARTING).is_none());
}

#[test]
fn rejected() {
    // LOOP-10 STAT-14 ADM-03
    let pod = pod_with(&["a"]);
    let status = rejected_status(&pod, "OutOfcpu", "no cpu", WallTime::from_unix_seconds(5));
    assert_eq!(status.phase, PodPhase::Failed);
    assert_eq!(status.reason, "OutOfcpu");
    assert_eq!(status.message, "Pod was rejected: no cpu");
    assert_eq!(status.qos_class, Some(QosClass::BestEffort));
    assert_eq!(status.start_time, Some(WallTime::from_unix_seconds(5)));
    assert!(status.container_statuses.is_empty() && status.conditions.is_empty());
    // LOOP-22: whatever the runtime shows later, it stays so.
    let world = World::new(Always, &["a"], vec![run("a")]).with(|w| w.cached = Some(status));
    let later = world.status();
    assert_eq!(
        (later.phase, later.reason.as_str()),
        (PodPhase::Failed, "OutOfcpu")
    );
}

#[test]
fn deadline() {
    // LOOP-19 KILL-21
    let mut pod = pod_with(&["a"]);
    let secs = |s| Some(Duration::from_secs(s));
    assert_eq!(
        past_active_deadline(&pod, secs(1_000_000)),
        None,
        "none set"
    );
    pod.spec.active_deadline_seconds = Some(60);
    assert_eq!(past_active_deadline(&pod, None), None, "no start time");
    assert_eq!(past_active_deadline(&pod, secs(59)), None);
    let failure = past_active_deadline(&pod, secs(60)).expect("past");
    assert_eq!(failure.reason, "DeadlineExceeded");
    let world = World::new(Always, &["a"], vec![run("a")]).with(|w| w.failure = Some(failure));
    let status = world.status();
    assert_eq!(
        (status.phase, status.message.as_str()),
        (
            PodPhase::Failed,
            "Pod was active on the node longer than the specified deadline"
        )
    );
}

#[test]
fn never_regresses() {
    // STAT-12 STAT-20 STAT-33 SYNC-34: over a random life, a terminal phase, the start time and restart counts stay.
    let mut random = Random(11);
    for life in 0..400 {
        let policy = [Always, OnFailure, Never][usize::try_from(random.below(3)).expect("small")];
        let mut world = World::new(policy, &["a", "b"], vec![]);
        if random.one_in(2) {
            world.pod.spec.init_containers = vec![container("i"), sidecar("s")];
        }
        let mut terminal = None;
        for step in 0..30_u32 {
            world.runtime.containers.clear();
            for name in ["a", "b", "i", "s"] {
                for n in (0..u32::try_from(random.below(4)).expect("small")).rev() {
                    let state = [State::Created, Running, State::Exited, Unknown]
                        [usize::try_from(random.below(4)).expect("small")];
                    let mut one = nth(n, instance(name, state));
                    one.exit_code = i32::from(random.one_in(2));
                    world.runtime.containers.push(one);
                }
            }
            if random.one_in(9) {
                world
                    .reasons
                    .record_start_failure(&"uid".into(), "a", "CrashLoopBackOff", "x");
            }
            world.finished |= random.one_in(20);
            if random.one_in(6) {
                world.runtime.sandboxes.clear();
            } else if world.runtime.sandboxes.is_empty() {
                world.runtime.sandboxes = vec![sandbox(0, SandboxState::Ready)];
            }
            let status = world.status();
            if let Some(before) = &world.cached {
                assert_eq!(status.start_time, before.start_time, "{life}/{step}");
                for list in [
                    (&before.container_statuses, &status.container_statuses),
                    (
                        &before.init_container_statuses,
                        &status.init_container_statuses,
                    ),
                ] {
                    for (old, new) in list.0.iter().zip(list.1) {
                        assert!(
                            new.restart_count >= old.restart_count,
                            "{life}/{step} {}",
                            new.name
                        );
                    }
                }
            }
            if let Some(phase) = terminal {
                assert_eq!(status.phase, phase, "{life}/{step}");
            } else if status.phase.is_terminal() {
                terminal = Some(status.phase);
                world.pod.status.phase = status.phase;
            }
            world.cached = Some(status);
        }
    }
}
