//! The node runs short, or a pod has more than it may: what the rounds of `logic::eviction` come to (EVICT). This owner keeps
//! their state; whatever has to be looked at or thrown away is an effect.

use alloc::{collections::BTreeMap, rc::Rc};
use core::time::Duration;

use serde_json::{Map, Value};

use super::{Agent, AgentEffect, LoadPurpose};
use crate::{
    agent::{
        pods::PodConfigFacts,
        recorder::{EventSeverity, EventSubject},
    },
    api::{MonoTime, Pod, PodUid, order::GatherExt as _},
    config::EvictionConfig,
    logic::{
        eviction::{
            self, DiskLayout, EVICTED, EvictablePod, EvictionAction, EvictionInput,
            EvictionManager, EvictionTexts, EvictionVictim, IMMEDIATE_GRACE_S, MeasureScope,
            MetThreshold, PressureConditions, ReclaimTarget, StorageViolation,
        },
        mirror::PodFullName,
        pod_kind::SYSTEM_CRITICAL_PRIORITY,
        pod_worker::{KillOptions, StopStatus},
        preemption::{self, PREEMPTING, PodsWaitingForRoom},
        qos::{EPHEMERAL_STORAGE, MEMORY},
    },
};

/// A step of an eviction round; each ends with an [`EvictionInput`].
#[derive(Clone, Debug)]
pub(in crate::agent) enum EvictionWork {
    /// Look at everything.
    Observe,
    /// See which of these pods have more than they may; sorted.
    CheckLimits(Vec<PodUid>, DiskLayout),
    /// Throw away what is nobody's.
    Reclaim(&'static [ReclaimTarget]),
    /// Measure these pods.
    Measure(MeasureScope, Vec<EvictablePod>),
}

/// A pod that is to go as soon as its record is read.
enum EvictionChoice {
    Victim(EvictionVictim),
    Limited(StorageViolation),
}

impl EvictionChoice {
    const fn pod_uid(&self) -> &PodUid {
        match self {
            Self::Victim(victim) => &victim.uid,
            Self::Limited(violation) => &violation.uid,
        }
    }
}

/// See the module's words.
pub(super) struct Eviction {
    manager: EvictionManager,
    chosen: Vec<EvictionChoice>,
    /// Conditions that the Node was last given.
    told: PressureConditions,
    /// Static pods may go too.
    static_pods: bool,
    /// Critical pods that wait for room.
    room: PodsWaitingForRoom,
}

/// Pressure on the node, for people.
pub(in crate::agent) struct PressureView {
    /// Thresholds that are met.
    pub(in crate::agent) short: Vec<MetThreshold>,
    /// Pods that may be asked to go, as [`EvictionWork::Measure`] takes them.
    pub(in crate::agent) candidates: Vec<EvictablePod>,
    /// Names of the pods by UID.
    pub(in crate::agent) names: BTreeMap<PodUid, PodFullName>,
    /// On which file systems things are.
    pub(in crate::agent) layout: DiskLayout,
}

impl Eviction {
    /// Begins without a measurement.
    pub(super) fn new(cfg: &EvictionConfig, now: MonoTime) -> Self {
        Self {
            manager: EvictionManager::new(cfg.settings.clone(), now),
            chosen: Vec::new(),
            told: PressureConditions::default(),
            static_pods: cfg.static_pods,
            room: PodsWaitingForRoom::default(),
        }
    }

    /// Conditions of the node.
    pub(super) const fn pressure_conditions(&self) -> PressureConditions {
        self.manager.conditions()
    }

    /// Time that a condition holds after its cause was last seen.
    pub(super) const fn transition(&self) -> Duration {
        self.manager.transition()
    }

    /// Instant of the next work.
    pub(super) fn next_timeout(&self) -> Option<MonoTime> {
        let both = [self.manager.next_timeout(), self.room.next_timeout()];
        both.into_iter().flatten().min()
    }

