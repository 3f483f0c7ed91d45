//! News of devices for the loop, at its beginning and later.

use alloc::collections::BTreeSet;
use core::pin::Pin;

use crate::{
    api::{
        PodUid,
        device::{Holdings, Seen},
    },
    logic::devices::{Held, Listed, Preferred},
};

/// A message on its way to the loop, or an answer of it.
pub(super) type Sent<T> = Pin<Box<dyn Future<Output = T>>>;

/// The seam to the loop: plugins do not know more of the agent.
pub(super) trait DeviceLoop {
    /// Tells the loop; comes back when the news wait for their turn.
    fn tell(&self, news: News) -> Sent<()>;

    /// Picks one of these resources that no pod needs.
    fn spare_resource(&self, known: BTreeSet<Box<str>>) -> Sent<Option<Box<str>>>;

    /// Holders of all devices.
    fn holdings(&self) -> Sent<Holdings>;
}

/// Devices as they were before the first pod was admitted.
pub(super) struct Beginning {
    /// Devices.
    pub(super) seen: Seen,
    /// Devices that pods hold since an agent before this one.
    pub(super) held: Vec<(PodUid, Vec<Held>)>,
    /// Resources that plugins offered then.
    pub(super) offered: Vec<Box<str>>,
}

/// News of plugins for the loop.
pub(super) enum News {
    /// A plugin offers a resource. `prefers`: it has a say in the choice of units.
    Registered { resource: Box<str>, prefers: bool },
    /// A plugin lists its units.
    Listed {
        resource: Box<str>,
        units: Vec<Listed>,
    },
    /// A plugin has gone.
    Gone { resource: Box<str> },
    /// A resource is dropped and makes room for another one.
    Spared { resource: Box<str> },
    /// A plugin named the units that it would choose for a pod; no answer is an empty one.
    Preferred { pod: PodUid, answer: Preferred },
}
