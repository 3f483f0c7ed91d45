//! A port that is taken and not only guessed to be free.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::{AsRawFd as _, IntoRawFd as _},
};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket,
    sockopt::ReuseAddr,
};

/// A TCP port of all addresses that the kernel gives to nobody else as long as this process lives. Connections to it are refused
/// until somebody who was told of it listens there, which may end and begin again.
///
/// # Panics
///
/// If the kernel has no port left.
pub(crate) fn held_port() -> u16 {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .expect("socket");
    setsockopt(&socket, ReuseAddr, &true).expect("SO_REUSEADDR");
    let any = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    bind(socket.as_raw_fd(), &any).expect("port");
    // Bound as long as the process lives, and listens never.
    getsockname::<SockaddrIn>(socket.into_raw_fd())
        .expect("address")
        .port()
}
