//! `picolet shim`: from its arguments to its exit record.
//!
//! ```text
//! start ── fork ──▶ parent ends: the shim is nobody's child but init's
//!   └▶ signals blocked, subreaper, log opened ──▶ runtime create ──▶ state, ctl, "ok" ──▶ serve ──▶ init ended
//!                                                     └ failed ──▶ exit record, "error"       drain, exit record ◀┘
//! ```

use core::ffi::CStr;
use core::str::FromStr;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};

use super::clients::ShimClients;
use super::create::{CreateFailure, CreatedContainer, create_container, open_fifo};
use super::log::ContainerLog;
use super::record::{self, ContainerExitRecord, ContainerStateRecord};
use super::rotation::LogLimit;
use super::serve::{ContainerInit, ContainerStdin, InitExit, OutputSource, ShimServer};
use super::{BUILD, file};
use crate::sys::{clock, crash, file as files, limits, pidfd, proc, start};

/// Arguments from the launcher. All texts are the process's own arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShimArgs {
    pub(crate) dir: &'static CStr,
    pub(crate) id: &'static CStr,
    pub(crate) runtime: &'static CStr,
    pub(crate) root: &'static CStr,
    pub(crate) log: &'static CStr,
    pub(crate) memory_cgroup: &'static CStr,
    pub(crate) oom_score_adj: Option<i32>,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) stdin_once: bool,
    pub(crate) create_ms: u64,
    /// Bytes of the log at which the shim begins a new file, and files that it keeps; 0: it does neither.
    pub(crate) log_limit: LogLimit,
    /// File in which the end of the log is held in memory; empty: none is held.
    pub(crate) log_memory: &'static CStr,
    /// Number of the inherited descriptor that holds the lock.
    pub(crate) lock: i32,
    /// Log-only: pid (0: none was created) and start time of init.
    pub(crate) init: Option<(i32, u64)>,
}

