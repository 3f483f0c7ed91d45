//! Unpacks one layer into a directory of its own, in overlayfs's form.
//!
//! A layer is unpacked without the layers below it, so that it can be shared and so that layers may come in any order.
//! Whiteouts become character devices 0:0, opaque directories get `trusted.overlay.opaque`.
//!
//! **Leaning.** A layer may write to `etc/x` without declaring `etc`. The directory made for it would hide mode, owner
//! and time of the one below. Such paths are returned in [`Unpacked::implied`]; [`settle`] copies what is below, and
//! the layer is then shared only where the layers below are the same (keyed by chain id, not diff id). Where the name
//! below is a symbolic link to a directory, the import is refused: unpacked alone the layer would hide the link.

use alloc::collections::BTreeSet;
use core::ffi::CStr;
use core::ops::ControlFlow;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, futimens, makedev, mkdirat, mknodat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};

use super::digest::{Digest, Hashing};
use super::error::Problem;
use super::tarball::{Entry, Input, Kind, MAX_XATTRS, Tar};
use super::tree::{self, Absent, Blocked, Name};
use crate::sys::xattr;

/// Entries of one layer. The largest images in use have about 300 000 files.
pub const MAX_ENTRIES: u64 = 1_000_000;
/// Directories that a layer uses without declaring them.
pub const MAX_IMPLIED: usize = 10_000;
/// Bytes after the end mark of a layer's tar stream: writers pad to at most 10 KiB.
pub const MAX_TRAILER_BYTES: u64 = 1024 * 1024;
/// Buffer for file contents, bytes.
const COPY_BYTES: usize = 64 * 1024;
/// Marks a removed name.
const WHITEOUT: &[u8] = b".wh.";
/// Marks a directory whose content below is hidden.
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
/// Other names that start like this are aufs's own.
const AUFS: &[u8] = b".wh..wh.";

/// What may still be written, over all layers of one import.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Bytes at the start.
    pub(super) bytes: u64,
    /// Bytes still free.
    pub(super) bytes_left: u64,
    /// Inodes at the start.
    pub(super) inodes: u64,
    /// Inodes still free.
    pub(super) inodes_left: u64,
}

impl Budget {
    fn take_bytes(&mut self, n: u64) -> Result<(), Problem> {
        self.bytes_left = self.bytes_left.checked_sub(n).ok_or(Problem::NoSpace {
            available: self.bytes,
        })?;
        Ok(())
    }

    fn take_inode(&mut self) -> Result<(), Problem> {
        self.inodes_left = self.inodes_left.checked_sub(1).ok_or(Problem::NoInodes {
            available: self.inodes,
        })?;
        // A file system needs room for a name and its metadata too.
        self.take_bytes(INODE_BYTES)
    }
}

/// Disk space counted for an entry besides its data.
const INODE_BYTES: u64 = 256;

/// A layer that was unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    /// Digest of the uncompressed stream.
    pub(super) diff_id: Digest,
    /// Bytes of its files.
    pub(super) size_bytes: u64,
    /// Directories used but not declared, real paths, sorted: parents before children.
    pub(super) implied: BTreeSet<Vec<u8>>,
    /// The root is opaque.
    pub(super) opaque: bool,
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

/// Hears of the bytes unpacked so far; may stop the work.
pub(super) type OnBytes<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;

/// A stream that is hashed on the way and cannot seek.
struct Stream<'a>(Hashing<&'a mut dyn Read>);

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Input for Stream<'_> {}

