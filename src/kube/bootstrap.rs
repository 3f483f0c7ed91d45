//! The steps by which a node gets a certificate of its own. Which one is next is decided elsewhere.
//!
//! ```text
//! bootstrap kubeconfig ─▶ kubeconfig written ─▶ request ─▶ (somebody approves and signs) ─▶ pair stored, link switched
//! ```

use std::{
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::api::{ApiResult, KubeApi};
use super::csr::{self, CertificateSubject};
use super::error::KubeError;
use super::kubeconfig::{Kubeconfig, KubeconfigError, KubeconfigMaterial, KubeconfigTextError};
use super::store::CertificateStore;
use super::x509::{self, Certificate, CertificateError};
use crate::api::CertificateSigningRequest;
use crate::api::strict::typed_from_value;
use crate::error::error_chain;
use crate::sys::file;

/// Signer of certificates that nodes show to the apiserver.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of certificates that nodes show to their callers.
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The group of nodes.
pub const NODES_GROUP: &str = "system:nodes";
/// Largest file of a certificate, bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Reason why this node's certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificatePairError {
    /// Fault of the operator: the kubeconfig has no certificate.
    #[error("the kubeconfig names no client certificate")]
    Unnamed,
    /// Fault of this machine: one of its files.
    #[error("cannot {action} {}", path.display())]
    File {
        /// Verb.
        action: &'static str,
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A path cannot stand in a kubeconfig.
    #[error("cannot write a kubeconfig")]
    Kubeconfig(#[from] KubeconfigTextError),
    /// Fault of the files' writer: the certificate is not a certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Fault of the files' writer: the certificate or the key is not text.
    #[error("the client certificate or its key is not text")]
    NoText,
    /// Fault of the files' writer: the key is not a key.
    #[error("its key cannot be used: {0}")]
    Key(rustls::pki_types::pem::Error),
    /// Fault of the signer: it has issued no certificate, or one for another key.
    #[error("the issued certificate cannot be used: {0}")]
    Issued(String),
}

/// A request that was made, and the key that nobody else has.
pub struct PostedCertificateRequest {
    /// Name of the request.
    pub name: String,
    /// UID of the request. An object of the same name with another UID is another request.
    pub uid: String,
    key: String,
}

/// Makes the subject that names a node: CN `system:node:<name>`, O [`NODES_GROUP`].
#[must_use]
pub fn node_subject(node: &str) -> CertificateSubject {
    CertificateSubject {
        common_name: format!("system:node:{node}"),
        organization: NODES_GROUP.into(),
        ..CertificateSubject::default()
    }
}

/// Reads the kubeconfig at `path` as a running node uses it. `more` are further URLs of the same apiserver.
///
/// - `kept`: directory in which the node keeps the certificate that it renews, if it does. The pair in use there wins
///   over the one that the file names.
pub fn kubeconfig_in_use(
    path: &Path,
    more: &[String],
    kept: Option<&CertificateStore>,
) -> Result<Kubeconfig, KubeconfigError> {
    let mut config = Kubeconfig::load(path, more)?;
    let renewed = kept
        .map(CertificateStore::current_path)
        .filter(|pem| pem.exists());
    if let Some(pem) = renewed.filter(|_| config.user.certificate.is_some()) {
        config.use_pair_file(&pem);
    }
    Ok(config)
}

/// Reads the client certificate that a kubeconfig names. `Ok(None)`: it names none.
///
/// - Errors: it is missing, unreadable, or has no key.
pub fn client_certificate(
    config: &Kubeconfig,
) -> Result<Option<Vec<Certificate>>, CertificatePairError> {
    let Some((certificate, key)) = &config.user.certificate else {
        return Ok(None);
    };
    let chain = x509::read_chain(&read_material(certificate)?)?;
    let key = read_material(key)?;
    let is_key = rustls::pki_types::pem::PemObject::from_pem_slice(&key)
        .map(|_: rustls::pki_types::PrivateKeyDer<'_>| ());
    is_key.map_err(CertificatePairError::Key)?;
    Ok(Some(chain))
}

/// Reads the client certificate that a kubeconfig names, and its key, both PEM.
///
/// - Errors: it names none, or one is missing, unreadable or no text.
pub fn client_pair(config: &Kubeconfig) -> Result<(String, String), CertificatePairError> {
    let Some((certificate, key)) = &config.user.certificate else {
        return Err(CertificatePairError::Unnamed);
    };
    let text = |material| {
        String::from_utf8(read_material(material)?).map_err(|_| CertificatePairError::NoText)
    };
    Ok((text(certificate)?, text(key)?))
}

pub(super) fn read_material(
    material: &KubeconfigMaterial,
) -> Result<Vec<u8>, CertificatePairError> {
    match material {
        KubeconfigMaterial::Inline(bytes) => Ok(bytes.clone()),
        KubeconfigMaterial::File(path) => {
            let bytes = file::read_start(path, MAX_FILE_BYTES).map_err(|source| {
                CertificatePairError::File {
                    action: "read",
                    path: path.clone(),
                    source,
                }
            })?;
            Ok(bytes)
        }
    }
}

/// Writes the kubeconfig that a node uses once it has a certificate (BOOT-02): the cluster of `bootstrap`, the pair behind
/// `pem`. Durable, 0600.
pub fn write_kubeconfig(
    bootstrap: &Kubeconfig,
    path: &Path,
    pem: &Path,
) -> Result<(), CertificatePairError> {
    let failed = |source| CertificatePairError::File {
        action: "write",
        path: path.into(),
        source,
    };
    let text = bootstrap.with_certificate(pem)?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    file::write_atomic(path, text.as_bytes(), 0o600, true).map_err(failed)
}

/// Asks for a certificate with a fresh key (BOOT-03).
pub fn post_certificate_request(
    api: &dyn KubeApi,
    signer: &str,
    subject: &CertificateSubject,
) -> ApiResult<PostedCertificateRequest> {
    let made = csr::make_key_and_request(subject).map_err(|e| KubeError::Local(e.to_string()))?;
    let usage = if signer == SERVING_SIGNER {
        "server auth"
    } else {
        "client auth"
    };
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": {
            "request": STANDARD.encode(&made.request),
            "signerName": signer,
            "usages": ["digital signature", usage],
        },
    });
    let created = decode_certificate_request(&api.create_csr(body.to_string().as_bytes())?)?;
    Ok(PostedCertificateRequest {
        name: created.metadata.name,
        uid: created.metadata.uid.to_string(),
        key: made.key,
    })
}

