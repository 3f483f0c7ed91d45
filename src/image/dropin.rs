//! The image drop-in directory: archives that lie in it are imported, each once, and again when it changes.
//!
//! Polled; [`Doorbell`] only makes the next look come sooner. A file is taken up when two looks at least
//! [`SETTLE`] apart saw it with the same size, time and inode: one that is still being copied is left alone.
//! What was imported is remembered on disk, so that a restart imports nothing again. Hidden files (`.name`, as copying
//! tools write them) are passed over.
//!
//! Images from here are pinned while their file lies here: a board without a registry could not get them back.
//! Removing a file removes no image. An image that was removed comes back when its file is touched.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::time::Duration;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use async_io::Async;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::import::{ImportOptions, Tick};
use super::record::ImageRecord;
use super::store::Store;
use crate::api::Mono;
use crate::api::order::Gather;
use crate::api::strict::from_json;

/// How long a file must stay the same before it is read.
pub const SETTLE: Duration = Duration::from_secs(1);
/// First wait after an error that may pass by itself (disk full); doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_secs(60);
/// Longest such wait.
pub const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Files looked at. More are an error that is reported once.
pub const MAX_FILES: usize = 1000;
/// Largest memory file read, bytes.
const MAX_STATE_BYTES: u64 = 8 * 1024 * 1024;
/// Version of the memory file.
const STATE_VERSION: u32 = 1;

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Stamp {
    size: u64,
    mtime_s: i64,
    mtime_ns: i64,
    inode: u64,
}

/// A file that was dealt with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Done {
    stamp: Stamp,
    /// Ids of its images; empty if it could not be imported.
    images: Vec<String>,
    /// Why not.
    error: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    v: u32,
    files: BTreeMap<String, Done>,
}

/// A file that is waiting.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    stamp: Stamp,
    /// Not before.
    due: Mono,
    /// Wait before the last try; zero if there was none.
    delay: Duration,
}

