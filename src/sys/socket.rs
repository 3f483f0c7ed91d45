//! Descriptors that come out of sockets, the closing of sockets, and the kernel's counts of their traffic.

#![expect(unsafe_code, reason = "nix returns them as numbers")]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockFlag, accept4, recvmsg};

/// Takes a waiting connection; `WouldBlock` if there is none. The new socket is non-blocking and close-on-exec.
pub fn accept_connection(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_fd().as_raw_fd(), flags)?;
    // SAFETY: the call succeeded: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The socket that a service manager has handed over, which listens. To be called once. Source: sd_listen_fds(3).
pub fn take_handed_listener() -> io::Result<UnixListener> {
    const FIRST: RawFd = 3;
    // SAFETY: descriptors from this one on are the caller's, as sd_listen_fds(3) says; nothing in this program has taken it.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let listens = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::AcceptConn)?;
    if !listens {
        return Err(io::Error::other("it does not listen"));
    }
    let flags = nix::fcntl::FdFlag::FD_CLOEXEC;
    nix::fcntl::fcntl(&socket, nix::fcntl::FcntlArg::F_SETFD(flags))?;
    Ok(socket.into())
}

/// Makes a close of `socket` drop the data that the peer has not taken yet; the peer hears of it at once (`SO_LINGER`).
/// Source: socket(7).
pub fn drop_unsent_on_close(socket: RawFd) -> io::Result<()> {
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

/// Limits what the kernel holds of a connection in each direction, bytes (`SO_RCVBUF`, `SO_SNDBUF`). The peer cannot send
/// more than that ahead. Source: socket(7).
pub fn limit_buffers(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};

    setsockopt(&socket.as_fd(), sockopt::RcvBuf, &bytes)?;
    setsockopt(&socket.as_fd(), sockopt::SndBuf, &bytes)?;
    Ok(())
}

/// Traffic of a TCP connection so far, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounts {
    /// Bytes without headers, received and sent; bytes sent again count again.
    pub bytes: [u64; 2],
    /// Segments of both kinds, those without bytes included. They begin anew after 2^32.
    pub segments: [u32; 2],
    /// Every segment has a timestamp.
    pub timestamps: bool,
}

/// Reads the counts of a connection.
///
/// Source: tcp(7), `TCP_INFO`; `struct tcp_info` in linux/tcp.h, which has grown at its end over the years. What was sent
/// again counts from Linux 4.19 on.
pub fn tcp_counts(socket: RawFd) -> io::Result<TcpCounts> {
    const OPTIONS: usize = 5;
    const TIMESTAMPS: u8 = 1;
    const BYTES_ACKED: usize = 120;
    const BYTES_RECEIVED: usize = 128;
    const SEGMENTS_OUT: usize = 136;
    const SEGMENTS_IN: usize = 140;
    const BYTES_SENT: usize = 200;
    const LENGTH: usize = 208;
    let mut info = [0_u8; LENGTH];
    let mut length = libc::socklen_t::try_from(LENGTH).unwrap_or_default();
    // SAFETY: the kernel writes at most `length` bytes into `info`, which has as many.
    let got = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    nix::Error::result(got)?;
    let wide = |at: usize| {
        let bytes = info.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    let narrow = |at: usize| {
        let bytes = info.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    let has_sent = usize::try_from(length).is_ok_and(|length| length >= LENGTH);
    let sent = if has_sent { BYTES_SENT } else { BYTES_ACKED };
    Ok(TcpCounts {
        bytes: [wide(BYTES_RECEIVED), wide(sent)],
        segments: [narrow(SEGMENTS_IN), narrow(SEGMENTS_OUT)],
        timestamps: info[OPTIONS] & TIMESTAMPS != 0,
    })
}

/// Receives one descriptor that the peer sends along with some bytes (`SCM_RIGHTS`), which are dropped. Close-on-exec.
/// Source: unix(7).
pub fn receive_fd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let (_, fd) = receive_with_fd(socket, &mut [0; 4096])?;
    fd.ok_or_else(|| io::Error::other("no descriptor came"))
}

/// The most descriptors that the kernel passes on with one message (`SCM_MAX_FD`). Source: unix(7).
const MAX_FDS: usize = 253;

/// Receives bytes, and the first descriptor that came along with them; others are closed. Source: unix(7).
pub fn receive_with_fd(socket: impl AsFd, data: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut parts = [IoSliceMut::new(data)];
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), flags)?;
    let mut came = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control {
            for fd in fds {
                // SAFETY: the kernel has just made this descriptor for us, and nobody else knows its number.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                came.get_or_insert(fd);
            }
        }
    }
    Ok((message.bytes, came))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use nix::{
        poll::{PollFd, PollFlags, poll},
        sys::socket::{AddressFamily, ControlMessage, SockType, sendmsg, socketpair},
    };

    use super::*;

    #[test]
    fn what_a_connection_carried() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("listener");
        let address = listener.local_addr().expect("address");
        let mut near = std::net::TcpStream::connect(address).expect("connect");
        let (mut far, _) = listener.accept().expect("accept");
        near.write_all(&[0; 1000]).expect("write");
        far.read_exact(&mut [0; 1000]).expect("read");
        far.write_all(&[0; 300]).expect("write");
        near.read_exact(&mut [0; 300]).expect("read");
        let counts = tcp_counts(near.as_raw_fd()).expect("counts");
        assert_eq!(counts.bytes, [300, 1000]);
        // A SYN, an ACK and the bytes; its answer and the bytes.
        assert!(
            counts.segments[1] >= 3 && counts.segments[0] >= 2,
            "{counts:?}"
        );
        assert!(tcp_counts(listener.as_raw_fd()).is_ok());
        assert!(tcp_counts(-1).is_err());
    }

    #[test]
    fn one_descriptor_is_kept_and_the_others_are_closed() {
        for count in [1, 2, 3, MAX_FDS] {
            let flags = SockFlag::SOCK_CLOEXEC;
            let pair = socketpair(AddressFamily::Unix, SockType::Stream, None, flags);
            let (ours, theirs) = pair.expect("sockets");
            let (mut first, kept) = io::pipe().expect("a pipe");
            let (mut second, closed) = io::pipe().expect("a pipe");
            let mut fds = vec![closed.as_raw_fd(); count];
            fds[0] = kept.as_raw_fd();
            let parts = [io::IoSlice::new(b"x")];
            let rights = [ControlMessage::ScmRights(&fds)];
            let sent = sendmsg::<()>(theirs.as_raw_fd(), &parts, &rights, MsgFlags::empty(), None);
            assert_eq!(sent, Ok(1));
            drop((kept, closed));
            let (bytes, came) = receive_with_fd(&ours, &mut [0; 8]).expect("a message");
            assert_eq!(bytes, 1);
            // The input ends once no process can write any more. The time only bounds a failure.
            let mut look = [PollFd::new(second.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut look, 30_000_u16), Ok(1), "{count}: one is open");
            assert_eq!(second.read(&mut [0]).expect("the end"), 0, "{count}");
            let mut came = std::fs::File::from(came.expect("a descriptor"));
            came.write_all(b"y").expect("it is open");
            assert_eq!(first.read(&mut [0]).expect("a byte"), 1, "{count}");
        }
    }
}
