//! Whether this node takes a pod (ADM). Names follow kubelet `lifecycle/predicate.go`.
//!
//! Asked once per pod and process life, against the other active pods. The first refusal counts; nothing of a refused
//! pod ever starts ([`super::status::rejected_status`]).

use alloc::collections::BTreeMap;

use crate::api::{
    Container, Pod,
    pod::{ContainerPort, SeccompProfile},
    pod_status::{Phase, QosClass},
};

use super::{
    node_selector::{Taint, fits_node, tolerates},
    pod_kind::{is_critical, is_static},
    qos::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY, add, pod_requests, qos_class},
    sysctl::SysctlAllowlist,
};

/// Resource name of the pod count.
pub const PODS: &str = "pods";
/// Label and value of the operating system.
const OS_LABEL: &str = "kubernetes.io/os";
const OS: &str = "linux";
/// Annotation that names an AppArmor profile per container, before its name.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Node condition.
const MEMORY_PRESSURE: &str = "MemoryPressure";

/// A refusal: reason for status and event, bare text (the status adds `Pod was rejected: `).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// CamelCase reason.
    pub reason: String,
    /// Text for people.
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    fn predicate(name: &str, text: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {text}"))
    }

    /// The answer while the node itself is not known.
    #[must_use]
    pub fn no_node_info() -> Self {
        Self::new("InvalidNodeInfo", "Kubelet cannot get node info.")
    }

    /// Value of the metric's `reason` label (ADM-03): few enough to be a label.
    #[must_use]
    pub fn metric_reason(&self) -> &str {
        const KNOWN: &[&str] = &[
            "AppArmor",
            "Evicted",
            "InvalidNodeInfo",
            "OutOfcpu",
            "OutOfephemeral-storage",
            "OutOfmemory",
            "OutOfpods",
            "PodOSNotSupported",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "SupplementalGroupsPolicyNotSupported",
            "SysctlForbidden",
            "UnexpectedAdmissionError",
        ];
        if KNOWN.contains(&self.reason.as_str()) {
            &self.reason
        } else if self.reason.starts_with("OutOf") {
            "OutOfExtendedResources"
        } else {
            "Other"
        }
    }
}

/// What admission knows of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Node name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// What pods may use together: `cpu` in thousandths, `pods`, the rest in its own unit. A missing resource is 0.
    pub allocatable: Amounts,
    /// Pressure conditions that hold now, in the order in which they are to be named.
    pub pressure: Vec<String>,
    /// Sysctls that pods may set.
    pub sysctls: SysctlAllowlist,
    /// Whether AppArmor works here.
    pub apparmor: bool,
    /// Whether the runtime knows `supplementalGroupsPolicy: Strict`.
    pub strict_supplemental_groups: bool,
}

/// A host port in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port, not 0.
    pub port: u16,
    /// Address; empty for all.
    pub ip: String,
}

impl HostPort {
    fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip.is_empty() || other.ip.is_empty() || self.ip == other.ip)
    }
}

/// What an active pod takes of the node. Cheap to keep per pod: a few entries each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivePod {
    /// Requests, overhead included.
    pub requests: Amounts,
    /// Host ports of regular containers and sidecars.
    pub host_ports: Vec<HostPort>,
}

impl ActivePod {
    /// What `pod` takes.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        Self {
            requests: pod_requests(pod),
            host_ports: host_ports(pod),
        }
    }
}

/// Host ports that a pod binds: those of regular containers and sidecars (ADM-09). With the host's network a declared
/// port is a host port.
#[must_use]
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
    let port = |p: &ContainerPort| {
        let port = match p.host_port {
            0 if pod.spec.host_network => p.container_port,
            port => port,
        };
        (port != 0).then(|| HostPort {
            protocol: if p.protocol.is_empty() {
                "TCP".into()
            } else {
                p.protocol.clone()
            },
            port,
            ip: if p.host_ip == "0.0.0.0" {
                String::new()
            } else {
                p.host_ip.clone()
            },
        })
    };
    pod.spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().filter_map(port))
        .collect()
}

/// Decides about `pod` (ADM-02: eviction, sysctls, predicates, AppArmor).
///
/// `active`: the other active pods, as ADM-07 words it; a terminating pod keeps its share until its containers are gone.
///
/// # Errors
/// The first refusal.
pub fn admit(pod: &Pod, node: &NodeFacts, active: &[ActivePod]) -> Result<(), Rejection> {
    check_pressure(pod, node)?;
    check_sysctls(pod, node)?;
    check_os(pod)?;
    check_groups_policy(pod, node)?;
    check_resources(pod, node, active)?;
    check_node(pod, node)?;
    check_ports(pod, active)?;
    check_taints(pod, node)?;
    check_apparmor(pod, node)
}

/// Whether the refusal rests only on node labels: then the node should be read anew and the pod judged again (ADM-08).
#[must_use]
pub fn may_be_stale_labels(rejection: &Rejection) -> bool {
    rejection.reason == "NodeAffinity"
}

