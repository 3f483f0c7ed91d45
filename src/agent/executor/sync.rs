//! SyncPod: brings one pod closer to its spec. A plain sequence of awaited steps; the decisions are pure functions of
//! `logic`. Rows SYNC-01 to SYNC-18, ACT-01 to ACT-07.
//!
//! The future is never dropped while its pod exists. It looks at the pod's cancellation flag between steps.

use alloc::rc::Rc;
use core::{net::IpAddr, pin::Pin};

use smol::future::FutureExt as _;

use super::{
    cgroups::{Ensured, PodCgroups},
    errors::SyncError,
    kill::Killer,
    start::{self, Pass, Starter},
    steps::{Plan, Problem, Started, Step},
    volumes::{Mounted, Mounter},
};
use crate::{
    agent::{
        complaints::Complaints,
        node_resources::GivenLate,
        outcome,
        pod_store::PodStore,
        recorder::{Recorder, Severity},
    },
    api::{
        Container, Pod, PodUid,
        cri::{PodRuntimeStatus, SandboxStatus},
        pod::RestartPolicy,
    },
    error::chain,
    logic::{
        actions::PodActions,
        extended_resources::demands,
        page_size::misfit,
        pod_kind::{CLOCK_UNTRUSTED, WAITS_FOR_CLOCK},
        pod_worker::Outcome,
        status::{DEVICE_NOT_READY, PodFailure},
        work_queue::Retry,
    },
    runtime::{Logs, RuntimeError, RuntimeService},
    sys::{crash, lane::Lane},
};

/// A place outside the runtime where a pod runs: a provider.
pub(in crate::agent) trait Elsewhere {
    /// State of the pod there, and its failure, if it has failed.
    fn known(&self, uid: &PodUid) -> (Rc<PodRuntimeStatus>, Option<PodFailure>);
    /// Tells of the pod, if there is anything to tell: then of each container what came of it.
    fn tell<'a>(
        &'a self,
        plan: &'a Plan,
        pod: &'a Rc<Pod>,
        ips: &'a [IpAddr],
        mounted: &'a Mounted,
        starts: &'a mut Vec<Started>,
    ) -> Pin<Box<dyn Future<Output = Result<(), SyncError>> + 'a>>;
}

/// Syncs pods. Nothing is kept between two syncs.
pub(in crate::agent) struct Syncer {
    pub(in crate::agent) store: PodStore,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) recorder: Rc<Recorder>,
    pub(in crate::agent) complaints: Rc<Complaints>,
    pub(in crate::agent) cgroups: PodCgroups,
    pub(in crate::agent) mounter: Mounter,
    pub(in crate::agent) killer: Killer,
    pub(in crate::agent) starter: Starter,
    /// Bytes of a page of memory.
    pub(in crate::agent) page_bytes: u64,
}

impl Syncer {
    /// Runs one sync of one pod.
    pub(in crate::agent) async fn run(&self, plan: &Plan) -> Outcome {
        let uid = &plan.uid;
        // A sync is of the incarnation that is wanted now.
        let pod = match self.store.load_next(&self.disk, uid).await {
            Ok(pod) => pod,
            Err(e) => {
                // An unreadable record harms nobody else, and what runs goes on running.
                self.complaints
                    .complain(&format!("uid={uid} {}", chain(&e)));
                return Outcome::Failed(Retry::Error);
            }
        };
        let meta = &pod.metadata;
        match self.sync_pod(plan, &pod, None).await {
            Ok(outcome) => outcome,
            Err(e) if plan.cancel.is_cancelled() => {
                log::debug!(
                    "pod={}/{} uid={uid} sync cancelled: {}",
                    meta.namespace,
                    meta.name,
                    e.message
                );
                Outcome::Canceled
            }
            Err(e) => {
                log::debug!(
                    "pod={}/{} uid={uid} sync: {}",
                    meta.namespace,
                    meta.name,
                    e.message
                );
                Outcome::Failed(e.retry)
            }
        }
    }

