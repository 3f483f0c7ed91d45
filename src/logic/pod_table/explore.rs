//! Every reachable state of small tables: the promises of the table hold for all events in any order.

use alloc::{collections::BTreeSet, vec::Vec};

use super::*;
use crate::pod_worker::KillOptions;

const SPEC_GRACE_S: i64 = 30;
/// Number of rounds within which a table that is let go must be empty.
const MAX_ROUNDS: usize = 8;
/// A guard against a state space that does not close.
const MAX_STATES: usize = 20_000;

/// Cache in which every status has this age.
struct FixedAge(StatusFreshness);

impl StatusAge for FixedAge {
    fn compare_status_age(&self, _: &PodUid, _: MonoTime) -> StatusFreshness {
        self.0
    }
}

/// Answers that the runtime cache can have for a call.
const AGES: [StatusFreshness; 3] = [
    StatusFreshness::Fresh,
    StatusFreshness::Stale,
    StatusFreshness::Failed,
];

/// Event for the table. The number is the pod's.
#[derive(Clone, Copy, Debug)]
enum ExplorerInput {
    Update(usize, UpdateKind),
    Deleted(usize, i64),
    PhaseTerminal(usize),
    FirstSightIdle(usize),
    /// A pod is created while the runtime has a part of it.
    FirstSightBusy(usize),
    Kill(usize, Option<i64>),
    RuntimeKill(usize),
    /// Housekeeping; bit n is set if pod n is wanted.
    Known(usize),
    /// All timers fire; bits as above.
    Tick(usize),
    Done(usize, CallOutcome),
}

/// Facts about an update: the object is known, its deletion grace, the grace to pass on.
type WorkFacts = (bool, Option<i32>, Option<i32>);

/// State of a pod as far as it decides what happens next. Times, random numbers and the slot's number do not count.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct TableState {
    uid: PodUid,
    stage: WorkerStage,
    flags: [bool; 11],
    call: Option<WorkerCall>,
    grace_s: u32,
    pending: Option<WorkFacts>,
    active: Option<WorkFacts>,
    /// Number of pods before it in the queue.
    place: usize,
    timer: bool,
}

fn rows(table: &PodTable) -> (bool, Vec<TableState>) {
    let used = || table.slots.iter().filter(|slot| slot.is_used());
    let mut rows: Vec<TableState> = used()
        .map(|slot| {
            let worker = &slot.worker;
            let work = |work: Option<PodWork>| {
                work.map(|work| (work.has_spec, work.deletion_grace_s, work.kill_grace_s))
            };
            TableState {
                uid: slot.uid.clone(),
                stage: worker.stage,
                flags: [
                    slot.turn != 0,
                    worker.is_static,
                    worker.started,
                    worker.deleted,
                    worker.evicted,
                    worker.restart_requested,
                    worker.observed_runtime,
                    worker.woken,
                    worker.cancelled,
                    worker.wants_signal,
                    worker.status_asked,
                ],
                call: worker.call,
                grace_s: worker.grace_s,
                pending: work(worker.pending),
                active: work(worker.active),
                place: used()
                    .filter(|other| other.turn != 0 && other.turn < slot.turn)
                    .count(),
                timer: worker.timers.next_timeout().is_some(),
            }
        })
        .collect();
    rows.sort_unstable();
    (table.synced, rows)
}

struct TableExplorer {
    uids: Vec<PodUid>,
    is_static: bool,
    inputs: Vec<ExplorerInput>,
    ages: &'static [StatusFreshness],
    capacity: PodTableCapacity,
    calls: usize,
    refusals: usize,
}

impl TableExplorer {
    fn new(uids: &[&str], is_static: bool, inputs: Vec<ExplorerInput>) -> Self {
        Self {
            uids: uids.iter().map(|uid| PodUid::from(*uid)).collect(),
            is_static,
            inputs,
            ages: &AGES[..1],
            capacity: PodTableCapacity {
                max_pods: u16::try_from(uids.len()).expect("few"),
                reserved: 0,
                margin: 1,
            },
            calls: 0,
            refusals: 0,
        }
    }

