//! A file system as a sequence of operations, and what a power cut may leave of them.
//!
//! The rules are weaker than those of any journaling file system, so that what holds here holds on all of them:
//!
//! * What was written to a file, and its mode, owner and attributes, are on disk after `fsync` of the file or `syncfs`.
//! * A name is on disk after `fsync` of its directory or `syncfs`; `fsync` of the file does not bring it. A rename is one
//!   step, brought by `fsync` of the directory that it leads to.
//! * Everything else may be on disk or not, whatever its order, as long as each single name and file goes through states
//!   it has had. The last write may be torn.

use alloc::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, mknod};

use crate::sys::xattr;

/// Number of an inode; the root is 0.
pub(super) type Id = usize;
/// Name of an entry.
pub(super) type Name = Vec<u8>;

/// Type of an inode, with what never changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Dir,
    File,
    Link(Vec<u8>),
    /// A device or pipe: type bits and number.
    Node(u32, u64),
}

/// Permission bits, user, group.
pub(super) type Owner = (u32, u32, u32);

/// An operation on the disk.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Adds a name for an inode, which may be new.
    Enter {
        dir: Id,
        name: Name,
        id: Id,
    },
    /// Removes a name.
    Leave {
        dir: Id,
        name: Name,
        id: Id,
    },
    /// Renames an inode in one step; an inode that had the new name loses it.
    Move {
        dir: Id,
        name: Name,
        to: Id,
        to_name: Name,
        id: Id,
    },
    Write {
        id: Id,
        at: usize,
        data: Vec<u8>,
    },
    Truncate {
        id: Id,
        length: usize,
    },
    Meta {
        id: Id,
        owner: Owner,
    },
    Xattr {
        id: Id,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    /// `fsync`; without metadata: `fdatasync`.
    Sync {
        id: Id,
        metadata: bool,
    },
    SyncAll,
    /// The program told something.
    Mark,
}

impl Op {
    /// The operation in short, without the data, for messages.
    pub(super) fn brief(&self) -> String {
        let text = String::from_utf8_lossy;
        match self {
            Self::Enter { dir, name, id } => format!("enter {dir}/{} = {id}", text(name)),
            Self::Leave { dir, name, id } => format!("leave {dir}/{} = {id}", text(name)),
            Self::Move {
                dir,
                name,
                to,
                to_name,
                id,
            } => format!("move {dir}/{} to {to}/{} = {id}", text(name), text(to_name)),
            Self::Write { id, at, data } => format!("write {} at {at} of {id}", data.len()),
            Self::Truncate { id, length } => format!("truncate {id} to {length}"),
            Self::Meta { id, owner } => format!("owner of {id} {owner:?}"),
            Self::Xattr { id, name, .. } => format!("attribute {} of {id}", text(name)),
            Self::Sync { id, .. } => format!("sync {id}"),
            Self::SyncAll => "sync all".into(),
            Self::Mark => "mark".into(),
        }
    }
}

/// An inode and its names' holder.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) owner: Owner,
    pub(super) entries: BTreeMap<Name, Id>,
    pub(super) data: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Inode {
    pub(super) fn new(kind: Kind, owner: Owner) -> Self {
        Self {
            kind,
            owner,
            entries: BTreeMap::new(),
            data: Vec::new(),
            xattrs: BTreeMap::new(),
        }
    }
}

/// An entry of a tree, for comparing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    pub(super) owner: Owner,
    pub(super) data: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A tree by path, parents first.
pub(super) type Tree = BTreeMap<Name, Shape>;

/// A file system in memory.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) inodes: Vec<Inode>,
}

impl Disk {
    pub(super) fn new(root: Owner) -> Self {
        Self {
            inodes: vec![Inode::new(Kind::Dir, root)],
        }
    }

