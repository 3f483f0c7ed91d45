//! One agent on directories of its own, as `demo` and `bench` need it: nothing of it touches an agent that the machine may
//! already have, and everything of it can be found and removed by name.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    Failure,
    containerd::{self, Containerd},
    image, install,
    process::{cargo, find, kill, output, run, with_word},
    wait::until,
};

/// Names the release program where it is built already.
pub(crate) const SHIPPED: &str = "PICOLET_SHIPPED";
/// The program, its package and its file.
pub(crate) const PROGRAM: &str = "picolet";
/// Where stages have their directories.
const STAGES: &str = "/var/lib";
/// Name of the node; static pods carry it behind their own name.
pub(crate) const NODE: &str = "stage";
/// What the stage's images are called.
pub(crate) const IMAGE: &str = "localhost/picolet/busybox:demo";
/// Lines of its log that tell why an agent ended.
const LAST_WORDS: usize = 5;
/// An agent that does not answer by then does not start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Seconds that an answer may take: ending all pods takes longest.
const CLIENT_LIMIT_S: u32 = 180;
/// Ending all pods: their grace, and the kernel's time to take namespaces down.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// See the file.
const FORGET_NETWORK: &str = include_str!("../../tests/common/forget-network.sh");
/// What the kernel frees a moment after the last process that used it.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// An agent, its directories and what it leaves.
pub(crate) struct Stage {
    /// Unique word: part of every path, interface and cgroup of this stage.
    pub(crate) mark: String,
    /// Survives what the agent survives: `<base>/{root,manifests,images,logs}`.
    pub(crate) base: PathBuf,
    /// Gone at reboot; on a tmpfs after [`Stage::run_in_memory`].
    pub(crate) run: PathBuf,
    /// Subnet of the built-in network: stages that run at a time need one each. Empty: what the control plane gives.
    pub(crate) subnet: &'static str,
    /// More flags of the agent.
    pub(crate) flags: Vec<String>,
    /// More variables of the agent's environment.
    pub(crate) variables: Vec<(&'static str, String)>,
    program: PathBuf,
    agent: Option<Child>,
}

impl Stage {
    /// Makes the directories. `name` is at most five letters, for the bridge has to be called after it.
    pub(crate) fn new(name: &str) -> Result<Self, Failure> {
        Self::with(name, program()?)
    }

