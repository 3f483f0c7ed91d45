//! Credentials of a pull: those of the pod's pull secrets, then those of the node itself (IMG-13).

use alloc::{collections::BTreeMap, sync::Arc};

use super::for_pod::ImageFuture;
use crate::{
    api::{Pod, Secret, cri::AuthConfig},
    image::{
        pull::NodeCredentialLookup,
        registry::{DockerConfig, Keyring, RegistryCredential},
    },
    logic::image_access::PullSecret,
    runtime::runc::store_images::StoreImages,
    sys::lane::run_on_fresh_thread,
};

/// Credentials by registry.
type RegistryAuths = BTreeMap<String, RegistryCredential>;

/// Content of a pod's pull secrets.
#[derive(Default)]
pub(in crate::agent) struct PodPullSecrets {
    found: Vec<(PullSecret, RegistryAuths)>,
    missing: Vec<String>,
}

/// Keyring of the node: its own credentials for images.
pub(in crate::agent) trait NodeKeyring {
    /// All credentials for `reference`, in the order in which they are tried. Programs may have to be asked.
    fn lookup_credentials<'a>(&'a self, reference: &'a str) -> ImageFuture<'a, Vec<AuthConfig>>;
}

/// Keyring for images that a runtime pulls.
pub(in crate::agent) struct RuntimeKeyring(pub(in crate::agent) Arc<NodeCredentialLookup>);

impl NodeKeyring for RuntimeKeyring {
    fn lookup_credentials<'a>(&'a self, reference: &'a str) -> ImageFuture<'a, Vec<AuthConfig>> {
        let (keys, reference) = (Arc::clone(&self.0), reference.to_owned());
        Box::pin(async move {
            // Plugins may take their time.
            let asked =
                run_on_fresh_thread("credentials", move || keys.lookup_credentials(&reference));
            let found = asked.await.unwrap_or_else(|e| {
                log::warn!("credentials of the node: {e}");
                Vec::new()
            });
            found.into_iter().map(Into::into).collect()
        })
    }
}

impl NodeKeyring for StoreImages {
    fn lookup_credentials<'a>(&'a self, reference: &'a str) -> ImageFuture<'a, Vec<AuthConfig>> {
        Box::pin(self.node_credentials(reference))
    }
}

/// A try of a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PullAttempt {
    /// Credential to present; `None`: the try is anonymous.
    pub(super) auth: Option<AuthConfig>,
    /// Digest of the credential if the pod brought it. `None`: every pod on this node may do as much.
    pub(super) digest: Option<String>,
}

/// Credentials that a pod brings for a pull.
pub(super) struct PullCredentials {
    /// Tries, in their order.
    pub(super) own: Vec<PullAttempt>,
    /// The credentials by the Secrets that they are in, a digest each.
    pub(super) brought: Vec<PullSecret>,
}

/// All tries: a pod's credentials, then the node's, each once. Without any, one anonymous try.
pub(super) fn pull_attempts(own: &[PullAttempt], node: Vec<AuthConfig>) -> Vec<PullAttempt> {
    let mut all = own.to_vec();
    for auth in node {
        if !all.iter().any(|known| known.auth.as_ref() == Some(&auth)) {
            all.push(PullAttempt {
                auth: Some(auth),
                digest: None,
            });
        }
    }
    if all.is_empty() {
        all.push(PullAttempt::default());
    }
    all
}

impl PodPullSecrets {
    /// Reads the Secrets that `pod` names; `secret` has one by its name.
    pub(in crate::agent) fn read<'s>(
        pod: &Pod,
        secret: impl Fn(&str) -> Option<&'s Secret>,
    ) -> Self {
        let mut secrets = Self::default();
        for reference in &pod.spec.image_pull_secrets {
            let name = &*reference.name;
            if name.is_empty() {
                continue;
            }
            match secret(name).and_then(|secret| Some((secret, parse_docker_config(secret)?))) {
                Some((secret, config)) => {
                    let origin = PullSecret {
                        uid: secret.metadata.uid.to_string(),
                        namespace: pod.metadata.namespace.clone(),
                        name: name.into(),
                        digest: String::new(),
                    };
                    secrets.found.push((origin, config.auths));
                }
                None => secrets.missing.push(name.to_owned()),
            }
        }
        secrets
    }

    /// Names of Secrets that are missing or hold no credentials.
    pub(super) fn missing_secrets(&self) -> &[String] {
        &self.missing
    }

    /// The credentials for `repository`, by the Secret that each is in.
    pub(super) fn credentials_brought(&self, repository: &str) -> Vec<PullSecret> {
        let mut brought = Vec::new();
        for (origin, auths) in &self.found {
            let mut own = Keyring::default();
            own.add_place(auths.clone());
            brought.extend(own.lookup_credentials(repository).iter().map(|credential| {
                PullSecret {
                    digest: credential.credential_digest(),
                    ..origin.clone()
                }
            }));
        }
        brought
    }

    /// Picks the credentials for a pull from `repository`.
    pub(super) fn into_credentials(self, repository: &str) -> PullCredentials {
        let brought = self.credentials_brought(repository);
        let mut ring = Keyring::default();
        for (_, auths) in self.found {
            ring.add_place(auths);
        }
        let own = ring
            .lookup_credentials(repository)
            .into_iter()
            .map(|credential| PullAttempt {
                digest: Some(credential.credential_digest()),
                auth: Some(credential.into()),
            });
        PullCredentials {
            own: own.collect(),
            brought,
        }
    }
}

fn parse_docker_config(secret: &Secret) -> Option<DockerConfig> {
    let data = |key: &str| {
        let text = secret.string_data.get(key).map(String::as_bytes);
        text.or_else(|| secret.data.get(key).map(|b| b.0.as_slice()))
    };
    match secret.kind.as_str() {
        "kubernetes.io/dockerconfigjson" => DockerConfig::parse(data(".dockerconfigjson")?).ok(),
        "kubernetes.io/dockercfg" => DockerConfig::parse_dockercfg(data(".dockercfg")?).ok(),
        _ => None,
    }
}
