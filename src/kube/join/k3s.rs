//! The supervisor of a k3s server, as an agent of k3s asks it (K3SJ-01 to -07).
//!
//! ```text
//! /cacerts, from anybody ─▶ has it the digest of the token? ─▶ from here on verified by it, with the token:
//!    ─▶ config ─▶ client-kubelet.crt, serving-kubelet.crt: a key of our own is certified ─▶ client-ca.crt
//! ```
//!
//! Source: k3s `pkg/clientaccess/token.go`, `pkg/server/handlers`, `pkg/nodepassword`.

use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use ureq::http::Method;

use super::{
    ApiRequest, JoinError, JoinServer, KubeError, Kubeconfig, KubeconfigMaterial, ProxyVariables,
    ServerTrust, Url, anonymous_kubeconfig, is_digest, split_bootstrap_token, wrong_answer,
};
use crate::api::{cluster_network::K3sClusterFacts, encode_hex, strict::from_json};
use crate::kube::bootstrap::{check_pair, node_subject};
use crate::kube::client::ApiResponse;
pub use crate::kube::cluster_network::K3sCluster;
use crate::kube::csr::CertificateSubject;
use crate::kube::{csr, x509};
use crate::net::tls;

/// Prefix of a whole token.
const PREFIX: &str = "K10";
/// Largest answer that is certificates or a list, bytes.
const MAX_PEM_BYTES: usize = 256 * 1024;
/// Most servers of one cluster that are taken.
const MAX_SERVERS: usize = 16;
/// Largest file with the password of a node, bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;
/// Random bytes of a password.
const PASSWORD_BYTES: usize = 16;
/// Random bytes of an ID of a node.
const ID_BYTES: usize = 4;
/// User name of requests with a password.
const USER: &str = "node";
/// Prefix of every path.
const V1: &str = "/v1-k3s";

/// A token, whole or only its secret half.
pub struct K3sToken {
    /// SHA-256 of the CA, in lower-case digits.
    ca: Option<String>,
    /// `Authorization` header with the token.
    authorization: String,
}

impl K3sToken {
    /// Reads `K10<digest>::<user>:<password>`, `K10<digest>::<id>.<secret>`, or what is behind the colons alone (K3SJ-01).
    pub fn parse(text: &str) -> Result<Self, JoinError> {
        let whole = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once("::"));
        let (ca, secret) = match whole {
            Some((digest, _)) if !is_digest(digest) => {
                return Err(JoinError::Token(
                    "has not 64 hexadecimal digits between K10 and ::",
                ));
            }
            Some((digest, secret)) => (Some(digest.to_ascii_lowercase()), secret),
            None => (None, text),
        };
        if secret.is_empty() || !secret.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(JoinError::Token(
                "is empty, or has characters that no token has",
            ));
        }
        let authorization = if split_bootstrap_token(secret).is_some() {
            format!("Bearer {secret}")
        } else {
            // The user in the token does not matter: `node-token` names the user `server`, and only `node` is in the
            // group of agents. A bare token is the password as the server's operator has set it.
            let password = match &ca {
                Some(_) => secret.split_once(':').map(|(_, password)| password),
                None => Some(secret),
            };
            let password = password.filter(|password| !password.is_empty());
            let password = password.ok_or(JoinError::Token(
                "has neither user:password nor id.secret behind ::",
            ))?;
            format!("Basic {}", STANDARD.encode(format!("{USER}:{password}")))
        };
        Ok(Self { ca, authorization })
    }

    /// Returns true if the token names the cluster's CA.
    #[must_use]
    pub const fn names_ca(&self) -> bool {
        self.ca.is_some()
    }
}

/// Identity of a node at the supervisor.
pub struct K3sNodeIdentity {
    /// Name of the node.
    pub name: String,
    /// Password that the node has had since it first joined.
    pub password: String,
    /// Addresses of the node; empty: the one from which the server is reached.
    pub ips: Vec<IpAddr>,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    /// Certificate that is shown to the apiserver.
    Client,
    /// Certificate that is shown to callers of the node.
    Serving,
    /// Certificate of `system:kube-proxy`, which may list Nodes, Services and EndpointSlices (K3SN-02).
    KubeProxy,
}

