//! Facts of the preflight about the kernel, the network and the clock of this machine.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use super::gather::{read_number, read_text, run_program};
use crate::{
    api::order::OrderExt as _,
    cgroup::Cgroups,
    config::AgentConfig,
    error::error_chain,
    logic::check::{ClockFacts, KernelFacts, NetworkFacts},
    runtime::runc::{self, apparmor, cni::NetworkConfig, host},
    sys::{clock, pages},
};

/// Directories in which firmware of boards keeps its files: newer Raspberry Pi OS first.
const FIRMWARE_DIRS: [&str; 2] = ["/boot/firmware", "/boot"];

pub(super) fn gather_kernel(cgroups: &Cgroups) -> KernelFacts {
    let release = read_text("/proc/sys/kernel/osrelease").trim().to_owned();
    let facts = host::read_host_facts(cgroups);
    let firmware = |name: &str| {
        FIRMWARE_DIRS
            .iter()
            .map(|dir| format!("{dir}/{name}"))
            .find(|path| Path::new(path).is_file())
    };
    let overlay = read_text("/proc/filesystems")
        .lines()
        .any(|l| l.split_whitespace().next_back() == Some("overlay"));
    let module = format!("/lib/modules/{release}/kernel/fs/overlayfs");
    KernelFacts {
        machine: nix::sys::utsname::uname()
            .map_or_else(|_| String::new(), |u| u.machine().to_string_lossy().into()),
        program: program_architecture().into(),
        userland_bits: File::open("/proc/1/exe").ok().and_then(elf_bits),
        page_size: pages::page_size_bytes(),
        cmdline: read_text("/proc/cmdline").trim().to_owned(),
        cmdline_file: firmware("cmdline.txt"),
        config_file: firmware("config.txt"),
        // Mounting loads the module.
        overlayfs: overlay || Path::new(&module).exists(),
        seccomp: facts.seccomp,
        apparmor: facts.apparmor,
        apparmor_profile: apparmor::obtainable_default().map(str::to_owned),
        pid_max: read_number("/proc/sys/kernel/pid_max"),
        threads_max: read_number("/proc/sys/kernel/threads-max"),
        inotify_instances: read_number("/proc/sys/fs/inotify/max_user_instances"),
        inotify_watches: read_number("/proc/sys/fs/inotify/max_user_watches"),
        swaps: read_text("/proc/swaps")
            .lines()
            .skip(1)
            .filter_map(|l| l.split_whitespace().next())
            .map(str::to_owned)
            .collect(),
        zram_bytes: zram_bytes(),
        release,
    }
}

/// Sums up the memory of all zram devices. Source: kernel documentation `admin-guide/blockdev/zram.rst` (`mm_stat`).
fn zram_bytes() -> u64 {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let taken = disks.filter_map(|disk| {
        let stat = read_text(disk.path().join("mm_stat").to_str()?);
        stat.split_whitespace().nth(2)?.parse::<u64>().ok()
    });
    taken.sum()
}

/// Architecture that this program was built for, the versions of 32-bit ARM apart.
const fn program_architecture() -> &'static str {
    if cfg!(all(target_arch = "arm", target_feature = "v7")) {
        "armv7"
    } else if cfg!(target_arch = "arm") {
        "armv6"
    } else {
        std::env::consts::ARCH
    }
}

/// Reads the width of a program, 32 or 64. Source: elf(5), `EI_CLASS`.
fn elf_bits(mut program: impl io::Read) -> Option<u8> {
    let mut head = [0; 5];
    program.read_exact(&mut head).ok()?;
    match head {
        [0x7f, b'E', b'L', b'F', 1] => Some(32),
        [0x7f, b'E', b'L', b'F', 2] => Some(64),
        _ => None,
    }
}

