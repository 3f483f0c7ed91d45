//! Addresses of a node (NODE-07, NODE-08).

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::net::{IpAddr, Ipv4Addr};

use super::PROVIDED_ADDRESSES;
use crate::api::{Node, node::NodeAddress};

/// Number of lines that are read of a routing table: a router's may have hundreds of thousands.
const MAX_ROUTES: usize = 4096;

/// An interface that is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInterface {
    /// Name of the interface.
    pub name: String,
    /// Addresses of the interface, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// Addresses and default routes of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    /// Interfaces that are up, in the kernel's order.
    pub interfaces: Vec<HostInterface>,
    /// Names of interfaces with a default route for IPv4, best first.
    pub default_v4: Vec<String>,
    /// Names of interfaces with a default route for IPv6, best first.
    pub default_v6: Vec<String>,
    /// Addresses to which the node's name resolves, in the resolver's order; empty if the resolver was not asked or
    /// does not know.
    pub resolved: Vec<IpAddr>,
}

/// Reason why an address cannot be a node's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// 127.0.0.0/8, ::1.
    #[error("it can't be loopback address")]
    Loopback,
    /// Multicast address.
    #[error("it can't be a multicast address")]
    Multicast,
    /// 169.254.0.0/16, fe80::/10.
    #[error("it can't be a link-local unicast address")]
    LinkLocal,
    /// Address of all zeros.
    #[error("it can't be an all zeros address")]
    Unspecified,
    /// No interface of this host has the address.
    #[error("it is on no interface of this host")]
    Elsewhere,
}

/// Reason why the node has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// An address of `--node-ip` cannot be used.
    #[error("--node-ip {ip} cannot be used: {why}")]
    Refused {
        /// The address.
        ip: IpAddr,
        /// Fault of the address.
        why: AddressFault,
    },
    /// There is no address by name, route or interface.
    #[error(
        "no address of node {0} found: no --node-ip, no name that resolves to one of this host, no default route"
    )]
    None(String),
}

impl LocalAddresses {
    /// Checks that `ip` can be an address of this node.
    ///
    /// - Source: kubelet `validateNodeIP`.
    pub fn check_node_ip(&self, ip: IpAddr) -> Result<(), AddressFault> {
        if ip.is_loopback() {
            return Err(AddressFault::Loopback);
        }
        if ip.is_multicast() {
            return Err(AddressFault::Multicast);
        }
        if is_link_local(ip) {
            return Err(AddressFault::LinkLocal);
        }
        if ip.is_unspecified() {
            return Err(AddressFault::Unspecified);
        }
        let here = self.interfaces.iter().any(|i| i.addresses.contains(&ip));
        here.then_some(()).ok_or(AddressFault::Elsewhere)
    }

    /// First address of a family on the interfaces with default routes.
    fn default_route_address(&self, v4: bool) -> Option<IpAddr> {
        let names = if v4 {
            &self.default_v4
        } else {
            &self.default_v6
        };
        names.iter().find_map(|name| {
            let interface = self.interfaces.iter().find(|i| i.name == *name)?;
            self.first_usable_address(interface, v4)
        })
    }

