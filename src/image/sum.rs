//! Sums of a layer as it was unpacked: three numbers that tell later whether it has changed.
//!
//! A diff id cannot be computed from an unpacked tree, and a list of all files would take megabytes. So the layer's
//! record keeps sums, which need neither order nor memory: one over the entries (paths, types, modes, owners,
//! attributes, sizes), one over the contents of the files. They say that a layer is damaged, not which of its files is.
//! Times are left out. Sums protect against disks, not against people: who can change a layer can change its record.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use nix::dir::{Dir, OwningIter};
use nix::fcntl::{OFlag, PosixFadviseAdvice, openat, posix_fadvise, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::compress::read_up_to;
use super::error::{ImageProblem, LayerError};
use super::tree;
use crate::api::order::OrderExt as _;
use crate::sys::xattr;

/// Files are summed in pieces of so many bytes, from their beginning.
pub(super) const PIECE_BYTES: usize = 64 * 1024;
/// Attributes that the machine sets by itself.
const OWN_XATTRS: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];

/// Sum of a layer, kept in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerSum {
    /// Entries below its root.
    pub entries: u64,
    /// Sum over the entries, without the contents of files: 32 hex digits.
    pub tree: String,
    /// Sum over the contents of files: 16 hex digits.
    pub content: String,
}

impl LayerSum {
    /// Returns the first difference, in words; `None` if there is none.
    #[must_use]
    pub fn first_difference(&self, found: &Self) -> Option<String> {
        if self.entries != found.entries {
            return Some(format!(
                "it has {} files and directories, {} were unpacked",
                found.entries, self.entries
            ));
        }
        if self.tree != found.tree {
            return Some(
                "names, types, modes, owners, attributes or sizes are not those that were unpacked"
                    .into(),
            );
        }
        (self.content != found.content)
            .then(|| "what is in its files is not what was unpacked".into())
    }
}

/// The sum over the contents of files, in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ContentSum(u64);

impl ContentSum {
    /// Adds the piece of a file that begins at `index` times [`PIECE_BYTES`]. Zeros add nothing, so that holes need not
    /// be read.
    pub(super) fn add_piece(&mut self, index: u64, data: &[u8]) {
        if data.iter().all(|&b| b == 0) {
            return;
        }
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let mut mixed = u64::from(crc.sum()) | (data.len() as u64) << 32;
        mixed ^= index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The last steps of splitmix64: every bit of the sum depends on every bit of the piece.
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = self.0.wrapping_add(mixed ^ (mixed >> 31));
    }
}

/// Sums up the layer whose root is `root`. Its files are read only if they were not summed while they were written.
///
/// Errors: an entry that cannot be read, with its path.
pub(super) fn compute_layer_sum(
    root: OwnedFd,
    content: Option<ContentSum>,
) -> Result<LayerSum, LayerError> {
    let mut walk = LayerWalk {
        entries: 0,
        tree: 0,
        content: content.unwrap_or_default(),
        buffer: vec![0; if content.is_none() { PIECE_BYTES } else { 0 }],
        linked: BTreeSet::new(),
    };
    walk_layer(root, &mut |dir, name, path| walk.add_entry(dir, name, path))?;
    Ok(LayerSum {
        entries: walk.entries,
        tree: format!("{:032x}", walk.tree),
        content: format!("{:016x}", walk.content.0),
    })
}

struct LayerWalk {
    entries: u64,
    tree: u128,
    content: ContentSum,
    /// Empty: files are not read.
    buffer: Vec<u8>,
    /// Files with several names that were read.
    linked: BTreeSet<u64>,
}

/// A directory that is being gone through.
struct WalkLevel {
    dir: OwnedFd,
    list: OwningIter,
    /// Length of its path.
    path: usize,
}

/// Visitor of the entries of a layer: its directory, its name and its path. Returns the directory to go into, if the entry
/// is one.
type EntryVisitor<'a> =
    &'a mut dyn FnMut(BorrowedFd<'_>, &[u8], &[u8]) -> io::Result<Option<OwnedFd>>;

