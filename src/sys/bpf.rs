#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper in nix")]
//! Programs that the kernel asks which devices processes of a control group may use. Source: bpf(2), `uapi/linux/bpf.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit},
};

/// An instruction as the kernel reads it, bytes in the order of the machine.
pub type BpfInstruction = u64;

/// Bytes of a program's name, with its end.
const NAME_BYTES: usize = 16;
/// Programs that one group has at most: the kernel's own limit.
const MAX_ATTACHED: usize = 64;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
/// `BPF_PROG_TYPE_CGROUP_DEVICE`, `BPF_CGROUP_DEVICE`.
const TYPE_DEVICE: u32 = 15;
const AT_DEVICE: u32 = 6;
/// `BPF_F_ALLOW_MULTI`: beside others, all of which have to agree.
const BESIDE_OTHERS: u32 = 2;

#[repr(C)]
#[derive(Default)]
struct BpfProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct BpfAttach {
    group: u32,
    program: u32,
    at: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct BpfQuery {
    group: u32,
    at: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
    // Linux 6.17 to 7.1 write the last one of these even if a shorter length is given. Older ones take zeros.
    attach_flags_of_each: u64,
    link_ids: u64,
    link_flags: u64,
    revision: u64,
}

#[repr(C)]
struct BpfProgramById {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct BpfInfoRequest {
    program: u32,
    bytes: u32,
    info: u64,
}

/// `bpf_prog_info`, as far as its name.
#[repr(C)]
#[derive(Default)]
struct BpfProgramInfo {
    before: [u64; 8],
    name: [u8; NAME_BYTES],
}

/// Calls bpf(2). The words of `attr` have to be what `command` takes.
fn call_bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: `attr` is as long as said; the addresses in it are those of buffers that the callers here hold.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    let done = Errno::result(done)?;
    libc::c_int::try_from(done).map_err(io::Error::other)
}

fn owned(fd: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn fd_number(fd: BorrowedFd<'_>) -> u32 {
    // The number of an open descriptor is not negative.
    u32::try_from(fd.as_raw_fd()).unwrap_or(0)
}

/// Address for the kernel, which reads or writes there during the call.
fn kernel_address<T>(of: *const T) -> u64 {
    u64::try_from(of.expose_provenance()).unwrap_or(0)
}

/// Gives a program to the kernel.
///
/// # Errors
/// The kernel has no such programs, does not take this one, or this process may not do so.
pub fn load_program(program: &[BpfInstruction], name: &str) -> io::Result<OwnedFd> {
    let license = *b"Apache-2.0\0";
    let mut attr = BpfProgramLoad {
        kind: TYPE_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: kernel_address(program.as_ptr()),
        license: kernel_address(license.as_ptr()),
        ..BpfProgramLoad::default()
    };
    for (place, byte) in attr.name[..NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    let mut load = || call_bpf(PROG_LOAD, &mut attr).map(owned);
    match load() {
        // Before Linux 5.11 programs count as memory that this user has locked.
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => with_all_locked_memory(load),
        loaded => loaded,
    }
}

/// Lifts the limit of what this process may lock as long as `work` lasts. What another thread starts in that moment inherits it.
fn with_all_locked_memory(work: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    let set =
        |soft, hard| -> io::Result<()> { Ok(setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard)?) };
    set(RLIM_INFINITY, RLIM_INFINITY)?;
    restore_limit_after(work(), || set(soft, hard))
}

/// Restores a limit after a work. The descriptor that the work has opened is closed if that fails.
fn restore_limit_after(
    done: io::Result<OwnedFd>,
    restore: impl FnOnce() -> io::Result<()>,
) -> io::Result<OwnedFd> {
    restore()?;
    done
}

/// Lets a group, opened as a directory, be asked by this program too.
pub fn attach_program(group: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attr = BpfAttach {
        group: fd_number(group.as_fd()),
        program: fd_number(program.as_fd()),
        at: AT_DEVICE,
        flags: BESIDE_OTHERS,
    };
    call_bpf(PROG_ATTACH, &mut attr).map(drop)
}

/// Takes a program from a group.
pub fn detach_program(group: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attr = BpfAttach {
        group: fd_number(group.as_fd()),
        program: fd_number(program.as_fd()),
        at: AT_DEVICE,
        flags: 0,
    };
    call_bpf(PROG_DETACH, &mut attr).map(drop)
}

/// Programs of that name that a group has itself.
pub fn attached_programs(group: impl AsFd, name: &str) -> io::Result<Vec<OwnedFd>> {
    let mut ids = [0u32; MAX_ATTACHED];
    let mut query = BpfQuery {
        group: fd_number(group.as_fd()),
        at: AT_DEVICE,
        ids: kernel_address(ids.as_mut_ptr()),
        count: u32::try_from(MAX_ATTACHED).map_err(io::Error::other)?,
        ..BpfQuery::default()
    };
    call_bpf(PROG_QUERY, &mut query)?;
    let count = usize::try_from(query.count).unwrap_or(0).min(MAX_ATTACHED);
    let mut found = Vec::new();
    for id in &ids[..count] {
        let mut by_id = BpfProgramById {
            id: *id,
            next: 0,
            flags: 0,
        };
        let program = match call_bpf(PROG_GET_FD_BY_ID, &mut by_id) {
            Ok(fd) => owned(fd),
            // The program has gone since.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        if program_name(&program)? == name {
            found.push(program);
        }
    }
    Ok(found)
}

fn program_name(program: &OwnedFd) -> io::Result<String> {
    let mut info = BpfProgramInfo::default();
    let mut of = BpfInfoRequest {
        program: fd_number(program.as_fd()),
        bytes: u32::try_from(size_of::<BpfProgramInfo>()).map_err(io::Error::other)?,
        info: kernel_address(&raw mut info),
    };
    call_bpf(OBJ_GET_INFO_BY_FD, &mut of)?;
    let end = info.name.iter().position(|byte| *byte == 0);
    let name = &info.name[..end.unwrap_or(NAME_BYTES)];
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    #[test]
    fn a_limit_that_cannot_be_restored_leaks_no_descriptor() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("flags");
        let refused = restore_limit_after(Ok(writer.into()), || Err(Errno::EPERM.into()));
        refused.expect_err("no limit is set");
        assert_eq!(reader.read(&mut [0]).expect("the other end is closed"), 0);
    }
}
