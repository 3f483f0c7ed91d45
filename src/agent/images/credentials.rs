//! What a pod's pull secrets bring for its images (IMG-13).

use alloc::collections::BTreeMap;

use crate::{
    api::{Pod, Secret},
    image::registry::{Credential, DockerConfig, Keyring},
    logic::image_access::PullSecret,
};

/// Credentials by registry.
type Auths = BTreeMap<String, Credential>;

/// What the pull secrets of a pod hold.
#[derive(Default)]
pub(in crate::agent) struct PodSecrets {
    found: Vec<(PullSecret, Auths)>,
    missing: Vec<String>,
}

/// What a pod brings for a pull.
pub(super) struct Credentials {
    /// All of it.
    pub(super) ring: Keyring,
    /// What is for the image, by the Secret that it is in.
    pub(super) brought: Vec<PullSecret>,
}

impl PodSecrets {
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
            match secret(name).and_then(|secret| Some((secret, docker_config(secret)?))) {
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

    /// Names of those that are missing or hold no credentials.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The credentials for `repository`, by the Secret that each is in.
    pub(super) fn brought(&self, repository: &str) -> Vec<PullSecret> {
        let mut brought = Vec::new();
        for (origin, auths) in &self.found {
            let mut own = Keyring::default();
            own.add(auths.clone());
            brought.extend(own.lookup(repository).iter().map(|credential| PullSecret {
                digest: credential.digest(),
                ..origin.clone()
            }));
        }
        brought
    }

    /// All of it, for a pull from `repository`.
    pub(super) fn into_credentials(self, repository: &str) -> Credentials {
        let brought = self.brought(repository);
        let mut ring = Keyring::default();
        for (_, auths) in self.found {
            ring.add(auths);
        }
        Credentials { ring, brought }
    }
}

fn docker_config(secret: &Secret) -> Option<DockerConfig> {
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
