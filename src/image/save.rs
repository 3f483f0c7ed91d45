//! Docker archives made from images of the store, as a stream.
//!
//! The store keeps no archives, only unpacked layers, so each layer is written anew: the same files under another
//! digest. So the image in the archive has another id. Memory does not grow with the image, but for
//! the paths of at most [`MAX_LINKED`] files of a layer that have several names.
//!
//! A layer is walked twice: once for the size that its member has to name, once for its bytes.
//!
//! Source: POSIX `pax(1)`; docker `image/spec/v1.2.md`; OCI image-spec `layer.md` (whiteouts).

use alloc::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::{SFlag, major, minor};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::below;
use super::digest::Digest;
use super::error::ImageError;
use super::layer::{MAX_LINKED, OPAQUE_MARK, WHITEOUT};
use super::store::ImageStore;
use super::sum::{PIECE_BYTES, read_sorted_xattrs, walk_layer};
use super::tarball::BLOCK;
use super::tree;
use crate::api::strict::to_value;
use crate::api::tar_header::{TAR_END, TarHeader};
use crate::sys::open;

/// Permission bits with set-id and sticky.
const MODE_BITS: u32 = 0o7777;

impl ImageStore {
    /// Configuration of the image with this id, and its layers, lowest first, with the directories that hold them.
    #[must_use]
    pub fn image_info(&self, id: &str) -> Option<Value> {
        let image = self.image_by_id(id)?;
        let root = self.layers_root();
        let layers = image.layers.iter().map(|layer| {
            json!({
                "diffID": layer.diff_id,
                "sizeBytes": layer.size_bytes,
                "opaque": layer.opaque,
                "path": root.join(&layer.dir).to_string_lossy(),
            })
        });
        let layers = Value::Array(layers.collect());
        Some(json!({"imageSpec": to_value(&image.config).ok()?, "layers": layers}))
    }
}

/// Attributes by which overlayfs remembers things of its own; an archive has other words for them.
const OVERLAY_XATTRS: &[u8] = b"trusted.overlay.";
/// Those of entries whose content is not beside them.
const ELSEWHERE: [&[u8]; 2] = [b"trusted.overlay.redirect", b"trusted.overlay.metacopy"];

/// A docker archive in the making.
pub struct ImageArchiveWriter {
    out: File,
    /// Digests of the layers that were written, by the names of their members.
    layers: BTreeMap<String, String>,
    manifest: Vec<Value>,
}

impl ImageArchiveWriter {
    /// Begins an archive.
    #[must_use]
    pub const fn new(out: File) -> Self {
        Self {
            out,
            layers: BTreeMap::new(),
            manifest: Vec::new(),
        }
    }

