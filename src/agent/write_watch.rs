//! Tells of pods that write much to the disk of the root directory (WEAR-07). Only where the kernel counts it: control groups of
//! version 2. What was told is in the run dir, `pod-writes.json`, for the agents of this boot after this one.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    asker::AgentHandle,
    clock::{Clock, align_to_second},
    executor::PodCgroups,
    record::BootRecord,
    recorder::{EventRecorder, EventSeverity, EventSubject},
};
use crate::{
    cgroup::Cgroups,
    logic::pod_writes::{self, PodWriters, WRITES_MUCH},
    sys::{lane::Lane, proc},
};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(600);
/// Record of the bytes that pods have written: some hundred bytes for each.
const RECORD: BootRecord = BootRecord {
    name: "pod-writes.json",
    version: 1,
    max_bytes: 1 << 20,
    lost: "the record of what pods wrote in this boot is lost",
};

#[derive(Serialize, Deserialize)]
struct DiskWritersFile {
    writers: PodWriters,
}

/// See the module.
pub(super) struct WriteWatch {
    pub(super) cgroups: Arc<Cgroups>,
    pub(super) pod_cgroups: PodCgroups,
    pub(super) disk: Lane,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) asker: AgentHandle,
    pub(super) run_dir: PathBuf,
    pub(super) boot_id: String,
    /// Name and number of the disk.
    pub(super) on: (String, String),
}

impl WriteWatch {
    /// As long as the agent.
    pub(super) async fn watch_writes(self) {
        let mut writers = self.restore().await;
        // Bounded: by its pauses.
        loop {
            writers = self.check_writers(writers).await;
            let now = self.clock.now();
            self.clock
                .sleep_until(align_to_second(now + INTERVAL, now))
                .await;
        }
    }

    async fn restore(&self) -> PodWriters {
        let (run, boot_id) = (self.run_dir.clone(), self.boot_id.clone());
        let stored = self
            .disk
            .run_job(move || RECORD.recall_boot_record(&run, &boot_id));
        let stored: Option<DiskWritersFile> = stored.await;
        stored.map_or_else(PodWriters::default, |stored| stored.writers)
    }

    async fn check_writers(&self, mut writers: PodWriters) -> PodWriters {
        let groups = self.pod_cgroups.list_pod_cgroups().await;
        let (cgroups, run) = (Arc::clone(&self.cgroups), self.run_dir.clone());
        let (number, boot_id) = (self.on.1.clone(), self.boot_id.clone());
        let look = move || {
            let seen = groups.into_iter().filter_map(|(uid, path)| {
                let bytes = cgroups.read_written_bytes(&path, &number)?;
                Some((uid, bytes))
            });
            let seen: Vec<_> = seen.collect();
            let (much, is_new) = proc::uptime_s()
                .map(|up| writers.observe_writes(up, &seen))
                .unwrap_or_default();
            let stored = DiskWritersFile { writers };
            if is_new && let Err(e) = RECORD.write_boot_record(&run, &boot_id, &stored) {
                log::warn!("cannot store how much pods wrote: {e}");
            }
            (stored.writers, much)
        };
        let (writers, much) = self.disk.run_job(look).await;
        for uid in much {
            let of = uid.clone();
            let named = self.asker.ask_agent(move |agent| agent.pod_name(&of));
            let Some((namespace, name)) = named.await else {
                continue;
            };
            let about = EventSubject::whole_object(&uid, &namespace, &name);
            let message = pod_writes::heavy_writes_message(&self.on.0);
            self.recorder
                .record_event(about, EventSeverity::Warning, WRITES_MUCH, &message);
        }
        writers
    }
}
