//! The deciding half of the loop: events in, effects out. It waits for nothing and does no I/O of its own; what is to
//! be done comes out of [`Agent::poll_effect`] and its end comes back as an [`Event`]. Rows LOOP-06 to LOOP-22.

use alloc::{collections::VecDeque, rc::Rc};

use serde_json::Value;
use smol::channel::Sender;

use super::{
    asker::Question,
    calls::{self, Calls},
    cluster::News,
    ctx::{Ctx, Shared},
    executor::{Cancel, Step},
    housekeeping::{self, Chores, Found},
    pod_store::StoreError,
    pods::{ConfigPod, Pods},
    probes::Probed,
    recorder::{About, Severity},
    records::{Recorded, Recording},
    relister::{Inspection, Listing},
    ring::{self, Heard, Made, Seen},
    runtime_view::{Listed, RuntimeView},
    sources::{Delivery, Sources},
};
use crate::api::order::Order;
use crate::{
    api::{ContainerId, Mono, Pod, PodStatus, PodUid, cri::RuntimeStatus},
    error::chain,
    logic::{
        conditions,
        dispatch::{self, Addition, ProbeWrite, Reconciliation, Removal},
        mux::Source,
        pleg,
        pod_table::{Effect as TableEffect, Handle, Start, TableFull},
        pod_worker::{KillOptions, Outcome, PodFacts, Update, UpdateKind},
        probe::ProbeResult,
        status_update::ProbeChange,
    },
};

/// A request to the loop.
pub(super) enum Command {
    /// End the agent; with `all` every pod first. Answered when it is done.
    Stop { all: bool, done: Sender<()> },
    /// Images were imported.
    ImagesArrived,
}

/// Something that happened.
pub(super) enum Event {
    /// A source says something.
    Delivered(Delivery),
    /// Pods of it are recorded on disk.
    Recorded(Box<Recorded>),
    /// The manifests were read, and nothing has changed.
    ManifestsRead,
    /// Records that waited for the disk were looked at: whether some still wait.
    Settled(bool),
    /// The API shows a pod so, after a write of the agent.
    Shown(PodUid, Value),
    /// A pod was read from its record.
    Loaded(PodUid, Purpose, Result<Rc<Pod>, StoreError>),
    /// Directories and cgroups of pods were looked through.
    Searched(Found),
    /// Something else that these pods depend on is another.
    Resync(Vec<PodUid>),
    /// Images were imported: pods that wait for one are synced.
    ImagesArrived,
    /// The runtime was listed.
    Listed(Listing),
    /// The pods that differed in the last listing were read.
    Inspected(Inspection),
    /// The runtime's conditions were read.
    Conditions(Box<RuntimeStatus>),
    /// Somebody wants to know something.
    Ask(Question),
    /// A probe's result is another.
    Probed(Probed),
    /// A call of a worker came to something.
    Step(Handle, Step),
    /// A call of a worker ended.
    Done(Handle, Outcome),
    /// A tick of housekeeping is due.
    Housekeeping,
    /// What a tick of housekeeping found is carried out.
    Cleaned,
    /// A local command.
    Command(Command),
    /// SIGTERM or SIGINT: the agent ends, pods go on.
    Terminate,
}

const _: () = assert!(
    size_of::<Event>() <= 104,
    "256 of them have room in the queue"
);

/// An operation on pods whose records are on disk.
pub(super) enum ConfigOp {
    /// No longer configured.
    Remove(Vec<PodUid>),
    /// New.
    Add(Vec<Pod>),
    /// Changed, deletion included.
    Update(Vec<Pod>),
    /// Only the status differs.
    Reconcile(Vec<Pod>),
}

impl ConfigOp {
    /// Pods of which a record was written for this operation.
    pub(super) fn recorded_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        let pods = match self {
            Self::Remove(_) => [].as_mut_slice(),
            Self::Add(pods) | Self::Update(pods) | Self::Reconcile(pods) => pods,
        };
        pods.iter_mut()
    }
}

