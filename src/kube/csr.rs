//! A key of our own, and the request to certify it.
//!
//! Source: RFC 2986 (PKCS#10), RFC 5480, RFC 5958, RFC 8410 (Ed25519).

use core::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _,
};
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_INTEGER, TAG_UTCTIME};
use yasna::{DERWriter, Tag};

use crate::api::certificates::KeyType;

const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10045, 2, 1];
const P256: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const P384: &[u64] = &[1, 3, 132, 0, 34];
const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];
const ECDSA_WITH_SHA384: &[u64] = &[1, 2, 840, 10045, 4, 3, 3];
const ED25519: &[u64] = &[1, 3, 101, 112];
/// PKCS#8 of an Ed25519 key, before its seed. Without the public key, which version 2 adds and many readers refuse.
const ED25519_KEY: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];
/// Bytes of the seed of an Ed25519 key.
const SEED_BYTES: usize = 32;
const EXTENSION_REQUEST: &[u64] = &[1, 2, 840, 113_549, 1, 9, 14];
const ALTERNATIVE_NAMES: &[u64] = &[2, 5, 29, 17];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
/// A string of one bit, the first one: `digitalSignature`.
const DIGITAL_SIGNATURE: [u8; 4] = [3, 2, 7, 0x80];
/// `notBefore` of a self-signed certificate: earlier than any board was made.
const FROM: &str = "000101000000Z";
/// `notAfter` of a certificate that does not expire.
const FOR_EVER: &str = "99991231235959Z";
/// Bytes of a serial number, drawn at random.
const SERIAL_BYTES: usize = 16;
/// Characters of a line of PEM.
const PEM_LINE: usize = 64;

/// Subject and names of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    /// CN
    pub common_name: String,
    /// O
    pub organization: String,
    /// Names of the host: for servers.
    pub dns_names: Vec<String>,
    /// Addresses of the host: for servers.
    pub ips: Vec<IpAddr>,
}

/// Reason why this machine cannot make a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The kernel has no random numbers, or gives none.
    #[error("the system gives no random numbers")]
    NoRandom,
    /// The new key does not pass the checks of a key.
    #[error("the new key cannot be used: {0}")]
    Unusable(ring::error::KeyRejected),
}

/// A fresh key and the request for its certificate, both PEM.
pub struct NewCertificateRequest {
    /// PKCS#8. Nobody else has it.
    pub key: String,
    /// PKCS#10
    pub request: String,
}

/// Makes an ECDSA P-256 key and a request. Errors: the system gives no random numbers.
pub fn make_key_and_request(
    subject: &CertificateSubject,
) -> Result<NewCertificateRequest, KeyError> {
    let key = NewKey::generate(KeyType::EcdsaP256)?;
    Ok(NewCertificateRequest {
        key: encode_pem("PRIVATE KEY", &key.document),
        request: encode_pem("CERTIFICATE REQUEST", &sign_request(&key, subject)?),
    })
}

/// A fresh key of a pod, and what proves that the asker has it.
pub struct PodKey {
    /// PKCS#8, PEM.
    pub key: String,
    /// PKCS#10 without any name, DER.
    pub request: Vec<u8>,
    /// `SubjectPublicKeyInfo`, DER.
    pub public_key: Vec<u8>,
    /// Signature of the text; `None`: a key of this type cannot sign as servers before 1.36 check it, with SHA-256.
    pub signature: Option<Vec<u8>>,
}

/// Makes a key, a request without names, and a signature of `text`. Errors: the system gives no random numbers.
pub fn make_pod_key(kind: KeyType, text: &[u8]) -> Result<PodKey, KeyError> {
    let key = NewKey::generate(kind)?;
    let signature = match kind {
        KeyType::EcdsaP384 => None,
        KeyType::EcdsaP256 | KeyType::Ed25519 => Some(key.sign(text)?),
    };
    Ok(PodKey {
        key: encode_pem("PRIVATE KEY", &key.document),
        request: sign_request(&key, &CertificateSubject::default())?,
        public_key: yasna::construct_der(|writer| write_key_info(writer, &key)),
        signature,
    })
}

