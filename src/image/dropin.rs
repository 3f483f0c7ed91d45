//! The image drop-in directory. Archives in it are imported, each once, and again when it changes. Images named by
//! lists in it (`.txt`) are pulled, each once.
//!
//! Polled; [`DropInDoorbell`] only makes the next look come sooner. A file is taken up when two looks at least [`SETTLE`]
//! apart saw it with the same size, time and inode: one that is still being copied is left alone. Imports are
//! remembered on disk, so that a restart imports nothing again. Hidden files (`.name`, as copying tools write them) are
//! passed over. A directory is told of once: nobody can say when all of it is there, so it has to be packed.
//!
//! An archive that does not say what its image is called gives it the name of its file ([`image_name_from_file`]).
//!
//! A list has one reference a line; `#` begins a comment. Pulling is not done here, for it takes as long as the link
//! takes: [`DropInPoller::next_due_pull`] gives the next reference, [`DropInPoller::record_pull_result`] hears how
//! its pull ended. When a list changes, its new references are pulled, and images that were removed from the store since.
//!
//! Images from here are pinned while their file lies here: a board without a registry could not get them back.
//! Removing a file removes no image. An image that was removed comes back when its file is touched.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::error::Error;
use core::time::Duration;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use async_io::Async;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde::{Deserialize, Serialize};

use super::error::{ImageError, ImageProblem};
use super::import::{ImportOptions, ProgressCallback};
use super::record::ImageRecord;
use super::reference::ImageReference;
use super::store::ImageStore;
use crate::api::MonoTime;
use crate::api::order::GatherExt;
use crate::api::strict::from_json;
use crate::error::error_chain;

/// Time that a file must stay unchanged before it is read.
pub const SETTLE: Duration = Duration::from_secs(1);
/// First wait after an error that may pass by itself (disk full); doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_secs(60);
/// Longest such wait.
pub const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Files looked at. More are an error that is reported once.
pub const MAX_FILES: usize = 1000;
/// End of a list's file name.
const LIST: &str = ".txt";
/// Ends of the file names of archives.
const ARCHIVES: [&str; 5] = [".tar", ".tgz", ".gz", ".zst", ".oci"];
/// Directory that a file system makes in its root.
const LOST_AND_FOUND: &str = "lost+found";
/// Longest list read, bytes, and most references in it.
pub const MAX_LIST_BYTES: u64 = 256 * 1024;
/// See [`MAX_LIST_BYTES`].
pub const MAX_REFERENCES: usize = 500;
/// Wrong lines of a list that are named.
const MAX_FAULTS: usize = 5;
/// Largest memory file read, bytes.
const MAX_STATE_BYTES: u64 = 8 * 1024 * 1024;
/// Version of the memory file.
const STATE_VERSION: u32 = 2;

/// Stamp of a file's version: two versions of a file differ in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DropInFileStamp {
    size: u64,
    mtime_s: i64,
    mtime_ns: i64,
    inode: u64,
}

/// A file that was dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HandledFile {
    stamp: DropInFileStamp,
    /// Ids of its images; empty if it could not be imported, and for a list.
    images: Vec<String>,
    /// For a list: image id by reference. The id is empty until the reference is pulled.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pulls: BTreeMap<String, String>,
    /// Last error with the file; empty if there was none.
    error: String,
}

