//! Entries of the kernel's tables: the fewest changes that make them as wanted (FLAN-07, FLAN-08, FLAN-16).
//!
//! A node behind a vxlan device has three entries: a neighbour (its first pod address → its hardware address), a
//! forwarding entry (hardware address → public address), a route (its pods → its first pod address). A node behind a
//! gateway has a route only.
//!
//! Source: flannel `pkg/backend/vxlan/vxlan_network.go`, `pkg/backend/route_network.go`.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::{HardwareAddress, PodNetworkBackend, peers::Peer};
use crate::{api::route::RouteEntry, node::Cidr};

/// Numbers by which the kernel knows who made a route. Source: `linux/rtnetlink.h`.
#[derive(Debug)]
pub struct RouteOrigin;

impl RouteOrigin {
    /// The kernel itself, by an address.
    pub const KERNEL: u8 = 2;
    /// Programs that do not say who they are: routes of flannel bear it, too.
    pub const BOOT: u8 = 3;
    /// Router advertisements.
    pub const ADVERTISEMENT: u8 = 9;
    /// This program: no other program is known that uses the number.
    pub const OWN: u8 = 112;
}

/// Preference of a route that names none.
#[must_use]
pub const fn default_metric(is_v6: bool) -> u32 {
    if is_v6 { 1024 } else { 0 }
}

/// Entries of one device, or of one interface, in one family, sorted by nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelEntries {
    /// Permanent neighbours of the device.
    pub neighbours: Vec<(IpAddr, HardwareAddress)>,
    /// Permanent forwarding entries of the device.
    pub forwarding: Vec<(HardwareAddress, IpAddr)>,
    /// Routes by the device, and those with the mark of this program.
    pub routes: Vec<RouteEntry>,
}

/// Change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// Makes a neighbour, or changes its hardware address.
    SetNeighbour(IpAddr, HardwareAddress),
    /// Makes a forwarding entry, or changes its address.
    SetForwarding(HardwareAddress, IpAddr),
    /// Makes a route, or changes the next hop of one with these destinations.
    SetRoute(RouteEntry),
    /// Deletes a route.
    DeleteRoute(RouteEntry),
    /// Deletes a forwarding entry.
    DeleteForwarding(HardwareAddress, IpAddr),
    /// Deletes a neighbour.
    DeleteNeighbour(IpAddr),
}

/// Changes that bring the tables to what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPlan {
    /// Entries that are made or changed, with the place of the node in the list of nodes: in the order in which a node
    /// becomes reachable. If one fails, the later ones of its node are left out.
    pub sets: Vec<(usize, EntryChange)>,
    /// Entries that are deleted; none hinders the next.
    pub deletions: Vec<EntryChange>,
}

impl EntryPlan {
    /// Compares the entries of one family with those that its peers need. `interface`: index of the vxlan device, or of
    /// the external interface.
    #[must_use]
    pub fn compare(
        backend: PodNetworkBackend,
        interface: u32,
        peers: &[Peer<'_>],
        found: &KernelEntries,
    ) -> Self {
        let mut plan = Self::default();
        let is_tunnel = backend == PodNetworkBackend::Vxlan;
        for (index, peer) in peers.iter().enumerate() {
            let first = peer.range.address;
            if is_tunnel {
                if !found.neighbours.contains(&(first, peer.mac)) {
                    let change = EntryChange::SetNeighbour(first, peer.mac);
                    plan.sets.push((index, change));
                }
                if !found.forwarding.contains(&(peer.mac, peer.public_ip)) {
                    let change = EntryChange::SetForwarding(peer.mac, peer.public_ip);
                    plan.sets.push((index, change));
                }
            }
            let route = wanted_route(backend, interface, peer);
            if !found.routes.contains(&route) {
                plan.sets.push((index, EntryChange::SetRoute(route)));
            }
        }
        for route in &found.routes {
            let of_peer = peers.iter().find(|peer| peer.range == route_range(route));
            let is_replaced = of_peer.is_some_and(|peer| {
                let wanted = wanted_route(backend, interface, peer);
                // A change of the next hop replaces the one route of these destinations.
                *route == wanted
                    || (wanted.metric == route.metric && !found.routes.contains(&wanted))
            });
            if !is_replaced {
                plan.deletions.push(EntryChange::DeleteRoute(*route));
            }
        }
        for &(mac, ip) in &found.forwarding {
            let of_peer = peers.iter().find(|peer| is_tunnel && peer.mac == mac);
            let is_replaced = of_peer.is_some_and(|peer| {
                peer.public_ip == ip || !found.forwarding.contains(&(mac, peer.public_ip))
            });
            if !is_replaced {
                plan.deletions.push(EntryChange::DeleteForwarding(mac, ip));
            }
        }
        for &(ip, _) in &found.neighbours {
            let is_wanted = peers
                .iter()
                .any(|peer| is_tunnel && peer.range.address == ip);
            if !is_wanted {
                plan.deletions.push(EntryChange::DeleteNeighbour(ip));
            }
        }
        plan
    }

    /// Returns true if nothing is to be changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.deletions.is_empty()
    }
}

