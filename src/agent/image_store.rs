//! The image store behind the runtime's back: imports, the drop-in directory, pruning. Blocking work goes to the unpack
//! lane.

use core::{ops::ControlFlow, pin::Pin, time::Duration};
use std::{collections::BTreeSet, io, path::PathBuf, rc::Rc};

use smol::{channel::Sender, future::FutureExt as _};

use super::{
    core::Event,
    ctx::{Ctx, Shared},
    image_access, images,
    sync::chain,
};
use crate::{
    api::cri::PodRuntimeStatus,
    image::{
        ImageRecord, ImportOptions, Progress, Puller, Repair, Store, Verifying,
        dropin::{Doorbell, DropIn, Report, Wanted},
        progress::Stage,
        registry::Keyring,
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
            let _ = steps.try_send(progress.to_json());
            ControlFlow::Continue(())
        }
        None => ControlFlow::Continue(()),
    };
    let imported = ctx
        .unpack
        .run(move || store.import_archive(&path, &options, &mut tick))
        .await;
    let records = imported.map_err(|e| Refusal::bad(chain(&e)))?;
    let ids: Vec<&str> = records.iter().map(|record| &*record.id).collect();
    image_access::imported(ctx, &ids).await;
    memory::trim();
    Ok(records.iter().flat_map(|record| shown(record)).collect())
}

/// Removes the image that `reference` names.
pub(super) async fn remove(ctx: &Ctx, reference: &str) -> Result<(), Refusal> {
    let internal = |e: RuntimeError| Refusal::new(500, e.to_string());
    let found = ctx
        .runtime
        .image_status(reference)
        .await
        .map_err(internal)?;
    let image =
        found.ok_or_else(|| Refusal::not_found(format!("images \"{reference}\" not found")))?;
    let removed = ctx.runtime.remove_image(&image.id).await;
    removed.map_err(|e| Refusal::new(409, e.to_string()))?;
    image_access::tidy(ctx).await;
    Ok(())
}

/// Ids of the images that instances were made from or mount, dead ones included: as the runtime says now, for the cache may
/// not know yet what was made in the last second.
pub(super) async fn in_use(ctx: &Ctx, store: &Store) -> Result<BTreeSet<String>, RuntimeError> {
    let listed = ctx.runtime.list_pods().await?;
    Ok(used_by(&listed, store))
}

fn used_by(pods: &[PodRuntimeStatus], store: &Store) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for container in pods.iter().flat_map(|pod| &pod.containers) {
        let volumes = container.volume_images.iter();
        for image in volumes.chain([&container.image_id]) {
            if let Ok(Some(record)) = store.resolve(image) {
                used.insert(record.id.clone());
            }
        }
    }
    used
}

/// Removes what no container uses, and layers on their way that nobody waits for. Returns what went and how many bytes.
pub(super) async fn prune(
    ctx: &Ctx,
    store: &Store,
    puller: &Puller,
) -> Result<(Vec<String>, u64), Refusal> {
    let used = in_use(ctx, store)
        .await
        .map_err(|e| Refusal::new(500, e.to_string()))?;
    let (store, puller) = (store.clone(), puller.clone());
    let pruned = ctx
        .unpack
        .run(move || (store.prune(&used), puller.clear(Duration::ZERO)))
        .await;
    let (records, mut bytes) = pruned.0.map_err(|e| Refusal::new(500, chain(&e)))?;
    bytes += pruned.1.map_err(|e| Refusal::new(500, e.to_string()))?;
    image_access::tidy(ctx).await;
    Ok((
        records.iter().flat_map(|record| shown(record)).collect(),
        bytes,
    ))
}

/// Checks every image, a layer at a time, so that whoever else waits for the lane comes in between. With `repair` what is
/// damaged and not used is removed.
pub(super) async fn verify(
    ctx: &Ctx,
    store: &Store,
    repair: bool,
    steps: Sender<serde_json::Value>,
) -> Result<serde_json::Value, Refusal> {
    let store_too = store.clone();
    let mut verifying = ctx.unpack.run(move || Verifying::new(store_too)).await;
    loop {
        let (done, layers, bytes) = verifying.progress();
        // Full: the reader is slow, and the next step says all that this one does.
        let step = Progress {
            stage: Stage::Verifying,
            layers_done: done,
            layers,
            bytes,
            bytes_total: 0,
        };
        let _ = steps.try_send(step.to_json());
        if steps.is_closed() {
            return Err(Refusal::bad("nobody waits for the answer"));
        }
        let (back, more) = ctx
            .unpack
            .run(move || {
                let more = verifying.step();
                (verifying, more)
            })
            .await;
        verifying = back;
        if !more {
            break;
        }
    }
    // Known only now: what was made meanwhile counts too.
    let used = in_use(ctx, store)
        .await
        .map_err(|e| Refusal::new(500, e.to_string()))?;
    let answer = ctx
        .unpack
        .run(move || {
            let found = verifying.found();
            let repairs: Vec<Option<Repair>> = found
                .damaged
                .iter()
                .map(|image| repair.then(|| verifying.repair(image, &used)))
                .collect();
            found.to_json(&repairs)
        })
        .await;
    if repair {
        image_access::tidy(ctx).await;
    }
    memory::trim();
    Ok(answer)
}

