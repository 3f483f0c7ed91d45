//! Our own `RuntimeDefault` seccomp profile: what ordinary programs need, with more for capabilities that are held.
//!
//! Calls not listed fail with EPERM. The list of calls is that of the common container runtimes; it has a version so
//! that a change of it is a visible event. Names the running libseccomp does not know are skipped by the OCI runtime.

use alloc::{collections::BTreeSet, string::String, vec::Vec};

use crate::api::oci::{SeccompArg, SeccompFilter, SeccompRule};
use crate::api::order::GatherExt;

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. Source: clone(2).
const CLONE_NEW_ANY: u64 = 0x7E02_0000;
/// `AF_VSOCK`: would reach the host of a virtual machine past every network policy.
const AF_VSOCK: u64 = 40;
/// PER_LINUX, PER_LINUX32, each also with UNAME26, and "tell me". Source: personality(2).
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF];
/// First kernel on which ptrace cannot be used to step around the filter.
const SAFE_PTRACE: (u32, u32) = (4, 8);

/// Calls that are always allowed, whatever the arguments.
const ALLOWED: &str = "
    accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32
    clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64
    clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
    eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate
    fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr
    flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate
    ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list
    get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32
    getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday
    getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel
    io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set
    ipc kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link
    linkat listen listmount listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64
    madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock
    mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64
    mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall
    munmap name_to_handle_at nanosleep newfstatat _newselect open openat openat2 pause pidfd_open
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv
    preadv2 prlimit64 process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read readahead
    readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr
    removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area
    set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer
    setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32
    setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown
    sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs
    statfs64 statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create
    timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
    timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
    ugetrlimit umask uname unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4
    waitid waitpid write writev
";

/// Calls that the holder of a capability may make in addition.
const BY_CAPABILITY: [(&str, &str); 15] = [
    ("CAP_BPF", "bpf"),
    ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
    ("CAP_PERFMON", "perf_event_open"),
    (
        "CAP_SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr
         move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount
         umount2 unshare",
    ),
    ("CAP_SYSLOG", "syslog"),
    ("CAP_SYS_BOOT", "reboot"),
    ("CAP_SYS_CHROOT", "chroot"),
    ("CAP_SYS_MODULE", "delete_module finit_module init_module"),
    (
        "CAP_SYS_NICE",
        "get_mempolicy mbind set_mempolicy set_mempolicy_home_node",
    ),
    ("CAP_SYS_PACCT", "acct"),
    (
        "CAP_SYS_PTRACE",
        "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace",
    ),
    ("CAP_SYS_RAWIO", "ioperm iopl"),
    (
        "CAP_SYS_TIME",
        "clock_settime clock_settime64 settimeofday stime",
    ),
    ("CAP_SYS_TTY_CONFIG", "vhangup"),
    // For debuggers of a program's own processes; for others the kernel's own check decides.
    ("kernel", "process_vm_readv process_vm_writev ptrace"),
];

/// Machine (as Rust names it), the architectures whose calls its kernel accepts, and calls that only those have.
const MACHINES: [(&str, &str, &str); 7] = [
    (
        "x86_64",
        "SCMP_ARCH_X86_64 SCMP_ARCH_X86 SCMP_ARCH_X32",
        "arch_prctl modify_ldt",
    ),
    ("x86", "SCMP_ARCH_X86", "modify_ldt"),
    ("aarch64", "SCMP_ARCH_AARCH64 SCMP_ARCH_ARM", ARM_CALLS),
    ("arm", "SCMP_ARCH_ARM", ARM_CALLS),
    (
        "riscv64",
        "SCMP_ARCH_RISCV64",
        "riscv_flush_icache riscv_hwprobe",
    ),
    (
        "powerpc64",
        "SCMP_ARCH_PPC64LE",
        "swapcontext sync_file_range2",
    ),
    (
        "s390x",
        "SCMP_ARCH_S390X SCMP_ARCH_S390",
        "s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr",
    ),
];
const ARM_CALLS: &str =
    "arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush set_tls sync_file_range2";

