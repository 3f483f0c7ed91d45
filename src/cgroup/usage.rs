//! Usage of a control group. A few small files a group, each read whole by one read; nothing is kept open.
//!
//! Sources: kernel `Documentation/admin-guide/cgroup-v2.rst`, `cgroup-v1/{cpuacct,memory}.rst`, `accounting/psi.rst`;
//! for the working set: cAdvisor.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{CgroupVersion, Hierarchy};
use crate::{
    api::stats::{
        CgroupUsage, CpuThrottling, CpuUsage, MemoryUsage, PressureStall, ResourcePressure,
        StatsDetail, SwapUsage,
    },
    sys::clock,
};

/// Longest file that is read, bytes: `memory.stat` of version 2 is about 2 KiB.
const MAX_BYTES: usize = 8 * 1024;
/// A version 1 limit from here on means none: the kernel rounds its largest number down to a page.
const UNLIMITED_V1: u64 = 1 << 62;
/// Ticks a second of the times that the kernel counts in ticks; the same on every architecture that Linux still has.
const TICKS: u64 = 100;
const NS_PER_US: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

/// Reads the figures of one group; `None` if it is gone.
pub(super) fn read_group_usage(
    hierarchy: &Hierarchy,
    path: &str,
    detail: StatsDetail,
) -> Option<CgroupUsage> {
    let mut files = UsageFileReader::new();
    let usage = match hierarchy.cgroup_version() {
        CgroupVersion::V1 => read_v1(&mut files, hierarchy, path, detail),
        CgroupVersion::V2 => read_v2(&mut files, &hierarchy.controller_dir("", path)?, detail),
    };
    (usage.cpu.is_some() || usage.memory.is_some()).then_some(usage)
}

/// Bytes written to `disk`, `MAJOR:MINOR`, by a group of version 2 and those below it; `None`: its writes are not counted.
/// A disk that it never used has no line.
pub(super) fn read_written_bytes(root: &Path, path: &str, disk: &str) -> Option<u64> {
    let mut files = UsageFileReader::new();
    let stat = files.read_text(&root.join(path.trim_start_matches('/')), "io.stat")?;
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix(disk)?.strip_prefix(' '));
    let bytes = |line: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix("wbytes=")?.parse().ok())
    };
    line.map_or(Some(0), bytes)
}

/// Reads how often the kernel has killed in the group of `dir` for want of memory, and the rest of it lives on. A group
/// that ends as a whole (`memory.oom.group`) outlives only kills for the limit of a group within it: once it was killed
/// itself, it is ending. Before Linux 5.17 that is not told, and such a group has outlived none. Sources: cgroup-v2
/// `memory.events`, `memory.events.local`, cgroup-v1 `memory.oom_control`.
pub(super) fn read_outlived_oom_kills(dir: &Path) -> u64 {
    let mut files = UsageFileReader::new();
    let mut count = |name: &str, key: &str| parse_keyed_number(files.read_text(dir, name)?, key);
    let kills = count("memory.events", "oom_kill")
        .or_else(|| count("memory.oom_control", "oom_kill"))
        .unwrap_or(0);
    // Read behind the kills, as it is counted behind the first of them.
    let whole = count("memory.events.local", "oom_group_kill");
    if files.read_number(dir, "memory.oom.group") == Some(1) && whole != Some(0) {
        return 0;
    }
    kills
}

