//! The kernel's word that devices came or went: a doorbell, for it may be lost.
//!
//! Source: netlink(7), `NETLINK_KOBJECT_UEVENT`; `lib/kobject_uevent.c`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use async_io::Async;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// The kernel's own messages; udev's come to another group.
const KERNEL: u32 = 1;
/// Bytes of a message that are looked at: all that it can have.
const MESSAGE: usize = 4096;
/// A message about a device that has a node says so.
const HAS_NODE: &[u8] = b"\0DEVNAME=";

/// Rings when a device with a node comes or goes.
pub(crate) struct UeventDoorbell {
    socket: Async<OwnedFd>,
}

impl UeventDoorbell {
    /// Lays it.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            flags,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        let socket = Async::new_nonblocking(socket)?;
        Ok(Self { socket })
    }

    /// Waits until it rings.
    ///
    /// - Errors: it is broken.
    pub(crate) async fn wait_for_ring(&self) -> io::Result<()> {
        loop {
            self.socket.readable().await?;
            if self.drain()? {
                return Ok(());
            }
            crate::sys::turn::yield_to_others().await;
        }
    }

    /// Takes the waiting messages. Returns true if one may be about a device with a node.
    fn drain(&self) -> io::Result<bool> {
        let mut message = [0; MESSAGE];
        let mut rings = false;
        // Bounded: messages that come meanwhile are taken next time.
        for _ in 0..64 {
            let fd = self.socket.as_raw_fd();
            match recv(fd, &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => {
                    let text = &message[..len.min(MESSAGE)];
                    rings |= text.windows(HAS_NODE.len()).any(|w| w == HAS_NODE);
                }
                Err(nix::Error::EAGAIN) => break,
                // Some messages were lost: any of them may have been about a device with a node.
                Err(nix::Error::ENOBUFS) => rings = true,
                Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(rings)
    }
}
