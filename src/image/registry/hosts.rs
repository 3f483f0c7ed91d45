//! Registries and their mirrors: `registries.yaml` as k3s reads it, and the endpoints that a reference leads to.
//!
//! ```yaml
//! mirrors:
//!   docker.io:
//!     endpoint: ["https://mirror.example:5000"]
//!     rewrite: {"^library/(.*)": "hub/$1"}
//!   "*": {endpoint: ["https://cache.example"]}
//! configs:
//!   mirror.example:5000:
//!     auth: {username: u, password: p}
//!     tls: {ca_file: /etc/ca.pem, cert_file: c, key_file: k, insecure_skip_verify: false}
//! ```
//!
//! Docker Hub's three names are one registry. An endpoint with a path other than `/v2` is asked just there. The registry
//! itself is always the last endpoint, never rewritten. Source: k3s, "Private Registry Configuration".

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;
use std::path::{Path, PathBuf};

use regex_lite::{Regex, RegexBuilder};
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::Value;

use super::keyring::RegistryCredential;
use crate::api::strict::{WrongValue, typed_from_value};
use crate::error::error_chain;
use crate::image::reference::ImageReference;
use crate::net::any_peer::PeerProof;
use crate::net::tls::{self, ClientIdentity, PemSource, ServerRoots, TlsError};
use crate::net::url::{Url, UrlError, is_loopback, split_port};

/// Endpoints tried for one image, the registry itself included.
pub const MAX_ENDPOINTS: usize = 16;
/// Largest compiled rewrite pattern, bytes.
const MAX_PATTERN_BYTES: usize = 64 * 1024;
/// Unknown keys that are named.
const MAX_UNKNOWN: usize = 20;
/// Keys of the document, of a mirror, of a host, and of its `auth` and `tls`.
const TOP_KEYS: &[&str] = &["mirrors", "configs"];
const MIRROR_KEYS: &[&str] = &["endpoint", "rewrite"];
const HOST_KEYS: &[&str] = &["auth", "tls"];
const AUTH_KEYS: &[&str] = &[
    "username",
    "password",
    "auth",
    "identity_token",
    "identitytoken",
    "registrytoken",
];
const TLS_KEYS: &[&str] = &["ca_file", "cert_file", "key_file", "insecure_skip_verify"];
/// Longest rewritten repository, bytes.
const MAX_REWRITTEN_BYTES: usize = 512;
/// Docker Hub, as it is called in images' names, where its registry is, and where its accounts are: one and the same.
const HUB_NAMES: [&str; 3] = ["docker.io", HUB, "index.docker.io"];
/// Host of Docker Hub's registry.
const HUB: &str = "registry-1.docker.io";

/// The other names of a registry.
pub(in crate::image) fn aliases(authority: &str) -> impl Iterator<Item = &'static str> {
    let is_hub = HUB_NAMES.contains(&authority);
    let own = authority.to_owned();
    let names = HUB_NAMES.iter().copied();
    names.filter(move |name| is_hub && *name != own)
}

/// The value of a registry, by whichever of its names it is there.
fn find_by_alias<'a, V>(map: &'a BTreeMap<String, V>, authority: &str) -> Option<&'a V> {
    map.get(authority)
        .or_else(|| aliases(authority).find_map(|name| map.get(name)))
}

/// `registries.yaml`, checked.
#[derive(Debug, Default)]
pub struct RegistriesConfig {
    mirrors: BTreeMap<String, RegistryMirror>,
    configs: BTreeMap<String, HostConfig>,
}

#[derive(Debug)]
struct RegistryMirror {
    /// URLs; `true` for those that are written with a scheme.
    endpoints: Vec<(Url, bool)>,
    /// Patterns and their replacements, in the order of the patterns' texts.
    rewrites: Vec<(Regex, String)>,
}

/// Configuration of one host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HostConfig {
    /// Credential for the host.
    pub auth: Option<RegistryCredential>,
    /// TLS files of the host; `None`: the system's CAs are used.
    pub tls: Option<TlsFiles>,
}

