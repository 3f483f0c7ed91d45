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
    /// Most bytes of the whole archive.
    room: u64,
}

impl TreeArchiveWriter {
    /// Begins an archive of at most `room` bytes: a container may show more than it takes on the disk.
    #[must_use]
    pub const fn new(out: File, room: u64) -> Self {
        Self { out, room }
    }

    /// The stream of what comes next.
    fn stream(&mut self) -> io::Result<LayerStream<'_>> {
        let room = self.room.saturating_sub(self.out.stream_position()?);
        Ok(LayerStream::of_live_tree(&mut self.out, room))
    }

    /// Adds everything below a directory.
    ///
    /// # Errors
    /// An entry cannot be read, or the archive cannot be written.
    pub fn add_tree(&mut self, dir: &Path) -> Result<(), ImageError> {
        let stream = self.stream();
        let mut stream = stream.map_err(ImageError::store_error("save", dir))?;
        stream.put_tree(dir)?;
        stream
            .flush_buffer()
            .map_err(ImageError::store_error("save", dir))
    }

    /// Adds an open file.
    ///
    /// # Errors
    /// The file cannot be read, or the archive cannot be written.
    pub fn add_file(&mut self, name: &str, file: File) -> Result<(), ImageError> {
        let add = || {
            let size = file.metadata()?.len();
            let mut stream = self.stream()?;
            stream.put_bytes(&TarHeader::of_file(name.as_bytes(), size))?;
            stream.put_content(Some(file), size)?;
            stream.flush_buffer()
        };
        add().map_err(ImageError::store_error("save", Path::new(name)))
    }

    /// Adds an archive of everything below the upper directory of an overlay. Whiteouts are in the form of image layers.
    ///
    /// # Errors
    /// An entry cannot be read, or the archive cannot be written.
    pub fn add_overlay_diff(&mut self, name: &str, dir: &Path) -> Result<(), ImageError> {
        let failed = |e| ImageError::store_error("save", dir)(e);
        // The size is known only behind the last entry: then the header is written once more.
        let begin = self.put_header(name).map_err(failed)?;
        let mut stream = self.stream().map_err(failed)?;
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
    /// The archive cannot be written.
    pub fn finish_archive(mut self) -> io::Result<()> {
        self.out.write_all(&TAR_END)?;
        self.out.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read as _;
    use std::os::fd::AsFd as _;

    use tar::{Archive, EntryType};

    use super::super::tree;
    use super::*;
    use crate::error::error_chain;
    use crate::sys::xattr;
    use crate::testing::TestDir;

    /// Entries of an archive by name: type and content.
    fn read_archive(bytes: &[u8]) -> BTreeMap<String, (EntryType, Vec<u8>)> {
        let mut archive = Archive::new(bytes);
        let entries = archive.entries().expect("archive").map(|entry| {
            let mut entry = entry.expect("entry");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            let name = entry.path().expect("name").display().to_string();
            (name, (entry.header().entry_type(), content))
        });
        entries.collect()
    }

    #[test]
    fn an_overlay_becomes_an_archive_in_an_archive() {
        // CKPT-03
        if !nix::unistd::geteuid().is_root() {
            skipped!("whiteouts need root");
            return;
        }
        let scratch = TestDir::new("overlay");
        let upper = scratch.join("upper");
        fs::create_dir_all(upper.join("etc")).expect("dir");
        fs::create_dir_all(upper.join("opaque")).expect("dir");
        fs::write(upper.join("etc/conf"), vec![7; 100_000]).expect("file");
        fs::hard_link(upper.join("etc/conf"), upper.join("same")).expect("link");
        let open = |name: &str| File::open(upper.join(name)).expect("dir");
        tree::make_whiteout(open("etc").as_fd(), b"gone").expect("whiteout");
        let opaque = open("opaque");
        for name in [tree::OPAQUE, c"trusted.overlay.impure"] {
            xattr::set_attribute(opaque.as_fd(), name, b"y").expect("attribute");
        }
        fs::write(scratch.join("log"), "a line\n").expect("log");

        let path = scratch.join("archive");
        let mut writer = TreeArchiveWriter::new(File::create(&path).expect("archive"), 1 << 20);
        writer.add_overlay_diff("diff.tar", &upper).expect("diff");
        writer
            .add_file(
                "container.log",
                File::open(scratch.join("log")).expect("log"),
            )
            .expect("log");
        writer.add_tree(&upper.join("etc")).expect("tree");
        writer.finish_archive().expect("whole");
        let all = read_archive(&fs::read(&path).expect("archive"));
        assert_eq!(all["container.log"].1, b"a line\n");
        assert_eq!(all["conf"].1, [7; 100_000]);
        let diff = read_archive(&all["diff.tar"].1);
        let names: Vec<_> = diff.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "etc/",
                "etc/.wh.gone",
                "etc/conf",
                "opaque/",
                "opaque/.wh..wh..opq",
                "same"
            ]
        );
        let kinds = ["etc/conf", "same"].map(|name| diff[name].0);
        assert!(kinds.contains(&EntryType::Regular) && kinds.contains(&EntryType::Link));
        assert!(
            !fs::read(&path)
                .expect("archive")
                .windows(16)
                .any(|w| w == b"trusted.overlay.")
        );
    }

    #[test]
    fn a_file_that_shrinks_ends_with_zeros() {
        // CKPT-03
        let scratch = TestDir::new("shrinks");
        let path = scratch.join("archive");
        fs::write(scratch.join("log"), "abc").expect("file");
        let mut out = File::create(&path).expect("archive");
        let mut stream = LayerStream::of_live_tree(&mut out, 1 << 20);
        let header = TarHeader::of_file(b"log", 200_000);
        stream.put_bytes(&header).expect("header");
        let log = File::open(scratch.join("log")).expect("file");
        stream.put_content(Some(log), 200_000).expect("content");
        stream.flush_buffer().expect("written");
        TreeArchiveWriter::new(out, 0)
            .finish_archive()
            .expect("whole");
        let all = read_archive(&fs::read(&path).expect("archive"));
        let content = &all["log"].1;
        assert_eq!((&content[..3], content.len()), (&b"abc"[..], 200_000));
        assert!(content[3..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_takes_no_place_on_the_disk_does_not_fill_it() {
        // CKPT-04
        let scratch = TestDir::new("sparse");
        let (tree, path) = (scratch.join("tree"), scratch.join("archive"));
        fs::create_dir(&tree).expect("dir");
        let file = File::create(tree.join("file")).expect("file");
        for (size, fits) in [(4096, true), (1 << 40, false)] {
            file.set_len(size).expect("holes");
            let mut writer = TreeArchiveWriter::new(File::create(&path).expect("archive"), 65_536);
            let added = writer.add_tree(&tree).map_err(|e| error_chain(&e));
            match fits {
                true => assert_eq!(added, Ok(())),
                false => assert!(added.expect_err("too large").contains("no space")),
            }
            assert!(fs::metadata(&path).expect("archive").len() < 65_536);
        }
    }
}
