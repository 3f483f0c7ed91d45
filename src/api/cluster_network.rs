//! Network of a cluster: ranges of addresses, and which of the usual programs its nodes run. A server of k3s tells it
//! (K3SN-01).

use alloc::{string::String, vec::Vec};
use core::{net::IpAddr, ops::RangeInclusive};

use serde::{Deserialize, Serialize};

/// Address and length of the prefix.
pub type AddressRange = (IpAddr, u8);

/// Network of a cluster, as its servers tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNetwork {
    /// Ranges of pods, at most [`MAX_RANGES`]: of each family at most one is usual.
    pub cluster_ranges: Vec<AddressRange>,
    /// Ranges of Services, at most [`MAX_RANGES`].
    pub service_ranges: Vec<AddressRange>,
    /// Ports of nodes that Services may have.
    pub node_ports: RangeInclusive<u16>,
    /// Backend of flannel: `vxlan`, `host-gw`, `wireguard-native`, `none`, or another word.
    pub flannel_backend: String,
    /// Set if pods' IPv6 addresses are hidden behind the node's.
    #[serde(default)]
    pub flannel_ipv6_masquerade: bool,
    /// Set if nodes reach each other at their external addresses.
    #[serde(default)]
    pub flannel_external_ip: bool,
    /// Set if each node is to do the work of kube-proxy.
    pub has_kube_proxy: bool,
    /// Set if Services of type LoadBalancer get pods `svclb-*`.
    pub has_service_lb: bool,
    /// Set if the servers run the cloud controller of k3s.
    pub has_cloud_controller: bool,
    /// Set if nodes are to enforce network policies.
    pub has_network_policy: bool,
}

/// Most ranges of a kind.
pub const MAX_RANGES: usize = 8;

impl ClusterNetwork {
    /// Default range of ports of nodes.
    pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
}
