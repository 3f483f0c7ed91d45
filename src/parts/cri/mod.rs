//! A client of external runtimes: containerd, CRI-O and others that serve CRI v1 at a unix socket.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | messages, a table each |
//! | `link`, `facts` | the connection; facts that the runtime tells about itself |
//! | `request`, `answer` | translation, there and back |
//! | `pods`, `containers`, `images`, `stats` | the calls |
//! | `events` | the doorbell |
//! | `facade`, `remains`, `command` | `picolet cri`: the server side, as far as kubeadm needs it, and the pods that it shows |
//!
//! The runtime keeps all state: only the connection is remembered here. Its answers are not trusted, every call has an
//! end, and a broken call is not repeated: the next list shows its result. Rows CRI of `tests/spec/cri.md`.

mod answer;
mod command;
mod containers;
mod events;
mod facade;
mod facts;
mod images;
mod link;
mod pods;
mod remains;
mod request;
mod stats;
#[cfg(test)]
mod tests;
mod wire;

use alloc::{collections::BTreeSet, rc::Rc};
use core::{cell::RefCell, future::Future, pin::Pin, time::Duration};
use std::path::{Path, PathBuf};

use smol::{LocalExecutor, Timer};

use self::{
    events::RuntimeDoorbell,
    link::{CallKind, RuntimeLink, STATUS_TIMEOUT},
};
use crate::{
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{
            AuthConfig, CgroupDriver, ContainerConfig, ExecOutput, FsInfo, LinuxResources, PodItem,
            PodRuntimeStatus, RuntimeCapabilities, RuntimeStatus, RuntimeVersion, SandboxConfig,
            SandboxStatus, StoredImage,
        },
        stats::{DiskUsage, PodUsage, StatsDetail},
    },
    cgroup::Cgroups,
    grpc::{
        proto::Message,
        status::{GrpcCode, GrpcStatus},
    },
    image::ImageProgress,
    parts::{Part, PartCommand},
    runtime::{
        AttachOptions, ExecOptions, ImageService, LogRetention, PortConnector, RuntimeCall,
        RuntimeError, RuntimeService, SessionStart, StreamRoute,
        endpoint::{
            EndpointOpening, EndpointRuntime, EndpointSettings, OpenEndpoint, RuntimeDirectories,
        },
    },
    sys::lane::Lane,
};

/// A client of a runtime. See the module.
pub(crate) struct CriClient {
    settings: EndpointSettings,
    runtime: Rc<RuntimeLink>,
    images: Rc<RuntimeLink>,
    bell: RuntimeDoorbell,
    disk: Lane,
    cgroups: Cgroups,
    /// Cgroup driver, as far as the runtime tells it.
    driver: Option<CgroupDriver>,
    places: RuntimeDirectories,
    /// Running containers whose status could not be read at the last look at usage: each is logged once.
    unread: RefCell<BTreeSet<ContainerId>>,
}

/// The part; see the module.
pub(super) struct CriPart;

impl Part for CriPart {
    fn name(&self) -> &'static str {
        "cri"
    }

    fn commands(&self) -> &'static [PartCommand] {
        &command::COMMANDS
    }

    fn endpoint_client(&self) -> Option<OpenEndpoint> {
        Some(open_endpoint)
    }
}

/// Connects to a runtime; see [`OpenEndpoint`].
fn open_endpoint<'a>(
    settings: EndpointSettings,
    executor: &'a Rc<LocalExecutor<'static>>,
    disk: Lane,
    cgroups: Cgroups,
) -> EndpointOpening<'a> {
    Box::pin(async move {
        let opened = CriClient::connect(settings, executor, disk, cgroups).await?;
        let opened: Rc<dyn EndpointRuntime> = Rc::new(opened);
        Ok(opened)
    })
}

impl EndpointRuntime for CriClient {
    fn runtime_directories(&self) -> &RuntimeDirectories {
        &self.places
    }

    fn cgroup_driver(&self) -> CgroupDriver {
        self.driver.unwrap_or(self.settings.cgroup_driver)
    }

    fn reported_cgroup_driver(&self) -> Option<CgroupDriver> {
        self.driver
    }

    fn configured_cgroup_driver(&self) -> RuntimeCall<'_, Option<CgroupDriver>> {
        Box::pin(async {
            let mut request = wire::StatusRequest { verbose: true };
            let mut answer = wire::StatusInfo::default();
            self.ask_runtime("Status", &mut request, &mut answer)
                .await?;
            // containerd shows its configuration in a verbose status.
            let config = answer.info.get("config").map_or("", String::as_str);
            Ok(facts::parse_cgroup_driver(config))
        })
    }
}

