//! Manifests: those of the directory, read on the disk lane, and those at a URL, on a lane of their own. Both are handed to
//! the loop.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    asker::Asker,
    clock::{Clock, in_step},
    core::{Event, SourceNews},
    link_policy::LinkPolicy,
    pod_store::RETRY,
    views::{LoopEnded, Taken},
};
use crate::{
    api::Mono,
    logic::{object_fields, static_pod, validation},
    source::{ManifestUrl, Poller, Problem, Reading, Rules, Snapshot},
    sys::lane::Lane,
};

/// Rules for objects of a manifest.
pub(super) const RULES: Rules = Rules {
    pod: static_pod::prepare,
    config_map: validation::config_map,
    secret: validation::secret,
    keys: object_fields::misspelt,
};

/// Polls the manifest directory.
pub(super) struct Manifests {
    pub(super) poller: Poller,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) disk: Lane,
    pub(super) events: Sender<Event>,
}

impl Manifests {
    /// Until the loop is gone.
    pub(super) async fn run(mut self) {
        // Only the loop's end ends it.
        let _ = self.poll().await;
    }

    async fn poll(&mut self) -> Result<(), LoopEnded> {
        // When pods that could not be recorded are read again.
        let mut retry = Mono(u64::MAX);
        loop {
            let read = async { Some(self.poller.next(&self.disk).await) };
            let again = async {
                self.clock.until(retry).await;
                None
            };
            match read.or(again).await {
                Some(Reading::Unchanged) => {
                    let told = self.events.send(Event::ManifestsRead).await;
                    told.map_err(|_| LoopEnded)?;
                }
                Some(Reading::Snapshot(snapshot)) => {
                    let taken = deliver(snapshot, &self.events).await?;
                    if !taken.unknown.is_empty() {
                        self.poller.forget();
                    }
                    if !taken.unrecorded.is_empty() {
                        retry = self.clock.now() + RETRY;
                    }
                    // Pods of a burst stood in memory whole; they live on disk from here on.
                    crate::sys::memory::trim();
                }
                // No snapshot is no news: what runs goes on.
                Some(Reading::Failed(problem)) => tell(&problem),
                None => {
                    self.poller.forget();
                    retry = Mono(u64::MAX);
                }
            }
        }
    }
}

/// Longest pause after a look at the URL that brought nothing: links come back.
const URL_RETRY: Duration = Duration::from_secs(60);

/// Looks at the URL.
pub(super) struct UrlManifests {
    pub(super) source: Arc<Mutex<ManifestUrl>>,
    /// Time between two looks, and the same where bytes cost money.
    pub(super) checks: [Duration; 2],
    /// Cost of the link.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) clock: Rc<dyn Clock>,
    /// Lane of its own: a look takes some seconds.
    pub(super) lane: Lane,
    pub(super) events: Sender<Event>,
}

impl UrlManifests {
    /// Until the loop is gone.
    pub(super) async fn run(self) {
        // Only the loop's end ends it.
        let _ = self.poll().await;
    }

    fn interval(&self) -> Duration {
        let [usual, metered] = self.checks;
        if self.link_policy.is_metered() {
            metered
        } else {
            usual
        }
    }

    async fn poll(&self) -> Result<(), LoopEnded> {
        // Bounded: by its pauses.
        loop {
            let source = Arc::clone(&self.source);
            let look = move || source.lock().unwrap_or_else(PoisonError::into_inner).read();
            let pause = match self.lane.run(look).await {
                Reading::Unchanged => self.interval(),
                Reading::Failed(problem) => {
                    tell(&problem);
                    self.interval().min(URL_RETRY)
                }
                Reading::Snapshot(snapshot) => self.deliver(snapshot).await?,
            };
            let now = self.clock.now();
            self.clock.until(in_step(now + pause, now)).await;
        }
    }

    /// Hands a snapshot to the loop. Returns the time until the next look.
    async fn deliver(&self, snapshot: Snapshot) -> Result<Duration, LoopEnded> {
        snapshot.problems.iter().for_each(tell);
        let failed = snapshot.problems.iter().any(|problem| problem.fatal);
        let news = SourceNews::Url(snapshot.pods);
        let taken = Asker::new(self.events.clone()).deliver(news).await?;
        crate::sys::memory::trim();
        if !taken.unrecorded.is_empty() || !taken.unknown.is_empty() {
            let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
            source.forget();
            return Ok(self.interval().min(RETRY));
        }
        Ok(if failed {
            self.interval().min(URL_RETRY)
        } else {
            self.interval()
        })
    }
}

fn tell(problem: &Problem) {
    if problem.new && problem.fatal {
        log::error!("{}: {}", problem.path.display(), problem.message);
    } else if problem.new {
        log::warn!("{}: {}", problem.path.display(), problem.message);
    }
}

/// Hands a snapshot to the loop; comes back when it is acted upon.
pub(super) async fn deliver(
    snapshot: Snapshot,
    events: &Sender<Event>,
) -> Result<Taken, LoopEnded> {
    snapshot.problems.iter().for_each(tell);
    let news = SourceNews::Manifests(Box::new(snapshot));
    Asker::new(events.clone()).deliver(news).await
}
