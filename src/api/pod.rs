//! core/v1 Pod: what a user asks for. Field names and meanings are upstream's.
#![expect(missing_docs, reason = "field names and meanings are those of core/v1")]

use alloc::collections::BTreeMap;
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ObjectMeta, PodStatus, Quantity};

/// Annotation that names the source a pod came from (`file`, `http`, `api`).
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of a mirror pod; its value is the static pod's hash.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation: when the pod was first seen.
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
/// Annotation: the static pod's hash, its UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Structs of the API: absent fields decode as Go's zero values, zero values are not written.
macro_rules! object {
    ($(#[$m:meta])* $name:ident { $($(#[$fm:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($(#[$fm])* #[serde(skip_serializing_if = "is_default")] pub $field: $ty),* }
    };
}

pub(super) use object;

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

object!(
    /// A pod: metadata, spec and status.
    Pod { metadata: ObjectMeta, spec: PodSpec, status: PodStatus }
);

object!(PodSpec {
    volumes: Vec<Volume>,
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
    /// Defaulted to `Always`.
    restart_policy: RestartPolicy,
    termination_grace_period_seconds: Option<i64>,
    active_deadline_seconds: Option<i64>,
    /// `ClusterFirst` when empty.
    dns_policy: String,
    dns_config: Option<PodDnsConfig>,
    node_selector: BTreeMap<String, String>,
    affinity: Option<Affinity>,
    service_account_name: String,
    automount_service_account_token: Option<bool>,
    node_name: String,
    host_network: bool,
    #[serde(rename = "hostPID")]
    host_pid: bool,
    #[serde(rename = "hostIPC")]
    host_ipc: bool,
    host_users: Option<bool>,
    share_process_namespace: Option<bool>,
    security_context: Option<PodSecurityContext>,
    image_pull_secrets: Vec<LocalObjectReference>,
    hostname: String,
    subdomain: String,
    #[serde(rename = "setHostnameAsFQDN")]
    set_hostname_as_fqdn: Option<bool>,
    hostname_override: Option<String>,
    scheduler_name: String,
    tolerations: Vec<Toleration>,
    host_aliases: Vec<HostAlias>,
    priority_class_name: String,
    priority: Option<i32>,
    readiness_gates: Vec<ReadinessGate>,
    runtime_class_name: Option<String>,
    enable_service_links: Option<bool>,
    overhead: BTreeMap<String, Quantity>,
    os: Option<PodOs>,
    resources: Option<Resources>,
    resource_claims: Vec<PodResourceClaim>,
});

object!(
    /// Only its name: claims are not served (DEV-47).
    PodResourceClaim { name: String }
);

impl PodSpec {
    /// Init, regular and ephemeral containers, in this order.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers
            .iter()
            .chain(&self.containers)
            .chain(&self.ephemeral_containers)
    }
}

object!(
    /// Only what the node itself checks: pod affinity is the scheduler's.
    Affinity { node_affinity: Option<NodeAffinity> }
);
object!(NodeAffinity { required_during_scheduling_ignored_during_execution: Option<NodeSelector> });
object!(NodeSelector { node_selector_terms: Vec<NodeSelectorTerm> });
object!(NodeSelectorTerm {
    match_expressions: Vec<NodeSelectorRequirement>,
    match_fields: Vec<NodeSelectorRequirement>,
});
object!(NodeSelectorRequirement { key: String, operator: String, values: Vec<String> });
object!(PodOs { name: String });
object!(ReadinessGate {
    condition_type: String
});
object!(LocalObjectReference { name: String });
object!(HostAlias { ip: String, hostnames: Vec<String> });
object!(PodDnsConfig { nameservers: Vec<String>, searches: Vec<String>, options: Vec<DnsOption> });
object!(DnsOption { name: String, value: Option<String> });
object!(Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
    toleration_seconds: Option<i64>,
});

/// Restart policy of a pod, or of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

object!(Container {
    name: String,
    image: String,
    command: Vec<String>,
    args: Vec<String>,
    working_dir: String,
    ports: Vec<ContainerPort>,
    env_from: Vec<EnvFromSource>,
    env: Vec<EnvVar>,
    resources: Resources,
    resize_policy: Vec<ResizePolicy>,
    /// `Always` on an init container makes it a sidecar.
    restart_policy: Option<RestartPolicy>,
    restart_policy_rules: Vec<RestartRule>,
    volume_mounts: Vec<VolumeMount>,
    volume_devices: Vec<VolumeDevice>,
    liveness_probe: Option<Probe>,
    readiness_probe: Option<Probe>,
    startup_probe: Option<Probe>,
    lifecycle: Option<Lifecycle>,
    termination_message_path: Option<String>,
    termination_message_policy: String,
    /// `Always`, `IfNotPresent` or `Never`; defaulted per IMG-03.
    image_pull_policy: String,
    security_context: Option<SecurityContext>,
    stdin: bool,
    stdin_once: bool,
    tty: bool,
    /// Ephemeral containers only.
    target_container_name: String,
});

