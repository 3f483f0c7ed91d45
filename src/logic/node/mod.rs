//! The Node object, by which this machine reports itself to the cluster. Names and rules follow kubelet
//! `kubelet_node_status.go` and `nodestatus/setters.go`.
//!
//! - [`initial_node`] makes the Node to create; [`reconcile_node`] brings an old Node of the same name up to date.
//! - [`apply_node_status`] brings a Node's status up to date from a [`NodeView`]: in each round, and for local commands.
//! - [`patch`](compute_status_patch) is the smallest patch between the Node last seen and the one wanted.
//! - [`StatusPace`] tells when to compute and when to send; [`RegisterBackoff`] the pauses until the Node is created.
//!
//! This module neither sends nor keeps a Node: callers hold the one last read from the API.

mod addresses;
mod conditions;
mod events;
mod k3s;
mod pace;
mod patch;
mod pod_cidr;
mod register;
mod status;
mod unkept;

pub use addresses::{
    AddressError, AddressFault, HostInterface, LocalAddresses, choose_host_ips,
    default_interfaces_v4, default_interfaces_v6, hosts_file_addresses, node_host_ips, own_address,
};
pub use conditions::{MAX_MESSAGE_BYTES, NodePressures, aggregate_errors, is_ready};
pub use events::NodeEvent;
pub use k3s::{K3sNodeRules, find_family_fault, is_pod_egress};
pub use pace::{
    FAST_INTERVAL, FAST_LIMIT, MAX_TRIES, StartupRound, StatusPace, decide_startup_round,
};
pub use patch::{NodeStatusPatch, compute_status_patch};
pub use pod_cidr::{Cidr, CidrError, PodCidrs};
pub use register::{
    AfterCreate, CreateAnswer, RegisterBackoff, after_create, initial_node, new_node_labels,
    offered_resources, reconcile_node, renew_labels,
};
pub use status::{AppliedStatus, apply_node_status};
pub use unkept::UnkeptFields;

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::IpAddr;

use crate::api::{
    cri::{RuntimeCondition, StoredImage},
    node::{RuntimeHandler, Taint},
};

use super::{
    extended_resources::ResourceUnits,
    node_resources::{MachineCapacity, NodeReservations},
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
/// Prefix of huge pages as a resource, followed by the page size: `hugepages-2Mi`.
const HUGEPAGES: &str = "hugepages-";

/// Settings of the operator for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// Name of the node and host name.
    pub name: String,
    /// `--node-ip`: none, one, or one of each family.
    pub node_ips: Vec<IpAddr>,
    /// `picolet.nodeExternalIP`: none, one, or one of each family.
    pub external_ips: Vec<IpAddr>,
    /// Set if servers of k3s reach pods through a tunnel of this node, should they want to.
    pub carries_pod_dials: bool,
    /// `--node-labels`, checked.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`, checked.
    pub taints: Vec<Taint>,
    /// `providerID`, may be empty.
    pub provider_id: String,
    /// Set if a cloud controller completes the Node.
    pub external_cloud: bool,
    /// Set if the control plane attaches volumes.
    pub controller_attach_detach: bool,
    /// Largest number of images that are listed; `None`: all.
    pub max_images: Option<u32>,
    /// `maxPods`, with `podsPerCore` already in it.
    pub max_pods: i64,
    /// Set if ephemeral storage is a resource of the node.
    pub local_storage: bool,
    /// Port of the HTTPS server; `None` while there is none.
    pub port: Option<u16>,
    /// Names of features that the agent has and the apiserver asks nodes about, sorted (NODE-15).
    pub declared_features: Vec<String>,
    /// Version reported as the kubelet's.
    pub kubelet_version: String,
}

/// Identity of this machine and of its present boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineIdentity {
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// UUID from the firmware; else the machine id.
    pub system_uuid: String,
    /// Id of this boot.
    pub boot_id: String,
    /// Kernel release.
    pub kernel_version: String,
    /// Name and version of the distribution.
    pub os_image: String,
    /// Architecture in Go's words.
    pub architecture: String,
}

/// Resources of the machine, and the part that is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineResources {
    /// Capacity of the machine.
    pub capacity: MachineCapacity,
    /// Huge pages by page size, both in bytes, including sizes without pages.
    pub hugepages: Vec<(i64, i64)>,
    /// Reserved part, which pods do not get.
    pub kept: NodeReservations,
    /// Swap in bytes; 0 without.
    pub swap_bytes: i64,
    /// Devices that this agent gives to pods.
    pub devices: Vec<ResourceUnits>,
}

/// Abilities of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeAbilities {
    /// `name://version`.
    pub version: String,
    /// Handlers, in any order.
    pub handlers: Vec<RuntimeHandler>,
    /// Set if the runtime honours `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
}

/// All facts for a Node object, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Settings of the operator.
    pub settings: &'a NodeSettings,
    /// Identity of the machine.
    pub identity: &'a MachineIdentity,
    /// Resources of the machine.
    pub resources: &'a MachineResources,
    /// Addresses of the machine.
    pub local: &'a LocalAddresses,
    /// The runtime.
    pub runtime: &'a RuntimeAbilities,
    /// Images in the store; `None` if they could not be listed.
    pub images: Option<&'a [StoredImage]>,
    /// Pressures that hold.
    pub pressure: &'a NodePressures,
    /// Reasons why the node is not ready: of runtime, network, storage, shutdown, in this order; empty if it is ready.
    pub not_ready: &'a [String],
    /// Condition of what runs pods that are no containers: it answers, or the reason why not; `None`: nothing does.
    pub external_pods: Option<&'a RuntimeCondition>,
    /// Condition of the disk: it will last, or the reason why not; `None`: the disk does not tell.
    pub storage: Option<&'a RuntimeCondition>,
    /// Sorted unique names of attached volumes in use; `None`: not known yet.
    pub volumes_in_use: Option<&'a [String]>,
    /// Facts of a cluster of k3s; `None`: it is none, or they are not known yet.
    pub k3s: Option<K3sNodeRules>,
}

#[cfg(test)]
pub(crate) mod testing;
