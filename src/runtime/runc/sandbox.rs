//! Making and unmaking what a sandbox is: pinned namespaces, a tmpfs, three small files. No process, except the init of a
//! PID namespace where the pod's containers share one.
//!
//! ```text
//! <run>/sandboxes/<id>/record.json   hostname   resolv.conf   shm/ (tmpfs)   ns/{net,ipc,uts,pid} (nsfs)
//! ```

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv,
            sendto, socket,
        },
        statfs::{FsType, fstatfs},
    },
};

use super::{files, mounts, record::SandboxRecord};
use crate::{
    api::{
        cri::{DnsConfig, NamespaceMode, SandboxConfig},
        oci::SandboxPaths,
    },
    sys::lane::on_fresh_thread,
};

/// Size of a pod's /dev/shm (RTM-12), as mount options.
const SHM_OPTIONS: &str = "size=64m,mode=1777";
/// The kernel's limit of a hostname, bytes.
const HOSTNAME_LIMIT: usize = 64;
/// Longest host file that is copied, bytes.
const HOST_FILE_LIMIT: u64 = 64 * 1024;
/// Type of the file system of namespaces, `NSFS_MAGIC`.
const NSFS: FsType = FsType(0x6e73_6673);

/// Where the pins of a sandbox lie.
pub(super) fn pin(dir: &Path, kind: &str) -> PathBuf {
    dir.join("ns").join(kind)
}

/// Whether `path` pins a namespace (and not only lies where one was pinned).
pub(super) fn is_pinned(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|f| fstatfs(&f).is_ok_and(|s| s.filesystem_type() == NSFS))
}

/// Refuses what must not be tried: a sysctl that is not of the pod's own namespaces would change the machine.
///
/// Source: `sysctl(8)` names; which are namespaced: kernel `ipc/ipc_sysctl.c`, `ipc/mq_sysctl.c`, `net/sysctl_net.c`.
pub(super) fn check(config: &SandboxConfig) -> Result<(), String> {
    if config.hostname.len() > HOSTNAME_LIMIT {
        return Err(format!(
            "hostname {:?} is longer than {HOSTNAME_LIMIT} bytes",
            config.hostname
        ));
    }
    for name in config.sysctls.keys() {
        let plain = name
            .split('.')
            .all(|part| !part.is_empty() && part != ".." && !part.starts_with('/'));
        let of_network = name.starts_with("net.");
        let of_ipc = name.starts_with("kernel.shm")
            || name.starts_with("kernel.msg")
            || name == "kernel.sem"
            || name.starts_with("fs.mqueue.");
        let own = of_network && config.namespaces.network == NamespaceMode::Pod
            || of_ipc && config.namespaces.ipc == NamespaceMode::Pod;
        if !plain || !own {
            return Err(format!(
                "sysctl {name:?} does not belong to a namespace of the pod"
            ));
        }
    }
    Ok(())
}

/// Writes the files that containers see, and mounts /dev/shm. Cheap: the run directory is a tmpfs.
pub(super) fn make_files(dir: &Path, config: &SandboxConfig, host_name: &str) -> io::Result<()> {
    let resolv_conf = if config.dns == DnsConfig::default() {
        files::read_start(Path::new("/etc/resolv.conf"), HOST_FILE_LIMIT).unwrap_or_default()
    } else {
        resolv_conf(&config.dns).into_bytes()
    };
    files::write_public(&dir.join("resolv.conf"), &resolv_conf)?;
    let name = if config.hostname.is_empty() {
        host_name
    } else {
        &config.hostname
    };
    files::write_public(&dir.join("hostname"), format!("{name}\n").as_bytes())?;
    if config.namespaces.ipc == NamespaceMode::Pod {
        let shm = dir.join("shm");
        fs::create_dir_all(&shm)?;
        mounts::unmount(&shm)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("shm"), &shm, Some("tmpfs"), flags, Some(SHM_OPTIONS))?;
    }
    Ok(())
}

/// Makes and pins the namespaces on a thread of its own; returns the pid of the PID namespace's init, if one is asked for.
pub(super) async fn make_namespaces(
    dir: &Path,
    config: &SandboxConfig,
    exe: &Arc<OwnedFd>,
) -> io::Result<Option<i32>> {
    let dir = dir.to_owned();
    let exe = Arc::clone(exe);
    let modes = config.namespaces;
    let hostname = config.hostname.clone();
    let sysctls = config.sysctls.clone();
    let job = move || -> io::Result<Option<i32>> {
        fs::create_dir_all(dir.join("ns"))?;
        let mut flags = CloneFlags::empty();
        let mut kinds = Vec::new();
        if modes.network == NamespaceMode::Pod {
            flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
            kinds.extend(["net", "uts"]);
        }
        if modes.ipc == NamespaceMode::Pod {
            flags |= CloneFlags::CLONE_NEWIPC;
            kinds.push("ipc");
        }
        unshare(flags)?;
        if modes.network == NamespaceMode::Pod {
            loopback_up()?;
            nix::unistd::sethostname(&hostname)?;
        }
        for (name, value) in &sysctls {
            let path = Path::new("/proc/sys").join(name.replace('.', "/"));
            fs::write(&path, value).map_err(|e| context(&e, &format!("sysctl {name}={value}")))?;
        }
        for kind in kinds {
            pin_to(&PathBuf::from(format!("/proc/thread-self/ns/{kind}")), &pin(&dir, kind))?;
        }
        if modes.pid == NamespaceMode::Pod {
            let pid = start_init(&exe)?;
            pin_to(&PathBuf::from(format!("/proc/{pid}/ns/pid")), &pin(&dir, "pid"))?;
            return Ok(Some(pid));
        }
        Ok(None)
    };
    on_fresh_thread("sandbox", job).await?
}

