use alloc::{string::String, vec::Vec};

use super::*;
use crate::api::pod::{Probe, RestartPolicy, VolumeMount};
use crate::api::pod_status::{PodCondition, PodStatus};
use crate::api::{ContainerId, MonoTime, Pod, WallTime, cri::PodRuntimeStatus};
use crate::probe::ProbeResults;
use crate::reason_cache::ReasonCache;
use crate::testing::NoProbes;
use crate::testing::{container, exited, instance, nth, pod_with, running_pod, sidecar};

/// All probes of every instance have this result.
struct All(Option<ProbeResult>);

impl ProbeResults for All {
    fn liveness(&self, _: &ContainerId) -> Option<ProbeResult> {
        self.0
    }
    fn readiness(&self, _: &ContainerId) -> Option<ProbeResult> {
        self.0
    }
    fn startup(&self, _: &ContainerId) -> Option<ProbeResult> {
        self.0
    }
}

struct World {
    pod: Pod,
    runtime: PodRuntimeStatus,
    old: PodStatus,
    reasons: ReasonCache,
}

impl World {
    fn new(pod: Pod, containers: Vec<cri::ContainerStatus>) -> Self {
        Self {
            pod,
            runtime: running_pod(containers),
            old: PodStatus::default(),
            reasons: ReasonCache::default(),
        }
    }
    fn probed(&self, kind: ContainerListKind, probes: &dyn ProbeResults) -> Vec<ContainerStatus> {
        let input = StatusInput {
            pod: &self.pod,
            runtime: &self.runtime,
            cached: Some(&self.old),
            finished: false,
            failure: None,
            reasons: &self.reasons,
            probes,
            host_ips: &[],
            runtime_name: "picolet",
            recursive_read_only: true,
            resizable: false,
            resize: None,
            now: WallTime::from_unix_seconds(1000),
            moment: &|_| MonoTime(0),
        };
        container_statuses(&input, kind)
    }
    fn of(&self, kind: ContainerListKind) -> Vec<ContainerStatus> {
        self.probed(kind, &NoProbes)
    }
    /// Shows the regular container `a` once, then makes `containers` those of the runtime.
    fn then(mut self, containers: Vec<cri::ContainerStatus>) -> Self {
        self.old.container_statuses = self.of(ContainerListKind::Regular);
        self.old.init_container_statuses = self.of(ContainerListKind::Init);
        self.runtime.containers = containers;
        self
    }
    fn failing(mut self, name: &str) -> Self {
        self.reasons
            .record_start_failure(&self.pod.metadata.uid, name, "ErrImagePull", "no route");
        self
    }
}

/// `waiting R`, `running`, `exit N R`, then `last …`, then `xN` for restarts.
fn text(s: &ContainerStatus) -> String {
    let state = |state: &ContainerState| match (&state.waiting, &state.running, &state.terminated) {
        (Some(w), None, None) => format!("waiting {}", w.reason),
        (None, Some(_), None) => "running".into(),
        (None, None, Some(t)) => format!("exit {} {}", t.exit_code, t.reason),
        (None, None, None) => String::new(),
        other => panic!("two states at once: {other:?}"),
    };
    let mut line = state(&s.state);
    let last = state(&s.last_state);
    if !last.is_empty() {
        line += &format!(", last {last}");
    }
    if s.restart_count > 0 {
        line += &format!(", x{}", s.restart_count);
    }
    line
}

use State::{Created, Running as Runs, Unknown};

#[test]
fn from_the_runtime_alone() {
    // STAT-20 WAIT-02 WAIT-20
    for (name, containers, expected) in [
        ("nothing", vec![], "waiting ContainerCreating"),
        ("created", vec![instance("a", Created)], "waiting "),
        ("running", vec![instance("a", Runs)], "running"),
        ("completed", vec![exited("a", 0)], "exit 0 Completed"),
        ("failed", vec![exited("a", 3)], "exit 3 Error"),
        ("unknown", vec![instance("a", Unknown)], "waiting "),
        (
            "second newest is the last state, older ones are ignored",
            vec![
                nth(2, instance("a", Runs)),
                nth(1, exited("a", 1)),
                nth(0, exited("a", 2)),
            ],
            "running, last exit 1 Error, x2",
        ),
    ] {
        let world = World::new(pod_with(&["a"]), containers);
        assert_eq!(
            text(&world.of(ContainerListKind::Regular)[0]),
            expected,
            "{name}"
        );
    }
    let mut pod = pod_with(&["a"]);
    pod.spec.init_containers = vec![container("i")];
    pod.spec.ephemeral_containers = vec![container("e")];
    let world = World::new(pod, vec![]);
    for kind in [
        ContainerListKind::Init,
        ContainerListKind::Regular,
        ContainerListKind::Ephemeral,
    ] {
        assert_eq!(
            text(&world.of(kind)[0]),
            "waiting PodInitializing",
            "{kind:?}"
        );
    }
}

