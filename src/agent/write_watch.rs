//! Tells of pods that write much to the disk of the root directory (WEAR-07). Only where the kernel counts it: control groups of
//! version 2. What was told is in the run dir, `pod-writes.json`, for the agents of this boot after this one.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    asker::AgentHandle,
    clock::{Clock, in_step},
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
    lost: "what pods have written in this boot is forgotten",
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
    pub(super) async fn run(self) {
        let mut writers = self.restore().await;
        // Bounded: by its pauses.
        loop {
            writers = self.look(writers).await;
            let now = self.clock.now();
            self.clock.until(in_step(now + INTERVAL, now)).await;
        }
    }

    async fn restore(&self) -> PodWriters {
        let (run, boot_id) = (self.run_dir.clone(), self.boot_id.clone());
        let stored = self.disk.run(move || RECORD.recall(&run, &boot_id));
        let stored: Option<DiskWritersFile> = stored.await;
        stored.map_or_else(PodWriters::default, |stored| stored.writers)
    }

    async fn look(&self, mut writers: PodWriters) -> PodWriters {
        let groups = self.pod_cgroups.list().await;
        let (cgroups, run) = (Arc::clone(&self.cgroups), self.run_dir.clone());
        let (number, boot_id) = (self.on.1.clone(), self.boot_id.clone());
        let look = move || {
            let seen = groups.into_iter().filter_map(|(uid, path)| {
                let bytes = cgroups.written(&path, &number)?;
                Some((uid, bytes))
            });
            let seen: Vec<_> = seen.collect();
            let (much, is_new) = proc::uptime_s()
                .map(|up| writers.look(up, &seen))
                .unwrap_or_default();
            let stored = DiskWritersFile { writers };
            if is_new && let Err(e) = RECORD.write(&run, &boot_id, &stored) {
                log::warn!("cannot store what pods have written: {e}");
            }
            (stored.writers, much)
        };
        let (writers, much) = self.disk.run(look).await;
        for uid in much {
            let of = uid.clone();
            let named = self.asker.ask(move |agent| agent.name_of(&of));
            let Some((namespace, name)) = named.await else {
                continue;
            };
            let about = EventSubject::whole(&uid, &namespace, &name);
            let message = pod_writes::writes_much(&self.on.0);
            self.recorder
                .about(about, EventSeverity::Warning, WRITES_MUCH, &message);
        }
        writers
    }
}
