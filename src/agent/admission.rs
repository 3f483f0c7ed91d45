//! Facts of this node for admission, gathered for `logic::admission`.

use crate::{
    api::{cri::RuntimeCapabilities, strict::WrongValue},
    logic::{
        admission::{AdmissionNodeFacts, PODS},
        node as rules,
        qos::{CPU, EPHEMERAL_STORAGE, MEMORY, ResourceAmounts},
        sysctl::SysctlAllowlist,
    },
};

/// Facts of this node for admission: those of the Node that it would register (NODE-06).
pub(super) fn gather_admission_facts(
    cfg: &crate::config::AgentConfig,
    node: &super::node::MachineFacts,
    kernel: (u32, u32),
    apparmor: bool,
    runtime: &RuntimeCapabilities,
) -> Result<AdmissionNodeFacts, WrongValue> {
    let left = node.allocatable();
    let allocatable = ResourceAmounts::from([
        (CPU.to_owned(), left.cpu_milli),
        (MEMORY.to_owned(), left.memory_bytes),
        (EPHEMERAL_STORAGE.to_owned(), left.ephemeral_storage_bytes),
        (PODS.to_owned(), super::node::max_pods(cfg, node)),
    ]);
    let sysctls = SysctlAllowlist::new(kernel, &cfg.allowed_unsafe_sysctls);
    let mut sysctls =
        sysctls.map_err(|e| WrongValue::new("allowedUnsafeSysctls", e.to_string()))?;
    // Until a server says that it has no load balancer (K3SN-07).
    sysctls.set_service_lb(cfg.cluster.k3s.is_some());
    Ok(AdmissionNodeFacts {
        name: node.name.clone(),
        labels: rules::new_node_labels(&node.settings, &node.identity.architecture),
        taints: node.settings.taints.clone(),
        unread: false,
        allocatable,
        pressure: Vec::new(),
        sysctls,
        apparmor,
        strict_supplemental_groups: runtime.supplemental_groups_policy,
        declared_features: node.settings.declared_features.clone(),
        // The loop tells them before it begins.
        devices: Vec::new(),
    })
}
