//! The deciding half of the loop: events in, effects out. It waits for nothing and does no I/O of its own; what is to
//! be done comes out of [`Agent::poll_effect`] and its end comes back as an [`AgentEvent`]. Rows LOOP-06 to LOOP-22.
//!
//! | file | what it is |
//! |---|---|
//! | `event` | what can happen, and what can be wanted done |
//! | `sources`, `intake` | what sources say: what is remembered of it; how it comes in |
//! | `configured` | what becomes of pods that sources have, no longer have, or have differently |
//! | `rereads` | pods that the Node may fit by now: held back until it was read once more |
//! | `runtime_view`, `relisted` | what is known of the runtime; what a listing leads to |
//! | `calls`, `steps` | the calls of workers that run; what is made of their steps |
//! | `resizes` | edited resources: taken in, decided, told |
//! | `statuses` | statuses: made, judged, stored |
//! | `eviction` | which pod goes when the node is short |
//! | `resources` | extended resources: what the loop does for whoever offers them |
//! | `chores`, `housekeeping` | what no event drives |
//! | `clock_watch` | whether the wall clock was set, and is right |
//! | `ending` | the end, of the agent alone or with its pods |
//! | `questions` | what others want to know |
//! | `noted` | what of all that goes into the ring |

mod calls;
mod chores;
mod clock_watch;
mod configured;
mod ending;
mod event;
mod eviction;
mod housekeeping;
mod intake;
mod noted;
mod questions;
mod relisted;
mod rereads;
mod resizes;
mod resources;
mod runtime_view;
mod sources;
mod statuses;
mod steps;
#[cfg(test)]
mod testing;

use alloc::{collections::VecDeque, rc::Rc};

use smol::channel::Sender;

use calls::RunningCalls;
pub(super) use chores::{HousekeepingChores, PodRemains};
use ending::StopProgress;
pub(super) use ending::TELLING;
pub(super) use event::{AgentCommand, AgentEffect, AgentEvent, AgentQuestion, LoadPurpose};
use eviction::Eviction;
pub(super) use eviction::EvictionWork;
use housekeeping::HousekeepingProgress;
pub(crate) use resources::{PodLoop, PodsView};
use runtime_view::RuntimeView;
pub(super) use runtime_view::{RuntimeInspection, RuntimeListing};
use sources::PodSources;
pub(super) use sources::{ConfigOp, PodRecording, RecordingResult, SourceDelivery, SourceNews};

use super::{
    cluster::PodNews,
    executor::PodCgroups,
    node_resources::NodeResources,
    objects::ManifestObjects,
    parts::{AgentParts, AgentTools, StateOwners},
    pods::PodRegistry,
    ring::{self, LoopHistory, RecordedEffect},
};
use crate::{
    api::{MonoTime, PodUid},
    logic::{backoff::BackoffRecord, mux::PodSource, pod_table::PodTableEffect as TableEffect},
    runtime::RuntimeService,
};

/// The deciding side. The loop alone owns it; whoever wants to know something of it asks (see [`AgentEvent::Ask`]).
pub(super) struct Agent {
    /// All pods.
    pods: PodRegistry,
    /// Last view of the runtime.
    view: RuntimeView,
    /// Last word of each source.
    sources: PodSources,
    /// ConfigMaps and Secrets of the manifest directory, as last read.
    objects: Rc<ManifestObjects>,
    /// Latest events and effects.
    ring: LoopHistory,
    /// Effects that are not started yet.
    effects: VecDeque<AgentEffect>,
    /// Calls that run.
    calls: RunningCalls,
    /// Progress of housekeeping.
    rounds: HousekeepingProgress,
    /// Progress of an end of the agent together with its pods.
    stop: StopProgress,
    /// Shortages of the node, and pods that make room.
    eviction: Eviction,
    /// Extended resources, and who holds them.
    resources: Box<dyn NodeResources>,
    tools: AgentTools,
    owners: StateOwners,
    asked: OutsideHandles,
    settings: AgentSettings,
}

/// Objects outside the loop that answer at once.
struct OutsideHandles {
    /// The runtime, for its name and its capabilities.
    runtime: Rc<dyn RuntimeService>,
    /// QoS cgroups, for their state.
    pod_cgroups: PodCgroups,
}

/// Settings of the configuration.
struct AgentSettings {
    /// Pods of a manifest directory are run.
    has_manifests: bool,
    /// Time between two reads of it.
    file_check: core::time::Duration,
}

