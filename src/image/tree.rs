//! File system calls below one directory that never leave it.
//!
//! Every directory is reached by `openat2` beneath the root without following any symbolic link; links inside a layer
//! are resolved here, step by step, with the layer's root as `/`. So no entry of a layer can reach other files of the
//! machine, whatever the order of entries. See `openat2(2)`.

use alloc::collections::VecDeque;
use core::ffi::CStr;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::stat::{
    FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, makedev, mkdirat,
    mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::below::{self, LowerEntry, LowerLayers};
use super::error::ImageProblem;
use crate::sys::xattr;

/// Deepest directory of a layer: bounds the descriptors that removing a tree holds open.
pub const MAX_DEPTH: usize = 200;
/// Longest name of an entry, bytes (`NAME_MAX`).
pub const MAX_NAME_BYTES: usize = 255;
/// Symbolic links followed on the way to one entry, as in the kernel.
pub const MAX_LINKS: usize = 40;
/// Overlayfs's mark on a directory that hides the layers below.
pub(super) const OPAQUE: &CStr = c"trusted.overlay.opaque";

/// A name of a path: neither empty nor `.` nor `..`, without `/` and NUL.
pub(super) type PathComponent = Box<[u8]>;

/// Reason why a path could not be reached.
#[derive(Debug)]
pub(super) enum TreePathError {
    /// The path has a NUL, or leads outside.
    Escape,
    /// More than [`MAX_DEPTH`] directories or [`MAX_LINKS`] links.
    TooDeep,
    /// A name has more than [`MAX_NAME_BYTES`].
    LongName,
    /// A name on the way is no directory.
    NotDirectory,
    /// A name on the way is not there.
    Missing,
    /// More than [`super::below::MAX_LOOKUPS`] look-ups in the layers below.
    TooManyLookups,
    /// The system said no.
    Io(io::Error),
}

impl From<TreePathError> for ImageProblem {
    fn from(why: TreePathError) -> Self {
        match why {
            TreePathError::Escape => Self::Escape,
            TreePathError::TooDeep => Self::Limit {
                what: "directories or symbolic links on a path",
                limit: MAX_DEPTH as u64,
            },
            TreePathError::LongName => Self::Limit {
                what: "bytes in a name",
                limit: MAX_NAME_BYTES as u64,
            },
            TreePathError::NotDirectory => {
                Self::Damaged("a name on the path is not a directory".into())
            }
            TreePathError::Missing => Self::Damaged("a directory on the path is missing".into()),
            TreePathError::TooManyLookups => Self::Limit {
                what: "look-ups in the layers below",
                limit: below::MAX_LOOKUPS,
            },
            TreePathError::Io(error) => Self::write_error("reach its directory")(error),
        }
    }
}

impl From<Errno> for TreePathError {
    fn from(errno: Errno) -> Self {
        match errno {
            // EXDEV is openat2's word for a way out.
            Errno::EXDEV => Self::Escape,
            Errno::ENOENT => Self::Missing,
            Errno::ENOTDIR => Self::NotDirectory,
            Errno::ELOOP => Self::TooDeep,
            errno => Self::Io(errno.into()),
        }
    }
}

/// Cuts a path of a layer into names. A leading `/` stands for the layer's root, `.` and `//` for nothing. `..` takes the name
/// before it away, whatever that is: above the root is the root.
///
/// Source: containerd `pkg/archive/tar.go`, which cleans the names of entries like this.
pub(super) fn split_path(path: &[u8]) -> Result<Vec<PathComponent>, TreePathError> {
    let mut names: Vec<PathComponent> = Vec::new();
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            part if part.contains(&0) => return Err(TreePathError::Escape),
            part if part.len() > MAX_NAME_BYTES => return Err(TreePathError::LongName),
            part => names.push(part.into()),
        }
    }
    if names.len() > MAX_DEPTH {
        return Err(TreePathError::TooDeep);
    }
    Ok(names)
}

/// Action where a directory on the way is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingDirAction {
    /// Make it, 0755, and report it. A name that the layer removes becomes an opaque directory.
    Make,
    /// Make it as well, but leave removed what the layer removes: for whiteouts.
    MakeForWhiteout,
    /// Give up.
    Fail,
}

/// A directory that was reached.
pub(super) struct ReachedDirectory {
    /// Open for reading.
    pub(super) dir: OwnedFd,
    /// Path of the directory, without links.
    pub(super) real: Vec<PathComponent>,
    /// Directories made on the way, joined with `/`, real paths from the root.
    pub(super) made: Vec<Vec<u8>>,
}

