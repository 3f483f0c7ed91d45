//! User namespaces of pods, and mounts that show other owners than the disk has.
//!
//! Only a process with one thread can make a user namespace or enter one, so a child makes it: a copy of this process
//! that does nothing but wait. Its namespaces are entered and pinned from outside, by a thread that stays root of the
//! host and so may do everything in them.
//!
//! Source: user_namespaces(7), clone(2), open_tree(2), mount_setattr(2), move_mount(2).

#![expect(unsafe_code, reason = "system calls that neither std nor nix wraps")]

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    sched::CloneFlags,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask},
        wait::waitpid,
    },
    unistd::Pid,
};

use crate::api::cri::IdMap;

/// Flags of open_tree(2) and move_mount(2). Source: `uapi/linux/mount.h`.
const OPEN_TREE_CLONE: libc::c_long = 1;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_long = 4;
const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const PRIVATE: u64 = 1 << 18;
/// Exit code of a child that was not to become a program, or could not.
const FAILED: usize = 127;
const NO_PATH: *const libc::c_char = c"".as_ptr();

/// Namespaces of a child that waits until this value is dropped. It ends with this process, too.
#[derive(Debug)]
pub struct NamespaceChild {
    pid: Pid,
    /// The child ends when the last copy of this is closed.
    hold: io::PipeWriter,
    /// Set once the child is to become its program.
    is_program: bool,
}

/// A program that a child becomes, as root of its user namespace, when all is made. It has no environment.
#[derive(Debug)]
pub struct ChildProgram {
    /// Path, not searched for.
    pub path: CString,
    /// Arguments, the name first.
    pub args: Vec<CString>,
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

impl NamespaceChild {
    /// Makes a user namespace with these ids, and the namespaces of `flags`, which belong to it. `program`: the child can
    /// become it ([`Self::run_program`]).
    pub fn start(
        flags: CloneFlags,
        ids: IdMap,
        program: Option<&ChildProgram>,
    ) -> io::Result<Self> {
        let (wait, hold) = io::pipe()?;
        let words = program.into_iter().flat_map(|program| &program.args);
        let words = words.map(|word| word.as_ptr());
        // The child must not ask for memory.
        let args: Vec<_> = words.chain([core::ptr::null()]).collect();
        let flags = libc::c_long::from((flags | CloneFlags::CLONE_NEWUSER).bits());
        let flags = flags | libc::c_long::from(libc::SIGCHLD);
        // A handler of ours must not run in the child.
        let mut before = SigSet::empty();
        pthread_sigmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut before),
        )?;
        // SAFETY: without a stack and without shared memory it is a fork; the child makes system calls only.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            let mut byte = 0_u8;
            // Its copy of `hold` would keep the pipe open.
            call_kernel(libc::SYS_close, [fd_word(&hold), 0, 0]);
            let place = (&raw mut byte).expose_provenance();
            let read = call_kernel(libc::SYS_read, [fd_word(&wait), place, 1]);
            if let (1, Some(program)) = (read, program) {
                become_program(program, &args);
            }
            call_kernel(libc::SYS_exit_group, [FAILED, 0, 0]);
        }
        let started = Errno::result(pid);
        let restored = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        let pid = i32::try_from(started?).map_err(io::Error::other)?;
        let child = Self {
            pid: Pid::from_raw(pid),
            hold,
            is_program: false,
        };
        restored?;
        let line = format!("0 {} {}", ids.host_id, ids.length);
        for file in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{file}"), &line)?;
        }
        Ok(child)
    }

    /// Lets the child become its program. It goes on when this process ends. Returns its pid.
    pub fn run_program(mut self) -> io::Result<i32> {
        self.hold.write_all(b".")?;
        self.is_program = true;
        Ok(self.pid.as_raw())
    }

    /// Path of one of its namespaces, while it waits.
    #[must_use]
    pub fn namespace_path(&self, name: &str) -> String {
        format!("/proc/{}/ns/{name}", self.pid)
    }
}

