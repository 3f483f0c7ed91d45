//! One agent on directories, a bridge, a subnet and cgroups of its own; what it leaves can be found by its mark.

use core::time::Duration;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use nix::unistd::Pid;
use picolet::sys::clock;
use serde_json::{Value, json};

use crate::held_port::held_port;
use crate::image;

/// The program under test.
pub(crate) const PICOLET: &str = env!("CARGO_BIN_EXE_picolet");
/// Name of the node: static pods carry it behind their own.
pub(crate) const NODE: &str = "node";
/// The image every host has.
pub(crate) const IMAGE: &str = "localhost/busybox:1";
/// How long a condition may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// How full the machine's own disk is, no test decides: nothing is evicted or removed for it unless the test says so.
const ON_A_FULL_DISK: [&str; 2] = [
    "--eviction-hard=memory.available<10Mi",
    "--image-gc-high-threshold=100",
];
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Says aloud what is missing; whether the tests can run.
pub(crate) fn able() -> bool {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing.push("root");
    }
    for (what, places) in [
        ("runc", &["/usr/sbin/runc", "/usr/bin/runc"][..]),
        (
            "the CNI plugins",
            &["/opt/cni/bin/bridge", "/usr/lib/cni/bridge"],
        ),
        ("iptables", &["/usr/sbin/iptables", "/sbin/iptables"]),
        ("busybox", &[image::BUSYBOX]),
    ] {
        if !places.iter().any(|p| Path::new(p).exists()) {
            missing.push(what);
        }
    }
    if !missing.is_empty() {
        skipped!("host needs {}", missing.join(", "));
    }
    missing.is_empty()
}

