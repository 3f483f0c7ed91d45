//! Garbage collection of images, when the disk fills or after long disuse: chosen by `logic::image_gc`, removed here.
//!
//! Only pulled images are removed: an image that was imported from an archive could not be had again.

use alloc::rc::Rc;
use std::collections::BTreeSet;

use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{
    owner::AgentImages,
    stock::{ImageStock, ImageStockError, StockedImage},
};
use crate::{
    api::cri::FsInfo,
    config::ImageConfig,
    error::error_chain,
    logic::image_gc::{ImageGcPolicy, ImageUse, ImageUseHistory, PERIOD},
    runtime::RuntimeService,
};

/// Tells a warning of the node: its reason and its message.
type NodeWarning = Box<dyn Fn(&str, &str)>;

/// Reason why less was freed than was wanted.
#[derive(Debug, thiserror::Error)]
enum ImageGarbageError {
    /// The images in use are not known, or an image cannot be removed.
    #[error(transparent)]
    Stock(#[from] ImageStockError),
    #[error("invalid capacity {0} on image filesystem")]
    Capacity(u64),
    /// Too many images are in use, or the disk is full of other files.
    #[error(
        "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, \
         but only found {freed} bytes eligible to free."
    )]
    TooLittle { wanted: u64, freed: u64 },
}

/// Asks for the removal of every unused image; the answer comes when it is done.
pub(in crate::agent) type UnusedImageRequests = Sender<Sender<()>>;

/// Has every unused image removed and waits until that is done. Returns false if the remover has ended.
pub(in crate::agent) async fn remove_unused_images(ask: &UnusedImageRequests) -> bool {
    let (answer, done) = smol::channel::bounded(1);
    // Both end with an error once the remover has ended.
    ask.send(answer).await.is_ok() && done.recv().await.is_ok()
}

/// Collects the garbage.
pub(in crate::agent) struct ImageGarbageCollector {
    images: Rc<AgentImages>,
    stock: ImageStock,
    runtime: Rc<dyn RuntimeService>,
    policy: ImageGcPolicy,
    warn: NodeWarning,
    gc: ImageUseHistory,
}

impl ImageGarbageCollector {
    /// Makes the collection with the settings of `cfg`; `warn` records events of the node.
    pub(in crate::agent) fn new(
        cfg: &ImageConfig,
        images: Rc<AgentImages>,
        stock: ImageStock,
        runtime: Rc<dyn RuntimeService>,
        warn: NodeWarning,
    ) -> Self {
        Self {
            images,
            stock,
            runtime,
            policy: ImageGcPolicy {
                high_percent: cfg.high_percent,
                low_percent: cfg.low_percent,
                min_age: cfg.min_age,
                max_age: cfg.max_age.unwrap_or_default(),
            },
            warn,
            gc: ImageUseHistory::default(),
        }
    }

