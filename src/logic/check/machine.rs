//! The machine around the kernel: rights, name, clocks, disks.

use alloc::{string::String, vec::Vec};

use super::{CheckFacts, CheckFinding, DirectoryFacts, join_first};
use crate::flash;

/// Commands that set the clock.
pub(super) const SET_CLOCK: &str = "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'";
/// Longest node name: a DNS subdomain, bytes.
const MAX_NAME_BYTES: usize = 253;
/// Longest part of a node name between dots, bytes.
const MAX_LABEL_BYTES: usize = 63;
/// Free part of a disk below which nothing works for long, percent.
const ALMOST_NOTHING_PERCENT: u64 = 5;
/// Most directories that one line names.
const MAX_NAMED: usize = 3;
/// Free bytes below which no image can be unpacked.
const ALMOST_NOTHING_BYTES: u64 = 64 << 20;
/// Capabilities without which no container starts.
const NEEDED: [&str; 8] = [
    "CAP_SYS_ADMIN",
    "CAP_NET_ADMIN",
    "CAP_DAC_OVERRIDE",
    "CAP_CHOWN",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_SETUID",
];

pub(super) fn check_root(facts: &CheckFacts) -> CheckFinding {
    if facts.rights.root {
        return CheckFinding::ok("runs as root");
    }
    CheckFinding::error(
        "not root: a fact that only root can read counts as wrong",
        "sudo picolet check",
    )
}

pub(super) fn check_capabilities(facts: &CheckFacts) -> CheckFinding {
    let has = |name: &str| facts.rights.capabilities.iter().any(|c| c == name);
    let missing: Vec<&str> = NEEDED.into_iter().filter(|c| !has(c)).collect();
    if !missing.is_empty() {
        return CheckFinding::error(
            format!("missing: {}", missing.join(", ")),
            "remove CapabilityBoundingSet= from the unit, or run outside of a container",
        );
    }
    if !has("CAP_SYS_RESOURCE") {
        return CheckFinding::warning(
            "CAP_SYS_RESOURCE is missing: OOM scores cannot be lowered, the kernel may end the agent first",
            "add CAP_SYS_RESOURCE to CapabilityBoundingSet= of the unit, or to the container's capabilities",
        );
    }
    CheckFinding::ok("all that are needed")
}

pub(super) fn check_hostname(facts: &CheckFacts) -> CheckFinding {
    let name = facts.wanted.node_name.as_str();
    let fix = "hostnamectl set-hostname node1, or picolet run --hostname-override node1";
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= MAX_LABEL_BYTES
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    if name.len() > MAX_NAME_BYTES || !name.split('.').all(label) {
        return CheckFinding::error(format!("{name:?} cannot be the name of a node"), fix);
    }
    if name == "localhost" || name.starts_with("localhost.") {
        return CheckFinding::warning(format!("{name:?} is a name that every machine has"), fix);
    }
    CheckFinding::ok(name)
}

/// Checks the clock by the kernel's synchronized flag, not by its date (SVC-15): systemd moves a clock that is too old
/// to the day on which systemd was built, and that date looks right.
pub(super) fn check_clock(facts: &CheckFacts) -> CheckFinding {
    let now = facts.clock.now;
    match facts.clock.synchronized {
        Some(true) => CheckFinding::ok(format!("{now}, synchronized")),
        None => CheckFinding::ok(format!(
            "{now}; the kernel does not say whether it is right"
        )),
        Some(false) => CheckFinding::warning(
            format!(
                "the clock shows {now}, and nothing synchronizes it: times in logs and status may be wrong"
            ),
            SET_CLOCK,
        ),
    }
}

pub(super) fn check_rtc(facts: &CheckFacts) -> CheckFinding {
    match (facts.clock.rtc, &facts.clock.saved_time) {
        (true, _) => CheckFinding::ok("battery-backed clock"),
        (false, Some(by)) => CheckFinding::ok(format!("none; the time is saved by {by}")),
        (false, None) => CheckFinding::warning(
            "no battery-backed clock, and nothing saves the time: each boot starts in the past",
            "apt-get install fake-hwclock",
        ),
    }
}

