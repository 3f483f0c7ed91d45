//! Pods of all sources on their way in: merged, recorded on disk, and only then acted upon. See `sources`.

use alloc::rc::Rc;

use super::{
    Agent,
    event::AgentEffect,
    sources::{
        ConfigOp, DeliveryFollowUp, PodRecording, RecordingResult, SourceDelivery, SourceNews,
    },
};
use crate::{
    agent::{
        objects::ManifestObjects,
        outcome::EarlierOutcome,
        recorder::EventSeverity,
        ring::RecordedEvent,
        views::{ApiPodChange, DeliveryResult},
    },
    api::{MonoTime, Pod, PodUid, received::ReceivedPod},
    logic::{
        mux::{MergeResult, PodSource, SourceOperation},
        resize::PodAllocation,
        status_update::finished_status,
    },
};

impl Agent {
    /// Compares what a source says with what it said before, and has recorded what differs.
    pub(super) fn on_delivered(&mut self, delivery: SourceDelivery, now: MonoTime) {
        let SourceDelivery { news, answer } = delivery;
        let wall = self.tools.clock.wall_time();
        let mux = &mut self.sources.mux;
        let mut objects_changed = false;
        let (source, merged) = match news {
            SourceNews::Manifests(snapshot) => {
                self.sources.manifests_read = Some(now);
                objects_changed = snapshot.objects_changed;
                // Before the pods: those that come along find their objects.
                let objects = ManifestObjects::new(snapshot.config_maps, snapshot.secrets);
                self.objects = Rc::new(objects);
                (
                    PodSource::File,
                    mux.merge_snapshot(PodSource::File, snapshot.pods, wall),
                )
            }
            SourceNews::Url(pods) => (
                PodSource::Http,
                mux.merge_snapshot(PodSource::Http, pods, wall),
            ),
            SourceNews::Api(change) => {
                let source = PodSource::Api;
                let merged = match change {
                    ApiPodChange::Read(pod) => mux.merge_partial(source, vec![pod], &[], wall),
                    ApiPodChange::Gone(uid) => mux.merge_partial(source, vec![], &[uid], wall),
                    ApiPodChange::All(pods) => mux.merge_snapshot(source, pods, wall),
                    ApiPodChange::OnDisk(pod, outcome, had) => {
                        let (outcome, had) = (outcome.map(|o| *o), had.map(|had| *had));
                        let taken = self.on_pod_on_disk(pod, outcome, had);
                        return drop(answer.try_send(taken));
                    }
                    ApiPodChange::AllOnDisk => {
                        let pods = core::mem::take(&mut self.sources.on_disk);
                        self.on_pod_config(source, vec![ConfigOp::Add(pods)], now);
                        return drop(answer.try_send(DeliveryResult::default()));
                    }
                };
                (source, merged)
            }
        };
        let MergeResult {
            ops,
            dropped,
            unknown,
        } = merged;
        dropped.iter().for_each(|pod| self.report_dropped_pod(pod));
        let rest = DeliveryFollowUp {
            unknown,
            objects_changed,
            answer,
        };
        if ops.is_empty() {
            return self.answer_delivery(rest, Vec::new(), now);
        }
        for uid in ops.iter().flat_map(uids_to_record) {
            // Until its record is written, and the pod known: nothing of it may be removed meanwhile.
            self.pods.note_arrival_start(uid);
        }
        let recording = PodRecording { source, ops, rest };
        self.effects
            .push_back(AgentEffect::Record(Box::new(recording)));
    }

    /// A pod of the API is on disk, from an agent before this one.
    fn on_pod_on_disk(
        &mut self,
        received: Box<ReceivedPod>,
        outcome: Option<EarlierOutcome>,
        allocation: Option<PodAllocation>,
    ) -> DeliveryResult {
        let uid = received.pod.metadata.uid.clone();
        let wall = self.tools.clock.wall_time();
        let mux = &mut self.sources.mux;
        let merged = mux.restore_recorded(PodSource::Api, vec![received], wall);
        let mut added = merged.ops.into_iter().filter_map(|op| match op {
            SourceOperation::Add(mut pods) => pods.pop(),
            SourceOperation::Remove(_)
            | SourceOperation::Update(_)
            | SourceOperation::Delete(_)
            | SourceOperation::Reconcile(_) => None,
        });
        let Some(received) = added.next() else {
            return DeliveryResult {
                unrecorded: vec![uid],
                ..DeliveryResult::default()
            };
        };
        let mut pod = received.pod;
        self.pods.note_arrival_start(&uid);
        self.take_resources(PodSource::Api, &mut pod, allocation);
        if let Some(outcome) = outcome {
            self.apply_earlier_outcome(PodSource::Api, &mut pod, outcome);
        }
        self.sources.on_disk.push(pod);
        DeliveryResult::default()
    }

