//! Data of the runtime seam (`runtime::RuntimeService`, `runtime::ImageService`), in the words of CRI v1.
//!
//! Times are the runtime's own wall clock, nanoseconds. They order nothing alone, for a clock may be set back: of two
//! instances of one container, or of two sandboxes of one pod, the one with the higher attempt is newer.

use alloc::collections::BTreeMap;
use core::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::device::DeviceMajor;
use super::order::OrderExt as _;
use super::{ContainerId, PodUid, SandboxId, WallTime};

/// Label: pod name.
pub const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
/// Label: pod namespace.
pub const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: pod UID.
pub const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
/// Label: container name.
pub const LABEL_CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation: spec hash of the container (ACT-42), hexadecimal.
pub const ANNOTATION_HASH: &str = "io.kubernetes.container.hash";
/// Annotation: restart count of the instance.
pub const ANNOTATION_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation: where the container sees its termination log.
pub const ANNOTATION_TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation: `CdiFile` or `FallbackToLogsOnError`.
pub const ANNOTATION_TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation: grace period of the pod, seconds.
pub const ANNOTATION_POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation: deletion grace period of the pod, seconds.
pub const ANNOTATION_POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
/// Annotation: preStop handler, JSON.
pub const ANNOTATION_PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation: container ports, JSON.
pub const ANNOTATION_PORTS: &str = "io.kubernetes.container.ports";

/// Source of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMode {
    /// Shared by the containers of the pod.
    #[default]
    Pod,
    /// A namespace for each container (PID only).
    Container,
    /// The machine's own.
    Node,
    /// Namespace of another container (PID only, ephemeral containers).
    Target,
}

/// Ids of a pod's user namespace, users and groups alike: its ids from 0 on are so many ids of the host in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// Id of the host that is 0 in the namespace.
    pub host_id: u32,
    /// Number of ids.
    pub length: u32,
}

impl IdMap {
    /// Ids on the host of a user and a group of the namespace; `None` if the namespace has not both.
    #[must_use]
    pub fn owner_on_host(self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let on_host = |id: u32| {
            let inside = (id < self.length).then_some(id)?;
            self.host_id.checked_add(inside)
        };
        on_host(uid).zip(on_host(gid))
    }
}

/// Namespace modes of a sandbox or container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceOptions {
    /// `Pod` or `HostDeviceNode`.
    pub network: NamespaceMode,
    /// `Pod` or `HostDeviceNode`.
    pub ipc: NamespaceMode,
    /// `Pod`, `Container`, `HostDeviceNode` or `Target`.
    pub pid: NamespaceMode,
    /// Ids of the pod's own user namespace; `None`: it has the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<IdMap>,
}

/// Contents of a resolver file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnsConfig {
    /// `nameserver` lines.
    pub servers: Vec<String>,
    /// Words of the one `search` line.
    pub searches: Vec<String>,
    /// Words of the one `options` line.
    pub options: Vec<String>,
}

/// A hostPort and the port in the pod that it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortMapping {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port in the pod.
    pub container_port: u16,
    /// Port on the host; 0 means none.
    pub host_port: u16,
    /// Address on the host; empty means all.
    pub host_ip: String,
}

/// Seccomp or AppArmor profile to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityProfile {
    /// The agent's own default profile.
    RuntimeDefault,
    /// None.
    #[default]
    Unconfined,
    /// Seccomp: absolute path of a profile file. AppArmor: name of a loaded profile.
    Localhost(String),
    /// No profile named. Seccomp: none. AppArmor: the default profile where there is one.
    Unset,
}

/// User and groups of a sandbox's own processes, as far as the pod names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxUser {
    /// UID.
    pub run_as_user: Option<i64>,
    /// GID.
    pub run_as_group: Option<i64>,
    /// More groups, in the order in which they are set.
    pub supplemental_groups: Vec<i64>,
    /// Groups of the image's files do not count.
    pub strict_supplemental_groups: bool,
    /// `user:role:type:level`; empty for none.
    pub selinux_label: String,
}

