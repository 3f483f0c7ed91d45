//! Credentials of the node: docker's `config.json`, its helpers, and the kubelet's credential plugins.
//!
//! Files, helpers and plugins are asked anew for each pull. Only answers of plugins are kept, for the time that the
//! answer itself names. The output of helpers and plugins is never logged.
//!
//! Source: kubelet `pkg/credentialprovider/plugin`; docker-credential-helpers, README "Development".

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::PullSettings;
use crate::api::strict::{JsonTextError, WrongValue, from_json, typed_from_value};
use crate::api::{MonoTime, encode_hex, names::is_qualified_name};
use crate::image::registry::hosts::aliases;
use crate::image::registry::keyring::{
    self, DockerConfig, Keyring, MAX_CONFIG_BYTES, RegistryCredential,
};
use crate::sys::{child, clock};

/// Time that a plugin or helper may take. The kubelet has the same limit.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that are read of the output of a helper or plugin.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Most answers of plugins that are kept.
const MAX_CACHED: usize = 100;
/// Most credentials that are remembered as handed out.
const MAX_HANDED_OUT: usize = 1000;
/// Most plugins that can be configured.
const MAX_PROVIDERS: usize = 32;
/// Directories in which docker's helpers are looked for.
const HELPER_DIRS: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/opt/bin"];
/// `PATH` of helpers and plugins.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The API version of requests and answers.
const PROVIDER_API: &str = "credentialprovider.kubelet.k8s.io/v1";

/// Credential plugins, from a `CredentialProviderConfig`.
#[derive(Clone, Debug, Default)]
pub struct CredentialProviders {
    list: Vec<CredentialProvider>,
    dir: PathBuf,
}

/// A credential plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CredentialProvider {
    /// File in the plugin directory.
    pub name: String,
    /// Patterns of images that it is asked for.
    pub match_images: Vec<String>,
    /// Time that an answer holds if the answer names none.
    pub default_cache_duration: String,
    /// Must be [`PROVIDER_API`].
    pub api_version: String,
    /// Arguments.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<ProviderVariable>,
    /// Set if the plugin gives credentials for a token of the pod's service account (ICV-06).
    pub token_attributes: Option<TokenAttributes>,
}

/// Token and annotations of a pod's service account that a plugin wants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenAttributes {
    /// Audience of the token.
    pub service_account_token_audience: String,
    /// `ServiceAccount`: an answer is kept for other pods of the account. `Token`: it is for that token only.
    pub cache_type: String,
    /// Set if the plugin is not asked for pods without a service account.
    pub require_service_account: Option<bool>,
    /// Annotations that the account must have.
    pub required_service_account_annotation_keys: Vec<String>,
    /// Annotations that the plugin is told if the account has them.
    pub optional_service_account_annotation_keys: Vec<String>,
}

impl TokenAttributes {
    /// Finds the first field that is wrong, and why.
    fn find_wrong_field(&self) -> Option<(&'static str, &'static str)> {
        let required = &self.required_service_account_annotation_keys;
        let optional = &self.optional_service_account_annotation_keys;
        let lists = [
            ("requiredServiceAccountAnnotationKeys", required),
            ("optionalServiceAccountAnnotationKeys", optional),
        ];
        if self.service_account_token_audience.is_empty() {
            return Some(("serviceAccountTokenAudience", "is required"));
        }
        if !matches!(&*self.cache_type, "ServiceAccount" | "Token") {
            return Some(("cacheType", "must be \"ServiceAccount\" or \"Token\""));
        }
        match self.require_service_account {
            None => return Some(("requireServiceAccount", "is required")),
            Some(false) if !required.is_empty() => {
                return Some((lists[0].0, "needs requireServiceAccount: true"));
            }
            Some(_) => {}
        }
        let mut known = BTreeSet::new();
        for (field, keys) in lists {
            for key in keys {
                if !is_qualified_name(&key.to_ascii_lowercase()) {
                    return Some((field, "has a key that is not a name of an annotation"));
                }
                if !known.insert(key) {
                    return Some((field, "has a key that is there twice"));
                }
            }
        }
        None
    }

    /// Picks the annotations that the plugin is told. `None`: a required one is missing.
    #[must_use]
    pub fn pick_annotations(
        &self,
        annotations: &BTreeMap<String, String>,
    ) -> Option<BTreeMap<String, String>> {
        let value = |key: &String| Some((key.clone(), annotations.get(key)?.clone()));
        let required = self.required_service_account_annotation_keys.iter();
        let optional = self.optional_service_account_annotation_keys.iter();
        let mut picked: BTreeMap<_, _> = required.map(value).collect::<Option<_>>()?;
        picked.extend(optional.filter_map(value));
        Some(picked)
    }
}

