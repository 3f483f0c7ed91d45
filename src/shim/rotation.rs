//! Rotating a log while it is written, so that it never is larger than it may be. Rows LOG-06, LOG-07.
//!
//! The writer knows best when a file is full. The agent looks at intervals, and between two looks a container can fill
//! a disk. Work that takes time is left to the agent: it compresses the rotated files.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::line::format_stamp;
use crate::sys::{clock, dirents::Dirents, pages::PageBuffer};

/// Bytes of a directory that are read at once.
const ENTRIES_BYTES: usize = 4096;
/// Files removed by one rotation at most: a pod may have put any number beside its log.
const MAX_REMOVED: usize = 64;
/// `.YYYYMMDD-HHMMSS.NNNNNNNNN`
const SUFFIX_BYTES: usize = 26;
/// Bytes of a file's name.
const MAX_NAME_BYTES: usize = 255;

/// Limit of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimit {
    /// A file is smaller than this, unless one record alone is larger.
    pub max_bytes: u64,
    /// Files, the live one included; at least 2.
    pub max_files: u32,
}

/// Makes room among the rotated files, then renames the live file. A missing live file is success.
///
/// Takes no memory that stays.
pub(super) fn rotate_log(dir: &OwnedFd, live: &OsStr, limit: LogLimit) -> io::Result<()> {
    let keep = usize::try_from(limit.max_files.saturating_sub(2)).unwrap_or(usize::MAX);
    for _ in 0..MAX_REMOVED {
        let (count, oldest) = scan_rotated_files(dir, live)?;
        if count <= keep {
            break;
        }
        match unlinkat(dir, oldest.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            // The agent may have replaced it by a compressed one.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let name = rotated_name(live, &format_stamp(clock::wall_now().0)).ok_or(Errno::ENAMETOOLONG)?;
    match renameat(dir, live, dir, name.as_os_str()) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A name on the stack.
struct RotatedName {
    bytes: [u8; MAX_NAME_BYTES],
    len: usize,
}

impl RotatedName {
    const EMPTY: Self = Self {
        bytes: [0; MAX_NAME_BYTES],
        len: 0,
    };

    fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.bytes[..self.len])
    }

    fn push_bytes(&mut self, more: &[u8]) -> Option<()> {
        let end = self.len + more.len();
        self.bytes.get_mut(self.len..end)?.copy_from_slice(more);
        self.len = end;
        Some(())
    }
}

/// Counts the rotated files, and finds the oldest by its name. Only regular files count.
fn scan_rotated_files(dir: &OwnedFd, live: &OsStr) -> io::Result<(usize, RotatedName)> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let listed = openat(dir, c".", flags, Mode::empty())?;
    let mut names = Dirents::with_buffer(listed, PageBuffer::map(ENTRIES_BYTES)?);
    let (mut count, mut oldest) = (0, RotatedName::EMPTY);
    while let Some(name) = names.next_name()? {
        let rest = name.as_bytes().strip_prefix(live.as_bytes());
        if !rest.is_some_and(|rest| rest.starts_with(b".")) {
            continue;
        }
        let is_file = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG
        });
        if !is_file {
            continue;
        }
        count += 1;
        if oldest.len == 0 || name < oldest.as_os_str() {
            oldest.len = 0;
            let _ = oldest.push_bytes(name.as_bytes());
        }
    }
    Ok((count, oldest))
}

/// `<N>.log.<YYYYMMDD-HHMMSS>.<nanoseconds>`: a container can fill many files in a second, and their names tell the order.
fn rotated_name(live: &OsStr, stamp: &[u8]) -> Option<RotatedName> {
    let mut name = RotatedName::EMPTY;
    name.push_bytes(live.as_bytes())?;
    for (before, part) in [
        (&b"."[..], 0..4),
        (b"", 5..7),
        (b"", 8..10),
        (b"-", 11..13),
        (b"", 14..16),
        (b"", 17..19),
        (b".", 20..29),
    ] {
        name.push_bytes(before)?;
        name.push_bytes(stamp.get(part)?)?;
    }
    debug_assert_eq!(name.len, live.len() + SUFFIX_BYTES);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_order() {
        // LOG-07
        let at = |stamp: &[u8]| {
            let name = rotated_name(OsStr::new("0.log"), stamp).expect("a name");
            name.as_os_str().to_string_lossy().into_owned()
        };
        let first = at(b"2023-11-14T22:13:20.123456789Z");
        assert_eq!(first, "0.log.20231114-221320.123456789");
        let later = at(b"2023-11-14T22:13:20.123456790Z");
        assert!(first < later && format!("{first}.gz") < later);
        assert!("0.log.20231114-221319.gz" < &*first, "those of an agent");
        let long = "x".repeat(230);
        assert!(rotated_name(OsStr::new(&long), b"2023-11-14T22:13:20.123456789Z").is_none());
    }
}
