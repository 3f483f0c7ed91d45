//! Lifecycle hooks. Rows HOOK-01 to HOOK-05.

use core::time::Duration;

use smol::future::FutureExt as _;

use super::{ctx::Ctx, probes, recorder::Severity};
use crate::{
    api::{
        Container, ContainerId, Mono, Pod,
        cri::{ContainerState, PodRuntimeStatus},
        pod::{HttpGetAction, LifecycleHandler},
    },
    logic::pod_table::Handle,
    probe::http::Hooked,
    runtime::RuntimeError,
};

/// Bytes kept of what a hook's command writes; it is only logged.
const MAX_OUTPUT_BYTES: usize = 1024;

/// When a hook is no longer waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// At this instant: the grace of its container is used up.
    Time(Mono),
    /// When the pod's running call is told to end early.
    Cancelled(Handle),
}

/// How a hook did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HookError {
    /// It failed. The text may hold secrets.
    Failed(String),
    /// It was not waited for any longer.
    NotWaitedFor,
}

/// Runs a hook to its end, at most until `until`. A command that is not waited for any longer is killed.
pub(super) async fn run(
    ctx: &Ctx,
    pod: &Pod,
    status: &PodRuntimeStatus,
    container: &Container,
    handler: &LifecycleHandler,
    until: Until,
) -> Result<(), HookError> {
    let late = async {
        match until {
            Until::Time(deadline) => ctx.clock.until(deadline).await,
            Until::Cancelled(handle) => {
                ctx.pods.cancelled(handle).await;
            }
        }
        Err(HookError::NotWaitedFor)
    };
    if let Some(exec) = &handler.exec {
        let running = status
            .instances(&container.name)
            .find(|c| c.state == ContainerState::Running);
        let id = running
            .map(|c| c.id.clone())
            .ok_or_else(|| HookError::Failed("the container does not run".into()))?;
        match until {
            // The command has its own time-out, so that its end is waited for too.
            Until::Time(deadline) => {
                let left = deadline - ctx.clock.now();
                command(ctx, &id, &exec.command, Some(left)).await
            }
            Until::Cancelled(_) => command(ctx, &id, &exec.command, None).or(late).await,
        }
    } else if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        let done = async {
            ctx.clock
                .until(ctx.clock.now() + Duration::from_secs(seconds))
                .await;
            Ok(())
        };
        done.or(late).await
    } else if let Some(get) = &handler.http_get {
        // As a command it has no time-out of its own.
        let get = async {
            let answer = http_get(ctx, pod, status, container, get).await;
            answer.map_err(HookError::Failed)
        };
        get.or(late).await
    } else {
        Err(HookError::Failed(
            "invalid handler: none of exec, httpGet, sleep".into(),
        ))
    }
}

async fn command(
    ctx: &Ctx,
    id: &ContainerId,
    words: &[String],
    timeout: Option<Duration>,
) -> Result<(), HookError> {
    match ctx
        .runtime
        .exec_sync(id, words, timeout, MAX_OUTPUT_BYTES)
        .await
    {
        Ok(output) if output.exit_code == 0 => Ok(()),
        Ok(output) => Err(HookError::Failed(format!(
            "command ended with {}: {}{}",
            output.exit_code,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))),
        Err(RuntimeError::Timeout { .. }) if timeout.is_some() => Err(HookError::NotWaitedFor),
        Err(e) => Err(HookError::Failed(e.to_string())),
    }
}

/// Any HTTP answer is success, whatever its status code (HOOK-05).
async fn http_get(
    ctx: &Ctx,
    pod: &Pod,
    status: &PodRuntimeStatus,
    container: &Container,
    get: &HttpGetAction,
) -> Result<(), String> {
    let get = probes::http_get(container, get)?;
    let ip = status.ips.first().copied().or_else(|| {
        // A pod in the host's network has no address at the runtime.
        let ip = |status: &crate::api::PodStatus| status.pod_ip.parse().ok();
        ctx.pods.with_status(&pod.metadata.uid, ip)?
    });
    if let Hooked::InPlainText(host) = ctx.wire.hook(&get, ip).await? {
        let message = format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        );
        ctx.pod_event(pod, Severity::Warning, "LifecycleHTTPFallback", &message);
    }
    Ok(())
}
