//! Commands in running containers: captured, or with streams and a terminal.
//!
//! A command is started detached by the runtime, under a small process of ours ([`exec_wait`]) that is the agent's child
//! and passes its exit code on. The runtime writes a pid file: ending the command means killing the process *in* the
//! container, which is in nobody's process group.

use core::{pin::Pin, time::Duration};
use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    process::ExitStatus,
};

use async_io::{Async, Timer};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use smol::future;

use super::{Runc, exec_wait, failed, files, not_found, program::ProgramError};
use crate::{
    api::{ContainerId, cri::ExecOutput},
    runtime::{self, ExecOptions, ExecStreams, RuntimeError},
    shim,
    sys::{
        child::{self, Child, Command, Input, Sink},
        socket, tty,
    },
};

/// Longest log of the OCI runtime that is read for its message, bytes.
const LOG_LIMIT: u64 = 16 * 1024;
/// How long the runtime may take to hand over a terminal.
const TERMINAL_WAIT: Duration = Duration::from_secs(60);
/// Longest pid file and cgroup file that are read, bytes.
const SMALL: u64 = 4096;

/// A command that runs. Dropping it kills the process in the container.
#[derive(Debug)]
pub struct ExecSession {
    child: Child,
    streams: ExecStreams,
    master: Option<OwnedFd>,
    files: Files,
    ended: Option<ExitStatus>,
}

impl runtime::ExecSession for ExecSession {
    fn take_streams(&mut self) -> ExecStreams {
        core::mem::take(&mut self.streams)
    }

    fn resize(&self, columns: u16, rows: u16) {
        let Some(master) = &self.master else { return };
        if let Err(e) = tty::set_window_size(master.as_fd(), columns, rows) {
            log::debug!("resize: {e}");
        }
    }

    fn wait(&mut self) -> Pin<Box<dyn Future<Output = Result<i32, RuntimeError>> + '_>> {
        Box::pin(async {
            let status = match self.ended {
                Some(status) => status,
                None => self
                    .child
                    .wait()
                    .await
                    .map_err(failed("wait for the command"))?,
            };
            self.ended = Some(status);
            let code = child::exit_code(status);
            match self.files.failure().filter(|_| code != 0) {
                Some(message) => Err(RuntimeError::Failed(message)),
                None => Ok(code),
            }
        })
    }
}

impl Drop for ExecSession {
    fn drop(&mut self) {
        // Its end is the helper's to see to: the number of a command that is just being started is not known here.
        self.files.abandoned = self.ended.is_none();
    }
}

/// The pid file and log of one command; removed with it.
#[derive(Debug)]
struct Files {
    pid: PathBuf,
    log: PathBuf,
    /// Where the runtime hands over a terminal.
    socket: PathBuf,
    /// The command still runs: the helper needs the pid file to end it, and removes it.
    abandoned: bool,
}

impl Files {
    /// Why the runtime could not run the command, if it could not.
    fn failure(&self) -> Option<String> {
        // With a pid file the command did run: the exit code is its own.
        if files::read_start(&self.pid, SMALL).is_ok_and(|pid| !pid.is_empty()) {
            return None;
        }
        let text = files::read_start(&self.log, LOG_LIMIT).ok()?;
        (!text.is_empty()).then(|| shim::runtime_message(&String::from_utf8_lossy(&text)))
    }
}