    /// Returns true if the pod is never evicted.
    fn is_critical(&self, pod: &PodConfigFacts) -> bool {
        let rank = &pod.takes.rank;
        let by_priority = rank.priority.is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY);
        by_priority || (rank.critical && !self.static_pods)
    }
}

impl Agent {
    /// Time has passed, or something has happened to pods.
    pub(super) fn advance_eviction(&mut self, now: MonoTime) {
        let leaving: Vec<PodUid> = self
            .eviction
            .manager
            .pods_being_evicted()
            .cloned()
            .collect();
        for uid in leaving {
            let is_chosen = self.eviction.chosen.iter().any(|c| *c.pod_uid() == uid);
            if !is_chosen && self.pods.worker_table().should_pod_be_finished(&uid) {
                self.eviction
                    .manager
                    .handle_input(EvictionInput::Gone(uid), now);
            }
        }
        let due = self.eviction.manager.next_timeout();
        if due.is_some_and(|due| due <= now) {
            let limited = self.has_limited_pods();
            self.eviction.manager.handle_timeout(limited, now);
        }
        self.run_eviction_steps();
        let table = self.pods.worker_table();
        let runs = |uid: &PodUid| table.could_have_running_containers(uid);
        let mut ready = Vec::new();
        while let Some(uid) = self.eviction.room.poll_ready(runs, now) {
            ready.push(uid);
        }
        for uid in &ready {
            if self.pods.is_configured(uid) {
                self.create_again(uid, false);
            } else {
                self.eviction.room.take_victims(uid);
            }
        }
    }

    /// Returns true if pods that make room for this one have not stopped yet.
    pub(super) fn waits_for_room(&self, uid: &PodUid) -> bool {
        self.eviction.room.is_waiting(uid)
    }

    /// Returns true if the pod waits for room, or is about to be judged as if the pods that make room were gone.
    pub(super) fn holds_room(&self, uid: &PodUid) -> bool {
        self.eviction.room.is_waiting_or_granted(uid)
    }

    /// Takes the pods that made room for this one; `None` if no pod had to.
    pub(super) fn take_room_makers(&mut self, uid: &PodUid) -> Option<Vec<PodUid>> {
        self.eviction.room.take_victims(uid)
    }

    /// Ends `victims` so that a critical pod can run, which waits for that. `resource`: what is lacking.
    pub(super) fn make_room_for(
        &mut self,
        uid: &PodUid,
        victims: Vec<PodUid>,
        resource: &str,
        now: MonoTime,
    ) {
        let mut grace_s = 0;
        for victim in &victims {
            let Some(config) = self.pods.config(victim).cloned() else {
                continue;
            };
            grace_s = grace_s.max(config.id.spec_grace_s.unwrap_or(0));
            let about = pod_event_subject(victim, &config);
            let recorder = &self.tools.recorder;
            recorder.record_event(
                about,
                EventSeverity::Warning,
                PREEMPTING,
                preemption::MESSAGE,
            );
            log::info!("uid={victim} makes room for the critical pod uid={uid}");
            self.tools
                .counters
                .count_work(|c| c.eviction_counts().count_preemption(resource));
            let options = KillOptions {
                evict: true,
                status: Some(Box::new(preemption::preemption_stop_status())),
                ..KillOptions::default()
            };
            self.kill_pod(victim, Some(config), Some(options), now);
        }
        let room = &mut self.eviction.room;
        room.begin_wait(uid.clone(), victims, grace_s, now);
    }

    /// Memory may be short.
    pub(super) fn on_memory_bell(&mut self, now: MonoTime) {
        self.eviction.manager.handle_pressure_signal(now);
    }

    /// Handles the result of a step.
    pub(super) fn on_eviction(&mut self, mut input: EvictionInput, now: MonoTime) {
        if let EvictionInput::Observed(_, limited) = &mut input {
            *limited = self.has_limited_pods();
        }
        self.eviction.manager.handle_input(input, now);
        self.publish_pressure();
        self.run_eviction_steps();
    }

