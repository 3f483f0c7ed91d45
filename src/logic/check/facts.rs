//! What the preflight knows of a machine: plain data, gathered elsewhere.

use alloc::{string::String, vec::Vec};

use super::Kubeadm;
use crate::api::{Wall, cri::CgroupDriver};

/// A machine, its configuration and its agent, as far as they could be looked at. Absent facts are empty, zero or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What the operator asked for.
    pub wanted: Wanted,
    /// Kernel and processor.
    pub kernel: Kernel,
    /// Control groups.
    pub cgroups: Cgroups,
    /// The OCI runtime.
    pub runtime: Runtime,
    /// Pod network and firewall.
    pub network: Network,
    /// Clocks.
    pub clock: Clock,
    /// Directories of the agent.
    pub dirs: Dirs,
    /// Devices that pods may ask for.
    pub devices: Devices,
    /// What this process may do.
    pub rights: Rights,
    /// Manifests.
    pub manifests: Manifests,
    /// Who runs pods here already: name and process.
    pub kubelets: Vec<(String, u32)>,
    /// The apiserver; `None`: this machine is no node of one.
    pub apiserver: Option<Apiserver>,
    /// The agent.
    pub agent: Agent,
    /// What kubeadm looks at besides; empty unless it is asked for.
    pub kubeadm: Kubeadm,
}

/// What the operator asked for, defaults included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Why the configuration cannot be used; the other fields are defaults then.
    pub unusable: Option<String>,
    /// The file that was read.
    pub file: Option<String>,
    /// What was said about the file: unknown fields and the like.
    pub warnings: Vec<String>,
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
    /// `RuntimeDefault` where nothing else is said.
    pub seccomp_default: bool,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// What is kept free: thresholds as they are written.
    pub kept_free: Vec<String>,
    /// Static pods may be evicted for that.
    pub evict_static_pods: bool,
    /// Use of the disk at which images are removed, percent.
    pub image_high_percent: u8,
    /// Servers of the tunnel, as they are dialled; empty: there is none.
    pub tunnel: Vec<String>,
}

/// Devices that pods may ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Resources with the numbers of their units, as they are configured.
    pub units: Vec<(String, usize)>,
    /// Resources of device plugins with the numbers of their healthy units, as the agent knows them.
    pub plugins: Vec<(String, usize)>,
    /// Option without which the kernel cannot let containers use them, and has not.
    pub lacks: Option<String>,
    /// CDI files that say nothing, and why.
    pub wrong: Vec<String>,
}

/// Kernel and processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `6.12.25+rpt-rpi-v8`
    pub release: String,
    /// `uname -m`: `aarch64`, `armv7l`, …
    pub machine: String,
    /// What this program was built for: `aarch64`, `arm`, `x86_64`, …
    pub program: String,
    /// Width of the programs that the system is made of, bits: that of PID 1; `None` if it cannot be seen.
    pub userland_bits: Option<u8>,
    /// Bytes of a page.
    pub page_size: u64,
    /// `/proc/cmdline`
    pub cmdline: String,
    /// File that the firmware takes the kernel's command line from, where a board has one (`cmdline.txt`).
    pub cmdline_file: Option<String>,
    /// `config.txt` beside it.
    pub config_file: Option<String>,
    /// Whether overlayfs can be mounted.
    pub overlayfs: bool,
    /// Whether a process can be given a seccomp filter.
    pub seccomp: bool,
    /// Whether AppArmor confines.
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
pub struct Cgroups {
    /// Whether anything usable is mounted.
    pub mounted: bool,
    /// One tree for all controllers.
    pub v2: bool,
    /// Controllers that pods need and this machine lacks.
    pub missing: Vec<String>,
}