impl Agent {
    /// An agent that knows of no pod. `relist`: where it asks for relists. `delays`: crash-loop delays of an agent before it.
    /// `resources`: extended resources of the node.
    pub(super) fn new(
        parts: &AgentParts,
        relist: Sender<MonoTime>,
        delays: Vec<BackoffRecord>,
        resources: Box<dyn NodeResources>,
    ) -> Self {
        let (cfg, tools) = (&parts.cfg, &parts.tools);
        let has_manifests = cfg.dirs.manifests.is_some();
        let file = has_manifests.then_some(PodSource::File);
        let api = parts.owners.cluster.is_some().then_some(PodSource::Api);
        let http = cfg.manifest_url.is_some().then_some(PodSource::Http);
        let sources: Vec<PodSource> = file.into_iter().chain(http).chain(api).collect();
        let now = tools.clock.now();
        // Delays need spreading, not secrecy.
        let seed = now.0 ^ tools.clock.wall_time().0.unsigned_abs();
        let mut pods = PodRegistry::new(cfg, seed);
        pods.restore_crash_loop_delays(delays, now);
        parts.owners.node.set_devices(resources.resource_amounts());
        Self {
            pods,
            view: RuntimeView::new(relist),
            sources: PodSources::new(&sources, now),
            objects: Rc::default(),
            ring: LoopHistory::default(),
            effects: VecDeque::new(),
            calls: RunningCalls::default(),
            rounds: HousekeepingProgress::default(),
            stop: StopProgress::new(cfg.shutdown.clone()),
            eviction: Eviction::new(&cfg.eviction, now),
            tools: tools.clone(),
            owners: parts.owners.clone(),
            resources,
            asked: OutsideHandles {
                runtime: Rc::clone(&parts.machine.runtime),
                pod_cgroups: parts.machine.pod_cgroups.clone(),
            },
            settings: AgentSettings {
                has_manifests,
                file_check: cfg.times.file_check,
            },
        }
    }

    /// Returns all pods.
    pub(super) const fn pods(&self) -> &PodRegistry {
        &self.pods
    }

    /// Returns true if the loop is to end.
    pub(super) const fn is_finished(&self) -> bool {
        self.stop.finished
    }

    /// Takes an event in. Its effects are fetched with `poll_effect`.
    pub(super) fn handle_event(&mut self, event: AgentEvent, now: MonoTime) {
        self.watch_clock(now);
        self.note_event(&event, now);
        match event {
            AgentEvent::Delivered(delivery) => self.on_delivered(delivery, now),
            AgentEvent::Recorded(recorded) => self.on_recorded(*recorded, now),
            AgentEvent::ManifestsRead => self.sources.note_manifest_read(now),
            AgentEvent::Settled(waiting) => self.note_waiting_records(waiting, now),
            AgentEvent::Shown(uid, shown) => {
                self.effects.push_back(AgentEffect::KeepShown(uid, shown));
            }
            AgentEvent::Loaded(uid, purpose, pod) => self.on_loaded(&uid, purpose, pod, now),
            AgentEvent::Searched(found) => self.on_searched(&found, now),
            AgentEvent::Resync(uids) => {
                for uid in uids {
                    self.pods.resync_worker(&uid, now);
                }
            }
            AgentEvent::ImagesArrived => self.on_images(),
            AgentEvent::Listed(listing) => self.on_listed(listing, now),
            AgentEvent::Inspected(inspection) => {
                let (view, times) = (&mut self.view, &self.tools.times);
                let happened =
                    times.with_history(|clock| view.take_inspection(inspection, clock, now));
                self.on_pleg_events(happened, now);
            }
            AgentEvent::Conditions(status) => self.view.take_runtime_status(*status, now),
            AgentEvent::Ask(question) => question(self),
            AgentEvent::Probed(probed) => self.on_probed(&probed, now),
            AgentEvent::Api(_) => {}
            AgentEvent::NodeRead(came) => self.sources.rereads.record_node_read(came, now),
            AgentEvent::Step(call, step) => self.on_step(call, step, now),
            AgentEvent::Done(handle, outcome) => {
                let was_idle = self.calls.end_call(handle, outcome);
                self.pods.on_done(handle, outcome, now);
                self.announce_pod_change();
                if was_idle {
                    // Each pod is synced every minute: nothing of it is left, and static pods are as before.
                    self.tools.heap.note_small_use();
                } else {
                    self.tools.heap.note_heap_use();
                    self.rounds.search_due = MonoTime(0);
                    self.tell_static_pods();
                }
            }
            AgentEvent::Housekeeping => {
                self.on_housekeeping(now);
                // A burst of calls leaves free pages all over the heap.
                let unpacked = self.owners.images.take_heap_used();
                if self.tools.heap.take_heap_use() || unpacked {
                    crate::sys::memory::trim_memory();
                }
            }
            AgentEvent::Cleaned => {
                self.rounds.cleaning = false;
                // After the last pod of a crowd nothing else would tell.
                self.tools.heap.note_heap_use();
                // What could not be removed is found again.
                self.rounds.search_due = MonoTime(0);
            }
            AgentEvent::Collected => self.pods.sweep_crash_loop_delays(now),
            AgentEvent::Command(AgentCommand::Stop { all, done }) => self.on_stop(all, done, now),
            AgentEvent::Command(AgentCommand::Shutdown { done }) => self.on_shutdown(done, now),
            AgentEvent::Command(AgentCommand::ShutdownCancelled) => self.on_shutdown_cancelled(),
            AgentEvent::Command(AgentCommand::Restart(uid)) => self.on_restart(&uid, now),
            AgentEvent::Command(AgentCommand::ImagesArrived) => self.on_images(),
            AgentEvent::MemoryBell => self.on_memory_bell(now),
            AgentEvent::Eviction(input) => self.on_eviction(*input, now),
            AgentEvent::Resources(news) => self.on_resources(news, now),
            AgentEvent::Terminate => self.finish_loop(),
        }
    }

