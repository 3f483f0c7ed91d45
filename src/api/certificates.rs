//! `certificates.k8s.io/v1`: a request for a certificate, as far as its asker reads it.

use serde::Deserialize;

use super::ObjectMeta;

/// Types of keys that this node makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// ECDSA with curve P-256.
    EcdsaP256,
    /// ECDSA with curve P-384.
    EcdsaP384,
    /// Ed25519
    Ed25519,
}

/// A request and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CertificateSigningRequest {
    /// Name and UID.
    pub metadata: ObjectMeta,
    /// Status of the request.
    pub status: CsrStatus,
}

/// Status of a certificate signing request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsrStatus {
    /// `Approved`, `DashboardDenial`, `Failed`.
    pub conditions: Vec<CsrCondition>,
    /// PEM in base64; empty until it is issued.
    pub certificate: String,
}

/// A condition of a request. Its presence counts; its status is always `True`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(missing_docs, reason = "fields of certificates/v1")]
pub struct CsrCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
}
