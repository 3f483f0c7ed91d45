//! The handler `process`: containers that are plain processes of this machine, without image, root file system or namespace
//! of their own (PRVD-08). They run programs of directories that the operator names, in the cgroup of their pod.
//!
//! To the shim and to this backend it is an OCI runtime like others: `create` and `start` in two steps, `kill`, `exec`, `state`,
//! `delete`, `update`. So logs, ends, grace and adoption are the same as with containers. The program is picolet itself, called
//! by another name; it does not stay. Between `create` and `start` the process is stopped, as picolet's program.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{AccessFlags, Gid, Pid, Uid, access, chdir, setgid, setgroups, setsid, setuid},
};

use super::{
    Runc, failed_at_step, files,
    record::{self, ContainerRecord},
    sources::MountSource,
};
use crate::{
    api::{
        cri::{ContainerConfig, LinuxResources},
        oci::ResolvedUser,
        strict::from_json,
    },
    cgroup::Cgroups,
    error::error_chain,
    runtime::RuntimeError,
    sys::{limits, open, proc, remove},
};

/// Name of the handler.
pub const HANDLER: &str = "process";
/// Name by which this program is such a runtime.
pub const PROGRAM: &str = "picolet-process";
/// File of the bundle with the process that is to run.
const SPEC: &str = "process.json";
/// File of the bundle with the directories in which programs may lie; [`SEPARATOR`] between two paths.
const DIRECTORIES: &str = "directories";
/// Byte that no path has.
const SEPARATOR: u8 = 0;
/// File below the runtime's root with the running process: its number and start time.
const STATE: &str = "state";
/// A link to the bundle, beside it.
const BUNDLE: &str = "bundle";
/// Call of the second stage, which becomes the process.
const BECOME: &str = "become";
/// Bytes of either file that are read.
const MAX_FILE_BYTES: u64 = 2 << 20;
/// Bytes of the resources of an update.
const MAX_UPDATE_BYTES: u64 = 1 << 16;

/// Permissions that the operator gives to processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPermissions {
    /// Directories in which programs may lie, at any depth; absolute.
    pub directories: Vec<PathBuf>,
    /// A process may be root's.
    pub root: bool,
    /// Variables of a pod that may reach its processes. Whoever makes a container has judged them.
    pub variables: Vec<String>,
}

/// A process to be: the record of its container with command, environment and directory of work, and where programs may lie.
struct ProcessSpec {
    record: ContainerRecord,
    directories: Vec<PathBuf>,
}

/// A running process, as it is recorded.
struct ProcessState {
    pid: i32,
    start_time: u64,
    bundle: PathBuf,
}

