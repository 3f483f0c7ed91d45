//! The checked configuration, which the rest of the agent reads.

use alloc::{collections::BTreeMap, rc::Rc};
use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::{
    api::{Quantity, node::Taint},
    logic::{
        cgroup::CgroupTree, cpu_manager::CpuPolicyOptions, cpu_set::CpuSet, eviction,
        image_access::VerificationPolicy, link_budget, link_cost, shutdown,
    },
    net::Url,
    parts::ConfiguredPart,
    runtime::runc::process::ProcessPermissions,
};

/// Subnet of the built-in network unless configured.
pub const DEFAULT_SUBNET: Ipv4Subnet = Ipv4Subnet {
    address: Ipv4Addr::new(10, 85, 0, 0),
    prefix: 16,
};
/// Bridge of the built-in network unless configured.
pub const DEFAULT_BRIDGE: &str = "picolet0";

/// The checked configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Name of the node: the override or the host name, trimmed and lower case (CONF-16).
    pub node_name: String,
    /// `--node-ip`: none, one, or one of each family (CONF-17).
    pub node_ips: Vec<IpAddr>,
    /// `--node-external-ip`: none, one, or one of each family. Only a cluster of k3s is told of them (K3SN-03).
    pub node_external_ips: Vec<IpAddr>,
    /// Settings of this machine as a node.
    pub node: NodeConfig,
    /// Log level as klog counts: 0 to 1 info, 2 to 4 debug, 5 and more trace.
    pub verbosity: u8,
    /// Set if notifications are used beside polling. Without them the agent is slower, never wrong.
    pub doorbells: bool,
    /// The apiserver.
    pub cluster: ClusterConfig,
    /// Server of the node over the network.
    pub server: ServerConfig,
    /// Limits and cost of the link.
    pub link: LinkConfig,
    /// Parts that are configured.
    pub(crate) parts: Vec<Rc<dyn ConfiguredPart>>,
    /// The whole configuration as a `KubeletConfiguration`, JSON.
    pub document: String,
    /// Manifests at a URL; `None`: no URL.
    pub manifest_url: Option<ManifestUrlConfig>,
    /// Every directory and file the agent touches.
    pub dirs: AgentDirs,
    /// Intervals.
    pub times: TimeConfig,
    /// Most pods on this node (`maxPods`).
    pub max_pods: u32,
    /// Most pods per processor; 0: no such limit. The smaller of both counts.
    pub pods_per_core: u32,
    /// Ids of the host for the user namespace of a pod (`userNamespaces.idsPerPod`).
    pub ids_per_pod: u32,
    /// The OCI runtime.
    pub runtime: RuntimeConfig,
    /// Cgroups, limits, swap.
    pub cgroup: CgroupConfig,
    /// Resources that are kept from pods.
    pub reserved: ReservedResources,
    /// Resources that are kept free, and how.
    pub eviction: EvictionConfig,
    /// Groups of pods that end one after the other with the machine; empty: all end at once, and they start again with
    /// it.
    pub shutdown: Vec<shutdown::PriorityGroup>,
    /// Container logs.
    pub logs: LogConfig,
    /// Pulls and image garbage.
    pub images: ImageConfig,
    /// Container garbage.
    pub garbage: GarbageConfig,
    /// Pod network and name service.
    pub network: PodNetworkConfig,
    /// `RuntimeDefault` for containers that name no seccomp profile.
    pub seccomp_default: bool,
    /// Sysctls, or patterns with a trailing `*`, allowed beside the safe ones.
    pub allowed_unsafe_sysctls: Vec<String>,
}

/// Settings of this machine as a node: content of its Node object, and how often that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Create the Node object. Otherwise another program creates it. Default true.
    pub register: bool,
    /// Labels beside those that every node has (CONF-15).
    pub labels: BTreeMap<String, String>,
    /// Taints that a new Node gets.
    pub taints: Vec<Taint>,
    /// `spec.providerID` of a new Node; may be empty.
    pub provider_id: String,
    /// A cloud controller completes the Node: `--cloud-provider=external`.
    pub external_cloud: bool,
    /// The control plane attaches volumes to this node. Default true.
    pub controller_attach_detach: bool,
    /// Port of the HTTPS server, as the Node names it. Default 10250.
    pub port: u16,
    /// Time between two computations of the status. Default 10 s.
    pub status_update: Duration,
    /// Longest time between two statuses sent. Default 5 min.
    pub status_report: Duration,
    /// Most images named in the status; `None`: all. Default 50.
    pub max_images: Option<u32>,
    /// Seconds for which a sign of life counts. Default 40.
    pub lease_duration_s: u32,
    /// Version that the Node names as its kubelet's. Default [`KUBELET_VERSION`](super::KUBELET_VERSION).
    pub kubelet_version: String,
}

