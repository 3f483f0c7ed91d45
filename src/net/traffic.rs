//! Traffic through the interfaces of a network namespace. Source: proc_pid_net(5), `/proc/<pid>/net/dev`.

use std::{fs::File, io, io::Read as _, path::Path};

use crate::api::stats::{InterfaceCounts, TrafficCounts};

/// Interfaces of one namespace that are reported; a machine with more has them for its workloads.
const MAX_INTERFACES: usize = 64;
/// Bytes read: about 120 a line, and as many lines as a board with [`MAX_INTERFACES`] and a `veth` for each of 250 pods has.
const MAX_BYTES: u64 = 40 * 1024;
/// Beginnings of names of interfaces that only lead to others, as cAdvisor leaves them out.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Counts of the namespace that the calling thread is in, in the kernel's order.
pub fn read_thread_interfaces() -> io::Result<Vec<InterfaceCounts>> {
    read_interfaces(Path::new("/proc/thread-self/net/dev"))
}

/// Counts of the namespace that a process is in.
pub fn read_process_interfaces(pid: i32) -> io::Result<Vec<InterfaceCounts>> {
    read_interfaces(Path::new(&format!("/proc/{pid}/net/dev")))
}

fn read_interfaces(path: &Path) -> io::Result<Vec<InterfaceCounts>> {
    let mut text = String::new();
    File::open(path)?
        .take(MAX_BYTES)
        .read_to_string(&mut text)?;
    Ok(parse_interfaces(&text))
}

fn parse_interfaces(text: &str) -> Vec<InterfaceCounts> {
    let interfaces = text.lines().skip(2).filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let name = name.trim();
        if IGNORED.iter().any(|start| name.starts_with(start)) {
            return None;
        }
        let mut counts = counts.split_ascii_whitespace().map(str::parse);
        let mut all = [0_u64; 12];
        for count in &mut all {
            *count = counts.next()?.ok()?;
        }
        // bytes packets errs drop fifo frame compressed multicast, and the same for what was sent
        let traffic = |at: usize| TrafficCounts {
            bytes: all[at],
            packets: all[at + 1],
            errors: all[at + 2],
            dropped: all[at + 3],
        };
        Some(InterfaceCounts {
            name: name.to_owned(),
            rx: traffic(0),
            tx: traffic(8),
        })
    });
    interfaces.take(MAX_INTERFACES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
  eth0:  1000      10    1    2    0     0          0         0     2000      20    3    4    0     0       0          0
vethab: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
 short: 1 2
";
        let all = parse_interfaces(text);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].name, "eth0");
        let (rx, tx) = (all[0].rx, all[0].tx);
        assert_eq!(
            (rx.bytes, rx.packets, rx.errors, rx.dropped),
            (1000, 10, 1, 2)
        );
        assert_eq!(
            (tx.bytes, tx.packets, tx.errors, tx.dropped),
            (2000, 20, 3, 4)
        );
        assert_eq!(parse_interfaces(""), []);
        assert!(read_thread_interfaces().is_ok());
    }
}
