//! Settings of the direct backend.

use alloc::collections::BTreeMap;
use std::{ffi::OsString, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use super::cni::BuiltInNetwork;
use crate::api::oci::{HostFacts, ResolveUserFn, SameLabelFn, SpecFn};
use crate::shim::LogLimit;

/// Everything that is configurable, every directory absolute.
#[derive(Clone, Debug)]
pub struct RuncSettings {
    /// Directory that survives a reboot: writable layers, attachments of foreign networks, the boot counter.
    pub root_dir: PathBuf,
    /// Directory that is lost at reboot: records, bundles, namespaces, leases of the built-in network.
    pub run_dir: PathBuf,
    /// The OCI runtime: a path, or a name searched in the usual directories.
    pub runtime: String,
    /// Other OCI runtimes, absolute paths, by the handler that pods name in their RuntimeClass.
    pub handlers: BTreeMap<String, String>,
    /// Directories in which CRIU is looked for, as `PATH` names them. Other programs are looked for in the usual ones.
    pub search_path: OsString,
    /// Programs of the machine that may run as containers of the handler [`super::process::HANDLER`]; `None`: none may.
    pub process: Option<super::process::ProcessPermissions>,
    /// Network configurations.
    pub cni_conf_dir: PathBuf,
    /// Network plugins.
    pub cni_bin_dir: PathBuf,
    /// The network of a node without configuration.
    pub built_in_network: BuiltInNetwork,
    /// Network between nodes that the built-in network is a part of; `None`: there is none.
    pub spanning_network: Option<Arc<super::cni::SpanningNetwork>>,
    /// Cgroup below which pods live (`/kubepods`, `cgroupRoot` included); tried by the status call.
    pub kubepods: String,
    /// Cgroup of the shims.
    pub shim_cgroup: String,
    /// `/var/log/containers`: links to logs that are removed with their instance.
    pub container_log_links: PathBuf,
    /// Limit of a container's log; `None`: shims do not rotate.
    pub log_limit: Option<LogLimit>,
    /// Memory for the ends of all logs, bytes; `None`: shims write them to the disk at once.
    pub log_memory: Option<u64>,
    /// Executable of this program, opened at start.
    pub exe: Arc<OwnedFd>,
    /// The machine; see [`super::host::read_host_facts`].
    pub host: HostFacts,
    /// `logic::oci::container_spec`.
    pub spec: SpecFn,
    /// `logic::oci::resolve_user`.
    pub resolve_user: ResolveUserFn,
    /// `logic::security::is_same_selinux_label`.
    pub same_label: SameLabelFn,
    /// Giver of devices that are more than nodes; `None`: no container has such devices.
    pub devices: Option<Arc<dyn super::DeviceInjector>>,
    /// Children at a time; `None` derives it from memory and cores.
    pub parallel: Option<usize>,
}
