//! SyncPod: brings one pod closer to its spec. A plain sequence of awaited steps; the decisions are pure functions of
//! `logic`. Rows SYNC-01 to SYNC-18, ACT-01 to ACT-07.
//!
//! The future is never dropped while its pod exists. It looks at the pod's cancellation flag between steps.

use alloc::rc::Rc;

use super::{
    cgroups::{PodCgroupState, PodCgroups},
    errors::SyncError,
    kill::PodKiller,
    prepare::PodPreparer,
    resize::{PodResizer, pods_in_force},
    start::{self, ContainerStarter, StartPass},
    steps::{CallPlan, CallStep, ContainerStartResult, StartProblem, SyncOrders},
    volumes::MountedVolumes,
};
use crate::{
    agent::{
        cpu_manager::NodeCpus,
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        ContainerId, Pod,
        cri::{PodRuntimeStatus, SandboxStatus},
        pod::RestartPolicy,
    },
    error::error_chain,
    logic::{page_size::page_size_misfit, pod_worker::CallOutcome, work_queue::RetryCause},
    runtime::{LogRetention, RuntimeError, RuntimeService},
    sys::crash,
};

/// Syncs pods. Nothing is kept between two syncs.
pub(in crate::agent) struct PodSyncer {
    pub(in crate::agent) preparer: Rc<PodPreparer>,
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) cgroups: PodCgroups,
    pub(in crate::agent) killer: PodKiller,
    pub(in crate::agent) starter: ContainerStarter,
    pub(in crate::agent) resizer: PodResizer,
    /// Processors of containers, with the policy `static`.
    pub(in crate::agent) cpus: Option<Rc<NodeCpus>>,
    /// Bytes of a page of memory.
    pub(in crate::agent) page_bytes: u64,
}

impl PodSyncer {
    /// Runs one sync of one pod.
    pub(in crate::agent) async fn run_sync(&self, plan: &CallPlan) -> CallOutcome {
        let uid = &plan.uid;
        let Some(pod) = self.preparer.load_pod(uid).await else {
            return CallOutcome::Failed(RetryCause::Error);
        };
        let meta = &pod.metadata;
        match self.sync_pod(plan, &pod).await {
            Ok(outcome) => outcome,
            Err(e) if plan.cancel.is_cancelled() => {
                log::debug!(
                    "pod={}/{} uid={uid} sync cancelled: {}",
                    meta.namespace,
                    meta.name,
                    e.message
                );
                CallOutcome::Canceled
            }
            Err(e) => {
                log::debug!(
                    "pod={}/{} uid={uid} sync: {}",
                    meta.namespace,
                    meta.name,
                    e.message
                );
                CallOutcome::Failed(e.retry)
            }
        }
    }

