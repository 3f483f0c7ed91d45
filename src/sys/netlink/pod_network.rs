//! Requests of the network between nodes: vxlan devices, and the kernel's tables of addresses, neighbours, forwarding
//! entries and routes.
//!
//! Source: rtnetlink(7), `linux/if_link.h`, `linux/neighbour.h`, `linux/rtnetlink.h`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::{
    BRIDGE, CREATE_EXCLUSIVELY, ERROR, GETLINK, GETROUTE, HEADER, INET, INET6, InterfaceAddress,
    LINK, NEWLINK, NEWROUTE, NetlinkBody, REQUEST, ROUTE, UNSPECIFIED, UP, exchange_message,
    half_answer_error, link, parse_attributes, route, send_request,
};
use crate::api::route::RouteEntry;

const DELROUTE: u16 = 25;
const GETADDR: u16 = 22;
const NEWNEIGH: u16 = 28;
const DELNEIGH: u16 = 29;
const GETNEIGH: u16 = 30;

const DONE: u16 = 3;
const DUMP: u16 = 0x300;
/// Flag of a message: the table changed while it was read.
const INTERRUPTED: u16 = 0x10;
const CREATE_OR_REPLACE: u16 = 0x500;

/// Size of `struct ifaddrmsg`, bytes.
const ADDRESS_HEAD: usize = 8;
/// Size of `struct ndmsg`, bytes.
const NEIGHBOUR_HEAD: usize = 12;
/// Bytes that are read at a time. The kernel writes no more into one piece.
const DUMP_PIECE_BYTES: usize = 32 * 1024;
/// Most bytes of a table: some fifty thousand routes.
const MAX_DUMP_BYTES: usize = 8 << 20;
/// Number of times that a table is read which changes meanwhile.
const DUMP_TRIES: usize = 4;

/// Attributes of a vxlan device.
mod vxlan {
    pub(super) const ID: u16 = 1;
    pub(super) const LINK: u16 = 3;
    pub(super) const LOCAL: u16 = 4;
    pub(super) const LEARNING: u16 = 7;
    pub(super) const PORT: u16 = 15;
    pub(super) const LOCAL6: u16 = 17;
    pub(super) const GBP: u16 = 23;
}

/// Attributes of a neighbour, and its states and flags.
mod neighbour {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const ADDRESS: u16 = 2;
    pub(super) const PERMANENT: u16 = 0x80;
    pub(super) const SELF: u8 = 2;
}

/// Parts of a route.
mod path {
    pub(super) const METRIC: u16 = 6;
    pub(super) const MAIN_TABLE: u8 = 254;
    pub(super) const UNICAST: u8 = 1;
    pub(super) const ON_LINK: u32 = 4;
    pub(super) const CLONED: u32 = 0x200;
}

/// Vxlan device to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VxlanRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) vni: u32,
    /// Index of the interface that carries its packets.
    pub(crate) parent: u32,
    pub(crate) local: IpAddr,
    /// UDP port; 0: that of the kernel.
    pub(crate) port: u16,
    pub(crate) mtu: u32,
    pub(crate) mac: [u8; 6],
}

/// Interface with the properties that vxlan devices have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkProperties {
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    pub(crate) is_up: bool,
    pub(crate) mac: Vec<u8>,
    /// Properties of a vxlan device; `None`: it is none.
    pub(crate) vxlan: Option<VxlanProperties>,
}

/// Properties of a vxlan device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VxlanProperties {
    pub(crate) vni: u32,
    pub(crate) parent: u32,
    pub(crate) local: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) has_gbp: bool,
}

/// Neighbour or forwarding entry of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermanentEntry {
    pub(crate) ip: IpAddr,
    pub(crate) mac: [u8; 6],
}

/// Table of such entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryTable {
    /// Neighbours: address of a host → hardware address.
    Neighbours,
    /// Forwarding entries of a vxlan device: hardware address → address of a host.
    Forwarding,
}

