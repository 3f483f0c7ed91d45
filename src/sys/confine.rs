//! Taking from this process what leads to the host, for good: its root directory, capabilities and system calls.

#![expect(unsafe_code, reason = "prctl, capset and the disposition of a signal")]

use core::mem::offset_of;
use std::{io, path::Path};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::{
        prctl::set_no_new_privs,
        signal::{SigHandler, Signal, signal},
    },
    unistd::{chdir, pivot_root},
};

/// Bytes of an empty file system: a page, for 0 would be no limit.
const EMPTY_BYTES: u64 = 4096;

/// Number of the architecture's system call table. Source: `uapi/linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "x86")]
const AUDIT_ARCH: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "arm")]
const AUDIT_ARCH: u32 = 0x4000_0028;

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits in two words. Source: capget(2).
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const CAPABILITY_WORDS: usize = 2;

/// A system call that stays possible.
#[derive(Debug)]
pub struct AllowedSyscall {
    /// Number.
    pub number: libc::c_long,
    /// Values that its first arguments must have, in their lower 32 bits.
    pub first: Vec<u32>,
}

/// Moves the process into a mount namespace of its own that has nothing but an empty file system, which nobody can write to, and
/// into a cgroup namespace of its own, whose root is the group that it is in. `at`: any directory; in that namespace the file
/// system is mounted there first. Mounts of other namespaces stay as they are.
///
/// - Errors: the process may be half on its way; let it end.
/// - Source: pivot_root(2), with one directory for both.
pub fn leave_host(at: &Path) -> io::Result<()> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP)?;
    // Else the host would lose its mounts with us.
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NONE, "/", NONE, private, NONE)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    super::mount::mount_tmpfs(at, Some(EMPTY_BYTES), 0o555, flags)?;
    chdir(at)?;
    pivot_root(".", ".")?;
    // The old root lies over the new one now.
    umount2(".", MntFlags::MNT_DETACH)?;
    Ok(chdir("/")?)
}

/// Takes all capabilities out of all sets, and the way to get any by running a program.
pub fn drop_all_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        pid: libc::c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct CapabilitySets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    set_no_new_privs()?;
    for capability in 0..libc::c_ulong::from(u64::BITS) {
        match call_prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // The last one that this kernel knows was the one before.
            Err(Errno::EINVAL) => break,
            other => other?,
        }
    }
    let clear = libc::c_ulong::try_from(libc::PR_CAP_AMBIENT_CLEAR_ALL).unwrap_or(0);
    call_prctl(libc::PR_CAP_AMBIENT, clear, 0)?;
    let header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let none = [CapabilitySets::default(); CAPABILITY_WORDS];
    // SAFETY: a header, and as many words as its version has.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    Errno::result(done)?;
    Ok(())
}

/// Refuses all system calls (EPERM) but these from now on, also of programs that the process becomes. It must have no new
/// privileges. A kernel without such filters refuses none, as with the profiles of containers.
pub fn allow_only_calls(calls: &[AllowedSyscall]) -> io::Result<()> {
    install_filter(&mut build_seccomp_filter(calls))
}

fn install_filter(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    let address = (&raw const program).expose_provenance();
    let address = libc::c_ulong::try_from(address).map_err(io::Error::other)?;
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    match call_prctl(libc::PR_SET_SECCOMP, mode, address) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Instructions of classic BPF over `seccomp_data`.
fn build_seccomp_filter(calls: &[AllowedSyscall]) -> Vec<libc::sock_filter> {
    // The word at `k`; go on if it is `k`, else by `jf` further; the answer `k`.
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const ANSWER: u16 = 0x06;
    const ARGUMENTS: usize = offset_of!(libc::seccomp_data, args);
    let word = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
    let step = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let deny = step(
        ANSWER,
        libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs(),
        0,
    );
    let mut all = vec![
        step(LOAD, word(offset_of!(libc::seccomp_data, arch)), 0),
        libc::sock_filter {
            code: IS,
            jt: 1,
            jf: 0,
            k: AUDIT_ARCH,
        },
        deny,
    ];
    for call in calls {
        let number = u32::try_from(call.number).unwrap_or(u32::MAX);
        let words = [(word(offset_of!(libc::seccomp_data, nr)), number)];
        // Little-endian: the lower half comes first.
        let arguments = (0..).zip(&call.first);
        let arguments = arguments.map(|(n, value)| (word(ARGUMENTS + 8 * n), *value));
        let words: Vec<_> = words.into_iter().chain(arguments).collect();
        for (n, (offset, value)) in words.iter().enumerate() {
            // To the next call: over the pairs after this one, and the answer.
            let further = 2 * (words.len() - n) - 1;
            all.push(step(LOAD, *offset, 0));
            all.push(step(IS, *value, u8::try_from(further).unwrap_or(u8::MAX)));
        }
        all.push(step(ANSWER, libc::SECCOMP_RET_ALLOW, 0));
    }
    all.push(deny);
    all
}

/// Has children reaped by the kernel, also after an exec.
pub fn ignore_children() -> io::Result<()> {
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    Ok(())
}

fn call_prctl(option: libc::c_int, second: libc::c_ulong, third: libc::c_ulong) -> nix::Result<()> {
    const NONE: libc::c_ulong = 0;
    // SAFETY: numbers, or the address of a program that lives until the call returns.
    let done = unsafe { libc::prctl(option, second, third, NONE, NONE) };
    Errno::result(done).map(drop)
}

#[cfg(test)]
mod tests {
    use nix::{
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    /// Error number of a call; 0 if it succeeded.
    fn tried(done: libc::c_long) -> i32 {
        Errno::result(done).map_or_else(|e| e as i32, |_| 0)
    }

    #[test]
    fn other_system_calls_are_refused() {
        let call = |number, first: &[u32]| AllowedSyscall {
            number,
            first: first.to_vec(),
        };
        let dumpable = libc::PR_SET_DUMPABLE.unsigned_abs();
        // Descriptors that no process has, however many tests run beside this one.
        let (allowed, other) = (i32::MAX, i32::MAX - 1);
        // Made before the child is: it must not ask for memory.
        let mut filter = build_seccomp_filter(&[
            call(libc::SYS_read, &[allowed.unsigned_abs()]),
            call(libc::SYS_prctl, &[dumpable, 0]),
            call(libc::SYS_exit_group, &[]),
        ]);
        // SAFETY: the child makes system calls only.
        let child = match unsafe { fork() }.expect("child") {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let ready = set_no_new_privs().is_ok() && install_filter(&mut filter).is_ok();
                // SAFETY: numbers only; no such descriptor is open.
                let read = |fd: i32| unsafe { libc::syscall(libc::SYS_read, fd, 0, 0) };
                // SAFETY: numbers only.
                let set = |value: libc::c_long| unsafe {
                    libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, value, 0, 0, 0)
                };
                // SAFETY: takes nothing.
                let parent = unsafe { libc::syscall(libc::SYS_getppid) };
                let all = ready
                    && tried(parent) == libc::EPERM
                    && tried(read(allowed)) == libc::EBADF
                    && tried(read(other)) == libc::EPERM
                    && tried(set(0)) == 0
                    && tried(set(1)) == libc::EPERM;
                // SAFETY: ends this process alone.
                unsafe { libc::_exit(i32::from(!all)) }
            }
        };
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    }
}
