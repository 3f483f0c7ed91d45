//! The checked configuration: what the rest of the agent reads.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::api::Quantity;

/// Subnet of the built-in network unless configured.
pub const DEFAULT_SUBNET: Subnet = Subnet {
    address: Ipv4Addr::new(10, 85, 0, 0),
    prefix: 16,
};
/// Bridge of the built-in network unless configured.
pub const DEFAULT_BRIDGE: &str = "picolet0";

/// Everything the agent needs to know from its operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the node: the override or the host name, trimmed and lower case (CONF-16).
    pub node_name: String,
    /// `--node-ip`: none, one, or one of each family (CONF-17).
    pub node_ips: Vec<IpAddr>,
    /// Log level as klog counts: 0 to 1 info, 2 to 4 debug, 5 and more trace.
    pub verbosity: u8,
    /// Whether notifications are used beside polling. Without them the agent is slower, never wrong.
    pub doorbells: bool,
    /// Every directory and file the agent touches.
    pub dirs: Dirs,
    /// Intervals.
    pub times: TimeConfig,
    /// Most pods on this node (`maxPods`).
    pub max_pods: u32,
    /// Most pods per processor; 0: no such limit. The smaller of both counts.
    pub pods_per_core: u32,
    /// The OCI runtime.
    pub runtime: RuntimeConfig,
    /// Cgroups, limits, swap.
    pub cgroup: CgroupConfig,
    /// What is kept from pods.
    pub reserved: Reserved,
    /// Container logs.
    pub logs: LogConfig,
    /// Pulls and image garbage.
    pub images: ImageConfig,
    /// Container garbage.
    pub garbage: GarbageConfig,
    /// Pod network and name service.
    pub network: NetworkConfig,
    /// `RuntimeDefault` for containers that name no seccomp profile.
    pub seccomp_default: bool,
    /// Sysctls, or patterns with a trailing `*`, allowed beside the safe ones.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Feature gates by name. None changes anything in this version.
    pub feature_gates: BTreeMap<String, bool>,
}

/// Every directory and file the agent touches; all absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    /// Survives a reboot: `pods/`, `images/`, `seccomp/`. Default `/var/lib/picolet`.
    pub root: PathBuf,
    /// Ends with a reboot: `sandboxes/`, `containers/`. Default `/run/picolet`.
    pub run: PathBuf,
    /// Directory or file of static pods; `None` if turned off. Default `/etc/picolet/manifests`.
    pub manifests: Option<PathBuf>,
    /// Image archives dropped here are imported. Default `<root>/import`.
    pub image_drop_in: PathBuf,
    /// Default `/var/log/pods`.
    pub pod_logs: PathBuf,
    /// Links to container logs. Default `/var/log/containers`.
    pub container_logs: PathBuf,
    /// Socket of the local commands. Default `<run>/picolet.sock`.
    pub socket: PathBuf,
}

impl Dirs {
    /// `<root>/pods`: one directory per pod uid.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }
    /// `<root>/images`: the image store.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }
    /// `<root>/seccomp`: profiles of type `Localhost`.
    #[must_use]
    pub fn seccomp_profiles(&self) -> PathBuf {
        self.root.join("seccomp")
    }
}

/// Intervals and time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeConfig {
    /// Longest time between two syncs of one pod. Default 1 min.
    pub sync: Duration,
    /// Time between two reads of the manifests. Default 20 s.
    pub file_check: Duration,
    /// Longest runtime operation. Default 2 min.
    pub runtime_request: Duration,
    /// Longest back-off between two starts of a container. Default 300 s.
    pub max_restart_backoff: Duration,
    /// Time between two measurements of volumes. Default 1 min.
    pub volume_stats: Duration,
    /// Time given to all pods at shutdown; 0: off.
    pub shutdown_grace: Duration,
    /// The part of it kept for critical pods.
    pub shutdown_grace_critical: Duration,
}

/// The OCI runtime that runs containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Path, or name to look up in `PATH`. Default `runc`.
    pub program: PathBuf,
    /// Its state directory (`--root`). Default `<run>/oci`.
    pub root: PathBuf,
}