/// Looks at an interface. `None`: there is none of that name.
pub(crate) fn read_link_properties(name: &str) -> io::Result<Option<LinkProperties>> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, 0);
    body.push_text(link::NAME, name)?;
    match exchange_message(GETLINK, 0, &body) {
        Ok(answer) => parse_properties(&answer)
            .map(Some)
            .ok_or_else(half_answer_error),
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(e) => Err(e),
    }
}

fn parse_properties(answer: &[u8]) -> Option<LinkProperties> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|b| u32::from_ne_bytes(*b));
    let mut found = LinkProperties {
        index: number(answer.get(HEADER + 4..)?)?,
        is_up: number(answer.get(HEADER + 8..)?)? & UP != 0,
        ..LinkProperties::default()
    };
    for (kind, value) in parse_attributes(answer.get(HEADER + LINK..)?) {
        match kind {
            link::ADDRESS => found.mac = value.to_vec(),
            link::MTU => found.mtu = number(value)?,
            link::INFO => {
                let mut info = parse_attributes(value);
                let is_vxlan = info.any(|(kind, value)| {
                    kind == link::KIND && value.strip_suffix(b"\0") == Some(b"vxlan")
                });
                let data = parse_attributes(value).find(|(kind, _)| *kind == link::DATA);
                if is_vxlan {
                    found.vxlan = Some(parse_vxlan(data.map_or(&[][..], |(_, data)| data))?);
                }
            }
            _ => {}
        }
    }
    Some(found)
}

fn parse_vxlan(data: &[u8]) -> Option<VxlanProperties> {
    let mut found = VxlanProperties::default();
    for (kind, value) in parse_attributes(data) {
        match kind {
            vxlan::ID => found.vni = u32::from_ne_bytes(*value.first_chunk()?),
            vxlan::LINK => found.parent = u32::from_ne_bytes(*value.first_chunk()?),
            vxlan::LOCAL | vxlan::LOCAL6 => found.local = parse_ip(value),
            vxlan::PORT => found.port = u16::from_be_bytes(*value.first_chunk()?),
            vxlan::GBP => found.has_gbp = true,
            _ => {}
        }
    }
    Some(found)
}

fn parse_ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*value.first_chunk::<16>()?).into()),
        _ => None,
    }
}

const fn family_of(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => INET,
        IpAddr::V6(_) => INET6,
    }
}

/// Makes a vxlan device that learns nothing by itself. One of that name is an error, `EEXIST`; `EOPNOTSUPP`: the kernel
/// has no vxlan.
pub(crate) fn create_vxlan(device: &VxlanRequest<'_>) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, 0);
    body.push_text(link::NAME, device.name)?;
    body.push_attribute(link::ADDRESS, &device.mac)?;
    body.push_mtu(device.mtu)?;
    body.push_nested(link::INFO, |info| {
        info.push_text(link::KIND, "vxlan")?;
        info.push_nested(link::DATA, |data| {
            data.push_number(vxlan::ID, device.vni)?;
            data.push_number(vxlan::LINK, device.parent)?;
            let local = match device.local {
                IpAddr::V4(_) => vxlan::LOCAL,
                IpAddr::V6(_) => vxlan::LOCAL6,
            };
            data.push_ip(local, device.local)?;
            data.push_attribute(vxlan::LEARNING, &[0])?;
            match device.port {
                0 => Ok(()),
                port => data.push_attribute(vxlan::PORT, &port.to_be_bytes()),
            }
        })
    })?;
    send_request(NEWLINK, CREATE_EXCLUSIVELY, &body)
}