impl HandledFile {
    /// Ids of the images that are there because of it.
    fn image_ids(&self) -> impl Iterator<Item = &String> {
        let pulled = self.pulls.values().filter(|id| !id.is_empty());
        self.images.iter().chain(pulled)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DropInState {
    v: u32,
    files: BTreeMap<String, HandledFile>,
}

/// A file that is waiting.
#[derive(Clone, Copy, Debug)]
struct WaitingFile {
    stamp: DropInFileStamp,
    /// Earliest time of the next try.
    due: MonoTime,
    /// Wait before the last try; zero if there was none.
    delay: Duration,
}

/// A reference of a list that is to be pulled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedReference {
    /// Name of the list in the directory.
    pub file: String,
    /// Reference as the list has it.
    pub reference: String,
}

/// Event of a look or a pull that is worth a log line or an event.
#[derive(Clone, Debug)]
pub enum DropInReport {
    /// A file was imported.
    Imported {
        /// Name in the directory.
        file: String,
        /// Images of the file.
        images: Vec<Arc<ImageRecord>>,
    },
    /// A reference of a list was pulled.
    Pulled {
        /// The reference, and its list.
        wanted: ListedReference,
        /// Id of its image.
        id: String,
    },
    /// A file, or the directory (then `file` is its path), is bad. Said once until it changes.
    Failed {
        /// Name in the directory.
        file: String,
        /// The whole chain of causes.
        error: String,
        /// Tried again in a while, without a change.
        retried: bool,
    },
}

/// Result of one look.
#[derive(Debug, Default)]
pub struct DropInScan {
    /// Reports, in order of files' names.
    pub reports: Vec<DropInReport>,
    /// Look again after this, even without a ring: a file is settling or waits for another try.
    pub again: Option<Duration>,
}

/// The poller. Blocking: give it to the unpack lane and take it back with the result.
pub struct DropInPoller {
    store: ImageStore,
    dir: PathBuf,
    state: DropInState,
    waiting: BTreeMap<String, WaitingFile>,
    /// Pulls that failed: when to try again, and the wait before the last try; zero if they only have to wait.
    failed: BTreeMap<ListedReference, (MonoTime, Duration)>,
    /// Failures of the memory file already reported in this run.
    reported: BTreeSet<String>,
    /// Entries that are no files, which were reported: at most [`MAX_FILES`].
    no_files: BTreeSet<String>,
    dir_error: Option<String>,
}

impl DropInPoller {
    /// Starts from the memory file. An unreadable one only means that files are imported again, which is cheap: their
    /// layers are there.
    #[must_use]
    pub fn open(store: ImageStore, dir: PathBuf) -> Self {
        let state = read_state(&store.root().join("dropin.json")).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!(
                    "the record of imports from {} is lost, so its files are imported again: {error}",
                    dir.display()
                );
            }
            DropInState::default()
        });
        Self {
            store,
            dir,
            state,
            waiting: BTreeMap::new(),
            failed: BTreeMap::new(),
            reported: BTreeSet::new(),
            no_files: BTreeSet::new(),
            dir_error: None,
        }
    }

    /// Looks at the directory and imports files that have settled. `tick` may cancel, which counts as an error that
    /// passes.
    pub fn scan_directory(&mut self, now: MonoTime, tick: ProgressCallback<'_>) -> DropInScan {
        let mut look = DropInScan::default();
        let (files, no_files) = match self.list_files() {
            Ok(found) => found,
            // Not made yet, or its disk is away: nothing is forgotten for that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return look,
            Err(error) => {
                self.report_dir(error.to_string(), &mut look);
                return look;
            }
        };
        if files.len() > MAX_FILES {
            self.report_dir(format!("more than {MAX_FILES} files"), &mut look);
        } else {
            self.dir_error = None;
        }
        for name in no_files.difference(&self.no_files) {
            look.reports.push(DropInReport::Failed {
                file: name.clone(),
                error: "it is not a file, and only archives and lists are read: pack a directory with an image into an archive (tar -cf NAME.tar -C DIRECTORY .)".into(),
                retried: false,
            });
        }
        self.no_files = no_files;
        self.forget_absent(&files, &mut look);
        self.forget_lost_images();
        for (name, stamp) in files.into_iter().take(MAX_FILES) {
            if let Some(report) = self.scan_file(&name, stamp, now, tick) {
                look.reports.push(report);
            }
        }
        let settling = self.waiting.values().map(|waiting| waiting.due);
        let again = settling.chain(self.failed.values().map(|(due, _)| *due));
        look.again = again
            .map(|due| Duration::from_millis(due.since_ms(now)))
            .min();
        look
    }

    /// The next reference to pull now, if any, in order of files and references. A failed one comes back when its wait
    /// is over. Tell [`DropInPoller::record_pull_result`] of its end before asking again.
    #[must_use]
    pub fn next_due_pull(&self, now: MonoTime) -> Option<ListedReference> {
        for (file, done) in &self.state.files {
            for (reference, id) in &done.pulls {
                let wanted = ListedReference {
                    file: file.clone(),
                    reference: reference.clone(),
                };
                let due = self.failed.get(&wanted).is_none_or(|(due, _)| *due <= now);
                if id.is_empty() && due {
                    return Some(wanted);
                }
            }
        }
        None
    }

    /// A pull has to wait until then, which is no failure.
    pub fn postpone_pull(&mut self, wanted: ListedReference, until: MonoTime) {
        self.failed.insert(wanted, (until, Duration::ZERO));
    }

    /// Notes the end of a pull: the image's id, or why there is none; then it is tried again after a while.
    pub fn record_pull_result(
        &mut self,
        wanted: ListedReference,
        result: Result<String, impl Error>,
        now: MonoTime,
    ) -> Option<DropInReport> {
        let file = self.state.files.get_mut(&wanted.file);
        // Taken off the list meanwhile: the result is not wanted any more.
        let entry = file.and_then(|done| done.pulls.get_mut(&wanted.reference))?;
        let result = result.map_err(|e| error_chain(&e));
        let result = result.and_then(|id| match self.store.set_pinned(&id, true) {
            Ok(()) => Ok(id),
            Err(e) => Err(error_chain(&e)),
        });
        match result {
            Ok(id) => {
                entry.clone_from(&id);
                self.failed.remove(&wanted);
                self.save_state();
                Some(DropInReport::Pulled { wanted, id })
            }
            Err(error) => {
                let before = self.failed.get(&wanted).map(|(_, delay)| *delay);
                let before = before.filter(|delay| !delay.is_zero());
                let delay = before.map_or(RETRY_FIRST, |d| (d * 2).min(RETRY_MAX));
                self.failed.insert(wanted.clone(), (now + delay, delay));
                before.is_none().then(|| DropInReport::Failed {
                    file: wanted.file,
                    error: format!("{}: {error}", wanted.reference),
                    retried: true,
                })
            }
        }
    }

    fn scan_file(
        &mut self,
        name: &str,
        stamp: DropInFileStamp,
        now: MonoTime,
        tick: ProgressCallback<'_>,
    ) -> Option<DropInReport> {
        if let Some(done) = self
            .state
            .files
            .get(name)
            .filter(|done| done.stamp == stamp)
        {
            self.waiting.remove(name);
            let unsaid = !done.error.is_empty() && self.reported.insert(name.to_owned());
            return unsaid.then(|| DropInReport::Failed {
                file: name.to_owned(),
                error: done.error.clone(),
                retried: false,
            });
        }
        let waiting = match self.waiting.get(name) {
            Some(waiting) if waiting.stamp == stamp => *waiting,
            _ => {
                let waiting = WaitingFile {
                    stamp,
                    due: now + SETTLE,
                    delay: Duration::ZERO,
                };
                self.waiting.insert(name.to_owned(), waiting);
                return None;
            }
        };
        if now < waiting.due {
            return None;
        }
        if name.ends_with(LIST) {
            self.waiting.remove(name);
            return self.take_reference_list(name, stamp);
        }
        let mut options = ImportOptions {
            names: Vec::new(),
            pinned: true,
        };
        let path = self.dir.join(name);
        let mut imported = self.store.import_archive(&path, &options, tick);
        if let Err(ImageError::Import { source, .. }) = &imported
            && matches!(**source, ImageProblem::Unnamed)
            && let Some(named) = image_name_from_file(name)
        {
            options.names.push(named);
            imported = self.store.import_archive(&path, &options, tick);
        }
        match imported {
            Ok(images) => {
                self.waiting.remove(name);
                let ids = images.iter().map(|image| image.id.clone()).collect();
                self.remember_file(
                    name,
                    HandledFile {
                        stamp,
                        images: ids,
                        ..HandledFile::default()
                    },
                );
                Some(DropInReport::Imported {
                    file: name.to_owned(),
                    images,
                })
            }
            Err(error) if error.is_transient() => {
                let first = waiting.delay.is_zero();
                let delay = if first {
                    RETRY_FIRST
                } else {
                    (waiting.delay * 2).min(RETRY_MAX)
                };
                self.waiting.insert(
                    name.to_owned(),
                    WaitingFile {
                        stamp,
                        due: now + delay,
                        delay,
                    },
                );
                first.then(|| DropInReport::Failed {
                    file: name.to_owned(),
                    error: error_chain(&error),
                    retried: true,
                })
            }
            Err(error) => {
                self.waiting.remove(name);
                self.reported.insert(name.to_owned());
                self.remember_file(
                    name,
                    HandledFile {
                        stamp,
                        error: error_chain(&error),
                        ..HandledFile::default()
                    },
                );
                Some(DropInReport::Failed {
                    file: name.to_owned(),
                    error: error_chain(&error),
                    retried: false,
                })
            }
        }
    }

    /// Replaces the memory of a file. Images that only the file's former version had are no longer pinned.
    fn remember_file(&mut self, name: &str, done: HandledFile) {
        let old = self.state.files.insert(name.to_owned(), done);
        // Before it is forgotten that they were pinned.
        self.unpin_images(old.into_iter().collect());
        self.save_state();
    }

    /// Takes up a list that is new or has changed. An image that it brought before is not pulled again while the store
    /// has it.
    fn take_reference_list(&mut self, name: &str, stamp: DropInFileStamp) -> Option<DropInReport> {
        let mut done = HandledFile {
            stamp,
            ..HandledFile::default()
        };
        match read_reference_list(&self.dir.join(name)) {
            Ok((references, error)) => {
                let before = self.state.files.get(name).map(|old| &old.pulls);
                for reference in references {
                    let id = before.and_then(|pulls| pulls.get(&reference));
                    let id = id.filter(|id| self.store.image_by_id(id).is_some());
                    let id = id.cloned().unwrap_or_default();
                    done.pulls.insert(reference, id);
                }
                done.error = error;
            }
            Err(error) => done.error = error.to_string(),
        }
        let error = done.error.clone();
        self.failed.retain(|wanted, _| wanted.file != name);
        self.remember_file(name, done);
        if error.is_empty() {
            return None;
        }
        self.reported.insert(name.to_owned());
        Some(DropInReport::Failed {
            file: name.to_owned(),
            error,
            retried: false,
        })
    }

    fn forget_absent(&mut self, files: &BTreeMap<String, DropInFileStamp>, look: &mut DropInScan) {
        self.waiting.retain(|name, _| files.contains_key(name));
        if files.len() > MAX_FILES {
            return;
        }
        let absent: Vec<String> = self
            .state
            .files
            .keys()
            .filter(|name| !files.contains_key(*name))
            .cloned()
            .collect();
        if absent.is_empty() {
            return;
        }
        let gone = absent
            .iter()
            .inspect(|name| {
                self.reported.remove(*name);
            })
            .filter_map(|name| self.state.files.remove(name))
            .collect();
        self.failed
            .retain(|wanted, _| files.contains_key(&wanted.file));
        if let Some(error) = self.unpin_images(gone) {
            self.report_dir(error, look);
        }
        self.save_state();
    }

    /// Has images that were damaged and removed come again: their archives count as new, and references in lists are
    /// pulled anew. The notes on lost images go once that is on disk.
    fn forget_lost_images(&mut self) {
        let lost = self.store.lost_images();
        if lost.is_empty() {
            return;
        }
        let files = &mut self.state.files;
        let before = files.len();
        files.retain(|_, done| !done.images.iter().any(|id| lost.contains(id)));
        let mut changed = files.len() < before;
        for id in files.values_mut().flat_map(|done| done.pulls.values_mut()) {
            if lost.contains(id) {
                id.clear();
                changed = true;
            }
        }
        if changed && !self.save_state() {
            return;
        }
        for id in &lost {
            self.store.clear_lost_image(id);
        }
    }

    fn unpin_images(&self, gone: Vec<HandledFile>) -> Option<String> {
        let kept: BTreeSet<&String> = self
            .state
            .files
            .values()
            .flat_map(HandledFile::image_ids)
            .gather_items();
        let mut failed = None;
        for id in gone.iter().flat_map(HandledFile::image_ids) {
            if !kept.contains(id)
                && let Err(error) = self.store.set_pinned(id, false)
            {
                failed = Some(error_chain(&error));
            }
        }
        failed
    }

    fn report_dir(&mut self, error: String, look: &mut DropInScan) {
        if self.dir_error.as_ref() != Some(&error) {
            look.reports.push(DropInReport::Failed {
                file: self.dir.display().to_string(),
                error: error.clone(),
                retried: true,
            });
            self.dir_error = Some(error);
        }
    }

    /// The files of the directory, and the names of its other entries.
    fn list_files(&self) -> io::Result<(BTreeMap<String, DropInFileStamp>, BTreeSet<String>)> {
        let (mut files, mut no_files) = (BTreeMap::new(), BTreeSet::new());
        for entry in fs::read_dir(&self.dir)? {
            let Ok(name) = entry?.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            // Through links: the directory is the operator's own. What vanished meanwhile is not there.
            let Ok(stat) = fs::metadata(self.dir.join(&name)) else {
                continue;
            };
            if stat.is_file() {
                files.insert(
                    name,
                    DropInFileStamp {
                        size: stat.len(),
                        mtime_s: stat.mtime(),
                        mtime_ns: stat.mtime_nsec(),
                        inode: stat.ino(),
                    },
                );
            } else if name != LOST_AND_FOUND && no_files.len() < MAX_FILES {
                no_files.insert(name);
            }
            if files.len() > MAX_FILES {
                break;
            }
        }
        Ok((files, no_files))
    }

    /// Writes the memory file. Returns false if the disk did not take it, which is logged and costs only imports at the
    /// next start.
    fn save_state(&mut self) -> bool {
        self.state.v = STATE_VERSION;
        let path = self.store.root().join("dropin.json");
        let written = serde_json::to_vec(&self.state)
            .map_err(io::Error::from)
            .and_then(|bytes| crate::sys::file::write_atomic(&path, &bytes, 0o600, true))
            .map_err(ImageError::store_error("write", path));
        if let Err(error) = &written {
            log::warn!("{}", error_chain(&error));
        }
        written.is_ok()
    }
}

