//! Configuration of sandboxes and containers, as it crosses the runtime seam (CFG).
//!
//! Order of use for one container: [`env::environment`](super::env::environment), [`sub_paths`], then the effects that pin
//! subPaths and make the hosts file and the termination log, then [`container_config`].

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;

use crate::api::cri::{
    ANNOTATION_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_PORTS,
    ANNOTATION_PRE_STOP, ANNOTATION_RESTART_COUNT, ANNOTATION_TERMINATION_PATH,
    ANNOTATION_TERMINATION_POLICY, ContainerConfig, Image, LABEL_CONTAINER_NAME, LABEL_POD_NAME,
    LABEL_POD_NAMESPACE, LABEL_POD_UID, Mount, NamespaceMode, PortMapping, Propagation,
    SandboxConfig,
};
use crate::api::pod::VolumeMount;
use crate::api::pod_status::QosClass;
use crate::api::{Container, ContainerId, Pod};
use crate::logic::actions::spec_hash;
use crate::logic::cgroup::{CgroupSettings, container_resources, pod_path};
use crate::logic::dns::{DnsSettings, pod_dns};
use crate::logic::downward::Allocatable;
use crate::logic::env::Env;
use crate::logic::expansion::expand;
use crate::logic::hosts::pod_names;
use crate::logic::security::{
    SecuritySettings, dotted_sysctl, is_privileged, linux_security, namespace_options,
};

/// Where a container sees its termination log unless it says otherwise.
pub const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";
/// Longest file name, bytes.
const MAX_FILE_NAME: usize = 255;

/// A container cannot be configured as its pod asks. It waits, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl ConfigError {
    /// Waiting reason of the container.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        "CreateContainerConfigError"
    }
}

impl From<String> for ConfigError {
    fn from(message: String) -> Self {
        Self(message)
    }
}

/// The machine and the configuration, as far as they shape sandboxes and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// Node name.
    pub name: String,
    /// Addresses of the node, primary first.
    pub ips: Vec<IpAddr>,
    /// What the node can give to pods.
    pub allocatable: Allocatable,
    /// Cgroups.
    pub cgroups: CgroupSettings,
    /// Resolver.
    pub dns: DnsSettings,
    /// Security.
    pub security: SecuritySettings,
    /// `podLogsDir`, absolute.
    pub pod_logs_dir: String,
    /// RuntimeClass name to handler.
    pub runtime_handlers: BTreeMap<String, String>,
    /// The runtime can make mounts read-only with all below them.
    pub recursive_read_only: bool,
}

/// Directory of a pod's logs below `podLogsDir` (CFG-10).
#[must_use]
pub fn log_directory(pod_logs_dir: &str, pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!(
        "{}/{}_{}_{}",
        pod_logs_dir.trim_end_matches('/'),
        meta.namespace,
        meta.name,
        meta.uid
    )
}

/// Name of the link to a container's log in `/var/log/containers` (CFG-11).
#[must_use]
pub fn log_link_name(pod: &Pod, container: &str, id: &ContainerId) -> String {
    let suffix = format!("-{id}.log");
    let mut name = format!(
        "{}_{}_{container}",
        pod.metadata.name, pod.metadata.namespace
    );
    let mut end = name.len().min(MAX_FILE_NAME.saturating_sub(suffix.len()));
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name + &suffix
}

/// What [`sandbox_config`] decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPlan {
    /// For the runtime.
    pub config: SandboxConfig,
    /// Warnings about its resolver file, for events on the pod: (reason, message).
    pub warnings: Vec<(&'static str, String)>,
}

