//! Admission of a pod to this node (ADM). Names follow kubelet `lifecycle/predicate.go`.
//!
//! Decided once per pod and process life, against the other active pods. The first refusal counts; no container of a
//! refused pod ever starts ([`super::status::rejected_status`]).

use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::{IpAddr, SocketAddr};

use crate::api::{
    Container, Node, Pod,
    cri::{NamespaceMode, SandboxState, SandboxStatus},
    node::Taint,
    pod::{ContainerPort, SeccompProfile},
    pod_status::{PodPhase, QosClass},
};

use super::{
    cpu_manager::CpuRefusal,
    declared_features::missing_features,
    node::renew_labels,
    node_resources::is_extended_resource,
    node_selector::{fits_node, tolerates},
    pod_kind::{is_critical, is_static},
    preemption::{PodRank, Shortfall, choose_victims},
    qos::{
        CPU, EPHEMERAL_STORAGE, MEMORY, ResourceAmounts, parse_amounts, pod_request_amounts,
        qos_class,
    },
    sysctl::SysctlAllowlist,
};

mod reread;

pub use reread::NodeRereads;

/// Resource name of the pod count.
pub const PODS: &str = "pods";
/// Label and value of the operating system.
const OS_LABEL: &str = "kubernetes.io/os";
const OS: &str = "linux";
/// Annotation that names an AppArmor profile per container, before its name.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Node condition.
const MEMORY_PRESSURE: &str = "MemoryPressure";
/// Effect of the only taints that count here.
const NO_EXECUTE: &str = "NoExecute";
/// Taints of the node controller. They describe the node at the time it was read, and may be out of date soon after.
const PASSING_TAINTS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// A refusal: reason for status and event, bare text (the status adds `Pod was rejected: `).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// CamelCase reason.
    pub reason: String,
    /// Text for people.
    pub message: String,
}

impl From<CpuRefusal> for Rejection {
    fn from(refusal: CpuRefusal) -> Self {
        match refusal {
            CpuRefusal::TooFew { .. } => Self::new(
                "UnexpectedAdmissionError",
                format!("Allocate failed due to {refusal}, which is unexpected"),
            ),
            CpuRefusal::HalfCore { .. } => Self::new("SMTAlignmentError", refusal.to_string()),
        }
    }
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

    /// Value of the metric's `reason` label (ADM-03): few enough to be a label.
    #[must_use]
    pub fn metric_reason(&self) -> &'static str {
        const KNOWN: &[&str] = &[
            "AppArmor",
            "Evicted",
            "OutOfcpu",
            "OutOfephemeral-storage",
            "OutOfmemory",
            "OutOfpods",
            "PodFeatureUnsupported",
            "PodOSNotSupported",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "SupplementalGroupsPolicyNotSupported",
            "SysctlForbidden",
            "UnexpectedAdmissionError",
        ];
        let known = KNOWN.iter().find(|known| **known == self.reason);
        match known {
            Some(known) => known,
            None if self.reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        }
    }
}

/// Facts about the node that admission uses.
#[derive(Clone, Debug, Default)]
pub struct AdmissionNodeFacts {
    /// Node name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Set while the apiserver's Node has not been read: labels and taints are those of a new Node. Pods of the API are
    /// not judged by them: before the Node is read all of them are from disk, so they were admitted before (OFF-07).
    pub unread: bool,
    /// Resources for all pods together: `cpu` in thousandths, `pods`, the rest in its own unit. A missing resource is
    /// 0.
    pub allocatable: ResourceAmounts,
    /// Pressure conditions that hold now, in the order in which they are to be named.
    pub pressure: Vec<String>,
    /// Sysctls that pods may set.
    pub sysctls: SysctlAllowlist,
    /// Set if AppArmor works on this node.
    pub apparmor: bool,
    /// Set if the runtime knows `supplementalGroupsPolicy: Strict`.
    pub strict_supplemental_groups: bool,
    /// Features that the node declares, sorted (NDF-01).
    pub declared_features: Vec<String>,
    /// Resources whose units this agent gives out itself (DEV-05): their number in the Node's status does not count.
    pub devices: Vec<Box<str>>,
}

