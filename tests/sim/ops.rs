//! Judges every operation at the runtime as it begins, by what the pod was told to be and by what the runtime has of it, never
//! by what the agent thinks.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};
use core::time::Duration;
use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

use super::{
    super::{core::Agent, tests::world::Hands},
    pods::{Kind, Manifest, PRE_STOP, has_port},
};
use crate::{
    api::{
        Container, ContainerId, MonoTime, Pod, PodUid,
        cri::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState},
        pod::RestartPolicy,
    },
    logic::{
        backoff::{BackoffKey, crash_loop_key},
        spec_hash::spec_hash,
    },
    runtime::fake::{Fake, Op, Operation},
};

/// What somebody wanted so long ago may still be on its way to the runtime: calls hang, events are late, the apiserver is
/// silent.
const LATE: Duration = Duration::from_secs(600);
/// What has been shown for so long is on disk: a sync has passed since, even if the one before it failed.
const KEPT: Duration = Duration::from_secs(20);
/// First delay of a crash loop, the longest, and the time without an end after which it starts over.
const FIRST_DELAY: Duration = Duration::from_secs(10);
const MAX_DELAY: Duration = Duration::from_secs(300);
const RESET: Duration = Duration::from_secs(600);
/// A pod that is to end gets this at most if nobody says more: an eviction's and that of the end of a schedule.
const OTHER_GRACE_S: i64 = 5;
/// A hard threshold leaves a pod no more.
const EVICTED_GRACE_S: i64 = 1;
/// No stop gets less.
const MIN_GRACE_S: i64 = 2;

/// What is known of a pod.
#[derive(Default)]
struct Past {
    /// What it was told to be, and when.
    told: Vec<(MonoTime, Manifest, Rc<Pod>)>,
    wanted: bool,
    /// It has one, be it one by which it is to end.
    has_manifest: bool,
    /// When it was last not wanted, or something ended it from outside.
    ended_by: Option<MonoTime>,
    /// When it came back after that, under the same uid.
    returned: Option<MonoTime>,
    /// Graces with which it was to end.
    graces: BTreeSet<i64>,
    /// Containers that must not start again.
    over: BTreeSet<String>,
    /// Its newest sandbox was begun before all sources had spoken.
    begun_early: bool,
}

impl Past {
    /// Whether it was told to be anything else lately.
    fn is_edited_since(&self, since: MonoTime) -> bool {
        let plain = |pod: &Pod| {
            let mut spec = pod.spec.clone();
            spec.resources = None;
            for container in &mut spec.containers {
                let restarts = container.resize_policy.iter();
                let restarts: Vec<_> = restarts
                    .filter(|policy| policy.restart_policy == "RestartContainer")
                    .map(|policy| policy.resource_name.clone())
                    .collect();
                let own = &mut container.resources;
                own.requests.retain(|name, _| restarts.contains(name));
                own.limits.retain(|name, _| restarts.contains(name));
            }
            spec
        };
        let edits = self.told.iter().zip(self.told.iter().skip(1));
        // New resources end nothing but what wants to be restarted for them.
        edits
            .into_iter()
            .any(|((.., old), (at, _, new))| *at >= since && plain(old) != plain(new))
    }

    fn newest(&self) -> Option<&Rc<Pod>> {
        self.told.last().map(|(.., pod)| pod)
    }

    /// What it may have been for those who acted since.
    fn specs(&self, since: MonoTime) -> impl Iterator<Item = &Rc<Pod>> {
        let first = self.told.iter().rposition(|(at, ..)| *at <= since);
        self.told[first.unwrap_or(0)..].iter().map(|(.., pod)| pod)
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.told.iter().map(|(_, manifest, _)| manifest.kind)
    }
}

/// The delay of a crash loop.
#[derive(Clone, Copy, Default)]
struct Loop {
    delay: Duration,
    last: MonoTime,
}

/// What this agent shows: since when a container has ended for good.
type Shown = BTreeMap<(PodUid, String), MonoTime>;