/// Opens the directory `path` below `root`, following links with `root` as `/`. Where directories may be made, links and
/// directories of the layers `below` count: those are followed, these made with their metadata.
pub(super) fn reach_directory(
    root: BorrowedFd<'_>,
    path: &[PathComponent],
    absent: MissingDirAction,
    below: Option<&mut LowerLayers>,
) -> Result<ReachedDirectory, TreePathError> {
    match open_beneath(root, path) {
        Ok(dir) => Ok(ReachedDirectory {
            dir,
            real: path.to_vec(),
            made: Vec::new(),
        }),
        Err(Errno::ELOOP | Errno::ENOTDIR) => walk_path(root, path, absent, below),
        Err(Errno::ENOENT) if absent != MissingDirAction::Fail => {
            walk_path(root, path, absent, below)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory by a path without links.
pub(super) fn open_beneath(root: BorrowedFd<'_>, path: &[PathComponent]) -> Result<OwnedFd, Errno> {
    let joined = if path.is_empty() {
        b".".to_vec()
    } else {
        path.join(&b'/')
    };
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    loop {
        match openat2(root, joined.as_slice(), how) {
            // A rename elsewhere raced with the check: the kernel asks to try again.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            result => return result,
        }
    }
}

/// The slow way: name by name.
fn walk_path(
    root: BorrowedFd<'_>,
    path: &[PathComponent],
    absent: MissingDirAction,
    mut below: Option<&mut LowerLayers>,
) -> Result<ReachedDirectory, TreePathError> {
    let mut todo: VecDeque<PathComponent> = path.iter().cloned().collect();
    // Real directories only: the way that `open_beneath` can open.
    let mut real: Vec<PathComponent> = Vec::new();
    let mut dir = open_beneath(root, &real)?;
    let mut links = 0;
    let mut made = Vec::new();
    while let Some(name) = todo.pop_front() {
        if &*name == b".." {
            // Above the root is the root.
            real.pop();
            dir = open_beneath(root, &real)?;
            continue;
        }
        // Where a link was found: in the layer itself or in one below.
        let mut lower = None;
        let kind = match stat_entry(dir.as_fd(), &name) {
            Ok(stat) if is_whiteout(&stat) && absent == MissingDirAction::Make => {
                // Removed from the layers below, and now there is something in it: a new, opaque directory.
                unlinkat(&dir, &*name, UnlinkatFlags::NoRemoveDir)?;
                let fresh = make_dir(dir.as_fd(), &name)?;
                xattr::set_attribute(fresh.as_fd(), OPAQUE, b"y").map_err(TreePathError::Io)?;
                SFlag::S_IFDIR
            }
            Ok(stat) => file_type(&stat),
            Err(Errno::ENOENT) if absent != MissingDirAction::Fail => {
                if real.len() >= MAX_DEPTH {
                    return Err(TreePathError::TooDeep);
                }
                let found = match &mut below {
                    Some(below) => below.find_entry(root, &real, &name)?,
                    None => LowerEntry::Nothing,
                };
                match found {
                    LowerEntry::Other(from, stat) if file_type(&stat) == SFlag::S_IFLNK => {
                        lower = Some(from);
                        SFlag::S_IFLNK
                    }
                    found => {
                        let fresh = make_dir(dir.as_fd(), &name)?;
                        if let LowerEntry::Directory(from, stat) = found {
                            below::copy_metadata(from.as_fd(), &stat, fresh.as_fd())
                                .map_err(|problem| TreePathError::Io(io::Error::other(problem)))?;
                        }
                        let mut path = real.join(&b'/');
                        if !path.is_empty() {
                            path.push(b'/');
                        }
                        path.extend_from_slice(&name);
                        made.push(path);
                        SFlag::S_IFDIR
                    }
                }
            }
            Err(errno) => return Err(errno.into()),
        };
        if kind == SFlag::S_IFDIR {
            real.push(name);
            if real.len() > MAX_DEPTH {
                return Err(TreePathError::TooDeep);
            }
            dir = open_beneath(root, &real)?;
        } else if kind == SFlag::S_IFLNK {
            links += 1;
            if links > MAX_LINKS {
                return Err(TreePathError::TooDeep);
            }
            let holder = lower
                .as_ref()
                .map_or_else(|| dir.as_fd(), |from| from.as_fd());
            let target = readlinkat(holder, &*name)?.into_vec();
            if target.first() == Some(&b'/') {
                real.clear();
                dir = open_beneath(root, &real)?;
            }
            for part in target.split(|&b| b == b'/').rev() {
                if !matches!(part, b"" | b".") {
                    todo.push_front(part.into());
                }
            }
            if todo.len() > MAX_DEPTH * 2 {
                return Err(TreePathError::TooDeep);
            }
        } else {
            return Err(TreePathError::NotDirectory);
        }
    }
    Ok(ReachedDirectory { dir, real, made })
}

/// Makes a directory 0755 of root without moving the time of its parent, and opens it.
fn make_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, TreePathError> {
    let before = fstat(parent)?;
    mkdirat(parent, name, Mode::from_bits_truncate(0o755))?;
    let dir = open_beneath(parent, &[name.into()])?;
    fchmod(&dir, Mode::from_bits_truncate(0o755))?;
    restore_mtime(parent, &before)?;
    Ok(dir)
}

/// Sets the modification time back to that of `before`.
pub(super) fn restore_mtime(dir: BorrowedFd<'_>, before: &FileStat) -> Result<(), Errno> {
    futimens(
        dir,
        &TimeSpec::UTIME_OMIT,
        &TimeSpec::new(before.st_mtime, before.st_mtime_nsec),
    )
}

/// Sets the modification time of an entry that may be a link.
pub(super) fn set_mtime(parent: BorrowedFd<'_>, name: &[u8], mtime: TimeSpec) -> Result<(), Errno> {
    utimensat(
        parent,
        name,
        &mtime,
        &mtime,
        UtimensatFlags::NoFollowSymlink,
    )
}

/// Looks at an entry itself, never through it.
pub(super) fn stat_entry(parent: BorrowedFd<'_>, name: &[u8]) -> Result<FileStat, Errno> {
    fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// The file type of a stat.
pub(super) fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// Returns true for overlayfs's mark of a removed name: a character device 0:0.
pub(super) fn is_whiteout(stat: &FileStat) -> bool {
    file_type(stat) == SFlag::S_IFCHR && stat.st_rdev == 0
}

/// Makes overlayfs's mark of a removed name.
pub(super) fn make_whiteout(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    mknodat(parent, name, SFlag::S_IFCHR, Mode::empty(), makedev(0, 0))
}

/// Path of an entry through its parent's descriptor, for calls that take paths only.
pub(super) fn path_through_fd(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<CString> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    CString::new(path).map_err(io::Error::from)
}

/// Removes an entry, and everything in it if it is a directory.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {
            clear_directory(open_beneath(parent, &[name.into()])?)?;
            Ok(unlinkat(parent, name, UnlinkatFlags::RemoveDir)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes everything in a directory. No recursion: a lane's stack is small. Follows no link.
pub(super) fn clear_directory(dir: OwnedFd) -> io::Result<()> {
    /// A directory that is being emptied.
    struct RemovalLevel {
        dir: OwnedFd,
        list: OwningIter,
        /// Name of the directory in the level above.
        name: CString,
    }
    fn open_level(dir: OwnedFd, name: CString) -> io::Result<RemovalLevel> {
        let list = Dir::from_fd(dir.try_clone()?)?.into_iter();
        Ok(RemovalLevel { dir, list, name })
    }
    let mut stack = vec![open_level(dir, CString::default())?];
    while let Some(top) = stack.last_mut() {
        let Some(entry) = top.list.next() else {
            if let Some(done) = stack.pop()
                && let Some(above) = stack.last()
            {
                ignore_missing(unlinkat(
                    &above.dir,
                    done.name.as_c_str(),
                    UnlinkatFlags::RemoveDir,
                ))?;
            }
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entry.file_type() != Some(Type::Directory) {
            match ignore_missing(unlinkat(&top.dir, name, UnlinkatFlags::NoRemoveDir)) {
                // A file system that does not tell types.
                Err(Errno::EISDIR | Errno::EPERM) => {}
                result => {
                    result?;
                    continue;
                }
            }
        }
        match ignore_missing(unlinkat(&top.dir, name, UnlinkatFlags::RemoveDir)) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                let inner = open_beneath(top.dir.as_fd(), &[name.to_bytes().into()])?;
                let inner = open_level(inner, name.to_owned())?;
                stack.push(inner);
            }
            result => result?,
        }
    }
    Ok(())
}

/// Takes a missing entry for a removed one.
fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::ENOENT) => Ok(()),
        result => result,
    }
}

/// Returns true if a directory holds nothing but marks of removed names.
pub(super) fn only_whiteouts(dir: OwnedFd) -> io::Result<bool> {
    for entry in Dir::from_fd(dir.try_clone()?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && !is_whiteout(&stat_entry(dir.as_fd(), name)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A path of a layer as text, for messages.
pub(super) fn display_path(path: &[u8]) -> String {
    OsStr::from_bytes(path).to_string_lossy().into_owned()
}