impl CertificatePurpose {
    /// Name of the certificate at the supervisor.
    const fn file(self) -> &'static str {
        match self {
            Self::Client => "client-kubelet.crt",
            Self::Serving => "serving-kubelet.crt",
            Self::KubeProxy => "client-kube-proxy.crt",
        }
    }
}

/// Subject of the certificate of [`CertificatePurpose::KubeProxy`]: it is in no group.
#[must_use]
pub fn kube_proxy_subject() -> CertificateSubject {
    CertificateSubject {
        common_name: "system:kube-proxy".into(),
        ..CertificateSubject::default()
    }
}

/// A supervisor that has proved who it is.
pub struct K3sSupervisor {
    asked: JoinServer,
    authorization: Option<String>,
}

/// Finds the supervisor at `url`. Returns also the CAs that prove it, PEM.
pub fn find_supervisor(
    url: &Url,
    token: K3sToken,
    proxies: &ProxyVariables,
) -> Result<(K3sSupervisor, Vec<u8>), JoinError> {
    let open = JoinServer::new(anonymous_kubeconfig(url, ServerTrust::Any), proxies);
    let url = &open.url;
    let ask = ApiRequest::get("/cacerts");
    let served = open.send_with_retries(&ask, |answer| answer.read_bytes(MAX_PEM_BYTES));
    let served = served.map_err(|e| match e.http_status() {
        Some(_) => wrong_answer("/cacerts", url, format!("{e}: is it a k3s server?")),
        None => e.into(),
    })?;
    let ca = find_proven_ca(&served, token.ca.as_deref(), url)?;
    let trust = ServerTrust::Ca(KubeconfigMaterial::Inline(ca.clone()));
    let supervisor = K3sSupervisor {
        asked: JoinServer::new(anonymous_kubeconfig(url, trust), proxies),
        authorization: Some(token.authorization),
    };
    // The first exchange by that CA, and still without the token: an error here comes from its certificate.
    let verified = supervisor
        .asked
        .send_with_retries(&ask, |answer| answer.read_bytes(MAX_PEM_BYTES));
    verified.map_err(|e| JoinServer::explain_clock_error(&open, e))?;
    Ok((supervisor, ca))
}

/// Finds the CA with that digest (K3SJ-02). Of several CAs only that one is trusted, for nothing proves the others. A
/// server that needs one of them shows it.
fn find_proven_ca(served: &[u8], digest: Option<&str>, url: &Url) -> Result<Vec<u8>, JoinError> {
    let all = tls::parse_certificates(served);
    if all.is_empty() {
        return Err(wrong_answer("/cacerts", url, "it holds no certificate"));
    }
    let Some(digest) = digest else {
        return Ok(served.to_vec());
    };
    let of = |bytes: &[u8]| encode_hex(&Sha256::digest(bytes));
    let pinned = match &all[..] {
        [_] => (of(served) == digest).then(|| served.to_vec()),
        several => several
            .iter()
            .take(x509::MAX_CHAIN)
            .find(|der| of(der) == digest)
            .map(|der| csr::encode_pem("CERTIFICATE", der).into_bytes()),
    };
    let shown = all.last().filter(|_| all.len() > 1);
    pinned.ok_or_else(|| JoinError::OtherCa {
        url: url.without_query(),
        found: of(shown.map_or(served, |der| der)),
    })
}

impl K3sSupervisor {
    /// Makes the supervisor at `url` as a node of the cluster asks it, by its own certificate (K3SJ-08). A busy
    /// supervisor is not asked twice, for the caller asks again later.
    #[must_use]
    pub fn for_member(config: Kubeconfig, url: &Url, proxies: &ProxyVariables) -> Self {
        let config = Kubeconfig {
            servers: anonymous_kubeconfig(url, ServerTrust::Any).servers,
            ..config
        };
        let asked = JoinServer {
            tries: 1,
            ..JoinServer::new(config, proxies)
        };
        Self {
            asked,
            authorization: None,
        }
    }

    fn send_request<T>(
        &self,
        ask: ApiRequest<'_>,
        more: &[(&str, &str)],
        read: impl Fn(ApiResponse) -> Result<T, KubeError>,
    ) -> Result<T, KubeError> {
        let mut headers = more.to_vec();
        if let Some(authorization) = &self.authorization {
            headers.push(("authorization", authorization));
        }
        let ask = ApiRequest {
            more: &headers,
            ..ask
        };
        self.asked.send_with_retries(&ask, read)
    }