    /// Handles the stop of a pod that a round waited for.
    pub(super) fn on_stopped_for_eviction(&mut self, uid: PodUid, now: MonoTime) {
        self.on_eviction(EvictionInput::Stopped(uid), now);
    }

    /// Returns the pressure on the node.
    pub(in crate::agent) fn pressure_view(&self) -> PressureView {
        let mut candidates = self.eviction_candidates();
        candidates.retain(|pod| !pod.critical);
        let name = |pod: &EvictablePod| {
            let name = self.pods.config(&pod.uid)?.id.name.clone();
            Some((pod.uid.clone(), name))
        };
        PressureView {
            short: self.eviction.manager.met_thresholds(),
            names: candidates.iter().filter_map(name).gather_items(),
            candidates,
            layout: self.eviction.manager.layout(),
        }
    }

    fn has_limited_pods(&self) -> bool {
        self.limited_pods().next().is_some()
    }

    /// Active pods that have limits of their own on the node's disk.
    fn limited_pods(&self) -> impl Iterator<Item = &PodUid> {
        let limited = self.pods.active_pods().filter(|(uid, pod)| {
            pod.limits_storage && !self.eviction.is_critical(pod) && !self.is_evicted(uid)
        });
        limited.map(|(uid, _)| uid)
    }

    /// Returns true if the pod was told before to go.
    fn is_evicted(&self, uid: &PodUid) -> bool {
        self.pods.worker_table().should_pod_content_be_removed(uid)
    }

    /// Active pods that could be asked to go.
    fn eviction_candidates(&self) -> Vec<EvictablePod> {
        let active = self.pods.active_pods();
        let left = active.filter(|(uid, _)| !self.is_evicted(uid));
        left.map(|(uid, pod)| {
            let request = |name: &str| pod.takes.requests.get(name).copied().unwrap_or(0);
            EvictablePod {
                uid: uid.clone(),
                critical: self.eviction.is_critical(pod),
                priority: pod.takes.rank.priority.unwrap_or(0),
                memory_request: request(MEMORY),
                storage_request: request(EPHEMERAL_STORAGE),
                grace_s: pod.id.spec_grace_s,
                figures: None,
            }
        })
        .collect()
    }

    fn run_eviction_steps(&mut self) {
        while let Some(action) = self.eviction.manager.poll_action() {
            let work = match action {
                EvictionAction::Observe => EvictionWork::Observe,
                EvictionAction::CheckLimits => {
                    let uids = self.limited_pods().cloned().collect();
                    EvictionWork::CheckLimits(uids, self.eviction.manager.layout())
                }
                EvictionAction::Reclaim(what) => EvictionWork::Reclaim(what),
                EvictionAction::Measure(what) => {
                    EvictionWork::Measure(what, self.eviction_candidates())
                }
                EvictionAction::Tell(starved) => {
                    let message = format!("Attempting to reclaim {}", starved.name());
                    let recorder = &self.tools.recorder;
                    recorder.record_node_event(
                        EventSeverity::Warning,
                        "EvictionThresholdMet",
                        &message,
                    );
                    continue;
                }
                EvictionAction::Evict(victim) => {
                    self.choose_for_eviction(EvictionChoice::Victim(victim));
                    continue;
                }
                EvictionAction::EvictLimited(violation) => {
                    self.choose_for_eviction(EvictionChoice::Limited(violation));
                    continue;
                }
                EvictionAction::TellExceeded(uid) => {
                    self.record_limit_exceeded(&uid);
                    continue;
                }
            };
            self.effects.push_back(AgentEffect::Eviction(work));
        }
    }

    fn choose_for_eviction(&mut self, chosen: EvictionChoice) {
        let load = AgentEffect::Load(chosen.pod_uid().clone(), LoadPurpose::Evict);
        self.eviction.chosen.push(chosen);
        self.effects.push_back(load);
    }