/// Lists the addresses of an interface that other hosts may use, in the kernel's order; with `all` set, all of them.
pub(crate) fn list_addresses(interface: u32, all: bool) -> io::Result<Vec<InterfaceAddress>> {
    /// Temporary (IPv6), failed detection, deprecated, tentative.
    const UNUSABLE: u8 = 0x01 | 0x08 | 0x20 | 0x40;
    const UNIVERSE: u8 = 0;
    let mut body = NetlinkBody(vec![UNSPECIFIED]);
    body.0.resize(ADDRESS_HEAD, 0);
    let mut found = Vec::new();
    dump(GETADDR, &body, &mut |piece| {
        let Some(message) = piece else {
            found.clear();
            return Some(());
        };
        // struct ifaddrmsg: family, length of the prefix, flags, scope, interface
        let head = message.first_chunk::<ADDRESS_HEAD>()?;
        let [family, prefix, flags, scope, index @ ..] = *head;
        // Of IPv4, the flag of temporary addresses says that the address is a second one of its network.
        let unusable = if family == INET {
            UNUSABLE & !1
        } else {
            UNUSABLE
        };
        let is_usable = scope == UNIVERSE && flags & unusable == 0;
        if u32::from_ne_bytes(index) != interface || !(all || is_usable) {
            return Some(());
        }
        /// The address of the other end, for links that have two ends only.
        const OTHER_END: u16 = 1;
        const LOCAL: u16 = 2;
        let of =
            |wanted| parse_attributes(&message[ADDRESS_HEAD..]).find(|(kind, _)| *kind == wanted);
        let (_, value) = of(LOCAL).or_else(|| of(OTHER_END))?;
        found.push((parse_ip(value)?, prefix));
        Some(())
    })?;
    Ok(found)
}

/// Lists the permanent entries of an interface in one of the tables, and in one family.
pub(crate) fn list_entries(
    table: EntryTable,
    interface: u32,
    is_v6: bool,
) -> io::Result<Vec<PermanentEntry>> {
    let family = match (table, is_v6) {
        (EntryTable::Forwarding, _) => BRIDGE,
        (EntryTable::Neighbours, false) => INET,
        (EntryTable::Neighbours, true) => INET6,
    };
    let mut body = NetlinkBody(vec![family]);
    body.0.resize(NEIGHBOUR_HEAD, 0);
    let mut found = Vec::new();
    dump(GETNEIGH, &body, &mut |piece| {
        let Some(message) = piece else {
            found.clear();
            return Some(());
        };
        // struct ndmsg: family, 3 bytes unused, interface, state (2), flags, type
        let head = message.first_chunk::<NEIGHBOUR_HEAD>()?;
        let index = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let state = u16::from_ne_bytes([head[8], head[9]]);
        if index != interface || state & neighbour::PERMANENT == 0 {
            return Some(());
        }
        let (mut ip, mut mac) = (None, None);
        for (kind, value) in parse_attributes(&message[NEIGHBOUR_HEAD..]) {
            match kind {
                neighbour::DESTINATION => ip = parse_ip(value),
                neighbour::ADDRESS => mac = value.first_chunk::<6>().copied(),
                _ => {}
            }
        }
        // Entries without an address are not for other hosts.
        if let (Some(ip), Some(mac)) = (ip, mac)
            && ip.is_ipv6() == is_v6
        {
            found.push(PermanentEntry { ip, mac });
        }
        Some(())
    })?;
    Ok(found)
}

/// Lists the unicast routes of the main table in one family that `is_wanted` takes.
pub(crate) fn list_routes(
    is_v6: bool,
    is_wanted: &dyn Fn(&RouteEntry) -> bool,
) -> io::Result<Vec<RouteEntry>> {
    let mut body = NetlinkBody(vec![if is_v6 { INET6 } else { INET }]);
    body.0.resize(ROUTE, 0);
    let mut found = Vec::new();
    dump(GETROUTE, &body, &mut |piece| {
        let Some(message) = piece else {
            found.clear();
            return Some(());
        };
        if let Some(route) = parse_main_route(message, is_v6)?
            && is_wanted(&route)
        {
            found.push(route);
        }
        Some(())
    })?;
    Ok(found)
}

