#![expect(
    unsafe_code,
    reason = "extended attributes have no safe wrapper in nix"
)]
//! Extended attributes: `xattr(7)`.

use core::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Largest value and largest list of names that Linux takes, bytes (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub const XATTR_MAX_BYTES: usize = 64 * 1024;

/// Sets `name` on the open file. See `fsetxattr(2)`.
pub fn set_attribute(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is open, `name` ends with NUL, `value` is valid for its length; nothing is kept.
    let done = unsafe {
        libc::fsetxattr(
            file.as_raw_fd(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    checked_length(done.try_into().unwrap_or(-1)).map(drop)
}

/// Sets `name` on `path` itself, which may be a symbolic link. See `lsetxattr(2)`.
pub fn set_on_link(path: &CStr, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: both strings end with NUL, `value` is valid for its length; nothing is kept.
    let done = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    checked_length(done.try_into().unwrap_or(-1)).map(drop)
}

/// The value of `name` on the open file; `None` if it has none.
pub fn read_attribute(file: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; XATTR_MAX_BYTES];
    // SAFETY: the descriptor is open, `name` ends with NUL, `value` can take its length.
    let n = unsafe {
        libc::fgetxattr(
            file.as_raw_fd(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    match checked_length(n) {
        Ok(n) => {
            value.truncate(n);
            value.shrink_to_fit();
            Ok(Some(value))
        }
        Err(e) if e.raw_os_error() == Some(libc::ENODATA) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Names on `path` itself, which may be a symbolic link, each ending with NUL. See `llistxattr(2)`.
pub fn names_on_link(path: &CStr) -> io::Result<Vec<u8>> {
    read_sized(&mut |list| {
        // SAFETY: `path` ends with NUL, `list` can take its length.
        unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) }
    })
}

/// The value of `name` on `path` itself; `None` if it has none. See `lgetxattr(2)`.
pub fn read_on_link(path: &CStr, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let value = read_sized(&mut |value| {
        // SAFETY: both strings end with NUL, `value` can take its length.
        unsafe {
            libc::lgetxattr(
                path.as_ptr(),
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        }
    });
    match value {
        Err(e) if e.raw_os_error() == Some(libc::ENODATA) => Ok(None),
        value => value.map(Some),
    }
}

/// Reads with a small buffer first, then with one for anything: most entries have no attributes.
fn read_sized(ask: &mut dyn FnMut(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    let mut small = [0; 256];
    match checked_length(ask(&mut small)) {
        Ok(n) => return Ok(small[..n].to_vec()),
        // A file system without attributes has none.
        Err(e) if e.raw_os_error() == Some(libc::ENOTSUP) => return Ok(Vec::new()),
        Err(e) if e.raw_os_error() != Some(libc::ERANGE) => return Err(e),
        Err(_) => {}
    }
    let mut large = vec![0; XATTR_MAX_BYTES];
    let n = checked_length(ask(&mut large))?;
    large.truncate(n);
    Ok(large)
}

/// Names on the open file, each ending with NUL.
pub fn list_attribute_names(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut list = vec![0; XATTR_MAX_BYTES];
    // SAFETY: the descriptor is open, `list` can take its length.
    let n = unsafe { libc::flistxattr(file.as_raw_fd(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(checked_length(n)?);
    list.shrink_to_fit();
    Ok(list)
}

fn checked_length(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
