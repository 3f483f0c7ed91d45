//! Errors of images and their store.

use std::io;
use std::path::PathBuf;

use super::digest::{Digest, DigestError};
use super::reference::ReferenceError;

/// Errors of the image store. The cause is in `source`: print the chain ([`crate::error::error_chain`]).
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The text is no reference. The API's reason is `InvalidImageName`; repeating is useless.
    #[error("invalid image reference {reference:?}: {reason}")]
    InvalidReference {
        /// Text as given, cut.
        reference: String,
        /// Fault of the reference.
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
        /// Fault of the archive, or of its unpacking.
        source: Box<ImageProblem>,
    },
    /// The store is open in another process.
    #[error("image store {} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The store's own files.
    #[error("cannot {action} {}", path.display())]
    Store {
        /// Verb.
        action: &'static str,
        /// The file.
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

/// Problem with an archive, a blob or an entry of a layer.
#[derive(Debug, thiserror::Error)]
pub enum ImageProblem {
    /// The bytes do not follow the format.
    #[error("{0}")]
    Damaged(String),
    /// Neither the archive nor the caller has a name for its image.
    #[error("it has no name for its image: import it with --name NAME")]
    Unnamed,
    /// Well-formed, but not something that this program takes.
    #[error("{0}")]
    Unsupported(String),
    /// A limit of this program is passed.
    #[error("more than {limit} {what}")]
    Limit {
        /// The counted thing, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The path, or what it leads to, is outside the layer.
    #[error("path leads out of the layer")]
    Escape,
    /// The content is not what its name promises.
    #[error("the content is damaged, or was changed: its digest is {found}, not {expected}")]
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
        /// Bytes that may be used: the free ones without the reserve.
        available: u64,
    },
    /// The file system would be out of inodes.
    #[error("not enough inodes: {available} may be used, the layers unpacked so far need more")]
    NoInodes {
        /// Inodes that may be used.
        available: u64,
    },
    /// The archive ends earlier than its headers say.
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

impl ImageProblem {
    /// A reader's error: decoders and the tar reader speak through [`io::Error`].
    pub(super) fn from_read_error(error: io::Error) -> Self {
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

    /// Returns true if the disk had no room for the unpacked files.
    pub(super) fn is_disk_full(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::NoInodes { .. } => true,
            Self::Write { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            _ => false,
        }
    }

    /// Makes the error of a failed write, with its verb; for `map_err`.
    pub(super) fn write_error<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Write {
            action,
            source: source.into(),
        }
    }

    /// Passes over the error of a file system without `user.*` attributes (older tmpfs) or ACLs, or of an entry that
    /// cannot have them: the file is good without. A lost capability stays an error.
    pub(super) fn ignore_unsupported(done: io::Result<()>) -> Result<(), Self> {
        match done {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPERM)) => {
                log::debug!("an extended attribute was left out: {e}");
                Ok(())
            }
            done => done.map_err(Self::write_error("set an extended attribute")),
        }
    }
}

/// Problem of a layer, with the entry that has it.
#[derive(Debug)]
pub(super) struct LayerError {
    pub(super) entry: Option<String>,
    pub(super) problem: ImageProblem,
}

impl From<ImageProblem> for LayerError {
    fn from(problem: ImageProblem) -> Self {
        Self {
            entry: None,
            problem,
        }
    }
}

impl From<DigestError> for ImageProblem {
    fn from(error: DigestError) -> Self {
        Self::Unsupported(error.to_string())
    }
}

impl ImageError {
    /// Makes the error of a file of the store; for `map_err`.
    pub(super) fn store_error<E: Into<io::Error>>(
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

    /// Returns true if the same call may succeed later with the same archive (disk full, I/O error).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store { .. } | Self::Locked(_) | Self::InUse(_) => true,
            Self::Import { source, .. } => matches!(
                **source,
                ImageProblem::NoSpace { .. }
                    | ImageProblem::NoInodes { .. }
                    | ImageProblem::Cancelled
                    | ImageProblem::Read(_)
                    | ImageProblem::Write { .. }
            ),
            Self::InvalidReference { .. } | Self::NotFound(_) => false,
        }
    }
}
