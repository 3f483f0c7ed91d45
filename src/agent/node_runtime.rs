//! The runtime as the rest of the agent sees it. Each call is counted and timed (MET-05). A call that names a pod which
//! the runtime does not run goes to the external pods; lists, usage and handlers have both.

use alloc::rc::Rc;
use core::{future::ready, pin::Pin, time::Duration};
use std::path::Path;

use smol::future::FutureExt as _;

use super::{clock::Clock, external_pods::ExternalPods, vitals::WorkCounters};
use crate::{
    api::{
        ContainerId, MonoTime, PodUid, SandboxId,
        cri::{
            AuthConfig, ContainerConfig, ExecOutput, FsInfo, HandlerCapabilities, LinuxResources,
            PodItem, PodRuntimeStatus, RuntimeCapabilities, RuntimeCondition, RuntimeStatus,
            RuntimeVersion, SandboxConfig, SandboxStatus, StoredImage,
        },
        order::OrderExt as _,
        stats::{DiskUsage, PodUsage, StatsDetail},
    },
    image::ImageProgress,
    logic::metrics::own::RuntimeOperation,
    runtime::{
        AttachOptions, ExecOptions, ImageService, LogRetention, PortConnector, RuntimeCall,
        RuntimeService, SessionStart, StreamRoute, refuse_checkpoint,
    },
};

/// The runtime and external pods, with the counters of calls.
pub(super) struct NodeRuntime {
    pub(super) inner: Rc<dyn RuntimeService>,
    pub(super) external: Option<Rc<dyn ExternalPods>>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) counters: WorkCounters,
}

/// Writes operations of the runtime that are counted. Behind `or`: the answer for external pods, `Some` if it is theirs.
macro_rules! operations {
    ($(fn $name:ident<$a:lifetime>($($arg:ident: $type:ty),*) -> $result:ty as $operation:ident
        $(or |$external:ident| $own:expr)?;)*) => { $(
        fn $name<$a>(&$a self, $($arg: $type),*) -> RuntimeCall<$a, $result> {
            let own: Option<RuntimeCall<$a, $result>> = None;
            $(let own = own.or_else(|| {
                let $external = self.external.as_ref()?;
                $own
            });)?
            let call = own.unwrap_or_else(|| self.inner.$name($($arg),*));
            self.count(RuntimeOperation::$operation, call)
        }
    )* };
}

impl NodeRuntime {
    /// Counts a stream. A local stream counts each time it begins; another one when the runtime has answered with its
    /// address.
    fn count_stream<'a, T: 'a>(
        &'a self,
        operation: RuntimeOperation,
        call: RuntimeCall<'a, StreamRoute<T>>,
        local: impl FnOnce(T) -> T + 'a,
    ) -> RuntimeCall<'a, StreamRoute<T>> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = match call.await {
                Ok(StreamRoute::Local(stream)) => return Ok(StreamRoute::Local(local(stream))),
                result => result,
            };
            self.record_operation(operation, begun, result.is_ok());
            result
        })
    }

    fn record_operation(&self, operation: RuntimeOperation, begun: MonoTime, is_ok: bool) {
        let took = self.clock.now() - begun;
        self.counters
            .count_work(|c| c.count_runtime_call(operation, took, is_ok));
    }

    /// Counts a call at its end. A call that is dropped before is not counted.
    fn count<'a, T: 'a>(
        &'a self,
        operation: RuntimeOperation,
        call: RuntimeCall<'a, T>,
    ) -> RuntimeCall<'a, T> {
        Box::pin(async move {
            let begun = self.clock.now();
            let result = call.await;
            self.record_operation(operation, begun, result.is_ok());
            result
        })
    }
}

/// An answer that is there.
fn answered_call<'a, T: 'a>(answer: T) -> RuntimeCall<'a, T> {
    Box::pin(ready(Ok(answer)))
}

impl ImageService for NodeRuntime {
    operations! {
        fn image_status<'a>(reference: &'a str) -> Option<StoredImage> as ImageStatus;
        fn list_images<'a>() -> Vec<StoredImage> as ListImages;
        fn pull_image<'a>(reference: &'a str, credential: Option<&'a AuthConfig>, sandbox: Option<&'a SandboxConfig>) -> String
            as PullImage;
        fn remove_image<'a>(id: &'a str) -> () as RemoveImage;
        fn image_fs_info<'a>() -> FsInfo as ImageFsInfo;
    }

    fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        self.inner.pull_progress(reference)
    }

    fn is_pulling(&self, reference: &str) -> Option<bool> {
        self.inner.is_pulling(reference)
    }
}

