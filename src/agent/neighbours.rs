//! Other agents on this machine. Two agents on one cgroup root end each other's pods as orphans, two on one log
//! directory delete each other's logs, two on one bridge give out the same addresses: the second one is refused.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use crate::{
    api::cri::CgroupDriver,
    cgroup::Cgroups,
    config::{AgentConfig, decode},
    logic::{cgroup::CgroupTree, digest::FnvHasher},
    runtime::runc::cni::NetworkConfig,
    sys::{file, lock},
};

/// Locks of what is one per machine or network, whatever directories an agent has: a file each, held for the agent's life.
const LOCKS_DIR: &str = "/run/picolet.locks";
/// Names of what is one per network namespace.
const BRIDGE: &str = "bridge";
const ADDRESS: &str = "address";
/// Bytes read of a process's name or command line.
const MAX_PROC_BYTES: u64 = 64 * 1024;
/// Directory where every kubelet keeps the logs of its pods.
const KUBELET_LOGS: &str = "/var/log/pods";
/// The runtime of a kubelet that is not told another one.
const KUBELET_RUNTIME: &str = "unix:///run/containerd/containerd.sock";
/// In the run directory: the runtime that ran the pods of the last agent, if it did not run them itself.
const BACKEND_FILE: &str = "pods-run-by";
/// Name in messages of an agent that runs pods itself.
const OWN: &str = "picolet itself";

/// Conflict with another agent over something that each must have for itself, and the way out.
#[derive(Debug, thiserror::Error)]
pub(super) enum NeighbourError {
    #[error(
        "a kubelet (process {0}) runs pods on this machine, with the same cgroup root, log directory or container \
         runtime: end it, or give this agent --cgroup-root, --pod-logs-dir and --container-runtime-endpoint of its own"
    )]
    Kubelet(u32),
    #[error("another picolet uses {what} {value}: end it, or give this one its own ({flag})")]
    Agent {
        what: &'static str,
        flag: &'static str,
        value: String,
    },
    #[error(
        "pods of {last} still run, and {next} would not see them: start picolet as before and end them (picolet stop --all)"
    )]
    Left { last: String, next: String },
}

/// Claims what this agent must have for itself. The locks are held as long as the files are open.
pub(super) fn claim_exclusive_resources(cfg: &AgentConfig) -> Result<Vec<File>, NeighbourError> {
    if let Some(pid) = find_conflicting_kubelet(cfg) {
        return Err(NeighbourError::Kubelet(pid));
    }
    // Of agents that are gone. Who takes one at this moment holds it, or finds that it is no longer there.
    if let Err(e) = lock::sweep_free_locks(Path::new(LOCKS_DIR))
        && e.kind() != io::ErrorKind::NotFound
    {
        log::debug!("{LOCKS_DIR}: {e}");
    }
    let wanted = exclusive_resources(cfg);
    let mut held = Vec::with_capacity(wanted.len());
    for (what, flag, value) in wanted {
        match take_file_lock(Path::new(LOCKS_DIR), what, &value, lock::try_lock_patiently) {
            Ok(Some(file)) => held.push(file),
            Ok(None) => return Err(NeighbourError::Agent { what, flag, value }),
            // A guard against a mistake is no reason to leave a node without its agent.
            Err(e) => log::warn!("cannot lock {what} {value}: {e}"),
        }
    }
    Ok(held)
}

/// Removes the files of the locks (reset), whose holder is the caller.
pub(super) fn remove_lock_files(cfg: &AgentConfig) {
    for (what, _, value) in exclusive_resources(cfg) {
        // What is left is an empty file in memory.
        let _ = fs::remove_file(Path::new(LOCKS_DIR).join(lock_file_name(what, &value)));
    }
    let _ = fs::remove_dir(LOCKS_DIR);
}

