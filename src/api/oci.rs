//! OCI formats: runtime configuration (`config.json`), image manifest, index and configuration. Data only.
//!
//! - Written, never read: [`Spec`] and what it holds, limited to what a Linux container of a pod needs.
//! - Read, never written: [`Index`], [`Manifest`], [`ImageConfig`]. Docker's own media types have the same shape.
//! - Both: [`SeccompFilter`], because a `Localhost` profile is a file of that type.
//! - [`SpecInput`] is what the direct backend gathers for `logic::oci::container_spec`; [`PodCgroup`] is
//!   what `logic::cgroup` decides and `crate::cgroup` writes.
//!
//! Source: opencontainers/runtime-spec `config.md`, `config-linux.md` (1.0.2); opencontainers/image-spec (1.1).

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::PodError;
use super::cri::{ContainerConfig, ContainerMount as BindMount, LinuxResources, SandboxConfig};

/// Version of the runtime specification that [`Spec`] follows.
pub const SPEC_VERSION: &str = "1.0.2";

macro_rules! written {
    ($(#[$m:meta])* $name:ident { $($(#[$fm:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($(#[$fm])* pub $field: $ty),* }
    };
}

written!(
    /// `config.json` of a bundle.
    Spec {
        /// [`SPEC_VERSION`].
        oci_version: String,
        /// Process of the container.
        process: Process,
        /// Root file system of the container.
        root: Root,
        /// Mounts, in the order they are made.
        mounts: Vec<Mount>,
        /// Notes for runtimes that look at them (crun, kata).
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        annotations: BTreeMap<String, String>,
        /// Programs that the runtime calls, by when: `prestart`, `createRuntime`, …
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        hooks: BTreeMap<Box<str>, Vec<Hook>>,
        /// Linux part.
        linux: Linux,
    }
);

written!(
    /// The container's init process, or a process to exec (the same type is the input of `exec --process`).
    Process {
        /// Set if the process gets a terminal.
        #[serde(skip_serializing_if = "core::ops::Not::not")]
        terminal: bool,
        /// Ids it runs as.
        user: User,
        /// Program and arguments, at least one.
        args: Vec<String>,
        /// `NAME=value`, each name once.
        env: Vec<String>,
        /// Absolute path.
        cwd: String,
        /// Capability sets.
        #[serde(skip_serializing_if = "Option::is_none")]
        capabilities: Option<Capabilities>,
        /// Limits; none means those of the runtime process.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        rlimits: Vec<Rlimit>,
        /// Sets no_new_privs.
        #[serde(skip_serializing_if = "core::ops::Not::not")]
        no_new_privileges: bool,
        /// Name of a loaded profile.
        #[serde(skip_serializing_if = "String::is_empty")]
        apparmor_profile: String,
        /// −1000..=1000.
        #[serde(skip_serializing_if = "Option::is_none")]
        oom_score_adj: Option<i32>,
        /// SELinux label of the process.
        #[serde(skip_serializing_if = "String::is_empty")]
        selinux_label: String,
    }
);

written!(
    /// Ids of a process.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups, sorted, each once.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        additional_gids: Vec<u32>,
    }
);

written!(
    /// Capability sets, `CAP_…` names, sorted.
    Capabilities {
        /// Upper bound.
        bounding: Vec<String>,
        /// In force.
        effective: Vec<String>,
        /// Kept over execve by file capabilities; always empty (CVE-2022-24769).
        #[serde(skip_serializing_if = "Vec::is_empty")]
        inheritable: Vec<String>,
        /// May be raised.
        permitted: Vec<String>,
        /// Kept over execve; always empty (RTM-10).
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ambient: Vec<String>,
    }
);

written!(
    /// A resource limit of a process.
    Rlimit {
        /// `RLIMIT_NOFILE`, …
        #[serde(rename = "type")]
        kind: String,
        /// Hard limit.
        hard: u64,
        /// Soft limit.
        soft: u64,
    }
);

