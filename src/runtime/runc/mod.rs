//! The direct backend: sandboxes, networks and containers by system calls, CNI plugins and an OCI runtime, without a
//! daemon. Nothing of it is resident but a shim for each container.
//!
//! - [`record`]: the records in the run directory; every record is an intent before it is a fact.
//! - `table`: all sandboxes and instances in memory, kept true by pidfds; the relist reads no file.
//! - `pods`, `containers`, [`exec`], `attach`, `port_forward`: the operations. `recover`: finding everything again after a restart or a reboot.
//! - `checkpoint`: archives of running containers.
//! - [`cni`], `sandbox`, `bundle`, [`program`], [`host`], [`apparmor`]: one outside world each.
//! - [`images`]: the image store that it needs. [`store_images`]: the store of this machine, and calls that only it
//!   has.
//!
//! One pod's operations are not serialised here: its slot in the agent does that. Operations that must not overlap for
//! one container (removal of an ended instance) are guarded.
//!
//! The OCI runtime's `create` and `start` both happen in [`RuntimeService::start_container`]: a program that cannot be run is then
//! an instance that `Exited` with `StartError`, as with other backends, and a created instance costs no process.

pub mod apparmor;
mod attach;
mod bundle;
mod checkpoint;
pub mod cni;
mod container_devices;
mod containers;
pub mod exec;
pub mod exec_wait;
mod files;
mod gate;
pub mod host;
pub mod images;
mod log_memory;
mod masks;
mod mounts;
pub mod pod_init;
mod pods;
mod port_forward;
pub mod process;
pub mod program;
pub mod record;
mod recover;
mod sandbox;
mod settings;
mod sources;
mod stats;
pub mod store_images;
mod table;
mod tracers;
mod update;

use alloc::rc::Rc;
use core::{cell::RefCell, future::ready, pin::Pin, time::Duration};
use std::{
    fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, access};

use self::{
    apparmor::AppArmor,
    bundle::ContainerDirs,
    cni::{Cni, CniSettings},
    gate::ChildLimiter,
    images::BackendImageStore,
    program::{OciRuntime, OciRuntimeError, OciRuntimes},
    recover::MachineBoot,
    table::{InstanceTable, ProcessDoorbell},
};
use super::{
    CHECKPOINT_DIR, ImageService, LogRetention, PortConnector, RuntimeCall, RuntimeError,
    RuntimeService, SessionStart, StreamRoute,
};
use crate::error::error_chain;
use crate::image::ImageProgress;
use crate::{
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{
            AuthConfig, ContainerConfig, DEFAULT_HANDLER, ExecOutput, FsInfo, LinuxResources,
            PodItem, PodRuntimeStatus, RuntimeCapabilities, RuntimeCondition, RuntimeStatus,
            RuntimeVersion, SandboxConfig, SandboxStatus, StoredImage,
        },
        stats::{DiskUsage, PodUsage, StatsDetail},
    },
    cgroup::Cgroups,
    shim,
    sys::{lane::Lane, remove},
};

pub use cni::BuiltInNetwork;
pub use container_devices::{DeviceInjector, LiveContainer, SpecEdit};
pub use settings::RuncSettings;

/// Name of this runtime in the API; also the prefix of container ids.
pub const NAME: &str = "picolet";

/// Pods that the run directory has sandboxes of, each as (UID, `namespace/name`). Reads records only; for `reset`.
#[must_use]
pub fn recorded_pods(run_dir: &Path) -> Vec<(PodUid, String)> {
    let dir = run_dir.join("sandboxes");
    let names = files::sorted_names(&dir).unwrap_or_default();
    let records = names.into_iter().filter_map(|name| {
        let record = record::load_record::<record::SandboxRecord>(&dir.join(name));
        record.ok().flatten()
    });
    records
        .map(|r| {
            let pod = r.config;
            (pod.uid, format!("{}/{}", pod.namespace, pod.name))
        })
        .collect()
}

