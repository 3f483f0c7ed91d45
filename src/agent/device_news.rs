//! What the loop is told of devices, at its beginning and later.

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

    /// One of these resources that nobody needs.
    fn spare_resource(&self, known: BTreeSet<Box<str>>) -> Sent<Option<Box<str>>>;

    /// Who has which devices.
    fn holdings(&self) -> Sent<Holdings>;
}

/// What there was before the first pod was admitted.
pub(super) struct Beginning {
    /// Devices.
    pub(super) seen: Seen,
    /// What pods hold since an agent before this one.
    pub(super) held: Vec<(PodUid, Vec<Held>)>,
    /// Resources that plugins offered then.
    pub(super) offered: Vec<Box<str>>,
}

/// Something that the loop is told of plugins.
pub(super) enum News {
    /// One offers a resource. Whether it has a say in which units are chosen.
    Registered { resource: Box<str>, prefers: bool },
    /// It lists its units.
    Listed {
        resource: Box<str>,
        units: Vec<Listed>,
    },
    /// It has gone.
    Gone { resource: Box<str> },
    /// Its resource makes room for that of another one.
    Spared { resource: Box<str> },
    /// It was asked what it would choose for a pod; no answer is an empty one.
    Preferred { pod: PodUid, answer: Preferred },
}
