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
use std::path::PathBuf;

use smol::{LocalExecutor, Timer};

use self::{
    events::Bell,
    link::{Kind, Link, STATUS_TIMEOUT},
};
use crate::{
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{
            AuthConfig, Capabilities, CgroupDriver, ContainerConfig, ExecOutput, FsInfo, Image,
            LinuxResources, PodItem, PodRuntimeStatus, RuntimeStatus, SandboxConfig, SandboxStatus,
            Version,
        },
        stats::{Detail, DiskUsage, PodUsage},
    },
    cgroup::Cgroups,
    grpc::{
        proto::Message,
        status::{Code, Status},
    },
    image::Progress,
    parts::{Part, PartCommand},
    runtime::{
        AttachOptions, Call, Connect, ExecOptions, ImageService, Logs, RuntimeError,
        RuntimeService, Start, Stream,
        endpoint::{EndpointRuntime, OpenEndpoint, Opening, Places, Settings},
    },
    sys::lane::Lane,
};

/// A client of a runtime. See the module.
pub(crate) struct Cri {
    settings: Settings,
    runtime: Rc<Link>,
    images: Rc<Link>,
    bell: Bell,
    disk: Lane,
    cgroups: Cgroups,
    /// Cgroup driver, as far as the runtime tells it.
    driver: Option<CgroupDriver>,
    places: Places,
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
        Some(open)
    }
}

/// Connects to a runtime; see [`OpenEndpoint`].
fn open<'a>(
    settings: Settings,
    executor: &'a Rc<LocalExecutor<'static>>,
    disk: Lane,
    cgroups: Cgroups,
) -> Opening<'a> {
    Box::pin(async move {
        let opened = Cri::open(settings, executor, disk, cgroups).await?;
        let opened: Rc<dyn EndpointRuntime> = Rc::new(opened);
        Ok(opened)
    })
}

impl EndpointRuntime for Cri {
    fn places(&self) -> &Places {
        &self.places
    }

    fn cgroup_driver(&self) -> CgroupDriver {
        self.driver.unwrap_or(self.settings.cgroup_driver)
    }

    fn told_cgroup_driver(&self) -> Option<CgroupDriver> {
        self.driver
    }

    fn shown_cgroup_driver(&self) -> Call<'_, Option<CgroupDriver>> {
        Box::pin(async {
            let mut request = wire::StatusRequest { verbose: true };
            let mut answer = wire::StatusInfo::default();
            self.ask("Status", &mut request, &mut answer).await?;
            // containerd shows its configuration in a verbose status.
            let config = answer.info.get("config").map_or("", String::as_str);
            Ok(facts::driver_of(config))
        })
    }
}

