//! What can go wrong with images.

use std::io;
use std::path::PathBuf;

use super::digest::{Digest, DigestError};
use super::reference::ReferenceError;

/// Errors of the image store. The cause is in `source`: print the chain ([`crate::error::chain`]).
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not a reference. The API's reason is `InvalidImageName`; repeating is useless.
    #[error("invalid image reference {reference:?}: {reason}")]
    InvalidReference {
        /// As given, cut.
        reference: String,
        /// What is wrong.
        reason: ReferenceError,
    },
    /// No such image.
    #[error("no image {0:?}")]
    NotFound(String),
    /// A container uses the image.
    #[error("image {0} is in use by a container")]
    InUse(String),
    /// An archive could not be imported. Nothing of it is visible.
    #[error("cannot import {}{}", archive.display(), place(blob.as_deref(), entry.as_deref()))]
    Import {
        /// The archive.
        archive: PathBuf,
        /// Blob or member of the archive, if the problem lies in one.
        blob: Option<String>,
        /// Entry of the layer, if the problem lies in one.
        entry: Option<String>,
        /// What is wrong.
        source: Box<Problem>,
    },
    /// Another process has the store open.
    #[error("image store {} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The store's own files.
    #[error("cannot {action} {}", path.display())]
    Store {
        /// Verb.
        action: &'static str,
        /// What.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

fn place(blob: Option<&str>, entry: Option<&str>) -> String {
    let mut text = String::new();
    if let Some(blob) = blob {
        text.push_str(": ");
        text.push_str(blob);
    }
    if let Some(entry) = entry {
        text.push_str(&format!(": entry {entry:?}"));
    }
    text
}

/// What is wrong with an archive, a blob or an entry of a layer.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The bytes do not follow the format.
    #[error("{0}")]
    Damaged(String),
    /// Well-formed, but not something that this program takes.
    #[error("{0}")]
    Unsupported(String),
    /// A limit of this program is passed.
    #[error("more than {limit} {what}")]
    Limit {
        /// What there is too much of, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The path, or what it leads to, is outside the layer.
    #[error("path leads out of the layer")]
    Escape,
    /// The content is not what its name promises.
    #[error("digest is {found}, not {expected}")]
    WrongDigest {
        /// Promised.
        expected: Digest,
        /// Computed.
        found: Digest,
    },
    /// The disk would be full.
    #[error(
        "not enough disk space: {available} bytes may be used, the layers unpacked so far need more"
    )]
    NoSpace {
        /// What may be used: free bytes without the reserve.
        available: u64,
    },
    /// The file system would be out of inodes.
    #[error("not enough inodes: {available} may be used, the layers unpacked so far need more")]
    NoInodes {
        /// What may be used.
        available: u64,
    },
    /// The archive ends before what it announces.
    #[error("archive ends early (truncated, or still being copied)")]
    Truncated,
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Reading the archive failed.
    #[error("cannot read")]
    Read(#[source] io::Error),
    /// Writing the unpacked files failed.
    #[error("cannot {action}")]
    Write {
        /// Verb.
        action: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl Problem {
    /// A reader's error: decoders and the tar reader speak through [`io::Error`].
    pub(super) fn from_read(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::Damaged(error.to_string())
            }
            io::ErrorKind::Unsupported => Self::Unsupported(error.to_string()),
            io::ErrorKind::Other if error.raw_os_error().is_none() => {
                Self::Damaged(error.to_string())
            }
            _ => Self::Read(error),
        }
    }

    /// Whether the disk has no room for what was to be unpacked.
    pub(super) fn is_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::NoInodes { .. } => true,
            Self::Write { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            _ => false,
        }
    }

    /// For `map_err`: a failed write, with its verb.
    pub(super) fn write<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Write {
            action,
            source: source.into(),
        }
    }

    /// A file system without `user.*` (older tmpfs) or ACLs, or an entry that cannot have them: the file is good without.
    /// Capabilities must not get lost in silence.
    pub(super) fn unless_unsupported(done: io::Result<()>) -> Result<(), Self> {
        match done {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPERM)) => {
                log::debug!("an extended attribute was left out: {e}");
                Ok(())
            }
            done => done.map_err(Self::write("set an extended attribute")),
        }
    }
}

/// What is wrong, and with which entry.
#[derive(Debug)]
pub(super) struct LayerError {
    pub(super) entry: Option<String>,
    pub(super) problem: Problem,
}

impl From<Problem> for LayerError {
    fn from(problem: Problem) -> Self {
        Self {
            entry: None,
            problem,
        }
    }
}

impl From<DigestError> for Problem {
    fn from(error: DigestError) -> Self {
        Self::Unsupported(error.to_string())
    }
}

impl ImageError {
    /// For `map_err`: an error of the store's own files.
    pub(super) fn store<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Store {
            action,
            path,
            source: source.into(),
        }
    }

    /// Whether the same call may succeed later without the archive being changed (disk full, I/O error).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { .. } | Self::Locked(_) | Self::InUse(_) => true,
            Self::Import { source, .. } => matches!(
                **source,
                Problem::NoSpace { .. }
                    | Problem::NoInodes { .. }
                    | Problem::Cancelled
                    | Problem::Read(_)
                    | Problem::Write { .. }
            ),
            Self::InvalidReference { .. } | Self::NotFound(_) => false,
        }
    }
}
