use alloc::{borrow::ToOwned, boxed::Box, vec::Vec};

use super::*;
use crate::api::{
    WallTime,
    cluster_network::{ClusterNetwork, K3sClusterFacts},
    cri::{CgroupDriver, UserNamespaceSupport},
    health::{AgentHealth, LinkHealth},
};

fn registries(change: fn(&mut RegistryConfigFacts)) -> RegistryConfigFacts {
    let mut registries = RegistryConfigFacts {
        path: Some("/r.yaml".into()),
        ..RegistryConfigFacts::default()
    };
    change(&mut registries);
    registries
}

/// A board on which everything is as it should be, agent included.
pub(super) fn sound() -> CheckFacts {
    let dir = |path: &str, kind: &str, moved_by: &str| DirectoryFacts {
        path: path.into(),
        kind: kind.into(),
        read_only: false,
        restricted: Vec::new(),
        moved_by: moved_by.into(),
        size: 16 << 30,
        free: 8 << 30,
        inodes: 1_000_000,
        inodes_free: 900_000,
    };
    let texts = |all: &[&str]| all.iter().map(|&t| t.to_owned()).collect::<Vec<_>>();
    CheckFacts {
        of_parts: Vec::new(),
        wanted: OperatorConfig {
            file: Some("/etc/picolet/config.yaml".into()),
            node_name: "pi.example".into(),
            bridge: "picolet0".into(),
            evict_static_pods: true,
            kept_free: texts(&["memory.available<100Mi", "nodefs.available<10%"]),
            image_high_percent: 85,
            ..OperatorConfig::default()
        },
        kernel: KernelFacts {
            release: "6.12.25+rpt-rpi-v8".into(),
            machine: "aarch64".into(),
            program: "aarch64".into(),
            userland_bits: Some(64),
            page_size: 4096,
            cmdline: "console=tty1 root=PARTUUID=1-02".into(),
            cmdline_file: Some("/boot/firmware/cmdline.txt".into()),
            config_file: Some("/boot/firmware/config.txt".into()),
            overlayfs: true,
            seccomp: true,
            apparmor: true,
            apparmor_profile: Some("picolet-default-v1".into()),
            pid_max: 32_768,
            threads_max: 14_000,
            inotify_instances: 128,
            inotify_watches: 8192,
            swaps: Vec::new(),
            zram_bytes: 0,
        },
        cgroups: CgroupFacts {
            mounted: true,
            v2: true,
            missing: Vec::new(),
        },
        runtime: RuntimeFacts {
            program: "runc 1.3.3".into(),
            ..RuntimeFacts::default()
        },
        network: NetworkFacts {
            conf_dir: "/etc/cni/net.d".into(),
            plugins: texts(&["bridge", "host-local", "portmap"]),
            iptables: Some("iptables v1.8.9 (nf_tables)".into()),
            forward: texts(&["-P FORWARD ACCEPT"]),
            ip_forward: true,
            bridge_exists: true,
            resolv_conf: Some("/etc/resolv.conf".into()),
            name_servers: texts(&["192.168.1.1"]),
            listening: vec![22],
            ..NetworkFacts::default()
        },
        clock: ClockFacts {
            now: WallTime::from_unix_seconds(1_790_000_000),
            synchronized: Some(true),
            rtc: false,
            saved_time: Some("fake-hwclock".into()),
        },
        dirs: AgentDirectoryFacts {
            root: dir("/var/lib/picolet", "ext4", "--root-dir"),
            root_disk: Some(DiskWearFacts {
                name: "mmcblk0".into(),
                written: 3 << 30,
                used_life: Some(20),
                at_its_end: false,
            }),
            run: dir("/run/picolet", "tmpfs", "--run-dir"),
            logs: dir("/var/log/pods", "ext4", "--pod-logs-dir"),
            others: vec![
                dir("/var/lib/picolet/pki", "ext4", "--cert-dir"),
                dir("/etc/kubernetes", "ext4", "--kubeconfig"),
            ],
            host_mounts: Some(true),
            foreign_record: None,
        },
        devices: OfferedDevices::default(),
        rights: ProcessRights {
            root: true,
            capabilities: texts(&[
                "CAP_SYS_ADMIN",
                "CAP_NET_ADMIN",
                "CAP_DAC_OVERRIDE",
                "CAP_CHOWN",
                "CAP_FOWNER",
                "CAP_KILL",
                "CAP_MKNOD",
                "CAP_SETUID",
                "CAP_SYS_RESOURCE",
            ]),
        },
        registries: registries(|_| {}),
        manifests: ManifestFacts {
            path: Some("/etc/picolet/manifests".into()),
            pods: 2,
            host_ports: vec![(8080, "default/web".into())],
            ..ManifestFacts::default()
        },
        kubelets: Vec::new(),
        apiserver: None,
        agent: AgentReachability::Up(Box::new(AgentHealth {
            version: "0.1.0".into(),
            relist_age_ms: Some(800),
            manifests_age_ms: Some(19_000),
            manifests_interval_ms: 20_000,
            pods: 2,
            ..AgentHealth::default()
        })),
        kubeadm: KubeadmFacts::default(),
    }
}

fn handler(name: &str, error: &str) -> HandlerRuntimeFacts {
    HandlerRuntimeFacts {
        name: name.into(),
        program: format!("{name} 1.0 at /opt/{name}"),
        error: Some(error.to_owned()).filter(|error| !error.is_empty()),
    }
}

fn link(says: &str, waits: bool) -> Option<LinkHealth> {
    let says = says.into();
    Some(LinkHealth { says, waits })
}

fn up(change: impl FnOnce(&mut AgentHealth)) -> AgentReachability {
    let AgentReachability::Up(mut agent) = sound().agent else {
        unreachable!()
    };
    change(&mut agent);
    AgentReachability::Up(agent)
}

