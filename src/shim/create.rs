//! Making the container: the runtime's `create` with FIFOs, or a terminal, as the container's stdio.

use core::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::signal::{Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;

use super::file;
use super::process::ShimArgs;
use super::serve::{InitExit, Terminal, reap_one};
use crate::sys::{clock, pages::PageBuffer, proc, socket, start};

/// Bytes of the runtime's log, or of its standard error, that are reported after a failure.
pub(crate) const REPORT_BYTES: usize = 4096;
/// The environment of the runtime, which needs to find helpers of its own.
const ENVIRONMENT: [&CStr; 1] =
    [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
/// Children that may end while the runtime works; only init's end matters, and it comes last.
const REAPED: usize = 16;

/// Time after which a killed runtime that has not ended is killed again.
const KILL_AGAIN: core::time::Duration = core::time::Duration::from_secs(1);

/// A created container.
#[derive(Debug)]
pub(crate) struct CreatedContainer {
    pub(crate) pid: i32,
    /// Set if the container has ended already: it was killed.
    pub(crate) ended: Option<InitExit>,
    pub(crate) stdout: OwnedFd,
    /// Standard error; none with a terminal.
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
    /// Terminal of the container. Its master is `stdout` too.
    pub(crate) terminal: Option<Terminal>,
}

/// Reason why there is no container.
#[derive(Debug)]
pub(crate) enum CreateFailure {
    /// The runtime ended with this code; the text is for the launcher.
    Runtime {
        code: i32,
        text: PageBuffer,
        len: usize,
    },
    /// The shim itself failed.
    Shim(io::Error),
}

impl<E: Into<io::Error>> From<E> for CreateFailure {
    fn from(e: E) -> Self {
        Self::Shim(e.into())
    }
}

/// Runs the runtime's `create` and waits for its end, or kills it when its time is over.
pub(crate) fn create_container(
    args: &ShimArgs,
    signals: &SignalFd,
) -> Result<CreatedContainer, CreateFailure> {
    // The shim's ends are non-blocking and, being open for writing too, never see an end of file.
    let stdout = open_fifo(file::STDOUT, OFlag::O_RDWR | OFlag::O_NONBLOCK)?;
    let stderr = open_fifo(file::STDERR, OFlag::O_RDWR | OFlag::O_NONBLOCK)?;
    // Lets the container's end be opened without waiting for a writer.
    let keeper = open_fifo(file::STDIN, OFlag::O_RDWR | OFlag::O_NONBLOCK)?;
    let null = || {
        open(
            c"/dev/null",
            OFlag::O_RDWR | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
    };
    // The container's ends are open for reading too: so it is neither killed nor told when the shim dies.
    let stdio = if args.tty {
        [null()?, null()?, open_fifo(file::STDERR, OFlag::O_RDWR)?]
    } else {
        [
            if args.stdin {
                open_fifo(file::STDIN, OFlag::O_RDONLY)?
            } else {
                null()?
            },
            open_fifo(file::STDOUT, OFlag::O_RDWR)?,
            open_fifo(file::STDERR, OFlag::O_RDWR)?,
        ]
    };
    let console = if args.tty {
        Some(listen_for_console()?)
    } else {
        None
    };
    let runtime = spawn_runtime_create(args, stdio.each_ref().map(AsFd::as_fd))?;
    drop(stdio);

    let mut reaped = [(0, InitExit { code: 0, signal: 0 }); REAPED];
    let mut count = 0;
    let mut master = None;
    let mut deadline = clock::mono_now() + core::time::Duration::from_millis(args.create_ms);
    let code = loop {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let waiting = console.as_ref().filter(|_| master.is_none());
        let mut fds = [
            entry(signals.as_raw_fd()),
            entry(waiting.map_or(-1, AsRawFd::as_raw_fd)),
        ];
        let left = deadline.since_ms(clock::mono_now());
        if start::poll_fds(&mut fds, i32::try_from(left).unwrap_or(i32::MAX))? == 0 && left == 0 {
            // The runtime is reaped below. If it hangs in the kernel it may take a while.
            let _ = kill(Pid::from_raw(runtime), Signal::SIGKILL);
            deadline = deadline + KILL_AGAIN;
        }
        if let (true, Some(listener)) = (fds[1].revents != 0, waiting) {
            // A runtime that connects and sends nothing has failed: its exit code and its message follow.
            master = receive_master(listener).ok();
        }
        while signals.read_signal()?.is_some() {}
        let mut code = None;
        while let Some((pid, ended)) = reap_one() {
            if pid == runtime {
                code = Some(ended.code);
            } else {
                reaped[count % REAPED] = (pid, ended);
                count += 1;
            }
        }
        if let Some(code) = code {
            break code;
        }
    };
    // The terminal was sent before the runtime ended.
    if let (Some(listener), None, 0) = (&console, &master, code) {
        master = receive_master(listener).ok();
    }
    if console.is_some() {
        let _ = std::fs::remove_file(file::CONSOLE);
    }
    let no_terminal = args.tty && master.is_none();
    if code != 0 || no_terminal {
        return Err(read_runtime_failure(code, stderr.as_fd()));
    }
    let pid = read_pid()?;
    let ended = reaped.iter().find(|(p, _)| *p == pid).map(|(_, e)| *e);
    let (stdin, stdout, stderr, terminal) = match master {
        Some(master) => {
            let master = non_blocking(master)?;
            (
                Some(master.try_clone()?),
                master.try_clone()?,
                None,
                Some(Terminal::new(master)),
            )
        }
        None => {
            let writer = if args.stdin {
                // Only now: without a reader this open fails. Being no reader ourselves, we see when the container closes it.
                open_fifo(file::STDIN, OFlag::O_WRONLY | OFlag::O_NONBLOCK).ok()
            } else {
                None
            };
            (writer, stdout, Some(stderr), None)
        }
    };
    drop(keeper);
    Ok(CreatedContainer {
        pid,
        ended,
        stdout,
        stderr,
        stdin,
        terminal,
    })
}

/// Opens a FIFO of the run directory.
pub(crate) fn open_fifo(name: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    open(
        name,
        flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW,
        Mode::empty(),
    )
}

/// Starts `create`. The current directory is the bundle: relative names keep sockets' paths short.
fn spawn_runtime_create(
    args: &ShimArgs,
    stdio: [std::os::fd::BorrowedFd<'_>; 3],
) -> io::Result<i32> {
    let mut argv = [c""; 16];
    let mut len = 0;
    let mut add = |texts: &[&'static CStr]| {
        for text in texts {
            argv[len] = *text;
            len += 1;
        }
    };
    add(&[args.runtime, c"--root", args.root]);
    add(&[c"--log", c"runtime.log", c"--log-format", c"json"]);
    add(&[c"create", c"--bundle", args.dir, c"--pid-file", c"init.pid"]);
    if args.tty {
        add(&[c"--console-socket", c"console"]);
    }
    add(&[args.id]);
    // Files of an earlier try would be taken for those of this one.
    for name in [file::RUNTIME_LOG, file::PID] {
        let _ = std::fs::remove_file(name);
    }
    start::spawn_with_stdio(&argv[..len], &ENVIRONMENT, stdio)
}

fn read_pid() -> io::Result<i32> {
    let mut buffer = [0; 16];
    let text = proc::read_small(file::PID, &mut buffer)?;
    text.trim().parse().map_err(io::Error::other)
}

fn listen_for_console() -> io::Result<UnixListener> {
    let _ = std::fs::remove_file(file::CONSOLE);
    let mask = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(file::CONSOLE);
    umask(mask);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Takes the terminal's master from the runtime, which has connected. It sends at once: waiting here is short.
fn receive_master(listener: &UnixListener) -> io::Result<OwnedFd> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(core::time::Duration::from_secs(10)))?;
    socket::receive_fd(&stream)
}

fn non_blocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(fd)
}

/// Gathers the runtime's message about its failure: the end of its log, else of its standard error.
fn read_runtime_failure(code: i32, stderr: std::os::fd::BorrowedFd<'_>) -> CreateFailure {
    let mut text = match PageBuffer::map(REPORT_BYTES) {
        Ok(pages) => pages,
        Err(e) => return e.into(),
    };
    let log = || -> io::Result<(File, u64)> {
        let file = File::open(Path::new(file::RUNTIME_LOG))?;
        let len = file.metadata()?.len();
        Ok((file, len))
    };
    let mut len = 0;
    if let Ok((mut file, size)) = log() {
        let from = size.saturating_sub(u64::try_from(REPORT_BYTES).unwrap_or(0));
        if file.seek(SeekFrom::Start(from)).is_ok() {
            while let Ok(n @ 1..) = file.read(&mut text[len..]) {
                len += n;
            }
        }
    }
    if len == 0 {
        len = nix::unistd::read(stderr, &mut text).unwrap_or(0);
    }
    CreateFailure::Runtime { code, text, len }
}
