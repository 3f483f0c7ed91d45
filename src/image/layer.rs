//! Unpacks one layer into a directory of its own, in overlayfs's form.
//!
//! A layer is unpacked without the layers below it, so that it can be shared and so that layers may come in any order.
//! Whiteouts become character devices 0:0, opaque directories get `trusted.overlay.opaque`. A layer may have such devices
//! itself, if it was made from a directory of overlayfs: they are whiteouts too.
//!
//! **Leaning.** A layer may write to `etc/x` without declaring `etc`. The directory made for it would hide mode, owner
//! and time of the one below. Such paths are returned in [`UnpackedLayer::implied`];
//! [`super::below::settle_implied_dirs`] copies these from below, and the layer is then shared only where the layers
//! below are the same (keyed by chain id, not diff id). Where the name below is a symbolic link to a directory, or a
//! hard link names a file of a layer below, the layer cannot be unpacked alone: it is unpacked once more with a view
//! of those below ([`LowerLayers`]).

use alloc::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, futimens, makedev, mkdirat, mknodat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};

use super::below::{LowerEntry, LowerLayers, copy_metadata};
use super::compress::read_up_to;
use super::digest::{Digest, HashingReader};
use super::error::{ImageProblem, LayerError};
use super::sum::{ContentSum, PIECE_BYTES};
use super::tarball::{MAX_XATTRS, TarEntry, TarEntryKind, TarInput, TarReader};
use super::tree::{self, MissingDirAction, PathComponent, TreePathError};
use crate::sys::xattr;

/// Entries of one layer. The largest images in use have about 300 000 files.
pub const MAX_ENTRIES: u64 = 1_000_000;
/// Directories that a layer uses without declaring them.
pub const MAX_IMPLIED: usize = 10_000;
/// Files of the layers below that hard links of one layer name, and marks of overlayfs that may get more names.
pub const MAX_LINKED: usize = 100_000;
/// Bytes after the end mark of a layer's tar stream: writers pad to at most 10 KiB.
pub const MAX_TRAILER_BYTES: u64 = 1024 * 1024;
/// Buffer for file contents, bytes.
const COPY_BYTES: usize = PIECE_BYTES;
/// Marks a removed name.
pub(super) const WHITEOUT: &[u8] = b".wh.";
/// Marks a directory whose content below is hidden.
pub(super) const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
/// Other names that start like this are aufs's own.
const AUFS: &[u8] = b".wh..wh.";

/// Space that may still be written, over all layers of one import.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpaceBudget {
    /// Bytes at the start.
    pub(super) bytes: u64,
    /// Bytes still free.
    pub(super) bytes_left: u64,
    /// Inodes at the start.
    pub(super) inodes: u64,
    /// Inodes still free.
    pub(super) inodes_left: u64,
}

impl SpaceBudget {
    fn take_bytes(&mut self, n: u64) -> Result<(), ImageProblem> {
        self.bytes_left = self
            .bytes_left
            .checked_sub(n)
            .ok_or(ImageProblem::NoSpace {
                available: self.bytes,
            })?;
        Ok(())
    }

    /// File data: it takes whole blocks.
    fn take_data(&mut self, n: u64) -> Result<(), ImageProblem> {
        self.take_bytes(n.next_multiple_of(BLOCK_BYTES))
    }

    /// A directory takes a block as soon as there is a name in it, and most file systems give it one before.
    fn take_directory(&mut self) -> Result<(), ImageProblem> {
        self.take_inode()?;
        self.take_bytes(BLOCK_BYTES)
    }

    fn take_inode(&mut self) -> Result<(), ImageProblem> {
        self.inodes_left = self
            .inodes_left
            .checked_sub(1)
            .ok_or(ImageProblem::NoInodes {
                available: self.inodes,
            })?;
        // A file system needs room for a name and its metadata too.
        self.take_bytes(INODE_BYTES)
    }
}

/// Disk space counted for an entry besides its data.
const INODE_BYTES: u64 = 256;
/// Block size of common file systems, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;
const _: () = assert!(
    (COPY_BYTES as u64).is_multiple_of(BLOCK_BYTES),
    "pieces of a file are charged one by one"
);

/// A layer that was unpacked.
#[derive(Debug)]
pub(super) struct UnpackedLayer {
    /// Digest of the uncompressed stream.
    pub(super) diff_id: Digest,
    /// Bytes of its files.
    pub(super) size_bytes: u64,
    /// Directories used but not declared, real paths, sorted: parents before children.
    pub(super) implied: BTreeSet<Vec<u8>>,
    /// The root is opaque.
    pub(super) opaque: bool,
    /// Sum over the bytes written to its files; unknown if some of them were replaced or have holes.
    pub(super) content: Option<ContentSum>,
    /// A hard link names a file that the layer does not have, and the layers below were not shown: it is not whole.
    pub(super) needs_below: bool,
}

/// Hears of the bytes unpacked so far, before each entry and after each piece of a file; may stop the work.
pub(super) type UnpackCallback<'a> = &'a mut dyn FnMut(u64) -> Result<(), ImageProblem>;

/// A stream that is hashed on the way and cannot seek.
struct HashedInput<'a>(HashingReader<&'a mut dyn Read>);

impl Read for HashedInput<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl TarInput for HashedInput<'_> {}

/// Unpacks the uncompressed tar stream `input` into the empty directory `root`; `below` shows the layers below, if the
/// layer cannot do without them.
///
/// On error `root` is left half filled: the caller throws it away.
pub(super) fn unpack(
    input: &mut dyn Read,
    root: OwnedFd,
    below: Option<LowerLayers>,
    budget: &mut SpaceBudget,
    on_bytes: UnpackCallback<'_>,
) -> Result<UnpackedLayer, LayerError> {
    let mut stream = HashedInput(HashingReader::new(input, true));
    let mut target = LayerTarget {
        root,
        below,
        needs_below: false,
        budget,
        on_bytes,
        parent: None,
        implied: BTreeSet::new(),
        copied: BTreeSet::new(),
        marks: BTreeSet::new(),
        opaque: false,
        size_bytes: 0,
        content: Some(ContentSum::default()),
        buffer: vec![0; COPY_BYTES],
    };
    let mut tar = TarReader::new(&mut stream);
    let mut entries = 0;
    let mut last: Option<Vec<u8>> = None;
    loop {
        let entry = match tar.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => {
                return Err(LayerError {
                    entry: last.map(|path| format!("after {}", tree::display_path(&path))),
                    problem: ImageProblem::from_read_error(error),
                });
            }
        };
        entries += 1;
        let done = if entries > MAX_ENTRIES {
            Err(ImageProblem::Limit {
                what: "entries in a layer",
                limit: MAX_ENTRIES,
            })
        } else {
            target.apply_entry(&entry, &mut tar)
        };
        done.map_err(|problem| LayerError {
            entry: Some(tree::display_path(&entry.path)),
            problem,
        })?;
        last = Some(entry.path);
    }
    target.leave_parent()?;
    let (implied, opaque, size_bytes) = (target.implied, target.opaque, target.size_bytes);
    let (needs_below, content) = (target.needs_below, target.content);
    // The digest covers what follows the end mark.
    let trailer = io::copy(
        &mut (&mut stream).take(MAX_TRAILER_BYTES + 1),
        &mut io::sink(),
    )
    .map_err(ImageProblem::from_read_error)?;
    if trailer > MAX_TRAILER_BYTES {
        return Err(LayerError::from(ImageProblem::Limit {
            what: "bytes after the end of a layer",
            limit: MAX_TRAILER_BYTES,
        }));
    }
    let diff_id = stream.0.finish().expect("the stream is hashed");
    Ok(UnpackedLayer {
        diff_id,
        size_bytes,
        implied,
        opaque,
        content,
        needs_below,
    })
}

