//! Starting containers, strictly one after the other within a pod (ACT-07).

use std::os::unix::fs::symlink;

use super::{
    backoff_store,
    ctx::Ctx,
    generation,
    hooks::{self, HookError, Until},
    images::{ForPod, Pending, PodSecrets, VolumeImages, Waiting},
    kill,
    recorder::Severity,
    sync::SyncError,
    volumes::Mounted,
};
use crate::{
    api::{
        Container, ContainerId, Mono, Pod, PodSpec,
        cri::{PodRuntimeStatus, SandboxConfig, SandboxStatus},
    },
    logic::{
        actions::{ContainerToKill, PodActions},
        generate,
        kill::{KillCause, single_kill_grace_s},
        metrics::own::ContainerType,
        pod_table::Handle,
        work_queue::Retry,
    },
};

/// What all starts of one pass share.
pub(super) struct Pass<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) handle: Handle,
    pub(super) pod: &'a Pod,
    pub(super) runtime: &'a PodRuntimeStatus,
    pub(super) sandbox: &'a SandboxStatus,
    pub(super) mounted: &'a Mounted,
    /// Images of its volumes.
    pub(super) volume_images: VolumeImages,
}

impl Pass<'_> {
    /// Whether the pod is to end: nothing of it starts then. Asked before each step, for a pull may have taken minutes.
    fn is_to_end(&self) -> bool {
        let pods = &self.ctx.pods;
        pods.is_to_end(&self.pod.metadata.uid) || pods.is_cancelled(self.handle)
    }
}

impl ForPod for Pass<'_> {
    fn pod(&self) -> &Pod {
        self.pod
    }

    fn event(&self, container: Option<&str>, severity: Severity, reason: &str, message: &str) {
        let Self { ctx, pod, .. } = *self;
        match container {
            Some(name) => ctx.container_event(pod, name, severity, reason, message),
            None => ctx.pod_event(pod, severity, reason, message),
        }
    }

    fn sandbox(&self) -> Option<SandboxConfig> {
        let Self {
            ctx, pod, sandbox, ..
        } = *self;
        let plan = generation::sandbox_plan(ctx, pod, sandbox.attempt);
        plan.ok().map(|plan| plan.config)
    }

    fn pull_secrets(&self) -> Pending<'_, PodSecrets> {
        let Self { ctx, pod, .. } = *self;
        Box::pin(async move {
            let loaded = match ctx.objects_of(pod) {
                Some(objects) => Some(objects.for_pulls(pod, ctx).await),
                None => None,
            };
            let objects = ctx.objects.borrow();
            PodSecrets::read(pod, |name| match &loaded {
                Some(loaded) => loaded.secret(name).ok().flatten(),
                None => objects.secret(&pod.metadata.namespace, name),
            })
        })
    }

    fn cancelled(&self) -> Pending<'_, ()> {
        let Self { ctx, handle, .. } = *self;
        Box::pin(ctx.pods.cancelled(handle))
    }
}

/// Why a container did not start: the waiting reason, its message, and when a back-off ends.
#[derive(Clone, Debug)]
pub(super) struct StartError {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) until: Option<Mono>,
}

impl StartError {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            until: None,
        }
    }
}

impl From<Waiting> for StartError {
    fn from(waiting: Waiting) -> Self {
        Self::new(waiting.reason, waiting.message)
    }
}

