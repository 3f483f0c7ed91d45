//! The document named by `--config`: KubeletConfiguration v1beta1, and the agent's own keys under `picolet`.
//!
//! Fields of a kubelet that mean nothing to this agent are known: a kubelet's file loads, and `without_effect` says which
//! of them were asked for in vain.

use alloc::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::decode::{self, DecodeError};
use super::duration::GoDuration;
use super::keys::{self, KeyPlace};
use crate::{
    api::{Quantity, node::Taint},
    logic::spelling,
    parts,
};

/// `apiVersion` of the document.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// `kind` of the document.
pub const KIND: &str = "KubeletConfiguration";

/// Most warnings about one document: an operator reads no more of them.
const MAX_WARNINGS: usize = 200;

/// A document as read, before flags and defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigDocument {
    /// All fields, relative paths resolved.
    pub value: Value,
    /// Unknown and duplicate fields, one sentence each.
    pub warnings: Vec<String>,
}

/// Reads a document, strictly first. If only unknown or duplicate fields are wrong, they become warnings (CONF-01).
///
/// `dir` is the directory of the file, against which relative paths are resolved; it should be absolute.
pub fn read_config_document(bytes: &[u8], dir: &Path) -> Result<ConfigDocument, DecodeError> {
    let mut document = check_document(decode::parse_document(bytes)?)?;
    for key in keys::all_keys().filter(|key| key.is_path) {
        let pointer = format!("/{}", key.name.replace('.', "/"));
        if let Some(Value::String(path)) = document.value.pointer_mut(&pointer)
            && !path.is_empty()
            && !path.starts_with('/')
        {
            *path = dir.join(&path).to_string_lossy().into_owned();
        }
    }
    Ok(document)
}

/// Reads a drop-in: `null` fields stay, and relative paths as they are (CONF-02).
pub(super) fn read_drop_in(bytes: &[u8]) -> Result<ConfigDocument, DecodeError> {
    check_document(decode::parse_patch(bytes)?)
}

fn check_document(read: decode::DecodedDocument) -> Result<ConfigDocument, DecodeError> {
    let decode::DecodedDocument { value, duplicates } = read;
    for (field, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if value[field].as_str() != Some(want) {
            return Err(DecodeError::Value {
                path: field.into(),
                message: format!("is {}, must be {want:?}", value[field]),
            });
        }
    }
    let mut warnings: Vec<String> = duplicates
        .into_iter()
        .map(|path| format!("field {path} occurs twice, the last one counts"))
        .collect();
    collect_unknown_fields(&value, "", "", &mut warnings);
    Ok(ConfigDocument { value, warnings })
}

/// Makes the sentence about an unknown field. `pattern`: its path without indices.
fn describe_unknown_key(shown: &str, pattern: &str) -> String {
    let section = pattern.strip_prefix("picolet.").unwrap_or("");
    if let Some(part) = parts::find_left_out_part(section.split('.').next().unwrap_or("")) {
        return format!("{shown} is ignored: this program was built without the part {part}");
    }
    let (parent, name) = pattern.rsplit_once('.').unwrap_or(("", pattern));
    let mut siblings = keys::key_names().filter_map(|key| {
        let rest = match parent {
            "" => key,
            parent => key.strip_prefix(parent)?.strip_prefix('.')?,
        };
        rest.split('.').next()
    });
    let near = spelling::nearest_name(name, &mut siblings);
    let home = keys::key_names().find_map(|key| {
        let (home, last) = key.rsplit_once('.').unwrap_or(("the document", key));
        (last == name).then_some(home)
    });
    spelling::describe_unknown_field(shown, near, home)
}

