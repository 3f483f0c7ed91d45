//! The shim's life between the creation of its container and the end of init: one poll over a dozen descriptors.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;

use nix::sys::signalfd::SignalFd;
use nix::unistd::{read, write};

use super::clients::{ShimClients, ShimRequest};
use super::control::{MAX_CONNECTIONS, kind};
use super::line::{LineSplitter, MAX_TEXT_BYTES, format_stamp};
use super::log::ContainerLog;
use crate::api::MonoTime;
use crate::sys::{child, clock, pages::PageBuffer, start, tty};

/// Bytes that are read from a terminal at most after init has ended: more than its buffers hold.
const TTY_DRAIN_BYTES: usize = 1024 * 1024;

/// Pause in accepting clients after the system had no descriptor for one.
const REOPEN_DOOR: Duration = Duration::from_secs(1);

/// End of init: exit code (128 + signal) and signal, 0 if none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitExit {
    pub(crate) code: i32,
    pub(crate) signal: i32,
}

/// Init of the container, whose end the shim waits for.
#[derive(Debug)]
pub(crate) enum ContainerInit {
    /// A child of the shim.
    Child(i32),
    /// A child of a shim that died.
    Foreign(OwnedFd),
}

/// An output of the container.
#[derive(Debug)]
pub(crate) struct OutputSource {
    fd: OwnedFd,
    lines: LineSplitter<PageBuffer>,
    name: &'static str,
    kind: u8,
    /// Set once there is no more to read.
    over: bool,
}

impl OutputSource {
    /// `fd` is non-blocking.
    pub(crate) fn stdout(fd: OwnedFd) -> io::Result<Self> {
        Self::new(fd, "stdout", kind::STDOUT)
    }

    /// `fd` is non-blocking.
    pub(crate) fn stderr(fd: OwnedFd) -> io::Result<Self> {
        Self::new(fd, "stderr", kind::STDERR)
    }

    fn new(fd: OwnedFd, name: &'static str, kind: u8) -> io::Result<Self> {
        Ok(Self {
            fd,
            lines: LineSplitter::new(PageBuffer::map(MAX_TEXT_BYTES)?),
            name,
            kind,
            over: false,
        })
    }

    /// Reads once, passes the bytes on and gathers complete records. Returns how much was read; 0: nothing for now.
    fn pump_output(&mut self, log: &mut ContainerLog, clients: &mut ShimClients) -> usize {
        let space = self.lines.spare_space();
        let count = match read(&self.fd, space) {
            Ok(n) if n > 0 => n,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return 0,
            // A FIFO that we hold open for writing has no end: this is a terminal whose other end we could not open.
            _ => {
                self.over = true;
                return 0;
            }
        };
        clients.send_output(self.kind, &space[..count]);
        let now = format_stamp(clock::wall_now().0);
        self.lines.split_filled(count, |tag, text| {
            log.append_record(&now, self.name, tag, text)
        });
        count
    }

    /// Reads only the output from before the end of init: other processes may hold the stream and write on.
    fn drain_output(&mut self, log: &mut ContainerLog, clients: &mut ShimClients) {
        // That output is at most the capacity of the FIFO.
        let capacity = nix::fcntl::fcntl(&self.fd, nix::fcntl::FcntlArg::F_GETPIPE_SZ);
        let capacity = capacity.ok().and_then(|n| usize::try_from(n).ok());
        let mut left = capacity.unwrap_or(TTY_DRAIN_BYTES);
        while left > 0 {
            let count = self.pump_output(log, clients);
            if count == 0 {
                break;
            }
            left = left.saturating_sub(count);
        }
        let now = format_stamp(clock::wall_now().0);
        self.lines
            .finish_stream(|tag, text| log.append_record(&now, self.name, tag, text));
    }
}

/// The container's standard input.
#[derive(Debug, Default)]
pub(crate) struct ContainerStdin {
    target: Option<OwnedFd>,
    /// Ends with the first attached client.
    once: bool,
    /// Set if it is to be closed once the waiting input is written.
    closing: bool,
}

