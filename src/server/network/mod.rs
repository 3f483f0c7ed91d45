//! The node's HTTPS server, for the control plane, metrics collectors and `kubectl` (SRV).
//!
//! | file | what it is |
//! |---|---|
//! | `access` | authentication and authorization of clients |
//! | `connections` | places for connections, and the one that makes room |
//! | `routes` | paths of a kubelet |
//! | `logs` | `containerLogs`, with a kubelet's parameters and texts |
//! | `node_logs` | queries for the journal of the machine and files below `/var/log` |
//!
//! ```text
//! accept ─▶ handshake ─▶ idle ─▶ head ─▶ who? ─▶ may he? ─▶ handler ─▶ answer ─┐
//!              │ 10 s     ▲ │ 90 s │ 10 s  401       403                        │
//!              ▼          │ ▼      ▼                                            │
//!            closed       └─┴──────┴────────────────────────────────────────────┘
//! ```
//!
//! Everything but the search among a client's certificates runs on the agent's own thread. A request is served only
//! after both questions are answered, for the very path that is routed: a path that could be read in two ways is no
//! page. A connection at rest costs about 12 KiB, most of it the session's.
//!
//! A client that always has something to say is not served without end: after each exchange, and each piece that is
//! read past, everybody else has a turn. A client that proves nothing soon has to shake hands again, which costs it as
//! much.

mod access;
mod connections;
mod logs;
mod node_logs;
mod routes;

use alloc::{rc::Rc, sync::Arc};
use core::{cell::Cell, fmt, time::Duration};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
};

use async_io::{Async, Timer};
use futures_rustls::TlsAcceptor;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::ServerConfig;
use smol::{
    LocalExecutor,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

use access::HandshakeCertificates;
pub use access::{
    AccessControl, AccessQuestion, AccessSettings, AuthorizationMode, ReviewError, ReviewReply,
    Reviewer,
};
use connections::{ConnectionPlace, ConnectionPlaces};
use node_logs::NodeLogServer;
pub use node_logs::NodeLogSettings;

use super::{
    backend::ServerBackend,
    chunked::Chunked,
    connection::{AnswerForm, Duplex, StreamConnection, StreamTransport},
    http::{self, HttpRequest, Refusal, RequestOrigin},
    pipe::PipeServerEnd,
};
use crate::{api::link::LinkClass, net::meter::CountedConnection, sys::turn};

/// Connections at once. A further one takes the place of one at rest, or is closed.
pub const MAX_CONNECTIONS: usize = 256;
/// A handshake ends within this time.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A request's head arrives within this time, and so does a body.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection at rest is closed after so long (SRV-01).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time for which a client may take nothing of an answer.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a client of a stream may take nothing of it: a person may have stopped to read (SRV-01).
pub const STREAM_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Number of refused requests in a row after which their connection ends. It ends with the first that gets a 401.
pub const MAX_UNPROVEN: u32 = 8;
/// Most bytes of a request's body. No page takes a body; its bytes are read and forgotten.
const MAX_BODY_BYTES: u64 = 64 * 1024;
/// Bytes of it that are read past in one turn.
const FORGOTTEN_BYTES: usize = 1024;
/// Plain text that a session takes before it has to be sent: one record.
const SESSION_BUFFER_BYTES: usize = 16 * 1024;
/// Pause after a port that cannot be had, or a connection that cannot be taken (SRV-02).
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// A peer that is gone without a word is found out by then.
const KEEP_ALIVE_S: u32 = 15;

/// Maker of a connection, for people.
#[derive(Clone, Copy, Debug)]
enum ConnectionCaller {
    Peer(SocketAddr),
    /// Name of the source of connections.
    Source(&'static str),
}

impl fmt::Display for ConnectionCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer(address) => address.fmt(f),
            Self::Source(name) => f.write_str(name),
        }
    }
}

/// Address and pages of the server.
#[derive(Clone, Debug)]
pub struct NetworkServerSettings {
    /// `address` and `port`.
    pub listen: SocketAddr,
    /// `enableDebuggingHandlers`
    pub debugging: bool,
    /// Places of the logs of the machine; `None`: they cannot be queried.
    pub node_logs: Option<NodeLogSettings>,
}

/// The server. See the module.
pub struct NetworkServer {
    settings: NetworkServerSettings,
    tls: Arc<ServerConfig>,
    access: Rc<AccessControl>,
    backend: Rc<dyn ServerBackend>,
    places: Rc<ConnectionPlaces>,
    node_logs: Option<NodeLogServer>,
}