impl Container {
    /// Returns true for a sidecar. Meaningful for init containers only.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy == Some(RestartPolicy::Always)
    }

    /// Returns true if the container mounts volume `name`.
    #[must_use]
    pub fn mounts_volume(&self, name: &str) -> bool {
        self.volume_mounts.iter().any(|m| m.name == name)
    }
}

object!(ContainerPort {
    name: String,
    host_port: u16,
    container_port: u16,
    /// `TCP` when empty.
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
});
object!(ResizePolicy {
    resource_name: String,
    restart_policy: String
});
object!(RestartRule { action: String, exit_codes: Option<RestartRuleExitCodes> });
object!(RestartRuleExitCodes { operator: String, values: Vec<i32> });
object!(Resources { limits: BTreeMap<String, Quantity>, requests: BTreeMap<String, Quantity> });
object!(EnvFromSource {
    prefix: String,
    config_map_ref: Option<OptionalReference>,
    secret_ref: Option<OptionalReference>,
});
object!(OptionalReference { name: String, optional: Option<bool> });
object!(EnvVar { name: String, value: String, value_from: Option<EnvVarSource> });
object!(EnvVarSource {
    field_ref: Option<FieldRef>,
    resource_field_ref: Option<ResourceFieldRef>,
    config_map_key_ref: Option<KeyRef>,
    secret_key_ref: Option<KeyRef>,
    file_key_ref: Option<FileKeyRef>,
});
object!(FieldRef {
    api_version: String,
    field_path: String
});
object!(ResourceFieldRef { container_name: String, resource: String, divisor: Option<Quantity> });
object!(KeyRef { name: String, key: String, optional: Option<bool> });
object!(FileKeyRef { volume_name: String, path: String, key: String, optional: Option<bool> });
object!(VolumeMount {
    name: String,
    read_only: bool,
    recursive_read_only: Option<String>,
    mount_path: String,
    sub_path: String,
    sub_path_expr: String,
    mount_propagation: Option<String>,
});
object!(VolumeDevice {
    name: String,
    device_path: String
});

object!(Probe {
    exec: Option<ExecAction>,
    http_get: Option<HttpGetAction>,
    tcp_socket: Option<TcpSocketAction>,
    grpc: Option<GrpcAction>,
    initial_delay_seconds: i32,
    timeout_seconds: i32,
    period_seconds: i32,
    success_threshold: i32,
    failure_threshold: i32,
    termination_grace_period_seconds: Option<i64>,
});
object!(Lifecycle {
    post_start: Option<LifecycleHandler>,
    pre_stop: Option<LifecycleHandler>,
    stop_signal: Option<String>,
});
object!(LifecycleHandler {
    exec: Option<ExecAction>,
    http_get: Option<HttpGetAction>,
    tcp_socket: Option<TcpSocketAction>,
    sleep: Option<SleepAction>,
});
object!(ExecAction { command: Vec<String> });
object!(SleepAction { seconds: i64 });
object!(HttpGetAction {
    path: String,
    port: IntOrString,
    host: String,
    scheme: String,
    http_headers: Vec<HttpHeader>,
});
object!(HttpHeader {
    name: String,
    value: String
});
object!(TcpSocketAction {
    port: IntOrString,
    host: String
});
object!(GrpcAction { port: i32, service: Option<String> });

object!(PodSecurityContext {
    se_linux_options: Option<SeLinuxOptions>,
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    run_as_non_root: Option<bool>,
    supplemental_groups: Vec<i64>,
    supplemental_groups_policy: Option<String>,
    fs_group: Option<i64>,
    fs_group_change_policy: Option<String>,
    sysctls: Vec<Sysctl>,
    seccomp_profile: Option<SeccompProfile>,
    app_armor_profile: Option<SeccompProfile>,
});
object!(Sysctl {
    name: String,
    value: String
});
object!(
    /// Seccomp or AppArmor profile reference: both have these two fields.
    SeccompProfile {
        #[serde(rename = "type")]
        kind: String,
        localhost_profile: Option<String>,
    }
);
object!(SeLinuxOptions {
    user: String,
    role: String,
    #[serde(rename = "type")]
    kind: String,
    level: String,
});
object!(SecurityContext {
    capabilities: Option<Capabilities>,
    privileged: Option<bool>,
    se_linux_options: Option<SeLinuxOptions>,
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    run_as_non_root: Option<bool>,
    read_only_root_filesystem: Option<bool>,
    allow_privilege_escalation: Option<bool>,
    proc_mount: Option<String>,
    seccomp_profile: Option<SeccompProfile>,
    app_armor_profile: Option<SeccompProfile>,
});
object!(Capabilities { add: Vec<String>, drop: Vec<String> });