/// See the module's words.
pub(super) struct Judge {
    hands: Rc<Hands>,
    /// Directories of the pods.
    dirs: PathBuf,
    pods: BTreeMap<PodUid, Past>,
    /// When instances were started, or were about to.
    born: BTreeMap<ContainerId, MonoTime>,
    /// Those that were stopped, and when first.
    stopped: BTreeMap<ContainerId, (MonoTime, Duration)>,
    /// Delays by pod, and by what a container's delay belongs to (BACK-05).
    loops: BTreeMap<(PodUid, BackoffKey), Loop>,
    shown: Shown,
    /// Operations on pods since the last time.
    acts: Vec<(Op, PodUid)>,
    /// Every pod is to end.
    pub(super) stops_all: bool,
    /// The wall clock was set.
    pub(super) jumped: bool,
    /// Nothing that is new can be kept.
    disk_fails: bool,
    /// Commands that say whether a container lives say no.
    unwell: bool,
    /// When they last did.
    unwell_until: Option<MonoTime>,
    /// Containers that were stopped because of that.
    pub(super) killed_unwell: u64,
    /// Agents so far.
    agents: u32,
    pub(super) judged: BTreeMap<Op, u64>,
}

/// What may be known of a pod when an operation on it begins.
struct Case<'a> {
    uid: &'a PodUid,
    past: &'a Past,
    runtime: &'a PodRuntimeStatus,
    now: MonoTime,
}

impl Judge {
    pub(super) fn new(hands: &Rc<Hands>, dirs: PathBuf) -> Self {
        Self {
            hands: Rc::clone(hands),
            dirs,
            pods: BTreeMap::new(),
            born: BTreeMap::new(),
            stopped: BTreeMap::new(),
            loops: BTreeMap::new(),
            shown: Shown::new(),
            acts: Vec::new(),
            stops_all: false,
            jumped: false,
            disk_fails: false,
            unwell: false,
            unwell_until: None,
            killed_unwell: 0,
            agents: 0,
            judged: BTreeMap::new(),
        }
    }

    /// These pods are wanted now, and no others; those that are `ending` have a manifest by which they are to end.
    pub(super) fn wanted(
        &mut self,
        wanted: &BTreeMap<PodUid, (&Manifest, &Pod)>,
        ending: &BTreeSet<PodUid>,
    ) {
        let now = self.hands.now();
        for (uid, past) in &mut self.pods {
            past.has_manifest = ending.contains(uid);
            if past.wanted && !wanted.contains_key(uid) {
                past.wanted = false;
                past.over.clear();
                past.ended_by = Some(now);
                self.loops.retain(|(of, ..), _| of != uid);
                self.shown.retain(|(of, _), _| of != uid);
            }
        }
        for (uid, (manifest, pod)) in wanted {
            let past = self.pods.entry(uid.clone()).or_default();
            if !past.wanted && past.ended_by.is_some() {
                // Another life under its uid. An agent that has heard of neither may still go by a word before.
                let heard = past.ended_by.is_some_and(|at| now - at >= LATE);
                past.ended_by = Some(now);
                past.returned = Some(now);
                let in_force = past.told.iter().rposition(|(at, ..)| now - *at >= LATE);
                let first = if heard {
                    past.told.len()
                } else {
                    in_force.unwrap_or(0)
                };
                let told = past.told.drain(..first);
                past.graces.extend(told.map(|(_, old, _)| old.grace_s));
            }
            past.wanted = true;
            past.has_manifest = true;
            // A manifest that is written anew is another pod to the next boot, whatever it changes.
            if past.told.last().is_some_and(|(_, old, _)| old != *manifest) {
                past.over.clear();
                self.shown.retain(|(of, _), _| of != uid);
            }
            if past.newest().is_none_or(|old| old.spec != pod.spec) {
                past.over.clear();
                past.told
                    .push((now, (*manifest).clone(), Rc::new((*pod).clone())));
            }
        }
    }

    /// A pod that may be told to be something else at once is to end, with this grace.
    pub(super) fn ends_as(&mut self, uid: &PodUid, manifest: &Manifest, pod: &Pod, grace_s: i64) {
        let past = self.pods.entry(uid.clone()).or_default();
        if !past.has_manifest && past.ended_by.is_some() {
            past.returned = Some(self.hands.now());
        }
        self.ends_within(uid, grace_s);
        if let Some(past) = self.pods.get_mut(uid)
            && past.newest().is_some_and(|old| old.spec != pod.spec)
        {
            let now = self.hands.now();
            past.told
                .push((now, manifest.clone(), Rc::new(pod.clone())));
        }
    }

