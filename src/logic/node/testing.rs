//! Facts of a board from which tests make Nodes.

use alloc::{string::String, vec::Vec};

use super::{
    HostInterface, K3sNodeRules, LocalAddresses, MachineIdentity, MachineResources, NodePressures,
    NodeSettings, NodeView, RuntimeAbilities,
};
use crate::{
    api::cri::{RuntimeCondition, StoredImage},
    node_resources::{MachineCapacity, NodeReservations},
};

pub(crate) const MIB: i64 = 1 << 20;

/// Owned data of a [`NodeView`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) settings: NodeSettings,
    pub(crate) identity: MachineIdentity,
    pub(crate) resources: MachineResources,
    pub(crate) local: LocalAddresses,
    pub(crate) runtime: RuntimeAbilities,
    pub(crate) images: Vec<StoredImage>,
    pub(crate) pressure: NodePressures,
    pub(crate) not_ready: Vec<String>,
    pub(crate) external_pods: Option<RuntimeCondition>,
    pub(crate) storage: Option<RuntimeCondition>,
    pub(crate) volumes: Option<Vec<String>>,
    pub(crate) k3s: Option<K3sNodeRules>,
}

impl Parts {
    /// Four processors, 512 MiB, `eth0` with 192.0.2.1.
    pub(crate) fn board() -> Self {
        Self {
            settings: NodeSettings {
                name: "pi".into(),
                controller_attach_detach: true,
                max_images: Some(50),
                max_pods: 110,
                local_storage: true,
                port: Some(10250),
                kubelet_version: "v1.36.0+p".into(),
                ..NodeSettings::default()
            },
            identity: MachineIdentity {
                machine_id: "mid".into(),
                system_uuid: "suid".into(),
                boot_id: "boot-1".into(),
                kernel_version: "6.1.0".into(),
                os_image: "Debian 12".into(),
                architecture: "arm64".into(),
            },
            resources: MachineResources {
                devices: Vec::new(),
                capacity: MachineCapacity {
                    cpu_milli: 4000,
                    memory_bytes: 512 * MIB,
                    hugepages_bytes: 16 * MIB,
                    storage_bytes: 10 << 30,
                    pids: 4000,
                },
                hugepages: vec![(64 << 10, 0), (2 * MIB, 16 * MIB)],
                kept: NodeReservations {
                    cpu_milli: 100,
                    memory_bytes: 32 * MIB,
                    eviction_memory_bytes: 32 * MIB,
                    storage_bytes: 1 << 30,
                    ..NodeReservations::default()
                },
                swap_bytes: 64 * MIB,
            },
            local: LocalAddresses {
                interfaces: vec![HostInterface {
                    name: "eth0".into(),
                    addresses: vec!["192.0.2.1".parse().expect("address")],
                }],
                default_v4: vec!["eth0".into()],
                ..LocalAddresses::default()
            },
            runtime: RuntimeAbilities {
                version: "picolet://1".into(),
                ..RuntimeAbilities::default()
            },
            ..Self::default()
        }
    }

    pub(crate) fn view(&self) -> NodeView<'_> {
        NodeView {
            settings: &self.settings,
            identity: &self.identity,
            resources: &self.resources,
            local: &self.local,
            runtime: &self.runtime,
            images: Some(&self.images),
            pressure: &self.pressure,
            not_ready: &self.not_ready,
            external_pods: self.external_pods.as_ref(),
            storage: self.storage.as_ref(),
            volumes_in_use: self.volumes.as_deref(),
            k3s: self.k3s,
        }
    }
}
