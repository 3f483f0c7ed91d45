//! Requests to the kernel's routing: those of the built-in network, and the interface of the route to an address. All
//! are about the network namespace of the calling thread.
//!
//! Source: rtnetlink(7), netlink(7), veth(4), `linux/if_link.h`, `linux/rtnetlink.h`.

#[cfg(feature = "pod-network")]
pub(crate) mod pod_network;

use core::net::IpAddr;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const NEWROUTE: u16 = 24;
const GETROUTE: u16 = 26;

const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const AND_ACK: u16 = 4;
const CREATE_EXCLUSIVELY: u16 = 0x600;
/// Size of `struct nlmsghdr`, bytes.
const HEADER: usize = 16;
/// Size of `struct ifinfomsg`, bytes.
const LINK: usize = 16;
/// Size of `struct rtmsg`, bytes.
const ROUTE: usize = 12;
/// Longest answer, bytes: the description of an interface takes about two thousand.
const ANSWER_LIMIT: usize = 16 * 1024;
/// An attribute made of attributes.
const NESTED: u16 = 0x8000;

/// Attributes of a link.
mod link {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const MASTER: u16 = 10;
    pub(super) const PORT: u16 = 12;
    pub(super) const INFO: u16 = 18;
    pub(super) const NAMESPACE: u16 = 28;
    /// Attributes within `INFO`.
    pub(super) const KIND: u16 = 1;
    pub(super) const DATA: u16 = 2;
    /// Attribute within the data of a pair.
    pub(super) const PEER: u16 = 1;
    /// Attribute within `PORT`.
    pub(super) const HAIRPIN: u16 = 4;
    /// Most bytes of a name.
    pub(super) const NAME_LIMIT: usize = 15;
}

/// Attributes of a route.
mod route {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const OUT: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
}

const UP: u32 = 1;
const UNSPECIFIED: u8 = 0;
const INET: u8 = 2;
const BRIDGE: u8 = 7;
const INET6: u8 = 10;

/// An address of an interface, and the length of its network part.
pub(crate) type InterfaceAddress = (IpAddr, u8);

/// An interface, as the kernel describes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkLink {
    pub(crate) index: u32,
    /// `bridge`, `veth`; empty for hardware and `lo`.
    pub(crate) kind: String,
    pub(crate) hardware_address: Vec<u8>,
    /// The index of the bridge of which it is a port; 0 if there is none.
    pub(crate) master: u32,
}

/// Looks at an interface. `ENODEV` if there is none.
pub(crate) fn find_link(name: &str) -> io::Result<NetworkLink> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, 0);
    body.push_text(link::NAME, name)?;
    let answer = exchange_message(GETLINK, 0, &body)?;
    parse_link(&answer).ok_or_else(half_answer_error)
}

fn half_answer_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "rtnetlink gave half an answer")
}

fn parse_link(answer: &[u8]) -> Option<NetworkLink> {
    let index = answer.get(HEADER + 4..)?.first_chunk()?;
    let mut found = NetworkLink {
        index: u32::from_ne_bytes(*index),
        ..NetworkLink::default()
    };
    for (kind, value) in parse_attributes(answer.get(HEADER + LINK..)?) {
        match kind {
            link::ADDRESS => found.hardware_address = value.to_vec(),
            link::MASTER => found.master = u32::from_ne_bytes(*value.first_chunk()?),
            link::INFO => {
                let name = parse_attributes(value).find(|(kind, _)| *kind == link::KIND);
                let name = name.map_or(&[][..], |(_, value)| value);
                let name = name.split(|b| *b == 0).next().unwrap_or_default();
                found.kind = String::from_utf8_lossy(name).into_owned();
            }
            _ => {}
        }
    }
    Some(found)
}

/// The attributes in `bytes`, up to the first that is not whole.
fn parse_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = u16::from_ne_bytes(*bytes.first_chunk()?).into();
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..length)?;
        let next = usize::next_multiple_of(length, 4).min(bytes.len());
        bytes = bytes.get(next..)?;
        Some((kind & !NESTED, value))
    })
}

