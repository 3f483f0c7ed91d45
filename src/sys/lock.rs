//! Lock files: held by whoever has the file open, released by the kernel when the last holder ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Takes the lock at `path`, making the file (0600) if need be. `Ok(None)` if another process holds it.
///
/// The lock belongs to the open file: it is held until every copy of the returned descriptor is closed, also those that
/// children inherited. Source: flock(2).
pub fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    held(file.try_lock(), file)
}

/// Whether somebody holds the lock at `path`. A missing file is not locked.
pub fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let free = held(file.try_lock_shared(), file)?;
    Ok(free.is_none())
}

fn held(result: Result<(), std::fs::TryLockError>, file: File) -> io::Result<Option<File>> {
    match result {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_until_closed() {
        let path = std::env::temp_dir().join(format!("picolet-lock-{}", std::process::id()));
        assert!(!is_locked(&path).expect("missing"));
        let lock = try_lock(&path).expect("lock").expect("free");
        let copy = lock.try_clone().expect("clone");
        drop(lock);
        assert!(is_locked(&path).expect("held"));
        assert!(try_lock(&path).expect("second").is_none());
        drop(copy);
        assert!(!is_locked(&path).expect("free"));
        std::fs::remove_file(&path).expect("remove");
    }
}
