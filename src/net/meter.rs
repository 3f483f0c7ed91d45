//! Bytes that go over the link, counted at the sockets as a carrier charges them: TLS, repeated segments, and headers
//! of TCP and IP included.
//!
//! The kernel counts bytes and segments of each connection. They are read with every exchange and added to one table of the
//! process. Connections that stay within this machine are not counted: the other end has an own address, or is behind a
//! bridge that leads to pods only. Headers below IP are not counted either: a carrier does not see them.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
};
use std::{
    fs, io,
    net::{TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    path::Path,
    rc::Rc,
};

use async_io::Async;
use core::cell::Cell;
use nix::ifaddrs::getifaddrs;
use smol::io::{AsyncRead, AsyncWrite};

use crate::{
    api::link::{LinkBytes, LinkClass},
    sys::socket::{TcpCounts, tcp_counts},
};

/// Header of a segment without options, and the timestamp option, bytes.
const TCP_HEADER: u64 = 20;
const TIMESTAMP: u64 = 12;
/// Headers of IP, bytes.
const IPV4_HEADER: u64 = 20;
const IPV6_HEADER: u64 = 40;
/// Header of UDP, bytes.
const UDP_HEADER: u64 = 8;
/// Interfaces above one another that are looked at: a VLAN over a bond over a card has three.
const MAX_STACK: u32 = 8;
/// Segments each way by which a connection ends: the kernel does not count them once it is closed.
const LAST_SEGMENTS: u64 = 2;

/// Received and sent, by class.
static TABLE: [[AtomicU64; 2]; LinkClass::COUNT] =
    [const { [const { AtomicU64::new(0) }; 2] }; LinkClass::COUNT];

/// Everything that was counted so far.
pub fn counted_bytes() -> LinkBytes {
    LinkBytes(core::array::from_fn(|class| {
        core::array::from_fn(|way| TABLE[class][way].load(Ordering::Relaxed))
    }))
}

/// Counts bytes, received and sent.
pub(crate) fn add_bytes(class: LinkClass, bytes: [u64; 2]) {
    for (sum, more) in TABLE[class as usize].iter().zip(bytes) {
        sum.fetch_add(more, Ordering::Relaxed);
    }
}

/// Counts a datagram by its bytes, received and sent; 0 where there is none.
pub(super) fn count_datagram(other: SocketAddr, class: LinkClass, [received, sent]: [usize; 2]) {
    if other.ip().is_loopback() {
        return;
    }
    let header = ip_header_bytes(other.ip()) + UDP_HEADER;
    let size = |n: usize| match u64::try_from(n) {
        Ok(0) | Err(_) => 0,
        Ok(n) => n + header,
    };
    add_bytes(class, [size(received), size(sent)]);
}

const fn ip_header_bytes(ip: IpAddr) -> u64 {
    match ip.to_canonical() {
        IpAddr::V4(_) => IPV4_HEADER,
        IpAddr::V6(_) => IPV6_HEADER,
    }
}

/// Meter of one connection's bytes.
#[derive(Debug)]
pub(crate) struct ConnectionMeter {
    known: TcpCounts,
    /// Header of IP, bytes; `None`: the connection does not leave this machine.
    header: Option<u64>,
}

impl ConnectionMeter {
    /// Makes the meter of a connection. No byte of it is counted yet.
    pub(crate) fn new(socket: &TcpStream) -> Self {
        let ends = socket
            .local_addr()
            .and_then(|own| Ok((own, socket.peer_addr()?)));
        let header = ends.ok().and_then(|(own, other)| {
            let (own, other) = (own.ip().to_canonical(), other.ip().to_canonical());
            let stays = other.is_loopback() || own == other || leads_to_pods(other);
            (!stays).then(|| ip_header_bytes(other))
        });
        Self {
            known: TcpCounts::default(),
            header,
        }
    }

    /// Counts the bytes that the connection has carried since the last look.
    pub(crate) fn count_new_bytes(&mut self, socket: &TcpStream, class: LinkClass) {
        let Some(header) = self.header else {
            return;
        };
        let Ok(now) = tcp_counts(socket.as_raw_fd()) else {
            return;
        };
        add_bytes(class, bytes_between(&self.known, &now, header));
        self.known = now;
    }

    /// Counts the last bytes of a connection at its end.
    pub(crate) fn count_last_bytes(&mut self, socket: &TcpStream, class: LinkClass) {
        self.count_new_bytes(socket, class);
        if let Some(header) = self.header {
            let last = LAST_SEGMENTS * segment_header_bytes(header, &self.known);
            add_bytes(class, [last; 2]);
        }
    }
}

/// Bytes of a segment's headers.
const fn segment_header_bytes(header: u64, counts: &TcpCounts) -> u64 {
    let options = if counts.timestamps { TIMESTAMP } else { 0 };
    header + TCP_HEADER + options
}

/// Bytes that a connection has carried between two looks at it, received and sent.
fn bytes_between(before: &TcpCounts, now: &TcpCounts, header: u64) -> [u64; 2] {
    core::array::from_fn(|way| {
        let bytes = now.bytes[way].saturating_sub(before.bytes[way]);
        let segments = now.segments[way].wrapping_sub(before.segments[way]);
        bytes + u64::from(segments) * segment_header_bytes(header, now)
    })
}

/// Returns true if packets to `ip` leave by a bridge to which neither a device of the machine is bound, nor an
/// interface over one.
fn leads_to_pods(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent: the kernel says by which address it would be.
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    let Ok(own) = own else {
        return false;
    };
    let Ok(mut all) = getifaddrs() else {
        return false;
    };
    let found = all.find(|entry| {
        let address = entry.address.as_ref();
        let v4 = address
            .and_then(|a| a.as_sockaddr_in())
            .map(|a| IpAddr::V4(a.ip()));
        let v6 = address
            .and_then(|a| a.as_sockaddr_in6())
            .map(|a| IpAddr::V6(a.ip()));
        v4.or(v6) == Some(own.ip())
    });
    found
        .is_some_and(|entry| is_pod_bridge(&Path::new("/sys/class/net").join(entry.interface_name)))
}

fn is_pod_bridge(interface: &Path) -> bool {
    let Ok(ports) = fs::read_dir(interface.join("brif")) else {
        return false;
    };
    let has_device = |port: fs::DirEntry| {
        let port = interface.with_file_name(port.file_name());
        leads_to_device(&port, MAX_STACK)
    };
    !ports.flatten().any(has_device)
}

/// Returns true if the interface is a device, or a VLAN, a bond or the like over one.
fn leads_to_device(interface: &Path, most: u32) -> bool {
    if interface.join("device").exists() {
        return true;
    }
    let Some(most) = most.checked_sub(1) else {
        return false;
    };
    let Ok(entries) = fs::read_dir(interface) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let lower = name.to_str().and_then(|name| name.strip_prefix("lower_"));
        lower.is_some_and(|lower| leads_to_device(&interface.with_file_name(lower), most))
    })
}

