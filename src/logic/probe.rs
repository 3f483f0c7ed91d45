//! What the decisions need to know of probing: the latest decisive result per instance.
//!
//! Thresholds and timing belong to the prober; here a result is already decisive (PROBE-09).

use crate::api::ContainerId;

/// A decisive probe result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// Enough successes in a row.
    Success,
    /// Enough failures in a row.
    Failure,
    /// A probe exists, its outcome is still open (the initial value of a startup probe).
    Unknown,
}

/// Latest decisive results, by instance. `None`: nothing is known of that instance.
pub trait Probes {
    /// Result of the liveness probe.
    fn liveness(&self, id: &ContainerId) -> Option<ProbeResult>;
    /// Result of the readiness probe.
    fn readiness(&self, id: &ContainerId) -> Option<ProbeResult>;
    /// Result of the startup probe.
    fn startup(&self, id: &ContainerId) -> Option<ProbeResult>;
}

/// Nothing is probed. A container that has a startup or readiness probe then never counts as started or ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbes;

impl Probes for NoProbes {
    fn liveness(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
    fn readiness(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
    fn startup(&self, _: &ContainerId) -> Option<ProbeResult> {
        None
    }
}