/// Result of entering a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EnterResult {
    Yes,
    /// A name on the way is no directory in this layer.
    NotDirectory,
}

/// The directory that entries went into last. Its time is put back when another one is entered, so that times of
/// directories need no list.
struct CurrentParent {
    path: Vec<PathComponent>,
    dir: OwnedFd,
    before: FileStat,
}

struct LayerTarget<'a> {
    root: OwnedFd,
    below: Option<LowerLayers>,
    needs_below: bool,
    budget: &'a mut SpaceBudget,
    on_bytes: UnpackCallback<'a>,
    parent: Option<CurrentParent>,
    implied: BTreeSet<Vec<u8>>,
    /// Files that were copied from below for hard links, real paths: they are no entries of this layer, which may remove them.
    copied: BTreeSet<Vec<u8>>,
    /// Whiteouts that are devices in the stream, real paths: hard links may name them. Those of other names are in no stream.
    marks: BTreeSet<Vec<u8>>,
    opaque: bool,
    size_bytes: u64,
    content: Option<ContentSum>,
    buffer: Vec<u8>,
}

impl LayerTarget<'_> {
    fn apply_entry(
        &mut self,
        entry: &TarEntry,
        data: &mut TarReader<'_>,
    ) -> Result<(), ImageProblem> {
        let mut path = tree::split_path(&entry.path).map_err(ImageProblem::from)?;
        let Some(name) = path.pop() else {
            // The root itself: a container's root directory is the upper one, so this one's metadata is never seen.
            return match entry.kind {
                TarEntryKind::Dir => Ok(()),
                _ => Err(ImageProblem::Damaged(
                    "the layer's root is not a directory".into(),
                )),
            };
        };
        if name.starts_with(WHITEOUT) {
            // Where this layer has a file, or removes the directory, nothing below can be seen anyway.
            return match self.enter_directory(path, MissingDirAction::MakeForWhiteout)? {
                EnterResult::Yes => self.apply_whiteout(&name),
                EnterResult::NotDirectory => Ok(()),
            };
        }
        if self.enter_directory(path, MissingDirAction::Make)? == EnterResult::NotDirectory {
            return Err(TreePathError::NotDirectory.into());
        }
        let parent = self.parent();
        let present = match tree::stat_entry(parent, &name) {
            Ok(stat) => Some(stat),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(ImageProblem::write_error("examine it")(errno)),
        };
        let mut opaque = false;
        match &present {
            Some(stat)
                if entry.kind == TarEntryKind::Dir && tree::file_type(stat) == SFlag::S_IFDIR => {}
            Some(stat) => {
                opaque = tree::is_whiteout(stat);
                if entry.kind == TarEntryKind::HardLink && self.is_own_target(entry, stat)? {
                    if !self.copied.is_empty() {
                        let real = self.real_path(&name);
                        self.copied
                            .remove(&real.map_err(ImageProblem::write_error("name it"))?);
                    }
                    return Ok(());
                }
                self.remove_earlier_entry(&name)?;
            }
            None => {}
        }
        (self.on_bytes)(self.size_bytes)?;
        match entry.kind {
            TarEntryKind::Dir => self.apply_directory(entry, &name, opaque),
            TarEntryKind::File => self.apply_file(entry, &name, data),
            TarEntryKind::HardLink => self.apply_hard_link(entry, &name),
            TarEntryKind::Symlink => self.apply_symlink(entry, &name),
            TarEntryKind::Char | TarEntryKind::Block | TarEntryKind::Fifo => {
                self.apply_special_file(entry, &name)
            }
        }
    }

    fn parent(&self) -> BorrowedFd<'_> {
        self.parent
            .as_ref()
            .map_or_else(|| self.root.as_fd(), |parent| parent.dir.as_fd())
    }

    /// Makes `path` the directory that entries go into.
    fn enter_directory(
        &mut self,
        path: Vec<PathComponent>,
        absent: MissingDirAction,
    ) -> Result<EnterResult, ImageProblem> {
        if self.parent.as_ref().is_some_and(|p| p.path == path) {
            return Ok(EnterResult::Yes);
        }
        self.leave_parent()?;
        let reached =
            match tree::reach_directory(self.root.as_fd(), &path, absent, self.below.as_mut()) {
                Ok(reached) => reached,
                Err(TreePathError::NotDirectory) => return Ok(EnterResult::NotDirectory),
                Err(why) => return Err(why.into()),
            };
        self.record_implied_dirs(reached.made)?;
        let before =
            fstat(&reached.dir).map_err(ImageProblem::write_error("examine its directory"))?;
        self.parent = Some(CurrentParent {
            path,
            dir: reached.dir,
            before,
        });
        Ok(EnterResult::Yes)
    }

    /// Counts directories that no entry declared.
    fn record_implied_dirs(&mut self, made: Vec<Vec<u8>>) -> Result<(), ImageProblem> {
        for path in made {
            self.budget.take_directory()?;
            self.implied.insert(path);
        }
        if self.implied.len() > MAX_IMPLIED {
            return Err(ImageProblem::Limit {
                what: "directories used without being declared",
                limit: MAX_IMPLIED as u64,
            });
        }
        Ok(())
    }

    fn leave_parent(&mut self) -> Result<(), ImageProblem> {
        match self.parent.take() {
            Some(parent) => tree::restore_mtime(parent.dir.as_fd(), &parent.before)
                .map_err(ImageProblem::write_error("set the time of its directory")),
            None => Ok(()),
        }
    }

    /// Removes the file or directory that an earlier entry of the same layer put here.
    fn remove_earlier_entry(&mut self, name: &[u8]) -> Result<(), ImageProblem> {
        tree::remove_tree(self.parent(), name)
            .map_err(ImageProblem::write_error("replace what was there"))?;
        // What was in it is not known any more.
        self.content = None;
        // It may have been a directory, and what was implied in it is gone.
        if let Ok(real) = self.real_path(name) {
            for paths in [&mut self.implied, &mut self.copied, &mut self.marks] {
                for path in paths_within(paths, &real) {
                    paths.remove(&path);
                }
            }
        }
        Ok(())
    }

    /// Removes at `hidden`, or in it, entries that are there only because another entry of this layer needed them:
    /// files copied from below, then directories without entries of their own. Returns whether `hidden` itself was such
    /// a file.
    fn remove_copied(&mut self, hidden: &[u8]) -> Result<bool, ImageProblem> {
        if self.copied.is_empty() {
            return Ok(false);
        }
        let real = self
            .real_path(hidden)
            .map_err(ImageProblem::write_error("name it"))?;
        let real = real.strip_suffix(b"/").unwrap_or(&real);
        let files = paths_within(&self.copied, real);
        let was_copied = files.iter().any(|path| path == real);
        // Nothing was copied into others.
        let mut dirs = match files.is_empty() {
            true => Vec::new(),
            false => paths_within(&self.implied, real),
        };
        dirs.retain(|path| path != real);
        // Children before their parents.
        dirs.reverse();
        for path in files.iter().chain(&dirs) {
            let names = tree::split_path(path).map_err(ImageProblem::from)?;
            let Some((name, parents)) = names.split_last() else {
                continue;
            };
            let parent = tree::open_beneath(self.root.as_fd(), parents)
                .map_err(ImageProblem::write_error("reach its directory"))?;
            if self.implied.contains(path) {
                let dir = tree::open_beneath(self.root.as_fd(), &names)
                    .map_err(ImageProblem::write_error("reach its directory"))?;
                if !tree::only_whiteouts(dir)
                    .map_err(ImageProblem::write_error("list the directory"))?
                {
                    continue;
                }
            }
            let before =
                fstat(&parent).map_err(ImageProblem::write_error("reach its directory"))?;
            tree::remove_tree(parent.as_fd(), name)
                .map_err(ImageProblem::write_error("remove it"))?;
            tree::restore_mtime(parent.as_fd(), &before)
                .map_err(ImageProblem::write_error("set the time"))?;
            self.implied.remove(path);
            self.copied.remove(path);
            // What was in it is not known any more.
            self.content = None;
        }
        Ok(was_copied)
    }

    /// Path of an entry in the current directory, links resolved.
    fn real_path(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.real_path_in(self.parent(), name)
    }

    fn real_path_in(&self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStringExt;
        let real = |fd: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
                .map(|path| path.into_os_string().into_vec())
        };
        let root = real(self.root.as_fd())?;
        let dir = real(dir)?;
        let mut path = match dir.strip_prefix(root.as_slice()) {
            Some([b'/', rest @ ..]) => [rest, b"/"].concat(),
            _ => Vec::new(),
        };
        path.extend_from_slice(name);
        Ok(path)
    }

    fn apply_whiteout(&mut self, name: &[u8]) -> Result<(), ImageProblem> {
        if name == OPAQUE_MARK {
            self.remove_copied(b"")?;
            let at_root = self.parent.as_ref().is_none_or(|p| p.path.is_empty());
            if at_root {
                // Overlayfs does not look at the mark on a root: the layers below are left out instead.
                self.opaque = true;
                if let Some(below) = &mut self.below {
                    below.hide();
                }
                return Ok(());
            }
            return xattr::set_attribute(self.parent(), tree::OPAQUE, b"y")
                .map_err(ImageProblem::write_error("mark the directory opaque"));
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(ImageProblem::Damaged("the whiteout names nothing".into()));
        }
        let was_copied = self.remove_copied(hidden)?;
        match tree::stat_entry(self.parent(), hidden) {
            // A whiteout hides entries of the layers below, never those of its own layer. A file hides the entry below
            // anyway.
            Ok(stat) if tree::file_type(&stat) == SFlag::S_IFDIR => {
                let dir = tree::open_beneath(self.parent(), &[hidden.into()])
                    .map_err(ImageProblem::write_error("open the directory"))?;
                let implied = !self.implied.is_empty()
                    && self
                        .real_path(hidden)
                        .is_ok_and(|path| self.implied.contains(&path));
                if implied {
                    // Made for whiteouts in it, and now it is removed itself.
                    let copy = dir
                        .try_clone()
                        .map_err(ImageProblem::write_error("list the directory"))?;
                    if tree::only_whiteouts(copy)
                        .map_err(ImageProblem::write_error("list the directory"))?
                    {
                        self.remove_earlier_entry(hidden)?;
                        return tree::make_whiteout(self.parent(), hidden)
                            .map_err(ImageProblem::write_error("make the whiteout"));
                    }
                }
                xattr::set_attribute(dir.as_fd(), tree::OPAQUE, b"y")
                    .map_err(ImageProblem::write_error("mark the directory opaque"))
            }
            Ok(_) => Ok(()),
            Err(Errno::ENOENT) => {
                if !was_copied {
                    self.budget.take_inode()?;
                }
                tree::make_whiteout(self.parent(), hidden)
                    .map_err(ImageProblem::write_error("make the whiteout"))
            }
            Err(errno) => Err(ImageProblem::write_error("examine it")(errno)),
        }
    }

    fn apply_directory(
        &mut self,
        entry: &TarEntry,
        name: &[u8],
        opaque: bool,
    ) -> Result<(), ImageProblem> {
        match mkdirat(self.parent(), name, Mode::from_bits_truncate(0o700)) {
            Ok(()) => self.budget.take_directory()?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(ImageProblem::write_error("make the directory")(errno)),
        }
        let dir = tree::open_beneath(self.parent(), &[name.into()])
            .map_err(ImageProblem::write_error("open the directory"))?;
        if !self.implied.is_empty()
            && let Ok(real) = self.real_path(name)
        {
            self.implied.remove(&real);
        }
        if opaque {
            xattr::set_attribute(dir.as_fd(), tree::OPAQUE, b"y")
                .map_err(ImageProblem::write_error("mark the directory opaque"))?;
        }
        apply_metadata(dir.as_fd(), entry)
    }

    fn apply_file(
        &mut self,
        entry: &TarEntry,
        name: &[u8],
        data: &mut TarReader<'_>,
    ) -> Result<(), ImageProblem> {
        self.budget.take_inode()?;
        let mut file = create_new_file(self.parent(), name)?;
        match &entry.sparse {
            None => self.copy_file_data(entry.size, data, &mut file)?,
            Some(sparse) => {
                self.content = None;
                for &(offset, length) in &sparse.extents {
                    file.seek(SeekFrom::Start(offset))
                        .map_err(ImageProblem::write_error("write the file"))?;
                    self.copy_file_data(length, data, &mut file)?;
                }
                file.set_len(sparse.size)
                    .map_err(ImageProblem::write_error("write the file"))?;
            }
        }
        apply_metadata(file.as_fd(), entry)
    }

    fn copy_file_data(
        &mut self,
        length: u64,
        data: &mut dyn Read,
        file: &mut File,
    ) -> Result<(), ImageProblem> {
        let mut left = length;
        for index in 0.. {
            if left == 0 {
                break;
            }
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(COPY_BYTES);
            // Whole pieces: they are what is summed.
            let n = read_up_to(data, &mut self.buffer[..want])
                .map_err(ImageProblem::from_read_error)?;
            if n < want {
                return Err(ImageProblem::Truncated);
            }
            if let Some(content) = &mut self.content {
                content.add_piece(index, &self.buffer[..n]);
            }
            self.budget.take_data(n as u64)?;
            file.write_all(&self.buffer[..n])
                .map_err(ImageProblem::write_error("write the file"))?;
            super::count_written(n);
            left -= n as u64;
            self.size_bytes += n as u64;
            (self.on_bytes)(self.size_bytes)?;
        }
        Ok(())
    }

    /// Opens the directory of a hard link's target and tells the target's name; `None` if the layer itself has no such
    /// directory.
    fn open_link_target(
        &self,
        entry: &TarEntry,
    ) -> Result<Option<(OwnedFd, PathComponent)>, ImageProblem> {
        let (path, name) = split_link(entry)?;
        match tree::reach_directory(self.root.as_fd(), &path, MissingDirAction::Fail, None) {
            Ok(reached) => Ok(Some((reached.dir, name))),
            Err(TreePathError::Missing) => Ok(None),
            Err(why) => Err(link_target_problem(entry, why)),
        }
    }

    /// Returns true if a hard link entry names the very file that is there under its own name (`present`).
    fn is_own_target(&self, entry: &TarEntry, present: &FileStat) -> Result<bool, ImageProblem> {
        let Some((dir, name)) = self.open_link_target(entry)? else {
            return Ok(false);
        };
        Ok(tree::stat_entry(dir.as_fd(), &name)
            .is_ok_and(|stat| stat.st_ino == present.st_ino && stat.st_dev == present.st_dev))
    }

    fn apply_hard_link(&mut self, entry: &TarEntry, name: &[u8]) -> Result<(), ImageProblem> {
        let own = match self.open_link_target(entry)? {
            Some((dir, target)) => match tree::stat_entry(dir.as_fd(), &target) {
                Ok(stat) => Some((dir, target, stat)),
                Err(Errno::ENOENT) => None,
                Err(errno) => return Err(link_target_problem(entry, errno.into())),
            },
            None => None,
        };
        let (dir, target, stat) = match own {
            Some(own) => own,
            None if self.below.is_none() => {
                self.needs_below = true;
                return Ok(());
            }
            None => self.copy_up(entry)?,
        };
        if tree::is_whiteout(&stat) {
            // Overlayfs gives many names to one mark. Under another mark there is no file to link to.
            let real = self.real_path_in(dir.as_fd(), &target);
            return match self
                .marks
                .contains(&real.map_err(ImageProblem::write_error("name it"))?)
            {
                true => self.add_whiteout(name),
                false => Err(link_target_problem(entry, TreePathError::Missing)),
            };
        }
        if tree::file_type(&stat) == SFlag::S_IFDIR {
            return Err(ImageProblem::Damaged(format!(
                "hard link to {:?}, which is no file",
                tree::display_path(&entry.link)
            )));
        }
        linkat(&dir, &*target, self.parent(), name, AtFlags::empty())
            .map_err(ImageProblem::write_error("make the hard link"))
    }

    /// Makes a whiteout that more names may follow.
    fn add_whiteout(&mut self, name: &[u8]) -> Result<(), ImageProblem> {
        self.apply_whiteout(&[WHITEOUT, name].concat())?;
        let real = self
            .real_path(name)
            .map_err(ImageProblem::write_error("name it"))?;
        if self.marks.len() < MAX_LINKED {
            self.marks.insert(real);
        }
        Ok(())
    }

    /// Copies the target of a hard link from the layers below into this one, as overlayfs does when such a link is made.
    fn copy_up(
        &mut self,
        entry: &TarEntry,
    ) -> Result<(OwnedFd, PathComponent, FileStat), ImageProblem> {
        let (path, name) = split_link(entry)?;
        let reached = tree::reach_directory(
            self.root.as_fd(),
            &path,
            MissingDirAction::Make,
            self.below.as_mut(),
        )
        .map_err(|why| link_target_problem(entry, why))?;
        self.record_implied_dirs(reached.made)?;
        let (dir, real) = (reached.dir, reached.real);
        match tree::stat_entry(dir.as_fd(), &name) {
            // It is here, but was named by a way through a link below.
            Ok(stat) => return Ok((dir, name, stat)),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(link_target_problem(entry, errno.into())),
        }
        let below = self.below.as_mut().ok_or(ImageProblem::Escape)?;
        let (lower, stat) = match below
            .find_entry(self.root.as_fd(), &real, &name)
            .map_err(|why| link_target_problem(entry, why))?
        {
            LowerEntry::Other(lower, stat) => (lower, stat),
            LowerEntry::Nothing | LowerEntry::Directory(..) => {
                return Err(link_target_problem(entry, TreePathError::Missing));
            }
        };
        let before = fstat(&dir).map_err(ImageProblem::write_error("examine its directory"))?;
        self.budget.take_inode()?;
        match tree::file_type(&stat) {
            SFlag::S_IFREG => self.copy_lower_file(lower.as_fd(), &name, dir.as_fd())?,
            SFlag::S_IFLNK => {
                let to = readlinkat(&*lower, &*name)
                    .map_err(ImageProblem::write_error("look into the layers below"))?;
                symlinkat(to.as_os_str(), &dir, &*name)
                    .map_err(ImageProblem::write_error("make the symbolic link"))?;
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                fchownat(&dir, &*name, Some(uid), Some(gid), flags)
                    .map_err(ImageProblem::write_error("set the owner"))?;
                let mtime = TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec);
                tree::set_mtime(dir.as_fd(), &name, mtime)
                    .map_err(ImageProblem::write_error("set the time"))?;
            }
            _ => {
                return Err(ImageProblem::Unsupported(format!(
                    "hard link to {:?}, a device or pipe of a layer below",
                    tree::display_path(&entry.link)
                )));
            }
        }
        tree::restore_mtime(dir.as_fd(), &before)
            .map_err(ImageProblem::write_error("set the time"))?;
        if self.copied.len() >= MAX_LINKED {
            return Err(ImageProblem::Limit {
                what: "files of the layers below that a layer links to",
                limit: MAX_LINKED as u64,
            });
        }
        let path = self.real_path_in(dir.as_fd(), &name);
        self.copied
            .insert(path.map_err(ImageProblem::write_error("name it"))?);
        let stat = tree::stat_entry(dir.as_fd(), &name)
            .map_err(ImageProblem::write_error("examine it"))?;
        Ok((dir, name, stat))
    }

    fn copy_lower_file(
        &mut self,
        from: BorrowedFd<'_>,
        name: &[u8],
        to: BorrowedFd<'_>,
    ) -> Result<(), ImageProblem> {
        let look = "look into the layers below";
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut source = openat(from, name, flags, Mode::empty())
            .map(File::from)
            .map_err(ImageProblem::write_error(look))?;
        let stat = fstat(&source).map_err(ImageProblem::write_error(look))?;
        let mut file = create_new_file(to, name)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        self.copy_file_data(length, &mut source, &mut file)?;
        copy_metadata(source.as_fd(), &stat, file.as_fd())
    }

    fn apply_symlink(&mut self, entry: &TarEntry, name: &[u8]) -> Result<(), ImageProblem> {
        self.budget.take_inode()?;
        // The text is the container's business: nothing of ours ever follows it out of the layer.
        symlinkat(entry.link.as_slice(), self.parent(), name)
            .map_err(ImageProblem::write_error("make the symbolic link"))?;
        self.set_entry_metadata(entry, name)
    }

    fn apply_special_file(&mut self, entry: &TarEntry, name: &[u8]) -> Result<(), ImageProblem> {
        if entry.kind == TarEntryKind::Char && entry.device == (0, 0) {
            return self.add_whiteout(name);
        }
        self.budget.take_inode()?;
        let (kind, device) = match entry.kind {
            TarEntryKind::Fifo => (SFlag::S_IFIFO, 0),
            kind => {
                let (major, minor) = entry.device;
                // What a dev_t of Linux holds.
                if major >= 1 << 12 || minor >= 1 << 20 {
                    return Err(ImageProblem::Damaged(format!(
                        "device {major}:{minor} is out of range"
                    )));
                }
                if kind == TarEntryKind::Block {
                    (SFlag::S_IFBLK, makedev(major, minor))
                } else {
                    (SFlag::S_IFCHR, makedev(major, minor))
                }
            }
        };
        mknodat(self.parent(), name, kind, Mode::empty(), device)
            .map_err(ImageProblem::write_error("make the device node"))?;
        self.set_entry_metadata(entry, name)
    }

    /// Sets owner, attributes, mode and time of an entry that cannot be opened.
    fn set_entry_metadata(&self, entry: &TarEntry, name: &[u8]) -> Result<(), ImageProblem> {
        let parent = self.parent();
        let (uid, gid) = owner(entry)?;
        fchownat(
            parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(ImageProblem::write_error("set the owner"))?;
        let path =
            tree::path_through_fd(parent, name).map_err(ImageProblem::write_error("name it"))?;
        for (key, value) in wanted_xattrs(entry)? {
            ImageProblem::ignore_unsupported(xattr::set_on_link(&path, &key, value))?;
        }
        if entry.kind != TarEntryKind::Symlink {
            nix::sys::stat::fchmodat(
                parent,
                name,
                Mode::from_bits_truncate(entry.mode),
                // It was made just now and is no link.
                nix::sys::stat::FchmodatFlags::FollowSymlink,
            )
            .map_err(ImageProblem::write_error("set the mode"))?;
        }
        tree::set_mtime(parent, name, mtime(entry))
            .map_err(ImageProblem::write_error("set the time"))
    }
}