/// Reads the figures of the whole machine.
pub(super) fn read_machine(hierarchy: &Hierarchy, proc: &Path, detail: StatsDetail) -> CgroupUsage {
    let mut files = UsageFileReader::new();
    let mut usage = read_group_usage(hierarchy, "/", detail).unwrap_or_default();
    usage.at = clock::wall_now();
    // The root of a tree has neither limits nor, with version 2, a sum of its memory.
    if usage.memory.is_none() {
        usage.memory = files.read_text(proc, "meminfo").map(parse_machine_memory);
    }
    if let Some(memory) = &mut usage.memory {
        memory.limit_bytes = None;
    }
    if usage.cpu.is_none() {
        usage.cpu = files.read_text(proc, "stat").and_then(parse_machine_cpu);
    }
    let meminfo = files.read_text(proc, "meminfo").unwrap_or("");
    let kib = |name: &str| parse_keyed_number(meminfo, name).map(|kib| kib.saturating_mul(1024));
    usage.swap = kib("SwapTotal:")
        .zip(kib("SwapFree:"))
        .map(|(total, free)| SwapUsage {
            usage_bytes: total.saturating_sub(free),
            limit_bytes: Some(total),
        });
    if detail == StatsDetail::Full {
        usage.pressure = read_pressures(&mut files, &proc.join("pressure"), "");
    }
    usage
}

fn read_v2(files: &mut UsageFileReader, dir: &Path, detail: StatsDetail) -> CgroupUsage {
    let mut usage = CgroupUsage {
        at: clock::wall_now(),
        ..CgroupUsage::default()
    };
    let full = detail == StatsDetail::Full;
    if let Some(stat) = files.read_text(dir, "cpu.stat") {
        let ns = |name| parse_keyed_number(stat, name).map(|us| us.saturating_mul(NS_PER_US));
        usage.cpu = ns("usage_usec").map(|total_ns| CpuUsage {
            total_ns,
            user_system_ns: ns("user_usec").zip(ns("system_usec")),
            throttled: full
                .then(|| throttled(stat, ns("throttled_usec")))
                .flatten(),
        });
    }
    let current = files.read_number(dir, "memory.current");
    if let Some(stat) = files.read_text(dir, "memory.stat") {
        let (anon, file) = (
            parse_keyed_number(stat, "anon"),
            parse_keyed_number(stat, "file"),
        );
        // The root has no sum of its own.
        let sum = || anon.zip(file).map(|(a, f)| a.saturating_add(f));
        usage.memory = current.or_else(sum).map(|usage_bytes| MemoryUsage {
            usage_bytes,
            working_set_bytes: usage_bytes
                .saturating_sub(parse_keyed_number(stat, "inactive_file").unwrap_or(0)),
            rss_bytes: anon,
            cache_bytes: file,
            mapped_file_bytes: parse_keyed_number(stat, "file_mapped"),
            faults: parse_keyed_number(stat, "pgfault").zip(parse_keyed_number(stat, "pgmajfault")),
            limit_bytes: None,
        });
    }
    if let Some(memory) = &mut usage.memory {
        memory.limit_bytes = files.read_number(dir, "memory.max");
    }
    usage.swap = files
        .read_number(dir, "memory.swap.current")
        .map(|used| SwapUsage {
            usage_bytes: used,
            limit_bytes: files.read_number(dir, "memory.swap.max"),
        });
    if full {
        usage.pids = files.read_number(dir, "pids.current");
        let events = files.read_text(dir, "memory.events");
        usage.oom_kills = events.and_then(|text| parse_keyed_number(text, "oom_kill"));
        usage.pressure = read_pressures(files, dir, ".pressure");
        usage.cpu_shares = files.read_number(dir, "cpu.weight").map(shares_from_weight);
        usage.cpu_quota = files.read_text(dir, "cpu.max").and_then(parse_quota);
    }
    usage
}

