//! Images that go because the disk fills or nobody used them for long: chosen by `logic::image_gc`, removed here.
//!
//! Only images that were pulled: what was imported from an archive has nowhere to come back from.

use alloc::rc::Rc;
use std::collections::BTreeSet;

use super::{commands::in_use, owner::Images};
use crate::{
    api::cri::FsInfo,
    config::ImageConfig,
    error::chain,
    image::{ImageError, ImageRecord, pull::RESUME_TIME},
    logic::image_gc::{ImageGc, ImageGcPolicy, ImageUse, PERIOD},
    runtime::{RuntimeService, runc::store_images::StoreImages},
};

/// Tells a warning of the node: its reason and its message.
type NodeWarning = Box<dyn Fn(&str, &str)>;

/// Collects the garbage.
pub(in crate::agent) struct ImageGarbage {
    images: Rc<Images>,
    store: StoreImages,
    runtime: Rc<dyn RuntimeService>,
    policy: ImageGcPolicy,
    warn: NodeWarning,
    gc: ImageGc,
}

impl ImageGarbage {
    /// As `cfg` says; `warn` records events of the node.
    pub(in crate::agent) fn new(
        cfg: &ImageConfig,
        images: Rc<Images>,
        store: StoreImages,
        runtime: Rc<dyn RuntimeService>,
        warn: NodeWarning,
    ) -> Self {
        Self {
            images,
            store,
            runtime,
            policy: ImageGcPolicy {
                high_percent: cfg.high_percent,
                low_percent: cfg.low_percent,
                min_age: cfg.min_age,
                max_age: cfg.max_age.unwrap_or_default(),
            },
            warn,
            gc: ImageGc::default(),
        }
    }

    /// Looks every few minutes (GC-10).
    pub(in crate::agent) async fn run(mut self) {
        let clock = Rc::clone(&self.images.clock);
        let mut failed_before = false;
        loop {
            self.images.tidy().await;
            let passed = self.pass().await;
            // Of those that went now.
            self.images.tidy().await;
            match passed {
                Ok(()) => failed_before = false,
                Err(why) => {
                    log::warn!("image garbage: {why}");
                    // Once may be chance (GC-13).
                    if failed_before {
                        (self.warn)("ImageGCFailed", &why);
                    }
                    failed_before = true;
                }
            }
            clock.until(clock.now() + PERIOD).await;
        }
    }

    /// One pass. Errors: why less was freed than was wanted, for the event.
    async fn pass(&mut self) -> Result<(), String> {
        let used = in_use(&*self.runtime, &self.store)
            .await
            .map_err(|e| e.to_string())?;
        let records = self.store.records();
        let images: Vec<ImageUse<'_>> = records.iter().map(|image| as_used(image, &used)).collect();
        let now = self.images.clock.now();
        self.gc.observe(&images, now);
        for id in self.gc.too_old(&images, &self.policy, now) {
            self.remove(id, &used, "it was not used for long").await?;
        }
        let fs = self.disk_use().await?;
        let Ok(wanted) = self.policy.bytes_to_free(&fs) else {
            let message = format!("invalid capacity {} on image filesystem", fs.capacity_bytes);
            (self.warn)("InvalidDiskCapacity", &message);
            return Err(message);
        };
        if wanted == 0 {
            return Ok(());
        }
        self.free(&images, &used, wanted).await
    }

    async fn free(
        &self,
        images: &[ImageUse<'_>],
        used: &BTreeSet<String>,
        wanted: u64,
    ) -> Result<(), String> {
        log::info!(
            "disk use is over {} percent: {wanted} bytes are to be freed",
            self.policy.high_percent
        );
        // Layers that nobody came back to cost least to lose.
        let cleared = self.store.clear_unfinished(RESUME_TIME).await;
        let mut freed = cleared.map_err(|e| e.to_string())?;
        let still = wanted.saturating_sub(freed);
        let now = self.images.clock.now();
        for id in self.gc.to_free(images, still, &self.policy, now) {
            freed += self.remove(id, used, "the disk is full").await?;
        }
        // What images share is not freed by one of them, and what others wrote may be gone: the disk itself tells.
        let fs = self.disk_use().await?;
        if freed < wanted && self.policy.bytes_to_free(&fs).unwrap_or(0) > 0 {
            let message = format!(
                "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
                 but only found {freed} bytes eligible to free."
            );
            (self.warn)("FreeDiskSpaceFailed", &message);
            return Err(message);
        }
        Ok(())
    }

    async fn disk_use(&self) -> Result<FsInfo, String> {
        let info = self.runtime.image_fs_info().await;
        info.map_err(|e| e.to_string())
    }

    async fn remove(&self, id: &str, used: &BTreeSet<String>, why: &str) -> Result<u64, String> {
        let records = self.store.records();
        let named = records.iter().find(|image| image.id == id);
        let names = named.map_or_else(String::new, |image| image.names.join(", "));
        let freed = match self.store.remove_unused(id, used).await {
            // Since it was chosen.
            Err(ImageError::InUse(_)) => return Ok(0),
            freed => freed.map_err(|e| chain(&e))?,
        };
        log::info!("image {id} ({names}) is removed, {freed} bytes: {why}");
        Ok(freed)
    }
}

fn as_used<'a>(image: &'a ImageRecord, used: &BTreeSet<String>) -> ImageUse<'a> {
    ImageUse {
        id: &image.id,
        size_bytes: image.size_bytes,
        pinned: image.pinned || !image.pulled,
        in_use: used.contains(&image.id),
    }
}
