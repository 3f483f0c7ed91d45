//! The log file of a container: records gathered in one buffer, written whole or not at all.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::line::{LogTag, MAX_TEXT_BYTES, RECORD_OVERHEAD, STAMP_BYTES};
use super::log_memory::LogMemory;
use super::rotation::{self, LogLimit};
use crate::api::MonoTime;
use crate::sys::{open, pages::PageBuffer};

/// Mode of a new log file: an administrators' group may read it, as every Kubernetes node has it.
const LOG_MODE: u32 = 0o640;

/// A log that never blocks its writer but for the disk itself, and outlives a full disk.
#[derive(Debug)]
pub(crate) struct ContainerLog {
    /// Opened once at the start: the path may later name another directory.
    dir: OwnedFd,
    name: &'static OsStr,
    file: Option<File>,
    buffer: PageBuffer,
    len: usize,
    lost: u64,
    /// Bytes of the file, as far as this writer knows.
    size: u64,
    limit: Option<LogLimit>,
    /// Memory in which records wait for the disk; `None`: they do not wait.
    memory: Option<LogMemory>,
}

impl ContainerLog {
    /// Opens the directory of `path`, and `path` itself. Without `limit` this writer does not rotate it. `memory`: file
    /// in which the end of the log is held in memory.
    pub(crate) fn open(
        path: &'static Path,
        limit: Option<LogLimit>,
        memory: Option<&'static Path>,
    ) -> io::Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut log = Self {
            dir: open::open_log_dir(path)?,
            name,
            file: None,
            buffer: PageBuffer::map(MAX_TEXT_BYTES + RECORD_OVERHEAD)?,
            len: 0,
            lost: 0,
            size: 0,
            limit,
            memory: None,
        };
        log.open_live()?;
        if let (Some(path), Some(live)) = (memory, &log.file) {
            log.memory = Some(LogMemory::open(path, live));
            log.size = live.metadata()?.len();
        }
        Ok(log)
    }

    /// Opens the file at the log's path anew, making it if need be. On an error the old one stays in use.
    ///
    /// A container may see this directory (hostPath on /var/log): links, and anything but a regular file, are refused.
    pub(crate) fn reopen_file(&mut self) -> io::Result<()> {
        self.flush_records();
        self.save_held_records(true);
        self.open_live()?;
        if let (Some(memory), Some(live)) = (&mut self.memory, &self.file) {
            memory.bind_to_log(live)?;
        }
        Ok(())
    }

    fn open_live(&mut self) -> io::Result<()> {
        let flags = OFlag::O_WRONLY
            | OFlag::O_APPEND
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC
            | OFlag::O_NOCTTY
            // A FIFO without reader would block the open.
            | OFlag::O_NONBLOCK;
        let mode = Mode::from_bits_truncate(LOG_MODE);
        let file = File::from(openat(&self.dir, self.name, flags, mode)?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("the log is no regular file"));
        }
        self.size = metadata.len();
        self.file = Some(file);
        Ok(())
    }

    /// Adds a record; writes earlier ones if the buffer is full.
    pub(crate) fn append_record(
        &mut self,
        stamp: &[u8; STAMP_BYTES],
        stream: &str,
        tag: LogTag,
        text: &[u8],
    ) {
        if self.buffer.len() - self.len < text.len() + RECORD_OVERHEAD {
            self.flush_records();
        }
        let tag: &[u8] = match tag {
            LogTag::Full => b" F ",
            LogTag::Partial => b" P ",
        };
        for part in [stamp, &b" "[..], stream.as_bytes(), tag, text, b"\n"] {
            self.buffer[self.len..self.len + part.len()].copy_from_slice(part);
            self.len += part.len();
        }
    }

    /// Writes the gathered records. Records that the disk refuses are dropped and counted; no half record is left in
    /// the file.
    pub(crate) fn flush_records(&mut self) {
        if self.memory.is_some() && self.hold_records() {
            return;
        }
        self.rotate_if_full();
        let bytes = &self.buffer[..self.len];
        let file = self.file.as_mut();
        let written = file.map_or(0, |file| write_whole_records(file, bytes));
        let lost = bytes[written..].iter().filter(|b| **b == b'\n').count();
        self.lost += u64::try_from(lost).unwrap_or(0);
        self.size += u64::try_from(written).unwrap_or(0);
        self.len = 0;
    }

    /// Moves the gathered records to the memory. Returns false if there is none, or no room in it: then no record is
    /// held, and the disk has to take them.
    fn hold_records(&mut self) -> bool {
        let more = u64::try_from(self.len).unwrap_or(0);
        let unsaved = self.memory.as_ref().map_or(0, LogMemory::unsaved_bytes);
        let after = self.size.saturating_add(unsaved).saturating_add(more);
        // The held records belong to the present file: they are saved before it is rotated.
        if more > 0
            && self.limit.is_some_and(|limit| after >= limit.max_bytes)
            && self.save_held_records(false)
        {
            self.rotate_if_full();
        }
        for is_last in [false, true] {
            let (Some(memory), Some(live)) = (&mut self.memory, &self.file) else {
                return false;
            };
            if more == 0 {
                return true;
            }
            if memory
                .append_records(&self.buffer[..self.len], live)
                .is_ok()
            {
                self.len = 0;
                if memory.is_memory_tight() {
                    self.save_held_records(false);
                }
                return true;
            }
            match (self.save_held_records(true), is_last) {
                (true, false) => {}
                (true, true) => return false,
                (false, false) => {
                    if let (Some(memory), Some(live)) = (&mut self.memory, &self.file) {
                        self.lost += memory.drop_oldest_records(live);
                    }
                }
                (false, true) => {
                    // Other shims have filled the memory: the new records are lost, the held ones stay.
                    let records = self.buffer[..self.len].iter().filter(|b| **b == b'\n');
                    self.lost += u64::try_from(records.count()).unwrap_or(0);
                    self.len = 0;
                    return true;
                }
            }
        }
        false
    }

    /// Writes the records held in memory to the disk. `now`: also if the disk took nothing a moment ago. Returns false
    /// if the disk did not take all of them.
    pub(crate) fn save_held_records(&mut self, now: bool) -> bool {
        let (Some(memory), Some(live)) = (&mut self.memory, &mut self.file) else {
            return true;
        };
        let (went, done) = memory.save_to_log(live, now);
        self.size += went;
        done
    }

    /// Time for the next [`Self::save_held_records`]; `None`: no record waits for it.
    pub(crate) fn next_save(&self) -> Option<MonoTime> {
        self.memory.as_ref()?.save_deadline()
    }

    /// Begins a new file if the present one has no room for the gathered records. If that fails, the present one is
    /// written on: a line counts for more than a limit.
    fn rotate_if_full(&mut self) {
        let Some(limit) = self.limit else { return };
        let more = u64::try_from(self.len).unwrap_or(0);
        let is_full = |size: u64| size > 0 && size.saturating_add(more) >= limit.max_bytes;
        if more == 0 || !is_full(self.size) {
            return;
        }
        // The file may have been emptied by another process.
        let metadata = self.file.as_ref().and_then(|file| file.metadata().ok());
        self.size = metadata.map_or(0, |metadata| metadata.len());
        if is_full(self.size) && rotation::rotate_log(&self.dir, self.name, limit).is_ok() {
            let _ = self.open_live();
        }
    }

    /// Records that could not be written so far.
    pub(crate) const fn lost_records(&self) -> u64 {
        self.lost
    }

    /// Gives the buffer's memory back; to be called after a flush, when there is nothing to write.
    pub(crate) fn release_buffer(&mut self) {
        self.buffer.release(self.len);
    }
}

