//! Configuration of sandboxes and containers, as it crosses the runtime seam (CFG).
//!
//! Order of use for one container: [`env::build_environment`](super::env::build_environment), [`resolve_sub_paths`],
//! then the effects that pin subPaths and make the hosts file and the termination log, then [`container_config`].

use alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;

use crate::api::cri::{
    ANNOTATION_HASH, ANNOTATION_POD_DELETION_GRACE, ANNOTATION_POD_GRACE, ANNOTATION_PORTS,
    ANNOTATION_PRE_STOP, ANNOTATION_RESTART_COUNT, ANNOTATION_TERMINATION_PATH,
    ANNOTATION_TERMINATION_POLICY, ContainerConfig, ContainerMount, IdMap, LABEL_CONTAINER_NAME,
    LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID, MountPropagation, MountedImage,
    NamespaceMode, NamespaceOptions, PortMapping, SandboxConfig, StoredImage,
};
use crate::api::order::GatherExt;
use crate::api::pod::VolumeMount;
use crate::api::pod_status::QosClass;
use crate::api::{Container, ContainerId, Pod, PodError};
use crate::cgroup::{CgroupSettings, container_resources, sandbox_resources};
use crate::dns::{DnsSettings, pod_dns};
use crate::downward::Allocatable;
use crate::env::EnvVariables;
use crate::expansion::{MAX_WORDS_BYTES, expand_references};
use crate::hosts::pod_names;
use crate::security::{
    SecuritySettings, is_privileged, linux_security, namespace_options, sandbox_user,
};
use crate::spec_hash::spec_hash;
use crate::sysctl;

/// Path of the termination log in a container that names no other.
pub const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";
/// Longest file name, bytes.
const MAX_FILE_NAME: usize = 255;

/// Waiting reason of a container that cannot be configured as its pod asks.
pub const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The machine and the configuration, as far as they shape sandboxes and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// Node name.
    pub name: String,
    /// Addresses of the node, primary first.
    pub ips: Vec<IpAddr>,
    /// Allocatable resources of the node.
    pub allocatable: Allocatable,
    /// Cgroups.
    pub cgroups: CgroupSettings,
    /// Resolver.
    pub dns: DnsSettings,
    /// Security.
    pub security: SecuritySettings,
    /// `podLogsDir`, absolute.
    pub pod_logs_dir: String,
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

/// Result of [`sandbox_config`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPlan {
    /// For the runtime.
    pub config: SandboxConfig,
    /// Warnings about its resolver file, for events on the pod: (reason, message).
    pub warnings: Vec<(&'static str, String)>,
}

/// Configuration of a pod's sandbox.
///
/// `runtime_handler`: that of the pod's RuntimeClass. `users`: ids of its user namespace. `volume_groups`: see
/// [`sandbox_user`]. Errors: impossible names. The pod waits and is tried again.
pub fn sandbox_config(
    pod: &Pod,
    attempt: u32,
    qos: QosClass,
    runtime_handler: String,
    users: Option<IdMap>,
    volume_groups: &[i64],
    node: &NodeContext,
) -> Result<SandboxPlan, PodError> {
    let names = pod_names(pod, &node.dns.cluster_domain)?;
    let dns = pod_dns(pod, &node.dns);
    let (resources, overhead) = sandbox_resources(pod, &node.cgroups);
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
        cgroup_parent: node.cgroups.tree.pod_path(qos, &meta.uid),
        sysctls: sysctls
            .iter()
            .map(|sysctl| {
                (
                    sysctl::dotted_sysctl_name(&sysctl.name),
                    sysctl.value.clone(),
                )
            })
            .gather_items(),
        namespaces: NamespaceOptions {
            users,
            ..namespace_options(pod)
        },
        privileged: is_privileged(pod),
        runtime_handler,
        user: sandbox_user(pod, volume_groups),
        resources,
        overhead,
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
pub fn resolve_sub_paths(
    container: &Container,
    env: &EnvVariables,
) -> Result<Vec<(usize, String)>, PodError> {
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
            return Err(PodError::Spec(format!(
                "subPath {path:?} must not be an absolute path"
            )));
        }
        if path.split('/').any(|part| part == "..") {
            return Err(PodError::Spec(format!(
                "unable to provision subPath {path:?}: must not contain '..'"
            )));
        }
        all.push((index, path));
    }
    Ok(all)
}

