//! Settings for pulls of this node: read once at start.

use core::fmt;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    api::strict::WrongValue,
    config::{
        AgentDirs, ImageConfig,
        decode::{self, DecodeError},
    },
    image::{
        pull::{CredentialProviders, NodeImagePolicy, PullSettings},
        registry::RegistriesConfig,
    },
    net::ProxyVariables,
    sys::file,
};

/// Most files in a directory of plugins' configurations: each names one plugin at least.
const MAX_PROVIDER_FILES: usize = 32;
/// Bytes read of a file of settings.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Docker's configuration of the node's root user, behind the one in the root directory.
const DOCKER_CONFIGS: [&str; 2] = ["/root/.docker/config.json", "/.docker/config.json"];

/// Reason why a file with settings for pulls is of no use. Its author has to mend it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullSettingsError {
    #[error("{}", .0.display())]
    Unread(PathBuf, #[source] io::Error),
    #[error("{}", .0.display())]
    NoDocument(PathBuf, #[source] DecodeError),
    #[error("{0}")]
    Wrong(SettingsPlace, #[source] WrongValue),
}

/// File, and the line of it if that is known.
#[derive(Debug)]
pub(crate) struct SettingsPlace(PathBuf, Option<usize>);

impl fmt::Display for SettingsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)?;
        self.1.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// A file of settings, read.
struct SettingsFile {
    path: PathBuf,
    text: String,
    value: Value,
}

impl SettingsFile {
    fn settings_place(&self, path: &str) -> SettingsPlace {
        SettingsPlace(self.path.clone(), find_line_number(&self.text, path))
    }

    fn wrong_value_error(&self) -> impl FnOnce(WrongValue) -> PullSettingsError {
        |e| PullSettingsError::Wrong(self.settings_place(&e.path), e)
    }
}

/// Reads the settings for pulls.
pub(crate) fn read_pull_settings(
    images: &ImageConfig,
    dirs: &AgentDirs,
    proxies: ProxyVariables,
) -> Result<PullSettings, PullSettingsError> {
    let (registries, faults) = read_registries(&images.registries)?;
    for fault in faults {
        log::warn!("{fault}");
    }
    let providers = read_credential_providers(images.credential_providers.as_ref())?;
    let mut docker_configs: Vec<PathBuf> = vec![dirs.root.join("config.json")];
    docker_configs.extend(DOCKER_CONFIGS.iter().map(PathBuf::from));
    Ok(PullSettings {
        registries,
        proxies,
        docker_configs,
        providers,
        policy: NodeImagePolicy {
            allowed: images.allowed_registries.clone(),
            require_digest: images.require_digest,
        },
        bytes_per_second: images.bytes_per_second,
        parallel: images.parallel_pulls,
        ..PullSettings::default()
    })
}

/// Reads the configuration of credential plugins, if one is named: a file or a directory, beside the directory of the plugins.
pub(crate) fn read_credential_providers(
    configured: Option<&(PathBuf, PathBuf)>,
) -> Result<CredentialProviders, PullSettingsError> {
    let Some((file, dir)) = configured else {
        return Ok(CredentialProviders::default());
    };
    let files = match file.is_dir() {
        true => list_provider_files(file)?,
        false => vec![file.clone()],
    };
    let mut providers = CredentialProviders::default();
    for file in files {
        let read = read_settings_file(&file)?.ok_or_else(|| unread_as(&file, "not found"))?;
        CredentialProviders::parse(&read.value, dir.clone())
            .and_then(|more| providers.add(more))
            .map_err(read.wrong_value_error())?;
    }
    Ok(providers)
}

/// Files of a directory of plugins' configurations, sorted by name.
fn list_provider_files(dir: &Path) -> Result<Vec<PathBuf>, PullSettingsError> {
    let unread = |e| PullSettingsError::Unread(dir.to_owned(), e);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(unread)? {
        let path = entry.map_err(unread)?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if matches!(kind, Some("json" | "yaml" | "yml")) && path.is_file() {
            files.push(path);
        }
        if files.len() > MAX_PROVIDER_FILES {
            let why = format!("has more than {MAX_PROVIDER_FILES} files");
            return Err(unread_as(dir, &why));
        }
    }
    if files.is_empty() {
        return Err(unread_as(dir, "has no .json, .yaml or .yml file"));
    }
    files.sort_unstable();
    Ok(files)
}

fn unread_as(path: &Path, why: &str) -> PullSettingsError {
    let error = io::Error::new(io::ErrorKind::NotFound, why.to_owned());
    PullSettingsError::Unread(path.to_owned(), error)
}

/// Reads `registries.yaml`, if it is there. Returns it, and what is wrong in it and keeps no agent from its start: a line
/// each, with the place.
pub(crate) fn read_registries(
    path: &Path,
) -> Result<(RegistriesConfig, Vec<String>), PullSettingsError> {
    let Some(read) = read_settings_file(path)? else {
        return Ok((RegistriesConfig::default(), Vec::new()));
    };
    let registries = RegistriesConfig::parse(&read.value).map_err(read.wrong_value_error())?;
    let mut faults = RegistriesConfig::unknown_keys(&read.value);
    faults.extend(registries.find_unusable_files());
    let told = faults
        .iter()
        .map(|e| format!("{}: {e}", read.settings_place(&e.path)));
    Ok((registries, told.collect()))
}

/// A YAML or JSON file, if it is there.
fn read_settings_file(path: &Path) -> Result<Option<SettingsFile>, PullSettingsError> {
    let bytes = match file::read_start(path, MAX_FILE_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| PullSettingsError::Unread(path.to_owned(), e))?,
    };
    let mut read = SettingsFile {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        value: Value::Null,
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Some(read));
    }
    let document = decode::parse_document(&bytes)
        .map_err(|e| PullSettingsError::NoDocument(path.to_owned(), e))?;
    if let Some(twice) = document.duplicates.into_iter().next() {
        return Err(read.wrong_value_error()(WrongValue::new(
            twice,
            "occurs twice",
        )));
    }
    read.value = document.value;
    Ok(Some(read))
}

