//! Facts about processes and the boot, read from `/proc`. Nothing here allocates more than it returns.

use std::fs::File;
use std::io::{self, Read};

/// Identifies one boot: the text of `/proc/sys/kernel/random/boot_id`, 36 characters.
pub fn boot_id() -> io::Result<String> {
    let mut buffer = [0; 64];
    let text = read_small("/proc/sys/kernel/random/boot_id", &mut buffer)?;
    Ok(text.trim().into())
}

/// Reads the start time of process `pid`, in clock ticks since boot.
///
/// Together with the boot id it tells a process from a later one with the same number.
/// `NotFound` if there is no such process. Source: proc(5), field 22 of `/proc/<pid>/stat`.
pub fn start_time(pid: i32) -> io::Result<u64> {
    // 64 bytes for the name, then at most 50 numbers.
    let mut buffer = [0; 1200];
    let text = read_small(&format!("/proc/{pid}/stat"), &mut buffer)?;
    parse_start_time(text).ok_or_else(|| io::Error::other("unknown form of /proc/<pid>/stat"))
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The name may hold spaces and parentheses; the last one closes it.
    let (_, rest) = stat.rsplit_once(')')?;
    // Field 3 is the first after the name.
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Ticks a second of the times in `/proc`; the same on every architecture that Linux still has.
pub const TICKS: u64 = 100;

/// Seconds since the machine was started. Source: proc_uptime(5).
pub fn uptime_s() -> io::Result<u64> {
    let mut buffer = [0; 64];
    let text = read_small("/proc/uptime", &mut buffer)?;
    let seconds = text.split(['.', ' ']).next().and_then(|s| s.parse().ok());
    seconds.ok_or_else(|| io::Error::other("unknown form of /proc/uptime"))
}

/// Bytes that process `pid`, and those that it started and waited for, had written to disks; `None`: it is gone, or the
/// kernel does not count. Source: proc_pid_io(5).
#[must_use]
pub fn written_bytes(pid: i32) -> Option<u64> {
    let mut buffer = [0; 512];
    let text = read_small(&format!("/proc/{pid}/io"), &mut buffer).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("write_bytes: "));
    line?.parse().ok()
}

/// Reads a small text file into `buffer`; a longer text is cut.
pub fn read_small<'b>(path: &str, buffer: &'b mut [u8]) -> io::Result<&'b str> {
    let mut file = File::open(path)?;
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // The process ended between open and read.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            Err(e) => return Err(e),
        }
    }
    core::str::from_utf8(&buffer[..len]).map_err(io::Error::other)
}

/// Numbers of all processes there are, in no order.
pub fn list_pids() -> io::Result<Vec<i32>> {
    let entries = std::fs::read_dir("/proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times() {
        let line = |name: &str| {
            format!("7 ({name}) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 2 3\n")
        };
        for name in ["sh", "a b", ") S 9 9 (", ""] {
            assert_eq!(parse_start_time(&line(name)), Some(4711), "{name}");
        }
        assert_eq!(parse_start_time("7 (x"), None);
        let own = i32::try_from(std::process::id()).expect("pid");
        assert!(start_time(own).expect("own") > 0);
        assert_eq!(
            start_time(i32::MAX).expect_err("none").kind(),
            io::ErrorKind::NotFound
        );
        assert_eq!(boot_id().expect("boot id").len(), 36);
    }
}
