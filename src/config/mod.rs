//! KubeletConfiguration, flags and defaults: all settings of an operator, as one checked value.
//!
//! - [`decode`]: YAML or JSON text → JSON value → typed value, with limits; errors name the field's path.
//! - [`mod@file`]: the document named by `--config` and its known fields.
//! - `drop_in`: documents below `--config-dir`, each merged over that.
//! - `keys`: one table of all keys: flag, range, default, and if it is a path.
//! - [`flags`]: the parser of flags and their help text; `without_effect`: flags and keys that only a kubelet has.
//! - `gates`: names of feature gates.
//! - [`join`]: the file of a machine that joins a cluster.
//! - `adapt`: settings of a kubelet that this agent fulfils in its own way.
//! - [`AgentConfig`]: the result: defaults < file < drop-ins < flags (CONF-03), every limit with its unit.
//!
//! Defaults are a kubelet's, with these exceptions, each made because the agent must start on a board as it comes:
//!
//! | field | kubelet | here | why |
//! |---|---|---|---|
//! | `failCgroupV1` | true | false | boards still boot with cgroup v1 or hybrid; both are supported |
//! | `failSwapOn` | true | false | board images come with swap; pods get none of it where the kernel can say so (v2) |
//! | `staticPodPath` | none | `/etc/picolet/manifests` | without a control plane it is the only source; empty turns it off |
//! | `containerRuntimeEndpoint` | containerd | none | without it containers are run by the agent itself |

use std::io;
use std::path::{Path, PathBuf};

mod adapt;
pub(crate) mod checks;
mod cluster;
mod configz;
pub mod decode;
pub(crate) mod drop_in;
pub mod duration;
pub(crate) mod endpoints;
mod eviction;
pub mod file;
pub mod flags;
mod gates;
pub mod join;
pub(crate) mod keys;
mod link;
mod manifest_url;
mod node;
mod resolve;
mod server;
mod values;
mod without_effect;

use crate::api::cri::CgroupDriver;

pub(crate) use checks::InvalidField;
pub use cluster::K3S_PASSWORD_FILE;
pub(crate) use keys::{TableKey, key};
pub use values::{
    AgentConfig, AgentDirs, CgroupConfig, ClusterConfig, DEFAULT_BRIDGE, DEFAULT_SUBNET,
    EvictionConfig, GarbageConfig, ImageConfig, Ipv4Subnet, LinkConfig, LogConfig, MemoryQosConfig,
    NodeConfig, OfflineSecrets, PodNetworkConfig, ReservedGroup, ReservedResources, RuntimeConfig,
    RuntimeEndpoints, ServerConfig, ServingCertificateSource, SwapBehavior, TimeConfig,
};

/// Version that is reported as the kubelet's: it must parse as a Kubernetes version. The part behind the plus is ours.
pub const KUBELET_VERSION: &str = concat!("v1.36.0+picolet-", env!("CARGO_PKG_VERSION"));

/// The file read when `--config` is absent and this one exists. Without `--config-dir`, drop-ins in `config.d` beside it are
/// read too then.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/picolet/config.yaml";

/// Facts about the machine, read once by the caller.
#[derive(Clone, Debug, Default)]
pub struct HostIdentity {
    /// Host name; used unless overridden (CONF-16).
    pub hostname: String,
}

/// A configuration, its files and its warnings.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The checked configuration.
    pub config: AgentConfig,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// The directory of drop-ins that was read, if any.
    pub drop_ins: Option<PathBuf>,
    /// Warnings for the operator: unknown fields and the like. The configuration is usable all the same.
    pub warnings: Vec<String>,
}

/// Reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is no document, or a field has a value of the wrong kind.
    #[error("{path}: {source}")]
    Decode {
        /// The file, or `command line`.
        path: String,
        /// Fault of the document, with the field's path.
        source: decode::DecodeError,
    },
    /// A field has a value that cannot be used.
    #[error("{path}: {field}: {message}")]
    Invalid {
        /// The file, or `command line`.
        path: String,
        /// The field's path.
        field: String,
        /// Rule that the value breaks.
        message: String,
    },
}

/// Reads the file, lays drop-ins and then the flags over it and checks the whole.
///
/// Blocks on reading a few small files; meant for the start of the program.
pub fn load_config(
    flags: flags::CommandLineFlags,
    host: &HostIdentity,
) -> Result<LoadedConfig, ConfigError> {
    load_config_from(flags, host, Path::new(DEFAULT_CONFIG_FILE))
}

fn load_config_from(
    flags: flags::CommandLineFlags,
    host: &HostIdentity,
    default_file: &Path,
) -> Result<LoadedConfig, ConfigError> {
    let named = flags.config.is_some();
    let path = flags.config.unwrap_or_else(|| default_file.into());
    let (file, mut document) = match read_bounded(&path) {
        Ok(bytes) => {
            let dir = path.parent().unwrap_or_else(|| Path::new("/"));
            let document =
                file::read_config_document(&bytes, dir).map_err(|source| ConfigError::Decode {
                    path: path.display().to_string(),
                    source,
                })?;
            (Some(path), document)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && !named => {
            (None, file::ConfigDocument::default())
        }
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    let usual =
        (!named && default_file.is_absolute()).then(|| join::default_drop_in_dir(default_file));
    let usual = usual.filter(|dir| dir.is_dir());
    let drop_ins = flags.config_dir.or(usual);
    if let Some(dir) = &drop_ins {
        drop_in::apply_drop_ins(&mut document, dir, file.is_some())?;
    }
    flags::overlay_flags(&mut document.value, flags.overlay);
    let ignored = flags.without_effect.into_iter();
    let ignored = ignored.map(|name| format!("--{name} is without effect here"));
    document.warnings.extend(ignored);
    adapt::adapt_document(
        &mut document.value,
        flags.as_kubelet,
        &mut document.warnings,
    );
    let from = file
        .as_ref()
        .map_or_else(|| "command line".into(), |p| p.display().to_string());
    let fields: file::KubeletConfiguration =
        decode::deserialize_value(&document.value).map_err(|source| ConfigError::Decode {
            path: from.clone(),
            source,
        })?;
    let file::ConfigDocument {
        value,
        mut warnings,
    } = document;
    let resolved = resolve::resolve_config(fields, value, file.is_some(), host, &mut warnings);
    let config = resolved.map_err(|e| ConfigError::Invalid {
        path: from,
        field: e.field,
        message: e.message,
    })?;
    Ok(LoadedConfig {
        config,
        file,
        drop_ins,
        warnings,
    })
}

impl AgentConfig {
    /// Takes the cgroup driver that the runtime names, whatever was configured (CONF-18).
    pub fn use_cgroup_driver(&mut self, driver: CgroupDriver) {
        if driver == self.cgroup.tree.driver {
            return;
        }
        log::info!(
            "cgroup driver {}, as the runtime says",
            driver.config_word()
        );
        self.cgroup.tree.driver = driver;
        self.document = configz::with_cgroup_driver(&self.document, driver);
    }
}

/// Makes the configuration without file and flags.
///
/// Errors: the host's name cannot be a node's.
pub fn default_config(host: &HostIdentity) -> Result<AgentConfig, ConfigError> {
    let none = Path::new("");
    load_config_from(flags::CommandLineFlags::default(), host, none).map(|loaded| loaded.config)
}

/// Reads at most one byte more than a document may have: the decoder then says that it is too large.
pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut bytes = Vec::new();
    let limit = u64::try_from(decode::MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX);
    std::fs::File::open(path)?
        .take(limit)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