/// Adds a sentence for each unknown field.
fn collect_unknown_fields(value: &Value, shown: &str, pattern: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let (shown, pattern) = if pattern.is_empty() {
                    (name.clone(), name.clone())
                } else {
                    (format!("{shown}.{name}"), format!("{pattern}.{name}"))
                };
                match keys::find_key_place(&pattern) {
                    KeyPlace::Leaf => {}
                    KeyPlace::Branch => collect_unknown_fields(field, &shown, &pattern, unknown),
                    KeyPlace::No if unknown.len() < MAX_WARNINGS => {
                        unknown.push(describe_unknown_key(&shown, &pattern));
                    }
                    KeyPlace::No => {}
                }
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                collect_unknown_fields(item, &format!("{shown}[{n}]"), pattern, unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Fields that this version acts on, with the names and meanings of KubeletConfiguration. An absent field is `None`;
/// its default is decided in one place, [`super::AgentConfig`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct KubeletConfiguration {
    pub(super) address: Option<String>,
    pub(super) allowed_unsafe_sysctls: Vec<String>,
    pub(super) authentication: KubeletAuthentication,
    pub(super) authorization: KubeletAuthorization,
    pub(super) cgroup_driver: Option<String>,
    pub(super) cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    pub(super) cgroups_per_qos: Option<bool>,
    #[serde(rename = "clusterDNS")]
    pub(super) cluster_dns: Vec<String>,
    pub(super) cluster_domain: Option<String>,
    pub(super) container_log_max_files: Option<i64>,
    pub(super) container_log_max_size: Option<Quantity>,
    pub(super) container_log_max_workers: Option<i64>,
    pub(super) container_log_monitor_interval: Option<GoDuration>,
    pub(super) container_runtime_endpoint: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    pub(super) cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub(super) cpu_cfs_quota_period: Option<GoDuration>,
    pub(super) cpu_manager_policy: Option<String>,
    pub(super) cpu_manager_policy_options: BTreeMap<String, String>,
    pub(super) crash_loop_back_off: CrashLoopBackOff,
    pub(super) enable_controller_attach_detach: Option<bool>,
    pub(super) enable_debugging_handlers: Option<bool>,
    pub(super) enable_server: Option<bool>,
    pub(super) enable_system_log_handler: Option<bool>,
    pub(super) enable_system_log_query: Option<bool>,
    pub(super) enforce_node_allocatable: Option<Vec<String>>,
    pub(super) event_burst: Option<i64>,
    #[serde(rename = "eventRecordQPS")]
    pub(super) event_record_qps: Option<i64>,
    pub(super) eviction_hard: Option<BTreeMap<String, String>>,
    pub(super) eviction_max_pod_grace_period: Option<i64>,
    pub(super) eviction_minimum_reclaim: BTreeMap<String, String>,
    pub(super) eviction_pressure_transition_period: Option<GoDuration>,
    pub(super) eviction_soft: BTreeMap<String, String>,
    pub(super) eviction_soft_grace_period: BTreeMap<String, GoDuration>,
    pub(super) fail_cgroup_v1: Option<bool>,
    pub(super) protect_kernel_defaults: Option<bool>,
    pub(super) fail_swap_on: Option<bool>,
    pub(super) feature_gates: BTreeMap<String, bool>,
    pub(super) file_check_frequency: Option<GoDuration>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) healthz_port: Option<i64>,
    pub(super) http_check_frequency: Option<GoDuration>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub(super) image_gc_high_threshold_percent: Option<i64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub(super) image_gc_low_threshold_percent: Option<i64>,
    #[serde(rename = "imageMaximumGCAge")]
    pub(super) image_maximum_gc_age: Option<GoDuration>,
    #[serde(rename = "imageMinimumGCAge")]
    pub(super) image_minimum_gc_age: Option<GoDuration>,
    pub(super) image_pull_credentials_verification_policy: Option<String>,
    pub(super) image_service_endpoint: Option<String>,
    #[serde(rename = "kubeAPIBurst")]
    pub(super) kube_api_burst: Option<i64>,
    #[serde(rename = "kubeAPIQPS")]
    pub(super) kube_api_qps: Option<i64>,
    pub(super) kube_reserved: BTreeMap<String, Quantity>,
    pub(super) kube_reserved_cgroup: Option<String>,
    pub(super) local_storage_capacity_isolation: Option<bool>,
    pub(super) logging: LoggingConfiguration,
    pub(super) max_parallel_image_pulls: Option<i64>,
    pub(super) max_pods: Option<i64>,
    pub(super) memory_reservation_policy: Option<String>,
    pub(super) memory_swap: MemorySwap,
    pub(super) memory_throttling_factor: Option<f64>,
    pub(super) merge_default_eviction_settings: Option<bool>,
    pub(super) node_lease_duration_seconds: Option<i64>,
    pub(super) node_status_max_images: Option<i64>,
    pub(super) node_status_report_frequency: Option<GoDuration>,
    pub(super) node_status_update_frequency: Option<GoDuration>,
    pub(super) oom_score_adj: Option<i64>,
    pub(super) picolet: PicoletSection,
    #[serde(rename = "podCIDR")]
    pub(super) pod_cidr: Option<String>,
    pub(super) pod_logs_dir: Option<String>,
    pub(super) pod_pids_limit: Option<i64>,
    pub(super) pods_per_core: Option<i64>,
    pub(super) port: Option<i64>,
    pub(super) preloaded_images_verification_allowlist: Vec<String>,
    #[serde(rename = "providerID")]
    pub(super) provider_id: Option<String>,
    pub(super) read_only_port: Option<i64>,
    pub(super) register_node: Option<bool>,
    pub(super) register_with_taints: Vec<Taint>,
    #[serde(rename = "reservedSystemCPUs")]
    pub(super) reserved_system_cpus: Option<String>,
    pub(super) resolv_conf: Option<String>,
    pub(super) rotate_certificates: Option<bool>,
    pub(super) run_once: Option<bool>,
    pub(super) runtime_request_timeout: Option<GoDuration>,
    pub(super) seccomp_default: Option<bool>,
    pub(super) registry_burst: Option<i64>,
    #[serde(rename = "registryPullQPS")]
    pub(super) registry_pull_qps: Option<i64>,
    pub(super) serialize_image_pulls: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    pub(super) server_tls_bootstrap: Option<bool>,
    pub(super) shutdown_grace_period: Option<GoDuration>,
    pub(super) shutdown_grace_period_by_pod_priority: Vec<ShutdownGrace>,
    pub(super) shutdown_grace_period_critical_pods: Option<GoDuration>,
    #[serde(rename = "singleProcessOOMKill")]
    pub(super) single_process_oom_kill: Option<bool>,
    pub(super) static_pod_path: Option<String>,
    pub(super) streaming_connection_idle_timeout: Option<GoDuration>,
    #[serde(rename = "staticPodURL")]
    pub(super) static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    pub(super) static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub(super) sync_frequency: Option<GoDuration>,
    pub(super) system_reserved: BTreeMap<String, Quantity>,
    pub(super) system_reserved_cgroup: Option<String>,
    pub(super) tls_cert_file: Option<String>,
    pub(super) tls_cipher_suites: Vec<String>,
    pub(super) tls_curve_preferences: Vec<String>,
    pub(super) tls_min_version: Option<String>,
    pub(super) tls_private_key_file: Option<String>,
    pub(super) user_namespaces: UserNamespaces,
    pub(super) volume_stats_agg_period: Option<GoDuration>,
}