pub(super) fn gather_network(cfg: &AgentConfig) -> NetworkFacts {
    let wanted = &cfg.network;
    let (conf, conf_error) = match NetworkConfig::read_first_in(&wanted.cni_conf) {
        Ok(found) => (found, None),
        Err(e) => (None, Some(error_chain(&e))),
    };
    let cni = runc::cni::Cni::new(
        runc::cni::CniSettings {
            conf_dir: wanted.cni_conf.clone(),
            bin_dir: wanted.cni_bin.clone(),
            run_dir: cfg.dirs.run.join("cni"),
            root_dir: cfg.dirs.root.join("cni"),
            built_in: runc::BuiltInNetwork {
                bridge: wanted.builtin_bridge.clone(),
                subnets: vec![wanted.builtin_subnet.to_string()],
                mtu: 0,
            },
            spanning: None,
        },
        String::new(),
    );
    let network = cni.read_network_config().ok();
    let plugin_error = network.as_ref().and_then(|n| cni.missing_plugin_error(n));
    let iptables = run_program("iptables", &["--version"]).and_then(Result::ok);
    let nat = iptables
        .is_some()
        .then(|| run_program("iptables", &["-w", "5", "-t", "nat", "-S", "POSTROUTING"]))
        .flatten();
    let other = iptables.as_ref().map(|version| {
        if version.contains("legacy") {
            "iptables-nft-save"
        } else {
            "iptables-legacy-save"
        }
    });
    let other_rules = other
        .and_then(|save| run_program(save, &[]))
        .and_then(Result::ok)
        .map_or(0, |rules| {
            rules.lines().filter(|l| l.starts_with("-A ")).count()
        });
    let forward = run_program("iptables", &["-w", "5", "-S", "FORWARD"])
        .and_then(Result::ok)
        .unwrap_or_default();
    let file = wanted.resolv_conf.as_ref();
    let bridge_filter = read_text("/proc/sys/net/bridge/bridge-nf-call-iptables");
    NetworkFacts {
        conf_dir: wanted.cni_conf.display().to_string(),
        conf: conf.map(|c| c.file.display().to_string()),
        conf_error,
        plugin_error,
        plugins: network.map_or_else(Vec::new, |n| {
            n.list_executables().iter().map(|&p| p.to_owned()).collect()
        }),
        iptables,
        nat_error: nat.and_then(Result::err).map(|e| e.to_string()),
        other_rules,
        forward: forward.lines().map(str::to_owned).collect(),
        ip_forward: read_number("/proc/sys/net/ipv4/ip_forward") == 1,
        bridge_filter: (!bridge_filter.is_empty()).then(|| bridge_filter.trim() == "1"),
        bridge_exists: Path::new("/sys/class/net")
            .join(&wanted.builtin_bridge)
            .exists(),
        resolv_conf: file.map(|f| f.display().to_string()),
        name_servers: file.map_or_else(Vec::new, |f| parse_name_servers(&read_text(f))),
        resolved: Path::new("/run/systemd/resolve/resolv.conf").exists(),
        services: cfg.cluster.is_member().then(find_service_proxy).flatten(),
        routes: count_gateway_routes(&read_text("/proc/net/route")),
        listening: listening_ports(&[read_text("/proc/net/tcp"), read_text("/proc/net/tcp6")]),
    }
}

/// Finds the program that routes Services to pods, by its traces in the kernel.
fn find_service_proxy() -> Option<String> {
    let answers = |name, words: &[&str]| matches!(run_program(name, words), Some(Ok(_)));
    let found = if Path::new("/sys/class/net/kube-ipvs0").exists() {
        "kube-proxy (ipvs)"
    } else if Path::new("/sys/class/net/cilium_host").exists() {
        "cilium"
    } else if answers("iptables", &["-w", "5", "-t", "nat", "-S", "KUBE-SERVICES"]) {
        "kube-proxy (iptables)"
    } else if answers("nft", &["list", "chain", "ip", "kube-proxy", "services"]) {
        "kube-proxy (nftables)"
    } else {
        return None;
    };
    Some(found.into())
}

/// Counts the routes by a gateway that are not the default one. Source: proc_pid_net(5).
fn count_gateway_routes(table: &str) -> usize {
    let by_gateway = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let [to, by] = [fields.next(), fields.next()];
        let is_set = |field: Option<&str>| field.is_some_and(|f| f.bytes().any(|b| b != b'0'));
        is_set(to) && is_set(by)
    };
    table.lines().skip(1).filter(by_gateway).count()
}

/// Reads the addresses behind `nameserver`. Source: resolv.conf(5).
fn parse_name_servers(resolv_conf: &str) -> Vec<String> {
    resolv_conf
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next())?
        })
        .map(str::to_owned)
        .collect()
}

/// Lists the local ports of sockets that listen, sorted. Source: proc_pid_net(5), state `0A`.
fn listening_ports(tables: &[String]) -> Vec<u16> {
    let mut ports: Vec<u16> = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1)?;
            let state = fields.nth(1)?;
            let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
            (state == "0A").then_some(port)
        })
        .collect();
    ports.stable_sort();
    ports.dedup();
    ports
}

pub(super) fn gather_clock() -> ClockFacts {
    let saved = [
        ("/etc/fake-hwclock.data", "fake-hwclock"),
        ("/var/lib/systemd/timesync/clock", "systemd-timesyncd"),
    ];
    ClockFacts {
        now: clock::wall_now(),
        synchronized: clock::is_synchronized(),
        rtc: Path::new("/sys/class/rtc/rtc0").exists(),
        saved_time: saved
            .iter()
            .find(|(file, _)| Path::new(file).exists())
            .map(|(_, by)| (*by).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_of_programs() {
        // SVC-18
        for (head, bits) in [
            (&b"\x7fELF\x01\x01"[..], Some(32)),
            (b"\x7fELF\x02\x01", Some(64)),
            (b"\x7fELF\x03", None),
            (b"#!/bin/sh", None),
            (b"\x7fELF", None),
        ] {
            assert_eq!(elf_bits(head), bits, "{head:?}");
        }
    }

    #[test]
    fn texts_of_the_machine() {
        assert_eq!(
            parse_name_servers(
                "# x\nnameserver 1.1.1.1\nsearch a\n nameserver\t::1 \nnameservers 2\n"
            ),
            ["1.1.1.1", "::1"]
        );
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:0016 00000000:0000 0A 0:0\n   \
            1: 00000000:1F90 00000000:0000 0A 0:0\n   2: 00000000:0050 0100007F:1234 01 0:0\n";
        assert_eq!(listening_ports(&[table.into(), table.into()]), [22, 8080]);
        let table = "Iface\tDestination\tGateway \tFlags\neth0\t00000000\t0100000A\t0003\n\
            eth0\t0000000A\t00000000\t0001\neth0\t0001F40A\t0500000A\t0003\n";
        assert_eq!(
            (count_gateway_routes(table), count_gateway_routes("")),
            (1, 0)
        );
    }
}
