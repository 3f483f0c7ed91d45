//! Paths of the host that containers mount, held from the look at them to the start.
//!
//! The OCI runtime is given a path and resolves it again. A user who may write to a directory on the way could put a
//! link there in between. So the resolved file is kept open, and between create and start it is compared with the
//! mounted one: that cannot be changed any more, because the container has a mount namespace of its own. A pin by a
//! bind mount, as a `subPath` has, is not enough here: below a hostPath other mounts are shown, and come and go both
//! ways.
//!
//! Paths in the agent's own directories are not held: only the agent writes there, and it replaces files.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag, sys::stat::fstat};

use crate::sys::open as walk;

/// A path of the host that a container mounts.
#[derive(Debug)]
pub(super) struct MountSource {
    /// Path on the host, without links.
    pub(super) path: PathBuf,
    /// Path in the container.
    pub(super) container_path: String,
    /// File or directory to which the path led; `None` in the agent's own directories.
    opened: Option<OwnedFd>,
}

impl MountSource {
    /// Resolves `path`. `own`: the agent's directories, without links.
    pub(super) fn resolve(path: &str, container_path: &str, own: &[PathBuf]) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let opened = match own.iter().any(|own| path.starts_with(own)) {
            true => None,
            false => Some(open_resolved(&path)?),
        };
        Ok(Self {
            path,
            container_path: container_path.into(),
            opened,
        })
    }

    /// Returns true if the path has to be compared with the container's mount.
    pub(super) const fn is_held(&self) -> bool {
        self.opened.is_some()
    }
}

/// Opens a path that has no links any more.
fn open_resolved(path: &Path) -> io::Result<OwnedFd> {
    let top = walk::open_dir(Path::new("/"))?;
    let below = match path.strip_prefix("/") {
        Ok(below) if below != Path::new("") => below,
        _ => Path::new("."),
    };
    // Opened as a directory, an automount is mounted, as by the runtime's mount of it.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let found = match walk::open_without_symlinks(&top, below, flags, 0) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            walk::open_without_symlinks(&top, below, OFlag::O_PATH, 0)
        }
        found => found,
    };
    found.map(OwnedFd::from)
}

/// Reason why a container must not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum MountSourceError {
    #[error("cannot look at its mounts")]
    Unseen(#[source] io::Error),
    /// The path was replaced, by a user with access to its directory, after it was looked at.
    #[error(
        "mount of {host:?} at {at:?}: the path on the host changed while the container was made"
    )]
    Changed { host: PathBuf, at: PathBuf },
}

/// Compares the mounts of the container whose init is `pid` with the resolved files. Blocking, perhaps for ever: the
/// server of a path may be gone.
///
/// - Errors: the container must not be started.
pub(super) fn check_mount_sources(
    sources: &[MountSource],
    pid: i32,
) -> Result<(), MountSourceError> {
    let root = walk::open_dir(Path::new(&format!("/proc/{pid}/root")))
        .map_err(MountSourceError::Unseen)?;
    for source in sources {
        let Some(opened) = &source.opened else {
            continue;
        };
        // A path that cannot be reached there is hidden from the container, too: another mount lies over it.
        let at = Path::new(&source.container_path);
        let Ok(mounted) = walk::open_in_root(&root, at, OFlag::O_PATH, 0) else {
            continue;
        };
        let (Ok(wanted), Ok(found)) = (identity(opened), identity(&mounted)) else {
            continue;
        };
        // By a link of the image two mounts can be at one place: then only the other one is seen.
        let other = |other: &MountSource| {
            fs::symlink_metadata(&other.path).is_ok_and(|m| (m.dev(), m.ino()) == found)
        };
        let others = sources
            .iter()
            .filter(|s| s.container_path != source.container_path);
        if found != wanted && !others.into_iter().any(other) {
            return Err(MountSourceError::Changed {
                host: source.path.clone(),
                at: at.to_owned(),
            });
        }
    }
    Ok(())
}

fn identity(fd: impl std::os::fd::AsFd) -> Result<(u64, u64), Errno> {
    let status = fstat(fd)?;
    Ok((status.st_dev, status.st_ino))
}