/// Something worth a log line or an event.
#[derive(Clone, Debug)]
pub enum Report {
    /// A file was imported.
    Imported {
        /// Name in the directory.
        file: String,
        /// Its images.
        images: Vec<Arc<ImageRecord>>,
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
pub struct Look {
    /// In order of names.
    pub reports: Vec<Report>,
    /// Look again after this, even without a ring: a file is settling or waits for another try.
    pub again: Option<Duration>,
}

/// The poller. Blocking: give it to the unpack lane and take it back with the result.
pub struct DropIn {
    store: Store,
    dir: PathBuf,
    state: State,
    waiting: BTreeMap<String, Waiting>,
    /// Failures of the memory file already reported in this run.
    reported: BTreeSet<String>,
    dir_error: Option<String>,
}

impl DropIn {
    /// Starts from what was remembered. An unreadable memory only means that files are imported again, which is cheap:
    /// their layers are there.
    #[must_use]
    pub fn open(store: Store, dir: PathBuf) -> Self {
        let state = read_state(&store.root().join("dropin.json")).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!(
                    "what was imported from {} is forgotten: {error}",
                    dir.display()
                );
            }
            State::default()
        });
        Self {
            store,
            dir,
            state,
            waiting: BTreeMap::new(),
            reported: BTreeSet::new(),
            dir_error: None,
        }
    }

    /// Looks at the directory and imports what has settled. `tick` may cancel, which counts as an error that passes.
    pub fn look(&mut self, now: Mono, tick: Tick<'_>) -> Look {
        let mut look = Look::default();
        let files = match self.list() {
            Ok(files) => files,
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
        self.forget_absent(&files, &mut look);
        for (name, stamp) in files.into_iter().take(MAX_FILES) {
            if let Some(report) = self.look_at(&name, stamp, now, tick) {
                look.reports.push(report);
            }
        }
        look.again = self
            .waiting
            .values()
            .map(|waiting| Duration::from_millis(waiting.due.since_ms(now)))
            .min();
        look
    }

    fn look_at(&mut self, name: &str, stamp: Stamp, now: Mono, tick: Tick<'_>) -> Option<Report> {
        if let Some(done) = self
            .state
            .files
            .get(name)
            .filter(|done| done.stamp == stamp)
        {
            self.waiting.remove(name);
            let unsaid = !done.error.is_empty() && self.reported.insert(name.to_owned());
            return unsaid.then(|| Report::Failed {
                file: name.to_owned(),
                error: done.error.clone(),
                retried: false,
            });
        }
        let waiting = match self.waiting.get(name) {
            Some(waiting) if waiting.stamp == stamp => *waiting,
            _ => {
                let waiting = Waiting {
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
        let options = ImportOptions {
            names: Vec::new(),
            pinned: true,
        };
        match self
            .store
            .import_archive(&self.dir.join(name), &options, tick)
        {
            Ok(images) => {
                self.waiting.remove(name);
                let ids = images.iter().map(|image| image.id.clone()).collect();
                self.remember(name, stamp, ids, String::new());
                Some(Report::Imported {
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
                    Waiting {
                        stamp,
                        due: now + delay,
                        delay,
                    },
                );
                first.then(|| Report::Failed {
                    file: name.to_owned(),
                    error: error.chain(),
                    retried: true,
                })
            }
            Err(error) => {
                self.waiting.remove(name);
                self.reported.insert(name.to_owned());
                self.remember(name, stamp, Vec::new(), error.chain());
                Some(Report::Failed {
                    file: name.to_owned(),
                    error: error.chain(),
                    retried: false,
                })
            }
        }
    }

    /// Replaces what is known of a file. Images that it had before and nothing else has are no longer pinned.
    fn remember(&mut self, name: &str, stamp: Stamp, images: Vec<String>, error: String) {
        let done = Done {
            stamp,
            images,
            error,
        };
        let old = self.state.files.insert(name.to_owned(), done);
        self.save();
        self.unpin(old.into_iter().collect());
    }

    fn forget_absent(&mut self, files: &BTreeMap<String, Stamp>, look: &mut Look) {
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
        self.save();
        if let Some(error) = self.unpin(gone) {
            self.report_dir(error, look);
        }
    }

    fn unpin(&self, gone: Vec<Done>) -> Option<String> {
        let kept: BTreeSet<&String> = self.state.files.values().flat_map(|d| &d.images).gather();
        let mut failed = None;
        for id in gone.iter().flat_map(|done| &done.images) {
            if !kept.contains(id)
                && let Err(error) = self.store.set_pinned(id, false)
            {
                failed = Some(error.chain());
            }
        }
        failed
    }

    fn report_dir(&mut self, error: String, look: &mut Look) {
        if self.dir_error.as_ref() != Some(&error) {
            look.reports.push(Report::Failed {
                file: self.dir.display().to_string(),
                error: error.clone(),
                retried: true,
            });
            self.dir_error = Some(error);
        }
    }

    fn list(&self) -> io::Result<BTreeMap<String, Stamp>> {
        let mut files = BTreeMap::new();
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
                    Stamp {
                        size: stat.len(),
                        mtime_s: stat.mtime(),
                        mtime_ns: stat.mtime_nsec(),
                        inode: stat.ino(),
                    },
                );
            }
            if files.len() > MAX_FILES {
                break;
            }
        }
        Ok(files)
    }

    /// Not being able to remember costs an import at the next start, nothing else.
    fn save(&mut self) {
        self.state.v = STATE_VERSION;
        let path = self.store.root().join("dropin.json");
        let written = serde_json::to_vec(&self.state)
            .map_err(io::Error::from)
            .and_then(|bytes| crate::sys::file::write_atomic(&path, &bytes, 0o600, true))
            .map_err(ImageError::store("write", path));
        if let Err(error) = written {
            log::warn!("{}", error.chain());
        }
    }
}

fn read_state(path: &Path) -> io::Result<State> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_STATE_BYTES)
        .read_to_end(&mut bytes)?;
    let state: State = from_json(&bytes)?;
    if state.v != STATE_VERSION {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("version {} is not known", state.v),
        ));
    }
    Ok(state)
}

