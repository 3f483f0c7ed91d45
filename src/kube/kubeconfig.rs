//! The kubeconfig: address of the apiserver, trust in it, and credentials of this node.
//!
//! One file, its current context, every form that a kubelet takes (CONF-20). Fields that a kubelet takes and nobody can
//! want on a node (`username`, `auth-provider`, impersonation) are refused by name rather than passed over in silence.
//!
//! Source: client-go `tools/clientcmd`: `loader.go`, `validation.go`, `client_config.go`.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::yaml::yaml_text;
use crate::config::decode::{self, DecodeError};
use crate::net::url::{Url, UrlError};
use crate::sys::file;

/// Largest kubeconfig, bytes.
pub const MAX_KUBECONFIG_BYTES: u64 = 1 << 20;
/// Most servers that are tried in turn.
pub const MAX_SERVERS: usize = 8;
/// Longest token, bytes: with its header it has to fit into the buffer that a request is written from.
pub const MAX_TOKEN_BYTES: usize = 7 * 1024;
/// Most clusters, users or contexts in one file.
const MAX_ENTRIES: usize = 100;
/// The extension of a cluster that is handed to exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Error of a kubeconfig that cannot be used: the file and its fault.
#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {}: {why}", path.display())]
pub struct KubeconfigError {
    /// The file.
    pub path: PathBuf,
    /// Fault of the file.
    pub why: KubeconfigFault,
}

/// Fault of a kubeconfig. The writer of the file can mend all but the first; those about a field name it.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigFault {
    /// The file is not there (BOOT-01), or cannot be read.
    #[error("cannot read: {0}")]
    Read(io::Error),
    /// More than [`MAX_KUBECONFIG_BYTES`].
    #[error("has more than {MAX_KUBECONFIG_BYTES} bytes")]
    TooLong,
    /// No YAML, or a value of the wrong kind.
    #[error(transparent)]
    Text(#[from] DecodeError),
    /// A field that has to be there.
    #[error("{0}: is required")]
    Required(String),
    /// A field that nobody can want on a node.
    #[error("{0}: is not supported")]
    Unsupported(String),
    /// A field that names a thing that is not in the file: the field's path, the kind of thing, the name.
    #[error("{0}: there is no {1} {2:?}")]
    Unknown(String, &'static str, String),
    /// A list with too many items: its path, and the limit.
    #[error("{0}: has more than {1} items")]
    TooMany(&'static str, usize),
    /// A server's URL with an error: the field's path, its text.
    #[error("{0}: {1:?}: {2}")]
    Url(String, String, UrlError),
    /// A server's URL that has a query already: the field's path, its text.
    #[error("{0}: {1:?}: it has a query")]
    Query(String, String),
    /// A field's path, and the fault of its token.
    #[error("{0}: {1}")]
    Token(String, TokenError),
    /// A field's path, and the error of its base64.
    #[error("{0}: {1}")]
    Base64(String, base64::DecodeError),
    /// A field's path, and the fault of its value.
    #[error("{0}: {1}")]
    Value(String, String),
}

/// Reason why a text cannot be sent as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No text.
    #[error("is empty")]
    Empty,
    /// More than [`MAX_TOKEN_BYTES`].
    #[error("is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// Characters that would end the header, or are not ASCII.
    #[error("has characters that no token has")]
    Characters,
}

impl KubeconfigError {
    /// Returns true if the file does not exist (BOOT-01).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(&self.why, KubeconfigFault::Read(e) if e.kind() == io::ErrorKind::NotFound)
    }
}

/// Reason why a kubeconfig cannot be written as text.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigTextError {
    /// A path that is not UTF-8.
    #[error("the path {} is not text", .0.display())]
    Path(PathBuf),
}

/// The current context of a kubeconfig, resolved. Paths are absolute if the path of the file was.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// The file.
    pub path: PathBuf,
    /// URLs of the apiserver, at least one; the first is that of the file.
    pub servers: Vec<Url>,
    /// Certificates that a server may show.
    pub trust: ServerTrust,
    /// Name that the server's certificate must have, if it is not that of its URL.
    pub tls_server_name: Option<String>,
    /// URL of a proxy. Goes before the environment's.
    pub proxy_url: Option<String>,
    /// Identity of this node: certificate, token or plugin.
    pub user: KubeconfigUser,
    /// `extensions` of the cluster, for exec plugins.
    pub(super) exec_config: Option<Value>,
}