impl RuntimeService for NodeRuntime {
    operations! {
        fn update_pod_cidrs<'a>(cidrs: &'a [String]) -> () as UpdatePodCidrs;
        fn runtime_status<'a>() -> RuntimeStatus as Status;
        fn pod_status<'a>(uid: &PodUid) -> PodRuntimeStatus as PodStatus or |external| external.external_pod_status(uid).map(answered_call);
        fn run_pod_sandbox<'a>(config: &'a SandboxConfig) -> SandboxStatus as RunPodSandbox;
        // It goes with its removal.
        fn stop_pod_sandbox<'a>(id: &'a SandboxId) -> () as StopPodSandbox or |external| external.has_sandbox(id).then(|| answered_call(()));
        fn remove_pod_sandbox<'a>(id: &'a SandboxId) -> () as RemovePodSandbox or |external| external.remove_pod_of_sandbox(id);
        fn create_container<'a>(sandbox: &'a SandboxId, config: &'a ContainerConfig, made: Option<&'a SandboxConfig>) -> ContainerId
            as CreateContainer;
        fn start_container<'a>(id: &'a ContainerId) -> () as StartContainer;
        fn stop_container<'a>(id: &'a ContainerId, grace: Duration) -> () as StopContainer or |external| external.stop_pod_of_container(id, grace);
        fn remove_container<'a>(id: &'a ContainerId, logs: LogRetention) -> () as RemoveContainer
            or |external| external.has_container(id).then(|| answered_call(()));
        fn reopen_container_log<'a>(id: &'a ContainerId) -> () as ReopenLog;
        fn exec_sync<'a>(id: &'a ContainerId, command: &'a [String], timeout: Option<Duration>, limit: usize) -> ExecOutput
            as ExecSync or |external| external.exec_sync(id, command, timeout, limit);
        fn checkpoint_container<'a>(id: &'a ContainerId, location: &'a Path, timeout: Duration) -> () as CheckpointContainer
            or |external| external.has_container(id).then(refuse_checkpoint);
        // Its driver tells of the pod as it is now.
        fn update_container_resources<'a>(id: &'a ContainerId, resources: &'a LinuxResources) -> () as UpdateContainer
            or |external| external.has_container(id).then(|| answered_call(()));
        fn update_pod_sandbox_resources<'a>(id: &'a SandboxId, resources: &'a LinuxResources, overhead: &'a LinuxResources) -> ()
            as UpdatePodSandbox;
        fn writable_layer_usage<'a>(id: &'a ContainerId) -> Option<DiskUsage> as WritableLayer
            or |external| external.has_container(id).then(|| answered_call(None));
    }

    fn can_resize(&self, uid: &PodUid) -> bool {
        let external = self.external.as_ref();
        self.inner.can_resize(uid)
            && external.is_none_or(|external| external.external_pod_status(uid).is_none())
    }

    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>> {
        let all = async {
            let mut all = self.inner.list_pods().await?;
            if let Some(external) = &self.external {
                let mut own = external.list_external_pods(&all);
                all.append(&mut own);
                all.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
            }
            Ok(all)
        };
        self.count(RuntimeOperation::ListPods, Box::pin(all))
    }

    fn count_pod_changes(&self) -> Pin<Box<dyn Future<Output = Option<u64>> + '_>> {
        match &self.external {
            None => self.inner.count_pod_changes(),
            Some(_) => Box::pin(ready(None)),
        }
    }

    fn list_pod_usage(&self, detail: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>> {
        let all = async move {
            let mut all = self.inner.list_pod_usage(detail).await?;
            if let Some(external) = &self.external {
                all.append(&mut external.read_external_usage().await);
                all.stable_sort_by(|a, b| a.uid.cmp(&b.uid));
            }
            Ok(all)
        };
        self.count(RuntimeOperation::ListPodUsage, Box::pin(all))
    }

    fn version(&self) -> RuntimeVersion {
        self.inner.version()
    }

    fn capabilities(&self) -> RuntimeCapabilities {
        let mut all = self.inner.capabilities();
        let Some(external) = &self.external else {
            return all;
        };
        if all.handlers.is_empty() {
            // It does not tell them, and takes whatever name it knows.
            return all;
        }
        let named = |name| HandlerCapabilities {
            name,
            ..HandlerCapabilities::default()
        };
        all.handlers
            .extend(external.runtime_handlers().into_iter().map(named));
        all.handlers.stable_sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn external_pods_condition(&self) -> Option<RuntimeCondition> {
        Some(self.external.as_ref()?.provider_condition())
    }

    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        match &self.external {
            None => self.inner.wait_for_doorbell(),
            Some(external) => Box::pin(
                self.inner
                    .wait_for_doorbell()
                    .or(external.wait_for_external_change()),
            ),
        }
    }

    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let own = self.external.as_ref().and_then(|e| e.exec(id, options));
        let opened = match own {
            Some(start) => answered_call(StreamRoute::Local(start)),
            None => self.inner.exec(id, options),
        };
        let start = move |start| self.count(RuntimeOperation::Exec, start);
        self.count_stream(RuntimeOperation::Exec, opened, start)
    }

    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        let own = self.external.as_ref().and_then(|e| e.attach(id, options));
        let opened = match own {
            Some(start) => answered_call(StreamRoute::Local(start)),
            None => self.inner.attach(id, options),
        };
        let start = move |start| self.count(RuntimeOperation::Attach, start);
        self.count_stream(RuntimeOperation::Attach, opened, start)
    }

    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        let connect = move |connect: PortConnector<'a>| -> PortConnector<'a> {
            Box::new(move |port| self.count(RuntimeOperation::PortForward, connect(port)))
        };
        let own = self.external.as_ref().and_then(|e| e.port_forward(id));
        let opened = match own {
            Some(ports) => answered_call(StreamRoute::Local(ports)),
            None => self.inner.port_forward(id, ports),
        };
        self.count_stream(RuntimeOperation::PortForward, opened, connect)
    }
}
