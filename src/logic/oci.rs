//! OCI configuration of one container, for the backend that calls an OCI runtime itself.
//!
//! Everything that needs the machine (resolving names and symlinks, finding devices, reading a profile file, checking
//! that a bind source exists) has been done by the caller and comes in as data.
//!
//! Invariants: nothing is inherited from the agent's own environment; a setting that cannot be honoured is an error,
//! never left out, unless the agent itself added it (device defaults, huge page zeros).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use crate::api::PodError;
use crate::api::cri::{
    ContainerMount as BindMount, LinuxResources, MountPropagation, NamespaceMode, SecurityProfile,
    device_node_owner,
};
use crate::api::oci::{
    Capabilities, Cpu, DeviceRule, HostFacts, HugepageLimit, IdMapping, ImageProcess, Linux,
    Memory, Mount, Namespace, OciDevice, Pids, Process, Resources, Root, SPEC_VERSION,
    SeccompFilter, Spec, SpecInput, User, may_mount_at,
};
use crate::api::order::{GatherExt, OrderExt};
use crate::{capabilities, seccomp};

/// `PATH` of a container whose image and spec set none (RTM-08).
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Paths hidden unless procMount is `Unmasked` (SEC-08), beside the machine's `thermal_throttle` directories.
pub const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Paths made read-only unless procMount is `Unmasked` (SEC-08).
pub const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Character devices that every container may use: major, minor (`None`: all), letters.
/// Source: those that an OCI runtime must supply (`config-linux.md`, "Default Devices"), and terminals.
const ALLOWED_DEVICES: [(&str, Option<i64>, Option<i64>, &str); 10] = [
    ("c", None, None, "m"),
    ("b", None, None, "m"),
    ("c", Some(1), Some(3), "rwm"), // null
    ("c", Some(1), Some(5), "rwm"), // zero
    ("c", Some(1), Some(7), "rwm"), // full
    ("c", Some(1), Some(8), "rwm"), // random
    ("c", Some(1), Some(9), "rwm"), // urandom
    ("c", Some(5), Some(0), "rwm"), // tty
    ("c", Some(5), Some(2), "rwm"), // ptmx
    ("c", Some(136), None, "rwm"),  // pts
];

/// Makes `config.json` of one container.
///
/// - Errors: what cannot be honoured (nothing to run, privileged container in a plain sandbox, unknown capability,
///   profile or controller that the machine lacks). Repeating the call unchanged is useless.
/// - Source: runtime-spec 1.0.2; containerd's practice where CRI is silent (`spec/runtime.md` RTM-08 to RTM-12).
pub fn container_spec(input: &SpecInput<'_>) -> Result<Spec, PodError> {
    let security = &input.container.security;
    if security.privileged && !input.sandbox.privileged {
        return Err(PodError::Spec(
            "a privileged container needs a sandbox that was made privileged".into(),
        ));
    }
    let capabilities = capabilities::effective_capabilities(security, &input.host.capabilities)?;
    let seccomp = seccomp_filter(input, &capabilities)?;
    let unmasked = security.privileged || security.unmasked_proc;
    let mounts = oci_mounts(input)?;
    let users = id_mappings(input);
    Ok(Spec {
        oci_version: SPEC_VERSION.into(),
        process: oci_process(input, capabilities)?,
        root: Root {
            path: input.rootfs.into(),
            readonly: security.readonly_rootfs,
        },
        mounts,
        annotations: oci_annotations(input),
        hooks: BTreeMap::new(),
        linux: Linux {
            namespaces: oci_namespaces(input)?,
            uid_mappings: users.clone(),
            gid_mappings: users,
            devices: device_nodes(input),
            cgroups_path: input.cgroups_path.into(),
            resources: oci_resources(input)?,
            rootfs_propagation: rootfs_propagation(&input.container.mounts).into(),
            seccomp,
            masked_paths: if unmasked {
                Vec::new()
            } else {
                let fixed = MASKED_PATHS.iter().map(|&path| path.into());
                fixed
                    .chain(input.host.thermal_throttle.iter().cloned())
                    .collect()
            },
            readonly_paths: if unmasked {
                Vec::new()
            } else {
                READONLY_PATHS.iter().map(|&path| path.into()).collect()
            },
            mount_label: String::new(),
        },
    })
}

fn oci_process(input: &SpecInput<'_>, capabilities: Vec<String>) -> Result<Process, PodError> {
    let container = input.container;
    let security = &container.security;
    let cwd = [&container.working_dir, &input.image.working_dir]
        .into_iter()
        .find(|dir| !dir.is_empty())
        .map_or("/", |dir| dir.as_str());
    if !cwd.starts_with('/') {
        return Err(PodError::Spec(format!(
            "working directory {cwd:?} is not absolute"
        )));
    }
    Ok(Process {
        terminal: container.tty,
        user: User {
            uid: input.user.uid,
            gid: input.user.gid,
            additional_gids: input.user.additional_gids.clone(),
        },
        args: process_args(&container.command, &container.args, input.image)?,
        env: oci_environment(input),
        cwd: cwd.into(),
        capabilities: Some(Capabilities {
            bounding: capabilities.clone(),
            effective: capabilities.clone(),
            inheritable: Vec::new(),
            permitted: capabilities,
            ambient: Vec::new(),
        }),
        rlimits: input.host.rlimits.clone(),
        no_new_privileges: security.no_new_privs,
        apparmor_profile: apparmor_profile(input)?,
        oom_score_adj: Some(
            container
                .resources
                .oom_score_adj
                .max(input.host.min_oom_score_adj),
        ),
        // Runtimes refuse a label that the kernel would not look at.
        selinux_label: if input.host.selinux {
            security.selinux_label.clone()
        } else {
            String::new()
        },
    })
}