impl ShimArgs {
    fn parse(mut args: impl Iterator<Item = &'static CStr>) -> Result<Self, &'static CStr> {
        let mut out = Self {
            dir: c"",
            id: c"",
            runtime: c"",
            root: c"",
            log: c"",
            memory_cgroup: c"",
            oom_score_adj: None,
            tty: false,
            stdin: false,
            stdin_once: false,
            create_ms: 0,
            log_limit: LogLimit {
                max_bytes: 0,
                max_files: 0,
            },
            log_memory: c"",
            lock: -1,
            init: None,
        };
        let mut init_start = 0;
        while let Some(name) = args.next() {
            let flag = match name.to_bytes() {
                b"--tty" => Some(&mut out.tty),
                b"--stdin" => Some(&mut out.stdin),
                b"--stdin-once" => Some(&mut out.stdin_once),
                _ => None,
            };
            if let Some(flag) = flag {
                *flag = true;
                continue;
            }
            let value = args.next().ok_or(name)?;
            match name.to_bytes() {
                b"--dir" => out.dir = value,
                b"--id" => out.id = value,
                b"--runtime" => out.runtime = value,
                b"--root" => out.root = value,
                b"--log" => out.log = value,
                b"--memory-cgroup" => out.memory_cgroup = value,
                b"--oom-score-adj" => out.oom_score_adj = Some(parse_number(value).ok_or(name)?),
                b"--create-ms" => out.create_ms = parse_number(value).ok_or(name)?,
                b"--log-bytes" => out.log_limit.max_bytes = parse_number(value).ok_or(name)?,
                b"--log-files" => out.log_limit.max_files = parse_number(value).ok_or(name)?,
                b"--log-memory" => out.log_memory = value,
                #[cfg(feature = "crash-points")]
                b"--crash-at" => crash::arm_shim(value),
                b"--lock" => out.lock = parse_number(value).ok_or(name)?,
                b"--init" => out.init = Some((parse_number(value).ok_or(name)?, 0)),
                b"--init-start" => init_start = parse_number(value).ok_or(name)?,
                _ => return Err(name),
            }
        }
        if let Some((_, start_time)) = &mut out.init {
            *start_time = init_start;
        } else if out.runtime.is_empty() || out.id.is_empty() {
            return Err(c"--runtime");
        }
        if out.dir.is_empty() || out.log.is_empty() {
            return Err(c"--dir");
        }
        Ok(out)
    }
}

fn parse_number<T: FromStr>(text: &CStr) -> Option<T> {
    text.to_str().ok()?.parse().ok()
}

fn path_from_text(text: &'static CStr) -> &'static Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

/// Entry point: `args` follow the word `shim`. Started by [`super::launch_shim`] only.
///
/// Standard input is `/dev/null`, standard output the pipe to the launcher. Returns the exit code, which is not used.
pub fn main(args: impl Iterator<Item = &'static CStr>) -> i32 {
    let result = ShimArgs::parse(args)
        .map_err(|name| io::Error::other(format!("bad argument {}", name.to_string_lossy())))
        .and_then(|args| {
            start::continue_in_background()?;
            set_up_and_run(&args)
        });
    match result {
        Ok(()) => 0,
        Err(e) => {
            start::write_stdout(format!("shim: {e}\n").as_bytes());
            1
        }
    }
}

fn set_up_and_run(args: &ShimArgs) -> io::Result<()> {
    start::close_on_exec(args.lock);
    prctl::set_name(c"picolet-shim")?;
    prctl::set_child_subreaper(true)?;
    // The container inherits this mask unless its configuration sets another one.
    umask(Mode::from_bits_truncate(0o022));
    nix::unistd::chdir(args.dir)?;
    if let Some(adj) = args.oom_score_adj {
        limits::set_oom_score_adj(adj)?;
    }
    // Only SIGKILL and its own faults end a shim. Children get an empty mask.
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGCHLD);
    let memory = (!args.log_memory.is_empty()).then(|| path_from_text(args.log_memory));
    if memory.is_some() {
        heard.add(Signal::SIGTERM);
    }
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&heard, flags)?;
    let limit = args.log_limit;
    let limit = Some(limit).filter(|limit| limit.max_bytes > 0 && limit.max_files > 1);
    let log = ContainerLog::open(path_from_text(args.log), limit, memory)?;
    match args.init {
        None => create_and_serve(args, signals, log),
        Some((pid, start_time)) => take_over_container(args, signals, log, pid, start_time),
    }
}

/// Creates a container and serves it.
fn create_and_serve(args: &ShimArgs, signals: SignalFd, log: ContainerLog) -> io::Result<()> {
    let clients = ShimClients::bind_control_socket()?;
    crash::shim_point("shim.begun");
    let created = match create_container(args, &signals) {
        Ok(created) => created,
        Err(failure) => {
            let code = match &failure {
                CreateFailure::Runtime { code, .. } => *code,
                CreateFailure::Shim(_) => -1,
            };
            let end = Some(InitExit {
                code: 128,
                signal: 0,
            });
            // Also for the next agent if this one has died: the record says that there was no container.
            write_exit(&build_exit_record(args, end, false))?;
            return match failure {
                CreateFailure::Runtime { text, len, .. } => {
                    start::write_stdout(format!("error {code}\n").as_bytes());
                    start::write_stdout(&text[..len]);
                    Ok(())
                }
                CreateFailure::Shim(e) => Err(e),
            };
        }
    };
    let CreatedContainer {
        pid,
        ended,
        stdout,
        stderr,
        stdin,
        terminal,
    } = created;
    let mut server = ShimServer {
        signals,
        init: ContainerInit::Child(pid),
        stdout: OutputSource::stdout(stdout)?,
        stderr: stderr.map(OutputSource::stderr).transpose()?,
        stdin: ContainerStdin::new(stdin, args.stdin_once),
        terminal,
        log,
        clients,
    };
    crash::shim_point("shim.created");
    if ended.is_none() {
        // If init has ended already, it is about to be reaped, and the exit record will say so.
        let start_time = proc::start_time(pid).unwrap_or(0);
        write_state(pid, start_time)?;
        crash::shim_point("shim.recorded");
        answer_launcher(b"ok\n");
    }
    let end = match ended {
        Some(end) => Some(end),
        None => server.serve_until_exit()?,
    };
    finish_container(args, server, end)?;
    // The answer, unless "ok" was sent before: then the launcher does not listen any more.
    answer_launcher(b"ended\n");
    Ok(())
}

