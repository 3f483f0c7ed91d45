//! Instances: create, start, stop, remove, and the handling of their ends.

use core::time::Duration;
use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    rc::Rc,
};

use async_io::Timer;
use nix::sys::signal::Signal;
use smol::future;

use super::{
    Runc,
    bundle::{self, ResolvedMounts},
    container_devices::LiveContainer,
    error_chain, failed_at_step, failed_error, files,
    gate::ChildPriority,
    images::{BackendImageHold, ResolvedImage},
    masks, not_found,
    pods::open_process,
    process,
    program::{self, OciRuntimeError},
    record::{self, ContainerRecord, SandboxRecord},
    sandbox,
    sources::{self, MountSource},
    table::{ContainerEntry, ProcessOwner, container_entry, first_stop_signal},
    tracers::{StoppedTracers, TRACED_CREATE_LIMIT},
};
use crate::{
    api::order::OrderExt as _,
    api::{
        ContainerId, PodUid, SandboxId, WallTime,
        cri::{
            ANNOTATION_TERMINATION_PATH, ContainerConfig, ContainerMount, ContainerState,
            DEFAULT_HANDLER, MountStatus, MountedImage, NamespaceMode, OOM_KILLED, SandboxState,
            SecurityProfile,
        },
        oci::SpecInput,
    },
    runtime::{LogRetention, RuntimeError, log_removal, termination},
    shim::{self, CREATE_TIMEOUT, LogShimLaunch, ShimLaunch, ShimLaunchError},
    sys::{clock, crash, open, pidfd, remove},
};

/// Longest wait for the end of a killed process: one that takes longer hangs in the kernel.
const KILL_WAIT: Duration = Duration::from_secs(30);
/// Longest grace with which a container is signalled without an OCI runtime. Pods that have to go for the node's sake
/// have so little, and the node has no memory for a runtime then. Seen on 256 MiB: `runc kill` took a minute, and the
/// pod took all memory.
const DIRECT_GRACE: Duration = Duration::from_secs(2);
/// Time for which the creation of a container counts among the children that run: the longest that was seen where only
/// memory was short. A creation that takes longer waits for something: mostly the server of a share that it mounts.
const CREATE_WIDTH_TIME: Duration = Duration::from_secs(60);
/// Longest time that an OCI runtime has to pass a signal on, the wait for its turn included.
const SIGNAL_WAIT: Duration = Duration::from_secs(10);
/// Shims go last: without them the ends of their containers are lost.
const SHIM_OOM_SCORE_ADJ: i32 = -998;
/// Exit code and reasons of the API.
const START_ERROR_CODE: i32 = 128;
const START_ERROR: &str = "StartError";
const LOST_CODE: i32 = 137;
const LOST: &str = "ContainerStatusUnknown";

/// Owner of the job that looks at a container's mounts: the same for all its instances.
fn mount_job_owner(record: &ContainerRecord) -> String {
    format!("{}/{}", record.uid, record.config.name)
}

/// Images that a container mounts as volumes.
#[derive(Default)]
struct RequestedVolumeImages {
    /// Keys in the store for the record, sorted, each once.
    keys: Vec<String>,
    /// Images for the bundle.
    wanted: Vec<bundle::VolumeImage>,
    /// Names by digest, in the order of `wanted`.
    references: Vec<String>,
}