/// Reason why there is no process. The text is the runtime's last word.
#[derive(Debug, thiserror::Error)]
enum ProcessError {
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    System(String, #[source] io::Error),
    #[error("container does not exist")]
    NotThere,
}

fn at_system_step<E: Into<io::Error>>(step: &str) -> impl FnOnce(E) -> ProcessError {
    |e| system_error(step, e.into())
}

#[inline(never)]
fn system_error(step: &str, error: io::Error) -> ProcessError {
    ProcessError::System(step.to_owned(), error)
}

/// Makes the name by which `exe` is the runtime, anew at each start: the program may have been replaced. Returns its path.
pub fn install_runtime_name(run_dir: &Path, exe: &Path) -> io::Result<PathBuf> {
    let path = run_dir.join(PROGRAM);
    files::remove_file(&path)?;
    symlink(exe, &path)?;
    Ok(path)
}

impl Runc {
    /// Checks the configuration of a process, and writes it into the bundle. There is nothing to mount.
    pub(super) fn make_process(
        &self,
        allowed: &ProcessPermissions,
        config: &ContainerConfig,
        record: &mut ContainerRecord,
        dir: &Path,
    ) -> Result<Vec<MountSource>, RuntimeError> {
        let security = &config.security;
        let invalid = |text: &str| Err(RuntimeError::Invalid(text.into()));
        let args: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
        if !config.live_devices.is_empty() {
            return invalid("resources.limits: a program of the machine has no devices of its own");
        }
        if args.is_empty() {
            return invalid("command: must be set, there is no image that has one");
        }
        let number = |id: i64| u32::try_from(id).ok();
        if let Some(name) = config.cdi_devices.first() {
            return invalid(&format!(
                "CDI device {name}: it is not for programs of the machine"
            ));
        }
        let Some(uid) = security.run_as_user.and_then(number) else {
            return invalid(
                "securityContext.runAsUser: must be set, there is no image that has one",
            );
        };
        if uid == 0 && !allowed.root {
            return invalid(
                "securityContext.runAsUser: is 0, and picolet.process.allowRoot is not set",
            );
        }
        // Not root's group, as it would be in a container.
        let gid = security.run_as_group.and_then(number).unwrap_or(uid);
        if !allowed.root && (gid == 0 || security.supplemental_groups.contains(&0)) {
            return invalid("securityContext: group 0, and picolet.process.allowRoot is not set");
        }
        record.user = ResolvedUser {
            uid,
            gid,
            additional_gids: security
                .supplemental_groups
                .iter()
                .filter_map(|id| number(*id))
                .collect(),
        };
        let mut spec = record.clone();
        spec.config.command = args;
        spec.config.env.clone_from(&config.env);
        if spec.config.working_dir.is_empty() {
            spec.config.working_dir = "/".into();
        }
        let paths = allowed.directories.iter();
        let paths: Vec<&[u8]> = paths.map(|dir| dir.as_os_str().as_bytes()).collect();
        serde_json::to_vec(&spec)
            .map_err(io::Error::from)
            .and_then(|text| files::write_atomic(&dir.join(SPEC), &text))
            .and_then(|()| files::write_atomic(&dir.join(DIRECTORIES), &paths.join(&SEPARATOR)))
            .map_err(failed_at_step("write what is to run"))?;
        open::make_log_dir(Path::new(&record.log))
            .map_err(failed_at_step("make the log directory"))?;
        record.made = true;
        record::save_record(dir, record).map_err(failed_at_step("write the container record"))?;
        Ok(Vec::new())
    }
}

/// Runs as the runtime. `words`: those of an OCI runtime.
#[must_use]
pub fn run_process_runtime(words: &[OsString]) -> ExitCode {
    let words: Vec<&str> = words.iter().filter_map(|w| w.to_str()).collect();
    let mut log = None;
    let mut root = Path::new("");
    let mut rest = words.as_slice();
    // Bounded: by the words.
    while let [name, more @ ..] = rest {
        rest = match (*name, more) {
            ("--version", _) => {
                println!("{PROGRAM} version {}", crate::VERSION);
                return ExitCode::SUCCESS;
            }
            ("--root", [value, more @ ..]) => {
                root = Path::new(*value);
                more
            }
            ("--log", [value, more @ ..]) => {
                log = Some(*value);
                more
            }
            ("--log-format", [_, more @ ..]) => more,
            _ => break,
        };
    }
    let [call, rest @ ..] = rest else {
        return ExitCode::FAILURE;
    };
    let Err(error) = run_runtime_call(root, call, rest) else {
        return ExitCode::SUCCESS;
    };
    let text = serde_json::Value::String(error_chain(&error));
    let line = format!("{{\"level\":\"error\",\"msg\":{text}}}\n");
    let logged = log.map(|log| {
        let mut file = fs::File::options().append(true).create(true).open(log)?;
        io::Write::write_all(&mut file, line.as_bytes())
    });
    if !matches!(logged, Some(Ok(()))) {
        eprint!("{line}");
    }
    ExitCode::FAILURE
}

/// The value behind a flag, as `--flag value`.
fn flag_value<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|w| *w == flag)?;
    words.get(at + 1).copied()
}

