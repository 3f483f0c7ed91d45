//! What the kernel and systemd say.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use super::call;
use crate::Failure;

/// The one tree of control groups.
pub(super) const TREE: &str = "/sys/fs/cgroup";
/// Longest answer that is read, bytes.
const ANSWER_LIMIT: u64 = 64 << 10;

/// A file's text without the end of its line.
pub(super) fn text(path: impl AsRef<Path>) -> Result<String, Failure> {
    let path = path.as_ref();
    fs::read_to_string(path)
        .map(|text| text.trim_end().to_owned())
        .map_err(|e| format!("{}: {e}", path.display()).into())
}

/// A property of picolet's unit.
pub(super) fn unit(property: &str) -> Result<String, Failure> {
    call(&["systemctl", "show", "--value", "-p", property, "picolet"])
}

/// The first process of every container: name of its cgroup → pid and start time, which together nobody has twice.
pub(super) fn inits() -> BTreeMap<String, (u32, String)> {
    let mut found = BTreeMap::new();
    for dir in control_groups(&Path::new(TREE).join("kubepods")) {
        for pid in members(&dir) {
            let status = text(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_init = status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))
                .is_some_and(|pids| pids.split_whitespace().nth(1) == Some("1"));
            let stat = text(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Fields after the name, which may have blanks: the start time is the 22nd of all.
            let start = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().nth(19));
            if let (true, Some(start), Some(name)) = (is_init, start, dir.file_name()) {
                found.insert(name.to_string_lossy().into_owned(), (pid, start.to_owned()));
            }
        }
    }
    found
}

/// `dir` and every control group below it.
pub(super) fn control_groups(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else {
        return found;
    };
    found.push(dir.to_path_buf());
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            found.extend(control_groups(&entry.path()));
        }
    }
    found
}

pub(super) fn members(group: &Path) -> Vec<u32> {
    text(group.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Shims.
pub(super) fn shims() -> Vec<u32> {
    members(&Path::new(TREE).join("picolet-shims"))
}

/// `MemAvailable`, KiB.
pub(super) fn available() -> Result<u64, Failure> {
    let text = text("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let number = line.and_then(|l| l.split_whitespace().next()).unwrap_or("");
    Ok(number.parse()?)
}

/// Proportional and private memory of a process, KiB.
pub(super) fn memory(pid: u32) -> Result<(u64, u64), Failure> {
    let rollup = text(format!("/proc/{pid}/smaps_rollup"))?;
    let sum = |names: &[&str]| {
        rollup
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.split_once(':')?;
                names.contains(&name).then_some(())?;
                rest.split_whitespace().next()?.parse::<u64>().ok()
            })
            .sum()
    };
    Ok((sum(&["Pss"]), sum(&["Private_Clean", "Private_Dirty"])))
}

/// Mount points of a kind of file system, or below a directory.
pub(super) fn mounts(is_wanted: impl Fn(&str, &str) -> bool) -> Vec<String> {
    text("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = left.split(' ').nth(4)?;
            let kind = right.split(' ').next()?;
            is_wanted(kind, point).then(|| point.to_owned())
        })
        .collect()
}

/// Host ends of the pods' interfaces.
pub(super) fn veths() -> Vec<String> {
    fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("veth"))
        .collect()
}

/// Body of `GET path`.
pub(super) fn http(ip: IpAddr, port: u16, path: &str) -> Result<String, Failure> {
    let limit = Duration::from_secs(5);
    let address = SocketAddr::new(ip, port);
    let mut stream =
        TcpStream::connect_timeout(&address, limit).map_err(|e| format!("{address}: {e}"))?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_LIMIT).read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => {
            Ok(body.trim_end().to_owned())
        }
        _ => Err(format!("{address}{path}: {answer:?}").into()),
    }
}