    /// Looks every few minutes (GC-10), and removes unused images when `asked` to (EVICT-07).
    pub(in crate::agent) async fn run_collector(mut self, asked: Receiver<Sender<()>>) {
        let clock = Rc::clone(&self.images.clock);
        let mut failed_before = false;
        loop {
            self.images.tidy_access_records().await;
            let passed = self.collect_once().await;
            // The removed images have records, which go too.
            self.images.tidy_access_records().await;
            match passed {
                Ok(()) => failed_before = false,
                Err(e) => {
                    let why = error_chain(&e);
                    log::warn!("image garbage collection: {why}");
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
                        // No sender is left.
                        Err(_) => core::future::pending().await,
                    }
                };
                let due = async {
                    clock.sleep_until(next).await;
                    None
                };
                let Some(done) = ask.or(due).await else {
                    break;
                };
                if let Err(e) = self.reclaim_unused().await {
                    log::warn!("image garbage collection: {}", error_chain(&e));
                }
                let _ = done.try_send(());
            }
        }
    }

    /// Removes every image that is unused and old enough.
    async fn reclaim_unused(&mut self) -> Result<(), ImageGarbageError> {
        self.images.tidy_access_records().await;
        let looked = self.stock.list_images_and_used(&*self.runtime).await;
        let (kept, used) = looked.map_err(ImageStockError::from)?;
        let images: Vec<ImageUse<'_>> = kept.iter().map(|image| image_use(image, &used)).collect();
        let now = self.images.clock.now();
        self.gc.observe_images(&images, now);
        let cleared = self.stock.remove_unfinished().await;
        let freed = cleared.map_err(ImageStockError::from)?;
        log::info!(
            "the disk is low on space: unused images are removed; {freed} bytes of unfinished pulls were removed"
        );
        let all = self.gc.images_to_free(&images, u64::MAX, &self.policy, now);
        let all = choose_images(&kept, all);
        let (_, failed) = self
            .remove_images(all, &used, "the disk is low on space")
            .await;
        self.images.tidy_access_records().await;
        Ok(failed?)
    }

    /// Runs one pass.
    async fn collect_once(&mut self) -> Result<(), ImageGarbageError> {
        let looked = self.stock.list_images_and_used(&*self.runtime).await;
        let (kept, used) = looked.map_err(ImageStockError::from)?;
        let images: Vec<ImageUse<'_>> = kept.iter().map(|image| image_use(image, &used)).collect();
        let now = self.images.clock.now();
        self.gc.observe_images(&images, now);
        let old = choose_images(
            &kept,
            self.gc.images_over_max_age(&images, &self.policy, now),
        );
        let old = self.remove_images(old, &used, "it was not used for a long time");
        let (_, old) = old.await;
        let fs = self.image_filesystem().await?;
        let Ok(wanted) = self.policy.bytes_to_free(&fs) else {
            let error = ImageGarbageError::Capacity(fs.capacity_bytes);
            (self.warn)("InvalidDiskCapacity", &error.to_string());
            return Err(error);
        };
        if wanted == 0 {
            return Ok(old?);
        }
        log::info!(
            "disk use is over {} percent: {wanted} bytes are to be freed",
            self.policy.high_percent
        );
        // Layers of pulls that did not come back cost least to lose.
        let cleared = self.stock.remove_unfinished().await;
        let mut freed = cleared.map_err(ImageStockError::from)?;
        let still = wanted.saturating_sub(freed);
        let now = self.images.clock.now();
        let more = choose_images(
            &kept,
            self.gc.images_to_free(&images, still, &self.policy, now),
        );
        let (bytes, failed) = self.remove_images(more, &used, "the disk is full").await;
        freed += bytes;
        old.and(failed)?;
        // A shared layer is not freed by one of its images, and other programs may have freed space: the disk itself
        // tells.
        let fs = self.image_filesystem().await?;
        if freed < wanted && self.policy.bytes_to_free(&fs).unwrap_or(0) > 0 {
            let error = ImageGarbageError::TooLittle { wanted, freed };
            (self.warn)("FreeDiskSpaceFailed", &error.to_string());
            return Err(error);
        }
        Ok(())
    }

    async fn image_filesystem(&self) -> Result<FsInfo, ImageStockError> {
        Ok(self.runtime.image_fs_info().await?)
    }

    /// Removes images one by one; a failure does not keep the others. Returns the bytes freed, and the first failure.
    async fn remove_images(
        &self,
        all: impl Iterator<Item = &StockedImage>,
        used: &BTreeSet<String>,
        why: &str,
    ) -> (u64, Result<(), ImageStockError>) {
        let (mut freed, mut failed) = (0, Ok(()));
        for image in all {
            match self.remove_image(image, used, why).await {
                Ok(bytes) => freed += bytes,
                Err(e) => failed = failed.and(Err(e)),
            }
        }
        (freed, failed)
    }

    async fn remove_image(
        &self,
        image: &StockedImage,
        used: &BTreeSet<String>,
        why: &str,
    ) -> Result<u64, ImageStockError> {
        let removed = self.stock.remove_image(&*self.runtime, image, used).await?;
        let Some(freed) = removed else {
            // It is used since it was chosen.
            return Ok(0);
        };
        log::info!(
            "image {} ({}) is removed, {freed} bytes: {why}",
            image.id,
            image.names.join(", ")
        );
        Ok(freed)
    }
}

/// Images by their ids, in the order of these.
fn choose_images<'a>(
    kept: &'a [StockedImage],
    ids: Vec<&'a str>,
) -> impl Iterator<Item = &'a StockedImage> {
    let find = |id: &str| kept.iter().find(|image| image.id == id);
    ids.into_iter().filter_map(find)
}

fn image_use<'a>(image: &'a StockedImage, used: &BTreeSet<String>) -> ImageUse<'a> {
    ImageUse {
        id: &image.id,
        size_bytes: image.size_bytes,
        pinned: image.is_pinned,
        in_use: used.contains(&image.id),
    }
}