fn check_pressure(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if node.pressure.is_empty() || is_critical(pod) {
        return Ok(());
    }
    if node.pressure.iter().all(|c| c == MEMORY_PRESSURE) {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            value: String::new(),
            effect: "NoSchedule".into(),
        };
        if qos_class(pod) != QosClass::BestEffort || tolerates(&pod.spec.tolerations, &taint) {
            return Ok(());
        }
    }
    Err(Rejection::new(
        "Evicted",
        format!("The node had condition: [{}]. ", node.pressure.join(" ")),
    ))
}

fn check_sysctls(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let sysctls = pod.spec.security_context.iter().flat_map(|c| &c.sysctls);
    for sysctl in sysctls {
        node.sysctls
            .check(&sysctl.name, pod.spec.host_network, pod.spec.host_ipc)
            .map_err(|why| Rejection::new("SysctlForbidden", format!("forbidden sysctl: {why}")))?;
    }
    Ok(())
}

fn check_os(pod: &Pod) -> Result<(), Rejection> {
    if pod.metadata.labels.get(OS_LABEL).is_some_and(|os| os != OS) {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    if pod.spec.os.as_ref().is_some_and(|os| os.name != OS) {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

fn check_groups_policy(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let policy = pod
        .spec
        .security_context
        .as_ref()
        .and_then(|c| c.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !node.strict_supplemental_groups {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Pods, cpu, memory, ephemeral storage, then the others by name (ADM-06).
fn check_resources(pod: &Pod, node: &NodeFacts, active: &[ActivePod]) -> Result<(), Rejection> {
    let refuse = |resource: &str, requested: i64, used: i64, capacity: i64| {
        Err(Rejection::new(
            &format!("OutOf{resource}"),
            format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        ))
    };
    let capacity = |resource: &str| node.allocatable.get(resource).copied().unwrap_or(0);
    let pods = i64::try_from(active.len()).unwrap_or(i64::MAX);
    if pods >= capacity(PODS) {
        return refuse(PODS, 1, pods, capacity(PODS));
    }
    let requests = pod_requests(pod);
    let mut used = Amounts::new();
    for other in active {
        add(&mut used, &other.requests);
    }
    let first = [CPU, MEMORY, EPHEMERAL_STORAGE];
    let others = requests
        .keys()
        .map(String::as_str)
        .filter(|name| !first.contains(name));
    for resource in first.into_iter().chain(others) {
        let requested = requests.get(resource).copied().unwrap_or(0);
        if requested <= 0 || (is_extended(resource) && !node.allocatable.contains_key(resource)) {
            continue;
        }
        let used = used.get(resource).copied().unwrap_or(0);
        if requested > capacity(resource).saturating_sub(used) {
            return refuse(resource, requested, used, capacity(resource));
        }
    }
    Ok(())
}

/// A resource of a device plugin or of the cluster, not of the kernel.
fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
}

fn check_node(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if !fits_node(pod, &node.name, &node.labels) {
        return Err(Rejection::predicate(
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    if !pod.spec.node_name.is_empty() && pod.spec.node_name != node.name {
        return Err(Rejection::predicate(
            "NodeName",
            "node(s) didn't match the requested node name",
        ));
    }
    Ok(())
}

fn check_ports(pod: &Pod, active: &[ActivePod]) -> Result<(), Rejection> {
    let taken = host_ports(pod).iter().any(|port| {
        active
            .iter()
            .flat_map(|other| &other.host_ports)
            .any(|other| port.conflicts(other))
    });
    if taken {
        return Err(Rejection::predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}

fn check_taints(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    let untolerated = node
        .taints
        .iter()
        .any(|t| t.effect == "NoExecute" && !tolerates(&pod.spec.tolerations, t));
    if untolerated && !is_static(pod) {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}

fn check_apparmor(pod: &Pod, node: &NodeFacts) -> Result<(), Rejection> {
    if node.apparmor || pod.status.phase != Phase::Pending || !asks_apparmor(pod) {
        return Ok(());
    }
    Err(Rejection::new(
        "AppArmor",
        "Cannot enforce AppArmor: AppArmor is not enabled on the host",
    ))
}

fn asks_apparmor(pod: &Pod) -> bool {
    let confined = |profile: Option<&SeccompProfile>| profile.map(|p| p.kind != "Unconfined");
    let of_pod = confined(
        pod.spec
            .security_context
            .as_ref()
            .and_then(|c| c.app_armor_profile.as_ref()),
    );
    let of = |container: &Container| {
        let own = container.security_context.as_ref();
        let note = pod
            .metadata
            .annotations
            .get(&format!("{APPARMOR_ANNOTATION}{}", container.name));
        confined(own.and_then(|c| c.app_armor_profile.as_ref()))
            .or_else(|| note.map(|profile| profile != "unconfined"))
            .or(of_pod)
            .unwrap_or(false)
    };
    pod.spec.all_containers().any(of)
}

#[cfg(test)]
mod tests;
