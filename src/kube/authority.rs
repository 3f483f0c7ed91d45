//! Identity of a cluster: the certificates that its apiserver is verified with.

use sha2::{Digest as _, Sha256};

use super::bootstrap;
use super::kubeconfig::{Kubeconfig, ServerTrust};
use crate::api::{encode_hex, order::OrderExt as _};
use crate::net::tls;

/// Certificates that count: a bundle of an old and a new authority has two.
const MAX_AUTHORITIES: usize = 8;
/// Bytes of each digest: enough to tell the few clusters apart that a machine is ever in.
const ID_BYTES: usize = 8;

/// Digests of the cluster's CAs in hexadecimal digits, sorted, with commas between; empty if the kubeconfig names none, or they
/// cannot be read. Reads a file.
#[must_use]
pub fn authority_digests(config: &Kubeconfig) -> String {
    let ServerTrust::Ca(material) = &config.trust else {
        return String::new();
    };
    // Whoever connects complains of it.
    let pem = bootstrap::read_material(material).unwrap_or_default();
    let mut ids: Vec<String> = tls::parse_certificates(&pem)
        .iter()
        .take(MAX_AUTHORITIES)
        .map(|der| authority_digest(der))
        .collect();
    ids.stable_sort();
    ids.join(",")
}

fn authority_digest(der: &[u8]) -> String {
    encode_hex(&Sha256::digest(der)[..ID_BYTES])
}