    /// Makes a disk with the inodes as they were made: without names, data and attributes.
    fn bare(born: &[(Kind, Owner)]) -> Self {
        let inode = |(kind, owner): &(Kind, Owner)| Inode::new(kind.clone(), *owner);
        Self {
            inodes: born.iter().map(inode).collect(),
        }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Enter { dir, name, id } => {
                self.inodes[*dir].entries.insert(name.clone(), *id);
            }
            Op::Leave { dir, name, .. } => {
                self.inodes[*dir].entries.remove(name);
            }
            Op::Move {
                dir,
                name,
                to,
                to_name,
                id,
            } => {
                self.inodes[*dir].entries.remove(name);
                self.inodes[*to].entries.insert(to_name.clone(), *id);
            }
            Op::Write { id, at, data } => {
                let file = &mut self.inodes[*id].data;
                let end = at + data.len();
                file.resize(file.len().max(end), 0);
                file[*at..end].copy_from_slice(data);
            }
            Op::Truncate { id, length } => self.inodes[*id].data.resize(*length, 0),
            Op::Meta { id, owner } => self.inodes[*id].owner = *owner,
            Op::Xattr { id, name, value } => {
                let xattrs = &mut self.inodes[*id].xattrs;
                xattrs.insert(name.clone(), value.clone());
            }
            Op::Sync { .. } | Op::SyncAll | Op::Mark => {}
        }
    }

    /// A path below the root by which an inode can be reached.
    pub(super) fn path_of(&self, wanted: Id) -> Option<Name> {
        let mut todo = vec![(Vec::new(), 0)];
        while let Some((path, id)) = todo.pop() {
            for (name, inner) in &self.inodes[id].entries {
                let path = join(&path, name);
                if *inner == wanted {
                    return Some(path);
                }
                if self.inodes[*inner].kind == Kind::Dir {
                    todo.push((path, *inner));
                }
            }
        }
        None
    }

    /// All entries that can be reached from inode `from`, without itself.
    pub(super) fn tree(&self, from: Id) -> Tree {
        let mut tree = Tree::new();
        let mut todo = vec![(Vec::new(), from)];
        while let Some((path, id)) = todo.pop() {
            for (name, inner) in &self.inodes[id].entries {
                let path = join(&path, name);
                let inode = &self.inodes[*inner];
                let shape = Shape {
                    kind: inode.kind.clone(),
                    owner: inode.owner,
                    data: inode.data.clone(),
                    xattrs: inode.xattrs.clone(),
                };
                if inode.kind == Kind::Dir {
                    todo.push((path.clone(), *inner));
                }
                tree.insert(path, shape);
            }
        }
        tree
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    }
}

/// Writes a tree to a real, empty directory.
pub(super) fn write(tree: &Tree, dir: &Path) -> io::Result<()> {
    for (path, shape) in tree {
        let path = dir.join(std::ffi::OsStr::from_bytes(path));
        let (mode, uid, gid) = shape.owner;
        match &shape.kind {
            Kind::Dir => fs::create_dir(&path)?,
            Kind::File => fs::write(&path, &shape.data)?,
            Kind::Link(to) => {
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(to), &path)?;
            }
            Kind::Node(kind, device) => {
                let kind = SFlag::from_bits_truncate(*kind);
                mknod(&path, kind, Mode::empty(), *device)?;
            }
        }
        std::os::unix::fs::lchown(&path, Some(uid), Some(gid))?;
        if !matches!(shape.kind, Kind::Link(_)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        for (name, value) in &shape.xattrs {
            let text = |bytes: &[u8]| std::ffi::CString::new(bytes).map_err(io::Error::from);
            xattr::set_on_link(&text(path.as_os_str().as_bytes())?, &text(name)?, value)?;
        }
    }
    Ok(())
}

/// Reads a real directory.
pub(super) fn read(dir: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut todo = vec![(Vec::new(), dir.to_owned())];
    while let Some((path, dir)) = todo.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let path = join(&path, entry.file_name().as_bytes());
            let full = entry.path();
            let shape = shape(&full)?;
            if shape.kind == Kind::Dir {
                todo.push((path.clone(), full));
            }
            tree.insert(path, shape);
        }
    }
    Ok(tree)
}

/// Type of a real inode.
pub(super) fn kind(path: &Path, stat: &fs::Metadata) -> io::Result<Kind> {
    let is = stat.file_type();
    Ok(if is.is_dir() {
        Kind::Dir
    } else if is.is_file() {
        Kind::File
    } else if is.is_symlink() {
        Kind::Link(fs::read_link(path)?.into_os_string().into_vec())
    } else {
        assert!(is.is_char_device() || is.is_block_device() || is.is_fifo());
        Kind::Node(stat.mode() & SFlag::S_IFMT.bits(), stat.rdev())
    })
}

/// Mode, user and group of a real inode. The mode of a symbolic link means nothing.
pub(super) fn owner(stat: &fs::Metadata) -> Owner {
    let mode = if stat.file_type().is_symlink() {
        0o777
    } else {
        stat.mode() & 0o7777
    };
    (mode, stat.uid(), stat.gid())
}

fn shape(path: &Path) -> io::Result<Shape> {
    let stat = fs::symlink_metadata(path)?;
    let kind = kind(path, &stat)?;
    let mut xattrs = BTreeMap::new();
    let mut data = Vec::new();
    if matches!(kind, Kind::Dir | Kind::File) {
        let file = fs::File::open(path)?;
        let file = std::os::fd::AsFd::as_fd(&file);
        for name in xattr::list_attribute_names(file)?.split_inclusive(|&b| b == 0) {
            let name = core::ffi::CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
            // Attributes that a security module sets by itself are not the store's doing.
            if name.to_bytes().starts_with(b"trusted.")
                && let Some(value) = xattr::read_attribute(file, name)?
            {
                xattrs.insert(name.to_bytes().to_vec(), value);
            }
        }
        if kind == Kind::File {
            data = fs::read(path)?;
        }
    }
    Ok(Shape {
        kind,
        owner: owner(&stat),
        data,
        xattrs,
    })
}

