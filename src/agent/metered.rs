//! The runtime with every call counted and timed (MET-05). It adds nothing else.

use alloc::rc::Rc;
use core::{pin::Pin, time::Duration};

use super::{clock::Clock, forward::forward, vitals::WorkCounters};
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

/// A runtime whose calls are counted and timed.
pub(super) struct Metered {
    pub(super) inner: Rc<dyn RuntimeService>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) counters: WorkCounters,
}

impl Metered {
    /// Counts a stream. A local stream counts each time it begins; another one when the runtime has answered with its
    /// address.
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

    /// Counts a call at its end. A call that is dropped before is not counted.
    fn pass<'a, T: 'a>(&'a self, operation: Operation, call: Call<'a, T>) -> Call<'a, T> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = call.await;
            self.counted(operation, begun, result.is_ok());
            result
        })
    }
}

impl ImageService for Metered {
    forward! { image_status list_images pull_image pull_progress is_pulling remove_image image_fs_info }
}

impl RuntimeService for Metered {
    forward! {
        version update_pod_cidrs status list_pods pod_status run_pod_sandbox stop_pod_sandbox remove_pod_sandbox
        create_container start_container stop_container remove_container reopen_log exec_sync update_container_resources
        list_pod_usage writable_layer
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn providers(&self) -> Option<Condition> {
        self.inner.providers()
    }

    fn doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.inner.doorbell()
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let start = move |start| self.pass(Operation::Exec, start);
        self.stream(Operation::Exec, self.inner.exec(id, options), start)
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> Call<'a, Stream<Start<'a>>> {
        let start = move |start| self.pass(Operation::Attach, start);
        self.stream(Operation::Attach, self.inner.attach(id, options), start)
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> Call<'a, Stream<Connect<'a>>> {
        let connect = move |connect: Connect<'a>| -> Connect<'a> {
            Box::new(move |port| self.pass(Operation::PortForward, connect(port)))
        };
        let opened = self.inner.port_forward(id, ports);
        self.stream(Operation::PortForward, opened, connect)
    }
}