fn run_runtime_call(root: &Path, call: &str, words: &[&str]) -> Result<(), ProcessError> {
    let missing = || ProcessError::Refused(format!("{call}: not enough words"));
    let last = || words.last().copied().ok_or_else(missing);
    match call {
        "create" => {
            let bundle = flag_value(words, "--bundle").ok_or_else(missing)?;
            let pid_file = flag_value(words, "--pid-file").ok_or_else(missing)?;
            if words.contains(&"--console-socket") {
                return Err(no_terminal());
            }
            create_process(root, Path::new(bundle), Path::new(pid_file), last()?)
        }
        "start" => {
            let state = ProcessState::read_recorded(root, last()?)?;
            state.send_signal(Signal::SIGCONT as i32)
        }
        "kill" => {
            let [id, signal] = words else {
                return Err(missing());
            };
            let number = match signal.parse::<i32>() {
                Ok(number) => number,
                Err(_) => signal.parse::<Signal>().map_err(at_system_step(signal))? as i32,
            };
            let state = ProcessState::read_recorded(root, id)?;
            let waited = state.is_stopped();
            state.send_signal(number)?;
            // A process that waits for its start is stopped: only SIGKILL reaches it.
            if waited && state.is_stopped() {
                state.send_signal(Signal::SIGKILL as i32)?;
            }
            Ok(())
        }
        "state" => {
            let state = ProcessState::read_recorded(root, last()?)?;
            let status = match (state.is_alive(), state.is_stopped()) {
                (false, _) => "stopped",
                (true, true) => "created",
                (true, false) => "running",
            };
            println!("{{\"status\": \"{status}\"}}");
            Ok(())
        }
        "delete" => {
            let id = last()?;
            if let Ok(state) = ProcessState::read_recorded(root, id) {
                // Its children end with it: there is no PID namespace that would end them.
                if let (Ok(spec), Ok(cgroups)) =
                    (ProcessSpec::read(&state.bundle), Cgroups::detect())
                {
                    cgroups.kill_processes(&spec.record.cgroup);
                }
                if state.is_alive() {
                    state.send_signal(Signal::SIGKILL as i32)?;
                }
            }
            let dir = root.join(id);
            remove::remove_path(&dir).map_err(at_system_step("remove what is known of it"))
        }
        "update" => {
            let state = ProcessState::read_recorded(root, last()?)?;
            let spec = ProcessSpec::read(&state.bundle)?;
            let mut text = Vec::new();
            let mut input = io::Read::take(io::stdin(), MAX_UPDATE_BYTES);
            io::Read::read_to_end(&mut input, &mut text)
                .map_err(at_system_step("read the resources"))?;
            let told: serde_json::Value = serde_json::from_slice(&text)
                .map_err(|e| ProcessError::Refused(format!("resources: {e}")))?;
            let resources = apply_update(spec.record.config.resources, &told);
            let cgroups = Cgroups::detect().map_err(refused_error)?;
            let updated = cgroups.update_limits(&spec.record.cgroup, &resources);
            updated.map_err(refused_error)
        }
        "exec" => {
            let at = words.iter().position(|w| w.starts_with("--tty="));
            let (flags, rest) = words.split_at(at.ok_or_else(missing)?);
            let pid_file = flag_value(flags, "--pid-file").ok_or_else(missing)?;
            let ["--tty=false", id, command @ ..] = rest else {
                return Err(no_terminal());
            };
            let state = ProcessState::read_recorded(root, id)?;
            start_exec_command(&state.bundle, Path::new(pid_file), command)
        }
        BECOME => {
            let [bundle, command @ ..] = words else {
                return Err(missing());
            };
            Err(stop_then_exec(Path::new(bundle), command))
        }
        other => Err(ProcessError::Refused(format!("{other}: not known"))),
    }
}

fn no_terminal() -> ProcessError {
    ProcessError::Refused("a process of handler \"process\" gets no terminal".into())
}

fn refused_error<E: core::error::Error>(error: E) -> ProcessError {
    ProcessError::Refused(error_chain(&error))
}

impl ProcessSpec {
    fn read(bundle: &Path) -> Result<Self, ProcessError> {
        let paths = read_bounded(&bundle.join(DIRECTORIES))?;
        let paths = paths.split(|byte| *byte == SEPARATOR);
        Ok(Self {
            record: from_json(&read_bounded(&bundle.join(SPEC))?).map_err(refused_error)?,
            directories: paths.map(|path| OsStr::from_bytes(path).into()).collect(),
        })
    }
}

/// The file that a command names, which nobody but root may replace.
fn find_safe_program(directories: &[PathBuf], name: &str) -> Result<PathBuf, ProcessError> {
    let found = find_program(directories, name)?;
    demand_root_only(&found)?;
    Ok(found)
}

/// Refuses a program if somebody beside root may write it or a directory on its way. `program`: absolute and without links.
fn demand_root_only(program: &Path) -> Result<(), ProcessError> {
    for place in program.ancestors() {
        let meta = fs::symlink_metadata(place).map_err(at_system_step(&place.to_string_lossy()))?;
        if others_may_write(meta.uid(), meta.mode()) {
            return Err(ProcessError::Refused(format!(
                "command {program:?} is not run: others than root may write {place:?} (owner {}, mode {:04o})",
                meta.uid(),
                meta.mode() & 0o7777
            )));
        }
    }
    Ok(())
}

