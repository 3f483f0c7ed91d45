//! A server that says what a test wants said, byte by byte, and certificates of all kinds.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use time::OffsetDateTime;

/// A CA with its key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate with its key, PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Pair {
    /// Both in one file, as the kubelet keeps them.
    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }
}

/// Begin and end of a validity, in seconds from now.
pub(crate) type Validity = (i64, i64);
/// An hour before and after.
pub(crate) const NOW: Validity = (-3600, 3600);

pub(crate) fn at(seconds: i64) -> OffsetDateTime {
    crate::sys::clock::wall_now().date_time() + time::Duration::seconds(seconds)
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("key");
        let name = format!("test-ca-{:02x?}", &key.public_key_raw()[..9]);
        Self::made(&name, None)
    }

    /// Makes a CA of this name.
    pub(crate) fn named(name: &str) -> Self {
        Self::made(name, None)
    }

    /// Makes a CA that this one has signed.
    pub(crate) fn below(&self, name: &str) -> Self {
        Self::made(name, Some(self))
    }

    fn made(name: &str, above: Option<&Self>) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("key");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = match above {
            Some(above) => params.signed_by(&key, &above.issuer),
            None => params.self_signed(&key),
        };
        Self {
            pem: certificate.expect("ca").pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Issues a certificate for a server with these names.
    pub(crate) fn server(&self, names: &[&str], validity: Validity) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, validity)
    }

    /// Issues a certificate for a client of this name.
    pub(crate) fn client(&self, organization: &str, name: &str, validity: Validity) -> Pair {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let subject = &mut params.distinguished_name;
        *subject = rcgen::DistinguishedName::new();
        // None, if it is empty.
        if !organization.is_empty() {
            subject.push(DnType::OrganizationName, organization);
        }
        subject.push(DnType::CommonName, name);
        self.sign(params, validity)
    }

    /// Signs what a request asks for, as an apiserver's signer does.
    pub(crate) fn sign_request(&self, pem: &str, validity: Validity) -> String {
        let mut request = rcgen::CertificateSigningRequestParams::from_pem(pem).expect("request");
        request.params.not_before = at(validity.0);
        request.params.not_after = at(validity.1);
        request.signed_by(&self.issuer).expect("sign").pem()
    }

    fn sign(&self, mut params: CertificateParams, validity: Validity) -> Pair {
        params.not_before = at(validity.0);
        params.not_after = at(validity.1);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("sign");
        Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }
}

/// A client's request, as the server received it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// Number of the connection, from 0.
    pub(crate) connection: usize,
    /// Number of the request, from 0.
    pub(crate) number: usize,
    /// The client's certificate.
    pub(crate) peer: Option<Vec<u8>>,
    /// Set if TLS resumed an earlier session.
    pub(crate) resumed: bool,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The server's next step after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Keep,
    Close,
    /// The connection stays open and silent.
    Hang,
}

/// An answer, byte by byte.
pub(crate) struct Say {
    pub(crate) bytes: Vec<u8>,
    pub(crate) then: Then,
}

/// An answer with a body of known length.
pub(crate) fn say(status: u16, headers: &str, body: &[u8]) -> Say {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\n\r\n");
    Say {
        bytes: [head.as_bytes(), body].concat(),
        then: Then::Keep,
    }
}

/// A 200 with JSON.
pub(crate) fn ok(body: &str) -> Say {
    say(200, "content-type: application/json\r\n", body.as_bytes())
}

/// A chunked 200; its end is missing unless `ends`.
pub(crate) fn chunks(parts: &[&str], ends: bool) -> Say {
    let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for part in parts {
        bytes.extend(format!("{:x}\r\n{part}\r\n", part.len()).into_bytes());
    }
    if ends {
        bytes.extend(b"0\r\n\r\n");
    }
    let then = if ends { Then::Keep } else { Then::Close };
    Say { bytes, then }
}

type Handler = dyn Fn(&Seen) -> Say + Send + Sync;

