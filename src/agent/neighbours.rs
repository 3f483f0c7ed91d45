//! Who else runs pods on this machine. Two agents on one cgroup root end each other's pods as orphans, two on one log
//! directory delete each other's logs, two on one bridge give out the same addresses: the second one is refused.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use crate::{config::Config, logic::digest::Fnv, sys::lock};

/// Locks of what is one per machine, whatever directories an agent has: a file each, held for the agent's life.
const LOCKS_DIR: &str = "/run/picolet.locks";
/// Bytes read of a process's name or command line.
const MAX_PROC_BYTES: u64 = 64 * 1024;
/// Where every kubelet keeps the logs of its pods.
const KUBELET_LOGS: &str = "/var/log/pods";

/// Who has what this agent must have for itself, and the way out.
#[derive(Debug, thiserror::Error)]
pub(super) enum NeighbourError {
    #[error(
        "a kubelet (process {0}) runs pods on this machine, with the same cgroup root or log directory: end it, or \
         give this agent --cgroup-root and --pod-logs-dir of its own"
    )]
    Kubelet(u32),
    #[error("another picolet uses {what} {value}: end it, or give this one its own ({flag})")]
    Agent {
        what: &'static str,
        flag: &'static str,
        value: String,
    },
}

/// Claims what this agent must have for itself. The locks are held as long as the files are open.
pub(super) fn claim(cfg: &Config) -> Result<Vec<File>, NeighbourError> {
    if let Some(pid) = kubelet_beside(cfg) {
        return Err(NeighbourError::Kubelet(pid));
    }
    // Of agents that are gone. Who takes one at this moment holds it, or finds that it is no longer there.
    if let Err(e) = lock::sweep(Path::new(LOCKS_DIR))
        && e.kind() != io::ErrorKind::NotFound
    {
        log::debug!("{LOCKS_DIR}: {e}");
    }
    let wanted = wanted(cfg);
    let mut held = Vec::with_capacity(wanted.len());
    for (what, flag, value) in wanted {
        match take(Path::new(LOCKS_DIR), what, &value, lock::try_lock_patiently) {
            Ok(Some(file)) => held.push(file),
            Ok(None) => return Err(NeighbourError::Agent { what, flag, value }),
            // A guard against a mistake is no reason to leave a node without its agent.
            Err(e) => log::warn!("cannot lock {what} {value}: {e}"),
        }
    }
    Ok(held)
}

/// Removes the files of the locks (reset), whose holder is the caller.
pub(super) fn forget(cfg: &Config) {
    for (what, _, value) in wanted(cfg) {
        // What is left is an empty file in memory.
        let _ = fs::remove_file(Path::new(LOCKS_DIR).join(name_of(what, &value)));
    }
    let _ = fs::remove_dir(LOCKS_DIR);
}

/// What an agent must have for itself: what it is, the flag that gives it another, its value.
fn wanted(cfg: &Config) -> Vec<(&'static str, &'static str, String)> {
    let logs = fs::canonicalize(&cfg.dirs.pod_logs).unwrap_or_else(|_| cfg.dirs.pod_logs.clone());
    let mut wanted = vec![
        (
            "cgroup root",
            "--cgroup-root",
            cgroup_root(&cfg.cgroup.root),
        ),
        (
            "log directory",
            "--pod-logs-dir",
            logs.display().to_string(),
        ),
    ];
    if let Some(endpoints) = &cfg.runtime.endpoints {
        let socket = &endpoints.runtime;
        let socket = fs::canonicalize(socket).unwrap_or_else(|_| socket.clone());
        let flag = "--container-runtime-endpoint";
        wanted.push(("container runtime", flag, socket.display().to_string()));
    } else if uses_bridge(&cfg.network.cni_conf) {
        let bridge = cfg.network.builtin_bridge.clone();
        wanted.push(("bridge", "--bridge", bridge));
    }
    if let Some(listen) = cfg.server.listen {
        wanted.push(("address", "--port", listen.to_string()));
    }
    wanted
}

/// Takes a lock by `how`.
fn take(
    dir: &Path,
    what: &str,
    value: &str,
    how: fn(&Path) -> io::Result<Option<File>>,
) -> io::Result<Option<File>> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    how(&dir.join(name_of(what, value)))
}

fn name_of(what: &str, value: &str) -> String {
    let mut fnv = Fnv::default();
    fnv.text(value);
    format!("{}-{:032x}", what.replace(' ', "-"), fnv.finish())
}

/// Without a network configuration of the machine's the built-in one is used, and its bridge.
fn uses_bridge(conf: &Path) -> bool {
    fs::read_dir(conf).map_or(true, |mut entries| entries.next().is_none())
}

/// `/` and the empty text are the same root, and a slash at the end means nothing.
fn cgroup_root(text: &str) -> String {
    format!("/{}", text.trim_matches('/'))
}

/// A kubelet that sees the same files as we do and shares a cgroup root or log directory with us.
fn kubelet_beside(cfg: &Config) -> Option<u32> {
    let own = fs::read_link("/proc/self/ns/mnt").ok()?;
    let logs = cfg.dirs.pod_logs == Path::new(KUBELET_LOGS);
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let dir = entry.path();
        if read(&dir.join("comm")).trim() != "kubelet"
            || fs::read_link(dir.join("ns/mnt")).ok().as_ref() != Some(&own)
        {
            continue;
        }
        let root = cgroup_root(&flag_of(&read(&dir.join("cmdline")), "--cgroup-root"));
        if logs || root == cgroup_root(&cfg.cgroup.root) {
            return Some(pid);
        }
    }
    None
}

fn read(path: &Path) -> String {
    let mut text = Vec::new();
    // A process may end while it is looked at.
    let _ = File::open(path).and_then(|f| f.take(MAX_PROC_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Value of a flag in `/proc/<pid>/cmdline`, in either of its forms; empty if it is not there.
fn flag_of(cmdline: &str, flag: &str) -> String {
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
        let dir = std::env::temp_dir().join(format!("picolet-locks-{}", std::process::id()));
        let first = take(&dir, "cgroup root", "/a", lock::try_lock)
            .expect("lock")
            .expect("free");
        assert!(
            take(&dir, "cgroup root", "/a", lock::try_lock)
                .expect("lock")
                .is_none()
        );
        assert!(
            take(&dir, "cgroup root", "/b", lock::try_lock)
                .expect("lock")
                .is_some()
        );
        assert!(
            take(&dir, "bridge", "/a", lock::try_lock)
                .expect("lock")
                .is_some()
        );
        drop(first);
        assert!(
            take(&dir, "cgroup root", "/a", lock::try_lock)
                .expect("lock")
                .is_some()
        );
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
            let found = cgroup_root(&flag_of(cmdline, "--cgroup-root"));
            assert_eq!(found, root, "{cmdline:?}");
        }
    }
}
