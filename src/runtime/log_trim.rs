//! The files of all logs, measured and removed: for `picolet.maxLogBytes`. Blocking, run on the disk lane.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use crate::{api::order::OrderExt as _, logic::log_budget::ContainerLogFiles, sys::open};

/// Files of one directory that are counted: a pod may have put any number beside its log.
const MAX_FILES: usize = 1024;

/// The log of one container: all files of all its instances.
#[derive(Debug)]
pub struct LogFiles {
    /// Log of the newest instance, or of the one that runs.
    pub path: PathBuf,
    /// Names, oldest first.
    pub names: Vec<OsString>,
    /// Sizes of these files.
    pub log: ContainerLogFiles,
}

/// Measures the log of a container. `path` is the log of the running instance, or of any if none runs.
///
/// - Errors: none; a directory that cannot be read counts as empty.
#[must_use]
pub fn measure_log(path: PathBuf, runs: bool) -> LogFiles {
    let mut found = list_log_files(&path).unwrap_or_default();
    // Sorted by instance; within one first its rotated files by name, then the file that is or was written.
    found.stable_sort_by(|(a, _), (b, _)| log_age_key(a).cmp(&log_age_key(b)));
    let live = path.file_name();
    let is_written = runs && found.last().is_some_and(|(name, _)| Some(&**name) == live);
    let (names, files) = found.into_iter().unzip();
    LogFiles {
        path,
        names,
        log: ContainerLogFiles { files, is_written },
    }
}

/// Removes these files of the log at `path`; one that has gone is no error.
pub fn remove_log_files(path: &Path, names: &[OsString]) -> io::Result<()> {
    // Pods may see this directory and put links in its place: everything happens in the one that was opened.
    let dir = open::open_log_dir(path)?;
    let dir = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    for name in names {
        match fs::remove_file(dir.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn list_log_files(path: &Path) -> io::Result<Vec<(OsString, u64)>> {
    let dir = open::open_log_dir(path)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))?.take(MAX_FILES) {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if log_age_key(&entry.file_name()).is_some() && metadata.is_file() {
            found.push((entry.file_name(), metadata.len()));
        }
    }
    Ok(found)
}

/// Sort key for the age of a log's file; `None`: the file is no log.
fn log_age_key(name: &OsStr) -> Option<(u32, bool, &str)> {
    let (number, rest) = name.to_str()?.split_once(".log")?;
    let is_ours = rest.is_empty() || rest.starts_with('.');
    is_ours.then_some((number.parse().ok()?, rest.is_empty(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_first() {
        let dir = crate::testing::unused_path("trim");
        let pod = dir.join("default_a_u/c");
        fs::create_dir_all(pod.join("3.log.d")).expect("scratch");
        for (name, bytes) in [
            ("10.log", 1),
            ("9.log", 2),
            ("9.log.20240101-000000.gz", 3),
            ("10.log.20240102-000000", 4),
            ("10.log.20240101-000000.5", 5),
            ("note", 9),
            ("1.logs", 9),
        ] {
            fs::write(pod.join(name), vec![0; bytes]).expect("write");
        }
        std::os::unix::fs::symlink("/dev/zero", pod.join("2.log")).expect("link");
        let found = measure_log(pod.join("10.log"), true);
        assert_eq!(found.log.files, [3, 2, 5, 4, 1]);
        assert!(found.log.is_written);
        assert!(!measure_log(pod.join("10.log"), false).log.is_written);
        assert!(!measure_log(pod.join("9.log"), true).log.is_written);
        remove_log_files(&found.path, &found.names[..2]).expect("removed");
        remove_log_files(&found.path, &found.names[..2]).expect("gone already");
        assert_eq!(measure_log(found.path, true).log.files, [5, 4, 1]);
        assert!(measure_log(dir.join("none/0.log"), true).names.is_empty());
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
