//! Child processes: explicit environment, no inherited descriptor, waited for by pidfd on the executor.
//!
//! Every child is the leader of its own process group, so that a time-out ends its helpers too. A child never gets
//! a descriptor of ours that was not asked for, starts with default signal dispositions and an empty mask.
//!
//! A start copies nothing of the agent (see `spawn`), so a child may be started from the deciding thread.

#![expect(unsafe_code, reason = "waitpid, close_range")]

use core::time::Duration;
use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::{ffi::OsStrExt, fs::fchown, process::ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use async_io::{Async, Timer};
use nix::{errno::Errno, libc, unistd::Pid};
use smol::future;

use super::{
    pidfd,
    spawn::{self, SpawnProgram},
    turn,
};

/// Time for a killed child to end. After that it is left to [`reap_abandoned`]: it hangs in the kernel.
pub const KILL_WAIT: Duration = Duration::from_secs(5);
/// Bytes read at most from a pipe after the child has ended: other holders of the pipe may write on without end.
pub const AFTER_EXIT_BYTES: usize = 1024 * 1024;
/// Bytes of a child's error output that go into the text of a time-out error.
const TIMEOUT_TEXT_BYTES: usize = 512;

/// Children whose owner gave up before they ended. Reaped when a later child is started.
static ABANDONED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Standard input of a child.
#[derive(Debug, Default)]
pub enum ChildInput {
    /// `/dev/null`.
    #[default]
    Null,
    /// The given bytes, then end of file. A child that does not read them is no error.
    Bytes(Vec<u8>),
    /// The given descriptor.
    Fd(OwnedFd),
}

/// Target of a child's standard output or error.
#[derive(Debug, Default)]
pub enum OutputSink {
    /// `/dev/null`.
    #[default]
    Null,
    /// Kept in memory up to so many bytes; the rest is read and thrown away, so that the child is never blocked.
    Capture(usize),
    /// The given descriptor.
    Fd(OwnedFd),
}

/// A program with its arguments, environment and streams. Nothing is inherited but the user and the working directory
/// `/`.
#[derive(Debug)]
#[must_use]
pub struct Command {
    program: PathBuf,
    name: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    stdin: ChildInput,
    stdout: OutputSink,
    stderr: OutputSink,
    capture_owner: Option<(u32, u32)>,
    keep: Vec<OwnedFd>,
    exe: Option<Arc<OwnedFd>>,
    cgroups: Vec<PathBuf>,
    polite: bool,
}

impl Command {
    /// A program by absolute path (no search), which is also its `argv[0]`.
    pub fn new(program: impl AsRef<Path>) -> Self {
        let program = program.as_ref().to_path_buf();
        Self {
            name: program.clone().into(),
            program,
            args: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            stdin: ChildInput::Null,
            stdout: OutputSink::Null,
            stderr: OutputSink::Null,
            capture_owner: None,
            keep: Vec::new(),
            exe: None,
            cgroups: Vec::new(),
            polite: false,
        }
    }

    /// Makes a command of an opened executable: its path may hold another file by now. `name` becomes `argv[0]`. Not
    /// for scripts.
    pub fn from_opened(exe: Arc<OwnedFd>, name: impl AsRef<OsStr>) -> Self {
        let mut command = Self::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
        command.name = name.as_ref().into();
        command.exe = Some(exe);
        command
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().into()));
        self
    }

    /// Adds one variable to the environment, which is empty otherwise. Of two with one name the later one counts.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(other, _)| other != key.as_ref());
        self.env.push((key.as_ref().into(), value.as_ref().into()));
        self
    }

    /// Sets the working directory (default `/`).
    pub fn cwd(mut self, dir: impl AsRef<Path>) -> Self {
        self.cwd = dir.as_ref().into();
        self
    }

    /// Sets standard input (default [`ChildInput::Null`]).
    pub fn stdin(mut self, input: ChildInput) -> Self {
        self.stdin = input;
        self
    }

    /// Sets standard output (default [`OutputSink::Null`]).
    pub fn stdout(mut self, sink: OutputSink) -> Self {
        self.stdout = sink;
        self
    }

    /// Sets standard error (default [`OutputSink::Null`]).
    pub fn stderr(mut self, sink: OutputSink) -> Self {
        self.stderr = sink;
        self
    }

    /// Captures both outputs, each up to `limit` bytes.
    pub fn capture_output(self, limit: usize) -> Self {
        self.stdout(OutputSink::Capture(limit))
            .stderr(OutputSink::Capture(limit))
    }

    /// Gives the pipes of captured outputs to a user and a group: only who owns a pipe can open it by its path in
    /// `/proc`, as a program does that opens `/dev/stdout`.
    pub fn capture_owner(mut self, owner: Option<(u32, u32)>) -> Self {
        self.capture_owner = owner;
        self
    }

    /// Lets the child inherit `fd` under the number it has here.
    pub fn inherit_fd(mut self, fd: OwnedFd) -> Self {
        self.keep.push(fd);
        self
    }

    /// Marks a child that watches over others and ends them itself: [`Child::kill`] sends SIGTERM to it alone.
    pub fn kill_by_sigterm(mut self) -> Self {
        self.polite = true;
        self
    }

    /// Moves the child into the cgroup directory `dir` before it runs the program; once per hierarchy (v1).
    pub fn join_cgroup(mut self, dir: impl AsRef<Path>) -> Self {
        self.cgroups.push(dir.as_ref().into());
        self
    }

    /// Starts the program. An error of the exec itself (missing file, permission) is returned here.
    pub fn spawn(self) -> io::Result<Child> {
        reap_abandoned();
        let mut procs = Vec::with_capacity(self.cgroups.len());
        for dir in &self.cgroups {
            let path = dir.join("cgroup.procs");
            let file = OpenOptions::new().write(true).open(&path);
            procs.push(file.map_err(|e| error_with_path(&e, &path))?);
        }
        let (stdin, input) = match self.stdin {
            ChildInput::Null => (open_null()?, None),
            ChildInput::Fd(fd) => (fd, None),
            ChildInput::Bytes(bytes) => {
                let (reader, writer) = io::pipe()?;
                (reader.into(), Some((writer, bytes)))
            }
        };
        let (out, stdout) = open_sink(self.stdout, self.capture_owner)?;
        let (err, stderr) = open_sink(self.stderr, self.capture_owner)?;
        let stdio = [above_stdio(stdin)?, above_stdio(out)?, above_stdio(err)?];
        let keep: Vec<RawFd> = self.keep.iter().map(AsRawFd::as_raw_fd).collect();
        let mut args = vec![to_c_string(self.name.as_bytes())?];
        for arg in &self.args {
            args.push(to_c_string(arg.as_bytes())?);
        }
        let mut env = Vec::with_capacity(self.env.len());
        for (key, value) in &self.env {
            env.push(to_c_string(
                &[key.as_bytes(), b"=", value.as_bytes()].concat(),
            )?);
        }
        let pid = spawn::spawn_program(&SpawnProgram {
            path: &to_c_string(self.program.as_os_str().as_bytes())?,
            args: &args,
            env: &env,
            cwd: &to_c_string(self.cwd.as_os_str().as_bytes())?,
            stdio: [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()],
            keep: &keep,
            procs: &procs,
        })
        .map_err(|e| error_with_path(&e, &self.program))?;
        // The child's ends of the pipes are closed here.
        drop(stdio);
        let mut child = Child {
            pid: Some(pid),
            polite: self.polite,
            pidfd: None,
            input: None,
            stdout,
            stderr,
        };
        // Dropping `child` on an error kills it.
        child.pidfd = Some(Arc::new(pidfd::open_pidfd(pid.as_raw())?));
        child.input = input
            .map(|(writer, bytes)| Ok::<_, io::Error>((Async::new(writer)?, bytes)))
            .transpose()?;
        Ok(child)
    }
}