/// Makes a bridge. One that is there is an error, `EEXIST`. `mtu` 0 leaves it to the kernel.
pub(crate) fn create_bridge(name: &str, mtu: u32) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, 0);
    body.push_text(link::NAME, name)?;
    body.push_mtu(mtu)?;
    body.push_nested(link::INFO, |info| info.push_text(link::KIND, "bridge"))?;
    send_request(NEWLINK, CREATE_EXCLUSIVELY, &body)
}

/// Makes a pair of interfaces: `host` is up and a port of the bridge, `inner` is in the namespace and down.
pub(crate) fn create_veth_pair(
    host: &str,
    inner: &str,
    mtu: u32,
    bridge: u32,
    namespace: BorrowedFd<'_>,
) -> io::Result<()> {
    let namespace = u32::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?;
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, UP);
    body.push_text(link::NAME, host)?;
    body.push_mtu(mtu)?;
    body.push_number(link::MASTER, bridge)?;
    body.push_nested(link::INFO, |info| {
        info.push_text(link::KIND, "veth")?;
        info.push_nested(link::DATA, |data| {
            data.push_nested(link::PEER, |peer| {
                peer.0
                    .extend(NetlinkBody::link_message(UNSPECIFIED, 0, 0).0);
                peer.push_text(link::NAME, inner)?;
                peer.push_mtu(mtu)?;
                peer.push_number(link::NAMESPACE, namespace)
            })
        })
    })?;
    send_request(NEWLINK, CREATE_EXCLUSIVELY, &body)
}

/// Deletes an interface. Absent counts as deleted.
pub(crate) fn delete_link(name: &str) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, 0, 0);
    body.push_text(link::NAME, name)?;
    match send_request(DELLINK, 0, &body) {
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        result => result,
    }
}

/// Brings an interface up.
pub(crate) fn bring_link_up(interface: u32) -> io::Result<()> {
    send_request(
        SETLINK,
        0,
        &NetlinkBody::link_message(UNSPECIFIED, interface, UP),
    )
}

/// Sets the largest packet of an interface, bytes.
pub(crate) fn set_mtu(interface: u32, mtu: u32) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, interface, 0);
    body.push_mtu(mtu)?;
    send_request(SETLINK, 0, &body)
}

/// Gives an interface a hardware address.
pub(crate) fn set_hardware_address(interface: u32, address: &[u8]) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(UNSPECIFIED, interface, 0);
    body.push_attribute(link::ADDRESS, address)?;
    send_request(SETLINK, 0, &body)
}

/// Lets a port of a bridge send out packets that came in by it (hairpin).
pub(crate) fn enable_hairpin(port: u32) -> io::Result<()> {
    let mut body = NetlinkBody::link_message(BRIDGE, port, 0);
    body.push_nested(link::PORT, |port| port.push_attribute(link::HAIRPIN, &[1]))?;
    send_request(SETLINK, 0, &body)
}

