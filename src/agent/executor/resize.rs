//! Gives what runs of a pod the resources that it was allocated (RSZ-03, RSZ-22 to RSZ-24). The order is
//! `logic::resize`'s. The first error ends the pass; the next sync begins again, for each write may be repeated.

use alloc::rc::Rc;

use super::{
    cgroups::PodCgroups,
    errors::SyncError,
    steps::{CallPlan, CallStep, ResizeOrder, ResizeReport},
};
use crate::{
    agent::{allocation, complaints::Complaints, pod_store::PodStore},
    api::{
        ContainerId, Pod,
        cri::{ContainerState, PodRuntimeStatus, SandboxState, SandboxStatus},
        stats::StatsDetail,
    },
    cgroup::CgroupError,
    error::error_chain,
    logic::{
        actions::PodActions,
        cgroup::sandbox_resources,
        resize::{LoweredLimit, PodAllocation, PodResources, ResizeStep, StepFailure, plan_resize},
    },
    runtime::{RuntimeError, RuntimeService},
    sys::{crash, lane::Lane},
};

/// Resizes pods. Nothing is kept between two syncs.
pub(in crate::agent) struct PodResizer {
    pub(in crate::agent) store: PodStore,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) cgroups: PodCgroups,
    pub(in crate::agent) complaints: Rc<Complaints>,
}

impl PodResizer {
    /// Gives what runs and goes on its resources. Containers that `actions` start will have theirs from the start.
    pub(super) async fn resize_pod(
        &self,
        plan: &CallPlan,
        pod: &Rc<Pod>,
        runtime: &PodRuntimeStatus,
        actions: &PodActions,
        order: &ResizeOrder,
    ) {
        let mut allocation = order.allocation.clone();
        if allocation.is_actuated() || plan.cancel.is_to_end() {
            return;
        }
        let ends = |id: &ContainerId| {
            actions.kill_pod || actions.to_kill.iter().any(|kill| kill.id == *id)
        };
        let running: Vec<(String, ContainerId)> = runtime
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Running && !ends(&c.id))
            .map(|c| (c.name.clone(), c.id.clone()))
            .collect();
        let mut wrote_cgroup = false;
        let result = match order.may_step {
            true => Some(
                self.carry_out(pod, runtime, &running, &mut allocation, &mut wrote_cgroup)
                    .await,
            ),
            false => None,
        };
        if matches!(result, Some(Ok(()))) {
            allocation.note_all_done();
        } else {
            // Whatever starts next starts with what it was allocated. That is kept first: the next agent would restart it
            // for its new resources.
            let mut starting = allocation.container_names();
            starting.retain(|name| !running.iter().any(|(runs, _)| runs == name));
            allocation.note_starts(&starting);
        }
        let failure = result.and_then(Result::err).map(|e| StepFailure {
            message: e.to_string(),
            is_refusal: e.is_refusal(),
        });
        if allocation == order.allocation && failure.is_none() {
            return;
        }
        if !allocation.is_actuated() && (wrote_cgroup || allocation != order.allocation) {
            // The pod's cgroup may lack what starts now, or have what is taken back: the next sync writes it again.
            plan.line.tell_loop(CallStep::Limited(None)).await;
        }
        crash::point("resize.done");
        if let Err(e) = keep(&self.store, &self.disk, pod, &allocation).await {
            // The next agent does the same once more.
            let uid = &pod.metadata.uid;
            self.complaints
                .complain(&format!("uid={uid} cannot record its resources: {e}"));
        }
        let report = ResizeReport {
            pod: Rc::clone(pod),
            runtime: Rc::clone(&plan.runtime),
            allocation,
            begun_at: order.may_step.then_some(order.ordered_at),
            failure,
        };
        plan.line
            .tell_loop(CallStep::Resized(Box::new(report)))
            .await;
    }

    /// Takes the steps, and notes in `allocation` what each has brought in force. Sets `wrote_cgroup` once the pod's cgroup
    /// may have been written.
    async fn carry_out(
        &self,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
        running: &[(String, ContainerId)],
        allocation: &mut PodAllocation,
        wrote_cgroup: &mut bool,
    ) -> Result<(), ResizeError> {
        let names: Vec<String> = running.iter().map(|(name, _)| name.clone()).collect();
        let settings = self.cgroups.settings();
        let in_force = pods_in_force(pod, allocation);
        let mut plan = plan_resize(&in_force, pod, &names, settings);
        plan.lowered.retain(|limit| match limit.container {
            None => self.cgroups.has_pod_cgroups() && !running.is_empty(),
            Some(_) => true,
        });
        self.check_usage(pod, running, &plan.lowered).await?;
        let (resources, overhead) = sandbox_resources(pod, settings);
        allocation.pin_pod_limits();
        let before: Vec<_> = allocation.states_in_force().cloned().collect();
        for step in plan.steps {
            match step {
                ResizeStep::PodCgroup { values, amount } => {
                    *wrote_cgroup = true;
                    let written = self.cgroups.update_pod_limits(pod, values).await;
                    if let Some(amount) = &amount {
                        allocation.note_step(amount, written.is_ok());
                    }
                    if let Err(e) = written {
                        // A pod's limit that is the sum of its containers' is in no amount of its own.
                        allocation.add_doubts(before);
                        return Err(ResizeError::PodCgroup(e));
                    }
                    crash::point("resize.limited");
                    let ready = |s: &&SandboxStatus| s.state == SandboxState::Ready;
                    let Some(sandbox) = runtime.sandboxes.iter().find(ready) else {
                        continue;
                    };
                    let told = self.runtime.update_pod_sandbox_resources(
                        &sandbox.id,
                        &resources,
                        &overhead,
                    );
                    if let Err(e) = told.await {
                        let uid = &pod.metadata.uid;
                        log::debug!("uid={uid} the sandbox is not told of its resources: {e}");
                    }
                }
                ResizeStep::Container {
                    name,
                    resources,
                    amount,
                } => {
                    let Some((_, id)) = running.iter().find(|(runs, _)| *runs == name) else {
                        continue;
                    };
                    let updated = self
                        .runtime
                        .update_container_resources(id, &resources)
                        .await;
                    allocation.note_step(&amount, updated.is_ok());
                    if let Err(source) = updated {
                        return Err(ResizeError::Container { name, source });
                    }
                    crash::point("resize.updated");
                }
            }
        }
        Ok(())
    }

    /// Checks that no memory limit falls to what is in use, or below: the kernel would kill (RSZ-23, RSZ-24).
    async fn check_usage(
        &self,
        pod: &Pod,
        running: &[(String, ContainerId)],
        lowered: &[LoweredLimit],
    ) -> Result<(), ResizeError> {
        if lowered.is_empty() {
            return Ok(());
        }
        let all = self.runtime.list_pod_usage(StatsDetail::Basic).await;
        let all = all.map_err(ResizeError::NoUsage)?;
        let usage = all.into_iter().find(|usage| usage.uid == pod.metadata.uid);
        let mut refused = Vec::new();
        for limit in lowered {
            let memory = usage.as_ref().and_then(|usage| match &limit.container {
                None => usage.usage.memory,
                Some(name) => {
                    let (_, id) = running.iter().find(|(runs, _)| runs == name)?;
                    usage.containers.iter().find(|c| c.id == *id)?.usage.memory
                }
            });
            let what = match &limit.container {
                None => "pod".to_owned(),
                Some(name) => format!("container {name:?}"),
            };
            let bytes = limit.bytes;
            refused.push(match memory.map(|memory| memory.usage_bytes) {
                Some(used) if i64::try_from(used).is_ok_and(|used| used < bytes) => continue,
                Some(used) => format!(
                    "attempting to set {what} memory limit ({bytes}) below current usage ({used})"
                ),
                None => format!("the memory usage of the {what} is not known"),
            });
        }
        let text = match refused.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            some => format!("[{}]", some.join(", ")),
        };
        Err(ResizeError::InUse(text))
    }
}