impl CriClient {
    /// Connects; the connections' tasks run on `executor`.
    ///
    /// # Errors
    /// The runtime does not answer, does not say who it is, or makes cgroups in a way that is not known here.
    pub(crate) async fn connect(
        settings: EndpointSettings,
        executor: &Rc<LocalExecutor<'static>>,
        disk: Lane,
        cgroups: Cgroups,
    ) -> Result<Self, RuntimeError> {
        let (bell, connected) = RuntimeDoorbell::new();
        let link = |path: &PathBuf, connected: &smol::channel::Sender<()>| {
            Rc::new(RuntimeLink::new(
                path.clone(),
                Rc::clone(executor),
                connected.clone(),
            ))
        };
        let runtime = link(&settings.endpoint, &connected);
        let images = match settings.image_endpoint == settings.endpoint {
            true => Rc::clone(&runtime),
            // No task waits for news of this link.
            false => link(&settings.image_endpoint, &smol::channel::bounded(1).0),
        };
        let mut cri = Self {
            settings,
            runtime,
            images,
            bell,
            disk,
            cgroups,
            driver: None,
            places: RuntimeDirectories::default(),
            unread: RefCell::default(),
        };
        (cri.places, _) = cri.read_image_directories().await?;
        cri.driver = cri.ask_cgroup_driver().await?;
        cri.bell.follow_events(Rc::clone(&cri.runtime), executor);
        Ok(cri)
    }

    /// Asks for the cgroup driver. A runtime too old to tell it is believed to agree (CONF-18, CRI-12).
    async fn ask_cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        let mut tries = 1;
        let answer = loop {
            let mut answer = wire::RuntimeConfigResponse::default();
            let request = &mut wire::CriEmpty::default();
            let asked = self.runtime.ask_once(
                CallKind::Call,
                "RuntimeConfig",
                request,
                &mut answer,
                Some(STATUS_TIMEOUT),
            );
            match asked.await {
                Ok(()) => break answer,
                Err(status) if status.code == GrpcCode::UNIMPLEMENTED => return Ok(None),
                Err(status) if tries == DRIVER_TRIES => {
                    return Err(translate_failure("RuntimeConfig", None, status));
                }
                Err(_) => {
                    tries += 1;
                    Timer::after(DRIVER_RETRY).await;
                }
            }
        };
        match answer.linux.map(|linux| linux.cgroup_driver) {
            None => Ok(None),
            Some(SYSTEMD) => Ok(Some(CgroupDriver::Systemd)),
            Some(CGROUPFS) => Ok(Some(CgroupDriver::Cgroupfs)),
            Some(other) => Err(RuntimeError::Invalid(format!(
                "the runtime's cgroup driver is number {other}, which is neither systemd nor cgroupfs"
            ))),
        }
    }

    /// Asks the runtime, within the time that most calls have.
    async fn ask_runtime(
        &self,
        method: &'static str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
    ) -> Result<(), RuntimeError> {
        let timeout = self.settings.request_timeout;
        self.ask_within(CallKind::Call, method, request, answer, timeout)
            .await
    }

    async fn ask_within(
        &self,
        kind: CallKind,
        method: &'static str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let link = match kind {
            CallKind::Call | CallKind::Make | CallKind::Stop => &self.runtime,
            CallKind::Image | CallKind::Pull => &self.images,
        };
        let asked = link.ask_once(kind, method, request, answer, Some(timeout));
        let asked = asked.await;
        asked.map_err(|status| translate_failure(method, Some(timeout), status))
    }

    /// Asks for the end or removal of something. "Not found" is success.
    async fn ask_to_end(
        &self,
        kind: CallKind,
        method: &'static str,
        id: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let mut request = wire::TextMessage { word: id.into() };
        let answer = &mut wire::CriEmpty::default();
        let asked = self.ask_within(kind, method, &mut request, answer, timeout);
        unless_gone(asked.await)
    }

    async fn read_runtime_status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let mut answer = wire::StatusResponse::default();
        let request = &mut wire::CriEmpty::default();
        let timeout = STATUS_TIMEOUT.min(self.settings.request_timeout);
        self.ask_within(CallKind::Call, "Status", request, &mut answer, timeout)
            .await?;
        let conditions = facts::read_conditions(&answer);
        self.runtime.take_status(answer);
        conditions.ok_or_else(|| answer::nonsense_answer("a status without conditions"))
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        let mut request = wire::UpdateRuntimeConfigRequest {
            config: Some(wire::RuntimeConfigMessage {
                network: Some(wire::RuntimeNetworkConfig {
                    pod_cidr: cidrs.join(","),
                }),
            }),
        };
        self.ask_runtime(
            "UpdateRuntimeConfig",
            &mut request,
            &mut wire::CriEmpty::default(),
        )
        .await
    }
}