/// An agent and everything around it; removed, by force if need be, when dropped.
pub(crate) struct Host {
    mark: String,
    base: PathBuf,
    /// Flags of the agent, from its next start on.
    pub(crate) flags: Vec<String>,
    pub(crate) agent: Option<Child>,
    /// Network namespace of the agent, as `ip netns` names it; that of the test otherwise.
    pub(crate) namespace: Option<String>,
    /// Words before the agent's own, which make it run inside of something.
    pub(crate) inside: Vec<String>,
    /// Its agent, from the next start on, and its commands.
    pub(crate) program: PathBuf,
    /// The agent is called as `kubelet`; not in a namespace of its own.
    pub(crate) is_kubelet: bool,
    /// What its environment has beside that of the test.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Host {
    /// Starts an agent with `flags`, and imports the image.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut host = Self::new(flags);
        host.start_agent();
        host.import();
        host
    }

    /// Imports the image.
    pub(crate) fn import(&self) {
        self.write_image("first.tar", IMAGE, &json!({}));
        let archive = self.base.join("first.tar");
        self.ok(&["image", "import", &archive.display().to_string()]);
    }

    /// Only the directories, and flags that `flags` may overrule.
    pub(crate) fn new(flags: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // The letter at the end keeps one mark from being the beginning of another.
        let mark = format!("h{pid}n{number}x");
        let base = Path::new("/var/tmp").join(format!("picolet-{mark}"));
        fs::create_dir_all(&base).expect("directory");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).expect("mode");
        // Inside a container the root filesystem is an overlay, on which no other overlay can write.
        if statfs(&base).expect("statfs").filesystem_type() == OVERLAYFS_SUPER_MAGIC {
            tmpfs(&base);
        }
        for dir in [
            "root",
            "run",
            "manifests",
            "images",
            "logs",
            "links",
            "cni",
            "shared",
        ] {
            fs::create_dir(base.join(dir)).expect("directory");
        }
        tmpfs(&base.join("run"));
        let subnet = format!("10.{}.{}.0/24", 101 + pid % 90, number % 250);
        let dir = |name: &str| base.join(name).display().to_string();
        let mut all: Vec<String> = [
            ["--root-dir", &dir("root")],
            ["--run-dir", &dir("run")],
            ["--pod-manifest-path", &dir("manifests")],
            ["--image-dir", &dir("images")],
            ["--pod-logs-dir", &dir("logs")],
            ["--container-log-dir", &dir("links")],
            ["--cni-conf-dir", &dir("cni")],
            ["--hostname-override", NODE],
            ["--cgroup-root", &format!("/picolet-{mark}")],
            ["--bridge", &mark],
            ["--pod-cidr", &subnet],
            ["--port", &held_port().to_string()],
            ["--healthz-port", "0"],
        ]
        .concat()
        .iter()
        .map(|&s| s.to_owned())
        .collect();
        all.push("--fail-swap-on=false".into());
        all.extend(ON_A_FULL_DISK.map(str::to_owned));
        all.extend(flags.iter().map(|&f| f.to_owned()));
        Self {
            mark,
            base,
            flags: all,
            agent: None,
            namespace: None,
            inside: Vec::new(),
            program: PICOLET.into(),
            is_kubelet: false,
            variables: Vec::new(),
        }
    }

    /// A path below the directory of this host; `shared` is for hostPath volumes.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// A directory for programs that pods run as processes. Nobody but root may write on the way there, as in `/var/tmp`.
    pub(crate) fn programs(&self) -> PathBuf {
        let dir = Path::new("/var/lib").join(format!("picolet-{}", self.mark));
        fs::create_dir_all(&dir).expect("directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("mode");
        dir
    }

    /// Starts the agent and waits until it answers.
    pub(crate) fn start_agent(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.base.join("agent.log"))
            .expect("agent log");
        let mut command = match &self.namespace {
            None if !self.inside.is_empty() => {
                let mut command = Command::new(&self.inside[0]);
                command.args(&self.inside[1..]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
            // It becomes the agent: there is no process between.
            Some(name) => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--net=/run/netns/{name}"))
                    .arg(&self.program);
                command
            }
        };
        if self.is_kubelet {
            command.arg0("kubelet");
        } else {
            command.arg("run");
        }
        let child = command
            .args(&self.flags)
            // Nothing of this may ever be seen in a container.
            .env("AGENT_SECRET", "agent-secret")
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("agent");
        self.agent = Some(child);
        self.until("the agent answers", |host| {
            let said = host.cli(&["get", "node", "-o", "name"]);
            (said.status.success(), text(&said.stderr))
        });
    }

    /// Sends `signal` to the agent and waits until it has ended.
    pub(crate) fn end_agent(&mut self, signal: Signal) {
        let mut child = self.agent.take().expect("a running agent");
        let pid = i32::try_from(child.id()).expect("pid");
        kill(Pid::from_raw(pid), signal).expect("signal");
        let status = child.wait().expect("agent");
        if signal == Signal::SIGTERM {
            assert!(status.success(), "the agent ended with {status}");
        }
    }

    /// Pid of the running agent.
    pub(crate) fn agent_pid(&self) -> i32 {
        let child = self.agent.as_ref().expect("a running agent");
        i32::try_from(child.id()).expect("pid")
    }

    /// Takes note that the agent has ended by itself.
    pub(crate) fn reap_agent(&mut self) {
        let status = self.agent.take().expect("an agent").wait();
        assert!(status.as_ref().is_ok_and(|s| s.success()), "{status:?}");
    }

    /// What the agent said so far.
    pub(crate) fn agent_log(&self) -> String {
        fs::read_to_string(self.base.join("agent.log")).unwrap_or_default()
    }

    /// Writes an archive of the image, `name` relative to this host's directory.
    pub(crate) fn write_image(&self, name: &str, reference: &str, config: &Value) {
        image::write(&self.base.join(name), reference, config);
    }

    /// Calls `picolet`.
    pub(crate) fn cli(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("picolet")
    }

    /// A call of `picolet` to be.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .env("PICOLET_SOCKET", self.base.join("run/picolet.sock"))
            .stdin(Stdio::null());
        command
    }

    /// Calls a command that takes the agent's flags.
    pub(crate) fn command_with_flags(&self, command: &str, words: &[&str]) -> Output {
        let mut all = vec![command];
        all.extend(self.flags.iter().map(String::as_str));
        all.extend(words);
        self.cli(&all)
    }

    /// Calls `picolet`, which must succeed; what it prints.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.cli(words);
        assert!(
            output.status.success(),
            "{words:?}: {} {}",
            output.status,
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Runs a shell script in a container and returns what it prints.
    pub(crate) fn exec(&self, pod: &str, container: &str, script: &str) -> String {
        let name = full(pod);
        self.ok(&["exec", &name, "-c", container, "--", "sh", "-c", script])
    }

    /// Writes a manifest the way an editor should: whole, then renamed.
    pub(crate) fn write(&self, file: &str, manifest: &str) {
        let hidden = self.base.join("manifests").join(format!(".{file}.new"));
        fs::write(&hidden, manifest).expect("manifest");
        fs::rename(hidden, self.base.join("manifests").join(file)).expect("manifest");
    }

    /// Writes the manifest of a pod: `<name>.yaml`.
    pub(crate) fn pod(&self, name: &str, spec: Value) {
        self.write(&format!("{name}.yaml"), &manifest(name, spec).to_string());
    }

    /// Removes a manifest.
    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.base.join("manifests").join(file)).expect("manifest");
    }

    /// Every pod.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let list: Value =
            serde_json::from_str(&self.ok(&["get", "pods", "-A", "-o", "json"])).expect("pods");
        list["items"].as_array().cloned().expect("items")
    }

    /// The pod that its manifest calls `name`, or null.
    pub(crate) fn get(&self, name: &str) -> Value {
        let name = full(name);
        self.pods()
            .into_iter()
            .find(|p| p["metadata"]["name"] == name.as_str())
            .unwrap_or(Value::Null)
    }

    /// Waits until the pod is in `phase`.
    pub(crate) fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_pod(name, phase, |pod| pod["status"]["phase"] == phase)
    }

    /// Waits until the pod runs and is ready.
    pub(crate) fn wait_ready(&self, name: &str) -> Value {
        self.wait_pod(name, "ready", |pod| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| {
                all.iter()
                    .any(|c| c["type"] == "Ready" && c["status"] == "True")
            })
        })
    }

    /// Waits until `holds` of the pod.
    pub(crate) fn wait_pod(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut pod = Value::Null;
        self.until(&format!("pod {name}: {what}"), |host| {
            pod = host.get(name);
            (holds(&pod), pod["status"].to_string())
        });
        pod
    }

    /// Waits until the pod is not there any more.
    pub(crate) fn wait_gone(&self, name: &str) {
        self.wait_pod(name, "gone", Value::is_null);
    }

    /// Looks until `look` says yes; its text tells what was seen last.
    pub(crate) fn until(&self, what: &str, mut look: impl FnMut(&Self) -> (bool, String)) {
        let deadline = clock::mono_now() + PATIENCE;
        loop {
            let (holds, seen) = look(self);
            if holds {
                return;
            }
            assert!(clock::mono_now() < deadline, "{what}: {seen}");
            pause(LOOK);
        }
    }

    /// The pid of a running container.
    pub(crate) fn pid(&self, pod: &str, container: &str) -> i32 {
        let pod = self.get(pod);
        let id = status_of(&pod, container)["containerID"].as_str();
        self.pids_of(id.unwrap_or_default()).0
    }

    /// The pids of a running container and of its shim, as the shim recorded them.
    pub(crate) fn pids_of(&self, container_id: &str) -> (i32, i32) {
        let id = container_id.rsplit('/').next().unwrap_or_default();
        let file = self.base.join("run/containers").join(id).join("state");
        let state = fs::read_to_string(&file).unwrap_or_default();
        let state: Value = serde_json::from_str(&state).unwrap_or_default();
        let pid = |key: &str| i32::try_from(state[key].as_i64()?).ok();
        pid("pid")
            .zip(pid("shim_pid"))
            .unwrap_or_else(|| panic!("{} holds no pids", file.display()))
    }

    /// Waits until the container has ended, looking at its process only.
    pub(crate) fn wait_process_gone(&self, pid: i32) {
        self.until("the process ends", |_| {
            let gone = fs::read_to_string(format!("/proc/{pid}/stat"))
                .map_or(true, |stat| stat.contains(") Z "));
            (gone, format!("{pid} is alive"))
        });
    }

    /// Ends everything the way an operator does, and looks for anything that is left.
    pub(crate) fn finish(mut self) {
        self.ok(&["stop", "--all"]);
        let mut child = self.agent.take().expect("a running agent");
        let mut ended = None;
        self.until("the agent ends", |_| {
            ended = child.try_wait().expect("agent");
            (ended.is_some(), "it runs".into())
        });
        assert!(ended.is_some_and(|s| s.success()), "the agent: {ended:?}");
        // The kernel takes a moment to free what the last process used.
        self.until("nothing is left", |host| {
            let left = host.left();
            (left.is_empty(), left.join("\n"))
        });
        self.dismantle().expect("only empty things are left");
        assert!(
            !std::thread::panicking() && !self.agent_log().contains("panicked"),
            "{}",
            self.agent_log()
        );
    }

    /// What is in a release's tarball, beside the program. Where it lies.
    pub(crate) fn unpack(&self) -> PathBuf {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tarball = self.path("tarball");
        for (from, to) in [("systemd", "systemd"), ("systemd/openrc", "openrc")] {
            fs::create_dir_all(tarball.join(to)).expect("directory");
            for entry in fs::read_dir(project.join(from)).expect("directory") {
                let path = entry.expect("entry").path();
                if path.is_file() {
                    let name = path.file_name().expect("name");
                    fs::copy(&path, tarball.join(to).join(name)).expect("copied");
                }
            }
        }
        for name in ["guard", "first-boot"] {
            let script = tarball.join(format!("systemd/{name}.sh"));
            fs::rename(script, tarball.join(name)).expect("renamed");
        }
        fs::copy(project.join("cross/install.sh"), tarball.join("install.sh")).expect("copied");
        tarball
    }

    /// What pods and their containers left, files apart: records and logs stay until their pods are gone from the
    /// manifests. A node keeps its bridge, its two directories as mounts and its empty tiers of cgroups for the next pod.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .processes()
            .into_iter()
            .map(|(pid, words)| format!("process {pid}: {words}"))
            .collect();
        let own = ["", "root", "root.idle", "run", "run/logs", "logs"].map(|dir| self.path(dir));
        let mounts = self.mounts();
        found.extend(
            mounts
                .iter()
                .filter(|m| !own.contains(m))
                .map(|m| format!("mount {}", m.display())),
        );
        for dir in self.cgroups() {
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            let kept = ["kubepods", "burstable", "besteffort", "picolet-shims"];
            if !kept.contains(&&*name) && *name != format!("picolet-{}", self.mark) {
                found.push(format!("cgroup {}", dir.display()));
            }
        }
        let ports = Path::new("/sys/class/net").join(&self.mark).join("brif");
        for port in fs::read_dir(ports).into_iter().flatten().flatten() {
            found.push(format!("port {}", port.path().display()));
        }
        let rules = Command::new("iptables-save").output();
        let rules = rules.map(|o| text(&o.stdout)).unwrap_or_default();
        found.extend(
            rules
                .lines()
                .filter(|rule| rule.contains(&self.mark))
                .filter(|rule| !rule.contains(&format!("PICOLET-MASQ-{}", self.mark)))
                .map(|rule| format!("rule {rule}")),
        );
        found
    }

    /// Every process that names this host or lives in a cgroup of it, the agent apart.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let agent = self.agent.as_ref().map(Child::id);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let words = text(&read("cmdline")).replace('\0', " ");
            let marked = words.contains(&self.mark) || text(&read("cgroup")).contains(&self.mark);
            if marked && u32::try_from(pid).ok() != agent {
                found.push((pid, words));
            }
        }
        found
    }

    /// Mount points below this host's directory.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .map(PathBuf::from)
            .filter(|point| point.starts_with(&self.base))
            .collect()
    }

    /// Name of the bridge.
    pub(crate) fn bridge(&self) -> String {
        self.mark.clone()
    }

    /// Cgroups of this host in every hierarchy, children first.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let top = Path::new("/sys/fs/cgroup");
        let mut roots = vec![top.to_path_buf()];
        roots.extend(
            fs::read_dir(top)
                .into_iter()
                .flatten()
                .flatten()
                .map(|e| e.path()),
        );
        for root in roots {
            collect(&root.join(format!("picolet-{}", self.mark)), &mut found);
        }
        found
    }

    /// Removes what a node keeps. Nothing here uses force: what is still in use makes it fail.
    pub(crate) fn dismantle(&self) -> Result<(), String> {
        let status = Command::new("sh")
            .args(["-c", FORGET_NETWORK, "sh", &self.mark])
            .status();
        if !status.is_ok_and(|s| s.success()) {
            return Err(format!("network of bridge {}", self.mark));
        }
        for dir in self.cgroups() {
            fs::remove_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        for point in self.mounts().iter().rev() {
            // Containers of other tests come to be meanwhile, each with a copy of all mounts that it looks through.
            let deadline = clock::mono_now() + PATIENCE;
            while let Err(e) = umount2(point, MntFlags::empty()) {
                if e != Errno::EBUSY || clock::mono_now() >= deadline {
                    return Err(format!("{}: {e}", point.display()));
                }
                pause(LOOK);
            }
        }
        fs::remove_dir_all(&self.base).map_err(|e| format!("{}: {e}", self.base.display()))
    }
}