/// The route of a message; `Some(None)`: it is of another kind.
fn parse_main_route(message: &[u8], is_v6: bool) -> Option<Option<RouteEntry>> {
    // struct rtmsg: family, lengths of destination and source, type of service, table, protocol, scope, type, flags
    let head = message.first_chunk::<ROUTE>()?;
    let [_, prefix, _, _, table, origin, _, kind, ..] = *head;
    let flags = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]);
    if table != path::MAIN_TABLE || kind != path::UNICAST || flags & path::CLONED != 0 {
        return Some(None);
    }
    let any: IpAddr = match is_v6 {
        false => Ipv4Addr::UNSPECIFIED.into(),
        true => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut found = RouteEntry {
        address: any,
        prefix,
        via: None,
        interface: 0,
        is_on_link: flags & path::ON_LINK != 0,
        metric: 0,
        origin,
    };
    for (kind, value) in parse_attributes(&message[ROUTE..]) {
        match kind {
            route::DESTINATION => found.address = parse_ip(value)?,
            route::GATEWAY => found.via = parse_ip(value),
            route::OUT => found.interface = u32::from_ne_bytes(*value.first_chunk()?),
            path::METRIC => found.metric = u32::from_ne_bytes(*value.first_chunk()?),
            _ => {}
        }
    }
    Some(Some(found))
}

/// Makes an entry, or changes the one with its address (neighbours) or hardware address (forwarding entries).
pub(crate) fn set_entry(
    table: EntryTable,
    interface: u32,
    entry: PermanentEntry,
) -> io::Result<()> {
    let body = entry_body(table, interface, entry)?;
    send_request(NEWNEIGH, CREATE_OR_REPLACE, &body)
}

/// Deletes an entry. Absent counts as deleted.
pub(crate) fn delete_entry(
    table: EntryTable,
    interface: u32,
    entry: PermanentEntry,
) -> io::Result<()> {
    let body = entry_body(table, interface, entry)?;
    accept_absence(send_request(DELNEIGH, 0, &body))
}

fn entry_body(table: EntryTable, interface: u32, entry: PermanentEntry) -> io::Result<NetlinkBody> {
    let (family, flags) = match table {
        EntryTable::Neighbours => (family_of(entry.ip), 0),
        EntryTable::Forwarding => (BRIDGE, neighbour::SELF),
    };
    let mut body = NetlinkBody(vec![family, 0, 0, 0]);
    body.0.extend(interface.to_ne_bytes());
    body.0.extend(neighbour::PERMANENT.to_ne_bytes());
    body.0.extend([flags, path::UNICAST]);
    body.push_ip(neighbour::DESTINATION, entry.ip)?;
    body.push_attribute(neighbour::ADDRESS, &entry.mac)?;
    Ok(body)
}

/// Makes a route, or changes the one with its destinations and metric.
pub(crate) fn set_route(route: &RouteEntry) -> io::Result<()> {
    send_request(NEWROUTE, CREATE_OR_REPLACE, &route_body(route)?)
}

/// Deletes a route. Absent counts as deleted.
pub(crate) fn delete_route(route: &RouteEntry) -> io::Result<()> {
    accept_absence(send_request(DELROUTE, 0, &route_body(route)?))
}

fn route_body(route: &RouteEntry) -> io::Result<NetlinkBody> {
    let mut body = NetlinkBody(vec![
        family_of(route.address),
        route.prefix,
        0,
        0,
        path::MAIN_TABLE,
        route.origin,
        0,
        path::UNICAST,
    ]);
    let flags = if route.is_on_link { path::ON_LINK } else { 0 };
    body.0.extend(flags.to_ne_bytes());
    body.push_ip(route::DESTINATION, route.address)?;
    body.push_number(route::OUT, route.interface)?;
    if route.metric > 0 {
        body.push_number(path::METRIC, route.metric)?;
    }
    if let Some(via) = route.via {
        body.push_ip(route::GATEWAY, via)?;
    }
    Ok(body)
}

