//! All probes of the node: by pod, and by when they are due. Rows PROBE-02, PROBE-13, PROBE-14, CLEAN-03.
//!
//! A pod's workers are made together and go together; each is in the timetable at most once. The action `A` of a
//! worker (whom to ask what) is the caller's.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::time::Duration;

use super::{
    ProbeDurations, ProbeKind, ProbePassStep, ProbeResult, ProbeResults, ProbeSettings,
    ProbeWorker, ProbedContainerState, ProbedPod, worker::hash_instance_id,
};
use crate::api::order::GatherExt as _;
use crate::api::{Container, ContainerId, MonoTime, Pod, PodStatus, PodUid};

/// Age at the agent's start from which on an instance counts as started by the agent before it (PROBE-15).
const ADOPTED_BEFORE: Duration = Duration::from_secs(10);

/// Time for which results of the agent before this one count, as long as there are no new ones.
const PASSED_FOR: Duration = Duration::from_secs(3600);

/// Worker with its container, action and durations.
#[derive(Clone, Debug)]
pub struct ProbeWorkerEntry<A> {
    /// The state machine.
    pub worker: ProbeWorker,
    /// Name of the container.
    pub container: Box<str>,
    /// Action that the probe takes.
    pub action: A,
    /// Durations of the probe.
    pub took: ProbeDurations,
}

/// Unique key of a worker: a pod that comes again has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeWorkerKey {
    pod: u64,
    index: u16,
}

#[derive(Clone, Debug)]
struct PodProbeWorkers<A> {
    uid: PodUid,
    entries: Box<[ProbeWorkerEntry<A>]>,
}

/// Number of workers of one pod, including those whose container an edit removed. Further probes are not made.
const MAX_WORKERS_OF_POD: usize = 1024;

/// All workers of the node.
///
/// - Shape: at most three a container of each pod that has a worker.
#[derive(Clone, Debug)]
pub struct ProbeWorkers<A> {
    pods: BTreeMap<u64, PodProbeWorkers<A>>,
    numbers: BTreeMap<PodUid, u64>,
    timetable: BTreeSet<(MonoTime, ProbeWorkerKey)>,
    next: u64,
    /// Successes under the agent before this one: kind of probe, and digest of the instance.
    passed: BTreeSet<(ProbeKind, u64)>,
    /// Time at which the agent started.
    started: MonoTime,
}

/// Workers of a pod that go on after [`ProbeWorkers::stop_pod_workers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkersToKeep {
    /// Readiness of all containers, and all probes of sidecars (PROBE-14).
    WhileStopping,
    /// No worker.
    None,
}

impl<A> ProbeWorkers<A> {
    /// Starts without workers. `now`: start of the agent.
    #[must_use]
    pub const fn new(now: MonoTime) -> Self {
        Self {
            pods: BTreeMap::new(),
            numbers: BTreeMap::new(),
            timetable: BTreeSet::new(),
            next: 0,
            passed: BTreeSet::new(),
            started: now,
        }
    }

    /// Takes in what [`ProbeWorkers::passed_instances`] returned under the agent before this one: it counts until a
    /// probe has a new result. The API has such results only for pods that it knows, and only for a container as a whole.
    pub fn recall_passed(&mut self, passed: impl Iterator<Item = (ProbeKind, u64)>) {
        self.passed = passed.gather_items();
    }

