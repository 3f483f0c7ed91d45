//! Sandboxes: run, stop, remove.

use std::{fs, io, os::fd::AsFd};

use super::{
    Runc,
    cni::PodNetwork,
    error_chain, failed_at_step, failed_error, files,
    record::{self, PidNamespaceHolder, SandboxPhase, SandboxRecord},
    sandbox,
    table::{ProcessOwner, SandboxEntry, sandbox_status},
};
use crate::{
    api::{
        ContainerId, SandboxId,
        cri::{
            DEFAULT_HANDLER, LinuxResources, NamespaceMode, SandboxConfig, SandboxState,
            SandboxStatus, UserNamespaceSupport,
        },
    },
    runtime::{LogRetention, RuntimeError},
    sys::{clock, crash, mount, pidfd, proc, remove},
};

/// oom_score_adj of a PID namespace's init, and its cpu shares (RTM-17).
const HOLDER_OOM_SCORE_ADJ: i32 = -998;
const HOLDER_SHARES: u64 = 2;

impl Runc {
    pub(super) async fn run_sandbox(
        &self,
        config: &SandboxConfig,
    ) -> Result<SandboxStatus, RuntimeError> {
        sandbox::check_sandbox_config(config).map_err(|e| RuntimeError::Invalid(e.to_string()))?;
        let handler = &config.runtime_handler;
        if handler != DEFAULT_HANDLER {
            // Checked before anything is made: the pod waits for the handler.
            let program = self.programs.for_handler(handler);
            program.map_err(|e| RuntimeError::Invalid(e.to_string()))?;
        }
        self.demand_user_namespaces(config)?;
        let id = record::sandbox_id(&config.uid, config.attempt);
        let known = self
            .table
            .borrow()
            .sandboxes
            .get(&id)
            .map(|s| s.status.clone());
        match known {
            Some(status) if status.state == SandboxState::Ready => return Ok(status),
            // Leftovers of a failed try or of an agent that died.
            Some(_) => self.remove_sandbox(&id).await?,
            None => {}
        }
        let mut record = SandboxRecord {
            v: match config.namespaces.users {
                Some(_) => record::VERSION_WITH_USERS,
                None => record::VERSION,
            },
            id: id.clone(),
            boot_id: self.boot.id.clone(),
            created: self.next_creation_order(),
            created_at: clock::wall_now().truncated_to_second(),
            phase: SandboxPhase::Making,
            config: config.clone(),
            ips: Vec::new(),
            holder: None,
        };
        let dir = self.sandbox_dir(&id);
        files::make_private_dir(&dir)
            .and_then(|()| {
                crash::point("sandbox.directory");
                record::save_record(&dir, &record)
            })
            .map_err(failed_at_step("write the sandbox record"))?;
        crash::point("sandbox.intent");
        self.table.borrow_mut().sandboxes.insert(
            id.clone(),
            SandboxEntry {
                status: sandbox_status(&record, SandboxState::NotReady),
                created: record.created,
                holder: None,
            },
        );
        match self.make_sandbox(&mut record).await {
            Ok(status) => Ok(status),
            Err(error) => {
                // A sandbox that cannot be undone now stays listed as not ready, and is undone by the next stop.
                if let Err(undo) = self.remove_sandbox(&id).await {
                    log::warn!(
                        "uid={} sandbox={id} undoing a failed start: {undo}",
                        config.uid
                    );
                }
                Err(error)
            }
        }
    }

    /// Refuses a sandbox with a user namespace, and containers in it, if the OCI runtime or this machine cannot map ids.
    pub(super) fn demand_user_namespaces(
        &self,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        if config.namespaces.users.is_none() {
            return Ok(());
        }
        match self.programs.judge_user_namespaces(&config.runtime_handler) {
            UserNamespaceSupport::Works => Ok(()),
            UserNamespaceSupport::Lacks(why) => {
                Err(RuntimeError::Invalid(format!("hostUsers: false: {why}")))
            }
        }
    }

