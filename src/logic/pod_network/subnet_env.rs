//! The file by which flannel tells its CNI plugin of this node's network (FLAN-11).
//!
//! Source: flannel `pkg/subnet/subnet.go`, `WriteSubnetFile`.

use alloc::string::String;
use core::net::IpAddr;

use crate::node::Cidr;

/// First address of a range that a machine may have: that of the bridge.
fn first_usable(range: Cidr) -> IpAddr {
    match range.address {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().saturating_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().saturating_add(1).into()),
    }
}

/// Writes the file. `families`: the network and the own range of each family in use.
#[must_use]
pub fn format_subnet_file(families: &[(Cidr, Cidr)], mtu: u32) -> String {
    let mut text = String::new();
    for (network, own) in families {
        let prefix = match network.address.is_ipv4() {
            true => "FLANNEL",
            false => "FLANNEL_IPV6",
        };
        let gateway = first_usable(*own);
        text.push_str(&format!(
            "{prefix}_NETWORK={network}\n{prefix}_SUBNET={gateway}/{}\n",
            own.prefix
        ));
    }
    // The plugin is not to hide addresses a second time: the rules of this node do.
    text.push_str(&format!("FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=true\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_both_families() {
        // FLAN-11
        let range = |text: &str| text.parse::<Cidr>().expect(text);
        let v4 = (range("10.42.0.0/16"), range("10.42.3.0/24"));
        let v6 = (range("fd42::/56"), range("fd42:0:0:3::/64"));
        assert_eq!(
            format_subnet_file(&[v4, v6], 1450),
            "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.3.1/24\n\
             FLANNEL_IPV6_NETWORK=fd42::/56\nFLANNEL_IPV6_SUBNET=fd42:0:0:3::1/64\n\
             FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
    }
}