/// Effect of a cut on the operations that no sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// All operations are on disk.
    Nothing,
    /// All are, but for the second half of the last write.
    Torn,
    /// None is.
    Unsynced,
    /// None is, but for the very last one.
    AllButLast,
    /// Names are, data are not.
    Data,
    /// Names are and lengths are, data are zeros.
    Zeros,
    /// All are, but for this one.
    Without(usize),
    /// A part of them is, drawn by this seed.
    Some(u64),
}

/// A recorded run.
pub(super) struct Log {
    pub(super) ops: Vec<Op>,
    /// Type and owner of each inode when it was made.
    pub(super) born: Vec<(Kind, Owner)>,
}

impl Log {
    /// The last operations before the `n`-th that no sync covers, at most `most`.
    pub(super) fn unsynced(&self, n: usize, most: usize) -> Vec<usize> {
        let durable = durable(&self.ops[..n]);
        let unsynced = (0..n).rev().filter(|&at| !durable[at]);
        unsynced.take(most).collect()
    }

    /// The disk after a power cut behind the first `n` operations.
    pub(super) fn after(&self, n: usize, cut: Cut) -> Disk {
        let ops = &self.ops[..n];
        let durable = durable(ops);
        let mut disk = Disk::bare(&self.born);
        let mut dice = match cut {
            Cut::Some(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            _ => 1,
        };
        let last_write = ops.iter().rposition(|op| matches!(op, Op::Write { .. }));
        // Names and inodes that a dropped operation was about: later ones about them are dropped too.
        let mut lost = BTreeSet::new();
        for (at, op) in ops.iter().enumerate() {
            if durable[at] {
                disk.apply(op);
                continue;
            }
            let data = matches!(op, Op::Write { .. } | Op::Truncate { .. });
            let kept = match cut {
                Cut::Nothing | Cut::Torn | Cut::Zeros => true,
                Cut::Unsynced => false,
                Cut::AllButLast => at + 1 == n,
                Cut::Data => !data,
                Cut::Without(lost) => at != lost,
                Cut::Some(_) => {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    dice & 1 == 1
                }
            };
            let keys = keys(op);
            if !kept || keys.iter().any(|key| lost.contains(key)) {
                lost.extend(keys);
                continue;
            }
            match op {
                Op::Write {
                    id,
                    at: place,
                    data,
                } if cut == Cut::Zeros => disk.apply(&Op::Write {
                    id: *id,
                    at: *place,
                    data: vec![0; data.len()],
                }),
                Op::Write {
                    id,
                    at: place,
                    data,
                } if cut == Cut::Torn && last_write == Some(at) => {
                    disk.apply(&Op::Write {
                        id: *id,
                        at: *place,
                        data: data[..data.len() / 2].to_vec(),
                    });
                }
                op => disk.apply(op),
            }
        }
        disk
    }
}

/// Subject of an operation on names. The operations of one subject go through their states in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Entry(Id, Name),
    Inode(Id),
}

fn keys(op: &Op) -> Vec<Key> {
    match op {
        Op::Enter { dir, name, id } | Op::Leave { dir, name, id } => {
            vec![Key::Entry(*dir, name.clone()), Key::Inode(*id)]
        }
        Op::Move {
            dir,
            name,
            to,
            to_name,
            id,
        } => vec![
            Key::Entry(*dir, name.clone()),
            Key::Entry(*to, to_name.clone()),
            Key::Inode(*id),
        ],
        _ => Vec::new(),
    }
}

/// Marks the operations that are on disk whatever happens.
fn durable(ops: &[Op]) -> Vec<bool> {
    let mut durable = vec![false; ops.len()];
    let (mut all, mut files, mut data) = (false, BTreeSet::new(), BTreeSet::new());
    // A name's state that is on disk brings those it came from.
    let mut settled = BTreeSet::new();
    for (at, op) in ops.iter().enumerate().rev() {
        let synced = match op {
            Op::SyncAll => {
                all = true;
                true
            }
            Op::Sync { id, metadata } => {
                data.insert(*id);
                if *metadata {
                    files.insert(*id);
                }
                true
            }
            Op::Mark => true,
            Op::Enter { dir, .. } | Op::Leave { dir, .. } => files.contains(dir),
            Op::Move { to, .. } => files.contains(to),
            Op::Write { id, .. } | Op::Truncate { id, .. } => data.contains(id),
            Op::Meta { id, .. } | Op::Xattr { id, .. } => files.contains(id),
        };
        let keys = keys(op);
        durable[at] = all || synced || keys.iter().any(|key| settled.contains(key));
        if durable[at] {
            settled.extend(keys);
        }
    }
    durable
}
