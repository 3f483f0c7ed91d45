//! Figures of probes (MET-09). Their text is made elsewhere.

use alloc::{boxed::Box, vec::Vec};

use super::{ProbeCounts, ProbeKind};
use crate::api::PodUid;

/// Upper bounds of the buckets of [`ProbeDurations`], ms: the defaults of Prometheus' clients.
pub const BUCKETS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// Histogram of the durations of probes that did not fail: a kubelet measures the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeDurations {
    /// Number of probes by bucket: each is counted once, in the first bucket whose bound it kept; those over all bounds
    /// come last.
    pub buckets: [u32; BUCKETS_MS.len() + 1],
    /// Sum of the durations, ms.
    pub sum_ms: u64,
}

impl ProbeDurations {
    /// Counts a probe.
    pub fn add_duration(&mut self, took_ms: u64) {
        let at = BUCKETS_MS.partition_point(|bound| *bound < took_ms);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket = bucket.wrapping_add(1);
        }
        self.sum_ms = self.sum_ms.wrapping_add(took_ms);
    }

    /// Number of probes.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|n| u64::from(*n)).sum()
    }
}

/// Figures of a probe since its pod was first synced, over all instances of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFigures {
    /// Namespace of the pod.
    pub namespace: Box<str>,
    /// Name of the pod.
    pub pod: Box<str>,
    /// Pod.
    pub uid: PodUid,
    /// Container.
    pub container: Box<str>,
    /// Kind of the probe; as text, the label `probe_type`.
    pub kind: ProbeKind,
    /// Results of the probe, and number of late ones.
    pub counts: ProbeCounts,
    /// Durations of the probe.
    pub took: ProbeDurations,
}

/// All probes of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeProbeFigures {
    /// Present probes, by pod in the order in which pods came.
    pub probes: Vec<ProbeFigures>,
    /// Probes that began more than a period late since the agent was started, those of pods that are gone included.
    pub late: u64,
    /// Commands in containers under way.
    pub commands: usize,
    /// Connections under way.
    pub connections: usize,
}

impl NodeProbeFigures {
    /// Number of results of all present probes, whatever they were.
    #[must_use]
    pub fn result_count(&self) -> u64 {
        let of = |counts: &ProbeCounts| {
            [counts.successful, counts.failed, counts.unknown].map(u64::from)
        };
        self.probes.iter().flat_map(|probe| of(&probe.counts)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        // MET-09
        let mut took = ProbeDurations::default();
        for ms in [0, 5, 6, 10_000, 10_001, u64::MAX] {
            took.add_duration(ms);
        }
        assert_eq!(took.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((took.count(), took.sum_ms), (6, 20_011));
    }
}
