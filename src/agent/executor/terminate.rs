//! The end of a pod: SyncTerminatingPod, SyncTerminatingRuntimePod, SyncTerminatedPod. Rows SYNC-19 to SYNC-33,
//! KILL-07, KILL-14.

use alloc::rc::Rc;
use core::time::Duration;

use smol::future::FutureExt as _;

use super::{
    cgroups::PodCgroups,
    errors::SyncError,
    kill::PodKiller,
    steps::{CallPlan, CallStep},
};
use crate::{
    agent::{
        clock::Clock,
        cluster,
        complaints::Complaints,
        pod_store::{PodStore, PodStoreError},
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        Pod,
        cri::{ContainerState, PodRuntimeStatus},
    },
    error::error_chain,
    logic::{
        kill::{self, RUNTIME_ONLY_GRACE_S},
        pod_worker::CallOutcome,
    },
    runtime::RuntimeService,
    sys::{crash, lane::Lane},
    volume::Volumes,
};

/// Volumes of a terminated pod may take so long to go (SYNC-30); then the step fails and is tried again.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(123);
/// Time between two tries to read a record.
const READ_GAP: Duration = Duration::from_secs(1);

/// Ends pods. Nothing is kept between two of them.
pub(in crate::agent) struct PodTerminator {
    pub(in crate::agent) store: PodStore,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) complaints: Rc<Complaints>,
    pub(in crate::agent) cgroups: PodCgroups,
    pub(in crate::agent) volumes: Volumes,
    pub(in crate::agent) killer: PodKiller,
    pub(in crate::agent) of_api: Option<Rc<cluster::ObjectStore>>,
}

impl PodTerminator {
    fn call_outcome(
        &self,
        plan: &CallPlan,
        step: &str,
        result: Result<(), SyncError>,
    ) -> CallOutcome {
        match result {
            Ok(()) => CallOutcome::Done,
            Err(e) => {
                let message = format!("uid={} {step}: {}", plan.uid, e.message);
                self.complaints.complain(&message);
                CallOutcome::Failed(e.retry)
            }
        }
    }

    /// Stops everything of the pod and tells its final status.
    pub(in crate::agent) async fn sync_terminating_pod(
        &self,
        plan: &CallPlan,
        grace_s: Option<u32>,
    ) -> CallOutcome {
        let result = match self.read_recorded_pod(plan).await {
            Ok(pod) => self.stop_pod(plan, &pod, grace_s).await,
            Err(_) if plan.cancel.is_cancelled() => return CallOutcome::Canceled,
            Err(e) => {
                // Its record is gone, damaged or not to be read: the runtime's own word must do to end it.
                let message = format!("uid={} {}", plan.uid, error_chain(&e));
                self.complaints.complain(&message);
                // The grace is known all the same, unless nothing of the pod is.
                let known = plan.grace_s.filter(|_| !e.is_absent());
                let grace_s = known.map_or(RUNTIME_ONLY_GRACE_S, i64::from);
                self.stop_runtime_pod(plan, grace_s).await
            }
        };
        self.call_outcome(plan, "terminating", result)
    }

    /// The pod as recorded. A disk that does not give it is asked again for a while, unless the call is to return early.
    async fn read_recorded_pod(&self, plan: &CallPlan) -> Result<Rc<Pod>, PodStoreError> {
        let latest = self.clock.now() + kill::record_wait(plan.grace_s);
        loop {
            let read = self.store.load_pod(&self.disk, &plan.uid).await;
            let may_pass = read.as_ref().is_err_and(PodStoreError::may_succeed_later);
            let now = self.clock.now();
            if !may_pass || now >= latest || plan.cancel.is_cancelled() {
                return read;
            }
            let pause = self.clock.sleep_until(latest.min(now + READ_GAP));
            pause.or(plan.cancel.wait_for_cancel()).await;
        }
    }