/// Makes an ECDSA P-256 key and a server's certificate that it signs itself, both PEM, the certificate first. The
/// certificate does not expire: a board may not know what day it is, and whoever checks it compares it with a copy.
///
/// - Errors: the system gives no random numbers.
/// - Source: RFC 5280 section 4.1; 4.1.2.5 for the end.
pub fn make_self_signed(subject: &CertificateSubject) -> Result<(String, String), KeyError> {
    let mut serial = [0; SERIAL_BYTES];
    let random = SystemRandom::new();
    random.fill(&mut serial).map_err(no_random)?;
    // A number that is not negative and not zero.
    serial[0] = serial[0] & 0x7f | 0x40;
    let key = NewKey::generate(KeyType::EcdsaP256)?;
    let body =
        yasna::construct_der(|writer| write_certificate_body(writer, subject, &key, &serial));
    Ok((
        encode_pem("CERTIFICATE", &sign_body(&key, &body)?),
        encode_pem("PRIVATE KEY", &key.document),
    ))
}

fn no_random(_: ring::error::Unspecified) -> KeyError {
    KeyError::NoRandom
}

/// A key that was just made.
struct NewKey {
    kind: KeyType,
    pair: KeyPair,
    /// PKCS#8
    document: Vec<u8>,
}

enum KeyPair {
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl NewKey {
    fn generate(kind: KeyType) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let algorithm = match kind {
            KeyType::EcdsaP256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
            KeyType::EcdsaP384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
            KeyType::Ed25519 => {
                let mut seed = [0; SEED_BYTES];
                random.fill(&mut seed).map_err(no_random)?;
                let pair =
                    Ed25519KeyPair::from_seed_unchecked(&seed).map_err(KeyError::Unusable)?;
                return Ok(Self {
                    kind,
                    pair: KeyPair::Ed25519(pair),
                    document: [&ED25519_KEY[..], &seed].concat(),
                });
            }
        };
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(no_random)?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random);
        Ok(Self {
            kind,
            pair: KeyPair::Ecdsa(pair.map_err(KeyError::Unusable)?),
            document: document.as_ref().to_vec(),
        })
    }

    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = match &self.pair {
            KeyPair::Ecdsa(pair) => pair.sign(&SystemRandom::new(), text).map_err(no_random)?,
            KeyPair::Ed25519(pair) => pair.sign(text),
        };
        Ok(signature.as_ref().to_vec())
    }

    fn public(&self) -> &[u8] {
        match &self.pair {
            KeyPair::Ecdsa(pair) => pair.public_key().as_ref(),
            KeyPair::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }
}

fn sign_request(key: &NewKey, subject: &CertificateSubject) -> Result<Vec<u8>, KeyError> {
    let body = yasna::construct_der(|writer| write_request_info(writer, subject, key));
    sign_body(key, &body)
}

/// Puts a text, the algorithm and the signature of the text together.
fn sign_body(key: &NewKey, body: &[u8]) -> Result<Vec<u8>, KeyError> {
    let signature = key.sign(body)?;
    Ok(yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_der(body);
            write_signature_algorithm(writer.next(), key.kind);
            write_bits(writer.next(), &signature);
        });
    }))
}

fn write_signature_algorithm(writer: DERWriter<'_>, kind: KeyType) {
    let algorithm = match kind {
        KeyType::EcdsaP256 => ECDSA_WITH_SHA256,
        KeyType::EcdsaP384 => ECDSA_WITH_SHA384,
        KeyType::Ed25519 => ED25519,
    };
    writer.write_sequence(|writer| write_oid(writer.next(), algorithm));
}

fn write_certificate_body(
    writer: DERWriter<'_>,
    subject: &CertificateSubject,
    key: &NewKey,
    serial: &[u8],
) {
    writer.write_sequence(|writer| {
        writer
            .next()
            .write_tagged(Tag::context(0), |writer| writer.write_u8(2));
        writer
            .next()
            .write_tagged_implicit(TAG_INTEGER, |writer| writer.write_bytes(serial));
        write_signature_algorithm(writer.next(), key.kind);
        write_subject_name(writer.next(), subject);
        writer.next().write_sequence(|writer| {
            let mut time = |tag, text: &str| {
                writer
                    .next()
                    .write_tagged_implicit(tag, |writer| writer.write_bytes(text.as_bytes()));
            };
            time(TAG_UTCTIME, FROM);
            time(TAG_GENERALIZEDTIME, FOR_EVER);
        });
        write_subject_name(writer.next(), subject);
        write_key_info(writer.next(), key);
        writer.next().write_tagged(Tag::context(3), |writer| {
            writer.write_sequence(|writer| {
                write_extension(writer.next(), KEY_USAGE, &DIGITAL_SIGNATURE);
                let server = yasna::construct_der(|writer| {
                    writer.write_sequence(|writer| write_oid(writer.next(), SERVER_AUTH));
                });
                write_extension(writer.next(), EXTENDED_KEY_USAGE, &server);
                write_extension(
                    writer.next(),
                    ALTERNATIVE_NAMES,
                    &encode_alternative_names(subject),
                );
            });
        });
    });
}