/// Server of the node over the network, and its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Address to listen on; `None`: no server. Default: port 10250 of all addresses if there is an apiserver, else
    /// `None`.
    pub listen: Option<SocketAddr>,
    /// Address of `/healthz` in plain text; `None`: not served. Default 127.0.0.1:10248.
    pub healthz: Option<SocketAddr>,
    /// Certificate that the server shows.
    pub certificate: ServingCertificateSource,
    /// CAs of clients.
    pub client_ca: Option<PathBuf>,
    /// Clients without a credential may ask too. Default false.
    pub anonymous: bool,
    /// Time for which the apiserver's review of a token counts; `None`: tokens are not reviewed. Default 2 min with an
    /// apiserver.
    pub tokens: Option<Duration>,
    /// Times for which the apiserver's yes and no to an access count: default 5 min and 30 s. `None`: every known
    /// client may do everything.
    pub authorization: Option<(Duration, Duration)>,
    /// Cipher suites of TLS 1.2 that are offered; empty: all there are.
    pub cipher_suites: Vec<String>,
    /// Curves that are offered; empty: all there are.
    pub curves: Vec<String>,
    /// Set if no version before TLS 1.3 is accepted.
    pub only_1_3: bool,
    /// Logs and the commands of exec, attach and port forwarding are served too. Default true.
    pub debugging: bool,
    /// The journal and log files of the machine can be queried. Default false.
    pub node_logs: bool,
}

/// Source of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingCertificateSource {
    /// Made by the agent at the first start, kept in the certificate directory.
    SelfSigned,
    /// Certificate and key.
    Files(PathBuf, PathBuf),
    /// The apiserver's signer, once a request is approved. Until then nothing is served.
    Requested,
}

/// Connection to the apiserver: credentials, addresses, rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Credentials and address of the apiserver; with neither this nor [`ClusterConfig::bootstrap_kubeconfig`] the node
    /// stands alone.
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig by which the first certificate is asked for; the agent then writes [`ClusterConfig::kubeconfig`].
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Certificates of the node. Default `pki` in the root directory.
    pub cert_dir: PathBuf,
    /// Ask for a new client certificate in time. Default true with a bootstrap kubeconfig, as kubeadm sets it, else false.
    pub rotate_certificates: bool,
    /// Further URLs of the same apiserver.
    pub servers: Vec<String>,
    /// The supervisor that makes certificates instead of the apiserver's signers: its URL, and the file with the
    /// password by which it knows this node (K3SJ-08).
    pub k3s: Option<(Url, PathBuf)>,
    /// Kubeconfig by which Nodes, Services and EndpointSlices are read, which no node may read. `None`: on a node of k3s
    /// the agent gets a certificate for that; elsewhere nobody reads them (K3SN-02).
    pub network_kubeconfig: Option<PathBuf>,
    /// Requests a second, and their burst. Default 50 and 100 (CONF-07).
    pub qps: (u32, u32),
    /// Events a second, and their burst; 0 a second: no limit.
    pub event_qps: (u32, u32),
    /// Place where Secrets wait for a start without the apiserver.
    pub offline_secrets: OfflineSecrets,
}

impl ClusterConfig {
    /// Returns true if there is an apiserver to speak to.
    #[must_use]
    pub const fn is_member(&self) -> bool {
        self.kubeconfig.is_some()
    }

    /// Directory of the client certificate that the node renews; `None`: the node shows that of the kubeconfig as it
    /// is.
    #[must_use]
    pub fn renewed_certificate_dir(&self) -> Option<&Path> {
        let is_renewed = self.rotate_certificates || self.bootstrap_kubeconfig.is_some();
        is_renewed.then_some(&*self.cert_dir)
    }
}

/// Limits and cost of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// Limit of a day; `None`: no limit.
    pub budget: Option<link_budget::LinkBudgetSettings>,
    /// Ways on which bytes cost money: polls are further apart then and events fewer.
    pub cost: link_cost::LinkSettings,
}