/// The direct backend. See the module.
pub struct Runc {
    settings: RuncSettings,
    images: Box<dyn BackendImageStore>,
    disk: Lane,
    cgroups: Cgroups,
    cni: Cni,
    apparmor: AppArmor,
    gate: ChildLimiter,
    boot: MachineBoot,
    programs: OciRuntimes,
    table: RefCell<InstanceTable>,
    bell: ProcessDoorbell,
    next_order: RefCell<u32>,
    next_exec: RefCell<u32>,
    left_execs: Rc<exec::AbandonedCommands>,
}

impl Runc {
    /// Prepares the directories, probes the OCI runtime, finds the sandboxes and instances of an earlier agent and
    /// sweeps leftovers without owner.
    ///
    /// # Errors
    /// A directory cannot be made or a record directory cannot be read. A missing OCI runtime or network is no error here:
    /// [`RuntimeService::runtime_status`] says so.
    pub async fn open(
        settings: RuncSettings,
        images: Box<dyn BackendImageStore>,
        disk: Lane,
        cgroups: Cgroups,
    ) -> Result<Self, RuntimeError> {
        for dir in ["sandboxes", "containers", "runtime", "cni"] {
            make_closed_dir(&settings.run_dir.join(dir))?;
        }
        for dir in ["sandboxes", "containers", "cni"] {
            make_closed_dir(&settings.root_dir.join(dir))?;
        }
        for dir in [&settings.run_dir, &settings.root_dir] {
            mounts::make_shared(dir).map_err(failed_at_step(&format!(
                "share mounts of {}",
                dir.display()
            )))?;
        }
        log_memory::prepare_log_memory(&settings.run_dir, settings.log_memory)
            .map_err(failed_at_step("make a place for logs in memory"))?;
        if let Err(e) = cgroups.create_leaf(&settings.shim_cgroup) {
            log::warn!("cgroup of the shims: {}", error_chain(&e));
        }
        let boot = MachineBoot::read(&settings.root_dir).map_err(failed_at_step("count boots"))?;
        let programs = OciRuntimes::probe_all(&settings).await;
        let width = settings.parallel.unwrap_or_else(|| {
            let cores = std::thread::available_parallelism().map_or(1, Into::into);
            ChildLimiter::compute_child_limit(available_memory_bytes(), cores)
        });
        let apparmor = AppArmor::new(settings.host.apparmor);
        apparmor.prepare_default_profile().await;
        let table = InstanceTable::new().map_err(failed_at_step("epoll"))?;
        let runc = Self {
            cni: Cni::new(
                CniSettings {
                    conf_dir: settings.cni_conf_dir.clone(),
                    bin_dir: settings.cni_bin_dir.clone(),
                    run_dir: settings.run_dir.join("cni"),
                    root_dir: settings.root_dir.join("cni"),
                    built_in: settings.built_in_network.clone(),
                    spanning: settings.spanning_network.clone(),
                },
                boot.id.clone(),
            ),
            apparmor,
            gate: ChildLimiter::new(width, &settings.run_dir),
            bell: table.doorbell(),
            table: RefCell::new(table),
            programs,
            next_order: RefCell::new(0),
            next_exec: RefCell::new(0),
            left_execs: Rc::default(),
            boot,
            settings,
            images,
            disk,
            cgroups,
        };
        runc.gate.wait_for_orphans().await;
        if let Err(e) = checkpoint::remove_unfinished(&runc.settings.root_dir.join(CHECKPOINT_DIR))
        {
            log::warn!("unfinished checkpoints: {e}");
        }
        runc.recover_all().await?;
        Ok(runc)
    }

    /// The handler that a container's sandbox was made with, also if an earlier agent made it.
    fn container_handler(&self, id: &ContainerId) -> String {
        let table = self.table.borrow();
        let sandbox = table.containers.get(id).map(|c| &c.status.sandbox);
        let sandbox = sandbox.and_then(|id| table.sandboxes.get(id));
        sandbox
            .map_or(DEFAULT_HANDLER, |s| &s.status.runtime_handler)
            .to_owned()
    }