fn find(facts: &CheckFacts, check: &str) -> CheckFinding {
    let found = run_checks(facts)
        .into_iter()
        .find(|(name, _)| *name == check);
    found.unwrap_or_else(|| panic!("no check {check}")).1
}

/// A node of a cluster.
fn member(change: fn(&mut ApiserverFacts)) -> Option<ApiserverFacts> {
    let mut it = ApiserverFacts {
        kubeconfig: "/etc/k".into(),
        server: "https://a:6443".into(),
        certificate: Some((
            WallTime::from_unix_seconds(1_700_000_000),
            WallTime::from_unix_seconds(4_000_000_000),
        )),
        renews: true,
        answer: Some(ApiserverAnswer::Given),
        ..ApiserverFacts::default()
    };
    change(&mut it);
    Some(it)
}

/// Change to the facts of a sound board.
type Change = fn(&mut CheckFacts);

#[test]
fn a_sound_board() {
    for (name, finding) in run_checks(&sound()) {
        assert_eq!(finding.level, FindingLevel::Ok, "{name}: {finding:?}");
        assert!(finding.fix.is_empty(), "{name}: nothing is to be fixed");
        assert!(!finding.says.is_empty(), "{name} says nothing");
        assert!(!finding.says.contains('\n'), "{name} says one line");
    }
}

