//! The end of a log, held in memory until it is worth a write to the disk: WEAR-05.
//!
//! The end is a file in a tmpfs that all shims share. The size of the tmpfs limits all of them together, without an
//! agent. A shim saves the records that it holds to the log's file
//!
//! - before that is rotated or begun anew, and when it would be full;
//! - when the tmpfs is nearly full;
//! - at the end of the container, and when the machine goes down (SIGTERM);
//! - [`SAVE_AFTER`] after the first record that is not saved. A shim that holds nothing has no timer.
//!
//! A shim does not wait for the disk (`fsync`): the kernel writes within half a minute, which [`SAVE_AFTER`] allows
//! for. Records that the disk does not take stay in memory; if there is no room for more then, the oldest are dropped.
//! The form is in [`crate::api::log_memory`].

use core::time::Duration;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::sys::statvfs::fstatvfs;

use super::log::write_whole_records;
use crate::api::MonoTime;
use crate::api::log_memory::{HEADER_BYTES, LogMemoryHeader};
use crate::sys::{clock, pages::PageBuffer};

/// Longest time before a record is written; with the kernel's own delay it is on the disk within a quarter of an hour.
const SAVE_AFTER: Duration = Duration::from_secs(14 * 60);
/// Pause after the disk has taken nothing.
const RETRY: Duration = Duration::from_secs(10);
/// Part of the tmpfs from which on it is nearly full, percent.
const FULL_PERCENT: u64 = 80;
/// Part of the tmpfs, percent, from which on shims that hold little save, too.
const BRIM_PERCENT: u64 = 95;
/// Bytes that are little: saving them makes hardly any room.
const LITTLE_BYTES: u64 = 64 * 1024;
/// Bytes that are read at once, more than the longest record.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of the newest records that are kept when there is no room for more.
const KEPT_BYTES: usize = 256 * 1024;
const HEADER: u64 = HEADER_BYTES as u64;
const MODE: u32 = 0o600;

/// See the module.
#[derive(Debug)]
pub(super) struct LogMemory {
    path: &'static Path,
    /// File of the held records; `None`: no record is held.
    file: Option<File>,
    header: LogMemoryHeader,
    /// Bytes of records in it.
    held: u64,
    /// Bytes of the first of these records that are on the disk already, which took no more.
    saved: u64,
    /// Time at which the first unsaved record was written.
    since: Option<MonoTime>,
    /// Time until which the disk is left alone: it took nothing lately.
    not_before: MonoTime,
}

impl LogMemory {
    /// Takes over the records that an earlier shim has left there for the log's file `live`.
    pub(super) fn open(path: &'static Path, live: &File) -> Self {
        let mut memory = Self {
            path,
            file: None,
            header: LogMemoryHeader::default(),
            held: 0,
            saved: 0,
            since: None,
            not_before: MonoTime(0),
        };
        if memory.adopt_held_file(live).is_err() {
            memory.discard_file();
        }
        memory
    }