    /// The pod came to its end a boot ago: that is the status it has. The record of a pod of the apiserver keeps what that
    /// shows, so its end is known to the status cache alone, from which it is told. Or some of its containers did, and it goes
    /// on.
    fn apply_earlier_outcome(
        &mut self,
        source: PodSource,
        pod: &mut Pod,
        recalled: EarlierOutcome,
    ) {
        let outcome = match recalled {
            // It is kept when the pod ends, before the last word on it, which may have been told already.
            EarlierOutcome::Ended(status) => {
                finished_status(pod, &status, self.tools.clock.wall_time())
            }
            EarlierOutcome::GoesOn(containers) => {
                return self
                    .pods
                    .set_succeeded_containers(&pod.metadata.uid, containers);
            }
        };
        let known = self.pods.stored_status(&pod.metadata.uid).is_some();
        if source == PodSource::Api && !known {
            let _ = self
                .pods
                .set_status(pod, outcome.clone(), self.tools.clock.wall_time());
        }
        pod.status = outcome;
    }

    fn report_dropped_pod(&self, dropped: &ReceivedPod) {
        let what = "another pod has this name or uid already; this one is ignored";
        let message = match &*dropped.origin {
            "" => what.to_owned(),
            origin => format!("{origin}: {what}"),
        };
        let reason = "FailedValidation";
        self.tools.recorder.record_pod_event(
            &dropped.pod,
            EventSeverity::Warning,
            reason,
            &message,
        );
    }

    /// Pods of a source are on disk, but for some.
    pub(super) fn on_recorded(&mut self, recorded: RecordingResult, now: MonoTime) {
        let RecordingResult {
            source,
            mut told,
            mut outcomes,
            mut allocations,
            failed,
            waiting,
            rest,
        } = recorded;
        self.note_waiting_records(waiting, now);
        let mut unrecorded = Vec::new();
        for (pod, message) in failed {
            let uid = &pod.metadata.uid;
            self.pods.note_arrival_end(uid);
            // It comes again.
            self.sources.mux.forget_pod(source, uid);
            self.ring
                .record_event(now, RecordedEvent::unrecorded_pod(uid));
            let reason = "FailedCreatePodRecord";
            self.tools
                .recorder
                .record_pod_event(&pod, EventSeverity::Warning, reason, &message);
            unrecorded.push(pod.metadata.uid);
        }
        for pod in told.iter_mut().flat_map(ConfigOp::recorded_mut) {
            let allocation = allocations.remove(&pod.metadata.uid);
            self.take_resources(source, pod, allocation);
            if let Some(outcome) = outcomes.remove(&pod.metadata.uid) {
                self.apply_earlier_outcome(source, pod, outcome);
            }
        }
        self.on_pod_config(source, told, now);
        self.answer_delivery(rest, unrecorded, now);
    }

    fn answer_delivery(&mut self, rest: DeliveryFollowUp, unrecorded: Vec<PodUid>, now: MonoTime) {
        if rest.objects_changed {
            self.on_objects(now);
        }
        let taken = DeliveryResult {
            unknown: rest.unknown,
            unrecorded,
        };
        // The source may have ended.
        let _ = rest.answer.try_send(taken);
    }

    /// Notes that records wait for a disk that cannot be written, or wait no more.
    pub(super) fn note_waiting_records(&mut self, waiting: bool, now: MonoTime) {
        if waiting != self.pods.has_waiting_records() {
            self.ring
                .record_event(now, RecordedEvent::RecordsWait(waiting));
        }
        self.pods.set_waiting_records(waiting);
        self.sources.note_waiting_records(waiting, now);
    }

    /// Has records that wait moved to the disk, if it is time for it.
    pub(super) fn settle_records(&mut self, now: MonoTime) {
        if self.sources.take_settle_due(now) {
            self.effects.push_back(AgentEffect::SettleRecords);
        }
    }
}

/// Pods of which a record is to be written.
fn uids_to_record(op: &SourceOperation) -> impl Iterator<Item = &PodUid> {
    let pods = match op {
        SourceOperation::Remove(_) => [].as_slice(),
        SourceOperation::Add(pods)
        | SourceOperation::Update(pods)
        | SourceOperation::Delete(pods)
        | SourceOperation::Reconcile(pods) => pods,
    };
    pods.iter().map(|received| &received.pod.metadata.uid)
}
