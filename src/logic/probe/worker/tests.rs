use alloc::vec::Vec;

use super::*;
use crate::testing::Random;
use ProbeKind::{Liveness, Readiness, Startup};
use ProbeResult::{Failure, Success, Unknown};

const fn settings(kind: ProbeKind) -> ProbeSettings {
    ProbeSettings {
        kind,
        sidecar: false,
        deleting: false,
        initial_delay_s: 0,
        period_s: 10,
        timeout_s: 1,
        success_threshold: 1,
        failure_threshold: 3,
    }
}

const fn at(s: u64) -> MonoTime {
    MonoTime(s * 1000)
}

const RUNNING: ProbedContainerState = ProbedContainerState::Running {
    age_s: 0,
    adopted: false,
};
const ADOPTED: ProbedContainerState = ProbedContainerState::Running {
    age_s: 100,
    adopted: true,
};

const fn seen(id: &str, state: ProbedContainerState, started: bool) -> ProbedPod<'_> {
    ProbedPod {
        ended: false,
        container: Some(ProbedContainer {
            id,
            state,
            started,
            ready: false,
        }),
    }
}

fn new(kind: ProbeKind) -> ProbeWorker {
    ProbeWorker::new(settings(kind), at(0), at(0))
}

fn pass(worker: &mut ProbeWorker, seen: &ProbedPod<'_>, now: MonoTime) -> ProbePassStep {
    worker.make_pass(seen, |_| true, now).0
}

/// A worker whose container runs, with the outcomes of one pass after the other; what each has changed.
fn outcomes(worker: &mut ProbeWorker, all: &str) -> Vec<Option<ProbeResult>> {
    let started = worker.settings.kind != Startup;
    all.chars()
        .map(|c| {
            let due = worker.next_pass_time().expect("not at its end");
            if pass(worker, &seen("a", RUNNING, started), due) != ProbePassStep::Ask {
                return None;
            }
            let success = match c {
                '+' => Some(true),
                '-' => Some(false),
                _ => None,
            };
            worker.take_result("a", success, due)
        })
        .collect()
}

#[test]
fn thresholds() {
    // PROBE-09 PROBE-11
    let (yes, no) = (Some(Success), Some(Failure));
    for (name, kind, successes, failures, all, want) in [
        ("ready at once", Readiness, 1, 3, "+", vec![yes]),
        ("not anew", Readiness, 1, 3, "++", vec![yes, None]),
        (
            "three failures",
            Readiness,
            1,
            3,
            "+---",
            vec![yes, None, None, no],
        ),
        (
            "in a row",
            Readiness,
            1,
            3,
            "+--+--",
            vec![yes, None, None, None, None, None],
        ),
        (
            "errors neither count nor reset",
            Readiness,
            1,
            3,
            "+-?-?-",
            vec![yes, None, None, None, None, no],
        ),
        (
            "two successes",
            Readiness,
            2,
            1,
            "+-++",
            vec![None, None, None, yes],
        ),
        ("alive is what it was", Liveness, 1, 3, "+", vec![None]),
        (
            "dead, then on hold",
            Liveness,
            1,
            2,
            "--+",
            vec![None, no, None],
        ),
        ("startup decides once", Startup, 1, 3, "+-", vec![yes, None]),
        ("startup fails", Startup, 1, 2, "--+", vec![None, no, None]),
    ] {
        let mut worker = new(kind);
        worker.settings.success_threshold = successes;
        worker.settings.failure_threshold = failures;
        assert_eq!(outcomes(&mut worker, all), want, "{name}");
    }
}

#[test]
fn initial_values() {
    // PROBE-06 PROBE-15
    for (name, kind, sidecar, state, started, want) in [
        ("not ready", Readiness, false, RUNNING, true, Some(Failure)),
        ("alive", Liveness, false, RUNNING, true, Some(Success)),
        ("open", Startup, false, RUNNING, false, Some(Unknown)),
        ("as it was", Readiness, false, ADOPTED, true, None),
        ("as it was", Liveness, false, ADOPTED, true, None),
        ("as it was", Startup, false, ADOPTED, true, None),
        (
            "a sidecar has started",
            Startup,
            true,
            ADOPTED,
            true,
            Some(Success),
        ),
        ("a sidecar has not", Startup, true, ADOPTED, false, None),
        (
            "does not run",
            Readiness,
            false,
            ProbedContainerState::Waiting,
            false,
            Some(Failure),
        ),
    ] {
        let mut worker = new(kind);
        worker.settings.sidecar = sidecar;
        let _ = pass(&mut worker, &seen("a", state, started), at(0));
        assert_eq!(worker.result_of_instance("a"), want, "{name} {kind}");
        assert_eq!(worker.result_of_instance("b"), None);
    }
}