    /// The OCI runtime of a container.
    fn oci_runtime_of(&self, id: &ContainerId) -> Result<OciRuntime, OciRuntimeError> {
        self.programs.for_handler(&self.container_handler(id))
    }

    /// Asks the network plugins whether a sandbox's network is as they made it (CNI CHECK).
    ///
    /// # Errors
    /// The error of the first plugin that has one.
    pub async fn check_network(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.cni
            .check_attachment(id, &self.gate)
            .await
            .map_err(failed_error)
    }

    /// Removes everything that this backend made: sandboxes, containers, the built-in bridge, mounts, and the content
    /// of its directories; the directories themselves belong to the caller.
    ///
    /// # Errors
    /// The first error; the rest was tried.
    pub async fn reset_backend(&self) -> Result<(), RuntimeError> {
        let mut result = Ok(());
        let ids: Vec<SandboxId> = self.table.borrow().sandboxes.keys().cloned().collect();
        for id in ids {
            result = result.and(self.remove_sandbox(&id).await);
        }
        let ids: Vec<ContainerId> = self.table.borrow().containers.keys().cloned().collect();
        for id in ids {
            result = result.and(self.remove_instance(&id, LogRetention::Remove).await);
        }
        let network = self.cni.remove_built_in_network(&self.gate).await;
        // The first error counts.
        result = result.and_then(|()| network.map_err(failed_error));
        let (run, root) = (
            self.settings.run_dir.clone(),
            self.settings.root_dir.clone(),
        );
        let lock = self.gate.lock_path().to_owned();
        let swept = self.disk.run_job(move || {
            for name in files::sorted_names(&run)? {
                crate::sys::mount::unmount_below(&run.join(name))?;
            }
            for dir in ["sandboxes", "containers", "runtime", "cni"] {
                remove::remove_path(&run.join(dir))?;
                remove::remove_path(&root.join(dir))?;
            }
            files::remove_file(&lock)?;
            for dir in [&run, &root] {
                crate::sys::mount::unmount_self_binds(dir)?;
            }
            Ok::<_, io::Error>(())
        });
        result = result.and(
            swept
                .await
                .map_err(failed_at_step("remove the run directory")),
        );
        if let Err(e) = self.cgroups.destroy_group(&self.settings.shim_cgroup).await {
            log::warn!("cgroup of the shims: {}", error_chain(&e));
        }
        result
    }

    fn runtime_root(&self) -> PathBuf {
        self.settings.run_dir.join("runtime")
    }

    fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.settings.run_dir.join("sandboxes").join(id.as_str())
    }

    fn sandbox_dirs(&self, id: &SandboxId) -> sandbox::SandboxDirs {
        sandbox::SandboxDirs {
            run: self.sandbox_dir(id),
            root: self.settings.root_dir.join("sandboxes").join(id.as_str()),
        }
    }

    fn container_dirs(&self, id: &ContainerId) -> ContainerDirs {
        let at = |base: &Path| base.join("containers").join(id.as_str());
        ContainerDirs {
            run: at(&self.settings.run_dir),
            root: at(&self.settings.root_dir),
        }
    }

    /// Refuses a container that does not run.
    fn demand_running(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let table = self.table.borrow();
        let container = table.containers.get(id);
        if container.is_some_and(|c| c.shim.is_some() && c.status.started_at.is_some()) {
            Ok(())
        } else {
            Err(not_found("running container", id))
        }
    }

    fn next_creation_order(&self) -> record::CreationOrder {
        let mut next = self.next_order.borrow_mut();
        *next += 1;
        record::CreationOrder(self.boot.number, *next)
    }

    fn runtime_condition(&self) -> RuntimeCondition {
        let not = |reason: &str, message: String| RuntimeCondition {
            ok: false,
            reason: reason.into(),
            message,
        };
        if let Err(e) = self.programs.for_handler(DEFAULT_HANDLER) {
            return not("RuntimeMissing", e.to_string());
        }
        // The memory controller is off on many boards. A pod that asks for a memory limit gets an error; all others run
        // (QEMU-22).
        let mut missing = self.cgroups.missing_controllers();
        missing.retain(|name| *name != "memory");
        if !missing.is_empty() {
            return not(
                "CgroupControllerMissing",
                format!(
                    "control group controllers {} are not available: enable them on the kernel command line",
                    missing.join(", ")
                ),
            );
        }
        if let Err(e) = self.cgroups.probe_writable(&self.settings.kubepods) {
            return not("CgroupsNotWritable", error_chain(&e));
        }
        for dir in [&self.settings.root_dir, &self.settings.run_dir] {
            if let Err(e) = access(dir, AccessFlags::W_OK) {
                return not("DiskNotWritable", format!("{}: {e}", dir.display()));
            }
        }
        RuntimeCondition {
            ok: true,
            reason: String::new(),
            message: String::new(),
        }
    }
}