/// Names declared resources that no device matches (DEV-37), those of plugins without a healthy device, and a kernel
/// that cannot give devices to containers (DEV-42).
pub(super) fn check_devices(facts: &CheckFacts) -> CheckFinding {
    let (units, plugins) = (&facts.devices.units, &facts.devices.plugins);
    if units.is_empty() && plugins.is_empty() {
        return CheckFinding::ok("none for pods");
    }
    if let Some(option) = &facts.devices.lacks {
        return CheckFinding::error(
            format!("the kernel has no {option}: no container can use a device"),
            format!("boot a kernel with {option}=y"),
        );
    }
    let is_absent = |(_, count): &&(String, usize)| *count == 0;
    let absent = |units: &[(String, usize)]| {
        let absent = units.iter().filter(is_absent).map(|(r, _)| &**r);
        let absent: Vec<&str> = absent.collect();
        (!absent.is_empty()).then(|| join_first(absent.into_iter(), MAX_NAMED))
    };
    if let Some(wrong) = facts.devices.wrong.first() {
        return CheckFinding::warning(
            format!("CDI file {wrong}: its devices are not available"),
            "correct the file, or remove it",
        );
    }
    if let Some(absent) = absent(units) {
        return CheckFinding::warning(
            format!("no device of {absent} was found: pods that ask for it wait"),
            "plug it in, load its module (modprobe), or correct match in picolet.devices; ls -l /dev lists the devices that exist",
        );
    }
    if let Some(absent) = absent(plugins) {
        return CheckFinding::warning(
            format!("no device of {absent} is healthy: pods that ask for it wait"),
            "look at the pod of its device plugin: picolet get pods",
        );
    }
    let all: usize = units.iter().chain(plugins).map(|(_, count)| count).sum();
    CheckFinding::ok(format!("{all} for pods"))
}

/// Free part, percent, rounded down.
fn free_percent(free: u64, of: u64) -> u64 {
    u64::try_from(u128::from(free) * 100 / u128::from(of.max(1))).unwrap_or(100)
}

fn format_mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The directory that has the smallest part left, by `left`.
fn tightest_directory(
    facts: &CheckFacts,
    left: impl Fn(&DirectoryFacts) -> u64,
) -> &DirectoryFacts {
    let dirs = &facts.dirs;
    if left(&dirs.logs) < left(&dirs.root) {
        &dirs.logs
    } else {
        &dirs.root
    }
}

pub(super) fn check_disk_space(facts: &CheckFacts) -> CheckFinding {
    let dir = tightest_directory(facts, |d| free_percent(d.free, d.size));
    let (free, path) = (free_percent(dir.free, dir.size), &dir.path);
    let says = format!("{} ({free} %) free at {path}", format_mib(dir.free));
    let fix = "picolet image prune; journalctl --vacuum-size=50M; apt-get clean";
    if free < ALMOST_NOTHING_PERCENT || dir.free < ALMOST_NOTHING_BYTES {
        return CheckFinding::error(says, fix);
    }
    // The same arithmetic as that of image garbage collection.
    if 100 - free >= u64::from(facts.wanted.image_high_percent) {
        return CheckFinding::warning(
            format!("{says}: unused images are being removed to make room"),
            fix,
        );
    }
    CheckFinding::ok(says)
}

pub(super) fn check_inodes(facts: &CheckFacts) -> CheckFinding {
    // A file system that counts no inodes cannot run out of them.
    let left = |d: &DirectoryFacts| {
        if d.inodes == 0 {
            100
        } else {
            free_percent(d.inodes_free, d.inodes)
        }
    };
    let dir = tightest_directory(facts, left);
    let says = format!("{} % free at {}", left(dir), dir.path);
    if left(dir) < ALMOST_NOTHING_PERCENT {
        let fix = format!(
            "picolet image prune; find what has many files: du --inodes -xd2 {} | sort -n | tail",
            dir.path
        );
        return CheckFinding::error(says, fix);
    }
    CheckFinding::ok(says)
}

pub(super) fn check_eviction(facts: &CheckFacts) -> CheckFinding {
    let kept = &facts.wanted.kept_free;
    if kept.is_empty() {
        return CheckFinding::ok("nothing is kept free: evictionHard is empty");
    }
    let says = format!("kept free: {}", kept.join(", "));
    if facts.apiserver.is_none() && !facts.wanted.evict_static_pods {
        return CheckFinding::warning(
            format!("{says}; but no pod can be evicted for it: this node has only static pods"),
            "set picolet.evictStaticPods, or picolet run --evict-static-pods",
        );
    }
    CheckFinding::ok(says)
}

/// Checks that all directories that are written to are writable; the rest of the system may be read-only (SVC-20).
pub(super) fn check_read_only(facts: &CheckFacts) -> CheckFinding {
    let dirs = &facts.dirs;
    let all = [&dirs.root, &dirs.run, &dirs.logs];
    let locked = || all.into_iter().chain(&dirs.others).filter(|d| d.read_only);
    // The agent can work without a directory that no flag can move.
    let Some(dir) = locked()
        .find(|d| !d.moved_by.is_empty())
        .or_else(|| locked().next())
    else {
        return CheckFinding::ok("all directories are writable");
    };
    let names: Vec<&str> = locked().map(|d| d.path.as_str()).collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    let says = format!(
        "{} {are} read-only ({})",
        join_first(names.into_iter(), MAX_NAMED),
        dir.kind
    );
    let remount = format!(
        "mount -o remount,rw $(findmnt -no TARGET -T {}); after an I/O error: look at dmesg, run fsck, or replace the card",
        dir.path
    );
    if dir.moved_by.is_empty() {
        return CheckFinding::warning(says, remount);
    }
    CheckFinding::error(
        says,
        format!(
            "{remount}; if the system is meant to be read-only: choose another directory with {}",
            dir.moved_by
        ),
    )
}