#[test]
fn carried_from_the_report_before() {
    let a = || pod_with(&["a"]);
    let run = || instance("a", Runs);
    // STAT-20 STAT-24 STAT-25 WAIT-24
    for (name, world, expected) in [
        (
            "vanished while running",
            World::new(a(), vec![run()]).then(vec![]),
            "waiting ContainerCreating, last exit 137 ContainerStatusUnknown, x1",
        ),
        (
            "vanished, and stays so",
            World::new(a(), vec![run()]).then(vec![]).then(vec![]),
            "waiting ContainerCreating, last exit 137 ContainerStatusUnknown, x1",
        ),
        (
            "vanished while running, with a last state",
            World::new(a(), vec![nth(1, run()), exited("a", 5)]).then(vec![]),
            "waiting ContainerCreating, last exit 5 Error, x1",
        ),
        (
            "terminated and removed stays terminated",
            World::new(a(), vec![nth(3, exited("a", 5))]).then(vec![]),
            "exit 5 Error, x3",
        ),
        (
            "counts never fall",
            World::new(a(), vec![nth(3, run())]).then(vec![nth(0, run())]),
            "running, x3",
        ),
        (
            "running after a reported end counts one more",
            World::new(a(), vec![nth(3, exited("a", 5))]).then(vec![nth(0, run())]),
            "running, last exit 5 Error, x4",
        ),
        (
            "unless its count is higher already",
            World::new(a(), vec![nth(3, exited("a", 5))]).then(vec![nth(4, run())]),
            "running, last exit 5 Error, x4",
        ),
        (
            "same instance: its last state is kept",
            World::new(a(), vec![nth(1, run()), exited("a", 5)]).then(vec![nth(1, run())]),
            "running, last exit 5 Error, x1",
        ),
        (
            "lost while running",
            World::new(a(), vec![run()]).then(vec![instance("a", Unknown)]),
            "exit 137 ContainerStatusUnknown, x1",
        ),
        (
            "lost, and stays so",
            World::new(a(), vec![run()])
                .then(vec![instance("a", Unknown)])
                .then(vec![instance("a", Unknown)]),
            "exit 137 ContainerStatusUnknown, x1",
        ),
    ] {
        assert_eq!(
            text(&world.of(ContainerListKind::Regular)[0]),
            expected,
            "{name}"
        );
    }
    let mut deleted = World::new(a(), vec![run()]).then(vec![]);
    deleted.pod.metadata.deletion_timestamp = Some(WallTime::from_unix_seconds(1));
    assert_eq!(
        text(&deleted.of(ContainerListKind::Regular)[0]),
        "waiting ContainerCreating, last exit 137 ContainerStatusUnknown",
        "no restart in a pod being deleted"
    );
}

#[test]
fn an_ephemeral_container_that_the_runtime_has_forgotten() {
    // ACT-70 WAIT-24
    let unknown = "exit 137 ContainerStatusUnknown";
    for (name, containers, expected) in [
        ("it had not begun", vec![], "waiting ContainerCreating"),
        ("it ran", vec![instance("e", Runs)], unknown),
        ("it has ended", vec![exited("e", 3)], "exit 3 Error"),
    ] {
        let mut pod = pod_with(&["a"]);
        pod.spec.ephemeral_containers = vec![container("e")];
        let mut world = World::new(pod, containers);
        for _ in 0..2 {
            world.old.ephemeral_container_statuses = world.of(ContainerListKind::Ephemeral);
            world.runtime.containers.clear();
        }
        assert_eq!(
            text(&world.of(ContainerListKind::Ephemeral)[0]),
            expected,
            "{name}"
        );
        // An earlier agent wanted to start the container again, and showed its end as the last state.
        let shown = &mut world.old.ephemeral_container_statuses[0];
        if shown.state.terminated.is_some() {
            shown.last_state =
                core::mem::replace(&mut shown.state, waiting_state("", String::new()));
        }
        let world = world.failing("e");
        let failed = "waiting ErrImagePull";
        let begun = expected.starts_with("exit");
        let expected = if begun { expected } else { failed };
        assert_eq!(
            text(&world.of(ContainerListKind::Ephemeral)[0]),
            expected,
            "{name}"
        );
    }
}

