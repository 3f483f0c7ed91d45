//! Resizes of pods: what an edit asks for is taken in, decided, and told. Carrying them out is the work of syncs.

use alloc::rc::Rc;

use super::Agent;
use crate::{
    agent::{
        executor::{ResizeOrder, ResizeReport},
        recorder::{EventSeverity, EventSubject},
    },
    api::{MonoTime, Pod, PodUid},
    logic::{
        mux::PodSource,
        resize::{self, DEFERRED, INFEASIBLE, PodAllocation, PodResize, PodResources, ResizeEvent},
    },
};

impl Agent {
    /// Takes in what the newest spec of a pod asks for; from here on the pod has what it was allocated. `kept`: its
    /// allocation, if that is not what its record says.
    pub(super) fn take_resources(
        &mut self,
        source: PodSource,
        pod: &mut Pod,
        kept: Option<PodAllocation>,
    ) {
        let uid = pod.metadata.uid.clone();
        if source != PodSource::Api {
            return;
        }
        if self.pods.resize(&uid).is_none() {
            let Some(kept) = kept else {
                return;
            };
            self.pods.set_resize(&uid, Some(PodResize::new(kept)));
        }
        let settings = self.asked.pod_cgroups.settings();
        let counters = &self.tools.counters;
        self.pods.change_resize(&uid, |resize| {
            let wants = PodResources::of_pod(pod);
            counters.count_work(|c| c.resize_counts().count_edit(&resize.desired, &wants));
            resize.take_spec(pod, settings);
            resize.allocation.allocated.apply_to(pod);
        });
    }

    /// Decides about all resizes that wait for it. `trigger`: the reason to look, a kubelet's word. One that cannot be served never holds back the next (RSZ-20).
    pub(super) fn decide_resizes(&mut self, trigger: &'static str, now: MonoTime) {
        // Pods of before this agent take their share first (RSZ-27).
        let is_complete = self.sources.are_ready() && self.sources.early.is_empty();
        if !is_complete || !self.view.was_listed() || self.stop.when_idle {
            return;
        }
        for uid in self.pods.open_resizes() {
            let (Some(resize), Some(config)) = (self.pods.resize(&uid), self.pods.config(&uid))
            else {
                continue;
            };
            let had = &config.takes.requests;
            let (_, active) = self.pods.active_pods_except(&uid, &[]);
            let verdict = self
                .owners
                .node
                .with_admission(|node| resize.judge(had, &node.allocatable, &active));
            let wall = self.tools.clock.wall_time();
            let counters = &self.tools.counters;
            let decided = self.pods.change_resize(&uid, |resize| {
                let was = resize.pending_reason();
                let (is_change, event) = resize.apply_verdict(verdict, wall, now);
                let is_accepted = resize.desired == resize.allocation.allocated;
                counters.count_work(|c| {
                    let counts = c.resize_counts();
                    match resize.pending_reason() {
                        None if was == Some(DEFERRED) => counts.count_accepted_late(trigger),
                        Some(INFEASIBLE) => counts.count_infeasible(resize.infeasible_detail()),
                        _ => {}
                    }
                });
                (
                    is_change,
                    event,
                    is_accepted.then(|| resize.requests().clone()),
                )
            });
            let Some((is_change, event, accepted)) = decided else {
                continue;
            };
            if let Some(requests) = accepted {
                self.pods.set_requests(&uid, requests);
            }
            if let Some(event) = event {
                self.record_resize_event(&uid, &event);
            }
            if is_change {
                self.pods.resync_worker(&uid, now);
            }
        }
    }

    /// Returns the order to a sync about the resources of its pod. Only here, where no other sync of the pod runs and no record
    /// of it is being written, a resize is forgotten that is over.
    pub(super) fn order_resize(&mut self, pod: &Pod, now: MonoTime) -> Option<ResizeOrder> {
        let uid = &pod.metadata.uid;
        let can = self.asked.runtime.can_resize(uid);
        let is_arriving = self.pods.is_arriving(uid);
        let ordered = self.pods.change_resize(uid, |resize| {
            if !can {
                // Whoever runs it makes of its spec what it can.
                resize.allocation.note_all_done();
            }
            let may_step = resize.may_step(now);
            let order = ResizeOrder {
                // After a failure what was to restart has restarted, or is given its resources as it runs.
                restart: match may_step && !resize.has_failed() {
                    true => resize::containers_to_restart(pod, &resize.allocation),
                    false => Vec::new(),
                },
                may_step,
                ordered_at: now,
                allocation: resize.allocation.clone(),
            };
            (order, resize.is_settled() && !is_arriving)
        });
        let (order, is_over) = ordered?;
        if is_over {
            self.pods.set_resize(uid, None);
        }
        Some(order)
    }

    /// Takes in what a sync has brought about.
    pub(super) fn note_resized(&mut self, report: ResizeReport, now: MonoTime) {
        let ResizeReport {
            pod,
            runtime,
            allocation,
            begun_at,
            failure,
        } = report;
        let uid = &pod.metadata.uid;
        let has_failed = failure.is_some();
        if let Some(begun_at) = begun_at {
            let counters = &self.tools.counters;
            counters.count_work(|c| c.resize_counts().observe_pass(now - begun_at, !has_failed));
        }
        let event = self
            .pods
            .change_resize(uid, |resize| resize.note_actuated(allocation, failure, now));
        let Some(event) = event else {
            return;
        };
        if let Some(event) = &event {
            self.record_resize_event(uid, event);
        }
        let runtime = Rc::clone(&runtime);
        let mut statuses = self.status_generator();
        let status = statuses.generate_status(&pod, &runtime);
        statuses.store_status(&pod, status);
        if event.is_some() && !has_failed {
            // Nothing else may show that the pod has changed (RSZ-30).
            self.pods.resync_worker(uid, now);
        }
    }

    fn record_resize_event(&self, uid: &PodUid, event: &ResizeEvent) {
        let Some(config) = self.pods.config(uid) else {
            return;
        };
        let severity = match event.is_warning() {
            true => EventSeverity::Warning,
            false => EventSeverity::Normal,
        };
        let name = &config.id.name;
        let about = EventSubject::whole_object(uid, &name.namespace, &name.name);
        let recorder = &self.tools.recorder;
        recorder.record_event(about, severity, event.reason, &event.message);
    }
}
