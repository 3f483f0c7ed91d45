//! Devices of the machine, looked at on the disk lane; and the records of who holds which, beside the pods' own:
//! `<root>/pods/<uid>/devices.json`.
//!
//! None of it is there where no device is declared.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use super::pod_store::PodStore;
use crate::{
    api::{PodError, PodUid, device::Seen, strict::from_json},
    device::Machine,
    logic::devices::{Declared, Given, Held, given},
    sys::lane::Lane,
};

/// Version of the records' form.
const VERSION: u32 = 1;
/// Bytes of a record: what a pod of a hundred containers can hold.
const MAX_BYTES: u64 = 256 << 10;

/// Looks at devices.
#[derive(Clone)]
pub(super) struct Devices {
    /// What is looked for.
    pub(super) declared: Arc<Declared>,
    /// Where.
    pub(super) machine: Arc<dyn Machine>,
    /// For looks: they block.
    pub(super) disk: Lane,
}

/// What there was before the first pod was admitted.
pub(super) struct Beginning {
    /// Devices.
    pub(super) seen: Seen,
    /// What pods hold since an agent before this one.
    pub(super) held: Vec<(PodUid, Vec<Held>)>,
}

impl Devices {
    /// What there is before the first pod is admitted (DEV-12, DEV-38). Blocking.
    pub(super) fn begin(&self, store: &PodStore) -> Beginning {
        let held = store.recorded().into_iter();
        Beginning {
            seen: self.machine.look(&*self.declared),
            held: held
                .filter_map(|uid| Some((recall(store, &uid)?, uid)))
                .map(|(held, uid)| (uid, held))
                .collect(),
        }
    }

    /// What there is now.
    pub(super) async fn look(&self) -> Seen {
        let (declared, machine) = (Arc::clone(&self.declared), Arc::clone(&self.machine));
        self.disk.run(move || machine.look(&*declared)).await
    }

    /// What a container gets for what its pod holds, of what is here now (DEV-41).
    pub(super) async fn given(&self, held: &[Held], container: &str) -> Result<Given, PodError> {
        if !held.iter().any(|held| *held.container == *container) {
            return Ok(Given::default());
        }
        given(&self.declared, &self.look().await, held, container)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    v: u32,
    devices: Vec<Held>,
}

/// Keeps what a pod holds, unless that is what is kept. Durable: no other pod may get it after a power cut. Blocking.
pub(super) fn keep(store: &PodStore, uid: &PodUid, held: &[Held]) -> std::io::Result<()> {
    if recall(store, uid).is_some_and(|kept| kept == held) {
        return Ok(());
    }
    let kept = Kept {
        v: VERSION,
        devices: held.to_vec(),
    };
    store.keep_devices(uid, &serde_json::to_vec(&kept)?)
}

/// A damaged record counts as none: what runs goes on, and what starts asks anew.
fn recall(store: &PodStore, uid: &PodUid) -> Option<Vec<Held>> {
    let text = store.devices(uid, MAX_BYTES)?;
    let kept: Kept = from_json(&text)
        .inspect_err(|e| log::warn!("uid={uid} its record of devices is unusable: {e}"))
        .ok()?;
    (kept.v == VERSION).then_some(kept.devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        // DEV-12
        let root = std::env::temp_dir().join(format!("picolet-held-{}", std::process::id()));
        let store = PodStore::new(&root, &root.join("run"), "boot");
        let uid = PodUid::from("a");
        std::fs::create_dir_all(store.dir(&uid)).expect("directory");
        assert_eq!(recall(&store, &uid), None);
        let held = |id: &str| {
            vec![Held {
                container: "c".into(),
                resource: "picolet/x".into(),
                ids: vec![id.into()],
                plain_init: false,
            }]
        };
        for id in ["1", "2", "2"] {
            keep(&store, &uid, &held(id)).expect("kept");
            assert_eq!(recall(&store, &uid), Some(held(id)));
        }
        assert_eq!(store.recorded(), core::slice::from_ref(&uid));
        let path = store.dir(&uid).join("devices.json");
        for text in ["", "{}", "{\"v\":2,\"devices\":[]}"] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(recall(&store, &uid), None, "{text}");
        }
        std::fs::remove_dir_all(root).expect("clean");
    }
}
