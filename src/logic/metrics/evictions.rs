//! Counts of pods that the node itself ended: because a resource was short, or to make room (EVICT-14, ADM-15).

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::histogram::{DEFAULT, Histogram};

/// Counts of ended pods. Signals and resources are names in this program, of which there are few.
#[derive(Clone, Debug, Default)]
pub struct EvictionCounts {
    pub(super) evicted: BTreeMap<&'static str, u64>,
    /// Age of the figures for which pods were evicted.
    pub(super) ages: BTreeMap<&'static str, Histogram<11>>,
    pub(super) preempted: BTreeMap<&'static str, u64>,
}

impl EvictionCounts {
    /// Counts a pod that was evicted because a resource was short, or because the pod exceeded its own limits.
    pub fn count_eviction(&mut self, signal: &'static str) {
        *self.evicted.entry(signal).or_default() += 1;
    }

    /// Counts an eviction by the age of the figures when it was decided.
    pub fn observe_figures_age(&mut self, signal: &'static str, age: Duration) {
        self.ages.entry(signal).or_default().observe(&DEFAULT, age);
    }

    /// Counts a pod that made room for a critical one that lacked `resource`. Resources of plugins count as `other`.
    pub fn count_preemption(&mut self, resource: &str) {
        let known = ["cpu", "ephemeral-storage", "memory", "pods"];
        let found = known.into_iter().find(|known| *known == resource);
        *self.preempted.entry(found.unwrap_or("other")).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::own::{AgentCounters, tests::page_of},
        *,
    };

    #[test]
    fn families() {
        // EVICT-14 ADM-15
        let mut counters = AgentCounters::default();
        let evictions = counters.eviction_counts();
        evictions.count_eviction("memory.available");
        evictions.count_eviction("memory.available");
        evictions.observe_figures_age("memory.available", Duration::from_millis(3));
        for resource in ["memory", "vendor.io/x", "vendor.io/y"] {
            evictions.count_preemption(resource);
        }
        let text = page_of(&counters);
        for line in [
            "kubelet_evictions{eviction_signal=\"memory.available\"} 2",
            "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"} 1",
            "kubelet_preemptions{preemption_signal=\"memory\"} 1",
            "kubelet_preemptions{preemption_signal=\"other\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {}", text);
        }
    }
}