/// Binds a namespace to a file of ours.
fn pin_to(namespace: &Path, pin: &Path) -> io::Result<()> {
    mounts::unmount(pin)?;
    fs::File::create(pin)?;
    mount(
        Some(namespace),
        pin,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(|e| context(&e.into(), &format!("pin {}", namespace.display())))
}

/// Starts the init of a new PID namespace. It is no `sys::child`: it must outlive the agent.
fn start_init(exe: &Arc<OwnedFd>) -> io::Result<i32> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    let child = std::process::Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()))
        .arg0("picolet")
        .arg(super::pod_init::COMMAND)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// Sets the interface of index 1, which in a fresh network namespace is the loopback, up.
///
/// Source: rtnetlink(7); one RTM_NEWLINK request and its acknowledgement.
fn loopback_up() -> io::Result<()> {
    const NEWLINK: u16 = 16;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const ERROR: u16 = 2;
    const UP: u32 = 1;
    const LOOPBACK_INDEX: i32 = 1;
    const LENGTH: u32 = 32;
    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr: length, type, flags, sequence, port
    message.extend(LENGTH.to_ne_bytes());
    message.extend(NEWLINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    // struct ifinfomsg: family, padding, type, index, flags, change mask
    message.extend([0_u8; 4]);
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    let kernel = NetlinkAddr::new(0, 0);
    bind(fd.as_raw_fd(), &kernel)?;
    sendto(fd.as_raw_fd(), &message, &kernel, MsgFlags::empty())?;
    let mut answer = [0; 128];
    let length = recv(fd.as_fd().as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // struct nlmsghdr, then the negative errno.
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    if length < 20 || kind != ERROR {
        return Err(io::Error::other("rtnetlink gave no acknowledgement"));
    }
    match code {
        0 => Ok(()),
        code => Err(context(
            &io::Error::from_raw_os_error(code.saturating_neg()),
            "set the loopback interface up",
        )),
    }
}

/// Unpins the namespaces: with the last container they are gone.
pub(super) fn release_namespaces(dir: &Path) -> io::Result<()> {
    for kind in ["net", "ipc", "uts", "pid"] {
        let pin = pin(dir, kind);
        mounts::unmount(&pin)?;
        files::remove_file(&pin)?;
    }
    Ok(())
}

/// What containers of the sandbox join and mount.
pub(super) fn paths(dir: &Path, record: &SandboxRecord) -> SandboxPaths {
    let text = |path: PathBuf| path.display().to_string();
    let modes = record.config.namespaces;
    let host_network = modes.network == NamespaceMode::Node;
    SandboxPaths {
        network_namespace: text(pin(dir, "net")),
        ipc_namespace: text(pin(dir, "ipc")),
        uts_namespace: text(pin(dir, "uts")),
        pid_namespace: if modes.pid == NamespaceMode::Pod {
            text(pin(dir, "pid"))
        } else {
            String::new()
        },
        shm: if modes.ipc == NamespaceMode::Node {
            "/dev/shm".into()
        } else {
            text(dir.join("shm"))
        },
        hostname: text(dir.join("hostname")),
        resolv_conf: text(dir.join("resolv.conf")),
        hosts: if host_network && Path::new("/etc/hosts").exists() {
            "/etc/hosts".into()
        } else {
            String::new()
        },
    }
}

/// Source: resolv.conf(5).
fn resolv_conf(dns: &DnsConfig) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    text
}

fn context(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cri::NamespaceOptions;

    #[test]
    fn resolver_file() {
        let dns = DnsConfig {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.svc".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(
            resolv_conf(&dns),
            "search a.svc svc\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n"
        );
    }

    #[test]
    fn sysctls_of_the_machine_are_refused() {
        let pod = NamespaceOptions::default();
        let host = NamespaceOptions {
            network: NamespaceMode::Node,
            ipc: NamespaceMode::Node,
            pid: NamespaceMode::Container,
        };
        for (name, modes, ok) in [
            ("net.ipv4.ip_unprivileged_port_start", pod, true),
            ("kernel.shm_rmid_forced", pod, true),
            ("fs.mqueue.msg_max", pod, true),
            ("net.ipv4.ip_forward", host, false),
            ("kernel.shmmax", host, false),
            ("kernel.panic", pod, false),
            ("vm.swappiness", pod, false),
            ("net...x", pod, false),
            ("net./etc", pod, false),
        ] {
            let config = SandboxConfig {
                sysctls: [(name.to_owned(), "1".to_owned())].into(),
                namespaces: modes,
                ..SandboxConfig::default()
            };
            assert_eq!(check(&config).is_ok(), ok, "{name}");
        }
    }
}
