//! Present credentials of this node: tokens and certificates that change under a running client.
//!
//! Nothing is read before the first request. A token file is read again within [`TOKEN_FILE_TIME`], a plugin asked again
//! when its answer expires; a 401 brings both forward. The files of certificates are looked at every [`FILES_TIME`], and
//! a new pair is taken when it can be used: a file half replaced leaves the old one in place (BOOT-08).

use alloc::sync::Arc;
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::ClientConfig;

use super::error::KubeError;
use super::exec;
use super::kubeconfig::{
    Kubeconfig, KubeconfigMaterial, MAX_TOKEN_BYTES, ServerTrust, check_token,
};
use super::x509;
use crate::api::MonoTime;
use crate::error::error_chain;
use crate::net::any_peer::PeerProof;
use crate::net::known_time::SharedKnownTime;
use crate::net::tls::{self, ClientIdentity, PemSource, ServerRoots, TlsError};
use crate::sys::clock;

/// Age of a token after which its file is read again. Service account tokens are replaced well ahead of their end.
pub(super) const TOKEN_FILE_TIME: Duration = Duration::from_secs(50);
/// Interval of looks at the files of certificates.
pub(super) const FILES_TIME: Duration = Duration::from_secs(10);
/// Interval of looks at the files of certificates until the first ones are there and usable.
pub(super) const FIRST_FILES_TIME: Duration = Duration::from_secs(1);

/// Credentials in use, shared by all connections to one apiserver.
pub(super) struct ApiCredentials {
    state: Mutex<ApiCredentialsState>,
}

#[derive(Default)]
struct ApiCredentialsState {
    /// The token of the file, and when it was read.
    token: Option<(String, MonoTime)>,
    plugin: Option<exec::PluginCredentials>,
    tls: Option<TlsInUse>,
    /// Time and cause of the last failure to load the first certificates.
    failed: Option<(MonoTime, String)>,
}

/// Certificates in use.
struct TlsInUse {
    config: Arc<ClientConfig>,
    /// Versions of the files that the certificates were read from.
    stamps: Vec<CredentialFileStamp>,
    /// The plugin's answer that the certificate is from.
    plugin: u64,
    checked: MonoTime,
    generation: u64,
}

/// Tells versions of a file apart: device, inode, size, time of change in seconds and nanoseconds. `None`: not there.
type CredentialFileStamp = Option<(u64, u64, u64, i64, i64)>;

