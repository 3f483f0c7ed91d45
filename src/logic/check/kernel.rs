//! Kernel, control groups and the OCI runtime.

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use super::{CheckFacts, CheckFinding, join_first};
use crate::{
    api::cri::{CgroupDriver, UserNamespaceSupport},
    page_size::COMMON_PAGE_BYTES,
};

/// Oldest kernel with everything that is used (`openat2`, `pidfd`), major and minor.
const OLDEST_KERNEL: (u32, u32) = (5, 6);
/// Fewest processes that are enough for a node with a handful of pods.
const FEW_PIDS: u64 = 8192;
/// The kernel's default; programs in containers share it.
const FEW_INOTIFY_INSTANCES: u64 = 128;
/// First kernel that can keep a tmpfs from swap.
const NOSWAP_KERNEL: (u32, u32) = (6, 4);
/// The smallest default of any distribution.
const FEW_INOTIFY_WATCHES: u64 = 8192;

fn release_numbers(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

pub(super) fn check_kernel_version(facts: &CheckFacts) -> CheckFinding {
    let release = &facts.kernel.release;
    if release_numbers(release) >= OLDEST_KERNEL {
        return CheckFinding::ok(format!("Linux {release}"));
    }
    let (major, minor) = OLDEST_KERNEL;
    CheckFinding::error(
        format!("Linux {release} is older than {major}.{minor}"),
        "apt-get update && apt-get full-upgrade && reboot",
    )
}

pub(super) fn check_architecture(facts: &CheckFacts) -> CheckFinding {
    let (machine, program) = (facts.kernel.machine.as_str(), facts.kernel.program.as_str());
    let wide = matches!(machine, "aarch64" | "arm64" | "x86_64" | "riscv64");
    let narrow = matches!(program, "arm" | "armv6" | "armv7" | "x86");
    // `uname -m` tells the kernel's width. A 32-bit system gets a 32-bit program; install.sh does the same (SVC-18).
    if wide && narrow && facts.kernel.userland_bits == Some(32) {
        return CheckFinding::ok(format!("{program} on a 32-bit system ({machine} kernel)"));
    }
    if wide && narrow {
        return CheckFinding::warning(
            format!(
                "a 32-bit program on a 64-bit kernel ({machine}): images are chosen for 32 bits"
            ),
            format!("install the {machine} build of picolet"),
        );
    }
    if program == "armv6" && machine.starts_with("armv7") {
        return CheckFinding::warning(
            "the armv6 build on an armv7 processor: images are chosen for arm/v6, and many have none",
            "install the armv7 build of picolet",
        );
    }
    CheckFinding::ok(format!("{program} on {machine}"))
}

pub(super) fn check_page_size(facts: &CheckFacts) -> CheckFinding {
    let bytes = facts.kernel.page_size;
    if bytes <= COMMON_PAGE_BYTES {
        return CheckFinding::ok(format!("{} KiB", bytes / 1024));
    }
    let fix = match &facts.kernel.config_file {
        Some(file) => format!("echo kernel=kernel8.img >> {file} && reboot"),
        None => "boot a kernel with 4 KiB pages".into(),
    };
    CheckFinding::warning(
        format!(
            "{} KiB: programs built for 4 KiB pages crash (older jemalloc, Go, Electron)",
            bytes / 1024
        ),
        fix,
    )
}

/// Command that puts `words` on the kernel's command line.
fn cmdline_command(facts: &CheckFacts, words: &str) -> String {
    match &facts.kernel.cmdline_file {
        // The file is one line; everything after it is not read.
        Some(file) => format!("sed -i '1s/$/ {words}/' {file} && reboot"),
        None => format!(
            "add {words} to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot"
        ),
    }
}

pub(super) fn check_cgroup(facts: &CheckFacts) -> CheckFinding {
    let groups = &facts.cgroups;
    if !groups.mounted {
        return CheckFinding::error(
            "no control group hierarchy is mounted",
            "mount -t cgroup2 none /sys/fs/cgroup",
        );
    }
    if groups.v2 {
        return CheckFinding::ok("version 2");
    }
    let fix = cmdline_command(facts, "systemd.unified_cgroup_hierarchy=1");
    if facts.wanted.fail_cgroup_v1 {
        return CheckFinding::error("version 1, and failCgroupV1 is true", fix);
    }
    if facts.wanted.limits_writes {
        return CheckFinding::error("version 1, and picolet.podWriteLimit needs version 2", fix);
    }
    CheckFinding::ok("version 1; swap of pods is not limited, memory is not throttled")
}

pub(super) fn check_cgroup_memory(facts: &CheckFacts) -> CheckFinding {
    if !facts.cgroups.missing.iter().any(|c| c == "memory") {
        return CheckFinding::ok("memory is limited");
    }
    let why = if facts.kernel.cmdline.contains("cgroup_disable=memory") {
        "the memory controller is switched off by the kernel command line (cgroup_disable=memory)"
    } else {
        "the memory controller is off"
    };
    // Pods run all the same (QEMU-22).
    CheckFinding::warning(
        format!("{why}: pods with memory limits do not start"),
        cmdline_command(facts, "cgroup_enable=memory cgroup_memory=1"),
    )
}

pub(super) fn check_cgroup_limits(facts: &CheckFacts) -> CheckFinding {
    let missing = facts.cgroups.missing.iter().map(String::as_str);
    let missing: Vec<&str> = missing.filter(|c| *c != "memory").collect();
    if missing.is_empty() {
        return CheckFinding::ok("cpu and pids are limited");
    }
    let list = missing.join(" and ");
    CheckFinding::warning(
        format!("controllers are missing: {list}; pods do not start"),
        if facts.kernel.cmdline.contains("cgroup_disable=") {
            "remove cgroup_disable= from the kernel command line, then: reboot".to_owned()
        } else {
            "boot a kernel with CONFIG_CFS_BANDWIDTH=y, CONFIG_CGROUP_SCHED=y and CONFIG_CGROUP_PIDS=y"
                .to_owned()
        },
    )
}

pub(super) fn check_overlayfs(facts: &CheckFacts) -> CheckFinding {
    if facts.kernel.overlayfs {
        return CheckFinding::ok("available");
    }
    CheckFinding::error(
        "the kernel has no overlayfs",
        "modprobe overlay && echo overlay > /etc/modules-load.d/overlay.conf",
    )
}

pub(super) fn check_seccomp(facts: &CheckFacts) -> CheckFinding {
    if facts.kernel.seccomp {
        return CheckFinding::ok("available");
    }
    let says = "the kernel has no seccomp filters";
    let fix = "boot a kernel with CONFIG_SECCOMP_FILTER=y";
    if facts.wanted.seccomp_default {
        return CheckFinding::error(format!("{says}, and seccompDefault is true"), fix);
    }
    CheckFinding::warning(
        format!("{says}: pods that ask for a profile do not start"),
        fix,
    )
}

pub(super) fn check_apparmor(facts: &CheckFacts) -> CheckFinding {
    match (facts.kernel.apparmor, &facts.kernel.apparmor_profile) {
        (false, _) => CheckFinding::ok("not in this kernel; containers are not confined by it"),
        (true, Some(profile)) => CheckFinding::ok(format!("profile {profile}")),
        (true, None) => CheckFinding::warning(
            "on, but the profile for containers cannot be loaded: they run unconfined",
            "apt-get install apparmor && systemctl restart picolet",
        ),
    }
}

pub(super) fn check_pid_limits(facts: &CheckFacts) -> CheckFinding {
    let (name, have) = if facts.kernel.pid_max <= facts.kernel.threads_max {
        ("kernel.pid_max", facts.kernel.pid_max)
    } else {
        ("kernel.threads-max", facts.kernel.threads_max)
    };
    if have >= FEW_PIDS {
        return CheckFinding::ok(format!("{name} {have}"));
    }
    CheckFinding::warning(
        format!("{name} is {have}: that is few for all pods together"),
        format!("echo {name}=32768 > /etc/sysctl.d/90-picolet-pids.conf && sysctl --system"),
    )
}

pub(super) fn check_inotify(facts: &CheckFacts) -> CheckFinding {
    let kernel = &facts.kernel;
    let (instances, watches) = (kernel.inotify_instances, kernel.inotify_watches);
    if instances >= FEW_INOTIFY_INSTANCES && watches >= FEW_INOTIFY_WATCHES {
        return CheckFinding::ok(format!("{instances} instances, {watches} watches"));
    }
    CheckFinding::warning(
        format!(
            "{instances} instances and {watches} watches are few: programs in pods fail with \"too many open files\""
        ),
        "printf 'fs.inotify.max_user_instances=512\\nfs.inotify.max_user_watches=65536\\n' > \
         /etc/sysctl.d/90-picolet-inotify.conf && sysctl --system",
    )
}

pub(super) fn check_swap(facts: &CheckFacts) -> CheckFinding {
    let swaps = &facts.kernel.swaps;
    let Some(first) = swaps.first() else {
        return CheckFinding::ok("none");
    };
    let list = join_first(swaps.iter().map(String::as_str), 2);
    if facts.wanted.fail_swap_on {
        let off = if first.starts_with("/dev/zram") {
            "swapoff -a && systemctl mask systemd-zram-setup@zram0.service"
        } else if first.starts_with("/var/swap") {
            "swapoff -a && systemctl disable --now dphys-swapfile"
        } else {
            "swapoff -a && sed -i '/\\sswap\\s/s/^/#/' /etc/fstab"
        };
        return CheckFinding::error(format!("{list} is on, and failSwapOn is true"), off);
    }
    let (zram, kept) = (facts.kernel.zram_bytes, facts.wanted.system_memory);
    if zram > kept {
        let needed = zram.div_ceil(1 << 20);
        return CheckFinding::warning(
            format!(
                "{list} takes {needed} MiB of memory that pods cannot use, but systemReserved keeps only {} MiB",
                kept >> 20
            ),
            format!("systemReserved: {{memory: {needed}Mi}} in the configuration"),
        );
    }
    let on_disk = swaps.iter().any(|name| !name.starts_with("/dev/zram"));
    if on_disk && release_numbers(&facts.kernel.release) < NOSWAP_KERNEL {
        return CheckFinding::warning(
            format!(
                "{list}: Secrets in memory may be written to the disk; Linux 6.4 can prevent that"
            ),
            "swapoff -a, or swap to zram, or a newer kernel",
        );
    }
    CheckFinding::ok(format!("{list}; pods get none of it on cgroup v2"))
}

pub(super) fn check_runtime(facts: &CheckFacts) -> CheckFinding {
    match (&facts.runtime.error, &facts.runtime.socket) {
        (Some(why), Some(socket)) => CheckFinding::error(
            format!("{socket}: {why}"),
            "start the container runtime, or correct or remove containerRuntimeEndpoint",
        ),
        (None, _) => CheckFinding::ok(facts.runtime.program.clone()),
        (Some(why), None) => CheckFinding::error(why.clone(), "apt-get install runc"),
    }
}

/// Checks that agent and runtime use the same cgroup driver (CRI-12, SVC-32).
pub(super) fn check_cgroup_driver(facts: &CheckFacts) -> CheckFinding {
    let drivers = &facts.runtime.drivers;
    let has_runtime = facts.runtime.socket.is_some();
    let wanted = if has_runtime {
        drivers.wanted
    } else {
        CgroupDriver::Cgroupfs
    };
    let driver = drivers.told.unwrap_or(wanted);
    if let (None, Some(shown)) = (drivers.told, drivers.shown)
        && shown != wanted
    {
        return CheckFinding::error(
            format!(
                "the container runtime uses {}, but cgroupDriver is {}: containers do not start, or start outside the cgroup of their pod",
                shown.config_word(),
                wanted.config_word()
            ),
            format!(
                "set cgroupDriver: {} in the configuration",
                shown.config_word()
            ),
        );
    }
    if driver == CgroupDriver::Systemd {
        let lacks = if !drivers.systemd {
            "the driver is systemd, but systemd does not run here"
        } else if !facts.cgroups.v2 {
            "the driver is systemd, which needs cgroup version 2 here"
        } else {
            return CheckFinding::ok("systemd makes the cgroups of pods");
        };
        return CheckFinding::error(
            lacks,
            "set SystemdCgroup = false (containerd) or cgroup_manager = \"cgroupfs\" and conmon_cgroup = \"pod\" (CRI-O)",
        );
    }
    if drivers.slice {
        return CheckFinding::warning(
            "kubepods.slice is loaded but not used: another kubelet has left it behind",
            "systemctl stop kubepods.slice",
        );
    }
    CheckFinding::ok("cgroupfs")
}

/// Checks the program of each handler (RC-01).
pub(super) fn check_runtime_handlers(facts: &CheckFacts) -> CheckFinding {
    let all = &facts.runtime.handlers;
    if let Some(handler) = all.iter().find(|handler| handler.error.is_some()) {
        let why = handler.error.as_deref().unwrap_or_default();
        return CheckFinding::error(
            format!("{}: {why}", handler.name),
            "install that OCI runtime, or correct picolet.handlers",
        );
    }
    let shown = all.iter().map(|handler| match &*handler.program {
        "" => handler.name.clone(),
        program => format!("{}: {program}", handler.name),
    });
    match all.is_empty() {
        true => CheckFinding::ok("only the default one"),
        false => CheckFinding::ok(shown.collect::<Vec<_>>().join("; ")),
    }
}

/// No pod has to have one: without them nothing is wrong (UNS-25).
pub(super) fn check_user_namespaces(facts: &CheckFacts) -> CheckFinding {
    match &facts.runtime.user_namespaces {
        UserNamespaceSupport::Works => {
            CheckFinding::ok("pods can have their own (hostUsers: false)")
        }
        UserNamespaceSupport::Lacks(why) => {
            CheckFinding::ok(format!("pods with hostUsers: false do not start: {why}"))
        }
    }
}

pub(super) fn check_runtime_version(facts: &CheckFacts) -> CheckFinding {
    if facts.runtime.holes.is_empty() {
        return CheckFinding::ok("no known holes");
    }
    CheckFinding::warning(
        format!(
            "{} has {}",
            facts.runtime.program,
            facts.runtime.holes.join("; ")
        ),
        "apt-get update && apt-get install --only-upgrade runc; if there is no newer package, install a release of \
         github.com/opencontainers/runc, and picolet run --oci-runtime /usr/local/sbin/runc",
    )
}
