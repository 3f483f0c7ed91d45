use alloc::{boxed::Box, string::String, vec::Vec};

use super::*;
use crate::api::pod::ReadinessGate;
use crate::api::pod_status::{ContainerState, Running, Terminated, Waiting};
use crate::testing::{container, pod_with, running_pod, sidecar};

fn waits(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            waiting: Some(Waiting::default()),
            ..ContainerState::default()
        },
        started: Some(false),
        ..ContainerStatus::default()
    }
}

fn runs(name: &str, ready: bool) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            running: Some(Running::default()),
            ..ContainerState::default()
        },
        started: Some(true),
        ready,
        ..ContainerStatus::default()
    }
}

fn ended(name: &str, code: i32) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            terminated: Some(Box::new(Terminated {
                exit_code: code,
                ..Terminated::default()
            })),
            ..ContainerState::default()
        },
        ready: code == 0,
        started: Some(false),
        ..ContainerStatus::default()
    }
}

fn status(
    phase: PodPhase,
    inits: Vec<ContainerStatus>,
    regular: Vec<ContainerStatus>,
) -> PodStatus {
    PodStatus {
        phase,
        init_container_statuses: inits,
        container_statuses: regular,
        ..PodStatus::default()
    }
}

fn text(c: &PodCondition) -> String {
    [&c.status, &c.reason, &c.message]
        .into_iter()
        .filter(|t| !t.is_empty())
        .cloned()
        .collect::<Vec<_>>()
        .join(" | ")
}

#[test]
fn initialized_condition() {
    let mut pod = pod_with(&["a"]);
    let plain = pod.spec.clone();
    pod.spec.init_containers = vec![container("i"), sidecar("s"), container("j")];
    let spec = &pod.spec;
    let yes = make_condition(INITIALIZED, true, "", String::new());
    // STAT-43
    for (name, spec, status, old, expected) in [
        (
            "no init containers",
            &plain,
            status(PodPhase::Pending, vec![], vec![waits("a")]),
            None,
            "True",
        ),
        (
            "in progress",
            spec,
            status(
                PodPhase::Pending,
                vec![ended("i", 0), waits("s"), waits("j")],
                vec![waits("a")],
            ),
            None,
            "False | ContainersNotInitialized | containers with incomplete status: [s j]",
        ),
        (
            "unknown and incomplete",
            spec,
            status(PodPhase::Pending, vec![ended("i", 1)], vec![waits("a")]),
            None,
            "False | ContainersNotInitialized | containers with unknown status: [s j], \
             containers with incomplete status: [i]",
        ),
        (
            "all passed",
            spec,
            status(
                PodPhase::Pending,
                vec![ended("i", 0), runs("s", false), ended("j", 0)],
                vec![waits("a")],
            ),
            None,
            "True",
        ),
        (
            "a regular container ran",
            spec,
            status(PodPhase::Running, vec![waits("i")], vec![ended("a", 1)]),
            None,
            "True",
        ),
        (
            "stays true over a new sandbox",
            spec,
            status(PodPhase::Pending, vec![waits("i")], vec![waits("a")]),
            Some(&yes),
            "True",
        ),
        (
            "succeeded",
            spec,
            status(
                PodPhase::Succeeded,
                vec![ended("i", 0), ended("s", 0), ended("j", 0)],
                vec![ended("a", 0)],
            ),
            None,
            "True | PodCompleted",
        ),
    ] {
        assert_eq!(
            text(&compute_initialized(spec, &status, old)),
            expected,
            "{name}"
        );
    }
}

#[test]
fn containers_ready_condition() {
    let mut pod = pod_with(&["a", "b"]);
    pod.spec.init_containers = vec![sidecar("s"), container("i")];
    // STAT-44
    for (name, status, expected) in [
        (
            "no statuses",
            status(PodPhase::Pending, vec![], vec![]),
            "False | UnknownContainerStatuses",
        ),
        (
            "all ready; a plain init does not count",
            status(
                PodPhase::Running,
                vec![runs("s", true), ended("i", 1)],
                vec![runs("a", true), runs("b", true)],
            ),
            "True",
        ),
        (
            "sidecars before regulars",
            status(
                PodPhase::Running,
                vec![runs("s", false)],
                vec![runs("a", false)],
            ),
            "False | ContainersNotReady | containers with unknown status: [b], \
             containers with unready status: [s a]",
        ),
        (
            "succeeded",
            status(
                PodPhase::Succeeded,
                vec![ended("s", 0)],
                vec![ended("a", 0), ended("b", 0)],
            ),
            "False | PodCompleted",
        ),
        (
            "failed",
            status(
                PodPhase::Failed,
                vec![runs("s", true)],
                vec![runs("a", true), ended("b", 1)],
            ),
            "False | PodFailed",
        ),
        (
            "rejected",
            status(PodPhase::Failed, vec![], vec![]),
            "False | PodFailed",
        ),
    ] {
        let got = compute_containers_ready(&pod.spec, &status);
        assert_eq!(text(&got), expected, "{name}");
    }
}

