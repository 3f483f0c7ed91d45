//! Starts a program without copying the caller: the child borrows the caller's memory until it runs its own program.
//!
//! `fork` copies page tables, and every page that the caller writes afterwards is copied again; for the agent that was a
//! fifth of its own work while pods start. Between clone and exec the same steps are done as in `posix_spawn`, and some
//! that it does not know: control groups and descriptors to keep.
//!
//! - The calling thread stands still until the child runs its program; other threads go on.
//! - Source: clone(2), `CLONE_VM` and `CLONE_VFORK`; posix_spawn(3).

#![expect(unsafe_code, reason = "clone, and the code between clone and exec")]

use core::{ffi::CStr, num::NonZeroUsize, ptr};
use std::{
    ffi::CString,
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        mman::{MapFlags, ProtFlags, mmap_anonymous, munmap},
        signal::{SigSet, SigmaskHow, pthread_sigmask},
        wait::waitpid,
    },
    unistd::Pid,
};

/// Stack of a child until it runs its program, bytes. Its lowest page is out of bounds.
const STACK_BYTES: usize = 64 * 1024;
/// The size of that page at most, bytes (arm64 has kernels with pages of 64 KiB and of 16 KiB).
const GUARD_BYTES: usize = 64 * 1024;
/// The highest signal number of Linux.
const LAST_SIGNAL: libc::c_int = 64;
/// Exit code of a child that could not run its program; only [`spawn_program`] sees it.
const FAILED: libc::c_int = 127;

/// A program and all that it gets.
#[derive(Debug)]
pub(super) struct SpawnProgram<'a> {
    /// Path, not searched for.
    pub(super) path: &'a CStr,
    /// Arguments, the name first.
    pub(super) args: &'a [CString],
    /// `KEY=value`.
    pub(super) env: &'a [CString],
    /// Working directory.
    pub(super) cwd: &'a CStr,
    /// Standard input, output and error, by numbers of 3 or above.
    pub(super) stdio: [BorrowedFd<'a>; 3],
    /// Descriptors that are inherited under their own numbers.
    pub(super) keep: &'a [RawFd],
    /// Opened `cgroup.procs` of the control groups to enter.
    pub(super) procs: &'a [File],
}

/// Data that the child reads in the caller's memory, and the error that it leaves there.
struct SpawnCall<'a> {
    program: &'a SpawnProgram<'a>,
    args: *const *const libc::c_char,
    env: *const *const libc::c_char,
    default: libc::sigaction,
    /// Error that the child leaves when it fails; 0 until then.
    errno: i32,
}

/// Starts `program`. The child leads a process group, has default signal dispositions, no blocked signal and no
/// descriptor but those named.
///
/// - Errors: what failed before or at the exec; no child is left then.
pub(super) fn spawn_program(program: &SpawnProgram<'_>) -> io::Result<Pid> {
    let args = pointers(program.args);
    let env = pointers(program.env);
    let stack = ChildStack::new()?;
    let mut call = SpawnCall {
        program,
        args: args.as_ptr(),
        env: env.as_ptr(),
        // SAFETY: integers, an empty set and no restorer; 0 is `SIG_DFL`.
        default: unsafe { core::mem::zeroed() },
        errno: 0,
    };
    // A handler of ours must not run in the child: it would work on our memory.
    let mut before = SigSet::empty();
    let all = SigSet::all();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&all), Some(&mut before))?;
    // SAFETY: `child` gets `call`, which outlives it: CLONE_VFORK holds this thread until the child has left our memory. The stack
    // is the child's alone.
    let pid = unsafe {
        libc::clone(
            run_child,
            stack.stack_top(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut call).cast(),
        )
    };
    let started = Errno::result(pid);
    let restored = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    let pid = Pid::from_raw(started?);
    // SAFETY: a place of ours. Volatile: the compiler does not see that the child writes it.
    let errno = unsafe { (&raw const call.errno).read_volatile() };
    if errno != 0 {
        let _ = waitpid(pid, None);
        return Err(io::Error::from_raw_os_error(errno));
    }
    restored?;
    Ok(pid)
}

/// Pointers to the strings, and the null that ends such a list.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Runs in the child between clone and exec: system calls only, no allocation, no lock, no panic.
extern "C" fn run_child(call: *mut libc::c_void) -> libc::c_int {
    // SAFETY: what `spawn` passed; the thread that owns it stands still.
    let call = unsafe { &mut *call.cast::<SpawnCall<'_>>() };
    let errno = match prepare_child(call) {
        Ok(()) => {
            // SAFETY: strings and lists that end with a null and live in the waiting caller.
            unsafe { libc::execve(call.program.path.as_ptr(), call.args, call.env) };
            Errno::last_raw()
        }
        // The only error without a number is a write to a control group that took too little.
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    // SAFETY: a place of the waiting caller.
    unsafe { (&raw mut call.errno).write_volatile(errno) };
    // SAFETY: ends this process alone, without what the caller registered for its own end.
    unsafe { libc::_exit(FAILED) }
}

fn prepare_child(call: &SpawnCall<'_>) -> io::Result<()> {
    let program = call.program;
    for mut procs in program.procs {
        // "0" is the writer itself.
        procs.write_all(b"0")?;
    }
    nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    nix::unistd::chdir(program.cwd)?;
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: a disposition without handler; fails harmlessly for SIGKILL, SIGSTOP and those the C library keeps.
        unsafe { libc::sigaction(signal, &raw const call.default, ptr::null_mut()) };
    }
    for (number, fd) in (0..).zip(program.stdio) {
        // SAFETY: both numbers are ours; the copy is not close-on-exec.
        Errno::result(unsafe { libc::dup2(fd.as_raw_fd(), number) })?;
    }
    super::child::close_on_exec_from(3);
    for fd in program.keep {
        // SAFETY: `fd` is open: the caller holds it and the clone copied it. 0 clears close-on-exec.
        Errno::result(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
    }
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}

/// Memory for the child's calls.
struct ChildStack {
    base: ptr::NonNull<libc::c_void>,
}

impl ChildStack {
    const BYTES: NonZeroUsize = NonZeroUsize::new(GUARD_BYTES + STACK_BYTES).expect("not 0");

    fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping, nothing is replaced.
        let base = unsafe {
            mmap_anonymous(
                None,
                Self::BYTES,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_STACK,
            )
        }?;
        let stack = Self { base };
        // SAFETY: the lowest part of the mapping just made.
        unsafe { nix::sys::mman::mprotect(base, GUARD_BYTES, ProtFlags::PROT_NONE) }?;
        Ok(stack)
    }

    /// Stacks grow downwards on every architecture this runs on; a multiple of the page size is aligned well enough.
    fn stack_top(&self) -> *mut libc::c_void {
        // SAFETY: one past the end of the mapping.
        unsafe { self.base.as_ptr().byte_add(Self::BYTES.get()) }
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; the child has left it.
        let _ = unsafe { munmap(self.base, Self::BYTES.get()) };
    }
}
