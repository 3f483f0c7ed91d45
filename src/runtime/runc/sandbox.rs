//! Making and unmaking what a sandbox is: pinned namespaces, a tmpfs, three small files. No process, except the init of a
//! PID namespace where the pod's containers share one.
//!
//! ```text
//! <run>/sandboxes/<id>/    record.json   shm/ (tmpfs of its own)   ns/{net,ipc,uts,pid,user} (nsfs)
//! <root>/sandboxes/<id>/   hostname   resolv.conf   hosts
//! ```
//!
//! The three files are on the disk because containers may write to them, as under other runtimes: in the run directory a
//! pod could fill the memory that records and sockets of all pods need.

use core::time::Duration;
use std::{
    ffi::CString,
    fs,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt as _, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use async_io::{Async, Timer};
use nix::{
    mount::MsFlags,
    sched::{CloneFlags, unshare},
};
use smol::future;

use super::{files, record::SandboxRecord};
use crate::{
    api::{
        PodError,
        cri::{DnsConfig, NamespaceMode, SandboxConfig},
        oci::SandboxPaths,
    },
    sys::{crash, lane::run_on_fresh_thread, mount, namespaces, user_namespace::ChildProgram},
};

/// Size of a pod's /dev/shm (RTM-12).
const SHM_BYTES: u64 = 64 * 1024 * 1024;
/// The kernel's limit of a hostname, bytes.
const HOSTNAME_LIMIT: usize = 64;
/// Longest host file that is copied, bytes.
const HOST_FILE_LIMIT: u64 = 64 * 1024;
/// Bytes that an init may say of why it failed.
const INIT_TEXT_BYTES: usize = 512;
/// Longest time that an init may take to give up what is the host's.
const INIT_WAIT: Duration = Duration::from_secs(60);

/// Path of a namespace's pin.
pub(super) fn namespace_pin_path(dir: &Path, kind: &str) -> PathBuf {
    dir.join("ns").join(kind)
}

/// Refuses what must not be tried: a sysctl that is not of the pod's own namespaces would change the machine.
///
/// Source: `sysctl(8)` names; which are namespaced: kernel `ipc/ipc_sysctl.c`, `ipc/mq_sysctl.c`, `net/sysctl_net.c`.
pub(super) fn check_sandbox_config(config: &SandboxConfig) -> Result<(), PodError> {
    if config.hostname.len() > HOSTNAME_LIMIT {
        return Err(PodError::Spec(format!(
            "hostname {:?} is longer than {HOSTNAME_LIMIT} bytes",
            config.hostname
        )));
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
            return Err(PodError::Spec(format!(
                "sysctl {name:?} does not belong to a namespace of the pod"
            )));
        }
    }
    Ok(())
}

/// Directories of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct SandboxDirs {
    /// `<run>/sandboxes/<id>`.
    pub(super) run: PathBuf,
    /// `<root>/sandboxes/<id>`.
    pub(super) root: PathBuf,
}

/// Writes the files that containers see, and mounts /dev/shm. Nothing is synced: a reboot makes them anew.
pub(super) fn make_files(
    dirs: &SandboxDirs,
    config: &SandboxConfig,
    host_name: &str,
) -> io::Result<()> {
    files::make_private_dir(&dirs.root)?;
    let resolv_conf = if config.dns == DnsConfig::default() {
        files::read_start(Path::new("/etc/resolv.conf"), HOST_FILE_LIMIT).unwrap_or_default()
    } else {
        resolv_conf(&config.dns).into_bytes()
    };
    files::write_public(&dirs.root.join("resolv.conf"), &resolv_conf)?;
    let name = if config.hostname.is_empty() {
        host_name
    } else {
        &config.hostname
    };
    files::write_public(&dirs.root.join("hostname"), format!("{name}\n").as_bytes())?;
    if config.namespaces.network == NamespaceMode::Node {
        // A copy: the machine's own file is nothing for containers to write to.
        let hosts = files::read_start(Path::new("/etc/hosts"), HOST_FILE_LIMIT).unwrap_or_default();
        files::write_public(&dirs.root.join("hosts"), &hosts)?;
    }
    if config.namespaces.ipc == NamespaceMode::Pod {
        let shm = dirs.run.join("shm");
        fs::create_dir_all(&shm)?;
        mount::unmount(&shm)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount::mount_tmpfs(&shm, Some(SHM_BYTES), 0o1777, flags)?;
    }
    Ok(())
}

