//! The agent's side: starting a shim, and finding one again.

use core::time::Duration;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_io::{Async, Timer};
use nix::sys::stat::Mode;
use smol::future;

use super::file;
use super::record::{self, ContainerStateRecord};
use super::rotation::LogLimit;
use crate::sys::child::{Command, OutputSink};
use crate::sys::{crash, lock, pidfd, proc};

/// Time limit for the runtime to create a container; then the shim kills the runtime.
pub const CREATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time beyond [`CREATE_TIMEOUT`] that the agent waits for the shim's answer.
const ANSWER_MARGIN: Duration = Duration::from_secs(10);
/// Bytes of the shim's answer that are read: a word, numbers, the end of the runtime's log.
const MAX_ANSWER_BYTES: u64 = 8192;

/// A container to be created. `dir` holds `config.json` and none of the shim's files yet, or those of a failed try.
#[derive(Clone, Debug)]
pub struct ShimLaunch {
    /// The agent's own executable, opened at its start.
    pub exe: Arc<OwnedFd>,
    /// The container's run directory and bundle; absolute.
    pub dir: PathBuf,
    /// The container's id at the runtime.
    pub id: String,
    /// The runtime's program; absolute.
    pub runtime: PathBuf,
    /// The runtime's `--root`.
    pub runtime_root: PathBuf,
    /// The log file; its directory exists.
    pub log: PathBuf,
    /// Limit of the log. `None`: the shim does not rotate it.
    pub log_limit: Option<LogLimit>,
    /// File in which the shim holds the end of the log in memory, see [`super::held_log_path`]. `None`: it holds none.
    pub log_memory: Option<PathBuf>,
    /// The container has a terminal: then all its output is `stdout`.
    pub tty: bool,
    /// The container reads standard input; otherwise it gets `/dev/null`.
    pub stdin: bool,
    /// Standard input ends with the first attached client that had it.
    pub stdin_once: bool,
    /// User and group of the host that the container's process is, if it has a user namespace: they get its streams, so
    /// that it can open `/dev/stdout`. `None`: its streams belong to the agent's user.
    pub stream_owner: Option<(u32, u32)>,
    /// Directory of the container's memory cgroup (v1: in the memory hierarchy), whose OOM counter is read at its end.
    pub memory_cgroup: Option<PathBuf>,
    /// cgroup directories that the shim moves into before it does anything; one per hierarchy on v1.
    pub shim_cgroups: Vec<PathBuf>,
    /// `oom_score_adj` of the shim; clamped to what is allowed.
    pub oom_score_adj: Option<i32>,
    /// Longest time of the runtime's `create`: [`CREATE_TIMEOUT`], or less.
    pub create_limit: Duration,
}

/// A living shim and its container.
#[derive(Debug)]
pub struct LiveShim {
    /// Pid of the container's init.
    pub pid: i32,
    /// Pid of the shim.
    pub shim_pid: i32,
    /// Descriptor of the shim: when it has ended, the exit record is there. The shim is no child of the agent and need
    /// not be reaped.
    pub pidfd: OwnedFd,
}

