//! Disk usage of a directory, as du(1) counts it: blocks, a file with several names once.
//!
//! The tree is a pod's: it may change meanwhile, and be as large as the pod likes. No link is followed, no mount point
//! entered, and a lane is never held for longer than one slice of the walk.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{lane::Lane, open};
use crate::api::{cri::FsInfo, stats::DiskUsage};

/// Entries counted before others have their turn on the lane: about ten milliseconds of cached directories.
const SLICE_ENTRIES: usize = 2000;
/// Entries after which a walk is given up: there is no figure then, for half a one would be wrong.
pub const MAX_ENTRIES: usize = 500_000;
/// Longest list of directories that wait to be walked, in bytes of their paths; a wider tree is given up.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Files with several names that are remembered; further ones are counted once for each name.
const MAX_LINKED: usize = 10_000;

/// Reads the size and the free space of the file system that `path` is on.
pub fn read_file_system(path: &Path) -> io::Result<FsInfo> {
    let stat = statvfs(path)?;
    let unit = u64::from(stat.fragment_size());
    Ok(FsInfo {
        capacity_bytes: u64::from(stat.blocks()).saturating_mul(unit),
        available_bytes: u64::from(stat.blocks_available()).saturating_mul(unit),
        free_bytes: u64::from(stat.blocks_free()).saturating_mul(unit),
        inodes: u64::from(stat.files()),
        inodes_free: u64::from(stat.files_available()),
        read_only: stat.flags().contains(FsFlags::ST_RDONLY),
    })
}

/// Walks through `dir` on `lane`, slice by slice.
///
/// # Errors
/// It is not there, cannot be read, or is too large to be counted (see [`is_too_large`]).
pub async fn measure_disk_usage(lane: &Lane, dir: PathBuf) -> io::Result<DiskUsage> {
    let mut walk = UsageWalk::new(dir);
    // Bounded: by the walk, each step of which waits for the lane.
    loop {
        let step = lane.run_job(move || walk.walk_slice().map(|done| (done, walk)));
        let done;
        (done, walk) = step.await?;
        if done {
            return Ok(walk.sum);
        }
    }
}

/// Returns true if a walk was given up because the tree is too large.
pub fn is_too_large(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::FileTooLarge
}

/// A walk that can be interrupted between two directories.
struct UsageWalk {
    root: PathBuf,
    /// Directories to be walked, relative to the root.
    waiting: Vec<PathBuf>,
    waiting_bytes: usize,
    linked: BTreeSet<(u64, u64)>,
    counted: usize,
    sum: DiskUsage,
}

impl UsageWalk {
    fn new(root: PathBuf) -> Self {
        Self {
            root,
            waiting: vec![PathBuf::from(".")],
            waiting_bytes: 1,
            linked: BTreeSet::new(),
            counted: 0,
            sum: DiskUsage::default(),
        }
    }

    /// Goes on for one slice. Returns true if that was the last.
    fn walk_slice(&mut self) -> io::Result<bool> {
        let until = self.counted + SLICE_ENTRIES;
        let root = open::open_dir(&self.root)?;
        let device = self.root.symlink_metadata()?.dev();
        while let Some(path) = self.waiting.pop() {
            self.waiting_bytes -= path.as_os_str().len();
            match self.directory(&root, &path, device) {
                // The directory has gone meanwhile, or is none any more: links are refused.
                Err(e) if path != Path::new(".") && has_gone(&e) => {}
                // Too deep for a path: such a tree must not count as empty.
                Err(e) if e.raw_os_error() == Some(libc::ENAMETOOLONG) => {
                    return Err(self.too_large());
                }
                other => other?,
            }
            if self.counted >= until {
                break;
            }
        }
        Ok(self.waiting.is_empty())
    }

    fn directory(
        &mut self,
        root: &impl std::os::fd::AsFd,
        path: &Path,
        device: u64,
    ) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let dir = open::open_without_symlinks(root, path, flags, 0)?;
        let own = dir.metadata()?;
        if own.dev() != device {
            return Ok(());
        }
        self.count_entry(&own);
        // By descriptor: the path may lead elsewhere by now.
        let listed = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir));
        for entry in std::fs::read_dir(listed)? {
            let entry = entry?;
            if self.counted >= MAX_ENTRIES || self.waiting_bytes >= MAX_WAITING_BYTES {
                return Err(self.too_large());
            }
            let Ok(meta) = entry.metadata() else {
                continue;
            };
            if meta.is_dir() {
                let path = path.join(entry.file_name());
                self.waiting_bytes += path.as_os_str().len();
                self.waiting.push(path);
            } else if meta.nlink() < 2 || self.is_first(&meta) {
                self.count_entry(&meta);
            }
        }
        Ok(())
    }

    fn too_large(&self) -> io::Error {
        let text = format!("{}: too large to be counted", self.root.display());
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    }

    fn is_first(&mut self, meta: &std::fs::Metadata) -> bool {
        let key = (meta.dev(), meta.ino());
        if self.linked.len() >= MAX_LINKED {
            return !self.linked.contains(&key);
        }
        self.linked.insert(key)
    }

    fn count_entry(&mut self, meta: &std::fs::Metadata) {
        /// Unit of `st_blocks`, on every file system.
        const BLOCK: u64 = 512;
        self.counted += 1;
        self.sum += DiskUsage {
            used_bytes: meta.blocks().saturating_mul(BLOCK),
            inodes_used: 1,
        };
    }
}