/// Things that an agent must have for itself: the thing, the flag that gives it another, its value.
fn exclusive_resources(cfg: &AgentConfig) -> Vec<(&'static str, &'static str, String)> {
    let logs = resolve_links(&cfg.dirs.pod_logs);
    let mut wanted = vec![
        (
            "cgroup root",
            "--cgroup-root",
            normalize_cgroup_root(&cfg.cgroup.tree.root),
        ),
        (
            "log directory",
            "--pod-logs-dir",
            logs.display().to_string(),
        ),
    ];
    if let Some(endpoints) = &cfg.runtime.endpoints {
        let socket = resolve_links(&endpoints.runtime);
        let flag = "--container-runtime-endpoint";
        wanted.push(("container runtime", flag, socket.display().to_string()));
    } else if uses_builtin_bridge(&cfg.network.cni_conf) {
        let bridge = cfg.network.builtin_bridge.clone();
        wanted.push((BRIDGE, "--bridge", bridge));
    }
    if let Some(listen) = cfg.server.listen {
        wanted.push((ADDRESS, "--port", listen.to_string()));
    }
    wanted
}

/// Takes a lock by `how`.
fn take_file_lock(
    dir: &Path,
    what: &str,
    value: &str,
    how: fn(&Path) -> io::Result<Option<File>>,
) -> io::Result<Option<File>> {
    file::make_dirs(dir, 0o700)?;
    how(&dir.join(lock_file_name(what, value)))
}

fn lock_file_name(what: &str, value: &str) -> String {
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    name_lock_file(what, value, &network.to_string_lossy())
}

/// Names the file of a lock. Bridges and addresses are one per `network` namespace, the rest one per machine.
fn name_lock_file(what: &str, value: &str, network: &str) -> String {
    let mut fnv = FnvHasher::default();
    fnv.write_text(value);
    if matches!(what, BRIDGE | ADDRESS) {
        fnv.write_text(network);
    }
    format!("{}-{:032x}", what.replace(' ', "-"), fnv.finish())
}

/// Without a network configuration of the machine's the built-in one is used, and its bridge.
fn uses_builtin_bridge(conf: &Path) -> bool {
    NetworkConfig::read_first_in(conf).is_ok_and(|first| first.is_none())
}

/// `/` and the empty text are the same root, and a slash at the end means nothing.
fn normalize_cgroup_root(text: &str) -> String {
    format!("/{}", text.trim_matches('/'))
}

/// A kubelet that sees the same files as we do and shares a cgroup root, log directory or runtime with us.
fn find_conflicting_kubelet(cfg: &AgentConfig) -> Option<u32> {
    let own = fs::read_link("/proc/self/ns/mnt").ok()?;
    let logs = cfg.dirs.pod_logs == Path::new(KUBELET_LOGS);
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let dir = entry.path();
        if read_or_empty(&dir.join("comm")).trim() != "kubelet"
            || fs::read_link(dir.join("ns/mnt")).ok().as_ref() != Some(&own)
        {
            continue;
        }
        let kubelet =
            KubeletPaths::from_command_line(&read_or_empty(&dir.join("cmdline")), &dir.join("cwd"));
        let endpoints = cfg.runtime.endpoints.as_ref();
        if logs
            || kubelet.root == normalize_cgroup_root(&cfg.cgroup.tree.root)
            || endpoints.is_some_and(|own| resolve_links(&own.runtime) == kubelet.runtime)
        {
            return Some(pid);
        }
    }
    None
}

/// Things of a kubelet that others must not have too.
struct KubeletPaths {
    root: String,
    runtime: PathBuf,
}

