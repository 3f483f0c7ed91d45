//! One machine: its runtime and manifest directory, and the agent that runs on it, if one does. Time passes and things
//! happen only as told.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
};
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};

use smol::{
    LocalExecutor, Task,
    channel::{Receiver, Sender},
};

use super::{
    super::{
        asker::AgentHandle,
        assembly,
        cluster::JoinedCluster,
        core::{Agent as Core, AgentCommand, AgentEvent},
        event_loop, manifests,
        parts::AgentParts,
        tests::{
            api::Link,
            api_objects::Trouble as ApiTrouble,
            drawn,
            world::{Hands, IMAGE, MANY_ANSWERS, NODE, Running, Template},
        },
        views::DeliveryResult,
    },
    control::{Control, NEW_IMAGE},
    counts::{Counts, What},
    disk::Disk,
    input::{Call, DiskTrouble, Input, Random, Trouble},
    ops::Judge,
    pods::{LATER, LIVES, Manifest, READY, SECRET, SETTINGS, secret, settings},
    pressure::{self, Evictions},
    resizes::{self, Groups},
    rules::{Present, Rules},
    truth::Wanted,
};
use crate::{
    api::{
        ContainerId, MonoTime, Pod, PodUid, SandboxId, WallTime,
        cri::{ContainerState, SandboxState},
        received::{ReceivedPod, SnapshotEntry},
    },
    logic::{pod_table::PodHandle, pod_worker::WorkerStage},
    runtime::{
        RuntimeError,
        fake::{Fake, Fault, OnStop, Op, Trouble as FakeTrouble},
    },
    source::SourceSnapshot,
};

/// Steps of tasks at one instant; more means that tasks wake each other for ever.
const MAX_STEPS: u32 = 200_000;
/// A pod begins to end so long after its deadline at the latest, or after all trouble has ended: a call may hang for 23 s
/// yet, and a failed sync is tried again within 10 s, with jitter.
const MAX_LATE_S: i64 = 40;
/// What the machine says it did, newest last.
const MAX_JOURNAL: usize = 400;

/// When an agent is to be killed, and what then.
#[derive(Clone, Copy, Debug)]
struct Armed {
    /// Steps until then; `None`: the disk stops before.
    steps: Option<u32>,
    down_ms: u64,
    source_ms: u64,
    power: bool,
    loses: Option<u64>,
}

/// What an agent is on its way with, and how it is disturbed.
#[derive(Debug)]
struct Tamper {
    lost: u64,
    doubled: u64,
    late: u64,
    late_ms: u64,
    random: Random,
}

/// A running agent.
struct Agent {
    parts: AgentParts,
    /// Its deciding side.
    core: Rc<RefCell<Core>>,
    executor: Rc<LocalExecutor<'static>>,
    task: Task<()>,
    /// What was sent to the loop, by anyone.
    sent: Receiver<AgentEvent>,
    /// Into the loop.
    inbox: Sender<AgentEvent>,
    events: Sender<AgentEvent>,
    /// Events on their way, by the time at which they arrive.
    on_the_way: BTreeMap<(MonoTime, u64), AgentEvent>,
    /// Each call of a worker keeps its order.
    last_steps: BTreeMap<PodHandle, MonoTime>,
    source: Sender<SourceSnapshot>,
    /// The source must read everything again.
    read_again: Rc<Cell<bool>>,
    /// What the source has told, by file.
    told: BTreeMap<u8, Rc<ReceivedPod>>,
    /// Whether it has told of the ConfigMap.
    told_settings: bool,
    /// The same of the Secret.
    told_secret: bool,
    /// When it looks at the manifests for the first time.
    source_due: Option<MonoTime>,
    /// Told to stop: when the next one is started after this one has ended.
    stopping: Option<u64>,
    /// What speaks with the apiserver.
    members: Vec<Task<()>>,
}

/// See the module's words.
pub(super) struct Machine {
    template: Rc<Template>,
    hands: Rc<Hands>,
    pub(super) fake: Rc<Fake>,
    agent: Option<Agent>,
    files: BTreeMap<u8, (Manifest, Rc<ReceivedPod>)>,
    uids: BTreeSet<PodUid>,
    /// Pods that could have come to an end for good.
    may_end: BTreeSet<PodUid>,
    tamper: Tamper,
    sequence: u64,
    /// The next agent: when it starts, and how long its first look at the manifests takes.
    restart: Option<(MonoTime, u64)>,
    armed: Option<Armed>,
    rules: Rules,
    evictions: Evictions,
    disk: Disk,
    /// The ConfigMap is there.
    settings: bool,
    /// The Secret is there.
    secret: bool,
    /// The link as it was when the disk stopped.
    link: Rc<Cell<Option<Link>>>,
    judge: Rc<RefCell<Judge>>,
    /// The wall clock was set: deadlines of pods are counted by it.
    jumped: bool,
    /// When all trouble ended.
    healed: Option<WallTime>,
    /// What the watch at the runtime looks at.
    watched: Rc<RefCell<Option<Rc<RefCell<Core>>>>>,
    pub(super) journal: Option<VecDeque<String>>,
    counts: Counts,
    /// The control plane, if this is a node of a cluster.
    pub(super) control: Option<Control>,
    /// Cgroups of pods, if they have any.
    groups: Option<Groups>,
}

