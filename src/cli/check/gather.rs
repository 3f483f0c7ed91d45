//! Looks at the machine for the preflight. Looks change nothing; facts that cannot be read stay absent.

use core::time::Duration;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStringExt as _, fs::PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::super::{
    AgentClient, CliError, KUBELET, agent_socket, command_place, live,
    read_proxies as named_proxies,
};
use super::{apiserver, kubeadm, runtime};
use crate::{
    agent::{POD_RECORD_VERSION, find_start_faults, images, kernel_settings},
    api::{Quantity, health::AgentHealth, order::OrderExt as _, received::SnapshotEntry},
    bus::logind::LogindPaths,
    cgroup::{CgroupVersion, Cgroups, Hierarchy},
    config::{
        self, AgentConfig, HostIdentity, STAND_IN_NAME,
        flags::{self, FlagError},
    },
    error::error_chain,
    image::record,
    logic::{
        check::{
            self, AgentDirectoryFacts, AgentReachability, CheckFacts, CheckFinding, ClockFacts,
            DirectoryFacts, DiskWearFacts, KernelFacts, ManifestFacts, NetworkFacts,
        },
        eviction::EvictionSignal,
        object_fields, static_pod, validation,
    },
    net::Url,
    runtime::runc::{self, apparmor, cni::NetworkConfig, host},
    server::{
        backend::{DeviceReport, ObjectList},
        is_trusted_peer,
    },
    shim,
    source::{ManifestDir, Rules, SourceProblem, SourceReading, Trigger},
    sys::{
        child::{self, Command},
        clock, disk_wear, file, mount, namespaces, pages,
    },
};

/// Most bytes read of one file.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;
/// Longest output of a program that is kept, bytes.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Time in which a program that is asked something has to answer.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Directories that are searched for programs.
const PROGRAM_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];
/// Rules for manifests.
const RULES: Rules = Rules {
    pod: static_pod::prepare_static_pod,
    config_map: validation::validate_config_map,
    secret: validation::validate_secret,
    keys: object_fields::misspelt_keys,
};
/// Names of processes that run pods.
const KUBELETS: [&str; 6] = [
    "kubelet",
    "k3s",
    "k3s-server",
    "k3s-agent",
    "kubelite",
    "k0s",
];
/// Directories in which firmware of boards keeps its files: newer Raspberry Pi OS first.
const FIRMWARE_DIRS: [&str; 2] = ["/boot/firmware", "/boot"];

/// Configuration of an agent, the operator's wishes for the checks, and the agent's socket.
type LoadedFacts = (AgentConfig, check::OperatorConfig, PathBuf);

/// Loads the configuration of an agent with these flags. `is_kubelet`: the agent is called as `kubelet`.
fn load_configuration(words: Vec<OsString>, is_kubelet: bool) -> Result<LoadedFacts, CliError> {
    let cwd = std::env::current_dir()
        .map_err(|e| CliError::new(format!("cannot read the working directory: {e}")))?;
    load_configuration_at(words, is_kubelet, &cwd)
}

/// Loads the configuration as [`load_configuration`] does. Flags that name at most a socket mean the agent that answers there:
/// then its own flags count.
fn load_running_configuration(
    words: Vec<OsString>,
    is_kubelet: bool,
) -> Result<LoadedFacts, CliError> {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let is_of_socket = match &*texts {
        [] => true,
        [one] => one.starts_with("--socket="),
        [one, _] => one == "--socket",
        _ => false,
    };
    let loaded = load_configuration(words, is_kubelet);
    let (Ok((_, _, socket)), true) = (&loaded, is_of_socket) else {
        return loaded;
    };
    let running = ask_agent_health(socket).1.and_then(running_agent_flags);
    let Some((words, is_kubelet, cwd)) = running else {
        return loaded;
    };
    let (cfg, wanted, _) = load_configuration_at(words, is_kubelet, &cwd)?;
    Ok((cfg, wanted, socket.clone()))
}

/// Finds the flags of the agent that is a process, whether it was called as `kubelet`, and the directory that relative paths
/// in the flags are below. `None`: no agent has this number here, for example if its own numbers are those of a container.
/// Source: proc_pid_cmdline(5).
fn running_agent_flags(pid: u32) -> Option<(Vec<OsString>, bool, PathBuf)> {
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    let typed = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let (words, command) = split_command_line(&typed);
    let is_kubelet = command == KUBELET;
    (is_kubelet || command == "run").then_some((words, is_kubelet, cwd))
}

