//! Changes of configured pods: a source has a pod, no longer has it, or has it differently.

use alloc::rc::Rc;

use super::{Agent, AgentEffect, ConfigOp, LoadPurpose};
use crate::{
    agent::{
        pod_store::PodStoreError, pods::PodConfigFacts, probes::UnshownProbeResult,
        recorder::EventSeverity, ring::RecordedEvent,
    },
    api::{MonoTime, Pod, PodStatus, PodUid, order::OrderExt as _},
    error::error_chain,
    logic::{
        admission::{self, AdmissionVerdict, Rejection},
        conditions,
        dispatch::{self, AdditionOrder, ProbeWrite, ReconcileOrder, RemovalOrder},
        mux::PodSource,
        pod_table::PodTableFull,
        pod_worker::{KillOptions, PodFacts, PodUpdate, UpdateKind},
        probe::ProbeResult,
        shutdown,
        status_update::ProbeChange,
    },
};

/// Waiting reasons that an arriving image may end.
const IMAGE_REASONS: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"];

impl Agent {
    /// Acts upon what a source has, whose pods are on disk.
    pub(super) fn on_pod_config(&mut self, source: PodSource, ops: Vec<ConfigOp>, now: MonoTime) {
        self.note_config(source, &ops, now);
        self.rounds.search_due = MonoTime(0);
        for mut op in ops {
            for pod in op.recorded_mut() {
                self.pods.note_arrival_end(&pod.metadata.uid);
            }
            match op {
                ConfigOp::Remove(uids) => {
                    uids.iter()
                        .for_each(|uid| self.remove_pod(source, uid, now));
                    self.effects.push_back(AgentEffect::ForgetOutcomes(uids));
                }
                ConfigOp::Add(pods) => {
                    for pod in pods {
                        self.set_config_in_line(source, &pod);
                        self.sources.early.push(pod);
                    }
                    self.take_in_early(now);
                }
                ConfigOp::Update(pods) => {
                    for pod in pods {
                        let pod = self.replace_early_pod(source, pod);
                        pod.iter().for_each(|pod| self.update_pod(source, pod, now));
                    }
                }
                ConfigOp::Reconcile(pods) => {
                    for pod in pods {
                        let pod = self.replace_early_pod(source, pod);
                        pod.iter().for_each(|pod| self.reconcile(source, pod, now));
                    }
                }
            }
        }
        self.sources.mark_handled(source);
        self.decide_resizes("pod_updated", now);
        self.announce_pod_change();
        self.tell_static_pods();
        if self.stop.when_idle {
            // Pods that came meanwhile are to end as well.
            self.kill_all_pods(now);
        }
    }

    /// `pod`, unless it waits to be taken in: then this is what waits from now on.
    fn replace_early_pod(&mut self, source: PodSource, pod: Pod) -> Option<Pod> {
        let uid = &pod.metadata.uid;
        let mut early = self.sources.early.iter();
        let Some(at) = early.position(|early| early.metadata.uid == *uid) else {
            return Some(pod);
        };
        self.set_config_in_line(source, &pod);
        self.sources.early[at] = pod;
        None
    }

    fn set_config_in_line(&mut self, source: PodSource, pod: &Pod) {
        let facts = PodConfigFacts {
            waits_in_line: true,
            ..PodConfigFacts::from_pod(source, pod)
        };
        self.pods.set_config(&pod.metadata.uid, facts);
    }

    /// Takes new pods in, once the runtime was listed: what runs was admitted before, and nobody who was refused then takes its
    /// place over a restart.
    pub(super) fn take_in_early(&mut self, now: MonoTime) {
        if !self.view.was_listed() {
            return;
        }
        let view = &self.view;
        let early = &mut self.sources.early;
        early.stable_sort_by_key(|pod| {
            let idle = view.is_pod_idle(&pod.metadata.uid);
            dispatch::addition_order(idle, pod.metadata.creation_timestamp)
        });
        early.reverse();
        while let Some(pod) = self.sources.early.pop() {
            self.pods.end_wait_in_line(&pod.metadata.uid);
            self.add_pod(pod, now);
        }
        // A crowd's list is not kept: it has whole pods.
        self.sources.early = Vec::new();
    }