/// The name of an image whose archive has none: that of the file without the endings of archives. `%2F` and `%3A` stand
/// for the `/` and `:` that names of files cannot have: `quay.io%2Fteam%2Fapp%3A1.tar`. `None`: it is no reference.
fn image_name_from_file(file: &str) -> Option<String> {
    let mut stem = file;
    while let Some(rest) = ARCHIVES.iter().find_map(|end| stem.strip_suffix(end)) {
        stem = rest;
    }
    let name = stem.replace("%2F", "/").replace("%3A", ":");
    ImageReference::parse(&name).is_ok().then_some(name)
}

/// The references of a list, and the faults of its other lines.
fn read_reference_list(path: &Path) -> io::Result<(BTreeSet<String>, String)> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_LIST_BYTES + 1)
        .read_to_end(&mut bytes)?;
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if bytes.len() as u64 > MAX_LIST_BYTES {
        return Err(wrong(format!("it has more than {MAX_LIST_BYTES} bytes")));
    }
    let text = core::str::from_utf8(&bytes).map_err(|_| wrong("it is no text".into()))?;
    let (mut references, mut faults) = (BTreeSet::new(), Vec::new());
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        match ImageReference::parse(line) {
            Ok(_) => {
                references.insert(line.to_owned());
            }
            Err(e) => faults.push(format!("line {}: {e}", n + 1)),
        }
    }
    if references.len() > MAX_REFERENCES {
        return Err(wrong(format!(
            "it has more than {MAX_REFERENCES} references"
        )));
    }
    let more = faults.len().saturating_sub(MAX_FAULTS);
    faults.truncate(MAX_FAULTS);
    if more > 0 {
        faults.push(format!("and {more} more"));
    }
    Ok((references, faults.join("; ")))
}

