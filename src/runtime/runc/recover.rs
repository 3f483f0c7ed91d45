//! Recovery of sandboxes and instances: after a restart of the agent, a crash in the middle of an operation, a reboot.

use core::time::Duration;
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use async_io::Timer;
use serde::{Deserialize, Serialize};

use super::{
    Runc, bundle, containers, error_chain, failed_at_step, files,
    pods::open_holder,
    program::{self, OciRuntimeError},
    record::{self, ContainerRecord, SandboxPhase, SandboxRecord},
    sandbox,
    table::{ProcessOwner, SandboxEntry, container_entry, sandbox_status},
};
use crate::api::order::GatherExt;
use crate::api::strict::from_json;
use crate::{
    api::{
        ContainerId, MonoTime, SandboxId,
        cri::{ContainerState, NamespaceMode, SandboxState},
    },
    runtime::{LogRetention, RuntimeError},
    shim,
    sys::{clock, crash, file, proc, remove},
};

/// Longest wait for all launches that an earlier agent began; then they are ended.
const LAUNCH_WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks at such a launch.
const LAUNCH_LOOK: Duration = Duration::from_millis(20);

/// A boot of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineBoot {
    /// The kernel's id.
    pub(super) id: String,
    /// Number of the boot, counted by this agent.
    pub(super) number: u32,
}

#[derive(Serialize, Deserialize)]
struct BootFile {
    v: u32,
    boot_id: String,
    number: u32,
}

impl MachineBoot {
    /// Reads the counter, and writes the next number if the machine was booted since.
    pub(super) fn read(root_dir: &Path) -> io::Result<Self> {
        const LIMIT: u64 = 4096;
        let id = proc::boot_id()?;
        let path = root_dir.join("boot.json");
        // A damaged counter starts over: the order is then wrong once, among instances that a reboot has ended anyway.
        let last: Option<BootFile> = files::read_start(&path, LIMIT)
            .ok()
            .and_then(|bytes| from_json(&bytes).ok());
        let number = match &last {
            Some(last) if last.boot_id == id => {
                return Ok(Self {
                    id,
                    number: last.number,
                });
            }
            Some(last) => last.number.saturating_add(1),
            None => 1,
        };
        let next = BootFile {
            v: 1,
            boot_id: id.clone(),
            number,
        };
        file::write_atomic(&path, &serde_json::to_vec(&next)?, 0o600, true)?;
        Ok(Self { id, number })
    }
}

impl Runc {
    /// Fills the table from the run directory, then sweeps leftovers without owner.
    pub(super) async fn recover_all(&self) -> Result<(), RuntimeError> {
        let names = |kind: &str| {
            let dir = self.settings.run_dir.join(kind);
            files::sorted_names(&dir).map_err(failed_at_step(&format!("read {}", dir.display())))
        };
        let mut unusable = Vec::new();
        for name in names("sandboxes")? {
            let id = SandboxId::new(name);
            if self.recover_sandbox(&id) {
                unusable.push(id);
            }
        }
        crash::point("recover.sandboxes");
        let deadline = clock::mono_now() + LAUNCH_WAIT;
        for name in names("containers")? {
            self.recover_container(&ContainerId::new(name), deadline)
                .await;
            crash::point("recover.container");
        }
        // Whatever an agent before this one was making is made now, or was ended.
        self.resume_tracers();
        self.continue_creation_order();
        self.finish_stops(unusable).await;
        self.sweep_layers().await;
        crash::point("recover.layers");
        let live: BTreeSet<SandboxId> = {
            let table = self.table.borrow();
            let sandboxes = table.sandboxes.values();
            // A sandbox that is not ready is detached when it is stopped; the agent stops every such sandbox.
            sandboxes.map(|s| s.status.id.clone()).gather_items()
        };
        self.cni.sweep_attachments(&live, &self.gate).await;
        Ok(())
    }

    /// Stops sandboxes that an earlier agent began to stop. If the pod has ended, this is not asked for again.
    async fn finish_stops(&self, mut sandboxes: Vec<SandboxId>) {
        sandboxes.retain(|id| {
            let table = self.table.borrow();
            let runs = |c: &ContainerId| {
                let container = table.containers.get(c);
                container.is_some_and(|c| c.status.state == ContainerState::Running)
            };
            !table.sandbox_containers(id).iter().any(runs)
        });
        for id in sandboxes {
            if let Err(e) = self.stop_sandbox(&id).await {
                log::warn!("sandbox={id} {}", error_chain(&e));
            }
        }
    }

