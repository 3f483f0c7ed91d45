//! The disk of the machine: what is on it for good, what a power cut leaves of the rest, how it stops at an instant, and how
//! it fails.
//!
//! What a power cut may leave is ruled as for the image store (`src/image/powercut`): content is on disk once its file was
//! synced, a name once its directory was, and of everything else each single file may be as it was, as it is, or torn.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};
use core::cell::{Cell, RefCell};
use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
};

use super::input::Random;
use crate::{sys::file::watched, volume::plugin};

/// What lies below a directory: mode, and content of what is a file.
type Tree = BTreeMap<PathBuf, (u32, Option<Vec<u8>>)>;

/// The mode of a symbolic link, whose content is what it points to.
const LINK: u32 = libc::S_IFLNK;
/// Volumes of these plugins are in memory, whatever this disk is made of.
const IN_MEMORY: [&str; 3] = [plugin::SECRET, plugin::DOWNWARD_API, plugin::PROJECTED];
/// Mode of files that come back.
const FILE_MODE: u32 = 0o600;
/// Mode of directories that come back.
const DIR_MODE: u32 = 0o750;

/// A machine's disk, and its run directory, which is in memory.
pub(super) struct Disk(Rc<State>);

struct State {
    root: PathBuf,
    run: PathBuf,
    known: RefCell<Known>,
    /// Changes until it stops.
    stops_after: Cell<Option<u32>>,
    /// As it was when it stopped.
    stopped: RefCell<Option<Taken>>,
    on_stop: Box<dyn Fn()>,
    trouble: Cell<Option<i32>>,
    /// The same of volumes alone.
    volumes: Cell<Option<i32>>,
    hits: RefCell<BTreeMap<(i32, Part), u64>>,
}

/// What of the disk a change belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// What the agent keeps.
    Records,
    /// Volumes of pods.
    Volumes,
}

impl Part {
    fn of(path: &Path) -> Self {
        // A pod's directory has its volumes below it, and their markers.
        let mut names = path.iter();
        match names.any(|name| name == "volumes" || name == "plugins") {
            true => Self::Volumes,
            false => Self::Records,
        }
    }
}

/// What is on disk for good.
#[derive(Default)]
struct Known {
    /// Contents, by inode.
    contents: BTreeMap<u64, Vec<u8>>,
    /// Files that have their name, with their content, and whether all of that is there.
    files: BTreeMap<PathBuf, (Vec<u8>, bool)>,
    dirs: BTreeSet<PathBuf>,
}

impl Disk {
    /// Everything that is there is there for good. `on_stop` is called when the disk stops.
    pub(super) fn new(root: &Path, run: &Path, on_stop: Box<dyn Fn()>) -> Self {
        let state = Rc::new(State {
            root: root.into(),
            run: run.into(),
            known: RefCell::default(),
            stops_after: Cell::new(None),
            stopped: RefCell::new(None),
            on_stop,
            trouble: Cell::new(None),
            volumes: Cell::new(None),
            hits: RefCell::default(),
        });
        let disk = Self(state);
        disk.all_is_synced();
        let watching = Rc::downgrade(&disk.0);
        let watcher = move |path: &Path, is_synced| match watching.upgrade() {
            Some(state) => state.on(path, is_synced),
            None => Ok(()),
        };
        watched::set_watcher(Some(Rc::new(watcher)));
        disk
    }

    /// Has the disk stop before one of the next changes.
    pub(super) fn stop_after(&self, changes: Option<u32>) {
        self.0.stops_after.set(changes);
    }

    /// Whether it has stopped.
    pub(super) fn has_stopped(&self) -> bool {
        self.0.stopped.borrow().is_some()
    }

    /// As it was when it stopped, or is. It goes on.
    pub(super) fn take(&self) -> Taken {
        self.stop_after(None);
        let stopped = self.0.stopped.take();
        stopped.unwrap_or_else(|| self.0.taken())
    }

    /// Puts it back to what it was. What an agent has done since then, and synced, is nothing.
    pub(super) fn put_back(&self, taken: Taken) {
        write_tree(&self.0.tree(), &taken.tree);
        let synced = taken.synced.iter().filter_map(|path| {
            let content = taken.tree.get(path)?.1.clone()?;
            Some((fs::metadata(path).ok()?.ino(), content))
        });
        self.0.known.replace(Known {
            contents: synced.collect(),
            files: taken.files,
            dirs: taken.dirs,
        });
    }

