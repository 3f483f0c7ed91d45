//! Opening files relative to a directory without leaving it: `openat2(2)`.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

/// How often an `openat2` that lost a race against a rename or mount is repeated (the kernel says EAGAIN).
const RACE_TRIES: u32 = 64;

/// Opens directory `path` (trusted: a path of ours) as a starting point.
pub(super) fn dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens `path` below `root`. Symbolic links are followed as long as they stay below `root`; absolute ones and `..`
/// above it fail with EXDEV.
pub(super) fn open_beneath(root: impl AsFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    resolve(
        root,
        path,
        flags,
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    )
}

/// Opens entry `name` of `dir` itself: no symbolic link is followed (ELOOP) and no mount point entered (EXDEV).
pub(super) fn open_child(dir: impl AsFd, name: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    resolve(
        dir,
        name,
        flags | OFlag::O_NOFOLLOW,
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    )
}

fn resolve(dir: impl AsFd, path: &Path, flags: OFlag, how: ResolveFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(how);
    for _ in 0..RACE_TRIES {
        match openat2(dir.as_fd(), path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            done => return Ok(done?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// Whether `path` is a mount point (bind mounts too); its parent's path is trusted, its own last component is not
/// followed. What does not exist is none.
pub(super) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(true);
    };
    let opened = dir(parent).and_then(|parent| {
        resolve(
            parent,
            Path::new(name),
            OFlag::O_PATH | OFlag::O_NOFOLLOW,
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV,
        )
    });
    match opened {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(true),
        Err(e) => Err(e),
    }
}

/// A path that names what `fd` has open, for the calls that take only paths (`mount`, `chmod` of an `O_PATH` descriptor).
pub(super) fn fd_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Status of what `fd` has open.
pub(super) fn metadata(fd: &OwnedFd) -> io::Result<fs::Metadata> {
    fs::File::from(fd.try_clone()?).metadata()
}