impl ApiCredentials {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(ApiCredentialsState::default()),
        }
    }

    /// Returns the token to present, if there is one. Blocks on a plugin.
    pub(super) fn current_token(&self, config: &Kubeconfig) -> Result<Option<String>, KubeError> {
        let now = clock::mono_now();
        let mut state = self.lock();
        if let Some(path) = &config.user.token_file {
            if let Some((token, read)) = &state.token
                && now - *read < TOKEN_FILE_TIME
            {
                return Ok(Some(token.clone()));
            }
            return match read_token(path) {
                Ok(token) => {
                    state.token = Some((token.clone(), now));
                    Ok(Some(token))
                }
                Err(why) => match &state.token {
                    // The file is perhaps just being replaced: the token that it held may still be good.
                    Some((token, _)) => {
                        log::warn!("token {}: {why}", path.display());
                        Ok(Some(token.clone()))
                    }
                    None => Err(KubeError::Local(format!("token {}: {why}", path.display()))),
                },
            };
        }
        if config.user.token.is_some() {
            return Ok(config.user.token.clone());
        }
        Ok(state
            .plugin_credentials(config, now)?
            .and_then(|a| a.token.clone()))
    }

    /// Forgets the token and the plugin's answer: the apiserver does not know us. Returns true if asking again makes
    /// sense.
    pub(super) fn forget_refused_token(&self, config: &Kubeconfig) -> bool {
        let mut state = self.lock();
        state.token = None;
        state.plugin = None;
        config.user.token_file.is_some() || config.user.exec.is_some()
    }

    /// Returns the TLS configuration in force and its number, which changes with the configuration.
    pub(super) fn current_tls(
        &self,
        config: &Kubeconfig,
        known_time: &SharedKnownTime,
    ) -> Result<(Arc<ClientConfig>, u64), KubeError> {
        let now = clock::mono_now();
        let mut state = self.lock();
        let plugin = match state.plugin_credentials(config, now)? {
            Some(answer) => answer.number,
            None => 0,
        };
        if let Some(tls) = &mut state.tls {
            let is_due = now - tls.checked >= FILES_TIME || tls.plugin != plugin;
            if !is_due {
                return Ok((Arc::clone(&tls.config), tls.generation));
            }
            tls.checked = now;
            if tls.plugin == plugin && tls.stamps == tls_file_stamps(config) {
                return Ok((Arc::clone(&tls.config), tls.generation));
            }
        } else if let Some((at, why)) = &state.failed
            && now - *at < FIRST_FILES_TIME
        {
            return Err(KubeError::Local(why.clone()));
        }
        // Stamps first: a file that changes while it is read is seen the next time.
        let stamps = tls_file_stamps(config);
        let generation = state.tls.as_ref().map_or(0, |tls| tls.generation);
        match build_tls_config(config, state.plugin.as_ref(), known_time) {
            Ok(built) => {
                if generation > 0 {
                    log::info!("the credentials for the apiserver have changed");
                }
                let generation = generation + 1;
                state.failed = None;
                state.tls = Some(TlsInUse {
                    config: Arc::clone(&built),
                    stamps,
                    plugin,
                    checked: now,
                    generation,
                });
                Ok((built, generation))
            }
            Err(why) => match (error_chain(&why), &state.tls) {
                (why, Some(tls)) => {
                    log::warn!("new credentials for the apiserver cannot be used: {why}");
                    Ok((Arc::clone(&tls.config), tls.generation))
                }
                (why, None) => {
                    state.failed = Some((now, why.clone()));
                    Err(KubeError::Local(why))
                }
            },
        }
    }

    /// Looks at the files again with the next request, whatever the time.
    pub(super) fn reread_files(&self) {
        let mut state = self.lock();
        state.failed = None;
        if let Some(tls) = &mut state.tls {
            tls.checked = MonoTime(0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ApiCredentialsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiCredentialsState {
    /// Returns the plugin's answer. Asks the plugin anew if the last answer has expired.
    fn plugin_credentials(
        &mut self,
        config: &Kubeconfig,
        now: MonoTime,
    ) -> Result<Option<&exec::PluginCredentials>, KubeError> {
        let Some(plugin) = &config.user.exec else {
            return Ok(None);
        };
        let holds = self.plugin.as_ref().is_some_and(|a| a.is_valid_at(now));
        if !holds {
            let answer = exec::run_plugin(plugin, config).map_err(|why| {
                let command = plugin.command.display();
                KubeError::Local(format!("exec plugin {command}: {why}"))
            })?;
            self.plugin = Some(answer);
        }
        Ok(self.plugin.as_ref())
    }
}

fn build_tls_config(
    config: &Kubeconfig,
    plugin: Option<&exec::PluginCredentials>,
    known_time: &SharedKnownTime,
) -> Result<Arc<ClientConfig>, TlsError> {
    let roots = match &config.trust {
        ServerTrust::System => ServerRoots::SystemAnd(None),
        ServerTrust::Any => ServerRoots::Any(PeerProof::Key),
        ServerTrust::Ca(material) => {
            ServerRoots::Only(pem_source("certificate-authority-data", material))
        }
    };
    let from_plugin = plugin.and_then(|answer| answer.pair.as_ref());
    let identity = match (&config.user.certificate, from_plugin) {
        (Some((chain, key)), _) => Some(ClientIdentity {
            chain: pem_source("client-certificate-data", chain),
            key: pem_source("client-key-data", key),
        }),
        (None, Some((chain, key))) => Some(ClientIdentity {
            chain: PemSource::Text("the plugin's certificate", chain),
            key: PemSource::Text("the plugin's key", key),
        }),
        (None, None) => None,
    };
    let built = tls::client_config(roots, identity)?;
    let authority = match roots {
        ServerRoots::Only(pem) => Some(pem),
        ServerRoots::SystemAnd(_) | ServerRoots::Any(_) => None,
    };
    for pem in identity.map(|own| own.chain).into_iter().chain(authority) {
        let chain = x509::read_chain(&pem.read_pem()?).unwrap_or_default();
        for one in chain {
            known_time.note_passed_time(one.not_before);
        }
    }
    Ok(built)
}

pub(crate) fn pem_source<'a>(
    name: &'static str,
    material: &'a KubeconfigMaterial,
) -> PemSource<'a> {
    match material {
        KubeconfigMaterial::File(path) => PemSource::File(path),
        KubeconfigMaterial::Inline(bytes) => PemSource::Text(name, bytes),
    }
}

fn tls_file_stamps(config: &Kubeconfig) -> Vec<CredentialFileStamp> {
    config.tls_files().map(file_stamp).collect()
}

fn file_stamp(path: &Path) -> CredentialFileStamp {
    let found = std::fs::metadata(path).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.size(),
        found.mtime(),
        found.mtime_nsec(),
    ))
}

/// Reads a token. Errors: the file cannot be read, or does not hold a token.
pub(crate) fn read_token(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path).and_then(|file| {
        file.take(MAX_TOKEN_BYTES as u64 + 2)
            .read_to_string(&mut text)
    })?;
    let token = text.trim();
    check_token(token).map_err(io::Error::other)?;
    Ok(token.to_owned())
}
