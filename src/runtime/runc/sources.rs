//! What containers mount of the host, held from the look at it to the start.
//!
//! The OCI runtime is given a path and resolves it again. Whoever may write to a directory on the way could put a link there
//! in between. So what we resolved is kept open, and between create and start it is compared with what was mounted: nobody
//! changes that any more, for the container's mount namespace is its own. A pin by a bind mount, as a `subPath` has, would
//! not do here: below a hostPath other mounts are shown, and come and go both ways.
//!
//! What lies in the agent's own directories needs none of this: nobody else writes there, and the agent replaces files in it.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag, sys::stat::fstat};

use crate::sys::open as walk;

/// A path of the host that a container mounts.
#[derive(Debug)]
pub(super) struct Source {
    /// Without links.
    pub(super) path: PathBuf,
    /// Where the container has it.
    pub(super) container_path: String,
    /// What the path led to; `None` in the agent's own directories.
    opened: Option<OwnedFd>,
}

impl Source {
    /// Resolves `path`. `own`: the agent's directories, without links.
    pub(super) fn resolve(path: &str, container_path: &str, own: &[PathBuf]) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let opened = match own.iter().any(|own| path.starts_with(own)) {
            true => None,
            false => Some(opened(&path)?),
        };
        Ok(Self {
            path,
            container_path: container_path.into(),
            opened,
        })
    }

    /// Whether it is to be compared with what was mounted.
    pub(super) const fn is_held(&self) -> bool {
        self.opened.is_some()
    }
}

/// Opens a path that has no links any more.
fn opened(path: &Path) -> io::Result<OwnedFd> {
    let top = walk::dir(Path::new("/"))?;
    let below = match path.strip_prefix("/") {
        Ok(below) if below != Path::new("") => below,
        _ => Path::new("."),
    };
    // Said to be a directory, an automount is mounted, as the runtime's mount of it will do.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let found = match walk::no_symlinks(&top, below, flags, 0) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            walk::no_symlinks(&top, below, OFlag::O_PATH, 0)
        }
        found => found,
    };
    found.map(OwnedFd::from)
}

/// Why a container must not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("cannot look at its mounts")]
    Unseen(#[source] io::Error),
    /// Somebody with access to the directory replaced what the pod was given.
    #[error(
        "mount of {host:?} at {at:?}: the path on the host changed while the container was made"
    )]
    Changed { host: PathBuf, at: PathBuf },
}

/// Compares what is mounted in the container whose init is `pid` with what was resolved. Blocking, perhaps for ever: the
/// server of a path may be gone.
///
/// - Errors: the container must not be started.
pub(super) fn check(sources: &[Source], pid: i32) -> Result<(), SourceError> {
    let root = walk::dir(Path::new(&format!("/proc/{pid}/root"))).map_err(SourceError::Unseen)?;
    for source in sources {
        let Some(opened) = &source.opened else {
            continue;
        };
        // What cannot be reached there is nothing to the container either: another mount lies over it.
        let at = Path::new(&source.container_path);
        let Ok(mounted) = walk::in_root(&root, at, OFlag::O_PATH, 0) else {
            continue;
        };
        let (Ok(wanted), Ok(found)) = (identity(opened), identity(&mounted)) else {
            continue;
        };
        // By a link of the image two mounts can be at one place: then the other one shows.
        let other = |other: &Source| {
            fs::symlink_metadata(&other.path).is_ok_and(|m| (m.dev(), m.ino()) == found)
        };
        let others = sources
            .iter()
            .filter(|s| s.container_path != source.container_path);
        if found != wanted && !others.into_iter().any(other) {
            return Err(SourceError::Changed {
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