impl Machine {
    /// A machine without pods. It stands alone, or belongs to a cluster with or without doorbell, and with a seed.
    pub(super) fn new(template: Rc<Template>, journal: bool, joins: Option<(bool, u64)>) -> Self {
        let fake = Rc::new(Fake::new());
        // The runtime of some nodes of a cluster does not tell whether its list has changed.
        if joins.is_none_or(|(_, seed)| seed % 2 == 0) {
            fake.count_changes();
        }
        fake.add_image(IMAGE);
        if joins.is_some() {
            fake.add_image(NEW_IMAGE);
        }
        let hands = Rc::new(Hands::default());
        hands.set(MonoTime(1000));
        fake.set_now(hands.now(), hands.wall());
        let watched = Rc::new(RefCell::new(None::<Rc<RefCell<Core>>>));
        let seen = Rc::clone(&watched);
        let runtime = Rc::downgrade(&fake);
        drawn::take_waited();
        let pods = template.root_dir().join("pods");
        let judge = Rc::new(RefCell::new(Judge::new(&hands, pods)));
        let judging = Rc::clone(&judge);
        fake.set_watch(Some(Rc::new(move |operation| {
            let seen = seen.borrow();
            let (core, runtime) = (seen.as_ref()?.borrow(), runtime.upgrade()?);
            let wrong = judging.borrow_mut().judge(&core, &runtime, operation);
            wrong.or_else(|| super::rules::at_the_runtime(&core, &runtime, operation))
        })));
        pressure::set_plenty(&template.left);
        let control = joins.map(|(doorbell, seed)| Control::new(&hands, doorbell, seed));
        let link = Rc::new(Cell::new(None));
        let stopped = {
            let (runtime, link) = (Rc::downgrade(&fake), Rc::clone(&link));
            let api = control.as_ref().map(|c| Arc::clone(&c.api));
            move || {
                // Nothing that comes after this instant has happened.
                if let Some(runtime) = runtime.upgrade() {
                    runtime.set_orphaned(true);
                }
                if let Some(api) = &api {
                    link.set(Some(api.link()));
                    api.set_link(Link::Down);
                }
            }
        };
        let disk = Disk::new(template.root_dir(), template.run_dir(), Box::new(stopped));
        let groups = template.pod_groups().map(Groups::new);
        let mut machine = Self {
            control,
            groups,
            template,
            hands,
            fake,
            agent: None,
            files: BTreeMap::new(),
            uids: BTreeSet::new(),
            may_end: BTreeSet::new(),
            tamper: Tamper {
                lost: 0,
                doubled: 0,
                late: 0,
                late_ms: 1,
                random: Random::new(0),
            },
            sequence: 0,
            restart: None,
            armed: None,
            rules: Rules::default(),
            evictions: Evictions::default(),
            disk,
            settings: false,
            secret: false,
            link,
            judge,
            jumped: false,
            healed: None,
            watched,
            journal: journal.then(VecDeque::new),
            counts: Counts::default(),
        };
        machine.start_agent(0);
        machine
    }

    /// What has happened so far.
    pub(super) fn counted(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.waited = drawn::take_waited();
        counts.faults = self.fake.hits();
        let judge = self.judge.borrow();
        counts.judged = judge.judged.clone();
        for _ in 0..judge.killed_unwell {
            counts.saw(What::KilledUnwell);
        }
        let short = [
            What::MemoryShort,
            What::DiskShort,
            What::InodesShort,
            What::PidsShort,
        ];
        for (what, looks) in short.into_iter().zip(self.template.left.short_looks()) {
            for _ in 0..looks.count {
                counts.saw(what);
            }
        }
        counts.disk = self.disk.hits();
        if !counts.disk.is_empty() {
            counts.saw(What::DiskFails);
        }
        if let Some(control) = &self.control {
            counts.api = control.api.tally();
            for (what, more) in &control.tally {
                *counts.api.entry(what).or_default() += more;
            }
        }
        counts
    }

