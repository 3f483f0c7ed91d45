//! The verifier of certificates for handshakes that take any: who the peer is does not matter, or is found out later.

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

/// Certificates that a client may show, its own included. A way from it to a trusted CA is searched among all the others:
/// among four there are at most 64 ways, each tried with one signature for each trusted CA of that name. Among the two
/// hundred that one message of a handshake holds only the budget of the search ends it: 100 signatures, or 200,000 steps
/// that each look at all of them.
pub(crate) const MAX_CHAIN: usize = 5;
/// Bytes of all certificates of a chain. They are kept with the connection.
pub(crate) const MAX_CHAIN_BYTES: usize = 16 * 1024;

/// Proof that is asked of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerProof {
    /// The peer has the key of the certificate that it shows.
    Key,
    /// No proof: every signature is taken too, also of kinds that a careful client refuses.
    Nothing,
}

/// See the module's words.
#[derive(Debug)]
pub(crate) struct AnyPeer {
    proof: PeerProof,
    known: WebPkiSupportedAlgorithms,
}

type PeerSignatureResult = Result<HandshakeSignatureValid, Error>;

impl AnyPeer {
    pub(crate) fn new(proof: PeerProof) -> Self {
        Self {
            proof,
            known: ring::default_provider().signature_verification_algorithms,
        }
    }

    fn check_signature(
        &self,
        check: impl FnOnce(&WebPkiSupportedAlgorithms) -> PeerSignatureResult,
    ) -> PeerSignatureResult {
        match self.proof {
            PeerProof::Key => check(&self.known),
            PeerProof::Nothing => Ok(HandshakeSignatureValid::assertion()),
        }
    }
}

impl ServerCertVerifier for AnyPeer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> PeerSignatureResult {
        self.check_signature(|known| verify_tls12_signature(text, certificate, signature, known))
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> PeerSignatureResult {
        self.check_signature(|known| verify_tls13_signature(text, certificate, signature, known))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.known.supported_schemes()
    }
}

impl ClientCertVerifier for AnyPeer {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let all = core::iter::once(own).chain(others);
        if others.len() >= MAX_CHAIN || all.map(|one| one.len()).sum::<usize>() > MAX_CHAIN_BYTES {
            return Err(Error::General(format!(
                "more than {MAX_CHAIN} certificates, or {MAX_CHAIN_BYTES} bytes of them"
            )));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> PeerSignatureResult {
        ServerCertVerifier::verify_tls12_signature(self, text, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> PeerSignatureResult {
        ServerCertVerifier::verify_tls13_signature(self, text, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.known.supported_schemes()
    }
}
