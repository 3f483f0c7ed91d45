//! The seam beside the runtime: pods that no container runtime runs. Their driver carries out what their workers want
//! (`driver.rs`); here is what the rest of the agent needs of them: lists, streams, figures, logs, removal.
//!
//! A call that names a pod, a sandbox or a container is answered with `None` if it is the runtime's.

use alloc::rc::Rc;
use core::{pin::Pin, time::Duration};

use super::{
    complaints::Complaints,
    driver::{DriverFuture, PodDriver},
    executor::PodPreparer,
    recorder::EventRecorder,
    tasks::AgentTask,
};
use crate::{
    api::{
        ContainerId, PodUid, SandboxId,
        cri::{ExecOutput, PodItem, PodRuntimeStatus, RuntimeCondition},
        stats::PodUsage,
    },
    runtime::{AttachOptions, ExecOptions, PortConnector, RuntimeCall, SessionStart},
    server::{
        backend::{BackendReply, IncomingText},
        log_reader::LogOptions,
    },
};

/// Has the loop look at pods anew, if there are any. Answered: the loop is there.
pub(crate) type PodResync = Rc<dyn Fn(Vec<PodUid>) -> Pin<Box<dyn Future<Output = bool>>>>;

/// Pods that no container runtime runs.
pub(crate) trait ExternalPods {
    /// Handlers of the RuntimeClasses whose pods these are.
    fn runtime_handlers(&self) -> Vec<String>;
    /// Condition of what runs these pods: it answers, or why not.
    fn provider_condition(&self) -> RuntimeCondition;
    /// Makes the driver of all pods; it hands those that are not external to `containers`.
    fn make_pod_driver(
        self: Rc<Self>,
        containers: Rc<dyn PodDriver>,
        preparer: Rc<PodPreparer>,
    ) -> Rc<dyn PodDriver>;
    /// Makes the tasks that follow these pods.
    fn external_pod_tasks(
        &self,
        resync: &PodResync,
        recorder: &Rc<EventRecorder>,
        complaints: &Rc<Complaints>,
    ) -> Vec<AgentTask>;

    /// All external pods, given those that the runtime has. From memory.
    fn list_external_pods(&self, of_runtime: &[PodItem]) -> Vec<PodItem>;
    /// Status of a pod. From memory.
    fn external_pod_status(&self, uid: &PodUid) -> Option<PodRuntimeStatus>;
    /// Resolves when something may have changed. May be late or lost.
    fn wait_for_external_change(&self) -> DriverFuture<'_, ()>;
    /// Usage of the pods for which there are figures.
    fn read_external_usage(&self) -> DriverFuture<'_, Vec<PodUsage>>;

    /// Returns true if the container is one of an external pod.
    fn has_container(&self, id: &ContainerId) -> bool;
    /// Returns true if the sandbox is that of an external pod.
    fn has_sandbox(&self, id: &SandboxId) -> bool;
    /// Stops the pod of a container: its containers are not stopped one by one.
    fn stop_pod_of_container(
        &self,
        id: &ContainerId,
        grace: Duration,
    ) -> Option<RuntimeCall<'_, ()>>;
    /// Removes the pod of a sandbox.
    fn remove_pod_of_sandbox(&self, id: &SandboxId) -> Option<RuntimeCall<'_, ()>>;
    /// Runs a command; see [`exec_sync`](crate::runtime::RuntimeService::exec_sync).
    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Option<RuntimeCall<'a, ExecOutput>>;
    /// Runs a command with streams.
    fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Option<SessionStart<'_>>;
    /// Attaches to a container.
    fn attach(&self, id: &ContainerId, options: AttachOptions) -> Option<SessionStart<'_>>;
    /// Opens ports of a pod.
    fn port_forward(&self, id: &SandboxId) -> Option<PortConnector<'_>>;
    /// Reads the log of a container, which has no file here.
    fn read_container_log<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a LogOptions,
    ) -> BackendReply<'a, Box<dyn IncomingText>>;
}