    async fn make_sandbox(
        &self,
        record: &mut SandboxRecord,
    ) -> Result<SandboxStatus, RuntimeError> {
        let dir = self.sandbox_dir(&record.id);
        let config = &record.config;
        let dirs = self.sandbox_dirs(&record.id);
        sandbox::make_files(&dirs, config, &self.settings.host.hostname)
            .map_err(failed_at_step("make the files of the sandbox"))?;
        crash::point("sandbox.files");
        let holder = sandbox::make_namespaces(&dir, config, &self.settings.exe)
            .await
            .map_err(failed_at_step("make the namespaces of the sandbox"))?;
        crash::point("sandbox.namespaces");
        if let Some(begun) = holder {
            record.holder = Some(
                self.adopt_holder(record, begun)
                    .await
                    .map_err(failed_at_step("keep the PID namespace"))?,
            );
        }
        if record.config.namespaces.network == NamespaceMode::Pod {
            let netns = sandbox::namespace_pin_path(&dir, "net");
            let pod = PodNetwork {
                id: &record.id,
                netns: &netns,
                config: &record.config,
            };
            record.ips = self
                .cni
                .attach_pod(&pod, &self.gate)
                .await
                .map_err(failed_error)?;
            crash::point("sandbox.attached");
        }
        record.phase = SandboxPhase::Ready;
        record::save_record(&dir, record).map_err(failed_at_step("write the sandbox record"))?;
        crash::point("sandbox.recorded");
        let status = sandbox_status(record, SandboxState::Ready);
        if let Some(sandbox) = self.table.borrow_mut().sandboxes.get_mut(&record.id) {
            sandbox.status = status.clone();
        }
        Ok(status)
    }