/// A connection of the executor that is counted.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    stream: Async<TcpStream>,
    meter: ConnectionMeter,
    class: Rc<Cell<LinkClass>>,
}

impl CountedConnection {
    /// Counts `stream` by `class`, which may change: later bytes are of the new class.
    pub(crate) fn new(stream: Async<TcpStream>, class: Rc<Cell<LinkClass>>) -> Self {
        let meter = ConnectionMeter::new(stream.get_ref());
        Self {
            stream,
            meter,
            class,
        }
    }

    /// Returns true if the other side is on another machine.
    pub(crate) const fn leaves_machine(&self) -> bool {
        self.meter.header.is_some()
    }

    fn count_new_bytes(&mut self) {
        self.meter
            .count_new_bytes(self.stream.get_ref(), self.class.get());
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.meter
            .count_last_bytes(self.stream.get_ref(), self.class.get());
    }
}

impl AsyncRead for CountedConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if read.is_ready() {
            this.count_new_bytes();
        }
        read
    }
}

impl AsyncWrite for CountedConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        if written.is_ready() {
            this.count_new_bytes();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;

    fn counts(bytes: [u64; 2], segments: [u32; 2], timestamps: bool) -> TcpCounts {
        TcpCounts {
            bytes,
            segments,
            timestamps,
        }
    }

    #[test]
    fn headers_and_wraps() {
        // METER-01
        for (before, now, header, want) in [
            (
                counts([0, 0], [0, 0], false),
                counts([1000, 20], [2, 3], true),
                IPV4_HEADER,
                [1000 + 2 * 52, 20 + 3 * 52],
            ),
            (
                counts([0, 0], [u32::MAX, 7], false),
                counts([0, 5], [1, 8], false),
                IPV6_HEADER,
                [2 * 60, 5 + 60],
            ),
        ] {
            assert_eq!(bytes_between(&before, &now, header), want, "{now:?}");
        }
    }

    #[test]
    fn what_stays_here_is_not_counted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listener");
        let mut near =
            TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (mut far, _) = listener.accept().expect("accept");
        near.write_all(b"x").expect("write");
        far.read_exact(&mut [0]).expect("read");
        // Nothing in this program's tests updates.
        let before = counted_bytes().0[LinkClass::Update as usize];
        let mut meter = ConnectionMeter::new(&near);
        meter.count_new_bytes(&near, LinkClass::Update);
        meter.count_last_bytes(&near, LinkClass::Update);
        assert_eq!(counted_bytes().0[LinkClass::Update as usize], before);
    }

    #[test]
    fn bridges() {
        let scratch = crate::testing::TestDir::new("meter");
        let make = |path: &str| fs::create_dir_all(scratch.join(path)).expect("directory");
        make("eth0/device");
        make("veth1");
        make("cni0/brif/veth1");
        make("empty/brif");
        make("lan/brif/veth1");
        make("lan/brif/eth0");
        make("eth0.5/lower_eth0");
        make("vlan/brif/eth0.5");
        make("bond0/lower_eth0");
        make("bonded/brif/bond0");
        make("bond0.7/lower_bond0");
        make("both/brif/veth1");
        make("both/brif/bond0.7");
        // A VLAN of pods is none of the machine.
        make("veth1.5/lower_veth1");
        make("pods/brif/veth1.5");
        make("loop/lower_loop");
        make("endless/brif/loop");
        for (name, want) in [
            ("eth0", false),
            ("veth1", false),
            ("cni0", true),
            ("empty", true),
            ("lan", false),
            ("vlan", false),
            ("bonded", false),
            ("both", false),
            ("pods", true),
            ("endless", true),
            ("none", false),
        ] {
            assert_eq!(is_pod_bridge(&scratch.join(name)), want, "{name}");
        }
    }
}
