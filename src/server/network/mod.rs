//! The node's HTTPS server: what the control plane, metrics collectors and `kubectl` reach (SRV).
//!
//! | file | what it is |
//! |---|---|
//! | `access` | who asks, and whether he may |
//! | `connections` | how many there may be, and which one makes room |
//! | `routes` | paths of a kubelet |
//! | `logs` | `containerLogs`, with a kubelet's parameters and texts |
//!
//! ```text
//! accept ─▶ handshake ─▶ idle ─▶ head ─▶ who? ─▶ may he? ─▶ handler ─▶ answer ─┐
//!              │ 10 s     ▲ │ 90 s │ 10 s  401       403                        │
//!              ▼          │ ▼      ▼                                            │
//!            closed       └─┴──────┴────────────────────────────────────────────┘
//! ```
//!
//! Everything runs on the agent's own thread; nothing is served before both questions are answered, of the very path that is
//! routed: a path that could be read in two ways is no page. A connection at rest costs about 12 KiB, most of it the
//! session's.

mod access;
mod connections;
mod logs;
mod routes;

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
};

use async_io::{Async, Timer};
use futures_rustls::TlsAcceptor;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ServerConfig, pki_types::CertificateDer};
use smol::{
    LocalExecutor,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

pub use access::{
    Access, AccessSettings, Authorization, Question, ReviewError, Reviewed, Reviewer,
};
use connections::{Place, Places};

use super::{
    backend::Backend,
    chunked::Chunked,
    connection::{Answer, Connection},
    http::{self, Origin, Refusal, Request},
};

/// Connections at once. A further one takes the place of one at rest, or is closed.
pub const MAX_CONNECTIONS: usize = 256;
/// A handshake ends within this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head arrives within this time, and so does a body.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection at rest is closed after so long (SRV-01).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// So long a client may take nothing of an answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for one that reads a stream, and may have stopped to read what it got (SRV-01).
pub const STREAM_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Bytes of a request's body. No page takes one; what comes is read and forgotten.
const MAX_BODY_BYTES: u64 = 64 * 1024;
/// Plain text that a session takes before it has to be sent: one record.
const SESSION_BUFFER_BYTES: usize = 16 * 1024;
/// Pause after a port that cannot be had, or a connection that cannot be taken (SRV-02).
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// A peer that is gone without a word is found out by then.
const KEEP_ALIVE_S: u32 = 15;

/// Where and what is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `address` and `port`.
    pub listen: SocketAddr,
    /// `enableDebuggingHandlers`
    pub debugging: bool,
}

/// The server. See the module.
pub struct Network {
    settings: Settings,
    tls: Arc<ServerConfig>,
    access: Rc<Access>,
    backend: Rc<dyn Backend>,
    places: Rc<Places>,
}

impl Network {
    /// A server that does not listen yet.
    pub fn new(
        settings: Settings,
        tls: Arc<ServerConfig>,
        access: Rc<Access>,
        backend: Rc<dyn Backend>,
    ) -> Self {
        Self {
            settings,
            tls,
            access,
            backend,
            places: Rc::new(Places::new(MAX_CONNECTIONS)),
        }
    }