/// Words of timeout(1): after that, pods that do not end are killed.
const STOP_LIMIT: [&str; 2] = ["--kill-after=10", "180"];

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(Path::new("/var/lib").join(format!("picolet-{}", self.mark)));
        if !self.base.exists() {
            return;
        }
        if std::thread::panicking() {
            if let Some(Ok(Some(status))) = self.agent.as_mut().map(Child::try_wait) {
                eprintln!("--- the agent ended: {status}");
            }
            let log = self.agent_log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(80)..];
            eprintln!("--- agent log\n{}", tail.join("\n"));
        }
        if self.agent.is_some() {
            // A test that failed may have taken away what pods need to end.
            let mut stop = Command::new("timeout");
            stop.args(STOP_LIMIT).arg(&self.program);
            stop.args(["stop", "--all"]);
            stop.env("PICOLET_SOCKET", self.base.join("run/picolet.sock"));
            let _ = stop.stdin(Stdio::null()).output();
        }
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for (pid, _) in left {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            pause(LOOK);
        }
        for point in self.mounts().iter().rev() {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
        let _ = Command::new("sh")
            .args(["-c", FORGET_RULES, "sh", &self.mark])
            .status();
        if let Err(e) = self.dismantle() {
            eprintln!("left behind: {e}");
        }
    }
}