fn expand_sub_path(text: &str, env: &EnvVariables) -> Result<String, PodError> {
    let mut missing = None;
    let path = expand_references(text, |name| {
        let value = env.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.get_or_insert_with(|| name.to_owned());
        }
        value.map(str::to_owned)
    })
    .map_err(|why| PodError::Spec(format!("subPath {why}")))?;
    match missing {
        Some(name) => Err(PodError::Spec(format!(
            "failed to expand subPath for {text:?}: missing value for {name:?}"
        ))),
        None => Ok(path),
    }
}

/// A volume that can be mounted into containers: a path of the host, or an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountableVolume {
    /// Absolute path on the host; empty for an image.
    pub host_path: String,
    /// Read-only whatever the mount says.
    pub read_only: bool,
    /// The image whose files the volume is; it has no path then.
    pub image: Option<MountedImage>,
}

/// Input for the configuration of one instance.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInput<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Container of the pod: regular, init or ephemeral.
    pub container: &'a Container,
    /// Class of the pod.
    pub qos: QosClass,
    /// Restart count of the new instance (CFG-06).
    pub restart_count: u32,
    /// The image as the runtime has it.
    pub image: &'a StoredImage,
    /// Result of `env::build_environment`.
    pub env: &'a EnvVariables,
    /// Mounted volumes, by name.
    pub volumes: &'a BTreeMap<String, MountableVolume>,
    /// Pinned subPaths: place of the volumeMount to absolute path on the host; for an image volume the relative path as
    /// [`resolve_sub_paths`] gave it, which the runtime resolves in the image.
    pub sub_paths: &'a [(usize, String)],
    /// Managed hosts file on the host; `None` if `hosts::manages_hosts` says no.
    pub hosts_file: Option<&'a str>,
    /// Termination log of the instance on the host; `None` if [`termination_path`] is `None`.
    pub termination_log: Option<&'a str>,
    /// Ids of the pod's user namespace; `None`: it has the machine's.
    pub users: Option<IdMap>,
    /// Newest instance of `targetContainerName`.
    pub target: Option<&'a ContainerId>,
    /// The machine.
    pub node: &'a NodeContext,
    /// The runtime can make mounts read-only with all below them.
    pub recursive_read_only: bool,
}