impl Drop for NamespaceChild {
    fn drop(&mut self) {
        if self.is_program {
            return;
        }
        // Another child may have a copy of the pipe for a moment.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// Makes a system call in the child, which must not ask for memory.
fn call_kernel(number: libc::c_long, words: [usize; 3]) -> libc::c_long {
    let [first, second, third] = words;
    // SAFETY: the callers pass numbers, descriptors of the child, and addresses of what lives until the call returns:
    // strings and lists that end with a null, and one byte to write.
    unsafe { libc::syscall(number, first, second, third) }
}

fn fd_word(fd: &impl AsRawFd) -> usize {
    usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX)
}

/// Runs in the child. `args` ends with a null. Returns only if it fails.
fn become_program(program: &ChildProgram, args: &[*const libc::c_char]) {
    // In the host's eyes it was root until now, which has no id here. Its groups are the host's, too.
    let is_root = [SETGROUPS, SETRESGID, SETRESUID]
        .into_iter()
        .all(|call| call_kernel(call, [0; 3]) == 0);
    if !is_root {
        return;
    }
    let stdio = [&program.stdin, &program.stdout, &program.stderr];
    for (number, fd) in (0..).zip(stdio) {
        call_kernel(libc::SYS_dup3, [fd_word(fd), number, 0]);
    }
    call_kernel(libc::SYS_chdir, [c"/".as_ptr().expose_provenance(), 0, 0]);
    let none = core::ptr::null::<libc::c_char>();
    let words = [
        program.path.as_ptr().expose_provenance(),
        args.as_ptr().expose_provenance(),
        (&raw const none).expose_provenance(),
    ];
    call_kernel(libc::SYS_execve, words);
}

#[cfg(any(target_arch = "x86", target_arch = "arm"))]
const SETRESUID: libc::c_long = libc::SYS_setresuid32;
#[cfg(any(target_arch = "x86", target_arch = "arm"))]
const SETRESGID: libc::c_long = libc::SYS_setresgid32;
#[cfg(any(target_arch = "x86", target_arch = "arm"))]
const SETGROUPS: libc::c_long = libc::SYS_setgroups32;
#[cfg(not(any(target_arch = "x86", target_arch = "arm")))]
const SETRESUID: libc::c_long = libc::SYS_setresuid;
#[cfg(not(any(target_arch = "x86", target_arch = "arm")))]
const SETRESGID: libc::c_long = libc::SYS_setresgid;
#[cfg(not(any(target_arch = "x86", target_arch = "arm")))]
const SETGROUPS: libc::c_long = libc::SYS_setgroups;

/// Runs `job` with the user id of the host that is root in a namespace. The kernel lets only that one write the
/// parameters of its IPC namespace. Other threads are not touched.
pub fn run_as_user<T>(host_id: u32, job: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    const KEEP: libc::c_long = -1;
    // The C library would change all threads.
    // SAFETY: numbers only.
    let set = |id: u32| unsafe { libc::syscall(SETRESUID, KEEP, libc::c_ulong::from(id), KEEP) };
    Errno::result(set(host_id))?;
    let done = job();
    Errno::result(set(0))?;
    done
}

/// Makes a private copy of the mount at `source`, without mounts below it, that shows its owners as the ids of a user
/// namespace, and that nothing can be written through. It is attached nowhere yet.
///
/// # Errors
/// `EINVAL`: its file system, or this kernel, cannot do it.
pub fn clone_with_owners(source: &Path, namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = CString::new(source.as_os_str().as_bytes())?;
    let flags = OPEN_TREE_CLONE | libc::c_long::from(libc::O_CLOEXEC);
    // SAFETY: a string that ends with a null, and numbers.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let tree = take_new_fd(fd)?;
    map_owners(tree.as_fd(), namespace)?;
    Ok(tree)
}

/// Shows the owners of a mount that is attached nowhere as the ids of a user namespace.
fn map_owners(tree: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    /// `struct mount_attr`.
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attributes = MountAttributes {
        set: MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY,
        clear: 0,
        propagation: PRIVATE,
        user_namespace: u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?,
    };
    // SAFETY: an empty string, and a structure of the size that is named; both live until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::c_long::from(tree.as_raw_fd()),
            NO_PATH,
            libc::c_long::from(libc::AT_EMPTY_PATH),
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    Errno::result(done)?;
    Ok(())
}

/// Attaches a mount at `target`.
pub fn attach_mount(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: strings that end with a null, and numbers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            libc::c_long::from(tree.as_raw_fd()),
            NO_PATH,
            libc::c_long::from(libc::AT_FDCWD),
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    Errno::result(done)?;
    Ok(())
}

/// Tries whether this kernel can show other owners on the file system of `dir`, and on a tmpfs, which it learned last
/// (6.3; overlayfs in 5.19, mounts of disks in 5.12). Leaves nothing.
///
/// # Errors
/// The first that it cannot, with its path.
pub fn try_mapped_owners(dir: &Path) -> Result<(), (String, io::Error)> {
    // Ids of nobody in particular: nothing is written.
    let ids = IdMap {
        host_id: 1 << 16,
        length: 1 << 16,
    };
    let at = |what: &str| {
        let what = what.to_owned();
        move |e: io::Error| (what, e)
    };
    let child =
        NamespaceChild::start(CloneFlags::empty(), ids, None).map_err(at("a user namespace"))?;
    let namespace = File::open(child.namespace_path("user")).map_err(at("a user namespace"))?;
    let name = dir.display().to_string();
    clone_with_owners(dir, namespace.as_fd()).map_err(at(&name))?;
    let tmpfs = new_tmpfs().and_then(|tree| map_owners(tree.as_fd(), namespace.as_fd()));
    tmpfs.map_err(at("a tmpfs"))
}

/// Makes a tmpfs that is attached nowhere. Source: fsopen(2), fsconfig(2), fsmount(2).
fn new_tmpfs() -> io::Result<OwnedFd> {
    const CREATE: libc::c_long = 6;
    const CLOEXEC: libc::c_long = 1;
    // SAFETY: a string that ends with a null, and numbers.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), CLOEXEC) };
    let context = take_new_fd(context)?;
    let fd = libc::c_long::from(context.as_raw_fd());
    let none = core::ptr::null::<libc::c_void>();
    // SAFETY: numbers and no pointers.
    Errno::result(unsafe { libc::syscall(libc::SYS_fsconfig, fd, CREATE, none, none, 0) })?;
    // SAFETY: numbers only.
    take_new_fd(unsafe { libc::syscall(libc::SYS_fsmount, fd, CLOEXEC, 0) })
}

fn take_new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(Errno::result(result)?).map_err(io::Error::other)?;
    // SAFETY: the call succeeded, so it is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
