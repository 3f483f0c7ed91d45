//! Reads the runtime for the loop, which decides by it: all its pods, those of them that differ, its conditions.

use alloc::rc::Rc;
use core::time::Duration;

use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{
    clock::{Clock, align_to_second},
    complaints::Complaints,
    core::{AgentEvent, RuntimeInspection, RuntimeListing},
    driver::PodDriver,
    vitals::WorkCounters,
};
use crate::{api::MonoTime, logic::runtime_cache::RuntimeStatusError, runtime::RuntimeService};

/// Time between the end of a relist and the next one (PLEG-01).
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// At the sound of doorbells relists follow each other no faster than this.
const RELIST_MIN_GAP: Duration = Duration::from_millis(3);
/// Time between reads of the runtime's conditions (LOOP-03).
const CONDITIONS_INTERVAL: Duration = Duration::from_secs(5);

/// The last relist that succeeded.
#[derive(Default)]
struct LastRelist {
    /// Begin of it.
    begun: Option<MonoTime>,
    /// Changes of the list before it, if the loop took the list as it was.
    changes: Option<u64>,
}

/// Relists the runtime, as fast as its doorbell rings and at least every second (PLEG-01).
pub(super) struct Relister {
    pub(super) driver: Rc<dyn PodDriver>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) counters: WorkCounters,
    /// The runtime's doorbell is heard.
    pub(super) doorbells: bool,
    /// Requests for relists; each says the earliest instant at which the relist must begin.
    pub(super) asked: Receiver<MonoTime>,
    pub(super) events: Sender<AgentEvent>,
}

impl Relister {
    /// Until the loop is gone.
    pub(super) async fn run_relists(self) {
        let mut last = LastRelist::default();
        while self.relist_once(&mut last).await.is_some() {
            let ended = self.clock.now();
            let tick = async {
                let due = align_to_second(ended + RELIST_INTERVAL, ended);
                self.clock.sleep_until(due).await;
                MonoTime(0)
            };
            let ring = async {
                if !self.doorbells {
                    core::future::pending::<()>().await;
                }
                self.driver.wait_for_change().await;
                MonoTime(0)
            };
            let ask = async { self.asked.recv().await.unwrap_or(MonoTime(0)) };
            let mut after = tick.or(ring).or(ask).await;
            // A doorbell goes on ringing and a question stays in its channel: neither is lost by waiting here.
            let gap = ended + RELIST_MIN_GAP;
            if self.clock.now() < gap {
                self.clock.sleep_until(gap).await;
            }
            // Whoever asked meanwhile is served by the relist that begins now.
            while let Ok(more) = self.asked.try_recv() {
                after = after.max(more);
            }
            // A listing of the same millisecond would not count as newer.
            let begin = after + Duration::from_millis(1);
            if self.clock.now() < begin {
                self.clock.sleep_until(begin).await;
            }
        }
    }

    /// Runs one relist; `None` if the loop is gone. At rest no pod is looked at, however many there are.
    async fn relist_once(&self, last: &mut LastRelist) -> Option<()> {
        // 0 is the time of what was never listed.
        let (begun, wall) = (self.clock.now().max(MonoTime(1)), self.clock.wall_time());
        let changes = self.driver.count_pod_changes().await;
        let is_same = changes.is_some() && changes == last.changes;
        let pods = match is_same {
            true => None,
            false => match self.driver.list_pods().await {
                Ok(pods) => Some(pods),
                Err(e) => {
                    // No listing is no news: whoever waits goes on waiting.
                    self.complaints.complain(&format!("relist: {e}"));
                    return Some(());
                }
            },
        };
        // Whatever the loop wants to read is listed once more.
        last.changes = None;
        let (inspect, differing) = smol::channel::bounded(1);
        let listing = RuntimeListing {
            begun,
            pods,
            inspect,
        };
        self.events.send(AgentEvent::Listed(listing)).await.ok()?;
        let differing = differing.recv().await;
        if differing.as_ref().is_ok_and(Vec::is_empty) {
            last.changes = changes;
        } else if let Ok(uids) = differing {
            let mut statuses = Vec::with_capacity(uids.len());
            for uid in uids {
                let status = self.driver.read_pod_status(&uid).await;
                statuses.push((
                    uid,
                    status.map_err(|e| RuntimeStatusError(e.to_string().into())),
                ));
            }
            let inspection = RuntimeInspection {
                begun,
                wall,
                statuses,
            };
            self.events
                .send(AgentEvent::Inspected(inspection))
                .await
                .ok()?;
        }
        let (took, gap) = (
            self.clock.now() - begun,
            last.begun.map(|last| begun - last),
        );
        self.counters
            .count_work(|c| c.count_relist(took, gap, wall));
        last.begun = Some(begun);
        Some(())
    }
}

/// Reads the runtime's conditions.
pub(super) struct RuntimeConditionReader {
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) events: Sender<AgentEvent>,
}

impl RuntimeConditionReader {
    /// Until the loop is gone.
    pub(super) async fn poll_conditions(self) {
        loop {
            match self.runtime.runtime_status().await {
                Ok(status) => {
                    let read = AgentEvent::Conditions(Box::new(status));
                    if self.events.send(read).await.is_err() {
                        return;
                    }
                }
                Err(e) => {
                    let complaint = format!("cannot read the runtime's status: {e}");
                    self.complaints.complain(&complaint);
                }
            }
            let now = self.clock.now();
            let next = align_to_second(now + CONDITIONS_INTERVAL, now);
            self.clock.sleep_until(next).await;
        }
    }
}
