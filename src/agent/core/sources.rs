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
        outcome::Recalled,
        pod_store::RETRY,
        views::{Change, Taken},
    },
    api::{Mono, Pod, PodUid, received::Delivered},
    logic::{
        admission::Rereads,
        mux::{Mux, Op, Source},
    },
    source::Snapshot,
};

/// News of a source.
pub(in crate::agent) struct Delivery {
    /// What it says.
    pub(in crate::agent) news: SourceNews,
    /// Takes what became of it, once it was acted upon.
    pub(in crate::agent) answer: Sender<Taken>,
}

/// What a source says.
pub(in crate::agent) enum SourceNews {
    /// All that lies in the manifest directory.
    Manifests(Box<Snapshot>),
    /// All that is at the URL.
    Url(Vec<Delivered>),
    /// Of the apiserver.
    Api(Change),
}

/// What a delivery still wants once its pods are recorded.
pub(in crate::agent) struct Rest {
    /// Named as unchanged, and nobody knows them.
    pub(super) unknown: Vec<PodUid>,
    /// ConfigMaps or Secrets of the manifest directory changed.
    pub(super) objects_changed: bool,
    pub(super) answer: Sender<Taken>,
}

/// What sources have said.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) mux: Mux,
    /// Pods of the API that were found on disk at the start, until all were told.
    pub(super) on_disk: Vec<Pod>,
    /// New pods that came before the runtime was first listed: until then nobody knows who of them runs.
    pub(super) early: Vec<Pod>,
    /// New pods that wait until the Node was read once more.
    pub(super) rereads: Rereads,
    /// When the manifests were last read.
    pub(super) manifests_read: Option<Mono>,
    /// When records that wait for the disk are looked at; `None`: none waits, or they are looked at now.
    pub(super) settle_at: Option<Mono>,
}

impl Sources {
    /// Of which nothing has been heard yet. An agent before this one may have left records that wait for the disk.
    pub(super) fn new(sources: &[Source], now: Mono) -> Self {
        Self {
            mux: Mux::new(sources),
            on_disk: Vec::new(),
            early: Vec::new(),
            rereads: Rereads::default(),
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

    /// When [`Sources::take_settle`] has something to say.
    pub(super) const fn next_timeout(&self) -> Option<Mono> {
        self.settle_at
    }

    /// Records wait for a disk that cannot be written, or no longer do.
    pub(super) fn note_waiting(&mut self, waiting: bool, now: Mono) {
        self.settle_at = waiting.then(|| now + RETRY);
    }

    /// Whether it is time to look at records that wait. It is once.
    pub(super) fn take_settle(&mut self, now: Mono) -> bool {
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
pub(in crate::agent) struct Recording {
    pub(in crate::agent) source: Source,
    pub(in crate::agent) ops: Vec<Op>,
    /// What the loop does afterwards.
    pub(in crate::agent) rest: Rest,
}

/// What came of it.
pub(in crate::agent) struct Recorded {
    pub(in crate::agent) source: Source,
    /// Pods whose records are on disk.
    pub(in crate::agent) told: Vec<ConfigOp>,
    /// What came of some of these a boot ago.
    pub(in crate::agent) outcomes: BTreeMap<PodUid, Recalled>,
    /// Pods that could not be recorded, and why.
    pub(in crate::agent) failed: Vec<(Pod, String)>,
    /// Some records wait for the disk.
    pub(in crate::agent) waiting: bool,
    pub(in crate::agent) rest: Rest,
}
