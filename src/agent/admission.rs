//! Whether the node takes a pod: facts gathered for `logic::admission`.

use super::{node::Node, pods::Pods};
use crate::{
    api::{Pod, cri::Capabilities},
    logic::{
        admission::{self, NodeFacts, PODS, Rejection},
        node as rules,
        qos::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY},
        sysctl::SysctlAllowlist,
    },
};

/// Asks about `pod`, against all other active pods (LOOP-09, LOOP-11).
pub(super) fn admit(pods: &Pods, node: &Node, pod: &Pod) -> Result<(), Rejection> {
    let active = pods.active_but(&pod.metadata.uid);
    node.with_admission(|node| admission::admit(pod, node, &active))
}

/// What admission knows of this node: the one it would register (NODE-06).
pub(super) fn facts(
    cfg: &crate::config::Config,
    node: &super::node::NodeFacts,
    kernel: (u32, u32),
    apparmor: bool,
    runtime: &Capabilities,
) -> Result<NodeFacts, String> {
    let left = node.allocatable();
    let allocatable = Amounts::from([
        (CPU.to_owned(), left.cpu_milli),
        (MEMORY.to_owned(), left.memory_bytes),
        (EPHEMERAL_STORAGE.to_owned(), left.ephemeral_storage_bytes),
        (PODS.to_owned(), super::node::max_pods(cfg, node)),
    ]);
    Ok(NodeFacts {
        name: node.name.clone(),
        labels: rules::new_labels(&node.settings, &node.identity.architecture),
        taints: node.settings.taints.clone(),
        allocatable,
        pressure: Vec::new(),
        sysctls: SysctlAllowlist::new(kernel, &cfg.allowed_unsafe_sysctls)
            .map_err(|e| format!("allowedUnsafeSysctls: {e}"))?,
        apparmor,
        strict_supplemental_groups: runtime.supplemental_groups_policy,
    })
}