impl AdmissionNodeFacts {
    /// Takes labels and taints from the Node in the API. Of its allocatable resources takes those that this agent does
    /// not measure itself: extended resources that others have put into the Node's status (NODE-06, NODE-11).
    pub fn learn_from_node(&mut self, node: &Node) {
        self.unread = false;
        self.labels.clone_from(&node.metadata.labels);
        self.taints.clone_from(&node.spec.taints);
        self.allocatable
            .retain(|name, _| !is_extended_resource(name));
        let others = parse_amounts(&node.status.allocatable).into_iter();
        let devices = &self.devices;
        let is_other =
            |name: &str| is_extended_resource(name) && !devices.iter().any(|d| **d == *name);
        self.allocatable
            .extend(others.filter(|(name, _)| is_other(name)));
    }

    /// Begins as a member of a cluster, with labels and taints of the Node when it was last read, if they were kept.
    /// Usual labels are this agent's, as when it registers (NODE-03).
    pub fn restore_kept_node(&mut self, kept: Option<KeptNode>) {
        let Some(KeptNode { mut labels, taints }) = kept else {
            self.unread = true;
            return;
        };
        renew_labels(&mut labels, &self.labels);
        self.labels = labels;
        self.taints = taints;
    }
}

/// Part of the API's Node that is kept for the next start of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptNode {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Taints that count, without their time.
    pub taints: Vec<Taint>,
}

impl KeptNode {
    /// Takes from `node` the part to keep. Only a change that matters to a later admission changes the result.
    #[must_use]
    pub fn from_node(node: &Node) -> Self {
        let counts = |taint: &&Taint| {
            taint.effect == NO_EXECUTE && !PASSING_TAINTS.contains(&taint.key.as_str())
        };
        let timeless = |taint: &Taint| Taint {
            time_added: None,
            ..taint.clone()
        };
        Self {
            labels: node.metadata.labels.clone(),
            taints: node
                .spec
                .taints
                .iter()
                .filter(counts)
                .map(timeless)
                .collect(),
        }
    }
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

/// Returns true if a sandbox of a pod answers at `to`: any port of an address that the runtime gave it, or, with the host's
/// network, a TCP port of the node that the pod has declared (K3ST-16). `host_ips`: addresses of the node. The pod's status
/// has no say: others may write it.
#[must_use]
pub fn is_pod_address(
    to: SocketAddr,
    sandbox: &SandboxStatus,
    host_ports: &[HostPort],
    host_ips: &[IpAddr],
) -> bool {
    let is_of_node = host_ips.contains(&to.ip());
    let is_declared = |port: &HostPort| port.port == to.port() && port.protocol == "TCP";
    sandbox.state == SandboxState::Ready
        && match sandbox.namespaces.network {
            NamespaceMode::Node => is_of_node && host_ports.iter().any(is_declared),
            NamespaceMode::Pod | NamespaceMode::Container | NamespaceMode::Target => {
                !is_of_node && sandbox.ips.contains(&to.ip())
            }
        }
}

/// Share of the node that an active pod takes. Cheap to keep per pod: a few entries each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivePod {
    /// Requests, overhead included.
    pub requests: ResourceAmounts,
    /// Host ports of regular containers and sidecars.
    pub host_ports: Vec<HostPort>,
    /// Rank that decides whether a critical pod may preempt this one.
    pub rank: PodRank,
}

impl ActivePod {
    /// Computes the share of `pod`.
    #[must_use]
    pub fn from_pod(pod: &Pod) -> Self {
        Self {
            requests: pod_request_amounts(pod),
            host_ports: host_ports(pod),
            rank: PodRank::from_pod(pod),
        }
    }
}

/// Sum of a resource that active pods take.
#[must_use]
pub fn used_amount(active: &[&ActivePod], resource: &str) -> i64 {
    let amounts = active.iter().filter_map(|pod| pod.requests.get(resource));
    amounts.fold(0, |sum: i64, n| sum.saturating_add(*n))
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

/// Decision about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// The pod may run.
    Admit,
    /// The pod is refused for good.
    Refuse(Rejection),
    /// Only the node's labels or taints are against the pod, and those known here may be old. Judge the pod once more
    /// with the Node as it is in the API; if the Node cannot be read, refuse the pod with this (ADM-08, ADM-10).
    ReadNodeAgain(Rejection),
    /// The pod is critical and lacks only room: it may run once these of `active` are killed (ADM-14, ADM-15).
    Preempt {
        /// Places in `active`.
        victims: Vec<usize>,
        /// The first resource that is lacking, for `kubelet_preemptions`.
        resource: String,
    },
}

