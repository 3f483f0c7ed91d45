//! Credentials of registries: docker's `config.json`, pull secrets, and which of them are for an image.

use alloc::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::hosts::aliases;
use crate::api::cri::AuthConfig;
use crate::api::encode_hex;
use crate::api::names::matches_glob;
use crate::api::order::OrderExt;
use crate::api::strict::{JsonTextError, from_foreign_json};

/// Largest docker configuration read, bytes: what a Secret can hold.
pub const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// Credential for one registry. All fields may be empty; which are set decides how it is used.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryCredential {
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
    /// Base64 of `user:password`; counts where the two above are empty.
    pub auth: String,
    /// A refresh token, to be exchanged for an access token.
    #[serde(rename = "identitytoken", alias = "identity_token")]
    pub identity_token: String,
    /// An access token, sent as it is.
    #[serde(rename = "registrytoken")]
    pub registry_token: String,
}

impl RegistryCredential {
    /// User and password, from whichever field has them; `None` if there is no user.
    #[must_use]
    pub fn basic_auth(&self) -> Option<(String, String)> {
        if !self.username.is_empty() {
            return Some((self.username.clone(), self.password.clone()));
        }
        let decoded = STANDARD.decode(self.auth.trim()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (user, password) = text.split_once(':')?;
        // Old clients pad with zero bytes.
        let password = password.trim_end_matches('\0');
        (!user.is_empty()).then(|| (user.to_owned(), password.to_owned()))
    }

    /// Digest that tells the credential from others, for storing instead of it: a SHA-256 of all its fields, hex.
    #[must_use]
    pub fn credential_digest(&self) -> String {
        let mut sum = Sha256::new();
        let (user, password) = self.basic_auth().unwrap_or_default();
        for field in [&user, &password, &self.identity_token, &self.registry_token] {
            // Lengths keep one field from running into the next.
            sum.update(field.len().to_le_bytes().as_slice());
            sum.update(field.as_bytes());
        }
        encode_hex(&sum.finalize())
    }

    /// Returns true if `text` is one of the secrets.
    #[must_use]
    pub fn has_text(&self, text: &str) -> bool {
        let password = self.basic_auth().map(|(_, password)| password);
        password.as_deref() == Some(text)
            || [&self.identity_token, &self.registry_token]
                .iter()
                .any(|secret| *secret == text)
    }

    /// Returns true if no field of use is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.identity_token.is_empty()
            && self.registry_token.is_empty()
            && self.basic_auth().is_none()
    }
}

impl From<RegistryCredential> for AuthConfig {
    fn from(credential: RegistryCredential) -> Self {
        Self {
            username: credential.username,
            password: credential.password,
            auth: credential.auth,
            identity_token: credential.identity_token,
            registry_token: credential.registry_token,
        }
    }
}

impl From<AuthConfig> for RegistryCredential {
    fn from(config: AuthConfig) -> Self {
        Self {
            username: config.username,
            password: config.password,
            auth: config.auth,
            identity_token: config.identity_token,
            registry_token: config.registry_token,
        }
    }
}

/// Says which fields are set, never their values.
impl core::fmt::Debug for RegistryCredential {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Credential")
            .field("user", &self.basic_auth().is_some())
            .field("identity_token", &!self.identity_token.is_empty())
            .field("registry_token", &!self.registry_token.is_empty())
            .finish()
    }
}

/// Docker's `config.json`, or the data of a `kubernetes.io/dockerconfigjson` Secret.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DockerConfig {
    /// Credentials by registry or repository.
    pub auths: BTreeMap<String, RegistryCredential>,
    /// Program `docker-credential-NAME` for all registries.
    pub creds_store: String,
    /// Programs by registry.
    pub cred_helpers: BTreeMap<String, String>,
}

impl DockerConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// It is not one; the message holds nothing of its contents but field names.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonTextError> {
        from_foreign_json(bytes).map_err(JsonTextError::without_value)
    }

    /// Reads the old form, `.dockercfg`: the credentials by registry and nothing else.
    ///
    /// # Errors
    /// As for [`DockerConfig::parse`].
    pub fn parse_dockercfg(bytes: &[u8]) -> Result<Self, JsonTextError> {
        Ok(Self {
            auths: from_foreign_json(bytes).map_err(JsonTextError::without_value)?,
            ..Self::default()
        })
    }
}

