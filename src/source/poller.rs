//! Poll and doorbell together: the manifest source as the agent's loop sees it.

use alloc::sync::Arc;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use smol::Timer;
use smol::future::or;

use super::{ManifestDir, ManifestDoorbell, SourceReading, Trigger};
use crate::api::MonoTime;
use crate::sys::clock;
use crate::sys::lane::Lane;

/// Shortest time between two reads for the doorbell: a burst of files causes a few reads, not one for each file.
pub const MIN_GAP: Duration = Duration::from_millis(50);
/// Time after which a file that may have been half written is looked at again.
pub const RECHECK: Duration = Duration::from_secs(1);

/// Reads a [`ManifestDir`] at the start, every interval, and when its doorbell rings. The reads run on a lane.
#[derive(Debug)]
pub struct ManifestDirPoller {
    dir: Arc<Mutex<ManifestDir>>,
    doorbell: Option<ManifestDoorbell>,
    interval: Duration,
    /// Ends of the last read and of the last poll.
    last: Option<(MonoTime, MonoTime)>,
    wants_recheck: bool,
    /// Set if the next read delivers every pod anew: the result of a read may be lost, or [`Self::forget_reads`] was called.
    lost: bool,
}

impl ManifestDirPoller {
    /// Makes a poller. `interval` is `fileCheckFrequency`. Without `doorbells` only the interval counts.
    #[must_use]
    pub fn new(dir: ManifestDir, interval: Duration, doorbells: bool) -> Self {
        Self {
            doorbell: doorbells.then(|| ManifestDoorbell::new(dir.path().into())),
            dir: Arc::new(Mutex::new(dir)),
            interval,
            last: None,
            wants_recheck: false,
            lost: false,
        }
    }

    /// Has the next read happen at once and deliver every pod anew, even if its file did not change.
    pub fn forget_reads(&mut self) {
        self.lost = true;
        self.last = None;
    }

    /// Waits for the next snapshot, failure or poll. Reads between two polls that find nothing new are not returned.
    ///
    /// Dropping the future is safe: after a lost result everything is read anew.
    pub async fn next_reading(&mut self, lane: &Lane) -> SourceReading {
        loop {
            let trigger = self.wait_for_trigger().await;
            if let Some(doorbell) = &mut self.doorbell
                && let Err(e) = doorbell.arm()
            {
                log::debug!("manifests: changes are not noticed before the next poll: {e}");
            }
            let dir = self.dir.clone();
            let lost = core::mem::replace(&mut self.lost, true);
            let (reading, recheck) = lane
                .run_job(move || {
                    let mut dir = dir.lock().unwrap_or_else(PoisonError::into_inner);
                    if lost {
                        dir.forget_reads();
                    }
                    let reading = dir.read_source(trigger);
                    (reading, dir.wants_recheck())
                })
                .await;
            self.lost = false;
            self.wants_recheck = recheck;
            let now = clock::mono_now();
            let polled = match (trigger, self.last) {
                (Trigger::Bell, Some((_, polled))) => polled,
                _ => now,
            };
            self.last = Some((now, polled));
            if trigger == Trigger::Poll || !matches!(reading, SourceReading::Unchanged) {
                return reading;
            }
        }
    }

    async fn wait_for_trigger(&mut self) -> Trigger {
        let Some((read, polled)) = self.last else {
            return Trigger::Poll;
        };
        let now = clock::mono_now();
        let until_poll = (polled + self.interval) - now;
        let quiet = async {
            Timer::after(if self.wants_recheck {
                until_poll.min(RECHECK)
            } else {
                until_poll
            })
            .await;
        };
        let rung = async {
            match &mut self.doorbell {
                Some(doorbell) => doorbell.wait_for_ring().await,
                None => core::future::pending().await,
            }
            // The gap counts from the last read: after a long time without reads there is no wait.
            Timer::after((read + MIN_GAP) - clock::mono_now()).await;
        };
        or(quiet, rung).await;
        if clock::mono_now() >= polled + self.interval {
            Trigger::Poll
        } else {
            Trigger::Bell
        }
    }
}
