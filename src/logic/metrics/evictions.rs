//! Pods that the node itself ended: for what was short, or to make room (EVICT-14, ADM-15).

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::{
    exposition::{Kind, Text, Value},
    histogram::{DEFAULT, Histogram},
};

/// Counts of them. Signals and resources are names in this program, of which there are few.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    evicted: BTreeMap<&'static str, u64>,
    /// How old figures were when a pod went for them.
    ages: BTreeMap<&'static str, Histogram<11>>,
    preempted: BTreeMap<&'static str, u64>,
}

impl Evictions {
    /// A pod went because something was short, or because it had more than it may.
    pub fn evicted(&mut self, signal: &'static str) {
        *self.evicted.entry(signal).or_default() += 1;
    }

    /// A pod went, and this was so old when it was decided.
    pub fn age(&mut self, signal: &'static str, age: Duration) {
        self.ages.entry(signal).or_default().observe(&DEFAULT, age);
    }

    /// A pod made room for a critical one that lacked `resource`. Those of plugins count as one.
    pub fn preempted(&mut self, resource: &str) {
        let known = ["cpu", "ephemeral-storage", "memory", "pods"];
        let found = known.into_iter().find(|known| *known == resource);
        *self.preempted.entry(found.unwrap_or("other")).or_default() += 1;
    }

    /// Writes all of it.
    pub(super) fn write(&self, t: &mut Text) {
        let help = "Pods that were evicted, by what was short.";
        t.family("kubelet_evictions", Kind::Counter, help, |s| {
            for (signal, n) in &self.evicted {
                s.put(&[("eviction_signal", *signal)], Value::Count(*n), None);
            }
        });
        let help = "Age of the figures for which a pod was evicted.";
        let name = "kubelet_eviction_stats_age_seconds";
        t.family(name, Kind::Histogram, help, |s| {
            for (signal, ages) in &self.ages {
                ages.write(&DEFAULT, &[("eviction_signal", *signal)], s);
            }
        });
        let help = "Pods that made room for critical ones, by what was lacking.";
        t.family("kubelet_preemptions", Kind::Counter, help, |s| {
            for (resource, n) in &self.preempted {
                s.put(&[("preemption_signal", *resource)], Value::Count(*n), None);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families() {
        // EVICT-14 ADM-15
        let mut evictions = Evictions::default();
        evictions.evicted("memory.available");
        evictions.evicted("memory.available");
        evictions.age("memory.available", Duration::from_millis(3));
        for resource in ["memory", "vendor.io/x", "vendor.io/y"] {
            evictions.preempted(resource);
        }
        let mut text = Text::default();
        evictions.write(&mut text);
        for line in [
            "kubelet_evictions{eviction_signal=\"memory.available\"} 2",
            "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"} 1",
            "kubelet_preemptions{preemption_signal=\"memory\"} 1",
            "kubelet_preemptions{preemption_signal=\"other\"} 2",
        ] {
            assert!(text.0.lines().any(|l| l == line), "{line} in {}", text.0);
        }
    }
}