impl Runc {
    pub(super) async fn create_instance(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let ready = self
            .table
            .borrow()
            .sandboxes
            .get(sandbox)
            .map(|s| s.status.state == SandboxState::Ready);
        match ready {
            None => return Err(not_found("sandbox", sandbox)),
            Some(false) => {
                return Err(RuntimeError::Failed(format!(
                    "sandbox {sandbox} is not ready"
                )));
            }
            Some(true) => {}
        }
        let parent = record::load_record::<SandboxRecord>(&self.sandbox_dir(sandbox))
            .map_err(failed_at_step("read the sandbox record"))?
            .ok_or_else(|| not_found("sandbox", sandbox))?;
        self.demand_user_namespaces(&parent.config)?;
        if config.security.namespaces.users != parent.config.namespaces.users {
            return Err(RuntimeError::Invalid(format!(
                "hostUsers: sandbox {sandbox} was made with other user ids"
            )));
        }
        let id = record::container_id(&parent.config.uid, &config.name, config.attempt);
        let running = self
            .table
            .borrow()
            .containers
            .get(&id)
            .map(|c| c.shim.is_some());
        match running {
            Some(true) => {
                return Err(RuntimeError::Failed(format!("container {id} runs already")));
            }
            // An earlier try failed, or was never started.
            Some(false) => self.remove_instance(&id, LogRetention::Remove).await?,
            None => {}
        }
        let process = self.settings.process.as_ref();
        let process = process.filter(|_| parent.config.runtime_handler == process::HANDLER);
        let image = match process {
            Some(_) => ResolvedImage::default(),
            None => self
                .images
                .resolve_image(&config.image)
                .map_err(|e| RuntimeError::Invalid(error_chain(&e)))?
                .ok_or_else(|| not_found("image", &config.image))?,
        };
        let volumes = match process {
            Some(_) => RequestedVolumeImages::default(),
            None => self.resolve_volume_images(config)?,
        };
        // Held from now on: the layers are about to be mounted.
        let holds = self.hold_images(&image.id, &volumes.keys);
        if process.is_none() && holds.len() <= volumes.keys.len() {
            return Err(not_found("image", "that was just there"));
        }
        let log = Path::new(&parent.config.log_directory).join(&config.log_path);
        let stop_signal = first_stop_signal(&[&config.stop_signal, &image.process.stop_signal]);
        let termination = config.annotations.get(ANNOTATION_TERMINATION_PATH);
        let termination_file = config
            .mounts
            .iter()
            .find(|m| termination == Some(&m.container_path))
            .map(|m| m.host_path.clone());
        let mut record = ContainerRecord {
            v: record::VERSION,
            id: id.clone(),
            sandbox: sandbox.clone(),
            uid: parent.config.uid.clone(),
            boot_id: self.boot.id.clone(),
            created: self.next_creation_order(),
            created_at: clock::wall_now().truncated_to_second(),
            made: false,
            started_at: None,
            failure: None,
            config: ContainerConfig {
                command: Vec::new(),
                args: Vec::new(),
                env: Vec::new(),
                mounts: Vec::new(),
                devices: Vec::new(),
                cdi_devices: Vec::new(),
                ..config.clone()
            },
            image_ref: image.reference.clone(),
            image: image.id.clone(),
            mounts: mount_statuses(&config.mounts, &volumes),
            volume_images: volumes.keys,
            user: Default::default(),
            stop_signal,
            log: log.display().to_string(),
            cgroup: format!("{}/{id}", parent.config.cgroup_parent),
            termination_file: termination_file.unwrap_or_default(),
        };
        let dirs = self.container_dirs(&id);
        files::make_private_dir(&dirs.run)
            .and_then(|()| {
                crash::point("container.directory");
                record::save_record(&dirs.run, &record)
            })
            .map_err(failed_at_step("write the container record"))?;
        crash::point("container.intent");
        let made = match process {
            Some(allowed) => self.make_process(allowed, config, &mut record, &dirs.run),
            None => {
                let wanted = volumes.wanted;
                let made = self.make_bundle(&parent, config, &image, wanted, &mut record);
                made.await
            }
        };
        match made {
            Ok(sources) => {
                let mut entry = container_entry(&record);
                entry.holds = holds;
                entry.sources = sources;
                self.table.borrow_mut().containers.insert(id.clone(), entry);
                Ok(id)
            }
            Err(error) => {
                if let Err(undo) = bundle::remove_bundle(&self.disk, &dirs).await {
                    log::warn!("container={id} undoing a failed create: {undo}");
                }
                Err(error)
            }
        }
    }

    /// Keeps an instance's images in the store. An image that is gone is left out.
    pub(super) fn hold_images(
        &self,
        image: &str,
        volume_images: &[String],
    ) -> Vec<BackendImageHold> {
        let volumes = volume_images.iter().map(String::as_str);
        let all = volumes.chain([image]);
        all.filter_map(|id| self.images.hold_image(id)).collect()
    }

    /// The images that the container mounts.
    fn resolve_volume_images(
        &self,
        config: &ContainerConfig,
    ) -> Result<RequestedVolumeImages, RuntimeError> {
        for mount in config.mounts.iter().filter(|m| m.image.is_some()) {
            if !mount.host_path.is_empty() || !mount.read_only {
                let path = &mount.container_path;
                return Err(RuntimeError::Invalid(format!(
                    "mount of an image at {path:?}: it has no path on the host and is read-only"
                )));
            }
        }
        let mut all = RequestedVolumeImages::default();
        for reference in config.volume_images() {
            let resolved = self.images.resolve_image(&reference);
            let image = resolved
                .map_err(|e| RuntimeError::Invalid(error_chain(&e)))?
                .ok_or_else(|| {
                    RuntimeError::NotFound(format!("ImageVolumeMountFailed: image {reference}"))
                })?;
            all.keys.push(image.id);
            all.references.push(image.reference);
            all.wanted.push(bundle::VolumeImage {
                image: reference,
                layers: image.layers,
            });
        }
        all.keys.stable_sort();
        all.keys.dedup();
        Ok(all)
    }