    /// Translates a refusal. A token that has ended is not known any more (401), or its user is in no group that may
    /// ask (403).
    fn translate_refusal(&self, error: KubeError) -> JoinError {
        match error.http_status() {
            Some(401 | 403) if self.authorization.is_some() => JoinError::Refused {
                url: self.asked.url.without_query(),
                error,
            },
            _ => error.into(),
        }
    }

    /// Asks for the configuration of the cluster (K3SJ-07).
    pub fn read_cluster(&self) -> Result<K3sCluster, JoinError> {
        self.read_answer("config")
    }

    /// Addresses of the apiservers, `host:port`, in the server's order.
    pub fn read_apiservers(&self) -> Result<Vec<String>, JoinError> {
        let all: Option<Vec<String>> = self.read_answer("apiservers")?;
        let mut all = all.unwrap_or_default();
        all.truncate(MAX_SERVERS);
        Ok(all)
    }

    fn read_answer<T: DeserializeOwned>(&self, name: &'static str) -> Result<T, JoinError> {
        let path = format!("{V1}/{name}");
        let answer = self.send_request(ApiRequest::get(&path), &[], |answer| {
            answer.read_bytes(MAX_PEM_BYTES)
        });
        let text = answer.map_err(|e| self.translate_refusal(e))?;
        from_json(&text).map_err(|e| wrong_answer(name, &self.asked.url, e))
    }

    /// The CAs of clients, PEM.
    pub fn client_ca(&self) -> Result<Vec<u8>, JoinError> {
        let path = format!("{V1}/client-ca.crt");
        let answer = self.send_request(ApiRequest::get(&path), &[], |answer| {
            answer.read_bytes(MAX_PEM_BYTES)
        });
        let pem = answer.map_err(|e| self.translate_refusal(e))?;
        if tls::parse_certificates(&pem).is_empty() {
            return Err(wrong_answer(
                "client-ca.crt",
                &self.asked.url,
                "it holds no certificate",
            ));
        }
        Ok(pem)
    }

    /// Has a fresh key certified (K3SJ-05). Returns chain and key, both PEM.
    ///
    /// - Errors: among others [`JoinError::NodePassword`]: the node has had another password.
    pub fn certify_new_key(
        &self,
        node: &K3sNodeIdentity,
        purpose: CertificatePurpose,
    ) -> Result<(String, String), JoinError> {
        let (file, url) = (purpose.file(), &self.asked.url);
        // Whose certificate it is says the request for the node's own alone.
        let is_of_node = purpose != CertificatePurpose::KubeProxy;
        let subject = match is_of_node {
            true => node_subject(&node.name),
            false => kube_proxy_subject(),
        };
        let made =
            csr::make_key_and_request(&subject).map_err(|e| KubeError::Local(e.to_string()))?;
        let request = CertificateSigningRequestDer::from_pem_slice(made.request.as_bytes())
            .map_err(|e| wrong_answer(file, url, e))?;
        let ips = match &node.ips[..] {
            _ if !is_of_node => Vec::new(),
            [] => own_address(url).into_iter().collect(),
            ips => ips.to_vec(),
        };
        let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
        let ips = ips.join(",");
        let path = format!("{V1}/{file}");
        let ask = ApiRequest::with_body(Method::POST, &path, "application/octet-stream", &request);
        let mut more = Vec::new();
        if is_of_node {
            more.push(("k3s-Node-Name", &*node.name));
            more.push(("k3s-Node-Password", &*node.password));
        }
        if !ips.is_empty() {
            more.push(("k3s-Node-IP", &ips));
        }
        let answer = self.send_request(ask, &more, |answer| answer.read_bytes(MAX_PEM_BYTES));
        let pem = answer.map_err(|e| match e.http_status() {
            Some(403) if is_of_node => JoinError::NodePassword {
                node: node.name.clone(),
            },
            _ => self.translate_refusal(e),
        })?;
        let text = String::from_utf8(pem).map_err(|e| wrong_answer(file, url, e))?;
        if text.contains("PRIVATE KEY") {
            return Err(wrong_answer(
                file,
                url,
                "it sends a private key, which other nodes would have too",
            ));
        }
        check_pair(&text, &made.key)
            .map_err(|e| wrong_answer(file, url, crate::error::error_chain(&e)))?;
        let name = x509::read_chain(text.as_bytes()).map_err(|e| wrong_answer(file, url, e))?;
        let name = &name[0].common_name;
        if purpose != CertificatePurpose::Serving && *name != subject.common_name {
            return Err(wrong_answer(file, url, format!("it is for {name:?}")));
        }
        Ok((text, made.key))
    }
}

