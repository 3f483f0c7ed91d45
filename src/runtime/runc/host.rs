//! Facts of the machine, read once at start; and its device nodes, read for each container that gets all of them.

use std::{fs, os::unix::fs::FileTypeExt, os::unix::fs::MetadataExt, path::Path};

use crate::api::order::OrderExt;
use crate::{
    api::oci::{HostFacts, OciDevice},
    cgroup::{CgroupVersion, Cgroups},
    sys::limits,
};

/// Capabilities by number. Source: kernel `include/uapi/linux/capability.h`.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];
/// Most device nodes that are listed: a machine with more has them in directories that are never passed on whole.
const MAX_DEVICES: usize = 1024;

/// Reads the facts of the machine. A fact that cannot be read counts as absent. Tries values of our own
/// `oom_score_adj`.
#[must_use]
pub fn read_host_facts(cgroups: &Cgroups) -> HostFacts {
    let mut controllers: Vec<String> = [
        "blkio", "cpu", "cpuset", "devices", "hugetlb", "io", "memory", "pids",
    ]
    .into_iter()
    .filter(|c| cgroups.has_controller(c))
    .map(str::to_owned)
    .collect();
    controllers.stable_sort();
    HostFacts {
        arch: std::env::consts::ARCH.to_owned(),
        kernel: parse_kernel_version(&read_text_or_empty("/proc/sys/kernel/osrelease")),
        hostname: read_text_or_empty("/proc/sys/kernel/hostname")
            .trim()
            .to_owned(),
        cgroup_v2: cgroups.cgroup_version() == CgroupVersion::V2,
        controllers,
        capabilities: bounding_set(&read_text_or_empty("/proc/self/status")),
        min_oom_score_adj: limits::min_oom_score_adj().unwrap_or(0),
        rlimits: Vec::new(),
        thermal_throttle: thermal_throttle_paths(),
        // Profiles can be seen and loaded only where securityfs is mounted.
        apparmor: read_text_or_empty("/sys/module/apparmor/parameters/enabled").starts_with('Y')
            && Path::new("/sys/kernel/security/apparmor").exists(),
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        seccomp: read_text_or_empty("/proc/self/status").contains("\nSeccomp:"),
    }
}

fn read_text_or_empty(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// `6.1.0-rpi7` → (6, 1).
fn parse_kernel_version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .trim()
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next())
}

fn bounding_set(status: &str) -> Vec<String> {
    parse_capability_names(status, "CapBnd:")
}

/// Names of the bits of one line; the kernel may know later ones.
fn parse_capability_names(status: &str, set: &str) -> Vec<String> {
    let line = status.lines().find_map(|l| l.strip_prefix(set));
    let bits = line
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    CAPABILITIES
        .iter()
        .enumerate()
        .filter(|(n, _)| bits & (1 << n) != 0)
        .map(|(_, name)| format!("CAP_{name}"))
        .collect()
}

/// Capabilities that a process has in effect; none if it cannot be looked at.
#[must_use]
pub fn effective_capabilities(pid: u32) -> Vec<String> {
    let status = read_text_or_empty(&format!("/proc/{pid}/status"));
    parse_capability_names(&status, "CapEff:")
}

fn thermal_throttle_paths() -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir("/sys/devices/system/cpu")
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path().join("thermal_throttle"))
        .filter(|p| p.is_dir())
        .map(|p| p.display().to_string())
        .collect();
    found.stable_sort();
    found
}

/// Device nodes of the machine as they are now, by their paths: devices come, go, and get other numbers. At most
/// [`MAX_DEVICES`].
pub(super) fn list_devices() -> Vec<OciDevice> {
    let mut devices = Vec::new();
    collect_devices(Path::new("/dev"), &mut devices);
    devices.stable_sort_by(|a: &OciDevice, b| a.path.cmp(&b.path));
    devices
}

/// Device nodes below `dir`, without terminals and without those that every container gets of its own.
fn collect_devices(dir: &Path, out: &mut Vec<OciDevice>) {
    let own = [
        "pts",
        "shm",
        "fd",
        "mqueue",
        ".lxc",
        ".lxd-mounts",
        "console",
    ];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Links, and nodes that change meanwhile, are left out.
        let Ok(meta) = entry.path().symlink_metadata() else {
            continue;
        };
        if own.iter().any(|o| name == *o) || out.len() >= MAX_DEVICES {
            continue;
        }
        let kind = meta.file_type();
        if kind.is_dir() {
            collect_devices(&entry.path(), out);
        } else if kind.is_char_device() || kind.is_block_device() {
            let number = meta.rdev();
            out.push(OciDevice {
                kind: if kind.is_char_device() { "c" } else { "b" }.to_owned(),
                path: entry.path().display().to_string(),
                major: i64::try_from(nix::sys::stat::major(number)).unwrap_or(0),
                minor: i64::try_from(nix::sys::stat::minor(number)).unwrap_or(0),
                file_mode: Some(meta.mode() & 0o7777),
                uid: Some(meta.uid()),
                gid: Some(meta.gid()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel() {
        assert_eq!(parse_kernel_version("6.1.0-rpi7-rpi-v8\n"), (6, 1));
        assert_eq!(parse_kernel_version(""), (0, 0));
        let set = bounding_set("Name:\tx\nCapBnd:\t0000000000000021\nSeccomp:\t0\n");
        assert_eq!(set, ["CAP_CHOWN", "CAP_KILL"]);
        assert_eq!(
            bounding_set("CapBnd:\t000001ffffffffff\n").len(),
            CAPABILITIES.len()
        );
    }

    #[test]
    fn devices_of_this_machine() {
        // RTM-11
        let devices = list_devices();
        let null = devices
            .iter()
            .find(|d| d.path == "/dev/null")
            .expect("null");
        assert_eq!((null.kind.as_str(), null.major, null.minor), ("c", 1, 3));
        assert!(devices.iter().all(|d| !d.path.starts_with("/dev/pts/")));
    }
}
