//! What a pull is given: the node's settings at start, the pod's secrets each time.

use alloc::collections::BTreeMap;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{cluster, ctx::Ctx, recorder::Severity};
use crate::{
    api::{Pod, Secret},
    config::{Dirs, ImageConfig, decode},
    image::{
        pull::{Policy, Providers, Settings},
        registry::{Credential, DockerConfig, Keyring, Registries},
    },
    logic::image_access::PullSecret,
    net::ProxyVariables,
};

/// Bytes read of a file of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Docker's configuration of the node's root user, behind the one in the root directory.
const DOCKER_CONFIGS: [&str; 2] = ["/root/.docker/config.json", "/.docker/config.json"];

/// Reads how images are pulled. Errors: what is wrong in which file.
pub(super) fn settings(
    images: &ImageConfig,
    dirs: &Dirs,
    proxies: ProxyVariables,
) -> Result<Settings, String> {
    let registries = match document(&images.registries) {
        Ok(document) => Registries::parse(&document)
            .map_err(|why| format!("{}: {why}", images.registries.display()))?,
        Err(None) => Registries::default(),
        Err(Some(why)) => return Err(why),
    };
    let providers = match &images.credential_providers {
        Some((file, dir)) => {
            let document = document(file)
                .map_err(|why| why.unwrap_or_else(|| format!("{}: not found", file.display())))?;
            Providers::parse(&document, dir.clone())
                .map_err(|why| format!("{}: {why}", file.display()))?
        }
        None => Providers::default(),
    };
    let mut docker_configs: Vec<PathBuf> = vec![dirs.root.join("config.json")];
    docker_configs.extend(DOCKER_CONFIGS.iter().map(PathBuf::from));
    Ok(Settings {
        registries,
        proxies,
        docker_configs,
        providers,
        policy: Policy {
            allowed: images.allowed_registries.clone(),
            require_digest: images.require_digest,
        },
        verifier: None,
        bytes_per_second: images.bytes_per_second,
        parallel: images.parallel_pulls,
        ..Settings::default()
    })
}

/// A YAML or JSON file; an error of `None`: there is none.
fn document(path: &Path) -> Result<Value, Option<String>> {
    let at = |why: &dyn core::fmt::Display| Some(format!("{}: {why}", path.display()));
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(None),
        file => file.map_err(|e| at(&e))?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|e| at(&e))?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    let document = decode::parse(&bytes).map_err(|e| at(&e))?;
    if let Some(duplicate) = document.duplicates.first() {
        return Err(at(&format!("field {duplicate} occurs twice")));
    }
    Ok(document.value)
}

/// What a pod brings for a pull.
pub(super) struct Credentials {
    /// All of it.
    pub(super) ring: Keyring,
    /// What is for the image, by the Secret that it is in.
    pub(super) brought: Vec<PullSecret>,
}

/// The credentials that a pod brings for `repository`. What is missing or no credential is told and left out (IMG-13).
pub(super) async fn credentials(ctx: &Ctx, pod: &Pod, repository: &str) -> Credentials {
    let (secrets, missing) = read(ctx, pod).await;
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        ctx.pod_event(
            pod,
            Severity::Warning,
            "FailedToRetrieveImagePullSecret",
            &message,
        );
    }
    let brought = for_repository(&secrets, repository);
    let mut ring = Keyring::default();
    for (_, auths) in secrets {
        ring.add(auths);
    }
    Credentials { ring, brought }
}

/// The credentials that a pod brings for `repository`, by the Secret that each is in.
pub(super) async fn brought(ctx: &Ctx, pod: &Pod, repository: &str) -> Vec<PullSecret> {
    for_repository(&read(ctx, pod).await.0, repository)
}

/// Credentials by registry.
type Auths = BTreeMap<String, Credential>;

/// What the pod's Secrets hold, and the names of those that are missing or hold no credentials.
async fn read(ctx: &Ctx, pod: &Pod) -> (Vec<(PullSecret, Auths)>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let loaded = cluster::objects::for_pulls(ctx, pod).await;
    let objects = ctx.objects.borrow();
    let namespace = &pod.metadata.namespace;
    for reference in &pod.spec.image_pull_secrets {
        let name = &*reference.name;
        if name.is_empty() {
            continue;
        }
        let secret = match &loaded {
            Some(loaded) => loaded.secret(name).ok().flatten(),
            None => objects.secret(namespace, name),
        };
        match secret.and_then(|secret| Some((secret, docker_config(secret)?))) {
            Some((secret, config)) => {
                let origin = PullSecret {
                    uid: secret.metadata.uid.to_string(),
                    namespace: namespace.clone(),
                    name: name.into(),
                    digest: String::new(),
                };
                found.push((origin, config.auths));
            }
            None => missing.push(name.to_owned()),
        }
    }
    (found, missing)
}

fn for_repository(secrets: &[(PullSecret, Auths)], repository: &str) -> Vec<PullSecret> {
    let mut brought = Vec::new();
    for (origin, auths) in secrets {
        let mut own = Keyring::default();
        own.add(auths.clone());
        brought.extend(own.lookup(repository).iter().map(|credential| PullSecret {
            digest: credential.digest(),
            ..origin.clone()
        }));
    }
    brought
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
