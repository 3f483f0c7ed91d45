//! Archives of directories and files that may change while they are read, such as those of a running container.
//!
//! Memory does not grow with what is read: pieces of [`PIECE_BYTES`], and as much for the paths of files that have
//! several names.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::error::ImageError;
use super::save::LayerStream;
#[cfg(doc)]
use super::sum::PIECE_BYTES;
use crate::api::tar_header::{TAR_END, TarHeader};

/// A tar archive in the making. Its file can be read at any place.
pub struct TreeArchiveWriter {
    out: File,
}

impl TreeArchiveWriter {
    /// Begins an archive.
    #[must_use]
    pub const fn new(out: File) -> Self {
        Self { out }
    }

    /// Adds everything below a directory.
    ///
    /// # Errors
    /// An entry cannot be read, or the archive cannot be written.
    pub fn add_tree(&mut self, dir: &Path) -> Result<(), ImageError> {
        let mut stream = LayerStream::of_live_tree(&mut self.out);
        stream.put_tree(dir)?;
        stream
            .flush_buffer()
            .map_err(ImageError::store_error("save", dir))
    }

    /// Adds a file under another name.
    ///
    /// # Errors
    /// The file cannot be read, or the archive cannot be written.
    pub fn add_file(&mut self, name: &str, path: &Path) -> Result<(), ImageError> {
        let mut add = || {
            let file = File::open(path)?;
            let size = file.metadata()?.len();
            let mut stream = LayerStream::of_live_tree(&mut self.out);
            stream.put_bytes(&TarHeader::of_file(name.as_bytes(), size))?;
            stream.put_content(Some(file), size)?;
            stream.flush_buffer()
        };
        add().map_err(ImageError::store_error("save", path))
    }

    /// Adds an archive of everything below the upper directory of an overlay. Whiteouts are in the form of image layers.
    ///
    /// # Errors
    /// An entry cannot be read, or the archive cannot be written.
    pub fn add_overlay_diff(&mut self, name: &str, dir: &Path) -> Result<(), ImageError> {
        let failed = |e| ImageError::store_error("save", dir)(e);
        // The size is known only behind the last entry: then the header is written once more.
        let begin = self.put_header(name).map_err(failed)?;
        let mut stream = LayerStream::of_live_tree(&mut self.out);
        stream.put_tree(dir)?;
        let ended = stream
            .put_bytes(&TAR_END)
            .and_then(|()| stream.flush_buffer());
        ended.map_err(failed)?;
        let header = TarHeader::of_file(name.as_bytes(), stream.bytes);
        self.out.write_all_at(&header, begin).map_err(failed)
    }

    fn put_header(&mut self, name: &str) -> io::Result<u64> {
        let begin = self.out.seek(SeekFrom::End(0))?;
        self.out
            .write_all(&TarHeader::of_file(name.as_bytes(), 0))
            .map(|()| begin)
    }

    /// Ends the archive, and waits until the disk has it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish_archive(mut self) -> io::Result<()> {
        self.out.write_all(&TAR_END)?;
        self.out.sync_all()
    }
}