written!(
    /// Root file system.
    Root {
        /// Absolute path.
        path: String,
        /// Read-only.
        #[serde(skip_serializing_if = "core::ops::Not::not")]
        readonly: bool,
    }
);

written!(
    /// A mount.
    Mount {
        /// Absolute path in the container.
        destination: String,
        /// File system type.
        #[serde(rename = "type")]
        kind: String,
        /// Device or host path.
        source: String,
        /// Options, as mount(8) words them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        options: Vec<String>,
        /// Users that own what is mounted: ids on the disk, and the ids of the host that they are shown as.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        uid_mappings: Vec<IdMapping>,
        /// Groups, likewise.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        gid_mappings: Vec<IdMapping>,
    }
);

written!(
    /// Ids in a row, in a user namespace or on a disk, and the ids of the host that they are.
    IdMapping {
        /// First id in the namespace or on the disk.
        #[serde(rename = "containerID")]
        container_id: u32,
        /// First id of the host.
        #[serde(rename = "hostID")]
        host_id: u32,
        /// Number of ids.
        size: u32,
    }
);

written!(
    /// A program that the runtime calls.
    Hook {
        /// Absolute path.
        path: String,
        /// Arguments, the program's name first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        args: Vec<String>,
        /// `NAME=value`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        env: Vec<String>,
        /// Seconds after which it is killed, at least one.
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout: Option<u32>,
    }
);

written!(
    /// Linux part of the configuration.
    Linux {
        /// Namespaces to make or join; those not listed are the runtime's own.
        namespaces: Vec<Namespace>,
        /// Users of the user namespace, if one is joined.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        uid_mappings: Vec<IdMapping>,
        /// Groups of the user namespace.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        gid_mappings: Vec<IdMapping>,
        /// Device nodes beside the default ones.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        devices: Vec<OciDevice>,
        /// Cgroup of the container, absolute within the hierarchy.
        #[serde(skip_serializing_if = "String::is_empty")]
        cgroups_path: String,
        /// Limits.
        resources: Resources,
        /// `rprivate`, `rslave`, `rshared`; empty for the runtime's default.
        #[serde(skip_serializing_if = "String::is_empty")]
        rootfs_propagation: String,
        /// Seccomp filter.
        #[serde(skip_serializing_if = "Option::is_none")]
        seccomp: Option<SeccompFilter>,
        /// Paths hidden from the container.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        masked_paths: Vec<String>,
        /// Paths made read-only.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        readonly_paths: Vec<String>,
        /// SELinux label of mounts.
        #[serde(skip_serializing_if = "String::is_empty")]
        mount_label: String,
    }
);

