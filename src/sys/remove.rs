//! Deleting a tree that a container may still be writing to, or has made as deep and as full as it liked: by descriptor, never
//! through a symbolic link, never across a mount point.

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
    sys::stat::fstat,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    file::rename_new,
    lane::Lane,
    open::{self, open_entry},
};

/// Directory levels that are descended with one descriptor each; deeper directories are first moved up to the root. A
/// container can nest directories without end, descriptors and stack have one.
const DEPTH_LIMIT: u32 = 32;
/// Names read from one directory before they are deleted and the directory is read again.
const BATCH: usize = 256;
/// Entries deleted before others have their turn on the lane: about as long as [`super::disk_usage`] counts.
const SLICE_ENTRIES: usize = 1000;

/// Deletes the file or tree at `path`; the path of its parent is trusted. Missing is success. Errors as [`remove_entry`].
pub fn remove_path(path: &Path) -> io::Result<()> {
    while !remove_slice_at(path)? {}
    Ok(())
}

/// As [`remove_path`], on `lane`, where others have their turn between two slices. Dropping the future ends it with
/// the slice that runs.
///
/// # Errors
/// As [`remove_entry`].
pub async fn remove_on_lane(lane: &Lane, path: &Path) -> io::Result<()> {
    // Bounded: by the size of the tree, and each step waits for the lane.
    loop {
        let at = path.to_owned();
        if lane.run_job(move || remove_slice_at(&at)).await? {
            return Ok(());
        }
    }
}

fn remove_slice_at(path: &Path) -> io::Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    match open::open_dir(parent) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        parent => remove_slice_of(parent?, name),
    }
}

/// Deletes the file or tree `name` of `dir`. Missing is success.
///
/// # Errors
/// `EXDEV` if `name` or something below it is a mount point: nothing behind that mount was touched. Other errors are
/// those of `unlinkat(2)`. Calling again goes on.
pub fn remove_entry(dir: impl AsFd, name: &OsStr) -> io::Result<()> {
    while !remove_slice_of(&dir, name)? {}
    Ok(())
}

/// Deletes as [`remove_entry`] does, but no more than a slice. Returns true if all of it is gone.
pub fn remove_slice_of(dir: impl AsFd, name: &OsStr) -> io::Result<bool> {
    let dir = dir.as_fd();
    let Some(tree) = unlink_or_open(dir, name)? else {
        return Ok(true);
    };
    let mut slice = RemovalSlice {
        top: tree.as_fd(),
        left: SLICE_ENTRIES,
        moved: 0,
    };
    // Bounded: by the slice. Deep directories are moved up to the root.
    loop {
        let before = slice.moved;
        slice.empty_directory(&tree, 0)?;
        if slice.left == 0 {
            return Ok(false);
        }
        if slice.moved == before {
            break;
        }
    }
    remove_dir(dir, name)?;
    Ok(true)
}