/// Unpacks the uncompressed tar stream `input` into the empty directory `root`.
///
/// On error `root` is left half filled: the caller throws it away.
pub(super) fn unpack(
    input: &mut dyn Read,
    root: OwnedFd,
    budget: &mut Budget,
    on_bytes: OnBytes<'_>,
) -> Result<Unpacked, LayerError> {
    let mut stream = Stream(Hashing::new(input, true));
    let mut target = Target {
        root,
        budget,
        on_bytes,
        parent: None,
        implied: BTreeSet::new(),
        opaque: false,
        size_bytes: 0,
        buffer: vec![0; COPY_BYTES],
    };
    let mut tar = Tar::new(&mut stream);
    let mut entries = 0;
    let mut last: Option<Vec<u8>> = None;
    loop {
        let entry = match tar.next() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => {
                return Err(LayerError {
                    entry: last.map(|path| format!("after {}", tree::display(&path))),
                    problem: Problem::from_read(error),
                });
            }
        };
        entries += 1;
        let done = if entries > MAX_ENTRIES {
            Err(Problem::Limit {
                what: "entries in a layer",
                limit: MAX_ENTRIES,
            })
        } else {
            target.apply(&entry, &mut tar)
        };
        done.map_err(|problem| LayerError {
            entry: Some(tree::display(&entry.path)),
            problem,
        })?;
        last = Some(entry.path);
    }
    target.leave_parent()?;
    let (implied, opaque, size_bytes) = (target.implied, target.opaque, target.size_bytes);
    // The digest covers what follows the end mark.
    let trailer = io::copy(
        &mut (&mut stream).take(MAX_TRAILER_BYTES + 1),
        &mut io::sink(),
    )
    .map_err(Problem::from_read)?;
    if trailer > MAX_TRAILER_BYTES {
        return Err(LayerError::from(Problem::Limit {
            what: "bytes after the end of a layer",
            limit: MAX_TRAILER_BYTES,
        }));
    }
    let diff_id = stream.0.finish().expect("the stream is hashed");
    Ok(Unpacked {
        diff_id,
        size_bytes,
        implied,
        opaque,
    })
}

/// The directory that entries went into last. Its time is put back when another one is entered, so that times of
/// directories need no list.
struct Parent {
    path: Vec<Name>,
    dir: OwnedFd,
    before: FileStat,
}

struct Target<'a> {
    root: OwnedFd,
    budget: &'a mut Budget,
    on_bytes: OnBytes<'a>,
    parent: Option<Parent>,
    implied: BTreeSet<Vec<u8>>,
    opaque: bool,
    size_bytes: u64,
    buffer: Vec<u8>,
}