/// `authentication`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct KubeletAuthentication {
    pub(super) anonymous: AnonymousAuthentication,
    pub(super) webhook: WebhookAuthentication,
    pub(super) x509: X509Authentication,
}

/// `authentication.anonymous`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct AnonymousAuthentication {
    pub(super) enabled: Option<bool>,
}

/// `authentication.webhook`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookAuthentication {
    #[serde(rename = "cacheTTL")]
    pub(super) cache_ttl: Option<GoDuration>,
    pub(super) enabled: Option<bool>,
}

/// `authentication.x509`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct X509Authentication {
    #[serde(rename = "clientCAFile")]
    pub(super) client_ca_file: Option<String>,
}

/// `authorization`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct KubeletAuthorization {
    pub(super) mode: Option<String>,
    pub(super) webhook: WebhookAuthorization,
}

/// `authorization.webhook`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub(super) cache_authorized_ttl: Option<GoDuration>,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub(super) cache_unauthorized_ttl: Option<GoDuration>,
}

/// `crashLoopBackOff`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CrashLoopBackOff {
    pub(super) max_container_restart_period: Option<GoDuration>,
}

/// `logging`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LoggingConfiguration {
    pub(super) verbosity: Option<i64>,
}

/// An item of `shutdownGracePeriodByPodPriority`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ShutdownGrace {
    pub(super) priority: i32,
    pub(super) shutdown_grace_period_seconds: i64,
}

