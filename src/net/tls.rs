//! TLS below HTTP: rustls, with the CAs of this machine and the clock of this program.
//!
//! The library's own clock is the standard library's, which on boards of 32 bits ends in January 2038.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct,
    RootCertStore, SignatureScheme, StreamOwned, WantsVerifier,
};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use super::any_peer::{AnyPeer, PeerProof};
use super::known_time::KNOWN;
use crate::api::WallTime;
use crate::sys::file;

/// Largest file of certificates read, bytes. A system's CAs have about 220 KiB.
const MAX_PEM_BYTES: u64 = 4 * 1024 * 1024;
/// Certificates of authorities taken at most.
const MAX_ROOTS: usize = 1000;
/// Files in which systems keep the CAs that they trust, in the order of the names' age on small systems.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Reason why TLS cannot be spoken, known before a server is asked.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot {action} {path}")]
    File {
        /// Verb and object.
        action: &'static str,
        /// File.
        path: String,
        /// Cause.
        source: io::Error,
    },
    /// The content of a file cannot be used.
    #[error("{0}")]
    Unusable(String),
}

/// PEM text.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PemSource<'a> {
    /// Text in a file.
    File(&'a Path),
    /// Text in memory, with the name of the place that it is from.
    Text(&'static str, &'a [u8]),
}

/// Certificates that are taken from a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerRoots<'a> {
    /// Certificates signed by CAs of this machine, or by the given ones.
    SystemAnd(Option<PemSource<'a>>),
    /// Certificates signed by the given CAs.
    Only(PemSource<'a>),
    /// Any certificate, with that proof: `insecure_skip_verify`, or a probe.
    Any(PeerProof),
}

/// A client certificate and its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientIdentity<'a> {
    /// The certificate, then the chain of its signers.
    pub(crate) chain: PemSource<'a>,
    /// The key. May be the same text.
    pub(crate) key: PemSource<'a>,
}

/// Makes the TLS configuration for a server.
pub(crate) fn client_config(
    roots: ServerRoots<'_>,
    identity: Option<ClientIdentity<'_>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    make_client_config(&SYSTEM_ROOTS, roots, identity)
}

fn make_client_config(
    system: &[&str],
    roots: ServerRoots<'_>,
    identity: Option<ClientIdentity<'_>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let wrong = |e: rustls::Error| TlsError::Unusable(e.to_string());
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(OwnClock))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    let builder = match roots {
        ServerRoots::Any(proof) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyPeer::new(proof))),
        ServerRoots::SystemAnd(more) => with_server_verifier(builder, load_roots(system, more)?)?,
        ServerRoots::Only(pem) => {
            let mut store = RootCertStore::empty();
            add_pem_roots(&mut store, pem)?;
            if store.is_empty() {
                return Err(TlsError::Unusable(format!("{pem} holds no CA certificate")));
            }
            with_server_verifier(builder, store)?
        }
    };
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = parse_certificates(&identity.chain.read_pem()?);
            let bytes = identity.key.read_pem()?;
            let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| TlsError::File {
                action: "read the key",
                path: identity.key.to_string(),
                source: io::Error::other(e.to_string()),
            })?;
            builder.with_client_auth_cert(chain, key).map_err(wrong)?
        }
    };
    Ok(Arc::new(config))
}

/// Takes servers whose certificates are signed by `roots`, or are among them, by the time that is known.
fn with_server_verifier(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let (provider, roots) = (Arc::clone(builder.crypto_provider()), Arc::new(roots));
    let signed = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
    let signed = signed.map_err(|e| TlsError::Unusable(e.to_string()))?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier { signed, roots })))
}

/// The one verifier of servers' certificates. It takes one that begins later than a clock shows which may be wrong, and
/// one that is itself a root: mostly a server's own self-signed certificate, which says that it is a CA's.
///
/// - Source: Go `crypto/x509`, `Certificate.Verify`: a certificate in the pool of roots needs no signer.
#[derive(Debug)]
struct ServerVerifier {
    signed: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
}

impl ServerVerifier {
    /// Returns true if a root has the subject and the key of this certificate. The server proves that it has the key, so
    /// it could sign any certificate. A root for certain names only could not, and its own names were not looked at.
    fn is_root(&self, certificate: &CertificateDer<'_>) -> bool {
        let mut own = RootCertStore::empty();
        own.add(certificate.clone()).is_ok()
            && own
                .roots
                .iter()
                .all(|root| root.name_constraints.is_none() && self.roots.roots.contains(root))
    }
}

