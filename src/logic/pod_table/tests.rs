//! Table tests of the pod table: each row or scenario names the behaviour it proves.

use alloc::{boxed::Box, vec::Vec};

use super::*;
use crate::pod_worker::KillOptions;

/// The runtime cache of a test: one time for all pods.
struct Age {
    status_at: u64,
    failed: bool,
}

impl StatusAge for Age {
    fn compare_status_age(&self, _: &PodUid, after: MonoTime) -> StatusFreshness {
        match (MonoTime(self.status_at) > after, self.failed) {
            (false, _) => StatusFreshness::Stale,
            (true, true) => StatusFreshness::Failed,
            (true, false) => StatusFreshness::Fresh,
        }
    }
}

/// A table with a clock and a runtime cache that is always fresh unless a test stops it.
struct Bench {
    table: PodTable,
    now: u64,
    age: Age,
}

const NAMESPACE: &str = "default";
const SPEC_GRACE_S: i64 = 30;

#[derive(Clone)]
struct TestPod {
    uid: PodUid,
    name: &'static str,
    is_static: bool,
    deletion_grace_s: Option<i64>,
    deletion_requested: bool,
    phase_terminal: bool,
}

fn pod(uid: &'static str) -> TestPod {
    TestPod {
        uid: uid.into(),
        name: "pod",
        is_static: false,
        deletion_grace_s: None,
        deletion_requested: false,
        phase_terminal: false,
    }
}

fn static_pod(uid: &'static str) -> TestPod {
    TestPod {
        is_static: true,
        ..pod(uid)
    }
}

impl TestPod {
    fn facts(&self) -> PodFacts<'_> {
        PodFacts {
            uid: &self.uid,
            name: self.name,
            namespace: NAMESPACE,
            is_static: self.is_static,
            deletion_requested: self.deletion_requested,
            deletion_grace_s: self.deletion_grace_s,
            spec_grace_s: Some(SPEC_GRACE_S),
            phase_terminal: self.phase_terminal,
        }
    }

    fn deleted(&self, grace_s: i64) -> Self {
        Self {
            deletion_requested: true,
            deletion_grace_s: Some(grace_s),
            ..self.clone()
        }
    }

    fn ended(&self) -> Self {
        Self {
            phase_terminal: true,
            ..self.clone()
        }
    }
}

fn kill_in(grace_s: i64) -> KillOptions {
    KillOptions {
        grace_s: Some(grace_s),
        ..KillOptions::default()
    }
}

fn terminating(grace_s: impl Into<Option<u32>>) -> WorkerCall {
    WorkerCall::Terminating {
        grace_s: grace_s.into(),
    }
}

impl Bench {
    fn new() -> Self {
        Self::with(PodTableCapacity {
            max_pods: 4,
            reserved: 2,
            margin: 2,
        })
    }

    fn with(capacity: PodTableCapacity) -> Self {
        Self {
            table: PodTable::new(capacity, 1),
            now: 1000,
            age: Age {
                status_at: u64::MAX,
                failed: false,
            },
        }
    }

    fn update(&mut self, kind: UpdateKind, pod: &TestPod) -> PodUpdateAnswer {
        let update = PodUpdate::new(kind, pod.facts());
        self.table
            .update_pod(update, MonoTime(self.now))
            .expect("a slot")
    }

    fn create(&mut self, pod: &TestPod) -> PodHandle {
        self.update(UpdateKind::Create, pod).handle
    }

    fn kill(&mut self, pod: &TestPod, options: KillOptions) -> PodUpdateAnswer {
        let update = PodUpdate::new_kill(pod.facts(), options);
        self.table
            .update_pod(update, MonoTime(self.now))
            .expect("a slot")
    }

    fn runtime_kill(&mut self, pod: &TestPod) -> PodUpdateAnswer {
        let update = PodUpdate::runtime_only(&pod.uid, pod.name, NAMESPACE);
        self.table
            .update_pod(update, MonoTime(self.now))
            .expect("a slot")
    }

    fn effects(&mut self) -> Vec<PodTableEffect> {
        let mut all = Vec::new();
        while let Some(effect) = self.table.poll_effect(&self.age, MonoTime(self.now)) {
            all.push(effect);
            assert!(all.len() < 100, "effects without end");
        }
        all
    }

    /// The calls that start now; other effects are dropped.
    fn starts(&mut self) -> Vec<(PodHandle, WorkerCall)> {
        let mut starts = Vec::new();
        for effect in self.effects() {
            if let PodTableEffect::Start(start) = effect {
                starts.push((start.handle, start.call));
            }
        }
        starts
    }

    fn done(&mut self, handle: PodHandle, outcome: CallOutcome) {
        self.now += 1;
        assert!(self.table.on_call_done(handle, outcome, MonoTime(self.now)));
    }

    /// Asserts that exactly `call` starts for `handle`, and ends it with `outcome`.
    #[track_caller]
    fn run(&mut self, handle: PodHandle, call: WorkerCall, outcome: CallOutcome) {
        assert_eq!(self.starts(), [(handle, call)]);
        self.done(handle, outcome);
    }

