//! The test cluster's certificate authority, and what it signs.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

/// Seconds that certificates of the server and of users live.
const LIFE_S: i64 = 10 * 365 * 24 * 3600;

/// Seconds by which a certificate is dated back, for clocks that differ.
const BACKDATE_S: i64 = 300;

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The certificate alone: the CA signs directly.
    pub certificate: String,
    /// PKCS #8.
    pub key: String,
}

/// Whom a certificate is for.
pub(crate) struct Signed {
    pub(crate) common_name: String,
    pub(crate) organisation: Option<&'static str>,
    /// For a client; otherwise for a server.
    pub(crate) is_client: bool,
    /// Names and addresses of a server.
    pub(crate) hosts: Vec<String>,
    pub(crate) life_s: i64,
}

/// A certificate authority.
pub(crate) struct Authority {
    begins_s: i64,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) der: CertificateDer<'static>,
    pub(crate) pem: String,
}

fn at(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn params(common_name: &str, organisations: &[&str], from: i64, to: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for organisation in organisations {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *organisation);
    }
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = at(from);
    params.not_after = at(to);
    params
}

impl Authority {
    pub(crate) fn new(now_s: i64) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = params("test-ca", &[], now_s - BACKDATE_S, now_s + LIFE_S);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            begins_s: now_s - BACKDATE_S,
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// The server's certificate and key.
    pub(crate) fn server(
        &self,
        now_s: i64,
        hosts: &[String],
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
        let mut names: Vec<String> = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "127.0.0.1",
            "::1",
            "10.96.0.1",
        ]
        .map(str::to_owned)
        .to_vec();
        names.extend(hosts.iter().cloned());
        let mut all = params("kube-apiserver", &[], now_s - BACKDATE_S, now_s + LIFE_S);
        all.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
        all.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        all.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = all.signed_by(&key, &self.issuer)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Ok((certificate.der().clone(), key.into()))
    }

    /// A client certificate, valid between two instants.
    pub(crate) fn client(
        &self,
        user: &str,
        groups: &[&str],
        from_s: i64,
        to_s: i64,
    ) -> Result<Credentials, rcgen::Error> {
        let mut params = params(user, groups, from_s, to_s);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        Ok(Credentials {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Signs the key of a request, DER, for somebody else than it says. PEM. It begins with the authority, as certificates of
    /// k3s do (dynamiclistener, `NewSignedCert`, before 0.7.3).
    pub(crate) fn certify(
        &self,
        request: &[u8],
        signed: &Signed,
        now_s: i64,
    ) -> Result<String, rcgen::Error> {
        let mut csr = CertificateSigningRequestParams::from_der(&request.into())?;
        let organisations: Vec<&str> = signed.organisation.into_iter().collect();
        let (from, to) = (self.begins_s, now_s + signed.life_s);
        csr.params = params(&signed.common_name, &organisations, from, to);
        csr.params.subject_alt_names =
            CertificateParams::new(signed.hosts.clone())?.subject_alt_names;
        csr.params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        csr.params.extended_key_usages = vec![match signed.is_client {
            true => ExtendedKeyUsagePurpose::ClientAuth,
            false => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        Ok(csr.signed_by(&self.issuer)?.pem())
    }

    /// Signs a request, DER, for the usages of its `spec`.
    pub(crate) fn sign(
        &self,
        request: &[u8],
        usages: &[&str],
        from_s: i64,
        to_s: i64,
    ) -> Result<String, rcgen::Error> {
        let mut csr = CertificateSigningRequestParams::from_der(&request.into())?;
        csr.params.not_before = at(from_s - BACKDATE_S);
        csr.params.not_after = at(to_s);
        csr.params.is_ca = IsCa::ExplicitNoCa;
        csr.params.key_usages.clear();
        csr.params.extended_key_usages.clear();
        for usage in usages {
            match *usage {
                "digital signature" => csr
                    .params
                    .key_usages
                    .push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => csr.params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "client auth" => csr
                    .params
                    .extended_key_usages
                    .push(ExtendedKeyUsagePurpose::ClientAuth),
                "server auth" => csr
                    .params
                    .extended_key_usages
                    .push(ExtendedKeyUsagePurpose::ServerAuth),
                _ => {}
            }
        }
        Ok(csr.signed_by(&self.issuer)?.pem())
    }
}

/// The part of a kubeconfig that says who one is.
#[derive(Clone, Debug)]
pub enum Identity {
    /// A client certificate.
    Certificate(Credentials),
    /// A bearer token.
    Token(String),
}

/// A kubeconfig with everything in it; JSON, which is YAML.
pub(crate) fn kubeconfig(server: &str, ca_pem: &str, identity: &Identity) -> String {
    let user = match identity {
        Identity::Certificate(c) => serde_json::json!({
            "client-certificate-data": STANDARD.encode(&c.certificate),
            "client-key-data": STANDARD.encode(&c.key),
        }),
        Identity::Token(token) => serde_json::json!({ "token": token }),
    };
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": server, "certificate-authority-data": STANDARD.encode(ca_pem)}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
    });
    let mut text = serde_json::to_string_pretty(&config).unwrap_or_default();
    text.push('\n');
    text
}

/// `https://host:port`, with brackets where IPv6 needs them.
pub(crate) fn url(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("https://[{ip}]:{port}"),
        _ => format!("https://{host}:{port}"),
    }
}
