//! Sockets and threads: one that accepts, one for each connection.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConnection, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, StreamOwned,
};

use crate::core::Core;
use crate::http::{Incoming, Reader};
use crate::{lock, serve, upgrade};

/// Connections at once; further ones are closed when they come.
const MAX_CONNECTIONS: usize = 2048;

/// How often the accepting thread looks whether it should go on.
const ACCEPT_POLL_MS: u16 = 20;

/// A connection without a request is closed after this, as upstream's is.
const IDLE: Duration = Duration::from_secs(90);

/// Stack of a connection's thread.
const STACK: usize = 1024 * 1024;

/// A TCP stream that counts.
pub(crate) struct Counted {
    tcp: TcpStream,
    core: Arc<Core>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.tcp.read(buffer)?;
        let counted = u64::try_from(n).unwrap_or(u64::MAX);
        let sum = &self.core.audit.bytes_in;
        sum.fetch_add(counted, Ordering::Relaxed);
        Ok(n)
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.tcp.write(buffer)?;
        let counted = u64::try_from(n).unwrap_or(u64::MAX);
        let sum = &self.core.audit.bytes_out;
        sum.fetch_add(counted, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// Asks for a certificate and lets any handshake pass: a certificate that is not good is a 401, as upstream has it.
#[derive(Debug)]
struct AnyClient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// What connections share beside the cluster.
pub(crate) struct Shared {
    pub(crate) core: Arc<Core>,
    tls: Arc<ServerConfig>,
    clients: Arc<dyn ClientCertVerifier>,
    open: Mutex<BTreeMap<u64, TcpStream>>,
    count: AtomicUsize,
    /// Number of the next connection.
    next: AtomicU64,
}

impl Shared {
    /// Whether a client certificate was issued by the cluster and is valid now.
    pub(crate) fn verified(&self, chain: &[CertificateDer<'_>]) -> bool {
        let now = u64::try_from(self.core.clock.now_s()).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        chain
            .split_first()
            .is_some_and(|(first, rest)| self.clients.verify_client_cert(first, rest, now).is_ok())
    }

    /// Ends every open connection.
    pub(crate) fn break_connections(&self) {
        for tcp in lock(&self.open).values() {
            let _ = tcp.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A running listener.
pub(crate) struct Listener {
    pub(crate) shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Listener {
    pub(crate) fn start(core: Arc<Core>) -> io::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(core.authority.der.clone())
            .map_err(io::Error::other)?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(io::Error::other)?;
        let (certificate, key) = core
            .of_servers()
            .server(core.clock.now_s(), &core.config.hosts)
            .map_err(io::Error::other)?;
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(AnyClient(Arc::clone(&clients))))
            .with_single_cert(vec![certificate], key)
            .map_err(io::Error::other)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind(core.config.listen)?;
        let address = listener.local_addr()?;
        core.port.store(address.port(), Ordering::Relaxed);
        let shared = Arc::new(Shared {
            core,
            tls: Arc::new(tls),
            clients,
            open: Mutex::new(BTreeMap::new()),
            count: AtomicUsize::new(0),
            next: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("accept".to_owned())
            .spawn(move || accept(&of_thread, Some(listener), address))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Ends all threads of connections and of the listener.
    pub(crate) fn stop(&mut self) {
        self.shared.core.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.break_connections();
    }
}

fn accept(shared: &Arc<Shared>, mut listener: Option<TcpListener>, address: SocketAddr) {
    let core = &shared.core;
    while !core.stopped() {
        if core.faults.refusing() {
            listener = None;
            core.faults.set_listening(false);
            if !core.faults.wait_until_accepting() {
                return;
            }
        }
        if listener.is_none() {
            // Taken by another for a moment: tried again until it is free.
            listener = TcpListener::bind(address).ok();
        }
        let Some(open) = &listener else {
            core.faults
                .pause(Duration::from_millis(u64::from(ACCEPT_POLL_MS)));
            continue;
        };
        core.faults.set_listening(true);
        let mut fds = [PollFd::new(open.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut fds, PollTimeout::from(ACCEPT_POLL_MS)), Ok(1)) {
            continue;
        }
        let Ok((tcp, _)) = open.accept() else {
            continue;
        };
        if shared.count.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            shared.count.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let of_thread = Arc::clone(shared);
        let spawned = thread::Builder::new()
            .name("connection".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                // What goes wrong with a connection is the client's to notice.
                let _ = connection(&of_thread, tcp);
                of_thread.count.fetch_sub(1, Ordering::Relaxed);
            });
        if spawned.is_err() {
            shared.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One connection, as the code that answers requests sees it.
pub(crate) struct Wire {
    stream: StreamOwned<ServerConnection, Counted>,
}

impl Wire {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }

    /// A read that waits longer gives `WouldBlock`.
    pub(crate) fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        self.stream.sock.tcp.set_read_timeout(Some(time))
    }

    /// The connection ends with a reset instead of an orderly close.
    pub(crate) fn reset(&mut self) {
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let _ = nix::sys::socket::setsockopt(
            &self.stream.sock.tcp,
            nix::sys::socket::sockopt::Linger,
            &linger,
        );
    }

    /// Whether the client has closed, or said anything while it should listen.
    pub(crate) fn disturbed(&self) -> bool {
        let mut byte = [0];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        !matches!(
            recv(self.stream.sock.tcp.as_raw_fd(), &mut byte, flags),
            Err(nix::errno::Errno::EAGAIN)
        )
    }

    /// Joins it with a connection to a node, until one of them ends.
    pub(crate) fn join(
        &mut self,
        node: &mut StreamOwned<ClientConnection, TcpStream>,
        stopped: impl Fn() -> bool,
    ) -> io::Result<()> {
        let own = self.stream.sock.tcp.try_clone()?;
        let its = node.sock.try_clone()?;
        let client = upgrade::End {
            session: &mut self.stream.conn,
            socket: &mut self.stream.sock,
        };
        let node = upgrade::End {
            session: &mut node.conn,
            socket: &mut node.sock,
        };
        upgrade::join(client, node, (&own, &its), stopped)
    }

    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.stream.conn.peer_certificates()
    }
}

fn connection(shared: &Arc<Shared>, tcp: TcpStream) -> io::Result<()> {
    let core = &shared.core;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(IDLE))?;
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    lock(&shared.open).insert(number, tcp.try_clone()?);
    let mut sock = Counted {
        tcp,
        core: Arc::clone(core),
    };
    let outcome = (|| {
        let mut conn = ServerConnection::new(Arc::clone(&shared.tls)).map_err(io::Error::other)?;
        while conn.is_handshaking() {
            conn.complete_io(&mut sock)?;
        }
        let mut wire = Wire {
            stream: StreamOwned::new(conn, sock),
        };
        let mut reader = Reader::new();
        while !core.stopped() {
            match reader.next(&mut wire.stream)? {
                Incoming::Closed => break,
                Incoming::Bad(code) => {
                    wire.send(&serve::unreadable(code))?;
                    break;
                }
                Incoming::Request(head, body) => {
                    if !serve::request(shared, &mut wire, &head, &body)? {
                        break;
                    }
                }
            }
        }
        wire.stream.conn.send_close_notify();
        wire.stream.flush()
    })();
    lock(&shared.open).remove(&number);
    outcome
}
