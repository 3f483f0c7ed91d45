//! Reading container logs: CRI records in, the text that `kubectl logs` shows out.
//!
//! Blocking and chunk-wise: the caller runs [`LogReader::next_chunk`] on the disk lane, so that a large log neither
//! stands in memory nor holds the loop. Records that a shim holds in memory are read as if they stood at the end of the
//! file ([`crate::api::log_memory`]), where they will be. Source: kubelet `logs.go` (rows LOG-01, LOG-03, LOG-05).

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

use crate::api::WallTime;
use crate::api::log_memory::{HEADER_BYTES, LogMemoryHeader};
use crate::api::order::OrderExt as _;
use crate::sys::open;

/// Bytes read from the file at once, and about the size of an answered chunk.
const CHUNK_BYTES: usize = 32 * 1024;
/// Bytes of one record at most: content is split at 16 KiB by the writer; longer lines are damage and skipped.
const MAX_RECORD_BYTES: usize = 64 * 1024;
/// Rotated files that are looked at to find the next one: a pod may have put any number there.
const MAX_ROTATED: usize = 1000;
const HEADER: u64 = HEADER_BYTES as u64;
/// Bytes stepped back at once while looking for the tail.
const TAIL_STEP_BYTES: u64 = 16 * 1024;

/// Options of a request for a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on at the end of the file until the container is done.
    pub follow: bool,
    /// Records from the end; `None` for all.
    pub tail: Option<u64>,
    /// Time before which records are left out.
    pub since: Option<WallTime>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// Stop after so many bytes, mid-line if need be.
    pub limit_bytes: Option<u64>,
    /// Stream to show, `stdout` or `stderr`; `None` for both.
    pub stream: Option<String>,
}

/// A log being read.
pub struct LogReader {
    path: PathBuf,
    source: LogSource,
    /// Up to where it is read.
    at: u64,
    options: LogOptions,
    /// Bytes read and not yet shown: at most a record.
    pending: Vec<u8>,
    /// The last record shown was partial: the next one continues its line.
    in_line: bool,
    left: u64,
    /// Bytes that were there when the log was opened and are not yet read. They are the limit without following: a
    /// container may write as fast as anybody reads.
    unread: u64,
    skipping: bool,
}

/// Result of a call of [`LogReader::next_chunk`].
#[derive(Debug, PartialEq, Eq)]
pub enum LogChunk {
    /// Text to show; may be empty when everything read was filtered out.
    Text(Vec<u8>),
    /// The end of the file, for now.
    End,
    /// `limit_bytes` is reached.
    Limit,
}

