//! Facts of a board from which tests make Nodes.

use alloc::{string::String, vec::Vec};

use super::{Identity, Interface, Local, Pressure, Resources, RuntimeView, Settings, View};
use crate::{
    api::cri::{Condition, Image},
    node_resources::{Capacity, Reservations},
};

pub(crate) const MIB: i64 = 1 << 20;

/// Owned data of a [`View`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    pub(crate) resources: Resources,
    pub(crate) local: Local,
    pub(crate) runtime: RuntimeView,
    pub(crate) images: Vec<Image>,
    pub(crate) pressure: Pressure,
    pub(crate) not_ready: Vec<String>,
    pub(crate) external_pods: Option<Condition>,
    pub(crate) storage: Option<Condition>,
    pub(crate) volumes: Option<Vec<String>>,
}

impl Parts {
    /// Four processors, 512 MiB, `eth0` with 192.0.2.1.
    pub(crate) fn board() -> Self {
        Self {
            settings: Settings {
                name: "pi".into(),
                controller_attach_detach: true,
                max_images: Some(50),
                max_pods: 110,
                local_storage: true,
                port: Some(10250),
                kubelet_version: "v1.36.0+p".into(),
                ..Settings::default()
            },
            identity: Identity {
                machine_id: "mid".into(),
                system_uuid: "suid".into(),
                boot_id: "boot-1".into(),
                kernel_version: "6.1.0".into(),
                os_image: "Debian 12".into(),
                architecture: "arm64".into(),
            },
            resources: Resources {
                devices: Vec::new(),
                capacity: Capacity {
                    cpu_milli: 4000,
                    memory_bytes: 512 * MIB,
                    hugepages_bytes: 16 * MIB,
                    storage_bytes: 10 << 30,
                    pids: 4000,
                },
                hugepages: vec![(64 << 10, 0), (2 * MIB, 16 * MIB)],
                kept: Reservations {
                    cpu_milli: 100,
                    memory_bytes: 32 * MIB,
                    eviction_memory_bytes: 32 * MIB,
                    storage_bytes: 1 << 30,
                    ..Reservations::default()
                },
                swap_bytes: 64 * MIB,
            },
            local: Local {
                interfaces: vec![Interface {
                    name: "eth0".into(),
                    addresses: vec!["192.0.2.1".parse().expect("address")],
                }],
                default_v4: vec!["eth0".into()],
                ..Local::default()
            },
            runtime: RuntimeView {
                version: "picolet://1".into(),
                ..RuntimeView::default()
            },
            ..Self::default()
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
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
        }
    }
}
