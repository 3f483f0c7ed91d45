//! What the backend needs of an image store.

use core::any::Any;
use std::path::PathBuf;

use crate::api::order::Gather;
use crate::{
    api::{
        cri::{FsInfo, Image},
        oci::ImageProcess,
    },
    image::{Progress, PullError, Puller, Store, pull::Pulled, registry::Keyring},
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

/// Keeps an image in its store for as long as it lives.
pub type Hold = Box<dyn Any>;

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
    /// Keeps the image with this id in the store until what is returned is dropped; `None` if it is not there.
    fn hold(&self, id: &str) -> Option<Hold>;
    /// All images, sorted by id. From memory.
    fn list(&self) -> Vec<Image>;
    /// Pulls a reference, with these credentials before those of the node.
    fn pull<'a>(&'a self, reference: &'a str, keyring: Keyring) -> Call<'a, Pulled>;
    /// How far that is.
    fn pull_progress(&self, reference: &str) -> Option<Progress>;
    /// Removes an image; `in_use` holds the ids that instances use. Absent is success.
    fn remove<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> Call<'a, ()>;
    /// Disk use.
    fn fs_info(&self) -> Call<'_, FsInfo>;
}

/// The store of this machine.
pub struct StoreImages {
    store: Store,
    puller: Puller,
    disk: Lane,
    unpack: Lane,
}

impl StoreImages {
    /// Serves `store`, which `puller` fills. Removals wait behind imports, so they run in the `unpack` lane: pods do not.
    #[must_use]
    pub const fn new(store: Store, puller: Puller, disk: Lane, unpack: Lane) -> Self {
        Self {
            store,
            puller,
            disk,
            unpack,
        }
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

    fn hold(&self, id: &str) -> Option<Hold> {
        let hold = self.store.hold(id)?;
        Some(Box::new(hold))
    }

    fn list(&self) -> Vec<Image> {
        self.store.list().iter().map(|i| i.to_cri()).collect()
    }

    fn pull<'a>(&'a self, reference: &'a str, keyring: Keyring) -> Call<'a, Pulled> {
        Box::pin(async move {
            let pulled = self.puller.pull(reference, keyring).await;
            pulled.map_err(|e| match e {
                PullError::Invalid(_) => RuntimeError::Invalid(e.to_string()),
                // The prefix of the text is the waiting reason (IMG-08).
                PullError::Unavailable(_) | PullError::Signature(_) | PullError::Failed(_) => {
                    RuntimeError::Failed(e.to_string())
                }
            })
        })
    }

    fn pull_progress(&self, reference: &str) -> Option<Progress> {
        self.puller.progress(reference)
    }

    fn remove<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> Call<'a, ()> {
        Box::pin(async move {
            let (store, id) = (self.store.clone(), id.to_owned());
            let removed = self
                .unpack
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
