#![expect(unsafe_code, reason = "getdents64 has no safe wrapper in nix")]
//! Names of a directory, one after the other: `getdents(2)`.
//!
//! The C library's and std's readers keep 32 KiB for each open directory, or all names. A walk that has many directories
//! open, each filled by a pod, keeps a page for each here.

use core::ops::DerefMut;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

/// Bytes that are read at once; the longest entry is below 300.
const BUFFER_BYTES: usize = 4096;
/// Offsets in an entry: of its length, and of its name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// A directory that is being read.
#[derive(Debug)]
pub struct Dirents<B = Box<[u8]>> {
    dir: OwnedFd,
    buffer: B,
    at: usize,
    end: usize,
}

impl Dirents {
    /// Reads `dir`, which was opened for reading, from where it stands.
    #[must_use]
    pub fn new(dir: OwnedFd) -> Self {
        Self::with_buffer(dir, vec![0; BUFFER_BYTES].into_boxed_slice())
    }
}

impl<B: DerefMut<Target = [u8]>> Dirents<B> {
    /// Reads `dir` as [`Dirents::new`] does, by a buffer of the caller's with room for the longest entry: 300 bytes.
    #[must_use]
    pub const fn with_buffer(dir: OwnedFd, buffer: B) -> Self {
        Self {
            dir,
            buffer,
            at: 0,
            end: 0,
        }
    }

    /// The directory.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// The next name, in no order, without `.` and `..`; `None` at the end. Entries that are made or removed meanwhile
    /// may be listed or not.
    pub fn next_name(&mut self) -> io::Result<Option<&OsStr>> {
        loop {
            if self.at == self.end {
                self.at = 0;
                self.end = fill_entries(&self.dir, &mut self.buffer)?;
                if self.end == 0 {
                    return Ok(None);
                }
            }
            let from = self.at;
            let broken = || io::Error::other("the kernel's list of a directory is broken");
            let rest = &self.buffer[from..self.end];
            let length = rest.get(LENGTH_AT..NAME_AT - 1).ok_or_else(broken)?;
            let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
            let name = rest.get(NAME_AT..length).ok_or_else(broken)?;
            let length_of_name = name.iter().position(|b| *b == 0).ok_or_else(broken)?;
            self.at += length;
            let name = from + NAME_AT..from + NAME_AT + length_of_name;
            if !matches!(&self.buffer[name.clone()], b"." | b"..") {
                return Ok(Some(OsStr::from_bytes(&self.buffer[name])));
            }
        }
    }
}

/// Bytes of entries; 0 at the end.
fn fill_entries(dir: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the descriptor is open, and the buffer can take its length; nothing is kept.
    let n = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            dir.as_fd().as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    };
    usize::try_from(n)
        .ok()
        .filter(|n| *n <= buffer.len())
        .ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::fs;

    use super::*;

    #[test]
    fn each_name_once() {
        let dir = crate::testing::unused_path("names");
        for count in [0, 1, 1000] {
            fs::create_dir_all(&dir).expect("dir");
            let wanted: BTreeSet<OsString> = (0..count)
                .map(|n| format!("{n:0width$}", width = 1 + n % 255).into())
                .collect();
            for name in &wanted {
                fs::write(dir.join(name), "").expect("file");
            }
            let mut names = Dirents::new(fs::File::open(&dir).expect("dir").into());
            let mut found = Vec::new();
            while let Some(name) = names.next_name().expect("read") {
                found.push(name.to_owned());
            }
            assert_eq!(found.len(), wanted.len());
            assert_eq!(BTreeSet::from_iter(found), wanted);
            fs::remove_dir_all(&dir).expect("clean");
        }
        let file = fs::File::open("/proc/self/stat").expect("file");
        assert!(
            Dirents::new(file.into()).next_name().is_err(),
            "no directory"
        );
    }
}