impl ContainerStdin {
    /// Input goes to `target`, which is non-blocking.
    pub(crate) const fn new(target: Option<OwnedFd>, once: bool) -> Self {
        Self {
            target,
            once,
            closing: false,
        }
    }
}

/// The container's terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Held open: while no process has the terminal open, its master is always ready and reads as an error, and nothing
    /// tells when the container opens it again.
    _slave: Option<OwnedFd>,
}

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> Self {
        let _slave = tty::open_slave(master.as_fd()).ok();
        Self { master, _slave }
    }
}

/// Everything that a shim holds while its container lives.
#[derive(Debug)]
pub(crate) struct ShimServer {
    pub(crate) signals: SignalFd,
    pub(crate) init: ContainerInit,
    pub(crate) stdout: OutputSource,
    pub(crate) stderr: Option<OutputSource>,
    pub(crate) stdin: ContainerStdin,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) log: ContainerLog,
    pub(crate) clients: ShimClients,
}

/// Places in the poll set.
const SIGNALS: usize = 0;
const STDOUT: usize = 1;
const STDERR: usize = 2;
const STDIN: usize = 3;
const LISTENER: usize = 4;
const INIT: usize = 5;
const FIRST_CLIENT: usize = 6;

impl ShimServer {
    /// Serves until init has ended. `None`: its exit code is unknown, because it was no child of this shim.
    pub(crate) fn serve_until_exit(&mut self) -> io::Result<Option<InitExit>> {
        // Buffers still hold memory that they no longer need.
        let mut dirty = true;
        // Until then no client can be accepted: the system is out of descriptors.
        let mut closed_until: Option<MonoTime> = None;
        loop {
            let mut fds = self.poll_entries();
            let closed_ms = closed_until.map_or(0, |until| until.since_ms(clock::mono_now()));
            match closed_ms {
                0 => closed_until = None,
                _ => fds[LISTENER].fd = -1,
            }
            let save_ms = self.save_if_due();
            let timeout_ms = match (dirty, closed_ms.min(save_ms), closed_ms.max(save_ms)) {
                (true, ..) => 0,
                (false, 0, 0) => -1,
                (false, 0, left) | (false, left, _) => i32::try_from(left).unwrap_or(i32::MAX),
            };
            if start::poll_fds(&mut fds, timeout_ms)? == 0 {
                if dirty {
                    self.release_memory();
                    dirty = false;
                }
                continue;
            }
            dirty = true;
            let ready = |n: usize| fds[n].revents != 0;
            if ready(STDOUT) {
                self.stdout.pump_output(&mut self.log, &mut self.clients);
            }
            if let (true, Some(stderr)) = (ready(STDERR), &mut self.stderr) {
                stderr.pump_output(&mut self.log, &mut self.clients);
            }
            self.log.flush_records();
            for index in (0..MAX_CONNECTIONS).filter(|i| ready(FIRST_CLIENT + i)) {
                self.serve_client(index);
            }
            // After the clients: a place that one of them left can be taken.
            if ready(LISTENER) && !self.clients.accept_client() {
                closed_until = Some(clock::mono_now() + REOPEN_DOOR);
            }
            self.feed_stdin();
            if ready(INIT) {
                return Ok(None);
            }
            if ready(SIGNALS)
                && let Some(ended) = self.reap_children()?
            {
                return Ok(Some(ended));
            }
        }
    }

    /// Milliseconds until the log has to be saved; 0: nothing waits.
    fn save_if_due(&mut self) -> u64 {
        let left = |log: &ContainerLog| log.next_save().map(|due| due.since_ms(clock::mono_now()));
        if left(&self.log) == Some(0) {
            self.log.save_held_records(false);
        }
        left(&self.log).map_or(0, |left| left.max(1))
    }

    /// Saves the last output, after the end of init.
    pub(crate) fn drain_last_output(&mut self) {
        self.stdout.drain_output(&mut self.log, &mut self.clients);
        if let Some(stderr) = &mut self.stderr {
            stderr.drain_output(&mut self.log, &mut self.clients);
        }
        self.log.flush_records();
        self.log.save_held_records(true);
    }

