//! The built-in bridge when its subnet changes (NODE-16): running pods keep the gateway that they know, new pods get
//! the new one, and an address whose last pod is gone is removed.

use core::net::Ipv4Addr;
use std::io;

use nix::{ifaddrs::getifaddrs, net::if_::if_nametoindex};

use crate::sys::netlink;

/// An address of the bridge, and the length of its network part.
pub(super) type BridgeAddress = (Ipv4Addr, u8);

/// Removes addresses from the bridge that are no gateways any more.
///
/// - `wanted`: the present gateways, which are added with the next pod.
/// - `in_use`: returns true if a pod is in the network of an address. Called only for addresses that are not wanted.
/// - Returns true if unwanted ones are left.
pub(super) fn remove_unused_gateways(
    bridge: &str,
    wanted: &[BridgeAddress],
    in_use: impl Fn(BridgeAddress) -> bool,
) -> io::Result<bool> {
    let mut others = list_bridge_addresses(bridge)?;
    others.retain(|address| !wanted.contains(address));
    let (kept, gone): (Vec<_>, Vec<_>) = others.into_iter().partition(|a| in_use(*a));
    if !gone.is_empty() {
        let index = if_nametoindex(bridge)?;
        for (ip, prefix) in gone {
            netlink::remove_address(index, (ip.into(), prefix))?;
        }
    }
    Ok(!kept.is_empty())
}

/// IPv4 addresses of an interface as the kernel lists them; none if there is no such interface.
fn list_bridge_addresses(name: &str) -> io::Result<Vec<BridgeAddress>> {
    let own = getifaddrs()?.filter(|entry| entry.interface_name == name);
    let found = own.filter_map(|entry| {
        let ip = entry.address?.as_sockaddr_in()?.ip();
        let mask = entry.netmask?.as_sockaddr_in()?.ip();
        let prefix = u8::try_from(mask.to_bits().leading_ones()).ok()?;
        Some((ip, prefix))
    });
    Ok(found.collect())
}

/// Returns true if `ip` is in the network of an address.
pub(super) fn network_contains((address, prefix): BridgeAddress, ip: Ipv4Addr) -> bool {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    address.to_bits() & mask == ip.to_bits() & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let net = (Ipv4Addr::new(10, 85, 0, 1), 16);
        for (ip, is) in [("10.85.200.3", true), ("10.86.0.1", false)] {
            assert_eq!(network_contains(net, ip.parse().expect("ip")), is, "{ip}");
        }
    }
}