/// Certificates that are accepted from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTrust {
    /// Certificates signed by a CA of this machine.
    System,
    /// Certificates signed by these CAs.
    Ca(KubeconfigMaterial),
    /// Any certificate.
    Any,
}

/// Bytes that are in the kubeconfig, or in a file of their own.
#[derive(Clone, PartialEq, Eq)]
pub enum KubeconfigMaterial {
    /// Path of a file, which is read when needed.
    File(PathBuf),
    /// Bytes of the kubeconfig, decoded.
    Inline(Vec<u8>),
}

impl fmt::Debug for KubeconfigMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Inline(_) => f.write_str("inline"),
        }
    }
}

/// Credentials.
#[derive(Clone, Default)]
pub struct KubeconfigUser {
    /// Client certificate and key.
    pub certificate: Option<(KubeconfigMaterial, KubeconfigMaterial)>,
    /// A bearer token.
    pub token: Option<String>,
    /// A file that holds a token; goes before [`KubeconfigUser::token`].
    pub token_file: Option<PathBuf>,
    /// A program that gives a token or a certificate.
    pub exec: Option<ExecPlugin>,
}

impl fmt::Debug for KubeconfigUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("certificate", &self.certificate)
            .field("token", &self.token.is_some())
            .field("token_file", &self.token_file)
            .field("exec", &self.exec.as_ref().map(|e| &e.command))
            .finish()
    }
}

/// An exec plugin.
#[derive(Clone, PartialEq, Eq)]
pub struct ExecPlugin {
    /// Version of the protocol: `v1` or `v1beta1` of `client.authentication.k8s.io`.
    pub api_version: String,
    /// Program: an absolute path, or a name that is searched for.
    pub command: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables beside the usual ones.
    pub env: Vec<(String, String)>,
    /// Set if the plugin is told about the cluster.
    pub cluster_info: bool,
    /// Hint for the operator if the plugin is not installed.
    pub install_hint: String,
}

impl Kubeconfig {
    /// Reads `path` and resolves its current context. `more` are further URLs of the same apiserver.
    pub fn load(path: &Path, more: &[String]) -> Result<Self, KubeconfigError> {
        let error = |why| KubeconfigError {
            path: path.into(),
            why,
        };
        let bytes = file::read_start(path, MAX_KUBECONFIG_BYTES + 1);
        let bytes = bytes.map_err(|e| error(KubeconfigFault::Read(e)))?;
        if bytes.len() as u64 > MAX_KUBECONFIG_BYTES {
            return Err(error(KubeconfigFault::TooLong));
        }
        Self::parse(path, &bytes, more).map_err(error)
    }