    fn first_usable_address(&self, interface: &HostInterface, v4: bool) -> Option<IpAddr> {
        let mut addresses = interface.addresses.iter().copied();
        addresses.find(|ip| ip.is_ipv4() == v4 && self.check_node_ip(*ip).is_ok())
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Chooses the addresses of the host, primary first: those asked for; else one by the first of these ways that gives
/// any: the name if it is an address; the addresses to which the name resolves; the default route; any interface.
///
/// - `asked`: none, one, or one of each family; a single address of all zeros only prefers its family.
/// - The last resort is our own: a kubelet gives up there, and a board without a router would have no address.
/// - Source: kubelet `nodestatus/setters.go`, `NodeAddress`; apimachinery `util/net`, `ChooseHostInterface`.
pub fn choose_host_ips(
    asked: &[IpAddr],
    name: &str,
    local: &LocalAddresses,
) -> Result<Vec<IpAddr>, AddressError> {
    let given = || asked.iter().copied().filter(|ip| !ip.is_unspecified());
    for ip in given() {
        local
            .check_node_ip(ip)
            .map_err(|why| AddressError::Refused { ip, why })?;
    }
    if given().next().is_some() {
        return Ok(given().collect());
    }
    if let Ok(ip) = name.parse() {
        return Ok(vec![ip]);
    }
    let v4 = asked.first().is_none_or(IpAddr::is_ipv4);
    let usable = || {
        local
            .resolved
            .iter()
            .filter(|ip| local.check_node_ip(**ip).is_ok())
    };
    let resolved = || {
        usable()
            .find(|ip| ip.is_ipv4() == v4)
            .or_else(|| usable().next())
    };
    let any = |v4| {
        local
            .interfaces
            .iter()
            .find_map(|i| local.first_usable_address(i, v4))
    };
    resolved()
        .copied()
        .or_else(|| local.default_route_address(v4))
        .or_else(|| local.default_route_address(!v4))
        .or_else(|| any(v4))
        .or_else(|| any(!v4))
        .map(|ip| vec![ip])
        .ok_or_else(|| AddressError::None(name.into()))
}

/// Address at which this node reaches itself and host-network pods: its first address, or 127.0.0.1 without one.
#[must_use]
pub fn own_address(host_ips: &[IpAddr]) -> IpAddr {
    let first = host_ips.first().copied();
    first.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Host IPs of a Node object, primary first: one, or the first of each family. Internal addresses come before external
/// ones.
///
/// - Source: `pkg/util/node`, `GetNodeHostIPs`.
#[must_use]
pub fn node_host_ips(node: &Node) -> Vec<IpAddr> {
    let of = |kind: &str| {
        let all = node.status.addresses.iter();
        all.filter(|a| a.kind == kind)
            .filter_map(|a| a.address.parse::<IpAddr>().ok())
            .collect::<Vec<_>>()
    };
    let all = [of("InternalIP"), of("ExternalIP")].concat();
    let first = all.first().copied();
    let second = first.and_then(|f| all.iter().find(|ip| ip.is_ipv4() != f.is_ipv4()));
    first.into_iter().chain(second.copied()).collect()
}

/// Sets `status.addresses` and the annotation for cloud controllers. On an error addresses stay as they are.
pub(super) fn set_node_addresses(
    node: &mut Node,
    asked: &[IpAddr],
    external_cloud: bool,
    name: &str,
    local: &LocalAddresses,
) -> Result<(), AddressError> {
    let given: Vec<String> = asked
        .iter()
        .filter(|ip| !ip.is_unspecified())
        .map(ToString::to_string)
        .collect();
    let ips = if external_cloud && given.is_empty() {
        // The cloud controller will know the addresses.
        Ok(Vec::new())
    } else {
        choose_host_ips(asked, name, local)
    };
    let annotations: &mut BTreeMap<String, String> = &mut node.metadata.annotations;
    if external_cloud && !given.is_empty() {
        if ips.is_ok() {
            annotations.insert(PROVIDED_ADDRESSES.into(), given.join(","));
        }
    } else {
        annotations.remove(PROVIDED_ADDRESSES);
    }
    let mut ips = ips?;
    if external_cloud {
        if !node.status.addresses.is_empty() {
            return Ok(());
        }
        // A preferred family alone is reason enough to look for an address.
        if !asked.is_empty() && given.is_empty() {
            ips = choose_host_ips(asked, name, local)?;
        }
    }
    let address = |kind: &str, address: String| NodeAddress {
        kind: kind.into(),
        address,
    };
    node.status.addresses = ips
        .iter()
        .map(|ip| address("InternalIP", ip.to_string()))
        .chain([address("Hostname", name.into())])
        .collect();
    Ok(())
}

/// Addresses that a hosts(5) file has for a name, in its order.
#[must_use]
pub fn hosts_file_addresses(text: &str, name: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let ip = words.next()?.parse().ok()?;
            words
                .any(|word| word.eq_ignore_ascii_case(name))
                .then_some(ip)
        })
        .collect()
}

/// Names of the interfaces with an IPv4 default route, lowest metric first, from `/proc/net/route`.
#[must_use]
pub fn default_interfaces_v4(table: &str) -> Vec<String> {
    sort_by_metric(table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().take(8).collect();
        let default = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
        let metric = fields.get(6)?.parse().ok()?;
        default.then(|| (metric, fields[0]))
    }))
}