/// Arguments of the container's process: `command` replaces the image's entrypoint and drops its cmd; `args` alone
/// replaces the cmd.
///
/// Errors: neither the pod nor the image names anything to run.
pub fn process_args(
    command: &[String],
    args: &[String],
    image: &ImageProcess,
) -> Result<Vec<String>, PodError> {
    let (program, args) = if !command.is_empty() {
        (command, args)
    } else {
        // `ENTRYPOINT [""]` is how a build clears an inherited entrypoint.
        let entrypoint = match image.entrypoint.0.as_slice() {
            [word] if word.is_empty() => &[],
            words => words,
        };
        let args = if args.is_empty() { &image.cmd.0 } else { args };
        (entrypoint, args)
    };
    if program.is_empty() && args.is_empty() {
        return Err(PodError::Spec(
            "no command specified: neither the container nor its image names one".into(),
        ));
    }
    Ok([program, args].concat())
}

/// `NAME=value` of the defaults, the image and the container, in this order; a later value takes the earlier's place.
fn oci_environment(input: &SpecInput<'_>) -> Vec<String> {
    let hostname = match input.sandbox.hostname.as_str() {
        "" => &input.host.hostname,
        name => name,
    };
    let terminal = input.container.tty.then_some(("TERM", "xterm"));
    let image = input
        .image
        .env
        .iter()
        .filter_map(|entry| entry.split_once('='));
    let container = input
        .container
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let mut place = BTreeMap::new();
    let mut env: Vec<(&str, &str)> = Vec::new();
    for (name, value) in [("PATH", DEFAULT_PATH), ("HOSTNAME", hostname)]
        .into_iter()
        .chain(terminal)
        .chain(image)
        .chain(container)
    {
        let at = *place.entry(name).or_insert(env.len());
        match env.get_mut(at) {
            Some(entry) => entry.1 = value,
            None => env.push((name, value)),
        }
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn apparmor_profile(input: &SpecInput<'_>) -> Result<String, PodError> {
    let (security, host) = (&input.container.security, input.host);
    if security.privileged {
        return Ok(String::new());
    }
    let profile = match &security.apparmor {
        SecurityProfile::Unconfined => return Ok(String::new()),
        SecurityProfile::Unset if host.apparmor => return Ok(input.apparmor_default.into()),
        SecurityProfile::Unset => return Ok(String::new()),
        SecurityProfile::RuntimeDefault => input.apparmor_default,
        SecurityProfile::Localhost(name) => name.as_str(),
    };
    match (host.apparmor, profile) {
        (false, _) => Err(PodError::Node(
            "an AppArmor profile is requested but the kernel does not enforce AppArmor".into(),
        )),
        (true, "") => Err(PodError::Node(
            "the default AppArmor profile is requested but none is loaded".into(),
        )),
        (true, name) => Ok(name.into()),
    }
}

fn seccomp_filter(
    input: &SpecInput<'_>,
    capabilities: &[String],
) -> Result<Option<SeccompFilter>, PodError> {
    let (security, host) = (&input.container.security, input.host);
    if security.privileged || security.seccomp == SecurityProfile::Unconfined {
        return Ok(None);
    }
    if !host.seccomp {
        return Err(PodError::Node(
            "a seccomp profile is requested but the kernel has no seccomp filters".into(),
        ));
    }
    match &security.seccomp {
        SecurityProfile::Unconfined | SecurityProfile::Unset => Ok(None),
        SecurityProfile::RuntimeDefault => Ok(Some(seccomp::runtime_default(
            &host.arch,
            host.kernel,
            capabilities,
        ))),
        SecurityProfile::Localhost(path) => match input.seccomp_file {
            Some(profile) => Ok(Some(profile.clone())),
            None => Err(PodError::Node(format!(
                "seccomp profile {path:?} was not read"
            ))),
        },
    }
}

fn oci_namespaces(input: &SpecInput<'_>) -> Result<Vec<Namespace>, PodError> {
    let security = &input.container.security;
    let modes = security.namespaces;
    let new = |kind: &str| Namespace {
        kind: kind.into(),
        path: String::new(),
    };
    let join = |kind: &str, path: &str| {
        if path.is_empty() {
            // An empty path would make a new namespace where the pod's was meant.
            return Err(PodError::Node(format!(
                "the sandbox has no {kind} namespace to join"
            )));
        }
        Ok(Namespace {
            kind: kind.into(),
            path: path.into(),
        })
    };
    let mut all = Vec::new();
    // The namespaces below belong to it.
    if modes.users.is_some() {
        all.push(join("user", &input.paths.user_namespace)?);
    }
    match modes.pid {
        NamespaceMode::Container => all.push(new("pid")),
        NamespaceMode::Pod | NamespaceMode::Target => {
            all.push(join("pid", &input.paths.pid_namespace)?);
        }
        NamespaceMode::Node => {}
    }
    if modes.ipc != NamespaceMode::Node {
        all.push(join("ipc", &input.paths.ipc_namespace)?);
    }
    if modes.network != NamespaceMode::Node {
        all.push(join("network", &input.paths.network_namespace)?);
        all.push(join("uts", &input.paths.uts_namespace)?);
    }
    all.push(new("mount"));
    if input.host.cgroup_v2 && !security.privileged {
        all.push(new("cgroup"));
    }
    Ok(all)
}

/// Ids of the container's user namespace; none if it has the machine's.
fn id_mappings(input: &SpecInput<'_>) -> Vec<IdMapping> {
    let users = input.container.security.namespaces.users;
    let mapping = users.map(|map| IdMapping {
        container_id: 0,
        host_id: map.host_id,
        size: map.length,
    });
    mapping.into_iter().collect()
}

/// Shows the owners of `mount`, which are plain ids on the disk, as the ids of the container's user namespace.
fn map_owners(mut mount: Mount, users: &[IdMapping]) -> Mount {
    mount.uid_mappings = users.into();
    mount.gid_mappings = users.into();
    mount
}

fn default_mounts(privileged: bool) -> Vec<Mount> {
    let access = if privileged { "rw" } else { "ro" };
    [
        ("/proc", "proc", "proc", "nosuid,noexec,nodev"),
        (
            "/dev",
            "tmpfs",
            "tmpfs",
            "nosuid,strictatime,mode=755,size=65536k",
        ),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
        ),
        ("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
        ("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,"),
        (
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            "nosuid,noexec,nodev,relatime,",
        ),
    ]
    .into_iter()
    .map(|(destination, kind, source, options)| {
        let options = match options.strip_suffix(',') {
            Some(rest) => format!("{rest},{access}"),
            None => options.into(),
        };
        Mount {
            destination: destination.into(),
            kind: kind.into(),
            source: source.into(),
            options: options.split(',').map(Into::into).collect(),
            ..Mount::default()
        }
    })
    .collect()
}

/// Default mounts, then the sandbox's files, image volumes and the container's mounts by depth, so that none hides
/// another. A path that the container mounts itself replaces a default one; `/dev` replaces all below it.
fn oci_mounts(input: &SpecInput<'_>) -> Result<Vec<Mount>, PodError> {
    let container = input.container;
    let own: BTreeSet<&str> = container
        .mounts
        .iter()
        .map(|mount| trim_trailing_slashes(&mount.container_path))
        .gather_items();
    if let Some(bad) = container
        .mounts
        .iter()
        .find(|mount| !mount.container_path.starts_with('/') || mount.host_path.is_empty())
    {
        return Err(PodError::Spec(format!(
            "mount of {:?} at {:?}: both must be absolute paths",
            bad.host_path, bad.container_path
        )));
    }
    let mut mounted = input.image_volumes.iter().chain(&container.mounts);
    if let Some(bad) = mounted.find(|mount| !may_mount_at(&mount.container_path)) {
        return Err(PodError::Spec(format!(
            "nothing can be mounted at {:?}, which is inside /proc",
            bad.container_path
        )));
    }
    let mut all = default_mounts(container.security.privileged);
    all.retain(|mount| {
        let below_dev = mount.destination.starts_with("/dev/") && own.contains("/dev");
        !own.contains(mount.destination.as_str()) && !below_dev
    });
    let mut binds = Vec::new();
    let users = id_mappings(input);
    let read_only = container.security.readonly_rootfs;
    for (path, source, read_only) in [
        ("/etc/hostname", &input.paths.hostname, read_only),
        ("/etc/hosts", &input.paths.hosts, read_only),
        ("/etc/resolv.conf", &input.paths.resolv_conf, read_only),
        ("/dev/shm", &input.paths.shm, false),
    ] {
        if source.is_empty() || own.contains(path) {
            continue;
        }
        let mut mount = bind_to_mount(&BindMount {
            host_path: source.clone(),
            container_path: path.into(),
            read_only,
            ..BindMount::default()
        });
        if path != "/dev/shm" {
            mount = map_owners(mount, &users);
        } else if !users.is_empty() {
            // It is empty and open to all. From another user namespace these flags cannot be taken away.
            let locked = ["nosuid", "nodev", "noexec"].map(Into::into);
            mount.options.extend(locked);
        }
        binds.push(mount);
    }
    // Files of images have their owners mapped below the mount already (UNS-31).
    let volumes = input.image_volumes.iter();
    let volumes =
        volumes.filter(|mount| !own.contains(trim_trailing_slashes(&mount.container_path)));
    binds.extend(volumes.map(bind_to_mount));
    binds.extend(container.mounts.iter().map(|mount| match mount.image {
        Some(_) => bind_to_mount(mount),
        None => map_owners(bind_to_mount(mount), &users),
    }));
    sort_by_depth(&mut binds);
    all.extend(binds);
    Ok(all)
}

/// Sorts mounts so that none hides another; equally deep ones keep their order.
pub(crate) fn sort_by_depth(mounts: &mut [Mount]) {
    mounts.stable_sort_by_key(|mount| {
        let parts = mount.destination.split('/');
        parts.filter(|part| !part.is_empty()).count()
    });
}

/// Removes trailing slashes, so that `/dev/` counts as `/dev`.
pub(crate) fn trim_trailing_slashes(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}

fn bind_to_mount(mount: &BindMount) -> Mount {
    let access = match (mount.read_only, mount.recursive_read_only) {
        (_, true) => "rro",
        (true, false) => "ro",
        (false, false) => "rw",
    };
    let mut options = vec!["rbind", propagation_option(mount.propagation), access];
    if mount.image.is_some() {
        // Programs of the image can run, but its set-user-ID bits and device nodes have no effect.
        options.extend(["nosuid", "nodev"]);
    }
    Mount {
        destination: mount.container_path.clone(),
        kind: "bind".into(),
        source: mount.host_path.clone(),
        options: options.into_iter().map(Into::into).collect(),
        ..Mount::default()
    }
}

const fn propagation_option(mode: MountPropagation) -> &'static str {
    match mode {
        MountPropagation::Private => "rprivate",
        MountPropagation::HostToContainer => "rslave",
        MountPropagation::Bidirectional => "rshared",
    }
}

/// A private root would cut the propagation of the mounts in it: it must be as open as the most open of them.
fn rootfs_propagation(mounts: &[BindMount]) -> &'static str {
    let has = |mode| mounts.iter().any(|mount| mount.propagation == mode);
    if has(MountPropagation::Bidirectional) {
        "rshared"
    } else if has(MountPropagation::HostToContainer) {
        "rslave"
    } else {
        ""
    }
}

