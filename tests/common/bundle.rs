//! Bundles for real containers: a root file system from `/bin/busybox`, a configuration, and runc around them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The runtime under test.
pub(crate) const RUNC: &str = "/usr/sbin/runc";
const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 18] = [
    "sh", "cat", "echo", "env", "false", "head", "ls", "printf", "seq", "sleep", "stty", "tail",
    "tr", "true", "wc", "kill", "dd", "yes",
];

/// Says aloud why real containers cannot run here; `None` if they can.
pub(crate) fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("it needs root".into());
    }
    for path in [RUNC, BUSYBOX] {
        if !Path::new(path).exists() {
            return Some(format!("{path} is not installed"));
        }
    }
    None
}

/// A container to be: removed with all its traces when dropped.
pub(crate) struct Bundle {
    /// Run directory of the container, and its bundle.
    pub(crate) dir: PathBuf,
    /// The runtime's state directory.
    pub(crate) root: PathBuf,
    /// The log file.
    pub(crate) log: PathBuf,
    /// Id at the runtime.
    pub(crate) id: String,
    /// Memory cgroup.
    pub(crate) memory_cgroup: PathBuf,
    top: PathBuf,
    cgroup: String,
}

impl Bundle {
    /// `script` is run by the container's shell; `change` edits the configuration.
    pub(crate) fn new(script: &str, change: impl FnOnce(&mut serde_json::Value)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!(
            "picolet-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // On tmpfs, as the run directory of an agent is.
        let top = Path::new("/dev/shm").join(&id);
        let bundle = Self {
            dir: top.join("run"),
            root: top.join("runc"),
            log: top.join("logs/0.log"),
            memory_cgroup: Path::new("/sys/fs/cgroup/memory").join(&id),
            cgroup: format!("/{id}"),
            top,
            id,
        };
        for dir in [
            "run",
            "logs",
            "rootfs/bin",
            "rootfs/proc",
            "rootfs/dev",
            "rootfs/tmp",
        ] {
            fs::create_dir_all(bundle.top.join(dir)).expect("bundle directory");
        }
        fs::copy(BUSYBOX, bundle.top.join("rootfs/bin/busybox")).expect("busybox");
        for applet in APPLETS {
            symlink("busybox", bundle.top.join("rootfs/bin").join(applet)).expect("applet");
        }
        let mut config = serde_json::json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", script],
                "env": ["PATH=/bin"],
                "cwd": "/",
                "noNewPrivileges": true
            },
            "root": {"path": bundle.top.join("rootfs")},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666"]}
            ],
            "linux": {
                "cgroupsPath": bundle.cgroup,
                "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}]
            }
        });
        change(&mut config);
        fs::write(bundle.dir.join("config.json"), config.to_string()).expect("configuration");
        bundle
    }

    /// Runs a command of the runtime.
    pub(crate) fn runc(&self, args: &[&str]) -> Output {
        Command::new(RUNC)
            .arg("--root")
            .arg(&self.root)
            .args(args)
            .arg(&self.id)
            .output()
            .expect("runc")
    }

    /// Starts the created container.
    pub(crate) fn start(&self) {
        let output = self.runc(&["start"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Sends a signal to init.
    pub(crate) fn kill(&self, signal: &str) {
        let args = [
            "--root",
            self.root.to_str().expect("path"),
            "kill",
            &self.id,
            signal,
        ];
        let output = Command::new(RUNC).args(args).output().expect("runc");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// The log's text.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("log")).into_owned()
    }

    /// What the container wrote to `stream`, joined as a reader of the log does.
    pub(crate) fn output(&self, stream: &str) -> String {
        joined(&self.log(), stream)
    }
}

/// Joins the records of one stream; checks the form of each.
pub(crate) fn joined(log: &str, stream: &str) -> String {
    let mut out = String::new();
    // Not `lines`: a carriage return is text.
    for line in log.split_terminator('\n') {
        let mut fields = line.splitn(4, ' ');
        let mut next = || {
            fields
                .next()
                .unwrap_or_else(|| panic!("not a record: {line:?}"))
        };
        let (time, name, tag, text) = (next(), next(), next(), next());
        assert!(
            picolet::api::WallTime::parse(time).is_some() && time.len() == 30,
            "{line:?}"
        );
        if name == stream {
            out += text;
            match tag {
                "F" => out.push('\n'),
                "P" => {}
                _ => panic!("not a tag: {line:?}"),
            }
        }
    }
    out
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = self.runc(&["delete", "--force"]);
        for hierarchy in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = fs::remove_dir(hierarchy.path().join(&self.id));
        }
        let _ = fs::remove_dir_all(&self.top);
    }
}
