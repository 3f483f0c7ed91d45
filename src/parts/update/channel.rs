//! A channel of releases: a small signed file that names one, and the tarball (UPD-01, UPD-02). Blocking.
//!
//! Signatures and wishes are judged elsewhere: bytes come in, bounded, and only the growing tarball is written.

use core::time::Duration;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::image::Digest;
use crate::image::pull::{ArtifactError, ArtifactFiles, ArtifactReader};
use crate::net::{Url, UrlError};
use crate::source::http::{self, DocumentClient, DocumentLocation, HttpError, header_text};
use crate::sys::file;

/// Name of the channel file in a directory. Its signature has the same name with `.sig` behind it.
pub const CHANNEL: &str = "channel.json";
/// Type of an artefact whose files are a channel.
pub const ARTIFACT: &str = "application/vnd.picolet.release.v1";
/// Most bytes of a channel file, and of its signature.
const MAX_CHANNEL_BYTES: usize = 16 * 1024;
/// Time limit of one answer of the server, also with the tarball: a part that is missing then is asked for again.
const ANSWER_TIME: Duration = Duration::from_secs(600);
/// Most answers in one go that each bring a part of the tarball.
const MAX_PARTS: usize = 16;
/// Bytes read at once.
const PIECE_BYTES: usize = 16 * 1024;

/// Place where releases are offered.
#[derive(Debug)]
pub struct ReleaseChannel(ChannelLocation);

#[derive(Debug)]
enum ChannelLocation {
    Dir(PathBuf),
    Server(Box<DocumentClient>),
    Registry(Box<RegistryChannel>),
}

/// Files of an artefact, as they were when the channel file was read.
#[derive(Debug)]
struct RegistryChannel {
    artifact: ArtifactReader,
    /// The channel file of this kind of board.
    own: String,
    files: ArtifactFiles,
}

impl RegistryChannel {
    fn read_small_file(&self, name: &str) -> Result<Vec<u8>, ChannelError> {
        let file = self.find_file(name)?;
        if file.1 > MAX_CHANNEL_BYTES as u64 {
            return Err(ChannelError::TooLarge(name.to_owned()));
        }
        Ok(self.artifact.read_file(file)?)
    }

    fn find_file(&self, name: &str) -> Result<(Digest, u64), ChannelError> {
        let missing = || {
            let reference = self.artifact.reference().to_string();
            ChannelError::NoFile(reference, name.to_owned())
        };
        self.files.get(name).copied().ok_or_else(missing)
    }
}

/// Reason why a channel could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The server, or the link to it.
    #[error("{0} {1}")]
    Server(String, String),
    /// A file of this machine.
    #[error("cannot {0} {path}: {2}", path = .1.display())]
    File(&'static str, PathBuf, io::Error),
    /// A file of more bytes than are read.
    #[error("{0} has more than {MAX_CHANNEL_BYTES} bytes")]
    TooLarge(String),
    /// The channel file leads nowhere.
    #[error("its url {0:?} is not usable: {1}")]
    Location(String, UrlError),
    /// The channel file leads out of its directory.
    #[error("its url {0:?} is not the name of a file in the same directory")]
    Name(String),
    /// The answer ended early, again and again.
    #[error("{0} ended at byte {1} of {2}")]
    Short(String, u64, u64),
    /// Error of the artefact.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The artefact lacks a file.
    #[error("{0} has no file {1:?}")]
    NoFile(String, String),
    /// The artefact has another file than the channel file names.
    #[error("{0:?} in the registry is not the released file: it has digest {1} and {2} bytes")]
    Other(String, Digest, u64),
}

impl ChannelError {
    /// Returns true if a later try may succeed.
    #[must_use]
    pub const fn may_succeed_later(&self) -> bool {
        matches!(
            self,
            Self::Server(..)
                | Self::File(..)
                | Self::Short(..)
                | Self::Artifact(ArtifactError::Registry(..))
        )
    }
}

fn channel_file_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> ChannelError + 'a {
    move |e| ChannelError::File(action, path.into(), e)
}

impl ReleaseChannel {
    /// Makes a channel in a directory of this machine.
    #[must_use]
    pub const fn in_dir(dir: PathBuf) -> Self {
        Self(ChannelLocation::Dir(dir))
    }

