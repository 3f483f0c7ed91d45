//! SHA-256 digests as image formats write them, and a reader that computes one on the way through.

use core::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

use crate::api::encode_hex;

/// Reason why a text is no digest. Each has the text, or its algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The text has no colon.
    #[error("digest {0:?} names no algorithm")]
    NoAlgorithm(String),
    /// The algorithm is not SHA-256.
    #[error("digest algorithm {0:?} is not supported")]
    Algorithm(String),
    /// The digits are wrong.
    #[error("digest {0:?} is not 64 lower-case hex digits")]
    Digits(String),
}

/// A SHA-256 digest. The only algorithm images are addressed by in practice; others are refused by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Parses `sha256:` and 64 lower-case hex digits.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let (algorithm, hex) = text
            .split_once(':')
            .ok_or_else(|| DigestError::NoAlgorithm(text.into()))?;
        if algorithm != "sha256" {
            return Err(DigestError::Algorithm(algorithm.into()));
        }
        Self::from_hex(hex).ok_or_else(|| DigestError::Digits(text.into()))
    }

    /// Parses 64 lower-case hex digits.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut out = [0; 32];
        for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
        }
        Some(Self(out))
    }

    /// Digest of `data`.
    #[must_use]
    pub fn compute(data: &[u8]) -> Self {
        Self(Sha256::digest(data).into())
    }

    /// The digest that these bytes are.
    #[must_use]
    pub(super) const fn from_sha256_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 64 hex digits without the algorithm.
    #[must_use]
    pub fn hex(&self) -> String {
        encode_hex(&self.0)
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reader that hashes the bytes read through it, if asked.
pub(super) struct HashingReader<R> {
    inner: R,
    hash: Option<Sha256>,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R, hash: bool) -> Self {
        Self {
            inner,
            hash: hash.then(Sha256::new),
        }
    }

    /// Digest of everything read, if it was asked for.
    pub(super) fn finish(self) -> Option<Digest> {
        self.hash.map(|hash| Digest(hash.finalize().into()))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        if let Some(hash) = &mut self.hash {
            hash.update(&buf[..n]);
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::parse(empty), Ok(Digest::compute(b"")));
        assert_eq!(Digest::compute(b"").to_string(), empty);
        for (name, text) in [
            ("no algorithm", &empty[7..]),
            ("other algorithm", "sha512:00"),
            ("short", "sha256:e3b0"),
            (
                "upper case",
                "sha256:E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                "path in disguise",
                "sha256:../../../../../../../../../../../../../../../../../../../../../etc",
            ),
        ] {
            assert!(Digest::parse(text).is_err(), "{name}");
        }
    }

    #[test]
    fn hashing() {
        let mut reader = HashingReader::new(&b"abc"[..], true);
        io::copy(&mut reader, &mut io::sink()).expect("memory");
        assert_eq!(reader.finish(), Some(Digest::compute(b"abc")));
    }
}