    fn sync(&mut self, desired: &[&TestPod]) -> Vec<KnownPod> {
        let desired: Vec<_> = desired.iter().map(|pod| pod.uid.clone()).collect();
        self.table.sync_known_pods(&|uid| desired.contains(uid))
    }

    /// Moves the clock to the next timer and fires it; every pod of `config` has a source.
    fn tick(&mut self, config: &[&TestPod]) -> u64 {
        let due = self.table.next_timeout().expect("a timer");
        let waited = due.since_ms(MonoTime(self.now));
        self.now = due.0;
        let config: Vec<_> = config.iter().map(|pod| pod.uid.clone()).collect();
        self.table
            .on_timeout(&|uid| config.contains(uid), MonoTime(self.now));
        waited
    }

    fn stage(&self, handle: PodHandle) -> WorkerStage {
        self.table.pod_stage(handle).expect("a pod")
    }

    /// A pod that was created and whose first sync went well.
    fn running(&mut self, pod: &TestPod) -> PodHandle {
        let handle = self.create(pod);
        self.run(handle, WorkerCall::Sync, CallOutcome::Done);
        handle
    }

    fn finished(&mut self, pod: &TestPod) -> PodHandle {
        let handle = self.running(pod);
        self.kill(pod, kill_in(3));
        self.run(handle, terminating(3), CallOutcome::Done);
        self.run(handle, WorkerCall::Terminated, CallOutcome::Done);
        handle
    }
}

#[test]
fn calls_of_a_pod_never_overlap() {
    // PW-01 PW-02 PW-23 PW-29
    let mut bench = Bench::new();
    let (a, b) = (pod("a"), pod("b"));
    let one = bench.create(&a);
    let two = bench.create(&b);
    assert_eq!(
        bench.starts(),
        [(one, WorkerCall::Sync), (two, WorkerCall::Sync)],
        "different pods run at the same time"
    );
    for _ in 0..3 {
        bench.update(UpdateKind::Update, &a);
    }
    assert_eq!(bench.starts(), [], "one call at a time");
    bench.done(one, CallOutcome::Done);
    assert_eq!(
        bench.starts(),
        [(one, WorkerCall::Sync)],
        "three updates make one call, at once"
    );
    bench.done(one, CallOutcome::Done);
    assert_eq!(bench.starts(), []);
}

#[test]
fn the_oldest_unread_update_is_measured() {
    // PW-02
    let mut bench = Bench::new();
    let a = pod("a");
    bench.create(&a);
    bench.now += 500;
    bench.update(UpdateKind::Update, &a);
    let [PodTableEffect::Start(start)] = bench.effects()[..] else {
        panic!("one start");
    };
    assert_eq!(
        (start.kind, start.since, start.first),
        (UpdateKind::Update, MonoTime(1000), true)
    );
}

#[test]
fn entry_to_terminating() {
    let evict = KillOptions {
        evict: true,
        ..KillOptions::default()
    };
    let a = pod("a");
    // PW-04 PW-36
    for (name, update, deleted, evicted) in [
        (
            "runtime",
            PodUpdate::runtime_only(&a.uid, a.name, NAMESPACE),
            true,
            false,
        ),
        (
            "deletion",
            PodUpdate::new(UpdateKind::Update, a.deleted(5).facts()),
            true,
            false,
        ),
        (
            "deletion wins over eviction",
            PodUpdate::new_kill(a.deleted(5).facts(), evict.clone()),
            true,
            false,
        ),
        (
            "terminal phase",
            PodUpdate::new(UpdateKind::Update, a.ended().facts()),
            false,
            false,
        ),
        (
            "terminal phase wins over eviction",
            PodUpdate::new_kill(a.ended().facts(), evict.clone()),
            false,
            false,
        ),
        (
            "kill",
            PodUpdate::new_kill(a.facts(), kill_in(1)),
            false,
            false,
        ),
        (
            "eviction",
            PodUpdate::new_kill(a.facts(), evict),
            false,
            true,
        ),
    ] {
        let mut bench = Bench::new();
        let handle = bench.running(&a);
        bench
            .table
            .update_pod(update, MonoTime(bench.now))
            .expect(name);
        assert_eq!(bench.stage(handle), WorkerStage::Requested, "{name}");
        let worker = &bench.table.slots[0].worker;
        assert_eq!(
            (worker.deleted, worker.evicted),
            (deleted, evicted),
            "{name}"
        );
        // The flags are never reset: a plain update does not change them.
        bench.update(UpdateKind::Update, &a);
        assert_eq!(bench.stage(handle), WorkerStage::Requested, "{name}");
        let worker = &bench.table.slots[0].worker;
        assert_eq!(
            (worker.deleted, worker.evicted),
            (deleted, evicted),
            "{name}"
        );
        assert!(
            matches!(bench.starts()[..], [(_, WorkerCall::Terminating { .. })]),
            "{name}"
        );
    }
}

