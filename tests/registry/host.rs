//! The whole program, without pods, on directories of its own.

use core::time::Duration;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use picolet::sys::clock;

use crate::program::program;
use crate::registry::Scratch;

/// How long a condition may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// An agent without pods. Its cgroups end with it.
pub(crate) struct Agent {
    pub(crate) child: Child,
    dir: PathBuf,
    mark: String,
}

/// What an agent has to itself; what is mounted goes with its directories.
pub(crate) struct Place {
    scratch: Scratch,
    /// Name of the bridge and of the topmost cgroup.
    mark: String,
    subnet: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let place = Self {
            scratch: Scratch::new(),
            // The letter at the end keeps one mark from being the beginning of another.
            mark: format!("pr{pid}n{number}x"),
            subnet: format!("10.{}.{}.0/24", 40 + pid % 40, number % 250),
        };
        for dir in ["root", "run", "man", "img", "logs", "clogs", "cni"] {
            fs::create_dir(place.path(dir)).expect("directory");
        }
        let run = place.path("run");
        mount(
            Some("picolet-test"),
            &run,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=755"),
        )
        .expect("tmpfs");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let base = self.scratch.0.display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines().rev() {
            if let Some(at) = line.split(' ').nth(1).filter(|at| at.starts_with(&base)) {
                let _ = umount2(at, MntFlags::MNT_DETACH);
            }
        }
    }
}

impl Agent {
    pub(crate) fn start(place: &Place) -> Self {
        let dir = place.scratch.0.clone();
        let at = |name: &str| dir.join(name).display().to_string();
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("agent.log"))
            .expect("agent log");
        let mark = place.mark.clone();
        let child = Command::new(program())
            .arg("run")
            .args(["--root-dir", &at("root"), "--run-dir", &at("run")])
            .args(["--pod-manifest-path", &at("man"), "--image-dir", &at("img")])
            .args([
                "--pod-logs-dir",
                &at("logs"),
                "--container-log-dir",
                &at("clogs"),
            ])
            .args([
                "--cni-conf-dir",
                &at("cni"),
                "--cgroup-root",
                &format!("/{mark}"),
            ])
            .args(["--bridge", &mark, "--pod-cidr", &place.subnet])
            .args([
                "--private-registry",
                &at("registries.yaml"),
                "--fail-swap-on=false",
                "--minimum-image-ttl-duration=1ms",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("agent");
        let mut agent = Self { child, dir, mark };
        let deadline = clock::mono_now() + PATIENCE;
        while !agent.cli(&["get", "node", "-o", "name"]).status.success() {
            let ended = agent.child.try_wait().expect("agent").is_some();
            let log = fs::read_to_string(agent.dir.join("agent.log")).unwrap_or_default();
            assert!(!ended && clock::mono_now() < deadline, "{log}");
        }
        agent
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(words)
            .env("PICOLET_SOCKET", self.dir.join("run/picolet.sock"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn cli(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("picolet")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let top = Path::new("/sys/fs/cgroup");
        let entries = fs::read_dir(top).into_iter().flatten().flatten();
        // In the only hierarchy, or in each of several.
        for root in entries.map(|e| e.path()).chain([top.to_path_buf()]) {
            remove_cgroup(&root.join(&self.mark));
        }
    }
}

/// Removes a cgroup and those below it. What is still in use stays.
fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