    /// Adds the layers of an image that are not in the archive yet, and its configuration.
    ///
    /// `info` is `info` of `image inspect`: `imageSpec` and `layers`. `names` are its tagged names. `on_layer` hears of
    /// the number of layers that are done.
    ///
    /// # Errors
    /// A layer cannot be read, for example because its image was removed meanwhile, or the archive cannot be written.
    pub fn add_image(
        &mut self,
        info: &Value,
        names: &[String],
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<(), ImageError> {
        let (mut members, mut diff_ids) = (Vec::new(), Vec::new());
        for (done, layer) in info["layers"].as_array().into_iter().flatten().enumerate() {
            on_layer(done);
            let dir = Path::new(layer["path"].as_str().unwrap_or_default());
            let name = dir.file_name().unwrap_or_default().to_string_lossy() + ".tar";
            let name = name.into_owned();
            if !self.layers.contains_key(&name) {
                let digest = self.write_layer(dir, &name, layer["opaque"] == true)?;
                self.layers.insert(name.clone(), digest);
            }
            diff_ids.push(self.layers[&name].clone());
            members.push(name);
        }
        let mut config = info["imageSpec"].clone();
        if let Some(config) = config.as_object_mut() {
            // Other programs read a time in `created`.
            config.retain(|_, value| *value != "");
        }
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let config = config.to_string();
        let name = Digest::compute(config.as_bytes()).hex() + ".json";
        self.write_member(&name, config.as_bytes())?;
        self.manifest
            .push(json!({"Config": name, "RepoTags": names, "Layers": members}));
        Ok(())
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish_archive(mut self) -> Result<(), ImageError> {
        let manifest = Value::from(core::mem::take(&mut self.manifest)).to_string();
        self.write_member("manifest.json", manifest.as_bytes())?;
        let ended = self.out.write_all(&TAR_END);
        ended.map_err(archive_error)
    }

    fn write_member(&mut self, name: &str, data: &[u8]) -> Result<(), ImageError> {
        let mut bytes = TarHeader::of_file(name.as_bytes(), data.len() as u64);
        bytes.extend_from_slice(data);
        pad_to_block(&mut bytes);
        self.out.write_all(&bytes).map_err(archive_error)
    }

    /// Writes a layer, and returns its digest. `is_opaque`: it hides every layer below.
    fn write_layer(
        &mut self,
        dir: &Path,
        name: &str,
        is_opaque: bool,
    ) -> Result<String, ImageError> {
        let mut stream = LayerStream::new(None);
        stream.put_layer(dir, is_opaque)?;
        let size = stream.bytes;
        let header = TarHeader::of_file(name.as_bytes(), size);
        self.out.write_all(&header).map_err(archive_error)?;
        let mut stream = LayerStream::new(Some(&mut self.out));
        stream.put_layer(dir, is_opaque)?;
        stream.flush_buffer().map_err(archive_error)?;
        if stream.bytes != size {
            return Err(archive_error(io::Error::other(
                "a layer changed while it was read",
            )));
        }
        Ok(Digest::from_sha256_bytes(stream.hash.finalize().into()).to_string())
    }
}

fn archive_error(error: io::Error) -> ImageError {
    ImageError::store_error("write", "the archive")(error)
}

/// The tar stream of a layer. All of its length is a multiple of a block.
pub(super) struct LayerStream<'a> {
    /// `None`: bytes are only counted.
    out: Option<&'a mut File>,
    hash: Sha256,
    pub(super) bytes: u64,
    /// Bytes that are not in `out` yet.
    buffer: Vec<u8>,
    /// Paths of files that have several names, by inode and the time of its last change: inodes are used again.
    linked: BTreeMap<(u64, u64, u64), Vec<u8>>,
    /// Bytes that there is room for in `linked`; later files are written once for each name.
    linked_room: usize,
    /// Files may change meanwhile: those that go are left out, and those that shrink end with zeros.
    is_live: bool,
    /// Most bytes with which the content of a file may end.
    room: u64,
}

impl<'a> LayerStream<'a> {
    fn new(out: Option<&'a mut File>) -> Self {
        Self {
            out,
            hash: Sha256::new(),
            bytes: 0,
            buffer: Vec::new(),
            linked: BTreeMap::new(),
            linked_room: usize::MAX,
            is_live: false,
            room: u64::MAX,
        }
    }

    /// The stream of a directory that a container may change meanwhile, and fill with what it likes. `room`: most bytes.
    pub(super) fn of_live_tree(out: &'a mut File, room: u64) -> Self {
        Self {
            linked_room: PIECE_BYTES,
            is_live: true,
            room,
            ..Self::new(Some(out))
        }
    }

    fn put_layer(&mut self, dir: &Path, is_opaque: bool) -> Result<(), ImageError> {
        let failed = |e| ImageError::store_error("save", dir)(e);
        if is_opaque {
            self.put_bytes(&TarHeader::of_file(OPAQUE_MARK, 0))
                .map_err(failed)?;
        }
        self.put_tree(dir)?;
        self.put_bytes(&TAR_END).map_err(failed)
    }

    /// Writes everything below a directory.
    pub(super) fn put_tree(&mut self, dir: &Path) -> Result<(), ImageError> {
        let root = File::open(dir).map_err(ImageError::store_error("save", dir))?;
        let walked = walk_layer(root.into(), &mut |dir, name, path| match self
            .put_entry(dir, name, path)
        {
            Err(e) if self.is_live && is_gone(&e) => Ok(None),
            put => put,
        });
        walked.map_err(|e| {
            let entry = dir.join(e.entry.unwrap_or_default());
            ImageError::store_error("save", entry)(io::Error::other(e.problem))
        })
    }