#[test]
fn flags_are_set_at_that_moment_only() {
    // PW-05
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.running(&a);
    bench.kill(&a, kill_in(9));
    bench.kill(
        &a,
        KillOptions {
            evict: true,
            ..kill_in(9)
        },
    );
    assert!(!bench.table.slots[0].worker.evicted);
    bench.run(handle, terminating(9), CallOutcome::Done);
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
    let answer = bench.update(UpdateKind::Update, &a.deleted(1));
    assert_eq!(answer.taken, PodUpdateResult::Dropped);
    assert!(!bench.table.slots[0].worker.deleted);
}

#[test]
fn terminal_at_first_sight() {
    let a = pod("a").ended();
    // PW-06
    for (name, idle, calls) in [
        ("nothing runs", true, vec![WorkerCall::Terminated]),
        (
            "something runs, or the cache cannot tell",
            false,
            vec![terminating(30), WorkerCall::Terminated],
        ),
    ] {
        let mut bench = Bench::new();
        let update = PodUpdate::new(UpdateKind::Create, a.facts()).with_runtime_idle(idle);
        let handle = bench
            .table
            .update_pod(update, MonoTime(1))
            .expect(name)
            .handle;
        assert_eq!(bench.table.is_pod_known_terminated(&a.uid), idle, "{name}");
        for call in calls {
            bench.run(handle, call, CallOutcome::Done);
        }
        assert_eq!(bench.stage(handle), WorkerStage::Finished, "{name}");
    }
    // A pod that is known does not skip its stop, however idle the runtime looks.
    let mut bench = Bench::new();
    let handle = bench.running(&pod("a"));
    let update = PodUpdate::new(UpdateKind::Update, a.facts()).with_runtime_idle(true);
    bench.table.update_pod(update, MonoTime(1)).expect("known");
    assert_eq!(bench.stage(handle), WorkerStage::Requested);
}

#[test]
fn same_uid_restart() {
    // PW-07 PW-34 PW-08
    let mut bench = Bench::new();
    let a = static_pod("a");
    let handle = bench.running(&a);
    bench.kill(&a, KillOptions::default());
    let answer = bench.update(UpdateKind::Create, &a);
    assert_eq!(answer.taken, PodUpdateResult::RestartNoted);
    assert_eq!(bench.sync(&[&a]).len(), 1, "not finished: kept");
    bench.run(handle, terminating(30), CallOutcome::Done);
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
    assert_eq!(
        bench.update(UpdateKind::Update, &a).taken,
        PodUpdateResult::Dropped
    );
    assert_eq!(bench.starts(), []);
    assert_eq!(bench.sync(&[&a]), [], "finished: the caller creates it");
    // The pass creates the pod before the old one was fetched as gone.
    let again = bench.create(&a);
    assert_ne!(again, handle);
    let effects = bench.effects();
    assert_eq!(
        effects[0],
        PodTableEffect::Gone {
            handle,
            uid: a.uid.clone(),
            restart: true
        }
    );
    assert!(matches!(effects[1], PodTableEffect::Start(start) if start.handle == again));
    assert!(
        !bench
            .table
            .on_call_done(handle, CallOutcome::Done, MonoTime(9)),
        "stale"
    );

    // The pod is finished when it comes back. Without a restart request it stays as it is.
    let mut bench = Bench::new();
    bench.finished(&a);
    let [known] = &bench.sync(&[&a])[..] else {
        panic!("kept");
    };
    assert_eq!(known.state, WorkState::Terminated);
    bench.update(UpdateKind::Create, &a);
    assert_eq!(bench.sync(&[&a]), []);
}

#[test]
fn update_of_a_terminating_pod() {
    // PW-09 PW-11 PW-29
    let mut bench = Bench::new();
    let a = pod("a");
    let status = |reason: &str| {
        Some(Box::new(StopStatus {
            reason: reason.into(),
            message: "".into(),
            disruption: None,
        }))
    };
    let handle = bench.running(&a);
    bench.kill(
        &a,
        KillOptions {
            status: status("Preempting"),
            ..kill_in(9)
        },
    );
    assert_eq!(bench.starts(), [(handle, terminating(9))]);
    bench.kill(
        &a,
        KillOptions {
            status: status("Evicted"),
            ..kill_in(20)
        },
    );
    bench.done(handle, CallOutcome::Failed(RetryCause::Error));
    assert_eq!(
        bench.starts(),
        [(handle, terminating(9))],
        "again at once, and the grace has not grown"
    );
    let reason = |bench: &Bench| {
        let status = bench.table.stop_status(handle);
        status.map(|status| status.reason.clone())
    };
    assert_eq!(reason(&bench).as_deref(), Some("Evicted"), "the latest");
    bench.done(handle, CallOutcome::Done);
    assert_eq!(reason(&bench), None, "applied while it terminates");
}

