//! Lock files: held by the processes that have the file open, released by the kernel when the last of them ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{clock, start};

/// Longest wait for a lock that a process on its way out may still hold.
const PATIENCE: core::time::Duration = core::time::Duration::from_secs(5);
/// Pause between two tries, milliseconds.
const TRY_MS: i32 = 20;

/// Takes the lock at `path`, making the file (0600) if need be. `Ok(None)` if another process holds it.
///
/// The lock belongs to the open file: it is held until every copy of the returned descriptor is closed, also those that
/// children inherited. Source: flock(2).
pub fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let open = |write: bool| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .create(write)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
    };
    loop {
        let file = match open(true) {
            // A lock that was made before the disk became read-only can still be taken.
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => open(false)?,
            other => other?,
        };
        let Some(file) = lock_result(file.try_lock(), file)? else {
            return Ok(None);
        };
        // The file may have been removed in between: then a new file could be locked beside this one.
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

/// Takes a shared lock at `path`, making the file if need be. `Ok(None)` if a process holds it alone.
pub fn try_share(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    lock_result(file.try_lock_shared(), file)
}

/// Removes the free locks in `dir`. A lock that cannot be removed stays.
pub fn sweep_free_locks(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if let Ok(Some(_held)) = try_lock(&path) {
            // Held while it is removed: a process that opened it meanwhile finds that it is no longer there.
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let own = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// [`try_lock`], tried for some seconds.
///
/// Who dies in the middle of a fork leaves a copy of its descriptors to a child that has not begun its program yet, and who
/// dies while the disk does not answer is gone only when it does: the lock is then free a moment after its holder's end.
/// Blocks the thread.
pub fn try_lock_patiently(path: &Path) -> io::Result<Option<File>> {
    let deadline = clock::mono_now() + PATIENCE;
    loop {
        if let Some(file) = try_lock(path)? {
            return Ok(Some(file));
        }
        if clock::mono_now() >= deadline {
            return Ok(None);
        }
        start::poll_fds(&mut [], TRY_MS)?;
    }
}

/// Returns true if a process holds the lock at `path`. A missing file is not locked.
pub fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let free = lock_result(file.try_lock_shared(), file)?;
    Ok(free.is_none())
}

fn lock_result(result: Result<(), std::fs::TryLockError>, file: File) -> io::Result<Option<File>> {
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
    fn only_free_locks_are_swept() {
        let dir = crate::testing::unused_path("locks-swept");
        std::fs::create_dir_all(&dir).expect("dir");
        let (free, taken) = (dir.join("free"), dir.join("taken"));
        drop(try_lock(&free).expect("lock"));
        let held = try_lock(&taken).expect("lock").expect("free");
        sweep_free_locks(&dir).expect("sweep");
        assert_eq!((free.exists(), taken.exists()), (false, true));
        assert!(try_lock(&taken).expect("lock").is_none());
        // A holder whose file was removed holds nothing: the next one makes a new file.
        std::fs::remove_file(&taken).expect("remove");
        assert!(!is_at(&held, &taken).expect("look"));
        assert!(try_lock(&taken).expect("lock").is_some());
        std::fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn held_until_closed() {
        let path = crate::testing::unused_path("lock");
        assert!(!is_locked(&path).expect("missing"));
        let lock = try_lock(&path).expect("lock").expect("free");
        let (waiting, (ring, rung)) = (path.clone(), std::sync::mpsc::channel());
        let patient = std::thread::spawn(move || {
            ring.send(()).expect("rings");
            try_lock_patiently(&waiting).expect("lock").is_some()
        });
        rung.recv().expect("it waits");
        let copy = lock.try_clone().expect("clone");
        drop(lock);
        assert!(is_locked(&path).expect("held"));
        assert!(try_lock(&path).expect("second").is_none());
        drop(copy);
        assert!(patient.join().expect("no panic"), "free a moment later");
        assert!(!is_locked(&path).expect("free"));
        std::fs::remove_file(&path).expect("remove");
    }
}