    /// A pod is to end, with this grace.
    pub(super) fn ends_within(&mut self, uid: &PodUid, grace_s: i64) {
        let past = self.pods.entry(uid.clone()).or_default();
        past.graces.insert(grace_s);
        past.ended_by = Some(self.hands.now());
    }

    /// Another agent takes over.
    pub(super) fn another_agent(&mut self) {
        self.agents += 1;
        self.shown.clear();
        if core::mem::take(&mut self.stops_all) {
            let now = self.hands.now();
            self.pods
                .values_mut()
                .for_each(|past| past.ended_by = Some(now));
        }
    }

    /// The disk begins to fail, or works again.
    pub(super) fn set_disk_fails(&mut self, fails: bool) {
        let now = self.hands.now();
        if fails && !self.disk_fails {
            self.shown.retain(|_, since| now >= *since + KEPT);
        }
        self.disk_fails = fails;
    }

    /// Commands that say whether a container lives begin to say no, or yes.
    pub(super) fn set_unwell(&mut self, unwell: bool) {
        if self.unwell {
            self.unwell_until = Some(self.hands.now());
        }
        self.unwell = unwell;
    }

    /// Whether a container was told lately not to live, or nobody could ask.
    fn is_unwell(&self, fake: &Fake, now: MonoTime) -> bool {
        let unasked = fake.hits().into_keys().any(|(op, _)| op == Op::Exec);
        self.unwell || unasked || self.unwell_until.is_some_and(|at| at + LATE >= now)
    }

    /// The machine was booted; whether the runtime has forgotten everything.
    pub(super) fn booted(&mut self, forgot: bool) {
        self.loops.clear();
        if !forgot {
            return;
        }
        let now = self.hands.now();
        let shown = core::mem::take(&mut self.shown);
        for ((uid, name), since) in shown {
            if now >= since + KEPT
                && let Some(past) = self.pods.get_mut(&uid).filter(|past| past.wanted)
            {
                past.over.insert(name);
            }
        }
    }

    /// Takes down what the agent shows of containers that do not run again.
    pub(super) fn look(&mut self, agent: &Agent) {
        // What ends while all pods are stopped runs again with the next start.
        if self.stops_all {
            return;
        }
        let now = self.hands.now();
        for (uid, past) in self.pods.iter().filter(|(_, past)| past.wanted) {
            let (Some(status), Some(pod)) = (agent.pods().stored_status(uid), past.newest()) else {
                continue;
            };
            for container in &status.container_statuses {
                let key = || (uid.clone(), container.name.clone());
                let end = container.state.terminated.as_ref();
                let is_over = match pod.spec.restart_policy {
                    RestartPolicy::Always => false,
                    RestartPolicy::OnFailure => end.is_some_and(|t| t.exit_code == 0),
                    // It has begun, and does not begin twice.
                    RestartPolicy::Never => end.is_some() || container.state.running.is_some(),
                };
                // In another life of its uid it may show what came of the one before.
                let returned = past.ended_by.is_some_and(|at| at + LATE >= now);
                if is_over && !returned && !past.is_edited_since(MonoTime(0)) {
                    // What nobody can write is as if it were not shown yet.
                    if !self.disk_fails {
                        self.shown.entry(key()).or_insert(now);
                    }
                } else {
                    self.shown.remove(&key());
                }
            }
        }
    }

    /// How many containers may not start again because of a boot.
    pub(super) fn over(&self) -> usize {
        self.pods.values().map(|past| past.over.len()).sum()
    }

    /// Operations since the last time, but for those on pods that are restless.
    pub(super) fn take_acts(&mut self) -> Vec<(Op, PodUid)> {
        let acts = core::mem::take(&mut self.acts);
        acts.into_iter()
            .filter(|(_, uid)| !self.is_restless(uid))
            .collect()
    }

    fn is_restless(&self, uid: &PodUid) -> bool {
        let past = self.pods.get(uid);
        past.is_some_and(|past| past.kinds().any(|k| k.loops() || k == Kind::Deadline))
    }