#[test]
fn signals() {
    let signal = || KillOptions {
        signal: true,
        ..kill_in(1)
    };
    let a = pod("a");
    // PW-12
    let mut bench = Bench::new();
    let handle = bench.running(&a);
    assert!(!bench.kill(&a, signal()).signal_now, "the stop is awaited");
    assert_eq!(bench.starts(), [(handle, terminating(1))]);
    bench.done(handle, CallOutcome::Failed(RetryCause::Error));
    assert_eq!(bench.effects(), [], "not stopped yet");
    bench.tick(&[&a]);
    assert_eq!(bench.starts(), [(handle, terminating(1))]);
    bench.done(handle, CallOutcome::Done);
    assert_eq!(bench.effects()[0], PodTableEffect::Stopped(handle));
    assert!(
        bench.kill(&a, signal()).signal_now,
        "terminated, unfinished"
    );
    bench.done(handle, CallOutcome::Done);
    assert_eq!(bench.stage(handle), WorkerStage::Finished);
    assert!(bench.kill(&a, signal()).signal_now, "finished");

    // Kill options come with an update that does not end the pod.
    let mut bench = Bench::new();
    let mut update = PodUpdate::new(UpdateKind::Update, a.facts());
    update.kill = Some(signal());
    assert!(
        bench
            .table
            .update_pod(update, MonoTime(1))
            .expect("slot")
            .signal_now
    );

    // A static pod that never starts, and an orphan that never did.
    let a = static_pod("a");
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    assert!(!bench.kill(&a, signal()).signal_now);
    assert_eq!(bench.effects(), [PodTableEffect::Stopped(handle)]);
    let mut bench = Bench::new();
    let b = pod("b");
    let handle = bench.create(&b);
    bench.kill(&b, signal());
    bench.sync(&[]);
    assert_eq!(bench.effects()[0], PodTableEffect::Stopped(handle));
}

#[test]
fn runtime_only_kill() {
    // PW-03 PW-13 PW-25
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.runtime_kill(&a).handle;
    assert_eq!(
        bench.table.resync_pod(&a.uid, MonoTime(1)),
        None,
        "only a kill is taken"
    );
    bench.run(handle, WorkerCall::TerminatingRuntime, CallOutcome::Done);
    assert_eq!(
        bench.effects(),
        [PodTableEffect::Gone {
            handle,
            uid: a.uid.clone(),
            restart: false
        }],
        "history forgotten, no call after it"
    );
    assert_eq!(bench.table.len(), 0);

    // The active object serves a known pod better; so does a pending one.
    let handle = bench.running(&a);
    bench.runtime_kill(&a);
    bench.run(handle, terminating(1), CallOutcome::Done);
    assert_eq!(
        bench.runtime_kill(&a).taken,
        PodUpdateResult::Dropped,
        "terminated but unfinished"
    );
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
    let b = pod("b");
    let handle = bench.create(&b);
    bench.runtime_kill(&b);
    assert_eq!(bench.starts(), [(handle, terminating(1))]);
}

#[test]
fn an_object_arrives_while_the_runtime_pod_ends() {
    // PW-17
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.runtime_kill(&a).handle;
    assert_eq!(bench.starts(), [(handle, WorkerCall::TerminatingRuntime)]);
    bench.update(UpdateKind::Update, &a);
    bench.done(handle, CallOutcome::Failed(RetryCause::Error));
    bench.run(
        handle,
        terminating(1),
        CallOutcome::Failed(RetryCause::Error),
    );
    bench.sync(&[]);
    bench.run(handle, terminating(1), CallOutcome::Done);
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
}

#[test]
fn cancellation() {
    let a = pod("a");
    // PW-14
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    bench.starts();
    bench.update(UpdateKind::Update, &a);
    assert_eq!(bench.effects(), [], "a plain update cancels nothing");
    bench.update(UpdateKind::Update, &a.deleted(20));
    assert_eq!(bench.effects(), [PodTableEffect::Cancel(handle)]);
    assert!(bench.table.is_cancelled(handle));
    bench.done(handle, CallOutcome::Canceled);
    assert_eq!(
        bench.starts(),
        [(handle, terminating(20))],
        "pending runs next"
    );
    assert!(!bench.table.is_cancelled(handle), "fresh for each call");
    bench.kill(&a, kill_in(20));
    assert_eq!(bench.effects(), [], "the same grace cancels nothing");
    bench.kill(&a, kill_in(4));
    assert_eq!(
        bench.effects(),
        [PodTableEffect::Cancel(handle)],
        "a shorter one does"
    );
    assert_eq!(bench.table.grace_s(handle), Some(4));
    bench.done(handle, CallOutcome::Canceled);
    assert_eq!(
        bench.stage(handle),
        WorkerStage::Terminating,
        "nothing concluded"
    );
    bench.run(handle, terminating(4), CallOutcome::Done);

    // The orphan path cancels nothing; a cancelled sync that nevertheless ended well changes nothing either.
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    bench.starts();
    bench.sync(&[]);
    assert_eq!(bench.effects(), []);
    bench.done(handle, CallOutcome::Done);
    assert_eq!(bench.starts(), [(handle, terminating(None))]);
}

#[test]
fn api_pod_killed_before_its_first_sync() {
    // PW-16 PW-18
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.create(&a);
    assert!(bench.table.slots[0].worker.active.is_none());
    bench.kill(&a, kill_in(2));
    bench.run(handle, terminating(2), CallOutcome::Done);
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
    assert_eq!(bench.stage(handle), WorkerStage::Finished);
}

