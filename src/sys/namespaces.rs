//! Namespaces that outlive every process: made on a thread of their own and pinned by bind mounts.

#![expect(unsafe_code, reason = "ioctl has no safe wrapper in nix")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{
    mount as mounts,
    user_namespace::{ChildProgram, NamespaceChild, run_as_user},
};
use crate::api::cri::IdMap;

/// The namespaces of one sandbox. A kind without a path stays the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxNamespaces {
    /// File to pin the network namespace at; its `lo` is brought up.
    pub net: Option<PathBuf>,
    /// File to pin the IPC namespace at.
    pub ipc: Option<PathBuf>,
    /// File to pin the UTS namespace at.
    pub uts: Option<PathBuf>,
    /// File to pin a user namespace at, and its ids. It owns the other namespaces then.
    pub user: Option<(PathBuf, IdMap)>,
    /// Host name, set only with a UTS namespace of its own.
    pub hostname: String,
    /// Directory to mount the IPC namespace's message queues at; only with an IPC namespace of its own.
    pub mqueue: Option<PathBuf>,
    /// Kernel parameters in the order of setting, as sysctl(8) writes them. The caller has checked that they are
    /// namespaced and belong to a namespace of this sandbox.
    pub sysctls: Vec<(String, String)>,
}

impl SandboxNamespaces {
    fn namespace_pins(&self) -> impl Iterator<Item = (&Path, &'static str, CloneFlags)> {
        [
            (&self.net, "net", CloneFlags::CLONE_NEWNET),
            (&self.ipc, "ipc", CloneFlags::CLONE_NEWIPC),
            (&self.uts, "uts", CloneFlags::CLONE_NEWUTS),
        ]
        .into_iter()
        .filter_map(|(path, name, flag)| Some((path.as_deref()?, name, flag)))
    }
}

/// Parameter of the network that names groups.
const PING_GROUPS: &str = "net.ipv4.ping_group_range";

/// Error in making a sandbox. No part of the sandbox is left.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct NamespaceError {
    /// Step that failed.
    pub step: String,
    /// Error of the system.
    pub source: io::Error,
}

fn namespace_error_at(step: impl Into<String>) -> impl FnOnce(io::Error) -> NamespaceError {
    let step = step.into();
    move |source| NamespaceError { step, source }
}

/// Makes and pins the namespaces. **The calling thread stays in them**: call it on one that ends afterwards
/// ([`super::lane::run_on_fresh_thread`]).
///
/// `init`: program for a new PID namespace, only with a user namespace, which is to own it. Returns its process, which
/// does not run the program yet.
pub fn create_namespaces(
    sandbox: &SandboxNamespaces,
    init: Option<&ChildProgram>,
) -> Result<Option<NamespaceChild>, NamespaceError> {
    let flags = sandbox
        .namespace_pins()
        .fold(CloneFlags::empty(), |all, (_, _, flag)| all | flag);
    if flags.is_empty() {
        return Ok(None);
    }
    let result = make_and_pin(sandbox, flags, init);
    if result.is_err() {
        // The first error counts.
        let _ = unpin_namespaces(sandbox);
    }
    result
}

/// Makes namespaces that belong to a new user namespace, pins that one, and enters the others as root of the host.
fn enter_owned(
    flags: CloneFlags,
    pin: &Path,
    ids: IdMap,
    init: Option<&ChildProgram>,
) -> io::Result<NamespaceChild> {
    let mut all = flags;
    all.set(CloneFlags::CLONE_NEWPID, init.is_some());
    let child = NamespaceChild::start(all, ids, init)?;
    pin_file(&child.namespace_path("user"), pin)?;
    for (name, flag) in [
        ("net", CloneFlags::CLONE_NEWNET),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("uts", CloneFlags::CLONE_NEWUTS),
    ] {
        if flags.contains(flag) {
            join_namespace(Path::new(&child.namespace_path(name)))?;
        }
    }
    Ok(child)
}

fn make_and_pin(
    sandbox: &SandboxNamespaces,
    flags: CloneFlags,
    init: Option<&ChildProgram>,
) -> Result<Option<NamespaceChild>, NamespaceError> {
    let made = match &sandbox.user {
        Some((pin, ids)) => enter_owned(flags, pin, *ids, init).map(Some),
        None => unshare(flags).map(|()| None).map_err(Into::into),
    };
    let child = made.map_err(namespace_error_at("make namespaces"))?;
    if sandbox.uts.is_some() && !sandbox.hostname.is_empty() {
        nix::unistd::sethostname(&sandbox.hostname).map_err(|e| {
            namespace_error_at(format!("set host name {:?}", sandbox.hostname))(e.into())
        })?;
    }
    if sandbox.net.is_some() {
        loopback_up().map_err(namespace_error_at("bring lo up"))?;
    }
    for (name, value) in &sandbox.sysctls {
        let set = || match &sandbox.user {
            // The kernel reads the numbers as those of whoever writes them.
            Some((_, ids)) if name == PING_GROUPS => {
                let value = shift_groups(value, *ids).ok_or(io::ErrorKind::InvalidInput)?;
                set_sysctl(name, &value)
            }
            _ => set_sysctl(name, value),
        };
        // Parameters of the network need a capability in its namespace; those of the IPC namespace its root.
        let done = match (set(), &sandbox.user) {
            (Err(e), Some((_, ids))) if e.kind() == io::ErrorKind::PermissionDenied => {
                run_as_user(ids.host_id, set)
            }
            (done, _) => done,
        };
        done.map_err(namespace_error_at(format!("set sysctl {name}={value}")))?;
    }
    if let (Some(dir), true) = (&sandbox.mqueue, sandbox.ipc.is_some()) {
        let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let kind = Some("mqueue");
        mount(kind, dir, kind, safe, None::<&str>)
            .map_err(|e| namespace_error_at("mount mqueue")(e.into()))?;
    }
    for (path, name, _) in sandbox.namespace_pins() {
        pin_namespace(path, name).map_err(namespace_error_at(format!(
            "pin the {name} namespace at {}",
            path.display()
        )))?;
    }
    Ok(child.filter(|_| init.is_some()))
}