    async fn make_bundle(
        &self,
        parent: &SandboxRecord,
        config: &ContainerConfig,
        image: &ResolvedImage,
        volume_images: Vec<bundle::VolumeImage>,
        record: &mut ContainerRecord,
    ) -> Result<Vec<MountSource>, RuntimeError> {
        let dirs = self.container_dirs(&record.id);
        // First, because nothing has to be undone if a device is missing.
        let edits = self.find_device_edits(&config.cdi_devices).await?;
        let apparmor_default = self
            .apparmor
            .default_profile_for(&config.security)
            .await
            .map_err(failed_error)?;
        let own: Vec<_> = [&self.settings.root_dir, &self.settings.run_dir]
            .into_iter()
            .filter_map(|dir| fs::canonicalize(dir).ok())
            .collect();
        let mounts = config.mounts.clone();
        let resolved = match mounts.iter().any(|mount| mount.image.is_none()) {
            true => {
                let resolve = move || bundle::resolve_mounts(mounts, &own);
                let resolved = self
                    .disk
                    .run_host_file_job(&mount_job_owner(record), resolve)
                    .await;
                resolved.map_err(failed_error)?.map_err(failed_error)?
            }
            false => ResolvedMounts {
                mounts,
                sources: Vec::new(),
            },
        };
        let mut paths = sandbox::sandbox_paths(&self.sandbox_dirs(&parent.id), parent);
        let users = parent.config.namespaces.users;
        let wanted = bundle::BundleRequest {
            dirs: dirs.clone(),
            users: users.map(|ids| (PathBuf::from(&paths.user_namespace), ids.host_id)),
            layers: image.layers.clone(),
            mounts: resolved.mounts,
            volume_images,
            writable: if config.security.readonly_rootfs {
                image.process.volumes.0.clone()
            } else {
                Vec::new()
            },
            devices: config.devices.clone(),
            all_devices: config.security.privileged,
            seccomp_file: match &config.security.seccomp {
                SecurityProfile::Localhost(path) => Some(path.clone()),
                SecurityProfile::RuntimeDefault
                | SecurityProfile::Unconfined
                | SecurityProfile::Unset => None,
            },
        };
        let prepared = self
            .disk
            .run_job(move || bundle::prepare_bundle(&wanted))
            .await
            .map_err(failed_error)?;
        crash::point("container.mounted");
        record.user = (self.settings.resolve_user)(
            &config.security,
            &image.process.user,
            &prepared.passwd,
            &prepared.group,
        )
        .map_err(|e| RuntimeError::Invalid(e.to_string()))?;
        if config.security.namespaces.pid == NamespaceMode::Target {
            paths.pid_namespace = self.target_pid_namespace(config)?;
        }
        let mut container = config.clone();
        container.mounts.clone_from(&prepared.mounts);
        let rootfs = dirs.rootfs_dir();
        let mut spec = (self.settings.spec)(&SpecInput {
            container_id: &record.id,
            sandbox_id: &parent.id,
            container: &container,
            sandbox: &parent.config,
            image: &image.process,
            user: &record.user,
            paths: &paths,
            rootfs: &rootfs.display().to_string(),
            cgroups_path: &record.cgroup,
            image_volumes: &prepared.image_volumes,
            seccomp_file: prepared.seccomp.as_ref(),
            devices: &prepared.devices,
            host_devices: &prepared.host_devices,
            apparmor_default,
            host: &self.settings.host,
        })
        .map_err(|e| RuntimeError::Invalid(e.to_string()))?;
        if let Some(edit) = edits {
            edit(&mut spec).map_err(failed_error)?;
        }
        let groups = &spec.process.user.additional_gids;
        record.user.additional_gids.clone_from(groups);
        if !config.live_devices.is_empty() {
            let live = LiveContainer {
                devices: config.live_devices.clone(),
                cgroup: record.cgroup.clone(),
                is_v2: self.settings.host.cgroup_v2,
                user: (record.user.uid, record.user.gid),
                is_limited: !config.security.privileged,
            };
            let devices = self.device_injector()?;
            let give = move || devices.give_live(&live, &mut spec).map(|()| spec);
            let given = self.disk.run_job(give).await;
            spec = given.map_err(failed_at_step("give device nodes to the container's user"))?;
        }
        let spec = serde_json::to_vec(&spec).map_err(failed_at_step("write config.json"))?;
        files::write_atomic(&dirs.run.join("config.json"), &spec)
            .map_err(failed_at_step("write config.json"))?;
        open::make_log_dir(Path::new(&record.log))
            .map_err(failed_at_step("make the log directory"))?;
        crash::point("container.bundled");
        record.made = true;
        record::save_record(&dirs.run, record)
            .map_err(failed_at_step("write the container record"))?;
        crash::point("container.made");
        Ok(resolved.sources)
    }

    fn target_pid_namespace(&self, config: &ContainerConfig) -> Result<String, RuntimeError> {
        let target = config
            .security
            .target
            .as_ref()
            .ok_or_else(|| RuntimeError::Invalid("no target container is named".into()))?;
        let state = shim::read_state(&self.container_dirs(target).run)
            .map_err(|e| RuntimeError::Failed(format!("target container {target}: {e}")))?;
        // Another process of the machine may have its number by now.
        match state {
            Some(s) if open_process(s.pid, s.start_time).is_some() => {
                Ok(format!("/proc/{}/ns/pid", s.pid))
            }
            _ => Err(RuntimeError::Failed(format!(
                "target container {target} does not run"
            ))),
        }
    }

