//! The seam above the runtime: what runs a pod. Containers are one way ([`Containers`]); a provider that runs none is another.
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
    executor::{Plan, Syncer, Terminator},
};
use crate::{
    api::{
        PodUid,
        cri::{PodItem, PodRuntimeStatus},
    },
    error::chain,
    logic::pod_worker::Outcome,
    runtime::{Call, Logs, RuntimeService},
};

/// Work of a driver on a pod. Never dropped while the pod exists.
pub(crate) type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Way to stop a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// As its spec says, but for the grace if one was asked for, in seconds.
    AsSpecified(Option<u32>),
    /// As the driver knows the pod: its spec is lost (CLEAN-11).
    Unknown,
}

/// See the module's words.
pub(crate) trait PodDriver {
    /// Brings the pod closer to its spec.
    fn sync<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome>;
    /// Stops what runs of it; done when nothing does.
    fn terminate<'a>(&'a self, plan: &'a Plan, stop: Stop) -> Work<'a, Outcome>;
    /// Takes down what was made for it: volumes, cgroup.
    fn clean_up<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome>;
    /// Removes everything that is left of a pod that is nobody's. What cannot be removed is found again.
    fn remove<'a>(&'a self, uid: &'a PodUid) -> Work<'a, ()>;

    /// All pods with everything that there is of them, sorted by UID.
    fn list(&self) -> Call<'_, Vec<PodItem>>;
    /// Reads the status of one pod anew. Unknown UID: an empty status carrying it.
    fn status<'a>(&'a self, uid: &'a PodUid) -> Call<'a, PodRuntimeStatus>;
    /// Resolves when something may have changed. May be late or lost.
    fn doorbell(&self) -> Work<'_, ()>;
}

/// Runs pods as containers of a runtime.
pub(super) struct Containers {
    pub(super) syncer: Syncer,
    pub(super) terminator: Terminator,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) complaints: Rc<Complaints>,
}

impl PodDriver for Containers {
    fn sync<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome> {
        Box::pin(self.syncer.run(plan))
    }

    fn terminate<'a>(&'a self, plan: &'a Plan, stop: Stop) -> Work<'a, Outcome> {
        match stop {
            Stop::AsSpecified(grace_s) => Box::pin(self.terminator.terminating(plan, grace_s)),
            Stop::Unknown => Box::pin(self.terminator.terminating_runtime(plan)),
        }
    }

    fn clean_up<'a>(&'a self, plan: &'a Plan) -> Work<'a, Outcome> {
        Box::pin(self.terminator.terminated(plan))
    }

    fn remove<'a>(&'a self, uid: &'a PodUid) -> Work<'a, ()> {
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
                if let Err(e) = self.runtime.remove_container(&container.id, Logs::Go).await {
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

    fn list(&self) -> Call<'_, Vec<PodItem>> {
        self.runtime.list_pods()
    }

    fn status<'a>(&'a self, uid: &'a PodUid) -> Call<'a, PodRuntimeStatus> {
        self.runtime.pod_status(uid)
    }

    fn doorbell(&self) -> Work<'_, ()> {
        self.runtime.doorbell()
    }
}