/// Rows: check, change, level, part of the finding, the exact fix.
#[rustfmt::skip]
const BAD: &[(&str, Change, FindingLevel, &str, &str)] = &[
    ("config", |f| f.wanted.errors = vec![("/c.yaml".into(), "/c.yaml: maxPods: must be positive".into())], FindingLevel::Error, "/c.yaml: maxPods: must be positive",
        "correct /c.yaml"),
    ("config", |f| f.wanted.protected = Some("invalid kernel flag: kernel.panic".into()), FindingLevel::Error, "kernel.panic",
        "set them with sysctl, or set protectKernelDefaults to false so that the agent sets them"),
    ("config", |f| f.wanted.warnings = vec![("--feature-gates".into(), "--feature-gates: featureGates.A is without effect here".into())], FindingLevel::Warning, "--feature-gates: featureGates.A",
        "correct --feature-gates"),
    ("root", |f| f.rights.root = false, FindingLevel::Error, "not root", "sudo picolet check"),
    ("capabilities", |f| f.rights.capabilities.retain(|c| c != "CAP_NET_ADMIN"), FindingLevel::Error, "missing: CAP_NET_ADMIN",
        "remove CapabilityBoundingSet= from the unit, or run outside of a container"),
    ("capabilities", |f| f.rights.capabilities.retain(|c| c != "CAP_SYS_RESOURCE"), FindingLevel::Warning, "OOM scores",
        "add CAP_SYS_RESOURCE to CapabilityBoundingSet= of the unit, or to the container's capabilities"),
    ("hostname", |f| f.wanted.node_name = "my_pi".into(), FindingLevel::Error, "\"my_pi\" cannot be the name of a node",
        "hostnamectl set-hostname node1, or picolet run --hostname-override node1"),
    ("hostname", |f| f.wanted.node_name = "-pi".into(), FindingLevel::Error, "\"-pi\"",
        "hostnamectl set-hostname node1, or picolet run --hostname-override node1"),
    ("hostname", |f| f.wanted.node_name = "localhost".into(), FindingLevel::Warning, "name that every machine has",
        "hostnamectl set-hostname node1, or picolet run --hostname-override node1"),
    ("kernel", |f| f.kernel.release = "5.4.0-rpi".into(), FindingLevel::Error, "older than 5.6",
        "apt-get update && apt-get full-upgrade && reboot"),
    // SVC-18
    ("architecture", |f| f.kernel.program = "arm".into(), FindingLevel::Warning, "32-bit program on a 64-bit kernel (aarch64)",
        "install the aarch64 build of picolet"),
    ("architecture", |f| { f.kernel.program = "armv6".into(); f.kernel.machine = "armv7l".into(); }, FindingLevel::Warning, "arm/v6",
        "install the armv7 build of picolet"),
    ("page-size", |f| f.kernel.page_size = 16_384, FindingLevel::Warning, "16 KiB",
        "echo kernel=kernel8.img >> /boot/firmware/config.txt && reboot"),
    ("page-size", |f| { f.kernel.page_size = 65_536; f.kernel.config_file = None; }, FindingLevel::Warning, "64 KiB",
        "boot a kernel with 4 KiB pages"),
    ("cgroup", |f| f.cgroups.mounted = false, FindingLevel::Error, "no control group hierarchy",
        "mount -t cgroup2 none /sys/fs/cgroup"),
    ("cgroup", |f| { f.cgroups.v2 = false; f.wanted.fail_cgroup_v1 = true; }, FindingLevel::Error, "failCgroupV1",
        "sed -i '1s/$/ systemd.unified_cgroup_hierarchy=1/' /boot/firmware/cmdline.txt && reboot"),
    // WEAR-07
    ("cgroup", |f| { f.cgroups.v2 = false; f.wanted.limits_writes = true; }, FindingLevel::Error, "picolet.podWriteLimit needs version 2",
        "sed -i '1s/$/ systemd.unified_cgroup_hierarchy=1/' /boot/firmware/cmdline.txt && reboot"),
    // SVC-16
    ("cgroup-memory", |f| { f.cgroups.missing = vec!["memory".into()]; f.kernel.cmdline.insert_str(0, "cgroup_disable=memory "); }, FindingLevel::Warning, "cgroup_disable=memory",
        "sed -i '1s/$/ cgroup_enable=memory cgroup_memory=1/' /boot/firmware/cmdline.txt && reboot"),
    ("cgroup-memory", |f| { f.cgroups.missing = vec!["memory".into()]; f.kernel.cmdline_file = None; }, FindingLevel::Warning, "the memory controller is off: pods with memory limits do not start",
        "add cgroup_enable=memory cgroup_memory=1 to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot"),
    // CRI-12 SVC-32
    ("cgroup-driver", |f| { f.runtime.socket = Some("/run/c.sock".into()); f.runtime.drivers.shown = Some(CgroupDriver::Systemd); }, FindingLevel::Error, "the container runtime uses systemd, but cgroupDriver is cgroupfs",
        "set cgroupDriver: systemd in the configuration"),
    ("cgroup-driver", |f| { f.runtime.socket = Some("/run/c.sock".into()); f.runtime.drivers.told = Some(CgroupDriver::Systemd); }, FindingLevel::Error, "systemd does not run here",
        "set SystemdCgroup = false (containerd) or cgroup_manager = \"cgroupfs\" and conmon_cgroup = \"pod\" (CRI-O)"),
    ("cgroup-driver", |f| { f.runtime.socket = Some("/run/c.sock".into()); f.runtime.drivers.told = Some(CgroupDriver::Systemd); f.runtime.drivers.systemd = true; f.cgroups.v2 = false; }, FindingLevel::Error, "version 2",
        "set SystemdCgroup = false (containerd) or cgroup_manager = \"cgroupfs\" and conmon_cgroup = \"pod\" (CRI-O)"),
    ("cgroup-driver", |f| f.runtime.drivers.slice = true, FindingLevel::Warning, "kubepods.slice is loaded but not used",
        "systemctl stop kubepods.slice"),
    ("cgroup-limits", |f| f.cgroups.missing = vec!["cpu".into(), "pids".into()], FindingLevel::Warning, "cpu and pids",
        "boot a kernel with CONFIG_CFS_BANDWIDTH=y, CONFIG_CGROUP_SCHED=y and CONFIG_CGROUP_PIDS=y"),
    ("overlayfs", |f| f.kernel.overlayfs = false, FindingLevel::Error, "no overlayfs",
        "modprobe overlay && echo overlay > /etc/modules-load.d/overlay.conf"),
    ("seccomp", |f| f.kernel.seccomp = false, FindingLevel::Warning, "no seccomp filters",
        "boot a kernel with CONFIG_SECCOMP_FILTER=y"),
    ("seccomp", |f| { f.kernel.seccomp = false; f.wanted.seccomp_default = true; }, FindingLevel::Error, "seccompDefault",
        "boot a kernel with CONFIG_SECCOMP_FILTER=y"),
    ("apparmor", |f| f.kernel.apparmor_profile = None, FindingLevel::Warning, "unconfined",
        "apt-get install apparmor && systemctl restart picolet"),
    ("pid-limits", |f| f.kernel.pid_max = 4096, FindingLevel::Warning, "kernel.pid_max is 4096",
        "echo kernel.pid_max=32768 > /etc/sysctl.d/90-picolet-pids.conf && sysctl --system"),
    ("pid-limits", |f| f.kernel.threads_max = 3000, FindingLevel::Warning, "kernel.threads-max is 3000",
        "echo kernel.threads-max=32768 > /etc/sysctl.d/90-picolet-pids.conf && sysctl --system"),
    ("inotify", |f| f.kernel.inotify_instances = 16, FindingLevel::Warning, "16 instances",
        "printf 'fs.inotify.max_user_instances=512\\nfs.inotify.max_user_watches=65536\\n' > /etc/sysctl.d/90-picolet-inotify.conf && sysctl --system"),
    ("swap", |f| { f.kernel.swaps = vec!["/var/swap".into()]; f.wanted.fail_swap_on = true; }, FindingLevel::Error, "/var/swap is on",
        "swapoff -a && systemctl disable --now dphys-swapfile"),
    ("swap", |f| { f.kernel.swaps = vec!["/dev/sda3".into()]; f.wanted.fail_swap_on = true; }, FindingLevel::Error, "/dev/sda3 is on",
        "swapoff -a && sed -i '/\\sswap\\s/s/^/#/' /etc/fstab"),
    // SWP-04
    ("swap", |f| { f.kernel.swaps = vec!["/var/swap".into()]; f.kernel.release = "6.1.21-v8+".into(); }, FindingLevel::Warning,
        "Secrets in memory may be written to the disk", "swapoff -a, or swap to zram, or a newer kernel"),
    // SWP-05
    ("swap", |f| { f.kernel.swaps = vec!["/dev/zram0".into()]; f.kernel.zram_bytes = (40 << 20) + 1; f.wanted.system_memory = 32 << 20; },
        FindingLevel::Warning, "takes 41 MiB of memory that pods cannot use, but systemReserved keeps only 32 MiB", "systemReserved: {memory: 41Mi} in the configuration"),
    // WEAR-06
    ("wear", |f| f.dirs.root_disk.as_mut().expect("one").used_life = Some(90), FindingLevel::Warning, "up to 90 % of its life is used",
        "replace the card or the module before it fails"),
    ("wear", |f| f.dirs.root_disk.as_mut().expect("one").at_its_end = true, FindingLevel::Warning, "mmcblk0: ", "replace the card or the module before it fails"),
    ("swap", |f| { f.kernel.swaps = vec!["/dev/zram0".into()]; f.wanted.fail_swap_on = true; }, FindingLevel::Error, "/dev/zram0 is on",
        "swapoff -a && systemctl mask systemd-zram-setup@zram0.service"),
    ("clock", |f| { f.clock.now = WallTime::from_unix_seconds(60); f.clock.synchronized = Some(false); }, FindingLevel::Warning, "the clock shows 1970-01-01T00:01:00Z",
        "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'"),
    // SVC-15: a date that looks right.
    ("clock", |f| f.clock.synchronized = Some(false), FindingLevel::Warning, "nothing synchronizes it",
        "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'"),
    // DEV-37
    ("devices", |f| f.devices.units = vec![("picolet/a".into(), 1), ("picolet/b".into(), 0)], FindingLevel::Warning,
        "no device of picolet/b was found: pods that ask for it wait",
        "plug it in, load its module (modprobe), or correct match in picolet.devices; ls -l /dev lists the devices that exist"),
    ("devices", |f| f.devices.plugins = vec![("example.com/a".into(), 0), ("example.com/b".into(), 1)], FindingLevel::Warning,
        "no device of example.com/a is healthy: pods that ask for it wait",
        "look at the pod of its device plugin: picolet get pods"),
    // DEV-46
    ("devices", |f| { f.devices.units = vec![("picolet/a".into(), 0)]; f.devices.wrong = vec!["/etc/cdi/a.json: kind: is \"\"".into()]; },
        FindingLevel::Warning, "CDI file /etc/cdi/a.json: kind: is \"\": its devices are not available", "correct the file, or remove it"),
    // DEV-42
    ("devices", |f| { f.devices.units = vec![("picolet/a".into(), 1)]; f.devices.lacks = Some("CONFIG_CGROUP_BPF".into()); },
        FindingLevel::Error, "the kernel has no CONFIG_CGROUP_BPF", "boot a kernel with CONFIG_CGROUP_BPF=y"),
    ("rtc", |f| f.clock.saved_time = None, FindingLevel::Warning, "starts in the past", "apt-get install fake-hwclock"),
    ("disk", |f| f.dirs.root.free = 50 << 20, FindingLevel::Error, "50 MiB (0 %) free at /var/lib/picolet",
        "picolet image prune; journalctl --vacuum-size=50M; apt-get clean"),
    ("disk", |f| f.dirs.root.free = 2 << 30, FindingLevel::Warning, "unused images are being removed",
        "picolet image prune; journalctl --vacuum-size=50M; apt-get clean"),
    ("disk", |f| f.dirs.logs.free = 1 << 20, FindingLevel::Error, "free at /var/log/pods",
        "picolet image prune; journalctl --vacuum-size=50M; apt-get clean"),
    ("eviction", |f| f.wanted.evict_static_pods = false, FindingLevel::Warning, "no pod can be evicted for it",
        "set picolet.evictStaticPods, or picolet run --evict-static-pods"),
    ("inodes", |f| f.dirs.root.inodes_free = 10, FindingLevel::Error, "0 % free at /var/lib/picolet",
        "picolet image prune; find what has many files: du --inodes -xd2 /var/lib/picolet | sort -n | tail"),
    ("read-only", |f| f.dirs.root.read_only = true, FindingLevel::Error, "/var/lib/picolet is read-only (ext4)",
        "mount -o remount,rw $(findmnt -no TARGET -T /var/lib/picolet); after an I/O error: look at dmesg, run fsck, or replace the card; if the system is meant to be read-only: choose another directory with --root-dir"),
    // SVC-20
    ("read-only", |f| for d in &mut f.dirs.others { d.read_only = true; }, FindingLevel::Error, "/var/lib/picolet/pki, /etc/kubernetes are read-only (ext4)",
        "mount -o remount,rw $(findmnt -no TARGET -T /var/lib/picolet/pki); after an I/O error: look at dmesg, run fsck, or replace the card; if the system is meant to be read-only: choose another directory with --cert-dir"),
    ("read-only", |f| { let d = &mut f.dirs.others[0]; d.read_only = true; d.moved_by.clear(); d.path = "/etc/systemd/logind.conf.d".into(); }, FindingLevel::Warning,
        "/etc/systemd/logind.conf.d is read-only", "mount -o remount,rw $(findmnt -no TARGET -T /etc/systemd/logind.conf.d); after an I/O error: look at dmesg, run fsck, or replace the card"),
    ("mount-options", |f| f.dirs.root.restricted = vec!["nosuid".into(), "nodev".into(), "noexec".into()], FindingLevel::Warning,
        "in volumes below /var/lib/picolet: programs cannot change their user (nosuid), devices cannot be opened (nodev), programs do not start (noexec)",
        "mount -o remount,suid,dev,exec $(findmnt -no TARGET -T /var/lib/picolet), and in /etc/fstab; or picolet run --root-dir on another disk"),
    // SVC-21
    ("root-dir", |f| f.dirs.root.kind = "overlay".into(), FindingLevel::Error, "on an overlay file system",
        "raspi-config nonint disable_overlayfs && reboot, or picolet run --root-dir on another disk"),
    ("root-dir", |f| f.dirs.root.kind = "vfat".into(), FindingLevel::Error, "on vfat",
        "picolet run --root-dir on ext4, f2fs, xfs or btrfs"),
    ("root-dir", |f| f.dirs.root.kind = "tmpfs".into(), FindingLevel::Warning, "the identity of the node are gone after a reboot",
        "picolet run --root-dir on a disk"),
    ("records", |f| f.dirs.foreign_record = Some(("/var/lib/picolet/pods/u/pod.json".into(), 2)), FindingLevel::Error, "pods/u/pod.json has version 2",
        "install the newer picolet again, or use it to end the pods and remove its data: picolet reset --stop"),
    ("run-dir", |f| f.dirs.run.kind = "ext4".into(), FindingLevel::Warning, "/run/picolet is on ext4",
        "mount -t tmpfs -o mode=755 tmpfs /run/picolet, or picolet run --run-dir /run/picolet"),
    ("log-dir", |f| { f.dirs.logs.kind = "tmpfs".into(); f.dirs.logs.size = 128 << 20; }, FindingLevel::Warning, "128 MiB, log2ram?",
        "picolet run --pod-logs-dir /var/lib/picolet/logs"),
    ("mounts", |f| f.dirs.host_mounts = Some(false), FindingLevel::Error, "mount namespace of its own",
        "remove PrivateMounts=, PrivateTmp=, ProtectSystem= and the like from the unit"),
    ("runtime", |f| f.runtime.error = Some("OCI runtime \"runc\" not found".into()), FindingLevel::Error, "not found", "apt-get install runc"),
    ("runtime-version", |f| f.runtime.holes = vec!["CVE-2024-21626 (fixed in 1.1.12)".into()], FindingLevel::Warning, "runc 1.3.3 has CVE-2024-21626",
        "apt-get update && apt-get install --only-upgrade runc; if there is no newer package, install a release of github.com/opencontainers/runc, and picolet run --oci-runtime /usr/local/sbin/runc"),
    ("runtime-handlers", |f| f.runtime.handlers = vec![handler("gvisor", ""), handler("kata", "OCI runtime \"/opt/kata\" not found")], FindingLevel::Error,
        "kata: OCI runtime \"/opt/kata\" not found", "install that OCI runtime, or correct picolet.handlers"),
    ("user-namespaces", |f| f.runtime.user_namespaces = UserNamespaceSupport::Lacks("/usr/sbin/runc lacks x".into()), FindingLevel::Ok,
        "pods with hostUsers: false do not start: /usr/sbin/runc lacks x", ""),
    ("cni-config", |f| f.network.conf_error = Some("network configuration /etc/cni/net.d/a.conf: not valid JSON".into()), FindingLevel::Error, "a.conf",
        "correct that file, or move it out of /etc/cni/net.d to use the built-in network"),
    ("cni-config", |f| { f.network.conf = Some("/etc/cni/net.d/10-flannel.conflist".into()); f.network.plugins = vec!["flannel".into()]; }, FindingLevel::Warning, "left by another cluster",
        "mv /etc/cni/net.d/10-flannel.conflist /etc/cni/net.d/10-flannel.conflist.off  (the built-in network is used then)"),
    ("cni-plugins", |f| f.network.plugin_error = Some("CNI plugin \"portmap\" is not installed".into()), FindingLevel::Warning, "pods with a hostPort will not start: CNI plugin \"portmap\"",
        "apt-get install containernetworking-plugins"),
    ("cni-plugins", |f| { f.network.conf = Some("/etc/cni/net.d/a.conf".into()); f.network.plugin_error = Some("CNI plugin \"ptp\" is not installed".into()); }, FindingLevel::Error, "ptp",
        "install the plugin, or move the configuration away to use the built-in network"),
    ("iptables", |f| f.network.iptables = None, FindingLevel::Error, "needs the iptables program", "apt-get install iptables"),
    ("iptables", |f| f.network.nat_error = Some("Table does not exist".into()), FindingLevel::Error, "Table does not exist",
        "modprobe nf_tables nft_compat nft_chain_nat, or update-alternatives --set iptables /usr/sbin/iptables-legacy"),
    ("iptables", |f| { f.network.iptables = Some("iptables v1.8.9 (legacy)".into()); f.network.nat_error = Some("x".into()); }, FindingLevel::Error, "cannot use the nat table",
        "modprobe iptable_nat, or update-alternatives --set iptables /usr/sbin/iptables-nft"),
    ("iptables", |f| f.network.other_rules = 7, FindingLevel::Warning, "7 rules were made with the legacy flavour",
        "update-alternatives --set iptables /usr/sbin/iptables-legacy, or remove those rules"),
    ("forwarding", |f| f.network.ip_forward = false, FindingLevel::Error, "net.ipv4.ip_forward is off",
        "printf 'net.ipv4.ip_forward=1\\n' > /etc/sysctl.d/90-picolet-forward.conf && sysctl --system"),
    ("forwarding", |f| f.network.conf = Some("/etc/cni/net.d/a.conflist".into()), FindingLevel::Warning, "br_netfilter",
        "modprobe br_netfilter && echo br_netfilter > /etc/modules-load.d/br_netfilter.conf && sysctl -w net.bridge.bridge-nf-call-iptables=1"),
    ("firewall", |f| f.network.forward = vec!["-P FORWARD DROP".into()], FindingLevel::Error, "drops forwarded packets",
        "iptables -I FORWARD -i picolet0 -j ACCEPT && iptables -I FORWARD -o picolet0 -j ACCEPT"),
    ("dns", |f| { f.network.name_servers = vec!["127.0.0.53".into()]; f.network.resolved = true; }, FindingLevel::Error, "127.0.0.53",
        "picolet run --resolv-conf /run/systemd/resolve/resolv.conf  (or resolvConf: in the configuration)"),
    ("dns", |f| f.network.name_servers = vec!["127.0.0.1".into()], FindingLevel::Error, "which pods cannot reach",
        "picolet run --resolv-conf FILE, which names the servers that the local name server asks"),
    ("dns", |f| f.network.name_servers = Vec::new(), FindingLevel::Warning, "names no server",
        "picolet run --resolv-conf FILE with a line such as: nameserver 192.168.1.1"),
    ("neighbours", |f| f.kubelets = vec![("kubelet".into(), 77)], FindingLevel::Error, "kubelet (process 77)",
        "systemctl disable --now kubelet, or give picolet --cgroup-root and --pod-logs-dir of its own"),
    ("neighbours", |f| f.kubelets = vec![("k3s-server".into(), 78)], FindingLevel::Error, "k3s-server",
        "systemctl disable --now k3s, or give picolet --cgroup-root and --pod-logs-dir of its own"),
    ("manifests", |f| f.manifests.bad = vec![("/m/a.yaml".into(), "spec: required".into())], FindingLevel::Error, "/m/a.yaml: spec: required",
        "correct /m/a.yaml"),
    ("manifests", |f| f.manifests.odd = vec![("/m/a.yaml".into(), "unknown field imgae".into())], FindingLevel::Warning, "/m/a.yaml: unknown field imgae",
        "correct /m/a.yaml"),
    ("manifests", |f| { f.manifests.url = Some("http://h/m".into()); f.manifests.is_url_plain = true; }, FindingLevel::Warning,
        "staticPodURL http://h/m is plain http", "serve it over https; set picolet.manifestURLCA to the CA of the server"),
    ("manifests", |f| { f.manifests.path = None; f.manifests.url = Some("http://h/m".into()); f.manifests.is_url_plain = true; }, FindingLevel::Warning,
        "staticPodURL http://h/m is plain http", "serve it over https; set picolet.manifestURLCA to the CA of the server"),
    ("ports", |f| { f.agent = AgentReachability::Absent; f.network.listening = vec![22, 8080]; }, FindingLevel::Error, "port 8080 that pod default/web asks for is taken",
        "ss -ltnp 'sport = :8080'  (then end that program, or change the pod's hostPort)"),
    ("secrets", |f| f.manifests.open_secrets = vec!["/m/s.yaml".into()], FindingLevel::Warning, "can read the secrets in /m/s.yaml",
        "chmod 600 /m/s.yaml"),
    ("registries", |f| f.registries = registries(|r| r.unusable = Some("/r.yaml:3: mirrors: is wrong".into())), FindingLevel::Error, "/r.yaml:3: mirrors",
        "correct /r.yaml: the agent does not start"),
    ("registries", |f| f.registries = registries(|r| r.faults = vec!["/r.yaml:1: mirrrors: unknown key".into()]), FindingLevel::Warning, "/r.yaml:1: mirrrors",
        "correct /r.yaml, then restart the agent"),
    ("registries", |f| f.registries = registries(|r| r.is_newer = true), FindingLevel::Warning, "/r.yaml was changed after",
        "systemctl restart picolet"),
    ("kubeconfig", |f| f.apiserver = member(|a| a.error = Some("kubeconfig /etc/k: cannot read".into())), FindingLevel::Error, "cannot read",
        "picolet join --force, or copy a kubeconfig for this node to /etc/k"),
    ("kubeconfig", |f| f.apiserver = member(|a| { a.error = Some("x".into()); a.bootstrap = Some(BootstrapKubeconfig::Unusable("y".into())); }), FindingLevel::Error, "x; y",
        "picolet join --force, with the arguments that this prints on the control plane: kubeadm token create --print-join-command"),
    ("certificate", |f| f.apiserver = member(|a| a.certificate = Some((WallTime(0), WallTime::from_unix_seconds(1_700_000_000)))), FindingLevel::Error, "expired at 2023-11-14T22:13:20Z",
        "picolet join --force with a new token, or copy a new kubeconfig from the control plane"),
    // SVC-15
    ("certificate", |f| { f.apiserver = member(|_| ()); f.clock.now = WallTime::from_unix_seconds(4_100_000_000); f.clock.synchronized = Some(false); }, FindingLevel::Warning, "and is not synchronized",
        "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'"),
    ("certificate", |f| { f.apiserver = member(|_| ()); f.clock.now = WallTime::from_unix_seconds(60); }, FindingLevel::Warning, "valid only from 2023-11-14T22:13:20Z on, and the clock shows 1970-01-01T00:01:00Z",
        "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'"),
    ("certificate", |f| { f.apiserver = member(|a| a.renews = false); f.clock.now = WallTime::from_unix_seconds(3_999_999_000); }, FindingLevel::Warning, "does not renew",
        "picolet run --rotate-certificates  (or rotateCertificates: true in the configuration)"),
    ("apiserver", |f| f.apiserver = member(|a| a.answer = Some(ApiserverAnswer::Silent("cannot reach https://a:6443: refused".into()))), FindingLevel::Warning, "refused; pods keep running",
        "curl -kv https://a:6443/healthz"),
    ("apiserver", |f| f.apiserver = member(|a| a.clock = Some("the clock is 99 s ahead".into())), FindingLevel::Warning, "99 s ahead",
        "apt-get install systemd-timesyncd && timedatectl set-ntp true; without a network: date -s '2026-01-31 12:00'"),
    // K3SJ-11
    ("pod-routes", |f| f.apiserver = member(|_| ()), FindingLevel::Warning, "do not reach pods of other nodes",
        "ip route add POD-CIDR via NODE-IP, for each other node; or put a network configuration into /etc/cni/net.d"),
    ("services", |f| f.apiserver = member(|_| ()), FindingLevel::Warning, "do not reach Services: no kube-proxy",
        "run kube-proxy here: kubeadm has a DaemonSet of it (kubectl -n kube-system get ds kube-proxy), k3s has none"),
    ("tunnel", |f| f.apiserver = member(|a| a.tunnel = Some("agent".into())), FindingLevel::Warning, "want a tunnel (agent)",
        "run all servers of k3s with --egress-selector-mode=disabled"),
    // METER-02
    ("link-budget", |f| f.agent = up(|a| a.link = link("5MB of 5MB used today; images wait", true)), FindingLevel::Warning, "images wait",
        "picolet image pull --now IMAGE, or raise picolet.link.dailyBytes"),
    ("agent", |f| f.agent = AgentReachability::Mute("timed out".into()), FindingLevel::Error, "does not answer: timed out",
        "systemctl restart picolet; journalctl -u picolet -n 50"),
    ("agent", |f| f.agent = up(|a| a.down = Some("container runtime is down".into())), FindingLevel::Error, "handles no pods: container runtime is down",
        "systemctl restart picolet; journalctl -u picolet -n 50"),
    ("agent", |f| f.agent = up(|a| a.relist_age_ms = Some(200_000)), FindingLevel::Error, "last looked at its containers 200 s ago",
        "systemctl restart picolet; journalctl -u picolet -n 50"),
    ("agent", |f| f.agent = up(|a| a.manifests_age_ms = None), FindingLevel::Error, "has never read its manifests",
        "systemctl restart picolet; journalctl -u picolet -n 50"),
    ("agent", |f| f.agent = up(|a| a.network_down = Some("no plugin".into())), FindingLevel::Error, "get no network: no plugin",
        "see cni-config and cni-plugins"),
];