    /// Every change fails with this error of the kernel from now on, or none does.
    pub(super) fn fail(&self, errno: Option<i32>) {
        self.0.trouble.set(errno);
    }

    /// The same of changes in volumes.
    pub(super) fn fail_volumes(&self, errno: Option<i32>) {
        self.0.volumes.set(errno);
    }

    /// Changes that failed, by error and part.
    pub(super) fn hits(&self) -> BTreeMap<(i32, Part), u64> {
        self.0.hits.borrow().clone()
    }

    /// The power is cut: what was not synced is lost, torn or there in any order, and what is in memory is gone: the run
    /// directory, and volumes with their markers, which count for nothing while nothing is mounted. Returns how many files
    /// are not as they were.
    pub(super) fn cut(&self, seed: u64) -> u64 {
        let now = self.0.tree();
        let (mut after, changed) = self.0.after_cut(&now, &mut Random::new(seed));
        let in_memory = |path: &Path| {
            path.iter()
                .any(|name| IN_MEMORY.iter().any(|plugin| name == *plugin))
        };
        after.retain(|path, _| !path.starts_with(&self.0.run) && !in_memory(path));
        write_tree(&now, &after);
        self.all_is_synced();
        changed
    }

    fn all_is_synced(&self) {
        let mut known = Known::default();
        for (path, (mode, content)) in self.0.tree() {
            match content {
                // What it points to is no content: after the next cut it is a link again, or not there.
                _ if mode == LINK => {}
                Some(content) => {
                    let inode = fs::metadata(&path).expect("it is there").ino();
                    known.contents.insert(inode, content.clone());
                    known.files.insert(path, (content, true));
                }
                None => _ = known.dirs.insert(path),
            }
        }
        self.0.known.replace(known);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        watched::set_watcher(None);
    }
}

/// The disk at one instant.
pub(super) struct Taken {
    tree: Tree,
    /// Files whose content is there for good, whatever their names.
    synced: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, (Vec<u8>, bool)>,
    dirs: BTreeSet<PathBuf>,
}

impl State {
    fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        for dir in [&self.root, &self.run] {
            read_tree(dir, &mut tree);
        }
        tree
    }

    fn taken(&self) -> Taken {
        let tree = self.tree();
        let known = self.known.borrow();
        let is_synced = |(path, (_, content)): &(&PathBuf, &(u32, Option<Vec<u8>>))| {
            let inode = fs::symlink_metadata(path).map_or(0, |meta| meta.ino());
            content.is_some() && known.contents.get(&inode) == content.as_ref()
        };
        let synced = tree.iter().filter(is_synced);
        Taken {
            synced: synced.map(|(path, _)| path.clone()).collect(),
            files: known.files.clone(),
            dirs: known.dirs.clone(),
            tree,
        }
    }

    fn on(&self, path: &Path, is_synced: bool) -> io::Result<()> {
        if is_synced {
            self.on_synced(path);
            return Ok(());
        }
        self.on_change(path)
    }

    fn on_change(&self, path: &Path) -> io::Result<()> {
        if self.stopped.borrow().is_some() {
            return Ok(());
        }
        match self.stops_after.get() {
            Some(0) => {
                self.stops_after.set(None);
                self.stopped.replace(Some(self.taken()));
                (self.on_stop)();
                return Ok(());
            }
            left => self.stops_after.set(left.map(|n| n - 1)),
        }
        let part = Part::of(path);
        let of_volumes = self.volumes.get().filter(|_| part == Part::Volumes);
        let trouble = self.trouble.get().or(of_volumes);
        match trouble.filter(|_| path.starts_with(&self.root)) {
            Some(errno) => {
                *self.hits.borrow_mut().entry((errno, part)).or_default() += 1;
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(()),
        }
    }

    fn on_synced(&self, path: &Path) {
        if self.stopped.borrow().is_some() || !path.starts_with(&self.root) {
            return;
        }
        let known = &mut *self.known.borrow_mut();
        if path.is_file() {
            let inode = fs::metadata(path).expect("it was just written").ino();
            let content = fs::read(path).expect("it was just written");
            known.contents.insert(inode, content);
            return;
        }
        let inside = |p: &PathBuf| p.parent() == Some(path);
        known.files.retain(|p, _| !inside(p));
        known.dirs.retain(|p| !inside(p));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                known.dirs.insert(path);
            } else if let (Ok(meta), Ok(content)) = (entry.metadata(), fs::read(&path)) {
                let whole = known.contents.get(&meta.ino()) == Some(&content);
                known.files.insert(path, (content, whole));
            }
        }
    }

    fn after_cut(&self, now: &Tree, random: &mut Random) -> (Tree, u64) {
        let known = self.known.borrow();
        let mut after = Tree::new();
        let mut changed = 0;
        // Directories: new ones may not be there, old ones may be there again.
        for (path, (mode, _)) in now.iter().filter(|(_, (_, content))| content.is_none()) {
            let safe = known.dirs.contains(path) || path.parent() == Some(&*self.root);
            let above = path
                .parent()
                .is_none_or(|p| p == self.root || after.contains_key(p));
            if above && (safe || random.percent(75)) {
                after.insert(path.clone(), (*mode, None));
            }
        }
        for path in &known.dirs {
            let above = path
                .parent()
                .is_none_or(|p| p == self.root || after.contains_key(p));
            if !now.contains_key(path) && above && random.percent(50) {
                after.insert(path.clone(), (DIR_MODE, None));
            }
        }
        // Links are of volumes, which are made anew.
        let links = now.iter().filter(|(_, (mode, _))| *mode == LINK);
        for (path, entry) in links {
            if path.parent().is_some_and(|p| after.contains_key(p)) {
                after.insert(path.clone(), entry.clone());
            }
        }
        let is_file = |(mode, content): &(u32, Option<Vec<u8>>)| content.is_some() && *mode != LINK;
        let files = now.iter().filter(|(_, entry)| is_file(entry));
        let mut paths: BTreeSet<&PathBuf> = files.map(|(path, _)| path).collect();
        paths.extend(known.files.keys());
        for path in paths {
            let is = now.get(path).and_then(|(_, content)| content.as_ref());
            let kept = known.files.get(path);
            let above = path
                .parent()
                .is_none_or(|p| p == self.root || after.contains_key(p));
            if !above {
                changed += 1;
                continue;
            }
            let inode = fs::metadata(path).map_or(0, |meta| meta.ino());
            let synced = is.is_some() && known.contents.get(&inode) == is;
            let content = match kept {
                Some((content, true)) if Some(content) == is => is.cloned(),
                _ => match random.below(3) {
                    0 => is.cloned(),
                    1 => kept.map(|(content, whole)| match whole {
                        true => content.clone(),
                        false => torn(content, random),
                    }),
                    _ if synced => is.cloned(),
                    _ => is.map(|content| torn(content, random)),
                },
            };
            changed += u64::from(content.as_ref() != is);
            if let Some(content) = content {
                after.insert(path.clone(), (FILE_MODE, Some(content)));
            }
        }
        (after, changed)
    }
}