#[test]
fn what_the_status_does_not_show_is_told() {
    // PROBE-12
    for (kind, started, ready, want) in [
        (Readiness, true, true, Some(Failure)),
        (Readiness, true, false, None),
        (Startup, true, false, Some(Unknown)),
        (Startup, false, false, None),
        (Liveness, true, true, None),
    ] {
        let mut worker = new(kind);
        let container = ProbedContainer {
            id: "a",
            state: RUNNING,
            started,
            ready,
        };
        let seen = ProbedPod {
            ended: false,
            container: Some(container),
        };
        let (_, news) = worker.make_pass(&seen, |_| true, at(0));
        assert_eq!(news, want, "{kind} {started} {ready}");
    }
}

#[test]
fn a_new_instance_starts_over() {
    // PROBE-06 PROBE-11
    let mut worker = new(Liveness);
    outcomes(&mut worker, "---");
    assert_eq!((worker.counts().successful, worker.counts().failed), (0, 3));
    assert_eq!(worker.result_of_instance("a"), Some(Failure));
    let due = worker.next_pass_time().expect("due");
    assert_eq!(
        pass(&mut worker, &seen("a", RUNNING, true), due),
        ProbePassStep::Wait
    );
    let due = worker.next_pass_time().expect("due");
    assert_eq!(
        pass(&mut worker, &seen("b", RUNNING, true), due),
        ProbePassStep::Ask
    );
    assert_eq!(
        (
            worker.result_of_instance("a"),
            worker.result_of_instance("b")
        ),
        (None, Some(Success))
    );
    // Two failures of one instance and one of the next are not three.
    let mut worker = new(Liveness);
    outcomes(&mut worker, "--");
    let due = worker.next_pass_time().expect("due");
    assert_eq!(
        pass(&mut worker, &seen("b", RUNNING, true), due),
        ProbePassStep::Ask
    );
    assert_eq!(worker.take_result("b", Some(false), due), None);
}

#[test]
fn what_a_pass_does() {
    // PROBE-05 PROBE-08 PROBE-14
    let none = ProbedPod {
        ended: false,
        container: None,
    };
    let ended = ProbedPod {
        ended: true,
        ..seen("a", RUNNING, true)
    };
    let exited = seen("a", ProbedContainerState::Ended(1), false);
    for (name, kind, deleting, what, restarts, want) in [
        (
            "no status yet",
            Liveness,
            false,
            none,
            true,
            ProbePassStep::Wait,
        ),
        (
            "the pod has ended",
            Readiness,
            false,
            ended,
            true,
            ProbePassStep::End,
        ),
        (
            "waits",
            Liveness,
            false,
            seen("a", ProbedContainerState::Waiting, false),
            true,
            ProbePassStep::Wait,
        ),
        (
            "comes again",
            Liveness,
            false,
            exited,
            true,
            ProbePassStep::Wait,
        ),
        (
            "does not",
            Liveness,
            false,
            exited,
            false,
            ProbePassStep::End,
        ),
        (
            "started",
            Liveness,
            false,
            seen("a", RUNNING, true),
            true,
            ProbePassStep::Ask,
        ),
        (
            "started",
            Readiness,
            false,
            seen("a", RUNNING, true),
            true,
            ProbePassStep::Ask,
        ),
        (
            "started",
            Startup,
            false,
            seen("a", RUNNING, true),
            true,
            ProbePassStep::Wait,
        ),
        (
            "not started",
            Liveness,
            false,
            seen("a", RUNNING, false),
            true,
            ProbePassStep::Wait,
        ),
        (
            "not started",
            Readiness,
            false,
            seen("a", RUNNING, false),
            true,
            ProbePassStep::Wait,
        ),
        (
            "not started",
            Startup,
            false,
            seen("a", RUNNING, false),
            true,
            ProbePassStep::Ask,
        ),
        (
            "being deleted",
            Liveness,
            true,
            seen("a", RUNNING, true),
            true,
            ProbePassStep::End,
        ),
        (
            "being deleted",
            Startup,
            true,
            seen("a", RUNNING, false),
            true,
            ProbePassStep::End,
        ),
        (
            "being deleted",
            Readiness,
            true,
            seen("a", RUNNING, true),
            true,
            ProbePassStep::Ask,
        ),
    ] {
        let mut worker = new(kind);
        worker.settings.deleting = deleting;
        let (step, _) = worker.make_pass(&what, |_| restarts, at(0));
        assert_eq!(step, want, "{name}, {kind}");
        assert_eq!(
            worker.next_pass_time().is_none(),
            step != ProbePassStep::Wait,
            "{name}"
        );
        if deleting && kind != Readiness {
            assert_eq!(worker.result_of_instance("a"), Some(Success), "{name}");
        }
    }
    // `restarts` is called once.
    let mut worker = new(Liveness);
    assert_eq!(pass(&mut worker, &exited, at(0)), ProbePassStep::Wait);
    let (step, _) = worker.make_pass(&exited, |_| panic!("asked again"), at(10));
    assert_eq!(step, ProbePassStep::Wait);
}