    fn facts(&self, pod: usize) -> PodFacts<'_> {
        PodFacts {
            uid: &self.uids[pod],
            name: "pod",
            namespace: "default",
            is_static: self.is_static,
            deletion_requested: false,
            deletion_grace_s: None,
            spec_grace_s: Some(SPEC_GRACE_S),
            phase_terminal: false,
        }
    }

    fn wanted(&self, mask: usize, uid: &PodUid) -> bool {
        let at = self.uids.iter().position(|other| other == uid);
        at.is_some_and(|pod| mask & (1 << pod) != 0)
    }

    /// Gives the input to the table. Returns false if it cannot happen there.
    fn apply(&mut self, table: &mut PodTable, input: ExplorerInput, now: MonoTime) -> bool {
        let update = match input {
            ExplorerInput::Update(pod, kind) => PodUpdate::new(kind, self.facts(pod)),
            ExplorerInput::Deleted(pod, grace_s) => {
                let mut facts = self.facts(pod);
                facts.deletion_requested = true;
                facts.deletion_grace_s = Some(grace_s);
                PodUpdate::new(UpdateKind::Update, facts)
            }
            ExplorerInput::PhaseTerminal(pod) | ExplorerInput::FirstSightIdle(pod) => {
                let mut facts = self.facts(pod);
                facts.phase_terminal = true;
                let idle = matches!(input, ExplorerInput::FirstSightIdle(_));
                PodUpdate::new(UpdateKind::Create, facts).with_runtime_idle(idle)
            }
            ExplorerInput::FirstSightBusy(pod) => {
                PodUpdate::new(UpdateKind::Create, self.facts(pod)).with_runtime_idle(false)
            }
            ExplorerInput::Kill(pod, grace_s) => {
                let options = KillOptions {
                    grace_s,
                    evict: grace_s.is_some(),
                    signal: true,
                    status: None,
                };
                PodUpdate::new_kill(self.facts(pod), options)
            }
            ExplorerInput::RuntimeKill(pod) => {
                PodUpdate::runtime_only(&self.uids[pod], "pod", "default")
            }
            ExplorerInput::Known(mask) => {
                let known = table.sync_known_pods(&|uid| self.wanted(mask, uid));
                assert!(known.is_sorted_by(|a, b| a.uid < b.uid));
                return true;
            }
            ExplorerInput::Tick(mask) => {
                let due = table.next_timeout().is_some();
                table.on_timeout(&|uid| self.wanted(mask, uid), now);
                return due;
            }
            ExplorerInput::Done(pod, outcome) => {
                let handle = table.find_handle(&self.uids[pod]);
                return handle.is_some_and(|handle| table.on_call_done(handle, outcome, now));
            }
        };
        let before = rows(table);
        let answer = match table.update_pod(update, now) {
            Ok(answer) => answer,
            Err(PodTableFull { slots }) => {
                assert!(table.len() == slots && slots < self.uids.len());
                assert!(rows(table) == before, "a refusal changes nothing");
                self.refusals += 1;
                return true;
            }
        };
        let asks = matches!(input, ExplorerInput::Kill(..));
        let waits = table.slots.iter().any(|slot| {
            slot.is_used()
                && slot.worker.wants_signal
                && table.find_handle(&slot.uid) == Some(answer.handle)
        });
        assert!(
            !asks || waits || answer.signal_now,
            "a killer is never forgotten"
        );
        true
    }

    /// Fetches all effects and checks each against the table as it was just before.
    fn drain(
        &mut self,
        table: &mut PodTable,
        age: StatusFreshness,
        now: MonoTime,
    ) -> Vec<PodHandle> {
        let mut stopped = Vec::new();
        for _ in 0..100 {
            let before = table.clone();
            let worker = |handle: PodHandle| {
                let index = before.index_of(handle).expect("a living pod");
                &before.slots[index].worker
            };
            match table.poll_effect(&FixedAge(age), now) {
                None => return stopped,
                Some(PodTableEffect::Start(CallStart { handle, call, .. })) => {
                    self.calls += 1;
                    let worker = worker(handle);
                    let runtime_only = call == WorkerCall::TerminatingRuntime;
                    assert!(
                        age == StatusFreshness::Fresh || runtime_only,
                        "a call without a status"
                    );
                    assert_eq!(worker.call, None, "two calls for one pod");
                    let fits = match call {
                        WorkerCall::Sync => worker.stage == WorkerStage::Sync,
                        WorkerCall::Terminating { grace_s } => {
                            assert!(grace_s != Some(0), "at least 1 s");
                            assert!(grace_s.is_none_or(|grace_s| grace_s == worker.grace_s));
                            matches!(
                                worker.stage,
                                WorkerStage::Requested | WorkerStage::Terminating
                            )
                        }
                        WorkerCall::TerminatingRuntime => {
                            matches!(
                                worker.stage,
                                WorkerStage::Requested | WorkerStage::Terminating
                            )
                        }
                        WorkerCall::Terminated => worker.stage == WorkerStage::Terminated,
                    };
                    assert!(fits, "{call:?} in {:?}", worker.stage);
                }
                Some(PodTableEffect::Cancel(handle)) => {
                    assert!(worker(handle).call.is_some(), "nothing to cancel");
                }
                Some(PodTableEffect::Stopped(handle)) => stopped.push(handle),
                Some(PodTableEffect::Gone { handle, .. }) => {
                    let slot = &before.slots[usize::try_from(handle.index).expect("index")];
                    assert_eq!(slot.worker.call, None, "gone with a call running");
                    assert!(table.pod_identity(handle).is_none());
                }
                Some(PodTableEffect::NeedStatus { handle, .. }) => {
                    assert!(age == StatusFreshness::Stale && !worker(handle).status_asked);
                }
                Some(PodTableEffect::StatusFailed(_)) => assert!(age == StatusFreshness::Failed),
            }
        }
        panic!("effects without end");
    }

    fn check(before: &PodTable, after: &PodTable, stopped: &[PodHandle]) {
        assert!(after.len() <= after.slots.len());
        assert_eq!(after.len(), after.handles().count(), "drained");
        let holders = after.slots.iter().filter(|slot| slot.holds_name()).count();
        assert!(holders <= 1, "one full name, one started pod");
        for handle in before.handles() {
            let old = &before.slots[before.index_of(handle).expect("living")].worker;
            let new = after
                .index_of(handle)
                .map(|index| &after.slots[index].worker);
            if let Some(new) = new {
                assert!(new.stage >= old.stage, "stages only advance");
                assert!(
                    old.grace_s == 0 || new.grace_s <= old.grace_s,
                    "grace only shrinks"
                );
                assert!(new.grace_s != 0 || old.grace_s == 0, "grace stays set");
                assert!(!old.deleted || new.deleted);
                assert!(!old.evicted || new.evicted);
            } else {
                assert!(
                    old.call.is_none() || old.call == Some(WorkerCall::TerminatingRuntime),
                    "a pod went while its call ran"
                );
            }
            let still_waits = new.is_some_and(|new| new.wants_signal);
            assert!(
                !old.wants_signal || still_waits || stopped.contains(&handle),
                "a killer is told"
            );
        }
        for slot in after.slots.iter().filter(|slot| slot.is_used()) {
            let worker = &slot.worker;
            let moves = worker.call.is_some()
                || worker.status_asked
                || worker.timers.next_timeout().is_some()
                || worker.stage == WorkerStage::Sync
                || worker.stage.is_finished();
            assert!(moves, "a pod that ends always has its next step");
            assert!(!worker.stage.is_finished() || worker.call.is_none());
        }
    }

    /// Lets all pods go: calls end well, no source wants a pod, timers fire.
    fn let_go(&mut self, mut table: PodTable, mut now: MonoTime) {
        for _ in 0..MAX_ROUNDS {
            for pod in 0..self.uids.len() {
                self.apply(&mut table, ExplorerInput::Done(pod, CallOutcome::Done), now);
            }
            self.apply(&mut table, ExplorerInput::Known(0), now);
            self.drain(&mut table, StatusFreshness::Fresh, now);
            now = now + Duration::from_secs(1000);
        }
        assert!(table.is_empty(), "a pod never goes away");
    }

    /// Lets calls and timers go on without housekeeping: timers alone must bring a pod that ends to its end.
    fn end_by_timers(&mut self, mut table: PodTable, mut now: MonoTime) {
        let ends: Vec<PodHandle> = table
            .handles()
            .filter(|handle| {
                table
                    .pod_stage(*handle)
                    .is_some_and(WorkerStage::is_termination_requested)
            })
            .collect();
        for _ in 0..MAX_ROUNDS {
            for pod in 0..self.uids.len() {
                self.apply(&mut table, ExplorerInput::Done(pod, CallOutcome::Done), now);
            }
            now = now + Duration::from_secs(1000);
            self.apply(&mut table, ExplorerInput::Tick(0), now);
            self.drain(&mut table, StatusFreshness::Fresh, now);
        }
        for handle in ends {
            assert!(
                table.pod_stage(handle).is_none_or(WorkerStage::is_finished),
                "a pod that ends hangs"
            );
        }
    }

    /// Visits every reachable state; returns their number. That it returns proves that there are no more.
    fn run(&mut self) -> usize {
        let start = PodTable::new(self.capacity, 1);
        let mut seen = BTreeSet::from([rows(&start)]);
        let mut open = vec![(start, MonoTime(1))];
        while let Some((table, at)) = open.pop() {
            // Longer than any delay: every timer that is set fires in a tick.
            let now = at + Duration::from_secs(1000);
            let steps = self.inputs.clone().into_iter();
            for (input, age) in
                steps.flat_map(|input| self.ages.iter().map(move |age| (input, *age)))
            {
                let mut next = table.clone();
                if !self.apply(&mut next, input, now) {
                    continue;
                }
                let stopped = self.drain(&mut next, age, now);
                Self::check(&table, &next, &stopped);
                if seen.insert(rows(&next)) {
                    self.let_go(next.clone(), now);
                    self.end_by_timers(next.clone(), now);
                    open.push((next, now));
                }
            }
            assert!(seen.len() <= MAX_STATES, "the state space does not close");
        }
        std::println!(
            "{} pods of {:?}: {} states, all of them, by {} inputs; {} calls",
            self.uids.len(),
            self.capacity,
            seen.len(),
            self.inputs.len() * self.ages.len(),
            self.calls
        );
        seen.len()
    }
}

