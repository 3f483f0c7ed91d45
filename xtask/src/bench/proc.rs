//! What the kernel says about memory and processor time.

use std::{fs, time::Duration};

use crate::{Failure, process::with_word, stage::Stage};

/// Memory of one process in KiB.
pub(super) struct Memory {
    /// Its share of everything it maps.
    pub(super) pss: u64,
    /// What nobody else maps.
    pub(super) private: u64,
}

pub(super) fn memory(pid: u32) -> Result<Memory, Failure> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let sum = |keys: &[&str]| -> u64 { text.lines().filter_map(|line| kib(line, keys)).sum() };
    Ok(Memory {
        pss: sum(&["Pss:"]),
        private: sum(&["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"]),
    })
}

pub(super) fn mem_available() -> Result<u64, Failure> {
    fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|line| kib(line, &["MemAvailable:"]))
        .ok_or_else(|| "no MemAvailable in /proc/meminfo".into())
}

/// `Key:   123 kB`.
fn kib(line: &str, keys: &[&str]) -> Option<u64> {
    let mut words = line.split_whitespace();
    let key = words.next()?;
    keys.contains(&key).then(|| words.next()?.parse().ok())?
}

/// Shims of the stage.
pub(super) fn shims(stage: &Stage) -> Vec<u32> {
    with_word(&stage.mark)
        .into_iter()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|b| *b == 0).nth(1) == Some(b"shim"))
        })
        .collect()
}

/// Processor time of these processes, with the children they have waited for if `children`.
pub(super) fn cpu_of(pids: &[u32], children: bool) -> Duration {
    pids.iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .filter_map(|stat| cpu(&stat, children))
        .sum()
}

/// `proc_pid_stat(5)`: fields 14 to 17 in ticks of 10 ms; counted from behind the name, which may hold blanks.
fn cpu(stat: &str, children: bool) -> Option<Duration> {
    const TICK: Duration = Duration::from_millis(10);
    let fields: Vec<u32> = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .skip(11)
        .take(if children { 4 } else { 2 })
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(TICK * fields.iter().sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_the_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 200 0 0 3 4 50 60 20 0 1 0 100 1000 10";
        assert_eq!(cpu(stat, false), Some(Duration::from_millis(70)));
        assert_eq!(cpu(stat, true), Some(Duration::from_millis(1170)));
    }

    #[test]
    fn memory_lines() {
        assert_eq!(kib("Pss:                 12 kB", &["Pss:"]), Some(12));
        assert_eq!(kib("Pss_Anon:            12 kB", &["Pss:"]), None);
        assert!(memory(std::process::id()).unwrap().pss > 0);
    }
}
