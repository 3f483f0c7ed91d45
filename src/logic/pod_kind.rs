//! Who stands behind a pod: a file of this machine, the apiserver, the machine's own needs.

use alloc::string::String;

use crate::api::{
    Pod,
    pod::{CONFIG_MIRROR, CONFIG_SOURCE},
};

/// Priority at and above which a pod is critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Priority of `system-node-critical`.
pub const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Whether the pod comes from a source other than the apiserver.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .get(CONFIG_SOURCE)
        .is_some_and(|source| source != "api")
}

/// Whether the pod only mirrors a static pod in the apiserver.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(CONFIG_MIRROR)
}

/// Whether the pod must not be given up for others: static, mirror, or of a system priority.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror(pod)
        || pod
            .spec
            .priority
            .is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}

/// Whether the pod has the priority of `system-node-critical`.
#[must_use]
pub fn is_node_critical(pod: &Pod) -> bool {
    pod.spec
        .priority
        .is_some_and(|p| p >= NODE_CRITICAL_PRIORITY)
}

/// `name_namespace(uid)`, as messages name a pod.
#[must_use]
pub fn pod_ref(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("{}_{}({})", meta.name, meta.namespace, meta.uid)
}