fn write_extension(writer: DERWriter<'_>, kind: &[u64], value: &[u8]) {
    writer.write_sequence(|writer| {
        write_oid(writer.next(), kind);
        writer.next().write_bytes(value);
    });
}

fn write_subject_name(writer: DERWriter<'_>, subject: &CertificateSubject) {
    writer.write_sequence(|writer| {
        for (kind, text) in [
            (ORGANIZATION, &subject.organization),
            (COMMON_NAME, &subject.common_name),
        ] {
            if text.is_empty() {
                continue;
            }
            writer.next().write_set(|writer| {
                writer.next().write_sequence(|writer| {
                    write_oid(writer.next(), kind);
                    writer.next().write_utf8_string(text);
                });
            });
        }
    });
}

fn write_key_info(writer: DERWriter<'_>, key: &NewKey) {
    let (algorithm, curve) = match key.kind {
        KeyType::EcdsaP256 => (EC_PUBLIC_KEY, Some(P256)),
        KeyType::EcdsaP384 => (EC_PUBLIC_KEY, Some(P384)),
        KeyType::Ed25519 => (ED25519, None),
    };
    writer.write_sequence(|writer| {
        writer.next().write_sequence(|writer| {
            write_oid(writer.next(), algorithm);
            if let Some(curve) = curve {
                write_oid(writer.next(), curve);
            }
        });
        write_bits(writer.next(), key.public());
    });
}

fn write_request_info(writer: DERWriter<'_>, subject: &CertificateSubject, key: &NewKey) {
    writer.write_sequence(|writer| {
        writer.next().write_u8(0);
        write_subject_name(writer.next(), subject);
        write_key_info(writer.next(), key);
        writer
            .next()
            .write_tagged_implicit(Tag::context(0), |writer| {
                writer.write_set(|writer| {
                    if !subject.dns_names.is_empty() || !subject.ips.is_empty() {
                        write_requested_extensions(writer.next(), subject);
                    }
                });
            });
    });
}

fn write_requested_extensions(writer: DERWriter<'_>, subject: &CertificateSubject) {
    writer.write_sequence(|writer| {
        write_oid(writer.next(), EXTENSION_REQUEST);
        writer.next().write_set(|writer| {
            writer.next().write_sequence(|writer| {
                write_extension(
                    writer.next(),
                    ALTERNATIVE_NAMES,
                    &encode_alternative_names(subject),
                );
            });
        });
    });
}

fn encode_alternative_names(subject: &CertificateSubject) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            for name in &subject.dns_names {
                writer
                    .next()
                    .write_tagged_implicit(Tag::context(2), |w| w.write_bytes(name.as_bytes()));
            }
            for ip in &subject.ips {
                let bytes = match ip {
                    IpAddr::V4(ip) => ip.octets().to_vec(),
                    IpAddr::V6(ip) => ip.octets().to_vec(),
                };
                writer
                    .next()
                    .write_tagged_implicit(Tag::context(7), |w| w.write_bytes(&bytes));
            }
        });
    })
}

fn write_oid(writer: DERWriter<'_>, id: &[u64]) {
    writer.write_oid(&ObjectIdentifier::from_slice(id));
}

fn write_bits(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_bitvec_bytes(bytes, bytes.len() * 8);
}

pub(crate) fn encode_pem(kind: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {kind}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(PEM_LINE));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out + &format!("-----END {kind}-----\n")
}

#[cfg(test)]
mod tests {
    use rcgen::SanType;

    use super::super::testing::{Authority, NOW};
    use super::super::x509;
    use super::*;