/// Names in the directory behind `fd`, at most [`BATCH`].
fn list_batch(fd: &OwnedFd) -> io::Result<Vec<OsString>> {
    // A descriptor of its own: reading moves the position of the open file.
    read_names(
        open_entry(fd, Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?.into(),
        BATCH,
    )
}

/// At most `limit` names of the directory opened for reading as `dir`, without `.` and `..`, in no order.
pub fn read_names(dir: OwnedFd, limit: usize) -> io::Result<Vec<OsString>> {
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
    match open_entry(dir, Path::new(name), OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
        // Not a directory after all: the refusal to unlink it stands (an immutable file, for example).
        Err(e) if e.raw_os_error() == Some(Errno::ENOTDIR as i32) => Err(Errno::EPERM.into()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(|dir| Some(dir.into())),
    }
}

fn remove_dir(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A turn of deleting below `top`.
struct RemovalSlice<'a> {
    top: BorrowedFd<'a>,
    /// Entries that it may still delete.
    left: usize,
    /// Directories that were moved up to the root.
    moved: u64,
}

impl RemovalSlice<'_> {
    /// Empties `dir`, as far as the slice goes; goes on after an error up to the end of a batch, and returns the first.
    fn empty_directory(&mut self, dir: &OwnedFd, depth: u32) -> io::Result<()> {
        loop {
            let before = self.moved;
            let names = list_batch(dir)?;
            if names.is_empty() {
                return Ok(());
            }
            let mut first_error = None;
            for name in &names {
                if self.left == 0 {
                    break;
                }
                if let Err(e) = self.delete_entry(dir.as_fd(), name, depth) {
                    first_error.get_or_insert(e);
                }
            }
            match first_error {
                Some(e) => return Err(e),
                None if self.left == 0 => return Ok(()),
                // The root gets the moved directories itself: leave them to the next round of the caller.
                None if depth == 0 && self.moved != before => return Ok(()),
                None => {}
            }
        }
    }

    fn delete_entry(&mut self, dir: BorrowedFd<'_>, name: &OsStr, depth: u32) -> io::Result<()> {
        if let Some(child) = unlink_or_open(dir, name)? {
            if depth >= DEPTH_LIMIT {
                self.move_entry_up(dir, name, &child)?;
            } else {
                self.empty_directory(&child, depth + 1)?;
                if self.left == 0 {
                    return Ok(());
                }
                remove_dir(dir, name)?;
            }
        }
        // Only entries that have left their place count: so each slice gets further.
        self.left -= 1;
        Ok(())
    }

    fn move_entry_up(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        child: &OwnedFd,
    ) -> io::Result<()> {
        // No other directory there has this name, unless the container has made it.
        let inode = fstat(child)?.st_ino;
        self.moved += 1;
        for again in 0u64.. {
            let to = format!(".picolet-deep-{inode}-{again}");
            match rename_new(dir, name, self.top, to.as_ref()) {
                Err(Errno::EEXIST) => {}
                Err(Errno::ENOENT) => break,
                done => return Ok(done?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = crate::testing::unused_path(name);
        fs::create_dir_all(&dir).expect("directory");
        dir
    }

    #[test]
    fn trees_go_but_not_what_links_point_to() {
        let scratch = scratch("remove");
        let outside = scratch.join("outside");
        let tree = scratch.join("tree");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "x").unwrap();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink("/nowhere", tree.join("dangling")).unwrap();
        for n in 0..BATCH * 2 + 1 {
            fs::write(tree.join(format!("a/b/{n}")), "").unwrap();
        }
        remove_path(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove_path(&tree).expect("missing is success");
        remove_path(&tree.join("below")).expect("so is a missing parent");
        remove_path(&outside.join("kept")).expect("a file");
        remove_path(&scratch).unwrap();
        assert!(!scratch.exists());
        assert!(remove_path(Path::new("/")).is_err());
    }

    /// Removes a tree too deep for a call, or a descriptor, for each level.
    #[test]
    fn depth_has_no_limit() {
        const DEPTH: usize = 12_000;
        let scratch = scratch("remove-deep");
        let mut at = open::open_dir(&scratch).unwrap();
        for _ in 0..DEPTH {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = open_entry(&at, Path::new("d"), OFlag::O_PATH)
                .unwrap()
                .into();
        }
        drop(at);
        let lane = Lane::start("remove").expect("thread");
        smol::block_on(remove_on_lane(&lane, &scratch)).unwrap();
        assert!(!scratch.exists());
    }

    #[test]
    fn others_have_their_turn() {
        let scratch = scratch("remove-slices");
        for dir in ["a", "b", "c"] {
            fs::create_dir(scratch.join(dir)).unwrap();
            for n in 0..SLICE_ENTRIES - 1 {
                fs::write(scratch.join(dir).join(n.to_string()), "").unwrap();
            }
        }
        let parent = open::open_dir(scratch.parent().unwrap()).unwrap();
        let name = scratch.file_name().unwrap();
        let mut slices = 1;
        while !remove_slice_of(&parent, name).unwrap() {
            slices += 1;
        }
        // Three directories with as many entries as a slice, and the root.
        assert_eq!(slices, 4);
        assert!(!scratch.exists());
    }
}