    fn adopt_held_file(&mut self, live: &File) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path)?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        self.header = LogMemoryHeader::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        self.held = whole_record_bytes(&file)?;
        file.set_len(HEADER + self.held)?;
        let metadata = live.metadata()?;
        let is_its = self.header.file == (metadata.dev(), metadata.ino());
        let known = u64::try_from(self.header.begins).ok();
        self.file = Some(file);
        self.since = Some(clock::mono_now());
        match known {
            // The earlier shim died while it saved: all its records are still here, so the disk's copy is cut off.
            Some(begins) if is_its && (begins..=begins + self.held).contains(&metadata.len()) => {
                live.set_len(begins)
            }
            _ => self.bind_to_log(live),
        }
    }

    /// Records that are not on the disk, bytes.
    pub(super) const fn unsaved_bytes(&self) -> u64 {
        self.held - self.saved
    }

    /// Time at which the records have to be saved.
    pub(super) fn save_deadline(&self) -> Option<MonoTime> {
        let since = self.since?;
        Some((since + SAVE_AFTER).max(self.not_before))
    }

    /// Adds whole records, or nothing.
    pub(super) fn append_records(&mut self, records: &[u8], live: &File) -> io::Result<()> {
        if self.file.is_none() {
            self.begin_file(live)?;
        }
        let end = HEADER + self.held;
        if let Some(file) = &self.file
            && let Err(e) = file.write_all_at(records, end)
        {
            let _ = file.set_len(end);
            return Err(e);
        }
        self.held += u64::try_from(records.len()).unwrap_or(0);
        self.since.get_or_insert_with(clock::mono_now);
        Ok(())
    }

    fn begin_file(&mut self, live: &File) -> io::Result<()> {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(self.path)?;
        self.file = Some(file);
        let begun = self.bind_to_log(live);
        if begun.is_err() {
            self.discard_file();
        }
        begun
    }

    /// Notes that the held records go to the end of `live`.
    pub(super) fn bind_to_log(&mut self, live: &File) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let metadata = live.metadata()?;
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.header.file = (metadata.dev(), metadata.ino());
        self.header.begins = signed(metadata.len()) - signed(self.saved);
        file.write_all_at(&self.header.encode(), 0)
    }

    /// Returns true if it is time to make room for others.
    pub(super) fn is_memory_tight(&self) -> bool {
        let Some(stat) = self.file.as_ref().and_then(|file| fstatvfs(file).ok()) else {
            return false;
        };
        let all = u64::from(stat.blocks());
        let used = all.saturating_sub(u64::from(stat.blocks_free()));
        let is_past = |percent: u64| used.saturating_mul(100) >= all.saturating_mul(percent);
        is_past(FULL_PERCENT) && (self.unsaved_bytes() >= LITTLE_BYTES || is_past(BRIM_PERCENT))
    }

    /// Moves the held records to the end of the log's file. Returns the bytes written, and true if that was all. `now`:
    /// also if the disk took nothing a moment ago.
    pub(super) fn save_to_log(&mut self, live: &mut File, now: bool) -> (u64, bool) {
        let before = self.saved;
        let is_due = now || clock::mono_now() >= self.not_before;
        let done = is_due && self.write_to_log(live).is_ok();
        let went = self.saved - before;
        if done {
            self.discard_file();
        } else if is_due {
            self.not_before = clock::mono_now() + RETRY;
        }
        (went, done)
    }

    fn write_to_log(&mut self, live: &mut File) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut chunk = PageBuffer::map(CHUNK_BYTES)?;
        while self.saved < self.held {
            let left = usize::try_from(self.unsaved_bytes()).unwrap_or(usize::MAX);
            let most = left.min(CHUNK_BYTES);
            let n = file.read_at(&mut chunk[..most], HEADER + self.saved)?;
            if n == 0 {
                // The file was cut by another process.
                self.held = self.saved;
                break;
            }
            let newline = chunk[..n].iter().rposition(|b| *b == b'\n');
            let end = newline.map_or(n, |at| at + 1);
            let written = write_whole_records(live, &chunk[..end]);
            self.saved += u64::try_from(written).unwrap_or(0);
            if written < end {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }

    /// Removes the file with all held records.
    fn discard_file(&mut self) {
        // Only this shim makes the file.
        let _ = fs::remove_file(self.path);
        (self.file, self.since) = (None, None);
        (self.held, self.saved) = (0, 0);
    }

    /// Drops all but the newest records, because neither memory nor disk has room. Returns the number of dropped
    /// records.
    pub(super) fn drop_oldest_records(&mut self, live: &File) -> u64 {
        let Some(file) = self.file.take() else {
            return 0;
        };
        let (saved, held, since) = (self.saved, self.held, self.since);
        let newest = PageBuffer::map(KEPT_BYTES).ok().and_then(|mut pages| {
            let most = u64::try_from(KEPT_BYTES).unwrap_or(0).min(held - saved);
            let bytes = pages.get_mut(..usize::try_from(most).ok()?)?;
            file.read_exact_at(bytes, HEADER + held - most).ok()?;
            // The first may be torn.
            let cut = bytes.iter().position(|b| *b == b'\n')? + 1;
            Some((pages, cut, usize::try_from(most).ok()?))
        });
        let kept = newest.as_ref().map_or(0, |(_, cut, end)| end - cut);
        let kept = u64::try_from(kept).unwrap_or(0);
        let mut gone = count_records(&file, saved, held - kept);
        let rest = count_records(&file, held - kept, held);
        self.discard_file();
        // The memory is free only after that.
        drop(file);
        self.header.lost += held - kept - saved;
        let put = newest
            .is_some_and(|(pages, cut, end)| self.append_records(&pages[cut..end], live).is_ok());
        if put {
            self.since = since;
        } else {
            self.header.lost += kept;
            gone += rest;
        }
        gone
    }
}