#[test]
fn initial_delay_by_our_own_clock() {
    // PROBE-03
    let running = |age_s, adopted| ProbedContainerState::Running { age_s, adopted };
    for (name, made, age_s, adopted, passes) in [
        // Passes come every 10 s from 60 s on; the last column is the first that probes.
        ("just started", 60, 0, false, 80),
        ("started when it was seen", 60, 3, false, 80),
        ("the worker waited for it", 0, 3, false, 80),
        ("the worker waited long", 0, 12, false, 70),
        ("the clock jumped on", 58, 1_000_000_000, false, 80),
        ("of an earlier agent", 60, 19, true, 70),
        ("long of an earlier agent", 60, 500, true, 60),
    ] {
        let mut worker = ProbeWorker::new(
            ProbeSettings {
                initial_delay_s: 20,
                ..settings(Liveness)
            },
            at(60),
            at(made),
        );
        let first = (0..).map(|n| 60 + 10 * n).find(|now| {
            // The wall clock jumps about: only the first look counts.
            let age_s = if *now == 60 { age_s } else { 7 };
            let state = running(age_s, adopted);
            pass(&mut worker, &seen("a", state, true), at(*now)) == ProbePassStep::Ask
        });
        assert_eq!(first, Some(passes), "{name}");
    }
}

#[test]
fn early_passes_count_as_due() {
    // PROBE-03: one that shares a wake-up with others does not cost the container another period before its first probe.
    let early = Duration::from_millis(100);
    let mut worker = ProbeWorker::new(
        ProbeSettings {
            initial_delay_s: 20,
            ..settings(Readiness)
        },
        at(60),
        at(60),
    );
    let running = seen("a", RUNNING, true);
    // The first pass sees the instance when it is due: only later passes come sooner than the age allows.
    let nows = [
        at(60),
        MonoTime(at(70).0 - duration_ms(early)),
        MonoTime(at(80).0 - duration_ms(early)),
    ];
    let passes = nows.map(|now| {
        let step = pass(&mut worker, &running, now);
        (step, worker.next_pass_time())
    });
    assert_eq!(
        passes,
        [
            (ProbePassStep::Wait, Some(at(70))),
            (ProbePassStep::Wait, Some(at(80))),
            (ProbePassStep::Ask, None)
        ]
    );
    worker.take_result("a", Some(true), at(80));
    assert_eq!(
        worker.next_pass_time(),
        Some(at(90)),
        "it comes no sooner for that"
    );
}

#[test]
fn passes_keep_to_their_grid() {
    // PROBE-03 PROBE-13
    let running = seen("a", RUNNING, true);
    let took = |worker: &mut ProbeWorker, begin: MonoTime, end: MonoTime| {
        assert_eq!(pass(worker, &running, begin), ProbePassStep::Ask);
        worker.take_result("a", Some(true), end);
        worker.next_pass_time().expect("due")
    };
    for (name, begin, end, due) in [
        ("quick", 0, 1, 10),
        ("late", 4, 5, 10),
        ("as long as a period", 0, 10, 10),
        ("longer: at once", 0, 12, 10),
        ("much longer: at once, and once", 0, 57, 50),
        ("after a sleep of the machine", 86_400, 86_401, 86_400),
    ] {
        let mut worker = new(Liveness);
        assert_eq!(took(&mut worker, at(begin), at(end)), at(due), "{name}");
        let next = at(due.max(end));
        assert_eq!(
            took(&mut worker, next, next),
            at(due + 10),
            "{name}, the next"
        );
    }
    let mut worker = new(Liveness);
    took(&mut worker, at(0), at(1));
    worker.trigger_pass(at(4));
    assert_eq!(worker.next_pass_time(), Some(at(4)), "now");
    assert_eq!(
        took(&mut worker, at(4), at(4)),
        at(14),
        "the period counts from there"
    );
    assert_eq!(pass(&mut worker, &running, at(14)), ProbePassStep::Ask);
    worker.trigger_pass(at(15));
    assert_eq!(worker.next_pass_time(), None, "one at a time");
    worker.take_result("a", Some(true), at(16));
    assert_eq!(worker.next_pass_time(), Some(at(16)), "then the other");
    // MET-09. One that had to wait for its turn is put off.
    assert_eq!(took(&mut worker, at(16), at(16)), at(26));
    assert_eq!(pass(&mut worker, &running, at(26)), ProbePassStep::Ask);
    assert!(!worker.begin_probe(true, at(30)));
    worker.take_result("a", Some(true), at(31));
    assert_eq!(worker.next_pass_time(), Some(at(40)));
    assert_eq!(pass(&mut worker, &running, at(40)), ProbePassStep::Ask);
    assert!(worker.begin_probe(true, at(51)), "by more than a period");
    assert_eq!(worker.counts().late, 1);
    worker.take_result("a", Some(true), at(52));
    assert_eq!(worker.next_pass_time(), Some(at(61)));
}