/// Starts what is to be started. A failed plain init container ends the pass; any other failure does not (ACT-04).
pub(super) async fn start_all(pass: &Pass<'_>, actions: &PodActions) -> Result<(), SyncError> {
    let spec = &pass.pod.spec;
    let mut failed: Option<SyncError> = None;
    let ephemeral = actions
        .ephemeral_to_start
        .iter()
        .map(|&i| (&spec.ephemeral_containers[i], false));
    let init = actions.init_to_start.iter().map(|&i| {
        (
            &spec.init_containers[i],
            !spec.init_containers[i].is_sidecar(),
        )
    });
    let regular = actions
        .to_start
        .iter()
        .map(|&i| (&spec.containers[i], false));
    for (container, ends_pass) in ephemeral.chain(init).chain(regular) {
        if pass.is_to_end() {
            return failed.map_or(Ok(()), Err);
        }
        let uid = &pass.pod.metadata.uid;
        let started = start_container(pass, container).await;
        let result = started.as_ref().map(drop).map_err(|e| e.reason);
        // What waits for its back-off was not tried.
        if result != Err("CrashLoopBackOff") {
            let kind = kind_of(spec, container);
            let counters = &pass.ctx.counters;
            counters.count(|c| c.container_started(kind, result));
        }
        match started {
            Ok(()) => pass.ctx.pods.started(uid, &container.name),
            Err(e) => {
                pass.ctx
                    .pods
                    .start_failed(uid, &container.name, e.reason, &e.message);
                let retry = e.until.map_or(Retry::Error, Retry::BackOff);
                let message = format!(
                    "failed to \"StartContainer\" for \"{}\" with {}: {}",
                    container.name, e.reason, e.message
                );
                failed = Some(match failed.take() {
                    None => SyncError { retry, message },
                    Some(before) => SyncError {
                        retry: before.retry.and(retry),
                        message: format!("{}; {message}", before.message),
                    },
                });
                if ends_pass {
                    break;
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn kind_of(spec: &PodSpec, container: &Container) -> ContainerType {
    let is_in = |list: &[Container]| list.iter().any(|c| c.name == container.name);
    if is_in(&spec.init_containers) {
        ContainerType::Init
    } else if is_in(&spec.ephemeral_containers) {
        ContainerType::Ephemeral
    } else {
        ContainerType::Regular
    }
}

/// Starts one container, or stops half-way without an error if the pod is to end.
async fn start_container(pass: &Pass<'_>, container: &Container) -> Result<(), StartError> {
    let Pass {
        ctx, pod, runtime, ..
    } = *pass;
    let ended = ctx.view.last_end(runtime, &container.name);
    let granted = ctx.pods.grant_start(pod, container, ended, ctx.clock.now());
    if let Err(wait) = granted {
        let message = format!(
            "Back-off restarting failed container {} in pod {}",
            container.name,
            crate::logic::pod_kind::pod_ref(pod)
        );
        ctx.container_event(pod, &container.name, Severity::Warning, "BackOff", &message);
        return Err(StartError {
            reason: "CrashLoopBackOff",
            message: wait.message,
            until: Some(wait.until),
        });
    }
    if runtime.newest(&container.name).is_some() {
        // A restart was granted, and the next one has to wait longer: also under another agent.
        backoff_store::save(ctx);
    }
    let failed = |e: StartError| {
        ctx.container_event(
            pod,
            &container.name,
            Severity::Warning,
            "Failed",
            &format!("Error: {}", e.message),
        );
        e
    };
    let of_volumes = ctx
        .images
        .ensure_volumes(pass, &pass.volume_images, container);
    let Some(volume_images) = of_volumes.await? else {
        return Ok(());
    };
    let Some(image) = ctx.images.ensure(pass, container).await? else {
        return Ok(());
    };
    let config = generation::container_config(pass, container, &image, volume_images)
        .await
        .map_err(failed)?;
    if pass.is_to_end() {
        return Ok(());
    }
    let made = pass.sandbox();
    let id = ctx
        .runtime
        .create_container(&pass.sandbox.id, &config, made.as_ref())
        .await
        .map_err(|e| failed(StartError::new("CreateContainerError", e.to_string())))?;
    ctx.container_event(
        pod,
        &container.name,
        Severity::Normal,
        "Created",
        "Container created",
    );
    if pass.is_to_end() {
        return Ok(());
    }
    ctx.runtime
        .start_container(&id)
        .await
        .map_err(|e| failed(StartError::new("RunContainerError", e.to_string())))?;
    ctx.container_event(
        pod,
        &container.name,
        Severity::Normal,
        "Started",
        "Container started",
    );
    link_log(ctx, pod, container, &id, config.attempt);
    post_start(pass, container, &id).await
}

/// `/var/log/containers/<pod>_<namespace>_<container>-<id>.log` → the log file (CFG-11). Failing is no reason to stop.
fn link_log(ctx: &Ctx, pod: &Pod, container: &Container, id: &ContainerId, attempt: u32) {
    let dir = &ctx.cfg.dirs.container_logs;
    let target = generation::log_directory(ctx, pod)
        .join(&container.name)
        .join(format!("{attempt}.log"));
    if !target.exists() {
        return;
    }
    let meta = &pod.metadata;
    let link = dir.join(generate::log_link_name(pod, &container.name, id));
    let made = std::fs::create_dir_all(dir).and_then(|()| symlink(&target, &link));
    if let Err(e) = made
        && e.kind() != std::io::ErrorKind::AlreadyExists
    {
        log::warn!(
            "pod={}/{} cannot link log {}: {e}",
            meta.namespace,
            meta.name,
            link.display()
        );
    }
}

/// Runs and awaits the postStart hook; its failure kills the container (HOOK-01).
async fn post_start(
    pass: &Pass<'_>,
    container: &Container,
    id: &ContainerId,
) -> Result<(), StartError> {
    let Some(handler) = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.post_start.as_ref())
    else {
        return Ok(());
    };
    let Pass { ctx, pod, .. } = *pass;
    // The hook finds its container in a status that knows of it.
    let status = ctx
        .runtime
        .pod_status(&pod.metadata.uid)
        .await
        .unwrap_or_default();
    // A hook that never ends must not keep its pod from being ended.
    let until = Until::Cancelled(pass.handle);
    let Err(error) = hooks::run(ctx, pod, &status, container, handler, until).await else {
        return Ok(());
    };
    let HookError::Failed(error) = error else {
        // The pod is to end, and its containers with it.
        return Ok(());
    };
    log::debug!(
        "pod={}/{} container={} postStart: {error}",
        pod.metadata.namespace,
        pod.metadata.name,
        container.name
    );
    ctx.container_event(
        pod,
        &container.name,
        Severity::Warning,
        "FailedPostStartHook",
        "PostStartHook failed",
    );
    let cause = KillCause::PostStart;
    let target = ContainerToKill {
        id: id.clone(),
        name: container.name.clone(),
        cause,
        message: "FailedPostStartHook".into(),
        grace_s: single_kill_grace_s(pod, Some(container), cause),
    };
    if let Err(e) = kill::kill_container(ctx, pod, &status, &target).await {
        log::warn!(
            "pod={}/{} container={}: {e}",
            pod.metadata.namespace,
            pod.metadata.name,
            container.name
        );
    }
    Err(StartError::new(
        "PostStartHookError",
        "PostStartHook failed",
    ))
}