    /// Takes a sandbox into the table. Returns true if it is of this boot, was ready, and can no longer be used.
    fn recover_sandbox(&self, id: &SandboxId) -> bool {
        let dir = self.sandbox_dir(id);
        let record = match record::load_record::<SandboxRecord>(&dir) {
            Ok(Some(record)) => record,
            Ok(None) => {
                // Died between the directory and the intent: nothing was made yet.
                if let Err(e) = remove::remove_path(&dir) {
                    log::warn!("sandbox={id} {e}");
                }
                return false;
            }
            Err(e) => {
                log::error!("sandbox={id} {}: {e}; left alone", dir.display());
                return false;
            }
        };
        let config = &record.config;
        let was_ready = record.boot_id == self.boot.id && record.phase == SandboxPhase::Ready;
        let mut usable = was_ready && sandbox::has_namespaces(&dir, config);
        let holder = record
            .holder
            .filter(|_| record.boot_id == self.boot.id)
            .and_then(open_holder);
        usable &= config.namespaces.pid != NamespaceMode::Pod || holder.is_some();
        let state = if usable {
            SandboxState::Ready
        } else {
            SandboxState::NotReady
        };
        self.table.borrow_mut().sandboxes.insert(
            id.clone(),
            SandboxEntry {
                status: sandbox_status(&record, state),
                created: record.created,
                holder: None,
            },
        );
        if let Some(fd) = holder
            && let Err(e) = self.watch_holder(id, fd)
        {
            log::warn!("sandbox={id} watch its init: {e}");
        }
        was_ready && !usable
    }

    async fn recover_container(&self, id: &ContainerId, deadline: MonoTime) {
        let dirs = self.container_dirs(id);
        let mut record = match record::load_record::<ContainerRecord>(&dirs.run) {
            Ok(Some(record)) => record,
            // Nothing was made yet.
            Ok(None) => {
                if let Err(e) = bundle::remove_bundle(&self.disk, &dirs).await {
                    log::warn!("container={id} {e}");
                }
                return;
            }
            Err(e) => {
                log::error!("container={id} {}: {e}; left alone", dirs.run.display());
                return;
            }
        };
        let mut entry = container_entry(&record);
        entry.holds = self.hold_images(&record.image, &record.volume_images);
        let this_boot = record.boot_id == self.boot.id;
        if let Some((message, wall, _)) = &record.failure {
            containers::record_start_failure(&mut entry, message, *wall);
        } else if !this_boot && record.started_at.is_some() {
            containers::record_lost_exit(&mut entry);
        }
        let settled = entry.status.state == ContainerState::Exited;
        self.table.borrow_mut().containers.insert(id.clone(), entry);
        if !record.made {
            self.forget_unstarted(&mut record).await;
        } else if this_boot && !settled {
            if !self.recover_process(&mut record, deadline).await {
                self.forget_unstarted(&mut record).await;
            }
        } else if !this_boot {
            // It is of another boot, but the run directory was kept: its exit may be known.
            self.record_shim_exit(id);
        }
    }

    /// Adopts a container that an earlier agent began. Returns false if it never ran.
    async fn recover_process(&self, record: &mut ContainerRecord, deadline: MonoTime) -> bool {
        let id = record.id.clone();
        let dir = self.container_dirs(&id).run;
        // A container whose creation failed has an exit record, too, and stays "created".
        let created = || {
            let table = self.table.borrow();
            let container = table.containers.get(&id);
            container.is_some_and(|c| c.status.state == ContainerState::Created)
        };
        if self.record_shim_exit(&id) {
            return !created();
        }
        // An earlier agent may have died while its shim was creating the container: the shim goes on.
        // Bounded: by the deadline, and each round waits.
        while matches!(shim::is_shim_alive(&dir), Ok(true))
            && matches!(shim::read_state(&dir), Ok(None))
            && clock::mono_now() < deadline
        {
            Timer::after(LAUNCH_LOOK).await;
        }
        match shim::find_live_shim(&dir) {
            Ok(Some(launched)) => {
                {
                    let mut table = self.table.borrow_mut();
                    match table.watch_process(launched.pidfd, ProcessOwner::Shim(id.clone())) {
                        Ok(watched) => {
                            if let Some(c) = table.containers.get_mut(&id) {
                                c.shim = Some(watched);
                                c.status.pid = launched.pid;
                            }
                        }
                        Err(e) => log::error!("container={id} watch its shim: {e}"),
                    }
                }
                if record.started_at.is_none() {
                    if !self.was_started(&id).await {
                        return false;
                    }
                    record.started_at = Some(clock::wall_now().truncated_to_second());
                    if let Err(e) = record::save_record(&dir, record) {
                        log::warn!("container={id} record: {e}");
                    }
                }
                if let Some(c) = self.table.borrow_mut().containers.get_mut(&id) {
                    c.status.started_at = record.started_at;
                    if c.status.state == ContainerState::Created {
                        c.status.state = ContainerState::Running;
                    }
                }
            }
            // The shim ended meanwhile, died, or never lived.
            Ok(None) if self.record_shim_exit(&id) => return !created(),
            Ok(None)
                if record.started_at.is_none() && matches!(shim::read_state(&dir), Ok(None)) =>
            {
                return false;
            }
            Ok(None) if record.started_at.is_none() && !self.was_started(&id).await => {
                return false;
            }
            Ok(None) => self.replace_dead_shim(&id).await,
            Err(e) => {
                log::warn!("container={id} its shim: {}", error_chain(&e));
                self.replace_dead_shim(&id).await;
            }
        }
        true
    }