/// `tls` of a host. Files are checked at start, and read when the host is first asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TlsFiles {
    /// CA certificates in PEM, beside the system's.
    pub ca_file: PathBuf,
    /// Client certificate and its chain in PEM.
    pub cert_file: PathBuf,
    /// Key of the client certificate in PEM.
    pub key_file: PathBuf,
    /// Take any certificate.
    pub insecure_skip_verify: bool,
}

impl TlsFiles {
    /// Checks that TLS can be spoken with these files. The system's CAs are not looked at.
    pub(super) fn check_files(&self) -> Result<(), TlsError> {
        let roots = match Self::optional_pem(&self.ca_file) {
            Some(ca) if !self.insecure_skip_verify => ServerRoots::Only(ca),
            _ => ServerRoots::Any(PeerProof::Key),
        };
        tls::client_config(roots, self.client_identity()).map(drop)
    }

    /// TLS with the system's CAs and these files.
    pub(super) fn client_config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = if self.insecure_skip_verify {
            ServerRoots::Any(PeerProof::Key)
        } else {
            ServerRoots::SystemAnd(Self::optional_pem(&self.ca_file))
        };
        tls::client_config(roots, self.client_identity())
    }

    fn client_identity(&self) -> Option<ClientIdentity<'_>> {
        Some(ClientIdentity {
            chain: Self::optional_pem(&self.cert_file)?,
            key: Self::optional_pem(&self.key_file)?,
        })
    }

    fn optional_pem(path: &Path) -> Option<PemSource<'_>> {
        (!path.as_os_str().is_empty()).then_some(PemSource::File(path))
    }
}