written!(
    /// A namespace.
    Namespace {
        /// `pid`, `network`, `ipc`, `uts`, `user`, `mount`, `cgroup`.
        #[serde(rename = "type")]
        kind: String,
        /// File of a namespace to join; empty makes a new one.
        #[serde(skip_serializing_if = "String::is_empty")]
        path: String,
    }
);

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OciDevice {
    /// `c`, `b` or `p`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Absolute path in the container.
    pub path: String,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Permission bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// Owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

written!(
    /// Cgroup limits.
    Resources {
        /// Device rules; later ones win.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        devices: Vec<DeviceRule>,
        /// Memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<Memory>,
        /// CPU.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<Cpu>,
        /// Number of tasks.
        #[serde(skip_serializing_if = "Option::is_none")]
        pids: Option<Pids>,
        /// Huge pages, one entry per page size.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hugepage_limits: Vec<HugepageLimit>,
        /// Raw cgroup v2 files.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        unified: BTreeMap<String, String>,
    }
);

written!(
    /// A rule of the device cgroup.
    DeviceRule {
        /// Allow or deny.
        allow: bool,
        /// `c`, `b`, or empty for both.
        #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
        kind: String,
        /// Major number, `None` for all.
        #[serde(skip_serializing_if = "Option::is_none")]
        major: Option<i64>,
        /// Minor number, `None` for all.
        #[serde(skip_serializing_if = "Option::is_none")]
        minor: Option<i64>,
        /// Letters of `rwm`.
        access: String,
    }
);

written!(
    /// Memory limits, bytes.
    Memory {
        /// Memory.
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<i64>,
        /// Memory plus swap.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<i64>,
        /// Of an update: refuse a limit that is not above the use.
        #[serde(skip_serializing_if = "Option::is_none")]
        check_before_update: Option<bool>,
    }
);

written!(
    /// CPU limits.
    Cpu {
        /// Relative weight, 2..=262144.
        #[serde(skip_serializing_if = "Option::is_none")]
        shares: Option<u64>,
        /// Microseconds in each period.
        #[serde(skip_serializing_if = "Option::is_none")]
        quota: Option<i64>,
        /// Microseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        period: Option<u64>,
        /// Processors, such as `0-1,3`.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpus: Option<String>,
    }
);

written!(
    /// Task limit.
    Pids {
        /// Tasks.
        limit: i64,
    }
);

written!(
    /// Limit of one huge page size.
    HugepageLimit {
        /// `2MB`.
        page_size: String,
        /// Bytes.
        limit: u64,
    }
);

/// A seccomp filter: the first rule that matches a call decides, else the default action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeccompFilter {
    /// `SCMP_ACT_…`.
    pub default_action: String,
    /// errno of the default action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    /// `SCMP_ARCH_…` names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// `SECCOMP_FILTER_FLAG_…` names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Socket of a user-space notification agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub listener_path: String,
    /// Data for that agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub listener_metadata: String,
    /// Rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub syscalls: Vec<SeccompRule>,
}

/// A rule: these calls with these arguments get this action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeccompRule {
    /// Calls. Names that the runtime does not know are skipped by it.
    pub names: Vec<String>,
    /// `SCMP_ACT_…`.
    pub action: String,
    /// errno of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    /// All must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<SeccompArg>,
}

/// A condition on one argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeccompArg {
    /// 0..=5.
    pub index: u32,
    /// Operand, or mask of `SCMP_CMP_MASKED_EQ`.
    pub value: u64,
    /// Value of a masked comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub value_two: u64,
    /// `SCMP_CMP_…`.
    pub op: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Ids that a container's process gets, after names were looked up in its root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, sorted, each once.
    pub additional_gids: Vec<u32>,
}

/// Everything that the direct backend gathers about a container before it generates the configuration.
#[derive(Clone, Debug)]
pub struct SpecInput<'a> {
    /// Id of the container, for annotations.
    pub container_id: &'a str,
    /// Id of the sandbox, for annotations.
    pub sandbox_id: &'a str,
    /// The container that the agent asked for.
    pub container: &'a ContainerConfig,
    /// The sandbox it asked for.
    pub sandbox: &'a SandboxConfig,
    /// `config` of the image.
    pub image: &'a ImageProcess,
    /// Result of `logic::oci::resolve_user`.
    pub user: &'a ResolvedUser,
    /// Files and namespaces of the sandbox.
    pub paths: &'a SandboxPaths,
    /// Mounted root file system, absolute.
    pub rootfs: &'a str,
    /// Cgroup of the container, absolute within the hierarchy: below `sandbox.cgroup_parent`.
    pub cgroups_path: &'a str,
    /// Directories that stand for the image's `VOLUME`s; one that the container mounts over is left out.
    pub image_volumes: &'a [BindMount],
    /// The decoded profile file, when the container asks for `SecurityProfile::Localhost`.
    pub seccomp_file: Option<&'a SeccompFilter>,
    /// Nodes of the container's devices, in their order: path in the container, owner and mode of the machine's node.
    pub devices: &'a [OciDevice],
    /// All nodes of the machine as they are now, if the container is privileged.
    pub host_devices: &'a [OciDevice],
    /// The loaded AppArmor profile that `RuntimeDefault` and `Unset` stand for; empty if there is none.
    pub apparmor_default: &'a str,
    /// The machine.
    pub host: &'a HostFacts,
}

