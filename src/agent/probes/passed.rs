//! What has started and what is ready, in the run dir, so that a new agent flips nothing (PROBE-15): `probes.json`, written by
//! rename when a probe changes its mind. The API knows it of its own pods only, and an agent may start without it. Small, and
//! on tmpfs: it is written where it is decided.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::Probes;
use crate::{
    agent::{backoff_store::boot_id, complaints::Complaints},
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
    if let Err(e) = write(run, &stored) {
        complaints.complain(&format!("cannot store what is ready: {e}"));
    }
}

fn write(run: &Path, stored: &Stored) -> io::Result<()> {
    let staged = run.join(format!(".{FILE}.new"));
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&staged)?;
    let mut out = io::BufWriter::new(file);
    serde_json::to_writer(&mut out, stored)?;
    out.flush()?;
    fs::rename(&staged, run.join(FILE))
}

/// Takes back what an earlier agent of this boot stored. What cannot be read is told and forgotten.
pub(super) fn recall(probes: &Probes, run: &Path) {
    match read(run) {
        Ok(stored) if stored.v == VERSION && stored.boot_id == boot_id() => {
            let ready = stored.ready.into_iter().map(|i| (ProbeKind::Readiness, i));
            let started = stored.started.into_iter().map(|i| (ProbeKind::Startup, i));
            let all = ready.chain(started);
            probes.workers.borrow_mut().recall(all);
        }
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => log::warn!("what was ready is forgotten: {e}"),
    }
}

fn read(run: &Path) -> io::Result<Stored> {
    let mut bytes = Vec::new();
    File::open(run.join(FILE))?
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}