/// Serves a container whose shim died.
fn take_over_container(
    args: &ShimArgs,
    signals: SignalFd,
    log: ContainerLog,
    pid: i32,
    start_time: u64,
) -> io::Result<()> {
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK;
    let stdout = OutputSource::stdout(open_fifo(file::STDOUT, flags)?)?;
    let stderr = OutputSource::stderr(open_fifo(file::STDERR, flags)?)?;
    let init = foreign_init(pid, start_time);
    let mut server = ShimServer {
        signals,
        init: ContainerInit::Child(0),
        stdout,
        stderr: Some(stderr),
        stdin: ContainerStdin::default(),
        terminal: None,
        log,
        clients: ShimClients::bind_control_socket()?,
    };
    if let Some(pidfd) = init {
        server.init = ContainerInit::Foreign(pidfd);
        write_state(pid, start_time)?;
        answer_launcher(b"ok\n");
        server.serve_until_exit()?;
    }
    finish_container(args, server, None)?;
    answer_launcher(b"ended\n");
    Ok(())
}

/// The process, if it is still the one that was recorded and has not ended.
fn foreign_init(pid: i32, start_time: u64) -> Option<std::os::fd::OwnedFd> {
    if pid <= 0 {
        return None;
    }
    let pidfd = pidfd::open_pidfd(pid).ok()?;
    let same = proc::start_time(pid).is_ok_and(|at| at == start_time);
    (same && !pidfd::has_ended(pidfd.as_fd()).unwrap_or(true)).then_some(pidfd)
}

/// Saves the output and leaves the exit record, in this order; then the clients may know.
fn finish_container(
    args: &ShimArgs,
    mut server: ShimServer,
    end: Option<InitExit>,
) -> io::Result<()> {
    let mut record = build_exit_record(args, end, true);
    crash::shim_point("shim.ended");
    server.drain_last_output();
    record.log_lost = server.log.lost_records();
    crash::shim_point("shim.drained");
    write_exit(&record)?;
    crash::shim_point("shim.exit-recorded");
    server.clients.send_output_end();
    Ok(())
}

/// Makes the record of an end that has just been seen. `end` `None`: its exit code is unknown.
fn build_exit_record(args: &ShimArgs, end: Option<InitExit>, created: bool) -> ContainerExitRecord {
    let (wall, mono) = (clock::wall_now(), clock::mono_now());
    let how = end.unwrap_or(InitExit {
        code: 137,
        signal: 9,
    });
    ContainerExitRecord {
        v: record::VERSION,
        code: how.code,
        signal: how.signal,
        created,
        known: end.is_some(),
        oom_kills: read_oom_kills(path_from_text(args.memory_cgroup)),
        log_lost: 0,
        wall_ns: wall.0,
        boot_ms: mono.0,
        // A record without boot id is better than no record.
        boot_id: proc::boot_id().unwrap_or_default(),
        build: BUILD.into(),
    }
}

/// Reads how often the kernel killed in this cgroup and below it for want of memory; 0 if it is gone. Sources: cgroup-v2
/// `memory.events`, cgroup-v1 `memory.oom_control` (Linux 4.13).
fn read_oom_kills(dir: &Path) -> u64 {
    let mut buffer = [0; 512];
    for name in ["memory.events", "memory.oom_control"] {
        let file = dir.join(name);
        if let Some(file) = file.to_str()
            && let Ok(text) = proc::read_small(file, &mut buffer)
        {
            let count = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
            return count.and_then(|c| c.trim().parse().ok()).unwrap_or(0);
        }
    }
    0
}