/// Tells by owner and mode if somebody beside root may write a file, or make and rename files in a directory. The sticky
/// bit does not help: whoever makes a name there owns it. A group counts, whichever it is; with ACLs its bits are those of all
/// who are named.
const fn others_may_write(owner: u32, mode: u32) -> bool {
    owner != 0 || mode & 0o022 != 0
}

/// The file that a command names: by an absolute path, or by its name in one of the directories. It lies in one of them, and
/// not only by a link.
fn find_program(directories: &[PathBuf], name: &str) -> Result<PathBuf, ProcessError> {
    let wrong = |why: &str| Err(ProcessError::Refused(format!("command {name:?}{why}")));
    let real = |path: &Path| fs::canonicalize(path).ok();
    // Joined to an absolute path, a directory counts for nothing.
    let mut places = directories.iter().map(|dir| dir.join(name));
    let Some(found) = places.find_map(|place| real(&place)) else {
        return wrong(": no such file");
    };
    let is_in = |dir: &PathBuf| real(dir).is_some_and(|dir| found.starts_with(dir));
    if !directories.iter().any(is_in) {
        let mut why = ": lies in none of the directories of picolet.process:".to_owned();
        for dir in directories {
            why.push(' ');
            why += &dir.to_string_lossy();
        }
        return wrong(&why);
    }
    if !found.is_file() {
        return wrong(" cannot be run: it is not a file");
    }
    match access(&found, AccessFlags::X_OK) {
        Ok(()) => Ok(found),
        Err(e) => wrong(&format!(" cannot be run: {}", e.desc())),
    }
}

impl ProcessState {
    fn read_recorded(root: &Path, id: &str) -> Result<Self, ProcessError> {
        let dir = root.join(id);
        let text = read_bounded(&dir.join(STATE))?;
        let text = String::from_utf8_lossy(&text);
        let numbers = text.split_once(' ');
        let numbers = numbers.and_then(|(pid, at)| Some((pid.parse().ok()?, at.parse().ok()?)));
        let damaged = || ProcessError::Refused("its state is damaged".into());
        let (pid, start_time) = numbers.ok_or_else(damaged)?;
        Ok(Self {
            pid,
            start_time,
            bundle: dir.join(BUNDLE),
        })
    }

    /// Returns true if the number still belongs to that process.
    fn is_alive(&self) -> bool {
        proc::start_time(self.pid).is_ok_and(|at| at == self.start_time)
    }

    /// Returns true if the process waits to be started: it is still this program.
    fn is_stopped(&self) -> bool {
        let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
        self.is_alive() && exe(&self.pid.to_string()) == exe("self")
    }

