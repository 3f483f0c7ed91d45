//! Pods of all sources on their way in: merged, recorded on disk, and only then acted upon. See `sources`.

use alloc::rc::Rc;

use super::{
    Agent,
    event::Effect,
    sources::{ConfigOp, Delivery, Recorded, Recording, Rest, SourceNews},
};
use crate::{
    agent::{
        objects::Objects,
        outcome::Recalled,
        recorder::Severity,
        ring::Heard,
        views::{Change, Taken},
    },
    api::{Mono, Pod, PodUid, received::ReceivedPod},
    logic::{
        mux::{Merged, Op, Source},
        status_update::finished_status,
    },
};

impl Agent {
    /// Compares what a source says with what it said before, and has recorded what differs.
    pub(super) fn on_delivered(&mut self, delivery: Delivery, now: Mono) {
        let Delivery { news, answer } = delivery;
        let wall = self.tools.clock.wall();
        let mux = &mut self.sources.mux;
        let mut objects_changed = false;
        let (source, merged) = match news {
            SourceNews::Manifests(snapshot) => {
                self.sources.manifests_read = Some(now);
                objects_changed = snapshot.objects_changed;
                // Before the pods: those that come along find their objects.
                let objects = Objects::new(snapshot.config_maps, snapshot.secrets);
                self.objects = Rc::new(objects);
                (Source::File, mux.merge(Source::File, snapshot.pods, wall))
            }
            SourceNews::Url(pods) => (Source::Http, mux.merge(Source::Http, pods, wall)),
            SourceNews::Api(change) => {
                let source = Source::Api;
                let merged = match change {
                    Change::Read(pod) => mux.amend(source, vec![pod], &[], wall),
                    Change::Gone(uid) => mux.amend(source, vec![], &[uid], wall),
                    Change::All(pods) => mux.merge(source, pods, wall),
                    Change::OnDisk(pod, outcome) => {
                        let taken = self.on_pod_on_disk(pod, outcome.map(|o| *o));
                        return drop(answer.try_send(taken));
                    }
                    Change::AllOnDisk => {
                        let pods = core::mem::take(&mut self.sources.on_disk);
                        self.on_config(source, vec![ConfigOp::Add(pods)], now);
                        return drop(answer.try_send(Taken::default()));
                    }
                };
                (source, merged)
            }
        };
        let Merged {
            ops,
            dropped,
            unknown,
        } = merged;
        dropped.iter().for_each(|pod| self.tell_dropped(pod));
        let rest = Rest {
            unknown,
            objects_changed,
            answer,
        };
        if ops.is_empty() {
            return self.took(rest, Vec::new(), now);
        }
        for uid in ops.iter().flat_map(of_op) {
            // Until its record is written, and the pod known: nothing of it may be removed meanwhile.
            self.pods.arrives(uid);
        }
        let recording = Recording { source, ops, rest };
        self.effects.push_back(Effect::Record(Box::new(recording)));
    }

    /// A pod of the API is on disk, from an agent before this one.
    fn on_pod_on_disk(&mut self, received: Box<ReceivedPod>, outcome: Option<Recalled>) -> Taken {
        let uid = received.pod.metadata.uid.clone();
        let wall = self.tools.clock.wall();
        let mux = &mut self.sources.mux;
        let merged = mux.restore(Source::Api, vec![received], wall);
        let mut added = merged.ops.into_iter().filter_map(|op| match op {
            Op::Add(mut pods) => pods.pop(),
            Op::Remove(_) | Op::Update(_) | Op::Delete(_) | Op::Reconcile(_) => None,
        });
        let Some(received) = added.next() else {
            return Taken {
                unrecorded: vec![uid],
                ..Taken::default()
            };
        };
        let mut pod = received.pod;
        if let Some(outcome) = outcome {
            self.recall(Source::Api, &mut pod, outcome);
        }
        self.pods.arrives(&uid);
        self.sources.on_disk.push(pod);
        Taken::default()
    }

    /// The pod came to its end a boot ago: that is the status it has. The record of a pod of the apiserver keeps what that
    /// shows, so its end is known to the status cache alone, from which it is told. Or some of its containers did, and it goes
    /// on.
    fn recall(&mut self, source: Source, pod: &mut Pod, recalled: Recalled) {
        let outcome = match recalled {
            // It is kept when the pod ends, before the last word on it, which may have been told already.
            Recalled::Ended(status) => finished_status(pod, &status, self.tools.clock.wall()),
            Recalled::GoesOn(containers) => {
                return self.pods.set_succeeded(&pod.metadata.uid, containers);
            }
        };
        let known = self.pods.status(&pod.metadata.uid).is_some();
        if source == Source::Api && !known {
            let _ = self
                .pods
                .set_status(pod, outcome.clone(), self.tools.clock.wall());
        }
        pod.status = outcome;
    }

    fn tell_dropped(&self, dropped: &ReceivedPod) {
        let what = "another pod has this name or uid already; this one is ignored";
        let message = match &*dropped.origin {
            "" => what.to_owned(),
            origin => format!("{origin}: {what}"),
        };
        let reason = "FailedValidation";
        self.tools
            .recorder
            .pod(&dropped.pod, Severity::Warning, reason, &message);
    }

    /// Pods of a source are on disk, but for some.
    pub(super) fn on_recorded(&mut self, recorded: Recorded, now: Mono) {
        let Recorded {
            source,
            mut told,
            mut outcomes,
            failed,
            waiting,
            rest,
        } = recorded;
        self.note_waiting(waiting, now);
        let mut unrecorded = Vec::new();
        for (pod, message) in failed {
            let uid = &pod.metadata.uid;
            self.pods.arrived(uid);
            // It comes again.
            self.sources.mux.forget(source, uid);
            self.ring.heard(now, Heard::unrecorded(uid));
            let reason = "FailedCreatePodRecord";
            self.tools
                .recorder
                .pod(&pod, Severity::Warning, reason, &message);
            unrecorded.push(pod.metadata.uid);
        }
        for pod in told.iter_mut().flat_map(ConfigOp::recorded_mut) {
            if let Some(outcome) = outcomes.remove(&pod.metadata.uid) {
                self.recall(source, pod, outcome);
            }
        }
        self.on_config(source, told, now);
        self.took(rest, unrecorded, now);
    }

    fn took(&mut self, rest: Rest, unrecorded: Vec<PodUid>, now: Mono) {
        if rest.objects_changed {
            self.on_objects(now);
        }
        let taken = Taken {
            unknown: rest.unknown,
            unrecorded,
        };
        // The source may have ended.
        let _ = rest.answer.try_send(taken);
    }

    /// Notes that records wait for a disk that cannot be written, or wait no more.
    pub(super) fn note_waiting(&mut self, waiting: bool, now: Mono) {
        if waiting != self.pods.records_wait() {
            self.ring.heard(now, Heard::RecordsWait(waiting));
        }
        self.pods.set_records_wait(waiting);
        self.sources.note_waiting(waiting, now);
    }

    /// Has records that wait moved to the disk, if it is time for it.
    pub(super) fn settle_records(&mut self, now: Mono) {
        if self.sources.take_settle(now) {
            self.effects.push_back(Effect::SettleRecords);
        }
    }
}

/// Pods of which a record is to be written.
fn of_op(op: &Op) -> impl Iterator<Item = &PodUid> {
    let pods = match op {
        Op::Remove(_) => [].as_slice(),
        Op::Add(pods) | Op::Update(pods) | Op::Delete(pods) | Op::Reconcile(pods) => pods,
    };
    pods.iter().map(|received| &received.pod.metadata.uid)
}
