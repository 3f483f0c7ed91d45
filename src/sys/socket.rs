//! Descriptors that come out of sockets.

#![expect(unsafe_code, reason = "nix returns them as numbers")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockFlag, accept4, recvmsg};

/// Takes a waiting connection; `WouldBlock` if there is none. The new socket is non-blocking and close-on-exec.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_fd().as_raw_fd(), flags)?;
    // SAFETY: the call succeeded: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Receives one descriptor that the peer sends along with some bytes (`SCM_RIGHTS`). Close-on-exec.
/// Source: unix(7).
pub fn receive_fd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut data = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut data)];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let [fd, ..] = fds[..]
        {
            // SAFETY: the kernel has just made this descriptor for us. There is room for one only.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(io::Error::other("no descriptor came"))
}