/// An init of a PID namespace that ends by itself unless it is told that it is recorded.
#[derive(Debug)]
pub(super) struct UnrecordedPodInit {
    pub(super) pid: i32,
    tell: io::PipeWriter,
    said: io::PipeReader,
}

impl UnrecordedPodInit {
    /// From here on it stays when the agent ends. Returns when it has nothing of the host any more.
    pub(super) async fn confirm_recorded(mut self) -> io::Result<()> {
        self.tell.write_all(&[super::pod_init::RECORDED])?;
        let said = Async::new(self.said)?;
        let mut text = [0; INIT_TEXT_BYTES];
        let confined = async {
            let mut length = 0;
            // Bounded: by the room for its text.
            loop {
                let read = said.read_with(|mut pipe| pipe.read(&mut text[length..]));
                match read.await? {
                    0 => return Ok::<_, io::Error>(length),
                    read => length += read,
                }
            }
        };
        let late = async {
            Timer::after(INIT_WAIT).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        match future::or(confined, late).await? {
            0 => Ok(()),
            length => Err(io::Error::other(
                String::from_utf8_lossy(&text[..length]).into_owned(),
            )),
        }
    }
}

/// Makes and pins the namespaces on a thread of its own; returns the PID namespace's init, if one is asked for.
pub(super) async fn make_namespaces(
    dir: &Path,
    config: &SandboxConfig,
    exe: &Arc<OwnedFd>,
) -> io::Result<Option<UnrecordedPodInit>> {
    let (shared_pid, pid_pin) = (
        config.namespaces.pid == NamespaceMode::Pod,
        namespace_pin_path(dir, "pid"),
    );
    let wanted = wanted_namespaces(dir, config);
    let (exe, owner) = (Arc::clone(exe), dir.to_owned());
    fs::create_dir_all(dir.join("ns"))?;
    run_on_fresh_thread("sandbox", move || {
        let made = |init: Option<&ChildProgram>| {
            namespaces::create_namespaces(&wanted, init)
                .map_err(|e| add_error_context(&e.source, &e.step))
        };
        if !shared_pid {
            return made(None).map(|_| None);
        }
        let (told, tell) = io::pipe()?;
        let (said, say) = io::pipe()?;
        let pid = if wanted.user.is_some() {
            let program = init_program(&exe, &owner, told, say)?;
            let child = made(Some(&program))?;
            let child = child.ok_or_else(|| io::Error::other("no namespace is the pod's"))?;
            child.run_program()?
        } else {
            made(None)?;
            start_init(&exe, &owner, told, say)?
        };
        let begun = UnrecordedPodInit { pid, tell, said };
        crash::point("sandbox.init");
        fs::File::create(&pid_pin)?;
        let namespace = format!("/proc/{}/ns/pid", begun.pid);
        mount::bind_mount(Path::new(&namespace), &pid_pin, false)?;
        Ok(Some(begun))
    })
    .await?
}

fn wanted_namespaces(dir: &Path, config: &SandboxConfig) -> namespaces::SandboxNamespaces {
    let modes = config.namespaces;
    let network = modes.network == NamespaceMode::Pod;
    let ipc = modes.ipc == NamespaceMode::Pod;
    namespaces::SandboxNamespaces {
        net: network.then(|| namespace_pin_path(dir, "net")),
        // Follows the network: with the machine's network the machine's name (RTM-12).
        uts: network.then(|| namespace_pin_path(dir, "uts")),
        ipc: ipc.then(|| namespace_pin_path(dir, "ipc")),
        user: modes
            .users
            .map(|ids| (namespace_pin_path(dir, "user"), ids)),
        hostname: config.hostname.clone(),
        // Containers mount the queues of their IPC namespace themselves.
        mqueue: None,
        sysctls: config
            .sysctls
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    }
}

/// Describes the init of a PID namespace that belongs to the pod's user namespace.
fn init_program(
    exe: &Arc<OwnedFd>,
    owner: &Path,
    told: io::PipeReader,
    say: io::PipeWriter,
) -> io::Result<ChildProgram> {
    let words = [
        &b"picolet"[..],
        super::pod_init::COMMAND.as_bytes(),
        owner.as_os_str().as_bytes(),
    ];
    let args = words.into_iter().map(CString::new);
    Ok(ChildProgram {
        path: CString::new(format!("/proc/self/fd/{}", exe.as_raw_fd()))?,
        args: args.collect::<Result<_, _>>()?,
        stdin: told.into(),
        stdout: say.into(),
        stderr: fs::File::options().write(true).open("/dev/null")?.into(),
    })
}

/// Starts the init of a new PID namespace. It is no `sys::child`: it must outlive the agent. Returns its pid.
fn start_init(
    exe: &Arc<OwnedFd>,
    owner: &Path,
    told: io::PipeReader,
    say: io::PipeWriter,
) -> io::Result<i32> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    let child = std::process::Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()))
        .arg0("picolet")
        .arg(super::pod_init::COMMAND)
        .arg(owner)
        .env_clear()
        .current_dir("/")
        .stdin(told)
        .stdout(say)
        .stderr(Stdio::null())
        .spawn()?;
    i32::try_from(child.id()).map_err(io::Error::other)
}