/// Checks the mount options of the root directory: volumes of pods are on its file system and have its restrictions
/// (SVC-20).
pub(super) fn check_mount_options(facts: &CheckFacts) -> CheckFinding {
    let DirectoryFacts {
        path, restricted, ..
    } = &facts.dirs.root;
    if restricted.is_empty() {
        return CheckFinding::ok(format!("no restrictions at {path}"));
    }
    let what = restricted.iter().map(|option| match option.as_str() {
        "noexec" => "programs do not start (noexec)",
        "nosuid" => "programs cannot change their user (nosuid)",
        _ => "devices cannot be opened (nodev)",
    });
    let what: Vec<&str> = what.collect();
    let undo = restricted.iter().map(|option| &option[2..]);
    let undo: Vec<&str> = undo.collect();
    CheckFinding::warning(
        format!("in volumes below {path}: {}", what.join(", ")),
        format!(
            "mount -o remount,{} $(findmnt -no TARGET -T {path}), and in /etc/fstab; or picolet run --root-dir on another disk",
            undo.join(",")
        ),
    )
}

pub(super) fn check_root_dir(facts: &CheckFacts) -> CheckFinding {
    let DirectoryFacts { path, kind, .. } = &facts.dirs.root;
    match kind.as_str() {
        "tmpfs" | "ramfs" => CheckFinding::warning(
            format!(
                "{path} is in memory ({kind}): images, pods and the identity of the node are gone after a reboot"
            ),
            "picolet run --root-dir on a disk",
        ),
        "overlay" => CheckFinding::error(
            format!(
                "{path} is on an overlay file system, on which the overlays of containers do not work"
            ),
            "raspi-config nonint disable_overlayfs && reboot, or picolet run --root-dir on another disk",
        ),
        "vfat" | "exfat" | "ntfs" | "ntfs3" | "fuseblk" | "9p" | "nfs" | "nfs4" | "cifs" => {
            CheckFinding::error(
                format!("{path} is on {kind}, which cannot hold the layers of images"),
                "picolet run --root-dir on ext4, f2fs, xfs or btrfs",
            )
        }
        _ => CheckFinding::ok(format!("{path} on {kind}")),
    }
}

/// Checks the wear of the root directory's disk: flash wears out by writing.
pub(super) fn check_disk_wear(facts: &CheckFacts) -> CheckFinding {
    let Some(disk) = &facts.dirs.root_disk else {
        return CheckFinding::ok(format!(
            "{} is not on a disk that reports its wear",
            facts.dirs.root.path
        ));
    };
    let says = format!(
        "{}; {} written since the machine was started",
        flash::used_life_text(disk),
        format_mib(disk.written)
    );
    if flash::is_disk_worn(disk) {
        return CheckFinding::warning(says, "replace the card or the module before it fails");
    }
    CheckFinding::ok(says)
}

pub(super) fn check_run_dir(facts: &CheckFacts) -> CheckFinding {
    let DirectoryFacts { path, kind, .. } = &facts.dirs.run;
    if kind == "tmpfs" || kind == "ramfs" {
        return CheckFinding::ok(format!("{path} on {kind}"));
    }
    CheckFinding::warning(
        format!(
            "{path} is on {kind}: writing to it wears the disk, and a reboot does not clear it"
        ),
        format!("mount -t tmpfs -o mode=755 tmpfs {path}, or picolet run --run-dir /run/picolet"),
    )
}

pub(super) fn check_records(facts: &CheckFacts) -> CheckFinding {
    match &facts.dirs.foreign_record {
        None => CheckFinding::ok("this program can read all of them"),
        Some((path, v)) => CheckFinding::error(
            format!(
                "{path} has version {v}: a newer picolet wrote it, and this one cannot read it"
            ),
            "install the newer picolet again, or use it to end the pods and remove its data: picolet reset --stop",
        ),
    }
}

pub(super) fn check_log_dir(facts: &CheckFacts) -> CheckFinding {
    let DirectoryFacts {
        path, kind, size, ..
    } = &facts.dirs.logs;
    if kind != "tmpfs" && kind != "ramfs" {
        return CheckFinding::ok(format!("{path} on {kind}"));
    }
    CheckFinding::warning(
        format!(
            "{path} is in memory ({}, log2ram?): logs fill it and are gone after a power cut",
            format_mib(*size)
        ),
        "picolet run --pod-logs-dir /var/lib/picolet/logs",
    )
}

pub(super) fn check_mounts(facts: &CheckFacts) -> CheckFinding {
    match facts.dirs.host_mounts {
        Some(true) => CheckFinding::ok("in the mount namespace of the host"),
        None => CheckFinding::ok("the mount namespace of PID 1 cannot be seen"),
        Some(false) => CheckFinding::error(
            "in a mount namespace of its own: what is mounted here is invisible to the host",
            "remove PrivateMounts=, PrivateTmp=, ProtectSystem= and the like from the unit",
        ),
    }
}
