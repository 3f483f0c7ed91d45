//! Commands in running containers: captured, or with streams and a terminal.
//!
//! A command is started detached by the runtime, under a small process of ours ([`exec_wait`]) that is the agent's
//! child and passes its exit code on. The runtime writes a pid file: to end the command, the process *in* the container
//! has to be killed, which is in no process group of ours.

use alloc::rc::Rc;
use core::{cell::RefCell, time::Duration};
use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::fchown, net::UnixListener},
    },
    path::{Path, PathBuf},
    process::ExitStatus,
};

use async_io::{Async, Timer};
use smol::future;

use super::{Runc, exec_wait, failed_at_step, files, program::OciRuntimeError};
use crate::{
    api::{ContainerId, cri::ExecOutput},
    runtime::{ExecOptions, PipeStreams, RuntimeError, StreamSession},
    shim,
    sys::{
        child::{self, Child, ChildInput, Command, OutputSink},
        socket,
    },
};

/// Longest log of the OCI runtime that is read for its message, bytes.
const LOG_LIMIT: u64 = 16 * 1024;
/// Time limit for the runtime to hand over a terminal.
const TERMINAL_WAIT: Duration = Duration::from_secs(60);
/// Longest pid file and cgroup file that are read, bytes.
const SMALL: u64 = 4096;

/// Commands that run on without a client. A further one is ended with its client.
const MAX_LEFT: usize = 64;

/// Commands whose clients went away. As under containerd and CRI-O they are not killed: their input has ended, and the
/// next write to a pipe without reader, or the end of their terminal, may end them. A job that writes nothing survives
/// a broken link.
#[derive(Debug, Default)]
pub(super) struct AbandonedCommands(RefCell<Vec<(Child, ExecFiles)>>);

impl AbandonedCommands {
    /// Forgets ended commands, with their files.
    pub(super) fn remove_ended(&self) {
        let mut all = self.0.borrow_mut();
        all.retain_mut(|(child, _)| !child.has_ended());
    }
}

impl Drop for AbandonedCommands {
    fn drop(&mut self) {
        // The end of the agent does not end them either.
        for (child, _) in self.0.get_mut() {
            child.leave_running();
        }
    }
}

/// A running command. If it is dropped before its end, the command runs on; one that is just being started is ended.
#[derive(Debug)]
struct RunningCommand {
    /// Child and files of the command, taken when it is dropped.
    parts: Option<(Child, ExecFiles)>,
    ended: Option<ExitStatus>,
    left: Rc<AbandonedCommands>,
}

impl RunningCommand {
    async fn wait_for_exit(&mut self) -> Result<i32, RuntimeError> {
        let step = "wait for the command";
        let gone = || io::Error::other("it was dropped");
        let (child, files) = self
            .parts
            .as_mut()
            .ok_or_else(gone)
            .map_err(failed_at_step(step))?;
        let status = match self.ended {
            Some(status) => status,
            None => child.wait().await.map_err(failed_at_step(step))?,
        };
        self.ended = Some(status);
        let code = child::exit_code(status);
        match files.runtime_failure(code) {
            Some(message) => Err(RuntimeError::Failed(message)),
            None => Ok(code),
        }
    }

    fn into_session(mut self, streams: PipeStreams) -> StreamSession {
        StreamSession {
            streams: Box::new(streams),
            end: Box::pin(async move { self.wait_for_exit().await }),
        }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let Some((child, mut files)) = self.parts.take() else {
            return;
        };
        self.left.remove_ended();
        let mut left = self.left.0.borrow_mut();
        if self.ended.is_none() && files.has_started() && left.len() < MAX_LEFT {
            left.push((child, files));
            return;
        }
        // The helper has to end it: the pid of a command that is just being started is not known here.
        files.abandoned = self.ended.is_none();
    }
}

/// The pid file and log of one command; removed with it.
#[derive(Debug)]
struct ExecFiles {
    pid: PathBuf,
    log: PathBuf,
    /// Socket at which the runtime hands over a terminal.
    socket: PathBuf,
    /// The command still runs: the helper needs the pid file to end it, and removes it.
    abandoned: bool,
}

impl ExecFiles {
    /// Returns true if there is a pid file: then the command does or did run, and the exit code is its own.
    fn has_started(&self) -> bool {
        files::read_start(&self.pid, SMALL).is_ok_and(|pid| !pid.is_empty())
    }

    /// Returns why the runtime could not run the command, if it could not: then `code` is the runtime's, and tells
    /// nothing of the command. A runtime that died, perhaps of want of memory, has written no message.
    fn runtime_failure(&self, code: i32) -> Option<String> {
        if code == 0 || self.has_started() {
            return None;
        }
        let text = files::read_start(&self.log, LOG_LIMIT).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        Some(match text.trim().is_empty() {
            true => format!("the runtime failed without a message, with exit code {code}"),
            false => shim::runtime_message(&text),
        })
    }
}