    pub(super) fn now(&self) -> MonoTime {
        self.hands.now()
    }

    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        let now = self.hands.now().0;
        if let Some(journal) = &mut self.journal {
            if journal.len() >= MAX_JOURNAL {
                journal.pop_front();
            }
            journal.push_back(format!("{now:>9} {}", text()));
        }
    }

    /// Notes what the agent and the API know, for the report of a failure.
    pub(super) fn note_memory(&mut self) {
        let Some(agent) = self.agent.as_ref() else {
            return;
        };
        let cluster = agent.parts.owners.cluster.as_ref();
        let memory = cluster.map(|c| c.describe_memory()).unwrap_or_default();
        let statuses: Vec<String> = agent
            .core
            .borrow()
            .pods()
            .statuses()
            .iter()
            .map(|(uid, status)| format!("status of {uid}: {status:?}"))
            .collect();
        let core = agent.core.borrow();
        let table = core.pods().worker_table();
        let stages: Vec<String> = table
            .handles()
            .map(|handle| {
                let uid = table.pod_identity(handle).map(|identity| identity.uid);
                format!("{uid:?} is in {:?}", table.pod_stage(handle))
            })
            .collect();
        let control = self.control.as_ref();
        let objects = control.map(|c| c.api.with(|s| format!("{:?}", s.objects)));
        let objects = objects.unwrap_or_default();
        let text = format!(
            "{objects}\n{memory}\n{}\n{}",
            stages.join("\n"),
            statuses.join("\n")
        );
        drop(core);
        self.note(|| text);
    }

    fn start_agent(&mut self, source_ms: u64) {
        self.fake.set_orphaned(false);
        let executor = Rc::new(LocalExecutor::new());
        let (events, sent) = smol::channel::bounded(event_loop::EVENT_QUEUE);
        let (inbox, queue) = smol::channel::bounded(event_loop::EVENT_QUEUE);
        let (source, snapshots) = smol::channel::unbounded();
        let read_again = Rc::new(Cell::new(false));
        let (fake, hands) = (Rc::clone(&self.fake), Rc::clone(&self.hands));
        self.sequence += 1;
        let cluster = self.control.as_ref().map(|control| {
            let (lanes, seed) = (control.lanes(), self.sequence);
            let mut joined = JoinedCluster::from_lanes(lanes, control.doorbell, seed);
            joined.answers = MANY_ANSWERS;
            joined
        });
        let given = self.template.given(fake, hands, cluster);
        let running = Running::start(given, assembly::make_pod_driver, &executor, &events, queue);
        executor
            .spawn(deliver_all(
                snapshots,
                events.clone(),
                Rc::clone(&read_again),
            ))
            .detach();
        *self.watched.borrow_mut() = Some(Rc::clone(&running.agent));
        let asker = AgentHandle::new(events.clone());
        let probes = assembly::make_probe_driver(&running.parts, asker, events.clone());
        probes.restore_passed_probes();
        let mut members = running.members;
        let probing = probes.drive_probes(Rc::clone(&executor));
        members.push(executor.spawn(drawn::started(probing)));
        self.rules.another_agent();
        self.evictions.another_agent(&self.template.left);
        self.judge.borrow_mut().another_agent();
        self.agent = Some(Agent {
            parts: running.parts,
            core: running.agent,
            executor,
            task: running.task,
            sent,
            inbox,
            events,
            on_the_way: BTreeMap::new(),
            last_steps: BTreeMap::new(),
            source,
            read_again,
            told: BTreeMap::new(),
            told_settings: false,
            told_secret: false,
            source_due: Some(self.now() + Duration::from_millis(source_ms)),
            stopping: None,
            members,
        });
        self.note(|| "the agent starts".into());
    }

    /// Ends the agent as a signal that cannot be caught does, or takes away what is left of one that has ended.
    fn kill_agent(&mut self) {
        let Some(mut agent) = self.agent.take() else {
            return;
        };
        if agent.stopping.is_some() && agent.task.is_finished() {
            self.counts.saw(What::StoppedAll);
        } else {
            self.counts.kills += 1;
            let calls = self.fake.under_way();
            if calls.is_empty() {
                self.counts.saw(What::KilledAtRest);
            }
            calls.into_iter().for_each(|op| self.counts.killed_in(op));
            let pods = self.fake.pods();
            let mut containers = pods.iter().flat_map(|pod| &pod.containers);
            if containers.any(|c| c.state == ContainerState::Created) {
                self.counts.saw(What::KilledBeforeStart);
            }
            let core = agent.core.borrow();
            let table = core.pods().worker_table();
            for stage in table.handles().filter_map(|h| table.pod_stage(h)) {
                match stage {
                    WorkerStage::Terminating => self.counts.saw(What::KilledWhileTerminating),
                    WorkerStage::Terminated => self.counts.saw(What::KilledWhileTerminated),
                    _ => {}
                }
            }
        }
        self.note(|| "the agent is gone".into());
        *self.watched.borrow_mut() = None;
        self.fake.set_orphaned(true);
        let disk = self.disk.take();
        let link = self.control.as_ref().map(|c| c.api.link());
        let link = self.link.take().or(link);
        if let Some(control) = &self.control {
            // What was not sent yet is not sent any more.
            control.api.set_link(Link::Down);
        }
        drop(core::mem::take(&mut agent.members));
        // The loop holds the executor, which holds the loop: it has to leave by itself.
        let _ = agent.inbox.force_send(AgentEvent::Terminate);
        for _ in 0..MAX_STEPS {
            if !agent.executor.try_tick() {
                break;
            }
        }
        assert!(agent.task.is_finished(), "the loop does not end");
        let executor = Rc::downgrade(&agent.executor);
        drop(agent);
        // With it go its calls to the runtime; a task that holds it would keep them under way.
        assert_eq!(executor.strong_count(), 0, "a task keeps its executor");
        if let (Some(control), Some(link)) = (&mut self.control, link) {
            control.api.set_link(link);
            control.on_agent_gone();
        }
        self.disk.put_back(disk);
        self.hands.forget_alarms();
    }

    /// The machine goes down, and what is left of it comes up.
    fn cut_power(&mut self, loses: Option<u64>) {
        self.note(|| "the machine goes down and comes up".into());
        self.judge.borrow_mut().booted(loses.is_some());
        match loses {
            None => self.fake.reboot(),
            Some(seed) => {
                self.fake.reboot_and_forget();
                self.hands.boot();
                let changed = self.disk.cut(seed);
                self.note(|| format!("  {changed} files are not as they were"));
                self.counts.saw(What::EverythingForgotten);
                if changed > 0 {
                    self.counts.saw(What::RecordsLost);
                }
                if self.judge.borrow().over() > 0 {
                    self.counts.saw(What::EndsRemembered);
                }
            }
        }
        if let Some(groups) = &mut self.groups {
            groups.boot(self.uids.iter());
        }
        if let Some(control) = &self.control {
            control.on_reboot();
            self.rules.told_before.extend(control.ends());
        }
        self.counts.saw(What::PowerCut);
    }

    fn restart_later(&mut self, down_ms: u64, source_ms: u64) {
        self.restart = Some((self.now() + Duration::from_millis(down_ms), source_ms));
    }

    /// What the manifest directory says now.
    fn look(&mut self, everything: bool) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        if agent.source_due.is_some() {
            return;
        }
        let mut told = BTreeMap::new();
        let mut pods = Vec::new();
        for (file, pod) in visible(&self.files) {
            let same = agent.told.get(&file).is_some_and(|t| Rc::ptr_eq(t, pod));
            pods.push(if same && !everything {
                SnapshotEntry::Known(pod.pod.metadata.uid.clone())
            } else {
                SnapshotEntry::Read(Box::new(ReceivedPod::clone(pod)))
            });
            told.insert(file, Rc::clone(pod));
        }
        agent.told = told;
        let mut snapshot = SourceSnapshot {
            pods,
            objects_changed: agent.told_settings != self.settings
                || agent.told_secret != self.secret,
            ..SourceSnapshot::default()
        };
        if self.settings {
            let map = serde_json::from_value(settings("default")).expect("a ConfigMap");
            let key = ("default".into(), SETTINGS.into());
            snapshot.config_maps.insert(key, Arc::new(map));
        }
        agent.told_settings = self.settings;
        if self.secret {
            let object = serde_json::from_value(secret("default")).expect("a Secret");
            let key = ("default".into(), SECRET.into());
            snapshot.secrets.insert(key, Arc::new(object));
        }
        agent.told_secret = self.secret;
        let _ = agent.source.try_send(snapshot);
    }

    /// Moves events along. False if there was nothing to move.
    fn pump(&mut self) -> bool {
        let now = self.now();
        let parts = self.agent.as_ref().map(|agent| &agent.parts);
        let cluster = parts.and_then(|parts| parts.owners.cluster.as_deref());
        let mut moved = self.control.as_mut().is_some_and(|c| c.pump(cluster));
        let Some(agent) = &mut self.agent else {
            return false;
        };
        while let Ok(event) = agent.sent.try_recv() {
            moved = true;
            let tamper = &mut self.tamper;
            let random = &mut tamper.random;
            let losable = matches!(
                event,
                AgentEvent::Listed(_)
                    | AgentEvent::Inspected(_)
                    | AgentEvent::Conditions(_)
                    | AgentEvent::Housekeeping
            );
            if losable && random.percent(tamper.lost) {
                self.counts.saw(What::EventLost);
                continue;
            }
            if matches!(event, AgentEvent::Housekeeping) && random.percent(tamper.doubled) {
                self.counts.saw(What::EventDoubled);
                self.sequence += 1;
                let at = now + Duration::from_millis(random.below(tamper.late_ms));
                let again = AgentEvent::Housekeeping;
                agent.on_the_way.insert((at, self.sequence), again);
            }
            let mut at = now;
            if random.percent(tamper.late) {
                self.counts.saw(What::EventLate);
                at = at + Duration::from_millis(random.below(tamper.late_ms));
            }
            if let AgentEvent::Step(call, _) | AgentEvent::Done(call, _) = &event {
                // What a call tells arrives in its order, and before its end.
                let last = agent.last_steps.entry(*call).or_default();
                at = at.max(*last);
                *last = at;
            }
            self.sequence += 1;
            if agent
                .on_the_way
                .last_key_value()
                .is_some_and(|(k, _)| k.0 > at)
            {
                self.counts.saw(What::EventsReordered);
            }
            agent.on_the_way.insert((at, self.sequence), event);
        }
        while let Some(first) = agent.on_the_way.first_entry() {
            if first.key().0 > now || agent.inbox.is_full() {
                break;
            }
            moved = true;
            let _ = agent.inbox.try_send(first.remove());
        }
        if agent.read_again.take() {
            self.look(true);
            return true;
        }
        moved
    }

    /// Runs everything that can run at this instant, and checks the rules.
    fn settle(&mut self) -> Result<(), String> {
        let mut steps = 0;
        loop {
            let due = self.restart.filter(|(at, _)| *at <= self.now());
            if self.agent.is_none()
                && let Some((_, source_ms)) = due
            {
                self.restart = None;
                self.start_agent(source_ms);
            }
            let now = self.now();
            if let Some(agent) = &mut self.agent
                && agent.source_due.is_some_and(|at| at <= now)
            {
                agent.source_due = None;
                self.look(true);
            }
            while let Some(agent) = &self.agent {
                if !agent.executor.try_tick() {
                    break;
                }
                steps += 1;
                if let Some(groups) = &mut self.groups {
                    let core = agent.core.borrow();
                    let store = &agent.parts.machine.store;
                    // The next agent would take the group of a pod without a record for that of no pod.
                    groups.make_due(|uid| {
                        core.pods().is_configured(uid) && store.read_recorded_pod(uid).is_ok()
                    });
                }
                if let Some(control) = &mut self.control {
                    let is_refused =
                        |uid: &PodUid| super::rules::is_refused(&agent.core.borrow(), uid);
                    control.check_claims(&self.fake, is_refused)?;
                }
                if steps > MAX_STEPS {
                    return Err("tasks wake each other for ever".into());
                }
                if let Some(armed) = &mut self.armed {
                    let due = match &mut armed.steps {
                        Some(0) => true,
                        Some(left) => {
                            *left -= 1;
                            false
                        }
                        None => self.disk.has_stopped(),
                    };
                    if !due {
                        continue;
                    }
                    let armed = *armed;
                    self.armed = None;
                    if armed.steps.is_none() {
                        self.counts.saw(What::KilledBetweenChanges);
                    }
                    self.kill_agent();
                    if armed.power {
                        self.cut_power(armed.loses);
                    }
                    self.restart_later(armed.down_ms, armed.source_ms);
                }
            }
            if let Some(agent) = &self.agent
                && agent.task.is_finished()
            {
                let Some(down_ms) = agent.stopping else {
                    return Err("the loop has ended by itself".into());
                };
                self.kill_agent();
                self.restart_later(down_ms, 0);
                continue;
            }
            if !self.pump() {
                break;
            }
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        if self.journal.is_some() {
            for (op, target) in self.fake.take_calls() {
                if !matches!(op, Op::ListPods | Op::Status) {
                    self.note(|| format!("  {op:?} {target}"));
                }
            }
        }
        let mut violations = self.fake.violations();
        // The runtime kills a command whose caller leaves.
        violations.retain(|v| v != "Exec was dropped before its end");
        if !violations.is_empty() {
            return Err(violations.join("; "));
        }
        if self.journal.is_some()
            && let Some(control) = &self.control
        {
            for what in control.api.take_seen() {
                self.note(|| format!("  api: {what}"));
            }
        }
        let Some(agent) = &self.agent else {
            return Ok(());
        };
        if let Some(control) = self.control.as_mut().filter(|_| agent.stopping.is_none()) {
            control.check(&agent.core.borrow())?;
        }
        let core = agent.core.borrow();
        let (left, now) = (&self.template.left, self.hands.now());
        self.evictions.check(&core, left, now)?;
        self.judge.borrow_mut().look(&core);
        self.rules.check(&core, &self.fake, &mut self.counts)
    }

    /// Tells the judge what is wanted now.
    fn note_wanted(&self) {
        let mut wanted: BTreeMap<PodUid, (&Manifest, &Pod)> = BTreeMap::new();
        let mut ending = BTreeSet::new();
        for (file, pod) in visible(&self.files) {
            let manifest = &self.files[&file].0;
            let uid = &pod.pod.metadata.uid;
            match manifest.deleted_s {
                Some(grace_s) => {
                    let mut judge = self.judge.borrow_mut();
                    judge.ends_as(uid, manifest, &pod.pod, grace_s);
                    ending.insert(uid.clone());
                }
                None => _ = wanted.insert(uid.clone(), (manifest, &pod.pod)),
            }
        }
        let of_api = self.control.as_ref().map(|c| c.alive(NODE));
        for (uid, manifest, pod) in of_api.iter().flatten() {
            wanted.insert(uid.clone(), (manifest, pod));
        }
        self.judge.borrow_mut().wanted(&wanted, &ending);
    }

    /// Operations since the last time on pods of which nothing is to be done.
    pub(super) fn take_acts(&self) -> Vec<(Op, PodUid)> {
        self.judge.borrow_mut().take_acts()
    }

    /// When something happens by itself next.
    fn next_instant(&self) -> Option<MonoTime> {
        let agent = self.agent.as_ref();
        let on_the_way = agent.and_then(|a| a.on_the_way.keys().next().map(|(at, _)| *at));
        [
            self.hands.next_alarm(),
            self.fake.next_deadline(),
            on_the_way,
            agent.and_then(|a| a.source_due),
            self.restart.map(|(at, _)| at),
            self.control.as_ref().and_then(Control::next_instant),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn set(&mut self, now: MonoTime) -> Result<(), String> {
        self.counts.instants += 1;
        self.hands.set(now);
        self.fake.set_now(now, self.hands.wall());
        if let Some(control) = &self.control {
            control.api.set_now(self.hands.wall());
        }
        self.settle()
    }

    /// Lets time pass, stopping at every instant at which something happens.
    pub(super) fn advance_to(&mut self, end: MonoTime) -> Result<(), String> {
        let start = self.now();
        self.settle()?;
        while let Some(at) = self.next_instant().filter(|at| *at <= end) {
            // What is due already was just looked at: time has to move.
            let at = at.max(self.now() + Duration::from_millis(1));
            if at > end {
                break;
            }
            self.set(at)?;
        }
        self.set(end)?;
        self.counts.virtual_ms += end.0.saturating_sub(start.0);
        Ok(())
    }

    fn nth_running(&self, nth: u8) -> Option<ContainerId> {
        let mut running: Vec<ContainerId> = Vec::new();
        for pod in self.fake.pods() {
            let runs = |c: &&crate::api::cri::ContainerStatus| c.state == ContainerState::Running;
            running.extend(pod.containers.iter().filter(runs).map(|c| c.id.clone()));
        }
        running.sort_unstable();
        running.get(usize::from(nth)).cloned()
    }

    fn nth_sandbox(&self, nth: u8) -> Option<SandboxId> {
        let pods = self.fake.pods();
        let sandboxes = pods.iter().flat_map(|pod| &pod.sandboxes);
        let mut live = sandboxes.filter(|s| s.state == SandboxState::Ready);
        live.nth(usize::from(nth)).map(|s| s.id.clone())
    }

    /// Lets something happen.
    pub(super) fn apply(&mut self, input: &Input) -> Result<(), String> {
        self.note(|| format!("> {input:?}"));
        match input {
            Input::Put { file, pod } => {
                let received: Rc<ReceivedPod> = Rc::from(pod.prepare());
                let uid = received.pod.metadata.uid.clone();
                if pod.kind.may_end() || pod.deleted_s.is_some() {
                    self.may_end.insert(uid.clone());
                }
                self.uids.insert(uid);
                let name = pod.name;
                self.files.insert(*file, (pod.clone(), received));
                if self.files.values().filter(|(m, _)| m.name == name).count() > 1 {
                    self.counts.saw(What::Double);
                }
                self.look(false);
            }
            Input::Remove { file } => {
                if let Some((_, pod)) = self.files.remove(file)
                    && self.fake.runs(&pod.pod.metadata.uid)
                {
                    self.counts.saw(What::ForcedDeletion);
                }
                self.look(false);
            }
            Input::Exit { nth, code } => {
                if let Some(id) = self.nth_running(*nth) {
                    self.fake.exit(&id, *code);
                }
            }
            Input::ExitIn { file, code } => {
                let of_file = self.files.get(file).map(|(_, pod)| {
                    let names = pod.pod.spec.containers.iter().map(|c| c.name.clone());
                    (pod.pod.metadata.uid.clone(), names.collect())
                });
                let of_api = || self.control.as_ref()?.containers(*file);
                let pod: Option<(PodUid, Vec<String>)> = of_file.or_else(of_api);
                let id = pod.and_then(|(uid, names)| {
                    names.iter().find_map(|name| {
                        let newest = self.fake.container(&uid, name)?;
                        (newest.state == ContainerState::Running).then_some(newest.id)
                    })
                });
                if let Some(id) = id {
                    self.fake.exit(&id, *code);
                }
            }
            Input::OutOfMemory { nth } => {
                if let Some(id) = self.nth_running(*nth)
                    && self.fake.oom_kill(&id)
                {
                    self.counts.saw(What::OutOfMemory);
                }
            }
            Input::LoseSandbox { nth } => {
                if let Some(id) = self.nth_sandbox(*nth) {
                    self.fake.lose_sandbox(&id);
                    self.counts.saw(What::SandboxLost);
                }
            }
            Input::Ignore { container, ignores } => {
                let what = if *ignores {
                    OnStop::Ignores
                } else {
                    OnStop::Exits(143)
                };
                self.fake.on_stop(container, what);
            }
            Input::Fault {
                call,
                times,
                trouble,
            } => self.fake.add_fault(fault(*call, *times, *trouble)),
            Input::UpdatesFail { every } => self.fake.fail_updates(*every),
            Input::Release => self.fake.release_all(),
            Input::Latency { max_ms, seed } => self.fake.set_latency(*max_ms, *seed),
            Input::Tamper {
                lost,
                doubled,
                late,
                late_ms,
                seed,
            } => {
                self.tamper = Tamper {
                    lost: *lost,
                    doubled: *doubled,
                    late: *late,
                    late_ms: (*late_ms).max(1),
                    random: Random::new(*seed),
                };
            }
            Input::Deaf { deaf } => {
                self.fake.set_deaf(*deaf);
                self.counts.saw(What::Deaf);
            }
            Input::Offer => self.fake.offer_image(LATER),
            Input::ImagesArrived => self.send(AgentEvent::ImagesArrived),
            Input::Conditions { runtime, network } => {
                let bad = |ok: &bool| (!ok).then_some(("Broken", "it is"));
                self.fake.set_conditions(bad(runtime), bad(network));
                if !runtime {
                    self.counts.saw(What::RuntimeNotReady);
                } else if !network {
                    self.counts.saw(What::NetworkNotReady);
                }
            }
            Input::Jump { by_s } => {
                self.hands.jump(*by_s);
                self.jumped = true;
                self.judge.borrow_mut().jumped = true;
                self.counts.saw(match *by_s < 0 {
                    true => What::ClockBack,
                    false => What::ClockForward,
                });
                self.fake.set_now(self.now(), self.hands.wall());
            }
            Input::MemoryLeft { mib } => {
                self.template.left.set_memory(i64::from(*mib) << 20);
            }
            Input::Left(amount) => pressure::set(&self.template.left, *amount),
            Input::Join { .. } => {}
            Input::Api { name, deed } => {
                if let (Some(grace_s), Some(control)) = (deed.grace_s(), &self.control)
                    && let Some((uid, _)) = control.containers(*name)
                {
                    self.judge.borrow_mut().ends_within(&uid, grace_s);
                }
                let now = self.hands.wall();
                if let Some(control) = &mut self.control
                    && let Some(uid) = control.act(*name, deed, now)
                {
                    if let Some(groups) = &mut self.groups {
                        groups.add(uid.clone());
                    }
                    self.uids.insert(uid);
                }
                if let Some(control) = &self.control {
                    self.rules.usurped = control.usurped();
                }
            }
            Input::Apiserver(what) => {
                if let Some(control) = &mut self.control {
                    control.apply(what);
                }
            }
            Input::Crash {
                after_steps,
                after_changes,
                down_ms,
                source_ms,
                power,
                loses,
            } => {
                self.disk.stop_after(*after_changes);
                self.armed = Some(Armed {
                    steps: after_changes.is_none().then_some(*after_steps),
                    down_ms: *down_ms,
                    source_ms: *source_ms,
                    power: *power,
                    loses: *loses,
                });
            }
            Input::Probe { lives, fails } => {
                let program = if *lives { LIVES } else { READY };
                self.fake.set_failing(program, *fails);
                if *lives {
                    self.judge.borrow_mut().set_unwell(*fails);
                }
            }
            Input::Settings { present } => self.put_settings(*present),
            Input::Secret { present } => self.put_secret(*present),
            Input::Tokens { refused } => self.set_tokens(*refused),
            Input::Order { often, seed } => drawn::set(*often, *seed),
            Input::Disk { trouble } => {
                self.judge.borrow_mut().set_disk_fails(trouble.is_some());
                self.disk.fail(trouble.map(DiskTrouble::errno));
            }
            Input::Volumes { trouble } => self.disk.fail_volumes(trouble.map(DiskTrouble::errno)),
            Input::StopAll { down_ms } => {
                if let Some(agent) = &mut self.agent {
                    self.judge.borrow_mut().stops_all = true;
                    agent.stopping = Some(*down_ms);
                    let (done, _) = smol::channel::bounded(1);
                    self.send(AgentEvent::Command(AgentCommand::Stop { all: true, done }));
                }
            }
        }
        self.note_wanted();
        self.settle()
    }

    fn put_settings(&mut self, present: bool) {
        if present != self.settings {
            self.counts.saw(What::SettingsChange);
        }
        self.settings = present;
        if let Some(control) = &self.control {
            let path = format!("configmaps/ns/{SETTINGS}");
            match present {
                true => control.api.put_object(&path, settings("ns")),
                false => control.api.remove_object(&path),
            }
        }
        self.look(false);
    }

    fn put_secret(&mut self, present: bool) {
        if present != self.secret {
            self.counts.saw(What::SecretChange);
        }
        self.secret = present;
        if let Some(control) = &self.control {
            let path = format!("secrets/ns/{SECRET}");
            match present {
                true => control.api.put_object(&path, secret("ns")),
                false => control.api.remove_object(&path),
            }
        }
        self.look(false);
    }

    fn set_tokens(&self, refused: bool) {
        if let Some(control) = &self.control {
            match refused {
                true => control
                    .api
                    .trouble("tokens/", u32::MAX, ApiTrouble::Refuses(500)),
                false => control.api.heal(),
            }
        }
    }

    fn send(&self, event: AgentEvent) {
        if let Some(agent) = &self.agent {
            // A full queue: the client is told to try again.
            let _ = agent.events.try_send(event);
        }
    }

    /// Ends all trouble: from now on everything works, and only what is asked for happens.
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.note(|| "> all trouble ends".into());
        self.healed = Some(self.hands.wall());
        self.armed = None;
        self.disk.stop_after(None);
        self.disk.fail(None);
        self.judge.borrow_mut().set_disk_fails(false);
        self.fake.set_failing(READY, false);
        self.fake.set_failing(LIVES, false);
        self.judge.borrow_mut().set_unwell(false);
        self.fake.heal();
        self.fake.set_deaf(false);
        self.fake.set_conditions(None, None);
        self.fake.offer_image(LATER);
        pressure::set_plenty(&self.template.left);
        self.put_settings(true);
        self.put_secret(true);
        self.set_tokens(false);
        self.disk.fail_volumes(None);
        self.tamper.lost = 0;
        self.tamper.doubled = 0;
        self.tamper.late = 0;
        if let Some(control) = &mut self.control {
            control.heal();
        }
        self.settle()
    }

    /// Whether every pod whose time is over has begun to end; an error if one is too late.
    pub(super) fn deadlines_are_met(&self) -> Result<bool, String> {
        let Some(agent) = self.agent.as_ref().filter(|_| !self.jumped) else {
            return Ok(true);
        };
        let mut all = true;
        let core = agent.core.borrow();
        let statuses = core.pods().statuses();
        for (_, pod) in visible(&self.files) {
            let uid = &pod.pod.metadata.uid;
            let start = statuses.get(uid).and_then(|s| s.start_time);
            let (Some(start), Some(limit_s)) = (start, pod.pod.spec.active_deadline_seconds) else {
                continue;
            };
            let due =
                (start.unix_seconds() + limit_s).max(self.healed.map_or(0, WallTime::unix_seconds));
            let late_s = self.hands.wall().unix_seconds() - due;
            let table = core.pods().worker_table();
            let stage = table.find_handle(uid).and_then(|h| table.pod_stage(h));
            if stage == Some(WorkerStage::Sync) && late_s > 0 {
                all = false;
                if late_s > MAX_LATE_S {
                    return Err(format!("pod {uid} is {late_s} s beyond its deadline"));
                }
            }
        }
        Ok(all)
    }

    /// Removes all manifests.
    pub(super) fn remove_all(&mut self) -> Result<(), String> {
        self.note(|| "> all manifests are removed".into());
        self.files.clear();
        self.look(false);
        let now = self.hands.wall();
        if let Some(control) = &mut self.control {
            let mut judge = self.judge.borrow_mut();
            for (uid, ..) in control.alive(NODE) {
                judge.ends_within(&uid, super::control::LAST_GRACE_S);
            }
            drop(judge);
            control.delete_all(now);
        }
        self.note_wanted();
        self.settle()
    }

    /// Whether no call of a pod's worker is under way.
    pub(super) fn is_idle(&self) -> bool {
        let agent = self.agent.as_ref();
        agent.is_none_or(|agent| agent.parts.owners.claims.is_idle())
    }

    /// Whether everything is as the manifests want it, and if not, what is wrong.
    pub(super) fn is_settled(&self) -> Result<(), String> {
        let Some(agent) = &self.agent else {
            return Err("no agent runs".into());
        };
        if agent.stopping.is_some() {
            return Err("the agent ends".into());
        }
        let mut wanted = BTreeMap::new();
        for (file, pod) in visible(&self.files) {
            let meta = &pod.pod.metadata;
            let may_end = self.may_end.contains(&meta.uid);
            let manifest = &self.files[&file].0;
            wanted.insert(meta.uid.clone(), (manifest, &pod.pod, may_end));
        }
        let of_api = match &self.control {
            Some(control) => control.wanted(NODE)?,
            None => Wanted::default(),
        };
        for (uid, manifest, pod, may_end) in &of_api.alive {
            wanted.insert(uid.clone(), (manifest, pod, *may_end));
        }
        let present = Present {
            core: &agent.core.borrow(),
            parts: &agent.parts,
            pods: self.fake.pods(),
            uids: &self.uids,
            ended: &of_api.ended,
        };
        present.is_as_wanted(&wanted)?;
        let Some(control) = &self.control else {
            return Ok(());
        };
        let statics: Vec<&Pod> = visible(&self.files)
            .into_iter()
            .map(|(_, received)| &received.pod)
            .collect();
        control.shows_the_truth(&agent.core.borrow(), &self.fake, &statics)?;
        let Some(groups) = &self.groups else {
            return Ok(());
        };
        for (uid, ..) in &of_api.alive {
            let object = control.object(uid).ok_or("a pod has gone")?;
            let store = &agent.parts.machine.store;
            resizes::agree(&object, uid, &self.fake, groups, store)
                .map_err(|e| format!("pod {uid}: {e}: {object}"))?;
        }
        Ok(())
    }

    /// Whether pods have cgroups here. What looks like them does not go as they do, so their pods stay.
    pub(super) const fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// A write to a pod in the API that was made since this was last asked.
    pub(super) fn take_write(&self) -> Option<String> {
        let seen = self.control.as_ref()?.api.take_seen();
        let is_write = |what: &String| {
            ["PATCH", "CREATE", "DELETE"]
                .iter()
                .any(|verb| what.starts_with(verb))
        };
        seen.into_iter().find(is_write)
    }

    /// Whether something is restarted for ever, or may end at any time, by intent.
    pub(super) fn is_restless(&self) -> bool {
        let restless = |m: &Manifest| m.kind.loops() || m.kind == super::pods::Kind::Deadline;
        let of_api = self.control.as_ref().map(|c| c.made.values());
        self.files.values().any(|(m, _)| restless(m)) || of_api.into_iter().flatten().any(restless)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drawn::set(0, 1);
        if !std::thread::panicking() {
            self.fake.set_watch(None);
            self.kill_agent();
        }
    }
}

/// Files that count: of those that speak of one pod the last, as in the manifest directory (SRC-19).
fn visible(files: &BTreeMap<u8, (Manifest, Rc<ReceivedPod>)>) -> Vec<(u8, &Rc<ReceivedPod>)> {
    let mut names = BTreeSet::new();
    let mut seen: Vec<_> = files
        .iter()
        .rev()
        .filter(|(_, (manifest, _))| names.insert(manifest.name))
        .map(|(file, (_, pod))| (*file, pod))
        .collect();
    seen.reverse();
    seen
}

async fn deliver_all(
    snapshots: Receiver<SourceSnapshot>,
    events: Sender<AgentEvent>,
    read_again: Rc<Cell<bool>>,
) {
    while let Ok(snapshot) = snapshots.recv().await {
        match manifests::deliver_snapshot(snapshot, &events).await {
            Ok(taken) => read_again.set(taken != DeliveryResult::default()),
            Err(_) => return,
        }
    }
}

fn fault(call: Call, times: u32, trouble: Trouble) -> Fault {
    let failure = || RuntimeError::Failed("simulated".into());
    Fault {
        op: match call {
            Call::Status => Op::Status,
            Call::ListPods => Op::ListPods,
            Call::PodStatus => Op::PodStatus,
            Call::RunPodSandbox => Op::RunPodSandbox,
            Call::StopPodSandbox => Op::StopPodSandbox,
            Call::RemovePodSandbox => Op::RemovePodSandbox,
            Call::CreateContainer => Op::CreateContainer,
            Call::StartContainer => Op::StartContainer,
            Call::StopContainer => Op::StopContainer,
            Call::RemoveContainer => Op::RemoveContainer,
            Call::Exec => Op::Exec,
            Call::ImageStatus => Op::ImageStatus,
            Call::PullImage => Op::PullImage,
        },
        target: None,
        times,
        trouble: match trouble {
            Trouble::Fails => FakeTrouble::Fails(failure()),
            Trouble::FailsAfter => FakeTrouble::FailsAfter(failure()),
            Trouble::Hangs => FakeTrouble::Hangs,
            Trouble::TimesOut { ms } => FakeTrouble::TimesOut(Duration::from_millis(ms)),
        },
    }
}