/// See the file.
const FORGET_NETWORK: &str = include_str!("../common/forget-network.sh");

/// Removes the rules that carry a mark, and the chains they lead to.
const FORGET_RULES: &str = r#"
rules=$(iptables-save -t nat | grep -F "$1")
echo "$rules" | sed -n 's/^-A/-D/p' | while read -r rule; do eval "iptables -w -t nat $rule"; done
echo "$rules" | sed -n 's/.* -j \(CNI-[0-9a-f]*\|CNI-DN-[0-9a-f]*\)$/\1/p' | sort -u | while read -r chain; do
    iptables -w -t nat -F "$chain" && iptables -w -t nat -X "$chain"
done
"#;

/// The name a static pod gets.
pub(crate) fn full(name: &str) -> String {
    format!("{name}-{NODE}")
}

/// A pod named `name`. Containers without an image get the host's; the grace is one second unless said otherwise.
pub(crate) fn manifest(name: &str, mut spec: Value) -> Value {
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            if container["image"].is_null() {
                container["image"] = IMAGE.into();
            }
        }
    }
    let spec = spec.as_object_mut().expect("a spec");
    spec.retain(|_, value| !value.is_null());
    spec.entry("terminationGracePeriodSeconds")
        .or_insert(1.into());
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// A container that runs `script`.
pub(crate) fn sh(name: &str, script: &str) -> Value {
    json!({ "name": name, "command": ["sh", "-c", script] })
}