impl ImageService for Runc {
    fn image_status<'a>(&'a self, reference: &'a str) -> RuntimeCall<'a, Option<StoredImage>> {
        Box::pin(async move {
            let image = self.images.describe_image(reference);
            image.map_err(|e| RuntimeError::Invalid(error_chain(&e)))
        })
    }

    fn list_images(&self) -> RuntimeCall<'_, Vec<StoredImage>> {
        Box::pin(async { Ok(self.images.list_stored_images()) })
    }

    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        _: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, String> {
        self.images.pull_to_store(reference, credential.cloned())
    }

    fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        self.images.pull_progress(reference)
    }

    fn is_pulling(&self, reference: &str) -> Option<bool> {
        Some(self.images.is_pulling(reference))
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> RuntimeCall<'a, ()> {
        let table = self.table.borrow();
        let images = |c: &table::ContainerEntry| {
            let volumes = c.status.volume_images.iter().cloned();
            volumes.chain([c.image.clone()]).collect::<Vec<_>>()
        };
        let in_use = table.containers.values().flat_map(images).collect();
        self.images.remove_stored_image(id, in_use)
    }

    fn image_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        self.images.store_fs_info()
    }
}

impl RuntimeService for Runc {
    fn version(&self) -> RuntimeVersion {
        RuntimeVersion {
            name: NAME.into(),
            version: format_runtime_version(
                self.programs.for_handler(DEFAULT_HANDLER).ok().as_ref(),
            ),
        }
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        RuntimeCapabilities {
            handlers: self.programs.list_handlers(),
            supplemental_groups_policy: true,
            live_resource_updates: true,
            container_stats: true,
        }
    }

    fn update_pod_cidrs<'a>(&'a self, cidrs: &'a [String]) -> RuntimeCall<'a, ()> {
        Box::pin(async {
            self.cni.set_subnets(cidrs);
            Ok(())
        })
    }

