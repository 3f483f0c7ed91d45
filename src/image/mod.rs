//! Images: from archives, unpacked, ready for overlayfs.
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@reference`], [`digest`], [`platform`] | names, digests, which machine an image is for |
//! | [`store`], [`record`] | what is there: durable before visible, repaired at open |
//! | [`archive`], [`plan`], [`import`] | docker-archives and OCI layouts: first the documents, then the layers |
//! | [`compress`], [`tarball`] | bounded readers |
//! | [`layer`], [`tree`] | unpacking, never leaving the layer's root |
//! | [`below`] | what a layer does to those below it |
//! | [`dropin`] | the directory whose archives are imported as they change |
//!
//! What comes from an archive is untrusted: every length is bounded by a named constant, every digest checked, and an
//! error names archive, member, entry and what is wrong. An archive is read front to back, once for its documents and
//! once for its layers (once more for layers that write through links of those below); memory does not grow with it.
//!
//! There is no registry client here: [`Store::pull`] answers for one.

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
pub mod record;
pub mod reference;
pub mod store;
pub mod tarball;
#[cfg(test)]
pub(crate) mod testing;
pub mod tree;

pub use digest::Digest;
pub use dropin::DropIn;
pub use error::{ImageError, Problem};
pub use import::{ImportOptions, Progress};
pub use plan::{MAX_JSON_BYTES, MAX_LAYERS};
pub use record::{ImageRecord, LayerRecord};
pub use reference::Reference;
pub use store::Store;
