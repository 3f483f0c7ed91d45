//! The seam above the runtime: what runs a pod. Containers are one way ([`ContainerDriver`]); a provider that runs
//! none is another.
//!
//! A driver carries out what a pod's worker wants and says what there is. Everything else is the same for all: configuration,
//! admission, the worker's stages, statuses, back-off, housekeeping. Its contract:
//!
//! - Calls of one pod never overlap. Each ends with what the worker goes on by, and tells on the way what a status must show
//!   ([`CallStep`](super::executor::CallStep)).
//! - `terminate_pod` and `clean_up_pod` may come again for the same pod. What is not there is success for them.
//! - `list_pods` says everything that there is, whoever made it: an agent that has just started knows of nothing else.

use alloc::rc::Rc;
use core::pin::Pin;

use super::{
    complaints::Complaints,
    executor::{CallPlan, PodSyncer, PodTerminator},
};
use crate::{
    api::{
        PodUid,
        cri::{PodItem, PodRuntimeStatus},
    },
    error::error_chain,
    logic::pod_worker::CallOutcome,
    runtime::{LogRetention, RuntimeCall, RuntimeService},
};

/// Work of a driver on a pod. Never dropped while the pod exists.
pub(crate) type DriverFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Way to stop a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodStopMode {
    /// As its spec says, but for the grace if one was asked for, in seconds.
    AsSpecified(Option<u32>),
    /// As the driver knows the pod: its spec is lost (CLEAN-11).
    Unknown,
}

/// See the module's words.
pub(crate) trait PodDriver {
    /// Brings the pod closer to its spec.
    fn sync_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome>;
    /// Stops what runs of it; done when nothing does.
    fn terminate_pod<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome>;
    /// Takes down what was made for it: volumes, cgroup.
    fn clean_up_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome>;
    /// Removes everything that is left of a pod that is nobody's. What cannot be removed is found again.
    fn remove_pod_remains<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()>;

    /// All pods with everything that there is of them, sorted by UID.
    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>>;
    /// Number of changes of that list until now: rather too many than too few. `None`: only the list tells.
    fn count_pod_changes(&self) -> DriverFuture<'_, Option<u64>> {
        Box::pin(core::future::ready(None))
    }
    /// Reads the status of one pod anew. Unknown UID: an empty status carrying it.
    fn read_pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus>;
    /// Resolves when something may have changed. May be late or lost.
    fn wait_for_change(&self) -> DriverFuture<'_, ()>;
}

/// Runs pods as containers of a runtime.
pub(super) struct ContainerDriver {
    pub(super) syncer: PodSyncer,
    pub(super) terminator: PodTerminator,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) complaints: Rc<Complaints>,
}

impl PodDriver for ContainerDriver {
    fn sync_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(self.syncer.run_sync(plan))
    }

    fn terminate_pod<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome> {
        match stop {
            PodStopMode::AsSpecified(grace_s) => {
                Box::pin(self.terminator.sync_terminating_pod(plan, grace_s))
            }
            PodStopMode::Unknown => Box::pin(self.terminator.sync_terminating_runtime_pod(plan)),
        }
    }

    fn clean_up_pod<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(self.terminator.sync_terminated_pod(plan))
    }

    fn remove_pod_remains<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let status = match self.runtime.pod_status(uid).await {
                Ok(status) => status,
                Err(e) => {
                    return self
                        .complaints
                        .complain(&format!("uid={uid} {}", error_chain(&e)));
                }
            };
            for container in &status.containers {
                if let Err(e) = self
                    .runtime
                    .remove_container(&container.id, LogRetention::Remove)
                    .await
                {
                    let complaint = format!("container={} cannot remove: {e}", container.id);
                    self.complaints.complain(&complaint);
                }
            }
            for sandbox in &status.sandboxes {
                if let Err(e) = self.runtime.remove_pod_sandbox(&sandbox.id).await {
                    let complaint = format!("sandbox={} cannot remove: {e}", sandbox.id);
                    self.complaints.complain(&complaint);
                }
            }
        })
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        self.runtime.list_pods()
    }

    fn count_pod_changes(&self) -> DriverFuture<'_, Option<u64>> {
        self.runtime.count_pod_changes()
    }

    fn read_pod_status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus> {
        self.runtime.pod_status(uid)
    }

    fn wait_for_change(&self) -> DriverFuture<'_, ()> {
        self.runtime.wait_for_doorbell()
    }
}