/// Unpins the namespaces; the kernel ends them with their last process. Idempotent; goes on after an error and returns
/// the first.
pub fn unpin_namespaces(sandbox: &SandboxNamespaces) -> io::Result<()> {
    let mut result = Ok(());
    let user = sandbox.user.iter().map(|(path, _)| path.as_path());
    for path in sandbox.namespace_pins().map(|(path, ..)| path).chain(user) {
        // More than one mount can lie here if a crash came between pin and record.
        let gone = mounts::unmount_below(path).and_then(|_| match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        });
        result = result.and(gone);
    }
    if let Some(dir) = &sandbox.mqueue {
        let gone = mounts::unmount_below(dir).map(drop);
        result = result.and(gone);
    }
    result
}

/// Returns true if a namespace is pinned at `path`. After a reboot, or an unmount by hand, the file may be there
/// without it.
#[must_use]
pub fn is_pinned(path: &Path) -> bool {
    const NSFS_MAGIC: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x6e73_6673);
    nix::sys::statfs::statfs(path).is_ok_and(|s| s.filesystem_type() == NSFS_MAGIC)
}

/// Moves the calling thread into the namespace pinned at `path`. Call it on a thread that ends afterwards.
pub fn join_namespace(path: &Path) -> io::Result<()> {
    let file: OwnedFd = File::open(path)?.into();
    Ok(setns(file, CloneFlags::empty())?)
}

/// Returns true if this process sees the host's mounts, judged by PID 1. A pin made elsewhere is invisible to the
/// runtime.
pub fn in_host_mount_namespace() -> io::Result<bool> {
    Ok(fs::read_link("/proc/self/ns/mnt")? == fs::read_link("/proc/1/ns/mnt")?)
}

fn pin_namespace(path: &Path, name: &str) -> io::Result<()> {
    pin_file(&format!("/proc/thread-self/ns/{name}"), path)
}

fn pin_file(namespace: &str, path: &Path) -> io::Result<()> {
    File::create(path)?;
    mounts::bind_mount(Path::new(namespace), path, false)
}

/// Groups of the host that are these groups of a user namespace; `None`: it does not have them all.
fn shift_groups(value: &str, ids: IdMap) -> Option<String> {
    let group = |word: &str| {
        let group = word.parse::<u32>().ok().filter(|group| *group < ids.length);
        group.and_then(|group| ids.host_id.checked_add(group))
    };
    let (first, last) = value.trim().split_once(char::is_whitespace)?;
    let (first, last) = (group(first)?, group(last.trim())?);
    Some(format!("{first} {last}"))
}

/// Writes one kernel parameter of the calling thread's namespaces.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = sysctl_path(name).ok_or(io::ErrorKind::InvalidInput)?;
    fs::write(path, value)
}

/// Path of a parameter. Dots separate unless a slash comes first: then a name may hold dots (`net/ipv4/conf/eth0.1/...`);
/// the other sign is part of a name in either form, written as its opposite. Source: sysctl.d(5).
fn sysctl_path(name: &str) -> Option<PathBuf> {
    let slashes = name
        .find(['.', '/'])
        .is_some_and(|at| name.as_bytes()[at] == b'/');
    let relative: String = if slashes {
        name.into()
    } else {
        let swap = |c| match c {
            '.' => '/',
            '/' => '.',
            c => c,
        };
        name.chars().map(swap).collect()
    };
    let proper = relative
        .split('/')
        .all(|part| !matches!(part, "" | "." | ".."));
    proper.then(|| Path::new("/proc/sys").join(relative))
}