    /// The record of a chosen pod was read, or cannot be: it goes all the same.
    pub(super) fn on_chosen(&mut self, uid: &PodUid, pod: Option<Rc<Pod>>, now: MonoTime) {
        let mut all = self.eviction.chosen.iter();
        let Some(at) = all.position(|chosen| chosen.pod_uid() == uid) else {
            return;
        };
        let chosen = self.eviction.chosen.swap_remove(at);
        let config = self.pods.active_config(uid).cloned();
        let status = self.pods.stored_status(uid);
        let has_ended = status.is_some_and(|status| status.phase.is_terminal());
        let config = config.filter(|config| !has_ended && !self.eviction.is_critical(config));
        let Some(config) = config else {
            // It has ended meanwhile, or is another.
            self.on_eviction(EvictionInput::Spared(uid.clone()), now);
            return;
        };
        let pod = pod.unwrap_or_default();
        let (words, grace_s, signal, disruption) = match chosen {
            EvictionChoice::Victim(victim) => {
                let (starved, quantities) =
                    (victim.signal.starved_resource(), victim.quantities.as_ref());
                let words =
                    eviction::eviction_texts(starved, &pod, quantities, victim.figures.as_ref());
                let counters = &self.tools.counters;
                for signal in &victim.short {
                    counters.count_work(|c| {
                        c.eviction_counts()
                            .observe_figures_age(signal.name(), victim.age)
                    });
                }
                (words, victim.grace_s, victim.signal.name(), true)
            }
            EvictionChoice::Limited(violation) => {
                let words = EvictionTexts {
                    message: violation.message,
                    annotations: Vec::new(),
                };
                (words, IMMEDIATE_GRACE_S, violation.signal, false)
            }
        };
        self.evict_pod(uid, config, words, grace_s, disruption, now);
        self.tools
            .counters
            .count_work(|c| c.eviction_counts().count_eviction(signal));
    }

    fn evict_pod(
        &mut self,
        uid: &PodUid,
        config: PodConfigFacts,
        words: EvictionTexts,
        grace_s: i64,
        disruption: bool,
        now: MonoTime,
    ) {
        let EvictionTexts {
            message,
            annotations,
        } = words;
        let annotations: Map<String, Value> = annotations
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .gather_items();
        let annotations = match annotations.is_empty() {
            true => String::new(),
            false => Value::Object(annotations).to_string(),
        };
        let about = EventSubject {
            annotations: &annotations,
            ..pod_event_subject(uid, &config)
        };
        let recorder = &self.tools.recorder;
        recorder.record_event(about, EventSeverity::Warning, EVICTED, &message);
        let message: Box<str> = message.into();
        let options = KillOptions {
            grace_s: Some(grace_s),
            evict: true,
            signal: true,
            status: Some(Box::new(StopStatus {
                reason: EVICTED.into(),
                disruption: disruption.then(|| message.clone()),
                message,
            })),
        };
        self.kill_pod(uid, Some(config), Some(options), now);
    }

    fn record_limit_exceeded(&self, uid: &PodUid) {
        let Some(config) = self.pods.config(uid) else {
            return;
        };
        self.tools.recorder.record_event(
            pod_event_subject(uid, config),
            EventSeverity::Warning,
            "ExceededGracePeriod",
            "Container runtime did not kill the pod within specified grace period.",
        );
    }

    /// Whoever admits pods, or tells of the node, knows what it is short of.
    fn publish_pressure(&mut self) {
        let now = self.eviction.pressure_conditions();
        if now == self.eviction.told {
            return;
        }
        self.eviction.told = now;
        let names: Vec<String> = now.condition_names().map(str::to_owned).collect();
        match names.as_slice() {
            [] => log::info!("the node is no longer short of anything"),
            names => log::warn!("the node is short: {}", names.join(", ")),
        }
        self.owners.node.set_pressure(names);
    }
}

fn pod_event_subject<'a>(uid: &'a PodUid, config: &'a PodConfigFacts) -> EventSubject<'a> {
    let name = &config.id.name;
    EventSubject::whole_object(uid, &name.namespace, &name.name)
}