fn inputs(pods: usize, per_pod: impl Fn(usize) -> Vec<ExplorerInput>) -> Vec<ExplorerInput> {
    let mut all: Vec<ExplorerInput> = (0..pods).flat_map(per_pod).collect();
    for mask in 0..1 << pods {
        all.extend([ExplorerInput::Known(mask), ExplorerInput::Tick(mask)]);
    }
    all
}

fn every_input(pod: usize) -> Vec<ExplorerInput> {
    vec![
        ExplorerInput::Update(pod, UpdateKind::Create),
        ExplorerInput::Update(pod, UpdateKind::Update),
        ExplorerInput::Update(pod, UpdateKind::Sync),
        ExplorerInput::Deleted(pod, 20),
        ExplorerInput::Deleted(pod, 0),
        ExplorerInput::PhaseTerminal(pod),
        ExplorerInput::FirstSightIdle(pod),
        ExplorerInput::FirstSightBusy(pod),
        ExplorerInput::Kill(pod, None),
        ExplorerInput::Kill(pod, Some(2)),
        ExplorerInput::Kill(pod, Some(60)),
        ExplorerInput::RuntimeKill(pod),
        ExplorerInput::Done(pod, CallOutcome::Done),
        ExplorerInput::Done(pod, CallOutcome::Terminal),
        ExplorerInput::Done(pod, CallOutcome::Canceled),
        ExplorerInput::Done(pod, CallOutcome::Failed(RetryCause::Error)),
    ]
}