/// Makes a [`Spec`]: the decision (`logic::oci::container_spec`) as the backend receives it. The error says what
/// cannot be honoured; repeating the call unchanged is useless.
pub type SpecFn = fn(&SpecInput<'_>) -> Result<Spec, PodError>;

/// Files below `/proc`, relative to it, that something else may be mounted on: those that lxcfs serves. Runtimes and
/// programs take everything else there for the kernel's word.
///
/// Source: runc `checkProcMount`.
const PROC_MOUNTS: [&str; 10] = [
    "cpuinfo",
    "diskstats",
    "loadavg",
    "meminfo",
    "slabinfo",
    "stat",
    "swaps",
    "sys/crypto/fips_enabled",
    "sys/kernel/ns_last_pid",
    "uptime",
];

/// Judges whether something may be mounted at `path` of a container: not below `/proc`, but for a few files. `/sys` is free,
/// for boards mount parts of it.
#[must_use]
pub fn may_mount_at(path: &str) -> bool {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    match parts.split_first() {
        Some((&"proc", rest)) => rest.is_empty() || PROC_MOUNTS.contains(&&*rest.join("/")),
        _ => true,
    }
}

/// Compares SELinux labels (`logic::security::is_same_selinux_label`): the one asked for, and the one that a process has.
pub type SameLabelFn = fn(&str, &str) -> bool;

/// Decides the ids of a container (`logic::oci::resolve_user`) from: its security settings, `config.User` of the image,
/// and the contents of `/etc/passwd` and `/etc/group` of its root file system (empty if absent).
pub type ResolveUserFn =
    fn(&super::cri::LinuxSecurity, &str, &str, &str) -> Result<ResolvedUser, PodError>;

/// Files of a sandbox that its containers share. An empty namespace path means that namespace is the machine's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPaths {
    /// Pinned network namespace; not looked at when the sandbox has the machine's.
    pub network_namespace: String,
    /// Pinned IPC namespace; not looked at when the sandbox has the machine's.
    pub ipc_namespace: String,
    /// Pinned UTS namespace; not looked at when the sandbox has the machine's network.
    pub uts_namespace: String,
    /// Pinned user namespace; not looked at when the sandbox has the machine's.
    pub user_namespace: String,
    /// PID namespace to join for `NamespaceMode::Pod` and `Target`: that of the sandbox's init or of the target.
    pub pid_namespace: String,
    /// Directory bound at `/dev/shm`: the sandbox's tmpfs, or the machine's with hostIPC.
    pub shm: String,
    /// File bound at `/etc/hostname`; empty for none.
    pub hostname: String,
    /// File bound at `/etc/resolv.conf`; empty for none.
    pub resolv_conf: String,
    /// File bound at `/etc/hosts` when the container mounts none; empty for none.
    pub hosts: String,
}

/// Features of the machine, read once at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// `x86_64`, `x86`, `aarch64`, `arm`, `riscv64`, …: `std::env::consts::ARCH`.
    pub arch: String,
    /// Kernel (major, minor), for `kernel` conditions of the seccomp profile.
    pub kernel: (u32, u32),
    /// The machine's hostname, for `HOSTNAME` of host-network pods.
    pub hostname: String,
    /// Unified hierarchy only.
    pub cgroup_v2: bool,
    /// Controllers that container cgroups can use (`cpu`, `memory`, `pids`, `hugetlb`, …), sorted.
    pub controllers: Vec<String>,
    /// Capabilities that the agent itself may pass on, `CAP_…`. Empty: not known, nothing is withheld.
    pub capabilities: Vec<String>,
    /// Lowest oom_score_adj that may be set: its own when it lacks CAP_SYS_RESOURCE, else −1000.
    pub min_oom_score_adj: i32,
    /// Limits to give every container; empty: those of the runtime process.
    pub rlimits: Vec<Rlimit>,
    /// Existing `/sys/devices/system/cpu/cpu*/thermal_throttle`.
    pub thermal_throttle: Vec<String>,
    /// The kernel enforces AppArmor.
    pub apparmor: bool,
    /// SELinux is enabled; without it labels are left out.
    pub selinux: bool,
    /// The kernel has seccomp filters.
    pub seccomp: bool,
}