/// Everything needed to make a pod sandbox. Serialised into the sandbox record of the run dir.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxConfig {
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod UID.
    pub uid: PodUid,
    /// 0 for the first sandbox of the pod.
    pub attempt: u32,
    /// Kernel hostname; empty for host-network pods.
    pub hostname: String,
    /// Directory for the pod's container logs, absolute.
    pub log_directory: String,
    /// Resolver file contents.
    pub dns: DnsConfig,
    /// hostPorts and declared ports.
    pub port_mappings: Vec<PortMapping>,
    /// Pod labels and the three `io.kubernetes.pod.*` ones.
    pub labels: BTreeMap<String, String>,
    /// Pod annotations.
    pub annotations: BTreeMap<String, String>,
    /// Cgroup of the pod, absolute within the hierarchy (`/kubepods/burstable/pod<uid>`; with systemd the whole path of its slice).
    pub cgroup_parent: String,
    /// Sysctls in dotted form.
    pub sysctls: BTreeMap<String, String>,
    /// Namespace modes.
    pub namespaces: NamespaceOptions,
    /// Set if privileged containers may be made in it.
    pub privileged: bool,
    /// RuntimeClass handler; [`DEFAULT_HANDLER`] where the pod names no class.
    pub runtime_handler: String,
    /// User of the sandbox. Not recorded: only runtimes that keep a process in it need it.
    #[serde(skip)]
    pub user: SandboxUser,
    /// Resources of all containers of the pod together. Not recorded: only runtimes that make a machine for the pod
    /// need it.
    #[serde(skip)]
    pub resources: LinuxResources,
    /// Resources for the runtime itself (`spec.overhead`). Not recorded.
    #[serde(skip)]
    pub overhead: LinuxResources,
}

/// Maker of control groups, those of pods and those of containers below them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// Whoever needs one makes a directory.
    #[default]
    Cgroupfs,
    /// systemd, of which each is a unit.
    Systemd,
}

impl CgroupDriver {
    /// As `cgroupDriver` has it.
    #[must_use]
    pub const fn config_word(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SandboxState {
    /// Namespaces exist, network is set up.
    Ready,
    /// Stopped, half made, or its namespaces are gone.
    NotReady,
}

/// A sandbox as the runtime sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// Id.
    pub id: SandboxId,
    /// Pod UID.
    pub uid: PodUid,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Attempt.
    pub attempt: u32,
    /// State.
    pub state: SandboxState,
    /// Creation time.
    pub created_at: WallTime,
    /// Pod IPs, primary first; empty for host network.
    pub ips: Vec<IpAddr>,
    /// Namespace modes.
    pub namespaces: NamespaceOptions,
    /// RuntimeClass handler that it was made with.
    #[serde(default)]
    pub runtime_handler: String,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPropagation {
    /// `None` in the API.
    #[default]
    Private,
    /// rslave.
    HostToContainer,
    /// rshared.
    Bidirectional,
}

/// An image as a mount names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountedImage {
    /// Reference that lookup or pull returned (an image id).
    pub image: String,
    /// The user's own string.
    pub user_image: String,
}

/// A mount into a container: of a path of the host, or of an image's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerMount {
    /// Absolute path on the host; empty for an image.
    pub host_path: String,
    /// Absolute path in the container.
    pub container_path: String,
    /// Read-only.
    pub read_only: bool,
    /// Read-only including submounts.
    pub recursive_read_only: bool,
    /// Propagation.
    pub propagation: MountPropagation,
    /// The image whose files are mounted, always read-only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<MountedImage>,
    /// Directory in the image, relative; empty for all of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_sub_path: String,
}

