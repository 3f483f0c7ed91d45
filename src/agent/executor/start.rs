//! Starting containers, strictly one after the other within a pod (ACT-07).

use alloc::rc::Rc;
use core::mem;
use std::{io, os::unix::fs::symlink, path::PathBuf};

use super::{
    errors::{ContainerStartError, SyncError},
    generation::ConfigGenerator,
    hooks::{HookError, HookRunner, HookWaitEnd},
    kill::PodKiller,
    steps::{CallPlan, CallStep, ContainerStartResult, ContainerWaitReason},
    volumes::MountedVolumes,
};
use crate::{
    agent::{
        backoff_store, cluster,
        cpu_manager::NodeCpus,
        images::{AgentImages, ImageFuture, PodPullSecrets, PodVolumeImages, StartingPod},
        recorder::{EventRecorder, EventSeverity},
    },
    api::{
        Container, ContainerId, Pod, PodError,
        cri::{
            ContainerState, ContainerStatus, PodRuntimeStatus, SandboxConfig, SandboxStatus,
            StoredImage, is_stop_signal,
        },
    },
    error::error_chain,
    image::pull::{PluginAccount, TokenAttributes},
    logic::{
        actions::{ContainerToKill, PodActions},
        cpu_set::CpuSet,
        generate,
        kill::{KillCause, single_kill_grace_s},
        process::{judge_variable, refused_by_process},
        restart::restart_all_sources,
        token::service_account_of,
        work_queue::RetryCause,
    },
    runtime::{RuntimeService, log_links::LogLinks, runc::process},
    sys::lane::Lane,
};

/// Starts containers. Nothing is kept between two passes.
pub(in crate::agent) struct ContainerStarter {
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
    pub(in crate::agent) images: Rc<AgentImages>,
    pub(in crate::agent) generator: Rc<ConfigGenerator>,
    pub(in crate::agent) hooks: HookRunner,
    pub(in crate::agent) killer: PodKiller,
    pub(in crate::agent) recorder: Rc<EventRecorder>,
    pub(in crate::agent) disk: Lane,
    /// Processors of containers, with the policy `static`.
    pub(in crate::agent) cpus: Option<Rc<NodeCpus>>,
    pub(in crate::agent) of_api: Option<Rc<cluster::ObjectStore>>,
    /// Variables that programs of the machine may get; `None`: none of them run as containers of their handler.
    pub(in crate::agent) process_variables: Option<Vec<String>>,
    /// Run directory, where crash-loop delays are stored.
    pub(in crate::agent) run_dir: PathBuf,
    /// Directory of the links to logs.
    pub(in crate::agent) container_logs: PathBuf,
}

/// State that all starts of one sync share.
pub(in crate::agent) struct StartPass<'a> {
    pub(in crate::agent) starter: &'a ContainerStarter,
    pub(in crate::agent) plan: &'a CallPlan,
    pub(in crate::agent) pod: &'a Rc<Pod>,
    pub(in crate::agent) runtime: &'a PodRuntimeStatus,
    pub(in crate::agent) sandbox: &'a SandboxStatus,
    pub(in crate::agent) mounted: &'a MountedVolumes,
    /// Configuration that the sandbox was made with.
    pub(in crate::agent) made: Option<SandboxConfig>,
    /// Images of its volumes.
    pub(in crate::agent) volume_images: PodVolumeImages,
}

impl StartPass<'_> {
    /// Returns true if the pod is to end: then nothing of it starts. Asked before each step, for a pull may have taken
    /// minutes.
    fn is_to_end(&self) -> bool {
        self.plan.cancel.is_to_end()
    }

    /// Objects of the apiserver for the pod; `None` for one of the node's own sources.
    fn objects_of_api(&self) -> Option<&cluster::ObjectStore> {
        cluster::objects_for_pod(self.starter.of_api.as_ref(), self.pod)
    }

    fn record_container_event(
        &self,
        container: &Container,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        let recorder = &self.starter.recorder;
        recorder.record_container_event(self.pod, &container.name, severity, reason, message);
    }
}

