//! Discovery as `kubeadm join` does it.
//!
//! ```text
//! cluster-info, from anybody ─▶ signed with the token? ─▶ does its CA have the digest? ─▶ the same, verified by that CA
//!    ─▶ kubelet-config, with the token
//! ```
//!
//! Source: kubeadm `app/discovery/token/token.go`, `app/util/pubkeypin`; RFC 7515 appendix F, RFC 7518 section 3.2.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::hmac;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::encode_hex;
use crate::api::yaml::yaml_text;
use crate::config::decode;
use crate::kube::join::{
    JoinError, JoinServer, anonymous_kubeconfig, is_digest, split_bootstrap_token, wrong_answer,
};
use crate::kube::kubeconfig::{KubeconfigFault, KubeconfigMaterial, ServerTrust};
use crate::kube::{KubeError, Kubeconfig, x509};
use crate::net::{ProxyVariables, Url, tls};

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const KUBELET_CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps/kubelet-config";
/// Prefix of a digest.
const SHA256: &str = "sha256:";
/// Name in errors of the answer that holds `cluster-info`.
const INFO: &str = "ConfigMap cluster-info";
const CONFIG: &str = "ConfigMap kubelet-config";

/// A bootstrap token. Only its first half may be shown.
pub(super) struct BootstrapToken {
    id: String,
    secret: String,
}

impl BootstrapToken {
    /// Reads `abcdef.0123456789abcdef`.
    pub(super) fn parse(text: &str) -> Result<Self, JoinError> {
        let (id, secret) = split_bootstrap_token(text).ok_or(JoinError::Token(
            "is not a bootstrap token: 6 lower-case letters or digits, a dot, and 16 more",
        ))?;
        Ok(Self {
            id: id.into(),
            secret: secret.into(),
        })
    }

    /// Returns true if `jws`, whose payload was left out, signs this `payload` with this token.
    pub(super) fn has_signed(&self, jws: &str, payload: &[u8]) -> bool {
        let Some((header, signature)) = jws.split_once("..") else {
            return false;
        };
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let named: Option<Value> = decode(header).and_then(|h| serde_json::from_slice(&h).ok());
        let named = named.is_some_and(|h| h["alg"] == "HS256" && h["kid"] == *self.id);
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.secret.as_bytes());
        let text = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
        let holds = |tag: Vec<u8>| hmac::verify(&key, text.as_bytes(), &tag).is_ok();
        named && decode(signature).is_some_and(holds)
    }
}

/// Digests of public keys of CAs, one of which the cluster's has.
pub(super) struct CaPins(Vec<String>);

impl CaPins {
    /// Reads `sha256:<64 hexadecimal digits>`, several with commas between.
    pub(super) fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, JoinError> {
        let pins = texts.into_iter().flat_map(|text| text.split(','));
        let pins = pins.map(|text| {
            let lower = text.trim().to_ascii_lowercase();
            match lower.strip_prefix(SHA256) {
                Some(digest) if is_digest(digest) => Ok(lower),
                _ => Err(JoinError::Pin),
            }
        });
        pins.collect::<Result<_, _>>().map(Self)
    }
}

/// A cluster that was found.
#[derive(Debug)]
pub(super) struct DiscoveredCluster {
    /// A kubeconfig with the token.
    pub(super) text: String,
    /// The kubeconfig of `text`, read.
    pub(super) config: Kubeconfig,
    /// CAs of the cluster, PEM.
    pub(super) ca: Vec<u8>,
}

/// Finds the cluster at `url`. Without `pins` only the signature proves that it is the right one, and whoever has the
/// token can make it.
pub(super) fn discover_cluster(
    url: &Url,
    token: &BootstrapToken,
    pins: Option<&CaPins>,
    proxies: &ProxyVariables,
) -> Result<DiscoveredCluster, JoinError> {
    let open = JoinServer::new(anonymous_kubeconfig(url, ServerTrust::Any), proxies);
    let url = &open.url;
    let info = open
        .read_document(CLUSTER_INFO)
        .map_err(|e| match e.http_status() {
            Some(401 | 403 | 404) => JoinError::NoClusterInfo {
                url: url.without_query(),
            },
            _ => e.into(),
        })?;
    let text = |field: &str| info["data"][field].as_str().filter(|text| !text.is_empty());
    let kubeconfig =
        text("kubeconfig").ok_or_else(|| wrong_answer(INFO, url, "it has no kubeconfig"))?;
    let jws = text(&format!("jws-kubeconfig-{}", token.id));
    let jws = jws.ok_or_else(|| JoinError::UnknownToken {
        id: token.id.clone(),
    })?;
    if !token.has_signed(jws, kubeconfig.as_bytes()) {
        return Err(JoinError::Signature {
            url: url.without_query(),
        });
    }
    let (server, ca) = read_cluster_info(kubeconfig, url)?;
    if let Some(pins) = pins {
        check_ca_pins(&ca, pins, url)?;
    }
    // From here on only the verified CA is trusted: a server that has it has to give the same answer.
    let trust = ServerTrust::Ca(KubeconfigMaterial::Inline(ca.clone()));
    let again = JoinServer::new(anonymous_kubeconfig(url, trust), proxies);
    let again = again
        .read_document(CLUSTER_INFO)
        .map_err(|e| JoinServer::explain_clock_error(&open, e))?;
    if again["data"]["kubeconfig"] != kubeconfig {
        return Err(JoinError::TwoAnswers {
            url: url.without_query(),
        });
    }
    let text = bootstrap_kubeconfig(&server, &ca, token);
    let config = Kubeconfig::parse("bootstrap".as_ref(), text.as_bytes(), &[])
        .map_err(|e: KubeconfigFault| wrong_answer(INFO, url, e))?;
    Ok(DiscoveredCluster { text, config, ca })
}