/// The profile for one container.
///
/// - `arch`: as in `HostFacts::arch`; for one not listed here the filter covers the native calls only.
/// - `kernel`: (major, minor).
/// - `capabilities`: the bounding set, `CAP_…`.
#[must_use]
pub fn runtime_default(arch: &str, kernel: (u32, u32), capabilities: &[String]) -> SeccompFilter {
    let holds = |name: &str| match name {
        "kernel" => kernel >= SAFE_PTRACE,
        name => capabilities.iter().any(|held| held == name),
    };
    let machine = MACHINES.into_iter().find(|(name, ..)| *name == arch);
    let (architectures, arch_calls) =
        machine.map_or(("", ""), |(_, architectures, calls)| (architectures, calls));
    let mut allowed: BTreeSet<&str> = ALLOWED.split_whitespace().gather_items();
    allowed.extend(arch_calls.split_whitespace());
    for (_, calls) in BY_CAPABILITY.into_iter().filter(|(name, _)| holds(name)) {
        allowed.extend(calls.split_whitespace());
    }
    let mut syscalls = vec![SeccompRule {
        names: words(allowed),
        action: "SCMP_ACT_ALLOW".into(),
        ..SeccompRule::default()
    }];
    for personality in PERSONALITIES {
        syscalls.push(allow_if("personality", 0, "SCMP_CMP_EQ", personality));
    }
    syscalls.push(allow_if("socket", 0, "SCMP_CMP_NE", AF_VSOCK));
    if !holds("CAP_SYS_ADMIN") {
        // s390 passes the stack first.
        let flags = u32::from(arch == "s390x");
        syscalls.push(allow_if(
            "clone",
            flags,
            "SCMP_CMP_MASKED_EQ",
            CLONE_NEW_ANY,
        ));
        // Its flags are behind a pointer that a filter cannot follow. ENOSYS makes the C library fall back to clone.
        syscalls.push(SeccompRule {
            names: words(["clone3"]),
            action: "SCMP_ACT_ERRNO".into(),
            errno_ret: Some(ENOSYS),
            args: Vec::new(),
        });
    }
    SeccompFilter {
        default_action: "SCMP_ACT_ERRNO".into(),
        default_errno_ret: Some(EPERM),
        architectures: words(architectures.split_whitespace()),
        syscalls,
        ..SeccompFilter::default()
    }
}

fn words<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