/// Asks `servers` one after the other, as a node of the cluster: the first that answers decides, unless its answer is an
/// error that may pass, or cannot be used. One that is not ready, or broken, does not speak for the others. Returns also its
/// place in `servers`.
///
/// - Errors: the last answer that may pass, else the last that cannot be used; if no server answered, the error of the last
///   one that was asked.
fn ask_servers<T>(
    config: &Kubeconfig,
    servers: &[Url],
    proxies: &ProxyVariables,
    ask: impl Fn(&K3sSupervisor) -> Result<T, JoinError>,
) -> Result<(usize, T), JoinError> {
    let mut last = KubeError::Local("no server of k3s is known".into()).into();
    let mut weight = 0;
    for (place, url) in servers.iter().enumerate() {
        let failed = match ask(&K3sSupervisor::for_member(config.clone(), url, proxies)) {
            Ok(answer) => return Ok((place, answer)),
            Err(e) => e,
        };
        let Some(own) = weigh_failure(&failed) else {
            return Err(failed);
        };
        if matches!(failed, JoinError::Wrong { .. }) && place + 1 < servers.len() {
            log::warn!("{failed}. The next server of k3s is asked");
        }
        if own >= weight {
            (last, weight) = (failed, own);
        }
    }
    Err(last)
}

/// Weighs the failure of one of several servers; `None`: it decides for all of them. The answer of one, such as the wish for
/// a pause, counts more than the nonsense of another, and that more than silence.
const fn weigh_failure(error: &JoinError) -> Option<u8> {
    match error {
        JoinError::Kube(e) if !e.is_answer() => Some(0),
        JoinError::Wrong { .. } => Some(1),
        JoinError::Kube(e) if e.may_pass() => Some(2),
        _ => None,
    }
}

/// Has a fresh key certified by one of `servers`, under the name of the certificate in `config` (K3SJ-08).
pub fn renew_certificate(
    config: &Kubeconfig,
    servers: &[Url],
    proxies: &ProxyVariables,
    node: &K3sNodeIdentity,
    purpose: CertificatePurpose,
) -> Result<(String, String), JoinError> {
    let certified = ask_servers(config, servers, proxies, |supervisor| {
        supervisor.certify_new_key(node, purpose)
    });
    certified.map(|(_, pair)| pair)
}

/// Asks one of `servers` for the addresses of the apiservers. Returns also its place in `servers`.
pub fn read_servers(
    config: &Kubeconfig,
    servers: &[Url],
    proxies: &ProxyVariables,
) -> Result<(usize, Vec<String>), JoinError> {
    ask_servers(config, servers, proxies, K3sSupervisor::read_apiservers)
}

/// Asks one of `servers` for the facts of the cluster that a node goes by (K3SN-01).
pub fn read_facts(
    config: &Kubeconfig,
    servers: &[Url],
    proxies: &ProxyVariables,
) -> Result<K3sClusterFacts, JoinError> {
    let answered = ask_servers(config, servers, proxies, |supervisor| {
        let cluster = supervisor.read_cluster()?;
        Ok(cluster.to_facts(supervisor.read_apiservers()?))
    });
    answered.map(|(_, facts)| facts)
}

/// URLs of apiservers other than `first`, sorted. `addresses`: `host:port` each.
pub fn other_apiserver_urls(addresses: &[String], first: &Url) -> Result<Vec<String>, JoinError> {
    let mut urls = Vec::new();
    for address in addresses {
        let text = format!("https://{address}");
        let url = Url::parse(&text).map_err(|e| wrong_answer("apiservers", first, e))?;
        if !url.same_origin(first) {
            urls.push(text);
        }
    }
    urls.sort_unstable();
    Ok(urls)
}