/// Bytes of the whole records in it.
fn whole_record_bytes(file: &File) -> io::Result<u64> {
    let held = file.metadata()?.len().saturating_sub(HEADER);
    let mut chunk = PageBuffer::map(CHUNK_BYTES)?;
    let most = held.min(u64::try_from(CHUNK_BYTES).unwrap_or(0));
    let bytes = &mut chunk[..usize::try_from(most).unwrap_or(0)];
    file.read_exact_at(bytes, HEADER + held - most)?;
    let torn = bytes.iter().rev().take_while(|b| **b != b'\n').count();
    Ok(held - u64::try_from(torn).unwrap_or(held))
}

/// Counts the records between two offsets.
fn count_records(file: &File, mut from: u64, to: u64) -> u64 {
    let mut count = 0;
    let mut chunk = [0; 4096];
    while from < to {
        let n = match file.read_at(&mut chunk, HEADER + from) {
            Ok(n @ 1..) => n,
            Ok(0) | Err(_) => break,
        };
        let most = usize::try_from(to - from).unwrap_or(usize::MAX).min(n);
        count += chunk[..most].iter().filter(|b| **b == b'\n').count();
        from += u64::try_from(most).unwrap_or(0);
    }
    u64::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::mount::MsFlags;

    use super::super::line::{LogTag, STAMP_BYTES};
    use super::super::log::ContainerLog;
    use super::super::rotation::LogLimit;
    use super::*;
    use crate::sys::mount;

    const STAMP: &[u8; STAMP_BYTES] = b"2023-11-14T22:13:20.123456789Z";

    /// A log directory, and beside it a directory for the held records.
    struct Place {
        dir: PathBuf,
        mounts: Vec<PathBuf>,
    }

    impl Place {
        fn new(name: &str) -> Self {
            let dir = crate::testing::unused_path(&format!("held-{name}"));
            for part in ["disk", "memory"] {
                fs::create_dir_all(dir.join(part)).expect("directory");
            }
            Self {
                dir,
                mounts: Vec::new(),
            }
        }

        /// `part` is a tmpfs of so many bytes. False: this is not root.
        fn limited(&mut self, part: &str, bytes: u64) -> bool {
            if !nix::unistd::geteuid().is_root() {
                return false;
            }
            let at = self.dir.join(part);
            mount::mount_tmpfs(&at, Some(bytes), 0o700, MsFlags::empty()).expect("tmpfs");
            self.mounts.push(at);
            true
        }

        fn path(&self, part: &str) -> &'static Path {
            Box::leak(self.dir.join(part).into_boxed_path())
        }

        fn log(&self, limit: Option<LogLimit>) -> ContainerLog {
            let memory = self.path("memory/c");
            ContainerLog::open(self.path("disk/0.log"), limit, Some(memory)).expect("open")
        }

        /// Waits until the memory holds no more than `bytes`. Children that other tests start have removed files open
        /// until they run their program.
        fn wait_for_room(&self, bytes: u64) {
            let deadline = clock::mono_now() + Duration::from_secs(300);
            loop {
                let stat = nix::sys::statvfs::statvfs(&self.dir.join("memory")).expect("statvfs");
                let used =
                    u64::from(stat.blocks() - stat.blocks_free()) * u64::from(stat.fragment_size());
                if used <= bytes {
                    return;
                }
                assert!(clock::mono_now() < deadline, "{used} bytes are in use");
                std::thread::yield_now();
            }
        }

        fn disk(&self, name: &str) -> Vec<usize> {
            numbers(&fs::read(self.dir.join("disk").join(name)).unwrap_or_default())
        }

        /// Reads the numbers of the held records: `None` if nothing is held.
        fn held(&self) -> Option<Vec<usize>> {
            let bytes = fs::read(self.dir.join("memory/c")).ok()?;
            Some(numbers(&bytes[HEADER_BYTES..]))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            for at in &self.mounts {
                let _ = mount::unmount(at);
            }
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// The numbers of whole records.
    fn numbers(bytes: &[u8]) -> Vec<usize> {
        let text = core::str::from_utf8(bytes).expect("text");
        assert!(text.is_empty() || text.ends_with('\n'), "no torn record");
        let number = |line: &str| line.rsplit(' ').next().unwrap_or("").parse();
        let all = text.lines().map(number);
        all.collect::<Result<_, _>>().expect("whole records")
    }

    /// About 1 KiB.
    fn write(log: &mut ContainerLog, number: usize) {
        log.append_record(
            STAMP,
            "stdout",
            LogTag::Full,
            format!("{number:>980}").as_bytes(),
        );
        log.flush_records();
    }

    #[test]
    fn records_wait_in_memory_until_they_are_saved() {
        // WEAR-05
        let place = Place::new("wait");
        let mut log = place.log(None);
        assert_eq!(
            (place.held(), log.next_save()),
            (None, None),
            "nothing, no timer"
        );
        for n in 0..100 {
            write(&mut log, n);
        }
        let all: Vec<_> = (0..100).collect();
        assert!(place.disk("0.log").is_empty());
        assert_eq!(place.held(), Some(all.clone()));
        let due = log.next_save().expect("a timer");
        let quarter = Duration::from_secs(15 * 60);
        assert!(due + Duration::from_secs(30) <= clock::mono_now() + quarter);
        assert!(log.save_held_records(false));
        assert_eq!((place.held(), log.next_save()), (None, None));
        assert_eq!(place.disk("0.log"), all);
        // The agent has renamed the file: the held records belong to that.
        write(&mut log, 100);
        let disk = place.dir.join("disk");
        fs::rename(disk.join("0.log"), disk.join("0.log.1")).expect("renamed");
        write(&mut log, 101);
        log.reopen_file().expect("reopened");
        write(&mut log, 102);
        assert_eq!(place.disk("0.log.1"), (0..102).collect::<Vec<_>>());
        assert_eq!(
            (place.disk("0.log"), place.held()),
            (vec![], Some(vec![102]))
        );
        assert_eq!(log.lost_records(), 0);
    }

    #[test]
    fn files_keep_their_limit_and_their_order() {
        // WEAR-05 LOG-06
        let place = Place::new("limit");
        let limit = LogLimit {
            max_bytes: 20_000,
            max_files: 3,
        };
        let mut log = place.log(Some(limit));
        for n in 0..200 {
            write(&mut log, n);
            assert!(place.held().is_none_or(|held| held.len() < 20));
        }
        assert!(log.save_held_records(true));
        let mut names: Vec<_> = fs::read_dir(place.dir.join("disk"))
            .expect("directory")
            .map(|e| e.expect("entry").file_name().into_string().expect("name"))
            .collect();
        names.sort();
        names.rotate_left(1);
        assert_eq!(names.len(), 3, "{names:?}");
        let mut kept = Vec::new();
        for name in &names {
            let size = fs::metadata(place.dir.join("disk").join(name)).expect("file");
            assert!(size.len() < limit.max_bytes, "{name}: {}", size.len());
            kept.extend(place.disk(name));
        }
        let first = kept[0];
        assert!(first > 100, "{first}");
        assert_eq!(kept, (first..200).collect::<Vec<_>>());
    }

    #[test]
    fn the_next_shim_takes_over_what_one_held() {
        // WEAR-05
        let place = Place::new("heir");
        let mut log = place.log(None);
        for n in 0..3 {
            write(&mut log, n);
        }
        log.save_held_records(true);
        for n in 3..6 {
            write(&mut log, n);
        }
        drop(log);
        // As after a shim that died while it saved, and while it wrote.
        let append = |part: &str, bytes: &[u8]| {
            let path = place.dir.join(part);
            let mut file = File::options().append(true).open(path).expect("open");
            io::Write::write_all(&mut file, bytes).expect("written");
        };
        let held = fs::read(place.dir.join("memory/c")).expect("held");
        append("disk/0.log", &held[HEADER_BYTES..HEADER_BYTES + 1500]);
        append("memory/c", b"2023 torn");
        let mut log = place.log(None);
        write(&mut log, 6);
        assert_eq!(place.held(), Some(vec![3, 4, 5, 6]));
        // As after a shim that died when the file had been renamed and the new one made.
        drop(log);
        let disk = place.dir.join("disk");
        fs::rename(disk.join("0.log"), disk.join("0.log.1")).expect("renamed");
        fs::write(disk.join("0.log"), b"").expect("made");
        let mut log = place.log(None);
        write(&mut log, 7);
        assert!(log.save_held_records(true));
        assert_eq!(place.disk("0.log.1"), [0, 1, 2]);
        assert_eq!(place.disk("0.log"), [3, 4, 5, 6, 7]);
        assert_eq!(log.lost_records(), 0);
        // A file of another form counts as none.
        fs::write(place.dir.join("memory/c"), b"something else").expect("written");
        let mut log = place.log(None);
        write(&mut log, 8);
        assert_eq!(place.held(), Some(vec![8]));
    }

    #[test]
    fn all_shims_together_have_the_limit() {
        // WEAR-05
        let mut place = Place::new("tight");
        if !place.limited("memory", 1 << 20) {
            skipped!("logs in a full memory: it needs root");
            return;
        }
        let other = place.dir.join("memory/other");
        fs::write(&other, vec![b'x'; 600 << 10]).expect("written");
        let mut log = place.log(None);
        let mut most = 0;
        for n in 0..2000 {
            write(&mut log, n);
            most = most.max(place.held().map_or(0, |held| held.len()));
        }
        // 80 % of 1 MiB, without what the other has.
        assert!((100..250).contains(&most), "{most}");
        // The other shim fills nearly all: this one holds little, and waits until room is really short.
        log.save_held_records(true);
        place.wait_for_room(600 << 10);
        fs::write(&other, vec![b'x'; 900 << 10]).expect("written");
        write(&mut log, 2000);
        write(&mut log, 2001);
        assert_eq!(place.held(), Some(vec![2000, 2001]));
        fs::write(&other, vec![b'x'; 1000 << 10]).expect("written");
        for n in 2002..2020 {
            write(&mut log, n);
        }
        assert_eq!(place.held(), None);
        assert_eq!(place.disk("0.log"), (0..2020).collect::<Vec<_>>());
        assert_eq!(log.lost_records(), 0);
    }

    #[test]
    fn without_a_disk_the_oldest_go_and_are_counted() {
        // WEAR-05
        let mut place = Place::new("gone");
        if !(place.limited("memory", 1 << 20) && place.limited("disk", 64 << 10)) {
            skipped!("logs without a disk: it needs root");
            return;
        }
        let mut log = place.log(None);
        for n in 0..5000 {
            write(&mut log, n);
        }
        let (disk, held) = (place.disk("0.log"), place.held().expect("held"));
        let saved = disk.len();
        assert!((30..=64).contains(&saved), "{saved}");
        assert_eq!(disk, (0..saved).collect::<Vec<_>>());
        // The newest, without a gap.
        let first = held[0].min(5000 - 200);
        let new: Vec<_> = held.iter().copied().filter(|n| *n >= first).collect();
        assert_eq!(new.last(), Some(&4999));
        let total = u64::try_from(5000 - saved).expect("count");
        let distinct: Vec<_> = held.into_iter().filter(|n| *n >= saved).collect();
        assert_eq!(distinct, (5000 - distinct.len()..5000).collect::<Vec<_>>());
        assert!(distinct.len() >= 200);
        let kept = u64::try_from(distinct.len()).expect("count");
        assert_eq!(log.lost_records(), total - kept);
        // There is room again.
        let lost = log.lost_records();
        File::options()
            .write(true)
            .open(place.dir.join("disk/0.log"))
            .expect("open")
            .set_len(0)
            .expect("emptied");
        mount::resize_tmpfs(&place.dir.join("disk"), 8 << 20).expect("more");
        assert!(log.save_held_records(true));
        assert_eq!((place.held(), log.lost_records()), (None, lost));
        assert_eq!(place.disk("0.log").last(), Some(&4999));
    }
}