impl Target<'_> {
    fn apply(&mut self, entry: &Entry, data: &mut Tar<'_>) -> Result<(), Problem> {
        let mut path = tree::split(&entry.path).map_err(blocked)?;
        let Some(name) = path.pop() else {
            // The root itself: a container's root directory is the upper one, so this one's metadata is never seen.
            return match entry.kind {
                Kind::Dir => Ok(()),
                _ => Err(Problem::Damaged(
                    "the layer's root is not a directory".into(),
                )),
            };
        };
        self.enter(path)?;
        if name.starts_with(WHITEOUT) {
            return self.whiteout(&name);
        }
        let parent = self.parent();
        let present = match tree::entry(parent, &name) {
            Ok(stat) => Some(stat),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(Problem::write("examine it")(errno)),
        };
        let mut opaque = false;
        match &present {
            Some(stat) if entry.kind == Kind::Dir && tree::kind(stat) == SFlag::S_IFDIR => {}
            Some(stat) => {
                opaque = tree::is_whiteout(stat);
                if entry.kind == Kind::HardLink && self.is_own_target(entry, stat)? {
                    return Ok(());
                }
                self.remove(&name)?;
            }
            None => {}
        }
        if (self.on_bytes)(self.size_bytes).is_break() {
            return Err(Problem::Cancelled);
        }
        match entry.kind {
            Kind::Dir => self.directory(entry, &name, opaque),
            Kind::File => self.file(entry, &name, data),
            Kind::HardLink => self.hard_link(entry, &name),
            Kind::Symlink => self.symlink(entry, &name),
            Kind::Char | Kind::Block | Kind::Fifo => self.node(entry, &name),
        }
    }

    fn parent(&self) -> BorrowedFd<'_> {
        self.parent
            .as_ref()
            .map_or_else(|| self.root.as_fd(), |parent| parent.dir.as_fd())
    }

    /// Makes `path` the directory that entries go into.
    fn enter(&mut self, path: Vec<Name>) -> Result<(), Problem> {
        if self.parent.as_ref().is_some_and(|p| p.path == path) {
            return Ok(());
        }
        self.leave_parent()?;
        let reached = tree::reach(self.root.as_fd(), &path, Absent::Make).map_err(blocked)?;
        for made in reached.made {
            self.budget.take_inode()?;
            self.implied.insert(made);
        }
        if self.implied.len() > MAX_IMPLIED {
            return Err(Problem::Limit {
                what: "directories used without being declared",
                limit: MAX_IMPLIED as u64,
            });
        }
        let before = fstat(&reached.dir).map_err(Problem::write("examine its directory"))?;
        self.parent = Some(Parent {
            path,
            dir: reached.dir,
            before,
        });
        Ok(())
    }

    fn leave_parent(&mut self) -> Result<(), Problem> {
        match self.parent.take() {
            Some(parent) => tree::restore_mtime(parent.dir.as_fd(), &parent.before)
                .map_err(Problem::write("set the time of its directory")),
            None => Ok(()),
        }
    }

    /// Removes what an earlier entry of the same layer put here.
    fn remove(&mut self, name: &[u8]) -> Result<(), Problem> {
        tree::remove(self.parent(), name).map_err(Problem::write("replace what was there"))?;
        // It may have been a directory, and what was implied in it is gone.
        if let Ok(real) = self.real_path(name) {
            self.implied.retain(|path| {
                !(path.starts_with(&real) && matches!(path.get(real.len()), None | Some(b'/')))
            });
        }
        Ok(())
    }

    /// Path of an entry in the current directory, links resolved.
    fn real_path(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        use std::os::fd::AsRawFd;
        use std::os::unix::ffi::OsStringExt;
        let real = |fd: BorrowedFd<'_>| {
            std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
                .map(|path| path.into_os_string().into_vec())
        };
        let root = real(self.root.as_fd())?;
        let dir = real(self.parent())?;
        let mut path = match dir.strip_prefix(root.as_slice()) {
            Some([b'/', rest @ ..]) => [rest, b"/"].concat(),
            _ => Vec::new(),
        };
        path.extend_from_slice(name);
        Ok(path)
    }

    fn whiteout(&mut self, name: &[u8]) -> Result<(), Problem> {
        if name == OPAQUE_MARK {
            let at_root = self.parent.as_ref().is_none_or(|p| p.path.is_empty());
            if at_root {
                // Overlayfs does not look at the mark on a root: the layers below are left out instead.
                self.opaque = true;
                return Ok(());
            }
            return xattr::set(self.parent(), tree::OPAQUE, b"y")
                .map_err(Problem::write("mark the directory opaque"));
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Problem::Damaged("the whiteout names nothing".into()));
        }
        match tree::entry(self.parent(), hidden) {
            // A whiteout hides what is below, never what its own layer has. A file hides it anyway.
            Ok(stat) if tree::kind(&stat) == SFlag::S_IFDIR => {
                let dir = tree::beneath(self.parent(), &[hidden.into()])
                    .map_err(Problem::write("open the directory"))?;
                xattr::set(dir.as_fd(), tree::OPAQUE, b"y")
                    .map_err(Problem::write("mark the directory opaque"))
            }
            Ok(_) => Ok(()),
            Err(Errno::ENOENT) => {
                self.budget.take_inode()?;
                tree::make_whiteout(self.parent(), hidden)
                    .map_err(Problem::write("make the whiteout"))
            }
            Err(errno) => Err(Problem::write("examine it")(errno)),
        }
    }

    fn directory(&mut self, entry: &Entry, name: &[u8], opaque: bool) -> Result<(), Problem> {
        match mkdirat(self.parent(), name, Mode::from_bits_truncate(0o700)) {
            Ok(()) => self.budget.take_inode()?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(Problem::write("make the directory")(errno)),
        }
        let dir = tree::beneath(self.parent(), &[name.into()])
            .map_err(Problem::write("open the directory"))?;
        if !self.implied.is_empty()
            && let Ok(real) = self.real_path(name)
        {
            self.implied.remove(&real);
        }
        if opaque {
            xattr::set(dir.as_fd(), tree::OPAQUE, b"y")
                .map_err(Problem::write("mark the directory opaque"))?;
        }
        apply_metadata(dir.as_fd(), entry)
    }

    fn file(&mut self, entry: &Entry, name: &[u8], data: &mut Tar<'_>) -> Result<(), Problem> {
        self.budget.take_inode()?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = openat(self.parent(), name, flags, Mode::from_bits_truncate(0o600))
            .map(File::from)
            .map_err(Problem::write("make the file"))?;
        match &entry.sparse {
            None => self.copy(entry.size, data, &mut file)?,
            Some(sparse) => {
                for &(offset, length) in &sparse.extents {
                    file.seek(SeekFrom::Start(offset))
                        .map_err(Problem::write("write the file"))?;
                    self.copy(length, data, &mut file)?;
                }
                file.set_len(sparse.size)
                    .map_err(Problem::write("write the file"))?;
            }
        }
        apply_metadata(file.as_fd(), entry)
    }

    fn copy(&mut self, length: u64, data: &mut Tar<'_>, file: &mut File) -> Result<(), Problem> {
        let mut left = length;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(COPY_BYTES);
            let n = match data.read(&mut self.buffer[..want]) {
                Ok(0) => return Err(Problem::Truncated),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Problem::from_read(e)),
            };
            self.budget.take_bytes(n as u64)?;
            file.write_all(&self.buffer[..n])
                .map_err(Problem::write("write the file"))?;
            left -= n as u64;
            self.size_bytes += n as u64;
            if (self.on_bytes)(self.size_bytes).is_break() {
                return Err(Problem::Cancelled);
            }
        }
        Ok(())
    }

    /// Opens the directory of a hard link's target and tells the target's name.
    fn link_target(&self, entry: &Entry) -> Result<(OwnedFd, Name), Problem> {
        let mut path = tree::split(&entry.link).map_err(blocked)?;
        let name = path
            .pop()
            .ok_or_else(|| Problem::Damaged("hard link to the layer's root".into()))?;
        let dir = tree::reach(self.root.as_fd(), &path, Absent::Fail)
            .map_err(|why| no_target(entry, why))?
            .dir;
        Ok((dir, name))
    }

    /// Whether a hard link entry names the very file that it is.
    fn is_own_target(&self, entry: &Entry, present: &FileStat) -> Result<bool, Problem> {
        let (dir, name) = self.link_target(entry)?;
        Ok(tree::entry(dir.as_fd(), &name)
            .is_ok_and(|stat| stat.st_ino == present.st_ino && stat.st_dev == present.st_dev))
    }

    fn hard_link(&mut self, entry: &Entry, name: &[u8]) -> Result<(), Problem> {
        let (dir, target) = self.link_target(entry)?;
        let stat =
            tree::entry(dir.as_fd(), &target).map_err(|errno| no_target(entry, errno.into()))?;
        if tree::kind(&stat) == SFlag::S_IFDIR || tree::is_whiteout(&stat) {
            return Err(Problem::Damaged(format!(
                "hard link to {:?}, which is no file",
                tree::display(&entry.link)
            )));
        }
        linkat(&dir, &*target, self.parent(), name, AtFlags::empty())
            .map_err(Problem::write("make the hard link"))
    }

    fn symlink(&mut self, entry: &Entry, name: &[u8]) -> Result<(), Problem> {
        self.budget.take_inode()?;
        // The text is the container's business: nothing of ours ever follows it out of the layer.
        symlinkat(entry.link.as_slice(), self.parent(), name)
            .map_err(Problem::write("make the symbolic link"))?;
        self.own(entry, name)
    }

    fn node(&mut self, entry: &Entry, name: &[u8]) -> Result<(), Problem> {
        self.budget.take_inode()?;
        let (kind, device) = match entry.kind {
            Kind::Fifo => (SFlag::S_IFIFO, 0),
            kind => {
                let (major, minor) = entry.device;
                // What a dev_t of Linux holds.
                if major >= 1 << 12 || minor >= 1 << 20 {
                    return Err(Problem::Damaged(format!(
                        "device {major}:{minor} is out of range"
                    )));
                }
                if kind == Kind::Block {
                    (SFlag::S_IFBLK, makedev(major, minor))
                } else if (major, minor) == (0, 0) {
                    return Err(Problem::Unsupported(
                        "character device 0:0 is overlayfs's own mark".into(),
                    ));
                } else {
                    (SFlag::S_IFCHR, makedev(major, minor))
                }
            }
        };
        mknodat(self.parent(), name, kind, Mode::empty(), device)
            .map_err(Problem::write("make the device node"))?;
        self.own(entry, name)
    }

    /// Owner, attributes, mode and time of what cannot be opened.
    fn own(&self, entry: &Entry, name: &[u8]) -> Result<(), Problem> {
        let parent = self.parent();
        let (uid, gid) = owner(entry)?;
        fchownat(
            parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(Problem::write("set the owner"))?;
        let path = tree::through(parent, name).map_err(Problem::write("name it"))?;
        for (key, value) in wanted_xattrs(entry)? {
            ignore_unsupported(xattr::set_on_link(&path, &key, value))?;
        }
        if entry.kind != Kind::Symlink {
            nix::sys::stat::fchmodat(
                parent,
                name,
                Mode::from_bits_truncate(entry.mode),
                // It was made just now and is no link.
                nix::sys::stat::FchmodatFlags::FollowSymlink,
            )
            .map_err(Problem::write("set the mode"))?;
        }
        tree::set_mtime(parent, name, mtime(entry)).map_err(Problem::write("set the time"))
    }
}