#[test]
fn everything_that_goes_wrong_is_named_with_its_fix() {
    for (check, change, level, says, fix) in BAD {
        let mut facts = sound();
        change(&mut facts);
        let finding = find(&facts, check);
        assert_eq!(finding.level, *level, "{check}: {finding:?}");
        assert!(finding.says.contains(says), "{check}: {}", finding.says);
        assert_eq!(finding.fix, *fix, "{check}");
        assert!(!finding.says.contains('\n'), "{check} says one line");
    }
    for (check, _) in CHECKS {
        assert!(BAD.iter().any(|row| row.0 == check), "{check} has no row");
    }
}

#[test]
fn each_fault_has_a_finding_of_its_own() {
    // CONF-22 SRC-34
    let mut facts = sound();
    let all = |names: [&str; 2]| names.map(|name| (name.into(), format!("{name}: x"))).into();
    facts.wanted.warnings = all(["/c.yaml", "/d.conf"]);
    facts.wanted.errors = all(["/c.yaml", "--port"]);
    facts.wanted.protected = Some("kernel.panic".into());
    facts.manifests.odd = vec![("/m/a.yaml".into(), "imgae".into())];
    facts.manifests.bad = ["/m/b.yaml", "/m/c.yaml"]
        .map(|file| (file.into(), "y".into()))
        .into();
    facts.registries = registries(|r| {
        r.faults = vec!["/r.yaml:1: mirrrors: unknown key".into()];
        r.is_newer = true;
    });
    let found = run_checks(&facts).into_iter();
    let found = found.filter(|(_, f)| f.level != FindingLevel::Ok);
    let lines: Vec<String> = found
        .map(|(name, f)| format!("{} {name} {}", f.level.as_str(), f.says))
        .collect();
    assert_eq!(
        lines,
        [
            "error config /c.yaml: x",
            "error config --port: x",
            "error config kernel.panic",
            "warning config /c.yaml: x",
            "warning config /d.conf: x",
            "error manifests /m/b.yaml: y",
            "error manifests /m/c.yaml: y",
            "warning manifests /m/a.yaml: imgae",
            "warning registries /r.yaml:1: mirrrors: unknown key",
            "warning registries /r.yaml was changed after the agent had read it",
        ]
    );
}

