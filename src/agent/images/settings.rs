//! How this node pulls images: read once at start.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    config::{Dirs, ImageConfig, decode},
    image::{
        pull::{Policy, Providers, Settings},
        registry::Registries,
    },
    net::ProxyVariables,
};

/// Bytes read of a file of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Docker's configuration of the node's root user, behind the one in the root directory.
const DOCKER_CONFIGS: [&str; 2] = ["/root/.docker/config.json", "/.docker/config.json"];

/// Reads how images are pulled. Errors: what is wrong in which file.
pub(in crate::agent) fn settings(
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
