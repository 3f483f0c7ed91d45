//! News of devices for the loop, at its beginning and later.

use alloc::collections::BTreeSet;

use super::{giver::FollowedContainers, holders::DeviceHolders};
use crate::{
    agent::{asker::AgentHandle, node_resources::PodsView},
    api::{
        PodUid,
        device::{DeviceHoldings, MachineDevices},
    },
    logic::{
        devices::{ListedUnit, PreferredUnits},
        extended_resources::HeldUnits,
    },
};

/// The loop, as far as plugins know of the agent.
#[derive(Clone)]
pub(crate) struct DeviceLoop(pub(crate) AgentHandle);

impl DeviceLoop {
    /// Tells the loop; comes back when the news wait for their turn.
    pub(crate) async fn tell_loop(&self, news: DeviceNews) {
        // The loop is gone only when the agent ends.
        _ = self.0.send_resource_news(Box::new(news)).await;
    }

    /// Picks one of these resources that no pod needs.
    pub(crate) async fn ask_spare_resource(&self, known: BTreeSet<Box<str>>) -> Option<Box<str>> {
        let spare = move |own: &DeviceHolders, _: &PodsView<'_>| own.find_spare_resource(&known);
        self.0.ask_resources(spare).await.flatten()
    }

    /// Holders of all devices.
    pub(crate) async fn ask_holdings(&self) -> DeviceHoldings {
        let holdings = self.0.ask_resources(DeviceHolders::device_holdings);
        holdings.await.unwrap_or_default()
    }
}

/// Devices as they were before the first pod was admitted.
pub(crate) struct DevicesAtStart {
    /// Devices.
    pub(crate) seen: MachineDevices,
    /// Devices that pods hold since an agent before this one.
    pub(crate) held: Vec<(PodUid, Vec<HeldUnits>)>,
    /// Resources that plugins offered then.
    pub(crate) offered: Vec<Box<str>>,
}

/// News of devices for the loop.
pub(crate) enum DeviceNews {
    /// The machine was looked at: devices that are present, and containers that see them come and go.
    Looked {
        seen: Box<MachineDevices>,
        followed: FollowedContainers,
    },
    /// A plugin offers a resource. `prefers`: it has a say in the choice of units.
    Registered { resource: Box<str>, prefers: bool },
    /// A plugin lists its units.
    Listed {
        resource: Box<str>,
        units: Vec<ListedUnit>,
    },
    /// A plugin has gone.
    Gone { resource: Box<str> },
    /// A resource is dropped and makes room for another one.
    Spared { resource: Box<str> },
    /// A plugin named the units that it would choose for a pod; no answer is an empty one.
    Preferred { pod: PodUid, answer: PreferredUnits },
}