/// A plugin that is asked for pods with a service account.
#[derive(Clone, Debug)]
pub struct AccountPlugin {
    /// Name of the plugin, for messages.
    pub name: String,
    /// Wishes of the plugin.
    pub attributes: TokenAttributes,
    /// Place among all plugins.
    pub place: usize,
}

/// Service account of a pod, as a plugin is told of it.
#[derive(Clone, Debug, Default)]
pub struct PluginAccount {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Annotations that the plugin wants.
    pub annotations: BTreeMap<String, String>,
}

impl PluginAccount {
    /// Digest by which answers are kept for the account: a SHA-256 of all fields, hex.
    fn account_digest(&self) -> String {
        let mut sum = Sha256::new();
        let own = [&self.namespace, &self.name, &self.uid];
        let annotations = self
            .annotations
            .iter()
            .flat_map(|(key, value)| [key, value]);
        for field in own.into_iter().chain(annotations) {
            // Lengths keep one field from running into the next.
            sum.update(field.len().to_le_bytes().as_slice());
            sum.update(field.as_bytes());
        }
        encode_hex(&sum.finalize())
    }
}

/// An environment variable.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ProviderVariable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

impl CredentialProviders {
    /// Adds the plugins of another configuration for the same directory.
    ///
    /// # Errors
    /// A plugin that is known already, or one too many, with its path.
    pub fn add(&mut self, other: Self) -> Result<(), WrongValue> {
        for (n, provider) in other.list.iter().enumerate() {
            if self.list.iter().any(|known| known.name == provider.name) {
                let why = format!("{:?} is in another file too", provider.name);
                return Err(WrongValue::new(format!("providers[{n}].name"), why));
            }
        }
        if self.list.len() + other.list.len() > MAX_PROVIDERS {
            let why = format!("must be at most {MAX_PROVIDERS} in all files");
            return Err(WrongValue::new("providers", why));
        }
        self.list.extend(other.list);
        self.dir = other.dir;
        Ok(())
    }

    /// Reads a `CredentialProviderConfig`; `dir` holds the programs.
    ///
    /// # Errors
    /// The first wrong value, with its path.
    pub fn parse(document: &Value, dir: PathBuf) -> Result<Self, WrongValue> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct ProviderConfigDocument {
            api_version: String,
            kind: String,
            providers: Vec<CredentialProvider>,
        }
        let document: ProviderConfigDocument =
            typed_from_value(document).map_err(WrongValue::without_value)?;
        if document.kind != "CredentialProviderConfig"
            || document.api_version != "kubelet.config.k8s.io/v1"
        {
            let found = format!("{} {:?}", document.kind, document.api_version);
            let want = "CredentialProviderConfig \"kubelet.config.k8s.io/v1\"";
            return Err(WrongValue::new(
                "kind",
                format!("is {found}, must be {want}"),
            ));
        }
        if document.providers.is_empty() || document.providers.len() > MAX_PROVIDERS {
            let why = format!("must be 1 to {MAX_PROVIDERS}");
            return Err(WrongValue::new("providers", why));
        }
        for (n, provider) in document.providers.iter().enumerate() {
            let at = |field: &str, why: &str| {
                Err(WrongValue::new(format!("providers[{n}].{field}"), why))
            };
            let name = &provider.name;
            if name.is_empty() || matches!(name.as_str(), "." | "..") || name.contains(['/', ' ']) {
                return at("name", "must be the name of a file in the plugin directory");
            }
            if provider.match_images.is_empty() {
                return at("matchImages", "is required");
            }
            if provider.api_version != PROVIDER_API {
                return at("apiVersion", &format!("must be {PROVIDER_API:?}"));
            }
            if parse_go_duration(&provider.default_cache_duration).is_none() {
                return at("defaultCacheDuration", "must be a duration such as \"12h\"");
            }
            let wrong = provider.token_attributes.as_ref();
            if let Some((field, why)) = wrong.and_then(TokenAttributes::find_wrong_field) {
                return at(&format!("tokenAttributes.{field}"), why);
            }
            if document.providers[..n]
                .iter()
                .any(|other| other.name == *name)
            {
                return at("name", "is there twice");
            }
        }
        Ok(Self {
            list: document.providers,
            dir,
        })
    }
}

/// Reason why a helper or plugin gave no credential. It never contains the program's output.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProgramError {
    /// Fault of the docker configuration: the name of the helper is no name of a file.
    #[error("its name is not valid")]
    Name,
    /// Fault of the operator: the helper is not installed.
    #[error("it is not in {}", HELPER_DIRS.join(", "))]
    Missing,
    /// Fault of the machine: the program does not start, or does not end in time.
    #[error("cannot run: {0}")]
    Run(io::ErrorKind),
    /// Fault of the program: it failed.
    #[error("it ends with code {0}")]
    Code(i32),
    /// Fault of the program: its answer is no JSON of the right form.
    #[error("its answer is not valid: {0}")]
    Answer(JsonTextError),
    /// Fault of the program: its answer is of another kind or version.
    #[error("it answers with {0:?} {1:?}")]
    Kind(String, String),
    /// Fault of the program or of its configuration: it answers with the pod's token, which is no other pod's.
    #[error("it answers with the token of the pod, which needs cacheType \"Token\"")]
    Token,
    /// Fault of the program: a field of its answer is wrong. Has the field and its text.
    #[error("{0} is {1:?}")]
    Field(&'static str, String),
}

