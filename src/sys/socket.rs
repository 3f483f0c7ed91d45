//! Descriptors that come out of sockets, and what sockets do when they are closed.

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

/// When `socket` is closed, what the peer has not taken yet is thrown away, and the peer hears of it at once (`SO_LINGER`).
/// Source: socket(7).
pub fn forget_unsent(socket: RawFd) -> io::Result<()> {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap_or_default();
    // SAFETY: the pointer and the length are those of `at_once`, which is only read.
    let set = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const at_once).cast(),
            length,
        )
    };
    nix::Error::result(set)?;
    Ok(())
}

/// Receives one descriptor that the peer sends along with some bytes (`SCM_RIGHTS`), which are dropped. Close-on-exec.
/// Source: unix(7).
pub fn receive_fd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let (_, fd) = receive(socket, &mut [0; 4096])?;
    fd.ok_or_else(|| io::Error::other("no descriptor came"))
}

/// Receives bytes, and the descriptor that came along with them. There is room for one: the kernel closes others.
pub fn receive(socket: impl AsFd, data: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut parts = [IoSliceMut::new(data)];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags)?;
    let mut came = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let [fd, ..] = fds[..]
        {
            // SAFETY: the kernel has just made this descriptor for us. There is room for one only.
            came = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Ok((message.bytes, came))
}
