//! The seam of a runtime of another process, which listens at an endpoint.

use alloc::rc::Rc;
use core::{future::Future, pin::Pin, time::Duration};
use std::path::PathBuf;

use smol::LocalExecutor;

use super::{RuntimeCall, RuntimeError, RuntimeService};
use crate::{
    api::{PodUid, cri::CgroupDriver},
    cgroup::Cgroups,
    sys::lane::Lane,
};

/// Settings of a client of a runtime.
#[derive(Clone, Debug, Default)]
pub struct EndpointSettings {
    /// Socket of the runtime.
    pub endpoint: PathBuf,
    /// Socket of its images; often the same.
    pub image_endpoint: PathBuf,
    /// `runtimeRequestTimeout`: how long most calls may take.
    pub request_timeout: Duration,
    /// `/var/log/containers`: links to logs that are removed with their instance.
    pub container_log_links: PathBuf,
    /// Root directory of the agent: containers mount files from `pods` in it.
    pub root_dir: PathBuf,
    /// Cgroup below which pods live, and usage is read.
    pub cgroup_root: String,
    /// Cgroup driver, if the runtime does not tell its own.
    pub cgroup_driver: CgroupDriver,
    /// Possible cgroups of a pod; `None`: usage is not asked.
    pub pod_groups: Option<PodCgroupNaming>,
    /// Paths that containers do not see, unless they ask for it.
    pub masked_paths: Vec<String>,
    /// Paths that they cannot write to.
    pub readonly_paths: Vec<String>,
}

/// Directories of a runtime, which tell its file systems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeDirectories {
    /// Directory of images.
    pub images: PathBuf,
    /// Directory of the containers' writable layers.
    pub layers: PathBuf,
}

/// Computes the possible cgroups of a pod from the cgroup driver, `cgroupRoot` and the pod's UID.
pub type PodCgroupNaming = fn(CgroupDriver, &str, &PodUid) -> [String; 3];

/// A runtime of another process, opened.
pub type EndpointOpening<'a> =
    Pin<Box<dyn Future<Output = Result<Rc<dyn EndpointRuntime>, RuntimeError>> + 'a>>;

/// Connects to the runtime at an endpoint; the connections' tasks run on the executor.
///
/// - Errors: the runtime does not answer, does not say who it is, or makes cgroups in a way that is not known here.
pub type OpenEndpoint = for<'a> fn(
    EndpointSettings,
    &'a Rc<LocalExecutor<'static>>,
    Lane,
    Cgroups,
) -> EndpointOpening<'a>;

/// A runtime of another process.
pub trait EndpointRuntime: RuntimeService {
    /// Directories of the runtime, as it told them when it was opened.
    fn runtime_directories(&self) -> &RuntimeDirectories;
    /// Cgroup driver: the runtime's own if it tells it, else that of the settings.
    fn cgroup_driver(&self) -> CgroupDriver;
    /// Cgroup driver, as far as the runtime tells it.
    fn reported_cgroup_driver(&self) -> Option<CgroupDriver>;
    /// Asks for the cgroup driver in the runtime's own configuration: an old one tells it only there. `None`: the runtime
    /// shows none.
    fn configured_cgroup_driver(&self) -> RuntimeCall<'_, Option<CgroupDriver>>;
}
