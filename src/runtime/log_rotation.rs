//! Rotation of container logs: blocking, run on the disk lane. Rows LOG-06, LOG-07.
//!
//! The live file is renamed, the writer reopens it, and older rotated files are compressed, in this order, so that no
//! line is lost and at most one of the rotated files is plain text.
//!
//! Our own shims rotate by themselves, as they write ([`crate::shim`]): of their logs the agent only compresses the older files.

use alloc::collections::BTreeMap;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use nix::{errno::Errno, fcntl::OFlag};

use crate::api::WallTime;
use crate::api::order::OrderExt;
use crate::sys::{file, open};

/// Returns true if the live file at `path` has reached `limit` bytes. A missing file counts: the writer must reopen it.
pub fn is_rotation_due(path: &Path, limit: u64) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(meta.len() >= limit),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// Makes room among the rotated files, then renames the live file. Returns its new name, `None` if there was none.
///
/// - Shape: `max_files` counts the live file too and is at least 2.
/// - Errors: nothing was renamed; try again at the next check.
pub fn rotate_log(path: &Path, max_files: usize, now: WallTime) -> io::Result<Option<PathBuf>> {
    // Pods may see this directory and put links in its place: everything happens in the one that was opened.
    let dir = open::open_log_dir(path)?;
    let pinned = path_in_dir(&dir, path);
    Ok(rotate_within(&pinned, max_files, now)?.map(|name| path.with_file_name(name)))
}

/// Bytes that are compressed at one look at most, but for the last file: some seconds of a small board's processor.
const MAX_COMPRESSED_BYTES: u64 = 8 * 1024 * 1024;

/// State of a log's directory at the last look: nothing was rotated while it stays the same.
pub type LogDirectoryStates = BTreeMap<PathBuf, (i64, i64)>;

/// Compresses files that writers have rotated: all but the newest of each log in `lives`, the oldest first, as many as
/// one look may. Returns the state for the next look, and the logs with errors.
///
/// - `max_bytes`, `max_files`: limits of a log. A file is compressed only while its copy has room beside it, so that a
///   log never exceeds them, however fast its writer is.
pub fn compress_rotated(
    lives: Vec<PathBuf>,
    mut looked_before: LogDirectoryStates,
    max_bytes: u64,
    max_files: usize,
) -> (LogDirectoryStates, Vec<(PathBuf, io::Error)>) {
    let (mut left, mut failed) = (MAX_COMPRESSED_BYTES, Vec::new());
    let mut looked = LogDirectoryStates::new();
    for live in lives {
        let before = looked_before.remove(&live);
        let is_done = left == 0 || before.is_some() && before == directory_state(&live);
        if is_done {
            looked.extend(before.map(|before| (live, before)));
            continue;
        }
        let result = open::open_log_dir(&live).and_then(|dir| {
            let pinned = path_in_dir(&dir, &live);
            let metadata = fs::metadata(pinned.parent().unwrap_or(&pinned))?;
            let state = (metadata.mtime(), metadata.mtime_nsec());
            let room = max_bytes.saturating_mul(u64::try_from(max_files).unwrap_or(u64::MAX));
            let (done, is_tidy) = compress_some(&pinned, room.saturating_sub(max_bytes), left)?;
            left = left.saturating_sub(done);
            if is_tidy {
                looked.insert(live.clone(), state);
            }
            Ok(())
        });
        match result {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => failed.push((live, e)),
            Ok(()) => {}
        }
    }
    (looked, failed)
}

/// State of the directory of a log, as far as a single look tells: a link in its place has another state.
fn directory_state(live: &Path) -> Option<(i64, i64)> {
    let metadata = fs::symlink_metadata(live.parent()?).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec()))
}

/// Compresses rotated files of one log until `most` bytes are done; `room` for all rotated files. Returns the bytes
/// done, and true if nothing is left to do.
fn compress_some(live: &Path, room: u64, most: u64) -> io::Result<(u64, bool)> {
    let mut done = 0;
    let mut rotated = list_and_clean_rotated(live)?;
    let newest = rotated.pop();
    let size = |path: &Path| fs::symlink_metadata(path).map_or(0, |metadata| metadata.len());
    for plain in rotated.iter().filter(|p| !is_compressed(p)) {
        if done >= most {
            return Ok((done, false));
        }
        // Counted for each file: the writer goes on meanwhile.
        let all = rotated_files(live)?.iter().map(|p| size(p)).sum::<u64>();
        let own = size(plain);
        if all.saturating_add(own) > room {
            return Ok((done, false));
        }
        compress(plain)?;
        done += own;
    }
    // After a compression the log is looked at once more: its writer may have rotated meanwhile.
    Ok((done, done == 0 && (newest.is_some() || rotated.is_empty())))
}