    /// Writes one entry; a directory is returned.
    fn put_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
    ) -> io::Result<Option<OwnedFd>> {
        let stat = tree::stat_entry(dir, name)?;
        if tree::is_whiteout(&stat) {
            let (above, _) = path.split_at(path.len() - name.len());
            self.put_bytes(&TarHeader::of_file(&[above, WHITEOUT, name].concat(), 0))?;
            return Ok(None);
        }
        if self.is_live && path.iter().filter(|&&b| b == b'/').count() > tree::MAX_DEPTH {
            return Err(io::Error::other("too many directories in each other"));
        }
        let (mut path, mut link) = (path.to_vec(), Vec::new());
        let mut head = TarHeader {
            kind: b'0',
            mode: stat.st_mode & MODE_BITS,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: u64::try_from(stat.st_mtime).unwrap_or(0),
            ..TarHeader::default()
        };
        // A tree that nobody changes has no file in the place of another.
        let whole = |n: i64| u64::try_from(n).unwrap_or(0) * u64::from(self.is_live);
        let link_key = (
            stat.st_ino,
            whole(stat.st_ctime.into()),
            whole(stat.st_ctime_nsec.into()),
        );
        let (mut inner, mut file) = (None, None);
        match tree::file_type(&stat) {
            SFlag::S_IFREG => {
                if stat.st_nlink > 1
                    && let Some(first) = self.linked.get(&link_key)
                {
                    let further = TarHeader {
                        kind: b'1',
                        name: &path,
                        link: first,
                        ..head
                    };
                    let further = further.to_blocks(&[]);
                    self.put_bytes(&further)?;
                    return Ok(None);
                }
                head.size = u64::try_from(stat.st_size).unwrap_or(0);
                file = self.open_content(dir, name, head.size)?;
            }
            SFlag::S_IFDIR => {
                head.kind = b'5';
                path.push(b'/');
                inner = Some(tree::open_beneath(dir, &[name.into()])?);
            }
            SFlag::S_IFLNK => {
                head.kind = b'2';
                link = readlinkat(dir, name)?.as_bytes().to_vec();
            }
            kind @ (SFlag::S_IFCHR | SFlag::S_IFBLK) => {
                head.kind = if kind == SFlag::S_IFCHR { b'3' } else { b'4' };
                head.device = (major(stat.st_rdev), minor(stat.st_rdev));
            }
            SFlag::S_IFIFO => head.kind = b'6',
            // A socket: no archive has a word for it, and no layer was unpacked with one.
            _ => return Ok(None),
        }
        let mut xattrs = read_sorted_xattrs(dir, name)?;
        if self.is_live && xattrs.iter().any(|(name, _)| ELSEWHERE.contains(&&**name)) {
            return Err(io::Error::other(
                "overlayfs keeps its content under another name (redirect_dir, metacopy)",
            ));
        }
        xattrs.retain(|(name, _)| !name.starts_with(OVERLAY_XATTRS));
        let head = TarHeader {
            name: &path,
            link: &link,
            ..head
        };
        self.put_bytes(&head.to_blocks(&xattrs))?;
        if head.kind == b'0'
            && stat.st_nlink > 1
            && self.linked.len() < MAX_LINKED
            && let Some(room) = self.linked_room.checked_sub(path.len())
        {
            self.linked_room = room;
            self.linked.insert(link_key, path.clone());
        }
        match &inner {
            None => self.put_content(file, head.size)?,
            Some(inner) => {
                let is_opaque = below::is_opaque(inner.as_fd());
                if is_opaque.map_err(|_| io::Error::other("its attributes cannot be read"))? {
                    self.put_bytes(&TarHeader::of_file(&[&path, OPAQUE_MARK].concat(), 0))?;
                }
            }
        }
        Ok(inner)
    }

    /// Opens a file whose content is wanted, before its header is written: one that went meanwhile has none.
    fn open_content(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        size: u64,
    ) -> io::Result<Option<File>> {
        if size == 0 || self.out.is_none() {
            return Ok(None);
        }
        // Another one may have its name by now, and to open a device may change its state.
        let found = open::open_entry(dir, Path::new(OsStr::from_bytes(name)), OFlag::O_PATH)?;
        if !found.metadata()?.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        open::reopen_regular(&found).map(Some)
    }

    /// Writes `size` bytes of a file, and zeros up to the end of the block. `None`: the bytes are only counted.
    pub(super) fn put_content(&mut self, file: Option<File>, size: u64) -> io::Result<()> {
        let mut padding = size.next_multiple_of(BLOCK as u64) - size;
        let Some(file) = file else {
            self.bytes += size + padding;
            return Ok(());
        };
        if self
            .room
            .checked_sub(self.bytes)
            .is_none_or(|room| room < size)
        {
            return Err(no_room());
        }
        let mut file = file.take(size);
        let mut piece = vec![0; PIECE_BYTES];
        // Bounded: by the size.
        loop {
            match file.read(&mut piece)? {
                0 if file.limit() == 0 => break,
                0 if self.is_live => {
                    padding += file.limit();
                    break;
                }
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.put_bytes(&piece[..n])?,
            }
        }
        piece.fill(0);
        // Bounded: by the size.
        while padding > 0 {
            let n = padding.min(PIECE_BYTES as u64);
            self.put_bytes(&piece[..usize::try_from(n).unwrap_or(PIECE_BYTES)])?;
            padding -= n;
        }
        Ok(())
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.room {
            return Err(no_room());
        }
        if self.out.is_some() {
            self.hash.update(bytes);
            self.buffer.extend_from_slice(bytes);
            if self.buffer.len() >= PIECE_BYTES {
                self.flush_buffer()?;
            }
        }
        Ok(())
    }

