//! Flows that the kernel's connection tracking remembers: lists those of UDP, and removes some (PROX-20). All are about
//! the network namespace of the calling thread.
//!
//! A list is filtered by protocol in the kernel (since Linux 5.8) and here, and read in pieces of fixed size.
//!
//! Source: `linux/netfilter/nfnetlink_conntrack.h`, netlink(7).

use core::net::{IpAddr, SocketAddr};
use std::{io, os::fd::AsRawFd, os::fd::OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

/// Bytes of one read of a list.
const PIECE_BYTES: usize = 16 * 1024;
/// Flows that are remembered to be removed, in one list; more take another list.
const REMOVED_AT_ONCE: usize = 256;
/// Lists for one removal at most: new flows could come for ever.
const LISTS: usize = 64;

/// `struct nlmsghdr` and `struct nfgenmsg`, bytes.
const HEADER: usize = 16;
const GENERIC: usize = 4;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const DONE: u16 = 3;
const ERROR: u16 = 2;
/// Messages of connection tracking.
const NEW: u16 = 0x100;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;

const NESTED: u16 = 0x8000;
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// Within a tuple.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
/// Within addresses.
const V4_SRC: u16 = 1;
const V4_DST: u16 = 2;
const V6_SRC: u16 = 3;
const V6_DST: u16 = 4;
/// Within a protocol.
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;
/// Within a filter: the fields of the tuple that have to be equal.
const FILTER_ORIG: u16 = 1;
const FILTER_PROTO_NUM: u32 = 1 << 3;

const UDP: u8 = 17;
const INET: u8 = 2;
const INET6: u8 = 10;

/// A flow of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrackedFlow {
    /// Destination of the first packet.
    pub(crate) dialled: SocketAddr,
    /// Source of the answers.
    pub(crate) answers: SocketAddr,
}

/// Removes the flows of UDP of a family for which `is_unwanted` answers true. Returns their number. Blocks for
/// milliseconds.
///
/// - Errors: the kernel has no connection tracking, or this process may not read it.
pub(crate) fn remove_udp_flows(
    is_v6: bool,
    is_unwanted: &mut dyn FnMut(&TrackedFlow) -> bool,
) -> io::Result<usize> {
    let mut removed = 0;
    let mut with_filter = true;
    let mut last = None;
    for _ in 0..LISTS {
        let (found, is_cut) = match list_unwanted(is_v6, with_filter, is_unwanted) {
            Ok(listed) => listed,
            Err(e) => match e.raw_os_error() {
                // A kernel before 5.8 has no filter; one that does not take ours lists all.
                Some(libc::EINVAL | libc::EOPNOTSUPP) if with_filter => {
                    with_filter = false;
                    continue;
                }
                // The list changed too fast, or the kernel was short of memory.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {
                    last = Some(e);
                    continue;
                }
                _ => return Err(e),
            },
        };
        last = None;
        for tuple in &found {
            match delete_flow(is_v6, tuple) {
                Ok(was_there) => removed += usize::from(was_there),
                // The others need not wait for it.
                Err(e) => last = Some(e),
            }
        }
        if !is_cut {
            break;
        }
    }
    last.map_or(Ok(removed), Err)
}

/// Receives one message; a signal in between does not count.
fn receive(fd: &OwnedFd, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(fd.as_raw_fd(), piece, MsgFlags::empty()) {
            Err(nix::Error::EINTR) => {}
            got => return Ok(got?),
        }
    }
}

const fn family_number(is_v6: bool) -> u8 {
    if is_v6 { INET6 } else { INET }
}

/// Lists flows: of each the attributes that name it. The second value: there were more than are remembered.
fn list_unwanted(
    is_v6: bool,
    with_filter: bool,
    is_unwanted: &mut dyn FnMut(&TrackedFlow) -> bool,
) -> io::Result<(Vec<Vec<u8>>, bool)> {
    let mut body = Vec::new();
    if with_filter {
        push_nested(
            &mut body,
            TUPLE_ORIG,
            &nested(TUPLE_PROTO, &attribute(PROTO_NUM, &[UDP])),
        );
        push_nested(
            &mut body,
            FILTER,
            &attribute(FILTER_ORIG, &FILTER_PROTO_NUM.to_ne_bytes()),
        );
    }
    let fd = open_socket()?;
    send_message(&fd, GET, DUMP, family_number(is_v6), &body)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut found = Vec::new();
    let mut is_cut = false;
    // Bounded: the kernel ends the list.
    loop {
        let got = receive(&fd, &mut piece)?;
        let mut rest = piece.get(..got).unwrap_or_default();
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some((kind, payload, next)) = split_message(rest) {
            rest = next;
            match kind {
                DONE => return check_done(payload).map(|()| (found, is_cut)),
                ERROR => check_error(payload)?,
                NEW => {
                    let attributes = payload.get(GENERIC..).unwrap_or_default();
                    let flow = parse_flow(attributes);
                    if !flow.is_some_and(|flow| is_unwanted(&flow)) {
                        continue;
                    }
                    match found.len() < REMOVED_AT_ONCE {
                        true => found.push(naming_attributes(attributes)),
                        false => is_cut = true,
                    }
                }
                _ => {}
            }
        }
    }
}

/// Removes one flow. False: it was gone already.
fn delete_flow(is_v6: bool, named: &[u8]) -> io::Result<bool> {
    let fd = open_socket()?;
    send_message(&fd, DELETE, ACK, family_number(is_v6), named)?;
    let mut answer = [0; 256];
    let got = receive(&fd, &mut answer)?;
    let Some((ERROR, payload, _)) = split_message(answer.get(..got).unwrap_or_default()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    match check_error(payload) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => Ok(true),
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    )?;
    Ok(fd)
}

