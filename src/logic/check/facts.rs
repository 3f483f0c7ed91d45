//! Facts of a machine for the preflight: plain data, gathered elsewhere.

use alloc::{boxed::Box, string::String, vec::Vec};

use super::{CheckFinding, KubeadmFacts};
use crate::api::{
    WallTime,
    cluster_network::K3sClusterFacts,
    cri::{CgroupDriver, UserNamespaceSupport},
    health::AgentHealth,
};

/// A machine, its configuration and its agent, as far as they could be looked at. Absent facts are empty, zero or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckFacts {
    /// Configuration of the operator.
    pub wanted: OperatorConfig,
    /// Findings of the node's parts: each stands in the place of the check of that name.
    pub of_parts: Vec<(&'static str, CheckFinding)>,
    /// Kernel and processor.
    pub kernel: KernelFacts,
    /// Control groups.
    pub cgroups: CgroupFacts,
    /// The OCI runtime.
    pub runtime: RuntimeFacts,
    /// Pod network and firewall.
    pub network: NetworkFacts,
    /// Clocks.
    pub clock: ClockFacts,
    /// Directories of the agent.
    pub dirs: AgentDirectoryFacts,
    /// Devices that pods may ask for.
    pub devices: OfferedDevices,
    /// Rights of this process.
    pub rights: ProcessRights,
    /// Manifests.
    pub manifests: ManifestFacts,
    /// Configuration of registries.
    pub registries: RegistryConfigFacts,
    /// Other programs that run pods here: name and process.
    pub kubelets: Vec<(String, u32)>,
    /// The apiserver; `None`: this machine is no node of one.
    pub apiserver: Option<ApiserverFacts>,
    /// The agent.
    pub agent: AgentReachability,
    /// Facts for the checks of kubeadm; empty unless they are asked for.
    pub kubeadm: KubeadmFacts,
}

/// Configuration of the operator, defaults included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorConfig {
    /// Errors for which no agent starts with it: the place to be corrected, and the error. The other fields are those of
    /// the configuration without the faulty parts.
    pub errors: Vec<(String, String)>,
    /// Settings of the kernel that `protectKernelDefaults` keeps from being changed, and that are wrong.
    pub protected: Option<String>,
    /// The file that was read.
    pub file: Option<String>,
    /// Warnings: the place to be corrected, and the warning.
    pub warnings: Vec<(String, String)>,
    /// Name of the node.
    pub node_name: String,
    /// Refuse to start while swap is on.
    pub fail_swap_on: bool,
    /// `systemReserved.memory`, bytes.
    pub system_memory: u64,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// `picolet.podWriteLimit` is set.
    pub limits_writes: bool,
    /// `RuntimeDefault` is the seccomp profile of containers that name none.
    pub seccomp_default: bool,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// Resources that are kept free: eviction thresholds as they are written.
    pub kept_free: Vec<String>,
    /// Static pods may be evicted to keep them free.
    pub evict_static_pods: bool,
    /// Use of the disk at which images are removed, percent.
    pub image_high_percent: u8,
}

/// Devices that pods may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfferedDevices {
    /// Resources with the numbers of their units, as they are configured.
    pub units: Vec<(String, usize)>,
    /// Resources of device plugins with the numbers of their healthy units, as the agent knows them.
    pub plugins: Vec<(String, usize)>,
    /// Kernel option that containers need to use devices, if the kernel lacks it.
    pub lacks: Option<String>,
    /// CDI files that cannot be used, and why.
    pub wrong: Vec<String>,
}

/// Kernel and processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// `6.12.25+rpt-rpi-v8`
    pub release: String,
    /// `uname -m`: `aarch64`, `armv7l`, …
    pub machine: String,
    /// Architecture that this program was built for: `aarch64`, `arm`, `x86_64`, …
    pub program: String,
    /// Width of the system's programs, bits: that of PID 1; `None` if it cannot be seen.
    pub userland_bits: Option<u8>,
    /// Bytes of a page.
    pub page_size: u64,
    /// `/proc/cmdline`
    pub cmdline: String,
    /// File from which the firmware of a board takes the kernel's command line (`cmdline.txt`), if there is one.
    pub cmdline_file: Option<String>,
    /// `config.txt` beside it.
    pub config_file: Option<String>,
    /// Set if overlayfs can be mounted.
    pub overlayfs: bool,
    /// Set if a process can be given a seccomp filter.
    pub seccomp: bool,
    /// Set if AppArmor confines processes.
    pub apparmor: bool,
    /// Profile that containers get, if it is loaded or can be.
    pub apparmor_profile: Option<String>,
    /// `kernel.pid_max`
    pub pid_max: u64,
    /// `kernel.threads-max`
    pub threads_max: u64,
    /// `fs.inotify.max_user_instances`
    pub inotify_instances: u64,
    /// `fs.inotify.max_user_watches`
    pub inotify_watches: u64,
    /// Active swap devices and files.
    pub swaps: Vec<String>,
    /// Memory that compressed swap devices (zram) take, bytes.
    pub zram_bytes: u64,
}