fn oci_resources(input: &SpecInput<'_>) -> Result<Resources, PodError> {
    let limits = &input.container.resources;
    check_controllers(limits, input.host)?;
    let has = |controller| has_controller(input.host, controller);
    let quota = limits.cpu_quota_us.filter(|&quota| quota != 0);
    let cpu = Cpu {
        shares: limits.cpu_shares.filter(|_| has("cpu")),
        quota,
        period: limits.cpu_period_us.filter(|_| quota.is_some()),
        cpus: limits.cpuset_cpus.clone(),
    };
    let memory = Memory {
        limit: limits.memory_limit_bytes,
        swap: limits.memory_swap_bytes.filter(|_| has("memory")),
        ..Memory::default()
    };
    let hugepages = limits.hugepage_limits.iter().filter(|_| has("hugetlb"));
    let unified = limits.unified.iter().filter(|(file, _)| {
        let controller = file.split('.').next().unwrap_or_default();
        has(controller)
    });
    Ok(Resources {
        devices: device_rules(input),
        memory: (memory != Memory::default()).then_some(memory),
        cpu: (cpu != Cpu::default()).then_some(cpu),
        pids: limits.pids_limit.map(|limit| Pids { limit }),
        hugepage_limits: hugepages
            .map(|(size, &limit)| HugepageLimit {
                page_size: size.clone(),
                limit,
            })
            .collect(),
        unified: unified
            .map(|(file, value)| (file.clone(), value.clone()))
            .gather_items(),
    })
}