impl StartingPod for StartPass<'_> {
    fn pod(&self) -> &Pod {
        self.pod
    }

    fn record_event(
        &self,
        container: Option<&str>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        let (recorder, pod) = (&self.starter.recorder, self.pod);
        match container {
            Some(name) => recorder.record_container_event(pod, name, severity, reason, message),
            None => recorder.record_pod_event(pod, severity, reason, message),
        }
    }

    fn sandbox_config(&self) -> Option<SandboxConfig> {
        self.made.clone()
    }

    fn pull_secrets(&self) -> ImageFuture<'_, PodPullSecrets> {
        let Self { plan, pod, .. } = *self;
        Box::pin(async move {
            let loaded = match self.objects_of_api() {
                Some(objects) => Some(objects.load_for_pulls(pod, &plan.cancel).await),
                None => None,
            };
            PodPullSecrets::read(pod, |name| match &loaded {
                Some(loaded) => loaded.secret(name).ok().flatten(),
                None => plan.objects.secret(&pod.metadata.namespace, name),
            })
        })
    }

    fn has_account(&self) -> bool {
        self.objects_of_api().is_some()
    }

    fn plugin_account<'a>(
        &'a self,
        wanted: &'a TokenAttributes,
    ) -> ImageFuture<'a, Result<Option<PluginAccount>, PodError>> {
        Box::pin(async move {
            let Some(objects) = self.objects_of_api() else {
                return Ok(None);
            };
            let found = objects.service_account(self.pod, &self.plan.cancel).await?;
            let annotations = wanted.pick_annotations(&found.annotations);
            Ok(annotations.map(|annotations| PluginAccount {
                namespace: self.pod.metadata.namespace.clone(),
                name: service_account_of(self.pod).to_owned(),
                uid: found.uid,
                annotations,
            }))
        })
    }

    fn account_token<'a>(&'a self, audience: &'a str) -> ImageFuture<'a, Result<String, PodError>> {
        Box::pin(async move {
            let Some(objects) = self.objects_of_api() else {
                return Err(PodError::Object("the pod has no service account".into()));
            };
            let cancel = &self.plan.cancel;
            objects.token_for_plugin(self.pod, cancel, audience).await
        })
    }

    fn wait_cancelled(&self) -> ImageFuture<'_, ()> {
        Box::pin(self.plan.cancel.wait_for_cancel())
    }
}

/// Starts what is to be started. A failed plain init container ends the pass; any other failure does not (ACT-04). Returns what
/// was tried as well.
pub(in crate::agent) async fn start_containers(
    pass: &StartPass<'_>,
    actions: &PodActions,
) -> (Vec<ContainerStartResult>, Result<(), SyncError>) {
    let spec = &pass.pod.spec;
    let (mut starts, mut result) = (Vec::new(), Ok(()));
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
            break;
        }
        let started = match start_container(pass, container).await {
            Ok(()) => ContainerStartResult {
                container: container.name.clone(),
                result: Ok(()),
            },
            Err(e) => note_start_failure(container, e, &mut result),
        };
        let has_failed = started.result.is_err();
        starts.push(started);
        if has_failed && ends_pass {
            break;
        }
    }
    (starts, result)
}

/// Returns the containers whose back-off still holds up a restart of the whole pod, and the error of the sync if there are any.
pub(in crate::agent) async fn check_pod_restart(
    starter: &ContainerStarter,
    plan: &CallPlan,
    pod: &Rc<Pod>,
) -> (Vec<ContainerStartResult>, Result<(), SyncError>) {
    let (mut waiting, mut result) = (Vec::new(), Ok(()));
    for container in restart_all_sources(pod, &plan.runtime) {
        if let Err(e) = check_container_restart(starter, plan, pod, container, true).await {
            waiting.push(note_start_failure(container, e, &mut result));
        }
    }
    (waiting, result)
}