/// A pod's cgroup: its path and its values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodCgroup {
    /// Absolute within the hierarchy, `cgroupRoot` included (`/kubepods/burstable/pod<uid>`).
    pub path: String,
    /// Values to write.
    pub values: LinuxResources,
}

macro_rules! read {
    ($(#[$m:meta])* $name:ident $(($case:literal))? { $($(#[$fm:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default $(, rename_all = $case)?)]
        pub struct $name { $(#[serde(deserialize_with = "nullable")] $(#[$fm])* pub $field: $ty),* }
    };
}

/// Go writes an absent list, map or object as `null`.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

read!(
    /// Points at a blob.
    Descriptor ("camelCase") {
        /// Kind of blob.
        media_type: String,
        /// `sha256:…`.
        digest: String,
        /// Bytes.
        size: u64,
        /// In an index: the machine it is for.
        platform: Option<Platform>,
        /// Annotations (`org.opencontainers.image.ref.name`, `io.containerd.image.name`).
        annotations: BTreeMap<String, String>,
    }
);

read!(
    /// Machine an image is for.
    Platform {
        /// Go's name: `amd64`, `arm64`, `arm`, `riscv64`, …
        architecture: String,
        /// `linux`.
        os: String,
        /// `v6`, `v7`, `v8`; often empty.
        variant: String,
    }
);

read!(
    /// Image index, or Docker manifest list.
    Index ("camelCase") {
        /// 2.
        schema_version: u32,
        /// Kind; may be empty in an OCI layout.
        media_type: String,
        /// Manifests of the index: an entry for each platform or tag.
        manifests: Vec<Descriptor>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
    }
);

read!(
    /// Image manifest, OCI or Docker schema 2.
    Manifest ("camelCase") {
        /// 2.
        schema_version: u32,
        /// Kind; may be empty.
        media_type: String,
        /// Kind of an artifact that is no image; before 1.1 of the specification the type of its configuration says
        /// that.
        artifact_type: String,
        /// The [`ImageConfig`] blob, whose digest is the image id.
        config: Descriptor,
        /// Lowest layer first.
        layers: Vec<Descriptor>,
        /// Annotations.
        annotations: BTreeMap<String, String>,
    }
);

read!(
    /// Image configuration; `history` is not read.
    ImageConfig {
        /// Go's name of the architecture.
        architecture: String,
        /// `linux`.
        os: String,
        /// Architecture variant.
        variant: String,
        /// RFC 3339, as written.
        created: String,
        /// Process of the image: command, environment, user.
        config: ImageProcess,
        /// Layers of the image.
        rootfs: RootFs,
    }
);

read!(
    /// Layers of an image.
    RootFs {
        /// `layers`.
        #[serde(rename = "type")]
        kind: String,
        /// Digests of the unpacked layers, lowest first.
        diff_ids: Vec<String>,
    }
);

read!(
    /// `config` of an image configuration: how to run it.
    ImageProcess ("PascalCase") {
        /// `user`, `uid`, `user:group` or `uid:gid`.
        user: String,
        /// `port/protocol`, declared only.
        exposed_ports: SortedKeys,
        /// `NAME=value`.
        env: Vec<String>,
        /// Program and leading arguments.
        entrypoint: OciCommand,
        /// Default arguments.
        cmd: OciCommand,
        /// Paths that want a directory of their own.
        volumes: SortedKeys,
        /// Working directory.
        working_dir: String,
        /// Labels.
        labels: BTreeMap<String, String>,
        /// `SIGTERM`, `TERM`, `15`; empty means SIGTERM.
        stop_signal: String,
    }
);

/// Keys of a JSON object whose values carry nothing, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SortedKeys(pub Vec<String>);

impl Serialize for SortedKeys {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|name| (name, BTreeMap::<(), ()>::new())))
    }
}