/// A device node for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerDeviceNode {
    /// Absolute path on the host; links lead to the node.
    pub host_path: String,
    /// Absolute path in the container.
    pub container_path: String,
    /// Letters of `rwm`.
    pub permissions: String,
    /// Set for a block device; else the node has to be a character device.
    pub block: bool,
    /// Major number. CRI has no field for this and what follows.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Group in the container, instead of the process's or the node's.
    pub gid: Option<u32>,
    /// Permission bits in the container, instead of the node's.
    pub mode: Option<u32>,
}

/// A directory with device nodes that come and go while the container runs. CRI has no words for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveDevices {
    /// Absolute path on the host. It and the nodes in it are given to the container's user before the container starts.
    pub host_path: String,
    /// Absolute path in the container, which cannot write there.
    pub container_path: String,
    /// Letters of `rwm`.
    pub permissions: String,
    /// Kinds of the nodes: it can use those in the directory, and no others.
    pub majors: Vec<DeviceMajor>,
    /// Group of the nodes, instead of the process's.
    pub gid: Option<u32>,
}

impl LiveDevices {
    /// Returns true if a path in the container is this directory, or below it. Others cannot make such a path.
    #[must_use]
    pub fn covers_path(&self, path: &str) -> bool {
        is_path_within(path, &self.container_path)
    }
}

/// Returns true if `path` is `dir`, or below it. Both without slashes at their ends.
#[must_use]
pub fn is_path_within(path: &str, dir: &str) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Owner of a node in a container (DEV-43): user and group of the container's process if they are not root's, else
/// those of the node on the machine. `gid`: the configured group.
#[must_use]
pub fn device_node_owner(user: (u32, u32), node: (u32, u32), gid: Option<u32>) -> (u32, u32) {
    let not_root = |id: u32| Some(id).filter(|id| *id > 0);
    let uid = not_root(user.0).unwrap_or(node.0);
    (uid, gid.or_else(|| not_root(user.1)).unwrap_or(node.1))
}

/// Limits written to the container's cgroup by the OCI runtime. `None` means "not set".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxResources {
    /// cpu.shares.
    pub cpu_shares: Option<u64>,
    /// CFS quota, microseconds.
    pub cpu_quota_us: Option<i64>,
    /// CFS period, microseconds.
    pub cpu_period_us: Option<u64>,
    /// Processors that it may use, such as `0-1,3`.
    pub cpuset_cpus: Option<String>,
    /// Memory limit, bytes.
    pub memory_limit_bytes: Option<i64>,
    /// Memory plus swap limit (v1) or their sum as OCI words it, bytes.
    pub memory_swap_bytes: Option<i64>,
    /// −1000..=1000.
    pub oom_score_adj: i32,
    /// pids.max.
    pub pids_limit: Option<i64>,
    /// Page size name (`2MB`) to bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
    /// Raw cgroup v2 files (`memory.oom.group` → `1`).
    pub unified: BTreeMap<String, String>,
}

/// Linux security settings of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxSecurity {
    /// Privileged.
    pub privileged: bool,
    /// Capabilities to add, as written (`ALL`, `NET_ADMIN`, `CAP_…`).
    pub add_capabilities: Vec<String>,
    /// Capabilities to drop, as written.
    pub drop_capabilities: Vec<String>,
    /// Namespace modes.
    pub namespaces: NamespaceOptions,
    /// PID namespace donor, for `NamespaceMode::Target`.
    pub target: Option<ContainerId>,
    /// UID; wins over `username`.
    pub run_as_user: Option<i64>,
    /// GID.
    pub run_as_group: Option<i64>,
    /// User name of the image, resolved in its passwd file.
    pub username: String,
    /// Supplementary groups.
    pub supplemental_groups: Vec<i64>,
    /// Policy `Strict`: groups of the image's group file are not added.
    pub strict_supplemental_groups: bool,
    /// Read-only root file system.
    pub readonly_rootfs: bool,
    /// Sets no_new_privs.
    pub no_new_privs: bool,
    /// procMount `Unmasked`: both path lists empty.
    pub unmasked_proc: bool,
    /// Seccomp profile.
    pub seccomp: SecurityProfile,
    /// AppArmor profile.
    pub apparmor: SecurityProfile,
    /// SELinux process label, empty for none.
    pub selinux_label: String,
}