/// Reads server and CAs of the only cluster in that kubeconfig, which names no user.
fn read_cluster_info(kubeconfig: &str, url: &Url) -> Result<(String, Vec<u8>), JoinError> {
    let document =
        decode::parse_document(kubeconfig.as_bytes()).map_err(|e| wrong_answer(INFO, url, e))?;
    let clusters = document.value["clusters"].as_array();
    let Some([one]) = clusters.map(Vec::as_slice) else {
        return Err(wrong_answer(
            INFO,
            url,
            "it does not name exactly one cluster",
        ));
    };
    let text = |field: &str| one["cluster"][field].as_str().unwrap_or_default();
    let ca = STANDARD.decode(text("certificate-authority-data"));
    let ca = ca.map_err(|e| wrong_answer(INFO, url, e))?;
    Ok((text("server").to_owned(), ca))
}

/// Checks that at least one of the CAs has one of the digests.
fn check_ca_pins(ca: &[u8], pins: &CaPins, url: &Url) -> Result<(), JoinError> {
    let mut found = String::new();
    for der in tls::parse_certificates(ca).iter().take(x509::MAX_CHAIN) {
        let key = x509::public_key(der).map_err(|e| wrong_answer(INFO, url, e))?;
        found = format!("{SHA256}{}", encode_hex(&Sha256::digest(key)));
        if pins.0.contains(&found) {
            return Ok(());
        }
    }
    if found.is_empty() {
        return Err(wrong_answer(INFO, url, "it holds no CA"));
    }
    Err(JoinError::OtherCa {
        url: url.without_query(),
        found,
    })
}

/// Makes the text of `bootstrap-kubelet.conf`, with kubeadm's names.
fn bootstrap_kubeconfig(server: &str, ca: &[u8], token: &BootstrapToken) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": {
            "server": server, "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "contexts": [{"name": "tls-bootstrap-token-user@kubernetes", "context": {
            "cluster": "kubernetes", "user": "tls-bootstrap-token-user",
        }}],
        "current-context": "tls-bootstrap-token-user@kubernetes",
        "users": [{"name": "tls-bootstrap-token-user", "user": {
            "token": format!("{}.{}", token.id, token.secret),
        }}],
    });
    yaml_text(&config)
}

/// Reads the cluster's settings for kubelets: the text of a `KubeletConfiguration`. `version` is that of the apiserver;
/// before 1.24 it is part of the object's name.
pub(super) fn kubelet_config(
    found: &DiscoveredCluster,
    version: &str,
    proxies: &ProxyVariables,
) -> Result<String, JoinError> {
    let asked = JoinServer::new(found.config.clone(), proxies);
    let mut answer = asked.read_document(KUBELET_CONFIG);
    if let (Err(e), [major, minor, ..]) = (&answer, &*version.split('.').collect::<Vec<_>>())
        && matches!(e.http_status(), Some(403 | 404))
    {
        let of_version = format!("{KUBELET_CONFIG}-{}.{minor}", major.trim_start_matches('v'));
        let older = asked.read_document(&of_version);
        if older.is_ok() {
            answer = older;
        }
    }
    let url = &asked.url;
    let document = answer.map_err(|error: KubeError| match error.http_status() {
        Some(401) => JoinError::Refused {
            url: url.without_query(),
            error,
        },
        Some(403 | 404) => JoinError::Forbidden {
            what: "ConfigMap kubelet-config in kube-system",
            error,
        },
        _ => error.into(),
    })?;
    let text = document["data"]["kubelet"].as_str();
    let text = text.ok_or_else(|| wrong_answer(CONFIG, url, "it has no kubelet"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "abcdef.0123456789abcdef";

    #[test]
    fn tokens_of_kubeadm() {
        assert!(BootstrapToken::parse(SECRET).is_ok());
        for bad in [
            "",
            "abcdef",
            "abcdef.0123",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef.",
            "abcde.f0123456789abcdef",
        ] {
            assert!(BootstrapToken::parse(bad).is_err(), "{bad}");
        }
        let digest = "0Aa".repeat(21) + "0";
        for (pin, good) in [
            (format!("sha256:{digest}"), true),
            (format!("sha256:{digest},sha256:{digest}"), true),
            (digest.clone(), false),
            (format!("sha512:{digest}"), false),
            (format!("sha256:{digest}0"), false),
            (format!("sha256:{digest},"), false),
        ] {
            assert_eq!(CaPins::parse([&*pin]).is_ok(), good, "{pin}");
        }
    }

    #[test]
    fn signatures_of_kubeadm() {
        // Made by another program; the payload is left out of each.
        let good =
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9.._eGhkhvMETkspJf4jT7mXczIA2_goqGeiH7SB4uUaeg";
        let of_nobody =
            "eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..-6HNiMbPbvb192sEqEFwFXRrG6JinVeR251zpyeMWBE";
        let of_other =
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Im90aGVyMCJ9..RXwENVExX0q9C1iMt99W1Yy9UnISAs8E93ohqcNBWS8";
        let token = BootstrapToken::parse(SECRET).expect("a token");
        let other = BootstrapToken::parse("abcdef.0123456789abcdee").expect("a token");
        let payload = b"hello cluster";
        assert!(token.has_signed(good, payload));
        assert!(!token.has_signed(good, b"hello cluste"), "another text");
        assert!(!other.has_signed(good, payload), "another secret");
        for bad in [
            of_nobody,
            of_other,
            "",
            "..",
            "a..b",
            &good[1..],
            &good[..good.len() - 2],
        ] {
            assert!(!token.has_signed(bad, payload), "{bad}");
        }
    }
}
