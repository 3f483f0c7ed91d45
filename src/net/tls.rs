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
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned, WantsVerifier,
};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use super::any_peer::{AnyPeer, Proof};
use super::known_time::KNOWN;
use crate::api::Wall;
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
pub(crate) enum Pem<'a> {
    /// Text in a file.
    File(&'a Path),
    /// Text in memory, with the name of the place that it is from.
    Text(&'static str, &'a [u8]),
}

/// Certificates that are taken from a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Roots<'a> {
    /// Certificates signed by CAs of this machine, or by the given ones.
    SystemAnd(Option<Pem<'a>>),
    /// Certificates signed by the given CAs.
    Only(Pem<'a>),
    /// Any certificate, with that proof: `insecure_skip_verify`, or a probe.
    Any(Proof),
}

/// A client certificate and its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    /// The certificate, then the chain of its signers.
    pub(crate) chain: Pem<'a>,
    /// The key. May be the same text.
    pub(crate) key: Pem<'a>,
}

/// Makes the TLS configuration for a server.
pub(crate) fn config(
    roots: Roots<'_>,
    identity: Option<Identity<'_>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let wrong = |e: rustls::Error| TlsError::Unusable(e.to_string());
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(OwnClock))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?;
    let builder = match roots {
        Roots::Any(proof) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyPeer::new(proof))),
        Roots::SystemAnd(more) => verified(builder, system_roots(more)?)?,
        Roots::Only(pem) => {
            let mut store = RootCertStore::empty();
            add(&mut store, pem)?;
            if store.is_empty() {
                return Err(TlsError::Unusable(format!("{pem} holds no CA certificate")));
            }
            verified(builder, store)?
        }
    };
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = certificates(&identity.chain.read()?);
            let bytes = identity.key.read()?;
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

/// Takes servers whose certificates are signed by `roots`, by the time that is known.
fn verified(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    roots: RootCertStore,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let provider = Arc::clone(builder.crypto_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier = verifier.map_err(|e| TlsError::Unusable(e.to_string()))?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Timed(verifier))))
}

/// Takes a certificate that begins later than a clock shows which may be wrong.
#[derive(Debug)]
struct Timed(Arc<WebPkiServerVerifier>);

type Signed = Result<HandshakeSignatureValid, rustls::Error>;

impl ServerCertVerifier for Timed {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |now| self.0.verify_server_cert(own, others, name, ocsp, now);
        KNOWN.now().judge(verify)
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        self.0.verify_tls12_signature(text, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Signed {
        self.0.verify_tls13_signature(text, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn system_roots(more: Option<Pem<'_>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = SYSTEM_ROOTS.iter().map(Path::new).find(|p| p.exists()) {
        add(&mut roots, Pem::File(path))?;
    }
    if let Some(pem) = more {
        add(&mut roots, pem)?;
    }
    if roots.is_empty() {
        return Err(TlsError::Unusable(format!(
            "this machine has no CA certificates: install ca-certificates (looked at {})",
            SYSTEM_ROOTS.join(", ")
        )));
    }
    Ok(roots)
}

fn add(roots: &mut RootCertStore, pem: Pem<'_>) -> Result<(), TlsError> {
    let room = MAX_ROOTS.saturating_sub(roots.len());
    // Among the certificates of a system some are not well-formed.
    let found = certificates(&pem.read()?);
    if found.is_empty() {
        return Err(TlsError::Unusable(format!("{pem} holds no CA certificate")));
    }
    roots.add_parsable_certificates(found.into_iter().take(room));
    Ok(())
}

/// The certificates in PEM text; other items, and unreadable ones, are passed over.
pub(crate) fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

impl<'a> Pem<'a> {
    /// The text.
    pub(crate) fn read(self) -> Result<Cow<'a, [u8]>, TlsError> {
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

impl fmt::Display for Pem<'_> {
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
        unix_time(KNOWN.now().at)
    }
}

pub(super) fn unix_time(now: Wall) -> Option<UnixTime> {
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
            .map_err(|_| ureq::Error::Tls("its name is not one"))?;
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
    use super::*;

    #[test]
    fn time_goes_on_after_2038() {
        for seconds in [0, 1 << 31, 4_102_444_800] {
            let time = unix_time(Wall(seconds * 1_000_000_000)).expect("a time");
            assert_eq!(i64::try_from(time.as_secs()), Ok(seconds));
        }
        assert_eq!(unix_time(Wall(-1)), None, "no handshake by such a clock");
        let (before, now) = (KNOWN.now().at.0, OwnClock.current_time().expect("a time"));
        let seconds = u64::try_from(before / 1_000_000_000).expect("after 1970");
        assert!(now.as_secs() >= seconds);
    }

    #[test]
    fn a_file_of_cas_that_holds_none_is_named() {
        let mut roots = RootCertStore::empty();
        let e = add(&mut roots, Pem::File(Path::new("/dev/null"))).expect_err("empty");
        assert_eq!(e.to_string(), "/dev/null holds no CA certificate");
    }
}
