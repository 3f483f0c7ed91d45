//! Credentials of a pull: those of the pod's pull secrets, then those of the node itself (IMG-13).

use super::for_pod::{ImageFuture, StartingPod};
use crate::{
    agent::recorder::EventSeverity,
    api::{Pod, PodError, Secret, cri::AuthConfig},
    image::{
        pull::{AccountPlugin, NodeCredentialLookup, PluginAccount, RegistryAuths},
        registry::{DockerConfig, Keyring},
    },
    logic::image_access::PullSecret,
    sys::lane::run_on_fresh_thread,
};

/// Credentials that a pod brings: of its pull secrets, and of plugins that were asked with its service account.
#[derive(Default)]
pub(in crate::agent) struct PodPullSecrets {
    found: Vec<(PullSecret, RegistryAuths)>,
    missing: Vec<String>,
    /// The service account instead of a Secret. It has no digest: whatever its credentials are by now, they are its own.
    accounts: Vec<(PullSecret, RegistryAuths)>,
}

/// Keyring of the node: its own credentials for images, and plugins that have some for service accounts.
pub(in crate::agent) trait NodeKeyring {
    /// All credentials for `reference`, in the order in which they are tried. Programs may have to be asked.
    /// `has_account`: the image is for a pod with a service account.
    fn lookup_credentials<'a>(
        &'a self,
        reference: &'a str,
        has_account: bool,
    ) -> ImageFuture<'a, Vec<AuthConfig>>;
    /// Plugins that want to know the service account of a pod with an image of `repository`.
    fn account_plugins(&self, _repository: &str) -> Vec<AccountPlugin> {
        Vec::new()
    }
    /// The answer of `plugin` that is kept for pods of `account`, if there is one.
    fn kept_answer(
        &self,
        _plugin: &AccountPlugin,
        _repository: &str,
        _account: &PluginAccount,
    ) -> Option<RegistryAuths> {
        None
    }
    /// Asks `plugin` for credentials for a token of `account`.
    ///
    /// - Errors: without anything that the plugin said.
    fn ask_account_plugin<'a>(
        &'a self,
        plugin: &AccountPlugin,
        _repository: &str,
        _account: &PluginAccount,
        _token: String,
    ) -> ImageFuture<'a, Result<RegistryAuths, PodError>> {
        let why = PodError::Node(format!("{} cannot be asked", plugin.name));
        Box::pin(core::future::ready(Err(why)))
    }
}

/// Keyring for pulls by this agent or by a runtime.
pub(in crate::agent) struct PullKeyring(pub(in crate::agent) NodeCredentialLookup);

impl NodeKeyring for PullKeyring {
    fn lookup_credentials<'a>(
        &'a self,
        reference: &'a str,
        has_account: bool,
    ) -> ImageFuture<'a, Vec<AuthConfig>> {
        let (keys, reference) = (self.0.clone(), reference.to_owned());
        Box::pin(async move {
            // Plugins may take their time.
            let asked = run_on_fresh_thread("credentials", move || {
                keys.lookup_credentials(&reference, has_account)
            });
            let found = asked.await.unwrap_or_else(|e| {
                log::warn!("credentials of the node: {e}");
                Vec::new()
            });
            found.into_iter().map(Into::into).collect()
        })
    }

    fn account_plugins(&self, repository: &str) -> Vec<AccountPlugin> {
        self.0.account_plugins(repository)
    }

    fn kept_answer(
        &self,
        plugin: &AccountPlugin,
        repository: &str,
        account: &PluginAccount,
    ) -> Option<RegistryAuths> {
        self.0.kept_answer(plugin, repository, account)
    }

    fn ask_account_plugin<'a>(
        &'a self,
        plugin: &AccountPlugin,
        repository: &str,
        account: &PluginAccount,
        token: String,
    ) -> ImageFuture<'a, Result<RegistryAuths, PodError>> {
        let (keys, plugin) = (self.0.clone(), plugin.clone());
        let (repository, account) = (repository.to_owned(), account.clone());
        Box::pin(async move {
            let asked = run_on_fresh_thread("credentials", move || {
                keys.ask_account_plugin(&plugin, &repository, &account, &token)
            });
            let answer = asked.await.map_err(|e| PodError::Node(e.to_string()))?;
            answer.map_err(|e| PodError::Node(e.to_string()))
        })
    }
}