/// Writes as many records as the file takes; no half record is left in it. Returns their bytes.
pub(super) fn write_whole_records(file: &mut File, records: &[u8]) -> usize {
    let mut written = 0;
    while written < records.len() {
        match file.write(&records[written..]) {
            Ok(n) if n > 0 => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    if written == records.len() {
        return written;
    }
    // A record holds one newline, its last byte.
    let newline = records[..written].iter().rposition(|b| *b == b'\n');
    let whole = newline.map_or(0, |at| at + 1);
    if written > whole {
        let _ = truncate_tail(file, written - whole);
    }
    whole
}

/// Takes the last `count` bytes off the file. This process is its only writer.
fn truncate_tail(file: &File, count: usize) -> io::Result<()> {
    let count = u64::try_from(count).map_err(io::Error::other)?;
    file.set_len(file.metadata()?.len().saturating_sub(count))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use nix::mount::MsFlags;

    use super::*;
    use crate::sys::mount;

    fn path(dir: &Path) -> &'static Path {
        Box::leak(dir.join("0.log").into_boxed_path())
    }

    fn fresh(name: &str) -> PathBuf {
        let dir = crate::testing::unused_path(&format!("log-{name}"));
        fs::create_dir_all(&dir).expect("dir");
        dir
    }

    const STAMP: &[u8; STAMP_BYTES] = b"2023-11-14T22:13:20.123456789Z";

    #[test]
    fn records_and_rotation() {
        // LOG-01
        let dir = fresh("rotation");
        let mut log = ContainerLog::open(path(&dir), None, None).expect("open");
        let mode = fs::metadata(dir.join("0.log"))
            .expect("stat")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7137, 0, "{mode:o}");
        log.append_record(STAMP, "stdout", LogTag::Full, b"one");
        fs::rename(dir.join("0.log"), dir.join("0.log.1")).expect("rotate");
        log.append_record(STAMP, "stderr", LogTag::Partial, b"two");
        log.reopen_file().expect("reopen");
        log.append_record(STAMP, "stdout", LogTag::Full, b"");
        log.flush_records();
        let read = |name| fs::read_to_string(dir.join(name)).expect("read");
        let golden = "2023-11-14T22:13:20.123456789Z stdout F one\n2023-11-14T22:13:20.123456789Z stderr P two\n";
        assert_eq!(read("0.log.1"), golden);
        assert_eq!(read("0.log"), "2023-11-14T22:13:20.123456789Z stdout F \n");
        fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn a_limit_holds_at_every_instant_and_no_line_is_lost() {
        // LOG-06 LOG-07
        const BYTES: u64 = 20_000;
        let dir = fresh("limit");
        let limit = LogLimit {
            max_bytes: BYTES,
            max_files: 3,
        };
        fs::write(dir.join("0.log.20231114-221322"), "of an agent before").expect("write");
        fs::write(dir.join("0.log-other"), "of somebody else").expect("write");
        fs::create_dir(dir.join("0.log.dir")).expect("in the way");
        let mut log = ContainerLog::open(path(&dir), Some(limit), None).expect("open");
        let sizes = || {
            let all = fs::read_dir(&dir).expect("dir").flatten();
            let ours = all.filter(|f| f.file_name().to_string_lossy().starts_with("0.log"));
            let files = ours.filter(|f| f.file_type().is_ok_and(|t| t.is_file()));
            let mut sizes: Vec<(String, u64)> = files
                .map(|f| {
                    (
                        f.file_name().to_string_lossy().into_owned(),
                        f.metadata().expect("stat").len(),
                    )
                })
                .filter(|(name, _)| name != "0.log-other")
                .collect();
            sizes.sort();
            sizes
        };
        let lines = |text: &str| -> Vec<usize> {
            let all = text
                .lines()
                .map(|l| l.rsplit(' ').next().unwrap_or("").parse());
            all.collect::<Result<_, _>>().expect("whole lines")
        };
        let mut rotations = 0;
        for n in 0..2000 {
            log.append_record(
                STAMP,
                "stdout",
                LogTag::Full,
                format!("{n:>100}").as_bytes(),
            );
            if n % 7 == 0 {
                log.flush_records();
                let sizes = sizes();
                assert!(sizes.len() <= 3, "{sizes:?}");
                assert!(sizes.iter().all(|(_, size)| *size < BYTES), "{sizes:?}");
                rotations = rotations.max(sizes.len());
            }
        }
        log.flush_records();
        assert_eq!(rotations, 3);
        // The end of the log is left, whole and in order.
        let mut kept = Vec::new();
        let mut names: Vec<String> = sizes().into_iter().map(|(name, _)| name).collect();
        names.rotate_left(1);
        assert_eq!(names.last().map(String::as_str), Some("0.log"));
        for name in &names {
            kept.extend(lines(&fs::read_to_string(dir.join(name)).expect("read")));
        }
        let first = kept[0];
        assert!(first > 0 && kept.len() > 250, "{first}");
        assert_eq!(kept, (first..2000).collect::<Vec<_>>());
        assert!(dir.join("0.log-other").exists() && dir.join("0.log.dir").exists());
        assert_eq!(log.lost_records(), 0);
        // A file that another process empties has room again.
        let before = names.len();
        File::options()
            .write(true)
            .open(dir.join("0.log"))
            .expect("open")
            .set_len(0)
            .expect("emptied");
        for _ in 0..150 {
            log.append_record(STAMP, "stdout", LogTag::Full, &[b'x'; 80]);
        }
        log.flush_records();
        assert_eq!(sizes().len(), before);
        fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn traps_are_refused() {
        let dir = fresh("traps");
        let mut log = ContainerLog::open(path(&dir), None, None).expect("open");
        type Make = fn(&Path);
        let traps: [(&str, Make); 3] = [
            ("link", |p| {
                symlink("/tmp/picolet-log-victim", p).expect("link")
            }),
            ("fifo", |p| {
                nix::unistd::mkfifo(p, Mode::S_IRWXU).expect("fifo")
            }),
            ("directory", |p| fs::create_dir(p).expect("dir")),
        ];
        for (name, make) in traps {
            fs::rename(dir.join("0.log"), dir.join("old")).expect("rotate");
            make(&dir.join("0.log"));
            assert!(log.reopen_file().is_err(), "{name}");
            log.append_record(STAMP, "stdout", LogTag::Full, name.as_bytes());
            log.flush_records();
            assert!(
                fs::read_to_string(dir.join("old"))
                    .expect("read")
                    .contains(name),
                "{name}"
            );
            fs::rename(dir.join("0.log"), dir.join(name)).expect("away");
            fs::rename(dir.join("old"), dir.join("0.log")).expect("back");
        }
        fs::remove_dir_all(&dir).expect("remove");
    }

    #[test]
    fn full_disk() {
        if !nix::unistd::geteuid().is_root() {
            skipped!("logs of a full disk: it needs root");
            return;
        }
        let dir = fresh("full");
        mount::mount_tmpfs(&dir, Some(16 * 1024), 0o755, MsFlags::empty()).expect("tmpfs");
        let mut log = ContainerLog::open(path(&dir), None, None).expect("open");
        for n in 0..100 {
            log.append_record(
                STAMP,
                "stdout",
                LogTag::Full,
                format!("{n:>980}").as_bytes(),
            );
            if n % 5 == 4 {
                log.flush_records();
            }
        }
        log.flush_records();
        let text = fs::read_to_string(dir.join("0.log")).expect("read");
        let whole = text.lines().count();
        assert!(
            text.ends_with('\n') && text.lines().all(|l| l.len() == 1020),
            "no torn record"
        );
        assert!(whole > 10, "{whole}");
        assert_eq!(
            log.lost_records(),
            100 - u64::try_from(whole).expect("count")
        );
        // Space again: it goes on.
        log.file
            .as_ref()
            .expect("open")
            .set_len(0)
            .expect("truncate");
        log.append_record(STAMP, "stdout", LogTag::Full, b"after");
        log.flush_records();
        assert!(
            fs::read_to_string(dir.join("0.log"))
                .expect("read")
                .ends_with("F after\n")
        );
        drop(log);
        mount::unmount(&dir).expect("unmount");
        fs::remove_dir(&dir).expect("remove");
    }
}