/// Rings when a file of the directory was written, moved or removed. May ring for nothing, may miss.
pub struct Doorbell {
    inotify: Async<Inotify>,
}

impl Doorbell {
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
    pub async fn ring(&self) -> io::Result<()> {
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

    use super::super::import::{Limits, Progress};
    use super::super::testing::{Scratch, Stream, docker_archive};
    use super::*;

    fn go(_: Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn archive(tag: &str) -> Vec<u8> {
        let layer = Stream::new().file("a", tag.as_bytes()).bytes();
        docker_archive(tag, &[&layer])
    }

    struct Bench {
        scratch: Scratch,
        store: Store,
        dropin: DropIn,
        now: Mono,
    }

    impl Bench {
        fn new() -> Self {
            let scratch = Scratch::new();
            let store = Store::open(&scratch.join("images")).expect("store");
            fs::create_dir(scratch.join("drop")).expect("scratch");
            let dropin = DropIn::open(store.clone(), scratch.join("drop"));
            Self {
                scratch,
                store,
                dropin,
                now: Mono(1000),
            }
        }

        fn put(&self, name: &str, data: &[u8]) {
            fs::write(self.scratch.join("drop").join(name), data).expect("scratch");
        }

        /// One look now, as short texts.
        fn look(&mut self) -> Vec<String> {
            let look = self.dropin.look(self.now, &mut go);
            look.reports
                .iter()
                .map(|report| match report {
                    Report::Imported { file, images } => format!("+{file} {}", images.len()),
                    Report::Failed { file, retried, .. } => format!("!{file} {retried}"),
                })
                .collect()
        }

        fn later(&mut self, wait: Duration) -> Vec<String> {
            self.now = self.now + wait;
            self.look()
        }

        fn restart(&mut self) {
            self.dropin = DropIn::open(self.store.clone(), self.scratch.join("drop"));
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
        assert_eq!(bench.store.list().len(), 2);
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
    fn a_full_disk_is_tried_again_without_a_change() {
        let mut bench = Bench::new();
        let limits = Limits {
            max_bytes: 10,
            ..Limits::default()
        };
        let small = Store::open_with(&bench.scratch.join("small"), limits).expect("store");
        bench.dropin = DropIn::open(small, bench.scratch.join("drop"));
        bench.put("a.tar", &archive("a:1"));
        bench.look();
        assert_eq!(bench.later(SETTLE), ["!a.tar true"]);
        assert_eq!(
            bench.dropin.look(bench.now, &mut go).again,
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
        let pinned = |bench: &Bench| bench.store.list()[0].pinned;
        assert!(pinned(&bench));
        fs::remove_file(bench.scratch.join("drop").join("a.tar")).expect("scratch");
        bench.look();
        assert!(pinned(&bench), "the other file has it too");
        assert_eq!(
            bench.store.prune(&BTreeSet::new()).expect("prune").0.len(),
            0
        );
        fs::remove_file(bench.scratch.join("drop").join("b.tar")).expect("scratch");
        bench.look();
        assert!(!pinned(&bench));
        assert_eq!(
            bench.store.prune(&BTreeSet::new()).expect("prune").0.len(),
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
        assert!(bench.store.list()[0].pinned);
    }

    #[test]
    fn doorbell_rings_for_a_written_and_a_moved_file() {
        let bench = Bench::new();
        let dir = bench.scratch.join("drop");
        let doorbell = Doorbell::open(&dir).expect("inotify");
        bench.put("x", b"1");
        smol::block_on(doorbell.ring()).expect("written");
        fs::write(bench.scratch.join("y"), b"1").expect("scratch");
        fs::rename(bench.scratch.join("y"), dir.join("y")).expect("scratch");
        smol::block_on(doorbell.ring()).expect("moved");
    }
}
