//! Interface by which packets to a server leave, as the kernel routes them now (METER-06).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{
    io,
    sync::{Mutex, PoisonError},
};

use nix::net::if_::if_indextoname;

use crate::sys::netlink;

/// Interface of traffic that stays on this machine.
const LOOPBACK: &str = "lo";
/// Addresses that no network has: the way to them is the way to everywhere else. Source: RFC 5737, RFC 3849.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The other end of the connections to one server, whatever its name leads to: the proxy, if there is one.
#[derive(Debug, Default)]
pub struct PeerAddress(Mutex<Option<IpAddr>>);

impl PeerAddress {
    /// Notes that a connection to the server was made, to the address `ip`.
    pub(crate) fn record_address(&self, ip: IpAddr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ip.to_canonical());
    }

    /// Name of the interface by which packets to the server leave now.
    ///
    /// If the server was never reached, or is on this machine (a load balancer beside the agent), the interface of the
    /// default route. Asks the kernel, which answers at once, and no other server.
    ///
    /// - Errors: there is no way.
    pub fn outgoing_interface(&self) -> io::Result<String> {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ip) = known {
            let name = interface_towards(ip)?;
            if name != LOOPBACK {
                return Ok(name);
            }
        }
        let [first, second] = ELSEWHERE;
        interface_towards(first).or_else(|_| interface_towards(second))
    }
}

fn interface_towards(ip: IpAddr) -> io::Result<String> {
    let name = if_indextoname(netlink::route_interface_to(ip)?)?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn card(name: &str, address: &str) -> u32 {
        netlink::create_bridge(name, 0).expect(name);
        let index = netlink::find_link(name).expect(name).index;
        netlink::bring_link_up(index).expect(name);
        netlink::add_address(index, (ip(address), 24)).expect(name);
        index
    }

    /// Follows the way to a server, in a network namespace of its own.
    fn follow() {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        let peer = PeerAddress::default();
        assert!(peer.outgoing_interface().is_err(), "there is no way");
        netlink::bring_link_up(netlink::find_link("lo").expect("lo").index).expect("up");
        let wire = card("eth0", "10.1.0.2");
        let radio = card("wwan0", "10.2.0.2");
        netlink::add_default_route(wire, ip("10.1.0.1")).expect("a route");
        assert_eq!(peer.outgoing_interface().expect("a way"), "eth0");
        // Packets from an own address of another interface leave by the route all the same.
        for (address, interface) in [
            ("10.2.0.9", "wwan0"),
            ("10.1.0.9", "eth0"),
            ("203.0.113.7", "eth0"),
            // A server on this machine: the way that it uses itself matters.
            ("127.0.0.1", "eth0"),
            ("10.2.0.2", "eth0"),
            ("::ffff:10.2.0.9", "wwan0"),
        ] {
            peer.record_address(ip(address));
            assert_eq!(
                peer.outgoing_interface().expect("a way"),
                interface,
                "{address}"
            );
        }
        peer.record_address(ip("203.0.113.7"));
        netlink::delete_link("eth0").expect("gone");
        assert!(peer.outgoing_interface().is_err(), "there is no way");
        netlink::add_default_route(radio, ip("10.2.0.1")).expect("a route");
        assert_eq!(peer.outgoing_interface().expect("a way"), "wwan0");
    }

    #[test]
    fn the_way_is_followed() {
        // METER-06
        if !nix::unistd::geteuid().is_root() {
            skipped!("the way to a server: a namespace needs root");
            return;
        }
        thread::spawn(follow).join().expect("thread");
    }
}