    /// Makes a channel whose file is at a URL.
    #[must_use]
    pub fn at_url(place: DocumentLocation) -> Self {
        Self(ChannelLocation::Server(Box::new(DocumentClient::new(
            place,
        ))))
    }

    /// Makes a channel in an artefact of a registry, of type [`ARTIFACT`]. It may hold the channels of several kinds of
    /// boards: `channel-BOARD.json` comes before `channel.json`.
    #[must_use]
    pub fn in_registry(artifact: ArtifactReader, board: &str) -> Self {
        Self(ChannelLocation::Registry(Box::new(RegistryChannel {
            artifact,
            own: format!("channel-{board}.json"),
            files: ArtifactFiles::new(),
        })))
    }

    /// Reads the channel file and its signature.
    pub fn read_channel_file(&mut self) -> Result<(Vec<u8>, Vec<u8>), ChannelError> {
        match &mut self.0 {
            ChannelLocation::Dir(dir) => {
                let path = dir.join(CHANNEL);
                let signature = dir.join(format!("{CHANNEL}.sig"));
                Ok((small_file(&path)?, small_file(&signature)?))
            }
            ChannelLocation::Server(client) => {
                let url = client.document_url().clone();
                let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
                let mark = if query.is_empty() { "" } else { "?" };
                let signature = url.with_path(format!("{path}.sig{mark}{query}"));
                Ok((
                    fetch_small_file(client, &url)?,
                    fetch_small_file(client, &signature)?,
                ))
            }
            ChannelLocation::Registry(there) => {
                there.files = there.artifact.list_files()?;
                let own = there.files.contains_key(&there.own);
                let name = if own { &there.own } else { CHANNEL };
                Ok((
                    there.read_small_file(name)?,
                    there.read_small_file(&format!("{name}.sig"))?,
                ))
            }
        }
    }

    /// Fetches the tarball of `size` bytes into the file `part`, on disk. `location` and `sum`, the SHA-256 in
    /// hexadecimal, are those of the channel file. `part` may hold the tarball's beginning; nobody else writes it, but
    /// others may change its source. Returns true if the bytes may come from several answers or looks and their sum was
    /// not checked.
    pub fn fetch_tarball(
        &mut self,
        location: &str,
        (size, sum): (u64, &str),
        part: &Path,
    ) -> Result<bool, ChannelError> {
        match &mut self.0 {
            ChannelLocation::Dir(dir) => {
                if location.is_empty() || location.starts_with('.') || location.contains('/') {
                    return Err(ChannelError::Name(location.to_owned()));
                }
                copy_tarball(&dir.join(location), size, part)
            }
            ChannelLocation::Server(client) => {
                let from = client.document_url().resolve_location(location);
                let from = from.map_err(|e| ChannelError::Location(location.to_owned(), e))?;
                fetch_missing_bytes(client, &from, size, part)
            }
            ChannelLocation::Registry(there) => {
                let file = there.find_file(location)?;
                if file.1 != size || file.0.hex() != sum {
                    return Err(ChannelError::Other(location.to_owned(), file.0, file.1));
                }
                there.artifact.fetch_file(file, part)?;
                let out = File::open(part).map_err(channel_file_error("open", part))?;
                sync(&out, part)?;
                Ok(false)
            }
        }
    }
}

fn small_file(path: &Path) -> Result<Vec<u8>, ChannelError> {
    let file = File::open(path).map_err(channel_file_error("open", path))?;
    let bytes = read_bounded(file).map_err(channel_file_error("read", path))?;
    bytes.ok_or_else(|| ChannelError::TooLarge(path.display().to_string()))
}

fn fetch_small_file(client: &mut DocumentClient, url: &Url) -> Result<Vec<u8>, ChannelError> {
    let failed = |e: HttpError| ChannelError::Server(url.without_query(), e.to_string());
    let answer = client
        .open_document(url, &[], http::WHOLE_TIMEOUT)
        .map_err(failed)?;
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(failed(HttpError::Status(status)));
    }
    let bytes = read_bounded(http::body_reader(answer));
    let bytes = bytes.map_err(|e| failed(HttpError::Link(e.to_string())))?;
    bytes.ok_or_else(|| ChannelError::TooLarge(url.without_query()))
}

/// Reads at most [`MAX_CHANNEL_BYTES`]. `None`: there are more.
fn read_bounded(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_CHANNEL_BYTES + 1).unwrap_or(u64::MAX);
    from.take(limit).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= MAX_CHANNEL_BYTES).then_some(bytes))
}