    /// Listens and serves until the executor drops it. A port that is taken is tried again and again.
    pub async fn serve(self: Rc<Self>, executor: Rc<LocalExecutor<'static>>) {
        let listener = listen(self.settings.listen, "the server of this node").await;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer, &executor),
                Err(e) => {
                    // Out of descriptors: what is being served must end first.
                    log::warn!("cannot accept a connection: {e}");
                    Timer::after(RETRY_PAUSE).await;
                }
            }
        }
    }

    fn admit(
        self: &Rc<Self>,
        stream: Async<TcpStream>,
        peer: SocketAddr,
        executor: &LocalExecutor<'static>,
    ) {
        let Some(place) = self.places.take() else {
            log::debug!("{peer}: no place for another connection");
            return;
        };
        let this = Rc::clone(self);
        let held = place.clone();
        let task = executor.spawn(async move {
            if let Err(e) = this.converse(stream, &held).await {
                log::debug!("{peer}: {e}");
            }
            held.leave();
        });
        place.settle(task);
    }

    /// One connection, from its handshake to its end.
    async fn converse(&self, stream: Async<TcpStream>, place: &Place) -> io::Result<()> {
        // Small answers are not to wait for each other, and peers that vanish are to be noticed. Both are wishes.
        let _ = stream.get_ref().set_nodelay(true);
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_S);
        let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_S);
        let (mut connection, chain) = {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
            let handshake = acceptor.accept_with(stream, |session| {
                session.set_buffer_limit(Some(SESSION_BUFFER_BYTES));
            });
            let stream = within(HANDSHAKE_TIMEOUT, Box::pin(handshake)).await?;
            let chain = stream.get_ref().1.peer_certificates();
            let chain: Vec<CertificateDer<'static>> = chain.unwrap_or_default().to_vec();
            let socket = stream.get_ref().0.as_raw_fd();
            (Connection::new(stream).of_socket(socket), chain)
        };
        loop {
            place.rest();
            connection.set_patience(Some(WRITE_TIMEOUT));
            if !within(IDLE_TIMEOUT, connection.has_more()).await? {
                break;
            }
            place.work();
            Box::pin(self.exchange(&mut connection, &chain)).await?;
            if !connection.answer.keep {
                break;
            }
            place.prove();
        }
        within(HEAD_TIMEOUT, connection.close()).await
    }

    /// One request and its answer.
    async fn exchange(
        &self,
        connection: &mut Connection,
        chain: &[CertificateDer<'_>],
    ) -> io::Result<()> {
        connection.answer = Answer::default();
        let mut request = match within(HEAD_TIMEOUT, http::read_request(connection)).await? {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(refusal) => return http::refuse(connection, &refusal).await,
        };
        let head_only = request.method == "HEAD";
        connection.answer.head_only = head_only;
        if request.content_length > MAX_BODY_BYTES {
            let refusal = Refusal::new(413, format!("body is over {MAX_BODY_BYTES} bytes"));
            return http::refuse(connection, &refusal).await;
        }
        if request.is_chunked {
            let body = within(HEAD_TIMEOUT, forget_chunks(connection)).await?;
            if let Err(refusal) = body {
                return http::refuse(connection, &refusal).await;
            }
        } else {
            let length = request.content_length;
            within(HEAD_TIMEOUT, forget_body(connection, length)).await?;
        }
        connection.answer = Answer {
            keep: request.keeps_connection(),
            chunked: request.is_1_1,
            head_only,
        };
        let served = match self.access.admit(&mut request, chain).await {
            Ok(identity) => {
                request.origin = Origin::Network(identity);
                self.route(connection, &request).await?
            }
            Err(refusal) => Err(refusal),
        };
        match served {
            Ok(()) => Ok(()),
            Err(refusal) => http::refuse(connection, &refusal).await,
        }
    }

    async fn route(&self, connection: &mut Connection, request: &Request) -> super::Outcome {
        let backend = self.backend.as_ref();
        routes::route(backend, connection, request, self.settings.debugging).await
    }
}

/// Reads and drops the body of a request.
async fn forget_body(connection: &mut Connection, mut left: u64) -> io::Result<()> {
    let mut step = [0; 256];
    while left > 0 {
        let most = usize::try_from(left).map_or(step.len(), |left| left.min(step.len()));
        let n = connection.read(&mut step[..most]).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left = left.saturating_sub(u64::try_from(n).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// The same with one whose length is not known. What came behind it stays in the connection.
async fn forget_chunks(connection: &mut Connection) -> io::Result<Result<(), Refusal>> {
    let mut chunks = Chunked::new(MAX_BODY_BYTES);
    let mut step = [0; 256];
    loop {
        let n = connection.read(&mut step).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match chunks.feed(&step[..n]) {
            Ok(Some(end)) => {
                connection.unread(&step[end..n]);
                return Ok(Ok(()));
            }
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Fails what takes longer than `limit`.
async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = async {
        Timer::after(limit).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    smol::future::or(work, late).await
}

/// Binds `address`, as soon as it can be had.
pub(super) async fn listen(address: SocketAddr, whose: &str) -> Async<TcpListener> {
    let mut told = false;
    loop {
        match Async::<TcpListener>::bind(address) {
            Ok(listener) => {
                let bound = listener.get_ref().local_addr().unwrap_or(address);
                log::info!("{whose} listens at {bound}");
                return listener;
            }
            Err(e) if !told => {
                log::error!("{whose} cannot listen at {address}, is tried again: {e}");
                told = true;
            }
            Err(e) => log::debug!("{whose} cannot listen at {address}: {e}"),
        }
        Timer::after(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
