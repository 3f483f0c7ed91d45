//! The image directory: archives there are imported as they appear, and images that lists there name are pulled, one
//! after the other.

use alloc::rc::Rc;
use core::{pin::Pin, time::Duration};
use std::{io, ops::ControlFlow, path::PathBuf};

use smol::future::FutureExt as _;

use super::{
    owner::{AgentImages, with_default_tag},
    stock::shown_names,
};
use crate::{
    agent::link_policy::DeferredPull,
    api::{PodUid, link::PullUrgency},
    image::dropin::{DropInDoorbell, DropInReport, ListedReference, RETRY_FIRST},
    runtime::{RuntimeError, runc::store_images::StoreImages},
    sys::memory,
};

/// Time between two looks at the directory when no doorbell rings.
const INTERVAL: Duration = Duration::from_secs(20);

/// Time between two looks at a pull that waits for the link: the clock may have become right, and the window may be
/// open. No registry is asked for that.
const LINK_INTERVAL: Duration = Duration::from_secs(600);

/// A pull for a list, with the reference and its list.
type ListPull = Pin<Box<dyn Future<Output = (ListedReference, Result<String, RuntimeError>)>>>;

/// Watcher of the drop-in directory.
pub(in crate::agent) struct ImageDropInWatcher {
    /// Owner of the agent's images.
    pub(in crate::agent) images: Rc<AgentImages>,
    /// Store that takes the images.
    pub(in crate::agent) store: StoreImages,
    /// The directory.
    pub(in crate::agent) path: PathBuf,
    /// Set if changes of the directory are also waited for with the kernel's notices.
    pub(in crate::agent) doorbells: bool,
}

/// Event that woke the watcher.
enum DropInWakeReason {
    Tick,
    /// Errors: the doorbell is dead.
    Ring(io::Result<()>),
    Pulled(ListedReference, Result<String, RuntimeError>),
}

impl ImageDropInWatcher {
    /// Looks at the directory until `arrived`, which is called whenever images came, returns false.
    pub(in crate::agent) async fn watch_directory(self, arrived: impl AsyncFn() -> bool) {
        let clock = &self.images.clock;
        let mut drop_in = self.store.open_drop_in(self.path.clone()).await;
        let mut doorbell = None;
        let mut pull: Option<ListPull> = None;
        let mut reports = Vec::new();
        loop {
            if doorbell.is_none() && self.doorbells {
                // Without one the poll goes on; it is tried again at each.
                doorbell = DropInDoorbell::open(&self.path).ok();
            }
            let now = clock.now();
            let looked = drop_in.run_piece(move |drop_in| {
                drop_in.scan_directory(now, &mut |_| ControlFlow::Continue(()))
            });
            let (back, look) = looked.await;
            drop_in = back;
            reports.extend(look.reports);
            for report in &reports {
                if let DropInReport::Imported { images, .. } = report {
                    let ids: Vec<&str> = images.iter().map(|record| &*record.id).collect();
                    self.images.note_imported_images(&ids).await;
                }
            }
            if log_reports(&reports) {
                memory::trim_memory();
                if !arrived().await {
                    return;
                }
            }
            reports.clear();
            if pull.is_none()
                && let Some(wanted) = drop_in.get().next_due_pull(clock.now())
            {
                pull = Some(Box::pin(pull_for_list(Rc::clone(&self.images), wanted)));
            }
            let wait = look.again.unwrap_or(INTERVAL).min(INTERVAL);
            let tick = async {
                clock.sleep_until(clock.now() + wait).await;
                DropInWakeReason::Tick
            };
            let ring = async {
                match &doorbell {
                    Some(doorbell) => DropInWakeReason::Ring(doorbell.wait_for_change().await),
                    None => core::future::pending().await,
                }
            };
            let done = async {
                match &mut pull {
                    Some(pull) => {
                        let (wanted, result) = pull.await;
                        DropInWakeReason::Pulled(wanted, result)
                    }
                    None => core::future::pending().await,
                }
            };
            match done.or(ring).or(tick).await {
                DropInWakeReason::Tick | DropInWakeReason::Ring(Ok(())) => {}
                DropInWakeReason::Ring(Err(_)) => doorbell = None,
                DropInWakeReason::Pulled(wanted, Err(RuntimeError::Deferred(_))) => {
                    pull = None;
                    let waits = link_delay(&self.images, &wanted).await;
                    // If not, there are bytes again.
                    let after = waits.map_or(RETRY_FIRST, |deferred| deferred.after);
                    let until = clock.now() + after.min(LINK_INTERVAL);
                    let noted =
                        drop_in.run_piece(move |drop_in| drop_in.postpone_pull(wanted, until));
                    (drop_in, ()) = noted.await;
                }
                DropInWakeReason::Pulled(wanted, result) => {
                    pull = None;
                    let now = clock.now();
                    let noted = drop_in
                        .run_piece(move |drop_in| drop_in.record_pull_result(wanted, result, now));
                    let (back, report) = noted.await;
                    drop_in = back;
                    reports.extend(report);
                }
            }
        }
    }
}

async fn pull_for_list(
    images: Rc<AgentImages>,
    wanted: ListedReference,
) -> (ListedReference, Result<String, RuntimeError>) {
    if let Some(deferred) = link_delay(&images, &wanted).await {
        return (wanted, Err(RuntimeError::Deferred(deferred.says)));
    }
    log::info!("pulling image {} of {}", wanted.reference, wanted.file);
    let reference = with_default_tag(&wanted.reference);
    let pulled = images.pull_for_node(&reference, false).await;
    (wanted, pulled)
}

/// Reason why an image waits for the link, if it does. The reason is logged once.
async fn link_delay(images: &AgentImages, wanted: &ListedReference) -> Option<DeferredPull> {
    let reference = with_default_tag(&wanted.reference);
    // No pod's.
    let uid = PodUid::from("");
    let may = images.may_begin_by_link(&uid, &reference, PullUrgency::Normal);
    let deferred = may.await.err()?;
    if deferred.is_news {
        let ListedReference { file, reference } = wanted;
        log::info!(
            "image {reference} of {file} waits for the link: {}",
            deferred.says
        );
    }
    Some(deferred)
}

/// Logs the reports. Returns true if images arrived.
fn log_reports(reports: &[DropInReport]) -> bool {
    let mut arrived = false;
    for report in reports {
        match report {
            DropInReport::Imported { file, images } => {
                arrived = true;
                let names: Vec<String> = images
                    .iter()
                    .flat_map(|r| shown_names(&r.names, &r.id))
                    .collect();
                log::info!("image archive {file} imported: {}", names.join(", "));
            }
            DropInReport::Pulled { wanted, id } => {
                arrived = true;
                log::info!(
                    "image {} of {} is present: {id}",
                    wanted.reference,
                    wanted.file
                );
            }
            DropInReport::Failed {
                file,
                error,
                retried,
            } => {
                let next = if *retried {
                    "; the agent will try again"
                } else {
                    ""
                };
                log::error!("image directory: {file}: {error}{next}");
            }
        }
    }
    arrived
}
