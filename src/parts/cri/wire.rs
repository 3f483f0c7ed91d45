//! Messages of CRI v1, as far as this client uses them: fields that it sends, and fields that it reads of answers.
//! Other fields are skipped, and never sent. Numbers and names are those of `k8s.io/cri-api`, `runtime/v1/api.proto`.
//!
//! Presence counts where a field is an `Option`. Enumerations are numbers; their zero values are not on the wire.

use alloc::collections::BTreeMap;

use crate::grpc::proto::message;

/// Texts by name.
pub(super) type TextMap = BTreeMap<String, String>;

/// `PodSandboxState`.
pub(super) const SANDBOX_READY: i32 = 0;
/// `ContainerState`.
pub(super) const CONTAINER_CREATED: i32 = 0;
/// See [`CONTAINER_CREATED`].
pub(super) const CONTAINER_RUNNING: i32 = 1;
/// See [`CONTAINER_CREATED`].
pub(super) const CONTAINER_EXITED: i32 = 2;

message! {
    /// A message without fields.
    pub(super) struct CriEmpty {}
    /// A message of one text: the id that a call is about, or the id or URL that it answers.
    pub(super) struct TextMessage {
        1 word: String,
    }
    pub(super) struct VersionResponse {
        1 version: String,
        2 runtime_name: String,
        3 runtime_version: String,
        4 runtime_api_version: String,
    }
    pub(super) struct ConditionMessage {
        1 kind: String,
        2 status: bool,
        3 reason: String,
        4 message: String,
    }
    pub(super) struct ConditionsMessage {
        1 conditions: Vec<ConditionMessage>,
    }
    pub(super) struct HandlerFeatures {
        1 recursive_read_only_mounts: bool,
        2 user_namespaces: bool,
    }
    pub(super) struct HandlerMessage {
        1 name: String,
        2 features: Option<HandlerFeatures>,
    }
    pub(super) struct RuntimeFeatures {
        1 supplemental_groups_policy: bool,
    }
    pub(super) struct StatusResponse {
        1 status: Option<ConditionsMessage>,
        3 handlers: Vec<HandlerMessage>,
        4 features: Option<RuntimeFeatures>,
    }
    pub(super) struct StatusRequest {
        1 verbose: bool,
    }
    /// Part of a status that only a verbose request brings.
    pub(super) struct StatusInfo {
        2 info: TextMap,
    }
    pub(super) struct LinuxRuntimeConfiguration {
        1 cgroup_driver: i32,
    }
    pub(super) struct RuntimeConfigResponse {
        1 linux: Option<LinuxRuntimeConfiguration>,
    }
    pub(super) struct RuntimeNetworkConfig {
        1 pod_cidr: String,
    }
    pub(super) struct RuntimeConfigMessage {
        1 network: Option<RuntimeNetworkConfig>,
    }
    pub(super) struct UpdateRuntimeConfigRequest {
        1 config: Option<RuntimeConfigMessage>,
    }

    pub(super) struct PodSandboxMetadata {
        1 name: String,
        2 uid: String,
        3 namespace: String,
        4 attempt: u32,
    }
    pub(super) struct DnsConfigMessage {
        1 servers: Vec<String>,
        2 searches: Vec<String>,
        3 options: Vec<String>,
    }
    pub(super) struct PortMappingMessage {
        1 protocol: i32,
        2 container_port: i32,
        3 host_port: i32,
        4 host_ip: String,
    }
    pub(super) struct IdMappingMessage {
        1 host_id: u32,
        2 container_id: u32,
        3 length: u32,
    }
    pub(super) struct UserNamespace {
        1 mode: i32,
        2 uids: Vec<IdMappingMessage>,
        3 gids: Vec<IdMappingMessage>,
    }
    pub(super) struct NamespaceOption {
        1 network: i32,
        2 pid: i32,
        3 ipc: i32,
        4 target_id: String,
        5 userns: Option<UserNamespace>,
    }
    pub(super) struct Int64Value {
        1 value: i64,
    }
    pub(super) struct UInt64Value {
        1 value: u64,
    }
    pub(super) struct SecurityProfileMessage {
        1 kind: i32,
        2 localhost_ref: String,
    }
    pub(super) struct SelinuxOption {
        1 user: String,
        2 role: String,
        3 kind: String,
        4 level: String,
    }
    pub(super) struct SandboxSecurity {
        1 namespaces: Option<NamespaceOption>,
        2 selinux: Option<SelinuxOption>,
        3 run_as_user: Option<Int64Value>,
        5 supplemental_groups: Vec<i64>,
        6 privileged: bool,
        8 run_as_group: Option<Int64Value>,
        9 seccomp: Option<SecurityProfileMessage>,
        11 supplemental_groups_policy: i32,
    }
    pub(super) struct LinuxSandbox {
        1 cgroup_parent: String,
        2 security: Option<SandboxSecurity>,
        3 sysctls: TextMap,
        4 overhead: Option<LinuxContainerResources>,
        5 resources: Option<LinuxContainerResources>,
    }
    pub(super) struct PodSandboxConfig {
        1 metadata: Option<PodSandboxMetadata>,
        2 hostname: String,
        3 log_directory: String,
        4 dns: Option<DnsConfigMessage>,
        5 port_mappings: Vec<PortMappingMessage>,
        6 labels: TextMap,
        7 annotations: TextMap,
        8 linux: Option<LinuxSandbox>,
    }
    pub(super) struct RunPodSandboxRequest {
        1 config: Option<PodSandboxConfig>,
        2 runtime_handler: String,
    }
    pub(super) struct PodSandboxFilter {
        1 id: String,
        3 labels: TextMap,
    }
    pub(super) struct ListPodSandboxRequest {
        1 filter: Option<PodSandboxFilter>,
    }
    pub(super) struct PodSandbox {
        1 id: String,
        2 metadata: Option<PodSandboxMetadata>,
        3 state: i32,
        4 created_at: i64,
    }
    pub(super) struct ListPodSandboxResponse {
        1 items: Vec<PodSandbox>,
    }
    pub(super) struct PodSandboxNetworkStatus {
        1 ip: String,
        2 additional_ips: Vec<TextMessage>,
    }
    pub(super) struct NamespacesMessage {
        2 options: Option<NamespaceOption>,
    }
    pub(super) struct LinuxSandboxStatus {
        1 namespaces: Option<NamespacesMessage>,
    }
    pub(super) struct PodSandboxStatus {
        1 id: String,
        2 metadata: Option<PodSandboxMetadata>,
        3 state: i32,
        4 created_at: i64,
        5 network: Option<PodSandboxNetworkStatus>,
        6 linux: Option<LinuxSandboxStatus>,
        9 runtime_handler: String,
    }
    pub(super) struct PodSandboxStatusResponse {
        1 status: Option<PodSandboxStatus>,
    }

    pub(super) struct ContainerMetadata {
        1 name: String,
        2 attempt: u32,
    }
    pub(super) struct ImageSpecMessage {
        1 image: String,
        2 annotations: TextMap,
        18 user_specified_image: String,
    }
    pub(super) struct KeyValue {
        1 key: String,
        2 value: Vec<u8>,
    }
    pub(super) struct MountMessage {
        1 container_path: String,
        2 host_path: String,
        3 readonly: bool,
        4 selinux_relabel: bool,
        5 propagation: i32,
        6 uid_mappings: Vec<IdMappingMessage>,
        7 gid_mappings: Vec<IdMappingMessage>,
        8 recursive_read_only: bool,
        9 image: Option<ImageSpecMessage>,
        10 image_sub_path: String,
    }
    pub(super) struct DeviceMessage {
        1 container_path: String,
        2 host_path: String,
        3 permissions: String,
    }
    pub(super) struct CdiDevice {
        1 name: String,
    }
    pub(super) struct HugepageLimit {
        1 page_size: String,
        2 limit: u64,
    }
    pub(super) struct LinuxContainerResources {
        1 cpu_period: i64,
        2 cpu_quota: i64,
        3 cpu_shares: i64,
        4 memory_limit_in_bytes: i64,
        5 oom_score_adj: i64,
        6 cpuset_cpus: String,
        8 hugepage_limits: Vec<HugepageLimit>,
        9 unified: TextMap,
        10 memory_swap_limit_in_bytes: i64,
    }
    pub(super) struct Capability {
        1 add: Vec<String>,
        2 drop: Vec<String>,
    }
    pub(super) struct ContainerSecurity {
        1 capabilities: Option<Capability>,
        2 privileged: bool,
        3 namespaces: Option<NamespaceOption>,
        4 selinux: Option<SelinuxOption>,
        5 run_as_user: Option<Int64Value>,
        6 run_as_username: String,
        7 readonly_rootfs: bool,
        8 supplemental_groups: Vec<i64>,
        9 apparmor_profile: String,
        11 no_new_privs: bool,
        12 run_as_group: Option<Int64Value>,
        13 masked_paths: Vec<String>,
        14 readonly_paths: Vec<String>,
        15 seccomp: Option<SecurityProfileMessage>,
        16 apparmor: Option<SecurityProfileMessage>,
        17 supplemental_groups_policy: i32,
    }
    pub(super) struct LinuxContainer {
        1 resources: Option<LinuxContainerResources>,
        2 security: Option<ContainerSecurity>,
    }
    pub(super) struct ContainerConfigMessage {
        1 metadata: Option<ContainerMetadata>,
        2 image: Option<ImageSpecMessage>,
        3 command: Vec<String>,
        4 args: Vec<String>,
        5 working_dir: String,
        6 envs: Vec<KeyValue>,
        7 mounts: Vec<MountMessage>,
        8 devices: Vec<DeviceMessage>,
        9 labels: TextMap,
        10 annotations: TextMap,
        11 log_path: String,
        12 stdin: bool,
        13 stdin_once: bool,
        14 tty: bool,
        15 linux: Option<LinuxContainer>,
        17 cdi_devices: Vec<CdiDevice>,
        18 stop_signal: i32,
    }
    pub(super) struct CreateContainerRequest {
        1 sandbox: String,
        2 config: Option<ContainerConfigMessage>,
        3 sandbox_config: Option<PodSandboxConfig>,
    }
    pub(super) struct StopContainerRequest {
        1 id: String,
        2 timeout_s: i64,
    }
    pub(super) struct ContainerFilter {
        1 id: String,
        3 sandbox: String,
        4 labels: TextMap,
    }
    pub(super) struct ListContainersRequest {
        1 filter: Option<ContainerFilter>,
    }
    pub(super) struct ContainerMessage {
        1 id: String,
        2 sandbox: String,
        3 metadata: Option<ContainerMetadata>,
        4 image: Option<ImageSpecMessage>,
        5 image_ref: String,
        6 state: i32,
        7 created_at: i64,
        8 labels: TextMap,
        9 annotations: TextMap,
        10 image_id: String,
    }
    pub(super) struct ListContainersResponse {
        1 containers: Vec<ContainerMessage>,
    }
    pub(super) struct LinuxUser {
        1 uid: i64,
        2 gid: i64,
        3 supplemental_groups: Vec<i64>,
    }
    pub(super) struct ContainerUserMessage {
        1 linux: Option<LinuxUser>,
    }
    pub(super) struct ContainerStatusMessage {
        1 id: String,
        2 metadata: Option<ContainerMetadata>,
        3 state: i32,
        4 created_at: i64,
        5 started_at: i64,
        6 finished_at: i64,
        7 exit_code: i32,
        8 image: Option<ImageSpecMessage>,
        9 image_ref: String,
        10 reason: String,
        11 message: String,
        12 labels: TextMap,
        13 annotations: TextMap,
        14 mounts: Vec<MountMessage>,
        15 log_path: String,
        17 image_id: String,
        18 user: Option<ContainerUserMessage>,
        19 stop_signal: i32,
    }
    pub(super) struct ContainerStatusResponse {
        1 status: Option<ContainerStatusMessage>,
    }
    pub(super) struct UpdateContainerResourcesRequest {
        1 id: String,
        2 linux: Option<LinuxContainerResources>,
    }
    pub(super) struct UpdatePodSandboxResourcesRequest {
        1 id: String,
        2 overhead: Option<LinuxContainerResources>,
        3 resources: Option<LinuxContainerResources>,
    }
    pub(super) struct CheckpointContainerRequest {
        1 container_id: String,
        2 location: String,
        3 timeout_s: i64,
    }
    pub(super) struct ExecSyncRequest {
        1 id: String,
        2 command: Vec<String>,
        3 timeout_s: i64,
    }
    pub(super) struct ExecSyncResponse {
        1 stdout: Vec<u8>,
        2 stderr: Vec<u8>,
        3 exit_code: i32,
    }
    pub(super) struct ExecRequest {
        1 id: String,
        2 command: Vec<String>,
        3 tty: bool,
        4 stdin: bool,
        5 stdout: bool,
        6 stderr: bool,
    }
    pub(super) struct AttachRequest {
        1 id: String,
        2 stdin: bool,
        3 tty: bool,
        4 stdout: bool,
        5 stderr: bool,
    }
    pub(super) struct PortForwardRequest {
        1 sandbox: String,
        2 ports: Vec<i32>,
    }

    /// Request of ImageStatus and of RemoveImage.
    pub(super) struct ImageRequest {
        1 image: Option<ImageSpecMessage>,
    }
    pub(super) struct ImageMessage {
        1 id: String,
        2 repo_tags: Vec<String>,
        3 repo_digests: Vec<String>,
        4 size: u64,
        5 uid: Option<Int64Value>,
        6 username: String,
        8 pinned: bool,
    }
    pub(super) struct ImageStatusResponse {
        1 image: Option<ImageMessage>,
    }
    pub(super) struct ListImagesResponse {
        1 images: Vec<ImageMessage>,
    }
    pub(super) struct AuthConfigMessage {
        1 username: String,
        2 password: String,
        3 auth: String,
        4 server_address: String,
        5 identity_token: String,
        6 registry_token: String,
    }
    pub(super) struct PullImageRequest {
        1 image: Option<ImageSpecMessage>,
        2 auth: Option<AuthConfigMessage>,
        3 sandbox_config: Option<PodSandboxConfig>,
    }
    pub(super) struct FilesystemUsage {
        2 fs_id: Option<TextMessage>,
        3 used_bytes: Option<UInt64Value>,
        4 inodes_used: Option<UInt64Value>,
    }
    pub(super) struct ImageFsInfoResponse {
        1 image_filesystems: Vec<FilesystemUsage>,
        2 container_filesystems: Vec<FilesystemUsage>,
    }
    pub(super) struct ContainerStats {
        4 writable_layer: Option<FilesystemUsage>,
    }
    pub(super) struct ContainerStatsResponse {
        1 stats: Option<ContainerStats>,
    }
}