/// Names of the interfaces with an IPv6 default route, lowest metric first, from `/proc/net/ipv6_route`. Routes without
/// gateway do not count: they are what the kernel answers "unreachable" from.
#[must_use]
pub fn default_interfaces_v6(table: &str) -> Vec<String> {
    let zero = |field: &str| field.bytes().all(|c| c == b'0');
    sort_by_metric(table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().take(10).collect();
        let default = zero(fields.first()?) && *fields.get(1)? == "00" && !zero(fields.get(4)?);
        let metric = u32::from_str_radix(fields.get(5)?, 16).ok()?;
        default.then_some((metric, *fields.get(9)?))
    }))
}

fn sort_by_metric<'a>(routes: impl Iterator<Item = (u32, &'a str)>) -> Vec<String> {
    use crate::api::order::OrderExt as _;
    let mut routes: Vec<(u32, &str)> = routes.take(MAX_ROUTES).collect();
    routes.stable_sort_by_key(|(metric, _)| *metric);
    let mut names: Vec<String> = Vec::new();
    for (_, name) in routes {
        if !names.iter().any(|n| n == name) {
            names.push(name.into());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace()
            .map(|ip| ip.parse().expect(ip))
            .collect()
    }

    /// `eth0=192.0.2.1,fe80::1 wlan0=198.51.100.1`
    fn local(interfaces: &str, v4: &str, v6: &str, resolved: &str) -> LocalAddresses {
        let names = |text: &str| text.split_whitespace().map(Into::into).collect();
        LocalAddresses {
            interfaces: interfaces
                .split_whitespace()
                .map(|part| {
                    let (name, list) = part.split_once('=').expect(part);
                    HostInterface {
                        name: name.into(),
                        addresses: ips(&list.replace(',', " ")),
                    }
                })
                .collect(),
            default_v4: names(v4),
            default_v6: names(v6),
            resolved: ips(resolved),
        }
    }

    const BOARD: &str =
        "lo=127.0.0.1,::1 eth0=192.0.2.1,fe80::1,2001:db8::1 wlan0=198.51.100.1,2001:db8:1::1";

    #[test]
    fn which_addresses() {
        // NODE-07
        for (name, asked, node, local, want) in [
            (
                "asked for",
                "198.51.100.1",
                "pi",
                local(BOARD, "eth0", "", ""),
                "198.51.100.1",
            ),
            (
                "both families",
                "2001:db8::1 192.0.2.1",
                "pi",
                local(BOARD, "", "", ""),
                "2001:db8::1 192.0.2.1",
            ),
            (
                "the name is an address",
                "",
                "203.0.113.9",
                local(BOARD, "eth0", "", ""),
                "203.0.113.9",
            ),
            (
                "resolved",
                "",
                "pi",
                local(BOARD, "eth0", "", "203.0.113.1 127.0.1.1 198.51.100.1"),
                "198.51.100.1",
            ),
            (
                "resolved, IPv4 first",
                "",
                "pi",
                local(BOARD, "eth0", "", "2001:db8:1::1 198.51.100.1"),
                "198.51.100.1",
            ),
            (
                "resolved, IPv6 preferred",
                "::",
                "pi",
                local(BOARD, "eth0", "", "198.51.100.1 2001:db8:1::1"),
                "2001:db8:1::1",
            ),
            (
                "resolved, only the other family",
                "0.0.0.0",
                "pi",
                local(BOARD, "eth0", "", "2001:db8:1::1"),
                "2001:db8:1::1",
            ),
            (
                "default route",
                "",
                "pi",
                local(BOARD, "wlan0 eth0", "eth0", ""),
                "198.51.100.1",
            ),
            (
                "default route, IPv6 preferred",
                "::",
                "pi",
                local(BOARD, "wlan0", "eth0", ""),
                "2001:db8::1",
            ),
            (
                "only IPv6 has a route",
                "",
                "pi",
                local(BOARD, "", "wlan0", ""),
                "2001:db8:1::1",
            ),
            (
                "the interface of the route has no address",
                "",
                "pi",
                local(BOARD, "ppp0 eth0", "", ""),
                "192.0.2.1",
            ),
            ("no route", "", "pi", local(BOARD, "", "", ""), "192.0.2.1"),
            (
                "no route, IPv6 preferred",
                "::",
                "pi",
                local(BOARD, "", "", ""),
                "2001:db8::1",
            ),
        ] {
            assert_eq!(
                choose_host_ips(&ips(asked), node, &local),
                Ok(ips(want)),
                "{name}"
            );
        }
        let nothing = local(
            "lo=127.0.0.1 eth0=169.254.1.1,fe80::1",
            "eth0",
            "",
            "127.0.1.1",
        );
        assert_eq!(
            choose_host_ips(&[], "pi", &nothing),
            Err(AddressError::None("pi".into()))
        );
        // PROBE-24: what is in its network is asked all the same.
        assert!(own_address(&[]).is_loopback());
        let two = ips("192.0.2.1 2001:db8::9");
        assert_eq!(own_address(&two), two[0]);
    }

    #[test]
    fn refused_addresses() {
        // NODE-07
        let local = local(BOARD, "eth0", "", "");
        for (ip, why) in [
            ("127.0.0.1", AddressFault::Loopback),
            ("::1", AddressFault::Loopback),
            ("224.0.0.1", AddressFault::Multicast),
            ("ff02::1", AddressFault::Multicast),
            ("169.254.3.4", AddressFault::LinkLocal),
            ("fe80::1", AddressFault::LinkLocal),
            ("203.0.113.1", AddressFault::Elsewhere),
        ] {
            let ip: IpAddr = ip.parse().expect(ip);
            assert_eq!(
                choose_host_ips(&[ip], "pi", &local),
                Err(AddressError::Refused {
                    ip,
                    why: why.clone()
                }),
                "{ip}"
            );
        }
        assert_eq!(
            local.check_node_ip(ips("0.0.0.0")[0]),
            Err(AddressFault::Unspecified)
        );
        // The second of a pair is checked too.
        assert!(choose_host_ips(&ips("192.0.2.1 2001:db8::9"), "pi", &local).is_err());
    }

    #[test]
    fn with_and_without_a_cloud() {
        let local = local(BOARD, "eth0", "eth0", "");
        let shown = |node: &Node| {
            let list = node.status.addresses.iter();
            let list: Vec<String> = list.map(|a| format!("{}={}", a.kind, a.address)).collect();
            let note = node.metadata.annotations.get(PROVIDED_ADDRESSES);
            (list.join(" "), note.cloned().unwrap_or_default())
        };
        // NODE-07 NODE-08
        for (name, asked, cloud, before, want, note) in [
            ("own", "", false, "", "InternalIP=192.0.2.1 Hostname=pi", ""),
            (
                "replaces what was there",
                "198.51.100.1",
                false,
                "ExternalIP=1.1.1.1",
                "InternalIP=198.51.100.1 Hostname=pi",
                "",
            ),
            (
                "pair",
                "192.0.2.1 2001:db8::1",
                false,
                "",
                "InternalIP=192.0.2.1 InternalIP=2001:db8::1 Hostname=pi",
                "",
            ),
            ("cloud, not asked", "", true, "", "Hostname=pi", ""),
            (
                "cloud has answered",
                "",
                true,
                "ExternalIP=1.1.1.1",
                "ExternalIP=1.1.1.1",
                "",
            ),
            (
                "cloud, asked",
                "192.0.2.1",
                true,
                "",
                "InternalIP=192.0.2.1 Hostname=pi",
                "192.0.2.1",
            ),
            (
                "cloud, pair",
                "192.0.2.1 2001:db8::1",
                true,
                "ExternalIP=1.1.1.1",
                "ExternalIP=1.1.1.1",
                "192.0.2.1,2001:db8::1",
            ),
            (
                "cloud, a family",
                "::",
                true,
                "",
                "InternalIP=2001:db8::1 Hostname=pi",
                "",
            ),
        ] {
            let mut node = Node::default();
            node.metadata.annotations = [(PROVIDED_ADDRESSES.into(), String::new())].into();
            node.status.addresses = before
                .split_once('=')
                .map(|(kind, address)| NodeAddress {
                    kind: kind.into(),
                    address: address.into(),
                })
                .into_iter()
                .collect();
            set_node_addresses(&mut node, &ips(asked), cloud, "pi", &local).expect(name);
            assert_eq!(shown(&node), (want.into(), note.into()), "{name}");
        }
        // An address that cannot be set leaves the old ones.
        let mut node = Node::default();
        node.status.addresses = vec![NodeAddress {
            kind: "InternalIP".into(),
            address: "192.0.2.1".into(),
        }];
        set_node_addresses(&mut node, &ips("203.0.113.1"), false, "pi", &local)
            .expect_err("not here");
        assert_eq!(shown(&node).0, "InternalIP=192.0.2.1");
    }

    #[test]
    fn names_of_this_host() {
        // NODE-07
        let file = "127.0.0.1 localhost\n127.0.1.1\tPi.example pi # me\n# 192.0.2.7 pi\n192.0.2.1 pi\nx pi\n";
        assert_eq!(hosts_file_addresses(file, "pi"), ips("127.0.1.1 192.0.2.1"));
        assert_eq!(hosts_file_addresses(file, "pi.example"), ips("127.0.1.1"));
        assert!(hosts_file_addresses(file, "me").is_empty());
    }

    #[test]
    fn tables_of_routes() {
        // NODE-07
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t700\t00000000\t0\t0\t0\n\
            eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\nbroken\n";
        assert_eq!(default_interfaces_v4(v4), ["eth0", "wlan0"]);
        assert!(default_interfaces_v4("Iface\n").is_empty());
        let zero = "0".repeat(32);
        let gateway = format!("fe80{}1", "0".repeat(27));
        let v6 = [
            format!("{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00450003    wlan0"),
            format!("{zero} 00 {zero} 00 {gateway} 00000064 00000001 00000000 00450003     eth0"),
            format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo"),
            format!(
                "{gateway} 80 {zero} 00 {gateway} 00000001 00000001 00000000 00450003     eth1"
            ),
        ];
        assert_eq!(default_interfaces_v6(&v6.join("\n")), ["eth0", "wlan0"]);
        assert!(default_interfaces_v6("x y\n").is_empty());
    }

    #[test]
    fn what_a_node_says() {
        // NODE-06
        for (said, want) in [
            ("", ""),
            ("Hostname=pi", ""),
            ("Hostname=pi InternalIP=192.0.2.1", "192.0.2.1"),
            ("ExternalIP=198.51.100.1 InternalIP=192.0.2.1", "192.0.2.1"),
            ("ExternalIP=198.51.100.1", "198.51.100.1"),
            (
                "InternalIP=2001:db8::1 InternalIP=2001:db8::2 InternalIP=192.0.2.1",
                "2001:db8::1 192.0.2.1",
            ),
            ("InternalIP=junk InternalIP=192.0.2.1", "192.0.2.1"),
        ] {
            let mut node = Node::default();
            node.status.addresses = said
                .split_whitespace()
                .filter_map(|a| a.split_once('='))
                .map(|(kind, address)| NodeAddress {
                    kind: kind.into(),
                    address: address.into(),
                })
                .collect();
            let got: Vec<String> = node_host_ips(&node)
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(got.join(" "), want, "{said}");
        }
    }
}