    /// Judges an operation that begins.
    pub(super) fn judge(
        &mut self,
        agent: &Agent,
        fake: &Fake,
        operation: &Operation<'_>,
    ) -> Option<String> {
        let Operation {
            op,
            uid,
            container,
            grace,
        } = *operation;
        self.acts.push((op, uid.clone()));
        if self.acts.len() > 10_000 {
            self.acts.clear();
        }
        *self.judged.entry(op).or_default() += 1;
        let now = self.hands.now();
        let runtime = fake.pods();
        // Nothing is there of a pod before its first sandbox.
        let nothing = PodRuntimeStatus::default();
        let runtime = runtime.iter().find(|pod| pod.uid == *uid);
        let runtime = runtime.unwrap_or(&nothing);
        let mut past = self.pods.remove(uid)?;
        // Why it was evicted, `pressure` judges.
        let status = agent.pods().stored_status(uid);
        if status.is_some_and(|status| status.reason == "Evicted") {
            past.graces.insert(EVICTED_GRACE_S);
            past.ended_by = Some(now);
        }
        if op == Op::RunPodSandbox {
            past.begun_early = !agent.sources_ready();
        }
        let case = Case {
            uid,
            past: &past,
            runtime,
            now,
        };
        let wrong = match (op, container) {
            (Op::StopContainer, Some(container)) => {
                self.stop(&case, agent, fake, container, grace.unwrap_or_default())
            }
            (Op::StartContainer, Some(container)) => {
                let wrong = case.other_of_its_name(fake);
                let wrong = wrong.or_else(|| self.start(&case, fake, container));
                let wrong = wrong.or_else(|| case.has_its_files(&self.dirs));
                self.born.entry(container.id.clone()).or_insert(now);
                wrong
            }
            (Op::RunPodSandbox, _) => case.other_of_its_name(fake),
            _ => None,
        };
        self.pods.insert(uid.clone(), past);
        wrong.map(|what| format!("{op:?} of pod {uid}: {what}"))
    }

    fn stop(
        &mut self,
        case: &Case<'_>,
        agent: &Agent,
        fake: &Fake,
        container: &ContainerStatus,
        grace: Duration,
    ) -> Option<String> {
        let first = !self.stopped.contains_key(&container.id);
        self.stopped
            .entry(container.id.clone())
            .or_insert((case.now, grace));
        if container.state != ContainerState::Running {
            return None;
        }
        let name = &container.name;
        let born = self.born.get(&container.id).copied().unwrap_or_default();
        if !self.stops_all
            && !case.may_stop(container, born, self.jumped)
            && !case.may_restart_resized(fake, container, born)
        {
            if !case.past.kinds().any(|kind| kind == Kind::Live) || !self.is_unwell(fake, case.now)
            {
                return Some(format!("container {name} runs and is wanted"));
            }
            self.killed_unwell += 1;
        }
        // One that only the runtime knows has no order; a stop that failed may be over for the others.
        let failed = fake
            .hits()
            .into_keys()
            .any(|(op, how)| op == Op::StopContainer && how != "uses the grace up");
        // The second that a hard threshold leaves may be over before the first stop.
        let evicted = case.past.graces.contains(&EVICTED_GRACE_S);
        // One that has just come back may end as what it was without its manifest: known to an agent's runtime only.
        let returned = self.agents > 1
            && case.past.has_manifest
            && case.past.returned.is_some_and(|at| at + LATE >= case.now);
        let ordered = !failed && !evicted && !returned && (self.agents == 1 || case.past.wanted);
        case.grace(grace)
            .or_else(|| self.sidecar(case, name).filter(|_| ordered))
            .or_else(|| {
                let told = first && !returned && agent.pods().is_configured(case.uid);
                let heard = |(op, _): &(Op, &str)| matches!(op, Op::Exec | Op::PodStatus);
                let heard = !fake.hits().keys().any(heard);
                pre_stop(case, fake, container).filter(|_| told && heard)
            })
    }