/// Finds the agent's flags in its command line. True: it was called as `kubelet`.
pub(crate) fn flags_of_command_line(typed: &[u8]) -> (Vec<OsString>, bool) {
    let (words, command) = split_command_line(typed);
    (words, command == KUBELET)
}

/// Takes program and command out of a command line. Returns the other words and the command: `kubelet` if that is the
/// program's name.
fn split_command_line(typed: &[u8]) -> (Vec<OsString>, OsString) {
    let words = typed
        .split(|b| *b == 0)
        .map(|w| OsString::from_vec(w.to_vec()));
    let mut words: Vec<OsString> = words.collect();
    // The last word ends in a zero, too.
    words.pop();
    let program: PathBuf = words.drain(..words.len().min(1)).collect();
    let at = command_place(&words);
    let command = match program.file_name() {
        Some(name) if name == KUBELET => name.to_owned(),
        _ if at < words.len() => words.remove(at),
        _ => OsString::new(),
    };
    (words, command)
}

fn load_configuration_at(
    words: Vec<OsString>,
    is_kubelet: bool,
    cwd: &Path,
) -> Result<LoadedFacts, CliError> {
    let parsed = flags::parse_flags(words.clone(), cwd);
    let mut flags = parsed.map_err(|e| CliError::new(e.to_string()))?;
    flags.as_kubelet = is_kubelet;
    let host = HostIdentity {
        hostname: read_text("/proc/sys/kernel/hostname").trim().to_owned(),
    };
    let loaded = config::load_usable_config(flags, &host);
    let (loaded, faults) = loaded.map_err(|e| CliError::new(error_chain(&e)))?;
    let cfg = loaded.config;
    // The name of a host that cannot be that of a node is judged, too.
    let is_usable = faults.is_empty() || cfg.node_name != STAND_IN_NAME;
    let wanted = check::OperatorConfig {
        node_name: match is_usable {
            true => cfg.node_name.clone(),
            false => host.hostname.to_lowercase(),
        },
        file: loaded.file.map(|f| f.display().to_string()),
        errors: faults.iter().map(|e| (e.place(), error_chain(e))).collect(),
        warnings: loaded
            .warnings
            .into_iter()
            .map(|warning| (warning.place.clone(), warning.to_string()))
            .collect(),
        ..check::OperatorConfig::default()
    };
    let socket = agent_socket(&words, &cfg.dirs.socket);
    Ok((cfg, wanted, socket))
}

/// Separates the flags of an agent from the words that belong to none of them: files, names of pods.
pub(crate) fn split_files(
    mut words: Vec<OsString>,
) -> Result<(Vec<OsString>, Vec<String>), CliError> {
    let mut files = Vec::new();
    // Bounded: each turn but the last takes a word away.
    loop {
        match flags::parse_flags(words.clone(), Path::new("/")) {
            Err(FlagError::Stray(word)) => {
                // The last such word: an earlier one may be a flag's value.
                let is_it = |one: &OsString| one.to_string_lossy() == *word;
                let Some(at) = words.iter().rposition(is_it) else {
                    return Err(CliError::new(format!("unexpected argument {word:?}")));
                };
                words.remove(at);
                files.push(word);
            }
            // What else is wrong is said by who uses the flags.
            Ok(_) | Err(_) => return Ok((words, files)),
        }
    }
}