/// Its beginning, or nothing but zeros.
fn torn(content: &[u8], random: &mut Random) -> Vec<u8> {
    let length = random.below(content.len() as u64 + 1);
    let length = usize::try_from(length).expect("below a length");
    match random.percent(50) {
        true => content[..length].to_vec(),
        false => vec![0; length],
    }
}

fn read_tree(dir: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let mode = meta.permissions().mode() & 0o7777;
        if meta.is_dir() {
            read_tree(&path, tree);
            tree.insert(path, (mode, None));
        } else if let Ok(target) = fs::read_link(&path) {
            let target = target.into_os_string().into_encoded_bytes();
            tree.insert(path, (LINK, Some(target)));
        } else if meta.is_file() {
            let content = fs::read(&path).expect("a file of ours");
            tree.insert(path, (mode, Some(content)));
        }
    }
}

/// Makes of `now`, which is there, `then`.
fn write_tree(now: &Tree, then: &Tree) {
    let kind = |entry: &(u32, Option<Vec<u8>>)| (entry.0 == LINK, entry.1.is_some());
    for (path, entry) in now.iter().rev() {
        let is_link_that_stays = entry.0 == LINK && then.get(path) == Some(entry);
        if then.get(path).map(kind) != Some(kind(entry)) || entry.0 == LINK && !is_link_that_stays {
            match &entry.1 {
                Some(_) => fs::remove_file(path).expect("removed"),
                None => fs::remove_dir_all(path).expect("removed"),
            }
        }
    }
    for (path, entry) in then {
        if now.get(path) == Some(entry) {
            continue;
        }
        match &entry.1 {
            None => fs::create_dir_all(path).expect("made"),
            Some(target) if entry.0 == LINK => {
                symlink(OsStr::from_bytes(target), path).expect("made");
                continue;
            }
            Some(content) => fs::write(path, content).expect("written"),
        }
        fs::set_permissions(path, Permissions::from_mode(entry.0)).expect("set");
    }
}
