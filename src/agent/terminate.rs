//! The end of a pod: SyncTerminatingPod, SyncTerminatingRuntimePod, SyncTerminatedPod. Rows SYNC-19 to SYNC-33,
//! KILL-07, KILL-14.

use core::time::Duration;

use smol::future::FutureExt as _;

use super::{
    cluster,
    ctx::Ctx,
    kill,
    recorder::Severity,
    status,
    sync::{SyncError, chain},
};
use crate::{
    api::{Pod, PodUid, cri::ContainerState},
    logic::{pod_table::Handle, pod_worker::Outcome, work_queue::Retry},
    sys::crash,
};

/// Volumes of a terminated pod may take so long to go (SYNC-30); then the step fails and is tried again.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(123);

fn outcome(ctx: &Ctx, uid: &PodUid, step: &str, result: Result<(), SyncError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(e) => {
            ctx.complain(&format!("uid={uid} {step}: {}", e.message));
            Outcome::Failed(e.retry)
        }
    }
}

/// Stops everything of the pod and stores its final status.
pub(super) async fn terminating(
    ctx: &Ctx,
    handle: Handle,
    uid: &PodUid,
    grace_s: Option<u32>,
) -> Outcome {
    let result = match ctx.pod(uid) {
        Ok(pod) => stop_pod(ctx, handle, &pod, grace_s).await,
        Err(e) => {
            // Its record is gone or damaged: the runtime's own word must do to end it.
            ctx.complain(&format!("uid={uid} {}", chain(&e)));
            stop_runtime_pod(ctx, uid).await
        }
    };
    outcome(ctx, uid, "terminating", result)
}

async fn stop_pod(
    ctx: &Ctx,
    handle: Handle,
    pod: &Pod,
    grace_s: Option<u32>,
) -> Result<(), SyncError> {
    let uid = &pod.metadata.uid;
    let runtime = ctx.view.status(uid);
    status::store(
        ctx,
        pod,
        status::generate_stopping(ctx, pod, &runtime, handle),
    );
    ctx.probes.stopping(uid);
    if let Err(e) = kill::kill_pod(ctx, pod, &runtime, grace_s.map(i64::from)).await {
        let message = format!("error killing pod: {e}");
        ctx.pod_event(pod, Severity::Warning, "FailedKillPod", &message);
        return Err(SyncError::new(message));
    }
    ctx.probes.remove(uid);
    // Read directly, not from the cache: exit codes are caught here, for the instances may be gone later.
    let mut after = ctx
        .runtime
        .pod_status(uid)
        .await
        .map_err(|e| SyncError::new(e.to_string()))?;
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
        after.ips.clone_from(&runtime.ips);
    }
    crash::point("pod.stopped");
    status::store(ctx, pod, status::generate_final(ctx, pod, &after, handle));
    ctx.view.request_relist();
    Ok(())
}

/// Ends a pod that only the runtime knows.
pub(super) async fn terminating_runtime(ctx: &Ctx, uid: &PodUid) -> Outcome {
    outcome(
        ctx,
        uid,
        "terminating (known to the runtime only)",
        stop_runtime_pod(ctx, uid).await,
    )
}

async fn stop_runtime_pod(ctx: &Ctx, uid: &PodUid) -> Result<(), SyncError> {
    let runtime = ctx
        .runtime
        .pod_status(uid)
        .await
        .map_err(|e| SyncError::new(e.to_string()))?;
    kill::kill_runtime_pod(ctx, &runtime)
        .await
        .map_err(SyncError::new)?;
    ctx.view.request_relist();
    Ok(())
}

/// Nothing runs any more: volumes and cgroup go, and the status is finished.
pub(super) async fn terminated(ctx: &Ctx, handle: Handle, uid: &PodUid) -> Outcome {
    outcome(ctx, uid, "terminated", clean_up(ctx, handle, uid).await)
}

async fn clean_up(ctx: &Ctx, handle: Handle, uid: &PodUid) -> Result<(), SyncError> {
    let pod = ctx.pod(uid);
    if let Ok(pod) = &pod {
        let runtime = ctx.view.status(uid);
        status::store(ctx, pod, status::generate_final(ctx, pod, &runtime, handle));
    }
    if ctx.cluster.is_some() || pod.as_ref().is_ok_and(uses_shares) {
        cluster::unmount_nfs(&ctx.volumes, &ctx.disk, &ctx.complaints, uid).await;
    }
    let volumes = ctx.volumes.clone();
    let gone = uid.clone();
    let unmount = async { Some(ctx.disk.run(move || volumes.tear_down(&gone)).await) };
    let late = async {
        ctx.clock.until(ctx.clock.now() + UNMOUNT_TIMEOUT).await;
        None
    };
    match unmount.or(late).await {
        Some(Ok(())) => {}
        Some(Err(e)) => return Err(SyncError::new(chain(&e))),
        None => return Err(SyncError::new("volumes are still being unmounted")),
    }
    crash::point("pod.volumes-down");
    if let Some(cluster) = &ctx.cluster {
        cluster.objects.forget(uid).await;
    }
    super::cgroups::remove(ctx, uid)
        .await
        .map_err(|e| SyncError {
            retry: Retry::Error,
            message: e,
        })?;
    crash::point("pod.cgroup-removed");
    if let Ok(pod) = &pod {
        status::finish(ctx, pod);
    }
    Ok(())
}

/// Whether the pod mounts shares of the network.
fn uses_shares(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| volume.nfs.is_some())
}
