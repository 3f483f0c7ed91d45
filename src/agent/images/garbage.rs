//! Images that go because the disk fills or nobody used them for long: chosen by `logic::image_gc`, removed here.
//!
//! Only images that were pulled: what was imported from an archive has nowhere to come back from.

use alloc::rc::Rc;
use std::{collections::BTreeSet, io};

use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{commands::in_use, owner::Images};
use crate::{
    config::ImageConfig,
    error::chain,
    image::{ImageError, ImageRecord, pull::RESUME_TIME},
    logic::image_gc::{ImageGc, ImageGcPolicy, ImageUse, PERIOD},
    runtime::{RuntimeError, RuntimeService, runc::store_images::StoreImages},
};

/// Tells a warning of the node: its reason and its message.
type NodeWarning = Box<dyn Fn(&str, &str)>;

/// Why less was freed than was wanted.
#[derive(Debug, thiserror::Error)]
enum GarbageError {
    /// What is in use is not known.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The store cannot remove it.
    #[error(transparent)]
    Store(#[from] ImageError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error("invalid capacity {0} on image filesystem")]
    Capacity(u64),
    /// Too much is in use, or not the images' at all.
    #[error(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
         but only found {freed} bytes eligible to free."
    )]
    TooLittle { wanted: u64, freed: u64 },
}

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

    /// Looks every few minutes (GC-10), and removes what nobody uses when it is `asked` to (EVICT-07).
    pub(in crate::agent) async fn run(mut self, asked: Receiver<Sender<()>>) {
        let clock = Rc::clone(&self.images.clock);
        let mut failed_before = false;
        loop {
            self.images.tidy().await;
            let passed = self.pass().await;
            // Of those that went now.
            self.images.tidy().await;
            match passed {
                Ok(()) => failed_before = false,
                Err(e) => {
                    let why = chain(&e);
                    log::warn!("image garbage: {why}");
                    // Once may be chance (GC-13).
                    if failed_before {
                        (self.warn)("ImageGCFailed", &why);
                    }
                    failed_before = true;
                }
            }
            let next = clock.now() + PERIOD;
            loop {
                let ask = async {
                    match asked.recv().await {
                        Ok(done) => Some(done),
                        // Nobody will ask any more.
                        Err(_) => core::future::pending().await,
                    }
                };
                let due = async {
                    clock.until(next).await;
                    None
                };
                let Some(done) = ask.or(due).await else {
                    break;
                };
                if let Err(e) = self.reclaim().await {
                    log::warn!("image garbage: {}", chain(&e));
                }
                let _ = done.try_send(());
            }
        }
    }

    /// Removes every image that nobody uses and that is old enough.
    async fn reclaim(&mut self) -> Result<(), GarbageError> {
        self.images.tidy().await;
        let used = in_use(&*self.runtime, &self.store).await?;
        let records = self.store.records();
        let images: Vec<ImageUse<'_>> = records.iter().map(|image| as_used(image, &used)).collect();
        let now = self.images.clock.now();
        self.gc.observe(&images, now);
        let freed = self.store.clear_unfinished(RESUME_TIME).await?;
        log::info!(
            "the disk is short: unused images are removed; {freed} bytes of unfinished pulls went"
        );
        for id in self.gc.to_free(&images, u64::MAX, &self.policy, now) {
            self.remove(id, &used, "the disk is short").await?;
        }
        self.images.tidy().await;
        Ok(())
    }

    /// One pass.
    async fn pass(&mut self) -> Result<(), GarbageError> {
        let used = in_use(&*self.runtime, &self.store).await?;
        let records = self.store.records();
        let images: Vec<ImageUse<'_>> = records.iter().map(|image| as_used(image, &used)).collect();
        let now = self.images.clock.now();
        self.gc.observe(&images, now);
        for id in self.gc.too_old(&images, &self.policy, now) {
            self.remove(id, &used, "it was not used for long").await?;
        }
        let fs = self.runtime.image_fs_info().await?;
        let Ok(wanted) = self.policy.bytes_to_free(&fs) else {
            let error = GarbageError::Capacity(fs.capacity_bytes);
            (self.warn)("InvalidDiskCapacity", &error.to_string());
            return Err(error);
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
    ) -> Result<(), GarbageError> {
        log::info!(
            "disk use is over {} percent: {wanted} bytes are to be freed",
            self.policy.high_percent
        );
        // Layers that nobody came back to cost least to lose.
        let mut freed = self.store.clear_unfinished(RESUME_TIME).await?;
        let still = wanted.saturating_sub(freed);
        let now = self.images.clock.now();
        for id in self.gc.to_free(images, still, &self.policy, now) {
            freed += self.remove(id, used, "the disk is full").await?;
        }
        // What images share is not freed by one of them, and what others wrote may be gone: the disk itself tells.
        let fs = self.runtime.image_fs_info().await?;
        if freed < wanted && self.policy.bytes_to_free(&fs).unwrap_or(0) > 0 {
            let error = GarbageError::TooLittle { wanted, freed };
            (self.warn)("FreeDiskSpaceFailed", &error.to_string());
            return Err(error);
        }
        Ok(())
    }

    async fn remove(
        &self,
        id: &str,
        used: &BTreeSet<String>,
        why: &str,
    ) -> Result<u64, ImageError> {
        let records = self.store.records();
        let named = records.iter().find(|image| image.id == id);
        let names = named.map_or_else(String::new, |image| image.names.join(", "));
        let freed = match self.store.remove_unused(id, used).await {
            // Since it was chosen.
            Err(ImageError::InUse(_)) => return Ok(0),
            freed => freed?,
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
