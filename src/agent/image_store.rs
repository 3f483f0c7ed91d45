//! The image store behind the runtime's back: imports, the drop-in directory, pruning. Blocking work goes to the unpack
//! lane.

use core::{ops::ControlFlow, time::Duration};
use std::{collections::BTreeSet, path::PathBuf};

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
    sync::chain,
};
use crate::{
    image::{
        ImageRecord, ImportOptions, Progress, Store,
        dropin::{Doorbell, DropIn, Report},
    },
    runtime::RuntimeError,
    server::http::Refusal,
    sys::memory,
};

/// References an image can be shown by: its names, else its id.
fn shown(record: &ImageRecord) -> Vec<String> {
    if record.names.is_empty() {
        vec![record.id.clone()]
    } else {
        record.names.clone()
    }
}

/// Imports an archive for a local command. Returns the references it brought.
pub(super) async fn import(
    ctx: &Ctx,
    store: &Store,
    path: PathBuf,
    name: String,
    steps: Option<Sender<serde_json::Value>>,
) -> Result<Vec<String>, Refusal> {
    let mut options = ImportOptions::default();
    if !name.is_empty() {
        options.names = vec![name];
    }
    let store = store.clone();
    let mut tick = move |progress: Progress| match &steps {
        Some(steps) if steps.is_closed() => ControlFlow::Break(()),
        Some(steps) => {
            // Full: the reader is slow, and the next step says all that this one does.
            let _ = steps.try_send(serde_json::json!({
                "layersDone": progress.layers_done,
                "layers": progress.layers,
                "bytes": progress.bytes,
            }));
            ControlFlow::Continue(())
        }
        None => ControlFlow::Continue(()),
    };
    let imported = ctx
        .unpack
        .run(move || store.import_archive(&path, &options, &mut tick))
        .await;
    let records = imported.map_err(|e| Refusal::bad(chain(&e)))?;
    memory::trim();
    Ok(records.iter().flat_map(|record| shown(record)).collect())
}

/// Ids of the images that instances were made from, dead ones included: as the runtime says now, for the cache may not
/// know yet what was made in the last second.
async fn in_use(ctx: &Ctx, store: &Store) -> Result<BTreeSet<String>, RuntimeError> {
    let listed = ctx.runtime.list_pods().await?;
    let mut used = BTreeSet::new();
    for container in listed.iter().flat_map(|pod| &pod.containers) {
        if let Ok(Some(record)) = store.resolve(&container.image_id) {
            used.insert(record.id.clone());
        }
    }
    Ok(used)
}

/// Removes what no container uses. Returns what went and how many bytes.
pub(super) async fn prune(ctx: &Ctx, store: &Store) -> Result<(Vec<String>, u64), Refusal> {
    let used = in_use(ctx, store)
        .await
        .map_err(|e| Refusal::new(500, e.to_string()))?;
    let store = store.clone();
    let pruned = ctx.unpack.run(move || store.prune(&used)).await;
    let (records, bytes) = pruned.map_err(|e| Refusal::new(500, chain(&e)))?;
    Ok((
        records.iter().flat_map(|record| shown(record)).collect(),
        bytes,
    ))
}

/// Time between two looks at the drop-in directory when no doorbell rings.
const DROP_IN_INTERVAL: Duration = Duration::from_secs(20);

/// Imports archives that are dropped into the image directory, as they appear.
pub(super) async fn poll_drop_in(ctx: Shared, store: Store, events: Sender<Event>) {
    let path = ctx.cfg.dirs.image_drop_in.clone();
    let mut drop_in = ctx
        .unpack
        .run({
            let path = path.clone();
            move || DropIn::open(store, path)
        })
        .await;
    let mut doorbell = None;
    loop {
        if doorbell.is_none() && ctx.cfg.doorbells {
            // Without one the poll goes on; it is tried again at each.
            doorbell = Doorbell::open(&path).ok();
        }
        let now = ctx.clock.now();
        let (back, look) = ctx
            .unpack
            .run(move || {
                let look = drop_in.look(now, &mut |_| ControlFlow::Continue(()));
                (drop_in, look)
            })
            .await;
        drop_in = back;
        let mut arrived = false;
        for report in &look.reports {
            match report {
                Report::Imported { file, images } => {
                    arrived = true;
                    let names: Vec<String> =
                        images.iter().flat_map(|record| shown(record)).collect();
                    log::info!("image archive {file} imported: {}", names.join(", "));
                }
                Report::Pulled { wanted, id } => {
                    log::info!("image {} of {} pulled: {id}", wanted.reference, wanted.file);
                }
                Report::Failed {
                    file,
                    error,
                    retried,
                } => {
                    let next = if *retried { "; it is tried again" } else { "" };
                    log::error!("image archive {file}: {error}{next}");
                }
            }
        }
        if arrived {
            memory::trim();
            if events.send(Event::ImagesArrived).await.is_err() {
                return;
            }
        }
        let wait = look.again.unwrap_or(DROP_IN_INTERVAL).min(DROP_IN_INTERVAL);
        let tick = async {
            ctx.clock.until(ctx.clock.now() + wait).await;
            Ok(())
        };
        let ring = async {
            match &doorbell {
                Some(doorbell) => doorbell.ring().await,
                None => core::future::pending().await,
            }
        };
        if tick.or(ring).await.is_err() {
            doorbell = None;
        }
    }
}