/// Credentials of an answer, by registry.
pub type RegistryAuths = BTreeMap<String, RegistryCredential>;

/// Plugin, image or part of it, and the digest of the service account; empty where the answer is for every pod.
type ProviderCacheKey = (String, String, String);

/// Answers by what they are kept for, each with the time until which it holds.
type ProviderCache = BTreeMap<ProviderCacheKey, (MonoTime, RegistryAuths)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Credentials that the node itself has.
pub(super) struct NodeCredentials {
    docker_configs: Vec<PathBuf>,
    providers: CredentialProviders,
    /// Environment of all programs. A program may get further variables from its configuration.
    environment: Vec<(&'static str, String)>,
    cache: Mutex<ProviderCache>,
    /// Digests of credentials that were handed out: the node's own, not a pod's.
    handed_out: Mutex<BTreeSet<String>>,
}

impl NodeCredentials {
    pub(super) fn new(settings: &PullSettings) -> Self {
        Self {
            docker_configs: settings.docker_configs.clone(),
            providers: settings.providers.clone(),
            environment: settings.proxies.to_environment(),
            cache: Mutex::default(),
            handed_out: Mutex::default(),
        }
    }

    /// Remembers that these credentials are the node's own, for a caller that uses them among others. If too many are
    /// remembered, all are forgotten, and then count as a pod's.
    pub(super) fn hand_out(&self, credentials: &[RegistryCredential]) {
        let mut handed_out = lock(&self.handed_out);
        if handed_out.len() + credentials.len() > MAX_HANDED_OUT {
            handed_out.clear();
        }
        handed_out.extend(
            credentials
                .iter()
                .map(RegistryCredential::credential_digest),
        );
    }

    /// Returns true if the credential was handed out as the node's own.
    pub(super) fn is_node_credential(&self, credential: &RegistryCredential) -> bool {
        let handed_out = lock(&self.handed_out);
        handed_out.contains(&credential.credential_digest())
    }

    /// All credentials for `image` (domain and path), in the order in which they are tried. Blocks on programs.
    /// A program that fails is logged and left out: a pull without credentials may work. With `has_account` the image
    /// is for a pod with a service account: plugins that want one are asked for the pod, and not here.
    pub(super) fn find_credentials(
        &self,
        image: &str,
        has_account: bool,
    ) -> Vec<RegistryCredential> {
        let mut ring = Keyring::default();
        if let Some(config) = self.read_docker_config() {
            let helpers = helpers_for_image(&config, image);
            ring.add_place(config.auths);
            for (program, server) in helpers {
                match ask_helper(&program, &server, &self.environment) {
                    Ok(credential) => ring.add_place([(image.to_owned(), credential)]),
                    Err(why) => log::warn!("docker-credential-{program}: {why}"),
                }
            }
        }
        for provider in self.providers.list.iter().filter(|it| it.matches(image)) {
            let attributes = provider.token_attributes.as_ref();
            if attributes.is_some_and(|it| has_account || it.require_service_account == Some(true))
            {
                continue;
            }
            match self.ask_provider(provider, image, None) {
                Ok(auths) => ring.add_place(auths),
                Err(why) => log::warn!("credential plugin {}: {why}", provider.name),
            }
        }
        ring.lookup_credentials(image)
    }

    fn read_docker_config(&self) -> Option<DockerConfig> {
        for path in &self.docker_configs {
            let Ok(file) = File::open(path) else {
                continue;
            };
            let mut bytes = Vec::new();
            let read = file.take(MAX_CONFIG_BYTES).read_to_end(&mut bytes);
            match read
                .map_err(|e| e.to_string())
                .and_then(|_| DockerConfig::parse(&bytes).map_err(|e| e.to_string()))
            {
                Ok(config) => return Some(config),
                Err(why) => log::warn!("docker configuration {}: {why}", path.display()),
            }
        }
        None
    }

    /// Plugins that want to know the pod's service account for `image`.
    pub(super) fn account_plugins(&self, image: &str) -> Vec<AccountPlugin> {
        let all = self.providers.list.iter().enumerate();
        let wanting = all.filter_map(|(place, provider)| {
            let attributes = provider.token_attributes.clone()?;
            provider.matches(image).then(|| AccountPlugin {
                name: provider.name.clone(),
                attributes,
                place,
            })
        });
        wanting.collect()
    }

