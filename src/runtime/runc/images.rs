//! What the backend needs of an image store.

use std::path::PathBuf;

use crate::api::order::Gather;
use crate::{
    api::{
        cri::{FsInfo, Image},
        oci::ImageProcess,
    },
    image::{ImageError, Store},
    runtime::{Call, RuntimeError},
    sys::lane::Lane,
};

/// An image that containers can be made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedImage {
    /// Key in the store: `sha256:` and the digest of the configuration.
    pub id: String,
    /// What the API shows as `imageID`: a name by digest, else the id.
    pub reference: String,
    /// How to run it.
    pub process: ImageProcess,
    /// Unpacked layers for overlayfs, top first, at least one.
    pub layers: Vec<PathBuf>,
}

/// An image store, as the direct backend sees it.
pub trait Images {
    /// The image that a reference or id names. From memory: called on the deciding thread.
    ///
    /// # Errors
    /// The reference is malformed.
    fn resolve(&self, reference: &str) -> Result<Option<ResolvedImage>, String>;
    /// The same in CRI's words.
    ///
    /// # Errors
    /// The reference is malformed.
    fn status(&self, reference: &str) -> Result<Option<Image>, String>;
    /// All images, sorted by id. From memory.
    fn list(&self) -> Vec<Image>;
    /// Pulls a reference and returns the image id.
    fn pull<'a>(&'a self, reference: &'a str) -> Call<'a, String>;
    /// Removes an image; `in_use` holds the ids that instances use. Absent is success.
    fn remove<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> Call<'a, ()>;
    /// Disk use.
    fn fs_info(&self) -> Call<'_, FsInfo>;
}

/// The store of this machine. What touches the disk runs on the lane.
pub struct StoreImages {
    store: Store,
    disk: Lane,
}

impl StoreImages {
    /// Serves `store`.
    #[must_use]
    pub const fn new(store: Store, disk: Lane) -> Self {
        Self { store, disk }
    }
}

impl Images for StoreImages {
    fn resolve(&self, reference: &str) -> Result<Option<ResolvedImage>, String> {
        let Some(image) = self
            .store
            .resolve(reference)
            .map_err(|e| super::chain(&e))?
        else {
            return Ok(None);
        };
        // Removed meanwhile counts as absent.
        Ok(self
            .store
            .layer_dirs(&image.id)
            .map(|layers| ResolvedImage {
                id: image.id.clone(),
                reference: image.image_id().to_owned(),
                process: image.config.config.clone(),
                layers,
            }))
    }

    fn status(&self, reference: &str) -> Result<Option<Image>, String> {
        let image = self
            .store
            .resolve(reference)
            .map_err(|e| super::chain(&e))?;
        Ok(image.map(|i| i.to_cri()))
    }

    fn list(&self) -> Vec<Image> {
        self.store.list().iter().map(|i| i.to_cri()).collect()
    }

    fn pull<'a>(&'a self, reference: &'a str) -> Call<'a, String> {
        Box::pin(async move {
            match self.store.resolve(reference) {
                Ok(Some(image)) => Ok(image.id.clone()),
                Ok(None) => Err(RuntimeError::Failed(format!(
                    "image {reference:?} is not in the store, and nothing pulls it yet: import it with \
                     `picolet image import ARCHIVE`, or put its archive into the image drop-in directory"
                ))),
                Err(e @ ImageError::InvalidReference { .. }) => {
                    Err(RuntimeError::Invalid(super::chain(&e)))
                }
                Err(e) => Err(RuntimeError::Failed(super::chain(&e))),
            }
        })
    }

    fn remove<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> Call<'a, ()> {
        Box::pin(async move {
            let (store, id) = (self.store.clone(), id.to_owned());
            let removed = self
                .disk
                .run(move || store.remove(&id, &in_use.into_iter().gather()));
            removed.await.map(drop).map_err(super::failed_error)
        })
    }

    fn fs_info(&self) -> Call<'_, FsInfo> {
        Box::pin(async {
            let store = self.store.clone();
            let info = self.disk.run(move || store.fs_info());
            info.await.map_err(super::failed_error)
        })
    }
}
