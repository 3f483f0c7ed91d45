//! The first steps of a process, and the start of another one with system calls alone: for the shim, which runs without
//! the Rust runtime's set-up.

#![expect(unsafe_code, reason = "fork, exec and the raw argument vector")]

use core::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Most arguments, or variables, of [`spawn_with_stdio`].
pub const MAX_ARGS: usize = 31;

/// The arguments of the process, its own name included.
///
/// # Safety
/// `argv` is what the C library passed to `main` with `argc`: that many pointers to strings that are never changed.
pub unsafe fn process_args(
    argc: c_int,
    argv: *const *const c_char,
) -> impl Iterator<Item = &'static CStr> + Clone {
    (0..usize::try_from(argc).unwrap_or(0)).map_while(move |n| {
        // SAFETY: `n < argc`.
        let slot = unsafe { argv.add(n) };
        // SAFETY: the caller promises a readable pointer there.
        let text = unsafe { *slot };
        // SAFETY: the caller promises a C string that lives as long as the process.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    })
}

/// Does what the Rust runtime does before `main`: opens descriptors 0 to 2 if they are closed, and ignores SIGPIPE.
pub fn set_up_like_runtime() {
    for fd in 0..3 {
        // SAFETY: integer arguments only.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 {
            // SAFETY: a constant string. The lowest free number is `fd`.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Goes on in a child process with a session of its own; the parent ends at once with code 0. The caller's process has
/// one thread.
pub fn continue_in_background() -> io::Result<()> {
    // SAFETY: the process has one thread, so the child finds no lock held.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            nix::unistd::setsid()?;
            Ok(())
        }
        // SAFETY: ends the process without running anything of it.
        _ => unsafe { libc::_exit(0) },
    }
}

/// Starts `argv[0]` (a path) with `stdio` as descriptors 0 to 2 and no other, an empty signal mask, and returns its pid.
///
/// The new process is killed if its parent dies. An exec that fails ends the child with code 127 and a line of text on
/// its standard error. Each of `stdio` is above 2.
pub fn spawn_with_stdio(
    argv: &[&CStr],
    env: &[&CStr],
    stdio: [BorrowedFd<'_>; 3],
) -> io::Result<i32> {
    let argv = pointers(argv)?;
    let env = pointers(env)?;
    // SAFETY: the child makes system calls only until it executes or ends.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            for (n, fd) in (0..).zip(stdio) {
                // SAFETY: integer arguments; the copy is not close-on-exec.
                unsafe { libc::dup2(fd.as_raw_fd(), n) };
            }
            super::child::close_on_exec_from(3);
            let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
            let empty = nix::sys::signal::SigSet::empty();
            let _ = empty.thread_set_mask();
            // SAFETY: both arrays hold C strings and end with a null pointer.
            unsafe { libc::execve(argv[0], argv.as_ptr(), env.as_ptr()) };
            report_errno();
            // SAFETY: ends the process without running anything of it.
            unsafe { libc::_exit(127) }
        }
        pid => Ok(pid),
    }
}

/// Reaps one child that has ended, for any reason. `None`: none has, or there is no child.
pub fn reap_child() -> Option<(i32, ExitStatus)> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one integer through the pointer, which is valid for the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match pid {
            1.. => return Some((pid, ExitStatus::from_raw(status))),
            -1 if nix::Error::last() == nix::Error::EINTR => {}
            _ => return None,
        }
    }
}

/// Keeps children from inheriting `fd`. Does nothing for a number that is not open.
pub fn close_on_exec(fd: i32) {
    // SAFETY: integer arguments only.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Writes to standard output without its buffer. An error, such as a reader that has gone, is none of the caller's.
pub fn write_stdout(bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the pointer and length are those of `rest`.
        let written = unsafe { libc::write(1, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(n) => rest = &rest[n..],
            Err(_) if nix::Error::last() == nix::Error::EINTR => {}
            Err(_) => return,
        }
    }
}

/// Lets go of standard output: descriptor 1 becomes a copy of 0.
pub fn end_stdout() {
    // SAFETY: integer arguments only.
    unsafe { libc::dup2(0, 1) };
}

fn pointers(texts: &[&CStr]) -> io::Result<[*const c_char; MAX_ARGS + 1]> {
    let mut out = [core::ptr::null(); MAX_ARGS + 1];
    if texts.len() > MAX_ARGS {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    for (slot, text) in out.iter_mut().zip(texts) {
        *slot = text.as_ptr();
    }
    Ok(out)
}

/// Between fork and exec nothing may be allocated: the error's number must do.
fn report_errno() {
    let mut number = nix::Error::last_raw();
    let mut text = *b"cannot execute the runtime: errno 000\n";
    let digits = text.len() - 1;
    for digit in text[digits - 3..digits].iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    // SAFETY: the pointer and length are those of `text`.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Waits until one of `fds` is ready or `timeout_ms` is over (-1: for ever). Entries with a negative `fd` are skipped.
/// A signal ends the wait with nothing ready. Source: poll(2).
pub fn poll_fds(fds: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<usize> {
    let count = libc::nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: the pointer and count are those of `fds`.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) };
    match nix::Error::result(ready) {
        Ok(ready) => Ok(usize::try_from(ready).unwrap_or(0)),
        Err(nix::Error::EINTR) => {
            for fd in fds {
                fd.revents = 0;
            }
            Ok(0)
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use nix::sys::wait::{WaitStatus, waitpid};

    use super::*;

    #[test]
    fn starts_and_complains() {
        for (name, argv, code, text) in [
            (
                "runs",
                [c"/bin/sh", c"-c", c"echo $A >&2; exit 3"],
                3,
                "b\n",
            ),
            (
                "missing",
                [c"/no/such", c"", c""],
                127,
                "cannot execute the runtime: errno 002\n",
            ),
        ] {
            let null = File::open("/dev/null").expect("null");
            let (mut reader, writer) = io::pipe().expect("pipe");
            let pid = spawn_with_stdio(
                &argv,
                &[c"A=b"],
                [null.as_fd(), null.as_fd(), writer.as_fd()],
            )
            .expect(name);
            drop(writer);
            let mut found = String::new();
            reader.read_to_string(&mut found).expect("read");
            assert_eq!(found, text, "{name}");
            let pid = nix::unistd::Pid::from_raw(pid);
            assert_eq!(
                waitpid(pid, None),
                Ok(WaitStatus::Exited(pid, code)),
                "{name}"
            );
        }
    }

    #[test]
    fn raw_arguments() {
        let texts = [c"picolet".as_ptr(), c"shim".as_ptr(), core::ptr::null()];
        // SAFETY: two constant strings and a null pointer.
        let found: Vec<_> = unsafe { process_args(3, texts.as_ptr()) }.collect();
        assert_eq!(found, [c"picolet", c"shim"]);
    }
}