/// Owner first: changing it clears set-id bits and capabilities. Time last.
fn apply_metadata(file: BorrowedFd<'_>, entry: &Entry) -> Result<(), Problem> {
    let (uid, gid) = owner(entry)?;
    fchown(file, Some(uid), Some(gid)).map_err(Problem::write("set the owner"))?;
    for (key, value) in wanted_xattrs(entry)? {
        ignore_unsupported(xattr::set(file, &key, value))?;
    }
    fchmod(file, Mode::from_bits_truncate(entry.mode)).map_err(Problem::write("set the mode"))?;
    let mtime = mtime(entry);
    futimens(file, &mtime, &mtime).map_err(Problem::write("set the time"))
}

fn owner(entry: &Entry) -> Result<(Uid, Gid), Problem> {
    let id = |value: u64| {
        u32::try_from(value)
            .ok()
            // All ones means "leave as it is" to the kernel.
            .filter(|&id| id != u32::MAX)
            .ok_or_else(|| Problem::Damaged(format!("owner {value} is out of range")))
    };
    Ok((Uid::from_raw(id(entry.uid)?), Gid::from_raw(id(entry.gid)?)))
}

fn mtime(entry: &Entry) -> TimeSpec {
    let (seconds, nanos) = entry.mtime;
    // Boards with 32-bit time: as late as they can say.
    let seconds = seconds.try_into().unwrap_or(libc::time_t::MAX);
    TimeSpec::new(seconds, i32::try_from(nanos).unwrap_or(0).into())
}