/// Reason why a container was not created. None of its processes runs; the exit record, if there is one, says
/// `created: false`.
#[derive(Debug, thiserror::Error)]
pub enum ShimLaunchError {
    /// The shim could not be started, failed or did not answer. `delete --force` is still to be called, in case it failed
    /// after the runtime had done its work.
    #[error("start the shim: {0}")]
    Shim(#[source] io::Error),
    /// A shim for this directory lives already.
    #[error("a shim holds {0}")]
    Busy(PathBuf),
    /// The container was created, but was killed before its start. The exit record is there.
    #[error("the container was killed before it was started")]
    Ended,
    /// The runtime failed. `delete --force` is still to be called: it may have left something.
    #[error("{message}")]
    Runtime {
        /// Exit code of the runtime; 128 + signal.
        code: i32,
        /// Last error message of the runtime; the raw text if that cannot be read.
        message: String,
    },
}

/// Starts a shim and has it create the container. Returns when the runtime's `create` has ended.
///
/// Blocks for the making of a few files in `dir` (tmpfs) and a fork. If the future is dropped, or the agent dies, the shim
/// goes on ([`find_live_shim`] finds it) unless it had not begun yet.
pub async fn launch_shim(launch: &ShimLaunch) -> Result<LiveShim, ShimLaunchError> {
    let mut command = Command::from_opened(Arc::clone(&launch.exe), "picolet")
        .args(["shim", "--dir"])
        .arg(&launch.dir)
        .args(["--id", &launch.id, "--runtime"])
        .arg(&launch.runtime)
        .arg("--root")
        .arg(&launch.runtime_root)
        .arg("--log")
        .arg(&launch.log)
        .args(["--create-ms", &launch.create_limit.as_millis().to_string()]);
    if let Some(dir) = &launch.memory_cgroup {
        command = command.arg("--memory-cgroup").arg(dir);
    }
    command = add_log_limits(command, launch.log_limit, launch.log_memory.as_deref());
    if let Some(adj) = launch.oom_score_adj {
        command = command.args(["--oom-score-adj", &adj.to_string()]);
    }
    for (set, flag) in [
        (launch.tty, "--tty"),
        (launch.stdin, "--stdin"),
        (launch.stdin_once, "--stdin-once"),
    ] {
        if set {
            command = command.arg(flag);
        }
    }
    for dir in &launch.shim_cgroups {
        command = command.join_cgroup(dir);
    }
    start_shim(&launch.dir, command, launch.stream_owner)
        .await?
        .ok_or(ShimLaunchError::Ended)
}

/// A container whose shim died.
#[derive(Clone, Debug)]
pub struct LogShimLaunch {
    /// The agent's own executable, opened at its start.
    pub exe: Arc<OwnedFd>,
    /// The container's run directory.
    pub dir: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// As in [`ShimLaunch::log_limit`].
    pub log_limit: Option<LogLimit>,
    /// As in [`ShimLaunch::log_memory`]. The records of the dead shim in it are saved.
    pub log_memory: Option<PathBuf>,
    /// As in [`ShimLaunch::memory_cgroup`].
    pub memory_cgroup: Option<PathBuf>,
    /// As in [`ShimLaunch::shim_cgroups`].
    pub shim_cgroups: Vec<PathBuf>,
    /// As in [`ShimLaunch::oom_score_adj`].
    pub oom_score_adj: Option<i32>,
}

/// Starts a shim that takes over the output of a container whose shim died, waits for the end of init and writes an exit
/// record with `known: false`. Killing the container is the caller's affair; do it after this call.
///
/// `None`: init has ended already, or the shim died during create: the output was saved and the exit record is there.
pub async fn launch_log_only(launch: &LogShimLaunch) -> Result<Option<LiveShim>, ShimLaunchError> {
    let state = record::read_state(&launch.dir).ok().flatten();
    let (pid, start_time) = state.map_or((0, 0), |s| (s.pid, s.start_time));
    let mut command = Command::from_opened(Arc::clone(&launch.exe), "picolet")
        .args(["shim", "--dir"])
        .arg(&launch.dir)
        .arg("--log")
        .arg(&launch.log)
        .args(["--init", &pid.to_string()])
        .args(["--init-start", &start_time.to_string()]);
    if let Some(dir) = &launch.memory_cgroup {
        command = command.arg("--memory-cgroup").arg(dir);
    }
    command = add_log_limits(command, launch.log_limit, launch.log_memory.as_deref());
    if let Some(adj) = launch.oom_score_adj {
        command = command.args(["--oom-score-adj", &adj.to_string()]);
    }
    for dir in &launch.shim_cgroups {
        command = command.join_cgroup(dir);
    }
    start_shim(&launch.dir, command, None).await
}

fn add_log_limits(mut command: Command, limit: Option<LogLimit>, memory: Option<&Path>) -> Command {
    if let Some(limit) = limit {
        command = command
            .args(["--log-bytes", &limit.max_bytes.to_string()])
            .args(["--log-files", &limit.max_files.to_string()]);
    }
    match memory {
        None => command,
        Some(path) => command.arg("--log-memory").arg(path),
    }
}

/// Returns true if a shim, or a launch, holds `dir`.
pub fn is_shim_alive(dir: &Path) -> io::Result<bool> {
    lock::is_locked(&dir.join(file::LOCK))
}

/// Finds the living shim of `dir` after a restart of the agent.
///
/// `None` if it has ended, or if it is still creating the container (then [`is_shim_alive`] says true and there is neither
/// record: look again later; it gives up by itself after [`CREATE_TIMEOUT`]).
pub fn find_live_shim(dir: &Path) -> io::Result<Option<LiveShim>> {
    let Some(state) = record::read_state(dir).map_err(io::Error::other)? else {
        return Ok(None);
    };
    if !is_shim_alive(dir)? {
        return Ok(None);
    }
    open_shim(&state)
}

/// Kills a shim that holds `dir` and is still creating its container, and waits for its end. Its runtime dies with it;
/// leftovers of the runtime are still to be deleted. If there is no such shim, that is success.
pub async fn end_launch(dir: &Path) -> io::Result<()> {
    if !is_shim_alive(dir)? {
        return Ok(());
    }
    for pid in proc::list_pids()? {
        // Opened first: then the command line is that of the process that is ended.
        let Ok(fd) = pidfd::open_pidfd(pid) else {
            continue;
        };
        if !is_shim_of(pid, dir) {
            continue;
        }
        match pidfd::send_signal(fd.as_fd(), libc::SIGKILL) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => return Err(e),
            _ => pidfd::wait_until_ended(fd).await?,
        }
    }
    Ok(())
}