#[test]
fn static_pods_take_turns() {
    let (a, b, c) = (static_pod("a"), static_pod("b"), static_pod("c"));
    // PW-19 PW-20 PW-16
    let mut bench = Bench::new();
    let one = bench.running(&a);
    let three = bench.create(&c);
    let two = bench.create(&b);
    assert_eq!(bench.starts(), []);
    assert!(
        bench.table.slots[1].worker.active.is_none(),
        "not active before its start"
    );
    let retry = bench.table.slots[1].worker.timers.next_timeout();
    let waits = retry.expect("retries").since_ms(MonoTime(bench.now));
    assert!((10_000..=15_000).contains(&waits), "{waits}");

    bench.kill(&a, kill_in(1));
    bench.run(one, terminating(1), CallOutcome::Done);
    assert_eq!(
        bench.starts(),
        [(one, WorkerCall::Terminated)],
        "stopped is not finished"
    );
    bench.done(one, CallOutcome::Done);
    assert_eq!(
        bench.starts(),
        [(three, WorkerCall::Sync)],
        "in the order of their first updates"
    );
    assert_eq!(bench.starts(), [], "the last one still waits");
    // A waiting pod that ends is skipped; a live one blocks those behind it even while idle.
    bench.kill(&b, kill_in(1));
    assert_eq!(bench.starts(), []);
    assert_eq!(bench.stage(two), WorkerStage::FinishedUnstarted);

    let mut bench = Bench::new();
    bench.create(&a);
    let late = bench.create(&b);
    bench.table.slots[0].worker.woken = false;
    assert_eq!(bench.starts(), [], "the first one is idle and blocks");
    // A retry finds the queue unchanged, and free once the first pod is gone without notice.
    let blocked = |bench: &mut Bench| {
        bench.tick(&[&b]);
        bench.starts()
    };
    assert_eq!(blocked(&mut bench), []);
    bench.table.purge(0);
    assert_eq!(bench.starts(), [(late, WorkerCall::Sync)]);
}

#[test]
fn a_waiter_retries_by_its_own_timer() {
    // PW-19
    let (a, b) = (static_pod("a"), static_pod("b"));
    let mut bench = Bench::new();
    let one = bench.running(&a);
    let two = bench.create(&b);
    assert_eq!(bench.starts(), []);
    bench.kill(&a, kill_in(1));
    bench.run(one, terminating(1), CallOutcome::Done);
    bench.run(one, WorkerCall::Terminated, CallOutcome::Done);
    // Simulates that the wake-up at the end of the first pod was lost.
    bench.table.slots[1].worker.woken = false;
    bench.tick(&[]);
    assert_eq!(bench.starts(), [(two, WorkerCall::Sync)]);
}

#[test]
fn full_names_are_for_static_pods() {
    // PW-22 PW-18
    let mut bench = Bench::new();
    let one = bench.running(&static_pod("a"));
    let two = bench.create(&pod("b"));
    assert_eq!(bench.starts(), [(two, WorkerCall::Sync)]);
    assert_eq!(bench.table.pod_identity(one).expect("known").name, "pod");
    let other = TestPod {
        name: "other",
        ..static_pod("c")
    };
    let three = bench.create(&other);
    assert_eq!(bench.starts(), [(three, WorkerCall::Sync)]);
}

#[test]
fn static_pod_ended_before_it_started() {
    // PW-21
    let mut bench = Bench::new();
    bench.running(&static_pod("a"));
    let b = static_pod("b");
    let handle = bench.create(&b);
    bench.kill(&b, kill_in(1));
    assert_eq!(bench.effects(), [], "no call at all");
    assert_eq!(bench.stage(handle), WorkerStage::FinishedUnstarted);
}

#[test]
fn the_runtime_status_must_be_newer() {
    // PW-24
    let mut bench = Bench::new();
    let a = pod("a");
    bench.age.status_at = 0;
    let handle = bench.create(&a);
    assert_eq!(
        bench.effects(),
        [PodTableEffect::NeedStatus {
            handle,
            after: MonoTime(0)
        }],
        "the first call takes any status, but there is none"
    );
    assert_eq!(bench.effects(), [], "asked once");
    bench.age.status_at = 1;
    assert_eq!(bench.starts(), [(handle, WorkerCall::Sync)]);
    for outcome in [
        CallOutcome::Done,
        CallOutcome::Failed(RetryCause::Error),
        CallOutcome::Canceled,
    ] {
        bench.done(handle, outcome);
        let ended = bench.now;
        bench.update(UpdateKind::Update, &a);
        bench.age.status_at = ended;
        let after = MonoTime(ended);
        assert_eq!(
            bench.effects(),
            [PodTableEffect::NeedStatus { handle, after }],
            "{outcome:?}"
        );
        bench.age.status_at = ended + 1;
        assert_eq!(bench.starts(), [(handle, WorkerCall::Sync)], "{outcome:?}");
    }
    bench.done(handle, CallOutcome::Done);

    // The status is an error: the call is put off.
    bench.update(UpdateKind::Update, &a);
    bench.age = Age {
        status_at: u64::MAX,
        failed: true,
    };
    assert_eq!(bench.effects(), [PodTableEffect::StatusFailed(handle)]);
    let waited = bench.tick(&[&a]);
    assert!((10_000..=15_000).contains(&waited), "{waited}");
    assert_eq!(bench.effects(), [PodTableEffect::StatusFailed(handle)]);
    bench.age.failed = false;
    bench.tick(&[]);
    assert_eq!(bench.starts(), [(handle, WorkerCall::Sync)]);

    // The kill of a pod that only the runtime knows does not wait.
    let b = pod("b");
    bench.age.status_at = 0;
    let handle = bench.runtime_kill(&b).handle;
    assert_eq!(bench.starts(), [(handle, WorkerCall::TerminatingRuntime)]);
}