fn out_of_memory(name: &str) -> cri::ContainerStatus {
    cri::ContainerStatus {
        reason: "OOMKilled".into(),
        ..exited(name, 0)
    }
}

#[test]
fn start_failures() {
    let never = || {
        let mut pod = pod_with(&["a"]);
        pod.spec.restart_policy = RestartPolicy::Never;
        pod
    };
    let with_init = |init: Container| {
        let mut pod = pod_with(&["a"]);
        pod.spec.init_containers = vec![init];
        pod
    };
    // WAIT-01 WAIT-13
    for (name, world, kind, expected) in [
        (
            "never started",
            World::new(pod_with(&["a"]), vec![]).failing("a"),
            ContainerListKind::Regular,
            "waiting ErrImagePull",
        ),
        (
            "due to restart: the end moves to the last state",
            World::new(pod_with(&["a"]), vec![nth(2, exited("a", 1))]).failing("a"),
            ContainerListKind::Regular,
            "waiting ErrImagePull, last exit 1 Error, x2",
        ),
        (
            "not due: the end stays visible",
            World::new(never(), vec![exited("a", 1)]).failing("a"),
            ContainerListKind::Regular,
            "exit 1 Error",
        ),
        (
            "running",
            World::new(pod_with(&["a"]), vec![instance("a", Runs)]).failing("a"),
            ContainerListKind::Regular,
            "running",
        ),
        (
            "an init container that succeeded",
            World::new(with_init(container("i")), vec![exited("i", 0)]).failing("i"),
            ContainerListKind::Init,
            "exit 0 Completed",
        ),
        (
            "an init container that ended with 0 for want of memory",
            World::new(with_init(container("i")), vec![out_of_memory("i")]).failing("i"),
            ContainerListKind::Init,
            "waiting ErrImagePull, last exit 0 OOMKilled",
        ),
        (
            "the same, and the pod went on",
            World::new(
                with_init(container("i")),
                vec![instance("a", Runs), out_of_memory("i")],
            )
            .failing("i"),
            ContainerListKind::Init,
            "exit 0 OOMKilled",
        ),
        (
            "a sidecar that exited 0",
            World::new(with_init(sidecar("s")), vec![exited("s", 0)]).failing("s"),
            ContainerListKind::Init,
            "exit 0 Completed",
        ),
        (
            "an init container that failed",
            World::new(with_init(container("i")), vec![exited("i", 1)]).failing("i"),
            ContainerListKind::Init,
            "waiting ErrImagePull, last exit 1 Error",
        ),
    ] {
        assert_eq!(text(&world.of(kind)[0]), expected, "{name}");
    }
    let world = World::new(pod_with(&["a"]), vec![]).failing("a");
    let status = &world.of(ContainerListKind::Regular)[0];
    let waiting = status.state.waiting.as_ref().expect("waiting");
    assert_eq!(waiting.message, "no route");
}

#[test]
fn init_container_gone_from_the_runtime() {
    // WAIT-25
    let mut pod = pod_with(&["a"]);
    pod.spec.init_containers = vec![container("i"), sidecar("s")];
    let world = World::new(pod, vec![instance("a", Runs)]);
    let statuses = world.of(ContainerListKind::Init);
    assert_eq!(text(&statuses[0]), "exit 0 Completed");
    assert!(statuses[0].ready);
    assert_eq!(
        text(&statuses[1]),
        "waiting PodInitializing",
        "a sidecar should run"
    );
}

