use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};

use super::*;
use crate::api::pod::Probe;
use crate::api::pod_status::{ContainerState, ContainerStatus, Running};
use crate::probe::{ProbedContainer, ProbedContainerState};
use crate::testing::{pod_with, sidecar};

const fn at(s: u64) -> MonoTime {
    MonoTime(s * 1000)
}

fn probe() -> Option<Probe> {
    Some(Probe {
        period_seconds: 10,
        failure_threshold: 1,
        ..Probe::default()
    })
}

/// Container `a` has all three, `b` none, sidecar `s` liveness and readiness, init `i` what does not count.
fn pod() -> Pod {
    let mut pod = pod_with(&["a", "b"]);
    let a = &mut pod.spec.containers[0];
    a.startup_probe = probe();
    a.readiness_probe = probe();
    a.liveness_probe = probe();
    let mut s = sidecar("s");
    s.readiness_probe = probe();
    s.liveness_probe = probe();
    let mut i = crate::testing::container("i");
    i.readiness_probe = probe();
    pod.spec.init_containers = vec![i, s];
    pod
}

fn workers(pod: &Pod, now: MonoTime) -> ProbeWorkers<()> {
    let mut workers = ProbeWorkers::new(at(0));
    workers.add_pod_workers(pod, now, |_, _| (), |n| n / 2);
    workers
}

fn due(workers: &mut ProbeWorkers<()>, now: MonoTime) -> Vec<(String, ProbeKind, ProbeWorkerKey)> {
    let mut keys = Vec::new();
    while let Some(key) = workers.poll_due_worker(now) {
        keys.push(key);
    }
    let told = |key: ProbeWorkerKey| {
        let (_, entry) = workers.worker_entry(key).expect("there");
        let kind = entry.worker.settings().kind;
        (entry.container.to_string(), kind, key)
    };
    keys.into_iter().map(told).collect()
}

const RUNNING: ProbedContainerState = ProbedContainerState::Running {
    age_s: 0,
    adopted: false,
};

fn seen(id: &str, started: bool) -> ProbedPod<'_> {
    ProbedPod {
        ended: false,
        container: Some(ProbedContainer {
            id,
            state: RUNNING,
            started,
            ready: false,
        }),
    }
}

#[test]
fn who_is_probed() {
    // PROBE-02
    let mut all = workers(&pod(), at(100));
    all.add_pod_workers(&pod(), at(100), |_, _| (), |n| n);
    assert_eq!(all.iter().count(), 5);
    assert_eq!(all.next_due(), Some(at(100)));
    use ProbeKind::{Liveness, Readiness, Startup};
    let found: Vec<_> = due(&mut all, at(100))
        .into_iter()
        .map(|(name, kind, _)| (name, kind))
        .collect();
    let want = [
        ("a", Startup),
        ("a", Readiness),
        ("a", Liveness),
        ("s", Readiness),
        ("s", Liveness),
    ];
    assert_eq!(found, want.map(|(name, kind)| (name.to_owned(), kind)));
    let plain = workers(&pod_with(&["a"]), at(100));
    assert!(plain.pods.is_empty());
    // PROBE-03
    let mut young = workers(&pod(), at(9));
    assert_eq!(young.next_due(), Some(at(14)), "half a period later");
    assert_eq!(young.poll_due_worker(at(13)), None);
}

#[test]
fn probes_that_come_with_an_edit_are_asked() {
    // SYNC-12
    let mut pod = pod_with(&["a", "b"]);
    pod.spec.containers[0].liveness_probe = probe();
    let mut workers = workers(&pod, at(100));
    let first = due(&mut workers, at(100));
    assert_eq!(first.len(), 1);
    let add = |workers: &mut ProbeWorkers<()>, pod: &Pod| {
        workers.add_pod_workers(pod, at(105), |_, _| (), |_| 0)
    };
    assert!(!add(&mut workers, &pod), "it has all of them");
    pod.spec.containers[0].readiness_probe = probe();
    pod.spec.containers[1].liveness_probe = probe();
    assert!(add(&mut workers, &pod));
    assert!(!add(&mut workers, &pod));
    let names: Vec<_> = due(&mut workers, at(105))
        .into_iter()
        .map(|(name, kind, _)| (name, kind))
        .collect();
    let expected = [("a", ProbeKind::Readiness), ("b", ProbeKind::Liveness)];
    assert_eq!(names, expected.map(|(name, kind)| (name.to_owned(), kind)));
    let (_, entry) = workers.worker_entry(first[0].2).expect("it goes on");
    assert_eq!(entry.worker.settings().kind, ProbeKind::Liveness);
}

#[test]
fn ends() {
    // PROBE-14 SYNC-20 SYNC-22 CLEAN-03
    let pod = pod();
    let uid = &pod.metadata.uid;
    let mut all = workers(&pod, at(100));
    let found = due(&mut all, at(100));
    let id = ContainerId::from("x");
    let (_, _, liveness) = found[2].clone();
    let (_, _, readiness) = found[1].clone();
    for (_, _, key) in &found {
        all.make_pass(*key, &seen("x", true), |_| true, at(100));
    }
    assert_eq!(
        all.take_result(liveness, "x", Some(false), at(101)),
        Some(ProbeResult::Failure)
    );
    assert_eq!(
        all.pod_results(uid).liveness(&id),
        Some(ProbeResult::Failure)
    );
    assert_eq!(
        all.pod_results(uid).readiness(&id),
        Some(ProbeResult::Failure)
    );
    all.stop_pod_workers(uid, WorkersToKeep::WhileStopping);
    let all_of_a = |all: &ProbeWorkers<()>| {
        (
            all.pod_results(uid).liveness(&id),
            all.pod_results(uid).startup(&id),
        )
    };
    // The results are the sidecar's, which knows that instance too in this test.
    assert_eq!(all_of_a(&all), (Some(ProbeResult::Success), None));
    assert_eq!(
        all.take_result(readiness, "x", Some(true), at(102)),
        Some(ProbeResult::Success)
    );
    assert!(all.next_due().is_some(), "readiness goes on");
    all.retain(|_| true, at(103));
    assert_eq!(all.iter().count(), 5);
    all.retain(|_| false, at(103));
    assert!(all.pods.is_empty() && all.next_due().is_none());
    assert_eq!(all.pod_results(uid).readiness(&id), None);
    // A late result finds no worker, even if the pod is there again.
    all.add_pod_workers(&pod, at(200), |_, _| (), |n| n);
    assert_eq!(all.take_result(readiness, "x", Some(true), at(201)), None);
    assert_eq!(all.begin_probe(readiness, false, at(201)), None);
    assert!(all.worker_entry(readiness).is_none());
}