/// Configuration of a pod's sandbox.
///
/// Errors: names that cannot be, an unknown runtime class, user namespaces. The pod waits and is tried again.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    qos: QosClass,
    node: &NodeContext,
) -> Result<SandboxPlan, String> {
    if pod.spec.host_users == Some(false) {
        return Err("hostUsers: false: user namespaces are not supported by this runtime".into());
    }
    let names = pod_names(pod, &node.dns.cluster_domain)?;
    let dns = pod_dns(pod, &node.dns);
    let class = pod.spec.runtime_class_name.as_deref().unwrap_or_default();
    let runtime_handler = match class {
        "" => String::new(),
        class => node
            .runtime_handlers
            .get(class)
            .cloned()
            .ok_or_else(|| format!("RuntimeClass {class:?} not found"))?,
    };
    let meta = &pod.metadata;
    let mut labels = meta.labels.clone();
    labels.extend(pod_labels(pod));
    let security = pod.spec.security_context.as_ref();
    let sysctls = security.map_or(&[][..], |security| &security.sysctls);
    let config = SandboxConfig {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        attempt,
        hostname: names.kernel,
        log_directory: log_directory(&node.pod_logs_dir, pod),
        dns: dns.config,
        port_mappings: port_mappings(pod),
        labels,
        annotations: meta.annotations.clone(),
        cgroup_parent: pod_path(&node.cgroups.cgroup_root, qos, &meta.uid),
        sysctls: sysctls
            .iter()
            .map(|sysctl| (dotted_sysctl(&sysctl.name), sysctl.value.clone()))
            .collect(),
        namespaces: namespace_options(pod),
        privileged: is_privileged(pod),
        runtime_handler,
    };
    Ok(SandboxPlan {
        config,
        warnings: dns.warnings,
    })
}

fn pod_labels(pod: &Pod) -> [(String, String); 3] {
    let meta = &pod.metadata;
    [
        (LABEL_POD_NAME.into(), meta.name.clone()),
        (LABEL_POD_NAMESPACE.into(), meta.namespace.clone()),
        (LABEL_POD_UID.into(), meta.uid.to_string()),
    ]
}

/// Ports of the regular containers, in spec order (CFG-12).
fn port_mappings(pod: &Pod) -> Vec<PortMapping> {
    let mut all = Vec::new();
    for container in &pod.spec.containers {
        let mut seen = BTreeSet::new();
        for port in &container.ports {
            let protocol = match port.protocol.as_str() {
                protocol @ ("UDP" | "SCTP") => protocol,
                _ => "TCP",
            };
            let key = if port.name.is_empty() {
                let family = match port.host_ip.parse() {
                    Ok(IpAddr::V4(_)) => "v4",
                    Ok(IpAddr::V6(_)) => "v6",
                    Err(_) => "any",
                };
                format!(
                    "{family}-{protocol}-{}-{}-{}",
                    port.host_ip, port.container_port, port.host_port
                )
            } else {
                // No port without a name has such a key.
                format!("name {}", port.name)
            };
            if seen.insert(key) {
                all.push(PortMapping {
                    protocol: protocol.into(),
                    container_port: port.container_port,
                    host_port: port.host_port,
                    host_ip: port.host_ip.clone(),
                });
            }
        }
    }
    all
}

/// The subPath of each volumeMount that has one, by its place in the list, with the env of the instance put in.
///
/// Errors: a variable that is missing or empty (CFG-36), a path that could leave the volume (CFG-35).
pub fn sub_paths(container: &Container, env: &Env) -> Result<Vec<(usize, String)>, ConfigError> {
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let path = if !mount.sub_path.is_empty() {
            mount.sub_path.clone()
        } else if !mount.sub_path_expr.is_empty() {
            expand_sub_path(&mount.sub_path_expr, env)?
        } else {
            continue;
        };
        if path.starts_with('/') {
            return Err(ConfigError(format!(
                "subPath {path:?} must not be an absolute path"
            )));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(ConfigError(format!(
                "unable to provision subPath {path:?}: must not contain '..'"
            )));
        }
        all.push((index, path));
    }
    Ok(all)
}

fn expand_sub_path(text: &str, env: &Env) -> Result<String, ConfigError> {
    let mut missing = None;
    let path = expand(text, |name| {
        let value = env.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.get_or_insert_with(|| name.to_owned());
        }
        value.map(str::to_owned)
    });
    match missing {
        Some(name) => Err(ConfigError(format!(
            "failed to expand subPath for {text:?}: missing value for {name:?}"
        ))),
        None => Ok(path),
    }
}