/// Control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts {
    /// Set if a usable hierarchy is mounted.
    pub mounted: bool,
    /// Version 2: a single tree for all controllers.
    pub v2: bool,
    /// Controllers that pods need and this machine lacks.
    pub missing: Vec<String>,
}

/// Runtime of containers: an OCI runtime, or one that serves CRI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Socket of a runtime that serves CRI; `None`: the agent runs containers itself, by an OCI runtime.
    pub socket: Option<String>,
    /// Reason why pods have no network, as the CRI runtime reports it.
    pub network_error: Option<String>,
    /// `runc 1.1.5+ds1`, `containerd 1.6.20`; empty if there is none.
    pub program: String,
    /// Reason why there is none.
    pub error: Option<String>,
    /// Drivers that make cgroups.
    pub drivers: CgroupDriverFacts,
    /// Known holes of this version, the distribution's revision considered.
    pub holes: Vec<String>,
    /// Handlers for pods with a RuntimeClass.
    pub handlers: Vec<HandlerRuntimeFacts>,
    /// Support of the default runtime for user namespaces.
    pub user_namespaces: UserNamespaceSupport,
}

/// Drivers that make cgroups: the configured one, the runtime's, and systemd's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupDriverFacts {
    /// `cgroupDriver`.
    pub wanted: CgroupDriver,
    /// Driver that the runtime reports; it counts before the configured one.
    pub told: Option<CgroupDriver>,
    /// Driver in the configuration that the runtime shows, if the runtime is too old to report its driver.
    pub shown: Option<CgroupDriver>,
    /// systemd runs and can be asked.
    pub systemd: bool,
    /// systemd has a slice with the name of a kubelet's slice for all pods.
    pub slice: bool,
}

/// Runtime for pods whose RuntimeClass names this handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerRuntimeFacts {
    /// Name of the handler.
    pub name: String,
    /// `kata-runtime 3.2.0 at /opt/kata/bin/kata-runtime`; empty if the container runtime keeps it to itself.
    pub program: String,
    /// Reason why there is none.
    pub error: Option<String>,
}

/// Pod network and firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkFacts {
    /// Directory of network configurations.
    pub conf_dir: String,
    /// File in use; `None` for the built-in network.
    pub conf: Option<String>,
    /// Reason why the configuration cannot be used.
    pub conf_error: Option<String>,
    /// Reason why the configured plugins cannot be called.
    pub plugin_error: Option<String>,
    /// Plugin types of the configuration.
    pub plugins: Vec<String>,
    /// Output of `iptables --version`; `None` if there is no such program.
    pub iptables: Option<String>,
    /// Reason why the nat table cannot be listed.
    pub nat_error: Option<String>,
    /// Rules that the other flavour of iptables holds (legacy beside nft, or the reverse).
    pub other_rules: usize,
    /// `iptables -S FORWARD`
    pub forward: Vec<String>,
    /// `net.ipv4.ip_forward`
    pub ip_forward: bool,
    /// `net.bridge.bridge-nf-call-iptables`; `None` without br_netfilter.
    pub bridge_filter: Option<bool>,
    /// Set if the built-in bridge exists.
    pub bridge_exists: bool,
    /// The resolver file that pods inherit; `None` if they inherit none.
    pub resolv_conf: Option<String>,
    /// Name servers in it.
    pub name_servers: Vec<String>,
    /// Set if systemd-resolved keeps the real servers in its own file.
    pub resolved: bool,
    /// Program that makes Services reachable from this machine, such as `kube-proxy (nftables)`; `None` if none was
    /// found.
    pub services: Option<String>,
    /// Number of routes by a gateway, without the default route.
    pub routes: usize,
    /// TCP ports that a process of the host listens on, sorted.
    pub listening: Vec<u16>,
}

/// Clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockFacts {
    /// Wall time now.
    pub now: WallTime,
    /// True if the kernel's clock is synchronized; `None` if the kernel does not say.
    pub synchronized: Option<bool>,
    /// Set if there is a battery-backed clock.
    pub rtc: bool,
    /// Program that saves the time over a reboot in place of a battery-backed clock.
    pub saved_time: Option<String>,
}

