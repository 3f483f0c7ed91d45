//! TLS as a server: its own certificate, which may change at any time, and the check of clients' certificates.
//!
//! A handshake takes any client certificate whose key the client has, in a chain of at most
//! [`MAX_CHAIN`](super::any_peer::MAX_CHAIN). Whether its issuer is trusted is asked with a request: a client that
//! shows a wrong one may still have a token, and gets a refusal instead of a broken connection.

use alloc::sync::Arc;
use core::fmt;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, NamedGroup, ProtocolVersion, RootCertStore, ServerConfig, SupportedProtocolVersion,
};

use super::any_peer::{AnyPeer, PeerProof};
use super::known_time::CertificateTime;
use super::tls::{OwnClock, TlsError, parse_certificates};

/// Certificates of authorities taken at most.
const MAX_AUTHORITIES: usize = 100;
/// Offer of TLS versions, suites and curves to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOffer {
    /// `tlsCipherSuites`: names of suites of TLS 1.2, as IANA has them; empty: all. Those of 1.3 are always offered.
    pub cipher_suites: Vec<String>,
    /// `tlsCurvePreferences`, as Go names them; empty: all.
    pub curves: Vec<String>,
    /// TLS 1.3 only.
    pub only_1_3: bool,
    /// Clients are asked for a certificate.
    pub client_certificates: bool,
}

/// Suites that a kubelet knows and this program does not: too weak, or on their way out. A list may name them.
#[rustfmt::skip]
const FOREIGN_SUITES: [&str; 13] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA", "TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_256_CBC_SHA", "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];
/// The suites of TLS 1.3.
const NEW_SUITES: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];
/// Suites of TLS 1.2 that are offered; a name on the left may stand for the one on the right.
const SUITES: [(&str, CipherSuite); 8] = {
    use CipherSuite as S;
    [
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
            S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ),
    ]
};
/// Curves by the names that Go has for them.
const CURVES: [(&str, NamedGroup); 5] = [
    ("X25519", NamedGroup::X25519),
    ("CurveP256", NamedGroup::secp256r1),
    ("P256", NamedGroup::secp256r1),
    ("CurveP384", NamedGroup::secp384r1),
    ("P384", NamedGroup::secp384r1),
];

/// Returns true if a list of cipher suites may have this name.
#[must_use]
pub fn is_cipher_suite(name: &str) -> bool {
    FOREIGN_SUITES.contains(&name)
        || NEW_SUITES.contains(&name)
        || SUITES.iter().any(|(known, _)| *known == name)
}

