//! Probes: when one is due, the result of its outcomes in a row, and what the other decisions need to know of it.
//!
//! | module | what it is |
//! |---|---|
//! | [`figures`] | counts of results, and durations |
//! | [`worker`] | one probe of one container: next pass, thresholds, hold |
//! | [`workers`] | all probes of the node, by pod, and which is due next |
//!
//! This module does not carry out probes; a result here is already decisive (PROBE-09). Names follow kubelet
//! `prober/worker.go` and `prober/prober_manager.go`.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::api::{
    Container, ContainerId, MonoTime, PodError,
    pod::{IntOrString, Probe},
};

pub mod figures;
pub mod worker;
pub mod workers;

pub use figures::{NodeProbeFigures, ProbeDurations, ProbeFigures};
pub use worker::{
    ProbeCounts, ProbePassStep, ProbeSettings, ProbeWorker, ProbedContainer, ProbedContainerState,
    ProbedPod,
};
pub use workers::{PodProbeResults, ProbeWorkerEntry, ProbeWorkerKey, ProbeWorkers, WorkersToKeep};

/// Kind of a container's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeKind {
    /// A failure kills the container.
    Liveness,
    /// The result decides if the container is ready.
    Readiness,
    /// The other probes wait until it has succeeded once; a failure kills the container.
    Startup,
}

impl ProbeKind {
    /// The container's probe of this kind.
    #[must_use]
    pub const fn probe_of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// A decisive probe result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeResult {
    /// Enough successes in a row.
    Success,
    /// Enough failures in a row.
    Failure,
    /// The container has a probe without a result yet (the initial value of a startup probe).
    Unknown,
}

/// Latest decisive results, by instance. `None`: no result is known for the instance.
pub trait ProbeResults {
    /// Result of the liveness probe.
    fn liveness(&self, id: &ContainerId) -> Option<ProbeResult>;
    /// Result of the readiness probe.
    fn readiness(&self, id: &ContainerId) -> Option<ProbeResult>;
    /// Result of the startup probe.
    fn startup(&self, id: &ContainerId) -> Option<ProbeResult>;
    /// Returns true if an instance that was started at `started`, in time since boot, ran already when this agent
    /// started (PROBE-15). Its readiness in the API counts until its probe has a result.
    fn is_adopted(&self, started: Option<MonoTime>) -> bool {
        started.is_some()
    }
}

/// Number of the port that a probe or hook names (PROBE-24): the container's own port of that name, else the text as a
/// number.
///
/// - Errors: no such port, or not one of 1 to 65535. Texts are those of kubelet `probe/util.go`.
pub fn resolve_port(container: &Container, port: &IntOrString) -> Result<u16, PodError> {
    let number = match port {
        IntOrString::Int(n) => i64::from(*n),
        IntOrString::Text(name) => match container.ports.iter().find(|p| p.name == *name) {
            Some(port) => i64::from(port.container_port),
            None => name
                .parse()
                .map_err(|_| PodError::Spec(format!("port {name} not found")))?,
        },
    };
    u16::try_from(number)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| PodError::Spec(format!("invalid port number: {number}")))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::api::pod::ContainerPort;
    use crate::testing::container;

    #[test]
    fn ports() {
        // PROBE-24
        let mut c = container("a");
        let port = |name: &str, number| ContainerPort {
            name: name.into(),
            container_port: number,
            ..ContainerPort::default()
        };
        c.ports = vec![port("web", 8080), port("80", 81), port("no", 0)];
        let text = |name: &str| IntOrString::Text(name.into());
        for (given, want) in [
            (IntOrString::Int(1), Ok(1)),
            (IntOrString::Int(65535), Ok(65535)),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::Int(-1), Err("invalid port number: -1")),
            (IntOrString::Int(65536), Err("invalid port number: 65536")),
            (text("web"), Ok(8080)),
            (text("80"), Ok(81)),
            (text("9090"), Ok(9090)),
            (text("70000"), Err("invalid port number: 70000")),
            (text("no"), Err("invalid port number: 0")),
            (text("other"), Err("port other not found")),
        ] {
            let got = resolve_port(&c, &given);
            assert_eq!(
                got,
                want.map_err(|why: &str| PodError::Spec(why.into())),
                "{given:?}"
            );
        }
    }
}
