//! Settings for pulls of this node: read once at start.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    api::strict::WrongValue,
    config::{
        Dirs, ImageConfig,
        decode::{self, DecodeError},
    },
    image::{
        pull::{Policy, Providers, Settings},
        registry::Registries,
    },
    net::ProxyVariables,
    sys::file,
};

/// Bytes read of a file of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Docker's configuration of the node's root user, behind the one in the root directory.
const DOCKER_CONFIGS: [&str; 2] = ["/root/.docker/config.json", "/.docker/config.json"];

/// Reason why a file with settings for pulls is of no use. Its author has to mend it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{}", .0.display())]
    Unread(PathBuf, #[source] io::Error),
    #[error("{}", .0.display())]
    NoDocument(PathBuf, #[source] DecodeError),
    #[error("{}", .0.display())]
    Wrong(PathBuf, #[source] WrongValue),
}

/// Reads the settings for pulls.
pub(crate) fn settings(
    images: &ImageConfig,
    dirs: &Dirs,
    proxies: ProxyVariables,
) -> Result<Settings, SettingsError> {
    let wrong = |file: &Path| {
        let file = file.to_owned();
        move |e| SettingsError::Wrong(file, e)
    };
    let registries = match document(&images.registries)? {
        Some(document) => Registries::parse(&document).map_err(wrong(&images.registries))?,
        None => Registries::default(),
    };
    let providers = match &images.credential_providers {
        Some((file, dir)) => {
            let document = document(file)?.ok_or_else(|| {
                let absent = io::Error::new(io::ErrorKind::NotFound, "not found");
                SettingsError::Unread(file.clone(), absent)
            })?;
            Providers::parse(&document, dir.clone()).map_err(wrong(file))?
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
        bytes_per_second: images.bytes_per_second,
        parallel: images.parallel_pulls,
        ..Settings::default()
    })
}

/// A YAML or JSON file, if it is there.
fn document(path: &Path) -> Result<Option<Value>, SettingsError> {
    let bytes = match file::read_start(path, MAX_FILE_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| SettingsError::Unread(path.to_owned(), e))?,
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Some(Value::Null));
    }
    let document =
        decode::parse(&bytes).map_err(|e| SettingsError::NoDocument(path.to_owned(), e))?;
    if let Some(twice) = document.duplicates.into_iter().next() {
        let wrong = WrongValue::new(twice, "occurs twice");
        return Err(SettingsError::Wrong(path.to_owned(), wrong));
    }
    Ok(Some(document.value))
}