fn send_message(fd: &OwnedFd, kind: u16, flags: u16, family: u8, body: &[u8]) -> io::Result<()> {
    let length = HEADER + GENERIC + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend(
        u32::try_from(length)
            .map_err(io::Error::other)?
            .to_ne_bytes(),
    );
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]);
    // struct nfgenmsg: family, version, resource
    message.extend([family, 0, 0, 0]);
    message.extend(body);
    sendto(
        fd.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )?;
    Ok(())
}

/// Error of a message of that kind; 0 is an acknowledgement.
fn check_error(payload: &[u8]) -> io::Result<()> {
    match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Error with which a list ended; kernels may leave the code out.
fn check_done(payload: &[u8]) -> io::Result<()> {
    match payload {
        [] => Ok(()),
        _ => check_error(payload),
    }
}

/// Splits off the first message: kind, payload, what follows.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let payload = bytes.get(HEADER..length)?;
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((kind, payload, bytes.get(next..)?))
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + value.len());
    push_attribute(&mut bytes, kind, value);
    bytes
}

fn nested(kind: u16, inner: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, inner)
}

fn push_nested(out: &mut Vec<u8>, kind: u16, inner: &[u8]) {
    push_attribute(out, kind | NESTED, inner);
}

/// Appends an attribute of at most 64 KiB, padded.
fn push_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The attributes in `bytes`, up to the first that is not whole: kind and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = u16::from_ne_bytes(*bytes.first_chunk()?).into();
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(4..length)?;
        let next = usize::next_multiple_of(length, 4).min(bytes.len());
        bytes = bytes.get(next..)?;
        Some((kind & 0x3fff, value))
    })
}

fn find_attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|it| it.0 == kind).map(|it| it.1)
}

/// The attributes that name a flow when it is removed.
fn naming_attributes(bytes: &[u8]) -> Vec<u8> {
    let mut named = Vec::new();
    for (kind, value) in attributes(bytes) {
        match kind {
            TUPLE_ORIG => push_nested(&mut named, kind, value),
            ZONE => push_attribute(&mut named, kind, value),
            _ => {}
        }
    }
    named
}

fn parse_flow(bytes: &[u8]) -> Option<TrackedFlow> {
    let original = find_attribute(bytes, TUPLE_ORIG)?;
    let reply = find_attribute(bytes, TUPLE_REPLY)?;
    Some(TrackedFlow {
        dialled: parse_end(original, [V4_DST, V6_DST], PROTO_DST_PORT)?,
        answers: parse_end(reply, [V4_SRC, V6_SRC], PROTO_SRC_PORT)?,
    })
}

/// One end of a tuple of UDP.
fn parse_end(tuple: &[u8], [v4, v6]: [u16; 2], port: u16) -> Option<SocketAddr> {
    let proto = find_attribute(tuple, TUPLE_PROTO)?;
    if find_attribute(proto, PROTO_NUM)? != [UDP] {
        return None;
    }
    let ips = find_attribute(tuple, TUPLE_IP)?;
    let ip = match find_attribute(ips, v4) {
        Some(ip) => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        None => IpAddr::from(<[u8; 16]>::try_from(find_attribute(ips, v6)?).ok()?),
    };
    let port = u16::from_be_bytes(find_attribute(proto, port)?.try_into().ok()?);
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let ips = [attribute(V4_SRC, &src), attribute(V4_DST, &dst)].concat();
        let proto = [
            attribute(PROTO_NUM, &[UDP]),
            attribute(PROTO_SRC_PORT, &ports[0].to_be_bytes()),
            attribute(PROTO_DST_PORT, &ports[1].to_be_bytes()),
        ];
        [nested(TUPLE_IP, &ips), nested(TUPLE_PROTO, &proto.concat())].concat()
    }

    #[test]
    fn flows_of_messages() {
        // PROX-20
        let original = tuple([10, 42, 0, 9], [10, 43, 0, 10], [40000, 53]);
        let reply = tuple([10, 42, 0, 11], [10, 42, 0, 9], [8053, 40000]);
        let zone = attribute(ZONE, &[0, 7]);
        let whole = [
            nested(TUPLE_ORIG, &original),
            nested(TUPLE_REPLY, &reply),
            attribute(3, &[0, 0, 0, 8]),
            zone.clone(),
        ]
        .concat();
        let flow = parse_flow(&whole).expect("a flow");
        assert_eq!(flow.dialled, ([10, 43, 0, 10], 53).into());
        assert_eq!(flow.answers, ([10, 42, 0, 11], 8053).into());
        assert_eq!(
            naming_attributes(&whole),
            [nested(TUPLE_ORIG, &original), zone].concat()
        );
        for end in 0..nested(TUPLE_ORIG, &original).len() + nested(TUPLE_REPLY, &reply).len() {
            assert_eq!(parse_flow(&whole[..end]), None, "{end} bytes");
        }
        let ended = |code: i32| check_done(&code.to_ne_bytes()).map_err(|e| e.raw_os_error());
        assert_eq!(ended(0), Ok(()));
        assert_eq!(ended(-libc::ENOMEM), Err(Some(libc::ENOMEM)));
        assert!(check_done(&[]).is_ok() && check_done(&[0]).is_err());
        for end in 0..HEADER {
            assert_eq!(split_message(&[0xff; HEADER][..end]), None);
        }
    }
}