/// Times that the runtime is asked for its cgroup driver.
const DRIVER_TRIES: u32 = 3;
/// See [`DRIVER_TRIES`].
const DRIVER_RETRY: Duration = Duration::from_secs(2);

/// `CgroupDriver`.
const SYSTEMD: i32 = 0;
const CGROUPFS: i32 = 1;

fn unless_gone(asked: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match asked {
        Err(RuntimeError::NotFound(_)) => Ok(()),
        asked => asked,
    }
}

/// Translates the failure of a call for its caller. Texts are the runtime's own (CRI-06).
fn translate_failure(
    method: &'static str,
    timeout: Option<Duration>,
    status: GrpcStatus,
) -> RuntimeError {
    match status.code {
        GrpcCode::NOT_FOUND => RuntimeError::NotFound(status.message),
        GrpcCode::DEADLINE_EXCEEDED => RuntimeError::Timeout {
            what: method.into(),
            after: timeout.unwrap_or_default(),
        },
        // For streams: as many wait already as the runtime allows (CRI-78).
        GrpcCode::RESOURCE_EXHAUSTED => RuntimeError::Exhausted(status.message),
        _ => RuntimeError::Failed(status.message),
    }
}

impl ImageService for CriClient {
    fn image_status<'a>(&'a self, reference: &'a str) -> RuntimeCall<'a, Option<StoredImage>> {
        Box::pin(self.ask_image(reference))
    }

    fn list_images(&self) -> RuntimeCall<'_, Vec<StoredImage>> {
        Box::pin(self.list_all_images())
    }

    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        sandbox: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, String> {
        Box::pin(self.pull_with_credential(reference, credential, sandbox))
    }

    fn pull_progress(&self, _: &str) -> Option<ImageProgress> {
        // CRI does not tell.
        None
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> RuntimeCall<'a, ()> {
        Box::pin(self.remove_unused_image(id))
    }

    fn image_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        Box::pin(self.read_image_fs_info())
    }
}

impl RuntimeService for CriClient {
    fn version(&self) -> RuntimeVersion {
        self.runtime.runtime_facts().version
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        self.runtime.runtime_facts().capabilities
    }

    fn update_pod_cidrs<'a>(&'a self, cidrs: &'a [String]) -> RuntimeCall<'a, ()> {
        Box::pin(self.set_pod_cidrs(cidrs))
    }

    fn runtime_status(&self) -> RuntimeCall<'_, RuntimeStatus> {
        Box::pin(self.read_runtime_status())
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        Box::pin(self.list_all_pods())
    }

    fn pod_status(&self, uid: &PodUid) -> RuntimeCall<'_, PodRuntimeStatus> {
        let uid = uid.clone();
        Box::pin(async move { self.inspect_pod(&uid).await })
    }

    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.bell.wait_for_ring())
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> RuntimeCall<'a, SandboxStatus> {
        Box::pin(self.run_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        let timeout = self.settings.request_timeout;
        Box::pin(self.ask_to_end(CallKind::Stop, "StopPodSandbox", id, timeout))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()> {
        Box::pin(self.remove_sandbox(id))
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        made: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, ContainerId> {
        Box::pin(self.make_container(sandbox, config, made))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        Box::pin(self.call_start_container(id))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeCall<'a, ()> {
        Box::pin(self.stop_and_read_container(id, grace))
    }

    fn remove_container<'a>(
        &'a self,
        id: &'a ContainerId,
        logs: LogRetention,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.remove_container_and_logs(id, logs))
    }

    fn reopen_container_log<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()> {
        Box::pin(self.call_reopen_log(id))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        Box::pin(self.run_command(id, command, timeout, limit))
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.call_update_resources(id, resources))
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        id: &'a SandboxId,
        resources: &'a LinuxResources,
        overhead: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.call_update_sandbox(id, resources, overhead))
    }

    fn checkpoint_container<'a>(
        &'a self,
        id: &'a ContainerId,
        location: &'a Path,
        timeout: Duration,
    ) -> RuntimeCall<'a, ()> {
        Box::pin(self.call_checkpoint(id, location, timeout))
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        Box::pin(self.exec_url(id, options))
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        Box::pin(self.attach_url(id, options))
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        Box::pin(self.port_forward_url(id, ports))
    }

    fn list_pod_usage(&self, detail: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>> {
        Box::pin(self.read_pod_usage(detail))
    }

    fn writable_layer_usage<'a>(
        &'a self,
        id: &'a ContainerId,
    ) -> RuntimeCall<'a, Option<DiskUsage>> {
        Box::pin(self.ask_layer_usage(id))
    }
}