fn has_gone(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)
    )
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::{Mode, mkdirat};

    use super::*;
    use crate::sys::remove;
    use std::fs;

    #[test]
    fn counts_as_du() {
        // MET-13
        let dir = crate::testing::unused_path("du");
        fs::create_dir_all(dir.join("a/b")).expect("dirs");
        fs::write(dir.join("a/one"), vec![1; 100_000]).expect("file");
        fs::hard_link(dir.join("a/one"), dir.join("a/b/again")).expect("link");
        std::os::unix::fs::symlink("/usr", dir.join("a/b/usr")).expect("symlink");
        for n in 0..30 {
            fs::write(dir.join(format!("a/b/{n}")), "x").expect("file");
        }
        // A hole in a file takes no blocks.
        fs::File::create(dir.join("sparse"))
            .and_then(|f| f.set_len(1 << 40))
            .expect("sparse");
        let usage = smol::block_on(measure_disk_usage(&Lane::without_thread(), dir.clone()))
            .expect("counted");
        let du = |flags: &str| -> u64 {
            let said = std::process::Command::new("du")
                .args(["-s", flags])
                .arg(&dir)
                .output()
                .expect("du");
            let text = String::from_utf8(said.stdout).expect("text");
            text.split_whitespace()
                .next()
                .and_then(|n| n.parse().ok())
                .expect("number")
        };
        assert_eq!(usage.used_bytes, du("-B1"));
        assert_eq!(usage.inodes_used, du("--inodes"));
        assert_eq!(usage.inodes_used, 3 + 1 + 1 + 30 + 1);
        fs::remove_dir_all(&dir).expect("remove");
        let gone =
            smol::block_on(measure_disk_usage(&Lane::without_thread(), dir)).expect_err("gone");
        assert!(has_gone(&gone) && !is_too_large(&gone), "{gone}");
    }

    #[test]
    fn a_walk_goes_on_where_it_was() {
        let dir = crate::testing::unused_path("du-slices");
        for n in 0..5 {
            let below = dir.join(format!("d{n}"));
            fs::create_dir_all(&below).expect("dir");
            for m in 0..SLICE_ENTRIES / 2 {
                fs::write(below.join(m.to_string()), "").expect("file");
            }
        }
        let mut walk = UsageWalk::new(dir.clone());
        let mut slices = 1;
        while !walk.walk_slice().expect("step") {
            slices += 1;
        }
        assert!(slices >= 2, "{slices} slices");
        let files = u64::try_from(5 * (SLICE_ENTRIES / 2)).expect("small");
        assert_eq!(walk.sum.inodes_used, files + 6);
        let mut walk = UsageWalk::new(dir.clone());
        walk.counted = MAX_ENTRIES;
        let refused = walk.walk_slice().expect_err("too much");
        assert!(is_too_large(&refused), "{refused}");
        // A directory that became a link meanwhile is not followed.
        let mut walk = UsageWalk::new(dir.clone());
        walk.waiting.push(PathBuf::from("link"));
        walk.waiting_bytes += "link".len();
        std::os::unix::fs::symlink("/usr", dir.join("link")).expect("symlink");
        while !walk.walk_slice().expect("step") {}
        assert_eq!(walk.sum.inodes_used, files + 7);
        fs::remove_dir_all(dir).expect("remove");
    }

    #[test]
    fn what_no_path_can_say_is_too_large() {
        // EVICT-09
        let dir = crate::testing::unused_path("du-deep");
        fs::create_dir_all(&dir).expect("dir");
        let name = "d".repeat(250);
        let mut at = open::open_dir(&dir).expect("dir");
        let below = libc::PATH_MAX as usize / name.len() + 1;
        for _ in 0..below {
            mkdirat(&at, &*name, Mode::S_IRWXU).expect("made");
            at = open::open_entry(&at, Path::new(&name), OFlag::O_PATH)
                .expect("opened")
                .into();
        }
        let refused = smol::block_on(measure_disk_usage(&Lane::without_thread(), dir.clone()))
            .expect_err("too deep");
        assert!(is_too_large(&refused), "{refused}");
        drop(at);
        remove::remove_path(&dir).expect("removed");

        // The list of waiting directories may not be large either.
        fs::create_dir_all(&dir).expect("dir");
        let at = open::open_dir(&dir).expect("dir");
        let wide = MAX_WAITING_BYTES / name.len() + 2;
        for n in 0..wide {
            mkdirat(&at, &*format!("{n:0250}"), Mode::S_IRWXU).expect("made");
        }
        let refused = smol::block_on(measure_disk_usage(&Lane::without_thread(), dir.clone()))
            .expect_err("too wide");
        assert!(is_too_large(&refused), "{refused}");
        remove::remove_path(&dir).expect("removed");
    }
}