#[test]
fn readiness_does_not_wait_for_its_turn() {
    // PROBE-13
    let pod = pod();
    let uid = &pod.metadata.uid;
    let mut all = workers(&pod, at(100));
    let found = due(&mut all, at(100));
    let keys: Vec<ProbeWorkerKey> = found.iter().map(|(_, _, key)| *key).collect();
    let none = ProbedPod {
        ended: false,
        container: None,
    };
    for key in &keys {
        all.make_pass(*key, &none, |_| true, at(100));
    }
    let status = |started: Option<bool>, running: bool| PodStatus {
        container_statuses: vec![ContainerStatus {
            name: "a".into(),
            container_id: "picolet://x".into(),
            started,
            state: ContainerState {
                running: running.then(Running::default),
                ..ContainerState::default()
            },
            ..ContainerStatus::default()
        }],
        ..PodStatus::default()
    };
    for (name, status, want) in [
        ("nothing known", PodStatus::default(), false),
        ("not started", status(Some(false), true), false),
        ("has ended", status(Some(true), false), false),
        ("started", status(Some(true), true), true),
    ] {
        assert_eq!(all.trigger_readiness(uid, &status, at(103)), want, "{name}");
    }
    assert_eq!(all.next_due(), Some(at(103)));
    let found = due(&mut all, at(103));
    assert_eq!(found.len(), 1);
    let (_, kind, key) = found[0].clone();
    assert_eq!(kind, ProbeKind::Readiness);
    assert_eq!(
        all.make_pass(key, &seen("x", true), |_| true, at(103)).0,
        ProbePassStep::Ask
    );
    all.take_result(key, "x", Some(true), at(103));
    assert!(
        !all.trigger_readiness(uid, &status(Some(true), true), at(104)),
        "known to be ready"
    );
    assert!(!all.trigger_readiness(&PodUid::from("other"), &status(Some(true), true), at(104)));
}

#[test]
fn what_an_agent_before_this_one_knew() {
    // PROBE-15
    let pod = pod();
    let uid = &pod.metadata.uid;
    let id = ContainerId::from("x");
    let mut before = workers(&pod, at(100));
    let keys: Vec<ProbeWorkerKey> = due(&mut before, at(100)).iter().map(|d| d.2).collect();
    before.make_pass(keys[1], &seen("x", true), |_| true, at(100));
    before.take_result(keys[1], "x", Some(true), at(100));
    before.make_pass(keys[2], &seen("x", true), |_| true, at(100));
    let passed: Vec<_> = before.passed_instances().collect();
    assert_eq!(passed.len(), 1, "liveness is no news");
    let after_as = |adopted: bool| {
        let mut after = workers(&pod, at(100));
        after.recall_passed(passed.iter().copied());
        assert_eq!(after.passed_instances().collect::<Vec<_>>(), passed);
        let keys = due(&mut after, at(100));
        let mut shown = seen("x", true);
        let container = shown.container.as_mut().expect("one");
        container.state = ProbedContainerState::Running { age_s: 9, adopted };
        container.ready = true;
        let asks = after.make_pass(keys[1].2, &shown, |_| true, at(100));
        assert_eq!(asks, (ProbePassStep::Ask, None));
        assert_eq!(
            after.pod_results(uid).readiness(&id),
            Some(ProbeResult::Success)
        );
        assert_eq!(after.pod_results(uid).readiness(&"y".into()), None);
        (after, keys[1].2)
    };
    // The age of the instance does not count: the stored result names it.
    let after = || {
        after_as(true);
        after_as(false)
    };
    let (mut one, key) = after();
    assert_eq!(
        one.take_result(key, "x", Some(false), at(101)),
        Some(ProbeResult::Failure)
    );
    assert_eq!(
        one.pod_results(uid).readiness(&id),
        Some(ProbeResult::Failure)
    );
    assert_eq!(one.passed_instances().count(), 0);
    let (mut one, _) = after();
    one.stop_pod_workers(uid, WorkersToKeep::None);
    assert_eq!(one.pod_results(uid).readiness(&id), None);
    let (mut one, _) = after();
    one.retain(|_| true, at(3601));
    assert_eq!(one.pod_results(uid).readiness(&id), None);
}

#[test]
fn who_was_there_before() {
    // PROBE-15
    let all = ProbeWorkers::<()>::new(at(100));
    let uid = PodUid::from("uid");
    for (s, want) in [(80, true), (89, true), (90, false), (110, false)] {
        assert_eq!(all.pod_results(&uid).is_adopted(Some(at(s))), want, "{s}");
    }
    assert!(!all.pod_results(&uid).is_adopted(None));
    assert_eq!(
        (
            strip_runtime_prefix("a://b"),
            strip_runtime_prefix("b"),
            strip_runtime_prefix("")
        ),
        ("b", "b", "")
    );
}
