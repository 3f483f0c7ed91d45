//! The seam above the runtime: what runs a pod. Containers are one way ([`ContainerDriver`]); a provider that runs none is another.
//!
//! A driver carries out what a pod's worker wants and says what there is. Everything else is the same for all: configuration,
//! admission, the worker's stages, statuses, back-off, housekeeping. Its contract:
//!
//! - Calls of one pod never overlap. Each ends with what the worker goes on by, and tells on the way what a status must show
//!   ([`Step`](super::executor::Step)).
//! - `terminate` and `clean_up` may come again for the same pod. What is not there is success for them.
//! - `list` says everything that there is, whoever made it: an agent that has just started knows of nothing else.

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
    error::chain,
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
    fn sync<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome>;
    /// Stops what runs of it; done when nothing does.
    fn terminate<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome>;
    /// Takes down what was made for it: volumes, cgroup.
    fn clean_up<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome>;
    /// Removes everything that is left of a pod that is nobody's. What cannot be removed is found again.
    fn remove<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()>;

    /// All pods with everything that there is of them, sorted by UID.
    fn list(&self) -> RuntimeCall<'_, Vec<PodItem>>;
    /// Reads the status of one pod anew. Unknown UID: an empty status carrying it.
    fn status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus>;
    /// Resolves when something may have changed. May be late or lost.
    fn doorbell(&self) -> DriverFuture<'_, ()>;
}

/// Runs pods as containers of a runtime.
pub(super) struct ContainerDriver {
    pub(super) syncer: PodSyncer,
    pub(super) terminator: PodTerminator,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) complaints: Rc<Complaints>,
}

impl PodDriver for ContainerDriver {
    fn sync<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(self.syncer.run(plan))
    }

    fn terminate<'a>(
        &'a self,
        plan: &'a CallPlan,
        stop: PodStopMode,
    ) -> DriverFuture<'a, CallOutcome> {
        match stop {
            PodStopMode::AsSpecified(grace_s) => {
                Box::pin(self.terminator.terminating(plan, grace_s))
            }
            PodStopMode::Unknown => Box::pin(self.terminator.terminating_runtime(plan)),
        }
    }

    fn clean_up<'a>(&'a self, plan: &'a CallPlan) -> DriverFuture<'a, CallOutcome> {
        Box::pin(self.terminator.terminated(plan))
    }

    fn remove<'a>(&'a self, uid: &'a PodUid) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let status = match self.runtime.pod_status(uid).await {
                Ok(status) => status,
                Err(e) => {
                    return self
                        .complaints
                        .complain(&format!("uid={uid} {}", chain(&e)));
                }
            };
            for container in &status.containers {
                if let Err(e) = self
                    .runtime
                    .remove_container(&container.id, LogRetention::Go)
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

    fn list(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        self.runtime.list_pods()
    }

    fn status<'a>(&'a self, uid: &'a PodUid) -> RuntimeCall<'a, PodRuntimeStatus> {
        self.runtime.pod_status(uid)
    }

    fn doorbell(&self) -> DriverFuture<'_, ()> {
        self.runtime.doorbell()
    }
}
