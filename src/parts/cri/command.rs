//! `picolet cri`: answers kubeadm as a container runtime would (KADM-16). It is a process of its own, which a service manager
//! starts when a client connects: `kubeadm reset` stops the agent first and asks then.

use alloc::rc::Rc;
use core::{cell::Cell, time::Duration};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use smol::{Async, LocalExecutor, Timer, future::FutureExt as _};

use super::{facade, remains::RemainingPods};
use crate::{
    cli::{
        CliCommand, CliError, args,
        commands::{CompletionKind, MACHINE, value_flag},
        handed_sockets,
    },
    error::error_chain,
    parts::PartCommand,
    sys::socket,
};

/// Time without a client after which the process ends.
const IDLE: Duration = Duration::from_secs(10);
/// Time limit of a client: a hundred pods, two seconds each. The process holds the locks of the agent.
const MAX_CLIENT: Duration = Duration::from_secs(5 * 60);
/// Pause after a client that could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);
/// Most clients at a time.
const MAX_CLIENTS: usize = 4;

/// The command that answers kubeadm.
pub(super) static COMMANDS: [PartCommand; 1] = [PartCommand {
    command: CliCommand {
        name: "cri",
        args: "",
        group: MACHINE,
        help: "Answer kubeadm as a container runtime would; picolet-cri.socket starts it",
        flags: &[value_flag(
            "listen",
            None,
            "PATH",
            "socket to listen at (default: the one that the service manager passes)",
        )],
        agent_flags: true,
        takes: CompletionKind::Nothing,
    },
    run: |command, words| run_cri_command(command, words).map(|()| ExitCode::SUCCESS),
}];

fn run_cri_command(command: &'static CliCommand, words: Vec<OsString>) -> Result<(), CliError> {
    let (own, agent) = args::split_flags(command, words)?;
    let path = own
        .into_iter()
        .map(|(_, value)| PathBuf::from(value))
        .next_back();
    let remains = RemainingPods::new(agent).map_err(|e| CliError::new(error_chain(&e)))?;
    let listener = match (path, handed_sockets()) {
        (Some(path), _) => listen_for_root(&path)
            .map_err(|e| CliError::new(format!("cannot listen at {}: {e}", path.display())))?,
        (None, 1) => socket::take_handed_listener()
            .map_err(|e| CliError::new(format!("the socket of the service manager: {e}")))?,
        (None, _) => {
            return Err(CliError::new(
                "no socket to listen at: picolet-cri.socket passes one; without it, use --listen PATH",
            ));
        }
    };
    let served = serve_until_idle(listener, &remains);
    smol::block_on(served).map_err(|e| CliError::new(format!("cannot accept: {e}")))
}

/// Makes a socket for root alone.
fn listen_for_root(path: &Path) -> io::Result<UnixListener> {
    // Removes the socket of an earlier process, but no other file, for the path may be a mistake.
    if fs::symlink_metadata(path).is_ok_and(|is| is.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until no client has come for [`IDLE`].
async fn serve_until_idle(listener: UnixListener, remains: &RemainingPods) -> io::Result<()> {
    let listener = Async::new(listener)?;
    let clients: Rc<Cell<usize>> = Rc::default();
    let executor = LocalExecutor::new();
    let accept = async {
        // Bounded: each turn waits for a client, or `IDLE`.
        loop {
            let come = async { Some(listener.accept().await) };
            let idle = async {
                Timer::after(IDLE).await;
                None
            };
            match come.or(idle).await {
                None if clients.get() == 0 => return Ok(()),
                None => {}
                Some(Ok(_)) if clients.get() >= MAX_CLIENTS => {}
                Some(Err(e)) => {
                    log::warn!("cannot accept a client: {e}");
                    Timer::after(PAUSE).await;
                }
                Some(Ok((stream, _))) => {
                    clients.set(clients.get() + 1);
                    let (clients, pods) =
                        (Rc::clone(&clients), Rc::new(remains.for_another_client()));
                    let served = async move {
                        let late = async {
                            Timer::after(MAX_CLIENT).await;
                        };
                        let served = async {
                            facade::serve_kubeadm(stream, pods).await;
                        };
                        served.or(late).await;
                        clients.set(clients.get() - 1);
                    };
                    executor.spawn(served).detach();
                }
            }
        }
    };
    executor.run(accept).await
}