/// Visits all entries below `root`, directories before what is in them. Follows no link.
///
/// No recursion: a lane's stack is small.
pub(super) fn walk_layer(root: OwnedFd, visit: EntryVisitor<'_>) -> Result<(), LayerError> {
    let mut path = Vec::new();
    let at = |path: &[u8], error: io::Error| LayerError {
        entry: Some(tree::display_path(path)),
        problem: ImageProblem::Read(error),
    };
    let mut levels = vec![open_level(root, 0).map_err(|e| at(b"", e))?];
    while let Some(top) = levels.last_mut() {
        path.truncate(top.path);
        let Some(entry) = top.list.next() else {
            levels.pop();
            continue;
        };
        let entry = entry.map_err(|e| at(&path, e.into()))?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let inner = visit(top.dir.as_fd(), name, &path).map_err(|e| at(&path, e))?;
        if let Some(inner) = inner {
            levels.push(open_level(inner, path.len()).map_err(|e| at(&path, e))?);
        }
    }
    Ok(())
}

impl LayerWalk {
    /// Adds one entry; a directory is returned.
    fn add_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
    ) -> io::Result<Option<OwnedFd>> {
        let stat = tree::stat_entry(dir, name)?;
        let kind = tree::file_type(&stat);
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(path);
        let mode = if kind == SFlag::S_IFLNK {
            stat.st_mode | 0o777
        } else {
            stat.st_mode
        };
        add(&u64::from(mode).to_le_bytes());
        add(&u64::from(stat.st_uid).to_le_bytes());
        add(&u64::from(stat.st_gid).to_le_bytes());
        match kind {
            SFlag::S_IFREG => add(&stat.st_size.to_le_bytes()),
            SFlag::S_IFLNK => {
                use std::os::unix::ffi::OsStrExt as _;
                add(readlinkat(dir, name)?.as_bytes());
            }
            SFlag::S_IFCHR | SFlag::S_IFBLK => {
                let device: u64 = stat.st_rdev;
                add(&device.to_le_bytes());
            }
            _ => {}
        }
        for (name, value) in read_sorted_xattrs(dir, name)? {
            add(&name);
            add(&value);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (half, _) = digest.split_first_chunk().expect("32 bytes");
        self.tree = self.tree.wrapping_add(u128::from_le_bytes(*half));
        self.entries += 1;
        match kind {
            SFlag::S_IFDIR => Ok(Some(tree::open_beneath(dir, &[name.into()])?)),
            SFlag::S_IFREG => self.add_file_content(dir, name, &stat).map(|()| None),
            _ => Ok(None),
        }
    }

    fn add_file_content(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        stat: &FileStat,
    ) -> io::Result<()> {
        if self.buffer.is_empty() || stat.st_size == 0 {
            return Ok(());
        }
        if stat.st_nlink > 1 && !self.linked.insert(stat.st_ino) {
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(dir, name, flags, Mode::empty())?);
        // Read from the disk, not from the kernel's cache; and no other page is to leave the cache for this.
        let forget = |file: &File| {
            let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        };
        forget(&file);
        let mut at = 0;
        while let Some(data) = next_data(&file, at)? {
            let index = data / PIECE_BYTES as u64;
            file.seek(SeekFrom::Start(index * PIECE_BYTES as u64))?;
            let n = read_up_to(&mut file, &mut self.buffer)?;
            self.content.add_piece(index, &self.buffer[..n]);
            at = (index + 1) * PIECE_BYTES as u64;
        }
        forget(&file);
        Ok(())
    }
}

/// Finds the first data of a file at `at` or behind; `None`: there are no more. Source: lseek(2).
fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    use nix::unistd::{Whence, lseek};
    let Ok(offset) = at.try_into() else {
        return Ok(None);
    };
    match lseek(file, offset, Whence::SeekData) {
        Ok(found) => Ok(u64::try_from(found).ok()),
        Err(nix::Error::ENXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Attributes of an entry, sorted, without those of the machine.
pub(super) fn read_sorted_xattrs(
    dir: BorrowedFd<'_>,
    name: &[u8],
) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path: CString = tree::path_through_fd(dir, name)?;
    let mut found = Vec::new();
    for name in xattr::names_on_link(&path)?.split_inclusive(|&b| b == 0) {
        let name = core::ffi::CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
        if !OWN_XATTRS.contains(&name.to_bytes())
            && let Some(value) = xattr::read_on_link(&path, name)?
        {
            found.push((name.to_bytes().to_vec(), value));
        }
    }
    found.stable_sort();
    Ok(found)
}

fn open_level(dir: OwnedFd, path: usize) -> io::Result<WalkLevel> {
    let list = Dir::from_fd(dir.try_clone()?)?.into_iter();
    Ok(WalkLevel { dir, list, path })
}
