//! The agent as a server of HTTP.
//!
//! - Over the local unix socket ([`routes`]): only root may connect. The socket is 0600 and the peer's credentials are checked.
//! - Over the network ([`network`]): the pages of a kubelet, for clients whom the apiserver vouches for.
//! - [`pipe`]: a connection to the same server from a source within this process, without a socket.
//! - [`healthz`]: tells anybody on this machine that there is a process.

mod allowance;
pub mod backend;
mod chunked;
mod connection;
mod figures;
pub mod healthz;
pub mod http;
pub mod log_reader;
mod logs;
pub mod network;
pub mod pipe;
mod pods;
pub mod routes;
pub(crate) mod streaming;
#[cfg(test)]
mod testing;

use std::{
    cell::Cell,
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd},
        unix::{fs::PermissionsExt as _, net::UnixListener},
    },
    path::Path,
    rc::Rc,
};

use async_io::Async;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use backend::ServerBackend;
use connection::StreamConnection;

/// End of serving: the connection broke, the request is refused and not answered yet, or the answer is complete.
type ServeOutcome = io::Result<Result<(), http::Refusal>>;

/// Connections served at once; a further one is answered 503.
pub const MAX_CONNECTIONS: usize = 32;

/// The listening socket.
#[derive(Debug)]
pub struct LocalListener {
    socket: Async<UnixListener>,
}

impl LocalListener {
    /// Binds `path`, replacing the socket of an agent that is gone. The caller holds the lock that makes it the only
    /// agent of this run dir.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            socket: Async::new(socket)?,
        })
    }

    /// Accepts and serves until the executor drops it.
    pub async fn serve_local(
        self,
        backend: Rc<dyn ServerBackend>,
        executor: Rc<smol::LocalExecutor<'static>>,
    ) {
        let open = Rc::new(Cell::new(0));
        loop {
            let connection = match self.socket.accept().await {
                Ok((connection, _)) => connection,
                Err(e) => {
                    // Out of descriptors: a connection that is being served must end first.
                    log::warn!("local socket: cannot accept: {e}");
                    async_io::Timer::after(core::time::Duration::from_secs(1)).await;
                    continue;
                }
            };
            if !is_trusted_peer(connection.as_fd()) {
                continue;
            }
            let socket = connection.as_raw_fd();
            let mut connection = StreamConnection::new(connection).with_socket(socket);
            let guard = ConnectionGuard::count_open(&open);
            let backend = Rc::clone(&backend);
            executor
                .spawn(async move {
                    let served = if guard.0.get() > MAX_CONNECTIONS {
                        let busy = http::Refusal::new(
                            503,
                            format!("more than {MAX_CONNECTIONS} connections"),
                        );
                        http::send_refusal(&mut connection, &busy).await
                    } else {
                        routes::serve_connection(backend.as_ref(), connection).await
                    };
                    if let Err(e) = served {
                        log::debug!("local socket: {e}");
                    }
                    drop(guard);
                })
                .detach();
        }
    }
}

/// Counts open connections.
struct ConnectionGuard(Rc<Cell<usize>>);

impl ConnectionGuard {
    fn count_open(open: &Rc<Cell<usize>>) -> Self {
        open.set(open.get() + 1);
        Self(Rc::clone(open))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Returns true if the peer is root, or the user that this process runs as.
pub(crate) fn is_trusted_peer(connection: BorrowedFd<'_>) -> bool {
    getsockopt(&connection, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw())
}