/// Attributes that are taken over. Overlayfs's own would let a layer reach into others, and labels of another machine's
/// security module mean nothing here.
fn wanted_xattrs(entry: &Entry) -> Result<Vec<(CString, &[u8])>, Problem> {
    let mut wanted = Vec::new();
    for (key, value) in entry.xattrs.iter().take(MAX_XATTRS) {
        let taken = key == b"security.capability"
            || (key.starts_with(b"user.") && !key.starts_with(b"user.overlay."))
            || key.starts_with(b"system.posix_acl_");
        if !taken {
            continue;
        }
        if value.len() > xattr::XATTR_MAX_BYTES {
            return Err(Problem::Limit {
                what: "bytes in an extended attribute",
                limit: xattr::XATTR_MAX_BYTES as u64,
            });
        }
        let key = CString::new(key.as_slice())
            .map_err(|_| Problem::Damaged("attribute name has a NUL".into()))?;
        wanted.push((key, value.as_slice()));
    }
    Ok(wanted)
}

/// A file system without `user.*` (older tmpfs) or ACLs, or an entry that cannot have them: the file is good without.
/// Capabilities must not get lost in silence.
fn ignore_unsupported(done: io::Result<()>) -> Result<(), Problem> {
    match done {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPERM)) => {
            log::debug!("an extended attribute was left out: {e}");
            Ok(())
        }
        done => done.map_err(Problem::write("set an extended attribute")),
    }
}

