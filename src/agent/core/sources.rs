//! Pods of all sources on their way in: merged, recorded on disk, and only then acted upon.
//!
//! ```text
//! manifests, PodPoller ──Event::Delivered──▶ Mux ──Effect::Record──▶ records.rs, on the disk lane
//!           ▲                                                                       │
//!           └──────────Taken────────── Agent::on_config ◀──Event::Recorded──────────┘
//! ```
//!
//! A source waits for its answer before it tells the next: what it says stays in order.

use alloc::collections::BTreeMap;

use smol::channel::Sender;

use crate::{
    agent::{
        outcome::EarlierOutcome,
        pod_store::RETRY,
        views::{ApiPodChange, DeliveryResult},
    },
    api::{MonoTime, Pod, PodUid, received::SnapshotEntry},
    logic::{
        admission::NodeRereads,
        mux::{PodSource, SourceMux, SourceOperation},
        resize::PodAllocation,
    },
    source::SourceSnapshot,
};

/// News of a source.
pub(in crate::agent) struct SourceDelivery {
    /// News of the source.
    pub(in crate::agent) news: SourceNews,
    /// Takes what became of it, once it was acted upon.
    pub(in crate::agent) answer: Sender<DeliveryResult>,
}

/// News of one source.
pub(in crate::agent) enum SourceNews {
    /// All that lies in the manifest directory.
    Manifests(Box<SourceSnapshot>),
    /// All that is at the URL.
    Url(Vec<SnapshotEntry>),
    /// A change at the apiserver.
    Api(ApiPodChange),
}

/// Rest of a delivery's work, done once its pods are recorded.
pub(in crate::agent) struct DeliveryFollowUp {
    /// Named as unchanged, and nobody knows them.
    pub(super) unknown: Vec<PodUid>,
    /// ConfigMaps or Secrets of the manifest directory changed.
    pub(super) objects_changed: bool,
    pub(super) answer: Sender<DeliveryResult>,
}

/// Last word of each source, and deliveries that are not recorded yet.
#[derive(Debug)]
pub(super) struct PodSources {
    pub(super) mux: SourceMux,
    /// Pods of the API that were found on disk at the start, until all were told.
    pub(super) on_disk: Vec<Pod>,
    /// New pods that came before the runtime was first listed: until then nobody knows who of them runs.
    pub(super) early: Vec<Pod>,
    /// New pods that wait until the Node was read once more.
    pub(super) rereads: NodeRereads,
    /// Instant of the last reading of the manifests.
    pub(super) manifests_read: Option<MonoTime>,
    /// Instant of the next look at records that wait for the disk; `None` if none waits or a look is under way.
    pub(super) settle_at: Option<MonoTime>,
}

impl PodSources {
    /// Begins without a report of any source. An agent before this one may have left records that wait for the disk.
    pub(super) fn new(sources: &[PodSource], now: MonoTime) -> Self {
        Self {
            mux: SourceMux::new(sources),
            on_disk: Vec::new(),
            early: Vec::new(),
            rereads: NodeRereads::default(),
            manifests_read: None,
            settle_at: Some(now),
        }
    }

    /// Returns true if every configured source has reported and its report was handled.
    pub(super) fn are_ready(&self) -> bool {
        self.mux.all_sources_ready()
    }

    /// Returns true if this source has reported and its report was handled.
    pub(super) fn is_ready(&self, source: PodSource) -> bool {
        self.mux.source_ready(source)
    }

    /// Notes that the last report of a source was handled.
    pub(super) fn mark_handled(&mut self, source: PodSource) {
        self.mux.mark_handled(source);
    }

    /// Instant of the last reading of the manifests.
    pub(super) const fn last_manifest_read(&self) -> Option<MonoTime> {
        self.manifests_read
    }

    /// Notes a reading of the manifests that found no change.
    pub(super) const fn note_manifest_read(&mut self, now: MonoTime) {
        self.manifests_read = Some(now);
    }

    /// Instant at which [`PodSources::take_settle_due`] returns true.
    pub(super) const fn next_timeout(&self) -> Option<MonoTime> {
        self.settle_at
    }

    /// Records wait for a disk that cannot be written, or no longer do.
    pub(super) fn note_waiting_records(&mut self, waiting: bool, now: MonoTime) {
        self.settle_at = waiting.then(|| now + RETRY);
    }

    /// Returns true, once, if it is time to look at records that wait.
    pub(super) fn take_settle_due(&mut self, now: MonoTime) -> bool {
        let due = self.settle_at.is_some_and(|at| at <= now);
        if due {
            self.settle_at = None;
        }
        due
    }
}

/// An operation on pods whose records are on disk.
pub(in crate::agent) enum ConfigOp {
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
    pub(in crate::agent) fn recorded_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        let pods = match self {
            Self::Remove(_) => [].as_mut_slice(),
            Self::Add(pods) | Self::Update(pods) | Self::Reconcile(pods) => pods,
        };
        pods.iter_mut()
    }
}

/// Pods of a source that are to be recorded.
pub(in crate::agent) struct PodRecording {
    pub(in crate::agent) source: PodSource,
    pub(in crate::agent) ops: Vec<SourceOperation>,
    /// Work of the loop after the recording.
    pub(in crate::agent) rest: DeliveryFollowUp,
}

/// Result of a recording.
pub(in crate::agent) struct RecordingResult {
    pub(in crate::agent) source: PodSource,
    /// Pods whose records are on disk.
    pub(in crate::agent) told: Vec<ConfigOp>,
    /// Outcomes of an earlier boot for some of these pods.
    pub(in crate::agent) outcomes: BTreeMap<PodUid, EarlierOutcome>,
    /// Resources that some of these pods were allocated, where the spec says others.
    pub(in crate::agent) allocations: BTreeMap<PodUid, PodAllocation>,
    /// Pods that could not be recorded, and why.
    pub(in crate::agent) failed: Vec<(Pod, String)>,
    /// Set if records wait for the disk.
    pub(in crate::agent) waiting: bool,
    pub(in crate::agent) rest: DeliveryFollowUp,
}
