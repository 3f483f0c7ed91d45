//! The runtime with every call counted and timed (MET-05). It adds nothing else.

use alloc::rc::Rc;
use core::{pin::Pin, time::Duration};

use super::{clock::Clock, vitals::WorkCounters};
use crate::{
    api::{
        ContainerId, Mono, PodUid, SandboxId,
        cri::{
            AuthConfig, Capabilities, Condition, ContainerConfig, ExecOutput, FsInfo, Image,
            LinuxResources, PodItem, PodRuntimeStatus, RuntimeStatus, SandboxConfig, SandboxStatus,
            Version,
        },
        stats::{Detail, DiskUsage, PodUsage},
    },
    image::Progress,
    logic::metrics::own::Operation,
    runtime::{
        AttachOptions, Call, Connect, ExecOptions, ImageService, Logs, RuntimeService, Start,
        Stream,
    },
};

/// See the module.
pub(super) struct Metered {
    pub(super) inner: Rc<dyn RuntimeService>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) counters: WorkCounters,
}

impl Metered {
    /// A local stream counts when it begins, and each time it does; others when the runtime has said where they are.
    fn stream<'a, T: 'a>(
        &'a self,
        operation: Operation,
        call: Call<'a, Stream<T>>,
        local: impl FnOnce(T) -> T + 'a,
    ) -> Call<'a, Stream<T>> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = match call.await {
                Ok(Stream::Local(stream)) => return Ok(Stream::Local(local(stream))),
                result => result,
            };
            self.counted(operation, begun, result.is_ok());
            result
        })
    }

    fn counted(&self, operation: Operation, begun: Mono, is_ok: bool) {
        let took = self.clock.now() - begun;
        self.counters.count(|c| c.called(operation, took, is_ok));
    }

    /// A call that is dropped before its end is not counted.
    fn count<'a, T: 'a>(&'a self, operation: Operation, call: Call<'a, T>) -> Call<'a, T> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = call.await;
            self.counted(operation, begun, result.is_ok());
            result
        })
    }
}

impl ImageService for Metered {
    fn image_status<'a>(&'a self, reference: &'a str) -> Call<'a, Option<Image>> {
        self.count(Operation::ImageStatus, self.inner.image_status(reference))
    }

    fn list_images(&self) -> Call<'_, Vec<Image>> {
        self.count(Operation::ListImages, self.inner.list_images())
    }

    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        sandbox: Option<&'a SandboxConfig>,
    ) -> Call<'a, String> {
        self.count(
            Operation::PullImage,
            self.inner.pull_image(reference, credential, sandbox),
        )
    }

    fn pull_progress(&self, reference: &str) -> Option<Progress> {
        self.inner.pull_progress(reference)
    }

    fn is_pulling(&self, reference: &str) -> Option<bool> {
        self.inner.is_pulling(reference)
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        self.count(Operation::RemoveImage, self.inner.remove_image(id))
    }

    fn image_fs_info(&self) -> Call<'_, FsInfo> {
        self.count(Operation::ImageFsInfo, self.inner.image_fs_info())
    }
}

impl RuntimeService for Metered {
    fn version(&self) -> Version {
        self.inner.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn update_pod_cidrs<'a>(&'a self, cidrs: &'a [String]) -> Call<'a, ()> {
        self.count(
            Operation::UpdatePodCidrs,
            self.inner.update_pod_cidrs(cidrs),
        )
    }

    fn providers(&self) -> Option<Condition> {
        self.inner.providers()
    }

    fn status(&self) -> Call<'_, RuntimeStatus> {
        self.count(Operation::Status, self.inner.status())
    }

    fn list_pods(&self) -> Call<'_, Vec<PodItem>> {
        self.count(Operation::ListPods, self.inner.list_pods())
    }

    fn pod_status(&self, uid: &PodUid) -> Call<'_, PodRuntimeStatus> {
        self.count(Operation::PodStatus, self.inner.pod_status(uid))
    }

    fn doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.inner.doorbell()
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> Call<'a, SandboxStatus> {
        self.count(Operation::RunPodSandbox, self.inner.run_pod_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        self.count(Operation::StopPodSandbox, self.inner.stop_pod_sandbox(id))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> Call<'a, ()> {
        self.count(
            Operation::RemovePodSandbox,
            self.inner.remove_pod_sandbox(id),
        )
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        made: Option<&'a SandboxConfig>,
    ) -> Call<'a, ContainerId> {
        self.count(
            Operation::CreateContainer,
            self.inner.create_container(sandbox, config, made),
        )
    }

    fn start_container<'a>(&'a self, id: &'a ContainerId) -> Call<'a, ()> {
        self.count(Operation::StartContainer, self.inner.start_container(id))
    }

    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> Call<'a, ()> {
        self.count(
            Operation::StopContainer,
            self.inner.stop_container(id, grace),
        )
    }

    fn remove_container<'a>(&'a self, id: &'a ContainerId, logs: Logs) -> Call<'a, ()> {
        self.count(
            Operation::RemoveContainer,
            self.inner.remove_container(id, logs),
        )
    }

    fn reopen_log<'a>(&'a self, id: &'a ContainerId) -> Call<'a, ()> {
        self.count(Operation::ReopenLog, self.inner.reopen_log(id))
    }

    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Call<'a, ExecOutput> {
        self.count(
            Operation::ExecSync,
            self.inner.exec_sync(id, command, timeout, limit),
        )
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> Call<'a, ()> {
        self.count(
            Operation::UpdateContainer,
            self.inner.update_container_resources(id, resources),
        )
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let start = move |start| self.count(Operation::Exec, start);
        self.stream(Operation::Exec, self.inner.exec(id, options), start)
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let start = move |start| self.count(Operation::Attach, start);
        self.stream(Operation::Attach, self.inner.attach(id, options), start)
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> Call<'a, Stream<Connect<'a>>> {
        let connect = move |connect: Connect<'a>| -> Connect<'a> {
            Box::new(move |port| self.count(Operation::PortForward, connect(port)))
        };
        let opened = self.inner.port_forward(id, ports);
        self.stream(Operation::PortForward, opened, connect)
    }

    fn list_pod_usage(&self, detail: Detail) -> Call<'_, Vec<PodUsage>> {
        self.count(Operation::ListPodUsage, self.inner.list_pod_usage(detail))
    }

    fn writable_layer<'a>(&'a self, id: &'a ContainerId) -> Call<'a, Option<DiskUsage>> {
        self.count(Operation::WritableLayer, self.inner.writable_layer(id))
    }
}