    fn send_signal(&self, number: i32) -> Result<(), ProcessError> {
        if !self.is_alive() {
            return Err(ProcessError::Refused("container not running".into()));
        }
        let fd =
            crate::sys::pidfd::open_pidfd(self.pid).map_err(at_system_step("open the process"))?;
        crate::sys::pidfd::send_signal(std::os::fd::AsFd::as_fd(&fd), number)
            .map_err(at_system_step("signal the process"))
    }
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, ProcessError> {
    match files::read_start(path, MAX_FILE_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(ProcessError::NotThere),
        text => text.map_err(|e| system_error(&path.to_string_lossy(), e)),
    }
}

fn create_process(
    root: &Path,
    bundle: &Path,
    pid_file: &Path,
    id: &str,
) -> Result<(), ProcessError> {
    let spec = ProcessSpec::read(bundle)?;
    let record = &spec.record;
    let name = record.config.command.first();
    find_safe_program(&spec.directories, name.map_or("", String::as_str))?;
    let dir = root.join(id);
    files::make_private_dir(&dir)
        .and_then(|()| files::remove_file(&dir.join(BUNDLE)))
        .and_then(|()| symlink(bundle, dir.join(BUNDLE)))
        .map_err(at_system_step("make its directory"))?;
    let cgroups = Cgroups::detect().map_err(refused_error)?;
    cgroups
        .create_limited_leaf(&record.cgroup, &record.config.resources)
        .map_err(refused_error)?;
    let words = &record.config.command;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let pid = start_second_stage(bundle, &words)?;
    let keep = |pid| {
        let start_time = proc::start_time(pid)?;
        files::write_atomic(&dir.join(STATE), format!("{pid} {start_time}").as_bytes())?;
        fs::write(pid_file, pid.to_string())
    };
    join_cgroup_then(&cgroups, &record.cgroup, pid, keep)
}

/// Takes a process that waits into its cgroup, and goes on with `then`. It is killed if either fails.
fn join_cgroup_then(
    cgroups: &Cgroups,
    cgroup: &str,
    pid: i32,
    then: impl FnOnce(i32) -> io::Result<()>,
) -> Result<(), ProcessError> {
    let joined = cgroups.move_process(cgroup, pid).map_err(refused_error);
    let done = joined.and_then(|()| then(pid).map_err(at_system_step("write what runs")));
    if done.is_err() {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    done
}

/// Starts a command beside the process, in its cgroup, and leaves it to be adopted.
fn start_exec_command(
    bundle: &Path,
    pid_file: &Path,
    command: &[&str],
) -> Result<(), ProcessError> {
    let spec = ProcessSpec::read(bundle)?;
    find_safe_program(
        &spec.directories,
        command.first().copied().unwrap_or_default(),
    )?;
    let pid = start_second_stage(bundle, command)?;
    let cgroups = Cgroups::detect().map_err(refused_error)?;
    join_cgroup_then(&cgroups, &spec.record.cgroup, pid, |pid| {
        fs::write(pid_file, pid.to_string())?;
        Ok(kill(Pid::from_raw(pid), Signal::SIGCONT)?)
    })
}

/// Starts the second stage with our standard streams, and waits until it has stopped itself.
fn start_second_stage(bundle: &Path, command: &[&str]) -> Result<i32, ProcessError> {
    let child = Command::new("/proc/self/exe")
        .arg0(PROGRAM)
        .arg(BECOME)
        .arg(bundle)
        .args(command)
        .env_clear()
        .spawn()
        .map_err(at_system_step("start a process"))?;
    let pid = i32::try_from(child.id()).map_err(refused_error)?;
    match waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WUNTRACED)) {
        Ok(WaitStatus::Stopped(..)) => Ok(pid),
        Ok(other) => Err(ProcessError::Refused(format!(
            "the process ended before its start: {other:?}"
        ))),
        Err(e) => Err(at_system_step("wait for the process")(e)),
    }
}

/// Stops until it is to start; then becomes the command, with its user and without rights.
fn stop_then_exec(bundle: &Path, command: &[&str]) -> ProcessError {
    let become_it = || -> Result<core::convert::Infallible, ProcessError> {
        let spec = ProcessSpec::read(bundle)?;
        let (config, user) = (&spec.record.config, &spec.record.user);
        setsid().map_err(at_system_step("setsid"))?;
        limits::set_oom_score_adj(config.resources.oom_score_adj)
            .map_err(at_system_step("oom_score_adj"))?;
        nix::sys::signal::raise(Signal::SIGSTOP).map_err(at_system_step("stop"))?;
        let (name, args) = command.split_first().unwrap_or((&"", &[]));
        let program = find_safe_program(&spec.directories, name)?;
        let groups = user.additional_gids.iter();
        let groups: Vec<Gid> = groups.map(|id| Gid::from_raw(*id)).collect();
        limits::drop_exec_capabilities().map_err(at_system_step("drop capabilities"))?;
        setgroups(&groups).map_err(at_system_step("setgroups"))?;
        setgid(Gid::from_raw(user.gid)).map_err(at_system_step("setgid"))?;
        setuid(Uid::from_raw(user.uid)).map_err(at_system_step("setuid"))?;
        prctl::set_no_new_privs().map_err(at_system_step("no_new_privs"))?;
        let dir = config.working_dir.as_str();
        chdir(dir).map_err(|e| system_error(&format!("workingDir {dir:?}"), e.into()))?;
        let mut program = Command::new(&program);
        program.arg0(OsStr::new(name)).args(args).env_clear();
        for (name, value) in &config.env {
            program.env(name, value);
        }
        Err(at_system_step("run the program")(program.exec()))
    };
    match become_it() {
        Ok(never) => match never {},
        Err(e) => e,
    }
}