    #[test]
    fn a_signer_understands_it() {
        // BOOT-03 BOOT-12
        let subject = CertificateSubject {
            common_name: "system:node:node-a".into(),
            organization: "system:nodes".into(),
            ..CertificateSubject::default()
        };
        let one = make_key_and_request(&subject).expect("request");
        assert_ne!(
            one.key,
            make_key_and_request(&subject).expect("request").key,
            "a key is used once"
        );
        // Reading it checks the signature.
        let read = rcgen::CertificateSigningRequestParams::from_pem(&one.request).expect("CSR");
        assert_eq!(read.params.subject_alt_names, []);
        let signed = Authority::new().sign_request(&one.request, NOW);
        let found = &x509::read_chain(signed.as_bytes()).expect("chain")[0];
        assert_eq!(found.common_name, "system:node:node-a");
        assert_eq!(found.organizations, ["system:nodes"]);
        // The key is its key.
        let key = rcgen::KeyPair::from_pem(&one.key).expect("key");
        let public = rcgen::PublicKeyData::der_bytes(&read.public_key);
        assert_eq!(rcgen::PublicKeyData::der_bytes(&key), public);
        assert!(one.request.lines().all(|line| line.len() <= 64));
    }

    #[test]
    fn keys_of_pods() {
        // PCT-01 PCT-02
        for kind in [KeyType::EcdsaP256, KeyType::EcdsaP384, KeyType::Ed25519] {
            let made = make_pod_key(kind, b"uid").expect("key");
            // Reading it checks the signature.
            let request =
                rcgen::CertificateSigningRequestParams::from_der(&made.request[..].into());
            let request = request.expect("CSR");
            assert!(request.params.distinguished_name.iter().next().is_none());
            // The key is its key.
            let key = rcgen::KeyPair::from_pem(&made.key).expect("key");
            let public = rcgen::PublicKeyData::der_bytes(&request.public_key);
            assert_eq!(rcgen::PublicKeyData::der_bytes(&key), public);
            assert_eq!(
                rcgen::PublicKeyData::subject_public_key_info(&key),
                made.public_key
            );
            let algorithm: &dyn ring::signature::VerificationAlgorithm = match kind {
                KeyType::EcdsaP256 => &ring::signature::ECDSA_P256_SHA256_ASN1,
                KeyType::EcdsaP384 => {
                    assert!(made.signature.is_none());
                    continue;
                }
                KeyType::Ed25519 => &ring::signature::ED25519,
            };
            let of_key = ring::signature::UnparsedPublicKey::new(algorithm, public);
            let signature = made.signature.expect("proof");
            of_key
                .verify(b"uid", &signature)
                .expect("the UID is signed");
        }
    }

    #[test]
    fn a_node_vouches_for_itself() {
        // BOOT-10
        let subject = CertificateSubject {
            common_name: "node-a".into(),
            dns_names: vec!["node-a".into()],
            ips: vec!["10.0.0.1".parse().expect("ip")],
            ..CertificateSubject::default()
        };
        let (certificate, key) = make_self_signed(&subject).expect("certificate");
        let found = &x509::read_chain(certificate.as_bytes()).expect("chain")[0];
        assert_eq!(found.common_name, "node-a");
        assert_eq!(
            (&found.dns_names, &found.ips),
            (&subject.dns_names, &subject.ips)
        );
        assert!(found.not_before.unix_seconds() < 1_000_000_000 && found.not_after.0 == i64::MAX);
        let shown = crate::net::serving::ServingCertificateSlot::default();
        shown
            .set_certificate(certificate.as_bytes(), key.as_bytes())
            .expect("the key is its key");
        // Whoever trusts it, and nothing else, believes it.
        let root = &crate::net::tls::parse_certificates(certificate.as_bytes())[0];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root.clone()).expect("well-formed");
    }

    #[test]
    fn a_server_has_names() {
        // BOOT-11 BOOT-12
        let subject = CertificateSubject {
            common_name: "system:node:a".into(),
            organization: "system:nodes".into(),
            dns_names: vec!["node-a".into()],
            ips: ["10.0.0.1", "::1"].map(|ip| ip.parse().expect("ip")).into(),
        };
        let request = make_key_and_request(&subject).expect("request");
        let read = rcgen::CertificateSigningRequestParams::from_pem(&request.request).expect("CSR");
        assert_eq!(
            read.params.subject_alt_names,
            [
                SanType::DnsName("node-a".try_into().expect("name")),
                SanType::IpAddress("10.0.0.1".parse().expect("ip")),
                SanType::IpAddress("::1".parse().expect("ip")),
            ]
        );
    }
}
