//! What the loop is told of devices, at its beginning and later.

use crate::{
    api::{PodUid, device::Seen},
    logic::devices::{Held, Listed, Preferred},
};

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
