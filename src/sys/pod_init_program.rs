//! The program that the init of a PID namespace becomes: some hundred bytes that wait for SIGTERM or SIGINT, in a sealed file
//! that lies nowhere.
//!
//! Who may trace processes of the pod sees all of its memory and may have it call the kernel. So it is not ours, which would
//! also cost each pod some 80 KiB, and a filter leaves it the system calls that it makes.
//!
//! Children are not its affair: SIGCHLD is ignored, and an ignored SIGCHLD stays ignored over an exec, so the kernel reaps them.
//! Source: execve(2), wait(2), elf(5), seccomp(2).

#![expect(unsafe_code, reason = "execveat, and the bytes between two labels")]

use core::{arch::global_asm, ffi::CStr};
use std::{
    ffi::CString,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    slice,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use super::confine::{self, AllowedSyscall};

/// Name of the file, for who reads maps of memory.
const NAME: &CStr = c"pod-init";
/// `MFD_EXEC`: the file may be run. Linux before 6.3 does not know the flag, and runs all of them.
const MAY_RUN: MFdFlags = MFdFlags::from_bits_retain(0x10);

/// Number of rt_sigtimedwait with 64-bit time, which is the only one that a 32-bit kernel is sure to have.
#[cfg(target_pointer_width = "32")]
const SIGTIMEDWAIT_TIME64: libc::c_long = 421;

// The file: a header, two segments (all of it, read and run; a stack that is not run), the code, and the set of signals.
#[cfg(target_pointer_width = "64")]
macro_rules! file {
    ($machine:literal, $flags:literal, $($code:literal),+ $(,)?) => {
        global_asm!(
            ".pushsection .rodata.pod_init,\"a\"",
            ".balign 8",
            ".globl picolet_pod_init_begin",
            ".hidden picolet_pod_init_begin",
            "picolet_pod_init_begin:",
            ".byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
            concat!(".short 2, ", $machine),
            ".long 1",
            ".quad 0x400000 + .Lpod_init_code - picolet_pod_init_begin, 64, 0",
            concat!(".long ", $flags),
            ".short 64, 56, 2, 0, 0, 0",
            ".long 1, 5",
            ".quad 0, 0x400000, 0x400000",
            ".quad picolet_pod_init_end - picolet_pod_init_begin",
            ".quad picolet_pod_init_end - picolet_pod_init_begin, 0x10000",
            ".long 0x6474e551, 6",
            ".quad 0, 0, 0, 0, 0, 16",
            ".Lpod_init_code:",
            $($code,)+
            ".balign 8",
            ".Lpod_init_signals:",
            // SIGINT (2) and SIGTERM (15): a bit each, counted from 1.
            ".long 0x4002, 0",
            ".globl picolet_pod_init_end",
            ".hidden picolet_pod_init_end",
            "picolet_pod_init_end:",
            ".popsection",
        );
    };
}
#[cfg(target_pointer_width = "32")]
macro_rules! file {
    ($machine:literal, $flags:literal, $($code:literal),+ $(,)?) => {
        global_asm!(
            ".pushsection .rodata.pod_init,\"a\"",
            ".balign 8",
            ".globl picolet_pod_init_begin",
            ".hidden picolet_pod_init_begin",
            "picolet_pod_init_begin:",
            ".byte 0x7f, 0x45, 0x4c, 0x46, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0",
            concat!(".short 2, ", $machine),
            ".long 1",
            ".long 0x400000 + .Lpod_init_code - picolet_pod_init_begin, 52, 0",
            concat!(".long ", $flags),
            ".short 52, 32, 2, 0, 0, 0",
            ".long 1, 0, 0x400000, 0x400000",
            ".long picolet_pod_init_end - picolet_pod_init_begin",
            ".long picolet_pod_init_end - picolet_pod_init_begin, 5, 0x10000",
            ".long 0x6474e551, 0, 0, 0, 0, 0, 6, 16",
            ".Lpod_init_code:",
            $($code,)+
            ".balign 8",
            ".Lpod_init_signals:",
            // SIGINT (2) and SIGTERM (15): a bit each, counted from 1.
            ".long 0x4002, 0",
            ".globl picolet_pod_init_end",
            ".hidden picolet_pod_init_end",
            "picolet_pod_init_end:",
            ".popsection",
        );
    };
}

// The code, in all of them: prctl(PR_SET_DUMPABLE, 0), for exec has put that back; rt_sigtimedwait(signals, NULL, NULL, 8) again
// and again while it is interrupted (EINTR, 4); exit_group(0), or 1 if one of these failed.
#[cfg(target_arch = "x86_64")]
file!(
    "62",
    "0",
    "mov edi, 4",
    "xor esi, esi",
    "mov eax, 157",
    "syscall",
    "test eax, eax",
    "js 3f",
    "2:",
    "lea rdi, [rip + .Lpod_init_signals]",
    "xor esi, esi",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 128",
    "syscall",
    "cmp eax, -4",
    "je 2b",
    "3:",
    "mov edi, eax",
    "shr edi, 31",
    "mov eax, 231",
    "syscall",
);
#[cfg(target_arch = "aarch64")]
file!(
    "183",
    "0",
    "mov x0, #4",
    "mov x1, #0",
    "mov x8, #167",
    "svc #0",
    "tbnz x0, #63, 3f",
    "2:",
    "adr x0, .Lpod_init_signals",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #8",
    "mov x8, #137",
    "svc #0",
    "cmn x0, #4",
    "b.eq 2b",
    "3:",
    "lsr x0, x0, #63",
    "mov x8, #94",
    "svc #0",
);
// Instructions that ARMv6 has, and version 5 of the EABI. Without 32-bit time (ENOSYS, 38) it waits by the other call.
#[cfg(target_arch = "arm")]
file!(
    "40",
    "0x5000000",
    // The compiler's own mode for a board may be Thumb; it says its mode before each function.
    ".arm",
    "mov r0, #4",
    "mov r1, #0",
    "mov r7, #172",
    "svc #0",
    "cmp r0, #0",
    "bmi 3f",
    "mov r7, #177",
    "2:",
    "adr r0, .Lpod_init_signals",
    "mov r1, #0",
    "mov r2, #0",
    "mov r3, #8",
    "svc #0",
    "cmn r0, #4",
    "beq 2b",
    "cmn r0, #38",
    "bne 3f",
    "cmp r7, #177",
    "moveq r7, #420",
    "addeq r7, r7, #1",
    "beq 2b",
    "3:",
    "mov r0, r0, lsr #31",
    "mov r7, #248",
    "svc #0",
);
// No board, but a PC runs tests of 32 bits.
#[cfg(target_arch = "x86")]
file!(
    "3",
    "0",
    "mov ebx, 4",
    "xor ecx, ecx",
    "mov eax, 172",
    "int 0x80",
    "test eax, eax",
    "js 3f",
    "mov ebp, 177",
    "2:",
    // The address of what comes next; there is no shorter way to it.
    "call 4f",
    ".long 0x4002, 0",
    "4:",
    "pop ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "mov esi, 8",
    "mov eax, ebp",
    "int 0x80",
    "cmp eax, -4",
    "je 2b",
    "cmp eax, -38",
    "jne 3f",
    "cmp ebp, 177",
    "mov ebp, 421",
    "je 2b",
    "3:",
    "mov ebx, eax",
    "shr ebx, 31",
    "mov eax, 252",
    "int 0x80",
);
#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "arm"
)))]
compile_error!("the init of a PID namespace has no program for this architecture");