/// Something to do.
pub(super) enum Effect {
    /// Run a worker's call, which looks at the flag.
    Start(Start, PodUid, Rc<Cancel>),
    /// Relist soon.
    Relist,
    /// Read these pods, which the listing showed to differ. What was read goes back to whoever listed.
    Inspect(Vec<PodUid>, Sender<Vec<PodUid>>),
    /// Remove surplus dead instances of the container that died (CLEAN-14).
    TidyDead(PodUid, ContainerId),
    /// Read a pod from its record; ends with [`Event::Loaded`].
    Load(PodUid, Purpose),
    /// Look through directories and cgroups of pods; ends with [`Event::Searched`].
    Search,
    /// Write records; ends with [`Event::Recorded`].
    Record(Box<Recording>),
    /// Move records that wait to the disk; ends with [`Event::Settled`].
    SettleRecords,
    /// Keep what the API shows in the pod's record.
    KeepShown(PodUid, Value),
    /// Forget how pods came to their end: they are no longer configured.
    ForgetOutcomes(Vec<PodUid>),
    /// Carry out what housekeeping found.
    Housekeeping(Box<Chores>),
}

/// Why a pod is read.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// It is created: it is wanted, and has no worker.
    Create,
    /// A probe changed its mind about an instance, as the API names it; the status shows it.
    Show(Box<str>, ProbeChange),
    /// An image came that it may have waited for.
    Image,
}

/// Waiting reasons that an arriving image may end.
const IMAGE_REASONS: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"];

/// The deciding side. The loop alone owns it; whoever wants to know something of it asks (see [`Event::Ask`]).
pub(super) struct Agent {
    pub(super) ctx: Shared,
    pub(super) sources: Sources,
    pub(super) effects: VecDeque<Effect>,
    /// Calls that run.
    calls: Calls,
    /// Clients that wait for all pods to have ended.
    stop_waiters: Vec<Sender<()>>,
    /// Chores of an earlier tick are under way.
    cleaning: bool,
    /// Directories and cgroups are being looked through.
    searching: bool,
    /// When housekeeping next searches disk and cgroups; at once after anything that may leave something there.
    search_due: Mono,
    /// The agent ends once nothing of any pod is left.
    stop_when_idle: bool,
    /// The loop is to end.
    pub(super) finished: bool,
}

impl Agent {
    pub(super) fn new(ctx: Shared) -> Self {
        let file = ctx.cfg.dirs.manifests.is_some().then_some(Source::File);
        let api = ctx.cluster.is_some().then_some(Source::Api);
        let sources: Vec<Source> = file.into_iter().chain(api).collect();
        Self {
            sources: Sources::new(&sources, ctx.clock.now()),
            ctx,
            effects: VecDeque::new(),
            calls: Calls::default(),
            stop_waiters: Vec::new(),
            cleaning: false,
            searching: false,
            search_due: Mono(0),
            stop_when_idle: false,
            finished: false,
        }
    }

    /// What is known of pods.
    pub(super) fn pods(&self) -> &Pods {
        &self.ctx.pods
    }

    /// What is known of the runtime.
    pub(super) fn view(&self) -> &RuntimeView {
        &self.ctx.view
    }

