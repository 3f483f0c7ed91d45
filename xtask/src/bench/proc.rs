//! What the kernel says about the memory and the wake-ups of processes.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use serde_json::Value;

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
    let sum = |keys: &[&str]| -> u64 { text.lines().filter_map(|line| number(line, keys)).sum() };
    Ok(Memory {
        pss: sum(&["Pss:"]),
        private: sum(&["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"]),
    })
}

pub(super) fn mem_available() -> Result<u64, Failure> {
    fs::read_to_string("/proc/meminfo")?
        .lines()
        .find_map(|line| number(line, &["MemAvailable:"]))
        .ok_or_else(|| "no MemAvailable in /proc/meminfo".into())
}

/// How often threads of these processes were put on a processor.
pub(super) fn switches(pids: &[u32]) -> u64 {
    let keys = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    pids.iter()
        .flat_map(|pid| {
            fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
        })
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .map(|text| -> u64 { text.lines().filter_map(|line| number(line, &keys)).sum() })
        .sum()
}

/// `Key:   123 kB`.
fn number(line: &str, keys: &[&str]) -> Option<u64> {
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

/// Every pod, asked for without starting a program: the measured agent is disturbed as little as can be.
pub(super) fn pods(socket: &Path) -> Result<Vec<Value>, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /pods HTTP/1.1\r\nHost: picolet\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let from = text.find('{').ok_or("no JSON in the answer")?;
    let to = text.rfind('}').ok_or("no JSON in the answer")?;
    let list: Value = serde_json::from_str(&text[from..=to])?;
    match list.get("items") {
        Some(Value::Array(items)) => Ok(items.clone()),
        _ => Err("the answer is no list".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        assert_eq!(number("Pss:                 12 kB", &["Pss:"]), Some(12));
        assert_eq!(number("Pss_Anon:            12 kB", &["Pss:"]), None);
        let own = [std::process::id()];
        assert!(memory(own[0]).unwrap().pss > 0);
        assert!(switches(&own) > 0);
    }
}