/// The line of a YAML text in which the last key of `path` stands, or the last one that is found. Keys that follow each
/// other in one line count as its first one.
fn find_line_number(text: &str, path: &str) -> Option<usize> {
    let (mut rest, mut found) = (path, None);
    for (n, line) in text.lines().enumerate() {
        let key = line.trim_start_matches([' ', '\t', '-', '{', '"', '\'']);
        let ends = |tail: &str| tail.is_empty() || tail.starts_with(['.', ' ', '[']);
        // Names of hosts have dots and colons of their own.
        let mut is_whole = false;
        let behind = (1..=rest.len())
            .rev()
            .filter(|&at| rest.is_char_boundary(at) && ends(&rest[at..]))
            .find(|&at| {
                let tail = key.strip_prefix(&rest[..at]);
                let tail = tail.map(|tail| tail.trim_start_matches(['"', '\'', ' ']));
                let value = tail.and_then(|tail| tail.strip_prefix(':'));
                is_whole = value.is_some_and(|value| value.trim_start().starts_with('{'));
                value.is_some()
            });
        if let Some(at) = behind {
            found = Some(n + 1);
            rest = rest[at..].trim_start_matches('.');
            if rest.is_empty() || is_whole {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::error_chain, testing::TestDir};

    #[test]
    fn plugins_may_be_configured_by_a_directory() {
        // ICV-05
        let scratch = TestDir::new("settings");
        let configured = (scratch.0.clone(), "/plugins".into());
        let told = || match read_credential_providers(Some(&configured)) {
            Ok(found) => format!("{found:?}"),
            Err(e) => {
                let dir = scratch.0.display().to_string();
                format!("error: {}", error_chain(&e).replace(&dir, "DIR"))
            }
        };
        let file = |name: &str, plugin: &str| {
            let text = format!(
                "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
                 - name: {plugin}\n  matchImages: [a.example]\n  defaultCacheDuration: 1h\n  \
                 apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
            );
            fs::write(scratch.join(name), text).expect("scratch");
        };
        assert_eq!(told(), "error: DIR: has no .json, .yaml or .yml file");
        file("b.yaml", "second");
        file("a.yml", "first");
        file("c.txt", "none");
        let found = told();
        let place = |name: &str| found.find(name);
        assert!(
            place("first") < place("second") && place("none").is_none(),
            "{found}"
        );
        assert!(place("first").is_some());
        file("c.json", "second");
        assert_eq!(
            told(),
            "error: DIR/c.json:3: providers[0].name: \"second\" is in another file too"
        );
    }

    #[test]
    fn what_is_wrong_in_registries_yaml_is_told_with_its_line() {
        // CONF-23
        let scratch = TestDir::new("settings");
        let path = scratch.join("registries.yaml");
        let told = |text: &str| {
            fs::write(&path, text).expect("scratch");
            let told = match read_registries(&path) {
                Ok((_, faults)) => faults.join("\n"),
                Err(e) => format!("error: {}", error_chain(&e)),
            };
            told.replace(&path.display().to_string(), "FILE")
        };
        for (text, want) in [
            ("", ""),
            ("mirrors: {}\n", ""),
            ("# ours\nmirrrors: {}\n", "FILE:2: mirrrors: unknown key"),
            (
                "mirrors:\n  a.example:\n    endpoint: [\"https://m.example\"]\n  b.example:\n    endpoints: []\n",
                "FILE:5: mirrors.b.example.endpoints: unknown key",
            ),
            (
                "mirrors:\n  \"b.example:5000\":\n    endpoint: x\n",
                "error: FILE:3: mirrors.b.example:5000.endpoint: is of the wrong type",
            ),
            (
                "configs:\n  a.example: {tls: {ca_file: /absent}}\n",
                "FILE:2: configs.a.example.tls: cannot read /absent: No such file",
            ),
            (
                "mirrors:\n  a:\n    endpoint: ['ftp://x']\n",
                "error: FILE:3: mirrors.a.endpoint \"ftp://x\": it is neither http:// nor https://",
            ),
            (
                "configs: {}\nconfigs: {}\n",
                "error: FILE:1: configs: occurs twice",
            ),
            ("mirrors: [\n", "error: FILE: "),
        ] {
            let found = told(text);
            let matches = found.starts_with(want) && want.is_empty() == found.is_empty();
            assert!(matches, "{text}: {found}");
        }
        assert!(
            read_registries(&scratch.join("absent"))
                .expect("none")
                .1
                .is_empty()
        );
        assert!(read_registries(&scratch.0).is_err(), "a directory");
    }
}
