//! KubeletConfiguration, flags and defaults: all settings of an operator, as one checked value.
//!
//! - [`decode`]: YAML or JSON text → JSON value → typed value, with limits; errors name the field's path.
//! - [`mod@file`]: the document named by `--config` and its known fields.
//! - `drop_in`: documents below `--config-dir`, each merged over that.
//! - `keys`: one table of all keys: flag, range, default, and if it is a path.
//! - [`flags`]: the parser of flags and their help text; `without_effect`: flags and keys that only a kubelet has.
//! - `gates`: names of feature gates.
//! - `layers`: the file or flag that has set a field.
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

use core::fmt;
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
mod layers;
mod link;
mod manifest_url;
mod node;
mod resolve;
mod server;
mod values;
mod without_effect;

use decode::DecodeError;
use serde_json::Value;

use crate::api::cri::CgroupDriver;

pub(crate) use checks::InvalidField;
pub use cluster::K3S_PASSWORD_FILE;
pub(crate) use keys::{TableKey, key};
pub use values::{
    AgentConfig, AgentDirs, CgroupConfig, ClusterConfig, CpuPolicyConfig, DEFAULT_BRIDGE,
    DEFAULT_SUBNET, EvictionConfig, GarbageConfig, ImageConfig, Ipv4Subnet, LinkConfig, LogConfig,
    MemoryQosConfig, NodeConfig, OfflineSecrets, PodNetworkConfig, ReservedGroup,
    ReservedResources, RuntimeConfig, RuntimeEndpoints, ServerConfig, ServingCertificateSource,
    SwapBehavior, TimeConfig,
};

/// Version that is reported as the kubelet's: it must parse as a Kubernetes version. The part behind the plus is ours.
pub const KUBELET_VERSION: &str = concat!("v1.36.0+picolet-", env!("CARGO_PKG_VERSION"));

/// The file read when `--config` is absent and this one exists. Without `--config-dir`, drop-ins in `config.d` beside it are
/// read too then.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/picolet/config.yaml";

/// Name of the node in a configuration that is only looked at, if the host's name cannot be used.
pub const STAND_IN_NAME: &str = "localhost";

/// Most faults of a configuration that are looked for, one after the other.
const MAX_FAULTS: usize = 100;

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
    pub warnings: Vec<ConfigWarning>,
}

/// A warning about the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The file or the flag that it is about.
    pub place: String,
    /// Path of the field, and what becomes of it.
    pub message: String,
}

/// A warning about a field or a flag, whatever file it stands in.
struct FieldWarning {
    /// Path of the field, or the flag with its dashes.
    field: String,
    /// The field, and what becomes of it.
    message: String,
}

impl FieldWarning {
    /// Makes the warning "`field` `text`".
    fn new(field: &str, text: &str) -> Self {
        Self {
            field: field.into(),
            message: [field, " ", text].concat(),
        }
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
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
    /// The file is no document of this kind.
    #[error("{path}: {source}")]
    Decode {
        /// The file.
        path: String,
        /// Fault of the document, with the field's path.
        source: DecodeError,
    },
    /// A field has a value that cannot be used.
    #[error("{path}: {field}: {message}")]
    Invalid {
        /// The file or the flag that has set the field.
        path: String,
        /// The field's path.
        field: String,
        /// Rule that the value breaks.
        message: String,
    },
}

impl ConfigError {
    /// The file or the flag that is to be corrected.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Read { path, .. } => path.display().to_string(),
            Self::Decode { path, .. } | Self::Invalid { path, .. } => path.clone(),
        }
    }
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
    load_with(flags, host, default_file, &mut Err)
}

/// Loads the configuration without what is faulty in it, and returns the faults too: the rest can be judged. A file
/// that is no document is left out whole. If the faults leave nothing to judge, the configuration is that without file
/// and flags.
pub fn load_usable_config(
    flags: flags::CommandLineFlags,
    host: &HostIdentity,
) -> Result<(LoadedConfig, Vec<ConfigError>), ConfigError> {
    let file = Path::new(DEFAULT_CONFIG_FILE);
    let mut faults = Vec::new();
    let usable = load_with(flags.clone(), host, file, &mut |fault| match faults.len() {
        MAX_FAULTS => Err(fault),
        _ => {
            faults.push(fault);
            Ok(())
        }
    });
    let usable = usable.or_else(|fault| {
        faults.push(fault);
        // The host's name cannot be left out.
        let stand_in = HostIdentity {
            hostname: STAND_IN_NAME.into(),
        };
        load_with(flags, &stand_in, file, &mut |_| Ok(())).or_else(|_| {
            Ok(LoadedConfig {
                config: default_config(&stand_in)?,
                file: None,
                drop_ins: None,
                warnings: Vec::new(),
            })
        })
    });
    Ok((usable?, faults))
}

