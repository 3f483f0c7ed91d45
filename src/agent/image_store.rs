//! The image store behind the runtime's and the local commands' backs: blocking work goes to the unpack lane.

use core::{ops::ControlFlow, time::Duration};
use std::{collections::BTreeSet, path::PathBuf};

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
    sync::chain,
};
use crate::{
    api::cri::{FsInfo, Image},
    image::{
        ImageError, ImageRecord, ImportOptions, Store,
        dropin::{Doorbell, DropIn, Report},
    },
    runtime::{
        Call, RuntimeError,
        runc::images::{Images, ResolvedImage},
    },
    server::http::Refusal,
    sys::{lane::Lane, memory},
};

/// The store as the direct backend sees it.
pub(super) struct Adapter {
    store: Store,
    unpack: Lane,
}

impl Adapter {
    pub(super) const fn new(store: Store, unpack: Lane) -> Self {
        Self { store, unpack }
    }
}

fn runtime_error(e: ImageError) -> RuntimeError {
    match e {
        ImageError::NotFound(what) => RuntimeError::NotFound(what),
        e => RuntimeError::Failed(chain(&e)),
    }
}

impl Images for Adapter {
    fn resolve(&self, reference: &str) -> Result<Option<ResolvedImage>, String> {
        let Some(record) = self.store.resolve(reference).map_err(|e| chain(&e))? else {
            return Ok(None);
        };
        let layers = self.store.layer_dirs(&record.id).unwrap_or_default();
        Ok(Some(ResolvedImage {
            id: record.id.clone(),
            reference: record.image_id().to_owned(),
            process: record.config.config.clone(),
            layers,
        }))
    }

    fn status(&self, reference: &str) -> Result<Option<Image>, String> {
        let found = self.store.resolve(reference).map_err(|e| chain(&e))?;
        Ok(found.map(|record| record.to_cri()))
    }

    fn list(&self) -> Vec<Image> {
        self.store
            .list()
            .iter()
            .map(|record| record.to_cri())
            .collect()
    }

    fn pull<'a>(&'a self, reference: &'a str) -> Call<'a, String> {
        Box::pin(async {
            self.store
                .pull(reference)
                .map(|record| record.id.clone())
                .map_err(runtime_error)
        })
    }

    fn remove<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> Call<'a, ()> {
        Box::pin(async {
            let (store, id) = (self.store.clone(), id.to_owned());
            let in_use: BTreeSet<String> = in_use.into_iter().collect();
            let removed = self.unpack.run(move || store.remove(&id, &in_use)).await;
            removed.map(drop).map_err(runtime_error)
        })
    }

    fn fs_info(&self) -> Call<'_, FsInfo> {
        Box::pin(async { self.store.fs_info().map_err(runtime_error) })
    }
}

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
) -> Result<Vec<String>, Refusal> {
    let mut options = ImportOptions::default();
    if !name.is_empty() {
        options.names = vec![name];
    }
    let store = store.clone();
    let imported = ctx
        .unpack
        .run(move || store.import_archive(&path, &options, &mut |_| ControlFlow::Continue(())))
        .await;
    let records = imported.map_err(|e| Refusal::bad(chain(&e)))?;
    memory::trim();
    Ok(records.iter().flat_map(|record| shown(record)).collect())
}

/// Ids of the images that instances were made from, dead ones included.
pub(super) fn in_use(ctx: &Ctx, store: &Store) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (_, status) in ctx.cache.borrow().iter() {
        for container in status.iter().flat_map(|pod| &pod.containers) {
            if let Ok(Some(record)) = store.resolve(&container.image_id) {
                used.insert(record.id.clone());
            }
        }
    }
    used
}

/// Removes what no container uses. Returns what went and how many bytes.
pub(super) async fn prune(ctx: &Ctx, store: &Store) -> Result<(Vec<String>, u64), Refusal> {
    let used = in_use(ctx, store);
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