/// The paths that are `dir` or in it, sorted. The empty one is the root.
fn paths_within(paths: &BTreeSet<Vec<u8>>, dir: &[u8]) -> Vec<Vec<u8>> {
    if dir.is_empty() {
        return paths.iter().cloned().collect();
    }
    // `0` follows `/`.
    let inner = [dir, b"/"].concat()..[dir, b"0"].concat();
    let itself = paths.get(dir).into_iter();
    itself.chain(paths.range(inner)).cloned().collect()
}

/// Makes a file that was not there.
fn create_new_file(parent: BorrowedFd<'_>, name: &[u8]) -> Result<File, ImageProblem> {
    let flags =
        OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::from_bits_truncate(0o600))
        .map(File::from)
        .map_err(ImageProblem::write_error("make the file"))
}

/// A hard link's target: the names of its directory, and its own.
fn split_link(entry: &TarEntry) -> Result<(Vec<PathComponent>, PathComponent), ImageProblem> {
    let mut path = tree::split_path(&entry.link).map_err(ImageProblem::from)?;
    let name = path
        .pop()
        .ok_or_else(|| ImageProblem::Damaged("hard link to the layer's root".into()))?;
    Ok((path, name))
}

/// Owner first: changing it clears set-id bits and capabilities. Time last.
fn apply_metadata(file: BorrowedFd<'_>, entry: &TarEntry) -> Result<(), ImageProblem> {
    let (uid, gid) = owner(entry)?;
    fchown(file, Some(uid), Some(gid)).map_err(ImageProblem::write_error("set the owner"))?;
    for (key, value) in wanted_xattrs(entry)? {
        ImageProblem::ignore_unsupported(xattr::set_attribute(file, &key, value))?;
    }
    fchmod(file, Mode::from_bits_truncate(entry.mode))
        .map_err(ImageProblem::write_error("set the mode"))?;
    let mtime = mtime(entry);
    futimens(file, &mtime, &mtime).map_err(ImageProblem::write_error("set the time"))
}

