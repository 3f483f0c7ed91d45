#![expect(unsafe_code, reason = "nix has no safe way to the arguments of a call")]
//! Watches the system calls of a child, for tests. Source: ptrace(2).
//!
//! One thread traces: the one that started the child. `PTRACE_GET_SYSCALL_INFO` (Linux 5.3) tells calls alike on every
//! machine.

use alloc::collections::BTreeMap;
use core::ptr;
use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

// From linux/ptrace.h; not every C library names all of them.
const PTRACE_SYSCALL: u32 = 24;
const PTRACE_SEIZE: u32 = 0x4206;
const PTRACE_INTERRUPT: u32 = 0x4207;
const PTRACE_GET_SYSCALL_INFO: u32 = 0x420e;
const PTRACE_O_TRACESYSGOOD: usize = 1;
const PTRACE_O_TRACECLONE: usize = 8;
const PTRACE_O_EXITKILL: usize = 1 << 20;
const PTRACE_SYSCALL_INFO_ENTRY: u8 = 1;
const PTRACE_SYSCALL_INFO_EXIT: u8 = 2;

/// A system call that has returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedCall {
    /// The thread.
    pub(crate) thread: i32,
    /// `SYS_…`
    pub(crate) number: i64,
    /// Arguments as passed in registers.
    pub(crate) args: [u64; 6],
    /// Negative: an error number.
    pub(crate) result: i64,
}

/// The head of `struct ptrace_syscall_info` and the longest of its variants.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SyscallInfo {
    op: u8,
    padding: [u8; 3],
    arch: u32,
    instruction: u64,
    stack: u64,
    /// Entry: number and arguments. Exit: result, and a flag in the first byte.
    words: [u64; 7],
}

/// Starts `command`, writes `task` and a newline to its standard input once every thread is traced, and tells each call
/// of every thread that returns. The thread that made it stands still meanwhile. Returns whether it ended with code 0.
pub(crate) fn trace_command(
    mut command: Command,
    task: &str,
    told: &mut dyn FnMut(&TracedCall),
) -> io::Result<bool> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let traced = TracedProcess::begin_tracing(&child)?;
    let mut input = child.stdin.take().expect("a pipe");
    writeln!(input, "{task}")?;
    drop(input);
    traced.follow_threads(told)
}

struct TracedProcess {
    main: i32,
    /// Calls that have not returned, by thread.
    entered: BTreeMap<i32, (i64, [u64; 6])>,
}

impl TracedProcess {
    fn begin_tracing(child: &Child) -> io::Result<Self> {
        let main = i32::try_from(child.id()).expect("a pid");
        // More threads may come while they are listed; those of a traced thread are traced.
        let mut known = Vec::new();
        loop {
            let mut fresh = 0;
            for entry in std::fs::read_dir(format!("/proc/{main}/task"))? {
                let name = entry?.file_name();
                let thread: i32 = name.to_str().and_then(|n| n.parse().ok()).expect("a tid");
                if !known.contains(&thread) {
                    known.push(thread);
                    fresh += 1;
                    let options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
                    match call_ptrace(PTRACE_SEIZE, thread, 0, options) {
                        // Traced already: its maker was.
                        Err(e) if e.raw_os_error() == Some(libc::EPERM) => continue,
                        seized => seized?,
                    }
                    call_ptrace(PTRACE_INTERRUPT, thread, 0, 0)?;
                }
            }
            if fresh == 0 {
                break;
            }
        }
        Ok(Self {
            main,
            entered: BTreeMap::new(),
        })
    }

    fn follow_threads(mut self, told: &mut dyn FnMut(&TracedCall)) -> io::Result<bool> {
        loop {
            // Children of this thread only: others of this process wait for their own.
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            let (thread, signal) = match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(WaitStatus::Exited(pid, code)) if pid.as_raw() == self.main => {
                    return Ok(code == 0);
                }
                Ok(WaitStatus::Signaled(pid, ..)) if pid.as_raw() == self.main => {
                    return Ok(false);
                }
                Ok(WaitStatus::PtraceSyscall(pid)) => {
                    self.handle_stop(pid.as_raw(), told)?;
                    (pid, None)
                }
                Ok(WaitStatus::PtraceEvent(pid, ..)) => (pid, None),
                Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
                Ok(_) | Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
            };
            let signal = signal.map_or(0, |s: Signal| s as usize);
            match call_ptrace(PTRACE_SYSCALL, thread.as_raw(), 0, signal) {
                // The thread was killed meanwhile; the next wait tells it.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                done => done?,
            }
        }
    }

    fn handle_stop(&mut self, thread: i32, told: &mut dyn FnMut(&TracedCall)) -> io::Result<()> {
        let mut info = SyscallInfo::default();
        let address = ptr::from_mut(&mut info) as usize;
        call_ptrace(
            PTRACE_GET_SYSCALL_INFO,
            thread,
            size_of::<SyscallInfo>(),
            address,
        )?;
        let [first, rest @ ..] = info.words;
        if info.op == PTRACE_SYSCALL_INFO_ENTRY {
            self.entered.insert(thread, (first.cast_signed(), rest));
        } else if info.op == PTRACE_SYSCALL_INFO_EXIT
            && let Some((number, args)) = self.entered.remove(&thread)
        {
            told(&TracedCall {
                thread,
                number,
                args,
                result: first.cast_signed(),
            });
        }
        Ok(())
    }
}

fn call_ptrace(request: u32, thread: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: only requests whose `data` is a number or points to a buffer of `address` bytes that outlives the call.
    let done = unsafe {
        // Signed in one C library, unsigned in the other.
        libc::ptrace(request.try_into().expect("small"), thread, address, data)
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
