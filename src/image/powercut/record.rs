//! From the system calls of a process to operations on the file system below one directory.
//!
//! Nothing of the store takes part: what a call did is read from its arguments and from what is there afterwards. A call
//! that is not known here shows when the recorded disk is compared with the real one, which is done at every mark.

use alloc::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::disk::{self, Disk, Id, Inode, Kind, Log, Name, Op, Tree};
use crate::sys::trace::{self, TracedCall};

/// A recorded run, and how the disk looked when the program told something.
pub(super) struct Recorded {
    pub(super) log: Log,
    pub(super) marks: Vec<Mark>,
}

/// A text that the program told, with the disk at that time.
pub(super) struct Mark {
    /// Operations before it.
    pub(super) at: usize,
    pub(super) text: String,
    pub(super) tree: Tree,
}

/// Runs `command` with `task` on its standard input and records what it does below `root`, which is empty. Each write
/// of the program to the file `marks` is a mark.
pub(super) fn record(command: Command, task: &str, root: &Path, marks: &Path) -> Recorded {
    let stat = fs::metadata(root).expect("root");
    let mut recorder = Recorder {
        root: root.to_owned(),
        mark_file: place(&fs::metadata(marks).expect("marks")),
        disk: Disk::new(disk::owner(&stat)),
        known: BTreeMap::from([(place(&stat), 0)]),
        recorded: Recorded {
            log: Log {
                ops: Vec::new(),
                born: vec![(Kind::Dir, disk::owner(&stat))],
            },
            marks: Vec::new(),
        },
    };
    let ended = trace::trace_command(command, task, &mut |call| recorder.returned(call));
    assert!(ended.expect("traced"), "the program failed");
    recorder.recorded
}

/// Device and inode number.
type Place = (u64, u64);

fn place(stat: &fs::Metadata) -> Place {
    (stat.dev(), stat.ino())
}

struct Recorder {
    root: PathBuf,
    mark_file: Place,
    disk: Disk,
    /// Inodes below the root that have a name, or had one.
    known: BTreeMap<Place, Id>,
    recorded: Recorded,
}

/// Place that a path leads to.
struct Spot {
    dir: Id,
    name: Name,
    /// Path for this process.
    path: PathBuf,
}

