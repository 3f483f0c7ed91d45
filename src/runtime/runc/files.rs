//! Small files of the run directory: bounded reads, atomic writes, removal that does not mind absence.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use crate::api::order::Order;
use crate::sys::file;

/// Writes `bytes` so that a reader sees the old or the new contents, never half. Mode 0600.
///
/// Not synced: the run directory is a tmpfs, and what is elsewhere may be lost in a power cut without harm.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::write_atomic(path, bytes, 0o600, false)
}

/// Writes a file that pods see: mode 0644 whatever the umask.
pub(super) fn write_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::write_atomic(path, bytes, 0o644, false)
}

/// Removes a file. Absent counts as removed.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_file(path))
}

/// Removes a tree without following links. Absent counts as removed.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    absent_is_fine(fs::remove_dir_all(path))
}

/// Reads at most `limit` bytes from the start of a file.
pub(super) fn read_start(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Names in a directory, sorted. Absent counts as empty.
pub(super) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Names of ours are ASCII: others are not ours.
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    names.order();
    Ok(names)
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