/// Returns the limits with the changes of an `update`.
fn apply_update(mut limits: LinuxResources, told: &serde_json::Value) -> LinuxResources {
    let (cpu, memory) = (&told["cpu"], &told["memory"]);
    for (limit, value) in [
        (&mut limits.cpu_quota_us, &cpu["quota"]),
        (&mut limits.memory_limit_bytes, &memory["limit"]),
        (&mut limits.memory_swap_bytes, &memory["swap"]),
        (&mut limits.pids_limit, &told["pids"]["limit"]),
    ] {
        *limit = value.as_i64().or(*limit);
    }
    for (limit, value) in [
        (&mut limits.cpu_shares, &cpu["shares"]),
        (&mut limits.cpu_period_us, &cpu["period"]),
    ] {
        *limit = value.as_u64().or(*limit);
    }
    if let Some(cpus) = cpu["cpus"].as_str() {
        limits.cpuset_cpus = Some(cpus.into());
    }
    for (file, value) in told["unified"].as_object().into_iter().flatten() {
        if let Some(value) = value.as_str() {
            limits.unified.insert(file.clone(), value.into());
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_allowed_directories() {
        // PRVD-08
        let dir = crate::testing::unused_path("process");
        let apps = dir.join("apps");
        fs::create_dir_all(apps.join("deep")).expect("directory");
        let make = |path: &Path, mode: u32| {
            fs::write(path, "#!/bin/sh\n").expect("file");
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(path, mode).expect("mode");
        };
        make(&apps.join("good"), 0o755);
        make(&apps.join("deep/good"), 0o755);
        make(&apps.join("plain"), 0o644);
        make(&dir.join("outside"), 0o755);
        symlink(dir.join("outside"), apps.join("link")).expect("link");
        let directories = [apps.clone()];
        let absolute = |name: &str| apps.join(name).display().to_string();
        for name in ["good", "deep/good", &absolute("good")] {
            assert!(find_program(&directories, name).is_ok(), "{name}");
        }
        for (name, why) in [
            ("link", "none of the directories"),
            ("../outside", "none of the directories"),
            ("/bin/sh", "none of the directories"),
            ("plain", "cannot be run"),
            ("missing", "no such file"),
            ("", "cannot be run"),
            ("deep", "cannot be run"),
        ] {
            let said = find_program(&directories, name);
            assert!(
                said.as_ref().is_err_and(|e| error_chain(e).contains(why)),
                "{name}: {said:?}"
            );
        }
        fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn programs_that_others_may_replace_are_refused() {
        // PRVD-08
        let sh = fs::canonicalize("/bin/sh").expect("a shell");
        demand_root_only(&sh).expect("root's alone");
        // The directory itself is root's if this test is; /tmp is not, sticky as it is.
        let dir = fs::canonicalize(std::env::temp_dir()).expect("directory");
        let dir = dir.join(format!("picolet-root-only-{}", std::process::id()));
        fs::create_dir(&dir).expect("directory");
        let directories = [dir.clone()];
        let program_of_all = dir.join("good");
        fs::write(&program_of_all, "").expect("file");
        let said = find_safe_program(&directories, "good").expect_err("no right to run it");
        assert!(error_chain(&said).contains("cannot be run"), "{said}");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program_of_all, mode).expect("mode");
        let said = find_safe_program(&directories, "good").expect_err("others may write");
        assert!(
            error_chain(&said).contains("others than root may write \"/"),
            "{said}"
        );
        fs::remove_dir_all(dir).expect("clean");
    }

    #[test]
    fn who_may_write() {
        // PRVD-08
        for (owner, mode, others) in [
            (0, 0o755, false),
            (0, 0o700, false),
            (0, 0o1777, true),
            (0, 0o775, true),
            (0, 0o702, true),
            (1000, 0o755, true),
            (1000, 0o500, true),
        ] {
            assert_eq!(others_may_write(owner, mode), others, "{owner} {mode:o}");
        }
    }

    #[test]
    fn limits_that_change() {
        // CPUM-24
        let told = serde_json::json!({"memory": {"limit": 4096}, "cpu": {"shares": 2, "quota": -1},
            "unified": {"memory.high": "max"}});
        let had = LinuxResources {
            cpuset_cpus: Some("0-1".into()),
            ..LinuxResources::default()
        };
        let limits = apply_update(had, &told);
        assert_eq!(limits.cpuset_cpus.as_deref(), Some("0-1"), "it stays");
        let others = serde_json::json!({"cpu": {"cpus": "0,3"}});
        let moved = apply_update(limits.clone(), &others);
        assert_eq!(moved.cpuset_cpus.as_deref(), Some("0,3"));
        assert_eq!(limits.unified["memory.high"], "max");
        let all = (
            limits.memory_limit_bytes,
            limits.cpu_shares,
            limits.cpu_quota_us,
        );
        assert_eq!(all, (Some(4096), Some(2), Some(-1)));
        assert_eq!(limits.pids_limit, None);
    }
}