fn blocked(why: Blocked) -> Problem {
    match why {
        Blocked::Escape => Problem::Escape,
        Blocked::TooDeep => Problem::Limit {
            what: "directories or symbolic links on a path",
            limit: tree::MAX_DEPTH as u64,
        },
        Blocked::NotDirectory => Problem::Damaged("a name on the path is not a directory".into()),
        Blocked::Missing => Problem::Damaged("a directory on the path is missing".into()),
        Blocked::Io(error) => Problem::write("reach its directory")(error),
    }
}

fn no_target(entry: &Entry, why: Blocked) -> Problem {
    match why {
        Blocked::Missing | Blocked::NotDirectory => Problem::Damaged(format!(
            "hard link to {:?}, which is not in the layer",
            tree::display(&entry.link)
        )),
        why => blocked(why),
    }
}

/// Gives directories that a layer implies the metadata of those below. `below` has the layers under it, nearest first.
///
/// Errors: [`Problem::Unsupported`] if below there is a symbolic link in the place of an implied directory.
pub(super) fn settle(
    layer: BorrowedFd<'_>,
    implied: &BTreeSet<Vec<u8>>,
    below: &[OwnedFd],
) -> Result<(), LayerError> {
    for path in implied {
        settle_one(layer, path, below).map_err(|problem| LayerError {
            entry: Some(tree::display(path)),
            problem,
        })?;
    }
    Ok(())
}

fn settle_one(layer: BorrowedFd<'_>, path: &[u8], below: &[OwnedFd]) -> Result<(), Problem> {
    let names = tree::split(path).map_err(blocked)?;
    let Some((last, parents)) = names.split_last() else {
        return Ok(());
    };
    for lower in below {
        let dir = match tree::beneath(lower.as_fd(), parents) {
            Ok(dir) => dir,
            Err(Errno::ENOENT) => continue,
            // Hidden from here on down, or a link that was reported at the parent.
            Err(Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err(Problem::write("look into the layers below")(errno)),
        };
        let stat = match tree::entry(dir.as_fd(), last) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) if is_opaque(dir.as_fd())? => return Ok(()),
            Err(Errno::ENOENT) => continue,
            Err(errno) => return Err(Problem::write("look into the layers below")(errno)),
        };
        return match tree::kind(&stat) {
            SFlag::S_IFDIR => {
                let from = tree::beneath(dir.as_fd(), core::slice::from_ref(last))
                    .map_err(Problem::write("look into the layers below"))?;
                let to = tree::beneath(layer, &names)
                    .map_err(Problem::write("open the directory"))?;
                copy_metadata(from.as_fd(), &stat, to.as_fd())
            }
            SFlag::S_IFLNK => Err(Problem::Unsupported(
                "the layer writes through a symbolic link of a lower layer without declaring the directory".into(),
            )),
            // A removed name, or a file that becomes a directory here: nothing to copy.
            _ => Ok(()),
        };
    }
    Ok(())
}

fn is_opaque(dir: BorrowedFd<'_>) -> Result<bool, Problem> {
    xattr::read(dir, tree::OPAQUE)
        .map(|value| value.as_deref() == Some(b"y"))
        .map_err(Problem::write("read an extended attribute"))
}

fn copy_metadata(from: BorrowedFd<'_>, stat: &FileStat, to: BorrowedFd<'_>) -> Result<(), Problem> {
    fchown(
        to,
        Some(Uid::from_raw(stat.st_uid)),
        Some(Gid::from_raw(stat.st_gid)),
    )
    .map_err(Problem::write("set the owner"))?;
    let names = xattr::names(from).map_err(Problem::write("read extended attributes"))?;
    for name in names.split_inclusive(|&b| b == 0) {
        if let Ok(name) = CStr::from_bytes_with_nul(name)
            && !name.to_bytes().starts_with(b"trusted.overlay.")
            && let Ok(Some(value)) = xattr::read(from, name)
        {
            ignore_unsupported(xattr::set(to, name, &value))?;
        }
    }
    fchmod(to, Mode::from_bits_truncate(stat.st_mode & 0o7777))
        .map_err(Problem::write("set the mode"))?;
    tree::restore_mtime(to, stat).map_err(Problem::write("set the time"))
}
