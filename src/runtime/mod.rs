//! The runtime seam: two traits in CRI's words, for containers and for images, and their backends.
//!
//! - `runc`: the direct backend, which calls an OCI runtime and CNI plugins itself.
//! - that of a part: a client of a runtime of another process (`endpoint`).
//! - `fake`, in the test tree: an in-memory runtime for simulations and tests.
//!
//! Contract of every backend (`tests/spec/lifecycle.md` PROV, `runtime.md` RTM): stop and remove are idempotent,
//! "not found" is success for them; creation is separate from start; nothing is lost across an agent restart.

pub mod contract;
pub mod endpoint;
#[cfg(test)]
#[path = "../../tests/fake/mod.rs"]
pub mod fake;
pub(crate) mod log_links;
pub(crate) mod log_removal;
pub mod log_rotation;
pub mod log_trim;
pub mod runc;
mod streams;
pub(crate) mod termination;

pub use streams::{
    AttachOptions, ExecOptions, ExitFuture, OutputRead, OutputRoom, PipeStreams, PortConnector,
    ProcessStreams, SessionStart, StreamRoute, StreamSession,
};

use core::{future::Future, pin::Pin, time::Duration};
use std::path::Path;

use crate::api::cri::{
    AuthConfig, ContainerConfig, ExecOutput, FsInfo, LinuxResources, PodItem, PodRuntimeStatus,
    RuntimeCapabilities, RuntimeCondition, RuntimeStatus, RuntimeVersion, SandboxConfig,
    SandboxStatus, StoredImage,
};
use crate::api::stats::{DiskUsage, PodUsage, StatsDetail};
use crate::api::{ContainerId, PodUid, SandboxId};
use crate::image::ImageProgress;

/// A call to the runtime. Dropping it does not cancel work that it started, except a pull; see design section "Worker".
pub type RuntimeCall<'a, T> = Pin<Box<dyn Future<Output = Result<T, RuntimeError>> + 'a>>;

/// Error of a call to the runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// The sandbox, container or image does not exist. Stop and remove never return it.
    #[error("{0} not found")]
    NotFound(String),
    /// The configuration cannot be honoured; repeating the call unchanged is useless.
    #[error("{0}")]
    Invalid(String),
    /// A registry does not give the image for this credential, or the backend cannot tell why there is none.
    #[error("{0}")]
    Denied(String),
    /// The runtime has too much of it already; it may be tried again later.
    #[error("{0}")]
    Exhausted(String),
    /// The disk has no room for the image; it may be tried again once there is some.
    #[error("{0}")]
    Full(String),
    /// The link has no bytes left for the image; it goes on later.
    #[error("{0}")]
    Deferred(String),
    /// A call did not end in time; the processes that it started have been killed.
    #[error("{what} timed out after {after:?}")]
    Timeout {
        /// The step.
        what: String,
        /// Time that was waited.
        after: Duration,
    },
    /// Anything else: the step that failed and the whole chain of causes.
    #[error("{0}")]
    Failed(String),
}

/// Directory of checkpoints in the agent's root directory.
pub(crate) const CHECKPOINT_DIR: &str = "checkpoints";

/// Refuses a checkpoint in the words of a kubelet whose runtime has none, which clients know (CKPT-01).
pub(crate) fn refuse_checkpoint<'a>() -> RuntimeCall<'a, ()> {
    let text = "rpc error: code = Unimplemented desc = method CheckpointContainer not implemented";
    Box::pin(core::future::ready(Err(RuntimeError::Failed(text.into()))))
}

/// Fate of the logs of an instance that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRetention {
    /// The logs are removed too.
    Remove,
    /// The logs are kept: the next instance of the container continues them.
    Keep,
}

/// A store of images. Callers that need images alone use this half of a backend.
pub trait ImageService {
    /// The image that `reference` names, if it is in the store.
    fn image_status<'a>(&'a self, reference: &'a str) -> RuntimeCall<'a, Option<StoredImage>>;
    /// All images, sorted by id.
    fn list_images(&self) -> RuntimeCall<'_, Vec<StoredImage>>;
    /// Pulls `reference` with one credential, or anonymously; `sandbox` is that of the pod that wants it, if any does.
    /// Returns the image's id. If the call is dropped, the pull ends soon unless others wait for the same image; the
    /// bytes that have arrived stay.
    ///
    /// - Errors: [`RuntimeError::Denied`] if it is worth trying another credential.
    fn pull_image<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<&'a AuthConfig>,
        sandbox: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, String>;
    /// Progress of the pull of `reference`; `None` if there is no such pull. From memory.
    fn pull_progress(&self, reference: &str) -> Option<ImageProgress>;
    /// Returns true if a pull of `reference` may still bring its image, also a pull that was dropped; `None`: the
    /// runtime does not tell. From memory.
    fn is_pulling(&self, reference: &str) -> Option<bool> {
        let _ = reference;
        None
    }
    /// Removes an image with all its tags. Idempotent. Refuses an image that an instance uses.
    fn remove_image<'a>(&'a self, id: &'a str) -> RuntimeCall<'a, ()>;
    /// Disk use of the image store. It answers within seconds, or fails: the Node object waits for it, and for the list of
    /// images.
    fn image_fs_info(&self) -> RuntimeCall<'_, FsInfo>;
}