/// A volume that can be mounted into containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSource {
    /// Absolute path on the host.
    pub host_path: String,
    /// Read-only whatever the mount says.
    pub read_only: bool,
}

/// Everything the configuration of one instance is made from.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInput<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its container: regular, init or ephemeral.
    pub container: &'a Container,
    /// Class of the pod.
    pub qos: QosClass,
    /// Restart count of the new instance (CFG-06).
    pub restart_count: u32,
    /// The image as the runtime has it.
    pub image: &'a Image,
    /// Result of `env::environment`.
    pub env: &'a Env,
    /// Mounted volumes, by name.
    pub volumes: &'a BTreeMap<String, VolumeSource>,
    /// Pinned subPaths: place of the volumeMount to absolute path on the host.
    pub sub_paths: &'a BTreeMap<usize, String>,
    /// Managed hosts file on the host; `None` if `hosts::manages_hosts` says no.
    pub hosts_file: Option<&'a str>,
    /// Termination log of the instance on the host; `None` if [`termination_path`] is `None`.
    pub termination_log: Option<&'a str>,
    /// Newest instance of `targetContainerName`.
    pub target: Option<&'a ContainerId>,
    /// The machine.
    pub node: &'a NodeContext,
}

/// Where the container sees its termination log; `None` if it wants none (CFG-39).
#[must_use]
pub fn termination_path(container: &Container) -> Option<&str> {
    match container.termination_message_path.as_deref() {
        None => Some(DEFAULT_TERMINATION_PATH),
        Some("") => None,
        Some(path) => Some(path),
    }
}

/// Configuration of one container instance.
///
/// Errors: what the pod asks for cannot be given now; the container waits with [`ConfigError::reason`].
pub fn container_config(input: &ContainerInput<'_>) -> Result<ContainerConfig, ConfigError> {
    let ContainerInput {
        pod,
        container,
        restart_count,
        image,
        env,
        node,
        ..
    } = *input;
    let lookup = |name: &str| env.get(name).map(str::to_owned);
    let expanded = |words: &[String]| words.iter().map(|word| expand(word, lookup)).collect();
    let mut security = linux_security(pod, container, image, &node.security)?;
    if !container.target_container_name.is_empty()
        && security.namespaces.pid == NamespaceMode::Container
    {
        let Some(target) = input.target else {
            return Err(ConfigError(format!(
                "unable to find target container {}",
                container.target_container_name
            )));
        };
        security.namespaces.pid = NamespaceMode::Target;
        security.target = Some(target.clone());
    }
    let stop_signal = container.lifecycle.as_ref();
    let mut labels: BTreeMap<String, String> = pod_labels(pod).into();
    labels.insert(LABEL_CONTAINER_NAME.into(), container.name.clone());
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt: restart_count,
        image: image.id.clone(),
        user_image: container.image.clone(),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone(),
        env: env.clone().into_vec(),
        mounts: mounts(input)?,
        labels,
        annotations: annotations(pod, container, restart_count)?,
        log_path: format!("{}/{restart_count}.log", container.name),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        stop_signal: stop_signal
            .and_then(|lifecycle| lifecycle.stop_signal.clone())
            .unwrap_or_default(),
        resources: container_resources(pod, container, input.qos, &node.cgroups),
        security,
    })
}

