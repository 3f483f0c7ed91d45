//! Terminals: window size, and their other end. Man page: `ioctl_tty(2)`.
#![expect(unsafe_code, reason = "ioctl has no safe wrapper in nix")]

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Columns and rows of the terminal behind `fd`; `None` if it is none.
#[must_use]
pub fn window_size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one `winsize` through the pointer, which is valid for the call.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0).then_some((size.ws_col, size.ws_row))
}

/// Sets columns and rows of the terminal behind `fd`.
pub fn set_window_size(fd: BorrowedFd<'_>, columns: u16, rows: u16) -> nix::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads one `winsize` through the pointer, which is valid for the call.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    nix::errno::Errno::result(answer).map(drop)
}

/// Opens the terminal whose master is `fd`, wherever its name may be. It becomes no controlling terminal. Linux 4.13.
pub fn open_slave(fd: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes flags of open(2) and no pointer.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    let fd = nix::errno::Errno::result(answer)?;
    // SAFETY: the call succeeded: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