fn owner(entry: &TarEntry) -> Result<(Uid, Gid), ImageProblem> {
    let id = |value: u64| {
        u32::try_from(value)
            .ok()
            // All ones means "leave as it is" to the kernel.
            .filter(|&id| id != u32::MAX)
            .ok_or_else(|| ImageProblem::Damaged(format!("owner {value} is out of range")))
    };
    Ok((Uid::from_raw(id(entry.uid)?), Gid::from_raw(id(entry.gid)?)))
}

fn mtime(entry: &TarEntry) -> TimeSpec {
    let (seconds, nanos) = entry.mtime;
    TimeSpec::new(seconds, i32::try_from(nanos).unwrap_or(0).into())
}

/// Attributes that are taken over. Overlayfs's own would let a layer reach into others, and labels of another machine's
/// security module mean nothing here.
fn wanted_xattrs(entry: &TarEntry) -> Result<Vec<(CString, &[u8])>, ImageProblem> {
    let mut wanted = Vec::new();
    for (key, value) in entry.xattrs.iter().take(MAX_XATTRS) {
        let taken = key == b"security.capability"
            || (key.starts_with(b"user.") && !key.starts_with(b"user.overlay."))
            || key.starts_with(b"system.posix_acl_");
        if !taken {
            continue;
        }
        if value.len() > xattr::XATTR_MAX_BYTES {
            return Err(ImageProblem::Limit {
                what: "bytes in an extended attribute",
                limit: xattr::XATTR_MAX_BYTES as u64,
            });
        }
        let key = CString::new(key.as_slice())
            .map_err(|_| ImageProblem::Damaged("attribute name has a NUL".into()))?;
        wanted.push((key, value.as_slice()));
    }
    Ok(wanted)
}

