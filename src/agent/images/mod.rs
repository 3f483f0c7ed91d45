//! Images of the agent: pulls, credentials, access, garbage. [`AgentImages`] is their owner.
//!
//! | file | content |
//! |---|---|
//! | `owner` | [`AgentImages`]: its parts, and the answers that it has at once |
//! | `ensure` | the image for the start of a container: pull policies, and the reason why it waits |
//! | `pull` | a pull for a pod: back-off, rate, credentials, events |
//! | `for_pod` | the pod that wants an image, as far as `ensure` and `pull` know it |
//! | `access`, `records` | the pods that may use an image that is there, and the files that say so |
//! | `credentials`, `settings` | input of a pull: from the pod each time, from the node at start |
//! | `garbage` | unused images are removed |
//! | `commands` | local commands on images |
//! | `stock` | the keeper of images: a store of the direct backend, or a runtime |
//! | `drop_in` | the directory whose archives are imported and whose lists are pulled; only with such a store |
//!
//! Containers get their images from any [`ImageService`](crate::runtime::ImageService). Code that needs the store
//! reaches it through [`StoreImages`](crate::runtime::runc::store_images::StoreImages) alone.

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
pub(super) use credentials::{NodeKeyring, PodPullSecrets, PullKeyring};
pub(super) use drop_in::ImageDropInWatcher;
pub(super) use ensure::PodVolumeImages;
pub(super) use for_pod::{ImageFuture, ImageWaitReason, StartingPod};
pub(super) use garbage::{ImageGarbageCollector, UnusedImageRequests, remove_unused_images};
pub(super) use owner::{AgentImages, ImageTools, NodeImageHelpers};
pub(crate) use settings::{read_credential_providers, read_pull_settings, read_registries};
pub(super) use stock::ImageStock;