/// What kills the container correctly when its pod is no longer known (CFG-04).
fn annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let json = |error: serde_json::Error| ConfigError(error.to_string());
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value| all.insert(key.to_owned(), value);
    put(ANNOTATION_HASH, format!("{:x}", spec_hash(container)));
    put(ANNOTATION_RESTART_COUNT, restart_count.to_string());
    let path = termination_path(container).unwrap_or_default();
    put(ANNOTATION_TERMINATION_PATH, path.into());
    put(
        ANNOTATION_TERMINATION_POLICY,
        container.termination_message_policy.clone(),
    );
    if let Some(grace) = pod.spec.termination_grace_period_seconds {
        put(ANNOTATION_POD_GRACE, grace.to_string());
    }
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        put(ANNOTATION_POD_DELETION_GRACE, grace.to_string());
    }
    let lifecycle = container.lifecycle.as_ref();
    if let Some(handler) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
        put(
            ANNOTATION_PRE_STOP,
            serde_json::to_string(handler).map_err(json)?,
        );
    }
    if !container.ports.is_empty() {
        put(
            ANNOTATION_PORTS,
            serde_json::to_string(&container.ports).map_err(json)?,
        );
    }
    Ok(all)
}

/// volumeMounts in spec order, the hosts file, the termination log (CFG-30).
fn mounts(input: &ContainerInput<'_>) -> Result<Vec<Mount>, ConfigError> {
    let container = input.container;
    if let Some(device) = container.volume_devices.first() {
        return Err(ConfigError(format!(
            "volume {:?} as a block device is not supported",
            device.name
        )));
    }
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        all.push(volume_mount(input, index, mount)?);
    }
    if let Some(path) = input.hosts_file {
        all.push(Mount {
            host_path: path.into(),
            container_path: "/etc/hosts".into(),
            ..Mount::default()
        });
    }
    if let (Some(path), Some(log)) = (termination_path(container), input.termination_log) {
        all.push(Mount {
            host_path: log.into(),
            container_path: path.into(),
            ..Mount::default()
        });
    }
    Ok(all)
}

fn volume_mount(
    input: &ContainerInput<'_>,
    index: usize,
    mount: &VolumeMount,
) -> Result<Mount, ConfigError> {
    let name = &mount.name;
    let Some(volume) = input.volumes.get(name) else {
        return Err(ConfigError(format!(
            "cannot find volume {name:?} to mount into container {:?}",
            input.container.name
        )));
    };
    let has_sub_path = !mount.sub_path.is_empty() || !mount.sub_path_expr.is_empty();
    let host_path = match input.sub_paths.get(&index) {
        Some(path) => path,
        None if has_sub_path => {
            return Err(ConfigError(format!(
                "subPath of volume {name:?} is not prepared for container {:?}",
                input.container.name
            )));
        }
        None => &volume.host_path,
    };
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("" | "None") => Propagation::Private,
        Some("HostToContainer") => Propagation::HostToContainer,
        Some("Bidirectional") => Propagation::Bidirectional,
        Some(other) => {
            return Err(ConfigError(format!(
                "invalid MountPropagation mode: {other:?}"
            )));
        }
    };
    let read_only = mount.read_only || volume.read_only;
    let container_path = match mount.mount_path.as_str() {
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    Ok(Mount {
        host_path: host_path.clone(),
        container_path,
        read_only,
        recursive_read_only: recursive_read_only(input, mount, propagation)?,
        propagation,
    })
}

/// CFG-34.
fn recursive_read_only(
    input: &ContainerInput<'_>,
    mount: &VolumeMount,
    propagation: Propagation,
) -> Result<bool, ConfigError> {
    let name = &mount.name;
    let wanted = match mount.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => return Ok(false),
        Some("IfPossible") => input.node.recursive_read_only,
        Some("Enabled") if input.node.recursive_read_only => true,
        Some("Enabled") => {
            return Err(ConfigError(format!(
                "volume {name:?} requested recursive read-only mode, but it is not supported by the runtime"
            )));
        }
        Some(other) => {
            return Err(ConfigError(format!(
                "volume {name:?}: unknown recursive read-only mode {other:?}"
            )));
        }
    };
    if !mount.read_only || propagation != Propagation::Private {
        return Err(ConfigError(format!(
            "volume {name:?} requested recursive read-only mode, which needs readOnly and no mount propagation"
        )));
    }
    Ok(wanted)
}
