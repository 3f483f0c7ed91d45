//! Started and ready containers, in the run dir, so that a new agent flips nothing (PROBE-15): `probes.json`, written
//! by rename when a probe changes its mind. The API knows them of its own pods only, and an agent may start without the
//! API. The file is small, and on tmpfs: it is written on the deciding thread.

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

/// Record of passed probes: room for 20 bytes of each of far more instances than there can be.
const RECORD: BootRecord = BootRecord {
    name: "probes.json",
    version: 1,
    max_bytes: 1 << 20,
    lost: "the record of ready containers is lost",
};

#[derive(Debug, Serialize, Deserialize)]
struct StoredProbeResults {
    /// Digests of instances.
    ready: Vec<u64>,
    started: Vec<u64>,
}

/// Writes the record. Failing costs no more than a pod that is not ready for a moment, so it is only logged.
pub(super) fn save_passed_probes(probes: &NodeProbes, run: &Path, complaints: &Complaints) {
    let workers = probes.workers.borrow();
    let of = |kind| {
        let named = workers.passed_instances().filter(move |(k, _)| *k == kind);
        named.map(|(_, instance)| instance).collect()
    };
    let stored = StoredProbeResults {
        ready: of(ProbeKind::Readiness),
        started: of(ProbeKind::Startup),
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