fn has_controller(host: &HostFacts, controller: &str) -> bool {
    host.controllers.is_empty() || host.controllers.iter().any(|have| have == controller)
}

/// Checks that every limit that is asked for has its controller: without it the container must not start.
fn check_controllers(limits: &LinuxResources, host: &HostFacts) -> Result<(), PodError> {
    let quota = limits.cpu_quota_us.is_some_and(|quota| quota != 0);
    for (asked, controller, limit, hint) in [
        (quota, "cpu", "CPU limit", ""),
        (
            limits.memory_limit_bytes.is_some(),
            "memory",
            "memory limit",
            "; many boards need \"cgroup_enable=memory\" on the kernel command line",
        ),
        (limits.pids_limit.is_some(), "pids", "limit of tasks", ""),
        (
            limits.cpuset_cpus.is_some(),
            "cpuset",
            "choice of processors",
            "",
        ),
        (
            limits.hugepage_limits.values().any(|&limit| limit > 0),
            "hugetlb",
            "huge page limit",
            "",
        ),
    ] {
        if asked && !has_controller(host, controller) {
            return Err(PodError::Node(format!(
                "the {limit} cannot be enforced: this machine has no cgroup controller {controller:?}{hint}"
            )));
        }
    }
    Ok(())
}

/// Device nodes that the container has beside those of every container (DEV-41, DEV-43). The container's user can use
/// them, so that it need not be root or belong to a group of the machine.
fn device_nodes(input: &SpecInput<'_>) -> Vec<OciDevice> {
    let (user, container) = (input.user, input.container);
    let all = container.devices.iter().zip(input.devices);
    let given = all.map(|(wanted, node)| {
        let own = (node.uid.unwrap_or(0), node.gid.unwrap_or(0));
        let (uid, gid) = device_node_owner((user.uid, user.gid), own, wanted.gid);
        OciDevice {
            uid: Some(uid),
            gid: Some(gid),
            file_mode: wanted.mode.or(node.file_mode),
            ..node.clone()
        }
    });
    let mut nodes: Vec<OciDevice> = given.collect();
    if container.security.privileged {
        let others = input.host_devices.iter();
        let others = others.filter(|other| !nodes.iter().any(|node| node.path == other.path));
        // The runtime cannot make nodes in directories of devices that come and go.
        let is_live = |path: &str| {
            let mut all = container.live_devices.iter();
            all.any(|live| live.covers_path(path))
        };
        let others = others.filter(|other| !is_live(&other.path));
        let others: Vec<OciDevice> = others.cloned().collect();
        nodes.extend(others);
    }
    nodes
}

fn device_rules(input: &SpecInput<'_>) -> Vec<DeviceRule> {
    let container = input.container;
    let privileged = container.security.privileged;
    let every = |allow| DeviceRule {
        allow,
        access: "rwm".into(),
        ..DeviceRule::default()
    };
    if privileged {
        return vec![every(true)];
    }
    let allowed = ALLOWED_DEVICES.map(|(kind, major, minor, access)| DeviceRule {
        allow: true,
        kind: kind.into(),
        major,
        minor,
        access: access.into(),
    });
    let devices = container.devices.iter().zip(input.devices);
    let given = devices.map(|(wanted, node)| DeviceRule {
        allow: true,
        kind: node.kind.clone(),
        major: Some(node.major),
        minor: Some(node.minor),
        access: wanted.permissions.clone(),
    });
    let all = [every(false)].into_iter();
    all.chain(allowed).chain(given).collect()
}

