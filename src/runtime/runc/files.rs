//! Small files of the run directory: bounded reads, atomic writes, removal that does not mind absence.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

use crate::api::order::OrderExt;
use crate::sys::file;
pub(super) use crate::sys::file::read_start;

/// Mode of a directory that only root enters.
const PRIVATE: u32 = 0o700;

/// Writes `bytes` so that a reader sees the old or the new contents, never half. Mode 0600.
///
/// Not synced: the run directory is a tmpfs, and other such files may be lost in a power cut without harm.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::write_atomic(path, bytes, 0o600, false)
}

/// Writes a file that pods see: mode 0644 whatever the umask.
pub(super) fn write_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::write_atomic(path, bytes, 0o644, false)
}

/// Makes a directory that only root enters, whatever the umask. An existing one is closed, because an earlier version
/// left it open. Entries below may have any mode then: only root can reach them.
///
/// Containers need no way through it: the OCI runtime, as root, mounts their files before they have another root. With a
/// user namespace its root is nobody here: see [`open_dir_to`].
pub(super) fn make_private_dir(dir: &Path) -> io::Result<()> {
    file::make_dirs(dir, PRIVATE)?;
    close_dir(dir)
}

/// Lets one group, or everybody, go through a private directory to what they know the name of. All that is in it must be
/// closed, or meant for them: `containers` has only directories that are closed, or open to the group of one pod.
pub(super) fn open_dir_to(dir: &Path, group: Option<u32>) -> io::Result<()> {
    let mode = match group {
        Some(_) => 0o710,
        None => 0o711,
    };
    chown(dir, None, group)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}

/// Closes every directory in `dir`, and `dir` first.
pub(super) fn close_dirs_in(dir: &Path) -> io::Result<()> {
    make_private_dir(dir)?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            close_dir(&entry.path())?;
        }
    }
    Ok(())
}

/// Closes a directory to all but root. One that is closed already is not written: the disk may have become read-only.
fn close_dir(dir: &Path) -> io::Result<()> {
    if fs::symlink_metadata(dir)?.permissions().mode() & 0o7777 == PRIVATE {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(PRIVATE))
}

/// Makes the directory that is a container's `/`: the container sees its mode.
pub(super) fn make_root_dir(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

/// Removes a file. Absent counts as removed.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_file(path))
}

/// Names in a directory, sorted. Absent counts as empty.
pub(super) fn sorted_names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Our own names are ASCII: other names are not ours.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.stable_sort();
    Ok(names)
}

fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