/// Cgroups and what is limited by them. The driver is always `cgroupfs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupConfig {
    /// Absolute cgroup path below which `kubepods` is made. Default `/`.
    pub root: String,
    /// One cgroup per pod and quality of service.
    pub per_qos: bool,
    /// Whether the `kubepods` cgroup is limited to what is allocatable.
    pub enforce_pods: bool,
    /// Whether cpu limits are held.
    pub cpu_cfs_quota: bool,
    /// Period of cpu limits, 1 ms to 1 s.
    pub cpu_cfs_quota_period: Duration,
    /// Most processes per pod; `None`: no limit of its own.
    pub pod_pids_limit: Option<i64>,
    /// OOM score adjustment of the agent, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Most open files of the agent.
    pub max_open_files: u64,
    /// Refuse to start while swap is on.
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// Swap of pods.
    pub swap: SwapBehavior,
    /// `memory.high` of a container as a part of its limit, in thousandths, 1 to 1000.
    pub memory_throttling_permille: u32,
    /// Whether an out-of-memory kill ends one process instead of the whole container (v2).
    pub single_process_oom_kill: bool,
}

/// Whether pods may swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No pod swaps.
    NoSwap,
    /// Burstable pods swap in proportion to their request.
    LimitedSwap,
}

/// What is kept from pods: allocatable is capacity less these.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reserved {
    /// `systemReserved`; keys cpu, memory, ephemeral-storage, pid.
    pub system: BTreeMap<String, Quantity>,
    /// `kubeReserved`; the same keys.
    pub kube: BTreeMap<String, Quantity>,
    /// Hard eviction thresholds by signal.
    pub eviction_hard: BTreeMap<String, Threshold>,
    /// Whether ephemeral storage is counted.
    pub local_storage: bool,
}

/// How much must stay free.
#[derive(Clone, Debug, PartialEq)]
pub enum Threshold {
    /// Bytes, inodes or processes.
    Amount(Quantity),
    /// Thousandths of the capacity.
    Permille(u32),
}

/// Container logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Size at which a log is rotated, in bytes. Default 10 MiB.
    pub max_size_bytes: u64,
    /// Files per log, the current one included; at least 2. Default 5.
    pub max_files: u32,
    /// Rotations at once. Default 1.
    pub workers: u32,
    /// Time between two checks; at least 3 s. Default 10 s.
    pub monitor_interval: Duration,
}

/// Pulls and image garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    /// Pulls at once: 1 if pulls are serialised, `None`: no limit.
    pub parallel_pulls: Option<u32>,
    /// Age below which an unused image stays. Default 2 min.
    pub min_age: Duration,
    /// Age above which an unused image goes; `None`: never for its age.
    pub max_age: Option<Duration>,
    /// Disk use at which images are removed, in percent. Default 85.
    pub high_percent: u8,
    /// Disk use down to which images are removed, in percent. Default 80.
    pub low_percent: u8,
}

/// Container garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageConfig {
    /// Age below which a dead container stays. Default 0.
    pub min_age: Duration,
    /// Dead instances kept per container; `None`: all. Default 1.
    pub max_per_container: Option<u32>,
    /// Dead instances kept on the node; `None`: no limit. Default none.
    pub max_total: Option<u32>,
}

/// Pod network and name service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Network configurations. Default `/etc/cni/net.d`.
    pub cni_conf: PathBuf,
    /// Network plugins. Default `/opt/cni/bin`.
    pub cni_bin: PathBuf,
    /// Subnet of the built-in network. Default [`DEFAULT_SUBNET`].
    pub builtin_subnet: Subnet,
    /// Bridge of the built-in network. Default [`DEFAULT_BRIDGE`].
    pub builtin_bridge: String,
    /// Resolver file that pods inherit; `None`: they inherit nothing. Default `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// Name servers of pods with `ClusterFirst`.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster; may be empty.
    pub cluster_domain: String,
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Network address: host bits are zero.
    pub address: Ipv4Addr,
    /// Length of the network part, 8 to 29 bits.
    pub prefix: u8,
}

impl core::fmt::Display for Subnet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}