/// A place where an image may be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryEndpoint {
    /// URL up to and including `/v2`.
    pub base: Url,
    /// Repository there.
    pub repository: String,
    /// Registry that a mirror stands for; `None` for the registry itself.
    pub mirrored: Option<String>,
    /// Set if the scheme of `base` is a guess, http: a server of this machine without `tls`, whose scheme is written
    /// nowhere. If it speaks TLS, it is asked so ([`super::http::RegistryHttp::settle_scheme`]).
    pub guessed: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RegistriesDocument {
    mirrors: BTreeMap<String, MirrorDocument>,
    configs: BTreeMap<String, HostConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MirrorDocument {
    endpoint: Vec<String>,
    rewrite: BTreeMap<String, String>,
}

impl RegistriesConfig {
    /// Reads the document.
    ///
    /// # Errors
    /// The first wrong value, with its path.
    pub fn parse(document: &Value) -> Result<Self, WrongValue> {
        if document.is_null() {
            return Ok(Self::default());
        }
        let document: RegistriesDocument =
            typed_from_value(document).map_err(WrongValue::without_value)?;
        let mut mirrors = BTreeMap::new();
        for (host, mirror) in document.mirrors {
            let at = |what: &str, why: &dyn fmt::Display| {
                WrongValue::new(format!("mirrors.{host}.{what}"), why.to_string())
            };
            if mirror.endpoint.len() >= MAX_ENDPOINTS {
                let why = format!("has more than {MAX_ENDPOINTS} items");
                return Err(at("endpoint", &why));
            }
            let mut endpoints = Vec::new();
            for text in &mirror.endpoint {
                let url =
                    parse_endpoint(text).map_err(|why| at(&format!("endpoint {text:?}"), &why))?;
                endpoints.push((url, text.contains("://")));
            }
            let mut rewrites = Vec::new();
            for (pattern, by) in &mirror.rewrite {
                let regex = RegexBuilder::new(pattern)
                    .size_limit(MAX_PATTERN_BYTES)
                    .build()
                    .map_err(|e| at(&format!("rewrite {pattern:?}"), &e))?;
                rewrites.push((regex, by.clone()));
            }
            mirrors.insert(
                host,
                RegistryMirror {
                    endpoints,
                    rewrites,
                },
            );
        }
        for (host, config) in &document.configs {
            let tls = config.tls.as_ref();
            let alone = |tls: &TlsFiles| {
                tls.cert_file.as_os_str().is_empty() != tls.key_file.as_os_str().is_empty()
            };
            if tls.is_some_and(alone) {
                let why = "cert_file and key_file must both be set";
                return Err(WrongValue::new(format!("configs.{host}.tls"), why));
            }
        }
        Ok(Self {
            mirrors,
            configs: document.configs,
        })
    }

    /// Returns the keys of a document that mean nothing, each with those that are known in its place.
    #[must_use]
    pub fn unknown_keys(document: &Value) -> Vec<WrongValue> {
        let mut found = Vec::new();
        let mut look = |path: &str, value: &Value, known: &[&str]| {
            for key in value
                .as_object()
                .into_iter()
                .flat_map(|fields| fields.keys())
            {
                if !known.contains(&&**key) && found.len() < MAX_UNKNOWN {
                    let why = format!("unknown key is ignored (known there: {})", known.join(", "));
                    found.push(WrongValue::new(format!("{path}{key}"), why));
                }
            }
        };
        look("", document, TOP_KEYS);
        let hosts = |part: &str| document[part].as_object().into_iter().flatten();
        for (host, mirror) in hosts("mirrors") {
            look(&format!("mirrors.{host}."), mirror, MIRROR_KEYS);
        }
        for (host, config) in hosts("configs") {
            look(&format!("configs.{host}."), config, HOST_KEYS);
            for (part, known) in [("auth", AUTH_KEYS), ("tls", TLS_KEYS)] {
                look(&format!("configs.{host}.{part}."), &config[part], known);
            }
        }
        found
    }

    /// Returns the hosts that cannot be asked, for a file of their `tls` is of no use.
    #[must_use]
    pub fn find_unusable_files(&self) -> Vec<WrongValue> {
        let hosts = self.configs.iter().filter_map(|(host, config)| {
            let why = config.tls.as_ref()?.check_files().err()?;
            Some(WrongValue::new(
                format!("configs.{host}.tls"),
                error_chain(&why),
            ))
        });
        hosts.collect()
    }

    /// Says what in it is without effect if a container runtime pulls the images.
    #[must_use]
    pub fn without_effect(&self) -> Option<&'static str> {
        let has_tls = self.configs.values().any(|config| config.tls.is_some());
        (has_tls || !self.mirrors.is_empty()).then_some(
            "mirrors and tls are without effect with containerRuntimeEndpoint: set them in the container runtime",
        )
    }

    /// Returns true if there are credentials in it.
    #[must_use]
    pub fn has_credentials(&self) -> bool {
        let mut auths = self
            .configs
            .values()
            .filter_map(|config| config.auth.as_ref());
        auths.any(|auth| !auth.is_empty())
    }

    /// Configuration of a host (with its port, if it has one).
    #[must_use]
    pub fn host_config(&self, authority: &str) -> Option<&HostConfig> {
        find_by_alias(&self.configs, authority).or_else(|| self.configs.get("*"))
    }

    /// The endpoints for an image, in the order in which they are asked; the registry itself last.
    #[must_use]
    pub fn image_endpoints(&self, reference: &ImageReference) -> Vec<RegistryEndpoint> {
        let domain = reference.domain();
        let path = &reference.repository()[domain.len() + 1..];
        let mut endpoints: Vec<RegistryEndpoint> = Vec::new();
        let own = RegistryEndpoint {
            base: self.registry_url(domain),
            repository: path.to_owned(),
            mirrored: None,
            guessed: self.is_scheme_guessed(domain),
        };
        let mirror = find_by_alias(&self.mirrors, domain).or_else(|| self.mirrors.get("*"));
        if let Some(mirror) = mirror {
            let repository = mirror.rewrite_path(path);
            for (url, has_scheme) in &mirror.endpoints {
                let mut base = with_version(url);
                base.https |= !has_scheme && !self.is_plain_http(&base.authority);
                // Named as its own mirror, usually for plain http, it is still the registry: no mirror stands for it.
                let itself = base.authority == own.base.authority;
                endpoints.push(RegistryEndpoint {
                    guessed: !base.https && self.is_scheme_guessed(&base.authority),
                    base,
                    repository: repository.clone(),
                    mirrored: (!itself).then(|| domain.to_owned()),
                });
            }
        }
        // An endpoint that is written twice is asked once; another path on the same host is another endpoint.
        let same = |e: &RegistryEndpoint| {
            (&e.base.authority, &e.base.path, &e.repository)
                == (&own.base.authority, &own.base.path, &own.repository)
        };
        if !endpoints.iter().any(same) {
            endpoints.push(own);
        }
        endpoints
    }

    fn registry_url(&self, domain: &str) -> Url {
        let authority = if HUB_NAMES.contains(&domain) {
            HUB
        } else {
            domain
        };
        Url {
            https: !self.is_plain_http(domain),
            authority: authority.to_ascii_lowercase(),
            path: "/v2".into(),
        }
    }

    /// Returns true if a registry is asked without TLS unless it speaks TLS: it is on this machine, and has no `tls`.
    fn is_plain_http(&self, authority: &str) -> bool {
        let (host, _) = split_port(authority);
        is_loopback(&host.to_ascii_lowercase().replace(['[', ']'], ""))
            && !authority.ends_with(":443")
            && find_by_alias(&self.configs, authority).is_none_or(|c| c.tls.is_none())
    }

    /// Returns true if the scheme of a server is a guess: it is on this machine, and its scheme is written nowhere. Any
    /// certificate is taken from it then, for without TLS it would have to show none.
    ///
    /// - Source: docker, for which every registry on a loopback address is an insecure one.
    fn is_scheme_guessed(&self, authority: &str) -> bool {
        let mut endpoints = self.mirrors.values().flat_map(|mirror| &mirror.endpoints);
        self.is_plain_http(authority)
            && !endpoints.any(|(url, has_scheme)| *has_scheme && url.authority == authority)
    }
}