/// Failure of a step; its text is that of the condition.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    /// The pod's cgroup.
    #[error("pod cgroup: {}", error_chain(.0))]
    PodCgroup(CgroupError),
    /// The runtime refuses.
    #[error("container {name:?}: {source}")]
    Container {
        /// Container name.
        name: String,
        /// The runtime's answer.
        source: RuntimeError,
    },
    /// The use of memory cannot be read.
    #[error("cannot decrease memory limits: {0}")]
    NoUsage(RuntimeError),
    /// So much memory is in use.
    #[error("cannot decrease memory limits: {0}")]
    InUse(String),
}

impl ResizeError {
    /// Returns true if the runtime has answered that it does not do this. Without an answer it may have done it.
    const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Container {
                source: RuntimeError::Invalid(_)
                    | RuntimeError::NotFound(_)
                    | RuntimeError::Failed(_),
                ..
            }
        )
    }
}

/// Keeps what the pod was allocated, durable, before anything is made of it. Returns the pod with these resources.
pub(super) async fn keep_allocated(
    store: &PodStore,
    disk: &Lane,
    pod: &Rc<Pod>,
    order: &ResizeOrder,
) -> Result<Rc<Pod>, SyncError> {
    let kept = keep(store, disk, pod, &order.allocation).await;
    kept.map_err(|e| SyncError::new(format!("cannot record its resources: {e}")))?;
    Ok(Rc::new(with_resources(pod, &order.allocation.allocated)))
}

async fn keep(
    store: &PodStore,
    disk: &Lane,
    pod: &Pod,
    allocation: &PodAllocation,
) -> std::io::Result<()> {
    let (store, uid) = (store.clone(), pod.metadata.uid.clone());
    let allocation = allocation.clone();
    let keep = move || allocation::keep_allocation(&store, &uid, &allocation);
    disk.run_job(keep).await
}

/// The pod with the resources of each state that may be in force.
pub(super) fn pods_in_force(pod: &Pod, allocation: &PodAllocation) -> Vec<Pod> {
    let states = allocation.states_in_force();
    states.map(|state| with_resources(pod, state)).collect()
}

fn with_resources(pod: &Pod, resources: &PodResources) -> Pod {
    let mut pod = pod.clone();
    resources.apply_to(&mut pod);
    pod
}