/// `path` by way of its opened directory.
fn path_in_dir(dir: &OwnedFd, path: &Path) -> PathBuf {
    let dir = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    dir.join(path.file_name().unwrap_or_default())
}

fn rotate_within(path: &Path, max_files: usize, now: WallTime) -> io::Result<Option<OsString>> {
    if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        // There is nothing to make room for.
        return Ok(None);
    }
    let mut rotated = list_and_clean_rotated(path)?;
    // A crash between compression and removal leaves both: the compressed one is whole.
    let compressed: Vec<_> = rotated
        .iter()
        .filter(|p| is_compressed(p))
        .map(|p| p.with_extension(""))
        .collect();
    for twin in rotated.extract_if(.., |p| !is_compressed(p) && compressed.contains(p)) {
        fs::remove_file(twin)?;
    }
    // One place for the live file, one for the file rotated now.
    let keep = max_files.saturating_sub(2);
    let excess = rotated.len().saturating_sub(keep);
    for oldest in rotated.drain(..excess) {
        fs::remove_file(oldest)?;
    }
    for plain in rotated.iter().filter(|p| !is_compressed(p)) {
        compress(plain)?;
    }
    let target = rotated_name(path, now);
    match fs::rename(path, &target) {
        Ok(()) => Ok(target.file_name().map(ToOwned::to_owned)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Undoes a rotation because the writer could not reopen, unless there is a new live file.
pub fn undo_rotation(path: &Path, rotated: &Path) -> io::Result<()> {
    let dir = open::open_log_dir(path)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_owned();
    match file::rename_new(&dir, &name(rotated), &dir, &name(path)) {
        // The writer has reopened after all: it writes the new file.
        Err(Errno::EEXIST) => Ok(()),
        result => Ok(result?),
    }
}

/// Removes logs of a container's forgotten instances, rotated files included: a boot makes the agent forget its
/// instances, and a pod that lives for years would keep a log of each.
///
/// - Shape: `live` is the log of any instance of the container; `known` the file names of all; of the others only older
///   ones go, and the newest `keep` of them stay.
/// - Errors: the first file that could not be removed; the next call tries it again.
pub fn remove_forgotten_logs(live: &Path, known: &[OsString], keep: usize) -> io::Result<()> {
    let number = |name: &std::ffi::OsStr| -> Option<u32> {
        let (number, _) = name.to_str()?.split_once(".log")?;
        number.parse().ok()
    };
    let Some(newest) = known.iter().filter_map(|name| number(name)).max() else {
        return Ok(());
    };
    let dir = open::open_log_dir(live)?;
    let pinned = path_in_dir(&dir, live);
    let mut found = Vec::new();
    for entry in fs::read_dir(pinned.parent().unwrap_or(&pinned))? {
        let entry = entry?;
        if let Some(n) = number(&entry.file_name())
            && n < newest
            && !known.iter().any(|name| number(name) == Some(n))
            && entry.file_type()?.is_file()
        {
            found.push((n, entry.path()));
        }
    }
    let mut numbers: Vec<u32> = found.iter().map(|(n, _)| *n).collect();
    numbers.stable_sort_by(|a, b| b.cmp(a));
    numbers.dedup();
    numbers.drain(..keep.min(numbers.len()));
    for (_, path) in found.iter().filter(|(n, _)| numbers.contains(n)) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// `<N>.log.<YYYYMMDD-HHMMSS>`.
fn rotated_name(path: &Path, now: WallTime) -> PathBuf {
    let at = now.date_time();
    let mut name = path.as_os_str().to_owned();
    name.push(format!(
        ".{:04}{:02}{:02}-{:02}{:02}{:02}",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    ));
    PathBuf::from(name)
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "gz")
}

/// Rotated files beside the live one, oldest first by name. Only regular files count: a pod put the others there.
fn rotated_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "log path has no file name or directory",
        )
    };
    let prefix = path
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or_else(missing)?
        .to_owned()
        + ".";
    let mut files = Vec::new();
    for entry in fs::read_dir(path.parent().ok_or_else(missing)?)? {
        let entry = entry?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|n| n.starts_with(&prefix));
        if ours && entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.stable_sort();
    Ok(files)
}