impl<'de> Deserialize<'de> for SortedKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, de::IgnoredAny>::deserialize(deserializer)
            .map(|map| Self(map.into_keys().collect()))
    }
}

/// Words of a command line. Old builders wrote a single word as a plain string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OciCommand(pub Vec<String>);

impl<'de> Deserialize<'de> for OciCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OciCommandVisitor;
        impl<'de> de::Visitor<'de> for OciCommandVisitor {
            type Value = OciCommand;
            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a string or a list of strings")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<OciCommand, E> {
                Ok(OciCommand(vec![word.to_owned()]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<OciCommand, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = seq.next_element()? {
                    words.push(word);
                }
                Ok(OciCommand(words))
            }
        }
        deserializer.deserialize_any(OciCommandVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_config_as_docker_writes_it() {
        let config: ImageConfig = serde_json::from_str(
            r#"{"architecture":"arm","variant":"v7","os":"linux","created":"2024-01-01T00:00:00Z",
                "config":{"Hostname":"","User":"1000:50","ExposedPorts":{"80/tcp":{}},"AttachStdin":false,
                "Env":["PATH=/bin"],"Entrypoint":null,"Cmd":"/run me","Volumes":{"/data":{},"/b":null},
                "WorkingDir":"/srv","Labels":null,"StopSignal":"SIGQUIT","OnBuild":null},
                "rootfs":{"type":"layers","diff_ids":["sha256:aa","sha256:bb"]},"history":[{"created":"x"}]}"#,
        )
        .expect("docker config");
        assert_eq!(config.config.cmd.0, ["/run me"]);
        assert_eq!(config.config.entrypoint.0, Vec::<String>::new());
        assert_eq!(config.config.volumes.0, ["/b", "/data"]);
        assert_eq!(config.config.exposed_ports.0, ["80/tcp"]);
        assert_eq!(config.config.stop_signal, "SIGQUIT");
        assert_eq!(config.config.user, "1000:50");
        assert_eq!(config.rootfs.diff_ids.len(), 2);
    }

    #[test]
    fn image_config_of_scratch() {
        for text in ["{}", r#"{"config":null,"rootfs":null}"#, r#"{"config":{}}"#] {
            let config: ImageConfig = serde_json::from_str(text).expect(text);
            assert_eq!(config, ImageConfig::default(), "{text}");
        }
    }

    #[test]
    fn index_and_manifest() {
        let index: Index = serde_json::from_str(
            r#"{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",
                "digest":"sha256:00","size":7,"platform":{"architecture":"arm64","os":"linux","variant":"v8"},
                "annotations":null}]}"#,
        )
        .expect("index");
        let platform = index.manifests[0].platform.as_ref().expect("platform");
        assert_eq!(
            (platform.architecture.as_str(), platform.variant.as_str()),
            ("arm64", "v8")
        );
        let manifest: Manifest = serde_json::from_str(
            r#"{"schemaVersion":2,"config":{"digest":"sha256:11","size":3},"layers":[{"digest":"sha256:22","size":9}]}"#,
        )
        .expect("manifest");
        assert_eq!(manifest.layers[0].size, 9);
    }

    #[test]
    fn empty_parts_are_not_written() {
        let text = serde_json::to_string(&Linux::default()).expect("json");
        assert_eq!(text, r#"{"namespaces":[],"resources":{}}"#);
    }
}
