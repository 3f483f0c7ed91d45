//! The Node object: what this machine says of itself to the cluster, and when. Names and rules follow kubelet
//! `kubelet_node_status.go` and `nodestatus/setters.go`.
//!
//! - [`initial`] is the Node to create; [`reconcile`] what an old Node of the same name lacks.
//! - [`apply`] brings a Node up to date from a [`View`]; it is asked each round, and for what local commands show.
//! - [`patch`](status_patch) is the smallest patch between the Node last seen and the one wanted.
//! - [`Pace`] says when to compute and when to send; [`Registering`] what to do until the Node is there.
//!
//! Nothing here sends anything, and nothing keeps a Node: callers hold the one last read from the API.

mod addresses;
mod conditions;
mod events;
mod pace;
mod patch;
mod pod_cidr;
mod register;
mod status;
mod unkept;

pub use addresses::{
    Address, AddressError, Interface, Local, default_interfaces_v4, default_interfaces_v6,
    host_ips, in_hosts_file, of_node, own_address,
};
pub use conditions::{MAX_MESSAGE_BYTES, Pressure, aggregate, is_ready};
pub use events::NodeEvent;
pub use pace::{FAST_INTERVAL, FAST_LIMIT, Fast, MAX_TRIES, Pace, fast_round};
pub use patch::{Patch, status_patch};
pub use pod_cidr::{Cidr, CidrError, PodCidrs};
pub use register::{
    AfterCreate, CreateAnswer, Registering, after_create, initial, new_labels, offered, reconcile,
    renew_labels,
};
pub use status::{Applied, apply};
pub use unkept::Unkept;

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::IpAddr;

use crate::api::{
    cri::{Condition, Image},
    node::{RuntimeHandler, Taint},
};

use super::{
    devices::Amount,
    node_resources::{Capacity, Reservations},
};

/// Label: host name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label: operating system, `linux`.
pub const OS: &str = "kubernetes.io/os";
/// Label: architecture in Go's words.
pub const ARCH: &str = "kubernetes.io/arch";
/// The value of [`OS`].
pub const LINUX: &str = "linux";
/// Annotation: the control plane attaches volumes.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Annotation: addresses that the operator gave, for a cloud controller.
const PROVIDED_ADDRESSES: &str = "alpha.kubernetes.io/provided-node-ip";
/// Before a size, as a resource: `hugepages-2Mi`.
const HUGEPAGES: &str = "hugepages-";

/// What the operator says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Name of the node and host name.
    pub name: String,
    /// `--node-ip`: none, one, or one of each family.
    pub node_ips: Vec<IpAddr>,
    /// `--node-labels`, checked.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`, checked.
    pub taints: Vec<Taint>,
    /// `providerID`, may be empty.
    pub provider_id: String,
    /// A cloud controller completes the Node.
    pub external_cloud: bool,
    /// The control plane attaches volumes.
    pub controller_attach_detach: bool,
    /// Most images named; `None`: all.
    pub max_images: Option<u32>,
    /// `maxPods`, with `podsPerCore` already in it.
    pub max_pods: i64,
    /// Ephemeral storage is counted.
    pub local_storage: bool,
    /// Port of the HTTPS server; `None` while there is none.
    pub port: Option<u16>,
    /// Names of features that the agent has and the apiserver asks nodes about, sorted (NODE-15).
    pub declared_features: Vec<String>,
    /// Version reported as the kubelet's.
    pub kubelet_version: String,
}

/// What tells this machine from others, and one boot from the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// Of the firmware; else the machine id.
    pub system_uuid: String,
    /// Of this boot.
    pub boot_id: String,
    /// Kernel release.
    pub kernel_version: String,
    /// Name and version of the distribution.
    pub os_image: String,
    /// Architecture in Go's words.
    pub architecture: String,
}

/// What the machine has and what of it is kept from pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// All there is.
    pub capacity: Capacity,
    /// Huge pages by page size, both in bytes; sizes of which there are none too.
    pub hugepages: Vec<(i64, i64)>,
    /// What is kept.
    pub kept: Reservations,
    /// Bytes; 0 without swap.
    pub swap_bytes: i64,
    /// Devices that this agent gives to pods.
    pub devices: Vec<Amount>,
}

/// What the runtime can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeView {
    /// `name://version`.
    pub version: String,
    /// Handlers, in any order.
    pub handlers: Vec<RuntimeHandler>,
    /// `supplementalGroupsPolicy` is held.
    pub supplemental_groups_policy: bool,
}

/// All that a Node says, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The operator's word.
    pub settings: &'a Settings,
    /// The machine.
    pub identity: &'a Identity,
    /// Its resources.
    pub resources: &'a Resources,
    /// Its addresses.
    pub local: &'a Local,
    /// The runtime.
    pub runtime: &'a RuntimeView,
    /// Images in the store; `None` if they could not be listed.
    pub images: Option<&'a [Image]>,
    /// Pressures that hold.
    pub pressure: &'a Pressure,
    /// Why the node is not ready: runtime, network, storage, shutdown, in this order; empty if it is.
    pub not_ready: &'a [String],
    /// Whether the providers of pods answer, or why not; `None`: there are none.
    pub providers: Option<&'a Condition>,
    /// Whether the disk will last, or why not; `None`: it does not tell.
    pub storage: Option<&'a Condition>,
    /// Sorted unique names of attached volumes in use; `None` until that is known.
    pub volumes_in_use: Option<&'a [String]>,
}

#[cfg(test)]
pub(crate) mod testing;