/// A container runtime. One pod's calls never overlap, except stops of its containers; calls for different pods do.
pub trait RuntimeService: ImageService {
    /// Name and version of the runtime, as last known. From memory.
    fn version(&self) -> RuntimeVersion;
    /// Capabilities of the runtime, as last known. From memory.
    fn capabilities(&self) -> RuntimeCapabilities;
    /// Sets the networks from which new sandboxes get their addresses, if the runtime chooses them itself; primary
    /// first, at most one of each family. Existing sandboxes keep their addresses (NODE-16).
    fn update_pod_cidrs<'a>(&'a self, cidrs: &'a [String]) -> RuntimeCall<'a, ()> {
        let _ = cidrs;
        Box::pin(async { Ok(()) })
    }
    /// Condition of what runs pods that are no containers: it answers, or why not; `None`: nothing does. From memory.
    fn external_pods_condition(&self) -> Option<RuntimeCondition> {
        None
    }
    /// Conditions; cheap enough for every 5 s.
    fn runtime_status(&self) -> RuntimeCall<'_, RuntimeStatus>;

    /// Lists all pods with every sandbox and instance, exited ones included (the relist). Their statuses are read by
    /// [`Self::pod_status`]. Sorted by UID; at most the pods the table can hold plus orphans.
    fn list_pods(&self) -> RuntimeCall<'_, Vec<PodItem>>;
    /// Takes in what has ended, and returns how often that list has changed until now: rather too often than too seldom. `None`:
    /// only the list tells.
    fn count_pod_changes(&self) -> Pin<Box<dyn Future<Output = Option<u64>> + '_>> {
        Box::pin(core::future::ready(None))
    }
    /// Reads one pod anew, termination messages included. Unknown UID: an empty status carrying it.
    fn pod_status(&self, uid: &PodUid) -> RuntimeCall<'_, PodRuntimeStatus>;
    /// Resolves when something at the runtime may have changed (a container ended). May be late or lost.
    fn wait_for_doorbell(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Makes a sandbox and its network. On error no usable sandbox is left; leftovers are listed as not ready.
    fn run_pod_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> RuntimeCall<'a, SandboxStatus>;
    /// Kills all processes of the sandbox and releases its network. Idempotent.
    fn stop_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()>;
    /// Stops the sandbox and removes its containers and every trace of it. Idempotent.
    fn remove_pod_sandbox<'a>(&'a self, id: &'a SandboxId) -> RuntimeCall<'a, ()>;

    /// Creates an instance. `made` is the configuration of the sandbox, made anew for backends that do not remember it;
    /// `None` if it is not known now.
    fn create_container<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a ContainerConfig,
        made: Option<&'a SandboxConfig>,
    ) -> RuntimeCall<'a, ContainerId>;
    /// Starts a created instance. A failure leaves it `Exited` with reason `StartError` and code 128.
    fn start_container<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()>;
    /// Sends the stop signal once, waits `grace`, kills all its processes, waits for the end. Idempotent.
    fn stop_container<'a>(&'a self, id: &'a ContainerId, grace: Duration) -> RuntimeCall<'a, ()>;
    /// Removes the instance, its root file system and, unless they stay, its logs. Kills it first if it runs. Idempotent.
    fn remove_container<'a>(
        &'a self,
        id: &'a ContainerId,
        logs: LogRetention,
    ) -> RuntimeCall<'a, ()>;
    /// Reopens the log file after a rotation.
    fn reopen_container_log<'a>(&'a self, id: &'a ContainerId) -> RuntimeCall<'a, ()>;
    /// Runs a command in a running container and collects at most `limit` bytes of each stream.
    /// After `timeout` the process in the container is killed and [`RuntimeError::Timeout`] returned.
    fn exec_sync<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput>;

    /// Returns true if the limits of the pod's running containers can be changed. From memory.
    fn can_resize(&self, uid: &PodUid) -> bool {
        let _ = uid;
        self.capabilities().live_resource_updates
    }
    /// Tells a runtime whose sandboxes have limits of their own what the pod has now: its containers together, and its
    /// overhead. The limits of the pod's cgroup are the agent's.
    fn update_pod_sandbox_resources<'a>(
        &'a self,
        id: &'a SandboxId,
        resources: &'a LinuxResources,
        overhead: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()> {
        let _ = (id, resources, overhead);
        Box::pin(async { Ok(()) })
    }
    /// Changes the limits of a running container to these, wholly or not at all; `None` stays as it is. Refused unless
    /// [`RuntimeCapabilities::live_resource_updates`] says otherwise.
    fn update_container_resources<'a>(
        &'a self,
        id: &'a ContainerId,
        resources: &'a LinuxResources,
    ) -> RuntimeCall<'a, ()>;

    /// Writes a checkpoint of a running container to the archive `location`, mode 0600. The container runs on, also if the
    /// checkpoint fails or takes longer than `timeout`.
    fn checkpoint_container<'a>(
        &'a self,
        id: &'a ContainerId,
        location: &'a Path,
        timeout: Duration,
    ) -> RuntimeCall<'a, ()> {
        let _ = (id, location, timeout);
        refuse_checkpoint()
    }

    /// Runs a command with streams, for `exec -it`; a local one begins when its [`SessionStart`] is awaited. "Not found", from
    /// this call or at the start, if the container does not run.
    fn exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>>;
    /// Attaches to the streams of a running container. Its earlier output is in its log. "Not found", from this call or
    /// at the start, if it does not run.
    fn attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>>;
    /// Opens the TCP ports of a pod. `ports` are those that the client names at once; empty: it names them later. "Not
    /// found", from this call or at a connection, if the sandbox is not ready.
    fn port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>>;

    /// Reads the usage of pods with a usable sandbox, and of their running containers, sorted by UID. Reads some files of
    /// each: call it on demand.
    fn list_pod_usage(&self, detail: StatsDetail) -> RuntimeCall<'_, Vec<PodUsage>>;
    /// Counts the disk use of a container above its image; `None` if nothing is known of it, exhausted if there is too
    /// much to count. Walks through all of it.
    fn writable_layer_usage<'a>(
        &'a self,
        id: &'a ContainerId,
    ) -> RuntimeCall<'a, Option<DiskUsage>>;
}
