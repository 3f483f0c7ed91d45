//! Whole-file writes that are seen either not at all or complete, and renames that replace nothing.
#![expect(
    unsafe_code,
    reason = "renameat2 has no safe wrapper with every C library"
)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::{NixPath, errno::Errno};

/// Replaces the file at `path` by one with `bytes` and exactly `mode` (no umask), through a temporary file beside it.
///
/// - `durable`: the content and the name survive a power cut once this returns (two fsyncs); otherwise only the order is
///   kept by the file system: never use that for state that must survive.
/// - Errors: the old file is untouched and the temporary one removed; only the last fsync can fail with the new one in place.
///
/// Two writers of one path must not run at a time.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32, durable: bool) -> io::Result<()> {
    let temporary = temporary_name(path)?;
    mark_change(path)?;
    let result = write_new(&temporary, bytes, mode, durable)
        .and_then(|()| mark_change(path))
        .and_then(|()| std::fs::rename(&temporary, path));
    if let Err(e) = result {
        let _ = std::fs::remove_file(&temporary);
        return Err(e);
    }
    if durable {
        // A written file has a parent; the path names it unless it is a bare name.
        let dir = path.parent().filter(|d| !d.as_os_str().is_empty());
        sync_dir(dir.unwrap_or_else(|| Path::new(".")))?;
    }
    Ok(())
}

/// Makes a directory and those above it that are missing, all with `mode`, less the umask. It may be there already.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(mode).create(path)
}

/// Bytes for which room is made at once when a file is read, at most: a size is only what a file says of itself.
const LARGEST_GUESS_BYTES: u64 = 1 << 20;

/// Reads at most `limit` bytes from the start of a file.
pub fn read_start(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // Behind its last byte the file is read once more.
    let expected = file.metadata()?.len().min(limit).min(LARGEST_GUESS_BYTES);
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0) + 1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads when a file or directory was made, nanoseconds since 1970; `None` if the file system does not say. Source: statx(2).
#[must_use]
pub fn birth_time_ns(path: &Path) -> Option<i64> {
    let made = std::fs::metadata(path).and_then(|meta| meta.created());
    let since = made.ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

/// Makes names that were created, renamed or removed in `dir` survive a power cut.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    sync_path(dir)
}

/// Makes the content of a file, or the names in a directory, survive a power cut.
pub fn sync_path(path: &Path) -> io::Result<()> {
    mark_change(path)?;
    File::open(path)?.sync_all()?;
    mark_synced(path);
    Ok(())
}

/// Marks a place before a change of a file that the agent keeps for its successor. A test stops the disk here, or makes
/// it fail.
pub fn mark_change(path: &Path) -> io::Result<()> {
    watched::tell_watcher(path, false)
}

/// Marks a place after a file or directory was synced, for tests that cut the power.
fn mark_synced(path: &Path) {
    let _ = watched::tell_watcher(path, true);
}

/// Changes of the disk, as tests watch them. In the program there is no watcher.
pub mod watched {
    use core::cell::RefCell;
    use std::{io, path::Path, rc::Rc};

    /// Callback of a test: is told of a file or directory that is about to change, or that was synced. An error makes
    /// the change fail.
    pub type FileChangeWatcher = Rc<dyn Fn(&Path, bool) -> io::Result<()>>;

    thread_local! {
        static WATCHER: RefCell<Option<FileChangeWatcher>> = const { RefCell::new(None) };
    }

    /// Sets the watcher of this thread's changes.
    pub fn set_watcher(watcher: Option<FileChangeWatcher>) {
        WATCHER.set(watcher);
    }

    pub(super) fn tell_watcher(path: &Path, is_synced: bool) -> io::Result<()> {
        let watcher = WATCHER.with_borrow(Clone::clone);
        watcher.map_or(Ok(()), |watcher| watcher(path, is_synced))
    }
}

