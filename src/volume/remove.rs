//! Deleting a tree that a container may still be writing to: by descriptor, never through a symbolic link, never across a
//! mount point.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::OFlag,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::beneath::open_child;
use crate::sys::file::rename_new;

/// Directory levels that are descended with one descriptor each; what lies deeper is first moved up to the root.
/// A container can nest directories without end, descriptors and stack have one.
const DEPTH_LIMIT: u32 = 32;
/// Names read from one directory before they are deleted and the directory is read again.
const BATCH: usize = 256;

/// Deletes entry `name` of `dir`, whatever it is. Missing is success.
///
/// - Errors: EXDEV if `name` or something below it is a mount point: nothing behind that mount was touched. Other errors are
///   those of `unlinkat(2)`. Everything that could be deleted is gone; calling again goes on.
pub(super) fn remove_tree(dir: impl AsFd, name: &OsStr) -> io::Result<()> {
    let dir = dir.as_fd();
    match unlink_or_open(dir, name)? {
        None => Ok(()),
        Some(tree) => {
            remove_children(&tree)?;
            remove_dir(dir, name)
        }
    }
}

/// Deletes what is in `root`, not `root` itself. Errors as [`remove_tree`].
pub(super) fn remove_children(root: &OwnedFd) -> io::Result<()> {
    loop {
        let mut moved = 0;
        empty(root, root.as_fd(), 0, &mut moved)?;
        if moved == 0 {
            return Ok(());
        }
    }
}

/// Names in the directory behind `fd`, at most [`BATCH`].
fn names(fd: &OwnedFd) -> io::Result<Vec<OsString>> {
    // A descriptor of its own: reading moves the position of the open file.
    read_names(
        open_child(fd, Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?,
        BATCH,
    )
}

/// At most `limit` names of the directory opened for reading as `dir`, without `.` and `..`, in no order.
pub(super) fn read_names(dir: OwnedFd, limit: usize) -> io::Result<Vec<OsString>> {
    let mut dir = Dir::from_fd(dir)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
        if names.len() == limit {
            break;
        }
    }
    Ok(names)
}

/// Deletes `name` if it is no directory (or gone), else opens it.
fn unlink_or_open(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(None),
        // Linux says EISDIR for a directory, POSIX (and some filesystems) EPERM.
        Err(Errno::EISDIR | Errno::EPERM) => {}
        // A file that something is mounted on.
        Err(Errno::EBUSY) => return Err(Errno::EXDEV.into()),
        Err(e) => return Err(e.into()),
    }
    match open_child(dir, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
        // Not a directory after all: the refusal to unlink it stands (an immutable file, for example).
        Err(e) if e.raw_os_error() == Some(Errno::ENOTDIR as i32) => Err(Errno::EPERM.into()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

fn remove_dir(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn remove_entry(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    top: BorrowedFd<'_>,
    depth: u32,
    moved: &mut u64,
) -> io::Result<()> {
    let Some(child) = unlink_or_open(dir, name)? else {
        return Ok(());
    };
    if depth >= DEPTH_LIMIT {
        return move_up(dir, name, top, moved);
    }
    empty(&child, top, depth + 1, moved)?;
    remove_dir(dir, name)
}

/// Empties `dir` whose tree's root is `top`; goes on after an error and returns the first.
fn empty(dir: &OwnedFd, top: BorrowedFd<'_>, depth: u32, moved: &mut u64) -> io::Result<()> {
    loop {
        let before = *moved;
        let names = names(dir)?;
        if names.is_empty() {
            return Ok(());
        }
        let mut first_error = None;
        for name in &names {
            if let Err(e) = remove_entry(dir.as_fd(), name, top, depth, moved) {
                first_error.get_or_insert(e);
            }
        }
        match first_error {
            Some(e) => return Err(e),
            // The root gets the moved directories itself: leave them to the next round of the caller.
            None if depth == 0 && *moved != before => return Ok(()),
            None => {}
        }
    }
}

fn move_up(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    top: BorrowedFd<'_>,
    moved: &mut u64,
) -> io::Result<()> {
    loop {
        let to = format!(".picolet-deep-{moved}");
        *moved += 1;
        match rename_new(dir, name, top, to.as_ref()) {
            Err(Errno::EEXIST) => {}
            Err(Errno::ENOENT) => return Ok(()),
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::{super::testing::Scratch, *};
    use crate::volume::beneath;

    #[test]
    fn trees_go_but_not_what_links_point_to() {
        let scratch = Scratch::new();
        let outside = scratch.path().join("outside");
        let tree = scratch.path().join("tree");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink("/nowhere", tree.join("dangling")).unwrap();
        for n in 0..BATCH * 2 + 1 {
            fs::write(tree.join(format!("a/b/{n}")), "").unwrap();
        }
        let dir = beneath::dir(scratch.path()).unwrap();
        remove_tree(&dir, OsStr::new("tree")).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_tree(&dir, OsStr::new("tree")).expect("missing is success");
    }

    #[test]
    fn depth_has_no_limit() {
        let scratch = Scratch::new();
        let dir = beneath::dir(scratch.path()).unwrap();
        nix::sys::stat::mkdirat(&dir, "tree", nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut at = open_child(&dir, Path::new("tree"), OFlag::O_PATH).unwrap();
        for _ in 0..600 {
            nix::sys::stat::mkdirat(&at, "sub-directory", nix::sys::stat::Mode::S_IRWXU).unwrap();
            at = open_child(&at, Path::new("sub-directory"), OFlag::O_PATH).unwrap();
        }
        remove_tree(&dir, OsStr::new("tree")).unwrap();
        assert!(!scratch.path().join("tree").exists());
    }
}
