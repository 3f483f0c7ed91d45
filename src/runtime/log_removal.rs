//! Removal of an instance's log and of the links to it. Blocking.

use std::{fs, io, os::fd::AsRawFd as _, path::Path};

use nix::errno::Errno;

use super::{LogRetention, log_links::LogLinks};
use crate::sys::open;

/// Removes a log, its rotated files, and links of the legacy directory.
fn remove_logs(log: &Path, links: &Path, link_end: &str) -> io::Result<()> {
    if let Some(name) = log.file_name().and_then(|n| n.to_str()) {
        remove_beside(log, |found| found.starts_with(name))?;
    }
    if !links.as_os_str().is_empty() {
        match LogLinks::open(links) {
            Ok(None) => {}
            Ok(Some(open)) => remove_those(&open.fd_path(), |found| found.ends_with(link_end))?,
            // Nothing of ours is behind it. Who makes links says so.
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes the logs of an instance that is removed. If these stay, removes those of earlier instances: a pod may start
/// over without end.
pub(crate) fn remove_instance_logs(
    logs: LogRetention,
    log: &Path,
    links: &Path,
    link_end: &str,
) -> io::Result<()> {
    let attempt = |name: &str| name.split_once(".log")?.0.parse::<u32>().ok();
    match (logs, log.file_name().and_then(|n| n.to_str())) {
        (LogRetention::Remove, _) => remove_logs(log, links, link_end),
        (LogRetention::Keep, Some(name)) => {
            let own = attempt(name);
            remove_beside(log, |found| attempt(found).is_some_and(|n| Some(n) < own))
        }
        (LogRetention::Keep, None) => Ok(()),
    }
}

/// Removes files in the directory of `log`. Where a pod has put a link or a file in its place, or in the place of the one above
/// it, there is no log of ours.
fn remove_beside(log: &Path, is_one: impl Fn(&str) -> bool) -> io::Result<()> {
    match open::open_log_dir(log) {
        Ok(dir) => {
            let pinned = format!("/proc/self/fd/{}", dir.as_raw_fd());
            remove_those(pinned.as_ref(), is_one)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ELOOP | Errno::ENOTDIR) => {
                log::warn!(
                    "the other logs in the directory of {} are not removed: {e}",
                    log.display()
                );
                Ok(())
            }
            _ => Err(e),
        },
    }
}

/// Removes files by their names. Absent counts as removed, a directory too.
fn remove_those(dir: &Path, is_one: impl Fn(&str) -> bool) -> io::Result<()> {
    let absent = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    let entries = match fs::read_dir(dir) {
        Err(e) if absent(&e) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Names of ours are ASCII: others are not ours.
        if entry.file_name().to_str().is_some_and(&is_one)
            && let Err(e) = fs::remove_file(entry.path())
            && !absent(&e)
        {
            return Err(e);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).expect("directory");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("entry")
                    .file_name()
                    .into_string()
                    .expect("name")
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn logs_go_with_their_instance() {
        // LOG-09
        let dir = crate::testing::unused_path("rmlogs");
        let links = dir.join("links");
        fs::create_dir_all(&links).expect("dir");
        for name in [
            "1.log",
            "1.log.20240101-000000",
            "1.log.20240101-000000.gz",
            "11.log",
            "0.log",
        ] {
            fs::write(dir.join(name), "").expect("file");
        }
        for name in ["p_ns_app-abc.log", "p_ns_app-abd.log"] {
            std::os::unix::fs::symlink("/nowhere", links.join(name)).expect("link");
        }
        let remove =
            |logs, name: &str, end| remove_instance_logs(logs, &dir.join(name), &links, end);
        remove(LogRetention::Remove, "1.log", "app-abc.log").expect("removed");
        assert_eq!(names(&dir), ["0.log", "11.log", "links"]);
        assert_eq!(names(&links), ["p_ns_app-abd.log"]);
        remove(LogRetention::Remove, "gone/1.log", "x").expect("absent is fine");
        // ACT-72
        fs::write(dir.join("9.log.20240101-000000.gz"), "").expect("file");
        remove(LogRetention::Keep, "11.log", "app-abd.log").expect("removed");
        assert_eq!(names(&dir), ["11.log", "links"]);
        assert_eq!(names(&links).len(), 1);
        remove(LogRetention::Keep, "gone/1.log", "x").expect("absent is fine");
        // A link in the place of the directory of links.
        std::os::unix::fs::symlink(&dir, dir.join("planted")).expect("link");
        fs::write(dir.join("app-abc.log"), "").expect("file");
        let planted = dir.join("planted");
        remove_logs(&dir.join("1.log"), &planted, "app-abc.log").expect("nothing of ours");
        assert!(dir.join("app-abc.log").exists());
        fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn links_in_the_place_of_logs_lead_nowhere() {
        // LOG-09
        let top = crate::testing::unused_path("rmlinks");
        fs::create_dir_all(top.join("victim/main")).expect("dir");
        fs::create_dir_all(top.join("pod")).expect("dir");
        for name in ["0.log", "1.log"] {
            fs::write(top.join("victim/main").join(name), "").expect("file");
        }
        std::os::unix::fs::symlink("victim", top.join("by-pod")).expect("link");
        std::os::unix::fs::symlink("../victim/main", top.join("pod/link")).expect("link");
        fs::write(top.join("pod/file"), "").expect("file");
        for dir in ["by-pod/main", "pod/link", "pod/file"] {
            for logs in [LogRetention::Remove, LogRetention::Keep] {
                let log = top.join(dir).join("1.log");
                remove_instance_logs(logs, &log, Path::new(""), "x").expect("nothing of ours");
            }
        }
        assert_eq!(names(&top.join("victim/main")), ["0.log", "1.log"]);
        fs::remove_dir_all(top).expect("clean");
    }
}