    pub(super) async fn start_instance(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let state = self
            .table
            .borrow()
            .containers
            .get(id)
            .map(|c| c.status.state);
        match state {
            None => return Err(not_found("container", id)),
            Some(ContainerState::Running) => return Ok(()),
            Some(ContainerState::Exited | ContainerState::Unknown) => {
                return Err(RuntimeError::Failed(format!("container {id} has ended")));
            }
            Some(ContainerState::Created) => {}
        }
        let dir = self.container_dirs(id).run;
        let mut record = record::load_record::<ContainerRecord>(&dir)
            .map_err(failed_at_step("read the container record"))?
            .ok_or_else(|| not_found("container", id))?;
        let starting = |yes: bool| {
            if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
                c.starting = yes;
            }
        };
        starting(true);
        // Tracers of the pod that stand still: until what a failed create has left is gone.
        let mut stopped = None;
        let started = self.launch_and_start(&record, &mut stopped).await;
        starting(false);
        match started {
            Ok(()) => {
                crash::point("container.started");
                // Only as precise as the record: the time is the same before and after a restart.
                let now = clock::wall_now().truncated_to_second();
                record.started_at = Some(now);
                // If the record is lost, the OCI runtime is asked for the state.
                if let Err(e) = record::save_record(&dir, &record) {
                    log::warn!("container={id} record: {e}");
                }
                crash::point("container.recorded");
                if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
                    c.status.started_at = Some(now);
                    // The instance may have ended already.
                    if c.status.state == ContainerState::Created {
                        c.status.state = ContainerState::Running;
                    }
                }
                // An instance that ended during this call was left for it to settle.
                self.delete_ended_instances(&record.uid).await;
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                let (wall, mono) = (clock::wall_now().truncated_to_second(), clock::mono_now());
                // First: a look while it is killed must not take that for its end.
                if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
                    record_start_failure(c, &message, wall);
                }
                self.clear_failed_start(id).await;
                drop(stopped);
                crash::point("container.start-failed");
                record.failure = Some((message, wall, mono.0));
                if let Err(e) = record::save_record(&dir, &record) {
                    log::warn!("container={id} record: {e}");
                }
                Err(error)
            }
        }
    }

    async fn launch_and_start(
        &self,
        record: &ContainerRecord,
        stopped: &mut Option<StoppedTracers>,
    ) -> Result<(), RuntimeError> {
        let id = &record.id;
        let sources = {
            let mut table = self.table.borrow_mut();
            let entry = table.containers.get_mut(id);
            entry.map(|c| core::mem::take(&mut c.sources))
        };
        let sources = sources.unwrap_or_default();
        let program = self.oci_runtime_of(id).map_err(failed_error)?;
        let (config, user) = (&record.config, &record.user);
        let users = config.security.namespaces.users;
        let launch = ShimLaunch {
            exe: self.settings.exe.clone(),
            dir: self.container_dirs(id).run,
            id: id.to_string(),
            runtime: program.path.clone(),
            runtime_root: self.runtime_root(),
            log: PathBuf::from(&record.log),
            log_limit: self.settings.log_limit,
            log_memory: self.settings.log_memory.map(|_| self.held_log_path(id)),
            tty: config.tty,
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            stream_owner: users.and_then(|ids| ids.owner_on_host(user.uid, user.gid)),
            memory_cgroup: self.cgroups.memory_dir(&record.cgroup),
            shim_cgroups: self.cgroups.process_dirs(&self.settings.shim_cgroup),
            oom_score_adj: Some(SHIM_OOM_SCORE_ADJ),
            create_limit: match self.tracers_beside(record)[..] {
                [] => CREATE_TIMEOUT,
                _ => TRACED_CREATE_LIMIT,
            },
        };
        let launched = async {
            *stopped = Some(self.stop_tracers(record).await?);
            let launched = shim::launch_shim(&launch).await.map_err(|e| match e {
                ShimLaunchError::Runtime { message, .. } => RuntimeError::Failed(message),
                other => failed_error(other),
            })?;
            *stopped = None;
            Ok(launched)
        };
        // The shim is small; the `create` below it is not.
        let launched =
            self.gate
                .run_with_permit(ChildPriority::Create, CREATE_WIDTH_TIME, launched);
        let launched = launched.await?;
        crash::point("container.launched");
        {
            let mut table = self.table.borrow_mut();
            let watched = table
                .watch_process(launched.pidfd, ProcessOwner::Shim(id.clone()))
                .map_err(failed_at_step("watch the shim"))?;
            if let Some(c) = table.containers.get_mut(id) {
                c.shim = Some(watched);
                c.status.pid = launched.pid;
            }
        }
        let (bundle, pid) = (self.container_dirs(id).run, launched.pid);
        let is_process = program.name == process::PROGRAM;
        if !is_process {
            let same_label = self.settings.same_label;
            let looked = self
                .disk
                .run_job(move || masks::check_masks(&bundle, pid, same_label));
            looked.await.map_err(failed_error)?;
        }
        if sources.iter().any(MountSource::is_held) {
            let looked = move || sources::check_mount_sources(&sources, pid);
            let looked = self
                .disk
                .run_host_file_job(&mount_job_owner(record), looked)
                .await;
            looked.map_err(failed_error)?.map_err(failed_error)?;
        }
        if let Some(live) = config
            .live_devices
            .first()
            .filter(|_| !config.security.privileged)
        {
            let (at, cgroups) = (PathBuf::from(&live.host_path), self.cgroups.clone());
            let devices = self.device_injector()?;
            let open = move || devices.open_live(&at, &cgroups);
            let opened = self.disk.run_job(open).await;
            opened.map_err(failed_at_step("let the container use its device nodes"))?;
        }
        program
            .call_runtime(&self.runtime_root(), "start", &[id], &self.gate)
            .await
            .map(drop)
            .map_err(|e| match e {
                OciRuntimeError::Call { message, .. } => RuntimeError::Failed(message),
                other => failed_error(other),
            })
    }

    /// Kills and deletes the leftovers of a failed start.
    pub(super) async fn clear_failed_start(&self, id: &ContainerId) {
        let Some(cgroup) = self.container_cgroup(id) else {
            return;
        };
        self.cgroups.kill_processes(&cgroup);
        self.delete_in_runtime(id).await;
        if !self.wait_for_end(id, KILL_WAIT).await {
            log::warn!("container={id} its shim does not end");
        }
        if let Err(e) = self.cgroups.destroy_group(&cgroup).await {
            log::warn!("container={id} {}", error_chain(&e));
        }
    }

    pub(super) async fn stop_instance(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        self.handle_process_ends().await;
        let (cgroup, signal, lives) = {
            let table = self.table.borrow();
            let Some(c) = table.containers.get(id) else {
                return Ok(());
            };
            (c.cgroup.clone(), c.stop_signal.clone(), c.shim.is_some())
        };
        if lives {
            let kills = self.cgroups.read_outlived_oom_kills(&cgroup);
            if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
                c.kills_before_stop.get_or_insert(kills);
            }
        } else {
            // Processes that outlived their init in a shared PID namespace.
            self.cgroups
                .drain_group(&cgroup)
                .await
                .map_err(failed_error)?;
            // An instance that was never started still has its root file system.
            let dirs = self.container_dirs(id);
            let unmounted = self
                .disk
                .run_job(move || bundle::unmount_bundle(&dirs))
                .await;
            return unmounted.map_err(failed_at_step("unmount the root file system"));
        }
        if !grace.is_zero() {
            if grace > DIRECT_GRACE || self.signal_init(id, &signal_argument(&signal)).is_err() {
                self.signal_container(id, &signal).await?;
            }
            crash::point("container.signalled");
            if self.wait_for_end(id, grace).await {
                return self
                    .cgroups
                    .drain_group(&cgroup)
                    .await
                    .map_err(failed_error);
            }
        }
        if self.cgroups.kill_processes(&cgroup) == 0 {
            // The runtime has put it into another cgroup.
            self.signal_container(id, "SIGKILL").await?;
        }
        if !self.wait_for_end(id, KILL_WAIT).await {
            return Err(RuntimeError::Timeout {
                what: format!("killing container {id}"),
                after: KILL_WAIT,
            });
        }
        self.cgroups
            .drain_group(&cgroup)
            .await
            .map_err(failed_error)
    }

    async fn signal_container(&self, id: &ContainerId, signal: &str) -> Result<(), RuntimeError> {
        let signal = signal_argument(signal);
        let killed = match self.oci_runtime_of(id) {
            Ok(program) => {
                let (root, args) = (self.runtime_root(), [&**id, &signal]);
                let call = Box::pin(program.call_runtime(&root, "kill", &args, &self.gate));
                let late = async {
                    Timer::after(SIGNAL_WAIT).await;
                    let message = format!("has not ended within {SIGNAL_WAIT:?}");
                    let call = "kill";
                    Err(OciRuntimeError::Call { call, message })
                };
                future::or(call, late).await.map(drop)
            }
            Err(e) => Err(e),
        };
        match killed {
            Err(OciRuntimeError::Call { message, .. }) if program::is_container_gone(&message) => {
                Ok(())
            }
            Err(e) => {
                // The runtime is missing, broken or hangs: a pod must end all the same.
                log::warn!("container={id} {e}; its init is signalled directly");
                self.signal_init(id, &signal)
                    .map_err(failed_at_step("signal init"))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Sends a signal to the container's init, without the OCI runtime. One that has ended counts as signalled.
    fn signal_init(&self, id: &ContainerId, signal: &str) -> io::Result<()> {
        let state = shim::read_state(&self.container_dirs(id).run).map_err(io::Error::other)?;
        let number = match signal.parse::<i32>() {
            Ok(number) => number,
            Err(_) => signal.parse::<Signal>().map_err(io::Error::from)? as i32,
        };
        let Some(init) = state.and_then(|s| open_process(s.pid, s.start_time)) else {
            return Ok(());
        };
        match pidfd::send_signal(init.as_fd(), number) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(e),
            _ => Ok(()),
        }
    }

    /// Waits until the shim has ended and its record was taken over.
    pub(super) async fn wait_for_end(&self, id: &ContainerId, limit: Duration) -> bool {
        let deadline = clock::mono_now() + limit;
        // Bounded: by the deadline, and each round waits.
        loop {
            let fd = {
                let table = self.table.borrow();
                table
                    .containers
                    .get(id)
                    .and_then(|c| c.shim.as_ref())
                    .map(|w| Rc::clone(&w.pidfd))
            };
            let Some(fd) = fd else { return true };
            let ended = async {
                // Without a watch the deadline decides.
                if pidfd::wait_until_ended(fd).await.is_err() {
                    future::pending::<()>().await;
                }
                true
            };
            let late = async {
                Timer::after(deadline - clock::mono_now()).await;
                false
            };
            let ended = future::or(ended, late).await;
            // A shim that died alone is replaced by a log-only shim, which is waited for next.
            self.handle_process_ends().await;
            if !ended {
                return self
                    .table
                    .borrow()
                    .containers
                    .get(id)
                    .is_none_or(|c| c.shim.is_none());
            }
        }
    }

    pub(super) async fn remove_instance(
        &self,
        id: &ContainerId,
        logs: LogRetention,
    ) -> Result<(), RuntimeError> {
        self.stop_instance(id, Duration::ZERO).await?;
        let (log, cgroup, name) = {
            let table = self.table.borrow();
            let Some(c) = table.containers.get(id) else {
                return Ok(());
            };
            (
                c.status.log_path.clone(),
                c.cgroup.clone(),
                c.status.name.clone(),
            )
        };
        self.delete_in_runtime(id).await;
        crash::point("container.deleted");
        self.cgroups
            .destroy_group(&cgroup)
            .await
            .map_err(failed_error)?;
        let dirs = self.container_dirs(id);
        let links = self.settings.container_log_links.clone();
        let link_end = format!("{name}-{id}.log");
        // State that a failing runtime still keeps: no process of the instance runs, and no other code removes it.
        let remembered = self.runtime_root().join(id.as_str());
        let held = self.held_log_path(id);
        let removed = self.disk.run_job(move || {
            // The end of the log that no disk took.
            let _ = fs::remove_file(held);
            // Logs first (LOG-09): if they cannot be removed the instance is kept, and tried again.
            log_removal::remove_instance_logs(logs, Path::new(&log), &links, &link_end)?;
            crash::point("container.logs-removed");
            remove::remove_path(&remembered)
        });
        let removed = match removed.await {
            Ok(()) => bundle::remove_bundle(&self.disk, &dirs).await,
            Err(e) => Err(e),
        };
        removed.map_err(failed_at_step("remove the container"))?;
        self.table.borrow_mut().containers.remove(id);
        Ok(())
    }

    /// Lets the OCI runtime forget an ended instance. Idempotent; failures are logged and met again at removal.
    async fn delete_in_runtime(&self, id: &ContainerId) {
        // Other runtimes than the default one may keep it under another name.
        let may_know = self.runtime_root().join(id.as_str()).exists()
            || self.container_handler(id) != DEFAULT_HANDLER;
        if may_know && let Ok(program) = self.oci_runtime_of(id) {
            let deleted = program
                .call_runtime(&self.runtime_root(), "delete", &["--force", id], &self.gate)
                .await;
            match deleted {
                Err(OciRuntimeError::Call { message, .. })
                    if program::is_container_gone(&message) => {}
                Err(e) => log::warn!("container={id} {e}"),
                Ok(_) => {}
            }
        }
    }

    /// Takes over the ends of processes since the last call. Reads a file only for processes that ended.
    pub(super) async fn handle_process_ends(&self) {
        let ended = self.table.borrow_mut().take_ended_processes();
        for who in ended {
            match who {
                ProcessOwner::Shim(id) => {
                    if !self.record_shim_exit(&id) {
                        self.replace_dead_shim(&id).await;
                    }
                }
                ProcessOwner::Holder(id) => {
                    if let Some(sandbox) = self.table.borrow_mut().sandboxes.get_mut(&id) {
                        // All processes in its PID namespace died with it.
                        sandbox.status.state = SandboxState::NotReady;
                    }
                }
            }
        }
    }

    /// Reads the exit record of a shim that has ended. False if there is none.
    pub(super) fn record_shim_exit(&self, id: &ContainerId) -> bool {
        let exit = shim::read_exit(&self.container_dirs(id).run);
        let mut table = self.table.borrow_mut();
        let Some(container) = table.containers.get_mut(id) else {
            return true;
        };
        match exit {
            Ok(Some(exit)) => {
                if exit.log_lost > 0 {
                    let count = exit.log_lost;
                    log::warn!(
                        "container={id} {count} records of its log are lost: they could not be written to the disk"
                    );
                }
                record_exit(container, &exit);
                true
            }
            Ok(None) => false,
            Err(e) => {
                log::warn!("container={id} {}", error_chain(&e));
                record_lost_exit(container);
                true
            }
        }
    }

    /// Replaces a shim that died without a record: a log-only shim takes over the output, and the container is killed.
    /// When that shim ends, the instance is `ContainerStatusUnknown`.
    pub(super) async fn replace_dead_shim(&self, id: &ContainerId) {
        let Some(cgroup) = self.container_cgroup(id) else {
            return;
        };
        log::warn!("container={id} its shim died; the container is killed");
        let log = self
            .table
            .borrow()
            .containers
            .get(id)
            .map_or_else(String::new, |c| c.status.log_path.clone());
        // Its held records are saved, even if shims hold none any more by now.
        let held = Some(self.held_log_path(id));
        let launched = shim::launch_log_only(&LogShimLaunch {
            exe: self.settings.exe.clone(),
            dir: self.container_dirs(id).run,
            log: PathBuf::from(log),
            log_limit: self.settings.log_limit,
            log_memory: held.filter(|held| self.settings.log_memory.is_some() || held.exists()),
            memory_cgroup: self.cgroups.memory_dir(&cgroup),
            shim_cgroups: self.cgroups.process_dirs(&self.settings.shim_cgroup),
            oom_score_adj: Some(SHIM_OOM_SCORE_ADJ),
        })
        .await;
        crash::point("container.rescued");
        self.cgroups.kill_processes(&cgroup);
        let mut table = self.table.borrow_mut();
        let watched = match launched {
            Ok(Some(launched)) => table
                .watch_process(launched.pidfd, ProcessOwner::Shim(id.clone()))
                .ok(),
            // The container had ended: its output is saved and recorded.
            Ok(None) => None,
            Err(e) => {
                log::warn!("container={id} log-only shim: {}", error_chain(&e));
                None
            }
        };
        if let Some(container) = table.containers.get_mut(id) {
            if watched.is_none() {
                match shim::read_exit(&self.container_dirs(id).run) {
                    Ok(Some(exit)) => record_exit(container, &exit),
                    Ok(None) | Err(_) => record_lost_exit(container),
                }
            }
            container.shim = watched;
        }
    }

    /// Deletes the ended instances of a pod, so that nothing stays resident, and reads their last words. Instances that
    /// are still being started are left: a container may end before the call that starts it, which fails if the runtime
    /// has forgotten it by then.
    pub(super) async fn delete_ended_instances(&self, uid: &PodUid) {
        let ended: Vec<ContainerId> = {
            let mut table = self.table.borrow_mut();
            table
                .containers
                .values_mut()
                .filter(|c| c.uid == *uid && c.shim.is_none() && c.resident && !c.starting)
                .filter(|c| c.status.state == ContainerState::Exited)
                .map(|c| {
                    // Claimed: a second caller must not delete it at the same time.
                    c.resident = false;
                    c.status.id.clone()
                })
                .collect()
        };
        for id in ended {
            self.read_termination_message(&id).await;
            self.delete_in_runtime(&id).await;
            self.remove_runtime_leftovers(&id).await;
            crash::point("container.settled");
            let dirs = self.container_dirs(&id);
            if let Err(e) = self
                .disk
                .run_job(move || bundle::unmount_bundle(&dirs))
                .await
            {
                log::warn!("container={id} unmount: {e}");
            }
        }
    }

    /// Removes the leftovers of a runtime that could not delete an ended instance: the cgroup and the runtime's own
    /// record.
    async fn remove_runtime_leftovers(&self, id: &ContainerId) {
        let remembered = self.runtime_root().join(id.as_str());
        let Some(cgroup) = self.container_cgroup(id).filter(|_| remembered.exists()) else {
            return;
        };
        if let Err(e) = self.cgroups.destroy_group(&cgroup).await {
            log::warn!("container={id} {}", error_chain(&e));
            return;
        }
        let removed = self.disk.run_job(move || remove::remove_path(&remembered));
        if let Err(e) = removed.await {
            log::warn!("container={id} cannot be forgotten: {e}");
        }
    }

    async fn read_termination_message(&self, id: &ContainerId) {
        let source = {
            let mut table = self.table.borrow_mut();
            let Some(c) = table.containers.get_mut(id).filter(|c| !c.message_read) else {
                return;
            };
            c.message_read = true;
            termination::TerminationSource {
                file: c.termination_file.clone(),
                log: c.status.log_path.clone(),
                fallback: c.termination_fallback,
                exit_code: c.status.exit_code,
            }
        };
        let own = self
            .disk
            .run_job(move || termination::read_termination_message(&source))
            .await;
        if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
            c.status.message = termination::join_messages(&c.status.message, &own);
        }
    }

    fn held_log_path(&self, id: &ContainerId) -> PathBuf {
        shim::held_log_path(&self.settings.run_dir, id)
    }

    fn container_cgroup(&self, id: &ContainerId) -> Option<String> {
        self.table
            .borrow()
            .containers
            .get(id)
            .map(|c| c.cgroup.clone())
    }
}