/// Time between two looks at the drop-in directory when no doorbell rings.
const DROP_IN_INTERVAL: Duration = Duration::from_secs(20);

/// A pull for a list, and what it is for.
type ListPull = Pin<Box<dyn Future<Output = (Wanted, Result<String, String>)>>>;

/// What woke the poller of the drop-in directory.
enum Woken {
    Tick,
    /// Errors: the doorbell is dead.
    Ring(io::Result<()>),
    Pulled(Wanted, Result<String, String>),
}

/// Imports archives that are dropped into the image directory, as they appear, and pulls what lists there name, one after
/// the other.
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
    let mut pull: Option<ListPull> = None;
    let mut reports = Vec::new();
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
        reports.extend(look.reports);
        for report in &reports {
            if let Report::Imported { images, .. } = report {
                let ids: Vec<&str> = images.iter().map(|record| &*record.id).collect();
                image_access::imported(&ctx, &ids).await;
            }
        }
        if tell(&reports) {
            memory::trim();
            if events.send(Event::ImagesArrived).await.is_err() {
                return;
            }
        }
        reports.clear();
        if pull.is_none()
            && let Some(wanted) = drop_in.next_pull(ctx.clock.now())
        {
            pull = Some(Box::pin(pull_for_list(Rc::clone(&ctx), wanted)));
        }
        let wait = look.again.unwrap_or(DROP_IN_INTERVAL).min(DROP_IN_INTERVAL);
        let tick = async {
            ctx.clock.until(ctx.clock.now() + wait).await;
            Woken::Tick
        };
        let ring = async {
            match &doorbell {
                Some(doorbell) => Woken::Ring(doorbell.ring().await),
                None => core::future::pending().await,
            }
        };
        let done = async {
            match &mut pull {
                Some(pull) => {
                    let (wanted, result) = pull.await;
                    Woken::Pulled(wanted, result)
                }
                None => core::future::pending().await,
            }
        };
        match done.or(ring).or(tick).await {
            Woken::Tick | Woken::Ring(Ok(())) => {}
            Woken::Ring(Err(_)) => doorbell = None,
            Woken::Pulled(wanted, result) => {
                pull = None;
                let now = ctx.clock.now();
                let (back, report) = ctx
                    .unpack
                    .run(move || {
                        let report = drop_in.pulled(wanted, result, now);
                        (drop_in, report)
                    })
                    .await;
                drop_in = back;
                reports.extend(report);
            }
        }
    }
}

async fn pull_for_list(ctx: Shared, wanted: Wanted) -> (Wanted, Result<String, String>) {
    log::info!("image {} of {} is pulled", wanted.reference, wanted.file);
    let reference = images::with_default_tag(&wanted.reference);
    let pulled = ctx.runtime.pull_image(&reference, Keyring::default()).await;
    // Unpacking used it.
    ctx.heap_used.set(true);
    let result = pulled.map(|image| image.id).map_err(|e| e.to_string());
    (wanted, result)
}

/// Logs what happened. Returns whether images arrived.
fn tell(reports: &[Report]) -> bool {
    let mut arrived = false;
    for report in reports {
        match report {
            Report::Imported { file, images } => {
                arrived = true;
                let names: Vec<String> = images.iter().flat_map(|record| shown(record)).collect();
                log::info!("image archive {file} imported: {}", names.join(", "));
            }
            Report::Pulled { wanted, id } => {
                arrived = true;
                log::info!(
                    "image {} of {} is there: {id}",
                    wanted.reference,
                    wanted.file
                );
            }
            Report::Failed {
                file,
                error,
                retried,
            } => {
                let next = if *retried { "; it is tried again" } else { "" };
                log::error!("image directory: {file}: {error}{next}");
            }
        }
    }
    arrived
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::cri::ContainerState,
        image::testing::{Scratch, Stream, docker_archive},
        logic::testing::instance,
    };

    #[test]
    fn what_dead_and_living_instances_are_made_of_and_mount_is_in_use() {
        // GC-11 IGC-02
        let temp = Scratch::new();
        let store = Store::open(&temp.join("store")).expect("store");
        let add = |name: &str| {
            let layer = Stream::new().file("name", name.as_bytes()).bytes();
            let archive = temp.join("archive.tar");
            std::fs::write(&archive, docker_archive(name, &[&layer])).expect("archive");
            let mut tick = |_| ControlFlow::Continue(());
            let images = store.import_archive(&archive, &ImportOptions::default(), &mut tick);
            images.expect("imported").remove(0).id.clone()
        };
        let [own, dead, volume, _free] = ["own:1", "dead:1", "volume:1", "free:1"].map(add);
        let mut running = instance("a", ContainerState::Running);
        running.image_id = own.clone();
        running.volume_images = vec![volume.clone(), "sha256:absent".into()];
        let mut ended = instance("b", ContainerState::Exited);
        ended.image_id = dead.clone();
        let pod = PodRuntimeStatus {
            containers: vec![running, ended],
            ..PodRuntimeStatus::default()
        };
        assert_eq!(used_by(&[pod], &store), [own, dead, volume].into());
    }
}
