//! Outcomes of pods, on disk beside their records: `<root>/pods/<uid>/outcome.json`, mode 0600.
//!
//! What ran is forgotten with the run directory when the machine is booted. A pod that is not to run for ever must not run
//! again because of that; when its manifest is removed its outcome goes too.

use std::{
    fs,
    io::{self, Read as _},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::pod_store::{Header, PodStore, StoreError};
use crate::{
    api::{PodStatus, PodUid, strict::from_json},
    logic::{mux::Source, outcome},
    sys::{file, proc},
};

/// Version of the file's form.
const VERSION: u32 = 1;
/// Bytes of a file: a status with as many containers and messages as a pod can have.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    v: u32,
    /// Boot in which it was written.
    boot_id: String,
    /// Of the object, as in the pod's record: another pod of the same uid has another outcome.
    digest: u64,
    status: PodStatus,
}

fn path(store: &PodStore, uid: &PodUid) -> PathBuf {
    store.dir(uid).join("outcome.json")
}

fn read(store: &PodStore, uid: &PodUid) -> Option<Kept> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path(store, uid)).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    // A damaged one counts as none: the pod runs once more.
    let kept: Kept = from_json(&bytes).ok()?;
    (kept.v == VERSION).then_some(kept)
}

/// Keeps a status that is the pod's outcome, or shows that it began. Durable: it is for after a power cut, and for a boot that
/// finds no apiserver to ask. A pod without a record has nothing to be kept for. Blocking.
pub(super) fn keep(store: &PodStore, uid: &PodUid, status: PodStatus) -> io::Result<()> {
    let terminal = status.phase.is_terminal();
    if let Some(kept) = read(store, uid)
        && (!terminal || kept.status.phase.is_terminal())
    {
        // That it began is known; and what has ended does not change.
        return Ok(());
    }
    let header = match store.read::<serde_json::Value>(uid) {
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(());
        }
        read => read.map_err(io::Error::other)?.0,
    };
    let kept = Kept {
        v: VERSION,
        boot_id: proc::boot_id()?,
        digest: identity(&header),
        status,
    };
    file::write_atomic(&path(store, uid), &serde_json::to_vec(&kept)?, 0o600, true)
}

/// The status that the pod with this record starts from, always a terminal one, if a boot ago it came to its end or began
/// and must not begin again. Within one boot the runtime knows better, but for a pod of the apiserver that has ended: its end
/// may have been told, and stays what it was. Blocking.
pub(super) fn recall(store: &PodStore, uid: &PodUid, header: &Header) -> Option<PodStatus> {
    let kept = read(store, uid)?;
    let told = header.source == Source::Api.as_str() && kept.status.phase.is_terminal();
    let booted = || proc::boot_id().is_ok_and(|boot| boot != kept.boot_id);
    let holds = kept.digest == identity(header) && (told || booted());
    holds.then(|| outcome::after_reboot(kept.status))
}

/// What tells a pod from another of the same uid. One of the apiserver is told by its uid alone: new labels do not make it
/// run again.
fn identity(header: &Header) -> u64 {
    if header.source == Source::Api.as_str() {
        0
    } else {
        header.digest
    }
}

/// Forgets it: the pod is no longer configured. If it comes back it runs.
pub(super) fn forget(store: &PodStore, uid: &PodUid) {
    match fs::remove_file(path(store, uid)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => log::warn!("uid={uid} outcome: {e}"),
        _ => {}
    }
}