    /// The answer that is kept for pods of `account`, if there is one.
    pub(super) fn kept_answer(
        &self,
        plugin: &AccountPlugin,
        image: &str,
        account: &PluginAccount,
    ) -> Option<RegistryAuths> {
        self.cached_answer(&plugin.name, image, &account.account_digest())
    }

    /// Asks a plugin for credentials for a token of `account`. Blocks on the program.
    pub(super) fn ask_account_plugin(
        &self,
        plugin: &AccountPlugin,
        image: &str,
        account: &PluginAccount,
        token: &str,
    ) -> Result<RegistryAuths, CredentialProgramError> {
        let provider = self.providers.list.get(plugin.place);
        let provider = provider.ok_or(CredentialProgramError::Name)?;
        self.ask_provider(provider, image, Some((account, token)))
    }

    fn cached_answer(&self, plugin: &str, image: &str, account: &str) -> Option<RegistryAuths> {
        let now = clock::mono_now();
        let mut cache = lock(&self.cache);
        cache.retain(|_, (until, _)| *until > now);
        // The plugin may have chosen any of the three kinds of key.
        let known = [image, registry_of(image), ""]
            .into_iter()
            .find_map(|key| cache.get(&(plugin.to_owned(), key.to_owned(), account.to_owned())));
        known.map(|(_, auths)| auths.clone())
    }

    fn ask_provider(
        &self,
        provider: &CredentialProvider,
        image: &str,
        account: Option<(&PluginAccount, &str)>,
    ) -> Result<RegistryAuths, CredentialProgramError> {
        let attributes = provider.token_attributes.as_ref();
        let is_for_token = attributes.is_some_and(|it| it.cache_type == "Token");
        let digest = match account {
            None => String::new(),
            Some((_, token)) if is_for_token => encode_hex(&Sha256::digest(token)),
            Some((account, _)) => account.account_digest(),
        };
        if let Some(known) = self.cached_answer(&provider.name, image, &digest) {
            return Ok(known);
        }
        let now = clock::mono_now();
        let command = provider_command(provider, &self.providers.dir, &self.environment);
        let request = provider_request(image, account);
        let answer = parse_provider_answer(&run_credential_program(command, request)?)?;
        let key = match answer.cache_key_type.as_str() {
            "Image" => image,
            "Registry" => registry_of(image),
            "Global" => "",
            other => return Err(CredentialProgramError::Field("cacheKeyType", other.into())),
        };
        let hold_time = match &answer.cache_duration {
            Some(text) => parse_go_duration(text)
                .ok_or_else(|| CredentialProgramError::Field("cacheDuration", text.clone()))?,
            None => parse_go_duration(&provider.default_cache_duration).unwrap_or_default(),
        };
        if let Some((_, token)) = account
            && !is_for_token
            && answer.auth.values().any(|auth| auth.has_text(token))
        {
            return Err(CredentialProgramError::Token);
        }
        let mut cache = lock(&self.cache);
        // Each pull of a pod has a token of its own, so an answer for one token would never be found.
        let is_never_found = is_for_token && account.is_some();
        if !hold_time.is_zero() && !is_never_found && cache.len() < MAX_CACHED {
            cache.insert(
                (provider.name.clone(), key.to_owned(), digest),
                (now + hold_time, answer.auth.clone()),
            );
        }
        Ok(answer.auth)
    }
}

impl CredentialProvider {
    fn matches(&self, image: &str) -> bool {
        let mut patterns = self.match_images.iter();
        patterns.any(|pattern| keyring::key_matches_image(pattern, image))
    }
}

/// Registry of an image (domain and path).
fn registry_of(image: &str) -> &str {
    image.split('/').next().unwrap_or(image)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProviderAnswer {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: RegistryAuths,
}

fn provider_request(image: &str, account: Option<(&PluginAccount, &str)>) -> String {
    let mut request = json!({
        "apiVersion": PROVIDER_API,
        "kind": "CredentialProviderRequest",
        "image": image,
    });
    if let Some((account, token)) = account {
        request["serviceAccountToken"] = token.into();
        request["serviceAccountAnnotations"] = json!(account.annotations);
    }
    request.to_string()
}

fn provider_command(
    provider: &CredentialProvider,
    dir: &Path,
    environment: &[(&str, String)],
) -> child::Command {
    let mut command = with_environment(child::Command::new(dir.join(&provider.name)), environment)
        .args(&provider.args);
    // The plugin's own variables come last, because they may override the others.
    for variable in &provider.env {
        command = command.env(&variable.name, &variable.value);
    }
    command
}

/// Sets the environment of a program: `PATH`, root's home, and the proxies. The agent's own environment is not passed
/// on.
fn with_environment(command: child::Command, environment: &[(&str, String)]) -> child::Command {
    let command = command.env("PATH", PATH).env("HOME", "/root");
    environment
        .iter()
        .fold(command, |command, (name, value)| command.env(name, value))
}

fn parse_provider_answer(bytes: &[u8]) -> Result<ProviderAnswer, CredentialProgramError> {
    let answer: ProviderAnswer =
        from_json(bytes).map_err(|e| CredentialProgramError::Answer(e.without_value()))?;
    if answer.kind != "CredentialProviderResponse" || answer.api_version != PROVIDER_API {
        return Err(CredentialProgramError::Kind(
            answer.kind,
            answer.api_version,
        ));
    }
    Ok(answer)
}

/// Helpers to ask for an image, each with the server whose credential it is asked for.
fn helpers_for_image(config: &DockerConfig, image: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (server, program) in &config.cred_helpers {
        let key = keyring::normalise_key(server);
        if keyring::key_matches_image(&key, image) || keyring::is_hub_alias(&key, image) {
            found.push((program.clone(), server.clone()));
        }
    }
    if found.is_empty() && !config.creds_store.is_empty() {
        let registry = registry_of(image);
        let server = if aliases("index.docker.io").any(|name| name == registry) {
            "https://index.docker.io/v1/"
        } else {
            registry
        };
        found.push((config.creds_store.clone(), server.into()));
    }
    found
}

fn ask_helper(
    program: &str,
    server: &str,
    environment: &[(&str, String)],
) -> Result<RegistryCredential, CredentialProgramError> {
    if program.is_empty() || program.contains('/') {
        return Err(CredentialProgramError::Name);
    }
    let file = format!("docker-credential-{program}");
    let path = HELPER_DIRS
        .iter()
        .map(|dir| Path::new(dir).join(&file))
        .find(|path| path.exists())
        .ok_or(CredentialProgramError::Missing)?;
    let command = with_environment(child::Command::new(path).arg("get"), environment);
    parse_helper_answer(&run_credential_program(command, server.to_owned())?)
}

fn parse_helper_answer(bytes: &[u8]) -> Result<RegistryCredential, CredentialProgramError> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "PascalCase", default)]
    struct HelperAnswer {
        username: String,
        secret: String,
    }
    let answer: HelperAnswer =
        from_json(bytes).map_err(|e| CredentialProgramError::Answer(e.without_value()))?;
    Ok(if answer.username == "<token>" {
        RegistryCredential {
            identity_token: answer.secret,
            ..RegistryCredential::default()
        }
    } else {
        RegistryCredential {
            username: answer.username,
            password: answer.secret,
            ..RegistryCredential::default()
        }
    })
}

