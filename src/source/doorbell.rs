//! inotify on the manifest path: it tells when to read, never what changed.
//!
//! It rings when a file is complete (closed after writing, moved in, removed, its attributes changed), not while one
//! is being written. If it cannot be armed, or an event is lost, the next poll finds the change (SRC-18).

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use async_io::Async;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

/// Most rounds in which the watch is laid before a read: directories come and go meanwhile.
const MAX_ROUNDS: usize = 16;

/// Watches one path, be it a directory, a file, or missing.
#[derive(Debug)]
pub struct ManifestDoorbell {
    path: PathBuf,
    /// inotify instance and its watch; `None` if the watch has to be laid anew.
    armed: Option<ArmedWatch>,
}

#[derive(Debug)]
struct ArmedWatch {
    inotify: Async<Inotify>,
    watch: WatchDescriptor,
    /// Device and inode of the watched directory.
    dir: (u64, u64),
    /// Number of names of the path that are below the watched directory: 0 if this is the path itself.
    names_below: usize,
}

impl ManifestDoorbell {
    /// Makes a doorbell that is not armed yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, armed: None }
    }

    /// Lays the watch unless it is laid: on the path if it is a directory, else on the nearest directory above it.
    ///
    /// Call it before every read, so that nothing falls between read and watch. After an error there is no doorbell
    /// until a later call succeeds.
    pub fn arm(&mut self) -> io::Result<()> {
        // One that came before its parent was watched rings never. Where inodes have no lasting numbers, each round lays it anew.
        for _ in 0..MAX_ROUNDS {
            let mut above = self.path.ancestors().enumerate();
            let (names_below, path, dir) = above
                .find_map(|(at, path)| Some((at, path, directory_id(path)?)))
                .ok_or_else(|| io::Error::other("has no parent directory"))?;
            // Not the same if a directory above it, or a link on the way, was replaced.
            let is_laid = |armed: &ArmedWatch| (armed.names_below, armed.dir) == (names_below, dir);
            if self.armed.as_ref().is_some_and(is_laid) {
                break;
            }
            self.armed = None;
            let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            let events = AddWatchFlags::IN_CLOSE_WRITE
                | AddWatchFlags::IN_MOVED_TO
                | AddWatchFlags::IN_MOVED_FROM
                | AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_ATTRIB
                | AddWatchFlags::IN_DELETE_SELF
                | AddWatchFlags::IN_MOVE_SELF
                | AddWatchFlags::IN_ONLYDIR;
            let watch = inotify.add_watch(path, events)?;
            self.armed = Some(ArmedWatch {
                inotify: Async::new(inotify)?,
                watch,
                dir,
                names_below,
            });
        }
        Ok(())
    }

    /// Waits until the path may have changed; for ever if not armed. Dropping the future loses nothing.
    pub async fn wait_for_ring(&mut self) {
        loop {
            let Some(armed) = &self.armed else {
                return core::future::pending().await;
            };
            if armed.inotify.readable().await.is_err() {
                self.armed = None;
                return;
            }
            let events = match armed.inotify.get_ref().read_events() {
                Ok(events) => events,
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => continue,
                Err(_) => {
                    self.armed = None;
                    return;
                }
            };
            let rings = events
                .iter()
                .any(|event| self.is_relevant_event(armed, event));
            if events.iter().any(|event| ends_watch(armed, event)) {
                self.armed = None;
                return;
            }
            if rings {
                return;
            }
        }
    }

    fn is_relevant_event(&self, armed: &ArmedWatch, event: &InotifyEvent) -> bool {
        let Some(name) = &event.name else {
            // An overflow, or the directory itself.
            return event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) || ends_watch(armed, event);
        };
        if let Some(below) = armed.names_below.checked_sub(1) {
            let wanted = self.path.ancestors().nth(below);
            return wanted.and_then(Path::file_name) == Some(name);
        }
        if name.as_bytes().starts_with(b".") {
            return false;
        }
        // A new regular file is still being written and rings when it is closed; links are complete at once.
        !event.mask.contains(AddWatchFlags::IN_CREATE) || is_complete(&self.path.join(name))
    }
}

/// Device and inode of a directory; `None` if the path is anything else.
fn directory_id(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok().filter(fs::Metadata::is_dir)?;
    Some((meta.dev(), meta.ino()))
}

fn ends_watch(armed: &ArmedWatch, event: &InotifyEvent) -> bool {
    let end = AddWatchFlags::IN_IGNORED
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_UNMOUNT;
    event.wd == armed.watch && event.mask.intersects(end)
}

fn is_complete(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| !m.is_file() || m.nlink() > 1)
}
