//! What is counted of probes (MET-09). Text is made of it elsewhere.

use alloc::{boxed::Box, vec::Vec};

use super::{Counts, ProbeKind};
use crate::api::PodUid;

/// Upper bounds of the buckets of [`Durations`], ms: those that Prometheus' clients have where none are given.
pub const BUCKETS_MS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];

/// How long probes took that came to something else than a failure, which is what a kubelet measures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Probes by bucket: each counted once, in the first whose bound it kept; those over all bounds come last.
    pub buckets: [u32; BUCKETS_MS.len() + 1],
    /// All of them together, ms.
    pub sum_ms: u64,
}

impl Durations {
    /// Counts one more.
    pub fn add(&mut self, took_ms: u64) {
        let at = BUCKETS_MS.partition_point(|bound| *bound < took_ms);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket = bucket.wrapping_add(1);
        }
        self.sum_ms = self.sum_ms.wrapping_add(took_ms);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|n| u64::from(*n)).sum()
    }
}

/// What one probe has come to since its pod was first synced, over all instances of its container.
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
    /// Which probe; shown, it is the label `probe_type`.
    pub kind: ProbeKind,
    /// How its probes ended, and how many were late.
    pub counts: Counts,
    /// How long they took.
    pub took: Durations,
}

/// All probes of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Those there are now, by pod in the order in which pods came.
    pub probes: Vec<ProbeFigures>,
    /// Probes that began more than a period late since the agent was started, those of pods that are gone included.
    pub late: u64,
    /// Commands in containers under way.
    pub commands: usize,
    /// Connections under way.
    pub connections: usize,
}

impl NodeFigures {
    /// How often those there are have come to an end, whatever it was.
    #[must_use]
    pub fn ended(&self) -> u64 {
        let of =
            |counts: &Counts| [counts.successful, counts.failed, counts.unknown].map(u64::from);
        self.probes.iter().flat_map(|probe| of(&probe.counts)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        // MET-09
        let mut took = Durations::default();
        for ms in [0, 5, 6, 10_000, 10_001, u64::MAX] {
            took.add(ms);
        }
        assert_eq!(took.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((took.count(), took.sum_ms), (6, 20_011));
    }
}