/// Lists files as [`rotated_files`] does, and removes copies whose compression was broken off: they would take room of
/// the log.
fn list_and_clean_rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut rotated = rotated_files(path)?;
    for leftover in rotated.extract_if(.., |p| p.extension().is_some_and(|e| e == "tmp")) {
        ignore_not_found(fs::remove_file(leftover))?;
    }
    Ok(rotated)
}

/// Makes "not found" a success: the writer makes room by itself, and may have removed the file meanwhile.
fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Replaces `plain` by `plain.gz`, written aside and renamed.
fn compress(plain: &Path) -> io::Result<()> {
    let with = |suffix: &str| {
        let mut name = plain.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (staged, done) = (with(".tmp"), with(".gz"));
    let mut source = File::options()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(plain)?;
    if !source.metadata()?.is_file() {
        // It was replaced after the directory was read. Reading a FIFO would hold the disk lane for ever.
        return fs::remove_file(plain);
    }
    // A link that a pod put there.
    ignore_not_found(fs::remove_file(&staged))?;
    let target = File::options()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(&staged)?;
    if let Err(e) = zip(&mut source, target) {
        // The half copy would keep a full disk full.
        let _ = fs::remove_file(&staged);
        return Err(e);
    }
    // The writer may have removed both meanwhile.
    ignore_not_found(fs::rename(&staged, &done))?;
    ignore_not_found(fs::remove_file(plain))
}

fn zip(source: &mut File, target: File) -> io::Result<()> {
    let mut encoder = GzEncoder::new(target, Compression::fast());
    io::copy(source, &mut encoder)?;
    encoder.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("directory")
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn keeps_the_newest_and_compresses_all_but_the_last() {
        // LOG-07
        let dir = crate::testing::unused_path("rotate");
        fs::create_dir_all(&dir).expect("scratch");
        let path = dir.join("0.log");
        let at = |n: i64| WallTime::from_unix_seconds(1_700_000_000 + n);
        for n in 0..5 {
            fs::write(&path, format!("line {n}\n")).expect("write");
            assert!(rotate_log(&path, 4, at(n)).expect("rotate").is_some());
        }
        assert_eq!(
            names(&dir),
            [
                "0.log.20231114-221322.gz",
                "0.log.20231114-221323.gz",
                "0.log.20231114-221324"
            ],
            "with the live file: four"
        );
        let mut text = String::new();
        let file = File::open(dir.join("0.log.20231114-221323.gz")).expect("open");
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .expect("unzip");
        assert_eq!(text, "line 3\n");

        // A crash leaves a staged file and a plain twin.
        fs::write(dir.join("0.log.20231114-221324.tmp"), "half").expect("write");
        fs::write(dir.join("0.log.20231114-221323"), "twin").expect("write");
        fs::write(&path, "last\n").expect("write");
        let rotated = rotate_log(&path, 4, at(9))
            .expect("rotate")
            .expect("renamed");
        assert_eq!(
            names(&dir),
            [
                "0.log.20231114-221323.gz",
                "0.log.20231114-221324.gz",
                "0.log.20231114-221329"
            ]
        );
        fs::write(&path, "of a writer that reopened").expect("write");
        undo_rotation(&path, &rotated).expect("done already");
        assert_eq!(fs::read(&path).expect("live"), b"of a writer that reopened");
        assert_eq!(fs::read(&rotated).expect("rotated"), b"last\n");
        fs::remove_file(&path).expect("remove");
        undo_rotation(&path, &rotated).expect("undo");
        assert!(
            !is_rotation_due(&path, 6).expect("size") && is_rotation_due(&path, 5).expect("size")
        );
        fs::remove_file(&path).expect("remove");
        assert!(
            is_rotation_due(&path, 6).expect("missing"),
            "a missing live file must be reopened"
        );
        assert_eq!(rotate_log(&path, 4, at(10)).expect("rotate"), None);
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn what_a_writer_has_rotated_is_compressed_while_there_is_room() {
        // LOG-07
        let dir = crate::testing::unused_path("compress");
        let pod = dir.join("default_a_u/c");
        fs::create_dir_all(&pod).expect("scratch");
        let live = pod.join("0.log");
        let look = |looked: LogDirectoryStates| {
            let (looked, failed) = compress_rotated(vec![live.clone()], looked, 1000, 5);
            assert!(failed.is_empty(), "{failed:?}");
            looked
        };
        for (name, bytes) in [
            ("", 500),
            (".20231114-221320", 999),
            (".20231114-221321.1", 999),
            (".20231114-221321.2", 999),
        ] {
            fs::write(pod.join(format!("0.log{name}")), vec![b'x'; bytes]).expect("write");
        }
        // 2997 bytes, and a copy of 999 to come: with the live file's 1000 that is as much as there may be.
        // An agent that was killed has left its copies, of a file that is there and of one that is not.
        for leftover in ["0.log.20231114-221319.9.tmp", "0.log.20231114-221321.1.tmp"] {
            fs::write(pod.join(leftover), "half").expect("write");
        }
        // And a pod has put a link in the way.
        std::os::unix::fs::symlink("0.log", pod.join("0.log.20231114-221320.tmp")).expect("link");
        let looked = look(LogDirectoryStates::new());
        let tidy = [
            "0.log",
            "0.log.20231114-221320.gz",
            "0.log.20231114-221321.1.gz",
            "0.log.20231114-221321.2",
        ];
        assert_eq!(names(&pod), tidy);
        let looked = look(look(looked));
        assert_eq!(
            looked.len(),
            1,
            "there is nothing to look at until something is rotated"
        );
        // A writer that is faster: every file is full, and none has room for a copy.
        fs::remove_file(pod.join(tidy[1])).expect("removed");
        fs::remove_file(pod.join(tidy[2])).expect("removed");
        for n in 3..6 {
            fs::write(
                pod.join(format!("0.log.20231114-221321.{n}")),
                vec![b'x'; 999],
            )
            .expect("write");
        }
        let before = names(&pod);
        let looked = look(looked);
        assert_eq!((names(&pod), looked.len()), (before, 0));
        // The writer made room while a file was compressed.
        let twin = pod.join("0.log.20231114-221321.2");
        compress(&twin).expect("compressed");
        assert!(!twin.exists() && pod.join("0.log.20231114-221321.2.gz").exists());
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn logs_of_earlier_boots_go() {
        // GC-01 LOG-09
        let dir = crate::testing::unused_path("forgotten");
        fs::create_dir_all(dir.join("1.log.d")).expect("scratch");
        let all = [
            "0.log",
            "1.log",
            "2.log",
            "2.log.20231114-221322.gz",
            "3.log",
            "4.log",
            "5.log",
            "9.log",
            "note",
            "x.log",
        ];
        for name in all {
            fs::write(dir.join(name), "").expect("write");
        }
        let known = ["3.log", "5.log"].map(OsString::from);
        remove_forgotten_logs(&dir.join("5.log"), &known, 2).expect("removed");
        assert_eq!(
            names(&dir),
            [
                "1.log.d",
                "2.log",
                "2.log.20231114-221322.gz",
                "3.log",
                "4.log",
                "5.log",
                "9.log",
                "note",
                "x.log"
            ],
            "the two newest stay, and what is known, later, or no log"
        );
        remove_forgotten_logs(&dir.join("5.log"), &[], 0).expect("nothing is known");
        assert!(dir.join("2.log").exists());
        remove_forgotten_logs(&dir.join("5.log"), &known, 0).expect("removed");
        assert_eq!(
            names(&dir),
            ["1.log.d", "3.log", "5.log", "9.log", "note", "x.log"]
        );
        fs::remove_dir_all(&dir).expect("clean up");
    }

    /// Links, pipes and directories that a pod puts beside its log neither stop rotation nor are followed.
    #[test]
    fn links_pipes_and_directories_in_the_way() {
        let dir = crate::testing::unused_path("rotate-odd");
        fs::create_dir_all(&dir).expect("scratch");
        let path = dir.join("0.log");
        let victim = dir.join("victim");
        fs::write(&victim, "not a log").expect("write");
        let odd = ["0.log.1", "0.log.2", "0.log.3", "0.log.4.tmp"];
        std::os::unix::fs::symlink(&victim, dir.join(odd[0])).expect("link");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&dir.join(odd[1]), mode).expect("pipe");
        fs::create_dir(dir.join(odd[2])).expect("directory");
        std::os::unix::fs::symlink(&victim, dir.join(odd[3])).expect("link");
        for n in 0..5 {
            fs::write(&path, format!("line {n}\n")).expect("write");
            let at = WallTime::from_unix_seconds(1_700_000_000 + n);
            assert!(rotate_log(&path, 3, at).expect("rotate").is_some());
        }
        let mut left = names(&dir);
        left.retain(|n| n.starts_with("0.log.2023"));
        assert_eq!(left, ["0.log.20231114-221323.gz", "0.log.20231114-221324"]);
        assert_eq!(fs::read(&victim).expect("victim"), b"not a log");
        compress(&dir.join(odd[1])).expect("a pipe swapped in blocks nothing");
        compress(&dir.join(odd[0])).expect_err("a link swapped in is not followed");
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