/// Everything needed to create a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerConfig {
    /// Container name.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Image reference that lookup or pull returned (an image id).
    pub image: String,
    /// The user's own string.
    pub user_image: String,
    /// Replaces the image's entrypoint when not empty.
    pub command: Vec<String>,
    /// Replaces the image's cmd when not empty.
    pub args: Vec<String>,
    /// Working directory, empty for the image's.
    pub working_dir: String,
    /// Environment, in order, without duplicates.
    pub env: Vec<(String, String)>,
    /// Mounts, in order.
    pub mounts: Vec<ContainerMount>,
    /// Device nodes, no two of one path in the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ContainerDeviceNode>,
    /// Names of CDI devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cdi_devices: Vec<String>,
    /// Device nodes that come and go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub live_devices: Vec<LiveDevices>,
    /// `io.kubernetes.*` labels.
    pub labels: BTreeMap<String, String>,
    /// `io.kubernetes.*` annotations, and those of device plugins.
    pub annotations: BTreeMap<String, String>,
    /// Log file, relative to the sandbox's log directory.
    pub log_path: String,
    /// Keep stdin open.
    pub stdin: bool,
    /// Close stdin when the first attached client leaves.
    pub stdin_once: bool,
    /// Terminal.
    pub tty: bool,
    /// Stop signal name, empty for the image's.
    pub stop_signal: String,
    /// Limits.
    pub resources: LinuxResources,
    /// Security.
    pub security: LinuxSecurity,
}

impl ContainerConfig {
    /// Images that its mounts name, sorted, each once.
    #[must_use]
    pub fn volume_images(&self) -> Vec<String> {
        let images = self.mounts.iter().filter_map(|m| m.image.as_ref());
        let mut ids: Vec<String> = images.map(|spec| spec.image.clone()).collect();
        ids.stable_sort();
        ids.dedup();
        ids
    }
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created, not started.
    Created,
    /// The container's process runs.
    Running,
    /// The container ended, or never could start.
    Exited,
    /// The runtime lost track of it.
    Unknown,
}

/// An instance as the runtime sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Id.
    pub id: ContainerId,
    /// Sandbox it lives in.
    pub sandbox: SandboxId,
    /// Container name.
    pub name: String,
    /// Restart count of the instance.
    pub restart_count: u32,
    /// State.
    pub state: ContainerState,
    /// Creation time.
    pub created_at: WallTime,
    /// Start time, if it was started.
    pub started_at: Option<WallTime>,
    /// End, if it ended.
    pub finished_at: Option<WallTime>,
    /// Exit code; 128 + signal for a signalled process. Meaningful when `Exited`.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown` or empty.
    pub reason: String,
    /// Message of the runtime, then of the termination log (TMSG-01).
    pub message: String,
    /// Image as the user named it.
    pub image: String,
    /// Image id (digest).
    pub image_id: String,
    /// Images that it mounts as volumes: ids, sorted, each once. They are in use as its own image is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_images: Vec<String>,
    /// Mounts that are read-only with all below them, and mounts of images. Others are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountStatus>,
    /// Stop signal in force, as a pod names it; empty if the runtime does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// Spec hash (ACT-42).
    pub hash: u64,
    /// uid, gid and supplementary groups in force.
    pub user: Option<(i64, i64, Vec<i64>)>,
    /// Process id of the container's init while it runs; 0 otherwise.
    pub pid: i32,
    /// Absolute path of the log file.
    pub log_path: String,
}

/// A mount of an instance, as it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountStatus {
    /// Absolute path in the container.
    pub container_path: String,
    /// Read-only with all that is mounted below it.
    pub recursive_read_only: bool,
    /// The image whose files are mounted, by digest; empty for none.
    pub image: String,
}

