//! What has started and what is ready, in the run dir, so that a new agent flips nothing (PROBE-15): `probes.json`, written by
//! rename when a probe changes its mind. The API knows it of its own pods only, and an agent may start without it. Small, and
//! on tmpfs: it is written where it is decided.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Probes;
use crate::{
    agent::{
        boot_file::{self, boot_id},
        complaints::Complaints,
    },
    logic::probe::ProbeKind,
};

/// Version of the file's form.
const VERSION: u32 = 1;
/// Name in the run dir.
const FILE: &str = "probes.json";
/// Bytes read of it: 20 for each of far more instances than there can be.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    v: u32,
    boot_id: String,
    /// Digests of instances.
    ready: Vec<u64>,
    started: Vec<u64>,
}

/// Writes it down. Failing costs no more than a pod that is not ready for a moment, so it is only told.
pub(super) fn save(probes: &Probes, run: &Path, complaints: &Complaints) {
    let workers = probes.workers.borrow();
    let of = |kind| {
        let named = workers.passed().filter(move |(k, _)| *k == kind);
        named.map(|(_, instance)| instance).collect()
    };
    let stored = Stored {
        v: VERSION,
        boot_id: boot_id(),
        ready: of(ProbeKind::Readiness),
        started: of(ProbeKind::Startup),
    };
    if let Err(e) = boot_file::write(run, FILE, &stored) {
        complaints.complain(&format!("cannot store what is ready: {e}"));
    }
}

/// Takes back what an earlier agent of this boot stored. What cannot be read is told and forgotten.
pub(super) fn recall(probes: &Probes, run: &Path) {
    match boot_file::read::<Stored>(run, FILE, MAX_BYTES) {
        Ok(Some(stored)) if stored.v == VERSION && stored.boot_id == boot_id() => {
            let ready = stored.ready.into_iter().map(|i| (ProbeKind::Readiness, i));
            let started = stored.started.into_iter().map(|i| (ProbeKind::Startup, i));
            let all = ready.chain(started);
            probes.workers.borrow_mut().recall(all);
        }
        Ok(_) => {}
        Err(e) => log::warn!("what was ready is forgotten: {e}"),
    }
}
