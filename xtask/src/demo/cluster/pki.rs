//! Certificates and kubeconfigs of a control plane that lives as long as a demo.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::Failure;

/// A certificate and its key, PEM.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Signs everything here.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(super) own: Pair,
}

/// Who a kubeconfig is for.
pub(super) enum Identity<'a> {
    Certificate(&'a Pair),
    Token(&'a str),
}

fn params(name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    for group in groups {
        subject.push(DnType::OrganizationName, *group);
    }
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params
}

impl Authority {
    pub(super) fn new() -> Result<Self, Failure> {
        let key = KeyPair::generate()?;
        let mut params = params("demo-ca", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let own = Pair {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        Ok(Self {
            issuer: Issuer::new(params, key),
            own,
        })
    }

    /// For a server that is reached under these names and addresses.
    pub(super) fn server(&self, name: &str, hosts: &[&str]) -> Result<Pair, Failure> {
        let mut all = params(name, &[]);
        let hosts = hosts.iter().map(|&host| host.to_owned());
        all.subject_alt_names =
            CertificateParams::new(hosts.collect::<Vec<_>>())?.subject_alt_names;
        all.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(all)
    }

    /// For a user of those groups.
    pub(super) fn client(&self, name: &str, groups: &[&str]) -> Result<Pair, Failure> {
        let mut all = params(name, groups);
        all.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(all)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair, Failure> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        Ok(Pair {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// Both halves of a key that signs tokens, PEM: the private and the public one.
pub(super) fn signing_key() -> Result<(String, String), Failure> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// A kubeconfig with everything in it; JSON, which is YAML.
pub(super) fn kubeconfig(server: &str, ca: &str, identity: &Identity<'_>) -> String {
    let user = match identity {
        Identity::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Identity::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "demo",
        "clusters": [{"name": "demo", "cluster": {
            "server": server, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": "demo", "user": user}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
    })
    .to_string()
}
