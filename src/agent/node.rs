//! The machine as a node: facts read at start, and the Node object that `get node` shows.

use alloc::collections::BTreeMap;
use std::{
    fs::{self, File},
    io::Read as _,
    net::IpAddr,
    path::Path,
};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::statvfs::statvfs};
use serde_json::{Value, json};

use super::ctx::{Ctx, NodeFacts};
use crate::api::order::{Gather, Order};
use crate::{
    api::Quantity,
    config::{Config, Reserved, Threshold},
    logic::node_resources::{self, Capacity, Reservations},
};

/// Version reported as the kubelet's: it must parse as a Kubernetes version. The part behind the plus is ours.
pub(super) const KUBELET_VERSION: &str = concat!("v1.36.0+picolet-", env!("CARGO_PKG_VERSION"));
/// Bytes read of one file below `/proc`, `/sys` or `/etc`.
const MAX_FACT_BYTES: u64 = 64 * 1024;

fn read(path: &str) -> String {
    let mut text = String::new();
    // A fact that cannot be read is absent; what needs it says so.
    let _ = File::open(path).and_then(|f| f.take(MAX_FACT_BYTES).read_to_string(&mut text));
    text
}

/// Reads the machine's facts. Missing ones are zero or empty.
///
/// - Errors: more is kept from pods than there is.
pub(super) fn facts(cfg: &Config) -> Result<NodeFacts, String> {
    let mut facts = NodeFacts {
        name: cfg.node_name.clone(),
        host_ips: host_ips(&cfg.node_ips),
        memory_bytes: kib_of(&read("/proc/meminfo"), "MemTotal:"),
        cpu_milli: cpus() * 1000,
        storage_bytes: storage_bytes(&cfg.dirs.root),
        hugepage_sizes: hugepage_sizes(),
        swap_bytes: kib_of(&read("/proc/meminfo"), "SwapTotal:"),
        hugepages_bytes: hugepages_bytes(),
        pids: max_pids(
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
        ),
        kept: Reservations::default(),
    };
    facts.kept = reservations(&cfg.reserved, facts.capacity());
    node_resources::check(facts.capacity(), facts.kept)?;
    Ok(facts)
}

/// `systemReserved`, `kubeReserved` and the hard eviction thresholds, as amounts.
fn reservations(reserved: &Reserved, capacity: Capacity) -> Reservations {
    let sum = |name: &str, amount: fn(&Quantity) -> i64| {
        [&reserved.system, &reserved.kube]
            .into_iter()
            .filter_map(|map| map.get(name))
            .fold(0_i64, |sum, quantity| sum.saturating_add(amount(quantity)))
    };
    let threshold = |signal: &str, has: i64| match reserved.eviction_hard.get(signal) {
        Some(Threshold::Amount(quantity)) => quantity.value(),
        Some(Threshold::Permille(permille)) => {
            i64::try_from(i128::from(has) * i128::from(*permille) / 1000).unwrap_or(0)
        }
        None => 0,
    };
    Reservations {
        cpu_milli: sum("cpu", Quantity::milli),
        memory_bytes: sum("memory", Quantity::value),
        storage_bytes: sum("ephemeral-storage", Quantity::value),
        pids: sum("pid", Quantity::value),
        eviction_memory_bytes: threshold("memory.available", capacity.memory_bytes),
        eviction_storage_bytes: threshold("nodefs.available", capacity.storage_bytes),
    }
}

/// The smaller of `kernel.pid_max` and `kernel.threads-max` (CG-12); 0 if neither can be read.
fn max_pids(pid_max: &str, threads_max: &str) -> u64 {
    [pid_max, threads_max]
        .iter()
        .filter_map(|text| text.trim().parse().ok())
        .min()
        .unwrap_or(0)
}

/// Most pods that run here.
pub(super) fn max_pods(cfg: &Config, node: &NodeFacts) -> i64 {
    let most = i64::from(cfg.max_pods);
    match i64::from(cfg.pods_per_core) {
        0 => most,
        per_core => most.min(per_core.saturating_mul(node.capacity().cpu_milli / 1000)),
    }
}

/// Bytes of one line of `/proc/meminfo`.
fn kib_of(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(name));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn cpus() -> u64 {
    let count = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    u64::try_from(count).unwrap_or(1)
}