/// Makes a kubeconfig for the apiserver at `url`, without a user yet.
#[must_use]
pub fn apiserver_kubeconfig(url: &Url, trust: ServerTrust) -> Kubeconfig {
    anonymous_kubeconfig(url, trust)
}

/// Finds the address from which the server is reached. Sends no packet.
fn own_address(url: &Url) -> Option<IpAddr> {
    let to: SocketAddr = (url.host(), url.port()).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if to.is_ipv4() {
        ([0_u8; 4], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

/// Reads the password of the node; `None`: it has none yet.
pub fn read_node_password(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(MAX_PASSWORD_BYTES).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(io::Error::other("it holds no password of a node"));
    }
    Ok(Some(text.to_owned()))
}

/// Makes a random password for a new node (K3SJ-04).
pub fn make_node_password() -> Result<String, JoinError> {
    random_digits(&mut [0; PASSWORD_BYTES])
}

/// Makes a random ID for the name of a new node (K3SN-14).
pub fn make_node_id() -> Result<String, JoinError> {
    random_digits(&mut [0; ID_BYTES])
}

fn random_digits(bytes: &mut [u8]) -> Result<String, JoinError> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| KubeError::Local("the system gives no random numbers".into()))?;
    Ok(encode_hex(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::testing::{Authority, NOW, Server, ok, say};

    #[test]
    fn a_server_that_is_not_ready_does_not_speak_for_the_others() {
        // K3ST-10
        let ca = Authority::new();
        let pair = ca.server(&["127.0.0.1"], NOW);
        let url = |server: &Server| Url::parse(&server.url()).expect("a URL");
        let good = Server::tls(&pair, None, |seen| match &*seen.path {
            "/v1-k3s/config" => ok("{}"),
            _ => ok(r#"["10.0.0.1:6443"]"#),
        });
        let trust = ServerTrust::Ca(KubeconfigMaterial::Inline(ca.pem.clone().into()));
        let config = apiserver_kubeconfig(&url(&good), trust);
        let read = |first: &Server| {
            let servers = [url(first), url(&good)];
            let proxies = ProxyVariables::default();
            (
                read_servers(&config, &servers, &proxies),
                read_facts(&config, &servers, &proxies),
            )
        };
        for status in [429, 500, 503] {
            let sick = Server::tls(&pair, None, move |_| say(status, "", b"not ready"));
            let (servers, facts) = read(&sick);
            let (place, apiservers) = servers.expect("the second one");
            assert_eq!(
                (place, &apiservers),
                (1, &vec!["10.0.0.1:6443".to_owned()]),
                "{status}"
            );
            assert_eq!(facts.expect("the second one").apiservers, apiservers);
        }
        // What the first says is no configuration; its certificate is good.
        for nonsense in ["", "<html>", r#"{"a":1}"#] {
            let broken = Server::tls(&pair, None, move |_| ok(nonsense));
            let (servers, facts) = read(&broken);
            assert_eq!(servers.expect("the second one").0, 1, "{nonsense}");
            let facts = facts.expect("the second one");
            assert_eq!(facts.apiservers, ["10.0.0.1:6443"], "{nonsense}");
            // A wish for a pause counts more, and silence less.
            let sick = Server::tls(&pair, None, |_| say(503, "", b"not ready"));
            let proxies = ProxyVariables::default();
            let ask = |all: &[Url]| read_servers(&config, all, &proxies).expect_err("none is well");
            let silent = Url::parse("https://127.0.0.1:1").expect("a URL");
            for all in [[url(&broken), silent.clone()], [silent, url(&broken)]] {
                let why = ask(&all).to_string();
                assert!(why.contains(&broken.url()), "{why}");
            }
            for all in [[url(&broken), url(&sick)], [url(&sick), url(&broken)]] {
                let why = ask(&all);
                assert!(
                    matches!(&why, JoinError::Kube(e) if e.http_status() == Some(503)),
                    "{why}"
                );
            }
        }
        // One that refuses has decided.
        let refuses = Server::tls(&pair, None, |_| say(403, "", b"forbidden"));
        let (refused, _) = read(&refuses);
        assert!(matches!(&refused, Err(JoinError::Kube(e)) if e.http_status() == Some(403)));
    }
}