impl RegistryMirror {
    fn rewrite_path(&self, path: &str) -> String {
        for (pattern, by) in &self.rewrites {
            if pattern.is_match(path) {
                let rewritten = pattern.replace_all(path, by.as_str());
                if rewritten.len() <= MAX_REWRITTEN_BYTES && is_request_path(&rewritten) {
                    return rewritten.into_owned();
                }
            }
        }
        path.to_owned()
    }
}

/// Returns true if `text` may stand in the path of a request. A rewrite is the operator's, but the text that it
/// captures is the pod's.
fn is_request_path(text: &str) -> bool {
    text.split('/').all(|part| {
        !matches!(part, "" | "." | "..")
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    })
}

/// An endpoint as it is written: without a scheme it is https, but on this machine's own ports. One without a path is asked
/// below `/v2`; with another path it is taken as it is, though Docker Hub's other names lead to its registry. Source: k3s
/// `pkg/agent/containerd`, `normalizeEndpointAddress`.
fn parse_endpoint(text: &str) -> Result<Url, UrlError> {
    let url = if text.contains("://") {
        Url::parse(text)?
    } else {
        let https = Url::parse(&format!("https://{text}"))?;
        let plain = is_loopback(https.host()) && https.port() != 443;
        Url {
            https: !plain,
            ..https
        }
    };
    let authority = if HUB_NAMES.contains(&url.authority.as_str()) {
        HUB.to_owned()
    } else {
        url.authority
    };
    Ok(Url { authority, ..url })
}

