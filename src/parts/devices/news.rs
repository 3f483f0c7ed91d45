//! News of devices for the loop, at its beginning and later.

use alloc::collections::BTreeSet;

use super::{giver::Followed, holders::DeviceHolders};
use crate::{
    agent::{asker::Asker, node_resources::Later},
    api::{
        PodUid,
        device::{Holdings, Seen},
    },
    logic::{
        devices::{Listed, Preferred},
        extended_resources::Held,
    },
};

/// The seam to the loop: plugins do not know more of the agent.
pub(crate) trait DeviceLoop {
    /// Tells the loop; comes back when the news wait for their turn.
    fn tell(&self, news: News) -> Later<'static, ()>;

    /// Picks one of these resources that no pod needs.
    fn spare_resource(&self, known: BTreeSet<Box<str>>) -> Later<'static, Option<Box<str>>>;

    /// Holders of all devices.
    fn holdings(&self) -> Later<'static, Holdings>;
}

/// Devices as they were before the first pod was admitted.
pub(crate) struct Beginning {
    /// Devices.
    pub(crate) seen: Seen,
    /// Devices that pods hold since an agent before this one.
    pub(crate) held: Vec<(PodUid, Vec<Held>)>,
    /// Resources that plugins offered then.
    pub(crate) offered: Vec<Box<str>>,
}

impl DeviceLoop for Asker {
    fn tell(&self, news: News) -> Later<'static, ()> {
        let asker = self.clone();
        Box::pin(async move {
            // The loop is gone only when the agent ends.
            _ = asker.tell_resources(Box::new(news)).await;
        })
    }

    fn spare_resource(&self, known: BTreeSet<Box<str>>) -> Later<'static, Option<Box<str>>> {
        let asker = self.clone();
        Box::pin(async move {
            let spare =
                asker.ask_resources(move |own: &DeviceHolders, _| own.spare_resource(&known));
            spare.await.flatten()
        })
    }

    fn holdings(&self) -> Later<'static, Holdings> {
        let asker = self.clone();
        Box::pin(async move {
            let holdings = asker.ask_resources(DeviceHolders::holdings);
            holdings.await.unwrap_or_default()
        })
    }
}

/// News of devices for the loop.
pub(crate) enum News {
    /// The machine was looked at: devices that are present, and containers that see them come and go.
    Looked { seen: Box<Seen>, followed: Followed },
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