/// Manifests of static pods at a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestUrlConfig {
    /// `staticPodURL`.
    pub url: Url,
    /// `staticPodURLHeader`, in the order of the names.
    pub headers: Vec<(String, String)>,
    /// CAs of the server, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// Time between two looks, and the longer one while bytes cost money. Default 20 s and 5 min.
    pub checks: [Duration; 2],
}

/// Place where Secrets wait for a start without the apiserver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfflineSecrets {
    /// On disk, for root only: pods with Secrets start after a reboot without the apiserver.
    #[default]
    Disk,
    /// In the run directory, which a reboot clears.
    Memory,
}

/// Every directory and file the agent touches; all absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentDirs {
    /// Root directory, which survives a reboot: `pods/`, `images/`, `seccomp/`. Default `/var/lib/picolet`.
    pub root: PathBuf,
    /// Run directory, which ends with a reboot: `sandboxes/`, `containers/`. Default `/run/picolet`.
    pub run: PathBuf,
    /// Directory or file of static pods; `None` if turned off. Default `/etc/picolet/manifests`.
    pub manifests: Option<PathBuf>,
    /// Directory of image archives to import. Default `<root>/import`.
    pub image_drop_in: PathBuf,
    /// Directory of container logs. Default `/var/log/pods`.
    pub pod_logs: PathBuf,
    /// Directory of links to container logs. Default `/var/log/containers`.
    pub container_logs: PathBuf,
    /// Socket of the local commands. Default `<run>/picolet.sock`.
    pub socket: PathBuf,
}

impl AgentDirs {
    /// `<root>/pods`: one directory per pod uid.
    #[must_use]
    pub fn pods_dir(&self) -> PathBuf {
        self.root.join("pods")
    }
    /// `<root>/images`: the image store.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
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
    /// Time after which a connection of exec, attach or port forwarding without traffic is closed. Default 4 h.
    pub streaming_idle: Duration,
}

/// Sockets of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeEndpoints {
    /// `containerRuntimeEndpoint`, without its scheme.
    pub runtime: PathBuf,
    /// `imageServiceEndpoint`. Default: the socket of `runtime`.
    pub images: PathBuf,
}

/// Programs that run containers: a CRI runtime that is there, or OCI runtimes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Sockets of a runtime that serves CRI; `None`: the agent runs containers itself.
    pub endpoints: Option<RuntimeEndpoints>,
    /// OCI runtime: a path, or a name to look up in `PATH`. Default `runc`.
    pub program: PathBuf,
    /// Other OCI runtimes, absolute paths, by the handler that RuntimeClasses name.
    pub handlers: BTreeMap<String, String>,
    /// Programs of the machine that run as pods; `None`: no program does.
    pub process: Option<ProcessPermissions>,
    /// State directory of the OCI runtime (`--root`). Default `<run>/oci`.
    pub root: PathBuf,
}

/// Cgroups and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupConfig {
    /// Cgroup below which `kubepods` is made (absolute path, default `/`), and its maker. If the runtime says who makes
    /// its groups, that counts from the moment it is opened (CONF-18).
    pub tree: CgroupTree,
    /// A cgroup for each pod and each quality of service.
    pub per_qos: bool,
    /// Set if the `kubepods` cgroup is limited to what is allocatable.
    pub enforce_pods: bool,
    /// Cgroups that are limited to the resources reserved for them.
    pub reserved_groups: Vec<ReservedGroup>,
    /// Set if cpu limits are held.
    pub cpu_cfs_quota: bool,
    /// Period of cpu limits, 1 ms to 1 s.
    pub cpu_cfs_quota_period: Duration,
    /// `cpuManagerPolicy: static`; `None`: all containers share all processors.
    pub cpu_policy: Option<CpuPolicyConfig>,
    /// Most processes of a pod; `None`: pods have no limit of their own.
    pub pod_pids_limit: Option<i64>,
    /// Limit of a pod's writes to the disk of the root directory, bytes a second; `None`: no limit. Only with cgroup
    /// v2.
    pub pod_write_limit: Option<u64>,
    /// OOM score adjustment of the agent, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Refuse to start while swap is on.
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// Refuse to start with other settings of the kernel than pods need, instead of setting them.
    pub protect_kernel_defaults: bool,
    /// Swap of pods.
    pub swap: SwapBehavior,
    /// `featureGates.MemoryQoS`; `None`: off, which is the default.
    pub memory_qos: Option<MemoryQosConfig>,
    /// Set if an out-of-memory kill ends one process instead of the whole container. `None` is false with v2; v1 cannot do
    /// false.
    pub single_process_oom_kill: Option<bool>,
}