/// A directory of the agent, as its file system is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryFacts {
    /// Path.
    pub path: String,
    /// `ext4`, `tmpfs`, …
    pub kind: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// Restrictions of the mount: those of `nosuid`, `nodev`, `noexec` that it has.
    pub restricted: Vec<String>,
    /// Flag that moves the directory; empty if there is no such flag, and the agent can work without the directory.
    pub moved_by: String,
    /// Bytes.
    pub size: u64,
    /// Bytes free for us.
    pub free: u64,
    /// Inodes; 0 where the file system counts none.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskWearFacts {
    /// `mmcblk0`, `sda`, …
    pub name: String,
    /// Bytes written to it since the machine was started.
    pub written: u64,
    /// Used part of the disk's life, at most, percent; `None` if the disk does not say.
    pub used_life: Option<u8>,
    /// Set if the disk reports that its spare blocks come to an end.
    pub at_its_end: bool,
}

/// Directories of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentDirectoryFacts {
    /// Root directory: its content survives a reboot.
    pub root: DirectoryFacts,
    /// Disk of the root directory, if it is on one.
    pub root_disk: Option<DiskWearFacts>,
    /// Run directory: its content ends with a reboot.
    pub run: DirectoryFacts,
    /// Logs of containers.
    pub logs: DirectoryFacts,
    /// Other directories that are written to.
    pub others: Vec<DirectoryFacts>,
    /// True if the mount namespace (the agent's if it runs, else ours) is that of PID 1; `None` if unknown.
    pub host_mounts: Option<bool>,
    /// A record of another program whose version this one does not read.
    pub foreign_record: Option<(String, u32)>,
}

/// Rights of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRights {
    /// Effective user is root.
    pub root: bool,
    /// Capabilities of the process, as `CAP_X`.
    pub capabilities: Vec<String>,
}

/// Manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestFacts {
    /// Path of the manifests; `None` if turned off.
    pub path: Option<String>,
    /// URL of more manifests, without its query; `None` if turned off.
    pub url: Option<String>,
    /// Set if the URL goes over a network without TLS.
    pub is_url_plain: bool,
    /// Pods in them.
    pub pods: usize,
    /// Files that cannot be used: path and why.
    pub bad: Vec<(String, String)>,
    /// Files that are used although something in them counts for nothing: path and what.
    pub odd: Vec<(String, String)>,
    /// Files with a Secret or a password that users other than root can read.
    pub open_secrets: Vec<String>,
    /// TCP ports of the host that pods ask for: port and pod, sorted.
    pub host_ports: Vec<(u16, String)>,
}

/// Configuration of registries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryConfigFacts {
    /// Path of the file; `None` if there is none.
    pub path: Option<String>,
    /// Reason why no agent starts with it.
    pub unusable: Option<String>,
    /// Faults beside that: place and why.
    pub faults: Vec<String>,
    /// Set if it was written after the agent started.
    pub is_newer: bool,
}

/// The apiserver that this machine is to be a node of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiserverFacts {
    /// Path of the kubeconfig.
    pub kubeconfig: String,
    /// Reason why the kubeconfig cannot be used.
    pub error: Option<String>,
    /// The bootstrap kubeconfig, if one is named.
    pub bootstrap: Option<BootstrapKubeconfig>,
    /// URL of the apiserver; empty if not known.
    pub server: String,
    /// Validity of the client certificate: from, until.
    pub certificate: Option<(WallTime, WallTime)>,
    /// Set if the agent renews the certificate.
    pub renews: bool,
    /// Answer of the apiserver; `None` if it was not asked.
    pub answer: Option<ApiserverAnswer>,
    /// Tunnel mode of a k3s server that does not reach nodes directly.
    pub tunnel: Option<String>,
    /// Facts that a server of k3s has told; `None`: it was not asked, or there is none.
    pub k3s: Option<K3sClusterFacts>,
    /// Difference between the clocks of this machine and the apiserver, if it is too large.
    pub clock: Option<String>,
}

impl CheckFacts {
    /// Returns true if the apiserver answers, whatever else is wrong with it; `None`: it was not asked, or there is
    /// none.
    #[must_use]
    pub fn apiserver_answers(&self) -> Option<bool> {
        let answer = self.apiserver.as_ref()?.answer.as_ref()?;
        Some(*answer == ApiserverAnswer::Given)
    }
}

/// A bootstrap kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootstrapKubeconfig {
    /// Path.
    Usable(String),
    /// Reason why it cannot be used.
    Unusable(String),
}

/// Result of a request to the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiserverAnswer {
    /// The apiserver answered.
    Given,
    /// No usable answer came, and why.
    Silent(String),
}

/// The agent, asked through its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentReachability {
    /// No agent listens.
    #[default]
    Absent,
    /// A socket is there and does not answer as it should.
    Mute(String),
    /// The agent answers.
    Up(Box<AgentHealth>),
}