fn link_target_problem(entry: &TarEntry, why: TreePathError) -> ImageProblem {
    match why {
        TreePathError::Missing | TreePathError::NotDirectory => ImageProblem::Damaged(format!(
            "hard link to {:?}, which neither the layer nor those below have",
            tree::display_path(&entry.link)
        )),
        why => why.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::path::Path;

    use tar::EntryType;

    use core::ffi::CStr;

    use super::super::below;
    use super::super::tarball::MAX_EXTENTS;
    use super::super::testing::Stream;
    use super::super::tree::MAX_DEPTH;
    use super::*;
    use crate::testing::TestDir;

    fn is_root() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            skipped!("unpacking needs root");
        }
        root
    }

    struct Bench {
        scratch: TestDir,
        bytes: u64,
        inodes: u64,
    }

    impl Bench {
        /// Makes a root directory between files that must not be touched.
        fn new() -> Self {
            let scratch = TestDir::new("layer");
            fs::create_dir(scratch.join("root")).expect("scratch");
            fs::write(scratch.join("secret"), b"secret").expect("scratch");
            fs::create_dir(scratch.join("outside")).expect("scratch");
            Self {
                scratch,
                bytes: 1 << 30,
                inodes: 1 << 20,
            }
        }

        fn unpack(&self, stream: &[u8]) -> Result<UnpackedLayer, LayerError> {
            let root = File::open(self.scratch.join("root")).expect("root");
            let mut budget = SpaceBudget {
                bytes: self.bytes,
                bytes_left: self.bytes,
                inodes: self.inodes,
                inodes_left: self.inodes,
            };
            let mut stream = stream;
            // Nothing is below, and it may look.
            let below = Some(LowerLayers::new(Vec::new()));
            let result = unpack(
                &mut stream,
                root.into(),
                below,
                &mut budget,
                &mut |_| Ok(()),
            );
            assert_eq!(
                fs::read(self.scratch.join("secret")).expect("still there"),
                b"secret"
            );
            assert_eq!(
                fs::read_dir(self.scratch.join("outside"))
                    .expect("there")
                    .count(),
                0,
                "something was written outside"
            );
            result
        }

        fn ok(&self, stream: Stream) -> UnpackedLayer {
            self.unpack(&stream.bytes())
                .unwrap_or_else(|e| panic!("{:?}: {}", e.entry, e.problem))
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.scratch.join("root").join(name)
        }

        fn stat(&self, name: &str) -> fs::Metadata {
            fs::symlink_metadata(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
        }

        fn opaque(&self, name: &str) -> bool {
            let dir = File::open(self.path(name)).expect("directory");
            below::is_opaque(dir.as_fd()).expect("xattr")
        }
    }

    fn whiteout(stat: &fs::Metadata) -> bool {
        stat.file_type().is_char_device() && stat.rdev() == 0
    }

    #[test]
    fn no_path_leads_out() {
        if !is_root() {
            return;
        }
        let deep = "d/".repeat(40);
        let loops = Stream::new()
            .symlink("a", "b")
            .symlink("b", "a")
            .file("a/x", b"1");
        let mut chain = Stream::new();
        for n in 0..50 {
            chain = chain.symlink(&format!("l{n}"), &format!("l{}", n + 1));
        }
        // Each link goes 40 deeper than the one before.
        let mut deeper = Stream::new().dir(&deep, 0o755).symlink("s0", &deep);
        for n in 1..8 {
            deeper = deeper
                .dir(&format!("s{}/{}", n - 1, "d/".repeat(40)), 0o755)
                .symlink(&format!("s{n}"), &format!("s{}/{}", n - 1, "d/".repeat(40)));
        }
        for (name, stream, problem) in [
            (
                "hard link to outside is inside",
                Stream::new().hard_link("a", "../secret"),
                "neither the layer nor",
            ),
            (
                "hard link to an absolute path is inside",
                Stream::new().hard_link("a", "/etc/passwd"),
                "neither the layer nor",
            ),
            (
                "hard link through a link to outside",
                Stream::new()
                    .symlink("l", "../../..")
                    .hard_link("a", "l/secret"),
                "neither the layer nor",
            ),
            (
                "whiteout of the parent",
                Stream::new().file("a/.wh...", b""),
                "names nothing",
            ),
            (
                "whiteout of itself",
                Stream::new().file(".wh..", b""),
                "names nothing",
            ),
            (
                "whiteout of nothing",
                Stream::new().file(".wh.", b""),
                "names nothing",
            ),
            ("links in a circle", loops, "symbolic links on a path"),
            (
                "too many links",
                chain.file("l0/x", b""),
                "symbolic links on a path",
            ),
            ("deeper by links", deeper, "directories or symbolic links"),
            (
                "through a file",
                Stream::new().file("a", b"1").file("a/b", b"2"),
                "not a directory",
            ),
            (
                "root as a link",
                Stream::new().symlink(".", "/"),
                "root is not a directory",
            ),
            (
                "root by the parent",
                Stream::new().symlink("a/../..", "/"),
                "root is not a directory",
            ),
            (
                "whiteout of the root's parent",
                Stream::new().file("../.wh...", b""),
                "names nothing",
            ),
        ] {
            let bench = Bench::new();
            let error = bench.unpack(&stream.bytes()).expect_err(name);
            assert!(
                error.problem.to_string().contains(problem),
                "{name}: {}",
                error.problem
            );
            assert!(error.entry.is_some(), "{name}");
        }
    }

    #[test]
    fn a_way_up_ends_at_the_layers_root() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        bench.ok(Stream::new()
            .dir("a", 0o755)
            .file("../secret", b"1")
            .file("a/../../outside/x", b"2")
            .file("a/b/../c", b"3")
            .symlink("up", "../outside")
            // Cleaned before it is looked up: not the directory above the one that the link leads to.
            .file("up/../d", b"4")
            .file("../../.wh.gone", b"")
            .hard_link("a/e", "none/../../secret")
            .dir("..", 0o777)
            .dir("a/..", 0o777));
        for (name, text) in [
            ("secret", "1"),
            ("outside/x", "2"),
            ("a/c", "3"),
            ("d", "4"),
            ("a/e", "1"),
        ] {
            assert_eq!(bench.text(name), text, "{name}");
        }
        assert!(whiteout(&bench.stat("gone")));
        assert!(!bench.path("a/b").exists() && !bench.path("none").exists());
    }

    #[test]
    fn links_are_followed_inside_the_layer_only() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let up = "../".repeat(30);
        bench.ok(Stream::new()
            .file("/absolute", b"1")
            .symlink("out", &format!("{up}outside"))
            .file("out/a", b"2")
            .symlink("abs", "/outside")
            .file("abs/b", b"3")
            .symlink("passwd", "../secret")
            .file("passwd", b"4")
            .symlink("lib", "usr/lib")
            .dir("usr/lib", 0o755)
            .file("lib/x", b"5")
            .symlink("usr/lib/run", "/run")
            .file("usr/lib/run/y", b"6")
            .hard_link("usr/z", "lib/x"));
        assert_eq!(bench.text("absolute"), "1");
        assert_eq!(
            bench.text("outside/a"),
            "2",
            "30 levels above the root is the root"
        );
        assert_eq!(bench.text("outside/b"), "3");
        assert_eq!(
            bench.text("passwd"),
            "4",
            "the link was replaced, not written through"
        );
        assert!(bench.stat("passwd").file_type().is_file());
        assert_eq!(bench.text("usr/lib/x"), "5");
        assert_eq!(bench.text("run/y"), "6");
        assert_eq!(bench.stat("usr/z").ino(), bench.stat("usr/lib/x").ino());
    }

    #[test]
    fn entries_become_what_they_say() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let capability = [
            1, 0, 0, 2, 0x0a, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let unpacked = bench.ok(Stream::new()
            .dir("bin", 0o755)
            .entry(EntryType::Regular, "bin/su", "", 0o4755, b"su")
            .dir("tmp", 0o1777)
            .file("tmp/x", b"x")
            .pax(&[
                ("uid", b"4000000000"),
                ("gid", b"70000"),
                ("mtime", b"4102444800.25"),
                ("SCHILY.xattr.security.capability", &capability),
                ("SCHILY.xattr.user.a", b"1\n2=3"),
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.security.selinux", b"x"),
            ])
            .file("bin/ping", b"ping")
            .pax(&[("path", "long/".repeat(30).as_bytes())])
            .dir("short", 0o700)
            .device(EntryType::Char, "null", 1, 3)
            .device(EntryType::Block, "disk", 259, 300_000)
            .entry(EntryType::Fifo, "fifo", "", 0o640, b"")
            .symlink("link", "/anything"));
        assert_eq!(bench.stat("bin/su").mode() & 0o7777, 0o4755);
        assert_eq!(bench.stat("tmp").mode() & 0o7777, 0o1777);
        assert_eq!(
            bench.stat("tmp").mtime(),
            1_000_000,
            "not moved by what is in it"
        );
        assert_eq!(bench.stat("bin").mtime(), 1_000_000);
        let ping = bench.stat("bin/ping");
        assert_eq!((ping.uid(), ping.gid()), (4_000_000_000, 70_000));
        let file = File::open(bench.path("bin/ping")).expect("file");
        // In the year 2100, which the standard library cannot say on every board.
        let stat = fstat(&file).expect("stat");
        assert_eq!(
            (stat.st_mtime, stat.st_mtime_nsec),
            (4_102_444_800, 250_000_000)
        );
        let value = |name: &CStr| xattr::read_attribute(file.as_fd(), name).expect("xattr");
        assert_eq!(
            value(c"security.capability").as_deref(),
            Some(&capability[..])
        );
        assert_eq!(value(c"user.a").as_deref(), Some(&b"1\n2=3"[..]));
        assert_eq!(value(c"trusted.overlay.redirect"), None);
        assert_eq!(value(c"security.selinux"), None);
        assert!(bench.stat(&"long/".repeat(30)).is_dir());
        assert_eq!(bench.stat("null").rdev(), makedev(1, 3));
        assert_eq!(bench.stat("disk").rdev(), makedev(259, 300_000));
        assert!(bench.stat("disk").file_type().is_block_device());
        assert!(bench.stat("fifo").file_type().is_fifo());
        assert_eq!(bench.stat("fifo").mode() & 0o7777, 0o640);
        assert_eq!(bench.stat("link").mtime(), 1_000_000);
        assert_eq!(unpacked.size_bytes, 2 + 1 + 4);
    }

    #[test]
    fn later_entries_win() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let unpacked = bench.ok(Stream::new()
            .file("f", b"1")
            .dir("f", 0o755)
            .file("f/in", b"2")
            .dir("d", 0o700)
            .file("d/deep/in", b"3")
            .file("d", b"4")
            .dir("again", 0o700)
            .file("again/kept", b"5")
            .dir("again", 0o750)
            .symlink("s", "again")
            .dir("s", 0o755)
            .file("s/own", b"6")
            .file("twice", b"longer text")
            .file("twice", b"7")
            .file("h", b"8")
            .hard_link("h2", "h")
            .hard_link("h", "h2")
            .hard_link("h", "h"));
        assert_eq!(bench.text("f/in"), "2");
        assert_eq!(bench.text("d"), "4");
        assert_eq!(bench.text("again/kept"), "5");
        assert_eq!(bench.stat("again").mode() & 0o7777, 0o750);
        assert!(
            !bench.path("again/own").exists(),
            "a directory replaces a link"
        );
        assert_eq!(bench.text("s/own"), "6");
        assert_eq!(bench.text("twice"), "7");
        assert_eq!(
            (bench.text("h").as_str(), bench.stat("h").nlink()),
            ("8", 2)
        );
        assert!(unpacked.implied.is_empty(), "d/deep is gone again");
    }

    #[test]
    fn whiteouts_in_overlayfs_form() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let unpacked = bench.ok(Stream::new()
            .dir("etc", 0o755)
            .file("etc/.wh.gone", b"")
            .dir("opaque", 0o755)
            .file("opaque/new", b"1")
            .file("opaque/.wh..wh..opq", b"")
            // A whiteout hides what is below, not its own layer's.
            .file("before", b"2")
            .file(".wh.before", b"")
            .file(".wh.after", b"")
            .file("after", b"3")
            .dir("dir-before", 0o755)
            .file(".wh.dir-before", b"")
            .file(".wh.dir-after", b"")
            .dir("dir-after", 0o755)
            .file(".wh.implied", b"")
            .file("implied/x", b"4")
            .file("gone-before/.wh.x", b"")
            .file(".wh.gone-before", b"")
            .file(".wh.gone-after", b"")
            .file("gone-after/.wh.x", b"")
            .file("file", b"5")
            .file("file/.wh.x", b"")
            .file(".wh..wh.plnk/1", b"aufs"));
        assert!(whiteout(&bench.stat("gone-before")) && whiteout(&bench.stat("gone-after")));
        assert_eq!(bench.text("file"), "5");
        assert!(whiteout(&bench.stat("etc/gone")));
        assert_eq!(bench.stat("etc").mtime(), 1_000_000);
        assert!(bench.opaque("opaque"));
        assert_eq!(bench.text("opaque/new"), "1");
        assert_eq!(bench.text("before"), "2");
        assert_eq!(bench.text("after"), "3");
        assert!(bench.opaque("dir-before") && bench.opaque("dir-after"));
        assert!(bench.opaque("implied"));
        assert!(!unpacked.opaque);
        assert!(
            Bench::new()
                .ok(Stream::new().file(".wh..wh..opq", b""))
                .opaque
        );
    }

    #[test]
    fn overlayfs_own_marks_are_whiteouts() {
        if !is_root() {
            return;
        }
        let mark = |stream: Stream, name| stream.device(EntryType::Char, name, 0, 0);
        let bench = Bench {
            // One for each name that is there at the end, and for what was replaced.
            inodes: 6,
            ..Bench::new()
        };
        let stream = mark(Stream::new().dir("etc", 0o755), "etc/gone");
        let stream = mark(stream.file("before", b"1"), "before");
        let stream = mark(stream, "after").file("after", b"2");
        bench.ok(stream);
        assert!(whiteout(&bench.stat("etc/gone")));
        assert_eq!(bench.stat("etc").mtime(), 1_000_000);
        assert!(whiteout(&bench.stat("before")), "the last entry counts");
        assert_eq!(bench.text("after"), "2");
        // A name that would be another mark with the prefix of one.
        bench.ok(Stream::new().device(EntryType::Char, ".wh.x", 0, 0));
        assert!(whiteout(&bench.stat("x")));
        // One mark may have many names.
        let many = mark(Stream::new().dir("d", 0o755), "d/one");
        bench.ok(many.hard_link("two", "d/one").hard_link("three", "two"));
        assert!(whiteout(&bench.stat("two")) && whiteout(&bench.stat("three")));
        // What was removed has none.
        let gone = Stream::new().file(".wh.one", b"").hard_link("two", "one");
        let error = Bench::new().unpack(&gone.bytes()).expect_err("removed");
        let text = error.problem.to_string();
        assert!(
            text.contains("neither the layer nor those below have"),
            "{text}"
        );
    }

    #[test]
    fn sparse_files() {
        if !is_root() {
            return;
        }
        let want = {
            let mut data = vec![0; 20_000];
            data[8192..8195].copy_from_slice(b"abc");
            data[16_384..16_386].copy_from_slice(b"de");
            data
        };
        let pax_0_1 = Stream::new()
            .pax(&[
                ("GNU.sparse.size", b"20000"),
                ("GNU.sparse.map", b"8192,3,16384,2"),
                ("GNU.sparse.name", b"f"),
            ])
            .file("GNUSparseFile.0/f", b"abcde");
        let mut body = b"2\n8192\n3\n16384\n2\n".to_vec();
        body.resize(512, 0);
        body.extend(b"abcde");
        let pax_1_0 = Stream::new()
            .pax(&[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"f"),
                ("GNU.sparse.realsize", b"20000"),
            ])
            .file("GNUSparseFile.0/f", &body);
        for (name, stream) in [("0.1", pax_0_1), ("1.0", pax_1_0)] {
            let bench = Bench::new();
            let unpacked = bench.ok(stream.file("after", b"x"));
            assert!(fs::read(bench.path("f")).expect("file") == want, "{name}");
            assert_eq!(unpacked.size_bytes, 6, "{name}: holes cost nothing");
        }
        for (name, map) in [
            ("too little data", "0,3,8,1"),
            ("past the end", "19999,5"),
            ("backwards", "8,2,0,3"),
            ("overflow", "18446744073709551615,5"),
            ("odd", "1,2,3"),
        ] {
            let stream = Stream::new()
                .pax(&[
                    ("GNU.sparse.size", b"20000"),
                    ("GNU.sparse.map", map.as_bytes()),
                ])
                .file("f", b"abcde");
            assert!(Bench::new().unpack(&stream.bytes()).is_err(), "{name}");
        }
        // Extents of which each is in order, and that hold no data.
        for (extents, taken) in [(MAX_EXTENTS, true), (MAX_EXTENTS + 1, false)] {
            let map = vec!["0,0"; extents].join(",");
            let stream = Stream::new()
                .pax(&[
                    ("GNU.sparse.size", b"20000"),
                    ("GNU.sparse.map", map.as_bytes()),
                ])
                .file("f", b"");
            let unpacked = Bench::new().unpack(&stream.bytes());
            assert_eq!(unpacked.is_ok(), taken, "{extents}");
        }
    }

    #[test]
    fn limits_hold() {
        if !is_root() {
            return;
        }
        let long_path = "x/".repeat(2100);
        let huge = vec![b'x'; 1024 * 1024];
        let many: Vec<(String, &[u8])> = (0..=MAX_XATTRS)
            .map(|n| (format!("SCHILY.xattr.user.{n}"), &b"1"[..]))
            .collect();
        let many: Vec<(&str, &[u8])> = many.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        for (name, stream, problem) in [
            (
                "long path",
                Stream::new()
                    .pax(&[("path", long_path.as_bytes())])
                    .file("f", b""),
                "longer than 4096",
            ),
            (
                "long name",
                Stream::new().pax(&[("path", &huge[..300])]).file("f", b""),
                "more than 255 bytes in a name",
            ),
            (
                "deep path",
                Stream::new()
                    .pax(&[("path", "x/".repeat(MAX_DEPTH + 2).as_bytes())])
                    .file("f", b""),
                "directories or symbolic links",
            ),
            (
                "endless extended header",
                Stream::new().pax(&[("comment", &huge)]).file("f", b""),
                "extended headers of one entry exceed",
            ),
            (
                "too many attributes",
                Stream::new().pax(&many).file("f", b""),
                "extended attributes",
            ),
            (
                "large attribute",
                Stream::new()
                    .pax(&[("SCHILY.xattr.user.a", &huge[..70_000])])
                    .file("f", b""),
                "bytes in an extended attribute",
            ),
            (
                "owner out of range",
                Stream::new().pax(&[("uid", b"4294967295")]).file("f", b""),
                "out of range",
            ),
            (
                "device out of range",
                Stream::new().device(EntryType::Char, "d", 5000, 1),
                "out of range",
            ),
            (
                "unknown type",
                Stream::new().entry(EntryType::new(b'Z'), "f", "", 0o644, b""),
                "'Z' is not supported",
            ),
            (
                "bad PAX number",
                Stream::new().pax(&[("size", b"-1")]).file("f", b""),
                "not a number",
            ),
        ] {
            let error = Bench::new().unpack(&stream.bytes()).expect_err(name);
            assert!(
                error.problem.to_string().contains(problem),
                "{name}: {}",
                error.problem
            );
        }
    }

    #[test]
    fn endless_headers_end() {
        if !is_root() {
            return;
        }
        // Extended headers one after another, without an entry.
        let mut one = Stream::new().pax(&[("comment", b"x")]).bytes();
        one.truncate(1024);
        let endless = one.repeat(3000);
        let error = Bench::new().unpack(&endless).expect_err("no entry");
        assert!(
            error.problem.to_string().contains("extended headers"),
            "{}",
            error.problem
        );
        // A GNU long name that announces 8 GiB is refused before any of it is read.
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(8 << 30);
        header.set_cksum();
        let error = Bench::new()
            .unpack(header.as_bytes())
            .expect_err("long name");
        assert!(
            error.problem.to_string().contains("extended headers"),
            "{}",
            error.problem
        );
        // Zeros without end after the end mark.
        let mut trailer = Stream::new().file("a", b"1").bytes();
        trailer.resize(trailer.len() + 2 * 1024 * 1024, 0);
        let error = Bench::new().unpack(&trailer).expect_err("trailer");
        assert!(
            error.problem.to_string().contains("after the end"),
            "{}",
            error.problem
        );
    }

    #[test]
    fn bombs_stop_at_what_is_free() {
        if !is_root() {
            return;
        }
        let big = vec![0; 100_000];
        let mut bench = Bench::new();
        bench.bytes = 50_000;
        let error = bench
            .unpack(&Stream::new().file("a", &big).bytes())
            .expect_err("bytes");
        assert!(matches!(
            error.problem,
            ImageProblem::NoSpace { available: 50_000 }
        ));
        let mut bench = Bench::new();
        bench.inodes = 10;
        let mut stream = Stream::new();
        for n in 0..20 {
            stream = stream.dir(&format!("d{n}"), 0o755);
        }
        let error = bench.unpack(&stream.bytes()).expect_err("inodes");
        assert!(matches!(
            error.problem,
            ImageProblem::NoInodes { available: 10 }
        ));
        // Directories that no entry declares count as well.
        let error = bench
            .unpack(&Stream::new().file("a/b/c/d/e/f/g/h/i/j/k/l", b"").bytes())
            .expect_err("implied");
        assert!(matches!(
            error.problem,
            ImageProblem::NoInodes { available: 10 }
        ));
    }

    #[test]
    fn small_files_and_directories_take_whole_blocks() {
        if !is_root() {
            return;
        }
        let files = (0..20).fold(Stream::new(), |s, n| s.file(&format!("f{n}"), b"x"));
        let directories = (0..20).fold(Stream::new(), |s, n| s.dir(&format!("d{n}"), 0o755));
        // Not declared.
        let implied = Stream::new().file(&format!("{}f", "d/".repeat(19)), b"");
        let sparse = Stream::new()
            .pax(&[
                ("GNU.sparse.size", b"2000000"),
                ("GNU.sparse.map", b"8192,3,1600000,2"),
            ])
            .file("f", b"abcde");
        for (name, stream, blocks, inodes) in [
            ("files", files, 20, 20),
            ("directories", directories, 20, 20),
            (
                "a large file",
                Stream::new().file("f", &[7; 100_000]),
                25,
                1,
            ),
            ("implied", implied, 19, 20),
            ("holes", sparse, 2, 1),
            ("a link", Stream::new().symlink("l", "x"), 0, 1),
        ] {
            let needs = blocks * BLOCK_BYTES + inodes * INODE_BYTES;
            let stream = stream.bytes();
            for (bytes, fits) in [(needs, true), (needs - 1, false)] {
                let bench = Bench {
                    bytes,
                    ..Bench::new()
                };
                let unpacked = bench.unpack(&stream);
                assert_eq!(unpacked.is_ok(), fits, "{name}: {bytes}");
                let full =
                    unpacked.is_err_and(|e| matches!(e.problem, ImageProblem::NoSpace { .. }));
                assert_eq!(full, !fits, "{name}: {bytes}");
            }
        }
    }

    #[test]
    fn damaged_streams_are_refused() {
        if !is_root() {
            return;
        }
        let good = Stream::new().file("a", &[1; 5000]).file("b", b"2").bytes();
        let mut checksum = good.clone();
        checksum[0] ^= 1;
        let mut lone_zero = good.clone();
        lone_zero.truncate(512 + 5120);
        lone_zero.extend([0; 512]);
        lone_zero.extend(Stream::new().file("c", b"").bytes());
        for (name, stream, problem) in [
            ("cut in a header", &good[..100], "ends early"),
            ("cut in data", &good[..3000], "ends early"),
            (
                "cut in the second header",
                &good[..512 + 5120 + 10],
                "ends early",
            ),
            ("checksum", &checksum, "checksum"),
            ("lone zero block", &lone_zero, "lone zero block"),
            ("noise", &[b'x'; 2048][..], "damaged"),
        ] {
            let error = Bench::new().unpack(stream).expect_err(name);
            assert!(
                error.problem.to_string().contains(problem),
                "{name}: {}",
                error.problem
            );
        }
    }

    #[test]
    fn a_stream_without_its_last_padding_is_whole() {
        if !is_root() {
            return;
        }
        let bytes = Stream::new().file("a", &[1; 700]).bytes();
        for end in [512 + 700, 512 + 900, 1536, 2048, 2560] {
            let unpacked = Bench::new().unpack(&bytes[..end]);
            assert_eq!(unpacked.expect("whole").size_bytes, 700, "{end}");
        }
    }

    #[test]
    fn cancelling_stops() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let root = File::open(bench.scratch.join("root")).expect("root");
        let mut budget = SpaceBudget {
            bytes: 1 << 30,
            bytes_left: 1 << 30,
            inodes: 100,
            inodes_left: 100,
        };
        let stream = Stream::new().file("a", &[0; 300_000]).bytes();
        let error = unpack(
            &mut &stream[..],
            root.into(),
            None,
            &mut budget,
            &mut |bytes| {
                if bytes > 100_000 {
                    Err(ImageProblem::Cancelled)
                } else {
                    Ok(())
                }
            },
        )
        .expect_err("cancelled");
        assert!(matches!(error.problem, ImageProblem::Cancelled));
    }

    #[test]
    fn removing_a_deep_tree_needs_no_stack() {
        if !is_root() {
            return;
        }
        let bench = Bench::new();
        let deep = "d/".repeat(MAX_DEPTH - 1);
        bench.ok(Stream::new()
            .pax(&[("path", format!("{deep}f").as_bytes())])
            .file("f", b"1"));
        // As little stack as a lane has, and less.
        let root = bench.path("d");
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || {
                let parent = File::open(root.parent().expect("parent")).expect("root");
                tree::remove_tree(parent.as_fd(), b"d").expect("removed");
            })
            .expect("thread")
            .join()
            .expect("no overflow");
        assert!(!Path::new(&bench.path("d")).exists());
    }
}
