//! Addresses of this machine, from the kernel and the hosts file. Nothing here asks the network.

use core::net::IpAddr;

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

use super::machine::{read_file_head, read_head_limited};
use crate::logic::node::{
    HostInterface, LocalAddresses, default_interfaces_v4, default_interfaces_v6,
    hosts_file_addresses,
};

/// Most bytes read of a table of routes: default routes are among its first, except on a router with many tables.
const MAX_ROUTE_BYTES: u64 = 512 * 1024;
/// Most addresses that are looked at: a board has some ten, and with many pods one interface for each.
const MAX_ADDRESSES: usize = 1024;

/// Reads the present addresses of this machine. `name` is looked up in the hosts file alone: a name server is asked
/// over the link whose address is sought, and an agent must start without it.
pub(in crate::agent) fn local_addresses(name: &str) -> LocalAddresses {
    LocalAddresses {
        interfaces: list_interfaces(),
        default_v4: default_interfaces_v4(&read_head_limited("/proc/net/route", MAX_ROUTE_BYTES)),
        default_v6: default_interfaces_v6(&read_head_limited(
            "/proc/net/ipv6_route",
            MAX_ROUTE_BYTES,
        )),
        resolved: hosts_file_addresses(&read_file_head("/etc/hosts"), name),
    }
}

fn list_interfaces() -> Vec<HostInterface> {
    let Ok(all) = getifaddrs() else {
        return Vec::new();
    };
    let mut found: Vec<HostInterface> = Vec::new();
    for entry in all.take(MAX_ADDRESSES) {
        if !entry.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        let Some(address) = entry.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())));
        let Some(ip) = ip else { continue };
        match found.iter_mut().find(|i| i.name == entry.interface_name) {
            Some(interface) => interface.addresses.push(ip),
            None => found.push(HostInterface {
                name: entry.interface_name,
                addresses: vec![ip],
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        // NODE-07
        let local = local_addresses("no-such-name");
        let lo = local.interfaces.iter().find(|i| i.name == "lo");
        let loopback: IpAddr = "127.0.0.1".parse().expect("address");
        assert!(lo.is_none_or(|lo| lo.addresses.contains(&loopback)));
        assert!(local.resolved.is_empty());
    }
}