impl KubeletPaths {
    /// Reads them from its flags, else from its configuration, else takes a kubelet's defaults. `cwd`: its working
    /// directory.
    fn from_command_line(cmdline: &str, cwd: &Path) -> Self {
        let config = match flag_value(cmdline, "--config") {
            path if path.is_empty() => String::new(),
            path => read_or_empty(&cwd.join(path)),
        };
        let config = decode::parse_document(config.as_bytes()).map(|document| document.value);
        let config = config.unwrap_or_default();
        let said = |flag: &str, field: &str| match flag_value(cmdline, flag) {
            text if text.is_empty() => config[field].as_str().unwrap_or_default().to_owned(),
            text => text,
        };
        let runtime = match said("--container-runtime-endpoint", "containerRuntimeEndpoint") {
            text if text.is_empty() => KUBELET_RUNTIME.to_owned(),
            text => text,
        };
        let socket = runtime.strip_prefix("unix://").unwrap_or(&runtime);
        Self {
            root: normalize_cgroup_root(&said("--cgroup-root", "cgroupRoot")),
            runtime: resolve_links(Path::new(socket)),
        }
    }
}

/// A path without links, if it is there.
fn resolve_links(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Whoever runs pods from now on must see those that run: another backend would start them once more (CRI-96).
///
/// - Errors: some run that the backend of this configuration does not see.
pub(super) fn check_backend(cfg: &AgentConfig, cgroups: &Cgroups) -> Result<(), NeighbourError> {
    // Whoever ran them may have made groups in the other way.
    let runs = || {
        let trees = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd].map(|driver| CgroupTree {
            root: cfg.cgroup.tree.root.clone(),
            driver,
        });
        let runs = |tree: &CgroupTree| !cgroups.list_pids(&tree.kubepods_path()).is_empty();
        trees.iter().any(runs)
    };
    match last_backend(&cfg.dirs.run) {
        Some(last) if last != configured_backend(cfg) && runs() => {
            let next = configured_backend(cfg);
            Err(NeighbourError::Left { last, next })
        }
        Some(_) | None => Ok(()),
    }
}