    /// Waits for the end of a PID namespace's init from now on, puts it where the pod's processes are counted, and has it give up
    /// what is the host's: its control group is the root of what it can see of them then.
    async fn adopt_holder(
        &self,
        record: &SandboxRecord,
        begun: sandbox::UnrecordedPodInit,
    ) -> io::Result<PidNamespaceHolder> {
        let pid = begun.pid;
        let holder = PidNamespaceHolder {
            pid,
            start_time: proc::start_time(pid)?,
        };
        self.watch_holder(&record.id, pidfd::open_pidfd(pid)?)?;
        crash::point("sandbox.holder");
        let mut noted = record.clone();
        noted.holder = Some(holder);
        record::save_record(&self.sandbox_dir(&record.id), &noted)?;
        crash::point("sandbox.holder-recorded");
        let score = HOLDER_OOM_SCORE_ADJ.max(self.settings.host.min_oom_score_adj);
        fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())?;
        let cgroup = holder_cgroup(record);
        let values = LinuxResources {
            cpu_shares: Some(HOLDER_SHARES),
            ..LinuxResources::default()
        };
        self.cgroups
            .create_limited_leaf(&cgroup, &values)
            .and_then(|()| self.cgroups.move_process(&cgroup, pid))
            .map_err(|e| io::Error::other(error_chain(&e)))?;
        begun.confirm_recorded().await?;
        Ok(holder)
    }

    pub(super) fn watch_holder(&self, id: &SandboxId, fd: std::os::fd::OwnedFd) -> io::Result<()> {
        let mut table = self.table.borrow_mut();
        let watched = table.watch_process(fd, ProcessOwner::Holder(id.clone()))?;
        if let Some(sandbox) = table.sandboxes.get_mut(id) {
            sandbox.holder = Some(watched);
        }
        Ok(())
    }

    pub(super) async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let containers = {
            let mut table = self.table.borrow_mut();
            let Some(sandbox) = table.sandboxes.get_mut(id) else {
                return Ok(());
            };
            // From here on nothing may be started in it.
            sandbox.status.state = SandboxState::NotReady;
            table.sandbox_containers(id)
        };
        let stopped = self.kill_containers(&containers).await;
        let dir = self.sandbox_dir(id);
        let Some(mut record) = record::load_record::<SandboxRecord>(&dir)
            .map_err(failed_at_step("read the sandbox record"))?
        else {
            return stopped;
        };
        if record.phase == SandboxPhase::Stopped {
            return stopped;
        }
        if stopped.is_err() {
            // Processes that multiply faster than they are killed end with their shared PID namespace.
            self.end_holder(&record).await?;
            self.kill_containers(&containers).await?;
        }
        // The plugins need the namespace: it goes after them.
        self.cni
            .detach_sandbox(id, &self.gate)
            .await
            .map_err(failed_error)?;
        crash::point("sandbox.detached");
        self.end_holder(&record).await?;
        sandbox::release_namespaces(&dir).map_err(failed_at_step("release the namespaces"))?;
        // No process uses /dev/shm any more, and its memory counts for the pod.
        crash::point("sandbox.released");
        mount::unmount(&dir.join("shm")).map_err(failed_at_step("unmount /dev/shm"))?;
        record.phase = SandboxPhase::Stopped;
        record::save_record(&dir, &record).map_err(failed_at_step("write the sandbox record"))
    }

    /// Tries each; the first error counts.
    async fn kill_containers(&self, containers: &[ContainerId]) -> Result<(), RuntimeError> {
        let mut result = Ok(());
        for id in containers {
            result = result.and(self.stop_instance(id, core::time::Duration::ZERO).await);
        }
        result
    }

    async fn end_holder(&self, record: &SandboxRecord) -> Result<(), RuntimeError> {
        if record.config.namespaces.pid != NamespaceMode::Pod {
            return Ok(());
        }
        let holder = {
            let table = self.table.borrow();
            let sandbox = table.sandboxes.get(&record.id);
            sandbox
                .and_then(|s| s.holder.as_ref())
                .map(|w| w.pidfd.clone())
        };
        if let Some(fd) = holder {
            let kill = pidfd::send_signal(fd.as_fd(), libc::SIGKILL);
            if let Err(e) = kill
                && e.raw_os_error() != Some(libc::ESRCH)
            {
                return Err(failed_at_step("end the PID namespace")(e));
            }
            pidfd::wait_until_ended(fd)
                .await
                .map_err(failed_at_step("end the PID namespace"))?;
            self.handle_process_ends().await;
        }
        self.cgroups
            .destroy_group(&holder_cgroup(record))
            .await
            .map_err(failed_error)
    }

    pub(super) async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.stop_sandbox(id).await?;
        let containers = self.table.borrow().sandbox_containers(id);
        for container in containers {
            self.remove_instance(&container, LogRetention::Remove)
                .await?;
        }
        let dirs = self.sandbox_dirs(id);
        crash::point("sandbox.emptied");
        // The run directory last: it is found again after a crash.
        let removed = self.disk.run_job(move || {
            mount::unmount(&dirs.run.join("shm"))?;
            remove::remove_path(&dirs.root)?;
            remove::remove_path(&dirs.run)
        });
        removed
            .await
            .map_err(failed_at_step("remove the sandbox"))?;
        self.table.borrow_mut().sandboxes.remove(id);
        Ok(())
    }
}

/// The cgroup of a PID namespace's init, beside those of the containers.
fn holder_cgroup(record: &SandboxRecord) -> String {
    format!("{}/{}", record.config.cgroup_parent, record.id)
}

/// Opens the process of `holder` if it still is that process.
pub(super) fn open_holder(holder: PidNamespaceHolder) -> Option<std::os::fd::OwnedFd> {
    open_process(holder.pid, holder.start_time)
}

/// Opens a process if it still is the one that began at `start_time`.
pub(super) fn open_process(pid: i32, start_time: u64) -> Option<std::os::fd::OwnedFd> {
    let fd = pidfd::open_pidfd(pid).ok()?;
    (proc::start_time(pid).ok()? == start_time).then_some(fd)
}