    pub(super) fn handle(&mut self, event: Event, now: Mono) {
        self.note(&event, now);
        match event {
            Event::Delivered(delivery) => self.on_delivered(delivery, now),
            Event::Recorded(recorded) => self.on_recorded(*recorded, now),
            Event::ManifestsRead => self.sources.read_manifests(now),
            Event::Settled(waiting) => self.note_waiting(waiting, now),
            Event::Shown(uid, shown) => {
                self.effects.push_back(Effect::KeepShown(uid, shown));
            }
            Event::Loaded(uid, purpose, pod) => self.on_loaded(&uid, purpose, pod, now),
            Event::Searched(found) => self.on_searched(&found, now),
            Event::Resync(uids) => {
                for uid in uids {
                    self.ctx.pods.resync(&uid, now);
                }
            }
            Event::ImagesArrived => self.on_images(),
            Event::Listed(listing) => self.on_listed(listing, now),
            Event::Inspected(inspection) => {
                let happened = self.ctx.view.inspected(inspection);
                self.on_pleg(&happened, now);
            }
            Event::Conditions(status) => self.ctx.view.take_status(*status, now),
            Event::Ask(question) => question(self),
            Event::Probed(probed) => self.on_probed(&probed, now),
            Event::Step(call, step) => calls::on_step(&self.ctx, call, step, now),
            Event::Done(handle, outcome) => {
                self.calls.end(handle);
                self.ctx.pods.on_done(handle, outcome, now);
                self.ctx.heap.note();
                self.search_due = Mono(0);
                self.ctx.status_changed();
                self.tell_static_pods();
            }
            Event::Housekeeping => {
                self.on_housekeeping(now);
                // A burst of calls leaves free pages all over the heap.
                let unpacked = self.ctx.images.take_heap_used();
                if self.ctx.heap.take() || unpacked {
                    crate::sys::memory::trim();
                }
            }
            Event::Cleaned => {
                self.cleaning = false;
                // After the last pod of a crowd nothing else would tell.
                self.ctx.heap.note();
                // What could not be removed is found again.
                self.search_due = Mono(0);
            }
            Event::Command(Command::Stop { all, done }) => self.on_stop(all, done, now),
            Event::Command(Command::ImagesArrived) => self.on_images(),
            Event::Terminate => self.finished = true,
        }
    }

    /// Takes down what came in. Ticks are told by what they lead to.
    fn note(&self, event: &Event, now: Mono) {
        let mut ring = self.ctx.ring.borrow_mut();
        match event {
            Event::ImagesArrived | Event::Command(Command::ImagesArrived) => {
                ring.heard(now, Heard::Images);
            }
            Event::Done(handle, outcome) => {
                ring.heard(now, Heard::done(&self.uid_of(*handle), *outcome));
            }
            Event::Command(Command::Stop { all, .. }) => ring.heard(now, Heard::Stop { all: *all }),
            Event::Terminate => ring.heard(now, Heard::Terminate),
            Event::Delivered(_)
            | Event::Recorded(_)
            | Event::ManifestsRead
            | Event::Settled(_)
            | Event::Shown(..)
            | Event::Loaded(..)
            | Event::Searched(_)
            | Event::Resync(_)
            | Event::Listed(_)
            | Event::Inspected(_)
            | Event::Conditions(_)
            | Event::Ask(_)
            | Event::Step(..)
            | Event::Probed(_)
            | Event::Housekeeping
            | Event::Cleaned => {}
        }
    }