    /// A sidecar stops after all containers, unless their grace is over.
    fn sidecar(&self, case: &Case<'_>, name: &str) -> Option<String> {
        let pod = case.past.newest()?;
        let inits = &pod.spec.init_containers;
        let same = |p: &Rc<Pod>| {
            p.spec.init_containers == *inits && p.spec.containers == pod.spec.containers
        };
        let at = inits
            .iter()
            .position(|c| c.name == name && c.is_sidecar())?;
        if !case.past.specs(MonoTime(0)).all(same) {
            return None;
        }
        let spec_graces = case.spec_graces();
        let after = inits[at + 1..].iter().filter(|c| c.is_sidecar());
        let mut before = pod.spec.containers.iter().chain(after);
        // A stop call never gets less than a process needs: the pod's own grace may be over before.
        let graces = case.past.graces.iter().chain(&spec_graces).min();
        let least = Duration::from_secs(graces.and_then(|g| u64::try_from(*g).ok()).unwrap_or(0));
        let asked = case.runtime.containers.iter();
        let asked = asked.filter_map(|i| self.stopped.get(&i.id)).min();
        if case.now >= asked.map_or(case.now, |(at, _)| *at) + least {
            return None;
        }
        let waits_for = before.find(|c| {
            let newest = case.runtime.newest_instance(&c.name);
            newest.is_some_and(|i| i.state == ContainerState::Running)
        });
        waits_for.map(|c| format!("sidecar {name} before {}", c.name))
    }

    fn start(
        &mut self,
        case: &Case<'_>,
        fake: &Fake,
        container: &ContainerStatus,
    ) -> Option<String> {
        let (past, name) = (case.past, &container.name);
        if past.over.contains(name) && !past.is_edited_since(MonoTime(0)) {
            return Some(format!("container {name} had ended a boot ago"));
        }
        let since = past.ended_by.unwrap_or_default();
        // What it was in another life may be on its way.
        let returned = past.ended_by.is_some_and(|at| at + LATE >= case.now);
        let edited = returned || past.is_edited_since(MonoTime(0));
        if !edited && let Some(pod) = past.newest() {
            let before = self.runs_before(case, container, since);
            let wrong = case.order(pod, container).or_else(|| {
                let is_regular = pod.spec.containers.iter().any(|c| c.name == *name);
                let mut again = before.iter().filter(|_| is_regular);
                let again = again.find(|old| match pod.spec.restart_policy {
                    RestartPolicy::Always => false,
                    // One that ends while it is stopped, for its sandbox is gone, runs on in the next; so does one that ended
                    // when the answer was on its way by which this was decided.
                    RestartPolicy::OnFailure => {
                        old.state == ContainerState::Exited
                            && old.exit_code == 0
                            && !(old.sandbox != container.sandbox
                                && (self.was_stopped(fake, &old.id) || !fake.has_told_end(&old.id)))
                    }
                    RestartPolicy::Never => old.started_at.is_some(),
                });
                again.map(|old| format!("container {name} ran before: {}", old.id))
            });
            if wrong.is_some() {
                return wrong;
            }
        }
        self.back_off(case, fake, container)
    }

    /// Whether an instance had been told to stop before it ended.
    fn was_stopped(&self, fake: &Fake, id: &ContainerId) -> bool {
        let told = self.stopped.get(id).map(|(at, _)| *at);
        told.zip(fake.ended_at(id))
            .is_some_and(|(told, ended)| told <= ended)
    }

    /// Earlier instances of the same life of the pod.
    fn runs_before<'a>(
        &self,
        case: &Case<'a>,
        container: &ContainerStatus,
        since: MonoTime,
    ) -> Vec<&'a ContainerStatus> {
        let all = case.runtime.containers.iter();
        all.filter(|old| old.name == container.name && old.id != container.id)
            .filter(|old| self.born.get(&old.id).is_some_and(|at| *at > since))
            .collect()
    }

    /// A container that ends by itself again and again waits longer each time.
    fn back_off(
        &mut self,
        case: &Case<'_>,
        fake: &Fake,
        container: &ContainerStatus,
    ) -> Option<String> {
        let before = case.runtime.container_instances(&container.name);
        let last = before
            .filter(|old| old.id != container.id && old.hash == container.hash)
            .find(|old| old.state == ContainerState::Exited)?;
        let ended = fake.ended_at(&last.id)?;
        let own = !self.stopped.contains_key(&last.id) && last.started_at.is_some();
        let live = case.runtime.sandboxes.iter();
        let same_sandbox = last.sandbox == container.sandbox
            && live
                .clone()
                .any(|s| s.id == last.sandbox && s.state == SandboxState::Ready);
        // An end that was heard of after the clock was set is known by the wall clock alone.
        let unknown = self.jumped;
        if unknown || !own || !same_sandbox || case.past.ended_by.is_some_and(|at| at >= ended) {
            return None;
        }
        // Other resources begin afresh; which it has is not certain while they change.
        let born = self.born.get(&last.id).copied().unwrap_or_default();
        let late = u64::try_from(LATE.as_millis()).unwrap_or(u64::MAX);
        let specs = case.past.specs(MonoTime(born.0.saturating_sub(late)));
        let keys = specs.filter_map(|pod| {
            let of = { pod.spec.all_containers() }.find(|c| c.name == container.name)?;
            Some(crash_loop_key(pod, of))
        });
        let keys: BTreeSet<_> = keys.collect();
        let key = keys.first().filter(|_| keys.len() == 1)?;
        let known = self.loops.entry((case.uid.clone(), *key)).or_default();
        if case.now >= known.last + RESET {
            known.delay = Duration::ZERO;
        }
        let due = ended + known.delay;
        if case.now < due {
            let early_ms = due.0 - case.now.0;
            return Some(format!(
                "container {} restarts {early_ms} ms before its back-off is over",
                container.name
            ));
        }
        known.delay = (known.delay * 2).clamp(FIRST_DELAY, MAX_DELAY);
        known.last = ended;
        None
    }
}