/// What runs containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Socket of a runtime that serves CRI; `None`: the agent runs containers itself, by an OCI runtime.
    pub socket: Option<String>,
    /// Why pods have no network there, as the runtime says.
    pub network_error: Option<String>,
    /// `runc 1.1.5+ds1`, `containerd 1.6.20`; empty if there is none.
    pub program: String,
    /// Why there is none.
    pub error: Option<String>,
    /// Who makes cgroups.
    pub drivers: Drivers,
    /// Known holes of this version, the distribution's revision considered.
    pub holes: Vec<String>,
    /// What runs pods of RuntimeClasses.
    pub handlers: Vec<Handler>,
}

/// Who makes cgroups, and who would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drivers {
    /// `cgroupDriver`.
    pub wanted: CgroupDriver,
    /// What the runtime says when it is asked for that; it is heeded.
    pub told: Option<CgroupDriver>,
    /// What the configuration says that it shows, if it is too old to be asked.
    pub shown: Option<CgroupDriver>,
    /// There is a systemd to ask.
    pub systemd: bool,
    /// systemd has a slice of the name that a kubelet gives the one of all pods.
    pub slice: bool,
}

/// What runs pods whose RuntimeClass names this handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    /// Name of the handler.
    pub name: String,
    /// `kata-runtime 3.2.0 at /opt/kata/bin/kata-runtime`; empty if the container runtime keeps it to itself.
    pub program: String,
    /// Why there is none.
    pub error: Option<String>,
}

/// Pod network and firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Directory of network configurations.
    pub conf_dir: String,
    /// File in use; `None` for the built-in network.
    pub conf: Option<String>,
    /// Why the configuration cannot be used.
    pub conf_error: Option<String>,
    /// Why the configured plugins cannot be called.
    pub plugin_error: Option<String>,
    /// Plugin types of the configuration.
    pub plugins: Vec<String>,
    /// What `iptables --version` says; `None` if there is no such program.
    pub iptables: Option<String>,
    /// Why the nat table cannot be listed.
    pub nat_error: Option<String>,
    /// Rules that the other flavour of iptables holds (legacy beside nft, or the reverse).
    pub other_rules: usize,
    /// `iptables -S FORWARD`
    pub forward: Vec<String>,
    /// `net.ipv4.ip_forward`
    pub ip_forward: bool,
    /// `net.bridge.bridge-nf-call-iptables`; `None` without br_netfilter.
    pub bridge_filter: Option<bool>,
    /// Whether the built-in bridge exists.
    pub bridge_exists: bool,
    /// The resolver file that pods inherit; `None` if they inherit none.
    pub resolv_conf: Option<String>,
    /// Name servers in it.
    pub name_servers: Vec<String>,
    /// Whether systemd-resolved keeps the real servers in its own file.
    pub resolved: bool,
    /// What makes Services reachable from this machine, such as `kube-proxy (nftables)`; `None` if nothing was found.
    pub services: Option<String>,
    /// Routes by other machines than that of the default route.
    pub routes: usize,
    /// TCP ports that a process of the host listens on, sorted.
    pub listening: Vec<u16>,
}

/// Clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Wall time now.
    pub now: Wall,
    /// Whether the kernel's clock is disciplined; `None` if it does not say.
    pub synchronized: Option<bool>,
    /// Whether there is a battery-backed clock.
    pub rtc: bool,
    /// What saves the time over a reboot in place of one.
    pub saved_time: Option<String>,
}

/// A directory of the agent, as its file system is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dir {
    /// Where.
    pub path: String,
    /// `ext4`, `tmpfs`, …
    pub kind: String,
    /// Mounted read-only.
    pub read_only: bool,
    /// What else it is mounted with that forbids something, of `nosuid`, `nodev`, `noexec`.
    pub restricted: Vec<String>,
    /// The flag that names another place; empty if there is none, and nothing depends on it.
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
pub struct Disk {
    /// `mmcblk0`, `sda`, …
    pub name: String,
    /// Bytes written to it since the machine was started.
    pub written: u64,
    /// How much of its life is used at most, percent; `None`: it does not say.
    pub used_life: Option<u8>,
    /// It says that its spare blocks come to an end.
    pub at_its_end: bool,
}