    /// Runs one sync of a pod that was read, at the runtime or elsewhere.
    pub(in crate::agent) async fn sync_pod(
        &self,
        plan: &Plan,
        pod: &Rc<Pod>,
        elsewhere: Option<&dyn Elsewhere>,
    ) -> Result<Outcome, SyncError> {
        let (known, failure) = match elsewhere {
            None => (Rc::clone(&plan.runtime), None),
            Some(place) => place.known(&plan.uid),
        };
        let begun = plan.line.ask(|answer| Step::Begun {
            pod: Rc::clone(pod),
            runtime: known,
            failure,
            answer,
        });
        let begun = begun.await;
        for container in &plan.runtime.containers {
            if let Some(why) = misfit(self.page_bytes, container) {
                let recorder = &self.recorder;
                recorder.container(pod, &container.name, Severity::Warning, "Failed", &why);
            }
        }
        if let Some(outcome) = begun.outcome {
            self.keep_outcome(plan, outcome).await;
        }
        if begun.terminal {
            return Ok(Outcome::Terminal);
        }
        match begun.problem {
            None => {}
            Some(Problem::Runtime(_) | Problem::Network(_)) if elsewhere.is_some() => {}
            Some(Problem::Runtime(problem)) => {
                // What runs goes on, and is shown; the node's condition says why nothing else does.
                return Err(SyncError::new(format!("runtime is not ready: {problem}")));
            }
            Some(Problem::Clock) => {
                self.warn(pod, CLOCK_UNTRUSTED, WAITS_FOR_CLOCK);
                return Err(SyncError::new(WAITS_FOR_CLOCK));
            }
            Some(Problem::Name(other)) => {
                return Err(SyncError::new(format!("pod {other} has its name and ends")));
            }
            Some(Problem::Network(problem)) => {
                let message = format!("network is not ready: {problem}");
                self.warn(pod, "NetworkNotReady", &message);
                return Err(SyncError {
                    retry: Retry::NetworkNotReady,
                    message,
                });
            }
        }
        let mut runtime = PodRuntimeStatus::clone(&plan.runtime);
        // Host-network pods have no IPs at the runtime; what runs later needs them.
        runtime.ips = begun.ips;
        if elsewhere.is_none() {
            self.ensure_cgroup(plan, pod, &runtime).await?;
        }
        crash::point("pod.cgroup");
        self.make_pod_dirs(pod).await?;
        crash::point("pod.directories");
        let mounted = self.mounter.set_up(pod, plan).await?;
        crash::point("pod.volumes");
        if plan.cancel.is_cancelled() {
            return Ok(Outcome::Canceled);
        }
        if has_probes(pod) {
            plan.line.tell(Step::Mounted(Rc::clone(pod))).await;
        }
        // What runs has its volumes and probes, also while something else of the pod waits for a device.
        let is_start = begun.actions.starts_anything();
        self.keep_resources(plan, pod, is_start).await?;
        if plan.cancel.is_cancelled() {
            return Ok(Outcome::Canceled);
        }
        let mut starts = Vec::new();
        let result = if let Some(place) = elsewhere {
            let told = place.tell(plan, pod, &runtime.ips, &mounted, &mut starts);
            told.await
        } else if begun.actions.is_empty() {
            return Ok(Outcome::Done);
        } else {
            let acted = self.act(plan, pod, runtime, &mounted, &begun.actions, &mut starts);
            acted.await
        };
        if elsewhere.is_some() && starts.is_empty() {
            return result.map(|()| Outcome::Done);
        }
        let acted = Step::Acted {
            pod: Rc::clone(pod),
            starts,
            failed: result.is_err().then(|| Rc::clone(&plan.runtime)),
            again: result.is_ok() && begun.actions.restart_all,
        };
        plan.line.tell(acted).await;
        result.map(|()| Outcome::Done)
    }

    fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        self.recorder.pod(pod, Severity::Warning, reason, message);
    }

    /// Keeps how the pod ended, that it began, or what of it has ended.
    pub(in crate::agent) async fn keep_outcome(&self, plan: &Plan, kept: outcome::Outcome) {
        let (store, uid) = (self.store.clone(), plan.uid.clone());
        let keep = move || outcome::keep(&store, &uid, kept);
        let waits = self.disk.run(keep).await.unwrap_or_else(|e| {
            self.complaints
                .complain(&format!("uid={} cannot keep the outcome: {e}", plan.uid));
            false
        });
        if !plan
            .line
            .ask(|answer| Step::OutcomeKept(waits, answer))
            .await
        {
            // Its manifest went meanwhile.
            let (store, uid) = (self.store.clone(), plan.uid.clone());
            self.disk.run(move || outcome::forget(&store, &uid)).await;
        }
    }

    /// Ensures the pod's cgroup (SYNC-06, ACT-06).
    async fn ensure_cgroup(
        &self,
        plan: &Plan,
        pod: &Pod,
        runtime: &PodRuntimeStatus,
    ) -> Result<(), SyncError> {
        if plan.cancel.is_to_end() {
            return Ok(());
        }
        let ensure = async |runs| {
            let made = self.cgroups.ensure(pod, plan.limited, runs, plan.asked);
            let made = made.await.map_err(|e| {
                let message = format!("unable to ensure pod container exists: {}", chain(&e));
                self.warn(pod, "FailedCreatePodContainer", &message);
                SyncError::new(message)
            });
            if made.is_err() && plan.limited {
                // What is there may be half made.
                plan.line.tell(Step::Limited(false)).await;
            }
            made
        };
        let mut ensured = ensure(runtime.has_running_container()).await?;
        if ensured == Ensured::MissingUnderContainers {
            let killed = self.killer.kill_pod(pod, runtime, None);
            killed.await?;
            if pod.spec.restart_policy == RestartPolicy::Never {
                return Ok(());
            }
            ensured = ensure(false).await?;
        }
        if ensured == Ensured::Made {
            plan.line.tell(Step::Limited(true)).await;
        }
        Ok(())
    }

    /// Makes the pod's directories (SYNC-08).
    pub(in crate::agent) async fn make_pod_dirs(&self, pod: &Pod) -> Result<(), SyncError> {
        let (store, uid) = (self.store.clone(), pod.metadata.uid.clone());
        let made = self.disk.run(move || store.make_dirs(&uid));
        made.await.map_err(|e| {
            let message = format!("error making pod data directories: {e}");
            self.warn(pod, "Failed", &message);
            SyncError::new(message)
        })
    }

    /// Records the resources that the pod holds, and what is given for them, before any of its containers starts
    /// (DEV-05, DEV-12).
    async fn keep_resources(
        &self,
        plan: &Plan,
        pod: &Rc<Pod>,
        starts: bool,
    ) -> Result<(), SyncError> {
        let Some(resources) = self.starter.generator.resources.as_ref() else {
            return Ok(());
        };
        let Some(held) = plan.held.as_deref() else {
            return match starts && !demands(pod).is_empty() {
                true => self.ask_for_resources(plan, pod).await,
                false => Ok(()),
            };
        };
        let settled = async { Some(resources.settle(&plan.uid, held).await) };
        let cancelled = async {
            plan.cancel.cancelled().await;
            None
        };
        // Who gives them may take its time.
        let settled = settled.or(cancelled).await;
        let Err(e) = settled.unwrap_or(Ok(())) else {
            return Ok(());
        };
        let message = e.to_string();
        self.warn(pod, DEVICE_NOT_READY, &message);
        plan.line.tell(Step::Unsettled(Rc::clone(pod))).await;
        Err(SyncError::new(message))
    }

    /// Asks the loop for resources of a pod that ran when it was admitted: it was given none, and what it held is not
    /// known (DEV-10).
    async fn ask_for_resources(&self, plan: &Plan, pod: &Rc<Pod>) -> Result<(), SyncError> {
        let asked = plan
            .line
            .ask(|answer| Step::HoldsNothing(Rc::clone(pod), answer));
        match asked.await {
            GivenLate::Nothing => Ok(()),
            GivenLate::Given => Err(SyncError::new("its next sync begins with its devices")),
            GivenLate::Waits(message) => {
                self.warn(pod, DEVICE_NOT_READY, &message);
                Err(SyncError::new(message))
            }
        }
    }

    /// Carries out the actions, in the order of ACT-03. What it starts is noted in `starts`.
    async fn act(
        &self,
        plan: &Plan,
        pod: &Rc<Pod>,
        mut runtime: PodRuntimeStatus,
        mounted: &Mounted,
        actions: &PodActions,
        starts: &mut Vec<Started>,
    ) -> Result<(), SyncError> {
        if actions.restart_all {
            let (waiting, granted) = start::may_restart_all(&self.starter, plan, pod).await;
            *starts = waiting;
            granted?;
        }
        if actions.kill_pod {
            if actions.create_sandbox && actions.sandbox_id.is_some() {
                self.recorder.pod(
                    pod,
                    Severity::Normal,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                );
            }
            if let Err(e) = self.killer.kill_pod(pod, &runtime, None).await {
                let message = format!("error killing pod: {}", chain(&e));
                self.warn(pod, "FailedKillPod", &message);
                return Err(SyncError::new(message));
            }
        } else {
            for target in &actions.to_kill {
                let killed = self.killer.kill_container(pod, &runtime, target);
                if let Err(e) = killed.await {
                    let message = format!("error killing container: {}", chain(&e));
                    return Err(SyncError::new(message));
                }
            }
        }
        // The next instance goes on behind what the last one wrote.
        let logs = match actions.restart_all {
            true => Logs::Stay,
            false => Logs::Go,
        };
        for id in &actions.to_remove {
            if let Err(e) = self.runtime.remove_container(id, logs).await {
                log::warn!(
                    "pod={}/{} cannot remove instance {id}: {e}",
                    pod.metadata.namespace,
                    pod.metadata.name
                );
            }
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
            plan.line.tell(Step::SandboxUp(Rc::clone(pod))).await;
        }
        let generator = &self.starter.generator;
        let handler = sandbox.runtime_handler.clone();
        let made = generator.sandbox_plan(plan, pod, sandbox.attempt, handler);
        let made = made.await.ok().map(|plan| plan.config);
        let pass = Pass {
            made,
            starter: &self.starter,
            plan,
            pod,
            runtime: &runtime,
            sandbox: &sandbox,
            mounted,
            volume_images: Default::default(),
        };
        let (tried, result) = start::start_all(&pass, actions).await;
        *starts = tried;
        result
    }

    async fn create_sandbox(
        &self,
        plan: &Plan,
        pod: &Pod,
        attempt: u32,
    ) -> Result<SandboxStatus, SandboxFailure> {
        if plan.cancel.is_to_end() {
            // What it replaces took its time to end.
            return Err(SandboxFailure::Terminating);
        }
        let generator = &self.starter.generator;
        let config = generator.sandbox_config(plan, pod, attempt).await;
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
            self.warn(pod, "FailedCreatePodSandBox", &message);
            SandboxFailure::Failed(SyncError::new(message))
        })
    }
}

enum SandboxFailure {
    /// The pod is to end: a failure does not matter any more.
    Terminating,
    Failed(SyncError),
}

/// Returns true if any of the pod's containers is probed.
fn has_probes(pod: &Pod) -> bool {
    let is_probed = |c: &Container| {
        c.liveness_probe.is_some() || c.readiness_probe.is_some() || c.startup_probe.is_some()
    };
    let spec = &pod.spec;
    spec.containers
        .iter()
        .chain(&spec.init_containers)
        .any(is_probed)
}