    async fn sync_pod(&self, plan: &CallPlan, pod: &Rc<Pod>) -> Result<CallOutcome, SyncError> {
        let known = Rc::clone(&plan.runtime);
        let mut begun = self.preparer.begin_sync(plan, pod, known, None).await;
        for container in &plan.runtime.containers {
            if let Some(why) = page_size_misfit(self.page_bytes, container) {
                let recorder = &self.recorder;
                recorder.record_container_event(
                    pod,
                    &container.name,
                    EventSeverity::Warning,
                    "Failed",
                    &why,
                );
            }
        }
        if begun.terminal {
            return Ok(CallOutcome::Terminal);
        }
        if let Some(cpus) = &self.cpus {
            let kept = cpus.keep_record(&self.resizer.disk).await;
            kept.map_err(|e| SyncError::new(format!("cannot record its processors: {e}")))?;
            let goes_on = |id: &ContainerId| {
                !begun.actions.kill_pod && !begun.actions.to_kill.iter().any(|kill| kill.id == *id)
            };
            let updated = cpus.update_running(pod, &*self.runtime, &plan.runtime, goes_on);
            updated.await;
        }
        match &begun.problem {
            None | Some(StartProblem::Name(_) | StartProblem::Clock) => {}
            Some(StartProblem::Runtime(problem)) => {
                // What runs goes on, and is shown; the node's condition says why nothing else does.
                return Err(SyncError::new(format!("runtime is not ready: {problem}")));
            }
            Some(StartProblem::Network(problem)) => {
                let message = format!("network is not ready: {problem}");
                self.record_warning(pod, "NetworkNotReady", &message);
                return Err(SyncError {
                    retry: RetryCause::NetworkNotReady,
                    message,
                });
            }
        }
        self.preparer.check_start(pod, begun.problem.as_ref())?;
        let mut runtime = PodRuntimeStatus::clone(&plan.runtime);
        // Host-network pods have no IPs at the runtime; what runs later needs them.
        runtime.ips = core::mem::take(&mut begun.ips);
        let resize = begun.resize.as_ref();
        let pod = &self.preparer.take_allocated(pod, resize).await?;
        let in_force = match resize.filter(|_| runtime.has_running_container()) {
            Some(order) => pods_in_force(pod, &order.allocation),
            None => Vec::new(),
        };
        self.ensure_cgroup(plan, pod, &in_force, &runtime).await?;
        crash::point("pod.cgroup");
        let is_start = begun.actions.starts_anything();
        let Some(mounted) = self.preparer.set_up_pod(plan, pod, is_start).await? else {
            return Ok(CallOutcome::Canceled);
        };
        if begun.actions.is_empty() {
            if let Some(order) = resize {
                let resizer = &self.resizer;
                resizer
                    .resize_pod(plan, pod, &runtime, &begun.actions, order)
                    .await;
            }
            return Ok(CallOutcome::Done);
        }
        let mut starts = Vec::new();
        let acted = self.carry_out_actions(plan, pod, runtime, &mounted, &begun, &mut starts);
        let result = acted.await;
        let acted = CallStep::Acted {
            pod: Rc::clone(pod),
            starts,
            failed: result.is_err().then(|| Rc::clone(&plan.runtime)),
            again: result.is_ok() && begun.actions.restart_all,
        };
        plan.line.tell_loop(acted).await;
        result.map(|()| CallOutcome::Done)
    }

    fn record_warning(&self, pod: &Pod, reason: &str, message: &str) {
        self.recorder
            .record_pod_event(pod, EventSeverity::Warning, reason, message);
    }

    /// Ensures the pod's cgroup (SYNC-06, ACT-06). `in_force`: the pod with resources that its containers may have.
    async fn ensure_cgroup(
        &self,
        plan: &CallPlan,
        pod: &Pod,
        in_force: &[Pod],
        runtime: &PodRuntimeStatus,
    ) -> Result<(), SyncError> {
        if plan.cancel.is_to_end() {
            return Ok(());
        }
        let ensure = async |runs| {
            let limits = plan.limits;
            let made = self
                .cgroups
                .ensure_pod_cgroup(pod, in_force, limits, runs, plan.asked);
            let made = made.await.map_err(|e| {
                let message = format!("unable to ensure pod container exists: {}", error_chain(&e));
                self.record_warning(pod, "FailedCreatePodContainer", &message);
                SyncError::new(message)
            });
            if made.is_err() && plan.limits.is_some() {
                // What is there may be half made.
                plan.line.tell_loop(CallStep::Limited(None)).await;
            }
            made
        };
        let mut ensured = ensure(runtime.has_running_container()).await?;
        if ensured == PodCgroupState::MissingUnderContainers {
            let killed = self.killer.kill_pod(pod, runtime, None);
            killed.await?;
            if pod.spec.restart_policy == RestartPolicy::Never {
                return Ok(());
            }
            ensured = ensure(false).await?;
        }
        if let PodCgroupState::Made(limits) = ensured {
            plan.line.tell_loop(CallStep::Limited(Some(limits))).await;
        }
        Ok(())
    }

