//! The signature of a release.

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};

use crate::Failure;

/// What a public key for Ed25519 begins with in DER. Source: RFC 8410, section 4.
const DER_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A private key.
pub(super) struct Key(Ed25519KeyPair);

impl Key {
    /// Another one.
    pub(super) fn new() -> Result<Self, Failure> {
        let failed = |_| "no random numbers for a key";
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref());
        Ok(Self(pair.map_err(|e| e.to_string())?))
    }

    /// Of a file in PEM, as `openssl genpkey -algorithm ed25519` writes it.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).ok_or_else(|| {
            let path = path.display();
            format!("{path}: no private key; make one by openssl genpkey -algorithm ed25519").into()
        })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (_, text) = text.split_once("-----BEGIN PRIVATE KEY-----")?;
        let (text, _) = text.split_once("-----END PRIVATE KEY-----")?;
        let text: String = text.split_whitespace().collect();
        // OpenSSL leaves the public half out.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&STANDARD.decode(text).ok()?);
        pair.ok().map(Self)
    }

    /// Its public half, in PEM.
    pub(super) fn public(&self) -> String {
        let der = [&DER_HEAD, self.0.public_key().as_ref()].concat();
        let text = STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    /// 64 bytes.
    pub(super) fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).as_ref().into()
    }
}