type ServerSignatureResult = Result<HandshakeSignatureValid, rustls::Error>;

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |now| match self.signed.verify_server_cert(own, others, name, ocsp, now) {
            // These come once the time is known to be right, and before the name is looked at. Other is what a CA's
            // certificate gets: it is no server's.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer
                | CertificateError::BadSignature
                | CertificateError::Other(_),
            )) if self.is_root(own) => {
                verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        };
        KNOWN.certificate_time().judge_certificates(verify)
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> ServerSignatureResult {
        self.signed
            .verify_tls12_signature(text, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> ServerSignatureResult {
        self.signed
            .verify_tls13_signature(text, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// The CAs of this machine, in the first of the files that exists, and `more`.
fn load_roots(system: &[&str], more: Option<PemSource<'_>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let system_file = system.iter().map(Path::new).find(|p| p.exists());
    for pem in system_file.map(PemSource::File).into_iter().chain(more) {
        add_pem_roots(&mut roots, pem)?;
    }
    if roots.is_empty() {
        return Err(TlsError::Unusable(format!(
            "this machine has no CA certificates: install ca-certificates (looked at {})",
            system.join(", ")
        )));
    }
    Ok(roots)
}

/// Adds the CAs in `pem`.
fn add_pem_roots(roots: &mut RootCertStore, pem: PemSource<'_>) -> Result<(), TlsError> {
    let room = MAX_ROOTS.saturating_sub(roots.len());
    // Among the certificates of a system some are not well-formed.
    let found = parse_certificates(&pem.read_pem()?);
    if found.is_empty() {
        return Err(TlsError::Unusable(format!("{pem} holds no CA certificate")));
    }
    roots.add_parsable_certificates(found.into_iter().take(room));
    Ok(())
}

/// The certificates in PEM text; other items, and unreadable ones, are passed over.
pub(crate) fn parse_certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

impl<'a> PemSource<'a> {
    /// The text.
    pub(crate) fn read_pem(self) -> Result<Cow<'a, [u8]>, TlsError> {
        match self {
            Self::Text(_, text) => Ok(Cow::Borrowed(text)),
            Self::File(path) => {
                let bytes =
                    file::read_start(path, MAX_PEM_BYTES).map_err(|source| TlsError::File {
                        action: "read",
                        path: path.display().to_string(),
                        source,
                    })?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

impl fmt::Display for PemSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Text(name, _) => f.write_str(name),
        }
    }
}

/// The one clock of this program, as rustls asks for the time.
#[derive(Debug)]
pub(crate) struct OwnClock;

impl TimeProvider for OwnClock {
    fn current_time(&self) -> Option<UnixTime> {
        unix_time(KNOWN.certificate_time().at)
    }
}

pub(super) fn unix_time(now: WallTime) -> Option<UnixTime> {
    let nanos = u64::try_from(now.0).ok()?;
    Some(UnixTime::since_unix_epoch(Duration::from_nanos(nanos)))
}

/// Wraps connections to `https` URLs.
#[derive(Debug)]
pub(crate) struct TlsConnector {
    /// Absent for a host that is spoken to in plain text.
    pub(crate) config: Option<Arc<ClientConfig>>,
    /// A host, and the name that its certificate must have instead.
    pub(crate) server_name: Option<(String, String)>,
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(below) = chained else {
            return Ok(None);
        };
        let wanted = details.needs_tls() && !below.is_tls();
        let Some(config) = self.config.as_ref().filter(|_| wanted) else {
            // Should TLS be wanted after all, the caller refuses to go on in plain text.
            return Ok(Some(Either::A(below)));
        };
        let host = details.uri.host().unwrap_or("");
        let mut bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Some((host, name)) = &self.server_name
            && host.eq_ignore_ascii_case(bare)
        {
            bare = name;
        }
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| ureq::Error::Tls("its name is not valid"))?;
        let mut session =
            ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut link = TransportAdapter::new(below.boxed(), Arc::clone(&details.current_time));
        link.set_timeout(details.timeout);
        session.complete_io(&mut link)?;
        Ok(Some(Either::B(TlsTransport {
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
            stream: StreamOwned::new(session, link),
            held: Vec::new(),
        })))
    }
}

/// An encrypted connection.
pub(crate) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
    /// Small output that waits for the output behind it.
    held: Vec<u8>,
}

/// Most bytes that wait for the output behind them.
const MAX_HELD_BYTES: usize = 4096;

impl TlsTransport {
    fn flush(&mut self) -> io::Result<()> {
        if !self.held.is_empty() {
            self.stream.write_all(&core::mem::take(&mut self.held))?;
        }
        Ok(())
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    /// Sends output. A small piece waits for the next one, a head for its body, and goes out in one record with it.
    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        if self.held.len() + amount <= MAX_HELD_BYTES {
            self.held.extend_from_slice(output);
            return Ok(());
        }
        self.flush()?;
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output)?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.sock.set_timeout(timeout);
        self.flush()?;
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsTransport")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{
        BasicConstraints, CertificateParams, GeneralSubtree, IsCa, Issuer, KeyPair, NameConstraints,
    };
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::testing::TestDir;

    /// Shakes hands with a server that shows `own`.
    fn shake(
        own: &rcgen::Certificate,
        key: &KeyPair,
        client: Arc<ClientConfig>,
        name: &str,
    ) -> io::Result<()> {
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], key.into())
            .expect("certificate");
        let name = ServerName::try_from(name.to_owned()).expect("name");
        let mut client = ClientConnection::new(client, name).expect("client");
        let mut server = ServerConnection::new(Arc::new(server)).expect("server");
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire)?;
            server.read_tls(&mut &*wire)?;
            server.process_new_packets().map_err(io::Error::other)?;
            wire.clear();
            server.write_tls(&mut wire)?;
            client.read_tls(&mut &*wire)?;
            client.process_new_packets().map_err(io::Error::other)?;
        }
        Ok(())
    }

    #[test]
    fn a_certificate_among_the_cas_is_taken_without_a_signer() {
        // IMG-23
        let made = |is_ca, ended: bool| {
            let mut params = CertificateParams::new(["a.example".to_owned()]).expect("names");
            if is_ca {
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            }
            if ended {
                params.not_after = rcgen::date_time_ymd(2001, 1, 1);
            }
            (params, KeyPair::generate().expect("key"))
        };
        let (params, key) = made(true, false);
        let (own, other) = (params.self_signed(&key), made(true, false));
        let renewed = made(true, true).0.self_signed(&key).expect("certificate");
        let own = own.expect("certificate");
        let twin = other.0.self_signed(&other.1).expect("certificate");
        let (params, old_key) = made(true, true);
        let old = params.self_signed(&old_key).expect("certificate");
        let (params, plain_key) = made(false, false);
        let plain = params.self_signed(&plain_key).expect("certificate");
        let (params, leaf_key) = made(false, false);
        let issuer = Issuer::new(made(true, false).0, other.1);
        let leaf = params.signed_by(&leaf_key, &issuer).expect("certificate");
        let mut limited = made(true, false).0;
        limited.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName("a.example".into())],
            excluded_subtrees: Vec::new(),
        });
        let limited = limited.self_signed(&key).expect("certificate");
        let scratch = TestDir::new("tls-roots");
        for (case, shown, key, given, name, is_taken) in [
            ("a CA's", &own, &key, own.pem(), "a.example", true),
            (
                "among others",
                &own,
                &key,
                twin.pem() + &own.pem(),
                "a.example",
                true,
            ),
            (
                "for another host",
                &own,
                &key,
                own.pem(),
                "b.example",
                false,
            ),
            (
                "of the same name",
                &own,
                &key,
                twin.pem(),
                "a.example",
                false,
            ),
            ("ended", &old, &old_key, old.pem(), "a.example", false),
            (
                "no CA's",
                &plain,
                &plain_key,
                plain.pem(),
                "a.example",
                true,
            ),
            (
                "its signer unknown",
                &leaf,
                &leaf_key,
                leaf.pem(),
                "a.example",
                true,
            ),
            (
                "its signer known",
                &leaf,
                &leaf_key,
                twin.pem(),
                "a.example",
                true,
            ),
            ("renewed", &own, &key, renewed.pem(), "a.example", true),
            (
                "a CA's for certain names",
                &limited,
                &key,
                limited.pem(),
                "a.example",
                false,
            ),
            (
                "with the key of such a CA",
                &own,
                &key,
                limited.pem(),
                "a.example",
                false,
            ),
            ("neither", &leaf, &leaf_key, own.pem(), "a.example", false),
        ] {
            let (ca, path) = (
                PemSource::Text("ca", given.as_bytes()),
                scratch.join("ca.crt"),
            );
            fs::write(&path, &given).expect("written");
            for (place, system, roots) in [
                ("alone", None, ServerRoots::Only(ca)),
                (
                    "beside the system's",
                    None,
                    ServerRoots::SystemAnd(Some(ca)),
                ),
                ("the system's", path.to_str(), ServerRoots::SystemAnd(None)),
            ] {
                let client = make_client_config(system.as_slice(), roots, None).expect(place);
                let shaken = shake(shown, key, client, name);
                assert_eq!(shaken.is_ok(), is_taken, "{case}, {place}: {shaken:?}");
            }
        }
    }

    #[test]
    fn time_goes_on_after_2038() {
        for seconds in [0, 1 << 31, 4_102_444_800] {
            let time = unix_time(WallTime(seconds * 1_000_000_000)).expect("a time");
            assert_eq!(i64::try_from(time.as_secs()), Ok(seconds));
        }
        assert_eq!(
            unix_time(WallTime(-1)),
            None,
            "no handshake by such a clock"
        );
        let (before, now) = (
            KNOWN.certificate_time().at.0,
            OwnClock.current_time().expect("a time"),
        );
        let seconds = u64::try_from(before / 1_000_000_000).expect("after 1970");
        assert!(now.as_secs() >= seconds);
    }

    #[test]
    fn a_file_of_cas_that_holds_none_is_named() {
        let mut roots = RootCertStore::empty();
        let e =
            add_pem_roots(&mut roots, PemSource::File(Path::new("/dev/null"))).expect_err("empty");
        assert_eq!(e.to_string(), "/dev/null holds no CA certificate");
    }
}