/// Brings `lo` of the calling thread's network namespace up. Source: netdevice(7).
fn loopback_up() -> io::Result<()> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all zeros is a valid `ifreq`: byte arrays and numbers.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::try_from(*from).unwrap_or(0);
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(0);
    // The C libraries disagree on the type.
    let code = libc::Ioctl::try_from(libc::SIOCSIFFLAGS).map_err(io::Error::other)?;
    // SAFETY: SIOCSIFFLAGS reads one `ifreq` through the pointer, which is valid for the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, &raw const request) };
    nix::Error::result(result).map(drop).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_paths() {
        for (name, path) in [
            ("net.ipv4.ip_forward", Some("net/ipv4/ip_forward")),
            ("net/ipv4/ip_forward", Some("net/ipv4/ip_forward")),
            (
                "net.ipv4.conf.eth0/1.rp_filter",
                Some("net/ipv4/conf/eth0.1/rp_filter"),
            ),
            (
                "net/ipv4/conf/eth0.1/rp_filter",
                Some("net/ipv4/conf/eth0.1/rp_filter"),
            ),
            ("net/../../self/mem", None),
            ("", None),
            ("a..b", None),
        ] {
            let expected = path.map(|p| Path::new("/proc/sys").join(p));
            assert_eq!(sysctl_path(name), expected, "{name}");
        }
    }

    /// Inode of the user namespace that owns the namespace at `path`: NS_GET_USERNS of ioctl_ns(2).
    fn owner_inode(path: &Path) -> u64 {
        use std::os::{fd::FromRawFd as _, unix::fs::MetadataExt as _};
        let file = File::open(path).expect("open");
        // SAFETY: takes no argument.
        let fd = unsafe { libc::ioctl(file.as_raw_fd(), 0xb701) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: a new descriptor that nobody else owns.
        let owner = unsafe { File::from_raw_fd(fd) };
        owner.metadata().expect("metadata").ino()
    }

    #[test]
    fn groups_of_a_user_namespace() {
        // UNS-27
        let ids = IdMap {
            host_id: 131_072,
            length: 65_536,
        };
        for (value, shifted) in [
            ("0 0", Some("131072 131072")),
            ("1\t65535", Some("131073 196607")),
            ("0 65536", None),
            ("0 2147483647", None),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(shift_groups(value, ids).as_deref(), shifted, "{value}");
        }
    }

    #[test]
    fn made_joined_and_removed() {
        // UNS-22
        use std::os::unix::fs::MetadataExt as _;
        if !nix::unistd::geteuid().is_root() {
            skipped!("namespaces: it needs root");
            return;
        }
        let ids = IdMap {
            host_id: 300 << 16,
            length: 1 << 16,
        };
        for ids in [None, Some(ids)] {
            let dir = crate::testing::unused_path("ns");
            fs::create_dir_all(dir.join("mqueue")).expect("dir");
            let sandbox = SandboxNamespaces {
                net: Some(dir.join("net")),
                ipc: Some(dir.join("ipc")),
                uts: Some(dir.join("uts")),
                user: ids.map(|ids| (dir.join("user"), ids)),
                hostname: "pod-7".into(),
                mqueue: ids.is_none().then(|| dir.join("mqueue")),
                sysctls: vec![
                    ("net.ipv4.ip_unprivileged_port_start".into(), "77".into()),
                    ("kernel.msgmax".into(), "4242".into()),
                ],
            };
            let wanted = sandbox.clone();
            let made = std::thread::spawn(move || create_namespaces(&wanted, None))
                .join()
                .expect("thread");
            made.expect("create");
            assert!(is_pinned(&dir.join("net")));
            match ids {
                None => assert!(mounts::is_mount_point(&dir.join("mqueue")).expect("mounts")),
                Some(_) => {
                    let user = fs::metadata(dir.join("user")).expect("pinned").ino();
                    for name in ["net", "ipc", "uts"] {
                        assert_eq!(owner_inode(&dir.join(name)), user, "{name}");
                    }
                }
            }
            let (net, uts, ipc) = (dir.join("net"), dir.join("uts"), dir.join("ipc"));
            let facts = std::thread::spawn(move || {
                for path in [net, uts, ipc] {
                    join_namespace(&path).expect("join");
                }
                let read = |path| fs::read_to_string(path).expect("read").trim().to_string();
                // Only a loopback that is up can be bound and reached.
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
                let address = socket.local_addr().expect("address");
                socket.send_to(b"x", address).expect("send");
                (
                    nix::unistd::gethostname().expect("name"),
                    read("/proc/sys/net/ipv4/ip_unprivileged_port_start"),
                    read("/proc/sys/kernel/msgmax"),
                )
            });
            let facts = facts.join().expect("thread");
            assert_eq!(facts, ("pod-7".into(), "77".into(), "4242".into()));
            unpin_namespaces(&sandbox).expect("remove");
            unpin_namespaces(&sandbox).expect("idempotent");
            assert!(!dir.join("net").exists());
            let bad = SandboxNamespaces {
                sysctls: vec![("net.no.such".into(), "1".into())],
                ..sandbox
            };
            let error = std::thread::spawn(move || create_namespaces(&bad, None))
                .join()
                .expect("thread");
            assert_eq!(
                error.expect_err("no such parameter").step,
                "set sysctl net.no.such=1"
            );
            assert!(
                !dir.join("net").exists() && mounts::mounts_below(&dir).expect("mounts").is_empty()
            );
            fs::remove_dir_all(&dir).expect("remove");
        }
    }
}
