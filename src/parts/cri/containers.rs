//! Containers, commands in them, and the URLs of their streams (CRI-40 to CRI-47, CRI-77, CRI-78, CRI-82, CRI-84).

use core::time::Duration;
use std::{fs, path::Path};

use super::{CriClient, answer::nonsense_answer, link::CallKind, request, unless_gone, wire};
use crate::{
    api::{
        ContainerId, SandboxId,
        cri::{
            ContainerConfig, ExecOutput, LABEL_CONTAINER_NAME, LinuxResources, SandboxConfig,
            SandboxState,
        },
    },
    runtime::{
        AttachOptions, ExecOptions, LogRetention, PortConnector, RuntimeError, SessionStart,
        StreamRoute, log_removal,
    },
    sys::file,
};

/// Extra time for a command's answer: a child that holds its output open delays it (CRI-77).
const EXEC_SLACK: Duration = Duration::from_secs(2);
/// Extra time for the answer to a checkpoint: the runtime writes its archive after it.
const CHECKPOINT_SLACK: Duration = Duration::from_secs(120);

fn runtime_failure(text: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed(text.into())
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Checks that all sources of mounts exist: for a missing one, runtimes make a directory (CRI-28).
fn check_sources(paths: &[String]) -> Result<(), RuntimeError> {
    for path in paths {
        if let Err(e) = fs::metadata(path) {
            return Err(runtime_failure(format!("mount source {path:?}: {e}")));
        }
    }
    Ok(())
}

impl CriClient {
    /// Makes a container; or takes the one that an earlier, broken call has made.
    pub(super) async fn make_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        made: Option<&SandboxConfig>,
    ) -> Result<ContainerId, RuntimeError> {
        // Runtimes would make it in a sandbox that is not ready (CRI-47).
        if self.read_sandbox_status(sandbox).await?.state != SandboxState::Ready {
            return Err(runtime_failure(format!("sandbox {sandbox} is not ready")));
        }
        if let Some(live) = config.live_devices.first() {
            let at = &live.container_path;
            return Err(RuntimeError::Invalid(format!(
                "devices in {at}: a CRI runtime cannot add or remove devices while a container runs"
            )));
        }
        let made =
            made.ok_or_else(|| runtime_failure("what its sandbox is made of is not known now"))?;
        let own = config.mounts.iter().filter(|mount| mount.image.is_none());
        let sources: Vec<String> = own.map(|mount| mount.host_path.clone()).collect();
        self.disk.run_job(move || check_sources(&sources)).await?;
        let mut request = wire::CreateContainerRequest {
            sandbox: sandbox.to_string(),
            config: Some(request::container_config(config, &self.settings)),
            sandbox_config: Some(request::sandbox_config(made)),
        };
        let mut answer = wire::TextMessage::default();
        let timeout = self.settings.request_timeout;
        let method = "CreateContainer";
        let asked = self.ask_within(CallKind::Make, method, &mut request, &mut answer, timeout);
        match asked.await {
            Ok(()) if answer.word.is_empty() => Err(nonsense_answer("a container without an id")),
            Ok(()) => Ok(answer.word.into()),
            Err(e @ RuntimeError::NotFound(_)) => Err(e),
            Err(e) => match self.made_container(sandbox, config).await {
                Some(id) => Ok(id),
                None => Err(e),
            },
        }
    }

    /// Finds the container of this name and attempt that was made and not started yet (CRI-42).
    async fn made_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
    ) -> Option<ContainerId> {
        let filter = wire::ContainerFilter {
            sandbox: sandbox.to_string(),
            ..wire::ContainerFilter::default()
        };
        let listed = self.ask_containers(Some(filter)).await.ok()?;
        let found = listed.into_iter().find(|container| {
            container.sandbox == **sandbox
                && container.state == wire::CONTAINER_CREATED
                && container.labels.get(LABEL_CONTAINER_NAME) == Some(&config.name)
                && container
                    .metadata
                    .as_ref()
                    .is_some_and(|metadata| metadata.attempt == config.attempt)
        })?;
        Some(found.id.into())
    }

    pub(super) async fn call_start_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let mut request = wire::TextMessage {
            word: id.to_string(),
        };
        self.ask_runtime(
            "StartContainer",
            &mut request,
            &mut wire::CriEmpty::default(),
        )
        .await
    }

    /// Stops a container, and reads its status afterwards: only that tells that it has ended.
    pub(super) async fn stop_and_read_container(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Result<(), RuntimeError> {
        let mut request = wire::StopContainerRequest {
            id: id.to_string(),
            timeout_s: seconds(grace),
        };
        let timeout = self.settings.request_timeout + grace;
        let answer = &mut wire::CriEmpty::default();
        let asked = self.ask_within(
            CallKind::Stop,
            "StopContainer",
            &mut request,
            answer,
            timeout,
        );
        unless_gone(asked.await)?;
        match self.ask_container_status(id).await {
            Ok(status) if status.state == wire::CONTAINER_RUNNING => Err(runtime_failure(
                "the runtime says that it is stopped, but it runs",
            )),
            Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Removes a container and, unless they stay, its logs. The logs are removed first: if that fails the container is
    /// kept, and tried again.
    pub(super) async fn remove_container_and_logs(
        &self,
        id: &ContainerId,
        logs: LogRetention,
    ) -> Result<(), RuntimeError> {
        let status = match self.ask_container_status(id).await {
            Err(RuntimeError::NotFound(_)) => return Ok(()),
            status => status?,
        };
        if status.state == wire::CONTAINER_RUNNING {
            self.stop_and_read_container(id, Duration::ZERO).await?;
        }
        let name = status.labels.get(LABEL_CONTAINER_NAME);
        let link_end = format!("{}-{id}.log", name.map_or("", String::as_str));
        let links = self.settings.container_log_links.clone();
        let log = status.log_path;
        let removed = self.disk.run_job(move || match log.is_empty() {
            true => Ok(()),
            false => log_removal::remove_instance_logs(logs, Path::new(&log), &links, &link_end),
        });
        let removed = removed.await;
        removed.map_err(|e| runtime_failure(format!("remove the logs: {e}")))?;
        let timeout = self.settings.request_timeout;
        self.ask_to_end(CallKind::Stop, "RemoveContainer", id, timeout)
            .await
    }

    pub(super) async fn call_reopen_log(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let mut request = wire::TextMessage {
            word: id.to_string(),
        };
        let answer = &mut wire::CriEmpty::default();
        self.ask_runtime("ReopenContainerLog", &mut request, answer)
            .await
    }

    pub(super) async fn call_update_resources(
        &self,
        id: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let mut request = wire::UpdateContainerResourcesRequest {
            id: id.to_string(),
            linux: Some(request::linux_resources(resources)),
        };
        let answer = &mut wire::CriEmpty::default();
        self.ask_runtime("UpdateContainerResources", &mut request, answer)
            .await
    }

    pub(super) async fn call_update_sandbox(
        &self,
        id: &SandboxId,
        resources: &LinuxResources,
        overhead: &LinuxResources,
    ) -> Result<(), RuntimeError> {
        let mut request = wire::UpdatePodSandboxResourcesRequest {
            id: id.to_string(),
            overhead: Some(request::linux_resources(overhead)),
            resources: Some(request::linux_resources(resources)),
        };
        let answer = &mut wire::CriEmpty::default();
        self.ask_runtime("UpdatePodSandboxResources", &mut request, answer)
            .await
    }

    pub(super) async fn run_command(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput, RuntimeError> {
        let mut request = wire::ExecSyncRequest {
            id: id.to_string(),
            command: command.to_vec(),
            // 0 is none.
            timeout_s: timeout.map_or(0, |timeout| seconds(timeout).max(1)),
        };
        let mut answer = wire::ExecSyncResponse::default();
        let asked = self.runtime.ask_once(
            CallKind::Call,
            "ExecSync",
            &mut request,
            &mut answer,
            timeout.map(|timeout| timeout + EXEC_SLACK),
        );
        let asked = asked.await;
        asked.map_err(|status| super::translate_failure("ExecSync", timeout, status))?;
        answer.stdout.truncate(limit);
        answer.stderr.truncate(limit);
        Ok(ExecOutput {
            exit_code: answer.exit_code,
            stdout: answer.stdout,
            stderr: answer.stderr,
        })
    }

    /// Asks for a checkpoint. The whole status is told: clients know its words (CKPT-01).
    pub(super) async fn call_checkpoint(
        &self,
        id: &ContainerId,
        location: &Path,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        if let Some(dir) = location.parent() {
            file::make_dirs(dir, 0o700).map_err(|e| runtime_failure(e.to_string()))?;
        }
        let mut request = wire::CheckpointContainerRequest {
            container_id: id.to_string(),
            location: location.display().to_string(),
            timeout_s: seconds(timeout),
        };
        let answer = &mut wire::CriEmpty::default();
        let asked = self.runtime.ask_once(
            CallKind::Call,
            "CheckpointContainer",
            &mut request,
            answer,
            Some(timeout + CHECKPOINT_SLACK),
        );
        asked
            .await
            .map_err(|status| runtime_failure(status.to_string()))
    }

    pub(super) async fn exec_url<'a>(
        &self,
        id: &ContainerId,
        options: &ExecOptions,
    ) -> Result<StreamRoute<SessionStart<'a>>, RuntimeError> {
        let mut request = wire::ExecRequest {
            id: id.to_string(),
            command: options.command.clone(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            // A terminal has one stream for both.
            stderr: options.stderr && !options.tty,
        };
        let mut answer = wire::TextMessage::default();
        self.ask_runtime("Exec", &mut request, &mut answer).await?;
        read_stream_url(answer).map(StreamRoute::Url)
    }

    pub(super) async fn attach_url<'a>(
        &self,
        id: &ContainerId,
        options: AttachOptions,
    ) -> Result<StreamRoute<SessionStart<'a>>, RuntimeError> {
        let mut request = wire::AttachRequest {
            id: id.to_string(),
            stdin: options.stdin,
            tty: options.tty,
            stdout: options.stdout,
            stderr: options.stderr && !options.tty,
        };
        let mut answer = wire::TextMessage::default();
        self.ask_runtime("Attach", &mut request, &mut answer)
            .await?;
        read_stream_url(answer).map(StreamRoute::Url)
    }

    pub(super) async fn port_forward_url<'a>(
        &self,
        id: &SandboxId,
        ports: &[u16],
    ) -> Result<StreamRoute<PortConnector<'a>>, RuntimeError> {
        let mut request = wire::PortForwardRequest {
            sandbox: id.to_string(),
            ports: ports.iter().copied().map(i32::from).collect(),
        };
        let mut answer = wire::TextMessage::default();
        self.ask_runtime("PortForward", &mut request, &mut answer)
            .await?;
        read_stream_url(answer).map(StreamRoute::Url)
    }
}

/// Reads the URL of streams, and adds the scheme that some runtimes leave out.
fn read_stream_url(answer: wire::TextMessage) -> Result<String, RuntimeError> {
    match answer.word {
        url if url.is_empty() => Err(nonsense_answer("no URL for streams")),
        url if url.contains("://") => Ok(url),
        url => Ok(format!("http://{url}")),
    }
}