    fn add_pod(&mut self, pod: Pod, now: MonoTime) {
        let uid = &pod.metadata.uid;
        let ends = self.pods.is_termination_requested(uid);
        let what = dispatch::on_addition(ends, pod.status.phase.is_terminal());
        if what == AdditionOrder::Admit && !self.admit_pod(&pod, now) {
            return;
        }
        self.create_pod_worker(&pod, now);
    }

    fn create_pod_worker(&mut self, pod: &Pod, now: MonoTime) {
        if self.stop.when_idle {
            return;
        }
        let idle = self.view.is_pod_idle(&pod.metadata.uid);
        let update =
            PodUpdate::new(UpdateKind::Create, PodFacts::from_pod(pod)).with_runtime_idle(idle);
        if idle {
            self.pods.note_pod_created(&pod.metadata.uid, now);
        }
        let taken = self.pods.update_worker(update, now);
        if let Err(e) = taken {
            self.report_table_full(pod, e);
        }
    }

    fn update_pod(&mut self, source: PodSource, pod: &Pod, now: MonoTime) {
        self.pods
            .set_config(&pod.metadata.uid, PodConfigFacts::from_pod(source, pod));
        if self.stop.when_idle {
            return;
        }
        let ends = pod.metadata.deletion_timestamp.is_some() || pod.status.phase.is_terminal();
        if ends {
            self.forget_held_back(&pod.metadata.uid);
        }
        if self.is_held_back(&pod.metadata.uid) {
            // Its record is read when it is judged: that is the newest.
            return;
        }
        if self.resources.is_waiting(&pod.metadata.uid) {
            let ends = pod.metadata.deletion_timestamp.is_some();
            if !ends && !self.admit_pod(pod, now) {
                return;
            }
            self.resources.forget_waiting(&pod.metadata.uid);
        }
        let idle = self.view.is_pod_idle(&pod.metadata.uid);
        let update =
            PodUpdate::new(UpdateKind::Update, PodFacts::from_pod(pod)).with_runtime_idle(idle);
        let taken = self.pods.update_worker(update, now);
        if let Err(e) = taken {
            self.report_table_full(pod, e);
        }
    }

    /// Only what the API shows of the pod has changed. Others may have ended it (OFF-04), or opened a gate (STAT-45).
    fn reconcile(&mut self, source: PodSource, pod: &Pod, now: MonoTime) {
        let uid = &pod.metadata.uid;
        let known = PodConfigFacts::from_pod(source, pod);
        let ended = known.api_phase_terminal;
        self.pods.set_config(uid, known);
        let told = |status: &PodStatus| {
            let gates_changed = conditions::gates_changed(pod, status);
            (status.phase.is_terminal(), gates_changed)
        };
        let (told, gates_changed) = self.pods.stored_status(uid).map(told).unwrap_or_default();
        match dispatch::on_reconcile(ended, told, gates_changed) {
            ReconcileOrder::Update => self.update_pod(source, pod, now),
            ReconcileOrder::Sync => self.pods.resync_worker(uid, now),
            ReconcileOrder::Nothing => {}
        }
    }

    fn remove_pod(&mut self, source: PodSource, uid: &PodUid, now: MonoTime) {
        let config = self.pods.remove_config(uid);
        self.sources.early.retain(|pod| pod.metadata.uid != *uid);
        self.resources.forget_waiting(uid);
        self.forget_held_back(uid);
        match dispatch::on_removal(self.sources.is_ready(source)) {
            RemovalOrder::Kill => self.kill_pod(uid, config, None, now),
            RemovalOrder::LeaveToHousekeeping => {
                log::debug!("uid={uid} removed before its source was ready")
            }
        }
    }