unsafe extern "C" {
    #[link_name = "picolet_pod_init_begin"]
    static BEGIN: u8;
    #[link_name = "picolet_pod_init_end"]
    static END: u8;
}

fn program_image() -> &'static [u8] {
    let (begin, end) = (&raw const BEGIN, &raw const END);
    let length = end.addr() - begin.addr();
    // SAFETY: the bytes between the two labels, which are constant.
    unsafe { slice::from_raw_parts(begin, length) }
}

/// The program in memory, where nobody can change it any more.
pub fn open_program() -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let created = match memfd_create(NAME, flags | MAY_RUN) {
        Err(Errno::EINVAL) => memfd_create(NAME, flags),
        other => other,
    };
    let created = created.map_err(|e| match e {
        Errno::EACCES => io::Error::other("vm.memfd_noexec is 2: no program may run from memory"),
        other => other.into(),
    });
    let mut file = File::from(created?);
    file.write_all(program_image())?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// Becomes the program of [`open_program`], with these arguments, no environment and no descriptor. From here on
/// nothing is called but what the program needs. What is blocked and ignored among signals stays so. Returns only an error.
pub fn exec_program(program: &OwnedFd, args: &[CString]) -> io::Error {
    super::child::close_on_exec_from(0);
    let mut list: Vec<_> = args.iter().map(|arg| arg.as_ptr()).collect();
    list.push(core::ptr::null());
    let environment = [core::ptr::null::<libc::c_char>()];
    if let Err(e) = confine::allow_only_calls(&allowed_calls(program.as_fd())) {
        return e;
    }
    // SAFETY: strings and lists that end with a null, which live until the call returns.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            list.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// All that the program calls, and what it takes to become it and to tell why not: that needs descriptors, which the program
/// does not have and cannot get.
fn allowed_calls(program: BorrowedFd<'_>) -> Vec<AllowedSyscall> {
    let call = |number, first| AllowedSyscall { number, first };
    let fd = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
    let stdout = libc::STDOUT_FILENO.unsigned_abs();
    vec![
        call(libc::SYS_execveat, vec![fd]),
        call(libc::SYS_write, vec![stdout]),
        call(
            libc::SYS_prctl,
            vec![libc::PR_SET_DUMPABLE.unsigned_abs(), 0],
        ),
        call(libc::SYS_rt_sigtimedwait, vec![]),
        #[cfg(target_pointer_width = "32")]
        call(SIGTIMEDWAIT_TIME64, vec![]),
        call(libc::SYS_exit_group, vec![]),
    ]
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroUsize;

    use nix::{
        sys::{
            mman::{MapFlags, ProtFlags, mmap},
            signal::{SigSet, Signal, kill},
            wait::{WaitPidFlag, WaitStatus, waitpid},
        },
        unistd::{ForkResult, fork},
    };

    use super::*;

    /// Address at which the header loads the file, and place of the entry point in the header. Both are alike in files
    /// of 32 bits.
    const BASE: u32 = 0x40_0000;
    const ENTRY: usize = 24;

    #[test]
    fn nobody_changes_it() {
        let program = open_program().expect("program");
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let again = File::options().write(true).open(&path);
        let refused = again.and_then(|mut file| file.write_all(b"x"));
        let refused = refused.expect_err("sealed").kind();
        assert_eq!(refused, io::ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read(path).expect("its bytes"), program_image());
    }

    /// Jumps to the code in a child, without an exec: so it also runs where an emulator runs this test.
    #[test]
    fn waits_for_a_signal_to_end() {
        let program = open_program().expect("program");
        let entry: [u8; 4] = program_image()[ENTRY..ENTRY + 4].try_into().expect("entry");
        let entry = usize::try_from(u32::from_le_bytes(entry) - BASE).expect("entry");
        assert!(entry < program_image().len());
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGINT);
        let length = NonZeroUsize::new(program_image().len()).expect("not empty");
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
        // SAFETY: a new mapping, nothing is replaced.
        let base = unsafe { mmap(None, length, rights, MapFlags::MAP_PRIVATE, &program, 0) };
        let base = base.expect("mapped");
        // SAFETY: within the mapping.
        let code = unsafe { base.byte_add(entry) };
        // SAFETY: the code is there, takes nothing, and ends the process.
        let start: extern "C" fn() = unsafe { core::mem::transmute(code.as_ptr()) };
        for signal in signals.iter() {
            let before = signals.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
            // SAFETY: the child calls nothing but that code.
            let child = match unsafe { fork() }.expect("child") {
                ForkResult::Parent { child } => child,
                ForkResult::Child => {
                    start();
                    unreachable!()
                }
            };
            before.expect("blocked").thread_set_mask().expect("mask");
            // Interrupted, it waits on.
            kill(child, Signal::SIGSTOP).expect("stop");
            let stopped = waitpid(child, Some(WaitPidFlag::WUNTRACED));
            assert_eq!(stopped, Ok(WaitStatus::Stopped(child, Signal::SIGSTOP)));
            kill(child, Signal::SIGCONT).expect("go on");
            kill(child, signal).expect("signal");
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}