fn accept_absence(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ESRCH | libc::ENODEV)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Reads a table: hands each entry, without its header, to `each`, and `None` before the first, also if the table is read
/// anew because it changed meanwhile.
///
/// - Errors: `each` says that an entry is not whole; the table is too long, or changes all the time.
fn dump(
    request: u16,
    body: &NetlinkBody,
    each: &mut dyn FnMut(Option<&[u8]>) -> Option<()>,
) -> io::Result<()> {
    for _ in 0..DUMP_TRIES {
        each(None);
        if dump_once(request, body, each)? {
            return Ok(());
        }
    }
    Err(io::Error::other(
        "a table of the kernel changed each time it was read",
    ))
}

/// Reads a table once; false: it changed meanwhile.
fn dump_once(
    request: u16,
    body: &NetlinkBody,
    each: &mut dyn FnMut(Option<&[u8]>) -> Option<()>,
) -> io::Result<bool> {
    let fd = open_socket(SockFlag::SOCK_CLOEXEC)?;
    super::send_message(&fd, request, REQUEST | DUMP, body)?;
    let mut piece = vec![0; DUMP_PIECE_BYTES];
    let mut total = 0;
    let mut is_whole = true;
    // Bounded: by the bytes of the table.
    while total < MAX_DUMP_BYTES {
        let got = recv(fd.as_raw_fd(), &mut piece, MsgFlags::empty())?;
        total += got.max(1);
        let rest = piece.get(..got).unwrap_or_default();
        if read_dump_piece(rest, &mut is_whole, each)? {
            return Ok(is_whole);
        }
    }
    Err(io::Error::other(
        "a table of the kernel has too many entries",
    ))
}

/// Reads the messages of one piece of a table; true: it was the last. `is_whole` becomes false if the table changed.
///
/// - Errors: the kernel's, which also the last message may have.
fn read_dump_piece(
    mut rest: &[u8],
    is_whole: &mut bool,
    each: &mut dyn FnMut(Option<&[u8]>) -> Option<()>,
) -> io::Result<bool> {
    while !rest.is_empty() {
        let head = rest.first_chunk::<HEADER>().ok_or_else(half_answer_error)?;
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let message = rest.get(HEADER..length).ok_or_else(half_answer_error)?;
        *is_whole &= u16::from_ne_bytes([head[6], head[7]]) & INTERRUPTED == 0;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        if matches!(kind, DONE | ERROR) {
            let code = message.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
            return match kind == DONE && code >= 0 {
                true => Ok(true),
                false => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            };
        }
        each(Some(message)).ok_or_else(half_answer_error)?;
        let next = length.next_multiple_of(4).min(rest.len());
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(false)
}

fn open_socket(flags: SockFlag) -> io::Result<OwnedFd> {
    Ok(socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        SockProtocol::NetlinkRoute,
    )?)
}

