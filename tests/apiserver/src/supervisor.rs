//! The part of a k3s server that makes nodes, beside its apiserver and at the same port: as strict as the real one, and in two
//! things stricter, for both must never happen: credentials sent to `/cacerts`, and a request that asks for the shared key.
//!
//! Source: k3s `pkg/server/handlers`, `pkg/nodepassword`, `pkg/clientaccess`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::api::Reply;
use crate::auth::User;
use crate::core::Core;
use crate::error::ApiError;
use crate::http::Head;
use crate::lock;
use crate::pki::{Authority, Signed};
use crate::remotedialer::Sessions;

const V1: &str = "/v1-k3s/";
/// Groups that may ask at all.
const ADMITTED: [&str; 3] = ["k3s:agent", "system:nodes", "system:bootstrappers"];
/// Seconds that certificates of the server live.
const SERVING_LIFE_S: i64 = 365 * 24 * 3600;

/// A supervisor. The authority of the cluster is that of clients.
pub(crate) struct Supervisor {
    /// That of servers, the nodes' among them.
    pub(crate) authority: Authority,
    /// `server:password`, as in `node-token`.
    pub(crate) secret: String,
    /// How the apiserver reaches nodes.
    pub(crate) egress: String,
    /// Ways to nodes that they have opened.
    pub(crate) sessions: Sessions,
    /// What each node is known by. The real one keeps hashes.
    passwords: Mutex<BTreeMap<String, String>>,
}

/// A request for it.
pub(crate) struct Call<'a> {
    pub(crate) path: &'a str,
    pub(crate) head: &'a Head,
    pub(crate) body: &'a [u8],
    pub(crate) user: Result<User, ApiError>,
}

impl Supervisor {
    pub(crate) fn new(now_s: i64, secret: String, egress: String) -> Result<Self, ApiError> {
        Ok(Self {
            authority: Authority::new(now_s).map_err(ApiError::internal)?,
            secret,
            egress,
            sessions: Sessions::default(),
            passwords: Mutex::default(),
        })
    }

    /// Whether the path is one of its own.
    pub(crate) fn owns(path: &str) -> bool {
        path == "/cacerts" || path.starts_with(V1)
    }

    /// Whether it gives nodes their addresses and provider IDs.
    pub(crate) fn has_cloud_controller(&self, core: &Core) -> bool {
        self.config(core)["DisableCCM"] == false
    }

    /// Whether nodes are reached by sessions alone.
    pub(crate) fn has_tunnel(&self) -> bool {
        self.egress != "disabled"
    }

    /// Forgets a node, as whoever deletes its Secret has it do.
    pub(crate) fn forget(&self, node: &str) {
        lock(&self.passwords).remove(node);
    }

    pub(crate) fn answer(&self, core: &Core, call: Call<'_>) -> Result<Reply, ApiError> {
        if call.path == "/cacerts" {
            if !call.head.header("authorization").is_empty() {
                return Err(ApiError::bad_request("a stranger was sent credentials"));
            }
            return Ok(Reply::Text(self.authority.pem.clone()));
        }
        let user = self.user(&call)?;
        if !ADMITTED.iter().any(|group| user.in_group(group)) {
            return Err(ApiError::new(403, "Forbidden", "forbidden"));
        }
        let text = match call.path.strip_prefix(V1).unwrap_or_default() {
            "config" => self.config(core).to_string(),
            "apiservers" => {
                let own = format!("127.0.0.1:{}", core.port.load(Ordering::Relaxed));
                json!([own, "192.0.2.1:6443"]).to_string()
            }
            "connect" => return session(&call, &user),
            "client-ca.crt" => core.authority.pem.clone(),
            "client-kubelet.crt" => {
                let node = self.node(core, &call, &user)?;
                let signed = Signed {
                    common_name: format!("system:node:{node}"),
                    organisation: Some("system:nodes"),
                    is_client: true,
                    hosts: Vec::new(),
                    life_s: i64::try_from(core.config.certificate_life.as_secs()).unwrap_or(1),
                };
                certify(&core.authority, core, &call, &signed)?
            }
            // Neither name nor password of the node: who may ask at all may have it.
            "client-kube-proxy.crt" => {
                let signed = Signed {
                    common_name: "system:kube-proxy".to_owned(),
                    organisation: None,
                    is_client: true,
                    hosts: Vec::new(),
                    life_s: i64::try_from(core.config.certificate_life.as_secs()).unwrap_or(1),
                };
                certify(&core.authority, core, &call, &signed)?
            }
            "serving-kubelet.crt" => {
                let node = self.node(core, &call, &user)?;
                let mut hosts = vec![node.clone(), "localhost".into(), "127.0.0.1".into()];
                for ip in call.head.header("k3s-node-ip").split(',') {
                    if ip.parse::<std::net::IpAddr>().is_err() {
                        return Err(ApiError::internal("invalid node IP address"));
                    }
                    hosts.push(ip.to_owned());
                }
                let signed = Signed {
                    common_name: node,
                    organisation: None,
                    is_client: false,
                    hosts,
                    life_s: SERVING_LIFE_S,
                };
                certify(&self.authority, core, &call, &signed)?
            }
            _ => return Err(ApiError::new(404, "NotFound", "404 page not found")),
        };
        Ok(Reply::Text(text))
    }

