//! Processes by file descriptor: a pidfd never names a later process that got the same number.

#![expect(unsafe_code, reason = "system calls that neither std nor nix wraps")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Opens `pid`. `ESRCH` if there is no such process (a zombie still counts as one).
///
/// The number may have been given to another process since it was recorded: compare the start time
/// ([`super::proc::start_time`]) *after* opening. Source: pidfd_open(2), Linux 5.3.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: two integer arguments; the kernel checks them.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) };
    let fd = check_fd_result(fd)?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nobody else owns. It is close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends `signal` to the process. `ESRCH` if it has ended and was reaped. Source: pidfd_send_signal(2).
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call; a null siginfo is what the manual asks for.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            libc::c_long::from(pidfd.as_raw_fd()),
            libc::c_long::from(signal),
            core::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    check_fd_result(result).map(drop)
}

/// Returns true if the process has ended (it may still be a zombie). Never waits.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds[0].any().unwrap_or(false))
}

/// Waits on the executor until the process has ended. Does not reap it.
pub async fn wait_until_ended(pidfd: impl AsFd) -> io::Result<()> {
    // The reactor needs no O_NONBLOCK: nothing is read from a pidfd.
    let watched = async_io::Async::new_nonblocking(pidfd)?;
    watched.readable().await
}

fn check_fd_result(result: libc::c_long) -> io::Result<RawFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(result).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process() {
        let pid = i32::try_from(std::process::id()).expect("pid");
        let fd = open_pidfd(pid).expect("open");
        assert!(!has_ended(fd.as_fd()).expect("poll"));
        send_signal(fd.as_fd(), 0).expect("signal 0 only checks");
        assert!(open_pidfd(i32::MAX).is_err());
    }
}