/// Starts `command` and waits for its end.
///
/// - Shape: what both sinks captured; empty for other sinks.
/// - Errors: the start failed; `TimedOut` if it ran longer than `timeout`: its whole process group was killed and the
///   text holds the end of what it wrote to a captured standard error.
pub async fn run_command(command: Command, timeout: Option<Duration>) -> io::Result<ChildOutput> {
    let name = command.program.clone();
    let mut child = command.spawn()?;
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    let input = child.input.take();
    let status = {
        let streams = async {
            future::zip(
                feed_input(input),
                future::zip(pump_capture(stdout.as_mut()), pump_capture(stderr.as_mut())),
            )
            .await;
            future::pending().await
        };
        let expired = async {
            match timeout {
                Some(t) => Timer::after(t).await,
                None => future::pending().await,
            };
            Ok(None)
        };
        let ended = async { child.wait().await.map(Some) };
        future::or(ended, future::or(streams, expired)).await?
    };
    if status.is_none() {
        child.kill();
        let late = async {
            Timer::after(KILL_WAIT).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        // Not ended even now: dropping it leaves it to a later reaping.
        let _ = future::or(child.wait(), late).await;
    }
    let finish = |capture: Option<OutputCapture>| {
        capture.map_or_else(Default::default, |mut c| {
            c.drain_pipe();
            (c.bytes, c.lost)
        })
    };
    let ((stdout, stdout_lost), (stderr, stderr_lost)) = (finish(stdout), finish(stderr));
    let Some(status) = status else {
        let tail = &stderr[stderr.len().saturating_sub(TIMEOUT_TEXT_BYTES)..];
        let text = String::from_utf8_lossy(tail);
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "{} did not end within {timeout:?} and was killed: {}",
                name.display(),
                text.trim()
            ),
        ));
    };
    Ok(ChildOutput {
        status,
        stdout,
        stderr,
        truncated: stdout_lost || stderr_lost,
    })
}