impl Drop for Files {
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
    /// Starts a command with streams, for `exec -it`.
    ///
    /// # Errors
    /// [`RuntimeError::NotFound`] if the container does not run.
    pub async fn exec_stream(
        &self,
        id: &ContainerId,
        options: &ExecOptions,
    ) -> Result<ExecSession, RuntimeError> {
        let (command, files) = self.exec_command(id, &options.command, options.tty)?;
        let step = "start the command";
        if options.tty {
            return terminal_session(command, files, options.stdin).await;
        }
        let mut streams = ExecStreams::default();
        let (stdout, to_stdout) = io::pipe().map_err(failed(step))?;
        let (stderr, to_stderr) = io::pipe().map_err(failed(step))?;
        streams.stdout = Some(stdout.into());
        streams.stderr = Some(stderr.into());
        let mut command = command
            .stdout(Sink::Fd(to_stdout.into()))
            .stderr(Sink::Fd(to_stderr.into()));
        if options.stdin {
            let (from_stdin, stdin) = io::pipe().map_err(failed(step))?;
            streams.stdin = Some(stdin.into());
            command = command.stdin(Input::Fd(from_stdin.into()));
        }
        for fd in [&streams.stdin, &streams.stdout, &streams.stderr]
            .into_iter()
            .flatten()
        {
            nonblocking(fd).map_err(failed(step))?;
        }
        Ok(ExecSession {
            child: command.spawn().map_err(failed(step))?,
            streams,
            master: None,
            files,
            ended: None,
        })
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
        let result = child::run(command.capture(limit), timeout).await;
        let output = match result {
            Ok(output) => output,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                return Err(RuntimeError::Timeout {
                    what: format!("command in container {id}"),
                    after: timeout.unwrap_or_default(),
                });
            }
            Err(e) => return Err(failed("run the command")(e)),
        };
        let files = guard.done();
        let exit_code = output.code();
        if let Some(message) = files.and_then(|f| f.failure()).filter(|_| exit_code != 0) {
            return Err(RuntimeError::Failed(message));
        }
        Ok(ExecOutput {
            exit_code,
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }

    fn exec_command(
        &self,
        id: &ContainerId,
        words: &[String],
        tty: bool,
    ) -> Result<(Command, Files), RuntimeError> {
        if words.is_empty() {
            return Err(RuntimeError::Invalid("no command to run".into()));
        }
        let runs = {
            let table = self.table.borrow();
            let container = table.containers.get(id);
            container.is_some_and(|c| c.shim.is_some() && c.status.started_at.is_some())
        };
        if !runs {
            return Err(not_found("running container", id));
        }
        let program = self
            .program()
            .map_err(|e: ProgramError| RuntimeError::Failed(e.to_string()))?;
        let number = {
            let mut next = self.next_exec.borrow_mut();
            *next = next.wrapping_add(1);
            *next
        };
        let dir = self.dirs(id).run;
        // The agent's pid: after a restart the numbers begin anew.
        let name = format!("exec-{}-{number}", std::process::id());
        let files = Files {
            pid: dir.join(format!("{name}.pid")),
            log: dir.join(format!("{name}.log")),
            socket: dir.join(format!("{name}.sock")),
            abandoned: false,
        };
        let helper = Command::opened(self.settings.exe.clone(), "picolet")
            .polite()
            .arg(exec_wait::COMMAND)
            .arg(&files.pid)
            .arg(&program.path);
        let mut command = program
            .options(helper, &self.runtime_root())
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

/// Starts a command with a terminal, whose master the runtime hands over by a socket.
async fn terminal_session(
    command: Command,
    files: Files,
    stdin: bool,
) -> Result<ExecSession, RuntimeError> {
    let step = "get the command's terminal";
    let listener =
        Async::new(listen(&files.socket).map_err(failed(step))?).map_err(failed(step))?;
    let mut child = command.spawn().map_err(failed("start the command"))?;
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
        let first = future::or(&mut taken, future::or(gone, late(TERMINAL_WAIT))).await;
        match first.map_err(failed(step))? {
            Some(master) => Some(master),
            // A short command may have ended before its terminal was taken out of the socket.
            None if files.failure().is_none() => {
                let soon = Duration::from_secs(1);
                future::or(taken, late(soon)).await.map_err(failed(step))?
            }
            None => None,
        }
    };
    let Some(master) = master else {
        let why = files
            .failure()
            .unwrap_or_else(|| "the runtime gave no terminal".into());
        return Err(RuntimeError::Failed(why));
    };
    nonblocking(&master).map_err(failed(step))?;
    let copy = || master.try_clone().map_err(failed(step));
    Ok(ExecSession {
        child,
        streams: ExecStreams {
            stdin: stdin.then(copy).transpose()?,
            stdout: Some(copy()?),
            stderr: None,
        },
        master: Some(master),
        files,
        ended,
    })
}

async fn late(limit: Duration) -> io::Result<Option<OwnedFd>> {
    Timer::after(limit).await;
    Err(io::ErrorKind::TimedOut.into())
}

/// Listens at `path`, by way of its opened directory: a socket's path may have 107 bytes only.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = fs::File::open(dir)?;
    UnixListener::bind(super::fd_path(&dir).join(name))
}

/// Ends the command if the caller stops waiting for it.
struct AbandonOnDrop(Option<Files>);

impl AbandonOnDrop {
    fn done(mut self) -> Option<Files> {
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

/// For the reactor: an end that is not read must not stop the agent.
fn nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