/// One that runs and has hooks hears that it is to end before its signal does.
fn pre_stop(case: &Case<'_>, fake: &Fake, container: &ContainerStatus) -> Option<String> {
    let past = case.past;
    let hooks = past.kinds().all(|kind| kind == Kind::Hooks);
    let graces = case.spec_graces();
    let none = past.graces.iter().chain(&graces).any(|g| *g <= 1);
    // An instance of another life of its uid has none.
    let own = past.newest().is_some_and(|pod| {
        let mut all = pod.spec.all_containers();
        all.any(|c| c.name == container.name && spec_hash(c) == container.hash)
    });
    let missing = hooks && own && !none && !fake.has_run(&container.id, &PRE_STOP);
    missing.then(|| format!("preStop of container {} has not run", container.name))
}

impl Case<'_> {
    fn spec_graces(&self) -> BTreeSet<i64> {
        let graces = self.past.told.iter();
        graces.map(|(_, manifest, _)| manifest.grace_s).collect()
    }

    /// Whether something on record is a cause to stop an instance that was started then.
    fn may_stop(&self, container: &ContainerStatus, born: MonoTime, jumped: bool) -> bool {
        let past = self.past;
        let late = |at: MonoTime| at + LATE >= self.now && at + LATE >= born;
        let spec_of = |pod: &Pod| -> Option<Container> {
            pod.spec
                .all_containers()
                .find(|c| c.name == container.name)
                .cloned()
        };
        let was = MonoTime(
            born.0
                .saturating_sub(u64::try_from(LATE.as_millis()).unwrap_or(u64::MAX)),
        );
        let changed = past
            .specs(was)
            .any(|pod| spec_of(pod).is_none_or(|c| spec_hash(&c) != container.hash));
        let ready = |s: &&crate::api::cri::SandboxStatus| s.state == SandboxState::Ready;
        let mut ready = self.runtime.sandboxes.iter().filter(ready);
        let in_order =
            ready.next().is_some_and(|s| s.id == container.sandbox) && ready.next().is_none();
        let kinds: Vec<Kind> = past.kinds().collect();
        // What an init container came to under another policy may be the end of the pod now.
        let policies = past.told.iter().map(|(.., pod)| pod.spec.restart_policy);
        let other_policy = policies.clone().any(|p| policies.clone().any(|q| p != q));
        let first = past.told.first().map_or(self.now, |(at, ..)| *at);
        let deadline = kinds.contains(&Kind::Deadline)
            && (jumped || self.now >= first + Duration::from_secs(29));
        !past.wanted
            || past.ended_by.is_some_and(late)
            || changed
            || !in_order
            || deadline
            || other_policy
            // Whether postStart fails is not known here.
            || kinds.contains(&Kind::Hooks)
            || has_port(self.uid)
    }

    /// Whether it restarts for other memory, as its policy says: it was asked lately to have other than it has.
    fn may_restart_resized(
        &self,
        fake: &Fake,
        container: &ContainerStatus,
        born: MonoTime,
    ) -> bool {
        let has = fake.config(self.uid, &container.name);
        let has = has.and_then(|config| config.resources.memory_limit_bytes);
        let late = u64::try_from(LATE.as_millis()).unwrap_or(u64::MAX);
        let mut asked = self.past.specs(MonoTime(born.0.saturating_sub(late)));
        asked.any(|pod| {
            let mut all = pod.spec.containers.iter();
            all.any(|c| {
                let limit = c.resources.limits.get("memory").map(|limit| limit.value());
                c.name == container.name && !c.resize_policy.is_empty() && limit != has
            })
        })
    }

    /// No stop gets more than somebody has asked for, nor less than a process needs to notice.
    fn grace(&self, grace: Duration) -> Option<String> {
        let mut graces = self.spec_graces();
        graces.extend(&self.past.graces);
        let most = graces.last().copied().unwrap_or(0).max(OTHER_GRACE_S);
        let grace_s = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let wrong = !(MIN_GRACE_S..=most.max(MIN_GRACE_S)).contains(&grace_s);
        // All of it is left for one that is alone and has no hook.
        let alone = self
            .past
            .kinds()
            .all(|kind| matches!(kind, Kind::Sleeps | Kind::Once | Kind::OnFailure));
        let quiet = self.past.wanted && self.past.graces.is_empty() && self.past.ended_by.is_none();
        let least = graces.first().copied().unwrap_or(0).max(MIN_GRACE_S);
        let short = alone && quiet && grace_s < least;
        (wrong || short).then(|| format!("grace {grace_s} s of {graces:?}"))
    }

    /// What comes before it in its sandbox has succeeded, or has started if it is a sidecar.
    fn order(&self, pod: &Pod, container: &ContainerStatus) -> Option<String> {
        let inits = &pod.spec.init_containers;
        let before = inits.iter().position(|c| c.name == container.name);
        // One that is started again, beside others that run, was in order before.
        let others = self.runtime.containers.iter();
        let mut others = others.filter(|c| pod.spec.containers.iter().any(|r| r.name == c.name));
        if others.any(|c| c.sandbox == container.sandbox && c.started_at.is_some()) {
            return None;
        }
        let wrong = inits[..before.unwrap_or(inits.len())].iter().find(|init| {
            let mut instances = self.runtime.container_instances(&init.name);
            let fine = instances.any(|i| {
                i.sandbox == container.sandbox
                    && match init.is_sidecar() {
                        true => i.started_at.is_some(),
                        false => i.state == ContainerState::Exited && i.exit_code == 0,
                    }
            });
            !fine
        });
        wrong.map(|init| format!("container {} before {}", container.name, init.name))
    }

    /// What its volumes are to hold is there when a container starts: a token of its own, and the Secret.
    fn has_its_files(&self, dirs: &Path) -> Option<String> {
        let mut kinds = self.past.kinds();
        let kind = kinds
            .next()
            .filter(|kind| kinds.all(|other| other == *kind));
        let volumes = dirs.join(self.uid.as_str()).join("volumes");
        let read = |file: &str| fs::read_to_string(volumes.join(file));
        match kind {
            Some(Kind::WithSecret) => match read("kubernetes.io~secret/kept/key") {
                Ok(text) if text == "hi" => None,
                other => Some(format!("its Secret is {other:?}")),
            },
            Some(Kind::WithToken) => {
                let token = read("kubernetes.io~projected/token/token").unwrap_or_default();
                let claims = token.split('.').nth(1).unwrap_or_default();
                let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
                let claims: Value = serde_json::from_slice(&claims).unwrap_or_default();
                let own = claims["uid"].as_str() == Some(self.uid.as_str());
                (!own).then(|| format!("its token says {claims}"))
            }
            _ => None,
        }
    }

    /// Of static pods with one name one has something running.
    ///
    /// Before all sources have spoken nobody knows of the old one that it is to end (SRC-14). What was begun then goes on.
    fn other_of_its_name(&self, fake: &Fake) -> Option<String> {
        let own = self.past.newest()?;
        let is_static = !self.past.begun_early
            && own
                .metadata
                .annotations
                .contains_key(crate::api::pod::CONFIG_HASH);
        let pods = fake.pods();
        let other = pods.iter().filter(|_| is_static).find(|pod| {
            pod.uid != *self.uid
                && pod.name == own.metadata.name
                && pod.namespace == own.metadata.namespace
                && pod.has_running_container()
        });
        other.map(|pod| format!("pod {} has its name and runs", pod.uid))
    }
}