/// A sandbox in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxItem {
    /// Id.
    pub id: SandboxId,
    /// Attempt.
    pub attempt: u32,
    /// State.
    pub state: SandboxState,
    /// Creation time.
    pub created_at: WallTime,
}

impl From<&SandboxStatus> for SandboxItem {
    fn from(status: &SandboxStatus) -> Self {
        Self {
            id: status.id.clone(),
            attempt: status.attempt,
            state: status.state,
            created_at: status.created_at,
        }
    }
}

/// An instance in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerItem {
    /// Id.
    pub id: ContainerId,
    /// Sandbox it lives in.
    pub sandbox: SandboxId,
    /// Container name.
    pub name: String,
    /// Restart count of the instance.
    pub attempt: u32,
    /// State.
    pub state: ContainerState,
    /// Creation time.
    pub created_at: WallTime,
}

impl From<&ContainerStatus> for ContainerItem {
    fn from(status: &ContainerStatus) -> Self {
        Self {
            id: status.id.clone(),
            sandbox: status.sandbox.clone(),
            name: status.name.clone(),
            attempt: status.restart_count,
            state: status.state,
            created_at: status.created_at,
        }
    }
}

/// A pod in a list: what is there of it, not how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodItem {
    /// Pod UID.
    pub uid: PodUid,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Sandboxes, in any order.
    pub sandboxes: Vec<SandboxItem>,
    /// Instances, in any order.
    pub containers: Vec<ContainerItem>,
}

impl PodItem {
    /// Returns true if a part of the pod runs: a READY sandbox or a running container.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let mut containers = self.containers.iter();
        self.sandboxes
            .iter()
            .any(|s| s.state == SandboxState::Ready)
            || containers.any(|c| c.state == ContainerState::Running)
    }
}

impl From<&PodRuntimeStatus> for PodItem {
    fn from(pod: &PodRuntimeStatus) -> Self {
        Self {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            sandboxes: pod.sandboxes.iter().map(SandboxItem::from).collect(),
            containers: pod.containers.iter().map(ContainerItem::from).collect(),
        }
    }
}

/// All that the runtime knows of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRuntimeStatus {
    /// Pod UID.
    pub uid: PodUid,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod IPs; see PLEG-11 and SYNC-01.
    pub ips: Vec<IpAddr>,
    /// Highest attempt first, then newest, then lowest id.
    pub sandboxes: Vec<SandboxStatus>,
    /// Instances of containers; of each container the newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodRuntimeStatus {
    /// The newest instance of container `name`.
    #[must_use]
    pub fn newest_instance(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Instances of container `name`, newest first.
    pub fn container_instances<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = &'a ContainerStatus> {
        self.containers.iter().filter(move |c| c.name == name)
    }

    /// Returns true if a part of the pod runs: a READY sandbox or a running container.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.sandboxes
            .iter()
            .any(|s| s.state == SandboxState::Ready)
            || self.has_running_container()
    }

    /// Returns true if a container runs.
    #[must_use]
    pub fn has_running_container(&self) -> bool {
        self.containers
            .iter()
            .any(|c| c.state == ContainerState::Running)
    }
}

/// An image in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredImage {
    /// Id: `sha256:` and the digest of the image configuration.
    pub id: String,
    /// Tagged references, normalised (`docker.io/library/busybox:1.36`).
    pub repo_tags: Vec<String>,
    /// Digested references.
    pub repo_digests: Vec<String>,
    /// Bytes on disk, unpacked.
    pub size_bytes: u64,
    /// Numeric user of the image, if numeric.
    pub uid: Option<i64>,
    /// User name of the image, if not numeric.
    pub username: String,
    /// Never garbage-collected.
    pub pinned: bool,
    /// Stop signal as its builder wrote it; empty if there is none, or it is not known here.
    pub stop_signal: String,
}