fn storage_bytes(root: &Path) -> u64 {
    statvfs(root).map_or(0, |s| u64::from(s.blocks()) * u64::from(s.fragment_size()))
}

/// Page sizes the kernel offers as huge pages, bytes, sorted.
fn hugepage_sizes() -> Vec<u64> {
    let Ok(entries) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return Vec::new();
    };
    let mut sizes: Vec<u64> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name();
            let kib = name
                .to_str()?
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?;
            kib.parse::<u64>().ok()?.checked_mul(1024)
        })
        .collect();
    sizes.order();
    sizes
}

/// Memory that is huge pages, used or not.
fn hugepages_bytes() -> u64 {
    let sizes = hugepage_sizes();
    let of = |size: &u64| {
        let kib = size / 1024;
        let count = read(&format!(
            "/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"
        ));
        count.trim().parse().unwrap_or(0_u64).saturating_mul(*size)
    };
    sizes.iter().map(of).fold(0, u64::saturating_add)
}

/// The addresses asked for, else those of the interface that holds the default route, IPv4 first; else the first
/// global one.
fn host_ips(asked: &[IpAddr]) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = asked
        .iter()
        .copied()
        .filter(|ip| !ip.is_unspecified())
        .collect();
    if !given.is_empty() {
        return given;
    }
    let route = default_interface(&read("/proc/net/route"));
    let Ok(all) = getifaddrs() else {
        return Vec::new();
    };
    let mut found: Vec<(bool, bool, IpAddr)> = Vec::new();
    for interface in all {
        if interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
            || !interface.flags.contains(InterfaceFlags::IFF_UP)
        {
            continue;
        }
        let Some(address) = interface.address else {
            continue;
        };
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())));
        let Some(ip) = ip.filter(is_global) else {
            continue;
        };
        let elsewhere = route
            .as_deref()
            .is_some_and(|name| name != interface.interface_name);
        found.push((elsewhere, ip.is_ipv6(), ip));
    }
    found.order();
    let first = found.first().copied();
    first.map(|(_, _, ip)| vec![ip]).unwrap_or_default()
}

fn is_global(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && (v6.segments()[0] & 0xffc0) != 0xfe80,
    }
}

/// Name of the interface with the default route of the lowest metric, from `/proc/net/route`.
fn default_interface(table: &str) -> Option<String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let default = *fields.get(1)? == "00000000" && *fields.get(7)? == "00000000";
            let metric: u32 = fields.get(6)?.parse().ok()?;
            default.then(|| (metric, fields[0].to_owned()))
        })
        .min()
        .map(|(_, name)| name)
}

/// The Node object of this machine.
pub(super) async fn object(ctx: &Ctx) -> Value {
    let ready = match &*ctx.conditions.borrow() {
        None => Err("container runtime status check may not have completed yet".to_owned()),
        Some(s) if !s.runtime_ready.ok => Err(format!(
            "container runtime not ready: {}",
            s.runtime_ready.message
        )),
        Some(s) if !s.network_ready.ok => Err(format!(
            "container runtime network not ready: {}",
            s.network_ready.message
        )),
        Some(_) => Ok(()),
    };
    let now = ctx.clock.wall().to_string();
    let condition = match ready {
        Ok(()) => json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "kubelet is posting ready status", "lastHeartbeatTime": now}),
        Err(message) => json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady",
            "message": message, "lastHeartbeatTime": now}),
    };
    let disk_pressure = if ctx.records_wait.get() {
        json!({"type": "DiskPressure", "status": "True", "reason": "KubeletHasDiskPressure",
            "message": "kubelet has disk pressure: the root directory cannot be written, records of pods wait in memory",
            "lastHeartbeatTime": now})
    } else {
        json!({"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure",
            "message": "kubelet has no disk pressure", "lastHeartbeatTime": now})
    };
    let mut addresses: Vec<Value> = ctx
        .node
        .host_ips
        .iter()
        .map(|ip| json!({"type": "InternalIP", "address": ip.to_string()}))
        .collect();
    addresses.push(json!({"type": "Hostname", "address": ctx.node.name}));
    let resources = |cpu_milli: i64, memory_bytes: i64, storage_bytes: i64| {
        json!({
            "cpu": cpu_text(cpu_milli),
            "memory": format!("{}Ki", memory_bytes / 1024),
            "ephemeral-storage": format!("{}Ki", storage_bytes / 1024),
            "pods": max_pods(&ctx.cfg, &ctx.node).to_string(),
        })
    };
    let has = ctx.node.capacity();
    let left = ctx.node.allocatable();
    let capacity = resources(has.cpu_milli, has.memory_bytes, has.storage_bytes);
    let allocatable = resources(
        left.cpu_milli,
        left.memory_bytes,
        left.ephemeral_storage_bytes,
    );
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": ctx.node.name,
            "creationTimestamp": ctx.started_at.to_string(),
            "labels": labels(&ctx.node),
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": addresses,
            "conditions": [disk_pressure, condition],
            "nodeInfo": {
                "architecture": arch(),
                "bootID": read("/proc/sys/kernel/random/boot_id").trim(),
                "containerRuntimeVersion": ctx.runtime.version(),
                "kernelVersion": read("/proc/sys/kernel/osrelease").trim(),
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
                "machineID": read("/etc/machine-id").trim(),
                "operatingSystem": "linux",
                "osImage": os_image(&read("/etc/os-release")),
                "systemUUID": read("/sys/class/dmi/id/product_uuid").trim(),
            },
        },
    })
}

