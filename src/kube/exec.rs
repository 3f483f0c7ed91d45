//! Exec plugins: programs that know a token or a certificate.
//!
//! The output of a plugin is never logged. Source: KEP-541, `client.authentication.k8s.io/v1`; client-go
//! `plugin/pkg/client/auth/exec/exec.go`.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::kubeconfig::{
    ExecPlugin, Kubeconfig, KubeconfigMaterial, ServerTrust, TokenError, check_token,
};
use crate::api::strict::from_json;
use crate::api::{MonoTime, WallTime};
use crate::sys::{child, clock};

/// Time limit of a plugin.
pub const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes read of a plugin's output.
pub const MAX_EXEC_BYTES: usize = 256 * 1024;
/// Longest use of an answer without asking again: its time of expiry may be wrong, or the clock here may.
const MAX_HOLD: Duration = Duration::from_secs(24 * 3600);
/// Shortest use of an answer, also of one that has expired already: plugins are not asked with every request.
const MIN_HOLD: Duration = Duration::from_secs(5);
/// `PATH` in the environment of plugins, unless another is configured, and the folders searched for their programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin";

/// Counter of answers, which tells them apart.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// Reason why a plugin gives no credentials. Never contains the plugin's output.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    /// Fault of the operator: the program is not installed.
    #[error("there is no such program")]
    Missing,
    /// Fault of the operator: the program is not installed. With the kubeconfig's hint on that.
    #[error("there is no such program; {0}")]
    Install(String),
    /// Fault of this machine: the program does not start, or does not end in time.
    #[error("cannot run: {0}")]
    Run(io::ErrorKind),
    /// Fault of the plugin: it failed.
    #[error("it ends with code {0}")]
    Code(i32),
    /// Fault of the plugin: its output is not of the required form.
    #[error("its answer is not valid")]
    NoAnswer,
    /// The answer has another kind or another version than `version`.
    #[error("it answers with {kind:?} {found:?}, not with ExecCredential {version:?}")]
    Kind {
        /// Kind that was printed.
        kind: String,
        /// Version that was printed.
        found: String,
        /// Version of the kubeconfig.
        version: String,
    },
    /// Part that the answer lacks, or has only half of.
    #[error("its answer has {0}")]
    Half(&'static str),
    /// A token that cannot be sent.
    #[error("its token {0}")]
    Token(#[from] TokenError),
}

/// Credentials that a plugin has given.
pub(super) struct PluginCredentials {
    pub(super) token: Option<String>,
    /// Certificate chain and key, PEM.
    pub(super) pair: Option<(Vec<u8>, Vec<u8>)>,
    until: Option<MonoTime>,
    pub(super) number: u64,
}

impl PluginCredentials {
    pub(super) fn is_valid_at(&self, now: MonoTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Runs a plugin. Errors: it failed, or its output cannot be used.
pub(super) fn run_plugin(
    plugin: &ExecPlugin,
    config: &Kubeconfig,
) -> Result<PluginCredentials, ExecError> {
    let program =
        find_program(&plugin.command).ok_or_else(|| match plugin.install_hint.as_str() {
            "" => ExecError::Missing,
            hint => ExecError::Install(hint.into()),
        })?;
    let mut command = child::Command::new(program)
        .args(&plugin.args)
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env(
            "KUBERNETES_EXEC_INFO",
            exec_info(plugin, config).to_string(),
        );
    for (name, value) in &plugin.env {
        command = command.env(name, value);
    }
    let command = command.capture_output(MAX_EXEC_BYTES);
    let output = async_io::block_on(child::run_command(command, Some(EXEC_TIMEOUT)))
        .map_err(|e| ExecError::Run(e.kind()))?;
    if output.exit_code() != 0 {
        return Err(ExecError::Code(output.exit_code()));
    }
    parse_plugin_output(
        &output.stdout,
        &plugin.api_version,
        clock::mono_now(),
        clock::wall_now(),
    )
}

fn find_program(command: &Path) -> Option<PathBuf> {
    if command.is_absolute() {
        return command.exists().then(|| command.into());
    }
    PATH.split(':')
        .map(|dir| Path::new(dir).join(command))
        .find(|path| path.exists())
}

/// Makes the `KUBERNETES_EXEC_INFO` that a plugin reads.
fn exec_info(plugin: &ExecPlugin, config: &Kubeconfig) -> Value {
    let mut spec = json!({"interactive": false});
    if plugin.cluster_info {
        let mut cluster = json!({"server": config.servers.first().map(ToString::to_string)});
        match &config.trust {
            ServerTrust::System => {}
            ServerTrust::Any => cluster["insecure-skip-tls-verify"] = true.into(),
            ServerTrust::Ca(KubeconfigMaterial::Inline(bytes)) => {
                cluster["certificate-authority-data"] = STANDARD.encode(bytes).into();
            }
            ServerTrust::Ca(KubeconfigMaterial::File(path)) => {
                if let Ok(bytes) = std::fs::read(path) {
                    cluster["certificate-authority-data"] = STANDARD.encode(bytes).into();
                }
            }
        }
        if let Some(name) = &config.tls_server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        if let Some(proxy) = &config.proxy_url {
            cluster["proxy-url"] = proxy.as_str().into();
        }
        if let Some(extension) = &config.exec_config {
            cluster["config"] = extension.clone();
        }
        spec["cluster"] = cluster;
    }
    json!({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec})
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<ExecCredentialStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecCredentialStatus {
    expiration_timestamp: Option<WallTime>,
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

/// Reads a plugin's output.
pub(super) fn parse_plugin_output(
    bytes: &[u8],
    version: &str,
    now: MonoTime,
    wall: WallTime,
) -> Result<PluginCredentials, ExecError> {
    let found: ExecCredential = from_json(bytes).map_err(|_| ExecError::NoAnswer)?;
    if found.kind != "ExecCredential" || found.api_version != version {
        return Err(ExecError::Kind {
            kind: found.kind,
            found: found.api_version,
            version: version.into(),
        });
    }
    let status = found.status.ok_or(ExecError::Half("no status"))?;
    let pair = match (
        status.client_certificate_data.is_empty(),
        status.client_key_data.is_empty(),
    ) {
        (true, true) => None,
        (false, false) => Some((
            status.client_certificate_data.into_bytes(),
            status.client_key_data.into_bytes(),
        )),
        _ => return Err(ExecError::Half("only one of certificate and key")),
    };
    let token = (!status.token.is_empty()).then_some(status.token);
    if let Some(token) = &token {
        check_token(token)?;
    }
    if token.is_none() && pair.is_none() {
        return Err(ExecError::Half("neither a token nor a certificate"));
    }
    let until = status.expiration_timestamp.map(|end| {
        let left = u64::try_from(end.0.saturating_sub(wall.0)).unwrap_or(0);
        now + Duration::from_nanos(left).clamp(MIN_HOLD, MAX_HOLD)
    });
    Ok(PluginCredentials {
        token,
        pair,
        until,
        number: NUMBERS.fetch_add(1, Ordering::Relaxed),
    })
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::testing::TestDir;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn read(status: &str) -> Result<PluginCredentials, ExecError> {
        let text = format!(r#"{{"apiVersion":"{V1}","kind":"ExecCredential","status":{status}}}"#);
        parse_plugin_output(
            text.as_bytes(),
            V1,
            MonoTime(1000),
            WallTime::from_unix_seconds(100),
        )
    }

    #[test]
    fn what_a_plugin_says() {
        let token = read(r#"{"token":"t"}"#).expect("token");
        assert_eq!(token.token.as_deref(), Some("t"));
        assert!(token.is_valid_at(MonoTime(u64::MAX)), "without end");
        let pair = read(r#"{"clientCertificateData":"C","clientKeyData":"K"}"#);
        assert_eq!(pair.expect("pair").pair, Some((vec![b'C'], vec![b'K'])));
        // 1970-01-01T00:01:40Z is now.
        for (end, holds_ms) in [
            ("1970-01-01T00:02:40Z", 60_000),
            ("1970-01-01T00:00:00Z", 5_000),
            ("2970-01-01T00:00:00Z", 24 * 3_600_000),
        ] {
            let found = read(&format!(r#"{{"token":"t","expirationTimestamp":"{end}"}}"#));
            let Ok(found) = found else {
                continue; // beyond what a time can be
            };
            assert!(found.is_valid_at(MonoTime(1000 + holds_ms - 1)), "{end}");
            assert!(!found.is_valid_at(MonoTime(1000 + holds_ms)), "{end}");
        }
        for (status, want) in [
            ("null", "no status"),
            ("{}", "neither a token nor a certificate"),
            (r#"{"clientKeyData":"K"}"#, "only one of"),
            (r#"{"token":"a b"}"#, "its token has characters"),
            (r#"{"token":1}"#, "its answer is not valid"),
        ] {
            let why = read(status).err().expect(want).to_string();
            assert!(why.contains(want), "{why}");
        }
        for text in [
            "",
            "{}",
            r#"{"apiVersion":"v2","kind":"ExecCredential","status":{"token":"t"}}"#,
        ] {
            assert!(
                parse_plugin_output(text.as_bytes(), V1, MonoTime(0), WallTime(0)).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn programs_that_fail() {
        // CONF-20
        let scratch = TestDir::new("exec");
        let path = scratch.join("plugin");
        let config = Kubeconfig::parse(
            Path::new("/etc/k"),
            b"{current-context: a, clusters: [{name: c, cluster: {server: 'https://x', insecure-skip-tls-verify: true}}], contexts: [{name: a, context: {cluster: c}}]}",
            &[],
        )
        .expect("kubeconfig");
        let mut plugin = ExecPlugin {
            api_version: V1.into(),
            command: path.clone(),
            args: vec!["get".into()],
            env: vec![("NAME".into(), "value".into())],
            cluster_info: true,
            install_hint: "install it".into(),
        };
        let why = run_plugin(&plugin, &config).err().expect("missing");
        assert_eq!(why.to_string(), "there is no such program; install it");
        let good = format!(
            r#"case "$KUBERNETES_EXEC_INFO$1$NAME" in *https://x*getvalue) echo '{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"t"}}}}';; esac"#
        );
        for (script, want) in [
            (good.as_str(), None),
            ("exit 3", Some("it ends with code 3")),
            ("echo secret", Some("its answer is not valid")),
            ("head -c 400000 /dev/zero", Some("its answer is not valid")),
        ] {
            crate::testing::write_script(&path, &format!("#!/bin/sh\n{script}\n"));
            match (run_plugin(&plugin, &config), want) {
                (Ok(answer), None) => assert_eq!(answer.token.as_deref(), Some("t")),
                (Err(why), Some(want)) => {
                    let why = why.to_string();
                    assert!(why.contains(want) && !why.contains("secret"), "{why}");
                }
                (Ok(_), Some(want)) => panic!("{want}"),
                (Err(why), None) => panic!("{why}"),
            }
        }
        plugin.command = "picolet-no-such-plugin".into();
        assert!(run_plugin(&plugin, &config).is_err());
    }
}