/// Returns true if every namespace that the sandbox should have is pinned.
pub(super) fn has_namespaces(dir: &Path, config: &SandboxConfig) -> bool {
    let wanted = wanted_namespaces(dir, config);
    let pid = (config.namespaces.pid == NamespaceMode::Pod).then(|| namespace_pin_path(dir, "pid"));
    let user = wanted.user.map(|(pin, _)| pin);
    [wanted.net, wanted.ipc, wanted.uts, user, pid]
        .into_iter()
        .flatten()
        .all(|pin| namespaces::is_pinned(&pin))
}

/// Unpins the namespaces: with the last container they are gone.
pub(super) fn release_namespaces(dir: &Path) -> io::Result<()> {
    /// Each crash between pin and record may leave one more mount.
    const STACKED: usize = 8;
    for kind in ["net", "ipc", "uts", "pid", "user"] {
        let pin = namespace_pin_path(dir, kind);
        for _ in 0..STACKED {
            if !namespaces::is_pinned(&pin) {
                break;
            }
            mount::unmount(&pin)?;
        }
        files::remove_file(&pin)?;
    }
    Ok(())
}

/// Paths of the sandbox that its containers join and mount.
pub(super) fn sandbox_paths(dirs: &SandboxDirs, record: &SandboxRecord) -> SandboxPaths {
    let (dir, files) = (&dirs.run, &dirs.root);
    let text = |path: PathBuf| path.display().to_string();
    let modes = record.config.namespaces;
    SandboxPaths {
        network_namespace: text(namespace_pin_path(dir, "net")),
        ipc_namespace: text(namespace_pin_path(dir, "ipc")),
        uts_namespace: text(namespace_pin_path(dir, "uts")),
        user_namespace: text(namespace_pin_path(dir, "user")),
        pid_namespace: if modes.pid == NamespaceMode::Pod {
            text(namespace_pin_path(dir, "pid"))
        } else {
            String::new()
        },
        shm: if modes.ipc == NamespaceMode::Node {
            "/dev/shm".into()
        } else {
            text(dir.join("shm"))
        },
        hostname: text(files.join("hostname")),
        resolv_conf: text(files.join("resolv.conf")),
        hosts: if modes.network == NamespaceMode::Node {
            text(files.join("hosts"))
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

fn add_error_context(error: &io::Error, what: &str) -> io::Error {
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
            users: None,
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
            assert_eq!(check_sandbox_config(&config).is_ok(), ok, "{name}");
        }
    }
}