    /// [`Stage::new`] with a program that is built already.
    pub(crate) fn with(name: &str, program: PathBuf) -> Result<Self, Failure> {
        sweep(name);
        let stage = Self::of(name, process::id(), program);
        fs::create_dir_all(&stage.base)?;
        // Inside a container the root filesystem is an overlay, on which no other overlay can write.
        if output(
            Command::new("stat")
                .args(["-f", "-c", "%T"])
                .arg(&stage.base),
        )?
        .trim()
            == "overlayfs"
        {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "picolet-stage"])
                .arg(&stage.base))?;
        }
        for dir in ["root", "manifests", "images", "logs", "log-links", "cni"] {
            fs::create_dir_all(stage.base.join(dir))?;
        }
        fs::set_permissions(&stage.base, fs::Permissions::from_mode(0o755))?;
        Ok(stage)
    }

    /// The letter at the end keeps one mark from being the beginning of another.
    fn of(name: &str, owner: u32, program: PathBuf) -> Self {
        let mark = format!("{name}{owner}x");
        Self {
            base: PathBuf::from(format!("{STAGES}/picolet-{mark}")),
            run: PathBuf::from(format!("/run/picolet-{mark}")),
            subnet: "10.213.0.0/16",
            flags: Vec::new(),
            variables: Vec::new(),
            program,
            agent: None,
            mark,
        }
    }

    /// Has the agent run its pods by a containerd of its own, which has the stage's image. It is to end after the agent.
    pub(crate) fn use_containerd(&mut self) -> Result<Containerd, Failure> {
        install::containerd()?;
        if let Some(why) = containerd::missing() {
            return Err(format!("containerd cannot be started: {why}").into());
        }
        let started = Containerd::start();
        let archive = self.base.join("busybox.tar");
        self.write_image(&archive, IMAGE)?;
        started.import(&archive);
        let endpoint = format!("unix://{}", started.socket().display());
        self.flags
            .extend(["--container-runtime-endpoint".to_owned(), endpoint]);
        Ok(started)
    }

    /// Where images are dropped to be imported.
    pub(crate) fn image_dir(&self) -> PathBuf {
        self.base.join("images")
    }

    /// What the agent said so far.
    pub(crate) fn agent_log(&self) -> String {
        fs::read_to_string(self.base.join("agent.log")).unwrap_or_default()
    }

    /// How the agent ended, and the last that it said.
    pub(crate) fn end_of_agent(&self, status: process::ExitStatus) -> String {
        let said = self.agent_log();
        let lines: Vec<_> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_WORDS)..];
        format!(
            "the agent ended: {status}; it said last:\n{}",
            last.join("\n")
        )
    }

    /// Puts the run directory into memory, as it is on every machine that a node runs on.
    pub(crate) fn run_in_memory(&self) -> Result<(), Failure> {
        fs::create_dir_all(&self.run)?;
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "mode=755", "picolet-stage"])
            .arg(&self.run))
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join("picolet.sock")
    }

    /// The program that the agent is.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Pid of the running agent.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        self.agent.as_ref().map(Child::id)
    }

    /// Starts the agent and waits until it answers.
    pub(crate) fn start_agent(&mut self) -> Result<(), Failure> {
        self.spawn_agent()?;
        until(START_LIMIT, || {
            if let Some(status) = self.agent_ended()? {
                return Ok(Err(self.end_of_agent(status)));
            }
            self.client(&["get", "node"]).map(Ok)
        })??;
        Ok(())
    }

    /// Whether the agent has ended, and how. It is reaped then.
    pub(crate) fn agent_ended(&mut self) -> Result<Option<process::ExitStatus>, Failure> {
        let Some(child) = &mut self.agent else {
            return Err("no agent runs".into());
        };
        let status = child.try_wait()?;
        if status.is_some() {
            self.agent = None;
        }
        Ok(status)
    }

    /// Starts the agent, and does not wait for anything.
    pub(crate) fn spawn_agent(&mut self) -> Result<(), Failure> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.base.join("agent.log"))?;
        let mut command = self.command("run");
        command.stdout(log.try_clone()?).stderr(log);
        let child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        self.agent = Some(child);
        Ok(())
    }

    /// A call of a command that takes the agent's flags.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut called = Command::new(&self.program);
        called
            .arg(command)
            .arg("--root-dir")
            .arg(self.base.join("root"))
            .arg("--run-dir")
            .arg(&self.run)
            .arg("--pod-manifest-path")
            .arg(self.base.join("manifests"))
            .arg("--image-dir")
            .arg(self.image_dir())
            .arg("--pod-logs-dir")
            .arg(self.base.join("logs"))
            .arg("--container-log-dir")
            .arg(self.base.join("log-links"))
            .arg("--cni-conf-dir")
            .arg(self.base.join("cni"))
            .args(["--hostname-override", NODE])
            .arg("--cgroup-root")
            .arg(format!("/picolet-{}", self.mark))
            .arg("--bridge")
            .arg(&self.mark)
            .arg("--fail-swap-on=false")
            .args(&self.flags)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if !self.subnet.is_empty() {
            called.args(["--pod-cidr", self.subnet]);
        }
        called
    }

    /// Kills the agent as a crash would.
    pub(crate) fn kill_agent(&mut self) -> Result<(), Failure> {
        let mut child = self.agent.take().ok_or("no agent runs")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Ends all pods, then the agent.
    pub(crate) fn stop_all(&mut self) -> Result<(), Failure> {
        let mut asked = Command::new(&self.program)
            .args(["stop", "--all"])
            .env("PICOLET_SOCKET", self.socket())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let answer = ended_by(&mut asked, STOP_LIMIT, "stop --all")?;
        if !answer.success() {
            return Err(format!("stop --all: {answer}").into());
        }
        let mut child = self.agent.take().ok_or("no agent runs")?;
        match ended_by(&mut child, STOP_LIMIT, "the agent")? {
            status if status.success() => Ok(()),
            status => Err(self.end_of_agent(status).into()),
        }
    }

    /// Calls `picolet <words>` against this agent and returns what it prints.
    pub(crate) fn client(&self, words: &[&str]) -> Result<String, Failure> {
        output(
            Command::new("timeout")
                .arg(CLIENT_LIMIT_S.to_string())
                .arg(&self.program)
                .args(words)
                .env("PICOLET_SOCKET", self.socket()),
        )
    }

    /// Writes a manifest the way an editor should: whole, then renamed.
    pub(crate) fn write_manifest(&self, name: &str, text: &str) -> Result<(), Failure> {
        let dir = self.base.join("manifests");
        let hidden = dir.join(format!(".{name}.new"));
        fs::write(&hidden, text)?;
        fs::rename(hidden, dir.join(name))?;
        Ok(())
    }

    pub(crate) fn remove_manifest(&self, name: &str) -> Result<(), Failure> {
        Ok(fs::remove_file(self.base.join("manifests").join(name))?)
    }

    /// Writes the stage's image as an archive at `path`.
    pub(crate) fn write_image(&self, path: &Path, reference: &str) -> Result<(), Failure> {
        let busybox = install::static_busybox().ok_or("no static busybox on this machine")?;
        image::write(path, reference, &fs::read(busybox)?)
    }

    /// Every pod, as Kubernetes objects.
    pub(crate) fn pods(&self) -> Result<Vec<Value>, Failure> {
        let text = self.client(&["get", "pods", "-A", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text)?;
        match list.get("items") {
            Some(Value::Array(items)) => Ok(items.clone()),
            _ => Ok(vec![list]),
        }
    }

    /// The static pod that its manifest calls `name`.
    pub(crate) fn pod(&self, name: &str) -> Result<Value, Failure> {
        let name = format!("{name}-{NODE}");
        self.pods()?
            .into_iter()
            .find(|pod| pod["metadata"]["name"] == name.as_str())
            .ok_or_else(|| format!("there is no pod {name}").into())
    }

    /// What this stage still has on the machine, one line each: processes, mounts, cgroups, interfaces.
    pub(crate) fn traces(&self) -> Vec<String> {
        let mut found: Vec<String> = with_word(&self.mark)
            .into_iter()
            .map(|pid| format!("process {pid}"))
            .collect();
        found.extend(self.mounts().iter().map(|m| format!("mount {m}")));
        found.extend(
            self.cgroups()
                .iter()
                .map(|c| format!("cgroup {}", c.display())),
        );
        if self.has_bridge() {
            found.push(format!("interface {}", self.mark));
        }
        found.extend(self.rules().iter().map(|rule| format!("rule {rule}")));
        found
    }

    /// Mount points of this stage, later ones last; not the one the stage itself made.
    pub(crate) fn mounts(&self) -> Vec<String> {
        fs::read_to_string("/proc/self/mountinfo")
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|point| point.contains(&format!("picolet-{}", self.mark)))
            .filter(|point| Path::new(point) != self.base)
            .map(str::to_owned)
            .collect()
    }

    /// Cgroups of this stage in every hierarchy, children first.
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

    fn has_bridge(&self) -> bool {
        Path::new("/sys/class/net").join(&self.mark).exists()
    }

    /// Rules and chains of the packet filter that carry the name of this stage's network, of both families, and tables of
    /// nft that do and are not those of iptables.
    pub(crate) fn rules(&self) -> Vec<String> {
        let mut found = Vec::new();
        for save in ["iptables-save", "ip6tables-save"] {
            let said = find(save).map(|save| output(&mut Command::new(save)));
            let said = said.and_then(Result::ok).unwrap_or_default();
            let own = said.lines().filter(|line| line.contains(&self.mark));
            found.extend(own.map(str::to_owned));
        }
        const OF_IPTABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];
        let said = find("nft").map(|nft| output(Command::new(nft).args(["list", "ruleset"])));
        let said = said.and_then(Result::ok).unwrap_or_default();
        for table in format!("\n{said}").split("\ntable ").skip(1) {
            let head: Vec<&str> = table.split_whitespace().take(2).collect();
            let of_iptables =
                matches!(head[..], ["ip" | "ip6", name] if OF_IPTABLES.contains(&name));
            if !of_iptables && table.contains(&self.mark) {
                found.push(format!("table {}", head.join(" ")));
            }
        }
        found
    }

    /// Removes what a node keeps for its next pod and a stage must not: the bridge and its masquerading, the mounts of the agent's directories onto
    /// themselves, empty cgroups. Nothing here uses force: whatever still is in use makes it fail.
    pub(crate) fn dismantle(&self) -> Result<(), Failure> {
        if find("iptables").is_some() {
            output(Command::new("sh").args(["-c", FORGET_NETWORK, "sh", &self.mark]))?;
        }
        for dir in [self.base.join("root"), self.run.clone()] {
            if is_mounted(&dir)? {
                output(Command::new("umount").arg(dir))?;
            }
        }
        // A cgroup is busy for a moment after its last process.
        until(SETTLE_LIMIT, || {
            for dir in self.cgroups() {
                fs::remove_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            }
            Ok(())
        })
    }

    /// Removes the directories. Everything must have ended.
    pub(crate) fn remove_dirs(&self) -> Result<(), Failure> {
        for dir in [&self.base, &self.run] {
            if is_mounted(dir)? {
                output(Command::new("umount").arg(dir))?;
            }
            match fs::remove_dir_all(dir) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {e}", dir.display()).into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Leaves of the stage what the disk has, as a cut of the power does: processes, namespaces, mounts, the run directory,
    /// cgroups and the bridge go. `spared` are processes of another machine, as it were.
    pub(crate) fn cut_power(&mut self, spared: &[u32]) -> Result<(), Failure> {
        if self.agent.is_some() {
            self.kill_agent()?;
        }
        self.kill_all(spared)?;
        self.unmount_all();
        match fs::remove_dir_all(&self.run) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("{}: {e}", self.run.display()).into());
            }
            _ => {}
        }
        self.dismantle()
    }

    /// Kills every process of the stage but those `spared`, until none is left.
    fn kill_all(&self, spared: &[u32]) -> Result<(), Failure> {
        until(SETTLE_LIMIT, || {
            let mut left = with_word(&self.mark);
            for dir in self.cgroups() {
                let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                left.extend(procs.lines().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            left.retain(|pid| !spared.contains(pid));
            for pid in &left {
                let _ = kill(*pid);
            }
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("the processes {left:?} are left").into())
            }
        })
    }

    fn unmount_all(&self) {
        for point in self.mounts().iter().rev() {
            let _ = output(Command::new("umount").args(["-l", point]));
        }
    }

    /// Removes whatever is left, by force; for the way out after a failure.
    fn clear(&mut self) {
        if self.agent.is_some() {
            let _ = self.stop_all();
        }
        if let Some(mut child) = self.agent.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.kill_all(&[]);
        self.unmount_all();
        let _ = self.dismantle();
        if let Err(e) = self.remove_dirs() {
            eprintln!("left behind: {e}");
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Waits for a process, at most `limit`; then it is killed.
fn ended_by(
    child: &mut Child,
    limit: Duration,
    what: &str,
) -> Result<process::ExitStatus, Failure> {
    let status = until(limit, || {
        child
            .try_wait()?
            .ok_or_else(|| format!("{what} has not ended").into())
    });
    if status.is_err() {
        child.kill()?;
        child.wait()?;
    }
    status
}

/// Removes what stages left whose task was killed before it could.
fn sweep(name: &str) {
    for entry in fs::read_dir(STAGES).into_iter().flatten().flatten() {
        let owner = entry.file_name().to_str().and_then(|dir| {
            let rest = dir.strip_prefix("picolet-")?.strip_prefix(name)?;
            rest.strip_suffix('x')?.parse::<u32>().ok()
        });
        if let Some(owner) = owner
            && !Path::new("/proc").join(owner.to_string()).exists()
        {
            println!(
                "Removing what an interrupted run left in {}",
                entry.path().display()
            );
            drop(Stage::of(name, owner, PathBuf::new()));
        }
    }
}

fn is_mounted(dir: &Path) -> Result<bool, Failure> {
    Ok(fs::read_to_string("/proc/self/mountinfo")?
        .lines()
        .any(|line| {
            line.split(' ')
                .nth(4)
                .is_some_and(|point| Path::new(point) == dir)
        }))
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

/// The release program: the file that [`SHIPPED`] names, or built here.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    match env::var_os(SHIPPED) {
        Some(file) => Ok(std::path::absolute(file)?),
        None => build("release", &[]),
    }
}

/// Builds the program by the named profile, with features separated by commas, and returns where it is.
pub(crate) fn build(profile: &str, features: &[&str]) -> Result<PathBuf, Failure> {
    let command = || {
        let mut command = build_command(profile);
        command.args(features);
        command
    };
    run(command().arg("--quiet"))?;
    // Nothing is built the second time: this only asks where the file is.
    let messages = output(command().args(["--message-format", "json"]))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|m| Some(m.get("executable")?.as_str()?.into()))
        .map(|path: PathBuf| env::current_dir().map(|dir| dir.join(path)))
        .ok_or("cargo named no program")?
        .map_err(Into::into)
}

/// What builds the program by the named profile.
pub(crate) fn build_command(profile: &str) -> Command {
    let mut command = cargo();
    command.args(["build", "--profile", profile]);
    command.args(["--package", PROGRAM, "--bin", PROGRAM]);
    command
}
