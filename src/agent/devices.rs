//! Devices of the machine: looked at on the disk lane, every ten seconds and when the kernel rings; and the records of who
//! holds which, beside the pods' own: `<root>/pods/<uid>/devices.json`.
//!
//! None of it is there where no device is declared.

use alloc::{rc::Rc, sync::Arc};
use core::{future::pending, time::Duration};

use serde::{Deserialize, Serialize};
use smol::{channel::Sender, future::FutureExt as _};

use super::{
    clock::{Clock, in_step},
    core::Event,
    pod_store::PodStore,
};
use crate::{
    api::{PodError, PodUid, device::Seen, strict::from_json},
    device::{Doorbell, Machine},
    logic::devices::{Declared, Given, Held, given},
    sys::lane::Lane,
};

/// Version of the records' form.
const VERSION: u32 = 1;
/// Bytes of a record: what a pod of a hundred containers can hold.
const MAX_BYTES: u64 = 256 << 10;
/// Time between two looks.
const POLL: Duration = Duration::from_secs(10);
/// Once the kernel has said nothing for so long, udev has made its links and modes.
const QUIET: Duration = Duration::from_millis(200);
/// A machine whose kernel never is quiet is looked at all the same.
const MOST_QUIETS: usize = 10;

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

    async fn look(&self) -> Seen {
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

/// Tells the loop what there is, whenever it is something else.
pub(super) struct Watch {
    pub(super) devices: Devices,
    pub(super) clock: Rc<dyn Clock>,
    /// Whether the kernel may ring.
    pub(super) doorbell: bool,
    pub(super) events: Sender<Event>,
}

impl Watch {
    /// Until the loop is gone.
    pub(super) async fn run(self) {
        let doorbell = self.doorbell.then(Doorbell::lay);
        let mut doorbell = doorbell.and_then(|laid| {
            let told = laid.inspect_err(|e| {
                log::info!(
                    "the kernel does not tell of devices, they are looked at every ten seconds: {e}"
                );
            });
            told.ok()
        });
        let mut told: Option<Seen> = None;
        // Bounded: by its pauses.
        loop {
            let seen = self.devices.look().await;
            if told.as_ref() != Some(&seen) {
                let event = Event::Devices(Box::new(seen.clone()));
                if self.events.send(event).await.is_err() {
                    return;
                }
                told = Some(seen);
            }
            let now = self.clock.now();
            let poll = self.clock.until(in_step(now + POLL, now));
            let poll = async {
                poll.await;
                Ok(())
            };
            if let Err(e) = poll.or(rung(doorbell.as_ref(), &*self.clock)).await {
                log::info!("the kernel no longer tells of devices: {e}");
                doorbell = None;
            }
        }
    }
}

/// The kernel rang, and is quiet again.
async fn rung(doorbell: Option<&Doorbell>, clock: &dyn Clock) -> std::io::Result<()> {
    let Some(doorbell) = doorbell else {
        return pending().await;
    };
    doorbell.ring().await?;
    for _ in 0..MOST_QUIETS {
        let quiet = async {
            clock.until(clock.now() + QUIET).await;
            Ok(true)
        };
        let again = async { doorbell.ring().await.map(|()| false) };
        if quiet.or(again).await? {
            break;
        }
    }
    Ok(())
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
