//! The machine around the kernel: rights, name, clocks, disks.

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use super::{Dir, Facts, Finding};
use crate::api::Wall;

/// No machine that runs this program is this old: 2025-01-01T00:00:00Z, in seconds.
const EARLIEST_SECS: i64 = 1_735_689_600;
/// Longest node name: a DNS subdomain, bytes.
const MAX_NAME_BYTES: usize = 253;
/// Longest part of it between dots, bytes.
const MAX_LABEL_BYTES: usize = 63;
/// Free part of a disk below which nothing works for long, percent.
const ALMOST_NOTHING_PERCENT: u64 = 5;
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

pub(super) fn root(facts: &Facts) -> Finding {
    if facts.rights.root {
        return Finding::ok("runs as root");
    }
    Finding::error(
        "not root: what could not be looked at counts as wrong",
        "sudo picolet check",
    )
}

pub(super) fn capabilities(facts: &Facts) -> Finding {
    let has = |name: &str| facts.rights.capabilities.iter().any(|c| c == name);
    let missing: Vec<&str> = NEEDED.into_iter().filter(|c| !has(c)).collect();
    if !missing.is_empty() {
        return Finding::error(
            format!("missing: {}", missing.join(", ")),
            "remove CapabilityBoundingSet= from the unit, or run outside of a container",
        );
    }
    if !has("CAP_SYS_RESOURCE") {
        return Finding::warning(
            "CAP_SYS_RESOURCE is missing: OOM scores cannot be lowered, the kernel may end the agent first",
            "add CAP_SYS_RESOURCE to CapabilityBoundingSet= of the unit, or to the container's capabilities",
        );
    }
    Finding::ok("all that are needed")
}

pub(super) fn hostname(facts: &Facts) -> Finding {
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
        return Finding::error(format!("{name:?} cannot be the name of a node"), fix);
    }
    if name == "localhost" || name.starts_with("localhost.") {
        return Finding::warning(format!("{name:?} names every machine"), fix);
    }
    Finding::ok(name)
}

pub(super) fn clock(facts: &Facts) -> Finding {
    let now = facts.clock.now;
    if now >= Wall::from_secs(EARLIEST_SECS) {
        return Finding::ok(now.to_string());
    }
    Finding::warning(
        format!("it is {now}: times in logs and status are wrong until the clock is set"),
        "timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'",
    )
}

pub(super) fn clock_sync(facts: &Facts) -> Finding {
    match facts.clock.synchronized {
        Some(true) => Finding::ok("synchronized"),
        None => Finding::ok("the kernel does not say"),
        Some(false) => Finding::warning(
            "the clock is not synchronized",
            "apt-get install systemd-timesyncd && timedatectl set-ntp true",
        ),
    }
}

pub(super) fn rtc(facts: &Facts) -> Finding {
    match (facts.clock.rtc, &facts.clock.saved_time) {
        (true, _) => Finding::ok("battery-backed clock"),
        (false, Some(by)) => Finding::ok(format!("none; the time is saved by {by}")),
        (false, None) => Finding::warning(
            "no battery-backed clock, and nothing saves the time: each boot starts in the past",
            "apt-get install fake-hwclock",
        ),
    }
}

/// Free part, percent, rounded down.
fn percent(free: u64, of: u64) -> u64 {
    u64::try_from(u128::from(free) * 100 / u128::from(of.max(1))).unwrap_or(100)
}

/// From here on a disk is to be replaced.
const WORN_PERCENT: u8 = 90;

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The directory that has the smallest part left, by `left`.
fn tightest(facts: &Facts, left: impl Fn(&Dir) -> u64) -> &Dir {
    let dirs = &facts.dirs;
    if left(&dirs.logs) < left(&dirs.root) {
        &dirs.logs
    } else {
        &dirs.root
    }
}

pub(super) fn disk(facts: &Facts) -> Finding {
    let dir = tightest(facts, |d| percent(d.free, d.size));
    let (free, path) = (percent(dir.free, dir.size), &dir.path);
    let says = format!("{} ({free} %) free at {path}", mib(dir.free));
    let fix = "picolet image prune; journalctl --vacuum-size=50M; apt-get clean";
    if free < ALMOST_NOTHING_PERCENT || dir.free < ALMOST_NOTHING_BYTES {
        return Finding::error(says, fix);
    }
    // The same arithmetic as that of image garbage collection.
    if 100 - free >= u64::from(facts.wanted.image_high_percent) {
        return Finding::warning(
            format!("{says}: unused images are being removed to make room"),
            fix,
        );
    }
    Finding::ok(says)
}

pub(super) fn inodes(facts: &Facts) -> Finding {
    // Where none are counted none run out.
    let left = |d: &Dir| {
        if d.inodes == 0 {
            100
        } else {
            percent(d.inodes_free, d.inodes)
        }
    };
    let dir = tightest(facts, left);
    let says = format!("{} % free at {}", left(dir), dir.path);
    if left(dir) < ALMOST_NOTHING_PERCENT {
        let fix = format!(
            "picolet image prune; find what has many files: du --inodes -xd2 {} | sort -n | tail",
            dir.path
        );
        return Finding::error(says, fix);
    }
    Finding::ok(says)
}

