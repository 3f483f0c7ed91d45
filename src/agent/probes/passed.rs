//! Record of started and ready containers in the run dir, so that a new agent does not change their state (PROBE-15).
//! The file is `probes.json`. It is written by rename when the result of a probe changes. The API has this state only
//! for its own pods, and an agent may start without the API. The file is small and on tmpfs, so the deciding thread
//! writes it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::NodeProbes;
use crate::{
    agent::{
        complaints::Complaints,
        record::{BootRecord, read_boot_id},
    },
    logic::probe::ProbeKind,
};

/// Record of passed probes. An instance takes 20 bytes. The limit has room for far more instances than there can be.
const RECORD: BootRecord = BootRecord {
    name: "probes.json",
    version: 1,
    max_bytes: 1 << 20,
    lost: "the record of ready containers is lost",
};

#[derive(Debug, Serialize, Deserialize)]
struct StoredProbeResults {
    /// Digests of ready instances.
    ready: Vec<u64>,
    /// Digests of started instances.
    started: Vec<u64>,
}

/// Writes the record. A failure is only logged: it costs no more than a pod that is not ready for a moment.
pub(super) fn save_passed_probes(probes: &NodeProbes, run: &Path, complaints: &Complaints) {
    let workers = probes.workers.borrow();
    let instances_of = |kind| {
        let passed = workers.passed_instances().filter(move |(k, _)| *k == kind);
        passed.map(|(_, instance)| instance).collect()
    };
    let stored = StoredProbeResults {
        ready: instances_of(ProbeKind::Readiness),
        started: instances_of(ProbeKind::Startup),
    };
    if let Err(e) = RECORD.write_boot_record(run, &read_boot_id(), &stored) {
        complaints.complain(&format!("cannot store what is ready: {e}"));
    }
}

/// Reads the record that an earlier agent of this boot stored. An unreadable one is logged and forgotten.
pub(super) fn load_passed_probes(probes: &NodeProbes, run: &Path) {
    if let Some(StoredProbeResults { ready, started }) =
        RECORD.recall_boot_record(run, &read_boot_id())
    {
        let ready = ready.into_iter().map(|i| (ProbeKind::Readiness, i));
        let started = started.into_iter().map(|i| (ProbeKind::Startup, i));
        let all = ready.chain(started);
        probes.workers.borrow_mut().recall_passed(all);
    }
}