/// Makes the TLS configuration for clients. Only HTTP/1.1 is spoken above it, and no session of a client that left is
/// kept.
///
/// - Errors: the rest of the offer suits no client.
pub(crate) fn build_server_config(
    offer: &TlsOffer,
    shown: Arc<ServingCertificateSlot>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let wrong = |e: rustls::Error| TlsError::Unusable(e.to_string());
    let mut provider = ring::default_provider();
    if !offer.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            let wanted = |(name, known): &(&str, CipherSuite)| {
                *known == suite.suite() && offer.cipher_suites.iter().any(|n| n == name)
            };
            suite.tls13().is_some() || SUITES.iter().any(wanted)
        });
    }
    if !offer.curves.is_empty() {
        provider.kx_groups.retain(|group| {
            let wanted = |(name, known): &(&str, NamedGroup)| {
                *known == group.name() && offer.curves.iter().any(|n| n == name)
            };
            CURVES.iter().any(wanted)
        });
    }
    let old = !offer.only_1_3 && provider.cipher_suites.iter().any(|s| s.tls13().is_none());
    let versions: Vec<&'static SupportedProtocolVersion> = rustls::ALL_VERSIONS
        .iter()
        .copied()
        .filter(|v| old || v.version == ProtocolVersion::TLSv1_3)
        .collect();
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_details(provider, Arc::new(OwnClock))
        .with_protocol_versions(&versions)
        .map_err(wrong)?;
    let builder = match offer.client_certificates {
        true => builder.with_client_cert_verifier(Arc::new(AnyPeer::new(PeerProof::Key))),
        false => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The certificate that is shown. Without one no handshake ends well.
#[derive(Default)]
pub struct ServingCertificateSlot(Mutex<Option<Arc<CertifiedKey>>>);

impl ServingCertificateSlot {
    /// Shows another one from now on; connections that there are keep theirs.
    ///
    /// - Errors: it is none, or the key is another's; the old one is shown on.
    pub(crate) fn set_certificate(&self, chain_pem: &[u8], key_pem: &[u8]) -> Result<(), TlsError> {
        let unusable = |e: &dyn fmt::Display| TlsError::Unusable(e.to_string());
        let chain = parse_certificates(chain_pem);
        if chain.is_empty() {
            return Err(unusable(&"there is no certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|e| unusable(&format_args!("its key: {e}")))?;
        let pair = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let pair = Arc::new(pair.map_err(|e| unusable(&e))?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(pair);
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificateSlot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl fmt::Debug for ServingCertificateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

/// Public key of a private key in PEM, DER (`SubjectPublicKeyInfo`).
///
/// - Errors: it is no key that this agent knows.
pub(crate) fn public_key_of(key_pem: &[u8]) -> Result<Vec<u8>, TlsError> {
    let unusable = |e: &dyn fmt::Display| TlsError::Unusable(format!("its key: {e}"));
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|e| unusable(&e))?;
    let key = ring::sign::any_supported_type(&key).map_err(|e| unusable(&e))?;
    let public = key.public_key();
    let public = public.ok_or_else(|| unusable(&"it does not tell its public half"))?;
    Ok(public.as_ref().to_vec())
}

/// Authorities that may sign certificates of clients.
pub struct ClientAuthorities(Arc<dyn ClientCertVerifier>);

impl ClientAuthorities {
    /// Reads the authorities.
    ///
    /// - Errors: there is none among the text.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Self, TlsError> {
        let found = parse_certificates(pem);
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.into_iter().take(MAX_AUTHORITIES));
        if roots.is_empty() {
            return Err(TlsError::Unusable("it holds no CA certificate".into()));
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
        let verifier = verifier.map_err(|e| TlsError::Unusable(e.to_string()))?;
        Ok(Self(verifier))
    }

    /// Checks that the authorities vouch, at this time, for the first certificate of the chain.
    pub(crate) fn vouch_for_chain(
        &self,
        chain: &[CertificateDer<'_>],
        now: CertificateTime,
    ) -> Result<(), UnverifiedClient> {
        let (own, others) = chain.split_first().ok_or(UnverifiedClient::NoCertificate)?;
        let vouched = now.judge_certificates(|now| self.0.verify_client_cert(own, others, now));
        match vouched {
            Ok(_) => Ok(()),
            Err(rustls::Error::FailedToGetCurrentTime) => Err(UnverifiedClient::Clock),
            Err(e) => Err(e.into()),
        }
    }
}

/// Reason why no authority vouches for a client.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum UnverifiedClient {
    /// The client showed no certificate.
    #[error("there is no certificate")]
    NoCertificate,
    /// The machine's clock stands before 1970.
    #[error("the clock stands before 1970")]
    Clock,
    /// The client's certificate is another's, or of another time.
    #[error(transparent)]
    Certificate(#[from] rustls::Error),
}

impl UnverifiedClient {
    /// Returns true if the answer may change with the time.
    pub(crate) const fn is_time_dependent(&self) -> bool {
        use rustls::CertificateError as Certificate;
        matches!(
            self,
            Self::Clock
                | Self::Certificate(rustls::Error::InvalidCertificate(
                    Certificate::Expired
                        | Certificate::ExpiredContext { .. }
                        | Certificate::NotValidYet
                        | Certificate::NotValidYetContext { .. }
                ))
        )
    }
}

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorities")
    }
}

#[cfg(test)]
mod testing {
    //! Looks for tests.
    use super::*;

    impl ClientAuthorities {
        /// Makes authorities with the verifier of a test.
        pub(crate) fn staged(verifier: Arc<dyn ClientCertVerifier>) -> Self {
            Self(verifier)
        }

        /// The verifier of the authorities.
        pub(crate) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
            Arc::clone(&self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::testing::{Authority, NOW};
    use crate::sys::clock;

    #[test]
    fn offers() {
        // BOOT-13
        let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let versions = |offer: &TlsOffer| {
            let config = build_server_config(offer, Arc::default()).expect("config");
            (
                config.crypto_provider().cipher_suites.len(),
                config.crypto_provider().kx_groups.len(),
            )
        };
        let (all, curves) = versions(&TlsOffer::default());
        assert!(all > 4 && curves > 1);
        let one = TlsOffer {
            cipher_suites: names(&[
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_RSA_WITH_AES_128_CBC_SHA",
            ]),
            curves: names(&["CurveP256"]),
            ..TlsOffer::default()
        };
        assert_eq!(versions(&one), (4, 1));
        let none = TlsOffer {
            cipher_suites: names(&["TLS_RSA_WITH_AES_128_CBC_SHA"]),
            ..TlsOffer::default()
        };
        assert_eq!(versions(&none).0, 3, "those of 1.3");
        let strange = TlsOffer {
            curves: names(&["X448"]),
            ..TlsOffer::default()
        };
        assert!(build_server_config(&strange, Arc::default()).is_err());
        assert!(
            is_cipher_suite("TLS_AES_128_GCM_SHA256")
                && is_cipher_suite("TLS_RSA_WITH_AES_256_CBC_SHA")
        );
        assert!(!is_cipher_suite("TLS_NULL") && !is_cipher_suite(""));
    }

    #[test]
    fn who_is_vouched_for() {
        // SRV-05 TIME-03
        let (ours, other) = (Authority::new(), Authority::new());
        let authorities = ClientAuthorities::from_pem(ours.pem.as_bytes()).expect("authorities");
        let at = |pem: &str, is_sure| {
            let at = clock::wall_now();
            authorities.vouch_for_chain(
                &parse_certificates(pem.as_bytes()),
                CertificateTime { at, is_sure },
            )
        };
        let vouch = |pem: &str| at(pem, true);
        assert_eq!(vouch(&ours.client("o", "n", NOW).certificate), Ok(()));
        for (what, pem) in [
            ("another CA", other.client("o", "n", NOW).certificate),
            ("ended", ours.client("o", "n", (-100, -50)).certificate),
            ("not yet", ours.client("o", "n", (50, 100)).certificate),
            ("a server", ours.server(&["n"], NOW).certificate),
            ("nothing", String::new()),
        ] {
            let why = vouch(&pem).expect_err(what);
            assert_eq!(
                why.is_time_dependent(),
                ["ended", "not yet"].contains(&what),
                "{what}"
            );
        }
        let later = ours.client("o", "n", (50, 100)).certificate;
        assert_eq!(at(&later, false), Ok(()), "by a clock that may be wrong");
        assert!(ClientAuthorities::from_pem(b"").is_err());
    }

    #[test]
    fn what_is_shown() {
        let ca = Authority::new();
        let (one, other) = (ca.server(&["a"], NOW), ca.server(&["b"], NOW));
        let shown = ServingCertificateSlot::default();
        shown
            .set_certificate(one.certificate.as_bytes(), one.key.as_bytes())
            .expect("pair");
        for (chain, key) in [
            (&*one.certificate, &*other.key),
            ("", &*one.key),
            (&*one.certificate, "x"),
        ] {
            assert!(
                shown
                    .set_certificate(chain.as_bytes(), key.as_bytes())
                    .is_err()
            );
        }
    }
}