/// Adds an address to an interface. One that is there counts as added.
pub(crate) fn add_address(interface: u32, address: InterfaceAddress) -> io::Result<()> {
    let body = address_body(interface, address)?;
    match send_request(NEWADDR, CREATE_EXCLUSIVELY, &body) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

/// Removes an address from an interface. One that is not there counts as removed.
pub(crate) fn remove_address(interface: u32, address: InterfaceAddress) -> io::Result<()> {
    let body = address_body(interface, address)?;
    match send_request(DELADDR, 0, &body) {
        Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
        result => result,
    }
}

fn address_body(interface: u32, (ip, prefix): InterfaceAddress) -> io::Result<NetlinkBody> {
    const LOCAL: u16 = 2;
    const ADDRESS: u16 = 1;
    /// Flag: no other host has the address. IPv6 need not ask its neighbours for a second before it uses it.
    const NO_DETECTION: u8 = 2;
    let (family, flags) = match ip {
        IpAddr::V4(_) => (INET, 0),
        IpAddr::V6(_) => (INET6, NO_DETECTION),
    };
    // struct ifaddrmsg: family, length of the prefix, flags, scope, interface
    let mut body = NetlinkBody(vec![family, prefix, flags, 0]);
    body.0.extend(interface.to_ne_bytes());
    body.push_ip(LOCAL, ip)?;
    body.push_ip(ADDRESS, ip)?;
    Ok(body)
}

/// Adds the default route. One that is there counts as added.
pub(crate) fn add_default_route(interface: u32, gateway: IpAddr) -> io::Result<()> {
    const MAIN_TABLE: u8 = 254;
    const BOOT: u8 = 3;
    const UNICAST: u8 = 1;
    let family = if gateway.is_ipv4() { INET } else { INET6 };
    // struct rtmsg: family, lengths of destination and source, type of service, table, protocol, scope, type, flags
    let mut body = NetlinkBody(vec![family, 0, 0, 0, MAIN_TABLE, BOOT, 0, UNICAST]);
    body.0.extend([0; 4]);
    body.push_number(route::OUT, interface)?;
    body.push_ip(route::GATEWAY, gateway)?;
    match send_request(NEWROUTE, CREATE_EXCLUSIVELY, &body) {
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

/// The index of the interface by which packets to `ip` leave now, with all rules of routing; that of `lo` for an own address.
///
/// - Errors: there is no way to it.
pub(crate) fn route_interface_to(ip: IpAddr) -> io::Result<u32> {
    let (family, bits) = match ip {
        IpAddr::V4(_) => (INET, 32),
        IpAddr::V6(_) => (INET6, 128),
    };
    // struct rtmsg: family, length of the destination; the rest is the kernel's to say
    let mut body = NetlinkBody(vec![family, bits]);
    body.0.resize(ROUTE, 0);
    body.push_ip(route::DESTINATION, ip)?;
    let answer = exchange_message(GETROUTE, 0, &body)?;
    parse_route_interface(&answer).ok_or_else(half_answer_error)
}

fn parse_route_interface(answer: &[u8]) -> Option<u32> {
    let mut all = parse_attributes(answer.get(HEADER + ROUTE..)?);
    let (_, value) = all.find(|(kind, _)| *kind == route::OUT)?;
    Some(u32::from_ne_bytes(*value.first_chunk()?))
}

/// Body of a message: all that follows its header.
struct NetlinkBody(Vec<u8>);

impl NetlinkBody {
    /// `struct ifinfomsg`: family, type, interface (0: named by an attribute), flags, and which of them are meant.
    fn link_message(family: u8, interface: u32, flags: u32) -> Self {
        let mut bytes = vec![family, 0, 0, 0];
        bytes.extend(interface.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        Self(bytes)
    }

    /// Appends `struct rtattr` and its value, padded.
    fn push_attribute(&mut self, kind: u16, value: &[u8]) -> io::Result<()> {
        let length = u16::try_from(4 + value.len()).map_err(io::Error::other)?;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        Ok(())
    }

    fn push_number(&mut self, kind: u16, value: u32) -> io::Result<()> {
        self.push_attribute(kind, &value.to_ne_bytes())
    }

    fn push_mtu(&mut self, mtu: u32) -> io::Result<()> {
        match mtu {
            0 => Ok(()),
            mtu => self.push_number(link::MTU, mtu),
        }
    }

    fn push_ip(&mut self, kind: u16, ip: IpAddr) -> io::Result<()> {
        match ip {
            IpAddr::V4(ip) => self.push_attribute(kind, &ip.octets()),
            IpAddr::V6(ip) => self.push_attribute(kind, &ip.octets()),
        }
    }

    /// A name, ended by a zero.
    fn push_text(&mut self, kind: u16, text: &str) -> io::Result<()> {
        if text.is_empty() || text.len() > link::NAME_LIMIT || text.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        self.push_attribute(kind, &bytes)
    }

    fn push_nested(
        &mut self,
        kind: u16,
        fill: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut inner = Self(Vec::new());
        fill(&mut inner)?;
        self.push_attribute(kind | NESTED, &inner.0)
    }
}

/// Sends a request and waits for its acknowledgement.
fn send_request(request: u16, flags: u16, body: &NetlinkBody) -> io::Result<()> {
    exchange_message(request, AND_ACK | flags, body).map(drop)
}

/// Sends a request and returns the first message of its answer unchanged, or the error in it.
fn exchange_message(request: u16, flags: u16, body: &NetlinkBody) -> io::Result<Vec<u8>> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    send_message(&fd, request, REQUEST | flags, body)?;
    let mut answer = vec![0; ANSWER_LIMIT];
    let got = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    answer.truncate(got);
    let head = answer.first_chunk::<{ HEADER + 4 }>();
    let head = head.ok_or_else(|| io::Error::other("rtnetlink gave no answer"))?;
    if u16::from_ne_bytes([head[4], head[5]]) != ERROR {
        return Ok(answer);
    }
    // The negative errno follows the header.
    match i32::from_ne_bytes([head[16], head[17], head[18], head[19]]) {
        0 => Ok(answer),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

/// Sends a request.
fn send_message(fd: &impl AsRawFd, request: u16, flags: u16, body: &NetlinkBody) -> io::Result<()> {
    let length = u32::try_from(HEADER + body.0.len()).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(HEADER + body.0.len());
    // struct nlmsghdr: length, type, flags, sequence, port
    message.extend(length.to_ne_bytes());
    message.extend(request.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(&body.0);
    sendto(
        fd.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_found() {
        let lo = find_link("lo").expect("every machine has one");
        let expected = NetworkLink {
            index: lo.index,
            hardware_address: vec![0; 6],
            ..NetworkLink::default()
        };
        assert_eq!(lo, expected);
        assert_eq!(Ok(lo.index), nix::net::if_::if_nametoindex("lo"));
        let error = find_link("none-such").expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = find_link("a-name-that-is-too-long").expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn ways() {
        // METER-06
        let lo = find_link("lo").expect("every machine has one").index;
        for own in ["127.0.0.1", "::1"] {
            let ip: IpAddr = own.parse().expect("an address");
            // A machine without IPv6 has no way there.
            if ip.is_ipv4() || std::net::UdpSocket::bind((ip, 0)).is_ok() {
                assert_eq!(route_interface_to(ip).expect(own), lo, "{own}");
            }
        }
        let mut body = NetlinkBody(vec![INET, 32]);
        body.0.resize(ROUTE, 0);
        body.push_number(route::DESTINATION, 7).expect("short");
        body.push_number(route::OUT, 9).expect("short");
        let answer: Vec<u8> = [0; HEADER].into_iter().chain(body.0).collect();
        assert_eq!(parse_route_interface(&answer), Some(9));
        for end in 0..answer.len() {
            assert_eq!(parse_route_interface(&answer[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn half_answers() {
        let mut body = NetlinkBody::link_message(UNSPECIFIED, 7, 0);
        body.push_attribute(link::ADDRESS, &[1, 2, 3, 4, 5, 6])
            .expect("short");
        body.push_nested(link::INFO, |info| info.push_text(link::KIND, "bridge"))
            .expect("short");
        body.push_number(link::MASTER, 9).expect("short");
        let answer: Vec<u8> = [0; HEADER].into_iter().chain(body.0).collect();
        let whole = parse_link(&answer).expect("whole");
        let expected = NetworkLink {
            index: 7,
            kind: "bridge".into(),
            hardware_address: vec![1, 2, 3, 4, 5, 6],
            master: 9,
        };
        assert_eq!(whole, expected);
        // A cut answer gives no interface, or a real one.
        for end in 0..answer.len() {
            let half = parse_link(&answer[..end]);
            assert_ne!(half, Some(NetworkLink::default()), "{end} bytes");
        }
        let zeros = [0; 8];
        assert_eq!(
            parse_attributes(&zeros).count(),
            0,
            "a length of nothing ends"
        );
    }
}