    /// Instances that have started or are ready by their probes, as digests; in no order.
    pub fn passed_instances(&self) -> impl Iterator<Item = (ProbeKind, u64)> + '_ {
        let own = self.pods.values().flat_map(|pod| &pod.entries);
        let own = own
            .map(|entry| &entry.worker)
            .filter(|w| w.settings().kind != ProbeKind::Liveness)
            .filter(|w| w.result() == Some(ProbeResult::Success))
            .map(|w| (w.settings().kind, w.instance()));
        own.chain(self.passed.iter().copied())
    }

    /// Returns true if an instance started at `moment`, in time since boot, was started by an agent before this one.
    #[must_use]
    pub fn is_adopted(&self, moment: MonoTime) -> bool {
        moment + ADOPTED_BEFORE < self.started
    }

    /// Makes the workers that a pod does not have yet: all, or those of probes that came with an edit. `action` makes
    /// the action of a container's probe; `below(n)` is a number below `n` of a seeded generator.
    ///
    /// A pod without probes costs nothing. Returns true if workers were made.
    pub fn add_pod_workers(
        &mut self,
        pod: &Pod,
        now: MonoTime,
        action: impl Fn(&Container, ProbeKind) -> A,
        mut below: impl FnMut(u64) -> u64,
    ) -> bool {
        let uid = &pod.metadata.uid;
        let number = self.numbers.get(uid).copied();
        let known = number.and_then(|number| self.pods.get(&number));
        let known = known.map_or(&[][..], |known| &known.entries);
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let regular = pod.spec.containers.iter().map(|c| (c, false));
        let inits = pod.spec.init_containers.iter();
        let sidecars = inits.filter(|c| c.is_sidecar()).map(|c| (c, true));
        let age = now.since_ms(self.started);
        let mut entries = Vec::new();
        for (container, sidecar) in regular.chain(sidecars) {
            for kind in [
                ProbeKind::Startup,
                ProbeKind::Readiness,
                ProbeKind::Liveness,
            ] {
                let Some(probe) = kind.probe_of(container) else {
                    continue;
                };
                let has = |entry: &ProbeWorkerEntry<A>| {
                    *entry.container == *container.name && entry.worker.settings().kind == kind
                };
                if known.iter().any(has) || known.len() + entries.len() >= MAX_WORKERS_OF_POD {
                    continue;
                }
                let settings = ProbeSettings::from_probe(kind, probe, sidecar, deleting);
                let period = u64::from(settings.period_s) * 1000;
                // An agent that has just been started finds all pods at once.
                let wait = if age < period { below(period) } else { 0 };
                let due = now + Duration::from_millis(wait);
                entries.push(ProbeWorkerEntry {
                    worker: ProbeWorker::new(settings, due, now),
                    container: container.name.as_str().into(),
                    action: action(container, kind),
                    took: ProbeDurations::default(),
                });
            }
        }
        if entries.is_empty() {
            return false;
        }
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            self.numbers.insert(uid.clone(), self.next);
            self.next
        });
        let workers = self.pods.entry(number).or_insert_with(|| PodProbeWorkers {
            uid: uid.clone(),
            entries: Box::default(),
        });
        let mut all = core::mem::take(&mut workers.entries).into_vec();
        let first = all.len();
        all.extend(entries);
        for (index, entry) in (0..).zip(&all).skip(first) {
            let key = ProbeWorkerKey { pod: number, index };
            self.timetable
                .extend(entry.worker.next_pass_time().map(|due| (due, key)));
        }
        workers.entries = all.into();
        true
    }

    /// Ends workers of a pod. Kept ones go on unchanged.
    pub fn stop_pod_workers(&mut self, uid: &PodUid, kept: WorkersToKeep) {
        let Some(&number) = self.numbers.get(uid) else {
            return;
        };
        if kept == WorkersToKeep::None {
            self.numbers.remove(uid);
        }
        let Some(pod) = self.pods.get_mut(&number) else {
            return;
        };
        for (index, entry) in (0..).zip(&mut pod.entries) {
            let ProbeSettings { kind, sidecar, .. } = entry.worker.settings();
            if kept == WorkersToKeep::None || (!sidecar && kind != ProbeKind::Readiness) {
                let key = ProbeWorkerKey { pod: number, index };
                let due = entry.worker.next_pass_time();
                if let Some(due) = due {
                    self.timetable.remove(&(due, key));
                }
                entry.worker.stop();
            }
        }
        if kept == WorkersToKeep::None
            && let Some(gone) = self.pods.remove(&number)
        {
            for ProbeWorkerEntry { worker, .. } in &gone.entries {
                let known = (worker.settings().kind, worker.instance());
                self.passed.remove(&known);
            }
        }
    }

    /// Ends the workers of all pods for which `is_kept` is false (CLEAN-03).
    pub fn retain(&mut self, is_kept: impl Fn(&PodUid) -> bool, now: MonoTime) {
        if now - self.started > PASSED_FOR {
            self.passed.clear();
        }
        let gone: Vec<PodUid> = self
            .numbers
            .keys()
            .filter(|uid| !is_kept(uid))
            .cloned()
            .collect();
        gone.iter()
            .for_each(|uid| self.stop_pod_workers(uid, WorkersToKeep::None));
    }

    /// All workers, with their pods.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &ProbeWorkerEntry<A>)> {
        let pods = self.pods.values();
        pods.flat_map(|pod| pod.entries.iter().map(|entry| (&pod.uid, entry)))
    }

    /// Time at which the next worker is due.
    #[must_use]
    pub fn next_due(&self) -> Option<MonoTime> {
        self.timetable.first().map(|(due, _)| *due)
    }

    /// Takes a worker that is due. [`ProbeWorkers::make_pass`] follows.
    pub fn poll_due_worker(&mut self, now: MonoTime) -> Option<ProbeWorkerKey> {
        let first = self.timetable.first()?;
        if first.0 > now {
            return None;
        }
        self.timetable.pop_first().map(|(_, key)| key)
    }

    /// The worker and its pod, if they still exist.
    #[must_use]
    pub fn worker_entry(&self, key: ProbeWorkerKey) -> Option<(&PodUid, &ProbeWorkerEntry<A>)> {
        let pod = self.pods.get(&key.pod)?;
        Some((&pod.uid, pod.entries.get(usize::from(key.index))?))
    }

    /// [`ProbeWorker::make_pass`]. An instance that the agent before this one has a success for counts as adopted,
    /// however young it is.
    pub fn make_pass(
        &mut self,
        key: ProbeWorkerKey,
        seen: &ProbedPod<'_>,
        restarts: impl FnOnce(i32) -> bool,
        now: MonoTime,
    ) -> (ProbePassStep, Option<ProbeResult>) {
        let mut seen = *seen;
        if let (Some(container), Some((_, entry))) = (&mut seen.container, self.worker_entry(key))
            && let ProbedContainerState::Running { adopted, .. } = &mut container.state
        {
            let known = (entry.worker.settings().kind, hash_instance_id(container.id));
            *adopted |= self.passed.contains(&known);
        }
        self.change_worker(key, |worker| worker.make_pass(&seen, restarts, now))
            .unwrap_or((ProbePassStep::End, None))
    }

    /// [`ProbeWorker::take_result`]; nothing if the worker is gone.
    pub fn take_result(
        &mut self,
        key: ProbeWorkerKey,
        id: &str,
        success: Option<bool>,
        now: MonoTime,
    ) -> Option<ProbeResult> {
        let changed = self.change_worker(key, |worker| worker.take_result(id, success, now))??;
        let kind = self.worker_entry(key)?.1.worker.settings().kind;
        self.passed.remove(&(kind, hash_instance_id(id)));
        Some(changed)
    }

    /// [`ProbeWorker::begin_probe`]; `None` if the worker is gone or has ended.
    pub fn begin_probe(
        &mut self,
        key: ProbeWorkerKey,
        waited: bool,
        now: MonoTime,
    ) -> Option<bool> {
        let live = self.worker_entry(key)?.1.worker.is_probing();
        live.then(|| self.change_worker(key, |worker| worker.begin_probe(waited, now)))?
    }

    /// Counts the duration of a probe.
    pub fn count_duration(&mut self, key: ProbeWorkerKey, ms: u64) {
        let pod = self.pods.get_mut(&key.pod);
        let entry = pod.and_then(|pod| pod.entries.get_mut(usize::from(key.index)));
        if let Some(entry) = entry {
            entry.took.add_duration(ms);
        }
    }

    /// Requests readiness probes now of containers that are started and not known to be ready (PROBE-13). Returns true
    /// if there are any.
    pub fn trigger_readiness(&mut self, uid: &PodUid, status: &PodStatus, now: MonoTime) -> bool {
        let Some(&number) = self.numbers.get(uid) else {
            return false;
        };
        let due = |entry: &ProbeWorkerEntry<A>| {
            let all = status
                .container_statuses
                .iter()
                .chain(&status.init_container_statuses);
            entry.worker.settings().kind == ProbeKind::Readiness
                && all.filter(|c| *c.name == *entry.container).any(|c| {
                    let result = entry
                        .worker
                        .result_of_instance(strip_runtime_prefix(&c.container_id));
                    c.state.running.is_some()
                        && c.started == Some(true)
                        && result != Some(ProbeResult::Success)
                })
        };
        let pod = self.pods.get(&number);
        let found: Vec<ProbeWorkerKey> = (0..)
            .zip(pod.into_iter().flat_map(|pod| &pod.entries))
            .filter(|(_, entry)| due(entry))
            .map(|(index, _)| ProbeWorkerKey { pod: number, index })
            .collect();
        for key in &found {
            self.change_worker(*key, |worker| worker.trigger_pass(now));
        }
        !found.is_empty()
    }

    /// Results of one pod's probes.
    #[must_use]
    pub fn pod_results<'a>(&'a self, uid: &PodUid) -> PodProbeResults<'a, A> {
        let pod = self.numbers.get(uid).and_then(|n| self.pods.get(n));
        PodProbeResults { all: self, pod }
    }

    /// Changes a worker and keeps its place in the timetable right.
    fn change_worker<T>(
        &mut self,
        key: ProbeWorkerKey,
        change: impl FnOnce(&mut ProbeWorker) -> T,
    ) -> Option<T> {
        let pod = self.pods.get_mut(&key.pod)?;
        let worker = &mut pod.entries.get_mut(usize::from(key.index))?.worker;
        let before = worker.next_pass_time();
        let answer = change(worker);
        let after = worker.next_pass_time();
        if let Some(due) = before {
            self.timetable.remove(&(due, key));
        }
        if let Some(due) = after {
            self.timetable.insert((due, key));
        }
        Some(answer)
    }
}