/// Gathers the facts of this machine, as an agent with these flags would find them. `is_kubelet`: the agent is called
/// as `kubelet`.
pub(super) fn gather_facts(flags: Vec<OsString>, is_kubelet: bool) -> Result<CheckFacts, CliError> {
    let (cfg, mut wanted, socket) = load_running_configuration(flags, is_kubelet)?;
    wanted.fail_swap_on = cfg.cgroup.fail_swap_on;
    if cfg.cgroup.protect_kernel_defaults {
        let judged = kernel_settings::apply_kernel_settings(Path::new(kernel_settings::DIR), true);
        wanted.protected = judged.err().map(|e| e.to_string());
    }
    let kept = cfg.reserved.system.get("memory").map_or(0, Quantity::value);
    wanted.system_memory = u64::try_from(kept).unwrap_or(0);
    wanted.fail_cgroup_v1 = cfg.cgroup.fail_cgroup_v1;
    wanted.limits_writes = cfg.cgroup.pod_write_limit.is_some();
    wanted.seccomp_default = cfg.seccomp_default;
    wanted.bridge.clone_from(&cfg.network.builtin_bridge);
    wanted.image_high_percent = cfg.images.high_percent;
    let thresholds = cfg.eviction.settings.thresholds.iter();
    // The threshold for all pods together is derived from another one.
    let written = thresholds.filter(|t| t.signal != EvictionSignal::AllocatableMemory);
    wanted.kept_free = written.map(ToString::to_string).collect();
    wanted.evict_static_pods = cfg.eviction.static_pods;
    let (agent, pid) = ask_agent_health(&socket);
    let detected = Cgroups::detect();
    let faults = find_start_faults(&cfg, detected.as_ref().ok());
    wanted.errors.extend(faults);
    let cgroups = check::CgroupFacts {
        mounted: detected.is_ok(),
        v2: detected
            .as_ref()
            .is_ok_and(|c| c.cgroup_version() == CgroupVersion::V2),
        missing: detected.as_ref().map_or_else(
            |_| ["cpu", "memory", "pids"].map(str::to_owned).into(),
            |c| {
                c.missing_controllers()
                    .iter()
                    .map(|&c| c.to_owned())
                    .collect()
            },
        ),
    };
    Ok(CheckFacts {
        devices: gather_devices(&cfg, cgroups.v2, pid.map(|_| &*socket)),
        kernel: gather_kernel(&detected.unwrap_or_else(|_| stand_in_cgroups())),
        cgroups,
        runtime: runtime::gather_runtime(&cfg),
        network: gather_network(&cfg),
        clock: gather_clock(),
        dirs: gather_dirs(&cfg, pid),
        rights: check::ProcessRights {
            root: nix::unistd::geteuid().is_root(),
            capabilities: host::effective_capabilities(pid.unwrap_or_else(std::process::id)),
        },
        manifests: gather_manifests(&cfg),
        registries: gather_registries(&cfg, pid.map(|_| &*socket)),
        kubelets: find_kubelets(),
        apiserver: apiserver::gather_apiserver(&cfg, named_proxies()),
        kubeadm: check::KubeadmFacts::default(),
        of_parts: findings_of_parts(&cfg, &agent),
        agent,
        wanted,
    })
}

/// Asks the parts for their findings.
fn findings_of_parts(
    cfg: &AgentConfig,
    agent: &AgentReachability,
) -> Vec<(&'static str, CheckFinding)> {
    let states = match agent {
        AgentReachability::Up(agent) => Some(&agent.parts),
        AgentReachability::Absent | AgentReachability::Mute(_) => None,
    };
    let parts = cfg.parts.iter();
    parts.filter_map(|part| part.check(states)).collect()
}

/// Gathers the facts of devices. `socket`: of the agent, if there is one.
fn gather_devices(cfg: &AgentConfig, v2: bool, socket: Option<&Path>) -> check::OfferedDevices {
    let facts = cfg.parts.iter().find_map(|part| part.resource_facts());
    let Some(facts) = facts else {
        return check::OfferedDevices::default();
    };
    let needed = if v2 {
        "CONFIG_CGROUP_BPF"
    } else {
        "CONFIG_CGROUP_DEVICE"
    };
    let lacks = kubeadm::check_kernel_config(read_text("/proc/sys/kernel/osrelease").trim());
    let lacks = lacks.into_iter().flat_map(|(_, options)| options);
    check::OfferedDevices {
        plugins: socket.map(fetch_plugin_resources).unwrap_or_default(),
        lacks: lacks.into_iter().find(|option| option == needed),
        ..facts
    }
}

/// Asks the agent for the resources of device plugins; none if it does not answer.
fn fetch_plugin_resources(socket: &Path) -> Vec<(String, usize)> {
    let known: Result<ObjectList<DeviceReport>, _> =
        AgentClient::new(socket).fetch_typed("/devices");
    count_healthy_units(known.map(|list| list.items).unwrap_or_default())
}

/// Counts the healthy units of each resource of device plugins. The units come sorted by resource.
fn count_healthy_units(units: Vec<DeviceReport>) -> Vec<(String, usize)> {
    let mut resources: Vec<(String, usize)> = Vec::new();
    for unit in units {
        if !unit.plugin {
            continue;
        }
        let count = usize::from(unit.healthy);
        match resources.last_mut() {
            Some((resource, all)) if *resource == unit.resource => *all += count,
            _ => resources.push((unit.resource, count)),
        }
    }
    resources
}