/// Returns true if a route of the main table is this network's own. `device`: index of the vxlan device, 0 if there is none.
#[must_use]
pub const fn is_own_route(route: &RouteEntry, device: u32) -> bool {
    match route.origin {
        RouteOrigin::OWN => true,
        RouteOrigin::KERNEL | RouteOrigin::ADVERTISEMENT => false,
        _ => device != 0 && route.interface == device,
    }
}

fn route_range(route: &RouteEntry) -> Cidr {
    Cidr {
        address: route.address,
        prefix: route.prefix,
    }
}

fn wanted_route(backend: PodNetworkBackend, interface: u32, peer: &Peer<'_>) -> RouteEntry {
    let is_tunnel = backend == PodNetworkBackend::Vxlan;
    let first = peer.range.address;
    RouteEntry {
        address: first,
        prefix: peer.range.prefix,
        via: Some(if is_tunnel { first } else { peer.public_ip }),
        interface,
        is_on_link: is_tunnel,
        metric: default_metric(first.is_ipv6()),
        // As flannel's: the device tells whose they are.
        origin: match is_tunnel {
            true => RouteOrigin::BOOT,
            false => RouteOrigin::OWN,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn mac(last: u8) -> HardwareAddress {
        HardwareAddress([2, 0, 0, 0, 0, last])
    }

    fn peer(range: &str, public_ip: &str, last: u8) -> Peer<'static> {
        Peer {
            name: "node",
            range: range.parse().expect(range),
            public_ip: ip(public_ip),
            mac: mac(last),
        }
    }

    /// Carries out a plan as the kernel does.
    fn apply(plan: &EntryPlan, entries: &mut KernelEntries) {
        let changes = plan.sets.iter().map(|(_, change)| change);
        for change in changes.chain(&plan.deletions) {
            match *change {
                EntryChange::SetNeighbour(ip, mac) => {
                    entries.neighbours.retain(|(known, _)| *known != ip);
                    entries.neighbours.push((ip, mac));
                }
                EntryChange::SetForwarding(mac, ip) => {
                    let known = entries.forwarding.iter_mut().find(|(m, _)| *m == mac);
                    match known {
                        Some(known) => known.1 = ip,
                        None => entries.forwarding.push((mac, ip)),
                    }
                }
                EntryChange::SetRoute(route) => {
                    let is_same = |known: &&mut RouteEntry| {
                        route_range(known) == route_range(&route) && known.metric == route.metric
                    };
                    match entries.routes.iter_mut().find(is_same) {
                        Some(known) => *known = route,
                        None => entries.routes.push(route),
                    }
                }
                EntryChange::DeleteRoute(route) => entries.routes.retain(|r| *r != route),
                EntryChange::DeleteForwarding(mac, ip) => {
                    entries.forwarding.retain(|entry| *entry != (mac, ip));
                }
                EntryChange::DeleteNeighbour(ip) => entries.neighbours.retain(|(n, _)| *n != ip),
            }
        }
    }

    const VXLAN: PodNetworkBackend = PodNetworkBackend::Vxlan;

    #[test]
    fn a_node_has_three_entries_in_order() {
        // FLAN-07
        let peers = [
            peer("10.42.1.0/24", "192.0.2.1", 1),
            peer("10.42.2.0/24", "192.0.2.2", 2),
        ];
        let plan = EntryPlan::compare(VXLAN, 9, &peers, &KernelEntries::default());
        let route = |first: &str| RouteEntry {
            address: ip(first),
            prefix: 24,
            via: Some(ip(first)),
            interface: 9,
            is_on_link: true,
            metric: 0,
            origin: RouteOrigin::BOOT,
        };
        assert_eq!(
            plan.sets,
            [
                (0, EntryChange::SetNeighbour(ip("10.42.1.0"), mac(1))),
                (0, EntryChange::SetForwarding(mac(1), ip("192.0.2.1"))),
                (0, EntryChange::SetRoute(route("10.42.1.0"))),
                (1, EntryChange::SetNeighbour(ip("10.42.2.0"), mac(2))),
                (1, EntryChange::SetForwarding(mac(2), ip("192.0.2.2"))),
                (1, EntryChange::SetRoute(route("10.42.2.0"))),
            ]
        );
        let mut entries = KernelEntries::default();
        apply(&plan, &mut entries);
        assert!(EntryPlan::compare(VXLAN, 9, &peers, &entries).is_empty());
        // One node less: its entries alone.
        let plan = EntryPlan::compare(VXLAN, 9, &peers[..1], &entries);
        assert_eq!(plan.sets, []);
        assert_eq!(
            plan.deletions,
            [
                EntryChange::DeleteRoute(route("10.42.2.0")),
                EntryChange::DeleteForwarding(mac(2), ip("192.0.2.2")),
                EntryChange::DeleteNeighbour(ip("10.42.2.0")),
            ]
        );
    }

    #[test]
    fn only_what_differs_is_changed() {
        // FLAN-08 FLAN-09
        let before = [peer("10.42.1.0/24", "192.0.2.1", 1)];
        let mut entries = KernelEntries::default();
        apply(
            &EntryPlan::compare(VXLAN, 9, &before, &entries),
            &mut entries,
        );
        let moved = [peer("10.42.1.0/24", "192.0.2.8", 1)];
        let plan = EntryPlan::compare(VXLAN, 9, &moved, &entries);
        let forwarding = EntryChange::SetForwarding(mac(1), ip("192.0.2.8"));
        assert_eq!(
            (plan.sets.as_slice(), plan.deletions.len()),
            (&[(0, forwarding)][..], 0)
        );
        apply(&plan, &mut entries);
        // A reflash: another hardware address. The route stays.
        let new = [peer("10.42.1.0/24", "192.0.2.8", 2)];
        let plan = EntryPlan::compare(VXLAN, 9, &new, &entries);
        assert_eq!(
            plan.sets,
            [
                (0, EntryChange::SetNeighbour(ip("10.42.1.0"), mac(2))),
                (0, EntryChange::SetForwarding(mac(2), ip("192.0.2.8"))),
            ]
        );
        assert_eq!(
            plan.deletions,
            [EntryChange::DeleteForwarding(mac(1), ip("192.0.2.8"))]
        );
        apply(&plan, &mut entries);
        // A flush of one table is repaired.
        entries.neighbours.clear();
        let plan = EntryPlan::compare(VXLAN, 9, &new, &entries);
        assert_eq!(
            plan.sets,
            [(0, EntryChange::SetNeighbour(ip("10.42.1.0"), mac(2)))]
        );
        assert_eq!(plan.deletions, []);
        // Doubled entries go, the right ones stay.
        apply(&plan, &mut entries);
        let right = entries.clone();
        entries.forwarding.push((mac(2), ip("192.0.2.99")));
        let doubled = RouteEntry {
            metric: 50,
            ..entries.routes[0]
        };
        entries.routes.push(doubled);
        let plan = EntryPlan::compare(VXLAN, 9, &new, &entries);
        assert_eq!((plan.sets.len(), plan.deletions.len()), (0, 2));
        apply(&plan, &mut entries);
        assert_eq!(entries, right);
    }

    #[test]
    fn any_tables_become_right_in_two_rounds() {
        // FLAN-08
        let ranges = ["10.42.1.0/24", "10.42.2.0/24", "10.42.3.0/24"];
        let public = ["192.0.2.1", "192.0.2.2"];
        // Every choice of (range, address, hardware address) for two nodes, against the entries of every other choice.
        let mut choices = Vec::new();
        for (a, first) in ranges.iter().enumerate() {
            for second in ranges.iter().skip(a + 1) {
                for (ip_a, ip_b) in [(0, 1), (1, 0), (0, 0)] {
                    for (mac_a, mac_b) in [(1, 2), (2, 1), (2, 3)] {
                        choices.push([
                            peer(first, public[ip_a], mac_a),
                            peer(second, public[ip_b], mac_b),
                        ]);
                    }
                }
            }
        }
        for backend in [VXLAN, PodNetworkBackend::HostGateway] {
            for before in &choices {
                let mut known = KernelEntries::default();
                apply(&EntryPlan::compare(backend, 9, before, &known), &mut known);
                for wanted in &choices {
                    let mut entries = known.clone();
                    apply(
                        &EntryPlan::compare(backend, 9, wanted, &entries),
                        &mut entries,
                    );
                    let rest = EntryPlan::compare(backend, 9, wanted, &entries);
                    assert!(rest.is_empty(), "{before:?} {wanted:?} {rest:?}");
                }
            }
        }
    }

    #[test]
    fn gateways_have_routes_only() {
        // FLAN-16
        let backend = PodNetworkBackend::HostGateway;
        let peers = [peer("fd00:1::/64", "2001:db8::1", 0)];
        let plan = EntryPlan::compare(backend, 2, &peers, &KernelEntries::default());
        let route = RouteEntry {
            address: ip("fd00:1::"),
            prefix: 64,
            via: Some(ip("2001:db8::1")),
            interface: 2,
            is_on_link: false,
            metric: 1024,
            origin: RouteOrigin::OWN,
        };
        assert_eq!(plan.sets, [(0, EntryChange::SetRoute(route))]);
        // A wrong next hop is replaced, and so is a wrong interface.
        for wrong in [
            RouteEntry {
                via: Some(ip("2001:db8::9")),
                ..route
            },
            RouteEntry {
                interface: 3,
                ..route
            },
        ] {
            let found = KernelEntries {
                routes: vec![wrong],
                ..KernelEntries::default()
            };
            let plan = EntryPlan::compare(backend, 2, &peers, &found);
            assert_eq!(plan.sets, [(0, EntryChange::SetRoute(route))]);
            assert_eq!(plan.deletions, []);
        }
    }

    #[test]
    fn own_routes() {
        // FLAN-08
        let route = |interface, origin| RouteEntry {
            address: ip("10.42.1.0"),
            prefix: 24,
            via: None,
            interface,
            is_on_link: false,
            metric: 0,
            origin,
        };
        for (interface, origin, is_own) in [
            (9, RouteOrigin::BOOT, true),
            (9, 4, true),
            (2, RouteOrigin::BOOT, false),
            (2, RouteOrigin::OWN, true),
            (9, RouteOrigin::KERNEL, false),
            (9, RouteOrigin::ADVERTISEMENT, false),
        ] {
            let route = route(interface, origin);
            assert_eq!(is_own_route(&route, 9), is_own, "{interface} {origin}");
        }
        assert!(!is_own_route(&route(0, RouteOrigin::BOOT), 0));
    }
}