    /// Removes an instance that was being made or started when the agent died: it never ran, and the next try is to be
    /// its first.
    async fn forget_unstarted(&self, record: &mut ContainerRecord) {
        let id = record.id.clone();
        log::info!("container={id} was being started when the agent died; it starts anew");
        let dir = self.container_dirs(&id).run;
        // First: an agent that dies during the next steps leaves an exit record, which must not count as that of a
        // container that ran.
        record.made = false;
        if let Err(e) = record::save_record(&dir, record) {
            log::warn!("container={id} record: {e}");
        }
        crash::point("recover.abandoned");
        // Its shim notes its end and ends too, if there is a shim.
        if matches!(shim::read_state(&dir), Ok(None))
            && let Err(e) = shim::end_launch(&dir).await
        {
            log::warn!("container={id} its shim: {e}");
        }
        self.clear_failed_start(&id).await;
        crash::point("recover.cleared");
        if let Err(e) = self.remove_instance(&id, LogRetention::Remove).await {
            // It stays listed as created, and is removed with its pod.
            log::warn!("container={id} {e}");
            self.forget_shim(&id);
        }
    }

    /// Asks the OCI runtime whether a created container was started; if it does not answer, its init's program tells.
    async fn was_started(&self, id: &ContainerId) -> bool {
        #[derive(Deserialize)]
        struct OciStateView {
            status: String,
        }
        let started = |name: &str| {
            let state = shim::read_state(&self.container_dirs(id).run)
                .ok()
                .flatten();
            state.is_some_and(|s| !is_runtime(s.pid, name))
        };
        let Ok(program) = self.oci_runtime_of(id) else {
            return started(self.programs.configured_name(&self.container_handler(id)));
        };
        let answer = program
            .call_runtime(&self.runtime_root(), "state", &[id], &self.gate)
            .await;
        match answer.map(|text| from_json::<OciStateView>(&text)) {
            Ok(Ok(state)) => state.status != "created",
            Ok(Err(e)) => {
                log::warn!("container={id} state: {e}");
                started(&program.name)
            }
            Err(OciRuntimeError::Call { message, .. }) if program::is_container_gone(&message) => {
                false
            }
            Err(e) => {
                log::warn!("container={id} {e}");
                started(&program.name)
            }
        }
    }

    /// Sets the instance back to "created": a later start must not find the records of the broken one.
    fn forget_shim(&self, id: &ContainerId) {
        let dir = self.container_dirs(id).run;
        for name in [shim::file::STATE, shim::file::EXIT, shim::file::PID] {
            if let Err(e) = files::remove_file(&dir.join(name)) {
                log::warn!("container={id} {name}: {e}");
            }
        }
        if let Some(c) = self.table.borrow_mut().containers.get_mut(id) {
            c.shim = None;
            c.status.pid = 0;
            c.status.state = ContainerState::Created;
            c.status.exit_code = 0;
            c.status.reason = String::new();
            c.status.finished_at = None;
        }
    }

    /// Lets the order of new instances begin after all that were found.
    fn continue_creation_order(&self) {
        let table = self.table.borrow();
        let sandboxes = table.sandboxes.values().map(|s| s.created);
        let containers = table.containers.values().map(|c| c.created);
        let last = sandboxes
            .chain(containers)
            .filter(|order| order.0 == self.boot.number)
            .map(|order| order.1)
            .max();
        self.next_order.replace(last.unwrap_or(0));
    }

    /// Removes writable layers and files of containers and sandboxes that the run directory does not know (another
    /// boot).
    async fn sweep_layers(&self) {
        let (root, run) = (
            self.settings.root_dir.clone(),
            self.settings.run_dir.clone(),
        );
        let listed = self.disk.run_job(move || -> io::Result<Vec<PathBuf>> {
            let mut left = Vec::new();
            for kind in ["containers", "sandboxes"] {
                let (root, run) = (root.join(kind), run.join(kind));
                let gone = |name: &String| !run.join(name).exists();
                let names = files::sorted_names(&root)?.into_iter().filter(gone);
                left.extend(names.map(|name| root.join(name)));
            }
            Ok(left)
        });
        let left = listed.await.unwrap_or_else(|e| {
            log::warn!("writable layers of an earlier boot: {e}");
            Vec::new()
        });
        // A failure does not keep the others.
        for path in left {
            if let Err(e) = remove::remove_on_lane(&self.disk, &path).await {
                log::warn!("writable layer of an earlier boot: {}: {e}", path.display());
            }
        }
    }
}

/// Returns true if the process still runs the OCI runtime's own program: an init that waits to be started. False for a
/// process that is gone.
fn is_runtime(pid: i32, name: &str) -> bool {
    const LIMIT: u64 = 4096;
    let line = files::read_start(Path::new(&format!("/proc/{pid}/cmdline")), LIMIT);
    let word = line.unwrap_or_default();
    let word = word.split(|b| *b == 0).next().unwrap_or_default();
    let word = String::from_utf8_lossy(word);
    Path::new(&*word).file_name() == Path::new(name).file_name()
}
