//! The network between pods of different nodes, as flannel makes it in a cluster of k3s (FLAN-01 to FLAN-19). Off unless
//! the cluster or `picolet.podNetwork` asks for it.
//!
//! | file | content |
//! |---|---|
//! | `firewall` | rules of iptables, settings and modules of the kernel |
//! | `kernel` | the external interface, the vxlan device, the entries for other nodes |
//! | `keeper` | keeps them as they are to be, and tells the cluster where this node is |
//! | `lister` | reads the other nodes |
//! | `part`, `settings` | the part of a node, and its keys |
//! | `remains` | removes all of it, for a reset and once there is to be none |
//! | `shared` | state and tools of the tasks |
//! | `status` | the state for people |
//!
//! ```text
//! Nodes ─▶ lister ─▶ table of peers ─▶ keeper ─▶ device, neighbours, forwarding entries, routes, rules
//!            ▲ bell                      ▲ changes of interfaces, and each minute
//! ```
//!
//! `logic::pod_network` decides. Nothing of the network ends with the agent: pods go on.

mod firewall;
mod keeper;
mod kernel;
mod lister;
pub(crate) mod part;
mod remains;
mod settings;
mod shared;
mod status;
#[cfg(test)]
mod tests;

/// Device of a family.
const fn device_name(is_v6: bool) -> &'static str {
    if is_v6 { "flannel-v6.1" } else { "flannel.1" }
}

/// Identifier of the network between the vxlan devices.
const VNI: u32 = 1;
/// UDP port of vxlan devices that name none.
const KERNEL_PORT: u16 = 8472;
/// File that flannel's CNI plugin reads, and its directory.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