/// Returns true if the process is the shim of `dir`, by the command line that [`launch_shim`] gives it. Before its state
/// record is written there is no other sign.
fn is_shim_of(pid: i32, dir: &Path) -> bool {
    let mut buffer = [0; 1024];
    let line = proc::read_small(&format!("/proc/{pid}/cmdline"), &mut buffer).unwrap_or_default();
    let mut words = line.split('\0').skip(1);
    words.next() == Some("shim")
        && words.next() == Some("--dir")
        && words.next().map(Path::new) == Some(dir)
}

fn open_shim(state: &ContainerStateRecord) -> io::Result<Option<LiveShim>> {
    let gone = |e: io::Error| match e.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => Ok(None),
        _ => Err(e),
    };
    let pidfd = match pidfd::open_pidfd(state.shim_pid) {
        Ok(fd) => fd,
        Err(e) => return gone(e),
    };
    match proc::start_time(state.shim_pid) {
        Ok(at) if at == state.shim_start_time => {}
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    }
    Ok(Some(LiveShim {
        pid: state.pid,
        shim_pid: state.shim_pid,
        pidfd,
    }))
}

async fn start_shim(
    dir: &Path,
    command: Command,
    stream_owner: Option<(u32, u32)>,
) -> Result<Option<LiveShim>, ShimLaunchError> {
    // Locked from before the shim exists until it ends: a process that finds the directory meanwhile leaves it alone.
    let lock = lock::try_lock(&dir.join(file::LOCK))
        .map_err(ShimLaunchError::Shim)?
        .ok_or_else(|| ShimLaunchError::Busy(dir.into()))?;
    crash::point("launch.locked");
    make_fifos(dir, stream_owner).map_err(ShimLaunchError::Shim)?;
    #[cfg(feature = "crash-points")]
    let command = match crash::shim_argument() {
        Some(name) => command.args(["--crash-at", name]),
        None => command,
    };
    let (reader, writer) = io::pipe().map_err(ShimLaunchError::Shim)?;
    let number = lock.as_raw_fd().to_string();
    let spawn = || -> io::Result<_> {
        let command = command
            .args(["--lock", &number])
            .inherit_fd(lock.into())
            .stdout(OutputSink::Fd(writer.into()));
        Ok((command.spawn()?, Async::new(reader)?))
    };
    let (mut child, reader) = spawn().map_err(ShimLaunchError::Shim)?;
    crash::point("launch.spawned");
    let answer = async {
        // The child forks and ends; the shim proper is init's child.
        child.wait().await?;
        let mut bytes = Vec::new();
        let mut chunk = [0; 512];
        // Bounded: MAX_ANSWER_BYTES, of a shim of ours.
        loop {
            let n = reader.read_with(|mut r| r.read(&mut chunk)).await?;
            if n == 0 || u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_ANSWER_BYTES {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&chunk[..n]);
        }
    };
    let late = async {
        Timer::after(CREATE_TIMEOUT + ANSWER_MARGIN).await;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the shim does not answer",
        ))
    };
    let bytes = future::or(answer, late)
        .await
        .map_err(ShimLaunchError::Shim)?;
    parse_shim_answer(dir, &bytes)
}