/// Annotations that pod-aware runtimes (kata, crun's handlers) look for.
fn oci_annotations(input: &SpecInput<'_>) -> BTreeMap<String, String> {
    [
        ("container-type", "container"),
        ("container-id", input.container_id),
        ("container-name", &input.container.name),
        ("image-name", &input.container.user_image),
        ("sandbox-id", input.sandbox_id),
        ("sandbox-name", &input.sandbox.name),
        ("sandbox-namespace", &input.sandbox.namespace),
        ("sandbox-uid", &input.sandbox.uid),
    ]
    .into_iter()
    .map(|(key, value)| (format!("io.kubernetes.cri.{key}"), value.into()))
    .gather_items()
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use super::*;
    use crate::api::cri::{
        self, ContainerConfig, IdMap, LinuxSecurity, MountedImage, NamespaceOptions, SandboxConfig,
    };
    use crate::api::oci::{OciCommand, ResolvedUser, Rlimit, SandboxPaths};

    /// Everything [`SpecInput`] borrows, for a plain pod on a plain machine.
    struct Case {
        container: ContainerConfig,
        sandbox: SandboxConfig,
        image: ImageProcess,
        user: ResolvedUser,
        paths: SandboxPaths,
        volumes: Vec<BindMount>,
        devices: Vec<OciDevice>,
        host_devices: Vec<OciDevice>,
        apparmor_default: &'static str,
        file: Option<SeccompFilter>,
        host: HostFacts,
    }

    impl Case {
        fn new() -> Self {
            Self {
                container: ContainerConfig {
                    name: "app".into(),
                    user_image: "busybox".into(),
                    command: vec!["sh".into()],
                    security: LinuxSecurity {
                        namespaces: NamespaceOptions {
                            pid: NamespaceMode::Container,
                            ..NamespaceOptions::default()
                        },
                        ..LinuxSecurity::default()
                    },
                    ..ContainerConfig::default()
                },
                sandbox: SandboxConfig {
                    name: "web".into(),
                    namespace: "prod".into(),
                    uid: "u-1".into(),
                    hostname: "web".into(),
                    ..SandboxConfig::default()
                },
                image: ImageProcess::default(),
                user: ResolvedUser::default(),
                paths: SandboxPaths {
                    network_namespace: "/run/s/net".into(),
                    ipc_namespace: "/run/s/ipc".into(),
                    uts_namespace: "/run/s/uts".into(),
                    shm: "/run/s/shm".into(),
                    hostname: "/run/s/hostname".into(),
                    resolv_conf: "/run/s/resolv.conf".into(),
                    ..SandboxPaths::default()
                },
                volumes: Vec::new(),
                devices: Vec::new(),
                host_devices: Vec::new(),
                apparmor_default: "",
                file: None,
                host: HostFacts {
                    arch: "aarch64".into(),
                    kernel: (6, 1),
                    hostname: "pi".into(),
                    cgroup_v2: true,
                    min_oom_score_adj: -1000,
                    seccomp: true,
                    ..HostFacts::default()
                },
            }
        }

        fn spec(&self) -> Result<Spec, PodError> {
            container_spec(&SpecInput {
                container_id: "c1",
                sandbox_id: "s1",
                container: &self.container,
                sandbox: &self.sandbox,
                image: &self.image,
                user: &self.user,
                paths: &self.paths,
                rootfs: "/rootfs",
                cgroups_path: "/kubepods/podu-1/c1",
                image_volumes: &self.volumes,
                seccomp_file: self.file.as_ref(),
                devices: &self.devices,
                host_devices: &self.host_devices,
                apparmor_default: self.apparmor_default,
                host: &self.host,
            })
        }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn what_runs() {
        // CFG-18 RTM-08
        for (name, command, args, entrypoint, cmd, want) in [
            ("image defaults", "", "", "ep", "a b", Ok("ep a b")),
            ("cmd alone", "", "", "", "sh -c", Ok("sh -c")),
            ("command drops cmd", "x", "", "ep", "a", Ok("x")),
            ("command and args", "x", "y z", "ep", "a", Ok("x y z")),
            ("args alone", "", "y", "ep", "a", Ok("ep y")),
            ("args without entrypoint", "", "y", "", "a", Ok("y")),
            ("nothing", "", "", "", "", Err(())),
        ] {
            let image = ImageProcess {
                entrypoint: OciCommand(words(entrypoint)),
                cmd: OciCommand(words(cmd)),
                ..ImageProcess::default()
            };
            let got = process_args(&words(command), &words(args), &image).map_err(|_| ());
            assert_eq!(got, want.map(words), "{name}");
        }
        let cleared = ImageProcess {
            entrypoint: OciCommand(vec![String::new()]),
            cmd: OciCommand(words("a")),
            ..ImageProcess::default()
        };
        assert_eq!(process_args(&[], &[], &cleared), Ok(words("a")));
    }

    #[test]
    fn environment_order() {
        // RTM-08
        let mut case = Case::new();
        let env = |case: &Case| case.spec().expect("spec").process.env;
        assert_eq!(
            env(&case),
            [format!("PATH={DEFAULT_PATH}"), "HOSTNAME=web".into()]
        );
        case.container.tty = true;
        case.sandbox.hostname.clear();
        case.image.env = words("PATH=/bin A=image B=image broken");
        case.container.env = vec![("A".into(), "own".into()), ("HOSTNAME".into(), "me".into())];
        assert_eq!(
            env(&case),
            ["PATH=/bin", "HOSTNAME=me", "TERM=xterm", "A=own", "B=image"]
        );
        case.container.env.clear();
        assert_eq!(env(&case)[1], "HOSTNAME=pi", "host network");
    }

    #[test]
    fn working_directory() {
        // RTM-08
        for (own, image, want) in [
            ("", "", Some("/")),
            ("", "/srv", Some("/srv")),
            ("/own", "/srv", Some("/own")),
            ("own", "", None),
        ] {
            let mut case = Case::new();
            case.container.working_dir = own.into();
            case.image.working_dir = image.into();
            let got = case.spec().ok().map(|spec| spec.process.cwd);
            assert_eq!(got.as_deref(), want, "{own:?} {image:?}");
        }
    }

    fn shown(spec: &Spec) -> Vec<String> {
        let text = |m: &Mount| format!("{} {} {}", m.destination, m.source, m.options.join(","));
        spec.mounts.iter().map(text).collect()
    }

    fn bind_mount(host: &str, container: &str) -> BindMount {
        BindMount {
            host_path: host.into(),
            container_path: container.into(),
            ..BindMount::default()
        }
    }

    #[test]
    fn mounts_by_default() {
        // RTM-12
        let mut case = Case::new();
        let spec = case.spec().expect("spec");
        assert_eq!(
            shown(&spec),
            [
                "/proc proc nosuid,noexec,nodev",
                "/dev tmpfs nosuid,strictatime,mode=755,size=65536k",
                "/dev/pts devpts nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
                "/dev/mqueue mqueue nosuid,noexec,nodev",
                "/sys sysfs nosuid,noexec,nodev,ro",
                "/sys/fs/cgroup cgroup nosuid,noexec,nodev,relatime,ro",
                "/etc/hostname /run/s/hostname rbind,rprivate,rw",
                "/etc/resolv.conf /run/s/resolv.conf rbind,rprivate,rw",
                "/dev/shm /run/s/shm rbind,rprivate,rw",
            ]
        );
        case.container.security.readonly_rootfs = true;
        case.paths.hosts = "/run/s/hosts".into();
        let spec = case.spec().expect("read-only root");
        assert!(spec.root.readonly);
        assert_eq!(
            shown(&spec)[6..],
            [
                "/etc/hostname /run/s/hostname rbind,rprivate,ro",
                "/etc/hosts /run/s/hosts rbind,rprivate,ro",
                "/etc/resolv.conf /run/s/resolv.conf rbind,rprivate,ro",
                "/dev/shm /run/s/shm rbind,rprivate,rw",
            ]
        );
    }

    #[test]
    fn mounts_of_the_container() {
        // RTM-12 CFG-32
        let mut case = Case::new();
        case.container.mounts = vec![
            BindMount {
                propagation: MountPropagation::HostToContainer,
                read_only: true,
                ..bind_mount("/h/deep", "/a/b/c")
            },
            bind_mount("/h/hosts", "/etc/hosts"),
            bind_mount("/h/a", "/a"),
            BindMount {
                read_only: true,
                recursive_read_only: true,
                ..bind_mount("/h/sys", "/sys/")
            },
            bind_mount("/dev", "/dev"),
        ];
        case.paths.hosts = "/run/s/hosts".into();
        case.volumes = vec![bind_mount("/v/1", "/data"), bind_mount("/v/2", "/a")];
        let spec = case.spec().expect("spec");
        assert_eq!(
            shown(&spec),
            [
                "/proc proc nosuid,noexec,nodev",
                "/sys/fs/cgroup cgroup nosuid,noexec,nodev,relatime,ro",
                "/data /v/1 rbind,rprivate,rw",
                "/a /h/a rbind,rprivate,rw",
                "/sys/ /h/sys rbind,rprivate,rro",
                "/dev /dev rbind,rprivate,rw",
                "/etc/hostname /run/s/hostname rbind,rprivate,rw",
                "/etc/resolv.conf /run/s/resolv.conf rbind,rprivate,rw",
                "/dev/shm /run/s/shm rbind,rprivate,rw",
                "/etc/hosts /h/hosts rbind,rprivate,rw",
                "/a/b/c /h/deep rbind,rslave,ro",
            ]
        );
        assert_eq!(spec.linux.rootfs_propagation, "rslave");
        // VOL-18: where the backend mounted an image; its programs run, without the rights of their owners.
        case.container.mounts[2].image = Some(MountedImage::default());
        case.container.mounts[2].read_only = true;
        assert_eq!(
            shown(&case.spec().expect("spec"))[3],
            "/a /h/a rbind,rprivate,ro,nosuid,nodev"
        );
        case.container.mounts[0].propagation = MountPropagation::Bidirectional;
        assert_eq!(
            case.spec().expect("shared").linux.rootfs_propagation,
            "rshared"
        );
        case.container.mounts = vec![bind_mount("", "/x")];
        assert!(case.spec().is_err(), "no source");
    }

    #[test]
    fn below_proc_only_what_is_listed_is_mounted() {
        // RTM-12
        for (path, good) in [
            ("/proc", true),
            ("//proc/", true),
            ("/proc/cpuinfo", true),
            // `/proc/net` is a link.
            ("/proc/net/dev", false),
            ("/proc/./sys//kernel/ns_last_pid/", true),
            ("/proc/../data", true),
            ("/process/self", true),
            ("/host/proc/sys", true),
            // Pods of boards mount these: pins, control groups, firmware variables.
            ("/sys", true),
            ("/sys/class/gpio", true),
            ("/sys/fs/cgroup", true),
            ("/sys/kernel/debug", true),
            ("/proc/sys", false),
            ("/proc/self/attr", false),
            ("/proc/cpuinfo/x", false),
            ("/proc/net", false),
            ("/proc/1/cpuinfo", false),
            ("/data/../proc/self/attr/exec", false),
            ("/../proc//sysrq-trigger/", false),
        ] {
            let mut own = Case::new();
            own.container.mounts = vec![bind_mount("/h", path)];
            let mut of_image = Case::new();
            of_image.volumes = vec![bind_mount("/h", path)];
            for case in [own, of_image] {
                match (case.spec(), good) {
                    (Ok(_), true) => {}
                    (Err(e), false) => {
                        let e = format!("{e}");
                        assert!(e.contains("is inside /proc") && e.contains(path), "{e}");
                    }
                    (got, _) => panic!("{path}: {got:?}"),
                }
            }
        }
    }

    #[test]
    fn namespaces_by_mode() {
        // RTM-12 CFG-13
        use NamespaceMode::{Container, Node, Pod, Target};
        for (name, network, ipc, pid, v2, privileged, want) in [
            (
                "usual",
                Pod,
                Pod,
                Container,
                true,
                false,
                "pid= ipc=/run/s/ipc network=/run/s/net uts=/run/s/uts mount= cgroup=",
            ),
            (
                "shared pid, v1",
                Pod,
                Pod,
                Pod,
                false,
                false,
                "pid=/proc/7/ns/pid ipc=/run/s/ipc network=/run/s/net uts=/run/s/uts mount=",
            ),
            (
                "target, privileged",
                Pod,
                Pod,
                Target,
                true,
                true,
                "pid=/proc/7/ns/pid ipc=/run/s/ipc network=/run/s/net uts=/run/s/uts mount=",
            ),
            (
                "the machine's",
                Node,
                Node,
                Node,
                true,
                false,
                "mount= cgroup=",
            ),
        ] {
            let mut case = Case::new();
            case.container.security.namespaces = NamespaceOptions {
                network,
                ipc,
                pid,
                users: None,
            };
            case.container.security.privileged = privileged;
            case.sandbox.privileged = privileged;
            case.host.cgroup_v2 = v2;
            case.paths.pid_namespace = "/proc/7/ns/pid".into();
            let spec = case.spec().expect(name);
            let all = spec.linux.namespaces.iter();
            let text: Vec<_> = all.map(|n| format!("{}={}", n.kind, n.path)).collect();
            assert_eq!(text.join(" "), want, "{name}");
        }
        let mut case = Case::new();
        case.paths.network_namespace.clear();
        assert!(case.spec().is_err(), "never a new one by accident");
    }

    #[test]
    fn users_of_their_own() {
        // UNS-23 UNS-25 UNS-26 UNS-31 CFG-14
        let mut case = Case::new();
        case.paths.user_namespace = "/run/s/user".into();
        case.paths.hosts = "/run/s/hosts".into();
        case.volumes = vec![bind_mount("/rootfs/cache", "/cache")];
        let image = BindMount {
            image: Some(MountedImage::default()),
            ..bind_mount("/run/c/volumes/0", "/model")
        };
        case.container.mounts = vec![bind_mount("/data", "/data"), image];
        let plain = case.spec().expect("plain");
        assert!(plain.linux.uid_mappings.is_empty());
        assert!(plain.mounts.iter().all(|m| m.uid_mappings.is_empty()));
        assert!(plain.linux.namespaces.iter().all(|n| n.kind != "user"));

        case.container.security.namespaces.users = Some(IdMap {
            host_id: 131_072,
            length: 65_536,
        });
        let spec = case.spec().expect("with users");
        let first = &spec.linux.namespaces[0];
        assert_eq!((&*first.kind, &*first.path), ("user", "/run/s/user"));
        let text = serde_json::to_value(&spec.linux).expect("JSON");
        let mapping = serde_json::json!([{"containerID": 0, "hostID": 131_072, "size": 65_536}]);
        assert_eq!(text["uidMappings"], mapping);
        assert_eq!(text["gidMappings"], mapping);
        let mut mapped = Vec::new();
        for mount in &spec.mounts {
            let maps = (&mount.uid_mappings, &mount.gid_mappings);
            let wanted = &spec.linux.uid_mappings;
            match mount.uid_mappings.is_empty() {
                true => assert!(mount.gid_mappings.is_empty(), "{mount:?}"),
                false => {
                    assert_eq!(maps, (wanted, wanted));
                    assert_eq!(mount.kind, "bind");
                    mapped.push(&*mount.destination);
                }
            }
        }
        let files = ["/data", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
        assert_eq!(mapped, files, "neither /dev/shm nor what an image has");
        let shm = spec.mounts.iter().find(|m| m.destination == "/dev/shm");
        let shm = shm.expect("shm").options.join(",");
        assert_eq!(shm, "rbind,rprivate,rw,nosuid,nodev,noexec");

        case.paths.user_namespace.clear();
        assert!(case.spec().is_err(), "never the machine's by accident");
    }

    #[test]
    fn plain_and_privileged() {
        // RTM-10 RTM-11 SEC-08 UNS-29
        let mut case = Case::new();
        case.host.thermal_throttle = words("/sys/devices/system/cpu/cpu0/thermal_throttle");
        case.host_devices = vec![OciDevice {
            kind: "c".into(),
            path: "/dev/gpiomem".into(),
            major: 246,
            ..OciDevice::default()
        }];
        case.container.security.seccomp = SecurityProfile::RuntimeDefault;
        let spec = case.spec().expect("plain");
        assert_eq!(spec.linux.masked_paths.len(), 13);
        assert_eq!(spec.linux.readonly_paths, READONLY_PATHS);
        assert!(spec.linux.seccomp.is_some() && spec.linux.devices.is_empty());
        let capabilities = spec.process.capabilities.expect("capabilities");
        assert_eq!(capabilities.bounding, capabilities::DEFAULT);
        assert_eq!(capabilities.permitted, capabilities.bounding);
        assert_eq!(capabilities.effective, capabilities.bounding);
        assert!(capabilities.ambient.is_empty() && capabilities.inheritable.is_empty());
        let rules = &spec.linux.resources.devices;
        assert!(!rules[0].allow && rules[0].access == "rwm" && rules.len() == 11);

        case.container.security.unmasked_proc = true;
        let spec = case.spec().expect("unmasked");
        assert!(spec.linux.masked_paths.is_empty() && spec.linux.readonly_paths.is_empty());

        case.container.security.unmasked_proc = false;
        case.container.security.privileged = true;
        case.container.security.apparmor = SecurityProfile::Localhost("p".into());
        assert!(case.spec().is_err(), "the sandbox is not privileged");
        case.sandbox.privileged = true;
        let spec = case.spec().expect("privileged");
        assert!(spec.linux.masked_paths.is_empty() && spec.linux.readonly_paths.is_empty());
        assert_eq!(spec.linux.devices, case.host_devices);
        assert_eq!(spec.linux.seccomp, None);
        assert_eq!(spec.process.apparmor_profile, "");
        let rules = &spec.linux.resources.devices;
        assert!(rules.len() == 1 && rules[0].allow);
        let mounts = shown(&spec);
        assert!(mounts.contains(&"/sys sysfs nosuid,noexec,nodev,rw".into()));
        assert!(mounts.contains(&"/sys/fs/cgroup cgroup nosuid,noexec,nodev,relatime,rw".into()));
    }

    #[test]
    fn devices_of_the_container() {
        // DEV-41 DEV-43
        let mut case = Case::new();
        case.container.devices = vec![cri::ContainerDeviceNode {
            container_path: "/dev/line".into(),
            permissions: "rw".into(),
            ..cri::ContainerDeviceNode::default()
        }];
        let node = |uid, gid, mode| OciDevice {
            kind: "c".into(),
            path: "/dev/line".into(),
            major: 188,
            minor: 3,
            file_mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
        };
        case.devices = vec![node(0, 20, 0o660)];
        let shown = |case: &Case| {
            let spec = case.spec().expect("right");
            let last = spec.linux.resources.devices.last().cloned();
            (spec.linux.devices, last.expect("rules"))
        };
        let (devices, rule) = shown(&case);
        assert_eq!(devices, [node(0, 20, 0o660)], "root sees it as it is");
        assert_eq!(
            (
                rule.allow,
                &*rule.kind,
                rule.major,
                rule.minor,
                &*rule.access
            ),
            (true, "c", Some(188), Some(3), "rw")
        );
        case.user.uid = 1000;
        assert_eq!(shown(&case).0, [node(1000, 20, 0o660)]);
        case.user.gid = 1001;
        assert_eq!(shown(&case).0, [node(1000, 1001, 0o660)]);
        // DEV-44
        let mut privileged = Case::new();
        privileged.container.security.privileged = true;
        privileged.sandbox.privileged = true;
        let at = |path: &str| OciDevice {
            path: path.into(),
            ..OciDevice::default()
        };
        privileged.host_devices = ["/dev/lines/a", "/dev/lines2"].map(at).into();
        privileged.container.live_devices = vec![cri::LiveDevices {
            container_path: "/dev/lines".into(),
            ..cri::LiveDevices::default()
        }];
        let made = privileged.spec().expect("spec").linux.devices;
        assert_eq!(made, [at("/dev/lines2")]);
        case.container.devices[0].gid = Some(0);
        case.container.devices[0].mode = Some(0o600);
        assert_eq!(shown(&case).0, [node(1000, 0, 0o600)]);
        // Privileged containers have all other devices, too, and each path once.
        case.container.security.privileged = true;
        case.sandbox.privileged = true;
        let other = OciDevice {
            path: "/dev/other".into(),
            ..node(0, 0, 0o600)
        };
        case.host_devices = vec![node(0, 0, 0o600), other.clone()];
        let (devices, rule) = shown(&case);
        assert_eq!(devices, [node(1000, 0, 0o600), other]);
        assert_eq!((rule.allow, rule.major), (true, None));
    }

    #[test]
    fn profiles() {
        // SEC-06 SEC-07
        use SecurityProfile::{Localhost, RuntimeDefault, Unconfined, Unset};
        let mut case = Case::new();
        assert_eq!(case.spec().expect("unconfined").linux.seccomp, None);
        case.container.security.seccomp = Localhost("/p.json".into());
        assert!(case.spec().is_err(), "not read");
        case.file = Some(SeccompFilter {
            default_action: "SCMP_ACT_LOG".into(),
            ..SeccompFilter::default()
        });
        assert_eq!(case.spec().expect("localhost").linux.seccomp, case.file);
        case.host.seccomp = false;
        assert!(case.spec().is_err(), "kernel without seccomp");

        for (name, profile, enforced, default, want) in [
            ("none asked", Unconfined, true, "d", Some("")),
            ("nothing asked", Unset, true, "d", Some("d")),
            ("nothing asked nor loaded", Unset, true, "", Some("")),
            ("nothing asked nor enforced", Unset, false, "d", Some("")),
            ("default", RuntimeDefault, true, "d", Some("d")),
            ("no default loaded", RuntimeDefault, true, "", None),
            ("by name", Localhost("p".into()), true, "", Some("p")),
            ("not enforced", Localhost("p".into()), false, "", None),
        ] {
            let mut case = Case::new();
            case.container.security.apparmor = profile;
            case.host.apparmor = enforced;
            case.apparmor_default = default;
            let got = case.spec().ok().map(|spec| spec.process.apparmor_profile);
            assert_eq!(got.as_deref(), want, "{name}");
        }
        let mut case = Case::new();
        case.container.security.selinux_label = "u:r:t:s0".into();
        assert_eq!(case.spec().expect("off").process.selinux_label, "");
        case.host.selinux = true;
        assert_eq!(case.spec().expect("on").process.selinux_label, "u:r:t:s0");
    }

    #[test]
    fn process_settings() {
        // SEC-01 RES-04
        let mut case = Case::new();
        case.container.resources.oom_score_adj = -997;
        case.host.min_oom_score_adj = -500;
        case.host.rlimits = vec![Rlimit {
            kind: "RLIMIT_NOFILE".into(),
            hard: 1024,
            soft: 1024,
        }];
        case.container.security.no_new_privs = true;
        case.user = ResolvedUser {
            uid: 5,
            gid: 6,
            additional_gids: vec![6, 7],
        };
        let process = case.spec().expect("spec").process;
        assert_eq!(
            process.oom_score_adj,
            Some(-500),
            "not below what is allowed"
        );
        assert!(process.no_new_privileges);
        assert_eq!(process.rlimits, case.host.rlimits);
        assert_eq!((process.user.uid, process.user.gid), (5, 6));
        assert_eq!(process.user.additional_gids, [6, 7]);
    }

    #[test]
    fn limits() {
        // RES-01 RES-02 RES-03 RES-06 RES-08 CPUM-24
        let mut case = Case::new();
        case.container.resources = LinuxResources {
            cpu_shares: Some(102),
            cpu_quota_us: Some(20_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(1 << 20),
            memory_swap_bytes: Some(1 << 20),
            pids_limit: Some(9),
            hugepage_limits: [("2MB".to_owned(), 0)].into(),
            unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
            ..LinuxResources::default()
        };
        let got = case.spec().expect("all").linux.resources;
        let cpu = got.cpu.expect("cpu");
        assert_eq!(
            (cpu.shares, cpu.quota, cpu.period),
            (Some(102), Some(20_000), Some(100_000))
        );
        let memory = got.memory.expect("memory");
        assert_eq!((memory.limit, memory.swap), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(got.pids, Some(Pids { limit: 9 }));
        assert_eq!(got.hugepage_limits[0].page_size, "2MB");
        assert_eq!(got.unified["memory.oom.group"], "1");

        case.host.controllers = words("cpu pids");
        let error = case.spec().expect_err("memory limit without controller");
        assert!(matches!(error, PodError::Node(why) if why.contains("cgroup_enable=memory")));
        case.container.resources.memory_limit_bytes = None;
        let got = case
            .spec()
            .expect("what the agent added is left out")
            .linux
            .resources;
        assert_eq!(got.memory, None);
        assert!(got.hugepage_limits.is_empty() && got.unified.is_empty());
        case.container
            .resources
            .hugepage_limits
            .insert("2MB".into(), 1);
        assert!(case.spec().is_err(), "huge pages were asked for");

        let mut case = Case::new();
        case.container.resources.cpuset_cpus = Some("0,2".into());
        let got = case.spec().expect("all").linux.resources;
        assert_eq!(got.cpu.expect("cpu").cpus.as_deref(), Some("0,2"));
        case.host.controllers = words("cpu memory pids");
        let error = case.spec().expect_err("processors without controller");
        assert!(
            matches!(error, PodError::Node(why) if why.contains("no cgroup controller \"cpuset\""))
        );

        let empty = Case::new().spec().expect("none").linux.resources;
        assert_eq!((empty.cpu, empty.memory, empty.pids), (None, None, None));
    }

    #[test]
    fn names_for_others() {
        let spec = Case::new().spec().expect("spec");
        assert_eq!(spec.annotations["io.kubernetes.cri.container-name"], "app");
        assert_eq!(spec.annotations["io.kubernetes.cri.sandbox-id"], "s1");
        assert_eq!(spec.linux.cgroups_path, "/kubepods/podu-1/c1");
    }
}