    /// Tells a pod's worker to end it. Without `config` it is ended as the runtime knows it.
    pub(super) fn kill_pod(
        &mut self,
        uid: &PodUid,
        config: Option<PodConfigFacts>,
        kill: Option<KillOptions>,
        now: MonoTime,
    ) {
        // It has a worker from now on, which must not be told that the pod begins.
        self.sources.early.retain(|pod| pod.metadata.uid != *uid);
        self.pods.end_wait_in_line(uid);
        self.forget_held_back(uid);
        let taken = match &config {
            Some(config) => {
                let facts = config.worker_facts(uid);
                let update = match kill {
                    Some(options) => PodUpdate::new_kill(facts, options),
                    None => PodUpdate::new(UpdateKind::Kill, facts),
                };
                // An agent before this one may have started it.
                let idle = self.view.is_pod_idle(uid);
                self.pods.update_worker(update.with_runtime_idle(idle), now)
            }
            None => {
                let Some((namespace, name)) = self.pod_name(uid) else {
                    return;
                };
                let update = PodUpdate::runtime_only(uid, &name, &namespace);
                self.pods.update_worker(update, now)
            }
        };
        if let Err(e) = taken {
            // If something of it runs, housekeeping finds it.
            log::warn!("uid={uid} cannot be ended: {e}");
        }
    }

    /// Ends a pod that a source still has, and starts it anew after that: as if its manifest had gone and come back.
    pub(super) fn on_restart(&mut self, uid: &PodUid, now: MonoTime) {
        let Some(config) = self.pods.config(uid).cloned() else {
            return;
        };
        self.kill_pod(uid, Some(config.clone()), None, now);
        let again = PodUpdate::new(UpdateKind::Create, config.worker_facts(uid));
        if let Err(e) = self.pods.update_worker(again, now) {
            log::warn!("uid={uid} cannot be restarted: {e}");
        }
    }

    /// A probe's word is shown at once, and acted upon (LOOP-18).
    pub(super) fn on_probed(&mut self, probed: &UnshownProbeResult, now: MonoTime) {
        let uid = &probed.uid;
        let is_config = self.pods.is_configured(uid);
        let success = probed.result == ProbeResult::Success;
        let (write, sync) = dispatch::on_probe(probed.kind, success, is_config);
        match write {
            Some(write) => {
                let change = match write {
                    ProbeWrite::Ready(ready) => ProbeChange::Ready(ready),
                    ProbeWrite::Started(started) => ProbeChange::Started(started),
                };
                let purpose = LoadPurpose::Show(probed.container_id.clone(), change);
                self.effects
                    .push_back(AgentEffect::Load(uid.clone(), purpose));
            }
            None if sync => self.pods.resync_worker(uid, now),
            None => {}
        }
    }

    /// A pod was read.
    pub(super) fn on_loaded(
        &mut self,
        uid: &PodUid,
        purpose: LoadPurpose,
        pod: Result<Rc<Pod>, PodStoreError>,
        now: MonoTime,
    ) {
        let pod = pod
            .inspect_err(|e| {
                self.tools
                    .complaints
                    .complain(&format!("uid={uid} {}", error_chain(e)))
            })
            .ok();
        match (purpose, pod) {
            (LoadPurpose::Create, Some(pod)) => {
                let is_wanted = self.pods.is_configured(uid) && !self.pods.has_worker(uid);
                // While it ended, or because it was refused, another pod may have got what it asks for.
                if is_wanted && !self.stop.when_idle && self.admit_pod(&pod, now) {
                    self.create_pod_worker(&pod, now);
                }
            }
            // Housekeeping finds it again.
            (LoadPurpose::Create, None) => {}
            (LoadPurpose::Show(container_id, change), pod) => {
                if let Some(pod) = pod {
                    self.status_generator()
                        .show_probe_change(&pod, &container_id, change);
                }
                self.pods.resync_worker(uid, now);
            }
            (LoadPurpose::Image, pod) => {
                if let Some(pod) = pod {
                    self.owners.images.forget_pull_delays(&pod);
                }
                self.pods.resync_worker(uid, now);
            }
            (LoadPurpose::Evict, pod) => self.on_chosen(uid, pod, now),
        }
    }

    /// Pods that use ConfigMaps or Secrets of the manifest directory are synced.
    pub(super) fn on_objects(&mut self, now: MonoTime) {
        self.ring.record_event(now, RecordedEvent::Objects);
        for uid in self.pods.configured_uids_where(|p| p.uses_objects) {
            self.pods.resync_worker(&uid, now);
        }
    }