/// Results of one pod's probes.
#[derive(Debug)]
pub struct PodProbeResults<'a, A> {
    all: &'a ProbeWorkers<A>,
    pod: Option<&'a PodProbeWorkers<A>>,
}

impl<A> PodProbeResults<'_, A> {
    fn result(&self, kind: ProbeKind, id: &ContainerId) -> Option<ProbeResult> {
        let entries = self.pod.into_iter().flat_map(|pod| &pod.entries);
        let own = entries
            .filter(|entry| entry.worker.settings().kind == kind)
            .find_map(|entry| entry.worker.result_of_instance(id.as_str()));
        let passed = || {
            self.all
                .passed
                .contains(&(kind, hash_instance_id(id.as_str())))
        };
        own.or_else(|| passed().then_some(ProbeResult::Success))
    }
}

impl<A> ProbeResults for PodProbeResults<'_, A> {
    fn liveness(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.result(ProbeKind::Liveness, id)
    }

    fn readiness(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.result(ProbeKind::Readiness, id)
    }

    fn startup(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.result(ProbeKind::Startup, id)
    }

    fn is_adopted(&self, started: Option<MonoTime>) -> bool {
        started.is_some_and(|at| self.all.is_adopted(at))
    }
}

/// The id in `runtime://id`.
#[must_use]
pub fn strip_runtime_prefix(container_id: &str) -> &str {
    container_id
        .split_once("://")
        .map_or(container_id, |(_, id)| id)
}

#[cfg(test)]
mod tests;