/// Finds the credentials that `pod` brings for `repository`. A plugin that has none for it is told by an event and left out
/// (ICV-08).
pub(super) async fn find_pod_credentials(
    keyring: &dyn NodeKeyring,
    pod: &dyn StartingPod,
    repository: &str,
) -> PodPullSecrets {
    let mut secrets = pod.pull_secrets().await;
    for plugin in keyring.account_plugins(repository) {
        match ask_for_account(keyring, pod, &plugin, repository).await {
            Ok(Some((account, auths))) => {
                let account = account_origin(&account);
                secrets.accounts.push((account, auths));
            }
            Ok(None) => {}
            Err(why) => {
                let message = format!(
                    "Credential plugin {} gave no credentials for the service account: {why}",
                    plugin.name
                );
                let reason = "FailedToRetrieveImagePullCredentials";
                pod.record_event(None, EventSeverity::Warning, reason, &message);
            }
        }
    }
    secrets
}

/// Finds what `pod` brings for an image of `repository` that is here: its Secrets, and its service account if a plugin serves
/// it. No plugin is asked, so that a container also starts while the apiserver or the registry is away.
pub(super) async fn find_brought(
    keyring: &dyn NodeKeyring,
    pod: &dyn StartingPod,
    repository: &str,
) -> Vec<PullSecret> {
    let mut brought = pod.pull_secrets().await.credentials_brought(repository);
    for plugin in keyring.account_plugins(repository) {
        // One that cannot be read is told when the image is pulled.
        if let Ok(Some(account)) = pod.plugin_account(&plugin.attributes).await {
            brought.push(account_origin(&account));
        }
    }
    brought
}

/// The service account instead of a Secret.
fn account_origin(account: &PluginAccount) -> PullSecret {
    PullSecret {
        uid: account.uid.clone(),
        namespace: account.namespace.clone(),
        name: account.name.clone(),
        digest: String::new(),
    }
}

/// Asks a plugin with the pod's service account. `None`: the pod has none, or one that the plugin does not serve.
async fn ask_for_account(
    keyring: &dyn NodeKeyring,
    pod: &dyn StartingPod,
    plugin: &AccountPlugin,
    repository: &str,
) -> Result<Option<(PluginAccount, RegistryAuths)>, PodError> {
    let Some(account) = pod.plugin_account(&plugin.attributes).await? else {
        return Ok(None);
    };
    if let Some(kept) = keyring.kept_answer(plugin, repository, &account) {
        return Ok(Some((account, kept)));
    }
    let audience = &plugin.attributes.service_account_token_audience;
    let token = pod.account_token(audience).await?;
    let asked = keyring.ask_account_plugin(plugin, repository, &account, token);
    Ok(Some((account.clone(), asked.await?)))
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
    /// The credentials by the Secrets that they are in, a digest each, and service accounts, without.
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

    /// The credentials for `repository`, by the Secret that each is in or by the service account that each is for.
    pub(super) fn credentials_brought(&self, repository: &str) -> Vec<PullSecret> {
        let mut brought = Vec::new();
        for (account, auths) in &self.accounts {
            let mut own = Keyring::default();
            own.add_place(auths.clone());
            if !own.lookup_credentials(repository).is_empty() {
                brought.push(account.clone());
            }
        }
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
        let of_secrets = ring.lookup_credentials(repository).into_iter();
        let mut own: Vec<_> = of_secrets
            .map(|credential| PullAttempt {
                digest: Some(credential.credential_digest()),
                auth: Some(credential.into()),
            })
            .collect();
        for (account, auths) in self.accounts {
            let mut ring = Keyring::default();
            ring.add_place(auths);
            let of_account = ring.lookup_credentials(repository).into_iter();
            own.extend(of_account.map(|credential| PullAttempt {
                digest: Some(account.digest.clone()),
                auth: Some(credential.into()),
            }));
        }
        PullCredentials { own, brought }
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