/// Notes that the container did not start, in what the sync tells as well.
fn note_start_failure(
    container: &Container,
    e: ContainerStartError,
    result: &mut Result<(), SyncError>,
) -> ContainerStartResult {
    let retry = e.until.map_or(RetryCause::Error, RetryCause::BackOff);
    let message = format!(
        "failed to \"StartContainer\" for \"{}\" with {}: {}",
        container.name, e.reason, e.message
    );
    *result = Err(match mem::replace(result, Ok(())) {
        Ok(()) => SyncError { retry, message },
        Err(before) => SyncError {
            retry: before.retry.merge_with(retry),
            message: format!("{}; {message}", before.message),
        },
    });
    ContainerStartResult {
        container: container.name.clone(),
        result: Err(ContainerWaitReason {
            reason: e.reason,
            message: e.message,
        }),
    }
}

/// Returns an error while the container may not be started again; `all`: with its whole pod. Asks only for a container
/// that ended before.
async fn check_container_restart(
    starter: &ContainerStarter,
    plan: &CallPlan,
    pod: &Rc<Pod>,
    container: &Container,
    all: bool,
) -> Result<(), ContainerStartError> {
    let ended = |c: &ContainerStatus| c.state == ContainerState::Exited;
    if !plan.runtime.container_instances(&container.name).any(ended) {
        return Ok(());
    }
    let granted = plan.line.ask_loop(|answer| CallStep::Restarts {
        pod: Rc::clone(pod),
        container: container.name.clone(),
        all,
        runtime: Rc::clone(&plan.runtime),
        answer,
    });
    match granted.await {
        Ok(delays) => {
            // The next one has to wait longer: also under another agent.
            let run = starter.run_dir.clone();
            let save = move || backoff_store::save_backoffs(&run, delays);
            starter.disk.run_job(save).await;
            Ok(())
        }
        Err(wait) => {
            let message = format!(
                "Back-off restarting failed container {} in pod {}",
                container.name,
                crate::logic::pod_kind::pod_ref(pod)
            );
            let (recorder, name) = (&starter.recorder, &container.name);
            recorder.record_container_event(pod, name, EventSeverity::Warning, "BackOff", &message);
            Err(ContainerStartError {
                reason: "CrashLoopBackOff",
                message: wait.message,
                until: Some(wait.until),
            })
        }
    }
}

/// Starts one container, or stops half-way without an error if the pod is to end.
async fn start_container(
    pass: &StartPass<'_>,
    container: &Container,
) -> Result<(), ContainerStartError> {
    let StartPass { starter, .. } = *pass;
    let (runtime, images) = (&starter.runtime, &starter.images);
    check_container_restart(starter, pass.plan, pass.pod, container, false).await?;
    let failed = |e: ContainerStartError| {
        let message = format!("Error: {}", e.message);
        pass.record_container_event(container, EventSeverity::Warning, "Failed", &message);
        e
    };
    let of_volumes = images.ensure_volume_images(pass, &pass.volume_images, container);
    let Some(volume_images) = of_volumes.await? else {
        return Ok(());
    };
    let variables = starter.process_variables.as_deref();
    let variables = variables.filter(|_| pass.sandbox.runtime_handler == process::HANDLER);
    let image = if variables.is_some() {
        if let Some(what) = refused_by_process(pass.pod, container) {
            let why = format!("handler {:?} cannot honour {what}", process::HANDLER);
            return Err(failed(ContainerStartError::new(
                generate::CONFIG_ERROR,
                why,
            )));
        }
        // There is none.
        StoredImage::default()
    } else {
        match images.ensure_image(pass, container).await? {
            Some(image) => image,
            None => return Ok(()),
        }
    };
    let mut config = starter
        .generator
        .generate_container_config(pass, container, &image, volume_images)
        .await
        .map_err(failed)?;
    if let Some(listed) = variables {
        let is_of_pod = |name: &str| {
            !container.env_from.is_empty() || container.env.iter().any(|set| set.name == name)
        };
        for (name, _) in &config.env {
            judge_variable(name, is_of_pod(name), listed).map_err(|why| {
                let why = format!("environment variable {name:?}: {why}");
                failed(ContainerStartError::new(generate::CONFIG_ERROR, why))
            })?;
        }
    }
    if pass.is_to_end() {
        return Ok(());
    }
    let uid = &pass.pod.metadata.uid;
    let own = starter.cpus.as_ref();
    let cpus = own.map(|cpus| cpus.cpus_of(uid, &container.name));
    let cpus = cpus.filter(|cpus| !cpus.is_empty());
    config.resources.cpuset_cpus = cpus.as_ref().map(CpuSet::to_string);
    let id = runtime
        .create_container(&pass.sandbox.id, &config, pass.made.as_ref())
        .await
        .map_err(|e| {
            failed(ContainerStartError::new(
                "CreateContainerError",
                e.to_string(),
            ))
        })?;
    if let Some((own, cpus)) = own.zip(cpus) {
        own.note_told(uid, &id, cpus);
    }
    pass.record_container_event(
        container,
        EventSeverity::Normal,
        "Created",
        "Container created",
    );
    let signal = &image.stop_signal;
    if config.stop_signal.is_empty() && !signal.is_empty() && !is_stop_signal(signal) {
        let message = format!("stop signal {signal:?} of the image is unknown: SIGTERM is sent");
        pass.record_container_event(
            container,
            EventSeverity::Warning,
            "UnknownStopSignal",
            &message,
        );
    }
    if pass.is_to_end() {
        return Ok(());
    }
    runtime
        .start_container(&id)
        .await
        .map_err(|e| failed(ContainerStartError::new("RunContainerError", e.to_string())))?;
    pass.record_container_event(
        container,
        EventSeverity::Normal,
        "Started",
        "Container started",
    );
    link_log(pass, container, &id, config.attempt).await;
    run_post_start(pass, container, &id).await
}