/// Renames entry `name` of `dir` to `to` of `to_dir`; fails with `EEXIST` where that name is taken. Source: renameat2(2).
pub fn rename_new(
    dir: impl AsFd,
    name: &OsStr,
    to_dir: impl AsFd,
    to: &OsStr,
) -> Result<(), Errno> {
    renameat2(
        dir.as_fd(),
        name,
        to_dir.as_fd(),
        to,
        libc::RENAME_NOREPLACE,
    )
}

/// Calls `renameat2(2)` by its number: not every C library has a function for it.
fn renameat2(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    to_dir: BorrowedFd<'_>,
    to: &OsStr,
    flags: libc::c_uint,
) -> Result<(), Errno> {
    let renamed = name.with_nix_path(|name| {
        to.with_nix_path(|to| {
            // SAFETY: both names end with a zero byte and both descriptors are open for the call.
            unsafe {
                libc::syscall(
                    libc::SYS_renameat2,
                    libc::c_long::from(dir.as_raw_fd()),
                    name.as_ptr(),
                    libc::c_long::from(to_dir.as_raw_fd()),
                    to.as_ptr(),
                    libc::c_ulong::from(flags),
                )
            }
        })
    })??;
    Errno::result(renamed).map(drop)
}

/// `.name.tmp` beside `path`: left over only by a crash, and replaced by the next write.
fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".tmp");
    Ok(path.with_file_name(temporary))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32, durable: bool) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // create_new never follows a link that was put there meanwhile.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    if durable {
        file.sync_all()?;
        mark_synced(path);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Gives two entries each other's name, in one step. Source: renameat2(2).
    pub(crate) fn exchange_names(
        dir: impl AsFd,
        name: &OsStr,
        other_dir: impl AsFd,
        other: &OsStr,
    ) -> Result<(), Errno> {
        renameat2(
            dir.as_fd(),
            name,
            other_dir.as_fd(),
            other,
            libc::RENAME_EXCHANGE,
        )
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let path = crate::testing::unused_path("rename");
        for (name, text) in [("a/one", "1"), ("b/two", "2")] {
            let file = path.join(name);
            std::fs::create_dir_all(file.parent().expect("parent")).expect("dir");
            std::fs::write(file, text).expect("file");
        }
        let [a, b] = ["a", "b"].map(|d| File::open(path.join(d)).expect("open"));
        let rename = |from: &str, to: &str| rename_new(&a, from.as_ref(), &b, to.as_ref());
        assert_eq!(rename("one", "two"), Err(Errno::EEXIST));
        assert_eq!(rename("none", "three"), Err(Errno::ENOENT));
        assert_eq!(rename("one", "three"), Ok(()));
        let texts =
            || ["a/one", "b/two", "b/three"].map(|n| std::fs::read_to_string(path.join(n)).ok());
        assert_eq!(texts(), [None, Some("2".into()), Some("1".into())]);
        assert_eq!(
            exchange_names(&b, "two".as_ref(), &b, "three".as_ref()),
            Ok(())
        );
        assert_eq!(texts(), [None, Some("1".into()), Some("2".into())]);
        std::fs::remove_dir_all(&path).expect("remove");
    }

    #[test]
    fn replaces_whole_files() {
        let dir = crate::testing::unused_path("file");
        std::fs::create_dir_all(&dir).expect("dir");
        let path = dir.join("record");
        for (text, mode, durable) in [("one", 0o600, true), ("two", 0o666, false)] {
            // The leftover of a crash.
            std::fs::write(dir.join(".record.tmp"), "half").expect("left over");
            write_atomic(&path, text.as_bytes(), mode, durable).expect("write");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
            let found = std::fs::metadata(&path).expect("stat").permissions().mode();
            assert_eq!(found & 0o7777, mode);
            assert_eq!(std::fs::read_dir(&dir).expect("list").count(), 1);
        }
        std::fs::create_dir(dir.join("busy")).expect("dir");
        assert!(write_atomic(&dir.join("busy"), b"x", 0o600, true).is_err());
        assert_eq!(std::fs::read_dir(&dir).expect("list").count(), 2);
        std::fs::remove_dir_all(&dir).expect("remove");
    }
}