#[test]
fn identity_and_order() {
    // STAT-20 STAT-22
    let mut pod = pod_with(&["b", "a"]);
    pod.spec.init_containers = vec![container("z"), container("y")];
    let world = World::new(pod, vec![exited("a", 0)]);
    let names = |kind| {
        world
            .of(kind)
            .iter()
            .map(|s| s.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(ContainerListKind::Regular), ["a", "b"]);
    assert_eq!(names(ContainerListKind::Init), ["z", "y"]);
    let statuses = world.of(ContainerListKind::Regular);
    let (a, b) = (&statuses[0], &statuses[1]);
    assert_eq!(a.container_id, "picolet://a-0");
    assert_eq!(a.image_id, "img@sha256:1");
    let end = a.state.terminated.as_ref().expect("ended");
    assert_eq!(end.container_id, "picolet://a-0");
    assert_eq!(end.finished_at, Some(WallTime::from_unix_seconds(102)));
    assert_eq!((b.image.as_str(), b.image_id.as_str()), ("img", ""));
    assert_eq!(b.container_id, "");
}

#[test]
fn described_by_spec_and_runtime() {
    // STAT-28 RRO-03 STS-02 OAV-03
    let mut pod = pod_with(&["a"]);
    let mount = |name: &str, read_only, mode: Option<&str>| VolumeMount {
        name: name.into(),
        mount_path: format!("/{name}"),
        read_only,
        recursive_read_only: mode.map(Into::into),
        ..VolumeMount::default()
    };
    pod.spec.containers[0].volume_mounts = vec![
        mount("rw", false, None),
        mount("ro", true, None),
        mount("rro", true, Some("Enabled")),
        mount("maybe", true, Some("IfPossible")),
        mount("older", true, Some("IfPossible")),
        mount("image", false, None),
    ];
    let cpu = crate::api::Quantity::parse("1").expect("quantity");
    pod.spec.containers[0]
        .resources
        .requests
        .insert("cpu".into(), cpu);
    let mut run = instance("a", Runs);
    run.user = Some((5, 6, vec![7]));
    run.stop_signal = "SIGQUIT".into();
    // The instance tells what was mounted: the runtime may have learned it since.
    let made = |path: &str, recursive_read_only, image: &str| cri::MountStatus {
        container_path: path.into(),
        recursive_read_only,
        image: image.into(),
    };
    run.mounts = vec![
        made("/rro", true, ""),
        made("/maybe", true, ""),
        made("/image", false, "img@sha256:2"),
    ];
    let waits = World::new(pod.clone(), vec![])
        .of(ContainerListKind::Regular)
        .remove(0);
    let old = ContainerStatus {
        resources: Some(pod.spec.containers[0].resources.clone()),
        allocated_resources: pod.spec.containers[0].resources.requests.clone(),
        ..waits.clone()
    };
    let mut world = World::new(pod, vec![run]);
    world.old.container_statuses = vec![old];
    let status = world.of(ContainerListKind::Regular).remove(0);
    let modes: Vec<_> = status
        .volume_mounts
        .iter()
        .map(|m| m.recursive_read_only.as_deref())
        .collect();
    let (off, on) = (Some("Disabled"), Some("Enabled"));
    assert_eq!(modes, [None, off, on, on, off, None]);
    let planned = waits.volume_mounts[4].recursive_read_only.as_deref();
    assert_eq!(planned, on, "not created yet");
    let image = status.volume_mounts[5].volume_status.as_ref();
    let image = image.and_then(|volume| volume.image.as_ref());
    assert_eq!(image.map(|i| i.image_ref.as_str()), Some("img@sha256:2"));
    assert_eq!(
        (status.stop_signal.as_str(), waits.stop_signal.as_str()),
        ("SIGQUIT", "")
    );
    // RSZ-04
    for status in [&status, &waits] {
        assert!(status.allocated_resources.is_empty() && status.resources.is_none());
    }
    // SEC-13
    let user = status.user.and_then(|u| u.linux).expect("user");
    assert_eq!(
        (user.uid, user.gid, user.supplemental_groups),
        (5, 6, vec![7])
    );
}

#[test]
fn started_and_ready() {
    let yes = Some(ProbeResult::Success);
    let no = Some(ProbeResult::Failure);
    let probe = || Some(Probe::default());
    // PROBE-40 PROBE-41
    for (name, startup, readiness, state, result, expected) in [
        ("running, no probes", false, false, Runs, None, (true, true)),
        ("created", false, false, Created, None, (false, false)),
        ("exited", false, false, State::Exited, None, (false, false)),
        ("startup open", true, false, Runs, None, (false, false)),
        ("startup passed", true, false, Runs, yes, (true, true)),
        ("startup failed", true, false, Runs, no, (false, false)),
        ("readiness open", false, true, Runs, None, (true, false)),
        ("readiness passed", false, true, Runs, yes, (true, true)),
        ("readiness failed", false, true, Runs, no, (true, false)),
        (
            "not started is not ready",
            true,
            true,
            Runs,
            None,
            (false, false),
        ),
    ] {
        for sidecar_too in [false, true] {
            let mut c = if sidecar_too {
                sidecar("a")
            } else {
                container("a")
            };
            c.startup_probe = if startup { probe() } else { None };
            c.readiness_probe = if readiness { probe() } else { None };
            let mut pod = pod_with(&[]);
            let kind = if sidecar_too {
                pod.spec.init_containers = vec![c];
                ContainerListKind::Init
            } else {
                pod.spec.containers = vec![c];
                ContainerListKind::Regular
            };
            let world = World::new(pod, vec![instance("a", state)]);
            let status = &world.probed(kind, &All(result))[0];
            assert_eq!(
                (status.started, status.ready),
                (Some(expected.0), expected.1),
                "{name}, {kind:?}"
            );
        }
    }
    let mut pod = pod_with(&["a"]);
    pod.spec.init_containers = vec![container("i")];
    for (name, containers, ready) in [
        ("exit 0", vec![exited("i", 0)], true),
        ("exit 1", vec![exited("i", 1)], false),
        ("out of memory", vec![out_of_memory("i")], false),
        (
            "out of memory, and the pod went on",
            vec![exited("a", 0), out_of_memory("i")],
            true,
        ),
    ] {
        let world = World::new(pod.clone(), containers);
        assert_eq!(
            world.of(ContainerListKind::Init)[0].ready,
            ready,
            "plain init, {name}"
        );
    }
}

#[test]
fn agent_restart_does_not_flip() {
    // PROBE-15
    let mut pod = pod_with(&["a"]);
    pod.spec.containers[0].startup_probe = Some(Probe::default());
    pod.spec.containers[0].readiness_probe = Some(Probe::default());
    pod.status.conditions = vec![PodCondition {
        kind: READY.into(),
        status: "True".into(),
        ..PodCondition::default()
    }];
    let mut world = World::new(pod, vec![instance("a", Runs)]);
    world.old.container_statuses =
        world.probed(ContainerListKind::Regular, &All(Some(ProbeResult::Success)));
    let after = &world.of(ContainerListKind::Regular)[0];
    assert_eq!((after.started, after.ready), (Some(true), true));
    world.runtime.containers = vec![nth(1, instance("a", Runs))];
    let other = &world.of(ContainerListKind::Regular)[0];
    assert_eq!(
        (other.started, other.ready),
        (Some(false), false),
        "a new instance starts over"
    );
}

#[test]
fn restart_of_all_containers() {
    // ACT-72 RAC-02
    let mut pod = pod_with(&["a", "b"]);
    pod.spec.containers[0] = {
        use crate::api::pod::{RestartRule, RestartRuleExitCodes};
        Container {
            restart_policy: Some(RestartPolicy::Never),
            restart_policy_rules: vec![RestartRule {
                action: "RestartAllContainers".into(),
                exit_codes: Some(RestartRuleExitCodes {
                    operator: "In".into(),
                    values: vec![7],
                }),
            }],
            ..container("a")
        }
    };
    let line = |world: &World| {
        world
            .of(ContainerListKind::Regular)
            .iter()
            .map(text)
            .collect::<Vec<_>>()
            .join("; ")
    };
    let world = World::new(pod, vec![instance("a", Runs), instance("b", Runs)]);
    let world = world.then(vec![exited("a", 7)]);
    assert_eq!(
        line(&world),
        "exit 7 Error; waiting RestartingAllContainers, last exit 137 RestartingAllContainers, x1"
    );
    let world = world.then(vec![]);
    let gone = "waiting RestartingAllContainers, last exit 137 RestartingAllContainers, x1";
    assert_eq!(line(&world), format!("{gone}; {gone}"));
    let says = "The container is removed because RestartAllContainers in place";
    for status in world.of(ContainerListKind::Regular) {
        let waits = status.state.waiting.map(|w| w.message);
        let ended = status.last_state.terminated.map(|t| t.message);
        assert_eq!(
            (waits.as_deref(), ended.as_deref()),
            (Some(says), Some(says))
        );
    }
    let world = world.then(vec![nth(1, instance("a", Runs))]);
    assert_eq!(
        line(&world),
        format!("running, last exit 137 RestartingAllContainers, x1; {gone}")
    );
}
