//! Connections to the ports of a pod, made from inside its network.
//!
//! A socket belongs to the network namespace in which it was made, whichever thread connects it: only its making needs
//! a thread that ends afterwards. The loop's thread never leaves the host's namespace.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use async_io::{Async, Timer};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, getsockopt, socket, sockopt,
};
use smol::future;

use super::{Runc, failed_at_step, not_found, sandbox};
use crate::api::{SandboxId, cri::NamespaceMode, cri::SandboxState};
use crate::runtime::RuntimeError;
use crate::sys::{lane::run_on_fresh_thread, namespaces};

/// Time limit for a connection within a machine; one that is not accepted for want of room is tried for so long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sockets that are not connected yet; the second is missing where the kernel has no IPv6.
type UnconnectedSockets = (OwnedFd, Option<OwnedFd>);

impl Runc {
    pub(super) async fn connect_to_port(
        &self,
        id: &SandboxId,
        port: u16,
    ) -> Result<OwnedFd, RuntimeError> {
        let network = {
            let table = self.table.borrow();
            let sandbox = table.sandboxes.get(id);
            let ready = sandbox.filter(|s| s.status.state == SandboxState::Ready);
            let ready = ready.ok_or_else(|| not_found("ready sandbox", id))?;
            ready.status.namespaces.network
        };
        let step = "make a socket in the pod's network";
        let sockets = match network {
            NamespaceMode::Pod => {
                let pin = sandbox::namespace_pin_path(&self.sandbox_dir(id), "net");
                let made = run_on_fresh_thread("forward", move || {
                    namespaces::join_namespace(&pin)?;
                    make_sockets()
                });
                made.await.map_err(failed_at_step(step))?
            }
            _ => make_sockets(),
        };
        let (v4, v6) = sockets.map_err(failed_at_step(step))?;
        let first = match connect_socket(v4, Ipv4Addr::LOCALHOST.into(), port).await {
            Ok(connected) => return Ok(connected),
            Err(e) => e,
        };
        let Some(v6) = v6 else {
            return Err(RuntimeError::Failed(format!("127.0.0.1:{port}: {first}")));
        };
        let second = connect_socket(v6, Ipv6Addr::LOCALHOST.into(), port).await;
        second.map_err(|second| {
            RuntimeError::Failed(format!("127.0.0.1:{port}: {first}; [::1]:{port}: {second}"))
        })
    }
}

fn make_sockets() -> io::Result<UnconnectedSockets> {
    let make = |family| {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(family, SockType::Stream, flags, None)
    };
    Ok((make(AddressFamily::Inet)?, make(AddressFamily::Inet6).ok()))
}

async fn connect_socket(socket: OwnedFd, ip: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let address = SockaddrStorage::from(SocketAddr::new(ip, port));
    match connect(socket.as_raw_fd(), &address) {
        Ok(()) => return Ok(socket),
        Err(nix::Error::EINPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    let socket = Async::new(socket)?;
    let late = async {
        Timer::after(CONNECT_TIMEOUT).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    future::or(socket.writable(), late).await?;
    match getsockopt(&socket, sockopt::SocketError)? {
        0 => socket.into_inner(),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
