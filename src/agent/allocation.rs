//! Resources that pods were allocated, on disk beside their records: `<root>/pods/<uid>/resources.json`, mode 0600.
//!
//! Only pods of the apiserver whose resources were edited have the file. It is written before the record with the new
//! spec is, so that the next agent never takes for admitted what was only asked for; it goes once the record says the
//! same.

use std::io;

use serde::{Deserialize, Serialize};

use super::pod_store::{PodStore, PodStoreError};
use crate::{
    api::{PodUid, strict::from_json},
    logic::resize::{PodAllocation, PodResources},
    sys::crash,
};

/// Version of the file's form.
const VERSION: u32 = 1;
/// Bytes of a file: some times the resources of as many containers as a pod can have.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodAllocationFile {
    v: u32,
    #[serde(default)]
    allocated: PodResources,
    #[serde(default)]
    actuated: PodResources,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    in_doubt: Vec<PodResources>,
}

/// Reads what a pod was allocated; `None`: what its record says. Blocking.
pub(super) fn read_allocation(store: &PodStore, uid: &PodUid) -> Option<PodAllocation> {
    let text = store.read_resources(uid, MAX_BYTES)?;
    let kept = match from_json::<PodAllocationFile>(&text) {
        Ok(kept) if kept.v == VERSION => kept,
        Ok(kept) => {
            log::warn!("uid={uid} resources: version {} is not known", kept.v);
            return None;
        }
        // The pod is admitted anew with what its record says.
        Err(e) => {
            log::warn!("uid={uid} resources: {e}");
            return None;
        }
    };
    Some(PodAllocation {
        allocated: kept.allocated,
        actuated: kept.actuated,
        in_doubt: kept.in_doubt,
    })
}

/// Keeps what a pod was allocated, durable. Nothing is written if the disk has it already, and the file goes if the record
/// says the same. Blocking.
///
/// - Errors: it cannot be kept anywhere: nothing may be changed at the runtime.
pub(super) fn keep_allocation(
    store: &PodStore,
    uid: &PodUid,
    allocation: &PodAllocation,
) -> io::Result<()> {
    let recorded = store.read_recorded_pod(uid);
    let recorded = recorded.map(|pod| PodResources::of_pod(&pod));
    if recorded.is_ok_and(|recorded| allocation.is_settled_at(&recorded)) {
        // A file that says the same does no harm where it cannot go.
        let gone = store.forget_resources(uid);
        return gone.or_else(|_| write_allocation(store, uid, allocation));
    }
    if read_allocation(store, uid).as_ref() == Some(allocation) {
        return Ok(());
    }
    write_allocation(store, uid, allocation)
}

fn write_allocation(store: &PodStore, uid: &PodUid, allocation: &PodAllocation) -> io::Result<()> {
    let file = PodAllocationFile {
        v: VERSION,
        allocated: allocation.allocated.clone(),
        actuated: allocation.actuated.clone(),
        in_doubt: allocation.in_doubt.clone(),
    };
    crash::point("resize.due");
    store.keep_resources(uid, &serde_json::to_vec(&file)?)?;
    crash::point("resize.kept");
    Ok(())
}

/// Keeps what a pod of the apiserver has, before a spec with the resources `wanted` is recorded. Without a record, as after
/// a power cut or a move from another agent, it has those that its status has `shown`. Returns what it was allocated, if
/// that is not what the new spec says. Blocking.
///
/// - Errors: the record must not be written.
pub(super) fn keep_former_resources(
    store: &PodStore,
    uid: &PodUid,
    wanted: &PodResources,
    shown: &PodResources,
) -> Result<Option<PodAllocation>, PodStoreError> {
    if let Some(kept) = read_allocation(store, uid) {
        return Ok(Some(kept));
    }
    let recorded = store.read_recorded_pod(uid);
    let had = recorded.map_or_else(|_| shown.clone(), |old| PodResources::of_pod(&old));
    if had == *wanted {
        return Ok(None);
    }
    let allocation = PodAllocation::settled(had);
    write_allocation(store, uid, &allocation).map_err(|source| PodStoreError::Io {
        path: store.pod_dir(uid),
        source,
    })?;
    Ok(Some(allocation))
}
