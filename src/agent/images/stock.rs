//! Stock of images: a store of this agent's own, or the runtime's.

use core::time::Duration;
use std::{collections::BTreeSet, io};

use crate::{
    api::{cri::StoredImage, order::GatherExt as _},
    image::{ImageError, pull::RESUME_TIME},
    runtime::{RuntimeError, RuntimeService, runc::store_images::StoreImages},
    server::http::Refusal,
};

/// Keeper of images.
#[derive(Clone)]
pub(in crate::agent) enum ImageStock {
    /// The direct backend has a store.
    Own(StoreImages),
    /// A runtime of its own right has one.
    Runtime,
}

/// Reason why an image was not removed, or is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageStockError {
    /// The runtime's words.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The store cannot do it.
    #[error(transparent)]
    Store(#[from] ImageError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] io::Error),
}

/// An image that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StockedImage {
    /// Id.
    pub(super) id: String,
    /// Names of the image; never none.
    pub(super) names: Vec<String>,
    /// Bytes on disk.
    pub(super) size_bytes: u64,
    /// Set if the image is never garbage, used or not: it is pinned, or cannot be brought again.
    pub(super) is_pinned: bool,
}

impl ImageStock {
    /// The store of this agent.
    ///
    /// Errors: the images are the runtime's. `what`, which only a store can do, is left to the runtime's own tools.
    pub(super) fn own_store(&self, what: &str) -> Result<&StoreImages, Refusal> {
        match self {
            Self::Own(store) => Ok(store),
            Self::Runtime => {
                let text = format!(
                    "the container runtime keeps the images (containerRuntimeEndpoint): {what} them with its own tools"
                );
                Err(Refusal::bad_request(text))
            }
        }
    }

    /// All images, and the ids of used ones: containers were made from them or mount them, dead containers included.
    /// The runtime is asked, for the cache may not know yet what was made in the last second.
    pub(super) async fn list_images_and_used(
        &self,
        runtime: &dyn RuntimeService,
    ) -> Result<(Vec<StockedImage>, BTreeSet<String>), RuntimeError> {
        let mut pods = Vec::new();
        for pod in runtime.list_pods().await? {
            match runtime.pod_status(&pod.uid).await {
                // The runtime itself looks again before it removes anything.
                Err(RuntimeError::Failed(e)) if matches!(self, Self::Runtime) => {
                    log::debug!("images of pod uid={}: {e}", pod.uid);
                }
                status => pods.push(status?),
            }
        }
        match self {
            Self::Own(store) => {
                let records = store.image_records();
                let kept = records.iter().map(|record| StockedImage {
                    id: record.id.clone(),
                    names: shown_names(&record.names, &record.id),
                    size_bytes: record.size_bytes,
                    is_pinned: record.pinned || !record.pulled,
                });
                Ok((kept.collect(), store.images_used_by(&pods)))
            }
            Self::Runtime => {
                let images = runtime.list_images().await?;
                let containers = pods.iter().flat_map(|pod| &pod.containers);
                let used: BTreeSet<&str> = containers
                    .flat_map(|c| c.volume_images.iter().chain([&c.image_id, &c.image]))
                    .map(String::as_str)
                    .gather_items();
                let in_use = images.iter().filter(|image| is_used(image, &used));
                let in_use = in_use.map(|image| image.id.clone()).collect();
                let kept = images.iter().map(|image| StockedImage {
                    id: image.id.clone(),
                    names: shown_names(&image.repo_tags, &image.id),
                    size_bytes: image.size_bytes,
                    is_pinned: image.pinned,
                });
                Ok((kept.collect(), in_use))
            }
        }
    }

    /// Removes an image that is not in `used`. Returns the bytes freed; `None` if it is used by now.
    pub(super) async fn remove_image(
        &self,
        runtime: &dyn RuntimeService,
        image: &StockedImage,
        used: &BTreeSet<String>,
    ) -> Result<Option<u64>, ImageStockError> {
        match self {
            Self::Own(store) => match store.remove_unused(&image.id, used).await {
                Err(ImageError::InUse(_)) => Ok(None),
                freed => Ok(Some(freed?)),
            },
            Self::Runtime => {
                runtime.remove_image(&image.id).await?;
                Ok(Some(image.size_bytes))
            }
        }
    }

    /// Removes the layers of pulls that have not come back for a while. Returns the bytes freed.
    pub(super) async fn remove_unfinished(&self) -> io::Result<u64> {
        self.remove_unfinished_since(RESUME_TIME).await
    }

    async fn remove_unfinished_since(&self, unused: Duration) -> io::Result<u64> {
        match self {
            Self::Own(store) => store.clear_unfinished(unused).await,
            // Runtimes do that themselves.
            Self::Runtime => Ok(0),
        }
    }

    /// Removes images that no container uses, and layers of pulls without waiters. Returns the names of the removed
    /// images and the freed bytes.
    pub(super) async fn prune_images(
        &self,
        runtime: &dyn RuntimeService,
    ) -> Result<(Vec<String>, u64), ImageStockError> {
        let (kept, used) = self.list_images_and_used(runtime).await?;
        if let Self::Own(store) = self {
            let pruned = store.prune_images(used).await;
            let cleared = self.remove_unfinished_since(Duration::ZERO).await;
            let (records, bytes) = pruned?;
            let names = records.iter().flat_map(|r| shown_names(&r.names, &r.id));
            return Ok((names.collect(), bytes + cleared?));
        }
        let (mut names, mut bytes) = (Vec::new(), 0);
        for image in kept {
            if !image.is_pinned && !used.contains(&image.id) {
                runtime.remove_image(&image.id).await?;
                names.extend(image.names);
                bytes += image.size_bytes;
            }
        }
        Ok((names, bytes))
    }
}

/// Runtimes name the image of an instance by its id, by a digest, or by a tag (CRI-75).
fn is_used(image: &StoredImage, used: &BTreeSet<&str>) -> bool {
    let names = image.repo_digests.iter().chain(&image.repo_tags);
    names.chain([&image.id]).any(|name| used.contains(&**name))
}

/// References an image can be shown by: its names, else its id.
pub(super) fn shown_names(names: &[String], id: &str) -> Vec<String> {
    match names {
        [] => vec![id.to_owned()],
        names => names.to_vec(),
    }
}