/// Runs a program to its end, and returns its output. An error tells how the program ended, without the output, which
/// may hold secrets.
fn run_credential_program(
    command: child::Command,
    input: String,
) -> Result<Vec<u8>, CredentialProgramError> {
    let command = command
        .stdin(child::ChildInput::Bytes(input.into_bytes()))
        .capture_output(MAX_ANSWER_BYTES);
    let output = async_io::block_on(child::run_command(command, Some(EXEC_TIMEOUT)))
        .map_err(|e| CredentialProgramError::Run(e.kind()))?;
    if output.exit_code() != 0 {
        return Err(CredentialProgramError::Code(output.exit_code()));
    }
    Ok(output.stdout)
}

/// Parses a duration in Go's notation that is not negative: `12h`, `1h30m`, `0s`, `1.5s`.
fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..]
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .map_or(rest.len(), |at| end + at);
        let unit = match &rest[end..unit_end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(any(test, fuzzing))]
pub(in crate::image) mod fuzz {
    use super::*;

    /// Reads the output of helpers and plugins, and the configuration of plugins. See [`crate::fuzz`].
    pub(crate) fn run(data: &[u8], document: Option<&Value>) -> String {
        fn kind<E: ToString>(result: Result<String, E>) -> String {
            result.unwrap_or_else(|why| why.to_string())
        }
        let answer = parse_provider_answer(data).map(|answer| {
            let holds = answer.cache_duration.as_deref().and_then(parse_go_duration);
            format!("{} {}", answer.auth.is_empty(), holds.is_some())
        });
        let helper = parse_helper_answer(data).map(|c| c.is_empty().to_string());
        let providers = document.map_or_else(String::new, |document| {
            kind(
                CredentialProviders::parse(document, "/plugins".into()).map(|providers| {
                    for provider in &providers.list {
                        assert!(!provider.name.contains('/') && provider.name != "..");
                        assert!(parse_go_duration(&provider.default_cache_duration).is_some());
                    }
                    "ok".into()
                }),
            )
        });
        format!("{} {} {providers}", kind(answer), kind(helper))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::net::proxies::ProxyVariables;
    use crate::testing::TestDir;

    fn script(path: &Path, text: &str) {
        crate::testing::write_script(path, &format!("#!/bin/sh\n{text}\n"));
    }

    fn users(node: &NodeCredentials, image: &str) -> Vec<String> {
        node.find_credentials(image, false)
            .iter()
            .map(|c| c.basic_auth().map_or_else(|| "?".into(), |(u, _)| u))
            .collect()
    }

    fn document(name: &str) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1",
            "kind": "CredentialProviderConfig",
            "providers": [{
                "name": name,
                "matchImages": ["*.example", "other.test:5000/a"],
                "defaultCacheDuration": "1h",
                "apiVersion": PROVIDER_API,
                "args": ["get"],
                "env": [{"name": "WHO", "value": "robot"}],
            }],
        })
    }

    #[test]
    fn plugins_are_asked_once_as_long_as_their_answer_holds() {
        // IMG-13
        let scratch = TestDir::new("node");
        let asked = scratch.join("asked");
        script(
            &scratch.join("plugin"),
            &format!(
                r#"test "$1" = get || exit 2
read -r request; echo "$request" >> {}
echo '{{"apiVersion": "{PROVIDER_API}", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
  "auth": {{"*.example": {{"username": "'$WHO'", "password": "p"}}}}}}'"#,
                asked.display()
            ),
        );
        let settings = PullSettings {
            providers: CredentialProviders::parse(&document("plugin"), scratch.0.clone())
                .expect("config"),
            ..PullSettings::default()
        };
        let node = NodeCredentials::new(&settings);
        assert_eq!(users(&node, "a.example/x"), ["robot"]);
        assert_eq!(users(&node, "a.example/y"), ["robot"]);
        assert_eq!(users(&node, "b.example/y"), ["robot"]);
        assert_eq!(users(&node, "a.elsewhere/y"), Vec::<String>::new());
        let requests = fs::read_to_string(&asked).expect("requests");
        let lines: Vec<&str> = requests.lines().collect();
        assert_eq!(lines.len(), 2, "once a registry: {requests}");
        let first: Value = serde_json::from_str(lines[0]).expect("json");
        assert_eq!(first["kind"], "CredentialProviderRequest");
        assert_eq!(first["image"], "a.example/x");
        // One that fails is as good as none.
        script(&scratch.join("plugin"), "exit 1");
        let node = NodeCredentials::new(&settings);
        assert_eq!(users(&node, "a.example/x"), Vec::<String>::new());
    }

    #[test]
    fn the_docker_configuration_is_read_each_time() {
        // IMG-13
        let scratch = TestDir::new("node");
        let path = scratch.join("config.json");
        let settings = PullSettings {
            docker_configs: vec![scratch.join("absent"), path.clone()],
            ..PullSettings::default()
        };
        let node = NodeCredentials::new(&settings);
        assert_eq!(users(&node, "a.io/x"), Vec::<String>::new());
        fs::write(&path, r#"{"auths": {"a.io": {"auth": "dTpw"}}}"#).expect("config");
        assert_eq!(users(&node, "a.io/x"), ["u"]);
        fs::write(&path, "{").expect("config");
        assert_eq!(users(&node, "a.io/x"), Vec::<String>::new());
    }

    #[test]
    fn programs_find_the_proxies_and_what_is_configured_for_them() {
        let scratch = TestDir::new("node");
        script(
            &scratch.join("plugin"),
            &format!(
                r#"echo '{{"apiVersion": "{PROVIDER_API}", "kind": "CredentialProviderResponse", "cacheKeyType": "Image",
  "auth": {{"*.example": {{"username": "'$WHO,$HTTP_PROXY,$HTTPS_PROXY,$PATH'", "password": "p"}}}}}}'"#
            ),
        );
        let mut document = document("plugin");
        document["providers"][0]["env"] = json!([
            {"name": "WHO", "value": "robot"}, {"name": "PATH", "value": "/bin"},
        ]);
        let node = NodeCredentials::new(&PullSettings {
            providers: CredentialProviders::parse(&document, scratch.0.clone()).expect("config"),
            proxies: ProxyVariables {
                https: "http://proxy:1".into(),
                ..ProxyVariables::default()
            },
            ..PullSettings::default()
        });
        assert_eq!(
            users(&node, "a.example/b"),
            ["robot,,http://proxy:1,/bin"],
            "and nothing of the agent's own"
        );
    }

    #[test]
    fn no_error_tells_a_secret() {
        let told = [
            DockerConfig::parse(br#"{"auths": {"a": "c2VjcmV0"}}"#).map(drop),
            DockerConfig::parse(br#"{"auths": {"a": {"password": 7316873}}}"#).map(drop),
            DockerConfig::parse(br#""c2VjcmV0""#).map(drop),
            DockerConfig::parse_dockercfg(br#"{"a": ["c2VjcmV0"]}"#).map(drop),
        ];
        let told = told
            .into_iter()
            .map(|result| result.expect_err("wrong").to_string());
        let answers = [
            parse_provider_answer(br#"{"auth": {"a": "c2VjcmV0"}}"#).map(drop),
            parse_provider_answer(br#""c2VjcmV0""#).map(drop),
            parse_helper_answer(br#"{"Secret": 7316873}"#).map(drop),
        ];
        let answers = answers.map(|result| result.expect_err("wrong").to_string());
        let document = json!({"configs": {"a": {"auth": {"password": 7316873}}}});
        let registries = crate::image::registry::RegistriesConfig::parse(&document);
        let registries = registries.expect_err("wrong").to_string();
        for text in told.chain(answers).chain([registries]) {
            assert!(
                !text.contains("7316873") && !text.contains("c2VjcmV0"),
                "{text}"
            );
            assert!(text.contains("expected"), "{text}");
        }
    }

    #[test]
    fn which_helper_is_asked() {
        let config = DockerConfig::parse(
            br#"{"credsStore": "all", "credHelpers": {"https://gcr.io": "gcr"}}"#,
        )
        .expect("config");
        for (image, program, server) in [
            ("gcr.io/a/b", "gcr", "https://gcr.io"),
            ("quay.io/a", "all", "quay.io"),
            ("docker.io/library/a", "all", "https://index.docker.io/v1/"),
        ] {
            assert_eq!(
                helpers_for_image(&config, image),
                [(program.to_owned(), server.to_owned())]
            );
        }
        let hub = "https://index.docker.io/v1/";
        let config = json!({"credsStore": "all", "credHelpers": {hub: "hub"}});
        let config = DockerConfig::parse(config.to_string().as_bytes()).expect("config");
        for image in ["docker.io/library/a", "registry-1.docker.io/library/a"] {
            assert_eq!(
                helpers_for_image(&config, image),
                [("hub".to_owned(), hub.to_owned())]
            );
        }
        assert!(ask_helper("../x", "a", &[]).is_err());
        assert!(ask_helper("not-there", "a", &[]).is_err());
    }

    #[test]
    fn what_is_wrong_in_a_configuration_is_named() {
        let parse = |change: &dyn Fn(&mut Value)| {
            let mut document = document("p");
            change(&mut document);
            CredentialProviders::parse(&document, "/x".into()).map(drop)
        };
        assert_eq!(parse(&|_| {}), Ok(()));
        for (field, value, says) in [
            ("name", json!("../p"), "providers[0].name"),
            ("matchImages", json!([]), "providers[0].matchImages"),
            ("apiVersion", json!("v1alpha1"), "providers[0].apiVersion"),
            (
                "defaultCacheDuration",
                json!("1"),
                "providers[0].defaultCacheDuration",
            ),
            (
                "tokenAttributes",
                json!({}),
                "providers[0].tokenAttributes.serviceAccountTokenAudience: is required",
            ),
            ("env", json!("x"), "providers[0].env"),
        ] {
            let error = parse(&|d| d["providers"][0][field] = value.clone());
            let error = error.expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(parse(&|d| d["kind"] = json!("x")).is_err());
        // ICV-05
        let error = parse(&|d| {
            let again = d["providers"][0].clone();
            d["providers"].as_array_mut().expect("a list").push(again);
        });
        let error = error.expect_err("twice").to_string();
        assert!(error.contains("providers[1].name"), "{error}");
    }

    /// Attributes of a plugin that wants `keys` of the accounts that it requires.
    fn attributes(cache: &str, required: &[&str], optional: &[&str]) -> Value {
        json!({
            "serviceAccountTokenAudience": "registry.example",
            "cacheType": cache,
            "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": required,
            "optionalServiceAccountAnnotationKeys": optional,
        })
    }

    #[test]
    fn what_is_wrong_in_token_attributes_is_named() {
        // ICV-06
        let parse = |change: &dyn Fn(&mut Value)| {
            let mut document = document("p");
            let mut own = attributes("Token", &["a.example/x"], &["y"]);
            change(&mut own);
            document["providers"][0]["tokenAttributes"] = own;
            CredentialProviders::parse(&document, "/x".into()).map(drop)
        };
        assert_eq!(parse(&|_| {}), Ok(()));
        for (field, value, says) in [
            ("serviceAccountTokenAudience", json!(""), "is required"),
            (
                "cacheType",
                json!("Pod"),
                "must be \"ServiceAccount\" or \"Token\"",
            ),
            ("cacheType", json!(""), "must be"),
            ("requireServiceAccount", Value::Null, "is required"),
            (
                "requiredServiceAccountAnnotationKeys",
                json!(["a b"]),
                "not a name of an annotation",
            ),
            (
                "optionalServiceAccountAnnotationKeys",
                json!(["y", "y"]),
                "twice",
            ),
            (
                "optionalServiceAccountAnnotationKeys",
                json!(["a.example/x"]),
                "twice",
            ),
        ] {
            let error = parse(&|own| own[field] = value.clone());
            let error = error.expect_err(field).to_string();
            let place = format!("providers[0].tokenAttributes.{field}: ");
            assert!(error.contains(&place) && error.contains(says), "{error}");
        }
        let error = parse(&|own| own["requireServiceAccount"] = json!(false));
        let error = error.expect_err("keys").to_string();
        assert!(
            error.contains("needs requireServiceAccount: true"),
            "{error}"
        );
    }

    #[test]
    fn plugins_are_asked_with_the_service_account_that_they_want() {
        // ICV-07 ICV-08
        let scratch = TestDir::new("node");
        let asked = scratch.join("asked");
        script(
            &scratch.join("plugin"),
            &format!(
                r#"read -r request; echo "$request" >> {}
echo '{{"apiVersion": "{PROVIDER_API}", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
  "auth": {{"*.example": {{"username": "robot", "password": "p"}}}}}}'"#,
                asked.display()
            ),
        );
        let account = |uid: &str, team: &str| PluginAccount {
            namespace: "ns".into(),
            name: "robot".into(),
            uid: uid.into(),
            annotations: BTreeMap::from([("team".into(), team.into())]),
        };
        for (cache, is_kept) in [("ServiceAccount", true), ("Token", false)] {
            let mut document = document("plugin");
            document["providers"][0]["tokenAttributes"] = attributes(cache, &["team"], &[]);
            let providers = CredentialProviders::parse(&document, scratch.0.clone());
            let node = NodeCredentials::new(&PullSettings {
                providers: providers.expect("config"),
                ..PullSettings::default()
            });
            // Nobody asks it for a pod without an account.
            assert_eq!(users(&node, "a.example/x"), Vec::<String>::new());
            assert!(!asked.exists());
            assert!(node.account_plugins("a.elsewhere/x").is_empty());
            let [plugin] = &node.account_plugins("a.example/x")[..] else {
                panic!("one plugin");
            };
            let ask = |image: &str, account: &PluginAccount, token: &str| {
                let answer = node.ask_account_plugin(plugin, image, account, token);
                assert_eq!(answer.expect("answer").len(), 1);
            };
            let (one, other) = (account("1", "red"), account("2", "red"));
            ask("a.example/x", &one, "t1");
            let request = fs::read_to_string(&asked).expect("request");
            let request: Value = serde_json::from_str(&request).expect("json");
            assert_eq!(request["serviceAccountToken"], "t1");
            assert_eq!(request["serviceAccountAnnotations"], json!({"team": "red"}));
            assert_eq!(request["image"], "a.example/x");
            // An answer is for this account, as long as it is the same.
            let kept = |image: &str, account| node.kept_answer(plugin, image, account).is_some();
            assert_eq!(kept("a.example/y", &one), is_kept);
            assert!(!kept("a.example/x", &other) && !kept("b.example/x", &one));
            assert!(!kept("a.example/x", &account("1", "blue")));
            // The pod's token is no credential for the account's other pods.
            let echoed = node.ask_account_plugin(plugin, "c.example/x", &one, "p");
            assert_eq!(echoed.is_err(), is_kept, "{echoed:?}");
            ask("a.example/y", &one, "t2");
            ask("a.example/y", &other, "t3");
            let requests = fs::read_to_string(&asked).expect("requests");
            let again = if is_kept { 3 } else { 4 };
            assert_eq!(requests.lines().count(), again, "{cache}: {requests}");
            fs::remove_file(&asked).expect("scratch");
        }
    }

    #[test]
    fn annotations_for_a_plugin() {
        // ICV-06 ICV-07
        let has = ["a", "b", "c"].map(|key| (key.to_owned(), format!("{key}!")));
        let has = BTreeMap::from(has);
        let picks = |required: &[&str], optional: &[&str]| {
            let own: TokenAttributes =
                serde_json::from_value(attributes("Token", required, optional)).expect("valid");
            let picked = own.pick_annotations(&has)?;
            Some(picked.into_keys().collect::<Vec<_>>().join(" "))
        };
        for (required, optional, want) in [
            (&[][..], &[][..], Some("")),
            (&["a"], &["c", "d"], Some("a c")),
            (&["a", "d"], &["b"], None),
        ] {
            assert_eq!(picks(required, optional).as_deref(), want, "{required:?}");
        }
    }

    #[test]
    fn durations_as_go_writes_them() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, want) in [
            ("12h", ms(12 * 3_600_000)),
            ("1h30m0.5s", ms(5_400_500)),
            ("5ms", ms(5)),
            ("0", ms(0)),
            ("0s", ms(0)),
            ("", None),
            ("1", None),
            ("h", None),
            ("-1s", None),
            ("1d", None),
        ] {
            assert_eq!(parse_go_duration(text), want, "{text}");
        }
    }
}
