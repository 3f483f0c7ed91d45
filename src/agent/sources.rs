//! Pods of all sources on their way in: merged, recorded on disk, and only then acted upon.
//!
//! ```text
//! manifest directory, PodPoller ──Event::Delivered──▶ Mux ──Effect::Record──▶ records.rs, on the disk lane
//!           ▲                                                                       │
//!           └──────────Taken────────── Agent::on_config ◀──Event::Recorded──────────┘
//! ```
//!
//! A source waits for its answer before it tells the next: what it says stays in order.

use alloc::rc::Rc;

use smol::channel::Sender;

use super::{
    core::{Agent, ConfigOp, Effect, Event},
    objects::Objects,
    pod_store::RETRY,
    recorder::Severity,
    records::{Recorded, Recording},
    views::{Change, LoopEnded, Taken},
};
use crate::{
    api::{Mono, Pod, PodStatus, PodUid, received::ReceivedPod},
    logic::mux::{Merged, Mux, Op, Source},
    source::Snapshot,
};

/// News of a source.
pub(super) struct Delivery {
    /// What it says.
    pub(super) news: SourceNews,
    /// Takes what became of it, once it was acted upon.
    pub(super) answer: Sender<Taken>,
}

/// What a source says.
pub(super) enum SourceNews {
    /// All that lies in the manifest directory.
    Manifests(Box<Snapshot>),
    /// Of the apiserver.
    Api(Change),
}

/// What a delivery still wants once its pods are recorded.
pub(super) struct Rest {
    /// Named as unchanged, and nobody knows them.
    unknown: Vec<PodUid>,
    /// ConfigMaps or Secrets of the manifest directory changed.
    objects_changed: bool,
    answer: Sender<Taken>,
}

/// Hands what a source says to the loop; comes back when it is acted upon.
pub(super) async fn hand_over(
    news: SourceNews,
    events: &Sender<Event>,
) -> Result<Taken, LoopEnded> {
    let (answer, taken) = smol::channel::bounded(1);
    let delivery = Delivery { news, answer };
    let told = events.send(Event::Delivered(delivery)).await;
    told.map_err(|_| LoopEnded)?;
    taken.recv().await.map_err(|_| LoopEnded)
}

/// What sources have said.
#[derive(Debug)]
pub(super) struct Sources {
    mux: Mux,
    /// Pods of the API that were found on disk at the start, until all were told.
    on_disk: Vec<Pod>,
    /// When the manifests were last read.
    manifests_read: Option<Mono>,
    /// When records that wait for the disk are looked at; `None`: none waits, or they are looked at now.
    settle_at: Option<Mono>,
}

impl Sources {
    /// Of which nothing has been heard yet. An agent before this one may have left records that wait for the disk.
    pub(super) fn new(sources: &[Source], now: Mono) -> Self {
        Self {
            mux: Mux::new(sources),
            on_disk: Vec::new(),
            manifests_read: None,
            settle_at: Some(now),
        }
    }

    /// Whether every configured source has reported and was handled.
    pub(super) fn are_ready(&self) -> bool {
        self.mux.all_sources_ready()
    }

    /// Whether this one has.
    pub(super) fn is_ready(&self, source: Source) -> bool {
        self.mux.source_ready(source)
    }

    /// What it said last was acted upon.
    pub(super) fn handled(&mut self, source: Source) {
        self.mux.mark_handled(source);
    }

    /// When the manifests were last read.
    pub(super) const fn manifests_read(&self) -> Option<Mono> {
        self.manifests_read
    }

    /// They were, and nothing has changed.
    pub(super) const fn read_manifests(&mut self, now: Mono) {
        self.manifests_read = Some(now);
    }

    /// When [`Agent::settle_records`] has something to do.
    pub(super) const fn next_timeout(&self) -> Option<Mono> {
        self.settle_at
    }
}

/// What sources say.
impl Agent {
    /// Compares what a source says with what it said before, and has recorded what differs.
    pub(super) fn on_delivered(&mut self, delivery: Delivery, now: Mono) {
        let Delivery { news, answer } = delivery;
        let wall = self.ctx.clock.wall();
        let mux = &mut self.sources.mux;
        let mut objects_changed = false;
        let (source, merged) = match news {
            SourceNews::Manifests(snapshot) => {
                self.sources.manifests_read = Some(now);
                objects_changed = snapshot.objects_changed;
                // Before the pods: those that come along find their objects.
                let objects = Objects::new(snapshot.config_maps, snapshot.secrets);
                self.ctx.objects.replace(Rc::new(objects));
                (Source::File, mux.merge(Source::File, snapshot.pods, wall))
            }
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
            return self.finish(rest, Vec::new(), now);
        }
        for uid in ops.iter().flat_map(of_op) {
            // Until its record is written, and the pod known: nothing of it may be removed meanwhile.
            self.pods().arrives(uid);
        }
        let recording = Recording { source, ops, rest };
        self.effects.push_back(Effect::Record(Box::new(recording)));
    }

    /// A pod of the API is on disk, from an agent before this one.
    fn on_pod_on_disk(&mut self, received: Box<ReceivedPod>, outcome: Option<PodStatus>) -> Taken {
        let uid = received.pod.metadata.uid.clone();
        let wall = self.ctx.clock.wall();
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
        self.pods().arrives(&uid);
        self.sources.on_disk.push(pod);
        Taken::default()
    }

    /// The pod came to its end a boot ago: that is the status it has. The record of a pod of the apiserver keeps what that
    /// shows, so its end is known to the status cache alone, from which it is told.
    fn recall(&self, source: Source, pod: &mut Pod, outcome: PodStatus) {
        let pods = self.pods();
        let known = pods.with_status(&pod.metadata.uid, |_| ()).is_some();
        if source == Source::Api && !known {
            let _ = pods.set_status(pod, outcome.clone(), self.ctx.clock.wall());
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
        self.ctx
            .pod_event(&dropped.pod, Severity::Warning, reason, &message);
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
            self.pods().arrived(uid);
            // It comes again.
            self.sources.mux.forget(source, uid);
            let reason = "FailedCreatePodRecord";
            self.ctx
                .pod_event(&pod, Severity::Warning, reason, &message);
            unrecorded.push(pod.metadata.uid);
        }
        for pod in told.iter_mut().flat_map(ConfigOp::recorded_mut) {
            if let Some(outcome) = outcomes.remove(&pod.metadata.uid) {
                self.recall(source, pod, outcome);
            }
        }
        self.on_config(source, told, now);
        self.finish(rest, unrecorded, now);
    }

    fn finish(&mut self, rest: Rest, unrecorded: Vec<PodUid>, now: Mono) {
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

    /// Whether records wait for a disk that cannot be written.
    pub(super) fn note_waiting(&mut self, waiting: bool, now: Mono) {
        self.pods().set_records_wait(waiting);
        self.sources.settle_at = waiting.then(|| now + RETRY);
    }

    /// Has records that wait moved to the disk, if it is time for it.
    pub(super) fn settle_records(&mut self, now: Mono) {
        if self.sources.settle_at.is_some_and(|at| at <= now) {
            self.sources.settle_at = None;
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