/// Credentials from several places, each place's sorted by how exactly they fit.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// Key as normalised, credential; place by place.
    pub(super) places: Vec<Vec<(String, RegistryCredential)>>,
}

impl Keyring {
    /// Adds a place behind those that are there.
    pub fn add_place(&mut self, auths: impl IntoIterator<Item = (String, RegistryCredential)>) {
        let mut place: Vec<(String, RegistryCredential)> = auths
            .into_iter()
            .filter(|(_, credential)| !credential.is_empty())
            .map(|(key, credential)| (normalise_key(&key), credential))
            .collect();
        // Reverse lexical: of two keys that fit, the longer one comes first.
        place.stable_sort_by(|a, b| b.0.cmp(&a.0));
        if !place.is_empty() {
            self.places.push(place);
        }
    }

    /// All credentials for `image` (domain and path, normalised), in the order in which they are tried; each once.
    /// Source: kubelet `pkg/credentialprovider/keyring.go`, `Lookup`.
    #[must_use]
    pub fn lookup_credentials(&self, image: &str) -> Vec<RegistryCredential> {
        let mut found: Vec<RegistryCredential> = Vec::new();
        for place in &self.places {
            let mut fits = Vec::new();
            for (key, credential) in place {
                if key_matches_image(key, image) {
                    fits.push(credential);
                }
            }
            if fits.is_empty() {
                fits.extend(
                    place
                        .iter()
                        .filter(|(key, _)| is_hub_alias(key, image))
                        .map(|(_, c)| c),
                );
            }
            for credential in fits {
                if !found.contains(credential) {
                    found.push(credential.clone());
                }
            }
        }
        found
    }
}

/// Returns true if a key and an image both are of Docker Hub, by different names. Such a key counts for all of its
/// images, as the one that docker writes does.
pub(in crate::image) fn is_hub_alias(key: &str, image: &str) -> bool {
    let host = |text: &str| text.split('/').next().unwrap_or("").to_owned();
    let key = host(key);
    aliases(&host(image)).any(|name| name == key)
}

/// Cuts off scheme and API version: `https://index.docker.io/v1/` is `index.docker.io`.
pub(in crate::image) fn normalise_key(key: &str) -> String {
    let rest = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = ["v1/", "v2/"]
        .iter()
        .find_map(|version| path.strip_prefix(version))
        .unwrap_or(if matches!(path, "v1" | "v2") {
            ""
        } else {
            path
        });
    // A slash at the end stays: the component before it is whole then.
    if path.trim_matches('/').is_empty() {
        host.to_owned()
    } else {
        format!("{host}/{path}")
    }
}