impl Drop for ExecFiles {
    fn drop(&mut self) {
        let kept = usize::from(self.abandoned);
        for path in &[&self.pid, &self.log, &self.socket][kept..] {
            if let Err(e) = files::remove_file(path) {
                log::debug!("{}: {e}", path.display());
            }
        }
    }
}

impl Runc {
    pub(super) async fn exec_stream(
        &self,
        id: &ContainerId,
        options: &ExecOptions,
    ) -> Result<StreamSession, RuntimeError> {
        let (command, files) = self.exec_command(id, &options.command, options.tty)?;
        let step = "start the command";
        if options.tty {
            return terminal_session(command, files, options.stdin, &self.left_execs).await;
        }
        let (stdout, to_stdout) = io::pipe().map_err(failed_at_step(step))?;
        let (stderr, to_stderr) = io::pipe().map_err(failed_at_step(step))?;
        let owner = self.find_stream_owner(id);
        give_pipe(&to_stdout, owner).map_err(failed_at_step(step))?;
        give_pipe(&to_stderr, owner).map_err(failed_at_step(step))?;
        let mut command = command
            .stdout(OutputSink::Fd(to_stdout.into()))
            .stderr(OutputSink::Fd(to_stderr.into()));
        let mut stdin = None;
        if options.stdin {
            let (from_stdin, to_stdin) = io::pipe().map_err(failed_at_step(step))?;
            give_pipe(&from_stdin, owner).map_err(failed_at_step(step))?;
            stdin = Some(to_stdin.into());
            command = command.stdin(ChildInput::Fd(from_stdin.into()));
        }
        let streams = PipeStreams::new(stdin, Some(stdout.into()), Some(stderr.into()));
        let streams = streams.map_err(failed_at_step(step))?;
        let child = command.spawn().map_err(failed_at_step(step))?;
        let running = RunningCommand {
            parts: Some((child, files)),
            ended: None,
            left: Rc::clone(&self.left_execs),
        };
        Ok(running.into_session(streams))
    }