/// Directories of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirs {
    /// What survives a reboot.
    pub root: Dir,
    /// The disk that it is on, as far as that is one.
    pub root_disk: Option<Disk>,
    /// What ends with it.
    pub run: Dir,
    /// Logs of containers.
    pub logs: Dir,
    /// Whatever else is written to.
    pub others: Vec<Dir>,
    /// Whether the mount namespace (the agent's if it runs, else ours) is that of PID 1; `None` if unknown.
    pub host_mounts: Option<bool>,
    /// A record of another program whose version this one does not read.
    pub foreign_record: Option<(String, u32)>,
}

/// What this process may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Effective user is root.
    pub root: bool,
    /// Capabilities that it has, as `CAP_X`.
    pub capabilities: Vec<String>,
}

/// Manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// Where they lie; `None` if turned off.
    pub path: Option<String>,
    /// Where more are, without a query; `None` if turned off.
    pub url: Option<String>,
    /// That goes over a network without TLS.
    pub is_url_plain: bool,
    /// Pods in them.
    pub pods: usize,
    /// Files that cannot be used: path and why.
    pub bad: Vec<(String, String)>,
    /// Files with a Secret that others than root can read.
    pub open_secrets: Vec<String>,
    /// TCP ports of the host that pods ask for: port and pod, sorted.
    pub host_ports: Vec<(u16, String)>,
}

/// The apiserver that this machine is to be a node of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Apiserver {
    /// Path of the kubeconfig.
    pub kubeconfig: String,
    /// Why it cannot be used.
    pub error: Option<String>,
    /// The bootstrap kubeconfig, if one is named.
    pub bootstrap: Option<Bootstrap>,
    /// Its URL; empty if not known.
    pub server: String,
    /// When the client certificate holds: from, until.
    pub certificate: Option<(Wall, Wall)>,
    /// Whether the agent renews it.
    pub renews: bool,
    /// Whether it answers; `None` if it was not asked.
    pub answer: Option<Answer>,
    /// How a k3s server reaches nodes, if not directly.
    pub tunnel: Option<String>,
    /// What is wrong with the clock of one of both.
    pub clock: Option<String>,
}

impl Facts {
    /// Whether the apiserver answers, whatever else is wrong with it; `None`: it was not asked, or there is none.
    #[must_use]
    pub fn apiserver_answers(&self) -> Option<bool> {
        let answer = self.apiserver.as_ref()?.answer.as_ref()?;
        Some(*answer == Answer::Given)
    }
}

/// A bootstrap kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// Its path.
    Usable(String),
    /// Why it cannot be used.
    Unusable(String),
}

/// What asking the apiserver came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Given,
    /// Why it is not.
    Silent(String),
}

/// The agent, asked through its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Agent {
    /// None listens.
    #[default]
    Absent,
    /// A socket is there and does not answer as it should.
    Mute(String),
    /// It answers.
    Up(AgentFacts),
}

/// What the agent says of itself. Ages in milliseconds; `None` if it never happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// Its version.
    pub version: String,
    /// Time since the last complete relist of the runtime began.
    pub relist_age_ms: Option<u64>,
    /// Time since the manifests were last read.
    pub manifests_age_ms: Option<u64>,
    /// Time between two reads of the manifests.
    pub manifests_interval_ms: u64,
    /// Why no pod is handled.
    pub down: Option<String>,
    /// Why pods get no network.
    pub network_down: Option<String>,
    /// Pods it holds.
    pub pods: usize,
    /// Its tunnel; `None`: there is none.
    pub tunnel: Option<TunnelFacts>,
    /// How the budget of the link stands, and whether images wait for it; `None`: there is none.
    pub link: Option<(String, bool)>,
}

/// How a tunnel is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelFacts {
    /// Servers with which there are streams.
    pub streams: usize,
    /// Servers that there are, as they say.
    pub servers: usize,
    /// Dials that were meant for others.
    pub misrouted: u64,
    /// Why there is no stream.
    pub trouble: Option<String>,
}
