//! Backends that run containers: this agent itself, with an image store of its own, or a runtime that serves CRI.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use std::{fs, os::fd::OwnedFd, path::PathBuf};

use smol::LocalExecutor;

use super::{
    cluster,
    images::{ImageStock, NodeKeyring, PullKeyring},
    start_error::{AgentStartError, fatal_error, start_lane},
};
use crate::{
    api::{PodUid, cri::CgroupDriver, oci::HostFacts},
    cgroup::Cgroups,
    config::{AgentConfig, RuntimeEndpoints},
    error::error_chain,
    image::pull::{NodeCredentialLookup, PullSettings},
    logic::{cgroup::CgroupTree, oci},
    parts,
    runtime::{
        RuntimeError, RuntimeService,
        endpoint::{self, EndpointRuntime},
        runc::{self, Runc, process, store_images::StoreImages},
    },
    shim::LogLimit,
    sys::lane::Lane,
};

/// Tools for making a backend.
pub(super) struct BackendTools<'a> {
    pub(super) executor: &'a Rc<LocalExecutor<'static>>,
    pub(super) disk: Lane,
    pub(super) cgroups: Cgroups,
    pub(super) host: HostFacts,
}

/// A backend, and what goes with it.
pub(super) struct RuntimeBackend {
    pub(super) runtime: Rc<dyn RuntimeService>,
    /// Credentials of the node itself for pulls.
    pub(super) keyring: Rc<dyn NodeKeyring>,
    /// Keeper of images.
    pub(super) stock: ImageStock,
    /// Directory of images.
    pub(super) images: PathBuf,
    /// Directory of the containers' own writable layers.
    pub(super) layers: PathBuf,
    /// Maker of cgroups.
    pub(super) driver: CgroupDriver,
}

/// The backend that is configured. `pulls` say how images are pulled, as far as this agent does it.
pub(super) async fn open_backend(
    cfg: &AgentConfig,
    pulls: PullSettings,
    tools: BackendTools<'_>,
) -> Result<RuntimeBackend, AgentStartError> {
    if let Some(endpoints) = &cfg.runtime.endpoints {
        let opened = open_endpoint(cfg, endpoints, &tools).await;
        let runtime = opened.map_err(|e| {
            let socket = endpoints.runtime.display();
            fatal_error(format!("containerRuntimeEndpoint {socket}: {e}"))
        })?;
        let own = &cfg.dirs.image_drop_in;
        if fs::read_dir(own).is_ok_and(|mut entries| entries.next().is_some()) {
            log::warn!(
                "{} is not read: the container runtime keeps the images",
                own.display()
            );
        }
        if let Some(what) = pulls.registries.without_effect() {
            log::warn!("{}: {what}", cfg.images.registries.display());
        }
        return Ok(RuntimeBackend {
            driver: runtime.cgroup_driver(),
            images: runtime.runtime_directories().images.clone(),
            layers: runtime.runtime_directories().layers.clone(),
            runtime,
            keyring: Rc::new(PullKeyring(NodeCredentialLookup::new(pulls))),
            stock: ImageStock::Runtime,
        });
    }
    let store = StoreImages::open(
        cfg.dirs.images_dir(),
        pulls,
        tools.disk.clone(),
        start_lane("unpack")?,
    )
    .await
    .map_err(|e| fatal_error(format!("image store: {}", error_chain(&e))))?;
    if cfg.runtime.process.is_some() {
        fs::read_link("/proc/self/exe")
            .and_then(|exe| process::install_runtime_name(&cfg.dirs.run, &exe))
            .map_err(|e| fatal_error(format!("cannot install the handler of processes: {e}")))?;
    }
    let exe = fs::File::open("/proc/self/exe")
        .map_err(|e| fatal_error(format!("cannot open this program: {e}")))?;
    let settings = runc_settings(cfg, tools.host, Arc::new(OwnedFd::from(exe)));
    let images = Box::new(store.clone());
    let runtime = Runc::open(settings, images, tools.disk, tools.cgroups)
        .await
        .map_err(|e| fatal_error(e.to_string()))?;
    Ok(RuntimeBackend {
        runtime: Rc::new(runtime),
        keyring: Rc::new(PullKeyring(store.credential_lookup())),
        stock: ImageStock::Own(store),
        images: cfg.dirs.images_dir(),
        layers: cfg.dirs.root.join("containers"),
        driver: CgroupDriver::Cgroupfs,
    })
}

