//! Sandboxes, and lists of pods (CRI-40 to CRI-59).

use alloc::collections::BTreeSet;
use std::{fs, io, path::Path};

use super::{
    CriClient,
    answer::{self, nonsense_answer},
    link::CallKind,
    request, wire,
};
use crate::{
    api::{
        PodUid, SandboxId,
        cri::{
            ANNOTATION_TERMINATION_PATH, ANNOTATION_TERMINATION_POLICY, ContainerState,
            ContainerStatus, LABEL_POD_UID, PodItem, PodRuntimeStatus, SandboxConfig, SandboxState,
            SandboxStatus,
        },
        order::{GatherExt as _, OrderExt as _},
    },
    runtime::{LogRetention, RuntimeError, termination},
};

/// `terminationMessagePolicy` that makes the log stand in for a message.
const FALLBACK: &str = "FallbackToLogsOnError";

/// Label selector for a pod's sandboxes and containers.
fn pod_label_selector(uid: &PodUid) -> wire::TextMap {
    let label = (LABEL_POD_UID.to_owned(), uid.to_string());
    core::iter::once(label).gather_items()
}

impl CriClient {
    /// Lists all pods. After that, sandboxes and containers may be made on this connection.
    pub(super) async fn list_all_pods(&self) -> Result<Vec<PodItem>, RuntimeError> {
        let number = self.runtime.connection_number();
        let sandboxes = self.ask_sandboxes(None).await?;
        let containers = self.ask_containers(None).await?;
        let pods = answer::group_pods(sandboxes, containers)?;
        // Both lists came from one connection.
        if number == self.runtime.connection_number() {
            self.runtime.record_listing(number);
        }
        Ok(pods)
    }

    async fn ask_sandboxes(
        &self,
        labels: Option<wire::TextMap>,
    ) -> Result<Vec<wire::PodSandbox>, RuntimeError> {
        let mut request = wire::ListPodSandboxRequest {
            filter: labels.map(|labels| wire::PodSandboxFilter {
                labels,
                ..wire::PodSandboxFilter::default()
            }),
        };
        let mut answer = wire::ListPodSandboxResponse::default();
        self.ask_runtime("ListPodSandbox", &mut request, &mut answer)
            .await?;
        Ok(answer.items)
    }

    pub(super) async fn ask_containers(
        &self,
        filter: Option<wire::ContainerFilter>,
    ) -> Result<Vec<wire::ContainerMessage>, RuntimeError> {
        let mut request = wire::ListContainersRequest { filter };
        let mut answer = wire::ListContainersResponse::default();
        self.ask_runtime("ListContainers", &mut request, &mut answer)
            .await?;
        Ok(answer.containers)
    }

    /// Reads the status of a pod. Containers and sandboxes that go meanwhile are left out.
    pub(super) async fn inspect_pod(&self, uid: &PodUid) -> Result<PodRuntimeStatus, RuntimeError> {
        let mut pod = PodRuntimeStatus {
            uid: uid.clone(),
            ..PodRuntimeStatus::default()
        };
        let mut seen = BTreeSet::new();
        for sandbox in self.ask_sandboxes(Some(pod_label_selector(uid))).await? {
            if sandbox.id.is_empty() || !seen.insert(sandbox.id.clone()) {
                continue;
            }
            match self.read_sandbox_status(&sandbox.id).await {
                Ok(status) if status.uid == *uid => pod.sandboxes.push(status),
                Ok(_) => return Err(nonsense_answer("a sandbox of another pod")),
                Err(RuntimeError::NotFound(_)) => {}
                Err(e) => return Err(e),
            }
        }
        let filter = wire::ContainerFilter {
            labels: pod_label_selector(uid),
            ..wire::ContainerFilter::default()
        };
        seen.clear();
        for container in self.ask_containers(Some(filter)).await? {
            if container.id.is_empty() || !seen.insert(container.id.clone()) {
                continue;
            }
            let sandbox = container.sandbox.into();
            match self
                .read_container_status(&container.id, sandbox, uid)
                .await
            {
                Ok(status) => pod.containers.push(status),
                Err(RuntimeError::NotFound(_)) => {}
                Err(e) => return Err(e),
            }
        }
        pod.sandboxes.stable_sort_by(|a, b| {
            let newest_first = (b.attempt, b.created_at).cmp(&(a.attempt, a.created_at));
            newest_first.then_with(|| a.id.cmp(&b.id))
        });
        pod.containers.stable_sort_by(|a, b| {
            let newest_first =
                (b.restart_count, b.created_at).cmp(&(a.restart_count, a.created_at));
            newest_first.then_with(|| a.id.cmp(&b.id))
        });
        if let Some(newest) = pod.sandboxes.first() {
            pod.name.clone_from(&newest.name);
            pod.namespace.clone_from(&newest.namespace);
            pod.ips.clone_from(&newest.ips);
        }
        Ok(pod)
    }

    /// Reads the status of a sandbox.
    pub(super) async fn read_sandbox_status(
        &self,
        id: &str,
    ) -> Result<SandboxStatus, RuntimeError> {
        let mut request = wire::TextMessage { word: id.into() };
        let mut answer = wire::PodSandboxStatusResponse::default();
        self.ask_runtime("PodSandboxStatus", &mut request, &mut answer)
            .await?;
        answer::read_sandbox_status(id, answer)
    }