/// The address below which an endpoint is asked.
fn with_version(url: &Url) -> Url {
    match url.path.trim_end_matches('/') {
        "" => url.with_path("/v2".into()),
        path => url.with_path(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoints(registries: &RegistriesConfig, image: &str) -> Vec<String> {
        let reference = ImageReference::parse(image).expect(image);
        let list = registries.image_endpoints(&reference);
        list.iter()
            .map(|e| format!("{}/{}", e.base, e.repository))
            .collect()
    }

    #[test]
    fn where_an_image_is_looked_for() {
        let registries = RegistriesConfig::parse(&json!({
            "mirrors": {
                "docker.io": {
                    "endpoint": ["https://m.example:5000", "http://n.example/cache/", "o.example/x/v2"],
                    "rewrite": {"^library/(.*)": "hub/$1"},
                },
                "plain.example:80": {"endpoint": ["http://plain.example:80"]},
                "bad.example": {"endpoint": ["https://m.example"], "rewrite": {".*": "../../$0"}},
                "tls.example": {"endpoint": ["localhost:6000", "localhost:7000"]},
                "*": {"endpoint": ["https://all.example"]},
            },
            "configs": {"localhost:6000": {"tls": {"insecure_skip_verify": true}}},
        }))
        .expect("registries");
        for (image, want) in [
            (
                "busybox",
                &[
                    "https://m.example:5000/v2/hub/busybox",
                    "http://n.example/cache/hub/busybox",
                    "https://o.example/x/v2/hub/busybox",
                    "https://registry-1.docker.io/v2/library/busybox",
                ][..],
            ),
            (
                "user/app",
                &[
                    "https://m.example:5000/v2/user/app",
                    "http://n.example/cache/user/app",
                    "https://o.example/x/v2/user/app",
                    "https://registry-1.docker.io/v2/user/app",
                ],
            ),
            ("plain.example:80/a", &["http://plain.example:80/v2/a"]),
            (
                "bad.example/a",
                &["https://m.example/v2/a", "https://bad.example/v2/a"],
            ),
            (
                "tls.example/a",
                &[
                    "https://localhost:6000/v2/a",
                    "http://localhost:7000/v2/a",
                    "https://tls.example/v2/a",
                ],
            ),
            (
                "quay.io/a/b",
                &["https://all.example/v2/a/b", "https://quay.io/v2/a/b"],
            ),
            (
                "localhost:5000/a",
                &["https://all.example/v2/a", "http://localhost:5000/v2/a"],
            ),
            (
                "localhost:6000/a",
                &["https://all.example/v2/a", "https://localhost:6000/v2/a"],
            ),
        ] {
            assert_eq!(endpoints(&registries, image), want, "{image}");
        }
        let none = RegistriesConfig::parse(&Value::Null).expect("empty");
        assert_eq!(
            endpoints(&none, "a:1"),
            ["https://registry-1.docker.io/v2/library/a"]
        );
    }

    #[test]
    fn keys_that_mean_nothing_and_files_that_are_not_there() {
        // CONF-23
        let document = json!({
            "mirrrors": {},
            "mirrors": {"docker.io": {"endpoints": [], "endpoint": [], "rewrite": {"any": "x"}}},
            "configs": {
                "a.example": {"Tls": {}, "tls": {"ca_file": "/absent/ca.pem", "cafile": ""}},
                "b.example": {"auth": {"user": "u", "username": "u", "identity_token": "t"}},
                "c.example": {"tls": {"ca_file": "/dev/null"}},
                "d.example": {"tls": {"ca_file": "/dev/null", "insecure_skip_verify": true}},
            },
        });
        let unknown = RegistriesConfig::unknown_keys(&document);
        let paths: Vec<&str> = unknown.iter().map(|wrong| &*wrong.path).collect();
        assert_eq!(
            paths,
            [
                "mirrrors",
                "mirrors.docker.io.endpoints",
                "configs.a.example.Tls",
                "configs.a.example.tls.cafile",
                "configs.b.example.auth.user",
            ]
        );
        assert_eq!(
            unknown[0].to_string(),
            "mirrrors: unknown key is ignored (known there: mirrors, configs)"
        );
        let registries = RegistriesConfig::parse(&document).expect("registries");
        let files = registries.find_unusable_files();
        let told: Vec<String> = files.iter().map(ToString::to_string).collect();
        assert!(
            told[0].starts_with("configs.a.example.tls: cannot read /absent/ca.pem"),
            "{told:?}"
        );
        assert_eq!(
            told[1],
            "configs.c.example.tls: /dev/null holds no CA certificate"
        );
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(registries.has_credentials());
        assert!(!RegistriesConfig::default().has_credentials());
        let many: Value = (0..100).map(|n| (n.to_string(), Value::Null)).collect();
        assert_eq!(RegistriesConfig::unknown_keys(&many).len(), MAX_UNKNOWN);
    }

    #[test]
    fn endpoints_as_k3s_reads_them() {
        for (text, want) in [
            ("https://m.example", "https://m.example/v2"),
            ("https://m.example/", "https://m.example/v2"),
            ("https://m.example/v2", "https://m.example/v2"),
            ("https://m.example/v2/", "https://m.example/v2"),
            ("https://m.example/v2/cache", "https://m.example/v2/cache"),
            ("http://m.example/a/b", "http://m.example/a/b"),
            ("m.example:5000", "https://m.example:5000/v2"),
            ("localhost:5000", "http://localhost:5000/v2"),
            ("127.0.0.1:5000/x", "http://127.0.0.1:5000/x"),
            ("localhost", "https://localhost/v2"),
            ("localhost:443", "https://localhost:443/v2"),
            ("https://localhost:5000", "https://localhost:5000/v2"),
            ("docker.io", "https://registry-1.docker.io/v2"),
        ] {
            let url = parse_endpoint(text).expect(text);
            assert_eq!(with_version(&url).to_string(), want, "{text}");
        }
    }

    #[test]
    fn the_registry_as_its_own_mirror() {
        let hub = "https://registry-1.docker.io";
        for (mirror, image, endpoint, want) in [
            ("docker.io", "busybox", hub, vec![None]),
            ("docker.io", "busybox", "index.docker.io/v2/", vec![None]),
            ("index.docker.io", "busybox", hub, vec![None]),
            ("registry-1.docker.io", "busybox", "docker.io", vec![None]),
            ("a.example", "a.example/x", "http://a.example", vec![None]),
            // Another path is another place, and the registry comes after it.
            (
                "a.example",
                "a.example/x",
                "https://a.example/old",
                vec![None, None],
            ),
            (
                "a.example",
                "a.example/x",
                "https://m.example",
                vec![Some("a.example"), None],
            ),
        ] {
            let document = json!({"mirrors": {mirror: {"endpoint": [endpoint]}}});
            let registries = RegistriesConfig::parse(&document).expect("registries");
            let reference = ImageReference::parse(image).expect(image);
            let found = registries.image_endpoints(&reference);
            let mirrored: Vec<_> = found.iter().map(|e| e.mirrored.as_deref()).collect();
            assert_eq!(mirrored, want, "{image} {endpoint}");
        }
        // What is said of it is said by any of its names, and by its own name first.
        for key in HUB_NAMES {
            let document = json!({"configs": {key: {"auth": {"username": key}}, "*": {}}});
            let registries = RegistriesConfig::parse(&document).expect("registries");
            for name in HUB_NAMES {
                let auth = registries.host_config(name).and_then(|h| h.auth.clone());
                assert_eq!(auth.expect(name).username, key);
            }
            assert_eq!(
                registries.host_config("x").map(|h| h.auth.is_some()),
                Some(false)
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (document, says) in [
            (
                json!({"mirrors": {"a": {"endpoint": "x"}}}),
                "mirrors.a.endpoint",
            ),
            (
                json!({"mirrors": {"a": {"endpoint": ["ftp://x"]}}}),
                "neither http:// nor https://",
            ),
            (
                json!({"mirrors": {"a": {"rewrite": {"(": "x"}}}}),
                "rewrite \"(\"",
            ),
            (json!({"configs": []}), "configs"),
            (
                json!({"configs": {"a": {"tls": {"insecure_skip_verify": "yes"}}}}),
                "insecure_skip_verify",
            ),
            (
                json!({"configs": {"a": {"tls": {"cert_file": "/c"}}}}),
                "configs.a.tls: cert_file and key_file must both be set",
            ),
        ] {
            let error = RegistriesConfig::parse(&document)
                .expect_err(says)
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