    /// Carries out the actions, in the order of ACT-03. What it starts is noted in `starts`.
    async fn carry_out_actions(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        mut runtime: PodRuntimeStatus,
        mounted: &MountedVolumes,
        orders: &SyncOrders,
        starts: &mut Vec<ContainerStartResult>,
    ) -> Result<(), SyncError> {
        let actions = &orders.actions;
        if actions.restart_all {
            let (waiting, granted) = start::check_pod_restart(&self.starter, plan, pod).await;
            *starts = waiting;
            granted?;
        }
        if actions.kill_pod {
            if actions.create_sandbox && actions.sandbox_id.is_some() {
                self.recorder.record_pod_event(
                    pod,
                    EventSeverity::Normal,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                );
            }
            if let Err(e) = self.killer.kill_pod(pod, &runtime, None).await {
                let message = format!("error killing pod: {}", error_chain(&e));
                self.record_warning(pod, "FailedKillPod", &message);
                return Err(SyncError::new(message));
            }
        } else {
            for target in &actions.to_kill {
                let killed = self.killer.kill_container(pod, &runtime, target);
                if let Err(e) = killed.await {
                    let message = format!("error killing container: {}", error_chain(&e));
                    return Err(SyncError::new(message));
                }
            }
        }
        // The next instance goes on behind what the last one wrote.
        let logs = match actions.restart_all {
            true => LogRetention::Keep,
            false => LogRetention::Remove,
        };
        for id in &actions.to_remove {
            if let Err(e) = self.runtime.remove_container(id, logs).await {
                if actions.restart_all {
                    // Those that asked for the restart come last: as long as they are there, it is tried again.
                    let message = format!("error removing container: {e}");
                    return Err(SyncError::new(message));
                }
                log::warn!(
                    "pod={}/{} cannot remove instance {id}: {e}",
                    pod.metadata.namespace,
                    pod.metadata.name
                );
            }
        }
        if let Some(order) = &orders.resize {
            let resizer = &self.resizer;
            resizer
                .resize_pod(plan, pod, &runtime, actions, order)
                .await;
        }
        let sandbox = if actions.create_sandbox {
            match self.create_sandbox(plan, pod, actions.attempt).await {
                Ok(sandbox) => Some(sandbox),
                Err(SandboxFailure::Terminating) => return Ok(()),
                Err(SandboxFailure::Failed(e)) => return Err(e),
            }
        } else {
            runtime
                .sandboxes
                .iter()
                .find(|s| Some(&s.id) == actions.sandbox_id.as_ref())
                .cloned()
        };
        let Some(sandbox) = sandbox else {
            // Only a kill was asked for.
            return if actions.starts_anything() {
                Err(SyncError::new("pod sandbox is gone"))
            } else {
                Ok(())
            };
        };
        if actions.create_sandbox {
            if !pod.spec.host_network {
                runtime.ips.clone_from(&sandbox.ips);
            }
            plan.line
                .tell_loop(CallStep::SandboxUp(Rc::clone(pod)))
                .await;
        }
        let generator = &self.starter.generator;
        let handler = sandbox.runtime_handler.clone();
        let made = generator.plan_sandbox(plan, pod, sandbox.attempt, handler, Some(&sandbox));
        let made = made.await.ok().map(|plan| plan.config);
        let pass = StartPass {
            made,
            starter: &self.starter,
            plan,
            pod,
            runtime: &runtime,
            sandbox: &sandbox,
            mounted,
            volume_images: Default::default(),
        };
        let (tried, result) = start::start_containers(&pass, actions).await;
        *starts = tried;
        result
    }

    async fn create_sandbox(
        &self,
        plan: &CallPlan,
        pod: &Pod,
        attempt: u32,
    ) -> Result<SandboxStatus, SandboxFailure> {
        if plan.cancel.is_to_end() {
            // What it replaces took its time to end.
            return Err(SandboxFailure::Terminating);
        }
        let generator = &self.starter.generator;
        let config = generator.generate_sandbox_config(plan, pod, attempt).await;
        if plan.cancel.is_to_end() {
            return Err(SandboxFailure::Terminating);
        }
        let made = match config {
            Ok(config) => self.runtime.run_pod_sandbox(&config).await,
            Err(e) => Err(RuntimeError::Invalid(e.to_string())),
        };
        made.map_err(|e| {
            if plan.cancel.is_to_end() {
                return SandboxFailure::Terminating;
            }
            let message = format!("Failed to create pod sandbox: {e}");
            self.record_warning(pod, "FailedCreatePodSandBox", &message);
            SandboxFailure::Failed(SyncError::new(message))
        })
    }
}

enum SandboxFailure {
    /// The pod is to end: a failure does not matter any more.
    Terminating,
    Failed(SyncError),
}
