//! The pods that agents left on this machine, shown as a container runtime shows its pods (KADM-16).
//!
//! Listing reads records and disturbs no agent. Stopping and removing take the locks of the agent, as a reset does: a
//! running agent would start the pod again.

use alloc::rc::{Rc, Weak};
use core::cell::RefCell;
use std::{ffi::OsString, fs, io};

use smol::lock::Mutex;

use super::facade::{ListedSandbox, MachinePods};
use crate::{
    agent::{LockedReset, ResetError, ResetOptions, ResetPlan, pod_store::PodStore},
    api::{PodUid, SandboxId, order::OrderExt as _},
    cgroup::Cgroups,
    error::error_chain,
    runtime::{
        LogRetention, RuntimeCall, RuntimeError, RuntimeService as _,
        runc::{
            Runc,
            record::{self, SandboxPhase, SandboxRecord},
        },
    },
    sys::proc,
};

/// Seconds that a container has to end: kubeadm waits two for each call.
const GRACE_S: i64 = 1;
/// Most sandboxes that are shown; there are fewer pods.
const MAX_SANDBOXES: usize = 4096;

/// View of one client of the pods that are left. The locks are held as long as a client is there that needed them.
pub(crate) struct RemainingPods {
    reset: ResetPlan,
    /// Runtime, records and locks, shared by all clients.
    opened: Rc<Mutex<Weak<OpenedRuntime>>>,
    mine: RefCell<Option<Rc<OpenedRuntime>>>,
}

struct OpenedRuntime {
    runtime: Runc,
    store: PodStore,
    _locked: LockedReset,
}

impl RemainingPods {
    /// Makes the view for the first client, of the agent with the flags `words`.
    ///
    /// # Errors
    /// As [`ResetPlan::new`]; and a runtime of another process has the pods.
    pub(crate) fn new(words: Vec<OsString>) -> Result<Self, ResetError> {
        let choice = ResetOptions {
            keep_images: true,
            grace_s: Some(GRACE_S),
        };
        let reset = ResetPlan::new(words, choice)?;
        if let Some(endpoints) = &reset.cfg.runtime.endpoints {
            let at = endpoints.runtime.display();
            let why = format!("the runtime at {at} has the pods: give its socket to kubeadm");
            return Err(ResetError::Refused(why));
        }
        Ok(Self {
            reset,
            opened: Rc::default(),
            mine: RefCell::default(),
        })
    }

    /// Makes the view for another client.
    #[must_use]
    pub(crate) fn for_another_client(&self) -> Self {
        Self {
            reset: self.reset.clone(),
            opened: Rc::clone(&self.opened),
            mine: RefCell::default(),
        }
    }

    async fn open_locked_runtime(&self) -> Result<Rc<OpenedRuntime>, RuntimeError> {
        let mut opened = self.opened.lock().await;
        if let Some(opened) = opened.upgrade() {
            self.mine.replace(Some(Rc::clone(&opened)));
            return Ok(opened);
        }
        let reset = self.reset.clone();
        let failed = |e: &dyn core::error::Error| RuntimeError::Failed(error_chain(e));
        let locked = reset.lock_dirs(false).map_err(|e| failed(&e))?;
        let cgroups = Cgroups::detect().map_err(|e| failed(&e))?;
        let dirs = &self.reset.cfg.dirs;
        let new = Rc::new(OpenedRuntime {
            runtime: self.reset.open_runtime(cgroups).await?,
            store: PodStore::new(&dirs.root, &dirs.run, &proc::boot_id().unwrap_or_default()),
            _locked: locked,
        });
        *opened = Rc::downgrade(&new);
        self.mine.replace(Some(Rc::clone(&new)));
        Ok(new)
    }

    fn read_sandbox_records(&self) -> Result<Vec<SandboxRecord>, RuntimeError> {
        let dir = self.reset.cfg.dirs.run.join("sandboxes");
        let entries = match fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| RuntimeError::Failed(format!("{}: {e}", dir.display())))?,
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let records = paths.take(MAX_SANDBOXES).filter_map(|path| {
            let loaded = record::load_record::<SandboxRecord>(&path);
            loaded.unwrap_or_else(|e| {
                log::warn!("{}: {e}", path.display());
                None
            })
        });
        let mut records: Vec<SandboxRecord> = records.collect();
        records.stable_sort_by(|one, other| one.id.cmp(&other.id));
        Ok(records)
    }

    /// Finds the pod of a sandbox; `None`: no record has this sandbox.
    fn find_pod_uid(&self, id: &SandboxId) -> Result<Option<PodUid>, RuntimeError> {
        let mut records = self.read_sandbox_records()?.into_iter();
        let found = records.find(|record| record.id == *id);
        Ok(found.map(|record| record.config.uid))
    }
}

impl MachinePods for RemainingPods {
    fn list_sandboxes(&self) -> Result<Vec<ListedSandbox>, RuntimeError> {
        let shown = |record: SandboxRecord| ListedSandbox {
            id: record.id,
            config: record.config,
            created_at: record.created_at,
            is_ready: record.phase == SandboxPhase::Ready,
        };
        Ok(self
            .read_sandbox_records()?
            .into_iter()
            .map(shown)
            .collect())
    }

    fn stop_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        Box::pin(async move {
            let Some(uid) = self.find_pod_uid(id)? else {
                return Ok(());
            };
            let opened = self.open_locked_runtime().await?;
            let status = opened.runtime.pod_status(&uid).await?;
            let (runtime, store) = (&opened.runtime, &opened.store);
            self.reset.end_pod(runtime, store, &status).await;
            runtime.stop_pod_sandbox(id).await
        })
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        Box::pin(async move {
            let Some(uid) = self.find_pod_uid(id)? else {
                return Ok(());
            };
            let opened = self.open_locked_runtime().await?;
            let status = opened.runtime.pod_status(&uid).await?;
            for container in status.containers.iter().filter(|c| c.sandbox == *id) {
                opened
                    .runtime
                    .remove_container(&container.id, LogRetention::Remove)
                    .await?;
            }
            opened.runtime.remove_pod_sandbox(id).await
        })
    }
}