/// Decides about `pod` (ADM-02: eviction, sysctls, predicates, AppArmor, declared features).
///
/// `active`: the other active pods, as ADM-07 words it; a terminating pod keeps its share until its containers are gone.
/// A pod that is judged a second time after its victims are gone can be refused by [`admit_pod`].
#[must_use]
pub fn judge_admission(
    pod: &Pod,
    node: &AdmissionNodeFacts,
    active: &[&ActivePod],
) -> AdmissionVerdict {
    let failures = match before_predicates(pod, node) {
        Ok(()) => failed_predicates(pod, node, active),
        Err(rejection) => return AdmissionVerdict::Refuse(rejection),
    };
    let after = after_predicates(pod, node);
    let lacking: Vec<Shortfall> = failures
        .iter()
        .filter_map(PredicateFailure::shortfall)
        .collect();
    if !lacking.is_empty() && is_critical(pod) {
        // No pod is killed for one that would not be admitted even then.
        let other = failures.into_iter().find(|f| f.shortfall().is_none());
        return match (other.map(PredicateFailure::rejection), after) {
            (Some(rejection), _) | (None, Err(rejection)) => AdmissionVerdict::Refuse(rejection),
            (None, Ok(())) => match choose_victims(&PodRank::from_pod(pod), &lacking, active) {
                Ok(victims) => AdmissionVerdict::Preempt {
                    victims,
                    resource: lacking[0].resource.clone(),
                },
                Err(why) => AdmissionVerdict::Refuse(Rejection::new(
                    "UnexpectedAdmissionError",
                    format!(
                        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {why}"
                    ),
                )),
            },
        };
    }
    let may_be_old = failures
        .iter()
        .all(|f| matches!(f, PredicateFailure::OfNode(_)));
    match (failures.into_iter().next(), after) {
        (Some(failure), _) if may_be_old => AdmissionVerdict::ReadNodeAgain(failure.rejection()),
        (Some(failure), _) => AdmissionVerdict::Refuse(failure.rejection()),
        (None, Err(rejection)) => AdmissionVerdict::Refuse(rejection),
        (None, Ok(())) => AdmissionVerdict::Admit,
    }
}

/// Decides as [`judge_admission`], where neither the Node can be read nor other pods be killed.
///
/// # Errors
/// The first refusal.
pub fn admit_pod(
    pod: &Pod,
    node: &AdmissionNodeFacts,
    active: &[&ActivePod],
) -> Result<(), Rejection> {
    before_predicates(pod, node)?;
    match failed_predicates(pod, node, active).into_iter().next() {
        Some(failure) => Err(failure.rejection()),
        None => after_predicates(pod, node),
    }
}

fn before_predicates(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    check_pressure(pod, node)?;
    check_sysctls(pod, node)?;
    check_claims(pod)?;
    check_os(pod)?;
    check_groups_policy(pod, node)
}

fn after_predicates(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    check_apparmor(pod, node)?;
    check_declared_features(pod, node)
}

/// A predicate that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PredicateFailure {
    Resource {
        name: String,
        requested: i64,
        used: i64,
        capacity: i64,
    },
    /// The Node's labels or taints, which others may have changed since it was read.
    OfNode(Rejection),
    Other(Rejection),
}

impl PredicateFailure {
    fn rejection(self) -> Rejection {
        match self {
            Self::Resource {
                name,
                requested,
                used,
                capacity,
            } => Rejection::new(
                &format!("OutOf{name}"),
                format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            ),
            Self::OfNode(rejection) | Self::Other(rejection) => rejection,
        }
    }

    fn shortfall(&self) -> Option<Shortfall> {
        match self {
            Self::Resource {
                name,
                requested,
                used,
                capacity,
            } => Some(Shortfall {
                resource: name.clone(),
                amount: requested.saturating_sub(capacity.saturating_sub(*used)),
            }),
            Self::OfNode(_) | Self::Other(_) => None,
        }
    }
}

/// All predicates that fail, in the order of ADM-05.
fn failed_predicates(
    pod: &Pod,
    node: &AdmissionNodeFacts,
    active: &[&ActivePod],
) -> Vec<PredicateFailure> {
    let mut failures = lacking_resources(pod, node, active);
    let others = [
        check_affinity(pod, node).map_err(PredicateFailure::OfNode),
        check_node_name(pod, node).map_err(PredicateFailure::Other),
        check_ports(pod, active).map_err(PredicateFailure::Other),
        check_taints(pod, node).map_err(PredicateFailure::OfNode),
    ];
    failures.extend(others.into_iter().filter_map(Result::err));
    failures
}