pub(super) fn eviction(facts: &Facts) -> Finding {
    let kept = &facts.wanted.kept_free;
    if kept.is_empty() {
        return Finding::ok("nothing is kept free: evictionHard is empty");
    }
    let says = format!("kept free: {}", kept.join(", "));
    if facts.apiserver.is_none() && !facts.wanted.evict_static_pods {
        return Finding::warning(
            format!("{says}; but no pod goes for it: there are only static pods here"),
            "set picolet.evictStaticPods, or picolet run --evict-static-pods",
        );
    }
    Finding::ok(says)
}

pub(super) fn read_only(facts: &Facts) -> Finding {
    let dirs = &facts.dirs;
    let all = [&dirs.root, &dirs.run, &dirs.logs];
    let Some(dir) = all.into_iter().find(|d| d.read_only) else {
        return Finding::ok("all directories are writable");
    };
    Finding::error(
        format!("{} is read-only ({})", dir.path, dir.kind),
        format!(
            "mount -o remount,rw $(findmnt -no TARGET -T {}); after an I/O error: dmesg, fsck, a new card",
            dir.path
        ),
    )
}

pub(super) fn root_dir(facts: &Facts) -> Finding {
    let Dir { path, kind, .. } = &facts.dirs.root;
    match kind.as_str() {
        "tmpfs" | "ramfs" => Finding::warning(
            format!(
                "{path} is in memory ({kind}): images, pods and the identity of the node are gone after a reboot"
            ),
            "picolet run --root-dir on a disk",
        ),
        "overlay" => Finding::error(
            format!("{path} is on an overlay, on which containers cannot have another"),
            "raspi-config nonint disable_overlayfs && reboot, or picolet run --root-dir on another disk",
        ),
        "vfat" | "exfat" | "ntfs" | "ntfs3" | "fuseblk" | "9p" | "nfs" | "nfs4" | "cifs" => {
            Finding::error(
                format!("{path} is on {kind}, which cannot hold the layers of images"),
                "picolet run --root-dir on ext4, f2fs, xfs or btrfs",
            )
        }
        _ => Finding::ok(format!("{path} on {kind}")),
    }
}

/// Flash wears out by what is written to it.
pub(super) fn wear(facts: &Facts) -> Finding {
    let Some(disk) = &facts.dirs.root_disk else {
        return Finding::ok(format!(
            "{} is on no disk that could tell",
            facts.dirs.root.path
        ));
    };
    let written = mib(disk.written);
    let life = match disk.used_life {
        Some(percent) => format!("up to {percent} % of its life is used"),
        None => "it does not tell of its wear".into(),
    };
    let says = format!(
        "{}: {life}; {written} written since the machine was started",
        disk.name
    );
    if disk.at_its_end
        || disk
            .used_life
            .is_some_and(|percent| percent >= WORN_PERCENT)
    {
        return Finding::warning(says, "replace the card or the module before it fails");
    }
    Finding::ok(says)
}

pub(super) fn run_dir(facts: &Facts) -> Finding {
    let Dir { path, kind, .. } = &facts.dirs.run;
    if kind == "tmpfs" || kind == "ramfs" {
        return Finding::ok(format!("{path} on {kind}"));
    }
    Finding::warning(
        format!("{path} is on {kind}: it wears the disk and does not end with a reboot"),
        format!("mount -t tmpfs -o mode=755 tmpfs {path}, or picolet run --run-dir /run/picolet"),
    )
}

pub(super) fn records(facts: &Facts) -> Finding {
    match &facts.dirs.foreign_record {
        None => Finding::ok("all are of versions that this program reads"),
        Some((path, v)) => Finding::error(
            format!(
                "{path} is of version {v}, which a newer picolet wrote and this one does not read"
            ),
            "install that one again; or end the pods with it and remove what it made: picolet reset --stop",
        ),
    }
}

pub(super) fn log_dir(facts: &Facts) -> Finding {
    let Dir {
        path, kind, size, ..
    } = &facts.dirs.logs;
    if kind != "tmpfs" && kind != "ramfs" {
        return Finding::ok(format!("{path} on {kind}"));
    }
    Finding::warning(
        format!(
            "{path} is in memory ({}, log2ram?): logs fill it and are gone after a power cut",
            mib(*size)
        ),
        "picolet run --pod-logs-dir /var/lib/picolet/logs",
    )
}

pub(super) fn mounts(facts: &Facts) -> Finding {
    match facts.dirs.host_mounts {
        Some(true) => Finding::ok("in the mount namespace of the host"),
        None => Finding::ok("the mount namespace of PID 1 cannot be seen"),
        Some(false) => Finding::error(
            "in a mount namespace of its own: what is mounted here is invisible to the host",
            "remove PrivateMounts=, PrivateTmp=, ProtectSystem= and the like from the unit",
        ),
    }
}