/// Containers may have processors of their own (CPUM-20).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuPolicyConfig {
    /// `cpuManagerPolicyOptions`.
    pub options: CpuPolicyOptions,
    /// Number of processors that are reserved for system and agent, above 0.
    pub reserved_count: usize,
}

/// A cgroup of the operator's that is limited to the resources reserved for it (CG-13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedGroup {
    /// Field that names the group.
    pub field: &'static str,
    /// Absolute path.
    pub path: String,
    /// Set for a group of the system; otherwise the group is the agent's.
    pub is_system: bool,
    /// Set if only the processor time of the group is limited.
    pub compressible: bool,
}

/// Throttling and protection of containers' memory (v2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryQosConfig {
    /// `memoryThrottlingFactor`, thousandths, 1 to 1000; `None`: no container is slowed down.
    pub throttling_permille: Option<u32>,
    /// `memoryReservationPolicy` is `TieredReservation`.
    pub reserves: bool,
}

/// Swap of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehavior {
    /// No pod swaps.
    NoSwap,
    /// Burstable pods swap in proportion to their request.
    LimitedSwap,
}

/// Resources that are kept from pods: allocatable is capacity less these.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReservedResources {
    /// `systemReserved`; keys cpu, memory, ephemeral-storage, pid.
    pub system: BTreeMap<String, Quantity>,
    /// `kubeReserved`; the same keys.
    pub kube: BTreeMap<String, Quantity>,
    /// `reservedSystemCPUs`: processors that no container has for itself; empty: as many as are reserved.
    pub cpus: CpuSet,
    /// Set if ephemeral storage is counted.
    pub local_storage: bool,
}

/// Resources that are kept free, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvictionConfig {
    /// Memory of the kernel itself counts as used (`picolet.profile: board`); a kubelet leaves it out.
    pub counts_kernel: bool,
    /// Thresholds and times.
    pub settings: eviction::EvictionSettings,
    /// Static pods may be evicted too, but for those of a system priority. Default false.
    pub static_pods: bool,
}

/// Container logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Size at which a log is rotated, in bytes; `None`: never. Default 10 MiB.
    pub max_size_bytes: Option<u64>,
    /// Most files of a log, the current one included; at least 2. Default 5.
    pub max_files: u32,
    /// Limit of all logs together, bytes; `None`: no such limit, which is the default.
    pub max_all_bytes: Option<u64>,
    /// Memory for the ends of all logs together before they are written to the disk, bytes; `None`: they are written at
    /// once, which is the default.
    pub memory_bytes: Option<u64>,
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
    /// Age above which an unused image is removed; `None`: no image is removed for its age.
    pub max_age: Option<Duration>,
    /// Disk use at which images are removed, in percent. Default 85.
    pub high_percent: u8,
    /// Disk use down to which images are removed, in percent. Default 80.
    pub low_percent: u8,
    /// Pulls per second; 0: no limit. Default 5.
    pub pull_qps: u32,
    /// Pulls that may come at once. Default 10.
    pub pull_burst: u32,
    /// Bytes per second over all pulls; `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// Mirrors, TLS and credentials of registries; may be absent. Default `/etc/picolet/registries.yaml`.
    pub registries: PathBuf,
    /// `CredentialProviderConfig` and the directory of its programs.
    pub credential_providers: Option<(PathBuf, PathBuf)>,
    /// Patterns of registries and repositories that may be pulled from; empty: all.
    pub allowed_registries: Vec<String>,
    /// Set if an image that is pulled must be named by digest.
    pub require_digest: bool,
    /// Images on the node for which a pod has to have the right.
    pub verification: VerificationPolicy,
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
pub struct PodNetworkConfig {
    /// Network configurations. Default `/etc/cni/net.d`.
    pub cni_conf: PathBuf,
    /// Network plugins. Default `/opt/cni/bin`.
    pub cni_bin: PathBuf,
    /// Subnet of the built-in network. Default [`DEFAULT_SUBNET`].
    pub builtin_subnet: Ipv4Subnet,
    /// Set if the operator chose the subnet. Otherwise a cluster may choose another.
    pub subnet_is_given: bool,
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
pub struct Ipv4Subnet {
    /// Network address: host bits are zero.
    pub address: Ipv4Addr,
    /// Length of the network part, 8 to 29 bits.
    pub prefix: u8,
}

impl core::fmt::Display for Ipv4Subnet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}