/// Returns true if labels and taints of the node count for the pod.
fn knows_node_of(pod: &Pod, node: &AdmissionNodeFacts) -> bool {
    !node.unread || is_static(pod)
}

fn check_affinity(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    if !knows_node_of(pod, node) || fits_node(pod, &node.name, &node.labels) {
        return Ok(());
    }
    Err(Rejection::predicate(
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    ))
}

fn check_pressure(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    if node.pressure.is_empty() || is_critical(pod) {
        return Ok(());
    }
    if node.pressure.iter().all(|c| c == MEMORY_PRESSURE) {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".into(),
            value: String::new(),
            effect: "NoSchedule".into(),
            time_added: None,
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

/// Refuses a pod with resource claims: it would start without the devices it asks for (DEV-47).
fn check_claims(pod: &Pod) -> Result<(), Rejection> {
    match pod.spec.resource_claims.first() {
        None => Ok(()),
        Some(claim) => Err(Rejection::new(
            "UnexpectedAdmissionError",
            format!(
                "resource claim {:?}: this node serves no resource claims (dynamic resource allocation)",
                claim.name
            ),
        )),
    }
}

fn check_sysctls(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    let sysctls = pod.spec.security_context.iter().flat_map(|c| &c.sysctls);
    for sysctl in sysctls {
        node.sysctls
            .check_sysctl(&sysctl.name, pod.spec.host_network, pod.spec.host_ipc)
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

fn check_groups_policy(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
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
fn lacking_resources(
    pod: &Pod,
    node: &AdmissionNodeFacts,
    active: &[&ActivePod],
) -> Vec<PredicateFailure> {
    let mut failures = Vec::new();
    let mut refuse = |resource: &str, requested: i64, used: i64, capacity: i64| {
        failures.push(PredicateFailure::Resource {
            name: resource.into(),
            requested,
            used,
            capacity,
        });
    };
    let capacity = |resource: &str| node.allocatable.get(resource).copied().unwrap_or(0);
    let pods = i64::try_from(active.len()).unwrap_or(i64::MAX);
    if pods >= capacity(PODS) {
        refuse(PODS, 1, pods, capacity(PODS));
    }
    let requests = pod_request_amounts(pod);
    let first = [CPU, MEMORY, EPHEMERAL_STORAGE];
    let others = requests
        .keys()
        .map(String::as_str)
        .filter(|name| !first.contains(name));
    for resource in first.into_iter().chain(others) {
        let requested = requests.get(resource).copied().unwrap_or(0);
        if requested <= 0
            || (is_extended_resource(resource) && !node.allocatable.contains_key(resource))
        {
            continue;
        }
        let used = used_amount(active, resource);
        if requested > capacity(resource).saturating_sub(used) {
            refuse(resource, requested, used, capacity(resource));
        }
    }
    failures
}

fn check_node_name(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    if !pod.spec.node_name.is_empty() && pod.spec.node_name != node.name {
        return Err(Rejection::predicate(
            "NodeName",
            "node(s) didn't match the requested node name",
        ));
    }
    Ok(())
}

fn check_ports(pod: &Pod, active: &[&ActivePod]) -> Result<(), Rejection> {
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

fn check_taints(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    let untolerated = node
        .taints
        .iter()
        .any(|t| t.effect == NO_EXECUTE && !tolerates(&pod.spec.tolerations, t));
    if untolerated && knows_node_of(pod, node) && !is_static(pod) {
        return Err(Rejection::predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    Ok(())
}

fn check_apparmor(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    if node.apparmor || pod.status.phase != PodPhase::Pending || !asks_apparmor(pod) {
        return Ok(());
    }
    Err(Rejection::new(
        "AppArmor",
        "Cannot enforce AppArmor: AppArmor is not enabled on the host",
    ))
}

/// Refuses a pod that needs a feature which the node does not declare (NDF-02).
fn check_declared_features(pod: &Pod, node: &AdmissionNodeFacts) -> Result<(), Rejection> {
    match &*missing_features(pod, &node.declared_features) {
        [] => Ok(()),
        missing => Err(Rejection::new(
            "PodFeatureUnsupported",
            format!(
                "Pod requires node features that are not available: {}",
                missing.join(", ")
            ),
        )),
    }
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