    pub(super) fn flush_buffer(&mut self) -> io::Result<()> {
        if let Some(out) = &mut self.out {
            out.write_all(&self.buffer)?;
        }
        self.buffer.clear();
        Ok(())
    }
}

fn no_room() -> io::Error {
    io::Error::other("no space for checkpoint")
}

/// Returns true if an entry went, or another kind of entry has its name by now.
fn is_gone(error: &io::Error) -> bool {
    let gone = [
        Errno::ENOENT,
        Errno::ENOTDIR,
        Errno::ELOOP,
        Errno::ENXIO,
        Errno::EINVAL,
    ];
    error.kind() == io::ErrorKind::NotFound
        || gone
            .iter()
            .any(|&errno| error.raw_os_error() == Some(errno as i32))
}

fn pad_to_block(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use core::ops::ControlFlow;
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use tar::{Archive, EntryType};

    use super::super::import::ImportOptions;
    use super::super::testing::{Stream, docker_archive};
    use super::*;
    use crate::error::error_chain;
    use crate::testing::TestDir;

    fn import(store: &ImageStore, archive: &Path) -> alloc::sync::Arc<super::super::ImageRecord> {
        let go = &mut |_| ControlFlow::Continue(());
        let images = store.import_archive(archive, &ImportOptions::default(), go);
        let images = images.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        alloc::sync::Arc::clone(&images[0])
    }

    /// Layers with everything that an archive has a word of its own for.
    fn odd_layers() -> [Vec<u8>; 3] {
        let long = [&[b'd'; 120][..], b"/", &[b'f'; 200]].concat();
        let lower = Stream::new()
            .dir("etc", 0o1711)
            .file("etc/conf", b"first")
            .file("gone", b"")
            .dir("hidden", 0o755)
            .file("hidden/old", b"o")
            .file("big", &[7; 200_001])
            .hard_link("same", "big")
            .pax(&[("path", &long)])
            .file("x", b"far away")
            .pax(&[("linkpath", &long)])
            .symlink("way", "x")
            .pax(&[("SCHILY.xattr.user.mark", b"a\nb=\0c")])
            .file("marked", b"m")
            .pax(&[("uid", b"3000000000")])
            .file("owned", &[1; 512])
            .device(EntryType::Char, "null", 1, 3)
            .device(EntryType::Block, "disk", 259, 300)
            .entry(EntryType::Fifo, "pipe", "", 0o600, b"");
        let upper = Stream::new()
            .file(".wh.gone", b"")
            .file("etc/.wh.conf", b"")
            .dir("hidden", 0o700)
            .file("hidden/.wh..wh..opq", b"")
            .file("hidden/new", b"n");
        let top = Stream::new()
            .file(".wh..wh..opq", b"")
            .file("only", b"this");
        [lower.bytes(), upper.bytes(), top.bytes()]
    }

    fn save(store: &ImageStore, ids: &[&str], to: &Path) {
        let mut archive = ImageArchiveWriter::new(File::create(to).expect("scratch"));
        for id in ids {
            let image = store.image_by_id(id).expect("an image");
            let info = store.image_info(id).expect("info");
            let mut told = Vec::new();
            let saved = archive.add_image(&info, &image.names, &mut |done| told.push(done));
            saved.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
            assert_eq!(told, (0..image.layers.len()).collect::<Vec<_>>());
        }
        archive.finish_archive().expect("whole");
    }

    #[test]
    fn what_is_saved_is_what_was_unpacked() {
        // IMG-31
        if !nix::unistd::geteuid().is_root() {
            skipped!("unpacking needs root");
            return;
        }
        let scratch = TestDir::new("save");
        let open = |name: &str| ImageStore::open(&scratch.join(name)).expect("store");
        let (store, other) = (open("images"), open("others"));
        let layers = odd_layers();
        let layers: Vec<&[u8]> = layers.iter().map(|l| &**l).collect();
        let path = scratch.join("archive.tar");
        fs::write(&path, docker_archive("odd:1", &layers)).expect("scratch");
        let image = import(&store, &path);
        save(&store, &[&image.id], &path);
        let again = import(&other, &path);
        assert_eq!(again.names, image.names);
        assert_eq!(again.config.config, image.config.config);
        assert_eq!(again.layers.len(), 3);
        for (one, two) in image.layers.iter().zip(&again.layers) {
            assert!(one.sum.is_some());
            assert_eq!((&one.sum, one.opaque), (&two.sum, two.opaque));
        }
        let lowest = |store: &ImageStore, image: &super::super::ImageRecord, name: &str| {
            let file = store.layers_root().join(&image.layers[0].dir).join(name);
            let stat = fs::symlink_metadata(file).expect("a file");
            (stat.mtime(), stat.nlink(), stat.size())
        };
        for name in ["big", "same", "etc", "marked"] {
            assert_eq!(
                lowest(&other, &again, name),
                lowest(&store, &image, name),
                "{name}"
            );
        }
    }

    #[test]
    fn other_programs_can_read_it() {
        // IMG-31
        if !nix::unistd::geteuid().is_root() {
            skipped!("unpacking needs root");
            return;
        }
        let scratch = TestDir::new("save-read");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let layers = odd_layers();
        let path = scratch.join("archive.tar");
        let import_layers = |name: &str, layers: &[&[u8]]| {
            fs::write(&path, docker_archive(name, layers)).expect("scratch");
            import(&store, &path).id.clone()
        };
        let one = import_layers("one:1", &[&layers[0]]);
        let two = import_layers("two:1", &[&layers[0], &layers[1]]);
        save(&store, &[&one, &two], &path);
        let mut members = BTreeMap::new();
        let mut archive = Archive::new(File::open(&path).expect("archive"));
        for member in archive.entries().expect("members") {
            let mut member = member.expect("member");
            let name = member.path().expect("name").display().to_string();
            let mut data = Vec::new();
            member.read_to_end(&mut data).expect("data");
            assert!(
                members.insert(name, data).is_none(),
                "a layer is there once"
            );
        }
        let manifest: Value = serde_json::from_slice(&members["manifest.json"]).expect("JSON");
        assert_eq!(manifest[1]["RepoTags"], json!(["docker.io/library/two:1"]));
        assert_eq!(manifest[0]["Layers"][0], manifest[1]["Layers"][0]);
        let named = |name: &Value| &members[name.as_str().expect("a name")];
        let config: Value = serde_json::from_slice(named(&manifest[1]["Config"])).expect("JSON");
        assert_eq!(config.get("created"), None, "an empty time is no time");
        for at in 0..2 {
            let digest = Digest::compute(named(&manifest[1]["Layers"][at])).to_string();
            assert_eq!(config["rootfs"]["diff_ids"][at], digest);
        }
        let mut seen = BTreeSet::new();
        for layer in [&manifest[1]["Layers"][0], &manifest[1]["Layers"][1]] {
            let mut stream = Archive::new(&**named(layer));
            for entry in stream.entries().expect("entries") {
                let entry = entry.expect("entry");
                let path = entry.path().expect("path").display().to_string();
                let kind = entry.header().entry_type();
                assert_eq!(kind == EntryType::Directory, path.ends_with('/'), "{path}");
                if path == "owned" {
                    assert_eq!(entry.header().uid().expect("uid"), 3_000_000_000);
                    assert_eq!(entry.header().mtime().expect("mtime"), 1_000_000);
                }
                seen.insert(path);
            }
        }
        let long = ["d".repeat(120), "f".repeat(200)].join("/");
        for path in [
            ".wh.gone",
            "hidden/.wh..wh..opq",
            "etc/.wh.conf",
            &*long,
            "null",
        ] {
            assert!(seen.contains(path), "{path}: {seen:?}");
        }
    }

    #[test]
    fn a_layer_that_is_gone_is_an_error() {
        // IMG-31
        let scratch = TestDir::new("save-gone");
        let file = File::create(scratch.join("a.tar")).expect("scratch");
        let info = json!({"imageSpec": {}, "layers": [{"path": scratch.join("00")}]});
        let saved = ImageArchiveWriter::new(file).add_image(&info, &[], &mut |_| ());
        let error = error_chain(&saved.expect_err("gone"));
        assert!(
            error.contains("cannot save") && error.contains("/00"),
            "{error}"
        );
    }
}