/// Keeps who runs pods from now on, until a reboot ends them.
pub(super) fn record_backend(cfg: &AgentConfig) -> io::Result<()> {
    let path = cfg.dirs.run.join(BACKEND_FILE);
    if cfg.runtime.endpoints.is_some() {
        return file::write_atomic(&path, configured_backend(cfg).as_bytes(), 0o600, false);
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Name of the runtime that ran the pods of the last agent in this boot.
fn last_backend(run: &Path) -> Option<String> {
    let runtime = read_or_empty(&run.join(BACKEND_FILE));
    if !runtime.is_empty() {
        return Some(runtime);
    }
    let made = fs::read_dir(run.join("sandboxes"));
    made.is_ok_and(|mut entries| entries.next().is_some())
        .then(|| OWN.to_owned())
}

/// Name of the runtime that this configuration selects.
fn configured_backend(cfg: &AgentConfig) -> String {
    let endpoints = cfg.runtime.endpoints.as_ref();
    endpoints.map_or_else(
        || OWN.to_owned(),
        |own| resolve_links(&own.runtime).display().to_string(),
    )
}

fn read_or_empty(path: &Path) -> String {
    // A process may end while it is looked at.
    let text = file::read_start(path, MAX_PROC_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// Value of a flag in `/proc/<pid>/cmdline`, in either of its forms; empty if it is not there.
fn flag_value(cmdline: &str, flag: &str) -> String {
    let mut words = cmdline.split('\0');
    while let Some(word) = words.next() {
        if word == flag {
            return words.next().unwrap_or_default().to_owned();
        }
        if let Some(value) = word.strip_prefix(flag).and_then(|w| w.strip_prefix('=')) {
            return value.to_owned();
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_each() {
        let dir = crate::testing::unused_path("locks");
        let first = take_file_lock(&dir, "cgroup root", "/a", lock::try_lock)
            .expect("lock")
            .expect("free");
        assert!(
            take_file_lock(&dir, "cgroup root", "/a", lock::try_lock)
                .expect("lock")
                .is_none()
        );
        assert!(
            take_file_lock(&dir, "cgroup root", "/b", lock::try_lock)
                .expect("lock")
                .is_some()
        );
        assert!(
            take_file_lock(&dir, "bridge", "/a", lock::try_lock)
                .expect("lock")
                .is_some()
        );
        drop(first);
        assert!(
            take_file_lock(&dir, "cgroup root", "/a", lock::try_lock)
                .expect("lock")
                .is_some()
        );
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn each_network_has_its_own_addresses() {
        for (what, is_same) in [(ADDRESS, false), (BRIDGE, false), ("cgroup root", true)] {
            let names = ["net:[1]", "net:[2]"].map(|network| name_lock_file(what, "/a", network));
            assert_eq!(names[0] == names[1], is_same, "{what}");
            assert_eq!(names[0], name_lock_file(what, "/a", "net:[1]"));
        }
    }

    #[test]
    fn whose_bridge_pods_use() {
        let dir = crate::testing::unused_path("bridges");
        assert!(uses_builtin_bridge(&dir), "there is no directory");
        fs::create_dir_all(&dir).expect("directory");
        // As `picolet check` advises to put a configuration aside.
        for name in ["README", "10-a.conflist.off"] {
            fs::write(dir.join(name), "{}").expect("file");
        }
        assert!(uses_builtin_bridge(&dir), "none is a configuration");
        let text = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "ptp"}]}"#;
        fs::write(dir.join("10-a.conflist"), text).expect("file");
        assert!(!uses_builtin_bridge(&dir), "pods use another network");
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn words_of_a_kubelet() {
        for (cmdline, root) in [
            ("kubelet\0--cgroup-root=/x/\0--v=2\0", "/x"),
            ("kubelet\0--cgroup-root\0x\0", "/x"),
            ("kubelet\0--cgroup-root-else=/x\0", "/"),
            ("kubelet\0--cgroup-root\0", "/"),
            ("", "/"),
        ] {
            let found = normalize_cgroup_root(&flag_value(cmdline, "--cgroup-root"));
            assert_eq!(found, root, "{cmdline:?}");
        }
    }
    #[test]
    fn runtimes_of_a_kubelet() {
        // CRI-96
        let dir = crate::testing::unused_path("kubelets");
        fs::create_dir_all(&dir).expect("directory");
        let config = "cgroupRoot: /y\ncontainerRuntimeEndpoint: unix:///nowhere/b.sock\n";
        fs::write(dir.join("config.yaml"), config).expect("file");
        fs::write(dir.join("broken.yaml"), "a: [").expect("file");
        for (words, root, runtime) in [
            ("", "/", "/run/containerd/containerd.sock"),
            (
                "--container-runtime-endpoint=/nowhere/a.sock\0--cgroup-root\0x",
                "/x",
                "/nowhere/a.sock",
            ),
            ("--config=config.yaml", "/y", "/nowhere/b.sock"),
            (
                "--config\0config.yaml\0--container-runtime-endpoint\0unix:///nowhere/a.sock",
                "/y",
                "/nowhere/a.sock",
            ),
            (
                "--config=broken.yaml",
                "/",
                "/run/containerd/containerd.sock",
            ),
        ] {
            let kubelet = KubeletPaths::from_command_line(&format!("kubelet\0{words}\0"), &dir);
            assert_eq!(kubelet.root, root, "{words:?}");
            let wanted = resolve_links(Path::new(runtime));
            assert_eq!(kubelet.runtime, wanted, "{words:?}");
        }
        fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn who_ran_pods() {
        let dir = crate::testing::unused_path("backends");
        assert_eq!(last_backend(&dir), None);
        fs::create_dir_all(dir.join("sandboxes")).expect("directory");
        assert_eq!(last_backend(&dir), None);
        fs::create_dir(dir.join("sandboxes/a")).expect("directory");
        assert_eq!(last_backend(&dir).as_deref(), Some(OWN));
        fs::write(dir.join(BACKEND_FILE), "/run/c.sock").expect("file");
        assert_eq!(last_backend(&dir).as_deref(), Some("/run/c.sock"));
        fs::remove_dir_all(&dir).expect("clean up");
    }
}