fn read_v1(
    files: &mut UsageFileReader,
    hierarchy: &Hierarchy,
    path: &str,
    detail: StatsDetail,
) -> CgroupUsage {
    let mut usage = CgroupUsage {
        at: clock::wall_now(),
        ..CgroupUsage::default()
    };
    let full = detail == StatsDetail::Full;
    let dir = |controller: &str| hierarchy.controller_dir(controller, path);
    if let Some(dir) = dir("cpuacct") {
        usage.cpu = files
            .read_number(&dir, "cpuacct.usage")
            .map(|total_ns| CpuUsage {
                total_ns,
                ..CpuUsage::default()
            });
        if full
            && let (Some(cpu), Some(stat)) = (&mut usage.cpu, files.read_text(&dir, "cpuacct.stat"))
        {
            let ns = |name| {
                parse_keyed_number(stat, name).map(|ticks| ticks.saturating_mul(NS_PER_S / TICKS))
            };
            cpu.user_system_ns = ns("user").zip(ns("system"));
        }
    }
    if full && let Some(dir) = dir("cpu") {
        if let (Some(cpu), Some(stat)) = (&mut usage.cpu, files.read_text(&dir, "cpu.stat")) {
            cpu.throttled = throttled(stat, parse_keyed_number(stat, "throttled_time"));
        }
        usage.cpu_shares = files.read_number(&dir, "cpu.shares");
        let quota = files.read_number(&dir, "cpu.cfs_quota_us");
        usage.cpu_quota = quota.zip(files.read_number(&dir, "cpu.cfs_period_us"));
    }
    if let Some(dir) = dir("memory") {
        read_v1_memory(files, &dir, &mut usage);
        if full {
            let control = files.read_text(&dir, "memory.oom_control");
            usage.oom_kills = control.and_then(|text| parse_keyed_number(text, "oom_kill"));
        }
    }
    if full && let Some(dir) = dir("pids") {
        usage.pids = files.read_number(&dir, "pids.current");
    }
    usage
}

fn read_v1_memory(files: &mut UsageFileReader, dir: &Path, usage: &mut CgroupUsage) {
    let Some(used) = files.read_number(dir, "memory.usage_in_bytes") else {
        return;
    };
    let limited = |limit: &u64| *limit < UNLIMITED_V1;
    let limit = files
        .read_number(dir, "memory.limit_in_bytes")
        .filter(limited);
    let both = files
        .read_number(dir, "memory.memsw.limit_in_bytes")
        .filter(limited);
    let stat = files.read_text(dir, "memory.stat").unwrap_or("");
    usage.memory = Some(MemoryUsage {
        usage_bytes: used,
        working_set_bytes: used
            .saturating_sub(parse_keyed_number(stat, "total_inactive_file").unwrap_or(0)),
        rss_bytes: parse_keyed_number(stat, "total_rss"),
        cache_bytes: parse_keyed_number(stat, "total_cache"),
        mapped_file_bytes: parse_keyed_number(stat, "total_mapped_file"),
        faults: parse_keyed_number(stat, "total_pgfault")
            .zip(parse_keyed_number(stat, "total_pgmajfault")),
        limit_bytes: limit,
    });
    usage.swap = parse_keyed_number(stat, "total_swap").map(|usage_bytes| SwapUsage {
        usage_bytes,
        limit_bytes: both
            .zip(limit)
            .map(|(both, memory)| both.saturating_sub(memory)),
    });
}

/// Reads the memory of the machine from `/proc/meminfo`, counted as in a root group of version 1.
fn parse_machine_memory(meminfo: &str) -> MemoryUsage {
    let bytes = |name: &str| {
        parse_keyed_number(meminfo, name)
            .unwrap_or(0)
            .saturating_mul(1024)
    };
    let (anon, file) = (
        bytes("AnonPages:"),
        bytes("Cached:").saturating_add(bytes("Buffers:")),
    );
    let usage_bytes = anon.saturating_add(file);
    MemoryUsage {
        usage_bytes,
        working_set_bytes: usage_bytes.saturating_sub(bytes("Inactive(file):")),
        rss_bytes: Some(anon),
        cache_bytes: Some(file),
        mapped_file_bytes: Some(bytes("Mapped:")),
        faults: None,
        limit_bytes: None,
    }
}

/// Reads the processor time of the machine from the first line of `/proc/stat`: all but idle, waiting for disks, and
/// the time of guests, which is in `user` already.
fn parse_machine_cpu(stat: &str) -> Option<CpuUsage> {
    let ticks: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    let sum = |fields: &[usize]| {
        let all = fields.iter().filter_map(|&i| ticks.get(i));
        all.fold(0, |sum: u64, n| sum.saturating_add(*n))
            .saturating_mul(NS_PER_S / TICKS)
    };
    // user nice system idle iowait irq softirq steal
    let (user, system) = (sum(&[0, 1]), sum(&[2, 5, 6]));
    Some(CpuUsage {
        total_ns: user.saturating_add(system),
        user_system_ns: Some((user, system)),
        throttled: None,
    })
}

