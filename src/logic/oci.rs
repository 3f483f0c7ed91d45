//! OCI configuration of one container, for the backend that calls an OCI runtime itself.
//!
//! Everything that needs the machine (resolving names and symlinks, finding devices, reading a profile file, checking
//! that a bind source exists) has been done by the caller and comes in as data.
//!
//! Invariants: nothing is inherited from the agent's own environment; a setting that cannot be honoured is an error,
//! never left out, unless the agent itself added it (device defaults, huge page zeros).

use alloc::collections::{BTreeMap, BTreeSet};

use crate::api::cri::{
    LinuxResources, Mount as BindMount, NamespaceMode, Propagation, SecurityProfile,
};
use crate::api::oci::{
    Capabilities, Cpu, DeviceRule, HostFacts, HugepageLimit, ImageProcess, Linux, Memory, Mount,
    Namespace, Pids, Process, Resources, Root, SPEC_VERSION, Seccomp, Spec, SpecInput, User,
};
use crate::logic::{capabilities, seccomp};

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
pub fn container_spec(input: &SpecInput<'_>) -> Result<Spec, String> {
    let security = &input.container.security;
    if security.privileged && !input.sandbox.privileged {
        return Err("a privileged container needs a sandbox that was made privileged".into());
    }
    let capabilities = capabilities::effective_set(security, &input.host.capabilities)?;
    let seccomp = seccomp_filter(input, &capabilities)?;
    let unmasked = security.privileged || security.unmasked_proc;
    let mounts = mounts(input)?;
    Ok(Spec {
        oci_version: SPEC_VERSION.into(),
        process: process(input, capabilities)?,
        root: Root {
            path: input.rootfs.into(),
            readonly: security.readonly_rootfs,
        },
        mounts,
        annotations: annotations(input),
        linux: Linux {
            namespaces: namespaces(input)?,
            devices: if security.privileged {
                input.host.devices.clone()
            } else {
                Vec::new()
            },
            cgroups_path: input.cgroups_path.into(),
            resources: resources(input)?,
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

fn process(input: &SpecInput<'_>, capabilities: Vec<String>) -> Result<Process, String> {
    let container = input.container;
    let security = &container.security;
    let cwd = [&container.working_dir, &input.image.working_dir]
        .into_iter()
        .find(|dir| !dir.is_empty())
        .map_or("/", |dir| dir.as_str());
    if !cwd.starts_with('/') {
        return Err(format!("working directory {cwd:?} is not absolute"));
    }
    Ok(Process {
        terminal: container.tty,
        user: User {
            uid: input.user.uid,
            gid: input.user.gid,
            additional_gids: input.user.additional_gids.clone(),
        },
        args: process_args(&container.command, &container.args, input.image)?,
        env: environment(input),
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

/// What to run: `command` replaces the image's entrypoint and drops its cmd; `args` alone replaces the cmd.
///
/// Errors: neither the pod nor the image names anything to run.
pub fn process_args(
    command: &[String],
    args: &[String],
    image: &ImageProcess,
) -> Result<Vec<String>, String> {
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
        return Err("no command specified: neither the container nor its image names one".into());
    }
    Ok([program, args].concat())
}

/// `NAME=value` of the defaults, the image and the container, in this order; a later value takes the earlier's place.
fn environment(input: &SpecInput<'_>) -> Vec<String> {
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

fn apparmor_profile(input: &SpecInput<'_>) -> Result<String, String> {
    let (security, host) = (&input.container.security, input.host);
    if security.privileged {
        return Ok(String::new());
    }
    let profile = match &security.apparmor {
        SecurityProfile::Unconfined => return Ok(String::new()),
        SecurityProfile::RuntimeDefault => host.apparmor_default.as_str(),
        SecurityProfile::Localhost(name) => name.as_str(),
    };
    match (host.apparmor, profile) {
        (false, _) => {
            Err("an AppArmor profile is requested but the kernel does not enforce AppArmor".into())
        }
        (true, "") => Err("the default AppArmor profile is requested but none is loaded".into()),
        (true, name) => Ok(name.into()),
    }
}

fn seccomp_filter(
    input: &SpecInput<'_>,
    capabilities: &[String],
) -> Result<Option<Seccomp>, String> {
    let (security, host) = (&input.container.security, input.host);
    if security.privileged || security.seccomp == SecurityProfile::Unconfined {
        return Ok(None);
    }
    if !host.seccomp {
        return Err("a seccomp profile is requested but the kernel has no seccomp filters".into());
    }
    match &security.seccomp {
        SecurityProfile::Unconfined => Ok(None),
        SecurityProfile::RuntimeDefault => Ok(Some(seccomp::runtime_default(
            &host.arch,
            host.kernel,
            capabilities,
        ))),
        SecurityProfile::Localhost(path) => match input.seccomp_file {
            Some(profile) => Ok(Some(profile.clone())),
            None => Err(format!("seccomp profile {path:?} was not read")),
        },
    }
}

fn namespaces(input: &SpecInput<'_>) -> Result<Vec<Namespace>, String> {
    let security = &input.container.security;
    let modes = security.namespaces;
    let new = |kind: &str| Namespace {
        kind: kind.into(),
        path: String::new(),
    };
    let join = |kind: &str, path: &str| {
        if path.is_empty() {
            // An empty path would make a new namespace where the pod's was meant.
            return Err(format!("the sandbox has no {kind} namespace to join"));
        }
        Ok(Namespace {
            kind: kind.into(),
            path: path.into(),
        })
    };
    let mut all = Vec::new();
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
        }
    })
    .collect()
}

/// Default mounts, then the sandbox's files, image volumes and the container's mounts by depth, so that none hides
/// another. A path that the container mounts itself replaces a default one; `/dev` replaces all below it.
fn mounts(input: &SpecInput<'_>) -> Result<Vec<Mount>, String> {
    let container = input.container;
    let own: BTreeSet<&str> = container
        .mounts
        .iter()
        .map(|mount| clean(&mount.container_path))
        .collect();
    if let Some(bad) = container
        .mounts
        .iter()
        .find(|mount| !mount.container_path.starts_with('/') || mount.host_path.is_empty())
    {
        return Err(format!(
            "mount of {:?} at {:?}: both must be absolute paths",
            bad.host_path, bad.container_path
        ));
    }
    let mut all = default_mounts(container.security.privileged);
    all.retain(|mount| {
        let below_dev = mount.destination.starts_with("/dev/") && own.contains("/dev");
        !own.contains(mount.destination.as_str()) && !below_dev
    });
    let mut binds = Vec::new();
    let read_only = container.security.readonly_rootfs;
    for (path, source, read_only) in [
        ("/etc/hostname", &input.paths.hostname, read_only),
        ("/etc/hosts", &input.paths.hosts, read_only),
        ("/etc/resolv.conf", &input.paths.resolv_conf, read_only),
        ("/dev/shm", &input.paths.shm, false),
    ] {
        if !source.is_empty() && !own.contains(path) {
            binds.push(bind(&BindMount {
                host_path: source.clone(),
                container_path: path.into(),
                read_only,
                ..BindMount::default()
            }));
        }
    }
    let volumes = input.image_volumes.iter();
    binds.extend(
        volumes
            .filter(|mount| !own.contains(clean(&mount.container_path)))
            .chain(&container.mounts)
            .map(bind),
    );
    // Stable: equally deep ones keep the order of the pod.
    binds.sort_by_key(|mount| {
        let parts = mount.destination.split('/');
        parts.filter(|part| !part.is_empty()).count()
    });
    all.extend(binds);
    Ok(all)
}

/// Without trailing slashes, so that `/dev/` counts as `/dev`.
fn clean(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}

fn bind(mount: &BindMount) -> Mount {
    let access = match (mount.read_only, mount.recursive_read_only) {
        (_, true) => "rro",
        (true, false) => "ro",
        (false, false) => "rw",
    };
    let options = ["rbind", propagation(mount.propagation), access];
    Mount {
        destination: mount.container_path.clone(),
        kind: "bind".into(),
        source: mount.host_path.clone(),
        options: options.map(Into::into).to_vec(),
    }
}

const fn propagation(mode: Propagation) -> &'static str {
    match mode {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    }
}

/// A private root would cut the propagation of the mounts in it: it must be as open as the most open of them.
fn rootfs_propagation(mounts: &[BindMount]) -> &'static str {
    let has = |mode| mounts.iter().any(|mount| mount.propagation == mode);
    if has(Propagation::Bidirectional) {
        "rshared"
    } else if has(Propagation::HostToContainer) {
        "rslave"
    } else {
        ""
    }
}

fn resources(input: &SpecInput<'_>) -> Result<Resources, String> {
    let limits = &input.container.resources;
    check_controllers(limits, input.host)?;
    let has = |controller| has_controller(input.host, controller);
    let quota = limits.cpu_quota_us.filter(|&quota| quota != 0);
    let cpu = Cpu {
        shares: limits.cpu_shares.filter(|_| has("cpu")),
        quota,
        period: limits.cpu_period_us.filter(|_| quota.is_some()),
    };
    let memory = Memory {
        limit: limits.memory_limit_bytes,
        swap: limits.memory_swap_bytes.filter(|_| has("memory")),
    };
    let hugepages = limits.hugepage_limits.iter().filter(|_| has("hugetlb"));
    let unified = limits.unified.iter().filter(|(file, _)| {
        let controller = file.split('.').next().unwrap_or_default();
        has(controller)
    });
    Ok(Resources {
        devices: device_rules(input.container.security.privileged),
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
            .collect(),
    })
}

fn has_controller(host: &HostFacts, controller: &str) -> bool {
    host.controllers.is_empty() || host.controllers.iter().any(|have| have == controller)
}

/// A limit that somebody asked for must hold: without its controller the container does not start.
fn check_controllers(limits: &LinuxResources, host: &HostFacts) -> Result<(), String> {
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
            limits.hugepage_limits.values().any(|&limit| limit > 0),
            "hugetlb",
            "huge page limit",
            "",
        ),
    ] {
        if asked && !has_controller(host, controller) {
            return Err(format!(
                "the {limit} cannot be enforced: this machine has no cgroup controller {controller:?}{hint}"
            ));
        }
    }
    Ok(())
}

fn device_rules(privileged: bool) -> Vec<DeviceRule> {
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
    [every(false)].into_iter().chain(allowed).collect()
}

/// The names that runtimes with an eye for pods (kata, crun's handlers) look for.
fn annotations(input: &SpecInput<'_>) -> BTreeMap<String, String> {
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
    .collect()
}