/// `/var/log/containers/<pod>_<namespace>_<container>-<id>.log` → the log file (CFG-11). Failing is no reason to stop.
async fn link_log(pass: &StartPass<'_>, container: &Container, id: &ContainerId, attempt: u32) {
    let StartPass { starter, pod, .. } = *pass;
    let dir = starter.container_logs.clone();
    let target = starter
        .generator
        .log_directory(pod)
        .join(&container.name)
        .join(format!("{attempt}.log"));
    let name = generate::log_link_name(pod, &container.name, id);
    let shown = dir.join(&name).display().to_string();
    let make = move || {
        if !target.exists() {
            return Ok(());
        }
        let links = LogLinks::open_or_make(&dir)?;
        symlink(&target, links.fd_path().join(name))
    };
    if let Err(e) = starter.disk.run_job(make).await
        && e.kind() != io::ErrorKind::AlreadyExists
    {
        let meta = &pod.metadata;
        log::warn!(
            "pod={}/{} cannot link log {shown}: {e}",
            meta.namespace,
            meta.name
        );
    }
}

/// Runs and awaits the postStart hook; its failure kills the container (HOOK-01).
async fn run_post_start(
    pass: &StartPass<'_>,
    container: &Container,
    id: &ContainerId,
) -> Result<(), ContainerStartError> {
    let Some(handler) = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.post_start.as_ref())
    else {
        return Ok(());
    };
    let StartPass { starter, pod, .. } = *pass;
    // The hook finds its container in a status that knows of it.
    let status = starter.runtime.pod_status(&pod.metadata.uid).await;
    let mut status = status.unwrap_or_default();
    if status.ips.is_empty() {
        // A pod in the host's network has no address at the runtime.
        status.ips.clone_from(&pass.runtime.ips);
    }
    // A hook that never ends must not keep its pod from being ended.
    let until = HookWaitEnd::Cancelled(&pass.plan.cancel);
    let ran = starter
        .hooks
        .run_hook(pod, &status, container, handler, until);
    let Err(error) = ran.await else {
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
    pass.record_container_event(
        container,
        EventSeverity::Warning,
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
    let killed = starter.killer.kill_container(pod, &status, &target);
    if let Err(e) = killed.await {
        log::warn!(
            "pod={}/{} container={}: {}",
            pod.metadata.namespace,
            pod.metadata.name,
            container.name,
            error_chain(&e)
        );
    }
    Err(ContainerStartError::new(
        "PostStartHookError",
        "PostStartHook failed",
    ))
}
