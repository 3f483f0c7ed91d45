//! Looks at the machine for the preflight. Looks change nothing; facts that cannot be read stay absent.

use core::time::Duration;
use std::{
    ffi::OsString,
    fs, io,
    os::{fd::AsFd as _, unix::ffi::OsStringExt as _},
    path::{Path, PathBuf},
};

use super::super::{
    AgentClient, CliError, KUBELET, agent_socket, command_place, live,
    read_proxies as named_proxies,
};
use super::{
    apiserver,
    dirs::gather_dirs,
    kubeadm,
    machine::{gather_clock, gather_kernel, gather_network},
    manifests::{gather_manifests, gather_registries},
    runtime,
};
use crate::{
    agent::{find_start_faults, kernel_settings},
    api::{Quantity, health::AgentHealth, order::OrderExt as _, received::SnapshotEntry},
    cgroup::{CgroupVersion, Cgroups, Hierarchy},
    config::{
        self, AgentConfig, HostIdentity, STAND_IN_NAME,
        flags::{self, FlagError},
    },
    error::error_chain,
    logic::{
        check::{self, AgentReachability, CheckFacts, CheckFinding},
        eviction::EvictionSignal,
        object_fields, static_pod, validation,
    },
    runtime::runc::host,
    server::{
        backend::{DeviceReport, ObjectList},
        is_trusted_peer,
    },
    source::{ManifestDir, Rules, SourceReading, Trigger},
    sys::{
        child::{self, Command},
        file,
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
pub(super) const RULES: Rules = Rules {
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

pub(super) fn read_number(path: &str) -> u64 {
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
            let facts = AgentReachability::Up(Box::new(health));
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
}