/// A server on the loopback interface. Ends with its value.
pub(crate) struct Server {
    pub(crate) port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    tls: Option<Arc<ServerConfig>>,
    handler: Box<Handler>,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
    stopped: AtomicBool,
}

impl Server {
    /// Plain HTTP.
    pub(crate) fn plain(handler: impl Fn(&Seen) -> Say + Send + Sync + 'static) -> Self {
        Self::start(None, handler)
    }

    /// HTTPS. With `clients` it asks for certificates that this CA signed, and takes a client without one too.
    pub(crate) fn tls(
        pair: &Pair,
        clients: Option<&Authority>,
        handler: impl Fn(&Seen) -> Say + Send + Sync + 'static,
    ) -> Self {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for certificate in crate::net::tls::parse_certificates(ca.pem.as_bytes()) {
                    roots.add(certificate).expect("ca");
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .allow_unauthenticated();
                builder.with_client_cert_verifier(verifier.build().expect("verifier"))
            }
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.key_der.clone()));
        let config = builder
            .with_single_cert(vec![pair.der.clone()], key)
            .expect("pair");
        Self::start(Some(Arc::new(config)), handler)
    }

    fn start(
        tls: Option<Arc<ServerConfig>>,
        handler: impl Fn(&Seen) -> Say + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listener");
        let port = listener.local_addr().expect("address").port();
        let inner = Arc::new(Inner {
            tls,
            handler: Box::new(handler),
            seen: Mutex::new(Vec::new()),
            open: Mutex::new(Vec::new()),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let shared = Arc::clone(&inner);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let socket = stream.try_clone().expect("clone");
                    shared.connection(stream);
                    let _ = socket.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, inner }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.inner.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Requests received so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.inner.seen).clone()
    }

    /// Closes all connections, as a restart does.
    pub(crate) fn close_connections(&self) {
        for stream in lock(&self.inner.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.inner.stopped.store(true, Ordering::SeqCst);
        self.close_connections();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

trait Link: Read + Write {}
impl<T: Read + Write> Link for T {}

impl Inner {
    fn connection(&self, stream: TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        lock(&self.open).push(stream.try_clone().expect("clone"));
        let (mut peer, mut resumed) = (None, false);
        let link: Box<dyn Link> = match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let mut session = ServerConnection::new(Arc::clone(config)).expect("session");
                let mut socket = stream;
                while session.is_handshaking() {
                    if session.complete_io(&mut socket).is_err() {
                        return;
                    }
                }
                peer = session
                    .peer_certificates()
                    .and_then(|c| c.first())
                    .map(|c| c.to_vec());
                resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
                Box::new(StreamOwned::new(session, socket))
            }
        };
        let mut link = BufReader::new(link);
        while let Some(mut seen) = request(&mut link) {
            seen.connection = number;
            seen.peer.clone_from(&peer);
            seen.resumed = resumed;
            {
                let mut all = lock(&self.seen);
                seen.number = all.len();
                all.push(seen.clone());
            }
            let say = (self.handler)(&seen);
            let link = link.get_mut();
            if link
                .write_all(&say.bytes)
                .and_then(|()| link.flush())
                .is_err()
            {
                return;
            }
            match say.then {
                Then::Keep => {}
                Then::Close => return,
                Then::Hang => {
                    // Until the other side, or the test, ends it.
                    let _ = link.read(&mut [0]);
                    return;
                }
            }
        }
    }
}

fn request(link: &mut BufReader<Box<dyn Link>>) -> Option<Seen> {
    let mut line = String::new();
    link.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let mut seen = Seen {
        method: words.next()?.into(),
        path: words.next()?.into(),
        ..Seen::default()
    };
    loop {
        let mut line = String::new();
        link.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        seen.headers
            .insert(name.to_ascii_lowercase(), value.trim().into());
    }
    let length = seen.header("content-length").parse().unwrap_or(0);
    seen.body = vec![0; length];
    link.read_exact(&mut seen.body).ok()?;
    Some(seen)
}
