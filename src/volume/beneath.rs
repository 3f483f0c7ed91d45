//! Files relative to a directory of ours, never through a path that a container can redirect.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag};

use crate::sys::open;
pub(super) use crate::sys::open::open_dir;

/// Opens `path` below `root`. Symbolic links are followed as long as they stay below `root`; absolute ones and `..`
/// above it fail with EXDEV.
pub(super) fn open_beneath(root: impl AsFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    open::open_beneath(root, path, flags, 0).map(OwnedFd::from)
}

/// Opens entry `name` of `dir` itself: no symbolic link is followed (ELOOP) and no mount point entered (EXDEV).
pub(super) fn open_child(dir: impl AsFd, name: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    open::open_entry(dir, name, flags).map(OwnedFd::from)
}

/// Returns true if `path` is a mount point (bind mounts too), without reading the mount table; its parent's path is
/// trusted, its own last component is not followed. False if it does not exist.
pub(super) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(true);
    };
    match open_dir(parent).and_then(|parent| open_child(parent, Path::new(name), OFlag::O_PATH)) {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(true),
        Err(e) => Err(e),
    }
}

/// A path that names what `fd` has open, for the calls that take only paths (`chmod` of an `O_PATH` descriptor).
pub(super) fn fd_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Status of what `fd` has open.
pub(super) fn fd_metadata(fd: &OwnedFd) -> io::Result<fs::Metadata> {
    fs::File::from(fd.try_clone()?).metadata()
}
