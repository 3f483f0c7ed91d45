//! Debian's containerd, started privately: configuration, root, state, sockets, network and images of its own. The tasks of
//! the project (`xtask`) start it by this file too, so it needs nothing of the program.

use std::{
    fs,
    io::Cursor,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// The image that sandboxes and containers are made of.
pub(crate) const IMAGE: &str = "picolet.test/app:1";
/// The handler that it has beside the default one.
pub(crate) const HANDLER: &str = "other";
const PROGRAMS: [&str; 3] = ["/usr/sbin/runc", "/usr/bin/busybox", "/usr/lib/cni/bridge"];
/// Where its programs are: as `cargo xtask test` has taken them out of their package, or installed.
const DIRS: [&str; 3] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/containerd/usr/bin"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../target/containerd/usr/bin"),
    "/usr/bin",
];
const APPLETS: [&str; 14] = [
    "sh", "sleep", "echo", "cat", "id", "ls", "kill", "true", "grep", "wc", "hostname", "env",
    "httpd", "tar",
];
/// How long it may take to start, to end, or to do what is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(20);

/// Why it cannot run here, if so.
pub(crate) fn missing() -> Option<String> {
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        return Some("not root".into());
    }
    if dir().is_none() {
        return Some("containerd is missing".into());
    }
    let mut programs = PROGRAMS.into_iter();
    let missing = programs.find(|path| !Path::new(path).exists());
    missing.map(|path| format!("{path} is missing"))
}

/// The directory of its programs.
fn dir() -> Option<&'static Path> {
    let mut dirs = DIRS.map(Path::new).into_iter();
    dirs.find(|dir| dir.join("containerd").exists() && dir.join("ctr").exists())
}

fn program(name: &str) -> Command {
    let dir = dir().expect("looked for before");
    let mut command = Command::new(dir.join(name));
    // It finds its shims there.
    let mut search = dir.as_os_str().to_owned();
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap_or_default());
    command.env("PATH", search);
    command
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let looks = PATIENCE.as_millis() / PAUSE.as_millis();
    assert!(
        (0..looks).any(|_| is_so() || pause()),
        "not so in time: {what}"
    );
}

#[expect(clippy::disallowed_methods, reason = "between two looks")]
fn pause() -> bool {
    thread::sleep(PAUSE);
    false
}

/// See the module. Ends with everything that it made.
pub(crate) struct Containerd {
    child: Option<Child>,
    pub(crate) dir: PathBuf,
    number: u32,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Containerd {
    /// Starts one that has [`IMAGE`].
    pub(crate) fn start() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("picolet-cd-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(dir.join("cni")).expect("directory");
        let mut containerd = Self {
            child: None,
            dir,
            number,
        };
        let at = containerd.dir.display();
        let config = format!(
            "version = 2\nroot = \"{at}/root\"\nstate = \"{at}/state\"\n\
             [grpc]\naddress = \"{at}/sock\"\n[ttrpc]\naddress = \"{at}/ttrpc\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{at}/opt\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
             restrict_oom_score_adj = true\ndisable_apparmor = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{HANDLER}]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni\"\nconf_dir = \"{at}/cni\"\n"
        );
        fs::write(containerd.dir.join("config.toml"), config).expect("configuration");
        let subnet = format!("10.{}.{}.0/24", 100 + number % 50, std::process::id() % 250);
        let network = format!(
            "{{\"cniVersion\":\"0.4.0\",\"name\":\"{0}\",\"plugins\":[{{\"type\":\"bridge\",\"bridge\":\"{0}\",\
             \"isGateway\":true,\"ipam\":{{\"type\":\"host-local\",\"dataDir\":\"{at}/ipam\",\
             \"routes\":[{{\"dst\":\"0.0.0.0/0\"}}],\"ranges\":[[{{\"subnet\":\"{subnet}\"}}]]}}}},\
             {{\"type\":\"portmap\",\"capabilities\":{{\"portMappings\":true}}}}]}}",
            containerd.bridge(),
        );
        fs::write(containerd.dir.join("cni/1.conflist"), network).expect("network");
        fs::write(containerd.dir.join("image.tar"), image()).expect("image");
        containerd.run();
        containerd.import(&containerd.dir.join("image.tar"));
        containerd
    }

    /// Gives it the images of an archive.
    pub(crate) fn import(&self, archive: &Path) {
        let mut import = self.ctr();
        import.args(["images", "import", "--all-platforms"]);
        let imported = import.arg(archive).output().expect("ctr");
        let told = String::from_utf8_lossy(&imported.stderr);
        assert!(imported.status.success(), "{told}");
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A command of its client.
    pub(crate) fn ctr(&self) -> Command {
        let mut ctr = program("ctr");
        ctr.arg("--address").arg(self.socket());
        ctr.args(["--namespace", "k8s.io"]);
        ctr
    }

    /// Whether it answers, whoever asks.
    fn answers(&self) -> bool {
        let mut version = self.ctr();
        version.arg("version").stdout(Stdio::null());
        version
            .stderr(Stdio::null())
            .status()
            .expect("ctr")
            .success()
    }

    /// Starts the daemon, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .expect("log");
        let child = program("containerd")
            .arg("--config")
            .arg(self.dir.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("containerd starts"));
        until("containerd answers", || self.answers());
    }