    /// Ends the back-off of pulls whose image has arrived.
    pub(super) fn on_images(&mut self) {
        let waits = |status: &PodStatus| {
            let all = status
                .init_container_statuses
                .iter()
                .chain(&status.container_statuses);
            all.filter_map(|c| c.state.waiting.as_ref())
                .any(|w| IMAGE_REASONS.contains(&w.reason.as_str()))
        };
        let waiting = self.pods.uids_with_status(waits).into_iter();
        let load = |uid| AgentEffect::Load(uid, LoadPurpose::Image);
        self.effects.extend(waiting.map(load));
    }

    /// Creates a configured pod that the table does not hold.
    pub(super) fn create_again(&mut self, uid: &PodUid, drop_status: bool) {
        if self.stop.when_idle {
            return;
        }
        if drop_status {
            // What ended must not speak for what begins.
            self.pods.forget_status(uid);
        }
        let load = AgentEffect::Load(uid.clone(), LoadPurpose::Create);
        self.effects.push_back(load);
    }

    /// A pod's slot is free.
    pub(super) fn on_pod_gone(&mut self, uid: &PodUid, restart: bool) {
        self.pods.forget_start_failures(uid);
        if restart && self.pods.is_configured(uid) {
            self.create_again(uid, true);
        }
    }

    /// Asks admission and tells a refusal. Returns whether the pod may run now.
    fn admit_pod(&mut self, pod: &Pod, now: MonoTime) -> bool {
        let uid = &pod.metadata.uid;
        if pod.metadata.deletion_timestamp.is_some() {
            // It ends. Were it refused, nobody would ever say that nothing of it is left.
            return true;
        }
        if self.waits_for_verdict(uid) {
            return false;
        }
        let gone = self.take_room_makers(uid);
        let was_read = self.sources.rereads.release_pod(uid);
        let leaving = gone.as_deref().unwrap_or_default();
        let (uids, active) = self.pods.active_pods_except(uid, leaving);
        let node = &self.owners.node;
        let verdict = node.with_admission(|node| match &gone {
            // Nobody is made to go twice.
            Some(_) => admission::admit_pod(pod, node, &active)
                .map_or_else(AdmissionVerdict::Refuse, |()| AdmissionVerdict::Admit),
            None => admission::judge_admission(pod, node, &active),
        });
        let verdict = match verdict {
            AdmissionVerdict::Admit | AdmissionVerdict::Preempt { .. }
                if self.stop.shutdown.is_under_way() =>
            {
                let (reason, message) = shutdown::REFUSED;
                AdmissionVerdict::Refuse(Rejection {
                    reason: reason.into(),
                    message: message.into(),
                })
            }
            verdict => verdict,
        };
        let rejection = match verdict {
            AdmissionVerdict::Admit => return self.give_resources(pod, now),
            AdmissionVerdict::Preempt { victims, resource } => {
                let victims = victims.into_iter().map(|at| uids[at].clone()).collect();
                self.make_room_for(uid, victims, &resource, now);
                return false;
            }
            AdmissionVerdict::ReadNodeAgain(rejection) => {
                if !was_read && self.holds_for_node(uid, &rejection, now) {
                    return false;
                }
                rejection
            }
            AdmissionVerdict::Refuse(rejection) => rejection,
        };
        self.refuse_pod(pod, &rejection);
        false
    }

    /// The pod never runs.
    pub(super) fn refuse_pod(&mut self, pod: &Pod, rejection: &Rejection) {
        let counters = &self.tools.counters;
        counters.count_work(|c| c.count_rejection(rejection.metric_reason()));
        self.reject_pod(pod, &rejection.reason, &rejection.message);
    }

    fn report_table_full(&mut self, pod: &Pod, e: PodTableFull) {
        if pod.metadata.deletion_timestamp.is_some() {
            // It ends all the same: the next round of housekeeping finds it again.
            return;
        }
        let message = format!("Node didn't have enough resource: pods: {e}");
        self.reject_pod(pod, "OutOfpods", &message);
    }

    fn reject_pod(&mut self, pod: &Pod, reason: &str, message: &str) {
        let recorder = &self.tools.recorder;
        recorder.record_pod_event(pod, EventSeverity::Warning, reason, message);
        self.status_generator().reject_pod(pod, reason, message);
    }
}