/// Mounts of which a status tells more than the spec does.
fn mount_statuses(mounts: &[ContainerMount], images: &RequestedVolumeImages) -> Vec<MountStatus> {
    let reference = |image: &MountedImage| {
        let mut all = images.wanted.iter().zip(&images.references);
        let found = all.find(|(wanted, _)| wanted.image == image.image);
        found
            .map(|(_, reference)| reference.clone())
            .unwrap_or_default()
    };
    let told = mounts
        .iter()
        .filter(|m| m.recursive_read_only || m.image.is_some());
    told.map(|mount| MountStatus {
        container_path: mount.container_path.clone(),
        recursive_read_only: mount.recursive_read_only,
        image: mount.image.as_ref().map(reference).unwrap_or_default(),
    })
    .collect()
}

/// Notes the end of an instance, by its shim's record.
pub(super) fn record_exit(container: &mut ContainerEntry, exit: &shim::ContainerExitRecord) {
    let status = &mut container.status;
    container.shim = None;
    status.pid = 0;
    if status.state == ContainerState::Created && !exit.created || status.reason == START_ERROR {
        // The caller of start has the runtime's error.
        return;
    }
    status.state = ContainerState::Exited;
    status.exit_code = exit.code;
    status.finished_at = Some(exit.ended_at());
    let before_stop = container.kills_before_stop.unwrap_or(0);
    status.reason = match exit {
        exit if !exit.known => LOST,
        exit if exit.was_oom_killed(before_stop) => OOM_KILLED,
        exit if exit.code == 0 => "Completed",
        _ => "Error",
    }
    .into();
}