#[test]
fn outcomes() {
    let a = pod("a");
    let failed = CallOutcome::Failed(RetryCause::Error);
    // PW-25 PW-26 PW-30
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    bench.run(handle, WorkerCall::Sync, failed);
    assert_eq!(
        bench.stage(handle),
        WorkerStage::Sync,
        "failure changes no state"
    );
    bench.tick(&[&a]);
    bench.run(handle, WorkerCall::Sync, CallOutcome::Terminal);
    assert_eq!(
        bench.stage(handle),
        WorkerStage::Terminating,
        "started with that"
    );
    for _ in 0..20 {
        let calls = bench.starts();
        assert!(matches!(calls[..], [(_, WorkerCall::Terminating { .. })]));
        bench.done(handle, failed);
        bench.tick(&[&a]);
    }
    assert_eq!(bench.stage(handle), WorkerStage::Terminating);
    bench.starts();
    bench.done(handle, CallOutcome::Done);
    bench.run(handle, WorkerCall::Terminated, failed);
    assert_eq!(bench.stage(handle), WorkerStage::Terminated);
    bench.tick(&[&a]);
    bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
    assert_eq!(bench.stage(handle), WorkerStage::Finished);
    assert_eq!(bench.table.next_timeout(), None);

    // After natural completion there is no grace; a terminal phase seen during a kill changes nothing.
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    bench.run(handle, WorkerCall::Sync, CallOutcome::Terminal);
    bench.run(handle, terminating(None), CallOutcome::Done);
    let b = pod("b");
    let handle = bench.create(&b);
    bench.starts();
    bench.kill(&b, kill_in(6));
    bench.done(handle, CallOutcome::Terminal);
    assert_eq!(bench.starts(), [(handle, terminating(6))]);
}

#[test]
fn requeue_times() {
    let a = pod("a");
    // PW-27 PW-28 CLEAN-16
    for (name, outcome, from_ms, to_ms) in [
        ("well", CallOutcome::Done, 60_000, 90_000),
        (
            "network",
            CallOutcome::Failed(RetryCause::NetworkNotReady),
            1_000,
            1_500,
        ),
        (
            "error",
            CallOutcome::Failed(RetryCause::Error),
            10_000,
            15_000,
        ),
        (
            "back-off",
            CallOutcome::Failed(RetryCause::BackOff(MonoTime(21_001))),
            20_000,
            30_000,
        ),
    ] {
        let mut bench = Bench::new();
        let handle = bench.create(&a);
        bench.run(handle, WorkerCall::Sync, outcome);
        assert_eq!(bench.starts(), [], "{name}");
        let waited = bench.tick(&[&a]);
        assert!((from_ms..=to_ms).contains(&waited), "{name}: {waited}");
        assert_eq!(bench.starts(), [(handle, WorkerCall::Sync)], "{name}");
    }
}

#[test]
fn due_pods_without_a_source() {
    // LOOP-17
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.running(&a);
    bench.tick(&[]);
    assert_eq!(bench.starts(), [], "consumed and lost while it syncs");
    assert_eq!(bench.table.next_timeout(), None);
    bench
        .table
        .set_active_deadline(handle, Some(MonoTime(bench.now + 5)));
    assert_eq!(bench.tick(&[&a]), 6);
    assert_eq!(
        bench.starts(),
        [(handle, WorkerCall::Sync)],
        "past its deadline"
    );
}

