//! Network of a cluster: ranges of addresses, and which of the usual programs its nodes run. A server of k3s tells it
//! (K3SN-01).

use alloc::{string::String, vec::Vec};
use core::{net::IpAddr, ops::RangeInclusive};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

/// Most ranges of a kind.
pub const MAX_RANGES: usize = 8;
/// Zero bytes, then this, stand before an IPv4 address in 16 bytes; in a mask of 16 bytes all of them are set.
const MAPPED_BYTES: usize = 12;

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
    pub flannel_ipv6_masquerade: bool,
    /// Set if nodes reach each other at their external addresses.
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

impl ClusterNetwork {
    /// Default range of ports of nodes.
    pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
}

/// Facts that servers of k3s tell of their cluster, as far as a node goes by them. They hold until others are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct K3sClusterFacts {
    /// The network.
    pub network: ClusterNetwork,
    /// Way of the apiserver to nodes: `disabled` is directly.
    pub egress_mode: String,
    /// Port of the supervisor beside each apiserver; 0: the one that was joined.
    pub supervisor_port: u16,
    /// Set if nodes are to give each other images.
    pub has_embedded_registry: bool,
    /// Addresses of the apiservers, `host:port`, in the server's order.
    pub apiservers: Vec<String>,
}

/// A range of addresses as Go writes its `net.IPNet`: the address as text, the mask as bytes in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GoAddressRange {
    #[serde(rename = "IP")]
    ip: String,
    mask: String,
}

impl GoAddressRange {
    /// Reads the range. `None`: it has no address, or a mask that is no prefix.
    #[must_use]
    pub fn range(&self) -> Option<AddressRange> {
        let ip: IpAddr = self.ip.parse().ok()?;
        let mask = STANDARD.decode(&self.mask).ok()?;
        let (ip, mask) = match (ip, mask.len()) {
            (IpAddr::V4(_), 4) | (IpAddr::V6(_), 16) => (ip, &mask[..]),
            (IpAddr::V4(_), 16) if mask[..MAPPED_BYTES].iter().all(|byte| *byte == 0xff) => {
                (ip, &mask[MAPPED_BYTES..])
            }
            _ => return None,
        };
        // At most 128 bits.
        let bits: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
        let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
        let length = u8::try_from(ones).ok()?;
        let is_prefix = bits == ones && mask == &prefix_mask(length)[..mask.len()];
        is_prefix.then_some((ip, length))
    }
}

/// A mask of 16 bytes whose first `length` bits are set.
fn prefix_mask(length: u8) -> [u8; 16] {
    let bits = u128::MAX.checked_shl(128 - u32::from(length.min(128)));
    bits.unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_go_writes_them() {
        // K3SN-01
        for (ip, mask, want) in [
            ("10.42.0.0", "//8AAA==", Some("10.42.0.0/16")),
            ("10.43.0.0", "////AA==", Some("10.43.0.0/24")),
            ("0.0.0.0", "AAAAAA==", Some("0.0.0.0/0")),
            ("10.42.0.1", "/////w==", Some("10.42.0.1/32")),
            ("10.0.0.0", "/+AAAA==", Some("10.0.0.0/11")),
            ("10.42.0.0", "////////////////AAA=", None),
            (
                "10.42.0.0",
                "//////////////////8AAA==",
                Some("10.42.0.0/16"),
            ),
            ("fd42::", "////////AAAAAAAAAAAAAA==", Some("fd42::/48")),
            ("fd42::", "//8AAA==", None),
            ("10.42.0.0", "/wD/AA==", None),
            ("10.42.0.0", "AP8AAA==", None),
            ("10.42.0.0", "", None),
            ("10.42.0.0", "?", None),
            ("", "//8AAA==", None),
            ("10.42.0", "//8AAA==", None),
        ] {
            let range = GoAddressRange {
                ip: ip.into(),
                mask: mask.into(),
            };
            let read = range
                .range()
                .map(|(ip, length)| alloc::format!("{ip}/{length}"));
            assert_eq!(read.as_deref(), want, "{ip} {mask}");
        }
    }
}