/// `memorySwap`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MemorySwap {
    pub(super) swap_behavior: String,
}

/// `userNamespaces`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct UserNamespaces {
    pub(super) ids_per_pod: Option<i64>,
}

/// `picolet`: settings for which a kubelet has no field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PicoletSection {
    pub(super) api_servers: Vec<String>,
    pub(super) bootstrap_kubeconfig: Option<String>,
    pub(super) builtin_network: BuiltinNetwork,
    pub(super) cert_dir: Option<String>,
    pub(super) cni_bin_dir: Option<String>,
    pub(super) cni_conf_dir: Option<String>,
    pub(super) container_log_dir: Option<String>,
    pub(super) cloud_provider: Option<String>,
    pub(super) doorbells: Option<bool>,
    pub(super) evict_static_pods: Option<bool>,
    pub(super) handlers: BTreeMap<String, String>,
    pub(super) hostname_override: Option<String>,
    pub(super) image_credential_provider_bin_dir: Option<String>,
    pub(super) image_credential_provider_config: Option<String>,
    pub(super) image_dir: Option<String>,
    pub(super) image_policy: ImagePolicy,
    pub(super) image_pull_bandwidth: Option<Quantity>,
    pub(super) k3s_password_file: Option<String>,
    pub(super) k3s_server: Option<String>,
    pub(super) kubeconfig: Option<String>,
    pub(super) kubelet_version: Option<String>,
    pub(super) link: LinkSection,
    pub(super) log_memory: Option<Quantity>,
    #[serde(rename = "manifestURLCA")]
    pub(super) manifest_url_ca: Option<String>,
    pub(super) max_log_bytes: Option<Quantity>,
    pub(super) maximum_dead_containers: Option<i64>,
    pub(super) maximum_dead_containers_per_container: Option<i64>,
    pub(super) metered: Option<bool>,
    #[serde(rename = "minimumContainerTTLDuration")]
    pub(super) minimum_container_ttl_duration: Option<GoDuration>,
    pub(super) network_kubeconfig: Option<String>,
    #[serde(rename = "nodeExternalIP")]
    pub(super) node_external_ip: Option<String>,
    #[serde(rename = "nodeIP")]
    pub(super) node_ip: Option<String>,
    pub(super) node_labels: BTreeMap<String, String>,
    pub(super) oci_runtime: Option<String>,
    pub(super) oci_runtime_root: Option<String>,
    pub(super) offline_secrets: Option<String>,
    pub(super) pod_write_limit: Option<Quantity>,
    pub(super) process: ProcessSection,
    pub(super) profile: Option<String>,
    pub(super) registries_file: Option<String>,
    pub(super) root_dir: Option<String>,
    pub(super) run_dir: Option<String>,
    pub(super) socket: Option<String>,
    pub(super) use_runtime_endpoint: Option<bool>,
}

/// `picolet.imagePolicy`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ImagePolicy {
    pub(super) allowed_registries: Vec<String>,
    pub(super) require_digest: Option<bool>,
}

/// `picolet.process`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProcessSection {
    pub(super) allow_root: Option<bool>,
    pub(super) directories: Vec<String>,
    pub(super) variables: Vec<String>,
}

/// `picolet.link`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LinkSection {
    pub(super) daily_bytes: Option<Quantity>,
    pub(super) metered_interfaces: Vec<String>,
    pub(super) pull_window: Option<String>,
    pub(super) stream_bytes: Option<Quantity>,
}