/// Word in the error of a container whose image volume cannot be mounted. Source: cri-api `pkg/errors`.
pub const IMAGE_VOLUME_FAILED: &str = "ImageVolumeMountFailed";

/// Signals that stop a container, CRI's `EvictionSignal` by place, which begins with 1; behind them come real-time signals.
pub const STOP_SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
const SIGRTMIN: i32 = 35;
const SIGRTMAX: i32 = 65;

/// CRI's number of a stop signal, as a pod names it; 0: there is none of that name.
#[must_use]
pub fn stop_signal_number(name: &str) -> i32 {
    (1..=SIGRTMAX)
        .find(|number| stop_signal_of_number(*number).as_deref() == Some(name))
        .unwrap_or(0)
}

/// Name of the stop signal with that number of CRI; `None` if there is none.
#[must_use]
pub fn stop_signal_of_number(number: i32) -> Option<String> {
    match number {
        SIGRTMIN => Some("SIGRTMIN".into()),
        SIGRTMAX => Some("SIGRTMAX".into()),
        36..=50 => Some(format!("SIGRTMIN+{}", number - SIGRTMIN)),
        51..=64 => Some(format!("SIGRTMAX-{}", SIGRTMAX - number)),
        _ => {
            let place = usize::try_from(number).ok()?.checked_sub(1)?;
            STOP_SIGNALS.get(place).map(|name| (*name).into())
        }
    }
}

/// Returns true for the name of a stop signal as images write it: `SIGTERM`, `term`, `15`.
#[must_use]
pub fn is_stop_signal(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let by_number = text.parse::<u8>().is_ok_and(|n| (1..=64).contains(&n));
    is_number && by_number || stop_signal_name(text).is_some()
}

/// Name of a stop signal as pods write it, from that of an image; `None` for a number, and for what is no signal.
#[must_use]
pub fn stop_signal_name(text: &str) -> Option<String> {
    let name = text.to_ascii_uppercase();
    let name = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name));
    (stop_signal_number(&name) > 0).then_some(name)
}

/// Credential for a registry. The fields that are set decide its use.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AuthConfig {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
    /// Base64 of `user:password`; counts where the two above are empty.
    pub auth: String,
    /// A refresh token, to be exchanged for an access token.
    pub identity_token: String,
    /// An access token, sent as it is.
    pub registry_token: String,
}

/// Says which fields are set, never what is in them.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("user", &!(self.username.is_empty() && self.auth.is_empty()))
            .field("identity_token", &!self.identity_token.is_empty())
            .field("registry_token", &!self.registry_token.is_empty())
            .finish()
    }
}

/// A condition of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// Set if the condition holds.
    pub ok: bool,
    /// CamelCase reason when it does not.
    pub reason: String,
    /// Text for people: what is wrong and how to mend it.
    pub message: String,
}

/// Answer of the runtime's status call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Pods can be run.
    pub runtime_ready: RuntimeCondition,
    /// Pods can have a network.
    pub network_ready: RuntimeCondition,
    /// Running containers are known and can be stopped even while `runtime_ready` is false; only new ones have to wait.
    pub can_stop_containers: bool,
}

/// Disk use of the image store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsInfo {
    /// Bytes of the file system.
    pub capacity_bytes: u64,
    /// Bytes available.
    pub available_bytes: u64,
    /// Bytes free, those kept for root included.
    pub free_bytes: u64,
    /// Inodes of the file system.
    pub inodes: u64,
    /// Inodes free.
    pub inodes_free: u64,
    /// Set if it is mounted read-only.
    pub read_only: bool,
}

/// Name and version of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// Name, which is also the prefix of container ids in the API (`picolet`, `containerd`).
    pub name: String,
    /// Version (`0.1.0+runc-1.1.5`).
    pub version: String,
}

/// Reason of a container that ended for want of memory.
pub const OOM_KILLED: &str = "OOMKilled";