    /// Resolves the current context of the text `bytes` of the file at `path`. Errors: the field and what is wrong.
    pub fn parse(path: &Path, bytes: &[u8], more: &[String]) -> Result<Self, KubeconfigFault> {
        let document = decode::parse_document(bytes)?;
        let config: KubeconfigDocument = decode::deserialize_value(&document.value)?;
        if !matches!(config.kind.as_str(), "" | "Config") {
            let found = config.kind;
            return Err(wrong_field(
                "kind",
                format!("is {found:?}, must be \"Config\""),
            ));
        }
        if !matches!(config.api_version.as_str(), "" | "v1") {
            let found = config.api_version;
            return Err(wrong_field(
                "apiVersion",
                format!("is {found:?}, must be \"v1\""),
            ));
        }
        for (field, count) in [
            ("clusters", config.clusters.len()),
            ("contexts", config.contexts.len()),
            ("users", config.users.len()),
        ] {
            if count > MAX_ENTRIES {
                return Err(KubeconfigFault::TooMany(field, MAX_ENTRIES));
            }
        }
        let current = &config.current_context;
        if current.is_empty() {
            return Err(KubeconfigFault::Required("current-context".into()));
        }
        let context = config
            .contexts
            .into_iter()
            .find(|c| c.name == *current)
            .ok_or_else(|| {
                KubeconfigFault::Unknown("current-context".into(), "context", current.clone())
            })?
            .context;
        let at = format!("contexts[{current:?}].context");
        let wanted = &context.cluster;
        let cluster = config
            .clusters
            .into_iter()
            .find(|c| c.name == *wanted)
            .ok_or_else(|| {
                KubeconfigFault::Unknown(format!("{at}.cluster"), "cluster", wanted.clone())
            })?
            .cluster;
        let user = if context.user.is_empty() {
            UserDocument::default()
        } else {
            let wanted = &context.user;
            config
                .users
                .into_iter()
                .find(|u| u.name == *wanted)
                .ok_or_else(|| {
                    KubeconfigFault::Unknown(format!("{at}.user"), "user", wanted.clone())
                })?
                .user
        };
        let dir = path.parent().unwrap_or_else(|| Path::new("/"));
        let at = format!("clusters[{:?}].cluster", context.cluster);
        let mut resolved = cluster.resolve(path, dir, more, &at)?;
        let at = format!("users[{:?}].user", context.user);
        resolved.user = user.resolve(dir, &at)?;
        Ok(resolved)
    }

    /// Takes certificate and key from `pem`, whatever the file names.
    pub fn use_pair_file(&mut self, pem: &Path) {
        let file = || KubeconfigMaterial::File(pem.to_path_buf());
        self.user.certificate = Some((file(), file()));
    }

    /// Files of the CA, the certificate and the key: they may be replaced while the agent runs.
    pub(super) fn tls_files(&self) -> impl Iterator<Item = &Path> {
        let ca = match &self.trust {
            ServerTrust::Ca(material) => Some(material),
            ServerTrust::System | ServerTrust::Any => None,
        };
        let pair = self.user.certificate.iter().flat_map(|(c, k)| [c, k]);
        ca.into_iter().chain(pair).filter_map(|m| match m {
            KubeconfigMaterial::File(path) => Some(path.as_path()),
            KubeconfigMaterial::Inline(_) => None,
        })
    }

    /// Makes the text of a kubeconfig for the same cluster, with the certificate and key in `pem` (BOOT-02).
    pub fn with_certificate(&self, pem: &Path) -> Result<String, KubeconfigTextError> {
        let mut cluster = json!({"server": self.servers.first().map(server_text)});
        match &self.trust {
            ServerTrust::System => {}
            ServerTrust::Any => cluster["insecure-skip-tls-verify"] = true.into(),
            ServerTrust::Ca(KubeconfigMaterial::File(path)) => {
                cluster["certificate-authority"] = path_text(path)?.into();
            }
            ServerTrust::Ca(KubeconfigMaterial::Inline(bytes)) => {
                cluster["certificate-authority-data"] = STANDARD.encode(bytes).into();
            }
        }
        if let Some(name) = &self.tls_server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        if let Some(proxy) = &self.proxy_url {
            cluster["proxy-url"] = proxy.as_str().into();
        }
        let pem = path_text(pem)?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default-cluster", "cluster": cluster}],
            "contexts": [{"name": "default-context", "context": {
                "cluster": "default-cluster", "namespace": "default", "user": "default-auth",
            }}],
            "current-context": "default-context",
            "preferences": {},
            "users": [{"name": "default-auth", "user": {
                "client-certificate": pem, "client-key": pem,
            }}],
        });
        Ok(yaml_text(&config))
    }
}

fn server_text(url: &Url) -> String {
    url.to_string().trim_end_matches('/').to_owned()
}

