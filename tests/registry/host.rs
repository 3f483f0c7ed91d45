//! The whole program, without pods, on directories of its own.

use core::time::Duration;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use picolet::sys::clock;

use crate::program::program;
use crate::registry::Scratch;

/// How long a condition may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// An agent without pods.
pub(crate) struct Agent {
    pub(crate) child: Child,
    dir: PathBuf,
}

/// The directories of an agent; what is mounted goes with them.
pub(crate) struct Place(pub(crate) Scratch);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(Scratch::new());
        for dir in ["root", "run", "man", "img", "logs", "clogs", "cni"] {
            fs::create_dir(place.0.0.join(dir)).expect("directory");
        }
        let run = place.0.0.join("run");
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
}

impl Drop for Place {
    fn drop(&mut self) {
        let base = self.0.0.display().to_string();
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
        let dir = place.0.0.clone();
        let at = |name: &str| dir.join(name).display().to_string();
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("agent.log"))
            .expect("agent log");
        let mark = format!("pr{}", std::process::id());
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
            .args(["--bridge", &mark, "--pod-cidr", "10.247.0.0/24"])
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
        let mut agent = Self { child, dir };
        let deadline = clock::mono() + PATIENCE;
        while !agent.cli(&["get", "node", "-o", "name"]).status.success() {
            let ended = agent.child.try_wait().expect("agent").is_some();
            let log = fs::read_to_string(agent.dir.join("agent.log")).unwrap_or_default();
            assert!(!ended && clock::mono() < deadline, "{log}");
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
    }
}
