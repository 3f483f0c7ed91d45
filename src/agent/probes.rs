//! Probes, as long as there is no prober: what has a startup or readiness probe counts as having passed it.
//!
//! Otherwise a pod that names one could never become ready, and a sidecar with a startup probe would hold up all that
//! comes after it. Liveness is unknown, so nothing is killed. The pod's owner is told by an event.

use crate::{
    api::{ContainerId, Pod},
    logic::probe::{ProbeResult, Probes},
};

/// Nothing is probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unprobed;

impl Probes for Unprobed {
    fn liveness(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }

    fn readiness(&self, _: &ContainerId) -> Option<ProbeResult> {
        Some(ProbeResult::Success)
    }

    fn startup(&self, _: &ContainerId) -> Option<ProbeResult> {
        Some(ProbeResult::Success)
    }
}

/// Whether some container of the pod has a probe.
pub(super) fn asked_for(pod: &Pod) -> bool {
    let probes = |c: &crate::api::Container| {
        c.liveness_probe.is_some() || c.readiness_probe.is_some() || c.startup_probe.is_some()
    };
    pod.spec.all_containers().any(probes)
}