/// Places of an agent with these flags: its socket, its root directory, its manifests.
pub(crate) struct AgentPaths {
    /// Socket of the agent.
    pub(crate) socket: PathBuf,
    /// Root directory of the agent.
    pub(crate) root: PathBuf,
    manifests: Option<PathBuf>,
    /// Name of the node.
    pub(super) node_name: String,
}

impl AgentPaths {
    /// Finds the places of an agent with these flags.
    pub(crate) fn from_flags(flags: Vec<OsString>) -> Result<Self, CliError> {
        load_configuration(flags, false).map(Self::new)
    }

    /// Finds the places of the agent that runs, if the flags name at most its socket.
    pub(crate) fn of_running_agent(flags: Vec<OsString>) -> Result<Self, CliError> {
        load_running_configuration(flags, false).map(Self::new)
    }

    fn new((cfg, _, socket): LoadedFacts) -> Self {
        Self {
            socket,
            root: cfg.dirs.root,
            manifests: cfg.dirs.manifests,
            node_name: cfg.node_name,
        }
    }

    /// Finds the file that a pod comes from; `None`: no manifest has it.
    pub(crate) fn find_manifest(&self, namespace: &str, pod: &str) -> Option<PathBuf> {
        let path = self.manifests.as_deref()?;
        let read =
            ManifestDir::new(path.into(), self.node_name.clone(), RULES).read_source(Trigger::Poll);
        let SourceReading::Snapshot(snapshot) = read else {
            return None;
        };
        snapshot.pods.into_iter().find_map(|delivered| {
            let SnapshotEntry::Read(received) = delivered else {
                return None;
            };
            let meta = &received.pod.metadata;
            let is_it = meta.namespace == namespace && meta.name == pod;
            is_it.then(|| PathBuf::from(&*received.origin))
        })
    }
}

/// Cgroups for facts that do not depend on them, on a machine without any.
pub(super) fn stand_in_cgroups() -> Cgroups {
    let line = "1 1 0:1 / /nowhere rw - cgroup2 none rw";
    Cgroups::with_hierarchy(Hierarchy::parse(line).expect("a version 2 tree"))
}