    /// Wakes the pods that are due.
    pub(super) fn handle_timeout(&mut self, now: MonoTime) {
        if self.stop.when_idle {
            self.send_api_news(PodNews::EndOfAll);
        }
        self.pods.on_timeout(now);
        self.settle_records(now);
        self.advance_eviction(now);
        self.advance_rereads(now);
        self.advance_shutdown(now);
        self.advance_resources(now);
    }

    /// Shows the calls that run whether they are still wanted. Before anything else runs on this thread.
    pub(super) fn refresh_calls(&self) {
        self.calls.refresh_flags(self.pods.worker_table());
    }

    /// Instant at which [`Agent::handle_timeout`] has work.
    pub(super) fn next_timeout(&self) -> Option<MonoTime> {
        let pods = self.pods.worker_table().next_timeout();
        let others = [
            self.sources.next_timeout(),
            self.eviction.next_timeout(),
            self.stop.shutdown.next_timeout(),
            self.resources.next_timeout(),
            self.sources.rereads.next_timeout(),
        ];
        pods.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// The next thing to do.
    pub(super) fn poll_effect(&mut self, now: MonoTime) -> Option<AgentEffect> {
        if self.stop.finished {
            return None;
        }
        loop {
            if let Some(effect) = self.effects.pop_front() {
                self.note_effect(&effect, now);
                return Some(effect);
            }
            if !self.view.may_run_pods(now) {
                // Nothing is done to pods while the runtime cannot answer (LOOP-02, LOOP-03).
                self.answer_stop_late(now);
                return None;
            }
            let effect = self.pods.poll_effect(self.view.status_ages(), now);
            match effect {
                None => {
                    self.end_if_idle(now);
                    return None;
                }
                Some(TableEffect::Start(start)) => {
                    if let Some(uid) = self.pods.uid_of_handle(start.handle) {
                        self.record_effect(now, RecordedEffect::call_start(uid.as_str(), &start));
                        let cancel = self.calls.begin_call(&start);
                        return Some(AgentEffect::Start(start, uid, cancel));
                    }
                }
                Some(TableEffect::NeedStatus { handle, .. }) => {
                    let pod = self.uid_in_slot(handle);
                    self.record_effect(now, RecordedEffect::Relist { pod });
                    return Some(AgentEffect::Relist);
                }
                Some(TableEffect::StatusFailed(handle)) => {
                    let pod = self.uid_in_slot(handle);
                    self.record_effect(now, RecordedEffect::StatusFailed { pod });
                    self.record_status_failure(handle);
                }
                Some(TableEffect::Cancel(handle)) => {
                    let pod = self.uid_in_slot(handle);
                    self.record_effect(now, RecordedEffect::Cancel { pod });
                }
                Some(TableEffect::Stopped(handle)) => {
                    let pod = self.uid_in_slot(handle);
                    self.record_effect(now, RecordedEffect::Stopped { pod });
                    if let Some(uid) = self.pods.uid_of_handle(handle) {
                        self.on_stopped_for_eviction(uid, now);
                    }
                }
                Some(TableEffect::Gone { uid, restart, .. }) => {
                    let pod = ring::cut_text(uid.as_str());
                    self.record_effect(now, RecordedEffect::Gone { pod, restart });
                    self.on_pod_gone(&uid, restart);
                }
            }
        }
    }

    /// Tells the apiserver's side of pods, if there is one.
    fn send_api_news(&self, news: PodNews) {
        if let Some(cluster) = &self.owners.cluster {
            cluster.writer.take_pod_news(news);
        }
    }

    /// Wakes those who wait for a change: pods may run now that did not, or an end has moved on.
    fn announce_pod_change(&self) {
        self.send_api_news(PodNews::Pods);
    }

    /// Mirrors follow static pods and their ends.
    fn tell_static_pods(&self) {
        self.send_api_news(PodNews::StaticPods);
    }

    /// The apiserver has the pod, and nobody could read it yet: what there is of it is not nobody's.
    fn is_unread(&self, uid: &PodUid) -> bool {
        let cluster = self.owners.cluster.as_ref();
        cluster.is_some_and(|c| c.is_unread(uid))
    }

    /// Returns true if neither a source nor a worker nor the apiserver wants the pod any more.
    pub(super) fn is_orphaned(&self, uid: &PodUid) -> bool {
        self.pods.is_unclaimed(uid) && !self.is_unread(uid)
    }
}