#[test]
fn an_apiserver_answers_whatever_the_clock_is() {
    // PKG-21
    let silent = || Some(ApiserverAnswer::Silent("refused".into()));
    for (answer, answers) in [
        (Some(ApiserverAnswer::Given), Some(true)),
        (silent(), Some(false)),
        (None, None),
    ] {
        let mut facts = sound();
        let mut apiserver = member(|a| a.clock = Some("the clock is 99 s ahead".into()));
        apiserver.as_mut().expect("one").answer = answer;
        facts.apiserver = apiserver;
        assert_eq!(facts.apiserver_answers(), answers);
        let finding = find(&facts, "apiserver");
        assert_eq!(finding.level, FindingLevel::Warning);
        assert_eq!(finding.says, "the clock is 99 s ahead");
    }
    assert_eq!(sound().apiserver_answers(), None);
}

/// Rows: check, change, part of the finding. The machine is unusual, but sound.
#[rustfmt::skip]
const ODD: &[(&str, Change, &str)] = &[
    ("config", |f| f.wanted.file = None, "defaults"),
    ("cgroup", |f| f.cgroups.v2 = false, "version 1"),
    ("cgroup-limits", |f| f.cgroups.missing = vec!["memory".into()], "cpu and pids are limited"),
    ("cgroup-driver", |f| f.runtime.drivers.wanted = CgroupDriver::Systemd, "cgroupfs"),
    ("cgroup-driver", |f| { f.runtime.socket = Some("/run/c.sock".into()); f.runtime.drivers.told = Some(CgroupDriver::Systemd); f.runtime.drivers.systemd = true; }, "systemd makes"),
    ("cgroup-driver", |f| { f.runtime.socket = Some("/run/c.sock".into()); f.runtime.drivers.wanted = CgroupDriver::Systemd; f.runtime.drivers.told = Some(CgroupDriver::Cgroupfs); }, "cgroupfs"),
    ("apparmor", |f| { f.kernel.apparmor = false; f.kernel.apparmor_profile = None; }, "not in this kernel"),
    // SWP-03
    ("swap", |f| f.kernel.swaps = vec!["/dev/zram0".into()], "/dev/zram0"),
    ("swap", |f| { f.kernel.swaps = vec!["/dev/zram0".into()]; f.kernel.zram_bytes = 9; f.wanted.system_memory = 9; }, "/dev/zram0"),
    ("swap", |f| f.kernel.swaps = vec!["/var/swap".into()], "pods get none"),
    ("wear", |_| (), "mmcblk0: up to 20 % of its life is used; 3072 MiB written since"),
    ("wear", |f| f.dirs.root_disk.as_mut().expect("one").used_life = None, "does not report its wear"),
    ("wear", |f| f.dirs.root_disk = None, "not on a disk that reports its wear"),
    ("clock", |f| f.clock.synchronized = None, "does not say"),
    // SVC-15: whatever the year is.
    ("clock", |f| f.clock.now = WallTime::from_unix_seconds(60), "1970-01-01T00:01:00Z, synchronized"),
    // SVC-18
    ("architecture", |f| { f.kernel.program = "armv7".into(); f.kernel.userland_bits = Some(32); }, "armv7 on a 32-bit system (aarch64 kernel)"),
    ("devices", |_| (), "none for pods"),
    ("devices", |f| f.devices.units = vec![("picolet/a".into(), 2), ("picolet/b".into(), 1)], "3 for pods"),
    ("devices", |f| f.devices.plugins = vec![("example.com/a".into(), 2)], "2 for pods"),
    ("rtc", |f| { f.clock.rtc = true; f.clock.saved_time = None; }, "battery"),
    ("inodes", |f| { f.dirs.root.inodes = 0; f.dirs.root.inodes_free = 0; f.dirs.logs.inodes = 0; }, "100 %"),
    ("eviction", |f| f.wanted.kept_free.clear(), "nothing is kept free"),
    ("eviction", |_| (), "kept free: memory.available<100Mi, nodefs.available<10%"),
    ("mounts", |f| f.dirs.host_mounts = None, "cannot be seen"),
    ("cni-config", |f| f.network.conf = Some("/etc/cni/net.d/a.conflist".into()), "a.conflist"),
    ("iptables", |f| { f.network.iptables = None; f.network.conf = Some("x".into()); }, "not installed"),
    ("forwarding", |f| { f.network.ip_forward = false; f.network.bridge_exists = false; }, "with the first pod"),
    ("firewall", |f| f.network.forward = ["-P FORWARD DROP", "-A FORWARD -i picolet0 -j ACCEPT", "-A FORWARD -o picolet0 -j ACCEPT"].map(str::to_owned).into(), "packets of picolet0 pass"),
    ("dns", |f| f.network.resolv_conf = None, "inherit no name servers"),
    ("manifests", |f| f.manifests.path = None, "turned off"),
    ("manifests", |f| f.manifests.url = Some("http://h/m".into()), "2 pods in /etc/picolet/manifests; more at http://h/m"),
    ("manifests", |f| { f.manifests.path = None; f.manifests.url = Some("http://h/m".into()); }, "only at http://h/m"),
    ("ports", |f| f.network.listening = vec![8080], "1 asked for"),
    ("kubeconfig", |f| f.apiserver = member(|a| { a.error = Some("x".into()); a.bootstrap = Some(BootstrapKubeconfig::Usable("/etc/b".into())); }), "will write /etc/k with the help of /etc/b"),
    ("kubeconfig", |f| f.apiserver = member(|_| ()), "/etc/k for https://a:6443"),
    ("certificate", |f| f.apiserver = member(|a| a.certificate = None), "another credential"),
    ("certificate", |f| f.apiserver = member(|a| { a.certificate = None; a.bootstrap = Some(BootstrapKubeconfig::Usable("b".into())); }), "requests it"),
    ("certificate", |f| f.apiserver = member(|_| ()), "valid until 2096"),
    ("apiserver", |f| f.apiserver = member(|_| ()), "answers"),
    ("apiserver", |f| f.apiserver = member(|a| a.answer = None), "not asked"),
    ("pod-routes", |_| (), "stands alone"),
    ("pod-routes", |f| { f.apiserver = member(|_| ()); f.network.routes = 2; }, "2 routes through other machines"),
    ("pod-routes", |f| { f.apiserver = member(|_| ()); f.network.conf = Some("/etc/cni/net.d/a.conflist".into()); }, "managed by the configured network"),
    ("services", |_| (), "stands alone"),
    ("services", |f| { f.apiserver = member(|_| ()); f.network.services = Some("kube-proxy (nftables)".into()); }, "(nftables)"),
    ("tunnel", |f| f.apiserver = member(|_| ()), "none is needed"),
    // TUN-14: the word of a part counts.
    ("tunnel", |f| f.of_parts = vec![("tunnel", CheckFinding::ok("streams to 1"))], "streams to 1"),
    ("link-budget", |_| (), "none"),
    ("link-budget", |f| f.agent = up(|a| a.link = link("1MB of 5MB used today", false)), "1MB of 5MB used today"),
    ("agent", |f| f.agent = AgentReachability::Absent, "not running"),
];