/// Directories of the system's programs.
pub const SYSTEM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Finds a program of the system by its name.
#[must_use]
pub fn find_system_program(name: &str) -> Option<PathBuf> {
    let mut paths = SYSTEM_DIRS.iter().map(|dir| Path::new(dir).join(name));
    paths.find(|path| path.exists())
}

/// Exit status and output of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOutput {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Captured output, at most the sink's limit.
    pub stdout: Vec<u8>,
    /// Captured error output, at most the sink's limit.
    pub stderr: Vec<u8>,
    /// Set if output went over its limit and was dropped.
    pub truncated: bool,
}

impl ChildOutput {
    /// The exit code; 128 + signal for a signalled child, as shells have it.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        exit_code(self.status)
    }
}

/// The exit code; 128 + signal for a signalled process.
#[must_use]
pub fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|s| 128 + s))
        .unwrap_or(255)
}

/// A started child. Dropping it before its end kills its process group.
#[derive(Debug)]
pub struct Child {
    /// Pid; absent once the child was reaped.
    pid: Option<Pid>,
    polite: bool,
    pidfd: Option<Arc<OwnedFd>>,
    input: Option<(Async<PipeWriter>, Vec<u8>)>,
    stdout: Option<OutputCapture>,
    stderr: Option<OutputCapture>,
}

impl Child {
    /// Waits for its end and reaps it. Does not read its pipes: use [`run_command`] for children with captured output.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let gone = || io::Error::other("child was waited for twice");
        // Bounded: a child that has ended is reaped in the next round.
        loop {
            if let Some(status) = try_wait(self.pid.ok_or_else(gone)?)? {
                self.pid = None;
                return Ok(status);
            }
            let fd = self.pidfd.clone().ok_or_else(gone)?;
            pidfd::wait_until_ended(fd).await?;
        }
    }

    /// Returns true if the child has ended. It is reaped then.
    pub fn has_ended(&mut self) -> bool {
        if let Some(pid) = self.pid
            && !matches!(try_wait(pid), Ok(None))
        {
            self.pid = None;
        }
        self.pid.is_none()
    }

    /// Lets the child run on without an owner: dropping it no longer kills it.
    pub fn leave_running(&mut self) {
        if let Some(pid) = self.pid.take()
            && matches!(try_wait(pid), Ok(None))
        {
            let mut list = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(pid);
        }
    }

    /// Sends SIGKILL to its whole process group, or SIGTERM to a polite one. Still to be waited for.
    pub fn kill(&self) {
        use nix::sys::signal::{Signal, kill, killpg};
        // Not reaped yet, so the number is still its own.
        if let Some(pid) = self.pid {
            let _ = if self.polite {
                kill(pid, Signal::SIGTERM)
            } else {
                killpg(pid, Signal::SIGKILL)
            };
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        self.leave_running();
    }
}

