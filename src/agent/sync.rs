//! SyncPod: brings one pod closer to its spec. A plain sequence of awaited steps; the decisions are pure functions of
//! `logic`. Rows SYNC-01 to SYNC-18, ACT-01 to ACT-07.
//!
//! The future is never dropped while its pod exists. It looks at the pod's cancellation flag between steps.

use super::{
    ctx::Ctx,
    kill, outcome,
    recorder::Severity,
    start::{self, Pass},
    status,
};
pub(super) use crate::error::chain;
use crate::{
    api::{
        Pod, PodUid,
        cri::{PodRuntimeStatus, SandboxStatus},
    },
    logic::{actions, pod_table::Handle, pod_worker::Outcome, work_queue::Retry},
    runtime::RuntimeError,
    sys::crash,
};

/// Why a sync failed: when to try again, and what to tell.
#[derive(Debug)]
pub(super) struct SyncError {
    pub(super) retry: Retry,
    pub(super) message: String,
}

impl SyncError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            retry: Retry::Error,
            message: message.into(),
        }
    }
}

/// One sync of one pod.
pub(super) async fn run(ctx: &Ctx, handle: Handle, uid: &PodUid) -> Outcome {
    let pod = match ctx.pod(uid) {
        Ok(pod) => pod,
        Err(e) => {
            // An unreadable record harms nobody else, and what runs goes on running.
            ctx.complain(&format!("uid={uid} {}", chain(&e)));
            return Outcome::Failed(Retry::Error);
        }
    };
    match sync_pod(ctx, handle, &pod).await {
        Ok(outcome) => outcome,
        Err(e) if cancelled(ctx, handle) => {
            log::debug!(
                "pod={}/{} uid={uid} sync cancelled: {}",
                pod.metadata.namespace,
                pod.metadata.name,
                e.message
            );
            Outcome::Canceled
        }
        Err(e) => {
            log::debug!(
                "pod={}/{} uid={uid} sync: {}",
                pod.metadata.namespace,
                pod.metadata.name,
                e.message
            );
            Outcome::Failed(e.retry)
        }
    }
}

fn cancelled(ctx: &Ctx, handle: Handle) -> bool {
    ctx.pods.is_cancelled(handle)
}

async fn sync_pod(ctx: &Ctx, handle: Handle, pod: &Pod) -> Result<Outcome, SyncError> {
    let uid = &pod.metadata.uid;
    let mut runtime = ctx.view.status(uid);
    let status = status::generate(ctx, pod, &runtime);
    let terminal = status.phase.is_terminal();
    // Host-network pods have no IPs at the runtime; what runs later needs them.
    runtime.ips = status
        .pod_ips
        .iter()
        .filter_map(|entry| entry.ip.parse().ok())
        .collect();
    // Stored before any side effect: waiting reasons are seen even if a later step blocks.
    status::store(ctx, pod, status.clone());
    outcome::keep(ctx, pod, &status).await;
    if terminal {
        return Ok(Outcome::Terminal);
    }
    status::watch_deadline(ctx, handle, pod);
    if let Some(problem) = ctx.view.start_problem() {
        // What runs goes on, and is shown; the node's condition says why nothing else does.
        return Err(SyncError::new(format!("runtime is not ready: {problem}")));
    }
    if let Some(problem) = ctx.view.network_problem()
        && !pod.spec.host_network
    {
        let message = format!("network is not ready: {problem}");
        ctx.pod_event(pod, Severity::Warning, "NetworkNotReady", &message);
        return Err(SyncError {
            retry: Retry::NetworkNotReady,
            message,
        });
    }
    ensure_cgroup(ctx, pod, &runtime).await?;
    crash::point("pod.cgroup");
    make_pod_dirs(ctx, pod).await?;
    crash::point("pod.directories");
    let mounted = super::volumes::set_up(ctx, pod).await?;
    crash::point("pod.volumes");
    if cancelled(ctx, handle) {
        return Ok(Outcome::Canceled);
    }
    ctx.probes.add(pod, ctx.clock.now());
    let acted = act(ctx, handle, pod, runtime, mounted).await;
    if acted.acted {
        ctx.view.request_relist();
    }
    if acted.result.is_err() {
        // A container that waits is shown to wait now, not only when its time has come.
        let runtime = ctx.view.status(uid);
        status::store(ctx, pod, status::generate(ctx, pod, &runtime));
    }
    acted.result.map(|()| Outcome::Done)
}