/// Opens the file that a tarball grows in. Returns it, and the bytes that are there.
fn open_part_file(part: &Path, size: u64) -> Result<(File, u64), ChannelError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let out = options
        .open(part)
        .map_err(channel_file_error("open", part))?;
    let length = out
        .metadata()
        .map_err(channel_file_error("look at", part))?
        .len();
    if length > size {
        // The bytes are of another tarball.
        out.set_len(0).map_err(channel_file_error("write", part))?;
        return Ok((out, 0));
    }
    Ok((out, length))
}

/// Writes the file to the disk.
fn sync(out: &File, part: &Path) -> Result<(), ChannelError> {
    out.sync_all().map_err(channel_file_error("sync", part))?;
    if let Some(dir) = part.parent() {
        file::sync_dir(dir).map_err(channel_file_error("sync", dir))?;
    }
    // The next reader gets the bytes from the disk, not from the page cache.
    let _ = posix_fadvise(out, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// Copies a file of this machine, unless a copy is there.
fn copy_tarball(from: &Path, size: u64, part: &Path) -> Result<bool, ChannelError> {
    let (mut out, length) = open_part_file(part, size)?;
    if length == size {
        return Ok(true);
    }
    let source = File::open(from).map_err(channel_file_error("open", from))?;
    let copied =
        io::copy(&mut source.take(size), &mut out).map_err(channel_file_error("copy", from))?;
    sync(&out, part)?;
    if copied < size {
        return Err(ChannelError::Short(
            from.display().to_string(),
            copied,
            size,
        ));
    }
    Ok(false)
}

/// Asks for the missing bytes until all are there, as long as each answer brings some.
fn fetch_missing_bytes(
    client: &mut DocumentClient,
    url: &Url,
    size: u64,
    part: &Path,
) -> Result<bool, ChannelError> {
    let (mut out, mut length) = open_part_file(part, size)?;
    let mut in_pieces = length > 0;
    let mut last = None;
    for _ in 0..MAX_PARTS {
        if length == size {
            break;
        }
        let before = length;
        in_pieces |= before > 0;
        last = read_one_answer(client, url, size, &mut out, &mut length, part)?;
        if length <= before {
            break;
        }
    }
    sync(&out, part)?;
    match last {
        _ if length == size => Ok(in_pieces),
        Some(e) => Err(ChannelError::Server(url.without_query(), e.to_string())),
        None => Err(ChannelError::Short(url.without_query(), length, size)),
    }
}

/// Reads one answer, as far as it goes. Returns the error that ended it, if the server or the link is at fault.
fn read_one_answer(
    client: &mut DocumentClient,
    url: &Url,
    size: u64,
    out: &mut File,
    length: &mut u64,
    part: &Path,
) -> Result<Option<HttpError>, ChannelError> {
    let range = match *length {
        0 => String::new(),
        from => format!("bytes={from}-"),
    };
    let answer = match client.open_document(url, &[("range", &range)], ANSWER_TIME) {
        Ok(answer) => answer,
        Err(e) => return Ok(Some(e)),
    };
    let begins = format!("bytes {length}-");
    match answer.status().as_u16() {
        206 if header_text(&answer, "content-range").starts_with(&begins) => {}
        // The server knows no ranges, or sends another one: the whole tarball is written anew.
        200 => *length = 0,
        206 | 416 => {
            *length = 0;
            out.set_len(0).map_err(channel_file_error("write", part))?;
            return Ok(None);
        }
        other => return Ok(Some(HttpError::Status(other))),
    }
    out.set_len(*length)
        .and_then(|()| out.seek(SeekFrom::Start(*length)))
        .map_err(channel_file_error("write", part))?;
    let mut body = http::body_reader(answer);
    let mut piece = [0; PIECE_BYTES];
    // Bounded: by the size, and in time.
    while *length < size {
        let most = usize::try_from(size - *length).map_or(PIECE_BYTES, |n| n.min(PIECE_BYTES));
        match body.read(&mut piece[..most]) {
            Ok(0) => break,
            Ok(n) => {
                out.write_all(&piece[..n])
                    .map_err(channel_file_error("write", part))?;
                *length += n as u64;
            }
            Err(e) => return Ok(Some(HttpError::Link(e.to_string()))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