object!(
    /// A volume. Exactly one source is set; of one that is not modelled there is the name.
    Volume {
        name: String,
        empty_dir: Option<EmptyDirVolume>,
        host_path: Option<HostPathVolume>,
        #[serde(rename = "downwardAPI")]
        downward_api: Option<DownwardApiVolume>,
        projected: Option<ProjectedVolume>,
        config_map: Option<ConfigMapVolume>,
        secret: Option<SecretVolume>,
        nfs: Option<NfsVolume>,
        persistent_volume_claim: Option<PvcVolume>,
        ephemeral: Option<EphemeralVolume>,
        image: Option<ImageVolume>,
        /// Field of the source, if it is not modelled. From the raw object.
        #[serde(skip)]
        unmodelled: String,
    }
);
object!(EmptyDirVolume { medium: String, size_limit: Option<Quantity> });
object!(HostPathVolume {
    path: String,
    #[serde(rename = "type")]
    kind: Option<String>,
});
object!(NfsVolume {
    server: String,
    path: String,
    read_only: bool
});
object!(PvcVolume {
    claim_name: String,
    read_only: bool
});
object!(
    /// A claim made for the pod; what it asks for is not the node's to know.
    EphemeralVolume {}
);
object!(ImageVolume {
    reference: String,
    pull_policy: String
});
object!(DownwardApiVolume { items: Vec<DownwardApiFile>, default_mode: Option<i32> });
object!(DownwardApiFile {
    path: String,
    field_ref: Option<FieldRef>,
    resource_field_ref: Option<ResourceFieldRef>,
    mode: Option<i32>,
});
object!(KeyToPath { key: String, path: String, mode: Option<i32> });
object!(ConfigMapVolume {
    name: String,
    items: Vec<KeyToPath>,
    default_mode: Option<i32>,
    optional: Option<bool>,
});
object!(SecretVolume {
    secret_name: String,
    items: Vec<KeyToPath>,
    default_mode: Option<i32>,
    optional: Option<bool>,
});
object!(ProjectedVolume { sources: Vec<ProjectedSource>, default_mode: Option<i32> });
object!(ProjectedSource {
    secret: Option<ProjectedObject>,
    config_map: Option<ProjectedObject>,
    #[serde(rename = "downwardAPI")]
    downward_api: Option<DownwardApiVolume>,
    service_account_token: Option<ServiceAccountTokenProjection>,
    cluster_trust_bundle: Option<ClusterTrustBundleProjection>,
    pod_certificate: Option<PodCertificateProjection>,
    /// Field of the source, if it is not modelled. From the raw object.
    #[serde(skip)]
    unmodelled: String,
});
object!(ProjectedObject { name: String, items: Vec<KeyToPath>, optional: Option<bool> });
object!(ServiceAccountTokenProjection { audience: String, expiration_seconds: Option<i64>, path: String });
object!(ClusterTrustBundleProjection {
    name: String,
    signer_name: String,
    label_selector: Option<LabelSelector>,
    optional: Option<bool>,
    path: String,
});
object!(PodCertificateProjection {
    signer_name: String,
    key_type: String,
    max_expiration_seconds: Option<i64>,
    credential_bundle_path: String,
    key_path: String,
    certificate_chain_path: String,
    user_annotations: BTreeMap<String, String>,
});
object!(LabelSelector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<LabelSelectorRequirement>,
});
object!(LabelSelectorRequirement { key: String, operator: String, values: Vec<String> });

/// A port number or a port name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IntOrString {
    Int(i32),
    Text(String),
}

impl Default for IntOrString {
    fn default() -> Self {
        Self::Int(0)
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(n) => serializer.serialize_i32(*n),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntOrStringVisitor;
        impl de::Visitor<'_> for IntOrStringVisitor {
            type Value = IntOrString;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<IntOrString, E> {
                i32::try_from(n).map(IntOrString::Int).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<IntOrString, E> {
                i32::try_from(n).map(IntOrString::Int).map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::Text(text.into()))
            }
        }
        deserializer.deserialize_any(IntOrStringVisitor)
    }
}
