//! Lifecycle hooks. Rows HOOK-01 to HOOK-05.

use alloc::rc::Rc;
use core::time::Duration;

use smol::future::FutureExt as _;

use super::cancel::CallCancel;
use crate::{
    agent::{
        clock::Clock,
        probes::{self, ProbeNetwork},
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        Container, ContainerId, MonoTime, Pod,
        cri::{ContainerState, PodRuntimeStatus},
        pod::{HttpGetAction, LifecycleHandler},
    },
    logic::node::own_address,
    probe::http::HookOutcome,
    runtime::{RuntimeError, RuntimeService},
};

/// Bytes kept of what a hook's command writes; it is only logged.
const MAX_OUTPUT_BYTES: usize = 1024;

/// End of the wait for a hook.
#[derive(Clone, Copy)]
pub(in crate::agent) enum HookWaitEnd<'a> {
    /// At this instant: the grace of its container is used up.
    Time(MonoTime),
    /// Ends when the pod's running call is told to end early.
    Cancelled(&'a CallCancel),
}

/// Reason why a hook did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum HookError {
    /// The hook failed. The text may hold secrets.
    Failed(String),
    /// The wait for the hook ended first.
    NotWaitedFor,
}

/// Runs hooks. Nothing is kept between two of them.
#[derive(Clone)]
pub(in crate::agent) struct HookRunner {
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) wire: Rc<dyn ProbeNetwork>,
}

impl HookRunner {
    /// Runs a hook to its end, at most until `until`. A command that is not waited for any longer is killed. `status` says
    /// where the pod is: its addresses, of a pod in the host's network those of the host.
    pub(in crate::agent) async fn run_hook(
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        container: &Container,
        handler: &LifecycleHandler,
        until: HookWaitEnd<'_>,
    ) -> Result<(), HookError> {
        let late = async {
            match until {
                HookWaitEnd::Time(deadline) => self.clock.sleep_until(deadline).await,
                HookWaitEnd::Cancelled(cancel) => cancel.wait_for_cancel().await,
            }
            Err(HookError::NotWaitedFor)
        };
        if let Some(exec) = &handler.exec {
            let running = status
                .container_instances(&container.name)
                .find(|c| c.state == ContainerState::Running);
            let id = running
                .map(|c| c.id.clone())
                .ok_or_else(|| HookError::Failed("the container does not run".into()))?;
            match until {
                // The command has its own time-out, so that its end is waited for too.
                HookWaitEnd::Time(deadline) => {
                    let left = deadline - self.clock.now();
                    self.run_hook_command(&id, &exec.command, Some(left)).await
                }
                HookWaitEnd::Cancelled(_) => {
                    self.run_hook_command(&id, &exec.command, None)
                        .or(late)
                        .await
                }
            }
        } else if let Some(sleep) = &handler.sleep {
            let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
            let done = async {
                self.clock
                    .sleep_until(self.clock.now() + Duration::from_secs(seconds))
                    .await;
                Ok(())
            };
            done.or(late).await
        } else if let Some(get) = &handler.http_get {
            // As a command it has no time-out of its own.
            self.http_get(pod, status, container, get).or(late).await
        } else {
            Err(HookError::Failed(
                "invalid handler: none of exec, httpGet, sleep".into(),
            ))
        }
    }

    async fn run_hook_command(
        &self,
        id: &ContainerId,
        words: &[String],
        timeout: Option<Duration>,
    ) -> Result<(), HookError> {
        let done = self.runtime.exec_sync(id, words, timeout, MAX_OUTPUT_BYTES);
        match done.await {
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
        &self,
        pod: &Pod,
        status: &PodRuntimeStatus,
        container: &Container,
        get: &HttpGetAction,
    ) -> Result<(), HookError> {
        let get =
            probes::parse_http_get(container, get).map_err(|e| HookError::Failed(e.to_string()))?;
        let ip = match pod.spec.host_network {
            true => Some(own_address(&status.ips)),
            false => status.ips.first().copied(),
        };
        let hooked = self.wire.call_hook(&get, ip).await;
        let hooked = hooked.map_err(|e| HookError::Failed(e.to_string()))?;
        if let HookOutcome::InPlainText(host) = hooked {
            let message = format!(
                "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
            );
            let reason = "LifecycleHTTPFallback";
            self.recorder
                .record_pod_event(pod, EventSeverity::Warning, reason, &message);
        }
        Ok(())
    }
}
