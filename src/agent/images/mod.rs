//! What the agent knows of images, and what it does with them: [`Images`] is their owner.
//!
//! | file | what it is |
//! |---|---|
//! | `owner` | [`Images`]: its parts, and what it answers at once |
//! | `ensure` | what the start of a container needs: pull policies, and why it waits |
//! | `pull` | one pull for a pod: back-off, rate, credentials, events |
//! | `for_pod` | the pod that wants an image, as far as `ensure` and `pull` know it |
//! | `access`, `records` | who may use an image that is there, and the files that say so |
//! | `credentials`, `settings` | what a pull is given: by the pod each time, by the node at start |
//! | `garbage` | images that nobody uses go |
//! | `commands` | what local commands do with images |
//! | `stock` | who keeps images: a store of the direct backend's, or a runtime |
//! | `drop_in` | the directory whose archives are imported and whose lists are pulled; only with such a store |
//!
//! Containers get their images from any [`ImageService`](crate::runtime::ImageService). What needs the store reaches it
//! through [`StoreImages`](crate::runtime::runc::store_images::StoreImages) alone.

mod access;
mod commands;
mod credentials;
mod drop_in;
mod ensure;
mod for_pod;
mod garbage;
mod owner;
mod pull;
mod records;
mod settings;
mod stock;
#[cfg(test)]
mod tests;

pub(super) use commands::ImageCommands;
pub(super) use credentials::{NodeKeyring, PodSecrets, RuntimeKeyring};
pub(super) use drop_in::ImageDirectory;
pub(super) use ensure::VolumeImages;
pub(super) use for_pod::{ForPod, Pending, Waiting};
pub(super) use garbage::{ImageGarbage, UnusedImages, remove_unused};
pub(super) use owner::{Images, Supply, Tools};
pub(crate) use settings::settings;
pub(super) use stock::Stock;
