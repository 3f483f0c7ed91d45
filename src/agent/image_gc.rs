//! Images that go because the disk fills or nobody used them for long: chosen by `logic::image_gc`, removed here.
//!
//! Only images that were pulled: what was imported from an archive has nowhere to come back from.

use std::collections::BTreeSet;

use super::{
    ctx::{Ctx, Shared},
    image_access, image_store,
    recorder::Severity,
    sync::chain,
};
use crate::{
    api::cri::FsInfo,
    image::{ImageError, ImageRecord, Puller, Store, pull::RESUME_TIME},
    logic::image_gc::{ImageGc, ImageGcPolicy, ImageUse, PERIOD},
};

fn policy(ctx: &Ctx) -> ImageGcPolicy {
    let images = &ctx.cfg.images;
    ImageGcPolicy {
        high_percent: images.high_percent,
        low_percent: images.low_percent,
        min_age: images.min_age,
        max_age: images.max_age.unwrap_or_default(),
    }
}

/// Looks every few minutes (GC-10).
pub(super) async fn poll(ctx: Shared, store: Store, puller: Puller) {
    let mut gc = ImageGc::default();
    let mut failed_before = false;
    loop {
        image_access::tidy(&ctx).await;
        let passed = pass(&ctx, &mut gc, &store, &puller).await;
        // Of those that went now.
        image_access::tidy(&ctx).await;
        match passed {
            Ok(()) => failed_before = false,
            Err(why) => {
                log::warn!("image garbage: {why}");
                // Once may be chance (GC-13).
                if failed_before {
                    ctx.node_event(Severity::Warning, "ImageGCFailed", &why);
                }
                failed_before = true;
            }
        }
        ctx.clock.until(ctx.clock.now() + PERIOD).await;
    }
}

/// One pass. Errors: why less was freed than was wanted, for the event.
async fn pass(ctx: &Ctx, gc: &mut ImageGc, store: &Store, puller: &Puller) -> Result<(), String> {
    let used = image_store::in_use(ctx, store)
        .await
        .map_err(|e| e.to_string())?;
    let records = store.list();
    let images: Vec<ImageUse<'_>> = records.iter().map(|image| as_used(image, &used)).collect();
    let now = ctx.clock.now();
    let policy = policy(ctx);
    gc.observe(&images, now);
    for id in gc.too_old(&images, &policy, now) {
        remove(ctx, store, id, &used, "it was not used for long").await?;
    }
    let fs = ctx
        .runtime
        .image_fs_info()
        .await
        .map_err(|e| e.to_string())?;
    let Ok(wanted) = policy.bytes_to_free(&fs) else {
        let message = format!("invalid capacity {} on image filesystem", fs.capacity_bytes);
        ctx.node_event(Severity::Warning, "InvalidDiskCapacity", &message);
        return Err(message);
    };
    if wanted == 0 {
        return Ok(());
    }
    free(ctx, gc, store, puller, (&images, &used), (wanted, &policy)).await
}

async fn free(
    ctx: &Ctx,
    gc: &ImageGc,
    store: &Store,
    puller: &Puller,
    (images, used): (&[ImageUse<'_>], &BTreeSet<String>),
    (wanted, policy): (u64, &ImageGcPolicy),
) -> Result<(), String> {
    log::info!(
        "disk use is over {} percent: {wanted} bytes are to be freed",
        policy.high_percent
    );
    // Layers that nobody came back to cost least to lose.
    let puller = puller.clone();
    let cleared = ctx.unpack.run(move || puller.clear(RESUME_TIME)).await;
    let mut freed = cleared.map_err(|e| e.to_string())?;
    let still = wanted.saturating_sub(freed);
    for id in gc.to_free(images, still, policy, ctx.clock.now()) {
        freed += remove(ctx, store, id, used, "the disk is full").await?;
    }
    // What images share is not freed by one of them, and what others wrote may be gone: the disk itself tells.
    let fs: FsInfo = ctx
        .runtime
        .image_fs_info()
        .await
        .map_err(|e| e.to_string())?;
    if freed < wanted && policy.bytes_to_free(&fs).unwrap_or(0) > 0 {
        let message = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
             but only found {freed} bytes eligible to free."
        );
        ctx.node_event(Severity::Warning, "FreeDiskSpaceFailed", &message);
        return Err(message);
    }
    Ok(())
}

fn as_used<'a>(image: &'a ImageRecord, used: &BTreeSet<String>) -> ImageUse<'a> {
    ImageUse {
        id: &image.id,
        size_bytes: image.size_bytes,
        pinned: image.pinned || !image.pulled,
        in_use: used.contains(&image.id),
    }
}

async fn remove(
    ctx: &Ctx,
    store: &Store,
    id: &str,
    used: &BTreeSet<String>,
    why: &str,
) -> Result<u64, String> {
    let names = store
        .get(id)
        .map_or_else(String::new, |image| image.names.join(", "));
    let (store, id, used) = (store.clone(), id.to_owned(), used.clone());
    let shown = id.clone();
    let removed = ctx.unpack.run(move || store.remove(&id, &used)).await;
    let freed = match removed {
        // Since it was chosen.
        Err(ImageError::InUse(_)) => return Ok(0),
        freed => freed.map_err(|e| chain(&e))?,
    };
    log::info!("image {shown} ({names}) is removed, {freed} bytes: {why}");
    Ok(freed)
}