#[test]
fn ready_condition() {
    let mut pod = pod_with(&["a"]);
    pod.spec.readiness_gates = ["x/one", "x/two"]
        .map(|kind| ReadinessGate {
            condition_type: kind.into(),
        })
        .into();
    let gate = |kind: &str, status: &str| PodCondition {
        kind: kind.into(),
        status: status.into(),
        ..PodCondition::default()
    };
    let yes = make_condition(CONTAINERS_READY, true, "", String::new());
    let no = make_condition(CONTAINERS_READY, false, "ContainersNotReady", "why".into());
    // STAT-45
    for (name, ready_containers, api, expected) in [
        (
            "follows the containers",
            &no,
            vec![],
            "False | ContainersNotReady | why",
        ),
        (
            "gates met",
            &yes,
            vec![gate("x/one", "True"), gate("x/two", "True")],
            "True",
        ),
        (
            "one missing, one false",
            &yes,
            vec![gate("x/two", "False")],
            "False | ReadinessGatesNotReady | corresponding condition of pod readiness gate \
             \"x/one\" does not exist., the status of pod readiness gate \"x/two\" is not \
             \"True\", but False",
        ),
    ] {
        let got = compute_ready(&pod.spec, ready_containers, &api);
        assert_eq!(got.kind, READY);
        assert_eq!(text(&got), expected, "{name}");
    }
}

#[test]
fn sandbox_and_forced_conditions() {
    // STAT-42 SM-08
    let pod = pod_with(&["a"]);
    let mut runtime = running_pod(vec![]);
    assert_eq!(compute_ready_to_start(&pod, &runtime).status, "True");
    assert_eq!(sandbox_up_condition().status, "True");
    runtime.sandboxes.clear();
    assert_eq!(compute_ready_to_start(&pod, &runtime).status, "False");
    let [ready, containers] = compute_terminal_readiness(PodPhase::Failed).expect("terminal");
    assert_eq!(text(&ready), "False | PodFailed");
    assert_eq!(text(&containers), "False | PodFailed");
    assert!(compute_terminal_readiness(PodPhase::Running).is_none());
}

#[test]
fn times_move_with_the_value() {
    // STAT-47 STAT-33
    let at = |n| Some(WallTime::from_unix_seconds(n));
    let mut old = vec![
        make_condition(READY, false, "ContainersNotReady", "x".into()),
        make_condition(INITIALIZED, true, "", String::new()),
    ];
    stamp_conditions(&mut old, &[], 3, WallTime(5_700_000_000));
    assert_eq!(old[0].last_transition_time, at(5));
    let mut new = vec![
        make_condition(READY, false, "ReadinessGatesNotReady", "y".into()),
        make_condition(INITIALIZED, false, "", String::new()),
        PodCondition {
            kind: "foreign".into(),
            ..PodCondition::default()
        },
    ];
    stamp_conditions(&mut new, &old, 2, WallTime::from_unix_seconds(9));
    assert_eq!(new[0].last_transition_time, at(5), "same value");
    assert_eq!(new[1].last_transition_time, at(9), "new value");
    assert_eq!(new[2].last_transition_time, None, "not ours");
    assert_eq!(new[0].observed_generation, Some(3), "never goes back");
    stamp_conditions(&mut new, &old, 4, WallTime::from_unix_seconds(9));
    assert_eq!(new[0].observed_generation, Some(4));
}

#[test]
fn gates_in_the_api() {
    // LOOP-15 STAT-45
    let mut pod = pod_with(&["a"]);
    let cached = status(PodPhase::Running, vec![], vec![runs("a", true)]);
    let set = |pod: &mut Pod, list: &[(&str, bool)]| {
        pod.status.conditions = list
            .iter()
            .map(|(kind, on)| make_condition(kind, *on, "", String::new()))
            .collect();
    };
    set(&mut pod, &[(READY, false)]);
    assert!(!gates_changed(&pod, &cached), "no gates");
    pod.spec.readiness_gates = vec![ReadinessGate {
        condition_type: "x/gate".into(),
    }];
    set(&mut pod, &[("x/gate", true)]);
    assert!(!gates_changed(&pod, &cached), "not shown yet");
    set(&mut pod, &[("x/gate", true), (READY, false)]);
    assert!(gates_changed(&pod, &cached), "opened by someone");
    set(&mut pod, &[("x/gate", true), (READY, true)]);
    assert!(!gates_changed(&pod, &cached));
}