/// Opens a socket that becomes readable when an interface, an address or a route of this namespace changes.
pub(crate) fn open_change_monitor() -> io::Result<OwnedFd> {
    /// Groups: interfaces, addresses and routes of both families.
    const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
    let fd = open_socket(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(fd)
}

/// Drops the messages that wait in a monitor. The kernel drops more itself if they are not read: that is a change, too.
pub(crate) fn drain_change_monitor(fd: &impl AsRawFd) {
    /// A change of many routes is read in several rounds.
    const MOST: usize = 64;
    let mut piece = [0; 1024];
    for _ in 0..MOST {
        if recv(fd.as_raw_fd(), &mut piece, MsgFlags::empty()) == Err(nix::Error::EAGAIN) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::super::{
        add_address, bring_link_up, create_bridge, delete_link, find_link, set_mtu,
    };
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    /// Makes a device with entries in both families, in a network namespace of its own.
    fn make_and_read() {
        unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
        let monitor = open_change_monitor().expect("a monitor");
        create_bridge("eth0", 0).expect("an interface");
        let parent = find_link("eth0").expect("it").index;
        bring_link_up(parent).expect("up");
        add_address(parent, (ip("192.0.2.7"), 24)).expect("an address");
        drain_change_monitor(&monitor);
        assert_eq!(read_link_properties("none").expect("an answer"), None);
        let bridge = read_link_properties("eth0").expect("it").expect("there");
        assert_eq!(
            (bridge.index, bridge.mtu, bridge.is_up),
            (parent, 1500, true)
        );
        assert_eq!(bridge.vxlan, None);
        assert_eq!(
            list_addresses(parent, false).expect("a list"),
            [(ip("192.0.2.7"), 24)]
        );
        let request = VxlanRequest {
            name: "flannel.1",
            vni: 1,
            parent,
            local: ip("192.0.2.7"),
            port: 0,
            mtu: 1450,
            mac: [2, 0, 0, 0, 0, 1],
        };
        match create_vxlan(&request) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                skipped!("vxlan devices: the kernel has none");
                return;
            }
            made => made.expect("a device"),
        }
        let again = create_vxlan(&request).expect_err("it is there");
        assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
        let device = read_link_properties("flannel.1")
            .expect("it")
            .expect("there");
        let expected = LinkProperties {
            index: device.index,
            mtu: 1450,
            is_up: false,
            mac: request.mac.to_vec(),
            vxlan: Some(VxlanProperties {
                vni: 1,
                parent,
                local: Some(request.local),
                port: 8472,
                has_gbp: false,
            }),
        };
        assert_eq!(device, expected);
        let on = device.index;
        set_mtu(on, 1400).expect("set");
        bring_link_up(on).expect("up");
        let device = read_link_properties("flannel.1")
            .expect("it")
            .expect("there");
        assert_eq!((device.mtu, device.is_up), (1400, true));
        for (table, is_v6, first, second) in [
            (EntryTable::Neighbours, false, "10.42.1.0", "10.42.2.0"),
            (EntryTable::Neighbours, true, "fd42:0:0:1::", "fd42:0:0:2::"),
            (EntryTable::Forwarding, false, "192.0.2.8", "192.0.2.9"),
        ] {
            let entry = |text: &str, last| PermanentEntry {
                ip: ip(text),
                mac: [2, 0, 0, 0, 1, last],
            };
            let list = || list_entries(table, on, is_v6).expect("a list");
            assert_eq!(list(), [], "{table:?}");
            set_entry(table, on, entry(first, 1)).expect("made");
            set_entry(table, on, entry(second, 2)).expect("made");
            assert_eq!(list().len(), 2, "{table:?}");
            // A forwarding entry keeps its hardware address, a neighbour its address.
            let changed = match table {
                EntryTable::Neighbours => entry(first, 9),
                EntryTable::Forwarding => entry("192.0.2.99", 1),
            };
            set_entry(table, on, changed).expect("changed");
            delete_entry(table, on, entry(second, 2)).expect("deleted");
            delete_entry(table, on, entry(second, 2)).expect("absent");
            assert_eq!(list(), [changed], "{table:?}");
        }
        add_address(on, (ip("10.42.3.0"), 32)).expect("an address");
        let route = RouteEntry {
            address: ip("10.42.1.0"),
            prefix: 24,
            via: Some(ip("10.42.1.0")),
            interface: on,
            is_on_link: true,
            metric: 0,
            origin: 3,
        };
        let marked = RouteEntry {
            address: ip("10.42.2.0"),
            via: Some(ip("192.0.2.9")),
            interface: parent,
            is_on_link: false,
            origin: 112,
            ..route
        };
        let list = || list_routes(false, &|route| route.origin != 2).expect("a list");
        set_route(&route).expect("made");
        set_route(&marked).expect("made");
        set_route(&route).expect("made again");
        assert_eq!(list(), [route, marked]);
        let moved = RouteEntry {
            via: Some(ip("192.0.2.10")),
            ..marked
        };
        set_route(&moved).expect("changed");
        delete_route(&route).expect("deleted");
        delete_route(&route).expect("absent");
        assert_eq!(list(), [moved]);
        // A next hop that is not on the link.
        let far = RouteEntry {
            address: ip("10.42.9.0"),
            via: Some(ip("198.51.100.1")),
            ..marked
        };
        let refused = set_route(&far).expect_err("no way to it");
        assert_eq!(refused.raw_os_error(), Some(libc::ENETUNREACH));
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            let six = RouteEntry {
                address: ip("fd42:0:0:1::"),
                prefix: 64,
                via: Some(ip("fd42:0:0:1::")),
                interface: on,
                is_on_link: true,
                metric: 1024,
                origin: 3,
            };
            set_route(&six).expect("made");
            set_route(&six).expect("made again");
            let list = list_routes(true, &|route| route.origin == 3).expect("a list");
            assert_eq!(list, [six]);
        }
        let mut piece = [0; 64];
        let told = recv(monitor.as_raw_fd(), &mut piece, MsgFlags::empty());
        assert!(told.is_ok(), "changes were told");
        delete_link("flannel.1").expect("gone");
    }

    #[test]
    fn a_device_and_its_entries() {
        // FLAN-06 FLAN-07 FLAN-16
        if !nix::unistd::geteuid().is_root() {
            skipped!("vxlan devices: a namespace needs root");
            return;
        }
        thread::spawn(make_and_read).join().expect("thread");
    }

    #[test]
    fn a_table_that_ends_with_an_error_is_not_whole() {
        let message = |kind: u16, flags: u16, body: &[u8]| {
            let length = u32::try_from(HEADER + body.len()).expect("short");
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.resize(HEADER, 0);
            bytes.extend(body);
            bytes
        };
        let read = |pieces: &[Vec<u8>]| {
            let (mut is_whole, mut entries) = (true, 0);
            let end = read_dump_piece(&pieces.concat(), &mut is_whole, &mut |_| {
                entries += 1;
                Some(())
            });
            (end.map_err(|e| e.raw_os_error()), is_whole, entries)
        };
        let entry = message(NEWNEIGH, 0, &[7; 8]);
        let end = |code: i32| message(DONE, 0, &code.to_ne_bytes());
        assert_eq!(read(std::slice::from_ref(&entry)), (Ok(false), true, 1));
        assert_eq!(read(&[entry.clone(), end(0)]), (Ok(true), true, 1));
        let failed = Err(Some(libc::ENOMEM));
        assert_eq!(
            read(&[entry.clone(), end(-libc::ENOMEM)]),
            (failed, true, 1)
        );
        let error = message(ERROR, 0, &(-libc::ENOMEM).to_ne_bytes());
        assert_eq!(read(&[error]), (failed, true, 0));
        let changed = message(NEWNEIGH, INTERRUPTED, &[7; 8]);
        assert_eq!(read(&[changed, end(0)]), (Ok(true), false, 1));
        let half = read(&[entry[..HEADER + 4].to_vec()]);
        assert_eq!(half, (Err(None), true, 0));
    }

    #[test]
    fn half_answers() {
        let mut body = NetlinkBody::link_message(UNSPECIFIED, 7, UP);
        body.push_mtu(1450).expect("short");
        body.push_nested(link::INFO, |info| {
            info.push_text(link::KIND, "vxlan")?;
            info.push_nested(link::DATA, |data| {
                data.push_number(vxlan::ID, 1)?;
                data.push_ip(vxlan::LOCAL, ip("192.0.2.7"))
            })
        })
        .expect("short");
        let answer: Vec<u8> = [0; HEADER].into_iter().chain(body.0).collect();
        let whole = parse_properties(&answer).expect("whole");
        let vxlan = whole.vxlan.expect("a vxlan device");
        assert_eq!((vxlan.vni, vxlan.local), (1, Some(ip("192.0.2.7"))));
        for end in 0..answer.len() {
            let half = parse_properties(&answer[..end]);
            assert_ne!(half, Some(LinkProperties::default()), "{end} bytes");
        }
        for end in 0..ROUTE {
            assert_eq!(parse_main_route(&[254; ROUTE][..end], false), None);
        }
    }
}