/// Takes a fault. An error ends the load, otherwise the faulty part is left out.
type FaultHandler<'a> = dyn FnMut(ConfigError) -> Result<(), ConfigError> + 'a;

fn load_with(
    flags: flags::CommandLineFlags,
    host: &HostIdentity,
    default_file: &Path,
    tell: &mut FaultHandler<'_>,
) -> Result<LoadedConfig, ConfigError> {
    let named = flags.config.is_some();
    let path = flags.config.unwrap_or_else(|| default_file.into());
    let mut layers = layers::ConfigLayers::default();
    let mut warnings = Vec::new();
    let mut value = Value::Null;
    let file = match read_bounded(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && !named => None,
        bytes => {
            match read_layer(&path, bytes, false) {
                Ok(document) => value = layers.push_file(&path, document, &mut warnings),
                Err(fault) => tell(fault)?,
            }
            Some(path)
        }
    };
    let usual =
        (!named && default_file.is_absolute()).then(|| join::default_drop_in_dir(default_file));
    let usual = usual.filter(|dir| dir.is_dir());
    let drop_ins = flags.config_dir.or(usual);
    let listed = drop_ins.as_deref().map(drop_in::list_drop_ins);
    let listed = listed
        .transpose()
        .or_else(|fault| tell(fault).map(|()| None))?;
    for path in listed.into_iter().flatten() {
        match read_layer(&path, read_bounded(&path), true) {
            Ok(document) => {
                let patch = layers.push_file(&path, document, &mut warnings);
                drop_in::apply_drop_in(&mut value, patch, file.is_some());
            }
            Err(fault) => tell(fault)?,
        }
    }
    layers.push_flags(&flags.overlay);
    flags::overlay_flags(&mut value, flags.overlay);
    let ignored = flags.without_effect.into_iter();
    let mut said: Vec<FieldWarning> = ignored
        .map(|name| FieldWarning::new(&format!("--{name}"), "is without effect here"))
        .collect();
    adapt::adapt_document(&mut value, flags.as_kubelet, &mut said);
    // Bounded: each turn but the last removes a field.
    let config = loop {
        let fault = match decode::deserialize_value(&value) {
            Err(DecodeError::Value { path, message }) => InvalidField {
                field: path,
                message,
            },
            Err(e) => return Err(layers.config_error(String::new(), e.to_string())),
            Ok(fields) => {
                let mut more = Vec::new();
                let document = value.clone();
                match resolve::resolve_config(fields, document, file.is_some(), host, &mut more) {
                    Ok(config) => {
                        said.append(&mut more);
                        break config;
                    }
                    Err(fault) => fault,
                }
            }
        };
        let is_removed = layers::remove_fault(&mut value, &fault);
        let error = layers.config_error(fault.field, fault.message);
        if !is_removed {
            return Err(error);
        }
        tell(error)?;
    };
    warnings.extend(said.into_iter().map(|warning| ConfigWarning {
        place: layers.name_source(&warning.field),
        message: warning.message,
    }));
    Ok(LoadedConfig {
        config,
        file,
        drop_ins,
        warnings,
    })
}

/// Reads the file, or a drop-in.
fn read_layer(
    path: &Path,
    bytes: io::Result<Vec<u8>>,
    is_drop_in: bool,
) -> Result<file::ConfigDocument, ConfigError> {
    let bytes = bytes.map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })?;
    let document = match is_drop_in {
        true => file::read_drop_in(&bytes),
        false => {
            let dir = path.parent().unwrap_or_else(|| Path::new("/"));
            file::read_config_document(&bytes, dir)
        }
    };
    document.map_err(|source| ConfigError::Decode {
        path: path.display().to_string(),
        source,
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