pub(super) fn read_text(path: impl AsRef<Path>) -> String {
    let text = file::read_start(path.as_ref(), MAX_FILE_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn read_number(path: &str) -> u64 {
    read_text(path).trim().parse().unwrap_or(0)
}

/// Finds a program of the machine by its name.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRS
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
}

/// Reason why a program has given no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramAnswerError {
    /// Fault of this machine: the program does not start, or does not end in time.
    #[error(transparent)]
    Run(#[from] io::Error),
    /// Failure of the program: the first line of its standard error.
    #[error("{0}")]
    Failed(String),
}

/// Runs a program and returns its output; `None` if there is no such program.
pub(crate) fn run_program(
    name: &str,
    words: &[&str],
) -> Option<Result<String, ProgramAnswerError>> {
    let command = Command::new(find_program(name)?)
        .args(words)
        .capture_output(MAX_OUTPUT_BYTES);
    let output = match smol::block_on(child::run_command(command, Some(ASK_TIMEOUT))) {
        Ok(output) => output,
        Err(e) => return Some(Err(e.into())),
    };
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Some(if output.status.success() {
        Ok(lossy(&output.stdout))
    } else {
        let told = lossy(&output.stderr);
        Err(ProgramAnswerError::Failed(
            told.lines().next().unwrap_or("").to_owned(),
        ))
    })
}

fn gather_kernel(cgroups: &Cgroups) -> KernelFacts {
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

/// Finds the disk that `path` is on.
fn find_disk(path: &Path) -> Option<DiskWearFacts> {
    let disk = disk_wear::read_disk_wear(path)?;
    Some(DiskWearFacts {
        name: disk.name,
        written: disk.written,
        used_life: disk.used_life,
        at_its_end: disk.at_its_end,
    })
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

fn gather_network(cfg: &AgentConfig) -> NetworkFacts {
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

fn gather_clock() -> ClockFacts {
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

fn gather_dirs(cfg: &AgentConfig, agent: Option<u32>) -> AgentDirectoryFacts {
    let mut mounts = Vec::new();
    let _ = mount::each_mount(|m| mounts.push((m.target, m.kind)));
    let host_mounts = match agent {
        Some(pid) => {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
            of(pid).zip(of(1)).map(|(agent, host)| agent == host)
        }
        None => namespaces::in_host_mount_namespace().ok(),
    };
    AgentDirectoryFacts {
        root_disk: find_disk(&cfg.dirs.root),
        root: gather_dir(&cfg.dirs.root, "--root-dir", &mounts),
        run: gather_dir(&cfg.dirs.run, "--run-dir", &mounts),
        logs: gather_dir(&cfg.dirs.pod_logs, "--pod-logs-dir", &mounts),
        others: other_written_dirs(cfg)
            .into_iter()
            .map(|(path, flag)| gather_dir(&path, flag, &mounts))
            .collect(),
        host_mounts,
        foreign_record: find_newer_record(cfg),
    }
}

/// Lists the other places that the agent writes to, beside its three directories, with the flag that names another
/// place, if there is one (SVC-20).
fn other_written_dirs(cfg: &AgentConfig) -> Vec<(PathBuf, &'static str)> {
    let cluster = &cfg.cluster;
    let mut all = vec![
        (cfg.dirs.container_logs.clone(), "--container-log-dir"),
        (cfg.dirs.image_drop_in.clone(), "--image-dir"),
    ];
    if cluster.is_member() {
        all.push((cluster.cert_dir.clone(), "--cert-dir"));
    }
    // The kubeconfig is written once the bootstrap has led to a certificate.
    if cluster.bootstrap_kubeconfig.is_some()
        && let Some(dir) = cluster.kubeconfig.as_deref().and_then(Path::parent)
    {
        all.push((dir.to_owned(), "--kubeconfig"));
    }
    if !cfg.shutdown.is_empty() {
        all.push((LogindPaths::default().drop_ins, ""));
    }
    all
}

/// Finds a record of a pod, image, sandbox or container that is too new for this program.
fn find_newer_record(cfg: &AgentConfig) -> Option<(String, u32)> {
    let images = cfg.dirs.images_dir();
    [
        (cfg.dirs.root.join("pods"), "pod.json", POD_RECORD_VERSION),
        (images.join("records"), "", record::RECORD_VERSION),
        (
            cfg.dirs.run.join("sandboxes"),
            runc::record::FILE,
            runc::record::VERSION,
        ),
        (
            cfg.dirs.run.join("containers"),
            runc::record::FILE,
            runc::record::VERSION,
        ),
        (
            cfg.dirs.run.join("containers"),
            shim::file::STATE,
            shim::record::VERSION,
        ),
    ]
    .into_iter()
    .find_map(|(dir, file, reads)| {
        let entries = fs::read_dir(dir).ok()?.flatten();
        // Joining an empty name would end the path in a slash.
        let paths = entries.map(|entry| match file {
            "" => entry.path(),
            file => entry.path().join(file),
        });
        let mut versions = paths.filter_map(|path| Some((read_record_version(&path)?, path)));
        let (version, path) = versions.find(|(version, _)| *version > reads)?;
        Some((path.display().to_string(), version))
    })
}

/// Reads the version that a record begins with. A damaged record has none: the agent deals with it.
fn read_record_version(path: &Path) -> Option<u32> {
    let mut head = [0; 32];
    let n = File::open(path).ok()?.read(&mut head).ok()?;
    let rest = core::str::from_utf8(&head[..n])
        .ok()?
        .strip_prefix("{\"v\":")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// Finds the file system on which a directory is, or will be once it is made.
fn gather_dir(path: &Path, moved_by: &str, mounts: &[(PathBuf, String)]) -> DirectoryFacts {
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(path);
    let real = fs::canonicalize(there).unwrap_or_else(|_| there.to_owned());
    // The longest target above it; of two mounts at one place the later hides the earlier.
    let on = mounts
        .iter()
        .filter(|(target, _)| real.starts_with(target))
        .max_by_key(|(target, _)| target.as_os_str().len());
    let mut dir = DirectoryFacts {
        path: path.display().to_string(),
        kind: on.map_or_else(String::new, |(_, kind)| kind.clone()),
        moved_by: moved_by.into(),
        ..DirectoryFacts::default()
    };
    if let Ok(fs) = statvfs(&real) {
        let block = u64::from(fs.fragment_size());
        let has = |flag| fs.flags().contains(flag);
        dir.read_only = has(FsFlags::ST_RDONLY);
        dir.restricted = [
            ("nosuid", FsFlags::ST_NOSUID),
            ("nodev", FsFlags::ST_NODEV),
            ("noexec", FsFlags::ST_NOEXEC),
        ]
        .into_iter()
        .filter(|(_, flag)| has(*flag))
        .map(|(name, _)| name.to_owned())
        .collect();
        dir.size = u64::from(fs.blocks()).saturating_mul(block);
        dir.free = u64::from(fs.blocks_available()).saturating_mul(block);
        dir.inodes = u64::from(fs.files());
        dir.inodes_free = u64::from(fs.files_available());
    }
    dir
}

fn gather_manifests(cfg: &AgentConfig) -> ManifestFacts {
    let url = cfg.manifest_url.as_ref().map(|at| &at.url);
    let open = find_readable_credentials(cfg);
    let at_url = ManifestFacts {
        url: url.map(Url::without_query),
        is_url_plain: url.is_some_and(Url::is_plain_over_network),
        open_secrets: open.iter().cloned().collect(),
        ..ManifestFacts::default()
    };
    let Some(path) = &cfg.dirs.manifests else {
        return at_url;
    };
    let mut out = ManifestFacts {
        path: Some(path.display().to_string()),
        open_secrets: find_readable_secrets(path)
            .into_iter()
            .chain(open)
            .collect(),
        ..at_url
    };
    read_manifests(path, &cfg.node_name, &mut out);
    out
}

/// Looks at one file, or a directory of them, as the agent of node `node` would.
pub(super) fn gather_manifest_file(path: &Path, node: &str) -> ManifestFacts {
    let mut out = ManifestFacts {
        path: Some(path.display().to_string()),
        ..ManifestFacts::default()
    };
    if path.exists() {
        read_manifests(path, node, &mut out);
    } else {
        let why = "does not exist".to_owned();
        out.bad.push((path.display().to_string(), why));
    }
    out
}

fn read_manifests(path: &Path, node: &str, out: &mut ManifestFacts) {
    let told = |problem: &SourceProblem| {
        let one_line = problem.message.replace('\n', "; ");
        (problem.path.display().to_string(), one_line)
    };
    match ManifestDir::new(path.into(), node.into(), RULES).read_source(Trigger::Poll) {
        SourceReading::Unchanged => {}
        SourceReading::Failed(problem) => out.bad.push(told(&problem)),
        SourceReading::Snapshot(snapshot) => {
            for problem in &snapshot.problems {
                let list = match problem.fatal {
                    true => &mut out.bad,
                    false => &mut out.odd,
                };
                list.push(told(problem));
            }
            for delivered in &snapshot.pods {
                let SnapshotEntry::Read(received) = delivered else {
                    continue;
                };
                out.pods += 1;
                let pod = &received.pod;
                let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
                let ports = pod.spec.all_containers().flat_map(|c| &c.ports);
                let wanted = ports.filter(|p| p.protocol.is_empty() || p.protocol == "TCP");
                out.host_ports.extend(
                    wanted
                        .map(|p| p.host_port)
                        .filter(|port| *port != 0)
                        .map(|port| (port, name.clone())),
                );
            }
        }
    }
    out.host_ports.stable_sort();
}

/// Reads the configuration of registries as the agent does. `socket`: of the agent, if there is one.
fn gather_registries(cfg: &AgentConfig, socket: Option<&Path>) -> check::RegistryConfigFacts {
    let path = &cfg.images.registries;
    if !path.exists() {
        return check::RegistryConfigFacts::default();
    }
    let written = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    // The agent makes its socket when it starts.
    let started = socket.and_then(written);
    let mut found = check::RegistryConfigFacts {
        path: Some(path.display().to_string()),
        is_newer: started.is_some_and(|started| written(path).is_some_and(|at| at > started)),
        ..check::RegistryConfigFacts::default()
    };
    match images::read_registries(path) {
        Ok((registries, faults)) => {
            let what = registries.without_effect();
            let of_runtime = cfg.runtime.endpoints.as_ref().and(what);
            let of_runtime = of_runtime.map(|what| format!("{}: {what}", path.display()));
            found.faults = faults.into_iter().chain(of_runtime).collect();
        }
        Err(e) => found.unusable = Some(error_chain(&e)),
    }
    found
}

/// Names `registries.yaml` if it holds credentials and users other than root can read it.
fn find_readable_credentials(cfg: &AgentConfig) -> Option<String> {
    let path = &cfg.images.registries;
    let dir = path.parent()?;
    if !is_open_to_others(dir, 0o011) || !is_open_to_others(path, 0o044) {
        return None;
    }
    let (registries, _) = images::read_registries(path).ok()?;
    let holds = registries.has_credentials();
    holds.then(|| path.display().to_string())
}

/// Returns true if users other than root, the file's group or all, have one of these bits.
fn is_open_to_others(path: &Path, bits: u32) -> bool {
    fs::metadata(path).is_ok_and(|m| m.permissions().mode() & bits != 0)
}

/// Lists the files with a Secret that users other than root can read: the file's group, or all.
fn find_readable_secrets(path: &Path) -> Vec<String> {
    let files: Vec<PathBuf> = if path.is_dir() {
        if !is_open_to_others(path, 0o011) {
            return Vec::new();
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|p| p.is_file()).collect()
    } else {
        vec![path.to_owned()]
    };
    let mut open: Vec<String> = files
        .iter()
        .filter(|file| is_open_to_others(file, 0o044) && holds_secret(&read_text(file)))
        .map(|file| file.display().to_string())
        .collect();
    open.stable_sort();
    open
}

/// Returns true if a manifest is that of a Secret, in YAML or JSON.
fn holds_secret(manifest: &str) -> bool {
    manifest.match_indices("kind").any(|(at, word)| {
        let rest = manifest[at + word.len()..].trim_start_matches(['"', '\'', ' ', '\t', ':']);
        rest.strip_prefix("Secret")
            .is_some_and(|end| !end.starts_with(|c: char| c.is_alphanumeric()))
    })
}

fn find_kubelets() -> Vec<(String, u32)> {
    let mut found: Vec<(String, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let comm = read_text(entry.path().join("comm")).trim().to_owned();
            KUBELETS.contains(&comm.as_str()).then_some((comm, pid))
        })
        .collect();
    found.stable_sort();
    found
}

/// Asks the agent for its health and its process id. `None`: a program of another user, which may name any process.
fn ask_agent_health(socket: &Path) -> (AgentReachability, Option<u32>) {
    if let Err(e) = std::os::unix::net::UnixStream::connect(socket)
        && e.kind() != io::ErrorKind::PermissionDenied
    {
        return (AgentReachability::Absent, None);
    }
    let client = AgentClient::new(socket).with_patience(live::PATIENCE);
    let mut is_trusted = false;
    let answer = client.start_request("GET", "/health", "");
    let health: Result<AgentHealth, _> = answer.and_then(|stream| {
        is_trusted = is_trusted_peer(stream.as_fd());
        AgentClient::read_answer_head(stream)?.parse_json()
    });
    match health {
        Ok(health) => {
            let pid = health.pid;
            let facts = AgentReachability::Up(health);
            (facts, is_trusted.then_some(pid))
        }
        Err(e) => (AgentReachability::Mute(e.bare_message().to_owned()), None),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::TestDir;

    /// Judges only what an agent with these flags would read: configuration, manifests, registries.
    pub(in crate::cli) fn judge_configuration(
        flags: Vec<OsString>,
    ) -> Result<Vec<(&'static str, CheckFinding)>, CliError> {
        let (cfg, wanted, _) = load_configuration(flags, false)?;
        Ok(check::run_checks(&CheckFacts {
            wanted,
            manifests: gather_manifests(&cfg),
            registries: gather_registries(&cfg, None),
            ..CheckFacts::default()
        }))
    }

    #[test]
    fn flags_of_a_process_are_found() {
        // CLI-04
        let dir = TestDir::new("running");
        for command in ["run", "fly"] {
            // In its directory the shell takes the first word for a file.
            fs::write(dir.join(command), "read line").expect("written");
            let mut agent = std::process::Command::new("sh")
                .args([command, "-v4"])
                .stdin(std::process::Stdio::piped())
                .current_dir(&dir.0)
                .spawn()
                .expect("started");
            let found = running_agent_flags(agent.id());
            drop(agent.stdin.take());
            agent.wait().expect("ended");
            let flags = (vec!["-v4".into()], false, dir.0.clone());
            assert_eq!(found, (command == "run").then_some(flags));
        }
        assert_eq!(running_agent_flags(u32::MAX), None);
    }

    #[test]
    fn registries_are_read_as_the_agent_reads_them() {
        // CONF-23
        let dir = TestDir::new("gather-registries");
        let path = dir.join("r.yaml");
        let socket = dir.join("socket");
        let stand_in = HostIdentity {
            hostname: "board".into(),
        };
        let mut cfg = config::default_config(&stand_in).expect("defaults");
        cfg.images.registries.clone_from(&path);
        assert_eq!(gather_registries(&cfg, None).path, None, "no file");
        fs::write(&path, "mirrors: [").expect("written");
        let found = gather_registries(&cfg, None);
        assert_eq!(found.path, Some(path.display().to_string()));
        assert!(found.unusable.is_some_and(|why| why.contains("r.yaml")));
        fs::write(&path, "mirrors: {a: {}}\nmirrrors: {}\n").expect("written");
        assert_eq!(gather_registries(&cfg, None).faults.len(), 1);
        cfg.runtime.endpoints = Some(config::RuntimeEndpoints {
            runtime: "/r".into(),
            images: "/r".into(),
        });
        let faults = gather_registries(&cfg, None).faults;
        assert!(faults[1].ends_with("set them in the container runtime"));
        let start = |seconds| {
            fs::write(&socket, "").expect("written");
            let at = fs::metadata(&path).and_then(|meta| meta.modified());
            let at = at.expect("a time") + Duration::from_secs(10) - Duration::from_secs(seconds);
            let file = File::options().write(true).open(&socket).expect("socket");
            file.set_modified(at).expect("set");
            gather_registries(&cfg, Some(&socket)).is_newer
        };
        assert!(start(20) && !start(0));
    }

    #[test]
    fn versions_of_records() {
        let path = crate::testing::unused_path("record");
        for (text, version) in [
            ("{\"v\":1,\"source\":\"file\"}\n{}", Some(1)),
            ("{\"v\":12}", Some(12)),
            ("{\"v\":", None),
            ("{\"v\":99999999999999,", None),
            ("torn", None),
            ("", None),
        ] {
            fs::write(&path, text).expect("written");
            assert_eq!(read_record_version(&path), version, "{text:?}");
        }
        fs::remove_file(&path).expect("removed");
        assert_eq!(read_record_version(&path), None);
    }

    #[test]
    fn units_of_plugins() {
        // DEV-37
        let unit = |resource: &str, id: &str, healthy, plugin| DeviceReport {
            resource: resource.into(),
            id: id.into(),
            healthy,
            plugin,
            ..DeviceReport::default()
        };
        let all = vec![
            unit("a.io/x", "1", true, true),
            unit("a.io/x", "2", false, true),
            unit("a.io/x", "3", true, true),
            unit("b.io/none", "", false, true),
            unit("picolet/serial", "4", true, false),
        ];
        let counted = [("a.io/x".to_owned(), 2), ("b.io/none".to_owned(), 0)];
        assert_eq!(count_healthy_units(all), counted);
    }

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
        for (text, secret) in [
            ("apiVersion: v1\nkind: Secret\n", true),
            ("{\"kind\": \"Secret\"}", true),
            ("{'kind':'Secret','x':1}", true),
            ("kind: SecretProviderClass\n", false),
            ("kind: Pod\nspec: {volumes: [{secret: {}}]}\n", false),
            ("", false),
        ] {
            assert_eq!(holds_secret(text), secret, "{text}");
        }
    }

    #[test]
    fn the_file_system_of_a_directory_to_be() {
        let mounts = [("/", "ext4"), ("/run", "tmpfs"), ("/run/lock", "ramfs")]
            .map(|(target, kind)| (target.into(), kind.to_owned()));
        let absent = gather_dir(Path::new("/run/no-such-dir/x"), "--x", &mounts);
        assert_eq!(
            (absent.kind.as_str(), absent.path.as_str()),
            ("tmpfs", "/run/no-such-dir/x")
        );
        assert!(absent.size > 0);
        assert_eq!(
            gather_dir(Path::new("/runner"), "--x", &mounts).kind,
            "ext4"
        );
    }
}