fn write_state(pid: i32, start_time: u64) -> io::Result<()> {
    let shim_pid = nix::unistd::getpid().as_raw();
    let state = ContainerStateRecord {
        v: record::VERSION,
        pid,
        start_time,
        shim_pid,
        shim_start_time: proc::start_time(shim_pid)?,
        boot_id: proc::boot_id()?,
        build: BUILD.into(),
    };
    files::write_atomic(
        Path::new(file::STATE),
        state.to_string().as_bytes(),
        0o600,
        false,
    )
}

fn write_exit(exit: &ContainerExitRecord) -> io::Result<()> {
    let text = exit.to_string();
    let written = files::write_atomic(Path::new(file::EXIT), text.as_bytes(), 0o600, false);
    written.or_else(|e| {
        // No space left: the state record has a page already.
        let mut state = fs::OpenOptions::new()
            .write(true)
            .open(file::STATE)
            .map_err(|_| e)?;
        state.write_all(text.as_bytes())?;
        state.set_len(u64::try_from(text.len()).map_err(io::Error::other)?)?;
        fs::rename(file::STATE, file::EXIT)
    })
}

/// Sends the answer to the launcher, if it still listens, and closes the pipe.
fn answer_launcher(text: &[u8]) {
    start::write_stdout(text);
    start::end_stdout();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let full = [
            c"--dir",
            c"/d",
            c"--id",
            c"c1",
            c"--runtime",
            c"/runc",
            c"--root",
            c"/r",
            c"--log",
            c"/l/0.log",
            c"--create-ms",
            c"5",
            c"--tty",
            c"--lock",
            c"7",
            c"--oom-score-adj",
            c"-9",
            c"--log-bytes",
            c"100",
            c"--log-files",
            c"3",
            c"--log-memory",
            c"/m",
        ];
        let args = ShimArgs::parse(full.into_iter()).expect("good");
        assert_eq!(
            (args.dir, args.tty, args.stdin, args.lock),
            (c"/d", true, false, 7)
        );
        assert_eq!(
            (args.create_ms, args.oom_score_adj, args.init),
            (5, Some(-9), None)
        );
        let limit = LogLimit {
            max_bytes: 100,
            max_files: 3,
        };
        assert_eq!((args.log_limit, args.log_memory), (limit, c"/m"));
        let log_only = [
            c"--init",
            c"4",
            c"--init-start",
            c"9",
            c"--dir",
            c"/d",
            c"--log",
            c"/l",
        ];
        assert_eq!(
            ShimArgs::parse(log_only.into_iter()).expect("good").init,
            Some((4, 9))
        );
        for (name, bad) in [
            ("unknown", &[c"--no", c"x"][..]),
            ("no value", &[c"--dir"]),
            ("no number", &[c"--lock", c"x"]),
            ("nothing", &[]),
            (
                "neither create nor log-only",
                &[c"--dir", c"/d", c"--log", c"/l"],
            ),
        ] {
            assert!(ShimArgs::parse(bad.iter().copied()).is_err(), "{name}");
        }
    }

    #[test]
    fn oom_counters() {
        // RTM-05
        let dir = crate::testing::unused_path("oom");
        fs::create_dir_all(&dir).expect("dir");
        assert_eq!(read_oom_kills(&dir), 0);
        for (name, text, count) in [
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                3,
            ),
            (
                "memory.events",
                "low 0\nhigh 0\nmax 7\noom 5\noom_kill 2\noom_group_kill 9\n",
                2,
            ),
        ] {
            fs::write(dir.join(name), text).expect("write");
            assert_eq!(read_oom_kills(&dir), count, "{name}");
        }
        fs::remove_dir_all(&dir).expect("remove");
    }
}