/// Whole processors where it is so, else thousandths.
fn cpu_text(milli: i64) -> String {
    if milli % 1000 == 0 {
        (milli / 1000).to_string()
    } else {
        format!("{milli}m")
    }
}

/// Labels that every node gives itself.
pub(super) fn labels(node: &NodeFacts) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    [
        label("kubernetes.io/hostname", &node.name),
        label("kubernetes.io/os", "linux"),
        label("kubernetes.io/arch", arch()),
    ]
    .into_iter()
    .gather()
}

/// Architecture in Go's words.
#[must_use]
pub(super) const fn arch() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "amd64"
    } else if cfg!(target_arch = "aarch64") {
        "arm64"
    } else if cfg!(target_arch = "arm") {
        "arm"
    } else {
        std::env::consts::ARCH
    }
}

fn os_image(os_release: &str) -> String {
    let name = os_release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "Linux".into(), |n| n.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_from_pods() {
        // NODE-10 CG-12
        let quantity = |text: &str| Quantity::parse(text).expect(text);
        let reserved = Reserved {
            system: [("cpu", "100m"), ("memory", "16Mi"), ("pid", "100")]
                .map(|(name, text)| (name.to_owned(), quantity(text)))
                .into(),
            kube: [("memory", "8Mi"), ("ephemeral-storage", "1Gi")]
                .map(|(name, text)| (name.to_owned(), quantity(text)))
                .into(),
            eviction_hard: [
                (
                    "memory.available".to_owned(),
                    Threshold::Amount(quantity("100Mi")),
                ),
                ("nodefs.available".to_owned(), Threshold::Permille(100)),
            ]
            .into(),
            local_storage: true,
        };
        let capacity = Capacity {
            memory_bytes: 512 << 20,
            storage_bytes: 10 << 30,
            ..Capacity::default()
        };
        let want = Reservations {
            cpu_milli: 100,
            memory_bytes: 24 << 20,
            storage_bytes: 1 << 30,
            pids: 100,
            eviction_memory_bytes: 100 << 20,
            eviction_storage_bytes: 1 << 30,
        };
        assert_eq!(reservations(&reserved, capacity), want);
        assert_eq!(
            reservations(&Reserved::default(), capacity),
            Reservations::default()
        );
        for (pid_max, threads_max, want) in [
            ("32768\n", "7000\n", 7000),
            ("300\n", "7000\n", 300),
            ("", "7000\n", 7000),
            ("", "", 0),
        ] {
            assert_eq!(max_pids(pid_max, threads_max), want);
        }
        assert_eq!(
            (cpu_text(4000), cpu_text(3900)),
            ("4".into(), "3900m".into())
        );
    }

    #[test]
    fn facts_from_text() {
        assert_eq!(
            kib_of("MemTotal:         948092 kB\nMemFree: 1 kB\n", "MemTotal:"),
            948_092 * 1024
        );
        assert_eq!(kib_of("nonsense", "MemTotal:"), 0);
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
            eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_interface(table).as_deref(), Some("eth0"));
        assert_eq!(default_interface("Iface\n"), None);
    }
}