/// `picolet.builtinNetwork`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct BuiltinNetwork {
    pub(super) bridge: Option<String>,
    pub(super) subnet: Option<String>,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn load(text: &str) -> Result<ConfigDocument, DecodeError> {
        read_config_document(format!("{HEAD}{text}").as_bytes(), Path::new("/etc/x"))
    }

    /// Returns true if the document has this field, or fields below it where the table is finer.
    pub(in crate::config) fn is_known(field: &str) -> bool {
        // `logging` is one entry: fields below it are not checked.
        field.starts_with("logging.") || !matches!(keys::find_key_place(field), KeyPlace::No)
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named() {
        // CONF-01
        let document = load(
            "maxPods: 5\nmaxPods: 6\nmaxpods: 7\nauthentication:\n  x509: {clientCAFile: ca, other: 1}\n\
             picolet: {rootDirectory: a, maxPods: 1}\nregistriesFile: r\nregisterWithTaints:\n- key: a\n- kez: b\nevictionHard: {memory.available: 1Mi}\n\
             logging: {format: text, options: {anything: 1}}\n",
        )
        .expect("lenient");
        assert_eq!(
            document.warnings,
            [
                "field maxPods occurs twice, the last one counts",
                "unknown field authentication.x509.other is ignored",
                "unknown field maxpods is ignored, did you mean maxPods?",
                "unknown field picolet.maxPods is ignored, it is a field of the document",
                "unknown field picolet.rootDirectory is ignored",
                "unknown field registerWithTaints[1].kez is ignored, did you mean key?",
                "unknown field registriesFile is ignored, it is a field of picolet",
            ]
        );
        assert_eq!(document.value["maxPods"], 6);
    }

    #[test]
    fn what_is_not_a_configuration() {
        // CONF-01
        for (text, says) in [
            ("", "document is empty"),
            ("# only a comment\n", "document is empty"),
            (
                "kind: KubeletConfiguration\n",
                "apiVersion: is null, must be \"kubelet.config.k8s.io/v1beta1\"",
            ),
            (
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n",
                "kind: is \"Pod\", must be \"KubeletConfiguration\"",
            ),
            ("- a\n", "apiVersion: is null"),
            ("a: [", "line"),
        ] {
            let error = read_config_document(text.as_bytes(), Path::new("/"))
                .expect_err(text)
                .to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn relative_paths() {
        // CONF-01
        let value = load(
            "staticPodPath: manifests\nauthentication: {x509: {clientCAFile: pki/ca.crt}}\ntlsCertFile: /abs\nresolvConf: \"\"\n\
             podLogsDir: logs\npicolet: {rootDir: data, kubeconfig: node.conf, bootstrapKubeconfig: first.conf, certDir: pki, \
             k3sPasswordFile: password, networkKubeconfig: network.conf}\n",
        )
        .expect("config")
        .value;
        for (pointer, path) in [
            ("/staticPodPath", "/etc/x/manifests"),
            ("/authentication/x509/clientCAFile", "/etc/x/pki/ca.crt"),
            ("/tlsCertFile", "/abs"),
            ("/resolvConf", ""),
            ("/podLogsDir", "/etc/x/logs"),
            ("/picolet/rootDir", "/etc/x/data"),
            ("/picolet/kubeconfig", "/etc/x/node.conf"),
            ("/picolet/bootstrapKubeconfig", "/etc/x/first.conf"),
            ("/picolet/certDir", "/etc/x/pki"),
            ("/picolet/k3sPasswordFile", "/etc/x/password"),
            ("/picolet/networkKubeconfig", "/etc/x/network.conf"),
        ] {
            assert_eq!(
                value.pointer(pointer).and_then(Value::as_str),
                Some(path),
                "{pointer}"
            );
        }
    }

    #[test]
    fn relative_paths_of_parts() {
        // CONF-01
        for key in parts::part_keys() {
            let pointer = format!("/{}", key.name.replace('.', "/"));
            let mut names: Vec<&str> = key.name.split('.').collect();
            let last = names.pop().expect("a name");
            let top = serde_json::json!({ last: "file" });
            let names = names.iter().skip(1).rev();
            let own = names.fold(top, |below, name| serde_json::json!({ *name: below }));
            let value = load(&format!("picolet: {own}")).expect("config").value;
            let is_resolved = value.pointer(&pointer) == Some(&"/etc/x/file".into());
            assert_eq!(is_resolved, key.is_path, "{}", key.name);
        }
    }

    #[test]
    fn json_is_read_too() {
        // CONF-01
        let text = format!(r#"{{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "maxPods": 3}}"#);
        let document = read_config_document(text.as_bytes(), Path::new("/")).expect("json");
        assert_eq!(
            (document.value["maxPods"].as_i64(), document.warnings.len()),
            (Some(3), 0)
        );
    }
}