/// Reads what became of a request.
pub fn read_certificate_request(
    api: &dyn KubeApi,
    requested: &PostedCertificateRequest,
) -> ApiResult<CertificateSigningRequest> {
    decode_certificate_request(&api.read_csr(&requested.name)?)
}

fn decode_certificate_request(value: &Value) -> ApiResult<CertificateSigningRequest> {
    let csr: CertificateSigningRequest = typed_from_value(value).map_err(|e| KubeError::Wrong {
        url: "certificatesigningrequests".into(),
        why: e.to_string(),
    })?;
    if csr.metadata.name.is_empty() || csr.metadata.uid.is_empty() {
        return Err(KubeError::Wrong {
            url: "certificatesigningrequests".into(),
            why: "it has no identity".into(),
        });
    }
    Ok(csr)
}

impl PostedCertificateRequest {
    /// Returns the chain and the key to store, both PEM. Errors: the certificate cannot be used, such as one for
    /// another key.
    ///
    /// `certificate`: `status.certificate`
    pub fn checked_pair(&self, certificate: &str) -> Result<(String, &str), CertificatePairError> {
        let text = STANDARD.decode(certificate).map_err(issued_pair_error)?;
        x509::read_chain(&text).map_err(issued_pair_error)?;
        let text = String::from_utf8(text).map_err(issued_pair_error)?;
        check_pair(&text, &self.key)?;
        Ok((text, &self.key))
    }
}

/// Checks that a certificate is one, and that it is for this key. Both are PEM.
pub(super) fn check_pair(certificate: &str, key: &str) -> Result<(), CertificatePairError> {
    // Loading the pair compares certificate and key.
    let pem = |text| crate::net::tls::PemSource::Text("the certificate issued", text);
    let identity = crate::net::tls::ClientIdentity {
        chain: pem(certificate.as_bytes()),
        key: pem(key.as_bytes()),
    };
    crate::net::tls::client_config(
        crate::net::tls::ServerRoots::Any(crate::net::any_peer::PeerProof::Key),
        Some(identity),
    )
    .map_err(|e| CertificatePairError::Issued(error_chain(&e)))?;
    Ok(())
}

fn issued_pair_error(error: impl core::error::Error) -> CertificatePairError {
    CertificatePairError::Issued(error_chain(&error))
}
