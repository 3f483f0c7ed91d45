//! Manifests: those of the directory, read on the disk lane, and those at a URL, on a lane of their own. Both are handed to
//! the loop.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    asker::AgentHandle,
    clock::{Clock, align_to_second},
    core::{AgentEvent, SourceNews},
    link_policy::LinkPolicy,
    pod_store::RETRY,
    views::{DeliveryResult, LoopEnded},
};
use crate::{
    api::MonoTime,
    logic::{object_fields, static_pod, validation},
    source::{ManifestDirPoller, ManifestUrl, Rules, SourceProblem, SourceReading, SourceSnapshot},
    sys::lane::Lane,
};

/// Rules for objects of a manifest.
pub(super) const RULES: Rules = Rules {
    pod: static_pod::prepare_static_pod,
    config_map: validation::validate_config_map,
    secret: validation::validate_secret,
    keys: object_fields::misspelt_keys,
};

/// Polls the manifest directory.
pub(super) struct ManifestPoller {
    pub(super) poller: ManifestDirPoller,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) disk: Lane,
    pub(super) events: Sender<AgentEvent>,
}

impl ManifestPoller {
    /// Until the loop is gone.
    pub(super) async fn poll_manifest_dir(mut self) {
        // Only the loop's end ends it.
        let _ = self.read_manifest_dir().await;
    }

    async fn read_manifest_dir(&mut self) -> Result<(), LoopEnded> {
        // When pods that could not be recorded are read again.
        let mut retry = MonoTime(u64::MAX);
        loop {
            let read = async { Some(self.poller.next_reading(&self.disk).await) };
            let again = async {
                self.clock.sleep_until(retry).await;
                None
            };
            match read.or(again).await {
                Some(SourceReading::Unchanged) => {
                    let told = self.events.send(AgentEvent::ManifestsRead).await;
                    told.map_err(|_| LoopEnded)?;
                }
                Some(SourceReading::Snapshot(snapshot)) => {
                    let taken = deliver_snapshot(snapshot, &self.events).await?;
                    if !taken.unknown.is_empty() {
                        self.poller.forget_reads();
                    }
                    if !taken.unrecorded.is_empty() {
                        retry = self.clock.now() + RETRY;
                    }
                    // Pods of a burst stood in memory whole; they live on disk from here on.
                    crate::sys::memory::trim_memory();
                }
                // No snapshot is no news: what runs goes on.
                Some(SourceReading::Failed(problem)) => log_manifest_problem(&problem),
                None => {
                    self.poller.forget_reads();
                    retry = MonoTime(u64::MAX);
                }
            }
        }
    }
}

/// Longest pause after a look at the URL that brought nothing: links come back.
const URL_RETRY: Duration = Duration::from_secs(60);

/// Looks at the URL.
pub(super) struct ManifestUrlPoller {
    pub(super) source: Arc<Mutex<ManifestUrl>>,
    /// Time between two looks, and the same where bytes cost money.
    pub(super) checks: [Duration; 2],
    /// Cost of the link.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) clock: Rc<dyn Clock>,
    /// Lane of its own: a look takes some seconds.
    pub(super) lane: Lane,
    pub(super) events: Sender<AgentEvent>,
}

impl ManifestUrlPoller {
    /// Until the loop is gone.
    pub(super) async fn poll_manifest_url(self) {
        // Only the loop's end ends it.
        let _ = self.read_manifest_url().await;
    }

    fn interval(&self) -> Duration {
        let [usual, metered] = self.checks;
        if self.link_policy.is_metered() {
            metered
        } else {
            usual
        }
    }

    async fn read_manifest_url(&self) -> Result<(), LoopEnded> {
        // Bounded: by its pauses.
        loop {
            let source = Arc::clone(&self.source);
            let look = move || {
                source
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .read_source()
            };
            let pause = match self.lane.run_job(look).await {
                SourceReading::Unchanged => self.interval(),
                SourceReading::Failed(problem) => {
                    log_manifest_problem(&problem);
                    self.interval().min(URL_RETRY)
                }
                SourceReading::Snapshot(snapshot) => self.deliver_url_snapshot(snapshot).await?,
            };
            let now = self.clock.now();
            self.clock
                .sleep_until(align_to_second(now + pause, now))
                .await;
        }
    }

    /// Hands a snapshot to the loop. Returns the time until the next look.
    async fn deliver_url_snapshot(&self, snapshot: SourceSnapshot) -> Result<Duration, LoopEnded> {
        snapshot.problems.iter().for_each(log_manifest_problem);
        let failed = snapshot.problems.iter().any(|problem| problem.fatal);
        let news = SourceNews::Url(snapshot.pods);
        let taken = AgentHandle::new(self.events.clone())
            .deliver_source_news(news)
            .await?;
        crate::sys::memory::trim_memory();
        if !taken.unrecorded.is_empty() || !taken.unknown.is_empty() {
            let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
            source.forget_reads();
            return Ok(self.interval().min(RETRY));
        }
        Ok(if failed {
            self.interval().min(URL_RETRY)
        } else {
            self.interval()
        })
    }
}

fn log_manifest_problem(problem: &SourceProblem) {
    if problem.new && problem.fatal {
        log::error!("{}: {}", problem.path.display(), problem.message);
    } else if problem.new {
        log::warn!("{}: {}", problem.path.display(), problem.message);
    }
}

/// Hands a snapshot to the loop; comes back when it is acted upon.
pub(super) async fn deliver_snapshot(
    snapshot: SourceSnapshot,
    events: &Sender<AgentEvent>,
) -> Result<DeliveryResult, LoopEnded> {
    snapshot.problems.iter().for_each(log_manifest_problem);
    let news = SourceNews::Manifests(Box::new(snapshot));
    AgentHandle::new(events.clone())
        .deliver_source_news(news)
        .await
}