#[test]
fn what_is_odd_and_right() {
    for (check, change, says) in ODD {
        let mut facts = sound();
        change(&mut facts);
        let finding = find(&facts, check);
        assert_eq!(finding.level, FindingLevel::Ok, "{check}: {finding:?}");
        assert!(finding.says.contains(says), "{check}: {}", finding.says);
    }
}

#[test]
fn a_machine_that_could_not_be_looked_at_is_not_sound() {
    let findings = run_checks(&CheckFacts::default());
    let errors = findings
        .iter()
        .filter(|(_, f)| f.level == FindingLevel::Error);
    assert!(errors.count() >= 8, "{findings:?}");
}

#[test]
fn lists_are_cut() {
    assert_eq!(join_first(["a", "b"].into_iter(), 2), "a, b");
    assert_eq!(
        join_first(["a", "b", "c", "d"].into_iter(), 2),
        "a, b and 2 more"
    );
}

#[test]
fn features_of_k3s_that_are_not_there() {
    // K3SN-15
    let facts = |registry: bool, policy: bool, backend: &str| K3sClusterFacts {
        network: ClusterNetwork {
            cluster_ranges: Vec::new(),
            service_ranges: Vec::new(),
            node_ports: ClusterNetwork::NODE_PORTS,
            flannel_backend: backend.into(),
            flannel_ipv6_masquerade: false,
            flannel_external_ip: false,
            has_kube_proxy: true,
            has_service_lb: true,
            has_cloud_controller: true,
            has_network_policy: policy,
        },
        egress_mode: "agent".into(),
        supervisor_port: 0,
        has_embedded_registry: registry,
        apiservers: Vec::new(),
    };
    for (told, says) in [
        (None, &[][..]),
        (Some(facts(false, false, "vxlan")), &[]),
        (Some(facts(true, false, "none")), &["registry mirror"]),
        (
            Some(facts(true, true, "tailscale")),
            &["registry mirror", "network policies", "tailscale"],
        ),
    ] {
        let mut of = member(|_| ()).expect("a member");
        of.k3s = told;
        let facts = CheckFacts {
            apiserver: Some(of),
            ..CheckFacts::default()
        };
        let found = run_checks(&facts);
        let of_apiserver = found.iter().filter(|(name, _)| *name == "apiserver");
        let all: Vec<&CheckFinding> = of_apiserver.map(|(_, finding)| finding).collect();
        assert_eq!(all.len(), says.len() + 1);
        for (finding, says) in all[1..].iter().zip(says) {
            assert!(finding.level == FindingLevel::Ok && finding.says.contains(says));
        }
    }
}