impl LogReader {
    /// Opens the log at `path`, at the start or where the tail begins. Never follows a link. `memory`: where its shim may hold
    /// the end of it.
    pub fn open(path: &Path, memory: Option<PathBuf>, options: LogOptions) -> io::Result<Self> {
        let file = match open::open_log(path) {
            // A shim that rotates is between two files: the one that it has left is the end of the log.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let newest = list_rotated(path)?.and_then(|mut names| names.pop());
                open::open_log(&path.with_file_name(newest.ok_or(e)?))?
            }
            opened => opened?,
        };
        let mut source = LogSource {
            file,
            memory,
            lost: None,
        };
        // The size is taken once: later bytes are neither part of the tail nor shown behind it.
        let size = source.length_bytes()?;
        let at = match options.tail {
            Some(lines) => find_tail_offset(&mut source, size, lines)?,
            None => 0,
        };
        let left = options.limit_bytes.unwrap_or(u64::MAX);
        let unread = match options.follow {
            true => u64::MAX,
            false => size.saturating_sub(at),
        };
        Ok(Self {
            path: path.into(),
            source,
            at,
            options,
            pending: Vec::new(),
            in_line: false,
            left,
            unread,
            skipping: false,
        })
    }

    /// Reads on. Blocking, bounded by [`CHUNK_BYTES`].
    pub fn next_chunk(&mut self) -> io::Result<LogChunk> {
        if self.left == 0 {
            return Ok(LogChunk::Limit);
        }
        let at = self.pending.len();
        let most = usize::try_from(self.unread).unwrap_or(usize::MAX);
        self.pending.resize(at + most.min(CHUNK_BYTES), 0);
        let read = self.source.read_at(&mut self.at, &mut self.pending[at..]);
        // On an error nothing that was not read is taken for a record.
        self.pending
            .truncate(at + read.as_ref().map_or(0, |(n, _)| *n));
        let (n, is_torn) = read?;
        if is_torn {
            // The record that the pending bytes begin is gone.
            self.pending.drain(..at);
            self.skipping = false;
        }
        self.at += u64::try_from(n).unwrap_or(0);
        if !self.options.follow {
            self.unread -= u64::try_from(n).unwrap_or(0);
        }
        if n == 0 && !self.reopen_if_rotated()? {
            // There may be no more for hours.
            self.pending.shrink_to_fit();
            return Ok(LogChunk::End);
        }
        let mut out = Vec::with_capacity(n);
        let mut done = 0;
        while let Some(length) = self.pending[done..].iter().position(|&b| b == b'\n') {
            let record = &self.pending[done..done + length];
            done += length + 1;
            if core::mem::take(&mut self.skipping) {
                continue; // the end of an over-long record
            }
            render_record(record, &self.options, &mut self.in_line, &mut out);
        }
        self.pending.drain(..done);
        // The client may take nothing for hours: nothing is held for the next chunk.
        self.pending.shrink_to_fit();
        if self.pending.len() > MAX_RECORD_BYTES {
            self.pending.clear();
            self.skipping = true;
        }
        let keep = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(out.len());
        out.truncate(keep);
        out.shrink_to_fit();
        self.left -= u64::try_from(keep).unwrap_or(0);
        Ok(LogChunk::Text(out))
    }

    /// Goes on, at the end of the file, with the file that followed it, if another file now stands at the path.
    fn reopen_if_rotated(&mut self) -> io::Result<bool> {
        if !self.options.follow {
            return Ok(false);
        }
        let current = match open::open_log(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let (old, new) = (self.source.file.metadata()?, current.metadata()?);
        if (old.dev(), old.ino()) == (new.dev(), new.ino()) {
            return Ok(false);
        }
        // Bytes written after the end was seen are read first: a writer leaves a file only when it is complete.
        if old.len() > self.at {
            return Ok(true);
        }
        self.at = 0;
        self.source.file = match self.find_rotated_successor((old.dev(), old.ino()))? {
            Some(rotated) => rotated,
            None => current,
        };
        self.pending.clear();
        Ok(true)
    }

    /// The file that was rotated next after `old`, if the live one is not it: a fast writer fills many between two looks.
    fn find_rotated_successor(&self, old: (u64, u64)) -> io::Result<Option<File>> {
        let Some(rotated) = list_rotated(&self.path)? else {
            return Ok(None);
        };
        let mut next = None;
        for name in rotated {
            // Gone meanwhile, or no log.
            let Ok(file) = open::open_log(&self.path.with_file_name(name)) else {
                continue;
            };
            let metadata = file.metadata()?;
            if (metadata.dev(), metadata.ino()) == old {
                next = None;
            } else if next.is_none() {
                next = Some(file);
            }
        }
        // If the old file is there, the files behind it came later; if it went, for its age, all others did.
        Ok(next)
    }
}

/// Names of the rotated files of the log at `path` that are not packed, the oldest first; `None`: more than
/// [`MAX_ROTATED`].
fn list_rotated(path: &Path) -> io::Result<Option<Vec<OsString>>> {
    let prefix = format!("{}.", path.file_name().unwrap_or_default().display());
    let mut rotated = Vec::new();
    for entry in fs::read_dir(path.parent().unwrap_or(path))? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.starts_with(&prefix) && !text.ends_with(".gz") && !text.ends_with(".tmp") {
            rotated.push(name);
        }
        if rotated.len() > MAX_ROTATED {
            return Ok(None);
        }
    }
    rotated.stable_sort();
    Ok(Some(rotated))
}

/// The file of a log, and what its shim holds in memory beyond its end.
struct LogSource {
    file: File,
    memory: Option<PathBuf>,
    /// Bytes that the shim had given up at the last look.
    lost: Option<u64>,
}

