use alloc::{boxed::Box, string::ToString as _, vec::Vec};

use super::*;
use crate::api::pod::CONFIG_SOURCE;
use crate::api::pod_status::{PodCondition, Running, Terminated, Waiting};
use crate::testing::{container, merge_for_api, pod_with, sidecar};

fn waits(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            waiting: Some(Waiting::default()),
            ..ContainerState::default()
        },
        ..ContainerStatus::default()
    }
}

fn runs(name: &str) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            running: Some(Running {
                started_at: Some(WallTime(1_500_000_000)),
            }),
            ..ContainerState::default()
        },
        started: Some(true),
        ready: true,
        ..ContainerStatus::default()
    }
}

fn ended(name: &str, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        name: name.into(),
        state: ContainerState {
            terminated: Some(Box::new(Terminated {
                exit_code,
                ..Terminated::default()
            })),
            ..ContainerState::default()
        },
        ..ContainerStatus::default()
    }
}

fn condition(kind: &str, status: &str) -> PodCondition {
    PodCondition {
        kind: kind.into(),
        status: status.into(),
        ..PodCondition::default()
    }
}

fn status(phase: PodPhase, regular: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        phase,
        container_statuses: regular,
        ..PodStatus::default()
    }
}

#[test]
fn normal_form() {
    // SM-01 TMSG-04 STAT-28
    let mut pod = pod_with(&["b", "a"]);
    pod.spec.init_containers = vec![container("z"), container("y")];
    let mut long = ended("a", 1);
    long.state.terminated.as_mut().expect("ended").message = "é".repeat(5000);
    let mut new = status(PodPhase::Running, vec![runs("b"), long]);
    new.init_container_statuses = vec![ended("y", 0), ended("z", 0)];
    normalise_status(
        &pod,
        &mut new,
        &PodStatus::default(),
        WallTime(9_900_000_000),
    );
    let names = |list: &[ContainerStatus]| {
        list.iter()
            .map(|s| s.name.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(names(&new.container_statuses), "a b");
    assert_eq!(names(&new.init_container_statuses), "z y");
    let message = &new.container_statuses[0]
        .state
        .terminated
        .as_ref()
        .expect("ended")
        .message;
    assert_eq!(message.len(), 3072, "four containers share 12 KiB");
    let started = new.container_statuses[1].state.running.as_ref();
    assert_eq!(
        started.and_then(|r| r.started_at),
        Some(WallTime::from_unix_seconds(1))
    );
    assert_eq!(new.start_time, Some(WallTime::from_unix_seconds(9)));
    let mut again = new.clone();
    normalise_status(&pod, &mut again, &new, WallTime::from_unix_seconds(99));
    assert_eq!(again, new, "normalising twice changes nothing");
}

#[test]
fn equality() {
    // SM-01
    let base = || {
        let mut s = status(PodPhase::Running, vec![runs("a")]);
        s.conditions = vec![condition("Ready", "True"), condition("x/foreign", "True")];
        s
    };
    type Edit = fn(&mut PodStatus);
    let rows: [(&str, Edit, bool); 8] = [
        ("nothing", |_| {}, true),
        (
            "condition time",
            |s| s.conditions[0].last_transition_time = Some(WallTime(1)),
            true,
        ),
        ("condition order", |s| s.conditions.reverse(), true),
        (
            "foreign condition",
            |s| s.conditions[1].status = "False".into(),
            true,
        ),
        (
            "own condition",
            |s| s.conditions[0].status = "False".into(),
            false,
        ),
        (
            "own condition's message",
            |s| s.conditions[0].message = "m".into(),
            false,
        ),
        (
            "restart count",
            |s| s.container_statuses[0].restart_count = 1,
            false,
        ),
        ("phase", |s| s.phase = PodPhase::Failed, false),
    ];
    for (name, edit, same) in rows {
        let mut other = base();
        edit(&mut other);
        assert_eq!(same_status(&base(), &other), same, "{name}");
    }
}

#[test]
fn judging() {
    use RestartPolicy::{Always, Never, OnFailure};
    // SM-03
    for (name, policy, own, code, legal) in [
        ("always", Always, None, 1, true),
        ("never", Never, None, 0, false),
        ("on failure, failed", OnFailure, None, 1, true),
        ("on failure, ok", OnFailure, None, 0, false),
        ("own policy", Never, Some(Always), 0, true),
    ] {
        let mut pod = pod_with(&["a"]);
        pod.spec.restart_policy = policy;
        pod.spec.containers[0].restart_policy = own;
        let old = status(PodPhase::Running, vec![ended("a", code)]);
        let new = status(PodPhase::Running, vec![runs("a")]);
        let expected = if legal {
            StatusVerdict::Changed
        } else {
            StatusVerdict::Illegal {
                container: "a".into(),
            }
        };
        assert_eq!(
            judge_status(&pod, Some(&old), &new, false),
            expected,
            "{name}"
        );
        let mut another = new.clone();
        another.container_statuses[0].container_id = "picolet://another".into();
        assert_eq!(
            judge_status(&pod, Some(&old), &another, false),
            StatusVerdict::Changed,
            "{name}: another instance runs"
        );
        // The id may repeat: the start time tells two instances apart.
        for (start_s, expected) in [(7, expected), (8, StatusVerdict::Changed)] {
            let mut past = old.clone();
            let end = past.container_statuses[0].state.terminated.as_mut();
            end.expect("ended").finished_at = Some(WallTime::from_unix_seconds(8));
            let mut later = new.clone();
            let run = later.container_statuses[0].state.running.as_mut();
            run.expect("runs").started_at = Some(WallTime::from_unix_seconds(start_s));
            let judged = judge_status(&pod, Some(&past), &later, false);
            assert_eq!(judged, expected, "{name}: started at {start_s} s");
        }
        assert_eq!(
            judge_status(&pod, Some(&old), &old, false),
            StatusVerdict::Same,
            "{name}: unchanged"
        );
    }
    let mut pod = pod_with(&["a"]);
    pod.spec.restart_policy = Never;
    pod.spec.init_containers = vec![sidecar("s"), container("i")];
    let init = |list| PodStatus {
        init_container_statuses: list,
        ..PodStatus::default()
    };
    let old = init(vec![ended("s", 1), ended("i", 1)]);
    let sidecar_back = init(vec![runs("s"), ended("i", 1)]);
    assert_eq!(
        judge_status(&pod, Some(&old), &sidecar_back, false),
        StatusVerdict::Changed
    );
    let init_back = init(vec![ended("s", 1), runs("i")]);
    assert!(matches!(
        judge_status(&pod, Some(&old), &init_back, false),
        StatusVerdict::Illegal { .. }
    ));
    for (policy, legal) in [(OnFailure, true), (Never, false)] {
        pod.spec.restart_policy = policy;
        let mut killed = ended("i", 0);
        let end = killed.state.terminated.as_mut();
        end.expect("ended").reason = "OOMKilled".into();
        let killed = init(vec![ended("s", 1), killed]);
        let again = init(vec![ended("s", 1), waits("i")]);
        let judged = judge_status(&pod, Some(&killed), &again, false);
        assert_eq!(
            judged == StatusVerdict::Changed,
            legal,
            "{policy:?}: {judged:?}"
        );
    }
    // SM-01 DEL-01
    let same = status(PodPhase::Running, vec![runs("a")]);
    let mut pod = pod_with(&["a"]);
    assert_eq!(
        judge_status(&pod, None, &same, false),
        StatusVerdict::Changed,
        "first"
    );
    assert_eq!(
        judge_status(&pod, Some(&same), &same, false),
        StatusVerdict::Same
    );
    assert_eq!(
        judge_status(&pod, Some(&same), &same, true),
        StatusVerdict::Changed,
        "forced"
    );
    pod.metadata.deletion_timestamp = Some(WallTime(1));
    assert_eq!(
        judge_status(&pod, Some(&same), &same, false),
        StatusVerdict::Changed,
        "deleted"
    );
}

#[test]
fn end_of_termination() {
    let line = |status: &PodStatus| {
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .map(|s| {
                let end = s.state.terminated.as_ref();
                end.map_or_else(|| "-".into(), |t| t.exit_code.to_string())
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    let restarted = |name: &str| ContainerStatus {
        last_state: ended(name, 0).state,
        ..waits(name)
    };
    let started = |name: &str| runs(name);
    // SM-10 DEL-03
    for (name, inits, init_statuses, regular, expected, phase) in [
        (
            "no inits",
            vec![],
            vec![],
            vec![ended("a", 0), runs("b")],
            "0 137",
            PodPhase::Failed,
        ),
        (
            "never initialised: regulars stay, the first init counts",
            vec![container("i"), container("j")],
            vec![waits("i"), waits("j")],
            vec![waits("a"), waits("b")],
            "137 - - -",
            PodPhase::Failed,
        ),
        (
            "the second init had begun",
            vec![container("i"), container("j"), container("k")],
            vec![ended("i", 0), runs("j"), waits("k")],
            vec![waits("a"), waits("b")],
            "0 137 - - -",
            PodPhase::Failed,
        ),
        (
            "evidence in the last state",
            vec![container("i"), container("j")],
            vec![
                ended("i", 0),
                ContainerStatus {
                    last_state: ended("j", 1).state,
                    ..waits("j")
                },
            ],
            vec![waits("a"), waits("b")],
            "0 137 - -",
            PodPhase::Failed,
        ),
        (
            "last init succeeded",
            vec![container("i")],
            vec![ended("i", 0)],
            vec![waits("a"), waits("b")],
            "0 137 137",
            PodPhase::Failed,
        ),
        (
            "last init ended with 0 for want of memory",
            vec![container("i")],
            vec![{
                let mut oom = ended("i", 0);
                let end = oom.state.terminated.as_mut();
                end.expect("ended").reason = "OOMKilled".into();
                oom
            }],
            vec![waits("a"), waits("b")],
            "0 - -",
            PodPhase::Failed,
        ),
        (
            "last init is a started sidecar",
            vec![sidecar("i")],
            vec![started("i")],
            vec![waits("a"), waits("b")],
            "137 137 137",
            PodPhase::Failed,
        ),
        (
            "a regular container had run",
            vec![container("i")],
            vec![waits("i")],
            vec![restarted("a"), waits("b")],
            "137 137 137",
            PodPhase::Failed,
        ),
    ] {
        let mut pod = pod_with(&["a", "b"]);
        pod.spec.init_containers = inits;
        let mut stored = status(PodPhase::Running, regular);
        stored.init_container_statuses = init_statuses;
        let last = finished_status(&pod, &stored, WallTime::from_unix_seconds(3));
        assert_eq!(line(&last), expected, "{name}");
        assert_eq!(last.phase, phase, "{name}");
        let mut all = last
            .init_container_statuses
            .iter()
            .chain(&last.container_statuses);
        assert!(all.all(|c| c.state.running.is_none()), "{name}");
    }
    let reasons = finished_status(
        &pod_with(&["a"]),
        &status(PodPhase::Running, vec![runs("a")]),
        WallTime::from_unix_seconds(3),
    );
    let end = reasons.container_statuses[0].state.terminated.as_ref();
    assert_eq!(end.expect("ended").reason, "ContainerStatusUnknown");
    assert!(!reasons.container_statuses[0].ready);
    assert!(
        reasons
            .conditions
            .iter()
            .all(|c| c.status == "False" && c.reason == "PodFailed")
    );
    let done = status(PodPhase::Succeeded, vec![ended("a", 0)]);
    let last = finished_status(&pod_with(&["a"]), &done, WallTime::from_unix_seconds(3));
    assert_eq!(last.phase, PodPhase::Succeeded, "a terminal phase stays");
    let mut file = pod_with(&["a"]);
    file.metadata
        .annotations
        .insert(CONFIG_SOURCE.into(), "file".into());
    let last = finished_status(
        &file,
        &status(PodPhase::Running, vec![runs("a")]),
        WallTime(0),
    );
    assert_eq!(
        last.phase,
        PodPhase::Running,
        "static pods get no forced phase"
    );
}

#[test]
fn what_the_api_gets() {
    let api = || {
        let mut s = status(PodPhase::Running, vec![runs("a")]);
        s.reason = "api".into();
        s.conditions = vec![condition("x/foreign", "True"), condition("Ready", "True")];
        s
    };
    let stored = |phase| {
        let mut s = status(phase, vec![ended("a", 1)]);
        s.reason = "local".into();
        s.conditions = vec![
            condition("Ready", "True"),
            condition("ContainersReady", "True"),
            condition("DisruptionTarget", "True"),
            condition("x/foreign", "False"),
        ];
        s
    };
    let line = |s: &PodStatus| {
        let mut words = vec![format!("{} {}", s.phase.as_str(), s.reason)];
        words.extend(
            s.conditions
                .iter()
                .map(|c| format!("{}={}", c.kind, c.status)),
        );
        words.join(", ")
    };
    let now = WallTime::from_unix_seconds(50);
    // SM-07 SM-08 DEL-02
    for (name, phase, may_run, expected) in [
        (
            "running",
            PodPhase::Running,
            true,
            "Running local, x/foreign=True, Ready=True, ContainersReady=True",
        ),
        (
            "failed, containers may still run: withheld",
            PodPhase::Failed,
            true,
            "Running api, x/foreign=True, Ready=True, ContainersReady=True",
        ),
        (
            "failed and stopped",
            PodPhase::Failed,
            false,
            "Failed local, x/foreign=True, Ready=False, ContainersReady=False, DisruptionTarget=True",
        ),
    ] {
        let merged = merge_for_api(&api(), &stored(phase), may_run, now);
        assert_eq!(line(&merged), expected, "{name}");
        assert_eq!(
            merged.container_statuses,
            stored(phase).container_statuses,
            "{name}"
        );
    }
    let sent = merge_for_api(&api(), &stored(PodPhase::Failed), false, now);
    let disruption = conditions::find_condition(&sent.conditions, DISRUPTION_TARGET).expect("sent");
    assert_eq!(disruption.last_transition_time, Some(now));
    let mut ended_api = api();
    ended_api.phase = PodPhase::Failed;
    let again = merge_for_api(&ended_api, &stored(PodPhase::Failed), true, now);
    assert_eq!(
        again.phase,
        PodPhase::Failed,
        "already there: nothing to withhold"
    );
}

#[test]
fn between_syncs() {
    // ACT-24 SYNC-16 LOOP-18 SM-15
    let pod = pod_with(&["a"]);
    let line = |s: &PodStatus| {
        s.conditions
            .iter()
            .map(|c| format!("{}={}", c.kind, c.status))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut a = runs("a");
    a.container_id = "picolet://a-0".into();
    a.ready = false;
    let mut base = status(PodPhase::Running, vec![a]);
    base.conditions = vec![condition("PodReadyToStartContainers", "False")];
    let up = with_condition(
        &pod,
        &base,
        conditions::sandbox_up_condition(),
        WallTime::from_unix_seconds(4),
    );
    assert_eq!(line(&up), "PodReadyToStartContainers=True");
    assert_eq!(
        up.conditions[0].last_transition_time,
        Some(WallTime::from_unix_seconds(4))
    );
    let probe = |status: &PodStatus, id: &str, change| {
        with_probe_result(&pod, status, id, change, WallTime::from_unix_seconds(5))
    };
    let ready = probe(&up, "picolet://a-0", ProbeChange::Ready(true)).expect("changes");
    assert_eq!(
        line(&ready),
        "PodReadyToStartContainers=True Ready=True ContainersReady=True"
    );
    assert_eq!(
        probe(&ready, "picolet://a-0", ProbeChange::Ready(true)),
        None,
        "says so already"
    );
    assert_eq!(
        probe(&ready, "picolet://a-9", ProbeChange::Ready(false)),
        None,
        "unknown id"
    );
    assert_eq!(probe(&ready, "", ProbeChange::Ready(false)), None, "no id");
    let stopped = probe(&ready, "picolet://a-0", ProbeChange::Started(false)).expect("changes");
    assert_eq!(stopped.container_statuses[0].started, Some(false));
    // PROBE-40
    let mut not_yet = up.clone();
    not_yet.container_statuses[0].started = Some(false);
    let mut dead = up.clone();
    dead.container_statuses[0].state = unobserved_terminated_state(1, "Error", "");
    for (name, status, change) in [
        ("not started", &not_yet, ProbeChange::Ready(true)),
        ("has ended", &dead, ProbeChange::Ready(true)),
        ("has ended", &dead, ProbeChange::Started(false)),
    ] {
        assert_eq!(probe(status, "picolet://a-0", change), None, "{name}");
    }
}