#[test]
fn orphans() {
    let a = pod("a");
    // PW-32 PW-31
    let mut bench = Bench::new();
    let handle = bench.create(&a);
    assert_eq!(
        bench.sync(&[]),
        [],
        "never started: forgotten without a call"
    );
    assert!(matches!(bench.effects()[..], [PodTableEffect::Gone { .. }]));
    assert!(
        !bench
            .table
            .on_call_done(handle, CallOutcome::Done, MonoTime(1))
    );

    bench.finished(&a);
    assert_eq!(bench.sync(&[]), [], "finished: forgotten");
    assert_eq!(bench.starts(), []);

    // Seen in the runtime and not started: driven to its end.
    let handle = bench.runtime_kill(&a).handle;
    assert_eq!(bench.sync(&[]).len(), 1);
    bench.run(handle, WorkerCall::TerminatingRuntime, CallOutcome::Done);
    bench.effects();

    for (name, deletion_grace_s, stored) in
        [("spec grace", None, 30), ("deletion grace", Some(7), 7)]
    {
        let with_grace = TestPod {
            deletion_grace_s,
            ..a.clone()
        };
        // PW-30
        let handle = bench.running(&with_grace);
        let [known] = &bench.sync(&[])[..] else {
            panic!("{name}: driven on");
        };
        assert_eq!(
            (known.state, known.orphan),
            (WorkState::Terminating, true),
            "{name}"
        );
        assert_eq!(bench.table.grace_s(handle), Some(stored), "{name}: stored");
        bench.run(handle, terminating(None), CallOutcome::Done); // and not passed on
        assert!(bench.table.should_pod_content_be_removed(&a.uid), "{name}");
        bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
        bench.sync(&[]);
        bench.effects();
        assert!(bench.table.is_empty(), "{name}");
    }

    // Already terminated: flagged deleted, nothing else.
    let handle = bench.running(&a);
    bench.kill(&a, kill_in(1));
    bench.run(handle, terminating(1), CallOutcome::Done);
    assert!(!bench.table.should_pod_content_be_removed(&a.uid));
    bench.sync(&[]);
    assert!(bench.table.should_pod_content_be_removed(&a.uid));
    assert_eq!(bench.stage(handle), WorkerStage::Terminated);
}

#[test]
fn a_failed_stop_after_force_delete_is_retried_until_the_pod_is_gone() {
    // PW-33
    let a = pod("a");
    for by_housekeeping in [true, false] {
        let mut bench = Bench::new();
        let handle = bench.running(&a);
        // The object vanished: a kill without options, and no source has the pod any more.
        bench.kill(&a, KillOptions::default());
        for attempt in 0..5 {
            assert_eq!(
                bench.starts(),
                [(handle, terminating(30))],
                "attempt {attempt}"
            );
            bench.done(handle, CallOutcome::Failed(RetryCause::Error));
            assert_eq!(bench.starts(), []);
            if by_housekeeping {
                bench.now += 2000;
                let [known] = &bench.sync(&[])[..] else {
                    panic!("kept until it is gone");
                };
                assert!(known.orphan && known.state == WorkState::Terminating);
            } else {
                bench.tick(&[]);
            }
        }
        bench.run(handle, terminating(30), CallOutcome::Done);
        for attempt in 0..5 {
            assert_eq!(
                bench.starts(),
                [(handle, WorkerCall::Terminated)],
                "attempt {attempt}"
            );
            bench.done(handle, CallOutcome::Failed(RetryCause::Error));
            if by_housekeeping {
                bench.sync(&[]);
            } else {
                bench.tick(&[]);
            }
        }
        bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
        assert_eq!(bench.sync(&[]), []);
        assert!(matches!(bench.effects()[..], [PodTableEffect::Gone { .. }]));
        assert!(bench.table.is_empty());
    }
    // A pod that only the runtime knows behaves alike.
    let mut bench = Bench::new();
    let handle = bench.runtime_kill(&a).handle;
    for _ in 0..5 {
        bench.run(
            handle,
            WorkerCall::TerminatingRuntime,
            CallOutcome::Failed(RetryCause::Error),
        );
        bench.sync(&[]);
    }
    bench.run(handle, WorkerCall::TerminatingRuntime, CallOutcome::Done);
    bench.effects();
    assert!(bench.table.is_empty());
}

#[test]
fn a_pending_update_is_not_overwritten_by_a_replay() {
    // PW-33
    let mut bench = Bench::new();
    let a = pod("a");
    let handle = bench.running(&a);
    bench.kill(&a, kill_in(8));
    bench.sync(&[]);
    assert_eq!(bench.starts(), [(handle, terminating(8))]);
}

#[test]
fn rows_of_known_pods() {
    // PW-35
    let mut bench = Bench::new();
    let (a, b, c) = (pod("a"), static_pod("b"), pod("c"));
    bench.running(&a);
    bench.create(&b);
    bench.runtime_kill(&c);
    let row = |uid: &str, state, orphan, has_config, is_static| KnownPod {
        uid: uid.into(),
        state,
        orphan,
        has_config,
        is_static,
    };
    assert_eq!(
        bench.sync(&[&a, &b]),
        [
            row("a", WorkState::Sync, false, true, false),
            row("b", WorkState::Sync, false, true, true),
            row("c", WorkState::Terminating, true, false, false),
        ]
    );
}

/// Answers of the five questions, in the order of the table.
fn answers(table: &PodTable, uid: &PodUid) -> [bool; 5] {
    [
        table.is_pod_known_terminated(uid),
        table.could_have_running_containers(uid),
        table.should_pod_be_finished(uid),
        table.is_pod_termination_requested(uid),
        table.should_pod_content_be_removed(uid),
    ]
}