impl NetworkServer {
    /// A server that does not listen yet.
    pub fn new(
        settings: NetworkServerSettings,
        tls: Arc<ServerConfig>,
        access: Rc<AccessControl>,
        backend: Rc<dyn ServerBackend>,
    ) -> Self {
        Self {
            node_logs: settings.node_logs.clone().map(NodeLogServer::new),
            settings,
            tls,
            access,
            backend,
            places: Rc::new(ConnectionPlaces::new(MAX_CONNECTIONS)),
        }
    }

    /// Listens and serves until the executor drops it. A port that is taken is tried again and again.
    pub async fn serve_network(self: Rc<Self>, executor: Rc<LocalExecutor<'static>>) {
        let listener = listen_when_free(self.settings.listen, "the server of this node").await;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    self.accept_socket(stream, peer, &executor);
                    // There may always be another.
                    turn::yield_to_others().await;
                }
                Err(e) => {
                    // Out of descriptors: a connection that is being served must end first.
                    log::warn!("cannot accept a connection: {e}");
                    Timer::after(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Takes a connection that was made from outside.
    fn accept_socket(
        self: &Rc<Self>,
        stream: Async<TcpStream>,
        peer: SocketAddr,
        executor: &LocalExecutor<'static>,
    ) {
        // Small answers are not to wait for each other, and peers that vanish are to be noticed. Both are wishes.
        let _ = stream.get_ref().set_nodelay(true);
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_S);
        let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_S);
        let class = Rc::new(Cell::new(LinkClass::Api));
        let socket = stream.as_raw_fd();
        let counted = CountedConnection::new(stream, Rc::clone(&class));
        let below = StreamTransport::Counted {
            socket,
            class,
            leaves: counted.leaves_machine(),
        };
        self.admit_connection(
            Box::new(counted),
            below,
            ConnectionCaller::Peer(peer),
            executor,
        );
    }

    /// Takes one that a source of connections has brought. It is one from outside in all that follows: it gives no
    /// right.
    pub fn accept_pipe(
        self: &Rc<Self>,
        stream: PipeServerEnd,
        source: &'static str,
        executor: &LocalExecutor<'static>,
    ) {
        let below = StreamTransport::Pipe(stream.second_handle());
        self.admit_connection(
            Box::new(stream),
            below,
            ConnectionCaller::Source(source),
            executor,
        );
    }

    fn admit_connection(
        self: &Rc<Self>,
        stream: Box<dyn Duplex>,
        below: StreamTransport,
        caller: ConnectionCaller,
        executor: &LocalExecutor<'static>,
    ) {
        let Some(place) = self.places.take_place() else {
            log::debug!("{caller}: no place for another connection");
            return;
        };
        let this = Rc::clone(self);
        let held = place.clone();
        let task = executor.spawn(async move {
            if let Err(e) = this.serve_connection(stream, below, &held).await {
                log::debug!("{caller}: {e}");
            }
            held.release_place();
        });
        place.set_task(task);
    }

    /// Serves a connection, from its handshake to its end.
    async fn serve_connection(
        &self,
        stream: Box<dyn Duplex>,
        below: StreamTransport,
        place: &ConnectionPlace,
    ) -> io::Result<()> {
        let (connection, papers) = {
            let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
            let handshake = acceptor.accept_with(stream, |session| {
                session.set_buffer_limit(Some(SESSION_BUFFER_BYTES));
            });
            let stream = fail_after(HANDSHAKE_TIMEOUT, Box::pin(handshake)).await?;
            let papers = HandshakeCertificates::new(
                stream.get_ref().1.peer_certificates().unwrap_or_default(),
            );
            (StreamConnection::new(stream).with_transport(below), papers)
        };
        self.serve_requests(connection, papers, place).await
    }

    /// Serves all requests of a connection, until it ends.
    async fn serve_requests(
        &self,
        mut connection: StreamConnection,
        mut papers: HandshakeCertificates,
        place: &ConnectionPlace,
    ) -> io::Result<()> {
        let mut unproven = 0;
        let mut proven = false;
        loop {
            place.mark_resting();
            connection.set_write_timeout(Some(WRITE_TIMEOUT));
            if !fail_after(IDLE_TIMEOUT, connection.wait_for_input()).await? {
                break;
            }
            if proven {
                place.mark_working();
            }
            let is_last = unproven + 1 >= MAX_UNPROVEN;
            let exchange = self.answer_request(&mut connection, &mut papers, place, is_last);
            let admitted = Box::pin(exchange).await?;
            if !connection.answer.keep {
                break;
            }
            if admitted {
                proven = true;
                unproven = 0;
                place.mark_proven();
            } else {
                unproven += 1;
            }
            // All of it may have been there at once, and the next as well.
            turn::yield_to_others().await;
        }
        fail_after(HEAD_TIMEOUT, connection.close()).await
    }