/// Handler of pods without a RuntimeClass.
pub const DEFAULT_HANDLER: &str = "";

/// Features of one RuntimeClass handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandlerCapabilities {
    /// Name of the handler, or [`DEFAULT_HANDLER`].
    pub name: String,
    /// Read-only mounts can be read-only with all that is mounted below them.
    pub recursive_read_only_mounts: bool,
    /// Pods can have user namespaces.
    pub user_namespaces: UserNamespaceSupport,
}

/// Answer to the question whether pods can have user namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserNamespaceSupport {
    /// Pods of the handler can have user namespaces.
    Works,
    /// Pods of the handler cannot have them: the text says what is missing.
    Lacks(String),
}

impl Default for UserNamespaceSupport {
    fn default() -> Self {
        Self::Lacks("the runtime does not support user namespaces".into())
    }
}

/// Features of a backend. They may change when a backend is replaced: ask anew each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCapabilities {
    /// Handlers, sorted by name. What is not listed can do nothing of it.
    pub handlers: Vec<HandlerCapabilities>,
    /// `supplementalGroupsPolicy: Strict` is kept.
    pub supplemental_groups_policy: bool,
    /// Resources of a running container can be changed.
    pub live_resource_updates: bool,
    /// Usage of pods and containers is told. Where not, there are no figures of them.
    pub container_stats: bool,
}

impl RuntimeCapabilities {
    /// Returns true if the handler of this name can make mounts read-only with all mounts below them.
    #[must_use]
    pub fn supports_recursive_read_only(&self, handler: &str) -> bool {
        let mut all = self.handlers.iter();
        all.any(|h| h.name == handler && h.recursive_read_only_mounts)
    }

    /// Judges whether pods of the handler of this name can have user namespaces.
    #[must_use]
    pub fn judge_user_namespaces(&self, handler: &str) -> UserNamespaceSupport {
        let mut all = self.handlers.iter();
        let found = all.find(|h| h.name == handler);
        found.map(|h| h.user_namespaces.clone()).unwrap_or_default()
    }
}

/// Outcome of an exec that was waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub exit_code: i32,
    /// Standard output, cut at the caller's limit.
    pub stdout: Vec<u8>,
    /// Standard error, cut likewise.
    pub stderr: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_stop_signals() {
        // STS-01 STS-02
        for number in 1..=65 {
            let name = stop_signal_of_number(number).expect("a signal");
            assert_eq!(stop_signal_number(&name), number, "{name}");
        }
        for number in [i32::MIN, -1, 0, 66] {
            assert_eq!(stop_signal_of_number(number), None, "{number}");
        }
        for (text, name) in [
            ("SIGTERM", Some("SIGTERM")),
            ("term", Some("SIGTERM")),
            ("rtmin+3", Some("SIGRTMIN+3")),
            ("15", None),
            ("SIGFOO", None),
            ("RTMIN+03", None),
        ] {
            assert_eq!(stop_signal_name(text).as_deref(), name, "{text}");
        }
    }

    #[test]
    fn stop_signals_of_images() {
        // KILL-11
        for (text, known) in [
            ("SIGTERM", true),
            ("term", true),
            ("sigQuit", true),
            ("SIGIOT", true),
            ("9", true),
            ("64", true),
            ("RTMIN+3", true),
            ("SIGRTMAX-14", true),
            ("", false),
            ("SIG", false),
            ("SIGFOO", false),
            ("SIGSIGTERM", false),
            ("0", false),
            ("65", false),
            ("-1", false),
            ("+9", false),
            ("SIG9", false),
            ("SIGRTMIN+16", false),
            ("SIGRTMIN++5", false),
            ("SIGRTMIN+05", false),
            ("SIGRTMAX-+3", false),
            ("SIGRTMIN+0", false),
            ("SIGRTMIN+99", false),
            (" SIGTERM", false),
        ] {
            assert_eq!(is_stop_signal(text), known, "{text:?}");
        }
    }
}