fn path_text(path: &Path) -> Result<&str, KubeconfigTextError> {
    path.to_str()
        .ok_or_else(|| KubeconfigTextError::Path(path.into()))
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct KubeconfigDocument {
    #[serde(rename = "apiVersion")]
    api_version: String,
    kind: String,
    current_context: String,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: ClusterDocument,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: ContextDocument,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: UserDocument,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContextDocument {
    cluster: String,
    user: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct ClusterDocument {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
    proxy_url: String,
    extensions: Vec<ExtensionDocument>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ExtensionDocument {
    name: String,
    extension: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct UserDocument {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    exec: Option<ExecDocument>,
    username: String,
    auth_provider: Option<Value>,
    #[serde(rename = "as")]
    impersonated: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecDocument {
    api_version: String,
    command: String,
    args: Vec<String>,
    env: Vec<ExecVariable>,
    install_hint: String,
    provide_cluster_info: bool,
    interactive_mode: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ExecVariable {
    name: String,
    value: String,
}

impl ClusterDocument {
    fn resolve(
        self,
        path: &Path,
        dir: &Path,
        more: &[String],
        at: &str,
    ) -> Result<Kubeconfig, KubeconfigFault> {
        if self.server.is_empty() {
            return Err(missing_field(at, "server"));
        }
        let mut servers: Vec<Url> = Vec::new();
        let named = [(format!("{at}.server"), &self.server)];
        let more = more
            .iter()
            .map(|url| ("the list of apiservers".into(), url));
        for (field, text) in named.into_iter().chain(more) {
            let url = parse_server_url(&field, text)?;
            if !servers.contains(&url) {
                servers.push(url);
            }
        }
        if servers.len() > MAX_SERVERS {
            return Err(KubeconfigFault::TooMany(
                "the list of apiservers",
                MAX_SERVERS,
            ));
        }
        let ca = resolve_material(
            dir,
            self.certificate_authority,
            &self.certificate_authority_data,
            &format!("{at}.certificate-authority"),
        )?;
        let trust = match (ca, self.insecure_skip_tls_verify) {
            (Some(_), true) => {
                let why = "cannot be combined with a certificate-authority";
                return Err(wrong_field(format!("{at}.insecure-skip-tls-verify"), why));
            }
            (Some(ca), false) => ServerTrust::Ca(ca),
            (None, true) => ServerTrust::Any,
            (None, false) => ServerTrust::System,
        };
        if !self.proxy_url.is_empty() {
            let scheme = self.proxy_url.split("://").next().unwrap_or("");
            if !matches!(scheme, "http" | "https") || ureq::Proxy::new(&self.proxy_url).is_err() {
                let why = "must be an http:// or https:// URL";
                return Err(wrong_field(format!("{at}.proxy-url"), why));
            }
        }
        let extension = self
            .extensions
            .into_iter()
            .find(|e| e.name == EXEC_EXTENSION);
        Ok(Kubeconfig {
            path: path.into(),
            servers,
            trust,
            tls_server_name: non_empty(self.tls_server_name),
            proxy_url: non_empty(self.proxy_url),
            user: KubeconfigUser::default(),
            exec_config: extension.map(|e| e.extension),
        })
    }
}

/// Reads the URL of an apiserver; without a scheme it is `https`. It may have a path, as gateways do.
fn parse_server_url(at: &str, text: &str) -> Result<Url, KubeconfigFault> {
    let url = if text.contains("://") {
        Url::parse(text)
    } else {
        Url::parse(&format!("https://{text}"))
    };
    let url = url.map_err(|why| KubeconfigFault::Url(at.into(), text.into(), why))?;
    if url.path.contains('?') {
        return Err(KubeconfigFault::Query(at.into(), text.into()));
    }
    let base = url.path.trim_end_matches('/').to_owned();
    Ok(url.with_path(base))
}

impl UserDocument {
    fn resolve(self, dir: &Path, at: &str) -> Result<KubeconfigUser, KubeconfigFault> {
        for (field, is_set) in [
            ("username", !self.username.is_empty()),
            ("auth-provider", self.auth_provider.is_some()),
            ("as", !self.impersonated.is_empty()),
        ] {
            if is_set {
                return Err(KubeconfigFault::Unsupported(format!("{at}.{field}")));
            }
        }
        let certificate = resolve_material(
            dir,
            self.client_certificate,
            &self.client_certificate_data,
            &format!("{at}.client-certificate"),
        )?;
        let key = resolve_material(
            dir,
            self.client_key,
            &self.client_key_data,
            &format!("{at}.client-key"),
        )?;
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(missing_field(at, "client-key")),
            (None, Some(_)) => return Err(missing_field(at, "client-certificate")),
        };
        if !self.token.is_empty() {
            let at = || format!("{at}.token");
            check_token(&self.token).map_err(|why| KubeconfigFault::Token(at(), why))?;
        }
        let exec = self
            .exec
            .map(|exec| exec.resolve(dir, &format!("{at}.exec")))
            .transpose()?;
        Ok(KubeconfigUser {
            certificate,
            token: non_empty(self.token),
            token_file: non_empty(self.token_file).map(|file| dir.join(file)),
            exec,
        })
    }
}

impl ExecDocument {
    fn resolve(self, dir: &Path, at: &str) -> Result<ExecPlugin, KubeconfigFault> {
        let wrong = |field: &str, why: String| Err(wrong_field(format!("{at}.{field}"), why));
        let version = self
            .api_version
            .strip_prefix("client.authentication.k8s.io/");
        if !matches!(version, Some("v1" | "v1beta1")) {
            let found = self.api_version;
            let want = "client.authentication.k8s.io/v1 or v1beta1";
            return wrong("apiVersion", format!("is {found:?}, must be {want}"));
        }
        if self.command.is_empty() {
            return Err(missing_field(at, "command"));
        }
        match self.interactive_mode.as_str() {
            "Never" | "IfAvailable" => {}
            "" if version == Some("v1beta1") => {}
            "" => return Err(missing_field(at, "interactiveMode")),
            "Always" => return wrong("interactiveMode", "a node has no terminal".into()),
            other => return wrong("interactiveMode", format!("{other:?} is unknown")),
        }
        let mut env = Vec::new();
        for variable in self.env {
            if variable.name.is_empty() || variable.name.contains('=') {
                return wrong("env", format!("{:?} is no name", variable.name));
            }
            env.push((variable.name, variable.value));
        }
        // A bare name is searched for.
        let command = if self.command.contains('/') {
            dir.join(self.command)
        } else {
            self.command.into()
        };
        Ok(ExecPlugin {
            api_version: self.api_version,
            command,
            args: self.args,
            env,
            cluster_info: self.provide_cluster_info,
            install_hint: self.install_hint,
        })
    }
}

/// Checks that a text can be sent as a token: nothing in it may end the header.
pub(super) fn check_token(token: &str) -> Result<(), TokenError> {
    if token.is_empty() {
        return Err(TokenError::Empty);
    }
    if token.len() > MAX_TOKEN_BYTES {
        return Err(TokenError::TooLong);
    }
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(TokenError::Characters);
    }
    Ok(())
}

/// Inline data goes before a file.
fn resolve_material(
    dir: &Path,
    file: String,
    data: &str,
    at: &str,
) -> Result<Option<KubeconfigMaterial>, KubeconfigFault> {
    if !data.is_empty() {
        let compact: String = data.split_whitespace().collect();
        return match STANDARD.decode(compact) {
            Ok(bytes) => Ok(Some(KubeconfigMaterial::Inline(bytes))),
            Err(e) => Err(KubeconfigFault::Base64(format!("{at}-data"), e)),
        };
    }
    Ok(non_empty(file).map(|file| KubeconfigMaterial::File(dir.join(file))))
}

fn missing_field(at: &str, field: &str) -> KubeconfigFault {
    KubeconfigFault::Required(format!("{at}.{field}"))
}

fn wrong_field(at: impl Into<String>, why: impl Into<String>) -> KubeconfigFault {
    KubeconfigFault::Value(at.into(), why.into())
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMIN: &str = r#"
apiVersion: v1
kind: Config
current-context: b
clusters:
- name: one
  cluster: {server: "https://10.0.0.1:6443", certificate-authority: pki/ca.crt}
- name: two
  cluster:
    server: https://api.example/base/
    certificate-authority-data: Q0E=
    tls-server-name: kubernetes
    proxy-url: http://proxy:3128
contexts:
- {name: a, context: {cluster: one, user: files, namespace: x}}
- {name: b, context: {cluster: two, user: data}}
- {name: c, context: {cluster: one, user: exec}}
- {name: d, context: {cluster: one}}
users:
- name: files
  user: {client-certificate: /abs/cert.pem, client-key: key.pem, token: t, tokenFile: token}
- name: data
  user: {client-certificate-data: Qw==, client-certificate: ignored, client-key-data: Sw==}
- name: exec
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./plugin
      args: [get]
      env: [{name: A, value: b}]
      interactiveMode: Never
      provideClusterInfo: true
"#;

    fn parse(text: &str) -> Result<Kubeconfig, KubeconfigFault> {
        Kubeconfig::parse(
            Path::new("/etc/kubernetes/kubelet.conf"),
            text.as_bytes(),
            &[],
        )
    }

    fn with_context(name: &str) -> Kubeconfig {
        let text = ADMIN.replace("current-context: b", &format!("current-context: {name}"));
        parse(&text).expect(name)
    }

    #[test]
    fn every_form() {
        // CONF-20
        let inline = |text: &str| KubeconfigMaterial::Inline(text.into());
        let file = |text: &str| KubeconfigMaterial::File(text.into());
        let found = with_context("a");
        assert_eq!(
            found.trust,
            ServerTrust::Ca(file("/etc/kubernetes/pki/ca.crt"))
        );
        assert_eq!(
            found.user.certificate,
            Some((file("/abs/cert.pem"), file("/etc/kubernetes/key.pem")))
        );
        assert_eq!(found.user.token.as_deref(), Some("t"));
        assert_eq!(
            found.user.token_file.as_deref(),
            Some(Path::new("/etc/kubernetes/token"))
        );
        let files: Vec<_> = found.tls_files().map(|p| p.display().to_string()).collect();
        assert_eq!(
            files,
            [
                "/etc/kubernetes/pki/ca.crt",
                "/abs/cert.pem",
                "/etc/kubernetes/key.pem"
            ]
        );

        let found = with_context("b");
        assert_eq!(found.servers[0].to_string(), "https://api.example/base");
        assert_eq!(found.trust, ServerTrust::Ca(inline("CA")));
        assert_eq!(found.tls_server_name.as_deref(), Some("kubernetes"));
        assert_eq!(found.proxy_url.as_deref(), Some("http://proxy:3128"));
        assert_eq!(found.user.certificate, Some((inline("C"), inline("K"))));

        let exec = with_context("c").user.exec.expect("exec");
        assert_eq!(exec.command, Path::new("/etc/kubernetes/./plugin"));
        assert_eq!((exec.args, exec.cluster_info), (vec!["get".into()], true));
        assert_eq!(exec.env, [("A".into(), "b".into())]);

        let none = with_context("d").user;
        assert!(none.certificate.is_none() && none.token.is_none() && none.exec.is_none());
        let shown = format!("{:?}", with_context("a"));
        assert!(!shown.contains("\"t\""), "{shown}");
    }

    #[test]
    fn servers_in_turn() {
        let more = ["10.0.0.2:6443".into(), "https://api.example/base".into()];
        let found = Kubeconfig::parse(Path::new("/k"), ADMIN.as_bytes(), &more).expect("servers");
        let urls: Vec<_> = found.servers.iter().map(ToString::to_string).collect();
        assert_eq!(urls, ["https://api.example/base", "https://10.0.0.2:6443"]);
        let wrong = Kubeconfig::parse(Path::new("/k"), ADMIN.as_bytes(), &["ftp://x".into()]);
        let why = wrong.expect_err("wrong").to_string();
        assert!(why.contains("the list of apiservers"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let user = |user: &str| {
            ADMIN.replace("{client-certificate-data: Qw==, client-certificate: ignored, client-key-data: Sw==}", user)
        };
        let exec = |exec: &str| user(&format!("{{exec: {{{exec}}}}}"));
        let cluster = |from: &str, to: &str| ADMIN.replace(from, to);
        for (text, want) in [
            ("".to_owned(), "document is empty"),
            ("kind: Pod".into(), "kind: is \"Pod\""),
            ("apiVersion: v2".into(), "apiVersion: is \"v2\""),
            ("kind: Config".into(), "current-context: is required"),
            (
                cluster("current-context: b", "current-context: z"),
                "there is no context \"z\"",
            ),
            (
                cluster("{cluster: two, user: data}", "{cluster: no, user: data}"),
                "contexts[\"b\"].context.cluster: there is no cluster \"no\"",
            ),
            (
                cluster("{cluster: two, user: data}", "{cluster: two, user: no}"),
                "contexts[\"b\"].context.user: there is no user \"no\"",
            ),
            (
                cluster("https://api.example/base/", "\"\""),
                "clusters[\"two\"].cluster.server: is required",
            ),
            (
                cluster("https://api.example/base/", "https://u:p@x"),
                "clusters[\"two\"].cluster.server: ",
            ),
            (
                cluster("https://api.example/base/", "https://x?q"),
                "it has a query",
            ),
            (
                cluster("Q0E=", "\"?\""),
                "clusters[\"two\"].cluster.certificate-authority-data: ",
            ),
            (
                cluster(
                    "tls-server-name: kubernetes",
                    "insecure-skip-tls-verify: true",
                ),
                "insecure-skip-tls-verify: cannot be combined",
            ),
            (
                cluster("http://proxy:3128", "socks5://proxy"),
                "proxy-url: must be an http:// or https:// URL",
            ),
            (
                user("{client-certificate: x}"),
                "users[\"data\"].user.client-key: is required",
            ),
            (
                user("{client-key: x}"),
                "users[\"data\"].user.client-certificate: is required",
            ),
            (
                user("{username: x}"),
                "users[\"data\"].user.username: is not supported",
            ),
            (user("{as: x}"), "users[\"data\"].user.as: is not supported"),
            (
                user("{auth-provider: {name: gcp}}"),
                "auth-provider: is not supported",
            ),
            (user("{token: \"a b\"}"), "token: has characters"),
            (
                user(&format!("{{token: {}}}", "x".repeat(8000))),
                "token: is longer than 7168 bytes",
            ),
            (user("{token: [a]}"), "users[1].user.token: "),
            (
                exec("apiVersion: client.authentication.k8s.io/v1alpha1"),
                "exec.apiVersion: is \"client.authentication.k8s.io/v1alpha1\"",
            ),
            (
                exec("apiVersion: client.authentication.k8s.io/v1"),
                "exec.command: is required",
            ),
            (
                exec("apiVersion: client.authentication.k8s.io/v1, command: x"),
                "exec.interactiveMode: is required",
            ),
            (
                exec(
                    "apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always",
                ),
                "exec.interactiveMode: a node has no terminal",
            ),
            (
                exec(
                    "apiVersion: client.authentication.k8s.io/v1beta1, command: x, env: [{name: \"a=\"}]",
                ),
                "exec.env: ",
            ),
        ] {
            let why = parse(&text).expect_err(want).to_string();
            assert!(why.contains(want), "{why:?} says nothing of {want:?}");
        }
        let missing = Kubeconfig::load(Path::new("/nowhere/kubelet.conf"), &[]).expect_err("none");
        assert!(missing.is_missing());
        assert!(
            missing
                .to_string()
                .starts_with("kubeconfig /nowhere/kubelet.conf: ")
        );
    }

    #[test]
    fn written_and_read_again() {
        // BOOT-02
        let pem = Path::new("/var/lib/kubelet/pki/kubelet-client-current.pem");
        for context in ["a", "b"] {
            let first = with_context(context);
            let text = first.with_certificate(pem).expect("text");
            for part in [
                "default-cluster",
                "default-context",
                "default-auth",
                "namespace: default",
            ] {
                assert!(text.contains(part), "{text}");
            }
            let again = parse(&text).expect("a kubeconfig");
            assert_eq!(again.servers, first.servers);
            assert_eq!(again.trust, first.trust);
            assert_eq!(again.tls_server_name, first.tls_server_name);
            assert_eq!(again.proxy_url, first.proxy_url);
            let file = KubeconfigMaterial::File(pem.into());
            assert_eq!(again.user.certificate, Some((file.clone(), file)));
            assert!(again.user.token.is_none());
        }
    }
}