    /// Takes down what a source has.
    fn note_config(&self, source: Source, ops: &[ConfigOp], now: Mono) {
        let mut ring = self.ctx.ring.borrow_mut();
        let seen = |pod: &Pod| Seen::of(pod, source != Source::Api);
        for op in ops {
            match op {
                ConfigOp::Remove(uids) => uids.iter().for_each(|uid| {
                    let pod = ring::cut(uid.as_str());
                    ring.heard(now, Heard::Remove { pod });
                }),
                ConfigOp::Add(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Add(seen(pod)))),
                ConfigOp::Update(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Update(seen(pod)))),
                ConfigOp::Reconcile(pods) => pods
                    .iter()
                    .for_each(|pod| ring.heard(now, Heard::Reconcile(seen(pod)))),
            }
        }
    }

    /// UID of the pod in a slot; empty if the slot is another's by now.
    fn uid_of(&self, handle: Handle) -> String {
        let uid = self.ctx.pods.uid(handle);
        uid.map_or_else(String::new, |uid| uid.as_str().to_owned())
    }

    fn made(&self, now: Mono, made: Made) {
        self.ctx.ring.borrow_mut().made(now, made);
    }

    /// Wakes the pods that are due.
    pub(super) fn handle_timeout(&mut self, now: Mono) {
        self.ctx.pods.on_timeout(now);
        self.settle_records(now);
    }

    /// Shows the calls that run whether they are still wanted. Before anything else runs on this thread.
    pub(super) fn show_calls(&self) {
        self.ctx.pods.workers(|table| self.calls.refresh(table));
    }

    /// When [`Agent::handle_timeout`] has something to do.
    pub(super) fn next_timeout(&self) -> Option<Mono> {
        let pods = self.ctx.pods.workers(|table| table.next_timeout());
        pods.into_iter().chain(self.sources.next_timeout()).min()
    }

    /// Takes down what is made be done, but for calls, which say more.
    fn note_effect(&self, effect: &Effect, now: Mono) {
        match effect {
            Effect::TidyDead(uid, id) => self.made(
                now,
                Made::TidyDead {
                    pod: ring::cut(uid.as_str()),
                    id: ring::cut(id.as_str()),
                },
            ),
            Effect::Housekeeping(_) => self.made(now, Made::Housekeeping),
            Effect::Start(..)
            | Effect::Relist
            | Effect::Inspect(..)
            | Effect::Load(..)
            | Effect::Search
            | Effect::Record(_)
            | Effect::SettleRecords
            | Effect::KeepShown(..)
            | Effect::ForgetOutcomes(_) => {}
        }
    }

    /// The next thing to do.
    pub(super) fn poll_effect(&mut self, now: Mono) -> Option<Effect> {
        if self.finished {
            return None;
        }
        loop {
            if let Some(effect) = self.effects.pop_front() {
                self.note_effect(&effect, now);
                return Some(effect);
            }
            if !self.ctx.view.may_run_pods(now) {
                // Nothing is done to pods while the runtime cannot answer (LOOP-02, LOOP-03).
                return None;
            }
            let ctx = &self.ctx;
            let effect = ctx.view.with_ages(|ages| ctx.pods.poll_effect(ages, now));
            match effect {
                None => {
                    self.end_if_idle(now);
                    return None;
                }
                Some(TableEffect::Start(start)) => {
                    if let Some(uid) = self.ctx.pods.uid(start.handle) {
                        self.made(now, Made::start(uid.as_str(), &start));
                        let cancel = self.calls.begin(start.handle);
                        return Some(Effect::Start(start, uid, cancel));
                    }
                }
                Some(TableEffect::NeedStatus { handle, .. }) => {
                    let pod = self.uid_of(handle);
                    self.made(now, Made::Relist { pod });
                    return Some(Effect::Relist);
                }
                Some(TableEffect::StatusFailed(handle)) => {
                    let pod = self.uid_of(handle);
                    self.made(now, Made::StatusFailed { pod });
                    self.tell_status_failed(handle);
                }
                Some(TableEffect::Cancel(handle)) => {
                    let pod = self.uid_of(handle);
                    self.made(now, Made::Cancel { pod });
                }
                Some(TableEffect::Stopped(handle)) => {
                    let pod = self.uid_of(handle);
                    self.made(now, Made::Stopped { pod });
                }
                Some(TableEffect::Gone { uid, restart, .. }) => {
                    let pod = ring::cut(uid.as_str());
                    self.made(now, Made::Gone { pod, restart });
                    self.on_gone(&uid, restart);
                }
            }
        }
    }

    /// Acts upon what a source has, whose pods are on disk.
    pub(super) fn on_config(&mut self, source: Source, ops: Vec<ConfigOp>, now: Mono) {
        self.note_config(source, &ops, now);
        self.search_due = Mono(0);
        for mut op in ops {
            for pod in op.recorded_mut() {
                self.ctx.pods.arrived(&pod.metadata.uid);
            }
            match op {
                ConfigOp::Remove(uids) => {
                    uids.iter().for_each(|uid| self.remove(source, uid, now));
                    self.effects.push_back(Effect::ForgetOutcomes(uids));
                }
                ConfigOp::Add(mut pods) => {
                    // What runs was admitted before: nobody who was refused then takes its place over a restart.
                    pods.order_by_key(|p| {
                        let idle = self.ctx.view.is_idle(&p.metadata.uid);
                        dispatch::addition_order(idle, p.metadata.creation_timestamp)
                    });
                    pods.into_iter().for_each(|pod| self.add(source, pod, now));
                }
                ConfigOp::Update(pods) => pods
                    .into_iter()
                    .for_each(|pod| self.update(source, &pod, now)),
                ConfigOp::Reconcile(pods) => pods
                    .into_iter()
                    .for_each(|pod| self.reconcile(source, &pod, now)),
            }
        }
        self.sources.handled(source);
        self.ctx.status_changed();
        self.tell_static_pods();
        if self.stop_when_idle {
            // Pods that came meanwhile are to end as well.
            self.kill_all(now);
        }
    }

    fn add(&self, source: Source, pod: Pod, now: Mono) {
        let ctx = &*self.ctx;
        let uid = &pod.metadata.uid;
        let known = ConfigPod::of(source, &pod);
        ctx.pods.configure(uid, known);
        let ends = ctx.pods.is_to_end(uid);
        let what = dispatch::on_addition(ends, pod.status.phase.is_terminal());
        if what == Addition::Admit && !admit(ctx, &pod) {
            return;
        }
        self.create(&pod, now);
    }

    fn create(&self, pod: &Pod, now: Mono) {
        let ctx = &*self.ctx;
        if self.stop_when_idle {
            return;
        }
        // A static pod that comes with its end is of another boot: nothing of it runs, whatever was not yet looked at.
        let of_another_boot = || {
            let is_static = ctx.pods.with_config(&pod.metadata.uid, |c| c.is_static);
            is_static == Some(true) && pod.status.phase.is_terminal()
        };
        let idle = ctx.view.is_idle(&pod.metadata.uid) || of_another_boot();
        let update = Update::of(UpdateKind::Create, PodFacts::of(pod)).with_runtime_idle(idle);
        if idle {
            ctx.pods.note_created(&pod.metadata.uid, now);
        }
        let taken = ctx.pods.update(update, now);
        if let Err(e) = taken {
            tell_full(ctx, pod, e);
        }
    }

    fn update(&self, source: Source, pod: &Pod, now: Mono) {
        let ctx = &*self.ctx;
        ctx.pods
            .configure(&pod.metadata.uid, ConfigPod::of(source, pod));
        if self.stop_when_idle {
            return;
        }
        let idle = ctx.view.is_idle(&pod.metadata.uid);
        let update = Update::of(UpdateKind::Update, PodFacts::of(pod)).with_runtime_idle(idle);
        let taken = ctx.pods.update(update, now);
        if let Err(e) = taken {
            tell_full(ctx, pod, e);
        }
    }

    /// Only what the API shows of the pod has changed. Others may have ended it (OFF-04), or opened a gate (STAT-45).
    fn reconcile(&self, source: Source, pod: &Pod, now: Mono) {
        let ctx = &*self.ctx;
        let uid = &pod.metadata.uid;
        let known = ConfigPod::of(source, pod);
        let ended = known.api_phase_terminal;
        ctx.pods.configure(uid, known);
        let told = |status: &PodStatus| {
            let gates_changed = conditions::gates_changed(pod, status);
            (status.phase.is_terminal(), gates_changed)
        };
        let (told, gates_changed) = ctx.pods.with_status(uid, told).unwrap_or_default();
        match dispatch::on_reconcile(ended, told, gates_changed) {
            Reconciliation::Update => self.update(source, pod, now),
            Reconciliation::Sync => ctx.pods.resync(uid, now),
            Reconciliation::Nothing => {}
        }
    }

    /// Mirrors follow static pods and their ends.
    fn tell_static_pods(&self) {
        self.ctx.tell_api(News::StaticPods);
    }

    fn remove(&self, source: Source, uid: &PodUid, now: Mono) {
        let ctx = &*self.ctx;
        let config = ctx.pods.unconfigure(uid);
        match dispatch::on_removal(self.sources.is_ready(source)) {
            Removal::Kill => self.kill(uid, config, None, now),
            Removal::LeaveToHousekeeping => {
                log::debug!("uid={uid} removed before its source was ready")
            }
        }
    }

    /// Tells a pod's worker to end it. Without `config` it is ended as the runtime knows it.
    fn kill(&self, uid: &PodUid, config: Option<ConfigPod>, kill: Option<KillOptions>, now: Mono) {
        let ctx = &*self.ctx;
        let taken = match &config {
            Some(config) => {
                let facts = config.facts(uid);
                let update = match kill {
                    Some(options) => Update::kill(facts, options),
                    None => Update::of(UpdateKind::Kill, facts),
                };
                // An agent before this one may have started it.
                let idle = ctx.view.is_idle(uid);
                ctx.pods.update(update.with_runtime_idle(idle), now)
            }
            None => {
                let Some((namespace, name)) = self.name_of(uid) else {
                    return;
                };
                let update = Update::runtime_only(uid, &name, &namespace);
                ctx.pods.update(update, now)
            }
        };
        if let Err(e) = taken {
            // If something of it runs, housekeeping finds it.
            log::warn!("uid={uid} cannot be ended: {e}");
        }
    }

    /// A probe's word is shown at once, and acted upon (LOOP-18).
    fn on_probed(&mut self, probed: &Probed, now: Mono) {
        let pods = self.pods();
        let uid = &probed.uid;
        let is_config = pods.is_configured(uid);
        let success = probed.result == ProbeResult::Success;
        let (write, sync) = dispatch::on_probe(probed.kind, success, is_config);
        match write {
            Some(write) => {
                let change = match write {
                    ProbeWrite::Ready(ready) => ProbeChange::Ready(ready),
                    ProbeWrite::Started(started) => ProbeChange::Started(started),
                };
                let purpose = Purpose::Show(probed.container_id.clone(), change);
                self.effects.push_back(Effect::Load(uid.clone(), purpose));
            }
            None if sync => pods.resync(uid, now),
            None => {}
        }
    }

    /// A pod was read.
    fn on_loaded(
        &self,
        uid: &PodUid,
        purpose: Purpose,
        pod: Result<Rc<Pod>, StoreError>,
        now: Mono,
    ) {
        let ctx = &*self.ctx;
        let pod = pod
            .inspect_err(|e| ctx.complain(&format!("uid={uid} {}", chain(e))))
            .ok();
        match (purpose, pod) {
            (Purpose::Create, Some(pod)) => {
                let is_wanted = ctx.pods.is_configured(uid) && !ctx.pods.has_worker(uid);
                // While it ended, or because it was refused, another pod may have got what it asks for.
                if is_wanted && !self.stop_when_idle && admit(ctx, &pod) {
                    self.create(&pod, now);
                }
            }
            // Housekeeping finds it again.
            (Purpose::Create, None) => {}
            (Purpose::Show(container_id, change), pod) => {
                if let Some(pod) = pod {
                    ctx.statuses().probed(&pod, &container_id, change);
                }
                ctx.pods.resync(uid, now);
            }
            (Purpose::Image, pod) => {
                if let Some(pod) = pod {
                    ctx.images.forget_delays(&pod);
                }
                ctx.pods.resync(uid, now);
            }
        }
    }

    /// Pods that use ConfigMaps or Secrets of the manifest directory are synced.
    pub(super) fn on_objects(&mut self, now: Mono) {
        self.ctx.ring.borrow_mut().heard(now, Heard::Objects);
        let pods = &self.ctx.pods;
        for uid in pods.configured_that(|p| p.uses_objects) {
            pods.resync(&uid, now);
        }
    }

    /// Nobody waits out a back-off for an image that is there.
    fn on_images(&mut self) {
        let waits = |status: &PodStatus| {
            let all = status
                .init_container_statuses
                .iter()
                .chain(&status.container_statuses);
            all.filter_map(|c| c.state.waiting.as_ref())
                .any(|w| IMAGE_REASONS.contains(&w.reason.as_str()))
        };
        let waiting = self.pods().with_status_that(waits).into_iter();
        let load = |uid| Effect::Load(uid, Purpose::Image);
        self.effects.extend(waiting.map(load));
    }

    /// Events of a listing find a status at least as new in the cache: what differs is read before they are made (PLEG-07).
    fn on_listed(&mut self, listing: Listing, now: Mono) {
        match self.ctx.view.listed(&listing) {
            Listed::Differs(pods) => {
                let effect = Effect::Inspect(pods, listing.inspect);
                self.effects.push_back(effect);
            }
            Listed::Complete(happened) => self.on_pleg(&happened, now),
        }
    }

    fn on_pleg(&mut self, events: &[pleg::Event], now: Mono) {
        let view = &self.ctx.view;
        self.ctx.counters.count(|c| c.discarded(view.discarded()));
        if !events.is_empty() {
            self.search_due = Mono(0);
        }
        for event in events {
            let heard = Heard::Pleg {
                pod: ring::cut(event.uid.as_str()),
                kind: format!("{:?}", event.kind),
                id: ring::cut(&event.id),
            };
            self.ctx.ring.borrow_mut().heard(now, heard);
            let is_config = self.ctx.pods.is_configured(&event.uid);
            let reaction = dispatch::on_pleg_event(event.kind, &event.id, is_config);
            if reaction.sync {
                self.ctx.pods.resync(&event.uid, now);
            }
            if reaction.clean_dead {
                self.effects.push_back(Effect::TidyDead(
                    event.uid.clone(),
                    event.id.as_ref().into(),
                ));
            }
        }
    }

    fn on_housekeeping(&mut self, now: Mono) {
        let was_known = self.pods().workers(|table| table.is_synced());
        let chores = housekeeping::decide(&self.ctx, self.sources.are_ready(), None, now);
        if !was_known && self.pods().workers(|table| table.is_synced()) {
            // Of pods without a worker it is certain from now on that nothing runs.
            self.ctx.status_changed();
        }
        for (uid, drop_status) in &chores.create {
            self.create_again(uid, *drop_status);
        }
        self.do_chores(chores);
        let view = &self.ctx.view;
        let could =
            self.sources.are_ready() && view.may_run_pods(now) && view.running(now).is_some();
        if could && !self.cleaning && !self.searching && now >= self.search_due {
            self.search_due = now + housekeeping::SEARCH_INTERVAL;
            self.searching = true;
            self.effects.push_back(Effect::Search);
        }
    }

    /// Listed before the configuration is looked at: a pod that came meanwhile is no orphan.
    fn on_searched(&mut self, found: &Found, now: Mono) {
        self.searching = false;
        if self.cleaning {
            self.search_due = Mono(0);
            return;
        }
        let ready = self.sources.are_ready();
        let chores = housekeeping::decide(&self.ctx, ready, Some(found), now);
        self.do_chores(chores);
    }

    /// What takes long holds up neither orphans nor pods to create: what is left now is found again.
    fn do_chores(&mut self, chores: Chores) {
        if !self.cleaning && !chores.is_empty() {
            self.cleaning = true;
            self.effects
                .push_back(Effect::Housekeeping(Box::new(chores)));
        }
    }

    /// Creates a configured pod that the table does not hold.
    fn create_again(&mut self, uid: &PodUid, drop_status: bool) {
        if self.stop_when_idle {
            return;
        }
        if drop_status {
            // What ended must not speak for what begins.
            self.pods().forget_status(uid);
        }
        let load = Effect::Load(uid.clone(), Purpose::Create);
        self.effects.push_back(load);
    }

    fn on_gone(&mut self, uid: &PodUid, restart: bool) {
        let pods = self.pods();
        pods.forget_reasons(uid);
        if restart && pods.is_configured(uid) {
            self.create_again(uid, true);
        }
    }

    fn on_stop(&mut self, all: bool, done: Sender<()>, now: Mono) {
        self.stop_waiters.push(done);
        if !all {
            self.finished = true;
            return;
        }
        self.stop_when_idle = true;
        self.kill_all(now);
    }

    /// Ends every pod that has a worker, or may have something running.
    fn kill_all(&self, now: Mono) {
        let ctx = &*self.ctx;
        let uids: Vec<PodUid> = ctx.pods.configured();
        for uid in uids {
            let ended = ctx.pods.is_to_end(&uid);
            let idle = !ctx.pods.has_worker(&uid) && ctx.view.is_idle(&uid);
            if !ended && !idle {
                let config = ctx.pods.with_config(&uid, ConfigPod::clone);
                self.kill(&uid, config, Some(KillOptions::default()), now);
            }
        }
    }

    /// Whether the agent ends, or is to end, together with its pods.
    pub(super) const fn ends_with_pods(&self) -> bool {
        self.stop_when_idle
    }

    /// With every pod ended on request, the agent ends too: once the manifests have said what there is, all workers are
    /// done, and the runtime says that nothing runs.
    fn end_if_idle(&mut self, now: Mono) {
        if !self.stop_when_idle {
            return;
        }
        let ctx = &*self.ctx;
        let done = ctx.pods.workers(|table| {
            let mut handles = table.handles();
            handles.all(|h| table.stage(h).is_none_or(|s| s.is_finished()))
        });
        let idle = ctx.view.nothing_runs(now);
        // Pods that only the apiserver knows run no earlier than it is heard of.
        // Before the files of root have said which pods there are, nobody knows whether that is all.
        let told = ctx.cfg.dirs.manifests.is_none() || self.sources.is_ready(Source::File);
        self.finished |= done && idle && told;
    }

    fn tell_status_failed(&self, handle: Handle) {
        let ctx = &*self.ctx;
        let Some(uid) = ctx.pods.uid(handle) else {
            return;
        };
        let Some((namespace, name)) = self.name_of(&uid) else {
            return;
        };
        let message = ctx.view.status_error(&uid).unwrap_or_default();
        let about = About {
            uid: &uid,
            namespace: &namespace,
            name: &name,
            field_path: "",
        };
        let text = format!("error determining status: {message}");
        let recorder = &ctx.recorder;
        recorder.about(about, Severity::Warning, "FailedSync", &text);
    }
}

/// Asks admission and tells a refusal. Returns whether the pod may run.
fn admit(ctx: &Ctx, pod: &Pod) -> bool {
    let Err(rejection) = super::admission::admit(&ctx.pods, &ctx.node, pod) else {
        return true;
    };
    ctx.counters
        .count(|c| c.rejected(rejection.metric_reason()));
    let (reason, message) = (&rejection.reason, &rejection.message);
    ctx.pod_event(pod, Severity::Warning, reason, message);
    ctx.statuses().reject(pod, reason, message);
    false
}

fn tell_full(ctx: &Ctx, pod: &Pod, e: TableFull) {
    let message = format!("Node didn't have enough resource: pods: {e}");
    ctx.pod_event(pod, Severity::Warning, "OutOfpods", &message);
    ctx.statuses().reject(pod, "OutOfpods", &message);
}