    fn runtime_status(&self) -> RuntimeCall<'_, RuntimeStatus> {
        Box::pin(async {
            self.programs.probe_changed().await;
            Ok(RuntimeStatus {
                runtime_ready: self.runtime_condition(),
                network_ready: self.cni.network_condition(),
                // Without a runtime, shims and records tell which containers run, and signals and cgroups end them.
                can_stop_containers: true,
            })
        })
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        Box::pin(async {
            self.handle_process_ends().await;
            // Ended commands without a client stay zombies until they are reaped here.
            self.left_execs.remove_ended();
            Ok(self.table.borrow().list_pods())
        })
    }

    fn count_pod_changes(&self) -> Pin<Box<dyn Future<Output = Option<u64>> + '_>> {
        Box::pin(async {
            self.handle_process_ends().await;
            self.left_execs.remove_ended();
            Some(self.table.borrow().changes())
        })
    }

    fn pod_status(&self, uid: &PodUid) -> RuntimeCall<'_, PodRuntimeStatus> {
        let uid = uid.clone();
        Box::pin(async move {
            self.handle_process_ends().await;
            self.delete_ended_instances(&uid).await;
            Ok(self.table.borrow().pod_status(&uid))
        })
    }

    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.bell.wait_for_ring())
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> RuntimeCall<'a, SandboxStatus> {
        Box::pin(self.run_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        Box::pin(self.stop_sandbox(id))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        Box::pin(self.remove_sandbox(id))
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        _: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, ContainerId> {
        Box::pin(self.create_instance(sandbox, config))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        Box::pin(self.start_instance(id))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeCall<'a, ()> {
        Box::pin(self.stop_instance(id, grace))
    }

    fn remove_container<'a>(
        &'a self,
        id: &'a ContainerId,
        logs: LogRetention,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.remove_instance(id, logs))
    }

    fn reopen_container_log<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        Box::pin(async move {
            let running = {
                let table = self.table.borrow();
                let container = table
                    .containers
                    .get(id)
                    .ok_or_else(|| not_found("container", id))?;
                container.shim.is_some()
            };
            if !running {
                return Err(RuntimeError::Failed(format!("container {id} does not run")));
            }
            shim::reopen_log(&self.container_dirs(id).run)
                .await
                .map_err(failed_at_step("reopen the log"))
        })
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        Box::pin(self.exec_captured(id, command, timeout, limit))
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.update_instance(id, resources))
    }

    fn checkpoint_container<'a>(
        &'a self,
        id: &'a ContainerId,
        location: &'a Path,
        timeout: Duration,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.checkpoint_instance(id, location, timeout))
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a super::ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let start: SessionStart<'a> = Box::pin(self.exec_stream(id, options));
        Box::pin(ready(Ok(StreamRoute::Local(start))))
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: super::AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let start: SessionStart<'a> = Box::pin(self.attach_to_shim(id, options));
        Box::pin(ready(Ok(StreamRoute::Local(start))))
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        _: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        let connect: PortConnector<'a> =
            Box::new(move |port| Box::pin(self.connect_to_port(id, port)));
        Box::pin(ready(Ok(StreamRoute::Local(connect))))
    }

    fn list_pod_usage(&self, detail: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>> {
        Box::pin(self.read_pods_usage(detail))
    }

    fn writable_layer_usage<'a>(
        &'a self,
        id: &'a ContainerId,
    ) -> RuntimeCall<'a, Option<DiskUsage>> {
        Box::pin(self.layer_usage(id))
    }
}

/// Version of this runtime for the API, such as `0.1.0+runc-1.1.5`: semantic versioning allows one plus only.
fn format_runtime_version(program: Option<&OciRuntime>) -> String {
    let own = crate::VERSION;
    let Some(OciRuntime { name, version, .. }) = program else {
        return own.into();
    };
    let told: String = format!("{name}-{version}")
        .chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() || c == '.' => c,
            _ => '-',
        })
        .collect();
    format!("{own}+{told}")
}

/// Path of an opened file, for calls that take paths only.
fn fd_path(fd: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Makes a directory that only root enters, and closes directories in it that an earlier version left open: users of
/// the machine must neither run a container's setuid file nor read its files (the class of CVE-2021-41103).
fn make_closed_dir(dir: &Path) -> Result<(), RuntimeError> {
    match files::close_dirs_in(dir) {
        // A read-only disk is reported by the runtime's status.
        Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem && dir.is_dir() => {
            log::warn!("{} stays open to all users: {e}", dir.display());
            Ok(())
        }
        done => done.map_err(failed_at_step(&format!("make {}", dir.display()))),
    }
}

/// `MemAvailable`, bytes; 0 if it cannot be read.
fn available_memory_bytes() -> u64 {
    const KIB: u64 = 1024;
    fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        })
        .unwrap_or(0)
        * KIB
}

fn not_found(what: &str, id: &str) -> RuntimeError {
    RuntimeError::NotFound(format!("{what} {id}"))
}

/// Prefixes an error with the step that failed.
fn failed_at_step<E: std::error::Error>(step: &str) -> impl FnOnce(E) -> RuntimeError + use<E> {
    let step = step.to_owned();
    move |e| RuntimeError::Failed(format!("{step}: {}", error_chain(&e)))
}

fn failed_error<E: std::error::Error>(error: E) -> RuntimeError {
    RuntimeError::Failed(error_chain(&error))
}