    /// Reads a request and answers it; returns true if the client was allowed it. If not, `is_last` ends the
    /// connection.
    async fn answer_request(
        &self,
        connection: &mut StreamConnection,
        papers: &mut HandshakeCertificates,
        place: &ConnectionPlace,
        is_last: bool,
    ) -> io::Result<bool> {
        connection.answer = AnswerForm::default();
        let mut request = match fail_after(HEAD_TIMEOUT, http::read_request(connection)).await? {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(false),
            Err(refusal) => return respond_refused(connection, &refusal).await,
        };
        let head_only = request.method == "HEAD";
        connection.answer.head_only = head_only;
        if request.content_length > MAX_BODY_BYTES {
            let refusal = Refusal::new(413, format!("body is over {MAX_BODY_BYTES} bytes"));
            return respond_refused(connection, &refusal).await;
        }
        if request.is_chunked {
            let body = fail_after(HEAD_TIMEOUT, discard_chunked_body(connection)).await?;
            if let Err(refusal) = body {
                return respond_refused(connection, &refusal).await;
            }
        } else {
            let length = request.content_length;
            fail_after(HEAD_TIMEOUT, discard_body(connection, length)).await?;
        }
        connection.answer = AnswerForm {
            keep: request.keeps_connection(),
            chunked: request.is_1_1,
            head_only,
        };
        match self.access.admit_request(&mut request, papers).await {
            Ok(identity) => request.origin = RequestOrigin::Network(identity),
            Err(refusal) => {
                let ends = is_last || matches!(refusal.status, 401 | 503);
                connection.answer.keep &= !ends;
                return respond_refused(connection, &refusal).await;
            }
        }
        // Until now the client was unknown, and its connection could be closed for another.
        place.mark_working();
        match self.route_request(connection, &request).await? {
            Ok(()) => {}
            Err(refusal) => http::send_refusal(connection, &refusal).await?,
        }
        Ok(true)
    }

    async fn route_request(
        &self,
        connection: &mut StreamConnection,
        request: &HttpRequest,
    ) -> super::ServeOutcome {
        let backend = self.backend.as_ref();
        connection.set_link_class(routes::request_link_class(request));
        let pages = routes::OptionalPages {
            debugging: self.settings.debugging,
            node_logs: self.node_logs.as_ref(),
        };
        routes::route_admitted_request(backend, connection, request, pages).await
    }
}

/// Answers a request that was not admitted.
async fn respond_refused(connection: &mut StreamConnection, refusal: &Refusal) -> io::Result<bool> {
    http::send_refusal(connection, refusal).await?;
    Ok(false)
}

/// Reads and drops the body of a request.
async fn discard_body(connection: &mut StreamConnection, mut left: u64) -> io::Result<()> {
    let mut step = [0; FORGOTTEN_BYTES];
    while left > 0 {
        let most = usize::try_from(left).map_or(step.len(), |left| left.min(step.len()));
        let n = connection.read(&mut step[..most]).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left = left.saturating_sub(u64::try_from(n).unwrap_or(u64::MAX));
        turn::yield_to_others().await;
    }
    Ok(())
}

/// Reads and drops a body that comes in chunks. Bytes behind it stay in the connection.
async fn discard_chunked_body(
    connection: &mut StreamConnection,
) -> io::Result<Result<(), Refusal>> {
    let mut chunks = Chunked::new(MAX_BODY_BYTES);
    let mut step = [0; FORGOTTEN_BYTES];
    loop {
        let n = connection.read(&mut step).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match chunks.feed_bytes(&step[..n]) {
            Ok(Some(end)) => {
                connection.push_back_bytes(&step[end..n]);
                return Ok(Ok(()));
            }
            Ok(None) => turn::yield_to_others().await,
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Fails what takes longer than `limit`.
async fn fail_after<T>(
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = async {
        Timer::after(limit).await;
        Err(io::ErrorKind::TimedOut.into())
    };
    smol::future::or(work, late).await
}

/// Binds `address`, as soon as it can be had.
pub(super) async fn listen_when_free(address: SocketAddr, whose: &str) -> Async<TcpListener> {
    let mut told = false;
    // Bounded: each round waits a while.
    loop {
        match Async::<TcpListener>::bind(address) {
            Ok(listener) => {
                let bound = listener.get_ref().local_addr().unwrap_or(address);
                log::info!("{whose} listens at {bound}");
                return listener;
            }
            Err(e) if !told => {
                log::error!("{whose} cannot listen at {address}, will try again: {e}");
                told = true;
            }
            Err(e) => log::debug!("{whose} cannot listen at {address}: {e}"),
        }
        Timer::after(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
