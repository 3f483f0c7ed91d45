//! What kubeadm leaves in a cluster for those who join it.
//!
//! Source: kubeadm `app/phases/bootstraptoken`, `pkg/controller/bootstrap/jws.go`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::{digest, hmac};
use serde_json::json;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::core::Core;
use crate::error::ApiError;

/// The signature of a text whose payload is left out.
pub(crate) fn sign(payload: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, text.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Publishes both ConfigMaps, signed with each of the tokens.
pub(crate) fn publish(core: &Core, url: &str, tokens: &[&str]) -> Result<(), ApiError> {
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: {url}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
        STANDARD.encode(&core.authority.pem)
    );
    let mut info = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": kubeconfig},
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
    });
    for token in tokens {
        let (id, secret) = token.split_once('.').unwrap_or_default();
        info["data"][format!("jws-kubeconfig-{id}")] = sign(&kubeconfig, id, secret).into();
    }
    core.admin_create(&info)?;
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, \
        x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}\nauthorization: {mode: Webhook}\ncgroupDriver: systemd\n\
        clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\ncontainerRuntimeEndpoint: \"\"\ncrashLoopBackOff: {}\n\
        healthzBindAddress: 127.0.0.1\nhealthzPort: 10248\nmemorySwap: {}\nrotateCertificates: true\n\
        staticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 0s\n";
    core.admin_create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"kubelet": kubelet},
        "metadata": {"name": "kubelet-config", "namespace": "kube-system"},
    }))?;
    Ok(())
}

/// `sha256:` and the digest of the CA's public key.
pub(crate) fn pin(core: &Core) -> String {
    let key = X509Certificate::from_der(&core.authority.der)
        .map(|(_, certificate)| certificate.public_key().raw.to_vec());
    format!("sha256:{}", hex(&key.unwrap_or_default()))
}

/// SHA-256 in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digest = digest::digest(&digest::SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}
