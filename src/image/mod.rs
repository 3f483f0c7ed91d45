//! Images: from archives, unpacked, ready for overlayfs.
//!
//! | module | content |
//! |---|---|
//! | [`mod@reference`], [`digest`], [`platform`] | names, digests, the machine that an image is for |
//! | [`store`], [`record`] | images on disk: durable before visible, repaired at open |
//! | [`archive`], [`plan`], [`import`] | docker-archives and OCI layouts: first the documents, then the layers |
//! | [`compress`], [`tarball`] | bounded readers |
//! | [`layer`], [`tree`] | unpacking, never leaving the layer's root |
//! | [`below`] | view of the layers below a layer |
//! | [`registry`] | the client: from a reference to blobs whose digest is right |
//! | [`mod@pull`] | pulls: queued, joined, resumed, through the client into the store |
//! | [`save`] | docker archives made from the images of the store |
//! | [`progress`] | progress of an image on its way |
//! | [`mod@sum`], [`verify`] | sums of unpacked layers, and the check against them |
//! | [`dropin`] | the directory whose archives are imported as they change |
//!
//! The content of an archive is untrusted: every length is bounded by a named constant, every digest checked, and an
//! error names archive, member, entry and fault. An archive is read front to back, once for its documents and
//! once for its layers (once more for layers that write through links of those below); memory does not grow with it.
//!
//! Layers from a registry pass through a directory of growing files and then through the same import.

use core::sync::atomic::{AtomicU64, Ordering};

pub mod archive;
pub mod below;
pub mod compress;
pub mod digest;
pub mod dropin;
pub mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod import;
pub mod layer;
pub mod plan;
pub mod platform;
#[cfg(test)]
mod powercut;
pub mod progress;
pub mod pull;
pub mod record;
pub mod reference;
pub mod registry;
pub mod save;
pub mod store;
pub mod sum;
pub mod tarball;
#[cfg(test)]
pub(crate) mod testing;
pub mod tree;
pub mod tree_archive;
pub mod verify;
pub mod whose;

pub use digest::Digest;
pub use dropin::DropInPoller;
pub use error::{ImageError, ImageProblem};
pub use import::ImportOptions;
pub use plan::{MAX_JSON_BYTES, MAX_LAYERS};
pub use progress::ImageProgress;
pub use pull::{PullError, Puller};
pub use record::{ImageRecord, LayerRecord};
pub use reference::ImageReference;
pub use save::ImageArchiveWriter;
pub use store::{ImageStore, StoredImageHold};
pub use tree_archive::TreeArchiveWriter;
pub use verify::{DamagedImage, ImageVerifier, RepairResult, StoreVerification, VerifyFindings};

/// Counted by whatever thread writes.
static WRITTEN_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of images that this process has written: as they arrived, and unpacked.
pub fn written_bytes() -> u64 {
    WRITTEN_BYTES.load(Ordering::Relaxed)
}

fn count_written(bytes: usize) {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    WRITTEN_BYTES.fetch_add(bytes, Ordering::Relaxed);
}
