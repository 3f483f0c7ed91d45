//! The image store as the backend needs it.

use core::any::Any;
use std::path::PathBuf;

use crate::{
    api::{
        cri::{AuthConfig, FsInfo, StoredImage},
        oci::ImageProcess,
    },
    image::{ImageError, ImageProgress},
    runtime::RuntimeCall,
};

/// An image that containers can be made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedImage {
    /// Key in the store: `sha256:` and the digest of the configuration.
    pub id: String,
    /// Name that the API shows as `imageID`: a name by digest, else the id.
    pub reference: String,
    /// Process of the image: how to run it.
    pub process: ImageProcess,
    /// Unpacked layers for overlayfs, top first, at least one.
    pub layers: Vec<PathBuf>,
}

/// Keeps an image in its store for as long as it lives.
pub type BackendImageHold = Box<dyn Any>;

/// An image store, as the direct backend sees it.
pub trait BackendImageStore {
    /// The image that a reference or id names. From memory: called on the deciding thread.
    ///
    /// # Errors
    /// The reference is malformed.
    fn resolve_image(&self, reference: &str) -> Result<Option<ResolvedImage>, ImageError>;
    /// Finds an image as [`Self::resolve_image`] does, and describes it in CRI's words.
    ///
    /// # Errors
    /// The reference is malformed.
    fn describe_image(&self, reference: &str) -> Result<Option<StoredImage>, ImageError>;
    /// Keeps the image with this id in the store until the returned hold is dropped; `None` if it is not there.
    fn hold_image(&self, id: &str) -> Option<BackendImageHold>;
    /// All images, sorted by id. From memory.
    fn list_stored_images(&self) -> Vec<StoredImage>;
    /// Pulls a reference, with this credential or none.
    fn pull_to_store<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<AuthConfig>,
    ) -> RuntimeCall<'a, String>;
    /// Progress of the pull of a reference.
    fn pull_progress(&self, reference: &str) -> Option<ImageProgress>;
    /// Returns true if a pull of the reference may still bring its image, also a pull that was dropped.
    fn is_pulling(&self, reference: &str) -> bool;
    /// Removes an image; `in_use` holds the ids that instances use. Absent is success.
    fn remove_stored_image<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> RuntimeCall<'a, ()>;
    /// Disk use.
    fn store_fs_info(&self) -> RuntimeCall<'_, FsInfo>;
}