    /// The configuration of the cluster, in Go's words; what a test has set goes before.
    fn config(&self, core: &Core) -> Value {
        let pods = json!({"IP": "10.42.0.0", "Mask": "//8AAA=="});
        let services = json!({"IP": "10.43.0.0", "Mask": "//8AAA=="});
        let mut config = json!({
            "ClusterDNS": "10.43.0.10", "ClusterDNSs": ["10.43.0.10"], "ClusterDomain": "k3s.local",
            "IPSECPSK": "secret-of-the-cluster", "ClusterIPRange": pods, "ClusterIPRanges": [pods],
            "ServiceIPRange": services, "ServiceIPRanges": [services],
            "ServiceNodePortRange": {"Base": 30000, "Size": 2768}, "HTTPSPort": 0, "SupervisorPort": 0,
            "EgressSelectorMode": self.egress, "FlannelBackend": "vxlan", "FlannelIPv6Masq": false,
            "FlannelExternalIP": false, "DisableKubeProxy": false, "DisableNPC": false, "DisableCCM": false,
            "DisableServiceLB": false, "EmbeddedRegistry": false, "MinTLSVersion": "", "CipherSuites": null,
        });
        for (name, value) in core.config.k3s_config.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        config
    }

    fn user(&self, call: &Call<'_>) -> Result<User, ApiError> {
        let header = call.head.header("authorization");
        let Some(basic) = header.strip_prefix("Basic ") else {
            return call.user.clone();
        };
        let said = STANDARD.decode(basic).unwrap_or_default();
        let said = String::from_utf8(said).unwrap_or_default();
        let (_, password) = self.secret.split_once(':').unwrap_or_default();
        // One password, and two users of which each may ask for other things.
        match said.split_once(':') {
            Some(("node", given)) if given == password => Ok(User::known("node", &["k3s:agent"])),
            Some(("server", given)) if given == password => {
                Ok(User::known("server", &["k3s:server"]))
            }
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// Whose certificate is asked for, if it may be.
    fn node(&self, core: &Core, call: &Call<'_>, user: &User) -> Result<String, ApiError> {
        let header = |name| call.head.header(name);
        let (name, password) = (
            header("k3s-node-name").to_lowercase(),
            header("k3s-node-password"),
        );
        if name.is_empty() || password.is_empty() {
            return Err(ApiError::bad_request("node name or password not set"));
        }
        if let Some(own) = user.node() {
            if own != name {
                return Err(ApiError::bad_request(
                    "header node name does not match auth node name",
                ));
            }
            if core.store().find("nodes", "", &name).is_none() {
                return Err(ApiError::unauthorized());
            }
        }
        let mut passwords = lock(&self.passwords);
        let known = passwords
            .entry(name.clone())
            .or_insert_with(|| password.to_owned());
        if *known != password {
            let why = "unable to verify hash for node";
            return Err(ApiError::new(403, "Forbidden", why));
        }
        Ok(name)
    }
}

/// Who opens a session: a node, by its certificate alone.
fn session(call: &Call<'_>, user: &User) -> Result<Reply, ApiError> {
    let head = call.head;
    let node = user.node().filter(|_| user.in_group("system:nodes"));
    let Some(node) = node.filter(|_| head.header("authorization").is_empty()) else {
        return Err(ApiError::unauthorized());
    };
    let is_upgrade = head.header("upgrade").eq_ignore_ascii_case("websocket")
        && head.header("connection").eq_ignore_ascii_case("upgrade")
        && head.header("sec-websocket-version") == "13"
        && head.header("sec-websocket-key").len() == 24
        && head.header("sec-websocket-protocol").is_empty()
        && head.header("sec-websocket-extensions").is_empty();
    if head.method != "GET" || !is_upgrade {
        return Err(ApiError::bad_request("not a websocket handshake"));
    }
    Ok(Reply::Session(node.to_owned()))
}

/// The certificate and its CA; only the key of the request counts.
fn certify(
    authority: &Authority,
    core: &Core,
    call: &Call<'_>,
    signed: &Signed,
) -> Result<String, ApiError> {
    if call.head.method != "POST" {
        return Err(ApiError::bad_request(
            "asks for the key that all nodes share",
        ));
    }
    let now = core.clock.now_s();
    let certificate = authority.certify(call.body, signed, now);
    let pem = certificate
        .map_err(|_| ApiError::bad_request("no request: asks for the key that all nodes share"))?;
    Ok(format!("{pem}{}", authority.pem))
}