/// Returns true if a key is for an image: port equal, as many labels, each a pattern, path a prefix.
/// Source: kubelet `pkg/credentialprovider/keyring.go`, `URLsMatch`.
#[must_use]
pub fn key_matches_image(key: &str, image: &str) -> bool {
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let (host, path) = image.split_once('/').unwrap_or((image, ""));
    let (key_host, key_port) = crate::net::url::split_port(key_host);
    let (host, port) = crate::net::url::split_port(host);
    key_port == port
        && key_host.split('.').count() == host.split('.').count()
        && key_host
            .split('.')
            .zip(host.split('.'))
            .all(|(pattern, label)| matches_glob(pattern, label))
        && path.starts_with(key_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> RegistryCredential {
        RegistryCredential {
            username: name.into(),
            password: "p".into(),
            ..RegistryCredential::default()
        }
    }

    #[test]
    fn which_key_is_for_which_image() {
        // IMG-14
        for (key, image, fits) in [
            ("quay.io", "quay.io/a/b", true),
            ("https://quay.io/v2/", "quay.io/a/b", true),
            ("quay.io/a", "quay.io/a/b", true),
            ("quay.io/c", "quay.io/a/b", false),
            ("quay.io/team", "quay.io/teamwork/b", true),
            ("quay.io/team/", "quay.io/teamwork/b", false),
            ("quay.io/team/", "quay.io/team/b", true),
            ("https://quay.io/v2/team/", "quay.io/teamwork/b", false),
            ("quay.io/", "quay.io/a", true),
            ("https://quay.io/v2//", "quay.io/a", true),
            ("quay.io:5000", "quay.io/a/b", false),
            ("quay.io:5000", "quay.io:5000/a", true),
            ("*.quay.io", "quay.io/a", false),
            ("*.example", "a.example/b", true),
            ("*.example", "x.a.example/b", false),
            ("*.dkr.ecr.*.aws.com", "1.dkr.ecr.eu.aws.com/x", true),
            ("pre*fix?.io", "prexfix1.io/a", true),
            ("pre*fix?.io", "prexfix.io/a", false),
            ("http://host/v1/", "host/a", true),
        ] {
            assert_eq!(
                key_matches_image(&normalise_key(key), image),
                fits,
                "{key} {image}"
            );
        }
    }

    #[test]
    fn order_of_credentials() {
        // IMG-13 IMG-14
        let mut ring = Keyring::default();
        ring.add_place([
            ("quay.io".to_owned(), user("wide")),
            ("quay.io/a".to_owned(), user("close")),
            ("empty.io".to_owned(), RegistryCredential::default()),
        ]);
        ring.add_place([
            ("quay.io/a/b".to_owned(), user("node")),
            ("quay.io".to_owned(), user("wide")),
            (
                "https://index.docker.io/v1/".to_owned(),
                RegistryCredential {
                    auth: STANDARD.encode("hub:secret\0\0"),
                    ..RegistryCredential::default()
                },
            ),
        ]);
        let users = |image: &str| -> Vec<String> {
            ring.lookup_credentials(image)
                .iter()
                .map(|c| c.basic_auth().expect("user").0)
                .collect()
        };
        assert_eq!(users("quay.io/a/b"), ["close", "wide", "node"]);
        assert_eq!(users("quay.io/x"), ["wide"]);
        assert_eq!(users("docker.io/library/busybox"), ["hub"]);
        assert_eq!(users("empty.io/x"), Vec::<String>::new());
        assert_eq!(users("registry-1.docker.io/library/busybox"), ["hub"]);
        for key in ["registry-1.docker.io", "https://registry-1.docker.io/v2/"] {
            let mut ring = Keyring::default();
            ring.add_place([(key.to_owned(), user("hub"))]);
            assert_eq!(
                ring.lookup_credentials("docker.io/library/busybox").len(),
                1,
                "{key}"
            );
            assert_eq!(
                ring.lookup_credentials("example.io/library/busybox").len(),
                0,
                "{key}"
            );
        }
        let hub = ring.lookup_credentials("docker.io/library/busybox");
        assert_eq!(hub[0].basic_auth(), Some(("hub".into(), "secret".into())));
        assert!(!format!("{ring:?}").contains("secret"), "{ring:?}");
    }

    #[test]
    fn documents() {
        // IMG-13
        let config = DockerConfig::parse(
            br#"{"auths": {"a.io": {"auth": "dTpw"}, "b.io": {"identitytoken": "t"}},
                "credHelpers": {"c.io": "pass"}, "credsStore": "x", "HttpHeaders": {}}"#,
        )
        .expect("config");
        assert_eq!(
            config.auths["a.io"].basic_auth(),
            Some(("u".into(), "p".into()))
        );
        assert_eq!(config.auths["b.io"].identity_token, "t");
        assert_eq!(config.cred_helpers["c.io"], "pass");
        let old = DockerConfig::parse_dockercfg(br#"{"a.io": {"username": "u", "password": "p"}}"#);
        assert_eq!(old.expect("old").auths["a.io"].username, "u");
        assert!(DockerConfig::parse(b"[]").is_err());
        assert!(DockerConfig::parse(b"{\"auths\": [1]}").is_err());
    }
}