#[test]
fn truth_table() {
    const F: bool = false;
    const T: bool = true;
    let a = pod("a");
    // PW-36 PW-38
    let mut bench = Bench::new();
    assert_eq!(
        answers(&bench.table, &a.uid),
        [F, T, F, F, F],
        "unknown, not yet synced"
    );
    bench.sync(&[]);
    assert_eq!(
        answers(&bench.table, &a.uid),
        [F, F, T, F, T],
        "unknown, synced"
    );

    for (e, d) in [(F, F), (T, F), (F, T)] {
        for is_static in [F, T] {
            let mut bench = Bench::new();
            let a = TestPod {
                is_static,
                ..a.clone()
            };
            let check = |bench: &Bench, name, expected: [bool; 5]| {
                assert_eq!(
                    answers(&bench.table, &a.uid),
                    expected,
                    "{name} e={e} d={d} static={is_static}"
                );
                // GC-03
                let garbage = expected[4] && !expected[1];
                assert_eq!(
                    bench.table.is_garbage(&a.uid),
                    garbage,
                    "{name} e={e} d={d}"
                );
            };
            let handle = bench.create(&a);
            check(&bench, "waiting to start", [F, T, F, F, F]);
            assert_eq!(bench.starts(), [(handle, WorkerCall::Sync)]);
            check(&bench, "syncing", [F, T, F, F, F]);
            let target = if d { a.deleted(9) } else { a.clone() };
            bench.kill(
                &target,
                KillOptions {
                    evict: e,
                    ..kill_in(9)
                },
            );
            check(&bench, "requested, not yet started", [F, T, F, T, e]);
            bench.done(handle, CallOutcome::Done);
            assert_eq!(bench.starts(), [(handle, terminating(9))]);
            check(&bench, "terminating", [F, T, F, T, e]);
            bench.done(handle, CallOutcome::Done);
            check(&bench, "terminated, unfinished", [T, F, F, T, e || d]);
            bench.run(handle, WorkerCall::Terminated, CallOutcome::Done);
            check(&bench, "finished", [T, F, T, T, e || d]);
        }
        let mut bench = Bench::new();
        let a = static_pod("a");
        bench.create(&a);
        let target = if d { a.deleted(9) } else { a.clone() };
        bench.kill(
            &target,
            KillOptions {
                evict: e,
                ..kill_in(9)
            },
        );
        bench.effects();
        assert_eq!(
            answers(&bench.table, &a.uid),
            [T, F, T, T, e || d],
            "finished, never started e={e} d={d}"
        );
    }
}

#[test]
fn mirror_of_a_terminating_pod() {
    // PW-37
    let mut bench = Bench::new();
    let (a, b) = (static_pod("a"), static_pod("b"));
    let ends = |bench: &Bench, name| {
        bench
            .table
            .is_pod_for_mirror_pod_terminating(name, NAMESPACE)
    };
    let handle = bench.running(&a);
    bench.create(&b);
    assert!(!ends(&bench, "pod"));
    bench.kill(&a, kill_in(1));
    assert!(ends(&bench, "pod"), "requested");
    assert!(!ends(&bench, "other"), "unknown name");
    assert_eq!(bench.starts(), [(handle, terminating(1))]);
    assert!(ends(&bench, "pod"), "terminating");
    bench.done(handle, CallOutcome::Done);
    assert!(!ends(&bench, "pod"), "terminated");

    let mut bench = Bench::new();
    bench.create(&a);
    bench.kill(&a, kill_in(1));
    assert!(!ends(&bench, "pod"), "a waiter does not hold the name");
}

#[test]
fn a_full_table_is_an_answer() {
    let capacity = PodTableCapacity {
        max_pods: 2,
        reserved: 2,
        margin: 0,
    };
    let mut bench = Bench::with(capacity);
    let full = Err(PodTableFull { slots: 4 });
    let put = |bench: &mut Bench, pod: &TestPod| {
        let update = PodUpdate::new(UpdateKind::Create, pod.facts());
        bench
            .table
            .update_pod(update, MonoTime(1))
            .map(|answer| answer.handle)
    };
    put(&mut bench, &pod("a")).expect("first");
    put(&mut bench, &pod("b")).expect("second");
    assert_eq!(
        put(&mut bench, &pod("c")),
        full,
        "what is left is for static pods"
    );
    put(&mut bench, &static_pod("d")).expect("static");
    bench.runtime_kill(&pod("e"));
    assert_eq!(put(&mut bench, &static_pod("f")), full);
    assert_eq!(bench.table.len(), 4);
    put(&mut bench, &pod("a")).expect("a known pod needs no slot");

    bench.sync(&[&pod("b"), &static_pod("d")]);
    bench.effects();
    assert_eq!(bench.table.len(), 3, "one left");
    put(&mut bench, &pod("c")).expect("a slot is free again");
}

#[test]
fn starts_take_turns() {
    let mut bench = Bench::new();
    let (a, b) = (pod("a"), pod("b"));
    let one = bench.create(&a);
    let two = bench.create(&b);
    let next = |bench: &mut Bench| match bench.table.poll_effect(&bench.age, MonoTime(1)) {
        Some(PodTableEffect::Start(start)) => start.handle,
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&mut bench), one);
    bench.update(UpdateKind::Update, &a);
    bench.done(one, CallOutcome::Done);
    assert_eq!(next(&mut bench), two, "the one that has waited");
    assert_eq!(next(&mut bench), one);
}