/// Connects to a runtime.
pub(super) async fn open_endpoint(
    cfg: &AgentConfig,
    endpoints: &RuntimeEndpoints,
    tools: &BackendTools<'_>,
) -> Result<Rc<dyn EndpointRuntime>, RuntimeError> {
    let fixed = oci::MASKED_PATHS.iter().map(|&path| path.to_owned());
    let open = parts::find_endpoint_client()?;
    let settings = endpoint::EndpointSettings {
        endpoint: endpoints.runtime.clone(),
        image_endpoint: endpoints.images.clone(),
        request_timeout: cfg.times.runtime_request,
        container_log_links: cfg.dirs.container_logs.clone(),
        root_dir: cfg.dirs.root.clone(),
        cgroup_root: cfg.cgroup.tree.root.clone(),
        cgroup_driver: cfg.cgroup.tree.driver,
        pod_groups: Some(pod_cgroup_paths),
        masked_paths: fixed
            .chain(tools.host.thermal_throttle.iter().cloned())
            .collect(),
        readonly_paths: oci::READONLY_PATHS
            .iter()
            .map(|&path| path.to_owned())
            .collect(),
    };
    let (disk, cgroups) = (tools.disk.clone(), tools.cgroups.clone());
    open(settings, tools.executor, disk, cgroups).await
}

/// OCI runtimes by handler, the built-in one among them if there are programs for it.
fn oci_runtime_handlers(cfg: &AgentConfig) -> BTreeMap<String, String> {
    let mut all = cfg.runtime.handlers.clone();
    if cfg.runtime.process.is_some() {
        let path = cfg.dirs.run.join(process::PROGRAM);
        all.insert(process::HANDLER.into(), path.display().to_string());
    }
    all
}

/// Paths at which the cgroup of a pod may be: one for each QoS class.
fn pod_cgroup_paths(driver: CgroupDriver, root: &str, uid: &PodUid) -> [String; 3] {
    let root = root.to_owned();
    CgroupTree { root, driver }.pod_paths_of_tiers(uid)
}

pub(super) fn runc_settings(
    cfg: &AgentConfig,
    host: HostFacts,
    exe: Arc<OwnedFd>,
) -> runc::RuncSettings {
    let root = cfg.cgroup.tree.root.trim_end_matches('/');
    runc::RuncSettings {
        root_dir: cfg.dirs.root.clone(),
        run_dir: cfg.dirs.run.clone(),
        runtime: cfg.runtime.program.display().to_string(),
        handlers: oci_runtime_handlers(cfg),
        search_path: std::env::var_os("PATH").unwrap_or_default(),
        process: cfg.runtime.process.clone(),
        cni_conf_dir: cfg.network.cni_conf.clone(),
        cni_bin_dir: cfg.network.cni_bin.clone(),
        built_in_network: runc::BuiltInNetwork {
            bridge: cfg.network.builtin_bridge.clone(),
            subnets: cluster::pod_cidr::network_subnets(cfg),
            mtu: 0,
        },
        spanning_network: cfg.parts.iter().find_map(|part| part.spanning_network()),
        kubepods: format!("{root}/kubepods"),
        shim_cgroup: format!("{root}/picolet-shims"),
        container_log_links: cfg.dirs.container_logs.clone(),
        log_limit: cfg.logs.max_size_bytes.map(|max_bytes| LogLimit {
            max_bytes,
            max_files: cfg.logs.max_files,
        }),
        log_memory: cfg.logs.memory_bytes,
        exe,
        host,
        spec: oci::container_spec,
        resolve_user: crate::logic::user::resolve_user,
        same_label: crate::logic::security::is_same_selinux_label,
        devices: cfg.parts.iter().find_map(|part| part.container_devices()),
        parallel: None,
    }
}