/// Ensures the pod's cgroup (SYNC-06, ACT-06).
async fn ensure_cgroup(ctx: &Ctx, pod: &Pod, runtime: &PodRuntimeStatus) -> Result<(), SyncError> {
    if !ctx.cfg.cgroup.per_qos || ctx.pods.is_to_end(&pod.metadata.uid) {
        return Ok(());
    }
    let path = super::cgroups::pod_path(ctx, pod);
    if !ctx.cgroups.exists(&path) && runtime.has_running_container() {
        // Its containers run outside of any limit: they must go before the cgroup comes back.
        kill::kill_pod(ctx, pod, runtime, None)
            .await
            .map_err(SyncError::new)?;
        if pod.spec.restart_policy == crate::api::pod::RestartPolicy::Never {
            return Ok(());
        }
    }
    super::cgroups::ensure(ctx, pod).map_err(|e| {
        let message = format!("unable to ensure pod container exists: {e}");
        ctx.pod_event(pod, Severity::Warning, "FailedCreatePodContainer", &message);
        SyncError::new(message)
    })
}

/// Makes the pod's directories (SYNC-08).
async fn make_pod_dirs(ctx: &Ctx, pod: &Pod) -> Result<(), SyncError> {
    let (store, uid) = (ctx.store.clone(), pod.metadata.uid.clone());
    let made = ctx.disk.run(move || store.make_dirs(&uid));
    made.await.map_err(|e| {
        let message = format!("error making pod data directories: {e}");
        ctx.pod_event(pod, Severity::Warning, "Failed", &message);
        SyncError::new(message)
    })
}

/// What the runtime part of a sync came to.
struct Acted {
    acted: bool,
    result: Result<(), SyncError>,
}

/// Carries out the actions, in the order of ACT-03.
async fn act(
    ctx: &Ctx,
    handle: Handle,
    pod: &Pod,
    mut runtime: PodRuntimeStatus,
    mounted: super::volumes::Mounted,
) -> Acted {
    let actions = ctx.probes.with(&pod.metadata.uid, |probes| {
        actions::compute_pod_actions(pod, &runtime, probes)
    });
    let acted = !actions.is_empty();
    let done = |result| Acted { acted, result };
    if !acted {
        return done(Ok(()));
    }
    if actions.kill_pod {
        if actions.create_sandbox && actions.sandbox_id.is_some() {
            ctx.pod_event(
                pod,
                Severity::Normal,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            );
        }
        if let Err(e) = kill::kill_pod(ctx, pod, &runtime, None).await {
            let message = format!("error killing pod: {e}");
            ctx.pod_event(pod, Severity::Warning, "FailedKillPod", &message);
            return done(Err(SyncError::new(message)));
        }
    } else {
        for target in &actions.to_kill {
            if let Err(e) = kill::kill_container(ctx, pod, &runtime, target).await {
                return done(Err(SyncError::new(format!("error killing container: {e}"))));
            }
        }
    }
    for id in &actions.to_remove {
        if let Err(e) = ctx.runtime.remove_container(id).await {
            log::warn!(
                "pod={}/{} cannot remove instance {id}: {e}",
                pod.metadata.namespace,
                pod.metadata.name
            );
        }
    }
    let sandbox = if actions.create_sandbox {
        match create_sandbox(ctx, pod, actions.attempt).await {
            Ok(sandbox) => Some(sandbox),
            Err(SandboxFailure::Terminating) => return done(Ok(())),
            Err(SandboxFailure::Failed(e)) => return done(Err(e)),
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
        return done(if actions.starts_anything() {
            Err(SyncError::new("pod sandbox is gone"))
        } else {
            Ok(())
        });
    };
    if actions.create_sandbox {
        if !pod.spec.host_network {
            runtime.ips.clone_from(&sandbox.ips);
        }
        status::sandbox_is_ready(ctx, pod);
    }
    let pass = Pass {
        ctx,
        handle,
        pod,
        runtime: &runtime,
        sandbox: &sandbox,
        mounted: &mounted,
        volume_images: Default::default(),
    };
    done(start::start_all(&pass, &actions).await)
}

enum SandboxFailure {
    /// The pod is to end: a failure does not matter any more.
    Terminating,
    Failed(SyncError),
}

async fn create_sandbox(
    ctx: &Ctx,
    pod: &Pod,
    attempt: u32,
) -> Result<SandboxStatus, SandboxFailure> {
    let is_to_end = || ctx.pods.is_to_end(&pod.metadata.uid);
    if is_to_end() {
        // What it replaces took its time to end.
        return Err(SandboxFailure::Terminating);
    }
    let config = super::generation::sandbox_config(ctx, pod, attempt);
    let made = match config {
        Ok(config) => ctx.runtime.run_pod_sandbox(&config).await,
        Err(e) => Err(RuntimeError::Invalid(e)),
    };
    made.map_err(|e| {
        if is_to_end() {
            return SandboxFailure::Terminating;
        }
        let message = format!("Failed to create pod sandbox: {e}");
        ctx.pod_event(pod, Severity::Warning, "FailedCreatePodSandBox", &message);
        SandboxFailure::Failed(SyncError::new(message))
    })
}
