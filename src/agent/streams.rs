//! Targets of exec, attach and port forwarding, for the server.

use core::time::Duration;

use super::backend::LocalBackend;
use crate::api::cri::{ContainerState, ExecOutput, SandboxState};
use crate::api::{ContainerId, Pod, SandboxId};
use crate::runtime::{
    AttachOptions, ExecOptions, PortConnector, RuntimeCall, SessionStart, StreamRoute,
};
use crate::server::backend::{BackendReply, PodName, RunningContainer, StreamingBackend};
use crate::server::http::Refusal;
use crate::server::streaming::OTHER_UID;

impl LocalBackend {
    /// A pod by its name, and by its UID if it is told.
    async fn find_named_pod(&self, pod: PodName<'_>) -> Result<Pod, Refusal> {
        let found = self.find_pod(pod.namespace, pod.name).await?;
        let is_meant = pod.uid.is_none_or(|uid| found.metadata.uid.as_str() == uid);
        is_meant
            .then_some(found)
            .ok_or_else(|| Refusal::not_found(OTHER_UID))
    }
}

impl StreamingBackend for LocalBackend {
    // SRV-17
    fn running_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
    ) -> BackendReply<'a, RunningContainer> {
        Box::pin(async move {
            let pod = self.find_named_pod(pod).await?;
            let missing =
                |name: &str| Refusal::new(500, format!("container not found (\"{name}\")"));
            let name = match Self::resolve_container_name(&pod, container) {
                Ok(name) => name,
                Err(_) if !container.is_empty() => return Err(missing(container)),
                Err(refusal) => return Err(refusal),
            };
            let runtime = self.runtime_status(&pod).await?;
            let running = runtime
                .container_instances(&name)
                .find(|c| c.state == ContainerState::Running)
                .ok_or_else(|| missing(&name))?;
            let spec = pod.spec.all_containers().find(|c| c.name == name);
            Ok(RunningContainer {
                id: running.id.clone(),
                tty: spec.is_some_and(|c| c.tty),
                stdin_once: spec.is_some_and(|c| c.stdin_once),
            })
        })
    }

    fn ready_sandbox<'a>(&'a self, pod: PodName<'a>) -> BackendReply<'a, SandboxId> {
        Box::pin(async move {
            let found = self.find_named_pod(pod).await?;
            let runtime = self.runtime_status(&found).await?;
            let ready = runtime
                .sandboxes
                .iter()
                .find(|s| s.state == SandboxState::Ready);
            ready.map(|s| s.id.clone()).ok_or_else(|| {
                let text = format!("pod {}/{} does not run", pod.namespace, pod.name);
                Refusal::new(500, text)
            })
        })
    }

    fn open_exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        self.runtime.exec(id, options)
    }

    fn run_command<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        self.runtime.exec_sync(id, command, None, limit)
    }

    fn open_attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        self.runtime.attach(id, options)
    }

    fn open_port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        self.runtime.port_forward(id, ports)
    }

    fn idle_timeout(&self) -> Duration {
        self.settings.streaming_idle
    }

    fn session_limit_bytes(&self) -> Option<u64> {
        self.settings.link_policy.session_limit_bytes()
    }

    fn release_stream_memory(&self) {
        self.heap.note_heap_use();
    }
}