/// `value` with the fields of `more`.
pub(crate) fn with(mut value: Value, more: Value) -> Value {
    for (key, field) in more.as_object().expect("an object") {
        value[key] = field.clone();
    }
    value
}

/// Ends at once when told to.
pub(crate) const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";

/// The status of a container or init container.
pub(crate) fn status_of<'a>(pod: &'a Value, container: &str) -> &'a Value {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|list| pod["status"][*list].as_array())
        .flatten()
        .find(|s| s["name"] == container)
        .unwrap_or(&Value::Null)
}

/// Asks over HTTP/1.0; the body. Who is there answers in time on a busy machine too.
pub(crate) fn http(address: SocketAddr) -> std::io::Result<String> {
    let limit = Duration::from_secs(20);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(65_536).read_to_string(&mut answer)?;
    Ok(answer
        .split_once("\r\n\r\n")
        .map_or(String::new(), |(_, body)| body.to_owned()))
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lets a little time pass between two looks at a condition.
pub(crate) fn pause(time: Duration) {
    async_io::block_on(async_io::Timer::after(time));
}

fn tmpfs(dir: &Path) {
    mount_tmpfs(dir, "mode=755");
}

/// Mounts a file system in memory.
pub(crate) fn mount_tmpfs(dir: &Path, options: &str) {
    mount(
        Some("picolet-test"),
        dir,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options),
    )
    .expect("tmpfs");
}

fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect(&entry.path(), found);
        }
    }
    found.push(dir.to_path_buf());
}