/// Path of the termination log in the container; `None` if it wants none (CFG-39).
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
/// Errors: what the pod asks for cannot be given now; the container waits with [`CONFIG_ERROR`].
pub fn container_config(input: &ContainerInput<'_>) -> Result<ContainerConfig, PodError> {
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
    let mut left = MAX_WORDS_BYTES;
    let mut expanded = |what: &str, words: &[String]| {
        let mut all = Vec::with_capacity(words.len());
        for (at, word) in words.iter().enumerate() {
            let wrong = |why: &str| PodError::Spec(format!("{what}[{at}] {why}"));
            let word = expand_references(word, lookup).map_err(|why| wrong(&why.to_string()))?;
            left = left
                .checked_sub(word.len() + 1)
                .ok_or_else(|| wrong("is beyond what the kernel passes to a program"))?;
            all.push(word);
        }
        Ok::<_, PodError>(all)
    };
    let mut security = linux_security(pod, container, image, &node.security)?;
    security.namespaces.users = input.users;
    if !container.target_container_name.is_empty()
        && security.namespaces.pid == NamespaceMode::Container
    {
        let Some(target) = input.target else {
            return Err(PodError::Spec(format!(
                "unable to find target container {}",
                container.target_container_name
            )));
        };
        security.namespaces.pid = NamespaceMode::Target;
        security.target = Some(target.clone());
    }
    let stop_signal = container.lifecycle.as_ref();
    let mut labels: BTreeMap<String, String> = pod_labels(pod).into_iter().gather_items();
    labels.insert(LABEL_CONTAINER_NAME.into(), container.name.clone());
    Ok(ContainerConfig {
        name: container.name.clone(),
        attempt: restart_count,
        image: image.id.clone(),
        user_image: container.image.clone(),
        command: expanded("command", &container.command)?,
        args: expanded("args", &container.args)?,
        working_dir: container.working_dir.clone(),
        env: env.clone().into_vec(),
        mounts: generate_mounts(input)?,
        // Only the machine knows these devices as they are now.
        devices: Vec::new(),
        cdi_devices: Vec::new(),
        live_devices: Vec::new(),
        labels,
        annotations: kill_annotations(pod, container, restart_count)?,
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

/// Annotations with all that is needed to kill the container correctly when its pod is no longer known (CFG-04).
fn kill_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> Result<BTreeMap<String, String>, PodError> {
    let json = |error: serde_json::Error| PodError::Spec(error.to_string());
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
fn generate_mounts(input: &ContainerInput<'_>) -> Result<Vec<ContainerMount>, PodError> {
    let container = input.container;
    if let Some(device) = container.volume_devices.first() {
        return Err(PodError::Spec(format!(
            "volume {:?} as a block device is not supported",
            device.name
        )));
    }
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        all.push(volume_mount(input, index, mount)?);
    }
    if let Some(path) = input.hosts_file {
        all.push(ContainerMount {
            host_path: path.into(),
            container_path: "/etc/hosts".into(),
            ..ContainerMount::default()
        });
    }
    if let (Some(path), Some(log)) = (termination_path(container), input.termination_log) {
        all.push(ContainerMount {
            host_path: log.into(),
            container_path: path.into(),
            ..ContainerMount::default()
        });
    }
    Ok(all)
}

fn volume_mount(
    input: &ContainerInput<'_>,
    index: usize,
    mount: &VolumeMount,
) -> Result<ContainerMount, PodError> {
    let name = &mount.name;
    let Some(volume) = input.volumes.get(name) else {
        return Err(PodError::Spec(format!(
            "cannot find volume {name:?} to mount into container {:?}",
            input.container.name
        )));
    };
    let has_sub_path = !mount.sub_path.is_empty() || !mount.sub_path_expr.is_empty();
    let pinned = input.sub_paths.iter().find(|(place, _)| *place == index);
    let path = match pinned {
        Some((_, path)) => path,
        None if has_sub_path => {
            return Err(PodError::Spec(format!(
                "subPath of volume {name:?} is not prepared for container {:?}",
                input.container.name
            )));
        }
        None => &volume.host_path,
    };
    let (host_path, image_sub_path) = match volume.image {
        Some(_) => (String::new(), path.clone()),
        None => (path.clone(), String::new()),
    };
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("" | "None") => MountPropagation::Private,
        Some("HostToContainer") => MountPropagation::HostToContainer,
        Some("Bidirectional") => MountPropagation::Bidirectional,
        Some(other) => {
            return Err(PodError::Spec(format!(
                "invalid MountPropagation mode: {other:?}"
            )));
        }
    };
    let read_only = mount.read_only || volume.read_only || volume.image.is_some();
    Ok(ContainerMount {
        host_path,
        container_path: container_path(mount),
        read_only,
        recursive_read_only: recursive_read_only(input, mount, propagation)?,
        propagation,
        image: volume.image.clone(),
        image_sub_path,
    })
}

/// Absolute path of a volume in its container.
#[must_use]
pub fn container_path(mount: &VolumeMount) -> String {
    match mount.mount_path.as_str() {
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    }
}

/// Decides if a mount is read-only with all below it (CFG-34).
fn recursive_read_only(
    input: &ContainerInput<'_>,
    mount: &VolumeMount,
    propagation: MountPropagation,
) -> Result<bool, PodError> {
    let wrong = |why: &str| {
        Err(PodError::Spec(format!(
            "failed to resolve recursive read-only mode: volume {:?} {why}",
            mount.name
        )))
    };
    let wanted = match mount.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => return Ok(false),
        Some("IfPossible") => input.recursive_read_only,
        Some("Enabled") if input.recursive_read_only => true,
        Some("Enabled") => {
            return wrong(
                "requested recursive read-only mode, but it is not supported by the runtime",
            );
        }
        Some(other) => return wrong(&format!("has unknown recursive read-only mode {other:?}")),
    };
    if !mount.read_only || propagation != MountPropagation::Private {
        return wrong(
            "requested recursive read-only mode, which needs readOnly and no mount propagation",
        );
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cri::{DnsConfig, LinuxResources, SecurityProfile};
    use crate::env::{EnvInput, build_environment};
    use crate::testing::NoObjects;

    fn node() -> NodeContext {
        NodeContext {
            name: "pi".into(),
            pod_logs_dir: "/var/log/pods".into(),
            dns: DnsSettings {
                has_resolv_conf: true,
                node: DnsConfig {
                    servers: vec!["192.0.2.1".into()],
                    ..DnsConfig::default()
                },
                ..DnsSettings::default()
            },
            ..NodeContext::default()
        }
    }

    fn pod(spec: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web","namespace":"prod","uid":"u-1","deletionGracePeriodSeconds":7,
                "labels":{{"app":"web","io.kubernetes.pod.name":"fake"}},
                "annotations":{{"note":"x","kubernetes.io/config.source":"file"}}}},"spec":{spec}}}"#
        );
        serde_json::from_str(&text).expect("pod")
    }

    #[test]
    fn sandbox() {
        // CFG-01 CFG-02 CFG-10 CFG-13 CFG-15 RES-10
        let pod = pod(
            r#"{"dnsPolicy":"Default","securityContext":{"sysctls":[{"name":"net/ipv4/tcp_syncookies","value":"1"}]},
                "containers":[{"name":"a"}],"initContainers":[{"name":"i","securityContext":{"privileged":true}}]}"#,
        );
        let plan = sandbox_config(
            &pod,
            3,
            QosClass::Burstable,
            String::new(),
            None,
            &[],
            &node(),
        )
        .expect("plan");
        let config = plan.config;
        assert_eq!(plan.warnings, []);
        assert_eq!(
            (
                config.name.as_str(),
                config.namespace.as_str(),
                config.uid.as_str(),
                config.attempt
            ),
            ("web", "prod", "u-1", 3)
        );
        let labels: Vec<_> = config
            .labels
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        assert_eq!(
            labels,
            [
                "app=web",
                "io.kubernetes.pod.name=web",
                "io.kubernetes.pod.namespace=prod",
                "io.kubernetes.pod.uid=u-1",
            ]
        );
        assert_eq!(config.annotations, pod.metadata.annotations);
        assert_eq!(config.log_directory, "/var/log/pods/prod_web_u-1");
        assert_eq!(config.cgroup_parent, "/kubepods/burstable/podu-1");
        assert_eq!(config.sysctls["net.ipv4.tcp_syncookies"], "1");
        assert_eq!(config.hostname, "web");
        assert_eq!(config.dns.servers, ["192.0.2.1"]);
        assert_eq!(config.namespaces.pid, NamespaceMode::Container);
        assert!(config.privileged, "an init container is");
    }

    #[test]
    fn sandbox_that_cannot_be() {
        // CFG-14 CFG-20
        let node = node();
        for (name, spec, ok) in [
            ("plain", "{}", true),
            ("bad hostname", r#"{"hostname":"a_b"}"#, false),
        ] {
            let got = sandbox_config(
                &pod(spec),
                0,
                QosClass::BestEffort,
                String::new(),
                None,
                &[],
                &node,
            );
            assert_eq!(got.is_ok(), ok, "{name}");
        }
        let users = Some(IdMap {
            host_id: 131_072,
            length: 65_536,
        });
        let own = pod(r#"{"hostUsers":false}"#);
        let own = sandbox_config(&own, 0, QosClass::BestEffort, "".into(), users, &[], &node);
        assert_eq!(own.expect("users").config.namespaces.users, users);
        let kata = pod(r#"{"runtimeClassName":"kata","hostNetwork":true}"#);
        let config = sandbox_config(
            &kata,
            0,
            QosClass::BestEffort,
            "kata-qemu".into(),
            None,
            &[],
            &node,
        )
        .expect("kata")
        .config;
        assert_eq!(config.runtime_handler, "kata-qemu");
        assert_eq!(config.hostname, "", "host network");
    }

    #[test]
    fn sandbox_with_overhead() {
        // CFG-15 CRI-23 RC-02
        let mut node = node();
        let config = |pod: &Pod, node: &NodeContext| {
            sandbox_config(pod, 0, QosClass::Burstable, String::new(), None, &[], node)
                .expect("config")
                .config
        };
        let limited = pod(r#"{"overhead":{"cpu":"250m","memory":"64Mi"},"containers":[
                {"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"2","memory":"100Mi"}}},
                {"resources":{"limits":{"memory":"28Mi"}}}]}"#);
        let made = config(&limited, &node);
        let own = made.resources;
        assert_eq!(own.cpu_shares, Some(1024), "without overhead");
        assert_eq!(
            (own.cpu_quota_us, own.cpu_period_us),
            (Some(200_000), Some(100_000))
        );
        assert_eq!(own.memory_limit_bytes, Some(128 << 20));
        assert_eq!((own.oom_score_adj, own.hugepage_limits.len()), (0, 0));
        let beside = made.overhead;
        assert_eq!(beside.cpu_shares, Some(256), "request is limit");
        assert_eq!(beside.cpu_quota_us, Some(25_000));
        assert_eq!(beside.memory_limit_bytes, Some(64 << 20));
        let group = |values: &LinuxResources| values.unified.contains_key("memory.oom.group");
        assert!(group(&own) && group(&beside));

        node.cgroups.v2 = false;
        let plain = config(&pod(r#"{"containers":[{}]}"#), &node);
        assert_eq!(plain.resources.cpu_shares, Some(2));
        assert_eq!(plain.resources.memory_limit_bytes, None);
        assert!(!group(&plain.resources));
        assert_eq!(plain.overhead, LinuxResources::default(), "nothing is said");
    }

    #[test]
    fn sandbox_of_a_user() {
        // CRI-21
        let node = node();
        let user = |spec: &str, groups: &[i64]| {
            let made = sandbox_config(
                &pod(spec),
                0,
                QosClass::BestEffort,
                String::new(),
                None,
                groups,
                &node,
            );
            made.expect("config").config.user
        };
        let all = user(
            r#"{"securityContext":{"runAsUser":0,"runAsGroup":7,"fsGroup":1,"supplementalGroups":[3,4],
                "supplementalGroupsPolicy":"Strict","seLinuxOptions":{"user":"u","role":"r","type":"t","level":"s0"}}}"#,
            &[2],
        );
        assert_eq!((all.run_as_user, all.run_as_group), (Some(0), Some(7)));
        assert_eq!(all.supplemental_groups, [1, 2, 3, 4]);
        assert!(all.strict_supplemental_groups);
        assert_eq!(all.selinux_label, "u:r:t:s0");
        let none = user("{}", &[2]);
        assert_eq!((none.run_as_user, none.run_as_group), (None, None));
        assert_eq!(none.supplemental_groups, [2]);
        assert!(!none.strict_supplemental_groups && none.selinux_label.is_empty());
    }

    #[test]
    fn ports() {
        // CFG-12
        let pod = pod(
            r#"{"containers":[{"ports":[{"name":"w","containerPort":80},{"name":"w","containerPort":81},
                {"containerPort":80},{"containerPort":80},{"containerPort":80,"protocol":"UDP"},
                {"containerPort":80,"hostIP":"::1"},{"containerPort":80,"hostPort":8080,"protocol":"odd"}]},
                {"ports":[{"name":"w","containerPort":80}]}],
                "initContainers":[{"restartPolicy":"Always","ports":[{"containerPort":1}]}]}"#,
        );
        let got: Vec<_> = port_mappings(&pod)
            .iter()
            .map(|p| {
                format!(
                    "{} {} {} {}",
                    p.protocol, p.container_port, p.host_port, p.host_ip
                )
            })
            .collect();
        assert_eq!(
            got,
            [
                "TCP 80 0 ",
                "TCP 80 0 ",
                "UDP 80 0 ",
                "TCP 80 0 ::1",
                "TCP 80 8080 ",
                "TCP 80 0 "
            ]
        );
    }

    fn config(spec: &str) -> Result<ContainerConfig, PodError> {
        config_with(spec, Some("/pods/u-1/etc-hosts"), None)
    }

    fn image_volume() -> MountableVolume {
        MountableVolume {
            image: Some(MountedImage {
                image: "sha256:2".into(),
                user_image: "model:1".into(),
            }),
            ..MountableVolume::default()
        }
    }

    fn config_with(
        spec: &str,
        hosts_file: Option<&str>,
        target: Option<&ContainerId>,
    ) -> Result<ContainerConfig, PodError> {
        let pod = pod(spec);
        let node = node();
        let env = env_of(&pod);
        let image = StoredImage {
            id: "sha256:1".into(),
            uid: Some(5),
            ..StoredImage::default()
        };
        let volumes: BTreeMap<String, MountableVolume> =
            [("data", "/host/data", false), ("conf", "/host/conf", true)]
                .into_iter()
                .map(|(name, path, read_only)| {
                    let source = MountableVolume {
                        host_path: path.into(),
                        read_only,
                        image: None,
                    };
                    (name.to_owned(), source)
                })
                .chain([("model".into(), image_volume())])
                .collect();
        let pinned = [(1, "/pinned/1".to_owned())];
        container_config(&ContainerInput {
            pod: &pod,
            container: &pod.spec.containers[0],
            qos: QosClass::BestEffort,
            restart_count: 2,
            image: &image,
            env: &env,
            volumes: &volumes,
            sub_paths: &pinned,
            hosts_file,
            termination_log: Some("/pods/u-1/containers/app/0badcafe"),
            users: None,
            target,
            node: &node,
            recursive_read_only: false,
        })
    }

    fn env_of(pod: &Pod) -> EnvVariables {
        build_environment(&EnvInput {
            pod,
            container: &pod.spec.containers[0],
            objects: &NoObjects,
            services: None,
            place: crate::downward::PodPlacement {
                node_name: "pi",
                host_ips: &[],
                pod_ips: &[],
            },
            allocatable: Allocatable::default(),
        })
        .expect("env")
    }

    #[test]
    fn container() {
        // CFG-01 CFG-02 CFG-04 CFG-10 CFG-18 ENV-05
        let got = config(
            r#"{"terminationGracePeriodSeconds":30,"containers":[{"name":"app","image":"busybox","command":["sh","$(A)"],
                "args":["$(B)","$$(A)"],"workingDir":"/$(A)","env":[{"name":"A","value":"1"}],"stdin":true,"stdinOnce":true,
                "tty":true,"terminationMessagePolicy":"File","ports":[{"containerPort":80,"protocol":"TCP"}],
                "lifecycle":{"stopSignal":"SIGQUIT","preStop":{"exec":{"command":["bye"]}}}}]}"#)
        .expect("config");
        assert_eq!(got.command, ["sh", "1"]);
        assert_eq!(got.args, ["$(B)", "$(A)"]);
        assert_eq!(got.working_dir, "/$(A)");
        assert_eq!(got.env, [("A".to_owned(), "1".to_owned())]);
        assert_eq!(
            (got.image.as_str(), got.user_image.as_str()),
            ("sha256:1", "busybox")
        );
        assert_eq!((got.attempt, got.log_path.as_str()), (2, "app/2.log"));
        assert!(got.stdin && got.stdin_once && got.tty);
        assert_eq!(got.stop_signal, "SIGQUIT");
        assert_eq!(got.security.run_as_user, Some(5));
        assert_eq!(got.security.seccomp, SecurityProfile::Unconfined);
        assert_eq!(got.resources.oom_score_adj, 1000);
        let labels: Vec<_> = got.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            labels,
            [
                "io.kubernetes.container.name=app",
                "io.kubernetes.pod.name=web",
                "io.kubernetes.pod.namespace=prod",
                "io.kubernetes.pod.uid=u-1",
            ]
        );
        let hash = spec_hash(
            &pod(r#"{"containers":[{"name":"app","image":"busybox"}]}"#)
                .spec
                .containers[0],
        );
        for (key, want) in [
            (ANNOTATION_HASH, format!("{hash:x}").as_str()),
            (ANNOTATION_RESTART_COUNT, "2"),
            (ANNOTATION_TERMINATION_PATH, "/dev/termination-log"),
            (ANNOTATION_TERMINATION_POLICY, "File"),
            (ANNOTATION_POD_GRACE, "30"),
            (ANNOTATION_POD_DELETION_GRACE, "7"),
            (ANNOTATION_PRE_STOP, r#"{"exec":{"command":["bye"]}}"#),
            (
                ANNOTATION_PORTS,
                r#"[{"containerPort":80,"protocol":"TCP"}]"#,
            ),
        ] {
            assert_eq!(
                got.annotations.get(key).map(String::as_str),
                Some(want),
                "{key}"
            );
        }
        assert_eq!(got.annotations.len(), 8);
    }

    fn show(mounts: &[ContainerMount]) -> Vec<String> {
        let text = |m: &ContainerMount| {
            let mode = match (m.read_only, m.recursive_read_only) {
                (_, true) => "rro",
                (true, false) => "ro",
                (false, false) => "rw",
            };
            format!(
                "{} {} {mode} {:?}",
                m.host_path, m.container_path, m.propagation
            )
        };
        mounts.iter().map(text).collect()
    }

    #[test]
    fn mount_order_and_modes() {
        // CFG-30 CFG-32 CFG-35 CFG-39 CFG-50 VOL-23
        let got = config(
            r#"{"containers":[{"name":"app","terminationMessagePath":"/dev/end","volumeMounts":[
                {"name":"data","mountPath":"/z","mountPropagation":"Bidirectional"},
                {"name":"data","mountPath":"rel","subPath":"a/b","readOnly":true},
                {"name":"conf","mountPath":"/a","mountPropagation":"HostToContainer"},
                {"name":"data","mountPath":"/n","mountPropagation":"None"}]}]}"#,
        )
        .expect("config");
        assert_eq!(
            show(&got.mounts),
            [
                "/host/data /z rw Bidirectional",
                "/pinned/1 /rel ro Private",
                "/host/conf /a ro HostToContainer",
                "/host/data /n rw Private",
                "/pods/u-1/etc-hosts /etc/hosts rw Private",
                "/pods/u-1/containers/app/0badcafe /dev/end rw Private",
            ]
        );
        let bare = r#"{"containers":[{"name":"app","terminationMessagePath":""}]}"#;
        let got = config_with(bare, None, None).expect("config");
        assert_eq!(got.mounts, []);
    }

    #[test]
    fn images_as_volumes() {
        // VOL-18 VOL-23 VOL-26 IMG-19
        let got = config(
            r#"{"containers":[{"name":"app","image":"app:1","terminationMessagePath":"","volumeMounts":[
                {"name":"model","mountPath":"/m"},
                {"name":"model","mountPath":"/part","subPath":"as/written","mountPropagation":"HostToContainer"},
                {"name":"data","mountPath":"/d"}]}]}"#,
        );
        // The pinned path of the tests stands for what `sub_paths` says of an image volume.
        let got = got.expect("config");
        let image = |path: &str, sub_path: &str, propagation| ContainerMount {
            container_path: path.into(),
            read_only: true,
            propagation,
            image: image_volume().image,
            image_sub_path: sub_path.into(),
            ..ContainerMount::default()
        };
        assert_eq!(
            got.mounts[..2],
            [
                image("/m", "", MountPropagation::Private),
                image("/part", "/pinned/1", MountPropagation::HostToContainer),
            ]
        );
        assert_eq!(got.mounts[2].image, None);
        assert_eq!(got.volume_images(), ["sha256:2"]);
        // The container's own image: the id of the one that is there, and the name that the user wrote.
        assert_eq!((&*got.image, &*got.user_image), ("sha256:1", "app:1"));
    }

    #[test]
    fn mounts_that_cannot_be() {
        // CFG-30 CFG-32 CFG-35
        for (name, mount, want) in [
            (
                "unknown volume",
                r#"{"name":"gone"}"#,
                "cannot find volume \"gone\"",
            ),
            (
                "propagation",
                r#"{"name":"data","mountPropagation":"Odd"}"#,
                "invalid MountPropagation mode: \"Odd\"",
            ),
            (
                "subPath not pinned",
                r#"{"name":"data","subPath":"x"}"#,
                "is not prepared",
            ),
        ] {
            let spec = format!(r#"{{"containers":[{{"name":"app","volumeMounts":[{mount}]}}]}}"#);
            let error = config(&spec).expect_err(name);
            assert!(error.to_string().contains(want), "{name}: {error}");
        }
        let device = r#"{"containers":[{"volumeDevices":[{"name":"d","devicePath":"/dev/x"}]}]}"#;
        assert!(config(device).is_err());
    }

    #[test]
    fn recursive_read_only_mounts() {
        // CFG-34 RRO-03 RRO-04
        let (with, without) = (true, false);
        for (name, mount, recursive_read_only, want) in [
            ("unset", r#""readOnly":true"#, with, Some("ro")),
            (
                "disabled",
                r#""readOnly":true,"recursiveReadOnly":"Disabled""#,
                with,
                Some("ro"),
            ),
            (
                "possible",
                r#""readOnly":true,"recursiveReadOnly":"IfPossible""#,
                with,
                Some("rro"),
            ),
            (
                "not possible",
                r#""readOnly":true,"recursiveReadOnly":"IfPossible""#,
                without,
                Some("ro"),
            ),
            (
                "enabled",
                r#""readOnly":true,"recursiveReadOnly":"Enabled""#,
                with,
                Some("rro"),
            ),
            (
                "possible, below a subPath",
                r#""readOnly":true,"subPath":"s","recursiveReadOnly":"IfPossible""#,
                with,
                Some("rro"),
            ),
            (
                "enabled, no support",
                r#""readOnly":true,"recursiveReadOnly":"Enabled""#,
                without,
                None,
            ),
            ("a volume that is read-only itself", "", with, Some("ro")),
            (
                "a volume that is read-only itself, and a mount that is not",
                r#""recursiveReadOnly":"IfPossible""#,
                with,
                None,
            ),
            (
                "not read-only",
                r#""recursiveReadOnly":"Enabled""#,
                with,
                None,
            ),
            (
                "propagated",
                r#""readOnly":true,"mountPropagation":"HostToContainer","recursiveReadOnly":"Enabled""#,
                with,
                None,
            ),
            (
                "unknown",
                r#""readOnly":true,"recursiveReadOnly":"Odd""#,
                with,
                None,
            ),
        ] {
            let mount = if mount.is_empty() {
                String::new()
            } else {
                format!(",{mount}")
            };
            let spec = format!(
                r#"{{"containers":[{{"name":"app","volumeMounts":[{{"name":"data","mountPath":"/m"{mount}}}]}}]}}"#
            );
            let pod = pod(&spec);
            let (env, image) = (env_of(&pod), StoredImage::default());
            let volume = MountableVolume {
                read_only: name.contains("read-only itself"),
                ..MountableVolume::default()
            };
            let volumes = [("data".to_owned(), volume)].into();
            let got = container_config(&ContainerInput {
                pod: &pod,
                container: &pod.spec.containers[0],
                qos: QosClass::BestEffort,
                restart_count: 0,
                image: &image,
                env: &env,
                volumes: &volumes,
                sub_paths: &[(0, "/pinned".into())],
                hosts_file: None,
                termination_log: None,
                users: None,
                target: None,
                node: &node(),
                recursive_read_only,
            });
            let shown = match (got, want) {
                (Ok(config), _) => show(&config.mounts)[0].clone(),
                (Err(e), _) => e.to_string(),
            };
            match want {
                Some(mode) => assert!(
                    shown.ends_with(&format!(" /m {mode} Private")),
                    "{name}: {shown}"
                ),
                None => assert!(
                    shown.starts_with(
                        "failed to resolve recursive read-only mode: volume \"data\" "
                    ),
                    "{name}: {shown}"
                ),
            }
        }
    }

    #[test]
    fn sub_path_rules() {
        // CFG-35 CFG-36 VOL-24 VOL-26
        for (name, mount, want) in [
            ("none", r#"{"name":"v"}"#, Ok(vec![])),
            (
                "plain, not expanded",
                r#"{"subPath":"a/$(A)"}"#,
                Ok(vec![(0, "a/$(A)")]),
            ),
            (
                "expanded",
                r#"{"subPathExpr":"x/$(A)"}"#,
                Ok(vec![(0, "x/one")]),
            ),
            (
                "absolute",
                r#"{"subPath":"/a"}"#,
                Err("subPath \"/a\" must not be an absolute path"),
            ),
            (
                "upwards",
                r#"{"subPathExpr":"$(UP)/x"}"#,
                Err("unable to provision subPath \"../x\": must not contain '..'"),
            ),
            (
                "two dots in a name are fine",
                r#"{"subPath":"a..b"}"#,
                Ok(vec![(0, "a..b")]),
            ),
            (
                "missing",
                r#"{"subPathExpr":"$(NO)"}"#,
                Err("failed to expand subPath for \"$(NO)\": missing value for \"NO\""),
            ),
            (
                "empty",
                r#"{"subPathExpr":"$(E)"}"#,
                Err("failed to expand subPath for \"$(E)\": missing value for \"E\""),
            ),
        ] {
            let mut env = EnvVariables::default();
            for (name, value) in [("A", "one"), ("UP", ".."), ("E", "")] {
                env.set_variable(name, value.into()).expect("small");
            }
            let container: Container =
                serde_json::from_str(&format!(r#"{{"volumeMounts":[{mount}]}}"#)).expect("json");
            let got = resolve_sub_paths(&container, &env);
            let want = want
                .map(|list: Vec<(usize, &str)>| {
                    list.into_iter().map(|(n, p)| (n, p.to_owned())).collect()
                })
                .map_err(|text: &str| PodError::Spec(text.into()));
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn refusals_of_security() {
        // SEC-03
        let spec = r#"{"containers":[{"name":"app","securityContext":{"runAsNonRoot":true,"runAsUser":0}}]}"#;
        assert!(config(spec).is_err());
    }

    #[test]
    fn target_container() {
        let id = ContainerId::from("c1");
        let spec = |more: &str| {
            format!(r#"{{{more}"containers":[{{"name":"dbg","targetContainerName":"app"}}]}}"#)
        };
        let got = config_with(&spec(""), None, Some(&id)).expect("config");
        assert_eq!(got.security.namespaces.pid, NamespaceMode::Target);
        assert_eq!(got.security.target, Some(id));
        assert!(config(&spec("")).is_err(), "no instance");
        let shared = config(&spec(r#""shareProcessNamespace":true,"#)).expect("shared");
        assert_eq!(shared.security.namespaces.pid, NamespaceMode::Pod);
    }

    #[test]
    fn log_links() {
        // CFG-11
        let mut pod = pod("{}");
        let id = ContainerId::from("0123456789abcdef");
        assert_eq!(
            log_link_name(&pod, "app", &id),
            "web_prod_app-0123456789abcdef.log"
        );
        pod.metadata.name = "n".repeat(250);
        let name = log_link_name(&pod, "app", &id);
        assert_eq!(name.len(), 255);
        assert!(name.ends_with("n-0123456789abcdef.log"));
    }
}