impl Recorder {
    fn returned(&mut self, call: &TracedCall) {
        if call.result < 0 {
            return;
        }
        let [a, b, c, d, ..] = call.args;
        let here = libc::AT_FDCWD.cast_unsigned().into();
        match libc::c_long::try_from(call.number).expect("a system call") {
            libc::SYS_openat | libc::SYS_openat2 => self.opened(call, a, b, c),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => self.opened(call, here, a, b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir | libc::SYS_mknod => self.made(call, here, a),
            libc::SYS_mkdirat | libc::SYS_mknodat => self.made(call, a, b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => self.made(call, here, b),
            libc::SYS_symlinkat => self.made(call, b, c),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => self.made(call, here, b),
            libc::SYS_linkat => self.made(call, c, d),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink | libc::SYS_rmdir => self.removed(call, here, a),
            libc::SYS_unlinkat => self.removed(call, a, b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => self.renamed(call, (here, a), (here, b)),
            #[cfg(not(target_arch = "riscv64"))]
            libc::SYS_renameat => self.renamed(call, (a, b), (c, d)),
            libc::SYS_renameat2 => {
                assert_eq!(
                    call.args[4] & u64::from(libc::RENAME_EXCHANGE),
                    0,
                    "not known here"
                );
                self.renamed(call, (a, b), (c, d));
            }
            libc::SYS_write | libc::SYS_writev => self.written(call, a, None),
            libc::SYS_pwrite64 | libc::SYS_pwritev => self.written(call, a, Some(d)),
            libc::SYS_copy_file_range => {
                assert!(
                    d == 0 || self.by_descriptor(call, c).is_none(),
                    "not known here"
                );
                self.written(call, c, None);
            }
            libc::SYS_sendfile => self.written(call, a, None),
            libc::SYS_ftruncate => {
                if let Some(id) = self.by_descriptor(call, a) {
                    let length = usize::try_from(b).expect("small");
                    self.push(Op::Truncate { id, length });
                }
            }
            libc::SYS_fchmod | libc::SYS_fchown => {
                if let Some(id) = self.by_descriptor(call, a) {
                    self.owner(id, fs::metadata(descriptor(call, a)));
                }
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod | libc::SYS_chown | libc::SYS_lchown => self.changed(call, here, a),
            libc::SYS_fchmodat | libc::SYS_fchownat => self.changed(call, a, b),
            libc::SYS_fsetxattr => {
                if let Some(id) = self.by_descriptor(call, a) {
                    self.attribute(call, id, b, (c, d));
                }
            }
            libc::SYS_setxattr | libc::SYS_lsetxattr => {
                if let Some(spot) = self.find(call, here, a)
                    && let Some(id) = self.disk.inodes[spot.dir].entries.get(&spot.name)
                {
                    self.attribute(call, *id, b, (c, d));
                }
            }
            libc::SYS_fsync | libc::SYS_fdatasync => {
                if let Some(id) = self.by_descriptor(call, a) {
                    let metadata = call.number == i64::from(libc::SYS_fsync);
                    self.push(Op::Sync { id, metadata });
                }
            }
            libc::SYS_syncfs if self.by_descriptor(call, a).is_some() => self.push(Op::SyncAll),
            _ => {}
        }
    }

    fn push(&mut self, op: Op) {
        self.disk.apply(&op);
        self.recorded.log.ops.push(op);
    }

    fn opened(&mut self, call: &TracedCall, dir: u64, path: u64, flags: u64) {
        let flags = if call.number == i64::from(libc::SYS_openat2) {
            // The first field of `struct open_how`.
            let how: [u8; 8] = memory(call, flags, 8).try_into().expect("eight bytes");
            u64::from_ne_bytes(how)
        } else {
            flags
        };
        let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
        if !has(libc::O_CREAT) && !has(libc::O_TRUNC) {
            return;
        }
        let Some(spot) = self.find(call, dir, path) else {
            return;
        };
        match self.disk.inodes[spot.dir].entries.get(&spot.name).copied() {
            None => self.enter(spot),
            Some(id) if has(libc::O_TRUNC) => self.push(Op::Truncate { id, length: 0 }),
            Some(_) => {}
        }
    }

    fn made(&mut self, call: &TracedCall, dir: u64, path: u64) {
        if let Some(spot) = self.find(call, dir, path) {
            self.enter(spot);
        }
    }

    /// A name that was not there.
    fn enter(&mut self, spot: Spot) {
        let stat = fs::symlink_metadata(&spot.path).expect("it was made");
        let linked = self
            .known
            .get(&place(&stat))
            .copied()
            .filter(|_| stat.nlink() > 1 && !stat.is_dir());
        let id = linked.unwrap_or_else(|| {
            let born = (
                disk::kind(&spot.path, &stat).expect("it was made"),
                disk::owner(&stat),
            );
            let id = self.disk.inodes.len();
            self.disk.inodes.push(Inode::new(born.0.clone(), born.1));
            self.recorded.log.born.push(born);
            self.known.insert(place(&stat), id);
            id
        });
        self.push(Op::Enter {
            dir: spot.dir,
            name: spot.name,
            id,
        });
    }

    fn removed(&mut self, call: &TracedCall, dir: u64, path: u64) {
        if let Some(Spot { dir, name, .. }) = self.find(call, dir, path) {
            let id = self.disk.inodes[dir].entries[&name];
            self.push(Op::Leave { dir, name, id });
        }
    }

    fn renamed(&mut self, call: &TracedCall, from: (u64, u64), to: (u64, u64)) {
        let from = self.find(call, from.0, from.1);
        let to = self.find(call, to.0, to.1);
        match (from, to) {
            (None, None) => {}
            (Some(from), Some(to)) => {
                let id = self.disk.inodes[from.dir].entries[&from.name];
                self.push(Op::Move {
                    dir: from.dir,
                    name: from.name,
                    to: to.dir,
                    to_name: to.name,
                    id,
                });
            }
            _ => panic!("a rename into or out of the directory"),
        }
    }

    fn written(&mut self, call: &TracedCall, file: u64, at: Option<u64>) {
        let path = descriptor(call, file);
        let Ok(stat) = fs::metadata(&path) else {
            return;
        };
        let n = usize::try_from(call.result).expect("a length");
        let at = |recorder: &Self| {
            // Afterwards the position is behind what was written.
            at.unwrap_or_else(|| recorder.position(call, file) - call.result.cast_unsigned())
        };
        if place(&stat) == self.mark_file {
            let data = read_at(&path, at(self), n);
            self.mark(String::from_utf8(data).expect("text"));
        } else if let Some(id) = self.known.get(&place(&stat)).copied() {
            let at = at(self);
            let data = read_at(&path, at, n);
            let at = usize::try_from(at).expect("small");
            self.push(Op::Write { id, at, data });
        }
    }

    #[expect(clippy::unused_self, reason = "beside its like")]
    fn position(&self, call: &TracedCall, file: u64) -> u64 {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{}", call.thread, short(file)));
        let info = info.expect("fdinfo");
        let line = info.lines().find_map(|l| l.strip_prefix("pos:"));
        line.and_then(|l| l.trim().parse().ok()).expect("position")
    }

    fn mark(&mut self, text: String) {
        let tree = self.disk.tree(0);
        let real = disk::read(&self.root).expect("the real disk");
        for (path, shape) in &real {
            let recorded = tree.get(path);
            assert!(
                recorded == Some(shape),
                "{:?} is {}, and was recorded as {}",
                String::from_utf8_lossy(path),
                brief(Some(shape)),
                brief(recorded),
            );
        }
        assert_eq!(tree.len(), real.len(), "more was recorded than is there");
        self.push(Op::Mark);
        self.recorded.marks.push(Mark {
            at: self.recorded.log.ops.len(),
            text,
            tree,
        });
    }

    fn changed(&mut self, call: &TracedCall, dir: u64, path: u64) {
        if let Some(spot) = self.find(call, dir, path)
            && let Some(id) = self.disk.inodes[spot.dir].entries.get(&spot.name)
        {
            self.owner(*id, fs::symlink_metadata(&spot.path));
        }
    }

    fn owner(&mut self, id: Id, stat: io::Result<fs::Metadata>) {
        let owner = disk::owner(&stat.expect("it was changed"));
        self.push(Op::Meta { id, owner });
    }

    fn attribute(&mut self, call: &TracedCall, id: Id, name: u64, (value, length): (u64, u64)) {
        let name = string(call, name);
        // Others are not compared.
        if name.starts_with(b"trusted.") {
            let value = memory(call, value, usize::try_from(length).expect("small"));
            self.push(Op::Xattr { id, name, value });
        }
    }

    fn by_descriptor(&self, call: &TracedCall, file: u64) -> Option<Id> {
        let stat = fs::metadata(descriptor(call, file)).ok()?;
        self.known.get(&place(&stat)).copied()
    }

    /// Finds the place that a path leads to, by directories only. `None`: not below the root, or the root itself.
    fn find(&self, call: &TracedCall, dir: u64, path: u64) -> Option<Spot> {
        let text = string(call, path);
        let path = Path::new(std::ffi::OsStr::from_bytes(&text));
        let (from, rest, real) = if let Ok(rest) = path.strip_prefix("/proc/self/fd") {
            let mut parts = rest.iter();
            let file = parts.next()?.to_str()?.parse().ok()?;
            let id = self.by_descriptor(call, file)?;
            let real = descriptor(call, file).join(parts.as_path());
            (id, parts.as_path().to_owned(), real)
        } else if path.is_absolute() {
            let rest = path.strip_prefix(&self.root).ok()?;
            (0, rest.to_owned(), path.to_owned())
        } else {
            if short(dir) == libc::AT_FDCWD {
                return None;
            }
            let id = self.by_descriptor(call, dir)?;
            (id, path.to_owned(), descriptor(call, dir).join(path))
        };
        let mut names: Vec<&[u8]> = rest
            .iter()
            .map(|part| part.as_bytes())
            .filter(|part| *part != b".")
            .collect();
        let name = names.pop()?.to_vec();
        let mut at = from;
        for name in names {
            at = self.disk.inodes[at].entries.get(name).copied()?;
            assert!(self.disk.inodes[at].kind == Kind::Dir, "not known here");
        }
        Some(Spot {
            dir: at,
            name,
            path: real,
        })
    }
}

/// The shape in short, without the content, for messages.
fn brief(shape: Option<&disk::Shape>) -> String {
    shape.map_or_else(
        || "absent".into(),
        |s| {
            let (mode, uid, gid) = s.owner;
            format!(
                "{:?} {mode:o} {uid}:{gid} {} bytes {:?}",
                s.kind,
                s.data.len(),
                s.xattrs
            )
        },
    )
}

/// A descriptor or flags as the kernel takes them.
#[expect(clippy::cast_possible_truncation, reason = "the kernel does the same")]
const fn short(word: u64) -> i32 {
    word as i32
}

fn descriptor(call: &TracedCall, file: u64) -> PathBuf {
    format!("/proc/{}/fd/{}", call.thread, short(file)).into()
}

fn read_at(path: &Path, at: u64, n: usize) -> Vec<u8> {
    let mut data = vec![0; n];
    let file = File::open(path).expect("what was written");
    file.read_exact_at(&mut data, at).expect("what was written");
    data
}

fn memory(call: &TracedCall, address: u64, n: usize) -> Vec<u8> {
    read_at(Path::new(&format!("/proc/{}/mem", call.thread)), address, n)
}

/// A C string, which may end right before memory that cannot be read.
fn string(call: &TracedCall, address: u64) -> Vec<u8> {
    const PIECE: u64 = 256;
    let mut text = Vec::new();
    let mut at = address;
    loop {
        let n = PIECE - at % PIECE;
        let piece = memory(call, at, usize::try_from(n).expect("small"));
        if let Some(end) = piece.iter().position(|&b| b == 0) {
            text.extend_from_slice(&piece[..end]);
            return text;
        }
        text.extend(piece);
        at += n;
    }
}