impl LogSource {
    /// Opens the shim's memory of the log, if there is one.
    fn open_shim_memory(&self) -> io::Result<Option<(File, LogMemoryHeader)>> {
        let Some(path) = &self.memory else {
            return Ok(None);
        };
        let opened = File::options()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(path);
        let file = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = [0; HEADER_BYTES];
        let Ok(()) = file.read_exact_at(&mut bytes, 0) else {
            // The shim has just begun to write the file.
            return Ok(None);
        };
        Ok(LogMemoryHeader::decode(&bytes).map(|header| (file, header)))
    }

    fn file_id(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Length of the log in bytes, with the part in memory.
    fn length_bytes(&self) -> io::Result<u64> {
        let held = self.open_shim_memory()?;
        // After the look at the memory: what is saved in between counts.
        let size = self.file.metadata()?.len();
        let Some((memory, header)) = held else {
            return Ok(size);
        };
        let records = memory.metadata()?.len().saturating_sub(HEADER);
        let end = header.begins.saturating_add_unsigned(records);
        let end = u64::try_from(end).unwrap_or(0);
        Ok(if header.file == self.file_id()? {
            size.max(end)
        } else {
            size
        })
    }

    /// Reads on from `at`, which moves if its bytes are gone. Returns the number of bytes read, 0 at the end for now;
    /// and true if `at` is not where the last read ended.
    fn read_at(&mut self, at: &mut u64, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let n = self.file.read_at(buffer, *at)?;
        if n > 0 {
            return Ok((n, false));
        }
        let Some((memory, header)) = self.open_shim_memory()? else {
            // The memory may have been saved to the file since.
            return Ok((self.file.read_at(buffer, *at)?, false));
        };
        let id = self.file_id()?;
        let lost = header.lost.saturating_sub(self.lost.unwrap_or(header.lost));
        self.lost = Some(header.lost);
        let mut is_torn = false;
        if lost > 0 && header.file == id {
            let begins = u64::try_from(header.begins).unwrap_or(0);
            let moved = at.saturating_sub(lost);
            is_torn = moved < begins;
            *at = moved.max(begins);
        }
        let n = match header.record_offset(id, *at) {
            Some(offset) => memory.read_at(buffer, HEADER + offset)?,
            None => self.file.read_at(buffer, *at)?,
        };
        Ok((n, is_torn))
    }

    /// Fills the buffer, from the file, the memory, or both.
    fn read_exact_at(&mut self, mut at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let (n, is_torn) = self.read_at(&mut at, &mut buffer[done..])?;
            if n == 0 || is_torn {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += n;
            at += u64::try_from(n).unwrap_or(0);
        }
        Ok(())
    }
}

/// Offset at which the last `lines` records of the first `size` bytes begin.
fn find_tail_offset(source: &mut LogSource, size: u64, lines: u64) -> io::Result<u64> {
    if lines == 0 {
        return Ok(size);
    }
    let mut block = vec![0; usize::try_from(TAIL_STEP_BYTES).unwrap_or(4096)];
    let mut end = size;
    let mut seen = 0;
    while end > 0 {
        let start = end.saturating_sub(TAIL_STEP_BYTES);
        let length = usize::try_from(end - start).unwrap_or(0);
        source.read_exact_at(start, &mut block[..length])?;
        for (i, &b) in block[..length].iter().enumerate().rev() {
            let at = start + u64::try_from(i).unwrap_or(0);
            // The newline that ends the file does not begin a record.
            if b == b'\n' && at + 1 != size {
                seen += 1;
                if seen == lines {
                    return Ok(at + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}

/// A CRI record: `time stream tags content`.
struct CriLogRecord<'a> {
    time: &'a str,
    stream: &'a str,
    partial: bool,
    content: &'a [u8],
}

fn parse_log_record(record: &[u8]) -> Option<CriLogRecord<'_>> {
    let mut fields = record.splitn(4, |&b| b == b' ');
    let time = core::str::from_utf8(fields.next()?).ok()?;
    let stream = core::str::from_utf8(fields.next()?).ok()?;
    let tags = fields.next()?;
    let content = fields.next()?;
    let partial = match tags.split(|&b| b == b':').next()? {
        b"F" => false,
        b"P" => true,
        _ => return None,
    };
    matches!(stream, "stdout" | "stderr").then_some(CriLogRecord {
        time,
        stream,
        partial,
        content,
    })
}

/// Appends the text of `record` to show; an unparsable one is skipped.
fn render_record(record: &[u8], options: &LogOptions, in_line: &mut bool, out: &mut Vec<u8>) {
    let Some(record) = parse_log_record(record) else {
        return;
    };
    if options
        .stream
        .as_deref()
        .is_some_and(|wanted| wanted != record.stream)
    {
        return;
    }
    if options.since.is_some() || options.timestamps {
        let Some(time) = WallTime::parse(record.time) else {
            return;
        };
        if options.since.is_some_and(|since| time < since) {
            return;
        }
        if options.timestamps && !*in_line {
            out.extend_from_slice(time.rfc3339_nanos().as_bytes());
            out.push(b' ');
        }
    }
    out.extend_from_slice(record.content);
    if !record.partial {
        out.push(b'\n');
    }
    *in_line = record.partial;
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// Runs the reader for [`crate::fuzz`]: whatever is in the file, the reader ends and shows no more than there is.
    pub(crate) fn run(data: &[u8], scratch: &Path) -> String {
        let path = scratch.join("log");
        fs::write(&path, data).expect("scratch");
        let mut kinds = String::new();
        let by_first = data.first().copied().unwrap_or(0);
        for options in [
            LogOptions::default(),
            LogOptions {
                tail: Some(u64::from(by_first)),
                timestamps: true,
                ..LogOptions::default()
            },
            LogOptions {
                limit_bytes: Some(100),
                since: Some(WallTime(0)),
                stream: Some("stdout".into()),
                ..LogOptions::default()
            },
        ] {
            let limit = options.limit_bytes;
            let mut reader = LogReader::open(&path, None, options).expect("open");
            let mut shown = 0;
            loop {
                match reader.next_chunk().expect("read") {
                    LogChunk::Text(text) => shown += text.len(),
                    LogChunk::End => break kinds.push('e'),
                    LogChunk::Limit => break kinds.push('l'),
                }
            }
            assert!(shown <= data.len() * 2, "{shown} of {}", data.len());
            assert!(limit.is_none_or(|limit| u64::try_from(shown).unwrap_or(u64::MAX) <= limit));
            kinds.push_str(&format!("{} ", shown.min(1)));
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::testing::TestDir;

    const T: &str = "2024-01-02T03:04:05";

    fn all(reader: &mut LogReader) -> String {
        let mut text = Vec::new();
        while let LogChunk::Text(chunk) = reader.next_chunk().expect("read") {
            text.extend(chunk);
        }
        String::from_utf8(text).expect("text")
    }

    fn sample() -> String {
        format!(
            "{T}.1Z stdout F one\n{T}.2Z stderr F two\nrubbish\n{T}.3Z stdout P thr\n{T}.4Z stdout F:x ee\n{T}.5Z stdout F \n"
        )
    }

    #[test]
    fn options_choose_what_is_shown() {
        // LOG-01 LOG-03
        let dir = TestDir::new("log-options");
        let path = dir.0.join("0.log");
        fs::write(&path, sample()).expect("write");
        let stamp = |tenth: u8| format!("{T}.{tenth}00000000Z ");
        let none = LogOptions::default();
        for (name, options, expected) in [
            ("all", none.clone(), "one\ntwo\nthree\n\n".to_owned()),
            (
                "tail 0",
                LogOptions {
                    tail: Some(0),
                    ..none.clone()
                },
                String::new(),
            ),
            (
                "tail counts records",
                LogOptions {
                    tail: Some(2),
                    ..none.clone()
                },
                "ee\n\n".into(),
            ),
            (
                "tail beyond",
                LogOptions {
                    tail: Some(99),
                    ..none.clone()
                },
                "one\ntwo\nthree\n\n".into(),
            ),
            (
                "stderr",
                LogOptions {
                    stream: Some("stderr".into()),
                    ..none.clone()
                },
                "two\n".into(),
            ),
            (
                "timestamps only at line starts",
                LogOptions {
                    timestamps: true,
                    ..none.clone()
                },
                format!(
                    "{}one\n{}two\n{}three\n{}\n",
                    stamp(1),
                    stamp(2),
                    stamp(3),
                    stamp(5)
                ),
            ),
            (
                "since",
                LogOptions {
                    since: WallTime::parse(&format!("{T}.2Z")),
                    ..none.clone()
                },
                "two\nthree\n\n".into(),
            ),
            (
                "limit cuts mid-line",
                LogOptions {
                    limit_bytes: Some(6),
                    ..none.clone()
                },
                "one\ntw".into(),
            ),
        ] {
            let mut reader = LogReader::open(&path, None, options).expect("open");
            assert_eq!(all(&mut reader), expected, "{name}");
        }
    }

    #[test]
    fn follow_survives_rotation() {
        // LOG-03
        let dir = TestDir::new("log-rotation");
        let path = dir.0.join("0.log");
        fs::write(&path, format!("{T}Z stdout F one\n")).expect("write");
        let mut reader = LogReader::open(
            &path,
            None,
            LogOptions {
                follow: true,
                ..LogOptions::default()
            },
        )
        .expect("open");
        assert_eq!(all(&mut reader), "one\n");
        let mut file = File::options().append(true).open(&path).expect("append");
        write!(file, "{T}Z stdout F two\n{T}Z stdout F cut").expect("append");
        assert_eq!(all(&mut reader), "two\n");
        writeln!(file, "-end").expect("append");
        fs::rename(&path, dir.0.join("0.log.old")).expect("rotate");
        fs::write(&path, format!("{T}Z stdout F new\n")).expect("write");
        assert_eq!(all(&mut reader), "cut-end\nnew\n");
    }

    #[test]
    fn follow_survives_many_rotations_at_once() {
        // LOG-03
        let dir = TestDir::new("log-rotations");
        let path = dir.0.join("0.log");
        let rotate = |word: &str, name: &str| {
            fs::rename(&path, dir.0.join(format!("0.log.{name}"))).expect("rotate");
            fs::write(&path, format!("{T}Z stdout F {word}\n")).expect("write");
        };
        fs::write(&path, format!("{T}Z stdout F one\n")).expect("write");
        let follow = LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        let mut reader = LogReader::open(&path, None, follow).expect("open");
        assert_eq!(all(&mut reader), "one\n");
        rotate("two", "20231114-221320.1");
        rotate("three", "20231114-221320.2");
        rotate("four", "20231114-221320.3");
        assert_eq!(all(&mut reader), "two\nthree\nfour\n");
        // The file it reads goes, and what follows is compressed: it goes on with what there is.
        for n in 1..=3 {
            fs::remove_file(dir.0.join(format!("0.log.20231114-221320.{n}"))).expect("removed");
        }
        rotate("five", "20231114-221321.1");
        rotate("six", "20231114-221321.2");
        fs::remove_file(dir.0.join("0.log.20231114-221321.1")).expect("removed");
        fs::write(dir.0.join("0.log.20231114-221321.1.gz"), "x").expect("write");
        assert_eq!(all(&mut reader), "five\nsix\n");
    }

    #[test]
    fn between_two_files_the_last_one_is_the_log() {
        // LOG-03
        let dir = TestDir::new("log-between");
        let path = dir.0.join("0.log");
        let options = |follow| LogOptions {
            follow,
            ..LogOptions::default()
        };
        let none = LogReader::open(&path, None, options(false)).err();
        assert_eq!(none.expect("no file").kind(), io::ErrorKind::NotFound);
        for (name, word) in [("20231114-221320", "old"), ("20231114-221321", "one")] {
            let text = format!("{T}Z stdout F {word}\n");
            fs::write(dir.0.join(format!("0.log.{name}")), text).expect("write");
        }
        let mut reader = LogReader::open(&path, None, options(false)).expect("open");
        assert_eq!(all(&mut reader), "one\n");
        let mut reader = LogReader::open(&path, None, options(true)).expect("open");
        fs::write(&path, format!("{T}Z stdout F two\n")).expect("write");
        assert_eq!(all(&mut reader), "one\ntwo\n");
    }

    #[test]
    fn without_following_there_is_an_end() {
        let dir = TestDir::new("log-end");
        let path = dir.0.join("0.log");
        fs::write(&path, format!("{T}Z stdout F one\n")).expect("write");
        let mut reader = LogReader::open(&path, None, LogOptions::default()).expect("open");
        let mut file = File::options().append(true).open(&path).expect("append");
        let mut shown = Vec::new();
        // A container that writes faster than anybody reads.
        loop {
            writeln!(file, "{T}Z stdout F more").expect("append");
            match reader.next_chunk().expect("read") {
                LogChunk::Text(text) => shown.extend(text),
                LogChunk::End | LogChunk::Limit => break,
            }
        }
        assert_eq!(shown, b"one\n");
        // Nor is what came after the look at its length part of the tail.
        let mut source = LogSource {
            file: File::open(&path).expect("open"),
            memory: None,
            lost: None,
        };
        let first = format!("{T}Z stdout F one\n").len() as u64;
        for (lines, at) in [(0, first), (1, 0), (2, 0)] {
            let found = find_tail_offset(&mut source, first, lines).expect("tail");
            assert_eq!(found, at, "{lines} lines");
        }
    }

    /// A log of which the shim holds the end in memory.
    struct Held {
        dir: TestDir,
        lost: u64,
    }

    impl Held {
        fn path(&self) -> PathBuf {
            self.dir.0.join("0.log")
        }

        fn memory(&self) -> PathBuf {
            self.dir.0.join("held")
        }

        fn on_disk(&self, text: &str) {
            let mut options = File::options();
            let options = options.append(true).create(true);
            let mut file = options.open(self.path()).expect("open");
            file.write_all(text.as_bytes()).expect("append");
        }

        /// Begins a new memory: `text` is held behind the bytes that the file has now.
        fn hold(&self, text: &str) {
            let metadata = fs::metadata(self.path()).expect("file");
            let header = LogMemoryHeader {
                file: (metadata.dev(), metadata.ino()),
                begins: i64::try_from(metadata.len()).expect("small"),
                lost: self.lost,
            };
            let _ = fs::remove_file(self.memory());
            let mut bytes = header.encode().to_vec();
            bytes.extend_from_slice(text.as_bytes());
            fs::write(self.memory(), bytes).expect("written");
        }

        fn hold_more(&self, text: &str) {
            let mut file = File::options()
                .append(true)
                .open(self.memory())
                .expect("open");
            file.write_all(text.as_bytes()).expect("append");
        }

        /// Saves the memory as a shim does: the file first.
        fn save(&self) {
            let bytes = fs::read(self.memory()).expect("held");
            let text = core::str::from_utf8(&bytes[HEADER_BYTES..]).expect("text");
            self.on_disk(text);
            fs::remove_file(self.memory()).expect("removed");
        }

        fn reader(&self, options: LogOptions) -> LogReader {
            LogReader::open(&self.path(), Some(self.memory()), options).expect("open")
        }
    }

    fn held(name: &str) -> Held {
        Held {
            dir: TestDir::new(&format!("log-{name}")),
            lost: 0,
        }
    }

    #[test]
    fn disk_and_memory_are_read_as_one() {
        // WEAR-05
        let log = held("seam");
        let text = sample();
        let following = || LogOptions {
            follow: true,
            ..LogOptions::default()
        };
        // Wherever the seam is, also within a record: the shim died while it saved.
        for seam in 0..=text.len() {
            let _ = fs::remove_file(log.path());
            log.on_disk("");
            log.hold(&text);
            log.on_disk(&text[..seam]);
            for (options, shown) in [
                (LogOptions::default(), "one\ntwo\nthree\n\n"),
                (following(), "one\ntwo\nthree\n\n"),
                (
                    LogOptions {
                        tail: Some(2),
                        ..LogOptions::default()
                    },
                    "ee\n\n",
                ),
                (
                    LogOptions {
                        since: WallTime::parse(&format!("{T}.2Z")),
                        limit_bytes: Some(6),
                        ..LogOptions::default()
                    },
                    "two\nth",
                ),
            ] {
                let mut reader = log.reader(options);
                assert_eq!(all(&mut reader), shown, "{seam}");
            }
        }
        // In records that are whole, as it is as a rule.
        for (at, _) in text.match_indices('\n') {
            let _ = fs::remove_file(log.path());
            log.on_disk(&text[..=at]);
            log.hold(&text[at + 1..]);
            let tail = LogOptions {
                tail: Some(3),
                ..LogOptions::default()
            };
            assert_eq!(all(&mut log.reader(tail)), "three\n\n", "{at}");
        }
        // Memory of another file is not part of this log, and a file that is no such memory is ignored.
        fs::rename(log.path(), log.dir.0.join("old")).expect("renamed");
        log.on_disk(&format!("{T}Z stdout F new\n"));
        assert_eq!(all(&mut log.reader(LogOptions::default())), "new\n");
        fs::write(log.memory(), "short").expect("written");
        assert_eq!(all(&mut log.reader(LogOptions::default())), "new\n");
    }

    #[test]
    fn follow_goes_on_across_the_seam() {
        // WEAR-05
        let mut log = held("across");
        let record = |word: &str| format!("{T}Z stdout F {word}\n");
        log.on_disk(&record("one"));
        log.hold(&record("two"));
        let mut reader = log.reader(LogOptions {
            follow: true,
            ..LogOptions::default()
        });
        assert_eq!(all(&mut reader), "one\ntwo\n");
        log.hold_more(&format!("{T}Z stdout F cut"));
        assert_eq!(all(&mut reader), "");
        log.hold_more("-end\n");
        log.save();
        assert_eq!(all(&mut reader), "cut-end\n");
        // Saved and held anew between two looks, more than once.
        log.hold(&record("three"));
        log.save();
        log.hold(&record("four"));
        log.save();
        log.hold(&record("five"));
        assert_eq!(all(&mut reader), "three\nfour\nfive\n");
        // Rotated: what was held is saved before.
        log.hold_more(&record("six"));
        log.save();
        fs::rename(log.path(), log.dir.0.join("0.log.20231114-221320.1")).expect("rotated");
        log.on_disk("");
        log.hold(&record("seven"));
        assert_eq!(all(&mut reader), "six\nseven\n");
        // The oldest were given up, read or not.
        log.hold(&format!("{}{}", record("seven"), record("eight")));
        let [seven, eight] = ["seven", "eight"].map(|word| record(word).len());
        log.lost = u64::try_from(seven).expect("small");
        log.hold(&format!("{}{}", record("eight"), record("nine")));
        assert_eq!(all(&mut reader), "eight\nnine\n");
        log.lost += u64::try_from(eight + record("nine").len() + 99).expect("small");
        log.hold(&record("twelve"));
        assert_eq!(all(&mut reader), "twelve\n");
        log.save();
        assert_eq!(all(&mut reader), "");
    }

    #[test]
    fn without_following_there_is_an_end_in_memory_too() {
        // WEAR-05
        let log = held("held-end");
        let record = |word: &str| format!("{T}Z stdout F {word}\n");
        log.on_disk(&record("one"));
        log.hold(&record("two"));
        let mut reader = log.reader(LogOptions::default());
        let mut shown = Vec::new();
        loop {
            log.hold_more(&record("more"));
            match reader.next_chunk().expect("read") {
                LogChunk::Text(text) => shown.extend(text),
                LogChunk::End | LogChunk::Limit => break,
            }
        }
        assert_eq!(shown, b"one\ntwo\n");
    }

    #[test]
    fn hostile_logs() {
        let dir = TestDir::new("log-hostile");
        let path = dir.0.join("0.log");
        let mut text = vec![b'x'; MAX_RECORD_BYTES * 3];
        text.extend_from_slice(format!("\n{T}Z stdout F fine\n").as_bytes());
        fs::write(&path, text).expect("write");
        let mut reader = LogReader::open(&path, None, LogOptions::default()).expect("open");
        assert_eq!(all(&mut reader), "fine\n");
        let link = dir.0.join("1.log");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(
            LogReader::open(&link, None, LogOptions::default()).is_err(),
            "a link is never followed"
        );
        assert!(
            LogReader::open(&dir.0, None, LogOptions::default()).is_err(),
            "a directory is no log"
        );
    }
}