/// Reaps children whose [`Child`] was dropped before they ended. Done at every start of a child too.
pub fn reap_abandoned() {
    let mut list = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain(|pid| matches!(try_wait(*pid), Ok(None)));
}

/// Reaps the child if it has ended.
fn try_wait(pid: Pid) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: writes one integer of ours.
    let got = unsafe { libc::waitpid(pid.as_raw(), &raw mut status, libc::WNOHANG) };
    Ok((Errno::result(got)? > 0).then(|| ExitStatus::from_raw(status)))
}

/// Marks every descriptor from `first` on close-on-exec. They stay open until then: std reports an exec error by one.
pub(super) fn close_on_exec_from(first: libc::c_uint) {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    /// Descriptors that this process can hold open on an old kernel, as long as its limit was not raised.
    const OLD_KERNEL_FDS: libc::c_int = 1024;
    // SAFETY: integer arguments only.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return;
    }
    // Before Linux 5.11 there is no such flag. Our own descriptors are all close-on-exec; this is for inherited ones.
    for fd in libc::c_int::try_from(first).unwrap_or(3)..OLD_KERNEL_FDS {
        // SAFETY: integer arguments only; a number that is not open gives EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// A captured stream.
#[derive(Debug)]
struct OutputCapture {
    pipe: Async<PipeReader>,
    bytes: Vec<u8>,
    limit: usize,
    lost: bool,
}

impl OutputCapture {
    fn take_chunk(&mut self, chunk: &[u8]) {
        let room = self.limit - self.bytes.len();
        let part = &chunk[..chunk.len().min(room)];
        self.bytes.extend_from_slice(part);
        self.lost |= part.len() < chunk.len();
    }

    /// Takes the bytes that are in the pipe now, without waiting for its end: another process may hold it.
    fn drain_pipe(&mut self) {
        let mut chunk = [0; 4096];
        let mut total = 0;
        while total < AFTER_EXIT_BYTES {
            let mut pipe = self.pipe.get_ref();
            match pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => {
                    total += n;
                    self.take_chunk(&chunk[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
}

async fn pump_capture(capture: Option<&mut OutputCapture>) {
    let Some(capture) = capture else { return };
    // Small: it lives in the future while the child runs, and a pipe's wake-ups bring little at a time.
    let mut chunk = [0; 1024];
    loop {
        // A child that writes faster than it is read would keep this loop going, and its time-out would never be seen.
        turn::yield_to_others().await;
        match read_some(&capture.pipe, &mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(n) => capture.take_chunk(&chunk[..n]),
        }
    }
}

async fn read_some(pipe: &Async<PipeReader>, chunk: &mut [u8]) -> io::Result<usize> {
    pipe.read_with(|mut p| p.read(chunk)).await
}

async fn feed_input(input: Option<(Async<PipeWriter>, Vec<u8>)>) {
    let Some((pipe, bytes)) = input else { return };
    let mut rest = &bytes[..];
    // Bounded: by the input of the child.
    while !rest.is_empty() {
        match pipe.write_with(|mut p| p.write(rest)).await {
            Ok(n) => rest = &rest[n..],
            // A child may close its input without reading it.
            Err(_) => return,
        }
    }
}

fn open_sink(
    sink: OutputSink,
    owner: Option<(u32, u32)>,
) -> io::Result<(OwnedFd, Option<OutputCapture>)> {
    Ok(match sink {
        OutputSink::Null => (open_null()?, None),
        OutputSink::Fd(fd) => (fd, None),
        OutputSink::Capture(limit) => {
            let (reader, writer) = io::pipe()?;
            if let Some((uid, gid)) = owner {
                fchown(&writer, Some(uid), Some(gid))?;
            }
            let capture = OutputCapture {
                pipe: Async::new(reader)?,
                bytes: Vec::new(),
                limit,
                lost: false,
            };
            (writer.into(), Some(capture))
        }
    })
}

fn open_null() -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    Ok(options.read(true).write(true).open("/dev/null")?.into())
}

/// Returns the file under a number above the standard streams: a copy onto one of those must not close another.
fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // Copies to 3 or above, close-on-exec.
    fd.try_clone()
}

fn to_c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| {
        let text = String::from_utf8_lossy(bytes);
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{text:?} holds a zero byte"),
        )
    })
}

fn error_with_path(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn sh(script: &str) -> Command {
        Command::new("/bin/sh")
            .args(["-c", script])
            .capture_output(64)
    }

    fn go(command: Command) -> io::Result<ChildOutput> {
        smol::block_on(run_command(command, Some(Duration::from_secs(20))))
    }

    #[test]
    fn a_child_that_always_writes_leaves_turns_to_others() {
        const BYTES: usize = 64 * 1024;
        let (reader, mut writer) = io::pipe().expect("pipe");
        writer.write_all(&[b'y'; BYTES]).expect("room for all");
        drop(writer);
        let mut capture = OutputCapture {
            pipe: Async::new(reader).expect("async"),
            bytes: Vec::new(),
            limit: 10,
            lost: false,
        };
        let turns = core::cell::Cell::new(0);
        let other = async {
            loop {
                turns.set(turns.get() + 1);
                future::yield_now().await;
            }
        };
        smol::block_on(future::or(pump_capture(Some(&mut capture)), other));
        assert_eq!((capture.bytes.len(), capture.lost), (10, true));
        assert!(turns.get() >= BYTES / 1024 / 2, "{} turns", turns.get());
    }

    #[test]
    fn a_child_that_never_stops_writing_ends_in_time() {
        let command = Command::new("/bin/cat")
            .args(["/dev/zero"])
            .capture_output(64);
        let turns = core::cell::Cell::new(0_u32);
        let other = async {
            loop {
                turns.set(turns.get() + 1);
                future::yield_now().await;
            }
        };
        let limit = Duration::from_millis(300);
        let ended = smol::block_on(future::or(run_command(command, Some(limit)), other));
        let error = ended.expect_err("it never ends");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(turns.get() > 100, "{} turns", turns.get());
    }

    #[test]
    fn results() {
        for (name, script, code, out, err) in [
            ("both streams", "echo a; echo b >&2", 0, "a\n", "b\n"),
            ("exit code", "exit 3", 3, "", ""),
            ("signal is 128 + n", "kill -9 $$", 137, "", ""),
            (
                "environment is explicit",
                "env | grep -v ^_= | grep -v ^PWD= | grep -v ^SHLVL= | grep -v ^OLDPWD=",
                1,
                "",
                "",
            ),
            ("stdin is null", "cat", 0, "", ""),
            ("root is the working directory", "pwd", 0, "/\n", ""),
        ] {
            let output = go(sh(script).env("PATH", "/usr/bin:/bin")).expect(name);
            let stdout =
                String::from_utf8_lossy(&output.stdout).replace("PATH=/usr/bin:/bin\n", "");
            let code = if name.starts_with("environment") {
                output.exit_code()
            } else {
                code
            };
            assert_eq!((output.exit_code(), stdout.as_str()), (code, out), "{name}");
            assert_eq!(output.stderr, err.as_bytes(), "{name}");
        }
    }

    #[test]
    fn descriptors_and_signals_are_clean() {
        let inherited = File::open("/dev/null").expect("open");
        // SAFETY: clears close-on-exec of a descriptor that this test owns: a careless library's leak.
        unsafe { libc::fcntl(inherited.as_raw_fd(), libc::F_SETFD, 0) };
        let output = go(sh("for f in /proc/self/fd/*; do echo ${f##*/}; done")).expect("run");
        let names = String::from_utf8_lossy(&output.stdout);
        for fd in names.split_whitespace() {
            // The shell's own directory handle while it globs is gone again; 10 and 255 are shells' script handles.
            assert!(fd.parse::<i32>().expect("number") <= 3, "{names}");
        }
        let output = go(sh("grep -E '^Sig(Blk|Ign)' /proc/self/status")).expect("run");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.lines().count(), 2, "{text}");
        for line in text.lines() {
            let mask = line.rsplit('\t').next().expect("mask");
            let mask = u64::from_str_radix(mask, 16).expect("hex");
            // 32 and 33 belong to the C library, which does not let a program change them.
            assert_eq!(mask & !(3 << 31), 0, "{line}");
        }
    }

    #[test]
    fn kept_descriptor() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let fd = writer.as_raw_fd();
        let command = sh(&format!("echo hello >&{fd}")).inherit_fd(writer.into());
        // dash takes single digits only.
        if fd < 10 {
            assert_eq!(go(command).expect("run").exit_code(), 0);
            let mut text = String::new();
            reader.read_to_string(&mut text).expect("read");
            assert_eq!(text, "hello\n");
        }
    }

    #[test]
    fn input_and_limits() {
        let bytes = vec![b'x'; 300_000];
        let counted = go(sh("wc -c")
            .env("PATH", "/usr/bin:/bin")
            .stdin(ChildInput::Bytes(bytes.clone())));
        assert_eq!(counted.expect("run").stdout, b"300000\n");
        let unread = go(sh("exit 0").stdin(ChildInput::Bytes(bytes.clone())));
        assert_eq!(unread.expect("run").exit_code(), 0);
        let echoed = go(sh("cat")
            .env("PATH", "/usr/bin:/bin")
            .stdin(ChildInput::Bytes(bytes)));
        let echoed = echoed.expect("run");
        assert_eq!((echoed.stdout.len(), echoed.truncated), (64, true));
    }

    #[test]
    fn background_holder_of_the_pipe_is_not_waited_for() {
        let (reader, writer) = io::pipe().expect("pipe");
        // The helper outlives its parent and keeps stdout open until our pipe closes.
        let script = "cat <&0 >/dev/null & echo done";
        let output = go(sh(script)
            .env("PATH", "/usr/bin:/bin")
            .stdin(ChildInput::Fd(reader.into())));
        assert_eq!(output.expect("run").stdout, b"done\n");
        drop(writer);
    }

    #[test]
    fn time_out_kills_the_group() {
        let script = "sleep 1000 & echo $!; echo why >&2; wait";
        let (mut reader, writer) = io::pipe().expect("pipe");
        let command = sh(script)
            .env("PATH", "/usr/bin:/bin")
            .stdout(OutputSink::Fd(writer.into()));
        let error = smol::block_on(run_command(command, Some(Duration::from_millis(300))))
            .expect_err("late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().ends_with("was killed: why"), "{error}");
        let mut text = String::new();
        // End of file proves that the helper, which holds the pipe too, is gone.
        reader.read_to_string(&mut text).expect("read");
        assert!(!text.is_empty());
    }

    #[test]
    fn missing_program_and_opened_program() {
        let error = go(Command::new("/no/such")).expect_err("missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let exe = Arc::new(OwnedFd::from(File::open("/bin/sh").expect("open")));
        let command = Command::from_opened(exe, "name")
            .args(["-c", "echo $0"])
            .capture_output(64);
        assert_eq!(go(command).expect("run").stdout, b"name\n");
    }

    #[test]
    fn start_is_fast() {
        let start = super::super::clock::mono_now();
        for _ in 0..50 {
            let mut child = Command::new("/bin/true").spawn().expect("spawn");
            smol::block_on(child.wait()).expect("wait");
        }
        let spent = super::super::clock::mono_now().since_ms(start);
        eprintln!("50 children: {spent} ms");
        // Generous: the machine may be busy.
        assert!(spent < 5000, "{spent} ms");
    }
}
