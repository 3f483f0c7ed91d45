//! Whether the node takes a pod: facts gathered for `logic::admission`.

use super::{config_pods::ConfigPod, ctx::Ctx};
use crate::{
    api::{Pod, PodUid},
    logic::{
        admission::{self, ActivePod, NodeFacts, PODS, Rejection},
        node,
        qos::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY},
        sysctl::SysctlAllowlist,
    },
};

/// Asks about `pod`, against all other active pods (LOOP-09, LOOP-11).
pub(super) fn admit(ctx: &Ctx, pod: &Pod) -> Result<(), Rejection> {
    let config = ctx.config.borrow();
    let active: Vec<ActivePod> = config
        .iter()
        .filter(|(uid, _)| **uid != pod.metadata.uid && is_active(ctx, uid))
        .map(|(_, known)| known.takes.clone())
        .collect();
    admission::admit(pod, &ctx.admission_facts.borrow(), &active)
}

/// Not known to have ended, neither here nor in its status, unless it is just ending (LOOP-11) or comes back as soon as it
/// has: its ports and its share are its own meanwhile.
pub(super) fn is_active(ctx: &Ctx, uid: &PodUid) -> bool {
    let table = ctx.table.borrow();
    if table.is_pod_known_terminated(uid) {
        return table.is_restart_requested(uid);
    }
    let ended_in_api = |known: &ConfigPod| !known.is_static && known.api_phase_terminal;
    let terminal = ctx.config.borrow().get(uid).is_some_and(ended_in_api)
        || ctx
            .statuses
            .borrow()
            .get(uid)
            .is_some_and(|s| s.phase.is_terminal());
    !terminal || (table.is_pod_termination_requested(uid) && !table.should_pod_be_finished(uid))
}

/// What admission knows of this node: the one it would register (NODE-06).
pub(super) fn facts(
    cfg: &crate::config::Config,
    node: &super::ctx::NodeFacts,
    kernel: (u32, u32),
    apparmor: bool,
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
        labels: node::new_labels(&node.settings, &node.identity.architecture),
        taints: node.settings.taints.clone(),
        allocatable,
        pressure: Vec::new(),
        sysctls: SysctlAllowlist::new(kernel, &cfg.allowed_unsafe_sysctls)
            .map_err(|e| format!("allowedUnsafeSysctls: {e}"))?,
        apparmor,
        strict_supplemental_groups: true,
    })
}