    pub(super) async fn exec_captured(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput, RuntimeError> {
        let (command, files) = self.exec_command(id, command, false)?;
        // Dropped early, or out of time: the helper gets SIGTERM and ends the command.
        let guard = AbandonOnDrop(Some(files));
        let command = command
            .capture_output(limit)
            .capture_owner(self.find_stream_owner(id));
        let result = child::run_command(command, timeout).await;
        let output = match result {
            Ok(output) => output,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                return Err(RuntimeError::Timeout {
                    what: format!("command in container {id}"),
                    after: timeout.unwrap_or_default(),
                });
            }
            Err(e) => return Err(failed_at_step("run the command")(e)),
        };
        let files = guard.disarm();
        let exit_code = output.exit_code();
        if let Some(message) = files.and_then(|f| f.runtime_failure(exit_code)) {
            return Err(RuntimeError::Failed(message));
        }
        Ok(ExecOutput {
            exit_code,
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }

    /// User and group of the host that a command in the container is, if its pod has a user namespace. They must own its
    /// pipes, else it cannot open `/dev/stdout`, and the OCI runtime cannot give them to it from inside the namespace.
    fn find_stream_owner(&self, id: &ContainerId) -> Option<(u32, u32)> {
        let table = self.table.borrow();
        let status = &table.containers.get(id)?.status;
        let sandbox = table.sandboxes.get(&status.sandbox)?;
        let (uid, gid, _) = status.user.as_ref()?;
        let (uid, gid) = (u32::try_from(*uid).ok()?, u32::try_from(*gid).ok()?);
        sandbox.status.namespaces.users?.owner_on_host(uid, gid)
    }

    fn exec_command(
        &self,
        id: &ContainerId,
        words: &[String],
        tty: bool,
    ) -> Result<(Command, ExecFiles), RuntimeError> {
        if words.is_empty() {
            return Err(RuntimeError::Invalid("no command to run".into()));
        }
        self.demand_running(id)?;
        self.left_execs.remove_ended();
        let program = self
            .oci_runtime_of(id)
            .map_err(|e: OciRuntimeError| RuntimeError::Failed(e.to_string()))?;
        let number = {
            let mut next = self.next_exec.borrow_mut();
            *next = next.wrapping_add(1);
            *next
        };
        let dir = self.container_dirs(id).run;
        // The agent's pid: after a restart the numbers begin anew.
        let name = format!("exec-{}-{number}", std::process::id());
        let files = ExecFiles {
            pid: dir.join(format!("{name}.pid")),
            log: dir.join(format!("{name}.log")),
            socket: dir.join(format!("{name}.sock")),
            abandoned: false,
        };
        let helper = Command::from_opened(self.settings.exe.clone(), "picolet")
            .kill_by_sigterm()
            .arg(exec_wait::COMMAND)
            .arg(&files.pid)
            .arg(&program.path);
        let mut command = program
            .add_global_options(helper, &self.runtime_root())
            // A log of its own: on standard error the runtime's words would mix with the command's.
            .arg("--log")
            .arg(&files.log)
            .args(["exec", "--detach", "--pid-file"])
            .arg(&files.pid);
        command = if tty {
            // Relative: a socket's path may have 107 bytes only.
            command
                .cwd(&dir)
                .args(["--tty=true", "--console-socket"])
                .arg(format!("{name}.sock"))
        } else {
            command.arg("--tty=false")
        };
        let command = command.arg(id.as_str()).args(words);
        Ok((command, files))
    }
}

/// Gives a pipe to a user and a group of the host, if they are named.
fn give_pipe(end: impl AsFd, owner: Option<(u32, u32)>) -> io::Result<()> {
    match owner {
        Some((uid, gid)) => fchown(end, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Starts a command with a terminal, whose master the runtime hands over by a socket.
async fn terminal_session(
    command: Command,
    files: ExecFiles,
    stdin: bool,
    left: &Rc<AbandonedCommands>,
) -> Result<StreamSession, RuntimeError> {
    let step = "get the command's terminal";
    let listener = Async::new(listen_at(&files.socket).map_err(failed_at_step(step))?)
        .map_err(failed_at_step(step))?;
    let mut child = command
        .spawn()
        .map_err(failed_at_step("start the command"))?;
    let mut ended = None;
    let master = {
        let mut taken = core::pin::pin!(async {
            let (stream, _) = listener.accept().await?;
            stream.readable().await?;
            socket::receive_fd(stream.get_ref()).map(Some)
        });
        let gone = async {
            ended = Some(child.wait().await?);
            Ok(None)
        };
        let first = future::or(&mut taken, future::or(gone, time_out_after(TERMINAL_WAIT))).await;
        match first.map_err(failed_at_step(step))? {
            Some(master) => Some(master),
            // A short command may have ended before its terminal was taken out of the socket.
            None if files
                .runtime_failure(ended.map_or(0, child::exit_code))
                .is_none() =>
            {
                let soon = Duration::from_secs(1);
                future::or(taken, time_out_after(soon))
                    .await
                    .map_err(failed_at_step(step))?
            }
            None => None,
        }
    };
    let Some(master) = master else {
        let why = files
            .runtime_failure(ended.map_or(0, child::exit_code))
            .unwrap_or_else(|| "the runtime gave no terminal".into());
        return Err(RuntimeError::Failed(why));
    };
    let streams = PipeStreams::from_terminal(master, stdin).map_err(failed_at_step(step))?;
    let running = RunningCommand {
        parts: Some((child, files)),
        ended,
        left: Rc::clone(left),
    };
    Ok(running.into_session(streams))
}

async fn time_out_after(limit: Duration) -> io::Result<Option<OwnedFd>> {
    Timer::after(limit).await;
    Err(io::ErrorKind::TimedOut.into())
}

/// Listens at `path`, by way of its opened directory: a socket's path may have 107 bytes only.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = fs::File::open(dir)?;
    UnixListener::bind(super::fd_path(&dir).join(name))
}

/// Ends the command if the caller stops waiting for it.
struct AbandonOnDrop(Option<ExecFiles>);

impl AbandonOnDrop {
    fn disarm(mut self) -> Option<ExecFiles> {
        self.0.take()
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if let Some(files) = &mut self.0 {
            files.abandoned = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_started_has_no_exit_code() {
        // PROBE-20
        let dir = crate::testing::unused_path("exec");
        fs::create_dir_all(&dir).expect("dir");
        let files = ExecFiles {
            pid: dir.join("exec.pid"),
            log: dir.join("exec.log"),
            socket: dir.join("exec.sock"),
            abandoned: false,
        };
        let message = "{\"level\":\"error\",\"msg\":\"no such file\"}\n";
        for (name, log, why) in [
            (
                "no log",
                None,
                "the runtime failed without a message, with exit code 137",
            ),
            (
                "an empty one",
                Some(""),
                "the runtime failed without a message, with exit code 137",
            ),
            ("a message", Some(message), "no such file"),
        ] {
            if let Some(log) = log {
                fs::write(&files.log, log).expect("log");
            }
            assert_eq!(files.runtime_failure(137).as_deref(), Some(why), "{name}");
        }
        fs::write(&files.pid, "7").expect("pid");
        assert_eq!(files.runtime_failure(137), None, "the command's own");
        drop(files);
        fs::remove_dir(&dir).expect("nothing is left");
    }
}