/// Inputs that matter between two pods of one full name. More would square the number of states for little.
fn main_inputs(pod: usize) -> Vec<ExplorerInput> {
    vec![
        ExplorerInput::Update(pod, UpdateKind::Create),
        ExplorerInput::Kill(pod, None),
        ExplorerInput::Done(pod, CallOutcome::Done),
        ExplorerInput::Done(pod, CallOutcome::Terminal),
        ExplorerInput::Done(pod, CallOutcome::Failed(RetryCause::Error)),
    ]
}

// PW-01 PW-04 PW-10 PW-12 PW-19 PW-23 PW-25 PW-26 PW-33

#[test]
fn one_api_pod_and_every_input() {
    let mut explorer = TableExplorer::new(&["a"], false, inputs(1, every_input));
    let states = explorer.run();
    assert!(states > 200 && explorer.calls > 1000, "{states} states");
}

#[test]
fn one_static_pod_and_every_input() {
    let mut explorer = TableExplorer::new(&["a"], true, inputs(1, every_input));
    let states = explorer.run();
    assert!(states > 200 && explorer.calls > 1000, "{states} states");
}

#[test]
fn one_pod_and_every_age_of_its_status() {
    // PW-24
    for is_static in [false, true] {
        let mut explorer = TableExplorer::new(&["a"], is_static, inputs(1, main_inputs));
        explorer.ages = &AGES;
        let states = explorer.run();
        assert!(states > 100 && explorer.calls > 300, "{states} states");
    }
}

#[test]
fn two_pods_and_one_slot() {
    let mut explorer = TableExplorer::new(&["a", "b"], false, inputs(2, main_inputs));
    explorer.capacity = PodTableCapacity {
        max_pods: 1,
        reserved: 0,
        margin: 0,
    };
    let states = explorer.run();
    assert!(states > 30 && explorer.refusals > 30, "{states} states");
}

#[test]
fn two_static_pods_of_one_name() {
    let mut explorer = TableExplorer::new(&["a", "b"], true, inputs(2, main_inputs));
    let states = explorer.run();
    assert!(states > 500 && explorer.calls > 1000, "{states} states");
}