    /// Kills the daemon, and nothing else.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
    }

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).expect("pid"));
        assert!(pid.as_raw() > 0, "it runs");
        nix::sys::signal::kill(pid, signal).expect("signalled");
    }

    /// Stops the daemon's processes where they are, until what is returned is dropped.
    pub(crate) fn hang(&self) -> Hung<'_> {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
        Hung(self)
    }

    /// How many tasks it has: sandboxes and containers that run.
    pub(crate) fn tasks(&self) -> usize {
        let listed = self.ctr().args(["tasks", "ls", "-q"]).output();
        let listed = listed.expect("ctr").stdout;
        String::from_utf8_lossy(&listed).lines().count()
    }

    /// The bridge of its pods.
    pub(crate) fn bridge(&self) -> String {
        format!("pcd{}n{}", std::process::id() % 100_000, self.number)
    }

    /// The daemon.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Processes whose command lines name its directory: its shims.
    pub(crate) fn shims(&self) -> Vec<nix::unistd::Pid> {
        let dir = self.dir.display().to_string();
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("containerd-shim") && line.contains(&dir)
        })
        .map(nix::unistd::Pid::from_raw)
        .collect()
    }

    /// Removes every task and container: what a test that failed has left.
    fn clear(&self) {
        let list = |kind: &str| {
            let listed = self.ctr().args([kind, "ls", "-q"]).output();
            let listed = listed.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
            listed.unwrap_or_default()
        };
        for id in list("tasks").lines() {
            let _ = self.ctr().args(["tasks", "rm", "-f", id]).output();
        }
        for id in list("containers").lines() {
            let _ = self.ctr().args(["containers", "rm", id]).output();
        }
    }
}

/// A containerd that hangs, until this is dropped.
pub(crate) struct Hung<'a>(&'a Containerd);

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        self.0.signal(nix::sys::signal::Signal::SIGCONT);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(40);
            eprintln!("containerd's last words:\n{}", lines[from..].join("\n"));
        }
        if self.child.is_some() {
            self.clear();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.shims() {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = Command::new("ip")
            .args(["link", "del", &self.bridge()])
            .stderr(Stdio::null())
            .status();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let dir = self.dir.display().to_string();
        let below = mounts
            .lines()
            .rev()
            .filter_map(|line| line.split(' ').nth(1));
        for path in below.filter(|path| path.starts_with(&dir)) {
            let _ = Command::new("umount").args(["-l", path]).status();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// An archive as `docker save` makes it, of one layer: busybox and its names.
fn image() -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut put = |name: &str, kind: tar::EntryType, link: &str, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_size(u64::try_from(data.len()).expect("small"));
        if !link.is_empty() {
            header.set_link_name(link).expect("link");
        }
        layer
            .append_data(&mut header, name, Cursor::new(data))
            .expect("entry");
    };
    for dir in ["bin", "etc", "tmp", "dev"] {
        put(dir, tar::EntryType::Directory, "", &[]);
    }
    let busybox = fs::read("/usr/bin/busybox").expect("busybox");
    put("bin/busybox", tar::EntryType::Regular, "", &busybox);
    for applet in APPLETS {
        put(
            &format!("bin/{applet}"),
            tar::EntryType::Symlink,
            "busybox",
            &[],
        );
    }
    let passwd = b"root:x:0:0::/:/bin/sh\nweb:x:33:34::/:/bin/sh\n";
    put("etc/passwd", tar::EntryType::Regular, "", passwd);
    let layer = layer.into_inner().expect("layer");
    let digest = |bytes: &[u8]| {
        use sha2::Digest as _;
        let sum = sha2::Sha256::digest(bytes);
        sum.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = format!(
        "{{\"architecture\":\"{architecture}\",\"os\":\"linux\",\
         \"config\":{{\"Entrypoint\":[\"/bin/sleep\",\"1000000\"],\"Env\":[\"PATH=/bin\"]}},\
         \"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[\"sha256:{}\"]}}}}",
        digest(&layer)
    );
    let manifest = format!(
        "[{{\"Config\":\"config.json\",\"RepoTags\":[\"{IMAGE}\"],\"Layers\":[\"l/layer.tar\"]}}]"
    );
    let mut archive = tar::Builder::new(Vec::new());
    for (name, data) in [
        ("config.json", config.as_bytes()),
        ("l/layer.tar", &layer),
        ("manifest.json", manifest.as_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(u64::try_from(data.len()).expect("small"));
        archive
            .append_data(&mut header, name, Cursor::new(data))
            .expect("entry");
    }
    archive.into_inner().expect("archive")
}