fn allow_if(name: &str, index: u32, op: &str, value: u64) -> SeccompRule {
    SeccompRule {
        names: words([name]),
        action: "SCMP_ACT_ALLOW".into(),
        errno_ret: None,
        args: vec![SeccompArg {
            index,
            value,
            value_two: 0,
            op: op.into(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities;

    fn profile(arch: &str, kernel: (u32, u32), capabilities: &[&str]) -> SeccompFilter {
        let held: Vec<String> = capabilities.iter().map(|&name| name.into()).collect();
        runtime_default(arch, kernel, &held)
    }

    /// Returns true if a rule without conditions on arguments allows `name`.
    fn allows(profile: &SeccompFilter, name: &str) -> bool {
        profile.syscalls.iter().any(|rule| {
            rule.action == "SCMP_ACT_ALLOW"
                && rule.args.is_empty()
                && rule.names.iter().any(|n| n == name)
        })
    }

    #[test]
    fn default_container() {
        let profile = profile("x86_64", (5, 10), &capabilities::DEFAULT);
        assert_eq!(profile.default_action, "SCMP_ACT_ERRNO");
        assert_eq!(profile.default_errno_ret, Some(EPERM));
        for (name, want) in [
            ("read", true),
            ("execve", true),
            ("chroot", true),
            ("rseq", true),
            ("arch_prctl", true),
            ("ptrace", true),
            ("mount", false),
            ("unshare", false),
            ("setns", false),
            ("bpf", false),
            ("keyctl", false),
            ("add_key", false),
            ("kexec_load", false),
            ("io_uring_setup", false),
            ("userfaultfd", false),
            ("reboot", false),
            ("init_module", false),
            ("clone", false),
            ("clone3", false),
            ("socket", false),
            ("personality", false),
            ("set_tls", false),
            ("settimeofday", false),
            ("open_by_handle_at", false),
            ("perf_event_open", false),
        ] {
            assert_eq!(allows(&profile, name), want, "{name}");
        }
    }

    #[test]
    fn capabilities_open_calls() {
        for (capability, call) in [
            ("CAP_SYS_ADMIN", "mount"),
            ("CAP_SYS_ADMIN", "clone"),
            ("CAP_SYS_ADMIN", "clone3"),
            ("CAP_SYS_BOOT", "reboot"),
            ("CAP_SYS_MODULE", "init_module"),
            ("CAP_SYS_TIME", "clock_settime"),
            ("CAP_SYS_PTRACE", "ptrace"),
            ("CAP_SYS_NICE", "mbind"),
            ("CAP_SYSLOG", "syslog"),
            ("CAP_BPF", "bpf"),
            ("CAP_DAC_READ_SEARCH", "open_by_handle_at"),
        ] {
            assert!(
                !allows(&profile("aarch64", (4, 4), &[]), call),
                "{call} without"
            );
            assert!(
                allows(&profile("aarch64", (4, 4), &[capability]), call),
                "{call} with {capability}"
            );
        }
        let admin = profile("aarch64", (6, 1), &["CAP_SYS_ADMIN"]);
        assert!(
            !admin
                .syscalls
                .iter()
                .any(|rule| rule.action == "SCMP_ACT_ERRNO")
        );
    }

    #[test]
    fn conditions_on_arguments() {
        let profile = profile("arm", (6, 1), &[]);
        let rules = |name: &str| -> Vec<&SeccompRule> {
            let all = profile.syscalls.iter();
            all.filter(|rule| rule.names == [name]).collect()
        };
        let clone = &rules("clone")[0].args[0];
        assert_eq!(
            (clone.index, clone.value, clone.value_two, clone.op.as_str()),
            (0, 0x7E02_0000, 0, "SCMP_CMP_MASKED_EQ")
        );
        assert_eq!(rules("clone3")[0].errno_ret, Some(ENOSYS));
        assert_eq!(rules("personality").len(), PERSONALITIES.len());
        assert_eq!(rules("socket")[0].args[0].value, AF_VSOCK);
        let s390 = runtime_default("s390x", (6, 1), &[]);
        let clone = s390.syscalls.iter().find(|rule| rule.names == ["clone"]);
        assert_eq!(clone.expect("clone").args[0].index, 1);
    }

    #[test]
    fn architectures() {
        for (arch, want) in [
            (
                "x86_64",
                &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"][..],
            ),
            ("aarch64", &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
            ("arm", &["SCMP_ARCH_ARM"]),
            ("riscv64", &["SCMP_ARCH_RISCV64"]),
            ("unheard-of", &[]),
        ] {
            assert_eq!(profile(arch, (6, 1), &[]).architectures, want, "{arch}");
        }
        assert!(allows(&profile("arm", (6, 1), &[]), "set_tls"));
    }

    #[test]
    fn old_kernel_keeps_ptrace_shut() {
        assert!(!allows(&profile("arm", (4, 7), &[]), "ptrace"));
        assert!(allows(&profile("arm", (4, 8), &[]), "ptrace"));
    }

    #[test]
    fn every_call_is_listed_once() {
        let list: Vec<&str> = ALLOWED.split_whitespace().collect();
        let set: BTreeSet<&str> = list.iter().copied().collect();
        assert_eq!(list.len(), set.len());
        assert!(list.len() > 300, "{}", list.len());
    }
}