impl Cri {
    /// Connects; the connections' tasks run on `executor`.
    ///
    /// # Errors
    /// The runtime does not answer, does not say who it is, or makes cgroups in a way that is not known here.
    pub(crate) async fn open(
        settings: Settings,
        executor: &Rc<LocalExecutor<'static>>,
        disk: Lane,
        cgroups: Cgroups,
    ) -> Result<Self, RuntimeError> {
        let (bell, connected) = Bell::new();
        let link = |path: &PathBuf, connected: &smol::channel::Sender<()>| {
            Rc::new(Link::new(
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
            places: Places::default(),
            unread: RefCell::default(),
        };
        (cri.places, _) = cri.look().await?;
        cri.driver = cri.ask_cgroup_driver().await?;
        cri.bell.follow(Rc::clone(&cri.runtime), executor);
        Ok(cri)
    }

    /// Asks for the cgroup driver. A runtime too old to tell it is believed to agree (CONF-18, CRI-12).
    async fn ask_cgroup_driver(&self) -> Result<Option<CgroupDriver>, RuntimeError> {
        let mut tries = 1;
        let answer = loop {
            let mut answer = wire::RuntimeConfigResponse::default();
            let request = &mut wire::Empty::default();
            let asked = self.runtime.ask(
                Kind::Call,
                "RuntimeConfig",
                request,
                &mut answer,
                Some(STATUS_TIMEOUT),
            );
            match asked.await {
                Ok(()) => break answer,
                Err(status) if status.code == Code::UNIMPLEMENTED => return Ok(None),
                Err(status) if tries == DRIVER_TRIES => {
                    return Err(failure("RuntimeConfig", None, status));
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
    async fn ask(
        &self,
        method: &'static str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
    ) -> Result<(), RuntimeError> {
        let timeout = self.settings.request_timeout;
        self.ask_within(Kind::Call, method, request, answer, timeout)
            .await
    }

    async fn ask_within(
        &self,
        kind: Kind,
        method: &'static str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let link = match kind {
            Kind::Call | Kind::Make | Kind::Stop => &self.runtime,
            Kind::Image | Kind::Pull => &self.images,
        };
        let asked = link.ask(kind, method, request, answer, Some(timeout));
        let asked = asked.await;
        asked.map_err(|status| failure(method, Some(timeout), status))
    }

    /// Asks for the end or removal of something. "Not found" is success.
    async fn ask_of(
        &self,
        kind: Kind,
        method: &'static str,
        id: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let mut request = wire::Word { word: id.into() };
        let answer = &mut wire::Empty::default();
        let asked = self.ask_within(kind, method, &mut request, answer, timeout);
        unless_gone(asked.await)
    }

    async fn read_status(&self) -> Result<RuntimeStatus, RuntimeError> {
        let mut answer = wire::StatusResponse::default();
        let request = &mut wire::Empty::default();
        let timeout = STATUS_TIMEOUT.min(self.settings.request_timeout);
        self.ask_within(Kind::Call, "Status", request, &mut answer, timeout)
            .await?;
        let conditions = facts::conditions(&answer);
        self.runtime.learn(answer);
        conditions.ok_or_else(|| answer::nonsense("a status without conditions"))
    }

    async fn set_pod_cidrs(&self, cidrs: &[String]) -> Result<(), RuntimeError> {
        let mut request = wire::UpdateRuntimeConfigRequest {
            config: Some(wire::RuntimeConfig {
                network: Some(wire::NetworkConfig {
                    pod_cidr: cidrs.join(","),
                }),
            }),
        };
        self.ask(
            "UpdateRuntimeConfig",
            &mut request,
            &mut wire::Empty::default(),
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
fn failure(method: &'static str, timeout: Option<Duration>, status: Status) -> RuntimeError {
    match status.code {
        Code::NOT_FOUND => RuntimeError::NotFound(status.message),
        Code::DEADLINE_EXCEEDED => RuntimeError::Timeout {
            what: method.into(),
            after: timeout.unwrap_or_default(),
        },
        // For streams: as many wait already as the runtime allows (CRI-78).
        Code::RESOURCE_EXHAUSTED => RuntimeError::Exhausted(status.message),
        _ => RuntimeError::Failed(status.message),
    }
}

impl ImageService for Cri {
    fn image_status<'a>(&'a self, reference: &'a str) -> Call<'a, Option<Image>> {
        Box::pin(self.image(reference))
    }

    fn list_images(&self) -> Call<'_, Vec<Image>> {
        Box::pin(self.all_images())
    }

    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        sandbox: Option<&'a SandboxConfig>,
    ) -> Call<'a, String> {
        Box::pin(self.pull(reference, credential, sandbox))
    }

    fn pull_progress(&self, _: &str) -> Option<Progress> {
        // CRI does not tell.
        None
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        Box::pin(self.remove_unused_image(id))
    }

    fn image_fs_info(&self) -> Call<'_, FsInfo> {
        Box::pin(self.fs_info())
    }
}

impl RuntimeService for Cri {
    fn version(&self) -> Version {
        self.runtime.facts().version
    }

    fn capabilities(&self) -> Capabilities {
        self.runtime.facts().capabilities
    }

    fn update_pod_cidrs<'a>(&'a self, cidrs: &'a [String]) -> Call<'a, ()> {
        Box::pin(self.set_pod_cidrs(cidrs))
    }

    fn status(&self) -> Call<'_, RuntimeStatus> {
        Box::pin(self.read_status())
    }

    fn list_pods(&self) -> Call<'_, Vec<PodItem>> {
        Box::pin(self.list())
    }

    fn pod_status(&self, uid: &PodUid) -> Call<'_, PodRuntimeStatus> {
        let uid = uid.clone();
        Box::pin(async move { self.inspect(&uid).await })
    }

    fn doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.bell.ring())
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> Call<'a, SandboxStatus> {
        Box::pin(self.run_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        let timeout = self.settings.request_timeout;
        Box::pin(self.ask_of(Kind::Stop, "StopPodSandbox", id, timeout))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        Box::pin(self.remove_sandbox(id))
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        made: Option<&'a SandboxConfig>,
    ) -> Call<'a, ContainerId> {
        Box::pin(self.create(sandbox, config, made))
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> Call<'a, ()> {
        Box::pin(self.start(id))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> Call<'a, ()> {
        Box::pin(self.stop(id, grace))
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, logs: Logs) -> Call<'a, ()> {
        Box::pin(self.remove(id, logs))
    }

    fn reopen_log<'a>(&'a self, id: &'a ContainerId) -> Call<'a, ()> {
        Box::pin(self.reopen(id))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Call<'a, ExecOutput> {
        Box::pin(self.run_command(id, command, timeout, limit))
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> Call<'a, ()> {
        Box::pin(self.update(id, resources))
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        Box::pin(self.exec_url(id, options))
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        Box::pin(self.attach_url(id, options))
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> Call<'a, Stream<Connect<'a>>> {
        Box::pin(self.port_forward_url(id, ports))
    }

    fn list_pod_usage(&self, detail: Detail) -> Call<'_, Vec<PodUsage>> {
        Box::pin(self.usage(detail))
    }

    fn writable_layer<'a>(&'a self, id: &'a ContainerId) -> Call<'a, Option<DiskUsage>> {
        Box::pin(self.layer_usage(id))
    }
}