/// Reads the shim's answer: `ok`, or `ended`, or `error <code>` and raw text, or any other text about its own failure.
fn parse_shim_answer(dir: &Path, answer: &[u8]) -> Result<Option<LiveShim>, ShimLaunchError> {
    let text = String::from_utf8_lossy(answer);
    let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if head == "ended" {
        return Ok(None);
    }
    if head == "ok" {
        let state =
            record::read_state(dir).map_err(|e| ShimLaunchError::Shim(io::Error::other(e)))?;
        // Without a state record the shim has ended in its last resort, see `record`.
        let shim = state
            .map(|s| open_shim(&s))
            .transpose()
            .map_err(ShimLaunchError::Shim)?;
        return Ok(shim.flatten());
    }
    if let Some(code) = head.strip_prefix("error ").and_then(|c| c.parse().ok()) {
        return Err(ShimLaunchError::Runtime {
            code,
            message: runtime_message(rest),
        });
    }
    let why = if text.is_empty() {
        "the shim ended without an answer"
    } else {
        text.trim()
    };
    Err(ShimLaunchError::Shim(io::Error::other(why.to_string())))
}

/// The last message of a runtime's log: JSON lines with `level` and `msg`. Falls back to the last line as it is.
#[must_use]
pub fn runtime_message(log: &str) -> String {
    #[derive(serde::Deserialize)]
    struct OciLogLine {
        #[serde(default)]
        level: String,
        msg: String,
    }
    let lines = || log.lines().rev().filter(|l| !l.trim().is_empty());
    let parsed = || lines().filter_map(|l| serde_json::from_str::<OciLogLine>(l).ok());
    parsed()
        .find(|l| matches!(l.level.as_str(), "error" | "fatal" | "panic"))
        .or_else(|| parsed().next())
        .map(|l| l.msg)
        .or_else(|| lines().next().map(|l| l.trim().to_string()))
        .unwrap_or_else(|| "the runtime failed without a message".into())
}

fn make_fifos(dir: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    for name in [file::STDIN, file::STDOUT, file::STDERR] {
        let path = dir.join(name);
        match nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        // The OCI runtime cannot do it: in the container's user namespace it is not root over them.
        if let Some((uid, gid)) = owner {
            lchown(&path, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_messages() {
        for (name, log, message) in [
            (
                "one error",
                "{\"level\":\"error\",\"msg\":\"no such file\",\"time\":\"x\"}\n",
                "no such file",
            ),
            (
                "warning after it",
                "{\"level\":\"error\",\"msg\":\"bad\"}\n{\"level\":\"warning\",\"msg\":\"hm\"}\n",
                "bad",
            ),
            (
                "only a warning",
                "{\"level\":\"warning\",\"msg\":\"hm\"}\n",
                "hm",
            ),
            ("plain text", "a\nrunc: not JSON\n\n", "runc: not JSON"),
            (
                "cut first line",
                "sg\":\"x\"}\n{\"level\":\"error\",\"msg\":\"bad\"}\n",
                "bad",
            ),
            ("nothing", "", "the runtime failed without a message"),
        ] {
            assert_eq!(runtime_message(log), message, "{name}");
        }
    }
}