#[test]
fn the_load_of_a_start_is_spread() {
    // PROBE-03
    let mut worker = ProbeWorker::new(settings(Readiness), at(7), at(1));
    worker.trigger_pass(at(2));
    assert_eq!(
        worker.next_pass_time(),
        Some(at(7)),
        "nothing makes it come sooner"
    );
    assert_eq!(
        pass(&mut worker, &seen("a", RUNNING, false), at(7)),
        ProbePassStep::Wait
    );
    assert_eq!(
        worker.next_pass_time(),
        Some(at(7)),
        "and then what was asked for"
    );
    assert_eq!(
        pass(&mut worker, &seen("a", RUNNING, true), at(7)),
        ProbePassStep::Ask
    );
}

#[test]
fn late_outcomes_of_what_is_gone() {
    let mut worker = new(Readiness);
    assert_eq!(
        pass(&mut worker, &seen("a", RUNNING, true), at(0)),
        ProbePassStep::Ask
    );
    assert_eq!(
        worker.take_result("b", Some(true), at(1)),
        None,
        "of another"
    );
    assert_eq!(
        (
            worker.result_of_instance("a"),
            worker.result_of_instance("b")
        ),
        (Some(Failure), None)
    );
    assert_eq!(
        pass(&mut worker, &seen("a", RUNNING, true), at(10)),
        ProbePassStep::Ask
    );
    worker.stop();
    assert!(!worker.is_probing());
    assert_eq!(
        worker.take_result("a", Some(true), at(11)),
        None,
        "of one that was stopped"
    );
    assert_eq!(
        (worker.result_of_instance("a"), worker.next_pass_time()),
        (None, None)
    );
}

#[test]
fn whatever_happens() {
    let kinds = [Liveness, Readiness, Startup];
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut below = |n: u64| random.below(n);
        let number = |n: u64| u32::try_from(n).unwrap_or(1);
        let kind = kinds[usize::try_from(below(3)).unwrap_or(0)];
        let mut worker = ProbeWorker::new(
            ProbeSettings {
                sidecar: below(2) == 0,
                initial_delay_s: number(below(30)),
                period_s: number(1 + below(5)),
                success_threshold: number(1 + below(3)),
                failure_threshold: number(1 + below(3)),
                ..settings(kind)
            },
            MonoTime(below(3000)),
            MonoTime(0),
        );
        let mut now = MonoTime(0);
        let mut asked: Option<&str> = None;
        for _ in 0..200 {
            now = MonoTime(now.0 + below(4000));
            let ids = ["a", "b"];
            let id = ids[usize::try_from(below(2)).unwrap_or(0)];
            match below(10) {
                0 => worker.trigger_pass(now),
                1 if asked.is_some() => _ = worker.begin_probe(true, now),
                _ => {}
            }
            if let Some(old) = asked {
                let before = worker.result_of_instance(old);
                let changed = worker.take_result(
                    old,
                    [None, Some(true), Some(false)][usize::try_from(below(3)).unwrap_or(0)],
                    now,
                );
                if changed.is_some() {
                    assert_eq!(worker.result_of_instance(old), changed);
                    assert_ne!(before, changed);
                }
                asked = None;
            } else if worker.next_pass_time().is_some_and(|due| due <= now) {
                let state = [
                    ProbedContainerState::Waiting,
                    RUNNING,
                    ADOPTED,
                    ProbedContainerState::Ended(0),
                ];
                let state = state[usize::try_from(below(4)).unwrap_or(0)];
                let what = seen(id, state, below(2) == 0);
                let (step, _) = worker.make_pass(&what, |_| true, now);
                assert_ne!(step, ProbePassStep::End);
                if step == ProbePassStep::Ask {
                    asked = Some(id);
                    assert_eq!(worker.next_pass_time(), None);
                }
            }
            if let Some(due) = worker.next_pass_time() {
                // The next pass is never more than a period away, nor, after the first, more than a period behind.
                let period = 1000 * u64::from(worker.settings.period_s);
                assert!(due.0 <= now.0.max(3000) + period, "{due:?} {now:?}");
            }
        }
    }
}