    pub(super) async fn ask_container_status(
        &self,
        id: &str,
    ) -> Result<wire::ContainerStatusMessage, RuntimeError> {
        let mut request = wire::TextMessage { word: id.into() };
        let mut answer = wire::ContainerStatusResponse::default();
        self.ask_runtime("ContainerStatus", &mut request, &mut answer)
            .await?;
        let status = answer.status;
        status.ok_or_else(|| nonsense_answer("no status of a container"))
    }

    /// Reads the status of a container, with its last words.
    async fn read_container_status(
        &self,
        id: &str,
        sandbox: SandboxId,
        uid: &PodUid,
    ) -> Result<ContainerStatus, RuntimeError> {
        let raw = self.ask_container_status(id).await?;
        let mut status = answer::read_container_status(id, sandbox, &raw)?;
        let mut roots = answer::agent_roots(uid, &raw.mounts);
        roots.retain(|root| *root != self.settings.root_dir);
        if !roots.is_empty() && status.state == ContainerState::Running {
            let own = self.settings.root_dir.clone();
            let is_elsewhere = move || roots.iter().any(|root| !is_same_directory(root, &own));
            if self.disk.run_job(is_elsewhere).await {
                // Volumes are made anew below this root: it is made anew too (CRI-95).
                log::debug!("container={id} mounts from another root directory");
                status.hash = 0;
            }
        }
        if status.state == ContainerState::Exited {
            let place = raw.annotations.get(ANNOTATION_TERMINATION_PATH);
            let mut mounts = raw.mounts.into_iter();
            let mounted = mounts.find(|mount| place == Some(&mount.container_path));
            let policy = raw.annotations.get(ANNOTATION_TERMINATION_POLICY);
            let source = termination::TerminationSource {
                file: mounted.map(|mount| mount.host_path).unwrap_or_default(),
                log: status.log_path.clone(),
                fallback: policy.is_some_and(|policy| policy == FALLBACK),
                exit_code: status.exit_code,
            };
            let own = self
                .disk
                .run_job(move || termination::read_termination_message(&source))
                .await;
            status.message = termination::join_messages(&status.message, &own);
        }
        Ok(status)
    }

    /// Makes a sandbox; or takes the one that an earlier, broken call has made.
    pub(super) async fn run_sandbox(
        &self,
        config: &SandboxConfig,
    ) -> Result<SandboxStatus, RuntimeError> {
        let logs = config.log_directory.clone();
        let made = self
            .disk
            .run_job(move || make_log_dir(Path::new(&logs)))
            .await;
        made.map_err(|e| RuntimeError::Failed(format!("make {}: {e}", config.log_directory)))?;
        let mut request = wire::RunPodSandboxRequest {
            config: Some(request::sandbox_config(config)),
            runtime_handler: config.runtime_handler.clone(),
        };
        let mut answer = wire::TextMessage::default();
        let timeout = self.settings.request_timeout * 2;
        let asked = self.ask_within(
            CallKind::Make,
            "RunPodSandbox",
            &mut request,
            &mut answer,
            timeout,
        );
        match asked.await {
            Ok(()) if answer.word.is_empty() => Err(nonsense_answer("a sandbox without an id")),
            Ok(()) => self.read_sandbox_status(&answer.word).await,
            Err(e) => match self.made_sandbox(config).await {
                Some(found) => Ok(found),
                None => Err(e),
            },
        }
    }

    /// Finds the sandbox of this pod and attempt, if it can be used (CRI-42).
    async fn made_sandbox(&self, config: &SandboxConfig) -> Option<SandboxStatus> {
        let listed = self
            .ask_sandboxes(Some(pod_label_selector(&config.uid)))
            .await
            .ok()?;
        let found = listed.into_iter().find(|sandbox| {
            let metadata = sandbox.metadata.as_ref();
            metadata.is_some_and(|m| m.attempt == config.attempt && m.uid == *config.uid)
        })?;
        let status = self.read_sandbox_status(&found.id).await.ok()?;
        (status.state == SandboxState::Ready).then_some(status)
    }

    /// Removes a sandbox. Stops it first: only so its network is given back (CRI-45).
    pub(super) async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let filter = wire::ContainerFilter {
            sandbox: id.to_string(),
            ..wire::ContainerFilter::default()
        };
        let inside = self.ask_containers(Some(filter)).await?;
        let timeout = self.settings.request_timeout;
        self.ask_to_end(CallKind::Stop, "StopPodSandbox", id, timeout)
            .await?;
        for container in inside {
            // A runtime could take a prefix of an id for others.
            if container.sandbox == **id {
                self.remove_container_and_logs(&container.id.into(), LogRetention::Remove)
                    .await?;
            }
        }
        self.ask_to_end(CallKind::Stop, "RemovePodSandbox", id, timeout)
            .await
    }
}

/// Returns true if two paths lead to the same directory. Blocking.
fn is_same_directory(a: &Path, b: &Path) -> bool {
    match (fs::canonicalize(a), fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

/// The directory of a pod's logs. Blocking.
fn make_log_dir(dir: &Path) -> io::Result<()> {
    if let Some(logs) = dir.parent() {
        fs::create_dir_all(logs)?;
    }
    match fs::create_dir(dir) {
        // A pod that sees the directory of all logs may have put a link there: no log is written through it.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            match fs::symlink_metadata(dir)?.is_dir() {
                true => Ok(()),
                false => Err(e),
            }
        }
        made => made,
    }
}