/// Notes the end of an instance whose exit code is unknown (RTM-05, WAIT-24).
pub(super) fn record_lost_exit(container: &mut ContainerEntry) {
    let status = &mut container.status;
    container.shim = None;
    status.pid = 0;
    if status.reason == START_ERROR {
        return;
    }
    status.state = ContainerState::Exited;
    status.exit_code = LOST_CODE;
    status.reason = LOST.into();
    status.finished_at.get_or_insert_with(clock::wall_now);
}

/// Notes that an instance could not be started (RTM-03).
pub(super) fn record_start_failure(container: &mut ContainerEntry, message: &str, wall: WallTime) {
    let status = &mut container.status;
    status.pid = 0;
    status.state = ContainerState::Exited;
    status.exit_code = START_ERROR_CODE;
    status.reason = START_ERROR.into();
    status.message = message.to_owned();
    status.finished_at = Some(wall);
    // The message is the runtime's: the container never wrote one.
    container.message_read = true;
}

/// A stop signal as OCI runtimes take it: real-time ones by number, for not every runtime knows their names.
fn signal_argument(signal: &str) -> String {
    const RTMIN: i32 = 34;
    const RTMAX: i32 = 64;
    let name = signal.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let real_time = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(""), _) => Some(RTMIN),
        (_, Some("")) => Some(RTMAX),
        (Some(more), _) => more
            .strip_prefix('+')
            .and_then(|n| n.parse().ok())
            .map(|n: i32| RTMIN + n),
        (_, Some(less)) => less
            .strip_prefix('-')
            .and_then(|n| n.parse().ok())
            .map(|n: i32| RTMAX - n),
        (None, None) => None,
    };
    match real_time.filter(|n| (RTMIN..=RTMAX).contains(n)) {
        Some(number) => number.to_string(),
        None if name.parse::<i32>().is_ok() => name.to_owned(),
        // Other names of the same signals, which not every runtime knows.
        None => match name {
            "CLD" => "SIGCHLD".to_owned(),
            "IOT" => "SIGABRT".to_owned(),
            "POLL" => "SIGIO".to_owned(),
            name => format!("SIG{name}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_with_signal(signal: &str) -> ContainerEntry {
        let text = include_str!("../../../tests/golden/container_record.1.json");
        let mut record: ContainerRecord =
            crate::api::strict::from_json(text.as_bytes()).expect("a record");
        record.stop_signal = signal.into();
        container_entry(&record)
    }

    #[test]
    fn stop_signals_that_an_older_agent_recorded() {
        // KILL-11
        for (recorded, sent, shown) in [
            ("SIGFOO", "SIGTERM", "SIGTERM"),
            ("SIGRTMIN++5", "SIGTERM", "SIGTERM"),
            ("", "SIGTERM", "SIGTERM"),
            ("sigquit", "sigquit", "SIGQUIT"),
            ("15", "15", ""),
        ] {
            let entry = entry_with_signal(recorded);
            assert_eq!(entry.stop_signal, sent, "{recorded}");
            assert_eq!(entry.status.stop_signal, shown, "{recorded}");
        }
    }

    #[test]
    fn the_first_stop_signal_that_exists_counts() {
        // KILL-11
        for (of_pod, of_image, sent) in [
            ("SIGINT", "SIGFOO", "SIGINT"),
            ("", "SIGFOO", "SIGTERM"),
            ("", "SIGRTMIN+05", "SIGTERM"),
            ("", "quit", "quit"),
            ("", "", "SIGTERM"),
        ] {
            let first = first_stop_signal(&[of_pod, of_image]);
            assert_eq!(first, sent, "{of_pod} {of_image}");
        }
    }

    #[test]
    fn the_reason_of_an_end() {
        // RTM-05 WAIT-20 OOMW-01 OOMW-02 OOMW-03
        for (code, oom_kills, before_stop, known, reason) in [
            (0, 0, None, true, "Completed"),
            (1, 0, None, true, "Error"),
            // Its group is gone, and with it the count.
            (137, 0, None, true, "Error"),
            // A child, which init outlived.
            (0, 1, None, true, OOM_KILLED),
            (1, 1, None, true, OOM_KILLED),
            (137, 1, None, true, OOM_KILLED),
            (143, 1, None, true, "Error"),
            (137, 0, None, false, LOST),
            (137, 1, None, false, LOST),
            // Stopped by the agent: only what was killed since then counts.
            (0, 1, Some(1), true, "Completed"),
            (137, 1, Some(1), true, "Error"),
            (137, 2, Some(1), true, OOM_KILLED),
            (137, 1, Some(0), true, OOM_KILLED),
        ] {
            let mut entry = entry_with_signal("");
            entry.kills_before_stop = before_stop;
            let exit = shim::ContainerExitRecord {
                created: true,
                code,
                oom_kills,
                known,
                ..shim::ContainerExitRecord::default()
            };
            record_exit(&mut entry, &exit);
            let status = &entry.status;
            assert_eq!(
                (status.exit_code, status.reason.as_str()),
                (code, reason),
                "{code} {oom_kills} {before_stop:?} {known}"
            );
        }
    }

    #[test]
    fn stop_signals() {
        // STS-02
        for (given, want) in [
            ("SIGTERM", "SIGTERM"),
            ("TERM", "SIGTERM"),
            ("sigquit", "SIGQUIT"),
            ("15", "15"),
            ("SIGRTMIN+3", "37"),
            ("RTMIN", "34"),
            ("SIGRTMAX-1", "63"),
            ("SIGRTMIN+99", "SIGRTMIN+99"),
            ("SIGIOT", "SIGABRT"),
            ("cld", "SIGCHLD"),
            ("SIGPOLL", "SIGIO"),
        ] {
            assert_eq!(signal_argument(given), want, "{given}");
        }
    }
}
