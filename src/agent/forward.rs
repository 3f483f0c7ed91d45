//! The operations of a runtime in front of another runtime, which hands most calls on.

/// Writes the named operations of [`RuntimeService`](crate::runtime::RuntimeService) or
/// [`ImageService`](crate::runtime::ImageService) for a type with `inner`, the runtime behind, and `pass`, which sees
/// each call that may fail. The types of the traits have to be in scope.
macro_rules! forward {
    ($($name:ident)*) => { $(forward! { @$name })* };

    (@image_status) => { forward! { fn image_status<'a>(reference: &'a str) -> Option<Image> as ImageStatus } };
    (@list_images) => { forward! { fn list_images<'a>() -> Vec<Image> as ListImages } };
    (@pull_image) => { forward! {
        fn pull_image<'a>(reference: &'a str, credential: Option<&'a AuthConfig>, sandbox: Option<&'a SandboxConfig>) -> String as PullImage
    } };
    (@remove_image) => { forward! { fn remove_image<'a>(id: &'a str) -> () as RemoveImage } };
    (@image_fs_info) => { forward! { fn image_fs_info<'a>() -> FsInfo as ImageFsInfo } };
    (@pull_progress) => {
        fn pull_progress(&self, reference: &str) -> Option<Progress> {
            self.inner.pull_progress(reference)
        }
    };
    (@is_pulling) => {
        fn is_pulling(&self, reference: &str) -> Option<bool> {
            self.inner.is_pulling(reference)
        }
    };

    (@version) => {
        fn version(&self) -> Version {
            self.inner.version()
        }
    };
    (@update_pod_cidrs) => { forward! { fn update_pod_cidrs<'a>(cidrs: &'a [String]) -> () as UpdatePodCidrs } };
    (@status) => { forward! { fn status<'a>() -> RuntimeStatus as Status } };
    (@list_pods) => { forward! { fn list_pods<'a>() -> Vec<PodItem> as ListPods } };
    (@pod_status) => { forward! { fn pod_status<'a>(uid: &PodUid) -> PodRuntimeStatus as PodStatus } };
    (@run_pod_sandbox) => { forward! { fn run_pod_sandbox<'a>(config: &'a SandboxConfig) -> SandboxStatus as RunPodSandbox } };
    (@stop_pod_sandbox) => { forward! { fn stop_pod_sandbox<'a>(id: &'a SandboxId) -> () as StopPodSandbox } };
    (@remove_pod_sandbox) => { forward! { fn remove_pod_sandbox<'a>(id: &'a SandboxId) -> () as RemovePodSandbox } };
    (@create_container) => { forward! {
        fn create_container<'a>(sandbox: &'a SandboxId, config: &'a ContainerConfig, made: Option<&'a SandboxConfig>) -> ContainerId
            as CreateContainer
    } };
    (@start_container) => { forward! { fn start_container<'a>(id: &'a ContainerId) -> () as StartContainer } };
    (@stop_container) => { forward! { fn stop_container<'a>(id: &'a ContainerId, grace: Duration) -> () as StopContainer } };
    (@remove_container) => { forward! { fn remove_container<'a>(id: &'a ContainerId, logs: Logs) -> () as RemoveContainer } };
    (@reopen_log) => { forward! { fn reopen_log<'a>(id: &'a ContainerId) -> () as ReopenLog } };
    (@exec_sync) => { forward! {
        fn exec_sync<'a>(id: &'a ContainerId, command: &'a [String], timeout: Option<Duration>, limit: usize) -> ExecOutput as ExecSync
    } };
    (@update_container_resources) => { forward! {
        fn update_container_resources<'a>(id: &'a ContainerId, resources: &'a LinuxResources) -> () as UpdateContainer
    } };
    (@list_pod_usage) => { forward! { fn list_pod_usage<'a>(detail: Detail) -> Vec<PodUsage> as ListPodUsage } };
    (@writable_layer) => { forward! { fn writable_layer<'a>(id: &'a ContainerId) -> Option<DiskUsage> as WritableLayer } };

    (fn $name:ident<$a:lifetime>($($arg:ident: $type:ty),*) -> $result:ty as $operation:ident) => {
        fn $name<$a>(&$a self, $($arg: $type),*) -> $crate::runtime::Call<$a, $result> {
            self.pass($crate::logic::metrics::own::Operation::$operation, self.inner.$name($($arg),*))
        }
    };
}
pub(super) use forward;