    fn poll_entries(&self) -> [libc::pollfd; FIRST_CLIENT + MAX_CONNECTIONS] {
        let entry = |fd: RawFd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut fds = [entry(-1, libc::POLLIN); FIRST_CLIENT + MAX_CONNECTIONS];
        fds[SIGNALS].fd = self.signals.as_raw_fd();
        fds[LISTENER].fd = self.clients.listener();
        for (place, source) in [(STDOUT, Some(&self.stdout)), (STDERR, self.stderr.as_ref())] {
            if let Some(source) = source.filter(|s| !s.over) {
                fds[place].fd = source.fd.as_raw_fd();
            }
        }
        if let (true, Some(target)) = (self.clients.has_input(), &self.stdin.target) {
            fds[STDIN] = entry(target.as_raw_fd(), libc::POLLOUT);
        }
        if let ContainerInit::Foreign(pidfd) = &self.init {
            fds[INIT].fd = pidfd.as_raw_fd();
        }
        for (place, fd) in fds[FIRST_CLIENT..]
            .iter_mut()
            .zip(self.clients.watched_fds())
        {
            place.fd = fd;
        }
        fds
    }

    fn release_memory(&mut self) {
        for source in [Some(&mut self.stdout), self.stderr.as_mut()]
            .into_iter()
            .flatten()
        {
            let (len, pages) = source.lines.storage();
            pages.release(len);
        }
        self.log.release_buffer();
        self.clients.release_memory();
    }

    fn serve_client(&mut self, index: usize) {
        let Some(request) = self.clients.receive_request(index) else {
            return;
        };
        match request {
            ShimRequest::Reopen => match self.log.reopen_file() {
                Ok(()) => self.clients.reply_to_client(index, Ok(())),
                Err(e) => self.clients.reply_to_client(index, Err(&e.to_string())),
            },
            ShimRequest::Resize { width, height } => {
                let result = match &self.terminal {
                    Some(terminal) => {
                        let master = terminal.master.as_fd();
                        tty::set_window_size(master, width, height).map_err(|e| e.desc())
                    }
                    None => Err("the container has no terminal"),
                };
                self.clients.reply_to_client(index, result);
            }
            ShimRequest::CloseStdin => {
                self.stdin.closing = true;
                self.clients.reply_to_client(index, Ok(()));
            }
        }
    }

    /// Writes waiting input as far as the container takes it, and closes if that is due.
    fn feed_stdin(&mut self) {
        let target = &mut self.stdin.target;
        self.clients.offer_input(|bytes| {
            let fd = target.as_ref()?;
            match write(fd, bytes) {
                Ok(n) => Some(n),
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => Some(0),
                Err(_) => {
                    // The container closed it.
                    *target = None;
                    None
                }
            }
        });
        if self.clients.take_last_stdin_gone() && self.stdin.once {
            self.stdin.closing = true;
        }
        // A terminal has no end of input; the attached client sends the end-of-file character.
        if self.stdin.closing && self.terminal.is_none() && !self.clients.has_input() {
            self.stdin.target = None;
        }
    }

    /// Reaps every child that has ended: init, and orphans of other processes in the host's pid namespace.
    fn reap_children(&mut self) -> io::Result<Option<InitExit>> {
        while let Some(signal) = self.signals.read_signal()? {
            // The machine goes down.
            if i32::try_from(signal.ssi_signo) == Ok(libc::SIGTERM) {
                self.log.save_held_records(true);
            }
        }
        let mut ended = None;
        while let Some((pid, how)) = reap_one() {
            if matches!(self.init, ContainerInit::Child(init) if init == pid) {
                ended = Some(how);
            }
        }
        Ok(ended)
    }
}

/// Reaps one child, if one has ended.
pub(crate) fn reap_one() -> Option<(i32, InitExit)> {
    let (pid, status) = start::reap_child()?;
    let ended = InitExit {
        code: child::exit_code(status),
        signal: status.signal().unwrap_or(0),
    };
    Some((pid, ended))
}