    async fn stop_pod(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        grace_s: Option<u32>,
    ) -> Result<(), SyncError> {
        let (uid, line) = (&plan.uid, &plan.line);
        let ips = line.ask_loop(|answer| CallStep::Stopping {
            pod: Rc::clone(pod),
            runtime: Rc::clone(&plan.runtime),
            answer,
        });
        let ips = ips.await;
        let mut runtime = PodRuntimeStatus::clone(&plan.runtime);
        if runtime.ips.is_empty() {
            // A pod in the host's network has no address at the runtime; its hooks need one.
            runtime.ips = ips;
        }
        let killed = self.killer.kill_pod(pod, &runtime, grace_s.map(i64::from));
        if let Err(e) = killed.await {
            let message = format!("error killing pod: {}", error_chain(&e));
            let reason = "FailedKillPod";
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, &message);
            return Err(SyncError::new(message));
        }
        line.tell_loop(CallStep::Killed).await;
        // Read directly, not from the cache: exit codes are caught here, for the instances may be gone later.
        let after = self.runtime.pod_status(uid).await;
        let mut after = after.map_err(|e| SyncError::new(e.to_string()))?;
        if let Some(running) = after
            .containers
            .iter()
            .find(|c| c.state == ContainerState::Running)
        {
            return Err(SyncError::new(format!(
                "container {} still runs after the kill: runtime violation",
                running.name
            )));
        }
        // A stopped sandbox no longer reports its IPs.
        if after.ips.is_empty() {
            after.ips.clone_from(&plan.runtime.ips);
        }
        crash::point("pod.stopped");
        let stopped = CallStep::Stopped {
            pod: Rc::clone(pod),
            runtime: Rc::new(after),
        };
        line.tell_loop(stopped).await;
        line.tell_loop(CallStep::Changed).await;
        Ok(())
    }

    /// Ends a pod that only the runtime knows.
    pub(in crate::agent) async fn sync_terminating_runtime_pod(
        &self,
        plan: &CallPlan,
    ) -> CallOutcome {
        let stopped = self.stop_runtime_pod(plan, RUNTIME_ONLY_GRACE_S).await;
        self.call_outcome(plan, "terminating (known to the runtime only)", stopped)
    }

    async fn stop_runtime_pod(&self, plan: &CallPlan, grace_s: i64) -> Result<(), SyncError> {
        let runtime = self.runtime.pod_status(&plan.uid).await;
        let runtime = runtime.map_err(|e| SyncError::new(e.to_string()))?;
        let killed = self.killer.kill_runtime_pod(&runtime, grace_s).await;
        killed?;
        plan.line.tell_loop(CallStep::Changed).await;
        Ok(())
    }

    /// Removes volumes and cgroup of a pod whose containers have all ended, and finishes its status.
    pub(in crate::agent) async fn sync_terminated_pod(&self, plan: &CallPlan) -> CallOutcome {
        let cleaned = self.clean_up_pod(plan).await;
        self.call_outcome(plan, "terminated", cleaned)
    }

    async fn clean_up_pod(&self, plan: &CallPlan) -> Result<(), SyncError> {
        let uid = &plan.uid;
        let (pod, unread) = match self.store.load_pod(&self.disk, uid).await {
            Ok(pod) => (Some(pod), None),
            Err(e) => (None, Some(e).filter(PodStoreError::may_succeed_later)),
        };
        if let Some(pod) = &pod {
            let stopped = CallStep::Stopped {
                pod: Rc::clone(pod),
                runtime: Rc::clone(&plan.runtime),
            };
            plan.line.tell_loop(stopped).await;
        }
        if self.of_api.is_some() || pod.as_deref().is_none_or(may_use_shares) {
            let gone = cluster::unmount_nfs(&self.volumes, &self.disk, &self.complaints, uid);
            if !gone.await {
                return Err(SyncError::new("shares are still being unmounted"));
            }
        }
        let unmount = async { Some(self.volumes.tear_down_on_lane(&self.disk, uid).await) };
        let late = async {
            let latest = self.clock.now() + UNMOUNT_TIMEOUT;
            self.clock.sleep_until(latest).await;
            None
        };
        match unmount.or(late).await {
            Some(Ok(())) => {}
            Some(Err(e)) => return Err(SyncError::new(error_chain(&e))),
            None => return Err(SyncError::new("volumes are still being unmounted")),
        }
        crash::point("pod.volumes-down");
        if let Some(objects) = &self.of_api {
            objects.forget_pod(uid).await;
        }
        let removed = self.cgroups.remove_pod_cgroup(uid).await;
        removed.map_err(|e| SyncError::new(error_chain(&e)))?;
        crash::point("pod.cgroup-removed");
        if let Some(e) = unread {
            // Without its last status the pod would never go from the API (DEL-03).
            return Err(SyncError::new(error_chain(&e)));
        }
        plan.line.tell_loop(CallStep::CleanedUp(pod)).await;
        Ok(())
    }
}

/// Returns true if the pod mounts network shares, or paths of the host that may lie on one.
fn may_use_shares(pod: &Pod) -> bool {
    let mut volumes = pod.spec.volumes.iter();
    volumes.any(|volume| volume.nfs.is_some() || volume.host_path.is_some())
}