fn throttled(stat: &str, throttled_ns: Option<u64>) -> Option<CpuThrottling> {
    Some(CpuThrottling {
        periods: parse_keyed_number(stat, "nr_periods")?,
        throttled_periods: parse_keyed_number(stat, "nr_throttled")?,
        throttled_ns: throttled_ns?,
    })
}

/// `max 100000` or `50000 100000`.
fn parse_quota(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

/// Version 1 shares that a weight stands for.
fn shares_from_weight(weight: u64) -> u64 {
    // 1..10000 back to 2..262144.
    weight.saturating_sub(1).saturating_mul(262_142) / 9999 + 2
}

/// Pressure on processor, memory and disks; `None` on a kernel without it.
fn read_pressures(
    files: &mut UsageFileReader,
    dir: &Path,
    suffix: &str,
) -> Option<Box<[Option<ResourcePressure>; 3]>> {
    let all = ["cpu", "memory", "io"].map(|name| {
        let text = files.read_text(dir, &format!("{name}{suffix}"))?;
        Some(ResourcePressure {
            some: parse_stall(text, "some ")?,
            // Of the processor older kernels have no such line.
            full: parse_stall(text, "full ").unwrap_or_default(),
        })
    });
    all.iter().any(Option::is_some).then(|| Box::new(all))
}

/// `some avg10=0.00 avg60=1.25 avg300=0.00 total=4711`.
fn parse_stall(text: &str, kind: &str) -> Option<PressureStall> {
    let line = text.lines().find_map(|l| l.strip_prefix(kind))?;
    let mut fields = line
        .split(' ')
        .map(|f| f.split_once('=').map_or("", |(_, v)| v));
    let mut average = || {
        let (whole, part) = fields.next()?.split_once('.')?;
        let (whole, part): (u32, u32) = (whole.parse().ok()?, part.parse().ok()?);
        whole.checked_mul(100)?.checked_add(part)
    };
    let averages = [average()?, average()?, average()?];
    Some(PressureStall {
        averages,
        total_us: fields.next()?.parse().ok()?,
    })
}

/// The number behind `name` in lines of a name and a number.
fn parse_keyed_number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with([' ', '\t']) {
            return None;
        }
        rest.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// Reads files of one directory after the other into one buffer.
struct UsageFileReader {
    path: PathBuf,
    buffer: Box<[u8]>,
}

impl UsageFileReader {
    fn new() -> Self {
        Self {
            path: PathBuf::new(),
            buffer: vec![0; MAX_BYTES].into(),
        }
    }

    /// Reads a file's text; `None` if it is not there, or cannot be read. A text longer than the buffer is cut.
    fn read_text(&mut self, dir: &Path, name: &str) -> Option<&str> {
        self.path.clear();
        self.path.push(dir);
        self.path.push(name);
        let mut file = File::open(&self.path).ok()?;
        let len = loop {
            match file.read(&mut self.buffer) {
                Ok(len) => break len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        };
        core::str::from_utf8(&self.buffer[..len]).ok()
    }

    /// Reads a file that holds one number; `max`, -1 and any other text are `None`.
    fn read_number(&mut self, dir: &Path, name: &str) -> Option<u64> {
        self.read_text(dir, name)?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;
    use std::fs;

    const MIB: u64 = 1 << 20;
    const PSI: &str = "some avg10=1.50 avg60=0.25 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=11\n";

    /// A tree of files, gone at the end.
    struct Tree(TestDir);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = TestDir::new(&format!("usage-{name}"));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("parent")).expect("dir");
                fs::write(path, text).expect("file");
            }
            Self(root)
        }

        fn v2(&self) -> Hierarchy {
            let line = format!(
                "30 23 0:27 / {} rw - cgroup2 cgroup2 rw\n",
                self.0.display()
            );
            Hierarchy::parse(&line).expect("version 2")
        }

        fn v1(&self) -> Hierarchy {
            let mounts: String = ["cpu,cpuacct", "memory", "pids"]
                .iter()
                .map(|c| {
                    let at = self.0.join(c);
                    format!("31 23 0:28 / {} rw - cgroup cgroup rw,{c}\n", at.display())
                })
                .collect();
            Hierarchy::parse(&mounts).expect("version 1")
        }
    }

    #[test]
    fn version_2() {
        // MET-11: the working set leaves out old pages of files, and what is not limited has no limit.
        let tree = Tree::new(
            "v2",
            &[
                (
                    "pods/a/cpu.stat",
                    "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 3\nthrottled_usec 700\n",
                ),
                ("pods/a/memory.current", "10485760\n"),
                (
                    "pods/a/memory.stat",
                    "anon 4194304\nfile 6291456\nfile_mapped 1048576\ninactive_file 2097152\npgfault 900\npgmajfault 7\n",
                ),
                ("pods/a/memory.max", "max\n"),
                ("pods/a/memory.swap.current", "4096\n"),
                ("pods/a/memory.swap.max", "8192\n"),
                (
                    "pods/a/memory.events",
                    "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\noom_group_kill 0\n",
                ),
                ("pods/a/pids.current", "5\n"),
                ("pods/a/cpu.weight", "79\n"),
                ("pods/a/cpu.max", "50000 100000\n"),
                ("pods/a/cpu.pressure", PSI),
                ("pods/a/memory.pressure", PSI),
            ],
        );
        let full = read_group_usage(&tree.v2(), "/pods/a", StatsDetail::Full).expect("there");
        assert_eq!(
            full.cpu,
            Some(CpuUsage {
                total_ns: 1_500_000_000,
                user_system_ns: Some((1_000_000_000, 500_000_000)),
                throttled: Some(CpuThrottling {
                    periods: 10,
                    throttled_periods: 3,
                    throttled_ns: 700_000
                }),
            })
        );
        assert_eq!(
            full.memory,
            Some(MemoryUsage {
                usage_bytes: 10 * MIB,
                working_set_bytes: 8 * MIB,
                rss_bytes: Some(4 * MIB),
                cache_bytes: Some(6 * MIB),
                mapped_file_bytes: Some(MIB),
                faults: Some((900, 7)),
                limit_bytes: None,
            })
        );
        let swap = full.swap.expect("swap");
        assert_eq!((swap.usage_bytes, swap.limit_bytes), (4096, Some(8192)));
        assert_eq!((full.pids, full.oom_kills), (Some(5), Some(1)));
        assert_eq!(full.cpu_quota, Some((50_000, 100_000)));
        assert_eq!(full.cpu_shares, Some(2046));
        let [cpu, memory, io] = *full.pressure.expect("PSI");
        assert_eq!(cpu, memory);
        assert_eq!(io, None);
        let some = cpu.expect("cpu").some;
        assert_eq!((some.averages, some.total_us), ([150, 25, 0], 4711));

        let basic = read_group_usage(&tree.v2(), "/pods/a", StatsDetail::Basic).expect("there");
        assert_eq!((basic.pids, basic.pressure), (None, None));

        // PSI-02: files that are there and cannot be read, as with `psi=0`; a directory is one.
        fs::create_dir_all(tree.0.join("pods/off/cpu.pressure")).expect("directory");
        fs::write(tree.0.join("pods/off/cpu.stat"), "usage_usec 1\n").expect("file");
        let off = read_group_usage(&tree.v2(), "/pods/off", StatsDetail::Full).expect("there");
        assert_eq!(
            (off.cpu.map(|cpu| cpu.total_ns), off.pressure),
            (Some(1000), None)
        );
        assert_eq!(basic.memory, full.memory);
        assert_eq!(
            read_group_usage(&tree.v2(), "/pods/gone", StatsDetail::Full),
            None
        );
    }

    #[test]
    fn version_1() {
        let tree = Tree::new(
            "v1",
            &[
                ("cpu,cpuacct/a/cpuacct.usage", "1234567890\n"),
                ("cpu,cpuacct/a/cpuacct.stat", "user 100\nsystem 23\n"),
                (
                    "cpu,cpuacct/a/cpu.stat",
                    "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
                ),
                ("cpu,cpuacct/a/cpu.shares", "512\n"),
                ("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n"),
                ("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
                ("memory/a/memory.usage_in_bytes", "10485760\n"),
                ("memory/a/memory.limit_in_bytes", "20971520\n"),
                ("memory/a/memory.memsw.limit_in_bytes", "31457280\n"),
                (
                    "memory/a/memory.stat",
                    "cache 1\nrss 1\ninactive_file 1\ntotal_cache 6291456\ntotal_rss 4194304\ntotal_mapped_file 0\ntotal_swap 512\ntotal_pgfault 9\ntotal_pgmajfault 1\ntotal_inactive_file 20971520\n",
                ),
                (
                    "memory/a/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                ),
                ("pids/a/pids.current", "2\n"),
                ("memory/b/memory.usage_in_bytes", "4096\n"),
                ("memory/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let usage = read_group_usage(&tree.v1(), "/a", StatsDetail::Full).expect("there");
        let cpu = usage.cpu.expect("cpu");
        assert_eq!(cpu.total_ns, 1_234_567_890);
        assert_eq!(cpu.user_system_ns, Some((1_000_000_000, 230_000_000)));
        assert_eq!(cpu.throttled, Some(CpuThrottling::default()));
        let memory = usage.memory.expect("memory");
        // More old pages than there is memory: two files read one after the other.
        assert_eq!(
            (memory.usage_bytes, memory.working_set_bytes),
            (10 * MIB, 0)
        );
        assert_eq!(memory.limit_bytes, Some(20 * MIB));
        assert_eq!(
            (memory.rss_bytes, memory.faults),
            (Some(4 * MIB), Some((9, 1)))
        );
        let swap = usage.swap.expect("swap");
        assert_eq!((swap.usage_bytes, swap.limit_bytes), (512, Some(10 * MIB)));
        assert_eq!((usage.pids, usage.oom_kills), (Some(2), Some(3)));
        assert_eq!((usage.cpu_shares, usage.cpu_quota), (Some(512), None));
        assert_eq!(usage.pressure, None);
        // Without `cpuacct`, without a limit, without swap accounting.
        let bare = read_group_usage(&tree.v1(), "/b", StatsDetail::Full).expect("there");
        assert_eq!((bare.cpu, bare.swap), (None, None));
        assert_eq!(bare.memory.expect("memory").limit_bytes, None);
    }

    #[test]
    fn kills_that_a_group_has_outlived() {
        // OOMW-03
        let tree = Tree::new(
            "outlived",
            &[
                ("v2/memory.events", "oom 5\noom_kill 2\n"),
                ("v2/memory.oom.group", "0\n"),
                ("whole/memory.events", "oom 5\noom_kill 2\n"),
                ("whole/memory.oom.group", "1\n"),
                // Its own limit; that of a group within it; a kernel that does not tell.
                ("own/memory.events", "oom_kill 2\noom_group_kill 1\n"),
                ("own/memory.events.local", "oom_kill 2\noom_group_kill 1\n"),
                ("own/memory.oom.group", "1\n"),
                ("nested/memory.events", "oom_kill 2\noom_group_kill 1\n"),
                (
                    "nested/memory.events.local",
                    "oom_kill 0\noom_group_kill 0\n",
                ),
                ("nested/memory.oom.group", "1\n"),
                ("old/memory.events", "oom_kill 2\n"),
                ("old/memory.events.local", "oom_kill 0\n"),
                ("old/memory.oom.group", "1\n"),
                ("v1/memory.oom_control", "under_oom 0\noom_kill 3\n"),
                ("none/memory.events", "oom 5\n"),
            ],
        );
        for (dir, kills) in [
            ("v2", 2),
            ("whole", 0),
            ("own", 0),
            ("nested", 2),
            ("old", 0),
            ("v1", 3),
            ("none", 0),
            ("gone", 0),
        ] {
            let found = read_outlived_oom_kills(&tree.0.join(dir));
            assert_eq!(found, kills, "{dir}");
        }
    }

    #[test]
    fn what_pods_have_written_to_a_disk() {
        // WEAR-06
        let tree = Tree::new(
            "written",
            &[
                (
                    "pods/io.stat",
                    "8:16 rbytes=1 wbytes=2 rios=1\n179:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
                ),
                ("none/cgroup.procs", ""),
            ],
        );
        let root = &*tree.0;
        assert_eq!(read_written_bytes(root, "/pods", "179:0"), Some(8192));
        assert_eq!(
            read_written_bytes(root, "/pods", "8:1"),
            Some(0),
            "not that of 8:16"
        );
        assert_eq!(
            read_written_bytes(root, "/none", "179:0"),
            None,
            "not counted"
        );
    }

    #[test]
    fn the_machine() {
        // CG-21
        // A version 2 root: its sums are made from /proc where it has none.
        let tree = Tree::new(
            "machine",
            &[
                ("sys/cgroup.controllers", "cpu memory\n"),
                ("proc/stat", "cpu  100 50 30 9000 10 5 5 1 7 0\ncpu0 1 2\n"),
                (
                    "proc/meminfo",
                    "MemTotal: 9000 kB\nBuffers: 100 kB\nCached: 900 kB\nInactive(file): 400 kB\nAnonPages: 500 kB\nMapped: 50 kB\nSwapTotal: 64 kB\nSwapFree: 60 kB\n",
                ),
                ("proc/pressure/io", PSI),
            ],
        );
        let mounts = format!(
            "30 23 0:27 / {} rw - cgroup2 cgroup2 rw\n",
            tree.0.join("sys").display()
        );
        let hierarchy = Hierarchy::parse(&mounts).expect("version 2");
        let usage = read_machine(&hierarchy, &tree.0.join("proc"), StatsDetail::Full);
        assert_eq!(usage.cpu.expect("cpu").total_ns, 1_900_000_000);
        let memory = usage.memory.expect("memory");
        assert_eq!(memory.usage_bytes, 1500 * 1024);
        assert_eq!(memory.working_set_bytes, 1100 * 1024);
        let swap = usage.swap.expect("swap");
        assert_eq!((swap.usage_bytes, swap.limit_bytes), (4096, Some(65536)));
        assert!(usage.pressure.expect("PSI")[2].is_some());
        // And the real one.
        let own = read_machine(
            &super::super::Cgroups::detect().map_or(hierarchy, |c| c.hierarchy),
            Path::new("/proc"),
            StatsDetail::Basic,
        );
        assert!(own.cpu.expect("cpu").total_ns > 0);
        assert!(own.memory.expect("memory").working_set_bytes > 0);
    }

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(
            parse_keyed_number("oom 2\noom_kill 1\n", "oom_kill"),
            Some(1)
        );
        assert_eq!(parse_keyed_number("oom_kill 1\n", "oom"), None);
        assert_eq!(parse_keyed_number("a x\n", "a"), None);
        assert_eq!(parse_quota("max 100000\n"), None);
        for bad in ["", "some", "some avg10=x", "some avg10=1.0 avg60=1.0"] {
            assert_eq!(parse_stall(bad, "some "), None, "{bad}");
        }
        assert_eq!(
            (shares_from_weight(1), shares_from_weight(10_000)),
            (2, 262_144)
        );
        assert_eq!(parse_machine_cpu("intr 1"), None);
        // PSI-02: a root without a line for the processor.
        let tree = Tree::new("some", &[("cpu", PSI.lines().next().expect("a line"))]);
        let read = read_pressures(&mut UsageFileReader::new(), &tree.0, "").expect("PSI");
        let cpu = read[0].expect("of the processor");
        assert_eq!(
            (cpu.some.total_us, cpu.full),
            (4711, PressureStall::default())
        );
    }
}