fn read_state(path: &Path) -> io::Result<DropInState> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_STATE_BYTES)
        .read_to_end(&mut bytes)?;
    let mut state: DropInState = from_json(&bytes)?;
    match state.v {
        STATE_VERSION => {}
        // That version refused archives that this one takes: what failed is tried once more.
        1 => state.files.retain(|_, done| done.error.is_empty()),
        odd => {
            let why = format!("version {odd} is not known");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
    Ok(state)
}

/// Rings when a file of the directory was written, moved or removed. May ring for nothing, may miss.
pub struct DropInDoorbell {
    inotify: Async<Inotify>,
}

impl DropInDoorbell {
    /// Errors: the directory is not there, or the system has no watch left. The poll alone does then.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(
            dir,
            AddWatchFlags::IN_CLOSE_WRITE
                | AddWatchFlags::IN_MOVED_TO
                | AddWatchFlags::IN_MOVED_FROM
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_ATTRIB
                | AddWatchFlags::IN_ONLYDIR,
        )?;
        Ok(Self {
            inotify: Async::new(inotify)?,
        })
    }

    /// Resolves when something happened. Errors: the watch is dead; open a new one after a while.
    pub async fn wait_for_change(&self) -> io::Result<()> {
        self.inotify.readable().await?;
        loop {
            match self.inotify.get_ref().read_events() {
                // The directory itself was removed or unmounted.
                Ok(events)
                    if events
                        .iter()
                        .any(|event| event.mask.contains(AddWatchFlags::IN_IGNORED)) =>
                {
                    return Err(io::ErrorKind::NotFound.into());
                }
                Ok(_) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ops::ControlFlow;

    use super::super::import::ImportLimits;
    use super::super::progress::ImageProgress;
    use super::super::testing::{Layout, Stream, config, docker_archive, gzip};
    use super::*;
    use crate::api::order::OrderExt as _;
    use crate::testing::TestDir;

    fn go(_: ImageProgress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn archive(tag: &str) -> Vec<u8> {
        let layer = Stream::new().file("a", tag.as_bytes()).bytes();
        docker_archive(tag, &[&layer])
    }

    struct Bench {
        scratch: TestDir,
        store: ImageStore,
        dropin: DropInPoller,
        now: MonoTime,
    }

    impl Bench {
        fn new() -> Self {
            let scratch = TestDir::new("dropin");
            let store = ImageStore::open(&scratch.join("images")).expect("store");
            fs::create_dir(scratch.join("drop")).expect("scratch");
            let dropin = DropInPoller::open(store.clone(), scratch.join("drop"));
            Self {
                scratch,
                store,
                dropin,
                now: MonoTime(1000),
            }
        }

        fn put(&self, name: &str, data: &[u8]) {
            fs::write(self.scratch.join("drop").join(name), data).expect("scratch");
        }

        /// Takes one look now and returns its reports as short texts.
        fn look(&mut self) -> Vec<String> {
            let look = self.dropin.scan_directory(self.now, &mut go);
            look.reports
                .iter()
                .map(|report| match report {
                    DropInReport::Imported { file, images } => format!("+{file} {}", images.len()),
                    DropInReport::Pulled { wanted, .. } => format!("+{}", wanted.reference),
                    DropInReport::Failed { file, retried, .. } => format!("!{file} {retried}"),
                })
                .collect()
        }

        fn later(&mut self, wait: Duration) -> Vec<String> {
            self.now = self.now + wait;
            self.look()
        }

        fn restart(&mut self) {
            self.dropin = DropInPoller::open(self.store.clone(), self.scratch.join("drop"));
        }
    }

    const NOTHING: [String; 0] = [];

    #[test]
    fn imported_once_also_across_a_restart() {
        let mut bench = Bench::new();
        bench.put("a.tar", &archive("a:1"));
        assert_eq!(bench.look(), NOTHING, "it may still be written");
        assert_eq!(bench.look(), NOTHING, "two looks at one moment are one");
        assert_eq!(bench.later(SETTLE), ["+a.tar 1"]);
        assert_eq!(bench.later(SETTLE), NOTHING);
        bench.restart();
        assert_eq!(bench.look(), NOTHING);
        assert_eq!(bench.later(SETTLE), NOTHING);
        bench.put("a.tar", &archive("a:22"));
        assert_eq!(bench.look(), NOTHING);
        assert_eq!(bench.later(SETTLE), ["+a.tar 1"], "changed");
        assert_eq!(bench.store.list_images().len(), 2);
    }

    /// Pulls what is wanted now: those that `there` has bring an image of that name, the others fail.
    fn pull_all(bench: &mut Bench, there: &[&str]) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(wanted) = bench.dropin.next_due_pull(bench.now) {
            let result = if there.contains(&&*wanted.reference) {
                let path = bench.scratch.join("pulled.tar");
                fs::write(&path, archive(&wanted.reference)).expect("scratch");
                let options = ImportOptions::default();
                let images = bench.store.import_archive(&path, &options, &mut go);
                Ok(images.expect("image")[0].id.clone())
            } else {
                Err(io::Error::other("no answer"))
            };
            let name = wanted.reference.clone();
            let sign = if result.is_ok() { '+' } else { '-' };
            let told = bench
                .dropin
                .record_pull_result(wanted, result, bench.now)
                .is_some();
            said.push(format!("{sign}{name}{}", if told { " told" } else { "" }));
        }
        said
    }

    #[test]
    fn a_list_is_pulled_once_and_what_fails_is_tried_again() {
        let mut bench = Bench::new();
        bench.put("a.txt", b"# ours\nb:1 # later\n\na:1\nb:1\n");
        assert_eq!(bench.look(), NOTHING);
        assert_eq!(
            bench.dropin.next_due_pull(bench.now),
            None,
            "it may still be written"
        );
        assert_eq!(bench.later(SETTLE), NOTHING);
        assert_eq!(pull_all(&mut bench, &["a:1"]), ["+a:1 told", "-b:1 told"]);
        assert_eq!(bench.look(), NOTHING);
        assert_eq!(
            bench.dropin.scan_directory(bench.now, &mut go).again,
            Some(RETRY_FIRST)
        );
        bench.later(RETRY_FIRST);
        assert_eq!(pull_all(&mut bench, &[]), ["-b:1"], "said already");
        bench.later(RETRY_FIRST);
        assert_eq!(pull_all(&mut bench, &["b:1"]), NOTHING, "the wait doubled");
        // A restart remembers what is there, and tries the rest at once.
        bench.restart();
        assert_eq!(bench.look(), NOTHING);
        assert_eq!(pull_all(&mut bench, &["b:1"]), ["+b:1 told"]);
        bench.restart();
        bench.look();
        bench.later(SETTLE);
        assert_eq!(pull_all(&mut bench, &[]), NOTHING);
        assert!(bench.store.list_images().iter().all(|image| image.pinned));
        // Changed: what is new, and what was removed from the store.
        let id = bench
            .store
            .resolve_reference("b:1")
            .expect("valid")
            .expect("there")
            .id
            .clone();
        bench
            .store
            .remove_image(&id, &BTreeSet::new())
            .expect("removed");
        bench.put("a.txt", b"a:1\nb:1\nc:1\n");
        bench.look();
        bench.later(SETTLE);
        assert_eq!(
            pull_all(&mut bench, &["b:1", "c:1"]),
            ["+b:1 told", "+c:1 told"]
        );
    }

    #[test]
    fn an_image_that_was_removed_before_it_was_pinned_is_pulled_again() {
        let mut bench = Bench::new();
        bench.put("a.txt", b"a:1\n");
        bench.look();
        bench.later(SETTLE);
        let wanted = bench.dropin.next_due_pull(bench.now).expect("a");
        let gone = Ok::<_, io::Error>("sha256:0".into());
        let told = bench.dropin.record_pull_result(wanted, gone, bench.now);
        assert!(
            matches!(&told, Some(DropInReport::Failed { error, retried: true, .. })
                if error.contains("a:1") && error.contains("sha256:0")),
            "{told:?}"
        );
        assert_eq!(pull_all(&mut bench, &["a:1"]), NOTHING, "not at once");
        bench.now = bench.now + RETRY_FIRST;
        assert_eq!(pull_all(&mut bench, &["a:1"]), ["+a:1 told"]);
        assert!(bench.store.list_images()[0].pinned);
    }

    #[test]
    fn what_a_list_named_comes_again_after_it_was_damaged() {
        let mut bench = Bench::new();
        bench.put("a.txt", b"a:1\nb:1\n");
        bench.look();
        bench.later(SETTLE);
        pull_all(&mut bench, &["a:1", "b:1"]);
        let id = bench.store.list_images()[0].id.clone();
        bench.store.record_lost_image(&id).expect("noted");
        bench
            .store
            .remove_image(&id, &BTreeSet::new())
            .expect("removed");
        // As after a repair without an agent.
        bench.restart();
        bench.look();
        assert_eq!(bench.store.lost_images(), BTreeSet::new(), "dealt with");
        bench.restart();
        bench.look();
        let both = ["a:1", "b:1"];
        assert_eq!(pull_all(&mut bench, &both).len(), 1, "that one only");
        assert_eq!(bench.store.list_images().len(), 2);
    }

    #[test]
    fn images_of_a_list_are_pinned_while_it_names_them() {
        let mut bench = Bench::new();
        bench.put("a.txt", b"a:1\nb:1\n");
        bench.look();
        bench.later(SETTLE);
        pull_all(&mut bench, &["a:1", "b:1"]);
        let pinned = |bench: &Bench| {
            let images = bench.store.list_images();
            let pinned = images.iter().filter(|i| i.pinned);
            pinned.map(|i| i.names.join(",")).collect::<Vec<_>>()
        };
        assert_eq!(pinned(&bench).len(), 2);
        bench.put("a.txt", b"b:1\n");
        bench.look();
        bench.later(SETTLE);
        assert_eq!(pinned(&bench), ["docker.io/library/b:1"]);
        // One that is taken off the list while it is pulled is not pinned.
        bench.put("a.txt", b"b:1\nc:1\n");
        bench.look();
        bench.later(SETTLE);
        let wanted = bench.dropin.next_due_pull(bench.now).expect("c");
        fs::remove_file(bench.scratch.join("drop").join("a.txt")).expect("scratch");
        bench.look();
        assert!(
            bench
                .dropin
                .record_pull_result(wanted, Ok::<_, io::Error>("sha256:0".into()), bench.now)
                .is_none()
        );
        assert_eq!(pinned(&bench), [""; 0]);
    }

    #[test]
    fn of_a_bad_list_the_good_lines_count() {
        let mut bench = Bench::new();
        bench.put("a.txt", b"a:1\nUPPER\n??\n");
        bench.look();
        bench.now = bench.now + SETTLE;
        let look = bench.dropin.scan_directory(bench.now, &mut go);
        assert!(
            matches!(&look.reports[..], [DropInReport::Failed { error, retried: false, .. }]
                if error.starts_with("line 2: ") && error.contains("line 3: ")),
            "{look:?}"
        );
        assert_eq!(pull_all(&mut bench, &["a:1"]), ["+a:1 told"]);
        for (bad, says) in [
            (vec![b'#'; 300 * 1024], "bytes"),
            (vec![0xff], "no text"),
            (
                (0..600)
                    .map(|n| format!("a:{n}\n"))
                    .collect::<String>()
                    .into_bytes(),
                "references",
            ),
        ] {
            bench.put("a.txt", &bad);
            bench.look();
            bench.now = bench.now + SETTLE;
            let look = bench.dropin.scan_directory(bench.now, &mut go);
            assert!(
                matches!(&look.reports[..], [DropInReport::Failed { error, .. }] if error.contains(says)),
                "{says}: {look:?}"
            );
            assert_eq!(pull_all(&mut bench, &[]), NOTHING);
        }
    }

    #[test]
    fn a_growing_file_is_left_alone() {
        let mut bench = Bench::new();
        let whole = archive("a:1");
        for end in [100, 600, 1500] {
            bench.put("a.tar", &whole[..end]);
            assert_eq!(bench.later(SETTLE), NOTHING, "{end} bytes");
        }
        bench.put("a.tar", &whole);
        assert_eq!(bench.later(SETTLE), NOTHING);
        assert_eq!(bench.later(SETTLE), ["+a.tar 1"]);
    }

    #[test]
    fn a_bad_file_is_named_once_until_it_changes() {
        let mut bench = Bench::new();
        bench.put("bad.tar", b"not an archive");
        bench.put(".hidden", b"nor this");
        bench.look();
        assert_eq!(bench.later(SETTLE), ["!bad.tar false"]);
        assert_eq!(bench.later(SETTLE), NOTHING);
        bench.restart();
        assert_eq!(bench.look(), ["!bad.tar false"], "a new run says it anew");
        assert_eq!(bench.later(SETTLE), NOTHING);
        bench.put("bad.tar", &archive("a:1"));
        bench.look();
        assert_eq!(bench.later(SETTLE), ["+bad.tar 1"]);
    }

    #[test]
    fn what_failed_before_archives_got_names_is_tried_again() {
        let bench = Bench::new();
        let path = bench.store.root().join("dropin.json");
        let of_version = |v: u32| {
            let files = r#"{"bad": {"error": "why"}, "good": {"images": ["i"]}}"#;
            fs::write(&path, format!(r#"{{"v": {v}, "files": {files}}}"#)).expect("written");
            read_state(&path).map(|state| state.files.into_keys().collect::<Vec<_>>())
        };
        assert_eq!(of_version(1).expect("the version before"), ["good"]);
        assert_eq!(
            of_version(STATE_VERSION).expect("this one"),
            ["bad", "good"]
        );
        assert!(of_version(STATE_VERSION + 1).is_err());
    }

    #[test]
    fn an_archive_without_a_name_gives_that_of_its_file() {
        // IMG-27
        let mut bench = Bench::new();
        let unnamed = |text: &[u8]| {
            let layer = Stream::new().file("a", text).bytes();
            let mut layout = Layout::new();
            let image = layout.image(&config(&[&layer], "x"), &[&layer]);
            layout.manifests.push(image);
            layout.tar()
        };
        bench.put("quay.io%2Fteam%2Fapp%3A1.tar", &unnamed(b"1"));
        bench.put("tool:2.tar.gz", &gzip(&unnamed(b"2")));
        bench.put("No Name.tar", &unnamed(b"3"));
        bench.put("other.tar", &archive("named:1"));
        bench.look();
        let told = bench.later(SETTLE);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told.contains(&"!No Name.tar false".to_owned()), "{told:?}");
        let mut names: Vec<String> = Vec::new();
        for image in bench.store.list_images() {
            names.extend(image.names.clone());
        }
        names.stable_sort();
        let want = ["docker.io/library/named:1", "docker.io/library/tool:2"];
        assert_eq!(names, [&want[..], &["quay.io/team/app:1"]].concat());
    }

    #[test]
    fn a_directory_is_told_of_once() {
        // IMG-27
        let mut bench = Bench::new();
        for name in ["oci", ".hidden", "lost+found"] {
            fs::create_dir(bench.scratch.join("drop").join(name)).expect("scratch");
        }
        assert_eq!(bench.look(), ["!oci false"]);
        assert_eq!(bench.later(SETTLE), NOTHING);
        fs::remove_dir(bench.scratch.join("drop/oci")).expect("scratch");
        assert_eq!(bench.look(), NOTHING);
        fs::create_dir(bench.scratch.join("drop/oci")).expect("scratch");
        assert_eq!(bench.look(), ["!oci false"], "another one");
    }

    #[test]
    fn a_full_disk_is_tried_again_without_a_change() {
        let mut bench = Bench::new();
        let limits = ImportLimits {
            max_bytes: 10,
            ..ImportLimits::default()
        };
        let small = ImageStore::open_with(&bench.scratch.join("small"), limits).expect("store");
        bench.dropin = DropInPoller::open(small, bench.scratch.join("drop"));
        bench.put("a.tar", &archive("a:1"));
        bench.look();
        assert_eq!(bench.later(SETTLE), ["!a.tar true"]);
        assert_eq!(
            bench.dropin.scan_directory(bench.now, &mut go).again,
            Some(RETRY_FIRST)
        );
        assert_eq!(bench.later(RETRY_FIRST), NOTHING, "said already");
        // There is room again.
        bench.dropin.store = bench.store.clone();
        assert_eq!(bench.later(RETRY_FIRST), NOTHING, "the wait doubled");
        assert_eq!(bench.later(RETRY_FIRST), ["+a.tar 1"]);
    }

    #[test]
    fn images_are_pinned_while_their_file_is_there() {
        let mut bench = Bench::new();
        bench.put("a.tar", &archive("a:1"));
        bench.put("b.tar", &archive("a:1"));
        bench.look();
        bench.later(SETTLE);
        let pinned = |bench: &Bench| bench.store.list_images()[0].pinned;
        assert!(pinned(&bench));
        fs::remove_file(bench.scratch.join("drop").join("a.tar")).expect("scratch");
        bench.look();
        assert!(pinned(&bench), "the other file has it too");
        assert_eq!(
            bench
                .store
                .prune_images(&BTreeSet::new())
                .expect("prune")
                .0
                .len(),
            0
        );
        fs::remove_file(bench.scratch.join("drop").join("b.tar")).expect("scratch");
        bench.look();
        assert!(!pinned(&bench));
        assert_eq!(
            bench
                .store
                .prune_images(&BTreeSet::new())
                .expect("prune")
                .0
                .len(),
            1
        );
    }

    #[test]
    fn a_missing_directory_is_no_error_and_forgets_nothing() {
        let mut bench = Bench::new();
        bench.put("a.tar", &archive("a:1"));
        bench.look();
        bench.later(SETTLE);
        fs::rename(bench.scratch.join("drop"), bench.scratch.join("away")).expect("scratch");
        assert_eq!(bench.look(), NOTHING);
        fs::rename(bench.scratch.join("away"), bench.scratch.join("drop")).expect("scratch");
        assert_eq!(bench.later(SETTLE), NOTHING);
        assert!(bench.store.list_images()[0].pinned);
    }

    #[test]
    fn doorbell_rings_for_a_written_and_a_moved_file() {
        let bench = Bench::new();
        let dir = bench.scratch.join("drop");
        let doorbell = DropInDoorbell::open(&dir).expect("inotify");
        bench.put("x", b"1");
        smol::block_on(doorbell.wait_for_change()).expect("written");
        fs::write(bench.scratch.join("y"), b"1").expect("scratch");
        fs::rename(bench.scratch.join("y"), dir.join("y")).expect("scratch");
        smol::block_on(doorbell.wait_for_change()).expect("moved");
    }
}
